//! One trace with its spans and logs.

use std::cell::RefCell;
use std::fmt::Write;
use std::sync::Arc;

use super::super::events::id;
use super::*;
use tributary_event::{Batch, LinkView, Resource, SpanEventView, SpanKind};
use tributary_profile::events;
use tributary_sink_view::Snapshot;

/// Logs of a trace.
const MAX_LOGS: usize = 1000;
/// The most links of a span that are shown.
const MAX_LINKS: usize = 32;

#[derive(Serialize)]
struct TraceDetails<S> {
    window: Window,
    coverage: Coverage,
    trace: TraceSummary,
    spans: S,
    logs: Vec<Log>,
    is_java_calls: bool,
    is_cut: bool,
}

#[derive(Serialize)]
struct ShownSpan {
    id: String,
    span_id: String,
    parent: Option<usize>,
    depth: u32,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    service: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<String>,
    agent: String,
    start_ns: Option<u64>,
    duration_ns: Option<u64>,
    self_ns: Option<u64>,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_message: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    incomplete: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<ShownLink>,
}

/// A span that another one is related to.
#[derive(Serialize)]
struct ShownLink {
    trace_id: String,
    span_id: String,
}

impl ShownLink {
    fn of(link: LinkView<'_>) -> ShownLink {
        ShownLink { trace_id: link.to.trace_id.to_string(), span_id: link.to.span_id.to_string() }
    }
}

#[derive(Serialize)]
struct Log {
    id: String,
    span: Option<usize>,
    at_ns: Option<u64>,
    name: String,
    severity: &'static str,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stacktrace: Option<String>,
}

/// Memory of a span with its place, and of its places among the others while they are put in order.
const FOUND_BYTES: usize = size_of::<FoundSpan<'_>>() + 200;

/// A span with its place.
struct FoundSpan<'a> {
    kept: &'a KeptBatch,
    index: usize,
    event: EventView<'a>,
    span: SpanView<'a>,
}

/// `GET /traces/ID`.
pub(in super::super) fn get(context: &ApiContext, trace_id: &str) -> Result<Made, ApiError> {
    context.query.only(&["limit", "download"])?;
    let limit = context.query.limit(10_000, 100_000)?;
    let wanted = parse(trace_id).ok_or_else(|| bad("the id of a trace has 32 hexadecimal digits"))?;
    let window = Window::whole(context)?;
    let snapshot = snapshot(context, window, &[Class::Spans, Class::Logs, Class::Calls], |_, _| true)?;
    let parts = parts_of(context, &snapshot, wanted)?;
    let (mut found, mut logs) = (Vec::new(), Vec::new());
    let no_filter = TraceFilter::default();
    let (mut sums, mut of_trace) = (TraceSums::default(), None);
    let mut is_cut = false;
    for part in &parts {
        let kept = part.kept;
        for (index, event) in part.events() {
            match event.data() {
                DataView::Span(span) => {
                    sums.add(&no_filter, kept, event, &span);
                    Detail::add(&mut of_trace, kept, index, event, span, &context.memory)?;
                    is_cut |= found.len() >= limit;
                    if !is_cut {
                        context.memory.require(FOUND_BYTES)?;
                        found.push(FoundSpan { kept, index, event, span });
                    }
                }
                DataView::Log { context: Some(context), .. } if logs.len() < MAX_LOGS => {
                    logs.push((kept, index, event, context.span_id));
                }
                _ => {}
            }
        }
    }
    let of_trace = of_trace.ok_or_else(|| ApiError::gone("trace"))?;
    let trace = shown(wanted, &sums, &of_trace);
    let start = sums.start.unwrap_or(0);
    let order = order(&found);
    let mut places: HashMap<[u8; 8], usize, RandomState> = HashMap::default();
    for (place, (at, ..)) in order.iter().enumerate() {
        places.entry(found[*at].span.span_id.0).or_insert(place);
    }
    let agents = RefCell::new(None);
    let spans = Lazy(|| order.iter().map(|node| shown_span(&found[node.0], *node, start, &mut agents.borrow_mut())));
    let logs = logs.into_iter().map(|(kept, index, event, span)| {
        let span = span.and_then(|span| places.get(&span.0).copied());
        shown_log(kept, index, event, span, start)
    });
    let of_spans = snapshot.batches.iter().filter(|(class, _)| *class == Class::Spans);
    let spans_kept = of_spans.map(|(_, kept)| kept.len() as u64).sum();
    let coverage = Coverage::of(context, window, &[Kind::Span], |_, _| true, spans_kept);
    let is_java_calls = trace.protocol == "bytefrog";
    let happened = order.iter().enumerate().flat_map(|(place, node)| {
        let of_span = &found[node.0];
        of_span.span.events().map(move |event| shown_span_event(of_span, event, place, start))
    });
    let logs = logs.chain(happened).take(MAX_LOGS).collect();
    let one = TraceDetails { window, coverage, trace, spans, logs, is_java_calls, is_cut };
    let file = context.query.is_set("download").then(|| format!("trace-{trace_id}.json"));
    Ok(context.json(&one)?.named(file))
}

/// The events of a trace in a kept batch.
struct BatchPart<'a> {
    kept: &'a KeptBatch,
    /// Their places there.
    places: Vec<usize>,
    /// The whole batch, or a copy of these events.
    batch: Arc<Batch>,
    is_copy: bool,
}

impl BatchPart<'_> {
    /// Each event after its place in the kept batch.
    fn events(&self) -> impl Iterator<Item = (usize, EventView<'_>)> {
        let mut places = self.places.iter().copied();
        let mut next = places.next();
        let events = self.batch.events().enumerate();
        events.filter_map(move |(at, event)| {
            let place = next.filter(|place| self.is_copy || *place == at)?;
            next = places.next();
            Some((place, event))
        })
    }
}

/// The spans and logs of a trace.
fn parts_of<'a>(context: &ApiContext, snapshot: &'a Snapshot, wanted: TraceId) -> Result<Vec<BatchPart<'a>>, ApiError> {
    let mut parts = Vec::new();
    for (_, kept) in snapshot.batches.iter().filter(|(_, kept)| kept.may_have(wanted)) {
        let batch = kept.batch();
        let is_wanted = |event: EventView<'_>| match event.data() {
            DataView::Span(span) => span.trace_id == wanted,
            DataView::Log { context: Some(context), .. } => context.trace_id == wanted,
            _ => false,
        };
        let places: Vec<usize> =
            batch.events().enumerate().filter(|(_, event)| is_wanted(*event)).map(|(place, _)| place).collect();
        if !places.is_empty() {
            // A batch that is not packed is there anyway.
            let is_copy = kept.is_packed();
            let batch = if is_copy { copy(&batch, &places).into() } else { batch };
            let bytes = if is_copy { batch.memory_bytes() } else { 0 };
            context.memory.require(bytes + size_of::<BatchPart<'_>>() + places.capacity() * size_of::<usize>())?;
            parts.push(BatchPart { kept, places, batch, is_copy });
        }
    }
    Ok(parts)
}

fn copy(batch: &Batch, places: &[usize]) -> Batch {
    let mut copy = batch.copy_of(|place| places.binary_search(&place).is_ok());
    copy.shrink();
    copy
}

/// The place of a span: its index, the place of its parent, its depth, and the time of its children.
type SpanNode = (usize, Option<usize>, u32, u64);

/// The spans with callers before callees and siblings by their start.
fn order(found: &[FoundSpan<'_>]) -> Vec<SpanNode> {
    let mut by_id: HashMap<[u8; 8], usize, RandomState> = HashMap::default();
    for (at, found) in found.iter().enumerate() {
        by_id.entry(found.span.span_id.0).or_insert(at);
    }
    let parent = |at: usize| {
        let parent = found[at].span.parent?;
        by_id.get(&parent.0).copied().filter(|parent| *parent != at)
    };
    let mut children: HashMap<usize, Vec<usize>, RandomState> = HashMap::default();
    let mut within = vec![0u64; found.len()];
    let mut roots = Vec::new();
    for (at, one) in found.iter().enumerate() {
        match parent(at) {
            Some(parent) => {
                children.entry(parent).or_default().push(at);
                within[parent] = within[parent].saturating_add(one.span.duration_nanos.unwrap_or(0));
            }
            None => roots.push(at),
        }
    }
    let start = |at: &usize| found[*at].event.time().map_or(u64::MAX, |at| at.0);
    roots.sort_by_key(start);
    children.values_mut().for_each(|siblings| siblings.sort_by_key(start));
    let mut is_placed = vec![false; found.len()];
    let mut order: Vec<SpanNode> = Vec::with_capacity(found.len());
    // Spans that are their own ancestors have no root: the first of them is taken as one.
    for root in roots.into_iter().chain(0..found.len()) {
        let mut waiting = vec![(root, None, 0)];
        while let Some((at, parent, depth)) = waiting.pop() {
            if std::mem::replace(&mut is_placed[at], true) {
                continue;
            }
            let place = order.len();
            order.push((at, parent, depth, within[at]));
            let callees = children.get(&at).into_iter().flatten().rev();
            waiting.extend(callees.map(|callee| (*callee, Some(place), depth + 1)));
        }
    }
    order
}

fn shown_span(
    found: &FoundSpan<'_>,
    (_, parent, depth, within): SpanNode,
    start: u64,
    agents: &mut Option<(Arc<Resource>, String)>,
) -> ShownSpan {
    let FoundSpan { kept, index, event, span } = found;
    let agent = match agents {
        Some((known, agent)) if Arc::ptr_eq(known, event.resource()) => agent.clone(),
        _ => {
            let agent = events::agent(*event);
            *agents = Some((event.resource().clone(), agent.clone()));
            agent
        }
    };
    let text = |name| event.text_of(name).map(|text| cut(text).to_owned());
    let incomplete = event.attributes().find(|(key, _)| key.text() == semconv::INCOMPLETE.as_str());
    let incomplete = match incomplete {
        Some((_, ValueView::Array(fields))) => {
            let field = |field| if let ValueView::Text(text) = field { Some(text.text().to_owned()) } else { None };
            fields.filter_map(field).take(16).collect()
        }
        _ => Vec::new(),
    };
    ShownSpan {
        id: id(kept, *index),
        span_id: span.span_id.to_string(),
        parent,
        depth,
        name: cut(event.name().text()).to_owned(),
        detail: detail(*event).map(|text| cut(text).to_owned()),
        service: service(*event).to_owned(),
        thread: text(semconv::THREAD_NAME),
        agent,
        start_ns: event.time().map(|at| at.0.saturating_sub(start)),
        duration_ns: span.duration_nanos,
        self_ns: span.duration_nanos.map(|duration| duration.saturating_sub(within)),
        status: match span.status {
            Status::Unset => "unset",
            Status::Ok => "ok",
            Status::Error => "error",
        },
        status_message: span.status_message().map(|message| cut(message.text()).to_owned()),
        incomplete,
        kind: span.kind.or_else(|| event.text_of(semconv::SPAN_KIND).and_then(SpanKind::of)).map(SpanKind::as_str),
        links: span.links().take(MAX_LINKS).map(ShownLink::of).collect(),
    }
}

/// What happened during a span, as a log of that span.
fn shown_span_event(of: &FoundSpan<'_>, event: SpanEventView<'_>, place: usize, start: u64) -> Log {
    let parts = [semconv::EXCEPTION_TYPE, semconv::EXCEPTION_MESSAGE];
    let parts: Vec<_> = parts.iter().filter_map(|name| event.attributes.text_of(*name)).map(cut).collect();
    Log {
        id: id(of.kept, of.index),
        span: Some(place),
        at_ns: event.time.map(|at| at.0.saturating_sub(start)),
        name: cut(event.name.text()).to_owned(),
        severity: if parts.is_empty() { "INFO" } else { "ERROR" },
        text: parts.join(": "),
        stacktrace: event.attributes.text_of(semconv::EXCEPTION_STACKTRACE).map(|text| cut(text).to_owned()),
    }
}

fn shown_log(kept: &KeptBatch, index: usize, event: EventView<'_>, span: Option<usize>, start: u64) -> Log {
    let (severity, body) = match event.data() {
        DataView::Log { severity, body: Some(ValueView::Text(body)), .. } => (severity.as_str(), Some(body.text())),
        DataView::Log { severity, .. } => (severity.as_str(), None),
        _ => ("INFO", None),
    };
    let parts = [semconv::EXCEPTION_TYPE, semconv::EXCEPTION_MESSAGE, semconv::CODE_FUNCTION_NAME];
    let parts = parts.iter().filter_map(|name| event.text_of(*name));
    let mut text = String::new();
    for part in parts.chain(body) {
        // Writing to a String does not fail.
        let _ = write!(text, "{}{}", if text.is_empty() { "" } else { ": " }, cut(part));
    }
    let stacktrace = event.text_of(semconv::EXCEPTION_STACKTRACE);
    Log {
        id: id(kept, index),
        span,
        at_ns: event.time().map(|at| at.0.saturating_sub(start)),
        name: event.name().text().to_owned(),
        severity,
        text,
        stacktrace: stacktrace.map(|text| text[..text.floor_char_boundary(64 << 10)].to_owned()),
    }
}

fn parse(text: &str) -> Option<TraceId> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(|number| TraceId(number.to_be_bytes()))
}
