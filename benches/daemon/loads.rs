//! The loads: the agents of each protocol with their arguments, and the daemon's configuration for them.

use std::net::SocketAddr;

use super::{Daemon, free_address};

/// One file, without rotation and fsync.
pub const FILE: &str = "type = \"file\"\npath = \"out/events.ndjson\"\nrotate_bytes = \"0\"\nrotate_interval = \"0s\"\n\
                        fsync = \"never\"";
/// Files with the default options: rotated, and synced every second.
pub const FILE_BY_DEFAULT: &str = "type = \"file\"\npath = \"out/events.ndjson\"";
/// Discards all events.
pub const DISCARD: &str = "type = \"discard\"";

/// Placeholder for the number of events in an agent's arguments.
const EVENTS: &str = "EVENTS";

/// Agents, and the options of their listener; for `rbkit`, the options of the process that the daemon connects to.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub name: &'static str,
    pub agent: &'static [&'static str],
    pub options: &'static str,
    /// Approximate bytes of an event in a file.
    pub bytes_per_event: u64,
    /// Events of a run in percent of the requested number, so that all runs take about as long.
    pub percent: u64,
}

/// All loads that are measured.
pub const LOADS: [Load; 14] = [
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
    // An agent waits for each response, so several connections are needed to keep the daemon busy; 500 events per request.
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
    // 500 spans per request, of about four spans each trace.
    Load {
        name: "datadog_agent v0.4",
        agent: &["datadog_agent", "--dialect", "v0.4", "--connections", "4"],
        options: "",
        bytes_per_event: 1000,
        percent: 40,
    },
    Load {
        name: "datadog_agent v0.5",
        agent: &["datadog_agent", "--dialect", "v0.5", "--connections", "4"],
        options: "",
        bytes_per_event: 1000,
        percent: 40,
    },
    Load {
        name: "datadog_agent v1.0",
        agent: &["datadog_agent", "--dialect", "v1.0", "--connections", "4"],
        options: "",
        bytes_per_event: 1050,
        percent: 40,
    },
    Load {
        name: "otlp traces",
        agent: &["otlp", "--connections", "4"],
        options: "grpc = \"\"",
        bytes_per_event: 1000,
        percent: 40,
    },
    Load {
        name: "otlp logs",
        agent: &["otlp", "--dialect", "logs", "--connections", "4"],
        options: "grpc = \"\"",
        bytes_per_event: 900,
        percent: 40,
    },
    // A trace of about forty records per request.
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
    // One heap dump, in one message. The daemon requests it after a second.
    Load {
        name: "rbkit dump",
        agent: &["rbkit", "--heap-objects", EVENTS],
        options: "snapshot_interval = \"1s\"",
        bytes_per_event: 700,
        percent: 100,
    },
];

/// A Java agent takes one heartbeat interval to exit. With a much shorter interval, heartbeats would be missed on a busy
/// machine, and the daemon would report that in additional events. `max_stall` makes the agent wait for a slow disk; nothing
/// is shed.
const BRIEF_EXIT: &str = "heartbeat_interval = \"500ms\"\nmax_stall = \"1h\"";

/// Which side connects. The daemon connects to Ruby processes; all other agents connect to the daemon.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    /// The daemon listens on a free port.
    AgentConnects,
    /// The daemon connects to these sockets of the agent.
    DaemonConnects { publish: SocketAddr, request: SocketAddr },
}

impl Load {
    /// The load of that name.
    pub fn named(name: &str) -> &'static Load {
        LOADS.iter().find(|load| load.name == name).expect("a load")
    }

    /// The number of events of a run when `requested` events are requested.
    pub fn events(&self, requested: u64) -> u64 {
        requested * self.percent / 100
    }

    /// The direction, with free addresses for an agent that listens. Called before anything starts.
    pub fn direction(&self) -> Direction {
        match self.agent[0] {
            "rbkit" => Direction::DaemonConnects { publish: free_address(), request: free_address() },
            _ => Direction::AgentConnects,
        }
    }

    /// The configuration of a daemon for this load: `more` are further options of the listener, `sinks` has one table per sink.
    pub fn config(&self, direction: Direction, more: &str, sinks: &[&str]) -> String {
        let options = self.options;
        let mut config = match direction {
            Direction::AgentConnects => {
                let protocol = self.agent[0];
                format!("[listeners.bench]\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n{options}\n{more}\n")
            }
            Direction::DaemonConnects { publish, request } => format!(
                "[listeners.bench]\nprotocol = \"rbkit\"\nreconnect = {{ min = \"10ms\", max = \"50ms\" }}\nmax_stall = \"1h\"\n{more}\n\
                 agents = [{{ publish = \"{publish}\", request = \"{request}\", {options} }}]\n"
            ),
        };
        for (number, sink) in sinks.iter().enumerate() {
            config.push_str(&format!("[sinks.out{number}]\n{sink}\n"));
        }
        config
    }

    /// The arguments of `simulate` that send `events` events to this daemon.
    pub fn arguments(&self, direction: Direction, daemon: &Daemon, events: u64) -> Vec<String> {
        match direction {
            Direction::AgentConnects => self.arguments_to(daemon.address(), events),
            Direction::DaemonConnects { publish, request } => self.arguments_at(publish, request, events),
        }
    }

    /// The arguments of agents that connect to the daemon.
    pub fn arguments_to(&self, to: SocketAddr, events: u64) -> Vec<String> {
        [self.agent_arguments(events), vec!["--to".to_owned(), to.to_string()]].concat()
    }

    /// The arguments of agents that the daemon connects to.
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
