// Machines with Endless OS: sums of every event by name over time, by image and by site; one machine, with its kept events.

import { peerBeside } from "./agents.js";
import { get, getEvents, poll } from "./api.js";
import { clean, h, linkButton, renew, said, set } from "./dom.js";
import { eventList } from "./events.js";
import { choice, empty, facts, failure, field, liveHeading, panel, pill, spark } from "./parts.js";
import { timeRange } from "./range.js";
import { go, keep, step, to } from "./router.js";
import { plainTable, table } from "./table.js";
import * as units from "./units.js";

export function show(main, route) {
	return route.id === null ? showAll(main, route.query) : showMachine(main, route.id, route.query);
}

/** Names of events with their number, and a sparkline where their history is known. */
function nameTable(names, history) {
	const curve = (name) => Object.entries(history?.names ?? {}).find(([key]) => key === name || name.endsWith(`.${key}`))?.[1];
	const machines = names[0]?.machines !== undefined;
	return plainTable([["Event"], ["Events", "num"], ...(machines ? [["Machines", "num"]] : []), ["Over time", "curve"]], names.slice(0, 50).map((one) => {
		const values = curve(one.name);
		return [[said(one.name), one.kind && one.kind !== "log" ? h("span", { class: "soft small" }, ` ${one.kind}`) : null], units.count(one.events), ...(machines ? [units.count(one.machines)] : []), values ? spark(values, { title: `events named ${clean(one.name)}` }) : null];
	}));
}

function showAll(main, query) {
	let filter = { image: query.get("image") ?? "", site: query.get("site") ?? "", name: query.get("name") ?? "", text: query.get("text") ?? "" };
	const change = (part, write = step) => {
		filter = { ...filter, ...part };
		write(filter);
		end.now();
	};
	const range = timeRange(query, () => end.now());
	const head = liveHeading("Machines", range.element);
	const image = choice("Image", [["", "all"]], filter.image, (value) => change({ image: value }));
	const site = choice("Site", [["", "all"]], filter.site, (value) => change({ site: value }));
	const name = choice("Event", [["", "all"]], filter.name, (value) => change({ name: value }));
	const names = h("div", {});
	const images = h("div", {});
	const sites = h("div", {});
	let total = 0;
	const list = table({
		label: "Machines",
		key: (machine) => machine.id,
		open: (machine) => go("machines", machine.id, range.state),
		height: "50vh",
		minWidth: 760,
		order: ["Events", "down"],
		sortName: "sort",
		foot: (rows) => total > rows.length ? `${units.count(rows.length)} of ${units.count(total)} machines: filters narrow them` : "",
		columns: [
			{ title: "Machine", width: "minmax(110px, 1fr)", cell: (machine) => h("a", { href: to("machines", machine.id, range.state), class: "mono" }, said(machine.name)), sort: (machine) => machine.name },
			{ title: "Peer", width: "minmax(100px, .8fr)", isWide: true, cell: (machine) => said(peerBeside(machine.name, machine.peer), "soft"), sort: (machine) => machine.peer ?? "" },
			{ title: "Image", width: "minmax(160px, 2fr)", isWide: true, cell: (machine) => said(machine.image ?? "–"), sort: (machine) => machine.image ?? "" },
			{ title: "Site", width: "minmax(110px, 1.2fr)", isWide: true, cell: (machine) => said(machine.site || "–", "soft"), sort: (machine) => machine.site ?? "" },
			{ title: "System", width: "92px", cell: (machine) => [machine.is_live && pill("live"), machine.is_dualboot && pill("dual boot")] },
			{ title: "Events", width: "76px", num: true, cell: (machine) => units.count(machine.events), sort: (machine) => machine.events },
			{ title: "Last seen", width: "88px", num: true, cell: (machine) => units.ago(machine.last_ms), sort: (machine) => machine.last_ms },
		],
	});
	const body = h("div", { class: "stack" });
	const built = [
		h("div", { class: "grid2" }, panel("Events by name", {}, names), h("div", { class: "stack" }, panel("Images", {}, images), panel("Sites", {}, sites))),
		panel("Machines", { body: false }, list.element),
	];
	main.append(head.element, h("div", { class: "filters" }, [image, site, name].map((control) => h("div", { class: "short" }, control.element)),
		field("Text", { placeholder: "machine, peer, image", value: filter.text }, (text) => change({ text }, keep)).element), body);
	const offer = (control, key, options) => {
		if (filter[key] && !options.some(([value]) => value === filter[key])) options = [...options, [filter[key], filter[key]]];
		control.draw([["", "all"], ...options], filter[key]);
	};
	const groups = (title, rows, text) => plainTable([[title], ["Events", "num"], ["Machines", "num"]], rows.slice(0, 20).map((row) => [said(text(row) || "–", "wrap"), units.count(row.events), units.count(row.machines)]));
	const end = poll((signal) => get("api/v1/machines", { ...filter, ...range.parameters, limit: 1000 }, signal), 3000, (answer) => {
		head.scope({ ...answer, coverage: { text: `every event${answer.left_out ? `; ${units.count(answer.left_out)} of machines without a line` : ""}` } });
		if (!answer.machines.length) {
			const isFiltered = Object.values(filter).some(Boolean);
			set(body, h("section", { class: "panel" }, isFiltered ? empty("No machine matches these filters", "Clear one of them.")
				: range.isChosen ? empty("No machine in this time", "Choose a longer one.")
				: empty("No machine yet", "Endless OS computers upload their metrics to the listener of protocol endless. A simulated one:", h("code", {}, "tributary simulate endless --to ADDRESS --count 200"))));
			return;
		}
		if (body.firstChild !== built[0]) set(body, built);
		offer(image, "image", answer.images.map((one) => [one.image, one.image]));
		offer(site, "site", answer.sites.filter((one) => one.text).map((one) => [one.text, one.text]));
		offer(name, "name", answer.names.map((one) => [one.name, one.name]));
		renew(names, nameTable(answer.names, answer.history));
		renew(images, groups("Image", answer.images, (one) => one.image));
		renew(sites, groups("Site", answer.sites, (one) => one.text));
		total = answer.total;
		list.update(answer.machines);
	}, (error) => set(body, failure(error)));
	return { end };
}

function showMachine(main, id, query) {
	const range = timeRange(query, () => end.now());
	const head = liveHeading("Machine", range.element, linkButton(to("machines", null, range.state), "All machines"));
	const title = head.element.querySelector("h1");
	const body = h("div", { class: "stack" });
	const about = h("div", {});
	const names = h("div", {});
	const events = eventList("Events of the machine");
	const built = [
		h("div", { class: "grid2" }, panel("Machine", {}, about), panel("Events by name", {}, names)),
		panel("Its events", { body: false }, events.element),
	];
	main.append(head.element, body);
	const end = poll((signal) => getEvents(`api/v1/machines/${encodeURIComponent(id)}`, { limit: 500, ...range.parameters }, signal), 3000, (answer) => {
		const { machine } = answer;
		head.scope(answer);
		set(title, said(machine.name));
		if (body.firstChild !== built[0]) set(body, built);
		set(about, facts([["image", machine.image], ["site", machine.site], ["peer", peerBeside(machine.name, machine.peer)], ["events", units.count(machine.events)], ["last seen", units.ago(machine.last_ms)],
			["live system", machine.is_live ? "yes" : null], ["dual boot", machine.is_dualboot ? "yes" : null], ...Object.entries(machine.resource ?? {})]));
		renew(names, nameTable(answer.names, answer.history));
		events.update(answer.events);
	}, (error) => set(body, error.status === 404 ? h("section", { class: "panel" }, empty("This machine is not in the window", "It sent nothing for a while.", h("a", { href: to("machines") }, "All machines"))) : failure(error)));
	return { end };
}
