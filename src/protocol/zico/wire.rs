//! Bytes → definitions and the items of traces, borrowed from the body (section 2).
//!
//! A body is a stream of tagged items. The three dialects share most layouts and number their tags differently; each
//! item is checked here to its end, so whoever keeps a [`Range`] of it can read it again without a fault.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use crate::codec::cbor::{CborError, Fault, Item, Reader};

/// How deep a value may be nested (section 5).
pub const MOST_VALUE_DEPTH: usize = 64;
/// Bits of a word that are the time; the others are the method or the number of calls (section 2.3).
const TIME_BITS: u32 = 40;
/// The tag of a string reference in doc and gen1.
const REFERENCE: u64 = 6;
const BREAK: u8 = 0xFF;
const FALSE: u8 = 0xF4;
const TRUE: u8 = 0xF5;

/// Which of the three dialects a body is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// What the specification's text describes.
    Doc,
    /// Agents 1.90.1 to 1.90.6.
    Gen1,
    /// Agents from 1.90.7 on.
    Gen2,
}

impl Dialect {
    /// The name in `origin.version`.
    pub fn as_str(self) -> &'static str {
        match self {
            Dialect::Doc => "doc",
            Dialect::Gen1 => "gen1",
            Dialect::Gen2 => "gen2",
        }
    }
}

/// What a body carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carries {
    /// Definitions of strings and methods, and attributes of the agent.
    Definitions,
    /// Records of a trace.
    Trace,
}

/// The dialect that the first bytes of a body show (section 2.1). `None`: they may be of any, as those of a later part.
pub fn detect(body: &[u8], carries: Carries) -> Option<Dialect> {
    let (tag, next) = first(body)?;
    match (carries, tag, next) {
        (Carries::Definitions, 1, 0x83) | (Carries::Definitions, 3, _) => Some(Dialect::Gen1),
        (Carries::Definitions, 1, 0x82) => Some(Dialect::Gen2),
        (Carries::Definitions, 0x0D..=0x0F, 0x80..=0x9F) => Some(Dialect::Doc),
        (Carries::Trace, 8, 0x9F) => Some(Dialect::Gen1),
        (Carries::Trace, 3, _) => Some(Dialect::Gen2),
        (Carries::Trace, 6 | 7 | 0x0A | 0x0B, 0x9F) => Some(Dialect::Doc),
        _ => None,
    }
}

/// What a body carries whose path does not say it: that of a form (section 1.4).
pub fn carries(body: &[u8]) -> Carries {
    match first(body) {
        Some((1 | 2 | 0x0D | 0x0E | 0x0F, 0x80..=0x9F)) => Carries::Definitions,
        // Tag 3 is an agent attribute of gen1, or a record of gen2, which is `9f`.
        Some((3, 0x80..=0x9E)) => Carries::Definitions,
        _ => Carries::Trace,
    }
}

/// The first tag, and the byte behind it.
fn first(body: &[u8]) -> Option<(u64, u8)> {
    let mut reader = Reader::new(body);
    match reader.item() {
        Ok(Item::Tag(tag)) => Some((tag, reader.rest().first().copied().unwrap_or_default())),
        _ => None,
    }
}

/// What is wrong with an item of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireError {
    /// Offset of the item of the body; what stands before it was understood.
    pub offset: usize,
    /// What is wrong, and where in the item.
    pub kind: WireErrorKind,
}

/// What is wrong with an item of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireErrorKind {
    /// It is not what CBOR has, or not what stands at that place.
    Cbor(CborError),
    /// A tag that the dialect does not have at this place.
    Tag(u64),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the item at {}: ", self.offset)?;
        match self.kind {
            WireErrorKind::Cbor(error) => write!(f, "{error}"),
            WireErrorKind::Tag(tag) => write!(f, "tag {tag} has no place here"),
        }
    }
}

impl std::error::Error for WireError {}

impl WireError {
    /// Whether the body just ends too early.
    pub fn is_cut(&self) -> bool {
        matches!(self.kind, WireErrorKind::Cbor(CborError { fault: Fault::End, .. }))
    }

    /// Whether a value is nested too deeply.
    pub fn is_too_deep(&self) -> bool {
        matches!(self.kind, WireErrorKind::Cbor(CborError { fault: Fault::TooDeep(_), .. }))
    }
}

/// An item of a body that carries definitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Definition<'a> {
    /// A string's text and type (which nobody should rely on: rule 16).
    String {
        /// Its id in the session.
        id: u64,
        /// The text, which need not be UTF-8.
        text: Cow<'a, [u8]>,
        /// The type, where the dialect sends one.
        kind: Option<u64>,
    },
    /// A method, by the ids of its parts.
    Method {
        /// Its id in the session: another numbering than the strings'.
        id: u64,
        /// Ids of strings: class, method and signature. 0: none (rule 18).
        parts: [u64; 3],
    },
    /// An attribute of the agent.
    Attribute {
        /// Its key.
        key: Name<'a>,
        /// Where its value is.
        value: Range<usize>,
    },
}

/// Reads the next item of a body with definitions.
///
/// # Errors
/// It is none of the dialect's. The reader stays where it was.
pub fn definition<'a>(reader: &mut Reader<'a>, dialect: Dialect) -> Result<Definition<'a>, WireError> {
    whole_item(reader, |reader| {
        let tag = tag(reader)?;
        Ok(match (dialect, tag) {
            (Dialect::Doc, 0x0D) | (Dialect::Gen1, 1) => {
                reader.array(3..=3, "an array of id, text and type")?;
                let (id, text) = (unsigned(reader)?, text(reader)?);
                Definition::String { id, text, kind: Some(unsigned(reader)?) }
            }
            (Dialect::Gen2, 1) => {
                reader.array(2..=2, "an array of id and text")?;
                Definition::String { id: unsigned(reader)?, text: text(reader)?, kind: None }
            }
            (Dialect::Doc, 0x0E) | (Dialect::Gen1 | Dialect::Gen2, 2) => {
                reader.array(4..=4, "an array of id, class, method and signature")?;
                let id = unsigned(reader)?;
                Definition::Method { id, parts: [symbol(reader)?, symbol(reader)?, symbol(reader)?] }
            }
            (Dialect::Doc, 0x0F) | (Dialect::Gen1, 3) => {
                reader.array(2..=2, "an array of key and value")?;
                let key = name(reader, false)?;
                let start = reader.offset();
                reader.skip(MOST_VALUE_DEPTH)?;
                Definition::Attribute { key, value: start..reader.offset() }
            }
            _ => return Err(WireErrorKind::Tag(tag)),
        })
    })
}

/// An item of a body with a trace.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// A record begins. In gen1 the prolog may come apart from it, or never.
    Open(Option<Prolog>),
    /// The prolog of the record that was opened last (gen1).
    Prolog(Prolog),
    /// The end of a record, and the `ff` behind it.
    Epilog(Epilog),
    /// `ff` without an epilog before it.
    Break,
    /// The record is the top of a trace.
    Begin(Begin),
    /// Flags of the record (gen1).
    Flags(u64),
    /// Attributes of the record, or of one above it.
    Attributes(Attributes),
    /// An exception: an array, which [`exception`] reads.
    Exception(Range<usize>),
    /// An exception that was told before, by its id.
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
    /// Calls of methods in it, itself included.
    pub calls: u64,
    /// Flags of its trace (gen2).
    pub flags: Option<u64>,
}

/// What makes a record the top of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begin {
    /// Milliseconds since 1970.
    pub clock: i64,
    /// The id of the trace's type. 0: none.
    pub trace_type: u64,
    /// The span's id as the agent has it. 0: none.
    pub span: u64,
    /// The id of the span above it, maybe another agent's. 0: none.
    pub parent: u64,
}

/// Attributes, and whose they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// `Some`: of the nearest enclosing trace of this type, 0: of any.
    pub upward: Option<u64>,
    /// How they are written.
    pub form: Form,
    /// Where they are.
    pub range: Range<usize>,
}

/// How attributes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A map, in which only a tagged number is a symbol.
    Map,
    /// A map, in which every number that is a key is a symbol (gen2 exceptions).
    SymbolMap,
    /// One key, which is a symbol, and one value behind it.
    Pair,
}

/// The byte order of the words of a doc record, whose epilogs do not say theirs. Orphans have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The most significant byte first.
    Big,
    /// The least significant byte first.
    Little,
}

/// Reads the next item of a body with a trace. `order` answers the byte order of the innermost open record (doc), and
/// takes that of one that is opened.
///
/// # Errors
/// It is none of the dialect's. The reader stays where it was.
#[inline]
pub fn entry(reader: &mut Reader<'_>, dialect: Dialect, order: &mut Order) -> Result<Entry, WireError> {
    match (dialect, reader.rest()) {
        // What most records consist of, without a detour.
        (Dialect::Gen1, [0xC8, 0x9F, tag @ (0xCA | 0xCB), 0x48, a, b, c, d, e, f, g, h, ..]) => {
            let bytes = [*a, *b, *c, *d, *e, *f, *g, *h];
            *reader = reader.advanced(12);
            let word = if *tag == 0xCB { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) };
            Ok(Entry::Open(Some(prolog_of(word))))
        }
        (_, [BREAK, ..]) => {
            *reader = reader.advanced(1);
            Ok(Entry::Break)
        }
        (Dialect::Gen2, _) => whole_item(reader, gen2_entry),
        _ => whole_item(reader, |reader| gen1_entry(reader, dialect, order)),
    }
}

/// Doc and gen1, which differ in how records begin and end (sections 2.3 and 2.5).
fn gen1_entry(reader: &mut Reader<'_>, dialect: Dialect, order: &mut Order) -> Result<Entry, WireErrorKind> {
    let tag = tag(reader)?;
    Ok(match (dialect, tag) {
        (Dialect::Doc, 6 | 7 | 0x0A | 0x0B) => {
            array_to_break(reader)?;
            let own = if matches!(tag, 6 | 0x0A) { Order::Big } else { Order::Little };
            let word = word(reader, own)?;
            *order = own;
            Entry::Open(Some(prolog_of(word)))
        }
        (Dialect::Gen1, 8) => {
            array_to_break(reader)?;
            Entry::Open(None)
        }
        (Dialect::Gen1, 0x0A) => Entry::Prolog(prolog_of(word(reader, Order::Big)?)),
        (Dialect::Gen1, 0x0B) => Entry::Prolog(prolog_of(word(reader, Order::Little)?)),
        (Dialect::Doc, 0x0D) => Entry::Epilog(epilog(reader, *order)?),
        (Dialect::Gen1, 0x0C) => Entry::Epilog(epilog(reader, Order::Big)?),
        (Dialect::Gen1, 0x0D) => Entry::Epilog(epilog(reader, Order::Little)?),
        (_, 0x0F) => Entry::Flags(unsigned(reader)?),
        (_, 0x21) => {
            reader.array(2..=2, "an array of clock and type")?;
            let clock = integer(reader)? as i64;
            Entry::Begin(Begin { clock, trace_type: symbol(reader)?, span: 0, parent: 0 })
        }
        // The map of tag 0x0e is written to stores only; who sends it means attributes.
        (_, 9 | 0x0E) => Entry::Attributes(map(reader, None)?),
        (_, 0x26) => {
            reader.array(2..=2, "an array of type and map")?;
            let upward = symbol(reader)?;
            Entry::Attributes(map(reader, Some(upward))?)
        }
        (_, 0x22) => {
            let start = reader.offset();
            exception(reader, dialect)?;
            Entry::Exception(start..reader.offset())
        }
        (_, 0x23) => Entry::Reference(integer(reader)?),
        _ => return Err(WireErrorKind::Tag(tag)),
    })
}

fn gen2_entry(reader: &mut Reader<'_>) -> Result<Entry, WireErrorKind> {
    let tag = tag(reader)?;
    Ok(match tag {
        3 => {
            array_to_break(reader)?;
            Entry::Open(Some(Prolog { start: integer(reader)?, method: integer(reader)? }))
        }
        4 => {
            let length = reader.array(2..=3, "an array of stop, calls and maybe flags")?;
            let (stop, calls) = (integer(reader)?, integer(reader)?);
            let flags = if length == 3 { Some(integer(reader)?) } else { None };
            end_of_record(reader)?;
            Entry::Epilog(Epilog { stop, calls, flags })
        }
        5 => {
            let length = reader.array(2..=4, "an array of clock, type, and maybe span and parent")?;
            let clock = integer(reader)? as i64;
            let trace_type = symbol(reader)?;
            let span = if length > 2 { integer(reader)? } else { 0 };
            let parent = if length > 3 { integer(reader)? } else { 0 };
            Entry::Begin(Begin { clock, trace_type, span, parent })
        }
        6 => {
            let length = reader.array(2..=3, "an array of maybe type, key and value")?;
            let upward = if length == 3 { Some(symbol(reader)?) } else { None };
            let start = reader.offset();
            name(reader, true)?;
            reader.skip(MOST_VALUE_DEPTH)?;
            Entry::Attributes(Attributes { upward, form: Form::Pair, range: start..reader.offset() })
        }
        7 => {
            let start = reader.offset();
            exception(reader, Dialect::Gen2)?;
            Entry::Exception(start..reader.offset())
        }
        8 => Entry::Reference(integer(reader)?),
        _ => return Err(WireErrorKind::Tag(tag)),
    })
}

/// An exception.
#[derive(Clone, Debug)]
pub struct Exception<'a> {
    /// Its id, which need not be unique.
    pub id: u64,
    /// Its class.
    pub class: Name<'a>,
    /// Its message. [`Name::None`] and the empty text are not the same.
    pub message: Name<'a>,
    /// The id of its cause. 0: none is told.
    pub cause: u64,
    /// Stands before the first frame of the stack; [`frame`] reads it.
    pub stack: Reader<'a>,
    /// How many frames the stack has; `None`: up to a break.
    pub frames: Option<u64>,
    /// Its attributes (gen2).
    pub attributes: Option<Range<usize>>,
}

/// Reads an exception and checks it to its end.
///
/// # Errors
/// It is none.
pub fn exception<'a>(reader: &mut Reader<'a>, dialect: Dialect) -> Result<Exception<'a>, CborError> {
    let most = if dialect == Dialect::Gen2 { 6 } else { 5 };
    let length = reader.array(5..=most, "an array of id, class, message, cause and stack")?;
    let id = integer(reader)?;
    let class = name(reader, true)?;
    let message = name(reader, false)?;
    let cause = match reader.rest() {
        [0xF6, ..] => {
            reader.take(0xF6);
            0
        }
        _ => integer(reader)?,
    };
    let before = *reader;
    let frames = match reader.item()? {
        Item::Array(frames) => frames,
        _ => return Err(CborError { offset: before.offset(), fault: Fault::Expected("an array of frames") }),
    };
    let stack = *reader;
    let mut left = frames;
    while next_of(reader, &mut left)? {
        frame(reader)?;
    }
    let attributes = if length == 6 {
        let start = reader.offset();
        map(reader, None)?;
        Some(start..reader.offset())
    } else {
        None
    };
    Ok(Exception { id, class, message, cause, stack, frames, attributes })
}

/// One frame of a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// Its class, method and file.
    pub names: [Name<'a>; 3],
    /// Its line: −2 native, −1 or 0 unknown.
    pub line: i64,
}

/// Reads one frame.
///
/// # Errors
/// It is none.
pub fn frame<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, CborError> {
    reader.array(4..=4, "an array of class, method, file and line")?;
    let names = [name(reader, true)?, name(reader, true)?, name(reader, true)?];
    Ok(Frame { names, line: integer(reader)? as i64 })
}

/// Whether another element follows in a container of so many that are `left`, or up to a break, which is taken.
///
/// # Errors
/// The bytes end.
pub fn next_of(reader: &mut Reader<'_>, left: &mut Option<u64>) -> Result<bool, CborError> {
    match left {
        Some(0) => Ok(false),
        Some(left) => {
            *left -= 1;
            Ok(true)
        }
        None if reader.is_at_end() => Err(CborError { offset: reader.offset(), fault: Fault::End }),
        None => Ok(!reader.take(BREAK)),
    }
}

/// A text, or the symbol that stands for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Name<'a> {
    /// Null.
    None,
    /// The id of a string.
    Symbol(u64),
    /// The text itself, which need not be UTF-8.
    Text(Cow<'a, [u8]>),
    /// Another value, which only keys of maps may be: where it is.
    Other(usize, usize),
}

/// Reads a name. `is_bare`: an untagged number is a symbol, too.
///
/// # Errors
/// It is none.
pub fn name<'a>(reader: &mut Reader<'a>, is_bare: bool) -> Result<Name<'a>, CborError> {
    let before = *reader;
    Ok(match reader.item()? {
        Item::Null | Item::Undefined => Name::None,
        Item::Tag(REFERENCE) => Name::Symbol(integer(reader)?),
        Item::Unsigned(id) if is_bare => Name::Symbol(id),
        Item::Text(text) => Name::Text(Cow::Borrowed(text)),
        Item::Pieces(true) => {
            *reader = before;
            Name::Text(text(reader)?)
        }
        _ => {
            *reader = before;
            return Err(CborError { offset: before.offset(), fault: Fault::Expected("a text or the id of one") });
        }
    })
}

/// Reads the key of an attribute, which may be anything.
///
/// # Errors
/// It is cut, or too deep.
pub fn key<'a>(reader: &mut Reader<'a>, is_bare: bool) -> Result<Name<'a>, CborError> {
    let before = *reader;
    name(reader, is_bare).or_else(|_| {
        *reader = before;
        reader.skip(MOST_VALUE_DEPTH)?;
        Ok(Name::Other(before.offset(), reader.offset()))
    })
}

/// Reads a text, whole or in pieces.
///
/// # Errors
/// It is none.
pub fn text<'a>(reader: &mut Reader<'a>) -> Result<Cow<'a, [u8]>, CborError> {
    string(reader, true)
}

/// Reads a text or a byte string, whole or in pieces.
///
/// # Errors
/// It is none.
pub fn string<'a>(reader: &mut Reader<'a>, is_text: bool) -> Result<Cow<'a, [u8]>, CborError> {
    let expected = Fault::Expected(if is_text { "a text" } else { "a byte string" });
    let before = *reader;
    match (reader.item()?, is_text) {
        (Item::Text(whole), true) | (Item::Bytes(whole), false) => Ok(Cow::Borrowed(whole)),
        (Item::Pieces(pieces_of_text), _) if pieces_of_text == is_text => {
            let mut joined = Vec::new();
            loop {
                let offset = reader.offset();
                match (reader.item()?, is_text) {
                    (Item::Break, _) => return Ok(Cow::Owned(joined)),
                    (Item::Text(piece), true) | (Item::Bytes(piece), false) => joined.extend_from_slice(piece),
                    _ => return Err(CborError { offset, fault: expected }),
                }
            }
        }
        _ => Err(CborError { offset: before.offset(), fault: expected }),
    }
}

/// An integer from 0 on. A truth value counts as one: damage that can be read over costs no record.
fn unsigned(reader: &mut Reader<'_>) -> Result<u64, CborError> {
    match reader.rest() {
        [byte @ (FALSE | TRUE), ..] => {
            reader.take(*byte);
            Ok(u64::from(*byte == TRUE))
        }
        _ => reader.unsigned(),
    }
}

/// An integer as 64 bits; likewise.
///
/// # Errors
/// It is none.
pub fn integer(reader: &mut Reader<'_>) -> Result<u64, CborError> {
    match reader.rest() {
        [FALSE | TRUE, ..] => unsigned(reader),
        _ => reader.integer_bits(),
    }
}

/// The id of a string, tagged or not.
fn symbol(reader: &mut Reader<'_>) -> Result<u64, CborError> {
    if !reader.take(0xC0 + REFERENCE as u8) && reader.rest().starts_with(&[0xD8, REFERENCE as u8]) {
        *reader = reader.advanced(2);
    }
    integer(reader)
}

fn map(reader: &mut Reader<'_>, upward: Option<u64>) -> Result<Attributes, CborError> {
    let start = *reader;
    match reader.item()? {
        Item::Map(_) => *reader = start,
        _ => return Err(CborError { offset: start.offset(), fault: Fault::Expected("a map") }),
    }
    // The map itself is no nesting of a value.
    reader.skip(MOST_VALUE_DEPTH + 1)?;
    Ok(Attributes { upward, form: Form::Map, range: start.offset()..reader.offset() })
}

fn tag(reader: &mut Reader<'_>) -> Result<u64, CborError> {
    let offset = reader.offset();
    match reader.item()? {
        Item::Tag(tag) => Ok(tag),
        _ => Err(CborError { offset, fault: Fault::Expected("a tag") }),
    }
}

/// Rule 32: a record is an array up to a break, or it is undecodable.
fn array_to_break(reader: &mut Reader<'_>) -> Result<(), CborError> {
    let offset = reader.offset();
    match reader.item()? {
        Item::Array(None) => Ok(()),
        _ => Err(CborError { offset, fault: Fault::Expected("an array up to a break") }),
    }
}

fn word(reader: &mut Reader<'_>, order: Order) -> Result<u64, CborError> {
    let offset = reader.offset();
    match reader.item()? {
        Item::Bytes(bytes) if bytes.len() == 8 => Ok(word_of(bytes, order)),
        _ => Err(CborError { offset, fault: Fault::Expected("a byte string of 8") }),
    }
}

/// Rule 13: the number of calls stands in a word of its own where it is too large for 24 bits.
fn epilog(reader: &mut Reader<'_>, order: Order) -> Result<Epilog, CborError> {
    let offset = reader.offset();
    let (word, long_calls) = match reader.item()? {
        Item::Bytes(bytes) if bytes.len() == 8 => (word_of(bytes, order), None),
        Item::Bytes(bytes) if bytes.len() == 16 => (word_of(&bytes[..8], order), Some(word_of(&bytes[8..], order))),
        _ => return Err(CborError { offset, fault: Fault::Expected("a byte string of 8 or 16") }),
    };
    let stop = word & ((1 << TIME_BITS) - 1);
    end_of_record(reader)?;
    Ok(Epilog { stop, calls: long_calls.unwrap_or(word >> TIME_BITS), flags: None })
}

/// The break behind an epilog, without which that is none.
fn end_of_record(reader: &mut Reader<'_>) -> Result<(), CborError> {
    let offset = reader.offset();
    match reader.take(BREAK) {
        true => Ok(()),
        false if reader.is_at_end() => Err(CborError { offset, fault: Fault::End }),
        false => Err(CborError { offset, fault: Fault::Expected("a break behind the end") }),
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

impl From<CborError> for WireErrorKind {
    fn from(error: CborError) -> Self {
        WireErrorKind::Cbor(error)
    }
}

/// Reads an item of a body whole, or leaves the reader before it and says where it began.
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
