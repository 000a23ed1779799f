//! Keys and values of attributes, small because events are mostly attributes.

use super::Name;
use super::text::{Text, index32};

/// The name of an event or attribute: one of [`super::semconv`] or one of the peer. Has the size of a text.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Start of the text; [`Key::NAME`] for a name.
    start: u32,
    /// As in [`Text`]; for a name its index in the table of names.
    rest: u32,
}

/// What a [`Key`] is.
pub(super) enum KeyContent {
    /// A name of [`super::semconv`].
    Name(Name),
    /// A name of the peer.
    Text(Text),
}

impl Key {
    /// No text begins at this offset: batches are far smaller.
    const NAME: u32 = u32::MAX;

    #[inline]
    pub(super) fn named(self) -> KeyContent {
        match self.start {
            Key::NAME => KeyContent::Name(Name(self.rest as u16)),
            start => KeyContent::Text(Text { start, len_and_escapes: self.rest }),
        }
    }

    /// Whether it is this name of ours.
    pub fn is(self, name: Name) -> bool {
        matches!(self.named(), KeyContent::Name(own) if own == name)
    }

    /// The most bytes of it in the output, escaped.
    #[inline]
    pub(super) fn output_len(self) -> usize {
        match self.named() {
            KeyContent::Name(name) => name.as_str().len(),
            KeyContent::Text(text) => text.output_len(),
        }
    }
}

impl From<Name> for Key {
    fn from(name: Name) -> Self {
        Key { start: Key::NAME, rest: name.0.into() }
    }
}

impl From<Text> for Key {
    fn from(text: Text) -> Self {
        Key { start: text.start, rest: text.len_and_escapes }
    }
}

/// The value of an attribute or of a body.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// Null; only inside arrays, maps and bodies.
    Null,
    /// A boolean.
    Bool(bool),
    /// A signed integer.
    I64(i64),
    /// An unsigned integer.
    U64(u64),
    /// A double; every bit pattern is allowed.
    F64(f64),
    /// A text.
    Text(Text),
    /// Bytes, shown as base64; the key ends in `_base64`.
    Bytes(Span32),
    /// Made by [`super::BatchBuilder::array`].
    Array(Span32),
    /// Made by [`super::BatchBuilder::map`].
    Map(Span32),
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::I64(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Value::U64(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Value::F64(value)
    }
}

impl From<Text> for Value {
    fn from(value: Text) -> Self {
        Value::Text(value)
    }
}

/// A range in one of the vectors of the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span32 {
    start: u32,
    end: u32,
}

impl Span32 {
    #[inline]
    pub(super) fn new(start: usize, end: usize) -> Self {
        Span32 { start: index32(start), end: index32(end) }
    }

    #[inline]
    pub(super) fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}
