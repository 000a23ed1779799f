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

/// What is known of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownKey {
    pub(super) meaning: Meaning,
    pub(super) is_whole_number: bool,
    /// Its name by the conventions that the listener has.
    renamed: Option<&'static str>,
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

    /// The name of a key that was [got](Keys::get), if the listener has another one for it.
    #[inline]
    pub(super) fn renamed(&mut self, key: &[u8]) -> Option<&'static str> {
        if self.is_opentelemetry() { self.known.find(key).and_then(|known| known.renamed) } else { None }
    }

    /// The key in the batch, and what is known of it.
    #[inline]
    pub(super) fn get(&mut self, key: &[u8], batch: &mut BatchBuilder) -> (Key, Meaning, bool) {
        if let Some(known) = self.known.find(key) {
            return (known.key(key, batch), known.meaning, known.is_whole_number);
        }
        let mut known = KnownKey::of(key, self.semantics);
        let written = known.key(key, batch);
        let result = (written, known.meaning, known.is_whole_number);
        self.known.add(key, known);
        result
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
        KnownKey {
            meaning,
            is_whole_number: names_whole_number(&text) || renamed.is_some_and(names_whole_number),
            renamed,
            name: Name::of(&text),
            text: Interned::default(),
        }
    }

    #[inline]
    fn key(&mut self, key: &[u8], batch: &mut BatchBuilder) -> Key {
        match (self.meaning, self.name) {
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
