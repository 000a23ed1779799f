//! The sink that writes to standard output, or to any other stream.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use crate::event::MOST_BATCH_BYTES;
use crate::options::Bounds;

use super::encode::{Encoder, Format};
use super::{Selection, Sink, SinkError, SinkFault};

/// Encoded events beyond this many bytes are written without waiting for the worker's flush.
const FLUSH_BYTES: usize = 64 * 1024;

/// Pause before a stream that said "not now" is asked again.
const PAUSE: Duration = Duration::from_millis(5);

/// Says what such a sink may take of memory whatever happens.
pub(crate) fn declare(of: &str, bounds: &mut Bounds) {
    bounds.add(of, "lines on their way to the stream", FLUSH_BYTES as u64 + MOST_BATCH_BYTES);
}

/// Writes events to a stream. A reader that has left closes the sink; anything else that goes wrong is its end, since
/// a stream, other than a file, does not tell what became of what it was given.
pub struct Stdout {
    writer: Box<dyn Write + Send>,
    encoder: Encoder,
    waiting: Vec<u8>,
}

impl Stdout {
    /// The standard output of the process.
    pub fn new(format: Format) -> Self {
        Stdout::to(Box::new(io::stdout()), format)
    }

    /// Any stream.
    pub fn to(writer: Box<dyn Write + Send>, format: Format) -> Self {
        Stdout { writer, encoder: Encoder::new(format), waiting: Vec::new() }
    }
}

impl Sink for Stdout {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        for event in events.events() {
            self.encoder.encode(event, &mut self.waiting);
        }
        if self.waiting.len() > FLUSH_BYTES { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let result = write_patiently(&mut self.writer, &self.waiting);
        self.waiting.clear();
        result.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => SinkError::Closed,
            _ => failed(error),
        })
    }
}

impl fmt::Debug for Stdout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stdout").field("waiting", &self.waiting.len()).finish_non_exhaustive()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Kinds;
    use crate::sink::memory::tests::batch_of;
    use std::io::Read as _;
    use std::sync::{Arc, Mutex};

    /// Remembers every write; says "not now" before each of them, and takes so much at once.
    #[derive(Clone)]
    struct Reluctant {
        writes: Arc<Mutex<Vec<Vec<u8>>>>,
        is_ready: bool,
        most: usize,
    }

    impl Reluctant {
        fn taking(most: usize) -> Self {
            Reluctant { writes: Arc::default(), is_ready: false, most }
        }

        fn writes(&self) -> Vec<Vec<u8>> {
            self.writes.lock().unwrap().clone()
        }
    }

    impl Write for Reluctant {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.is_ready = !self.is_ready;
            if self.is_ready {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let taken = &bytes[..bytes.len().min(self.most)];
            self.writes.lock().unwrap().push(taken.to_owned());
            Ok(taken.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    async fn write(sink: &mut Stdout, names: &[&str]) -> Result<(), SinkError> {
        sink.write(Selection::new(&batch_of(names), Kinds::ALL)).await
    }

    #[tokio::test]
    async fn events_wait_for_the_flush_and_leave_in_one_write() {
        let stream = Reluctant::taking(usize::MAX);
        let mut sink = Stdout::to(Box::new(stream.clone()), Format::Json);
        write(&mut sink, &["a", "b"]).await.unwrap();
        write(&mut sink, &["c"]).await.unwrap();
        assert!(stream.writes().is_empty());
        sink.flush().await.unwrap();
        sink.flush().await.unwrap();
        let writes = stream.writes();
        assert_eq!(writes.len(), 1);
        assert_eq!(writes[0].iter().filter(|byte| **byte == b'\n').count(), 3);
    }

    #[tokio::test]
    async fn many_events_leave_without_a_flush() {
        let stream = Reluctant::taking(usize::MAX);
        let mut sink = Stdout::to(Box::new(stream.clone()), Format::Json);
        write(&mut sink, &["x".repeat(FLUSH_BYTES).as_str()]).await.unwrap();
        assert_eq!(stream.writes().len(), 1);
    }

    #[tokio::test]
    async fn a_stream_that_takes_little_at_a_time_gets_everything_in_order() {
        let (whole, bit_by_bit) = (Reluctant::taking(usize::MAX), Reluctant::taking(7));
        for stream in [&whole, &bit_by_bit] {
            let mut sink = Stdout::to(Box::new(stream.clone()), Format::Json);
            write(&mut sink, &["a", "b"]).await.unwrap();
            sink.flush().await.unwrap();
        }
        assert!(bit_by_bit.writes().len() > 1);
        assert_eq!(bit_by_bit.writes().concat(), whole.writes().concat());
    }

    #[tokio::test]
    async fn a_reader_that_leaves_closes_the_sink() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut sink = Stdout::to(Box::new(writer), Format::Json);
        write(&mut sink, &["a"]).await.unwrap();
        sink.flush().await.unwrap();
        assert!(reader.read(&mut [0; 100]).unwrap() > 0);
        drop(reader);
        write(&mut sink, &["b"]).await.unwrap();
        assert!(matches!(sink.flush().await, Err(SinkError::Closed)));
    }

    #[tokio::test]
    async fn any_other_error_is_the_sinks_end_and_says_what_it_is() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut sink = Stdout::to(Box::new(full), Format::Json);
        write(&mut sink, &["a"]).await.unwrap();
        match sink.flush().await {
            Err(SinkError::Failed(fault)) => {
                assert_eq!(fault.action, "write to standard output");
                assert_eq!(fault.source.kind(), io::ErrorKind::StorageFull);
            }
            other => panic!("expected a failure, got {other:?}"),
        }
    }
}
