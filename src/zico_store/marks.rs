//! What changes with every request: when agents and sessions were last used, and what agents brought. Written once a
//! second, so that a request costs no disk; a kill forgets that second and nothing else.
//!
//! For as long, a session that was looked up need not be looked up again. So what somebody else changes in the file, say
//! that an agent be forgotten, is noticed within a second.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior, params};
use tracing::warn;

use super::{Shared, explain};
use crate::log_throttle::LogThrottle;
use crate::protocol::zico::agents::{Agent, Counters, Whom};

const INTERVAL: Duration = Duration::from_secs(1);
/// So many sessions and agents each are remembered while the file cannot be written.
const MOST_MARKS: usize = 10_000;

/// What is not in the file yet.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pending: Mutex<Pending>,
    /// When the keeper is to stop.
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    sessions: HashMap<String, Used>,
    agents: HashMap<u64, (Counters, i64)>,
    strangers: HashMap<String, (Counters, i64, String)>,
    stops: bool,
}

/// A session in use.
#[derive(Clone, Debug)]
struct Used {
    /// When it was used last.
    at: i64,
    /// Whose it is. None: that may have changed.
    agent: Option<Arc<Agent>>,
}

impl Marks {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session was used, which is this agent's.
    pub(super) fn use_session(&self, session: &str, agent: Option<Arc<Agent>>, now: i64) {
        let mut pending = self.pending();
        if let Some(used) = pending.sessions.get_mut(session) {
            used.at = now.max(used.at);
            used.agent = agent.or(used.agent.take());
        } else if pending.sessions.len() < MOST_MARKS {
            pending.sessions.insert(session.to_owned(), Used { at: now, agent });
        }
    }

    /// When the session was last used, if that is not in the file yet; and whose it is.
    pub(super) fn used(&self, session: &str) -> Option<(i64, Option<Arc<Agent>>)> {
        self.pending().sessions.get(session).map(|used| (used.at, used.agent.clone()))
    }

    /// Agents, their keys or sessions have changed.
    pub(super) fn look_again(&self) {
        self.pending().sessions.values_mut().for_each(|used| used.agent = None);
    }

    pub(super) fn count(&self, whom: Whom<'_>, more: Counters, now: i64) {
        let mut pending = self.pending();
        let Pending { agents, strangers, .. } = &mut *pending;
        let (counters, seen) = match whom {
            Whom::Agent { id, .. } => {
                if agents.len() >= MOST_MARKS && !agents.contains_key(&id) {
                    return;
                }
                let (counters, seen) = agents.entry(id).or_default();
                (counters, seen)
            }
            Whom::Unregistered { session, address } => {
                if strangers.len() >= MOST_MARKS && !strangers.contains_key(session) {
                    return;
                }
                let stranger = || (Counters::default(), now, address.to_owned());
                let (counters, seen, _) = strangers.entry(session.to_owned()).or_insert_with(stranger);
                (counters, seen)
            }
        };
        counters.requests += more.requests;
        counters.bytes += more.bytes;
        counters.events += more.events;
        counters.losses += more.losses;
        *seen = now.max(*seen);
    }

    /// Tells the keeper to write what there is, and end.
    pub(super) fn stop(&self) {
        self.pending().stops = true;
        self.bell.notify_all();
    }

    /// Waits for an interval, or until it is time to stop: `true`.
    fn wait(&self) -> bool {
        let pending = self.pending();
        let waited = self.bell.wait_timeout_while(pending, INTERVAL, |pending| !pending.stops);
        waited.unwrap_or_else(PoisonError::into_inner).0.stops
    }
}

/// Starts the thread that writes marks, until the store goes.
pub(super) fn keep(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("agent store".to_owned()).spawn(move || {
        let failing = LogThrottle::new();
        loop {
            let stops = shared.marks.wait();
            if let Err(error) = shared.write_marks()
                && let Some(suppressed) = failing.permit()
            {
                warn!(suppressed, "{}: {}; counters of agents are kept in memory", shared.name, explain(&error));
            }
            if stops {
                return;
            }
        }
    })
}

impl Shared {
    /// Brings the marks into the file. What cannot be written stays for the next time.
    pub(super) fn write_marks(&self) -> rusqlite::Result<()> {
        let mut taken = {
            let mut pending = self.marks.pending();
            let stops = pending.stops;
            std::mem::replace(&mut *pending, Pending { stops, ..Pending::default() })
        };
        if taken.sessions.is_empty() && taken.agents.is_empty() && taken.strangers.is_empty() {
            return Ok(());
        }
        let result = write(&mut self.writer(), &taken, self.options.max_agents);
        if result.is_err() {
            for (session, used) in taken.sessions.drain() {
                self.marks.use_session(&session, None, used.at);
            }
            for (id, (counters, seen)) in taken.agents.drain() {
                self.marks.count(Whom::Agent { id, session: "" }, counters, seen);
            }
            for (session, (counters, seen, address)) in taken.strangers.drain() {
                self.marks.count(Whom::Unregistered { session: &session, address: &address }, counters, seen);
            }
        }
        result
    }
}

fn write(connection: &mut Connection, marks: &Pending, max_strangers: usize) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut session = transaction.prepare_cached("UPDATE sessions SET used = max(used, ?2) WHERE uuid = ?1")?;
        let mut key = transaction.prepare_cached(
            "UPDATE keys SET used = max(used, ?2) WHERE id = (SELECT key FROM sessions WHERE uuid = ?1)",
        )?;
        for (uuid, used) in &marks.sessions {
            session.execute(params![uuid, used.at])?;
            key.execute(params![uuid, used.at])?;
        }
        let mut agent = transaction.prepare_cached(
            "UPDATE agents SET seen = max(seen, ?2), requests = requests + ?3, bytes = bytes + ?4, events = events + ?5,
             losses = losses + ?6 WHERE id = ?1",
        )?;
        for (id, (counters, seen)) in &marks.agents {
            let [requests, bytes, events, losses] = numbers(counters);
            agent.execute(params![signed(*id), seen, requests, bytes, events, losses])?;
        }
        let mut stranger = transaction.prepare_cached(
            "INSERT INTO strangers VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (session) DO UPDATE SET address = ?2, seen = max(seen, ?3), requests = requests + ?4,
             bytes = bytes + ?5, events = events + ?6, losses = losses + ?7",
        )?;
        for (session, (counters, seen, address)) in &marks.strangers {
            let [requests, bytes, events, losses] = numbers(counters);
            stranger.execute(params![session, address, seen, requests, bytes, events, losses])?;
        }
    }
    if !marks.strangers.is_empty() {
        // The rest make room, the one heard of longest ago first.
        transaction.execute(
            "DELETE FROM strangers WHERE session IN (SELECT session FROM strangers ORDER BY seen DESC LIMIT -1 OFFSET ?)",
            [signed(max_strangers as u64)],
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
