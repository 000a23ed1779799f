//! Captures in commands: they are recognized by their first bytes, and played together in the order of their times.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tributary_driver::capture::{CaptureRecord, MAGIC, Reader, What};
use tributary_event::UnixNanos;
use tributary_protocol::End;

use super::input::Input;
use super::{CommandLineError, say};

/// The size of reads.
const BUFFER_BYTES: usize = 16 * 1024;

/// The content of a file.
pub(super) enum FileContent {
    /// The received bytes of a connection.
    Wire(Box<dyn Read>),
    /// A capture of a connection.
    Capture(Reader<Box<dyn Read>>),
    /// Events as JSON lines.
    Events,
}

/// How files of JSON lines begin: with an event, or with the definition of a source.
const EVENTS: [&[u8]; 2] = [b"{\"time\":", b"{\"source\":"];

impl FileContent {
    /// Reads the first bytes, and no more than it needs to recognize a capture or events.
    pub(super) fn of(mut input: Input) -> io::Result<FileContent> {
        let is_file = input.opened.is_none() && input.path.is_file();
        let path = is_file.then(|| input.path.clone());
        let mut input = input.open()?;
        let mut start = Vec::new();
        let mut byte = [0];
        let known = || EVENTS.into_iter().chain([MAGIC]);
        while known().any(|known| known.len() > start.len() && known.starts_with(&start)) {
            match input.read(&mut byte) {
                Ok(0) => break,
                Ok(_) => start.push(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if start == MAGIC {
            // The number of captures can be higher than the limit of open files.
            let input = match path {
                Some(path) => Box::new(Pieces { path, position: MAGIC.len() as u64 }),
                None => input,
            };
            return Reader::new(Box::new(BufReader::with_capacity(BUFFER_BYTES, input)) as _).map(FileContent::Capture);
        }
        if EVENTS.contains(&&start[..]) {
            return Ok(FileContent::Events);
        }
        Ok(FileContent::Wire(Box::new(Cursor::new(start).chain(input))))
    }
}

/// A file that is open only during a read.
struct Pieces {
    path: PathBuf,
    position: u64,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = File::open(&self.path)?.read_at(buffer, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

/// Captures that are played together.
#[derive(Default)]
pub(super) struct Captures {
    files: Vec<Playing>,
}

struct Playing {
    name: Arc<str>,
    reader: Reader<Box<dyn Read>>,
    next: Option<(Duration, ConnectionStep)>,
    /// The time of the last record that was read.
    last: Duration,
}

/// A step of a connection.
pub(super) enum ConnectionStep {
    /// It receives these bytes.
    Bytes(Vec<u8>),
    /// It ends. This is its last step.
    End(End),
}

impl Captures {
    /// Adds a capture. Its number is the number of captures before it.
    pub(super) fn add(&mut self, name: Arc<str>, reader: Reader<Box<dyn Read>>) -> Result<(), CommandLineError> {
        let mut playing = Playing { name, reader, next: None, last: Duration::ZERO };
        playing.advance()?;
        self.files.push(playing);
        Ok(())
    }

    /// The time at which the first connection was opened.
    pub(super) fn start(&self) -> UnixNanos {
        UnixNanos(self.files.iter().map(|file| file.reader.head().opened.0).min().unwrap_or_default())
    }

    /// The next step of all captures: the number of the capture, the time, and the step.
    pub(super) fn next(&mut self) -> Result<Option<(usize, UnixNanos, ConnectionStep)>, CommandLineError> {
        let moment = |file: &Playing| file.next.as_ref().map(|(at, _)| file.moment(*at));
        let due = self.files.iter().enumerate().filter_map(|(number, file)| Some((moment(file)?, number))).min();
        let Some((at, number)) = due else { return Ok(None) };
        let file = &mut self.files[number];
        let step = file.next.take().map(|(_, step)| step);
        if let Some(ConnectionStep::Bytes(_)) = step {
            file.advance()?;
        }
        Ok(step.map(|step| (number, UnixNanos(at), step)))
    }
}

impl Playing {
    fn moment(&self, at: Duration) -> u64 {
        self.reader.head().opened.0.saturating_add(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Reads the next record. An incomplete record, and records after missing bytes, are skipped with a message.
    fn advance(&mut self) -> Result<(), CommandLineError> {
        let record =
            self.reader.record().map_err(|error| CommandLineError::Failed(format!("{}: {error}", self.name)))?;
        let name = &self.name;
        let Some(CaptureRecord { at, what }) = record else {
            let why = match self.reader.torn() {
                0 => "the capture has no end: the daemon was killed, or it is still recording".to_owned(),
                torn => format!("the last record is incomplete; its {torn} bytes are skipped"),
            };
            say(format_args!("{name}: {why}"));
            self.next = Some((self.last, ConnectionStep::End(End::Stopped)));
            return Ok(());
        };
        let at = at.max(self.last);
        let step = match what {
            What::Bytes(bytes) => ConnectionStep::Bytes(bytes),
            What::End(end) => ConnectionStep::End(end),
            What::Missing(bytes) => {
                say(format_args!("{name}: {bytes} bytes were not recorded; the rest is skipped"));
                ConnectionStep::End(End::Stopped)
            }
            What::Full => {
                say(format_args!("{name}: the rest of the connection was not recorded (capture.max_bytes)"));
                ConnectionStep::End(End::Stopped)
            }
        };
        self.last = at;
        self.next = Some((at, step));
        Ok(())
    }
}
