// Profiles as flame graphs: from callers or callees, over any part of the window, compared with another, or in time order.

import { get, getBlob, poll } from "./api.js";
import { brush } from "./brush.js";
import { changeColor, frameColor, variable } from "./colors.js";
import { button, clean, download, h, set, soft } from "./dom.js";
import { flameCanvas, rowsOf } from "./flame.js";
import { functionName } from "./names.js";
import { choice, empty, failure, field, liveHeading, segments } from "./parts.js";
import { keep, step } from "./router.js";
import { functions, invert, layout, sandwich } from "./stacks.js";
import { table } from "./table.js";
import * as units from "./units.js";

/** Parameters of the address that are numbers: the ends of the part of the window, and of the one that it is compared with. */
const SPANS = { now: ["from", "to"], before: ["before_from", "before_to"] };
const DOWNLOADS = [["pprof", "pprof", "pb.gz"], ["folded", "Folded", "txt"], ["svg", "SVG", "svg"], ["speedscope", "speedscope"], ["perfetto", "Perfetto"], ["firefox", "Firefox"]];

export function show(main, route) {
	const state = { agent: route.query.get("agent"), type: route.query.get("type"), form: route.query.get("form") ?? "", threads: route.query.get("threads") ?? "", compare: route.query.get("compare") ?? "", function: route.query.get("function") ?? "" };
	let profiles = [];
	let answer = null;
	let picture = null;
	let loading = null;
	let loadedKey = "";
	let drawnChoices = "";

	const head = liveHeading("Profiles", button(() => load(true), "Load again"),
		h("span", { class: "small soft" }, "Save as"), DOWNLOADS.map(([format, title, ending = "json"]) => h("button", { type: "button", "data-download": format, on: { click: () => save(format, ending) } }, title)));
	const agent = choice("Agent", [], "", (value) => change({ agent: value, type: null }));
	const type = h("div", {});
	const forms = h("div", {});
	const threads = h("input", { type: "checkbox", on: { change: () => change({ threads: threads.checked ? "1" : "" }) } });
	threads.checked = state.threads === "1";
	const time = brush({ label: "Time", change: () => { step(spans()); load(); } });
	const compare = segments("Compare", [["", "One span"], ["before", "Compare two"]], state.compare, (value) => { setCompare(value); step({ compare: value, ...spans() }); load(); });
	const which = h("div", {});
	const search = field("", { placeholder: "Find functions", width: "180px", value: route.query.get("find") ?? "" }, (text) => { keep({ find: text }); find(text); });
	search.input.setAttribute("aria-label", "Find functions");
	const found = h("span", { class: "small soft", role: "status" });
	const note = h("span", { class: "small soft" });
	const frame = h("div", {});
	const chosen = h("div", { class: "body chosen small" });
	let tableOf = null;
	let answerIsCompared = false;
	const makeTable = () => table({
		label: "Functions",
		key: (row) => row.name,
		open: (row) => showFunction(row.name),
		height: "56vh",
		order: ["Self", "down"],
		sortName: "sort",
		columns: [
			{ title: "Function", width: "minmax(150px, 1fr)", cell: (row) => functionName(row.name), sort: (row) => row.name },
			{ title: "Self", width: "78px", num: true, cell: (row) => units.quantity(row.self, answer.unit), sort: (row) => row.self },
			{ title: "Share", width: "58px", num: true, cell: (row) => units.percent(row.self, answer.total), sort: (row) => row.self },
			{ title: "Total", width: "78px", num: true, cell: (row) => units.quantity(row.total, answer.unit), sort: (row) => row.total },
			...(answerIsCompared ? [{ title: "Change", width: "70px", num: true, cell: (row) => points(changeOf(row)), sort: changeOf }] : []),
		],
	});
	let top = makeTable();
	const content = h("div", { class: "stack" },
		h("section", { class: "panel" }, h("div", { class: "body timebar" }, h("div", { class: "row" }, compare.element, which), time.element)),
		h("div", { class: "beside" },
			h("section", { class: "panel" }, h("header", {}, forms, search.element, found, h("div", { class: "end" }, note)), frame, chosen),
			h("section", { class: "panel", id: "functions" }, h("header", {}, h("h2", {}, "Functions"), h("span", { class: "small soft" }, "Enter or click shows callers and callees")), top.element)));
	const nothing = h("section", { class: "panel" });
	main.append(head.element, h("div", { class: "filters" }, agent.element, type, h("label", { class: "check" }, threads, "By thread")), content, nothing);
	content.hidden = true;

	/** The profile of the address; without an agent there, the first. */
	const profile = () => profiles.find((one) => one.agent === state.agent) ?? (state.agent === null ? profiles[0] : undefined);
	const typeOf = () => profile()?.types.find((one) => one.type === state.type) ?? profile()?.types[0];

	const spans = () => Object.fromEntries(Object.entries(SPANS).flatMap(([name, keys]) => keys.map((key, at) => [key, time.chosen[name]?.[at] ?? ""])));

	/** Shows one function between its callers and its callees. */
	function showFunction(name) {
		change({ form: "sandwich", function: name });
	}

	function change(part) {
		Object.assign(state, part);
		step({ agent: state.agent, type: state.type, form: state.form, threads: state.threads, function: state.form === "sandwich" ? state.function : "" });
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
	}

	/** Takes the parts of the window from the address, once the window is known. */
	function chooseFromAddress() {
		for (const [name, keys] of Object.entries(SPANS)) {
			const [from, to] = keys.map((key) => Number(route.query.get(key)) || null);
			if (from && to && to > from && (name === "now" || state.compare)) time.choose(name, [from, to]);
		}
		time.activate("now");
		if (state.compare) setCompare(state.compare);
	}

	function parameters() {
		const { now, before } = time.chosen;
		return {
			agent: profile()?.agent, type: typeOf()?.type, threads: state.threads,
			from_ms: now?.[0], to_ms: now?.[1],
			before_from_ms: state.compare ? before?.[0] : null, before_to_ms: state.compare ? before?.[1] : null,
		};
	}

	let isRead = false;
	function drawChoices() {
		const one = profile();
		const names = profiles.map((each) => [each.agent, `${each.agent} (${each.protocol})`]);
		agent.draw(one ? names : [[state.agent, `${state.agent} (no profile)`], ...names], one?.agent ?? state.agent);
		content.hidden = !one;
		nothing.hidden = Boolean(one);
		if (!one) {
			set(nothing, empty("This agent has no profile in the window", "It sent no samples and no calls, or they have left the window. Choose another agent above."));
			return;
		}
		time.update(one.history);
		if (!isRead) chooseFromAddress();
		isRead = true;
		const drawn = JSON.stringify([one.agent, one.types.map((each) => each.type), typeOf()?.type, state.form]);
		if (drawn === drawnChoices) return;
		drawnChoices = drawn;
		set(type, h("label", { class: "small soft filter-like" }, "Quantity", segments("Quantity", one.types.map((each) => [each.type, each.text]), typeOf()?.type, (value) => change({ type: value })).element));
		const isJava = one.protocol === "bytefrog" || one.protocol === "zico";
		set(forms, segments("Form", [["", "Flame graph"], ["inverted", "Inverted"], ["sandwich", "One function"], ...(isJava ? [["time", "Time order"]] : [])], state.form, (value) => change({ form: value })).element);
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

	/** The table of functions, with changes where two parts of the window are compared. */
	function drawFunctions() {
		tableOf = answer;
		if (answerIsCompared !== Boolean(answer.nodes.before)) {
			answerIsCompared = !answerIsCompared;
			const made = makeTable();
			top.element.replaceWith(made.element);
			top = made;
		}
		top.update(functions(answer.nodes, answer.names));
	}

	function drawFlame() {
		const { names, unit, total } = answer;
		if (tableOf !== answer) drawFunctions();
		note.textContent = `${units.quantity(total, unit)} in ${units.plural(answer.nodes.name.length, "call path")}${answer.cut ? `; ${units.count(answer.cut)} small ones are added to their callers` : ""}`;
		if (!total) {
			set(frame, empty("Nothing in this span of time", "Choose a larger one above, or another quantity."));
			return;
		}
		const sides = state.form === "sandwich" ? sandwich(answer.nodes, names, state.function) : null;
		if (state.form === "sandwich" && !sides) {
			set(frame, state.function ? empty("This function was not called in this span of time", clean(state.function, 200)) : empty("Choose a function", "One of the table: its callers and its callees are shown."));
			return;
		}
		const nodes = sides?.nodes ?? (state.form === "inverted" ? invert(answer.nodes) : answer.nodes);
		if (nodes.isCut) note.textContent += "; small ones are shown without their callers";
		const { rows, total: width } = sides ?? layout(nodes);
		const isCompared = nodes.before !== undefined;
		const change = (id) => nodes.value[id] / total - nodes.before[id] / (answer.before_total || 1);
		let largest = 0;
		if (isCompared) for (let id = 0; id < nodes.value.length; id += 1) largest = Math.max(largest, Math.abs(change(id)));
		const describe = (id) => [
			clean(names[nodes.name[id]], 400),
			`${units.quantity(nodes.value[id], unit)} (${units.percent(nodes.value[id], total)})${sides && id > 0 && id < sides.callers ? ", a caller" : `, self ${units.quantity(nodes.self[id], unit)}`}`,
			isCompared && `before: ${units.quantity(nodes.before[id], unit)} (${units.percent(nodes.before[id], answer.before_total)}), change ${points(change(id))}`,
		].filter(Boolean).join("\n");
		picture = flameCanvas({
			label: "Flame graph: arrows select, Enter zooms, Escape shows all",
			name: (id) => names[nodes.name[id]],
			describe,
			color: (id) => isCompared ? changeColor(change(id), largest) : frameColor(names[nodes.name[id]]),
			parent: sides ? (id) => id > 0 && id >= sides.callers ? nodes.parent[id] : largestCaller(sides, id) : (id) => nodes.parent[id],
			below: (id) => sides && id > 0 && id < sides.callers ? nodes.parent[id] : -1,
			choose: (id) => drawChosen(id < 0 ? "" : describe(id), id),
			maxHeight: "56vh",
		});
		picture.text = (id) => names[nodes.name[id]];
		picture.size = nodes.name.length;
		// Of all calls: an inverted tree may have been cut.
		picture.weight = (matches) => weightOf(answer.nodes, (id) => matches(names[answer.nodes.name[id]]));
		set(frame, picture.element);
		picture.update(rows, 0, width);
		if (!state.form) setTimeout(() => answer.nodes && invert(answer.nodes), 300);
		if (sides) {
			picture.show(sides.centerRow);
			picture.select(sides.center, false);
		} else {
			drawChosen("", -1, isCompared);
		}
	}

	function drawChosen(text, id, isCompared) {
		if (id >= 0) {
			set(chosen, h("div", { class: "wrap pre" }, text), h("div", { class: "row" }, !answer.threads && button(() => showFunction(picture.text(id)), "Callers and callees"), button(() => picture.zoom(id), "Zoom to it"), button(() => picture.zoom(null), "Show all")));
		} else {
			set(chosen, soft(`Click selects, double click or Enter zooms, Ctrl and wheel zoom in and out.${isCompared ? " Orange: a larger share than before; blue: a smaller one." : ""}`));
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
		const text = (id) => { const { calls, at, thread } = call(id); return at < 0 ? `thread ${thread.name || "unknown"}` : names[calls.name[at]]; };
		const say = (id) => { const { calls, at, thread } = call(id); return at < 0 ? clean(text(id), 100) : `${clean(text(id), 400)}\n${units.nanos(calls.duration_ns[at] ?? NaN)} in thread ${clean(thread.name || "unknown", 80)}`; };
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

	const changeOf = (row) => row.total / (answer.total || 1) - row.before / (answer.before_total || 1);

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
			set(agent.select);
			set(nothing, empty("No profile yet", "Ruby agents send samples of CPU time and allocations when their profile is on; Java agents send calls.",
				"Switch the CPU profile of a Ruby process on from its page under Agents, or set in the listener of a Java agent:", h("code", {}, 'calls = "profile"')));
			return;
		}
		drawChoices();
		load();
	}, (error) => { nothing.hidden = false; set(nothing, failure(error)); });
	return { end: () => { end(); loading?.abort(); picture?.end(); time.end(); } };
}

/** Of a box among callers, or the function itself, the largest of its callers. */
function largestCaller({ nodes, callers }, id) {
	let best = -1;
	for (let at = 1; at < callers; at += 1) if (nodes.parent[at] === id && (best < 0 || nodes.value[at] > nodes.value[best])) best = at;
	return best;
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
