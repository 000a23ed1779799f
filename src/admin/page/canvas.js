// Canvases as sharp as the screen.

import { variable } from "./colors.js";
import { tip } from "./parts.js";
import * as units from "./units.js";

/** The context of a canvas of this size in CSS pixels, filled with a colour of the style sheet. */
export function cleared(canvas, width, height, background) {
	const ratio = devicePixelRatio || 1;
	const size = [Math.round(width * ratio), Math.round(height * ratio)];
	if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
	const context = canvas.getContext("2d");
	context.setTransform(ratio, 0, 0, ratio, 0, 0);
	context.fillStyle = variable(background);
	context.fillRect(0, 0, width, height);
	return context;
}

/**
 * The texts of a picture of durations over time, on a logarithmic axis: `range` in nanoseconds, whose places `y` gives; `ends` in Unix
 * milliseconds at `left` and `right`. `each` is called with the place of each duration.
 */
export function durationAxes(context, { range: [least, most], y, ends, left, right, bottom, each = () => {} }) {
	context.font = "11px sans-serif";
	context.fillStyle = variable("--soft");
	context.textAlign = "right";
	for (let nanos = 10 ** Math.ceil(Math.log10(least)); nanos <= most; nanos *= 10) {
		const place = y(nanos);
		each(place);
		context.fillText(units.nanos(nanos), left - 6, Math.min(bottom - 18, Math.max(10, place + 4)));
	}
	context.fillText(units.clock(ends[1], 0), right, bottom - 4);
	context.textAlign = "left";
	context.fillText(units.clock(ends[0], 0), left, bottom - 4);
}

/** How far a pointer moves at least before it drags, in pixels. */
const DRAG = 6;

/** `move(from, to)` while a pointer drags, `end(from, to)` behind that: a click has no `to`, and a browser that scrolls instead cancels. Places are pixels within the canvas. */
export function onDrag(canvas, move, end) {
	canvas.addEventListener("pointerdown", (event) => {
		if (event.button) return;
		const box = canvas.getBoundingClientRect();
		const place = (point) => [point.clientX - box.left, point.clientY - box.top];
		const from = place(event);
		let to = null;
		const moved = (point) => {
			const at = place(point);
			if (!to && Math.hypot(at[0] - from[0], at[1] - from[1]) < DRAG) return;
			to = at;
			move(from, to);
		};
		const listening = new AbortController();
		const finish = ({ type }) => {
			listening.abort();
			end(from, to, type === "pointercancel");
		};
		canvas.setPointerCapture(event.pointerId);
		canvas.addEventListener("pointermove", moved, listening);
		canvas.addEventListener("pointerup", finish, listening);
		canvas.addEventListener("pointercancel", finish, listening);
	});
}

/**
 * The rectangle that a pointer drags over a canvas, which `draw()` draws again. `done(from, to)` as `end` above, unless it is cancelled.
 */
export function dragRectangle(canvas, draw, done) {
	let ends = null;
	const show = (next) => {
		tip("");
		ends = next;
		draw();
	};
	onDrag(canvas, (from, to) => show([from, to]), (from, to, isCancelled) => {
		show(null);
		if (!isCancelled) done(from, to);
	});
	return {
		get isDragged() { return ends !== null; },
		paint(context) {
			if (!ends) return;
			const [[x, y], [toX, toY]] = ends;
			const [left, top, across, down] = [Math.min(x, toX), Math.min(y, toY), Math.abs(toX - x), Math.abs(toY - y)];
			context.globalAlpha = 0.18;
			context.fillStyle = context.strokeStyle = variable("--accent");
			context.fillRect(left, top, across, down);
			context.globalAlpha = 1;
			context.strokeRect(left + 0.5, top + 0.5, across, down);
		},
	};
}
