//! The sessions that this daemon has opened, and what their agents have submitted since that was written to the bucket.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::keys::Hash;
use tributary_zico::agents::{Counters, ZicoAgent};

/// How long after a failed attempt another one is made to write that an agent was seen.
const RETRY_MILLIS: i64 = 1000;

/// Sessions that live here.
#[derive(Debug)]
pub(super) struct LocalSessions {
    max_sessions: usize,
    timeout: i64,
    sessions: HashMap<Hash, LocalSession>,
    /// What agents have submitted, by their number.
    counters: HashMap<u64, Counters>,
}

#[derive(Debug)]
struct LocalSession {
    agent: Arc<ZicoAgent>,
    used: i64,
    /// From when on a use is written to the bucket.
    due: i64,
}

/// A use of a session.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) agent: Arc<ZicoAgent>,
    /// It should be written to the bucket.
    pub(super) is_due: bool,
}

impl LocalSessions {
    pub(super) fn new(max_sessions: usize, timeout: Duration) -> LocalSessions {
        let timeout = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        LocalSessions { max_sessions: max_sessions.max(1), timeout, sessions: HashMap::new(), counters: HashMap::new() }
    }

    /// How long a use may not be in the bucket: a part of the time after which a session is over.
    pub(super) fn interval(&self) -> i64 {
        self.timeout / 4
    }

    /// Adds a session that was opened now. If there are too many, those that are unused for longest are forgotten: their agents
    /// open others.
    pub(super) fn insert(&mut self, session: Hash, agent: Arc<ZicoAgent>, now: i64) {
        if self.sessions.len() >= self.max_sessions && !self.sessions.contains_key(&session) {
            self.evict(now);
        }
        let due = now.saturating_add(self.interval());
        self.sessions.insert(session, LocalSession { agent, used: now, due });
    }

    fn evict(&mut self, now: i64) {
        let timeout = self.timeout;
        self.sessions.retain(|_, session| session.used > now.saturating_sub(timeout));
        if self.sessions.len() >= self.max_sessions {
            let mut uses: Vec<i64> = self.sessions.values().map(|session| session.used).collect();
            let removed = uses.len() / 16;
            let (_, limit, _) = uses.select_nth_unstable(removed);
            let limit = *limit;
            self.sessions.retain(|_, session| session.used > limit);
        }
        let kept: std::collections::HashSet<u64> = self.sessions.values().map(|session| session.agent.id).collect();
        self.counters.retain(|id, _| kept.contains(id));
    }

    /// Marks a live session as used.
    pub(super) fn use_session(&mut self, session: &Hash, now: i64) -> Option<Use> {
        let interval = self.interval();
        let known = self.sessions.get_mut(session)?;
        if known.used <= now.saturating_sub(self.timeout) {
            self.sessions.remove(session);
            return None;
        }
        known.used = known.used.max(now);
        let is_due = known.due <= now;
        if is_due {
            known.due = now.saturating_add(interval);
        }
        Some(Use { agent: known.agent.clone(), is_due })
    }

    /// Whether a session is live here.
    pub(super) fn is_live(&self, session: &Hash, now: i64) -> bool {
        self.sessions.get(session).is_some_and(|known| known.used > now.saturating_sub(self.timeout))
    }

    /// The use of a session was not written.
    pub(super) fn try_again(&mut self, session: &Hash, now: i64) {
        if let Some(known) = self.sessions.get_mut(session) {
            known.due = now.saturating_add(RETRY_MILLIS);
        }
    }

    /// The agent has changed.
    pub(super) fn update(&mut self, session: &Hash, agent: &Arc<ZicoAgent>) {
        if let Some(known) = self.sessions.get_mut(session)
            && known.agent != *agent
        {
            known.agent = agent.clone();
        }
    }

    /// The session is over: its agent or its key was removed.
    pub(super) fn remove(&mut self, session: &Hash) {
        self.sessions.remove(session);
    }

    /// The agent with this UUID, if it has a session here.
    pub(super) fn agent(&self, uuid: &str) -> Option<Arc<ZicoAgent>> {
        self.sessions.values().find(|session| session.agent.uuid == uuid).map(|session| session.agent.clone())
    }

    /// Adds to the counters of an agent.
    pub(super) fn count(&mut self, id: u64, more: Counters) {
        if self.counters.len() >= 2 * self.max_sessions && !self.counters.contains_key(&id) {
            return;
        }
        let counters = self.counters.entry(id).or_default();
        counters.requests += more.requests;
        counters.bytes += more.bytes;
        counters.events += more.events;
        counters.losses += more.losses;
    }

    /// Takes the counters of an agent.
    pub(super) fn take_counters(&mut self, id: u64) -> Counters {
        self.counters.remove(&id).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(id: u64) -> Arc<ZicoAgent> {
        let (name, app, env, attrs) = Default::default();
        Arc::new(ZicoAgent { id, uuid: format!("u{id}"), name, app, env, attrs })
    }

    #[test]
    fn a_session_is_over_when_it_is_unused_for_its_timeout_and_uses_are_due_at_intervals() {
        let mut sessions = LocalSessions::new(10, Duration::from_secs(40));
        sessions.insert([1; 32], agent(1), 0);
        let mut is_due = |at: i64| sessions.use_session(&[1; 32], at).map(|used| used.is_due);
        assert_eq!([5_000, 10_000, 10_001, 50_001].map(&mut is_due), [Some(false), Some(true), Some(false), None]);
        assert!(!sessions.is_live(&[1; 32], 50_001));
    }

    #[test]
    fn the_number_of_sessions_is_bounded_and_the_unused_ones_are_forgotten_first() {
        let mut sessions = LocalSessions::new(32, Duration::from_secs(1000));
        for number in 0..200_u8 {
            sessions.insert([number; 32], agent(number.into()), number.into());
            sessions.count(number.into(), Counters { requests: 1, ..Counters::default() });
            assert!(sessions.sessions.len() <= 32 && sessions.counters.len() <= 64);
        }
        assert!(sessions.is_live(&[199; 32], 200) && !sessions.is_live(&[0; 32], 200));
        assert_eq!(sessions.take_counters(199).requests, 1);
        assert_eq!(sessions.take_counters(199), Counters::default());
    }
}
