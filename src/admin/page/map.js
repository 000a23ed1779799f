// The map: services and who calls whom, with a table of the same calls.

import { get, poll } from "./api.js";
import { clean, h, named, renew, s, set, soft } from "./dom.js";
import { empty, failure, liveHeading, panel } from "./parts.js";
import { go, to } from "./router.js";
import { sumColumns, sumsRange, sumsText } from "./services.js";
import { table } from "./table.js";
import * as units from "./units.js";

const [WIDTH, HEIGHT, ACROSS, DOWN] = [164, 46, 56, 18];

/**
 * The place of each service: the columns follow the calls, and each column is in the order of names. So the same services and calls
 * have the same places, whatever their rates are.
 */
function places(services, edges) {
	const names = services.map((row) => row.name).sort();
	const callers = new Map(names.map((name) => [name, []]));
	for (const { caller, callee } of edges) if (callers.has(caller) && callers.has(callee)) callers.get(callee).push(caller);
	const column = new Map();
	const depth = (name, path) => {
		if (column.has(name)) return column.get(name);
		if (path.has(name)) return -1;
		path.add(name);
		const found = Math.max(-1, ...callers.get(name).map((caller) => depth(caller, path))) + 1;
		path.delete(name);
		column.set(name, found);
		return found;
	};
	names.forEach((name) => depth(name, new Set()));
	const counts = [];
	return new Map(names.map((name) => {
		const at = column.get(name);
		counts[at] = (counts[at] ?? 0) + 1;
		return [name, { x: 8 + at * (WIDTH + ACROSS), y: 8 + (counts[at] - 1) * (HEIGHT + DOWN) }];
	}));
}

function picture(services, edges, time) {
	const at = places(services, edges);
	const busiest = Math.max(1e-9, ...edges.map((edge) => edge.per_second));
	const lines = edges.filter((edge) => at.has(edge.caller) && at.has(edge.callee)).map((edge) => {
		const [a, b] = [at.get(edge.caller), at.get(edge.callee)];
		const [x1, y1, x2, y2] = [a.x + WIDTH, a.y + HEIGHT / 2, b.x, b.y + HEIGHT / 2];
		const bend = Math.max(40, Math.abs(x2 - x1) / 2);
		const width = 1 + 4 * Math.sqrt(edge.per_second / busiest);
		return s("path", { class: edge.errors ? "edge bad" : "edge", d: `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`, "stroke-width": width.toFixed(1) },
			s("title", {}, `${clean(edge.caller, 80)} calls ${clean(edge.callee, 80)}: ${units.rate(edge.per_second)}, ${units.percent(edge.errors, edge.count)} errors, p95 ${units.nanos(edge.p95_ns ?? NaN)}`));
	});
	const nodes = services.map((row) => {
		const { x, y } = at.get(row.name);
		const text = `${units.rate(row.per_second)} · ${row.errors ? units.percent(row.errors, row.count) : "0 %"} · ${units.nanos(row.p95_ns ?? NaN)}`;
		return s("a", { key: row.name, href: to("services", row.name, time), class: "node" },
			s("title", {}, `${clean(row.name, 200)}\nrate, errors, p95: ${text}`),
			s("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 6, class: row.errors ? "bad" : "" }),
			s("text", { x: x + 10, y: y + 19, class: "name" }, clean(row.name).slice(0, 22)),
			s("text", { x: x + 10, y: y + 36, class: "sums" }, text));
	});
	const right = Math.max(...[...at.values()].map((place) => place.x)) + WIDTH + 48;
	const bottom = Math.max(...[...at.values()].map((place) => place.y)) + HEIGHT + 8;
	return s("svg", { class: "map", width: right, height: bottom, viewBox: `0 0 ${right} ${bottom}`, role: "group", "aria-label": "Services and their calls" }, lines, nodes);
}

export function show(main, route) {
	const range = sumsRange(route.query, () => end.now());
	const services = h("a", { class: "button" }, "Services");
	const head = liveHeading("Map", range.element, services);
	const frame = h("section", { class: "panel map-frame", tabindex: "0", "aria-label": "Map of services" });
	const name = (value) => value === null ? soft("unknown") : h("a", { href: to("services", value, range.state) }, named(value));
	const list = table({
		label: "Calls",
		key: (row) => `${row.caller} ${row.callee}`,
		open: (row) => go("services", row.callee, range.state),
		sortName: "sort",
		height: "40vh",
		minWidth: 640,
		order: ["Rate", "down"],
		columns: [
			{ title: "From", width: "minmax(110px, 1fr)", cell: (row) => name(row.caller), sort: (row) => row.caller ?? "" },
			{ title: "To", width: "minmax(110px, 1fr)", cell: (row) => name(row.callee), sort: (row) => row.callee },
			...sumColumns(),
		],
	});
	main.append(head.element, frame, panel("Calls", { body: false }, list.element));
	let drawn = "";
	const end = poll((signal) => get("api/v1/map", range.parameters, signal), 3000, (answer) => {
		head.element.querySelector(".scope").textContent = sumsText(answer);
		services.href = to("services", null, range.state);
		list.update(answer.edges);
		const state = JSON.stringify([answer.services.map((row) => [row.name, row.count]), answer.edges.map((edge) => edge.count)]);
		if (state === drawn) return;
		drawn = state;
		renew(frame, answer.services.length ? picture(answer.services, answer.edges, range.state)
			: empty("No service yet", "Programs that send spans are on the map, with those that they call."));
	}, (error) => set(frame, failure(error)));
	return { end };
}
