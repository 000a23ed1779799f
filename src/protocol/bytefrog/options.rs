//! The options of a `bytefrog` listener: the configuration of its agents, the events made of their calls, and the
//! limits of one run.

use std::time::Duration;

use tributary_memory::Amplification;
use tributary_options::{LONGEST, Section, options};
use tributary_profile::limits::ProfileLimits;

use super::configuration;
use super::dictionary::DictionaryLimits;
use super::java_regex;

/// Excludes the packages of the Java platform: Code Pulse agents that trace them hang their program (rule 5).
pub const PLATFORM: &str = "^(java|javax|jdk|sun|com/sun)/";

options! {
    /// Options of a `bytefrog` listener.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Options checked by check {
        /// When the traced program starts to run: "immediately"; "suspended", immediately, and the agent gets the command to drop
        /// its events as soon as that is harmless; or "on_command", when an operator sends `start`, and until then it waits before
        /// its main.
        pub start: Start = choice(
            Start::Immediately,
            &[("immediately", Start::Immediately), ("suspended", Start::Suspended), ("on_command", Start::OnCommand)]
        ),
        /// The interval of heartbeats, and the shortest time that every traced program takes to exit. Whole milliseconds.
        pub heartbeat_interval: Duration = duration(SECOND, Duration::from_millis(100)..=5 * SECOND),
        /// Memory of an agent in its program for events that are not sent yet. With little of it, programs with many threads
        /// deadlock.
        pub agent_buffer: u64 = size(8 * MIB, MIB..=1 << 30),
        /// Data connections of each agent.
        pub data_connections: usize = count(1, 1..=64),
        /// Java regular expressions of classes that are not traced, matched from the start of the class name with slashes. Only
        /// some packages: exclusions = [".*"] and inclusions = ["^com/example/"]. An expression that Java cannot compile is an
        /// error. Unless ".*" is excluded, agents of versions 2 to 4 get the default as well: tracing the platform hangs their
        /// program.
        pub exclusions: Vec<String> = list_of_text_or(&[PLATFORM.to_owned()]),
        /// Java regular expressions of classes that are traced although they are excluded.
        pub inclusions: Vec<String> = list_of_text(),
        /// The events made of method calls: "events", one for each entry and exit; "spans", one for each call; "both"; or
        /// "profile", at intervals one sample for each stack, with its self time, and one with its number of calls. With spans and
        /// profiles, events are in the order of the agent's numbers, whatever `order` is.
        pub calls: CallOutput = choice(
            CallOutput::Events,
            &[
                ("events", CallOutput::Events),
                ("spans", CallOutput::Spans),
                ("both", CallOutput::Both),
                ("profile", CallOutput::Profile),
            ]
        ),
        /// The limits of a profile of calls.
        pub profile: ProfileLimits = flat(ProfileLimits::read),
        /// Whether a log is written when a method runs for the first time in its run, and at the end the number of methods and
        /// classes.
        pub coverage: bool = bool(false),
        /// The order in which events are written: "received", or "sequence", by the agent's numbers.
        pub order: Order = choice(Order::Received, &[("received", Order::Received), ("sequence", Order::Sequence)]),
        /// How long events wait for a missing number before it is reported as a gap.
        pub reorder_window: Duration = duration(10 * SECOND, Duration::from_millis(1)..=LONGEST),
        /// How long an event waits for the names of its method, thread, exception or line. "0s": not at all.
        pub unresolved_wait: Duration = duration(10 * SECOND, Duration::ZERO..=LONGEST),
        /// How long an event of versions 1 and 2 waits because a rename of its thread may arrive after it. "0s": not at all; then
        /// short runs have wrong thread names.
        pub rename_wait: Duration = duration(Duration::from_millis(200), Duration::ZERO..=LONGEST),
        /// Events of one run that may wait for any of these. Over the limit, the one that has waited longest is written as it is.
        /// With `agent_buffer` of 8MiB, numbers of real agents were up to 1.4 million ahead.
        pub max_waiting: usize = count(4_000_000, 1024..=10_000_000),
        /// Names of one run that are kept.
        pub dictionary: DictionaryLimits = section(DictionaryLimits::read),
        /// Open calls of one run, when calls become spans or a profile. Further entries are written as events; in a profile they
        /// are counted, without their time.
        pub max_open_calls: usize = count(65_536, 1..=10_000_000),
        /// How long full sinks may block a traced program. After that, events are shed, with a loss, until the sinks have capacity
        /// again. "0s": not at all. "365d": until the sinks have capacity, however long the program is blocked.
        pub max_stall: Duration = duration(SECOND, Duration::ZERO..=LONGEST),
        /// How long a data connection waits for a run that is not open yet before it is refused.
        pub refusal_wait: Duration = duration(Duration::from_millis(500), Duration::ZERO..=LONGEST),
        /// How long an agent that was started may take to open its first data connection. After that its run id, one of 127, is
        /// given to another agent when no other id is free.
        pub data_connection_wait: Duration = duration(10 * SECOND, SECOND..=LONGEST),
        /// How long an agent may take from its first data connection to its first event. After that its run id is given to another
        /// agent when no other id is free; it is still traced, but no command reaches it.
        pub first_event_wait: Duration = duration(60 * SECOND, SECOND..=LONGEST),
        /// How long an agent may have events to send when the daemon or the listener stops: it is suspended first, and stopped
        /// when it has sent them, or after this time, and after half of limits.shutdown_grace in any case; what it has not sent
        /// then is lost.
        pub stop_wait: Duration = duration(30 * SECOND, SECOND..=LONGEST),
        /// Run ids that are kept for other addresses: when no more than this number are free, an address gets none of them if at
        /// least this number of its agents have sent no event. 0: none are kept.
        pub reserved_runs: usize = count(16, 0..=126),
        /// How much output a peer may cause.
        pub amplification: Amplification = section(
            |section| Amplification::read(section, Amplification { ratio: 256, burst: 16 * MIB, rate: 4 * MIB })
        ),
    }
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
    fn check(&self, section: &mut Section<'_>) {
        if !self.heartbeat_interval.subsec_nanos().is_multiple_of(1_000_000) {
            let why = "agents count in milliseconds";
            section.error("heartbeat_interval", "`heartbeat_interval` must be whole milliseconds", Some(why.into()));
        }
        for (key, expressions) in [("exclusions", &self.exclusions), ("inclusions", &self.inclusions)] {
            for (index, expression) in expressions.iter().enumerate() {
                if let Err(error) = java_regex::check(expression) {
                    let message = format!("expression {} of `{key}`, {error}", index + 1);
                    let help = "agents compile it as a Java regular expression before the program starts, where an \
                                error would harm it";
                    section.error(key, message, Some(help.into()));
                }
            }
        }
        if let Err(error) = configuration::check(&self.exclusions_for(4), &self.inclusions) {
            section.error("exclusions", error.to_string(), None);
        }
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

const MIB: u64 = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);
/// The size of the smallest message with a number.
const MIN_EVENT_BYTES: u64 = 15;
const WINDOW_PER_AGENT_EVENT: u64 = 8;
