// Live events as they pass, and the wire view: annotated bytes of connections.

import { stream } from "./api.js";
import { clean, framed, h, set } from "./dom.js";
import { eventList } from "./events.js";
import { PROTOCOLS } from "./agents.js";
import { choice, empty, failure, field, heading, pauseButton, segments, withAll } from "./parts.js";
import { go, keep } from "./router.js";
import { onPulse } from "./pulse.js";
import { listOrEmpty } from "./table.js";
import * as units from "./units.js";

const KINDS = ["log", "span", "metric", "sample", "loss"];
const MOST_EVENTS = 1000;
const MOST_LINES = 2000;

export function show(main, route) {
	const isWire = route.query.get("view") === "wire";
	const mode = segments("View", [["", "Events"], ["wire", "Wire bytes"]], isWire ? "wire" : "", (view) => go("live", null, { view }));
	return isWire ? showWire(main, route.query, mode) : showEvents(main, route.query, mode);
}

/** A choice of the daemon's listeners. `element` for the filters, `end` when the view closes. */
function listenerChoice(value, change) {
	const control = choice("Listener", [["", "all"]], value, change);
	let known = null;
	const end = onPulse(({ listeners }) => {
		const found = listeners.map((one) => one.name).join("\n");
		if (found === known) return;
		const current = known === null ? value : control.select.value;
		known = found;
		control.draw([["", "all"], ...listeners.map((one) => [one.name, `${one.name} (${one.protocol})`])], current);
	});
	return { element: control.element, end };
}

/**
 * What both views share: filters in the address, a pause, and a stream that is opened again when a filter changes. `start()` forgets what was
 * shown, `take(type, data)` gets what arrives, `says()` is the line at the top, `shows(body)` draws.
 */
function live(main, query, mode, names, { path, fields, start, take, says, shows }) {
	let filter = Object.fromEntries(names.map((name) => [name, query.get(name) ?? ""]));
	let end = () => {};
	let refused = null;
	const pause = pauseButton(() => draw());
	const head = heading("Live", mode.element, pause.button);
	const scope = head.element.querySelector(".scope");
	const body = h("section", { class: "panel" });
	const change = (part) => {
		filter = { ...filter, ...part };
		keep(filter);
		open();
	};
	const listener = listenerChoice(filter.listener, (value) => change({ listener: value }));
	main.append(head.element, h("div", { class: "filters" }, listener.element, fields(filter, change)), body);

	const draw = framed(() => {
		scope.textContent = says(pause.isPaused);
		if (refused) set(body, failure(refused));
		else shows(body, pause.isPaused, Object.values(filter).some(Boolean));
	});

	function open() {
		end();
		refused = null;
		start();
		draw();
		end = stream(path, filter, (type, data) => {
			take(type, data, pause.isPaused);
			draw();
		}, (state, error) => {
			if (state === "refused") refused = error;
			else if (state === "open") refused = null;
			draw();
		});
	}
	open();
	return { end: () => { end(); listener.end(); } };
}

function showEvents(main, query, mode) {
	let rows = [];
	let number = 0;
	let totals = {};
	const list = eventList("Events as they pass", { height: "calc(100vh - 190px)" });
	return live(main, query, mode, ["protocol", "kind", "name", "text", "listener"], {
		path: "api/v1/events/live",
		fields: (filter, change) => [
			choice("Protocol", withAll(PROTOCOLS), filter.protocol, (protocol) => change({ protocol })).element,
			choice("Kind", withAll(KINDS), filter.kind, (kind) => change({ kind })).element,
			field("Name", { placeholder: "sql.query or zico.*", value: filter.name, width: "170px" }, (name) => change({ name })).element,
			field("Text", { placeholder: "anywhere in the event", value: filter.text, width: "180px" }, (text) => change({ text })).element,
		],
		start() {
			rows = [];
			totals = { shown: 0, passed: 0, dropped: 0, missed: 0 };
		},
		take(type, data, isPaused) {
			if (type === "events") {
				if (isPaused) totals.missed += data.events.length;
				else rows = [...data.events.map((event, index) => ({ id: number++, agent: data.agents[index], event })).reverse(), ...rows].slice(0, MOST_EVENTS);
			} else if (type === "dropped") {
				totals.dropped += data.events;
			} else if (type === "alive") {
				totals.passed += data.passed;
				totals.shown += data.shown;
			}
		},
		says: (isPaused) => `${units.count(totals.shown)} of ${units.plural(totals.passed, "matching event")} shown${totals.dropped ? `, ${units.count(totals.dropped)} were too many for this page` : ""}${isPaused ? ` · paused, ${units.plural(totals.missed, "event")} since` : ""}`,
		shows(body, isPaused, isFiltered) {
			if (isPaused && rows.length && body.firstChild === list.element) return;
			listOrEmpty(body, { ...list, update: (next) => list.update(next, true) }, rows, () => isFiltered
				? empty("No event matches yet", "Events appear here as they pass. Clear the filter to see all of them.")
				: empty("Waiting for events", "Events appear here as they pass. Simulated agents send some:", h("code", {}, "tributary simulate datadog --to ADDRESS --rate 5 --for 1m")));
		},
	});
}

function showWire(main, query, mode) {
	let [lines, missed, dropped, latest] = [[], 0, 0, ""];
	const output = h("pre", { class: "wire block", tabindex: "0", "aria-label": "Annotated bytes" });
	return live(main, query, mode, ["listener", "connection"], {
		path: "api/v1/wire",
		fields: (filter, change) => field("Connection", { placeholder: "its number", value: filter.connection, width: "120px" }, (value) => change({ connection: value.trim() })).element,
		start: () => void ([lines, missed, dropped, latest] = [[], 0, 0, ""]),
		take(type, data, isPaused) {
			if (type === "wire") {
				const title = `── ${clean(data.listener)} (${data.protocol}), ${clean(data.peer)}, connection ${data.connection}`;
				const added = data.lines.map((line) => clean(line, 400));
				if (isPaused) missed += added.length;
				else lines = [...lines, ...(title === latest ? [] : [title]), ...added].slice(-MOST_LINES);
				latest = title;
			} else if (type === "dropped") {
				dropped += data.bytes;
			}
		},
		says: (isPaused) => `annotated bytes as they arrive${dropped ? `, ${units.bytes(dropped)} were too much for this page` : ""}${isPaused ? ` · paused, ${units.plural(missed, "line")} since` : ""}`,
		shows(body, isPaused) {
			if (!lines.length) {
				set(body, empty("Waiting for bytes", "Bytes of connections appear here, field by field, when agents send."));
				return;
			}
			if (body.firstChild !== output) set(body, output);
			if (isPaused) return;
			const isAtEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 40;
			output.textContent = lines.join("\n");
			if (isAtEnd) output.scrollTop = output.scrollHeight;
		},
	});
}
