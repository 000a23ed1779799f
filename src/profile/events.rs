//! Extracts the items of profiles from events.

use std::borrow::Cow;

use super::coverage::{CoveredMethod, MethodLines as SourceLines, RunEvidence};
use super::heap_fields::HeapFields;
use super::{Call, CallStep, Clock, Counted, ProfileFrame, ProfileItem, ProfileSample, ProfileSpan, SampleKind, Site};
use tributary_event::{
    AgentFacts, Batch, DataView, EventView, KeyView, Name, Number, SampleClock, SampleView, SpanData, UnixNanos,
    ValueView, semconv as names,
};

/// Samples whose types are those of their profiler.
const DATADOG_SAMPLE: &str = names::DATADOG_PROFILE_SAMPLE.as_str();
const OTLP_SAMPLE: &str = names::OTLP_PROFILE_SAMPLE.as_str();
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
    batch.events().filter_map(|event| item(event).ok().flatten())
}

/// The process of an event in words, different for different processes, as in the items.
pub fn agent(event: EventView<'_>) -> String {
    let origin = event.origin();
    AgentFacts::of(event.resource().attributes()).in_words(origin.protocol, &origin.listener, &origin.peer)
}

/// Whether events of this kind and name can be items.
pub fn is_wanted(kind: &str, name: &str) -> bool {
    match kind {
        "sample" | "span" => true,
        "loss" => name == BREAK,
        "log" => [HEAP_OBJECT, HEAP_DUMP, ENTRY, EXIT, BUBBLED, COVERED, MAPPED, LOCATION, VISIT].contains(&name),
        _ => false,
    }
}

/// The item of an event, if it is one.
///
/// # Errors
/// The event lacks what events of its name have.
#[expect(clippy::result_unit_err, reason = "there is nothing to tell but that the event is skipped")]
pub fn item(event: EventView<'_>) -> Result<Option<ProfileItem<'_>>, ()> {
    item_with(event, &|| agent(event).into())
}

/// The same, with an empty agent.
///
/// # Errors
/// Those of [`item`].
#[expect(clippy::result_unit_err, reason = "there is nothing to tell but that the event is skipped")]
pub fn item_of_known_agent(event: EventView<'_>) -> Result<Option<ProfileItem<'_>>, ()> {
    item_with(event, &|| Cow::Borrowed(""))
}

/// The item of a span, with an empty agent.
#[inline]
pub fn span_of_known_agent<'a>(event: EventView<'a>, data: &SpanData) -> ProfileSpan<'a> {
    span(event, data, &|| Cow::Borrowed(""))
}

fn item_with<'a>(event: EventView<'a>, agent: &dyn Fn() -> Cow<'a, str>) -> Result<Option<ProfileItem<'a>>, ()> {
    match event.data() {
        DataView::Span(view) => Ok(Some(ProfileItem::Span(span(event, &view, agent)))),
        DataView::Sample(view) => Ok(sample(event, view, agent).map(ProfileItem::Sample)),
        _ if is_wanted(event.kind().as_str(), event.name().text()) => log(event, agent),
        _ => Ok(None),
    }
}

fn sample<'a>(
    event: EventView<'a>,
    view: SampleView<'a>,
    agent: &dyn Fn() -> Cow<'a, str>,
) -> Option<ProfileSample<'a>> {
    let counted = match event.name().text() {
        DATADOG_SAMPLE | OTLP_SAMPLE => Counted::Profiled(SampleKind::of(view.sample_type(), view.unit())?),
        _ => Counted::OWN.into_iter().find(|counted| counted.sample_type() == view.sample_type())?,
    };
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
    let Attributes { heap, thread, interval_ms, is_incomplete, .. } = Attributes::of(event);
    Some(ProfileSample {
        counted,
        value,
        frames: frames.collect(),
        site: heap.site(),
        class: heap.class.map(Into::into),
        agent: agent(),
        thread: thread.map(Into::into),
        time: time(event),
        covers: interval_ms.map(|millis| millis.saturating_mul(1_000_000)),
        period: view.data.period_nanos,
        clock,
        is_incomplete,
        dump: heap.dump.map(|_| heap.identity(event)),
    })
}

#[inline]
fn span<'a>(event: EventView<'a>, span: &SpanData, agent: &dyn Fn() -> Cow<'a, str>) -> ProfileSpan<'a> {
    let (mut thread, mut detail) = (None, None);
    for member in event.attribute_members() {
        match own_name(member.key()) {
            Some(names::THREAD_NAME) => thread = member.value().as_text(),
            Some(names::DATADOG_RESOURCE) => detail = member.value().as_text(),
            _ => {}
        }
    }
    ProfileSpan {
        agent: agent(),
        thread: thread.map(Into::into),
        trace: u128::from_be_bytes(span.trace_id.0),
        id: u64::from_be_bytes(span.span_id.0),
        parent: span.parent.map(|parent| u64::from_be_bytes(parent.0)),
        name: event.name().text().into(),
        detail: detail.map(Into::into),
        start: time(event),
        duration: span.duration_nanos,
    }
}

/// The item of a log, or of the loss that is a break.
fn log<'a>(event: EventView<'a>, agent: &dyn Fn() -> Cow<'a, str>) -> Result<Option<ProfileItem<'a>>, ()> {
    let Attributes {
        heap, thread, thread_id, function, method, descriptor, relative_ms, number, line_end, threw, ..
    } = Attributes::of(event);
    let function = function.map(Cow::Borrowed);
    Ok(Some(match event.name().text() {
        HEAP_DUMP => {
            heap.dump.ok_or(())?;
            ProfileItem::DumpEnd(heap.identity(event))
        }
        HEAP_OBJECT => {
            heap.dump.and(heap.id).ok_or(())?;
            ProfileItem::Object(heap.object(heap.identity(event)))
        }
        BREAK => {
            let (sequence, at) = (number.ok_or(())? as u32, time(event));
            ProfileItem::Call(Call { agent: agent(), step: CallStep::Break, sequence, at, ..Call::default() })
        }
        name @ (COVERED | MAPPED) => ProfileItem::Method(CoveredMethod {
            agent: agent(),
            id: method,
            function: function.ok_or(())?,
            descriptor: descriptor.map(Into::into),
            runs: u64::from(name == COVERED),
            evidence: RunEvidence::Method,
        }),
        name @ (LOCATION | VISIT) => {
            let Some(first) = heap.line else { return Ok(None) };
            let (method, lines) = (method.ok_or(())?, (first, line_end.unwrap_or(first)));
            ProfileItem::Lines(SourceLines { agent: agent(), method, lines, is_run: name == VISIT })
        }
        name => ProfileItem::Call(Call {
            agent: agent(),
            thread_id: thread_id.ok_or(())?,
            thread: thread.map(Into::into),
            function: function.or_else(|| method.map(|method| format!("method#{method}").into())).ok_or(())?,
            method,
            step: if name == ENTRY { CallStep::Entry } else { CallStep::Exit },
            has_failed: threw || name == BUBBLED,
            time: relative_ms.ok_or(())? as u32,
            sequence: event.position().sequence.ok_or(())? as u32,
            at: time(event),
        }),
    }))
}

fn time(event: EventView<'_>) -> Option<u64> {
    event.time().map(|UnixNanos(time)| time)
}

/// A key that we name. Some tracers of Datadog send the name of a thread as an attribute of their own.
#[inline]
fn own_name(key: KeyView<'_>) -> Option<Name> {
    match key {
        KeyView::Name(name) => Some(name),
        KeyView::Text(_) => key.is(names::THREAD_NAME).then_some(names::THREAD_NAME),
    }
}

/// The attributes that items are made of.
#[derive(Default)]
struct Attributes<'a> {
    heap: HeapFields<'a>,
    thread: Option<&'a str>,
    thread_id: Option<u64>,
    function: Option<&'a str>,
    method: Option<u64>,
    descriptor: Option<&'a str>,
    relative_ms: Option<u64>,
    detail: Option<&'a str>,
    /// The number of the event before which others were dropped.
    number: Option<u64>,
    line_end: Option<u64>,
    threw: bool,
    interval_ms: Option<u64>,
    is_incomplete: bool,
}

impl<'a> Attributes<'a> {
    fn of(event: EventView<'a>) -> Self {
        let mut known = Attributes::default();
        for member in event.attribute_members() {
            let Some(name) = own_name(member.key()) else { continue };
            let value = member.value();
            match name {
                _ if known.heap.set(name, value) => {}
                names::THREAD_NAME => known.thread = value.as_text(),
                names::THREAD_ID => known.thread_id = value.as_u64(),
                names::CODE_FUNCTION_NAME => known.function = value.as_text(),
                names::BYTEFROG_METHOD_ID => known.method = value.as_u64(),
                names::BYTEFROG_METHOD_DESCRIPTOR => known.descriptor = value.as_text(),
                names::BYTEFROG_TIME_RELATIVE_MS => known.relative_ms = value.as_u64(),
                names::DATADOG_RESOURCE => known.detail = value.as_text(),
                names::BYTEFROG_SEQUENCE => known.number = value.as_u64(),
                names::BYTEFROG_LINE_END => known.line_end = value.as_u64(),
                names::BYTEFROG_EXIT_THREW => known.threw = matches!(value, ValueView::Bool(true)),
                names::BYTEFROG_PROFILE_DURATION_MS | names::ZICO_PROFILE_DURATION_MS => {
                    known.interval_ms = value.as_u64();
                }
                names::INCOMPLETE => known.is_incomplete = true,
                _ => {}
            }
        }
        known
    }
}
