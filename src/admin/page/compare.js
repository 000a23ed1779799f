// Two traces side by side: their spans matched by service, operation and path.

import { get } from "./api.js";
import { clean, h, linkButton, named, said, set, soft } from "./dom.js";
import { functionName } from "./names.js";
import { empty, failure, heading, pill, segments } from "./parts.js";
import { here, step, to } from "./router.js";
import { matched } from "./spans.js";
import { table } from "./table.js";
import * as units from "./units.js";

/** The depth up to which a span is indented. */
const DEEPEST = 14;

export function showComparison(main, first, second) {
	const head = heading("Two traces", linkButton(to("traces", first), "First"), linkButton(to("traces", second), "Second"));
	const body = h("div", { class: "stack" }, h("p", { class: "soft" }, "Loading…"));
	main.append(head.element, body);
	const controller = new AbortController();
	const load = (id) => get(`api/v1/traces/${encodeURIComponent(id)}`, { limit: 10000 }, controller.signal);
	Promise.all([load(first), load(second)]).then(([a, b]) => draw(body, head, a, b), (error) => {
		if (error.name === "AbortError") return;
		set(body, error.status === 404 ? empty("One of these traces is not in the window", "The view keeps traces for a limited time.", h("a", { href: to("traces") }, "All traces")) : failure(error));
	});
	return { end: () => controller.abort() };
}

function draw(body, head, first, second) {
	head.scope(second);
	const all = matched(first.spans, second.spans).map(({ depth, a, b }, at) => {
		const [one, two] = [a === null ? null : first.spans[a], b === null ? null : second.spans[b]];
		const [nanosA, nanosB] = [one?.duration_ns ?? null, two?.duration_ns ?? null];
		return { at, depth, one, two, span: one ?? two, nanosA, nanosB, change: nanosA === null || nanosB === null ? null : nanosB - nanosA };
	});
	const most = Math.max(1, ...all.map((row) => Math.max(row.nanosA ?? 0, row.nanosB ?? 0)));
	const largest = Math.max(1, ...all.map((row) => Math.abs(row.change ?? 0)));
	const nanos = (value, is) => !is ? soft("–") : value === null ? soft("unknown") : units.nanos(value);
	const signed = ({ change, nanosA }) => change === null ? "" : h("span", { class: change > 0 ? "rise" : change < 0 ? "fall" : "soft" },
		change === 0 ? "0 ns" : `${change > 0 ? "+" : "−"}${units.nanos(Math.abs(change))}`, nanosA > 0 && change !== 0 ? ` (${change > 0 ? "+" : "−"}${units.percent(Math.abs(change), nanosA)})` : "");
	const state = ({ one, two }) => !one ? pill("additional", "accent") : !two ? pill("missing", "warn")
		: one.status !== two.status ? pill(two.status === "error" ? "new error" : "no error now", two.status === "error" ? "bad" : "good") : null;
	const bars = ({ nanosA, nanosB }) => h("span", { class: "two-bars" }, [nanosA, nanosB].map((value) => h("i", { style: { width: `${(100 * value) / most}%`, visibility: value === null ? "hidden" : null } })));
	const list = table({
		label: "Spans of both traces",
		key: (row) => row.at,
		height: "calc(100vh - 230px)",
		minWidth: 860,
		sortName: "sort",
		columns: [
			{ title: "Span", width: "minmax(220px, 2.4fr)", cell: (row) => h("span", { class: "pair indented", style: { "--depth": String(Math.min(row.depth, DEEPEST)) } }, row.span.name ? functionName(row.span.name) : named(""), row.span.detail && row.span.detail !== row.span.name && said(row.span.detail, "soft")), sort: (row) => row.at },
			{ title: "Service", width: "minmax(80px, .6fr)", isWide: true, cell: (row) => said(row.span.service || "–") },
			{ title: "First", width: "84px", num: true, cell: (row) => nanos(row.nanosA, row.one), sort: (row) => row.nanosA ?? -1 },
			{ title: "Second", width: "84px", num: true, cell: (row) => nanos(row.nanosB, row.two), sort: (row) => row.nanosB ?? -1 },
			{ title: "Difference", width: "150px", num: true, isWide: true, cell: signed, sort: (row) => row.change ?? -largest - 1 },
			{ title: "", width: "minmax(60px, .8fr)", isWide: true, cell: bars },
			{ title: "", width: "104px", cell: state },
		],
	});
	let kind = here().query.get("show") ?? "";
	const kinds = { "": () => true, missing: (row) => !row.two, additional: (row) => !row.one, changed: (row) => row.change !== null && Math.abs(row.change) > 0.1 * Math.max(row.nanosA, row.nanosB) };
	const drawRows = () => list.update(all.filter(kinds[kind] ?? kinds[""]));
	const filter = segments("Spans", [["", "All"], ["changed", "Changed by 10 %"], ["missing", "Missing"], ["additional", "Additional"]], kind, (value) => {
		kind = value;
		step({ show: value });
		drawRows();
	});
	const number = (test) => all.filter(test).length;
	const [missing, additional] = [number(kinds.missing), number(kinds.additional)];
	const about = (title, { trace }) => h("div", { class: "row" }, soft(title), named(trace.name), [trace.start_ms ? units.moment(trace.start_ms) : "start unknown", units.plural(trace.spans, "span"), units.nanos(trace.duration_ns ?? NaN)].map((text) => h("span", {}, text)), soft(clean(trace.trace_id, 40)));
	set(body,
		h("section", { class: "panel" }, h("div", { class: "body timebar" }, about("First:", first), about("Second:", second)),
		h("div", { class: "body row small", role: "status" }, `${units.plural(all.length - missing - additional, "span")} in both, ${units.count(missing)} missing in the second, ${units.count(additional)} additional in it`,
			(first.is_cut || second.is_cut) && pill("the first 10,000 spans", "warn"))),
		h("section", { class: "panel" }, h("header", {}, filter.element, h("span", { class: "small soft" }, "The upper bar is the first trace, the lower one the second.")), list.element));
	drawRows();
}
