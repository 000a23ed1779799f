//! `[sinks.NAME]`: the outputs of events.

use std::fmt;
use std::time::Duration;

use super::ListenerConfig;
use super::conflicts::{OutputFiles, check_name};
use crate::options::{Bounds, LONGEST, Section};
use crate::pipeline::options::QueueOptions;
use crate::sink::encode::Format;
use crate::sink::file::{self, Compression, Fsync};
use crate::sink::stdout;

/// One sink.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkConfig {
    /// Its name. 1 to 64 characters of `A-Z a-z 0-9 _ -`.
    pub name: String,
    /// The options of every sink: its queue.
    pub queue: QueueOptions,
    /// The type and its options.
    pub kind: SinkKind,
}

/// The types of sinks. The list is closed: for a new variant the compiler names every place that must change.
#[derive(Clone, Debug, PartialEq)]
pub enum SinkKind {
    /// Standard output.
    Stdout {
        /// The format of events. Default: JSON lines.
        format: Format,
    },
    /// Files.
    File(file::Options),
    /// Nothing is written: for measuring all that comes before a sink.
    Discard,
}

impl fmt::Display for SinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinkKind::Stdout { format } => write!(f, "{} to stdout", format.as_str()),
            SinkKind::File(options) => write!(f, "{} to {}", options.format.as_str(), options.path),
            SinkKind::Discard => f.write_str("discards everything"),
        }
    }
}

impl SinkConfig {
    /// Declares the memory that the sink can use.
    pub(super) fn declare(&self, bounds: &mut Bounds) {
        let of = format!("sinks.{}", self.name);
        self.queue.declare(&of, bounds);
        match &self.kind {
            SinkKind::Stdout { .. } => stdout::declare(&of, bounds),
            SinkKind::File(options) => options.declare(&of, bounds),
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
    let types = [("stdout", Type::Stdout), ("file", Type::File), ("discard", Type::Discard)];
    let kind = section.required_choice("type", &types).map(|of| match of {
        Type::Stdout => SinkKind::Stdout { format: section.choice("format", Format::default(), &formats()) },
        Type::File => SinkKind::File(read_file(section)),
        Type::Discard => SinkKind::Discard,
    });
    let queue = QueueOptions::read(section);
    match &kind {
        Some(SinkKind::File(file)) => {
            if let Some((other, shared)) = outputs.files.claim(name, &file.path, &queue.protocols, listeners) {
                let message = format!("sinks `{other}` and `{name}` write the same file: {shared}");
                section.error("path", message, Some("set another path".into()));
            }
        }
        Some(SinkKind::Stdout { .. }) => {
            if let Some(other) = outputs.stdout.replace(name.to_owned()) {
                section.error("type", format!("sinks `{other}` and `{name}` both write to stdout"), None);
            }
        }
        Some(SinkKind::Discard) | None => {}
    }
    if kind.is_none() {
        section.accept_other_keys();
    }
    Some(SinkConfig { name: name.to_owned(), queue, kind: kind? })
}

#[derive(Clone, Copy, PartialEq)]
enum Type {
    Stdout,
    File,
    Discard,
}

fn read_file(section: &mut Section<'_>) -> file::Options {
    let default = file::Options::default();
    let options = file::Options {
        path: section.text("path", &default.path),
        format: section.choice("format", default.format, &formats()),
        rotate_bytes: section.size("rotate_bytes", default.rotate_bytes, 0..=1024 << 30),
        rotate_interval: section.duration("rotate_interval", default.rotate_interval, Duration::ZERO..=LONGEST),
        compression: section.choice(
            "compression",
            default.compression,
            &[("none", Compression::None), ("gzip", Compression::Gzip), ("lz4", Compression::Lz4)],
        ),
        keep_files: section.count("keep_files", default.keep_files, 0..=1_000_000),
        fsync: section.choice(
            "fsync",
            default.fsync,
            &[("always", Fsync::Always), ("interval", Fsync::Interval), ("never", Fsync::Never)],
        ),
        fsync_interval: section.duration("fsync_interval", default.fsync_interval, Duration::from_millis(1)..=LONGEST),
    };
    if let Err(fault) = options.validate() {
        section.error("path", fault, None);
    }
    options
}

fn formats() -> [(&'static str, Format); 2] {
    Format::ALL.map(|format| (format.as_str(), format))
}
