//! The options of a `datadog_agent` listener.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tributary_event::ResourceValue;
use tributary_memory::Amplification;
use tributary_options::{Bounds, LONGEST, Section, options};
use tributary_protocol::repeats::REPEAT_BYTES;

/// The memory of the upper half of a trace's id that is remembered.
const TRACE_ID_BYTES: u64 = 96;
/// The memory of the keys of tags that are kept for the next bodies.
const KEYS_BYTES: u64 = 1 << 20;
/// The memory of a string of a table.
const STRING_BYTES: u64 = 8;

options! {
    /// Options of a `datadog_agent` listener.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Options checked by check {
        /// The path of a Unix socket to listen on, beside or instead of `listen`, e.g. "/var/run/datadog/apm.socket". Empty: none.
        pub unix: PathBuf = text("").into(),
        /// The permissions of Unix sockets, in octal digits. The default lets every process write, as that of Datadog's Agent.
        pub unix_mode: SocketMode = flat(SocketMode::read),
        /// The largest body. The default is that of Datadog's Agent.
        pub max_body_bytes: u64 = size(25 << 20, 1 << 10..=1 << 30),
        /// The number of strings of one body of version 0.5 or 1.0.
        pub max_strings: usize = count(1_000_000, 1..=100_000_000),
        /// The number of tags of one span, and of its links and of its events each; further ones are counted and dropped.
        pub max_span_entries: usize = count(4_096, 1..=1_000_000),
        /// The longest text; a longer one is cut at a character.
        pub max_text_bytes: u64 = size(256 << 10, 16..=16 << 20),
        /// The number of traces whose ids have 128 bits that are remembered: spans that name the lower half only get the upper one.
        /// 0: none.
        pub max_trace_ids: usize = count(100_000, 0..=10_000_000),
        /// How long a body of traces is remembered after it was delivered. One that is sent again is answered and counted, and
        /// not written again. "0s": none is.
        pub repeat_time: Duration = duration(Duration::from_secs(60), Duration::ZERO..=LONGEST),
        /// The number of bodies that are remembered.
        pub max_repeats: usize = count(10_000, 1..=10_000_000),
        /// Tracers send a body again that is not answered within 2 to 3 seconds. After this time a body of traces is answered although
        /// not all sinks have its events, which wait in memory. At most `delivery_timeout`. "0s": never.
        pub answer_within: Duration = duration(Duration::from_secs(1), Duration::ZERO..=LONGEST),
        /// Which share of the traces tracers keep, from 0 to 1, by "service:NAME,env:NAME"; `default` is for all others. With 0 a
        /// tracer sends its spans and marks them as unsampled.
        pub sample_rates: SampleRates = flat(SampleRates::read),
        /// The names of attributes, spans and kinds: those of Datadog's tracers ("datadog"), or those of
        /// OpenTelemetry's semantic conventions ("opentelemetry").
        pub semantics: Semantics = choice(
            Semantics::Datadog,
            &[("datadog", Semantics::Datadog), ("opentelemetry", Semantics::OpenTelemetry)],
        ),
        /// Whether messages of tracers about themselves become logs. They have host names, dependencies and all settings.
        pub telemetry: bool = bool(false),
        /// Metrics, events and service checks of DogStatsD clients, over UDP, Unix datagrams and `/dogstatsd/v2/proxy`.
        pub dogstatsd: DogStatsDOptions = section(DogStatsDOptions::read),
        /// What becomes of uploads of profilers: their samples are written ("samples"), the files are only kept, see `keep_profiles`
        /// ("keep"), or they are answered and counted ("off").
        pub profiles: ProfileMode = choice(
            ProfileMode::Samples,
            &[("samples", ProfileMode::Samples), ("keep", ProfileMode::Keep), ("off", ProfileMode::Off)],
        ),
        /// Where the files of uploads are kept as they came, with recordings of Java, as
        /// <service>/<time>-<runtime id>-<file>.
        pub keep_profiles: KeepProfiles = section(KeepProfiles::read),
        /// The most bytes of the profiles of one upload when they are decompressed.
        pub max_inflated_bytes: u64 = size(64 << 20, 1 << 10..=1 << 30),
        /// The number of samples, functions, locations, lines and strings of one profile, each.
        pub max_profile_entries: usize = count(250_000, 1..=100_000_000),
        /// The number of frames of a stack; the outermost ones of a deeper stack are left out.
        pub max_frames: usize = count(1_024, 1..=1_000_000),
        /// How much output a request may cause.
        pub amplification: Amplification = section(
            |section| Amplification::read(section, Amplification { ratio: 64, burst: 64 << 20, rate: 4 << 20 })
        ),
    }
}

impl Options {
    /// Reports options that contradict each other.
    fn check(&mut self, section: &mut Section<'_>) {
        if self.profiles == ProfileMode::Keep && !self.keep_profiles.is_on() {
            let help = "write keep_profiles = { dir = \"…\" }".to_owned();
            section.error("profiles", "\"keep\" needs a directory (keep_profiles.dir)", Some(help));
        }
    }

    /// Declares the memory that a listener can use beside its requests.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        bounds.need(self.max_body_bytes.saturating_add(self.max_strings as u64 * STRING_BYTES));
        let what = format!("{} bodies whose repeats are recognised (max_repeats)", self.max_repeats);
        bounds.add(of, what, self.max_repeats as u64 * REPEAT_BYTES);
        bounds.add(of, "keys of tags", KEYS_BYTES);
        let what = format!("{} ids of traces (max_trace_ids)", self.max_trace_ids);
        bounds.add(of, what, self.max_trace_ids as u64 * TRACE_ID_BYTES);
    }
}

options! {
    /// DogStatsD.
    #[derive(Clone, Debug, PartialEq)]
    pub struct DogStatsDOptions {
        /// The UDP address to listen on, e.g. "127.0.0.1:8125", the default of every client. Empty: none.
        pub listen: Option<SocketAddr> = address_or_none(None),
        /// The path of a Unix datagram socket to listen on. Empty: none.
        pub unix: PathBuf = text("").into(),
        /// How long values are aggregated before they are written.
        pub flush_interval: Duration = duration(Duration::from_secs(10), Duration::from_secs(1)..=LONGEST),
        /// The number of series of one interval. Values of further ones are written without aggregation.
        pub max_series: usize = count(10_000, 1..=10_000_000),
    }
}

options! {
    /// Where the files of uploads of profilers are kept.
    #[derive(Clone, Debug, PartialEq)]
    pub struct KeepProfiles {
        /// The directory, made when it is first needed; each listener has a subdirectory with its name. Empty: none is kept.
        pub dir: PathBuf = text("").into(),
        /// Bytes of all that one listener keeps; the oldest is removed first.
        pub max_bytes: u64 = size(1 << 30, 1 << 20..=1 << 50),
        /// How long a file is kept. "0s": as long as there is space.
        pub keep_time: Duration = duration(Duration::from_secs(7 * 24 * 3600), Duration::ZERO..=LONGEST * 100),
    }
}

impl KeepProfiles {
    /// Whether files are kept.
    pub fn is_on(&self) -> bool {
        !self.dir.as_os_str().is_empty()
    }
}

/// Whose names spans have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub enum Semantics {
    #[default]
    Datadog,
    OpenTelemetry,
}

/// What becomes of uploads of profilers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum ProfileMode {
    Samples,
    Keep,
    Off,
}

/// The permissions of a Unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketMode(pub u32);

impl SocketMode {
    /// Reads the key `unix_mode`.
    pub fn read(section: &mut Section<'_>) -> SocketMode {
        let text = section.text("unix_mode", "0722");
        let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777);
        SocketMode(mode.unwrap_or_else(|| {
            section.error(
                "unix_mode",
                format!("`{text}` is no permission in octal digits"),
                Some("write \"0722\"".to_owned()),
            );
            0o722
        }))
    }
}

/// The shares of traces that tracers keep.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleRates {
    /// The rate of services that are not named.
    pub default: f64,
    /// The others, by `service:NAME,env:NAME`.
    pub rates: Vec<(String, f64)>,
}

impl Default for SampleRates {
    fn default() -> Self {
        SampleRates { default: 1.0, rates: Vec::new() }
    }
}

impl SampleRates {
    /// Reads the table `sample_rates`.
    pub fn read(section: &mut Section<'_>) -> SampleRates {
        const KEY: &str = "sample_rates";
        let mut rates = SampleRates::default();
        for (name, value) in section.attributes(KEY) {
            let rate = match value {
                ResourceValue::F64(rate) => Some(rate),
                ResourceValue::I64(rate) => Some(rate as f64),
                ResourceValue::U64(rate) => Some(rate as f64),
                ResourceValue::Bool(_) | ResourceValue::Text(_) => None,
            };
            let Some(rate) = rate.filter(|rate| (0.0..=1.0).contains(rate)) else {
                section.error(KEY, format!("the rate of `{name}` is no number from 0 to 1"), None);
                continue;
            };
            let is_service = name.strip_prefix("service:").is_some_and(|rest| rest.contains(",env:"));
            match name.as_str() {
                "default" => rates.default = rate,
                _ if is_service => rates.rates.push((name, rate)),
                _ => {
                    let help = "write \"service:NAME,env:NAME\" = 0.5, or default = 0.5";
                    section.error(KEY, format!("`{name}` names no service and environment"), Some(help.to_owned()));
                }
            }
        }
        rates
    }

    /// The answer to a body of traces: `{"rate_by_service":{…}}`. The empty service is the one for all others.
    pub(super) fn response(&self) -> String {
        let default = ("service:,env:", self.default);
        let all = self.rates.iter().map(|(name, rate)| (name.as_str(), *rate)).chain([default]);
        let rates: serde_json::Map<_, _> = all.map(|(name, rate)| (name.to_owned(), rate.into())).collect();
        serde_json::json!({ "rate_by_service": rates }).to_string()
    }
}
