//! The options of the spool of a sink.

use std::path::PathBuf;

use super::WhenFull;
use crate::options::Section;
use crate::spool::Limits;

/// The size of a segment of a spool. A small spool has smaller ones.
const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
/// A spool has at least this many segments, so that dropping the oldest one leaves most of it.
const LEAST_SEGMENTS: u64 = 8;

/// The options of a spool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpoolOptions {
    /// The directory of all spools; each sink has one of its own in it, with its name. Required.
    pub dir: PathBuf,
    /// How much it may keep on the disk, in bytes. Default 1 GiB.
    pub max_bytes: u64,
    /// What happens when that is reached. Default the sink waits.
    pub when_full: WhenFull,
    /// The file system keeps this much free space, in bytes. Default 1 GiB.
    pub min_free_bytes: u64,
}

impl SpoolOptions {
    /// The default options of a spool in `dir`.
    pub fn at(dir: PathBuf) -> SpoolOptions {
        SpoolOptions { dir, max_bytes: 1 << 30, when_full: WhenFull::default(), min_free_bytes: 1 << 30 }
    }

    pub(crate) fn read(section: &mut Section<'_>) -> SpoolOptions {
        let when_full =
            [("block", WhenFull::Block), ("drop_oldest", WhenFull::DropOldest), ("drop_newest", WhenFull::DropNewest)];
        let default = SpoolOptions::at(section.required_path("dir").unwrap_or_default());
        SpoolOptions {
            max_bytes: section.size("max_bytes", default.max_bytes, 1 << 20..=1 << 50),
            when_full: section.choice("when_full", default.when_full, &when_full),
            min_free_bytes: section.size("min_free_bytes", default.min_free_bytes, 0..=1 << 50),
            dir: default.dir,
        }
    }

    /// The directory of the spool of a sink.
    pub fn directory(&self, sink: &str) -> PathBuf {
        self.dir.join(sink)
    }

    /// How much it may keep.
    pub fn limits(&self) -> Limits {
        let segment_bytes = (self.max_bytes / LEAST_SEGMENTS).min(SEGMENT_BYTES);
        Limits { max_bytes: self.max_bytes, segment_bytes, min_free_bytes: self.min_free_bytes }
    }
}
