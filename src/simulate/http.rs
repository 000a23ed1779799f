//! One simulated connection over HTTP: uploads at its pace, each answered before the next.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant};

use super::Counts;
use super::pace::slices;
use super::tcp::{Outcome, SimulatedConnection, unix_nanos};

/// The most events in an upload.
const MOST_EVENTS: u64 = 500;
/// How often an upload is sent again that the collector cannot accept now, as real agents do.
const ATTEMPTS: u32 = 8;
/// How long an answer may take: longer than the collector waits for its sinks.
pub(super) const LAST_ANSWER: Duration = Duration::from_secs(60);

/// An agent that uploads over HTTP.
pub(super) trait Uploader {
    /// Advances the time; a step back is ignored.
    fn set_clock(&mut self, unix_nanos: u64);

    /// The next upload, with this many events.
    ///
    /// # Errors
    /// Those of the libraries that write it.
    fn upload(&mut self, events: u64, host: &str) -> io::Result<Upload>;
}

/// A request, ready to be sent.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) request: Vec<u8>,
    /// Its content, in requests and in the events that the daemon makes of it.
    pub(super) counts: Counts,
}

/// Runs `connection`. `agent` creates the agent, given the time in nanoseconds since 1970.
pub(super) async fn run<U: Uploader>(connection: SimulatedConnection, agent: impl FnOnce(u64) -> U) -> Outcome {
    let mut outcome = Outcome::new();
    let result = converse(&connection, agent, &mut outcome).await;
    outcome.ended(&connection, result)
}

async fn converse<U: Uploader>(
    connection: &SimulatedConnection,
    agent: impl FnOnce(u64) -> U,
    outcome: &mut Outcome,
) -> io::Result<()> {
    let Some(stream) = connection.open().await? else { return Ok(()) };
    let mut stream = BufReader::new(stream);
    let mut slices = slices();
    let mut agent = agent(unix_nanos());
    let host = connection.to.to_string();
    while let Some(due) = connection.due_after(outcome.counts.events, &mut slices).await {
        agent.set_clock(unix_nanos());
        let upload = agent.upload((due - outcome.counts.events).min(MOST_EVENTS), &host)?;
        deliver(&mut stream, &upload.request, outcome).await?;
        outcome.counts += upload.counts;
    }
    stream.shutdown().await
}

/// Sends a request until it is accepted.
async fn deliver(stream: &mut BufReader<TcpStream>, request: &[u8], outcome: &mut Outcome) -> io::Result<()> {
    for attempt in 1..=ATTEMPTS {
        stream.write_all(request).await?;
        outcome.bytes += request.len() as u64;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the collector does not answer");
        let (status, _) = tokio::time::timeout(LAST_ANSWER, answer(stream)).await.map_err(late)??;
        outcome.finished = Instant::now();
        match status {
            200..=299 => return Ok(()),
            429 | 503 if attempt < ATTEMPTS => tokio::time::sleep(Duration::from_millis(100) * attempt).await,
            _ => return Err(io::Error::other(format!("the collector answers {status}"))),
        }
    }
    Ok(())
}

/// Reads an answer completely: its status and its body.
pub(super) async fn answer(stream: &mut BufReader<TcpStream>) -> io::Result<(u16, Vec<u8>)> {
    let (mut status, mut length) = (None, 0);
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = line.trim_end();
        match (status, text.split_once(':')) {
            (None, _) => status = Some(text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)),
            (Some(_), Some((name, value))) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().unwrap_or(0);
            }
            (Some(status), None) if text.is_empty() => {
                let mut body = Vec::new();
                stream.take(length).read_to_end(&mut body).await?;
                return Ok((status, body));
            }
            _ => {}
        }
    }
}
