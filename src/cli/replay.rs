//! `tributary replay`: recorded connections, sent again.

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

use crate::protocol::Protocol;

use super::captures::{Captures, Source, Step};
use super::decode::Input;
use super::{Failure, block_on, counted, say};

/// When everything is sent, a collector has so long to read it and to close.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Where no time passes between what was sent: a connection that has ended is waited for so long before it goes on with
/// the others, for what they say may take for granted that it has ended.
const END_WAIT: Duration = Duration::from_secs(5);
/// How long an agent that opens several connections waits at most for the answer on the one before.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// Meanwhile it is looked at so often.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Send captured connections again
///
/// Each file becomes a connection, which sends what the recorded one sent: all of them together, with their times. What
/// comes back is read and thrown away. What was sent is told on stderr as one JSON line.
///
/// Agents of rbkit are dialled by their collector: what they publish can be replayed to a listener with `listen_publish`,
/// what they answer cannot.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary replay captures/spans/*.capture --to 127.0.0.1:8136
  tributary replay captures/java/*.capture --to 127.0.0.1:8765 --speed 10
  tributary replay captures/desktops/*.capture --to 127.0.0.1:8080 --speed max")]
pub(super) struct Arguments {
    /// Capture files, as listeners with `capture` record them; `-` is stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Where they are sent
    #[arg(long, value_name = "ADDRESS")]
    to: SocketAddr,
    /// 1: as fast as it was; a number: so many times as fast; max: as fast as it goes
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
            _ => Err("a speed is `max`, or a number above 0".to_owned()),
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut captures = Captures::default();
    let mut names = Vec::new();
    let mut spoken: Option<Protocol> = None;
    for path in &arguments.files {
        let name: Arc<str> = path.display().to_string().into();
        let source = Source::of(Input::new(path));
        let reader = match source.map_err(|error| Failure::Failed(format!("{name}: {error}")))? {
            Source::Capture(reader) => reader,
            Source::Wire(_) => return Err(Failure::Misused(format!("{name} is no capture, so it has no times"))),
        };
        let protocol = reader.head().protocol;
        if let Some(other) = spoken.replace(protocol).filter(|other| *other != protocol) {
            return Err(Failure::Misused(format!("{name} is a capture of {protocol}, another one of {other}")));
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
        faults => Err(Failure::Failed(format!("{} not sent to the end", counted(faults, "connection")))),
    }
}

/// What was sent.
#[derive(Debug, Default)]
struct Sent {
    connections: u64,
    records: u64,
    bytes: u64,
    /// Bytes that came back.
    answered: u64,
    seconds: f64,
    /// Connections that could not be sent to their end.
    faults: u64,
}

/// Reads and counts what comes back, until the collector closes.
type Listening = JoinHandle<io::Result<u64>>;

/// A connection on its way.
enum Connection {
    /// Nothing of it is due yet.
    Before,
    Open(OwnedWriteHalf, Listening),
    Over,
}

/// `waits`: agents of this kind open a connection when the one before it was answered, and so does the replay.
async fn play(
    mut captures: Captures,
    names: &[Arc<str>],
    to: SocketAddr,
    speed: Speed,
    waits: bool,
) -> Result<Sent, Failure> {
    let (began, first) = (Instant::now(), captures.start());
    let mut sent = Sent::default();
    let mut listening = Vec::new();
    let mut connections: Vec<_> = names.iter().map(|_| Connection::Before).collect();
    // Whether the connection that was opened last was answered.
    let mut is_answered: Option<Arc<AtomicBool>> = None;
    while let Some((number, at, step)) = captures.next()? {
        if let Speed::Times(times) = speed {
            let after = Duration::from_nanos(at.0.saturating_sub(first.0));
            let after = Duration::try_from_secs_f64(after.as_secs_f64() / times).unwrap_or(Duration::MAX);
            if let Some(due) = began.checked_add(after) {
                sleep_until(due).await;
            }
        }
        let connection = &mut connections[number];
        let done = async {
            if let Connection::Before = connection {
                let until = Instant::now() + ANSWER_WAIT;
                while waits && is_answered.as_ref().is_some_and(|it| !it.load(Relaxed)) && Instant::now() < until {
                    sleep(LOOK_AGAIN).await;
                }
                let stream = TcpStream::connect(to).await?;
                stream.set_nodelay(true)?;
                let (mut reading, writing) = stream.into_split();
                let answer = is_answered.insert(Arc::default()).clone();
                let heard = tokio::spawn(async move {
                    reading.readable().await?;
                    answer.store(true, Relaxed);
                    tokio::io::copy(&mut reading, &mut tokio::io::sink()).await
                });
                sent.connections += 1;
                *connection = Connection::Open(writing, heard);
            }
            let Connection::Open(writing, heard) = connection else { return Ok(()) };
            match step {
                Step::Bytes(bytes) => {
                    writing.write_all(&bytes).await?;
                    sent.records += 1;
                    sent.bytes += bytes.len() as u64;
                }
                Step::End(_) => {
                    writing.shutdown().await?;
                    let until = Instant::now() + END_WAIT;
                    while speed == Speed::Max && !heard.is_finished() && Instant::now() < until {
                        sleep(LOOK_AGAIN).await;
                    }
                    if let Connection::Open(_, heard) = std::mem::replace(connection, Connection::Over) {
                        listening.push(heard);
                    }
                }
            }
            Ok::<_, io::Error>(())
        };
        if let Err(error) = done.await {
            say(format_args!("{}: {to}: {error}", names[number]));
            *connection = Connection::Over;
            sent.faults += 1;
        }
    }
    // Who closes before everything is read would have the rest thrown away.
    let until = Instant::now() + MAX_WAIT;
    let mut open = 0;
    for heard in listening {
        match timeout_at(until, heard).await {
            Ok(heard) => sent.answered += heard.ok().and_then(Result::ok).unwrap_or_default(),
            Err(_) => open += 1,
        }
    }
    if open > 0 {
        let open = counted(open, "connection");
        say(format_args!("the collector has not closed {open} in {MAX_WAIT:?}"));
    }
    sent.seconds = began.elapsed().as_secs_f64();
    Ok(sent)
}
