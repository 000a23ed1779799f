//! What an operator can set on a `file` sink.

use std::time::Duration;

use crate::sink::encode::Format;

/// Options of a `file` sink.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Template of the path: strftime, and a closed set of fields.
    pub path: String,
    /// How events are written.
    pub format: Format,
    /// A file that has reached this size in bytes is rotated. 128 MiB. 0: never by size.
    pub rotate_bytes: u64,
    /// A file that was opened this long ago is rotated. 1 h. Zero: never by time.
    pub rotate_interval: Duration,
    /// What rotated files are compressed with.
    pub compression: Compression,
    /// Rotated files that are kept. 48. 0: all.
    pub keep_files: usize,
    /// When written events are forced to the disk.
    pub fsync: Fsync,
    /// The time between two forced writes with [`Fsync::Interval`]. 1 s.
    pub fsync_interval: Duration,
}

/// What rotated files are compressed with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Nothing.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// LZ4 frames.
    Lz4,
}

/// When written events are forced to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fsync {
    /// With every flush.
    Always,
    /// Every `fsync_interval`.
    #[default]
    Interval,
    /// When the system likes.
    Never,
}

impl Options {
    /// Checks the path template.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            path: "events/%Y-%m-%d/{protocol}.ndjson".to_owned(),
            format: Format::Json,
            rotate_bytes: 128 << 20,
            rotate_interval: Duration::from_secs(3600),
            compression: Compression::None,
            keep_files: 48,
            fsync: Fsync::Interval,
            fsync_interval: Duration::from_secs(1),
        }
    }
}
