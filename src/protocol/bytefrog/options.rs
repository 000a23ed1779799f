//! What an operator can set on a `bytefrog` listener: what agents are told, what is made of their calls, and how much
//! one run may make the collector remember.

use std::time::Duration;

use crate::memory::Amplification;
use crate::options::{LONGEST, Section};

use super::configuration;
use super::dictionary::DictionaryLimits;

/// Excludes the Java platform's own packages: Code Pulse agents that trace them hang their program (rule 5).
pub const PLATFORM: &str = "^(java|javax|jdk|sun|com/sun)/";

/// Options of a `bytefrog` listener.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// When the traced program begins to run, and whether its events are sent from the start.
    pub start: Start,
    /// How often agents report; also how long every traced program takes at least to exit. 1 s. 100 ms to 5 s, in whole
    /// milliseconds.
    pub heartbeat_interval: Duration,
    /// Memory that an agent may use in its program for events not sent yet. 8 MiB. 1 MiB to 1 GiB: a small one lets
    /// programs with many threads dead-lock.
    pub agent_buffer: u64,
    /// Data connections of each agent. 1. 1 to 64.
    pub data_connections: usize,
    /// Java regular expressions of classes that are not traced, matched from the start of the class's name with
    /// slashes. [`PLATFORM`]. Agents of versions 2 to 4 are told that too where nothing here excludes the platform.
    pub exclusions: Vec<String>,
    /// Expressions of classes that are traced though they are excluded. None.
    pub inclusions: Vec<String>,
    /// What is made of method calls.
    pub calls: Calls,
    /// In which order events go out.
    pub order: Order,
    /// How long a missing number is waited for: then it is a gap, and events behind it go on. 2 s. At least 1 ms.
    pub reorder_window: Duration,
    /// How long an event waits for the names of its ids. 10 s. Zero: not at all.
    pub unresolved_wait: Duration,
    /// How long an event waits because a rename of its thread may come after it (versions 1 and 2). 200 ms. Zero: not at
    /// all; short runs then have wrong thread names.
    pub rename_wait: Duration,
    /// Events of one run that wait for any of these; of more, the longest waiting goes out as it is. 65,536. At least
    /// 1024.
    pub max_waiting: usize,
    /// Names that one run has told.
    pub dictionary: DictionaryLimits,
    /// Calls of one run that are open at once, where calls become spans; entries beyond go out as events. 65,536. At
    /// least 1.
    pub max_open_calls: usize,
    /// How long the traced program may be kept waiting when sinks are full. Then events are shed, each with a loss, until
    /// there is room again. 1 s. Zero: not at all.
    pub max_stall: Duration,
    /// How long a data connection of no known run waits for its refusal. 500 ms.
    pub refusal_wait: Duration,
    /// How much output a peer may cause per byte that it sends.
    pub amplification: Amplification,
}

/// When the traced program begins to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// At once.
    #[default]
    Immediately,
    /// At once, and as soon as it can be done without harm the agent is told to drop its events.
    Suspended,
    /// When the operator says so; until then the program waits before its `main`.
    OnCommand,
}

/// What is made of method calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Calls {
    /// An event for each entry and each exit.
    #[default]
    Events,
    /// A span for each call.
    Spans,
    /// Both.
    Both,
}

/// In which order the events of a run go out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// As they came.
    #[default]
    Received,
    /// By their numbers, as far as `reorder_window` lets them be waited for.
    Sequence,
}

impl Options {
    /// Reads the options; what is wrong is told to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = Options::default();
        let starts =
            [("immediately", Start::Immediately), ("suspended", Start::Suspended), ("on_command", Start::OnCommand)];
        let calls = [("events", Calls::Events), ("spans", Calls::Spans), ("both", Calls::Both)];
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
            order: section.choice("order", default.order, &orders),
            reorder_window: section.duration("reorder_window", default.reorder_window, moment..=LONGEST),
            unresolved_wait: section.duration("unresolved_wait", default.unresolved_wait, Duration::ZERO..=LONGEST),
            rename_wait: section.duration("rename_wait", default.rename_wait, Duration::ZERO..=LONGEST),
            max_waiting: section.count("max_waiting", default.max_waiting, 1024..=10_000_000),
            dictionary: section.section("dictionary", DictionaryLimits::read),
            max_open_calls: section.count("max_open_calls", default.max_open_calls, 1..=10_000_000),
            max_stall: section.duration("max_stall", default.max_stall, Duration::ZERO..=LONGEST),
            refusal_wait: section.duration("refusal_wait", default.refusal_wait, Duration::ZERO..=LONGEST),
            amplification: section
                .section("amplification", |section| Amplification::read(section, default.amplification)),
        };
        if !options.heartbeat_interval.subsec_nanos().is_multiple_of(1_000_000) {
            let why = "agents count in milliseconds";
            section.error("heartbeat_interval", "`heartbeat_interval` must be whole milliseconds", Some(why.into()));
        }
        if let Err(error) = configuration::check(&options.exclusions_for(4), &options.inclusions) {
            section.error("exclusions", error.to_string(), None);
        }
        options
    }

    /// The exclusions that agents of a version are told: never such that they hang their program.
    pub fn exclusions_for(&self, version: u8) -> Vec<String> {
        let covers_platform = |exclusion: &String| {
            let exclusion = exclusion.trim_start_matches('^');
            exclusion.starts_with(".*") || exclusion.contains("java")
        };
        let mut exclusions = self.exclusions.clone();
        if version >= 2 && !exclusions.iter().any(covers_platform) {
            exclusions.push(PLATFORM.to_owned());
        }
        exclusions
    }

    /// Whether events wait for the numbers before them: pairing calls needs that too.
    pub fn is_ordered(&self) -> bool {
        self.order == Order::Sequence || self.calls != Calls::Events
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
            calls: Calls::Events,
            order: Order::Received,
            reorder_window: Duration::from_secs(2),
            unresolved_wait: Duration::from_secs(10),
            rename_wait: Duration::from_millis(200),
            max_waiting: 65_536,
            dictionary: DictionaryLimits::default(),
            max_open_calls: 65_536,
            max_stall: Duration::from_secs(1),
            refusal_wait: Duration::from_millis(500),
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
