//! Values and attributes: `AnyValue` and `KeyValue` of `opentelemetry/proto/common/v1/common.proto`.

use std::collections::HashSet;

use tributary_codec::protobuf::{
    len_tag, push_bytes_field, push_fixed64_field, push_message, push_varint, push_varint_field, varint_len,
};
use tributary_event::{KeyView, Members, ResourceValue, TextView, ValueView};
use tributary_sink::encode::escape::push_start;
use tributary_sink::encode::json::push_value as push_json_value;

/// Values with more levels of arrays and maps are sent as JSON text. Readers of protobuf refuse a request with more than 100
/// nested messages; a level of maps takes three.
pub(super) const MAX_LEVELS: usize = 16;

/// The ending of keys whose values are bytes, which JSON shows as base64.
const BASE64: &str = "_base64";

// Fields of AnyValue.
const STRING: u8 = 1;
const BOOL: u8 = 2;
const INT: u8 = 3;
const DOUBLE: u8 = 4;
const ARRAY: u8 = 5;
const KVLIST: u8 = 6;
const BYTES: u8 = 7;
/// Of ArrayValue and KeyValueList.
const VALUES: u8 = 1;
// Fields of KeyValue.
const KEY: u8 = 1;
const VALUE: u8 = 2;

/// Length of a text or bytes as a field of an AnyValue.
fn field_len(bytes: usize) -> usize {
    1 + varint_len(bytes as u64) + bytes
}

/// A key or a text, and the bytes after it: copying a fixed number of bytes is fastest for short pieces.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    tail: &'a [u8],
    len: usize,
}

impl<'a> From<&'a str> for Piece<'a> {
    fn from(text: &'a str) -> Self {
        Piece { tail: text.as_bytes(), len: text.len() }
    }
}

impl<'a> From<TextView<'a>> for Piece<'a> {
    #[inline]
    fn from(text: TextView<'a>) -> Self {
        Piece { tail: text.tail(), len: text.len() }
    }
}

impl<'a> From<KeyView<'a>> for Piece<'a> {
    #[inline]
    fn from(key: KeyView<'a>) -> Self {
        let (tail, len) = key.tail();
        Piece { tail, len }
    }
}

/// Appends the beginning of an attribute: its key, and what stands before an AnyValue of `value` bytes.
#[inline(always)]
fn push_head(out: &mut Vec<u8>, field: u8, key: Piece<'_>, value: usize) {
    let length = key.len + value + 4;
    if length < 0x80 {
        // Each length is one byte.
        out.extend_from_slice(&[len_tag(field), length as u8, len_tag(KEY), key.len as u8]);
        push_start(out, key.len, key.tail);
        out.extend_from_slice(&[len_tag(VALUE), value as u8]);
    } else {
        out.push(len_tag(field));
        push_varint(out, (field_len(key.len) + field_len(value)) as u64);
        push_bytes_field(out, KEY, &key.tail[..key.len]);
        out.push(len_tag(VALUE));
        push_varint(out, value as u64);
    }
}

/// Appends an attribute whose value is a text.
#[inline]
pub(super) fn push_text_attribute<'a>(
    out: &mut Vec<u8>,
    field: u8,
    key: impl Into<Piece<'a>>,
    text: impl Into<Piece<'a>>,
) {
    let text = text.into();
    push_head(out, field, key.into(), field_len(text.len));
    out.push(len_tag(STRING));
    push_varint(out, text.len as u64);
    push_start(out, text.len, text.tail);
}

/// Appends an attribute whose value is an integer; beyond the range of the format it is a text of digits.
#[inline]
pub(super) fn push_u64_attribute<'a>(out: &mut Vec<u8>, field: u8, key: impl Into<Piece<'a>>, number: u64) {
    match i64::try_from(number) {
        Ok(number) => push_i64_attribute(out, field, key, number),
        Err(_) => push_text_attribute(out, field, key.into(), itoa::Buffer::new().format(number)),
    }
}

/// Appends an attribute whose value is an integer.
#[inline]
pub(super) fn push_i64_attribute<'a>(out: &mut Vec<u8>, field: u8, key: impl Into<Piece<'a>>, number: i64) {
    // A negative number has 10 bytes.
    push_head(out, field, key.into(), 1 + varint_len(number as u64));
    push_varint_field(out, INT, number as u64);
}

/// Appends an attribute whose value is a boolean.
pub(super) fn push_bool_attribute<'a>(out: &mut Vec<u8>, field: u8, key: impl Into<Piece<'a>>, value: bool) {
    push_head(out, field, key.into(), 2);
    push_varint_field(out, BOOL, value.into());
}

fn push_f64_attribute<'a>(out: &mut Vec<u8>, field: u8, key: impl Into<Piece<'a>>, number: f64) {
    push_head(out, field, key.into(), 9);
    push_fixed64_field(out, DOUBLE, number.to_bits());
}

/// Appends an attribute whose value is a list of texts.
pub(super) fn push_text_list_attribute(out: &mut Vec<u8>, field: u8, key: &str, texts: &[&str]) {
    push_message(out, field, 1, |out| {
        push_bytes_field(out, KEY, key.as_bytes());
        push_message(out, VALUE, 1, |out| {
            push_message(out, ARRAY, 1, |out| {
                for text in texts {
                    push_message(out, VALUES, 1, |out| push_bytes_field(out, STRING, text.as_bytes()));
                }
            });
        });
    });
}

/// Appends an attribute of a resource.
pub(super) fn push_resource_attribute(out: &mut Vec<u8>, field: u8, key: &str, value: &ResourceValue) {
    match value {
        ResourceValue::Text(text) => push_text_attribute(out, field, key, text.as_str()),
        ResourceValue::I64(number) => push_i64_attribute(out, field, key, *number),
        ResourceValue::U64(number) => push_u64_attribute(out, field, key, *number),
        ResourceValue::Bool(value) => push_bool_attribute(out, field, key, *value),
        ResourceValue::F64(number) => push_f64_attribute(out, field, key, *number),
    }
}

/// Appends an attribute, or a member of a map. `has_key` returns whether the same attributes or map have another key.
/// Returns whether the value was sent as JSON text.
#[inline]
pub(super) fn push_attribute(
    out: &mut Vec<u8>,
    field: u8,
    key: KeyView<'_>,
    value: ValueView<'_>,
    has_key: impl FnOnce(&str) -> bool,
) -> bool {
    match value {
        ValueView::Text(text) => push_text_attribute(out, field, key, text),
        ValueView::I64(number) => push_i64_attribute(out, field, key, number),
        ValueView::U64(number) => push_u64_attribute(out, field, key, number),
        ValueView::Bool(value) => push_bool_attribute(out, field, key, value),
        ValueView::F64(number) => push_f64_attribute(out, field, key, number),
        ValueView::Null => push_head(out, field, key.into(), 0),
        ValueView::Bytes(_) | ValueView::Array(_) | ValueView::Map(_) => {
            let is_deep = is_too_deep(value);
            push_message(out, field, 1, |out| {
                push_bytes_field(out, KEY, key_of(key.text().text(), value, has_key).as_bytes());
                push_message(out, VALUE, 1, |out| push_value_within(out, value, is_deep));
            });
            return is_deep;
        }
    }
    false
}

/// The key of bytes is sent without its ending, unless that leaves nothing, or a key that is there already.
pub(super) fn key_of<'a>(key: &'a str, value: ValueView<'_>, has_key: impl FnOnce(&str) -> bool) -> &'a str {
    match value {
        ValueView::Bytes(_) => {
            key.strip_suffix(BASE64).filter(|short| !short.is_empty() && !has_key(short)).unwrap_or(key)
        }
        _ => key,
    }
}

/// Appends a body. Returns whether it was sent as JSON text.
pub(super) fn push_body(out: &mut Vec<u8>, field: u8, value: ValueView<'_>) -> bool {
    let is_deep = is_too_deep(value);
    push_message(out, field, 1, |out| push_value_within(out, value, is_deep));
    is_deep
}

/// Appends the fields of an AnyValue; of one that is too deep, its JSON text.
fn push_value_within(out: &mut Vec<u8>, value: ValueView<'_>, is_deep: bool) {
    if !is_deep {
        return push_value(out, value);
    }
    let mut json = Vec::new();
    push_json_value(&mut json, value);
    push_bytes_field(out, STRING, &json);
}

/// Appends the fields of an AnyValue. Recursion is bounded by [`MAX_LEVELS`].
fn push_value(out: &mut Vec<u8>, value: ValueView<'_>) {
    match value {
        ValueView::Null => {}
        ValueView::Text(text) => push_bytes_field(out, STRING, text.text().as_bytes()),
        ValueView::Bool(value) => push_varint_field(out, BOOL, value.into()),
        ValueView::I64(number) => push_varint_field(out, INT, number as u64),
        ValueView::U64(number) => match i64::try_from(number) {
            Ok(number) => push_varint_field(out, INT, number as u64),
            Err(_) => push_bytes_field(out, STRING, itoa::Buffer::new().format(number).as_bytes()),
        },
        ValueView::F64(number) => push_fixed64_field(out, DOUBLE, number.to_bits()),
        ValueView::Bytes(bytes) => push_bytes_field(out, BYTES, bytes),
        ValueView::Array(values) => push_message(out, ARRAY, 1, |out| {
            for value in values {
                push_message(out, VALUES, 1, |out| push_value(out, value));
            }
        }),
        ValueView::Map(members) => push_message(out, KVLIST, 1, |out| push_members(out, members)),
    }
}

fn push_members(out: &mut Vec<u8>, members: Members<'_>) {
    let mut keys = None;
    for member in members {
        let all = || members.map(|member| member.key().text().text()).collect::<HashSet<_>>();
        let has_key = |key: &str| keys.get_or_insert_with(all).contains(key);
        push_message(out, VALUES, 1, |out| {
            let value = member.value();
            push_bytes_field(out, KEY, key_of(member.key().text().text(), value, has_key).as_bytes());
            push_message(out, VALUE, 1, |out| push_value(out, value));
        });
    }
}

/// Whether a value has more than [`MAX_LEVELS`] levels of arrays and maps.
fn is_too_deep(value: ValueView<'_>) -> bool {
    fn exceeds(value: ValueView<'_>, levels: usize) -> bool {
        match value {
            ValueView::Array(mut values) => levels == 0 || values.any(|value| exceeds(value, levels - 1)),
            ValueView::Map(mut members) => levels == 0 || members.any(|member| exceeds(member.value(), levels - 1)),
            _ => false,
        }
    }
    exceeds(value, MAX_LEVELS)
}
