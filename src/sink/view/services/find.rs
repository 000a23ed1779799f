//! Finds the rows that spans count in, and adds those that are new.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use tributary_event::{AgentFacts, EventView, SpanKind, semconv};

use super::span::cut;
use super::tables::{Edge, ErrorType, Operation, Service};
use super::waiting::WaitingChild;
use super::{Services, Sums};

/// The most types of errors of a service.
const MAX_ERRORS: usize = 20;
/// All callers of a service whose calls have no row of their own.
pub(super) const OTHERS: u32 = u32::MAX;
/// The name of a row for all that have none of their own.
pub const OTHER: &str = "other";

impl Services {
    /// The service of a span; without one, the name of its agent. `known`: the addresses of the last resource with a service and of the
    /// last one without, and their services.
    #[inline]
    pub(super) fn service_of(&mut self, event: EventView<'_>, known: &mut [Option<(usize, u32)>; 2]) -> u32 {
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

    pub(super) fn service(&mut self, name: &str) -> u32 {
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

    pub(super) fn operation(&mut self, service: u32, kind: Option<SpanKind>, name: &str, detail: &str) -> Option<u32> {
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

    pub(super) fn add_edge(&mut self, caller: Option<u32>, child: &WaitingChild) {
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

    pub(super) fn add_error(&mut self, service: u32, step: u64, name: &str) {
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
}
