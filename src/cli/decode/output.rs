//! The outputs of decoded events.

use std::io::{self, BufWriter, Write};
use std::mem;

use crate::cli::{CommandLineError, printed};
use tributary_event::Batch;
use tributary_sink::encode::{Encoder, Format};

/// The receiver of decoded events.
pub(super) enum DecodeOutput<'a> {
    /// Lines on stdout.
    Written(Box<StdoutEncoder>),
    /// A profile.
    Taken(&'a mut dyn FnMut(&Batch)),
    /// An explanation: `origin.connection` is the number of the file, also for captures.
    Examined(&'a mut dyn FnMut(&Batch)),
}

impl DecodeOutput<'_> {
    pub(super) fn write(&mut self, batch: &Batch) {
        match self {
            DecodeOutput::Written(lines) => lines.write(batch),
            DecodeOutput::Taken(take) | DecodeOutput::Examined(take) => take(batch),
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), CommandLineError> {
        match self {
            DecodeOutput::Written(lines) => lines.flush(),
            DecodeOutput::Taken(_) | DecodeOutput::Examined(_) => Ok(()),
        }
    }

    pub(super) fn counts_files(&self) -> bool {
        matches!(self, DecodeOutput::Examined(_))
    }

    /// The reader of stdout has closed it.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self, DecodeOutput::Written(lines) if lines.is_closed)
    }
}

/// Encoded events for stdout.
pub(super) struct StdoutEncoder {
    stdout: BufWriter<io::Stdout>,
    encoder: Encoder,
    lines: Vec<u8>,
    /// The first error since the last flush.
    result: io::Result<()>,
    /// The reader of stdout has closed it.
    is_closed: bool,
}

impl StdoutEncoder {
    pub(super) fn new(format: Format) -> Self {
        StdoutEncoder {
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

    fn flush(&mut self) -> Result<(), CommandLineError> {
        if !self.is_closed && self.result.is_ok() {
            self.result = self.stdout.flush();
        }
        let result = mem::replace(&mut self.result, Ok(()));
        self.is_closed |= result.is_err();
        printed(result)
    }
}
