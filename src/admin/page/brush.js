// A span of time chosen on a curve, by the pointer or by arrows.

import { cleared, onDrag } from "./canvas.js";
import { onScheme, variable } from "./colors.js";
import { framed, h } from "./dom.js";
import * as units from "./units.js";

const HEIGHT = 54;

/** `change(name, [from_ms, to_ms] | null)`; `spans`: names and their CSS colours, of which `active` is changed. */
export function brush({ label, change }) {
	const canvas = h("canvas", { class: "brush", tabindex: "0", role: "slider", "aria-label": `${label}: arrows move it, with Shift they change its end, Escape takes all`, style: { height: `${HEIGHT}px` } });
	const text = h("div", { class: "small soft" });
	let [from, to] = [0, 1];
	let values = [];
	const chosen = { now: null, before: null };
	let active = "now";

	const draw = framed(() => {
		const width = canvas.clientWidth;
		if (!width) return;
		const context = cleared(canvas, width, HEIGHT, "--sunk");
		const most = Math.max(1, ...values);
		const step = width / Math.max(1, values.length);
		context.fillStyle = variable("--c7");
		values.forEach((value, at) => {
			const tall = (value / most) * (HEIGHT - 6);
			context.fillRect(at * step, HEIGHT - tall, Math.max(1, step - 1), tall);
		});
		for (const [name, color] of [["before", "--c0"], ["now", "--c5"]]) {
			if (!chosen[name]) continue;
			const [left, right] = chosen[name].map((at) => ((at - from) / (to - from)) * width);
			context.globalAlpha = 0.28;
			context.fillStyle = variable(color);
			context.fillRect(left, 0, right - left, HEIGHT);
			context.globalAlpha = 1;
			context.strokeStyle = variable(color);
			context.strokeRect(left + 0.5, 0.5, Math.max(1, right - left - 1), HEIGHT - 1);
		}
	});

	function say() {
		const span = chosen[active];
		const words = span ? `${units.clock(span[0], 0)} to ${units.clock(span[1], 0)} (${units.millis(span[1] - span[0])})` : `the whole window, ${units.clock(from, 0)} to ${units.clock(to, 0)}`;
		canvas.setAttribute("aria-valuetext", words);
		text.textContent = `${active === "before" ? "Compared with" : "Shown"}: ${words}. Drag to choose a part, click for all.`;
	}

	function choose(span) {
		if (span) {
			const length = Math.max((to - from) / 200, span[1] - span[0]);
			const start = Math.min(Math.max(from, span[0]), Math.max(from, to - length));
			chosen[active] = [Math.round(start), Math.round(Math.min(to, start + length))];
		} else {
			chosen[active] = null;
		}
		say();
		draw();
	}

	let timer = 0;
	const settle = () => {
		clearTimeout(timer);
		timer = setTimeout(() => change(active, chosen[active]), 250);
	};

	const at = ([left]) => from + Math.min(1, Math.max(0, left / canvas.clientWidth)) * (to - from);
	onDrag(canvas, (a, b) => choose([at(a), at(b)].sort((one, two) => one - two)), (_, isDragged) => {
		if (!isDragged) choose(null);
		settle();
	});
	canvas.addEventListener("keydown", (event) => {
		const step = (to - from) / 30;
		const [start, end] = chosen[active] ?? [to - (to - from) / 3, to];
		const sign = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
		if (sign && event.shiftKey) choose([start, Math.max(start + step, Math.min(to, end + sign * step))]);
		else if (sign) choose([start + sign * step, end + sign * step]);
		else if (event.key === "Escape") choose(null);
		else return;
		event.preventDefault();
		settle();
	});
	const watch = new ResizeObserver(draw);
	watch.observe(canvas);
	const endScheme = onScheme(draw);

	return {
		element: h("div", { class: "brushed" }, canvas, text),
		chosen,
		update(history) {
			values = history.values;
			from = history.from_ms;
			to = from + history.step_ms * Math.max(1, values.length);
			say();
			draw();
		},
		activate(name) {
			active = name;
			say();
		},
		choose(name, span) {
			active = name;
			choose(span);
		},
		/** The ends of the part that has values. */
		get ends() {
			const step = (to - from) / Math.max(1, values.length);
			const first = Math.max(0, values.findIndex((value) => value > 0));
			return [from + first * step, to];
		},
		end() {
			clearTimeout(timer);
			watch.disconnect();
			endScheme();
		},
	};
}
