//! Terminals: whether one shows colours, and escapes for the text of peers, so that it cannot control them.

use std::borrow::Cow;
use std::env;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Whether a stream is a terminal that shows colours, and the user wants them (<https://no-color.org>).
pub fn shows_colours(stream: &impl IsTerminal) -> bool {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Appends a text unchanged if it is one word without special characters, else in quotes.
pub fn push_word(out: &mut Vec<u8>, text: &str) {
    let breaks_word = |c: char| matches!(c, ' ' | '=' | ',' | '[' | ']' | '{' | '}') || needs_escape(c);
    if text.is_empty() || text.contains(breaks_word) {
        push_quoted(out, text);
    } else {
        out.extend_from_slice(text.as_bytes());
    }
}

/// Appends a text in quotes. Characters that move the cursor, change colours, end the line or change the direction of
/// writing are escaped.
pub fn push_quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut copied = 0;
    for (at, c) in text.char_indices().filter(|(_, c)| needs_escape(*c)) {
        out.extend_from_slice(&text.as_bytes()[copied..at]);
        // `\"`, `\n`, `\\` and the like, `\u{1b}` for the rest.
        out.extend_from_slice(c.escape_default().to_string().as_bytes());
        copied = at + c.len_utf8();
    }
    out.extend_from_slice(&text.as_bytes()[copied..]);
    out.push(b'"');
}

/// The text with control characters escaped, otherwise unchanged.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_obeyed(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// Writes a value as JSON, with control characters escaped, also those that JSON allows.
///
/// # Errors
/// Writing fails.
pub fn write_json(out: impl Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Escaping))
}

struct Escaping;

impl Formatter for Escaping {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut copied = 0;
        for (at, c) in fragment.char_indices().filter(|(_, c)| is_obeyed(*c)) {
            // All of them have four digits at most.
            write!(writer, "{}\\u{:04x}", &fragment[copied..at], u32::from(c))?;
            copied = at + c.len_utf8();
        }
        writer.write_all(&fragment.as_bytes()[copied..])
    }
}

fn needs_escape(c: char) -> bool {
    matches!(c, '"' | '\\') || is_obeyed(c)
}

/// Whether the character controls a terminal instead of being shown.
fn is_obeyed(c: char) -> bool {
    match c {
        // C0, DEL and C1: control characters.
        c if c.is_control() => true,
        '\u{2028}' | '\u{2029}' => true,
        // Marks, embeddings, overrides and isolates of the bidirectional algorithm.
        '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> String {
        let mut out = Vec::new();
        push_word(&mut out, text);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_word_without_special_characters_is_unchanged() {
        for text in ["shop", "127.0.0.1:40112", "/cart?a", "größe", "€", "🦀", "it's", "a\u{200D}b"] {
            assert_eq!(word(text), text);
        }
    }

    #[test]
    fn everything_but_a_single_word_is_quoted() {
        for text in ["", "GET /", "a=b", "a,b", "[a", "a]", "{a", "a}"] {
            assert_eq!(word(text), format!("\"{text}\""));
        }
        assert_eq!(word("say \"hi\"\\"), r#""say \"hi\"\\""#);
    }

    fn hostile_text() -> String {
        let hostile = (0..0x20)
            .chain(0x7F..0xA0)
            .chain([0x061C, 0x200E, 0x200F, 0x2028, 0x2029])
            .chain(0x202A..=0x202E)
            .chain(0x2066..=0x2069);
        hostile.map(|c| char::from_u32(c).unwrap()).collect()
    }

    #[test]
    fn no_control_character_is_left() {
        for c in hostile_text().chars() {
            let shown = word(&format!("a{c}b"));
            assert!(shown.starts_with("\"a\\") && shown.ends_with("b\""), "{shown}");
            assert!(shown.bytes().all(|b| (0x20..0x7F).contains(&b)), "{shown:?}");
        }
        let text = hostile_text();
        let mut json = Vec::new();
        write_json(&mut json, &text).unwrap();
        assert!(json.is_ascii() && !json.iter().any(u8::is_ascii_control));
        assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), text);
        assert_eq!(word("\x1b[2J\n\u{9B}m\u{202E}x"), r#""\u{1b}[2J\n\u{9b}m\u{202e}x""#);
    }
}
