//! A checked reader over one TOML table.
//!
//! A component reads each of its options from a [`Section`] by key and default. The section records every read, and from
//! these records it reports unknown keys, prints the effective configuration and describes all options, with their types,
//! bounds and sentences; so no second list of the options exists. An error does not stop the reader: the option gets its
//! default, and all errors are reported together.
//!
//! Sections know no component, so components of every layer can use them. The typed reads are in `value`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{ConfigErrors, nearest};
use super::document::{Documents, SourceText};
use super::setting::{Description, Setting, ValueKind};

/// A TOML table that is read, or a missing one: then every read returns its default.
#[derive(Debug)]
pub struct Section<'a> {
    table: Option<&'a DeTable<'a>>,
    /// The place of the table's name. Errors about the whole section point to it.
    span: Option<Range<usize>>,
    /// The `[header]` under which its options are printed; empty for the whole file.
    header: String,
    /// The prefix of its keys under that header: `string_cache.`, or empty.
    prefix: String,
    /// The file does not have this optional section. It is read to learn its options, and the result is not used.
    unset: bool,
    known: Vec<String>,
    others_accepted: bool,
    /// What the next option that is read means, and whether it is required.
    next: (&'static str, bool),
    /// Keys that do not belong here, each with what to write instead.
    misplaced: Cow<'static, [(String, String)]>,
    findings: &'a mut Findings,
}

/// Errors and options found in the documents.
#[derive(Debug)]
struct Findings {
    documents: Documents,
    purpose: Purpose,
    description: Description,
}

/// Why options are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// For the values of a file.
    Values,
    /// For the defaults: nothing is recorded.
    Defaults,
    /// For what the options are: sections that are not set have their defaults, and lists of tables one element.
    Description,
}

impl Findings {
    fn new(documents: Documents, purpose: Purpose) -> Findings {
        Findings { documents, purpose, description: Description::default() }
    }

    fn root<'a>(&'a mut self, table: Option<&'a DeTable<'a>>) -> Section<'a> {
        Section {
            table,
            span: None,
            header: String::new(),
            prefix: String::new(),
            unset: table.is_none(),
            known: Vec::new(),
            others_accepted: false,
            next: ("", false),
            misplaced: Cow::Borrowed(&[]),
            findings: self,
        }
    }
}

/// Parses the documents of a configuration, adds the tables of `builtin` that they do not have, and reads them with `read`.
/// `variable` is the environment; `added` gets the names of the tables that were added.
///
/// # Errors
/// Those of `Documents::table`; without them, every error that `read` and its sections reported.
pub fn read_documents<T>(
    sources: &[SourceText],
    builtin: &'static str,
    variable: impl Fn(&str) -> Option<String>,
    added: &mut Vec<&'static str>,
    read: impl FnOnce(&mut Section<'_>) -> T,
) -> Result<(T, Vec<Setting>), ConfigErrors> {
    let mut documents = Documents::new(sources);
    let mut table = documents.table(sources, variable)?;
    for (name, value) in DeTable::parse_recoverable(builtin).0.into_inner() {
        if !table.contains_key(name.get_ref().as_ref()) {
            if let Cow::Borrowed(name) = *name.get_ref() {
                added.push(name);
            }
            table.insert(name, value);
        }
    }
    let mut findings = Findings::new(documents, Purpose::Values);
    let value = findings.root(Some(&table)).read(read);
    findings.documents.check()?;
    Ok((value, findings.description.settings))
}

/// What `read` returns for a section without any key: the defaults.
pub fn defaults<T>(read: impl FnOnce(&mut Section<'_>) -> T) -> T {
    read(&mut Findings::new(Documents::new(&[]), Purpose::Defaults).root(None))
}

/// Every option that `read` reads from the document `text`, whatever is wrong with it, and from sections that it does not
/// have.
pub fn describe<T>(text: &str, read: impl FnOnce(&mut Section<'_>) -> T) -> Description {
    let source = SourceText { name: String::new(), text: text.to_owned() };
    let table = DeTable::parse_recoverable(text).0.into_inner();
    let mut findings = Findings::new(Documents::new(&[source]), Purpose::Description);
    findings.root(Some(&table)).read(read);
    findings.description
}

/// Reads one document, without an environment.
pub fn read_document<T>(
    name: &str,
    text: &str,
    builtin: &'static str,
    read: impl FnOnce(&mut Section<'_>) -> T,
) -> Result<(T, Vec<Setting>), ConfigErrors> {
    let source = SourceText { name: name.to_owned(), text: text.to_owned() };
    read_documents(&[source], builtin, |_| None, &mut Vec::new(), read)
}

impl<'a> Section<'a> {
    /// Says what the next option means that is read.
    pub fn about(&mut self, sentence: &'static str) -> &mut Self {
        self.next = (sentence, false);
        self
    }

    /// Says that the next option that is read must be set. The reader of a list reports that it is missing itself.
    pub fn required(&mut self) -> &mut Self {
        self.next.1 = true;
        self
    }

    /// Reads a group of options that stand in this table, beside others. `_group` is no key.
    pub fn flat<T>(&mut self, _group: &str, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let value = read(self);
        self.next = ("", false);
        value
    }

    /// What is no option: `value`.
    pub fn no_option<T>(&mut self, _field: &str, value: T) -> T {
        self.next = ("", false);
        value
    }

    /// Reads the sub-table `key`, written as `[header]`, inline table or dotted keys. All its options have their defaults
    /// if it is missing.
    pub fn section<T>(&mut self, key: &str, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let found = self.table_of(key);
        self.record_table(key);
        self.child(key, found, self.unset).read(read)
    }

    /// Reads the sub-table `key` if there is one.
    pub fn optional_section<T>(&mut self, key: &str, read: impl FnOnce(&mut Section<'_>) -> T) -> Option<T> {
        let found = self.table_of(key);
        self.record_table(key);
        let value = self.child(key, found.clone(), found.is_none()).read(read);
        found.map(|_| value)
    }

    /// Reads every sub-table of the table `key`, in the order of the file. The operator chooses their names. An empty
    /// table is an error.
    pub fn named_sections<T>(&mut self, key: &str, mut read: impl FnMut(&str, &mut Section<'_>) -> T) -> Vec<T> {
        let found = self.table_of(key);
        let mut parent = self.child(key, found, self.unset);
        // The table is sorted by name; the spans have the order of the file.
        let mut names: Vec<_> = parent.table.into_iter().flatten().map(|(name, _)| name).collect();
        names.sort_by_key(|name| name.span().start);
        if parent.table.is_some() && names.is_empty() {
            let help = format!("write [{key}.NAME], or remove [{key}] to use the built-in {key}");
            parent.error_at_name(format!("[{key}] is empty"), Some(help));
        }
        let mut values = Vec::new();
        for name in names {
            if let Some(found) = parent.table_of(name.get_ref()) {
                let mut child = parent.child(name.get_ref(), Some(found), false);
                child.header = join(&child.header, &child.prefix);
                child.prefix.clear();
                values.push(child.read(|section| read(name.get_ref(), section)));
            }
        }
        values
    }

    /// Reads the list of tables `key`, or if it is missing the list in the document `default`. None: it is not a list; the
    /// error shows `example`.
    pub fn tables<T>(
        &mut self,
        key: &str,
        default: &'static str,
        example: &str,
        mut read: impl FnMut(&mut Section<'_>) -> T,
    ) -> Option<Vec<T>> {
        let builtin = DeTable::parse_recoverable(default).0.into_inner();
        let found = match self.take(key) {
            Some(found) => Some((found.get_ref(), found.span())),
            None => builtin.get(key).map(|value| (value.get_ref(), 0..0)),
        };
        let (mut values, mut printed) = (Vec::new(), Vec::new());
        let elements = match &found {
            Some((DeValue::Array(elements), _)) => elements.iter().collect(),
            Some((other, span)) => {
                let message = format!("`{key}` must be a list of tables, not {}", article(other.type_str()));
                self.report(Some(span.clone()), message, Some(format!("for example {}", example.trim())));
                return None;
            }
            None => Vec::new(),
        };
        for element in elements {
            let DeValue::Table(table) = element.get_ref() else {
                let what = article(element.get_ref().type_str());
                self.report(Some(element.span()), format!("an element of `{key}` must be a table, not {what}"), None);
                continue;
            };
            let first = self.findings.description.settings.len();
            values.push(self.child(key, Some((table, element.span())), self.unset).read(&mut read));
            // The options of an element are printed as one value.
            let settings = self.findings.description.settings.split_off(first);
            let prefix = format!("{}{}.", self.prefix, quoted(key));
            let pairs = settings.iter().filter_map(|setting| {
                let value = setting.value.as_ref()?;
                Some(format!("{} = {value}", setting.key.strip_prefix(&prefix).unwrap_or(&setting.key)))
            });
            printed.push(format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", ")));
        }
        let mut kind = ValueKind::Tables(Vec::new());
        if self.findings.purpose == Purpose::Description {
            let first = self.findings.description.settings.len();
            self.child(key, None, true).read(&mut read);
            let mut settings = self.findings.description.settings.split_off(first);
            let prefix = format!("{}{}.", self.prefix, quoted(key));
            for setting in &mut settings {
                setting.key = setting.key.strip_prefix(&prefix).unwrap_or(&setting.key).to_owned();
            }
            kind = ValueKind::Tables(settings);
        }
        self.record(key, kind, Some(format!("[{}]", printed.join(", "))));
        Some(values)
    }

    /// Reports that the value of `key` is invalid or missing. `help` says what to write.
    pub fn error(&mut self, key: &str, message: impl Into<String>, help: Option<String>) {
        let span = self.table.and_then(|table| table.get(key)).map(Spanned::span);
        self.report(span.or(self.span.clone()), message.into(), help);
    }

    /// Reports that the section's name, or the whole section, is invalid. `help` says what to write.
    pub fn error_at_name(&mut self, message: impl Into<String>, help: Option<String>) {
        self.report(self.span.clone(), message.into(), help);
    }

    /// Reports that the value of `key` in the table at `path` below this section is invalid.
    pub fn error_below(&mut self, path: &[&str], key: &str, message: String, help: &str) {
        let below = |table: &'a DeTable<'a>, name: &&str| match table.get(*name).map(Spanned::get_ref) {
            Some(DeValue::Table(table)) => Some(table),
            _ => None,
        };
        let table = self.table.and_then(|table| path.iter().try_fold(table, below));
        let span = table.and_then(|table| table.get(key)).map(Spanned::span);
        self.report(span, message, Some(help.to_owned()));
    }

    /// Reports that the value of `key` in the sub-table `section`, which was read before, does not fit the values in
    /// `notes`, one line each. Does nothing if there are other errors: options with errors have their defaults, so this
    /// error could be false.
    pub fn error_together(&mut self, section: &str, key: &str, message: String, help: String, notes: Vec<String>) {
        if !self.findings.documents.is_valid() {
            return;
        }
        let table = self.table.and_then(|table| table.get(section));
        let span = match table.map(Spanned::get_ref) {
            Some(DeValue::Table(table)) => table.get(key).map(Spanned::span),
            _ => None,
        };
        self.report(span, message, Some(help));
        self.findings.documents.note(notes);
    }

    /// Whether it has no key.
    pub fn is_empty(&self) -> bool {
        self.table.is_none_or(|table| table.is_empty())
    }

    /// Accepts keys that no read has asked for. For a section of an unknown type.
    pub fn accept_other_keys(&mut self) {
        self.others_accepted = true;
    }

    /// Names keys that do not belong in this section, for errors: each with what to write instead.
    pub fn explain_keys(&mut self, misplaced: impl Into<Cow<'static, [(String, String)]>>) {
        self.misplaced = misplaced.into();
    }

    /// The name of the section in errors: `[listeners.spans]`.
    pub fn title(&self) -> String {
        match join(&self.header, &self.prefix) {
            path if path.is_empty() => "the file".to_owned(),
            path => format!("[{path}]"),
        }
    }

    /// The place of a key that differs from `key` by a typing error. It counts as known then.
    pub(super) fn misspelt(&mut self, key: &str) -> Option<Range<usize>> {
        let names = self.table.into_iter().flatten().map(|(name, _)| name);
        let unknown = names.filter(|name| !self.known.iter().any(|known| known == name.get_ref()));
        let found = unknown.into_iter().find(|name| nearest(name.get_ref(), std::iter::once(key)).is_some())?;
        self.known.push(found.get_ref().to_string());
        Some(found.span())
    }

    /// Whether the file has the key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// The value of `key`, which does not count as read.
    pub(super) fn peek(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.and_then(|table| table.get(key))
    }

    /// The value of `key`. The key counts as known from now on.
    pub(super) fn take(&mut self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.known.push(key.to_owned());
        self.table.and_then(|table| table.get(key))
    }

    /// Records an option and its effective value, as TOML.
    pub(super) fn record(&mut self, key: &str, kind: ValueKind, value: Option<String>) {
        let (sentence, is_required) = std::mem::take(&mut self.next);
        if self.findings.purpose == Purpose::Defaults {
            return;
        }
        let value = if self.unset && self.findings.purpose == Purpose::Values { None } else { value };
        let (header, key) = (self.header.clone(), format!("{}{}", self.prefix, quoted(key)));
        self.findings.description.settings.push(Setting { header, key, value, kind, sentence, is_required });
    }

    /// Records what a table means.
    fn record_table(&mut self, key: &str) {
        let (sentence, _) = std::mem::take(&mut self.next);
        if self.findings.purpose == Purpose::Description && !sentence.is_empty() {
            let path = join(&join(&self.header, &self.prefix), &quoted(key));
            self.findings.description.tables.push((path, sentence));
        }
    }

    pub(super) fn report(&mut self, span: Option<Range<usize>>, message: String, help: Option<String>) {
        if !self.unset {
            self.findings.documents.report(span, message, help);
        }
    }

    /// Runs a reader, then reports the keys that it has not read.
    fn read<T>(mut self, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let value = read(&mut self);
        if !self.others_accepted {
            self.report_unknown_keys();
        }
        value
    }

    fn report_unknown_keys(&mut self) {
        let unknown: Vec<_> = {
            let known: HashSet<&str> = self.known.iter().map(String::as_str).collect();
            let keys = self.table.into_iter().flatten().map(|(key, _)| key);
            keys.filter(|key| !known.contains(key.get_ref().as_ref())).collect()
        };
        for key in unknown {
            let name = key.get_ref().as_ref();
            let misplaced = self.misplaced.iter().find(|(key, _)| key == name).map(|(_, help)| help.clone());
            let help = match nearest(name, self.known.iter().map(String::as_str)) {
                _ if misplaced.is_some() => misplaced,
                Some(near) => Some(format!("did you mean `{near}`?")),
                None if self.known.len() <= 8 => Some(format!("allowed keys: {}", self.known.join(", "))),
                None => None,
            };
            self.report(Some(key.span()), format!("unknown key `{name}` in {}", self.title()), help);
        }
    }

    /// The sub-table `key` and the place of its name.
    fn table_of(&mut self, key: &str) -> Option<(&'a DeTable<'a>, Range<usize>)> {
        let value = self.take(key)?;
        match value.get_ref() {
            DeValue::Table(table) => {
                let name = self.table.and_then(|table| table.get_key_value(key)).map(|(name, _)| name.span());
                Some((table, name.unwrap_or(value.span())))
            }
            other => {
                let header = join(&join(&self.header, &self.prefix), &quoted(key));
                let message = format!("`{key}` must be a table, not {}", article(other.type_str()));
                self.report(Some(value.span()), message, Some(format!("for example [{header}]")));
                None
            }
        }
    }

    fn child<'b>(&'b mut self, key: &str, found: Option<(&'b DeTable<'b>, Range<usize>)>, unset: bool) -> Section<'b> {
        let (table, span) = found.unzip();
        let (header, prefix) = match self.header.as_str() {
            "" => (quoted(key), String::new()),
            header => (header.to_owned(), format!("{}{}.", self.prefix, quoted(key))),
        };
        Section {
            table,
            span: span.or(self.span.clone()),
            header,
            prefix,
            unset: unset || self.unset,
            known: Vec::new(),
            others_accepted: false,
            next: ("", false),
            misplaced: Cow::Borrowed(&[]),
            findings: self.findings,
        }
    }
}

/// Settings as a TOML document, those without a header first. A setting without a value becomes a comment.
pub fn render(settings: &[Setting]) -> String {
    let mut text = String::new();
    let mut header = "";
    for setting in settings {
        if setting.header != header {
            header = &setting.header;
            let gap = if text.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{gap}[{header}]\n"));
        }
        match &setting.value {
            Some(value) => text.push_str(&format!("{} = {value}\n", setting.key)),
            None => text.push_str(&format!("# {} is not set\n", setting.key)),
        }
    }
    text
}

/// A noun with its article.
pub(super) fn article(noun: &str) -> String {
    let article = if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {noun}")
}

/// A text as TOML that reads as the same text: see [`super::document`] for `$${`.
pub(super) fn toml_text(text: &str) -> String {
    toml::Value::from(text.replace("${", "$${")).to_string()
}

/// A key as TOML.
pub(super) fn quoted(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if bare { key.to_owned() } else { toml::Value::from(key).to_string() }
}

/// A header and the path below it, as one dotted path.
pub(super) fn join(header: &str, below: &str) -> String {
    match (header, below.trim_end_matches('.')) {
        (header, "") => header.to_owned(),
        ("", below) => below.to_owned(),
        (header, below) => format!("{header}.{below}"),
    }
}
