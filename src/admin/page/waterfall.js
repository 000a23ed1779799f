// The timeline of a trace: a line per span, its name on the left and its bar on the right, with a small map of the whole above.
// Only the lines in sight exist.

import { cleared, onDrag } from "./canvas.js";
import { categories, onScheme, variable } from "./colors.js";
import { clean, framed, h, said, set } from "./dom.js";
import { functionName } from "./names.js";
import { tip } from "./parts.js";
import * as units from "./units.js";

const LINE = 24;
const SPARE = 8;
const MAP_HEIGHT = 56;
/** A time of the axis has this many pixels at least. */
const TICK = 74;

/**
 * `spans` in the order of the timeline. `choose(index)`: a span was selected. `critical`: pieces of the critical path by span. `isCode`: their
 * names are those of methods.
 */
export function waterfall(spans, duration, logs, { choose, critical = new Map(), isCode }) {
	const whole = Math.max(1, duration ?? 0, ...ends(spans));
	const colors = categories(new Set(spans.map((span) => span.service || span.name)));
	const colorOf = (span) => colors.get(span.service || span.name);
	const closed = new Set();
	const hasChildren = new Uint8Array(spans.length);
	const logsOf = new Map();
	spans.forEach((span) => { if (span.parent !== null) hasChildren[span.parent] = 1; });
	for (const log of logs) {
		if (log.span === null || log.span === undefined) continue;
		logsOf.set(log.span, [...(logsOf.get(log.span) ?? []), log]);
	}
	let visible = spans.map((_, at) => at);
	let view = [0, whole];
	let selected = -1;
	let match = null;

	const map = h("canvas", { tabindex: "0", role: "slider", "aria-label": "Part of the trace in sight: arrows move it, + and - change it, Escape shows all", style: { height: `${MAP_HEIGHT}px` } });
	const axis = h("div", { class: "axis" });
	const lines = h("div", { class: "lines", role: "rowgroup" });
	const scroll = h("div", { class: "scroll", tabindex: "0", role: "treegrid", "aria-label": "Spans" }, lines);
	const element = h("div", { class: "waterfall" }, h("div", { class: "map" }, map), axis, scroll);

	const draw = framed(paint);

	function paint() {
		lines.style.height = `${visible.length * LINE}px`;
		scroll.setAttribute("aria-rowcount", String(visible.length));
		const from = Math.max(0, Math.floor(scroll.scrollTop / LINE) - SPARE);
		const number = Math.ceil((scroll.clientHeight || 600) / LINE) + 2 * SPARE;
		set(lines, visible.slice(from, from + number).map((index, at) => line(index, from + at)));
	}

	function line(index, at) {
		const span = spans[index];
		const isError = span.status === "error";
		const depth = Math.min(span.depth, 16);
		const toggle = hasChildren[index]
			? h("button", { type: "button", class: "fold", tabindex: "-1", "aria-label": closed.has(index) ? "Show what it called" : "Hide what it called", on: { click: (event) => { event.stopPropagation(); fold(index); } } }, closed.has(index) ? "▸" : "▾")
			: h("span", { class: "fold" });
		return h("div", {
			id: `span-${index}`,
			class: `span-line${match && !match(span) ? " faded" : ""}`,
			role: "row",
			"aria-level": String(span.depth + 1),
			"aria-rowindex": String(at + 1),
			"aria-selected": index === selected ? "true" : "false",
			"aria-expanded": hasChildren[index] ? String(!closed.has(index)) : null,
			style: { top: `${at * LINE}px` },
			on: { click: () => select(index) },
		},
		h("div", { class: "label", role: "gridcell", style: { "--depth": String(depth) } }, toggle,
			h("i", { class: "swatch", style: { background: colorOf(span) } }),
			isError && h("span", { class: "bad-text", title: "error" }, "✕"),
			isCode ? functionName(span.name) : said(span.name), span.detail && span.detail !== span.name && said(span.detail, "soft")),
		h("div", { class: "track", role: "gridcell" }, bar(span, index, isError)));
	}

	function bar(span, index, isError) {
		if (span.start_ns === null || span.start_ns === undefined) return h("span", { class: "soft small" }, `time unknown${span.duration_ns ? `, ${units.nanos(span.duration_ns)}` : ""}`);
		const share = (value) => (100 * (value - view[0])) / (view[1] - view[0]);
		const isOpen = span.duration_ns === null || span.duration_ns === undefined;
		const left = Math.max(-1, share(span.start_ns));
		const right = Math.min(101, share(span.start_ns + (span.duration_ns ?? 0)));
		if (right < 0 || left > 100) return null;
		const text = isOpen ? "no end" : units.nanos(span.duration_ns);
		const end = right > 88 ? (left > 14 ? { right: `${100 - left}%` } : { right: `${Math.max(0, 100 - right)}%`, color: "var(--panel)" }) : { left: `${right}%` };
		return [
			h("div", { class: `bar${isError ? " is-error" : ""}${isOpen ? " is-open" : ""}`, style: { left: `${left}%`, width: `${Math.max(0, right - left)}%`, "--color": colorOf(span) } }),
			(critical.get(index) ?? []).slice(0, 50).map((piece) => h("i", { class: "critical", style: { left: `${share(piece.from)}%`, width: `${share(piece.to) - share(piece.from)}%` } })),
			(logsOf.get(index) ?? []).slice(0, 20).map((log) => h("i", { class: `tick ${log.severity === "ERROR" ? "bad" : ""}`, title: clean(log.text ?? log.name), style: { left: `${share(log.at_ns)}%` } })),
			h("span", { class: "time num", style: end }, text),
		];
	}

	function paintAxis() {
		const track = h("div", { class: "track" });
		set(axis, h("div", { class: "label" }, `${units.plural(spans.length, "span")}`), track);
		const ticks = Math.min(5, Math.max(1, Math.floor(track.clientWidth / TICK)));
		set(track, Array.from({ length: ticks }, (_, at) => h("span", { style: { left: `${(100 * at) / ticks}%` } }, units.nanos(view[0] + ((view[1] - view[0]) * at) / ticks))));
	}

	const paintMap = framed(() => {
		const width = map.clientWidth;
		if (!width) return;
		const context = cleared(map, width, MAP_HEIGHT, "--sunk");
		const tall = Math.max(1, Math.min(4, MAP_HEIGHT / spans.length));
		const palette = new Map([...colors].map(([name, color]) => [name, variable(color.slice(4, -1))]));
		spans.forEach((span, at) => {
			if (span.start_ns === null || span.start_ns === undefined) return;
			context.fillStyle = span.status === "error" ? variableBad : palette.get(span.service || span.name);
			context.fillRect((span.start_ns / whole) * width, (at / spans.length) * (MAP_HEIGHT - tall), Math.max(1, ((span.duration_ns ?? 0) / whole) * width), tall);
		});
		const [left, right] = [(view[0] / whole) * width, (view[1] / whole) * width];
		context.globalAlpha = 0.6;
		context.fillStyle = variable("--back");
		context.fillRect(0, 0, left, MAP_HEIGHT);
		context.fillRect(right, 0, width - right, MAP_HEIGHT);
		context.globalAlpha = 1;
		context.strokeStyle = variable("--accent");
		if (view[0] > 0 || view[1] < whole) context.strokeRect(left + 0.5, 0.5, Math.max(1, right - left - 1), MAP_HEIGHT - 1);
	});
	let variableBad = variable("--bad");

	function look(from, to) {
		const length = Math.min(whole, Math.max(whole / 1e6, to - from));
		const start = Math.min(Math.max(0, from), whole - length);
		view = [start, start + length];
		map.setAttribute("aria-valuetext", `${units.nanos(view[0])} to ${units.nanos(view[1])}`);
		paintAxis();
		paintMap();
		draw();
	}

	function fold(index) {
		if (closed.has(index)) closed.delete(index);
		else closed.add(index);
		arrange();
	}

	function arrange() {
		visible = [];
		let hiddenBelow = Infinity;
		spans.forEach((span, at) => {
			if (span.depth > hiddenBelow) return;
			hiddenBelow = closed.has(at) ? span.depth : Infinity;
			visible.push(at);
		});
		draw();
	}

	function select(index) {
		selected = index;
		scroll.setAttribute("aria-activedescendant", `span-${index}`);
		const at = visible.indexOf(index);
		if (at >= 0) {
			if (at * LINE < scroll.scrollTop) scroll.scrollTop = at * LINE;
			else if ((at + 1) * LINE > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = (at + 1) * LINE - scroll.clientHeight;
		}
		choose(index);
		draw();
	}

	scroll.addEventListener("scroll", draw, { passive: true });
	scroll.addEventListener("keydown", (event) => {
		const at = visible.indexOf(selected);
		const page = Math.max(1, Math.floor(scroll.clientHeight / LINE) - 2);
		const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: visible.length - 1 }[event.key];
		if (to !== undefined) select(visible[Math.min(visible.length - 1, Math.max(0, to))]);
		else if (event.key === "ArrowLeft" && selected >= 0) {
			if (hasChildren[selected] && !closed.has(selected)) fold(selected);
			else if (spans[selected].parent !== null) select(spans[selected].parent);
		} else if (event.key === "ArrowRight" && closed.has(selected)) fold(selected);
		else if (event.key === "Escape") look(0, whole);
		else if (event.key === "Enter" && selected >= 0 && spans[selected].duration_ns) look(spans[selected].start_ns, spans[selected].start_ns + spans[selected].duration_ns);
		else return;
		event.preventDefault();
	});
	map.addEventListener("keydown", (event) => {
		const length = view[1] - view[0];
		const center = (view[0] + view[1]) / 2;
		const to = {
			ArrowLeft: [view[0] - length / 5, view[1] - length / 5],
			ArrowRight: [view[0] + length / 5, view[1] + length / 5],
			"+": [center - length / 3, center + length / 3],
			"-": [center - length * 0.75, center + length * 0.75],
			Escape: [0, whole],
		}[event.key];
		if (!to) return;
		event.preventDefault();
		look(...to);
	});
	const at = ([left]) => Math.min(1, Math.max(0, left / map.clientWidth)) * whole;
	onDrag(map, (a, b) => look(...[at(a), at(b)].sort((one, two) => one - two)), (_, isDragged) => isDragged || look(0, whole));
	const watch = new ResizeObserver(() => { draw(); paintAxis(); paintMap(); });
	watch.observe(element);
	const endScheme = onScheme(() => { variableBad = variable("--bad"); paintMap(); });
	look(0, whole);

	return {
		element,
		colors,
		select,
		whole,
		highlight(test) {
			match = test;
			draw();
		},
		end() {
			watch.disconnect();
			endScheme();
			tip("");
		},
	};
}

/** The latest end, without spreading ten thousand arguments. */
function ends(spans) {
	let latest = 0;
	for (const span of spans) latest = Math.max(latest, (span.start_ns ?? 0) + (span.duration_ns ?? 0));
	return [latest];
}
