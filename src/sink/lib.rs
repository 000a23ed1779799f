//! Sinks. A sink takes batches of events out of the process.
//!
//! One worker (`pipeline::worker`) drives each [`Sink`]. The worker decides when to flush, waits and retries when the
//! sink cannot write now, and keeps the counters.
#![forbid(unsafe_code)]

pub mod budget;
pub mod discard;
pub mod encode;
mod file_status;
pub mod headers;
mod loss_cause;
pub mod memory;
mod outage_log;
pub mod records;
mod remote;
pub mod stdout;
pub mod tcp;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;

use tokio::time::Instant;

pub use file_status::{FileStatus, FileTotals, UploadStatus, UploadTotals};
pub use loss_cause::LossCause;
pub use remote::{DestinationState, RemoteState, RemoteStatus};
use tributary_event::{Batch, ContentId, EventView, Kind, Origin};

/// A destination of events.
///
/// The order of calls: `write` any number of times, then `flush`. Events count as written only when a flush that
/// follows them has returned `Ok`, and [`Sink::unwritten`] does not name their batch. After [`SinkError::Retry`] the
/// worker waits and calls `flush` again, and no other method but `woken`, until it returns something else.
///
/// A sink that [may block](Sink::BLOCKS) runs on a thread of its own, in a tokio runtime with timers and I/O. All
/// methods may wait.
pub trait Sink: Send + 'static {
    /// Whether a call may block its thread. A sink that never blocks runs as a task on the threads that decode.
    const BLOCKS: bool = true;

    /// Takes the events of a batch: into memory, or further.
    ///
    /// # Errors
    /// Those of [`Sink::flush`]. After [`SinkError::Retry`] the sink has nevertheless taken the whole batch.
    fn write(&mut self, events: Selection<'_>) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Writes everything that was taken to its destination. A sink that counts events itself ([`Sink::progress`]) may keep
    /// those for which no peer waits ([`Selection::is_awaited`]) open for more, until [`Sink::flush_due`].
    ///
    /// # Errors
    /// [`SinkError::Retry`]: not possible now; the sink keeps what it could not write, and no record is half-written.
    /// [`SinkError::Closed`]: the reader has closed the stream. [`SinkError::Failed`]: the sink cannot be used again.
    fn flush(&mut self) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// When the worker calls [`Sink::flush`] although no batch arrives: the sink keeps events open, and writes them then.
    fn flush_due(&self) -> Option<Instant> {
        None
    }

    /// Completes when a flush can achieve more than the last one, which returned [`SinkError::Retry`] or left batches in
    /// [`Unwritten`]: the worker calls it then. Dropping the future loses nothing.
    fn woken(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// No batch follows: from now on a flush writes everything.
    fn finish(&mut self) {}

    /// Makes the batches durable that [`Unwritten::unsynced`] names. Called after a flush or tick that returned `Ok`, and
    /// only when there are any: several batches share one call.
    ///
    /// # Errors
    /// As for [`Sink::flush`], which also tries this again. The batches stay unsynced.
    fn sync(&mut self) -> impl Future<Output = Result<(), SinkError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Called about once a second, after a flush that returned `Ok`: for rotation by time, for fsync, and to retry what
    /// is held.
    ///
    /// # Errors
    /// As for [`Sink::flush`], but [`SinkError::Retry`] stops nothing: the next tick tries again.
    fn tick(&mut self) -> impl Future<Output = Result<(), SinkError>> + Send {
        std::future::ready(Ok(()))
    }

    /// The batches that a flush or tick which returned `Ok` did not write. A sink with one destination writes
    /// everything or returns an error, so the default is none. Also called last, when the sink is given up: of a batch that
    /// is named then, only the events that are not in the output count as failed.
    fn unwritten(&mut self) -> Unwritten {
        Unwritten::default()
    }

    /// The last call after a flush that returned `Ok`: the daemon stops, or the sink was removed.
    ///
    /// # Errors
    /// As for [`Sink::tick`], but there is no further try.
    fn close(&mut self) -> impl Future<Output = Result<(), SinkError>> + Send {
        std::future::ready(Ok(()))
    }

    /// The number of events that this sink has written completely since it was made, in the order in which it took them.
    /// When it fails or is given up, those of them that no flush has confirmed count as written, too. A sink that does not
    /// know, or writes in another order, returns 0 (see [`Sink::unwritten`]).
    fn written(&self) -> u64 {
        0
    }

    /// What became of the events that this sink has taken. `None`: a batch is written when a flush that follows it returns
    /// `Ok`. A sink that keeps events beyond that, in a queue of its own, counts them itself; all events that it has taken
    /// are in one of the sums.
    fn progress(&self) -> Option<SinkProgress> {
        None
    }

    /// Whether it has opened its queue, so that [`SinkProgress`] has what an earlier process has left there.
    fn is_queue_open(&self) -> bool {
        true
    }

    /// The state of a sink that sends requests over a network, once it has started to.
    fn remote(&self) -> Option<Arc<RemoteStatus>> {
        None
    }

    /// The counters of a sink that writes files.
    fn files(&self) -> Option<Arc<FileStatus>> {
        None
    }

    /// The last call when the grace period is over before everything is written. The sink ends its output after a whole
    /// record if it can do so within a fraction of a second; after that it is dropped.
    fn give_up(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// The operator wants open files to be closed and opened again by the next write (SIGHUP).
    fn reopen(&mut self) {}
}

/// Batches that are not written although a flush returned `Ok`: one destination of several has a fault.
#[derive(Debug, Default)]
pub struct Unwritten {
    /// Batches that the sink keeps and writes as soon as it can, each with the number of its events that are not in the
    /// output yet. 0: all are, but not as safely as configured.
    pub held: BTreeMap<u64, u64>,
    /// Batches whose peers wait, and which are not as safe as these ask for: in the output without being
    /// [durable](AckLevel::Durable), or only in a queue of the sink that counts their events itself.
    pub unsynced: BTreeSet<u64>,
    /// What is held has reached a limit: connections of its listeners are to wait.
    pub is_crowded: bool,
    /// Why batches are held: the latest fault.
    pub held_fault: Option<ActionError>,
    /// Batches with events that the sink has dropped, and the number of these. They count as failed.
    pub failed: BTreeMap<u64, u64>,
    /// Why batches are dropped: the latest fault.
    pub failed_fault: Option<ActionError>,
    /// Events that counted as written and were lost afterwards, because the disk refused them; or that failed after the sink
    /// had taken them into a queue of its own.
    pub lost: Vec<(Arc<Origin>, u64)>,
    /// Events that the sink has dropped because its own queue was full, as configured.
    pub shed: Vec<(Arc<Origin>, u64)>,
    /// Events that an operator has removed from the sink's own queue.
    pub removed: Vec<(Arc<Origin>, u64)>,
    /// Why written events were lost: the latest fault.
    pub lost_fault: Option<ActionError>,
    /// Every destination that cannot be written, with the reason and what becomes of its events. It is named until a write to
    /// it succeeds, also while nothing waits for it.
    pub faults: Vec<String>,
}

impl Unwritten {
    /// Whether everything is written.
    pub fn is_empty(&self) -> bool {
        let Unwritten { held, unsynced, failed, lost, shed, removed, faults, .. } = self;
        let is_lost = !lost.is_empty() || !shed.is_empty() || !removed.is_empty();
        held.is_empty() && unsynced.is_empty() && failed.is_empty() && !is_lost && faults.is_empty()
    }
}

/// How safe events are when their sender gets the acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum AckLevel {
    /// The destination has them: the system has taken them for a file or a stream, or a remote peer has acknowledged them.
    /// They survive the end of this process.
    #[default]
    Written,
    /// They are on a disk, with the directory entry of their file. They survive a loss of power.
    Durable,
}

impl AckLevel {
    /// Every level.
    pub const ALL: [AckLevel; 2] = [AckLevel::Written, AckLevel::Durable];

    /// The name in configuration and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            AckLevel::Written => "written",
            AckLevel::Durable => "durable",
        }
    }
}

/// Events of a sink with a queue of its own, since the sink was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SinkProgress {
    /// What an earlier process has left in the queue.
    pub resumed: u64,
    /// The destination has them.
    pub written: u64,
    /// Refused by the destination, damaged on the disk, or not sent when the grace period ended.
    pub failed: u64,
    /// Dropped, because the queue was full.
    pub shed: u64,
    /// None of these yet.
    pub waiting: u64,
    /// Attempts to send that failed and were repeated.
    pub retries: u64,
    /// Of the written events: the destination had them when their request was sent for the first time, from another request, of
    /// this process or another one.
    pub duplicates: u64,
    /// Of the written events: the destination had them when their request was sent again, from another request or from an attempt
    /// before, whose response did not arrive.
    pub uncertain_duplicates: u64,
}

/// The events of a batch that a sink is configured to take.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    batch: &'a Batch,
    shared: Option<&'a Arc<Batch>>,
    kinds: Kinds,
    chosen: Option<&'a Chosen>,
    number: u64,
    is_counted: bool,
    is_awaited: bool,
    level: AckLevel,
}

impl<'a> Selection<'a> {
    /// The events of `kinds`.
    pub fn new(batch: &'a Batch, kinds: Kinds) -> Self {
        Selection {
            batch,
            shared: None,
            kinds,
            chosen: None,
            number: 0,
            is_counted: true,
            is_awaited: true,
            level: AckLevel::Written,
        }
    }

    /// The same for a batch that the sink can keep: see [`Selection::to_batch`].
    pub fn of_shared(batch: &'a Arc<Batch>, kinds: Kinds) -> Self {
        Selection { shared: Some(batch), ..Selection::new(batch, kinds) }
    }

    /// Of these events only the chosen ones, if there is a choice.
    pub fn chosen(self, chosen: Option<&'a Chosen>) -> Self {
        Selection { chosen, ..self }
    }

    /// All events of another batch instead, which is a copy of these.
    pub fn replaced_by(self, copy: &Batch) -> Selection<'_> {
        let Selection { number, is_counted, is_awaited, level, .. } = self;
        Selection { batch: copy, shared: None, kinds: Kinds::ALL, chosen: None, number, is_counted, is_awaited, level }
    }

    /// The same events, with the number by which [`Unwritten`] names the batch.
    pub fn numbered(self, number: u64) -> Self {
        Selection { number, ..self }
    }

    /// The same events, which report what the sink did not get: they are not counted as events of the sink.
    pub fn uncounted(self) -> Self {
        Selection { is_counted: false, ..self }
    }

    /// The same events, for which no peer waits.
    pub fn not_awaited(self) -> Self {
        Selection { is_awaited: false, ..self }
    }

    /// Whether a peer waits until the events are delivered.
    pub fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// The same events, which are delivered when they have reached this level.
    pub fn at_level(self, level: AckLevel) -> Self {
        Selection { level, ..self }
    }

    /// The level at which the events are delivered.
    pub fn level(&self) -> AckLevel {
        self.level
    }

    /// Whether the events count as events of the sink.
    pub fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// The batch that contains the events.
    pub fn batch(&self) -> &'a Batch {
        self.batch
    }

    /// A batch of these events only, to keep: the whole batch itself, if it is shared, or else a copy.
    pub fn to_batch(&self) -> Arc<Batch> {
        match self.shared {
            Some(batch) if self.count() == batch.len() as u64 => batch.clone(),
            _ => Arc::new(self.batch.copy_of(|index| self.contains(index))),
        }
    }

    /// The id of what the whole batch was made of, also if some of its events are not among these.
    pub fn content(&self) -> Option<ContentId> {
        self.batch.content()
    }

    /// The number by which [`Unwritten`] names the batch.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The events, in order.
    pub fn events(&self) -> impl Iterator<Item = EventView<'a>> + use<'a> {
        let (kinds, chosen) = (self.kinds, self.chosen);
        let is_taken = move |index: usize, event: EventView<'_>| match chosen {
            None => kinds.contains(event.kind()),
            Some(chosen) => chosen.contains(index),
        };
        self.batch.events().enumerate().filter(move |(index, event)| is_taken(*index, *event)).map(|(_, event)| event)
    }

    /// Whether it has the event with this index in the batch.
    pub fn contains(&self, index: usize) -> bool {
        match self.chosen {
            None => self.batch.kind_of(index).is_some_and(|kind| self.kinds.contains(kind)),
            Some(chosen) => chosen.contains(index),
        }
    }

    /// The number of events.
    pub fn count(&self) -> u64 {
        match self.chosen {
            None => {
                let kinds = Kind::ALL.into_iter().filter(|kind| self.kinds.contains(*kind));
                kinds.map(|kind| self.batch.count(kind)).sum()
            }
            Some(chosen) => chosen.count(),
        }
    }
}

/// A choice among the events of a batch, by their index.
#[derive(Clone, Debug)]
pub struct Chosen {
    bits: Vec<u64>,
    count: u64,
}

impl Chosen {
    /// None of this many events.
    pub fn none_of(events: usize) -> Self {
        Chosen { bits: vec![0; events.div_ceil(64)], count: 0 }
    }

    /// Adds an event that is not chosen yet.
    pub fn add(&mut self, index: usize) {
        self.bits[index / 64] |= 1 << (index % 64);
        self.count += 1;
    }

    /// Whether the event with this index is chosen.
    pub fn contains(&self, index: usize) -> bool {
        self.bits.get(index / 64).is_some_and(|bits| bits & (1 << (index % 64)) != 0)
    }

    /// The number of chosen events.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// A set of event kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kinds(u8);

impl Kinds {
    /// Every kind.
    pub const ALL: Kinds = Kinds((1 << Kind::ALL.len()) - 1);

    /// Whether `kind` is in the set.
    pub fn contains(self, kind: Kind) -> bool {
        self.0 & (1 << kind.index()) != 0
    }
}

impl FromIterator<Kind> for Kinds {
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> Self {
        Kinds(kinds.into_iter().fold(0, |set, kind| set | 1 << kind.index()))
    }
}

/// Why a sink could not write.
#[derive(Debug)]
pub enum SinkError {
    /// Not possible now (disk full, connection refused): the same call may succeed later.
    Retry(ActionError),
    /// The reader has closed the stream, as `head` closes a pipe. This is not a failure.
    Closed,
    /// The sink cannot be used again; a new one may work.
    Failed(ActionError),
}

/// What failed, and with which file or address.
#[derive(Debug)]
pub struct ActionError {
    /// The action that failed, with the path or address: `write events/spans.ndjson`.
    pub action: String,
    /// The error of the operating system.
    pub source: io::Error,
}

impl fmt::Display for ActionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.action, self.source)
    }
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinkError::Retry(fault) | SinkError::Failed(fault) => fault.fmt(f),
            SinkError::Closed => f.write_str("the reader closed the stream"),
        }
    }
}

impl std::error::Error for SinkError {}
