//! The configuration: the tree of a TOML file. All errors are reported together, each with its place and a valid
//! alternative.
//!
//! Option types are beside their components and read themselves from a [`Section`]. This module knows which components
//! exist, and which of them cannot stand beside each other.

mod acknowledge;
pub(crate) mod admin;
mod conflicts;
mod listeners;
mod memory;
pub(crate) mod schema;
pub mod secrets;
mod sinks;

use std::path::{Path, PathBuf};
use std::time::Duration;

use admin::{AdminOptions, HISTORY_BYTES};
use tributary_event::MOST_BATCH_BYTES;
use tributary_memory::SystemMemory;
use tributary_options::{Bounds, ConfigErrors, Files, Section, SourceText, bounds, options, read_sources, section};
use tributary_sink_view::options as view;
use tributary_system::processors;
use tributary_transport::options::TlsOptions;

use conflicts::Addresses;
pub use listeners::{FurtherAddress, ListenerConfig, ProtocolOptions};
pub use sinks::{SinkConfig, SinkKind};

/// The whole configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Limits of the whole process.
    pub limits: ProcessLimits,
    /// The admin endpoint.
    pub admin: AdminOptions,
    /// What the page can look back on.
    pub view: view::Options,
    /// Whether `run` reloads the configuration when the file, or a TLS file that it names, has changed. Default: false.
    pub watch: bool,
    /// The listeners, in the order of the file. Never empty.
    pub listeners: Vec<ListenerConfig>,
    /// The sinks, in the order of the file. Never empty.
    pub sinks: Vec<SinkConfig>,
}

options! {
    /// Limits of the whole process.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ProcessLimits {
        /// The most memory that the daemon uses, without that of the process itself (its code, its threads). One part is reserved for
        /// sinks, lists and tables; all peers share the rest, for connections, messages and state. `tributary check --print` shows the
        /// sum. Not set: what this configuration needs, and 256MiB for peers; at most three quarters of the memory of the machine, or of
        /// the limit of the control group (container, unit of systemd) if that is lower. If a value that is set leaves too little for
        /// peers, the configuration is invalid.
        pub memory_bytes: Option<u64> = optional_size(1 << 20..=1024 << 30),
        /// What the system allowed when the configuration was read.
        pub system: Option<SystemMemory> = no_option(SystemMemory::read()),
        /// What the messages and bodies of one address (of one IPv6 /64), also decompressed ones, may take of the shared memory. Those of
        /// at most 64KiB are exempt. Not set: half of the shared memory.
        pub memory_per_address: Option<u64> = optional_size(1 << 20..=1024 << 30),
        /// Threads that decode and serve; each sink has one more. A change needs a restart. Not set: one less than the number of
        /// processors, at least 1 and at most 8.
        pub threads: Option<usize> = optional_count(1..=256),
        /// How long a stop may take, from the signal on, for connections and sinks together; a second more at the latest. The last
        /// quarter, a second at most, is for the sinks alone. "0s": no time. Traced Java programs (bytefrog) need 3 to 8 s, on a very
        /// busy machine 30 s and more. Without them a stop takes milliseconds.
        pub shutdown_grace: Duration =
            duration(Duration::from_secs(60), Duration::ZERO..=Duration::from_secs(3600)),
    }
}

/// A configuration that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The effective configuration: a TOML document with every option, which reads as this same configuration.
    pub effective: String,
    /// The files that it was read from.
    pub files: Files,
    /// The tables that no file has, so that the built-in ones stand in their place.
    pub builtin: Vec<&'static str>,
    /// Every option as its dotted path and its value in TOML, in the order of `effective`. The value is empty for an
    /// option without a default that is not set.
    pub options: Vec<(String, String)>,
}

impl Config {
    /// Reads a file and the files that it includes.
    ///
    /// # Errors
    /// A file cannot be read, or is not valid: then every error in all files.
    pub fn load(path: &Path) -> Result<Loaded, ConfigErrors> {
        let (sources, files) = read_sources(path)?;
        Config::read(&sources, files)
    }

    /// Reads a TOML document. `source_name` is its name in errors.
    ///
    /// # Errors
    /// Every error in the document.
    pub fn parse(source_name: &str, text: &str) -> Result<Loaded, ConfigErrors> {
        Config::read(&[SourceText { name: source_name.to_owned(), text: text.to_owned() }], Files::default())
    }

    fn read(sources: &[SourceText], files: Files) -> Result<Loaded, ConfigErrors> {
        let variable = |name: &str| std::env::var(name).ok();
        let mut builtin = Vec::new();
        let (config, settings) = section::read_documents(sources, BUILTIN, variable, &mut builtin, Config::read_root)?;
        let effective = section::render(&settings);
        let options = settings.into_iter().map(|setting| (setting.path(), setting.value.unwrap_or_default())).collect();
        Ok(Loaded { config, effective, files, builtin, options })
    }

    fn read_root(root: &mut Section<'_>) -> Config {
        root.about(
            "Attributes that the resource of every event has: for the data centre, the environment, the team. A listener's own \
             `resource`, and what an agent sends of itself, come first. At most 32.",
        );
        let labels = root.attributes("labels");
        let limits = root.about("Limits of the whole process.").section("limits", ProcessLimits::read);
        let admin = root
            .about("The admin endpoint: health, metrics, agents and their commands.")
            .section("admin", AdminOptions::read);
        let view = root
            .about("The page: what it can look back on.")
            .section("view", |section| view::Options::read(section, limits.most_memory()));
        let watch = root.about("Changes of the configuration.").section("reload", |section| {
            section.about(
                "SIGHUP reloads this file and the TLS files that it names. With true, the daemon also reloads them within seconds after \
                 one of them has changed.",
            );
            section.bool("watch", false)
        });
        let mut bound = Addresses::default();
        if let Some(listen) = admin.listen {
            bound.claim(listen, "the admin endpoint ([admin] listen)".to_owned());
        }
        if let Some(listen) = admin.metrics_listen
            && let Some((owner, other)) = bound.claim(listen, "[admin] metrics_listen".to_owned())
        {
            let message = format!("`metrics_listen` cannot be {listen}: {owner} listens on {other}");
            root.error_below(&["admin"], "metrics_listen", message, "set another port");
        }
        let listeners = listeners::read(root, &mut bound, &labels);
        let sinks = sinks::read(root, &listeners);
        let config = Config { limits, admin, view, watch, listeners, sinks };
        config.check_acknowledge(root);
        config.check_memory(root);
        config
    }

    /// All TLS files of the listeners and the admin endpoint: certificates, keys, authorities.
    pub fn tls_files(&self) -> Vec<PathBuf> {
        let listeners = self.listeners.iter().filter_map(|listener| listener.options.tls.as_ref());
        let of = |tls: &TlsOptions| [Some(tls.cert.clone()), Some(tls.key.clone()), tls.client_ca.clone()];
        listeners.chain(&self.admin.tls).flat_map(of).flatten().collect()
    }

    /// The memory that components can use at most. Peers share the rest of [`Config::memory_limit`].
    pub fn bounds(&self) -> Bounds {
        let mut bounds = Bounds::default();
        let threads = self.limits.threads();
        let what = format!("unfinished batches: {threads} threads x {}", bounds::size(MOST_BATCH_BYTES));
        bounds.add("limits", what, (threads as u64).saturating_mul(MOST_BATCH_BYTES));
        self.admin.declare(&mut bounds);
        if self.has_view() {
            let parts = self.listeners.len() + self.sinks.len();
            bounds.add("admin", "counters of the last 15 minutes", parts as u64 * HISTORY_BYTES);
            self.view.declare(&mut bounds);
        }
        self.listeners.iter().for_each(|listener| listener.declare(&mut bounds));
        self.sinks.iter().for_each(|sink| sink.declare(&mut bounds));
        if self.listeners.iter().any(ListenerConfig::has_foreign_events) {
            self.sinks.iter().for_each(|sink| sink.declare_messages(&mut bounds));
        }
        bounds
    }

    /// The most threads that run at the same time beside the main one: those that decode, one for each sink that blocks, for the
    /// view, for each recorder and each store of agents, and a few for work in the background.
    pub(crate) fn threads(&self) -> usize {
        let of_sink = |sink: &SinkConfig| match &sink.kind {
            SinkKind::Discard => 0,
            SinkKind::Parquet(options) => options.conversions() + usize::from(options.upload.is_some()),
            _ => 1,
        };
        let of_listener = |listener: &ListenerConfig| {
            let has_store = matches!(listener.protocol, ProtocolOptions::Zico(..));
            usize::from(listener.options.capture.is_some()) + usize::from(has_store)
        };
        let sinks: usize = self.sinks.iter().map(of_sink).sum();
        let listeners: usize = self.listeners.iter().map(of_listener).sum();
        self.limits.threads() + sinks + listeners + usize::from(self.has_view()) + BACKGROUND_THREADS
    }

    /// Whether events are kept for the page.
    pub fn has_view(&self) -> bool {
        self.view.enabled && self.admin.listen.is_some()
    }

    /// The configuration of an empty file: a listener on loopback for every protocol whose agents connect, and JSON lines
    /// on stdout. It connects to no other program, so it has no rbkit listener.
    pub fn builtin() -> Config {
        Config::parse("built in", "").expect("a test reads it").config
    }
}

impl ProcessLimits {
    /// The most memory that the limit can be, whatever the configuration needs.
    fn most_memory(&self) -> u64 {
        self.memory_bytes.or_else(|| Some(self.system?.share())).unwrap_or(u64::MAX)
    }

    /// The number of threads that decode and serve.
    pub fn threads(&self) -> usize {
        // One processor is left for the threads of the sinks.
        self.threads.unwrap_or_else(|| processors().saturating_sub(1).clamp(1, MOST_THREADS))
    }
}

/// Threads for work in the background: a compression, an answer of the API, a resolver of names.
const BACKGROUND_THREADS: usize = 3;
/// The highest default of `threads`.
const MOST_THREADS: usize = 8;

/// The tables that a file without `[listeners]` or without `[sinks]` gets instead.
const BUILTIN: &str = r#"
[listeners.spans]
protocol = "datadog"

[listeners.java]
protocol = "bytefrog"

[listeners.desktops]
protocol = "endless"

[listeners.tracers]
protocol = "datadog_agent"

[listeners.zorka]
protocol = "zico"

[sinks.console]
type = "stdout"
"#;
