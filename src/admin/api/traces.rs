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
    DataView, EventView, Kind, LinkView, Resource, SpanData, SpanEventView, SpanKind, SpanView, Status, TraceId,
    ValueView, semconv,
};
use tributary_profile::events;
use tributary_sink_view::Class;
use tributary_sink_view::store::KeptBatch;

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
    services: Vec<String>,
    is_complete: bool,
}

#[derive(Serialize)]
struct TraceList<'a, T> {
    window: Window,
    coverage: Coverage,
    traces: T,
    total: usize,
    services: BTreeSet<&'a str>,
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

/// What is shown of a trace beside its sums.
struct Detail<'a> {
    /// The place of the span that stands for the trace: its root, else a span without a parent, else any.
    root: (&'a KeptBatch, usize),
    rank: Rank,
    /// The span and its parent.
    spans: Vec<([u8; 8], Option<[u8; 8]>)>,
    services: BTreeSet<&'a str>,
}

/// A span without a parent is a better root than one with, and of these the one that began first.
type Rank = (bool, u64, u64, usize);

/// Memory of the sums of a trace, and of the rest.
const SUMS_BYTES: usize = 2 * size_of::<(TraceId, TraceSums)>();
const DETAIL_BYTES: usize = 2 * size_of::<(TraceId, Detail<'_>)>() + 256;
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

    // The latest spans first: when there is no memory for more traces, older ones are left out.
    let spans = || {
        snapshot.batches.iter().rev().flat_map(|(_, kept)| {
            kept.batch.events().enumerate().filter_map(move |(index, event)| match event.data() {
                DataView::Span(span) => Some((kept, index, event, span)),
                _ => None,
            })
        })
    };
    let mut sums: HashMap<TraceId, TraceSums, RandomState> = HashMap::default();
    let (mut services, mut is_cut) = (BTreeSet::new(), false);
    // It is free again before the others are shown.
    let memory = ResponseMemory::new(context.memory.left());
    for (kept, _, event, span) in spans() {
        if !sums.contains_key(&span.trace_id) && !memory.take(SUMS_BYTES) {
            is_cut = true;
            continue;
        }
        let service = service(event);
        if services.len() < MAX_ALL_SERVICES {
            services.insert(service);
        }
        sums.entry(span.trace_id).or_default().add(&filter, kept, event, &span);
    }
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
    let mut details: HashMap<TraceId, Option<Detail<'_>>, RandomState> =
        found.iter().map(|(id, _)| (*id, None)).collect();
    for (kept, index, event, span) in spans() {
        if let Some(detail) = details.get_mut(&span.trace_id) {
            context.memory.require(SPAN_BYTES)?;
            Detail::add(detail, kept, index, event, span);
        }
    }
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

impl<'a> Detail<'a> {
    fn add(detail: &mut Option<Self>, kept: &'a KeptBatch, index: usize, event: EventView<'a>, span: SpanView<'a>) {
        let start = event.time().map_or(u64::MAX, |at| at.0);
        let (root, rank) = ((kept, index), (span.parent.is_some(), start, kept.number, index));
        let detail = detail.get_or_insert_with(|| Detail { root, rank, spans: Vec::new(), services: BTreeSet::new() });
        detail.spans.push((span.span_id.0, span.parent.map(|parent| parent.0)));
        if rank < detail.rank {
            (detail.root, detail.rank) = (root, rank);
        }
        if detail.services.len() < MAX_SERVICES {
            detail.services.insert(service(event));
        }
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

fn shown(trace_id: TraceId, sums: &TraceSums, of: &Detail<'_>) -> TraceSummary {
    let (kept, index) = of.root;
    let root = kept.batch.events().nth(index);
    let spans: std::collections::HashSet<[u8; 8]> = of.spans.iter().map(|(id, _)| *id).collect();
    let text = |of: Option<&str>| of.map(|text| cut(text).to_owned());
    TraceSummary {
        trace_id: trace_id.to_string(),
        protocol: kept.batch.origin().map_or("", |origin| origin.protocol),
        listener: kept.batch.origin().map_or_else(String::new, |origin| origin.listener.to_string()),
        service: root.map_or_else(String::new, |root| service(root).to_owned()),
        name: root.map_or_else(String::new, |root| cut(root.name().text()).to_owned()),
        detail: text(root.and_then(detail)),
        start_ms: sums.start.map(|start| start / 1_000_000),
        duration_ns: sums.duration(),
        spans: sums.spans,
        errors: sums.errors,
        services: of.services.iter().map(|service| (*service).to_owned()).collect(),
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
    let (mut found, mut logs) = (Vec::new(), Vec::new());
    let no_filter = TraceFilter::default();
    let (mut sums, mut of_trace) = (TraceSums::default(), None);
    let (mut spans_kept, mut is_cut) = (0, false);
    for (class, kept) in &snapshot.batches {
        spans_kept += if *class == Class::Spans { kept.batch.len() as u64 } else { 0 };
        for (index, event) in kept.batch.events().enumerate() {
            match event.data() {
                DataView::Span(span) if span.trace_id == wanted => {
                    sums.add(&no_filter, kept, event, &span);
                    context.memory.require(SPAN_BYTES)?;
                    Detail::add(&mut of_trace, kept, index, event, span);
                    is_cut |= found.len() >= limit;
                    if !is_cut {
                        context.memory.require(FOUND_BYTES)?;
                        found.push(FoundSpan { kept, index, event, span });
                    }
                }
                DataView::Log { context: Some(context), .. } if context.trace_id == wanted && logs.len() < MAX_LOGS => {
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
