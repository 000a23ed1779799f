//! Taps: live copies of events and received bytes for their readers.
//!
//! The pipeline never waits for a tap. Items for which a reader is too slow are dropped, and the reader gets their number.
//! Without a reader, a tap costs one load per batch and per read.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::mpsc;

use tributary_event::{Batch, BatchBuilder, Header, Kind, Loss, Origin, Position, Reason, UnixNanos, semconv};
use tributary_explain::Explain;
use tributary_protocol::RequestHead;
use tributary_sink::{Kinds, Selection};

/// The maximum number of open taps.
pub const MAX_TAPS: usize = 4;
/// Bytes that may be queued for the reader of one tap.
pub const MAX_WAITING_BYTES: usize = 4 << 20;
/// The detail of the loss that reports dropped events.
pub const TOO_SLOW: &str = "this tap was read too slowly";
/// Size of a queued item besides its bytes.
const ITEM_BYTES: usize = 256;

/// The items that a reader wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapFilter {
    /// Items of this listener only. `None`: of all.
    pub listener: Option<String>,
    /// Only events of these kinds.
    pub kinds: Kinds,
    /// Received bytes and requests, too; then of events only losses.
    pub wire: bool,
}

/// One item.
#[derive(Debug)]
pub enum TapItem {
    /// Events that are handed to the sinks.
    Events(Arc<Batch>),
    /// Bytes that a session has consumed.
    Bytes(Piece),
    /// A request that is decoded, was refused, or was not received completely.
    Request(TapRequest),
}

/// Consecutive bytes of a connection that its session has consumed.
pub struct Piece {
    /// The connection.
    pub origin: Arc<Origin>,
    /// Offset of the first byte in the connection.
    pub offset: u64,
    /// Explains the bytes, from the first one.
    pub explainer: Box<dyn Explain>,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A request over HTTP.
#[derive(Clone, Debug)]
pub struct TapRequest {
    /// Its connection.
    pub origin: Arc<Origin>,
    /// Its number on the connection, from 1.
    pub number: u64,
    /// Its head.
    pub head: RequestHead,
    /// Its body as received; empty when the request was refused from its head.
    pub body: Bytes,
    /// The body has keys and must not be shown.
    pub is_secret: bool,
    /// The rest of the body was not received.
    pub is_cut: bool,
}

/// The open taps. A clone shares them.
#[derive(Clone, Debug, Default)]
pub struct Taps(Arc<SharedTaps>);

#[derive(Debug, Default)]
struct SharedTaps {
    open: AtomicUsize,
    wire: AtomicUsize,
    taps: Mutex<Vec<Arc<Tap>>>,
}

#[derive(Debug)]
struct Tap {
    filter: TapFilter,
    /// Items with their size.
    items: mpsc::UnboundedSender<(usize, TapItem)>,
    queued_bytes: AtomicUsize,
    dropped: Mutex<Dropped>,
}

/// Items that were dropped because the reader was too slow.
#[derive(Clone, Default, Debug)]
pub struct Dropped {
    /// The connection of the first of them.
    pub origin: Option<Arc<Origin>>,
    /// Events.
    pub events: u64,
    /// Bytes of the wire.
    pub bytes: u64,
}

impl Taps {
    /// Opens a tap. `None`: too many are open.
    pub fn open(&self, filter: TapFilter) -> Option<Reader> {
        let mut taps = self.taps();
        if taps.len() >= MAX_TAPS {
            return None;
        }
        let (items, receiver) = mpsc::unbounded_channel();
        let tap = Arc::new(Tap {
            filter: filter.clone(),
            items,
            queued_bytes: AtomicUsize::new(0),
            dropped: Mutex::default(),
        });
        taps.push(tap.clone());
        self.update_counts(&taps);
        Some(Reader { filter, taps: self.clone(), tap, receiver })
    }

    /// The number of open taps.
    pub fn count(&self) -> usize {
        self.0.open.load(Relaxed)
    }

    /// Closes all taps: their readers end.
    pub fn close(&self) {
        let mut taps = self.taps();
        taps.clear();
        self.update_counts(&taps);
    }

    /// Copies events to the taps.
    pub(super) fn events(&self, batch: &Arc<Batch>) {
        if self.0.open.load(Relaxed) == 0 {
            return;
        }
        let Some(origin) = batch.origin() else { return };
        for tap in self.taps().iter().filter(|tap| tap.wants(origin)) {
            let events = Selection::new(batch, tap.filter.kinds).count();
            if events > 0 && !tap.push(batch.memory_bytes(), || TapItem::Events(batch.clone())) {
                tap.note_dropped(origin, events, 0);
            }
        }
    }

    /// The number of taps that want received bytes.
    pub fn wire_count(&self) -> usize {
        self.0.wire.load(Relaxed)
    }

    /// Copies bytes that a session has consumed. `explainers`: one for each tap that wants received bytes.
    pub fn bytes(&self, origin: &Arc<Origin>, offset: u64, explainers: Vec<Box<dyn Explain>>, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let taps = self.taps();
        let wanting = taps.iter().filter(|tap| tap.filter.wire && tap.wants(origin));
        // A tap that was opened in the meantime gets the next bytes.
        for (tap, explainer) in wanting.zip(explainers) {
            let piece = || Piece { origin: origin.clone(), offset, explainer, bytes: bytes.to_vec() };
            if !tap.push(bytes.len(), || TapItem::Bytes(piece())) {
                tap.note_dropped(origin, 0, bytes.len() as u64);
            }
        }
    }

    /// Copies a request.
    pub fn request(&self, request: &TapRequest) {
        for tap in self.taps().iter().filter(|tap| tap.filter.wire && tap.wants(&request.origin)) {
            let headers: usize = request.head.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
            let head = request.head.method.len() + request.head.target.len() + headers;
            if !tap.push(head + request.body.len(), || TapItem::Request(request.clone())) {
                tap.note_dropped(&request.origin, 0, request.body.len() as u64);
            }
        }
    }

    fn update_counts(&self, taps: &[Arc<Tap>]) {
        self.0.open.store(taps.len(), Relaxed);
        self.0.wire.store(taps.iter().filter(|tap| tap.filter.wire).count(), Relaxed);
    }

    fn taps(&self) -> MutexGuard<'_, Vec<Arc<Tap>>> {
        self.0.taps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tap {
    fn wants(&self, origin: &Origin) -> bool {
        self.filter.listener.as_ref().is_none_or(|listener| **listener == *origin.listener)
    }

    /// Queues an item. `false`: the queue is full.
    fn push(&self, bytes: usize, item: impl FnOnce() -> TapItem) -> bool {
        let bytes = ITEM_BYTES + bytes;
        if self.queued_bytes.fetch_add(bytes, Relaxed) + bytes > MAX_WAITING_BYTES {
            self.queued_bytes.fetch_sub(bytes, Relaxed);
            return false;
        }
        // If the reader is gone, its tap is about to be closed.
        let _ = self.items.send((bytes, item()));
        true
    }

    fn note_dropped(&self, origin: &Arc<Origin>, events: u64, bytes: u64) {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.origin.get_or_insert_with(|| origin.clone());
        dropped.events += events;
        dropped.bytes += bytes;
    }
}

/// Reads a tap. Dropping it closes the tap.
#[derive(Debug)]
pub struct Reader {
    /// The items that it wants.
    pub filter: TapFilter,
    taps: Taps,
    tap: Arc<Tap>,
    receiver: mpsc::UnboundedReceiver<(usize, TapItem)>,
}

impl Reader {
    /// The next item. `None`: the tap is closed. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<TapItem> {
        let (bytes, item) = self.receiver.recv().await?;
        self.tap.queued_bytes.fetch_sub(bytes, Relaxed);
        Some(item)
    }

    /// The items dropped since the last call. `None`: none.
    pub fn take_dropped(&mut self) -> Option<Dropped> {
        let dropped = mem::take(&mut *self.tap.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        dropped.origin.is_some().then_some(dropped)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut taps = self.taps.taps();
        taps.retain(|other| !Arc::ptr_eq(other, &self.tap));
        self.taps.update_counts(&taps);
    }
}

impl Dropped {
    /// The loss that reports them, like the loss of a sink whose queue has shed.
    pub fn loss(&self, now: UnixNanos) -> Option<Batch> {
        let mut builder = BatchBuilder::new(self.origin.clone()?);
        let header = Header::observed_at(semconv::LOSS, now, Position::default());
        let loss = Loss { reason: Reason::Shed, bytes: 0, events: Some(self.events), detail: TOO_SLOW, excerpt: &[] };
        builder.loss(header, loss);
        Some(builder.take())
    }
}

impl TapFilter {
    /// Events of these kinds; or, with `wire`, received bytes and losses.
    pub fn new(listener: Option<String>, kinds: Kinds, wire: bool) -> Self {
        let kinds = if wire { Kinds::from_iter([Kind::Loss]) } else { kinds };
        TapFilter { listener, kinds, wire }
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("offset", &self.offset).field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}
