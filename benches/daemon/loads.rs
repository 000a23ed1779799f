//! What agents of each protocol send, and how a daemon is set up for them.

use std::net::SocketAddr;

use super::{Daemon, free_address};

/// One file, without rotation and fsync.
pub const FILE: &str = "type = \"file\"\npath = \"out/events.ndjson\"\nrotate_bytes = \"0\"\nrotate_interval = \"0s\"\n\
                        fsync = \"never\"";
/// Nothing is written.
pub const DISCARD: &str = "type = \"discard\"";

/// Stands for the number of events among an agent's arguments.
const EVENTS: &str = "EVENTS";

/// Agents, and the options of their listener; for `rbkit`, of the process that it dials.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub name: &'static str,
    pub agent: &'static [&'static str],
    pub options: &'static str,
    /// About as many bytes as an event takes in a file.
    pub bytes_per_event: u64,
    /// Events in a run, of each hundred that are asked for: so that all runs take about as long.
    pub percent: u64,
}

/// All that are measured.
pub const LOADS: [Load; 9] = [
    Load { name: "datadog", agent: &["datadog"], options: "", bytes_per_event: 900, percent: 100 },
    Load {
        name: "bytefrog v1",
        agent: &["bytefrog", "--protocol-version", "1"],
        options: BRIEF_EXIT,
        bytes_per_event: 600,
        percent: 400,
    },
    Load {
        name: "bytefrog v4",
        agent: &["bytefrog", "--protocol-version", "4"],
        options: BRIEF_EXIT,
        bytes_per_event: 600,
        percent: 400,
    },
    // Requests wait for their answers, so that several connections are needed to keep the daemon busy; 500 events each.
    Load {
        name: "endless v2",
        agent: &["endless", "--protocol-version", "2", "--connections", "4"],
        options: "",
        bytes_per_event: 700,
        percent: 40,
    },
    Load {
        name: "endless v3",
        agent: &["endless", "--protocol-version", "3", "--connections", "4"],
        options: "",
        bytes_per_event: 1000,
        percent: 40,
    },
    // A trace of some forty records with each request.
    Load {
        name: "zico gen1",
        agent: &["zico", "--dialect", "gen1", "--connections", "4"],
        options: "",
        bytes_per_event: 900,
        percent: 40,
    },
    Load {
        name: "zico gen2",
        agent: &["zico", "--dialect", "gen2", "--connections", "4"],
        options: "",
        bytes_per_event: 900,
        percent: 40,
    },
    // Objects, and a stack with every eighth event.
    Load {
        name: "rbkit",
        agent: &["rbkit"],
        options: "enable = [\"memory_profile\", \"cpu_profile\"]",
        bytes_per_event: 900,
        percent: 100,
    },
    // One heap dump, in one message. It is asked for after a second.
    Load {
        name: "rbkit dump",
        agent: &["rbkit", "--heap-objects", EVENTS],
        options: "snapshot_interval = \"1s\"",
        bytes_per_event: 700,
        percent: 100,
    },
];

/// A Java agent takes one of these intervals to exit. Were it much shorter, heartbeats would be missed on a busy machine,
/// and the daemon would say so in events that nobody sent. And it waits for the disk, however long, rather than shed.
const BRIEF_EXIT: &str = "heartbeat_interval = \"500ms\"\nmax_stall = \"1h\"";

/// Where agents of a load and their daemon meet. Processes of Ruby are dialled, all others dial.
#[derive(Clone, Copy, Debug)]
pub enum Meeting {
    /// The daemon listens where it likes.
    Dialled,
    /// The agent's sockets.
    Dials { publish: SocketAddr, request: SocketAddr },
}

impl Load {
    /// The load of that name.
    pub fn named(name: &str) -> &'static Load {
        LOADS.iter().find(|load| load.name == name).expect("a load")
    }

    /// How many events a run has when so many are asked for.
    pub fn events(&self, asked: u64) -> u64 {
        asked * self.percent / 100
    }

    /// Before anything is started.
    pub fn meeting(&self) -> Meeting {
        match self.agent[0] {
            "rbkit" => Meeting::Dials { publish: free_address(), request: free_address() },
            _ => Meeting::Dialled,
        }
    }

    /// A daemon for this load: `more` are further options of the listener, `sinks` a table for each sink.
    pub fn config(&self, meeting: Meeting, more: &str, sinks: &[&str]) -> String {
        let options = self.options;
        let mut config = match meeting {
            Meeting::Dialled => {
                let protocol = self.agent[0];
                format!("[listeners.bench]\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n{options}\n{more}\n")
            }
            Meeting::Dials { publish, request } => format!(
                "[listeners.bench]\nprotocol = \"rbkit\"\nreconnect = {{ min = \"10ms\", max = \"50ms\" }}\nmax_stall = \"1h\"\n{more}\n\
                 agents = [{{ publish = \"{publish}\", request = \"{request}\", {options} }}]\n"
            ),
        };
        for (number, sink) in sinks.iter().enumerate() {
            config.push_str(&format!("[sinks.out{number}]\n{sink}\n"));
        }
        config
    }

    /// The arguments of `simulate`, for so many events to this daemon.
    pub fn arguments(&self, meeting: Meeting, daemon: &Daemon, events: u64) -> Vec<String> {
        match meeting {
            Meeting::Dialled => self.arguments_to(daemon.address(), events),
            Meeting::Dials { publish, request } => self.arguments_at(publish, request, events),
        }
    }

    /// Those of agents that dial.
    pub fn arguments_to(&self, to: SocketAddr, events: u64) -> Vec<String> {
        [self.agent_arguments(events), vec!["--to".to_owned(), to.to_string()]].concat()
    }

    /// Those of agents that are dialled.
    pub fn arguments_at(&self, publish: SocketAddr, request: SocketAddr, events: u64) -> Vec<String> {
        let to = ["--publish".to_owned(), publish.to_string(), "--request".to_owned(), request.to_string()];
        [self.agent_arguments(events), to.to_vec()].concat()
    }

    fn agent_arguments(&self, events: u64) -> Vec<String> {
        let events = events.to_string();
        let arguments = self.agent.iter().map(|argument| argument.replace(EVENTS, &events));
        arguments.chain(["--count".to_owned(), events.clone()]).collect()
    }
}
