//! The operator's commands: list the agents of a file, and remove some. Also while a daemon uses the file.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Row, params};

use super::error::StoreError;
use super::file;
use super::time::millis;
use tributary_event::UnixNanos;
use tributary_zico::agents::{Counters, session_digest};

/// The agents of one file.
#[derive(Clone, PartialEq, Debug)]
pub struct KnownAgents {
    /// Registered agents, by number.
    pub agents: Vec<KnownAgent>,
    /// Sessions of agents that do not register, the latest first.
    pub unregistered: Vec<UnregisteredSession>,
}

/// A registered agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownAgent {
    /// Its number.
    pub id: u64,
    /// Its uuid.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// Its application.
    pub app: String,
    /// Its environment.
    pub env: String,
    /// Its attributes, as a JSON object.
    pub attrs: String,
    /// The address of its latest registration.
    pub address: String,
    /// When it registered first.
    pub registered: UnixNanos,
    /// When it registered or submitted last.
    pub seen: UnixNanos,
    /// The number of its live sessions.
    pub sessions: u64,
    /// What it submitted.
    pub counters: Counters,
}

/// A session of an agent that does not register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnregisteredSession {
    /// The digest of the session's id ([`session_digest`]).
    pub session: String,
    /// The address of its latest request.
    pub address: String,
    /// When its first request was received.
    pub first: UnixNanos,
    /// When its latest request was received.
    pub seen: UnixNanos,
    /// What it submitted.
    pub counters: Counters,
}

/// The agents of the file at `path`. `session_timeout` decides which sessions are live.
///
/// # Errors
/// The file cannot be read, or has another format.
pub fn list(path: &Path, session_timeout: Duration, now: UnixNanos) -> Result<KnownAgents, StoreError> {
    let connection = file::open_existing(path, false)?;
    let read = || -> rusqlite::Result<KnownAgents> {
        let oldest = millis(now) - i64::try_from(session_timeout.as_millis()).unwrap_or(i64::MAX);
        let mut agents = connection.prepare(
            "SELECT id, uuid, name, app, env, attrs, address, registered, seen,
                 (SELECT count(*) FROM sessions JOIN keys ON keys.id = sessions.key
                  WHERE keys.agent = agents.id AND sessions.used > ?),
                 requests, bytes, events, losses
             FROM agents ORDER BY id",
        )?;
        let mut unregistered = connection.prepare(
            "SELECT session, address, first, seen, requests, bytes, events, losses FROM unregistered ORDER BY seen DESC",
        )?;
        Ok(KnownAgents {
            agents: agents.query_map([oldest], agent)?.collect::<rusqlite::Result<_>>()?,
            unregistered: unregistered.query_map([], unregistered_session)?.collect::<rusqlite::Result<_>>()?,
        })
    };
    read().map_err(|error| StoreError::of(path, &error))
}

/// Removes every agent with this UUID, name or number, and the unregistered session with this id or digest; returns their
/// number. Their keys and sessions end, those in use within a second; the agents may register again.
///
/// # Errors
/// The file cannot be written, or has another format.
pub fn forget(path: &Path, name: &str) -> Result<usize, StoreError> {
    let connection = file::open_existing(path, true)?;
    let delete = || -> rusqlite::Result<usize> {
        let number = name.parse::<i64>().ok();
        let agents = connection.execute(
            "DELETE FROM agents WHERE uuid = ?1 OR name = ?2 OR id = ?3",
            params![name.to_ascii_lowercase(), name, number],
        )?;
        let session = "DELETE FROM unregistered WHERE session IN (?1, ?2)";
        Ok(agents + connection.execute(session, params![name, session_digest(name)])?)
    };
    delete().map_err(|error| StoreError::of(path, &error))
}

fn agent(row: &Row<'_>) -> rusqlite::Result<KnownAgent> {
    Ok(KnownAgent {
        id: unsigned(row, 0)?,
        uuid: row.get(1)?,
        name: row.get(2)?,
        app: row.get(3)?,
        env: row.get(4)?,
        attrs: row.get(5)?,
        address: row.get(6)?,
        registered: moment(row, 7)?,
        seen: moment(row, 8)?,
        sessions: unsigned(row, 9)?,
        counters: counters(row, 10)?,
    })
}

fn unregistered_session(row: &Row<'_>) -> rusqlite::Result<UnregisteredSession> {
    Ok(UnregisteredSession {
        session: row.get(0)?,
        address: row.get(1)?,
        first: moment(row, 2)?,
        seen: moment(row, 3)?,
        counters: counters(row, 4)?,
    })
}

fn counters(row: &Row<'_>, first: usize) -> rusqlite::Result<Counters> {
    Ok(Counters {
        requests: unsigned(row, first)?,
        bytes: unsigned(row, first + 1)?,
        events: unsigned(row, first + 2)?,
        losses: unsigned(row, first + 3)?,
    })
}

fn moment(row: &Row<'_>, column: usize) -> rusqlite::Result<UnixNanos> {
    Ok(UnixNanos(unsigned(row, column)?.saturating_mul(1_000_000)))
}

fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
}
