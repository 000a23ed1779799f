//! Base64 (RFC 4648, section 4): padded; read with or without line breaks.

use std::fmt;

/// Why a text is not base64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Base64Error {
    /// Offset in the text, in bytes.
    pub offset: usize,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for Base64Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "base64, at {}: {}", self.offset, self.what)
    }
}

impl std::error::Error for Base64Error {}

/// Decodes a whole text. White space is skipped. Unused bits of the last group are ignored.
///
/// # Errors
/// A character of another alphabet, text after the padding, or an incomplete group.
pub fn decode(text: &[u8]) -> Result<Vec<u8>, Base64Error> {
    let mut output = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let (mut group, mut filled, mut padding) = (0u32, 0, 0);
    for (offset, &character) in text.iter().enumerate() {
        let value = VALUES[usize::from(character)];
        match value {
            SPACE => continue,
            PAD if padding < 2 && filled + padding >= 2 && filled + padding < 4 => padding += 1,
            PAD => return Err(Base64Error { offset, what: "a `=` out of place" }),
            FOREIGN => return Err(Base64Error { offset, what: "a character that base64 does not have" }),
            _ if padding > 0 => return Err(Base64Error { offset, what: "text behind the padding" }),
            _ => {
                group = group << 6 | u32::from(value);
                filled += 1;
                if filled == 4 {
                    output.extend_from_slice(&group.to_be_bytes()[1..]);
                    (group, filled) = (0, 0);
                }
            }
        }
    }
    match (filled, padding) {
        (0, 0) => {}
        (2, 2) => output.push((group >> 4) as u8),
        (3, 1) => output.extend_from_slice(&((group >> 2) as u16).to_be_bytes()),
        _ => return Err(Base64Error { offset: text.len(), what: "the last group is incomplete" }),
    }
    Ok(output)
}

/// Appends bytes as base64.
pub fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let mut group = [18, 12, 6, 0].map(|shift| ALPHABET[(bits >> shift & 63) as usize]);
        // n bytes fill n + 1 characters of a group.
        group[chunk.len() + 1..].fill(b'=');
        out.extend_from_slice(&group);
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const SPACE: u8 = 0xFD;
const PAD: u8 = 0xFE;
const FOREIGN: u8 = 0xFF;
const VALUES: [u8; 256] = values();

const fn values() -> [u8; 256] {
    let mut values = [FOREIGN; 256];
    let mut value = 0;
    while value < ALPHABET.len() {
        values[ALPHABET[value] as usize] = value as u8;
        value += 1;
    }
    values[b'=' as usize] = PAD;
    values[b' ' as usize] = SPACE;
    values[b'\t' as usize] = SPACE;
    values[b'\r' as usize] = SPACE;
    values[b'\n' as usize] = SPACE;
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_standard_are_decoded() {
        // RFC 4648, section 10.
        let known =
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob"), ("Zm9vYmE=", "fooba")];
        for (text, bytes) in known {
            assert_eq!(decode(text.as_bytes()).unwrap(), bytes.as_bytes(), "{text}");
            let mut out = Vec::new();
            push_base64(&mut out, bytes.as_bytes());
            assert_eq!(out, text.as_bytes());
        }
        assert_eq!(decode(b" Zm9v\r\nYg=\t= \n").unwrap(), b"foob");
        assert_eq!(decode(b"+/+/").unwrap(), [0xFB, 0xFF, 0xBF]);
    }

    #[test]
    fn errors_name_their_offset() {
        for (text, offset) in [
            ("Zg=", 3),
            ("Zg", 2),
            ("Z", 1),
            ("Zm9vY", 5),
            ("=", 0),
            ("Z===", 1),
            ("Zg===", 4),
            ("Zm9v=", 4),
            ("Zg==Zg==", 4),
            ("Zm-v", 2),
            ("Zm9v!", 4),
            ("Zm8=v", 4),
            ("Zm\u{e9}", 2),
        ] {
            assert_eq!(decode(text.as_bytes()).unwrap_err().offset, offset, "{text}");
        }
    }
}
