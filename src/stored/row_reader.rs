//! Reads rows: see [`super::row`].

use std::fmt;

use super::row::{CRC_BYTES, ESCAPE, START, tag};
use super::{OriginParts, Rebuilder, StoredData, reason, severity};
use tributary_event::{
    Frame, Header, Key, Kind, Link, MetricData, MetricType, Number, Position, ResourceValue, SampleClock, SampleData,
    Span32, SpanData, SpanEvent, SpanId, SpanKind, SpanLink, Status, Temporality, TraceContext, TraceId, UnixNanos,
    Value,
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

fn read_data(record: &mut Reader<'_>, out: &mut Rebuilder) -> Option<StoredData> {
    Some(match Kind::ALL.get(usize::from(record.byte()?))? {
        Kind::Log => {
            let severity = severity(record.text()?)?;
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
            let mut links = Vec::new();
            for _ in 0..record.number()? {
                let to = Link { trace_id: TraceId(record.array()?), span_id: record.span_id()? };
                let attributes = record.members(out, 0)?;
                let trace_state = record.option(Reader::text)?.map(|text| out.builder().push_text(text));
                let flags = record.option(Reader::number)?.map(u32::try_from).transpose().ok()?;
                links.push(SpanLink { to, attributes, trace_state, flags });
            }
            let mut events = Vec::new();
            for _ in 0..record.number()? {
                let time = record.option(Reader::time)?;
                let name = out.key(record.text()?);
                events.push(SpanEvent { time, name, attributes: record.members(out, 0)? });
            }
            StoredData::Span { span, links, events }
        }
        Kind::Metric => {
            let metric_type = match record.byte()? {
                0 => MetricType::Gauge,
                of @ (2 | 3) => MetricType::Sum { temporality: Temporality::Delta, monotonic: of == 3 },
                of @ (4 | 5) => MetricType::Sum { temporality: Temporality::Cumulative, monotonic: of == 5 },
                _ => return None,
            };
            let unit = out.builder().push_text(record.text()?).into();
            StoredData::Metric(MetricData {
                metric_type,
                unit,
                value: record.any_number()?,
                start: record.option(Reader::time)?,
            })
        }
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
            let key = out.key(self.text()?);
            members.push((key, self.value(out, depth + 1)?));
        }
        Some(out.builder().members(&members))
    }
}
