//! Scopes of events that came by OTLP: their attributes `otlp.scope.…` become the scope of their records again.

use std::sync::Arc;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::resource::{SCOPE_ATTRIBUTES, SCOPE_NAME, SCOPE_VERSION};
use super::value::push_body;
use tributary_codec::protobuf::{push_bytes_field, push_message};
use tributary_event::{AttributeView, EventView, KeyView, Kind, RunView, ValueView, semconv};

/// The protocol of these events.
pub(super) const OTLP: &str = "otlp";
/// The most scopes that are remembered.
const MAX_SCOPES: usize = 1024;
// Fields of KeyValue.
const KEY: u8 = 1;
const VALUE: u8 = 2;

/// Whether an event is a record of OTLP, not of this program.
#[inline]
pub(super) fn is_record(event: EventView<'_>) -> bool {
    event.origin().protocol == OTLP && event.kind() != Kind::Loss
}

/// Whether an attribute is of the scope.
#[inline]
pub(super) fn is_of_scope(key: KeyView<'_>) -> bool {
    match key {
        KeyView::Name(name) => name == semconv::OTLP_SCOPE_NAME || name == semconv::OTLP_SCOPE_VERSION,
        KeyView::Text(text) => text.text().starts_with(semconv::OTLP_SCOPE.as_str()),
    }
}

/// Whether a run has the attributes of a scope, and no others.
#[inline]
pub(super) fn is_scope(run: RunView<'_>) -> bool {
    run.members().into_iter().next().is_some_and(|member| is_of_scope(member.key()))
}

/// The scope of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ScopeKey {
    /// That of this program for the protocol.
    Own,
    /// One of [`Scopes`], by a number that no other one gets.
    Received(u64),
}

/// The scopes of records.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// The address of the last origin of the batch, and whether its events are records.
    last: Option<(usize, bool)>,
    known: HashMap<Box<[u8]>, u64, RandomState>,
    /// Those of the runs of the batch.
    of_runs: HashMap<usize, u64, RandomState>,
    count: u64,
}

impl Scopes {
    /// To be called for each batch.
    pub(super) fn begin_batch(&mut self) {
        self.last = None;
        self.of_runs.clear();
    }

    /// The scope of an event.
    #[inline]
    pub(super) fn of(&mut self, event: EventView<'_>) -> ScopeKey {
        let origin = Arc::as_ptr(event.origin()).addr();
        let is_otlp = match self.last {
            Some((last, is_otlp)) if last == origin => is_otlp,
            _ => {
                let is_otlp = event.origin().protocol == OTLP;
                self.last = Some((origin, is_otlp));
                is_otlp
            }
        };
        if is_otlp && event.kind() != Kind::Loss { ScopeKey::Received(self.received(event)) } else { ScopeKey::Own }
    }

    fn received(&mut self, event: EventView<'_>) -> u64 {
        let run = event.attribute_parts().find_map(|part| match part {
            AttributeView::Run(run) if is_scope(run) => Some(run.index()),
            _ => None,
        });
        if let Some(known) = run.and_then(|run| self.of_runs.get(&run)) {
            return *known;
        }
        let encoded = encode(event);
        let known = self.known.get(&*encoded).copied();
        let number = known.unwrap_or_else(|| {
            if self.known.len() >= MAX_SCOPES {
                self.known.clear();
            }
            self.count += 1;
            self.known.insert(encoded.into(), self.count);
            self.count
        });
        if let Some(run) = run {
            self.of_runs.insert(run, number);
        }
        number
    }
}

/// The message `InstrumentationScope` of an event.
pub(super) fn encode(event: EventView<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in event.attributes() {
        let Some(key) = key.text().strip_prefix(semconv::OTLP_SCOPE.as_str()) else { continue };
        match (key, value) {
            ("name", ValueView::Text(text)) => push_bytes_field(&mut out, SCOPE_NAME, text.text().as_bytes()),
            ("version", ValueView::Text(text)) => push_bytes_field(&mut out, SCOPE_VERSION, text.text().as_bytes()),
            ("", _) | (_, ValueView::Null) => {}
            (key, value) => push_message(&mut out, SCOPE_ATTRIBUTES, 1, |out| {
                push_bytes_field(out, KEY, key.as_bytes());
                push_body(out, VALUE, value);
            }),
        }
    }
    out
}
