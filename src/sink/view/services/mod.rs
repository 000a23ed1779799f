//! Sums of services, their operations, and the calls between them, of every span that passes, in bounded memory.
//!
//! Everything is put into steps of 10 seconds by the time of reading. A span is an entry of its service if its kind is server or
//! consumer, if it has no parent, or if its parent is of another service. Parents are found among the spans of the last 10 seconds,
//! whichever comes first; a child whose parent does not come has the caller "unknown".

pub mod export;
pub mod latency;
mod minutes;
mod span;
mod sums;
mod waiting;

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashSet;

use crate::recent::RecentKeys;
use crate::rows::Rows;
use tributary_event::{AgentFacts, Batch, EventView, Kind, SpanKind, SpanView, Status, UnixNanos, semconv};

use export::{ExportedOperation, Unexported};
use span::{NO_TYPE, cut, error_type, key, operation_of, spans};
pub use sums::{MINUTES, MinuteSums, STEP_SECONDS, STEPS, STEPS_PER_MINUTE, StepSums, Sums, Totals};
use waiting::{WaitingChild, WaitingChildren};

/// Memory for which the most rows are those of [`Limits::of`].
const FULL_BYTES: usize = 8 << 20;
/// Services keep the sums of minutes for this long.
const HISTORY_MINUTES: u64 = 360;
/// One part of this many of the memory is for the services of spans that may have children.
const PARENTS_PART: usize = 8;
/// The most types of errors of a service.
const MAX_ERRORS: usize = 20;
/// How long a child waits for its parent, in steps.
const WAIT_STEPS: u64 = 1;
/// The memory is looked at after this many spans, and after each step.
const SPANS_PER_LOOK: u64 = 1 << 16;
pub(crate) const NANOS_PER_STEP: u64 = STEP_SECONDS * 1_000_000_000;

/// The most rows of each table.
#[derive(Clone, Copy, Debug)]
struct Limits {
    bytes: usize,
    services: usize,
    operations: usize,
    edges: usize,
    children: usize,
}

impl Limits {
    fn of(bytes: usize) -> Limits {
        let part = |most: usize| (most * bytes.min(FULL_BYTES) / FULL_BYTES).max(16);
        Limits { bytes, services: part(1000), operations: part(2000), edges: part(1000), children: part(32_768) }
    }
}

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

/// The row of a service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its name.
    pub name: Box<str>,
    /// It stands for all services for which there is no row of their own.
    pub is_other: bool,
    /// Its entries.
    pub entries: Sums,
    /// Minutes that are older than those of `entries`, the oldest first.
    pub history: VecDeque<MinuteTotals>,
    /// The types of its errors, of all its spans.
    pub errors: Vec<ErrorType>,
    /// Spans of operations for which there is no row of their own.
    pub other_spans: u64,
}

/// A minute of the entries of a service.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct MinuteTotals {
    /// Its number, counted since 1970.
    pub minute: u64,
    pub count: u64,
    pub errors: u64,
    pub nanos: u128,
    /// Durations in nanoseconds that 50, 95 and 99 % do not exceed.
    pub quantiles: [u64; 3],
}

/// Errors of one type (`exception.type`).
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct ErrorType {
    pub name: Box<str>,
    /// The number of a step, and its errors; the oldest first.
    pub steps: VecDeque<(u64, u32)>,
}

/// The row of an operation.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Operation {
    service: u32,
    pub kind: Option<SpanKind>,
    pub name: Box<str>,
    /// What it works on: the resource of a Datadog span; empty: the name says it.
    pub detail: Box<str>,
    /// It stands for all operations of the service for which there is no row of their own.
    pub is_other: bool,
    pub sums: Sums,
    unexported: Option<Box<Unexported>>,
}

/// Calls from one service to another.
#[derive(Debug)]
struct Edge {
    /// `None`: unknown. [`OTHERS`]: those for which there is no row of their own.
    caller: Option<u32>,
    callee: u32,
    sums: Sums,
}

/// Calls from one service to another.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct ServiceEdge {
    /// `None`: unknown.
    pub caller: Option<Box<str>>,
    pub callee: Box<str>,
    pub sums: Sums,
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

    /// Sets the most bytes.
    pub fn set_limit(&mut self, bytes: usize) {
        self.limits = Limits::of(bytes);
        self.services.set_most(self.limits.services);
        self.operations.set_most(self.limits.operations + self.limits.services);
        self.edges.set_most(self.limits.edges + self.limits.services);
        self.parents = RecentKeys::new(bytes / PARENTS_PART);
        self.look();
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

    fn add_edge(&mut self, caller: Option<u32>, child: &WaitingChild) {
        let callee = child.service;
        let hash = self.hasher.hash_one((caller, callee));
        let found = self.edges.find(hash, |edge| (edge.caller, edge.callee) == (caller, callee));
        let is_free = self.edges.len() < self.limits.edges || caller == Some(OTHERS);
        let new = || Edge { caller, callee, sums: Sums::new() };
        let found = found.or_else(|| is_free.then(|| self.edges.add(hash, new())).flatten());
        if found.is_none() && caller != Some(OTHERS) {
            // Each service has one more for all other callers.
            return self.add_edge(Some(OTHERS), child);
        }
        if let Some(edge) = found.and_then(|edge| self.edges.get_mut(edge)) {
            edge.sums.add(child.step, child.nanos, child.is_error);
        }
    }

    fn add_error(&mut self, service: u32, step: u64, name: &str) {
        let Some(service) = self.services.get_mut(service) else { return };
        let found = service.errors.iter().position(|known| *known.name == *name);
        let at = match found {
            Some(at) => at,
            None if service.errors.len() < MAX_ERRORS => {
                service.errors.push(ErrorType { name: name.into(), steps: VecDeque::new() });
                service.errors.len() - 1
            }
            // The last one stands for all others.
            None => MAX_ERRORS - 1,
        };
        let error = &mut service.errors[at];
        if found.is_none() && at == MAX_ERRORS - 1 {
            error.name = OTHER.into();
        }
        match error.steps.back_mut() {
            Some((last, count)) if *last >= step => *count += 1,
            _ => error.steps.push_back((step, 1)),
        }
    }

    /// The service of a span; without one, the name of its agent. `known`: the addresses of the last resource with a service and of the
    /// last one without, and their services.
    #[inline]
    fn service_of(&mut self, event: EventView<'_>, known: &mut [Option<(usize, u32)>; 2]) -> u32 {
        let resource = Arc::as_ptr(event.resource()).addr();
        let [of_resource, of_agent] = known;
        if let Some((_, service)) = of_resource.filter(|(last, _)| *last == resource) {
            return service;
        }
        let name = event.resource().text(semconv::SERVICE_NAME).filter(|text| !text.is_empty());
        if let Some(name) = name {
            let service = self.service(cut(name));
            *of_resource = Some((resource, service));
            return service;
        }
        if let Some(name) = event.text_of(semconv::SERVICE_NAME) {
            return self.service(cut(name));
        }
        if let Some((_, service)) = of_agent.filter(|(last, _)| *last == resource) {
            return service;
        }
        let origin = event.origin();
        let facts = AgentFacts::of(event.resource().attributes());
        let name = facts.name(origin.protocol, &origin.listener, &origin.peer).into_text();
        let service = self.service(cut(&name));
        *of_agent = Some((resource, service));
        service
    }

    fn service(&mut self, name: &str) -> u32 {
        // Spans of one service often follow each other.
        if let Some(last) = self.services.get(self.last_service)
            && *last.name == *name
            && !last.is_other
        {
            return self.last_service;
        }
        let service = self.hasher.hash_one((name, false));
        let new = |name: &str, is_other| Service {
            name: name.into(),
            is_other,
            entries: Sums::new(),
            history: VecDeque::new(),
            errors: Vec::new(),
            other_spans: 0,
        };
        if let Some(known) = self.services.find(service, |row| *row.name == *name && !row.is_other) {
            self.last_service = known;
            return known;
        }
        // The last place is for all others.
        if self.services.len() + 1 < self.limits.services
            && let Some(added) = self.services.add(service, new(name, false))
        {
            return added;
        }
        let other = self.hasher.hash_one((OTHER, true));
        let known = self.services.find(other, |row| row.is_other);
        known.or_else(|| self.services.add(other, new(OTHER, true))).unwrap_or(u32::MAX)
    }

    fn operation(&mut self, service: u32, kind: Option<SpanKind>, name: &str, detail: &str) -> Option<u32> {
        let hash = self.hasher.hash_one((service, kind.map(SpanKind::number), name, detail));
        let is_it = |row: &Operation| {
            row.service == service && row.kind == kind && *row.name == *name && *row.detail == *detail && !row.is_other
        };
        if let Some(known) = self.operations.find(hash, is_it) {
            return Some(known);
        }
        let new = |name: &str, detail: &str, is_other: bool| Operation {
            service,
            kind: kind.filter(|_| !is_other),
            name: name.into(),
            detail: detail.into(),
            is_other,
            sums: Sums::new(),
            unexported: None,
        };
        // Each service has one more for its other operations.
        if self.operations.len() < self.limits.operations {
            return self.operations.add(hash, new(name, detail, false));
        }
        self.services.get_mut(service)?.other_spans += 1;
        let hash = self.hasher.hash_one((service, OTHER));
        let known = self.operations.find(hash, |row| row.service == service && row.is_other);
        known.or_else(|| self.operations.add(hash, new(OTHER, "", true)))
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
            operation.sums.expire(first, |_| {});
            let stays = operation.sums.last() >= oldest;
            used.extend(stays.then_some(operation.service));
            stays
        });
        self.edges.retain(|_, edge| {
            edge.sums.expire(first, |_| {});
            edge.sums.last() >= oldest
        });
        self.services.retain(|at, Service { entries, history, errors, .. }| {
            entries.expire(first, |minute| history.push_back(MinuteTotals::of(&minute)));
            while pop_if(history, |old| old.minute + HISTORY_MINUTES <= minute).is_some() {}
            errors.retain_mut(|error| {
                while pop_if(&mut error.steps, |(step, _)| *step < oldest).is_some() {}
                !error.steps.is_empty()
            });
            used.contains(&at) || !history.is_empty() || entries.last() >= oldest
        });
        self.look();
    }

    /// Measures the memory. Where it is above its limit, gives up durations, the oldest first.
    fn look(&mut self) {
        self.spans_since_look = 0;
        self.measure();
        let minute = self.now / STEPS_PER_MINUTE;
        let mut from = self.latencies_from.max(first_minute(self.now));
        if self.bytes > self.limits.bytes {
            self.all_sums().for_each(Sums::settle);
            self.measure();
        }
        while self.bytes > self.limits.bytes && from <= minute {
            from += 1;
            self.latencies_from = from;
            self.all_sums().for_each(|sums| sums.forget_latencies(from));
            self.measure();
        }
    }

    fn all_sums(&mut self) -> impl Iterator<Item = &mut Sums> {
        let services = self.services.iter_mut().map(|row| &mut row.entries);
        let operations = self.operations.iter_mut().map(|row| &mut row.sums);
        services.chain(operations).chain(self.edges.iter_mut().map(|row| &mut row.sums))
    }

    fn measure(&mut self) {
        let names = |name: &str| name.len() + 16;
        let services = self.services.iter().map(|row| {
            row.entries.memory_bytes() + names(&row.name) + row.history.capacity() * size_of::<MinuteTotals>()
        });
        let operations = self.operations.iter().map(|row| {
            let unexported = row.unexported.as_ref().map_or(0, |spans| spans.memory_bytes());
            row.sums.memory_bytes() + unexported + names(&row.name) + names(&row.detail)
        });
        let edges = self.edges.iter().map(|row| row.sums.memory_bytes());
        self.bytes = services.chain(operations).chain(edges).sum::<usize>()
            + self.services.memory_bytes()
            + self.operations.memory_bytes()
            + self.edges.memory_bytes()
            + self.parents.memory_bytes()
            + self.waiting.memory_bytes();
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

/// All callers of a service whose calls have no row of their own.
const OTHERS: u32 = u32::MAX;
/// The name of a row for all that have none of their own.
pub const OTHER: &str = "other";

impl MinuteTotals {
    fn of(minute: &MinuteSums) -> MinuteTotals {
        let quantile = |share| minute.latencies.quantile(share).unwrap_or(0);
        MinuteTotals {
            minute: minute.minute,
            count: minute.count,
            errors: minute.errors,
            nanos: minute.nanos,
            quantiles: [quantile(0.5), quantile(0.95), quantile(0.99)],
        }
    }
}

/// Removes the first element if `leaves`.
pub(crate) fn pop_if<T>(all: &mut VecDeque<T>, leaves: impl FnOnce(&T) -> bool) -> Option<T> {
    all.front().is_some_and(leaves).then(|| all.pop_front()).flatten()
}

#[cfg(test)]
mod tests;
