//! Values as JSON texts that are read back as exactly the same values.
//!
//! As in JSON lines, but bytes are `{"$bytes":"<base64>"}`, a double that is not finite is `{"$double":"NaN"}`, and an object
//! with one member whose key begins with `$` is `{"$object":{…}}`.

use serde_json::Value as Json;

use tributary_codec::base64;
use tributary_codec::base64::push_base64;
use tributary_event::{Value, ValueView};
use tributary_sink::encode::{json, push_string};
use tributary_stored::Rebuilder;
use tributary_stored::json as lines;

const BYTES: &str = "$bytes";
const DOUBLE: &str = "$double";
const OBJECT: &str = "$object";

/// Appends a value.
pub(super) fn push(out: &mut Vec<u8>, value: ValueView<'_>) {
    match value {
        ValueView::Bytes(bytes) => {
            out.extend_from_slice(b"{\"$bytes\":\"");
            push_base64(out, bytes);
            out.extend_from_slice(b"\"}");
        }
        ValueView::F64(number) if !number.is_finite() => {
            out.extend_from_slice(b"{\"$double\":");
            json::push_value(out, value);
            out.push(b'}');
        }
        ValueView::Array(values) => {
            out.push(b'[');
            for (index, value) in values.enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                push(out, value);
            }
            out.push(b']');
        }
        ValueView::Map(members) => {
            let mut keys = members.map(|member| member.key().text().text());
            let is_ambiguous = keys.next().is_some_and(|key| key.starts_with('$')) && keys.next().is_none();
            if is_ambiguous {
                out.extend_from_slice(b"{\"$object\":");
            }
            out.push(b'{');
            for (index, member) in members.enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                push_string(out, member.key().text().text());
                out.push(b':');
                push(out, member.value());
            }
            out.push(b'}');
            if is_ambiguous {
                out.push(b'}');
            }
        }
        value => json::push_value(out, value),
    }
}

/// Reads a text that [`push`] has written; `None`: it is another text.
pub(super) fn read(text: &[u8], out: &mut Rebuilder) -> Option<Value> {
    Some(value(&serde_json::from_slice(text).ok()?, out))
}

/// The value of a JSON value.
pub(super) fn value(json: &Json, out: &mut Rebuilder) -> Value {
    match json {
        Json::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| value(item, out)).collect();
            out.builder().array(&items)
        }
        Json::Object(map) => {
            let only = if map.len() == 1 { map.iter().next() } else { None };
            match only {
                Some((key, Json::String(text))) if key == BYTES => match base64::decode(text.as_bytes()) {
                    Ok(bytes) => out.builder().bytes(&bytes),
                    Err(_) => Value::Null,
                },
                Some((key, Json::String(text))) if key == DOUBLE => Value::F64(match text.as_str() {
                    "Infinity" => f64::INFINITY,
                    "-Infinity" => f64::NEG_INFINITY,
                    _ => f64::NAN,
                }),
                Some((key, Json::Object(map))) if key == OBJECT => object(map, out),
                _ => object(map, out),
            }
        }
        Json::Number(number) => number.as_i64().map_or_else(|| lines::value(json, out), Value::I64),
        json => lines::value(json, out),
    }
}

fn object(map: &serde_json::Map<String, Json>, out: &mut Rebuilder) -> Value {
    let members: Vec<_> = map.iter().map(|(key, json)| (out.key(key), value(json, out))).collect();
    out.builder().map(&members)
}
