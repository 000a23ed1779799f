//! Annotates CBOR: one row for each item, with the content of containers indented.
//!
//! The caller passes a reader, which is at the end of the annotated bytes afterwards: at an error before the first byte
//! that is not annotated.

use std::fmt::Display;

use tributary_codec::cbor::{CborError, CborErrorKind, CborItem, Reader};

use super::words::{counted, hex};
use super::{Sheet, value};

/// Writes the next field `name`: the bytes that `read` reads, and the value that it returns.
///
/// # Errors
/// Those of `read`. Then nothing is written, and the reader does not move.
pub fn field<'a, V: Display>(
    reader: &mut Reader<'a>,
    sheet: &mut Sheet,
    name: &str,
    read: impl FnOnce(&mut Reader<'a>) -> Result<V, CborError>,
) -> Result<(), CborError> {
    let mut next = *reader;
    let words = read(&mut next)?;
    sheet.field(&reader.rest()[..next.offset() - reader.offset()], name, words);
    *reader = next;
    Ok(())
}

/// Indents what `write` writes.
///
/// # Errors
/// Those of `write`.
pub fn inside(sheet: &mut Sheet, write: impl FnOnce(&mut Sheet) -> Result<(), CborError>) -> Result<(), CborError> {
    sheet.nested(write)
}

/// How values are shown.
#[derive(Clone, Copy, Debug)]
pub struct CborStyle {
    /// The tag of an integer that stands for a text.
    pub reference: Option<u64>,
    /// The deepest nesting of containers and tags.
    pub most_depth: usize,
}

impl CborStyle {
    /// Writes the next value with its content.
    ///
    /// # Errors
    /// It is incomplete, nested too deep, or not valid CBOR.
    pub fn value(self, reader: &mut Reader<'_>, sheet: &mut Sheet, name: &str, depth: usize) -> Result<(), CborError> {
        let before = *reader;
        let mut next = before;
        let item = next.item()?;
        let is_container = matches!(item, CborItem::Array(_) | CborItem::Map(_) | CborItem::Tag(_));
        if is_container && depth >= self.most_depth {
            return Err(CborError { offset: before.offset(), fault: CborErrorKind::TooDeep(self.most_depth) });
        }
        match item {
            CborItem::Tag(tag) if Some(tag) == self.reference && next.integer_bits().is_ok() => {
                field(reader, sheet, name, reference)
            }
            CborItem::Tag(tag) => {
                head(reader, sheet, name, format!("tag {tag}"))?;
                inside(sheet, |sheet| self.value(reader, sheet, "value", depth + 1))
            }
            CborItem::Array(left) => {
                head(reader, sheet, name, size(left, "element"))?;
                inside(sheet, |sheet| {
                    elements(reader, sheet, left, |reader, sheet, number| {
                        self.value(reader, sheet, &format!("element {number}"), depth + 1)
                    })
                })
            }
            CborItem::Map(_) => self.map(reader, sheet, name, depth),
            CborItem::Pieces(is_text) => pieces(reader, sheet, name, is_text),
            CborItem::Break => Err(CborError { offset: before.offset(), fault: CborErrorKind::Break }),
            leaf => head(reader, sheet, name, said(leaf)),
        }
    }

    /// Writes the next value, which is a map.
    ///
    /// # Errors
    /// It is not a map, or those of [`CborStyle::value`].
    pub fn map(self, reader: &mut Reader<'_>, sheet: &mut Sheet, name: &str, depth: usize) -> Result<(), CborError> {
        let before = *reader;
        let mut next = before;
        let CborItem::Map(left) = next.item()? else {
            return Err(CborError { offset: before.offset(), fault: CborErrorKind::Expected("a map") });
        };
        head(reader, sheet, name, size(left, "pair"))?;
        self.pairs(reader, sheet, left, depth)
    }

    /// Writes the pairs of a map whose head has been written.
    ///
    /// # Errors
    /// Those of [`CborStyle::value`].
    pub fn pairs(
        self,
        reader: &mut Reader<'_>,
        sheet: &mut Sheet,
        left: Option<u64>,
        depth: usize,
    ) -> Result<(), CborError> {
        inside(sheet, |sheet| {
            elements(reader, sheet, left, |reader, sheet, _| {
                self.value(reader, sheet, "key", depth + 1)?;
                self.value(reader, sheet, "value", depth + 1)
            })
        })
    }
}

/// Writes the elements of a container: this many, or up to a break, which is written too.
///
/// # Errors
/// Those of `write`, or the bytes end inside the container.
pub fn elements<'a>(
    reader: &mut Reader<'a>,
    sheet: &mut Sheet,
    left: Option<u64>,
    mut write: impl FnMut(&mut Reader<'a>, &mut Sheet, u64) -> Result<(), CborError>,
) -> Result<(), CborError> {
    let mut number = 0;
    while left.is_none_or(|left| number < left) {
        if left.is_none() && reader.rest().first() == Some(&BREAK) {
            return head(reader, sheet, "end", "");
        }
        write(reader, sheet, number)?;
        number += 1;
    }
    Ok(())
}

/// An item without its content.
pub fn head(reader: &mut Reader<'_>, sheet: &mut Sheet, name: &str, words: impl Display) -> Result<(), CborError> {
    field(reader, sheet, name, |reader| reader.item().map(|_| words))
}

/// The number of elements of a container.
pub fn size(left: Option<u64>, one: &str) -> String {
    left.map_or_else(
        || format!("{}, up to a break", counted(2, one).trim_start_matches("2 ")),
        |left| counted(left, one),
    )
}

/// A tag, and the integer that stands for a text.
pub fn reference(reader: &mut Reader<'_>) -> Result<String, CborError> {
    reader.item()?;
    reader.integer_bits().map(|id| format!("string {id}"))
}

/// An item without content.
pub fn said(item: CborItem<'_>) -> String {
    match item {
        CborItem::Unsigned(number) => number.to_string(),
        CborItem::Negative(number) => (-1 - i128::from(number)).to_string(),
        CborItem::Text(text) => value::text(text),
        CborItem::Bytes(bytes) => format!("{}: {}", counted(bytes.len() as u64, "byte"), hex(bytes)),
        CborItem::Bool(truth) => truth.to_string(),
        CborItem::Null => "null".to_owned(),
        CborItem::Undefined => "undefined".to_owned(),
        CborItem::Simple(number) => format!("simple value {number}"),
        CborItem::Float(number) => number.to_string(),
        CborItem::Tag(tag) => format!("tag {tag}"),
        CborItem::Array(left) => size(left, "element"),
        CborItem::Map(left) => size(left, "pair"),
        CborItem::Pieces(_) => "in pieces".to_owned(),
        CborItem::Break => "a break".to_owned(),
    }
}

const BREAK: u8 = 0xFF;

fn pieces(reader: &mut Reader<'_>, sheet: &mut Sheet, name: &str, is_text: bool) -> Result<(), CborError> {
    head(reader, sheet, name, if is_text { "a text in pieces" } else { "bytes in pieces" })?;
    inside(sheet, |sheet| {
        elements(reader, sheet, None, |reader, sheet, number| {
            field(reader, sheet, &format!("piece {number}"), |reader| {
                let offset = reader.offset();
                match (reader.item()?, is_text) {
                    (piece @ CborItem::Text(_), true) | (piece @ CborItem::Bytes(_), false) => Ok(said(piece)),
                    _ => Err(CborError { offset, fault: CborErrorKind::Expected("a piece of the string") }),
                }
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(bytes: &[u8]) -> (Vec<String>, Option<String>) {
        let mut sheet = Sheet::new(0, []);
        let mut reader = Reader::new(bytes);
        let fault = CborStyle { reference: Some(6), most_depth: 3 }.value(&mut reader, &mut sheet, "it", 0).err();
        assert_eq!(sheet.offset(), reader.offset() as u64);
        let rows = sheet.take();
        let rows = rows.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        (rows, fault.map(|fault| fault.to_string()))
    }

    #[test]
    fn items_have_rows_and_containers_hold_theirs() {
        let (shown, fault) = rows(b"\x83\x01\xa1\xc6\x05\x61x\x7f\x61a\xff");
        assert_eq!(fault, None);
        assert_eq!(
            shown,
            [
                "00000000 83 it: 3 elements",
                "00000001 01 element 0: 1",
                "00000002 a1 element 1: 1 pair",
                "00000003 c6 05 key: string 5",
                "00000005 61 78 value: \"x\"",
                "00000007 7f element 2: a text in pieces",
                "00000008 61 61 piece 0: \"a\"",
                "0000000a ff end",
            ]
        );
        for (bytes, words) in [
            (&b"\x38\xff"[..], "-256"),
            (b"\x3b\xff\xff\xff\xff\xff\xff\xff\xff", "-18446744073709551616"),
            (b"\x42\x01\xfe", "2 bytes: 01fe"),
            (b"\xf4", "false"),
            (b"\xf6", "null"),
            (b"\xf0", "simple value 16"),
            (b"\xfb\x3f\xf8\0\0\0\0\0\0", "1.5"),
            (b"\x9f\xff", "elements, up to a break"),
        ] {
            assert!(rows(bytes).0[0].ends_with(&format!(" it: {words}")), "{words}");
        }
    }

    #[test]
    fn rows_end_in_front_of_what_cannot_be_named() {
        let (shown, fault) = rows(b"\x82\x01\x81\x81\x81\x01");
        assert_eq!(
            shown,
            [
                "00000000 82 it: 2 elements",
                "00000001 01 element 0: 1",
                "00000002 81 element 1: 1 element",
                "00000003 81 element 0: 1 element"
            ]
        );
        assert_eq!(fault.unwrap(), "at 4: more than 3 containers and tags in one another");
        let (shown, fault) = rows(b"\xa1\x01");
        assert_eq!((shown.len(), fault.unwrap()), (2, "at 2: the bytes end inside an item".to_owned()));
        assert_eq!(rows(b"\xff").1.unwrap(), "at 0: a break where none can be");
        assert_eq!(rows(b"\x9f\x01").1.unwrap(), "at 2: the bytes end inside an item");
    }
}
