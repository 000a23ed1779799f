//! What an operator can set about registered agents.

use std::path::PathBuf;
use std::time::Duration;

use crate::options::{Bounds, LONGEST, Section};

/// Options of a listener whose agents register. Relative paths are relative to the working directory.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreOptions {
    /// The directory that the agents are kept in, as `<listener>.db`; made when it is not there. None, as by default: they
    /// are kept in memory, and when the daemon has ended every agent must register anew, which it does when its JVM starts.
    pub state_dir: Option<PathBuf>,
    /// A file with the registration keys that are let in, one per line; read again when it has changed. None, as by
    /// default: everyone may register.
    pub keys_file: Option<PathBuf>,
    /// How long a session lives without a request. 1 h. At least 1 s.
    pub session_timeout: Duration,
    /// Agents that are known at once. Further ones take the place of agents that nobody has heard of for
    /// `agent_retention` (or for `session_timeout`, if they never sent a thing), or are refused. 10,000. At least 1.
    pub max_agents: usize,
    /// Of them, those that have registered from one address; likewise. 1,000. At least 1.
    pub max_agents_per_address: usize,
    /// Keys of one agent that are good at once, and so its sessions; the one unused for longest makes room. 64. At
    /// least 1.
    pub max_sessions_per_agent: usize,
    /// How long an agent keeps its place after it was last heard of. 30 days. At least 1 h.
    pub agent_retention: Duration,
}

impl StoreOptions {
    /// Reads the options; what is wrong is told to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = StoreOptions::default();
        StoreOptions {
            state_dir: section.optional_path("state_dir"),
            keys_file: section.optional_path("keys_file"),
            session_timeout: section.duration("session_timeout", default.session_timeout, SECOND..=LONGEST),
            max_agents: section.count("max_agents", default.max_agents, 1..=10_000_000),
            max_agents_per_address: section.count(
                "max_agents_per_address",
                default.max_agents_per_address,
                1..=10_000_000,
            ),
            max_sessions_per_agent: section.count(
                "max_sessions_per_agent",
                default.max_sessions_per_agent,
                1..=100_000,
            ),
            agent_retention: section.duration("agent_retention", default.agent_retention, 3600 * SECOND..=LONGEST),
        }
    }
}

impl StoreOptions {
    /// Says what a store may take of memory whatever happens.
    pub(crate) fn declare(&self, of: &str, bounds: &mut Bounds) {
        match self.state_dir {
            Some(_) => bounds.add(of, "the registered agents' file, as far as it is in memory", CACHE_BYTES),
            None => bounds.add(of, "the registered agents (without state_dir)", CACHE_BYTES + IN_MEMORY_BYTES),
        }
        bounds.add(of, "what they have done in the last second", MARKS_BYTES);
    }
}

/// SQLite's pages and statements, of both connections.
const CACHE_BYTES: u64 = 6 << 20;
/// A store without a file is full at so many bytes.
pub(super) const IN_MEMORY_BYTES: u64 = 16 << 20;
/// Sessions, agents and strangers that are counted before they are written.
const MARKS_BYTES: u64 = 6 << 20;

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            state_dir: None,
            keys_file: None,
            session_timeout: 3600 * SECOND,
            max_agents: 10_000,
            max_agents_per_address: 1_000,
            max_sessions_per_agent: 64,
            agent_retention: 30 * 86_400 * SECOND,
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
