//! The sink that writes to standard output, or to any other stream.

use std::fmt;
use std::fs;
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::time::Duration;

use tokio::net::unix::pipe;

use tributary_codec as codec;
use tributary_event::MOST_BATCH_BYTES;
use tributary_options::{Bounds, options};

use super::encode::source::{CACHE_BYTES, DEFINED_BYTES, Defined};
use super::encode::terminal::Terminal;
use super::encode::{Encoder, Format, LineFields};
use super::records::Records;
use super::{ActionError, Selection, Sink, SinkError};

/// When more than this many encoded bytes wait, they are written without waiting for the worker's flush.
const FLUSH_BYTES: usize = 64 * 1024;

/// Linux writes up to this many bytes (PIPE_BUF) to a pipe completely or not at all.
const ATOMIC_BYTES: usize = 4096;

/// The columns of a terminal that does not report them.
const USUAL_COLUMNS: usize = 120;

/// Pause before the next try to write to a stream in non-blocking mode that is full.
const PAUSE: Duration = Duration::from_millis(5);

/// The process's own descriptor of standard output.
const DESCRIPTOR: &str = "/proc/self/fd/1";

options! {
    /// The options of a [`Stdout`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Options {
        /// The encoding of events.
        pub format: Format = flat(Format::read),
        /// Which fields JSON lines have.
        pub fields: LineFields = flat(|section| LineFields::read(section, format)),
    }
}

impl Options {
    /// Declares the memory that such a sink takes at most.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        bounds.add(of, "lines on their way to the stream", FLUSH_BYTES as u64 + MOST_BATCH_BYTES);
        if self.fields == LineFields::Compact {
            bounds.add(of, "sources that are defined", DEFINED_BYTES + CACHE_BYTES);
        }
    }
}

/// Checks that the process has a standard output.
///
/// A process that is started without one (`>&-`) gets `/dev/null`, opened for reading and writing, from Rust's runtime
/// before `main`. Events would count as written and be gone. `> /dev/null` opens it for writing only and passes.
///
/// # Errors
/// Standard output is closed.
pub fn check() -> io::Result<()> {
    const READ_WRITE: u32 = 2;
    let Ok(metadata) = fs::metadata(DESCRIPTOR) else { return Ok(()) };
    let is_null = metadata.file_type().is_char_device() && is_null_device(metadata.rdev());
    let flags = fs::read_to_string("/proc/self/fdinfo/1").unwrap_or_default();
    let flags = flags.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    if is_null && flags.is_some_and(|flags| flags & 3 == READ_WRITE) {
        let why = "standard output is closed, or is /dev/null opened for reading and writing; redirect it, or use \
                   type = \"discard\" to drop all events";
        return Err(io::Error::new(io::ErrorKind::NotConnected, why));
    }
    Ok(())
}

/// Linux: character device 1:3. `makedev` puts the major number from bit 8 on.
fn is_null_device(device: u64) -> bool {
    device == (1 << 8 | 3)
}

/// Writes events to a stream. When the reader closes the stream, the sink is closed. After any other error the sink
/// cannot be used again, because a stream, unlike a file, does not show which bytes it has kept.
pub struct Stdout {
    writer: Writer,
    encoder: Encoder,
    records: Records,
    /// The sources that compact lines can name.
    defined: Defined,
}

enum Writer {
    /// Standard output, before the first write.
    Standard,
    /// A pipe in non-blocking mode, so that the end of the grace period interrupts a write between two records.
    Pipe(pipe::Sender),
    Blocking(Box<dyn Write + Send>),
}

impl Stdout {
    /// The standard output of the process.
    pub fn new(options: Options) -> Self {
        let stdout = Stdout::with(Writer::Standard, options.format).with_fields(options.fields);
        match terminal() {
            Some(terminal) => Stdout { encoder: stdout.encoder.for_terminal(terminal), ..stdout },
            None => stdout,
        }
    }

    /// Any stream.
    pub fn to(writer: Box<dyn Write + Send>, format: Format) -> Self {
        Stdout::with(Writer::Blocking(writer), format)
    }

    /// A pipe in non-blocking mode.
    pub fn to_pipe(pipe: pipe::Sender, format: Format) -> Self {
        Stdout::with(Writer::Pipe(pipe), format)
    }

    /// The same; JSON lines have these fields.
    pub fn with_fields(self, fields: LineFields) -> Self {
        Stdout { encoder: self.encoder.with_fields(fields), ..self }
    }

    fn with(writer: Writer, format: Format) -> Self {
        let (encoder, records, defined) = (Encoder::new(format), Records::default(), Defined::default());
        Stdout { writer, encoder, records, defined }
    }
}

/// The terminal that standard output is, if it is one.
fn terminal() -> Option<Terminal> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let columns = rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| size.ws_col.into());
    let columns = if columns == 0 { USUAL_COLUMNS } else { columns };
    Some(Terminal { columns, colours: codec::terminal::shows_colours(&stdout) })
}

impl Sink for Stdout {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        let Stdout { encoder, records, defined, .. } = self;
        for event in events.events() {
            records.push_with(|out| {
                // A source is defined in the record of the first event that has it.
                if let Some(source) = encoder.source(event)
                    && defined.add(source)
                {
                    out.extend_from_slice(source.line());
                }
                encoder.encode(event, out);
            });
        }
        if self.records.bytes().len() > FLUSH_BYTES { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        if self.records.is_empty() {
            return Ok(());
        }
        if let Writer::Standard = self.writer {
            self.writer = open_standard();
        }
        let result = match &mut self.writer {
            Writer::Pipe(pipe) => write_to_pipe(pipe, &mut self.records).await,
            Writer::Blocking(writer) => write_blocking(writer, &mut self.records),
            Writer::Standard => Ok(()),
        };
        result.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => SinkError::Closed,
            _ => failed(error),
        })
    }

    fn written(&self) -> u64 {
        self.records.written()
    }

    async fn give_up(&mut self) {
        if let Writer::Pipe(pipe) = &mut self.writer {
            while !self.records.rest_of_record().is_empty() {
                match pipe.try_write(self.records.rest_of_record()) {
                    Ok(count) => self.records.note_written(count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if pipe.writable().await.is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                }
            }
        }
    }
}

impl fmt::Debug for Stdout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stdout").field("waiting", &self.records.bytes().len()).finish_non_exhaustive()
    }
}

/// Opens the pipe of standard output a second time, in non-blocking mode: the mode belongs to the open file, which other
/// processes share, so the first one keeps its own. Anything else than a pipe is written as it is.
fn open_standard() -> Writer {
    let is_pipe = fs::metadata(DESCRIPTOR).is_ok_and(|metadata| metadata.file_type().is_fifo());
    if is_pipe && let Ok(pipe) = pipe::OpenOptions::new().open_sender(DESCRIPTOR) {
        return Writer::Pipe(pipe);
    }
    Writer::Blocking(Box::new(io::stdout()))
}

/// Writes everything, whole records where the system writes them completely or not at all. A longer record is written in
/// parts.
async fn write_to_pipe(pipe: &pipe::Sender, records: &mut Records) -> io::Result<()> {
    while !records.is_empty() {
        let unwritten = records.unwritten();
        let len = match records.rest_of_record().len() {
            0 => records.whole_within(ATOMIC_BYTES),
            rest => rest,
        };
        // A record that does not fit is written in parts; each is as long as possible.
        let len = if len == 0 { records.first() } else { len };
        match pipe.try_write(&unwritten[..len]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => records.note_written(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => pipe.writable().await?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // Lets the worker notice the end of the grace period while the reader keeps up.
        tokio::task::coop::consume_budget().await;
    }
    Ok(())
}

/// Writes everything. Tries again while the stream is in non-blocking mode and full: another process that shares the
/// terminal or pipe can switch it to that mode, and this is not an error.
fn write_blocking(writer: &mut impl Write, records: &mut Records) -> io::Result<()> {
    while !records.is_empty() {
        match writer.write(records.unwritten()) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => records.note_written(count),
            Err(error) => pause_or_fail(error)?,
        }
    }
    while let Err(error) = writer.flush() {
        pause_or_fail(error)?;
    }
    Ok(())
}

fn pause_or_fail(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => {}
        io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
        _ => return Err(error),
    }
    Ok(())
}

fn failed(source: io::Error) -> SinkError {
    SinkError::Failed(ActionError { action: "write to standard output".to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kinds;
    use crate::memory::tests::batch_of;
    use std::io::Read as _;
    use std::sync::{Arc, Mutex};

    /// Records every write; returns `WouldBlock` before each of them, and takes a limited number of bytes at a time.
    #[derive(Clone)]
    struct Slow {
        writes: Arc<Mutex<Vec<Vec<u8>>>>,
        is_ready: bool,
        most: usize,
    }

    impl Slow {
        fn taking(most: usize) -> Self {
            Slow { writes: Arc::default(), is_ready: false, most }
        }

        fn writes(&self) -> Vec<Vec<u8>> {
            self.writes.lock().unwrap().clone()
        }
    }

    impl Write for Slow {
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
    async fn events_are_written_by_the_flush_in_one_write() {
        let stream = Slow::taking(usize::MAX);
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
    async fn many_events_are_written_without_a_flush() {
        let stream = Slow::taking(usize::MAX);
        let mut sink = Stdout::to(Box::new(stream.clone()), Format::Json);
        write(&mut sink, &["x".repeat(FLUSH_BYTES).as_str()]).await.unwrap();
        assert_eq!(stream.writes().len(), 1);
    }

    #[tokio::test]
    async fn a_stream_that_takes_little_at_a_time_gets_everything_in_order() {
        let (whole, bit_by_bit) = (Slow::taking(usize::MAX), Slow::taking(7));
        for stream in [&whole, &bit_by_bit] {
            let mut sink = Stdout::to(Box::new(stream.clone()), Format::Json);
            write(&mut sink, &["a", "b"]).await.unwrap();
            sink.flush().await.unwrap();
        }
        assert!(bit_by_bit.writes().len() > 1);
        assert_eq!(bit_by_bit.writes().concat(), whole.writes().concat());
    }

    #[tokio::test]
    async fn a_reader_that_closes_the_pipe_closes_the_sink() {
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
    async fn any_other_error_fails_the_sink_and_is_named() {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
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
