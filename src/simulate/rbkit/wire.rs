//! Message bodies as the gem packs them. The tables are in section 2 of the protocol notes.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::dialect::Dialect;

/// The type of an event. Its number depends on the dialect.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
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

impl Kind {
    fn number(self, dialect: Dialect) -> u64 {
        let number = match self {
            Kind::Created | Kind::Snapshot => return 0,
            Kind::Destroyed => return 1,
            Kind::GcStart => 2,
            Kind::GcEndMark => 3,
            Kind::GcEndSweep => 4,
            Kind::Dump => 5,
            Kind::GcStats => 6,
            Kind::Collection => 7,
            Kind::Handshake => 8,
            Kind::CpuSample => 9,
        };
        // The document's enum has no obj_destroyed, so that everything behind it moves up.
        if dialect == Dialect::Spec21 { number - 1 } else { number }
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
pub(super) enum Value {
    Nil,
    Unsigned(u64),
    Float(f64),
    Text(Cow<'static, str>),
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Unsigned(number)
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Value {
        Value::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(Cow::Owned(text))
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Nil, Into::into)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Nil => serializer.serialize_none(),
            Value::Unsigned(number) => serializer.serialize_u64(*number),
            Value::Float(number) => serializer.serialize_f64(*number),
            Value::Text(text) => serializer.serialize_str(text),
            Value::Array(values) => {
                let mut array = serializer.serialize_seq(Some(values.len()))?;
                values.iter().try_for_each(|value| array.serialize_element(value))?;
                array.end()
            }
            Value::Map(pairs) => {
                let mut map = serializer.serialize_map(Some(pairs.len()))?;
                pairs.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
        }
    }
}

/// A map with integer keys.
pub(super) fn fields<const N: usize>(pairs: [(u64, Value); N]) -> Value {
    Value::Map(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

/// An event of a collection, or the reply to a handshake. `millis`: since 1970.
pub(super) fn event(dialect: Dialect, kind: Kind, millis: u64, payload: Option<Value>) -> Value {
    let mut pairs = vec![
        (key::EVENT_TYPE.into(), kind.number(dialect).into()),
        (key::TIMESTAMP.into(), Value::Float(millis as f64)),
    ];
    pairs.extend(payload.map(|payload| (key::PAYLOAD.into(), payload)));
    Value::Map(pairs)
}

/// Appends `value` in the encoding of a dialect.
pub(super) fn pack(dialect: Dialect, value: &Value, out: &mut Vec<u8>) -> io::Result<()> {
    let packed = if dialect.is_raw() {
        value.serialize(&mut rmp_serde::Serializer::new(Raw::new(out)))
    } else {
        value.serialize(&mut rmp_serde::Serializer::new(out))
    };
    packed.map_err(io::Error::other)
}

/// A message up to the first of its `events`, which [`event`] packs.
pub(super) fn collection_head(dialect: Dialect, counter: u64, millis: u64, events: usize) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let pairs = [
        (key::EVENT_TYPE, Kind::Collection.number(dialect).into()),
        (key::TIMESTAMP, Value::Float(millis as f64)),
        (key::MESSAGE_COUNTER, counter.into()),
        (key::PAYLOAD, Value::Array(Vec::new())),
    ];
    pack(dialect, &fields(pairs), &mut head)?;
    open_array(&mut head, events);
    Ok(head)
}

/// One event of a heap dump up to its first object. `split`: the number of the dump, and the number of all its objects.
pub(super) fn dump_head(
    dialect: Dialect,
    millis: u64,
    split: Option<(u64, u64)>,
    objects: usize,
) -> io::Result<Vec<u8>> {
    let mut pairs = vec![
        (key::EVENT_TYPE.into(), Kind::Dump.number(dialect).into()),
        (key::TIMESTAMP.into(), Value::Float(millis as f64)),
    ];
    if let Some((number, complete)) = split {
        pairs.push((key::CORRELATION_ID.into(), number.into()));
        pairs.push((key::COMPLETE_MESSAGE_COUNT.into(), complete.into()));
    }
    pairs.push((key::PAYLOAD.into(), Value::Array(Vec::new())));
    let mut head = Vec::new();
    pack(dialect, &Value::Map(pairs), &mut head)?;
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
    state: State,
}

#[derive(Clone, Copy)]
enum State {
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
        Raw { out, state: State::Marker }
    }

    fn take(&mut self, byte: u8) {
        if !matches!((self.state, byte), (State::Marker, STR8)) {
            self.out.push(byte);
        }
        self.state = match self.state {
            State::Marker => after(byte),
            State::Str8 => {
                self.out.pop();
                self.out.extend_from_slice(&[STR16, 0, byte]);
                State::Data(u32::from(byte))
            }
            State::Length(1, known) => State::Data(known << 8 | u32::from(byte)),
            State::Length(left, known) => State::Length(left - 1, known << 8 | u32::from(byte)),
            State::Data(left) => State::Data(left - 1),
        };
        if let State::Data(0) = self.state {
            self.state = State::Marker;
        }
    }
}

const STR8: u8 = 0xd9;
const STR16: u8 = 0xda;

/// The bytes that follow a marker, for the types that [`Value`] has.
fn after(marker: u8) -> State {
    match marker {
        0xa0..=0xbf => State::Data(u32::from(marker & 0x1f)),
        0xcc => State::Data(1),
        0xcd | 0xdc | 0xde => State::Data(2),
        0xce | 0xdd | 0xdf => State::Data(4),
        0xcb | 0xcf => State::Data(8),
        STR8 => State::Str8,
        STR16 => State::Length(2, 0),
        0xdb => State::Length(4, 0),
        _ => State::Marker,
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some((&byte, behind)) = rest.split_first() {
            match self.state {
                // Texts in one go.
                State::Data(left) if left as usize <= rest.len() => {
                    let (data, behind) = rest.split_at(left as usize);
                    self.out.extend_from_slice(data);
                    self.state = State::Marker;
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

    fn packed(dialect: Dialect, value: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        pack(dialect, value, &mut out).expect("memory takes everything");
        out
    }

    #[test]
    fn a_garbage_collection_is_packed_as_in_the_notes() {
        let mut message = collection_head(Dialect::Master21, 0, 1_795_175_552_670, 1).expect("it is small");
        let event = event(Dialect::Master21, Kind::GcStart, 1_795_175_552_670, None);
        message.extend(packed(Dialect::Master21, &event));
        let time = b"\xcb\x42\x7a\x1f\x90\x2b\x89\xe0\x00";
        assert_eq!(message[5..13].len(), time[1..].len());
        assert_eq!([&message[..5], &message[13..19]].concat(), *b"\x84\x00\x07\x01\xcb\x09\x00\x02\x91\x82\x00");
        assert_eq!(message[19..22], [2, 1, 0xcb]);
        assert_eq!(f64::from_be_bytes(message[5..13].try_into().expect("8 bytes")), 1_795_175_552_670.0);
    }

    #[test]
    fn texts_of_32_bytes_have_two_bytes_of_length_in_raw_dialects_and_numbers_stay() {
        let text = |length| Value::from("x".repeat(length));
        let all = Value::Array(vec![
            text(31),
            text(32),
            0xd9_u64.into(),
            text(255),
            0xd9d9_d9d9_d9d9_d9d9_u64.into(),
            text(256),
            Value::Float(f64::from_bits(0xd9d9_d9d9_d9d9_d9d9)),
            text(70_000),
            text(40),
        ]);
        let modern = packed(Dialect::Master21, &all);
        let raw = packed(Dialect::Master21Raw, &all);
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
