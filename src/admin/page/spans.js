// Spans of traces: the critical path of one trace, and the spans of two traces matched with each other.
//
// Spans stand in the order of the timeline: `parent` is the place of the caller, which stands before what it called.

const startOf = (span) => span.start_ns ?? null;
const endOf = (span) => span.start_ns + (span.duration_ns ?? 0);

function childrenOf(spans) {
	const children = Array.from(spans, () => []);
	const roots = [];
	spans.forEach((span, at) => (span.parent === null ? roots : children[span.parent]).push(at));
	return { children, roots };
}

/**
 * The critical path: at each moment the span that the end of the longest root waits for. Pieces `{ span, from, to }` in nanoseconds, in
 * no order; they do not overlap. What a span starts and does not wait for is not on it.
 */
export function criticalPath(spans) {
	const { children, roots } = childrenOf(spans);
	const timed = roots.filter((at) => startOf(spans[at]) !== null);
	if (!timed.length) return [];
	const root = timed.reduce((best, at) => (spans[at].duration_ns ?? 0) > (spans[best].duration_ns ?? 0) ? at : best);
	const pieces = [];
	const work = [[root, spans[root].start_ns, endOf(spans[root])]];
	while (work.length) {
		const [at, from, to] = work.pop();
		const called = children[at].filter((child) => startOf(spans[child]) !== null && spans[child].duration_ns > 0);
		called.sort((a, b) => endOf(spans[b]) - endOf(spans[a]));
		let until = to;
		for (const child of called) {
			const [start, end] = [Math.max(from, spans[child].start_ns), Math.min(to, endOf(spans[child]))];
			// One that ends later than this moment overlaps with the span that is waited for.
			if (end > until || end <= start) continue;
			if (end < until) pieces.push({ span: at, from: end, to: until });
			work.push([child, start, end]);
			until = start;
		}
		if (from < until) pieces.push({ span: at, from, to: until });
	}
	return pieces;
}

/**
 * The spans of two traces, matched by service, operation and path: below callers that match, in their order, first those that have the same
 * detail. Rows in the order of the timeline: `{ depth, a, b }`, places in `first` and `second`; `null`: only the other trace has it.
 */
export function matched(first, second) {
	const [one, two] = [childrenOf(first), childrenOf(second)];
	const rows = [];
	const work = [[one.roots, two.roots, 0]];
	const pending = [];
	const push = (a, b, depth) => pending.push({ a, b, depth });
	while (work.length) {
		const next = work.pop();
		if (!Array.isArray(next)) {
			rows.push(next);
			work.push([next.a === null ? [] : one.children[next.a], next.b === null ? [] : two.children[next.b], next.depth + 1]);
			continue;
		}
		const [left, right, depth] = next;
		const partner = new Map();
		const taken = new Set();
		for (const key of [(span) => [span.service, span.name, span.detail], (span) => [span.service, span.name]]) {
			const waiting = new Map();
			for (const b of right) {
				if (taken.has(b)) continue;
				const text = JSON.stringify(key(second[b]));
				waiting.set(text, [...(waiting.get(text) ?? []), b]);
			}
			for (const list of waiting.values()) list.reverse();
			for (const a of left) {
				const found = partner.has(a) ? undefined : waiting.get(JSON.stringify(key(first[a])))?.pop();
				if (found === undefined) continue;
				partner.set(a, found);
				taken.add(found);
			}
		}
		// Additional ones stand where they began: before the first match that follows them.
		let at = 0;
		for (const a of left) {
			const b = partner.get(a) ?? null;
			if (b !== null) for (; at < right.length && right[at] <= b; at += 1) if (!taken.has(right[at])) push(null, right[at], depth);
			push(a, b, depth);
		}
		for (; at < right.length; at += 1) if (!taken.has(right[at])) push(null, right[at], depth);
		while (pending.length) work.push(pending.pop());
	}
	return rows;
}
