//! Traces: the latest and the slowest.

pub(super) mod one;

use std::collections::BTreeSet;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use serde::Serialize;

use super::answer::{ApiError, Lazy, Made, ResponseMemory};
use super::context::ApiContext;
use super::coverage::{Coverage, Window, kept, snapshot};
use super::query::bad;
use tributary_event::{DataView, EventView, Kind, SpanData, SpanView, Status, TraceId, ValueView, semconv};
use tributary_sink_view::Class;
use tributary_sink_view::store::KeptBatch;

/// Services that are named for a trace, and for the list.
const MAX_SERVICES: usize = 50;
/// Services of all traces in the list.
const MAX_ALL_SERVICES: usize = 500;
/// Bytes of a name, a detail or the text of a log; the event has the whole one.
const MAX_TEXT_BYTES: usize = 2048;

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
    services: ServiceNames,
    is_complete: bool,
}

#[derive(Serialize)]
struct TraceList<T> {
    window: Window,
    coverage: Coverage,
    traces: T,
    total: usize,
    services: ServiceNames,
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

/// Names of services, each once.
type ServiceNames = BTreeSet<String>;

/// What is shown of a trace beside its sums.
struct Detail {
    /// The span that stands for the trace: its root, else a span without a parent, else any.
    root: Root,
    rank: Rank,
    /// The span and its parent.
    spans: Vec<([u8; 8], Option<[u8; 8]>)>,
    services: ServiceNames,
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
    let (mut services, mut is_cut) = (ServiceNames::new(), false);
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
fn add_name(names: &mut ServiceNames, name: &str, most: usize) -> bool {
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
            services: ServiceNames::new(),
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
