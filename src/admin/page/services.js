// Services: rate, errors and durations of each, from every span; one opens to its operations, its durations over time, and who calls it.

import { get, poll } from "./api.js";
import { heatMap } from "./heat.js";
import { clean, h, linkButton, named, renew, said, set, soft } from "./dom.js";
import { brush } from "./brush.js";
import { empty, failure, field, liveHeading, panel, pill, spark } from "./parts.js";
import { timeRange } from "./range.js";
import { go, keep, to } from "./router.js";
import { listOrEmpty, table } from "./table.js";
import * as units from "./units.js";

/** Over which time the sums are. */
export function sumsText({ window: time, extent }) {
	const from = Math.max(time.from_ms, extent.quantiles_from_ms);
	const durations = from > time.from_ms ? `; durations since ${units.clock(from, 0)}` : "";
	return `${units.clock(time.from_ms, 0)} to ${units.clock(Math.min(time.to_ms, Date.now()), 0)} · every span${durations}`;
}

const share = (row) => h("span", { class: row.errors ? "bad-text" : "soft" }, row.errors ? `${units.percent(row.errors, row.count)}` : "0 %");
const took = (nanos) => nanos === null ? soft("–") : units.nanos(nanos);

/** The columns of sums. */
export function sumColumns() {
	const nanos = (title, key) => ({ title, width: "78px", num: true, cell: (row) => took(row[key]), sort: (row) => row[key] ?? -1 });
	return [
		{ title: "Rate", width: "76px", num: true, cell: (row) => units.rate(row.per_second), sort: (row) => row.per_second },
		{ title: "Errors", width: "70px", num: true, cell: share, sort: (row) => row.error_share },
		nanos("p50", "p50_ns"),
		nanos("p95", "p95_ns"),
		nanos("p99", "p99_ns"),
		{ title: "Count", width: "84px", num: true, cell: (row) => units.count(row.count), sort: (row) => row.count },
	];
}

const OVER_TIME = { title: "Over time", width: "minmax(90px, 1fr)", cell: (row) => spark(row.steps[0], { title: "Requests of each 10 seconds" }) };

export function show(main, route) {
	return route.id === null ? showList(main, route.query) : showService(main, route.id, route.query);
}

/** A time range whose sums are those of whole minutes. */
export const sumsRange = (query, change) => timeRange(query, change, { isSums: true });

function showList(main, query) {
	let text = query.get("text") ?? "";
	const range = sumsRange(query, () => end.now());
	const map = linkButton(to("map"), "Map");
	const head = liveHeading("Services", range.element, map);
	const search = field("Name", { placeholder: "part of a name", value: text }, (value) => {
		text = value;
		keep({ text });
		end.now();
	});
	const list = table({
		label: "Services",
		key: (row) => row.name,
		open: (row) => go("services", row.name, range.state),
		sortName: "sort",
		height: "calc(100vh - 200px)",
		minWidth: 760,
		order: ["Rate", "down"],
		columns: [
			{ title: "Service", width: "minmax(140px, 1.6fr)", cell: (row) => row.is_other ? soft("others") : h("a", { href: to("services", row.name, range.state) }, named(row.name)), sort: (row) => row.name },
			...sumColumns(),
			OVER_TIME,
		],
		foot: (rows) => rows.some((row) => row.is_other) ? "“others”: services for which there was no row left" : "",
	});
	const body = h("section", { class: "panel" });
	main.append(head.element, h("div", { class: "filters" }, search.element), body);
	const end = poll((signal) => get("api/v1/services", range.parameters, signal), 3000, (answer) => {
		head.element.querySelector(".scope").textContent = sumsText(answer);
		map.href = to("map", null, range.state);
		const needle = text.trim().toLowerCase();
		const rows = answer.services.filter((row) => row.name.toLowerCase().includes(needle));
		listOrEmpty(body, list, rows, () => answer.services.length ? empty("No service matches this text", "Clear it.")
			: empty(range.isChosen ? "No service in this time" : "No service yet", "Programs that send spans are services: agents of datadog, datadog_agent, otlp and zico.",
				h("code", {}, "tributary simulate otlp --to 127.0.0.1:4318 --rate 20 --for 5m")));
	}, (error) => set(body, failure(error)));
	return { end };
}

function showService(main, name, query) {
	const range = sumsRange(query, () => end.now());
	const [traces, all] = ["Traces", "All services"].map((title) => h("a", { class: "button" }, title));
	const head = liveHeading("Service", range.element, traces, all);
	set(head.element.querySelector("h1"), named(name));
	const body = h("div", { class: "stack" });
	main.append(head.element, body);
	let parts = null;

	function build() {
		const operations = table({
			label: "Operations",
			key: (row) => `${row.kind} ${row.name} ${row.detail}`,
			open: (row) => go("traces", null, { service: name, name: row.is_other ? "" : row.name, text: row.detail, ...range.state }),
			sortName: "sort",
			height: "46vh",
			minWidth: 820,
			order: ["Count", "down"],
			columns: [
				{ title: "Operation", width: "minmax(180px, 2fr)", cell: (row) => h("span", { class: "pair" }, row.is_other ? soft("others") : said(row.name), row.detail && said(row.detail, "soft")), sort: (row) => row.name },
				{ title: "Kind", width: "76px", cell: (row) => soft(row.kind ?? "–"), sort: (row) => row.kind ?? "" },
				...sumColumns(),
				OVER_TIME,
			],
		});
		const side = (label, key) => table({
			label,
			key: (row) => row[key] ?? "",
			open: (row) => row[key] !== null && go("services", row[key], range.state),
			height: "30vh",
			minWidth: 400,
			order: ["Count", "down"],
			columns: [
				{ title: label, width: "minmax(110px, 1fr)", cell: (row) => row[key] === null ? soft("unknown") : h("a", { href: to("services", row[key], range.state) }, named(row[key])), sort: (row) => row[key] ?? "" },
				...sumColumns().filter((column) => !["p50", "p99"].includes(column.title)),
			],
		});
		const of = { caller: side("Called by", "caller"), callee: side("Calls", "callee") };
		const [callers, callees] = [h("div", {}), h("div", {})];
		const made = { callers: (rows) => listOrEmpty(callers, of.caller, rows, () => empty("Nothing called it in this time", "Its requests came from programs that send no spans.")),
			callees: (rows) => listOrEmpty(callees, of.callee, rows, () => empty("It called no other service in this time", "Callees are services whose spans have a span of this one as their parent.")), sums: h("div", { class: "row" }), rate: brush({ label: "Requests of each 10 seconds", change: (_, span) => range.choose(span?.[0] ?? null, span?.[1] ?? null) }), heat: heatMap(pick), operations, errors: h("div", {}), agents: h("div", { class: "row" }) };
		set(body,
			panel("Requests", {}, made.sums, made.rate.element),
			panel("Durations over time", { end: h("span", { class: "soft small" }, "A cell opens its traces, dragging those of a part") }, made.heat.element),
			panel("Operations", { body: false }, operations.element),
			h("div", { class: "grid2" }, panel("Called by", { body: false }, callers), panel("Calls", { body: false }, callees)),
			panel("Errors by type", {}, made.errors),
			panel("Agents and profiles", {}, made.agents));
		return made;
	}

	function pick({ at, until, from, to: most }) {
		const millis = (nanos) => Number((nanos / 1e6).toPrecision(3));
		go("traces", null, { service: name, min_ms: millis(from), max_ms: millis(most), from: at, to: until });
	}

	const end = poll((signal) => get(`api/v1/services/${encodeURIComponent(name)}`, range.parameters, signal), 3000, (answer) => {
		head.element.querySelector(".scope").textContent = sumsText(answer);
		parts ??= build();
		traces.href = to("traces", null, { service: name, ...range.state });
		all.href = to("services", null, range.state);
		const { service: row } = answer;
		renew(parts.sums, [["rate", units.rate(row.per_second)], ["requests", units.count(row.count)], ["errors", row.errors ? units.percent(row.errors, row.count) : "0 %"], ["p50", took(row.p50_ns)], ["p95", took(row.p95_ns)], ["p99", took(row.p99_ns)]]
			.map(([title, value]) => h("div", { class: "figure" }, h("span", { class: "soft small" }, title), h("strong", { class: "num" }, value))));
		parts.rate.choose("now", null);
		parts.rate.update({ values: row.steps[0], from_ms: answer.window.from_ms, step_ms: answer.extent.step_ms });
		parts.heat.update(answer.heat.minutes, answer.window);
		parts.operations.update(answer.operations);
		parts.callers(answer.callers);
		parts.callees(answer.callees);
		renew(parts.errors, answer.errors.length
			? h("div", { class: "row" }, answer.errors.map((error) => pill(`${clean(error.type, 80)} ${units.count(error.count)}`, "bad")))
			: h("p", { class: "soft" }, "None."));
		renew(parts.agents, [...answer.agents.map(({ id, process, peer }) => h("a", { href: to("agents", id) }, said(process || peer || id))),
			...answer.profiles.map((agent) => h("a", { href: to("profiles", null, { agent }) }, "Profile of ", said(agent)))]);
	}, (error) => {
		parts = null;
		set(body, error.status === 404
			? empty("This service is not known", "It has sent no span for some time, or the daemon restarted.", h("a", { href: to("services") }, "All services"))
			: failure(error));
	});
	return { end: () => { end(); parts?.heat.end(); parts?.rate.end(); } };
}
