//! Bytes that cannot be annotated.

use super::sheet::{ROW_BYTES, SHOWN_BYTES};
use super::{Explain, Sheet};

/// Shows the first bytes without annotation, and the number of bytes that follow.
#[derive(Debug)]
pub struct Raw {
    why: &'static str,
    shown: usize,
    is_secret: bool,
}

impl Raw {
    /// Bytes that are not annotated, and why.
    pub fn new(why: &'static str) -> Self {
        Raw { why, shown: 0, is_secret: false }
    }

    /// The same for bytes that may contain secrets.
    #[must_use]
    pub fn secret(self) -> Self {
        Raw { is_secret: true, ..self }
    }

    fn row(&mut self, row: &[u8], sheet: &mut Sheet) {
        let (name, value) = if self.shown == 0 { ("?", self.why) } else { ("", "") };
        if self.is_secret {
            sheet.secret(row, name, value);
        } else {
            sheet.field(row, name, value);
        }
        self.shown += row.len();
    }
}

impl Explain for Raw {
    fn explain(&mut self, input: &[u8], sheet: &mut Sheet) -> usize {
        let (rows, _) = input.as_chunks::<ROW_BYTES>();
        let missing = (SHOWN_BYTES - self.shown).div_ceil(ROW_BYTES);
        let rows = &rows[..rows.len().min(missing)];
        rows.iter().for_each(|row| self.row(row, sheet));
        if self.shown < SHOWN_BYTES {
            return rows.as_flattened().len();
        }
        sheet.more(&input[rows.as_flattened().len()..]);
        input.len()
    }

    fn finish(&mut self, rest: &[u8], sheet: &mut Sheet) {
        if !rest.is_empty() {
            self.row(rest, sheet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_do_not_depend_on_how_the_bytes_are_cut() {
        let bytes: Vec<u8> = (0..100).collect();
        for length in [0, 1, 16, 63, 64, 65, 100] {
            for cut in 0..=length {
                let mut sheet = Sheet::new(0, []);
                let mut raw = Raw::new("why");
                let mut from = 0;
                for end in [cut, length] {
                    from += raw.explain(&bytes[from..end], &mut sheet);
                }
                raw.finish(&bytes[from..length], &mut sheet);
                let text = sheet.take();
                assert_eq!(sheet.offset(), length as u64);
                assert_eq!(text.lines().count(), length.min(64).div_ceil(16) + usize::from(length > 64), "{text}");
                assert_eq!(text.contains("36 bytes more"), length == 100, "{text}");
            }
        }
    }
}
