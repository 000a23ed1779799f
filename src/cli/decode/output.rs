//! The outputs of decoded events.

use std::io::{self, BufWriter, Write};
use std::mem;

use crate::cli::{Failure, printed};
use tributary_event::Batch;
use tributary_sink::encode::{Encoder, Format};

/// The receiver of decoded events.
pub(super) enum Output<'a> {
    /// Lines on stdout.
    Written(Box<Lines>),
    /// A profile.
    Taken(&'a mut dyn FnMut(&Batch)),
    /// An explanation: `origin.connection` is the number of the file, also for captures.
    Examined(&'a mut dyn FnMut(&Batch)),
}

impl Output<'_> {
    pub(super) fn write(&mut self, batch: &Batch) {
        match self {
            Output::Written(lines) => lines.write(batch),
            Output::Taken(take) | Output::Examined(take) => take(batch),
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        match self {
            Output::Written(lines) => lines.flush(),
            Output::Taken(_) | Output::Examined(_) => Ok(()),
        }
    }

    pub(super) fn counts_files(&self) -> bool {
        matches!(self, Output::Examined(_))
    }

    /// The reader of stdout has closed it.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Output::Written(lines) if lines.is_closed)
    }
}

/// Encoded events for stdout.
pub(super) struct Lines {
    stdout: BufWriter<io::Stdout>,
    encoder: Encoder,
    lines: Vec<u8>,
    /// The first error since the last flush.
    result: io::Result<()>,
    /// The reader of stdout has closed it.
    is_closed: bool,
}

impl Lines {
    pub(super) fn new(format: Format) -> Self {
        Lines {
            stdout: BufWriter::new(io::stdout()),
            encoder: Encoder::new(format),
            lines: Vec::new(),
            result: Ok(()),
            is_closed: false,
        }
    }

    fn write(&mut self, batch: &Batch) {
        if self.result.is_err() {
            return;
        }
        self.lines.clear();
        batch.events().for_each(|event| self.encoder.encode(event, &mut self.lines));
        self.result = self.stdout.write_all(&self.lines);
    }

    fn flush(&mut self) -> Result<(), Failure> {
        if !self.is_closed && self.result.is_ok() {
            self.result = self.stdout.flush();
        }
        let result = mem::replace(&mut self.result, Ok(()));
        self.is_closed |= result.is_err();
        printed(result)
    }
}
