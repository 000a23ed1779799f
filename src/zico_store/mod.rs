//! FLOOR 3 — what must be known again after a restart: registered agents, their keys and sessions.
//!
//! A file per listener, written by SQLite: what was answered to an agent was committed and synced before, and holds after
//! a kill or a loss of power. The sqlite3 shell opens it beside a running daemon, and so does `tributary agents`.
//!
//! Nobody who reads the file can be an agent. The keys that we issue are 128 random bits and stand in it as SHA-256: there
//! is nothing to guess. Registration keys are chosen by people, and stand in it under PBKDF2 with a salt of the file's own:
//! that makes guessing slow, and no weak key strong.

mod agents;
mod file;
mod keys;
mod marks;
mod options;
mod register;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rusqlite::{Connection, ErrorCode};
use tracing::error;

use crate::log_throttle::LogThrottle;
use crate::protocol::zico::agents::Refusal;

use keys::{AdmittedKeys, RkeyDigests};
use marks::Marks;

pub use agents::{Known, KnownAgent, KnownStranger, forget, list};
pub use options::StoreOptions;

/// The agents of one listener.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// What errors call it.
    name: String,
    options: StoreOptions,
    /// Says that the file fails.
    failing: LogThrottle,
    admitted: Option<AdmittedKeys>,
    digests: RkeyDigests,
    writer: Mutex<Connection>,
    /// Sessions are looked up beside a commit that waits for the disk. None: there is no disk.
    reader: Option<Mutex<Connection>>,
    marks: Marks,
    /// Nobody else serves these agents.
    _claim: Option<std::fs::File>,
}

/// Why a store cannot be used, or not now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it, and what can be done.
    pub what: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

impl std::error::Error for StoreError {}

impl StoreError {
    fn new(path: &Path, what: impl Into<String>) -> Self {
        StoreError { path: path.to_owned(), what: what.into() }
    }

    fn of(path: &Path, error: &rusqlite::Error) -> Self {
        StoreError::new(path, explain(error))
    }
}

impl Store {
    /// Opens the agents of the listener of this name, or begins anew where there are none.
    ///
    /// # Errors
    /// The file cannot be used: the error says which, why, and what to do. Likewise the file of keys.
    pub fn open(options: &StoreOptions, listener: &str) -> Result<Store, StoreError> {
        let admitted = options.keys_file.as_deref().map(AdmittedKeys::read).transpose()?;
        let (name, claim, writer, reader) = match &options.state_dir {
            None => ("the agents in memory".to_owned(), None, file::in_memory()?, None),
            Some(dir) => {
                let path = path(dir, listener);
                let claim = file::claim(&path)?;
                let writer = file::open(&path)?;
                (path.display().to_string(), Some(claim), writer, Some(Mutex::new(file::open_again(&path)?)))
            }
        };
        let salt = file::salt(&writer).map_err(|error| StoreError::of(Path::new(&name), &error))?;
        let shared = Arc::new(Shared {
            name,
            options: options.clone(),
            failing: LogThrottle::new(),
            admitted,
            digests: RkeyDigests::new(salt),
            writer: Mutex::new(writer),
            reader,
            marks: Marks::default(),
            _claim: claim,
        });
        let keeper = marks::keep(shared.clone()).map_err(|error| {
            StoreError::new(Path::new(&shared.name), format!("no thread can be started for it: {error}"))
        })?;
        Ok(Store { shared, keeper: Some(keeper) })
    }
}

impl Drop for Store {
    /// Writes what was counted.
    fn drop(&mut self) {
        self.shared.marks.stop();
        if let Some(keeper) = self.keeper.take() {
            // Had it panicked, there would be nothing left to write.
            let _ = keeper.join();
        }
    }
}

/// The file of a listener's agents.
pub fn path(state_dir: &Path, listener: &str) -> PathBuf {
    state_dir.join(format!("{listener}.db"))
}

impl Shared {
    fn writer(&self) -> MutexGuard<'_, Connection> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader(&self) -> MutexGuard<'_, Connection> {
        self.reader.as_ref().unwrap_or(&self.writer).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an agent is told when the file fails.
    fn failed(&self, error: &rusqlite::Error) -> Refusal {
        let why = format!("{}: {}", self.name, explain(error));
        if let Some(suppressed) = self.failing.permit() {
            error!(suppressed, "{why}");
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Refusal::Full(why),
            Some(ErrorCode::DiskFull) if self.reader.is_none() => Refusal::Full(
                "as many agents are registered as fit into memory (state_dir has room for more)".to_owned(),
            ),
            _ => Refusal::Broken(why),
        }
    }
}

/// What is wrong, and what can be done about it.
fn explain(error: &rusqlite::Error) -> String {
    let advice = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "it is locked by another process; is somebody writing to it in an open sqlite3 shell?"
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            "it is damaged; put a copy of it back, or move it away: agents register anew when their JVMs start"
        }
        Some(ErrorCode::NotADatabase) => "it is no database; move it away, or name another state_dir",
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            "it cannot be opened for writing; look at the owner and the mode of the file and its directory"
        }
        Some(ErrorCode::DiskFull) => "there is no room on its disk",
        Some(ErrorCode::SystemIoFailure) => "its disk fails",
        _ => "SQLite cannot go on",
    };
    format!("{advice} ({error})")
}

/// Does work that waits for a disk, so that the other tasks of this thread go on elsewhere meanwhile.
fn aside<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// A moment as it stands in the file: milliseconds since 1970.
fn millis(at: crate::event::UnixNanos) -> i64 {
    // Below 2^63 after the division.
    (at.0 / 1_000_000) as i64
}
