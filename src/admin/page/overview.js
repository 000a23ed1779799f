// The overview: listeners and sinks as one picture of the flow, memory, and readiness in words.

import { arePaused } from "./api.js";
import { clean, framed, h, renew, s, said } from "./dom.js";
import { liveHeading, meter, pill, spark } from "./parts.js";
import { onPulse } from "./pulse.js";
import { to } from "./router.js";
import * as units from "./units.js";

const STATES = { ok: "good", retrying: "warn", away: "warn", refusing: "warn", shedding: "bad", failing: "bad", closed: "bad", dead: "bad" };

export function show(main) {
	const head = liveHeading("Overview");
	const ready = h("div", {});
	const tiles = h("div", { class: "tiles" });
	const listeners = h("div", { class: "stack" });
	const edges = s("svg", { class: "edges", "aria-hidden": "true" });
	const sinks = h("div", { class: "stack" });
	const flow = h("div", { class: "flow" }, edges,
		h("section", { "aria-label": "Listeners" }, h("h2", {}, "Listeners"), listeners), h("div", {}),
		h("section", { "aria-label": "Sinks" }, h("h2", {}, "Sinks"), sinks));
	main.append(head.element, ready, tiles, flow);
	let latest = null;

	const connect = framed(() => latest && drawEdges(edges, flow, listeners, sinks, latest));
	const watch = new ResizeObserver(connect);
	watch.observe(flow);
	const end = onPulse((overview) => {
		if (latest && arePaused()) return;
		latest = overview;
		const { step_ms: step, points } = overview.history;
		head.element.querySelector(".scope").textContent = `sparklines: the last ${units.millis(step * points)}, one point for ${units.millis(step)}`;
		renew(ready, readiness(overview.ready));
		renew(tiles, summary(overview));
		renew(listeners, overview.listeners.map((listener) => listenerCard(listener, step)));
		renew(sinks, overview.sinks.map((sink) => sinkCard(sink, step)));
		connect();
	});
	return { end: () => { end(); watch.disconnect(); } };
}

function readiness({ is_ready: isReady, text, notes }) {
	return h("div", { class: `ready ${isReady ? (notes.length ? "warn" : "good") : "bad"}`, role: "status" },
		h("strong", {}, isReady ? "Ready" : "Not ready"),
		h("span", { class: "wrap" }, isReady && text === "ready" ? "All listeners accept, all sinks write." : clean(text, 400)),
		notes.map((note) => h("span", { class: "wrap note-line" }, clean(note, 400))));
}

const sum = (list, value) => list.reduce((total, one) => total + (value(one) ?? 0), 0);

function summary(overview) {
	const { listeners, sinks, memory, view } = overview;
	const waiting = sum(sinks, (sink) => sink.in_flight);
	const spooled = sum(sinks, (sink) => sink.spool?.bytes);
	const lost = sum(listeners, (listener) => listener.losses);
	const tile = (name, value, detail, extra) => h("div", { class: "tile" }, h("h2", {}, name), h("div", { class: "value" }, value), extra, h("div", { class: "detail" }, detail));
	return [
		tile("Received", units.byteRate(sum(listeners, (listener) => listener.bytes_per_second)), `${units.bytes(sum(listeners, (listener) => listener.bytes))} in all`),
		tile("Events", units.rate(sum(listeners, (listener) => listener.events_per_second)), `${units.brief(sum(listeners, (listener) => listener.events))} in all`),
		tile("Connections", units.count(sum(listeners, (listener) => listener.connections_open)), `${units.brief(sum(listeners, (listener) => listener.connections))} since the start`),
		tile("Losses", h("a", { href: to("losses"), class: lost ? "bad-text" : "" }, units.brief(lost)), lost ? `${units.bytes(sum(listeners, (listener) => listener.bytes_lost))} lost` : "every byte became events"),
		tile("Waiting for sinks", `${units.brief(waiting)}`, `events${spooled ? `; ${units.bytes(spooled)} in spools` : ""}`),
		tile("Memory of peers", units.bytes(memory.shared_used), `of ${units.bytes(memory.shared_limit)}; the process has ${units.bytes(memory.resident)}`, meter(memory.shared_used, memory.shared_limit)),
		view?.is_on && tile("This page's data", units.bytes(view.used), `of ${units.bytes(view.memory)}; ${units.percent(view.kept, view.seen)} of events kept`, meter(view.used, view.memory, "")),
	];
}

/** Rates of whole steps: the last one has only begun. */
function perSecond(values, step) {
	const whole = values.length > 1 ? values.slice(0, -1) : values;
	return whole.map((value) => (value * 1000) / step);
}

function listenerCard(listener, step) {
	const rates = perSecond(listener.history.events, step);
	return h("article", { key: listener.name, class: "card", "data-listener": listener.name },
		h("header", {}, h("a", { class: "name", href: to("live", null, { listener: listener.name }), title: "Its events, live" }, said(listener.name)), pill(listener.protocol), h("span", { class: "soft small" }, listener.address ? clean(listener.address) : "connects to its agents")),
		h("div", { class: "figures" },
			figure(units.rate(listener.events_per_second), "events"),
			figure(units.byteRate(listener.bytes_per_second), "received"),
			figure(units.count(listener.connections_open), listener.connections_open === 1 ? "connection" : "connections"),
			listener.losses > 0 && h("a", { class: "figure bad-text", href: to("losses", null, { listener: listener.name }) }, h("b", {}, units.brief(listener.losses)), h("span", {}, listener.losses === 1 ? "loss" : "losses")),
			peak(rates)),
		spark(rates, { title: `events per second of ${clean(listener.name)}` }));
}

function figure(value, name) {
	return h("div", { class: "figure" }, h("b", {}, value), h("span", {}, name));
}

/** The scale of a sparkline. */
function peak(rates) {
	return h("div", { class: "figure peak" }, `peak ${units.rate(Math.max(0, ...rates))}`);
}

function sinkCard(sink, step) {
	const { spool } = sink;
	const rates = perSecond(sink.history.written, step);
	const losses = [[sink.shed, "shed"], [sink.failed, "failed"]].filter(([number]) => number > 0);
	return h("article", { key: sink.name, class: "card", "data-sink": sink.name },
		h("header", {}, said(sink.name, "name"), pill(sink.type), pill(sink.state === "ok" ? "writes" : clean(sink.state, 30), STATES[sink.state] ?? ""), said(sink.text, "soft small")),
		h("div", { class: "figures" },
			figure(units.rate(sink.events_per_second), "written"),
			figure(units.brief(sink.in_flight), "waiting"),
			sink.filtered > 0 && figure(units.brief(sink.filtered), "filtered"),
			losses.map(([number, name]) => h("div", { class: "figure bad-text" }, h("b", {}, units.brief(number)), h("span", {}, name))),
			peak(rates)),
		spark(rates, { title: `events written per second by ${clean(sink.name)}` }),
		sink.state !== "ok" && h("p", { class: "small soft wrap" }, `${clean(sink.state_text, 300)}${sink.retries ? `; ${units.plural(sink.retries, "retry", "retries")}` : ""}`),
		spool?.bytes > 0 && h("p", { class: "small soft" }, `spool: ${units.plural(spool.events, "event")}, ${units.bytes(spool.bytes)}${spool.oldest_ms ? `, oldest from ${units.ago(spool.oldest_ms)}` : ""}`),
		h("p", { class: "small soft takes" }, `takes ${sink.takes.map((name) => clean(name, 40)).join(", ") || "nothing"}`));
}

/** Curves from listeners to the sinks that take their events; their width is the rate. */
function drawEdges(edges, flow, listeners, sinks, overview) {
	const frame = flow.getBoundingClientRect();
	edges.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
	const boxes = (root) => [...root.children].map((card) => card.getBoundingClientRect());
	const [from, into] = [boxes(listeners), boxes(sinks)];
	const most = Math.max(1e-9, ...overview.listeners.map((listener) => listener.events_per_second));
	const taken = (sink) => overview.listeners.map((listener, number) => ({ listener, number })).filter(({ listener }) => sink.takes.includes(listener.name));
	renew(edges, overview.sinks.flatMap((sink, which) => taken(sink).map(({ listener, number }, at, all) => {
		const [a, b] = [from[number], into[which]];
		if (!a || !b) return null;
		const [x1, y1, x2] = [a.right - frame.left, a.top + a.height / 2 - frame.top, b.left - frame.left];
		const y2 = b.top - frame.top + (b.height * (at + 1)) / (all.length + 1);
		const middle = (x1 + x2) / 2;
		const width = listener.events_per_second > 0 ? 1 + 5 * Math.sqrt(listener.events_per_second / most) : 1;
		return s("path", { d: `M${x1},${y1} C${middle},${y1} ${middle},${y2} ${x2},${y2}`, "stroke-width": width.toFixed(1), class: listener.events_per_second > 0 ? "edge" : "edge idle" });
	})));
}
