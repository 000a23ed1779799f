//! Version 0.5: a table of strings, and spans as arrays of 12 (notes, section 3).

use tributary_codec::msgpack::MsgpackValue;
use tributary_codec::reader::DecodeError;

use super::cursor::{Cursor, StringTable, invalid};
use super::span::{BodyPart, Entry, Sort, WireSpan, WireValue};

/// The number of fields of a span.
const FIELDS: u32 = 12;

/// Reads the table at the front of a body. The chunks follow.
pub(super) fn read_strings(cursor: &mut Cursor<'_>, strings: &mut StringTable) -> Result<(), DecodeError> {
    let at = cursor.offset();
    match cursor.next("payload")? {
        MsgpackValue::Array(2) => {}
        MsgpackValue::Array(count) => {
            return Err(invalid("payload", at, count.into(), "2 elements: the table of strings and the traces"));
        }
        _ => return Err(cursor.wrong("payload", at, "an array of 2 elements")),
    }
    for _ in 0..cursor.array("strings")? {
        let at = cursor.offset();
        let text = match cursor.next("string")? {
            MsgpackValue::Text(text) | MsgpackValue::Binary(text) => BodyPart::ending_at(cursor.offset(), text),
            // What ddtrace 1.7 wrote: the head of the table counts one string too few (dd-trace-py 5031).
            MsgpackValue::Array(_) => {
                return Err(cursor.wrong(
                    "string",
                    at,
                    "a text; the head of the table counts more strings than it has",
                ));
            }
            _ => return Err(cursor.wrong("string", at, "a text")),
        };
        strings.push(text, at)?;
    }
    strings.is_complete = true;
    Ok(())
}

/// Reads a span; `limit` bounds its entries.
pub(super) fn read_span(
    cursor: &mut Cursor<'_>,
    strings: &StringTable,
    limit: usize,
    span: &mut WireSpan,
) -> Result<(), DecodeError> {
    span.clear();
    let at = cursor.offset();
    match cursor.next("span")? {
        MsgpackValue::Array(FIELDS) => {}
        MsgpackValue::Array(count) => return Err(invalid("span", at, count.into(), "an array of 12 fields")),
        _ => return Err(cursor.wrong("span", at, "an array of 12 fields")),
    }
    span.service = text(cursor, strings, "span.service")?;
    span.name = text(cursor, strings, "span.name")?;
    span.resource = text(cursor, strings, "span.resource")?;
    span.trace_id = cursor.unsigned("span.trace_id")?;
    span.span_id = cursor.unsigned("span.span_id")?;
    span.parent_id = cursor.unsigned("span.parent_id")?;
    span.start = cursor.signed("span.start")?;
    span.duration = cursor.signed("span.duration")?;
    span.is_error = cursor.bool("span.error")?;
    for _ in 0..cursor.map("span.meta")? {
        let key = text(cursor, strings, "span.meta key")?;
        let value = WireValue::Text(text(cursor, strings, "span.meta value")?);
        span.push(limit, Entry { key, value, sort: Sort::Meta });
    }
    for _ in 0..cursor.map("span.metrics")? {
        let key = text(cursor, strings, "span.metrics key")?;
        let value = cursor.number("span.metrics value")?;
        if value != WireValue::Null {
            span.push(limit, Entry { key, value, sort: Sort::Metric });
        }
    }
    span.span_type = text(cursor, strings, "span.type")?;
    Ok(())
}

#[inline]
fn text(cursor: &mut Cursor<'_>, strings: &StringTable, field: &'static str) -> Result<BodyPart, DecodeError> {
    let at = cursor.offset();
    if let Some(number) = cursor.next_unsigned() {
        return strings.get(number, field, at);
    }
    match cursor.next(field)? {
        MsgpackValue::Nil => Ok(BodyPart::default()),
        _ => Err(cursor.wrong(field, at, "the number of a string")),
    }
}
