//! The recorder: what each connection of a listener received, plain text and with its times, one file per connection.
//!
//! Connections pass what they read to a writer thread and never wait for it. Bytes that do not fit into its queue, or
//! that the disk refuses, are missing in the file, and the file records their number. The format is that of
//! `tributary_driver::capture`.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use tributary_driver::capture::{CaptureHead, put_bytes, put_end, put_full, put_missing};
use tributary_event::{Origin, UnixNanos};
use tributary_memory::log_throttle::LogThrottle;
use tributary_protocol::{End, Protocol};
use tributary_system::blocking;
use tributary_system::kept_files::FILE_BYTES;

use super::clock::Clock;
use super::options::CaptureOptions;

/// The extension of capture files.
const SUFFIX: &str = "capture";
/// Bytes of all connections of a listener that may wait for the writer.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// The same, with the memory of open files and of the ends of connections.
pub(super) const MOST_BYTES: u64 = MAX_QUEUED_BYTES as u64 + (1 << 20);
/// What a message counts beside its bytes.
const MESSAGE_BYTES: usize = 256;
/// Files that the writer keeps open. It opens each of the others again for every piece.
const MAX_OPEN_FILES: usize = 64;
/// After the daemon's `abort`, the writer still has this time.
const LAST_WRITE_TIME: Duration = Duration::from_secs(1);

/// The recorder of one listener. Its connections share it; it ends with the last of them.
#[derive(Debug)]
pub struct Capture {
    protocol: Protocol,
    listener: Arc<str>,
    messages: mpsc::Sender<RecorderMessage>,
    queue: Arc<Queue>,
}

/// What waits for the writer.
#[derive(Debug)]
struct Queue {
    listener: Arc<str>,
    bytes: AtomicUsize,
    warned: LogThrottle,
}

#[derive(Debug)]
enum RecorderMessage {
    Open {
        head: CaptureHead,
    },
    /// `missing`: bytes before these that did not fit into the queue.
    Bytes {
        connection: u64,
        at: Duration,
        missing: u64,
        bytes: Vec<u8>,
    },
    End {
        connection: u64,
        at: Duration,
        missing: u64,
        end: End,
    },
}

impl Capture {
    /// A recorder for the connections of a listener. `tasks` waits for its writer, until shortly after `abort` at most.
    pub fn start(
        options: &CaptureOptions,
        listener: &str,
        protocol: Protocol,
        tasks: &TaskTracker,
        abort: &CancellationToken,
    ) -> Option<Arc<Capture>> {
        let (capture, messages) = Capture::new(listener, protocol);
        let writer = Writer::new(options, capture.queue.clone());
        let (done, is_done) = oneshot::channel::<()>();
        let write = move || {
            writer.run(&messages);
            drop(done);
        };
        if let Err(error) = blocking::thread("capture", write) {
            warn!(listener, %error, "cannot start the recorder; nothing is recorded (capture)");
            return None;
        }
        let abort = abort.clone();
        tasks.spawn(async move {
            let aborted = async {
                abort.cancelled().await;
                sleep(LAST_WRITE_TIME).await;
            };
            tokio::select! {
                _ = is_done => {}
                () = aborted => {}
            }
        });
        Some(Arc::new(capture))
    }

    fn new(listener: &str, protocol: Protocol) -> (Capture, mpsc::Receiver<RecorderMessage>) {
        let (sender, messages) = mpsc::channel();
        let listener: Arc<str> = listener.into();
        let queue =
            Arc::new(Queue { listener: listener.clone(), bytes: AtomicUsize::new(0), warned: LogThrottle::new() });
        (Capture { protocol, listener, messages: sender, queue }, messages)
    }

    /// Begins to record a connection that was opened at `opened`. `None`: the queue of the writer is full.
    pub(super) fn connection(self: &Arc<Self>, origin: &Origin, clock: Clock, opened: Duration) -> Option<Recording> {
        if !self.queue.takes(MESSAGE_BYTES) {
            return None;
        }
        let now = clock.now();
        let age = u64::try_from((now.elapsed - opened).as_nanos()).unwrap_or(u64::MAX);
        let head = CaptureHead {
            protocol: self.protocol,
            listener: self.listener.to_string(),
            peer: origin.peer.to_string(),
            connection: origin.connection,
            opened: UnixNanos(now.unix.0.saturating_sub(age)),
        };
        // Here and below: a writer that has ended has logged why.
        let _ = self.messages.send(RecorderMessage::Open { head });
        let connection = origin.connection;
        Some(Recording { capture: self.clone(), connection, clock, opened, missing: 0, end: None })
    }
}

impl Queue {
    /// Takes capacity of the queue for `bytes`. `false`: there is none.
    fn takes(&self, bytes: usize) -> bool {
        let has_space = self.bytes.fetch_add(bytes, Relaxed) + bytes <= MAX_QUEUED_BYTES;
        if !has_space {
            self.bytes.fetch_sub(bytes, Relaxed);
            self.warn("bytes arrive faster than they are written");
        }
        has_space
    }

    /// Logs a warning, throttled.
    fn warn(&self, why: &str) {
        if let Some(suppressed) = self.warned.permit() {
            warn!(listener = &*self.listener, why, suppressed, "captures are incomplete");
        }
    }
}

/// The recording of one connection. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Recording {
    capture: Arc<Capture>,
    connection: u64,
    clock: Clock,
    opened: Duration,
    /// Bytes that did not fit into the queue since the last ones that did.
    missing: u64,
    end: Option<End>,
}

impl Recording {
    /// These bytes were received. Never waits.
    pub(super) fn received(&mut self, bytes: &[u8]) {
        if !self.capture.queue.takes(MESSAGE_BYTES + bytes.len()) {
            self.missing += bytes.len() as u64;
            return;
        }
        let missing = std::mem::take(&mut self.missing);
        let message =
            RecorderMessage::Bytes { connection: self.connection, at: self.at(), missing, bytes: bytes.to_vec() };
        let _ = self.capture.messages.send(message);
    }

    /// Reading has ended so.
    pub(super) fn read_ended(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    /// The connection has ended so; this replaces how reading has ended.
    pub(super) fn ended(&mut self, end: End) {
        self.end = Some(end);
    }

    fn at(&self) -> Duration {
        self.clock.now().elapsed.saturating_sub(self.opened)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let end = self.end.unwrap_or(End::Stopped);
        let message = RecorderMessage::End { connection: self.connection, at: self.at(), missing: self.missing, end };
        let _ = self.capture.messages.send(message);
    }
}

/// Writes the files, on a thread of its own.
#[derive(Debug)]
struct Writer {
    dir: PathBuf,
    max_bytes: u64,
    /// `None` until the directory has been read.
    kept: Option<CaptureFiles>,
    files: HashMap<u64, Recorded>,
    open_files: usize,
    queue: Arc<Queue>,
}

/// What is in the directory.
#[derive(Debug, Default)]
struct CaptureFiles {
    /// The finished files, oldest first.
    finished: VecDeque<(PathBuf, u64)>,
    /// What all files count, including those that are being written.
    bytes: u64,
}

/// A file that is being written.
#[derive(Debug)]
struct Recorded {
    path: PathBuf,
    /// The bytes with which it begins.
    head: Vec<u8>,
    file: Option<File>,
    /// Its length up to the last complete record; on the disk a part of a record may follow.
    length: u64,
    /// What it counts to `max_bytes`.
    counts: u64,
    /// Bytes received since the last ones that are in the file.
    missing: u64,
    is_full: bool,
}

impl Writer {
    fn new(options: &CaptureOptions, queue: Arc<Queue>) -> Self {
        let dir = options.dir.join(&*queue.listener);
        Writer { dir, max_bytes: options.max_bytes, kept: None, files: HashMap::new(), open_files: 0, queue }
    }

    fn run(mut self, messages: &mpsc::Receiver<RecorderMessage>) {
        while let Ok(message) = messages.recv() {
            self.take(message);
        }
    }

    fn take(&mut self, message: RecorderMessage) {
        match message {
            RecorderMessage::Open { head } => {
                // The name contains nothing from the peer: only the time and our number.
                let path = self.dir.join(format!("{:020}-{}.{SUFFIX}", head.opened.0, head.connection));
                let (connection, head) = (head.connection, head.to_bytes());
                let recorded = Recorded { path, head, file: None, length: 0, counts: 0, missing: 0, is_full: false };
                self.files.insert(connection, recorded);
                self.write(connection, Duration::ZERO, 0, &[]);
                self.queue.bytes.fetch_sub(MESSAGE_BYTES, Relaxed);
            }
            RecorderMessage::Bytes { connection, at, missing, bytes } => {
                self.write(connection, at, missing, &bytes);
                self.queue.bytes.fetch_sub(MESSAGE_BYTES + bytes.len(), Relaxed);
            }
            RecorderMessage::End { connection, at, missing, end } => self.finish(connection, at, missing, end),
        }
    }

    /// Writes a piece of a connection, or counts it as missing.
    fn write(&mut self, connection: u64, at: Duration, missing: u64, bytes: &[u8]) {
        let Some(mut recorded) = self.files.remove(&connection) else { return };
        recorded.missing += missing;
        if recorded.is_full {
            recorded.missing += bytes.len() as u64;
        } else if let Err(error) = self.add(&mut recorded, at, bytes) {
            recorded.missing += bytes.len() as u64;
            self.queue.warn(&format!("cannot write to {}: {error}", self.dir.display()));
        }
        self.files.insert(connection, recorded);
    }

    fn add(&mut self, recorded: &mut Recorded, at: Duration, bytes: &[u8]) -> io::Result<()> {
        let mut text = Vec::new();
        let mut counts = 0;
        if recorded.length == 0 {
            text.extend_from_slice(&recorded.head);
            counts = FILE_BYTES;
        }
        if recorded.missing > 0 && !bytes.is_empty() {
            put_missing(&mut text, at, recorded.missing);
        }
        put_bytes(&mut text, at, bytes);
        counts += text.len() as u64;
        if self.has_space(recorded.counts, counts)? {
            self.append(recorded, &text)?;
            recorded.counts += counts;
            self.kept()?.bytes += counts;
            recorded.missing = if bytes.is_empty() { recorded.missing } else { 0 };
            return Ok(());
        }
        let message = format!("{} is full (capture.max_bytes); the recording of a connection ends", self.dir.display());
        self.queue.warn(&message);
        recorded.is_full = true;
        recorded.missing += bytes.len() as u64;
        if recorded.length > 0 {
            let mut mark = Vec::new();
            put_full(&mut mark, at);
            self.append(recorded, &mark)?;
        }
        Ok(())
    }

    /// Frees space for `more` bytes of a file that counts `already`, by removing the oldest finished files. `false`:
    /// the file alone would be too large, or all others are still being written.
    fn has_space(&mut self, already: u64, more: u64) -> io::Result<bool> {
        let max_bytes = self.max_bytes;
        let kept = self.kept()?;
        if already + more > max_bytes {
            return Ok(false);
        }
        while kept.bytes + more > max_bytes {
            let Some((path, bytes)) = kept.finished.front() else { return Ok(false) };
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                // An operator may have removed it already.
                _ => debug!(file = %path.display(), "the oldest capture is removed (capture.max_bytes)"),
            }
            kept.bytes = kept.bytes.saturating_sub(*bytes);
            kept.finished.pop_front();
        }
        Ok(true)
    }

    /// Writes to the end of a file. After an error the file counts as unchanged.
    fn append(&mut self, recorded: &mut Recorded, text: &[u8]) -> io::Result<()> {
        let mut file = match recorded.file.take() {
            Some(file) => file,
            None => self.open(recorded)?,
        };
        match file.write_all(text) {
            Ok(()) => {
                recorded.length += text.len() as u64;
                recorded.file = Some(file);
                Ok(())
            }
            Err(error) => {
                self.open_files -= 1;
                if recorded.length == 0 {
                    // A file without a complete record is removed.
                    let _ = fs::remove_file(&recorded.path);
                }
                Err(error)
            }
        }
    }

    fn open(&mut self, recorded: &Recorded) -> io::Result<File> {
        if self.open_files >= MAX_OPEN_FILES {
            self.files.values_mut().for_each(|other| other.file = None);
            self.open_files = 0;
        }
        let mut options = OpenOptions::new();
        options.append(true).mode(0o600);
        let opened = options.create(recorded.length == 0).open(&recorded.path);
        let is_gone = opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if is_gone && recorded.length == 0 {
            // The directory was removed: it is created for the next record.
            self.kept = None;
        }
        let file = opened?;
        // A failed write may have left a part of a record.
        file.set_len(recorded.length)?;
        self.open_files += 1;
        Ok(file)
    }

    /// A connection has ended.
    fn finish(&mut self, connection: u64, at: Duration, missing: u64, end: End) {
        let Some(mut recorded) = self.files.remove(&connection) else { return };
        recorded.missing += missing;
        if recorded.length > 0 {
            let mut text = Vec::new();
            if recorded.missing > 0 {
                put_missing(&mut text, at, recorded.missing);
            }
            put_end(&mut text, at, end);
            if let Err(error) = self.append(&mut recorded, &text) {
                self.queue.warn(&format!("cannot write to {}: {error}", self.dir.display()));
            }
            if let Some(kept) = &mut self.kept {
                kept.finished.push_back((recorded.path, recorded.counts));
            }
        }
        if recorded.file.is_some() {
            self.open_files -= 1;
        }
    }

    fn kept(&mut self) -> io::Result<&mut CaptureFiles> {
        match &mut self.kept {
            Some(kept) => Ok(kept),
            unread => Ok(unread.insert(CaptureFiles::read(&self.dir)?)),
        }
    }
}

impl CaptureFiles {
    /// Reads what an earlier run has left in the directory, and creates it if it does not exist.
    fn read(dir: &Path) -> io::Result<CaptureFiles> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.path().extension().is_some_and(|suffix| suffix == SUFFIX) {
                files.push((entry.path(), entry.metadata()?.len() + FILE_BYTES));
            }
        }
        // Names begin with the time, so this is the order of age.
        files.sort();
        let bytes = files.iter().map(|(_, bytes)| bytes).sum();
        Ok(CaptureFiles { finished: files.into(), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_driver::capture::{MAGIC, Reader, What};

    fn origin(connection: u64) -> Origin {
        Origin::new("datadog", "test".into(), "../../192.0.2.1:9".into(), connection)
    }

    fn records(dir: &Path) -> Vec<What> {
        let path = fs::read_dir(dir.join("test")).unwrap().next().unwrap().unwrap().path();
        let file = fs::read(path).unwrap();
        let mut reader = Reader::new(&file[MAGIC.len()..]).unwrap();
        assert_eq!(reader.head().peer, "../../192.0.2.1:9");
        std::iter::from_fn(|| reader.record().unwrap()).map(|record| record.what).collect()
    }

    /// A recorder with its directory, its messages and its writer.
    fn recorder() -> (tempfile::TempDir, Arc<Capture>, mpsc::Receiver<RecorderMessage>, Writer) {
        let dir = tempfile::tempdir().unwrap();
        let options = CaptureOptions { dir: dir.path().into(), max_bytes: 1 << 30 };
        let (capture, messages) = Capture::new("test", Protocol::Datadog);
        let writer = Writer::new(&options, capture.queue.clone());
        (dir, Arc::new(capture), messages, writer)
    }

    #[test]
    fn while_the_writer_is_stalled_no_connection_waits_and_the_file_records_what_is_missing() {
        let (dir, capture, messages, mut writer) = recorder();
        let clock = Clock::start();
        let mut recording = capture.connection(&origin(7), clock, clock.now().elapsed).unwrap();
        let piece = vec![1; 1 << 20];
        (0..12).for_each(|_| recording.received(&piece));
        assert!(capture.queue.bytes.load(Relaxed) <= MAX_QUEUED_BYTES);
        messages.try_iter().for_each(|message| writer.take(message));
        assert_eq!(capture.queue.bytes.load(Relaxed), 0);
        recording.received(b"after");
        recording.ended(End::TooLarge);
        drop(recording);
        drop(capture);
        writer.run(&messages);
        let [pieces @ .., What::Missing(missing), What::Bytes(after), What::End(End::TooLarge)] =
            &records(dir.path())[..]
        else {
            panic!("other records")
        };
        assert_eq!((pieces.len(), *missing, after.as_slice()), (3, 9 << 20, &b"after"[..]));
    }

    #[test]
    fn a_directory_that_was_removed_is_created_again() {
        let (dir, capture, messages, mut writer) = recorder();
        let clock = Clock::start();
        drop(capture.connection(&origin(1), clock, Duration::ZERO));
        messages.try_iter().for_each(|message| writer.take(message));
        fs::remove_dir_all(dir.path().join("test")).unwrap();
        let mut recording = capture.connection(&origin(2), clock, Duration::ZERO).unwrap();
        recording.received(b"abc");
        drop((recording, capture));
        writer.run(&messages);
        assert_eq!(records(dir.path()), [What::Bytes(b"abc".into()), What::End(End::Stopped)]);
    }

    #[test]
    fn more_files_than_may_be_open_are_written() {
        let (dir, capture, messages, writer) = recorder();
        let clock = Clock::start();
        let connections = MAX_OPEN_FILES as u64 * 2 + 1;
        let begin = |number| capture.connection(&origin(number), clock, Duration::ZERO).unwrap();
        let mut recordings: Vec<_> = (0..connections).map(begin).collect();
        for _ in 0..2 {
            recordings.iter_mut().for_each(|recording| recording.received(&recording.connection.to_be_bytes()));
        }
        drop(recordings);
        drop(capture);
        writer.run(&messages);
        let mut found: Vec<_> = fs::read_dir(dir.path().join("test"))
            .unwrap()
            .map(|file| {
                let file = fs::read(file.unwrap().path()).unwrap();
                let mut reader = Reader::new(&file[MAGIC.len()..]).unwrap();
                let number = reader.head().connection;
                let bytes = What::Bytes(number.to_be_bytes().into());
                let records: Vec<_> =
                    std::iter::from_fn(|| reader.record().unwrap()).map(|record| record.what).collect();
                assert_eq!(records, [bytes.clone(), bytes, What::End(End::Stopped)]);
                number
            })
            .collect();
        found.sort_unstable();
        assert_eq!(found, (0..connections).collect::<Vec<_>>());
    }
}
