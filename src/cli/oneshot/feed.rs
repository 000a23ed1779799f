//! The events of one process as they arrive: lines of JSON, of a daemon's live view or of a daemon in this process.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::super::{counted, say};
use super::progress::ProgressLine;
use tributary_codec::terminal;
use tributary_pipeline::tap::TOO_SLOW;
use tributary_profile::{ProfileItem, events};

/// The most KiB of lines that wait. A heap of a million objects has 350,000.
const MAX_WAITING_KIB: u32 = 1 << 20;
/// The size of a piece that is not smaller than its bytes.
const KIB: usize = 1024;
/// Details of losses that are shown.
const MAX_DETAILS: usize = 3;

/// Takes an item. `Break`: no further ones are needed.
pub(super) type Take<'a> = dyn FnMut(ProfileItem<'_>) -> ControlFlow<()> + 'a;

/// How following has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Followed<T> {
    /// What was awaited is ready.
    Ready(T),
    /// No further items are needed.
    Enough,
    /// The source has ended.
    Closed,
}

/// The sending end of a [`Feed`].
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    pieces: mpsc::UnboundedSender<(Bytes, OwnedSemaphorePermit)>,
    capacity: Arc<Semaphore>,
}

/// The events of one process, as they arrive.
pub(super) struct Feed {
    pieces: mpsc::UnboundedReceiver<(Bytes, OwnedSemaphorePermit)>,
    /// The process; `None`: there is no other.
    process: Option<Identity>,
    /// The start of a line.
    rest: Vec<u8>,
    losses: Losses,
    arrived: u64,
    pub(super) progress: ProgressLine,
}

/// What distinguishes events of one process from those of others.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) listener: String,
    /// Its address without the port, if its events have it.
    pub(super) address: Option<String>,
    /// Attributes of its resource.
    pub(super) resource: Map<String, Value>,
}

/// What is missing.
#[derive(Debug, Default)]
struct Losses {
    /// Events that the daemon has dropped because this reader was too slow.
    dropped: u64,
    /// Other losses.
    count: u64,
    details: Vec<String>,
    /// Lines that are not events.
    unreadable: u64,
}

#[derive(Deserialize)]
struct FeedLine<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(default)]
    origin: Origin,
    #[serde(default)]
    resource: Map<String, Value>,
    loss: Option<Loss>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Origin {
    listener: String,
    peer: String,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Loss {
    reason: String,
    events: Option<u64>,
    detail: String,
}

impl Pieces {
    /// Passes bytes on when the channel has capacity for them. `false`: the receiver has ended.
    pub(super) async fn send(&self, bytes: Bytes) -> bool {
        let kib = u32::try_from(bytes.len() / KIB + 1).unwrap_or(u32::MAX).min(MAX_WAITING_KIB);
        let Ok(permit) = self.capacity.clone().acquire_many_owned(kib).await else { return false };
        self.pieces.send((bytes, permit)).is_ok()
    }
}

impl Feed {
    /// A feed of the events of this process.
    pub(super) fn new(process: Option<Identity>) -> (Pieces, Feed) {
        let (sender, pieces) = mpsc::unbounded_channel();
        let capacity = Arc::new(Semaphore::new(MAX_WAITING_KIB as usize));
        let (losses, progress) = (Losses::default(), ProgressLine::new());
        let feed = Feed { pieces, process, rest: Vec::new(), losses, arrived: 0, progress };
        (Pieces { pieces: sender, capacity }, feed)
    }

    /// The number of items so far.
    pub(super) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Passes items to `take` until it needs no more or `end` is ready.
    pub(super) async fn follow<T>(&mut self, take: &mut Take<'_>, end: impl Future<Output = T>) -> Followed<T> {
        let mut end = pin!(end);
        loop {
            tokio::select! {
                biased;
                ended = &mut end => return Followed::Ready(ended),
                () = self.progress.refresh() => self.progress.show(self.arrived),
                piece = self.pieces.recv() => match piece {
                    None => return Followed::Closed,
                    Some((bytes, _permit)) => if self.read(&bytes, take).is_break() {
                        return Followed::Enough;
                    },
                },
            }
        }
    }

    /// Passes the items on that have arrived already.
    pub(super) fn drain(&mut self, take: &mut Take<'_>) {
        while let Ok((bytes, _permit)) = self.pieces.try_recv() {
            let _ = self.read(&bytes, take);
        }
    }

    /// Reads the lines of the next bytes, all of them, also when no further items are needed.
    fn read(&mut self, bytes: &[u8], take: &mut Take<'_>) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, next) = (&rest[..end], &rest[end + 1..]);
            rest = next;
            // Empty lines keep the connection alive.
            if line.is_empty() && self.rest.is_empty() {
                continue;
            }
            let ended = if self.rest.is_empty() {
                self.line(line, take)
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(line);
                self.line(&whole, take)
            };
            if ended.is_break() {
                flow = ended;
            }
        }
        self.rest.extend_from_slice(rest);
        flow
    }

    fn line(&mut self, line: &[u8], take: &mut Take<'_>) -> ControlFlow<()> {
        if self.process.is_some() || line.windows(LOSS.len()).any(|window| window == LOSS) {
            let Ok(read) = serde_json::from_slice::<FeedLine<'_>>(line) else {
                self.losses.unreadable += 1;
                return ControlFlow::Continue(());
            };
            if !self.is_wanted(&read) {
                return ControlFlow::Continue(());
            }
            if let Some(loss) = read.loss {
                self.losses.add(loss);
            }
        }
        match events::item(line) {
            Ok(Some(item)) => {
                self.arrived += 1;
                take(item)
            }
            Ok(None) => ControlFlow::Continue(()),
            Err(()) => {
                self.losses.unreadable += 1;
                ControlFlow::Continue(())
            }
        }
    }

    /// Whether an event is of the process, or reports that events of its listener are missing.
    fn is_wanted(&self, line: &FeedLine<'_>) -> bool {
        let Some(Identity { listener, address, resource }) = &self.process else { return true };
        if line.origin.listener != *listener {
            return false;
        }
        if line.kind == "loss" && line.resource.is_empty() {
            return true;
        }
        address.as_deref().is_none_or(|address| host(&line.origin.peer) == address)
            && resource.iter().all(|(key, value)| line.resource.get(key) == Some(value))
    }

    /// Reports on stderr what is missing.
    pub(super) fn report_losses(&mut self) {
        self.progress.end();
        let Losses { dropped, count, details, unreadable } = &self.losses;
        if *dropped > 0 {
            let dropped = counted(*dropped, "event");
            say(format_args!("{dropped} are missing: the daemon had more than this command could read"));
        }
        if *count > 0 {
            let losses = if *count == 1 { "1 loss".to_owned() } else { format!("{count} losses") };
            say(format_args!("{losses} meanwhile: {}", details.join("; ")));
        }
        if *unreadable > 0 {
            say(format_args!("{} could not be read", counted(*unreadable, "line")));
        }
    }
}

/// The start of the field that only losses have.
const LOSS: &[u8] = b"\"loss\":{";

impl Losses {
    fn add(&mut self, loss: Loss) {
        let Loss { reason, events, detail } = loss;
        if detail == TOO_SLOW {
            self.dropped += events.unwrap_or(0);
            return;
        }
        self.count += 1;
        if self.details.len() < MAX_DETAILS {
            self.details.push(terminal::shown(&format!("{reason}: {detail}")).into_owned());
        }
    }
}

/// An address without its port.
pub(super) fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn span(listener: &str, peer: &str, run: u64, name: &str) -> String {
        let span = json!({ "trace_id": "01", "span_id": "02", "duration_ns": 5 });
        let origin = json!({ "protocol": "bytefrog", "listener": listener, "peer": peer, "connection": 1 });
        let resource = json!({ "bytefrog.run.id": run, "host.name": "h" });
        json!({ "kind": "span", "name": name, "span": span, "resource": resource, "origin": origin }).to_string() + "\n"
    }

    #[tokio::test]
    async fn lines_are_those_of_one_process_however_they_are_cut() {
        let resource = json!({ "bytefrog.run.id": 7 }).as_object().cloned().unwrap_or_default();
        let identity = Identity { listener: "java".to_owned(), address: Some("10.0.0.1".to_owned()), resource };
        let (pieces, mut feed) = Feed::new(Some(identity));
        let loss = json!({ "kind": "loss", "name": "tributary.loss", "origin": { "listener": "java" },
            "loss": { "reason": "shed", "events": 3, "detail": TOO_SLOW } });
        let all = [
            span("java", "10.0.0.1:1", 7, "a"),
            span("java", "10.0.0.1:1", 8, "other run"),
            span("java", "10.0.0.2:1", 7, "other host"),
            span("ruby", "10.0.0.1:1", 7, "other listener"),
            format!("{loss}\n"),
            "not JSON\n".to_owned(),
            span("java", "10.0.0.1:2", 7, "b"),
        ];
        for piece in all.concat().as_bytes().chunks(7) {
            assert!(pieces.send(Bytes::copy_from_slice(piece)).await);
        }
        drop(pieces);
        let mut names = Vec::new();
        let take = &mut |item: ProfileItem<'_>| {
            if let ProfileItem::Span(span) = item {
                names.push(span.name.into_owned());
            }
            ControlFlow::Continue(())
        };
        assert_eq!(feed.follow(take, std::future::pending::<()>()).await, Followed::Closed);
        assert_eq!((names.join(","), feed.arrived()), ("a,b".to_owned(), 2));
        assert_eq!((feed.losses.dropped, feed.losses.count, feed.losses.unreadable), (3, 0, 1));
    }
}
