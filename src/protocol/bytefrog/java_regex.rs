//! Checks the syntax of Java regular expressions before they are sent to a traced program.
//!
//! Agents compile `exclusions` and `inclusions` with `java.util.regex.Pattern` before the program starts, where an error
//! would harm it. The check reports only what every Java version rejects:
//! parentheses and brackets that are not closed, quantifiers without an operand, and broken escapes. It does not know
//! the names of character properties, the length of look-behinds or which groups exist, so it accepts some expressions
//! that Java rejects. It runs in linear time and without recursion.

use std::fmt;

/// Why Java rejects an expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RegexError {
    /// Where, in characters from 1.
    position: usize,
    /// What is wrong.
    kind: RegexErrorKind,
}

/// What is wrong in an expression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RegexErrorKind {
    UnclosedGroup,
    UnmatchedParenthesis,
    UnclosedClass,
    DanglingQuantifier(char),
    Repetition,
    RepetitionRange,
    UnclosedRepetition,
    TrailingBackslash,
    Escape(char),
    IncompleteEscape(&'static str),
    CharacterRange(char, char),
    GroupName,
    GroupType(char),
    InlineFlag(char),
}

impl fmt::Display for RegexErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegexErrorKind::UnclosedGroup => f.write_str("`(` is not closed; a literal one is `\\(`"),
            RegexErrorKind::UnmatchedParenthesis => f.write_str("`)` closes no group; a literal one is `\\)`"),
            RegexErrorKind::UnclosedClass => f.write_str("`[` is not closed; a literal one is `\\[`"),
            RegexErrorKind::DanglingQuantifier(quantifier) => {
                write!(f, "`{quantifier}` repeats nothing; a literal one is `\\{quantifier}`")
            }
            RegexErrorKind::Repetition => f.write_str("`{` must be followed by a number; a literal one is `\\{`"),
            RegexErrorKind::RepetitionRange => f.write_str("the second number of the repetition is below the first"),
            RegexErrorKind::UnclosedRepetition => f.write_str("the repetition has no `}`"),
            RegexErrorKind::TrailingBackslash => f.write_str("`\\` stands at the end; a literal one is `\\\\`"),
            RegexErrorKind::Escape(letter) => write!(f, "`\\{letter}` is no escape sequence of Java"),
            RegexErrorKind::IncompleteEscape(expected) => write!(f, "the escape sequence must be {expected}"),
            RegexErrorKind::CharacterRange(first, last) => write!(f, "the range `{first}-{last}` is empty"),
            RegexErrorKind::GroupName => {
                f.write_str("a group name is ASCII letters and digits, begins with a letter and ends with `>`")
            }
            RegexErrorKind::GroupType(found) => write!(f, "`(?{found}` begins no group of Java"),
            RegexErrorKind::InlineFlag(found) => write!(f, "`{found}` is no inline flag"),
        }
    }
}

impl fmt::Display for RegexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "character {}: {}", self.position, self.kind)
    }
}

impl std::error::Error for RegexError {}

/// Checks one expression.
///
/// # Errors
/// The first thing in it that every Java version rejects.
pub(super) fn check(expression: &str) -> Result<(), RegexError> {
    let characters: Vec<char> = expression.chars().collect();
    let mut parser = Parser { characters: &characters, at: 0 };
    match parser.expression() {
        Ok(()) | Err(Stop::Unchecked) => Ok(()),
        Err(Stop::Wrong(at, kind)) => Err(RegexError { position: at + 1, kind }),
    }
}

/// Why parsing ends before the end of the expression.
enum Stop {
    /// The kind, and the index of its character.
    Wrong(usize, RegexErrorKind),
    /// The rest follows other rules (comments mode) and is not checked.
    Unchecked,
}

struct Parser<'a> {
    characters: &'a [char],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    fn take(&mut self, expected: char) -> bool {
        let is_next = self.peek() == Some(expected);
        self.at += usize::from(is_next);
        is_next
    }

    fn expression(&mut self) -> Result<(), Stop> {
        // Where each open group began.
        let mut groups = Vec::new();
        // Whether a quantifier may follow.
        let mut has_operand = false;
        while let Some(character) = self.peek() {
            let start = self.at;
            self.at += 1;
            match character {
                '(' => {
                    let is_group = self.group_head(start)?;
                    if is_group {
                        groups.push(start);
                    }
                    has_operand = false;
                }
                ')' => {
                    groups.pop().ok_or(Stop::Wrong(start, RegexErrorKind::UnmatchedParenthesis))?;
                    has_operand = true;
                }
                '|' => has_operand = false,
                '*' | '+' | '?' => {
                    if !has_operand {
                        return Err(Stop::Wrong(start, RegexErrorKind::DanglingQuantifier(character)));
                    }
                    self.quantifier_suffix();
                    has_operand = false;
                }
                // Java takes `{2}` without an operand, and after another quantifier.
                '{' => {
                    self.repetition(start)?;
                    self.quantifier_suffix();
                    has_operand = false;
                }
                '[' => {
                    self.class(start)?;
                    has_operand = true;
                }
                '\\' => has_operand |= self.escape(start, false)?,
                _ => has_operand = true,
            }
        }
        match groups.pop() {
            Some(start) => Err(Stop::Wrong(start, RegexErrorKind::UnclosedGroup)),
            None => Ok(()),
        }
    }

    /// Reads what stands between `(` and the content of the group. `false`: flags alone, which are no group.
    fn group_head(&mut self, start: usize) -> Result<bool, Stop> {
        if !self.take('?') {
            return Ok(true);
        }
        let at = self.at;
        match self.next() {
            None => Err(Stop::Wrong(start, RegexErrorKind::UnclosedGroup)),
            Some(':' | '=' | '!' | '>') => Ok(true),
            Some('<') => {
                if !self.take('=') && !self.take('!') {
                    self.group_name()?;
                }
                Ok(true)
            }
            Some(found @ ('$' | '@')) => Err(Stop::Wrong(at, RegexErrorKind::GroupType(found))),
            Some(_) => {
                self.at = at;
                self.flags(start)
            }
        }
    }

    /// Reads `name>`.
    fn group_name(&mut self) -> Result<(), Stop> {
        let at = self.at;
        let is_letter = self.peek().is_some_and(|first| first.is_ascii_alphabetic());
        while self.peek().is_some_and(|character| character.is_ascii_alphanumeric()) {
            self.at += 1;
        }
        if is_letter && self.take('>') { Ok(()) } else { Err(Stop::Wrong(at, RegexErrorKind::GroupName)) }
    }

    /// Reads `flags)` or `flags:`. `true`: a group follows.
    fn flags(&mut self, start: usize) -> Result<bool, Stop> {
        let mut is_on = true;
        loop {
            let at = self.at;
            match self.next() {
                Some('x') if is_on => return Err(Stop::Unchecked),
                Some('i' | 'm' | 's' | 'd' | 'u' | 'c' | 'x' | 'U') => {}
                Some('-') if is_on => is_on = false,
                Some(')') => return Ok(false),
                Some(':') => return Ok(true),
                Some(found) if at == start + 2 => return Err(Stop::Wrong(at, RegexErrorKind::GroupType(found))),
                Some(found) => return Err(Stop::Wrong(at, RegexErrorKind::InlineFlag(found))),
                None => return Err(Stop::Wrong(start, RegexErrorKind::UnclosedGroup)),
            }
        }
    }

    /// A quantifier may be lazy (`?`) or possessive (`+`).
    fn quantifier_suffix(&mut self) {
        let _ = self.take('?') || self.take('+');
    }

    /// Reads the rest of `{n}`, `{n,}` or `{n,m}`.
    fn repetition(&mut self, start: usize) -> Result<(), Stop> {
        let first = self.number().ok_or(Stop::Wrong(start, RegexErrorKind::Repetition))?;
        if self.take(',')
            && let Some(second) = self.number()
            && second < first
        {
            return Err(Stop::Wrong(start, RegexErrorKind::RepetitionRange));
        }
        if self.take('}') { Ok(()) } else { Err(Stop::Wrong(start, RegexErrorKind::UnclosedRepetition)) }
    }

    /// A decimal number, cut at the greatest one; `None`: there is no digit.
    fn number(&mut self) -> Option<u64> {
        let mut number = None;
        while let Some(digit) = self.peek().filter(char::is_ascii_digit) {
            let digit = u64::from(digit as u32 - '0' as u32);
            number = Some(number.unwrap_or(0_u64).saturating_mul(10).saturating_add(digit));
            self.at += 1;
        }
        number
    }

    /// Reads a character class behind its `[`, with the classes in it.
    fn class(&mut self, start: usize) -> Result<(), Stop> {
        // For each open class: where it began, and whether anything stands in it yet. A `]` before that is literal.
        let mut open = vec![(start, false)];
        self.take('^');
        while let Some((start, has_content)) = open.last_mut() {
            let at = self.at;
            match self.next() {
                None => return Err(Stop::Wrong(*start, RegexErrorKind::UnclosedClass)),
                Some('[') => {
                    self.take('^');
                    open.push((at, false));
                }
                Some(']') if *has_content => {
                    open.pop();
                    if let Some((_, has_content)) = open.last_mut() {
                        *has_content = true;
                    }
                }
                Some('\\') => *has_content |= self.escape(at, true)?,
                Some('&') => *has_content |= !self.take('&'),
                Some(character) => {
                    *has_content = true;
                    self.class_range(at, character)?;
                }
            }
        }
        Ok(())
    }

    /// Reads the rest of `a-z` behind its first character, if it is a range of two literal characters.
    fn class_range(&mut self, at: usize, first: char) -> Result<(), Stop> {
        let [Some('-'), Some(last)] = [0, 1].map(|ahead| self.characters.get(self.at + ahead).copied()) else {
            return Ok(());
        };
        if matches!(last, '[' | ']' | '\\' | '&') {
            return Ok(());
        }
        if last < first {
            return Err(Stop::Wrong(at, RegexErrorKind::CharacterRange(first, last)));
        }
        self.at += 2;
        Ok(())
    }

    /// Reads the rest of an escape sequence behind its backslash, which stands at `start`. `false`: an empty quotation,
    /// which stands for nothing.
    fn escape(&mut self, start: usize, is_in_class: bool) -> Result<bool, Stop> {
        let wrong = |kind| Err(Stop::Wrong(start, kind));
        let Some(kind) = self.next() else { return wrong(RegexErrorKind::TrailingBackslash) };
        match kind {
            'Q' => return Ok(self.quotation()),
            'd' | 'D' | 'h' | 'H' | 's' | 'S' | 'v' | 'V' | 'w' | 'W' => {}
            'a' | 'e' | 'f' | 'n' | 'r' | 't' => {}
            'A' | 'B' | 'G' | 'R' | 'X' | 'Z' | 'z' if !is_in_class => {}
            'b' if !is_in_class => {
                // `\b{g}`; other braces are a repetition.
                if let [Some('{'), Some('g'), Some('}')] =
                    [0, 1, 2].map(|ahead| self.characters.get(self.at + ahead).copied())
                {
                    self.at += 3;
                }
            }
            'k' if !is_in_class => {
                if !self.take('<') {
                    return wrong(RegexErrorKind::IncompleteEscape("`\\k<name>`"));
                }
                self.group_name()?;
            }
            '1'..='9' if !is_in_class => {}
            '0' => {
                let digit = self.peek().filter(|digit| digit.is_digit(8));
                digit.ok_or(Stop::Wrong(start, RegexErrorKind::IncompleteEscape("`\\0` and octal digits")))?;
            }
            'c' => {
                self.next().ok_or(Stop::Wrong(start, RegexErrorKind::IncompleteEscape("`\\c` and a character")))?;
            }
            'x' => {
                if self.take('{') {
                    return self.braced(start, "`\\xhh` or `\\x{h…h}`", |digit| digit.is_ascii_hexdigit());
                }
                self.hex_digits(2)
                    .ok_or(Stop::Wrong(start, RegexErrorKind::IncompleteEscape("`\\xhh` or `\\x{h…h}`")))?;
            }
            'u' => self.hex_digits(4).ok_or(Stop::Wrong(start, RegexErrorKind::IncompleteEscape("`\\uhhhh`")))?,
            'p' | 'P' => {
                let expected = if kind == 'p' { "`\\pX` or `\\p{Name}`" } else { "`\\PX` or `\\P{Name}`" };
                if self.take('{') {
                    return self.braced(start, expected, |_| true);
                }
                if self.next().is_none() {
                    return wrong(RegexErrorKind::IncompleteEscape(expected));
                }
            }
            'N' => {
                if !self.take('{') {
                    return wrong(RegexErrorKind::IncompleteEscape("`\\N{name}`"));
                }
                return self.braced(start, "`\\N{name}`", |_| true);
            }
            letter if letter.is_ascii_alphanumeric() => return wrong(RegexErrorKind::Escape(letter)),
            _ => {}
        }
        Ok(true)
    }

    /// Reads `…}` behind its `{`: at least one character, and only such.
    fn braced(&mut self, start: usize, expected: &'static str, is_part: fn(char) -> bool) -> Result<bool, Stop> {
        let at = self.at;
        while self.peek().is_some_and(|character| character != '}' && is_part(character)) {
            self.at += 1;
        }
        let has_content = self.at > at;
        if has_content && self.take('}') {
            Ok(true)
        } else {
            Err(Stop::Wrong(start, RegexErrorKind::IncompleteEscape(expected)))
        }
    }

    fn hex_digits(&mut self, count: usize) -> Option<()> {
        (0..count).try_for_each(|_| self.next().filter(char::is_ascii_hexdigit).map(drop))
    }

    /// Reads the rest of `\Q…\E`; without `\E` it ends with the expression. `false`: nothing stands in it.
    fn quotation(&mut self) -> bool {
        let at = self.at;
        while let Some(character) = self.next() {
            if character == '\\' && self.take('E') {
                return self.at > at + 2;
            }
        }
        self.at > at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `position: message` of the kind found; empty: there is none.
    fn found(expression: &str) -> String {
        check(expression).err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn expressions_that_java_compiles_are_accepted() {
        let valid = [
            "",
            "^(java|javax|jdk|sun|com/sun)/",
            "^com/example/shop/[^/]+$",
            ".*",
            "a||b|",
            "()",
            "(|a)*",
            "a*?b+?c??d*+e{2}f{2,}g{2,3}?h{1}+",
            "{2}a",
            "a{2}{3}",
            "a*{2}",
            "^*a$+",
            "a}b]c",
            "[]a]",
            "[^]a]",
            "[a-z&&[^aeiou]]",
            "[a-z&&[b]c]",
            "[a&&]",
            "[a-]",
            "[-a]",
            "[+--]",
            "[a-[b]]",
            "[(*+?{]",
            "[\\]\\[\\\\]",
            "[\\d\\p{Lu}\\x41-\\x5a]",
            "[a\\Q]\\E]",
            "\\Q(*[\\E+",
            "\\Q(",
            "\\Q\\Ea",
            "\\$\\.\\_\\-\\ö",
            "\\p{Alpha}\\pL\\P{InGreek}",
            "\\x41\\x{1F600}\\u00e4\\07\\cA",
            "(a)\\1\\9",
            "(?<name>a)\\k<name>",
            "(?:a)(?=a)(?!a)(?<=a)(?<!a)(?>a)",
            "(?i)a(?i-s:b)(?-x)c(?)d(?:)",
            "(?x) ( # a comment with a (\n )",
            "\\b{g}\\b{2}\\R\\X\\h\\H\\N{SPACE}",
            "größe/ß+",
        ];
        for expression in valid {
            assert_eq!(found(expression), "", "{expression}");
        }
    }

    #[test]
    fn expressions_that_java_rejects_are_rejected_at_the_position_of_the_problem() {
        let wrong = [
            ("(", "character 1: `(` is not closed"),
            ("a(b(c)", "character 2: `(` is not closed"),
            ("a)", "character 2: `)` closes no group"),
            ("(a))", "character 4: `)` closes"),
            ("*", "character 1: `*` repeats nothing"),
            ("ö(+a)", "character 3: `+` repeats nothing"),
            ("a|?", "character 3: `?` repeats nothing"),
            ("a**", "character 3: `*`"),
            ("a???", "character 4: `?`"),
            ("(?i)*", "character 5: `*`"),
            ("\\Q\\E*", "character 5: `*`"),
            ("a{", "character 2: `{` must be"),
            ("a{,5}", "character 2: `{` must be"),
            ("a{2", "character 2: the repetition has no"),
            ("a{2,1}", "character 2: the second number"),
            ("[", "character 1: `[` is not closed"),
            ("[]", "character 1: `[` is not closed"),
            ("[^]", "character 1: `[` is not closed"),
            ("[a[b]", "character 1: `[` is not closed"),
            ("a[b[c", "character 4: `[` is not closed"),
            ("[z-a]", "character 2: the range `z-a` is empty"),
            ("a\\", "character 2: `\\` stands at the end"),
            ("[\\", "character 2: `\\` stands at the end"),
            ("\\y", "character 1: `\\y` is no escape"),
            ("\\E", "character 1: `\\E` is no escape"),
            ("[\\b]", "character 2: `\\b` is no escape"),
            ("[\\1]", "character 2: `\\1` is no escape"),
            ("\\u12", "character 1: the escape sequence must be `\\uhhhh`"),
            ("\\x{}", "character 1: the escape sequence must be"),
            ("\\p", "character 1: the escape sequence must be `\\pX`"),
            ("\\p{Lu", "character 1: the escape sequence must be `\\pX`"),
            ("\\08", "character 1: the escape sequence must be `\\0`"),
            ("\\k1", "character 1: the escape sequence must be `\\k<name>`"),
            ("(?<1a>b)", "character 4: a group name"),
            ("(?<a_b>b)", "character 4: a group name"),
            ("(?P<a>b)", "character 3: `(?P` begins no group"),
            ("(?iq)", "character 4: `q` is no inline flag"),
            ("(?", "character 1: `(` is not closed"),
        ];
        for (expression, expected) in wrong {
            let found = found(expression);
            assert!(found.starts_with(expected), "{expression}: {found}");
        }
    }

    #[test]
    fn a_long_expression_of_any_characters_ends() {
        for part in ["(", "[", "[^", "[&&", "\\Q", "(?i:", "a{1}", "\\"] {
            let _ = check(&part.repeat(60_000));
        }
    }
}
