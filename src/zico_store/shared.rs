//! The state of one store: its connections, keys, marks and limits.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, ErrorCode};
use tracing::{error, info};

use super::adoption::OpeningLog;
use super::error::{StoreError, explain};
use super::file;
use super::keys::{AdmittedKeys, RkeyDigests};
use super::marks::{self, Marks};
use super::options::StoreOptions;
use tributary_memory::log_throttle::LogThrottle;
use tributary_system::locked_file::LockedFile;
use tributary_zico::agents::ZicoAgentError;

/// The connection that writes.
#[derive(Debug)]
struct Writer {
    connection: Connection,
    /// The disk may have failed since SQLite's log was last empty: in this process, or in the one before it.
    is_log_suspect: bool,
}

/// An error that may be one of the file.
pub(super) trait FileError: From<rusqlite::Error> {
    /// The error of the file, if it is one.
    fn file_error(&self) -> Option<&rusqlite::Error>;
}

impl FileError for rusqlite::Error {
    fn file_error(&self) -> Option<&rusqlite::Error> {
        Some(self)
    }
}

/// What the store and its writer thread share.
#[derive(Debug)]
pub(super) struct SharedAgentStore {
    /// The file's path, for error texts.
    pub(super) name: String,
    pub(super) listener: String,
    pub(super) options: StoreOptions,
    /// For log lines about a failing file.
    failing: LogThrottle,
    /// For log lines about a full table.
    pub(super) full: LogThrottle,
    pub(super) openings: OpeningLog,
    pub(super) admitted: Option<AdmittedKeys>,
    pub(super) digests: RkeyDigests,
    writer: Mutex<Writer>,
    /// Looks up sessions while a commit waits for the disk. `None`: the store is in memory.
    reader: Option<Mutex<Connection>>,
    pub(super) marks: Marks,
    /// The lock against other daemons.
    _claim: Option<LockedFile>,
}

impl SharedAgentStore {
    /// Opens the store of a listener.
    pub(super) fn open(options: &StoreOptions, listener: &str) -> Result<SharedAgentStore, StoreError> {
        let admitted = options.keys_file.as_deref().map(AdmittedKeys::read).transpose()?;
        let (name, claim, writer, reader) = match &options.state_dir {
            None => {
                info!(
                    listener,
                    "registered agents are kept in memory (no state_dir): agents up to 1.90.6 register once and write their id and \
                     key into their zorka.properties, so after a restart of the daemon they come back without a name, and with \
                     keys_file they are refused for good; set state_dir to keep them"
                );
                ("the agents in memory".to_owned(), None, file::in_memory()?, None)
            }
            Some(dir) => {
                let path = file::path(dir, listener);
                let claim = file::claim(&path)?;
                let writer = file::open(&path)?;
                let reader = file::open_again(&path)?;
                file::sync_names(&path)?;
                (path.display().to_string(), Some(claim), writer, Some(Mutex::new(reader)))
            }
        };
        let salt = file::salt(&writer).map_err(|error| StoreError::of(Path::new(&name), &error))?;
        Ok(SharedAgentStore {
            name,
            listener: listener.to_owned(),
            options: options.clone(),
            failing: LogThrottle::new(),
            full: LogThrottle::new(),
            openings: OpeningLog::new(listener),
            admitted,
            digests: RkeyDigests::new(salt),
            writer: Mutex::new(Writer { connection: writer, is_log_suspect: reader.is_some() }),
            reader,
            marks: Marks::default(),
            _claim: claim,
        })
    }

    /// Writes. The first time, and after an error of the disk, SQLite's log is first emptied into the database, both on the
    /// disk: after a failed sync, the disk may lack parts of the log that SQLite does not write again.
    pub(super) fn write<T, E: FileError>(&self, work: impl FnOnce(&mut Connection) -> Result<T, E>) -> Result<T, E> {
        let mut writer = self.writer();
        if writer.is_log_suspect {
            file::empty_log(&writer.connection)?;
            writer.is_log_suspect = false;
        }
        let result = work(&mut writer.connection);
        if let Some(error) = result.as_ref().err().and_then(FileError::file_error) {
            let is_locked =
                matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked));
            writer.is_log_suspect = self.reader.is_some() && !is_locked;
        }
        result
    }

    /// Reads.
    pub(super) fn read<T>(&self, work: impl FnOnce(&Connection) -> T) -> T {
        match &self.reader {
            Some(reader) => work(&reader.lock().unwrap_or_else(PoisonError::into_inner)),
            None => work(&self.writer().connection),
        }
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is no file.
    pub(super) fn is_in_memory(&self) -> bool {
        self.reader.is_none()
    }

    /// Whether an error says that the memory of a store without a file is full.
    pub(super) fn is_memory_full(&self, error: &rusqlite::Error) -> bool {
        self.is_in_memory() && error.sqlite_error_code() == Some(ErrorCode::DiskFull)
    }

    /// The answer to an agent when the file fails.
    pub(super) fn refusal(&self, error: &rusqlite::Error) -> ZicoAgentError {
        let why = format!("{}: {}", self.name, explain(error));
        let broken = self.broken(&why);
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                ZicoAgentError::Full("the store of agents is locked; send it again".to_owned())
            }
            Some(ErrorCode::DiskFull) if self.reader.is_none() => ZicoAgentError::Full(
                "as many agents are registered as fit into memory (configure state_dir for more)".to_owned(),
            ),
            _ => broken,
        }
    }

    /// The answer to an agent when the store cannot be used. The log says why.
    pub(super) fn broken(&self, why: &str) -> ZicoAgentError {
        if let Some(suppressed) = self.failing.permit() {
            error!(listener = self.listener, error = why, suppressed, "cannot use the store of registered agents");
        }
        ZicoAgentError::Broken
    }

    /// Writes the marks to the file. Marks that cannot be written are kept for the next time.
    pub(super) fn write_marks(&self) -> rusqlite::Result<()> {
        let marks = self.marks.take();
        if marks.is_empty() {
            return Ok(());
        }
        let result = self.write(|connection| marks::write(connection, &marks, self.options.max_agents));
        if result.is_err() {
            self.marks.restore(marks);
        }
        result
    }
}
