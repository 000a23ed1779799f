//! The fields of items as rows of a sheet.

use std::fmt::Display;

use tributary_codec::cbor::{CborError, CborErrorKind, CborItem, Reader};
use tributary_explain::Sheet;
use tributary_explain::cbor::{CborStyle, elements, field, head, inside, reference, said, size};
use tributary_explain::words::{duration, moment};

use super::{REFERENCE, TICK_NANOS, TIME_BITS, Written};
/// The next tag, without consuming it.
pub(super) fn tag(reader: &Reader<'_>) -> Result<u64, CborError> {
    let mut next = *reader;
    match next.item()? {
        CborItem::Tag(tag) => Ok(tag),
        _ => Err(CborError { offset: reader.offset(), fault: CborErrorKind::Expected("a tag") }),
    }
}

/// The length of the array after the next tag.
pub(super) fn length_of(mut reader: Reader<'_>) -> Option<u64> {
    reader.item().ok()?;
    if let CborItem::Array(length) = reader.item().ok()? { length } else { None }
}

/// A tag, and an array of one of these lengths.
pub(super) fn tagged(
    reader: &mut Reader<'_>,
    sheet: &mut Sheet,
    name: &str,
    lengths: std::ops::RangeInclusive<u64>,
) -> Result<u64, CborError> {
    let mut length = 0;
    field(reader, sheet, name, |reader| {
        reader.item()?;
        length = reader.array(lengths, "an array of the length of such items")?;
        Ok("")
    })?;
    Ok(length)
}

/// Rule 32: a record is an array up to a break.
pub(super) fn record(reader: &mut Reader<'_>, sheet: &mut Sheet, words: &str) -> Written {
    field(reader, sheet, "record", |reader| {
        reader.item()?;
        let offset = reader.offset();
        match reader.item()? {
            CborItem::Array(None) => Ok(words),
            _ => Err(CborError { offset, fault: CborErrorKind::Expected("an array up to a break") }),
        }
    })
}

pub(super) fn tagged_number<V: Display>(
    reader: &mut Reader<'_>,
    sheet: &mut Sheet,
    name: &str,
    show: impl FnOnce(u64) -> V,
) -> Written {
    field(reader, sheet, name, |reader| {
        reader.item()?;
        read_integer(reader).map(show)
    })
}

pub(super) fn number<V: Display>(
    reader: &mut Reader<'_>,
    sheet: &mut Sheet,
    name: &str,
    show: impl FnOnce(u64) -> V,
) -> Written {
    field(reader, sheet, name, |reader| read_integer(reader).map(show))
}

pub(super) fn integer(reader: &mut Reader<'_>, sheet: &mut Sheet, name: &str) -> Written {
    number(reader, sheet, name, |number| number as i64)
}

/// An integer, as 64 bits. A boolean is read as 0 or 1.
fn read_integer(reader: &mut Reader<'_>) -> Result<u64, CborError> {
    let before = *reader;
    match reader.item()? {
        CborItem::Bool(truth) => Ok(truth.into()),
        _ => {
            *reader = before;
            reader.integer_bits()
        }
    }
}

/// The id of a string, tagged or not. 0: none (rule 18).
pub(super) fn symbol(reader: &mut Reader<'_>, sheet: &mut Sheet, name: &str) -> Written {
    field(reader, sheet, name, |reader| {
        if tag(reader) == Ok(REFERENCE) {
            reader.item()?;
        }
        read_integer(reader).map(symbol_name)
    })
}

fn symbol_name(id: u64) -> String {
    if id == 0 { "none".to_owned() } else { format!("string {id}") }
}

/// A text, or the id of one.
pub(super) fn name(reader: &mut Reader<'_>, sheet: &mut Sheet, label: &str, is_bare: bool) -> Written {
    let mut next = *reader;
    match next.item()? {
        CborItem::Tag(REFERENCE) => field(reader, sheet, label, reference),
        CborItem::Unsigned(id) if is_bare => head(reader, sheet, label, symbol_name(id)),
        item @ (CborItem::Null | CborItem::Undefined) => head(reader, sheet, label, said(item)),
        _ => text(reader, sheet, label),
    }
}

/// A text, whole or in pieces.
pub(super) fn text(reader: &mut Reader<'_>, sheet: &mut Sheet, label: &str) -> Written {
    let mut next = *reader;
    match next.item()? {
        CborItem::Text(_) | CborItem::Pieces(true) => {
            CborStyle { reference: None, most_depth: 0 }.value(reader, sheet, label, 0)
        }
        _ => Err(CborError { offset: reader.offset(), fault: CborErrorKind::Expected("a text or the id of one") }),
    }
}

pub(super) fn attributes(reader: &mut Reader<'_>, sheet: &mut Sheet, values: CborStyle) -> Written {
    let mut pairs = None;
    field(reader, sheet, "attributes", |reader| {
        reader.item()?;
        let offset = reader.offset();
        let CborItem::Map(left) = reader.item()? else {
            return Err(CborError { offset, fault: CborErrorKind::Expected("a map") });
        };
        pairs = left;
        Ok(size(left, "pair"))
    })?;
    values.pairs(reader, sheet, pairs, 0)
}

pub(super) fn exception(reader: &mut Reader<'_>, sheet: &mut Sheet, values: CborStyle, most: u64) -> Written {
    let length = tagged(reader, sheet, "exception", 5..=most)?;
    inside(sheet, |sheet| {
        integer(reader, sheet, "id")?;
        name(reader, sheet, "class", true)?;
        name(reader, sheet, "message", false)?;
        let mut next = *reader;
        match next.item()? {
            CborItem::Null => head(reader, sheet, "cause", "null")?,
            _ => integer(reader, sheet, "cause")?,
        }
        let mut next = *reader;
        let CborItem::Array(frames) = next.item()? else {
            return Err(CborError { offset: reader.offset(), fault: CborErrorKind::Expected("an array of frames") });
        };
        head(reader, sheet, "stack", size(frames, "frame"))?;
        inside(sheet, |sheet| elements(reader, sheet, frames, frame))?;
        if length == 6 { values.map(reader, sheet, "attributes", 0) } else { Ok(()) }
    })
}

fn frame(reader: &mut Reader<'_>, sheet: &mut Sheet, number_of: u64) -> Written {
    field(reader, sheet, &format!("frame {number_of}"), |reader| {
        reader.array(4..=4, "an array of class, method, file and line").map(|_| "")
    })?;
    inside(sheet, |sheet| {
        ["class", "method", "file"].iter().try_for_each(|label| name(reader, sheet, label, true))?;
        number(reader, sheet, "line", |line| match line as i64 {
            -2 => "-2 (native)".to_owned(),
            line @ (-1 | 0) => format!("{line} (unknown)"),
            line => line.to_string(),
        })
    })
}

/// A word of 8 bytes, and possibly a second one after it.
pub(super) fn word(
    reader: &mut Reader<'_>,
    is_little: bool,
    sizes: std::ops::RangeInclusive<usize>,
) -> Result<(u64, Option<u64>), CborError> {
    let offset = reader.offset();
    let read = |bytes: &[u8]| {
        let bytes = bytes.first_chunk().copied()?;
        Some(if is_little { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) })
    };
    match reader.item()? {
        CborItem::Bytes(bytes) if sizes.contains(&bytes.len()) && bytes.len() % 8 == 0 => {
            Ok((read(bytes).unwrap_or_default(), bytes.get(8..).and_then(read)))
        }
        _ => Err(CborError { offset, fault: CborErrorKind::Expected("a byte string of 8, or at the end of 16") }),
    }
}

/// The time is in the low bits, the method in the high bits (section 2.3).
pub(super) fn prolog((word, _): (u64, Option<u64>)) -> String {
    format!("start {}, method {}", ticks(word), word >> TIME_BITS)
}

pub(super) fn ticks(word: u64) -> String {
    duration(i128::from(word & ((1 << TIME_BITS) - 1)) * TICK_NANOS)
}

pub(super) fn clock(millis: u64) -> String {
    moment(i128::from(millis as i64) * 1_000_000)
}

pub(super) fn order_name(is_little: bool) -> &'static str {
    if is_little { "little-endian" } else { "big-endian" }
}

/// Types of strings (section 2.2).
pub(super) fn kind(kind: u64) -> String {
    let name = match kind {
        0 => " (string)",
        4 => " (keyword)",
        5 => " (class)",
        6 => " (method)",
        7 => " (uuid)",
        8 => " (signature)",
        _ => "",
    };
    format!("{kind}{name}")
}

/// Flags of a trace (section 2.4).
pub(super) fn flags(flags: u64) -> String {
    const NAMES: [(u64, &str); 10] = [
        (0x01, "overflow"),
        (0x02, "submit"),
        (0x04, "all methods"),
        (0x08, "drop interim"),
        (0x10, "trace calls"),
        (0x20, "drop"),
        (0x40, "submit method"),
        (0x100, "thread name"),
        (0x1000, "error"),
        (0x2000, "sent"),
    ];
    let names: Vec<_> = NAMES.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    if names.is_empty() { format!("{flags:#x}") } else { format!("{flags:#x} ({})", names.join(", ")) }
}
