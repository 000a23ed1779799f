//! Events that a sink did not get, until the sink has reported them in its own output.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tributary_event::{Batch, BatchBuilder, Header, Loss, Origin, Position, UnixNanos, semconv};
use tributary_sink::LossCause;

/// Losses of further connections are reported together.
const MAX_ENTRIES: usize = 1024;
/// The peer of an entry that stands for several connections.
const SEVERAL: &str = "several";

/// The pending losses of one sink. A clone is the same.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingLosses(Arc<Mutex<Entries>>);

impl PendingLosses {
    pub(super) fn add(&self, origin: Arc<Origin>, cause: LossCause, events: u64) {
        self.entries().add(origin, cause, events);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries().entries.is_empty()
    }

    /// The losses so far: a report for each listener that has any.
    pub(super) fn take(&self) -> Vec<LossReport> {
        let taken = std::mem::take(&mut *self.entries());
        let mut reports: Vec<LossReport> = Vec::new();
        for loss in taken.entries {
            let of_listener = |report: &&mut LossReport| {
                report.pending.first().is_some_and(|first| first.origin.is_same_listener(&loss.origin))
            };
            match reports.iter_mut().find(of_listener) {
                Some(report) => report.pending.push(loss),
                None => reports.push(LossReport { losses: self.clone(), pending: vec![loss] }),
            }
        }
        reports
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One entry for each connection and cause. Adding takes constant time: it happens for each batch while a queue is full.
#[derive(Debug, Default)]
struct Entries {
    /// In the order in which they began.
    entries: Vec<PendingLoss>,
    /// The entries by the address of their origin, which they keep alive, and their cause.
    of_connection: HashMap<(usize, LossCause), usize>,
    /// The last entry of each protocol, listener and cause.
    of_listener: HashMap<(&'static str, Arc<str>, LossCause), usize>,
}

#[derive(Debug)]
struct PendingLoss {
    origin: Arc<Origin>,
    cause: LossCause,
    events: u64,
}

impl Entries {
    fn add(&mut self, origin: Arc<Origin>, cause: LossCause, events: u64) {
        if let Some(known) = self.of_connection.get(&connection(&origin, cause)) {
            self.entries[*known].events += events;
            return;
        }
        let listener = (origin.protocol, origin.listener.clone(), cause);
        if self.entries.len() >= MAX_ENTRIES
            && let Some(last) = self.of_listener.get(&listener)
        {
            // Very many connections: the last entry of the listener stands for all further ones.
            let last = &mut self.entries[*last];
            if &*last.origin.peer != SEVERAL {
                self.of_connection.remove(&connection(&last.origin, cause));
                let several = Origin::new(origin.protocol, origin.listener.clone(), SEVERAL.into(), 0);
                last.origin = Arc::new(several.with_identity(origin.identity.clone()));
            }
            last.events += events;
            return;
        }
        self.of_connection.insert(connection(&origin, cause), self.entries.len());
        self.of_listener.insert(listener, self.entries.len());
        self.entries.push(PendingLoss { origin, cause, events });
    }
}

/// The key of a connection. Different origins have different addresses while both live.
fn connection(origin: &Arc<Origin>, cause: LossCause) -> (usize, LossCause) {
    (Arc::as_ptr(origin).addr(), cause)
}

/// Losses that a sink is about to write. If this is dropped before they are written, they are pending again.
#[derive(Debug)]
pub(super) struct LossReport {
    losses: PendingLosses,
    pending: Vec<PendingLoss>,
}

impl LossReport {
    /// The losses as events, with `now` as their time.
    pub(super) fn batch(&self, now: UnixNanos) -> Option<Batch> {
        let mut builder = BatchBuilder::new(self.pending.first()?.origin.clone());
        for PendingLoss { origin, cause, events } in &self.pending {
            builder.set_origin(origin.clone());
            let header = Header::observed_at(semconv::LOSS, now, Position::default());
            let (reason, detail, events) = (cause.reason(), cause.detail(), Some(*events));
            builder.loss(header, Loss { reason, bytes: 0, events, detail, excerpt: &[] });
        }
        Some(builder.take())
    }

    /// The sink has written them.
    pub(super) fn reported(mut self) {
        self.pending.clear();
    }
}

impl Drop for LossReport {
    fn drop(&mut self) {
        for PendingLoss { origin, cause, events } in self.pending.drain(..) {
            self.losses.add(origin, cause, events);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(listener: &str, connection: u64) -> Arc<Origin> {
        Arc::new(Origin::new("datadog", listener.into(), format!("peer {connection}").into(), connection))
    }

    fn entries(pending: &Entries, listener: &str) -> Vec<(u64, u64)> {
        let of = pending.entries.iter().filter(|entry| &*entry.origin.listener == listener);
        of.map(|entry| (entry.origin.connection, entry.events)).collect()
    }

    #[test]
    fn losses_of_a_connection_add_up_by_cause_and_keep_their_order() {
        let (mut pending, one, two) = (Entries::default(), origin("a", 1), origin("a", 2));
        for (origin, cause) in [
            (&two, LossCause::QueueFull),
            (&one, LossCause::QueueFull),
            (&two, LossCause::Failed),
            (&two, LossCause::QueueFull),
        ] {
            pending.add(origin.clone(), cause, 5);
        }
        assert_eq!(entries(&pending, "a"), [(2, 10), (1, 5), (2, 5)]);
    }

    #[test]
    fn beyond_the_limit_the_last_entry_of_each_listener_stands_for_several_connections() {
        let mut pending = Entries::default();
        pending.add(origin("b", 7), LossCause::QueueFull, 1);
        // Each origin is dropped by its connection; the system may use its address again.
        (0..3_000).for_each(|number| pending.add(origin("a", number), LossCause::QueueFull, 1));
        pending.add(origin("b", 8), LossCause::QueueFull, 1);
        pending.add(origin("c", 9), LossCause::QueueFull, 1);
        let of_a = entries(&pending, "a");
        assert_eq!((of_a.len(), of_a[0], of_a[1022]), (1023, (0, 1), (0, 3_000 - 1022)));
        assert_eq!(&*pending.entries[1023].origin.peer, SEVERAL);
        assert_eq!((entries(&pending, "b"), entries(&pending, "c")), (vec![(0, 2)], vec![(9, 1)]));
        assert_eq!(pending.of_connection.len(), 1022 + 1, "no address of a dropped origin is known");
        assert_eq!(pending.entries.iter().map(|entry| entry.events).sum::<u64>(), 3_003);
    }
}
