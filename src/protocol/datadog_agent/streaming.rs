//! Version 1.0: maps with numbers as keys, and strings that are sent once and then referred to by their number (notes,
//! section 3). The table of strings is built in the order of the wire.

use tributary_codec::msgpack::MsgpackValue;
use tributary_codec::reader::{DecodeError, DecodeErrorKind};

use super::body::{Chunk, TracePayload};
use super::cursor::{Cursor, MAX_DEPTH, StringTable, invalid};
use super::span::{BodyPart, Entry, Sort, UnknownKey, WireEvent, WireLink, WireSpan, WireValue};

/// Reads a body of version 1.0.
pub(super) struct StreamingReader<'a, 's> {
    pub(super) cursor: Cursor<'a>,
    pub(super) strings: &'s mut StringTable,
    /// Bounds the entries, links and events of a span.
    pub(super) limit: usize,
}

impl StreamingReader<'_, '_> {
    /// A text: a new one, which gets the next number, or the number of an earlier one.
    pub(super) fn text(&mut self, field: &'static str) -> Result<BodyPart, DecodeError> {
        let at = self.cursor.offset();
        if let Some(number) = self.cursor.next_unsigned() {
            return self.strings.get(number, field, at);
        }
        match self.cursor.next(field)? {
            MsgpackValue::Text(text) => {
                let text = BodyPart::ending_at(self.cursor.offset(), text);
                if !self.strings.is_complete {
                    self.strings.push(text, at)?;
                }
                Ok(text)
            }
            MsgpackValue::Nil => Ok(BodyPart::default()),
            _ => Err(self.cursor.wrong(field, at, "a text or the number of one")),
        }
    }

    fn key(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        let at = self.cursor.offset();
        match self.cursor.next_unsigned() {
            Some(key) => Ok(key),
            // What is no value at all, or is cut off, has an error of its own.
            None => self.cursor.next(field).and_then(|_| Err(self.cursor.wrong(field, at, "a number as key"))),
        }
    }

    /// The payload; its chunks are read by `each` where they stand.
    pub(super) fn payload(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<TracePayload, DecodeError> {
        let mut payload = TracePayload::default();
        for _ in 0..self.cursor.map("payload")? {
            match self.key("payload key")? {
                2 => payload.container_id = self.text("payload.container_id")?,
                3 => payload.language = self.text("payload.language")?,
                4 => payload.language_version = self.text("payload.language_version")?,
                5 => payload.tracer_version = self.text("payload.tracer_version")?,
                6 => payload.runtime_id = self.text("payload.runtime_id")?,
                7 => payload.env = self.text("payload.env")?,
                8 => payload.hostname = self.text("payload.hostname")?,
                9 => payload.app_version = self.text("payload.app_version")?,
                10 => payload.attributes = Some(self.skip_attributes("payload.attributes")?),
                11 => {
                    payload.chunks = self.cursor.array("payload.chunks")?;
                    payload.chunks_at = self.cursor.offset();
                    for _ in 0..payload.chunks {
                        each(self)?;
                    }
                }
                _ => self.cursor.skip("payload value")?,
            }
        }
        Ok(payload)
    }

    /// A chunk; its spans are read by `each` where they stand.
    pub(super) fn chunk(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<Chunk, DecodeError> {
        let mut chunk = Chunk { start: self.cursor.offset(), ..Chunk::default() };
        for _ in 0..self.cursor.map("chunk")? {
            match self.key("chunk key")? {
                1 => chunk.priority = Some(self.cursor.signed("chunk.priority")?),
                2 => chunk.origin = self.text("chunk.origin")?,
                3 => chunk.attributes = Some(self.skip_attributes("chunk.attributes")?),
                4 => {
                    chunk.spans = self.cursor.array("chunk.spans")?;
                    chunk.spans_at = self.cursor.offset();
                    for _ in 0..chunk.spans {
                        each(self)?;
                    }
                }
                5 => chunk.is_dropped = self.cursor.bool("chunk.dropped")?,
                6 => chunk.trace_id = Some(self.trace_id("chunk.trace_id")?),
                7 => chunk.mechanism = Some(self.cursor.unsigned("chunk.sampling_mechanism")?),
                _ => self.cursor.skip("chunk value")?,
            }
        }
        chunk.end = self.cursor.offset();
        Ok(chunk)
    }

    /// A span.
    pub(super) fn span(&mut self, span: &mut WireSpan) -> Result<(), DecodeError> {
        span.clear();
        for _ in 0..self.cursor.map("span")? {
            match self.key("span key")? {
                1 => span.service = self.text("span.service")?,
                2 => span.name = self.text("span.name")?,
                3 => span.resource = self.text("span.resource")?,
                4 => span.span_id = self.cursor.unsigned("span.span_id")?,
                5 => span.parent_id = self.cursor.unsigned("span.parent_id")?,
                6 => span.start = self.cursor.signed("span.start")?,
                7 => span.duration = self.cursor.signed("span.duration")?,
                8 => span.is_error = self.cursor.bool("span.error")?,
                9 => self.entries(span)?,
                10 => span.span_type = self.text("span.type")?,
                11 => self.links(span)?,
                12 => self.events(span)?,
                13 => span.env = self.text("span.env")?,
                14 => span.version = self.text("span.version")?,
                15 => span.component = self.text("span.component")?,
                16 => span.kind = self.cursor.unsigned("span.kind")?,
                other => {
                    span.unknown_keys += 1;
                    span.unknown_key = Some(UnknownKey::Number(other));
                    self.cursor.skip("span value")?;
                }
            }
        }
        Ok(())
    }

    fn entries(&mut self, span: &mut WireSpan) -> Result<(), DecodeError> {
        for _ in 0..self.triplets("span.attributes")? {
            let key = self.text("span.attributes key")?;
            let value = self.value("span.attributes value", 0)?;
            span.push(self.limit, Entry { key, value, sort: Sort::Meta });
        }
        Ok(())
    }

    fn links(&mut self, span: &mut WireSpan) -> Result<(), DecodeError> {
        for _ in 0..self.cursor.array("span.links")? {
            let mut link = WireLink::default();
            for _ in 0..self.cursor.map("span link")? {
                match self.key("span link key")? {
                    1 => link.trace_id = self.trace_id("span link.trace_id")?,
                    2 => link.span_id = self.cursor.unsigned("span link.span_id")?,
                    3 => link.attributes = Some(self.skip_attributes("span link.attributes")?),
                    4 => link.trace_state = self.text("span link.tracestate")?,
                    5 => link.flags = Some(self.cursor.unsigned("span link.flags")? as u32),
                    _ => self.cursor.skip("span link value")?,
                }
            }
            if span.links.len() < self.limit {
                span.links.push(link);
            } else {
                span.dropped += 1;
            }
        }
        Ok(())
    }

    fn events(&mut self, span: &mut WireSpan) -> Result<(), DecodeError> {
        for _ in 0..self.cursor.array("span.events")? {
            let mut event = WireEvent::default();
            for _ in 0..self.cursor.map("span event")? {
                match self.key("span event key")? {
                    1 => event.time = self.cursor.unsigned("span event.time")?,
                    2 => event.name = self.text("span event.name")?,
                    3 => event.attributes = Some(self.skip_attributes("span event.attributes")?),
                    _ => self.cursor.skip("span event value")?,
                }
            }
            if span.events.len() < self.limit {
                span.events.push(event);
            } else {
                span.dropped += 1;
            }
        }
        Ok(())
    }

    /// 16 bytes; of nil 0.
    fn trace_id(&mut self, field: &'static str) -> Result<u128, DecodeError> {
        let at = self.cursor.offset();
        match self.cursor.bytes(field)?.of(self.cursor.body) {
            [] => Ok(0),
            bytes => match bytes.first_chunk::<16>() {
                Some(id) if bytes.len() == 16 => Ok(u128::from_be_bytes(*id)),
                _ => Err(invalid(field, at, bytes.len() as u64, "16 bytes")),
            },
        }
    }

    /// The number of triplets of key, type and value.
    fn triplets(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let at = self.cursor.offset();
        match self.cursor.array(field)? {
            count if count.is_multiple_of(3) => Ok(count / 3),
            count => Err(invalid(field, at, count.into(), "a multiple of 3 elements: key, type, value")),
        }
    }

    /// Reads attributes for their strings; returns where they begin.
    fn skip_attributes(&mut self, field: &'static str) -> Result<usize, DecodeError> {
        let start = self.cursor.offset();
        self.attributes(field, |_, _| {})?;
        Ok(start)
    }

    /// The keys and values of attributes.
    pub(super) fn attributes(
        &mut self,
        field: &'static str,
        mut each: impl FnMut(BodyPart, WireValue),
    ) -> Result<(), DecodeError> {
        for _ in 0..self.triplets(field)? {
            let key = self.text(field)?;
            let value = self.value(field, 0)?;
            each(key, value);
        }
        Ok(())
    }

    /// A type and its value; where it is an array or a list of keys and values, its place.
    pub(super) fn value(&mut self, field: &'static str, depth: usize) -> Result<WireValue, DecodeError> {
        let at = self.cursor.offset();
        if depth > MAX_DEPTH {
            let kind =
                DecodeErrorKind::TooLarge { found: depth as u64, limit: MAX_DEPTH as u64, key: "the nesting limit" };
            return Err(DecodeError { field, offset: at, kind });
        }
        let of = self.cursor.unsigned(field)?;
        let start = self.cursor.offset();
        Ok(match of {
            1 => WireValue::Text(self.text(field)?),
            2 => WireValue::Bool(self.cursor.bool(field)?),
            3 => match self.cursor.number(field)? {
                WireValue::U64(number) => WireValue::F64(number as f64),
                WireValue::I64(number) => WireValue::F64(number as f64),
                number => number,
            },
            4 => WireValue::I64(self.cursor.signed(field)?),
            5 => WireValue::Bytes(self.cursor.bytes(field)?),
            6 => {
                let count = self.cursor.array(field)?;
                if !count.is_multiple_of(2) {
                    return Err(invalid(field, start, count.into(), "an even number of elements: type, value"));
                }
                for _ in 0..count / 2 {
                    self.value(field, depth + 1)?;
                }
                WireValue::Array(start)
            }
            7 => {
                for _ in 0..self.triplets(field)? {
                    self.text(field)?;
                    self.value(field, depth + 1)?;
                }
                WireValue::Map(start)
            }
            other => return Err(invalid(field, at, other, "a type from 1 to 7")),
        })
    }
}
