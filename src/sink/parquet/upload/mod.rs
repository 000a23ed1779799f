//! Finished files go to an object store, and are removed here after it has confirmed them.
//!
//! A thread of its own uploads one file after the other, oldest first, so that neither the network nor the checksums of requests
//! delay events. It works from what is on the disk, so it makes no difference whether a file was finished just now or
//! before a kill. What fails is tried again for ever; files that follow wait.
//!
//! The parts: [`Uploader`] is the thread; `store` sends a file, `connector` its requests; `uploaded` remembers files that are
//! kept.

mod connector;
mod options;
mod store;
mod uploaded;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use object_store::path::{Path as Key, PathPart};
use tokio::runtime;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::store::{Outage, UploadError, UploadStore, refusing};
use self::uploaded::Uploaded;
use super::convert::MAX_SAME_NAME;
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::{DestinationState, RemoteStatus};
use tributary_sink::{FileStatus, UploadStatus};
use tributary_sink_file::maintenance;
use tributary_sink_file::names::{self, FileState, FoundFile};
use tributary_sink_file::template::Template;
use tributary_sink_forward::backoff::Pauses;
use tributary_sink_forward::probe::run;
use tributary_system::blocking;

pub use self::options::{Provider, UploadOptions, Url};

/// How often files are searched for that nothing has announced.
const SCAN_INTERVAL: Duration = Duration::from_secs(60);
/// How often it is checked whether an outage is to be logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Reports files that the store does not take.
static BAD: LogThrottle = LogThrottle::new();
/// Reports files that cannot be read here, and directories that cannot be listed.
static UNREADABLE: LogThrottle = LogThrottle::new();
/// Reports files that were removed before they were uploaded.
static DISCARDED: LogThrottle = LogThrottle::new();

/// Uploads the files of one sink. Dropped, it stops at once; what is not confirmed then stays here.
#[derive(Debug)]
pub(super) struct Uploader {
    shared: Arc<SharedUploader>,
    thread: JoinHandle<()>,
    ended: Option<oneshot::Receiver<()>>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct SharedUploader {
    options: UploadOptions,
    archive: Template,
    /// The directory of the journal.
    journal: PathBuf,
    status: Arc<FileStatus>,
    /// Whether the store takes files.
    remote: Arc<RemoteStatus>,
    /// A file was finished.
    finished: Arc<Notify>,
    /// No further file follows: the thread ends when all are uploaded, or when an attempt fails.
    is_last: CancellationToken,
    files: Mutex<Files>,
}

/// What only one of upload and retention may do at a time.
#[derive(Debug)]
struct Files {
    /// The file that is uploaded now.
    current: Option<PathBuf>,
    /// The files that were uploaded and are kept. `None`: they are removed.
    uploaded: Option<Uploaded>,
}

impl Uploader {
    /// Starts uploads of the files of `archive`, whose journal is in the directory `journal`.
    ///
    /// # Errors
    /// The list of uploaded files cannot be read, or there is no thread.
    pub(super) fn start(
        sink: &str,
        options: &UploadOptions,
        archive: &Template,
        journal: &Path,
        status: Arc<FileStatus>,
    ) -> io::Result<Uploader> {
        let uploaded = match options.delete_after {
            true => None,
            false => Some(Uploaded::open(archive.base(), &options.url.to_string())?),
        };
        let url = options.url.to_string();
        let remote = status.uploads().map_or_else(Arc::default, |uploads| uploads.remote(sink, &url));
        let shared = Arc::new(SharedUploader {
            remote,
            options: options.clone(),
            archive: archive.clone(),
            journal: journal.to_owned(),
            status,
            finished: Arc::default(),
            is_last: CancellationToken::new(),
            files: Mutex::new(Files { current: None, uploaded }),
        });
        let (stop, work) = (CancellationToken::new(), shared.clone());
        let (sender, ended) = oneshot::channel();
        let stopped = stop.clone();
        let thread = blocking::thread("upload", move || {
            match runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    runtime.block_on(stopped.run_until_cancelled(work.upload_all()));
                    // A resolver of names that hangs is not waited for.
                    runtime.shutdown_background();
                }
                // It is started again.
                Err(error) => tracing::error!(%error, "cannot start the runtime of uploads"),
            }
            let _ = sender.send(());
        })?;
        Ok(Uploader { shared, thread, ended: Some(ended), _stop: stop.drop_guard() })
    }

    /// Whether its thread has ended, by [`Uploader::finish`] or by a panic.
    pub(super) fn is_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// To be notified when a file was finished.
    pub(super) fn finished(&self) -> Arc<Notify> {
        self.shared.finished.clone()
    }

    /// Uploads what is finished now, and ends. After a failed attempt the rest stays here, for the next start.
    pub(super) async fn finish(&mut self) {
        self.shared.is_last.cancel();
        if let Some(ended) = self.ended.take() {
            let _ = ended.await;
        }
    }

    /// Removes the oldest of the found files by `remove`, but not one that is uploaded now. Those that were not uploaded are
    /// counted and logged.
    pub(super) fn remove_old(
        &self,
        mut found: Vec<FoundFile>,
        remove: impl FnOnce(&mut Vec<FoundFile>) -> Vec<PathBuf>,
    ) {
        let mut files = self.shared.files();
        found.retain(|found| files.current.as_ref() != Some(&found.path));
        for path in remove(&mut found) {
            if files.uploaded.as_mut().is_some_and(|uploaded| uploaded.remove(&path)) {
                continue;
            }
            self.shared.count(|uploads| uploads.add_discarded());
            if let Some(suppressed) = DISCARDED.permit() {
                let url = self.shared.options.url.to_string();
                tracing::error!(path = %path.display(), url, suppressed, "removed a file that was not uploaded, as keep_files, keep_bytes or keep_time says");
            }
        }
    }
}

impl SharedUploader {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, count: impl FnOnce(&UploadStatus)) {
        if let Some(uploads) = self.status.uploads() {
            count(uploads);
        }
    }

    /// Uploads every file, until the last one.
    async fn upload_all(&self) {
        let mut pauses = self.options.retry.pauses();
        let mut store = None;
        loop {
            let is_last = self.is_last.is_cancelled();
            match self.upload_found(&mut store).await {
                Ok(0) if is_last => return,
                Ok(0) => {
                    let wait = async {
                        tokio::select! { () = self.finished.notified() => {}, () = self.is_last.cancelled() => {} }
                    };
                    let _ = timeout(SCAN_INTERVAL, wait).await;
                }
                Ok(_) => pauses = self.options.retry.pauses(),
                Err(_) if is_last => return,
                Err(fault) => {
                    // Files with secrets are read again: they may have been the fault.
                    store = None;
                    self.wait_after(fault, &mut pauses).await;
                }
            }
        }
    }

    /// Waits until the next attempt. `None`: the fault is here.
    async fn wait_after(&self, outage: Option<Outage>, pauses: &mut Pauses) {
        let pause = match &outage {
            Some(Outage { state: DestinationState::Refusing, .. }) => pauses.refusing(),
            _ => pauses.away(None),
        };
        let again = self.remote.asked_again();
        if let Some(Outage { state, why }) = outage {
            self.remote.note_outage(state, why, pause);
        }
        let log = async {
            loop {
                sleep(LOG_INTERVAL).await;
                self.remote.log();
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = again => {}
            () = self.is_last.cancelled() => {}
            () = log => {}
        }
    }

    /// Uploads the files that are there, oldest first. Returns their number.
    async fn upload_found(&self, store: &mut Option<UploadStore>) -> Result<u64, Option<Outage>> {
        let found = match self.waiting() {
            Ok(found) => found,
            Err(error) => {
                if let Some(suppressed) = UNREADABLE.permit() {
                    let base = self.archive.base().display();
                    tracing::warn!(%base, %error, suppressed, "cannot list the files that are to be uploaded; trying again");
                }
                return Err(None);
            }
        };
        let mut waiting = (found.len() as u64, found.iter().map(|found| found.bytes).sum::<u64>());
        self.count(|uploads| uploads.set_waiting(waiting.0, waiting.1));
        let mut uploaded = 0;
        for FoundFile { path, bytes, .. } in found {
            self.files().current = Some(path.clone());
            let result = self.upload(store, &path, bytes).await;
            self.files().current = None;
            match result {
                Ok(()) => {
                    self.remote.note_ready();
                    uploaded += 1;
                }
                Err(fault) => self.report(&path, fault).map_err(Some)?,
            }
            waiting = (waiting.0 - 1, waiting.1 - bytes);
            self.count(|uploads| uploads.set_waiting(waiting.0, waiting.1));
        }
        Ok(uploaded)
    }

    /// The files that are to be uploaded, oldest first.
    fn waiting(&self) -> io::Result<Vec<FoundFile>> {
        let mut found = names::scan(&self.archive)?;
        let files = self.files();
        found.retain(|FoundFile { path, bytes, state, .. }| {
            let is_uploaded = || files.uploaded.as_ref().is_some_and(|uploaded| uploaded.contains(path, *bytes));
            *state == FileState::Finished && !is_uploaded() && !has_journal(path, self.archive.base(), &self.journal)
        });
        Ok(found)
    }

    /// Uploads a file, and removes it here or remembers it.
    async fn upload(&self, store: &mut Option<UploadStore>, path: &Path, bytes: u64) -> Result<(), UploadError> {
        let store = match store {
            Some(store) => store,
            None => store.insert(UploadStore::open(&self.options).map_err(refusing)?),
        };
        let relative = path.strip_prefix(self.archive.base()).unwrap_or(path);
        let names = relative.iter().map(|name| PathPart::from(name.to_string_lossy().into_owned()));
        let key = self.options.url.prefix.parts().chain(names).collect::<Key>();
        let key = store.upload(path, &key).await?;
        tracing::debug!(file = %path.display(), %key, bytes, "uploaded a file");
        match &mut self.files().uploaded {
            Some(uploaded) => uploaded.add(path, bytes)?,
            None => {
                fs::remove_file(path).or_else(|error| match error.kind() {
                    io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })?;
                maintenance::remove_empty_directories(path, self.archive.base());
            }
        }
        self.count(|uploads| uploads.add_uploaded(bytes));
        Ok(())
    }

    /// Counts a failed attempt. `Ok`: it is about this file only, which is logged, and the next one is tried.
    fn report(&self, path: &Path, fault: UploadError) -> Result<(), Outage> {
        let (url, file) = (self.options.url.to_string(), path.display());
        match fault {
            // Removed meanwhile, by an operator or by the limits, which have counted it.
            UploadError::File(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            UploadError::File(error) => {
                self.count(|uploads| uploads.add_failed(format!("{file}: {error}")));
                if let Some(suppressed) = UNREADABLE.permit() {
                    tracing::warn!(%file, url, %error, suppressed, "cannot upload a file because of a fault here; it stays and is tried again");
                }
                Ok(())
            }
            UploadError::Bad(error) => {
                self.count(|uploads| uploads.add_failed(format!("{file}: {error}")));
                self.remote.note_ready();
                if let Some(suppressed) = BAD.permit() {
                    tracing::warn!(%file, url, error, suppressed, "the store does not take this file; it stays here and is tried again, newer ones go");
                }
                Ok(())
            }
            UploadError::Store(outage) => {
                self.count(|uploads| uploads.add_failed(outage.why.clone()));
                Err(outage)
            }
        }
    }
}

/// Whether the journal that a file was made of may still be there: after a kill it is compared with the file, so the file stays
/// until then. A file whose name was taken has a higher number than its journal, by less than [`MAX_SAME_NAME`].
fn has_journal(path: &Path, archive: &Path, journals: &Path) -> bool {
    let journal = journals.join(path.strip_prefix(archive).unwrap_or(path)).with_extension("rows");
    names::numbered(&journal).is_some_and(|(number, with_number)| {
        (number.saturating_sub(MAX_SAME_NAME)..=number).rev().any(|number| with_number(number).exists())
    })
}

/// Whether the store of these options answers, knows the bucket and accepts the credentials. Changes nothing there.
///
/// # Errors
/// It does not, in its own words.
pub fn probe(options: &UploadOptions, time: Duration) -> Result<(), String> {
    let store = UploadStore::open(options)?;
    let looked = run(time, async { Ok(store.probe(&options.url.prefix).await) });
    looked.unwrap_or_else(|error| Err(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_waits_for_journals_of_its_own_number_and_of_lower_ones() {
        let directory = tempfile::tempdir().unwrap();
        let (archive, journals) = (Path::new("archive"), directory.path());
        let is_waiting = |number: &str| {
            has_journal(&archive.join(format!("log/a.20240229T130709.123{number}.parquet")), archive, journals)
        };
        fs::create_dir(journals.join("log")).unwrap();
        let journal = journals.join("log/a.20240229T130709.123-2.rows");
        fs::write(&journal, "").unwrap();
        assert_eq!(["", "-1", "-2", "-3", "-11"].map(is_waiting), [false, false, true, true, true]);
        assert_eq!(["-1001", "-2000"].map(is_waiting), [true, false], "no file of that journal gets the number 2000");
        fs::remove_file(&journal).unwrap();
        assert!(!is_waiting("-3"));
        fs::write(journals.join("log/a.20240229T130709.123.rows"), "").unwrap();
        assert!(is_waiting("") && is_waiting("-1"));
    }
}
