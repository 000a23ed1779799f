//! Parses EDN, the data notation of Clojure, into JSON values.
//!
//! Keywords and symbols become strings without their colon. Lists, vectors and sets become arrays. Tags are skipped. Keys of
//! maps that are not text become their JSON notation.

use std::fmt;

use serde_json::{Map, Number, Value};

/// Why a text is not EDN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EdnError {
    /// Offset in the text, in bytes.
    pub offset: usize,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for EdnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EDN, at {}: {}", self.offset, self.what)
    }
}

impl std::error::Error for EdnError {}

/// The deepest nesting of values.
const MOST_DEPTH: usize = 64;

/// Parses a text that is one value.
///
/// # Errors
/// It is not one value, or it is nested too deep.
pub fn read(text: &str) -> Result<Value, EdnError> {
    let mut reader = Reader { text, at: 0 };
    let value = reader.value(0)?;
    reader.skip(0)?;
    if reader.at < text.len() {
        return Err(reader.fault("more than one value"));
    }
    Ok(value)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, EdnError> {
        if depth > MOST_DEPTH {
            return Err(self.fault("values nest too deep"));
        }
        self.skip(depth)?;
        match self.peek() {
            None => Err(self.fault("a value is missing")),
            Some('{') => self.map(depth),
            Some('[') => self.list(1, ']', depth),
            Some('(') => self.list(1, ')', depth),
            Some('"') => self.string().map(Value::String),
            Some('\\') => self.character(),
            Some('#') => match self.text[self.at..].chars().nth(1) {
                Some('{') => self.list(2, '}', depth),
                Some(character) if character.is_alphabetic() => {
                    self.at += 1;
                    self.word();
                    self.value(depth + 1)
                }
                _ => Err(self.fault("a dispatch that EDN does not have")),
            },
            Some(_) => self.atom(),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, EdnError> {
        self.at += 1;
        let mut map = Map::new();
        while !self.ends(depth, '}')? {
            let key = match self.value(depth + 1)? {
                Value::String(text) => text,
                other => other.to_string(),
            };
            if self.ends(depth, '}')? {
                return Err(self.fault("a key without a value"));
            }
            map.insert(key, self.value(depth + 1)?);
        }
        Ok(Value::Object(map))
    }

    fn list(&mut self, opening: usize, closing: char, depth: usize) -> Result<Value, EdnError> {
        self.at += opening;
        let mut list = Vec::new();
        while !self.ends(depth, closing)? {
            list.push(self.value(depth + 1)?);
        }
        Ok(Value::Array(list))
    }

    /// Whether the collection ends here; if so, its end is consumed.
    fn ends(&mut self, depth: usize, closing: char) -> Result<bool, EdnError> {
        self.skip(depth)?;
        let ends = self.peek() == Some(closing);
        self.at += usize::from(ends);
        Ok(ends)
    }

    fn string(&mut self) -> Result<String, EdnError> {
        let start = self.at;
        self.at += 1;
        let mut string = String::new();
        loop {
            let Some(character) = self.next() else {
                self.at = start;
                return Err(self.fault("a text that does not end"));
            };
            match character {
                '"' => return Ok(string),
                '\\' => {
                    let place = self.at - 1;
                    let escaped = match self.next() {
                        Some('n') => Some('\n'),
                        Some('t') => Some('\t'),
                        Some('r') => Some('\r'),
                        Some('b') => Some('\u{8}'),
                        Some('f') => Some('\u{c}'),
                        Some('u') => self.unicode(),
                        Some(plain @ ('"' | '\\')) => Some(plain),
                        _ => None,
                    };
                    string.push(escaped.ok_or(EdnError { offset: place, what: "an escape that EDN does not have" })?);
                }
                _ => string.push(character),
            }
        }
    }

    /// The character of four hexadecimal digits; a surrogate becomes the replacement character.
    fn unicode(&mut self) -> Option<char> {
        let digits = self.text.get(self.at..self.at + 4)?;
        let code = u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?;
        self.at += 4;
        Some(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    /// `\a`, `\newline`.
    fn character(&mut self) -> Result<Value, EdnError> {
        self.at += 1;
        let start = self.at;
        if self.next().is_none() {
            return Err(self.fault("a character is missing"));
        }
        self.word();
        let name = &self.text[start..self.at];
        let text = match name {
            "newline" => "\n",
            "return" => "\r",
            "space" => " ",
            "tab" => "\t",
            _ => name,
        };
        Ok(Value::String(text.to_owned()))
    }

    fn atom(&mut self) -> Result<Value, EdnError> {
        let start = self.at;
        let word = self.word();
        let is_number = word.trim_start_matches(['+', '-']).starts_with(|first: char| first.is_ascii_digit());
        let value = match word {
            "" => None,
            "nil" => Some(Value::Null),
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            _ if is_number => number(word),
            _ => match word.strip_prefix(':') {
                Some("") => None,
                Some(keyword) => Some(Value::String(keyword.to_owned())),
                None => Some(Value::String(word.to_owned())),
            },
        };
        value.ok_or(EdnError { offset: start, what: "neither a value nor the end of one" })
    }

    /// Consumes and returns the text up to white space or a delimiter of EDN.
    fn word(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let is_end = |character: char| is_space(character) || "{}[]()\";\\".contains(character);
        let word = &rest[..rest.find(is_end).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    /// Consumes white space, comments, and discarded values (`#_`).
    fn skip(&mut self, depth: usize) -> Result<(), EdnError> {
        loop {
            let rest = self.text[self.at..].trim_start_matches(is_space);
            self.at = self.text.len() - rest.len();
            if rest.starts_with(';') {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("#_") {
                self.at += 2;
                self.value(depth + 1)?;
            } else {
                return Ok(());
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += next.map_or(0, char::len_utf8);
        next
    }

    fn fault(&self, what: &'static str) -> EdnError {
        EdnError { offset: self.at, what }
    }
}

fn is_space(character: char) -> bool {
    character.is_whitespace() || character == ','
}

/// An integer, or else a float; the suffixes `N` and `M` mark arbitrary precision.
fn number(word: &str) -> Option<Value> {
    let plain = word.strip_prefix('+').unwrap_or(word);
    let plain = plain.strip_suffix(['N', 'M']).unwrap_or(plain);
    if let Ok(integer) = plain.parse::<i64>() {
        return Some(integer.into());
    }
    if let Ok(integer) = plain.parse::<u64>() {
        return Some(integer.into());
    }
    let is_float = plain.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    Number::from_f64(plain.parse().ok().filter(|_| is_float)?).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_become_json_values() {
        let text = r#" {:rkey "k\"\n\u00e9" , :agent/name "h", "app" :demo, :nested {:a [1 -2 +3 2.5 1e3 7N 1.5M nil true]
            :b (x y) :c #{1} :d \a :e \newline} ; a comment
            :when #inst "2026-01-01" #_ignored :last #_ {:a 1} false 5 6 18446744073709551615 7} "#;
        let expected = json!({
            "rkey": "k\"\n\u{e9}", "agent/name": "h", "app": "demo",
            "nested": {"a": [1, -2, 3, 2.5, 1000.0, 7, 1.5, null, true], "b": ["x", "y"], "c": [1], "d": "a", "e": "\n"},
            "when": "2026-01-01", "last": false, "5": 6, "18446744073709551615": 7,
        });
        assert_eq!(read(text).unwrap(), expected);
    }

    #[test]
    fn errors_name_their_offset() {
        for (text, offset) in [
            ("", 0),
            ("{", 1),
            ("{:a", 3),
            ("{:a}", 4),
            ("[1", 2),
            ("[1}", 2),
            ("{:a 1} 2", 7),
            ("\"abc", 0),
            ("\"\\x\"", 1),
            ("\"\\u12\"", 1),
            (":", 0),
            ("1x", 0),
            ("#!", 0),
            ("\\", 1),
            ("#_", 2),
            (")", 0),
            ("\"\\u+123\"", 1),
            ("1e999", 0),
        ] {
            assert_eq!(read(text).unwrap_err().offset, offset, "{text}");
        }
    }

    #[test]
    fn depth_is_bounded_however_it_is_made() {
        for opening in ["[", "{:a ", "#a ", "#_", "(", "#{", "#_[", "[#_ "] {
            assert_eq!(read(&opening.repeat(100_000)).unwrap_err().what, "values nest too deep", "{opening}");
        }
        let nested = "[".repeat(MOST_DEPTH) + &"]".repeat(MOST_DEPTH);
        assert!(read(&nested).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 200, ..ProptestConfig::default() })]

        #[test]
        fn no_text_makes_it_panic(text in "[\\[\\]{}()\"#_:;, a1.e+\\\\uN\\n\u{e9}-]{0,60}") {
            let _ = read(&text);
        }

        #[test]
        fn json_without_escapes_of_its_own_reads_the_same(keys in prop::collection::vec("[a-z]{1,4}", 0..5), numbers in prop::collection::vec(any::<i64>(), 0..5)) {
            let map: Map<String, Value> = keys.into_iter().map(|key| (key, json!(numbers))).collect();
            // A colon of JSON would be a keyword.
            let text = Value::Object(map.clone()).to_string().replace(':', " ");
            prop_assert_eq!(read(&text).unwrap(), Value::Object(map));
        }
    }
}
