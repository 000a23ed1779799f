//! Unpacks a batch.

use std::sync::OnceLock;

use super::super::batch::{Attribute, Batch, Event, EventData, Header, NO_CONTEXT, Position, Run, TraceContext};
use super::super::span::{DroppedCounts, Link, SpanData, SpanEvent, SpanExtras, SpanKind, SpanLink, Status};
use super::super::text::{Escapes, Text, index32};
use super::super::value::{Key, Span32, Value};
use super::super::varint::{read_varint, zigzag};
use super::super::{Name, SeverityNumber, SpanId, TraceId, UnixNanos};
use super::pack::{Last, end_of};
use super::*;

impl PackedParts {
    /// The batch with these parts and columns. `None`: these are not its columns.
    pub fn unpack(&self, columns: &[u8]) -> Option<Batch> {
        let columns = split(columns)?;
        let mut to = Batch { origins: self.origins.clone(), resources: self.resources.clone(), ..Batch::default() };
        let (texts, text) = texts(&columns)?;
        to.text = text.to_owned();
        let [traces, span_ids] = [Column::TraceIds, Column::SpanIds].map(|column| columns[column as usize]);
        let mut unpacker = Unpacker { columns, texts, traces, span_ids, to, last: Last::default() };
        unpacker.batch()?;
        Some(unpacker.to)
    }
}

/// The columns, one by one.
fn split(mut all: &[u8]) -> Option<[&[u8]; COLUMNS]> {
    let mut lengths = [0; COLUMNS];
    for length in &mut lengths {
        let (value, rest) = read_varint(all)?;
        (*length, all) = (usize::try_from(value).ok()?, rest);
    }
    let mut columns = [&[][..]; COLUMNS];
    for (column, length) in columns.iter_mut().zip(lengths) {
        (*column, all) = all.split_at_checked(length)?;
    }
    Some(columns)
}

/// The list of texts, and what they are parts of.
fn texts<'a>(columns: &[&'a [u8]; COLUMNS]) -> Option<(Vec<Text>, &'a str)> {
    let text = str::from_utf8(columns[Column::TextBytes as usize]).ok()?;
    let (mut texts, mut start, mut lengths) = (Vec::new(), 0usize, columns[Column::TextLengths as usize]);
    while !lengths.is_empty() {
        let (value, rest) = read_varint(lengths)?;
        lengths = rest;
        let len = usize::try_from(value >> 2).ok()?;
        text.get(start..start.checked_add(len)?)?;
        let escapes = match value & 3 {
            0 => Escapes::None,
            1 => Escapes::Few,
            _ => Escapes::Many,
        };
        texts.push(Text::new(start, len, escapes));
        start += len;
    }
    Some((texts, text))
}

struct Unpacker<'a> {
    /// What is left of each column.
    columns: [&'a [u8]; COLUMNS],
    texts: Vec<Text>,
    traces: &'a [u8],
    span_ids: &'a [u8],
    to: Batch,
    last: Last,
}

impl Unpacker<'_> {
    fn batch(&mut self) -> Option<()> {
        let len = self.count()?;
        self.to.output_bytes = self.count()?;
        for _ in 0..self.count()? {
            let (expanded, uses) = (self.count()?, u32::try_from(self.count()?).ok()?);
            let members = self.members()?;
            self.to.runs.push(Run { members, expanded, uses, rendered: OnceLock::new() });
        }
        // Each event has a byte of flags at least.
        self.to.events.reserve_exact(len.min(self.columns[Column::Flags as usize].len()));
        self.to.spans.reserve_exact(self.span_ids.len() / 8);
        (0..len).try_for_each(|_| self.event())
    }

    fn event(&mut self) -> Option<()> {
        let flags = self.byte(Column::Flags)?;
        let name = self.key(Column::Names)?;
        let time = match flags & HAS_TIME {
            0 => None,
            _ => {
                self.last.time = self.difference(Column::Times, self.last.time)?;
                Some(UnixNanos(self.last.time))
            }
        };
        self.last.observed = self.difference(Column::Observed, self.last.observed)?;
        let sequence = match flags & HAS_SEQUENCE {
            0 => None,
            _ => {
                self.last.sequence = self.difference(Column::Sequences, self.last.sequence)?;
                Some(self.last.sequence)
            }
        };
        let offset = self.difference(Column::Offsets, self.last.end)?;
        let length = self.number(Column::Lengths)?;
        self.last.end = offset.wrapping_add(length);
        let (origin, resource) = (self.number(Column::Origins)?, self.number(Column::Resources)?);
        self.to.origins.get(usize::try_from(origin).ok()?)?;
        self.to.resources.get(usize::try_from(resource).ok()?)?;
        let attributes = self.attributes()?;
        let data = if flags & IS_SPAN > 0 { self.span(flags, time)? } else { self.log(flags)? };
        self.to.counts[data.kind().index()] += 1;
        let position = Position { sequence, offset, length };
        let header = Header { name, time, observed: UnixNanos(self.last.observed), position };
        self.to.events.push(Event { header, data, attributes, origin: origin as u32, resource: resource as u32 });
        Some(())
    }

    fn attributes(&mut self) -> Option<Span32> {
        let start = self.to.attributes.len();
        for _ in 0..self.count()? {
            let value_type = self.byte(Column::Types)?;
            let attribute = if value_type == value_type::RUN {
                let run = u32::try_from(self.number(Column::Numbers)?).ok()?;
                self.to.runs.get(run as usize)?;
                Attribute::Run(run)
            } else {
                let value = self.value_of(value_type)?;
                Attribute::One(self.key(Column::Keys)?, value)
            };
            self.to.attributes.push(attribute);
        }
        Some(Span32::new(start, self.to.attributes.len()))
    }

    fn log(&mut self, flags: u8) -> Option<EventData> {
        let severity = SeverityNumber::new(self.number(Column::Numbers)?)?;
        let mut context = NO_CONTEXT;
        if flags & HAS_TRACE > 0 {
            let trace_id = self.trace()?;
            let span_id = if flags & HAS_TRACE_SPAN > 0 { Some(self.other_id()?) } else { None };
            context = index32(self.to.contexts.len());
            self.to.contexts.push(TraceContext { trace_id, span_id });
        }
        let body = if flags & HAS_BODY > 0 { Some(self.value()?) } else { None };
        Some(EventData::Log { severity, context, body })
    }

    fn span(&mut self, flags: u8, time: Option<UnixNanos>) -> Option<EventData> {
        let place = index32(self.to.spans.len());
        let trace_id = self.trace()?;
        let span_id = self.span_id(i64::from(place))?;
        let parent = match flags & HAS_PARENT {
            0 => None,
            _ => Some(match self.number(Column::Parents)? {
                0 => self.other_id()?,
                distance => self.span_id(i64::from(place) - zigzag(distance - 1))?,
            }),
        };
        let duration_nanos = if flags & HAS_DURATION > 0 { Some(self.number(Column::Durations)?) } else { None };
        let own = self.byte(Column::Flags)?;
        let end = if own & ENDS_IN_TIME > 0 {
            end_of(time, duration_nanos)
        } else if own & HAS_END > 0 {
            Some(UnixNanos(self.difference(Column::Times, self.last.time)?))
        } else {
            None
        };
        let status = match own & 3 {
            0 => Status::Unset,
            1 => Status::Ok,
            _ => Status::Error,
        };
        let kind = match own >> KIND_SHIFT & 7 {
            0 => None,
            number => Some(*SpanKind::ALL.get(usize::from(number) - 1)?),
        };
        let status_message = if own & HAS_MORE > 0 { self.optional_text()? } else { None };
        self.to.spans.push(SpanData { trace_id, span_id, parent, end, duration_nanos, kind, status, status_message });
        if own & HAS_MORE > 0 {
            self.more(place)?;
        }
        Some(EventData::Span(place))
    }

    /// The extras, links and events of a span.
    fn more(&mut self, place: u32) -> Option<()> {
        for _ in 0..self.count()? {
            let trace_state = self.optional_text()?;
            let mut numbers = [0; 4];
            for number in &mut numbers {
                *number = u32::try_from(self.number(Column::Numbers)?).ok()?;
            }
            let [flags, attributes, events, links] = numbers;
            let dropped = DroppedCounts { attributes, events, links };
            self.to.span_extras.push((place, SpanExtras { trace_state, flags, dropped }));
        }
        for _ in 0..self.count()? {
            let to = Link { trace_id: self.trace()?, span_id: self.other_id()? };
            let trace_state = self.optional_text()?;
            let flags = self.number(Column::Numbers)?.checked_sub(1).and_then(|flags| u32::try_from(flags).ok());
            let attributes = self.members()?;
            self.to.links.push((place, SpanLink { to, attributes, trace_state, flags }));
        }
        for _ in 0..self.count()? {
            let time = match self.count()? {
                0 => None,
                _ => Some(UnixNanos(self.difference(Column::Times, self.last.time)?)),
            };
            let name = self.key(Column::Names)?;
            let attributes = self.members()?;
            self.to.span_events.push((place, SpanEvent { time, name, attributes }));
        }
        Some(())
    }

    fn trace(&mut self) -> Option<TraceId> {
        let place = usize::try_from(self.number(Column::Traces)?).ok()?.checked_mul(16)?;
        Some(TraceId(self.traces.get(place..)?.first_chunk().copied()?))
    }

    /// The id of the span with this place.
    fn span_id(&self, place: i64) -> Option<SpanId> {
        let start = usize::try_from(place).ok()?.checked_mul(8)?;
        Some(SpanId(self.span_ids.get(start..)?.first_chunk().copied()?))
    }

    /// The id of a span that is not in the batch, or of a log or link.
    fn other_id(&mut self) -> Option<SpanId> {
        self.array(Column::ParentIds).map(SpanId)
    }

    fn members(&mut self) -> Option<Span32> {
        let mut members = Vec::new();
        for _ in 0..self.count()? {
            let value = self.value()?;
            members.push((self.key(Column::Keys)?, value));
        }
        let start = self.to.members.len();
        self.to.members.append(&mut members);
        Some(Span32::new(start, self.to.members.len()))
    }

    fn value(&mut self) -> Option<Value> {
        let value_type = self.byte(Column::Types)?;
        self.value_of(value_type)
    }

    fn value_of(&mut self, value_type: u8) -> Option<Value> {
        Some(match value_type {
            value_type::NULL => Value::Null,
            value_type::FALSE => Value::Bool(false),
            value_type::TRUE => Value::Bool(true),
            value_type::I64 => Value::I64(zigzag(self.number(Column::Numbers)?)),
            value_type::U64 => Value::U64(self.number(Column::Numbers)?),
            value_type::F64 => Value::F64(f64::from_bits(u64::from_le_bytes(self.array(Column::Bytes)?))),
            value_type::TEXT => Value::Text(self.text()?),
            value_type::BYTES => {
                let len = self.count()?;
                let (bytes, rest) = self.columns[Column::Bytes as usize].split_at_checked(len)?;
                self.columns[Column::Bytes as usize] = rest;
                let start = self.to.bytes.len();
                self.to.bytes.extend_from_slice(bytes);
                Value::Bytes(Span32::new(start, self.to.bytes.len()))
            }
            value_type::ARRAY => {
                let mut values = Vec::new();
                for _ in 0..self.count()? {
                    values.push(self.value()?);
                }
                let start = self.to.values.len();
                self.to.values.append(&mut values);
                Value::Array(Span32::new(start, self.to.values.len()))
            }
            value_type::MAP => Value::Map(self.members()?),
            _ => return None,
        })
    }

    fn key(&mut self, column: Column) -> Option<Key> {
        let number = self.number(column)?;
        Some(match number & 1 {
            0 => Name(u16::try_from(number >> 1).ok()?).into(),
            _ => (*self.texts.get(usize::try_from(number >> 1).ok()?)?).into(),
        })
    }

    fn text(&mut self) -> Option<Text> {
        let place = self.number(Column::Texts)?;
        self.texts.get(usize::try_from(place).ok()?).copied()
    }

    fn optional_text(&mut self) -> Option<Option<Text>> {
        Some(if self.count()? > 0 { Some(self.text()?) } else { None })
    }

    fn count(&mut self) -> Option<usize> {
        usize::try_from(self.number(Column::Counts)?).ok()
    }

    #[inline]
    fn byte(&mut self, column: Column) -> Option<u8> {
        let (first, rest) = self.columns[column as usize].split_first()?;
        self.columns[column as usize] = rest;
        Some(*first)
    }

    fn array<const N: usize>(&mut self, column: Column) -> Option<[u8; N]> {
        let (first, rest) = self.columns[column as usize].split_first_chunk()?;
        self.columns[column as usize] = rest;
        Some(*first)
    }

    #[inline]
    fn number(&mut self, column: Column) -> Option<u64> {
        let (number, rest) = read_varint(self.columns[column as usize])?;
        self.columns[column as usize] = rest;
        Some(number)
    }

    #[inline]
    fn difference(&mut self, column: Column, from: u64) -> Option<u64> {
        Some(from.wrapping_add(zigzag(self.number(column)?) as u64))
    }
}
