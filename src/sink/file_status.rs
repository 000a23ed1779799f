//! What a file sink did, for metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{DestinationState, RemoteStatus};
use tributary_memory::log_throttle::LogThrottle;

/// Counters of a file sink, since it was made. The sink adds to them, and others read them at any time.
#[derive(Debug, Default)]
pub struct FileStatus {
    bytes: AtomicU64,
    finished: AtomicU64,
    removed: AtomicU64,
    removed_bytes: AtomicU64,
    repeats: AtomicU64,
    of_others: AtomicU64,
    uploads: Option<UploadStatus>,
    /// The sink's name, once it is known.
    sink: OnceLock<Arc<str>>,
    /// For the log line that an old file was removed.
    removal_line: LogThrottle,
}

/// Counters of the uploads of finished files.
#[derive(Debug, Default)]
pub struct UploadStatus {
    uploaded: AtomicU64,
    uploaded_bytes: AtomicU64,
    failed: AtomicU64,
    discarded: AtomicU64,
    waiting: AtomicU64,
    waiting_bytes: AtomicU64,
    fault: Mutex<Option<String>>,
    /// Whether the store takes files; the events in it are files.
    remote: OnceLock<Arc<RemoteStatus>>,
}

/// The counters of uploads at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UploadTotals {
    /// Files that the store has confirmed.
    pub uploaded: u64,
    /// Their size.
    pub uploaded_bytes: u64,
    /// Attempts that failed and are repeated.
    pub failed: u64,
    /// Files that were removed before they were uploaded, because the options keep no more.
    pub discarded: u64,
    /// Files that are not uploaded yet, when files were listed last.
    pub waiting: u64,
    /// Their size.
    pub waiting_bytes: u64,
    /// Why the last attempt failed, if no file was uploaded since.
    pub fault: Option<String>,
    /// Whether the store takes files.
    pub store: DestinationState,
}

/// The counters of a file sink at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileTotals {
    /// Bytes written to live files.
    pub bytes: u64,
    /// Files that were finished.
    pub finished: u64,
    /// Finished files that were removed, because the options keep no more.
    pub removed: u64,
    /// The size of these files on the disk.
    pub removed_bytes: u64,
    /// Events of messages that were delivered again, and that the files had already.
    pub repeats: u64,
    /// Events of streams that are in files of the listener `others`, because there are more listeners than `max_listeners`.
    pub of_others: u64,
    /// The uploads of a sink that has them.
    pub uploads: Option<UploadTotals>,
}

impl FileStatus {
    /// The present values.
    pub fn totals(&self) -> FileTotals {
        FileTotals {
            bytes: self.bytes.load(Relaxed),
            finished: self.finished.load(Relaxed),
            removed: self.removed.load(Relaxed),
            removed_bytes: self.removed_bytes.load(Relaxed),
            repeats: self.repeats.load(Relaxed),
            of_others: self.of_others.load(Relaxed),
            uploads: self.uploads.as_ref().map(UploadStatus::totals),
        }
    }

    /// Counters of a sink that uploads its files.
    pub fn with_uploads() -> FileStatus {
        FileStatus { uploads: Some(UploadStatus::default()), ..FileStatus::default() }
    }

    /// What became of the files that are uploaded, if they are.
    pub fn uploads(&self) -> Option<&UploadStatus> {
        self.uploads.as_ref()
    }

    /// Ends the pause before the next upload.
    pub fn try_again(&self) {
        let remote = self.uploads.as_ref().and_then(|uploads| uploads.remote.get());
        remote.into_iter().for_each(|remote| remote.try_again());
    }

    /// The counters are those of this sink.
    pub fn set_sink(&self, name: Arc<str>) {
        // A sink has one name.
        let _ = self.sink.set(name);
    }

    /// The name of the sink; empty without a daemon.
    pub fn sink(&self) -> &str {
        self.sink.get().map_or("", |name| name)
    }

    /// As [`LogThrottle::permit`], for the log line that an old file was removed.
    pub fn permit_removal_line(&self) -> Option<Option<u64>> {
        self.removal_line.permit()
    }

    /// Counts bytes that were written.
    pub fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a finished file.
    pub fn add_finished(&self) {
        self.finished.fetch_add(1, Relaxed);
    }

    /// Counts events that were written before.
    pub fn add_repeats(&self, events: u64) {
        self.repeats.fetch_add(events, Relaxed);
    }

    /// Counts events that went to the file of all others.
    pub fn add_of_others(&self) {
        self.of_others.fetch_add(1, Relaxed);
    }

    /// A file that another sink has finished.
    pub fn add_file(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.add_finished();
    }

    /// Counts a file that was removed.
    pub fn add_removed(&self, bytes: u64) {
        self.removed.fetch_add(1, Relaxed);
        self.removed_bytes.fetch_add(bytes, Relaxed);
    }
}

impl UploadStatus {
    fn totals(&self) -> UploadTotals {
        UploadTotals {
            uploaded: self.uploaded.load(Relaxed),
            uploaded_bytes: self.uploaded_bytes.load(Relaxed),
            failed: self.failed.load(Relaxed),
            discarded: self.discarded.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            waiting_bytes: self.waiting_bytes.load(Relaxed),
            fault: self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            store: self.remote.get().map(|remote| remote.state().destination).unwrap_or_default(),
        }
    }

    /// The state of the store of a sink with this name. The first call names it.
    pub fn remote(&self, sink: &str, url: &str) -> Arc<RemoteStatus> {
        self.remote.get_or_init(|| Arc::new(RemoteStatus::new(sink, url))).clone()
    }

    /// Counts a file that was uploaded.
    pub fn add_uploaded(&self, bytes: u64) {
        self.uploaded.fetch_add(1, Relaxed);
        self.uploaded_bytes.fetch_add(bytes, Relaxed);
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Counts an attempt that failed, and why.
    pub fn add_failed(&self, fault: String) {
        self.failed.fetch_add(1, Relaxed);
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }

    /// Counts a file that is not uploaded any more.
    pub fn add_discarded(&self) {
        self.discarded.fetch_add(1, Relaxed);
    }

    /// How many files wait, and their bytes.
    pub fn set_waiting(&self, files: u64, bytes: u64) {
        self.waiting.store(files, Relaxed);
        self.waiting_bytes.store(bytes, Relaxed);
        self.remote.get().into_iter().for_each(|remote| remote.update(|state| state.events = files));
    }
}
