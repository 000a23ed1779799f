//! The keys of tags: what each one means, and where its text is in the batch.

use tributary_codec::text::escape;
use tributary_event::{BatchBuilder, Interned, Key, LatestKeys, Name, names_whole_number, semconv};
use tributary_protocol::datadog_tags::{SpanTag, is_reserved, resource_name};

use super::options::Semantics;
use super::semantics;

/// What a tag is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Meaning {
    /// An attribute with its own key.
    Attribute,
    /// A key that this program writes itself: the tag gets a prefix.
    Reserved,
    /// A part of the resource.
    Resource,
    /// The upper half of the id of the trace.
    TraceId,
    /// A part of the span, or an attribute with another name.
    Span(SpanTag),
    /// JSON of links.
    Links,
    /// JSON of events.
    Events,
}

/// What the key of a tag says of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TagFacts {
    pub(super) meaning: Meaning,
    pub(super) is_whole_number: bool,
    /// Its name by the conventions of the listener, if that is another one.
    pub(super) renamed: Option<&'static str>,
}

/// What is known of a key.
#[derive(Clone, Copy, Debug)]
struct KnownKey {
    facts: TagFacts,
    name: Option<Name>,
    text: Interned,
}

/// The keys of the bodies of a listener, which one body after another uses.
#[derive(Debug, Default)]
pub(super) struct Keys {
    semantics: Semantics,
    known: LatestKeys<KnownKey>,
}

impl Keys {
    pub(super) fn new(semantics: Semantics) -> Keys {
        Keys { semantics, ..Keys::default() }
    }

    /// Whether names are those of OpenTelemetry.
    #[inline]
    pub(super) fn is_opentelemetry(&self) -> bool {
        self.semantics == Semantics::OpenTelemetry
    }

    /// The key in the batch, and what it says of its tag.
    #[inline]
    pub(super) fn get(&mut self, key: &[u8], batch: &mut BatchBuilder) -> (Key, TagFacts) {
        if let Some(known) = self.known.find(key) {
            return (known.key(key, batch), known.facts);
        }
        let mut known = KnownKey::of(key, self.semantics);
        let written = (known.key(key, batch), known.facts);
        self.known.add(key, known);
        written
    }
}

impl KnownKey {
    fn of(key: &[u8], semantics: Semantics) -> KnownKey {
        let text = escape(key);
        let renamed = if semantics == Semantics::OpenTelemetry { semantics::renamed(&text) } else { None };
        let meaning = match &*text {
            "_dd.p.tid" => Meaning::TraceId,
            "_dd.span_links" => Meaning::Links,
            "events" => Meaning::Events,
            text if resource_name(text).is_some() => Meaning::Resource,
            text if text.is_empty() || is_reserved(text) => Meaning::Reserved,
            text => SpanTag::of(text).map_or(Meaning::Attribute, Meaning::Span),
        };
        let is_whole_number = names_whole_number(&text) || renamed.is_some_and(names_whole_number);
        let facts = TagFacts { meaning, is_whole_number, renamed };
        KnownKey { facts, name: Name::of(&text), text: Interned::default() }
    }

    #[inline]
    fn key(&mut self, key: &[u8], batch: &mut BatchBuilder) -> Key {
        match (self.facts.meaning, self.name) {
            (Meaning::Reserved, _) => {
                let text = escape(key);
                batch.push_parts(&[semconv::DATADOG_META.as_str(), &text]).into()
            }
            (_, Some(name)) => name.into(),
            (_, None) => match batch.interned(&self.text) {
                Some(text) => text.into(),
                None => batch.intern(&mut self.text, &escape(key)).into(),
            },
        }
    }
}
