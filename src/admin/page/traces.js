// Traces: the latest and the slowest; one opens as a timeline or a flame chart, with its logs and exceptions beside it.

import { get, getBlob, poll } from "./api.js";
import { frameColor } from "./colors.js";
import { block, clean, download, h, said, set } from "./dom.js";
import { loadEvent } from "./events.js";
import { flameCanvas, rowsOf } from "./flame.js";
import { PROTOCOLS } from "./agents.js";
import { choice, empty, facts, failure, field, heading, panel, pill, segments } from "./parts.js";
import { go, keep, to } from "./router.js";
import { table } from "./table.js";
import { traceEvents } from "./timeline.js";
import * as units from "./units.js";
import { waterfall } from "./waterfall.js";

export function show(main, route) {
  return route.id === null ? showList(main, route.query) : showTrace(main, route.id, route.query);
}

function showList(main, query) {
  const names = ["order", "protocol", "service", "name", "text", "attribute", "status", "min_ms", "max_ms"];
  let filter = Object.fromEntries(names.map((name) => [name, query.get(name) ?? ""]));
  const parameters = () => {
    const { min_ms: least, max_ms: most, ...rest } = filter;
    const nanos = (millis) => Number(millis) > 0 ? Math.round(Number(millis) * 1e6) : "";
    return { ...rest, order: filter.order || "latest", min_ns: nanos(least), max_ns: nanos(most), limit: 500 };
  };
  const change = (part) => {
    filter = { ...filter, ...part };
    keep(filter);
    end.now();
  };
  const head = heading("Traces", segments("Order", [["", "Latest"], ["slowest", "Slowest"]], filter.order, (order) => change({ order })).element);
  const service = choice("Service", [["", "all"]], filter.service, (value) => change({ service: value }));
  const errors = h("input", { type: "checkbox", on: { change: () => change({ status: errors.checked ? "error" : "" }) } });
  errors.checked = filter.status === "error";
  let longest = 1;
  const list = table({
    label: "Traces",
    key: (trace) => trace.trace_id,
    open: (trace) => go("traces", trace.trace_id),
    height: "calc(100vh - 220px)",
    minWidth: 780,
    foot: (rows) => total > rows.length ? `${units.count(rows.length)} of ${units.count(total)} traces: filters narrow them` : "",
    columns: [
      { title: "Start", width: "96px", cell: (trace) => h("span", { class: "num", title: units.moment(trace.start_ms) }, trace.start_ms ? units.clock(trace.start_ms) : "unknown") },
      { title: "Service", width: "minmax(80px, .7fr)", cell: (trace) => said(trace.service || "–") },
      { title: "Root", width: "minmax(180px, 2.2fr)", cell: (trace) => h("a", { href: to("traces", trace.trace_id), class: "pair" }, said(trace.name), trace.detail && trace.detail !== trace.name && said(trace.detail, "soft")) },
      { title: "Duration", width: "86px", num: true, cell: (trace) => trace.duration_ns === null ? h("span", { class: "soft" }, "unknown") : units.nanos(trace.duration_ns) },
      { title: "", width: "minmax(40px, .5fr)", cell: (trace) => h("span", { class: "meter" }, h("i", { style: { width: `${(100 * (trace.duration_ns ?? 0)) / longest}%` } })) },
      { title: "Spans", width: "62px", num: true, cell: (trace) => units.count(trace.spans) },
      { title: "Errors", width: "56px", num: true, cell: (trace) => h("span", { class: trace.errors ? "bad-text" : "soft" }, units.count(trace.errors)) },
      { title: "Services", width: "66px", num: true, cell: (trace) => h("span", { title: trace.services.map((name) => clean(name, 60)).join(", ") }, units.count(trace.services.length)) },
      { title: "", width: "86px", cell: (trace) => !trace.is_complete && pill("incomplete", "warn") },
    ],
  });
  let total = 0;
  const body = h("section", { class: "panel" });
  main.append(head.element, h("div", { class: "filters" },
    choice("Protocol", [["", "all"], ...PROTOCOLS.map((name) => [name, name])], filter.protocol, (protocol) => change({ protocol })).element,
    service.element,
    field("Span name", { placeholder: "part of a name", value: filter.name, width: "150px" }, (name) => change({ name })).element,
    field("Text", { placeholder: "anywhere in a span", value: filter.text, width: "172px" }, (text) => change({ text })).element,
    field("Attribute", { placeholder: "key=value", value: filter.attribute, width: "140px" }, (attribute) => change({ attribute })).element,
    field("At least", { placeholder: "ms", value: filter.min_ms, type: "number", width: "80px" }, (value) => change({ min_ms: value })).element,
    field("At most", { placeholder: "ms", value: filter.max_ms, type: "number", width: "80px" }, (value) => change({ max_ms: value })).element,
    h("label", { class: "check" }, errors, "With errors")), body);
  const end = poll((signal) => get("api/v1/traces", parameters(), signal), 3000, (answer) => {
    head.scope(answer);
    total = answer.total;
    const services = [...new Set([...answer.services, filter.service].filter(Boolean))];
    service.draw([["", "all"], ...services.map((name) => [name, name])], filter.service);
    longest = Math.max(1, ...answer.traces.map((trace) => trace.duration_ns ?? 0));
    list.update(answer.traces);
    if (answer.traces.length) {
      if (body.firstChild !== list.element) set(body, list.element);
    } else {
      const isFiltered = names.some((name) => name !== "order" && filter[name]);
      set(body, isFiltered ? empty("No trace matches these filters", "Clear one of them.")
        : empty("No trace yet", "Agents of datadog, datadog_agent, otlp and zico send spans. Bytefrog agents send calls, which become spans with this line in their listener:", h("code", {}, 'calls = "spans"')));
    }
  }, (error) => set(body, failure(error)));
  return { end };
}

function showTrace(main, id, query) {
  const path = `api/v1/traces/${encodeURIComponent(id)}`;
  const copy = h("button", { type: "button", on: { click: () => copyLink(copy) } }, "Copy link");
  const save = h("button", { type: "button", on: { click: () => saveJson() } }, "JSON");
  const perfetto = h("button", { type: "button", title: "For Perfetto and chrome://tracing", on: { click: () => saveTimeline() } }, "Perfetto");
  const head = heading("Trace", h("a", { class: "button", href: to("traces") }, "All traces"), copy, save, perfetto);
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
    set(title, said(trace.name), trace.detail && trace.detail !== trace.name ? said(trace.detail, "soft") : null);
    title.className = "pair";
    const frame = h("section", { class: "panel" });
    const detail = h("div", { class: "body" }, h("p", { class: "soft" }, "Select a span to see all of it."));
    const side = h("div", { class: "stack" }, h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Span")), detail),
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, `Logs and exceptions (${units.count(logs.length)})`)), logList(logs, (span) => picture?.select(span))));
    const choose = (index) => index >= 0 && drawSpan(detail, spans[index], spans);
    const form = query.get("form") ?? (answer.is_java_calls ? "flame" : "timeline");
    const forms = segments("Form", [["timeline", "Timeline"], ["flame", "Flame chart"]], form, (value) => { keep({ form: value }); drawForm(value); });
    const search = field("", { placeholder: "Find spans", width: "170px" }, find);
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
      picture = value === "flame" ? flameOf(spans, trace.duration_ns, choose) : waterfall(spans, trace.duration_ns, logs, { choose, isCode: trace.protocol !== "datadog" });
      set(legend, value === "flame" ? null : [...picture.colors].slice(0, 12).map(([name, color]) => h("span", {}, h("i", { style: { background: color } }), said(name))));
      set(frame, h("header", {}, forms.element, search.element, found, h("div", { class: "end" }, legend)), picture.element);
      if (search.input.value) find(search.input.value);
    }

    drawForm(form);
    const summary = [units.plural(trace.spans, "span"), units.nanos(trace.duration_ns), trace.start_ms ? units.moment(trace.start_ms) : "start unknown", clean(trace.protocol)];
    set(body,
      h("div", { class: "row small soft" }, summary.join(" · "), trace.errors > 0 && pill(units.plural(trace.errors, "error"), "bad"), !trace.is_complete && pill("callers of some spans are not here", "warn"), answer.is_cut && pill(`the first ${units.count(spans.length)} spans`, "warn")),
      h("div", { class: "trace" }, frame, side));
  }
  return { end: () => { controller.abort(); picture?.end(); } };
}

async function copyLink(button) {
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser does not permit it";
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

function drawSpan(element, span, spans) {
  const whole = h("div", {});
  const parent = span.parent === null ? null : spans[span.parent];
  set(element,
    h("h3", { class: "wrap" }, said(span.name, "wrap")),
    facts([
      ["what", span.detail],
      ["service", span.service],
      ["kind", span.kind],
      ["status", span.status === "error" ? pill("error", "bad") : null],
      ["message", span.status_message],
      ["start", span.start_ns === null ? "unknown" : `+${units.nanos(span.start_ns)}`],
      ["duration", span.duration_ns === null ? "unknown" : units.nanos(span.duration_ns)],
      ["self time", span.self_ns === null || span.self_ns === undefined ? null : `${units.nanos(span.self_ns)} (${units.percent(span.self_ns, span.duration_ns)})`],
      ["called by", parent?.name],
      ["thread", span.thread],
      ["agent", span.agent],
      ["span id", span.span_id],
      ["links", span.links?.length ? h("div", {}, span.links.map((link) => h("div", {}, h("a", { href: to("traces", link.trace_id) }, `${link.trace_id} ${link.span_id}`)))) : null],
      ["missing", span.incomplete?.length ? span.incomplete.join(", ") : null],
    ]),
    h("div", { class: "row" }, h("button", { type: "button", on: { click: () => loadEvent(span.id, whole) } }, "All attributes")), whole);
}

/** The same spans by depth: calls under their callers. */
function flameOf(spans, duration, choose) {
  const start = (id) => spans[id].start_ns ?? 0;
  const stop = (id) => start(id) + Math.max(spans[id].duration_ns ?? 0, 1);
  const rows = rowsOf(spans.length, (id) => spans[id].depth, start, stop);
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
