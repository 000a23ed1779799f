//! Texts of a batch, and how long they are in the output.

/// A text in the arena of a batch. Valid only with that batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Text {
    pub(super) start: u32,
    /// Length in the lower 30 bits; the top bits are its [`Escapes`].
    pub(super) len_and_escapes: u32,
}

/// How much longer a text becomes when it is escaped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Escapes {
    /// Not at all.
    None,
    /// At most twice as long.
    Few,
    /// At most six times as long.
    Many,
}

const PLAIN: u32 = 1 << 31;
const MANY: u32 = 1 << 30;

impl Text {
    pub(super) fn new(start: usize, len: usize, escapes: Escapes) -> Self {
        let flags = match escapes {
            Escapes::None => PLAIN,
            Escapes::Few => 0,
            Escapes::Many => MANY,
        };
        Text { start: index32(start), len_and_escapes: index32(len) & !(PLAIN | MANY) | flags }
    }

    pub(super) fn escapes(self) -> Escapes {
        match self.len_and_escapes & (PLAIN | MANY) {
            0 => Escapes::Few,
            MANY => Escapes::Many,
            _ => Escapes::None,
        }
    }

    /// The most bytes of it in the output, escaped.
    #[inline]
    pub fn output_len(self) -> usize {
        self.escapes().output_len(self.len())
    }

    #[inline]
    pub(super) fn range(self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + self.len()
    }

    /// Length in bytes.
    #[inline]
    pub fn len(self) -> usize {
        (self.len_and_escapes & !(PLAIN | MANY)) as usize
    }

    /// Whether it is the empty text.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether it can be written between quotes without escaping: see [`is_plain`].
    #[inline]
    pub(super) fn is_plain(self) -> bool {
        self.len_and_escapes & PLAIN != 0
    }
}

impl Escapes {
    /// Those of a text.
    #[inline]
    pub(super) fn of(text: &str) -> Escapes {
        if is_plain(text) { Escapes::None } else { Escapes::count(text) }
    }

    #[cold]
    fn count(text: &str) -> Escapes {
        let bytes = text.as_bytes();
        let more = |(at, byte): (usize, &u8)| match (byte, bytes.get(at + 1)) {
            // The short escapes have two bytes, the others six.
            (b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0C, _) => 1,
            (0..0x20 | 0x7F, _) => 5,
            (0xC2, Some(0x80..=0x9F)) | (0xD8, Some(0x9C)) => 4,
            // Some of these characters are escaped.
            (0xE2, Some(0x80 | 0x81)) => 3,
            _ => 0,
        };
        let more: usize = bytes.iter().enumerate().map(more).sum();
        if more <= text.len() { Escapes::Few } else { Escapes::Many }
    }

    fn output_len(self, len: usize) -> usize {
        match self {
            Escapes::None => len,
            Escapes::Few => 2 * len,
            Escapes::Many => 6 * len,
        }
    }
}

/// The most bytes of a text in the output, escaped.
#[inline]
pub fn output_len(text: &str) -> usize {
    Escapes::of(text).output_len(text.len())
}

/// Whether a text certainly has no character that our JSON encoder escapes: control characters, quotes, backslashes, U+007F
/// to U+009F, the line separators U+2028 and U+2029, and the controls of the bidirectional algorithm. Characters beyond
/// ASCII are recognized by their first byte (0xC2, 0xD8, 0xE2), so some texts that need no escape are not plain, and
/// the encoder checks them again.
#[inline]
pub fn is_plain(text: &str) -> bool {
    let bytes = text.as_bytes();
    // Most texts are short: they are read in words that overlap.
    let half = |at: usize| bytes[at..].first_chunk().map_or(0, |half| u64::from(u32::from_le_bytes(*half)));
    let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    match bytes.len() {
        0 => true,
        len @ 1..4 => is_plain_byte(bytes[0]) & is_plain_byte(bytes[len / 2]) & is_plain_byte(bytes[len - 1]),
        len @ 4..8 => are_plain([half(0) << 32 | half(len - 4)]),
        len @ 8..=16 => are_plain([word(0), word(len - 8)]),
        len @ 17..=32 => are_plain([word(0), word(8), word(len - 16), word(len - 8)]),
        _ => is_long_plain(bytes),
    }
}

/// The same of a text of at least 32 bytes.
fn is_long_plain(bytes: &[u8]) -> bool {
    let word = |piece: &[u8; 32], at: usize| piece[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let is_plain = |piece: &[u8; 32]| are_plain([word(piece, 0), word(piece, 8), word(piece, 16), word(piece, 24)]);
    bytes.as_chunks().0.iter().chain(bytes.last_chunk()).all(is_plain)
}

#[inline]
fn is_plain_byte(b: u8) -> bool {
    // 0xDF clears the bit in which 0xE2 differs from 0xC2.
    (b >= 0x20) & (b != b'"') & (b != b'\\') & (b != 0x7F) & (b & 0xDF != 0xC2) & (b != 0xD8)
}

/// The same of the bytes of these words.
#[inline]
fn are_plain<const N: usize>(words: [u64; N]) -> bool {
    const ONES: u64 = u64::MAX / 0xFF;
    const HIGH: u64 = ONES << 7;
    if words.iter().fold(0, |all, word| all | word) & HIGH != 0 {
        return words.iter().flat_map(|word| word.to_le_bytes()).all(is_plain_byte);
    }
    // The high bit of a sum or difference says how a byte of ASCII compares; no carry passes a byte.
    let is_plain_word = |word: u64| {
        let below_space = (word | HIGH) - ONES * 0x20;
        let is_not = |byte: u8| (word ^ (ONES * u64::from(byte))) + ONES * 0x7F;
        below_space & is_not(b'"') & is_not(b'\\') & is_not(0x7F)
    };
    words.into_iter().fold(HIGH, |plain, word| plain & is_plain_word(word)) == HIGH
}

/// Batches have far fewer than 4 Gi elements; beyond that, ranges would be empty rather than wrong.
#[inline]
pub(super) fn index32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_plain_if_each_of_its_bytes_is_wherever_it_stands() {
        let others = [
            "\u{0}", "\u{1f}", " ", "!", "\"", "#", "[", "\\", "]", "~", "\u{7f}", "\u{80}", "é", "ß", "آ", "€",
            "\u{2028}", "😀",
        ];
        for len in 0..40 {
            for (at, other) in (0..=len).flat_map(|at| others.map(|other| (at, other))) {
                let text = format!("{}{other}{}", "x".repeat(at), "x".repeat(len - at));
                let expected = text.bytes().all(is_plain_byte);
                assert_eq!(is_plain(&text), expected, "{text:?}");
            }
        }
    }
}
