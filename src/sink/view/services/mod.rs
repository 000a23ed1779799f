//! Sums of services, their operations, and the calls between them, of every span that passes, in bounded memory.
//!
//! Everything is put into steps of 10 seconds by the time of reading. A span is an entry of its service if its kind is server or
//! consumer, if it has no parent, or if its parent is of another service. Parents are found among the spans of the last 10 seconds,
//! whichever comes first; a child whose parent does not come has the caller "unknown".

mod bounds;
pub mod export;
mod find;
pub mod latency;
mod minutes;
mod span;
mod sums;
mod tables;
mod waiting;

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashSet;

use crate::recent::RecentKeys;
use crate::rows::Rows;
use tributary_event::{Batch, EventView, Kind, SpanKind, SpanView, Status, UnixNanos};

use bounds::{Limits, PARENTS_PART};
use export::ExportedOperation;
pub use find::OTHER;
use find::OTHERS;
use span::{NO_TYPE, cut, error_type, key, operation_of, spans};
pub use sums::{MINUTES, MinuteSums, STEP_SECONDS, STEPS, STEPS_PER_MINUTE, StepSums, Sums, Totals};
use tables::Edge;
pub use tables::{ErrorType, MinuteTotals, Operation, Service, ServiceEdge};
use waiting::{WaitingChild, WaitingChildren};

/// Services keep the sums of minutes for this long.
const HISTORY_MINUTES: u64 = 360;
/// How long a child waits for its parent, in steps.
const WAIT_STEPS: u64 = 1;
/// The memory is looked at after this many spans, and after each step.
const SPANS_PER_LOOK: u64 = 1 << 16;
pub(crate) const NANOS_PER_STEP: u64 = STEP_SECONDS * 1_000_000_000;

/// All sums.
#[derive(Debug)]
pub struct Services {
    limits: Limits,
    hasher: RandomState,
    services: Rows<Service>,
    operations: Rows<Operation>,
    edges: Rows<Edge>,
    parents: RecentKeys,
    waiting: WaitingChildren,
    /// The first step, and the present one.
    began: u64,
    now: u64,
    spans: u64,
    spans_since_look: u64,
    /// The service that was found last.
    last_service: u32,
    bytes: usize,
    /// Durations before this minute were given up, because they took too much memory.
    latencies_from: u64,
    /// The keys and services of the spans of a batch.
    scratch: Vec<(u64, u32)>,
    /// Spans are measured for the next export as well.
    exports: bool,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ServiceNumbers {
    pub services: usize,
    pub operations: usize,
    pub edges: usize,
    pub spans: u64,
    pub memory_bytes: usize,
    /// Quantiles are known from this minute on.
    pub latencies_from: u64,
}

impl Services {
    /// No sums, in at most this many bytes.
    pub fn new(bytes: usize) -> Services {
        let limits = Limits::of(bytes);
        Services {
            limits,
            hasher: RandomState::default(),
            services: Rows::new(limits.services),
            operations: Rows::new(limits.operations + limits.services),
            edges: Rows::new(limits.edges + limits.services),
            parents: RecentKeys::new(bytes / PARENTS_PART),
            waiting: WaitingChildren::default(),
            began: 0,
            now: 0,
            spans: 0,
            spans_since_look: 0,
            last_service: u32::MAX,
            bytes: 0,
            latencies_from: 0,
            scratch: Vec::new(),
            exports: false,
        }
    }

    /// Adds the spans of a batch that was read by `now`.
    pub fn add(&mut self, batch: &Batch, now: UnixNanos) {
        self.advance(now);
        if batch.count(Kind::Span) == 0 {
            return;
        }
        // First the services of all: the parent of a span is often behind it in its batch.
        let mut of_spans = std::mem::take(&mut self.scratch);
        of_spans.clear();
        let mut known = [None; 2];
        for (event, span) in spans(batch) {
            let service = self.service_of(event, &mut known);
            of_spans.push((key(&span.trace_id.0, &span.span_id.0), service));
        }
        // In a loop of its own the processor waits for many places of the table at once.
        of_spans.iter().for_each(|(key, service)| self.parents.insert(*key, *service));
        if self.waiting.len() > 0 {
            of_spans.iter().for_each(|(key, service)| self.parent_has_come(*key, *service));
        }
        for ((event, span), (_, service)) in spans(batch).zip(&of_spans) {
            self.add_span(event, span, *service);
        }
        self.spans += of_spans.len() as u64;
        self.spans_since_look += of_spans.len() as u64;
        self.scratch = of_spans;
        if self.spans_since_look >= SPANS_PER_LOOK {
            self.look();
        }
    }

    fn add_span(&mut self, event: EventView<'_>, span: SpanView<'_>, service: u32) {
        let oldest = first_minute(self.now) * STEPS_PER_MINUTE;
        let step = (event.observed().0 / NANOS_PER_STEP).clamp(oldest, self.now);
        let (nanos, is_error) = (span.duration_nanos, span.status == Status::Error);
        if let Some((name, detail)) = operation_of(event, span)
            && let Some(operation) = self.operation(service, span.kind, cut(name), cut(detail))
        {
            self.add_to_operation(operation, step, nanos, is_error);
        }
        if is_error {
            self.add_error(service, step, error_type(event, span));
        }
        let is_entry = matches!(span.kind, Some(SpanKind::Server | SpanKind::Consumer));
        let child = WaitingChild { service, step, nanos, is_error, is_entry };
        let Some(parent) = span.parent else { return self.add_entry(&child) };
        let parent = key(&span.trace_id.0, &parent.0);
        match self.parents.get(parent) {
            Some(caller) if caller == service && !is_entry => {}
            Some(caller) => {
                self.add_entry(&child);
                if caller != service {
                    self.add_edge(Some(caller), &child);
                }
            }
            None => {
                if is_entry {
                    self.add_entry(&child);
                }
                if self.waiting.len() >= self.limits.children {
                    self.give_up_first(|_| true);
                }
                self.waiting.add(parent, child);
            }
        }
    }

    fn add_to_operation(&mut self, operation: u32, step: u64, nanos: Option<u64>, is_error: bool) {
        let Some(operation) = self.operations.get_mut(operation) else { return };
        operation.sums.add(step, nanos, is_error);
        if self.exports {
            operation.unexported.get_or_insert_default().add(nanos, is_error);
        }
    }

    /// Adds a call of an agent that is no span: one that no other call of its thread encloses.
    pub fn add_call(&mut self, agent: &str, method: &str, nanos: u64, is_error: bool, now: UnixNanos) {
        self.advance(now);
        let (service, step, nanos) = (self.service(cut(agent)), self.now, Some(nanos));
        if let Some(operation) = self.operation(service, None, cut(method), "") {
            self.add_to_operation(operation, step, nanos, is_error);
        }
        if is_error {
            self.add_error(service, step, NO_TYPE);
        }
        self.add_entry(&WaitingChild { service, step, nanos, is_error, is_entry: true });
    }

    /// The parent of children that wait is of this service.
    fn parent_has_come(&mut self, parent: u64, caller: u32) {
        for child in self.waiting.found(parent) {
            if caller != child.service {
                if !child.is_entry {
                    self.add_entry(&child);
                }
                self.add_edge(Some(caller), &child);
            }
        }
    }

    /// The oldest child that waits has no parent, if `leaves`. Returns whether there was one.
    fn give_up_first(&mut self, leaves: impl FnOnce(&WaitingChild) -> bool) -> bool {
        let Some(child) = self.waiting.pop_if(leaves) else { return false };
        self.add_edge(None, &child);
        true
    }

    fn add_entry(&mut self, child: &WaitingChild) {
        if let Some(service) = self.services.get_mut(child.service) {
            service.entries.add(child.step, child.nanos, child.is_error);
        }
    }

    /// Time passes, also without events.
    pub fn advance(&mut self, now: UnixNanos) {
        let step = now.0 / NANOS_PER_STEP;
        if step <= self.now {
            return;
        }
        if self.now == 0 {
            self.began = step;
        }
        self.now = step;
        self.parents.turn();
        while self.give_up_first(|child| child.step + WAIT_STEPS < step) {}
        let (oldest, minute) = ((step + 1).saturating_sub(STEPS), step / STEPS_PER_MINUTE);
        let first = first_minute(step);
        // A service has its place as long as it has any sums.
        let mut used = HashSet::<u32, RandomState>::default();
        self.operations.retain(|_, operation| {
            operation.sums.expire(first);
            let stays = operation.sums.last() >= oldest;
            used.extend(stays.then_some(operation.service));
            stays
        });
        self.edges.retain(|_, edge| {
            edge.sums.expire(first);
            edge.sums.last() >= oldest
        });
        self.services.retain(|at, Service { entries, history, errors, .. }| {
            history.extend(entries.minutes(0..=first.saturating_sub(1)).iter().map(MinuteTotals::of));
            entries.expire(first);
            while pop_if(history, |old| old.minute + HISTORY_MINUTES <= minute).is_some() {}
            errors.retain_mut(|error| {
                while pop_if(&mut error.steps, |(step, _)| *step < oldest).is_some() {}
                !error.steps.is_empty()
            });
            used.contains(&at) || !history.is_empty() || entries.last() >= oldest
        });
        self.look();
    }

    /// Whether spans are measured for exports. If not, what is not exported is forgotten.
    pub fn set_exports(&mut self, exports: bool) {
        self.exports = exports;
        if !exports {
            self.operations.iter_mut().for_each(|operation| operation.unexported = None);
        }
    }

    /// The operations that have spans since the last export, by service.
    pub fn take_unexported(&mut self) -> Vec<ExportedOperation> {
        let services = &self.services;
        let mut taken: Vec<_> = self
            .operations
            .iter_mut()
            .filter_map(|operation| {
                let spans = operation.unexported.take()?;
                let service = services.get(operation.service)?;
                Some((operation.service, ExportedOperation::of(service, operation, *spans)))
            })
            .collect();
        taken.sort_by_key(|(service, _)| *service);
        taken.into_iter().map(|(_, operation)| operation).collect()
    }

    /// How much there is.
    pub fn numbers(&self) -> ServiceNumbers {
        ServiceNumbers {
            services: self.services.len(),
            operations: self.operations.len(),
            edges: self.edges.len(),
            spans: self.spans,
            memory_bytes: self.bytes,
            latencies_from: self.latencies_from,
        }
    }

    /// The step in which these sums began.
    pub fn began(&self) -> u64 {
        self.began
    }

    /// Copies of all services.
    pub fn services(&self) -> Vec<Service> {
        self.services.iter().cloned().collect()
    }

    /// Copies of the service with this name and of its operations.
    pub fn service_named(&self, name: &str) -> Option<(Service, Vec<Operation>)> {
        let at = self.services.position(|service| *service.name == *name)?;
        let operations = self.operations.iter().filter(|operation| operation.service == at);
        Some((self.services.get(at)?.clone(), operations.cloned().collect()))
    }

    /// Copies of all edges.
    pub fn edges(&self) -> Vec<ServiceEdge> {
        let name = |service: u32| self.services.get(service).map(|service| service.name.clone());
        let edge = |edge: &Edge| {
            let caller = match edge.caller {
                None => None,
                Some(OTHERS) => Some(OTHER.into()),
                Some(caller) => Some(name(caller)?),
            };
            Some(ServiceEdge { caller, callee: name(edge.callee)?, sums: edge.sums.clone() })
        };
        self.edges.iter().filter_map(edge).collect()
    }
}

/// The first minute whose sums are kept in this step.
fn first_minute(now: u64) -> u64 {
    (now / STEPS_PER_MINUTE + 1).saturating_sub(MINUTES)
}

/// Removes the first element if `leaves`.
pub(crate) fn pop_if<T>(all: &mut VecDeque<T>, leaves: impl FnOnce(&T) -> bool) -> Option<T> {
    all.front().is_some_and(leaves).then(|| all.pop_front()).flatten()
}

#[cfg(test)]
mod tests;
