// Traces: the latest and the slowest; one opens as a timeline or a flame chart, with its logs and exceptions beside it.

import { get, getBlob, poll } from "./api.js";
import { frameColor } from "./colors.js";
import { tailOf } from "./names.js";
import { block, button, clean, download, h, linkButton, named, said, set, soft } from "./dom.js";
import { copy, loadEvent } from "./events.js";
import { flameCanvas, rowsOf } from "./flame.js";
import { freeRows } from "./timeline.js";
import { PROTOCOLS } from "./agents.js";
import { showComparison } from "./compare.js";
import { choice, closeDialog, empty, facts, failure, field, heading, liveHeading, openDialog, panel, pill, segments, withAll } from "./parts.js";
import { serverNow } from "./pulse.js";
import { timeRange } from "./range.js";
import { go, keep, step, to } from "./router.js";
import { scatter } from "./scatter.js";
import { criticalPath } from "./spans.js";
import { listOrEmpty, table } from "./table.js";
import { traceEvents } from "./timeline.js";
import * as units from "./units.js";
import { waterfall } from "./waterfall.js";

export function show(main, route) {
	if (route.id === null) return showList(main, route.query);
	const other = route.query.get("with");
	return other ? showComparison(main, route.id, other) : showTrace(main, route.id, route.query);
}

/** A trace is found by the time of reading, which is later than its start by this at most. */
const LATE_MS = 60_000;

function showList(main, query) {
	const names = ["order", "protocol", "service", "name", "text", "attribute", "status", "min_ms", "max_ms"];
	let filter = Object.fromEntries(names.map((name) => [name, query.get(name) ?? ""]));
	const range = timeRange(query, () => end.now());
	const nanosOf = (millis) => Number(millis) > 0 ? Math.round(Number(millis) * 1e6) : "";
	const parameters = () => {
		const { min_ms, max_ms, ...rest } = filter;
		const [from, to] = range.ends;
		return { ...rest, order: filter.order || "latest", min_ns: nanosOf(min_ms), max_ns: nanosOf(max_ms), limit: 500, from_ms: from, to_ms: to && to + LATE_MS };
	};
	/** `write`: `keep` for what is typed, `step` for what Back takes back. */
	const change = (part, write = step) => {
		filter = { ...filter, ...part };
		write(filter);
		end.now();
	};
	const typed = (name) => (value) => change({ [name]: value }, keep);
	const head = liveHeading("Traces", segments("Order", [["", "Latest"], ["slowest", "Slowest"]], filter.order, (order) => change({ order })).element, range.element);
	const service = choice("Service", [["", "all"]], filter.service, (value) => change({ service: value }));
	const errors = h("input", { type: "checkbox", on: { change: () => change({ status: errors.checked ? "error" : "" }) } });
	errors.checked = filter.status === "error";
	const [least, most] = [["At least", "min_ms"], ["At most", "max_ms"]].map(([title, name]) => field(title, { placeholder: "ms", value: filter[name], type: "number", width: "80px" }, typed(name)));
	let longest = 1;
	const list = table({
		label: "Traces",
		key: (trace) => trace.trace_id,
		open: (trace) => go("traces", trace.trace_id),
		height: "calc(100vh - 220px)",
		minWidth: 780,
		foot: (rows) => total > rows.length ? `${units.count(rows.length)} of ${units.count(total)} traces: filters narrow them` : "",
		columns: [
			{ title: "Root", width: "minmax(180px, 2.2fr)", cell: (trace) => h("a", { href: to("traces", trace.trace_id), class: "pair" }, named(trace.name), trace.detail && trace.detail !== trace.name && said(trace.detail, "soft")) },
			{ title: "Service", width: "minmax(80px, .7fr)", cell: (trace) => said(trace.service || "–"), isWide: true },
			{ title: "Start", width: "96px", cell: (trace) => h("span", { class: "num", title: units.moment(trace.start_ms) }, trace.start_ms ? units.clock(trace.start_ms) : "unknown") },
			{ title: "Duration", width: "86px", num: true, cell: (trace) => trace.duration_ns === null ? soft("unknown") : units.nanos(trace.duration_ns) },
			{ title: "", width: "minmax(40px, .5fr)", cell: (trace) => h("span", { class: "meter" }, h("i", { style: { width: `${(100 * (trace.duration_ns ?? 0)) / longest}%` } })) },
			{ title: "Spans", width: "62px", num: true, cell: (trace) => units.count(trace.spans) },
			{ title: "Errors", width: "56px", num: true, cell: (trace) => h("span", { class: trace.errors ? "bad-text" : "soft" }, units.count(trace.errors)) },
			{ title: "Services", width: "66px", num: true, cell: (trace) => h("span", { title: trace.services.map((name) => clean(name, 60)).join(", ") }, units.count(trace.services.length)) },
			{ title: "", width: "86px", cell: (trace) => !trace.is_complete && pill("incomplete", "warn") },
		],
	});
	let total = 0;
	const plot = scatter({ open: (trace) => go("traces", trace.trace_id), pick });
	const body = h("section", { class: "panel" });
	main.append(head.element, h("div", { class: "filters" },
		choice("Protocol", withAll(PROTOCOLS), filter.protocol, (protocol) => change({ protocol })).element,
		service.element,
		[["Span name", "name", "part of a name", "150px"], ["Text", "text", "anywhere in a span", "172px"], ["Attribute", "attribute", "key=value", "140px"]]
			.map(([title, name, placeholder, width]) => field(title, { placeholder, value: filter[name], width }, typed(name)).element),
		least.element, most.element,
		h("label", { class: "check" }, errors, "With errors")),
	h("section", { class: "panel" }, h("div", { class: "body" }, plot.element, h("p", { class: "small soft" }, "✕ has errors, an open circle is incomplete. Click opens one; drag selects a range of time and duration, Escape takes it back."))), body);

	/** Takes a range that was dragged into the filters and the address. */
	function pick(part) {
		const millis = (nanos) => part ? Number((nanos / 1e6).toPrecision(3)) : "";
		filter = { ...filter, min_ms: millis(part?.least), max_ms: millis(part?.most) };
		[least.input.value, most.input.value] = [filter.min_ms, filter.max_ms];
		step({ ...filter, from: part?.from ?? "", to: part?.to ?? "", range: "" });
		range.choose(part?.from ?? null, part?.to ?? null);
	}

	const end = poll((signal) => get("api/v1/traces", parameters(), signal), 3000, (answer) => {
		head.scope(answer);
		const [from, until] = range.ends;
		// Of traces that were read in this time, those that began in it.
		const shown = answer.traces.filter((trace) => (from === null && until === null) || (trace.start_ms !== null && trace.start_ms >= (from ?? 0) && trace.start_ms <= (until ?? Infinity)));
		total = answer.total - (answer.traces.length - shown.length);
		const services = [...new Set([...answer.services, filter.service].filter(Boolean))];
		service.draw(withAll(services), filter.service);
		longest = Math.max(1, ...shown.map((trace) => trace.duration_ns ?? 0));
		plot.update(shown, from ?? answer.window.from_ms, until ?? Math.min(answer.window.to_ms, serverNow()));
		listOrEmpty(body, list, shown, () => names.some((name) => name !== "order" && filter[name]) || range.isChosen
			? empty("No trace matches these filters", "Clear one of them.")
			: empty("No trace yet", "Agents of datadog, datadog_agent, otlp and zico send spans. Bytefrog agents send calls, which become spans with this line in their listener:", h("code", {}, 'calls = "spans"')));
	}, (error) => set(body, failure(error)));
	return { end: () => { end(); plot.end(); } };
}

function showTrace(main, id, query) {
	const path = `api/v1/traces/${encodeURIComponent(id)}`;
	const link = button((event) => copy(location.href, event.target), "Copy link");
	const save = button(() => saveJson(), "JSON");
	const perfetto = h("button", { type: "button", title: "For Perfetto and chrome://tracing", on: { click: () => saveTimeline() } }, "Perfetto");
	const like = h("span", { class: "row" });
	const head = heading("Trace", linkButton(to("traces"), "All traces"), like, link, save, perfetto);
	const title = head.element.querySelector("h1");
	const body = h("div", { class: "stack" }, h("p", { class: "soft" }, "Loading…"));
	main.append(head.element, body);
	let picture = null;
	const controller = new AbortController();

	async function saveJson() {
		download(`trace-${id}.json`, "application/json", await getBlob(path, { download: 1 }));
	}

	async function saveTimeline() {
		const answer = await get(path, { limit: 10000 });
		download(`trace-${id}.perfetto.json`, "application/json", JSON.stringify(traceEvents(answer)));
	}

	get(path, { limit: 10000 }, controller.signal).then(draw, (error) => {
		if (error.name === "AbortError") return;
		set(body, error.status === 404 ? empty("This trace is not in the window", "The view keeps traces for a limited time. The sinks have all of them.", h("a", { href: to("traces") }, "All traces")) : failure(error));
	});

	function draw(answer) {
		const { trace, spans, logs } = answer;
		head.scope(answer);
		set(title, named(trace.name), trace.detail && trace.detail !== trace.name ? said(trace.detail, "soft") : null);
		title.className = "pair";
		const path = criticalPath(spans);
		const critical = new Map();
		for (const piece of path) critical.set(piece.span, [...(critical.get(piece.span) ?? []), piece]);
		const onPath = (index) => (critical.get(index) ?? []).reduce((sum, piece) => sum + piece.to - piece.from, 0);
		set(like, linkButton(to("traces", null, { service: trace.service, name: trace.name }), "Traces like this"), button(() => chooseOther(trace), "Compare…"));
		const frame = h("section", { class: "panel" });
		const detail = h("div", { class: "body" }, h("p", { class: "soft" }, "Select a span to see all of it."));
		const side = h("div", { class: "stack" }, panel("Span", { body: false }, detail),
			h("section", { class: "panel" }, h("header", {}, h("h2", {}, `Logs and exceptions (${units.count(logs.length)})`)), logList(logs, (span) => picture?.select(span))));
		const choose = (index) => {
			if (index < 0) return;
			keep({ span: spans[index].span_id });
			drawSpan(detail, spans[index], spans, trace, onPath(index));
		};
		const form = query.get("form") ?? (answer.is_java_calls ? "flame" : "timeline");
		const forms = segments("Form", [["timeline", "Timeline"], ["flame", "Flame chart"]], form, (value) => { step({ form: value }); drawForm(value); });
		const search = field("", { placeholder: "Find spans", width: "170px", value: query.get("find") ?? "" }, (text) => { keep({ find: text }); find(text); });
		search.input.setAttribute("aria-label", "Find spans");
		const found = h("span", { class: "soft small", role: "status" });
		const legend = h("div", { class: "legend" });

		function find(text) {
			const needle = text.trim().toLowerCase();
			const matches = (span) => `${span.name} ${span.detail ?? ""} ${span.service ?? ""}`.toLowerCase().includes(needle);
			found.textContent = needle ? `${units.count(spans.filter(matches).length)} found` : "";
			picture?.highlight(needle ? (span) => matches(typeof span === "number" ? spans[span] : span) : null);
		}

		function drawForm(value) {
			picture?.end();
			picture = value === "flame" ? flameOf(spans, trace.duration_ns, choose) : waterfall(spans, trace.duration_ns, logs, { choose, critical, isCode: trace.protocol !== "datadog" });
			set(legend, value === "flame" ? null : [...picture.colors].slice(0, 12).map(([name, color]) => h("span", {}, h("i", { style: { background: color } }), said(name))));
			set(frame, h("header", {}, forms.element, search.element, found, h("div", { class: "end" }, legend)), picture.element);
			if (search.input.value) find(search.input.value);
		}

		drawForm(form);
		const wanted = spans.findIndex((span) => span.span_id === query.get("span"));
		const summary = [units.plural(trace.spans, "span"), units.nanos(trace.duration_ns), trace.start_ms ? units.moment(trace.start_ms) : "start unknown", clean(trace.protocol)];
		set(body,
			h("div", { class: "row small soft" }, summary.join(" · "), trace.errors > 0 && pill(units.plural(trace.errors, "error"), "bad"), !trace.is_complete && pill("callers of some spans are not here", "warn"), answer.is_cut && pill(`the first ${units.count(spans.length)} spans`, "warn")),
			pathLine(path, spans, (span) => picture?.select(span)),
			h("div", { class: "trace" }, frame, side));
		if (wanted >= 0) picture.select(wanted);
	}
	return { end: () => { controller.abort(); picture?.end(); } };
}

/** What the longest root waited for, the most first. */
function pathLine(path, spans, select) {
	const total = path.reduce((sum, piece) => sum + piece.to - piece.from, 0);
	if (!total) return null;
	const sums = new Map();
	for (const { span, from, to: until } of path) sums.set(span, (sums.get(span) ?? 0) + until - from);
	const largest = [...sums].sort(([, a], [, b]) => b - a).slice(0, 3);
	return h("div", { class: "row small soft" }, `Critical path, ${units.plural(sums.size, "span")}, marked below the bars. Most of it:`,
		largest.map(([span, nanos]) => h("button", { type: "button", class: "plain", on: { click: () => select(span) } }, `${clean(tailOf(spans[span].name), 60)} ${units.percent(nanos, total)}`)));
}

/** A choice of a second trace: one with the same root, or any by its id. */
async function chooseOther(trace) {
	const id = h("input", { type: "text", placeholder: "trace id", "aria-label": "Trace id", spellcheck: "false" });
	const found = h("div", { class: "stack" }, soft("Loading…"));
	const choose = (other) => {
		closeDialog();
		if (other && other !== trace.trace_id) go("traces", trace.trace_id, { with: other });
	};
	openDialog("Compare with another trace", () => choose(id.value.trim()), found, h("div", { class: "row" }, id, h("button", { type: "submit" }, "Compare"), button(closeDialog, "Cancel")));
	try {
		const { traces } = await get("api/v1/traces", { service: trace.service, name: trace.name, limit: 12 });
		const others = traces.filter((one) => one.trace_id !== trace.trace_id);
		set(found, others.length ? others.map((one) => button(() => choose(one.trace_id),
			`${one.start_ms ? units.clock(one.start_ms) : "time unknown"} · ${units.nanos(one.duration_ns ?? NaN)} · ${units.plural(one.spans, "span")}${one.errors ? ` · ${units.plural(one.errors, "error")}` : ""}`))
			: soft("No other trace of this service and operation is kept."));
	} catch (error) {
		set(found, failure(error));
	}
}

function logList(logs, select) {
	if (!logs.length) return h("div", { class: "body soft" }, "None.");
	return h("div", { class: "body logs" }, logs.slice(0, 500).map((log) => h("details", {},
		h("summary", { on: { click: () => log.span !== null && log.span !== undefined && select(log.span) } },
			h("span", { class: "num soft" }, log.at_ns === null || log.at_ns === undefined ? "–" : `+${units.nanos(log.at_ns)}`),
			pill((log.severity ?? "log").toLowerCase(), log.severity === "ERROR" ? "bad" : log.severity === "WARN" ? "warn" : ""),
			said(log.text || log.name)),
		h("p", { class: "small soft" }, said(log.name)),
		block(log.stacktrace ?? log.text ?? log.name))));
}

/** Profiles are of the time of reading, and of samples that were taken some time before it. */
const AROUND_MS = 15_000;

function profileOf(span, trace) {
	const start = trace.start_ms === null || span.start_ns === null ? null : trace.start_ms + span.start_ns / 1e6;
	const time = start === null ? {} : { from: Math.floor(start - AROUND_MS), to: Math.ceil(start + (span.duration_ns ?? 0) / 1e6 + AROUND_MS) };
	return to("profiles", null, { agent: span.agent, ...time });
}

function drawSpan(element, span, spans, trace, onPath) {
	const whole = h("div", {});
	const parent = span.parent === null ? null : spans[span.parent];
	set(element,
		h("h3", { class: "wrap" }, named(span.name, "wrap")),
		facts([
			["what", span.detail],
			["service", span.service],
			["kind", span.kind],
			["status", span.status === "error" ? pill("error", "bad") : null],
			["message", span.status_message],
			["start", span.start_ns === null ? "unknown" : `+${units.nanos(span.start_ns)}`],
			["duration", span.duration_ns === null ? "unknown" : units.nanos(span.duration_ns)],
			["self time", span.self_ns === null || span.self_ns === undefined ? null : `${units.nanos(span.self_ns)} (${units.percent(span.self_ns, span.duration_ns)})`],
			["critical path", onPath ? `${units.nanos(onPath)} of it` : "not on it"],
			["called by", parent?.name],
			["thread", span.thread],
			["agent", span.agent],
			["span id", span.span_id],
			["links", span.links?.length ? h("div", {}, span.links.map((link) => h("div", {}, h("a", { href: to("traces", link.trace_id) }, `${link.trace_id} ${link.span_id}`)))) : null],
			["missing", span.incomplete?.length ? span.incomplete.join(", ") : null],
		]),
		h("div", { class: "row" }, button(() => loadEvent(span.id, whole), "All attributes"),
			span.agent && h("a", { class: "button", href: profileOf(span, trace) }, "Profile of its time"),
			linkButton(to("traces", null, { service: span.service, name: span.name }), "Traces with this")), whole);
}

/** The same spans, calls under their callers; what runs at the same time stands in rows of its own. */
function flameOf(spans, duration, choose) {
	const start = (id) => spans[id].start_ns ?? 0;
	const stop = (id) => start(id) + Math.max(spans[id].duration_ns ?? 0, 1);
	const row = freeRows(spans, start, stop);
	const rows = rowsOf(spans.length, (id) => row[id], start, stop);
	let latest = duration ?? 1;
	spans.forEach((_, id) => { latest = Math.max(latest, stop(id)); });
	const canvas = flameCanvas({
		label: "Flame chart: arrows select, Enter zooms, Escape shows all",
		name: (id) => spans[id].name,
		describe: (id) => `${clean(spans[id].name, 300)}\n${spans[id].duration_ns === null ? "no end" : units.nanos(spans[id].duration_ns)}, self ${units.nanos(spans[id].self_ns ?? NaN)}, from +${units.nanos(start(id))}${spans[id].status === "error" ? "\nerror" : ""}`,
		color: (id) => frameColor(spans[id].name),
		parent: (id) => spans[id].parent ?? -1,
		choose,
		maxHeight: "calc(100vh - 260px)",
	});
	canvas.update(rows, 0, latest);
	return canvas;
}
