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

/** The same stacks from their ends: roots are the functions in which the time was spent, children their callers. */
export function invert(nodes) {
  const size = nodes.parent.length;
  const names = 1 + nodes.name.reduce((most, name) => Math.max(most, name), 0);
  const found = new Map();
  const result = { name: [], parent: [], value: [], self: [], before: nodes.before ? [] : undefined };
  const selfBefore = nodes.before && Float64Array.from(nodes.before);
  if (selfBefore) {
    for (let id = 0; id < size; id += 1) if (nodes.parent[id] >= 0) selfBefore[nodes.parent[id]] -= nodes.before[id];
  }
  for (let id = 0; id < size; id += 1) {
    const [self, before] = [nodes.self[id], selfBefore ? selfBefore[id] : 0];
    if (!(self > 0) && !(before > 0)) continue;
    let above = -1;
    for (let caller = id; caller >= 0; caller = nodes.parent[caller]) {
      const key = (above + 1) * names + nodes.name[caller];
      let node = found.get(key);
      if (node === undefined) {
        node = result.name.push(nodes.name[caller]) - 1;
        result.parent.push(above);
        result.value.push(0);
        result.self.push(0);
        result.before?.push(0);
        found.set(key, node);
      }
      result.value[node] += self;
      if (above < 0) result.self[node] += self;
      if (result.before) result.before[node] += before;
      above = node;
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
