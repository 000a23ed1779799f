//! What changes with every request: when agents and sessions were last used, and the counters of agents. It is collected in
//! memory and written once a second, so that a request costs no disk access. A kill loses the latest second of it.
//!
//! The agent of a session is remembered for the same second. So a change that another process makes in the file, for
//! example the removal of an agent, takes effect within a second.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior, params};

use super::keys;
use tributary_zico::agents::{Counters, Requester, ZicoAgent};

const INTERVAL: Duration = Duration::from_secs(1);
/// How many sessions, and how many agents, are remembered while the file cannot be written.
const MAX_MARKS: usize = 10_000;

/// What is not written to the file yet.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pending: Mutex<PendingMarks>,
    /// Wakes the writer thread when it must stop.
    wake: Condvar,
}

/// Marks that wait to be written.
#[derive(Debug, Default)]
pub(super) struct PendingMarks {
    /// By the session's id.
    sessions: HashMap<String, Used>,
    agents: HashMap<u64, (Counters, i64)>,
    /// By the digest of the session's id.
    unregistered: HashMap<String, (Counters, i64, String)>,
    is_stopping: bool,
}

/// A session in use.
#[derive(Clone, Debug)]
struct Used {
    /// When it was used last, in milliseconds since 1970.
    at: i64,
    /// Its agent. `None`: it must be looked up again.
    agent: Option<Arc<ZicoAgent>>,
}

impl Marks {
    fn pending(&self) -> MutexGuard<'_, PendingMarks> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a session, which belongs to this agent, as used.
    pub(super) fn use_session(&self, session: &str, agent: Option<Arc<ZicoAgent>>, now: i64) {
        let mut pending = self.pending();
        if let Some(used) = pending.sessions.get_mut(session) {
            used.at = now.max(used.at);
            used.agent = agent.or(used.agent.take());
        } else if pending.sessions.len() < MAX_MARKS {
            pending.sessions.insert(session.to_owned(), Used { at: now, agent });
        }
    }

    /// When the session was last used, if that is not in the file yet, and its agent.
    pub(super) fn used(&self, session: &str) -> Option<(i64, Option<Arc<ZicoAgent>>)> {
        self.pending().sessions.get(session).map(|used| (used.at, used.agent.clone()))
    }

    /// Agents, their keys or sessions changed: sessions are looked up again.
    pub(super) fn forget_agents(&self) {
        self.pending().sessions.values_mut().for_each(|used| used.agent = None);
    }

    /// Adds to the counters of an agent.
    pub(super) fn count(&self, requester: Requester<'_>, more: Counters, now: i64) {
        let mut pending = self.pending();
        let PendingMarks { agents, unregistered, .. } = &mut *pending;
        let (counters, seen) = match requester {
            Requester::Agent { id } => {
                if agents.len() >= MAX_MARKS && !agents.contains_key(&id) {
                    return;
                }
                let (counters, seen) = agents.entry(id).or_default();
                (counters, seen)
            }
            Requester::Unregistered { session, address } => {
                if unregistered.len() >= MAX_MARKS && !unregistered.contains_key(session) {
                    return;
                }
                let new = || (Counters::default(), now, address.to_owned());
                let (counters, seen, _) = unregistered.entry(session.to_owned()).or_insert_with(new);
                (counters, seen)
            }
        };
        counters.requests += more.requests;
        counters.bytes += more.bytes;
        counters.events += more.events;
        counters.losses += more.losses;
        *seen = now.max(*seen);
    }

    /// Makes the writer thread write all marks and end.
    pub(super) fn stop(&self) {
        self.pending().is_stopping = true;
        self.wake.notify_all();
    }

    /// Waits for an interval, or until [`Marks::stop`]: `true`.
    pub(super) fn wait(&self) -> bool {
        let pending = self.pending();
        let waited = self.wake.wait_timeout_while(pending, INTERVAL, |pending| !pending.is_stopping);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_stopping
    }

    /// Takes all marks. What cannot be written is put back by [`Marks::restore`].
    pub(super) fn take(&self) -> PendingMarks {
        let mut pending = self.pending();
        let is_stopping = pending.is_stopping;
        std::mem::replace(&mut *pending, PendingMarks { is_stopping, ..PendingMarks::default() })
    }

    /// Puts marks back that could not be written.
    pub(super) fn restore(&self, marks: PendingMarks) {
        for (session, used) in marks.sessions {
            self.use_session(&session, None, used.at);
        }
        for (id, (counters, seen)) in marks.agents {
            self.count(Requester::Agent { id }, counters, seen);
        }
        for (session, (counters, seen, address)) in marks.unregistered {
            self.count(Requester::Unregistered { session: &session, address: &address }, counters, seen);
        }
    }
}

impl PendingMarks {
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.agents.is_empty() && self.unregistered.is_empty()
    }
}

/// Writes marks in one transaction. Of unregistered sessions the latest `max_unregistered` are kept.
pub(super) fn write(
    connection: &mut Connection,
    marks: &PendingMarks,
    max_unregistered: usize,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut session = transaction.prepare_cached("UPDATE sessions SET used = max(used, ?2) WHERE hash = ?1")?;
        let mut key = transaction.prepare_cached(
            "UPDATE keys SET used = max(used, ?2) WHERE id = (SELECT key FROM sessions WHERE hash = ?1)",
        )?;
        for (id, used) in &marks.sessions {
            let hash = keys::hash(id);
            session.execute(params![hash, used.at])?;
            key.execute(params![hash, used.at])?;
        }
        let mut agent = transaction.prepare_cached(
            "UPDATE agents SET seen = max(seen, ?2), requests = requests + ?3, bytes = bytes + ?4, events = events + ?5,
             losses = losses + ?6 WHERE id = ?1",
        )?;
        for (id, (counters, seen)) in &marks.agents {
            let [requests, bytes, events, losses] = numbers(counters);
            agent.execute(params![signed(*id), seen, requests, bytes, events, losses])?;
        }
        let mut unregistered = transaction.prepare_cached(
            "INSERT INTO unregistered VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (session) DO UPDATE SET address = ?2, seen = max(seen, ?3), requests = requests + ?4,
             bytes = bytes + ?5, events = events + ?6, losses = losses + ?7",
        )?;
        for (session, (counters, seen, address)) in &marks.unregistered {
            let [requests, bytes, events, losses] = numbers(counters);
            unregistered.execute(params![session, address, seen, requests, bytes, events, losses])?;
        }
    }
    if !marks.unregistered.is_empty() {
        transaction.execute(
            "DELETE FROM unregistered WHERE session IN
                 (SELECT session FROM unregistered ORDER BY seen DESC LIMIT -1 OFFSET ?)",
            [signed(max_unregistered as u64)],
        )?;
    }
    transaction.commit()
}

fn numbers(counters: &Counters) -> [i64; 4] {
    [counters.requests, counters.bytes, counters.events, counters.losses].map(signed)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
