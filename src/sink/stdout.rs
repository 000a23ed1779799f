//! The sink that writes to standard output, or to any other stream.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use super::encode::{Encoder, Format};
use super::offload::Offload;
use super::{Selection, Sink, SinkError, SinkFault};

/// Encoded events beyond this many bytes are written without waiting for the worker's flush.
const FLUSH_BYTES: usize = 64 * 1024;

/// Pause before a stream that said "not now" is asked again.
const PAUSE: Duration = Duration::from_millis(5);

/// Writes events to a stream. A reader that has left closes the sink; anything else that goes wrong is its end, since
/// a stream, other than a file, does not tell what became of what it was given.
#[derive(Debug)]
pub struct Stdout {
    stream: Offload<Stream>,
    encoder: Encoder,
}

struct Stream {
    writer: Box<dyn Write + Send>,
    waiting: Vec<u8>,
}

impl Stdout {
    /// The standard output of the process.
    pub fn new(format: Format) -> Self {
        Stdout::to(Box::new(io::stdout()), format)
    }

    /// Any stream.
    pub fn to(writer: Box<dyn Write + Send>, format: Format) -> Self {
        Stdout { stream: Offload::new(Stream { writer, waiting: Vec::new() }), encoder: Encoder::new(format) }
    }
}

impl Sink for Stdout {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        let stream = self.stream.here().await.map_err(failed)?;
        for event in events.events() {
            self.encoder.encode(event, &mut stream.waiting);
        }
        if stream.waiting.len() > FLUSH_BYTES { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        if self.stream.here().await.map_err(failed)?.waiting.is_empty() {
            return Ok(());
        }
        let result = self.stream.run(Stream::flush).await.map_err(failed)?;
        result.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => SinkError::Closed,
            _ => failed(error),
        })
    }
}

impl Stream {
    fn flush(&mut self) -> io::Result<()> {
        let result = write_patiently(&mut self.writer, &self.waiting);
        self.waiting.clear();
        result
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

/// Writes everything. Asks again when the stream is in non-blocking mode and full: whoever shares a terminal or pipe
/// with us can put it into that mode, and it is no reason to stop.
fn write_patiently(writer: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match writer.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => rest = &rest[count..],
            Err(error) => wait_or_give_up(error)?,
        }
    }
    while let Err(error) = writer.flush() {
        wait_or_give_up(error)?;
    }
    Ok(())
}

fn wait_or_give_up(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => {}
        io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
        _ => return Err(error),
    }
    Ok(())
}

fn failed(source: io::Error) -> SinkError {
    SinkError::Failed(SinkFault { action: "write to standard output".to_owned(), source })
}
