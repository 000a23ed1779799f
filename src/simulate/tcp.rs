//! One simulated connection: opened, filled at its pace, and closed so that nothing is lost.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::Counts;
use super::datadog::Tracer;
use super::pace::{Pace, SLICE};

/// What is made before it is written: enough that system calls do not count.
const CHUNK: usize = 256 * 1024;

/// How long a write may still take once everything is to stop. It is not cut short at once, since half an object
/// would make the counts of both sides differ.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// How long we wait for the collector to close too.
pub(super) const LAST_CLOSE: Duration = Duration::from_secs(2);

/// What one connection is to do.
pub(super) struct Connection {
    /// Its number in the run, from 0.
    pub(super) number: u64,
    pub(super) to: SocketAddr,
    /// How many events it sends at most.
    pub(super) events: u64,
    pub(super) pace: Pace,
    /// When the run began.
    pub(super) start: Instant,
    /// Finish what is being written, then close.
    pub(super) halt: CancellationToken,
}

/// What one connection did.
pub(super) struct Outcome {
    /// What the system took whole buffers of: a broken connection may have sent part of one more.
    pub(super) counts: Counts,
    /// Every byte that the system took.
    pub(super) bytes: u64,
    /// When it took the last one.
    pub(super) finished: Instant,
    /// What broke the connection.
    pub(super) fault: Option<io::Error>,
}

impl Connection {
    /// Does it all. `tracer` makes the tracer, given the time in nanoseconds since 1970.
    pub(super) async fn run(self, tracer: impl FnOnce(u64) -> Tracer) -> Outcome {
        let mut outcome = Outcome { counts: Counts::default(), bytes: 0, finished: Instant::now(), fault: None };
        if let Err(error) = self.converse(tracer, &mut outcome).await {
            let text = format!("connection {} to {}: {error}", self.number, self.to);
            outcome.fault = Some(io::Error::new(error.kind(), text));
        }
        outcome
    }

    async fn converse(&self, tracer: impl FnOnce(u64) -> Tracer, outcome: &mut Outcome) -> io::Result<()> {
        let mut stream = tokio::select! {
            stream = TcpStream::connect(self.to) => stream?,
            () = self.halt.cancelled() => return Ok(()),
        };
        // At a low rate a few events fill no segment, and are to arrive all the same.
        stream.set_nodelay(true)?;
        let mut slices = tokio::time::interval(SLICE);
        slices.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut tracer = tracer(unix_nanos());
        let mut chunk = Vec::with_capacity(CHUNK + CHUNK / 8);

        // Whatever the pace: a collector does not wait long for the first bytes.
        let hello = tracer.hello(&mut chunk);
        self.write(&mut stream, &mut chunk, hello, outcome).await?;
        while outcome.counts.events < self.events && !self.halt.is_cancelled() {
            let due = self.pace.due(self.start.elapsed()).min(self.events);
            if outcome.counts.events >= due {
                tokio::select! {
                    _ = slices.tick() => {}
                    () = self.halt.cancelled() => {}
                }
                continue;
            }
            let traces =
                self.fill(&mut tracer, due - outcome.counts.events, self.events - outcome.counts.events, &mut chunk);
            self.write(&mut stream, &mut chunk, traces, outcome).await?;
        }
        close(stream).await
    }

    /// Fills a chunk with traces until `due` events are in it. The last trace may go past that, since none is cut for
    /// the sake of pace, but not past `left`.
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

/// The error of an agent that is to stop and still cannot write; ready when it has tried for long enough, besides the
/// time `waiting` that it waits of its own accord.
pub(super) async fn out_of_patience(halt: &CancellationToken, waiting: Duration) -> io::Error {
    halt.cancelled().await;
    tokio::time::sleep(LAST_WRITE + waiting).await;
    let text = format!("everything is to stop, but the collector has not read for {} s", LAST_WRITE.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, text)
}

/// Says that nothing more comes, and waits for the collector to close as well: one that broke off before it had read
/// everything shows only here. One that just keeps the connection is not held against it.
pub(super) async fn close(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut nowhere = tokio::io::sink();
    let rest = tokio::io::copy(&mut stream, &mut nowhere);
    tokio::time::timeout(LAST_CLOSE, rest).await.unwrap_or(Ok(0)).map(drop)
}

pub(super) fn unix_nanos() -> u64 {
    // A clock before 1970 is as wrong as 1970 itself.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
