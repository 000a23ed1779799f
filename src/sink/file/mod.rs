//! The sink that writes files: one per date, protocol or listener as the path template says, rotated by size and time.
//!
//! Nothing is lost, doubled or torn. `write` only encodes; `flush` brings whole records to the file, and whatever goes
//! wrong on the way (disk full, directory removed, permission lost) leaves the file ending after a whole record and
//! the rest in memory, to be written when `flush` is called again.
//!
//! How the parts stand to each other: [`File`] is the sink; `outputs` holds its files, for each a `queue` of encoded
//! records and a `live` file; `template` says which file, `names` what finished ones are called; `tidy` and `compress`
//! look after those.

mod compress;
mod live;
mod names;
mod options;
mod outputs;
mod queue;
mod tail;
mod template;
mod tidy;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::{JoinHandle, spawn_blocking};

use self::outputs::Outputs;
use self::template::Template;
use super::{Selection, Sink, SinkError, SinkFault};

pub use self::options::{Compression, Fsync, Options};

/// Encoded events beyond this many bytes are written without waiting for the worker's flush.
const FLUSH_BYTES: usize = 512 * 1024;

/// Writes events into files. Dropped, it stops a compression in progress; the next sink of the same path resumes it.
#[derive(Debug)]
pub struct File {
    outputs: Outputs,
    compressing: Option<JoinHandle<()>>,
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

    /// Waits until the compression that is running in the background, if any, is done.
    pub async fn wait_for_compression(&mut self) {
        if let Some(task) = &mut self.compressing {
            // A panic there harms nothing here; the runtime has reported it.
            let _ = task.await;
            self.compressing = None;
        }
    }

    fn work(&mut self, work: fn(&mut Outputs, bool) -> Result<(), SinkFault>) -> Result<(), SinkError> {
        if std::mem::take(&mut self.reopen) {
            self.outputs.reopen();
        }
        let is_idle = self.compressing.as_ref().is_none_or(JoinHandle::is_finished);
        let result = work(&mut self.outputs, is_idle);
        self.compress();
        result.map_err(SinkError::Retry)
    }

    fn compress(&mut self) {
        let paths = self.outputs.take_to_compress();
        if !paths.is_empty() {
            let (compression, fsync) = (self.outputs.options().compression, self.outputs.options().fsync);
            let stop = self.stop_compressing.clone();
            self.compressing = Some(spawn_blocking(move || compress::all(&paths, compression, fsync, &stop)));
        }
    }
}

impl Sink for File {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        self.outputs.take(events);
        if self.outputs.waiting_bytes() > FLUSH_BYTES { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        if self.outputs.waiting_bytes() == 0 { Ok(()) } else { self.work(Outputs::flush) }
    }

    async fn tick(&mut self) -> Result<(), SinkError> {
        self.work(Outputs::tick)
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        self.reopen = true;
        self.work(Outputs::tick)
    }

    /// Open files are let go of with the next flush that has something to write or the next tick, whichever is first.
    fn reopen(&mut self) {
        self.reopen = true;
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.stop_compressing.store(true, Ordering::Relaxed);
    }
}
