//! The sink that writes files: one per date, protocol or listener as the path template says, rotated by size and time.
//!
//! No event is lost, written twice or torn. `write` only encodes; `flush` appends whole records to the files. A fault of
//! a file (disk full, permission lost, locked by another process) leaves it ending after a whole record and the rest
//! in memory, to be written by a later `flush` or `tick`; other files are written meanwhile. A fault that no retry can
//! remove (the path is a directory, a name is too long) drops the events of that file, and they count as failed.
//!
//! Files are synced every `fsync_interval`, and at once those with events that a request waits for ([`Sink::sync`]): one sync
//! of a file for all of them. The names of new files and directories are synced before anything is written to them. A file
//! whose sync fails is given up: it is finished where its last good sync was, and what was written since is written again to
//! a new one. Live files are never compressed, and a compressed file replaces its original when it is synced itself.
//!
//! The sink `parquet` keeps its journal with the same files: rows instead of lines, and another step for finished files.
//!
//! The parts: [`File`] is the sink; `outputs` has its files, each an `output` with the encoded records that wait, a `live` file
//! and its `write_retry`; `disk` forces data and names to the disk; `template` chooses the file, `names` the names of finished
//! ones; `repair` repairs torn ends; `messages` knows which messages of a stream the files have; `maintenance` and `compress` maintain
//! finished files.
#![forbid(unsafe_code)]

mod compress;
mod disk;
mod live;
pub mod maintenance;
mod messages;
pub mod names;
mod options;
mod output;
pub mod outputs;
mod repair;
pub mod template;
mod write_retry;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use self::options::FLUSH_BYTES;
use self::outputs::Outputs;
use self::template::Template;
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::{ActionError, FileStatus, Selection, Sink, SinkError, Unwritten};
use tributary_system::blocking::Job;

pub use self::options::{Compression, Fsync, Options};

/// Writes events into files. Dropped, it stops a compression in progress; the next sink of the same path resumes it.
#[derive(Debug)]
pub struct File {
    outputs: Outputs,
    compressing: Option<Job<()>>,
    stop_compressing: Arc<AtomicBool>,
    reopen: bool,
}

impl File {
    /// A sink with these options. Touches nothing on disk before the first event.
    ///
    /// # Errors
    /// Those of [`Options::validate`].
    pub fn new(options: Options) -> Result<File, String> {
        let template = Template::parse(&options.path)?;
        Ok(File {
            outputs: Outputs::new(options, template),
            compressing: None,
            stop_compressing: Arc::default(),
            reopen: false,
        })
    }

    /// Waits until the compression that runs in the background, if any, has ended.
    pub async fn wait_for_compression(&mut self) {
        if let Some(job) = self.compressing.take() {
            // A panic there has no effect here, and is on stderr.
            let _ = job.await;
        }
    }

    fn work(&mut self, work: fn(&mut Outputs, bool) -> Result<(), ActionError>) -> Result<(), SinkError> {
        if std::mem::take(&mut self.reopen) {
            self.outputs.reopen();
        }
        let is_idle = self.compressing.as_ref().is_none_or(Job::is_finished);
        let result = work(&mut self.outputs, is_idle);
        self.compress();
        result.map_err(SinkError::Retry)
    }

    fn compress(&mut self) {
        let paths = self.outputs.take_to_compress();
        if !paths.is_empty() {
            let (compression, fsync) = (self.outputs.options().compression, self.outputs.options().fsync);
            let stop = self.stop_compressing.clone();
            match Job::start("compress", move || compress::all(&paths, compression, fsync, &stop)) {
                Ok(job) => self.compressing = Some(job),
                Err(error) => {
                    self.outputs.look_again();
                    not_started(&error);
                }
            }
        }
    }
}

/// Work in the background that has no thread: the files are found again by the next tick.
pub fn not_started(error: &std::io::Error) {
    static NO_THREAD: LogThrottle = LogThrottle::new();
    if let Some(suppressed) = NO_THREAD.permit() {
        tracing::warn!(%error, suppressed, "finished files are not compressed or converted now; trying again");
    }
}

impl Sink for File {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        self.outputs.take(events);
        let is_full = self.outputs.waiting_bytes() > FLUSH_BYTES || self.outputs.is_overfull();
        if is_full { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        if self.outputs.has_work() { self.work(Outputs::flush) } else { Ok(()) }
    }

    async fn tick(&mut self) -> Result<(), SinkError> {
        self.work(Outputs::tick)
    }

    async fn sync(&mut self) -> Result<(), SinkError> {
        self.outputs.sync();
        Ok(())
    }

    fn files(&self) -> Option<Arc<FileStatus>> {
        Some(self.outputs.status())
    }

    fn unwritten(&mut self) -> Unwritten {
        self.outputs.take_unwritten()
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        self.reopen = true;
        self.work(Outputs::tick)
    }

    /// Open files are closed by the next flush that has something to write or the next tick, whichever is first.
    fn reopen(&mut self) {
        self.reopen = true;
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.stop_compressing.store(true, Ordering::Relaxed);
    }
}
