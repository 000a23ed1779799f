//! Captures as commands read them: told apart from other files, and played together in the order of their times.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::capture::{MAGIC, Reader, Record, What};
use crate::event::UnixNanos;
use crate::protocol::End;

use super::decode::Input;
use super::{Failure, say};

/// Captures are read in pieces of this size.
const BUFFER_BYTES: usize = 16 * 1024;

/// What a file turned out to be.
pub(super) enum Source {
    /// Bytes as a connection received them.
    Wire(Box<dyn Read>),
    /// A capture of a connection.
    Capture(Reader<Box<dyn Read>>),
}

impl Source {
    /// Looks at how the input begins, and no further than it takes to know.
    pub(super) fn of(mut input: Input) -> io::Result<Source> {
        let is_file = input.opened.is_none() && input.path.is_file();
        let path = is_file.then(|| input.path.clone());
        let mut input = input.open()?;
        let mut start = Vec::new();
        let mut byte = [0];
        while MAGIC.starts_with(&start) && start.len() < MAGIC.len() {
            match input.read(&mut byte) {
                Ok(0) => break,
                Ok(_) => start.push(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if start == MAGIC {
            // There may be more captures than files that may be open.
            let input = match path {
                Some(path) => Box::new(Pieces { path, position: MAGIC.len() as u64 }),
                None => input,
            };
            return Reader::new(Box::new(BufReader::with_capacity(BUFFER_BYTES, input)) as _).map(Source::Capture);
        }
        Ok(Source::Wire(Box::new(Cursor::new(start).chain(input))))
    }
}

/// A file that is open only while a piece of it is read.
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

/// Captures being played together.
#[derive(Default)]
pub(super) struct Captures {
    files: Vec<Playing>,
}

struct Playing {
    name: Arc<str>,
    reader: Reader<Box<dyn Read>>,
    next: Option<(Duration, Step)>,
    /// The time of the last record.
    last: Duration,
}

/// What happens next on a connection.
pub(super) enum Step {
    /// It receives these bytes.
    Bytes(Vec<u8>),
    /// It ends; the last step of each.
    End(End),
}

impl Captures {
    /// Adds a capture. Its number is how many there were before.
    pub(super) fn add(&mut self, name: Arc<str>, reader: Reader<Box<dyn Read>>) -> Result<(), Failure> {
        let mut playing = Playing { name, reader, next: None, last: Duration::ZERO };
        playing.advance()?;
        self.files.push(playing);
        Ok(())
    }

    /// When the first connection was opened.
    pub(super) fn start(&self) -> UnixNanos {
        UnixNanos(self.files.iter().map(|file| file.reader.head().opened.0).min().unwrap_or_default())
    }

    /// The next step of all: of which capture, when it was, and what.
    pub(super) fn next(&mut self) -> Result<Option<(usize, UnixNanos, Step)>, Failure> {
        let moment = |file: &Playing| file.next.as_ref().map(|(at, _)| file.moment(*at));
        let due = self.files.iter().enumerate().filter_map(|(number, file)| Some((moment(file)?, number))).min();
        let Some((at, number)) = due else { return Ok(None) };
        let file = &mut self.files[number];
        let step = file.next.take().map(|(_, step)| step);
        if let Some(Step::Bytes(_)) = step {
            file.advance()?;
        }
        Ok(step.map(|step| (number, UnixNanos(at), step)))
    }
}

impl Playing {
    fn moment(&self, at: Duration) -> u64 {
        self.reader.head().opened.0.saturating_add(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Reads the next record. What is not whole, and what follows a gap, is left out, and said.
    fn advance(&mut self) -> Result<(), Failure> {
        let record = self.reader.record().map_err(|error| Failure::Failed(format!("{}: {error}", self.name)))?;
        let name = &self.name;
        let Some(Record { at, what }) = record else {
            match self.reader.torn() {
                0 => say(format_args!("{name}: the capture has no end: its daemon was killed, or is still writing it")),
                torn => say(format_args!("{name}: the last record is torn; its {torn} bytes are left out")),
            }
            self.next = Some((self.last, Step::End(End::Stopped)));
            return Ok(());
        };
        let at = at.max(self.last);
        let step = match what {
            What::Bytes(bytes) => Step::Bytes(bytes),
            What::End(end) => Step::End(end),
            What::Missing(bytes) => {
                say(format_args!("{name}: {bytes} bytes could not be recorded; what follows them is left out"));
                Step::End(End::Stopped)
            }
            What::Full => {
                say(format_args!("{name}: the rest of the connection was not recorded (capture.max_bytes)"));
                Step::End(End::Stopped)
            }
        };
        self.last = at;
        self.next = Some((at, step));
        Ok(())
    }
}
