//! The events of one process as they arrive: lines of JSON of a daemon's live view, or batches of a daemon in this process.

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::super::{counted, say};
use super::progress::ProgressLine;
use tributary_codec::terminal;
use tributary_event::{Batch, DataView, EventView, LossView, ResourceValue};
use tributary_pipeline::tap::TOO_SLOW;
use tributary_profile::{ProfileItem, events};
use tributary_stored::{Rebuilder, json};

/// The most KiB of lines or batches that wait. A heap of a million objects has 350,000 of lines.
const MAX_WAITING_KIB: u32 = 1 << 20;
/// The size of a part that is not smaller than its bytes.
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

/// A part of a feed.
#[derive(Debug)]
pub(super) enum FeedPart {
    /// Lines of JSON, cut anywhere.
    Lines(Bytes),
    /// Events.
    Events(Arc<Batch>),
}

/// The sending end of a [`Feed`].
#[derive(Clone, Debug)]
pub(super) struct FeedSender {
    parts: mpsc::UnboundedSender<(FeedPart, OwnedSemaphorePermit)>,
    capacity: Arc<Semaphore>,
}

/// The events of one process, as they arrive.
pub(super) struct Feed {
    parts: mpsc::UnboundedReceiver<(FeedPart, OwnedSemaphorePermit)>,
    /// The process; `None`: there is no other.
    process: Option<Identity>,
    /// The start of a line.
    rest: Vec<u8>,
    rebuilder: Rebuilder,
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
    pub(super) resource: Vec<(String, ResourceValue)>,
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

impl FeedSender {
    /// Passes a part on when the channel has capacity for it. `false`: the receiver has ended.
    pub(super) async fn send(&self, part: FeedPart) -> bool {
        let bytes = match &part {
            FeedPart::Lines(bytes) => bytes.len(),
            FeedPart::Events(batch) => batch.memory_bytes(),
        };
        let kib = u32::try_from(bytes / KIB + 1).unwrap_or(u32::MAX).min(MAX_WAITING_KIB);
        let Ok(permit) = self.capacity.clone().acquire_many_owned(kib).await else { return false };
        self.parts.send((part, permit)).is_ok()
    }
}

impl Feed {
    /// A feed of the events of this process.
    pub(super) fn new(process: Option<Identity>) -> (FeedSender, Feed) {
        let (sender, parts) = mpsc::unbounded_channel();
        let capacity = Arc::new(Semaphore::new(MAX_WAITING_KIB as usize));
        let (losses, progress) = (Losses::default(), ProgressLine::new());
        let (rest, rebuilder) = (Vec::new(), Rebuilder::default());
        let feed = Feed { parts, process, rest, rebuilder, losses, arrived: 0, progress };
        (FeedSender { parts: sender, capacity }, feed)
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
                part = self.parts.recv() => match part {
                    None => return Followed::Closed,
                    Some((part, _permit)) => if self.read(&part, take).is_break() {
                        return Followed::Enough;
                    },
                },
            }
        }
    }

    /// Passes the items on that have arrived already.
    pub(super) fn drain(&mut self, take: &mut Take<'_>) {
        while let Ok((part, _permit)) = self.parts.try_recv() {
            let _ = self.read(&part, take);
        }
    }

    /// Passes the items of a part on, all of them, also when no further items are needed.
    fn read(&mut self, part: &FeedPart, take: &mut Take<'_>) -> ControlFlow<()> {
        match part {
            FeedPart::Lines(bytes) => self.read_lines(bytes, take),
            FeedPart::Events(batch) => self.take_events(batch, take),
        }
    }

    fn read_lines(&mut self, mut bytes: &[u8], take: &mut Take<'_>) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            // Empty lines keep the connection alive.
            let is_wanted = |kind: &str, name: &str| kind == "loss" || events::is_wanted(kind, name);
            if !self.rest.is_empty() && json::read_wanted(&self.rest, is_wanted, &mut self.rebuilder).is_err() {
                self.losses.unreadable += 1;
            }
            self.rest.clear();
            if self.rebuilder.is_full() {
                flow = self.take_rebuilt(take, flow);
            }
        }
        self.rest.extend_from_slice(bytes);
        self.take_rebuilt(take, flow)
    }

    fn take_rebuilt(&mut self, take: &mut Take<'_>, flow: ControlFlow<()>) -> ControlFlow<()> {
        let batch = self.rebuilder.take();
        let ended = self.take_events(&batch, take);
        if flow.is_break() { flow } else { ended }
    }

    fn take_events(&mut self, batch: &Batch, take: &mut Take<'_>) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        for event in batch.events() {
            if !self.is_wanted(event) {
                continue;
            }
            if let DataView::Loss(loss) = event.data() {
                self.losses.add(loss);
            }
            match events::item(event) {
                Ok(Some(item)) => {
                    self.arrived += 1;
                    if take(item).is_break() {
                        flow = ControlFlow::Break(());
                    }
                }
                Ok(None) => {}
                Err(()) => self.losses.unreadable += 1,
            }
        }
        flow
    }

    /// Whether an event is of the process, or reports that events of its listener are missing.
    fn is_wanted(&self, event: EventView<'_>) -> bool {
        let Some(Identity { listener, address, resource }) = &self.process else { return true };
        let (origin, attributes) = (event.origin(), event.resource().attributes());
        if *origin.listener != **listener {
            return false;
        }
        if matches!(event.data(), DataView::Loss(_)) && attributes.is_empty() {
            return true;
        }
        address.as_deref().is_none_or(|address| host(&origin.peer) == address)
            && resource.iter().all(|attribute| attributes.contains(attribute))
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

impl Losses {
    fn add(&mut self, loss: LossView<'_>) {
        let LossView { reason, events, detail, .. } = loss;
        if detail.text() == TOO_SLOW {
            self.dropped += events.unwrap_or(0);
            return;
        }
        self.count += 1;
        if self.details.len() < MAX_DETAILS {
            self.details.push(terminal::shown(&format!("{}: {}", reason.as_str(), detail.text())).into_owned());
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

    fn line(
        kind: &str,
        name: &str,
        data: serde_json::Value,
        (listener, peer, run): (&str, &str, Option<u64>),
    ) -> String {
        let origin = json!({ "protocol": "bytefrog", "listener": listener, "peer": peer, "connection": 1, "offset": 0, "length": 0 });
        let resource = run.map_or(json!({}), |run| json!({ "bytefrog.run.id": run, "host.name": "h" }));
        let observed = "2026-11-20T12:15:00Z";
        json!({ "observed_time": observed, "kind": kind, "name": name, kind: data, "resource": resource, "origin": origin })
            .to_string()
            + "\n"
    }

    fn span(listener: &str, peer: &str, run: u64, name: &str) -> String {
        let (trace, id) = ("01".repeat(16), "02".repeat(8));
        let span = json!({ "trace_id": trace, "span_id": id, "duration_ns": 5, "status": "unset" });
        line("span", name, span, (listener, peer, Some(run)))
    }

    #[tokio::test]
    async fn lines_are_those_of_one_process_however_they_are_cut() {
        let resource = vec![("bytefrog.run.id".to_owned(), ResourceValue::U64(7))];
        let identity = Identity { listener: "java".to_owned(), address: Some("10.0.0.1".to_owned()), resource };
        let (parts, mut feed) = Feed::new(Some(identity));
        let loss = json!({ "reason": "shed", "bytes": 0, "events": 3, "detail": TOO_SLOW });
        let loss = line("loss", "tributary.loss", loss, ("java", "", None));
        let all = [
            span("java", "10.0.0.1:1", 7, "a"),
            span("java", "10.0.0.1:1", 8, "other run"),
            span("java", "10.0.0.2:1", 7, "other host"),
            span("ruby", "10.0.0.1:1", 7, "other listener"),
            loss,
            "not JSON\n".to_owned(),
            span("java", "10.0.0.1:2", 7, "b"),
        ];
        for part in all.concat().as_bytes().chunks(7) {
            assert!(parts.send(FeedPart::Lines(Bytes::copy_from_slice(part))).await);
        }
        drop(parts);
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
