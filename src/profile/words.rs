//! Prepares texts of peers for tables and stacks: one line each, without control characters.

use std::borrow::Cow;

use super::{ProfileFrame, Site};

/// A text on one line: control characters, line ends and bidirectional controls become spaces, and runs of spaces become one
/// space.
pub(super) fn one_line(text: &str) -> Cow<'_, str> {
    let is_harmless = |c: char| !c.is_control() && !is_bidirectional_control(c);
    if text.chars().all(|c| is_harmless(c) && (c == ' ' || !c.is_whitespace()))
        && text.trim() == text
        && !text.contains("  ")
    {
        return Cow::Borrowed(text);
    }
    let spaced = text.replace(|c: char| !is_harmless(c), " ");
    Cow::Owned(spaced.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The marks, embeddings, overrides and isolates of the bidirectional algorithm.
fn is_bidirectional_control(c: char) -> bool {
    matches!(c, '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// A number of things: `1 span`, `2 spans`.
pub(super) fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// A class; internal objects of Ruby have none.
pub(super) fn class(class: Option<&str>) -> Cow<'_, str> {
    let class = class.map(one_line).unwrap_or(Cow::Borrowed("(no class)"));
    if class.is_empty() { Cow::Borrowed("(empty)") } else { class }
}

/// `file:line`, or the known part of it; `None` if both are unknown. Line 0 means unknown: Ruby has it for C functions.
pub(super) fn site(file: Option<&str>, line: Option<u64>) -> Option<String> {
    match (file.map(one_line), line.filter(|line| *line != 0)) {
        (None, None) => None,
        (Some(file), None) => Some(file.into_owned()),
        (file, Some(line)) => Some(format!("{}:{line}", file.unwrap_or(Cow::Borrowed("(no file)")))),
    }
}

/// The text of a frame: `label (file:line)`.
pub(super) fn frame(frame: &ProfileFrame<'_>) -> String {
    let ProfileFrame { function, site: Site { file, line } } = frame;
    let function = function.as_deref().map(one_line).filter(|function| !function.is_empty());
    folded(match (function, site(file.as_deref(), *line)) {
        (Some(function), Some(site)) => format!("{function} ({site})"),
        (Some(function), None) => function.into_owned(),
        (None, Some(site)) => format!("({site})"),
        (None, None) => "(unknown)".to_owned(),
    })
}

/// A text as a frame of a folded stack, where `;` separates frames and a number after a space is the value: neither may be
/// in a frame.
pub(super) fn folded(text: impl Into<String>) -> String {
    let mut text = text.into();
    if text.contains(';') {
        text = text.replace(';', ":");
    }
    if let Some((words, last)) = text.rsplit_once(' ')
        && last.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        text = format!("{words}_{last}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_one_line_without_controls() {
        assert_eq!(one_line("block (2 levels) in Größe#call"), "block (2 levels) in Größe#call");
        assert_eq!(one_line("\x1b[2J a\r\nb\u{202E}\u{A0}\tc  d\u{2028}"), "[2J a b c d");
        assert_eq!((one_line(""), one_line(" \n")), (Cow::Borrowed(""), Cow::Borrowed("")));
        assert_eq!(
            (class(None), class(Some("")), class(Some("A"))),
            ("(no class)".into(), "(empty)".into(), "A".into())
        );
    }

    #[test]
    fn frames_have_the_known_parts() {
        let named = |function: Option<&'static str>, file: Option<&'static str>, line| {
            frame(&ProfileFrame { function: function.map(Into::into), site: Site { file: file.map(Into::into), line } })
        };
        assert_eq!(named(Some("A#b"), Some("/a.rb"), Some(7)), "A#b (/a.rb:7)");
        assert_eq!(named(Some("A#b"), Some("<cfunc>"), Some(0)), "A#b (<cfunc>)");
        assert_eq!(named(Some("A#b"), None, Some(7)), "A#b ((no file):7)");
        assert_eq!(named(Some("A;b"), None, None), "A:b");
        assert_eq!(named(None, Some("/a;b.rb"), Some(7)), "(/a:b.rb:7)");
        assert_eq!(named(Some(""), None, None), "(unknown)");
        assert_eq!(
            (named(Some("A 12"), None, None), folded("A 1.5"), folded("12")),
            ("A_12".into(), "A_1.5".into(), "12".into())
        );
    }
}
