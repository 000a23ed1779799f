// Events in lists, and one event as a whole.

import { getEvents, numberOf } from "./api.js";
import { block, button, clean, h, linkButton, said, set } from "./dom.js";
import { empty, facts, failure, pill } from "./parts.js";
import { tailOf } from "./names.js";
import { to } from "./router.js";
import { table } from "./table.js";
import * as units from "./units.js";

/** What an event says, in one line. */
export function gist(event) {
	const parts = [];
	const { span, metric, sample, loss } = event;
	if (span) parts.push(`${units.nanos(numberOf(span.duration_ns))}${span.status === "error" ? " error" : ""}`);
	if (metric) parts.push(measured(metric));
	if (sample) parts.push(`${measured(sample)}: ${sample.frames.map((frame) => tailOf(frame.function ?? frame.file ?? "?")).join(" ← ")}`);
	if (loss) parts.push(`${loss.reason}: ${units.bytes(numberOf(loss.bytes))}. ${loss.detail ?? ""}`);
	if (event.body !== undefined) parts.push(typeof event.body === "string" ? event.body : JSON.stringify(event.body).slice(0, 400));
	for (const [name, value] of Object.entries(event.attributes ?? {})) {
		parts.push(`${name}=${typeof value === "object" ? JSON.stringify(value) : value}`.slice(0, 300));
		if (parts.length > 8) break;
	}
	return parts.join("  ").slice(0, 600);
}

function measured({ value, unit, type, count, sum, min, max }) {
	// A distribution, in short.
	if (value === undefined) {
		const parts = Object.entries({ count, sum, min, max }).filter(([, number]) => number !== undefined);
		return `${parts.map(([name, number]) => `${name}=${number}`).join(" ")} ${unit ?? type ?? ""}`.trim();
	}
	const number = numberOf(value);
	if (unit === "By" || unit === "bytes") return units.bytes(number);
	if (unit === "nanoseconds") return units.nanos(number);
	return `${Number.isFinite(number) ? number.toLocaleString("en") : value} ${unit ?? type ?? ""}`.trim();
}

function kindPill(event) {
	const isBad = event.kind === "loss" || event.severity === "ERROR" || event.severity === "FATAL" || event.span?.status === "error";
	return pill(event.severity ? event.severity.toLowerCase() : event.kind, isBad ? "bad" : event.severity === "WARN" ? "warn" : event.kind === "span" ? "accent" : "");
}

/** A list of events; one opens below it. Rows are `{ id, agent, event }`. */
export function eventList(label, { height = "44vh" } = {}) {
	const detail = h("div", { class: "detail-pane", hidden: true });
	const element = h("div", {});
	const list = table({
		label,
		key: (row) => row.id,
		open: (row) => showDetail(row),
		height,
		minWidth: 720,
		columns: [
			{ title: "Time", width: "96px", cell: ({ event }) => h("span", { class: "num", title: clean(event.time ?? event.observed_time) }, units.clock(event.time ?? event.observed_time)) },
			{ title: "Kind", width: "70px", cell: ({ event }) => kindPill(event) },
			{ title: "Name", width: "minmax(130px, 1.1fr)", isWide: true, cell: ({ event }) => said(event.name) },
			{ title: "Agent", width: "minmax(90px, .7fr)", cell: ({ agent }) => said(agent ?? "", "soft") },
			{ title: "What", width: "minmax(200px, 3fr)", isWide: true, cell: ({ event }) => said(gist(event), "soft") },
		],
	});

	function showDetail(row) {
		detail.hidden = false;
		element.className = "has-detail";
		set(detail, eventDetail(row.event, () => {
			detail.hidden = true;
			element.className = "";
			list.select(null);
			list.scroll.focus();
		}));
		detail.scrollIntoView({ block: "nearest" });
	}

	element.append(list.element, detail);
	return { element, update: list.update, list };
}

/** One event: its parts in a table, and its whole JSON. */
export function eventDetail(event, close) {
	const json = JSON.stringify(event, null, 2);
	const trace = event.span?.trace_id ?? event.trace_id;
	const origin = event.origin ?? {};
	return h("div", { class: "event" },
		h("div", { class: "row" }, kindPill(event), h("h2", {}, said(event.name)),
			trace && linkButton(to("traces", trace), "Its trace"),
			origin.connection !== undefined && linkButton(to("live", null, { view: "wire", listener: origin.listener, connection: numberOf(origin.connection) }), "Bytes of its connection"),
			button((click) => copy(json, click.target), "Copy JSON"),
			close && button(close, "Close")),
		h("div", { class: "grid2" },
			h("div", { class: "stack" }, part("Attributes", event.attributes), part("Resource", event.resource), part("Origin", event.origin)),
			block(json)));
}

function part(title, values) {
	return Object.keys(values ?? {}).length > 0 && h("div", {}, h("h3", {}, title), facts(Object.entries(values)));
}

/** Copies a text, and says so on the button. */
export async function copy(text, button) {
	try {
		await navigator.clipboard.writeText(text);
		button.textContent = "Copied";
	} catch {
		button.textContent = "The browser does not permit it";
	}
}

/** Loads one event by its id into an element. */
export async function loadEvent(id, element, close) {
	set(element, h("p", { class: "soft" }, "Loading…"));
	try {
		const { event } = await getEvents(`api/v1/events/${encodeURIComponent(id)}`);
		set(element, eventDetail(event, close));
	} catch (error) {
		set(element, error.status === 404 ? empty("This event has left the window", "The view keeps events for a limited time and in limited memory.") : failure(error));
	}
}
