// Losses by reason, listener and cause, with the first bytes explained field by field.

import { get, poll } from "./api.js";
import { button, clean, h, linkButton, renew, said, set, soft } from "./dom.js";
import { brush } from "./brush.js";
import { choice, empty, failure, liveHeading, panel, withAll } from "./parts.js";
import { serverNow } from "./pulse.js";
import { timeRange } from "./range.js";
import { step, to } from "./router.js";
import { plainTable, table } from "./table.js";
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
	const range = timeRange(route.query, () => end.now());
	const head = liveHeading("Losses", range.element);
	const change = (part) => {
		filter = { ...filter, ...part };
		step(filter);
		end.now();
	};
	const listener = choice("Listener", [["", "all"]], filter.listener, (value) => change({ listener: value }));
	const reason = choice("Reason", withAll(Object.keys(REASONS)), filter.reason, (value) => change({ reason: value }));
	const body = h("div", { class: "stack" });
	const totals = h("div", {});
	const most = h("p", { class: "small soft" });
	const curve = brush({ label: "Losses over time", change: (_, span) => range.choose(span?.[0] ?? null, span?.[1] ?? null) });
	const detail = h("div", { class: "detail-pane", hidden: true });
	const key = (group) => [group.reason, group.listener, group.example, group.name].join("\u0000");
	const list = table({
		label: "Groups of losses",
		key,
		height: "40vh",
		minWidth: 760,
		order: ["Last", "down"],
		sortName: "sort",
		open: (group) => {
			chosen = key(group);
			drawDetail(group);
			detail.scrollIntoView({ block: "nearest" });
		},
		columns: [
			{ title: "Reason", width: "104px", cell: (group) => h("span", { title: REASONS[group.reason] ?? "" }, group.reason), sort: (group) => group.reason },
			{ title: "Listener", width: "minmax(90px, .6fr)", cell: (group) => said(group.listener), sort: (group) => group.listener },
			{ title: "Cause", width: "minmax(220px, 3fr)", isWide: true, cell: (group) => said(group.example || group.cause || "–"), sort: (group) => group.cause },
			{ title: "Losses", width: "76px", num: true, cell: (group) => units.count(group.losses), sort: (group) => group.losses },
			{ title: "Bytes", width: "84px", num: true, cell: (group) => units.bytes(group.bytes), sort: (group) => group.bytes },
			{ title: "Events", width: "84px", num: true, cell: (group) => group.events === undefined || group.events === null ? soft("unknown") : units.count(group.events), sort: (group) => group.events ?? -1 },
			{ title: "Last", width: "92px", num: true, cell: (group) => units.ago(group.last_ms), sort: (group) => group.last_ms },
		],
	});
	main.append(head.element, h("div", { class: "filters" }, listener.element, reason.element), body);

	function drawDetail(group) {
		detail.hidden = false;
		set(detail,
			h("div", { class: "row" }, h("h2", {}, said(`${group.reason}: ${group.listener}`)), soft(REASONS[group.reason] ?? ""),
				button(() => { chosen = null; detail.hidden = true; list.select(null); }, "Close")),
			h("p", { class: "wrap" }, clean(group.example ?? group.cause, 1000)),
			group.example !== group.cause && group.losses > 1 && h("p", { class: "small soft" }, "This is the first one; the others of this group differ from it in their numbers only."),
			group.option && h("p", {}, "The key ", h("code", {}, clean(group.option, 120)), ` of the configuration governs it${group.option_text ? `: ${clean(group.option_text, 200)}` : ""}. `, h("code", {}, "tributary check --print"), " shows its value."),
			h("p", { class: "soft small" }, `${units.plural(group.losses, "loss", "losses")} from ${units.moment(group.first_ms)} to ${units.clock(group.last_ms, 0)}; peers: ${(group.peers ?? []).map((peer) => clean(peer, 60)).join(", ") || "unknown"}`),
			group.explained?.length
				? [h("h3", {}, "Its first bytes"), h("pre", { class: "block", tabindex: "0" }, group.explained.map((line) => clean(line, 300)).join("\n"))]
				: group.excerpt ? [h("h3", {}, "Its first bytes"), h("pre", { class: "block", tabindex: "0" }, clean(group.excerpt.replace(/(..)(?=.)/g, "$1 "), 400))] : null,
			h("div", { class: "row" }, linkButton(to("live", null, { kind: "loss", listener: group.listener }), "Live losses of this listener")));
	}

	const end = poll((signal) => get("api/v1/losses", { ...filter, ...range.parameters }, signal), 2000, (answer) => {
		head.scope(answer);
		const names = [...new Set([...answer.totals.map((total) => total.listener), filter.listener].filter(Boolean))];
		listener.draw(withAll(names), filter.listener);
		if (!answer.totals.length && !answer.groups.length) {
			set(body, h("section", { class: "panel" }, filter.listener || filter.reason || range.isChosen
				? empty("No loss matches this filter", "Choose another listener, reason or time.")
				: empty("Nothing was lost", "Every byte that arrived became events. What cannot be decoded or delivered appears here, with its first bytes explained.")));
			return;
		}
		if (body.firstChild !== totals.parentNode?.parentNode || !totals.isConnected) {
			set(body, h("div", { class: "grid2" }, panel("Since the start, exact", {}, totals), panel("Losses over time", {}, curve.element, most)),
				h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Causes"), h("span", { class: "soft small" }, "Enter or click opens one")), list.element, detail));
		}
		renew(totals, plainTable([["Listener"], ["Reason", "whole"], ["Losses", "num"], ["Bytes", "num"], ["Events", "num"]],
			answer.totals.map((total) => [said(total.listener), h("span", { title: REASONS[total.reason] ?? "" }, total.reason), units.count(total.losses), units.bytes(total.bytes), total.events ? units.count(total.events) : "unknown"])));
		const { history } = answer;
		curve.update({ values: history.losses, from_ms: history.from_ms, step_ms: history.step_ms });
		most.textContent = `${units.millis(history.step_ms * history.losses.length)}, at most ${units.plural(Math.max(0, ...history.losses), "loss", "losses")} in ${units.millis(history.step_ms)}`;
		const [from, until] = range.ends;
		curve.choose("now", range.isChosen ? [from ?? history.from_ms, until ?? serverNow()] : null);
		list.update(answer.groups);
		const group = chosen !== null && answer.groups.find((one) => key(one) === chosen);
		if (group && !detail.contains(document.activeElement) && !String(getSelection())) drawDetail(group);
	}, (error) => set(body, failure(error)));
	return { end: () => { end(); curve.end(); } };
}
