//! Bytes → definitions and the items of traces, borrowed from the body (section 2).
//!
//! A body is a stream of tagged items. The three dialects share most layouts, with different tag numbers. Each item is
//! checked to its end here, so reading a [`Range`] of it again cannot fail.

mod parts;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use tributary_codec::cbor::{CborError, CborErrorKind, CborItem, Reader};

use parts::{symbol, unsigned};

pub use parts::{Exception, TextOrSymbol, WireFrame, exception, frame, integer, key, name, next_of, string, text};

/// How deep values may nest (section 5).
pub const MAX_VALUE_DEPTH: usize = 64;
/// The low bits of a word that are the time; the others are the method id or the number of calls (section 2.3).
const TIME_BITS: u32 = 40;
/// The tag of a string reference in doc and gen1.
const REFERENCE: u64 = 6;
const BREAK: u8 = 0xFF;
const ARRAY_TO_BREAK: u8 = 0x9F;

/// The dialect of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZicoDialect {
    /// The specification's text.
    Doc,
    /// Agents 1.90.1 to 1.90.6.
    Gen1,
    /// Agents from 1.90.7 on.
    Gen2,
    /// Agents up to 1.90.6: Fressian over TCP (section 6).
    Fressian,
}

impl ZicoDialect {
    /// The name in `origin.version`.
    pub fn as_str(self) -> &'static str {
        match self {
            ZicoDialect::Doc => "doc",
            ZicoDialect::Gen1 => "gen1",
            ZicoDialect::Gen2 => "gen2",
            ZicoDialect::Fressian => "fressian",
        }
    }
}

/// What a body contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carries {
    /// Definitions of strings and methods, and attributes of the agent.
    Definitions,
    /// Records of a trace.
    Trace,
}

/// The dialect of a body by its first bytes (section 2.1). `None`: they occur in several dialects, as in a later part of a
/// trace.
pub fn detect(body: &[u8], carries: Carries) -> Option<ZicoDialect> {
    let (tag, next) = first(body)?;
    match (carries, tag, next) {
        (Carries::Definitions, 1, 0x83) | (Carries::Definitions, 3, _) => Some(ZicoDialect::Gen1),
        (Carries::Definitions, 1, 0x82) => Some(ZicoDialect::Gen2),
        (Carries::Definitions, 0x0D..=0x0F, 0x80..=0x9F) => Some(ZicoDialect::Doc),
        (Carries::Trace, 8, 0x9F) => Some(ZicoDialect::Gen1),
        (Carries::Trace, 3, _) => Some(ZicoDialect::Gen2),
        (Carries::Trace, 6 | 7 | 0x0A | 0x0B, 0x9F) => Some(ZicoDialect::Doc),
        _ => None,
    }
}

/// What the body of a form contains, whose path does not say it (section 1.4).
pub fn carries(body: &[u8]) -> Carries {
    match first(body) {
        Some((1 | 2 | 0x0D | 0x0E | 0x0F, 0x80..=0x9F)) => Carries::Definitions,
        // Tag 3 is an agent attribute of gen1, or a record of gen2, which starts with `9f`.
        Some((3, 0x80..=0x9E)) => Carries::Definitions,
        _ => Carries::Trace,
    }
}

/// The first tag, and the byte after it.
fn first(body: &[u8]) -> Option<(u64, u8)> {
    let mut reader = Reader::new(body);
    match reader.item() {
        Ok(CborItem::Tag(tag)) => Some((tag, reader.rest().first().copied().unwrap_or_default())),
        _ => None,
    }
}

/// A fault in an item of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireError {
    /// The item's offset in the body; everything before it was read.
    pub offset: usize,
    /// What is wrong, and where in the item.
    pub kind: WireErrorKind,
}

/// The kind of a fault in an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireErrorKind {
    /// Invalid CBOR, or another type than expected.
    Cbor(CborError),
    /// A tag that the dialect does not have here.
    Tag(u64),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the item at {}: ", self.offset)?;
        match self.kind {
            WireErrorKind::Cbor(error) => write!(f, "{error}"),
            WireErrorKind::Tag(tag) => write!(f, "tag {tag} is not allowed here"),
        }
    }
}

impl std::error::Error for WireError {}

impl WireError {
    /// Whether the body ends inside the item.
    pub fn is_cut(&self) -> bool {
        matches!(self.kind, WireErrorKind::Cbor(CborError { fault: CborErrorKind::End, .. }))
    }

    /// Whether a value is nested too deeply.
    pub fn is_too_deep(&self) -> bool {
        matches!(self.kind, WireErrorKind::Cbor(CborError { fault: CborErrorKind::TooDeep(_), .. }))
    }
}

/// An item of a body with definitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Definition<'a> {
    /// A string and its type, which is not reliable (rule 16).
    String {
        /// Its id in the session.
        id: u64,
        /// The text; may be invalid UTF-8.
        text: Cow<'a, [u8]>,
        /// The type, where the dialect sends one.
        kind: Option<u64>,
    },
    /// A method, by the ids of its parts.
    Method {
        /// Its id in the session; methods and strings are numbered separately.
        id: u64,
        /// Ids of strings: class, method and signature. 0: none (rule 18).
        parts: [u64; 3],
    },
    /// An attribute of the agent.
    Attribute {
        /// Its key.
        key: TextOrSymbol<'a>,
        /// The place of its value.
        value: Range<usize>,
    },
}

/// Reads the next item of a body with definitions.
///
/// # Errors
/// It is no item of the dialect. The reader does not move.
pub fn definition<'a>(reader: &mut Reader<'a>, dialect: ZicoDialect) -> Result<Definition<'a>, WireError> {
    whole_item(reader, |reader| {
        let tag = reader.tag()?;
        Ok(match (dialect, tag) {
            (ZicoDialect::Doc, 0x0D) | (ZicoDialect::Gen1, 1) => {
                reader.array(3..=3, "an array of id, text and type")?;
                let (id, text) = (unsigned(reader)?, text(reader)?);
                Definition::String { id, text, kind: Some(unsigned(reader)?) }
            }
            (ZicoDialect::Gen2, 1) => {
                reader.array(2..=2, "an array of id and text")?;
                Definition::String { id: unsigned(reader)?, text: text(reader)?, kind: None }
            }
            (ZicoDialect::Doc, 0x0E) | (ZicoDialect::Gen1 | ZicoDialect::Gen2, 2) => {
                reader.array(4..=4, "an array of id, class, method and signature")?;
                let id = unsigned(reader)?;
                Definition::Method { id, parts: [symbol(reader)?, symbol(reader)?, symbol(reader)?] }
            }
            (ZicoDialect::Doc, 0x0F) | (ZicoDialect::Gen1, 3) => {
                reader.array(2..=2, "an array of key and value")?;
                let key = name(reader, false)?;
                let start = reader.offset();
                reader.skip(MAX_VALUE_DEPTH)?;
                Definition::Attribute { key, value: start..reader.offset() }
            }
            _ => return Err(WireErrorKind::Tag(tag)),
        })
    })
}

/// An item of a body with a trace.
#[derive(Clone, PartialEq, Debug)]
pub enum BodyItem {
    /// A record begins. In gen1 the prolog may follow separately, or not at all.
    Open(Option<Prolog>),
    /// The prolog of the record that was opened last (gen1).
    Prolog(Prolog),
    /// The end of a record, with the `ff` after it.
    Epilog(Epilog),
    /// `ff` without an epilog before it.
    Break,
    /// The record is the top of a trace.
    Begin(Begin),
    /// Flags of the record (gen1).
    Flags(u64),
    /// Attributes of the record, or of an enclosing one.
    Attributes(Attributes),
    /// An exception: an array, which [`exception`] reads.
    Exception(Range<usize>),
    /// A reference to an earlier exception, by its id.
    Reference(u64),
}

/// The start of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prolog {
    /// In ticks of 65,536 ns and 40 bits; in gen2 in nanoseconds.
    pub start: u64,
    /// The method's id.
    pub method: u64,
}

/// The end of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epilog {
    /// As [`Prolog::start`].
    pub stop: u64,
    /// The number of calls in it, including itself.
    pub calls: u64,
    /// Flags of its trace (gen2).
    pub flags: Option<u64>,
}

/// The begin of a trace: it makes its record the top of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begin {
    /// Milliseconds since 1970.
    pub clock: i64,
    /// The id of the trace's type. 0: none.
    pub trace_type: u64,
    /// The agent's span id. 0: none.
    pub span: u64,
    /// The parent's span id, possibly of another agent. 0: none.
    pub parent: u64,
}

/// Attributes, and the record to which they belong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// `Some`: the nearest enclosing trace of this type; 0: of any type. `None`: the innermost record.
    pub upward: Option<u64>,
    /// How they are written.
    pub form: Form,
    /// Their place.
    pub range: Range<usize>,
}

/// How attributes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A map in which only a tagged number is a symbol.
    Map,
    /// A map in which every number used as a key is a symbol (gen2 exceptions).
    SymbolMap,
    /// One key, which is a symbol, and its value.
    Pair,
    /// A map of Fressian, whose keys are symbols.
    Fressian,
}

/// The byte order of the words of a doc record. Its epilog does not name its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The most significant byte first.
    Big,
    /// The least significant byte first.
    Little,
}

/// Reads the next item of a body with a trace. `order` is the byte order of the innermost open record (doc); an opened record
/// sets it.
///
/// # Errors
/// It is no item of the dialect. The reader does not move.
#[inline(always)]
pub fn entry(reader: &mut Reader<'_>, dialect: ZicoDialect, order: &mut Order) -> Result<BodyItem, WireError> {
    match (dialect, reader.rest()) {
        // The items of most records are read directly.
        (ZicoDialect::Gen1, [0xC8, 0x9F, tag @ (0xCA | 0xCB), 0x48, a, b, c, d, e, f, g, h, ..]) => {
            let bytes = [*a, *b, *c, *d, *e, *f, *g, *h];
            *reader = reader.advanced(12);
            let word = if *tag == 0xCB { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) };
            Ok(BodyItem::Open(Some(prolog_of(word))))
        }
        (ZicoDialect::Gen1, [tag @ (0xCC | 0xCD), 0x48, a, b, c, d, e, f, g, h, BREAK, ..]) => {
            let bytes = [*a, *b, *c, *d, *e, *f, *g, *h];
            *reader = reader.advanced(11);
            let word = if *tag == 0xCD { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) };
            Ok(BodyItem::Epilog(epilog_of(word)))
        }
        (_, [BREAK, ..]) => {
            *reader = reader.advanced(1);
            Ok(BodyItem::Break)
        }
        (ZicoDialect::Gen2, _) => whole_item(reader, gen2_entry),
        _ => whole_item(reader, |reader| gen1_entry(reader, dialect, order)),
    }
}

/// Doc and gen1, which differ in how records begin and end (sections 2.3 and 2.5).
fn gen1_entry(reader: &mut Reader<'_>, dialect: ZicoDialect, order: &mut Order) -> Result<BodyItem, WireErrorKind> {
    let tag = reader.tag()?;
    Ok(match (dialect, tag) {
        (ZicoDialect::Doc, 6 | 7 | 0x0A | 0x0B) => {
            array_to_break(reader)?;
            let own = if matches!(tag, 6 | 0x0A) { Order::Big } else { Order::Little };
            let word = word(reader, own)?;
            *order = own;
            BodyItem::Open(Some(prolog_of(word)))
        }
        (ZicoDialect::Gen1, 8) => {
            array_to_break(reader)?;
            BodyItem::Open(None)
        }
        (ZicoDialect::Gen1, 0x0A) => BodyItem::Prolog(prolog_of(word(reader, Order::Big)?)),
        (ZicoDialect::Gen1, 0x0B) => BodyItem::Prolog(prolog_of(word(reader, Order::Little)?)),
        (ZicoDialect::Doc, 0x0D) => BodyItem::Epilog(epilog(reader, *order)?),
        (ZicoDialect::Gen1, 0x0C) => BodyItem::Epilog(epilog(reader, Order::Big)?),
        (ZicoDialect::Gen1, 0x0D) => BodyItem::Epilog(epilog(reader, Order::Little)?),
        (_, 0x0F) => BodyItem::Flags(unsigned(reader)?),
        (_, 0x21) => {
            reader.array(2..=2, "an array of clock and type")?;
            let clock = integer(reader)? as i64;
            BodyItem::Begin(Begin { clock, trace_type: symbol(reader)?, span: 0, parent: 0 })
        }
        // Agents write the map of tag 0x0e only to their own store; here it is read as attributes.
        (_, 9 | 0x0E) => BodyItem::Attributes(map(reader, None)?),
        (_, 0x26) => {
            reader.array(2..=2, "an array of type and map")?;
            let upward = symbol(reader)?;
            BodyItem::Attributes(map(reader, Some(upward))?)
        }
        (_, 0x22) => {
            let start = reader.offset();
            exception(reader, dialect)?;
            BodyItem::Exception(start..reader.offset())
        }
        (_, 0x23) => BodyItem::Reference(integer(reader)?),
        _ => return Err(WireErrorKind::Tag(tag)),
    })
}

fn gen2_entry(reader: &mut Reader<'_>) -> Result<BodyItem, WireErrorKind> {
    let tag = reader.tag()?;
    Ok(match tag {
        3 => {
            array_to_break(reader)?;
            BodyItem::Open(Some(Prolog { start: integer(reader)?, method: integer(reader)? }))
        }
        4 => {
            let length = reader.array(2..=3, "an array of stop, calls and maybe flags")?;
            let (stop, calls) = (integer(reader)?, integer(reader)?);
            let flags = if length == 3 { Some(integer(reader)?) } else { None };
            end_of_record(reader)?;
            BodyItem::Epilog(Epilog { stop, calls, flags })
        }
        5 => {
            let length = reader.array(2..=4, "an array of clock, type, and maybe span and parent")?;
            let clock = integer(reader)? as i64;
            let trace_type = symbol(reader)?;
            let span = if length > 2 { integer(reader)? } else { 0 };
            let parent = if length > 3 { integer(reader)? } else { 0 };
            BodyItem::Begin(Begin { clock, trace_type, span, parent })
        }
        6 => {
            let length = reader.array(2..=3, "an array of maybe type, key and value")?;
            let upward = if length == 3 { Some(symbol(reader)?) } else { None };
            let start = reader.offset();
            name(reader, true)?;
            reader.skip(MAX_VALUE_DEPTH)?;
            BodyItem::Attributes(Attributes { upward, form: Form::Pair, range: start..reader.offset() })
        }
        7 => {
            let start = reader.offset();
            exception(reader, ZicoDialect::Gen2)?;
            BodyItem::Exception(start..reader.offset())
        }
        8 => BodyItem::Reference(integer(reader)?),
        _ => return Err(WireErrorKind::Tag(tag)),
    })
}

fn map(reader: &mut Reader<'_>, upward: Option<u64>) -> Result<Attributes, CborError> {
    let start = *reader;
    match reader.item()? {
        CborItem::Map(_) => *reader = start,
        _ => return Err(CborError { offset: start.offset(), fault: CborErrorKind::Expected("a map") }),
    }
    // The map itself is no level of a value.
    reader.skip(MAX_VALUE_DEPTH + 1)?;
    Ok(Attributes { upward, form: Form::Map, range: start.offset()..reader.offset() })
}

/// Rule 32: a record is an array up to a break; anything else cannot be decoded.
fn array_to_break(reader: &mut Reader<'_>) -> Result<(), CborError> {
    if reader.take(ARRAY_TO_BREAK) {
        return Ok(());
    }
    let offset = reader.offset();
    reader.item()?;
    Err(CborError { offset, fault: CborErrorKind::Expected("an array up to a break") })
}

fn word(reader: &mut Reader<'_>, order: Order) -> Result<u64, CborError> {
    let offset = reader.offset();
    match reader.item()? {
        CborItem::Bytes(bytes) if bytes.len() == 8 => Ok(word_of(bytes, order)),
        _ => Err(CborError { offset, fault: CborErrorKind::Expected("a byte string of 8") }),
    }
}

/// Rule 13: a number of calls over 24 bits is in a second word.
fn epilog(reader: &mut Reader<'_>, order: Order) -> Result<Epilog, CborError> {
    let offset = reader.offset();
    let (word, long_calls) = match reader.item()? {
        CborItem::Bytes(bytes) if bytes.len() == 8 => (word_of(bytes, order), None),
        CborItem::Bytes(bytes) if bytes.len() == 16 => (word_of(&bytes[..8], order), Some(word_of(&bytes[8..], order))),
        _ => return Err(CborError { offset, fault: CborErrorKind::Expected("a byte string of 8 or 16") }),
    };
    end_of_record(reader)?;
    let epilog = epilog_of(word);
    Ok(Epilog { calls: long_calls.unwrap_or(epilog.calls), ..epilog })
}

/// The break after an epilog, which is part of it.
fn end_of_record(reader: &mut Reader<'_>) -> Result<(), CborError> {
    let offset = reader.offset();
    match reader.take(BREAK) {
        true => Ok(()),
        false if reader.is_at_end() => Err(CborError { offset, fault: CborErrorKind::End }),
        false => Err(CborError { offset, fault: CborErrorKind::Expected("a break after the end") }),
    }
}

fn word_of(bytes: &[u8], order: Order) -> u64 {
    let bytes = bytes.first_chunk().copied().unwrap_or_default();
    match order {
        Order::Big => u64::from_be_bytes(bytes),
        Order::Little => u64::from_le_bytes(bytes),
    }
}

fn prolog_of(word: u64) -> Prolog {
    Prolog { start: word & ((1 << TIME_BITS) - 1), method: word >> TIME_BITS }
}

fn epilog_of(word: u64) -> Epilog {
    Epilog { stop: word & ((1 << TIME_BITS) - 1), calls: word >> TIME_BITS, flags: None }
}

impl From<CborError> for WireErrorKind {
    fn from(error: CborError) -> Self {
        WireErrorKind::Cbor(error)
    }
}

/// Reads a whole item, or leaves the reader before it and returns its offset in the error.
#[inline]
fn whole_item<'a, T>(
    reader: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, WireErrorKind>,
) -> Result<T, WireError> {
    let before = *reader;
    read(reader).map_err(|kind| {
        *reader = before;
        WireError { offset: before.offset(), kind }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_show_the_dialect_if_it_is_unambiguous() {
        let (definitions, trace) = (Carries::Definitions, Carries::Trace);
        for (bytes, what, dialect) in [
            (&b"\xc1\x83"[..], definitions, Some(ZicoDialect::Gen1)),
            (b"\xc1\x82", definitions, Some(ZicoDialect::Gen2)),
            (b"\xd8\x01\x82", definitions, Some(ZicoDialect::Gen2)),
            (b"\xcd\x83", definitions, Some(ZicoDialect::Doc)),
            (b"\xcf\x82", definitions, Some(ZicoDialect::Doc)),
            (b"\xc2\x84", definitions, None),
            (b"\xc8\x9f", trace, Some(ZicoDialect::Gen1)),
            (b"\xc3\x82", trace, Some(ZicoDialect::Gen2)),
            (b"\xca\x9f", trace, Some(ZicoDialect::Doc)),
            (b"\xc7\x9f", trace, Some(ZicoDialect::Doc)),
            (b"\xd8\x0b\x9f", trace, Some(ZicoDialect::Doc)),
            (b"\xca\x48", trace, None),
            (b"\xcd\x48", trace, None),
            (b"\xd8\x21\x82", trace, None),
            (b"\xff", trace, None),
            (b"\xc3", trace, Some(ZicoDialect::Gen2)),
            (b"", trace, None),
        ] {
            assert_eq!(detect(bytes, what), dialect, "{bytes:02x?}");
        }
        for (bytes, what) in [
            (&b"\xcd\x83"[..], definitions),
            (b"\xcd\x48", trace),
            (b"\xc1\x82", definitions),
            (b"\xc3\x82\x61", definitions),
            (b"\xc3\x9f", trace),
            (b"\xca\x9f", trace),
            (b"", trace),
        ] {
            assert_eq!(carries(bytes), what, "{bytes:02x?}");
        }
    }

    #[test]
    fn a_word_is_the_same_in_both_byte_orders() {
        let expected = BodyItem::Open(Some(Prolog { start: 1000, method: 0xFF_FFFE }));
        for (bytes, dialect) in [
            (&b"\xc8\x9f\xcb\x48\xe8\x03\x00\x00\x00\xfe\xff\xff"[..], ZicoDialect::Gen1),
            (b"\xc8\x9f\xca\x48\xff\xff\xfe\x00\x00\x00\x03\xe8", ZicoDialect::Gen1),
            (b"\xcb\x9f\x48\xe8\x03\x00\x00\x00\xfe\xff\xff", ZicoDialect::Doc),
            (b"\xd8\x0a\x9f\x48\xff\xff\xfe\x00\x00\x00\x03\xe8", ZicoDialect::Doc),
        ] {
            let mut reader = Reader::new(bytes);
            assert_eq!(entry(&mut reader, dialect, &mut Order::Little).unwrap(), expected, "{bytes:02x?}");
            assert!(reader.is_at_end());
        }
        let long = b"\xcc\x50\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00\x01\x00\x00\x00\xff";
        let epilog = Epilog { stop: 9, calls: 1 << 24, flags: None };
        assert_eq!(
            entry(&mut Reader::new(long), ZicoDialect::Gen1, &mut Order::Little).unwrap(),
            BodyItem::Epilog(epilog)
        );
        // The break is part of the epilog.
        let error = entry(&mut Reader::new(&long[..18]), ZicoDialect::Gen1, &mut Order::Little).unwrap_err();
        assert!(error.is_cut() && error.offset == 0);
    }
}
