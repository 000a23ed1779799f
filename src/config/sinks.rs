//! `[sinks.NAME]`: the outputs of events.

use std::fmt;

use super::ListenerConfig;
use super::conflicts::{OutputFiles, check_name};
use crate::sink::parquet;
use tributary_options::{Bounds, Section};
use tributary_pipeline::options::QueueOptions;
use tributary_select as select;
use tributary_sink::encode::{Format, LineFields};
use tributary_sink::{stdout, tcp};
use tributary_sink_file as file;
use tributary_sink_http as http;
use tributary_sink_nats as nats;
use tributary_sink_otlp as otlp;

/// One sink.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkConfig {
    /// Its name. 1 to 64 characters of `A-Z a-z 0-9 _ -`.
    pub name: String,
    /// The options of every sink: its queue.
    pub queue: QueueOptions,
    /// Which events it takes, and what it may show of them.
    pub select: select::Options,
    /// The type and its options.
    pub kind: SinkKind,
}

/// The types of sinks. A closed enum: a new type is a variant here, and the compiler lists the other places.
#[derive(Clone, Debug, PartialEq)]
pub enum SinkKind {
    /// Standard output.
    Stdout(stdout::Options),
    /// Files.
    File(file::Options),
    /// Parquet files.
    Parquet(Box<parquet::Options>),
    /// A TCP connection.
    Tcp(tcp::Options),
    /// HTTP requests.
    Http(Box<http::Options>),
    /// A backend of OpenTelemetry.
    Otlp(Box<otlp::Options>),
    /// A stream of NATS JetStream.
    Nats(Box<nats::Options>),
    /// Drops all events: for measuring the cost of everything before the sink.
    Discard,
}

impl fmt::Display for SinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinkKind::Stdout(options) => write!(f, "{} to stdout", lines(options.format, options.fields)),
            SinkKind::File(options) => write!(f, "{} to {}", lines(options.format, options.fields), options.path),
            SinkKind::Parquet(options) => {
                write!(f, "parquet to {}", options.path)?;
                options.upload.iter().try_for_each(|upload| write!(f, ", uploaded to {}", upload.url))
            }
            SinkKind::Tcp(options) => write!(f, "{} to {}", options.framing.as_str(), options.address),
            SinkKind::Http(options) => {
                write!(f, "ndjson to {}", options.endpoint)?;
                match &options.spool {
                    Some(spool) => write!(f, ", spool {}", spool.dir.display()),
                    None => f.write_str(", without a spool"),
                }
            }
            SinkKind::Otlp(options) => {
                write!(f, "OTLP ({}) to {}", options.protocol.as_str(), options.endpoint)?;
                match &options.spool {
                    Some(spool) => write!(f, ", spool {}", spool.dir.display()),
                    None => f.write_str(", without a spool"),
                }
            }
            SinkKind::Nats(options) => {
                write!(f, "ndjson to the stream {} at {}", options.stream, options.servers.shown())?;
                match &options.spool {
                    Some(spool) => write!(f, ", spool {}", spool.dir.display()),
                    None => f.write_str(", without a spool"),
                }
            }
            SinkKind::Discard => f.write_str("discards everything"),
        }
    }
}

/// The lines that a sink writes, in words.
fn lines(format: Format, fields: LineFields) -> &'static str {
    match (format, fields) {
        (Format::Json, LineFields::Compact) => "compact json",
        (format, _) => format.as_str(),
    }
}

impl SinkKind {
    /// The name of the type in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            SinkKind::Stdout(_) => "stdout",
            SinkKind::File(_) => "file",
            SinkKind::Tcp(_) => "tcp",
            SinkKind::Http(_) => "http",
            SinkKind::Otlp(_) => "otlp",
            SinkKind::Nats(_) => "nats",
            SinkKind::Parquet(_) => "parquet",
            SinkKind::Discard => "discard",
        }
    }

    /// The queue on disk of a sink that sends over a network, if it has one.
    pub fn spool(&self) -> Option<&http::SpoolOptions> {
        match self {
            SinkKind::Http(options) => options.spool.as_ref(),
            SinkKind::Otlp(options) => options.spool.as_ref(),
            SinkKind::Nats(options) => options.spool.as_ref(),
            SinkKind::Stdout(_) | SinkKind::File(_) | SinkKind::Parquet(_) | SinkKind::Tcp(_) | SinkKind::Discard => {
                None
            }
        }
    }

    /// Through which proxy its requests go, without its credentials, and what says so. `None`: through none.
    pub fn proxy(&self) -> Option<String> {
        match self {
            SinkKind::Http(options) => options.proxy.describe(&options.endpoint),
            SinkKind::Otlp(options) => options.proxy.describe(&options.endpoint),
            SinkKind::Parquet(options) => options.upload.as_ref()?.proxy(),
            // They do not speak HTTP.
            SinkKind::Stdout(_) | SinkKind::File(_) | SinkKind::Tcp(_) | SinkKind::Nats(_) | SinkKind::Discard => None,
        }
    }

    /// Whether it sends requests that a spool can keep.
    pub fn can_spool(&self) -> bool {
        matches!(self, SinkKind::Http(_) | SinkKind::Otlp(_) | SinkKind::Nats(_))
    }
}

/// Whether a sink can take an event of this listener.
fn takes_events_of(queue: &QueueOptions, select: &select::Options, listener: &ListenerConfig) -> bool {
    if listener.has_foreign_events() {
        return true;
    }
    let protocol = listener.protocol.protocol();
    (queue.protocols.is_empty() || queue.protocols.contains(&protocol)) && select.may_take(protocol, &listener.name)
}

impl SinkConfig {
    /// Whether it can take an event of this listener.
    pub fn takes_events_of(&self, listener: &ListenerConfig) -> bool {
        takes_events_of(&self.queue, &self.select, listener)
    }

    /// Declares the memory that it takes beside this, where a listener has messages of a stream.
    pub(super) fn declare_messages(&self, bounds: &mut Bounds) {
        let of = format!("sinks.{}", self.name);
        if let SinkKind::File(options) = &self.kind {
            options.declare_messages(&of, bounds);
        }
    }

    /// Declares the memory that it takes at most.
    pub(super) fn declare(&self, bounds: &mut Bounds) {
        let of = format!("sinks.{}", self.name);
        self.queue.declare(&of, bounds);
        self.select.declare(&of, bounds);
        match &self.kind {
            SinkKind::Stdout(options) => options.declare(&of, bounds),
            SinkKind::File(options) => options.declare(&of, bounds),
            SinkKind::Parquet(options) => options.declare(&of, bounds),
            SinkKind::Tcp(options) => options.declare(&of, bounds),
            SinkKind::Http(options) => options.declare(&of, bounds),
            SinkKind::Otlp(options) => options.declare(&of, bounds),
            SinkKind::Nats(options) => options.declare(&of, bounds),
            SinkKind::Discard => {}
        }
    }
}

/// What only one sink can write.
#[derive(Default)]
struct Outputs {
    files: OutputFiles,
    /// The sink that writes to stdout.
    stdout: Option<String>,
}

/// Reads all sinks, in the order of the file. They get the events of `listeners`.
pub(super) fn read(root: &mut Section<'_>, listeners: &[ListenerConfig]) -> Vec<SinkConfig> {
    let mut outputs = Outputs::default();
    let sinks = root.named_sections("sinks", |name, section| sink(name, section, listeners, &mut outputs));
    sinks.into_iter().flatten().collect()
}

/// None when the section has no valid `type`.
fn sink(
    name: &str,
    section: &mut Section<'_>,
    listeners: &[ListenerConfig],
    outputs: &mut Outputs,
) -> Option<SinkConfig> {
    check_name(name, section);
    section.about(
        "Where events go: \"stdout\", \"file\", \"parquet\", \"tcp\", \"http\", \"otlp\", \"nats\", or \"discard\", which drops them and has \
         only the options that every sink has.",
    );
    let kind = section.required_choice("type", &TYPES).map(|of| match of {
        Type::Stdout => SinkKind::Stdout(stdout::Options::read(section)),
        Type::File => SinkKind::File(file::Options::read(section)),
        Type::Parquet => SinkKind::Parquet(Box::new(parquet::Options::read(section))),
        Type::Tcp => SinkKind::Tcp(tcp::Options::read(section)),
        Type::Http => SinkKind::Http(Box::new(http::Options::read(section))),
        Type::Otlp => {
            let summed_heaps = listeners.iter().filter(|listener| listener.has_both_heaps());
            let summed_heaps = summed_heaps.map(|listener| listener.name.clone()).collect();
            SinkKind::Otlp(Box::new(otlp::Options { summed_heaps, ..otlp::Options::read(section) }))
        }
        Type::Nats => SinkKind::Nats(Box::new(nats::Options::read(section))),
        Type::Discard => SinkKind::Discard,
    });
    let queue = QueueOptions::read(section);
    let mut names: Vec<_> = listeners.iter().map(|listener| listener.name.as_str()).collect();
    if listeners.iter().any(ListenerConfig::has_foreign_events) {
        // Listeners of other collectors: any name can be meant.
        names.clear();
    }
    let select = select::Options::read(section, &names);
    let claim = |files: &str, section: &mut Section<'_>, outputs: &mut Outputs| {
        let of = listeners.iter().filter(|listener| takes_events_of(&queue, &select, listener));
        if let Some((other, shared)) = outputs.files.claim(name, files, of) {
            let message = format!("sinks `{other}` and `{name}` write the same file: {shared}");
            section.error("path", message, Some("set another path".into()));
        }
    };
    match &kind {
        Some(SinkKind::File(file)) => claim(&file.path, section, outputs),
        Some(SinkKind::Parquet(parquet)) => claim(&parquet.files(), section, outputs),
        Some(SinkKind::Stdout(_)) => {
            if let Some(other) = outputs.stdout.replace(name.to_owned()) {
                section.error("type", format!("sinks `{other}` and `{name}` both write to stdout"), None);
            }
        }
        Some(SinkKind::Tcp(_) | SinkKind::Http(_) | SinkKind::Otlp(_) | SinkKind::Nats(_) | SinkKind::Discard)
        | None => {}
    }
    if kind.is_none() {
        section.accept_other_keys();
    }
    Some(SinkConfig { name: name.to_owned(), queue, select, kind: kind? })
}

/// The types and their names.
pub(super) const TYPES: [(&str, Type); 8] = [
    ("stdout", Type::Stdout),
    ("file", Type::File),
    ("parquet", Type::Parquet),
    ("tcp", Type::Tcp),
    ("http", Type::Http),
    ("otlp", Type::Otlp),
    ("nats", Type::Nats),
    ("discard", Type::Discard),
];

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Type {
    Stdout,
    File,
    Parquet,
    Tcp,
    Http,
    Otlp,
    Nats,
    Discard,
}
