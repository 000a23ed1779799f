//! What a file sink did, for metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{DestinationState, RemoteStatus};
use tributary_memory::log_throttle::LogThrottle;
use tributary_system::counters;
use tributary_system::counters::Counted;

/// Counters of a file sink, since it was made. The sink adds to them, and others read them at any time.
#[derive(Debug, Default)]
pub struct FileStatus {
    counters: FileCounters,
    /// The sink's name, once it is known.
    sink: OnceLock<Arc<str>>,
    /// For the log line that an old file was removed.
    removal_line: LogThrottle,
}

counters! {
    #[derive(Default)]
    struct FileCounters();
    /// The counters of a file sink at one moment.
    #[derive(Default)]
    pub struct FileTotals {
        /// Bytes written to live files.
        bytes: AtomicU64,
        /// Files that were finished.
        finished: AtomicU64,
        /// Finished files that were removed, because the options keep no more.
        removed: AtomicU64,
        /// The size of these files on the disk.
        removed_bytes: AtomicU64,
        /// Events of messages that were delivered again, and that the files had already.
        repeats: AtomicU64,
        /// Events of streams that are in files of the listener `others`, because there are more listeners than
        /// `max_listeners`.
        of_others: AtomicU64,
        /// The uploads of a sink that has them.
        uploads: Option<UploadStatus>,
    }
}

counters! {
    /// Counters of the uploads of finished files.
    #[derive(Default)]
    pub struct UploadStatus();
    /// The counters of uploads at one moment.
    pub struct UploadTotals {
        /// Files that the store has confirmed.
        uploaded: AtomicU64,
        /// Their size.
        uploaded_bytes: AtomicU64,
        /// Attempts that failed and are repeated.
        failed: AtomicU64,
        /// Files that were removed before they were uploaded, because the options keep no more.
        discarded: AtomicU64,
        /// Files that are not uploaded yet, when files were listed last.
        waiting: AtomicU64,
        /// Their size.
        waiting_bytes: AtomicU64,
        /// Why the last attempt failed, if no file was uploaded since.
        fault: Mutex<Option<String>>,
        /// Whether the store takes files.
        store: FileStore,
    }
}

/// The store of uploaded files. The events in its state are files.
#[derive(Debug, Default)]
struct FileStore(OnceLock<Arc<RemoteStatus>>);

impl Counted for FileStore {
    type Value = DestinationState;

    fn value(&self) -> DestinationState {
        self.0.get().map(|remote| remote.state().destination).unwrap_or_default()
    }
}

impl FileStatus {
    /// The present values.
    pub fn totals(&self) -> FileTotals {
        self.counters.value()
    }

    /// Counters of a sink that uploads its files.
    pub fn with_uploads() -> FileStatus {
        let counters = FileCounters { uploads: Some(UploadStatus::default()), ..FileCounters::default() };
        FileStatus { counters, ..FileStatus::default() }
    }

    /// What became of the files that are uploaded, if they are.
    pub fn uploads(&self) -> Option<&UploadStatus> {
        self.counters.uploads.as_ref()
    }

    /// Ends the pause before the next upload.
    pub fn try_again(&self) {
        let remote = self.counters.uploads.as_ref().and_then(|uploads| uploads.store.0.get());
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
        self.counters.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a finished file.
    pub fn add_finished(&self) {
        self.counters.finished.fetch_add(1, Relaxed);
    }

    /// Counts events that were written before.
    pub fn add_repeats(&self, events: u64) {
        self.counters.repeats.fetch_add(events, Relaxed);
    }

    /// Counts events that went to the file of all others.
    pub fn add_of_others(&self) {
        self.counters.of_others.fetch_add(1, Relaxed);
    }

    /// A file that another sink has finished.
    pub fn add_file(&self, bytes: u64) {
        self.counters.bytes.fetch_add(bytes, Relaxed);
        self.add_finished();
    }

    /// Counts a file that was removed.
    pub fn add_removed(&self, bytes: u64) {
        self.counters.removed.fetch_add(1, Relaxed);
        self.counters.removed_bytes.fetch_add(bytes, Relaxed);
    }
}

impl UploadStatus {
    /// The state of the store of a sink with this name. The first call names it.
    pub fn remote(&self, sink: &str, url: &str) -> Arc<RemoteStatus> {
        self.store.0.get_or_init(|| Arc::new(RemoteStatus::new(sink, url))).clone()
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
        self.store.0.get().into_iter().for_each(|remote| remote.update(|state| state.events = files));
    }
}
