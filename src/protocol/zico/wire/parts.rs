//! The parts of items: numbers, texts and the ids of texts, exceptions.

use std::borrow::Cow;
use std::ops::Range;

use tributary_codec::cbor::{CborError, CborErrorKind, CborItem, Reader};

use super::{BREAK, MAX_VALUE_DEPTH, REFERENCE, ZicoDialect, map};

const FALSE: u8 = 0xF4;
const TRUE: u8 = 0xF5;

/// An exception.
#[derive(Clone, Debug)]
pub struct Exception<'a> {
    /// Its id; may be not unique.
    pub id: u64,
    /// Its class.
    pub class: TextOrSymbol<'a>,
    /// Its message. [`TextOrSymbol::None`] and the empty text differ.
    pub message: TextOrSymbol<'a>,
    /// The id of its cause. 0: none.
    pub cause: u64,
    /// A reader at the first frame of the stack, for [`frame`].
    pub stack: Reader<'a>,
    /// The number of frames; `None`: up to a break.
    pub frames: Option<u64>,
    /// Its attributes (gen2).
    pub attributes: Option<Range<usize>>,
}

/// Reads an exception and checks it to its end.
///
/// # Errors
/// The bytes have another type, or end.
pub fn exception<'a>(reader: &mut Reader<'a>, dialect: ZicoDialect) -> Result<Exception<'a>, CborError> {
    let most = if dialect == ZicoDialect::Gen2 { 6 } else { 5 };
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
        CborItem::Array(frames) => frames,
        _ => return Err(CborError { offset: before.offset(), fault: CborErrorKind::Expected("an array of frames") }),
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
pub struct WireFrame<'a> {
    /// Its class, method and file.
    pub names: [TextOrSymbol<'a>; 3],
    /// Its line: −2 native, −1 or 0 unknown.
    pub line: i64,
}

/// Reads one frame.
///
/// # Errors
/// The bytes have another type, or end.
pub fn frame<'a>(reader: &mut Reader<'a>) -> Result<WireFrame<'a>, CborError> {
    reader.array(4..=4, "an array of class, method, file and line")?;
    let names = [name(reader, true)?, name(reader, true)?, name(reader, true)?];
    Ok(WireFrame { names, line: integer(reader)? as i64 })
}

/// Whether another element follows in a container with `left` elements, or up to a break, which is consumed.
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
        None if reader.is_at_end() => Err(CborError { offset: reader.offset(), fault: CborErrorKind::End }),
        None => Ok(!reader.take(BREAK)),
    }
}

/// A text, or the symbol that stands for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TextOrSymbol<'a> {
    /// Null.
    None,
    /// The id of a string.
    Symbol(u64),
    /// The text itself; may be invalid UTF-8.
    Text(Cow<'a, [u8]>),
    /// Another value, only for keys of maps: its place.
    Other(usize, usize),
}

/// Reads a name. `is_bare`: an untagged number is also a symbol.
///
/// # Errors
/// The bytes have another type, or end.
pub fn name<'a>(reader: &mut Reader<'a>, is_bare: bool) -> Result<TextOrSymbol<'a>, CborError> {
    let before = *reader;
    Ok(match reader.item()? {
        CborItem::Null | CborItem::Undefined => TextOrSymbol::None,
        CborItem::Tag(REFERENCE) => TextOrSymbol::Symbol(integer(reader)?),
        CborItem::Unsigned(id) if is_bare => TextOrSymbol::Symbol(id),
        CborItem::Text(text) => TextOrSymbol::Text(Cow::Borrowed(text)),
        CborItem::Pieces(true) => {
            *reader = before;
            TextOrSymbol::Text(text(reader)?)
        }
        _ => {
            *reader = before;
            return Err(CborError {
                offset: before.offset(),
                fault: CborErrorKind::Expected("a text or the id of one"),
            });
        }
    })
}

/// Reads the key of an attribute, which may be any value.
///
/// # Errors
/// It is cut off, or nests too deeply.
pub fn key<'a>(reader: &mut Reader<'a>, is_bare: bool) -> Result<TextOrSymbol<'a>, CborError> {
    let before = *reader;
    name(reader, is_bare).or_else(|_| {
        *reader = before;
        reader.skip(MAX_VALUE_DEPTH)?;
        Ok(TextOrSymbol::Other(before.offset(), reader.offset()))
    })
}

/// Reads a text, whole or in pieces.
///
/// # Errors
/// The bytes have another type, or end.
pub fn text<'a>(reader: &mut Reader<'a>) -> Result<Cow<'a, [u8]>, CborError> {
    string(reader, true)
}

/// Reads a text or a byte string, whole or in pieces.
///
/// # Errors
/// The bytes have another type, or end.
pub fn string<'a>(reader: &mut Reader<'a>, is_text: bool) -> Result<Cow<'a, [u8]>, CborError> {
    let expected = CborErrorKind::Expected(if is_text { "a text" } else { "a byte string" });
    let before = *reader;
    match (reader.item()?, is_text) {
        (CborItem::Text(whole), true) | (CborItem::Bytes(whole), false) => Ok(Cow::Borrowed(whole)),
        (CborItem::Pieces(pieces_of_text), _) if pieces_of_text == is_text => {
            let mut joined = Vec::new();
            loop {
                let offset = reader.offset();
                match (reader.item()?, is_text) {
                    (CborItem::Break, _) => return Ok(Cow::Owned(joined)),
                    (CborItem::Text(piece), true) | (CborItem::Bytes(piece), false) => joined.extend_from_slice(piece),
                    _ => return Err(CborError { offset, fault: expected }),
                }
            }
        }
        _ => Err(CborError { offset: before.offset(), fault: expected }),
    }
}

/// A non-negative integer. A boolean is read as 0 or 1, so that this fault does not cost a record.
pub(super) fn unsigned(reader: &mut Reader<'_>) -> Result<u64, CborError> {
    match reader.rest() {
        [byte @ (FALSE | TRUE), ..] => {
            reader.take(*byte);
            Ok(u64::from(*byte == TRUE))
        }
        _ => reader.unsigned(),
    }
}

/// An integer as 64 bits. A boolean is read as 0 or 1.
///
/// # Errors
/// The bytes have another type, or end.
pub fn integer(reader: &mut Reader<'_>) -> Result<u64, CborError> {
    match reader.rest() {
        [FALSE | TRUE, ..] => unsigned(reader),
        _ => reader.integer_bits(),
    }
}

/// The id of a string, tagged or not.
pub(super) fn symbol(reader: &mut Reader<'_>) -> Result<u64, CborError> {
    if !reader.take(0xC0 + REFERENCE as u8) && reader.rest().starts_with(&[0xD8, REFERENCE as u8]) {
        *reader = reader.advanced(2);
    }
    integer(reader)
}
