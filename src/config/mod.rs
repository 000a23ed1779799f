//! The configuration: a TOML file, read so that everything wrong is told at once, with its place and what would be
//! right.
//!
//! Option types live beside their components and read themselves from a [`Section`]; this module knows which
//! components there are. [`section`], [`units`] and [`diagnostic`] know none, and components of any floor may use
//! them.

pub mod diagnostic;
mod listeners;
pub mod section;
mod sinks;
pub mod units;
mod value;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::admin::options::AdminOptions;
use crate::transport::options::TlsOptions;

pub use diagnostic::{ConfigErrors, Diagnostic};
pub use listeners::{ListenerConfig, ProtocolOptions};
pub use section::Section;
pub use sinks::{SinkConfig, SinkKind};
pub use units::{ByteSize, LONGEST};
pub use value::Whole;

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
    /// Memory for what peers make the collector remember (dictionaries, waiting records), of all connections
    /// together. 256 MiB. At least 1 MiB.
    pub memory_bytes: u64,
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
            ConfigErrors { diagnostics: vec![Diagnostic { source: source.clone(), place: None, message, help: None }] }
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
            Config { limits, admin, watch, listeners, sinks }
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
            shutdown_grace: section.duration("shutdown_grace", default.shutdown_grace, grace),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits { memory_bytes: 256 << 20, shutdown_grace: Duration::from_secs(10) }
    }
}

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
