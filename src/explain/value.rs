//! Texts in human-readable form.

use tributary_codec::mutf8::{self, Repair};
use tributary_codec::terminal::push_quoted;
use tributary_codec::text::{cut, cut_bytes, repair};

/// Bytes of a text that are shown as its value.
pub const TEXT_BYTES: usize = 256;

/// A text that should be UTF-8: in quotes, cut if it is long, and marked if it was repaired.
pub fn text(bytes: &[u8]) -> String {
    let kept = cut_bytes(bytes, TEXT_BYTES);
    let (text, is_repaired) = repair(kept);
    described(&text, (kept.len() < bytes.len()).then_some(bytes.len()), is_repaired)
}

/// The same for a text of Java, in modified UTF-8.
pub fn java_text(bytes: &[u8]) -> String {
    let (text, repair) = mutf8::read(bytes);
    let kept = cut(&text, TEXT_BYTES);
    described(kept, (kept.len() < text.len()).then_some(bytes.len()), repair != Repair::None)
}

/// `cut_from`: its length before it was cut, in bytes.
fn described(text: &str, cut_from: Option<usize>, is_repaired: bool) -> String {
    let mut shown = quoted(text);
    if let Some(bytes) = cut_from {
        shown.push_str(&format!("… ({bytes} bytes)"));
    }
    if is_repaired {
        shown.push_str(" (not UTF-8)");
    }
    shown
}

/// A text in quotes, with control characters escaped.
pub fn quoted(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len() + 2);
    push_quoted(&mut out, text);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_cut_and_marked_as_repaired() {
        assert_eq!(text(b"a\"b\x1b"), r#""a\"b\u{1b}""#);
        assert_eq!(text(b"a\xff"), "\"a\u{fffd}\" (not UTF-8)");
        let long = "\u{20ac}".repeat(100);
        assert_eq!(text(long.as_bytes()), format!("\"{}\"… (300 bytes)", "\u{20ac}".repeat(85)));
        assert_eq!(java_text(b"\xC0\x80"), r#""\u{0}""#);
        assert_eq!(java_text(b"\xED\xA0\xBD"), "\"\u{fffd}\" (not UTF-8)");
    }
}
