// Live events as they pass, and the wire view: annotated bytes of connections.

import { stream } from "./api.js";
import { clean, framed, h, set } from "./dom.js";
import { eventList } from "./events.js";
import { PROTOCOLS } from "./agents.js";
import { choice, empty, failure, field, heading, segments } from "./parts.js";
import { go, keep } from "./router.js";
import { onPulse } from "./pulse.js";
import * as units from "./units.js";

const KINDS = ["log", "span", "metric", "sample", "loss"];
const MOST_EVENTS = 1000;
const MOST_LINES = 2000;

export function show(main, route) {
  const isWire = route.query.get("view") === "wire";
  const mode = segments("View", [["", "Events"], ["wire", "Wire bytes"]], isWire ? "wire" : "", (view) => go("live", null, { view }));
  return isWire ? showWire(main, route.query, mode) : showEvents(main, route.query, mode);
}

/** A button that stops the list from moving. What passes meanwhile is counted. */
function pauseButton(change) {
  let isPaused = false;
  const button = h("button", { type: "button", "aria-pressed": "false", "data-pause": true, on: { click: toggle } }, "Pause");
  function toggle() {
    isPaused = !isPaused;
    button.setAttribute("aria-pressed", String(isPaused));
    button.textContent = isPaused ? "Continue" : "Pause";
    change();
  }
  return { button, get isPaused() { return isPaused; } };
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

function showEvents(main, query, mode) {
  const names = ["protocol", "kind", "name", "text", "listener"];
  let filter = Object.fromEntries(names.map((name) => [name, query.get(name) ?? ""]));
  let rows = [];
  let number = 0;
  let end = () => {};
  let refused = null;
  const totals = { shown: 0, passed: 0, dropped: 0, missed: 0 };
  const pause = pauseButton(() => draw());
  const head = heading("Live", mode.element, pause.button);
  const scope = head.element.querySelector(".scope");
  const list = eventList("Events as they pass", { height: "calc(100vh - 190px)" });
  const body = h("section", { class: "panel" });
  const change = (part) => {
    filter = { ...filter, ...part };
    keep(filter);
    open();
  };
  const listener = listenerChoice(filter.listener, (value) => change({ listener: value }));
  main.append(head.element, h("div", { class: "filters" },
    listener.element,
    choice("Protocol", [["", "all"], ...PROTOCOLS.map((name) => [name, name])], filter.protocol, (protocol) => change({ protocol })).element,
    choice("Kind", [["", "all"], ...KINDS.map((name) => [name, name])], filter.kind, (kind) => change({ kind })).element,
    field("Name", { placeholder: "sql.query or zico.*", value: filter.name, width: "170px" }, (name) => change({ name })).element,
    field("Text", { placeholder: "anywhere in the event", value: filter.text, width: "180px" }, (text) => change({ text })).element), body);

  const draw = framed(() => {
    const paused = pause.isPaused ? ` · paused, ${units.plural(totals.missed, "event")} since` : "";
    scope.textContent = `${units.count(totals.shown)} of ${units.plural(totals.passed, "matching event")} shown${totals.dropped ? `, ${units.count(totals.dropped)} were too many for this page` : ""}${paused}`;
    if (refused) {
      set(body, failure(refused));
      return;
    }
    if (!rows.length) {
      const isFiltered = Object.values(filter).some(Boolean);
      set(body, isFiltered
        ? empty("No event matches yet", "Events appear here as they pass. Clear the filter to see all of them.")
        : empty("Waiting for events", "Events appear here as they pass. Simulated agents send some:", h("code", {}, "tributary simulate datadog --to ADDRESS --rate 5 --for 1m")));
      return;
    }
    if (body.firstChild !== list.element) set(body, list.element);
    if (!pause.isPaused) list.update(rows, true);
  });

  function open() {
    end();
    refused = null;
    rows = [];
    Object.assign(totals, { shown: 0, passed: 0, dropped: 0, missed: 0 });
    draw();
    end = stream("api/v1/events/live", filter, (type, data) => {
      if (type === "events") {
        if (pause.isPaused) totals.missed += data.events.length;
        else rows = [...data.events.map((event, index) => ({ id: number++, agent: data.agents[index], event })).reverse(), ...rows].slice(0, MOST_EVENTS);
      } else if (type === "dropped") {
        totals.dropped += data.events;
      } else if (type === "alive") {
        totals.passed += data.passed;
        totals.shown += data.shown;
      }
      draw();
    }, (state, error) => {
      if (state === "refused") {
        refused = error;
        draw();
      } else if (state === "open") {
        refused = null;
      }
    });
  }
  open();
  return {
    end: () => {
      end();
      listener.end();
    },
  };
}

function showWire(main, query, mode) {
  let filter = { listener: query.get("listener") ?? "", connection: query.get("connection") ?? "" };
  let lines = [];
  let missed = 0;
  let dropped = 0;
  let heading1 = "";
  let refused = null;
  let end = () => {};
  const pause = pauseButton(() => draw());
  const head = heading("Live", mode.element, pause.button);
  const scope = head.element.querySelector(".scope");
  const output = h("pre", { class: "wire block", tabindex: "0", "aria-label": "Annotated bytes" });
  const body = h("section", { class: "panel" });
  const change = (part) => {
    filter = { ...filter, ...part };
    keep(filter);
    open();
  };
  const listener = listenerChoice(filter.listener, (value) => change({ listener: value }));
  main.append(head.element, h("div", { class: "filters" }, listener.element,
    field("Connection", { placeholder: "its number", value: filter.connection, width: "120px" }, (value) => change({ connection: value.trim() })).element), body);

  const draw = framed(() => {
    scope.textContent = `annotated bytes as they arrive${dropped ? `, ${units.bytes(dropped)} were too much for this page` : ""}${pause.isPaused ? ` · paused, ${units.plural(missed, "line")} since` : ""}`;
    if (refused) {
      set(body, failure(refused));
    } else if (!lines.length) {
      set(body, empty("Waiting for bytes", "Bytes of connections appear here, field by field, when agents send."));
    } else {
      if (body.firstChild !== output) set(body, output);
      if (pause.isPaused) return;
      const isAtEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 40;
      output.textContent = lines.join("\n");
      if (isAtEnd) output.scrollTop = output.scrollHeight;
    }
  });

  function open() {
    end();
    [lines, missed, dropped, refused, heading1] = [[], 0, 0, null, ""];
    draw();
    end = stream("api/v1/wire", filter, (type, data) => {
      if (type === "wire") {
        const title = `── ${clean(data.listener)} (${data.protocol}), ${clean(data.peer)}, connection ${data.connection}`;
        const added = data.lines.map((line) => clean(line, 400));
        if (pause.isPaused) missed += added.length;
        else lines = [...lines, ...(title === heading1 ? [] : [title]), ...added].slice(-MOST_LINES);
        heading1 = title;
      } else if (type === "dropped") {
        dropped += data.bytes;
      } else {
        return;
      }
      draw();
    }, (state, error) => {
      refused = state === "refused" ? error : null;
      if (state === "refused") draw();
    });
  }
  open();
  return {
    end: () => {
      end();
      listener.end();
    },
  };
}
