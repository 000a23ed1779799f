//! `[sinks.NAME]`: where events go.

use std::fmt;

use super::{Names, check_name};
use crate::options::{Bounds, Section};
use crate::pipeline::options::QueueOptions;
use crate::sink::{file, stdout, tcp};

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

/// The types of sinks. A closed enum: a new type is a variant here, and the compiler lists the other places.
#[derive(Clone, Debug, PartialEq)]
pub enum SinkKind {
    /// Standard output.
    Stdout(stdout::Options),
    /// Files.
    File(file::Options),
    /// A TCP connection.
    Tcp(tcp::Options),
    /// Drops all events: for measuring the cost of everything before the sink.
    Discard,
}

impl fmt::Display for SinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinkKind::Stdout(options) => write!(f, "{} to stdout", options.format.as_str()),
            SinkKind::File(options) => write!(f, "{} to {}", options.format.as_str(), options.path),
            SinkKind::Tcp(options) => write!(f, "{} to {}", options.framing.as_str(), options.address),
            SinkKind::Discard => f.write_str("discards everything"),
        }
    }
}

impl SinkConfig {
    /// Declares the memory that it takes at most.
    pub(super) fn declare(&self, bounds: &mut Bounds) {
        let of = format!("sinks.{}", self.name);
        self.queue.declare(&of, bounds);
        match &self.kind {
            SinkKind::Stdout(options) => options.declare(&of, bounds),
            SinkKind::File(options) => options.declare(&of, bounds),
            SinkKind::Tcp(options) => options.declare(&of, bounds),
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

/// `None` when the section does not name a known type.
fn sink(name: &str, section: &mut Section<'_>, taken: &mut Names<String>) -> Option<SinkConfig> {
    check_name(name, section);
    let types = [("stdout", Type::Stdout), ("file", Type::File), ("tcp", Type::Tcp), ("discard", Type::Discard)];
    let kind = section.required_choice("type", &types).map(|of| match of {
        Type::Stdout => SinkKind::Stdout(stdout::Options::read(section)),
        Type::File => SinkKind::File(file::Options::read(section)),
        Type::Tcp => SinkKind::Tcp(tcp::Options::read(section)),
        Type::Discard => SinkKind::Discard,
    });
    if let Some(SinkKind::File(file)) = &kind
        && let Some(other) = taken.claim(file.normalized_path(), name)
    {
        section.error("path", format!("sink `{other}` writes these files already"), None);
    }
    if let Some(SinkKind::Stdout(_)) = &kind
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
    Tcp,
    Discard,
}
