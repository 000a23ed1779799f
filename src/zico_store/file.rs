//! The file: how it is opened, what is in it, and what is refused.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::keys;
use super::options::IN_MEMORY_BYTES;
use super::{StoreError, explain};

/// What is in the file. The shell's `.schema` shows it with these comments.
const SCHEMA: &str = "\
-- Times are in milliseconds since 1970: datetime(seen / 1000, 'unixepoch').
CREATE TABLE agents (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid        TEXT NOT NULL UNIQUE,
    name        TEXT NOT NULL,      -- as the agent says; so are app, env and attrs
    app         TEXT NOT NULL,
    env         TEXT NOT NULL,
    attrs       TEXT NOT NULL,      -- a JSON object
    rkey        BLOB NOT NULL,      -- of the registration key: PBKDF2-HMAC-SHA256 with the salt below
    address     TEXT NOT NULL,      -- where it registered last
    registered  INTEGER NOT NULL,   -- when it did for the first time
    seen        INTEGER NOT NULL,   -- when it was last heard of
    requests    INTEGER NOT NULL DEFAULT 0,
    bytes       INTEGER NOT NULL DEFAULT 0,
    events      INTEGER NOT NULL DEFAULT 0,
    losses      INTEGER NOT NULL DEFAULT 0,
    UNIQUE (rkey, name, app, env)
) STRICT;
CREATE INDEX agents_by_address ON agents (address);
CREATE INDEX agents_by_seen ON agents (seen);
CREATE TABLE keys (                 -- one per registration: per start of a JVM
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    agent       INTEGER NOT NULL REFERENCES agents ON DELETE CASCADE,
    hash        BLOB NOT NULL,      -- SHA-256 of the key
    issued      INTEGER NOT NULL,
    used        INTEGER NOT NULL
) STRICT;
CREATE INDEX keys_by_agent ON keys (agent);
CREATE TABLE sessions (             -- at most one per key
    uuid        TEXT PRIMARY KEY,
    key         INTEGER NOT NULL UNIQUE REFERENCES keys ON DELETE CASCADE,
    opened      INTEGER NOT NULL,
    used        INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_by_use ON sessions (used);
CREATE TABLE strangers (            -- sessions of agents that do not register
    session     TEXT PRIMARY KEY,
    address     TEXT NOT NULL,
    first       INTEGER NOT NULL,
    seen        INTEGER NOT NULL,
    requests    INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,
    events      INTEGER NOT NULL,
    losses      INTEGER NOT NULL
) STRICT;
CREATE INDEX strangers_by_seen ON strangers (seen);
CREATE TABLE salt (bytes BLOB NOT NULL) STRICT;
";

/// Says that a database is one of these: `Trib`.
const APPLICATION: i64 = 0x5472_6962;
/// Which `SCHEMA` it has.
const VERSION: i64 = 1;
/// How long it may be locked by somebody else, when it is written.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same when it is read, which no writer hinders: requests wait for that on the threads of everybody.
const READING_PATIENCE: Duration = Duration::from_millis(20);

/// Makes sure that no other daemon serves the agents in this file, for as long as the answer lives.
pub(super) fn claim(path: &Path) -> Result<File, StoreError> {
    let unusable = |error: io::Error| StoreError::new(path, format!("its directory cannot be used: {error}"));
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unusable)?;
    }
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    // SQLite gives its own files the mode of this one.
    drop(open().open(path).map_err(unusable)?);
    // Not the database itself: SQLite has locks of its own there.
    let file = open().open(path.with_extension("lock")).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(StoreError::new(path, "another tributary has it; give each its own state_dir"))
        }
        Err(TryLockError::Error(error)) => Err(unusable(error)),
    }
}

/// Opens the file, makes what should be in it if it is new, and looks through it.
pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    let of = |error: rusqlite::Error| StoreError::of(path, &error);
    let mut connection = connect(path).map_err(of)?;
    let damage: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(of)?;
    if damage != "ok" {
        let what = "it is damaged; put a copy of it back, or move it away: agents register anew when their JVMs start";
        return Err(StoreError::new(path, format!("{what} ({})", damage.replace('\n', "; "))));
    }
    match version(&connection).map_err(of)? {
        Found::Nothing => {
            // Readers beside a writer; a commit is on the disk when it returns.
            connection.pragma_update(None, "journal_mode", "WAL").map_err(of)?;
            create(&mut connection).map_err(of)?;
        }
        Found::Ours(VERSION) => {}
        Found::Ours(version) => {
            let what = format!("it has schema {version}, and this version of tributary knows {VERSION}");
            return Err(StoreError::new(path, format!("{what}; run the version that wrote it, or move it away")));
        }
        Found::Foreign => {
            return Err(StoreError::new(path, "it is a database of another program; name another state_dir"));
        }
    }
    Ok(connection)
}

/// A further connection to a file that is open, for reading.
pub(super) fn open_again(path: &Path) -> Result<Connection, StoreError> {
    let open = || {
        let connection = connect(path)?;
        connection.busy_timeout(READING_PATIENCE)?;
        Ok(connection)
    };
    open().map_err(|error| StoreError::of(path, &error))
}

/// A file that must be there, for looking at it and no more, or for writing, too.
pub(super) fn open_existing(path: &Path, is_written: bool) -> Result<Connection, StoreError> {
    let of = |error: rusqlite::Error| StoreError::of(path, &error);
    let access = if is_written { OpenFlags::SQLITE_OPEN_READ_WRITE } else { OpenFlags::SQLITE_OPEN_READ_ONLY };
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(of)?;
    connection.busy_timeout(PATIENCE).map_err(of)?;
    connection.pragma_update(None, "foreign_keys", true).map_err(of)?;
    match version(&connection).map_err(of)? {
        Found::Ours(VERSION) => Ok(connection),
        _ => Err(StoreError::new(path, "it holds no agents that this version of tributary can read")),
    }
}

/// A database that ends with the process.
pub(super) fn in_memory() -> Result<Connection, StoreError> {
    let open = || {
        let mut connection = Connection::open_in_memory()?;
        connection.pragma_update(None, "foreign_keys", true)?;
        let page_bytes: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        connection.pragma_update(None, "max_page_count", IN_MEMORY_BYTES as i64 / page_bytes.max(1))?;
        create(&mut connection)?;
        Ok(connection)
    };
    open().map_err(|error: rusqlite::Error| StoreError::new(Path::new("(memory)"), explain(&error)))
}

/// The salt that the file's digests were made with.
pub(super) fn salt(connection: &Connection) -> rusqlite::Result<Vec<u8>> {
    connection.query_row("SELECT bytes FROM salt", [], |row| row.get(0))
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

enum Found {
    Nothing,
    Ours(i64),
    Foreign,
}

fn version(connection: &Connection) -> rusqlite::Result<Found> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(match (number("application_id")?, number("user_version")?) {
        (APPLICATION, version) => Found::Ours(version),
        (0, 0) if tables == 0 => Found::Nothing,
        _ => Found::Foreign,
    })
}

fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let salt = keys::random::<16>().map_err(|_| rusqlite::Error::InvalidQuery)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(SCHEMA)?;
    transaction.execute("INSERT INTO salt VALUES (?)", [salt.as_slice()])?;
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}
