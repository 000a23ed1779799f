// Profiles as flame graphs: from callers or callees, over any part of the window, compared with another, or in time order.

import { get, getBlob, poll } from "./api.js";
import { brush } from "./brush.js";
import { changeColor, frameColor, variable } from "./colors.js";
import { clean, download, h, said, set } from "./dom.js";
import { flameCanvas, rowsOf } from "./flame.js";
import { choice, empty, failure, field, heading, segments } from "./parts.js";
import { keep } from "./router.js";
import { functions, invert, layout } from "./stacks.js";
import { table } from "./table.js";
import * as units from "./units.js";

const DOWNLOADS = [["pprof", "pprof", "pb.gz"], ["folded", "Folded", "txt"], ["svg", "SVG", "svg"], ["speedscope", "speedscope", "json"], ["perfetto", "Perfetto", "json"], ["firefox", "Firefox Profiler", "json"]];

export function show(main, route) {
  const state = { agent: route.query.get("agent"), type: route.query.get("type"), form: route.query.get("form") ?? "", threads: route.query.get("threads") ?? "", compare: "" };
  let profiles = [];
  let answer = null;
  let picture = null;
  let loading = null;
  let loadedKey = "";
  let drawnChoices = "";

  const head = heading("Profiles", h("button", { type: "button", on: { click: () => load(true) } }, "Load again"),
    h("span", { class: "small soft" }, "Save as"), DOWNLOADS.map(([format, title, ending]) => h("button", { type: "button", "data-download": format, on: { click: () => save(format, ending) } }, title)));
  const agent = choice("Agent", [], "", (value) => change({ agent: value, type: null }));
  const type = h("div", {});
  const forms = h("div", {});
  const threads = h("input", { type: "checkbox", on: { change: () => change({ threads: threads.checked ? "1" : "" }) } });
  threads.checked = state.threads === "1";
  const time = brush({ label: "Time", change: () => load() });
  const compare = segments("Compare", [["", "One span"], ["before", "Compare two"]], "", (value) => setCompare(value));
  const which = h("div", {});
  const search = field("", { placeholder: "Find functions", width: "180px" }, find);
  search.input.setAttribute("aria-label", "Find functions");
  const found = h("span", { class: "small soft", role: "status" });
  const note = h("span", { class: "small soft" });
  const frame = h("div", {});
  const chosen = h("div", { class: "body chosen small" });
  const top = table({
    label: "Functions",
    key: (row) => row.name,
    open: (row) => { search.input.value = row.name; find(row.name); },
    height: "44vh",
    order: ["Self", "down"],
    columns: [
      { title: "Function", width: "minmax(160px, 1fr)", cell: (row) => said(row.name), sort: (row) => row.name },
      { title: "Self", width: "92px", num: true, cell: (row) => units.quantity(row.self, answer.unit), sort: (row) => row.self },
      { title: "Share", width: "64px", num: true, cell: (row) => units.percent(row.self, answer.total), sort: (row) => row.self },
      { title: "Total", width: "92px", num: true, cell: (row) => units.quantity(row.total, answer.unit), sort: (row) => row.total },
      { title: "Change", width: "76px", num: true, cell: (row) => changeOf(row.total, row.before), sort: (row) => row.total / (answer.total || 1) - row.before / (answer.before_total || 1) },
    ],
  });
  const content = h("div", { class: "stack" },
    h("section", { class: "panel" }, h("div", { class: "body timebar" }, h("div", { class: "row" }, compare.element, which), time.element)),
    h("section", { class: "panel" }, h("header", {}, forms, search.element, found, h("div", { class: "end" }, note)), frame, chosen),
    h("section", { class: "panel", id: "functions" }, h("header", {}, h("h2", {}, "Functions"), h("span", { class: "small soft" }, "Enter or click finds one in the picture")), top.element));
  const nothing = h("section", { class: "panel" });
  main.append(head.element, h("div", { class: "filters" }, agent.element, type, h("label", { class: "check" }, threads, "By thread")), content, nothing);
  content.hidden = true;

  const profile = () => profiles.find((one) => one.agent === state.agent) ?? profiles[0];
  const typeOf = () => profile()?.types.find((one) => one.type === state.type) ?? profile()?.types[0];

  function change(part) {
    Object.assign(state, part);
    keep({ agent: state.agent, type: state.type, form: state.form, threads: state.threads });
    if ("form" in part && answer && state.form !== "time" && !answer.threads) drawPicture();
    else load();
    drawChoices();
  }

  function setCompare(value) {
    state.compare = value;
    if (value) {
      const [from, to] = time.ends;
      const middle = (from + to) / 2;
      if (!time.chosen.now) time.choose("now", [middle, to]);
      if (!time.chosen.before) time.choose("before", [from, Math.min(middle, time.chosen.now[0])]);
      const ends = segments("Span to choose", [["now", "Now"], ["before", "Before"]], "now", (name) => time.activate(name));
      set(which, ends.element);
      time.activate("now");
    } else {
      time.choose("before", null);
      time.activate("now");
      set(which);
    }
    load();
  }

  function parameters() {
    const { now, before } = time.chosen;
    return {
      agent: profile()?.agent, type: typeOf()?.type, threads: state.threads,
      from_ms: now?.[0], to_ms: now?.[1],
      before_from_ms: state.compare ? before?.[0] : null, before_to_ms: state.compare ? before?.[1] : null,
    };
  }

  function drawChoices() {
    const one = profile();
    if (!one) return;
    agent.draw(profiles.map((each) => [each.agent, `${each.agent} (${each.protocol})`]), one.agent);
    time.update(one.history);
    const drawn = JSON.stringify([one.agent, one.types.map((each) => each.type), typeOf()?.type, state.form]);
    if (drawn === drawnChoices) return;
    drawnChoices = drawn;
    set(type, h("label", { class: "small soft filter-like" }, "Quantity", segments("Quantity", one.types.map((each) => [each.type, each.text]), typeOf()?.type, (value) => change({ type: value })).element));
    const isJava = one.protocol === "bytefrog" || one.protocol === "zico";
    set(forms, segments("Form", [["", "Flame graph"], ["inverted", "Inverted"], ...(isJava ? [["time", "Time order"]] : [])], state.form, (value) => change({ form: value })).element);
  }

  async function load(isForced = false) {
    const isTime = state.form === "time";
    const wanted = isTime ? { agent: profile()?.agent, from_ms: time.chosen.now?.[0], to_ms: time.chosen.now?.[1] } : parameters();
    const key = JSON.stringify([isTime, wanted]);
    if (!profile() || (!isForced && key === loadedKey)) return;
    loadedKey = key;
    loading?.abort();
    loading = new AbortController();
    note.textContent = "loading…";
    try {
      answer = await get(isTime ? "api/v1/profiles/chart" : "api/v1/profiles/flame", wanted, loading.signal);
      head.scope(answer);
      drawPicture();
    } catch (error) {
      if (error.name === "AbortError") return;
      loadedKey = "";
      note.textContent = "";
      set(frame, failure(error));
    }
  }

  function drawPicture() {
    picture?.end();
    picture = null;
    set(chosen);
    const isTime = Boolean(answer.threads);
    document.getElementById("functions").hidden = isTime;
    if (isTime) drawTime();
    else drawFlame();
    if (search.input.value) find(search.input.value);
  }

  function drawFlame() {
    const { names, unit, total } = answer;
    top.update(functions(answer.nodes, names));
    note.textContent = `${units.quantity(total, unit)} in ${units.plural(answer.nodes.name.length, "call", "calls")}${answer.cut ? `; ${units.count(answer.cut)} small ones are added to their callers` : ""}`;
    if (!total) {
      set(frame, empty("Nothing in this span of time", "Choose a larger one above, or another quantity."));
      return;
    }
    const nodes = state.form === "inverted" ? invert(answer.nodes) : answer.nodes;
    if (nodes.isCut) note.textContent += "; small ones are shown without their callers";
    const { rows, total: width } = layout(nodes);
    const isCompared = nodes.before !== undefined;
    const change = (id) => nodes.value[id] / total - nodes.before[id] / (answer.before_total || 1);
    let largest = 0;
    if (isCompared) for (let id = 0; id < nodes.value.length; id += 1) largest = Math.max(largest, Math.abs(change(id)));
    const describe = (id) => [
      clean(names[nodes.name[id]], 400),
      `${units.quantity(nodes.value[id], unit)} (${units.percent(nodes.value[id], total)}), self ${units.quantity(nodes.self[id], unit)}`,
      isCompared && `before: ${units.quantity(nodes.before[id], unit)} (${units.percent(nodes.before[id], answer.before_total)}), change ${points(change(id))}`,
    ].filter(Boolean).join("\n");
    picture = flameCanvas({
      label: "Flame graph: arrows select, Enter zooms, Escape shows all",
      name: (id) => names[nodes.name[id]],
      describe,
      color: (id) => isCompared ? changeColor(change(id), largest) : frameColor(names[nodes.name[id]]),
      parent: (id) => nodes.parent[id],
      choose: (id) => drawChosen(id < 0 ? "" : describe(id), id),
      maxHeight: "56vh",
    });
    picture.text = (id) => names[nodes.name[id]];
    picture.size = nodes.name.length;
    // Of all calls: an inverted tree may have been cut.
    picture.weight = (matches) => weightOf(answer.nodes, (id) => matches(names[answer.nodes.name[id]]));
    set(frame, picture.element);
    picture.update(rows, 0, width);
    drawChosen("", -1, isCompared);
  }

  function drawChosen(text, id, isCompared) {
    if (id >= 0) {
      set(chosen, h("div", { class: "wrap pre" }, text), h("div", { class: "row" }, h("button", { type: "button", on: { click: () => picture.zoom(id) } }, "Zoom to it"), h("button", { type: "button", on: { click: () => picture.zoom(null) } }, "Show all")));
    } else {
      set(chosen, h("span", { class: "soft" }, `Click selects, double click or Enter zooms, Ctrl and wheel zoom in and out.${isCompared ? " Orange: a larger share than before; blue: a smaller one." : ""}`));
    }
  }

  function drawTime() {
    const { threads: list, names } = answer;
    note.textContent = units.plural(list.reduce((sum, thread) => sum + thread.calls.name.length, 0), "call");
    if (!list.length) {
      set(frame, empty("No calls with a place in time", "Time order shows the calls of Java agents that send spans or entries and exits. Profiles of calls have only sums."));
      return;
    }
    const owner = [];
    const rows = [];
    let [from, to] = [Infinity, 0];
    list.forEach((thread, number) => {
      const { calls } = thread;
      const title = owner.push([number, -1]) - 1;
      const base = owner.length;
      const stop = (id) => calls.start_ns[id] + Math.max(1, calls.duration_ns[id] ?? 0);
      calls.name.forEach((_, id) => {
        owner.push([number, id]);
        from = Math.min(from, calls.start_ns[id]);
        to = Math.max(to, stop(id));
      });
      rows.push({ id: [title], from: [0], to: [0] });
      for (const row of rowsOf(calls.name.length, (id) => calls.depth[id], (id) => calls.start_ns[id], stop)) {
        rows.push({ ...row, id: row.id.map((id) => id + base) });
      }
    });
    const call = (id) => { const [number, at] = owner[id]; return { thread: list[number], at, calls: list[number].calls }; };
    for (const row of rows) if (owner[row.id[0]][1] < 0) [row.from, row.to] = [[from], [to]];
    const text = (id) => { const { calls, at, thread } = call(id); return at < 0 ? `thread ${thread.name ?? "unknown"}` : names[calls.name[at]]; };
    const say = (id) => { const { calls, at, thread } = call(id); return at < 0 ? clean(text(id), 100) : `${clean(text(id), 400)}\n${units.nanos(calls.duration_ns[at] ?? NaN)} in thread ${clean(thread.name ?? "unknown", 80)}`; };
    picture = flameCanvas({
      label: "Calls in time order: arrows select, Enter zooms, Escape shows all",
      name: text,
      describe: say,
      color: (id) => owner[id][1] < 0 ? variable("--sunk") : frameColor(text(id)),
      parent: () => -1,
      choose: (id) => id >= 0 && drawChosen(say(id), id),
      maxHeight: "60vh",
    });
    picture.text = text;
    picture.size = owner.length;
    set(frame, picture.element);
    picture.update(rows, from, to);
    drawChosen("", -1);
  }

  function find(text) {
    const needle = text.trim().toLowerCase();
    if (!picture || !needle) {
      found.textContent = "";
      picture?.highlight(null);
      return;
    }
    const matches = (name) => name.toLowerCase().includes(needle);
    const test = (id) => matches(picture.text(id));
    picture.highlight(test);
    let number = 0;
    for (let id = 0; id < picture.size; id += 1) if (test(id)) number += 1;
    found.textContent = picture.weight && number ? `${units.count(number)} found, ${units.percent(picture.weight(matches), answer.total)} of all` : `${units.count(number)} found`;
  }

  function points(share) {
    const value = share * 100;
    return `${value > 0 ? "+" : ""}${value.toFixed(Math.abs(value) < 1 ? 2 : 1)} pp`;
  }

  function changeOf(value, before) {
    if (!answer.nodes?.before) return h("span", { class: "soft" }, "–");
    const share = value / (answer.total || 1) - before / (answer.before_total || 1);
    return points(share);
  }

  async function save(format, ending) {
    if (!profile()) return;
    const { before_from_ms: _from, before_to_ms: _to, ...rest } = parameters();
    try {
      download(`${typeOf().type}.${ending}`, "", await getBlob("api/v1/profiles/download", { ...rest, format }));
    } catch (error) {
      set(chosen, failure(error));
    }
  }

  const end = poll((signal) => get("api/v1/profiles", {}, signal), 10000, (list) => {
    profiles = list.profiles;
    head.scope(list);
    content.hidden = profiles.length === 0;
    nothing.hidden = profiles.length > 0;
    if (!profiles.length) {
      set(nothing, empty("No profile yet", "Ruby agents send samples of CPU time and allocations when their profile is on; Java agents send calls.",
        "Switch the CPU profile of a Ruby process on from its page under Agents, or set in the listener of a Java agent:", h("code", {}, 'calls = "profile"')));
      return;
    }
    drawChoices();
    load();
  }, (error) => { nothing.hidden = false; set(nothing, failure(error)); });
  return { end: () => { end(); loading?.abort(); picture?.end(); time.end(); } };
}

/** The value of nodes that match; what lies below a match counts once. */
function weightOf(nodes, test) {
  const isCovered = new Uint8Array(nodes.parent.length);
  let sum = 0;
  for (let id = 0; id < nodes.parent.length; id += 1) {
    const above = nodes.parent[id] >= 0 && isCovered[nodes.parent[id]];
    if (above) isCovered[id] = 1;
    else if (test(id)) {
      isCovered[id] = 1;
      sum += nodes.value[id];
    }
  }
  return sum;
}
