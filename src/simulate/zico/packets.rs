//! The connections of an agent of the binary protocol, and its faults: it writes the first byte by itself, sends data before its
//! hello when the collector was away, and sends the same again when it gets no answer.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::super::http::LAST_ANSWER;
use super::super::pace::slices;
use super::super::tcp::{Outcome, SimulatedConnection, unix_nanos};
use super::conversation::{ATTEMPTS, FIRST_WAIT};
use super::fressian::{self, FressianSymbols};
use super::shop::Call;
use super::{Jvm, ZicoDialect};

/// One of this many packets gets an answer that the agent does not read.
const UNREAD: u64 = 50;
/// The bytes of an answer.
const ANSWER_BYTES: usize = 18;

/// Runs an agent as `connection` plans.
pub(super) async fn run(connection: SimulatedConnection, seed: u64) -> Outcome {
    let outcome = Outcome::new();
    let jvm = Jvm::new(seed, connection.number, unix_nanos(), ZicoDialect::Fressian);
    let mut agent = PacketAgent { jvm, symbols: FressianSymbols::default(), stream: None, outcome, connection };
    let result = agent.converse().await;
    agent.outcome.ended(&agent.connection, result)
}

struct PacketAgent {
    connection: SimulatedConnection,
    jvm: Jvm,
    symbols: FressianSymbols,
    stream: Option<TcpStream>,
    outcome: Outcome,
}

impl PacketAgent {
    async fn converse(&mut self) -> io::Result<()> {
        // A collector that is not there is a mistake of the caller. One that goes away is waited for, as real agents do.
        let Some(stream) = self.connection.open().await? else { return Ok(()) };
        self.stream = Some(stream);
        // An agent whose collector was away begins without a hello.
        if !self.connection.number.is_multiple_of(2) {
            let early = fressian::data(&[], &mut self.symbols);
            let status = self.ask(&early).await?;
            if status != 6 {
                return Err(io::Error::other(format!("data before a hello: the collector answers {status}")));
            }
            self.close();
        }
        self.hello().await?;
        let mut slices = slices();
        while self.connection.due_after(self.outcome.counts.events, &mut slices).await.is_some() {
            // Traces are not divided for the rate.
            let left = self.connection.events - self.outcome.counts.events;
            let trace = self.jvm.trace(left, unix_nanos());
            let calls: Vec<&Call> = trace.submissions().iter().map(|submission| submission.call).collect();
            // The hello of another connection is an event, too.
            let is_unread = left > trace.events && self.jvm.rng.one_in(UNREAD);
            self.deliver(&calls, is_unread).await?;
            self.outcome.counts.events += trace.events;
        }
        match self.stream.take() {
            Some(mut stream) => stream.shutdown().await,
            None => Ok(()),
        }
    }

    /// Sends traces until they are accepted. `is_unread`: the first answer is lost.
    async fn deliver(&mut self, calls: &[&Call], mut is_unread: bool) -> io::Result<()> {
        for attempt in 1.. {
            let failed = match self.attempt(calls, std::mem::take(&mut is_unread)).await {
                Ok(0) => return Ok(()),
                Ok(status) => io::Error::other(format!("a packet: the collector answers {status}")),
                Err(error) => error,
            };
            self.close();
            if attempt == ATTEMPTS || self.connection.halt.is_cancelled() {
                return Err(failed);
            }
            tokio::select! {
                () = tokio::time::sleep(FIRST_WAIT * 2u32.pow(attempt - 1)) => {}
                () = self.connection.halt.cancelled() => {}
            }
        }
        Ok(())
    }

    /// Sends traces; returns the status of the answer.
    async fn attempt(&mut self, calls: &[&Call], is_unread: bool) -> io::Result<u16> {
        if self.stream.is_none() {
            self.hello().await?;
        }
        let packet = fressian::data(calls, &mut self.symbols);
        let status = self.ask(&packet).await?;
        if is_unread {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the answer was lost"));
        }
        Ok(status)
    }

    async fn hello(&mut self) -> io::Result<()> {
        let host = format!("shop-{}.example", self.connection.number);
        let status = self.ask(&fressian::hello(&host, "changeme", unix_nanos())).await?;
        if status != 0 {
            return Err(io::Error::other(format!("a hello: the collector answers {status}")));
        }
        // The collector emits an event that the session was opened.
        self.outcome.counts.events += 1;
        Ok(())
    }

    /// Sends a packet and reads the answer; the first byte of a connection is a segment of its own.
    async fn ask(&mut self, packet: &[u8]) -> io::Result<u16> {
        let mut rest = packet;
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connection.connect().await?,
        };
        if self.outcome.bytes == 0 || self.symbols.is_new() {
            stream.write_all(&rest[..1]).await?;
            tokio::task::yield_now().await;
            rest = &rest[1..];
        }
        stream.write_all(rest).await?;
        self.outcome.bytes += packet.len() as u64;
        self.outcome.counts.messages += 1;
        let mut answer = [0; ANSWER_BYTES];
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the collector does not answer");
        timeout(LAST_ANSWER, stream.read_exact(&mut answer)).await.map_err(late)??;
        self.outcome.finished = Instant::now();
        self.stream = Some(stream);
        Ok(u16::from_be_bytes([answer[4], answer[5]]))
    }

    /// Ends the connection: everything is defined again on the next one.
    fn close(&mut self) {
        self.stream = None;
        self.symbols.forget();
    }
}
