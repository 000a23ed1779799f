//! Errors of the store: which file, what is wrong, what to do.

use std::fmt;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Why a store cannot be used now, or at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it, and what to do.
    pub what: String,
}

impl StoreError {
    pub(super) fn new(path: &Path, what: impl Into<String>) -> Self {
        StoreError { path: path.to_owned(), what: what.into() }
    }

    pub(super) fn of(path: &Path, error: &rusqlite::Error) -> Self {
        StoreError::new(path, explain(error))
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

impl std::error::Error for StoreError {}

/// What an error of SQLite means, and what to do.
pub(super) fn explain(error: &rusqlite::Error) -> String {
    let advice = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "it is locked by another process; is an open sqlite3 shell writing to it?"
        }
        Some(ErrorCode::DatabaseCorrupt) => DAMAGED,
        Some(ErrorCode::NotADatabase) => "it is not a database; move it away, or configure another state_dir",
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            "it cannot be opened for writing; check owner and mode of the file and its directory"
        }
        Some(ErrorCode::DiskFull) => "its disk is full",
        Some(ErrorCode::SystemIoFailure) => "its disk fails",
        _ => "SQLite failed",
    };
    format!("{advice} ({error})")
}

/// The file is damaged.
pub(super) const DAMAGED: &str =
    "it is damaged; restore a copy, or move it away: agents register again when their JVMs start";
