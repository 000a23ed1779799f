//! FLOOR 3 — batches leaving the house.
//!
//! A [`Sink`] turns batches into bytes somewhere. It is driven by one worker (`pipeline::worker`), which decides when to flush, waits and retries when the sink cannot write just now, and keeps the counters.

pub mod discard;
pub mod encode;
pub mod file;
pub mod memory;
pub mod stdout;

use std::fmt;
use std::future::Future;
use std::io;

use crate::event::{Batch, EventView, Kind};

/// Where batches go.
///
/// The worker's promise: `write` any number of times, then `flush`; events count as written only when a flush that
/// follows them has answered `Ok`. After [`SinkError::Retry`] the worker waits and calls `flush` again, and nothing
/// else, until it answers otherwise.
///
/// A sink that [may block](Sink::BLOCKS) has a thread of its own, on which tokio's clock runs and nothing else does. Every
/// sink may wait.
pub trait Sink: Send + 'static {
    /// Whether a call may block. One that never does needs no thread: it shares those that decode.
    const BLOCKS: bool = true;

    /// Takes the events of a batch, into memory or further.
    ///
    /// # Errors
    /// Those of [`Sink::flush`]. After [`SinkError::Retry`] the sink has taken the whole batch all the same.
    fn write(&mut self, events: Selection<'_>) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Brings everything taken so far to where it goes.
    ///
    /// # Errors
    /// [`SinkError::Retry`]: not now; the sink keeps what it could not write, and has left nothing half-written.
    /// [`SinkError::Closed`]: the reader has left. [`SinkError::Failed`]: the sink is dead.
    fn flush(&mut self) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Called about once a second, after a flush that answered `Ok`: time-based rotation, fsync.
    ///
    /// # Errors
    /// As for [`Sink::flush`], but [`SinkError::Retry`] holds nothing up: the next tick is the next try.
    fn tick(&mut self) -> impl Future<Output = Result<(), SinkError>> + Send {
        std::future::ready(Ok(()))
    }

    /// The last call, after a flush that answered `Ok`: the daemon stops, or the sink is no longer wanted.
    ///
    /// # Errors
    /// As for [`Sink::tick`], but nobody will try again.
    fn close(&mut self) -> impl Future<Output = Result<(), SinkError>> + Send {
        std::future::ready(Ok(()))
    }

    /// The operator asks (SIGHUP) to let go of open files and open them anew with the next write.
    fn reopen(&mut self) {}
}

/// The events of a batch that a sink is configured to take.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    batch: &'a Batch,
    kinds: Kinds,
}

impl<'a> Selection<'a> {
    /// Those of `kinds`.
    pub fn new(batch: &'a Batch, kinds: Kinds) -> Self {
        Selection { batch, kinds }
    }

    /// The batch that they stand in.
    pub fn batch(&self) -> &'a Batch {
        self.batch
    }

    /// The events, in order.
    pub fn events(&self) -> impl Iterator<Item = EventView<'a>> + use<'a> {
        let kinds = self.kinds;
        self.batch.events().filter(move |event| kinds.contains(event.kind()))
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        Kind::ALL.into_iter().filter(|kind| self.kinds.contains(*kind)).map(|kind| self.batch.count(kind)).sum()
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
    /// Not now (disk full, directory gone, permission lost): the same call may go through later.
    Retry(SinkFault),
    /// The reader has left for good, as `head` does with a pipe. No fault of anybody.
    Closed,
    /// The sink is dead; a new one may fare better.
    Failed(SinkFault),
}

/// What went wrong, and with what.
#[derive(Debug)]
pub struct SinkFault {
    /// What the sink was doing, with the path or address: `write events/spans.ndjson`.
    pub action: String,
    /// The system's answer.
    pub source: io::Error,
}

impl fmt::Display for SinkFault {
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
