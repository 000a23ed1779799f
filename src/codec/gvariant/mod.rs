//! GVariant, read strictly and borrowed: a value that is not in normal form is an error, never a default value.
//!
//! A value is bytes and a type that is known in advance. [`Tuple`] and [`Elements`] read the framing of containers whose
//! type the caller knows; [`visit()`] reads a value by its type string. Bounds are checked before descending, so the children
//! of a container are disjoint and each byte is read at most once per level. Nothing is allocated from declared lengths or
//! counts.
//!
//! The rules are those of section 2.2 of the protocol notes. The format is little-endian here.

pub mod types;
mod visit;

pub use types::MAX_NESTING;
pub use visit::{Container, MAX_DEPTH, Scratch, Skip, Visitor, unwrap_variant, visit, visit_type};

use super::reader::{DecodeError, DecodeErrorKind};

/// Bytes of a value, and their offset in the whole.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Slice<'a> {
    /// The whole, at offset 0.
    pub fn new(bytes: &'a [u8]) -> Self {
        Slice { bytes, offset: 0 }
    }

    /// A part of the whole that begins at `offset` there.
    pub fn at(bytes: &'a [u8], offset: usize) -> Self {
        Slice { bytes, offset }
    }

    /// The bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Offset of the first byte in the whole.
    pub fn offset(self) -> usize {
        self.offset
    }

    /// Number of bytes.
    pub fn len(self) -> usize {
        self.bytes.len()
    }

    /// Whether it is empty.
    pub fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes from `start` to `end`, whose bounds the caller has checked; clamped otherwise.
    fn part(self, start: usize, end: usize) -> Slice<'a> {
        let bytes = self.bytes.get(start..end).unwrap_or_default();
        Slice { bytes, offset: self.offset + start }
    }

    fn fault(self, field: &'static str, at: usize, found: u64, expected: &'static str) -> DecodeError {
        DecodeError { field, offset: self.offset + at, kind: DecodeErrorKind::Invalid { found, expected } }
    }

    /// The offset stored at `at` in `width` bytes; 0 past the end, which no caller requests.
    fn stored(self, at: usize, width: usize) -> usize {
        let bytes = self.bytes.get(at..).unwrap_or_default();
        let number = match width {
            1 => bytes.first().map(|byte| u64::from(*byte)),
            2 => bytes.first_chunk().map(|bytes| u64::from(u16::from_le_bytes(*bytes))),
            4 => bytes.first_chunk().map(|bytes| u64::from(u32::from_le_bytes(*bytes))),
            _ => bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)),
        };
        number.map_or(0, |number| usize::try_from(number).unwrap_or(usize::MAX))
    }

    /// The start of the next value with this alignment. Checks that the padding before it is zero.
    fn align(self, at: usize, alignment: usize, end: usize, field: &'static str) -> Result<usize, DecodeError> {
        let start = (at + alignment - 1) & !(alignment - 1);
        if start > end {
            return Err(self.fault(field, at, end as u64, "a value within its container"));
        }
        // Most values have no padding before them. The largest alignment is 8.
        if start == at || start >= 8 && is_zero_from(at, start, self.bytes) {
            return Ok(start);
        }
        match self.bytes[at..start].iter().position(|byte| *byte != 0) {
            None => Ok(start),
            Some(index) => Err(self.fault(field, at + index, u64::from(self.bytes[at + index]), "zero padding")),
        }
    }

    /// The string in these bytes.
    ///
    /// # Errors
    /// No NUL at the end, one before it, or not UTF-8.
    pub fn string(self, field: &'static str) -> Result<&'a str, DecodeError> {
        let Some((0, text)) = self.bytes.split_last() else {
            let found = self.bytes.last().map_or(0, |byte| u64::from(*byte));
            return Err(self.fault(field, self.len().saturating_sub(1), found, "a string that ends with a zero byte"));
        };
        if has_zero(text) {
            return Err(self.fault(field, 0, 0, "a string without zero bytes inside"));
        }
        str::from_utf8(text).map_err(|error| {
            let at = error.valid_up_to();
            self.fault(field, at, u64::from(text[at]), "UTF-8")
        })
    }

    /// The content of a maybe of a variable-size type: the bytes of the value, or `None` for nothing.
    ///
    /// # Errors
    /// The last byte is not zero.
    pub fn maybe(self, field: &'static str) -> Result<Option<Slice<'a>>, DecodeError> {
        match self.bytes.split_last() {
            None => Ok(None),
            Some((0, _)) => Ok(Some(self.part(0, self.len() - 1))),
            Some((last, _)) => {
                Err(self.fault(field, self.len() - 1, u64::from(*last), "a zero byte after a variable-size value"))
            }
        }
    }
}

/// Whether the bytes from `at` to `start`, fewer than 8, are zero. Reads them as one number with the bytes before them.
fn is_zero_from(at: usize, start: usize, bytes: &[u8]) -> bool {
    let last = bytes.get(start - 8..start).and_then(|bytes| bytes.first_chunk());
    last.is_some_and(|last| u64::from_le_bytes(*last) >> (64 - 8 * (start - at)) == 0)
}

/// Whether one of the bytes is zero. Optimized for short texts: reads eight bytes at a time.
fn has_zero(text: &[u8]) -> bool {
    const ONES: u64 = u64::MAX / 0xFF;
    let (eights, rest) = text.as_chunks::<8>();
    let zeros = eights.iter().fold(0, |zeros, eight| {
        let eight = u64::from_le_bytes(*eight);
        zeros | eight.wrapping_sub(ONES) & !eight & (ONES << 7)
    });
    zeros != 0 || rest.contains(&0)
}

/// Bytes of one framing offset in a container of this many bytes in all.
fn offset_width(len: usize) -> usize {
    match len as u64 {
        0..=0xFF => 1,
        0x100..=0xFFFF => 2,
        0x1_0000..=0xFFFF_FFFF => 4,
        _ => 8,
    }
}

/// Whether a table of `count` offsets after `body` bytes takes the narrowest width that works.
fn is_narrowest(body: usize, count: usize, width: usize) -> bool {
    // One width less: if the whole fits into its range, that is the width to use.
    width == 1 || count == 0 || offset_width(body.saturating_add(count.saturating_mul(width / 2))) == width
}

/// Reads the members of one tuple or dict entry in their order.
#[derive(Clone, Copy, Debug)]
pub struct Tuple<'a> {
    slice: Slice<'a>,
    /// End of the previous member.
    at: usize,
    /// Start of the table of offsets.
    body: usize,
    /// Offsets before this are not read yet. The offset of the first member is the last in the table.
    table: usize,
    width: usize,
}

impl<'a> Tuple<'a> {
    /// A tuple with a variable-size member, in these bytes. `offsets`: the number of members with a stored end, which are
    /// the variable-size members except the last member of the tuple.
    ///
    /// # Errors
    /// The bytes are too short for that many offsets, or the offsets could be narrower.
    pub fn new(slice: Slice<'a>, offsets: usize, field: &'static str) -> Result<Self, DecodeError> {
        let len = slice.len();
        let width = offset_width(len);
        let Some(body) = offsets.checked_mul(width).and_then(|table| len.checked_sub(table)) else {
            return Err(slice.fault(field, 0, len as u64, "space for the offsets of its members"));
        };
        if !is_narrowest(body, offsets, width) {
            return Err(slice.fault(field, body, width as u64, "offsets of the narrowest width"));
        }
        Ok(Tuple { slice, at: 0, body, table: len, width })
    }

    /// The next member, which has a fixed size.
    ///
    /// # Errors
    /// Padding that is not zero, or too few bytes.
    pub fn fixed(&mut self, size: usize, alignment: usize, field: &'static str) -> Result<Slice<'a>, DecodeError> {
        let start = self.slice.align(self.at, alignment, self.body, field)?;
        let end = start.saturating_add(size);
        if end > self.body {
            return Err(self.slice.fault(field, start, self.body as u64, "a member within its container"));
        }
        self.at = end;
        Ok(self.slice.part(start, end))
    }

    /// The next member as `N` bytes, aligned to `N`.
    ///
    /// # Errors
    /// As [`Tuple::fixed`].
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let slice = self.fixed(N, N, field)?;
        Ok(slice.bytes.first_chunk().copied().unwrap_or([0; N]))
    }

    /// The next member, which has a stored end.
    ///
    /// # Errors
    /// Padding that is not zero, or an end before its start or in the table.
    pub fn variable(&mut self, alignment: usize, field: &'static str) -> Result<Slice<'a>, DecodeError> {
        let start = self.slice.align(self.at, alignment, self.body, field)?;
        self.table = self.table.saturating_sub(self.width);
        let end = self.slice.stored(self.table, self.width);
        if end < start || end > self.body {
            return Err(self.slice.fault(field, self.table, end as u64, "an end within the container"));
        }
        self.at = end;
        Ok(self.slice.part(start, end))
    }

    /// The last member, if it has variable size: it ends at the table.
    ///
    /// # Errors
    /// Padding that is not zero, or too few bytes.
    pub fn last(self, alignment: usize, field: &'static str) -> Result<Slice<'a>, DecodeError> {
        let start = self.slice.align(self.at, alignment, self.body, field)?;
        Ok(self.slice.part(start, self.body))
    }

    /// Checks that there is no further member: the last one, of fixed size, must end at the table.
    ///
    /// # Errors
    /// It does not.
    pub fn end(self, field: &'static str) -> Result<(), DecodeError> {
        if self.at == self.body {
            return Ok(());
        }
        Err(self.slice.fault(field, self.at, self.body as u64, "an end right after the last member"))
    }

    /// Checks that there is no further member of this tuple of fixed size: the rest is padding.
    ///
    /// # Errors
    /// Padding that is not zero.
    fn tail(self, field: &'static str) -> Result<(), DecodeError> {
        match self.slice.bytes[self.at..].iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(index) => {
                let at = self.at + index;
                Err(self.slice.fault(field, at, u64::from(self.slice.bytes[at]), "zero padding"))
            }
        }
    }
}

/// The position in an array.
#[derive(Clone, Copy, Debug)]
pub struct ArrayPosition {
    at: usize,
    table: usize,
}

/// Reads the elements of one array of variable-size elements in their order.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    slice: Slice<'a>,
    alignment: usize,
    width: usize,
    /// End of the previous element.
    at: usize,
    /// Start of the table of offsets.
    body: usize,
    /// The next offset to read.
    table: usize,
    field: &'static str,
}

impl<'a> Elements<'a> {
    /// The array in these bytes. Checks only the position of the table; each element is checked when it is read.
    ///
    /// # Errors
    /// No table at the position that the last offset names, or offsets that could be narrower.
    pub fn new(slice: Slice<'a>, alignment: usize, field: &'static str) -> Result<Self, DecodeError> {
        let len = slice.len();
        let width = offset_width(len);
        let elements = |body| Elements { slice, alignment, width, at: 0, body, table: body, field };
        if len == 0 {
            return Ok(elements(0));
        }
        let last = len.saturating_sub(width);
        let body = slice.stored(last, width);
        if body >= len || !(len - body).is_multiple_of(width) {
            return Err(slice.fault(field, last, body as u64, "the place where the table of offsets begins"));
        }
        if !is_narrowest(body, (len - body) / width, width) {
            return Err(slice.fault(field, body, width as u64, "offsets of the narrowest width"));
        }
        Ok(elements(body))
    }

    /// The current position, for [`Elements::resume`].
    pub fn place(&self) -> ArrayPosition {
        ArrayPosition { at: self.at, table: self.table }
    }

    /// Continues at the position of another reader of the same array.
    pub fn resume(&mut self, place: ArrayPosition) {
        self.at = place.at.min(self.body);
        self.table = place.table.clamp(self.body, self.slice.len());
    }

    /// Number of elements left.
    pub fn len(&self) -> usize {
        (self.slice.len() - self.table) / self.width
    }

    /// Whether no element is left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next element.
    ///
    /// # Errors
    /// Padding that is not zero, or an end before its start or in the table.
    pub fn read(&mut self) -> Result<Option<Slice<'a>>, DecodeError> {
        if self.is_empty() {
            return Ok(None);
        }
        let start = self.slice.align(self.at, self.alignment, self.body, self.field)?;
        let end = self.slice.stored(self.table, self.width);
        if end < start || end > self.body {
            return Err(self.slice.fault(self.field, self.table, end as u64, "an end within the array"));
        }
        self.table += self.width;
        self.at = end;
        Ok(Some(self.slice.part(start, end)))
    }

    /// Checks the position of every element, without their content.
    ///
    /// # Errors
    /// As [`Elements::read`].
    pub fn check(mut self) -> Result<(), DecodeError> {
        while self.read()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests;
