//! The resource of records: who sent them.

use serde_json::{Number, Value as Json};

use tributary_codec::protobuf::ProtobufValue;
use tributary_codec::text::{cut, cut_bytes, repair};
use tributary_event::{Resource, ResourceValue, hex};

use super::profile_dictionary::Strings;
use super::value::{WireAttribute, fixed64, members, messages, value_of};

/// The most attributes of a resource, and the longest of its texts.
const MAX_ATTRIBUTES: usize = 256;
const MAX_TEXT_BYTES: usize = 4096;

/// The resource of a message `Resource`. Lists and maps become texts of JSON, bytes hex digits.
pub(super) fn resource(message: &[u8], strings: Strings<'_>) -> Resource {
    Resource::new(members(message, 1, strings).take(MAX_ATTRIBUTES).filter_map(|member| {
        let key = text(member.key);
        Some(match value_of(member.value)? {
            (1, ProtobufValue::Bytes(bytes)) => (key, ResourceValue::Text(text(bytes))),
            (2, ProtobufValue::Varint(value)) => (key, ResourceValue::Bool(value != 0)),
            (3, ProtobufValue::Varint(value)) => (key, ResourceValue::I64(value as i64)),
            (4, ProtobufValue::Fixed(bytes)) => (key, ResourceValue::F64(f64::from_bits(fixed64(bytes)))),
            (7, ProtobufValue::Bytes(bytes)) => (key, ResourceValue::Text(hex_of(bytes))),
            (8, ProtobufValue::Varint(index)) => (key, ResourceValue::Text(text(strings.get(index)))),
            _ => (
                key,
                ResourceValue::Text(
                    cut(&json(member.value, strings, &mut { MAX_TEXT_BYTES }).to_string(), MAX_TEXT_BYTES).to_owned(),
                ),
            ),
        })
    }))
}

/// A text, repaired and cut.
pub(super) fn text(bytes: &[u8]) -> String {
    cut(&repair(cut_bytes(bytes, MAX_TEXT_BYTES)).0, MAX_TEXT_BYTES).to_owned()
}

/// Bytes as hex digits, cut.
fn hex_of(bytes: &[u8]) -> String {
    hex(&bytes[..bytes.len().min(MAX_TEXT_BYTES / 2)])
}

/// A value as JSON, with texts of the dictionary up to `left` bytes. Nesting was checked.
fn json(any: &[u8], strings: Strings<'_>, left: &mut usize) -> Json {
    match value_of(any) {
        Some((1, ProtobufValue::Bytes(bytes))) => repair(bytes).0.into(),
        Some((2, ProtobufValue::Varint(value))) => Json::Bool(value != 0),
        Some((3, ProtobufValue::Varint(value))) => Json::Number((value as i64).into()),
        Some((4, ProtobufValue::Fixed(bytes))) => {
            let value = f64::from_bits(fixed64(bytes));
            Number::from_f64(value).map_or_else(|| value.to_string().into(), Json::Number)
        }
        Some((5, ProtobufValue::Bytes(array))) => messages(array, 1).map(|item| json(item, strings, left)).collect(),
        Some((6, ProtobufValue::Bytes(list))) => {
            let pair = |member: WireAttribute<'_>| {
                *left = left.saturating_sub(member.key.len());
                (repair(member.key).0.into_owned(), json(member.value, strings, left))
            };
            Json::Object(members(list, 1, strings).map(pair).collect())
        }
        Some((7, ProtobufValue::Bytes(bytes))) => hex_of(bytes).into(),
        Some((8, ProtobufValue::Varint(index))) => {
            let text = cut_bytes(strings.get(index), *left);
            *left -= text.len();
            repair(text).0.into()
        }
        _ => Json::Null,
    }
}
