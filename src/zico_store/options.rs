//! The options of registered agents.

use std::path::PathBuf;
use std::time::Duration;

use tributary_nats::BucketOptions;
use tributary_options::{Bounds, LONGEST, Section, options};

options! {
    /// Options of a listener whose agents register. Relative paths are relative to the working directory.
    #[derive(Clone, Debug, PartialEq)]
    pub struct StoreOptions checked by check {
        /// The directory in which registered agents are kept, as LISTENER.db; created if missing. Not set: in memory, and after a
        /// restart of the daemon each agent must register again, which it does when its JVM starts.
        pub state_dir: Option<PathBuf> = optional_path(),
        /// A bucket of NATS JetStream instead of `state_dir`, in which several daemons keep the agents of such listeners together:
        /// an agent that registered with one is known to all.
        pub state: Option<BucketOptions> = flat(|section| BucketOptions::read(section, "state")),
        /// A file with the accepted registration keys, one per line; read again when it changes. Not set: all keys are accepted.
        pub keys_file: Option<PathBuf> = optional_path(),
        /// How long a session lives without a request.
        pub session_timeout: Duration = duration(3600 * SECOND, SECOND..=LONGEST),
        /// The number of registered agents. The last tenth is for addresses with few agents (10, or a thousandth of the table). When
        /// it is full, a new agent replaces one that was not seen for agent_retention; else one that never submitted, of the address
        /// with the most of these, or after unused_agent_retention; else the one unused for longest, of the address with the most
        /// agents, if its own address has fewer; else it is refused.
        pub max_agents: usize = count(10_000, 1..=10_000_000),
        /// The number of agents that registered first from one IPv4 address or one IPv6 /64; a new one replaces one of the same
        /// address, also one that was not seen for session_timeout. By default a tenth of max_agents, but not less than 10.
        pub max_agents_per_address: usize = count((max_agents / 10).max(10), 1..=10_000_000),
        /// The number of valid keys of one agent, and so of its sessions; a new one replaces the one unused for longest. With
        /// `state` at most 1000.
        pub max_sessions_per_agent: usize = count(64, 1..=100_000),
        /// How long an agent is kept after it was last seen, if the table is full.
        pub agent_retention: Duration = duration(30 * 86_400 * SECOND, 3600 * SECOND..=LONGEST),
        /// How long an agent that never submitted is kept after it registered, if the table is full and its address has few such
        /// agents.
        pub unused_agent_retention: Duration = duration(300 * SECOND, SECOND..=LONGEST),
    }
}

impl StoreOptions {
    fn check(&self, section: &mut Section<'_>) {
        if self.state.is_some() && self.state_dir.is_some() {
            let help = "remove one of them: agents are kept in a bucket or in a file".to_owned();
            section.error("state", "`state` and `state_dir` exclude each other", Some(help));
        }
        if self.state.is_some() && self.max_sessions_per_agent > MAX_SHARED_KEYS {
            let message = format!("with `state` an agent has at most {MAX_SHARED_KEYS} keys");
            section.error("max_sessions_per_agent", message, Some("an agent is one value of the bucket".into()));
        }
    }

    /// Declares the most memory that a store takes beside the shared budget.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        if let Some(bucket) = &self.state {
            return bucket.declare(of, bounds);
        }
        match self.state_dir {
            Some(_) => bounds.add(of, "the cached part of the registered agents' file", CACHE_BYTES),
            None => bounds.add(of, "the registered agents (without state_dir)", CACHE_BYTES + IN_MEMORY_BYTES),
        }
        bounds.add(of, "the agents' counters of the last second", MARKS_BYTES);
    }
}

/// SQLite's pages and statements, of both connections.
const CACHE_BYTES: u64 = 6 << 20;
/// The most that a store without a file takes.
pub(super) const IN_MEMORY_BYTES: u64 = 16 << 20;
/// The most keys of an agent that daemons share: a value of a bucket has at most 1 MiB, and a key takes about 300 bytes of it.
const MAX_SHARED_KEYS: usize = 1_000;
/// Sessions and agents that are counted before they are written.
const MARKS_BYTES: u64 = 6 << 20;

const SECOND: Duration = Duration::from_secs(1);
