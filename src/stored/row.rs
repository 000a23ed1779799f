//! Rows: an event as one binary record, exactly as it was, for journals.
//!
//! A record ends in a line feed and has no other, so that a file of rows is repaired and cut like a file of lines. Its bytes:
//! `R`, the block of origin and resource, which is mostly that of the record before, header, data of the kind, attributes, and
//! a CRC-32C of all of that. Numbers are LEB128; texts have their length before them. Then each line feed is replaced by
//! `1B 01`, and each `1B` by `1B 02`.

use std::fmt;
use std::sync::Arc;

use super::{Data, OriginParts, Rebuilder, constant, reason, severity};
use crate::event::{
    DataView, EventView, Frame, Header, Key, Kind, Link, MetricData, MetricType, Number, Origin, Position, Resource,
    ResourceValue, SampleClock, SampleData, SpanData, SpanId, Status, Temporality, TraceContext, TraceId, UnixNanos,
    Value, ValueView,
};

/// The first byte of every record: its form.
pub const START: u8 = b'R';
const ESCAPE: u8 = 0x1B;
const CRC_BYTES: usize = 4;
/// The deepest nesting of a value that is read.
const MAX_DEPTH: usize = 128;

mod tag {
    pub(super) const NULL: u8 = 0;
    pub(super) const FALSE: u8 = 1;
    pub(super) const TRUE: u8 = 2;
    pub(super) const I64: u8 = 3;
    pub(super) const U64: u8 = 4;
    pub(super) const F64: u8 = 5;
    pub(super) const TEXT: u8 = 6;
    pub(super) const BYTES: u8 = 7;
    pub(super) const ARRAY: u8 = 8;
    pub(super) const MAP: u8 = 9;
}

/// Encodes events as rows; caches what consecutive events share.
#[derive(Debug, Default)]
pub struct RowEncoder {
    last: Option<(Arc<Origin>, Arc<Resource>)>,
    /// The block of `last`.
    block: Vec<u8>,
}

impl RowEncoder {
    /// Appends one event as a record, line feed included.
    pub fn encode(&mut self, event: EventView<'_>, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(START);
        self.push_block(event, out);
        push_header(out, event);
        push_data(out, event);
        push_number(out, event.attribute_members().count() as u64);
        for member in event.attribute_members() {
            push_text(out, member.key().text().text());
            push_value(out, member.value());
        }
        let crc = crc32c::crc32c(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
        escape(out, start);
        out.push(b'\n');
    }

    fn push_block(&mut self, event: EventView<'_>, out: &mut Vec<u8>) {
        let (origin, resource) = (event.origin(), event.resource());
        let is_last =
            |(last, of): &(Arc<Origin>, Arc<Resource>)| Arc::ptr_eq(last, origin) && Arc::ptr_eq(of, resource);
        if !self.last.as_ref().is_some_and(is_last) {
            self.last = Some((origin.clone(), resource.clone()));
            self.block.clear();
            push_origin(&mut self.block, origin);
            push_number(&mut self.block, resource.attributes().len() as u64);
            for (key, value) in resource.attributes() {
                push_text(&mut self.block, key);
                push_value(&mut self.block, value.view());
            }
        }
        push_number(out, self.block.len() as u64);
        out.extend_from_slice(&self.block);
    }
}

fn push_origin(out: &mut Vec<u8>, origin: &Origin) {
    push_text(out, origin.protocol);
    push_option(out, origin.version.as_deref(), push_text);
    push_text(out, &origin.listener);
    push_text(out, &origin.peer);
    push_number(out, origin.connection);
}

fn push_header(out: &mut Vec<u8>, event: EventView<'_>) {
    let Position { sequence, offset, length } = event.position();
    push_text(out, event.name().text());
    push_option(out, event.time(), push_time);
    push_time(out, event.observed());
    push_option(out, sequence, push_number);
    push_number(out, offset);
    push_number(out, length);
}

fn push_data(out: &mut Vec<u8>, event: EventView<'_>) {
    out.push(event.kind().index() as u8);
    match event.data() {
        DataView::Log { severity, context, body } => {
            push_text(out, severity.as_str());
            push_option(out, context, |out, context| {
                out.extend_from_slice(&context.trace_id.0);
                push_option(out, context.span_id, |out, id| out.extend_from_slice(&id.0));
            });
            push_option(out, body, push_value);
        }
        DataView::Span(span) => {
            out.extend_from_slice(&span.trace_id.0);
            out.extend_from_slice(&span.span_id.0);
            push_option(out, span.parent, |out, id| out.extend_from_slice(&id.0));
            push_option(out, span.end, push_time);
            push_option(out, span.duration_nanos, push_number);
            out.push(match span.status {
                Status::Unset => 0,
                Status::Ok => 1,
                Status::Error => 2,
            });
            push_number(out, event.links().len() as u64);
            for link in event.links() {
                out.extend_from_slice(&link.trace_id.0);
                out.extend_from_slice(&link.span_id.0);
            }
        }
        DataView::Metric(metric) => {
            out.push(match metric.metric_type {
                MetricType::Gauge => 0,
                MetricType::Sum { temporality: Temporality::Delta, monotonic } => 2 + u8::from(monotonic),
                MetricType::Sum { temporality: Temporality::Cumulative, monotonic } => 4 + u8::from(monotonic),
            });
            push_text(out, metric.unit);
            push_value(out, view(metric.value));
            push_option(out, metric.start, push_time);
        }
        DataView::Sample(sample) => {
            push_text(out, sample.data.sample_type);
            push_text(out, sample.data.unit);
            push_value(out, view(sample.data.value));
            push_option(out, sample.data.period_nanos, push_number);
            push_option(out, sample.data.clock, |out, clock| push_text(out, clock.as_str()));
            push_number(out, sample.frames().len() as u64);
            for frame in sample.frames() {
                push_option(out, frame.function, |out, text| push_text(out, text.text()));
                push_option(out, frame.file, |out, text| push_text(out, text.text()));
                push_option(out, frame.line, push_number);
            }
        }
        DataView::Loss(loss) => {
            push_text(out, loss.reason.as_str());
            push_number(out, loss.bytes);
            push_option(out, loss.events, push_number);
            push_text(out, loss.detail.text());
            push_bytes(out, loss.excerpt);
        }
    }
}

fn view(number: Number) -> ValueView<'static> {
    match number {
        Number::I64(number) => ValueView::I64(number),
        Number::U64(number) => ValueView::U64(number),
        Number::F64(number) => ValueView::F64(number),
    }
}

fn push_value(out: &mut Vec<u8>, value: ValueView<'_>) {
    match value {
        ValueView::Null => out.push(tag::NULL),
        ValueView::Bool(false) => out.push(tag::FALSE),
        ValueView::Bool(true) => out.push(tag::TRUE),
        ValueView::I64(number) => {
            out.push(tag::I64);
            // Zigzag: small negative numbers are short, too.
            push_number(out, (number << 1 ^ number >> 63) as u64);
        }
        ValueView::U64(number) => {
            out.push(tag::U64);
            push_number(out, number);
        }
        ValueView::F64(number) => {
            out.push(tag::F64);
            out.extend_from_slice(&number.to_bits().to_le_bytes());
        }
        ValueView::Text(text) => {
            out.push(tag::TEXT);
            push_text(out, text.text());
        }
        ValueView::Bytes(bytes) => {
            out.push(tag::BYTES);
            push_bytes(out, bytes);
        }
        ValueView::Array(values) => {
            out.push(tag::ARRAY);
            push_number(out, values.count() as u64);
            values.for_each(|value| push_value(out, value));
        }
        ValueView::Map(members) => {
            out.push(tag::MAP);
            push_number(out, members.count() as u64);
            for member in members {
                push_text(out, member.key().text().text());
                push_value(out, member.value());
            }
        }
    }
}

fn push_option<T>(out: &mut Vec<u8>, value: Option<T>, push: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        push(out, value);
    }
}

fn push_time(out: &mut Vec<u8>, time: UnixNanos) {
    out.extend_from_slice(&time.0.to_le_bytes());
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    push_bytes(out, text.as_bytes());
}

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    push_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[inline]
fn push_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Replaces line feeds and escapes from `start` on.
fn escape(out: &mut Vec<u8>, start: usize) {
    let is_special = |byte: &u8| *byte == b'\n' || *byte == ESCAPE;
    let Some(first) = memchr::memchr2(b'\n', ESCAPE, &out[start..]) else { return };
    let rest = out.split_off(start + first);
    for piece in rest.split_inclusive(is_special) {
        match piece.split_last() {
            Some((b'\n', before)) => {
                out.extend_from_slice(before);
                out.extend_from_slice(&[ESCAPE, 1]);
            }
            Some((&ESCAPE, before)) => {
                out.extend_from_slice(before);
                out.extend_from_slice(&[ESCAPE, 2]);
            }
            _ => out.extend_from_slice(piece),
        }
    }
}

/// Why a record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its bytes are not those that were written.
    Damaged,
    /// It was written in another form.
    Unknown,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Damaged => "its checksum is wrong",
            Fault::Unknown => "its form is unknown",
        })
    }
}

/// Reads rows; remembers what consecutive events share.
#[derive(Debug, Default)]
pub struct RowReader {
    record: Vec<u8>,
    /// The block of the origin and resource that are set.
    block: Vec<u8>,
    attributes: Vec<(Key, Value)>,
}

impl RowReader {
    /// Adds the event of a record, without its line feed, to a batch. All records of a reader are added to one [`Rebuilder`].
    ///
    /// # Errors
    /// Nothing is added.
    pub fn read(&mut self, line: &[u8], out: &mut Rebuilder) -> Result<(), Fault> {
        unescape(line, &mut self.record).ok_or(Fault::Damaged)?;
        let Some((content, crc)) = self.record.split_last_chunk::<CRC_BYTES>() else { return Err(Fault::Damaged) };
        if crc32c::crc32c(content) != u32::from_le_bytes(*crc) {
            return Err(Fault::Damaged);
        }
        let mut record = Reader(content);
        self.attributes.clear();
        read(&mut record, &mut self.block, &mut self.attributes, out).ok_or(Fault::Unknown)
    }
}

/// `None`: an escape is none that [`escape`] writes.
fn unescape(line: &[u8], record: &mut Vec<u8>) -> Option<()> {
    record.clear();
    let mut rest = line;
    while let Some(at) = memchr::memchr(ESCAPE, rest) {
        record.extend_from_slice(&rest[..at]);
        let (code, after) = rest[at + 1..].split_first()?;
        record.push(match code {
            1 => b'\n',
            2 => ESCAPE,
            _ => return None,
        });
        rest = after;
    }
    record.extend_from_slice(rest);
    Some(())
}

fn read(
    record: &mut Reader<'_>,
    known: &mut Vec<u8>,
    attributes: &mut Vec<(Key, Value)>,
    out: &mut Rebuilder,
) -> Option<()> {
    if record.byte()? != START {
        return None;
    }
    let block = record.bytes()?;
    if block != known.as_slice() {
        let mut block_reader = Reader(block);
        read_block(&mut block_reader, out)?;
        known.clear();
        known.extend_from_slice(block);
    }
    let name = out.key(record.text()?);
    let time = record.option(Reader::time)?;
    let observed = record.time()?;
    let sequence = record.option(Reader::number)?;
    let position = Position { sequence, offset: record.number()?, length: record.number()? };
    let data = read_data(record, out)?;
    for _ in 0..record.number()? {
        let key = out.key(record.text()?);
        attributes.push((key, record.value(out, 0)?));
    }
    out.push(Header { name, time, observed, position }, attributes, data);
    Some(())
}

fn read_block(block: &mut Reader<'_>, out: &mut Rebuilder) -> Option<()> {
    let parts = OriginParts {
        protocol: block.text()?,
        version: block.option(Reader::text)?,
        listener: block.text()?,
        peer: block.text()?,
        connection: block.number()?,
    };
    out.set_origin(parts);
    let mut resource = Vec::new();
    for _ in 0..block.number()? {
        let key = block.text()?.to_owned();
        let value = match block.byte()? {
            tag::TEXT => ResourceValue::Text(block.text()?.to_owned()),
            tag::FALSE => ResourceValue::Bool(false),
            tag::TRUE => ResourceValue::Bool(true),
            of => match block.scalar(of)? {
                Number::I64(number) => ResourceValue::I64(number),
                Number::U64(number) => ResourceValue::U64(number),
                Number::F64(number) => ResourceValue::F64(number),
            },
        };
        resource.push((key, value));
    }
    out.set_resource(resource);
    Some(())
}

fn read_data(record: &mut Reader<'_>, out: &mut Rebuilder) -> Option<Data> {
    Some(match Kind::ALL.get(usize::from(record.byte()?))? {
        Kind::Log => {
            let severity = severity(record.text()?)?;
            let context = record.option(|record| {
                let trace_id = TraceId(record.array()?);
                Some(TraceContext { trace_id, span_id: record.option(Reader::span_id)? })
            })?;
            Data::Log { severity, context, body: record.option(|record| record.value(out, 0))? }
        }
        Kind::Span => {
            let span = SpanData {
                trace_id: TraceId(record.array()?),
                span_id: record.span_id()?,
                parent: record.option(Reader::span_id)?,
                end: record.option(Reader::time)?,
                duration_nanos: record.option(Reader::number)?,
                status: match record.byte()? {
                    0 => Status::Unset,
                    1 => Status::Ok,
                    _ => Status::Error,
                },
            };
            let mut links = Vec::new();
            for _ in 0..record.number()? {
                links.push(Link { trace_id: TraceId(record.array()?), span_id: record.span_id()? });
            }
            Data::Span { span, links }
        }
        Kind::Metric => {
            let metric_type = match record.byte()? {
                0 => MetricType::Gauge,
                of @ (2 | 3) => MetricType::Sum { temporality: Temporality::Delta, monotonic: of == 3 },
                of @ (4 | 5) => MetricType::Sum { temporality: Temporality::Cumulative, monotonic: of == 5 },
                _ => return None,
            };
            let unit = constant(record.text()?);
            Data::Metric(MetricData {
                metric_type,
                unit,
                value: record.any_number()?,
                start: record.option(Reader::time)?,
            })
        }
        Kind::Sample => {
            let (sample_type, unit) = (constant(record.text()?), constant(record.text()?));
            let value = record.any_number()?;
            let period_nanos = record.option(Reader::number)?;
            let clock = record.option(Reader::text)?.map(|clock| match clock {
                "cpu" => SampleClock::Cpu,
                _ => SampleClock::Wall,
            });
            let mut frames = Vec::new();
            for _ in 0..record.number()? {
                let builder = out.builder();
                let function = record.option(Reader::text)?.map(|text| builder.push_text(text));
                let file = record.option(Reader::text)?.map(|text| builder.push_text(text));
                frames.push(Frame { function, file, line: record.option(Reader::number)? });
            }
            Data::Sample { sample: SampleData { sample_type, unit, value, period_nanos, clock }, frames }
        }
        Kind::Loss => Data::Loss {
            reason: reason(record.text()?)?,
            bytes: record.number()?,
            events: record.option(Reader::number)?,
            detail: record.text()?.to_owned(),
            excerpt: record.bytes()?.to_owned(),
        },
    })
}

/// What is left of a record. Every method returns `None` when the record ends before.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        str::from_utf8(self.bytes()?).ok()
    }

    fn time(&mut self) -> Option<UnixNanos> {
        Some(UnixNanos(u64::from_le_bytes(self.array()?)))
    }

    fn span_id(&mut self) -> Option<SpanId> {
        Some(SpanId(self.array()?))
    }

    /// `Some(None)`: it is not there.
    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.byte()? {
            0 => Some(None),
            _ => read(self).map(Some),
        }
    }

    fn any_number(&mut self) -> Option<Number> {
        let of = self.byte()?;
        self.scalar(of)
    }

    fn scalar(&mut self, of: u8) -> Option<Number> {
        Some(match of {
            tag::I64 => {
                let number = self.number()?;
                Number::I64((number >> 1) as i64 ^ -((number & 1) as i64))
            }
            tag::U64 => Number::U64(self.number()?),
            tag::F64 => Number::F64(f64::from_bits(u64::from_le_bytes(self.array()?))),
            _ => return None,
        })
    }

    fn value(&mut self, out: &mut Rebuilder, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        Some(match self.byte()? {
            tag::NULL => Value::Null,
            tag::FALSE => Value::Bool(false),
            tag::TRUE => Value::Bool(true),
            tag::TEXT => Value::Text(out.builder().push_text(self.text()?)),
            tag::BYTES => out.builder().bytes(self.bytes()?),
            tag::ARRAY => {
                let mut items = Vec::new();
                for _ in 0..self.number()? {
                    items.push(self.value(out, depth + 1)?);
                }
                out.builder().array(&items)
            }
            tag::MAP => {
                let mut members = Vec::new();
                for _ in 0..self.number()? {
                    let key = out.key(self.text()?);
                    members.push((key, self.value(out, depth + 1)?));
                }
                out.builder().map(&members)
            }
            of => match self.scalar(of)? {
                Number::I64(number) => Value::I64(number),
                Number::U64(number) => Value::U64(number),
                Number::F64(number) => Value::F64(number),
            },
        })
    }
}
