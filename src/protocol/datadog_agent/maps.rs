//! Spans as maps with text keys: versions 0.1 to 0.4, and the payloads and chunks of 0.7 (notes, section 3).

use tributary_codec::msgpack::MsgpackValue;
use tributary_codec::reader::DecodeError;

use super::body::{Chunk, TracePayload};
use super::cursor::Cursor;
use super::span::{BodyPart, Entry, Sort, UnknownKey, WireEvent, WireLink, WireSpan, WireValue};

/// Reads a span; `limit` bounds its entries, its links and its events.
pub(super) fn read_span(cursor: &mut Cursor<'_>, limit: usize, span: &mut WireSpan) -> Result<(), DecodeError> {
    span.clear();
    for _ in 0..cursor.map("span")? {
        match cursor.key("span key")? {
            b"service" => span.service = cursor.text("span.service")?,
            b"name" => span.name = cursor.text("span.name")?,
            b"resource" => span.resource = cursor.text("span.resource")?,
            b"type" => span.span_type = cursor.text("span.type")?,
            b"trace_id" => span.trace_id = cursor.unsigned("span.trace_id")?,
            b"span_id" => span.span_id = cursor.unsigned("span.span_id")?,
            b"parent_id" => span.parent_id = cursor.unsigned("span.parent_id")?,
            b"start" => span.start = cursor.signed("span.start")?,
            b"duration" => span.duration = cursor.signed("span.duration")?,
            b"error" => span.is_error = cursor.bool("span.error")?,
            b"meta" => read_meta(cursor, limit, span)?,
            b"metrics" => read_metrics(cursor, limit, span)?,
            b"meta_struct" => read_structs(cursor, limit, span)?,
            b"span_links" => read_links(cursor, limit, span)?,
            b"span_events" => read_events(cursor, limit, span)?,
            other => {
                span.unknown_keys += 1;
                span.unknown_key = Some(UnknownKey::Text(BodyPart::ending_at(cursor.offset(), other)));
                cursor.skip("span value")?;
            }
        }
    }
    Ok(())
}

fn read_meta(cursor: &mut Cursor<'_>, limit: usize, span: &mut WireSpan) -> Result<(), DecodeError> {
    for _ in 0..cursor.map("span.meta")? {
        let key = cursor.text("span.meta key")?;
        let at = cursor.offset();
        let value = match cursor.short_text() {
            Some(text) => Some(WireValue::Text(text)),
            None => cursor.next("span.meta value").map(|value| WireValue::scalar(value, cursor.offset()))?,
        };
        let Some(value) = value else {
            return Err(cursor.wrong("span.meta value", at, "a text"));
        };
        if value != WireValue::Null {
            span.push(limit, Entry { key, value, sort: Sort::Meta });
        }
    }
    Ok(())
}

fn read_metrics(cursor: &mut Cursor<'_>, limit: usize, span: &mut WireSpan) -> Result<(), DecodeError> {
    for _ in 0..cursor.map("span.metrics")? {
        let key = cursor.text("span.metrics key")?;
        let value = cursor.number("span.metrics value")?;
        if value != WireValue::Null {
            span.push(limit, Entry { key, value, sort: Sort::Metric });
        }
    }
    Ok(())
}

fn read_structs(cursor: &mut Cursor<'_>, limit: usize, span: &mut WireSpan) -> Result<(), DecodeError> {
    for _ in 0..cursor.map("span.meta_struct")? {
        let key = cursor.text("span.meta_struct key")?;
        let value = cursor.bytes("span.meta_struct value")?;
        span.push(limit, Entry { key, value: WireValue::Bytes(value), sort: Sort::Struct });
    }
    Ok(())
}

fn read_links(cursor: &mut Cursor<'_>, limit: usize, span: &mut WireSpan) -> Result<(), DecodeError> {
    for _ in 0..cursor.array("span.span_links")? {
        let (mut link, mut low, mut high) = (WireLink::default(), 0, 0);
        for _ in 0..cursor.map("span link")? {
            match cursor.key("span link key")? {
                b"trace_id" => low = cursor.unsigned("span link.trace_id")?,
                b"trace_id_high" => high = cursor.unsigned("span link.trace_id_high")?,
                b"span_id" => link.span_id = cursor.unsigned("span link.span_id")?,
                b"attributes" => link.attributes = Some(skip_map(cursor, "span link.attributes")?),
                b"tracestate" => link.trace_state = cursor.text("span link.tracestate")?,
                b"flags" => link.flags = Some(cursor.unsigned("span link.flags")? as u32),
                _ => cursor.skip("span link value")?,
            }
        }
        link.trace_id = u128::from(high) << 64 | u128::from(low);
        if span.links.len() < limit {
            span.links.push(link);
        } else {
            span.dropped += 1;
        }
    }
    Ok(())
}

fn read_events(cursor: &mut Cursor<'_>, limit: usize, span: &mut WireSpan) -> Result<(), DecodeError> {
    for _ in 0..cursor.array("span.span_events")? {
        let mut event = WireEvent::default();
        for _ in 0..cursor.map("span event")? {
            match cursor.key("span event key")? {
                b"time_unix_nano" => event.time = cursor.unsigned("span event.time_unix_nano")?,
                b"name" => event.name = cursor.text("span event.name")?,
                b"attributes" => event.attributes = Some(skip_map(cursor, "span event.attributes")?),
                _ => cursor.skip("span event value")?,
            }
        }
        if span.events.len() < limit {
            span.events.push(event);
        } else {
            span.dropped += 1;
        }
    }
    Ok(())
}

/// Skips a map with text keys; returns where it begins.
fn skip_map(cursor: &mut Cursor<'_>, field: &'static str) -> Result<usize, DecodeError> {
    let start = cursor.offset();
    for _ in 0..cursor.map(field)? {
        cursor.key(field)?;
        cursor.skip(field)?;
    }
    Ok(start)
}

/// The payload of version 0.7. With `each`, its chunks are read where they stand; the payload has where they begin.
pub(super) fn read_payload(
    cursor: &mut Cursor<'_>,
    mut each: impl FnMut(&mut Cursor<'_>) -> Result<(), DecodeError>,
) -> Result<TracePayload, DecodeError> {
    let mut payload = TracePayload::default();
    for _ in 0..cursor.map("payload")? {
        match cursor.key("payload key")? {
            b"container_id" => payload.container_id = cursor.text("payload.container_id")?,
            b"language_name" => payload.language = cursor.text("payload.language_name")?,
            b"language_version" => payload.language_version = cursor.text("payload.language_version")?,
            b"tracer_version" => payload.tracer_version = cursor.text("payload.tracer_version")?,
            b"runtime_id" => payload.runtime_id = cursor.text("payload.runtime_id")?,
            b"env" => payload.env = cursor.text("payload.env")?,
            b"hostname" => payload.hostname = cursor.text("payload.hostname")?,
            b"app_version" => payload.app_version = cursor.text("payload.app_version")?,
            b"tags" => payload.attributes = Some(skip_map(cursor, "payload.tags")?),
            b"chunks" => {
                (payload.chunks, payload.chunks_at) = cursor.elements("payload.chunks", &mut each)?;
            }
            _ => cursor.skip("payload value")?,
        }
    }
    Ok(payload)
}

/// A chunk of version 0.7. Its spans are read by `each`, or skipped by it.
pub(super) fn read_chunk(
    cursor: &mut Cursor<'_>,
    mut each: impl FnMut(&mut Cursor<'_>) -> Result<(), DecodeError>,
) -> Result<Chunk, DecodeError> {
    let mut chunk = Chunk { start: cursor.offset(), ..Chunk::default() };
    for _ in 0..cursor.map("chunk")? {
        match cursor.key("chunk key")? {
            b"priority" => chunk.priority = Some(cursor.signed("chunk.priority")?),
            b"origin" => chunk.origin = cursor.text("chunk.origin")?,
            b"tags" => chunk.attributes = Some(skip_map(cursor, "chunk.tags")?),
            b"dropped_trace" => chunk.is_dropped = cursor.bool("chunk.dropped_trace")?,
            b"spans" => {
                (chunk.spans, chunk.spans_at) = cursor.elements("chunk.spans", &mut each)?;
            }
            _ => cursor.skip("chunk value")?,
        }
    }
    chunk.end = cursor.offset();
    Ok(chunk)
}

/// The keys and values of a map of texts, or of the typed values that events of spans have.
pub(super) fn members(body: &[u8], start: usize, mut each: impl FnMut(BodyPart, WireValue)) -> Result<(), DecodeError> {
    let mut cursor = Cursor::at(body, start);
    for _ in 0..cursor.map("attributes")? {
        let key = cursor.text("attributes key")?;
        let value = value(&mut cursor)?;
        each(key, value);
    }
    Ok(())
}

/// A value; where it is an array or a map, its place.
pub(super) fn value(cursor: &mut Cursor<'_>) -> Result<WireValue, DecodeError> {
    let start = cursor.offset();
    let value = cursor.next("attribute")?;
    if let Some(value) = WireValue::scalar(value, cursor.offset()) {
        return Ok(value);
    }
    let place = match value {
        MsgpackValue::Array(_) => WireValue::Array(start),
        _ => WireValue::Map(start),
    };
    *cursor = Cursor::at(cursor.body, start);
    cursor.skip("attribute")?;
    Ok(place)
}
