//! `meta_struct`: values that are MessagePack inside bytes.

use tributary_codec::msgpack::{MsgpackValue, Reader};
use tributary_codec::text::{escape, repair};
use tributary_event::{BatchBuilder, Key, Value};

/// The deepest nesting that is read.
const MAX_DEPTH: usize = 32;
/// The most elements of a value: each takes at least one byte, and more memory than that.
const MAX_ELEMENTS: usize = 4096;

/// What the MessagePack says. `None`: it is no valid value, or too deep or too large.
pub(super) fn value_of(content: &[u8], batch: &mut BatchBuilder) -> Option<Value> {
    let mut reader = Reader::new(content, 0);
    let mut left = MAX_ELEMENTS;
    value(&mut reader, 0, &mut left, batch).filter(|_| reader.is_at_end())
}

/// `None`: it is no valid value, or too deep or too large.
fn value(reader: &mut Reader<'_>, depth: usize, left: &mut usize, batch: &mut BatchBuilder) -> Option<Value> {
    *left = left.checked_sub(1)?;
    Some(match reader.next("meta_struct").ok()? {
        MsgpackValue::Nil => Value::Null,
        MsgpackValue::Bool(value) => Value::Bool(value),
        MsgpackValue::Unsigned(number) => Value::U64(number),
        MsgpackValue::Negative(number) => Value::I64(number),
        MsgpackValue::Float(number) => Value::F64(number),
        MsgpackValue::Text(text) => Value::Text(batch.push_text(&repair(text).0)),
        MsgpackValue::Array(count) if depth < MAX_DEPTH => {
            let items: Option<Vec<_>> = (0..count).map(|_| value(reader, depth + 1, left, batch)).collect();
            batch.array(&items?)
        }
        MsgpackValue::Map(count) if depth < MAX_DEPTH => {
            let mut members: Vec<(Key, Value)> = Vec::new();
            let mut keys = std::collections::HashSet::new();
            for _ in 0..count {
                let MsgpackValue::Text(key) = reader.next("meta_struct key").ok()? else { return None };
                if !keys.insert(key) {
                    return None;
                }
                let key = batch.push_text(&escape(key)).into();
                members.push((key, value(reader, depth + 1, left, batch)?));
            }
            batch.map(&members)
        }
        MsgpackValue::Binary(_) | MsgpackValue::Extension(..) | MsgpackValue::Array(_) | MsgpackValue::Map(_) => {
            return None;
        }
    })
}
