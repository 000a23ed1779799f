//! The counters of one sink.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tributary_select::Rule;
use tributary_sink::{FileStatus, FileTotals};
use tributary_sink::{RemoteStatus, SinkProgress};
use tributary_system::counters;
use tributary_system::counters::Counted;

use super::accounting::QueueCapacity;

/// A sink counts as shedding for this time after it has shed events.
const SHEDDING_TIME: Duration = Duration::from_secs(10);

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1)
}

/// At most this many destinations that cannot be written are named.
const MAX_NAMED: usize = 8;

/// Why a sink is not up.
#[derive(Debug, Default)]
struct Faults {
    /// The sink itself has failed, or cannot write anything now, and has written nothing since.
    of_sink: Option<String>,
    /// Each of its destinations that cannot be written.
    of_destinations: Vec<String>,
}

impl Faults {
    fn describe(&self) -> Option<String> {
        let Faults { of_sink, of_destinations } = self;
        let named: Vec<&str> =
            of_sink.iter().chain(of_destinations.iter().take(MAX_NAMED)).map(String::as_str).collect();
        let more = match of_destinations.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!("; {more} more cannot be written"),
        };
        (!named.is_empty()).then(|| named.join("; ") + &more)
    }
}

/// When a sink shed events last.
#[derive(Debug)]
struct LastShed {
    /// In milliseconds since `created`, and one more; 0: never.
    at: AtomicU64,
    created: Instant,
}

impl Default for LastShed {
    fn default() -> Self {
        LastShed { at: AtomicU64::new(0), created: Instant::now() }
    }
}

impl LastShed {
    fn set(&self, elapsed: Duration) {
        self.at.store(1 + millis(elapsed), Relaxed);
    }

    fn is_recent(&self, elapsed: Duration) -> bool {
        let last = self.at.load(Relaxed);
        last > 0 && millis(elapsed).saturating_sub(last - 1) < millis(SHEDDING_TIME)
    }
}

impl Counted for LastShed {
    type Value = bool;

    fn value(&self) -> bool {
        self.is_recent(self.created.elapsed())
    }
}

/// The faults, which the sink's worker sets.
#[derive(Debug, Default)]
struct SinkFaults(Mutex<Faults>);

impl Counted for SinkFaults {
    type Value = Option<String>;

    fn value(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).describe()
    }
}

/// The running counters of one sink.
#[derive(Debug)]
pub struct SinkCounters {
    counters: Counters,
    own_queue: Mutex<OwnQueue>,
    /// Of a sink that sends requests over a network.
    remote: Mutex<Option<Arc<RemoteStatus>>>,
    /// Of a sink that writes files.
    files: Mutex<Option<Arc<FileStatus>>>,
}

counters! {
    struct Counters(name: String);
    /// The values of one sink's counters, in events.
    pub struct SinkTotals {
        /// Left out by the sink's rules, by rule, in the order in which they are tried. Also rules that have left out none.
        /// Before the events, which are counted before it.
        filtered: Mutex<BTreeMap<Rule, u64>>,
        /// Handed over to the sink.
        events: AtomicU64,
        /// Written.
        written: AtomicU64,
        /// Not handed over, because the queue was full.
        shed: AtomicU64,
        /// Not written.
        failed: AtomicU64,
        /// Left in the sink's own queue by an earlier process.
        resumed: AtomicU64,
        /// In the sink's own queue.
        waiting: AtomicU64,
        /// Attempts to send that failed and were repeated.
        retries: AtomicU64,
        /// As in [`SinkProgress`].
        duplicates: AtomicU64,
        /// As in [`SinkProgress`].
        uncertain_duplicates: AtomicU64,
        /// Batches that wait in its queue or are being written.
        queue_batches: AtomicU64,
        /// Their memory, as far as it counts against the capacity.
        queue_bytes: AtomicU64,
        /// What the queue takes. Batches that are being written are beside it.
        queue_capacity: OnceLock<QueueCapacity>,
        /// It has shed events in the last 10 seconds.
        is_shedding: LastShed,
        /// It cannot write now; it keeps its events and retries.
        is_retrying: AtomicBool,
        /// Why its last write to a destination failed: every path or address, with the reason. `None`: none has failed since
        /// the last one that succeeded.
        fault: SinkFaults,
        /// Its reader has closed the stream, as `head` does.
        is_closed: AtomicBool,
        /// It failed, and is not started again (`on_failure = "fatal"`).
        is_dead: AtomicBool,
    }
}

impl SinkCounters {
    /// Counters that are all 0.
    pub fn new(name: Arc<str>) -> Arc<Self> {
        Arc::new(SinkCounters {
            counters: Counters::new(name.to_string()),
            own_queue: Mutex::default(),
            remote: Mutex::default(),
            files: Mutex::default(),
        })
    }

    /// The sink's name in the configuration.
    pub fn name(&self) -> &str {
        &self.counters.name
    }

    pub(super) fn add_events(&self, events: u64) {
        self.counters.events.fetch_add(events, Relaxed);
    }

    pub(super) fn add_written(&self, events: u64) {
        self.counters.written.fetch_add(events, Relaxed);
    }

    pub(super) fn add_shed(&self, events: u64) {
        self.counters.shed.fetch_add(events, Relaxed);
        let last_shed = &self.counters.is_shedding;
        last_shed.set(last_shed.created.elapsed());
    }

    pub(super) fn add_failed(&self, events: u64) {
        self.counters.failed.fetch_add(events, Relaxed);
    }

    /// Counts events that rules have left out.
    pub(super) fn add_filtered(&self, events: &[(Rule, u64)]) {
        if events.is_empty() {
            return;
        }
        let mut filtered = self.filtered();
        for (rule, events) in events {
            self.add_events(*events);
            *filtered.entry(*rule).or_default() += events;
        }
    }

    /// The sink has these rules: they are shown from now on.
    pub(super) fn has_rules(&self, rules: impl Iterator<Item = Rule>) {
        let mut filtered = self.filtered();
        for rule in rules {
            filtered.entry(rule).or_default();
        }
    }

    fn filtered(&self) -> MutexGuard<'_, BTreeMap<Rule, u64>> {
        self.counters.filtered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sink has taken events, and counts itself what becomes of them.
    pub(super) fn add_taken(&self, events: u64) {
        self.own_queue().taken += events;
    }

    /// Takes over what a sink that counts its events itself has counted since `last`, which is `None` at its first call. What is in
    /// its queue counts when it has opened that: another process may have it until then.
    pub(super) fn progress(&self, last: Option<SinkProgress>, now: SinkProgress, is_queue_open: bool) {
        let before = last.unwrap_or_default();
        let mut queue = self.own_queue();
        if queue.is_abandoned {
            return;
        }
        if last.is_none() {
            queue.left = self.counters.waiting.load(Relaxed);
        }
        self.counters.written.fetch_add(now.written - before.written, Relaxed);
        self.counters.failed.fetch_add(now.failed - before.failed, Relaxed);
        match now.shed - before.shed {
            0 => {}
            // Removed by an operator before this start.
            shed if now.resumed > before.resumed => drop(self.counters.shed.fetch_add(shed, Relaxed)),
            shed => self.add_shed(shed),
        }
        self.counters.retries.fetch_add(now.retries - before.retries, Relaxed);
        self.counters.duplicates.fetch_add(now.duplicates - before.duplicates, Relaxed);
        self.counters.uncertain_duplicates.fetch_add(now.uncertain_duplicates - before.uncertain_duplicates, Relaxed);
        let sum = |progress: SinkProgress| progress.written + progress.failed + progress.shed;
        queue.settled += sum(now) - sum(before);
        if is_queue_open {
            // What the sink before this one has left there has been counted.
            let resumed = (now.resumed - before.resumed).saturating_sub(std::mem::take(&mut queue.left));
            self.counters.resumed.fetch_add(resumed, Relaxed);
            queue.taken += resumed;
        }
        self.counters.waiting.store(now.waiting + queue.left, Relaxed);
    }

    /// The sink is not used again, and may not have ended: its thread may be busy for ever. What its spool has waits there for
    /// the next process, and everything else that it has not settled has failed.
    pub(super) fn abandon(&self) {
        let mut queue = self.own_queue();
        queue.is_abandoned = true;
        let unsettled = queue.taken.saturating_sub(queue.settled);
        let spooled = self.remote().map(|remote| remote.state()).filter(|state| state.is_spooled);
        let waiting = (queue.left + spooled.map_or(0, |state| state.events)).min(unsettled);
        self.counters.waiting.store(waiting, Relaxed);
        self.add_failed(unsettled - waiting);
    }

    fn own_queue(&self) -> MutexGuard<'_, OwnQueue> {
        self.own_queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_remote(&self, remote: Option<Arc<RemoteStatus>>) {
        *self.remote.lock().unwrap_or_else(PoisonError::into_inner) = remote;
    }

    /// What it does, if it sends requests over a network.
    pub fn remote(&self) -> Option<Arc<RemoteStatus>> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_files(&self, files: Option<Arc<FileStatus>>) {
        files.iter().for_each(|files| files.set_sink(self.counters.name.as_str().into()));
        *self.files.lock().unwrap_or_else(PoisonError::into_inner) = files;
    }

    /// Ends the pauses between attempts at its destination.
    pub(super) fn try_again(&self) {
        self.remote().iter().for_each(|remote| remote.try_again());
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.iter().for_each(|files| files.try_again());
    }

    /// What it did, if it writes files.
    pub(super) fn files(&self) -> Option<FileTotals> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.as_ref().map(|files| files.totals())
    }

    /// Sets the capacity of the sink's queue. To be called once.
    pub(super) fn set_queue_capacity(&self, capacity: QueueCapacity) {
        // Only a test gives two queues the same counters.
        let _ = self.counters.queue_capacity.set(capacity);
    }

    /// Counts a batch of this size as queued until the guard is dropped.
    pub(super) fn in_queue(self: &Arc<Self>, bytes: u64) -> InQueue {
        self.counters.queue_batches.fetch_add(1, Relaxed);
        self.counters.queue_bytes.fetch_add(bytes, Relaxed);
        InQueue { sink: self.clone(), bytes }
    }

    pub(super) fn set_retrying(&self, is_retrying: bool) {
        self.counters.is_retrying.store(is_retrying, Relaxed);
    }

    /// The sink has failed or cannot write, for this reason. It is not up until [`SinkCounters::clear_fault`].
    pub(super) fn set_fault(&self, fault: String) {
        self.faults().of_sink = Some(fault);
    }

    /// The sink has written something. Returns whether it had a fault.
    pub(super) fn clear_fault(&self) -> bool {
        self.faults().of_sink.take().is_some()
    }

    /// Whether the sink itself has a fault.
    pub(super) fn has_fault(&self) -> bool {
        self.faults().of_sink.is_some()
    }

    /// The sink's destinations that cannot be written, with the reasons.
    pub(super) fn set_destination_faults(&self, faults: Vec<String>) {
        self.faults().of_destinations = faults;
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.counters.fault.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_closed(&self) {
        self.counters.is_closed.store(true, Relaxed);
    }

    pub(super) fn set_dead(&self) {
        self.counters.is_dead.store(true, Relaxed);
    }

    /// The current values.
    pub fn totals(&self) -> SinkTotals {
        self.counters.value()
    }
}

/// What is known of the queue that a sink has itself.
#[derive(Debug, Default)]
struct OwnQueue {
    /// What a sink before the present one has left there, until the present one has opened it.
    left: u64,
    /// What it has taken, and what of that it has written, failed or shed.
    taken: u64,
    settled: u64,
    /// What the sink counts does not count any more.
    is_abandoned: bool,
}

/// Counts a batch as queued until dropped.
#[derive(Debug)]
pub(super) struct InQueue {
    sink: Arc<SinkCounters>,
    bytes: u64,
}

impl Drop for InQueue {
    fn drop(&mut self) {
        self.sink.counters.queue_batches.fetch_sub(1, Relaxed);
        self.sink.counters.queue_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn law(sink: &SinkCounters) -> [u64; 5] {
        let totals = sink.totals();
        assert_eq!(totals.in_flight(), 0, "{totals}");
        [totals.events, totals.resumed, totals.written, totals.shed, totals.waiting]
    }

    /// Another process has the spool when this one starts; the sink is replaced, and opens the spool later, each time.
    #[test]
    fn what_a_queue_has_counts_once_and_when_it_is_opened() {
        let sink = SinkCounters::new("taken over".into());
        let (closed, none) = (SinkProgress::default(), SinkProgress::default());
        sink.progress(None, closed, false);
        sink.add_events(7);
        sink.add_taken(7);
        let held = SinkProgress { waiting: 7, ..none };
        sink.progress(Some(closed), held, false);
        assert_eq!(law(&sink), [7, 0, 0, 0, 7]);
        let opened = SinkProgress { resumed: 100, shed: 10, waiting: 97, ..none };
        sink.progress(Some(held), opened, true);
        assert_eq!(law(&sink), [7, 100, 0, 10, 97]);
        let sent = SinkProgress { written: 60, waiting: 37, ..opened };
        sink.progress(Some(opened), sent, true);
        assert_eq!(law(&sink), [7, 100, 60, 10, 37]);
        // The next sink of this process.
        sink.progress(None, closed, false);
        assert_eq!(law(&sink), [7, 100, 60, 10, 37], "it waits, although the queue is not open");
        let resumed = SinkProgress { resumed: 37, waiting: 37, ..none };
        sink.progress(Some(closed), resumed, true);
        sink.progress(Some(resumed), SinkProgress { written: 37, waiting: 0, ..resumed }, true);
        assert_eq!(law(&sink), [7, 100, 97, 10, 0]);
    }

    /// Its thread is busy for ever, so it does not count what it has taken.
    #[test]
    fn what_an_abandoned_sink_has_not_settled_has_failed_unless_a_spool_has_it() {
        for is_spooled in [false, true] {
            let sink = SinkCounters::new("busy".into());
            let remote = Arc::new(RemoteStatus::default());
            remote.update(|state| (state.is_spooled, state.events) = (is_spooled, 30));
            sink.set_remote(Some(remote));
            sink.add_events(50);
            sink.add_taken(50);
            let last = SinkProgress { written: 10, waiting: 20, ..SinkProgress::default() };
            sink.progress(None, last, true);
            sink.abandon();
            let waiting = if is_spooled { 30 } else { 0 };
            assert_eq!(law(&sink), [50, 0, 10, 0, waiting]);
            assert_eq!(sink.totals().failed, 40 - waiting);
            sink.progress(Some(last), SinkProgress { written: 50, waiting: 0, ..last }, true);
            assert_eq!(law(&sink), [50, 0, 10, 0, waiting], "what it counts later does not count");
        }
    }

    #[test]
    fn a_sink_counts_as_shedding_for_ten_seconds_after_it_has_shed() {
        let last_shed = LastShed::default();
        let is_shedding = |millis| last_shed.is_recent(Duration::from_millis(millis));
        assert!(!is_shedding(0));
        last_shed.set(Duration::ZERO);
        assert!(is_shedding(0) && is_shedding(9_999) && !is_shedding(10_000));
        last_shed.set(Duration::from_secs(30));
        assert!(is_shedding(39_999) && !is_shedding(40_000));
    }
}
