//! Text of peers: repaired if it is not UTF-8, cut if it is too long; the result says so.

use std::borrow::Cow;

/// Text from bytes that should be UTF-8. `true`: it was repaired. Every maximal ill-formed part became one U+FFFD, as
/// [`String::from_utf8_lossy`] does.
pub fn repair(bytes: &[u8]) -> (Cow<'_, str>, bool) {
    match str::from_utf8(bytes) {
        Ok(text) => (text.into(), false),
        Err(_) => (String::from_utf8_lossy(bytes), true),
    }
}

/// Text from bytes; those that are not UTF-8 are escaped. Different bytes are different texts, as keys that must not repeat need it.
pub fn escape(bytes: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.escape_ascii().to_string().into(),
    }
}

/// The longest prefix of at most `limit` bytes that does not end inside a character. Bytes that are not UTF-8
/// stay as they are; only a character that the cut itself would split is left out.
pub fn cut_bytes(bytes: &[u8], limit: usize) -> &[u8] {
    if bytes.len() <= limit {
        return bytes;
    }
    let kept = &bytes[..limit];
    // A character has at most 4 bytes: search backwards for the first byte of the one that the cut may split.
    for back in 1..=kept.len().min(3) {
        let start = limit - back;
        let length = match kept[start] {
            0x80..=0xBF => continue,
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            _ => 1,
        };
        let whole = start + length <= limit;
        let splits_a_character =
            !whole && bytes.get(start..start + length).is_none_or(|character| str::from_utf8(character).is_ok());
        return if splits_a_character { &kept[..start] } else { kept };
    }
    kept
}

/// The longest prefix of at most `limit` bytes that ends at a character boundary.
pub fn cut(text: &str, limit: usize) -> &str {
    if text.len() <= limit { text } else { &text[..text.floor_char_boundary(limit)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_maximal_ill_formed_part_becomes_one_replacement_character() {
        assert_eq!(repair(b"caf\xc3\xa9"), ("caf\u{e9}".into(), false));
        assert_eq!(repair(b"ab\xff\xfecd"), ("ab\u{fffd}\u{fffd}cd".into(), true));
        assert_eq!(repair(b"cut \xe2\x82"), ("cut \u{fffd}".into(), true));
    }

    #[test]
    fn different_bytes_are_different_texts() {
        assert_eq!(
            (escape(b"caf\xc3\xa9"), escape(b"a\xff"), escape(b"a\xfe")),
            ("caf\u{e9}".into(), r"a\xff".into(), r"a\xfe".into())
        );
    }

    #[test]
    fn a_cut_excludes_the_character_that_it_would_split() {
        let text = "a\u{20ac}b\u{1f600}".as_bytes();
        let cuts: Vec<_> = (0..=text.len()).map(|limit| cut_bytes(text, limit).len()).collect();
        assert_eq!(cuts, [0, 1, 1, 1, 4, 5, 5, 5, 5, 9]);
        for limit in 0..=text.len() {
            assert_eq!(cut("a\u{20ac}b\u{1f600}", limit).as_bytes(), cut_bytes(text, limit));
        }
    }

    #[test]
    fn a_cut_keeps_bytes_that_are_not_characters() {
        assert_eq!(cut_bytes(b"ab\x80\x80\x80\x80cd", 5), b"ab\x80\x80\x80");
        assert_eq!(cut_bytes(b"ab\xffcd", 3), b"ab\xff");
        assert_eq!(cut_bytes(b"ab\xe2(cd", 3), b"ab\xe2");
    }
}
