//! The options of a `bytefrog` listener: the configuration of its agents, the events made of their calls, and the
//! limits of one run.

use std::time::Duration;

use tributary_memory::Amplification;
use tributary_options::{LONGEST, Section};
use tributary_profile::limits::ProfileLimits;

use super::configuration;
use super::dictionary::DictionaryLimits;
use super::java_regex;

/// Excludes the packages of the Java platform: Code Pulse agents that trace them hang their program (rule 5).
pub const PLATFORM: &str = "^(java|javax|jdk|sun|com/sun)/";

/// Options of a `bytefrog` listener.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// When the traced program starts to run, and whether its events are sent from the start.
    pub start: Start,
    /// The interval of heartbeats, and the shortest time that every traced program takes to exit. 1 s. 100 ms to 5 s,
    /// in whole milliseconds.
    pub heartbeat_interval: Duration,
    /// Memory of an agent in its program for events that are not sent yet. 8 MiB. 1 MiB to 1 GiB: with little of it,
    /// programs with many threads deadlock.
    pub agent_buffer: u64,
    /// Data connections of each agent. 1. 1 to 64.
    pub data_connections: usize,
    /// Java regular expressions of classes that are not traced, matched from the start of the class name with slashes.
    /// [`PLATFORM`]. Agents of versions 2 to 4 always get that one too, unless `.*` excludes everything.
    pub exclusions: Vec<String>,
    /// Java regular expressions of classes that are traced although they are excluded. None.
    pub inclusions: Vec<String>,
    /// The events made of method calls.
    pub calls: CallOutput,
    /// The limits of a profile of calls.
    pub profile: ProfileLimits,
    /// Whether a log is written when a method runs for the first time in its run, and their number at the end. No.
    pub coverage: bool,
    /// The order in which the events of a run are written.
    pub order: Order,
    /// How long events wait for a missing number before them. Then it is reported as a gap. 10 s. At least 1 ms.
    pub reorder_window: Duration,
    /// How long an event waits for the names of its ids. 10 s. Zero: not at all.
    pub unresolved_wait: Duration,
    /// How long an event waits because a rename of its thread may arrive after it (versions 1 and 2). 200 ms. Zero: not
    /// at all; then short runs have wrong thread names.
    pub rename_wait: Duration,
    /// Events of one run that wait for any of these. Over the limit, the one that has waited longest is written as it
    /// is. 4,000,000: with `agent_buffer` of 8 MiB, numbers of real agents were up to 1.4 million ahead. At least 1024.
    pub max_waiting: usize,
    /// Names of one run that are kept.
    pub dictionary: DictionaryLimits,
    /// Open calls of one run, when calls become spans. Further entries are written as events. 65,536. At least 1.
    pub max_open_calls: usize,
    /// How long full sinks may block the traced program. After that, events are shed, each with a loss, until the
    /// sinks have capacity again. 1 s. Zero: not at all.
    pub max_stall: Duration,
    /// How long a data connection waits for a run that is not open yet before it is refused. 500 ms.
    pub refusal_wait: Duration,
    /// How long an agent that was started may take to open its first data connection. After that its run id is given to
    /// another agent when no other id is free. 10 s. At least 1 s.
    pub data_connection_wait: Duration,
    /// How long an agent may take from its first data connection to its first event. After that its run id is given to
    /// another agent when no other id is free; it is still traced, but no command reaches it. One minute. At least 1 s.
    pub first_event_wait: Duration,
    /// How long an agent whose collector stops may have events to send before it is stopped all the same, and they are lost.
    /// 30 s, and at most half of the grace period. At least 1 s.
    pub stop_wait: Duration,
    /// Run ids that are kept for other addresses: when no more than this number are free, an address gets none of them
    /// if at least this number of its agents have sent no event. 16. 0 to 126; 0: none are kept.
    pub reserved_runs: usize,
    /// How much output a peer may cause per byte that it sends.
    pub amplification: Amplification,
}

/// When the traced program starts to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// Immediately.
    #[default]
    Immediately,
    /// Immediately. The agent gets `suspend` as soon as that is harmless.
    Suspended,
    /// When an operator sends `start`; until then the program waits before its `main`.
    OnCommand,
}

/// The events made of method calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CallOutput {
    /// An event for each entry and each exit.
    #[default]
    Events,
    /// A span for each call.
    Spans,
    /// Both.
    Both,
    /// Samples of stacks, at intervals: the self time and the number of calls of each.
    Profile,
}

/// The order in which the events of a run are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// In the order of arrival.
    #[default]
    Received,
    /// By number, as far as `reorder_window` allows.
    Sequence,
}

impl Options {
    /// Reads the options and reports errors to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = Options::default();
        let starts =
            [("immediately", Start::Immediately), ("suspended", Start::Suspended), ("on_command", Start::OnCommand)];
        let calls = [
            ("events", CallOutput::Events),
            ("spans", CallOutput::Spans),
            ("both", CallOutput::Both),
            ("profile", CallOutput::Profile),
        ];
        let orders = [("received", Order::Received), ("sequence", Order::Sequence)];
        let heartbeats = Duration::from_millis(100)..=Duration::from_secs(5);
        let moment = Duration::from_millis(1);
        let options = Options {
            start: section.choice("start", default.start, &starts),
            heartbeat_interval: section.duration("heartbeat_interval", default.heartbeat_interval, heartbeats),
            agent_buffer: section.size("agent_buffer", default.agent_buffer, MIB..=1 << 30),
            data_connections: section.count("data_connections", default.data_connections, 1..=64),
            exclusions: section.list_of_text_or("exclusions", &default.exclusions),
            inclusions: section.list_of_text("inclusions"),
            calls: section.choice("calls", default.calls, &calls),
            profile: ProfileLimits::read(section),
            coverage: section.bool("coverage", default.coverage),
            order: section.choice("order", default.order, &orders),
            reorder_window: section.duration("reorder_window", default.reorder_window, moment..=LONGEST),
            unresolved_wait: section.duration("unresolved_wait", default.unresolved_wait, Duration::ZERO..=LONGEST),
            rename_wait: section.duration("rename_wait", default.rename_wait, Duration::ZERO..=LONGEST),
            max_waiting: section.count("max_waiting", default.max_waiting, 1024..=10_000_000),
            dictionary: section.section("dictionary", DictionaryLimits::read),
            max_open_calls: section.count("max_open_calls", default.max_open_calls, 1..=10_000_000),
            max_stall: section.duration("max_stall", default.max_stall, Duration::ZERO..=LONGEST),
            refusal_wait: section.duration("refusal_wait", default.refusal_wait, Duration::ZERO..=LONGEST),
            data_connection_wait: section.duration(
                "data_connection_wait",
                default.data_connection_wait,
                Duration::from_secs(1)..=LONGEST,
            ),
            first_event_wait: section.duration(
                "first_event_wait",
                default.first_event_wait,
                Duration::from_secs(1)..=LONGEST,
            ),
            stop_wait: section.duration("stop_wait", default.stop_wait, Duration::from_secs(1)..=LONGEST),
            reserved_runs: section.count("reserved_runs", default.reserved_runs, 0..=126),
            amplification: section
                .section("amplification", |section| Amplification::read(section, default.amplification)),
        };
        if !options.heartbeat_interval.subsec_nanos().is_multiple_of(1_000_000) {
            let why = "agents count in milliseconds";
            section.error("heartbeat_interval", "`heartbeat_interval` must be whole milliseconds", Some(why.into()));
        }
        for (key, expressions) in [("exclusions", &options.exclusions), ("inclusions", &options.inclusions)] {
            for (index, expression) in expressions.iter().enumerate() {
                if let Err(error) = java_regex::check(expression) {
                    let message = format!("expression {} of `{key}`, {error}", index + 1);
                    let help = "agents compile it as a Java regular expression before the program starts, where an \
                                error would harm it";
                    section.error(key, message, Some(help.into()));
                }
            }
        }
        if let Err(error) = configuration::check(&options.exclusions_for(4), &options.inclusions) {
            section.error("exclusions", error.to_string(), None);
        }
        options
    }

    /// The exclusions for agents of a version: for versions 2 to 4 they always exclude the Java platform (rule 5).
    pub fn exclusions_for(&self, version: u8) -> Vec<String> {
        // Only these are certain to exclude all of it.
        let covers_platform =
            |exclusion: &String| matches!(exclusion.as_str(), PLATFORM | ".*" | "^.*" | ".*$" | "^.*$");
        let mut exclusions = self.exclusions.clone();
        if version >= 2 && !exclusions.iter().any(covers_platform) {
            exclusions.push(PLATFORM.to_owned());
        }
        exclusions
    }

    /// How far ahead of a missing number others may be: several times as far as the events that an agent can keep,
    /// because the others are sent while one thread of the program does not get the processor.
    pub fn sequence_window(&self) -> u64 {
        (WINDOW_PER_AGENT_EVENT * self.agent_buffer / MIN_EVENT_BYTES).max(self.max_waiting as u64)
    }

    /// Whether events wait for the numbers before them, which spans and profiles require too.
    pub fn is_ordered(&self) -> bool {
        self.order == Order::Sequence || self.calls != CallOutput::Events
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            start: Start::Immediately,
            heartbeat_interval: Duration::from_secs(1),
            agent_buffer: 8 * MIB,
            data_connections: 1,
            exclusions: vec![PLATFORM.to_owned()],
            inclusions: Vec::new(),
            calls: CallOutput::Events,
            profile: ProfileLimits::default(),
            coverage: false,
            order: Order::Received,
            reorder_window: Duration::from_secs(10),
            unresolved_wait: Duration::from_secs(10),
            rename_wait: Duration::from_millis(200),
            max_waiting: 4_000_000,
            dictionary: DictionaryLimits::default(),
            max_open_calls: 65_536,
            max_stall: Duration::from_secs(1),
            refusal_wait: Duration::from_millis(500),
            data_connection_wait: Duration::from_secs(10),
            first_event_wait: Duration::from_secs(60),
            stop_wait: Duration::from_secs(30),
            reserved_runs: 16,
            amplification: Amplification { ratio: 256, burst: 16 * MIB, rate: 4 * MIB },
        }
    }
}

impl DictionaryLimits {
    fn read(section: &mut Section<'_>) -> Self {
        let default = DictionaryLimits::default();
        DictionaryLimits {
            entries: section.count("entries", default.entries, 1..=100_000_000),
            bytes: section.size("bytes", default.bytes, 64 << 10..=1 << 40),
        }
    }
}

impl Default for DictionaryLimits {
    fn default() -> Self {
        DictionaryLimits { entries: 1_000_000, bytes: 64 * MIB }
    }
}

const MIB: u64 = 1 << 20;
/// The size of the smallest message with a number.
const MIN_EVENT_BYTES: u64 = 15;
const WINDOW_PER_AGENT_EVENT: u64 = 8;
