// A treemap on a canvas: boxes within boxes, whose area is a size.

import { cleared } from "./canvas.js";
import { isDark, onScheme, variable } from "./colors.js";
import { clean, framed, h } from "./dom.js";
import { fitted } from "./flame.js";
import { tip } from "./parts.js";

const TITLE = 17;
const SMALLEST = 5;

/**
 * A node is `{ name, size, children }`. `color(node)` colours leaves, `describe(node)` says what one is.
 * `open(node)`: it was chosen. Arrows move between boxes, Enter opens one, Escape goes back.
 */
export function treemap({ label, color, describe, open, back, height = 460 }) {
	const canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": label, style: { height: `${height}px` } });
	const live = h("div", { class: "unseen", "aria-live": "polite" });
	const element = h("div", { class: "treemap" }, canvas, live);
	let root = null;
	let boxes = [];
	let selected = -1;

	const draw = framed(() => {
		const width = canvas.clientWidth;
		if (!width || !root) return;
		const context = cleared(canvas, width, height, "--panel");
		context.font = `12px ${variable("--sans")}`;
		context.textBaseline = "middle";
		boxes = [];
		place(root.children, 0, 0, width, height, 0, boxes);
		const style = { line: variable("--panel"), group: variable("--sunk"), text: variable("--text"), strong: variable("--line-strong"), accent: variable("--accent"), inner: isDark() ? "#f2f4f7" : "#1b1206" };
		boxes.forEach((box, at) => paint(context, box, at === selected, style));
	});

	function paint(context, { node, x, y, w, t, isLeaf }, isSelected, style) {
		context.fillStyle = isLeaf ? color(node) : style.group;
		context.fillRect(x, y, w - 1, t - 1);
		if (!isLeaf) {
			context.strokeStyle = style.strong;
			context.strokeRect(x + 0.5, y + 0.5, w - 2, t - 2);
		}
		if (isSelected) {
			context.strokeStyle = style.accent;
			context.lineWidth = 3;
			context.strokeRect(x + 1.5, y + 1.5, w - 4, t - 4);
			context.lineWidth = 1;
		}
		if (w > 34 && t > 13) {
			context.fillStyle = isLeaf ? style.inner : style.text;
			context.fillText(fitted(context, clean(node.name, 120), w - 9), x + 5, isLeaf ? y + Math.min(t / 2, 10) : y + TITLE / 2 + 1);
		}
	}

	function boxAt(event) {
		const bounds = canvas.getBoundingClientRect();
		const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
		for (let at = boxes.length - 1; at >= 0; at -= 1) {
			const box = boxes[at];
			if (x >= box.x && x < box.x + box.w && y >= box.y && y < box.y + box.t) return at;
		}
		return -1;
	}

	function select(at) {
		selected = at;
		if (at >= 0) live.textContent = describe(boxes[at].node);
		draw();
	}

	canvas.addEventListener("mousemove", (event) => {
		const at = boxAt(event);
		tip(at < 0 ? "" : describe(boxes[at].node), event.clientX, event.clientY);
		canvas.style.cursor = at < 0 ? "default" : "pointer";
	});
	canvas.addEventListener("mouseleave", () => tip(""));
	canvas.addEventListener("click", (event) => {
		const at = boxAt(event);
		if (at < 0) return;
		select(at);
		tip("");
		open(boxes[at].node);
	});
	canvas.addEventListener("keydown", (event) => {
		const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
		if (way && boxes.length) select(selected < 0 ? 0 : nearest(boxes, selected, way));
		else if (event.key === "Enter" && selected >= 0) open(boxes[selected].node);
		else if (event.key === "Escape") back();
		else return;
		event.preventDefault();
	});
	const watch = new ResizeObserver(draw);
	watch.observe(canvas);
	const endScheme = onScheme(draw);

	return {
		element,
		canvas,
		update(next, keepsSelection = false) {
			root = next;
			if (!keepsSelection) selected = -1;
			draw();
		},
		end() {
			watch.disconnect();
			endScheme();
			tip("");
		},
	};
}

/** Places nodes in rows of boxes that are nearly square, the largest first; then what is within them. */
function place(nodes, x, y, width, height, depth, boxes) {
	const list = nodes.filter((node) => node.size > 0).sort((a, b) => b.size - a.size);
	let total = list.reduce((sum, node) => sum + node.size, 0);
	let from = 0;
	while (from < list.length && width >= 1 && height >= 1) {
		const side = Math.min(width, height);
		const scale = (width * height) / total;
		let [to, sum, best] = [from, 0, Infinity];
		while (to < list.length) {
			const next = sum + list[to].size;
			const thick = (next * scale) / side;
			const longest = Math.max((list[from].size * scale) / thick / thick, (thick * thick) / (list[to].size * scale));
			if (longest > best) break;
			[sum, best] = [next, longest];
			to += 1;
		}
		const thick = (sum * scale) / side;
		let along = 0;
		for (const node of list.slice(from, to)) {
			const length = (node.size * scale) / thick;
			if (width < height) add(node, x + along, y, length, thick, depth, boxes);
			else add(node, x, y + along, thick, length, depth, boxes);
			along += length;
		}
		if (width < height) [y, height] = [y + thick, height - thick];
		else [x, width] = [x + thick, width - thick];
		total -= sum;
		from = to;
	}
}

function add(node, x, y, w, t, depth, boxes) {
	const isLeaf = !node.children?.length;
	const hasRoom = !isLeaf && w > 3 * SMALLEST && t > TITLE + SMALLEST;
	boxes.push({ node, x, y, w, t, isLeaf: isLeaf || !hasRoom });
	if (hasRoom) place(node.children, x + 3, y + TITLE, w - 7, t - TITLE - 4, depth + 1, boxes);
}

/** The box in a direction: the nearest by distance, where what lies aside counts double. */
function nearest(boxes, from, [dx, dy]) {
	const center = (box) => [box.x + box.w / 2, box.y + box.t / 2];
	const [x, y] = center(boxes[from]);
	let [best, least] = [from, Infinity];
	boxes.forEach((box, at) => {
		if (at === from || !box.isLeaf) return;
		const [bx, by] = center(box);
		const along = (bx - x) * dx + (by - y) * dy;
		if (along <= 0) return;
		const distance = along + 2 * Math.abs((bx - x) * dy + (by - y) * dx);
		if (distance < least) [best, least] = [at, distance];
	});
	return best;
}
