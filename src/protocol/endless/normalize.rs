//! Bundles and events → the events and names of `docs/event-model.md`.

use jiff::civil::Date;
use jiff::{ToSpan, tz::TimeZone};

use crate::codec::gvariant::Slice;
use crate::event::{
    EventBuilder, Header, MetricData, MetricType, Name, Number, Position, Resource, ResourceValue, Severity,
    Temporality, UnixNanos, Value, semconv, write_hex,
};
use crate::protocol::Output;

use super::image;
use super::payload::{Payload, Workroom};
use super::registry::{self, Known, uuid};
use super::texts::Texts;
use super::wire::{Aggregate, BundleHead, Clocks, EventHead, Layout, Version, When, site_entry};

/// The agent's calendar clock is believed when it is at most so far ahead of ours …
const MOST_AHEAD_NANOS: i128 = 1_000_000_000;
/// … or so far behind (rule 10).
const MOST_BEHIND_NANOS: i128 = 600 * 1_000_000_000;

/// Turns the times of a bundle into times of the calendar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeline {
    /// The moment at which the agent's running clock stood at 0, in nanoseconds since 1970. Exact; may be far out.
    origin: Option<i128>,
    /// Whether our clock stands in for the agent's.
    is_received: bool,
}

impl Timeline {
    /// Of a bundle that came in at `received` (rules 9 and 10).
    pub(super) fn new(clocks: Option<Clocks>, layout: Layout, received: UnixNanos) -> Self {
        let Some(Clocks { relative, absolute }) = clocks else { return Timeline { origin: None, is_received: false } };
        let (received, absolute) = (i128::from(received.0), i128::from(absolute));
        let is_plausible = (-MOST_AHEAD_NANOS..=MOST_BEHIND_NANOS).contains(&(received - absolute));
        let is_received = layout == Layout::V3 && !is_plausible;
        let base = if is_received { received } else { absolute };
        Timeline { origin: Some(base - i128::from(relative)), is_received }
    }

    /// When something happened, if that can be said.
    fn time(&self, relative: i64) -> Option<UnixNanos> {
        let nanos = i64::try_from(self.origin?.checked_add(i128::from(relative))?).ok()?;
        u64::try_from(nanos).ok().map(UnixNanos)
    }
}

/// What all events of a bundle share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub(super) layout: Layout,
    pub(super) timeline: Timeline,
    /// When the request was here.
    pub(super) received: UnixNanos,
    /// The request's number on its connection.
    pub(super) request: u64,
}

impl Context {
    pub(super) fn position(&self, slice: Slice<'_>) -> Position {
        Position { sequence: Some(self.request), offset: slice.offset() as u64, length: slice.len() as u64 }
    }

    fn header(&self, name: Name, time: Option<UnixNanos>, slice: Slice<'_>) -> Header {
        Header { name: name.into(), time, observed: self.received, position: self.position(slice) }
    }
}

/// A payload as far as it can be shown.
#[derive(Debug)]
pub(super) enum Shown<'a> {
    /// The event has none.
    Absent,
    /// In order.
    Read(Payload<'a>),
    /// Cannot be read: its raw bytes.
    Raw(&'a [u8]),
    /// Too large to be shown.
    Omitted,
}

/// Writes events of a bundle.
pub(super) struct Writer<'a> {
    pub(super) context: &'a Context,
    /// Where payloads were read.
    pub(super) room: &'a mut Workroom,
    pub(super) texts: &'a mut Texts,
}

impl Writer<'_> {
    /// Writes a singular event.
    pub(super) fn singular(
        &mut self,
        head: &EventHead<'_>,
        relative: i64,
        slice: Slice<'_>,
        shown: &Shown<'_>,
        out: &mut Output,
    ) {
        let context = self.context;
        let known = lookup(head, out);
        let time = context.timeline.time(relative);
        let mut event = out.batch.event(context.header(semconv::ENDLESS_EVENT, time, slice));
        self.head(&mut event, head, known);
        let body = self.payload(&mut event, shown, known);
        self.marks(&mut event, shown, None, context.timeline.is_received);
        event.log(Severity::Info, body);
    }

    /// Writes an aggregate event.
    pub(super) fn aggregate(
        &mut self,
        aggregate: &Aggregate<'_>,
        slice: Slice<'_>,
        shown: &Shown<'_>,
        out: &mut Output,
    ) {
        let context = self.context;
        let head = &aggregate.head;
        let known = lookup(head, out);
        let letter;
        let (start, time, period) = match aggregate.when {
            When::Relative(relative) => (None, context.timeline.time(relative), None),
            When::Period(text) => {
                let (start, end) = self.texts.bounds(text).unzip();
                (start, end, Some(text))
            }
            When::Started(length, start) => {
                letter = char::from(length).to_string();
                let (start, end) = draft_bounds(length, start).unzip();
                (start, end, Some(letter.as_str()))
            }
        };
        let mut event = out.batch.event(context.header(semconv::ENDLESS_AGGREGATE, time, slice));
        self.head(&mut event, head, known);
        if let Some(period) = period {
            let period = self.texts.period(period, event.batch());
            event.attribute(semconv::ENDLESS_PERIOD, period);
        }
        if let Some(payload) = self.payload(&mut event, shown, known) {
            event.attribute(semconv::ENDLESS_PAYLOAD, payload);
        }
        // Only a time that was counted on the agent's running clock depends on ours.
        let is_received = context.timeline.is_received && matches!(aggregate.when, When::Relative(_));
        self.marks(&mut event, shown, None, is_received);
        // Only version 3 cannot count backwards.
        let monotonic = context.layout == Layout::V3;
        event.metric(MetricData {
            metric_type: MetricType::Sum { temporality: Temporality::Delta, monotonic },
            unit: "",
            value: Number::I64(aggregate.count),
            start,
        });
    }

    /// Writes one element of a sequence.
    pub(super) fn element(
        &mut self,
        head: &EventHead<'_>,
        element: Element,
        slice: Slice<'_>,
        shown: &Shown<'_>,
        out: &mut Output,
    ) {
        let context = self.context;
        let known = lookup(head, out);
        let time = context.timeline.time(element.relative);
        let mut event = out.batch.event(context.header(semconv::ENDLESS_SEQUENCE, time, slice));
        self.head(&mut event, head, known);
        event.attribute(semconv::ENDLESS_SEQUENCE_INDEX, element.index);
        event.attribute(semconv::ENDLESS_SEQUENCE_LENGTH, element.length);
        let body = self.payload(&mut event, shown, known);
        self.marks(&mut event, shown, Some(element), context.timeline.is_received);
        event.log(Severity::Info, body);
    }

    fn head(&mut self, event: &mut EventBuilder<'_>, head: &EventHead<'_>, known: Option<&Known>) {
        if let Some(known) = known {
            let run = self.texts.head(known, head.os_version, event.batch());
            event.run(run);
        } else {
            let id = <&[u8; 16]>::try_from(head.id).map_or_else(|_| hex(head.id), uuid);
            event.text(semconv::ENDLESS_EVENT_ID, &id);
            if let Some(version) = head.os_version {
                let version = self.texts.os_version(version, event.batch());
                event.attribute(semconv::OS_VERSION, version);
            }
        }
        if let Some(user) = head.user_id {
            event.attribute(semconv::ENDLESS_USER_ID, u64::from(user));
        }
    }

    /// What there is to say of a payload beside its value, which it answers.
    fn payload(
        &mut self,
        event: &mut EventBuilder<'_>,
        shown: &Shown<'_>,
        known: Option<&'static Known>,
    ) -> Option<Value> {
        let Writer { context, room, texts } = self;
        let shape = known.and_then(|known| known.shape(context.layout.has_users()));
        let payload = match shown {
            Shown::Read(payload) => Some(payload),
            Shown::Absent => None,
            Shown::Omitted => return None,
            Shown::Raw(bytes) => {
                let bytes = event.batch().bytes(bytes);
                event.attribute(semconv::ENDLESS_PAYLOAD_BASE64, bytes);
                return None;
            }
        };
        let Some(payload) = payload else {
            // It may be another version's; so may a payload of another type, which is shown all the same (rule 16).
            if let Some(shape) = shape.filter(|shape| shape.fields(None).is_none()) {
                event.text(semconv::ENDLESS_PAYLOAD_EXPECTED, shape.expected());
            }
            return None;
        };
        let (payload_type, fields) = match known {
            Some(known) => texts.payload_type(known, shape, payload.payload_type, event.batch()),
            None => (event.batch().push_text(str::from_utf8(payload.payload_type).unwrap_or_default()), None),
        };
        event.attribute(semconv::ENDLESS_PAYLOAD_TYPE, payload_type);
        match (shape, fields) {
            (Some(_), Some(fields)) => {
                let members = room.fields(payload, fields, texts, event.batch());
                if !members.is_empty() {
                    let fields = event.batch().map(members);
                    event.attribute(semconv::ENDLESS_FIELDS, fields);
                }
            }
            (Some(shape), None) => event.text(semconv::ENDLESS_PAYLOAD_EXPECTED, shape.expected()),
            (None, _) => {}
        }
        Some(payload.value)
    }

    /// What is missing, and whose clock it is.
    fn marks(&mut self, event: &mut EventBuilder<'_>, shown: &Shown<'_>, element: Option<Element>, is_received: bool) {
        let lacks_payload = matches!(shown, Shown::Raw(_) | Shown::Omitted);
        let lacks_end = element.is_some_and(|element| element.length < 2);
        if lacks_payload || lacks_end {
            let missing = [(lacks_payload, "payload"), (lacks_end, "sequence")];
            let missing: Vec<Value> = missing
                .into_iter()
                .filter(|(is_missing, _)| *is_missing)
                .map(|(_, part)| event.batch().push_text(part).into())
                .collect();
            let missing = event.batch().array(&missing);
            event.attribute(semconv::INCOMPLETE, missing);
        }
        if is_received {
            let received = self.texts.received(event.batch());
            event.attribute(semconv::TIME_BASIS, received);
        }
    }
}

/// Which element of a sequence it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    /// When, on the agent's running clock.
    pub(super) relative: i64,
    /// From 0.
    pub(super) index: u64,
    /// How many elements the sequence has.
    pub(super) length: u64,
}

/// The registry's entry; that there is none is counted, and no loss.
fn lookup(head: &EventHead<'_>, out: &mut Output) -> Option<&'static Known> {
    let known = registry::known(head.id);
    if known.is_none() {
        out.warn("unknown_event");
    }
    known
}

/// Bytes in hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    let _ = write_hex(&mut text, bytes);
    text
}

/// The first moment of a period `YYYY-MM-DD` or `YYYY-MM`, and of the one after it (rule 11).
pub(super) fn bounds(period: &str) -> Option<(UnixNanos, UnixNanos)> {
    let is_form = |form: &str| {
        period.len() == form.len()
            && period.bytes().zip(form.bytes()).all(|(found, wanted)| match wanted {
                b'-' => found == b'-',
                _ => found.is_ascii_digit(),
            })
    };
    let number = |at: std::ops::Range<usize>| period.get(at)?.parse::<i16>().ok();
    let (day, length) = match period.len() {
        10 if is_form("YYYY-MM-DD") => (i8::try_from(number(8..10)?).ok()?, 1.day()),
        7 if is_form("YYYY-MM") => (1, 1.month()),
        _ => return None,
    };
    let first = Date::new(number(0..4)?, i8::try_from(number(5..7)?).ok()?, day).ok()?;
    let next = first.checked_add(length).ok()?;
    Some((midnight(first)?, midnight(next)?))
}

/// The same of a period of the draft: `h`our, `d`ay, `w`eek or `m`onth, from its start on.
fn draft_bounds(length: u8, start: i64) -> Option<(UnixNanos, UnixNanos)> {
    const HOUR: u64 = 3_600_000_000_000;
    let start = u64::try_from(start).ok()?;
    let end = match length {
        b'h' => start.checked_add(HOUR)?,
        b'd' => start.checked_add(24 * HOUR)?,
        b'w' => start.checked_add(7 * 24 * HOUR)?,
        b'm' => {
            let first = jiff::Timestamp::from_nanosecond(i128::from(start)).ok()?.to_zoned(TimeZone::UTC);
            let next = first.checked_add(1.month()).ok()?;
            u64::try_from(next.timestamp().as_nanosecond()).ok()?
        }
        _ => return None,
    };
    Some((UnixNanos(start), UnixNanos(end)))
}

fn midnight(date: Date) -> Option<UnixNanos> {
    let nanos = date.to_zoned(TimeZone::UTC).ok()?.timestamp().as_nanosecond();
    u64::try_from(nanos).ok().map(UnixNanos)
}

/// Who speaks in a bundle.
pub(super) fn resource(head: &BundleHead<'_>, version: Version, layout: Layout) -> Resource {
    let mut attributes: Vec<(String, ResourceValue)> = Vec::new();
    let mut add = |name: Name, value: ResourceValue| attributes.push((name.as_str().to_owned(), value));
    add(semconv::ENDLESS_PROTOCOL_VERSION, version_text(version, layout).into());
    if let Some(id) = head.machine_id {
        add(semconv::ENDLESS_MACHINE_ID, ResourceValue::Text(hex(id)));
    }
    if let Some(number) = head.send_number {
        add(semconv::ENDLESS_SEND_NUMBER, ResourceValue::I64(i64::from(number)));
    }
    let Some(channel) = head.channel else { return Resource::new(attributes) };
    if let Some(text) = image::present(channel.image) {
        add(semconv::ENDLESS_IMAGE, text.into());
        if let Some(image) = image::parse(text) {
            add(semconv::ENDLESS_IMAGE_PRODUCT, image.product.into());
            add(semconv::ENDLESS_IMAGE_BRANCH, image.branch.into());
            add(semconv::ENDLESS_IMAGE_ARCHITECTURE, image.architecture.into());
            add(semconv::ENDLESS_IMAGE_PLATFORM, image.platform.into());
            add(semconv::ENDLESS_IMAGE_BUILT, image.built.as_str().into());
            add(semconv::ENDLESS_IMAGE_PERSONALITY, image.personality.into());
        }
    }
    add(semconv::ENDLESS_DUALBOOT, ResourceValue::Bool(channel.is_dual_boot));
    add(semconv::ENDLESS_LIVE, ResourceValue::Bool(channel.is_live));
    let mut site = channel.site;
    let mut values: Vec<(&str, &str)> = Vec::new();
    while let Ok(Some(entry)) = site.read() {
        values.extend(site_entry(entry).ok());
    }
    // Of a repeated key the last wins, also when that takes the value away (rule 18).
    let last: std::collections::HashMap<_, _> = values.iter().copied().collect();
    for (key, value) in values {
        if !value.is_empty() && last.get(key).is_some_and(|last| !last.is_empty()) {
            attributes.push((semconv::ENDLESS_SITE.as_str().to_owned() + key, value.into()));
        }
    }
    Resource::new(attributes)
}

/// The version as events name it.
pub(super) fn version_text(version: Version, layout: Layout) -> &'static str {
    match layout {
        Layout::V3Draft => "3-draft",
        _ => version.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(text: &str) -> u64 {
        u64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_nanosecond()).unwrap()
    }

    #[test]
    fn a_period_is_a_day_or_a_month_and_nothing_else() {
        let between = |from, to| Some((UnixNanos(nanos(from)), UnixNanos(nanos(to))));
        assert_eq!(bounds("2024-02-28"), between("2024-02-28T00:00:00Z", "2024-02-29T00:00:00Z"));
        assert_eq!(bounds("2024-12"), between("2024-12-01T00:00:00Z", "2025-01-01T00:00:00Z"));
        for text in
            ["2023-02-29", "2024-13", "2024-1-1", "2024-01-1", "+024-01", "2024", "2024-01-01 ", "", "1969-12-31"]
        {
            assert_eq!(bounds(text), None, "{text}");
        }
    }

    #[test]
    fn the_drafts_periods_are_counted_from_their_start() {
        let start = nanos("2024-01-31T10:00:00Z");
        let end = |letter| draft_bounds(letter, start as i64).map(|(_, end)| end.0);
        assert_eq!(end(b'h'), Some(nanos("2024-01-31T11:00:00Z")));
        assert_eq!(end(b'd'), Some(nanos("2024-02-01T10:00:00Z")));
        assert_eq!(end(b'w'), Some(nanos("2024-02-07T10:00:00Z")));
        assert_eq!(end(b'm'), Some(nanos("2024-02-29T10:00:00Z")));
        assert_eq!(end(b'y'), None);
        assert_eq!(draft_bounds(b'd', -1), None);
    }

    #[test]
    fn a_clock_is_believed_from_one_second_ahead_to_ten_minutes_behind() {
        let received = UnixNanos(1_700_000_000_000_000_000);
        let is_received = |layout, gap: i64| {
            let absolute = received.0 as i64 - gap;
            Timeline::new(Some(Clocks { relative: 0, absolute }), layout, received).is_received
        };
        for (gap, expected) in [
            (-1_000_000_001, true),
            (-1_000_000_000, false),
            (0, false),
            (600_000_000_000, false),
            (600_000_000_001, true),
        ] {
            assert_eq!(is_received(Layout::V3, gap), expected, "{gap}");
            assert!(!is_received(Layout::V2, gap), "rule 10: only version 3");
        }
    }

    #[test]
    fn times_beyond_the_calendar_are_unknown_and_nothing_overflows() {
        let clocks = |relative, absolute| Some(Clocks { relative, absolute });
        let time = |clocks, relative| Timeline::new(clocks, Layout::V2, UnixNanos(0)).time(relative);
        assert_eq!(time(clocks(-5, 10), 3), Some(UnixNanos(18)));
        assert_eq!(time(clocks(i64::MIN, i64::MAX), i64::MAX), None);
        assert_eq!(time(clocks(i64::MAX, i64::MIN), i64::MIN), None);
        assert_eq!(time(clocks(i64::MAX, i64::MAX), i64::MAX), Some(UnixNanos(i64::MAX as u64)));
        assert_eq!(time(clocks(10, 5), 0), None, "before 1970");
        assert_eq!(time(None, 0), None);
    }
}
