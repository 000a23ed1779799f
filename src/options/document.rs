//! The TOML documents of one configuration: the main file and those that it includes, as one table.
//!
//! Places in the documents are byte ranges of all their texts, one after the other, so that one range says which document
//! it is in. Texts take values from the environment: `${NAME}`, or `${NAME:-default}` where the variable may be unset or
//! empty. `$${` stands for `${`.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{ConfigErrors, Diagnostic, SourceSpan, printable};

/// The key of the main document that names further documents.
pub(crate) const INCLUDE: &str = "include";

/// At most this many lines with syntax errors are reported of a document.
const MOST_SYNTAX_ERRORS: usize = 5;

/// One document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceText {
    /// Its name in errors: the path, as the operator named it.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// The documents of a configuration, and what is wrong with them.
#[derive(Debug)]
pub(super) struct Documents {
    sources: Vec<SourceText>,
    /// Where the lines of each begin.
    lines: Vec<Vec<usize>>,
    diagnostics: Vec<Diagnostic>,
}

impl Documents {
    /// The documents, the main one first.
    pub(super) fn new(sources: &[SourceText]) -> Self {
        let lines = |source: &SourceText| {
            let ends = source.text.match_indices('\n').map(|(at, _)| at + 1);
            std::iter::once(0).chain(ends).collect()
        };
        let lines = sources.iter().map(lines).collect();
        Documents { sources: sources.to_vec(), lines, diagnostics: Vec::new() }
    }

    /// Parses all documents, which are the `sources` of [`Documents::new`], and joins them. Every key but those of tables
    /// stands in one document only.
    ///
    /// # Errors
    /// Every syntax error; without syntax errors, every key that two documents set, and every variable that is not set.
    pub(super) fn table<'a>(
        &mut self,
        sources: &'a [SourceText],
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<DeTable<'a>, ConfigErrors> {
        let (mut tables, mut start) = (Vec::new(), 0);
        for (index, source) in sources.iter().enumerate() {
            let (document, errors) = DeTable::parse_recoverable(&source.text);
            self.report_syntax(index, start, &errors);
            tables.push((document.into_inner(), start));
            start += source.text.len() + 1;
        }
        // After a syntax error the rest of the document can be misread, which would give false errors.
        self.check()?;
        let mut whole = DeTable::new();
        for (table, start) in tables {
            let mut table = moved(table, start);
            if let Some((name, _)) = table.get_key_value(INCLUDE).filter(|_| start > 0) {
                let message = format!("`{INCLUDE}` is allowed in the main file only");
                self.report(Some(name.span()), message, None);
            }
            table.remove(INCLUDE);
            self.join(&mut whole, table, "");
        }
        whole.iter_mut().for_each(|(_, value)| self.expand(value, &variable));
        self.check()?;
        Ok(whole)
    }

    /// Reports an error at a place, or of the whole configuration.
    pub(super) fn report(&mut self, span: Option<Range<usize>>, message: String, help: Option<String>) {
        let (message, help) = (printable(&message), help.map(|help| printable(&help)));
        let (source, place) = match span {
            Some(span) => {
                let (source, local) = self.source_of(span);
                (source, Some(self.place(source, local)))
            }
            None => (0, None),
        };
        let source = self.sources[source].name.clone();
        self.diagnostics.push(Diagnostic { source, place, message, help, notes: Vec::new() });
    }

    /// Whether nothing was reported.
    pub(super) fn is_valid(&self) -> bool {
        self.diagnostics.is_empty()
    }

    /// Adds lines to the error that was reported last.
    pub(super) fn note(&mut self, notes: Vec<String>) {
        if let Some(diagnostic) = self.diagnostics.last_mut() {
            diagnostic.notes = notes;
        }
    }

    /// Returns the reported errors, in the order of the documents.
    pub(super) fn check(&mut self) -> Result<(), ConfigErrors> {
        if self.diagnostics.is_empty() {
            return Ok(());
        }
        let mut diagnostics = std::mem::take(&mut self.diagnostics);
        let at = |source: &str| self.sources.iter().position(|other| other.name == source);
        diagnostics.sort_by_key(|one| (at(&one.source), one.place.as_ref().map(|place| (place.line, place.column))));
        Err(ConfigErrors { diagnostics })
    }

    /// The place of a range in the document of this number.
    fn place(&self, source: usize, range: Range<usize>) -> SourceSpan {
        let before = self.lines[source].partition_point(|start| *start <= range.start);
        SourceSpan::on_line(&self.sources[source].text, range, before.max(1))
    }

    /// The number of the document of a place, and the place in it.
    fn source_of(&self, span: Range<usize>) -> (usize, Range<usize>) {
        let mut start = 0;
        for (index, source) in self.sources.iter().enumerate() {
            let end = start + source.text.len();
            if span.start <= end {
                return (index, span.start - start..span.end.min(end) - start);
            }
            start = end + 1;
        }
        (0, 0..0)
    }

    fn report_syntax(&mut self, index: usize, start: usize, errors: &[toml::de::Error]) {
        let (mut last_line, mut lines) = (None, 0);
        for error in errors {
            // The parser can report several errors of one line; only the first is the cause.
            let span = error.span().unwrap_or(0..0);
            let line = self.place(index, span.clone()).line;
            if last_line.replace(line) == Some(line) {
                continue;
            }
            lines += 1;
            if lines > MOST_SYNTAX_ERRORS {
                self.note(vec!["further errors are not shown: is this a TOML file?".to_owned()]);
                return;
            }
            let message = format!("invalid TOML: {}", error.message());
            self.report(Some(span.start + start..span.end + start), message, None);
        }
    }

    /// Adds the keys of `more` to `table`, which is at `path`.
    fn join<'a>(&mut self, table: &mut DeTable<'a>, more: DeTable<'a>, path: &str) {
        for (name, value) in more {
            let key = name.get_ref().clone();
            let path = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
            let Some(known) = table.get_mut(&*key) else {
                table.insert(name, value);
                continue;
            };
            let span = known.span();
            match (known.get_mut(), value.into_inner()) {
                (DeValue::Table(known), DeValue::Table(more)) => self.join(known, more, &path),
                _ => {
                    let (source, local) = self.source_of(span);
                    let place = self.place(source, local);
                    let message = format!("`{path}` is set in two files");
                    let help = format!("also in {}, line {}", self.sources[source].name, place.line);
                    self.report(Some(name.span()), message, Some(help));
                }
            }
        }
    }

    /// Replaces variables in all texts of a value.
    fn expand(&mut self, value: &mut Spanned<DeValue<'_>>, variable: &impl Fn(&str) -> Option<String>) {
        let span = value.span();
        match value.get_mut() {
            DeValue::String(text) if text.contains("${") => match expanded(text, variable) {
                Ok(new) => *text = new.into(),
                Err((message, help)) => self.report(Some(span), message, Some(help)),
            },
            DeValue::Array(elements) => elements.iter_mut().for_each(|element| self.expand(element, variable)),
            DeValue::Table(table) => table.iter_mut().for_each(|(_, value)| self.expand(value, variable)),
            _ => {}
        }
    }
}

/// The table with its places moved by `start`.
fn moved(table: DeTable<'_>, start: usize) -> DeTable<'_> {
    let by = |span: Range<usize>| span.start + start..span.end + start;
    let of = |(name, value): (Spanned<_>, Spanned<_>)| {
        (Spanned::new(by(name.span()), name.into_inner()), moved_value(value, start))
    };
    table.into_iter().map(of).collect()
}

fn moved_value(value: Spanned<DeValue<'_>>, start: usize) -> Spanned<DeValue<'_>> {
    let span = value.span();
    let value = match value.into_inner() {
        DeValue::Table(table) => DeValue::Table(moved(table, start)),
        DeValue::Array(elements) => {
            DeValue::Array(elements.into_iter().map(|element| moved_value(element, start)).collect())
        }
        other => other,
    };
    Spanned::new(span.start + start..span.end + start, value)
}

/// The text with its variables replaced, or what is wrong with it and what to write instead. Values of variables are taken
/// as they are: they contain no further variables.
fn expanded(text: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<String, (String, String)> {
    let (mut new, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            new.push_str(&rest[..at - 1]);
            new.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        new.push_str(&rest[..at]);
        let Some((inside, after)) = rest[at + 2..].split_once('}') else {
            return Err(("`${` has no `}`".into(), "write ${NAME}, or $${ for the characters themselves".into()));
        };
        let (name, default) = inside.split_once(":-").map_or((inside, None), |(name, default)| (name, Some(default)));
        if !is_name(name) {
            let help = "write ${NAME}, with letters, digits and `_`, or $${ for the characters themselves";
            return Err((format!("`{name}` is not the name of a variable"), help.into()));
        }
        match (variable(name).filter(|value| default.is_none() || !value.is_empty()), default) {
            (Some(value), _) => new.push_str(&value),
            (None, Some(default)) => new.push_str(default),
            (None, None) => {
                let help = format!("set it, or write ${{{name}:-default}}");
                return Err((format!("the environment variable `{name}` is not set"), help));
            }
        }
        rest = after;
    }
    new.push_str(rest);
    Ok(new)
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Option<String> {
        match name {
            "HOST" => Some("10.0.0.1".to_owned()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${HOST}".to_owned()),
            "LATIN_1" => None,
            _ => None,
        }
    }

    fn source(name: &str, text: &str) -> SourceText {
        SourceText { name: name.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn variables_are_replaced_once_and_need_a_value() {
        let new = |text| expanded(text, &variable);
        assert_eq!(new("${HOST}:80 ${HOST}"), Ok("10.0.0.1:80 10.0.0.1".to_owned()));
        assert_eq!(new("a ${PORT:-80} ${EMPTY:-e} ${EMPTY}."), Ok("a 80 e .".to_owned()));
        assert_eq!(new("${NESTED}"), Ok("${HOST}".to_owned()));
        assert_eq!(new("$${HOST} $HOST $$"), Ok("${HOST} $HOST $$".to_owned()));
        assert_eq!(new("${UNSET:-}"), Ok(String::new()));
        for (text, why) in [
            ("${PORT}", "is not set"),
            ("${PORT", "has no `}`"),
            ("${}", "is not the name"),
            ("${A-B}", "is not the name"),
        ] {
            assert!(new(text).is_err_and(|(message, _)| message.contains(why)), "{text}");
        }
    }

    #[test]
    fn tables_of_two_documents_are_joined_and_errors_name_their_document() {
        let sources = [
            source("main.toml", "[limits]\nthreads = 2\n[sinks.a]\ntype = \"x\"\n"),
            source("b.toml", "[sinks.b]\ntype = \"${HOST}\"\n[limits]\nthreads = 3\n"),
            source("c.toml", "include = []\nbad = \"${PORT}\""),
        ];
        let mut documents = Documents::new(&sources);
        let errors = documents.table(&sources, variable).unwrap_err().to_string();
        assert_eq!(
            errors,
            "b.toml:4:1: `limits.threads` is set in two files\n  4 | threads = 3\n    | ^^^^^^^ also in main.toml, line 2\n\
             c.toml:1:1: `include` is allowed in the main file only\n  1 | include = []\n    | ^^^^^^^\n\
             c.toml:2:7: the environment variable `PORT` is not set\n  2 | bad = \"${PORT}\"\n    |       ^^^^^^^^^ set it, or write ${PORT:-default}"
        );
        let mut documents = Documents::new(&sources[..1]);
        assert_eq!(documents.table(&sources[..1], variable).map(|table| table.len()), Ok(2));
    }
}
