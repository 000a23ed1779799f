//! A bounded big-endian reader over borrowed bytes, and the error that every decoder returns.
//!
//! The reader does not allocate. Its errors name the field, the offset, what was found and what is allowed.

use std::fmt;

/// Reads fields from the front of a slice. `Copy` without an observer: a copy is a bookmark.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a, O = ()> {
    rest: &'a [u8],
    offset: usize,
    observer: O,
}

/// What observes the fields that a [`Reader`] reads, in their order. `()` observes nothing: no code is generated for it.
pub trait Observer {
    /// A field was read.
    fn field(&mut self, field: &'static str, bytes: &[u8]);

    /// The slice ends inside a field of `needed` bytes, or before it: `bytes` are its last ones.
    fn incomplete(&mut self, field: &'static str, bytes: &[u8], needed: usize);
}

impl Observer for () {
    #[inline]
    fn field(&mut self, _: &'static str, _: &[u8]) {}

    #[inline]
    fn incomplete(&mut self, _: &'static str, _: &[u8], _: usize) {}
}

/// What a decoder found wrong: which field, at which offset, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeError {
    /// The name of the field in the specification, e.g. `string.len`.
    pub field: &'static str,
    /// Offset of the first byte of the field in the input of the decoder.
    pub offset: usize,
    /// What is wrong with it.
    pub kind: DecodeErrorKind,
}

/// What is wrong with a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeErrorKind {
    /// The slice ends before the field does.
    Short {
        /// Bytes that the field takes.
        needed: usize,
        /// Bytes that are left.
        had: usize,
    },
    /// A value that the format does not allow.
    Invalid {
        /// The value found.
        found: u64,
        /// What is allowed.
        expected: &'static str,
    },
    /// A well-formed value that is not supported.
    Unsupported {
        /// The value found.
        found: u64,
        /// What is supported.
        expected: &'static str,
    },
    /// A length or count over its limit.
    TooLarge {
        /// The number declared.
        found: u64,
        /// The limit.
        limit: u64,
        /// The configuration key of the limit.
        key: &'static str,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = self.field;
        match self.kind {
            DecodeErrorKind::Short { needed, had } => write!(f, "{field}: takes {needed} bytes, {had} are there"),
            DecodeErrorKind::Invalid { found, expected } => {
                write!(f, "{field}: found {found:#04x}, expected {expected}")
            }
            DecodeErrorKind::Unsupported { found, expected } => {
                write!(f, "{field}: {found:#x} is not supported, only {expected}")
            }
            DecodeErrorKind::TooLarge { found, limit, key } => {
                write!(f, "{field}: {found} is over the limit of {limit} ({key})")
            }
        }
    }
}

impl std::error::Error for DecodeError {}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader::observed(bytes, ())
    }
}

impl<'a, O: Observer> Reader<'a, O> {
    /// A reader at the start of `bytes` that reports its fields to an observer.
    #[inline]
    pub fn observed(bytes: &'a [u8], observer: O) -> Self {
        Reader { rest: bytes, offset: 0, observer }
    }

    /// Offset of the next byte.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The bytes not yet read.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Skips bytes that were read through [`Reader::rest`]; at most all of them.
    #[inline]
    pub fn advance(&mut self, len: usize) {
        let (_, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.offset += self.rest.len() - rest.len();
        self.rest = rest;
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`DecodeErrorKind::Short`], as for every method here.
    #[inline]
    pub fn bytes(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], DecodeError> {
        match self.rest.split_at_checked(len) {
            Some((bytes, rest)) => {
                self.rest = rest;
                self.offset += len;
                self.observer.field(field, bytes);
                Ok(bytes)
            }
            None => Err(self.short(field, len)),
        }
    }

    /// The next `N` bytes as an array.
    ///
    /// # Errors
    /// [`DecodeErrorKind::Short`].
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        match self.rest.split_first_chunk::<N>() {
            Some((bytes, rest)) => {
                self.rest = rest;
                self.offset += N;
                self.observer.field(field, bytes);
                Ok(*bytes)
            }
            None => Err(self.short(field, N)),
        }
    }

    /// The next `count` arrays of `N` bytes. Each array is a field.
    ///
    /// # Errors
    /// [`DecodeErrorKind::Short`]: of the first incomplete one.
    #[inline]
    pub fn arrays<const N: usize>(&mut self, field: &'static str, count: usize) -> Result<&'a [[u8; N]], DecodeError> {
        match self.rest.split_at_checked(count.saturating_mul(N)) {
            Some((bytes, rest)) => {
                self.rest = rest;
                self.offset += bytes.len();
                let (arrays, _) = bytes.as_chunks();
                arrays.iter().for_each(|array| self.observer.field(field, array));
                Ok(arrays)
            }
            None => {
                let (arrays, _) = self.rest.as_chunks::<N>();
                arrays.iter().for_each(|array| self.observer.field(field, array));
                self.advance(arrays.len() * N);
                Err(self.short(field, N))
            }
        }
    }

    /// An unsigned byte.
    ///
    /// # Errors
    /// [`DecodeErrorKind::Short`].
    #[inline]
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    /// A big-endian `u16`.
    ///
    /// # Errors
    /// [`DecodeErrorKind::Short`].
    #[inline]
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_be_bytes)
    }

    /// A big-endian `u32`.
    ///
    /// # Errors
    /// [`DecodeErrorKind::Short`].
    #[inline]
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    /// A big-endian `u64`.
    ///
    /// # Errors
    /// [`DecodeErrorKind::Short`].
    #[inline]
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// The error for the next field, whose `needed` bytes are not all in the slice.
    #[cold]
    pub fn short(&mut self, field: &'static str, needed: usize) -> DecodeError {
        self.observer.incomplete(field, self.rest, needed);
        DecodeError { field, offset: self.offset, kind: DecodeErrorKind::Short { needed, had: self.rest.len() } }
    }
}

/// Reads the message at the front of `input`, and its size. `None`: it is not complete yet.
///
/// # Errors
/// Those of `read`, except [`DecodeErrorKind::Short`].
#[inline]
pub fn whole<'a, T>(
    input: &'a [u8],
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Option<(T, usize)>, DecodeError> {
    let mut reader = Reader::new(input);
    match read(&mut reader) {
        Ok(message) => Ok(Some((message, reader.offset()))),
        Err(DecodeError { kind: DecodeErrorKind::Short { .. }, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_big_endian_fields_in_order_and_keeps_the_offset() {
        let mut reader = Reader::new(&[1, 0, 2, 0, 0, 0, 3, 9, 9]);
        assert_eq!(reader.u8("a"), Ok(1));
        assert_eq!(reader.u16("b"), Ok(2));
        assert_eq!(reader.u32("c"), Ok(3));
        assert_eq!((reader.offset(), reader.rest()), (7, &[9u8, 9][..]));
    }

    #[test]
    fn a_field_past_the_end_is_named_with_its_offset_and_nothing_is_consumed() {
        let mut reader = Reader::new(&[0, 7, 1]);
        assert_eq!(reader.u16("n"), Ok(7));
        let error = reader.u64("span.start").unwrap_err();
        assert_eq!(
            error,
            DecodeError { field: "span.start", offset: 2, kind: DecodeErrorKind::Short { needed: 8, had: 1 } }
        );
        assert_eq!(error.to_string(), "span.start: takes 8 bytes, 1 are there");
        assert_eq!(reader.rest(), [1]);
    }

    #[derive(Default)]
    struct Rows(Vec<String>);

    impl Observer for &mut Rows {
        fn field(&mut self, field: &'static str, bytes: &[u8]) {
            self.0.push(format!("{field} {bytes:?}"));
        }

        fn incomplete(&mut self, field: &'static str, bytes: &[u8], needed: usize) {
            self.0.push(format!("{field} {bytes:?} of {needed}"));
        }
    }

    #[test]
    fn an_observer_sees_each_field_once_and_the_one_that_is_incomplete() {
        let mut rows = Rows::default();
        let mut reader = Reader::observed(&[1, 0, 2, 3, 4, 5, 6, 7, 8], &mut rows);
        assert_eq!(reader.u8("a"), Ok(1));
        assert_eq!(reader.u16("b"), Ok(2));
        assert_eq!(reader.bytes("c", 2), Ok(&[3u8, 4][..]));
        assert_eq!(reader.arrays::<1>("d", 2), Ok(&[[5], [6]][..]));
        let error = reader.arrays::<3>("e", 2).unwrap_err();
        assert_eq!((error.offset, error.kind), (7, DecodeErrorKind::Short { needed: 3, had: 2 }));
        assert_eq!(rows.0, ["a [1]", "b [0, 2]", "c [3, 4]", "d [5]", "d [6]", "e [7, 8] of 3"]);
    }
}
