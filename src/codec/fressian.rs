//! Fressian (<https://github.com/Datomic/fressian>): a bounded pull reader over borrowed bytes, which returns one item after the
//! other.
//!
//! As in [`crate::cbor`] the caller keeps track of containers: of one, an item is only the head. Every declared count is checked
//! against the bytes that are there. What a stream defines for later items, the types of its structs and its cached values, is in
//! [`Definitions`], so that a part of the stream can be read again.

use std::fmt;
use std::ops::Range;

/// The deepest nesting that [`FressianReader::skip`] can be allowed.
pub const MOST_DEPTH: usize = 96;
/// The most types of structs of one stream.
const MAX_TYPES: usize = 1024;
/// The most cached values of one stream.
const MAX_CACHED: usize = 65_536;
/// The most lists up to an end, in one another, that [`FressianReader::skip_any`] passes over.
const MAX_OPEN_LISTS: usize = 1024;
/// The footer: its first four bytes, a length and a checksum.
const FOOTER_BYTES: usize = 12;

/// Reads items from the front of a slice. `Copy`: a copy is a bookmark.
#[derive(Clone, Copy, Debug)]
pub struct FressianReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// What a stream has defined so far.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    types: Vec<StructType>,
    /// Where cached values begin.
    cached: Vec<usize>,
    /// The offset behind the latest definition: what is before it was read before, and defines nothing again.
    read_to: usize,
}

/// A type of structs.
#[derive(Clone, PartialEq, Eq, Debug)]
struct StructType {
    /// Where its tag stands.
    tag: Range<usize>,
    fields: u64,
}

/// One item. Of a container only the head: the next calls return its content.
#[derive(Clone, PartialEq, Debug)]
pub enum FressianItem<'a> {
    /// Null.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// A float of 4 bytes.
    Float(f32),
    /// A double.
    Double(f64),
    /// A text. Characters beyond the BMP are two surrogates of three bytes each.
    Text(&'a [u8]),
    /// A text in chunks, which [`joined`] joins. Only together they are text.
    TextChunks(&'a [u8]),
    /// Bytes.
    Bytes(&'a [u8]),
    /// Bytes in chunks, which [`joined`] joins.
    BytesChunks(&'a [u8]),
    /// A list of this many values; `None`: up to an end.
    List(Option<u64>),
    /// An array of Java.
    Array(ArrayKind, u64),
    /// Something that the values which follow are parts of.
    Extended(Extended),
    /// A struct with this tag, and the declared number of its values.
    Struct(&'a [u8], u64),
    /// The end of a list.
    End,
    /// The caches are empty from here on. Not within a value.
    Reset,
    /// The end of a stream. Not within a value.
    Footer,
}

/// The elements of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum ArrayKind {
    Longs,
    Doubles,
    Booleans,
    Ints,
    Floats,
    Objects,
}

/// A value that is made of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extended {
    /// One list: key, value, key, value.
    Map,
    /// One list.
    Set,
    /// Milliseconds since 1970.
    Instant,
    /// Bytes of 16.
    Uuid,
    /// A text.
    Uri,
    /// A text.
    Regex,
    /// Bytes, two's complement, the most significant byte first.
    BigInteger,
    /// The unscaled number as bytes, and its scale.
    BigDecimal,
    /// Namespace and name.
    Symbol,
    /// Namespace and name.
    Keyword,
}

impl Extended {
    /// The number of values.
    pub fn values(self) -> u64 {
        match self {
            Extended::BigDecimal | Extended::Symbol | Extended::Keyword => 2,
            _ => 1,
        }
    }
}

/// A decoding error: where and what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FressianError {
    /// Offset of the item at fault.
    pub offset: usize,
    /// What is wrong with it.
    pub fault: FressianErrorKind,
}

/// What is wrong with an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FressianErrorKind {
    /// The bytes end inside it, or declare more than is there.
    End,
    /// A code that Fressian does not have.
    Code(u8),
    /// This item was expected.
    Expected(&'static str),
    /// An end of a list, a footer or a reset of the caches where none can be.
    Misplaced,
    /// A type of structs that was not announced.
    Type(u64),
    /// A cached value that is not there, or is no single item.
    Cached(u64),
    /// Values are nested deeper than this.
    TooDeep(usize),
    /// More types of structs or cached values than this.
    TooMany(usize),
}

impl FressianError {
    /// The bytes end inside the item.
    pub fn is_cut(&self) -> bool {
        self.fault == FressianErrorKind::End
    }

    /// The item is over a limit.
    pub fn is_over_limit(&self) -> bool {
        matches!(self.fault, FressianErrorKind::TooDeep(_) | FressianErrorKind::TooMany(_))
    }
}

impl fmt::Display for FressianError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}: ", self.offset)?;
        match self.fault {
            FressianErrorKind::End => f.write_str("the bytes end inside a value"),
            FressianErrorKind::Code(code) => write!(f, "{code:#04x} is no code of Fressian"),
            FressianErrorKind::Expected(what) => write!(f, "expected {what}"),
            FressianErrorKind::Misplaced => f.write_str("an end of a list, a footer or a reset where none can be"),
            FressianErrorKind::Type(number) => write!(f, "the struct type {number} was not announced"),
            FressianErrorKind::Cached(number) => {
                write!(f, "the cached value {number} is missing, or is no single item")
            }
            FressianErrorKind::TooDeep(limit) => write!(f, "more than {limit} values in one another"),
            FressianErrorKind::TooMany(limit) => write!(f, "more than {limit} struct types or cached values"),
        }
    }
}

impl std::error::Error for FressianError {}

impl Definitions {
    /// Forgets everything that was defined.
    pub fn reset(&mut self) {
        self.types.clear();
        self.cached.clear();
    }

    fn announce(&mut self, at: usize, tag: Range<usize>, fields: u64) -> Result<(), FressianErrorKind> {
        if at < self.read_to {
            return Ok(());
        }
        if self.types.len() == MAX_TYPES {
            return Err(FressianErrorKind::TooMany(MAX_TYPES));
        }
        self.read_to = at + 1;
        self.types.push(StructType { tag, fields });
        Ok(())
    }

    fn put(&mut self, at: usize) -> Result<(), FressianErrorKind> {
        if at < self.read_to {
            return Ok(());
        }
        if self.cached.len() == MAX_CACHED {
            return Err(FressianErrorKind::TooMany(MAX_CACHED));
        }
        self.read_to = at + 1;
        self.cached.push(at + 1);
        Ok(())
    }
}

impl<'a> FressianReader<'a> {
    /// A reader that continues in `bytes` at `at`.
    pub fn at(bytes: &'a [u8], at: usize) -> Self {
        FressianReader { bytes, at: at.min(bytes.len()) }
    }

    /// The offset of the next item.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// The whole slice.
    pub fn whole(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether everything is read.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The first byte of the next item.
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Reads the next item. A cached value is returned in its place.
    ///
    /// # Errors
    /// It is no item, is cut off, or refers to what was not defined.
    pub fn item(&mut self, known: &mut Definitions) -> Result<FressianItem<'a>, FressianError> {
        let offset = self.at;
        self.read(known).map_err(|fault| FressianError { offset, fault })
    }

    fn read(&mut self, known: &mut Definitions) -> Result<FressianItem<'a>, FressianErrorKind> {
        loop {
            let start = self.at;
            let code = self.byte()?;
            return match code {
                // The next value is cached, too.
                0xCD => {
                    known.put(start)?;
                    continue;
                }
                0xCC => {
                    let number = self.count()?;
                    self.cached(number, known)
                }
                0x80..=0x9F => self.cached(u64::from(code - 0x80), known),
                0xEF => {
                    let tag = self.tag()?;
                    let fields = self.size()?;
                    known.announce(start, tag.clone(), fields)?;
                    Ok(FressianItem::Struct(&self.bytes[tag], fields))
                }
                0xA0..=0xAF => self.of_type(u64::from(code - 0xA0), known),
                0xF0 => {
                    let number = self.count()?;
                    self.of_type(number, known)
                }
                code => self.simple(code),
            };
        }
    }

    /// An item that needs no definition.
    fn simple(&mut self, code: u8) -> Result<FressianItem<'a>, FressianErrorKind> {
        Ok(match code {
            0x00..=0x3F | 0xFF | 0x40..=0x7F | 0xF8 => FressianItem::Integer(self.integer(code)?),
            0xF5 => FressianItem::Bool(true),
            0xF6 => FressianItem::Bool(false),
            0xF7 => FressianItem::Null,
            0xF9 => FressianItem::Float(f32::from_be_bytes(self.array()?)),
            0xFA => FressianItem::Double(f64::from_be_bytes(self.array()?)),
            0xFB => FressianItem::Double(0.0),
            0xFC => FressianItem::Double(1.0),
            0xDA..=0xE1 => FressianItem::Text(self.bytes(u64::from(code - 0xDA))?),
            0xE3 => FressianItem::Text(self.counted()?),
            0xE2 => FressianItem::TextChunks(self.chunks(0xE2, 0xDA..=0xE1, 0xE3)?),
            0xD0..=0xD7 => FressianItem::Bytes(self.bytes(u64::from(code - 0xD0))?),
            0xD9 => FressianItem::Bytes(self.counted()?),
            0xD8 => FressianItem::BytesChunks(self.chunks(0xD8, 0xD0..=0xD7, 0xD9)?),
            0xE4..=0xEB => FressianItem::List(Some(self.fits(u64::from(code - 0xE4))?)),
            0xEC => FressianItem::List(Some(self.size()?)),
            0xED | 0xEE => FressianItem::List(None),
            0xFD => FressianItem::End,
            0xFE => FressianItem::Reset,
            0xB0 => FressianItem::Array(ArrayKind::Longs, self.size()?),
            0xB1 => FressianItem::Array(ArrayKind::Doubles, self.size()?),
            0xB2 => FressianItem::Array(ArrayKind::Booleans, self.size()?),
            0xB3 => FressianItem::Array(ArrayKind::Ints, self.size()?),
            0xB4 => FressianItem::Array(ArrayKind::Floats, self.size()?),
            0xB5 => FressianItem::Array(ArrayKind::Objects, self.size()?),
            0xC0 => FressianItem::Extended(Extended::Map),
            0xC1 => FressianItem::Extended(Extended::Set),
            0xC3 => FressianItem::Extended(Extended::Uuid),
            0xC4 => FressianItem::Extended(Extended::Regex),
            0xC5 => FressianItem::Extended(Extended::Uri),
            0xC6 => FressianItem::Extended(Extended::BigInteger),
            0xC7 => FressianItem::Extended(Extended::BigDecimal),
            0xC8 => FressianItem::Extended(Extended::Instant),
            0xC9 => FressianItem::Extended(Extended::Symbol),
            0xCA => FressianItem::Extended(Extended::Keyword),
            0xCF => {
                self.bytes(FOOTER_BYTES as u64 - 1)?;
                FressianItem::Footer
            }
            code => return Err(FressianErrorKind::Code(code)),
        })
    }

    fn of_type(&self, number: u64, known: &Definitions) -> Result<FressianItem<'a>, FressianErrorKind> {
        let found = usize::try_from(number).ok().and_then(|place| known.types.get(place));
        let StructType { tag, fields } = found.ok_or(FressianErrorKind::Type(number))?;
        Ok(FressianItem::Struct(self.bytes.get(tag.clone()).unwrap_or_default(), self.fits(*fields)?))
    }

    /// A cached value. A container or a further reference would let a few bytes stand for any number of values.
    fn cached(&self, number: u64, known: &Definitions) -> Result<FressianItem<'a>, FressianErrorKind> {
        let missing = FressianErrorKind::Cached(number);
        let place = usize::try_from(number).ok().and_then(|place| known.cached.get(place)).ok_or(missing)?;
        let mut reader = FressianReader::at(self.bytes, *place);
        let item = reader.byte().and_then(|code| reader.simple(code)).map_err(|_| missing)?;
        match item {
            FressianItem::Null
            | FressianItem::Bool(_)
            | FressianItem::Integer(_)
            | FressianItem::Float(_)
            | FressianItem::Double(_)
            | FressianItem::Text(_)
            | FressianItem::Bytes(_) => Ok(item),
            _ => Err(missing),
        }
    }

    /// Where the tag of a struct stands, which is a text in one piece.
    fn tag(&mut self) -> Result<Range<usize>, FressianErrorKind> {
        let code = self.byte()?;
        match self.simple(code)? {
            FressianItem::Text(tag) => Ok(self.at - tag.len()..self.at),
            _ => Err(FressianErrorKind::Expected("the tag of a struct")),
        }
    }

    /// The bytes of all chunks of a text or of bytes. Its first code was read.
    fn chunks(
        &mut self,
        more: u8,
        last_short: std::ops::RangeInclusive<u8>,
        last: u8,
    ) -> Result<&'a [u8], FressianErrorKind> {
        let start = self.at - 1;
        self.counted()?;
        loop {
            let code = self.byte()?;
            if code == more {
                self.counted()?;
            } else if last_short.contains(&code) {
                self.bytes(u64::from(code - last_short.start()))?;
                break;
            } else if code == last {
                self.counted()?;
                break;
            } else {
                return Err(FressianErrorKind::Expected("a further chunk"));
            }
        }
        Ok(&self.bytes[start..self.at])
    }

    fn byte(&mut self) -> Result<u8, FressianErrorKind> {
        let byte = self.bytes.get(self.at).copied().ok_or(FressianErrorKind::End)?;
        self.at += 1;
        Ok(byte)
    }

    fn bytes(&mut self, count: u64) -> Result<&'a [u8], FressianErrorKind> {
        let rest = &self.bytes[self.at..];
        let count = usize::try_from(count).ok().filter(|count| *count <= rest.len()).ok_or(FressianErrorKind::End)?;
        self.at += count;
        Ok(&rest[..count])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FressianErrorKind> {
        let bytes = self.bytes(N as u64)?;
        bytes.first_chunk().copied().ok_or(FressianErrorKind::End)
    }

    fn counted(&mut self) -> Result<&'a [u8], FressianErrorKind> {
        let count = self.count()?;
        self.bytes(count)
    }

    /// A count of values that follow, each of a byte or more.
    fn size(&mut self) -> Result<u64, FressianErrorKind> {
        let count = self.count()?;
        self.fits(count)
    }

    fn fits(&self, count: u64) -> Result<u64, FressianErrorKind> {
        if count <= (self.bytes.len() - self.at) as u64 { Ok(count) } else { Err(FressianErrorKind::End) }
    }

    fn count(&mut self) -> Result<u64, FressianErrorKind> {
        let code = self.byte()?;
        let number = match code {
            0x00..=0x7F | 0xF8 | 0xFF => self.integer(code)?,
            _ => return Err(FressianErrorKind::Expected("a count")),
        };
        u64::try_from(number).map_err(|_| FressianErrorKind::Expected("a count"))
    }

    fn integer(&mut self, code: u8) -> Result<i64, FressianErrorKind> {
        // The code has the highest bits of a number with these many bytes, above this zero.
        let (zero, bytes) = match code {
            0x00..=0x3F => return Ok(i64::from(code)),
            0xFF => return Ok(-1),
            0xF8 => return Ok(i64::from_be_bytes(self.array()?)),
            0x40..=0x5F => (0x50, 1),
            0x60..=0x6F => (0x68, 2),
            0x70..=0x73 => (0x72, 3),
            0x74..=0x77 => (0x76, 4),
            0x78..=0x7B => (0x7A, 5),
            _ => (0x7E, 6),
        };
        let high = i64::from(code) - zero;
        let low = self.bytes(bytes)?;
        Ok(low.iter().fold(high, |number, byte| number << 8 | i64::from(*byte)))
    }

    /// Passes over a whole value that is nested at most `most_depth` deep (at most [`MOST_DEPTH`]).
    ///
    /// # Errors
    /// It cannot be read, or is nested deeper.
    pub fn skip(&mut self, most_depth: usize, known: &mut Definitions) -> Result<(), FressianError> {
        let most_depth = most_depth.min(MOST_DEPTH);
        // The values that are left of each open container; `None`: up to an end.
        let mut open = [Some(0); MOST_DEPTH];
        let mut depth = 0;
        loop {
            let offset = self.at;
            let item = self.item(known)?;
            if item == FressianItem::End && depth > 0 && open[depth - 1].is_none() {
                depth -= 1;
            } else if let Some(values) = values_of(&item, offset)? {
                if depth == most_depth {
                    return Err(FressianError { offset, fault: FressianErrorKind::TooDeep(most_depth) });
                }
                open[depth] = values;
                depth += 1;
            }
            // A container that is complete is a value of the one around it.
            while depth > 0 && open[depth - 1] == Some(0) {
                depth -= 1;
            }
            let Some(left) = depth.checked_sub(1).map(|innermost| &mut open[innermost]) else { return Ok(()) };
            if let Some(left) = left {
                *left -= 1;
            }
        }
    }

    /// Passes over a whole value that may be nested in any way, and gives each struct to `note`. It takes no memory for depth,
    /// except for lists up to an end.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn skip_any(
        &mut self,
        known: &mut Definitions,
        mut note: impl FnMut(&FressianItem<'a>),
    ) -> Result<(), FressianError> {
        let mut left = 1u64;
        // What is left around each list up to an end.
        let mut around = Vec::new();
        let mut is_in_list = false;
        loop {
            let offset = self.at;
            let item = self.item(known)?;
            note(&item);
            if item == FressianItem::End && is_in_list && left == 0 {
                (left, is_in_list) = around.pop().unwrap_or_default();
            } else {
                let values = values_of(&item, offset)?;
                // In a list up to an end each value is one more.
                left = if is_in_list && left == 0 { 0 } else { left - 1 };
                match values {
                    Some(Some(values)) => left += values,
                    Some(None) if around.len() == MAX_OPEN_LISTS => {
                        return Err(FressianError { offset, fault: FressianErrorKind::TooDeep(MAX_OPEN_LISTS) });
                    }
                    Some(None) => {
                        around.push((left, is_in_list));
                        (left, is_in_list) = (0, true);
                    }
                    None => {}
                }
            }
            if left == 0 && !is_in_list {
                return Ok(());
            }
        }
    }
}

/// The number of values that follow the head of a container; `None`: it is none.
fn values_of(item: &FressianItem<'_>, offset: usize) -> Result<Option<Option<u64>>, FressianError> {
    Ok(match item {
        FressianItem::List(values) => Some(*values),
        FressianItem::Array(_, values) | FressianItem::Struct(_, values) => Some(Some(*values)),
        FressianItem::Extended(kind) => Some(Some(kind.values())),
        FressianItem::End | FressianItem::Reset | FressianItem::Footer => {
            return Err(FressianError { offset, fault: FressianErrorKind::Misplaced });
        }
        _ => None,
    })
}

/// Joins the chunks of a text or of bytes.
pub fn joined(chunks: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(chunks.len());
    let mut reader = FressianReader { bytes: chunks, at: 0 };
    // They were checked when they were read.
    while let Ok(code) = reader.byte() {
        let piece = match code {
            0xDA..=0xE1 => reader.bytes(u64::from(code - 0xDA)),
            0xD0..=0xD7 => reader.bytes(u64::from(code - 0xD0)),
            _ => reader.counted(),
        };
        all.extend_from_slice(piece.unwrap_or_default());
    }
    all
}

#[cfg(test)]
mod tests;
