// A flame graph or flame chart on a canvas: boxes in rows.
//
// Only boxes in sight are drawn: those of a row are in order of their place, and are found by bisection.

import { cleared } from "./canvas.js";
import { isDark, onScheme, variable } from "./colors.js";
import { clean, framed, h, once } from "./dom.js";
import { tailOf } from "./names.js";
import { tip } from "./parts.js";

const ROW = 19;
const NARROWEST = 1;
const TEXT_FROM = 26;

/**
 * `rows`: for each depth `{ from, to, id }`, arrays in order of `from`. `parent(id)` gives a box's caller or -1.
 * `name(id)`, `describe(id)` and `color(id)` are asked for boxes in sight only. `choose(id)`: a box was selected. `below(id)`: the box that
 * stands below, where it is not the largest of those that `parent` gives this one for.
 */
export function flameCanvas({ label, name, describe, color, parent, below = () => -1, choose = () => {}, zoomed = () => {}, maxHeight = "62vh" }) {
	const canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": label });
	const spacer = h("div", { class: "spacer" });
	const live = h("div", { class: "unseen", "aria-live": "polite" });
	const scroll = h("div", { class: "flame", style: { "max-height": maxHeight } }, spacer, canvas);
	const element = h("div", {}, scroll, live);
	let rows = [];
	let range = [0, 1];
	let view = [0, 1];
	let selected = -1;
	/** As `placesOf` gives them. */
	let [rowOf, placeOf] = [new Int32Array(), new Int32Array()];
	const has = (id) => (rowOf[id] ?? -1) >= 0;
	let isMatch = null;
	let [width, visible] = [0, 0];

	const draw = framed(paint);

	function paint() {
		[width, visible] = [scroll.clientWidth, scroll.clientHeight];
		const height = Math.min(visible || 400, rows.length * ROW);
		if (!width || !height) return;
		canvas.style.height = `${height}px`;
		const context = cleared(canvas, width, height, "--panel");
		context.font = `12px ${variable("--sans")}`;
		context.textBaseline = "middle";
		const style = { text: isDark() ? "#f2f4f7" : "#1b1206", faded: variable("--sunk"), border: variable("--panel"), mark: isDark() ? "#b08cff" : "#8a3ffc", accent: variable("--accent"), soft: variable("--soft") };
		const top = scroll.scrollTop;
		const last = Math.min(rows.length, Math.ceil((top + height) / ROW));
		for (let depth = Math.floor(top / ROW); depth < last; depth += 1) paintRow(context, rows[depth], depth * ROW - top, style);
	}

	function paintRow(context, row, y, style) {
		const [start, end] = view;
		const scale = width / (end - start);
		let drawnTo = -1;
		for (let at = firstAfter(row.to, start); at < row.id.length && row.from[at] < end; at += 1) {
			const id = row.id[at];
			const x = Math.max(0, (row.from[at] - start) * scale);
			const right = Math.min(width, (row.to[at] - start) * scale);
			const isSelected = id === selected;
			if (right - x < NARROWEST || (right <= drawnTo && !isSelected)) {
				// Boxes narrower than a pixel: one mark stands for all of them.
				if (x > drawnTo) {
					context.fillStyle = color(id);
					context.fillRect(x, y, 1, ROW - 1);
					drawnTo = x + 1;
				}
				continue;
			}
			const size = Math.max(right - x - (right - x > 3 ? 1 : 0), 0.6);
			drawnTo = right;
			const isFaded = isMatch && !isMatch(id);
			context.fillStyle = isFaded ? style.faded : color(id);
			context.fillRect(x, y, size, ROW - 1);
			if (isMatch && !isFaded) {
				context.fillStyle = style.mark;
				context.fillRect(x, y + ROW - 4, size, 3);
			}
			if (isSelected) {
				context.strokeStyle = style.accent;
				context.lineWidth = 2;
				context.strokeRect(x + 1, y + 1, Math.max(1, size - 2), ROW - 3);
			}
			if (size > TEXT_FROM) {
				context.fillStyle = isFaded ? style.soft : style.text;
				context.fillText(fittedName(context, clean(name(id), 200), size - 7), x + 4, y + ROW / 2);
			}
		}
	}

	function boxAt(event) {
		const bounds = canvas.getBoundingClientRect();
		const row = rows[Math.floor((event.clientY - bounds.top + scroll.scrollTop) / ROW)];
		if (!row) return -1;
		const value = view[0] + ((event.clientX - bounds.left) / width) * (view[1] - view[0]);
		const at = firstAfter(row.to, value);
		return at < row.id.length && row.from[at] <= value ? row.id[at] : -1;
	}

	function select(id, isTold = true) {
		selected = id;
		if (id >= 0) {
			const depth = rowOf[id];
			if (depth * ROW < scroll.scrollTop) scroll.scrollTop = depth * ROW;
			else if ((depth + 1) * ROW > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = (depth + 1) * ROW - scroll.clientHeight;
			if (isTold) live.textContent = describe(id);
		}
		choose(id);
		draw();
	}

	/** Makes a box as wide as the canvas. Without one, everything is shown. */
	function zoom(id) {
		if (id === null || id < 0) {
			view = [...range];
		} else {
			const [row, at] = [rows[rowOf[id]], placeOf[id]];
			view = [row.from[at], row.to[at]];
		}
		zoomed(view[0] !== range[0] || view[1] !== range[1]);
		draw();
	}

	function zoomAround(center, factor) {
		const length = Math.min(range[1] - range[0], Math.max((range[1] - range[0]) / 1e7, (view[1] - view[0]) * factor));
		const share = (center - view[0]) / (view[1] - view[0]);
		const start = Math.min(Math.max(range[0], center - share * length), range[1] - length);
		view = [start, start + length];
		zoomed(length < range[1] - range[0]);
		draw();
	}

	function neighbour(id, step) {
		return rows[rowOf[id]].id[placeOf[id] + step] ?? id;
	}

	function firstChild(id) {
		if (below(id) >= 0) return below(id);
		const [depth, at] = [rowOf[id], placeOf[id]];
		const row = rows[depth + 1];
		if (!row) return id;
		let best = -1;
		for (let next = firstAfter(row.to, rows[depth].from[at]); next < row.id.length && row.from[next] < rows[depth].to[at]; next += 1) {
			if (parent(row.id[next]) === id && (best < 0 || row.to[next] - row.from[next] > row.to[best] - row.from[best])) best = next;
		}
		return best < 0 ? id : row.id[best];
	}

	canvas.addEventListener("mousemove", (event) => {
		const id = boxAt(event);
		tip(id < 0 ? "" : describe(id), event.clientX, event.clientY);
		canvas.style.cursor = id < 0 ? "default" : "pointer";
	});
	canvas.addEventListener("mouseleave", () => tip(""));
	canvas.addEventListener("click", (event) => {
		const id = boxAt(event);
		if (id >= 0) select(id, false);
	});
	canvas.addEventListener("dblclick", (event) => zoom(boxAt(event)));
	canvas.addEventListener("wheel", (event) => {
		if (!event.ctrlKey && !event.metaKey) return;
		event.preventDefault();
		const bounds = canvas.getBoundingClientRect();
		zoomAround(view[0] + ((event.clientX - bounds.left) / width) * (view[1] - view[0]), event.deltaY > 0 ? 1.2 : 1 / 1.2);
	}, { passive: false });
	canvas.addEventListener("keydown", (event) => {
		if (!rows.length) return;
		const known = has(selected) ? selected : -1;
		const first = rows[0].id[0];
		const to = {
			ArrowUp: () => select(known < 0 ? first : parent(known) >= 0 ? parent(known) : known),
			ArrowDown: () => select(known < 0 ? first : firstChild(known)),
			ArrowLeft: () => select(known < 0 ? first : neighbour(known, -1)),
			ArrowRight: () => select(known < 0 ? first : neighbour(known, 1)),
			Enter: () => zoom(known),
			Escape: () => zoom(null),
			"+": () => zoomAround((view[0] + view[1]) / 2, 1 / 1.5),
			"-": () => zoomAround((view[0] + view[1]) / 2, 1.5),
		}[event.key];
		if (!to) return;
		event.preventDefault();
		to();
	});
	scroll.addEventListener("scroll", draw, { passive: true });
	const watch = new ResizeObserver(() => (scroll.clientWidth !== width || scroll.clientHeight !== visible) && draw());
	watch.observe(scroll);
	const endScheme = onScheme(draw);

	return {
		element,
		canvas,
		scroll,
		select,
		zoom,
		/** Scrolls to a row. */
		show(row) {
			scroll.scrollTop = (row + 0.5) * ROW - scroll.clientHeight / 2;
		},
		/** Shows other boxes. `from` and `to` are the ends of the whole. */
		update(next, from, to) {
			rows = next;
			range = [from, to > from ? to : from + 1];
			view = [...range];
			[rowOf, placeOf] = once(places, rows, placesOf);
			if (!has(selected)) selected = -1;
			spacer.style.height = `${rows.length * ROW}px`;
			zoomed(false);
			draw();
		},
		/** Shows which boxes match; `null` ends it. */
		highlight(match) {
			isMatch = match;
			draw();
		},
		end() {
			watch.disconnect();
			endScheme();
			tip("");
		},
	};
}

/** For rows that are shown again. */
const places = new WeakMap();

/** The row of each box, -1: none, and its place in the row. */
function placesOf(rows) {
	let largest = -1;
	for (const row of rows) for (const id of row.id) if (id > largest) largest = id;
	const [rowOf, placeOf] = [new Int32Array(largest + 1).fill(-1), new Int32Array(largest + 1)];
	rows.forEach(({ id }, depth) => {
		for (let at = 0; at < id.length; at += 1) [rowOf[id[at]], placeOf[id[at]]] = [depth, at];
	});
	return [rowOf, placeOf];
}

/** A function's name as it fits: whole, else without its packages, else the beginning of that. */
function fittedName(context, text, width) {
	if (context.measureText(text).width <= width) return text;
	return fitted(context, tailOf(text), width);
}

/** As much of a text as fits; nothing where that is less than two characters. */
export function fitted(context, text, width) {
	const fitting = Math.floor(width / 4);
	let part = text.length > fitting ? text.slice(0, fitting) : text;
	while (part.length > 1 && context.measureText(part).width > width) part = part.slice(0, Math.floor(part.length * 0.88));
	if (part.length === text.length) return part;
	return part.length > 2 ? `${part.slice(0, -1)}…` : "";
}

/** The first index whose value is above `value`; `values` ascend. */
function firstAfter(values, value) {
	let [low, high] = [0, values.length];
	while (low < high) {
		const middle = (low + high) >> 1;
		if (values[middle] > value) high = middle;
		else low = middle + 1;
	}
	return low;
}

/** Rows of boxes from parallel arrays of depth, start and end. */
export function rowsOf(count, depthOf, fromOf, toOf) {
	const found = [];
	for (let id = 0; id < count; id += 1) {
		const depth = depthOf(id);
		while (found.length <= depth) found.push([]);
		found[depth].push(id);
	}
	return found.map((ids) => {
		ids.sort((a, b) => fromOf(a) - fromOf(b) || toOf(b) - toOf(a));
		return { id: ids, from: Float64Array.from(ids, fromOf), to: Float64Array.from(ids, toOf) };
	});
}
