// Losses by reason, listener and cause, with the first bytes explained field by field.

import { get, poll } from "./api.js";
import { clean, h, said, set } from "./dom.js";
import { choice, empty, failure, heading, panel, spark } from "./parts.js";
import { keep, to } from "./router.js";
import { table } from "./table.js";
import * as units from "./units.js";

const REASONS = {
  malformed: "breaks its format",
  unsupported: "well formed, but a version or type that the daemon does not know",
  too_large: "over a limit",
  truncated: "the stream ended inside a message",
  unresolved: "ids whose text never arrived",
  gap: "numbers that the peer skipped",
  duplicate: "already delivered, recognised as a repeat",
  unauthorized: "the peer is not permitted to send this",
  shed: "a full queue or spool dropped it, as configured",
  failed: "a sink, or the daemon, failed",
};

export function show(main, route) {
  let filter = { listener: route.query.get("listener") ?? "", reason: route.query.get("reason") ?? "" };
  let chosen = null;
  const head = heading("Losses");
  const change = (part) => {
    filter = { ...filter, ...part };
    keep(filter);
    end.now();
  };
  const listener = choice("Listener", [["", "all"]], filter.listener, (value) => change({ listener: value }));
  const reason = choice("Reason", [["", "all"], ...Object.keys(REASONS).map((name) => [name, name])], filter.reason, (value) => change({ reason: value }));
  const body = h("div", { class: "stack" });
  const totals = h("div", {});
  const curve = h("div", {});
  const detail = h("div", { class: "detail-pane", hidden: true });
  const key = (group) => [group.reason, group.listener, group.example, group.name].join("\u0000");
  const list = table({
    label: "Groups of losses",
    key,
    height: "40vh",
    minWidth: 760,
    order: ["Last", "down"],
    open: (group) => {
      chosen = key(group);
      drawDetail(group);
      detail.scrollIntoView({ block: "nearest" });
    },
    columns: [
      { title: "Reason", width: "104px", cell: (group) => h("span", { title: REASONS[group.reason] ?? "" }, group.reason), sort: (group) => group.reason },
      { title: "Listener", width: "minmax(90px, .6fr)", cell: (group) => said(group.listener), sort: (group) => group.listener },
      { title: "Cause", width: "minmax(220px, 3fr)", cell: (group) => said(group.cause || "–"), sort: (group) => group.cause },
      { title: "Losses", width: "76px", num: true, cell: (group) => units.count(group.losses), sort: (group) => group.losses },
      { title: "Bytes", width: "84px", num: true, cell: (group) => units.bytes(group.bytes), sort: (group) => group.bytes },
      { title: "Events", width: "84px", num: true, cell: (group) => group.events === undefined || group.events === null ? h("span", { class: "soft" }, "unknown") : units.count(group.events), sort: (group) => group.events ?? -1 },
      { title: "Last", width: "92px", num: true, cell: (group) => units.ago(group.last_ms), sort: (group) => group.last_ms },
    ],
  });
  main.append(head.element, h("div", { class: "filters" }, listener.element, reason.element), body);

  function drawDetail(group) {
    detail.hidden = false;
    set(detail,
      h("div", { class: "row" }, h("h2", {}, said(`${group.reason}: ${group.listener}`)), h("span", { class: "soft" }, REASONS[group.reason] ?? ""),
        h("button", { type: "button", on: { click: () => { chosen = null; detail.hidden = true; list.select(null); } } }, "Close")),
      h("p", { class: "wrap" }, clean(group.cause, 1000)),
      group.example !== group.cause && h("p", { class: "wrap soft" }, "The first: ", clean(group.example, 1000)),
      group.option && h("p", {}, "The key ", h("code", {}, clean(group.option, 120)), ` of the configuration governs it${group.option_text ? `: ${clean(group.option_text, 200)}` : ""}. `, h("code", {}, "tributary check --print"), " shows its value."),
      h("p", { class: "soft small" }, `${units.plural(group.losses, "loss", "losses")} from ${units.moment(group.first_ms)} to ${units.clock(group.last_ms, 0)}; peers: ${(group.peers ?? []).map((peer) => clean(peer, 60)).join(", ") || "unknown"}`),
      group.explained?.length
        ? [h("h3", {}, "Its first bytes"), h("pre", { class: "block", tabindex: "0" }, group.explained.map((line) => clean(line, 300)).join("\n"))]
        : group.excerpt ? [h("h3", {}, "Its first bytes"), h("pre", { class: "block", tabindex: "0" }, clean(group.excerpt.replace(/(..)(?=.)/g, "$1 "), 400))] : null,
      h("div", { class: "row" }, h("a", { class: "button", href: to("live", null, { kind: "loss", listener: group.listener }) }, "Live losses of this listener")));
  }

  const end = poll((signal) => get("api/v1/losses", filter, signal), 2000, (answer) => {
    head.scope(answer);
    const names = [...new Set([...answer.totals.map((total) => total.listener), filter.listener].filter(Boolean))];
    listener.draw([["", "all"], ...names.map((name) => [name, name])], filter.listener);
    if (!answer.totals.length && !answer.groups.length) {
      set(body, h("section", { class: "panel" }, filter.listener || filter.reason
        ? empty("No loss matches this filter", "Choose another listener or reason.")
        : empty("Nothing was lost", "Every byte that arrived became events. What cannot be decoded or delivered appears here, with its first bytes explained.")));
      return;
    }
    if (body.firstChild !== totals.parentNode?.parentNode || !totals.isConnected) {
      set(body, h("div", { class: "grid2" }, panel("Since the start, exact", {}, totals), panel("Losses over time", {}, curve)),
        h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Causes"), h("span", { class: "soft small" }, "Enter or click opens one")), list.element, detail));
    }
    set(totals, h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, h("th", {}, "Listener"), h("th", {}, "Reason"), h("th", { class: "num" }, "Losses"), h("th", { class: "num" }, "Bytes"), h("th", { class: "num" }, "Events"))),
      h("tbody", {}, answer.totals.map((total) => h("tr", {}, h("td", {}, said(total.listener)), h("td", { title: REASONS[total.reason] ?? "" }, total.reason),
        h("td", { class: "num" }, units.count(total.losses)), h("td", { class: "num" }, units.bytes(total.bytes)), h("td", { class: "num" }, units.count(total.events)))))));
    const { history } = answer;
    set(curve, spark(history.losses, { title: "losses over time" }), h("p", { class: "small soft" }, `${units.millis(history.step_ms * history.losses.length)}, at most ${units.plural(Math.max(0, ...history.losses), "loss", "losses")} in ${units.millis(history.step_ms)}`));
    list.update(answer.groups);
    const group = chosen !== null && answer.groups.find((one) => key(one) === chosen);
    if (group && !detail.contains(document.activeElement) && !String(getSelection())) drawDetail(group);
  }, (error) => set(body, failure(error)));
  return { end };
}
