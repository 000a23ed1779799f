//! Text that must not break out of a JSON string, nor its event out of the line.

use super::number::HEX;
use crate::event::TextView;
use crate::event::semconv::{PADDING, Padded};

/// Appends a text as a JSON string, quotes included.
#[inline]
pub(super) fn push_string(out: &mut Vec<u8>, view: TextView<'_>) {
    out.push(b'"');
    push_string_content(out, view);
    out.push(b'"');
}

/// Appends what stands between the quotes of a JSON string.
#[inline]
pub(super) fn push_string_content(out: &mut Vec<u8>, view: TextView<'_>) {
    if view.is_plain() {
        push_start(out, view.len(), view.tail());
    } else {
        push_json_escaped(out, view.text());
    }
}

/// Appends a piece that is known beforehand.
#[inline]
pub(super) fn push_short(out: &mut Vec<u8>, piece: Padded) {
    push_start(out, piece.len, piece.padded.as_bytes());
}

/// Appends the first `len` bytes of `tail`. A piece of a length known beforehand is a few moves, where any other is a
/// call that has to find out; so a short one is copied with what stands behind it, which is taken back.
#[inline]
fn push_start(out: &mut Vec<u8>, len: usize, tail: &[u8]) {
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
/// Beside what JSON demands, the line separators U+0085, U+2028 and U+2029 are escaped: some readers end a line
/// there, and one event must be one line for all of them.
pub(super) fn push_json_escaped(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let (mut copied, mut at) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        if PASSES[byte as usize] {
            at += 1;
            continue;
        }
        let (len, escape): (usize, &[u8]) = match (byte, bytes.get(at + 1), bytes.get(at + 2)) {
            (b'"', ..) => (1, b"\\\""),
            (b'\\', ..) => (1, b"\\\\"),
            (b'\n', ..) => (1, b"\\n"),
            (b'\r', ..) => (1, b"\\r"),
            (b'\t', ..) => (1, b"\\t"),
            (0x08, ..) => (1, b"\\b"),
            (0x0C, ..) => (1, b"\\f"),
            (0xC2, Some(0x85), _) => (2, b"\\u0085"),
            (0xE2, Some(0x80), Some(0xA8)) => (3, b"\\u2028"),
            (0xE2, Some(0x80), Some(0xA9)) => (3, b"\\u2029"),
            // A character that only begins like a line separator.
            (0xC2 | 0xE2, ..) => (1, &[]),
            (control, ..) => (1, &CONTROLS[control as usize]),
        };
        if !escape.is_empty() {
            out.extend_from_slice(&bytes[copied..at]);
            out.extend_from_slice(escape);
            copied = at + len;
        }
        at += len;
    }
    out.extend_from_slice(&bytes[copied..]);
}

/// The bytes that no escaped character begins with.
const PASSES: [bool; 256] = {
    let mut passes = [true; 256];
    let mut byte = 0;
    while byte < 256 {
        passes[byte] =
            !(byte < 0x20 || byte == b'"' as usize || byte == b'\\' as usize || byte == 0xC2 || byte == 0xE2);
        byte += 1;
    }
    passes
};

/// The long escapes of the control characters.
const CONTROLS: [[u8; 6]; 32] = {
    let mut escapes = [*b"\\u0000"; 32];
    let mut byte = 0;
    while byte < 32 {
        [escapes[byte][4], escapes[byte][5]] = HEX[byte];
        byte += 1;
    }
    escapes
};
