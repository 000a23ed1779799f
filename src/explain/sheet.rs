//! The sheet: rows of offset, bytes, field and value.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::mem::{replace, take};

use tributary_codec::terminal;

/// Bytes in one row.
pub(super) const ROW_BYTES: usize = 16;
/// The most rows of one field; of a longer field the first rows are shown, and the number of bytes that follow.
const FIELD_ROWS: usize = 4;
/// The most bytes of one field that are shown.
pub(super) const SHOWN_BYTES: usize = ROW_BYTES * FIELD_ROWS;
/// Indentation of the name of a nested field, in spaces.
const INDENT: usize = 2;
/// The prefix of the lines of [`Sheet::inner`], once per level.
const BAR: &str = "| ";

/// A fault: the text of the `loss` of a decoder, and its offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecoderError {
    /// Offset of the first byte of the fault.
    pub offset: u64,
    /// Reason, bytes lost and detail.
    pub text: String,
}

/// Annotated bytes, in their order. All calls append: the sheet counts the offset.
///
/// ```text
/// 00000000  dd 00 00 00 00 01                                magic
/// 00000006  00 00 00 00 00 00 04 00                          string_cache_size: 1024
/// ```
///
/// Control characters of peers are escaped.
#[derive(Debug, Default)]
pub struct Sheet {
    text: String,
    offset: u64,
    depth: usize,
    /// Nesting level of [`Sheet::inner`].
    level: usize,
    faults: VecDeque<DecoderError>,
    /// Bytes of the last field that are not shown and not counted in a line yet.
    hidden_bytes: u64,
    hides_secrets: bool,
}

impl Sheet {
    /// A sheet whose first byte has this offset, with the faults to show, in the order of their offsets.
    pub fn new(offset: u64, faults: impl IntoIterator<Item = DecoderError>) -> Self {
        Sheet { offset, faults: faults.into_iter().collect(), ..Sheet::default() }
    }

    /// The same, but [`Sheet::secret`] does not show the bytes either.
    #[must_use]
    pub fn without_secrets(self) -> Self {
        Sheet { hides_secrets: true, ..self }
    }

    /// Offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns what has been written since the last call.
    pub fn take(&mut self) -> String {
        self.settle();
        take(&mut self.text)
    }

    /// The same, without the end of a field that [`Sheet::more`] may continue.
    pub fn take_settled(&mut self) -> String {
        take(&mut self.text)
    }

    /// Writes a line without bytes: the title of what follows.
    pub fn title(&mut self, title: impl fmt::Display) {
        self.settle();
        self.margin();
        let pad = 10 + self.depth * INDENT;
        let _ = writeln!(self.text, "{:pad$}{}", "", terminal::shown(&title.to_string()));
    }

    /// Writes the bytes of one field, and their meaning. `value` may be empty.
    pub fn field(&mut self, bytes: &[u8], name: &str, value: impl fmt::Display) {
        self.rows(bytes, false, name, &value.to_string());
    }

    /// Writes bytes that cannot be annotated, and why.
    pub fn raw(&mut self, bytes: &[u8], why: &str) {
        self.field(bytes, "?", why);
    }

    /// Writes a field that contains a secret: `value` must not contain it. The bytes are shown unless
    /// [`Sheet::without_secrets`] was called.
    pub fn secret(&mut self, bytes: &[u8], name: &str, value: impl fmt::Display) {
        self.rows(bytes, self.hides_secrets, name, &value.to_string());
    }

    /// Adds bytes to the last field: only their number is shown.
    pub fn more(&mut self, bytes: &[u8]) {
        self.hidden_bytes += bytes.len() as u64;
        self.offset += bytes.len() as u64;
    }

    /// Indents what `write` writes below the previous line.
    pub fn nested<T>(&mut self, write: impl FnOnce(&mut Sheet) -> T) -> T {
        self.depth += 1;
        let result = write(self);
        self.depth -= 1;
        result
    }

    /// Writes bytes that were decoded from the previous bytes (inflated, decoded from base64, …). They have their own
    /// offsets, from 0, and these faults. Each of their lines begins with a bar.
    pub fn inner(&mut self, faults: impl IntoIterator<Item = DecoderError>, write: impl FnOnce(&mut Sheet)) {
        self.settle();
        let outer = replace(&mut self.offset, 0);
        let outer_faults = replace(&mut self.faults, faults.into_iter().collect());
        let depth = replace(&mut self.depth, 0);
        self.level += 1;
        write(self);
        self.end();
        self.level -= 1;
        (self.offset, self.faults, self.depth) = (outer, outer_faults, depth);
    }

    /// Sets the offset of the next byte: the bytes before it were shown unchanged in [`Sheet::inner`].
    pub fn skip_to(&mut self, offset: u64) {
        self.settle();
        self.offset = offset;
        self.show_faults(offset);
    }

    /// Ends the sheet: writes the faults that have no byte.
    pub fn end(&mut self) {
        self.settle();
        self.show_faults(u64::MAX);
    }

    /// Writes a fault at the current position.
    pub fn fault(&mut self, fault: &DecoderError) {
        self.settle();
        self.margin();
        let _ = writeln!(self.text, "{:08x}  !! {}", fault.offset, terminal::shown(&fault.text));
    }

    fn rows(&mut self, bytes: &[u8], is_hidden: bool, name: &str, value: &str) {
        self.settle();
        let colon = if value.is_empty() { "" } else { ": " };
        let shown = bytes.len().min(SHOWN_BYTES);
        for (row, piece) in bytes[..shown].chunks(ROW_BYTES).enumerate() {
            self.margin();
            let _ = write!(self.text, "{:08x}  ", self.offset + (row * ROW_BYTES) as u64);
            for byte in piece {
                let _ = if is_hidden { self.text.write_str("** ") } else { write!(self.text, "{byte:02x} ") };
            }
            if row == 0 {
                let pad = (ROW_BYTES - piece.len()) * 3 + 1 + self.depth * INDENT;
                let _ = write!(self.text, "{:pad$}{}{colon}{}", "", terminal::shown(name), terminal::shown(value));
            }
            self.text.truncate(self.text.trim_end_matches(' ').len());
            self.text.push('\n');
        }
        self.offset += bytes.len() as u64;
        self.hidden_bytes = (bytes.len() - shown) as u64;
        if self.hidden_bytes == 0 {
            self.show_faults(self.offset);
        }
    }

    /// Ends the last field.
    fn settle(&mut self) {
        let hidden_bytes = take(&mut self.hidden_bytes);
        if hidden_bytes > 0 {
            self.margin();
            let _ = writeln!(self.text, "{:10}… {hidden_bytes} bytes more", "");
            self.show_faults(self.offset);
        }
    }

    fn margin(&mut self) {
        (0..self.level).for_each(|_| self.text.push_str(BAR));
    }

    fn show_faults(&mut self, until: u64) {
        while self.faults.front().is_some_and(|fault| fault.offset < until) {
            if let Some(fault) = self.faults.pop_front() {
                self.fault(&fault);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_each_other_and_faults_follow_their_bytes() {
        let mut sheet = Sheet::new(0, [DecoderError { offset: 7, text: "malformed: seven".to_owned() }]);
        sheet.title("process");
        sheet.nested(|sheet| {
            sheet.field(&[0xdd, 0, 0, 0, 0, 1], "magic", "");
            sheet.field(&[0, 0, 0, 0, 0, 0, 4, 0], "size", 1024);
        });
        sheet.field(&[7; 70], "text", "lo\u{1b}ng");
        let row = "07 ".repeat(16);
        let row = row.trim_end();
        let expected = format!(
            "          process
00000000  dd 00 00 00 00 01                                  magic
00000006  00 00 00 00 00 00 04 00                            size: 1024
00000007  !! malformed: seven
0000000e  {row}  text: lo\\u{{1b}}ng
0000001e  {row}
0000002e  {row}
0000003e  {row}
          … 6 bytes more
"
        );
        assert_eq!(sheet.take(), expected);
        assert_eq!(sheet.offset(), 84);
    }

    #[test]
    fn inner_bytes_have_offsets_and_faults_of_their_own() {
        let fault = |offset: u64, text: &str| DecoderError { offset, text: text.to_owned() };
        let mut sheet = Sheet::new(0x100, [fault(0x105, "outer")]);
        sheet.field(b"zzzz", "compressed", "");
        sheet.inner([fault(1, "inner"), fault(9, "late")], |sheet| sheet.field(b"ab", "text", ""));
        sheet.field(b"zz", "rest", "");
        let shown: Vec<_> =
            sheet.take().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "00000100 7a 7a 7a 7a compressed",
            "| 00000000 61 62 text",
            "| 00000001 !! inner",
            "| 00000009 !! late",
            "00000104 7a 7a rest",
            "00000105 !! outer",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_number_of_further_bytes_is_shown_once_and_before_their_faults() {
        let mut sheet = Sheet::new(0, [DecoderError { offset: 70, text: "seventy".to_owned() }]);
        sheet.field(&[1; 64], "text", "");
        assert_eq!(sheet.take_settled().lines().count(), 4);
        sheet.more(&[1; 5]);
        sheet.more(&[1; 5]);
        assert_eq!(sheet.take_settled(), "");
        sheet.field(b"z", "next", "");
        let shown = sheet.take();
        let lines: Vec<_> = shown.lines().map(str::trim).collect();
        assert_eq!(lines[0], "… 10 bytes more");
        assert!(lines[1] == "00000046  !! seventy" && lines[2].starts_with("0000004a  7a"), "{shown}");
    }

    #[test]
    fn secrets_are_shown_as_bytes_or_not_at_all() {
        let shown = |mut sheet: Sheet| {
            sheet.secret(b"key", "header", "hidden");
            sheet.take().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(Sheet::new(0, [])), "00000000 6b 65 79 header: hidden");
        assert_eq!(shown(Sheet::new(0, []).without_secrets()), "00000000 ** ** ** header: hidden");
    }

    #[test]
    fn control_characters_are_escaped() {
        let hostile = "a\u{1b}[2J\u{202e}b\u{9b}\n";
        let mut sheet = Sheet::new(0, [DecoderError { offset: 0, text: hostile.to_owned() }]);
        sheet.title(hostile);
        sheet.field(b"x", hostile, hostile);
        let shown = sheet.take();
        assert_eq!(shown.lines().count(), 3, "{shown:?}");
        assert!(shown.chars().all(|c| c == '\n' || (' '..='~').contains(&c)), "{shown:?}");
        assert_eq!(shown.matches("a\\u{1b}[2J\\u{202e}b\\u{9b}\\n").count(), 4);
    }
}
