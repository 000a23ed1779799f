//! Text that must not break out of its place: out of a JSON string, or out of a line on a terminal.

use super::number::HEX;
use crate::event::TextView;

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
    if view.plain {
        out.extend_from_slice(view.text.as_bytes());
    } else {
        push_json_escaped(out, view.text);
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
            // The rest of a character that only begins like a line separator needs no look.
            (0xC2, ..) => (2, &[]),
            (0xE2, ..) => (3, &[]),
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

/// Appends a text for a terminal: as it is when it is one harmless word, else in quotes.
pub(super) fn push_word(out: &mut Vec<u8>, text: &str) {
    let breaks_word = |c: char| c == ' ' || matches!(c, '=' | ',' | '[' | ']' | '{' | '}') || needs_terminal_escape(c);
    if text.is_empty() || text.contains(breaks_word) {
        push_quoted(out, text);
    } else {
        out.extend_from_slice(text.as_bytes());
    }
}

/// Appends a text for a terminal, in quotes.
pub(super) fn push_quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    push_terminal_escaped(out, text);
    out.push(b'"');
}

/// Appends a text in which nothing is left that could move the cursor, change colours, end the line, or turn the
/// direction of writing.
pub(super) fn push_terminal_escaped(out: &mut Vec<u8>, text: &str) {
    let mut copied = 0;
    for (at, c) in text.char_indices().filter(|(_, c)| needs_terminal_escape(*c)) {
        out.extend_from_slice(&text.as_bytes()[copied..at]);
        match c {
            '"' => out.extend_from_slice(b"\\\""),
            // `\n`, `\t`, `\\` and the like, `\u{1b}` for the rest.
            c if c.is_ascii() => out.extend(c.escape_default().map(|c| c as u8)),
            c => out.extend_from_slice(c.escape_unicode().to_string().as_bytes()),
        }
        copied = at + c.len_utf8();
    }
    out.extend_from_slice(&text.as_bytes()[copied..]);
}

fn needs_terminal_escape(c: char) -> bool {
    match c {
        '"' | '\\' => true,
        // C0, DEL and C1: everything that a terminal obeys instead of showing it.
        c if c.is_control() => true,
        '\u{2028}' | '\u{2029}' => true,
        // Marks, embeddings, overrides and isolates of the bidirectional algorithm.
        '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => true,
        _ => false,
    }
}
