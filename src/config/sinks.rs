//! `[sinks.NAME]`: where events go.

use std::fmt;
use std::time::Duration;

use super::{Names, check_name};
use crate::options::{Bounds, LONGEST, Section};
use crate::pipeline::options::QueueOptions;
use crate::sink::encode::Format;
use crate::sink::file::{self, Compression, Fsync};
use crate::sink::stdout;

/// One sink.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkConfig {
    /// The operator's name for it. 1 to 64 of `A-Z a-z 0-9 _ -`.
    pub name: String,
    /// What every sink takes: its queue.
    pub queue: QueueOptions,
    /// The type, with what sinks of that type take.
    pub kind: SinkKind,
}

/// The types of sinks. Closed on purpose: a new one is a variant here, and the compiler lists the rest.
#[derive(Clone, Debug, PartialEq)]
pub enum SinkKind {
    /// Standard output.
    Stdout {
        /// How events are written. JSON lines.
        format: Format,
    },
    /// Files.
    File(file::Options),
    /// Nowhere: for measuring what comes before.
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
    /// Says what it may take of memory whatever happens.
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

/// Reads all sinks, in the order of the file.
pub(super) fn read(root: &mut Section<'_>) -> Vec<SinkConfig> {
    let mut taken = Names::default();
    let sinks = root.named_sections("sinks", |name, section| sink(name, section, &mut taken));
    sinks.into_iter().flatten().collect()
}

/// None when the section does not say what kind of sink it is.
fn sink(name: &str, section: &mut Section<'_>, taken: &mut Names<String>) -> Option<SinkConfig> {
    check_name(name, section);
    let types = [("stdout", Type::Stdout), ("file", Type::File), ("discard", Type::Discard)];
    let kind = section.required_choice("type", &types).map(|of| match of {
        Type::Stdout => SinkKind::Stdout { format: section.choice("format", Format::default(), &formats()) },
        Type::File => SinkKind::File(read_file(section)),
        Type::Discard => SinkKind::Discard,
    });
    if let Some(SinkKind::File(file)) = &kind
        && let Some(other) = taken.claim(file.path.clone(), name)
    {
        section.error("path", format!("sink `{other}` writes these files already"), None);
    }
    if let Some(SinkKind::Stdout { .. }) = &kind
        && let Some(other) = taken.claim("-".to_owned(), name)
    {
        section.error("type", format!("sink `{other}` writes to stdout already"), None);
    }
    let queue = QueueOptions::read(section);
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
