//! The store of the `zico` protocol: registered agents, their keys and sessions, kept over restarts.
//!
//! Several daemons can share a store in a bucket of NATS: [`SharedStore`]. Otherwise each listener has one file, written by SQLite. What was answered to an agent was committed and synced before, so it
//! holds after a kill or a loss of power. The sqlite3 shell can open the file while the daemon uses it, and so does
//! `tributary agents`.
//!
//! The file contains nothing with which its reader could act as an agent. Issued keys are 128 random bits and are stored
//! as SHA-256. Session ids are derived from the agent's key, and are stored as SHA-256. Registration keys are chosen by
//! people; they are stored as PBKDF2 with a salt of the file, which makes guessing slow, but does not make a weak key strong.
#![forbid(unsafe_code)]

mod adoption;
mod agents;
mod bucket;
mod error;
mod file;
mod hosts;
mod keys;
mod marks;
mod network;
mod options;
mod register;
mod shared;
mod time;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use tracing::warn;

use tributary_event::UnixNanos;
use tributary_memory::log_throttle::LogThrottle;
use tributary_system::blocking;
use tributary_zico::agents::{
    Agents, Counters, Opened, Opening, Registered, Registration, Requester, StoredHost, UNKNOWN_AGENT, ZicoAgent,
    ZicoAgentError,
};

use error::explain;
use shared::SharedAgentStore;
use time::millis;

pub use agents::{KnownAgent, KnownAgents, UnregisteredSession, forget, list};
pub use bucket::SharedStore;
pub use error::StoreError;
pub use file::path;
pub use options::StoreOptions;

/// The agents of one listener.
#[derive(Debug)]
pub struct AgentStore {
    shared: Arc<SharedAgentStore>,
    writer: Option<JoinHandle<()>>,
}

impl AgentStore {
    /// Opens the store of the listener with this name, or creates it.
    ///
    /// # Errors
    /// The file, or the file of keys, cannot be used: the error says which, why, and what to do.
    pub fn open(options: &StoreOptions, listener: &str) -> Result<AgentStore, StoreError> {
        let shared = Arc::new(SharedAgentStore::open(options, listener)?);
        let writer = spawn_writer(shared.clone()).map_err(|error| {
            StoreError::new(Path::new(&shared.name), format!("its writer thread cannot be started: {error}"))
        })?;
        Ok(AgentStore { shared, writer: Some(writer) })
    }
}

impl Drop for AgentStore {
    /// Writes all marks.
    fn drop(&mut self) {
        self.shared.marks.stop();
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has nothing left to write.
            let _ = writer.join();
        }
    }
}

impl Agents for AgentStore {
    fn register(&self, asked: &Registration, address: &str, now: UnixNanos) -> Result<Registered, ZicoAgentError> {
        let shared = &*self.shared;
        if shared.admitted.as_ref().is_some_and(|keys| !blocking::run(|| keys.admit(&asked.rkey))) {
            return Err(ZicoAgentError::Denied("the registration key is not accepted here"));
        }
        blocking::run(|| {
            let rkey = shared.digests.digest(&asked.rkey);
            let registered = shared.register(asked, &rkey, address, millis(now))?;
            // The agent may have changed its name, and others may have been removed.
            shared.marks.forget_agents();
            Ok(registered)
        })
    }

    fn open(&self, asked: &Opening, now: UnixNanos) -> Result<Opened, ZicoAgentError> {
        let shared = &*self.shared;
        let opened = blocking::run(|| shared.open_session(asked, millis(now)));
        if opened.as_ref().err() == Some(&UNKNOWN_AGENT) {
            shared.openings.refused(asked);
        }
        let opened = opened?;
        shared.marks.use_session(&opened.session, None, millis(now));
        Ok(opened)
    }

    fn session(&self, session: &str, agent: Option<&str>, now: UnixNanos) -> Result<Arc<ZicoAgent>, ZicoAgentError> {
        let (shared, now) = (&*self.shared, millis(now));
        let found = shared.session(session, now).map_err(|error| shared.refusal(&error))?;
        let found = found.ok_or(ZicoAgentError::Denied("the session is unknown or over; open another one"))?;
        if agent.is_some_and(|name| !found.is_called(name)) {
            return Err(ZicoAgentError::Denied("the session belongs to another agent"));
        }
        shared.marks.use_session(session, Some(found.clone()), now);
        Ok(found)
    }

    fn agent(&self, name: &str) -> Result<Option<Arc<ZicoAgent>>, ZicoAgentError> {
        let found = self.shared.read(|connection| register::find(connection, name));
        Ok(found.map_err(|error| self.shared.refusal(&error))?.map(Arc::new))
    }

    fn admits(&self, pass_phrase: &str) -> bool {
        self.shared.admitted.as_ref().is_none_or(|keys| blocking::run(|| keys.admit(pass_phrase)))
    }

    fn seen(&self, requester: Requester<'_>, more: Counters, now: UnixNanos) {
        self.shared.marks.count(requester, more, millis(now));
    }

    fn store_hosts(&self, hosts: &[StoredHost]) {
        let shared = &*self.shared;
        if shared.is_in_memory() {
            return;
        }
        let stored = blocking::run(|| shared.write(|connection| hosts::store(connection, hosts)));
        if let Err(error) = stored {
            let (file, error) = (&shared.name, explain(&error));
            warn!(file, error, "cannot store what agents may send again: they may be written twice");
        }
    }

    fn stored_hosts(&self) -> Vec<StoredHost> {
        self.shared.read(hosts::stored).unwrap_or_else(|error| {
            let (file, error) = (&self.shared.name, explain(&error));
            warn!(file, error, "cannot read what agents may send again: they may be written twice");
            Vec::new()
        })
    }
}

/// Starts the thread that writes marks, until the store is dropped.
fn spawn_writer(shared: Arc<SharedAgentStore>) -> std::io::Result<JoinHandle<()>> {
    blocking::thread("agent store", move || {
        let failing = LogThrottle::new();
        loop {
            let is_stopping = shared.marks.wait();
            if let Err(error) = shared.write_marks()
                && let Some(suppressed) = failing.permit()
            {
                let (file, error) = (&shared.name, explain(&error));
                warn!(
                    listener = shared.listener,
                    file, error, suppressed, "cannot write the counters of agents; retrying"
                );
            }
            if is_stopping {
                return;
            }
        }
    })
}
