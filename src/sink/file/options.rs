//! The options of a file sink.

use std::path::PathBuf;
use std::time::Duration;

use super::template::Template;
use tributary_event::MOST_BATCH_BYTES;
use tributary_options::{Bounds, LONGEST, Section, options};
use tributary_sink::encode::source::{CACHE_BYTES, DEFINED_BYTES};
use tributary_sink::encode::{Format, LineFields};

/// When more than this many encoded bytes wait, they are written without waiting for the worker's flush.
pub const FLUSH_BYTES: usize = 512 * 1024;
/// At most this many files are open; beyond that, the one that was written longest ago is closed.
pub(super) const MAX_OPEN: usize = 16;
/// Capacity that a file keeps for further records while it has none to write.
pub(super) const KEPT_BYTES: usize = 64 * 1024;
/// When more encoded bytes than this are held for files that cannot be written, connections of their listeners wait.
pub(super) const CROWDED_BYTES: usize = 64 * 1024;
/// Encoded bytes that are held for files that cannot be written. When more are held, the whole sink waits.
pub(super) const MAX_HELD_BYTES: usize = 2 * 1024 * 1024;
/// A file is synced when the sources of its events since the last sync have more bytes than this.
pub(super) const UNSYNCED_SOURCES_BYTES: usize = 256 * 1024;
/// Memory that a compression takes: input and output blocks, and the compressor's own tables.
const COMPRESSION_BYTES: u64 = 2 << 20;
/// Memory that the tables and the window of zstd take in addition, at its default level.
const ZSTD_BYTES: u64 = 6 << 20;

/// What a message that is remembered takes: in a set, in a queue, and in the log while that is read.
const MESSAGE_BYTES: u64 = 160;

options! {
    /// The options of a [`super::File`]. Every field has a default, so `Options::default()` is a working sink.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Options checked by check {
        /// The files: a path with strftime items that stand for a date or time of day (UTC, when the collector read the last event of a
        /// batch), and with {protocol}, {listener} and {kind}. No file is written outside the directories before the first of these.
        /// Two sinks cannot have the same path.
        pub path: String = text("events/%Y-%m-%d/{protocol}.ndjson"),
        /// The encoding of events.
        pub format: Format = flat(Format::read),
        /// Which fields JSON lines have.
        pub fields: LineFields = flat(|section| LineFields::read(section, format)),
        /// A file is finished and a new one started before it would grow beyond this size. A single record that is larger gets a file
        /// of its own. 0: not for that reason.
        pub rotate_bytes: u64 = size(128 << 20, 0..=1024 << 30),
        /// A file is finished when it is this old. "0s": not for that reason.
        pub rotate_interval: Duration = duration(Duration::from_secs(3600), Duration::ZERO..=LONGEST),
        /// A file is finished when it has this many records. 0: no limit. For journals only.
        pub rotate_records: u64 = no_option(0),
        /// The compression of finished files: "none", "gzip", "lz4" or "zstd".
        pub compression: Compression =
            choice(Compression::default(), &Compression::ALL.map(|compression| (compression.as_str(), compression))),
        /// How many finished files are kept of each series: the files of all dates whose {protocol} and {listener} are the same, as far
        /// as the path has them. The oldest are removed first. 0: no limit. `tributary check --rate 10000/s` says for how long that is.
        pub keep_files: usize = count(0, 0..=1_000_000),
        /// How many bytes the finished files of each series take on the disk at most. The oldest are removed first. 0: no limit. Else at
        /// least rotate_bytes.
        pub keep_bytes: u64 = size(0, 0..=1 << 60),
        /// How long finished files are kept: from the time in their name, or of their last change for those of past dates without such
        /// a name. "0s": no limit.
        pub keep_time: Duration = duration(Duration::ZERO, Duration::ZERO..=LONGEST * 100),
        /// When written events are forced to the disk: "always" (with every flush), "interval" or "never" (when the system decides to).
        /// With "interval", events of requests that are acknowledged as durable are forced to it immediately.
        pub fsync: Fsync = choice(Fsync::default(), &Fsync::ALL.map(|fsync| (fsync.as_str(), fsync))),
        /// How long events may be in the operating system's memory only, with fsync = "interval". It is checked about once a second, so
        /// less than that has no effect.
        pub fsync_interval: Duration = duration(Duration::from_secs(1), Duration::from_millis(1)..=LONGEST),
        /// How many batches of messages of a stream (listener nats) are remembered as written, beside the files: a batch that is
        /// delivered again is not written again, also after a kill. 0: none.
        pub remembered_messages: usize = count(16_384, 0..=1_000_000),
        /// Listeners of events from streams that {listener} in the path distinguishes: other collectors and their peers choose these
        /// names. Events of further ones go to the files of the listener others, and the log says so.
        pub max_listeners: usize = count(256, 1..=1_000_000),
    }
}

impl Options {
    /// The directory that all files are in, or below: the base of `path`.
    pub fn directory(&self) -> PathBuf {
        Template::parse(&self.path).map(|template| template.base().to_owned()).unwrap_or_default()
    }

    fn check(&self, section: &mut Section<'_>) {
        if let Err(fault) = self.validate() {
            section.error("path", fault, None);
        }
        if self.keep_bytes > 0 && (self.rotate_bytes == 0 || self.keep_bytes < self.rotate_bytes) {
            let help = "a finished file can be as large as rotate_bytes, and would be removed immediately";
            section.error(
                "keep_bytes",
                "`keep_bytes` must be at least rotate_bytes, which must not be 0",
                Some(help.to_owned()),
            );
        }
    }

    /// Whether the files are the journal of another sink, which does what is done to finished files.
    pub(super) fn is_journal(&self) -> bool {
        self.format == Format::Rows
    }

    /// Whether something is done to finished files, so that all files are finished at some time.
    pub(super) fn finishes(&self) -> bool {
        self.compression != Compression::None || self.is_journal()
    }

    /// Checks whether a sink can be made of these options. Does not access the disk.
    ///
    /// # Errors
    /// What is invalid in `path`, as a text for the operator.
    pub fn validate(&self) -> Result<(), String> {
        Template::parse(&self.path).map(drop)
    }

    /// Declares the memory of the messages that are remembered, where there are messages.
    pub fn declare_messages(&self, of: &str, bounds: &mut Bounds) {
        let what = "messages that are remembered (remembered_messages)";
        bounds.add(of, what, self.remembered_messages as u64 * MESSAGE_BYTES);
    }

    /// Declares the memory that such a sink takes at most.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        let kept = (MAX_OPEN * KEPT_BYTES + MAX_HELD_BYTES) as u64;
        bounds.add(of, "lines on their way to files", FLUSH_BYTES as u64 + MOST_BATCH_BYTES + kept);
        if self.fields == LineFields::Compact {
            let most = MAX_OPEN as u64 * (DEFINED_BYTES + UNSYNCED_SOURCES_BYTES as u64);
            bounds.add(of, "sources that open files define", most + CACHE_BYTES);
        }
        if self.compression != Compression::None {
            let zstd = if self.compression == Compression::Zstd { ZSTD_BYTES } else { 0 };
            bounds.add(of, "a file being compressed", COMPRESSION_BYTES + zstd);
        }
    }
}

/// What is done to finished files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// They stay as they are.
    #[default]
    None,
    /// They become `.gz`.
    Gzip,
    /// They become `.lz4`, in the frame format that the `lz4` tool reads.
    Lz4,
    /// They become `.zst`.
    Zstd,
}

impl Compression {
    /// Every compression.
    pub const ALL: [Compression; 4] = [Compression::None, Compression::Gzip, Compression::Lz4, Compression::Zstd];

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }

    /// What is appended to the name of a compressed file.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Compression::None => "",
            Compression::Gzip => ".gz",
            Compression::Lz4 => ".lz4",
            Compression::Zstd => ".zst",
        }
    }
}

/// When written events are forced to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fsync {
    /// Before a flush returns: written events survive a power failure. Slow.
    Always,
    /// Every [`Options::fsync_interval`], and when a batch asks to be durable.
    #[default]
    Interval,
    /// When the operating system decides to: no event is durable.
    Never,
}

impl Fsync {
    /// Every choice.
    pub const ALL: [Fsync; 3] = [Fsync::Always, Fsync::Interval, Fsync::Never];

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Fsync::Always => "always",
            Fsync::Interval => "interval",
            Fsync::Never => "never",
        }
    }
}
