//! Bundles and events → the events and names of `docs/event-model.md`.

use tributary_codec::gvariant::Slice;
use tributary_event::{
    EventBuilder, Header, MetricData, MetricType, Name, Number, Position, Resource, ResourceValue, Severity,
    Temporality, UnixNanos, Value, hex, semconv,
};
use tributary_protocol::Output;

use super::image;
use super::payload::{Payload, PayloadBuffers};
use super::period::draft_bounds;
use super::registry::{self, RegisteredEvent, uuid};
use super::texts::BundleTexts;
use super::wire::{Aggregate, BundleHead, BundleLayout, Clocks, EventHead, UploadVersion, When, site_entry};

/// The agent's calendar clock is plausible if it is at most this far ahead of ours (rule 10).
const MAX_AHEAD_NANOS: i128 = 1_000_000_000;
/// The agent's calendar clock is plausible if it is at most this far behind ours (rule 10).
const MAX_BEHIND_NANOS: i128 = 600 * 1_000_000_000;

/// Converts times of the agent's monotonic clock into calendar times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeline {
    /// The moment at which the agent's monotonic clock was 0, in nanoseconds since 1970, by the agent's calendar clock.
    /// Exact; may be far outside the calendar. `None`: the bundle has no clocks.
    origin: Option<i128>,
    /// Added to `origin` where our clock replaces the agent's calendar clock.
    correction: Option<i128>,
}

/// The time of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Time {
    /// The event time, if the event model can represent it: from 1970 to 2554.
    unix: Option<UnixNanos>,
    /// The time by the agent's own clocks in nanoseconds since 1970, where `unix` is `None` and 64 bits can represent it.
    out_of_range: Option<i64>,
    /// Whether `unix` is based on our clock.
    is_received: bool,
}

impl Time {
    /// A time in nanoseconds since 1970 by the agent's clocks, and one by our clock where that replaces them.
    fn new(own: Option<i128>, received: Option<i128>) -> Self {
        let unix = received.or(own).and_then(|nanos| u64::try_from(nanos).ok()).map(UnixNanos);
        Time {
            unix,
            out_of_range: own.filter(|_| unix.is_none()).and_then(|nanos| i64::try_from(nanos).ok()),
            is_received: received.is_some() && unix.is_some(),
        }
    }

    /// A time that needs no mark.
    fn known(unix: Option<UnixNanos>) -> Self {
        Time { unix, ..Time::default() }
    }
}

impl Timeline {
    /// The timeline of a bundle that was received at `received` (rules 9 and 10).
    pub(super) fn new(clocks: Option<Clocks>, layout: BundleLayout, received: UnixNanos) -> Self {
        let Some(Clocks { relative, absolute }) = clocks else { return Timeline { origin: None, correction: None } };
        let (received, absolute) = (i128::from(received.0), i128::from(absolute));
        let is_plausible = (-MAX_AHEAD_NANOS..=MAX_BEHIND_NANOS).contains(&(received - absolute));
        let is_corrected = layout == BundleLayout::V3 && !is_plausible;
        Timeline {
            origin: Some(absolute - i128::from(relative)),
            correction: is_corrected.then_some(received - absolute),
        }
    }

    /// The time of an event, from its time on the agent's monotonic clock. The sums cannot overflow: each is of less than
    /// eight 64-bit numbers.
    fn time(&self, relative: i64) -> Time {
        let Some(origin) = self.origin else { return Time::default() };
        let own = origin + i128::from(relative);
        Time::new(Some(own), self.correction.map(|correction| own + correction))
    }
}

/// What all events of a bundle have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct BundleContext {
    pub(super) layout: BundleLayout,
    pub(super) timeline: Timeline,
    /// When the request was received.
    pub(super) received: UnixNanos,
    /// The request's number on its connection.
    pub(super) request: u64,
}

impl BundleContext {
    pub(super) fn position(&self, slice: Slice<'_>) -> Position {
        Position { sequence: Some(self.request), offset: slice.offset() as u64, length: slice.len() as u64 }
    }

    fn header(&self, name: Name, time: Time, slice: Slice<'_>) -> Header {
        Header { name: name.into(), time: time.unix, observed: self.received, position: self.position(slice) }
    }
}

/// A payload, as far as it can be shown.
#[derive(Debug)]
pub(super) enum Shown<'a> {
    /// The event has none.
    Absent,
    /// It was read.
    Read(Payload<'a>),
    /// It cannot be read: its raw bytes.
    Raw(&'a [u8]),
    /// It is over `max_payload_bytes`.
    Omitted,
}

/// Writes events of a bundle.
pub(super) struct Writer<'a> {
    pub(super) context: &'a BundleContext,
    pub(super) buffers: &'a mut PayloadBuffers,
    pub(super) texts: &'a mut BundleTexts,
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
        let body = self.payload(&mut event, shown, known, false);
        self.marks(&mut event, shown, None, time);
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
                (start, Time::known(end), Some(text))
            }
            When::Started(length, start) => {
                letter = char::from(length).to_string();
                let (start, end) = draft_bounds(length, start).unzip();
                let start = start.and_then(|start| u64::try_from(start).ok()).map(UnixNanos);
                (start, Time::new(end, None), Some(letter.as_str()))
            }
        };
        let mut event = out.batch.event(context.header(semconv::ENDLESS_AGGREGATE, time, slice));
        self.head(&mut event, head, known);
        if let Some(period) = period {
            let period = self.texts.period(period, event.batch());
            event.attribute(semconv::ENDLESS_PERIOD, period);
        }
        if let Some(payload) = self.payload(&mut event, shown, known, false) {
            event.attribute(semconv::ENDLESS_PAYLOAD, payload);
        }
        self.marks(&mut event, shown, None, time);
        // Monotonic in no version, so that the metric has one shape: counts of versions 0 to 2 may be negative.
        event.metric(MetricData {
            metric_type: MetricType::Sum { temporality: Temporality::Delta, monotonic: false },
            unit: "".into(),
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
        // The end of a sequence has no payload.
        let is_end = element.length > 1 && element.index + 1 == element.length;
        let body = self.payload(&mut event, shown, known, is_end);
        self.marks(&mut event, shown, Some(element), time);
        event.log(Severity::Info, body);
    }

    fn head(&mut self, event: &mut EventBuilder<'_>, head: &EventHead<'_>, known: Option<&RegisteredEvent>) {
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

    /// Writes the attributes of a payload, and returns its value.
    fn payload(
        &mut self,
        event: &mut EventBuilder<'_>,
        shown: &Shown<'_>,
        known: Option<&'static RegisteredEvent>,
        may_be_absent: bool,
    ) -> Option<Value> {
        let Writer { context, buffers, texts } = self;
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
            // The payload is missing although the registry expects one (rule 16).
            if let Some(shape) = shape.filter(|shape| !may_be_absent && shape.fields(None).is_none()) {
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
                let members = buffers.fields(payload, fields, texts, event.batch());
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

    /// Writes what is missing, and the marks of the time.
    fn marks(&mut self, event: &mut EventBuilder<'_>, shown: &Shown<'_>, element: Option<Element>, time: Time) {
        let lacks_payload = matches!(shown, Shown::Raw(_) | Shown::Omitted);
        let lacks_end = element.is_some_and(|element| element.length < 2);
        let missing = [lacks_payload.then_some("payload"), lacks_end.then_some("sequence")];
        event.incomplete(missing.into_iter().flatten());
        if let Some(nanos) = time.out_of_range {
            event.attribute(semconv::ENDLESS_TIME_UNIX_NANOS, nanos);
        }
        if time.is_received {
            let received = self.texts.received(event.batch());
            event.attribute(semconv::TIME_BASIS, received);
        }
    }
}

/// One element of a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    /// Its time on the agent's monotonic clock.
    pub(super) relative: i64,
    /// Its index, from 0.
    pub(super) index: u64,
    /// The number of elements in the sequence.
    pub(super) length: u64,
}

/// The registry's entry for an event. A missing entry is counted as a warning; it is no loss.
fn lookup(head: &EventHead<'_>, out: &mut Output) -> Option<&'static RegisteredEvent> {
    let known = registry::known(head.id);
    if known.is_none() {
        out.warn("unknown_event");
    }
    known
}

/// The sender of a bundle.
pub(super) fn resource(head: &BundleHead<'_>, version: UploadVersion, layout: BundleLayout) -> Resource {
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
    // The last of repeated keys wins, also where its value is empty (rule 18).
    let last: std::collections::HashMap<_, _> = values.iter().copied().collect();
    for (key, value) in values {
        if !value.is_empty() && last.get(key).is_some_and(|last| !last.is_empty()) {
            attributes.push((semconv::ENDLESS_SITE.as_str().to_owned() + key, value.into()));
        }
    }
    Resource::new(attributes)
}

/// The version as shown in events.
pub(super) fn version_text(version: UploadVersion, layout: BundleLayout) -> &'static str {
    match layout {
        BundleLayout::V3Draft => "3-draft",
        _ => version.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_clock_is_used_from_one_second_ahead_to_ten_minutes_behind() {
        let received = UnixNanos(1_700_000_000_000_000_000);
        let is_received = |layout, gap: i64| {
            let absolute = received.0 as i64 - gap;
            Timeline::new(Some(Clocks { relative: 0, absolute }), layout, received).correction.is_some()
        };
        for (gap, expected) in [
            (-1_000_000_001, true),
            (-1_000_000_000, false),
            (0, false),
            (600_000_000_000, false),
            (600_000_000_001, true),
        ] {
            assert_eq!(is_received(BundleLayout::V3, gap), expected, "{gap}");
            assert!(!is_received(BundleLayout::V2, gap), "rule 10: only version 3");
        }
    }

    #[test]
    fn times_outside_1970_to_2554_are_kept_as_signed_numbers_and_nothing_overflows() {
        let clocks = |relative, absolute| Some(Clocks { relative, absolute });
        let time = |clocks, relative| {
            let time = Timeline::new(clocks, BundleLayout::V2, UnixNanos(0)).time(relative);
            assert!(!time.is_received);
            (time.unix.map(|unix| unix.0), time.out_of_range)
        };
        assert_eq!(time(clocks(-5, 10), 3), (Some(18), None));
        assert_eq!(time(clocks(10, 5), 0), (None, Some(-5)));
        assert_eq!(time(clocks(0, i64::MIN), 0), (None, Some(i64::MIN)));
        assert_eq!(time(clocks(i64::MAX, i64::MAX), i64::MAX), (Some(i64::MAX as u64), None));
        assert_eq!(time(clocks(0, i64::MAX), i64::MAX), (Some(u64::MAX - 1), None));
        assert_eq!(time(clocks(i64::MIN, i64::MAX), i64::MAX), (None, None), "beyond 64 bits");
        assert_eq!(time(clocks(i64::MAX, i64::MIN), i64::MIN), (None, None), "beyond 64 bits");
        assert_eq!(time(None, 0), (None, None));
    }

    #[test]
    fn a_null_time_is_never_marked_as_received() {
        let received = UnixNanos(1_000);
        // The agent's clock says 1933; the event is older than the receive time in nanoseconds since 1970.
        let absolute = -1_152_000_000_000_000_000;
        let timeline = Timeline::new(Some(Clocks { relative: 5_000, absolute }), BundleLayout::V3, received);
        let time = timeline.time(4_500);
        assert_eq!((time.unix, time.is_received), (Some(UnixNanos(500)), true));
        let time = timeline.time(3_999);
        assert_eq!((time.unix, time.out_of_range, time.is_received), (None, Some(absolute - 1_001), false));
    }
}
