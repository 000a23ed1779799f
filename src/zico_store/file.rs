//! The file: how it is opened, its schema, and which files are refused.

use std::fs::{OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior, ffi, params};

use super::error::{DAMAGED, StoreError, explain};
use super::keys;
use super::network::network;
use super::options::IN_MEMORY_BYTES;
use tributary_system::directories;
use tributary_system::locked_file::LockedFile;
use tributary_zico::agents::session_digest;

/// The tables of registered agents. The sqlite3 shell's `.schema` shows them with these comments.
const AGENTS: &str = "\
-- Times are in milliseconds since 1970: datetime(seen / 1000, 'unixepoch').
CREATE TABLE agents (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid        TEXT NOT NULL UNIQUE,
    name        TEXT NOT NULL,      -- as sent by the agent, like app, env and attrs
    app         TEXT NOT NULL,
    env         TEXT NOT NULL,
    attrs       TEXT NOT NULL,      -- a JSON object
    rkey        BLOB NOT NULL,      -- of the registration key: PBKDF2-HMAC-SHA256 with the salt below
    address     TEXT NOT NULL,      -- of its latest registration
    registered  INTEGER NOT NULL,   -- its first registration
    seen        INTEGER NOT NULL,   -- its latest registration or request
    requests    INTEGER NOT NULL DEFAULT 0,
    bytes       INTEGER NOT NULL DEFAULT 0,
    events      INTEGER NOT NULL DEFAULT 0,
    losses      INTEGER NOT NULL DEFAULT 0,
    network     TEXT NOT NULL DEFAULT '', -- of its first registration: an IPv4 address or an IPv6 /64
    UNIQUE (rkey, name, app, env)
) STRICT;
CREATE INDEX agents_by_seen ON agents (seen);
CREATE TABLE keys (                 -- one per registration, that is, per start of a JVM
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    agent       INTEGER NOT NULL REFERENCES agents ON DELETE CASCADE,
    hash        BLOB NOT NULL,      -- SHA-256 of the key
    issued      INTEGER NOT NULL,
    used        INTEGER NOT NULL
) STRICT;
CREATE INDEX keys_by_agent ON keys (agent);
CREATE TABLE salt (bytes BLOB NOT NULL) STRICT;
";

/// The tables that schema 2 added or replaced.
const SCHEMA_2: &str = "\
CREATE INDEX agents_by_network ON agents (network, seen);
CREATE INDEX agents_unused ON agents (network, seen) WHERE requests = 0;
CREATE INDEX all_agents_unused ON agents (seen) WHERE requests = 0;
CREATE TABLE sessions (             -- at most one per key
    hash        BLOB PRIMARY KEY,   -- SHA-256 of the session's id
    nonce       BLOB NOT NULL,      -- the id is derived from it and the key
    key         INTEGER NOT NULL UNIQUE REFERENCES keys ON DELETE CASCADE,
    opened      INTEGER NOT NULL,
    used        INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_by_use ON sessions (used);
CREATE TABLE unregistered (         -- sessions of agents that do not register
    session     TEXT PRIMARY KEY,   -- the first 16 digits of the SHA-256 of the session's id
    address     TEXT NOT NULL,
    first       INTEGER NOT NULL,
    seen        INTEGER NOT NULL,
    requests    INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,
    events      INTEGER NOT NULL,
    losses      INTEGER NOT NULL
) STRICT;
CREATE INDEX unregistered_by_seen ON unregistered (seen);
CREATE TABLE networks (             -- numbers of agents, counted by the triggers below
    network     TEXT PRIMARY KEY,
    agents      INTEGER NOT NULL,
    unused      INTEGER NOT NULL    -- of them, those that never submitted
) STRICT, WITHOUT ROWID;
CREATE INDEX networks_by_unused ON networks (unused);
CREATE TABLE totals (agents INTEGER NOT NULL) STRICT;
CREATE TRIGGER agent_added AFTER INSERT ON agents BEGIN
    INSERT INTO networks VALUES (new.network, 1, new.requests = 0)
        ON CONFLICT (network) DO UPDATE SET agents = agents + 1, unused = unused + excluded.unused;
    UPDATE totals SET agents = agents + 1;
END;
CREATE TRIGGER agent_removed AFTER DELETE ON agents BEGIN
    UPDATE networks SET agents = agents - 1, unused = unused - (old.requests = 0) WHERE network = old.network;
    DELETE FROM networks WHERE network = old.network AND agents = 0;
    UPDATE totals SET agents = agents - 1;
END;
CREATE TRIGGER agent_used AFTER UPDATE OF requests ON agents WHEN old.requests = 0 AND new.requests > 0 BEGIN
    UPDATE networks SET unused = unused - 1 WHERE network = new.network;
END;
";

/// What earlier versions of schema 2 did not have, and do not need.
const ADDED: &str = "\
CREATE INDEX IF NOT EXISTS networks_by_agents ON networks (agents);
CREATE TABLE IF NOT EXISTS sent_packets (   -- what agents of Fressian may send again, since the latest stop
    host        TEXT NOT NULL,
    records     BLOB NOT NULL               -- a digest of 16 bytes for each
) STRICT;
CREATE INDEX IF NOT EXISTS sent_packets_by_host ON sent_packets (host);
CREATE TABLE IF NOT EXISTS sent_traces (
    host        TEXT PRIMARY KEY,
    traces      BLOB NOT NULL
) STRICT;
";

/// Marks a database as one of these: `Trib`.
const APPLICATION: i64 = 0x5472_6962;
/// The version of the schema.
const VERSION: i64 = 2;
/// How long a writer waits while another process locks the file.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a reader waits. Writers do not block readers, and requests wait on shared threads.
const READ_TIMEOUT: Duration = Duration::from_millis(20);

/// The file of a listener's agents.
pub fn path(state_dir: &Path, listener: &str) -> PathBuf {
    state_dir.join(format!("{listener}.db"))
}

/// Locks the agents in this file against other daemons, as long as the result lives.
pub(super) fn claim(path: &Path) -> Result<LockedFile, StoreError> {
    let unusable = |error: io::Error| StoreError::new(path, format!("its directory cannot be used: {error}"));
    if let Some(dir) = path.parent() {
        // SQLite syncs the names of its files, but not that of their directory.
        directories::create(dir).map_err(unusable)?;
    }
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    // SQLite gives its own files the mode of this one.
    drop(open().open(path).map_err(unusable)?);
    // Not the database itself: SQLite uses locks of its own there.
    let file = open().open(path.with_extension("lock")).map_err(unusable)?;
    LockedFile::lock(file).map_err(|error| match error {
        TryLockError::WouldBlock => {
            StoreError::new(path, "another tributary process uses it; give each its own state_dir")
        }
        TryLockError::Error(error) => unusable(error),
    })
}

/// Opens the file and checks it. A new file gets the schema, and one of an older schema is converted.
pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    let of = |error: rusqlite::Error| StoreError::of(path, &error);
    let mut connection = connect(path).map_err(of)?;
    let damage: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(of)?;
    if damage != "ok" {
        return Err(StoreError::new(path, format!("{DAMAGED} ({})", damage.replace('\n', "; "))));
    }
    match version(&connection).map_err(of)? {
        DatabaseKind::Nothing => {
            keep_log(path, &connection)?;
            create(&mut connection).map_err(of)?;
        }
        DatabaseKind::Ours(VERSION) => keep_log(path, &connection)?,
        DatabaseKind::Ours(1) => {
            keep_log(path, &connection)?;
            convert(&mut connection).map_err(of)?;
        }
        DatabaseKind::Ours(version) => {
            let what = format!("it has schema {version}, and this version of tributary knows {VERSION}");
            return Err(StoreError::new(path, format!("{what}; run the version that wrote it, or move it away")));
        }
        DatabaseKind::Foreign => {
            return Err(StoreError::new(path, "it is a database of another program; configure another state_dir"));
        }
    }
    connection.execute_batch(ADDED).map_err(of)?;
    Ok(connection)
}

/// Makes SQLite keep a log (WAL): readers are not blocked by a writer, and a commit is on the disk when it returns. Without a
/// log, a loss of power can undo a commit, because SQLite removes its journal without a sync of the directory.
fn keep_log(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    // If SQLite cannot change the mode, it returns the present one; if it fails to write the new one, it returns the new one, and
    // the error only when it is asked for a second row.
    let change = || {
        let mut statement = connection.prepare("PRAGMA journal_mode = WAL")?;
        let mut rows = statement.query([])?;
        let mode: String = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?.get(0)?;
        while rows.next()?.is_some() {}
        Ok(mode)
    };
    match change().map_err(|error| StoreError::of(path, &error))?.as_str() {
        "wal" => Ok(()),
        mode => Err(StoreError::new(path, format!("its journal mode is `{mode}` and cannot be changed to `wal`"))),
    }
}

/// A further connection to an open file, for reading.
pub(super) fn open_again(path: &Path) -> Result<Connection, StoreError> {
    let open = || {
        let connection = connect(path)?;
        connection.busy_timeout(READ_TIMEOUT)?;
        Ok(connection)
    };
    open().map_err(|error| StoreError::of(path, &error))
}

/// Forces the names of the file and of SQLite's log to the disk. SQLite does that too, and ignores errors of it.
pub(super) fn sync_names(path: &Path) -> Result<(), StoreError> {
    directories::sync_directory_of(path)
        .map_err(|error| StoreError::new(path, format!("its directory cannot be synced: {error}")))
}

/// Copies SQLite's log to the database, both on the disk, and makes the log empty.
pub(super) fn empty_log(connection: &Connection) -> rusqlite::Result<()> {
    let is_busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if is_busy {
        return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None));
    }
    Ok(())
}

/// Opens an existing file for reading, or also for writing.
pub(super) fn open_existing(path: &Path, is_written: bool) -> Result<Connection, StoreError> {
    let of = |error: rusqlite::Error| StoreError::of(path, &error);
    let access = if is_written { OpenFlags::SQLITE_OPEN_READ_WRITE } else { OpenFlags::SQLITE_OPEN_READ_ONLY };
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(of)?;
    connection.busy_timeout(WRITE_TIMEOUT).map_err(of)?;
    connection.pragma_update(None, "foreign_keys", true).map_err(of)?;
    match version(&connection).map_err(of)? {
        DatabaseKind::Ours(VERSION) => Ok(connection),
        DatabaseKind::Ours(1) => {
            let what = "it has schema 1; start the daemon once, which converts it";
            Err(StoreError::new(path, what))
        }
        _ => Err(StoreError::new(path, "it holds no agents that this version of tributary can read")),
    }
}

/// A database in memory.
pub(super) fn in_memory() -> Result<Connection, StoreError> {
    let open = || {
        let mut connection = Connection::open_in_memory()?;
        connection.pragma_update(None, "foreign_keys", true)?;
        let page_bytes: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        connection.pragma_update(None, "max_page_count", IN_MEMORY_BYTES as i64 / page_bytes.max(1))?;
        create(&mut connection)?;
        connection.execute_batch(ADDED)?;
        Ok(connection)
    };
    open().map_err(|error: rusqlite::Error| StoreError::new(Path::new("(memory)"), explain(&error)))
}

/// The salt of the file's digests.
pub(super) fn salt(connection: &Connection) -> rusqlite::Result<Vec<u8>> {
    connection.query_row("SELECT bytes FROM salt", [], |row| row.get(0))
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(WRITE_TIMEOUT)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// What a database is.
enum DatabaseKind {
    /// It is empty.
    Nothing,
    /// It has this version of our schema.
    Ours(i64),
    /// It belongs to another program.
    Foreign,
}

fn version(connection: &Connection) -> rusqlite::Result<DatabaseKind> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(match (number("application_id")?, number("user_version")?) {
        (APPLICATION, version) => DatabaseKind::Ours(version),
        (0, 0) if tables == 0 => DatabaseKind::Nothing,
        _ => DatabaseKind::Foreign,
    })
}

fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let salt = keys::random::<16>().map_err(|_| rusqlite::Error::InvalidQuery)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(AGENTS)?;
    transaction.execute_batch(SCHEMA_2)?;
    transaction.execute("INSERT INTO totals VALUES (0)", [])?;
    transaction.execute("INSERT INTO salt VALUES (?)", [salt.as_slice()])?;
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

/// Converts schema 1, which had session ids in plain text, to schema 2. Sessions of agents end: after a restart
/// the daemon makes every agent open its session again.
fn convert(connection: &mut Connection) -> rusqlite::Result<()> {
    // The old ids are overwritten in the file.
    connection.pragma_update(None, "secure_delete", true)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(
        "DROP TABLE sessions; DROP INDEX agents_by_address;
         ALTER TABLE agents ADD COLUMN network TEXT NOT NULL DEFAULT '';",
    )?;
    let text = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
    let addresses: Vec<String> =
        transaction.prepare("SELECT DISTINCT address FROM agents")?.query_map([], text)?.collect::<Result<_, _>>()?;
    for address in addresses {
        transaction
            .execute("UPDATE agents SET network = ?2 WHERE address = ?1", params![address, network(&address)])?;
    }
    transaction.execute_batch(SCHEMA_2)?;
    transaction.execute_batch(
        "INSERT INTO networks SELECT network, count(*), sum(requests = 0) FROM agents GROUP BY network;
         INSERT INTO totals SELECT count(*) FROM agents;",
    )?;
    let sessions: Vec<String> =
        transaction.prepare("SELECT session FROM strangers")?.query_map([], text)?.collect::<Result<_, _>>()?;
    for session in sessions {
        transaction.execute(
            "INSERT OR IGNORE INTO unregistered
             SELECT ?2, address, first, seen, requests, bytes, events, losses FROM strangers WHERE session = ?1",
            params![session, session_digest(&session)],
        )?;
    }
    transaction.execute_batch("DROP TABLE strangers;")?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}
