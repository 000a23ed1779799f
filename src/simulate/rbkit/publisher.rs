//! The PUB socket: subscriptions, and messages to all subscribers.

use std::io;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::Counts;
use super::super::tcp::{LAST_CLOSE, unix_nanos};
use super::heap::SimulatedDump;
use super::program::Queue;
use super::shared::SharedProcess;
use super::wire::collection_head;
use super::zmtp::{Reader, Socket, command, greet, head, write};

/// A connection that has subscribed.
#[derive(Debug)]
pub(super) struct Subscriber {
    writer: Arc<Mutex<OwnedWriteHalf>>,
    /// Ends when the peer closes the connection.
    reader: JoinHandle<()>,
}

/// Serves a connection until it subscribes, and passes it to the publisher then.
pub(super) async fn admit(
    stream: TcpStream,
    shared: Arc<SharedProcess>,
    subscribers: mpsc::UnboundedSender<Subscriber>,
) {
    let Ok((mut reader, writer)) = greet(stream, Socket::Pub, &shared).await else { return };
    let writer = Arc::new(Mutex::new(writer));
    while let Ok(is_subscription) = subscribes(&mut reader, &writer, &shared).await {
        if is_subscription {
            let pong_writer = writer.clone();
            let reader =
                tokio::spawn(async move { while subscribes(&mut reader, &pong_writer, &shared).await.is_ok() {} });
            // The publisher may have ended.
            let _ = subscribers.send(Subscriber { writer, reader });
            return;
        }
    }
}

/// Reads one frame: whether it subscribes to everything. Cancellations are ignored: no collector sends them.
async fn subscribes(reader: &mut Reader, writer: &Mutex<OwnedWriteHalf>, shared: &SharedProcess) -> io::Result<bool> {
    let frame = reader.frame().await?;
    // ZMTP 3.0 has subscriptions as messages only.
    let is_modern = shared.dialect.zmtp_minor() > 0;
    match frame.command() {
        None => Ok(!frame.is_command && frame.body == [1]),
        Some((b"SUBSCRIBE", prefix)) => Ok(is_modern && prefix.is_empty()),
        Some((b"PING", data)) if data.len() >= 2 => {
            write(&mut *writer.lock().await, &command("PONG", &data[2..]), shared).await?;
            Ok(false)
        }
        Some(_) => Ok(false),
    }
}

/// Writes messages to all subscribers.
#[derive(Debug)]
pub(super) struct Publisher {
    shared: Arc<SharedProcess>,
    subscribers: Vec<Subscriber>,
    counter: u64,
}

impl Publisher {
    pub(super) fn new(shared: Arc<SharedProcess>) -> Self {
        Publisher { shared, subscribers: Vec::new(), counter: 0 }
    }

    pub(super) fn add(&mut self, subscriber: Subscriber) {
        self.subscribers.push(subscriber);
    }

    /// Whether there are subscribers.
    pub(super) fn has_subscribers(&mut self) -> bool {
        self.subscribers.retain(|subscriber| !subscriber.reader.is_finished());
        !self.subscribers.is_empty()
    }

    /// Sends everything in `queue`, which is empty afterwards, followed by `dump`. It waits for slow subscribers; the gem
    /// would drop the message.
    pub(super) async fn publish(&mut self, queue: &mut Queue, dump: Option<SimulatedDump>) -> io::Result<()> {
        let millis = unix_nanos() / 1_000_000;
        let elements = queue.elements + dump.map_or(0, SimulatedDump::elements);
        let body = collection_head(self.shared.dialect, self.counter, millis, elements)?;
        self.counter += 1;
        let mut length = (body.len() + queue.packed.len()) as u64;
        if let Some(dump) = dump {
            length += dump.length().await?;
        }
        let mut piece = [head(false, length), body].concat();
        piece.append(&mut queue.packed);
        let events = queue.events + dump.map_or(0, SimulatedDump::events);
        *queue = Queue { packed: std::mem::take(&mut queue.packed), ..Queue::default() };

        let mut writers = Vec::new();
        for subscriber in self.subscribers.drain(..) {
            // Locked for the whole message, so that its pieces stay together.
            writers.push((subscriber.writer.clone().lock_owned().await, subscriber));
        }
        let pieces = dump.map_or(0, SimulatedDump::pieces);
        for number in 0..=pieces {
            let mut kept = Vec::new();
            for (mut writer, subscriber) in writers.drain(..) {
                // A subscriber that has gone is removed.
                if write(&mut writer, &piece, &self.shared).await.is_ok() {
                    kept.push((writer, subscriber));
                }
            }
            writers = kept;
            if let Some(dump) = dump.filter(|_| number < pieces) {
                dump.piece(number, &mut piece)?;
            }
        }
        if !writers.is_empty() {
            self.shared.count(Counts { messages: 1, events });
        }
        self.subscribers.extend(writers.into_iter().map(|(_, subscriber)| subscriber));
        Ok(())
    }

    /// Closes the sending side, and waits until the subscribers close their connections.
    pub(super) async fn close(self) {
        for subscriber in self.subscribers {
            // The subscriber may have gone already.
            let _ = subscriber.writer.lock().await.shutdown().await;
            let mut reader = subscriber.reader;
            if timeout(LAST_CLOSE, &mut reader).await.is_err() {
                reader.abort();
            }
        }
    }
}
