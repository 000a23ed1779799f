//! Reads typed values of a body: MessagePack in which every field may be nil or absent.

use tributary_codec::msgpack::{MsgpackValue, Reader};
use tributary_codec::reader::{DecodeError, DecodeErrorKind};

use super::span::{BodyPart, WireValue};

/// The deepest nesting of values of attributes.
pub(super) const MAX_DEPTH: usize = 32;

/// The strings of a body that are referred to by their number.
#[derive(Debug, Default)]
pub(super) struct StringTable {
    strings: Vec<BodyPart>,
    limit: usize,
    /// Whether it has all strings of the body: reading adds none.
    pub(super) is_complete: bool,
}

impl StringTable {
    pub(super) fn new(limit: usize) -> StringTable {
        StringTable { strings: Vec::new(), limit, is_complete: false }
    }

    /// Adds a string.
    ///
    /// # Errors
    /// It has as many as it may have.
    pub(super) fn push(&mut self, text: BodyPart, offset: usize) -> Result<(), DecodeError> {
        if self.strings.len() >= self.limit {
            let found = self.strings.len() as u64 + 1;
            let kind = DecodeErrorKind::TooLarge { found, limit: self.limit as u64, key: "max_strings" };
            return Err(DecodeError { field: "strings", offset, kind });
        }
        self.strings.push(text);
        Ok(())
    }

    /// The string with this number.
    ///
    /// # Errors
    /// There is none.
    #[inline]
    pub(super) fn get(&self, index: u64, field: &'static str, offset: usize) -> Result<BodyPart, DecodeError> {
        let text = usize::try_from(index).ok().and_then(|index| self.strings.get(index));
        text.copied().ok_or_else(|| invalid(field, offset, index, "the number of a string of the table"))
    }
}

/// Reads a body from an offset.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    pub(super) body: &'a [u8],
    reader: Reader<'a>,
}

impl<'a> Cursor<'a> {
    pub(super) fn at(body: &'a [u8], offset: usize) -> Cursor<'a> {
        Cursor { body, reader: Reader::starting_at(body, offset) }
    }

    #[inline]
    pub(super) fn offset(&self) -> usize {
        self.reader.offset()
    }

    /// Checks that nothing follows.
    pub(super) fn finish(&self) -> Result<(), DecodeError> {
        let rest = self.reader.rest().len() as u64;
        if rest == 0 { Ok(()) } else { Err(invalid("end", self.offset(), rest, "no bytes behind the payload")) }
    }

    #[inline]
    pub(super) fn next(&mut self, field: &'static str) -> Result<MsgpackValue<'a>, DecodeError> {
        self.reader.next(field)
    }

    /// The next value if it is a non-negative integer, as the numbers of strings and the keys of version 1.0 are; else nothing
    /// is read.
    #[inline]
    pub(super) fn next_unsigned(&mut self) -> Option<u64> {
        self.reader.unsigned()
    }

    pub(super) fn skip(&mut self, field: &'static str) -> Result<(), DecodeError> {
        self.reader.skip(field)
    }

    /// The number of elements of an array; of nil none.
    pub(super) fn array(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let at = self.offset();
        match self.next(field)? {
            MsgpackValue::Array(count) => Ok(count),
            MsgpackValue::Nil => Ok(0),
            _ => Err(self.wrong(field, at, "an array")),
        }
    }

    /// Reads the elements of an array by `each`; returns their number, and where the first one begins.
    pub(super) fn elements(
        &mut self,
        field: &'static str,
        mut each: impl FnMut(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<(u32, usize), DecodeError> {
        let (count, start) = (self.array(field)?, self.offset());
        for _ in 0..count {
            each(self)?;
        }
        Ok((count, start))
    }

    /// The number of pairs of a map; of nil none.
    pub(super) fn map(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let at = self.offset();
        match self.next(field)? {
            MsgpackValue::Map(count) => Ok(count),
            MsgpackValue::Nil => Ok(0),
            _ => Err(self.wrong(field, at, "a map")),
        }
    }

    /// A text; of nil the empty one. Old clients send texts as bytes.
    #[inline]
    pub(super) fn text(&mut self, field: &'static str) -> Result<BodyPart, DecodeError> {
        if let Some(text) = self.short_text() {
            return Ok(text);
        }
        let at = self.offset();
        match self.next(field)? {
            MsgpackValue::Text(text) | MsgpackValue::Binary(text) => Ok(BodyPart::ending_at(self.offset(), text)),
            MsgpackValue::Nil => Ok(BodyPart::default()),
            _ => Err(self.wrong(field, at, "a text")),
        }
    }

    /// The next value if it is a short text, as most are; else nothing is read.
    #[inline]
    pub(super) fn short_text(&mut self) -> Option<BodyPart> {
        self.reader.short_text().map(|text| BodyPart::ending_at(self.offset(), text))
    }

    /// The key of a map.
    #[inline]
    pub(super) fn key(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let at = self.offset();
        match self.reader.short_text() {
            Some(key) => Ok(key),
            None => match self.next(field)? {
                MsgpackValue::Text(text) => Ok(text),
                _ => Err(self.wrong(field, at, "a text as key")),
            },
        }
    }

    /// Bytes; of nil none.
    pub(super) fn bytes(&mut self, field: &'static str) -> Result<BodyPart, DecodeError> {
        let at = self.offset();
        match self.next(field)? {
            MsgpackValue::Binary(bytes) => Ok(BodyPart::ending_at(self.offset(), bytes)),
            MsgpackValue::Nil => Ok(BodyPart::default()),
            _ => Err(self.wrong(field, at, "bytes")),
        }
    }

    /// An integer without sign; of nil 0. Clients also send ids with a sign, whose bits count.
    #[inline]
    pub(super) fn unsigned(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        if let Some(number) = self.next_unsigned() {
            return Ok(number);
        }
        let at = self.offset();
        match self.next(field)? {
            MsgpackValue::Unsigned(number) => Ok(number),
            MsgpackValue::Negative(number) => Ok(number as u64),
            MsgpackValue::Nil => Ok(0),
            _ => Err(self.wrong(field, at, "an integer")),
        }
    }

    /// An integer; of nil 0.
    #[inline]
    pub(super) fn signed(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        let at = self.offset();
        let value =
            self.next_unsigned().map_or_else(|| self.next(field), |number| Ok(MsgpackValue::Unsigned(number)))?;
        match value {
            MsgpackValue::Unsigned(number) => {
                i64::try_from(number).map_err(|_| invalid(field, at, number, "an integer of 64 bits with sign"))
            }
            MsgpackValue::Negative(number) => Ok(number),
            MsgpackValue::Float(number) if number.fract() == 0.0 && number.abs() < 9e18 => Ok(number as i64),
            MsgpackValue::Nil => Ok(0),
            _ => Err(self.wrong(field, at, "an integer")),
        }
    }

    /// A boolean or an integer that stands for one; of nil false.
    pub(super) fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        let at = self.offset();
        match self.next(field)? {
            MsgpackValue::Bool(value) => Ok(value),
            MsgpackValue::Unsigned(number) => Ok(number != 0),
            MsgpackValue::Negative(_) => Ok(true),
            MsgpackValue::Nil => Ok(false),
            _ => Err(self.wrong(field, at, "a boolean or an integer")),
        }
    }

    /// A number; of nil none.
    #[inline]
    pub(super) fn number(&mut self, field: &'static str) -> Result<WireValue, DecodeError> {
        let at = self.offset();
        let value = self.next(field)?;
        match WireValue::scalar(value, self.offset()) {
            Some(value @ (WireValue::U64(_) | WireValue::I64(_) | WireValue::F64(_) | WireValue::Null)) => Ok(value),
            _ => Err(self.wrong(field, at, "a number")),
        }
    }

    /// What is wrong with the value at this offset: its first byte is shown.
    pub(super) fn wrong(&self, field: &'static str, offset: usize, expected: &'static str) -> DecodeError {
        invalid(field, offset, self.body.get(offset).copied().unwrap_or(0).into(), expected)
    }
}

pub(super) fn invalid(field: &'static str, offset: usize, found: u64, expected: &'static str) -> DecodeError {
    DecodeError { field, offset, kind: DecodeErrorKind::Invalid { found, expected } }
}
