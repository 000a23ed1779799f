//! Extracts the items of profiles from events: from batches, and from event files as the JSON encoder writes them.

mod file;

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::coverage::{CoveredMethod, MethodLines as SourceLines, RunEvidence};
use super::{
    Call, CallStep, Clock, Counted, DumpIdentity, HeapObject, ProfileFrame, ProfileItem, ProfileSample, ProfileSpan,
    Site,
};
pub use file::{EventFile, LineCounts, item};
use tributary_event::{
    AgentFacts, Batch, DataView, EventView, Number, SampleClock, SampleView, UnixNanos, ValueView, semconv as names,
};

const HEAP_OBJECT: &str = names::RBKIT_HEAP_OBJECT.as_str();
const HEAP_DUMP: &str = names::RBKIT_HEAP_DUMP.as_str();
const ENTRY: &str = names::BYTEFROG_METHOD_ENTRY.as_str();
const EXIT: &str = names::BYTEFROG_METHOD_EXIT.as_str();
const BUBBLED: &str = names::BYTEFROG_EXCEPTION_BUBBLED.as_str();
const BREAK: &str = names::BYTEFROG_DATA_BREAK.as_str();
const COVERED: &str = names::BYTEFROG_METHOD_COVERED.as_str();
const MAPPED: &str = names::BYTEFROG_METHOD_MAPPED.as_str();
const LOCATION: &str = names::BYTEFROG_SOURCE_LOCATION_MAPPED.as_str();
const VISIT: &str = names::BYTEFROG_METHOD_VISIT.as_str();

/// The items of a batch, in its order.
pub fn items(batch: &Batch) -> impl Iterator<Item = ProfileItem<'_>> {
    batch.events().filter_map(|event| {
        let name = event.name().text();
        if !is_wanted(event.kind().as_str(), name) {
            return None;
        }
        let data = match event.data() {
            DataView::Sample(view) => PartsData::Sample(sample(view)),
            DataView::Span(span) => PartsData::Span(SpanParts {
                trace: u128::from_be_bytes(span.trace_id.0),
                id: u64::from_be_bytes(span.span_id.0),
                parent: span.parent.map(|parent| u64::from_be_bytes(parent.0)),
                duration: span.duration_nanos,
            }),
            _ => PartsData::Log,
        };
        let origin = event.origin();
        let facts = AgentFacts::of(event.resource().attributes());
        let time = event.time().map(|UnixNanos(time)| time);
        let agent = facts.in_words(origin.protocol, &origin.listener, &origin.peer);
        let attributes = attributes(event);
        let (peer, connection, sequence) = (Cow::Borrowed(&*origin.peer), origin.connection, event.position().sequence);
        let pid = facts.pid;
        Parts { name: name.into(), time, data, attributes, agent, peer, connection, pid, sequence }
            .item()
            .ok()
            .flatten()
    })
}

/// The process of an event in words, different for different processes, as in the items.
pub fn agent(event: EventView<'_>) -> String {
    let origin = event.origin();
    AgentFacts::of(event.resource().attributes()).in_words(origin.protocol, &origin.listener, &origin.peer)
}

/// Whether events of this kind and name are items.
fn is_wanted(kind: &str, name: &str) -> bool {
    match kind {
        "sample" | "span" => true,
        "loss" => name == BREAK,
        "log" => [HEAP_OBJECT, HEAP_DUMP, ENTRY, EXIT, BUBBLED, COVERED, MAPPED, LOCATION, VISIT].contains(&name),
        _ => false,
    }
}

/// The parts of an event that items are made of.
struct Parts<'a> {
    name: Cow<'a, str>,
    time: Option<u64>,
    data: PartsData<'a>,
    attributes: Attributes<'a>,
    agent: String,
    peer: Cow<'a, str>,
    connection: u64,
    pid: Option<u64>,
    sequence: Option<u64>,
}

enum PartsData<'a> {
    Sample(SampleParts<'a>),
    Span(SpanParts),
    Log,
}

struct SampleParts<'a> {
    sample_type: Cow<'a, str>,
    value: u64,
    frames: Vec<ProfileFrame<'a>>,
    period: Option<u64>,
    clock: Option<Clock>,
}

struct SpanParts {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    duration: Option<u64>,
}

impl<'a> Parts<'a> {
    /// The item. An error: the event lacks what events of its name have.
    fn item(self) -> Result<Option<ProfileItem<'a>>, ()> {
        let Parts { name, time, data, attributes, agent, peer, connection, pid, sequence } = self;
        let Attributes { id, class, references, file, line, size, dump, object_count, .. } = attributes;
        let Attributes {
            thread,
            thread_id,
            function,
            method,
            descriptor,
            relative_ms,
            detail,
            incomplete,
            line_end,
            number,
            interval_ms,
            ..
        } = attributes;
        let (site, agent) = (Site { file, line }, Cow::Owned(agent));
        match data {
            PartsData::Sample(SampleParts { sample_type, value, frames, period, clock }) => {
                let Some(counted) = Counted::ALL.into_iter().find(|it| it.sample_type() == sample_type) else {
                    return Ok(None);
                };
                let is_incomplete = incomplete.is_some();
                let dump = dump.map(|id| DumpIdentity { peer, connection, pid, id, object_count });
                let covers = interval_ms.map(|millis| millis.saturating_mul(1_000_000));
                Ok(Some(ProfileItem::Sample(ProfileSample {
                    counted,
                    value,
                    frames,
                    site,
                    class,
                    agent,
                    thread,
                    time,
                    covers,
                    period,
                    clock,
                    is_incomplete,
                    dump,
                })))
            }
            PartsData::Span(SpanParts { trace, id, parent, duration }) => Ok(Some(ProfileItem::Span(ProfileSpan {
                agent,
                thread,
                trace,
                id,
                parent,
                name,
                detail,
                start: time,
                duration,
            }))),
            PartsData::Log if name == HEAP_DUMP || name == HEAP_OBJECT => {
                let dump = DumpIdentity { peer, connection, pid, id: dump.ok_or(())?, object_count };
                if name == HEAP_DUMP {
                    return Ok(Some(ProfileItem::DumpEnd(dump)));
                }
                let references = references.0;
                Ok(Some(ProfileItem::Object(HeapObject { dump, id: id.ok_or(())?, class, site, size, references })))
            }
            PartsData::Log if name == BREAK => {
                let (sequence, at) = (number.ok_or(())? as u32, time);
                Ok(Some(ProfileItem::Call(Call { agent, step: CallStep::Break, sequence, at, ..Call::default() })))
            }
            PartsData::Log if name == COVERED || name == MAPPED => {
                let function = function.ok_or(())?;
                let runs = u64::from(name == COVERED);
                Ok(Some(ProfileItem::Method(CoveredMethod {
                    agent,
                    id: method,
                    function,
                    descriptor,
                    runs,
                    evidence: RunEvidence::Method,
                })))
            }
            PartsData::Log if name == LOCATION || name == VISIT => {
                let Some(first) = site.line else { return Ok(None) };
                let (method, lines) = (method.ok_or(())?, (first, line_end.unwrap_or(first)));
                Ok(Some(ProfileItem::Lines(SourceLines { agent, method, lines, is_run: name == VISIT })))
            }
            PartsData::Log => {
                let unknown = || method.map(|method| Cow::Owned(format!("method#{method}")));
                let function = function.or_else(unknown).ok_or(())?;
                let thread_id = thread_id.ok_or(())?;
                let step = if name == ENTRY { CallStep::Entry } else { CallStep::Exit };
                let (time, at) = (relative_ms.ok_or(())? as u32, time);
                let sequence = sequence.ok_or(())? as u32;
                Ok(Some(ProfileItem::Call(Call {
                    agent,
                    thread_id,
                    thread,
                    function,
                    method,
                    step,
                    time,
                    sequence,
                    at,
                })))
            }
        }
    }
}

fn sample(view: SampleView<'_>) -> SampleParts<'_> {
    let value = match view.data.value {
        Number::U64(value) => value,
        Number::I64(value) => u64::try_from(value).unwrap_or(0),
        Number::F64(value) => value as u64,
    };
    let frames = view.frames().map(|frame| ProfileFrame {
        function: frame.function.map(|text| text.text().into()),
        site: Site { file: frame.file.map(|text| text.text().into()), line: frame.line },
    });
    let clock = view.data.clock.map(|clock| match clock {
        SampleClock::Cpu => Clock::Cpu,
        SampleClock::Wall => Clock::Wall,
    });
    let sample_type = view.data.sample_type.into();
    SampleParts { sample_type, value, frames: frames.collect(), period: view.data.period_nanos, clock }
}

/// The attributes that items are made of; missing ones are None or 0.
#[derive(Deserialize, Default)]
struct Attributes<'a> {
    #[serde(rename = "rbkit.object.id")]
    id: Option<u64>,
    #[serde(rename = "rbkit.class.name")]
    class: Option<Cow<'a, str>>,
    #[serde(rename = "rbkit.object.references", default)]
    references: Count,
    #[serde(rename = "code.file.path")]
    file: Option<Cow<'a, str>>,
    #[serde(rename = "code.line.number")]
    line: Option<u64>,
    #[serde(rename = "rbkit.object.size")]
    size: Option<u64>,
    #[serde(rename = "rbkit.dump.id")]
    dump: Option<u64>,
    #[serde(rename = "rbkit.dump.object_count")]
    object_count: Option<u64>,
    #[serde(rename = "thread.name")]
    thread: Option<Cow<'a, str>>,
    #[serde(rename = "thread.id")]
    thread_id: Option<u64>,
    #[serde(rename = "code.function.name")]
    function: Option<Cow<'a, str>>,
    #[serde(rename = "bytefrog.method.id")]
    method: Option<u64>,
    #[serde(rename = "bytefrog.method.descriptor")]
    descriptor: Option<Cow<'a, str>>,
    #[serde(rename = "bytefrog.time.relative_ms")]
    relative_ms: Option<u64>,
    #[serde(rename = "datadog.resource")]
    detail: Option<Cow<'a, str>>,
    #[serde(rename = "bytefrog.sequence")]
    number: Option<u64>,
    #[serde(rename = "bytefrog.line.end")]
    line_end: Option<u64>,
    #[serde(rename = "bytefrog.profile.duration_ms", alias = "zico.profile.duration_ms")]
    interval_ms: Option<u64>,
    #[serde(rename = "tributary.incomplete")]
    incomplete: Option<IgnoredAny>,
}

/// The number of elements of a list. There may be a million, so they are not kept.
#[derive(Default)]
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Count, D::Error> {
        struct Counting;

        impl<'de> Visitor<'de> for Counting {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }
        }

        deserializer.deserialize_seq(Counting)
    }
}

fn attributes(event: EventView<'_>) -> Attributes<'_> {
    let mut known = Attributes::default();
    for (key, value) in event.attributes() {
        let text = || if let ValueView::Text(text) = value { Some(Cow::Borrowed(text.text())) } else { None };
        let number = || match value {
            ValueView::U64(number) => Some(number),
            ValueView::I64(number) => u64::try_from(number).ok(),
            _ => None,
        };
        match key.text() {
            "rbkit.object.id" => known.id = number(),
            "rbkit.class.name" => known.class = text(),
            "rbkit.object.references" => {
                if let ValueView::Array(ids) = value {
                    known.references = Count(ids.count() as u64);
                }
            }
            "code.file.path" => known.file = text(),
            "code.line.number" => known.line = number(),
            "rbkit.object.size" => known.size = number(),
            "rbkit.dump.id" => known.dump = number(),
            "rbkit.dump.object_count" => known.object_count = number(),
            "thread.name" => known.thread = text(),
            "thread.id" => known.thread_id = number(),
            "code.function.name" => known.function = text(),
            "bytefrog.method.id" => known.method = number(),
            "bytefrog.method.descriptor" => known.descriptor = text(),
            "bytefrog.time.relative_ms" => known.relative_ms = number(),
            "datadog.resource" => known.detail = text(),
            "bytefrog.sequence" => known.number = number(),
            "bytefrog.line.end" => known.line_end = number(),
            "bytefrog.profile.duration_ms" | "zico.profile.duration_ms" => known.interval_ms = number(),
            "tributary.incomplete" => known.incomplete = Some(IgnoredAny),
            _ => {}
        }
    }
    known
}
