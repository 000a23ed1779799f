//! Batches that a worker has taken from its queue, until the sink has written or dropped them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tributary_event::Origin;
use tributary_sink::Unwritten;

use super::delivery::DeliveryHandle;
use super::pending_losses::LossReport;

/// Batches that a worker has taken from the queue and that are not flushed yet. Dropped, they count as failed.
#[derive(Debug, Default)]
pub(super) struct InFlightBatches(Mutex<InFlight>);

#[derive(Debug, Default)]
struct InFlight {
    /// In the order in which they are written, with the numbers by which the sink names the batches.
    handles: Vec<(u64, DeliveryHandle)>,
    reports: Vec<InFlightReport>,
    last_number: u64,
    /// [`Sink::written`] when these were empty for the last time.
    written_before: u64,
}

#[derive(Debug)]
struct InFlightReport {
    number: u64,
    /// It is written before the batch with this number; 0: after all.
    precedes: u64,
    /// The number of its events that the sink takes.
    events: u64,
    report: LossReport,
}

impl InFlightBatches {
    /// Adds a batch; returns its number.
    pub(super) fn add(&self, handle: DeliveryHandle) -> u64 {
        let mut taken = self.locked();
        taken.last_number += 1;
        let number = taken.last_number;
        taken.handles.push((number, handle));
        number
    }

    /// Adds a batch of losses; the sink takes `events` of them. It is written before the batch with the number
    /// `precedes`. Returns its number.
    pub(super) fn add_report(&self, report: LossReport, events: u64, precedes: u64) -> u64 {
        let mut taken = self.locked();
        taken.last_number += 1;
        let number = taken.last_number;
        taken.reports.push(InFlightReport { number, precedes, events, report });
        number
    }

    /// Events whose peers wait until they are written.
    pub(super) fn awaited_events(&self) -> u64 {
        self.locked().handles.iter().map(|(_, handle)| handle.awaited_events()).sum()
    }

    /// One connection of each listener that has a held batch.
    pub(super) fn held_origins(&self, held: &BTreeMap<u64, u64>) -> Vec<Arc<Origin>> {
        if held.is_empty() {
            return Vec::new();
        }
        let taken = self.locked();
        let mut origins = BTreeMap::new();
        for (_, handle) in taken.handles.iter().filter(|(number, _)| held.contains_key(number)) {
            if let Some(origin) = handle.origin() {
                origins.entry((origin.protocol, origin.listener.clone())).or_insert_with(|| origin.clone());
            }
        }
        origins.into_values().collect()
    }

    /// A flush returned `Ok`: everything is written except what `unwritten` names, and what earlier calls named as failed.
    /// `written` is [`Sink::written`](tributary_sink::Sink::written). Returns whether events were written.
    pub(super) fn settle(&self, unwritten: &Unwritten, written: u64) -> bool {
        let mut taken = self.locked();
        taken.written_before = written;
        let is_written = |number: &u64| !unwritten.held.contains_key(number) && !unwritten.failed.contains_key(number);
        let has_written = taken.handles.iter().any(|(number, _)| is_written(number))
            || taken.reports.iter().any(|report| report.events > 0 && is_written(&report.number));
        if unwritten.held.is_empty() && unwritten.unsynced.is_empty() && unwritten.failed.is_empty() {
            taken.handles.drain(..).for_each(|(_, handle)| handle.settled());
            taken.reports.drain(..).for_each(|taken| taken.report.reported());
            return has_written;
        }
        let (handles, reports) = (std::mem::take(&mut taken.handles), std::mem::take(&mut taken.reports));
        for (number, mut handle) in handles {
            note_unwritten(&mut handle, number, unwritten);
            if unwritten.held.contains_key(&number) || unwritten.unsynced.contains(&number) {
                taken.handles.push((number, handle));
            } else {
                handle.settled();
            }
        }
        for report in reports {
            match report.number {
                number if unwritten.failed.contains_key(&number) => drop(report),
                number if unwritten.held.contains_key(&number) => taken.reports.push(report),
                _ => report.report.reported(),
            }
        }
        has_written
    }

    /// The sink writes no more. Of the batches in flight those events are in its output that `unwritten` does not name, and
    /// the first ones, as many as `written` ([`Sink::written`]) says; the rest counts as failed.
    pub(super) fn give_up(&self, written: u64, unwritten: &Unwritten) {
        let InFlight { handles, reports, written_before, .. } = std::mem::take(&mut *self.locked());
        let mut rest = written.saturating_sub(written_before);
        let mut reports = reports.into_iter().peekable();
        for (number, mut handle) in handles {
            note_unwritten(&mut handle, number, unwritten);
            while let Some(report) = reports.next_if(|report| report.precedes == number) {
                rest -= report.written_up_to(rest);
            }
            rest -= handle.written_up_to(rest);
        }
        for report in reports {
            rest -= report.written_up_to(rest);
        }
    }

    fn locked(&self) -> MutexGuard<'_, InFlight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes over what the sink says about a batch.
fn note_unwritten(handle: &mut DeliveryHandle, number: u64, unwritten: &Unwritten) {
    if unwritten.unsynced.contains(&number) {
        handle.note_held(0);
    }
    if let Some(events) = unwritten.failed.get(&number) {
        handle.note_dropped(*events);
    }
    if let Some(events) = unwritten.held.get(&number) {
        handle.note_held(*events);
    }
}

impl InFlightReport {
    /// At most this many events more are in the output; returns how many of these losses are.
    fn written_up_to(self, events: u64) -> u64 {
        let written = self.events.min(events);
        if written == self.events {
            self.report.reported();
        }
        written
    }
}
