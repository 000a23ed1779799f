//! Reads rows: see [`super::row`].

use std::fmt;

use super::row::{CRC_BYTES, ESCAPE, START, tag};
use super::{OriginParts, Rebuilder, StoredBuckets, StoredData, StoredDistribution, reason};
use tributary_event::varint::{read_varint, zigzag};
use tributary_event::{
    DroppedCounts, Frame, Header, Key, Kind, Link, MetricData, MetricType, Number, Position, ResourceValue,
    SampleClock, SampleData, SeverityNumber, Span32, SpanData, SpanEvent, SpanExtras, SpanId, SpanKind, SpanLink,
    Status, Temporality, TraceContext, TraceId, UnixNanos, Value,
};

/// The deepest nesting of a value that is read.
const MAX_DEPTH: usize = 128;

/// Why a record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowError {
    /// Its bytes are not those that were written.
    Damaged,
    /// It was written in another form.
    Unknown,
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RowError::Damaged => "its checksum is wrong",
            RowError::Unknown => "its form is unknown",
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
    pub fn read(&mut self, line: &[u8], out: &mut Rebuilder) -> Result<(), RowError> {
        unescape(line, &mut self.record).ok_or(RowError::Damaged)?;
        let Some((content, crc)) = self.record.split_last_chunk::<CRC_BYTES>() else { return Err(RowError::Damaged) };
        if crc32c::crc32c(content) != u32::from_le_bytes(*crc) {
            return Err(RowError::Damaged);
        }
        let mut record = Reader(content);
        self.attributes.clear();
        read(&mut record, &mut self.block, &mut self.attributes, out).ok_or(RowError::Unknown)
    }
}

/// `None`: an escape is none that `super::row` writes.
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
    let name = out.key_of_bytes(record.bytes()?)?;
    let time = record.option(Reader::time)?;
    let observed = record.time()?;
    let sequence = record.option(Reader::number)?;
    let position = Position { sequence, offset: record.number()?, length: record.number()? };
    let data = read_data(record, out)?;
    for _ in 0..record.number()? {
        let key = out.key_of_bytes(record.bytes()?)?;
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
    let stored = block.0;
    out.set_stored_resource(stored, || read_resource(block).ok_or(())).ok()
}

fn read_resource(block: &mut Reader<'_>) -> Option<Vec<(String, ResourceValue)>> {
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
    Some(resource)
}

fn read_data(record: &mut Reader<'_>, out: &mut Rebuilder) -> Option<StoredData> {
    Some(match Kind::ALL.get(usize::from(record.byte()?))? {
        Kind::Log => {
            let severity = SeverityNumber::new(record.byte()?.into())?;
            let context = record.option(|record| {
                let trace_id = TraceId(record.array()?);
                Some(TraceContext { trace_id, span_id: record.option(Reader::span_id)? })
            })?;
            StoredData::Log { severity, context, body: record.option(|record| record.value(out, 0))? }
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
                kind: match record.byte()? {
                    0 => None,
                    number => Some(*SpanKind::ALL.get(usize::from(number) - 1)?),
                },
                status_message: record.option(Reader::text)?.map(|text| out.builder().push_text(text)),
            };
            let extras = record.option(|record| read_extras(record, out))?.unwrap_or_default();
            let mut links = Vec::new();
            for _ in 0..record.number()? {
                let to = Link { trace_id: TraceId(record.array()?), span_id: record.span_id()? };
                let attributes = record.members(out, 0)?;
                let trace_state = record.option(Reader::text)?.map(|text| out.builder().push_text(text));
                let flags = record.option(Reader::small_number)?;
                links.push(SpanLink { to, attributes, trace_state, flags });
            }
            let mut events = Vec::new();
            for _ in 0..record.number()? {
                let time = record.option(Reader::time)?;
                let name = out.key_of_bytes(record.bytes()?)?;
                events.push(SpanEvent { time, name, attributes: record.members(out, 0)? });
            }
            StoredData::Span { span, extras, links, events }
        }
        Kind::Metric => read_metric(record, out)?,
        Kind::Sample => {
            let mut label = || Some(out.builder().push_text(record.text()?).into());
            let (sample_type, unit) = (label()?, label()?);
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
            StoredData::Sample { sample: SampleData { sample_type, unit, value, period_nanos, clock }, frames }
        }
        Kind::Loss => StoredData::Loss {
            reason: reason(record.text()?)?,
            bytes: record.number()?,
            events: record.option(Reader::number)?,
            detail: record.text()?.to_owned(),
            excerpt: record.bytes()?.to_owned(),
        },
    })
}

fn read_extras(record: &mut Reader<'_>, out: &mut Rebuilder) -> Option<SpanExtras> {
    let trace_state = record.option(Reader::text)?.map(|text| out.builder().push_text(text));
    let mut number = || record.small_number();
    let flags = number()?;
    let dropped = DroppedCounts { attributes: number()?, events: number()?, links: number()? };
    Some(SpanExtras { trace_state, flags, dropped })
}

fn read_metric(record: &mut Reader<'_>, out: &mut Rebuilder) -> Option<StoredData> {
    let (of, unit) = (record.byte()?, out.builder().push_text(record.text()?).into());
    let temporality = |is_delta| if is_delta { Temporality::Delta } else { Temporality::Cumulative };
    let metric_type = match of {
        0 => MetricType::Gauge,
        2..=5 => MetricType::Sum { temporality: temporality(of < 4), monotonic: of % 2 == 1 },
        6 | 7 => MetricType::Histogram { temporality: temporality(of == 6) },
        8 | 9 => MetricType::ExponentialHistogram { temporality: temporality(of == 8) },
        10 => MetricType::Summary,
        _ => return None,
    };
    if let MetricType::Gauge | MetricType::Sum { .. } = metric_type {
        let (value, start) = (record.any_number()?, record.option(Reader::time)?);
        return Some(StoredData::Metric(MetricData { metric_type, unit, value, start }));
    }
    let mut read = StoredDistribution::new(metric_type, unit);
    read.count = record.number()?;
    for number in [&mut read.sum, &mut read.min, &mut read.max] {
        *number = record.option(Reader::double)?;
    }
    match metric_type {
        MetricType::Summary => {
            read.quantiles = record.list(|record| Some((record.double()?, record.double()?)))?;
        }
        MetricType::ExponentialHistogram { .. } => {
            read.scale = record.small_signed()?;
            (read.zero_count, read.zero_threshold) = (record.number()?, record.double()?);
            for buckets in [&mut read.positive, &mut read.negative] {
                *buckets = StoredBuckets { offset: record.small_signed()?, counts: record.list(Reader::number)? };
            }
        }
        _ => (read.bounds, read.counts) = (record.list(Reader::double)?, record.list(Reader::number)?),
    }
    read.start = record.option(Reader::time)?;
    Some(StoredData::Distribution(Box::new(read)))
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
        let (number, rest) = read_varint(self.0)?;
        self.0 = rest;
        Some(number)
    }

    fn small_number(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn signed(&mut self) -> Option<i64> {
        self.number().map(zigzag)
    }

    fn small_signed(&mut self) -> Option<i32> {
        i32::try_from(self.signed()?).ok()
    }

    fn double(&mut self) -> Option<f64> {
        Some(f64::from_bits(u64::from_le_bytes(self.array()?)))
    }

    /// Grows with what the record has: its length is that of the peer.
    fn list<T>(&mut self, read: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::new();
        for _ in 0..self.number()? {
            items.push(read(self)?);
        }
        Some(items)
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
            tag::I64 => Number::I64(self.signed()?),
            tag::U64 => Number::U64(self.number()?),
            tag::F64 => Number::F64(self.double()?),
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
            tag::MAP => Value::Map(self.members(out, depth)?),
            of => match self.scalar(of)? {
                Number::I64(number) => Value::I64(number),
                Number::U64(number) => Value::U64(number),
                Number::F64(number) => Value::F64(number),
            },
        })
    }

    fn members(&mut self, out: &mut Rebuilder, depth: usize) -> Option<Span32> {
        let mut members = Vec::new();
        for _ in 0..self.number()? {
            let key = out.key_of_bytes(self.bytes()?)?;
            members.push((key, self.value(out, depth + 1)?));
        }
        Some(out.builder().members(&members))
    }
}
