//! Events as requests of the OpenTelemetry Protocol (OTLP 1.10), written from views of events directly into bytes.
//!
//! `docs/event-model.md` and `docs/operations.md` describe the mapping. Numbers of fields are those of
//! <https://github.com/open-telemetry/opentelemetry-proto>.

mod attributes;
mod dictionary;
mod heap;
mod logs;
mod metrics;
mod profiles;
mod request;
mod resource;
mod traces;
mod value;

use std::sync::Arc;

use crate::event::{DataView, EventView, KeyView, Kind, Origin, semconv};
use attributes::OriginCache;
use heap::Heaps;
use profiles::Profiles;
use request::Groups;

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
    pub body: Vec<u8>,
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
    origins: Option<[OriginCache; 4]>,
    pending: [Option<Pending>; 4],
    /// Whether heap dumps become profiles, and the dumps that are not complete.
    has_heaps: bool,
    heap: Option<PendingHeap>,
    complete: Vec<ExportRequest>,
    record: Vec<u8>,
}

#[derive(Debug)]
struct Pending {
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
    /// An encoder of requests with at most so many bytes. `has_origin`: events carry where they came from. Each request begins
    /// with `head_bytes` zeros.
    pub fn new(max_request_bytes: usize, has_origin: bool, head_bytes: usize) -> Encoder {
        let origins = [OriginCache::full(), OriginCache::full(), OriginCache::short(), OriginCache::full()];
        Encoder {
            max_request_bytes,
            head_bytes,
            origins: has_origin.then_some(origins),
            pending: [const { None }; 4],
            has_heaps: true,
            heap: None,
            complete: Vec::new(),
            record: Vec::new(),
        }
    }

    /// Sets whether heap dumps also become profiles. Default yes.
    pub fn set_heap_profiles(&mut self, has_heaps: bool) {
        self.has_heaps = has_heaps;
    }

    /// Adds an event to the request of its signal. Returns `false` if it is larger than a request may be.
    pub fn push(&mut self, event: EventView<'_>, is_counted: bool) -> bool {
        let signal = Signal::of(event.kind());
        let origin = self.origins.as_mut().map(|origins| &mut origins[signal.index()]);
        self.record.clear();
        let record = &mut self.record;
        match event.data() {
            DataView::Log { severity, context, body } => {
                logs::push_log(record, request::RECORDS, event, (severity, context, body), origin);
            }
            DataView::Loss(loss) => logs::push_loss(record, request::RECORDS, event, loss, origin),
            DataView::Span(span) => traces::push_span(record, request::RECORDS, event, span, origin),
            DataView::Metric(metric) => metrics::push_point(record, event, metric, origin),
            // Profiles are made when the request is complete.
            DataView::Sample(_) => {}
        }
        if !self.append(signal, event, is_counted) {
            // The request has no room for it.
            self.end_request(signal);
            if !self.append(signal, event, is_counted) {
                self.pending[signal.index()] = None;
                return false;
            }
        }
        if let (DataView::Log { .. }, KeyView::Name(name)) = (event.data(), event.name_key())
            && self.has_heaps
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
            let PendingHeap { groups, heaps, .. } = self.heap.get_or_insert_with(|| PendingHeap {
                groups: Groups::default(),
                heaps: Heaps::default(),
                origin: event.origin().clone(),
            });
            let scope = groups.scope_of(event);
            let limit = self.max_request_bytes.saturating_sub(groups.len());
            if heaps.push(scope, event, self.origins.is_some(), limit) {
                return;
            }
            self.end_heap();
        }
    }

    /// Adds the encoded record of an event to a request. Returns `false` if it would be too long.
    fn append(&mut self, signal: Signal, event: EventView<'_>, is_counted: bool) -> bool {
        let pending = self.pending[signal.index()].get_or_insert_with(|| Pending {
            groups: Groups::default(),
            profiles: (signal == Signal::Profiles).then(Profiles::default),
            events: 0,
            origin: event.origin().clone(),
        });
        let groups = &mut pending.groups;
        let scope = groups.scope_of(event);
        let metric = match event.data() {
            DataView::Metric(metric) => Some(groups.metric_of(scope, event, metric)),
            _ => None,
        };
        if let (DataView::Sample(sample), Some(profiles)) = (event.data(), &mut pending.profiles) {
            let limit = self.max_request_bytes.saturating_sub(groups.len());
            let is_added = profiles.push(scope, event, sample, self.origins.is_some(), limit);
            pending.events += u32::from(is_added && is_counted);
            return is_added;
        }
        if groups.len() + self.record.len() > self.max_request_bytes {
            return false;
        }
        match metric {
            Some(metric) => groups.push_point(scope, metric, &self.record),
            None => groups.push(scope, &self.record),
        }
        pending.events += u32::from(is_counted);
        true
    }

    fn end_request(&mut self, signal: Signal) {
        let Some(Pending { groups, profiles, events, origin }) = self.pending[signal.index()].take() else { return };
        let mut body = Vec::with_capacity(self.head_bytes + groups.len());
        body.resize(self.head_bytes, 0);
        match profiles {
            Some(profiles) => profiles.write(groups, &mut body),
            None => groups.write(&mut body),
        }
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
        let mut body = vec![0; self.head_bytes];
        heaps.write(groups, &mut body);
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
