//! Annotates GVariant values by their type: members, padding, framing offsets, types of variants.
//!
//! An invalid value is annotated as far as possible: an invalid member ends the annotation of its container, and nothing
//! else. Framing: section 2.2 of the endless field notes. Numbers are little-endian.

use std::fmt;

use tributary_codec::gvariant::types::{TypeNode, parse};
use tributary_codec::gvariant::{MAX_DEPTH, Slice};

use super::words::{counted, hex};
use super::{Sheet, value};

/// Variants with longer types are not annotated further; each byte of a type takes 16 bytes of memory.
const MOST_TYPE_BYTES: usize = 64 << 10;
/// Framing offsets that are shown as numbers.
const MOST_OFFSETS: usize = 8;

/// The name of a part of a value, and its own parts: the members of a tuple, or the one element of an array.
#[derive(Debug)]
pub struct FieldNames {
    /// Its name.
    pub name: &'static str,
    /// Its members, or the part of its elements.
    pub parts: &'static [FieldNames],
}

/// Describes the bytes of a named part, if they mean more than their type.
pub(crate) type Say<'a> = dyn FnMut(&'static str, &[u8]) -> Option<String> + 'a;

/// Writes the value of type `text` in `bytes`, every byte of it, under the name of `part`.
pub fn value(text: &str, bytes: &[u8], part: &'static FieldNames, say: &mut Say<'_>, sheet: &mut Sheet) {
    Walk { nodes: Vec::new(), say }.typed(text.as_bytes(), bytes, Label::of(part), 0, sheet);
}

/// The name of a field, with its number among fields of the same name.
#[derive(Clone, Copy)]
struct Label {
    name: &'static str,
    number: Option<usize>,
    parts: &'static [FieldNames],
    /// A description for its bytes.
    is_named: bool,
}

impl Label {
    fn of(part: &'static FieldNames) -> Self {
        Label { name: part.name, number: None, parts: part.parts, is_named: true }
    }

    /// The part at `index`, or else this name with a number.
    fn child(self, index: usize, otherwise: &'static str, number: Option<usize>) -> Label {
        match self.parts.get(index) {
            Some(part) => Label { number, ..Label::of(part) },
            None => Label { name: otherwise, number, parts: &[], is_named: false },
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        self.number.map_or(Ok(()), |number| write!(f, " {number}"))
    }
}

struct Walk<'s, 'c> {
    /// The types of the values that are open.
    nodes: Vec<TypeNode>,
    say: &'s mut Say<'c>,
}

impl Walk<'_, '_> {
    /// A value whose type is not parsed yet. Returns whether the type is valid.
    fn typed(&mut self, text: &[u8], bytes: &[u8], label: Label, depth: usize, sheet: &mut Sheet) -> bool {
        let mark = self.nodes.len();
        let is_type = text.len() <= MOST_TYPE_BYTES && parse(Slice::new(text), &mut self.nodes).is_ok();
        if !is_type {
            odd(bytes, format_args!("{label}: a value of no type that is known"), sheet);
        } else if depth + usize::from(self.nodes[mark].levels) > MAX_DEPTH {
            odd(bytes, format_args!("{label}: more than {MAX_DEPTH} levels of values in one another"), sheet);
        } else {
            self.value(mark, bytes, label, depth, sheet);
        }
        self.nodes.truncate(mark);
        is_type
    }

    fn value(&mut self, index: usize, bytes: &[u8], label: Label, depth: usize, sheet: &mut Sheet) {
        let node = self.nodes[index];
        if node.size != 0 && bytes.len() != node.size as usize {
            let had = counted(bytes.len() as u64, "byte");
            return odd(bytes, format_args!("{label}: {had}, where its type has {}", node.size), sheet);
        }
        if label.is_named
            && !bytes.is_empty()
            && let Some(words) = (self.say)(label.name, bytes)
        {
            return sheet.field(bytes, &label.to_string(), words);
        }
        match node.code {
            b's' | b'o' | b'g' => text(bytes, label, sheet),
            b'v' => self.variant(bytes, label, depth, sheet),
            b'm' => self.maybe(index, bytes, label, depth, sheet),
            b'a' => self.array(index, bytes, label, depth, sheet),
            b'(' | b'{' => self.tuple(index, bytes, label, depth, sheet),
            code => sheet.field(bytes, &label.to_string(), number(code, bytes)),
        }
    }

    fn variant(&mut self, bytes: &[u8], label: Label, depth: usize, sheet: &mut Sheet) {
        let Some(end) = bytes.iter().rposition(|byte| *byte == 0) else {
            return odd(bytes, format_args!("{label}: a variant without a zero byte before its type"), sheet);
        };
        let text = &bytes[end + 1..];
        let is_type = self.typed(text, &bytes[..end], label, depth + 1, sheet);
        let suffix = if is_type { "" } else { ", which is none" };
        sheet.field(&bytes[end..], "type", format_args!("{}{suffix}", value::text(text)));
    }

    fn maybe(&mut self, index: usize, bytes: &[u8], label: Label, depth: usize, sheet: &mut Sheet) {
        match (self.nodes[index + 1].size, bytes) {
            (_, []) => sheet.title(format_args!("{label}: nothing")),
            (0, [content @ .., 0]) => {
                self.value(index + 1, content, label, depth + 1, sheet);
                sheet.field(&[0], "just", "there is a value");
            }
            (0, _) => odd(bytes, format_args!("{label}: a maybe without a zero byte behind it"), sheet),
            _ => self.value(index + 1, bytes, label, depth + 1, sheet),
        }
    }

    fn array(&mut self, index: usize, bytes: &[u8], label: Label, depth: usize, sheet: &mut Sheet) {
        let child = self.nodes[index + 1];
        if bytes.is_empty() {
            return sheet.title(format_args!("{label}: empty"));
        }
        if child.code == b'y' {
            return sheet.field(bytes, &label.to_string(), hex(bytes));
        }
        let otherwise = if child.code == b'{' { "entry" } else { "element" };
        let element = |number| label.child(0, otherwise, Some(number));
        let one = element(0).name;
        if child.size != 0 {
            let size = child.size as usize;
            let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % size);
            sheet.title(format_args!("{label}: {}", counted((whole.len() / size) as u64, one)));
            sheet.nested(|sheet| {
                for (number, bytes) in whole.chunks_exact(size).enumerate() {
                    self.value(index + 1, bytes, element(number), depth + 1, sheet);
                }
                if !rest.is_empty() {
                    sheet.raw(rest, "no whole element");
                }
            });
            return;
        }
        let width = offset_width(bytes.len());
        let body = stored(bytes, bytes.len().saturating_sub(width), width);
        if body >= bytes.len() || !(bytes.len() - body).is_multiple_of(width) {
            return odd(bytes, format_args!("{label}: an array whose elements end at {body}"), sheet);
        }
        let (elements, table) = bytes.split_at(body);
        sheet.title(format_args!("{label}: {}", counted((table.len() / width) as u64, one)));
        sheet.nested(|sheet| {
            let mut at = 0;
            for (number, offset) in table.chunks_exact(width).enumerate() {
                let end = stored(offset, 0, width);
                let Some(start) = place(at, end, child.alignment, elements, element(number), sheet) else { return };
                self.value(index + 1, &elements[start..end], element(number), depth + 1, sheet);
                at = end;
            }
        });
        sheet.field(table, "framing offsets", Offsets { table, width });
    }

    fn tuple(&mut self, index: usize, bytes: &[u8], label: Label, depth: usize, sheet: &mut Sheet) {
        let node = self.nodes[index];
        let width = offset_width(bytes.len());
        let Some(body) = bytes.len().checked_sub(node.offsets as usize * width) else {
            return odd(bytes, format_args!("{label}: no room for its framing offsets"), sheet);
        };
        sheet.title(label);
        sheet.nested(|sheet| {
            self.members(index, bytes, body, width, label, depth, sheet);
            let table = &bytes[body..];
            if !table.is_empty() {
                let name = if node.offsets > 1 { "framing offsets, last member first" } else { "framing offset" };
                sheet.field(table, name, Offsets { table, width });
            }
        });
    }

    #[allow(clippy::too_many_arguments)]
    fn members(
        &mut self,
        index: usize,
        bytes: &[u8],
        body: usize,
        width: usize,
        label: Label,
        depth: usize,
        sheet: &mut Sheet,
    ) {
        let node = self.nodes[index];
        let (mut next, last) = (index + 1, node.next as usize);
        let (mut at, mut table, mut count) = (0usize, bytes.len(), 0);
        while next < last {
            let member = self.nodes[next];
            let name = match node.code {
                b'{' => label.child(count, if count == 0 { "key" } else { "value" }, None),
                _ if count < label.parts.len() => label.child(count, "", None),
                _ => label.child(count, "member", Some(count)),
            };
            let end = match member.size {
                0 if (member.next as usize) < last => {
                    table -= width;
                    stored(bytes, table, width)
                }
                0 => body,
                size => at.next_multiple_of(usize::from(member.alignment)).saturating_add(size as usize),
            };
            let Some(start) = place(at, end, member.alignment, &bytes[..body], name, sheet) else { return };
            self.value(next, &bytes[start..end], name, depth + 1, sheet);
            (at, next, count) = (end, member.next as usize, count + 1);
        }
        let rest = &bytes[at..body];
        match (rest.is_empty(), node.size) {
            (true, _) => {}
            (false, 0) => sheet.raw(rest, "behind the last member"),
            (false, _) => padding(rest, sheet),
        }
    }
}

/// Writes the padding before the part that ends at `end` and returns the start of the part. `None`: it cannot end there; the
/// rest of the container was written.
fn place(at: usize, end: usize, alignment: u8, body: &[u8], label: Label, sheet: &mut Sheet) -> Option<usize> {
    let start = at.next_multiple_of(usize::from(alignment));
    if start > end || end > body.len() {
        odd(&body[at..], format_args!("{label}: it cannot end at {end}"), sheet);
        return None;
    }
    if start > at {
        padding(&body[at..start], sheet);
    }
    Some(start)
}

fn padding(bytes: &[u8], sheet: &mut Sheet) {
    let is_zero = bytes.iter().all(|byte| *byte == 0);
    sheet.field(bytes, "padding", if is_zero { "" } else { "not zero" });
}

/// Writes bytes, maybe none, that are not valid.
fn odd(bytes: &[u8], why: fmt::Arguments<'_>, sheet: &mut Sheet) {
    if bytes.is_empty() {
        sheet.title(format_args!("?: {why}"));
    } else {
        sheet.raw(bytes, &why.to_string());
    }
}

fn text(bytes: &[u8], label: Label, sheet: &mut Sheet) {
    match bytes {
        [text @ .., 0] => sheet.field(bytes, &label.to_string(), value::text(text)),
        _ => odd(bytes, format_args!("{label}: a text without a zero byte at its end"), sheet),
    }
}

/// A number of a type of fixed size, whose length has been checked.
fn number(code: u8, bytes: &[u8]) -> String {
    let number = stored64(bytes);
    match code {
        b'b' if number > 1 => format!("{number}, neither false nor true"),
        b'b' => (number == 1).to_string(),
        b'n' => (number as i16).to_string(),
        b'i' | b'h' => (number as i32).to_string(),
        b'x' => (number as i64).to_string(),
        b'd' => f64::from_bits(number).to_string(),
        _ => number.to_string(),
    }
}

/// The first 8 bytes, or fewer, as a little-endian number.
pub fn stored64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The offset of `width` bytes at `at`.
fn stored(bytes: &[u8], at: usize, width: usize) -> usize {
    let offset = bytes.get(at..).unwrap_or_default();
    usize::try_from(stored64(&offset[..offset.len().min(width)])).unwrap_or(usize::MAX)
}

/// Size of one framing offset in a container of this many bytes.
fn offset_width(bytes: usize) -> usize {
    match bytes as u64 {
        0..=0xFF => 1,
        0x100..=0xFFFF => 2,
        0x1_0000..=0xFFFF_FFFF => 4,
        _ => 8,
    }
}

/// Writes a table of framing offsets; of a long one the first offsets.
struct Offsets<'a> {
    table: &'a [u8],
    width: usize,
}

impl fmt::Display for Offsets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, offset) in self.table.chunks(self.width).enumerate().take(MOST_OFFSETS) {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{}", stored64(offset))?;
        }
        if self.table.len() / self.width > MOST_OFFSETS { f.write_str(", …") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NAMED: FieldNames = FieldNames { name: "it", parts: &[] };

    /// The rows of a value, without the spaces between their columns.
    fn rows(text: &str, bytes: &[u8]) -> Vec<String> {
        let mut sheet = Sheet::new(0, []);
        value(text, bytes, &NAMED, &mut |_, _| None, &mut sheet);
        assert_eq!(sheet.offset(), bytes.len() as u64);
        sheet.take().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn members_padding_and_framing_offsets_are_named() {
        assert_eq!(
            rows("(yas)", b"\x07a\0bc\0\x02\x05"),
            [
                "it",
                "00000000 07 member 0: 7",
                "member 1: 2 elements",
                "00000001 61 00 element 0: \"a\"",
                "00000003 62 63 00 element 1: \"bc\"",
                "00000006 02 05 framing offsets: 2, 5",
            ]
        );
        assert_eq!(
            rows("(syq)", b"a\0\xff\0\x01\x02\x02"),
            [
                "it",
                "00000000 61 00 member 0: \"a\"",
                "00000002 ff member 1: 255",
                "00000003 00 padding",
                "00000004 01 02 member 2: 513",
                "00000006 02 framing offset: 2",
            ]
        );
        assert_eq!(
            rows("a{yn}", b"\x01\0\xff\xff\x02\0\x01"),
            [
                "it: 1 entry",
                "entry 0",
                "00000000 01 key: 1",
                "00000001 00 padding",
                "00000002 ff ff value: -1",
                "00000004 02 00 01 ?: no whole element",
            ]
        );
        assert_eq!(
            rows("(xy)", b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\x01"),
            [
                "it",
                "00000000 01 00 00 00 00 00 00 00 member 0: 1",
                "00000008 02 member 1: 2",
                "00000009 00 00 00 00 00 00 01 padding: not zero",
            ]
        );
    }

    #[test]
    fn types_of_variants_and_marks_of_maybes_follow_their_values() {
        assert_eq!(
            rows("mv", b"hi\0\0s\0"),
            ["00000000 68 69 00 it: \"hi\"", "00000003 00 73 type: \"s\"", "00000005 00 just: there is a value",]
        );
        assert_eq!(rows("mv", b""), ["it: nothing"]);
        assert_eq!(rows("ay", b""), ["it: empty"]);
        assert_eq!(rows("my", b"\x01"), ["00000000 01 it: 1"]);
        assert_eq!(
            rows("v", b"\x01\0d\x1b"),
            [
                "00000000 01 ?: it: a value of no type that is known",
                "00000001 00 64 1b type: \"d\\u{1b}\", which is none"
            ]
        );
    }

    #[test]
    fn an_invalid_member_ends_the_annotation_of_its_container() {
        assert_eq!(
            rows("(sys)", b"a\0\x01b\0\x09"),
            ["it", "00000000 61 00 01 62 00 ?: member 0: it cannot end at 9", "00000005 09 framing offset: 9"]
        );
        assert_eq!(rows("as", b"a\0\x07"), ["00000000 61 00 07 ?: it: an array whose elements end at 7"]);
        assert_eq!(
            rows("as", b"ab\x01\x02"),
            [
                "it: 2 elements",
                "00000000 61 ?: element 0: a text without a zero byte at its end",
                "00000001 62 ?: element 1: a text without a zero byte at its end",
                "00000002 01 02 framing offsets: 1, 2",
            ]
        );
        assert_eq!(
            rows("as", b"ab\x02\x01\x02"),
            [
                "it: 3 elements",
                "00000000 61 62 ?: element 0: a text without a zero byte at its end",
                "?: element 1: it cannot end at 1",
                "00000002 02 01 02 framing offsets: 2, 1, 2",
            ]
        );
        assert_eq!(rows("s", b"abc"), ["00000000 61 62 63 ?: it: a text without a zero byte at its end"]);
        assert_eq!(rows("x", b"abc"), ["00000000 61 62 63 ?: it: 3 bytes, where its type has 8"]);
    }
}
