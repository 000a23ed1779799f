// Agents: everything seen recently. One opens to its resource, its commands and its last events.

import { get, getEvents, poll } from "./api.js";
import { clean, h, linkButton, said, set, soft } from "./dom.js";
import { eventList } from "./events.js";
import { choice, commands, empty, facts, failure, field, liveHeading, panel, pill, withAll, words } from "./parts.js";
import { go, keep, step, to } from "./router.js";
import { listOrEmpty, table } from "./table.js";
import * as units from "./units.js";

export const PROTOCOLS = ["bytefrog", "datadog", "datadog_agent", "endless", "otlp", "rbkit", "zico"];
/** The views that show what the agents of a protocol send. */
const SHOWN_IN = { bytefrog: ["code", "profiles", "traces"], datadog: ["services", "traces"], datadog_agent: ["services", "traces", "profiles"], endless: ["machines"], otlp: ["services", "traces", "profiles"], rbkit: ["profiles", "heap"], zico: ["services", "traces", "profiles"] };
const GOOD = new Set(["active", "tracing", "subscribed"]);

export function show(main, route) {
	return route.id === null ? showList(main, route.query) : showAgent(main, route.id);
}

/** The peer of an agent; of one that is called by its address, the port. */
export function peerBeside(name, peer) {
	const parts = /^\[?(.*?)\]?(:\d+)$/.exec(peer ?? "");
	return parts?.[1] === name ? parts[2] : peer === name ? "" : peer ?? "";
}

function statePill(agent) {
	const kind = !agent.is_healthy ? "bad" : GOOD.has(agent.state) ? "good" : "warn";
	return pill(agent.state.replaceAll("_", " "), agent.state === "silent" ? "" : kind);
}

function showList(main, query) {
	let filter = { protocol: query.get("protocol") ?? "", text: query.get("text") ?? "" };
	const change = (part, write = step) => {
		filter = { ...filter, ...part };
		write(filter);
		end.now();
	};
	const head = liveHeading("Agents");
	const protocol = choice("Protocol", withAll(PROTOCOLS), filter.protocol, (value) => change({ protocol: value }));
	const text = field("Name, process or peer", { placeholder: "part of a text", value: filter.text }, (value) => change({ text: value }, keep));
	const list = table({
		label: "Agents",
		key: (agent) => agent.id,
		open: (agent) => go("agents", agent.id),
		height: "calc(100vh - 190px)",
		minWidth: 900,
		order: ["Events", "down"],
		sortName: "sort",
		columns: [
			{ title: "Agent", width: "minmax(140px, 2fr)", cell: (agent) => h("a", { href: to("agents", agent.id) }, said(agent.name ?? agent.id)), sort: (agent) => agent.name ?? agent.id },
			{ title: "State", width: "100px", cell: statePill, sort: (agent) => agent.state },
			{ title: "Protocol", width: "116px", cell: (agent) => agent.protocol, sort: (agent) => agent.protocol },
			{ title: "Process", width: "minmax(66px, 1fr)", cell: (agent) => said(agent.process ?? "", "soft"), sort: (agent) => agent.process ?? "" },
			{ title: "Peer", width: "minmax(116px, 1fr)", isWide: true, cell: (agent) => said(peerBeside(agent.name, agent.peer), "soft"), sort: (agent) => agent.peer ?? "" },
			{ title: "Rate", width: "66px", num: true, cell: (agent) => units.rate(agent.events_per_second), sort: (agent) => agent.events_per_second ?? 0 },
			{ title: "Events", width: "84px", num: true, cell: (agent) => units.count(agent.events ?? 0), sort: (agent) => agent.events ?? 0 },
			{ title: "Losses", width: "56px", num: true, cell: (agent) => h("span", { class: agent.losses ? "bad-text" : "soft" }, units.count(agent.losses ?? 0)), sort: (agent) => agent.losses ?? 0 },
			{ title: "Last seen", width: "78px", num: true, cell: (agent) => units.ago(agent.last_seen_ms), sort: (agent) => agent.last_seen_ms ?? 0 },
			{ title: "Since", width: "88px", num: true, cell: (agent) => h("span", { title: units.moment(agent.since_ms) }, units.ago(agent.since_ms)), sort: (agent) => agent.since_ms ?? 0 },
		],
	});
	const body = h("section", { class: "panel" });
	main.append(head.element, h("div", { class: "filters" }, protocol.element, text.element), body);
	const end = poll((signal) => get("api/v1/agents", filter, signal), 2000, (answer) => {
		head.element.querySelector(".scope").textContent = `${units.plural(answer.total, "agent")}, counted since each was first seen`;
		listOrEmpty(body, list, answer.agents, () => filter.text || filter.protocol
			? empty("No agent matches this filter", "Choose another protocol, or clear the text.")
			: empty("No agent has been seen yet",
				"Point an agent at one of the listeners of the overview, or a simulated one:",
				h("code", {}, "tributary simulate datadog --to ADDRESS --rate 5 --for 1m"),
				"Ruby processes (rbkit) are dialled: name them in the configuration of a listener."));
	}, (error) => set(body, failure(error)));
	return { end };
}

function showAgent(main, id) {
	const head = liveHeading("Agent", linkButton(to("agents"), "All agents"));
	const title = head.element.querySelector("h1");
	const body = h("div", { class: "grid2" });
	main.append(head.element, body);
	let parts = null;
	const path = (command) => `api/v1/agents/${encodeURIComponent(id)}/commands/${encodeURIComponent(command)}`;

	function build() {
		const made = {
			state: h("div", {}),
			resource: h("div", {}),
			commands: commands(path, () => end.now()),
			events: eventList("Last events of the agent"),
			links: h("div", { class: "row" }),
		};
		made.actions = panel("Commands", {}, made.commands.element);
		set(body,
			h("div", { class: "stack" }, panel("State", {}, made.state, made.links), made.actions),
			panel("Resource", {}, made.resource),
			h("section", { class: "panel wide" }, h("header", {}, h("h2", {}, "Last events")), made.events.element));
		return made;
	}

	const end = poll((signal) => getEvents(`api/v1/agents/${encodeURIComponent(id)}`, {}, signal), 2000, (answer) => {
		const { agent } = answer;
		head.scope(answer);
		parts ??= build();
		set(title, said(agent.name ?? agent.id));
		set(parts.state, facts([
			["state", h("span", { class: "row" }, statePill(agent), soft(clean(agent.state_text)))],
			["protocol", agent.protocol],
			["listener", agent.listener],
			["process", agent.process],
			["peer", peerBeside(agent.name, agent.peer)],
			["since", `${units.moment(agent.since_ms)}, ${units.ago(agent.since_ms)}`],
			["last seen", units.ago(agent.last_seen_ms)],
			["rate", units.rate(agent.events_per_second)],
			["events", units.count(agent.events ?? 0)],
			["losses", agent.losses ? h("a", { href: to("losses", null, { listener: agent.listener }), class: "bad-text" }, units.count(agent.losses)) : "0"],
		]));
		set(parts.links, linkButton(to("live", null, { protocol: agent.protocol, text: agent.peer }), "Live events"),
			(SHOWN_IN[agent.protocol] ?? []).map((view) => linkButton(to(view, null, view === "traces" ? { protocol: agent.protocol } : {}), words(view))));
		const details = Object.entries(agent.details ?? {}).map(([name, value]) => [words(name), value]);
		set(parts.resource, Object.keys(agent.resource ?? {}).length || details.length ? facts([...Object.entries(agent.resource ?? {}), ...details]) : h("p", { class: "soft" }, "The agent sent nothing about itself yet."));
		parts.actions.hidden = answer.commands.length === 0;
		parts.commands.update(answer.commands);
		parts.events.update(answer.events);
	}, (error) => {
		parts = null;
		set(body, error.status === 404
			? empty("This agent is not known any more", "It has not been seen for a long time, or the daemon restarted.", h("a", { href: to("agents") }, "All agents"))
			: failure(error));
	});
	return { end };
}
