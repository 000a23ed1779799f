//! MessagePack: a bounded pull reader over borrowed bytes of messages that may still be arriving.
//!
//! Nothing is allocated or recursive. A count or length that does not fit into the message is an error when it is read, not
//! when its elements are missing. Source: the MessagePack specification; texts of the old raw family (without str8) are read
//! in the same way (field notes, rule 5).

use super::reader::{DecodeError, DecodeErrorKind, Reader as Bytes};

/// The deepest nesting that [`Reader::skip`] follows (field notes, section 5).
pub const MAX_DEPTH: usize = 32;

/// Reads values from the front of the received part of a message. `Copy`: a copy is a bookmark.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: Bytes<'a>,
    /// Bytes of the message that have not been received yet.
    missing: u64,
}

/// One value. Of an array or map only the head: the next calls return the elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MsgpackValue<'a> {
    /// `nil`.
    Nil,
    /// A boolean.
    Bool(bool),
    /// A non-negative integer.
    Unsigned(u64),
    /// A negative integer.
    Negative(i64),
    /// A float of either width.
    Float(f64),
    /// A text as its bytes, which need not be UTF-8.
    Text(&'a [u8]),
    /// Bytes.
    Binary(&'a [u8]),
    /// An array with this many elements.
    Array(u32),
    /// A map with this many pairs.
    Map(u32),
    /// An extension.
    Extension(u8, &'a [u8]),
}

impl<'a> Reader<'a> {
    /// A reader of the first bytes of a message; `missing` more bytes of it will follow.
    pub fn new(bytes: &'a [u8], missing: u64) -> Self {
        Reader { bytes: Bytes::new(bytes), missing }
    }

    /// A reader of a complete message from `offset` on; offsets are those in the message.
    pub fn starting_at(message: &'a [u8], offset: usize) -> Self {
        let mut bytes = Bytes::new(message);
        bytes.advance(offset);
        Reader { bytes, missing: 0 }
    }

    /// Offset of the next byte.
    pub fn offset(&self) -> usize {
        self.bytes.offset()
    }

    /// Bytes that have been received and not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.rest()
    }

    /// Whether the whole message has been read.
    pub fn is_at_end(&self) -> bool {
        self.bytes.rest().is_empty() && self.missing == 0
    }

    /// Whether a failed read may succeed when more of the message has been received.
    pub fn may_wait(&self, error: &DecodeError) -> bool {
        matches!(error.kind, DecodeErrorKind::Short { .. }) && self.missing > 0
    }

    /// The next value if it is a complete non-negative integer; else nothing is read. Fast path: most values are such
    /// integers.
    #[inline]
    pub fn unsigned(&mut self) -> Option<u64> {
        let rest = self.bytes.rest();
        let (number, size) = match *rest.first()? {
            first @ 0x00..=0x7f => (first.into(), 1),
            0xcc => (u64::from(*rest.get(1)?), 2),
            0xcd => (u16::from_be_bytes(*rest[1..].first_chunk()?).into(), 3),
            0xce => (u32::from_be_bytes(*rest[1..].first_chunk()?).into(), 5),
            0xcf => (u64::from_be_bytes(*rest[1..].first_chunk()?), 9),
            _ => return None,
        };
        self.bytes.advance(size);
        Some(number)
    }

    /// The next value if it is a complete text of at most 255 bytes; else nothing is read.
    #[inline]
    pub fn short_text(&mut self) -> Option<&'a [u8]> {
        let (head, length, rest) = match self.bytes.rest() {
            [first @ 0xa0..=0xbf, rest @ ..] => (1, usize::from(first & 0x1f), rest),
            [0xd9, length, rest @ ..] => (2, usize::from(*length), rest),
            _ => return None,
        };
        let text = rest.get(..length)?;
        self.bytes.advance(head + length);
        Some(text)
    }

    /// The next value.
    ///
    /// # Errors
    /// [`DecodeErrorKind::Short`]: it is not complete yet. [`DecodeErrorKind::Invalid`]: the byte 0xc1, or a count or length
    /// that does not fit into the message.
    pub fn next(&mut self, field: &'static str) -> Result<MsgpackValue<'a>, DecodeError> {
        let start = self.bytes;
        let value = self.value(field);
        if value.is_err() {
            self.bytes = start;
        }
        value
    }

    fn value(&mut self, field: &'static str) -> Result<MsgpackValue<'a>, DecodeError> {
        let start = self.offset();
        let first = self.bytes.u8(field)?;
        Ok(match first {
            0x00..=0x7f => MsgpackValue::Unsigned(first.into()),
            0x80..=0x8f => self.map(field, start, (first & 0x0f).into())?,
            0x90..=0x9f => self.array(field, start, (first & 0x0f).into())?,
            0xa0..=0xbf => MsgpackValue::Text(self.take(field, start, (first & 0x1f).into())?),
            0xc0 => MsgpackValue::Nil,
            0xc1 => return Err(invalid(field, start, first.into(), "a value; no value begins with this byte")),
            0xc2 => MsgpackValue::Bool(false),
            0xc3 => MsgpackValue::Bool(true),
            0xc4..=0xc6 => {
                let length = self.length(field, first - 0xc4)?;
                MsgpackValue::Binary(self.take(field, start, length)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(field, first - 0xc7)?;
                let kind = self.bytes.u8(field)?;
                MsgpackValue::Extension(kind, self.take(field, start, length)?)
            }
            0xca => MsgpackValue::Float(f32::from_bits(self.bytes.u32(field)?).into()),
            0xcb => MsgpackValue::Float(f64::from_bits(self.bytes.u64(field)?)),
            0xcc => MsgpackValue::Unsigned(self.bytes.u8(field)?.into()),
            0xcd => MsgpackValue::Unsigned(self.bytes.u16(field)?.into()),
            0xce => MsgpackValue::Unsigned(self.bytes.u32(field)?.into()),
            0xcf => MsgpackValue::Unsigned(self.bytes.u64(field)?),
            0xd0 => signed(i8::from_be_bytes(self.bytes.array(field)?).into()),
            0xd1 => signed(i16::from_be_bytes(self.bytes.array(field)?).into()),
            0xd2 => signed(i32::from_be_bytes(self.bytes.array(field)?).into()),
            0xd3 => signed(i64::from_be_bytes(self.bytes.array(field)?)),
            0xd4..=0xd8 => {
                let kind = self.bytes.u8(field)?;
                MsgpackValue::Extension(kind, self.take(field, start, 1 << (first - 0xd4))?)
            }
            0xd9..=0xdb => {
                let length = self.length(field, first - 0xd9)?;
                MsgpackValue::Text(self.take(field, start, length)?)
            }
            0xdc => {
                let count = self.bytes.u16(field)?;
                self.array(field, start, count.into())?
            }
            0xdd => {
                let count = self.bytes.u32(field)?;
                self.array(field, start, count)?
            }
            0xde => {
                let count = self.bytes.u16(field)?;
                self.map(field, start, count.into())?
            }
            0xdf => {
                let count = self.bytes.u32(field)?;
                self.map(field, start, count)?
            }
            0xe0..=0xff => MsgpackValue::Negative(i64::from(first) - 0x100),
        })
    }

    /// Skips the next value with its content.
    ///
    /// # Errors
    /// Those of [`Reader::next`]; [`DecodeErrorKind::TooLarge`] beyond [`MAX_DEPTH`].
    pub fn skip(&mut self, field: &'static str) -> Result<(), DecodeError> {
        let start = self.bytes;
        // Elements left, per level.
        let mut left = [0u64; MAX_DEPTH];
        let mut depth = 0;
        loop {
            let at = self.offset();
            let inside = match self.next(field) {
                Ok(MsgpackValue::Array(count)) => u64::from(count),
                Ok(MsgpackValue::Map(pairs)) => u64::from(pairs) * 2,
                Ok(_) => 0,
                Err(error) => {
                    self.bytes = start;
                    return Err(error);
                }
            };
            if inside > 0 {
                if depth == MAX_DEPTH {
                    self.bytes = start;
                    let (found, limit) = (MAX_DEPTH as u64 + 1, MAX_DEPTH as u64);
                    let kind = DecodeErrorKind::TooLarge { found, limit, key: "the nesting limit" };
                    return Err(DecodeError { field, offset: at, kind });
                }
                left[depth] = inside;
                depth += 1;
            } else {
                while depth > 0 && left[depth - 1] == 1 {
                    depth -= 1;
                }
                match depth {
                    0 => return Ok(()),
                    _ => left[depth - 1] -= 1,
                }
            }
        }
    }

    /// A length of 1, 2 or 4 bytes.
    fn length(&mut self, field: &'static str, width: u8) -> Result<u32, DecodeError> {
        Ok(match width {
            0 => self.bytes.u8(field)?.into(),
            1 => self.bytes.u16(field)?.into(),
            _ => self.bytes.u32(field)?,
        })
    }

    fn take(&mut self, field: &'static str, start: usize, length: u32) -> Result<&'a [u8], DecodeError> {
        self.check(field, start, length.into(), "a length within the message")?;
        self.bytes.bytes(field, length as usize)
    }

    fn array(&self, field: &'static str, start: usize, count: u32) -> Result<MsgpackValue<'a>, DecodeError> {
        self.check(field, start, count.into(), "a count of elements that fit into the message")?;
        Ok(MsgpackValue::Array(count))
    }

    fn map(&self, field: &'static str, start: usize, pairs: u32) -> Result<MsgpackValue<'a>, DecodeError> {
        self.check(field, start, u64::from(pairs) * 2, "a count of elements that fit into the message")?;
        Ok(MsgpackValue::Map(pairs))
    }

    /// Checks that at least this many bytes follow.
    fn check(&self, field: &'static str, start: usize, bytes: u64, expected: &'static str) -> Result<(), DecodeError> {
        let space = self.bytes.rest().len() as u64 + self.missing;
        if bytes <= space { Ok(()) } else { Err(invalid(field, start, bytes, expected)) }
    }
}

fn signed(number: i64) -> MsgpackValue<'static> {
    u64::try_from(number).map_or(MsgpackValue::Negative(number), MsgpackValue::Unsigned)
}

fn invalid(field: &'static str, offset: usize, found: u64, expected: &'static str) -> DecodeError {
    DecodeError { field, offset, kind: DecodeErrorKind::Invalid { found, expected } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all<'a>(bytes: &'a [u8]) -> Result<Vec<MsgpackValue<'a>>, DecodeError> {
        let mut reader = Reader::new(bytes, 0);
        let mut values = Vec::new();
        while !reader.is_at_end() {
            values.push(reader.next("v")?);
        }
        Ok(values)
    }

    #[test]
    fn every_form_of_a_value_is_read_and_narrow_forms_are_not_required() {
        let bytes = [
            &[0x07, 0xcc, 7, 0xcd, 0, 7, 0xce, 0, 0, 0, 7, 0xcf, 0, 0, 0, 0, 0, 0, 0, 7][..],
            &[0xff, 0xd0, 0xff, 0xd1, 0xff, 0xff, 0xd2, 0xff, 0xff, 0xff, 0xff, 0xd0, 7],
            &[0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0xca, 0x3f, 0xc0, 0, 0, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0],
            &[0xa1, b'x', 0xd9, 1, b'x', 0xda, 0, 1, b'x', 0xdb, 0, 0, 0, 1, b'x', 0xc4, 1, b'x', 0xd4, 9, b'x'],
            &[0xc0, 0xc2, 0xc3, 0x90, 0x80, 0xdc, 0, 0, 0xde, 0, 0],
        ]
        .concat();
        let seven = [MsgpackValue::Unsigned(7); 5];
        let minus = [MsgpackValue::Negative(-1); 4];
        let rest = [
            MsgpackValue::Unsigned(7),
            MsgpackValue::Unsigned(u64::MAX),
            MsgpackValue::Float(1.5),
            MsgpackValue::Float(1.5),
        ];
        let texts = [MsgpackValue::Text(b"x"); 4];
        let others = [
            MsgpackValue::Binary(b"x"),
            MsgpackValue::Extension(9, b"x"),
            MsgpackValue::Nil,
            MsgpackValue::Bool(false),
            MsgpackValue::Bool(true),
        ];
        let empty = [MsgpackValue::Array(0), MsgpackValue::Map(0), MsgpackValue::Array(0), MsgpackValue::Map(0)];
        let expected: Vec<_> = [&seven[..], &minus, &rest, &texts, &others, &empty].concat();
        assert_eq!(all(&bytes).unwrap(), expected);
    }

    #[test]
    fn counts_that_do_not_fit_into_the_message_are_refused_immediately_even_while_it_arrives() {
        for huge in
            [&[0xdd, 0xff, 0xff, 0xff, 0xff][..], &[0xdf, 0xff, 0xff, 0xff, 0xff], &[0xdb, 0xff, 0xff, 0xff, 0xff]]
        {
            let mut reader = Reader::new(huge, 1_000_000);
            let error = reader.next("payload").unwrap_err();
            assert!(!reader.may_wait(&error), "{error}");
            assert_eq!((error.offset, reader.offset()), (0, 0));
        }
        let mut reader = Reader::new(&[0xdb, 0, 0, 1, 0], 256);
        let error = reader.next("payload").unwrap_err();
        assert!(reader.may_wait(&error), "{error}");
        let mut reader = Reader::new(&[0x93, 1], 0);
        assert!(reader.next("payload").is_err());
        assert!(all(&[0xc1]).unwrap_err().to_string().contains("0xc1"));
    }

    #[test]
    fn nesting_is_read_up_to_its_limit() {
        let nested = |depth: usize| {
            let mut bytes = vec![0x91; depth];
            bytes.push(0xc0);
            bytes
        };
        assert!(Reader::new(&nested(MAX_DEPTH), 0).skip("v").is_ok());
        let error = Reader::new(&nested(MAX_DEPTH + 1), 0).skip("v").unwrap_err();
        assert!(matches!(error.kind, DecodeErrorKind::TooLarge { .. }), "{error}");
        assert_eq!(error.offset, MAX_DEPTH);
        assert!(Reader::new(&nested(5000), 0).skip("v").is_err());
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<u64>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            ".{0,40}".prop_map(Into::into),
        ];
        leaf.prop_recursive(6, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Into::into),
                prop::collection::vec((".{0,8}", inner), 0..8)
                    .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { max_shrink_iters: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn what_another_writes_is_skipped_to_its_last_byte_and_every_prefix_is_short(value in value()) {
            let mut bytes = rmp_serde::to_vec(&value).unwrap();
            let length = bytes.len();
            bytes.push(0x2a);
            let mut reader = Reader::new(&bytes, 0);
            reader.skip("v").unwrap();
            prop_assert_eq!(reader.offset(), length);
            for cut in 0..length {
                let mut reader = Reader::new(&bytes[..cut], (length - cut) as u64);
                let error = reader.skip("v").unwrap_err();
                prop_assert!(reader.may_wait(&error), "{}", error);
            }
        }

        #[test]
        fn no_bytes_make_it_panic_or_read_past_them(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = Reader::new(&bytes, 0);
            while reader.skip("v").is_ok() && !reader.is_at_end() {}
            prop_assert!(reader.offset() <= bytes.len());
        }
    }
}
