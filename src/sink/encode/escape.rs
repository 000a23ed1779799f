//! Escaping of texts in JSON strings.

use super::number::HEX;
use tributary_event::TextView;
use tributary_event::semconv::{PADDING, Padded};

/// Appends a text as a JSON string, quotes included.
#[inline]
pub(super) fn push_string(out: &mut Vec<u8>, view: TextView<'_>) {
    out.push(b'"');
    push_string_content(out, view);
    out.push(b'"');
}

/// Appends a text as the content of a JSON string, without quotes.
#[inline]
pub(super) fn push_string_content(out: &mut Vec<u8>, view: TextView<'_>) {
    if view.is_plain() {
        push_start(out, view.len(), view.tail());
    } else {
        push_json_escaped(out, view.text());
    }
}

/// Appends a constant piece.
#[inline]
pub(super) fn push_short(out: &mut Vec<u8>, piece: Padded) {
    push_start(out, piece.len, piece.padded.as_bytes());
}

/// Appends the first `len` bytes of `tail`. Copying a constant number of bytes is a few instructions, any other number is
/// a function call; so a short piece is copied together with the bytes after it, which are removed again.
#[inline]
pub fn push_start(out: &mut Vec<u8>, len: usize, tail: &[u8]) {
    match tail.first_chunk::<PADDING>() {
        Some(piece) if len <= PADDING => {
            out.extend_from_slice(piece);
            out.truncate(out.len() - (PADDING - len));
        }
        _ => out.extend_from_slice(&tail[..len]),
    }
}

/// Appends a text escaped for JSON.
///
/// In addition to what JSON requires, characters are escaped that a terminal interprets instead of showing them, as in
/// text output: U+007F to U+009F, the line separators U+2028 and U+2029, and the controls of the bidirectional
/// algorithm. So one event is one line for every reader, and `cat` of a file is safe.
pub(super) fn push_json_escaped(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let (mut copied, mut at) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        if PASSES[byte as usize] {
            at += 1;
            continue;
        }
        let (len, unit): (usize, u16) = match (byte, bytes.get(at + 1), bytes.get(at + 2)) {
            (0xC2, Some(&second @ 0x80..=0x9F), _) => (2, u16::from(second)),
            (0xD8, Some(0x9C), _) => (2, 0x061C),
            (0xE2, Some(0x80), Some(&third @ (0x8E..=0x8F | 0xA8..=0xAE))) => (3, 0x2000 | u16::from(third & 0x3F)),
            (0xE2, Some(0x81), Some(&third @ 0xA6..=0xA9)) => (3, 0x2040 | u16::from(third & 0x3F)),
            // Another character with the same first byte.
            (0xC2 | 0xD8 | 0xE2, ..) => {
                at += 1;
                continue;
            }
            (ascii, ..) => (1, u16::from(ascii)),
        };
        out.extend_from_slice(&bytes[copied..at]);
        push_escape(out, unit);
        at += len;
        copied = at;
    }
    out.extend_from_slice(&bytes[copied..]);
}

/// Appends the escape of a UTF-16 unit: the short one where JSON has one.
fn push_escape(out: &mut Vec<u8>, unit: u16) {
    let short: &[u8] = match unit {
        0x22 => b"\\\"",
        0x5C => b"\\\\",
        0x0A => b"\\n",
        0x0D => b"\\r",
        0x09 => b"\\t",
        0x08 => b"\\b",
        0x0C => b"\\f",
        _ => {
            let [high, low] = unit.to_be_bytes();
            let ([a, b], [c, d]) = (HEX[high as usize], HEX[low as usize]);
            &[b'\\', b'u', a, b, c, d]
        }
    };
    out.extend_from_slice(short);
}

/// The bytes that no escaped character begins with.
const PASSES: [bool; 256] = {
    let mut passes = [true; 256];
    let mut byte = 0;
    while byte < 256 {
        passes[byte] = !(byte < 0x20 || matches!(byte, 0x22 | 0x5C | 0x7F | 0xC2 | 0xD8 | 0xE2));
        byte += 1;
    }
    passes
};
