//! Replays a recording to a daemon over loopback sockets.

use super::agent::{Connection, configured};
use super::recording::{Recording, Step};
use crate::live::{Daemon, until};

/// What both sides sent.
#[derive(Debug)]
pub struct Replayed {
    /// The address of each stream of the recording.
    pub peers: Vec<String>,
    /// The run id that the collector assigned.
    pub run: Option<u8>,
    /// What the collector sent on each stream.
    pub received: Vec<Vec<u8>>,
    pub bytes_sent: u64,
}

/// Replays every write of the recording in its order, and waits until the daemon has handled everything.
///
/// What the recorded collector did does not matter: the bytes of an agent are a legal stream. Only the run id is
/// replaced by the one that the collector assigned. Each write starts when the one before it has been received.
pub async fn replay(daemon: &Daemon, recording: &Recording) -> Replayed {
    let replayed = play(daemon, recording, Pace::InStep).await;
    daemon.until_all_closed().await;
    if recording.has_run() {
        daemon.until_named("bytefrog.run.ended").await;
    }
    replayed
}

/// The order of writes on different connections.
#[derive(Clone, Copy, PartialEq)]
pub enum Pace {
    /// Each is received before the next.
    InStep,
    /// As fast as they can be written: the order in which they are read is open.
    Free,
}

/// Replays every write, to the end of every connection.
pub async fn play(daemon: &Daemon, recording: &Recording, pace: Pace) -> Replayed {
    let mut connections: Vec<Option<Connection>> = recording.streams.iter().map(|_| None).collect();
    let mut run = None;
    let mut bytes_sent = 0;
    for &Step { stream, offset, length } in &recording.steps {
        if connections[stream].is_none() {
            connections[stream] = Some(Connection::open(&daemon.server).await);
        }
        let connection = connections[stream].as_mut().unwrap();
        if length == 0 {
            if recording.is_unregistered(stream) {
                // A peer that waits for a reply gets one.
                connection.until_received(1).await;
            }
            connection.end().await;
            continue;
        }
        let mut bytes = recording.streams[stream].bytes[offset..offset + length].to_vec();
        if offset > 0 {
            connection.send(&bytes).await;
        } else if recording.recorded_run(stream).is_some() && !recording.is_unregistered(stream) {
            bytes[1] = run.expect("an agent has a configuration before it opens data connections");
            let (hello, rest) = bytes.split_at(2);
            connection.send(hello).await;
            assert_eq!(connection.until_received(1).await, [31], "{}: the reply to a data hello", recording.name);
            connection.send(rest).await;
        } else {
            connection.send(&bytes).await;
            if stream == 0 && recording.has_run() {
                run = Some(configured(connection, recording.version().unwrap()).await.run);
            }
        }
        bytes_sent += bytes.len() as u64;
        if pace == Pace::InStep {
            let what = format!("{}: {bytes_sent} bytes are received", recording.name);
            until(&what, || (daemon.counters().bytes_in == bytes_sent).then_some(())).await;
        }
    }
    let mut replayed = Replayed { peers: Vec::new(), run, received: Vec::new(), bytes_sent };
    let mut connections: Vec<Connection> = connections.into_iter().flatten().collect();
    assert_eq!(connections.len(), recording.streams.len(), "every stream of a recording is played");
    for connection in &mut connections {
        connection.end().await;
    }
    for connection in connections {
        replayed.received.push(connection.until_closed().await);
        replayed.peers.push(connection.local.to_string());
    }
    replayed
}
