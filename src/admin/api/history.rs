//! The counters of the last quarter of an hour, for sparklines, and to show how much of the traffic the view has.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tributary_event::Kind;
use tributary_pipeline::accounting::{ListenerTotals, SinkTotals, Totals};
use tributary_protocol::Protocol;
use tributary_system::wall_clock;

/// The time between two samples.
pub(super) const STEP_MS: u64 = 5_000;
/// The samples that are kept.
pub(super) const POINTS: usize = 180;

/// Samples of the counters, the oldest first.
#[derive(Debug)]
pub(super) struct History(Mutex<VecDeque<CounterSample>>);

/// The counters at one moment.
#[derive(Clone, Debug)]
pub(super) struct CounterSample {
    pub(super) at_ms: u64,
    listeners: Vec<OfListener>,
    sinks: Vec<OfSink>,
}

/// Counters of a listener.
#[derive(Clone, Debug, Default)]
pub(super) struct OfListener {
    name: String,
    protocol: Option<Protocol>,
    pub(super) bytes: u64,
    pub(super) losses: u64,
    pub(super) bytes_lost: u64,
    pub(super) connections_open: u64,
    pub(super) events: [u64; Kind::ALL.len()],
}

/// Counters of a sink.
#[derive(Clone, Debug, Default)]
pub(super) struct OfSink {
    name: String,
    pub(super) written: u64,
    pub(super) failed: u64,
}

impl CounterSample {
    /// The present counters.
    pub(super) fn new(totals: &Totals) -> CounterSample {
        let listener = |listener: &ListenerTotals| OfListener {
            name: listener.name.clone(),
            protocol: Some(listener.protocol),
            bytes: listener.bytes_in,
            losses: listener.losses.iter().sum(),
            bytes_lost: listener.lost(),
            connections_open: listener.connections_open,
            events: listener.events,
        };
        let sink = |sink: &SinkTotals| OfSink {
            name: sink.name.clone(),
            written: sink.written,
            failed: sink.failed + sink.shed,
        };
        CounterSample {
            at_ms: now_ms(),
            listeners: totals.listeners.iter().map(listener).collect(),
            sinks: totals.sinks.iter().map(sink).collect(),
        }
    }

    /// The counters of a listener; all 0 if there was none.
    pub(super) fn listener(&self, name: &str) -> OfListener {
        self.listeners.iter().find(|listener| listener.name == name).cloned().unwrap_or_default()
    }

    /// The counters of a sink; all 0 if there was none.
    pub(super) fn sink(&self, name: &str) -> OfSink {
        self.sinks.iter().find(|sink| sink.name == name).cloned().unwrap_or_default()
    }

    /// The events of these kinds of the listeners for which `is_wanted`.
    pub(super) fn events(&self, kinds: &[Kind], is_wanted: impl Fn(&str, Protocol) -> bool) -> u64 {
        let listeners = self.listeners.iter();
        let wanted = listeners.filter(|of| of.protocol.is_some_and(|protocol| is_wanted(&of.name, protocol)));
        wanted.flat_map(|of| kinds.iter().map(|kind| of.events[kind.index()])).sum()
    }
}

impl History {
    pub(super) fn new() -> History {
        History(Mutex::default())
    }

    /// Adds the present counters.
    pub(super) fn add(&self, totals: &Totals) {
        let mut samples = self.samples();
        if samples.len() >= POINTS {
            samples.pop_front();
        }
        samples.push_back(CounterSample::new(totals));
    }

    /// All samples, and the present counters at the end.
    pub(super) fn with_present(&self, totals: &Totals) -> Vec<CounterSample> {
        let mut samples: Vec<CounterSample> = self.samples().iter().cloned().collect();
        samples.push(CounterSample::new(totals));
        samples
    }

    fn samples(&self) -> MutexGuard<'_, VecDeque<CounterSample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The increments of a counter from sample to sample.
pub(super) fn increments(samples: &[CounterSample], counter: impl Fn(&CounterSample) -> u64) -> Vec<u64> {
    let values: Vec<u64> = samples.iter().map(counter).collect();
    values.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect()
}

/// The increase of a counter per second, over the last 10 to 15 seconds.
pub(super) fn rate(samples: &[CounterSample], counter: impl Fn(&CounterSample) -> u64) -> f64 {
    let (Some(last), Some(first)) = (samples.last(), samples.get(samples.len().saturating_sub(4))) else { return 0.0 };
    let seconds = last.at_ms.saturating_sub(first.at_ms) as f64 / 1000.0;
    if seconds < 0.001 { 0.0 } else { counter(last).saturating_sub(counter(first)) as f64 / seconds }
}

/// The present in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    wall_clock::now().0 / 1_000_000
}
