// The tree of a profile: its layout as a flame graph, from callers or from callees, and its functions.
//
// A profile is parallel arrays: `name` (index of `names`), `parent` (-1: a root), `value` (with callees), `self`, and
// `before` where two spans of time are compared. Parents stand before their children.

import { once } from "./dom.js";

/** What was made of trees before. */
const [known, layouts, inverted] = [new WeakMap(), new WeakMap(), new WeakMap()];

const NONE = [];

/** Children of each node, the largest first, and the roots. */
const childrenOf = (nodes) => once(known, nodes, findChildren);

function findChildren({ parent, value }) {
	const children = Array.from(parent, () => null);
	const roots = [];
	for (let id = 0; id < parent.length; id += 1) {
		if (parent[id] < 0) roots.push(id);
		else if (children[parent[id]]) children[parent[id]].push(id);
		else children[parent[id]] = [id];
	}
	const largestFirst = (a, b) => value[b] - value[a];
	for (const list of children) list?.sort(largestFirst);
	roots.sort(largestFirst);
	return { children, roots };
}

/** Rows of boxes for a flame graph; the largest child stands left. */
export const layout = (nodes) => once(layouts, nodes, makeLayout);

function makeLayout(nodes) {
	const { children, roots } = childrenOf(nodes);
	const rows = [];
	const start = new Float64Array(nodes.parent.length);
	let level = roots;
	let at = 0;
	for (const root of roots) {
		start[root] = at;
		at += nodes.value[root];
	}
	while (level.length) {
		const [from, to] = [new Float64Array(level.length), new Float64Array(level.length)];
		const next = [];
		for (let index = 0; index < level.length; index += 1) {
			const id = level[index];
			let place = start[id];
			from[index] = place;
			to[index] = place + nodes.value[id];
			for (const child of children[id] ?? NONE) {
				start[child] = place;
				place += nodes.value[child];
				if (nodes.value[child] > 0) next.push(child);
			}
		}
		rows.push({ id: level, from, to });
		level = next;
	}
	return { rows, total: at };
}

/** No callers are added to an inverted tree that has so many nodes or took so many steps: a complete one of 100,000 long stacks has millions. */
const MOST_NODES = 20_000;
const MOST_STEPS = 300_000;

/** The same stacks from their ends: roots are the functions in which the time was spent, children their callers. */
export const invert = (nodes) => once(inverted, nodes, makeInverted);

function makeInverted(nodes) {
	const { parent, self } = nodes;
	const selfBefore = nodes.before && Float64Array.from(nodes.before);
	if (selfBefore) parent.forEach((caller, id) => caller >= 0 && (selfBefore[caller] -= nodes.before[id]));

	// What a node stands for: places in the tree, with the values that go through them.
	const ends = { places: [], values: [], befores: [] };
	for (let id = 0; id < parent.length; id += 1) {
		const before = selfBefore ? selfBefore[id] : 0;
		if (!(self[id] > 0) && !(before > 0)) continue;
		add(ends, id, self[id], before);
	}
	return callersOf(nodes, ends);
}

/**
 * The stacks that end at these places, from their ends. The largest nodes get their callers first, until a limit is reached; `isCut` then says
 * that small nodes are without theirs.
 */
function callersOf(nodes, ends) {
	const { name, parent } = nodes;
	const result = { name: [], parent: [], value: [], self: [], before: nodes.before ? [] : undefined, isCut: false };
	const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);
	const [total, totalBefore] = [sumOf(ends.values), sumOf(ends.befores)];
	let steps = 0;
	// The number of a name, and of a caller, among those of one node; -1: none yet.
	const ofName = new Int32Array(name.reduce((most, key) => Math.max(most, key), 0) + 1).fill(-1);
	const ofCaller = new Int32Array(parent.length).fill(-1);

	// Nodes that wait for their callers, by the binary logarithm of their share, the largest first. A caller is never before its node.
	const waiting = Array.from({ length: 64 }, () => []);
	addChildren(-1, ends, 0);
	result.self.forEach((_, id) => (result.self[id] = result.value[id]));
	waiting.forEach((list, level) => {
		for (const { id, parts } of list) {
			const isFull = result.name.length >= MOST_NODES || steps >= MOST_STEPS;
			if (!isFull) addChildren(id, callers(parent, parts, ofCaller), level);
			else if (parts.places.some((place) => parent[place] >= 0)) result.isCut = true;
		}
	});
	return result;

	/** Adds a node below `above` for each name among the places. */
	function addChildren(above, { places, values, befores }, level) {
		steps += places.length;
		const children = [];
		for (let at = 0; at < places.length; at += 1) {
			const key = name[places[at]];
			let child = ofName[key] < 0 ? null : children[ofName[key]];
			if (!child) {
				const id = result.name.push(key) - 1;
				result.parent.push(above);
				result.value.push(0);
				result.self.push(0);
				result.before?.push(0);
				ofName[key] = children.push((child = { id, parts: { places: [], values: [], befores: [] } })) - 1;
			}
			result.value[child.id] += values[at];
			if (result.before) result.before[child.id] += befores[at];
			add(child.parts, places[at], values[at], befores[at]);
		}
		for (const child of children) ofName[result.name[child.id]] = -1;
		for (const child of children) {
			const share = Math.max(result.value[child.id] / total || 0, result.before ? result.before[child.id] / totalBefore || 0 : 0);
			const own = Math.min(waiting.length - 1, Math.floor(-Math.log2(Math.min(1, share))));
			waiting[Math.max(level, own)].push(child);
		}
	}
}

function add(parts, place, value, before) {
	parts.places.push(place);
	parts.values.push(value);
	parts.befores.push(before);
}

/** The callers of places. Places that have the same caller become one. */
function callers(parent, { places, values, befores }, ofCaller) {
	const result = { places: [], values: [], befores: [] };
	for (let at = 0; at < places.length; at += 1) {
		const caller = parent[places[at]];
		if (caller < 0) continue;
		const known = ofCaller[caller];
		if (known < 0) {
			ofCaller[caller] = result.places.length;
			add(result, caller, values[at], befores[at]);
		} else {
			result.values[known] += values[at];
			result.befores[known] += befores[at];
		}
	}
	for (const caller of result.places) ofCaller[caller] = -1;
	return result;
}

/**
 * One function between its callers and its callees: `rows` of boxes with the furthest callers first and `nodes` as of a tree, with `self` where
 * it is known; `center` is the box of the function and `centerRow` its row. A call within a call of the same function counts once. `null`: no such call.
 */
export function sandwich(nodes, names, wanted) {
	const { name, parent, value } = nodes;
	const key = names.indexOf(wanted);
	const isWithin = new Uint8Array(parent.length);
	const ends = { places: [], values: [], befores: [] };
	for (let id = 0; id < parent.length; id += 1) {
		const isBelow = parent[id] >= 0 && isWithin[parent[id]] === 1;
		const is = name[id] === key;
		if (is && !isBelow) add(ends, id, value[id], nodes.before?.[id] ?? 0);
		if (is || isBelow) isWithin[id] = 1;
	}
	if (!ends.places.length) return null;
	const above = callersOf(nodes, ends);
	const below = calleesOf(nodes, isWithin, new Set(ends.places));
	// Both trees have the function as their root: the boxes of the callers come first, then those of the callees without it.
	const [upper, lower] = [layout(above).rows, layout(below).rows];
	const base = above.name.length - 1;
	const both = { name: above.name, parent: above.parent, value: above.value, self: Array.from(above.value, () => 0), before: above.before, isCut: above.isCut };
	both.self[0] = below.self[0];
	for (let id = 1; id < below.name.length; id += 1) {
		for (const key of ["name", "value", "self", "before"]) both[key]?.push(below[key][id]);
		both.parent.push(below.parent[id] === 0 ? 0 : below.parent[id] + base);
	}
	const rows = [...upper.slice(1).reverse(), upper[0], ...lower.slice(1).map((row) => ({ ...row, id: row.id.map((id) => id + base) }))];
	return { nodes: both, rows, center: 0, centerRow: upper.length - 1, callers: base + 1, total: above.value[0] };
}

/** What is called below these places, added up by name: a tree with one root. Nodes within are marked. */
function calleesOf(nodes, isWithin, places) {
	const { name, parent, value, self, before } = nodes;
	const result = { name: [], parent: [], value: [], self: [], before: before ? [] : undefined };
	const node = new Int32Array(parent.length).fill(-1);
	/** Nodes by their caller and their name. */
	const known = new Map();
	const make = (key, above) => {
		result.parent.push(above);
		result.value.push(0);
		result.self.push(0);
		result.before?.push(0);
		return result.name.push(key) - 1;
	};
	for (let id = 0; id < parent.length; id += 1) {
		if (!isWithin[id]) continue;
		let at = 0;
		if (places.has(id)) {
			if (!result.name.length) make(name[id], -1);
		} else {
			const above = node[parent[id]];
			const key = above * 2 ** 24 + name[id];
			at = known.get(key);
			if (at === undefined) known.set(key, (at = make(name[id], above)));
		}
		node[id] = at;
		result.value[at] += value[id];
		result.self[at] += self[id];
		if (before) result.before[at] += before[id];
	}
	return result;
}

/** Functions with their self and total values. A recursive function counts once in its total. */
export function functions(nodes, names) {
	const { children, roots } = childrenOf(nodes);
	const rows = names.map(() => null);
	const open = new Int32Array(names.length);
	const work = [...roots];
	while (work.length) {
		// A call is entered, and left as the complement of its number.
		const id = work.pop();
		if (id < 0) {
			open[nodes.name[~id]] -= 1;
			continue;
		}
		const name = nodes.name[id];
		const one = (rows[name] ??= { name: names[name], self: 0, total: 0, before: 0 });
		one.self += nodes.self[id];
		if (open[name] === 0) {
			one.total += nodes.value[id];
			one.before += nodes.before?.[id] ?? 0;
		}
		open[name] += 1;
		work.push(~id);
		for (const child of children[id] ?? NONE) work.push(child);
	}
	return rows.filter(Boolean);
}
