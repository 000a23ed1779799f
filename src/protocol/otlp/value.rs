//! Values and attributes: `AnyValue` and `KeyValue` of `common.proto`.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_codec::key_filter::KeyFilter;
use tributary_codec::protobuf::{ProtobufFields, ProtobufValue};
use tributary_codec::text::{cut, cut_bytes, escape, repair};
use tributary_event::{AttributeKeys, BatchBuilder, Interned, Key, Span32, Text, Value};

use super::profile_dictionary::Strings;

/// Up to this many attributes are compared one by one to find repeated keys.
const MAX_COMPARED: usize = 32;
/// The end of the keys of bytes, which are shown as base64.
const BASE64: &str = "_base64";

/// What was done to the texts of a record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TextMarks {
    pub(super) is_repaired: bool,
    pub(super) is_cut: bool,
}

/// Writes texts, values and attributes to a batch.
pub(super) struct ValueWriter<'a> {
    pub(super) keys: &'a mut AttributeKeys,
    pub(super) batch: &'a mut BatchBuilder,
    pub(super) marks: TextMarks,
    /// The longest text, and the most attributes of a record.
    pub(super) max_text_bytes: usize,
    pub(super) max_attributes: usize,
    /// Attributes beyond that.
    pub(super) dropped: u64,
    /// Stands before the keys of attributes.
    pub(super) prefix: &'static str,
    /// Of a request with profiles.
    pub(super) strings: Strings<'a>,
    /// The bytes of these that a record may still have: many values may be the same long text.
    pub(super) strings_left: usize,
}

/// A key and its value, as messages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WireAttribute<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
}

impl<'a> WireAttribute<'a> {
    /// Of a message `KeyValue`.
    #[inline]
    pub(super) fn of(message: &'a [u8]) -> WireAttribute<'a> {
        WireAttribute::with(message, Strings::default())
    }

    /// Of a message `KeyValue` whose key may be a text of the dictionary.
    #[inline]
    pub(super) fn with(message: &'a [u8], strings: Strings<'a>) -> WireAttribute<'a> {
        let mut member = WireAttribute::default();
        for field in ProtobufFields::of(message) {
            match (field.number, field.value) {
                (1, ProtobufValue::Bytes(key)) => member.key = key,
                (2, ProtobufValue::Bytes(value)) => member.value = value,
                (3, ProtobufValue::Varint(index)) if index > 0 => member.key = strings.key(index),
                _ => {}
            }
        }
        member
    }
}

/// The members of a message whose fields with this number are `KeyValue`.
pub(super) fn members<'a>(
    message: &'a [u8],
    number: u64,
    strings: Strings<'a>,
) -> impl Iterator<Item = WireAttribute<'a>> {
    ProtobufFields::of(message).filter_map(move |field| match field.value {
        ProtobufValue::Bytes(bytes) if field.number == number => Some(WireAttribute::with(bytes, strings)),
        _ => None,
    })
}

/// The value of an `AnyValue`: its last field. `None`: it has no value.
#[inline]
pub(super) fn value_of(any: &[u8]) -> Option<(u64, ProtobufValue<'_>)> {
    let known = ProtobufFields::of(any).filter(|field| (1..=8).contains(&field.number));
    known.last().map(|field| (field.number, field.value))
}

impl ValueWriter<'_> {
    /// A text, repaired and cut.
    pub(super) fn text(&mut self, bytes: &[u8]) -> Text {
        let start = cut_bytes(bytes, self.max_text_bytes);
        let (text, is_repaired) = repair(start);
        let kept = cut(&text, self.max_text_bytes);
        self.marks.is_repaired |= is_repaired;
        self.marks.is_cut |= start.len() < bytes.len() || kept.len() < text.len();
        self.batch.push_text(kept)
    }

    /// A text that many records have.
    pub(super) fn interned(&mut self, memo: &mut Interned, bytes: &[u8]) -> Text {
        self.batch.interned(memo).unwrap_or_else(|| {
            let (text, _) = repair(cut_bytes(bytes, self.max_text_bytes));
            self.batch.intern(memo, cut(&text, self.max_text_bytes))
        })
    }

    /// The value of a message `AnyValue`. Nesting was checked.
    pub(super) fn value(&mut self, any: &[u8]) -> Value {
        match value_of(any) {
            Some((1, ProtobufValue::Bytes(text))) => self.text(text).into(),
            Some((2, ProtobufValue::Varint(value))) => Value::Bool(value != 0),
            Some((3, ProtobufValue::Varint(value))) => Value::I64(value as i64),
            Some((4, ProtobufValue::Fixed(bytes))) => Value::F64(f64::from_bits(fixed64(bytes))),
            Some((5, ProtobufValue::Bytes(array))) => {
                let items: Vec<Value> = messages(array, 1).map(|item| self.value(item)).collect();
                self.batch.array(&items)
            }
            Some((6, ProtobufValue::Bytes(list))) => {
                let all: Vec<WireAttribute<'_>> = members(list, 1, self.strings).collect();
                Value::Map(self.map(&all, false))
            }
            Some((7, ProtobufValue::Bytes(bytes))) => self.batch.bytes(bytes),
            Some((8, ProtobufValue::Varint(index))) if index > 0 => {
                let text = self.strings.get(index);
                let kept = cut_bytes(text, self.strings_left);
                self.strings_left -= kept.len();
                self.marks.is_cut |= kept.len() < text.len();
                self.text(kept).into()
            }
            _ => Value::Null,
        }
    }

    /// The members of a map inside a value, or of attributes.
    fn map(&mut self, all: &[WireAttribute<'_>], is_attributes: bool) -> Span32 {
        let written = self.pairs(all, is_attributes);
        self.batch.members(&written)
    }

    /// The attributes of a link or of an event of a span.
    pub(super) fn attributes_of(&mut self, message: &[u8], number: u64) -> Span32 {
        let all: Vec<WireAttribute<'_>> = members(message, number, self.strings).collect();
        self.map(&all, true)
    }

    /// Attributes in their order. Of a repeated key the last value counts. Null is no value of an attribute.
    pub(super) fn pairs(&mut self, all: &[WireAttribute<'_>], is_attributes: bool) -> Vec<(Key, Value)> {
        let kept = if is_attributes { all.len().min(self.max_attributes) } else { all.len() };
        self.dropped += (all.len() - kept) as u64;
        let all = &all[..kept];
        let filter = KeyFilter::of(all.iter().map(|member| member.key));
        let places: Option<HashMap<&[u8], usize, RandomState>> =
            (kept > MAX_COMPARED).then(|| all.iter().enumerate().map(|(place, member)| (member.key, place)).collect());
        let is_last = |place: usize| match &places {
            _ if filter.are_distinct() => true,
            Some(places) => places.get(all[place].key) == Some(&place),
            None => !all[place + 1..].iter().any(|later| later.key == all[place].key),
        };
        let has = |key: &[u8]| match &places {
            _ if !filter.may_have(key) => false,
            Some(places) => places.contains_key(key),
            None => all.iter().any(|member| member.key == key),
        };
        let prefix = if is_attributes { self.prefix } else { "" };
        let mut written = Vec::with_capacity(kept);
        for place in (0..kept).filter(|place| is_last(*place)) {
            let member = &all[place];
            let value = self.value(member.value);
            let key = match value {
                Value::Null if is_attributes => continue,
                Value::Bytes(_) if !has(&[member.key, BASE64.as_bytes()].concat()) => {
                    let (text, _) = repair(member.key);
                    self.batch.push_parts(&[prefix, &text, BASE64]).into()
                }
                _ if !prefix.is_empty() => {
                    let (text, _) = repair(member.key);
                    self.batch.push_parts(&[prefix, &text]).into()
                }
                // Bytes that are no text are shown as escapes: different keys stay different.
                _ => match self.keys.find(member.key, self.batch) {
                    Some(key) => key,
                    None => self.keys.add(member.key, &escape(member.key), self.batch),
                },
            };
            written.push((key, value));
        }
        written
    }
}

/// The messages of a field.
pub(super) fn messages(message: &[u8], number: u64) -> impl Iterator<Item = &[u8]> {
    ProtobufFields::of(message).filter_map(move |field| match field.value {
        ProtobufValue::Bytes(bytes) if field.number == number => Some(bytes),
        _ => None,
    })
}

/// The number of 8 bytes. Their length was checked.
#[inline]
pub(super) fn fixed64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The number of 4 bytes.
#[inline]
pub(super) fn fixed32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
