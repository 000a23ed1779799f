//! Patterns of names and keys: `*` is any number of characters, `?` is one, `\` makes the next character a literal one.

use std::fmt;

/// The longest pattern, in bytes.
const MAX_BYTES: usize = 256;

/// A pattern. Matching takes time proportional to the text: a part between two `*` is searched once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Glob {
    source: String,
    /// The parts between `*`: at least one, and with one there is no `*`.
    parts: Vec<GlobPart>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum GlobPart {
    Text(String),
    /// `None` is any character.
    Characters(Vec<Option<char>>),
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl Glob {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wrong with it, and what to write instead.
    pub(super) fn parse(source: &str) -> Result<Glob, (String, String)> {
        let wrong = |message: &str, help: &str| Err((message.to_owned(), help.to_owned()));
        if source.is_empty() {
            return wrong("is empty", "write a name; `*` is any number of characters");
        }
        if source.len() > MAX_BYTES {
            let help = format!("at most {MAX_BYTES} bytes are allowed");
            return Err((format!("has {} bytes", source.len()), help));
        }
        let (mut parts, mut part) = (Vec::new(), Vec::new());
        let mut characters = source.chars();
        while let Some(character) = characters.next() {
            match character {
                '*' => parts.push(GlobPart::of(std::mem::take(&mut part))),
                '?' => part.push(None),
                '[' => return wrong("has a `[`, and there are no sets of characters", "write `\\[` for a bracket"),
                '\\' => match characters.next() {
                    Some(literal) => part.push(Some(literal)),
                    None => return wrong("ends in `\\`", "write `\\\\` for a backslash"),
                },
                literal => part.push(Some(literal)),
            }
        }
        parts.push(GlobPart::of(part));
        Ok(Glob { source: source.to_owned(), parts })
    }

    /// Whether the whole text matches. Upper and lower case differ.
    pub(super) fn matches(&self, text: &str) -> bool {
        let [first, between @ .., last] = self.parts.as_slice() else {
            return self.parts.first().is_some_and(|only| only.length_at(text) == Some(text.len()));
        };
        let Some(start) = first.length_at(text) else { return false };
        let mut rest = &text[start..];
        for part in between {
            let Some(end) = part.find_end(rest) else { return false };
            rest = &rest[end..];
        }
        last.is_end_of(rest)
    }
}

impl GlobPart {
    fn of(characters: Vec<Option<char>>) -> GlobPart {
        match characters.iter().copied().collect() {
            Some(text) => GlobPart::Text(text),
            None => GlobPart::Characters(characters),
        }
    }

    /// The number of bytes that it takes at the start of a text that begins with it.
    fn length_at(&self, text: &str) -> Option<usize> {
        match self {
            GlobPart::Text(own) => text.starts_with(own.as_str()).then_some(own.len()),
            GlobPart::Characters(characters) => {
                let mut rest = text.chars();
                let fits =
                    characters.iter().all(|own| rest.next().is_some_and(|found| own.is_none_or(|own| own == found)));
                fits.then(|| text.len() - rest.as_str().len())
            }
        }
    }

    /// The end of its first occurrence.
    fn find_end(&self, text: &str) -> Option<usize> {
        match self {
            GlobPart::Text(own) => text.find(own.as_str()).map(|start| start + own.len()),
            GlobPart::Characters(_) => {
                text.char_indices().find_map(|(start, _)| Some(start + self.length_at(&text[start..])?))
            }
        }
    }

    fn is_end_of(&self, text: &str) -> bool {
        match self {
            GlobPart::Text(own) => text.ends_with(own.as_str()),
            GlobPart::Characters(characters) => {
                let start = text.char_indices().rev().nth(characters.len().saturating_sub(1));
                start.is_some_and(|(start, _)| self.length_at(&text[start..]).is_some())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, text: &str) -> bool {
        Glob::parse(glob).unwrap_or_else(|error| panic!("{glob}: {error:?}")).matches(text)
    }

    #[test]
    fn a_star_crosses_dots_and_case_matters() {
        for (glob, text) in [
            ("rbkit.object.*", "rbkit.object.created"),
            ("rbkit.object.*", "rbkit.object."),
            ("*.password", "a.b.password"),
            ("*", ""),
            ("a*b*c", "a..b..b..c"),
            ("a*ab", "aab"),
            ("a?c", "aéc"),
            ("*?c", "bc"),
            ("*a?*", "xxaé"),
            ("\\*\\[\\?", "*[?"),
            ("http.route", "http.route"),
        ] {
            assert!(matches(glob, text), "{glob} {text}");
        }
        for (glob, text) in [
            ("rbkit.object.*", "rbkit.object"),
            ("*.password", "password"),
            ("A*", "abc"),
            ("a*ab", "ab"),
            ("a*b", "abc"),
            ("a?c", "ac"),
            ("?", ""),
            ("*?c", "c"),
            ("*a?*", "xxa"),
            ("http.route", "http.routes"),
        ] {
            assert!(!matches(glob, text), "{glob} {text}");
        }
    }

    #[test]
    fn a_glob_that_has_no_meaning_is_an_error() {
        for glob in ["", "a[bc]", "a\\", &"a".repeat(257)] {
            assert!(Glob::parse(glob).is_err(), "{glob}");
        }
    }

    proptest::proptest! {
        #[test]
        fn it_agrees_with_trying_every_division(glob in "[ab*?]{1,6}", text in "[abé]{0,8}") {
            fn tried(glob: &[char], text: &[char]) -> bool {
                match (glob.split_first(), text.split_first()) {
                    (None, None) => true,
                    (Some(('*', rest)), _) => tried(rest, text) || (!text.is_empty() && tried(glob, &text[1..])),
                    (Some(('?', rest)), Some((_, after))) => tried(rest, after),
                    (Some((own, rest)), Some((found, after))) => own == found && tried(rest, after),
                    _ => false,
                }
            }
            let (by_hand, characters): (Vec<char>, Vec<char>) = (glob.chars().collect(), text.chars().collect());
            proptest::prop_assert_eq!(matches(&glob, &text), tried(&by_hand, &characters));
        }
    }
}
