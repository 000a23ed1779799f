//! What a file sink did, for metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of a file sink, since it was made. The sink adds to them, and others read them at any time.
#[derive(Debug, Default)]
pub struct FileStatus {
    bytes: AtomicU64,
    finished: AtomicU64,
    removed: AtomicU64,
    removed_bytes: AtomicU64,
}

/// The counters of a file sink at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileTotals {
    /// Bytes written to live files.
    pub bytes: u64,
    /// Files that were finished.
    pub finished: u64,
    /// Finished files that were removed, because the options keep no more.
    pub removed: u64,
    /// The size of these files on the disk.
    pub removed_bytes: u64,
}

impl FileStatus {
    /// The present values.
    pub fn totals(&self) -> FileTotals {
        FileTotals {
            bytes: self.bytes.load(Relaxed),
            finished: self.finished.load(Relaxed),
            removed: self.removed.load(Relaxed),
            removed_bytes: self.removed_bytes.load(Relaxed),
        }
    }

    pub(super) fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn add_finished(&self) {
        self.finished.fetch_add(1, Relaxed);
    }

    /// A file that another sink has finished.
    pub(in crate::sink) fn add_file(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.add_finished();
    }

    pub(super) fn add_removed(&self, bytes: u64) {
        self.removed.fetch_add(1, Relaxed);
        self.removed_bytes.fetch_add(bytes, Relaxed);
    }
}
