// Heap dumps of Ruby processes: by class and by site, two dumps compared, and what refers to a class.

import { get, poll } from "./api.js";
import { button, clean, h, said, set } from "./dom.js";
import { functionName } from "./names.js";
import { choice, commands, empty, failure, field, liveHeading, meter, pill, segments } from "./parts.js";
import { keep, step } from "./router.js";
import { plainTable, table } from "./table.js";
import * as units from "./units.js";

const DUMP = "objectspace_snapshot";
const TRACK = "start_memory_profile";

export function show(main, route) {
	const state = { dump: route.query.get("dump"), with: route.query.get("with") ?? "", by: route.query.get("by") ?? "class", text: (route.query.get("find") ?? "").toLowerCase() };
	let dumps = [];
	let loadedKey = "";
	let answer = null;
	const head = liveHeading("Heap");
	const dumpChoice = choice("Dump", [], "", (value) => change({ dump: value }));
	const withChoice = choice("Compared with", [], "", (value) => change({ with: value }));
	const by = segments("Group by", [["class", "Class"], ["site", "Site"], ["class_site", "Class and site"]], state.by, (value) => change({ by: value }));
	const search = field("Find", { placeholder: "class or file", width: "170px", value: route.query.get("find") ?? "" }, (text) => { state.text = text.toLowerCase(); keep({ find: text }); drawRows(); });
	const filters = h("div", { class: "filters" }, dumpChoice.element, withChoice.element, h("label", { class: "small soft filter-like" }, "By", by.element), search.element);
	const summary = h("div", { class: "row small soft" });
	const frame = h("section", { class: "panel" });
	const detail = h("section", { class: "panel", hidden: true });
	const starters = h("section", { class: "panel" });
	const content = h("div", { class: "stack" }, filters, summary, frame, detail);
	main.append(head.element, content, starters);
	content.hidden = true;

	function change(part) {
		Object.assign(state, part);
		step({ dump: state.dump, with: state.with, by: state.by });
		detail.hidden = true;
		load();
	}

	const place = (row) => row.file ? `${row.file}${row.line ? `:${row.line}` : ""}` : "(no site)";
	const className = (row) => row.class ?? "(internal)";
	const classColumn = { title: "Class", width: "minmax(140px, 1fr)", cell: (row) => said(className(row)), sort: className };
	const siteColumn = { title: "Site", width: "minmax(200px, 2fr)", cell: (row) => functionName(place(row)), sort: place, isWide: true };
	const signed = (value, format) => h("span", { class: value > 0 ? "rise" : value < 0 ? "fall" : "soft" }, value > 0 ? `+${format(value)}` : value < 0 ? `−${format(-value)}` : "0");

	function columns(shown) {
		const names = state.by === "site" ? [siteColumn] : state.by === "class_site" ? [classColumn, siteColumn] : [classColumn];
		if (state.with) {
			return [
				...names,
				{ title: "Change", width: "96px", num: true, cell: (row) => signed(row.bytes_change, units.bytes), sort: (row) => row.bytes_change },
				{ title: "Objects ±", width: "92px", num: true, cell: (row) => signed(row.count_change, units.count), sort: (row) => row.count_change },
				{ title: "Before", width: "92px", num: true, cell: (row) => units.bytes(row.bytes_before), sort: (row) => row.bytes_before },
				{ title: "After", width: "92px", num: true, cell: (row) => units.bytes(row.bytes), sort: (row) => row.bytes },
				{ title: "Objects", width: "86px", num: true, cell: (row) => units.count(row.count), sort: (row) => row.count },
			];
		}
		const most = Math.max(1, ...shown.rows.map((row) => row.bytes));
		return [
			...names,
			{ title: "Size", width: "86px", num: true, cell: (row) => units.bytes(row.bytes), sort: (row) => row.bytes },
			{ title: "Share", width: "62px", num: true, cell: (row) => units.percent(row.bytes, shown.total.bytes), sort: (row) => row.bytes },
			{ title: "", width: "60px", cell: (row) => meter(row.bytes, most, "") },
			{ title: "Objects", width: "84px", num: true, cell: (row) => units.count(row.count), sort: (row) => row.count },
			{ title: "References", width: "88px", num: true, cell: (row) => units.count(row.references), sort: (row) => row.references },
		];
	}

	let list = null;
	function drawRows() {
		if (!answer) return;
		const rows = answer.rows.filter((row) => !state.text || `${className(row)} ${place(row)}`.toLowerCase().includes(state.text));
		list.update(rows);
	}

	async function load() {
		const dump = dumps.find((one) => one.id === state.dump) ?? dumps[0];
		if (!dump) return;
		const other = dumps.find((one) => one.id === state.with && one.id !== dump.id);
		state.with = other ? other.id : "";
		dumpChoice.draw(dumps.map((one) => [one.id, titleOf(one)]), dump.id);
		withChoice.draw([["", "nothing"], ...dumps.filter((one) => one.id !== dump.id).map((one) => [one.id, titleOf(one)])], state.with);
		const key = JSON.stringify([dump.id, dump.objects, state.with, state.by]);
		if (key === loadedKey) return;
		loadedKey = key;
		set(summary, dumpFacts(dump));
		try {
			const shown = other
				? await get("api/v1/heap/compare", { before: other.id, after: dump.id, by: state.by, limit: 10000 })
				: await get(`api/v1/heap/${encodeURIComponent(dump.id)}`, { by: state.by, limit: 10000 });
			// Another choice was made meanwhile.
			if (key !== loadedKey) return;
			answer = shown;
			head.scope(answer);
			list = table({
				label: "Objects of the heap",
				key: (row) => `${row.class}\u0000${place(row)}`,
				open: (row) => row.class !== undefined && state.by !== "site" && showReferences(dump, row.class),
				height: "calc(100vh - 300px)",
				minWidth: 640,
				sortName: "sort",
				order: [other ? "Change" : "Size", "down"],
				columns: columns(shown),
				foot: (rows) => [shown.left_out ? `${units.plural(shown.left_out, "smaller row")} left out` : "", shown.is_cut && !shown.left_out ? `the first ${units.count(rows.length)} rows` : "", state.by === "site" ? "" : "Enter or click shows what refers to a class."].filter(Boolean).join("; "),
			});
			set(frame, list.element);
			drawRows();
		} catch (error) {
			loadedKey = "";
			set(frame, failure(error));
		}
	}

	async function showReferences(dump, name) {
		detail.hidden = false;
		set(detail, h("p", { class: "body soft" }, "Loading…"));
		try {
			const found = await get(`api/v1/heap/${encodeURIComponent(dump.id)}/references`, { class: name ?? "", limit: 50 });
			const side = (title, rows, verb) => h("div", {}, h("h3", {}, title), rows.length ? plainTable([["Class"], ["References", "num"], [verb, "num"]], rows.map((row) => [said(row.class ?? "(internal)"), units.count(row.references), units.count(row.objects)])) : h("p", { class: "soft" }, "Nothing."));
			set(detail,
				h("header", {}, h("h2", {}, "References of ", said(name ?? "(internal)")), h("span", { class: "soft small" }, units.plural(found.objects, "object"), found.examined < found.of && `; references of ${units.count(found.examined)} of ${units.count(found.of)} objects were kept`),
					h("div", { class: "end" }, button(() => { detail.hidden = true; }, "Close"))),
				h("div", { class: "body grid2" }, side("Referred to from", found.referred_from, "From objects"), side("Refers to", found.refers_to, "Objects")));
			detail.scrollIntoView({ block: "nearest" });
		} catch (error) {
			set(detail, failure(error));
		}
	}

	// Dumps are started at agents: those with the command are listed.
	const controls = new Map();
	const endAgents = poll((signal) => get("api/v1/agents", { protocol: "rbkit" }, signal), 5000, ({ agents }) => {
		const able = agents.filter((agent) => agent.commands.includes(DUMP));
		set(starters, h("header", {}, h("h2", {}, "Take a heap dump")), h("div", { class: "body stack" }, able.length
			? able.map((agent) => {
				let control = controls.get(agent.id);
				if (!control) {
					control = commands((command) => `api/v1/agents/${encodeURIComponent(agent.id)}/commands/${command}`, () => end.now());
					controls.set(agent.id, control);
					get(`api/v1/agents/${encodeURIComponent(agent.id)}`).then((one) => control.update(one.commands.filter((command) => command.name === DUMP || command.name === TRACK)), () => controls.delete(agent.id));
				}
				return h("div", { class: "row" }, said(agent.name ?? agent.id), h("span", { class: "soft small" }, clean(agent.process ?? "")), control.element);
			})
			: h("p", { class: "soft" }, "No Ruby process that can be asked is connected.")));
	});
	const end = poll((signal) => get("api/v1/heap", {}, signal), 3000, (found) => {
		dumps = found.dumps;
		content.hidden = dumps.length === 0;
		head.scope(found);
		let nothing = document.getElementById("no-dumps");
		if (!dumps.length && !nothing) {
			nothing = h("section", { class: "panel", id: "no-dumps" }, empty("No heap dump yet", "A dump lists every object of a Ruby process: its class, its size, its references and, where the memory profile is on, the line that made it.", "Take one below, or with the agent's page."));
			head.element.after(nothing);
		} else if (dumps.length) {
			nothing?.remove();
		}
		load();
	}, (error) => { content.hidden = false; set(frame, failure(error)); });
	return { end: () => { end(); endAgents(); } };
}

function titleOf(dump) {
	return `${dump.dump_id ?? dump.id}: ${units.clock(dump.at_ms, 0)}, ${units.brief(dump.objects)} objects, ${dump.agent}`;
}

function dumpFacts(dump) {
	return [
		units.plural(dump.objects, "object"), units.bytes(dump.bytes), units.plural(dump.classes, "class", "classes"), units.moment(dump.at_ms),
	].map((text, at) => h("span", {}, at ? `· ${text}` : text)).concat([
		!dump.is_complete && pill(dump.announced ? `incomplete: ${units.count(dump.objects)} of ${units.count(dump.announced)} objects` : "incomplete", "warn"),
		!dump.has_references && pill("without references", "warn"),
	].filter(Boolean));
}
