//! Sources: what compact JSON lines name by an id instead of repeating it.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::json;
use tributary_codec::digest::short_digest_of;
use tributary_event::{EventView, Origin, Resource};

/// Which fields JSON lines have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LineFields {
    /// Every field on every line.
    #[default]
    Full,
    /// The origin and the resource once in a file, and times of reading as a difference.
    Compact,
}

impl LineFields {
    /// Both.
    pub const ALL: [LineFields; 2] = [LineFields::Full, LineFields::Compact];

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            LineFields::Full => "full",
            LineFields::Compact => "compact",
        }
    }
}

/// An origin and a resource, with the line that defines them.
#[derive(Debug)]
pub struct EventSource {
    /// The first 16 hexadecimal digits of the SHA-256 of what the line defines: equal sources have equal ids in every process,
    /// and a peer cannot construct a source that has the id of another one's.
    id: String,
    line: Box<[u8]>,
    /// The member that names it, and the beginning of the next one.
    reference: Box<[u8]>,
}

impl EventSource {
    fn new(origin: &Origin, resource: &Resource) -> EventSource {
        let mut parts = Vec::new();
        json::push_resource(&mut parts, resource);
        parts.extend_from_slice(b",\"origin\":");
        parts.extend_from_slice(&json::render_origin(origin));
        parts.extend_from_slice(b"}}\n");
        let id = short_digest_of(&parts);
        let line = [b"{\"source\":\"", id.as_bytes(), b"\"", &parts].concat().into_boxed_slice();
        let reference = format!(",\"source\":\"{id}\",\"position\":[").into_bytes().into_boxed_slice();
        EventSource { id, line, reference }
    }

    /// The id, as lines of events have it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// `,"source":"…","position":[`, with its id.
    pub(super) fn reference(&self) -> &[u8] {
        &self.reference
    }

    /// The line that defines it, with its line feed.
    pub fn line(&self) -> &[u8] {
        &self.line
    }
}

/// At most this many sources are remembered, and at most this many bytes of their definitions together.
const CACHED: usize = 16;
const CACHED_BYTES: usize = 64 * 1024;

/// Memory of what an encoder remembers of sources: their definitions, and what these are made of.
pub const CACHE_BYTES: u64 = 8 * CACHED_BYTES as u64;

/// The sources of the events that were encoded last.
#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: Vec<SourceEntry>,
    /// The entry of the last event.
    last: usize,
}

/// The references keep the addresses from being used again.
#[derive(Debug)]
struct SourceEntry {
    origin: Arc<Origin>,
    resource: Arc<Resource>,
    source: Arc<EventSource>,
}

impl SourceEntry {
    fn is_of(&self, event: EventView<'_>) -> bool {
        Arc::ptr_eq(&self.origin, event.origin()) && Arc::ptr_eq(&self.resource, event.resource())
    }
}

impl Cache {
    /// The source of an event.
    #[inline]
    pub(super) fn source(&mut self, event: EventView<'_>) -> &Arc<EventSource> {
        if !self.entries.get(self.last).is_some_and(|entry| entry.is_of(event)) {
            self.last = self.find(event);
        }
        &self.entries[self.last].source
    }

    fn find(&mut self, event: EventView<'_>) -> usize {
        if let Some(known) = self.entries.iter().position(|entry| entry.is_of(event)) {
            return known;
        }
        let (origin, resource) = (event.origin().clone(), event.resource().clone());
        let source = Arc::new(EventSource::new(&origin, &resource));
        let bytes = self.entries.iter().map(|entry| entry.source.line.len()).sum::<usize>() + source.line.len();
        if self.entries.len() == CACHED || bytes > CACHED_BYTES {
            self.entries.clear();
        }
        self.entries.push(SourceEntry { origin, resource, source });
        self.entries.len() - 1
    }
}

/// Sources, each once, in the order in which they were added.
#[derive(Debug, Default)]
pub struct Sources {
    sources: Vec<Arc<EventSource>>,
    ids: HashSet<String, RandomState>,
    bytes: usize,
}

impl Sources {
    /// Adds a source; returns the length of its line if it is new.
    pub fn add(&mut self, source: &Arc<EventSource>) -> usize {
        // Most events have the source of the one before.
        let is_last = self.sources.last().is_some_and(|last| Arc::ptr_eq(last, source));
        if is_last || self.ids.contains(&source.id) {
            return 0;
        }
        self.ids.insert(source.id.clone());
        self.sources.push(source.clone());
        self.bytes += source.line.len();
        source.line.len()
    }

    /// The sources, in this order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<EventSource>> {
        self.sources.iter()
    }

    /// How many sources there are.
    pub fn count(&self) -> usize {
        self.sources.len()
    }

    /// The length of their lines.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets all sources.
    pub fn clear(&mut self) {
        *self = Sources::default();
    }
}

/// When an output has defined this many sources, all are forgotten: they are defined again when an event has them.
const MAX_DEFINED: usize = 4096;

/// Memory of what an output remembers of defined sources.
pub const DEFINED_BYTES: u64 = MAX_DEFINED as u64 * 64;

/// The ids of the sources that an output has defined.
#[derive(Debug, Default)]
pub struct Defined {
    ids: HashSet<String, RandomState>,
    last: Option<Arc<EventSource>>,
}

impl Defined {
    /// Notes that a source is defined. `false`: it was defined before.
    pub fn add(&mut self, source: &Arc<EventSource>) -> bool {
        if self.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, source)) {
            return false;
        }
        self.clear_if_full(1);
        self.last = Some(source.clone());
        !self.contains(source) && self.ids.insert(source.id.clone())
    }

    /// Forgets all if there is no capacity for `more` sources.
    pub fn clear_if_full(&mut self, more: usize) {
        if self.ids.len() + more > MAX_DEFINED {
            self.clear();
        }
    }

    /// Whether the file has this source.
    pub fn contains(&self, source: &EventSource) -> bool {
        self.ids.contains(&source.id)
    }

    /// Forgets the file: the next one has no source.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.last = None;
    }
}
