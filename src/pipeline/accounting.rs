//! The counters: what came in, what became of it, and whether the two agree.
//!
//! Two laws hold at every moment that nothing is in motion, and always once the daemon has stopped:
//! `bytes_in = bytes_decoded + bytes_lost + buffered` per listener, and `events = written + shed + failed` per sink.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::{Batch, Kind, Reason};
use crate::protocol::{Output, Protocol};

use super::agent_registry::{Agent, AgentRegistry};

/// The running counters of one listener.
#[derive(Debug)]
pub struct ListenerCounters {
    name: Arc<str>,
    protocol: Protocol,
    bytes_in: AtomicU64,
    bytes_decoded: AtomicU64,
    bytes_lost: [AtomicU64; Reason::ALL.len()],
    events: [AtomicU64; Kind::ALL.len()],
    connections: AtomicU64,
    connections_open: AtomicU64,
    refused: AtomicU64,
    warnings: Mutex<BTreeMap<&'static str, u64>>,
    agent_registry: AgentRegistry,
}

impl ListenerCounters {
    /// Empty counters.
    pub fn new(name: Arc<str>, protocol: Protocol) -> Arc<Self> {
        Arc::new(ListenerCounters {
            name,
            protocol,
            bytes_in: AtomicU64::new(0),
            bytes_decoded: AtomicU64::new(0),
            bytes_lost: Default::default(),
            events: Default::default(),
            connections: AtomicU64::new(0),
            connections_open: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            warnings: Mutex::default(),
            agent_registry: AgentRegistry::default(),
        })
    }

    /// The listener's name in configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is spoken on it.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Bytes came off a connection.
    pub fn received(&self, bytes: u64) {
        self.bytes_in.fetch_add(bytes, Relaxed);
    }

    /// Takes over what a call has decided. In the daemon only `crate::driver` calls this, which counts what is buffered.
    pub fn settle(&self, out: &mut Output) {
        self.bytes_decoded.fetch_add(std::mem::take(&mut out.decoded_bytes), Relaxed);
        // What inflating adds was received too; what it takes away (little, of bodies that hardly compress) was not.
        self.bytes_in.fetch_add(std::mem::take(&mut out.inflated_bytes) as u64, Relaxed);
        for (total, lost) in self.bytes_lost.iter().zip(&mut out.lost_bytes) {
            if *lost > 0 {
                total.fetch_add(std::mem::take(lost), Relaxed);
            }
        }
        if !out.warnings.is_empty() {
            let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
            for (code, count) in out.warnings.drain(..) {
                *warnings.entry(code).or_default() += count;
            }
        }
    }

    /// Bytes that no session will decide any more, without a loss event of the session's own.
    pub fn lost(&self, reason: Reason, bytes: u64) {
        self.bytes_lost[reason.index()].fetch_add(bytes, Relaxed);
    }

    /// Events are about to be handed to the sinks.
    pub fn handed_over(&self, batch: &Batch) {
        for kind in Kind::ALL {
            self.events[kind.index()].fetch_add(batch.count(kind), Relaxed);
        }
        self.agent_registry.record(batch);
    }

    /// Who has been record, in the order in which they were record first.
    pub fn agents(&self) -> Vec<Agent> {
        self.agent_registry.agents()
    }

    /// A connection was opened; the guard counts it as open until dropped.
    pub fn connection(self: &Arc<Self>) -> OpenConnection {
        self.connections.fetch_add(1, Relaxed);
        self.connections_open.fetch_add(1, Relaxed);
        OpenConnection(self.clone())
    }

    /// A connection was turned away before anything of it was read but a PROXY header.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// The figures now.
    pub fn totals(&self) -> ListenerTotals {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        ListenerTotals {
            name: self.name.to_string(),
            protocol: self.protocol,
            bytes_in: read(&self.bytes_in),
            bytes_decoded: read(&self.bytes_decoded),
            bytes_lost: Reason::ALL.map(|reason| read(&self.bytes_lost[reason.index()])),
            events: Kind::ALL.map(|kind| read(&self.events[kind.index()])),
            connections: read(&self.connections),
            connections_open: read(&self.connections_open),
            refused: read(&self.refused),
            warnings: self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// Counts a batch as in a queue until dropped.
#[derive(Debug)]
pub(super) struct InQueue(Arc<SinkCounters>);

impl Drop for InQueue {
    fn drop(&mut self) {
        self.0.queue_batches.fetch_sub(1, Relaxed);
    }
}

/// Counts a connection as open until dropped.
#[derive(Debug)]
pub struct OpenConnection(Arc<ListenerCounters>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections_open.fetch_sub(1, Relaxed);
    }
}

/// The running counters of one sink.
#[derive(Debug)]
pub struct SinkCounters {
    name: Arc<str>,
    events: AtomicU64,
    written: AtomicU64,
    shed: AtomicU64,
    failed: AtomicU64,
    queue_batches: AtomicU64,
    holding: AtomicBool,
    closed: AtomicBool,
    dead: AtomicBool,
}

impl SinkCounters {
    /// Empty counters.
    pub fn new(name: Arc<str>) -> Arc<Self> {
        Arc::new(SinkCounters {
            name,
            events: AtomicU64::new(0),
            written: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            queue_batches: AtomicU64::new(0),
            holding: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            dead: AtomicBool::new(false),
        })
    }

    /// The sink's name in configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn add_events(&self, events: u64) {
        self.events.fetch_add(events, Relaxed);
    }

    pub(super) fn add_written(&self, events: u64) {
        self.written.fetch_add(events, Relaxed);
    }

    pub(super) fn add_shed(&self, events: u64) {
        self.shed.fetch_add(events, Relaxed);
    }

    pub(super) fn add_failed(&self, events: u64) {
        self.failed.fetch_add(events, Relaxed);
    }

    /// A batch enters the queue; it leaves when the guard is dropped.
    pub(super) fn in_queue(self: &Arc<Self>) -> InQueue {
        self.queue_batches.fetch_add(1, Relaxed);
        InQueue(self.clone())
    }

    pub(super) fn set_holding(&self, holding: bool) {
        self.holding.store(holding, Relaxed);
    }

    pub(super) fn set_closed(&self) {
        self.closed.store(true, Relaxed);
    }

    pub(super) fn set_dead(&self) {
        self.dead.store(true, Relaxed);
    }

    /// The figures now.
    pub fn totals(&self) -> SinkTotals {
        SinkTotals {
            name: self.name.to_string(),
            events: self.events.load(Relaxed),
            written: self.written.load(Relaxed),
            shed: self.shed.load(Relaxed),
            failed: self.failed.load(Relaxed),
            queue_batches: self.queue_batches.load(Relaxed),
            holding: self.holding.load(Relaxed),
            closed: self.closed.load(Relaxed),
            dead: self.dead.load(Relaxed),
        }
    }
}

/// Every listener's and every sink's counters, of those too that a reload has taken away.
#[derive(Clone, Debug, Default)]
pub struct Accounting(Arc<Mutex<AllCounters>>);

#[derive(Debug, Default)]
struct AllCounters {
    listeners: Vec<Arc<ListenerCounters>>,
    sinks: Vec<Arc<SinkCounters>>,
}

impl Accounting {
    /// A accounting of these counters.
    pub fn new(listeners: Vec<Arc<ListenerCounters>>, sinks: Vec<Arc<SinkCounters>>) -> Self {
        Accounting(Arc::new(Mutex::new(AllCounters { listeners, sinks })))
    }

    /// The counters of a listener of this name that speaks this protocol: those that it had before, or new ones, to be
    /// entered when it serves.
    pub fn listener(&self, name: &str, protocol: Protocol) -> Arc<ListenerCounters> {
        let is_it = |counters: &&Arc<ListenerCounters>| &*counters.name == name && counters.protocol == protocol;
        let known = self.counters().listeners.iter().find(is_it).cloned();
        known.unwrap_or_else(|| ListenerCounters::new(name.into(), protocol))
    }

    /// These are counters of a listener that serves. Those that are known already stay where they are.
    pub fn enter(&self, listener: &Arc<ListenerCounters>) {
        let mut counters = self.counters();
        if !counters.listeners.iter().any(|known| Arc::ptr_eq(known, listener)) {
            counters.listeners.push(listener.clone());
        }
    }

    /// The counters of every listener that there is or was.
    pub fn listeners(&self) -> Vec<Arc<ListenerCounters>> {
        self.counters().listeners.clone()
    }

    /// These are the sinks' counters now.
    pub fn set_sinks(&self, sinks: &[Arc<SinkCounters>]) {
        self.counters().sinks = sinks.to_vec();
    }

    /// The figures now.
    pub fn totals(&self) -> Totals {
        let counters = self.counters();
        Totals {
            listeners: counters.listeners.iter().map(|counters| counters.totals()).collect(),
            sinks: counters.sinks.iter().map(|counters| counters.totals()).collect(),
        }
    }

    fn counters(&self) -> MutexGuard<'_, AllCounters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reading of the whole accounting. `Display` is what the daemon prints when it stops: a line per listener and sink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Totals {
    pub listeners: Vec<ListenerTotals>,
    pub sinks: Vec<SinkTotals>,
}

/// One listener's figures.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ListenerTotals {
    pub name: String,
    pub protocol: Protocol,
    pub bytes_in: u64,
    pub bytes_decoded: u64,
    /// By reason, in the order of [`Reason::ALL`].
    pub bytes_lost: [u64; Reason::ALL.len()],
    /// By kind, in the order of [`Kind::ALL`].
    pub events: [u64; Kind::ALL.len()],
    pub connections: u64,
    pub connections_open: u64,
    /// Connections turned away before anything was read from them.
    pub refused: u64,
    /// Oddities that are no loss, by code.
    pub warnings: BTreeMap<&'static str, u64>,
}

/// One sink's figures, in events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SinkTotals {
    pub name: String,
    pub events: u64,
    pub written: u64,
    pub shed: u64,
    pub failed: u64,
    /// Batches that wait in its queue or are being written.
    pub queue_batches: u64,
    /// It cannot write just now, and holds what it has.
    pub holding: bool,
    /// Its reader has left, as `head` does.
    pub closed: bool,
    /// It failed, and its configuration says that it may not (`on_failure = "fatal"`).
    pub dead: bool,
}

impl Totals {
    /// Whether both laws hold with nothing in motion: what a stopped daemon must answer.
    pub fn are_balanced(&self) -> bool {
        self.listeners.iter().all(|listener| listener.buffered() == 0)
            && self.sinks.iter().all(|sink| sink.in_flight() == 0)
    }

    /// Events that were decoded and could not be given to a sink whose reader is still there.
    pub fn failed(&self) -> u64 {
        self.sinks.iter().filter(|sink| !sink.closed).map(|sink| sink.failed).sum()
    }
}

impl ListenerTotals {
    /// Bytes lost for any reason.
    pub fn lost(&self) -> u64 {
        self.bytes_lost.iter().sum()
    }

    /// Bytes received and not yet decided. Negative, which would be a bug, shows too.
    pub fn buffered(&self) -> i128 {
        i128::from(self.bytes_in) - i128::from(self.bytes_decoded) - i128::from(self.lost())
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
    /// Events on their way. Negative, which would be a bug, shows too.
    pub fn in_flight(&self) -> i128 {
        i128::from(self.events) - i128::from(self.written) - i128::from(self.shed) - i128::from(self.failed)
    }
}

impl fmt::Display for ListenerTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "listener {} ({}): {} connection{}, {} bytes in = {} decoded + {} lost",
            self.name,
            self.protocol,
            self.connections,
            if self.connections == 1 { "" } else { "s" },
            self.bytes_in,
            self.bytes_decoded,
            self.lost()
        )?;
        if self.buffered() != 0 {
            write!(f, " + {} buffered", self.buffered())?;
        }
        write!(f, "; {} events", self.events())?;
        list(f, Kind::ALL.iter().map(|kind| (kind.as_str(), self.count(*kind))))?;
        let reasons = Reason::ALL.iter().map(|reason| (reason.as_str(), self.bytes_lost[reason.index()]));
        if self.lost() > 0 {
            f.write_str("; bytes lost")?;
            list(f, reasons)?;
        }
        if self.refused > 0 {
            write!(f, "; {} connections refused", self.refused)?;
        }
        if !self.warnings.is_empty() {
            f.write_str("; warnings")?;
            list(f, self.warnings.iter().map(|(code, count)| (*code, *count)))?;
        }
        Ok(())
    }
}

impl fmt::Display for SinkTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SinkTotals { name, events, written, shed, failed, .. } = self;
        write!(f, "sink {name}: {events} events = {written} written + {shed} shed + {failed} failed")?;
        if self.in_flight() != 0 {
            write!(f, " + {} in motion", self.in_flight())?;
        }
        if self.closed {
            f.write_str("; its reader left")?;
        }
        if self.dead {
            f.write_str("; it failed for good")?;
        }
        Ok(())
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.listeners.iter().try_for_each(|listener| writeln!(f, "{listener}"))?;
        self.sinks.iter().try_for_each(|sink| writeln!(f, "{sink}"))
    }
}

/// ` (name 1, name 2)` of the counts that are not 0.
fn list<'a>(f: &mut fmt::Formatter<'_>, counts: impl Iterator<Item = (&'a str, u64)>) -> fmt::Result {
    let mut separator = " (";
    for (name, count) in counts.filter(|(_, count)| *count > 0) {
        write!(f, "{separator}{name} {count}")?;
        separator = ", ";
    }
    if separator == ", " { f.write_str(")") } else { Ok(()) }
}
