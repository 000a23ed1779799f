//! Traces: the latest and the slowest, and one with its spans and logs.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use serde::Serialize;

use super::answer::{ApiError, Lazy, Made, ResponseMemory};
use super::context::ApiContext;
use super::coverage::{Coverage, Window, kept, snapshot};
use super::events::id;
use super::query::bad;
use tributary_event::{
    Batch, DataView, EventView, Kind, LinkView, Resource, SpanData, SpanEventView, SpanKind, SpanView, Status, TraceId,
    ValueView, semconv,
};
use tributary_profile::events;
use tributary_sink_view::store::KeptBatch;
use tributary_sink_view::{Class, Snapshot};

/// Services that are named for a trace, and for the list.
const MAX_SERVICES: usize = 50;
/// Services of all traces in the list.
const MAX_ALL_SERVICES: usize = 500;
/// Bytes of a name, a detail or the text of a log; the event has the whole one.
const MAX_TEXT_BYTES: usize = 2048;
/// Logs of a trace.
const MAX_LOGS: usize = 1000;
/// The most links of a span that are shown.
const MAX_LINKS: usize = 32;

#[derive(Serialize)]
struct TraceSummary {
    trace_id: String,
    protocol: &'static str,
    listener: String,
    service: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    start_ms: Option<u64>,
    duration_ns: Option<u64>,
    spans: u64,
    errors: u64,
    services: Names,
    is_complete: bool,
}

#[derive(Serialize)]
struct TraceList<T> {
    window: Window,
    coverage: Coverage,
    traces: T,
    total: usize,
    services: Names,
    is_cut: bool,
}

/// The sums of a trace.
#[derive(Default)]
struct TraceSums {
    start: Option<u64>,
    end: Option<u64>,
    longest: Option<u64>,
    /// The latest batch, which orders traces without times.
    newest: u64,
    spans: u64,
    errors: u64,
    matches: Matches,
}

/// Names, each once.
type Names = BTreeSet<String>;

/// What is shown of a trace beside its sums.
struct Detail {
    /// The span that stands for the trace: its root, else a span without a parent, else any.
    root: Root,
    rank: Rank,
    /// The span and its parent.
    spans: Vec<([u8; 8], Option<[u8; 8]>)>,
    services: Names,
}

/// What is shown of a span that stands for its trace.
#[derive(Default)]
struct Root {
    protocol: &'static str,
    listener: String,
    service: String,
    name: String,
    detail: Option<String>,
}

/// A span without a parent is a better root than one with, and of these the one that began first.
type Rank = (bool, u64, u64, usize);

/// Memory of the sums of a trace, and of the rest.
const SUMS_BYTES: usize = 2 * size_of::<(TraceId, TraceSums)>();
const DETAIL_BYTES: usize = 2 * size_of::<(TraceId, Detail)>() + 256;
const SPAN_BYTES: usize = 2 * size_of::<([u8; 8], Option<[u8; 8]>)>();

/// Which filters a span of the trace matches.
#[derive(Clone, Copy, Default)]
struct Matches {
    name: bool,
    service: bool,
    text: bool,
    /// The wanted attributes that a span has, by their places.
    attributes: u32,
}

#[derive(Default)]
struct TraceFilter<'a> {
    name: Option<String>,
    service: Option<&'a str>,
    text: Option<String>,
    /// Keys and values, as texts.
    attributes: Vec<(&'a str, &'a str)>,
    is_error: bool,
    min_nanos: u64,
    max_nanos: Option<u64>,
}

/// For at most this many traces, batches that have none of them are not read.
const FEW_TRACES: usize = 100;
/// The most attributes that are searched for.
const MAX_ATTRIBUTES: usize = 32;

/// `GET /traces`.
pub(super) fn list(context: &ApiContext) -> Result<Made, ApiError> {
    const PARAMETERS: [&str; 12] = [
        "order",
        "protocol",
        "service",
        "name",
        "text",
        "attribute",
        "status",
        "min_ns",
        "max_ns",
        "from_ms",
        "to_ms",
        "limit",
    ];
    let query = &context.query;
    query.only(&PARAMETERS)?;
    let (order, limit) = (query.choice("order", &["latest", "slowest"])?, query.limit(50, 10_000)?);
    let window = Window::of(context)?;
    let filter = TraceFilter {
        name: query.text("name").map(str::to_lowercase),
        service: query.text("service"),
        text: query.text("text").map(str::to_lowercase),
        is_error: match query.text("status") {
            None => false,
            Some("error") => true,
            Some(other) => return Err(bad(format!("status is {other:?}; it can be error"))),
        },
        attributes: wanted_attributes(context)?,
        min_nanos: query.number("min_ns")?.unwrap_or(0),
        max_nanos: query.number("max_ns")?,
    };
    let protocol = query.text("protocol");
    let is_protocol = |name: &str| protocol.is_none_or(|protocol| protocol == name);
    let snapshot = snapshot(context, window, &[Class::Spans], |name, _| is_protocol(name))?;

    let mut sums: HashMap<TraceId, TraceSums, RandomState> = HashMap::default();
    let (mut services, mut is_cut) = (Names::new(), false);
    // It is free again before the others are shown.
    let memory = ResponseMemory::new(context.memory.left());
    // The latest spans first: when there is no memory for more traces, older ones are left out.
    let latest = || snapshot.batches.iter().rev().map(|(_, kept)| kept);
    for_spans(latest(), |kept, _, event, span| {
        if !sums.contains_key(&span.trace_id) && !memory.take(SUMS_BYTES) {
            is_cut = true;
            return Ok(());
        }
        add_name(&mut services, service(event), MAX_ALL_SERVICES);
        sums.entry(span.trace_id).or_default().add(&filter, kept, event, &span);
        Ok(())
    })?;
    sums.retain(|_, sums| filter.accepts(sums));
    let total = sums.len();
    let mut found: Vec<(TraceId, TraceSums)> = sums.into_iter().collect();
    match order {
        "slowest" => found.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.duration())),
        _ => found.sort_by_key(|(_, sums)| std::cmp::Reverse((sums.start, sums.newest))),
    }
    is_cut |= found.len() > limit;
    found.truncate(limit);
    found.shrink_to_fit();
    context.memory.require(found.len() * (SUMS_BYTES + DETAIL_BYTES))?;
    let mut details: HashMap<TraceId, Option<Detail>, RandomState> = found.iter().map(|(id, _)| (*id, None)).collect();
    let has_few = found.len() <= FEW_TRACES;
    let of_found = latest().filter(|kept| !has_few || found.iter().any(|(id, _)| kept.may_have(*id)));
    for_spans(of_found, |kept, index, event, span| match details.get_mut(&span.trace_id) {
        Some(detail) => Detail::add(detail, kept, index, event, span, &context.memory),
        None => Ok(()),
    })?;
    let shown = |(id, sums): &(TraceId, TraceSums)| Some(shown(*id, sums, details.get(id)?.as_ref()?));
    let traces = Lazy(|| found.iter().filter_map(shown));
    let coverage =
        Coverage::of(context, window, &[Kind::Span], |_, protocol| is_protocol(protocol.as_str()), kept(&snapshot));
    context.json(&TraceList { window, coverage, traces, total, services, is_cut })
}

impl TraceSums {
    fn add(&mut self, filter: &TraceFilter<'_>, kept: &KeptBatch, event: EventView<'_>, span: &SpanData) {
        self.newest = self.newest.max(kept.number);
        self.spans += 1;
        self.errors += u64::from(span.status == Status::Error);
        self.longest = self.longest.max(span.duration_nanos);
        if let Some(start) = event.time().map(|at| at.0) {
            let end = start.saturating_add(span.duration_nanos.unwrap_or(0));
            self.start = Some(self.start.map_or(start, |first| first.min(start)));
            self.end = self.end.max(Some(end));
        }
        let (name, service, matches) = (event.name().text(), service(event), &mut self.matches);
        matches.service |= filter.service.is_none_or(|wanted| wanted == service);
        matches.name |= filter.name.as_ref().is_none_or(|wanted| name.to_lowercase().contains(wanted));
        matches.text = matches.text
            || filter.text.as_ref().is_none_or(|wanted| {
                let has = |text: &str| text.to_lowercase().contains(wanted);
                has(name)
                    || has(service)
                    || detail(event).is_some_and(has)
                    || span.trace_id.to_string().contains(wanted)
            });
        for (place, (key, value)) in filter.attributes.iter().enumerate() {
            matches.attributes |= u32::from(has_attribute(event, key, value)) << place;
        }
    }

    /// From the first start to the last end; without times the longest duration. `None`: no span has one.
    fn duration(&self) -> Option<u64> {
        let longest = self.longest?;
        match (self.start, self.end) {
            (Some(start), Some(end)) => Some(longest.max(end - start)),
            _ => Some(longest),
        }
    }
}

/// Passes the spans of batches to `take`, each with its batch and its place there.
fn for_spans<'a>(
    batches: impl Iterator<Item = &'a KeptBatch>,
    mut take: impl FnMut(&KeptBatch, usize, EventView<'_>, SpanView<'_>) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    for kept in batches {
        let batch = kept.batch();
        for (index, event) in batch.events().enumerate() {
            if let DataView::Span(span) = event.data() {
                take(kept, index, event, span)?;
            }
        }
    }
    Ok(())
}

/// Adds a name, if there are less than `most`; returns whether it is a new one.
fn add_name(names: &mut Names, name: &str, most: usize) -> bool {
    names.len() < most && !names.contains(name) && names.insert(name.to_owned())
}

impl Detail {
    fn add(
        detail: &mut Option<Self>,
        kept: &KeptBatch,
        index: usize,
        event: EventView<'_>,
        span: SpanView<'_>,
        memory: &ResponseMemory,
    ) -> Result<(), ApiError> {
        let start = event.time().map_or(u64::MAX, |at| at.0);
        let rank = (span.parent.is_some(), start, kept.number, index);
        let detail = detail.get_or_insert_with(|| Detail {
            root: Root::default(),
            rank: (true, u64::MAX, u64::MAX, usize::MAX),
            spans: Vec::new(),
            services: Names::new(),
        });
        memory.require(SPAN_BYTES)?;
        detail.spans.push((span.span_id.0, span.parent.map(|parent| parent.0)));
        let service = service(event);
        if add_name(&mut detail.services, service, MAX_SERVICES) {
            memory.require(size_of::<String>() + service.len())?;
        }
        if rank < detail.rank {
            (detail.root, detail.rank) = (Root::of(event), rank);
            memory.require(detail.root.text_bytes())?;
        }
        Ok(())
    }
}

impl Root {
    fn of(event: EventView<'_>) -> Root {
        let origin = event.origin();
        Root {
            protocol: origin.protocol,
            listener: origin.listener.to_string(),
            service: service(event).to_owned(),
            name: cut(event.name().text()).to_owned(),
            detail: detail(event).map(|text| cut(text).to_owned()),
        }
    }

    fn text_bytes(&self) -> usize {
        let detail = self.detail.as_ref().map_or(0, String::len);
        self.listener.len() + self.service.len() + self.name.len() + detail
    }
}

impl TraceFilter<'_> {
    fn accepts(&self, sums: &TraceSums) -> bool {
        let Matches { name, service, text, attributes } = sums.matches;
        let has_all = attributes.count_ones() as usize == self.attributes.len();
        let is_any = self.min_nanos == 0 && self.max_nanos.is_none();
        let range = self.min_nanos..=self.max_nanos.unwrap_or(u64::MAX);
        let is_long = is_any || sums.duration().is_some_and(|duration| range.contains(&duration));
        has_all && name && service && text && is_long && (!self.is_error || sums.errors > 0)
    }
}

fn shown(trace_id: TraceId, sums: &TraceSums, of: &Detail) -> TraceSummary {
    let root = &of.root;
    let spans: std::collections::HashSet<[u8; 8]> = of.spans.iter().map(|(id, _)| *id).collect();
    TraceSummary {
        trace_id: trace_id.to_string(),
        protocol: root.protocol,
        listener: root.listener.clone(),
        service: root.service.clone(),
        name: root.name.clone(),
        detail: root.detail.clone(),
        start_ms: sums.start.map(|start| start / 1_000_000),
        duration_ns: sums.duration(),
        spans: sums.spans,
        errors: sums.errors,
        services: of.services.clone(),
        is_complete: of.spans.iter().all(|(_, parent)| parent.is_none_or(|parent| spans.contains(&parent))),
    }
}

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
pub(super) fn one(context: &ApiContext, trace_id: &str) -> Result<Made, ApiError> {
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

/// The service of a span; empty: it has none.
fn service(event: EventView<'_>) -> &str {
    event.service().unwrap_or("")
}

/// The attributes that are searched for, each as `key=value`.
fn wanted_attributes(context: &ApiContext) -> Result<Vec<(&str, &str)>, ApiError> {
    let wanted = context
        .query
        .all("attribute")
        .map(|text| text.split_once('=').ok_or_else(|| bad(format!("attribute is {text:?}; it must be key=value"))));
    let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
    if wanted.len() > MAX_ATTRIBUTES {
        return Err(bad(format!("there are more than {MAX_ATTRIBUTES} attributes")));
    }
    Ok(wanted)
}

/// Whether an event or its resource has an attribute with this value, as text or as a number.
fn has_attribute(event: EventView<'_>, key: &str, wanted: &str) -> bool {
    let is_it = |value: ValueView<'_>| match value {
        ValueView::Text(text) => text.text() == wanted,
        ValueView::Bool(value) => value.to_string() == wanted,
        ValueView::I64(value) => value.to_string() == wanted,
        ValueView::U64(value) => value.to_string() == wanted,
        ValueView::F64(value) => wanted.parse() == Ok(value),
        _ => false,
    };
    event.attributes().any(|(name, value)| name.text() == key && is_it(value))
        || event.resource().attributes().iter().any(|(name, value)| name == key && is_it(value.view()))
}

/// What a span worked on.
fn detail(event: EventView<'_>) -> Option<&str> {
    let detail = event.text_of(semconv::DATADOG_RESOURCE)?;
    (!detail.is_empty() && detail != event.name().text()).then_some(detail)
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

fn parse(text: &str) -> Option<TraceId> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(|number| TraceId(number.to_be_bytes()))
}
