//! What a listener and its connections need beside their sockets and sessions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use tributary_driver::{SessionDriver, loss_batch};
use tributary_event::{Batch, Loss, Origin};
use tributary_memory::{Allowance, MemoryBudget, MemoryLease};
use tributary_pipeline::Sender;
use tributary_pipeline::accounting::ListenerCounters;
use tributary_protocol::{LossLimit, Session};

use super::capture::{Capture, Recording};
use super::clock::Clock;
use super::options::ListenerOptions;
use super::tcp::Draining;

/// See [`LastWrites`]. A part of the second that a stop adds to its grace period.
pub(super) const LAST_WRITES: Duration = Duration::from_millis(250);
/// A connection that is given up this time after the first begins a new period.
const LAST_WRITES_AGAIN: Duration = Duration::from_secs(60);

/// What a listener, or a dialer, of any protocol needs. Its name and its protocol are those of its counters.
#[derive(Clone, Debug)]
pub struct ListenerContext {
    /// Its options.
    pub options: Arc<ListenerOptions>,
    /// Its counters.
    pub counters: Arc<ListenerCounters>,
    /// The memory of its connections.
    pub memory: Arc<MemoryBudget>,
    /// Records what its connections receive. None: nothing is recorded.
    pub capture: Option<Arc<Capture>>,
    /// Where its events go.
    pub sender: Sender,
    /// The clock of the daemon.
    pub clock: Clock,
    /// Tracks every task that still has events to hand over.
    pub tasks: TaskTracker,
    /// Cancelled when the listener stops.
    pub stop: CancellationToken,
    /// Cancelled when tasks that have not ended by themselves are aborted.
    pub abort: CancellationToken,
}

impl ListenerContext {
    /// The same, whose batches wait for a full queue at most this long.
    #[must_use]
    pub fn with_max_wait(self, longest: Duration) -> ListenerContext {
        ListenerContext { sender: self.sender.with_max_wait(longest), ..self }
    }

    /// The origin of what a peer sends on the connection with this number.
    pub(super) fn origin(&self, peer: &str, connection: u64) -> Origin {
        let (protocol, name) = (self.counters.protocol().as_str(), self.counters.name());
        Origin::new(protocol, name.into(), peer.into(), connection).with_identity(self.options.identity.clone())
    }

    /// What its connections share.
    pub(super) fn of_connections(self, draining: Option<&Draining>) -> ConnectionContext {
        let ListenerContext { options, counters, memory, capture, sender, clock, tasks, stop, abort } = self;
        ConnectionContext {
            hurry: draining.map(|draining| draining.hurry.clone()).unwrap_or_default(),
            stop_handshakes: if draining.is_some() { abort.clone() } else { stop.clone() },
            options,
            sender,
            counters,
            clock,
            memory,
            allowance: Allowance::default(),
            admitted_with: None,
            capture,
            tasks,
            stop,
            abort,
            last_writes: Arc::default(),
        }
    }
}

/// What all connections of a listener share, and what one of them was admitted with.
#[derive(Clone, Debug)]
pub(super) struct ConnectionContext {
    pub(super) options: Arc<ListenerOptions>,
    pub(super) sender: Sender,
    pub(super) counters: Arc<ListenerCounters>,
    pub(super) clock: Clock,
    /// The memory of the listener; of an admitted connection, that of its address.
    pub(super) memory: Arc<MemoryBudget>,
    /// How much output the peer's address may cause. Of connections without an address (dialled, or of a proxy itself):
    /// their own.
    pub(super) allowance: Allowance,
    /// The memory with which the connection was admitted; given back when its last task has ended.
    pub(super) admitted_with: Option<Arc<MemoryLease>>,
    /// Records what connections receive. None: nothing is recorded.
    pub(super) capture: Option<Arc<Capture>>,
    /// Tracks every task that still has events to hand over.
    pub(super) tasks: TaskTracker,
    /// Cancelled when the daemon stops.
    pub(super) stop: CancellationToken,
    /// Cancelled when the daemon, which is stopping, ends within seconds. Of listeners without [`Draining`] it never is.
    ///
    /// [`Draining`]: super::tcp::Draining
    pub(super) hurry: CancellationToken,
    /// Cancelled when a connection that has not made its handshake (PROXY header, TLS) is refused.
    pub(super) stop_handshakes: CancellationToken,
    /// Cancelled when the daemon waits no longer for tasks that have not ended by themselves.
    pub(super) abort: CancellationToken,
    /// How long connections that are given up may still write what they hold.
    pub(super) last_writes: Arc<LastWrites>,
}

/// The time in which the connections of a listener that are given up may write what they hold, all of them together. It
/// begins with the first of them, and again with the first that is given up much later.
#[derive(Debug, Default)]
pub(super) struct LastWrites(Mutex<Option<Duration>>);

impl LastWrites {
    /// The end of that time for a connection that is given up at `elapsed`.
    pub(super) fn until(&self, elapsed: Duration) -> Duration {
        let mut began = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Panics are rare, and each may be the first of a long time.
        let since = began.filter(|began| elapsed.saturating_sub(*began) < LAST_WRITES_AGAIN).unwrap_or(elapsed);
        *began = Some(since);
        since + LAST_WRITES
    }
}

impl ConnectionContext {
    /// The recording of a connection that was opened at `opened`.
    pub(super) fn recording(&self, origin: &Origin, opened: Duration) -> Option<Recording> {
        self.capture.as_ref()?.connection(origin, self.clock, opened)
    }

    /// A driver for a session, with the limits of this connection.
    pub(super) fn driver<S: Session>(&self, session: S, origin: Arc<Origin>) -> SessionDriver<S> {
        SessionDriver::new(session, origin, self.counters.clone()).limited(self.allowance.clone(), self.loss_limit())
    }

    /// The bound on the loss events of one connection.
    pub(super) fn loss_limit(&self) -> LossLimit {
        LossLimit::new(self.options.max_losses_per_second as u64)
    }

    /// Counts bytes that no session sees as lost, and makes the batch that reports them.
    pub(super) fn loss(&self, origin: &Arc<Origin>, offset: u64, loss: Loss<'_>) -> Batch {
        self.counters.lost(loss.reason, loss.bytes);
        loss_batch(&self.counters, origin, self.clock.now().unix, offset, loss)
    }
}
