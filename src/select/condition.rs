//! One condition about an event: all of its parts must be true.

use tributary_event::{
    DataView, EventView, KeyView, Name, Number, ResourceValue, Severity, Status, TextView, ValueView, semconv,
};
use tributary_protocol::Protocol;
use tributary_sink::Kinds;

use super::glob::Glob;
use super::number;

/// A condition. A part that is `None` is true.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Condition {
    /// The kinds that it can be true for: as configured, or those that have what it asks for.
    pub(super) kinds: Kinds,
    pub(super) name: Option<NameGlob>,
    pub(super) protocol: Option<Protocol>,
    pub(super) listener: Option<String>,
    /// At least.
    pub(super) severity: Option<Severity>,
    pub(super) status: Option<Status>,
    /// In nanoseconds.
    pub(super) min_duration: Option<u64>,
    pub(super) field: Option<Field>,
    /// What it matches is kept by `sample`.
    pub(super) is_always: bool,
}

/// A pattern of names of events. What it says about names of ours is looked up.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct NameGlob {
    pub(super) glob: Glob,
    /// A bit for each name of [`Name::all`].
    known: Vec<u64>,
}

/// What a condition asks of an attribute.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Field {
    pub(super) is_of_resource: bool,
    pub(super) key: String,
    /// The key, if it is a name of ours.
    name: Option<Name>,
    pub(super) test: Test,
}

/// What a condition asks of a value. A part that is `None` is true.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Test {
    pub(super) equals: Option<ResourceValue>,
    pub(super) glob: Option<Glob>,
    pub(super) exists: Option<bool>,
    pub(super) min: Option<Number>,
    pub(super) max: Option<Number>,
}

impl Condition {
    /// Whether the event meets all of its parts. What is cheap and rules out most events comes first.
    #[inline]
    pub(super) fn matches(&self, event: EventView<'_>) -> bool {
        self.kinds.contains(event.kind())
            && self.name.as_ref().is_none_or(|name| name.matches(event.name_key()))
            && self.matches_rest(event)
    }

    fn matches_rest(&self, event: EventView<'_>) -> bool {
        let origin = event.origin();
        self.protocol.is_none_or(|protocol| protocol.as_str() == origin.protocol)
            && self.listener.as_deref().is_none_or(|listener| *listener == *origin.listener)
            && self.matches_data(event)
            && self.field.as_ref().is_none_or(|field| field.matches(event))
    }

    /// `kinds` has only kinds that can have what is asked for here.
    fn matches_data(&self, event: EventView<'_>) -> bool {
        match event.data() {
            DataView::Log { severity, .. } => self.severity.is_none_or(|least| severity as u8 >= least as u8),
            DataView::Span(span) => {
                self.status.is_none_or(|status| span.status == status)
                    && self.min_duration.is_none_or(|least| span.duration_nanos.is_some_and(|took| took >= least))
            }
            DataView::Metric(_) | DataView::Sample(_) | DataView::Loss(_) => true,
        }
    }

    /// Whether it can be true for an event of this listener.
    pub(super) fn may_match(&self, protocol: Protocol, listener: &str) -> bool {
        self.protocol.is_none_or(|own| own == protocol) && self.listener.as_deref().is_none_or(|own| own == listener)
    }

    /// Whether it is true for every event of the listeners that it names.
    pub(super) fn is_of_listeners_only(&self) -> bool {
        let Condition { kinds, name, severity, status, min_duration, field, .. } = self;
        *kinds == Kinds::ALL
            && name.is_none()
            && severity.is_none()
            && status.is_none()
            && min_duration.is_none()
            && field.is_none()
    }
}

impl NameGlob {
    pub(super) fn new(glob: Glob) -> Self {
        let mut known = vec![0; Name::all().len().div_ceil(64)];
        for name in Name::all().filter(|name| glob.matches(name.as_str())) {
            known[name.index() / 64] |= 1 << (name.index() % 64);
        }
        NameGlob { glob, known }
    }

    #[inline]
    fn matches(&self, name: KeyView<'_>) -> bool {
        match name {
            KeyView::Name(name) => self.known[name.index() / 64] & (1 << (name.index() % 64)) != 0,
            KeyView::Text(text) => self.glob.matches(text.text()),
        }
    }
}

impl Field {
    pub(super) fn new(is_of_resource: bool, key: String, test: Test) -> Self {
        Field { is_of_resource, name: Name::of(&key), key, test }
    }

    fn matches(&self, event: EventView<'_>) -> bool {
        let value = if self.is_of_resource {
            let attributes = event.resource().attributes();
            attributes.iter().find(|(key, _)| *key == self.key).map(|(_, value)| value.view())
        } else {
            let attribute = event.attribute_members().find(|member| self.is_key(member.key()));
            attribute.map(|member| member.value()).or_else(|| self.kind(event))
        };
        self.test.accepts(value)
    }

    /// The kind of a span, if the condition asks for `span.kind`: it is no attribute.
    fn kind<'a>(&self, event: EventView<'a>) -> Option<ValueView<'a>> {
        match event.data() {
            DataView::Span(span) if self.name == Some(semconv::SPAN_KIND) => {
                span.kind.map(|kind| ValueView::Text(TextView::unchecked(kind.as_str())))
            }
            _ => None,
        }
    }

    #[inline]
    fn is_key(&self, key: KeyView<'_>) -> bool {
        match key {
            KeyView::Name(name) => Some(name) == self.name,
            KeyView::Text(text) => text.text() == self.key,
        }
    }
}

impl Test {
    fn accepts(&self, value: Option<ValueView<'_>>) -> bool {
        let Some(value) = value else { return self.exists == Some(false) };
        self.exists != Some(false)
            && self.equals.as_ref().is_none_or(|wanted| is_equal(wanted, value))
            && self.glob.as_ref().is_none_or(|glob| matches!(value, ValueView::Text(text) if glob.matches(text.text())))
            && self.min.is_none_or(|least| compare(value, least).is_some_and(|order| order.is_ge()))
            && self.max.is_none_or(|most| compare(value, most).is_some_and(|order| order.is_le()))
    }
}

/// A number is compared by value, also with a text that is one, everything else exactly.
fn is_equal(wanted: &ResourceValue, value: ValueView<'_>) -> bool {
    match (wanted.view(), value) {
        (ValueView::Text(wanted), ValueView::Text(text)) => wanted.text() == text.text(),
        (ValueView::Bool(wanted), ValueView::Bool(value)) => wanted == value,
        (ValueView::Text(_), _) => false,
        (wanted, value) => {
            number(wanted).is_some_and(|wanted| compare(value, wanted).is_some_and(|order| order.is_eq()))
        }
    }
}

/// `None`: the value is no number.
fn compare(value: ValueView<'_>, other: Number) -> Option<std::cmp::Ordering> {
    number::compare(number(value)?, other)
}

/// The number that a value is, or that its text is.
fn number(value: ValueView<'_>) -> Option<Number> {
    match value {
        ValueView::Text(text) => number::parse(text.text()),
        ValueView::I64(number) => Some(Number::I64(number)),
        ValueView::U64(number) => Some(Number::U64(number)),
        ValueView::F64(number) => Some(Number::F64(number)),
        _ => None,
    }
}
