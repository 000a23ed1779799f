//! The options of an `rbkit` listener: the processes that it connects to, what they are asked to do, and limits.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use tributary_memory::Amplification;
use tributary_options::{LONGEST, Section, defaults, options};

options! {
    /// Options of an `rbkit` listener. The default has no agents; [`Options::read`] has its own default for them.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Options() {
        /// The address at which processes or relays connect their PUB socket. If it is set, `agents` is empty by default.
        pub listen_publish: Option<SocketAddr> = optional_address(),
        /// The processes to connect to, by the addresses (HOST:PORT) of their two sockets; one of them may be omitted.
        pub agents: Vec<AgentOptions> = flat(|section| read_agents(section, listen_publish)),
        /// The longest published frame. A heap of a million objects is one of 60 MB, which is decoded while it arrives.
        /// max_message_bytes limits the part that must be in memory as a whole.
        pub max_frame_bytes: u64 = size(256 << 20, FRAMES),
        /// The longest reply.
        pub max_reply_bytes: u64 = size(64 << 10, 1 << 10..=16 << 20),
        /// The most references of one object; of more, the first are kept.
        pub max_references: u32 = count(100_000, 1..=100_000_000),
        /// The most frames of one stack; of more, the innermost are kept. Agents send 2048 at most.
        pub max_frames: usize = count(2048, 1..=1_000_000),
        /// The interval of handshakes, which check whether a process still answers (rule 21).
        pub handshake_interval: Duration = duration(10 * SECOND, Duration::from_millis(100)..=LONGEST),
        /// The time limit for a reply.
        pub request_timeout: Duration = duration(5 * SECOND, Duration::from_millis(10)..=LONGEST),
        /// The time limit for the reply to trigger_gc and objectspace_snapshot, which comes when the work is done.
        pub slow_request_timeout: Duration = duration(60 * SECOND, Duration::from_millis(10)..=LONGEST),
        /// How long the subscription stays open when the daemon stops, after the profiles were switched off: an agent sends its
        /// last events up to 1.05 s after that. "0s": they are not awaited.
        pub flush_wait: Duration = duration(Duration::from_millis(1_200), Duration::ZERO..=LONGEST),
        /// The waits before connecting again: the first, then twice as long each time, up to the longest. Each is shortened by a
        /// random part of up to one half.
        pub reconnect: Reconnect = section(Reconnect::read),
        /// How long reading may wait for full sinks. After that, events are shed until the sinks have capacity: a process whose
        /// subscriber stalls keeps up to a thousand messages in its memory, and then drops messages. "0s": reading does not wait.
        pub max_stall: Duration = duration(SECOND, Duration::ZERO..=LONGEST),
        /// What created and destroyed objects become: "events" (one for each), or "summary": the metrics rbkit.objects.created,
        /// rbkit.objects.destroyed and rbkit.objects.live of each class, at intervals of summary_interval.
        pub objects: Objects =
            choice(Objects::default(), &[("events", Objects::Events), ("summary", Objects::Summary)]),
        /// What the objects of a heap dump become: "objects" (an event for each), "summary" (samples rbkit.heap of each class and
        /// site), or "both".
        pub heap: HeapDumps = choice(
            HeapDumps::default(),
            &[("objects", HeapDumps::Objects), ("summary", HeapDumps::Summary), ("both", HeapDumps::Both)]
        ),
        /// The limits of summaries.
        pub summary: SummaryLimits = flat(SummaryLimits::read),
        /// How much output a process may cause.
        pub amplification: Amplification = section(
            |section| Amplification::read(section, Amplification { ratio: 256, burst: 16 << 20, rate: 4 << 20 })
        ),
        /// The directory of the file LISTENER.profiles.json, created if missing, which keeps the profiles that the daemon has
        /// switched on, by process: after a kill or a crash of the daemon the next one switches them off. Not set: after a kill or a
        /// crash they stay on.
        pub state_dir: Option<PathBuf> = optional_path(),
    }
}

/// What created and destroyed objects become.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Objects {
    /// An event for each.
    #[default]
    Events,
    /// Metrics by class, at intervals.
    Summary,
}

/// What the objects of a heap dump become.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HeapDumps {
    /// An event for each.
    #[default]
    Objects,
    /// Samples by class and site.
    Summary,
    /// Both.
    Both,
}

options! {
    /// The limits of summaries.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct SummaryLimits {
        /// The interval of the metrics of objects.
        pub interval: Duration as "summary_interval" = duration(10 * SECOND, SECOND..=3600 * SECOND),
        /// Live objects whose class is remembered, 16 bytes each; further objects are counted without a class when they are
        /// destroyed.
        pub max_objects: usize as "max_live_objects" = count(1_000_000, 1..=1_000_000_000),
        /// Classes; the objects of further ones are counted together.
        pub max_classes: usize = count(65_536, 1..=16_777_216),
        /// Classes and sites of a heap dump; the objects of further ones are counted together.
        pub max_sites: usize = count(65_536, 1..=16_777_216),
    }
}

options! {
    /// A process that the daemon connects to.
    #[derive(Clone, Debug, PartialEq)]
    pub struct AgentOptions checked by check {
        /// HOST:PORT of its PUB socket. Not set: there is no subscription.
        pub publish: Option<String> = optional_host(),
        /// HOST:PORT of its REP socket. Not set: no requests are sent.
        pub request: Option<String> = optional_host(),
        /// The profiles to switch on. They are expensive: in real programs memory_profile costs about 8 times the CPU time;
        /// cpu_profile with clock = "wall" and a recursion of 3,000 calls 17 times, and it sends 155 MB in 5 s. Try it on a copy of
        /// the program first.
        pub enable: Vec<ProfileKind> =
            choices(&[("memory_profile", ProfileKind::Memory), ("cpu_profile", ProfileKind::Cpu)]),
        /// The clock of the CPU profile: one sample for each tick of the kernel ("cpu"), or one for each millisecond ("wall"). Not
        /// set: it is left as it is.
        pub clock: Option<Clock> = optional_choice(&[("cpu", Clock::Cpu), ("wall", Clock::Wall)]),
        /// The interval of requests for a heap dump, at least 1s. "0s": never.
        pub snapshot_interval: Duration = duration(Duration::ZERO, Duration::ZERO..=LONGEST),
        /// The interval of requests for a garbage collection, at least 1s. "0s": never.
        pub gc_interval: Duration = duration(Duration::ZERO, Duration::ZERO..=LONGEST),
        /// The longest frame that it may publish. Not set: max_frame_bytes of the listener.
        pub max_frame_bytes: Option<u64> = optional_size(FRAMES),
    }
}

/// A profile of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProfileKind {
    /// Objects that are created and destroyed, garbage collections and their statistics.
    Memory,
    /// Samples of the stack.
    Cpu,
}

/// The clock of the CPU profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// CPU time of the process.
    Cpu,
    /// Wall-clock time.
    Wall,
}

options! {
    /// The waits between attempts to connect: `min` first, then twice as long each time up to `max`, each shortened by a random
    /// part of up to one half.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Reconnect checked by check {
        /// The first wait.
        pub min: Duration = duration(Duration::from_millis(100), Duration::from_millis(1)..=LONGEST),
        /// The longest wait.
        pub max: Duration = duration(30 * SECOND, Duration::from_millis(1)..=LONGEST),
    }
}

/// The process on this machine, at the default ports of the gem.
const DEFAULT_AGENTS: &str = r#"agents = [{ publish = "127.0.0.1:5555", request = "127.0.0.1:5556" }]"#;

impl Default for Options {
    fn default() -> Self {
        let mut options = defaults(Options::read);
        options.agents.clear();
        options
    }
}

fn read_agents(section: &mut Section<'_>, listen_publish: Option<SocketAddr>) -> Vec<AgentOptions> {
    let default = if listen_publish.is_some() { "agents = []" } else { DEFAULT_AGENTS };
    let agents = section.tables("agents", default, default, AgentOptions::read);
    if agents.as_ref().is_some_and(Vec::is_empty) && listen_publish.is_none() {
        section.error("agents", "`agents` is empty, and there is no `listen_publish`", None);
    }
    agents.unwrap_or_default()
}

impl AgentOptions {
    fn check(&self, section: &mut Section<'_>) {
        if self.publish.is_none() && self.request.is_none() {
            section.error_at_name(
                "an agent needs `publish` or `request`",
                Some("for example { publish = \"127.0.0.1:5555\", request = \"127.0.0.1:5556\" }".into()),
            );
        }
        let asks = !self.enable.is_empty() || self.clock.is_some();
        let asks = asks || !self.snapshot_interval.is_zero() || !self.gc_interval.is_zero();
        if self.request.is_none() && self.publish.is_some() && asks {
            section.error_at_name("an agent without `request` cannot be asked for anything", None);
        }
        for (key, interval) in [("snapshot_interval", self.snapshot_interval), ("gc_interval", self.gc_interval)] {
            if !interval.is_zero() && interval < Duration::from_secs(1) {
                section.error(key, format!("`{key}` is out of range"), Some("allowed: 0s, or at least 1s".into()));
            }
        }
    }
}

impl Reconnect {
    fn check(&self, section: &mut Section<'_>) {
        if self.max < self.min {
            section.error("max", "`max` is less than `min`", None);
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// The longest frames that can be configured.
const FRAMES: RangeInclusive<u64> = 64 << 10..=16 << 30;
