//! The input files of commands.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{counted, say};
use tributary_stored::event_file::LineCounts;

/// An input file; `-` is stdin.
pub(super) struct Input {
    pub(super) path: PathBuf,
    /// The content, if its start was read already.
    pub(super) opened: Option<Box<dyn Read>>,
}

impl Input {
    pub(super) fn new(path: &Path) -> Self {
        Input { path: path.to_owned(), opened: None }
    }

    /// Opens the file. Content that was opened before is returned once.
    pub(super) fn open(&mut self) -> io::Result<Box<dyn Read>> {
        match self.opened.take() {
            Some(opened) => Ok(opened),
            None if self.path == Path::new("-") => Ok(Box::new(io::stdin())),
            None => Ok(Box::new(File::open(&self.path)?)),
        }
    }
}

/// Reports on stderr the lines of an event file that were skipped.
pub(super) fn report_skipped(name: &impl Display, lines: LineCounts) {
    if let Some(first) = lines.first_skipped {
        let skipped = counted(lines.skipped, "line");
        say(format_args!("{name}: {skipped} could not be read, the first of them line {first}"));
    }
}
