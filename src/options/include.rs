//! `include`: further files of a configuration.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::diagnostic::{ConfigErrors, Diagnostic, SourceSpan};
use super::document::{INCLUDE, SourceText};

/// The files that a configuration consists of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Those that were read, the main file first. Empty: the configuration was not read from a file.
    read: Vec<PathBuf>,
    /// The patterns of `include`, with the directory of the main file before them.
    patterns: Vec<String>,
}

impl Files {
    /// The main file. None: the configuration was not read from a file.
    pub fn main(&self) -> Option<&Path> {
        self.read.first().map(PathBuf::as_path)
    }

    /// The paths of the files that were read, the main file first.
    pub fn read(&self) -> &[PathBuf] {
        &self.read
    }

    /// The paths of all files that are there now: the main file, then the files of each pattern by name.
    pub fn paths(&self) -> Vec<PathBuf> {
        let included = self.patterns.iter().flat_map(|pattern| matches(pattern));
        self.main().map(Path::to_owned).into_iter().chain(included).collect()
    }
}

/// Reads a configuration's main file and the files that it includes. Patterns are relative to the directory of the main
/// file; `*` and `?` stand for any part and any character of a file name.
///
/// # Errors
/// A file cannot be read, or `include` is not a list of patterns. Syntax errors are left to the reader of the documents.
pub fn read_sources(path: &Path) -> Result<(Vec<SourceText>, Files), ConfigErrors> {
    let main = read(path).map_err(|why| error(&path.display().to_string(), None, why, None))?;
    let (document, syntax_errors) = DeTable::parse_recoverable(&main.text);
    let mut files = Files { read: vec![path.to_owned()], patterns: Vec::new() };
    let mut included = Vec::new();
    if let Some(found) = document.get_ref().get(INCLUDE).filter(|_| syntax_errors.is_empty()) {
        let at = |span: Range<usize>, message: String, help: Option<String>| {
            error(&main.name, Some(SourceSpan::of(&main.text, span)), message, help)
        };
        let DeValue::Array(patterns) = found.get_ref() else {
            let help = "write include = [\"conf.d/*.toml\"]";
            return Err(at(found.span(), format!("`{INCLUDE}` must be a list of paths"), Some(help.to_owned())));
        };
        for pattern in patterns.iter() {
            let Some(text) = pattern.get_ref().as_str().filter(|text| !text.is_empty()) else {
                return Err(at(pattern.span(), format!("an element of `{INCLUDE}` is not a path"), None));
            };
            let text = path.parent().unwrap_or(Path::new("")).join(text).display().to_string();
            if let Err(why) = glob::Pattern::new(&text) {
                return Err(at(pattern.span(), format!("an element of `{INCLUDE}` is not a pattern: {why}"), None));
            }
            let found = matches(&text);
            if found.is_empty() && !text.contains(['*', '?', '[']) {
                return Err(at(pattern.span(), format!("`{INCLUDE}`: there is no file {text}"), None));
            }
            for path in found {
                included.push(
                    read(&path)
                        .map_err(|why| at(pattern.span(), format!("`{INCLUDE}`: {} {why}", path.display()), None))?,
                );
                files.read.push(path);
            }
            files.patterns.push(text);
        }
    }
    let sources = [vec![main.clone()], included].concat();
    Ok((sources, files))
}

/// The files of a pattern, by name.
fn matches(pattern: &str) -> Vec<PathBuf> {
    glob::glob(pattern).into_iter().flatten().flatten().filter(|path| path.is_file()).collect()
}

fn read(path: &Path) -> Result<SourceText, String> {
    let unreadable = |why: &dyn fmt::Display| format!("cannot be read: {why}");
    let bytes = fs::read(path).map_err(|error| unreadable(&error))?;
    let text = String::from_utf8(bytes).map_err(|error| unreadable(&error))?;
    Ok(SourceText { name: path.display().to_string(), text })
}

fn error(source: &str, place: Option<SourceSpan>, message: String, help: Option<String>) -> ConfigErrors {
    let source = source.to_owned();
    ConfigErrors { diagnostics: vec![Diagnostic { source, place, message, help, notes: Vec::new() }] }
}
