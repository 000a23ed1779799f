//! Agents that ask for a session and are not registered here. Without `keys_file` they are registered then: another daemon, or an earlier
//! process of this one, has registered them, and they do not register again.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};

use tracing::{info, warn};

use super::bucket::is_uuid;
use super::keys::{self, Hash};
use tributary_codec::lru::Lru;
use tributary_memory::log_throttle::LogThrottle;
use tributary_zico::agents::Opening;

/// Log lines about single agents in one minute.
const AGENT_LINES: u64 = 64;
/// Agents whose refusal is remembered, so that each is logged once.
const MAX_REFUSED: usize = 1024;
/// The most bytes of an agent's id that are logged.
const MAX_LOGGED_ID: usize = 64;

/// The UUID of the agent that asks, if it names one: it is registered under it.
pub(super) fn uuid_of(asked: &Opening) -> Option<String> {
    Some(asked.agent.to_ascii_lowercase()).filter(|uuid| is_uuid(uuid))
}

/// What stands for its registration key, name, app and environment, which are not in the request.
pub(super) fn identity_of(uuid: &str, asked: &Opening) -> Hash {
    keys::hash(&format!("{uuid} {}", asked.authkey))
}

/// Logs what becomes of such agents.
#[derive(Debug)]
pub(super) struct OpeningLog {
    listener: String,
    throttle: LogThrottle,
    /// Hashes of the ids of agents that were refused a session and are in the log, with the hashes' seed.
    refused: (RandomState, Mutex<Lru<u64, ()>>),
}

impl OpeningLog {
    /// The log of a listener.
    pub(super) fn new(listener: &str) -> OpeningLog {
        let throttle = LogThrottle::of(AGENT_LINES);
        OpeningLog { listener: listener.to_owned(), throttle, refused: Default::default() }
    }

    /// Logs that an agent is registered.
    pub(super) fn adopted(&self, uuid: &str, asked: &Opening) {
        if let Some(suppressed) = self.throttle.permit() {
            info!(
                listener = self.listener,
                agent = uuid,
                address = asked.address,
                suppressed,
                "an agent that is not registered here asks for a session: it is registered with the id and the key that it has, \
                 because there is no keys_file; its name is unknown"
            );
        }
    }

    /// Logs that an agent was refused a session: once, as long as it is among the last that were refused.
    pub(super) fn refused(&self, asked: &Opening) {
        let (seed, refused) = &self.refused;
        let id = seed.hash_one(&asked.agent);
        let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.get(&id).is_some() {
            return;
        }
        if refused.len() >= MAX_REFUSED {
            refused.pop_oldest();
        }
        refused.insert(id, ());
        drop(refused);
        if let Some(suppressed) = self.throttle.permit() {
            let agent = &asked.agent[..asked.agent.floor_char_boundary(MAX_LOGGED_ID)];
            warn!(
                listener = self.listener,
                agent,
                address = asked.address,
                suppressed,
                "an agent is refused a session for good: it is not registered here, or its key is not one of its keys, and it does \
                 not register again by itself. Delete the lines tracer.net.agent.id and tracer.net.sessn.key in its \
                 zorka.properties, and restart its JVM"
            );
        }
    }
}
