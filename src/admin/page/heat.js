// A heat map: how many requests took how long, minute by minute.

import { cleared, dragRectangle, durationAxes } from "./canvas.js";
import { onScheme, variable } from "./colors.js";
import { framed, h } from "./dom.js";
import { tip } from "./parts.js";
import * as units from "./units.js";

const MINUTE = 60_000;
const HEIGHT = 180;
const LEFT = 76;
const BOTTOM = 18;

/** `pick({ at, until, from, to })` is called with the time and the durations of a cell that is chosen, or of cells that are dragged over. */
export function heatMap(pick) {
	const canvas = h("canvas", { class: "heat", tabindex: "0", role: "img", style: { height: `${HEIGHT}px` } });
	const element = h("div", { class: "heat-frame" }, canvas);
	let minutes = [];
	let time = { from_ms: 0, to_ms: 1 };
	let [least, most, top] = [1, 2, 1];
	let chosen = null;

	const width = () => Math.max(200, element.clientWidth);
	const column = () => (width() - LEFT) / Math.max(1, Math.round((time.to_ms - time.from_ms) / MINUTE));
	const y = (nanos) => (HEIGHT - BOTTOM) * (1 - Math.log(Math.max(nanos, least) / least) / Math.log(most / least));
	const x = (at) => LEFT + ((at - time.from_ms) / MINUTE) * column();

	const draw = framed(() => {
		const context = cleared(canvas, width(), HEIGHT, "--panel");
		durationAxes(context, { range: [least, most], y, ends: [time.from_ms, time.to_ms], left: LEFT, right: width(), bottom: HEIGHT });
		context.fillStyle = variable("--accent");
		for (const minute of minutes) {
			for (const [from, to, count] of minute.cells) {
				context.globalAlpha = 0.12 + 0.88 * (Math.log(count + 1) / Math.log(top + 1));
				context.fillRect(x(minute.at_ms), y(to), Math.max(1, column() - 1), Math.max(2, y(from) - y(to) - 0.5));
			}
		}
		context.globalAlpha = 1;
		if (chosen) {
			context.strokeStyle = variable("--text");
			context.strokeRect(x(chosen.at) + 0.5, y(chosen.to) + 0.5, column() - 1, y(chosen.from) - y(chosen.to));
		}
		rectangle.paint(context);
	});

	const cells = () => minutes.flatMap((minute) => minute.cells.map(([from, to, count]) => ({ at: minute.at_ms, until: minute.at_ms + MINUTE, from, to, count })));
	const words = (cell) => `${units.clock(cell.at, 0)}: ${units.plural(cell.count, "request")} of ${units.nanos(cell.from)} to ${units.nanos(cell.to)}`;

	const at = ([left, down]) => cells().find((cell) => left >= x(cell.at) && left < x(cell.at) + column() && down <= y(cell.from) && down >= y(cell.to));

	/** All that the cells in a rectangle have. `null`: there is none. */
	function within([left, top], [right, bottom]) {
		const [[west, east], [north, south]] = [[left, right], [top, bottom]].map((ends) => ends.sort((a, b) => a - b));
		const found = cells().filter((cell) => x(cell.at) < east && x(cell.until) > west && y(cell.to) < south && y(cell.from) > north);
		return found.reduce((all, { at, until, from, to }) => all
			? { at: Math.min(all.at, at), until: Math.max(all.until, until), from: Math.min(all.from, from), to: Math.max(all.to, to) }
			: { at, until, from, to }, null);
	}

	canvas.addEventListener("pointermove", (event) => {
		if (rectangle.isDragged) return;
		const box = canvas.getBoundingClientRect();
		const cell = at([event.clientX - box.left, event.clientY - box.top]);
		tip(cell ? words(cell) : "", event.clientX, event.clientY);
		canvas.style.cursor = cell ? "pointer" : "crosshair";
	});
	canvas.addEventListener("pointerleave", () => tip(""));
	const rectangle = dragRectangle(canvas, draw, (from, to) => {
		const found = to ? within(from, to) : at(from);
		if (found) pick(found);
	});
	canvas.addEventListener("keydown", (event) => {
		const all = cells();
		const now = all.findIndex((cell) => chosen && cell.at === chosen.at && cell.from === chosen.from);
		const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
		if (step && all.length) {
			chosen = all[Math.min(all.length - 1, Math.max(0, now + step))];
			canvas.setAttribute("aria-label", words(chosen));
			draw();
		} else if (event.key === "Enter" && now >= 0) {
			pick(all[now]);
		} else {
			return;
		}
		event.preventDefault();
	});
	const observer = new ResizeObserver(draw);
	observer.observe(element);
	const endScheme = onScheme(draw);

	return {
		element,
		update(next, window) {
			minutes = next;
			time = window;
			const all = cells();
			least = Math.max(1, Math.min(...all.map((cell) => cell.from), 1e12));
			most = Math.max(least * 2, ...all.map((cell) => cell.to));
			top = Math.max(1, ...all.map((cell) => cell.count));
			if (!chosen) canvas.setAttribute("aria-label", `Durations of ${units.plural(all.reduce((sum, cell) => sum + cell.count, 0), "request")} from ${units.nanos(least)} to ${units.nanos(most)}`);
			draw();
		},
		end() {
			observer.disconnect();
			endScheme();
			tip("");
		},
	};
}
