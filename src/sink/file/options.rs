//! What the operator can say about a file sink.

use std::time::Duration;

use super::outputs::{KEPT_BYTES, MOST_OPEN};
use super::template::Template;
use super::{FLUSH_BYTES, compress};
use crate::event::MOST_BATCH_BYTES;
use crate::options::Bounds;
use crate::sink::encode::Format;

/// The options of a [`super::File`]. Every field has a default, so `Options::default()` is a working sink.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Where the live files are. A template in UTC: strftime items that stand for a date or time of day (`%Y`, `%m`,
    /// `%d`, `%H`, …; the moment is the collector's, when it read the last event of a batch) and the fields
    /// `{protocol}` and `{listener}`. The directories before the first item or field are the base, and nothing is
    /// ever written outside it. Default `events/%Y-%m-%d/{protocol}.ndjson`.
    pub path: String,
    /// How events are written. Default JSON lines.
    pub format: Format,
    /// A file is finished before it would grow beyond this many bytes. A single record that is larger gets a file of
    /// its own. Default 128 MiB; 0: no limit.
    pub rotate_bytes: u64,
    /// A file that holds something is finished this long after it was opened. Default 1 hour; zero: never.
    pub rotate_interval: Duration,
    /// What is done to a finished file. Default nothing.
    pub compression: Compression,
    /// How many finished files are kept, counted over everything that `path` stands for: all protocols, listeners and
    /// dates together. The oldest go first. Default 48; 0: all of them.
    pub keep_files: usize,
    /// When written events are forced to the disk. Default every [`Options::fsync_interval`].
    pub fsync: Fsync,
    /// How long events may stay with the operating system only, when `fsync` is [`Fsync::Interval`]. Looked at about
    /// once a second, so less than that has no effect. Default 1 second.
    pub fsync_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            path: "events/%Y-%m-%d/{protocol}.ndjson".to_owned(),
            format: Format::default(),
            rotate_bytes: 128 * 1024 * 1024,
            rotate_interval: Duration::from_secs(3600),
            compression: Compression::default(),
            keep_files: 48,
            fsync: Fsync::default(),
            fsync_interval: Duration::from_secs(1),
        }
    }
}

impl Options {
    /// Whether a sink can be made of these options. Looks at nothing on disk.
    ///
    /// # Errors
    /// What is wrong with `path`, in words for the operator.
    pub fn validate(&self) -> Result<(), String> {
        Template::parse(&self.path).map(drop)
    }

    /// Says what such a sink may take of memory whatever happens.
    pub(crate) fn declare(&self, of: &str, bounds: &mut Bounds) {
        let kept = (MOST_OPEN * KEPT_BYTES) as u64;
        bounds.add(of, "lines on their way to files", FLUSH_BYTES as u64 + MOST_BATCH_BYTES + kept);
        if self.compression != Compression::None {
            bounds.add(of, "a file being compressed", compress::MOST_BYTES);
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
}

impl Compression {
    /// Every compression.
    pub const ALL: [Compression; 3] = [Compression::None, Compression::Gzip, Compression::Lz4];

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Lz4 => "lz4",
        }
    }

    /// What is appended to the name of a compressed file.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Compression::None => "",
            Compression::Gzip => ".gz",
            Compression::Lz4 => ".lz4",
        }
    }
}

/// When written events are forced to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fsync {
    /// Before a flush answers: what was acknowledged survives a power failure. Slow.
    Always,
    /// Every [`Options::fsync_interval`].
    #[default]
    Interval,
    /// When the operating system sees fit.
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
