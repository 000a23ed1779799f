//! What operators ask: who is known, and that somebody be forgotten. Beside a running daemon, or without one.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Row, params};

use super::{StoreError, file, millis};
use crate::event::UnixNanos;
use crate::protocol::zico::agents::Counters;

/// Everybody in one file.
#[derive(Clone, PartialEq, Debug)]
pub struct Known {
    /// Agents that have registered, by number.
    pub agents: Vec<KnownAgent>,
    /// Sessions of agents that do not register, the one heard of last first.
    pub strangers: Vec<KnownStranger>,
}

/// An agent that has registered.
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
    /// Where it registered last.
    pub address: String,
    /// When it did for the first time.
    pub registered: UnixNanos,
    /// When it was last heard of.
    pub seen: UnixNanos,
    /// Its sessions that live.
    pub sessions: u64,
    /// What it brought.
    pub counters: Counters,
}

/// A session of an agent that does not register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownStranger {
    /// The session's id.
    pub session: String,
    /// Where its last request came from.
    pub address: String,
    /// When it was heard of for the first time.
    pub first: UnixNanos,
    /// When it was last heard of.
    pub seen: UnixNanos,
    /// What it brought.
    pub counters: Counters,
}

/// Everybody in the file at `path`. `session_timeout` says which sessions live.
///
/// # Errors
/// The file cannot be read, or is none of ours.
pub fn list(path: &Path, session_timeout: Duration, now: UnixNanos) -> Result<Known, StoreError> {
    let connection = file::open_existing(path, false)?;
    let read = || -> rusqlite::Result<Known> {
        let oldest = millis(now) - i64::try_from(session_timeout.as_millis()).unwrap_or(i64::MAX);
        let mut agents = connection.prepare(
            "SELECT id, uuid, name, app, env, attrs, address, registered, seen,
                 (SELECT count(*) FROM sessions JOIN keys ON keys.id = sessions.key
                  WHERE keys.agent = agents.id AND sessions.used > ?),
                 requests, bytes, events, losses
             FROM agents ORDER BY id",
        )?;
        let mut strangers = connection.prepare(
            "SELECT session, address, first, seen, requests, bytes, events, losses FROM strangers ORDER BY seen DESC",
        )?;
        Ok(Known {
            agents: agents.query_map([oldest], agent)?.collect::<rusqlite::Result<_>>()?,
            strangers: strangers.query_map([], stranger)?.collect::<rusqlite::Result<_>>()?,
        })
    };
    read().map_err(|error| StoreError::of(path, &error))
}

/// Forgets every agent of this uuid, name or number, and the session of this id; answers how many there were. Their keys
/// and sessions end, those in use within a second; they may register again.
///
/// # Errors
/// The file cannot be written, or is none of ours.
pub fn forget(path: &Path, name: &str) -> Result<usize, StoreError> {
    let connection = file::open_existing(path, true)?;
    let delete = || -> rusqlite::Result<usize> {
        let number = name.parse::<i64>().ok();
        let agents = connection.execute(
            "DELETE FROM agents WHERE uuid = ?1 OR name = ?2 OR id = ?3",
            params![name.to_ascii_lowercase(), name, number],
        )?;
        Ok(agents + connection.execute("DELETE FROM strangers WHERE session = ?", [name])?)
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

fn stranger(row: &Row<'_>) -> rusqlite::Result<KnownStranger> {
    Ok(KnownStranger {
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
