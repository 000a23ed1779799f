//! The options of an `rbkit` listener: the processes that it connects to, what they are asked to do, and limits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tributary_memory::Amplification;
use tributary_options::{LONGEST, Section};

/// Options of an `rbkit` listener. The default has no agents; [`Options::read`] has its own default for them.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The processes that the daemon connects to. If neither this nor `listen_publish` is set: the one on this machine, at
    /// the default ports of the gem.
    pub agents: Vec<AgentOptions>,
    /// The address at which processes, or relays, connect their PUB socket to the daemon. None, the default: there is none.
    pub listen_publish: Option<SocketAddr>,
    /// The longest published frame, in bytes. A heap of a million objects is a frame of 60 MB, which is decoded while it
    /// arrives. 256 MiB. 64 KiB to 16 GiB. (`max_message_bytes` limits the part that must be in memory as a whole.)
    pub max_frame_bytes: u64,
    /// The longest reply, in bytes. 64 KiB. 1 KiB to 16 MiB.
    pub max_reply_bytes: u64,
    /// The maximum number of references of one object; of more, the first are kept. 100,000. At least 1.
    pub max_references: u32,
    /// The maximum number of frames of one stack; of more, the innermost are kept. 2048, the most that agents send. At least 1.
    pub max_frames: usize,
    /// The interval of handshakes, which check whether a process still answers (rule 21). 10 s. At least 100 ms.
    pub handshake_interval: Duration,
    /// The time limit for a reply. 5 s. At least 10 ms.
    pub request_timeout: Duration,
    /// The time limit for the reply to `trigger_gc` and `objectspace_snapshot`, which comes when the work is done. 60 s. At
    /// least 10 ms.
    pub slow_request_timeout: Duration,
    /// How long the subscription stays open when the daemon stops, after the profiles of the process were switched off: an
    /// agent sends its last events up to 1.05 s after that. 1.2 s. Zero: the last events are not awaited.
    pub flush_wait: Duration,
    /// The waits before connecting again.
    pub reconnect: Reconnect,
    /// How long reading may wait for full sinks. After that, events are shed and reported as losses until the sinks
    /// have capacity: a process whose subscriber stalls keeps up to a thousand messages in its memory, and then drops
    /// messages. 1 s. Zero: reading does not wait.
    pub max_stall: Duration,
    /// What created and destroyed objects become. Events by default.
    pub objects: Objects,
    /// What the objects of a heap dump become. Objects by default.
    pub heap: HeapDumps,
    /// The limits of summaries.
    pub summary: SummaryLimits,
    /// How much output a peer may cause for each byte that it sends.
    pub amplification: Amplification,
    /// The directory of the file `<listener>.profiles.json`, created if missing: it keeps which profiles the daemon has
    /// switched on in which process, so that after a kill or a crash the next daemon switches them off when it stops. A
    /// relative path is relative to the working directory. None, the default: after a kill or a crash profiles stay on.
    pub state_dir: Option<PathBuf>,
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

/// The limits of summaries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SummaryLimits {
    /// The interval of the metrics of objects. 10 s. 1 s to 1 h.
    pub interval: Duration,
    /// Live objects whose class is remembered, 16 bytes each; further ones are destroyed without a class. 1,000,000. At least
    /// 1.
    pub max_objects: usize,
    /// Classes; the objects of further ones are counted together. 65,536. At least 1.
    pub max_classes: usize,
    /// Classes and sites of a heap dump; the objects of further ones are counted together. 65,536. At least 1.
    pub max_sites: usize,
}

/// A process that the daemon connects to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentOptions {
    /// `HOST:PORT` of its PUB socket. None: there is no subscription.
    pub publish: Option<String>,
    /// `HOST:PORT` of its REP socket. None: no requests are sent.
    pub request: Option<String>,
    /// The profiles that are switched on. Empty by default: each costs the process time (rule 23).
    pub enable: Vec<ProfileKind>,
    /// The clock of the CPU profile. None: it is left as it is.
    pub clock: Option<Clock>,
    /// The interval of requests for a heap dump. Zero, the default: never. At least 1 s.
    pub snapshot_interval: Duration,
    /// The interval of requests for a garbage collection. Zero, the default: never. At least 1 s.
    pub gc_interval: Duration,
    /// The longest frame that it may publish, in bytes. None: `max_frame_bytes` of the listener.
    pub max_frame_bytes: Option<u64>,
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

/// The waits between attempts to connect: `min` first, then twice as long each time up to `max`, each shortened by a random
/// part of up to one half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reconnect {
    /// 100 ms. At least 1 ms.
    pub min: Duration,
    /// 30 s.
    pub max: Duration,
}

/// The process on this machine, at the default ports of the gem.
const DEFAULT_AGENTS: &str = r#"agents = [{ publish = "127.0.0.1:5555", request = "127.0.0.1:5556" }]"#;

impl Options {
    /// Reads the options. Errors are added to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = Options::default();
        let frames = || 64 << 10..=16 << 30;
        let moment = Duration::from_millis(10);
        let listen_publish = section.optional_address("listen_publish");
        let default_agents = if listen_publish.is_some() { "agents = []" } else { DEFAULT_AGENTS };
        let agents =
            section.tables("agents", default_agents, default_agents, |section| AgentOptions::read(section, frames()));
        if agents.as_ref().is_some_and(Vec::is_empty) && listen_publish.is_none() {
            section.error("agents", "`agents` is empty, and there is no `listen_publish`", None);
        }
        Options {
            agents: agents.unwrap_or_default(),
            listen_publish,
            max_frame_bytes: section.size("max_frame_bytes", default.max_frame_bytes, frames()),
            max_reply_bytes: section.size("max_reply_bytes", default.max_reply_bytes, 1 << 10..=16 << 20),
            max_references: section.count("max_references", default.max_references, 1..=100_000_000),
            max_frames: section.count("max_frames", default.max_frames, 1..=1_000_000),
            handshake_interval: section.duration(
                "handshake_interval",
                default.handshake_interval,
                Duration::from_millis(100)..=LONGEST,
            ),
            request_timeout: section.duration("request_timeout", default.request_timeout, moment..=LONGEST),
            slow_request_timeout: section.duration(
                "slow_request_timeout",
                default.slow_request_timeout,
                moment..=LONGEST,
            ),
            flush_wait: section.duration("flush_wait", default.flush_wait, Duration::ZERO..=LONGEST),
            reconnect: section.section("reconnect", Reconnect::read),
            max_stall: section.duration("max_stall", default.max_stall, Duration::ZERO..=LONGEST),
            objects: section.choice(
                "objects",
                default.objects,
                &[("events", Objects::Events), ("summary", Objects::Summary)],
            ),
            heap: section.choice(
                "heap",
                default.heap,
                &[("objects", HeapDumps::Objects), ("summary", HeapDumps::Summary), ("both", HeapDumps::Both)],
            ),
            summary: SummaryLimits::read(section),
            amplification: section
                .section("amplification", |section| Amplification::read(section, default.amplification)),
            state_dir: section.optional_path("state_dir"),
        }
    }
}

impl AgentOptions {
    fn read(section: &mut Section<'_>, frames: std::ops::RangeInclusive<u64>) -> Self {
        let default = AgentOptions::default();
        let profiles = [("memory_profile", ProfileKind::Memory), ("cpu_profile", ProfileKind::Cpu)];
        let clocks = [("cpu", Clock::Cpu), ("wall", Clock::Wall)];
        let options = AgentOptions {
            publish: section.optional_host("publish"),
            request: section.optional_host("request"),
            enable: section.choices("enable", &profiles),
            clock: section.optional_choice("clock", &clocks),
            snapshot_interval: section.duration(
                "snapshot_interval",
                default.snapshot_interval,
                Duration::ZERO..=LONGEST,
            ),
            gc_interval: section.duration("gc_interval", default.gc_interval, Duration::ZERO..=LONGEST),
            max_frame_bytes: section.optional_size("max_frame_bytes", frames),
        };
        if options.publish.is_none() && options.request.is_none() {
            section.error_at_name(
                "an agent needs `publish` or `request`",
                Some("for example { publish = \"127.0.0.1:5555\", request = \"127.0.0.1:5556\" }".into()),
            );
        }
        let asks = !options.enable.is_empty() || options.clock.is_some();
        let asks = asks || !options.snapshot_interval.is_zero() || !options.gc_interval.is_zero();
        if options.request.is_none() && options.publish.is_some() && asks {
            section.error_at_name("an agent without `request` cannot be asked for anything", None);
        }
        for (key, interval) in [("snapshot_interval", options.snapshot_interval), ("gc_interval", options.gc_interval)]
        {
            if !interval.is_zero() && interval < Duration::from_secs(1) {
                section.error(key, format!("`{key}` is out of range"), Some("allowed: 0s, or at least 1s".into()));
            }
        }
        options
    }
}

impl SummaryLimits {
    fn read(section: &mut Section<'_>) -> Self {
        let default = SummaryLimits::default();
        let intervals = Duration::from_secs(1)..=Duration::from_secs(3600);
        SummaryLimits {
            interval: section.duration("summary_interval", default.interval, intervals),
            max_objects: section.count("max_live_objects", default.max_objects, 1..=1_000_000_000),
            max_classes: section.count("max_classes", default.max_classes, 1..=16_777_216),
            max_sites: section.count("max_sites", default.max_sites, 1..=16_777_216),
        }
    }
}

impl Default for SummaryLimits {
    fn default() -> Self {
        let interval = Duration::from_secs(10);
        SummaryLimits { interval, max_objects: 1_000_000, max_classes: 65_536, max_sites: 65_536 }
    }
}

impl Reconnect {
    fn read(section: &mut Section<'_>) -> Self {
        let default = Reconnect::default();
        let moment = Duration::from_millis(1);
        let reconnect = Reconnect {
            min: section.duration("min", default.min, moment..=LONGEST),
            max: section.duration("max", default.max, moment..=LONGEST),
        };
        if reconnect.max < reconnect.min {
            section.error("max", "`max` is less than `min`", None);
        }
        reconnect
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            agents: Vec::new(),
            listen_publish: None,
            max_frame_bytes: 256 << 20,
            max_reply_bytes: 64 << 10,
            max_references: 100_000,
            max_frames: 2048,
            handshake_interval: Duration::from_secs(10),
            request_timeout: Duration::from_secs(5),
            slow_request_timeout: Duration::from_secs(60),
            flush_wait: Duration::from_millis(1_200),
            reconnect: Reconnect::default(),
            max_stall: Duration::from_secs(1),
            objects: Objects::default(),
            heap: HeapDumps::default(),
            summary: SummaryLimits::default(),
            amplification: Amplification { ratio: 256, burst: 16 << 20, rate: 4 << 20 },
            state_dir: None,
        }
    }
}

impl Default for Reconnect {
    fn default() -> Self {
        Reconnect { min: Duration::from_millis(100), max: Duration::from_secs(30) }
    }
}
