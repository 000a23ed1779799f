//! `tributary replay`: sends recorded connections again.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use tributary_protocol::Protocol;

use super::captures::{Captures, ConnectionStep, FileContent};
use super::input::Input;
use super::{CommandLineError, address, block_on, counted, say};

/// After everything is sent, the collector has this much time to read it and to close the connections.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// With `--speed max`: how long the end of a connection is waited for before the others continue, because later requests
/// can depend on it.
const END_WAIT: Duration = Duration::from_secs(5);
/// How long an agent with several connections waits for the reply on the last one before it opens the next one.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// The interval of checks during these waits.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Send captured connections again
///
/// Each file becomes a connection that sends the recorded bytes; all connections keep their recorded times. Replies are
/// read and discarded. The result is one JSON line on stderr.
///
/// A collector connects to rbkit agents: their published events can be replayed to a listener with `listen_publish`, their
/// replies cannot be replayed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary replay captures/spans/*.capture --to 127.0.0.1:8136
  tributary replay captures/java/*.capture --to 127.0.0.1:8765 --speed 10
  tributary replay captures/desktops/*.capture --to 127.0.0.1:8080 --speed max")]
pub(super) struct Arguments {
    /// Captures of a listener (option `capture`); `-` is stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The address to send to
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    to: SocketAddr,
    /// A factor, 1 is the recorded speed; or `max`, without waits
    #[arg(long, value_name = "SPEED", default_value = "1")]
    speed: Speed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Speed {
    Times(f64),
    Max,
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            _ if text == "max" => Ok(Speed::Max),
            Ok(times) if times.is_finite() && times >= 1e-6 => Ok(Speed::Times(times)),
            _ => Err("the speed must be `max` or a number above 0".to_owned()),
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    let mut captures = Captures::default();
    let mut names = Vec::new();
    let mut spoken: Option<Protocol> = None;
    for path in &arguments.files {
        let name: Arc<str> = path.display().to_string().into();
        let source = FileContent::of(Input::new(path));
        let reader = match source.map_err(|error| CommandLineError::Failed(format!("{name}: {error}")))? {
            FileContent::Capture(reader) => reader,
            FileContent::Wire(_) | FileContent::Events => {
                return Err(CommandLineError::Misused(format!("{name} is not a capture, so it cannot be replayed")));
            }
        };
        let protocol = reader.head().protocol;
        if let Some(other) = spoken.replace(protocol).filter(|other| *other != protocol) {
            return Err(CommandLineError::Misused(format!(
                "{name} is a capture of {protocol}, another file is a capture of {other}"
            )));
        }
        captures.add(name.clone(), reader)?;
        names.push(name);
    }
    let protocol = spoken.map_or("", Protocol::as_str);
    let sent = block_on(play(captures, &names, arguments.to, arguments.speed, spoken == Some(Protocol::Bytefrog)))??;
    let Sent { connections, records, bytes, answered, seconds, faults } = sent;
    say(format_args!(
        r#"{{"protocol":"{protocol}","connections":{connections},"records":{records},"bytes":{bytes},"answered":{answered},"seconds":{seconds:.6}}}"#
    ));
    match faults {
        0 => Ok(()),
        faults => {
            Err(CommandLineError::Failed(format!("{} could not be replayed completely", counted(faults, "connection"))))
        }
    }
}

/// The result of a replay.
#[derive(Debug, Default)]
struct Sent {
    connections: u64,
    records: u64,
    bytes: u64,
    /// Bytes of replies.
    answered: u64,
    seconds: f64,
    /// Connections that were not replayed completely.
    faults: u64,
}

/// Reads and counts the replies until the collector closes the connection.
type Replies = JoinHandle<io::Result<u64>>;

/// A connection of the replay.
enum ReplayConnection {
    /// Its first step is not due yet.
    Waiting,
    Open(OwnedWriteHalf, Replies),
    Closed,
}

/// Sends all captures. `waits`: an agent of this protocol opens a connection after the reply on the one before.
async fn play(
    mut captures: Captures,
    names: &[Arc<str>],
    to: SocketAddr,
    speed: Speed,
    waits: bool,
) -> Result<Sent, CommandLineError> {
    let (started, first) = (Instant::now(), captures.start());
    let mut sent = Sent::default();
    let mut replies = Vec::new();
    let mut connections: Vec<_> = names.iter().map(|_| ReplayConnection::Waiting).collect();
    // Whether the connection that was opened last has a reply.
    let mut is_answered: Option<Arc<AtomicBool>> = None;
    while let Some((number, at, step)) = captures.next()? {
        if let Speed::Times(times) = speed {
            let after = Duration::from_nanos(at.0.saturating_sub(first.0));
            let after = Duration::try_from_secs_f64(after.as_secs_f64() / times).unwrap_or(Duration::MAX);
            if let Some(due) = started.checked_add(after) {
                sleep_until(due).await;
            }
        }
        let connection = &mut connections[number];
        let done = async {
            if let ReplayConnection::Waiting = connection {
                let until = Instant::now() + ANSWER_WAIT;
                while waits && is_answered.as_ref().is_some_and(|it| !it.load(Relaxed)) && Instant::now() < until {
                    sleep(CHECK_INTERVAL).await;
                }
                let stream = TcpStream::connect(to).await?;
                stream.set_nodelay(true)?;
                let (mut receiver, writing) = stream.into_split();
                let answer = is_answered.insert(Arc::default()).clone();
                let reading = tokio::spawn(async move {
                    receiver.readable().await?;
                    answer.store(true, Relaxed);
                    tokio::io::copy(&mut receiver, &mut tokio::io::sink()).await
                });
                sent.connections += 1;
                *connection = ReplayConnection::Open(writing, reading);
            }
            let ReplayConnection::Open(writing, reading) = connection else { return Ok(()) };
            match step {
                ConnectionStep::Bytes(bytes) => {
                    writing.write_all(&bytes).await?;
                    sent.records += 1;
                    sent.bytes += bytes.len() as u64;
                }
                ConnectionStep::End(_) => {
                    writing.shutdown().await?;
                    let until = Instant::now() + END_WAIT;
                    while speed == Speed::Max && !reading.is_finished() && Instant::now() < until {
                        sleep(CHECK_INTERVAL).await;
                    }
                    if let ReplayConnection::Open(_, reading) = std::mem::replace(connection, ReplayConnection::Closed)
                    {
                        replies.push(reading);
                    }
                }
            }
            Ok::<_, io::Error>(())
        };
        if let Err(error) = done.await {
            say(format_args!("{}: {to}: {error}", names[number]));
            *connection = ReplayConnection::Closed;
            sent.faults += 1;
        }
    }
    // A connection that is closed before the collector has read everything can lose the rest.
    let until = Instant::now() + MAX_WAIT;
    let mut open = 0;
    for reading in replies {
        match timeout_at(until, reading).await {
            Ok(bytes) => sent.answered += bytes.ok().and_then(Result::ok).unwrap_or_default(),
            Err(_) => open += 1,
        }
    }
    if open > 0 {
        let open = counted(open, "connection");
        say(format_args!("the collector did not close {open} within {MAX_WAIT:?}"));
    }
    sent.seconds = started.elapsed().as_secs_f64();
    Ok(sent)
}
