// Traces as points: when they began, and how long they took, on a logarithmic axis.

import { cleared, dragRectangle, durationAxes } from "./canvas.js";
import { onScheme, variable } from "./colors.js";
import { clean, framed, h } from "./dom.js";
import { tip } from "./parts.js";
import * as units from "./units.js";

const HEIGHT = 190;
const [LEFT, RIGHT, TOP, BOTTOM] = [76, 10, 8, 20];
const REACH = 12;

/**
 * `open(trace)`: a point was chosen. `pick({ from, to, least, most })`: a range was dragged, in Unix milliseconds and nanoseconds; `null`
 * takes it back.
 */
export function scatter({ open, pick }) {
	const canvas = h("canvas", { class: "scatter", tabindex: "0", role: "application", style: { height: `${HEIGHT}px` } });
	const live = h("div", { class: "unseen", "aria-live": "polite" });
	const element = h("div", { class: "scatter-frame" }, canvas, live);
	let points = [];
	let time = [0, 1];
	let [least, most] = [1, 10];
	let chosen = null;

	const width = () => Math.max(160, element.clientWidth);
	const plot = () => ({ wide: width() - LEFT - RIGHT, tall: HEIGHT - TOP - BOTTOM });
	const x = (at) => LEFT + ((at - time[0]) / (time[1] - time[0])) * plot().wide;
	const y = (nanos) => TOP + plot().tall * (1 - Math.log(Math.max(nanos, least) / least) / Math.log(most / least));
	const atX = (left) => time[0] + (Math.min(1, Math.max(0, (left - LEFT) / plot().wide))) * (time[1] - time[0]);
	const nanosAt = (down) => least * (most / least) ** (1 - Math.min(1, Math.max(0, (down - TOP) / plot().tall)));

	const draw = framed(() => {
		const context = cleared(canvas, width(), HEIGHT, "--panel");
		const right = LEFT + plot().wide;
		context.strokeStyle = variable("--line");
		const line = (down) => {
			context.beginPath();
			context.moveTo(LEFT, Math.round(down) + 0.5);
			context.lineTo(right, Math.round(down) + 0.5);
			context.stroke();
		};
		durationAxes(context, { range: [least, most], y, ends: time, left: LEFT, right, bottom: HEIGHT, each: line });
		const [plain, bad] = [variable("--accent"), variable("--bad")];
		for (const one of points) {
			const [left, down] = [x(one.start_ms), y(one.duration_ns)];
			context.lineWidth = 1.6;
			if (one.errors) {
				// Errors have a colour and a form of their own.
				context.strokeStyle = bad;
				context.lineWidth = 2;
				context.beginPath();
				for (const [dx, dy] of [[-4, -4], [-4, 4]]) {
					context.moveTo(left + dx, down + dy);
					context.lineTo(left - dx, down - dy);
				}
				context.stroke();
				continue;
			}
			context.beginPath();
			context.arc(left, down, 3.2, 0, 7);
			context.globalAlpha = 0.6;
			context.fillStyle = context.strokeStyle = plain;
			if (one.is_complete) context.fill();
			else context.stroke();
			context.globalAlpha = 1;
		}
		const marked = points.find((one) => one.trace_id === chosen);
		if (marked) {
			context.strokeStyle = variable("--text");
			context.lineWidth = 1.5;
			context.strokeRect(x(marked.start_ms) - 7, y(marked.duration_ns) - 7, 14, 14);
		}
		rectangle.paint(context);
	});

	const words = (one) => `${units.clock(one.start_ms, 0)}, ${units.nanos(one.duration_ns)}: ${clean(one.service, 60)} ${clean(one.name, 120)}, ${units.plural(one.spans, "span")}${one.errors ? `, ${units.plural(one.errors, "error")}` : ""}${one.is_complete ? "" : ", incomplete"}`;

	function place(event) {
		const box = canvas.getBoundingClientRect();
		return [event.clientX - box.left, event.clientY - box.top];
	}

	function nearest([left, down]) {
		let [best, distance] = [null, REACH * REACH];
		for (const one of points) {
			const far = (x(one.start_ms) - left) ** 2 + (y(one.duration_ns) - down) ** 2;
			if (far <= distance) [best, distance] = [one, far];
		}
		return best;
	}

	canvas.addEventListener("pointermove", (event) => {
		if (rectangle.isDragged) return;
		const one = nearest(place(event));
		tip(one ? words(one) : "", event.clientX, event.clientY);
		canvas.style.cursor = one ? "pointer" : "crosshair";
	});
	canvas.addEventListener("pointerleave", () => tip(""));
	const rectangle = dragRectangle(canvas, draw, (from, to) => {
		if (!to) {
			const one = nearest(from);
			if (one) open(one);
			return;
		}
		const sorted = (a, b) => a < b ? [a, b] : [b, a];
		const [span, nanos] = [sorted(atX(from[0]), atX(to[0])), sorted(nanosAt(from[1]), nanosAt(to[1]))];
		pick({ from: Math.floor(span[0]), to: Math.ceil(span[1]), least: nanos[0], most: nanos[1] });
	});
	canvas.addEventListener("keydown", (event) => {
		const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
		const now = points.findIndex((one) => one.trace_id === chosen);
		if (step && points.length) {
			const one = points[now < 0 ? (step > 0 ? 0 : points.length - 1) : Math.min(points.length - 1, Math.max(0, now + step))];
			chosen = one.trace_id;
			live.textContent = words(one);
			draw();
		} else if (event.key === "Enter" && now >= 0) open(points[now]);
		else if (event.key === "Escape") pick(null);
		else return;
		event.preventDefault();
	});
	const watch = new ResizeObserver(draw);
	watch.observe(element);
	const endScheme = onScheme(draw);

	return {
		element,
		/** Shows the traces whose start and duration are known, over this time. */
		update(traces, from, to) {
			points = traces.filter((one) => one.start_ms && one.duration_ns !== null).sort((a, b) => a.start_ms - b.start_ms);
			// Some were read in this time that began before it.
			time = [Math.min(from, points[0]?.start_ms ?? from), Math.max(from + 1, to, points.at(-1)?.start_ms ?? to)];
			least = Infinity;
			most = 1;
			for (const { duration_ns: nanos } of points) [least, most] = [Math.min(least, nanos), Math.max(most, nanos)];
			least = Math.max(1, Math.min(least, most)) / 1.4;
			most = Math.max(most, least * 4) * 1.4;
			canvas.setAttribute("aria-label", `${units.plural(points.length, "trace")} by time and duration: arrows select, Enter opens, Escape takes back what was dragged`);
			draw();
		},
		end() {
			watch.disconnect();
			endScheme();
			tip("");
		},
	};
}
