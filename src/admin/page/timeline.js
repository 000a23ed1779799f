// A trace in the form that Perfetto and chrome://tracing open: "Trace Event Format", complete events in microseconds.

/**
 * The lanes of spans, for each the number of its own: in a lane a span is within the one before it, or behind it. `spans` in the order of
 * the answer: callers before what they called.
 */
export function lanesOf(spans) {
	const lanes = [];
	return spans.map((span) => {
		const [start, end] = [span.start_ns ?? 0, (span.start_ns ?? 0) + (span.duration_ns ?? 0)];
		let lane = lanes.findIndex((open) => {
			while (open.length && open.at(-1) <= start) open.pop();
			return !open.length || end <= open.at(-1);
		});
		if (lane < 0) lane = lanes.push([]) - 1;
		lanes[lane].push(end);
		return lane;
	});
}

/** For each span the first row below that of its caller in which nothing else is at its time. `spans` as above. */
export function freeRows(spans, start, stop) {
	const rows = [];
	const found = [];
	spans.forEach((span, id) => {
		for (let row = span.parent === null ? 0 : found[span.parent] + 1; ; row += 1) {
			const taken = rows[row] ??= [];
			let [low, high] = [0, taken.length];
			while (low < high) {
				const middle = (low + high) >> 1;
				if (stop(taken[middle]) <= start(id)) low = middle + 1;
				else high = middle;
			}
			if (low < taken.length && start(taken[low]) < stop(id)) continue;
			taken.splice(low, 0, id);
			found.push(row);
			return;
		}
	});
	return found;
}

/** The spans of a trace by service. Those without a start are left out: the format has no place for them. */
export function traceEvents({ trace, spans }) {
	const events = [];
	const services = [...new Set(spans.map((span) => span.service ?? ""))];
	services.forEach((service, pid) => {
		events.push({ name: "process_name", ph: "M", pid, args: { name: service || "(no service)" } });
		const own = spans.filter((span) => (span.service ?? "") === service && span.start_ns !== null);
		const lanes = lanesOf(own);
		own.forEach((span, at) => events.push({
			name: span.name,
			cat: span.kind ?? "span",
			ph: "X",
			ts: span.start_ns / 1000,
			dur: (span.duration_ns ?? 0) / 1000,
			pid,
			tid: lanes[at],
			args: { detail: span.detail, status: span.status, message: span.status_message, span_id: span.span_id, thread: span.thread, agent: span.agent },
		}));
	});
	return { displayTimeUnit: "ns", otherData: { trace_id: trace.trace_id, start_ms: trace.start_ms }, traceEvents: events };
}
