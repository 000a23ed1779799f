//! Annotates the fields of one message in their order.

use std::fmt::Display;

use super::Sheet;

/// Annotates the fields of a message that may be incomplete: the first incomplete field is written without its value, and no
/// field after it.
#[derive(Debug)]
pub struct FieldAnnotator<'a, 's> {
    rest: &'a [u8],
    sheet: &'s mut Sheet,
}

impl<'a, 's> FieldAnnotator<'a, 's> {
    /// The fields of `message`, starting at its first byte.
    pub fn new(message: &'a [u8], sheet: &'s mut Sheet) -> Self {
        FieldAnnotator { rest: message, sheet }
    }

    /// Writes the next `length` bytes as the field `name`; `value` describes them. `None`: they are incomplete.
    pub fn bytes<V: Display>(
        &mut self,
        length: usize,
        name: &str,
        value: impl FnOnce(&'a [u8]) -> V,
    ) -> Option<&'a [u8]> {
        match self.rest.split_at_checked(length) {
            Some((bytes, rest)) => {
                self.rest = rest;
                self.sheet.field(bytes, name, value(bytes));
                Some(bytes)
            }
            None => {
                let (had, rest) = (self.rest.len(), std::mem::take(&mut self.rest));
                self.sheet.field(rest, name, format_args!("incomplete, {had} of {length} bytes"));
                None
            }
        }
    }

    /// Writes the next `N` bytes as the field `name`.
    pub fn array<const N: usize, V: Display>(
        &mut self,
        name: &str,
        value: impl FnOnce([u8; N]) -> V,
    ) -> Option<[u8; N]> {
        let array = |bytes: &[u8]| bytes.first_chunk().copied().unwrap_or([0; N]);
        self.bytes(N, name, |bytes| value(array(bytes))).map(array)
    }

    /// An unsigned byte.
    pub fn u8<V: Display>(&mut self, name: &str, value: impl FnOnce(u8) -> V) -> Option<u8> {
        self.array(name, |[byte]| value(byte)).map(|[byte]| byte)
    }

    /// A big-endian `u16`.
    pub fn u16<V: Display>(&mut self, name: &str, value: impl FnOnce(u16) -> V) -> Option<u16> {
        self.array(name, |bytes| value(u16::from_be_bytes(bytes))).map(u16::from_be_bytes)
    }

    /// A big-endian `u32`.
    pub fn u32<V: Display>(&mut self, name: &str, value: impl FnOnce(u32) -> V) -> Option<u32> {
        self.array(name, |bytes| value(u32::from_be_bytes(bytes))).map(u32::from_be_bytes)
    }

    /// A big-endian `u64`.
    pub fn u64<V: Display>(&mut self, name: &str, value: impl FnOnce(u64) -> V) -> Option<u64> {
        self.array(name, |bytes| value(u64::from_be_bytes(bytes))).map(u64::from_be_bytes)
    }

    /// The bytes that are not annotated yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_field_is_the_last_one() {
        let mut sheet = Sheet::new(0, []);
        let mut fields = FieldAnnotator::new(&[1, 2, 3, 4], &mut sheet);
        assert_eq!(fields.u16("two", |number| number), Some(0x0102));
        assert_eq!(fields.u32("four", |number| number), None);
        assert_eq!(fields.u8("never", |number| number), None);
        let text = sheet.take();
        let shown: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(shown, ["00000000 01 02 two: 258", "00000002 03 04 four: incomplete, 2 of 4 bytes"]);
    }
}
