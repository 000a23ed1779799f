//! Writes the fields of a message to a sheet while its decoder reads them.

use tributary_codec::reader::Observer;

use super::Sheet;

/// Writes each field that a [`Reader`](tributary_codec::reader::Reader) reads to a sheet. Of a field that is incomplete it
/// writes the bytes without a value. Names of fields are written without what is before their dot.
#[derive(Debug)]
pub struct SheetObserver<'s, D> {
    sheet: &'s mut Sheet,
    describe: D,
}

impl<'s, D: FnMut(&'static str, &[u8]) -> String> SheetObserver<'s, D> {
    /// `describe` returns the value of a field by its name and bytes; it may be empty.
    pub fn new(sheet: &'s mut Sheet, describe: D) -> Self {
        SheetObserver { sheet, describe }
    }
}

impl<D: FnMut(&'static str, &[u8]) -> String> Observer for SheetObserver<'_, D> {
    fn field(&mut self, field: &'static str, bytes: &[u8]) {
        let name = name(field);
        let value = (self.describe)(name, bytes);
        self.sheet.field(bytes, name, value);
    }

    fn incomplete(&mut self, field: &'static str, bytes: &[u8], needed: usize) {
        self.sheet.field(bytes, name(field), format_args!("incomplete, {} of {needed} bytes", bytes.len()));
    }
}

/// The big-endian number in at most 8 bytes.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn name(field: &'static str) -> &'static str {
    field.split_once('.').map_or(field, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use tributary_codec::reader::Reader;

    use super::*;

    #[test]
    fn an_incomplete_field_is_the_last_one() {
        let mut sheet = Sheet::new(0, []);
        let observer = SheetObserver::new(&mut sheet, |_, bytes| number(bytes).to_string());
        let mut reader = Reader::observed(&[1, 2, 3, 4], observer);
        assert_eq!(reader.u16("message.two"), Ok(0x0102));
        assert!(reader.u32("message.four").is_err());
        let text = sheet.take();
        let shown: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(shown, ["00000000 01 02 two: 258", "00000002 03 04 four: incomplete, 2 of 4 bytes"]);
    }
}
