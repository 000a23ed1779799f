// The tree of a profile: its layout as a flame graph, from callers or from callees, and its functions.
//
// A profile is parallel arrays: `name` (index of `names`), `parent` (-1: a root), `value` (with callees), `self`, and
// `before` where two spans of time are compared. Parents stand before their children.

/** Children of each node, the largest first, and the roots. */
function childrenOf({ parent, value }) {
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
export function layout(nodes) {
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
    const row = { id: level, from: Float64Array.from(level, (id) => start[id]), to: Float64Array.from(level, (id) => start[id] + nodes.value[id]) };
    rows.push(row);
    const next = [];
    for (const id of level) {
      let place = start[id];
      for (const child of children[id] ?? []) {
        start[child] = place;
        place += nodes.value[child];
        next.push(child);
      }
    }
    level = next.filter((id) => nodes.value[id] > 0);
  }
  return { rows, total: at };
}

/** No callers are added to an inverted tree that has so many nodes or took so many steps: a complete one of 100,000 long stacks has millions. */
const MOST_NODES = 100_000;
const MOST_STEPS = 5_000_000;

/**
 * The same stacks from their ends: roots are the functions in which the time was spent, children their callers. The largest
 * nodes get their callers first, until a limit is reached; `isCut` then says that small nodes are without theirs.
 */
export function invert(nodes) {
  const { name, parent, self } = nodes;
  const result = { name: [], parent: [], value: [], self: [], before: nodes.before ? [] : undefined, isCut: false };
  const selfBefore = nodes.before && Float64Array.from(nodes.before);
  if (selfBefore) parent.forEach((caller, id) => caller >= 0 && (selfBefore[caller] -= nodes.before[id]));

  // What a node stands for: places in the tree, with the values that go through them.
  const ends = { places: [], values: [], befores: [] };
  let [total, totalBefore, steps] = [0, 0, 0];
  for (let id = 0; id < parent.length; id += 1) {
    const before = selfBefore ? selfBefore[id] : 0;
    if (!(self[id] > 0) && !(before > 0)) continue;
    add(ends, id, self[id], before);
    total += self[id];
    totalBefore += before;
  }

  // Nodes that wait for their callers, by the binary logarithm of their share, the largest first. A caller is never before its node.
  const waiting = Array.from({ length: 64 }, () => []);
  addChildren(-1, ends, 0);
  result.self.forEach((_, id) => (result.self[id] = result.value[id]));
  waiting.forEach((list, level) => {
    for (const { id, parts } of list) {
      const isFull = result.name.length >= MOST_NODES || steps >= MOST_STEPS;
      if (!isFull) addChildren(id, callers(parent, parts), level);
      else if (parts.places.some((place) => parent[place] >= 0)) result.isCut = true;
    }
  });
  return result;

  /** Adds a node below `above` for each name among the places. */
  function addChildren(above, { places, values, befores }, level) {
    steps += places.length;
    const found = new Map();
    for (let at = 0; at < places.length; at += 1) {
      const key = name[places[at]];
      let child = found.get(key);
      if (!child) {
        const id = result.name.push(key) - 1;
        result.parent.push(above);
        result.value.push(0);
        result.self.push(0);
        result.before?.push(0);
        found.set(key, (child = { id, parts: { places: [], values: [], befores: [] } }));
      }
      result.value[child.id] += values[at];
      if (result.before) result.before[child.id] += befores[at];
      add(child.parts, places[at], values[at], befores[at]);
    }
    for (const child of found.values()) {
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
function callers(parent, { places, values, befores }) {
  const found = new Map();
  const result = { places: [], values: [], befores: [] };
  for (let at = 0; at < places.length; at += 1) {
    const caller = parent[places[at]];
    if (caller < 0) continue;
    const known = found.get(caller);
    if (known === undefined) {
      found.set(caller, result.places.length);
      add(result, caller, values[at], befores[at]);
    } else {
      result.values[known] += values[at];
      result.befores[known] += befores[at];
    }
  }
  return result;
}

/** Functions with their self and total values. A recursive function counts once in its total. */
export function functions(nodes, names) {
  const { children, roots } = childrenOf(nodes);
  const rows = new Map();
  const open = new Map();
  const row = (name) => {
    let found = rows.get(name);
    if (!found) rows.set(name, (found = { name: names[name], self: 0, total: 0, before: 0 }));
    return found;
  };
  const work = roots.map((id) => [id, true]);
  while (work.length) {
    const [id, isEntry] = work.pop();
    const name = nodes.name[id];
    const depth = open.get(name) ?? 0;
    if (!isEntry) {
      open.set(name, depth - 1);
      continue;
    }
    const one = row(name);
    one.self += nodes.self[id];
    if (depth === 0) {
      one.total += nodes.value[id];
      one.before += nodes.before?.[id] ?? 0;
    }
    open.set(name, depth + 1);
    work.push([id, false]);
    for (const child of children[id] ?? []) work.push([child, true]);
  }
  return [...rows.values()];
}
