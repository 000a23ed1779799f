//! Errors of a configuration: each says where it is and what to write instead.

use std::fmt;
use std::ops::Range;

use super::endpoint::starred;

/// One error.
///
/// ```text
/// tributary.toml:4:1: unknown key `lissten` in [listeners.spans]
///   4 | lissten = "127.0.0.1:8136"
///     | ^^^^^^^ did you mean `listen`?
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file, as the operator named it.
    pub source: String,
    /// The place in the file. None for an error of the whole file.
    pub place: Option<SourceSpan>,
    /// The error.
    pub message: String,
    /// What to write instead.
    pub help: Option<String>,
    /// The values that cause the error, one line each.
    pub notes: Vec<String>,
}

/// A part of one line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSpan {
    /// The line, from 1.
    pub line: usize,
    /// The first character, from 1.
    pub column: usize,
    /// The number of characters on this line; at least 1.
    pub width: usize,
    /// The whole line, without its line end, and with control characters and secrets replaced.
    pub text: String,
}

impl SourceSpan {
    /// The place of a byte range of `text`. A range of several lines is cut at the end of the first.
    pub fn of(text: &str, range: Range<usize>) -> SourceSpan {
        let start = text.floor_char_boundary(range.start);
        let line = text[..start].matches('\n').count() + 1;
        SourceSpan::on_line(text, range, line)
    }

    /// The same where the number of its line is known.
    pub(super) fn on_line(text: &str, range: Range<usize>, line: usize) -> SourceSpan {
        // A span that does not end at a character boundary must not cause a panic.
        let start = text.floor_char_boundary(range.start);
        let end = text.floor_char_boundary(range.end).max(start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
        // The span of a key at the start of a file includes the byte order mark, which is invisible.
        let shown = text[line_start..line_end].trim_end_matches('\r').trim_start_matches(BYTE_ORDER_MARK);
        SourceSpan {
            line,
            column: text[line_start..start].trim_start_matches(BYTE_ORDER_MARK).chars().count() + 1,
            width: text[start..end.min(line_end)].trim_end_matches('\r').chars().count().max(1),
            text: starred(&printable(shown)),
        }
    }
}

impl fmt::Display for Diagnostic {
    /// Several lines, the last without a line feed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(place) = &self.place else {
            write!(f, "{}: {}", self.source, self.message)?;
            if let Some(help) = &self.help {
                write!(f, "\n  {help}")?;
            }
            return self.notes.iter().try_for_each(|note| write!(f, "\n  {note}"));
        };
        let number = place.line.to_string();
        writeln!(f, "{}:{}:{}: {}", self.source, place.line, place.column, self.message)?;
        writeln!(f, "  {number} | {}", place.text)?;
        // Tabs stay tabs, so that the carets are below their characters with every tab width.
        let before: String =
            place.text.chars().take(place.column - 1).map(|c| if c == '\t' { c } else { ' ' }).collect();
        write!(f, "  {:pad$} | {before}{}", "", "^".repeat(place.width), pad = number.len())?;
        if let Some(help) = &self.help {
            write!(f, " {help}")?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n  {:pad$} | {note}", "", pad = number.len()))
    }
}

/// All errors of a configuration, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// Never empty.
    pub diagnostics: Vec<Diagnostic>,
}

impl fmt::Display for ConfigErrors {
    /// One block of lines per diagnostic, the last without a line feed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.diagnostics.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            diagnostic.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// The name in `known` that differs from `name` by a typing error.
pub(super) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let allowed = (name.chars().count() / 3).max(1);
    known
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The text with control characters replaced: those of a file must not reach the operator's terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

const BYTE_ORDER_MARK: char = '\u{feff}';

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, part: &str) -> String {
        let start = text.find(part).unwrap();
        let place = Some(SourceSpan::of(text, start..start + part.len()));
        Diagnostic { source: "f".into(), place, message: "wrong".into(), help: Some("right".into()), notes: vec![] }
            .to_string()
    }

    #[test]
    fn carets_are_below_the_characters_of_the_error() {
        assert_eq!(shown("a\nb = \"ü\" # ü\n", "ü\""), "f:2:6: wrong\n  2 | b = \"ü\" # ü\n    |      ^^ right");
        assert_eq!(shown("\tkey = 1\r\n", "key"), "f:1:2: wrong\n  1 | \tkey = 1\n    | \t^^^ right");
        assert_eq!(shown("\u{feff}key", "key"), "f:1:1: wrong\n  1 | key\n    | ^^^ right");
    }

    #[test]
    fn a_range_of_several_lines_is_cut_and_the_end_of_the_file_has_one_caret() {
        assert_eq!(shown("a = [\n1\n]", "[\n1\n]"), "f:1:5: wrong\n  1 | a = [\n    |     ^ right");
        assert_eq!(SourceSpan::of("a =", 3..3), SourceSpan { line: 1, column: 4, width: 1, text: "a =".into() });
        assert_eq!(SourceSpan::of("a\n", 9..12), SourceSpan { line: 2, column: 1, width: 1, text: String::new() });
    }

    #[test]
    fn control_characters_of_the_file_do_not_reach_the_terminal() {
        assert_eq!(SourceSpan::of("a\u{1b}[2J", 0..1).text, "a\u{fffd}[2J");
    }

    #[test]
    fn only_a_similar_name_is_suggested() {
        let known = ["listen", "protocol", "tls"];
        assert_eq!(nearest("lissten", known.into_iter()), Some("listen"));
        assert_eq!(nearest("tsl", known.into_iter()), Some("tls"));
        assert_eq!(nearest("bind", known.into_iter()), None);
    }
}
