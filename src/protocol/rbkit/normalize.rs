//! Turns decoded messages into events, as listed in `docs/event-model.md`.

use tributary_codec::msgpack::MsgpackValue as Wire;
use tributary_codec::text::repair;
use tributary_event::{
    BatchBuilder, EventBuilder, Frame, Header, InternedRun, Key, Loss, MetricData, MetricType, Name, Number, Position,
    Reason, SampleClock, SampleData, Severity, Temporality, UnixNanos, Value, semconv as names,
};
use tributary_protocol::{Now, Output};

use super::handshake::Handshake;
use super::texts::TextCache;
use super::wire::{DumpObject, StackFrame};

/// The place of a message, or of a part of it, in the stream; and when it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamPosition {
    /// The counter of the message.
    pub(super) sequence: Option<u64>,
    /// Offset of its first byte since the start of the connection.
    pub(super) offset: u64,
    /// Its length in bytes.
    pub(super) length: u64,
    /// When it was read.
    pub(super) now: Now,
}

impl StreamPosition {
    /// Begins an event. `time` is the peer's, in milliseconds since the epoch; if it is missing or not a valid time, the
    /// event has the receive time and is marked so (rule 20).
    fn event<'a>(&self, out: &'a mut Output, name: Name, time: Option<f64>) -> EventBuilder<'a> {
        let time = time.and_then(nanos);
        let mut event = out.batch.event(Header { time: Some(time.unwrap_or(self.now.unix)), ..self.header(name) });
        if time.is_none() {
            event.text(names::TIME_BASIS, names::TIME_BASIS_RECEIVED);
        }
        event
    }

    fn header(&self, name: Name) -> Header {
        let position = Position { sequence: self.sequence, offset: self.offset, length: self.length };
        Header::observed_at(name, self.now.unix, position)
    }
}

/// Milliseconds since the epoch as nanoseconds; None if it is not a valid time.
fn nanos(millis: f64) -> Option<UnixNanos> {
    const LAST: f64 = (u64::MAX / 1_000_000) as f64;
    if !(0.0..LAST).contains(&millis) {
        return None;
    }
    // Agents send whole milliseconds, which stay exact.
    let (whole, part) = (millis.trunc(), millis.fract());
    Some(UnixNanos(whole as u64 * 1_000_000 + (part * 1e6).round() as u64))
}

/// A phase of a garbage collection.
pub(super) fn gc_phase(out: &mut Output, name: Name, time: Option<f64>, place: StreamPosition) {
    place.event(out, name, time).log(Severity::Info, None);
}

/// An event about an agent that has no message of its own: a restart, or a change of its health.
pub(super) fn agent_event(out: &mut Output, name: Name, severity: Severity, body: Option<&str>, place: StreamPosition) {
    let mut event = place.event(out, name, None);
    let body = body.map(|body| event.batch().push_text(body).into());
    event.log(severity, body);
}

/// A handshake reply.
pub(super) fn handshake(out: &mut Output, handshake: &Handshake, time: Option<f64>, place: StreamPosition) {
    let mut event = place.event(out, names::RBKIT_HANDSHAKE, time);
    let flags =
        [(names::RBKIT_MEMORY_PROFILE, handshake.memory_profile), (names::RBKIT_CPU_PROFILE, handshake.cpu_profile)];
    for (name, flag) in flags {
        if let Some(flag) = flag {
            event.attribute(name, flag);
        }
    }
    let texts = [(names::RBKIT_CPU_PROFILE_CLOCK, &handshake.clock), (names::RBKIT_CPU_PROFILE_MODE, &handshake.mode)];
    for (name, text) in texts {
        if let Some(text) = text {
            event.text(name, text);
        }
    }
    mark_repaired(&mut event, handshake.is_repaired);
    event.log(Severity::Info, None);
}

/// An object that was created or destroyed.
pub(super) fn object(
    out: &mut Output,
    name: Name,
    (id, class): (u64, Option<&[u8]>),
    time: Option<f64>,
    texts: &mut TextCache,
    place: StreamPosition,
) {
    let mut event = place.event(out, name, time);
    event.attribute(names::RBKIT_OBJECT_ID, id);
    let mut repaired = false;
    add_text(&mut event, names::RBKIT_CLASS_NAME, class, texts, &mut repaired);
    mark_repaired(&mut event, repaired);
    event.log(Severity::Info, None);
}

/// The dump that an object belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct DumpOf {
    pub(super) id: u64,
    /// Objects of the whole dump, if known.
    pub(super) objects: Option<u64>,
    pub(super) time: Option<f64>,
}

/// An object of a heap dump. `references` are the first of its references, up to the limit. `run` is where the batch has
/// the attributes that all objects of the dump share.
pub(super) fn heap_object(
    out: &mut Output,
    object: &DumpObject<'_>,
    references: &[Value],
    (dump, run): (DumpOf, &mut InternedRun),
    texts: &mut TextCache,
    place: StreamPosition,
) {
    let mut event = place.event(out, names::RBKIT_HEAP_OBJECT, dump.time);
    event.attribute(names::RBKIT_OBJECT_ID, object.id.unwrap_or_default());
    let (mut repaired, mut is_incomplete) = (false, false);
    add_text(&mut event, names::RBKIT_CLASS_NAME, object.class, texts, &mut repaired);
    if let Some(list) = object.references {
        is_incomplete = references.len() < list.count as usize;
        let list = event.batch().array(references);
        event.attribute(names::RBKIT_OBJECT_REFERENCES, list);
    }
    add_text(&mut event, names::CODE_FILE_PATH, object.file, texts, &mut repaired);
    add_number(&mut event, names::CODE_LINE_NUMBER, known_line(object.line));
    add_number(&mut event, names::RBKIT_OBJECT_SIZE, object.size);
    let id = (names::RBKIT_DUMP_ID.into(), dump.id.into());
    let run = match dump.objects {
        Some(count) => event.batch().intern_run(run, |_| [id, (names::RBKIT_DUMP_OBJECT_COUNT.into(), count.into())]),
        None => event.batch().intern_run(run, |_| [id]),
    };
    event.run(run);
    mark_repaired(&mut event, repaired);
    if is_incomplete {
        event.incomplete(["references"]);
    }
    event.log(Severity::Info, None);
}

/// A complete heap dump.
pub(super) fn dump_complete(out: &mut Output, dump: DumpOf, place: StreamPosition) {
    let mut event = place.event(out, names::RBKIT_HEAP_DUMP, dump.time);
    event.attribute(names::RBKIT_DUMP_ID, dump.id);
    add_number(&mut event, names::RBKIT_DUMP_OBJECT_COUNT, dump.objects);
    event.log(Severity::Info, None);
}

/// A heap dump that lacks objects.
pub(super) fn dump_incomplete(out: &mut Output, dump: DumpOf, missing: u64, why: &str, place: StreamPosition) {
    let count = dump.objects.unwrap_or_default();
    let detail = format!("{missing} of the {count} objects of heap dump {} are missing: {why}", dump.id);
    gap(out, Some(missing), &detail, &[(names::RBKIT_DUMP_ID.into(), dump.id.into())], place);
}

/// A metric of the objects of a class in an interval.
pub(super) fn objects(
    out: &mut Output,
    (name, data): (Name, MetricData),
    class: Option<&[u8]>,
    incomplete: Option<&str>,
    texts: &mut TextCache,
    place: StreamPosition,
) {
    let mut event = place.event(out, name, None);
    let mut repaired = false;
    add_text(&mut event, names::RBKIT_CLASS_NAME, class, texts, &mut repaired);
    mark_repaired(&mut event, repaired);
    if let Some(field) = incomplete {
        event.incomplete([field]);
    }
    event.metric(data);
}

/// A sum of the objects of a heap dump that have the same class and site.
pub(super) fn heap_sum(
    out: &mut Output,
    dump: DumpOf,
    (class, site): (Option<&[u8]>, Site<'_>),
    sample: SampleData,
    incomplete: Option<&str>,
    texts: &mut TextCache,
    place: StreamPosition,
) {
    let mut event = place.event(out, names::RBKIT_HEAP, dump.time);
    let mut repaired = false;
    add_text(&mut event, names::RBKIT_CLASS_NAME, class, texts, &mut repaired);
    add_text(&mut event, names::CODE_FILE_PATH, site.file, texts, &mut repaired);
    add_number(&mut event, names::CODE_LINE_NUMBER, known_line(site.line));
    event.attribute(names::RBKIT_DUMP_ID, dump.id);
    add_number(&mut event, names::RBKIT_DUMP_OBJECT_COUNT, dump.objects);
    mark_repaired(&mut event, repaired);
    if let Some(field) = incomplete {
        event.incomplete([field]);
    }
    event.sample(sample, &[]);
}

/// Messages or objects that were sent and not received. `events` is None for messages: how many events they had is not
/// known.
pub(super) fn gap(
    out: &mut Output,
    events: Option<u64>,
    detail: &str,
    attributes: &[(Key, Value)],
    place: StreamPosition,
) {
    let loss = Loss { reason: Reason::Gap, bytes: 0, events, detail, excerpt: &[] };
    out.loss_with(place.header(names::LOSS), loss, attributes);
}

/// A part of a message that is lost.
pub(super) fn lost(
    out: &mut Output,
    reason: Reason,
    bytes: &[u8],
    events: Option<u64>,
    detail: &str,
    place: StreamPosition,
) {
    let loss = Loss { reason, bytes: bytes.len() as u64, events, detail, excerpt: bytes };
    out.loss(place.header(names::LOSS), loss);
}

/// A number of `gc_stats`. `false`: its value is not a number.
pub(super) fn gc_stat(out: &mut Output, key: &[u8], value: Wire<'_>, time: Option<f64>, place: StreamPosition) -> bool {
    let value = match value {
        // This version of Ruby does not have the statistic (rule 17).
        Wire::Nil | Wire::Text(b"") => return true,
        Wire::Unsigned(number) => Number::U64(number),
        Wire::Negative(number) => Number::I64(number),
        Wire::Float(number) => Number::F64(number),
        Wire::Text(text) => match decimal(text) {
            Some(number) => number,
            None => return false,
        },
        _ => return false,
    };
    let (key, is_repaired) = repair(key);
    let is_sum = matches!(
        &*key,
        "count" | "minor_gc_count" | "major_gc_count" | "total_allocated_objects" | "total_freed_objects"
    );
    let is_bytes = key.ends_with("_bytes") || key.ends_with("_bytes_limit") || key.starts_with("total_heap_size");
    let unit = if is_bytes || key == "total_memsize" { "By" } else { "" };
    let name = if key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        out.batch.push_parts(&[names::RBKIT_GC.as_str(), &key])
    } else {
        let plain: String = key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        out.batch.push_parts(&[names::RBKIT_GC.as_str(), &plain])
    };
    let nanos = time.and_then(nanos);
    let header =
        Header { name: name.into(), time: Some(nanos.unwrap_or(place.now.unix)), ..place.header(names::RBKIT_GC) };
    let mut event = out.batch.event(header);
    if nanos.is_none() {
        event.text(names::TIME_BASIS, names::TIME_BASIS_RECEIVED);
    }
    mark_repaired(&mut event, is_repaired);
    let sum = MetricType::Sum { temporality: Temporality::Cumulative, monotonic: true };
    let metric_type = if is_sum { sum } else { MetricType::Gauge };
    event.metric(MetricData { metric_type, unit: unit.into(), value, start: None });
    true
}

/// A number in decimal digits: exact up to 64 bits, a double beyond (rule 17).
fn decimal(text: &[u8]) -> Option<Number> {
    let text = str::from_utf8(text).ok()?;
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole = text.parse().map(Number::U64).or_else(|_| text.parse().map(Number::I64));
    whole.ok().or_else(|| text.parse().map(Number::F64).ok())
}

/// Adds a frame to the batch, for [`cpu_sample`] and [`allocation`].
pub(super) fn add_frame(
    batch: &mut BatchBuilder,
    frame: &StackFrame<'_>,
    texts: &mut TextCache,
    repaired: &mut bool,
) -> Frame {
    let mut text = |bytes: Option<&[u8]>| bytes.map(|bytes| texts.push(batch, bytes, repaired));
    Frame { function: text(frame.label.or(frame.method)), file: text(frame.file), line: known_line(frame.line) }
}

/// The interval at which agents take CPU samples, on the clock that was chosen (field notes, section 1).
const CPU_PERIOD_NANOS: u64 = 1_000_000;

/// A CPU sample; frames are innermost first (rule 18). `clock` is that of the profile, if it is known.
pub(super) fn cpu_sample(
    out: &mut Output,
    frames: &[Frame],
    (thread, clock): (Option<u64>, Option<SampleClock>),
    (is_repaired, is_cut): (bool, bool),
    time: Option<f64>,
    place: StreamPosition,
) {
    let mut event = place.event(out, names::RBKIT_CPU, time);
    add_number(&mut event, names::THREAD_ID, thread);
    mark_repaired(&mut event, is_repaired);
    if is_cut {
        event.incomplete(["frames"]);
    }
    let sample = SampleData::new("cpu", "count", Number::U64(1));
    event.sample(SampleData { period_nanos: Some(CPU_PERIOD_NANOS), clock, ..sample }, frames);
}

/// The line, unless it is 0: agents send 0 for C functions and where they do not know the line. The first line is 1.
fn known_line(line: Option<u64>) -> Option<u64> {
    line.filter(|line| *line != 0)
}

/// A place in the program that allocates objects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Site<'a> {
    pub(super) file: Option<&'a [u8]>,
    pub(super) line: Option<u64>,
    pub(super) class: &'a [u8],
    pub(super) size: Option<u64>,
}

/// `count` objects that were allocated at a site through one stack.
pub(super) fn allocation(
    out: &mut Output,
    (site, count): (Site<'_>, u64),
    texts: &mut TextCache,
    frames: &[Frame],
    (is_repaired, is_cut): (bool, bool),
    time: Option<f64>,
    place: StreamPosition,
) {
    let mut repaired = is_repaired;
    let mut event = place.event(out, names::RBKIT_ALLOCATIONS, time);
    add_text(&mut event, names::CODE_FILE_PATH, site.file, texts, &mut repaired);
    add_number(&mut event, names::CODE_LINE_NUMBER, known_line(site.line));
    add_text(&mut event, names::RBKIT_CLASS_NAME, Some(site.class), texts, &mut repaired);
    add_number(&mut event, names::RBKIT_OBJECT_SIZE, site.size);
    mark_repaired(&mut event, repaired);
    if is_cut {
        event.incomplete(["frames"]);
    }
    event.sample(SampleData::new("alloc_objects", "count", Number::U64(count)), frames);
}

fn add_text(
    event: &mut EventBuilder<'_>,
    name: Name,
    bytes: Option<&[u8]>,
    texts: &mut TextCache,
    repaired: &mut bool,
) {
    if let Some(bytes) = bytes {
        let text = texts.push(event.batch(), bytes, repaired);
        event.attribute(name, text);
    }
}

fn add_number(event: &mut EventBuilder<'_>, name: Name, number: Option<u64>) {
    if let Some(number) = number {
        event.attribute(name, number);
    }
}

fn mark_repaired(event: &mut EventBuilder<'_>, is_repaired: bool) {
    if is_repaired {
        event.attribute(names::TEXT_REPAIRED, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_stay_exact_and_invalid_times_are_none() {
        assert_eq!(nanos(1_795_000_854_042.0), Some(UnixNanos(1_795_000_854_042_000_000)));
        assert_eq!(nanos(0.0), Some(UnixNanos(0)));
        assert_eq!(nanos(1.5), Some(UnixNanos(1_500_000)));
        for none in [f64::NAN, f64::INFINITY, -1.0, 1e300, 18_446_744_073_709.0] {
            assert_eq!(nanos(none), None, "{none}");
        }
    }

    #[test]
    fn decimal_texts_are_exact_up_to_64_bits_and_doubles_beyond() {
        assert_eq!(decimal(b"18446744073709551615"), Some(Number::U64(u64::MAX)));
        assert_eq!(decimal(b"-3"), Some(Number::I64(-3)));
        assert_eq!(decimal(b"36893488147419103232"), Some(Number::F64(36_893_488_147_419_103_232.0)));
        for none in [&b""[..], b"-", b"1.5", b"1e3", b"+1", b" 1", b"inf", b"\xff"] {
            assert_eq!(decimal(none), None, "{none:?}");
        }
    }
}
