//! Message bodies as the gem packs them. The tables are in section 2 of the protocol notes.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::dialect::RbkitDialect;

/// The type of an event. Its number depends on the dialect.
#[derive(Clone, Copy, Debug)]
pub(super) enum EventType {
    Created,
    Destroyed,
    Snapshot,
    GcStart,
    GcEndMark,
    GcEndSweep,
    Dump,
    GcStats,
    Collection,
    Handshake,
    CpuSample,
}

impl EventType {
    fn number(self, dialect: RbkitDialect) -> u64 {
        let number = match self {
            EventType::Created | EventType::Snapshot => return 0,
            EventType::Destroyed => return 1,
            EventType::GcStart => 2,
            EventType::GcEndMark => 3,
            EventType::GcEndSweep => 4,
            EventType::Dump => 5,
            EventType::GcStats => 6,
            EventType::Collection => 7,
            EventType::Handshake => 8,
            EventType::CpuSample => 9,
        };
        // The document's enum has no obj_destroyed, so that everything behind it moves up.
        if dialect == RbkitDialect::Spec21 { number - 1 } else { number }
    }
}

/// The integer keys of maps.
pub(super) mod key {
    pub(in super::super) const EVENT_TYPE: u64 = 0;
    pub(in super::super) const TIMESTAMP: u64 = 1;
    pub(in super::super) const PAYLOAD: u64 = 2;
    pub(in super::super) const OBJECT_ID: u64 = 3;
    pub(in super::super) const CLASS_NAME: u64 = 4;
    pub(in super::super) const REFERENCES: u64 = 5;
    pub(in super::super) const FILE: u64 = 6;
    pub(in super::super) const LINE: u64 = 7;
    pub(in super::super) const SIZE: u64 = 8;
    pub(in super::super) const MESSAGE_COUNTER: u64 = 9;
    pub(in super::super) const CORRELATION_ID: u64 = 10;
    pub(in super::super) const COMPLETE_MESSAGE_COUNT: u64 = 11;
    pub(in super::super) const METHOD_NAME: u64 = 12;
    pub(in super::super) const LABEL: u64 = 13;
    pub(in super::super) const SINGLETON_METHOD: u64 = 14;
    pub(in super::super) const THREAD_ID: u64 = 15;
    pub(in super::super) const STACKTRACE: u64 = 16;
    pub(in super::super) const COUNT: u64 = 17;
    pub(in super::super) const ALLOCATIONS: u64 = 18;
}

/// A value that the gem packs.
#[derive(Clone, Debug)]
pub(super) enum PackedValue {
    Nil,
    Unsigned(u64),
    Float(f64),
    Text(Cow<'static, str>),
    Array(Vec<PackedValue>),
    Map(Vec<(PackedValue, PackedValue)>),
}

impl From<u64> for PackedValue {
    fn from(number: u64) -> PackedValue {
        PackedValue::Unsigned(number)
    }
}

impl From<&'static str> for PackedValue {
    fn from(text: &'static str) -> PackedValue {
        PackedValue::Text(Cow::Borrowed(text))
    }
}

impl From<String> for PackedValue {
    fn from(text: String) -> PackedValue {
        PackedValue::Text(Cow::Owned(text))
    }
}

impl<T: Into<PackedValue>> From<Option<T>> for PackedValue {
    fn from(value: Option<T>) -> PackedValue {
        value.map_or(PackedValue::Nil, Into::into)
    }
}

impl Serialize for PackedValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            PackedValue::Nil => serializer.serialize_none(),
            PackedValue::Unsigned(number) => serializer.serialize_u64(*number),
            PackedValue::Float(number) => serializer.serialize_f64(*number),
            PackedValue::Text(text) => serializer.serialize_str(text),
            PackedValue::Array(values) => {
                let mut array = serializer.serialize_seq(Some(values.len()))?;
                values.iter().try_for_each(|value| array.serialize_element(value))?;
                array.end()
            }
            PackedValue::Map(pairs) => {
                let mut map = serializer.serialize_map(Some(pairs.len()))?;
                pairs.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
        }
    }
}

/// A map with integer keys.
pub(super) fn fields<const N: usize>(pairs: [(u64, PackedValue); N]) -> PackedValue {
    PackedValue::Map(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

/// An event of a collection, or the reply to a handshake. `millis`: since 1970.
pub(super) fn event(dialect: RbkitDialect, kind: EventType, millis: u64, payload: Option<PackedValue>) -> PackedValue {
    let mut pairs = vec![
        (key::EVENT_TYPE.into(), kind.number(dialect).into()),
        (key::TIMESTAMP.into(), PackedValue::Float(millis as f64)),
    ];
    pairs.extend(payload.map(|payload| (key::PAYLOAD.into(), payload)));
    PackedValue::Map(pairs)
}

/// Appends `value` in the encoding of a dialect.
pub(super) fn pack(dialect: RbkitDialect, value: &PackedValue, out: &mut Vec<u8>) -> io::Result<()> {
    let packed = if dialect.is_raw() {
        value.serialize(&mut rmp_serde::Serializer::new(Raw::new(out)))
    } else {
        value.serialize(&mut rmp_serde::Serializer::new(out))
    };
    packed.map_err(io::Error::other)
}

/// A message up to the first of its `events`, which [`event`] packs.
pub(super) fn collection_head(dialect: RbkitDialect, counter: u64, millis: u64, events: usize) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let pairs = [
        (key::EVENT_TYPE, EventType::Collection.number(dialect).into()),
        (key::TIMESTAMP, PackedValue::Float(millis as f64)),
        (key::MESSAGE_COUNTER, counter.into()),
        (key::PAYLOAD, PackedValue::Array(Vec::new())),
    ];
    pack(dialect, &fields(pairs), &mut head)?;
    open_array(&mut head, events);
    Ok(head)
}

/// One event of a heap dump up to its first object. `split`: the number of the dump, and the number of all its objects.
pub(super) fn dump_head(
    dialect: RbkitDialect,
    millis: u64,
    split: Option<(u64, u64)>,
    objects: usize,
) -> io::Result<Vec<u8>> {
    let mut pairs = vec![
        (key::EVENT_TYPE.into(), EventType::Dump.number(dialect).into()),
        (key::TIMESTAMP.into(), PackedValue::Float(millis as f64)),
    ];
    if let Some((number, complete)) = split {
        pairs.push((key::CORRELATION_ID.into(), number.into()));
        pairs.push((key::COMPLETE_MESSAGE_COUNT.into(), complete.into()));
    }
    pairs.push((key::PAYLOAD.into(), PackedValue::Array(Vec::new())));
    let mut head = Vec::new();
    pack(dialect, &PackedValue::Map(pairs), &mut head)?;
    open_array(&mut head, objects);
    Ok(head)
}

/// Replaces the empty array at the end of `out` with the head of an array of `length` elements.
fn open_array(out: &mut Vec<u8>, length: usize) {
    out.pop();
    match length {
        0..16 => out.push(0x90 | length as u8),
        16..0x1_0000 => {
            out.push(0xdc);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.push(0xdd);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
}

/// Converts MessagePack to the output of msgpack-c 0.5.9, which has no `str8`: a text of 32 to 255 bytes has a length of two
/// bytes.
struct Raw<'a> {
    out: &'a mut Vec<u8>,
    /// The meaning of the next bytes.
    state: ConverterState,
}

#[derive(Clone, Copy)]
enum ConverterState {
    Marker,
    /// The length of a `str8`.
    Str8,
    /// This many bytes of a length, and its value so far.
    Length(u8, u32),
    /// This many bytes of a number, a count or a text.
    Data(u32),
}

impl<'a> Raw<'a> {
    fn new(out: &'a mut Vec<u8>) -> Self {
        Raw { out, state: ConverterState::Marker }
    }

    fn take(&mut self, byte: u8) {
        if !matches!((self.state, byte), (ConverterState::Marker, STR8)) {
            self.out.push(byte);
        }
        self.state = match self.state {
            ConverterState::Marker => after(byte),
            ConverterState::Str8 => {
                self.out.pop();
                self.out.extend_from_slice(&[STR16, 0, byte]);
                ConverterState::Data(u32::from(byte))
            }
            ConverterState::Length(1, known) => ConverterState::Data(known << 8 | u32::from(byte)),
            ConverterState::Length(left, known) => ConverterState::Length(left - 1, known << 8 | u32::from(byte)),
            ConverterState::Data(left) => ConverterState::Data(left - 1),
        };
        if let ConverterState::Data(0) = self.state {
            self.state = ConverterState::Marker;
        }
    }
}

const STR8: u8 = 0xd9;
const STR16: u8 = 0xda;

/// The bytes that follow a marker, for the types that [`PackedValue`] has.
fn after(marker: u8) -> ConverterState {
    match marker {
        0xa0..=0xbf => ConverterState::Data(u32::from(marker & 0x1f)),
        0xcc => ConverterState::Data(1),
        0xcd | 0xdc | 0xde => ConverterState::Data(2),
        0xce | 0xdd | 0xdf => ConverterState::Data(4),
        0xcb | 0xcf => ConverterState::Data(8),
        STR8 => ConverterState::Str8,
        STR16 => ConverterState::Length(2, 0),
        0xdb => ConverterState::Length(4, 0),
        _ => ConverterState::Marker,
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some((&byte, behind)) = rest.split_first() {
            match self.state {
                // Texts in one go.
                ConverterState::Data(left) if left as usize <= rest.len() => {
                    let (data, behind) = rest.split_at(left as usize);
                    self.out.extend_from_slice(data);
                    self.state = ConverterState::Marker;
                    rest = behind;
                }
                _ => {
                    self.take(byte);
                    rest = behind;
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(dialect: RbkitDialect, value: &PackedValue) -> Vec<u8> {
        let mut out = Vec::new();
        pack(dialect, value, &mut out).expect("memory takes everything");
        out
    }

    #[test]
    fn a_garbage_collection_is_packed_as_in_the_notes() {
        let mut message = collection_head(RbkitDialect::Master21, 0, 1_795_175_552_670, 1).expect("it is small");
        let event = event(RbkitDialect::Master21, EventType::GcStart, 1_795_175_552_670, None);
        message.extend(packed(RbkitDialect::Master21, &event));
        let time = b"\xcb\x42\x7a\x1f\x90\x2b\x89\xe0\x00";
        assert_eq!(message[5..13].len(), time[1..].len());
        assert_eq!([&message[..5], &message[13..19]].concat(), *b"\x84\x00\x07\x01\xcb\x09\x00\x02\x91\x82\x00");
        assert_eq!(message[19..22], [2, 1, 0xcb]);
        assert_eq!(f64::from_be_bytes(message[5..13].try_into().expect("8 bytes")), 1_795_175_552_670.0);
    }

    #[test]
    fn texts_of_32_bytes_have_two_bytes_of_length_in_raw_dialects_and_numbers_stay() {
        let text = |length| PackedValue::from("x".repeat(length));
        let all = PackedValue::Array(vec![
            text(31),
            text(32),
            0xd9_u64.into(),
            text(255),
            0xd9d9_d9d9_d9d9_d9d9_u64.into(),
            text(256),
            PackedValue::Float(f64::from_bits(0xd9d9_d9d9_d9d9_d9d9)),
            text(70_000),
            text(40),
        ]);
        let modern = packed(RbkitDialect::Master21, &all);
        let raw = packed(RbkitDialect::Master21Raw, &all);
        assert_eq!(modern[33..35], [0xd9, 32]);
        assert_eq!(raw[33..36], [0xda, 0, 32]);
        assert_eq!(raw[36 + 32..36 + 32 + 5], [0xcc, 0xd9, 0xda, 0, 255]);
        assert_eq!(raw.len(), modern.len() + 3);
        assert_eq!(raw[raw.len() - 43..raw.len() - 40], [0xda, 0, 40]);
        let read: Vec<rmp_value::Any> = rmp_serde::from_slice(&raw).expect("it is MessagePack");
        let same: Vec<rmp_value::Any> = rmp_serde::from_slice(&modern).expect("it is MessagePack");
        assert_eq!(read, same);
    }

    /// The values that the test above reads.
    mod rmp_value {
        #[derive(serde::Deserialize, PartialEq, Debug)]
        #[serde(untagged)]
        pub(super) enum Any {
            Unsigned(u64),
            Float(f64),
            Text(String),
        }
    }
}
