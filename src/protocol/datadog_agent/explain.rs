//! Explains the bytes of a body: each value of the MessagePack with its key.

use tributary_codec::msgpack::{MAX_DEPTH, MsgpackValue, Reader};
use tributary_explain::value::text;
use tributary_explain::words::counted;
use tributary_explain::{DecoderError, Sheet};
use tributary_protocol::RequestHead;

/// Writes the body of a request onto the sheet, with the decoder's faults.
pub fn body(head: &RequestHead, body: &[u8], faults: Vec<DecoderError>, sheet: &mut Sheet) {
    let is_text = head.header("content-type").is_some_and(|of| !of.contains("msgpack") && !of.contains("octet-stream"));
    sheet.inner(faults, |sheet| {
        let mut reader = Reader::new(body, 0);
        if is_text || item(&mut reader, body, "payload", 0, sheet).is_none() {
            sheet.raw(reader.rest(), if is_text { "no MessagePack" } else { "invalid" });
        } else if !reader.is_at_end() {
            sheet.raw(reader.rest(), "behind the payload");
        }
    });
}

/// Writes a value. `None`: it is invalid, or too deep.
fn item(reader: &mut Reader<'_>, body: &[u8], name: &str, depth: usize, sheet: &mut Sheet) -> Option<()> {
    let start = reader.offset();
    let bookmark = *reader;
    let Ok(value) = reader.next("value") else {
        *reader = bookmark;
        return None;
    };
    let bytes = &body[start..reader.offset()];
    match value {
        MsgpackValue::Nil => sheet.field(bytes, name, "nil"),
        MsgpackValue::Bool(value) => sheet.field(bytes, name, value),
        MsgpackValue::Unsigned(number) => sheet.field(bytes, name, number),
        MsgpackValue::Negative(number) => sheet.field(bytes, name, number),
        MsgpackValue::Float(number) => sheet.field(bytes, name, number),
        MsgpackValue::Text(content) => sheet.field(bytes, name, text(content)),
        MsgpackValue::Binary(content) => sheet.field(bytes, name, counted(content.len() as u64, "byte")),
        MsgpackValue::Extension(kind, _) => sheet.field(bytes, name, format_args!("extension {kind}")),
        MsgpackValue::Array(_) | MsgpackValue::Map(_) if depth == MAX_DEPTH => return None,
        MsgpackValue::Array(count) => {
            sheet.field(bytes, name, format_args!("array of {count}"));
            return sheet.nested(|sheet| {
                (0..count).try_for_each(|index| item(reader, body, &format!("[{index}]"), depth + 1, sheet))
            });
        }
        MsgpackValue::Map(count) => {
            sheet.field(bytes, name, format_args!("map of {count}"));
            return sheet.nested(|sheet| {
                (0..count).try_for_each(|_| {
                    let mut ahead = *reader;
                    let key = match ahead.next("key").ok()? {
                        MsgpackValue::Text(key) => String::from_utf8_lossy(key).into_owned(),
                        MsgpackValue::Unsigned(key) => key.to_string(),
                        _ => "value".to_owned(),
                    };
                    item(reader, body, "key", depth + 1, sheet)?;
                    item(reader, body, &key, depth + 1, sheet)
                })
            });
        }
    }
    Some(())
}
