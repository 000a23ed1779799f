//! Values that are not shown: in the configuration itself, in a file, or in the environment.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;

use toml::de::DeValue;

use super::section::{Section, quoted, toml_text};
use super::setting::ValueKind;

/// A secret, and where it is.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// In the configuration.
    Text(String),
    /// In a file, without the white space around it.
    File(PathBuf),
    /// In a variable of the environment.
    Env(String),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Secret {
    /// The secret itself.
    ///
    /// # Errors
    /// The file cannot be read, or the variable is not set. The error names it.
    pub fn read(&self) -> io::Result<String> {
        let failed = |what: String, kind, why: &dyn fmt::Display| io::Error::new(kind, format!("{what}: {why}"));
        match self {
            Secret::Text(text) => Ok(text.clone()),
            Secret::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => Ok(text.trim().to_owned()),
                Err(error) => Err(failed(path.display().to_string(), error.kind(), &error)),
            },
            Secret::Env(name) => {
                let value = std::env::var_os(name).map(OsString::into_string);
                let what = || format!("the variable {name} of the environment");
                match value {
                    Some(Ok(text)) => Ok(text),
                    Some(Err(_)) => Err(failed(what(), io::ErrorKind::InvalidData, &"is not UTF-8")),
                    None => Err(failed(what(), io::ErrorKind::NotFound, &"is not set")),
                }
            }
        }
    }

    /// As it is shown: where it is, never what it is.
    pub(super) fn shown(&self) -> String {
        match self {
            Secret::Text(_) => toml_text("***"),
            Secret::File(path) => format!("{{ file = {} }}", toml_text(&path.display().to_string())),
            Secret::Env(name) => format!("{{ env = {} }}", toml_text(name)),
        }
    }

    /// The place that a table stands for; `None`: the value is another one.
    pub(super) fn elsewhere(value: &DeValue<'_>) -> Option<Secret> {
        Secret::of(value).filter(|secret| !matches!(secret, Secret::Text(_)))
    }

    fn of(value: &DeValue<'_>) -> Option<Secret> {
        if let Some(text) = value.as_str() {
            return Some(Secret::Text(text.to_owned()));
        }
        let DeValue::Table(table) = value else { return None };
        let [(key, place)] = table.iter().collect::<Vec<_>>()[..] else { return None };
        let place = place.get_ref().as_str().filter(|place| !place.is_empty())?;
        match key.get_ref().as_ref() {
            "file" => Some(Secret::File(place.into())),
            "env" => Some(Secret::Env(place.to_owned())),
            _ => None,
        }
    }
}

impl Section<'_> {
    /// A text without a default, `{ file = "…" }` or `{ env = "…" }`. The text is not shown if it is secret.
    pub fn optional_secret(&mut self, key: &str, is_secret: bool) -> Option<Secret> {
        let found = self.take(key);
        let secret = found.and_then(|found| {
            let secret = Secret::of(found.get_ref());
            if secret.is_none() {
                let help = format!("write {key} = \"…\", {{ file = \"…\" }} or {{ env = \"…\" }}");
                self.report(Some(found.span()), format!("`{key}` has no valid value"), Some(help));
            }
            secret
        });
        let shown = secret.as_ref().map(|secret| match secret {
            Secret::Text(text) if !is_secret => toml_text(text),
            secret => secret.shown(),
        });
        self.record(key, ValueKind::Text, shown);
        secret
    }

    /// An option that is none any more: an error that says what to write instead.
    pub fn removed(&mut self, key: &str, instead: &str) {
        if let Some(found) = self.take(key) {
            self.report(Some(found.span()), format!("`{key}` is no option any more"), Some(instead.to_owned()));
        }
    }

    /// A table of names and secrets; empty by default. `check` says why a name or a value is not valid.
    pub fn secrets(&mut self, key: &str, check: impl Fn(&str, &Secret) -> Result<(), String>) -> Vec<(String, Secret)> {
        let mut secrets = Vec::new();
        if let Some(found) = self.take(key) {
            let help = || {
                Some(format!(
                    "write {key} = {{ NAME = \"value\" }}, with {{ file = \"…\" }} or {{ env = \"…\" }} as value if it is secret"
                ))
            };
            match found.get_ref() {
                DeValue::Table(table) => {
                    let mut entries: Vec<_> = table.iter().collect();
                    entries.sort_by_key(|(name, _)| name.span().start);
                    for (name, value) in entries {
                        let name = name.get_ref().as_ref();
                        let secret = Secret::of(value.get_ref()).ok_or_else(|| "is no value".to_owned());
                        match secret.and_then(|secret| check(name, &secret).map(|()| secret)) {
                            Ok(secret) => secrets.push((name.to_owned(), secret)),
                            Err(why) => self.report(Some(value.span()), format!("`{key}`: `{name}` {why}"), help()),
                        }
                    }
                }
                _ => self.report(Some(found.span()), format!("`{key}` must be a table"), help()),
            }
        }
        let shown: Vec<_> =
            secrets.iter().map(|(name, secret)| format!("{} = {}", quoted(name), secret.shown())).collect();
        let shown = if shown.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", shown.join(", ")) };
        self.record(key, ValueKind::Names(Box::new(ValueKind::Text)), Some(shown));
        secrets
    }
}
