//! A lane: the bounded way from the connections to one sink.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::event::{Batch, BatchBuilder, Header, Loss, Origin, Position, Reason, UnixNanos, semconv};
use crate::sink::{Kinds, Selection};

use super::ack::{Answer, Ticket};
use super::ledger::{InLane, SinkBooks};
use super::options::{LaneOptions, WhenFull};

/// Memory is counted in pieces of this size.
const PERMIT_BYTES: usize = 1024;
/// Losses of more connections than this are told together.
const MAX_OWED: usize = 1024;

/// A batch on its way, with the room it takes and the claim it makes.
#[derive(Debug)]
pub(super) struct Parcel {
    contents: Contents,
    ticket: Ticket,
}

/// A batch, and its room in the lane.
#[derive(Debug)]
pub(super) struct Contents {
    batch: Arc<Batch>,
    _room: OwnedSemaphorePermit,
    _counted: InLane,
}

impl Parcel {
    fn new(batch: Arc<Batch>, ticket: Ticket, room: OwnedSemaphorePermit, books: &LaneBooks) -> Self {
        let contents = Contents { batch, _room: room, _counted: books.sink.in_lane() };
        Parcel { contents, ticket }
    }

    /// When the collector read the last of the events.
    pub(super) fn observed(&self) -> Option<UnixNanos> {
        self.contents.batch.events().last().map(|event| event.observed())
    }

    /// The batch, to be let go of once it is written, and the claim, which stays until that is certain.
    pub(super) fn open(self) -> (Contents, Ticket) {
        (self.contents, self.ticket)
    }
}

impl Contents {
    /// The events that the sink takes.
    pub(super) fn selection(&self, kinds: Kinds) -> Selection<'_> {
        Selection::new(&self.batch, kinds)
    }
}

/// The sending side of a lane. Cloned into every connection.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    options: Arc<LaneOptions>,
    parcels: mpsc::Sender<Parcel>,
    room: Arc<Semaphore>,
    room_permits: u32,
    /// Somebody has lost patience with this lane, and there was no room since.
    is_jammed: Arc<AtomicBool>,
    books: Arc<LaneBooks>,
}

/// What a lane's two sides share.
#[derive(Debug)]
pub(super) struct LaneBooks {
    pub(super) sink: Arc<SinkBooks>,
    owed: Mutex<Vec<Owed>>,
}

/// Events that a sink did not get, and whose `loss` it has not written yet.
#[derive(Debug)]
pub(super) struct Owed {
    origin: Arc<Origin>,
    reason: Reason,
    events: u64,
}

impl Lane {
    /// A lane and its receiving end.
    pub(super) fn new(options: LaneOptions, sink: Arc<SinkBooks>) -> (Lane, mpsc::Receiver<Parcel>, Arc<LaneBooks>) {
        let (parcels, receiver) = mpsc::channel(options.buffer_batches.max(1));
        let permits = usize::try_from(options.buffer_bytes).unwrap_or(usize::MAX).div_ceil(PERMIT_BYTES);
        let permits = permits.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let books = Arc::new(LaneBooks { sink, owed: Mutex::default() });
        let lane = Lane {
            options: Arc::new(options),
            parcels,
            room: Arc::new(Semaphore::new(permits)),
            room_permits: permits as u32,
            is_jammed: Arc::default(),
            books: books.clone(),
        };
        (lane, receiver, books)
    }

    /// The sink's name.
    pub(super) fn name(&self) -> &str {
        self.books.sink.name()
    }

    /// Claims the sink for the batch and puts it into the lane if there is room; else gives the claim back, for
    /// [`Lane::wait`] or to be shed.
    pub(super) fn offer(&self, batch: &Arc<Batch>, answer: Option<&Arc<Answer>>, has_patience: bool) -> Option<Ticket> {
        let origin = batch.origin();
        let protocols = &self.options.protocols;
        if !protocols.is_empty() && !protocols.iter().any(|p| origin.is_some_and(|o| o.protocol == p.as_str())) {
            return None;
        }
        let events = Selection::new(batch, self.options.kinds).count();
        if events == 0 {
            return None;
        }
        let ticket = Ticket::new(self.books.clone(), origin.cloned(), events, answer.cloned());
        let Ok(room) = self.room.clone().try_acquire_many_owned(self.weight(batch)) else {
            return self.full(ticket, has_patience);
        };
        match self.parcels.try_reserve() {
            Ok(place) => {
                self.is_jammed.store(false, Ordering::Relaxed);
                place.send(Parcel::new(batch.clone(), ticket, room, &self.books));
                None
            }
            Err(mpsc::error::TrySendError::Full(())) => self.full(ticket, has_patience),
            // The sink is gone: the ticket says so.
            Err(mpsc::error::TrySendError::Closed(())) => None,
        }
    }

    /// Puts a batch into the lane when there is room. Sheds it when there is none for as long as `patience`.
    pub(super) async fn wait(&self, batch: Arc<Batch>, ticket: Ticket, patience: Option<Duration>) {
        let place = async {
            let room = self.room.clone().acquire_many_owned(self.weight(&batch)).await.ok()?;
            Some((room, self.parcels.reserve().await.ok()?))
        };
        let place = match patience {
            Some(patience) => timeout(patience, place).await,
            None => Ok(place.await),
        };
        match place {
            Ok(Some((room, place))) => place.send(Parcel::new(batch, ticket, room, &self.books)),
            // The sink is gone: the ticket says so.
            Ok(None) => {}
            Err(_) => {
                self.is_jammed.store(true, Ordering::Relaxed);
                ticket.shed();
            }
        }
    }

    fn full(&self, ticket: Ticket, has_patience: bool) -> Option<Ticket> {
        // Who has lost patience once does not wait again until there is room.
        let is_jammed = has_patience && self.is_jammed.load(Ordering::Relaxed);
        match self.options.when_full {
            WhenFull::Block if !is_jammed => Some(ticket),
            WhenFull::Block | WhenFull::Shed => {
                ticket.shed();
                None
            }
        }
    }

    /// A batch larger than the whole lane takes all of it.
    fn weight(&self, batch: &Batch) -> u32 {
        u32::try_from(batch.memory_bytes().div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX).clamp(1, self.room_permits)
    }
}

impl LaneBooks {
    /// The sink did not get these events, and will say so in its own output.
    pub(super) fn owe(&self, origin: Option<Arc<Origin>>, reason: Reason, events: u64) {
        let Some(origin) = origin else { return };
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |owed: &&mut Owed| Arc::ptr_eq(&owed.origin, &origin) && owed.reason == reason;
        if let Some(known) = owed.iter_mut().rev().find(same) {
            known.events += events;
        } else if owed.len() < MAX_OWED {
            owed.push(Owed { origin, reason, events });
        } else if let Some(last) = owed.iter_mut().rev().find(|owed| owed.reason == reason) {
            // Very many connections at once: the last place stands for all further ones.
            if &*last.origin.peer != "several" {
                let several = Origin::new(last.origin.protocol, last.origin.listener.clone(), "several".into(), 0);
                last.origin = Arc::new(several);
            }
            last.events += events;
        } else {
            owed.push(Owed { origin, reason, events });
        }
    }

    /// The losses owed; `None` when there are none.
    pub(super) fn take_owed(self: &Arc<Self>) -> Option<Debt> {
        let owed = std::mem::take(&mut *self.owed.lock().unwrap_or_else(PoisonError::into_inner));
        if owed.is_empty() { None } else { Some(Debt { lane: self.clone(), owed }) }
    }
}

/// Losses that a sink is about to tell. Dropped before it is known that they are told, they are owed again.
#[derive(Debug)]
pub(super) struct Debt {
    lane: Arc<LaneBooks>,
    owed: Vec<Owed>,
}

impl Debt {
    /// The losses as events. `now` is when they are told.
    pub(super) fn batch(&self, now: UnixNanos) -> Option<Batch> {
        let mut builder = BatchBuilder::new(self.owed.first()?.origin.clone());
        for Owed { origin, reason, events } in &self.owed {
            builder.set_origin(origin.clone());
            let header = Header::observed_at(semconv::LOSS, now, Position::default());
            let (reason, events) = (*reason, *events);
            let detail = match reason {
                Reason::Shed => "the lane of this sink was full",
                _ => "this sink failed while it had them",
            };
            builder.loss(header, Loss { reason, bytes: 0, events: Some(events), detail, excerpt: &[] });
        }
        Some(builder.take())
    }

    /// The sink has written them.
    pub(super) fn paid(mut self) {
        self.owed.clear();
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        for Owed { origin, reason, events } in self.owed.drain(..) {
            self.lane.owe(Some(origin), reason, events);
        }
    }
}
