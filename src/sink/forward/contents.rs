//! What is in requests: the connections of their events, and the losses that they report. So events that a spool drops, or finds
//! damaged, are reported as losses of their connections.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tributary_event::Origin;
use tributary_sink::LossCause;

/// Of more requests than these, the contents of the first ones are forgotten.
const MAX_REQUESTS: usize = 16 * 1024;
/// Events of further connections of a request have no known origin.
const MAX_ORIGINS: usize = 4;
/// The losses of further connections are reported together: a report must fit where events did not.
const MAX_MISSED: usize = 16;

/// What is in one request, as far as that is known.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The connections of its events, with the numbers of these.
    origins: Vec<(Arc<Origin>, u64)>,
    /// The losses that it reports: they are lost with it.
    reports: Vec<Missed>,
}

/// Events that did not get to the destination.
#[derive(Clone, Debug)]
pub(crate) struct Missed {
    /// Their connection. `None`: unknown, or several.
    pub(crate) origin: Option<Arc<Origin>>,
    pub(crate) cause: LossCause,
    pub(crate) events: u64,
}

impl Missed {
    /// Whether the other ones have the same connection and cause.
    fn is_of_same(&self, other: &Missed) -> bool {
        let is_same_origin = match (&self.origin, &other.origin) {
            (None, None) => true,
            (Some(one), Some(other)) => {
                one.is_same_listener(other) && (one.connection, &one.peer) == (other.connection, &other.peer)
            }
            _ => false,
        };
        is_same_origin && self.cause == other.cause
    }
}

impl Contents {
    /// That of events of one connection.
    pub fn of(origin: &Arc<Origin>, events: u64) -> Contents {
        let mut contents = Contents::default();
        contents.add(origin, events);
        contents
    }

    /// Adds events of a connection.
    pub fn add(&mut self, origin: &Arc<Origin>, events: u64) {
        let known = self.origins.iter().position(|(known, _)| Arc::ptr_eq(known, origin));
        match known {
            Some(index) => self.origins[index].1 += events,
            None if self.origins.len() < MAX_ORIGINS => self.origins.push((origin.clone(), events)),
            None => {}
        }
    }

    /// The request also reports a loss.
    pub(crate) fn report(&mut self, origin: &Arc<Origin>, cause: LossCause, events: u64) {
        self.reports.push(Missed { origin: Some(origin.clone()), cause, events });
    }

    /// The same, which also reports the losses of another one.
    pub(crate) fn with_reports_of(mut self, mut other: Contents) -> Contents {
        self.reports.append(&mut other.reports);
        self
    }

    /// What is missed when `events` events of the request are: with all of its events its reports, too. Of a part of several
    /// connections' events it is not known whose they are.
    fn missed(self, cause: LossCause, events: u64) -> Vec<Missed> {
        let known: u64 = self.origins.iter().map(|(_, events)| events).sum();
        let mut missed = Vec::new();
        match self.origins.as_slice() {
            [(origin, _)] if events <= known => missed.push(Missed { origin: Some(origin.clone()), cause, events }),
            _ if events < known => missed.push(Missed { origin: None, cause, events }),
            origins => {
                let of = |(origin, events): &(Arc<Origin>, u64)| (Some(origin.clone()), *events);
                let rest = std::iter::once((None, events - known));
                let all = origins.iter().map(of).chain(rest);
                missed.extend(all.map(|(origin, events)| Missed { origin, cause, events }));
            }
        }
        missed.retain(|missed| missed.events > 0);
        missed
    }
}

/// The contents of the requests in a store, by the requests' numbers.
#[derive(Debug, Default)]
pub(super) struct AllContents {
    requests: BTreeMap<u64, Contents>,
    missed: Vec<Missed>,
}

impl AllContents {
    /// The store has taken a request.
    pub(super) fn insert(&mut self, number: u64, contents: Contents) {
        if contents.origins.is_empty() && contents.reports.is_empty() {
            return;
        }
        if self.requests.len() >= MAX_REQUESTS {
            self.requests.pop_first();
        }
        self.requests.insert(number, contents);
    }

    /// The request with this number is settled, and `failed` of its events have failed.
    pub(super) fn settled(&mut self, number: u64, failed: u64) {
        let contents = self.requests.remove(&number).unwrap_or_default();
        // The destination has seen its reports, or has refused them.
        self.note(contents.missed(LossCause::Failed, failed));
    }

    /// The store has not taken a request because it was full.
    pub(super) fn refused(&mut self, mut contents: Contents, events: u64) {
        self.note(std::mem::take(&mut contents.reports));
        self.note(contents.missed(LossCause::QueueFull, events));
    }

    /// Requests with these numbers, which the store had, are gone with this number of events.
    pub(super) fn gone(&mut self, numbers: Range<u64>, cause: LossCause, events: u64) {
        let mut rest = events;
        let known: Vec<u64> = self.requests.range(numbers).map(|(number, _)| *number).collect();
        for number in known {
            let mut contents = self.requests.remove(&number).unwrap_or_default();
            self.note(std::mem::take(&mut contents.reports));
            let known = contents.origins.iter().map(|(_, events)| events).sum::<u64>().min(rest);
            rest -= known;
            self.note(contents.missed(cause, known));
        }
        if rest > 0 {
            self.note(vec![Missed { origin: None, cause, events: rest }]);
        }
    }

    /// Adds what was missed to the sums of its connections.
    fn note(&mut self, missed: Vec<Missed>) {
        for mut missed in missed {
            let is_known = self.missed.iter().any(|known| known.is_of_same(&missed));
            if !is_known && self.missed.len() >= MAX_MISSED {
                missed.origin = None;
            }
            match self.missed.iter_mut().find(|known| known.is_of_same(&missed)) {
                Some(known) => known.events += missed.events,
                None => self.missed.push(missed),
            }
        }
    }

    /// What was missed since the last call.
    pub(super) fn take_missed(&mut self) -> Vec<Missed> {
        std::mem::take(&mut self.missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(connection: u64) -> Arc<Origin> {
        Arc::new(Origin::new("endless", "desktops".into(), "peer".into(), connection))
    }

    fn contents(origins: &[(u64, u64)]) -> Contents {
        let mut contents = Contents::default();
        origins.iter().for_each(|(connection, events)| contents.add(&origin(*connection), *events));
        contents
    }

    fn missed(all: &mut AllContents) -> Vec<(Option<u64>, LossCause, u64)> {
        let missed = all.take_missed().into_iter();
        missed.map(|missed| (missed.origin.map(|origin| origin.connection), missed.cause, missed.events)).collect()
    }

    #[test]
    fn events_are_missed_by_their_connections_and_the_sums_are_exact() {
        let mut all = AllContents::default();
        all.insert(7, contents(&[(1, 3), (2, 4)]));
        all.insert(8, contents(&[(1, 3)]));
        all.gone(6..9, LossCause::QueueFull, 20);
        let shed = [(Some(1), 6), (Some(2), 4), (None, 10)];
        assert_eq!(missed(&mut all), shed.map(|(origin, events)| (origin, LossCause::QueueFull, events)));
        all.insert(9, contents(&[(5, 3)]));
        all.insert(10, contents(&[(1, 3), (2, 4)]));
        all.insert(11, contents(&[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]));
        (9..13).zip([2, 1, 5, 6]).for_each(|(number, failed)| all.settled(number, failed));
        let failed = [(Some(5), 2), (None, 8), (Some(1), 1), (Some(2), 1), (Some(3), 1), (Some(4), 1)];
        assert_eq!(missed(&mut all), failed.map(|(origin, events)| (origin, LossCause::Failed, events)));
        assert!(all.requests.is_empty());
    }

    #[test]
    fn losses_of_many_connections_are_reported_together_and_exactly() {
        let mut all = AllContents::default();
        (0..1000).for_each(|number| all.insert(number, contents(&[(number, 2)])));
        all.gone(0..1000, LossCause::QueueFull, 2000);
        let missed = missed(&mut all);
        assert_eq!(missed.len(), MAX_MISSED + 1);
        assert_eq!(missed.iter().map(|(.., events)| events).sum::<u64>(), 2000);
        assert_eq!(missed.last(), Some(&(None, LossCause::QueueFull, 2 * (1000 - MAX_MISSED as u64))));
    }

    #[test]
    fn reports_in_a_request_that_is_dropped_are_missed_again() {
        let mut all = AllContents::default();
        let report = |mut contents: Contents| {
            contents.report(&origin(9), LossCause::Failed, 77);
            contents
        };
        all.refused(report(contents(&[(1, 2)])), 2);
        assert_eq!(missed(&mut all), [(Some(9), LossCause::Failed, 77), (Some(1), LossCause::QueueFull, 2)]);
        all.insert(1, report(Contents::default()));
        all.insert(2, report(Contents::default()));
        all.settled(2, 0);
        all.gone(1..3, LossCause::QueueFull, 0);
        assert_eq!(missed(&mut all), [(Some(9), LossCause::Failed, 77)]);
    }
}
