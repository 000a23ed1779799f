// Services: rate, errors and durations of each, from every span; one opens to its operations, its durations over time, and who calls it.

import { get, poll } from "./api.js";
import { heatMap } from "./heat.js";
import { clean, h, said, set } from "./dom.js";
import { empty, failure, field, heading, panel, pill, segments, spark } from "./parts.js";
import { go, keep, to } from "./router.js";
import { table } from "./table.js";
import * as units from "./units.js";

const MINUTE = 60_000;
const RANGES = [["", "15 min"], ["5", "5 min"], ["1", "1 min"]];

/** The parameters of a time range in minutes: whole minutes, so that counts and durations are of the same time. */
export function rangeOf(minutes) {
  return minutes ? { from_ms: Date.now() - (Number(minutes) - 1) * MINUTE } : {};
}

export function ranges(value, change) {
  return segments("Time", RANGES, value, change).element;
}

/** Over which time the sums are. */
export function sumsText({ window: time, extent }) {
  const from = Math.max(time.from_ms, extent.quantiles_from_ms);
  const durations = from > time.from_ms ? `; durations since ${units.clock(from, 0)}` : "";
  return `${units.clock(time.from_ms, 0)} to ${units.clock(Math.min(time.to_ms, Date.now()), 0)} · every span${durations}`;
}

const share = (row) => h("span", { class: row.errors ? "bad-text" : "soft" }, row.errors ? `${units.percent(row.errors, row.count)}` : "0 %");
const took = (nanos) => nanos === null ? h("span", { class: "soft" }, "–") : units.nanos(nanos);

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

function showList(main, query) {
  let state = { range: query.get("range") ?? "", text: query.get("text") ?? "" };
  const change = (part) => {
    state = { ...state, ...part };
    keep(state);
    end.now();
  };
  const head = heading("Services", ranges(state.range, (range) => change({ range })), h("a", { class: "button", href: to("map") }, "Map"));
  const text = field("Name", { placeholder: "part of a name", value: state.text }, (value) => change({ text: value }));
  const list = table({
    label: "Services",
    key: (row) => row.name,
    open: (row) => go("services", row.name),
    height: "calc(100vh - 200px)",
    minWidth: 760,
    order: ["Rate", "down"],
    columns: [
      { title: "Service", width: "minmax(140px, 1.6fr)", cell: (row) => row.is_other ? h("span", { class: "soft" }, "others") : h("a", { href: to("services", row.name) }, said(row.name)), sort: (row) => row.name },
      ...sumColumns(),
      OVER_TIME,
    ],
    foot: (rows) => rows.some((row) => row.is_other) ? "“others”: services for which there was no row left" : "",
  });
  const body = h("section", { class: "panel" });
  main.append(head.element, h("div", { class: "filters" }, text.element), body);
  const end = poll((signal) => get("api/v1/services", rangeOf(state.range), signal), 3000, (answer) => {
    head.element.querySelector(".scope").textContent = sumsText(answer);
    const needle = state.text.trim().toLowerCase();
    const rows = answer.services.filter((row) => row.name.toLowerCase().includes(needle));
    list.update(rows);
    if (rows.length) {
      if (body.firstChild !== list.element) set(body, list.element);
    } else {
      set(body, answer.services.length ? empty("No service matches this text", "Clear it.")
        : empty("No service yet", "Programs that send spans are services: agents of datadog, datadog_agent, otlp and zico.",
          h("code", {}, "tributary simulate otlp --to 127.0.0.1:4318 --rate 20 --for 5m")));
    }
  }, (error) => set(body, failure(error)));
  return { end };
}

function showService(main, name, query) {
  let range = query.get("range") ?? "";
  const head = heading("Service", ranges(range, (value) => {
    range = value;
    keep({ range });
    end.now();
  }), h("a", { class: "button", href: to("traces", null, { service: name }) }, "Traces"),
  h("a", { class: "button", href: to("services") }, "All services"));
  set(head.element.querySelector("h1"), said(name));
  const body = h("div", { class: "stack" });
  main.append(head.element, body);
  let parts = null;

  function build() {
    const operations = table({
      label: "Operations",
      key: (row) => `${row.kind} ${row.name} ${row.detail}`,
      open: (row) => go("traces", null, { service: name, name: row.is_other ? "" : row.name }),
      height: "46vh",
      minWidth: 820,
      order: ["Count", "down"],
      columns: [
        { title: "Operation", width: "minmax(180px, 2fr)", cell: (row) => h("span", { class: "pair" }, row.is_other ? h("span", { class: "soft" }, "others") : said(row.name), row.detail && said(row.detail, "soft")), sort: (row) => row.name },
        { title: "Kind", width: "76px", cell: (row) => h("span", { class: "soft" }, row.kind ?? "–"), sort: (row) => row.kind ?? "" },
        ...sumColumns(),
        OVER_TIME,
      ],
    });
    const side = (label, key) => table({
      label,
      key: (row) => row[key] ?? "",
      open: (row) => row[key] !== null && go("services", row[key]),
      height: "30vh",
      minWidth: 400,
      order: ["Count", "down"],
      columns: [
        { title: label, width: "minmax(110px, 1fr)", cell: (row) => row[key] === null ? h("span", { class: "soft" }, "unknown") : h("a", { href: to("services", row[key]) }, said(row[key])), sort: (row) => row[key] ?? "" },
        ...sumColumns().filter((column) => !["p50", "p99"].includes(column.title)),
      ],
    });
    const made = { sums: h("div", { class: "row" }), rate: h("div", {}), heat: heatMap(pick), operations, callers: side("Called by", "caller"), callees: side("Calls", "callee"), errors: h("div", {}) };
    set(body,
      panel("Requests", {}, made.sums, made.rate),
      panel("Durations over time", { end: h("span", { class: "soft small" }, "A cell opens the traces that took so long") }, made.heat.element),
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Operations")), operations.element),
      h("div", { class: "grid2" }, panelOf("Called by", made.callers), panelOf("Calls", made.callees)),
      panel("Errors by type", {}, made.errors));
    return made;
  }

  function pick({ from, to: most }) {
    go("traces", null, { service: name, min_ms: (from / 1e6).toPrecision(3), max_ms: (most / 1e6).toPrecision(3) });
  }

  const end = poll((signal) => get(`api/v1/services/${encodeURIComponent(name)}`, rangeOf(range), signal), 3000, (answer) => {
    head.element.querySelector(".scope").textContent = sumsText(answer);
    parts ??= build();
    const { service: row } = answer;
    set(parts.sums, [["rate", units.rate(row.per_second)], ["requests", units.count(row.count)], ["errors", row.errors ? units.percent(row.errors, row.count) : "0 %"], ["p50", took(row.p50_ns)], ["p95", took(row.p95_ns)], ["p99", took(row.p99_ns)]]
      .map(([title, value]) => h("div", { class: "figure" }, h("span", { class: "soft small" }, title), h("strong", { class: "num" }, value))));
    set(parts.rate, h("div", { class: "wide-spark" }, spark(row.steps[0], { title: "Requests of each 10 seconds" })));
    parts.heat.update(answer.heat.minutes, answer.window);
    parts.operations.update(answer.operations);
    parts.callers.update(answer.callers);
    parts.callees.update(answer.callees);
    set(parts.errors, answer.errors.length
      ? h("div", { class: "row" }, answer.errors.map((error) => pill(`${clean(error.type, 80)} ${units.count(error.count)}`, "bad")))
      : h("p", { class: "soft" }, "None."));
  }, (error) => {
    parts = null;
    set(body, error.status === 404
      ? empty("This service is not known", "It has sent no span for some time, or the daemon restarted.", h("a", { href: to("services") }, "All services"))
      : failure(error));
  });
  return { end: () => { end(); parts?.heat.end(); } };
}

function panelOf(title, list) {
  return h("section", { class: "panel" }, h("header", {}, h("h2", {}, title)), list.element);
}
