//! Events that were stored, made events of a batch again: [`json`] lines, the [`event_file`]s that have them, and the [`row`]s of
//! a journal, which [`row_reader`] reads.
#![forbid(unsafe_code)]

mod distribution;
pub mod event_file;
pub mod json;
mod recent;
pub mod row;
pub mod row_reader;

pub use distribution::{StoredBuckets, StoredDistribution, metric_type};

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use json::Day;
use recent::Recent;
use tributary_event::{
    AttributeKeys, Batch, BatchBuilder, Frame, Header, Key, Loss, MetricData, Origin, Reason, Resource, ResourceValue,
    SampleData, Severity, SeverityNumber, SpanData, SpanEvent, SpanExtras, SpanLink, TraceContext, Value,
};

/// The longest stored origin or resource that is remembered.
const MAX_RECENT_BYTES: usize = 4096;

/// Makes batches of stored events.
#[derive(Debug)]
pub struct Rebuilder {
    builder: BatchBuilder,
    /// The sources that compact lines can name, by their ids.
    sources: HashMap<String, (Arc<Origin>, Arc<Resource>), RandomState>,
    keys: AttributeKeys,
    origins: Recent<Arc<Origin>>,
    /// Origins, and the bytes of lines from which they were read.
    stored_origins: Recent<(Box<[u8]>, Arc<Origin>)>,
    /// Resources, and the bytes from which they were read.
    resources: Recent<(Box<[u8]>, Arc<Resource>)>,
    /// The day of the last time of an event, of the last end of a span, and of when the last event was read.
    last_time: Day,
    last_end: Day,
    last_observed: Day,
}

/// The origin of an event, as it was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct OriginParts<'a> {
    pub protocol: &'a str,
    pub version: Option<&'a str>,
    pub listener: &'a str,
    pub peer: &'a str,
    pub connection: u64,
}

/// The data of a kind, with texts and values of the batch.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum StoredData {
    Log {
        severity: SeverityNumber,
        context: Option<TraceContext>,
        body: Option<Value>,
    },
    Span {
        span: SpanData,
        extras: SpanExtras,
        links: Vec<SpanLink>,
        events: Vec<SpanEvent>,
    },
    /// A gauge or a sum.
    Metric(MetricData),
    Distribution(Box<StoredDistribution>),
    Sample {
        sample: SampleData,
        frames: Vec<Frame>,
    },
    Loss {
        reason: Reason,
        bytes: u64,
        events: Option<u64>,
        detail: String,
        excerpt: Vec<u8>,
    },
}

impl Default for Rebuilder {
    fn default() -> Self {
        let origin = Origin::new("", "".into(), "".into(), 0);
        Rebuilder {
            builder: BatchBuilder::new(Arc::new(origin)),
            sources: HashMap::default(),
            keys: AttributeKeys::default(),
            origins: Recent::default(),
            stored_origins: Recent::default(),
            resources: Recent::default(),
            last_time: Day::default(),
            last_end: Day::default(),
            last_observed: Day::default(),
        }
    }
}

impl Rebuilder {
    /// The builder of the batch, for texts and values.
    pub fn builder(&mut self) -> &mut BatchBuilder {
        &mut self.builder
    }

    /// Sets the origin of the next events.
    pub fn set_origin(&mut self, parts: OriginParts<'_>) {
        if OriginParts::of(self.builder.origin()) != parts {
            let origin = self.origins.find(|known| OriginParts::of(known) == parts).cloned();
            let origin = origin.unwrap_or_else(|| self.origins.add(Arc::new(parts.origin())).clone());
            self.builder.set_origin(origin);
        }
    }

    /// The same, read from these bytes, which are remembered.
    fn set_stored_origin(&mut self, bytes: &[u8], parts: OriginParts<'_>) {
        self.set_origin(parts);
        if bytes.len() <= MAX_RECENT_BYTES {
            self.stored_origins.add((bytes.into(), self.builder.origin().clone()));
        }
    }

    /// The length of a stored origin that was read lately, if these bytes begin with it: the last stored origin from now on.
    fn stored_origin_len(&mut self, bytes: &[u8]) -> Option<usize> {
        self.stored_origins.find(|(known, _)| bytes.starts_with(known)).map(|(known, _)| known.len())
    }

    fn last_stored_origin(&self) -> Option<&Arc<Origin>> {
        self.stored_origins.last().map(|(_, origin)| origin)
    }

    /// Sets the last stored origin for the next events.
    fn set_last_stored_origin(&mut self) {
        if let Some((_, origin)) = self.stored_origins.last()
            && !Arc::ptr_eq(origin, self.builder.origin())
        {
            self.builder.set_origin(origin.clone());
        }
    }

    /// Sets the resource of the next events.
    pub fn set_resource(&mut self, attributes: Vec<(String, ResourceValue)>) {
        if !is_same(self.builder.resource().attributes(), &attributes) {
            self.builder.set_resource(Arc::new(Resource::new(attributes)));
        }
    }

    /// The same, stored as these bytes, which are read if that was not done lately.
    ///
    /// # Errors
    /// Those of `read`.
    fn set_stored_resource<E>(
        &mut self,
        bytes: &[u8],
        read: impl FnOnce() -> Result<Vec<(String, ResourceValue)>, E>,
    ) -> Result<(), E> {
        match self.resources.find(|(known, _)| **known == *bytes) {
            Some((_, known)) if Arc::ptr_eq(known, self.builder.resource()) => {}
            Some((_, known)) => self.builder.set_resource(known.clone()),
            None => {
                self.set_resource(read()?);
                if bytes.len() <= MAX_RECENT_BYTES {
                    self.resources.add((bytes.into(), self.builder.resource().clone()));
                }
            }
        }
        Ok(())
    }

    /// The length of a stored resource that was read lately, if these bytes begin with it.
    fn stored_resource_len(&mut self, bytes: &[u8]) -> Option<usize> {
        self.resources.find(|(known, _)| bytes.starts_with(known)).map(|(known, _)| known.len())
    }

    /// Events can have this source from now on.
    pub fn define_source(&mut self, id: &str, origin: OriginParts<'_>, resource: Vec<(String, ResourceValue)>) {
        self.sources.insert(id.to_owned(), (Arc::new(origin.origin()), Arc::new(Resource::new(resource))));
    }

    /// Sets the source of the next events. `false`: it is not defined.
    pub fn set_source(&mut self, id: &str) -> bool {
        let Some((origin, resource)) = self.sources.get(id) else { return false };
        if !Arc::ptr_eq(self.builder.origin(), origin) {
            self.builder.set_origin(origin.clone());
        }
        if !Arc::ptr_eq(self.builder.resource(), resource) {
            self.builder.set_resource(resource.clone());
        }
        true
    }

    /// A key: a name of ours, or one of the peer.
    #[inline]
    pub fn key(&mut self, text: &str) -> Key {
        let known = self.keys.find(text.as_bytes(), &self.builder);
        known.unwrap_or_else(|| self.keys.add(text.as_bytes(), text, &mut self.builder))
    }

    /// The same, of bytes. `None`: they are no UTF-8.
    #[inline]
    fn key_of_bytes(&mut self, bytes: &[u8]) -> Option<Key> {
        match self.keys.find(bytes, &self.builder) {
            Some(key) => Some(key),
            None => str::from_utf8(bytes).ok().map(|text| self.keys.add(bytes, text, &mut self.builder)),
        }
    }

    /// Adds an event.
    pub fn push(&mut self, header: Header, attributes: &[(Key, Value)], data: StoredData) {
        if let StoredData::Loss { reason, bytes, events, detail, excerpt } = &data {
            let loss = Loss { reason: *reason, bytes: *bytes, events: *events, detail, excerpt };
            return self.builder.loss_with(header, loss, attributes);
        }
        let mut event = self.builder.event(header);
        attributes.iter().for_each(|(key, value)| event.attribute(*key, *value));
        match data {
            StoredData::Log { severity, context: Some(context), body } => event.log_in(context, severity, body),
            StoredData::Log { severity, context: None, body } => event.log(severity, body),
            StoredData::Span { span, extras, links, events } => event.span_with_extras(span, extras, &links, &events),
            StoredData::Metric(metric) => event.metric(metric),
            StoredData::Distribution(stored) => event.distribution(stored.unit, stored.start, &stored.view()),
            StoredData::Sample { sample, frames } => event.sample(sample, &frames),
            StoredData::Loss { .. } => {}
        }
    }

    /// Whether the batch should be taken before another event is added.
    pub fn is_full(&self) -> bool {
        self.builder.is_full()
    }

    /// Ends the batch and begins the next one.
    pub fn take(&mut self) -> Batch {
        self.builder.take()
    }
}

impl<'a> OriginParts<'a> {
    /// The parts of an origin.
    pub fn of(origin: &'a Origin) -> Self {
        OriginParts {
            protocol: origin.protocol,
            version: origin.version.as_deref(),
            listener: &origin.listener,
            peer: &origin.peer,
            connection: origin.connection,
        }
    }

    fn origin(self) -> Origin {
        let OriginParts { protocol, version, listener, peer, connection } = self;
        let origin = Origin::new(constant(protocol), listener.into(), peer.into(), connection).stored();
        version.map(|version| origin.with_version(version)).unwrap_or(origin)
    }
}

/// Compared exactly: a double that is not a number is the same as itself.
fn is_same(known: &[(String, ResourceValue)], attributes: &[(String, ResourceValue)]) -> bool {
    let is_same = |a: &ResourceValue, b: &ResourceValue| match (a, b) {
        (ResourceValue::F64(a), ResourceValue::F64(b)) => a.to_bits() == b.to_bits(),
        (a, b) => a == b,
    };
    known.len() == attributes.len()
        && known.iter().zip(attributes).all(|((key, value), (other, of))| key == other && is_same(value, of))
}

/// The severity with this name.
pub fn severity(name: &str) -> Option<Severity> {
    use Severity::{Debug, Error, Fatal, Info, Trace, Warn};
    [Trace, Debug, Info, Warn, Error, Fatal].into_iter().find(|severity| severity.as_str() == name)
}

/// The reason with this name.
pub fn reason(name: &str) -> Option<Reason> {
    Reason::ALL.into_iter().find(|reason| reason.as_str() == name)
}

/// The most different texts that [`constant`] keeps, and the longest.
const MAX_CONSTANTS: usize = 1024;
const MAX_CONSTANT_BYTES: usize = 256;

/// A text that stays for the life of the process: names of protocols are few, and an origin has them as
/// constants. Beyond a limit that no stored events of ours reach, the empty text.
fn constant(text: &str) -> &'static str {
    static KNOWN: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    if text.is_empty() || text.len() > MAX_CONSTANT_BYTES {
        return "";
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    match known.get(text) {
        Some(known) => known,
        None if known.len() >= MAX_CONSTANTS => "",
        None => {
            let text: &'static str = Box::leak(text.to_owned().into_boxed_str());
            known.insert(text);
            text
        }
    }
}
