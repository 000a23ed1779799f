//! The input files of commands.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

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
