//! What waits in a spool, which process uses it, and why it takes no record.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// What waits in a spool: appended and not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpoolBacklog {
    /// The number of records.
    pub records: u64,
    /// The number of events.
    pub events: u64,
    /// The size of the segments on the disk, in bytes.
    pub bytes: u64,
}

/// Records that are dropped because there is no space for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// Their numbers.
    pub numbers: Range<u64>,
    /// Their number of events.
    pub events: u64,
}

/// Which process uses a spool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UsedBy {
    /// No process.
    Unused,
    /// The process with this id; 0 if it is in another container.
    Process(u32),
    /// The system does not report it.
    Unknown,
}

/// Why a record was not appended.
#[derive(Debug)]
pub enum AppendError {
    /// There is no space, and why.
    Full(String),
    /// The system's error. The same call can succeed later.
    Io(PathBuf, io::Error),
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AppendError::Full(why) => write!(f, "the spool is full: {why}"),
            AppendError::Io(path, error) => write!(f, "cannot write {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for AppendError {}
