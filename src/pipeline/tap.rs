//! Taps: copies of what passes, live, for somebody who looks on.
//!
//! Nobody waits for a tap. What its reader is too slow for is left out, and the reader is told how much. While nobody
//! looks on, it costs a load per batch and per read.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::event::{Batch, BatchBuilder, Header, Kind, Loss, Origin, Position, Reason, UnixNanos, semconv};
use crate::explain::Explain;
use crate::protocol::Head;
use crate::sink::{Kinds, Selection};

/// Taps that may be open at once.
pub const MAX_TAPS: usize = 4;
/// Bytes that may wait for the reader of one tap.
pub const MAX_WAITING_BYTES: usize = 4 << 20;
/// What anything that waits counts besides its bytes.
const PASSING_BYTES: usize = 256;

/// What somebody wants to see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    /// Only of this listener; None: of all.
    pub listener: Option<String>,
    /// Only events of these kinds.
    pub kinds: Kinds,
    /// Bytes of the wire and requests, too; then of events only losses.
    pub wire: bool,
}

/// What passes.
#[derive(Debug)]
pub enum TapItem {
    /// Events on their way to the sinks.
    Events(Arc<Batch>),
    /// Bytes that a session has worked off.
    Bytes(Piece),
    /// A request that is worked on, or was refused.
    Request(TapRequest),
}

/// Bytes of a connection, beginning where its session had come to.
pub struct Piece {
    /// The connection.
    pub origin: Arc<Origin>,
    /// Offset of the first byte since its start.
    pub offset: u64,
    /// What names the bytes, from the first on.
    pub explainer: Box<dyn Explain>,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A request over HTTP.
#[derive(Clone, Debug)]
pub struct TapRequest {
    /// Its connection.
    pub origin: Arc<Origin>,
    /// Which one of the connection, from 1.
    pub number: u64,
    /// Its head.
    pub head: Head,
    /// Its body as received; empty when the request was refused from its head.
    pub body: Bytes,
    /// The body holds keys, and must not be shown.
    pub is_secret: bool,
}

/// The taps that are open. Cloned: the same.
#[derive(Clone, Debug, Default)]
pub struct Taps(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    open: AtomicUsize,
    wired: AtomicUsize,
    taps: Mutex<Vec<Arc<Tap>>>,
}

#[derive(Debug)]
struct Tap {
    filter: Filter,
    /// With the room that each takes of what may wait.
    passing: mpsc::UnboundedSender<(usize, TapItem)>,
    waiting: AtomicUsize,
    missed: Mutex<Dropped>,
}

/// What a reader was too slow for.
#[derive(Clone, Default, Debug)]
pub struct Dropped {
    /// Where the first of it came from.
    pub origin: Option<Arc<Origin>>,
    /// Events.
    pub events: u64,
    /// Bytes of the wire.
    pub bytes: u64,
}

impl Taps {
    /// Looks on from now on; None: too many do already.
    pub fn open(&self, filter: Filter) -> Option<Reader> {
        let mut taps = self.taps();
        if taps.len() >= MAX_TAPS {
            return None;
        }
        let (passing, receiver) = mpsc::unbounded_channel();
        let tap =
            Arc::new(Tap { filter: filter.clone(), passing, waiting: AtomicUsize::new(0), missed: Mutex::default() });
        taps.push(tap.clone());
        self.counted(&taps);
        Some(Reader { filter, taps: self.clone(), tap, receiver })
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.0.open.load(Relaxed)
    }

    /// Nothing more will pass: readers come to their end.
    pub fn close(&self) {
        let mut taps = self.taps();
        taps.clear();
        self.counted(&taps);
    }

    /// Events are on their way.
    pub(super) fn events(&self, batch: &Arc<Batch>) {
        if self.0.open.load(Relaxed) == 0 {
            return;
        }
        let Some(origin) = batch.origin() else { return };
        for tap in self.taps().iter().filter(|tap| tap.wants(origin)) {
            let events = Selection::new(batch, tap.filter.kinds).count();
            if events > 0 && !tap.passes(batch.memory_bytes(), || TapItem::Events(batch.clone())) {
                tap.miss(origin, events, 0);
            }
        }
    }

    /// How many want to see the wire.
    pub fn wired(&self) -> usize {
        self.0.wired.load(Relaxed)
    }

    /// A session has worked these bytes off. `explainers`: one for each that wants to see the wire.
    pub fn bytes(&self, origin: &Arc<Origin>, offset: u64, explainers: Vec<Box<dyn Explain>>, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let taps = self.taps();
        let wanting = taps.iter().filter(|tap| tap.filter.wire && tap.wants(origin));
        // Who has just begun to look on waits for the next bytes.
        for (tap, explainer) in wanting.zip(explainers) {
            let piece = || Piece { origin: origin.clone(), offset, explainer, bytes: bytes.to_vec() };
            if !tap.passes(bytes.len(), || TapItem::Bytes(piece())) {
                tap.miss(origin, 0, bytes.len() as u64);
            }
        }
    }

    /// A request is here.
    pub fn request(&self, asked: &TapRequest) {
        for tap in self.taps().iter().filter(|tap| tap.filter.wire && tap.wants(&asked.origin)) {
            let heads: usize = asked.head.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
            if !tap.passes(heads + asked.body.len(), || TapItem::Request(asked.clone())) {
                tap.miss(&asked.origin, 0, asked.body.len() as u64);
            }
        }
    }

    fn counted(&self, taps: &[Arc<Tap>]) {
        self.0.open.store(taps.len(), Relaxed);
        self.0.wired.store(taps.iter().filter(|tap| tap.filter.wire).count(), Relaxed);
    }

    fn taps(&self) -> MutexGuard<'_, Vec<Arc<Tap>>> {
        self.0.taps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tap {
    fn wants(&self, origin: &Origin) -> bool {
        self.filter.listener.as_ref().is_none_or(|listener| **listener == *origin.listener)
    }

    /// `false`: the reader has too much to read already.
    fn passes(&self, bytes: usize, passing: impl FnOnce() -> TapItem) -> bool {
        let bytes = PASSING_BYTES + bytes;
        if self.waiting.fetch_add(bytes, Relaxed) + bytes > MAX_WAITING_BYTES {
            self.waiting.fetch_sub(bytes, Relaxed);
            return false;
        }
        // A reader that has left has closed its tap, or is about to.
        let _ = self.passing.send((bytes, passing()));
        true
    }

    fn miss(&self, origin: &Arc<Origin>, events: u64, bytes: u64) {
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        missed.origin.get_or_insert_with(|| origin.clone());
        missed.events += events;
        missed.bytes += bytes;
    }
}

/// Who looks on. Dropped, the tap is closed.
#[derive(Debug)]
pub struct Reader {
    /// What is wanted.
    pub filter: Filter,
    taps: Taps,
    tap: Arc<Tap>,
    receiver: mpsc::UnboundedReceiver<(usize, TapItem)>,
}

impl Reader {
    /// What passes next; None: nothing more will. May be given up and called again.
    pub async fn next(&mut self) -> Option<TapItem> {
        let (bytes, passing) = self.receiver.recv().await?;
        self.tap.waiting.fetch_sub(bytes, Relaxed);
        Some(passing)
    }

    /// What was left out since this was last asked; None: nothing.
    pub fn missed(&mut self) -> Option<Dropped> {
        let missed = mem::take(&mut *self.tap.missed.lock().unwrap_or_else(PoisonError::into_inner));
        missed.origin.is_some().then_some(missed)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut taps = self.taps.taps();
        taps.retain(|other| !Arc::ptr_eq(other, &self.tap));
        self.taps.counted(&taps);
    }
}

impl Dropped {
    /// The loss that says so, as a sink tells what its queue has shed.
    pub fn loss(&self, now: UnixNanos) -> Option<Batch> {
        let mut builder = BatchBuilder::new(self.origin.clone()?);
        let header = Header::observed_at(semconv::LOSS, now, Position::default());
        let detail = "this tap was read too slowly";
        let loss = Loss { reason: Reason::Shed, bytes: 0, events: Some(self.events), detail, excerpt: &[] };
        builder.loss(header, loss);
        Some(builder.take())
    }
}

impl Filter {
    /// Everything of a kind of look: events of these kinds, or the wire and its losses.
    pub fn new(listener: Option<String>, kinds: Kinds, wire: bool) -> Self {
        let kinds = if wire { Kinds::from_iter([Kind::Loss]) } else { kinds };
        Filter { listener, kinds, wire }
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("offset", &self.offset).field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}
