//! One simulated connection: opened, filled at its pace, and closed so that nothing is lost.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, Interval};
use tokio_util::sync::CancellationToken;

use super::Counts;
use super::datadog::Tracer;
use super::pace::{Pace, slices};

/// The size of a chunk: large enough that system calls do not matter.
const CHUNK: usize = 256 * 1024;

/// How long a write may take after the stop. It is not cut short immediately, because half an object would make the
/// counts of both sides differ.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// How long to wait for the collector to close as well.
pub(super) const LAST_CLOSE: Duration = Duration::from_secs(2);

/// The task of one connection.
pub(super) struct SimulatedConnection {
    /// Its number in the run, from 0.
    pub(super) number: u64,
    pub(super) to: SocketAddr,
    /// The most events that it sends.
    pub(super) events: u64,
    pub(super) pace: Pace,
    /// The start of the run.
    pub(super) start: Instant,
    /// Finish the current write, then close.
    pub(super) halt: CancellationToken,
}

/// The result of one connection.
pub(super) struct Outcome {
    /// Counts of the chunks that the system accepted completely; a broken connection may have sent part of one more.
    pub(super) counts: Counts,
    /// Every byte that the system accepted.
    pub(super) bytes: u64,
    /// When it accepted the last one.
    pub(super) finished: Instant,
    /// The error that broke the connection.
    pub(super) fault: Option<io::Error>,
}

impl Outcome {
    /// Nothing is sent yet.
    pub(super) fn new() -> Outcome {
        Outcome { counts: Counts::default(), bytes: 0, finished: Instant::now(), fault: None }
    }

    /// The same at the end of its connection.
    pub(super) fn ended(self, connection: &SimulatedConnection, result: io::Result<()>) -> Outcome {
        let SimulatedConnection { number, to, .. } = connection;
        let named = |error: io::Error| io::Error::new(error.kind(), format!("connection {number} to {to}: {error}"));
        Outcome { fault: result.err().map(named), ..self }
    }
}

impl SimulatedConnection {
    /// Runs the connection. `tracer` creates the tracer, given the time in nanoseconds since 1970.
    pub(super) async fn run(self, tracer: impl FnOnce(u64) -> Tracer) -> Outcome {
        let mut outcome = Outcome::new();
        let result = self.converse(tracer, &mut outcome).await;
        outcome.ended(&self, result)
    }

    /// Connects to the collector. `None`: the agent halts.
    ///
    /// # Errors
    /// The collector cannot be reached.
    pub(super) async fn open(&self) -> io::Result<Option<TcpStream>> {
        tokio::select! {
            stream = self.connect() => stream.map(Some),
            () = self.halt.cancelled() => Ok(None),
        }
    }

    /// The same, also while the agent halts.
    ///
    /// # Errors
    /// The collector cannot be reached.
    pub(super) async fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.to).await?;
        // At a low rate a few events fill no segment and must still be sent.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Waits until more than `sent` events are due, and returns how many are; `None`: all are sent, or the agent halts.
    pub(super) async fn due_after(&self, sent: u64, slices: &mut Interval) -> Option<u64> {
        while sent < self.events && !self.halt.is_cancelled() {
            let due = self.pace.due(self.start.elapsed()).min(self.events);
            if sent < due {
                return Some(due);
            }
            tokio::select! {
                _ = slices.tick() => {}
                () = self.halt.cancelled() => {}
            }
        }
        None
    }

    async fn converse(&self, tracer: impl FnOnce(u64) -> Tracer, outcome: &mut Outcome) -> io::Result<()> {
        let Some(mut stream) = self.open().await? else { return Ok(()) };
        let mut slices = slices();
        let mut tracer = tracer(unix_nanos());
        let mut chunk = Vec::with_capacity(CHUNK + CHUNK / 8);

        // At any pace: a collector does not wait long for the first bytes.
        let hello = tracer.hello(&mut chunk);
        self.write(&mut stream, &mut chunk, hello, outcome).await?;
        while let Some(due) = self.due_after(outcome.counts.events, &mut slices).await {
            let traces =
                self.fill(&mut tracer, due - outcome.counts.events, self.events - outcome.counts.events, &mut chunk);
            self.write(&mut stream, &mut chunk, traces, outcome).await?;
        }
        close(stream).await
    }

    /// Fills a chunk with traces until it holds `due` events. The last trace may exceed that, because no trace is cut
    /// for the pace, but not `left`.
    fn fill(&self, tracer: &mut Tracer, due: u64, left: u64, chunk: &mut Vec<u8>) -> Counts {
        let mut counts = Counts::default();
        tracer.set_clock(unix_nanos());
        while counts.events < due && chunk.len() < CHUNK {
            counts += tracer.trace(left - counts.events, chunk);
        }
        counts
    }

    /// Writes and empties `chunk`, which holds `counts`.
    async fn write(
        &self,
        stream: &mut TcpStream,
        chunk: &mut Vec<u8>,
        counts: Counts,
        outcome: &mut Outcome,
    ) -> io::Result<()> {
        let mut rest = chunk.as_slice();
        let written = tokio::select! {
            written = stream.write_all_buf(&mut rest) => written,
            error = out_of_patience(&self.halt, Duration::ZERO) => Err(error),
        };
        outcome.bytes += (chunk.len() - rest.len()) as u64;
        outcome.finished = Instant::now();
        written?;
        outcome.counts += counts;
        chunk.clear();
        Ok(())
    }
}

/// The error of an agent that should stop and still cannot write. It is ready after the time limit and the time
/// `waiting` that the agent waits by itself.
pub(super) async fn out_of_patience(halt: &CancellationToken, waiting: Duration) -> io::Error {
    halt.cancelled().await;
    tokio::time::sleep(LAST_WRITE + waiting).await;
    let text = format!("everything is to stop, but the collector has not read for {} s", LAST_WRITE.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, text)
}

/// Ends the sending side and waits for the collector to close as well: only this shows a collector that closed before
/// it had read everything. A collector that keeps the connection open is no error.
pub(super) async fn close(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut nowhere = tokio::io::sink();
    let rest = tokio::io::copy(&mut stream, &mut nowhere);
    tokio::time::timeout(LAST_CLOSE, rest).await.unwrap_or(Ok(0)).map(drop)
}

pub(super) fn unix_nanos() -> u64 {
    // A clock before 1970 counts as 1970.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
