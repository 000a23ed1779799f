//! Events as requests of the OpenTelemetry Protocol (OTLP 1.10), written from views of events directly into bytes.
//!
//! `docs/event-model.md` and `docs/sinks.md` describe the mapping. Numbers of fields are those of
//! <https://github.com/open-telemetry/opentelemetry-proto>.

mod attributes;
mod body;
mod dictionary;
mod heap;
mod logs;
mod metrics;
mod points;
mod profiles;
mod request;
mod resource;
mod runs;
mod scopes;
mod traces;
mod value;

use std::sync::Arc;

use attributes::{Caches, OriginCache};
pub use body::Body;
use heap::Heaps;
use profiles::Profiles;
use request::{Groups, RECORDS};
use runs::RunCache;
use scopes::{ScopeKey, Scopes};
use tributary_event::{DataView, EventView, KeyView, Kind, Origin, semconv};

/// A signal of OpenTelemetry. Each is exported by requests of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Signal {
    /// Logs and losses.
    Logs,
    /// Spans.
    Traces,
    /// Metrics.
    Metrics,
    /// Samples.
    Profiles,
}

impl Signal {
    /// Every signal, in the order of [`Signal::index`].
    pub const ALL: [Signal; 4] = [Signal::Logs, Signal::Traces, Signal::Metrics, Signal::Profiles];

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Signal::Logs => "logs",
            Signal::Traces => "traces",
            Signal::Metrics => "metrics",
            Signal::Profiles => "profiles",
        }
    }

    /// The path of its requests over HTTP, behind that of the endpoint.
    pub fn path(self) -> &'static str {
        match self {
            Signal::Logs => "/v1/logs",
            Signal::Traces => "/v1/traces",
            Signal::Metrics => "/v1/metrics",
            Signal::Profiles => "/v1development/profiles",
        }
    }

    /// Position in [`Signal::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The signal of events of a kind.
    pub fn of(kind: Kind) -> Signal {
        match kind {
            Kind::Log | Kind::Loss => Signal::Logs,
            Kind::Span => Signal::Traces,
            Kind::Metric => Signal::Metrics,
            Kind::Sample => Signal::Profiles,
        }
    }
}

/// A complete request.
#[derive(Debug)]
pub struct ExportRequest {
    /// Its signal.
    pub signal: Signal,
    /// The message, after as many bytes as were asked for.
    pub body: Body,
    /// The number of events that are counted.
    pub events: u32,
    /// The origin of its first event.
    pub origin: Arc<Origin>,
}

/// Makes requests of events.
///
/// The log of an object of a heap dump is also a part of a profile, which has a request of its own: without events that count,
/// and open until its dump ends, or [`Encoder::end_heap`] is called.
#[derive(Debug)]
pub struct Encoder {
    /// A request has at most this many bytes.
    max_request_bytes: usize,
    /// Free bytes in front of each message.
    head_bytes: usize,
    /// Events carry where they came from.
    has_origin: bool,
    caches: [Caches; 4],
    scopes: Scopes,
    pending: [Option<PendingExport>; 4],
    /// Length of the last request of each signal, in bytes.
    last_len: [usize; 4],
    /// Whether heap dumps become profiles.
    has_heaps: bool,
    /// The listeners whose heap dumps come as samples, too.
    summed_heaps: Vec<String>,
    /// The heap dumps that are not complete.
    heap: Option<PendingHeap>,
    complete: Vec<ExportRequest>,
}

#[derive(Debug)]
struct PendingExport {
    groups: Groups,
    profiles: Option<Profiles>,
    events: u32,
    origin: Arc<Origin>,
}

/// Heap dumps.
#[derive(Debug)]
struct PendingHeap {
    groups: Groups,
    heaps: Heaps,
    origin: Arc<Origin>,
}

impl Encoder {
    /// An encoder of requests with at most `max_request_bytes`. `has_origin`: events carry where they came from. Each
    /// request begins with `head_bytes` zeros.
    pub fn new(max_request_bytes: usize, has_origin: bool, head_bytes: usize) -> Encoder {
        let origins = [OriginCache::full(), OriginCache::full(), OriginCache::short(), OriginCache::full()];
        Encoder {
            max_request_bytes,
            head_bytes,
            has_origin,
            caches: origins.map(|origin| Caches {
                origin: has_origin.then_some(origin),
                runs: RunCache::default(),
                is_record: false,
            }),
            scopes: Scopes::default(),
            pending: [const { None }; 4],
            last_len: [0; 4],
            has_heaps: true,
            summed_heaps: Vec::new(),
            heap: None,
            complete: Vec::new(),
        }
    }

    /// Sets whether the logs of heap dumps also become profiles, but for those of the listeners `summed_heaps`. Default yes, of
    /// all listeners.
    pub fn set_heap_profiles(&mut self, has_heaps: bool, summed_heaps: Vec<String>) {
        (self.has_heaps, self.summed_heaps) = (has_heaps, summed_heaps);
    }

    /// To be called before the events of each batch: what they share is encoded once.
    pub fn begin_batch(&mut self) {
        self.caches.iter_mut().for_each(|caches| caches.runs.clear());
        self.scopes.begin_batch();
    }

    /// Adds an event to the request of its signal. Returns `false` if it is larger than a request may be.
    pub fn push(&mut self, event: EventView<'_>, is_counted: bool) -> bool {
        let signal = Signal::of(event.kind());
        if !self.append(signal, event, is_counted) {
            // The request has no space for it.
            self.end_request(signal);
            if !self.append(signal, event, is_counted) {
                self.pending[signal.index()] = None;
                return false;
            }
        }
        if let (DataView::Log { .. }, KeyView::Name(name)) = (event.data(), event.name_key())
            && self.has_heaps
            && !self.summed_heaps.iter().any(|listener| **listener == *event.origin().listener)
        {
            match name {
                semconv::RBKIT_HEAP_OBJECT => self.push_object(event),
                semconv::RBKIT_HEAP_DUMP => self.end_heap(),
                _ => {}
            }
        }
        true
    }

    /// Adds an object to the profile of its dump. One that is larger than a request may be is only a log.
    fn push_object(&mut self, event: EventView<'_>) {
        for _ in 0..2 {
            let head_bytes = self.head_bytes;
            let PendingHeap { groups, heaps, .. } = self.heap.get_or_insert_with(|| PendingHeap {
                groups: Groups::new(head_bytes, 0),
                heaps: Heaps::default(),
                origin: event.origin().clone(),
            });
            let scope = groups.scope_of(event, ScopeKey::Own);
            let limit = self.max_request_bytes.saturating_sub(groups.len());
            if heaps.push(scope, event, self.has_origin, limit) {
                return;
            }
            self.end_heap();
        }
    }

    /// Adds an event to a request. Returns `false` if that would be too long.
    fn append(&mut self, signal: Signal, event: EventView<'_>, is_counted: bool) -> bool {
        let (head_bytes, expected) = (self.head_bytes, self.last_len[signal.index()]);
        let PendingExport { groups, profiles, events, .. } =
            self.pending[signal.index()].get_or_insert_with(|| PendingExport {
                groups: Groups::new(head_bytes, expected),
                profiles: (signal == Signal::Profiles).then(Profiles::default),
                events: 0,
                origin: event.origin().clone(),
            });
        let (caches, limit) = (&mut self.caches[signal.index()], self.max_request_bytes);
        let scope = self.scopes.of(event);
        caches.is_record = scope != ScopeKey::Own;
        let scope = groups.scope_of(event, scope);
        let is_added = match event.data() {
            DataView::Log { severity_number, context, body, .. } => groups.push(scope, limit, |out| {
                logs::push_log(out, RECORDS, event, (severity_number, context, body), caches);
            }),
            DataView::Loss(loss) => groups.push(scope, limit, |out| logs::push_loss(out, RECORDS, event, loss, caches)),
            DataView::Span(span) => {
                groups.push(scope, limit, |out| traces::push_span(out, RECORDS, event, span, caches))
            }
            DataView::Metric(data) => {
                let metric = groups.metric_of(scope, event, data);
                groups.push_point(scope, metric, limit, |out| points::push_point(out, event, data, caches))
            }
            DataView::Sample(sample) => profiles.as_mut().is_some_and(|profiles| {
                profiles.push(scope, event, sample, self.has_origin, limit.saturating_sub(groups.len()))
            }),
        };
        *events += u32::from(is_added && is_counted);
        is_added
    }

    fn end_request(&mut self, signal: Signal) {
        let Some(PendingExport { groups, profiles, events, origin }) = self.pending[signal.index()].take() else {
            return;
        };
        self.last_len[signal.index()] = groups.len();
        let body = match profiles {
            Some(profiles) => profiles.finish(groups),
            None => groups.finish(),
        };
        if body.len() > self.head_bytes {
            self.complete.push(ExportRequest { signal, body, events, origin });
        }
    }

    /// Ends the request with heap dumps.
    pub fn end_heap(&mut self) {
        let Some(PendingHeap { groups, heaps, origin }) = self.heap.take() else { return };
        if heaps.is_empty() {
            return;
        }
        let body = heaps.finish(groups);
        self.complete.push(ExportRequest { signal: Signal::Profiles, body, events: 0, origin });
    }

    /// Ends all requests that have events; not that with heap dumps.
    pub fn end_requests(&mut self) {
        Signal::ALL.into_iter().for_each(|signal| self.end_request(signal));
    }

    /// The complete requests, in the order in which they were completed.
    pub fn take_requests(&mut self) -> Vec<ExportRequest> {
        std::mem::take(&mut self.complete)
    }

    /// Whether an event is in a request that is not complete.
    pub fn has_pending(&self) -> bool {
        self.pending.iter().any(Option::is_some)
    }

    /// Whether a heap dump is in a request that is not complete.
    pub fn has_heap(&self) -> bool {
        self.heap.is_some()
    }
}
