//! Export requests: events grouped by resource and scope.
//!
//! The requests of all signals have the same form: `Resource<Signal>` { 1: resource, 2: repeated `Scope<Signal>` { 1: scope,
//! 2: repeated records } }, as field 1 of the request.

use std::sync::Arc;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::metrics::Metrics;
use super::resource::{encode_resource, encode_scope};
use crate::codec::protobuf::{len_tag, push_bytes_field, push_varint, varint_len};
use crate::event::{EventView, MetricData, Origin, Resource};

/// Field of a request.
pub(super) const RESOURCES: u8 = 1;
// Fields of `Resource<Signal>`.
pub(super) const RESOURCE: u8 = 1;
pub(super) const SCOPES: u8 = 2;
// Fields of `Scope<Signal>`.
pub(super) const SCOPE: u8 = 1;
pub(super) const RECORDS: u8 = 2;

/// The tags and lengths of a message with its first field, at most.
const GROUP_OVERHEAD: usize = 12;

/// The records of one request, until it is complete.
#[derive(Debug, Default)]
pub(super) struct Groups {
    resources: Vec<ResourceGroup>,
    scopes: Vec<ScopeGroup>,
    /// The scopes of events by the addresses of their resource and origin, which `alive` keeps.
    known: HashMap<(usize, usize), usize, RandomState>,
    alive: Vec<(Arc<Resource>, Arc<Origin>)>,
    /// The groups by their content.
    resource_of: HashMap<Vec<u8>, usize, RandomState>,
    scope_of: HashMap<(usize, Vec<u8>), usize, RandomState>,
    /// Length of the request at most.
    len: usize,
}

#[derive(Debug)]
struct ResourceGroup {
    encoded: Vec<u8>,
    scopes: Vec<usize>,
}

#[derive(Debug)]
struct ScopeGroup {
    encoded: Vec<u8>,
    records: Vec<u8>,
    metrics: Metrics,
}

impl Groups {
    /// Length of the request at most, in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The scope that an event belongs to.
    pub(super) fn scope_of(&mut self, event: EventView<'_>) -> usize {
        let (resource, origin) = (event.resource(), event.origin());
        let key = (Arc::as_ptr(resource).addr(), Arc::as_ptr(origin).addr());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let encoded = encode_resource(resource, origin.protocol);
        let of = *self.resource_of.entry(encoded).or_insert_with_key(|encoded| {
            self.len += encoded.len() + GROUP_OVERHEAD;
            self.resources.push(ResourceGroup { encoded: encoded.clone(), scopes: Vec::new() });
            self.resources.len() - 1
        });
        let scope = *self.scope_of.entry((of, encode_scope(origin))).or_insert_with_key(|(_, encoded)| {
            self.len += encoded.len() + GROUP_OVERHEAD;
            self.scopes.push(ScopeGroup { encoded: encoded.clone(), records: Vec::new(), metrics: Metrics::default() });
            self.resources[of].scopes.push(self.scopes.len() - 1);
            self.scopes.len() - 1
        });
        self.known.insert(key, scope);
        self.alive.push((resource.clone(), origin.clone()));
        scope
    }

    /// The metric of a scope that an event belongs to.
    pub(super) fn metric_of(&mut self, scope: usize, event: EventView<'_>, data: &MetricData) -> usize {
        let (index, added) = self.scopes[scope].metrics.find(event, data);
        self.len += added;
        index
    }

    /// Adds an encoded record to a scope.
    pub(super) fn push(&mut self, scope: usize, record: &[u8]) {
        self.len += record.len();
        self.scopes[scope].records.extend_from_slice(record);
    }

    /// Adds an encoded point to a metric.
    pub(super) fn push_point(&mut self, scope: usize, metric: usize, point: &[u8]) {
        self.len += point.len();
        self.scopes[scope].metrics.push(metric, point);
    }

    /// Appends the request. Groups without records are left out.
    pub(super) fn write(mut self, out: &mut Vec<u8>) {
        for scope in &mut self.scopes {
            scope.metrics.write(&mut scope.records, RECORDS);
        }
        out.reserve(self.len);
        for ResourceGroup { encoded, scopes } in &self.resources {
            let scopes = || scopes.iter().map(|scope| &self.scopes[*scope]).filter(|scope| !scope.records.is_empty());
            let len: usize = scopes().map(|scope| message_len(scope.len())).sum();
            if len > 0 {
                out.push(len_tag(RESOURCES));
                push_varint(out, (message_len(encoded.len()) + len) as u64);
                push_bytes_field(out, RESOURCE, encoded);
                for scope in scopes() {
                    out.push(len_tag(SCOPES));
                    push_varint(out, scope.len() as u64);
                    push_bytes_field(out, SCOPE, &scope.encoded);
                    out.extend_from_slice(&scope.records);
                }
            }
        }
    }
}

impl ScopeGroup {
    fn len(&self) -> usize {
        message_len(self.encoded.len()) + self.records.len()
    }
}

/// Length of a message with its tag and length.
fn message_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}
