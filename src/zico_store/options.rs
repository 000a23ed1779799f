//! The options of registered agents.

use std::path::PathBuf;
use std::time::Duration;

use tributary_nats::BucketOptions;
use tributary_options::{Bounds, LONGEST, Section};

/// Options of a listener whose agents register. Relative paths are relative to the working directory.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreOptions {
    /// The directory in which the agents are kept, as `<listener>.db`; created if missing. None, the default: they are kept
    /// in memory, and after a restart of the daemon each agent must register again, which it does when its JVM starts.
    pub state_dir: Option<PathBuf>,
    /// A bucket of NATS JetStream in which several daemons keep the agents of such listeners together, instead of `state_dir`:
    /// `nats://host:port,host:port/bucket`. With `nats.*`: how it is reached. None, the default.
    pub state: Option<BucketOptions>,
    /// A file with the accepted registration keys, one per line; read again when it changes. None, the default: all keys
    /// are accepted.
    pub keys_file: Option<PathBuf>,
    /// How long a session lives without a request. 1 h. At least 1 s.
    pub session_timeout: Duration,
    /// The number of registered agents. 10,000. At least 1. The last tenth is for addresses with few agents (10, or a
    /// thousandth of the table). When it is full, a new agent replaces one that was not seen for `agent_retention`; else
    /// one that never submitted, of the address with the most of these; else the one that was unused for longest, of the
    /// address with the most agents, if its own address has fewer; else it is refused.
    pub max_agents: usize,
    /// The number of agents that registered first from one IPv4 address or one IPv6 /64; a new one replaces one of the same
    /// address, also one that was not seen for `session_timeout`. A tenth of `max_agents`, but not less than 10. At least 1.
    pub max_agents_per_address: usize,
    /// The number of valid keys of one agent, and so of its sessions; a new key replaces the one that was unused for
    /// longest. 64. At least 1; with `state` at most 1,000.
    pub max_sessions_per_agent: usize,
    /// How long an agent is kept after it was last seen, if the table is full. 30 days. At least 1 h.
    pub agent_retention: Duration,
    /// How long an agent that never submitted is kept after it registered, if the table is full and its address has few
    /// such agents. 5 min. At least 1 s.
    pub unused_agent_retention: Duration,
}

impl StoreOptions {
    /// Reads the options; faults are reported to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = StoreOptions::default();
        let max_agents = section.count("max_agents", default.max_agents, 1..=10_000_000);
        let of_address = (max_agents / 10).max(10);
        let options = StoreOptions {
            state_dir: section.optional_path("state_dir"),
            state: BucketOptions::read(section, "state"),
            keys_file: section.optional_path("keys_file"),
            session_timeout: section.duration("session_timeout", default.session_timeout, SECOND..=LONGEST),
            max_agents,
            max_agents_per_address: section.count("max_agents_per_address", of_address, 1..=10_000_000),
            max_sessions_per_agent: section.count(
                "max_sessions_per_agent",
                default.max_sessions_per_agent,
                1..=100_000,
            ),
            agent_retention: section.duration("agent_retention", default.agent_retention, 3600 * SECOND..=LONGEST),
            unused_agent_retention: section.duration(
                "unused_agent_retention",
                default.unused_agent_retention,
                SECOND..=LONGEST,
            ),
        };
        if options.state.is_some() && options.state_dir.is_some() {
            let help = "remove one of them: agents are kept in a bucket or in a file".to_owned();
            section.error("state", "`state` and `state_dir` exclude each other", Some(help));
        }
        if options.state.is_some() && options.max_sessions_per_agent > MAX_SHARED_KEYS {
            let message = format!("with `state` an agent has at most {MAX_SHARED_KEYS} keys");
            section.error("max_sessions_per_agent", message, Some("an agent is one value of the bucket".into()));
        }
        options
    }
}

impl StoreOptions {
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

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            state_dir: None,
            state: None,
            keys_file: None,
            session_timeout: 3600 * SECOND,
            max_agents: 10_000,
            max_agents_per_address: 1_000,
            max_sessions_per_agent: 64,
            agent_retention: 30 * 86_400 * SECOND,
            unused_agent_retention: 300 * SECOND,
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
