//! The options of the spool of a sink.

use std::path::PathBuf;

use super::WhenFull;
use tributary_options::Section;
use tributary_options::units::ByteSize;
use tributary_spool::{self as spool, SpoolLimits};

/// The size of a segment of a spool. A small spool has smaller ones.
const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
/// A spool has at least this many segments, so that dropping the oldest one leaves most of it.
const LEAST_SEGMENTS: u64 = 8;
/// A segment has at most this part of its file system, but not less than these bytes: what is delivered is removed with it.
const SEGMENTS_OF_DISK: u64 = 32;
const LEAST_SEGMENT_BYTES: u64 = 64 * 1024;
/// `min_free_bytes`, if it is not set: this much, or this part of the file system if that is less.
const MIN_FREE_BYTES: u64 = 1 << 30;
const MIN_FREE_PART: u64 = 10;

/// The options of a spool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpoolOptions {
    /// The directory of all spools; each sink has one of its own in it, with its name. Required.
    pub dir: PathBuf,
    /// How much it may keep on the disk, in bytes. Default 1 GiB.
    pub max_bytes: u64,
    /// What happens when that is reached. Default the sink waits.
    pub when_full: WhenFull,
    /// The file system keeps this much free space, in bytes. Not set: the smaller of 1 GiB and a tenth of the file system.
    pub min_free_bytes: Option<u64>,
}

impl SpoolOptions {
    /// The default options of a spool in `dir`.
    pub fn at(dir: PathBuf) -> SpoolOptions {
        SpoolOptions { dir, max_bytes: 1 << 30, when_full: WhenFull::default(), min_free_bytes: None }
    }

    /// Reads the table `spool`.
    pub fn read(section: &mut Section<'_>) -> SpoolOptions {
        let when_full =
            [("block", WhenFull::Block), ("drop_oldest", WhenFull::DropOldest), ("drop_newest", WhenFull::DropNewest)];
        let default = SpoolOptions::at(section.required_path("dir").unwrap_or_default());
        SpoolOptions {
            max_bytes: section.size("max_bytes", default.max_bytes, 1 << 20..=1 << 50),
            when_full: section.choice("when_full", default.when_full, &when_full),
            min_free_bytes: section.optional_size("min_free_bytes", 0..=1 << 50),
            dir: default.dir,
        }
    }

    /// The directory of the spool of a sink.
    pub fn directory(&self, sink: &str) -> PathBuf {
        self.dir.join(sink)
    }

    /// How much the spool of a sink may keep. Reads the size of its file system.
    pub fn limits(&self, sink: &str) -> SpoolLimits {
        let disk_bytes = spool::disk_space(&self.directory(sink)).map_or(u64::MAX, |disk| disk.total_bytes);
        let of_disk = (disk_bytes / SEGMENTS_OF_DISK).max(LEAST_SEGMENT_BYTES);
        SpoolLimits {
            max_bytes: self.max_bytes,
            segment_bytes: (self.max_bytes / LEAST_SEGMENTS).min(SEGMENT_BYTES).min(of_disk),
            min_free_bytes: self.min_free_bytes.unwrap_or(MIN_FREE_BYTES.min(disk_bytes / MIN_FREE_PART)),
        }
    }

    /// Why the spool of a sink can never keep a request, if it cannot: its file system is smaller than what it leaves free.
    pub fn never_keeps(&self, sink: &str) -> Option<String> {
        let disk_bytes = spool::disk_space(&self.directory(sink)).ok()?.total_bytes;
        let min_free_bytes = self.limits(sink).min_free_bytes;
        (min_free_bytes.saturating_add(LEAST_SEGMENT_BYTES) > disk_bytes).then(|| {
            format!(
                "it can never keep a request: its file system has {}, and min_free_bytes = {} of it stay free; set a smaller \
                 min_free_bytes, or use another file system. Until then events go to a destination that takes them from memory",
                ByteSize(disk_bytes),
                ByteSize(min_free_bytes)
            )
        })
    }
}
