//! The configuration: a TOML file. Reading it reports every error together, each with its place and a valid alternative.
//!
//! Option types live beside their components and read themselves from a [`Section`]; this module knows which components
//! there are.

mod listeners;
mod sinks;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::admin::options::AdminOptions;
use crate::event::MOST_BATCH_BYTES;
use crate::options::{Bounds, ConfigErrors, Diagnostic, Section, bounds, section};
use crate::transport::options::TlsOptions;

pub use listeners::{ListenerConfig, ProtocolOptions};
pub use sinks::{SinkConfig, SinkKind};

/// Everything that an operator can set.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What holds for the whole process.
    pub limits: Limits,
    /// The operator's door into the running daemon.
    pub admin: AdminOptions,
    /// Whether `run` reads the file, and the TLS files that it names, again by itself when one has changed. Off.
    pub watch: bool,
    /// Where agents connect, in the order of the file. Never empty.
    pub listeners: Vec<ListenerConfig>,
    /// Where events go, in the order of the file. Never empty.
    pub sinks: Vec<SinkConfig>,
}

/// What holds for the whole process.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Memory that the daemon takes at most, beside what the process itself takes (see [`Config::bounds`]): what sinks and
    /// other components may take whatever happens, and what all peers share. 256 MiB. At least 1 MiB, and at least what the
    /// configuration needs.
    pub memory_bytes: u64,
    /// What the messages and bodies of one address (of one IPv6 /64) may take of the shared memory before they are decoded;
    /// those of 64 KiB at most are exempt. None, as by default: half of it. At least 1 MiB.
    pub memory_per_address: Option<u64>,
    /// Threads that decode and serve, beside one for each sink. None, as by default: one less than there are processors, at
    /// least 1 and at most 8. 1 to 256.
    pub threads: Option<usize>,
    /// How long a stopping daemon waits for its connections and sinks. 10 s. Zero: not at all; at most 1 h.
    pub shutdown_grace: Duration,
}

/// A configuration, and how it came about.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The effective configuration: a TOML document with every option, which reads as this same configuration.
    pub effective: String,
    /// Every option, as its dotted path and its value in TOML, in the order of `effective`. The value is empty when
    /// the option has no default and is not set.
    pub options: Vec<(String, String)>,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read; or everything that is wrong in it.
    pub fn load(path: &Path) -> Result<Loaded, ConfigErrors> {
        let source = path.display().to_string();
        let unreadable = |why: String| {
            let message = format!("cannot be read: {why}");
            ConfigErrors {
                diagnostics: vec![Diagnostic {
                    source: source.clone(),
                    place: None,
                    message,
                    help: None,
                    notes: vec![],
                }],
            }
        };
        let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|error| unreadable(error.to_string()))?;
        Config::parse(&source, &text)
    }

    /// Reads a TOML document, which errors call `source_name`.
    ///
    /// # Errors
    /// Everything that is wrong in it.
    pub fn parse(source_name: &str, text: &str) -> Result<Loaded, ConfigErrors> {
        let (config, settings) = section::read_document(source_name, text, BUILTIN, |root| {
            let limits = root.section("limits", Limits::read);
            let admin = root.section("admin", AdminOptions::read);
            let watch = root.section("reload", |section| section.bool("watch", false));
            let listeners = listeners::read(root);
            let sinks = sinks::read(root);
            let config = Config { limits, admin, watch, listeners, sinks };
            config.check_memory(root);
            config
        })?;
        let effective = section::render(&settings);
        let options = settings
            .into_iter()
            .map(|setting| (format!("{}.{}", setting.header, setting.key), setting.value.unwrap_or_default()))
            .collect();
        Ok(Loaded { config, effective, options })
    }

    /// The files of everybody's TLS: certificates, keys, authorities.
    pub fn tls_files(&self) -> Vec<PathBuf> {
        let listeners = self.listeners.iter().filter_map(|listener| listener.options.tls.as_ref());
        let of = |tls: &TlsOptions| [Some(tls.cert.clone()), Some(tls.key.clone()), tls.client_ca.clone()];
        listeners.chain(&self.admin.tls).flat_map(of).flatten().collect()
    }

    /// What its components may take of memory at the worst. What is left of `limits.memory_bytes` peers share.
    pub fn bounds(&self) -> Bounds {
        let mut bounds = Bounds::default();
        let threads = self.limits.threads();
        let what = format!("batches being made: {threads} threads x {}", bounds::size(MOST_BATCH_BYTES));
        bounds.add("limits", what, (threads as u64).saturating_mul(MOST_BATCH_BYTES));
        self.admin.declare(&mut bounds);
        self.listeners.iter().for_each(|listener| listener.declare(&mut bounds));
        self.sinks.iter().for_each(|sink| sink.declare(&mut bounds));
        bounds
    }

    fn check_memory(&self, root: &mut Section<'_>) {
        let (limit, bounds) = (self.limits.memory_bytes, self.bounds());
        let least = bounds.least_limit();
        if limit < least {
            let message = format!("`memory_bytes` is {}: too little for this configuration", bounds::size(limit));
            let help = format!("at least {}, or lower what is large among these bytes:", bounds::size(least));
            root.error_together("limits", "memory_bytes", message, help, bounds.lines());
        }
    }

    /// What an empty file means: a loopback listener for every protocol (of rbkit, the process that is dialled), and JSON lines on stdout.
    pub fn builtin() -> Config {
        Config::parse("built in", "").expect("a test reads it").config
    }
}

impl Limits {
    fn read(section: &mut Section<'_>) -> Self {
        let default = Limits::default();
        let grace = Duration::ZERO..=Duration::from_secs(3600);
        Limits {
            memory_bytes: section.size("memory_bytes", default.memory_bytes, 1 << 20..=1024 << 30),
            memory_per_address: section.optional_size("memory_per_address", 1 << 20..=1024 << 30),
            threads: section.optional_count("threads", 1..=256),
            shutdown_grace: section.duration("shutdown_grace", default.shutdown_grace, grace),
        }
    }

    /// How many threads decode and serve.
    pub fn threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // Sinks want a processor, too.
        self.threads.unwrap_or_else(|| processors().saturating_sub(1).clamp(1, MOST_THREADS))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes: 256 << 20,
            memory_per_address: None,
            threads: None,
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

/// Threads where the file does not say how many.
const MOST_THREADS: usize = 8;

/// Names of listeners and sinks appear in file paths, metrics and log lines, which all do well without quoting.
fn check_name(name: &str, section: &mut Section<'_>) {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if !plain || !(1..=64).contains(&name.len()) {
        let help = "a name is 1 to 64 of A-Z a-z 0-9 _ -";
        section.error_at_name(format!("{} is not a name to use here", section.title()), Some(help.into()));
    }
}

/// Who has claimed what only one can have.
struct Names<T>(Vec<(T, String)>);

impl<T: PartialEq> Names<T> {
    /// Claims `thing` for `name`, or answers the name that has it already.
    fn claim(&mut self, thing: T, name: &str) -> Option<&str> {
        match self.0.iter().position(|(claimed, _)| *claimed == thing) {
            Some(index) => Some(&self.0[index].1),
            None => {
                self.0.push((thing, name.to_owned()));
                None
            }
        }
    }
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Names(Vec::new())
    }
}

/// What a file without `[listeners]` or without `[sinks]` gets in their place.
const BUILTIN: &str = r#"
[listeners.spans]
protocol = "datadog"

[listeners.java]
protocol = "bytefrog"

[listeners.desktops]
protocol = "endless"

[listeners.zorka]
protocol = "zico"

[listeners.ruby]
protocol = "rbkit"

[sinks.console]
type = "stdout"
"#;
