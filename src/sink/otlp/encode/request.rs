//! Export requests: events grouped by resource and scope.
//!
//! The requests of all signals have the same form: `Resource<Signal>` { 1: resource, 2: repeated `Scope<Signal>` { 1: scope,
//! 2: repeated records } }, as field 1 of the request.

use std::sync::Arc;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::body::Body;
use super::metrics::Metrics;
use super::resource::{encode_resource, encode_scope};
use super::scopes::{self, ScopeKey};
use tributary_codec::protobuf::{len_tag, push_bytes_field, push_varint, varint_len};
use tributary_event::{EventView, MetricView, Origin, Resource};

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
    /// The groups of events.
    known: HashMap<GroupKey, usize, RandomState>,
    alive: Vec<(Arc<Resource>, Arc<Origin>)>,
    /// That of the last event.
    last: Option<(GroupKey, usize)>,
    /// Free bytes in front of the request.
    head_bytes: usize,
    /// What the records of the first scope are expected to take.
    expected: usize,
    /// The groups by their content.
    resource_of: HashMap<Vec<u8>, usize, RandomState>,
    scope_of: HashMap<(usize, Vec<u8>), usize, RandomState>,
    /// Length of the request at most.
    len: usize,
}

/// The addresses of the resource and of the origin of an event, which `alive` keeps, and its scope.
type GroupKey = (usize, usize, ScopeKey);

#[derive(Debug)]
struct ResourceGroup {
    encoded: Vec<u8>,
    scopes: Vec<usize>,
}

#[derive(Debug)]
struct ScopeGroup {
    encoded: Vec<u8>,
    /// The records, after free bytes. The first scope has as many of these as the request needs in front of its records, if it
    /// has no other scope: then they need not be moved.
    bytes: Vec<u8>,
    free: usize,
    metrics: Metrics,
}

impl Groups {
    /// An empty request after `head_bytes` zeros, whose records are expected to take `expected` bytes.
    pub(super) fn new(head_bytes: usize, expected: usize) -> Groups {
        Groups { head_bytes, expected, ..Groups::default() }
    }

    /// Length of the request at most, in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The group of an event with this scope.
    #[inline]
    pub(super) fn scope_of(&mut self, event: EventView<'_>, scope: ScopeKey) -> usize {
        let key = (Arc::as_ptr(event.resource()).addr(), Arc::as_ptr(event.origin()).addr(), scope);
        match self.last {
            Some((last, scope)) if last == key => scope,
            _ => {
                let known = self.known.get(&key).copied();
                let scope = known.unwrap_or_else(|| self.add(key, event));
                self.last = Some((key, scope));
                scope
            }
        }
    }

    fn add(&mut self, key: GroupKey, event: EventView<'_>) -> usize {
        let (resource, origin) = (event.resource(), event.origin());
        let encoded_scope = match key.2 {
            ScopeKey::Own => encode_scope(origin),
            ScopeKey::Received(_) => scopes::encode(event),
        };
        let encoded = encode_resource(resource, origin.protocol);
        let of = *self.resource_of.entry(encoded).or_insert_with_key(|encoded| {
            self.len += encoded.len() + GROUP_OVERHEAD;
            self.resources.push(ResourceGroup { encoded: encoded.clone(), scopes: Vec::new() });
            self.resources.len() - 1
        });
        let scope = *self.scope_of.entry((of, encoded_scope)).or_insert_with_key(|(_, encoded)| {
            self.len += encoded.len() + GROUP_OVERHEAD;
            let (mut bytes, mut free) = (Vec::new(), 0);
            if self.scopes.is_empty() {
                free = self.head_bytes + self.resources[of].encoded.len() + encoded.len() + 2 * GROUP_OVERHEAD;
                bytes.reserve(free + self.expected);
                bytes.resize(free, 0);
            }
            self.scopes.push(ScopeGroup { encoded: encoded.clone(), bytes, free, metrics: Metrics::default() });
            self.resources[of].scopes.push(self.scopes.len() - 1);
            self.scopes.len() - 1
        });
        self.known.insert(key, scope);
        self.alive.push((resource.clone(), origin.clone()));
        scope
    }

    /// The metric of a scope that an event belongs to.
    pub(super) fn metric_of(&mut self, scope: usize, event: EventView<'_>, data: MetricView<'_>) -> usize {
        let (index, added) = self.scopes[scope].metrics.find(event, data);
        self.len += added;
        index
    }

    /// Adds the record that `write` appends to a scope, unless the request would then be longer than `limit`. Returns whether it
    /// was added.
    pub(super) fn push(&mut self, scope: usize, limit: usize, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let added = append_within(&mut self.scopes[scope].bytes, limit.saturating_sub(self.len), write);
        self.len += added.unwrap_or(0);
        added.is_some()
    }

    /// Adds the point that `write` appends to a metric, unless the request would then be longer than `limit`. Returns whether it
    /// was added.
    pub(super) fn push_point(
        &mut self,
        scope: usize,
        metric: usize,
        limit: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let points = self.scopes[scope].metrics.points_of(metric);
        let added = append_within(points, limit.saturating_sub(self.len), write);
        self.len += added.unwrap_or(0);
        added.is_some()
    }

    /// Ends the request. Groups without records are left out.
    pub(super) fn finish(mut self) -> Body {
        for scope in &mut self.scopes {
            scope.metrics.write(&mut scope.bytes, RECORDS);
        }
        let is_empty = |scope: &ScopeGroup| scope.records().is_empty();
        if self.scopes.iter().skip(1).all(is_empty) && self.scopes.first().is_some_and(|first| !is_empty(first)) {
            return self.finish_in_place();
        }
        let mut bytes = Vec::with_capacity(self.head_bytes + self.len);
        bytes.resize(self.head_bytes, 0);
        for resource in &self.resources {
            let scopes = || resource.scopes.iter().map(|scope| &self.scopes[*scope]).filter(|scope| !is_empty(scope));
            let len: usize = scopes().map(|scope| message_len(scope.len())).sum();
            if len > 0 {
                resource.push_start(&mut bytes, len);
                for scope in scopes() {
                    scope.push_start(&mut bytes);
                    bytes.extend_from_slice(scope.records());
                }
            }
        }
        Body { bytes, start: 0 }
    }

    /// Ends a request of one scope, the first, in front of its records.
    fn finish_in_place(mut self) -> Body {
        let scope = self.scopes.swap_remove(0);
        let mut start = Vec::new();
        // The first scope belongs to the first resource.
        self.resources[0].push_start(&mut start, message_len(scope.len()));
        scope.push_start(&mut start);
        let ScopeGroup { mut bytes, free, .. } = scope;
        bytes[free - start.len()..free].copy_from_slice(&start);
        Body { bytes, start: free - start.len() - self.head_bytes }
    }
}

impl ResourceGroup {
    /// Appends what stands before its scopes, which take `len` bytes.
    fn push_start(&self, out: &mut Vec<u8>, len: usize) {
        out.push(len_tag(RESOURCES));
        push_varint(out, (message_len(self.encoded.len()) + len) as u64);
        push_bytes_field(out, RESOURCE, &self.encoded);
    }
}

impl ScopeGroup {
    fn records(&self) -> &[u8] {
        &self.bytes[self.free..]
    }

    fn len(&self) -> usize {
        message_len(self.encoded.len()) + self.records().len()
    }

    /// Appends what stands before its records.
    fn push_start(&self, out: &mut Vec<u8>) {
        out.push(len_tag(SCOPES));
        push_varint(out, self.len() as u64);
        push_bytes_field(out, SCOPE, &self.encoded);
    }
}

/// Appends what `write` appends, if that is at most `max_bytes` bytes; returns how many.
#[inline]
fn append_within(out: &mut Vec<u8>, max_bytes: usize, write: impl FnOnce(&mut Vec<u8>)) -> Option<usize> {
    let start = out.len();
    write(out);
    let added = out.len() - start;
    if added > max_bytes {
        out.truncate(start);
        return None;
    }
    Some(added)
}

/// Length of a message with its tag and length.
fn message_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}
