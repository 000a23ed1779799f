//! Packs a batch.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::super::batch::{Attribute, Batch, Event, EventData, NO_CONTEXT};
use super::super::text::Text;
use super::super::value::{Key, KeyContent, Span32, Value};
use super::super::varint::{push_varint, unsigned};
use super::super::view::of_span;
use super::super::{Kind, SpanId, TraceId, UnixNanos};
use super::*;

impl Batch {
    /// Its columns, and what they refer to. `None`: it has other events than spans and logs.
    pub fn pack(&self) -> Option<(Vec<u8>, PackedParts)> {
        if self.count(Kind::Span) + self.count(Kind::Log) != self.len() as u64 {
            return None;
        }
        let mut packer = Packer {
            from: self,
            columns: std::array::from_fn(|_| Vec::new()),
            texts: HashMap::default(),
            traces: HashMap::default(),
            spans: HashMap::default(),
            last: Last::default(),
        };
        packer.batch();
        let parts = PackedParts { origins: self.origins.clone(), resources: self.resources.clone() };
        Some((packer.finish(), parts))
    }
}

struct Packer<'a> {
    from: &'a Batch,
    columns: [Vec<u8>; COLUMNS],
    texts: HashMap<&'a str, u64, RandomState>,
    traces: HashMap<TraceId, u64, RandomState>,
    /// The spans of the batch, by their ids.
    spans: HashMap<SpanId, u32, RandomState>,
    last: Last,
}

/// The numbers of the event before, from which those of the next one differ little.
#[derive(Default)]
pub(super) struct Last {
    pub(super) time: u64,
    pub(super) observed: u64,
    pub(super) sequence: u64,
    /// The end of its message.
    pub(super) end: u64,
}

impl Packer<'_> {
    fn batch(&mut self) {
        let from = self.from;
        self.number(Column::Counts, from.len() as u64);
        self.number(Column::Counts, from.output_bytes as u64);
        self.number(Column::Counts, from.runs.len() as u64);
        for run in &from.runs {
            self.number(Column::Counts, run.expanded as u64);
            self.number(Column::Counts, run.uses.into());
            self.members(run.members);
        }
        for (place, span) in (0..).zip(&from.spans) {
            self.spans.insert(span.span_id, place);
        }
        from.events.iter().for_each(|event| self.event(event));
    }

    fn finish(self) -> Vec<u8> {
        let len: usize = self.columns.iter().map(|column| column.len() + 5).sum();
        let mut all = Vec::with_capacity(len);
        self.columns.iter().for_each(|column| push_varint(&mut all, column.len() as u64));
        self.columns.iter().for_each(|column| all.extend_from_slice(column));
        all
    }

    fn event(&mut self, event: &Event) {
        let from = self.from;
        let flags_at = self.columns[Column::Flags as usize].len();
        self.byte(Column::Flags, 0);
        let mut flags = 0;
        let header = event.header;
        self.key(Column::Names, header.name);
        if let Some(UnixNanos(time)) = header.time {
            flags |= HAS_TIME;
            self.difference(Column::Times, time, self.last.time);
            self.last.time = time;
        }
        self.difference(Column::Observed, header.observed.0, self.last.observed);
        self.last.observed = header.observed.0;
        if let Some(sequence) = header.position.sequence {
            flags |= HAS_SEQUENCE;
            self.difference(Column::Sequences, sequence, self.last.sequence);
            self.last.sequence = sequence;
        }
        self.difference(Column::Offsets, header.position.offset, self.last.end);
        self.number(Column::Lengths, header.position.length);
        self.last.end = header.position.offset.wrapping_add(header.position.length);
        self.number(Column::Origins, event.origin.into());
        self.number(Column::Resources, event.resource.into());
        let attributes = &from.attributes[event.attributes.range()];
        self.number(Column::Counts, attributes.len() as u64);
        for attribute in attributes {
            match attribute {
                Attribute::One(key, value) => {
                    self.value(*value);
                    self.key(Column::Keys, *key);
                }
                Attribute::Run(run) => {
                    self.byte(Column::Types, value_type::RUN);
                    self.number(Column::Numbers, (*run).into());
                }
            }
        }
        flags |= match &event.data {
            EventData::Span(place) => self.span(*place, header.time),
            EventData::Log { severity, context, body } => {
                self.byte(Column::Numbers, severity.get());
                self.context(*context) | body.map_or(0, |body| self.value(body))
            }
            // Such a batch is not packed.
            EventData::Metric(_) | EventData::Sample { .. } | EventData::Loss(_) => 0,
        };
        self.columns[Column::Flags as usize][flags_at] = flags;
    }

    fn context(&mut self, context: u32) -> u8 {
        if context == NO_CONTEXT {
            return 0;
        }
        let context = self.from.contexts[context as usize];
        self.trace(context.trace_id);
        match context.span_id {
            None => HAS_TRACE,
            Some(span) => {
                self.bytes(Column::ParentIds, &span.0);
                HAS_TRACE | HAS_TRACE_SPAN
            }
        }
    }

    fn span(&mut self, place: u32, time: Option<UnixNanos>) -> u8 {
        let from = self.from;
        let span = &from.spans[place as usize];
        let mut flags = IS_SPAN;
        self.trace(span.trace_id);
        self.bytes(Column::SpanIds, &span.span_id.0);
        if let Some(parent) = span.parent {
            flags |= HAS_PARENT;
            match self.spans.get(&parent) {
                Some(of) => self.number(Column::Parents, unsigned(i64::from(place) - i64::from(*of)).wrapping_add(1)),
                None => {
                    self.number(Column::Parents, 0);
                    self.bytes(Column::ParentIds, &parent.0);
                }
            }
        }
        if let Some(duration) = span.duration_nanos {
            flags |= HAS_DURATION;
            self.number(Column::Durations, duration);
        }
        let mut own = span.status as u8 | span.kind.map_or(0, |kind| kind.number()) << KIND_SHIFT;
        if span.end.is_some() && span.end == end_of(time, span.duration_nanos) {
            own |= ENDS_IN_TIME;
        } else if let Some(UnixNanos(end)) = span.end {
            own |= HAS_END;
            self.difference(Column::Times, end, self.last.time);
        }
        let links = of_span(&from.links, place);
        let events = of_span(&from.span_events, place);
        let extras = of_span(&from.span_extras, place);
        if span.status_message.is_some() || !(links.is_empty() && events.is_empty() && extras.is_empty()) {
            own |= HAS_MORE;
        }
        self.byte(Column::Flags, own);
        if own & HAS_MORE == 0 {
            return flags;
        }
        self.optional_text(span.status_message);
        self.number(Column::Counts, extras.len() as u64);
        for (_, extras) in extras {
            self.optional_text(extras.trace_state);
            let dropped = extras.dropped;
            for number in [extras.flags, dropped.attributes, dropped.events, dropped.links] {
                self.number(Column::Numbers, number.into());
            }
        }
        self.number(Column::Counts, links.len() as u64);
        for (_, link) in links {
            self.trace(link.to.trace_id);
            self.bytes(Column::ParentIds, &link.to.span_id.0);
            self.optional_text(link.trace_state);
            self.number(Column::Numbers, link.flags.map_or(0, |flags| u64::from(flags) + 1));
            self.members(link.attributes);
        }
        self.number(Column::Counts, events.len() as u64);
        for (_, event) in events {
            self.number(Column::Counts, event.time.is_some().into());
            if let Some(UnixNanos(time)) = event.time {
                self.difference(Column::Times, time, self.last.time);
            }
            self.key(Column::Names, event.name);
            self.members(event.attributes);
        }
        flags
    }

    fn trace(&mut self, id: TraceId) {
        let next = self.traces.len() as u64;
        let place = *self.traces.entry(id).or_insert(next);
        if place == next {
            self.bytes(Column::TraceIds, &id.0);
        }
        self.number(Column::Traces, place);
    }

    fn members(&mut self, members: Span32) {
        let members = &self.from.members[members.range()];
        self.number(Column::Counts, members.len() as u64);
        for (key, value) in members {
            self.value(*value);
            self.key(Column::Keys, *key);
        }
    }

    /// Returns [`HAS_BODY`].
    fn value(&mut self, value: Value) -> u8 {
        let from = self.from;
        let value_type = match value {
            Value::Null => value_type::NULL,
            Value::Bool(false) => value_type::FALSE,
            Value::Bool(true) => value_type::TRUE,
            Value::I64(_) => value_type::I64,
            Value::U64(_) => value_type::U64,
            Value::F64(_) => value_type::F64,
            Value::Text(_) => value_type::TEXT,
            Value::Bytes(_) => value_type::BYTES,
            Value::Array(_) => value_type::ARRAY,
            Value::Map(_) => value_type::MAP,
        };
        self.byte(Column::Types, value_type);
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::I64(number) => self.number(Column::Numbers, unsigned(number)),
            Value::U64(number) => self.number(Column::Numbers, number),
            Value::F64(number) => self.bytes(Column::Bytes, &number.to_bits().to_le_bytes()),
            Value::Text(text) => self.text(text),
            Value::Bytes(range) => {
                let bytes = &from.bytes[range.range()];
                self.number(Column::Counts, bytes.len() as u64);
                self.bytes(Column::Bytes, bytes);
            }
            Value::Array(range) => {
                let values = &from.values[range.range()];
                self.number(Column::Counts, values.len() as u64);
                for value in values {
                    self.value(*value);
                }
            }
            Value::Map(members) => self.members(members),
        }
        HAS_BODY
    }

    fn key(&mut self, column: Column, key: Key) {
        match key.named() {
            KeyContent::Name(name) => self.number(column, u64::from(name.0) << 1),
            KeyContent::Text(text) => {
                let place = self.place_of(text);
                self.number(column, place << 1 | 1);
            }
        }
    }

    fn text(&mut self, text: Text) {
        let place = self.place_of(text);
        self.number(Column::Texts, place);
    }

    fn optional_text(&mut self, text: Option<Text>) {
        self.number(Column::Counts, text.is_some().into());
        if let Some(text) = text {
            self.text(text);
        }
    }

    /// The place of a text in the list of all.
    fn place_of(&mut self, text: Text) -> u64 {
        let from = self.from;
        let content = &from.text[text.range()];
        let next = self.texts.len() as u64;
        let place = *self.texts.entry(content).or_insert(next);
        if place == next {
            self.number(Column::TextLengths, (content.len() as u64) << 2 | text.escapes() as u64);
            self.bytes(Column::TextBytes, content.as_bytes());
        }
        place
    }

    fn byte(&mut self, column: Column, byte: u8) {
        self.columns[column as usize].push(byte);
    }

    fn bytes(&mut self, column: Column, bytes: &[u8]) {
        self.columns[column as usize].extend_from_slice(bytes);
    }

    fn number(&mut self, column: Column, number: u64) {
        push_varint(&mut self.columns[column as usize], number);
    }

    fn difference(&mut self, column: Column, number: u64, from: u64) {
        self.number(column, unsigned(number.wrapping_sub(from) as i64));
    }
}

/// When a span ends that takes this long.
pub(super) fn end_of(time: Option<UnixNanos>, duration: Option<u64>) -> Option<UnixNanos> {
    time?.0.checked_add(duration?).map(UnixNanos)
}
