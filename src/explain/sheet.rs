//! The sheet: rows of offset, bytes, field and value.

use std::collections::VecDeque;
use std::fmt::{self, Write};

/// Bytes in one row.
const ROW_BYTES: usize = 16;
/// Rows of one field; of a longer one the first are shown, and how many bytes follow.
const FIELD_ROWS: usize = 4;
/// Spaces by which a nested field's name is set in.
const INDENT: usize = 2;

/// Something that was given up: what a decoder's `loss` says, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Offset of the first byte that it is about.
    pub offset: u64,
    /// Reason, bytes lost and detail.
    pub text: String,
}

/// Annotated bytes, in their order. What is given to it must follow what was given before: it counts the offset.
///
/// ```text
/// 00000000  dd 00 00 00 00 01                                magic
/// 00000006  00 00 00 00 00 00 04 00                          string_cache_size: 1024
/// ```
#[derive(Debug, Default)]
pub struct Sheet {
    text: String,
    offset: u64,
    depth: usize,
    faults: VecDeque<Fault>,
}

impl Sheet {
    /// A sheet whose first byte has this offset, with the faults to be shown, in the order of their offsets.
    pub fn new(offset: u64, faults: impl IntoIterator<Item = Fault>) -> Self {
        Sheet { offset, faults: faults.into_iter().collect(), ..Sheet::default() }
    }

    /// Offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What has been written since this was last asked.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// A line without bytes: what comes next.
    pub fn title(&mut self, title: impl fmt::Display) {
        let _ = writeln!(self.text, "{:pad$}{title}", "", pad = 10 + self.depth * INDENT);
    }

    /// Bytes that are one field, and what they mean. `value` may be empty.
    pub fn field(&mut self, bytes: &[u8], name: &str, value: impl fmt::Display) {
        let value = value.to_string();
        let colon = if value.is_empty() { "" } else { ": " };
        let shown = bytes.len().min(ROW_BYTES * FIELD_ROWS);
        for (row, piece) in bytes[..shown].chunks(ROW_BYTES).enumerate() {
            let _ = write!(self.text, "{:08x}  ", self.offset + (row * ROW_BYTES) as u64);
            for byte in piece {
                let _ = write!(self.text, "{byte:02x} ");
            }
            if row == 0 {
                let pad = (ROW_BYTES - piece.len()) * 3 + 1 + self.depth * INDENT;
                let _ = write!(self.text, "{:pad$}{name}{colon}", "");
                // Nothing that a peer says reaches a terminal as a command.
                for char in value.chars() {
                    let _ = if char.is_control() {
                        write!(self.text, "{}", char.escape_default())
                    } else {
                        self.text.write_char(char)
                    };
                }
            }
            self.text.truncate(self.text.trim_end_matches(' ').len());
            self.text.push('\n');
        }
        if bytes.len() > shown {
            let _ = writeln!(self.text, "{:10}… {} bytes more", "", bytes.len() - shown);
        }
        self.offset += bytes.len() as u64;
        self.show_faults(self.offset);
    }

    /// Bytes that nobody can name, and why.
    pub fn raw(&mut self, bytes: &[u8], why: &str) {
        self.field(bytes, "?", why);
    }

    /// What `write` writes is set in, and belongs to the line before.
    pub fn nested(&mut self, write: impl FnOnce(&mut Sheet)) {
        self.depth += 1;
        write(self);
        self.depth -= 1;
    }

    /// What other bytes become that were just shown (inflated, decoded of base64, …): they have offsets of their own,
    /// from 0, and these faults.
    pub fn inner(&mut self, faults: impl IntoIterator<Item = Fault>, write: impl FnOnce(&mut Sheet)) {
        let outer = std::mem::replace(&mut self.offset, 0);
        let outer_faults = std::mem::replace(&mut self.faults, faults.into_iter().collect());
        self.nested(|sheet| {
            write(sheet);
            sheet.show_faults(u64::MAX);
        });
        (self.offset, self.faults) = (outer, outer_faults);
    }

    /// Everything has been written: the faults that no byte was shown for.
    pub fn end(&mut self) {
        self.show_faults(u64::MAX);
    }

    /// Something was given up, whatever has been written so far.
    pub fn fault(&mut self, fault: &Fault) {
        let _ = writeln!(self.text, "{:08x}  !! {}", fault.offset, fault.text);
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
    fn fields_follow_each_other_and_faults_stand_behind_their_bytes() {
        let mut sheet = Sheet::new(0, [Fault { offset: 7, text: "malformed: seven".to_owned() }]);
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
        let fault = |offset: u64, text: &str| Fault { offset, text: text.to_owned() };
        let mut sheet = Sheet::new(0x100, [fault(0x105, "outer")]);
        sheet.field(b"zzzz", "compressed", "");
        sheet.inner([fault(1, "inner"), fault(9, "late")], |sheet| sheet.field(b"ab", "text", ""));
        sheet.field(b"zz", "rest", "");
        let shown: Vec<_> =
            sheet.take().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "00000100 7a 7a 7a 7a compressed",
            "00000000 61 62 text",
            "00000001 !! inner",
            "00000009 !! late",
            "00000104 7a 7a rest",
            "00000105 !! outer",
        ];
        assert_eq!(shown, expected);
    }
}
