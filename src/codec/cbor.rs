//! CBOR (RFC 8949): a bounded pull reader over borrowed bytes, which returns one item after the other.
//!
//! It reads streams of items as well as documents. The caller keeps track of its position in them: a tag is an item of
//! its own whose meaning the caller decides, and the caller counts the depth. Nothing is allocated or recursive, and every
//! declared length is checked against the bytes that are there.

use std::fmt;

/// The deepest nesting that [`Reader::skip`] can be allowed.
pub const MOST_DEPTH: usize = 96;

/// Most values are not nested deeper, so a small array on the stack is enough for them.
const FEW_LEVELS: usize = 4;

/// Major types.
const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const ARRAY: u8 = 4;
const TAG: u8 = 6;

/// Reads items from the front of a slice. `Copy`: a copy is a bookmark.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// One item. Of a container only the head: the next calls return its content.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CborItem<'a> {
    /// A non-negative integer.
    Unsigned(u64),
    /// The integer −1 − n.
    Negative(u64),
    /// A byte string.
    Bytes(&'a [u8]),
    /// A text, which need not be UTF-8.
    Text(&'a [u8]),
    /// A string in pieces: definite strings of the same kind follow, then a break. `true`: of text.
    Pieces(bool),
    /// An array with this many items; `None`: up to a break.
    Array(Option<u64>),
    /// A map with this many pairs; `None`: up to a break.
    Map(Option<u64>),
    /// A tag on the item that follows.
    Tag(u64),
    /// A boolean.
    Bool(bool),
    /// Null.
    Null,
    /// Undefined.
    Undefined,
    /// Another simple value.
    Simple(u8),
    /// A number of half, single or double precision.
    Float(f64),
    /// The end of an indefinite container or string.
    Break,
}

/// A decoding error: where and what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CborError {
    /// Offset of the item at fault.
    pub offset: usize,
    /// What is wrong with it.
    pub fault: CborErrorKind,
}

/// What is wrong with an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CborErrorKind {
    /// The bytes end inside it, or declare more than is there.
    End,
    /// An initial byte that CBOR reserves.
    Reserved(u8),
    /// This item was expected.
    Expected(&'static str),
    /// A break that is not allowed here.
    Break,
    /// Containers and tags are nested deeper than this.
    TooDeep(usize),
}

impl fmt::Display for CborError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}: ", self.offset)?;
        match self.fault {
            CborErrorKind::End => f.write_str("the bytes end inside an item"),
            CborErrorKind::Reserved(byte) => write!(f, "{byte:#04x} begins no item"),
            CborErrorKind::Expected(what) => write!(f, "expected {what}"),
            CborErrorKind::Break => f.write_str("a break where none can be"),
            CborErrorKind::TooDeep(limit) => write!(f, "more than {limit} containers and tags in one another"),
        }
    }
}

impl std::error::Error for CborError {}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// A reader of `bytes` at `offset`.
    pub fn at(bytes: &'a [u8], offset: usize) -> Self {
        Reader { bytes, at: offset.min(bytes.len()) }
    }

    /// Offset of the next item.
    #[inline]
    pub fn offset(&self) -> usize {
        self.at
    }

    /// All the bytes. Offsets are relative to their start.
    pub fn whole(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes not yet read.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Whether all bytes have been read.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The reader moved forward by this many bytes, for callers that have read them from [`Reader::rest`].
    #[inline]
    #[must_use]
    pub fn advanced(self, bytes: usize) -> Self {
        Reader { bytes: self.bytes, at: (self.at + bytes).min(self.bytes.len()) }
    }

    /// The next item.
    ///
    /// # Errors
    /// The item is incomplete or not valid CBOR. The reader does not move.
    #[inline]
    pub fn item(&mut self) -> Result<CborItem<'a>, CborError> {
        let start = self.at;
        let item = self.read();
        if item.is_err() {
            self.at = start;
        }
        item
    }

    /// Reads the next byte if it is this one, for items of one byte and for items that their first byte identifies.
    #[inline]
    pub fn take(&mut self, byte: u8) -> bool {
        let is_it = self.bytes.get(self.at) == Some(&byte);
        self.at += usize::from(is_it);
        is_it
    }

    /// A non-negative integer.
    ///
    /// # Errors
    /// Another item, or those of [`Reader::item`].
    #[inline]
    pub fn unsigned(&mut self) -> Result<u64, CborError> {
        self.head(UNSIGNED).ok_or_else(|| self.other_than("an integer from 0 on"))
    }

    /// An integer, as the 64 bits of its two's complement. A negative integer and one of at least 2^63 can be equal.
    ///
    /// # Errors
    /// Another item, or those of [`Reader::item`].
    #[inline]
    pub fn integer_bits(&mut self) -> Result<u64, CborError> {
        match self.head(UNSIGNED) {
            Some(value) => Ok(value),
            None => self.head(NEGATIVE).map(|value| !value).ok_or_else(|| self.other_than("an integer")),
        }
    }

    /// A tag.
    ///
    /// # Errors
    /// Another item, or those of [`Reader::item`].
    #[inline]
    pub fn tag(&mut self) -> Result<u64, CborError> {
        self.head(TAG).ok_or_else(|| self.other_than("a tag"))
    }

    /// The head of an array with a declared length in this range.
    ///
    /// # Errors
    /// Another item, another length, or those of [`Reader::item`].
    #[inline]
    pub fn array(&mut self, lengths: std::ops::RangeInclusive<u64>, what: &'static str) -> Result<u64, CborError> {
        let before = *self;
        match self.head(ARRAY) {
            Some(length) if lengths.contains(&length) => Ok(length),
            _ => {
                *self = before;
                Err(self.other_than(what))
            }
        }
    }

    /// Skips one whole item with its content: at most `max_depth` nested containers and tags (and never more than
    /// [`MOST_DEPTH`]).
    ///
    /// # Errors
    /// The item is not valid. The reader does not move.
    pub fn skip(&mut self, max_depth: usize) -> Result<(), CborError> {
        let start = *self;
        // Most values are not containers and need no stack.
        match self.item()? {
            CborItem::Break | CborItem::Tag(_) | CborItem::Pieces(_) | CborItem::Array(_) | CborItem::Map(_) => {
                *self = start;
            }
            _ => return Ok(()),
        }
        let max_depth = max_depth.min(MOST_DEPTH);
        let mut skipped = self.pass_over::<FEW_LEVELS>(max_depth.min(FEW_LEVELS));
        if skipped.is_err_and(|error| error.fault == CborErrorKind::TooDeep(FEW_LEVELS)) && max_depth > FEW_LEVELS {
            *self = start;
            skipped = self.pass_over::<MOST_DEPTH>(max_depth);
        }
        if skipped.is_err() {
            *self = start;
        }
        skipped
    }

    /// The same with a stack of `LEVELS` open containers, which is at least `max_depth`.
    fn pass_over<const LEVELS: usize>(&mut self, max_depth: usize) -> Result<(), CborError> {
        let mut open = [SkippedContainer::Items(0); LEVELS];
        let mut depth = 0;
        loop {
            let offset = self.at;
            let item = self.read()?;
            let inner = match (open[..depth].last(), item) {
                (Some(SkippedContainer::Pieces(is_text)), piece) => match (piece, is_text) {
                    (CborItem::Text(_), true) | (CborItem::Bytes(_), false) => continue,
                    (CborItem::Break, _) => None,
                    _ => return Err(CborError { offset, fault: CborErrorKind::Expected("a piece of the string") }),
                },
                (Some(SkippedContainer::ToBreak | SkippedContainer::Key), CborItem::Break) => None,
                (_, CborItem::Break) => return Err(CborError { offset, fault: CborErrorKind::Break }),
                (_, CborItem::Tag(_)) => Some(SkippedContainer::Items(1)),
                (_, CborItem::Array(Some(items))) => Some(SkippedContainer::Items(items)),
                (_, CborItem::Map(Some(pairs))) => Some(SkippedContainer::Items(pairs.saturating_mul(2))),
                (_, CborItem::Array(None)) => Some(SkippedContainer::ToBreak),
                (_, CborItem::Map(None)) => Some(SkippedContainer::Key),
                (_, CborItem::Pieces(is_text)) => Some(SkippedContainer::Pieces(is_text)),
                _ => Some(SkippedContainer::Items(0)),
            };
            match inner {
                // A break ends the innermost open container.
                None => depth -= 1,
                Some(SkippedContainer::Items(0)) => {}
                Some(inner) => {
                    if let SkippedContainer::Items(items) = inner
                        && items > (self.bytes.len() - self.at) as u64
                    {
                        return Err(CborError { offset, fault: CborErrorKind::End });
                    }
                    if depth == max_depth {
                        return Err(CborError { offset, fault: CborErrorKind::TooDeep(max_depth) });
                    }
                    open[depth] = inner;
                    depth += 1;
                    continue;
                }
            }
            // An item is complete, and may complete the containers around it.
            loop {
                match open[..depth].last_mut() {
                    None => return Ok(()),
                    Some(SkippedContainer::Items(left)) => {
                        *left -= 1;
                        if *left > 0 {
                            break;
                        }
                        depth -= 1;
                    }
                    Some(open) => {
                        *open = match *open {
                            SkippedContainer::Key => SkippedContainer::Value,
                            SkippedContainer::Value => SkippedContainer::Key,
                            other => other,
                        };
                        break;
                    }
                }
            }
        }
    }

    /// The argument of the next item, if it has this major type and its head is complete; else nothing is read. A fast
    /// path for callers that expect a certain item.
    #[inline]
    fn head(&mut self, major: u8) -> Option<u64> {
        let rest = self.bytes.get(self.at..)?;
        let initial = *rest.first()?;
        if initial >> 5 != major {
            return None;
        }
        let (argument, size) = match initial & 0x1F {
            info @ 0..24 => (u64::from(info), 1),
            24 => (u64::from(*rest.get(1)?), 2),
            25 => (u64::from(u16::from_be_bytes(*rest[1..].first_chunk()?)), 3),
            26 => (u64::from(u32::from_be_bytes(*rest[1..].first_chunk()?)), 5),
            27 => (u64::from_be_bytes(*rest[1..].first_chunk()?), 9),
            _ => return None,
        };
        self.at += size;
        Some(argument)
    }

    #[inline]
    fn read(&mut self) -> Result<CborItem<'a>, CborError> {
        let start = self.at;
        let Some(&initial) = self.bytes.get(start) else {
            return Err(CborError { offset: start, fault: CborErrorKind::End });
        };
        self.at += 1;
        let info = initial & 0x1F;
        let argument = match info {
            0..24 => u64::from(info),
            24 => u64::from(self.big_endian::<1>(start)?[0]),
            25 => u64::from(u16::from_be_bytes(self.big_endian(start)?)),
            26 => u64::from(u32::from_be_bytes(self.big_endian(start)?)),
            27 => u64::from_be_bytes(self.big_endian(start)?),
            31 => return self.indefinite(initial),
            _ => return Err(CborError { offset: start, fault: CborErrorKind::Reserved(initial) }),
        };
        Ok(match initial >> 5 {
            0 => CborItem::Unsigned(argument),
            1 => CborItem::Negative(argument),
            2 => CborItem::Bytes(self.string(argument, start)?),
            3 => CborItem::Text(self.string(argument, start)?),
            4 => CborItem::Array(Some(argument)),
            5 => CborItem::Map(Some(argument)),
            6 => CborItem::Tag(argument),
            _ => match info {
                20 => CborItem::Bool(false),
                21 => CborItem::Bool(true),
                22 => CborItem::Null,
                23 => CborItem::Undefined,
                24 if argument < 32 => {
                    return Err(CborError { offset: start, fault: CborErrorKind::Reserved(initial) });
                }
                0..=24 => CborItem::Simple(argument as u8),
                25 => CborItem::Float(half(argument as u16)),
                26 => CborItem::Float(f64::from(f32::from_bits(argument as u32))),
                _ => CborItem::Float(f64::from_bits(argument)),
            },
        })
    }

    #[cold]
    fn indefinite(&self, initial: u8) -> Result<CborItem<'a>, CborError> {
        Ok(match initial >> 5 {
            2 => CborItem::Pieces(false),
            3 => CborItem::Pieces(true),
            4 => CborItem::Array(None),
            5 => CborItem::Map(None),
            7 => CborItem::Break,
            _ => return Err(CborError { offset: self.at - 1, fault: CborErrorKind::Reserved(initial) }),
        })
    }

    #[inline]
    fn big_endian<const N: usize>(&mut self, start: usize) -> Result<[u8; N], CborError> {
        match self.bytes[self.at..].first_chunk::<N>() {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(CborError { offset: start, fault: CborErrorKind::End }),
        }
    }

    #[inline]
    fn string(&mut self, length: u64, start: usize) -> Result<&'a [u8], CborError> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(length).ok().and_then(|length| rest.get(..length)) {
            Some(string) => {
                self.at += string.len();
                Ok(string)
            }
            None => Err(CborError { offset: start, fault: CborErrorKind::End }),
        }
    }

    /// The error for the next item, which is not the expected `what`. The reader does not move.
    #[cold]
    fn other_than(&self, what: &'static str) -> CborError {
        let expected = CborError { offset: self.at, fault: CborErrorKind::Expected(what) };
        { *self }.item().err().unwrap_or(expected)
    }
}

/// A container that is open while items are skipped.
#[derive(Clone, Copy)]
enum SkippedContainer {
    /// This many items are left.
    Items(u64),
    /// Items up to a break.
    ToBreak,
    /// A key of a map, or the break.
    Key,
    /// A value of a map.
    Value,
    /// Pieces of a string, of text or not.
    Pieces(bool),
}

/// A number of half precision (RFC 8949, appendix D).
fn half(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3FF));
    let magnitude = match exponent {
        0 => mantissa * (-24f64).exp2(),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (mantissa + 1024.0) * f64::from(exponent - 25).exp2(),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use ciborium::Value;
    use proptest::prelude::*;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    /// The item at the front as a value of ciborium. Recursive, which is fine for the input of tests.
    fn value(reader: &mut Reader<'_>) -> Result<Value, CborError> {
        Ok(match reader.item()? {
            CborItem::Unsigned(number) => Value::Integer(number.into()),
            CborItem::Negative(number) => Value::Integer((-1 - i128::from(number)).try_into().unwrap()),
            CborItem::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
            CborItem::Text(text) => Value::Text(String::from_utf8(text.to_vec()).unwrap()),
            CborItem::Array(Some(items)) => Value::Array((0..items).map(|_| value(reader)).collect::<Result<_, _>>()?),
            CborItem::Map(Some(pairs)) => {
                Value::Map((0..pairs).map(|_| Ok((value(reader)?, value(reader)?))).collect::<Result<_, _>>()?)
            }
            CborItem::Tag(tag) => Value::Tag(tag, Box::new(value(reader)?)),
            CborItem::Bool(truth) => Value::Bool(truth),
            CborItem::Null => Value::Null,
            CborItem::Float(number) => Value::Float(number),
            other => panic!("ciborium does not write {other:?}"),
        })
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<u64>().prop_map(|number| Value::Integer(number.into())),
            any::<i64>().prop_map(|number| Value::Integer(number.into())),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bytes),
            ".{0,40}".prop_map(Value::Text),
            any::<bool>().prop_map(Value::Bool),
            prop::num::f64::NORMAL.prop_map(Value::Float),
            Just(Value::Null),
        ];
        leaf.prop_recursive(6, 60, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
                prop::collection::vec((inner.clone(), inner.clone()), 0..6).prop_map(Value::Map),
                // Tags 2 and 3 are numbers to ciborium.
                (4u64.., inner).prop_map(|(tag, inner)| Value::Tag(tag, Box::new(inner))),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::default() })]

        #[test]
        fn what_ciborium_writes_is_read_and_no_prefix_of_it_is_an_item(written in values()) {
            let mut bytes = Vec::new();
            ciborium::into_writer(&written, &mut bytes).unwrap();
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(value(&mut reader).unwrap(), written);
            prop_assert!(reader.is_at_end());
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.skip(64), Ok(()));
            prop_assert!(reader.is_at_end());
            for end in 0..bytes.len() {
                let mut reader = Reader::new(&bytes[..end]);
                prop_assert!(matches!(reader.skip(64), Err(CborError { fault: CborErrorKind::End, .. })), "{}", end);
                prop_assert_eq!(reader.offset(), 0, "it stays where it was");
            }
        }

        #[test]
        fn any_bytes_come_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = Reader::new(&bytes);
            while !reader.is_at_end() {
                let before = reader.offset();
                if reader.skip(64).is_err() && reader.item().is_err() {
                    break;
                }
                prop_assert!(reader.offset() > before);
            }
        }
    }

    #[test]
    fn the_examples_of_the_standard_are_read() {
        // RFC 8949, appendix A.
        let numbers = [
            ("f90000", 0.0),
            ("f93c00", 1.0),
            ("f97bff", 65504.0),
            ("fa47c35000", 100_000.0),
            ("f90001", 5.960_464_477_539_063e-8),
            ("f90400", 0.000_061_035_156_25),
            ("f9c400", -4.0),
            ("fbc010666666666666", -4.1),
            ("f97c00", f64::INFINITY),
            ("f9fc00", f64::NEG_INFINITY),
        ];
        for (bytes, number) in numbers {
            assert_eq!(Reader::new(&hex(bytes)).item(), Ok(CborItem::Float(number)), "{bytes}");
        }
        assert!(matches!(Reader::new(&hex("f97e00")).item(), Ok(CborItem::Float(number)) if number.is_nan()));
        let items = [
            ("1bffffffffffffffff", CborItem::Unsigned(u64::MAX)),
            ("3bffffffffffffffff", CborItem::Negative(u64::MAX)),
            ("1b000000000000000a", CborItem::Unsigned(10)),
            ("f0", CborItem::Simple(16)),
            ("f8ff", CborItem::Simple(255)),
            ("f7", CborItem::Undefined),
            ("d818", CborItem::Tag(24)),
            ("5f", CborItem::Pieces(false)),
            ("9f", CborItem::Array(None)),
            ("bf", CborItem::Map(None)),
            ("ff", CborItem::Break),
        ];
        for (bytes, item) in items {
            assert_eq!(Reader::new(&hex(bytes)).item(), Ok(item), "{bytes}");
        }
        for bytes in
            ["5f42010243030405ff", "7f657374726561646d696e67ff", "9f018202039f0405ffff", "bf61610161629f0203ffff"]
        {
            let bytes = hex(bytes);
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.skip(2), Ok(()));
            assert!(reader.is_at_end());
        }
    }

    #[test]
    fn errors_name_their_offset() {
        for (bytes, offset, fault) in [
            ("", 0, CborErrorKind::End),
            ("1c", 0, CborErrorKind::Reserved(0x1C)),
            ("3f", 0, CborErrorKind::Reserved(0x3F)),
            ("f818", 0, CborErrorKind::Reserved(0xF8)),
            ("ff", 0, CborErrorKind::Break),
            ("8200ff", 2, CborErrorKind::Break),
            ("bf01ff", 2, CborErrorKind::Break),
            ("c6ff", 1, CborErrorKind::Break),
            ("5f6161ff", 1, CborErrorKind::Expected("a piece of the string")),
            ("5f5f4101ffff", 1, CborErrorKind::Expected("a piece of the string")),
            ("bb7fffffffffffffff", 0, CborErrorKind::End),
            ("8201", 0, CborErrorKind::End),
            ("820119", 2, CborErrorKind::End),
            ("7b4000000000000000", 0, CborErrorKind::End),
        ] {
            assert_eq!(Reader::new(&hex(bytes)).skip(64), Err(CborError { offset, fault }), "{bytes}");
        }
    }

    #[test]
    fn depth_is_bounded_for_tags_and_containers_of_every_kind() {
        for open in [[0x81].as_slice(), &[0xC6], &[0x9F], &[0xA1, 0], &[0xBF, 0]] {
            let bytes = [open.repeat(20_000), vec![0]].concat();
            let expected = CborError { offset: 64 * open.len(), fault: CborErrorKind::TooDeep(64) };
            assert_eq!(Reader::new(&bytes).skip(64), Err(expected));
            let bytes = [open.repeat(64), vec![0], vec![0xFF; 64]].concat();
            assert_eq!(Reader::new(&bytes).skip(64), Ok(()));
        }
    }
}
