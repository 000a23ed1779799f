//! The counters of listeners and sinks: what was received, what became of it, and whether the two agree.
//!
//! Two equations hold whenever nothing is in flight, and always after the daemon has stopped:
//! `bytes_in = bytes_decoded + bytes_ignored + bytes_lost + buffered` per listener, and `events + resumed =
//! written + shed + failed + filtered + waiting` per sink.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::info;

use tributary_event::{Batch, DataView, EventView, Kind, Reason};
use tributary_protocol::{Output, Protocol};
use tributary_sink::FileTotals;
use tributary_sink::{AckLevel, RemoteState};
use tributary_system::counters;
use tributary_system::counters::Counted as _;
use tributary_system::histogram::{DurationTotals, Durations};

use super::agent_registry::{Agent, AgentRegistry};
use super::loss_log::LossLog;
pub use super::sink_counters::{SinkCounters, SinkTotals};
pub use super::stream_counters::{StreamCounters, StreamTotals};

/// The running counters of one listener.
#[derive(Debug)]
pub struct ListenerCounters {
    counters: Counters,
    store: Mutex<Arc<StoreStatus>>,
    agent_registry: AgentRegistry,
    /// `None`: losses are not logged.
    loss_log: Option<LossLog>,
}

counters! {
    struct Counters(name: String, protocol: Protocol);
    /// The values of one listener's counters.
    pub struct ListenerTotals {
        /// Received, of HTTP bodies after decompression.
        bytes_in: AtomicU64,
        /// Decoded to events or to the state of a protocol.
        bytes_decoded: AtomicU64,
        /// Of requests that are answered and not kept, by endpoint.
        bytes_ignored: Mutex<BTreeMap<&'static str, u64>>,
        /// By reason, in the order of [`Reason::ALL`].
        bytes_lost: [AtomicU64; Reason::ALL.len()],
        /// By kind, in the order of [`Kind::ALL`].
        events: [AtomicU64; Kind::ALL.len()],
        /// Loss events by reason, in the order of [`Reason::ALL`].
        losses: [AtomicU64; Reason::ALL.len()],
        /// Events that are missing according to these loss events, as far as their number is known; by reason.
        events_lost: [AtomicU64; Reason::ALL.len()],
        /// Events that have arrived after a loss reported them as missing.
        events_found: AtomicU64,
        /// Accepted or opened.
        connections: AtomicU64,
        /// Open now.
        connections_open: AtomicU64,
        /// Connections refused before anything was read from them.
        refused: AtomicU64,
        /// Requests that were answered with a success, by the level of their events, in the order of [`AckLevel::ALL`].
        acknowledged: [AtomicU64; AckLevel::ALL.len()],
        /// The time from a complete request to that answer.
        acknowledgement_times: Durations,
        /// Responses to requests over HTTP, by their status. The statuses are those of this program, so their number is
        /// bounded.
        responses: Mutex<BTreeMap<u16, u64>>,
        /// Warnings about data that was decoded in spite of a peculiarity, by code.
        warnings: Mutex<BTreeMap<&'static str, u64>>,
        /// Requests that were answered before their events were delivered.
        early_answers: AtomicU64,
        /// Datagrams that the kernel has dropped.
        dropped_datagrams: AtomicU64,
        /// Events that were left out because this daemon, or another one, has delivered them before.
        repeats: [AtomicU64; 2],
        /// Of the stream that it receives from.
        stream: StreamCounters,
    }
}

/// Why a listener cannot use what it shares with other daemons.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedStoreError {
    /// What is wrong.
    pub why: String,
    /// It stays so until an operator corrects something.
    pub is_blocked: bool,
}

/// Whether what a listener shares with other daemons can be used. While a listener is replaced, the old one and the new one
/// have one each.
#[derive(Debug, Default)]
pub struct StoreStatus {
    fault: Mutex<Option<SharedStoreError>>,
}

impl StoreStatus {
    /// Notes why it cannot be used, or that it can.
    pub fn set_fault(&self, fault: Option<SharedStoreError>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }
}

impl ListenerCounters {
    /// Counters that are all 0.
    pub fn new(name: Arc<str>, protocol: Protocol) -> Arc<Self> {
        ListenerCounters::with(name, protocol, None)
    }

    fn with(name: Arc<str>, protocol: Protocol, loss_log: Option<LossLog>) -> Arc<Self> {
        Arc::new(ListenerCounters {
            counters: Counters::new(name.to_string(), protocol),
            store: Mutex::default(),
            agent_registry: AgentRegistry::default(),
            loss_log,
        })
    }

    /// The listener's name in the configuration.
    pub fn name(&self) -> &str {
        &self.counters.name
    }

    /// What it knows of the stream that it receives from.
    pub fn stream(&self) -> &StreamCounters {
        &self.counters.stream
    }

    /// The listener's protocol.
    pub fn protocol(&self) -> Protocol {
        self.counters.protocol
    }

    /// Counts bytes of a request to this endpoint that is answered and not kept.
    pub fn ignored(&self, endpoint: &'static str, bytes: u64) {
        add_all(&self.counters.bytes_ignored, &mut vec![(endpoint, bytes)]);
    }

    /// Counts datagrams that the kernel has dropped.
    pub fn dropped_datagrams(&self, count: u64) {
        self.counters.dropped_datagrams.fetch_add(count, Relaxed);
    }

    /// Counts a request that was answered before its events were delivered.
    pub fn answered_early(&self) {
        self.counters.early_answers.fetch_add(1, Relaxed);
    }

    /// Counts bytes that were read from a connection.
    pub fn received(&self, bytes: u64) {
        self.counters.bytes_in.fetch_add(bytes, Relaxed);
    }

    /// Takes over what a call has decided. In the daemon only `tributary_driver` calls this, which counts what is buffered.
    pub fn settle(&self, out: &mut Output) {
        self.counters.bytes_decoded.fetch_add(std::mem::take(&mut out.decoded_bytes), Relaxed);
        // What inflating adds was received too; what it takes away (little, of bodies that hardly compress) was not.
        self.counters.bytes_in.fetch_add(std::mem::take(&mut out.inflated_bytes) as u64, Relaxed);
        for (total, lost) in self.counters.bytes_lost.iter().zip(&mut out.lost_bytes) {
            if *lost > 0 {
                total.fetch_add(std::mem::take(lost), Relaxed);
            }
        }
        for (total, repeats) in self.counters.repeats.iter().zip(&mut out.repeats) {
            if *repeats > 0 {
                total.fetch_add(std::mem::take(repeats), Relaxed);
            }
        }
        self.counters.events_found.fetch_add(std::mem::take(&mut out.found_events), Relaxed);
        add_all(&self.counters.warnings, &mut out.warnings);
        add_all(&self.counters.bytes_ignored, &mut out.ignored_bytes);
        for line in out.log_lines.drain(..) {
            info!(listener = self.name(), "{line}");
        }
    }

    /// Shows the status of this store from now on. One that the listener has used before is not shown any longer.
    pub fn set_store(&self, store: Arc<StoreStatus>) {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = store;
    }

    /// Why what the listener shares with other daemons cannot be used. `None`: it can, or there is nothing.
    pub fn store_fault(&self) -> Option<SharedStoreError> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner).clone();
        store.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts bytes as lost that no session reports.
    pub fn lost(&self, reason: Reason, bytes: u64) {
        self.counters.bytes_lost[reason.index()].fetch_add(bytes, Relaxed);
    }

    /// Counts the events of a batch that is handed to the sinks.
    pub fn handed_over(&self, batch: &Batch) {
        for kind in Kind::ALL {
            self.counters.events[kind.index()].fetch_add(batch.count(kind), Relaxed);
        }
        if batch.count(Kind::Loss) > 0 {
            // Losses of other collectors, in messages of a stream, are theirs.
            let is_own = |event: &EventView<'_>| event.origin().protocol == self.counters.protocol.as_str();
            for event in batch.events().filter(is_own) {
                if let DataView::Loss(loss) = event.data() {
                    self.counters.losses[loss.reason.index()].fetch_add(1, Relaxed);
                    self.counters.events_lost[loss.reason.index()].fetch_add(loss.events.unwrap_or(0), Relaxed);
                    if let Some(log) = &self.loss_log {
                        log.log(event.origin(), loss.reason, loss.bytes, loss.detail.text());
                    }
                }
            }
        }
        self.agent_registry.record(batch);
    }

    /// The recently seen agents, in the order in which they were first seen.
    pub fn agents(&self) -> Vec<Agent> {
        self.agent_registry.agents()
    }

    /// Counts a new connection. It counts as open until the guard is dropped.
    pub fn connection(self: &Arc<Self>) -> OpenConnection {
        self.counters.connections.fetch_add(1, Relaxed);
        self.counters.connections_open.fetch_add(1, Relaxed);
        OpenConnection(self.clone())
    }

    /// Counts a connection that was refused before anything of it was read except a PROXY header.
    pub fn refused(&self) {
        self.counters.refused.fetch_add(1, Relaxed);
    }

    /// Counts a request that is answered with a success; `after` is the time since it was complete.
    pub fn acknowledged(&self, level: AckLevel, after: Duration) {
        self.counters.acknowledged[level as usize].fetch_add(1, Relaxed);
        self.counters.acknowledgement_times.add(after);
    }

    /// Counts a request over HTTP that is answered with this status.
    pub fn responded(&self, status: u16) {
        *self.counters.responses.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
    }

    /// The current values.
    pub fn totals(&self) -> ListenerTotals {
        self.counters.value()
    }
}

/// Counts a connection as open until dropped.
#[derive(Debug)]
pub struct OpenConnection(Arc<ListenerCounters>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.counters.connections_open.fetch_sub(1, Relaxed);
    }
}

/// The counters of every listener and sink, including those that a reload has removed.
#[derive(Clone, Debug, Default)]
pub struct Accounting(Arc<Mutex<AllCounters>>);

#[derive(Debug, Default)]
struct AllCounters {
    listeners: Vec<Arc<ListenerCounters>>,
    sinks: Vec<Arc<SinkCounters>>,
}

impl Accounting {
    /// Accounting of these counters.
    pub fn new(listeners: Vec<Arc<ListenerCounters>>, sinks: Vec<Arc<SinkCounters>>) -> Self {
        Accounting(Arc::new(Mutex::new(AllCounters { listeners, sinks })))
    }

    /// The counters of the listener with this name and protocol: those that it had before, or new ones, which
    /// [`Accounting::enter`] adds when the listener serves.
    pub fn listener(&self, name: &str, protocol: Protocol) -> Arc<ListenerCounters> {
        let is_it = |counters: &&Arc<ListenerCounters>| counters.name() == name && counters.protocol() == protocol;
        let known = self.counters().listeners.iter().find(is_it).cloned();
        known.unwrap_or_else(|| ListenerCounters::with(name.into(), protocol, Some(LossLog::default())))
    }

    /// Adds the counters of a listener that serves, unless they are there already.
    pub fn enter(&self, listener: &Arc<ListenerCounters>) {
        let mut counters = self.counters();
        if !counters.listeners.iter().any(|known| Arc::ptr_eq(known, listener)) {
            counters.listeners.push(listener.clone());
        }
    }

    /// The counters of every listener, including removed ones.
    pub fn listeners(&self) -> Vec<Arc<ListenerCounters>> {
        self.counters().listeners.clone()
    }

    /// Replaces the sinks' counters.
    pub fn set_sinks(&self, sinks: &[Arc<SinkCounters>]) {
        self.counters().sinks = sinks.to_vec();
    }

    /// The current values.
    pub fn totals(&self) -> Totals {
        let counters = self.counters();
        Totals {
            listeners: counters.listeners.iter().map(|counters| counters.totals()).collect(),
            sinks: counters.sinks.iter().map(|counters| counters.totals()).collect(),
        }
    }

    /// The present state of each sink that sends requests over a network, and how long its attempts took.
    pub fn remotes(&self) -> Vec<(String, RemoteState, DurationTotals)> {
        let sinks = self.counters().sinks.clone();
        let state = |sink: &Arc<SinkCounters>| {
            let remote = sink.remote()?;
            Some((sink.name().to_owned(), remote.state(), remote.attempts()))
        };
        sinks.iter().filter_map(state).collect()
    }

    /// The counters of each sink that writes files.
    pub fn files(&self) -> Vec<(String, FileTotals)> {
        let sinks = self.counters().sinks.clone();
        sinks.iter().filter_map(|sink| Some((sink.name().to_owned(), sink.files()?))).collect()
    }

    /// How many connections are open, of all listeners.
    pub fn connections_open(&self) -> u64 {
        self.counters().listeners.iter().map(|counters| counters.counters.connections_open.load(Relaxed)).sum()
    }

    fn counters(&self) -> MutexGuard<'_, AllCounters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The values of all counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Totals {
    pub listeners: Vec<ListenerTotals>,
    pub sinks: Vec<SinkTotals>,
}

/// How much may wait in the queue of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct QueueCapacity {
    pub batches: u64,
    pub bytes: u64,
}

impl Totals {
    /// Whether both equations hold with nothing in flight, as they must after a stop.
    pub fn are_balanced(&self) -> bool {
        self.listeners.iter().all(|listener| listener.buffered() == 0)
            && self.sinks.iter().all(|sink| sink.in_flight() == 0)
    }

    /// The process ends although some tasks have not: what is still buffered or in flight will not be written, so it counts
    /// as lost and failed.
    pub fn give_up(&mut self) {
        for listener in &mut self.listeners {
            let buffered = u64::try_from(listener.buffered()).unwrap_or(0);
            listener.bytes_lost[Reason::Failed.index()] += buffered;
        }
        for sink in &mut self.sinks {
            sink.failed += u64::try_from(sink.in_flight()).unwrap_or(0);
        }
    }

    /// Decoded events that could not be written to a sink whose reader has not closed it.
    pub fn failed(&self) -> u64 {
        self.sinks.iter().filter(|sink| !sink.is_closed).map(|sink| sink.failed).sum()
    }
}

fn add_all(totals: &Mutex<BTreeMap<&'static str, u64>>, counts: &mut Vec<(&'static str, u64)>) {
    if !counts.is_empty() {
        let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
        for (of, count) in counts.drain(..) {
            *totals.entry(of).or_default() += count;
        }
    }
}

impl ListenerTotals {
    /// Bytes lost for any reason.
    pub fn lost(&self) -> u64 {
        self.bytes_lost.iter().sum()
    }

    /// Bytes received, and neither decoded nor lost yet. A negative value is a bug, and is shown too.
    pub fn buffered(&self) -> i128 {
        i128::from(self.bytes_in)
            - i128::from(self.bytes_decoded)
            - i128::from(self.ignored())
            - i128::from(self.lost())
    }

    /// Bytes of requests that were answered and not kept.
    pub fn ignored(&self) -> u64 {
        self.bytes_ignored.values().sum()
    }

    /// Events that are missing from the output, as far as loss events know their number; by reason. Repeats are not
    /// missing, and neither are events that were written with unresolved ids.
    pub fn missing(&self) -> [u64; Reason::ALL.len()] {
        Reason::ALL.map(|reason| match reason {
            Reason::Duplicate | Reason::Unresolved => 0,
            Reason::Gap => self.events_lost[reason.index()].saturating_sub(self.events_found),
            reason => self.events_lost[reason.index()],
        })
    }

    /// Events of one kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.events[kind.index()]
    }

    /// Events of every kind.
    pub fn events(&self) -> u64 {
        self.events.iter().sum()
    }
}

impl SinkTotals {
    /// Events left out by the sink's rules.
    pub fn filtered(&self) -> u64 {
        self.filtered.values().sum()
    }

    /// Events that are queued or being written. A negative value is a bug, and is shown too.
    pub fn in_flight(&self) -> i128 {
        let &SinkTotals { events, resumed, written, shed, failed, waiting, .. } = self;
        i128::from(events) + i128::from(resumed)
            - [written, shed, failed, self.filtered(), waiting].into_iter().map(i128::from).sum::<i128>()
    }
}

impl fmt::Display for SinkTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SinkTotals { name, events, written, shed, failed, resumed, waiting, .. } = self;
        write!(f, "sink {name}: {events} events")?;
        if *resumed > 0 {
            write!(f, " + {resumed} resumed")?;
        }
        write!(f, " = {written} written + {shed} shed + {failed} failed")?;
        if !self.filtered.is_empty() {
            write!(f, " + {} filtered", self.filtered())?;
        }
        if *waiting > 0 {
            write!(f, " + {waiting} waiting")?;
        }
        if self.in_flight() != 0 {
            write!(f, " + {} in flight", self.in_flight())?;
        }
        if self.is_closed {
            f.write_str("; its reader has closed it")?;
        }
        if self.is_dead {
            f.write_str("; it failed and is not started again")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_event::{BatchBuilder, Header, Loss, Origin, Position, UnixNanos, semconv};

    #[test]
    fn events_that_losses_report_as_missing_are_counted_by_reason() {
        let counters = ListenerCounters::new("java".into(), Protocol::Bytefrog);
        let origin = Origin::new("bytefrog", "java".into(), "peer".into(), 1);
        let mut builder = BatchBuilder::new(origin.into());
        let losses =
            [(Reason::Gap, Some(1960)), (Reason::Gap, Some(3)), (Reason::Gap, None), (Reason::Duplicate, Some(5))];
        for (reason, events) in losses {
            let header = Header::observed_at(semconv::LOSS, UnixNanos(1), Position::default());
            builder.loss(header, Loss { reason, bytes: 0, events, detail: "", excerpt: &[] });
        }
        counters.handed_over(&builder.take());
        let totals = counters.totals();
        let gap = Reason::Gap.index();
        assert_eq!((totals.losses[gap], totals.events_lost[gap]), (3, 1963));
        assert_eq!(totals.events_lost[Reason::Duplicate.index()], 5);
        let missing = Reason::ALL.map(|reason| if reason == Reason::Gap { 1963 } else { 0 });
        assert_eq!((totals.events(), totals.count(Kind::Loss), totals.missing()), (4, 4, missing));
    }
}
