//! The attributes of one event: its own, and those that the sink adds.

use std::collections::HashSet;
use std::sync::Arc;

use super::runs::RunCache;
use super::value::{push_attribute, push_bool_attribute, push_text_attribute, push_u64_attribute};
use tributary_event::{AttributeView, EventView, KeyView, Name, Origin, Position, ValueView, semconv};

/// What events of one signal share, encoded once.
#[derive(Debug)]
pub(super) struct Caches {
    /// `None`: origins are not sent.
    pub(super) origin: Option<OriginCache>,
    pub(super) runs: RunCache,
    /// The event is a record of OTLP, not of this program.
    pub(super) is_record: bool,
}

/// Writes the attributes of an event into a field of its message.
pub(super) struct AttributeWriter<'a> {
    event: EventView<'a>,
    field: u8,
    /// A value was sent as JSON text.
    is_nested: bool,
    /// The event may have a key that the sink adds.
    may_collide: bool,
}

impl<'a> AttributeWriter<'a> {
    pub(super) fn new(event: EventView<'a>, field: u8) -> Self {
        AttributeWriter { event, field, is_nested: false, may_collide: false }
    }

    /// Writes the attributes of the event, except those that `take` takes: they have a field of their own. Empty keys and null
    /// are left out.
    #[inline]
    pub(super) fn push_all(
        &mut self,
        out: &mut Vec<u8>,
        runs: &mut RunCache,
        mut take: impl FnMut(KeyView<'a>, ValueView<'a>) -> bool,
    ) {
        let (event, field) = (self.event, self.field);
        let mut keys = None;
        let mut push = |out: &mut Vec<u8>, key: KeyView<'a>, value: ValueView<'a>| {
            let is_empty = if let KeyView::Text(text) = key {
                let text = text.text();
                self.may_collide |= is_reserved(text);
                text.is_empty()
            } else {
                false
            };
            if is_empty || matches!(value, ValueView::Null) || take(key, value) {
                return;
            }
            let all = || event.attributes().map(|(key, _)| key.text()).collect::<HashSet<_>>();
            let has_key = |key: &str| keys.get_or_insert_with(all).contains(key);
            self.is_nested |= push_attribute(out, field, key, value, has_key);
        };
        for part in event.attribute_parts() {
            match part {
                AttributeView::One(member) => push(out, member.key(), member.value()),
                AttributeView::Run(run) => match runs.encoded(run, field) {
                    Some(encoded) => out.extend_from_slice(encoded),
                    None => run.members().for_each(|member| push(out, member.key(), member.value())),
                },
            }
        }
    }

    /// A part of the event outside of its attributes was sent as JSON text.
    pub(super) fn note_nested(&mut self, is_nested: bool) {
        self.is_nested |= is_nested;
    }

    /// Whether the event itself has this attribute. Then the sink does not add it: keys must be unique.
    pub(super) fn has(&self, name: Name) -> bool {
        let is_it =
            |key: &str| key.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest == "_base64");
        let is_written = |value| !matches!(value, ValueView::Null);
        self.may_collide && self.event.attributes().any(|(key, value)| is_it(key.text()) && is_written(value))
    }

    /// Writes an attribute of the sink.
    pub(super) fn push_text(&self, out: &mut Vec<u8>, name: Name, text: &str) {
        if !self.has(name) {
            push_text_attribute(out, self.field, KeyView::Name(name), text);
        }
    }

    /// Writes an attribute of the sink.
    pub(super) fn push_u64(&self, out: &mut Vec<u8>, name: Name, number: u64) {
        if !self.has(name) {
            push_u64_attribute(out, self.field, KeyView::Name(name), number);
        }
    }

    /// Writes an attribute of the sink.
    pub(super) fn push_true(&self, out: &mut Vec<u8>, name: Name) {
        if !self.has(name) {
            push_bool_attribute(out, self.field, KeyView::Name(name), true);
        }
    }

    /// Writes the origin of the event, and last the marks that all kinds have.
    pub(super) fn finish(self, out: &mut Vec<u8>, caches: &mut Caches) {
        if let Some(cache) = &mut caches.origin {
            let constant = cache.of(self.event.origin(), self.field);
            if self.may_collide {
                self.push_parts(out, constant);
            } else {
                out.extend_from_slice(&constant.encoded);
            }
            if !constant.is_short {
                let Position { sequence, offset, .. } = self.event.position();
                if let Some(sequence) = sequence {
                    self.push_u64(out, semconv::ORIGIN_SEQUENCE, sequence);
                }
                self.push_u64(out, semconv::ORIGIN_OFFSET, offset);
            }
        }
        if self.is_nested {
            self.push_true(out, semconv::TEXT_NESTED);
        }
    }

    /// Writes those of the attributes of an origin that the event has not.
    fn push_parts(&self, out: &mut Vec<u8>, origin: &Constant) {
        let mut start = 0;
        for (name, end) in &origin.parts {
            if !self.has(*name) {
                out.extend_from_slice(&origin.encoded[start..*end]);
            }
            start = *end;
        }
    }
}

/// Whether a key of a peer has the form of those that the sink adds.
pub(super) fn is_reserved(key: &str) -> bool {
    matches!(key.as_bytes(), [b't' | b'n' | b'l', ..])
        && ["tributary.", "network.peer.", "loss."].iter().any(|prefix| key.starts_with(prefix))
}

/// The attributes that are constant for a connection, encoded once.
#[derive(Debug)]
pub(super) struct OriginCache {
    /// Without what differs between connections, and between events of one: each difference makes another time series.
    is_short: bool,
    /// The last origin, and the field of its attributes.
    last: Option<(Arc<Origin>, u8, Constant)>,
}

#[derive(Debug, Default)]
struct Constant {
    is_short: bool,
    encoded: Vec<u8>,
    /// The attributes, with the end of each.
    parts: Vec<(Name, usize)>,
}

impl OriginCache {
    /// For events that are records of their own.
    pub(super) fn full() -> OriginCache {
        OriginCache { is_short: false, last: None }
    }

    /// For points of time series.
    pub(super) fn short() -> OriginCache {
        OriginCache { is_short: true, last: None }
    }

    fn of(&mut self, origin: &Arc<Origin>, field: u8) -> &Constant {
        let is_known = self.last.as_ref().is_some_and(|(known, of, _)| Arc::ptr_eq(known, origin) && *of == field);
        if !is_known {
            self.last = None;
        }
        let is_short = self.is_short;
        let make = || (origin.clone(), field, Constant::of(origin, field, is_short));
        let (_, _, constant) = self.last.get_or_insert_with(make);
        constant
    }
}

impl Constant {
    fn of(origin: &Origin, field: u8, is_short: bool) -> Constant {
        let mut constant = Constant { is_short, ..Constant::default() };
        let out = &mut constant.encoded;
        push_text_attribute(out, field, semconv::ORIGIN_LISTENER.as_str(), &*origin.listener);
        constant.parts.push((semconv::ORIGIN_LISTENER, out.len()));
        let (address, port) = origin.peer_address();
        if !address.is_empty() {
            push_text_attribute(out, field, semconv::NETWORK_PEER_ADDRESS.as_str(), address);
            constant.parts.push((semconv::NETWORK_PEER_ADDRESS, out.len()));
        }
        if is_short {
            return constant;
        }
        if let Some(port) = port {
            push_u64_attribute(out, field, semconv::NETWORK_PEER_PORT.as_str(), port.into());
            constant.parts.push((semconv::NETWORK_PEER_PORT, out.len()));
        }
        push_u64_attribute(out, field, semconv::ORIGIN_CONNECTION.as_str(), origin.connection);
        constant.parts.push((semconv::ORIGIN_CONNECTION, out.len()));
        constant
    }
}
