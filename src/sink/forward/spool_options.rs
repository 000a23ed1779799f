//! The options of the spool of a sink.

use std::path::PathBuf;

use super::WhenFull;
use tributary_options::options;
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

options! {
    /// The options of a spool.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct SpoolOptions {
        /// The directory of all spools; each sink has one of its own in it, with its name.
        pub dir: PathBuf = required_path().unwrap_or_default(),
        /// How much it may keep on the disk. When it has this much, or the file system less than `min_free_bytes` free, requests wait
        /// in memory while the destination takes them.
        pub max_bytes: u64 = size(1 << 30, 1 << 20..=1 << 50),
        /// What happens when it is full and the destination is away: "block", the sink waits, "drop_oldest" or "drop_newest", requests
        /// are dropped and counted as shed.
        pub when_full: WhenFull = choice(
            WhenFull::default(),
            &[("block", WhenFull::Block), ("drop_oldest", WhenFull::DropOldest), ("drop_newest", WhenFull::DropNewest)]
        ),
        /// The file system keeps this much free space. Not set: the smaller of 1GiB and a tenth of the file system.
        pub min_free_bytes: Option<u64> = optional_size(0..=1 << 50),
    }
}

impl SpoolOptions {
    /// The default options of a spool in `dir`.
    pub fn at(dir: PathBuf) -> SpoolOptions {
        SpoolOptions { dir, ..SpoolOptions::default() }
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
