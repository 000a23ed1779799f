//! Modified UTF-8 of Java and plain UTF-8, also mixed. Modified UTF-8 writes U+0000 as `C0 80`, and characters above U+FFFF
//! as two surrogates of three bytes each.

use std::borrow::Cow;

use bytes::{BufMut, BytesMut};

/// What was replaced by U+FFFD to make text of bytes. Of several kinds the most severe one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Repair {
    /// Nothing.
    #[default]
    None,
    /// Unpaired surrogates, each became one U+FFFD. Strings of Java may contain them: the bytes are valid, but not text.
    LoneSurrogates,
    /// Bytes that neither encoding allows. Each maximal ill-formed part became one U+FFFD, as in [`super::text::repair`].
    InvalidBytes,
}

/// Text from bytes in either encoding. Bytes that are plain UTF-8 are borrowed.
pub fn read(bytes: &[u8]) -> (Cow<'_, str>, Repair) {
    // Valid plain UTF-8 has the same meaning in modified UTF-8.
    match str::from_utf8(bytes) {
        Ok(text) => (Cow::Borrowed(text), Repair::None),
        Err(_) => {
            let (text, repair) = translate(bytes);
            (Cow::Owned(text), repair)
        }
    }
}

/// Appends `text` in modified UTF-8.
pub fn write(text: &str, out: &mut BytesMut) {
    out.reserve(encoded_len(text));
    let mut rest = text;
    while let Some(at) = rest.bytes().position(is_written_otherwise) {
        out.put_slice(&rest.as_bytes()[..at]);
        let mut characters = rest[at..].chars();
        match characters.next() {
            None | Some('\0') => out.put_slice(&NUL),
            Some(character) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.put_slice(&surrogate_bytes(*unit));
                }
            }
        }
        rest = characters.as_str();
    }
    out.put_slice(rest.as_bytes());
}

/// The number of bytes that [`write()`] appends.
pub fn encoded_len(text: &str) -> usize {
    let longer = |byte| match byte {
        0 => 1,
        FIRST_OF_FOUR.. => 2,
        _ => 0,
    };
    text.len() + text.bytes().map(longer).sum::<usize>()
}

/// U+0000 in modified UTF-8.
const NUL: [u8; 2] = [0xC0, 0x80];

/// The lowest first byte of a character of four bytes, which is above U+FFFF.
const FIRST_OF_FOUR: u8 = 0xF0;

/// Whether a character that begins with this byte differs from plain UTF-8.
fn is_written_otherwise(byte: u8) -> bool {
    byte == 0 || byte >= FIRST_OF_FOUR
}

fn surrogate_bytes(unit: u16) -> [u8; 3] {
    [0xE0 | (unit >> 12) as u8, 0x80 | (unit >> 6 & 0x3F) as u8, 0x80 | (unit & 0x3F) as u8]
}

/// The surrogate at the front of `bytes`, if there is one.
fn surrogate(bytes: &[u8]) -> Option<u16> {
    match *bytes {
        [0xED, second @ 0xA0..=0xBF, third @ 0x80..=0xBF, ..] => {
            Some(0xD000 | u16::from(second & 0x3F) << 6 | u16::from(third & 0x3F))
        }
        _ => None,
    }
}

/// Text from bytes that are not valid plain UTF-8.
fn translate(bytes: &[u8]) -> (String, Repair) {
    let mut text = String::with_capacity(bytes.len());
    let mut repair = Repair::None;
    let mut rest = bytes;
    while let Some(chunk) = rest.utf8_chunks().next() {
        text.push_str(chunk.valid());
        rest = &rest[chunk.valid().len()..];
        if !rest.is_empty() {
            let (character, len) = special(rest, chunk.invalid().len());
            rest = &rest[len..];
            repair = repair.max(character.err().unwrap_or_default());
            text.push(character.unwrap_or(char::REPLACEMENT_CHARACTER));
        }
    }
    (text, repair)
}

/// The character at the front of `bytes`, where plain UTF-8 has ended, and its length: `ill_formed` bytes if modified UTF-8
/// does not allow it either.
fn special(bytes: &[u8], ill_formed: usize) -> (Result<char, Repair>, usize) {
    if bytes.starts_with(&NUL) {
        return (Ok('\0'), NUL.len());
    }
    let Some(first) = surrogate(bytes) else { return (Err(Repair::InvalidBytes), ill_formed) };
    let pair = surrogate(&bytes[3..]).and_then(|second| char::decode_utf16([first, second]).next()?.ok());
    pair.map_or((Err(Repair::LoneSurrogates), 3), |character| (Ok(character), 6))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(text: &str) -> Vec<u8> {
        let mut out = BytesMut::new();
        write(text, &mut out);
        out.to_vec()
    }

    #[test]
    fn plain_utf8_is_borrowed_with_raw_nul_and_four_byte_characters() {
        let bytes = "na\u{ef}ve\0\u{1f600}".as_bytes();
        let (text, repair) = read(bytes);
        assert!(matches!(text, Cow::Borrowed("na\u{ef}ve\0\u{1f600}")), "{text:?}");
        assert_eq!(repair, Repair::None);
    }

    #[test]
    fn modified_and_plain_utf8_may_be_mixed() {
        let bytes = b"a\xC0\x80b\0\xED\xA0\xBD\xED\xB8\x80c\xF0\x9F\x98\x80";
        assert_eq!(read(bytes), ("a\0b\0\u{1f600}c\u{1f600}".into(), Repair::None));
    }

    #[test]
    fn each_unpaired_surrogate_is_one_replacement_character() {
        assert_eq!(read(b"x\xED\xA0\xBDy"), ("x\u{fffd}y".into(), Repair::LoneSurrogates));
        assert_eq!(read(b"\xED\xB8\x80"), ("\u{fffd}".into(), Repair::LoneSurrogates));
        // High, high, low: only the second has a partner.
        let bytes = b"\xED\xA0\xBD\xED\xA0\xBD\xED\xB8\x80";
        assert_eq!(read(bytes), ("\u{fffd}\u{1f600}".into(), Repair::LoneSurrogates));
        // Low, high: the wrong way round.
        assert_eq!(read(b"\xED\xB8\x80\xED\xA0\xBD"), ("\u{fffd}\u{fffd}".into(), Repair::LoneSurrogates));
    }

    #[test]
    fn other_bytes_are_replaced_as_everywhere_and_reported_before_unpaired_surrogates() {
        assert_eq!(read(b"ab\xFF\xFEcd"), ("ab\u{fffd}\u{fffd}cd".into(), Repair::InvalidBytes));
        assert_eq!(read(b"cut \xE2\x82"), ("cut \u{fffd}".into(), Repair::InvalidBytes));
        assert_eq!(read(b"\xED\xA0\xBD\x80"), ("\u{fffd}\u{fffd}".into(), Repair::InvalidBytes));
        assert_eq!(read(b"overlong \xC1\x81"), ("overlong \u{fffd}\u{fffd}".into(), Repair::InvalidBytes));
        assert_eq!(read(b"\xED\xA0"), ("\u{fffd}\u{fffd}".into(), Repair::InvalidBytes));
    }

    #[test]
    fn java_writes_nul_in_two_bytes_and_supplementary_characters_in_six() {
        assert_eq!(encoded("a\0\u{20ac}\u{1f600}"), b"a\xC0\x80\xE2\x82\xAC\xED\xA0\xBD\xED\xB8\x80");
        assert_eq!(encoded("\u{10ffff}"), b"\xED\xAF\xBF\xED\xBF\xBF");
        assert_eq!(encoded(""), b"");
    }

    proptest! {
        #[test]
        fn what_was_written_reads_back(text in any::<String>()) {
            let bytes = encoded(&text);
            prop_assert_eq!(encoded_len(&text), bytes.len());
            prop_assert!(!bytes.contains(&0));
            prop_assert_eq!(read(&bytes), (text.into(), Repair::None));
        }

        #[test]
        fn any_bytes_are_read_and_utf8_as_std_reads_it(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let (text, repair) = read(&bytes);
            match str::from_utf8(&bytes) {
                Ok(plain) => prop_assert_eq!((&*text, repair), (plain, Repair::None)),
                Err(_) => prop_assert!(repair == Repair::None || text.contains(char::REPLACEMENT_CHARACTER)),
            }
            prop_assert!(text.len() <= 3 * bytes.len());
        }

        #[test]
        fn bytes_near_surrogates_agree_with_utf16(units in prop::collection::vec(0xD7F0u16..0xE010, 0..12)) {
            let bytes: Vec<u8> = units.iter().flat_map(|unit| surrogate_bytes(*unit)).collect();
            let (text, repair) = read(&bytes);
            prop_assert_eq!(&*text, String::from_utf16_lossy(&units));
            let is_lossy = String::from_utf16(&units).is_err();
            prop_assert_eq!(repair, if is_lossy { Repair::LoneSurrogates } else { Repair::None });
        }
    }
}
