// Code: which packages, classes and methods of a Java program ran, how often and how long, and which of the named ones did not.

import { get, poll, post } from "./api.js";
import { isDark } from "./colors.js";
import { clean, h, set, soft } from "./dom.js";
import { functionName } from "./names.js";
import { choice, empty, failure, field, liveHeading, panel, segments } from "./parts.js";
import { keep, step } from "./router.js";
import { table } from "./table.js";
import { treemap } from "./treemap.js";
import * as units from "./units.js";

const SIZES = { methods: () => 1, calls: (method) => method.calls, time: (method) => method.self_ns };

export function show(main, route) {
	const state = { run: route.query.get("run"), since: route.query.get("since") ?? "", size: route.query.get("size") ?? "methods", show: route.query.get("show") ?? "", text: route.query.get("find") ?? "" };
	let runs = [];
	let answer = null;
	let path = route.query.has("at") ? route.query.get("at").split("/") : [];
	const head = liveHeading("Code");
	const runChoice = choice("Program", [], "", (value) => change({ run: value, since: "" }));
	const sinceChoice = choice("Since", [["", "the start"]], "", (value) => change({ since: value }));
	const size = segments("Area", [["methods", "Methods"], ["calls", "Calls"], ["time", "Self time"]], state.size, (value) => { state.size = value; step({ size: value }); draw(); });
	const name = h("input", { type: "text", placeholder: "after login", "aria-label": "Name of the mark", maxlength: "100" });
	const markForm = h("form", { class: "row", on: { submit: (event) => { event.preventDefault(); mark(); } } }, name, h("button", { type: "submit" }, "Mark this moment"));
	const outcome = h("span", { class: "small", role: "status" });
	const crumbs = h("nav", { class: "crumbs", "aria-label": "Place in the code" });
	const totals = h("div", { class: "row small soft" });
	const map = treemap({ label: "Treemap of the code: arrows select, Enter opens, Escape goes back", color: colorOf, describe, open: openNode, back: () => goTo(path.slice(0, -1)) });
	const list = table({
		label: "Methods",
		key: (row) => row.full,
		height: "50vh",
		minWidth: 620,
		order: ["Calls", "down"],
		sortName: "sort",
		foot: () => answer?.left_out ? `${units.plural(answer.left_out, "method")} left out` : "",
		columns: [
			{ title: "Method", width: "minmax(190px, 1fr)", cell: (row) => functionName(row.full), sort: (row) => row.full },
			{ title: "Calls", width: "96px", num: true, cell: (row) => row.calls ? units.count(row.calls) : soft(row.has_run ? "ran" : "never ran"), sort: (row) => row.calls },
			{ title: "Self time", width: "88px", num: true, cell: (row) => row.calls ? units.nanos(row.self_ns) : "", sort: (row) => row.self_ns },
			{ title: "Exceptions", width: "80px", num: true, cell: (row) => row.exceptions ? h("span", { class: "bad-text" }, units.count(row.exceptions)) : soft("0"), sort: (row) => row.exceptions },
			{ title: "Last", width: "84px", num: true, cell: (row) => row.last_ms ? units.ago(row.last_ms) : "", sort: (row) => row.last_ms ?? 0 },
		],
	});
	const shown = segments("Methods", [["", "All"], ["ran", "Ran"], ["never", "Never ran"]], state.show, (value) => { state.show = value; step({ show: value }); drawRows(); });
	const search = field("", { placeholder: "Find methods", width: "180px", value: state.text }, (text) => { state.text = text.toLowerCase(); keep({ find: text }); drawRows(); });
	search.input.setAttribute("aria-label", "Find methods");
	const legend = h("div", { class: "legend" });
	const content = h("div", { class: "stack" },
		h("div", { class: "filters" }, runChoice.element, sinceChoice.element, h("label", { class: "small soft filter-like" }, "Area", size.element), markForm, outcome),
		totals,
		h("section", { class: "panel" }, h("header", {}, crumbs, h("div", { class: "end" }, legend)), map.element),
		panel("Methods", { body: false, end: h("div", { class: "row" }, shown.element, search.element) }, list.element));
	const nothing = h("section", { class: "panel" });
	main.append(head.element, content, nothing);
	content.hidden = true;

	function change(part) {
		Object.assign(state, part);
		step({ run: state.run, since: state.since, size: state.size, at: "" });
		path = [];
		load();
	}

	async function mark() {
		outcome.textContent = "";
		try {
			const { mark: made } = await post(`api/v1/code/${encodeURIComponent(run().id)}/marks`, { name: name.value.trim() || `mark at ${units.clock(Date.now(), 0)}` });
			outcome.textContent = `Marked. The picture shows what ran since “${clean(made.name, 80)}”.`;
			name.value = "";
			change({ since: String(made.id) });
			end.now();
		} catch (error) {
			outcome.textContent = clean(error.message, 300);
		}
	}

	const run = () => runs.find((one) => one.id === state.run) ?? runs[0];

	async function load() {
		const one = run();
		if (!one) return;
		const marks = one.marks ?? [];
		runChoice.draw(runs.map((each) => [each.id, each.agent]), one.id);
		try {
			answer = await get(`api/v1/code/${encodeURIComponent(one.id)}`, { since: state.since });
			head.scope(answer);
			const known = answer.run.marks ?? marks;
			sinceChoice.draw([["", "the start"], ...known.map((each) => [String(each.id), `${each.name} (${units.clock(each.at_ms, 0)})`])], state.since);
			draw();
		} catch (error) {
			if (error.status === 404 && state.since) change({ since: "" });
			else outcome.textContent = clean(error.message, 300);
		}
	}

	/** The tree of the packages in sight: packages, then classes, then methods. */
	function tree() {
		const measure = SIZES[state.size];
		const methodOf = (one) => (method) => ({ name: method.name, size: measure(method), method, path: null, full: one });
		const classOf = (pack) => (one) => {
			const children = one.methods_list.map(methodOf(`${pack.name}.${one.name}`));
			return { name: one.name, group: one, path: [pack.name, one.name], children, size: children.reduce((sum, child) => sum + child.size, 0) };
		};
		const packs = answer.packages.map((pack) => {
			const children = pack.classes.map(classOf(pack));
			return { name: pack.name || "(no package)", group: pack, path: [pack.name], children, size: children.reduce((sum, child) => sum + child.size, 0) };
		});
		let level = { children: packs };
		for (const [depth] of path.entries()) level = level.children.find((node) => node.path?.[depth] === path[depth]) ?? level;
		return level;
	}

	function draw() {
		if (!answer) return;
		const { run: one } = answer;
		const ran = answer.since ? answer.packages.reduce((sum, pack) => sum + pack.run, 0) : one.run;
		const since = answer.since ? ` of ${units.plural(one.methods, "named method")} ran since “${clean(answer.since.name, 80)}”` : ` ${ran === 1 ? "method" : "methods"} ran`;
		set(totals, h("span", {}, h("b", {}, units.count(ran)), since),
			h("span", {}, `${units.plural(one.classes, "class", "classes")} · ${units.plural(one.calls, "call")} · last ${units.ago(one.last_ms)}`),
			soft("An agent names a method at its first use: how many never ran is not known."));
		set(crumbs, [["All packages", []], ...path.map((part, at) => [clean(part, 100) || "(no package)", path.slice(0, at + 1)])].map(([text, place], at) => [
			at > 0 && soft(" / "),
			h("button", { type: "button", class: "plain", on: { click: () => goTo(place) } }, text)]));
		set(legend, [["never ran", "never"], ["ran seldom", "few"], ["ran often", "many"]].map(([text, kind]) => h("span", {}, h("i", { style: { background: shade(kind === "never" ? 0 : kind === "few" ? 0.15 : 1) } }), text)));
		map.update(tree(), true);
		drawRows();
	}

	function goTo(place) {
		path = place;
		step({ at: place.join("/") });
		draw();
	}

	function openNode(node) {
		if (node.path && (node.path.length > path.length)) goTo(node.path);
		else if (node.method) {
			search.input.value = `${node.full}.${node.method.name}`;
			state.text = search.input.value.toLowerCase();
			keep({ find: search.input.value });
			drawRows();
		}
	}

	function drawRows() {
		const rows = [];
		for (const pack of answer?.packages ?? []) {
			if (path.length > 0 && pack.name !== path[0]) continue;
			for (const one of pack.classes) {
				if (path.length > 1 && one.name !== path[1]) continue;
				for (const method of one.methods_list) rows.push({ ...method, full: `${pack.name ? `${pack.name}.` : ""}${one.name}.${method.name}` });
			}
		}
		list.update(rows.filter((row) => (!state.show || row.has_run === (state.show === "ran")) && (!state.text || row.full.toLowerCase().includes(state.text))));
	}

	/** From grey (never) through light to dark blue, by the logarithm of the number of calls. */
	function shade(heat) {
		if (heat === 0) return isDark() ? "hsl(30 4% 24%)" : "hsl(30 8% 88%)";
		return isDark() ? `hsl(208 ${40 + heat * 30}% ${28 + heat * 24}%)` : `hsl(208 ${60 + heat * 15}% ${86 - heat * 34}%)`;
	}

	function colorOf(node) {
		const hasRun = node.method ? node.method.has_run : node.group.run > 0;
		const calls = Math.max(1, (node.method ?? node.group).calls);
		return shade(hasRun ? Math.min(1, 0.1 + Math.log10(calls) / 5) : 0);
	}

	function describe(node) {
		if (node.method) {
			const { method } = node;
			return `${clean(node.full, 200)}.${clean(method.name, 200)}\n${method.calls ? `${units.plural(method.calls, "call")}, self ${units.nanos(method.self_ns)}` : method.has_run ? "ran" : "never ran"}${method.exceptions ? `\n${units.plural(method.exceptions, "exception")}` : ""}`;
		}
		const { group } = node;
		return `${clean(node.name, 200)}\n${units.count(group.run)} of ${units.plural(group.methods, "named method")} ran\n${units.plural(group.calls, "call")}, self ${units.nanos(group.self_ns)}`;
	}

	const end = poll((signal) => get("api/v1/code", {}, signal), 5000, (found) => {
		runs = found.runs;
		head.scope(found);
		content.hidden = runs.length === 0;
		nothing.hidden = runs.length > 0;
		if (!runs.length) set(nothing, empty("No Java program yet", "Bytefrog and Code Pulse agents report the methods of a Java program. Start one with its agent, or a simulated one:", h("code", {}, "tributary simulate bytefrog --to ADDRESS --rate 100 --for 1m")));
		load();
	}, (error) => { nothing.hidden = false; set(nothing, failure(error)); });
	return { end: () => { end(); map.end(); } };
}
