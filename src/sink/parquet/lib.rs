//! The sink that writes Parquet files: a table for each kind of events, in directories as the path template says.
//!
//! Rows are appended to a journal, and each finished file of it becomes one Parquet file. The journal is the files of the sink
//! `file`, with rows instead of lines, in a hidden directory: what that sink promises for its files is true for the journal, and
//! an event is written, or durable, when the journal has it so. A Parquet file gets its name when it is complete and on the
//! disk, and that of its journal: so a journal that a killed process has left is converted by the next one, once.
//!
//! The parts: [`Parquet`] is the sink; `schema` has the tables, `table` fills their columns with events, `column` has one leaf of
//! a row group; `convert` writes a file; `read` and `cells` read one again; `exact` has values as JSON; `upload` sends finished
//! files to an object store.
#![forbid(unsafe_code)]

mod cells;
mod column;
mod contained;
mod convert;
mod lossless_json;
mod options;
mod read;
mod schema;
mod table;
mod upload;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use self::convert::{Converted, Job, convert};
use self::upload::Uploader;
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::{ActionError, FileStatus, Selection, Sink, SinkError, Unwritten};
use tributary_sink_file::names::{self, FileState};
use tributary_sink_file::outputs::Outputs;
use tributary_sink_file::template::Template;
use tributary_sink_file::{FLUSH_BYTES, maintenance, not_started};
use tributary_system::blocking;

pub use self::options::{ColumnType, Compression, Options, Timestamps};
pub use self::read::read;
pub use self::upload::probe;
pub use self::upload::{Provider, UploadOptions, Url};
pub use tributary_sink_forward::RetryOptions;

/// How often the age of finished files is checked.
const AGE_INTERVAL: Duration = Duration::from_secs(60);

/// Reports that a file cannot be written.
static TROUBLE: LogThrottle = LogThrottle::new();
/// Reports damaged rows.
static DAMAGED: LogThrottle = LogThrottle::new();
/// Reports that finished files cannot be listed.
static UNTIDY: LogThrottle = LogThrottle::new();
/// Reports that uploads cannot start, or have ended by a panic.
static NO_UPLOADS: LogThrottle = LogThrottle::new();

/// Writes events into Parquet files. Dropped, it stops the file that it writes; the next sink of the same path writes it again.
#[derive(Debug)]
pub struct Parquet {
    /// The name of the sink.
    name: String,
    options: Arc<Options>,
    journal: Outputs,
    /// The directories of the journal and of the files.
    from: PathBuf,
    to: PathBuf,
    /// The names of finished files.
    archive: Template,
    status: Arc<FileStatus>,
    converting: Option<blocking::Job<()>>,
    uploader: Option<Uploader>,
    stop: Arc<AtomicBool>,
    /// The files that the last conversions could not write, with the reasons.
    unconverted: Arc<Mutex<Vec<String>>>,
    reopen: bool,
    /// When finished files were checked last.
    checked: Option<Instant>,
}

impl Parquet {
    /// A sink with these options. Touches nothing on disk before the first event.
    ///
    /// # Errors
    /// What is invalid in the path.
    pub fn new(options: Options) -> Result<Parquet, String> {
        let (journal, archive) = options.templates()?;
        let (from, to) = (journal.base().to_owned(), archive.base().to_owned());
        let status = if options.upload.is_some() { FileStatus::with_uploads() } else { FileStatus::default() };
        Ok(Parquet {
            name: String::new(),
            journal: Outputs::new(options.journal(), journal),
            options: Arc::new(options),
            from,
            to,
            archive,
            status: Arc::new(status),
            converting: None,
            uploader: None,
            stop: Arc::default(),
            unconverted: Arc::default(),
            reopen: false,
            checked: None,
        })
    }

    /// The same with the name of the sink, for the log.
    #[must_use]
    pub fn named(mut self, name: &str) -> Parquet {
        name.clone_into(&mut self.name);
        self
    }

    fn work(&mut self, work: fn(&mut Outputs, bool) -> Result<(), ActionError>) -> Result<(), SinkError> {
        if std::mem::take(&mut self.reopen) {
            self.journal.reopen();
        }
        self.start_uploads();
        let is_idle = self.converting.as_ref().is_none_or(blocking::Job::is_finished);
        let result = work(&mut self.journal, is_idle);
        let jobs = self.jobs();
        if !jobs.is_empty() {
            let convert = self.converter();
            match blocking::Job::start("convert", move || convert(jobs)) {
                Ok(job) => self.converting = Some(job),
                Err(error) => {
                    self.journal.look_again();
                    not_started(&error);
                }
            }
        }
        result.map_err(SinkError::Retry)
    }

    /// The finished files of the journal, oldest first.
    fn jobs(&mut self) -> Vec<Job> {
        let target = |journal: &Path| {
            let relative = journal.strip_prefix(&self.from).unwrap_or(journal);
            self.to.join(relative).with_extension("parquet")
        };
        let journals = self.journal.take_to_compress();
        journals.into_iter().map(|journal| Job { target: target(&journal), journal }).collect()
    }

    fn converter(&self) -> impl FnOnce(Vec<Job>) + Send + use<> {
        let (options, stop, status) = (self.options.clone(), self.stop.clone(), self.status.clone());
        let finished = self.uploader.as_ref().map(Uploader::finished);
        let unconverted = self.unconverted.clone();
        move |jobs| {
            let faults = Mutex::new(Vec::new());
            let next = AtomicUsize::new(0);
            let convert_next = || {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match convert(job, &options, &stop) {
                        Ok(converted) => {
                            report(job, converted, &status);
                            finished.iter().for_each(|finished| finished.notify_one());
                        }
                        Err(_) if stop.load(Ordering::Relaxed) => return,
                        Err(error) => {
                            let fault = not_written(job, &error);
                            faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
                        }
                    }
                }
            };
            thread::scope(|scope| {
                for _ in 1..options.conversions().min(jobs.len()) {
                    // Without another thread this one converts all.
                    let _ = thread::Builder::new().name("convert".to_owned()).spawn_scoped(scope, convert_next);
                }
                convert_next();
            });
            if !stop.load(Ordering::Relaxed) {
                let faults = faults.into_inner().unwrap_or_else(PoisonError::into_inner);
                *unconverted.lock().unwrap_or_else(PoisonError::into_inner) = faults;
            }
        }
    }

    /// Starts the uploads, if the options have them and they do not run.
    fn start_uploads(&mut self) {
        let Some(upload) = self.options.upload.as_ref() else { return };
        if self.uploader.as_ref().is_some_and(|uploader| !uploader.is_ended()) {
            return;
        }
        let is_again = self.uploader.take().is_some();
        let error = match Uploader::start(&self.name, upload, &self.archive, &self.from, self.status.clone()) {
            Ok(uploader) => {
                self.uploader = Some(uploader);
                is_again.then(|| "they have ended by a panic, which is a bug of tributary".to_owned())
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = error
            && let Some(suppressed) = NO_UPLOADS.permit()
        {
            let base = self.to.display();
            tracing::error!(%base, url = %upload.url, error, suppressed, "uploads of finished files do not run; starting them again");
        }
    }

    /// Removes finished files that the options do not keep.
    fn remove_old(&mut self) {
        let Options { keep_files, keep_bytes, keep_time, .. } = *self.options;
        let is_limited = keep_files > 0 || keep_bytes > 0 || !keep_time.is_zero();
        if !is_limited || self.checked.is_some_and(|at| at.elapsed() < AGE_INTERVAL.min(keep_age(keep_time))) {
            return;
        }
        self.checked = Some(Instant::now());
        match names::scan(&self.archive) {
            Ok(mut found) => {
                found.retain(|found| found.state == FileState::Finished);
                let remove =
                    |found: &mut Vec<_>| maintenance::remove_old(found, &self.options.kept(), &self.to, &self.status);
                match &self.uploader {
                    Some(uploader) => uploader.remove_old(found, remove),
                    None => drop(remove(&mut found)),
                }
            }
            Err(error) => {
                if let Some(suppressed) = UNTIDY.permit() {
                    tracing::warn!(base = %self.to.display(), %error, suppressed, "cannot list the sink's files");
                }
            }
        }
    }

    async fn wait(&mut self) {
        if let Some(job) = self.converting.take() {
            // A panic there has no effect here, and is on stderr.
            let _ = job.await;
        }
    }
}

/// Without a limit of age, sizes are checked once a second: by every tick.
fn keep_age(keep_time: Duration) -> Duration {
    if keep_time.is_zero() { Duration::from_secs(1) } else { keep_time }
}

/// Logs that a file could not be written, and says so.
fn not_written(job: &Job, error: &io::Error) -> String {
    let (file, journal) = (job.target.display(), job.journal.display());
    if let Some(suppressed) = TROUBLE.permit() {
        tracing::warn!(%file, %journal, %error, suppressed, "cannot write a Parquet file; its rows stay in the journal");
    }
    format!("cannot write {file}: {error}; its rows stay in the journal, and it is tried again")
}

fn report(job: &Job, converted: Converted, status: &FileStatus) {
    let Converted { rows, damaged, bytes } = converted;
    if bytes > 0 {
        status.add_file(bytes);
        tracing::debug!(file = %job.target.display(), rows, bytes, "finished a Parquet file");
    }
    if damaged > 0
        && let Some(suppressed) = DAMAGED.permit()
    {
        let journal = job.journal.display();
        tracing::error!(%journal, damaged, suppressed, "rows of the journal are damaged and not in a file; it is kept as .rows.damaged");
    }
}

impl Sink for Parquet {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        self.journal.take(events);
        let is_full = self.journal.waiting_bytes() > FLUSH_BYTES || self.journal.is_overfull();
        if is_full { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        if self.journal.has_work() { self.work(Outputs::flush) } else { Ok(()) }
    }

    async fn tick(&mut self) -> Result<(), SinkError> {
        let result = self.work(Outputs::tick);
        self.remove_old();
        result
    }

    async fn sync(&mut self) -> Result<(), SinkError> {
        self.journal.sync();
        Ok(())
    }

    fn files(&self) -> Option<Arc<FileStatus>> {
        Some(self.status.clone())
    }

    fn unwritten(&mut self) -> Unwritten {
        let mut unwritten = self.journal.take_unwritten();
        unwritten.faults.extend(self.unconverted.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        unwritten
    }

    /// Finishes all files, and uploads them if they are to be uploaded. What cannot be converted now stays in the journal, and
    /// what cannot be uploaded now in the directory, for the next start.
    async fn close(&mut self) -> Result<(), SinkError> {
        self.wait().await;
        self.reopen = true;
        let result = self.work(Outputs::tick);
        self.wait().await;
        if let Some(uploader) = &mut self.uploader {
            uploader.finish().await;
        }
        result
    }

    /// All files are finished by the next tick.
    fn reopen(&mut self) {
        self.reopen = true;
    }
}

impl Drop for Parquet {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
