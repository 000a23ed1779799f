//! Copies of a batch: some of its events, with values removed or replaced.
//!
//! A copy contains only what its events refer to. A value that was removed or replaced is not in it, unless it is also the
//! value of a key that was kept.

use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::batch::{Attribute, Batch, Event, EventData, Frame, LossData, NO_CONTEXT, Run, SampleData};
use super::metric::{Label, MetricData};
use super::span::{SpanEvent, SpanExtras, SpanLink};
use super::text::{Escapes, Text, index32};
use super::value::{Key, KeyContent, Span32, Value};
use super::view::{KeyView, ValueView, of_span};
use super::{Origin, Resource};

/// The changes of a copy.
pub trait Edits {
    /// What happens to the value at `place`. If it is kept, it is also asked for the values inside of it.
    fn action(&self, place: ValueLocation<'_>) -> Action;
    /// The text that stands for a value whose action is [`Action::Replace`].
    fn replacement(&self, value: ValueView<'_>) -> String;
    /// Another resource instead of this one; `None`: it is kept.
    fn resource(&self, resource: &Arc<Resource>) -> Option<Arc<Resource>>;
    /// Another origin instead of this one; `None`: it is kept.
    fn origin(&self, origin: &Arc<Origin>) -> Option<Arc<Origin>>;
}

/// Where a value stands in an event.
#[derive(Clone, Copy, Debug)]
pub enum ValueLocation<'a> {
    /// The attribute with this key, of the event or of a link or event of a span.
    Attribute(KeyView<'a>),
    /// A member of an object in an attribute or in a body.
    Member {
        /// Its own key.
        key: &'a str,
        /// The keys that lead to it, joined by dots, its own included. That of a body begins with `body.`.
        path: &'a str,
    },
    /// A part of the event that is no attribute: [`BODY`], [`STATUS_MESSAGE`], [`TRACE_STATE`], [`LOSS_DETAIL`],
    /// [`LOSS_EXCERPT`].
    Field(&'static str),
}

/// The body of a log.
pub const BODY: &str = "body";
/// What went wrong, of a span.
pub const STATUS_MESSAGE: &str = "span.status_message";
/// The state of its trace, of a span. It stays where it is a part of a link.
pub const TRACE_STATE: &str = "span.trace_state";
/// What was found where, of a loss.
pub const LOSS_DETAIL: &str = "loss.detail";
/// The first bytes of what was lost. It cannot be replaced, only removed.
pub const LOSS_EXCERPT: &str = "loss.excerpt";

/// What happens to a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// It is copied.
    Keep,
    /// It is left out, with its key.
    Remove,
    /// A text stands for it.
    Replace,
}

/// No change.
struct Unchanged;

impl Edits for Unchanged {
    #[inline]
    fn action(&self, _: ValueLocation<'_>) -> Action {
        Action::Keep
    }

    fn replacement(&self, _: ValueView<'_>) -> String {
        String::new()
    }

    fn resource(&self, _: &Arc<Resource>) -> Option<Arc<Resource>> {
        None
    }

    fn origin(&self, _: &Arc<Origin>) -> Option<Arc<Origin>> {
        None
    }
}

impl Batch {
    /// A batch of the events whose index `is_chosen` accepts, in their order.
    pub fn copy_of(&self, is_chosen: impl Fn(usize) -> bool) -> Batch {
        Copier::new(self, &Unchanged).copy(is_chosen)
    }

    /// Appends the events of another batch whose index `is_chosen` accepts, in their order. What several of them share is shared with
    /// those that are here, too.
    pub fn append_copy_of(&mut self, from: &Batch, is_chosen: impl Fn(usize) -> bool) {
        let mut copier = Copier::new(from, &Unchanged);
        let (before, output_bytes) = (self.len(), self.output_bytes);
        copier.to = std::mem::take(self);
        let place = |known: &[usize], wanted: usize| known.iter().position(|known| *known == wanted).map(index32);
        let addresses = |all: &[Arc<Resource>]| all.iter().map(|one| Arc::as_ptr(one).addr()).collect::<Vec<_>>();
        let known = addresses(&copier.to.resources);
        copier.resources = addresses(&from.resources).into_iter().map(|one| place(&known, one)).collect();
        let addresses = |all: &[Arc<Origin>]| all.iter().map(|one| Arc::as_ptr(one).addr()).collect::<Vec<_>>();
        let known = addresses(&copier.to.origins);
        copier.origins = addresses(&from.origins).into_iter().map(|one| place(&known, one)).collect();
        let mut all = copier.copy(is_chosen);
        all.output_bytes = output_bytes + from.output_bytes / from.len().max(1) * (all.len() - before);
        *self = all;
    }

    /// Gives back the memory that no event takes.
    pub fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.bytes.shrink_to_fit();
        self.events.shrink_to_fit();
        self.attributes.shrink_to_fit();
        self.members.shrink_to_fit();
        self.values.shrink_to_fit();
        self.spans.shrink_to_fit();
        self.links.shrink_to_fit();
        self.span_events.shrink_to_fit();
        self.span_extras.shrink_to_fit();
        self.runs.shrink_to_fit();
    }

    /// The same with changes. `None`: nothing of these events changes.
    pub fn edited_copy_of(&self, is_chosen: impl Fn(usize) -> bool, edits: &impl Edits) -> Option<Batch> {
        Finder { batch: self, edits, path: String::new() }
            .finds(&is_chosen)
            .then(|| Copier::new(self, edits).copy(is_chosen))
    }
}

/// Looks for a value that changes.
struct Finder<'a, E> {
    batch: &'a Batch,
    edits: &'a E,
    path: String,
}

impl<E: Edits> Finder<'_, E> {
    fn finds(&mut self, is_chosen: impl Fn(usize) -> bool) -> bool {
        let Finder { batch, edits, .. } = *self;
        // A run, resource or origin can be of other events only. Then the copy is made in vain.
        batch.resources.iter().any(|resource| edits.resource(resource).is_some())
            || batch.origins.iter().any(|origin| edits.origin(origin).is_some())
            || batch.runs.iter().any(|run| self.finds_in_run(run))
            || batch.events.iter().enumerate().any(|(index, event)| is_chosen(index) && self.finds_in_event(event))
    }

    fn finds_in_run(&mut self, run: &Run) -> bool {
        let members = &self.batch.members[run.members.range()];
        members.iter().any(|(key, value)| self.finds_in_attribute(*key, *value))
    }

    fn finds_in_event(&mut self, event: &Event) -> bool {
        let batch = self.batch;
        let in_data = match &event.data {
            EventData::Log { body: Some(body), .. } => {
                self.changes(ValueLocation::Field(BODY)) || self.finds_in(BODY, *body)
            }
            EventData::Loss(_) => {
                self.changes(ValueLocation::Field(LOSS_DETAIL)) || self.changes(ValueLocation::Field(LOSS_EXCERPT))
            }
            EventData::Span(place) => self.finds_in_span(*place),
            EventData::Log { .. } | EventData::Metric(_) | EventData::Sample { .. } => false,
        };
        in_data
            || batch.attributes[event.attributes.range()].iter().any(|attribute| match attribute {
                Attribute::One(key, value) => self.finds_in_attribute(*key, *value),
                Attribute::Run(_) => false,
            })
    }

    fn finds_in_span(&mut self, place: u32) -> bool {
        let batch = self.batch;
        let links = of_span(&batch.links, place).iter().map(|(_, link)| link.attributes);
        let events = of_span(&batch.span_events, place).iter().map(|(_, event)| event.attributes);
        let has_state = || of_span(&batch.span_extras, place).iter().any(|(_, extras)| extras.trace_state.is_some());
        (batch.spans[place as usize].status_message.is_some() && self.changes(ValueLocation::Field(STATUS_MESSAGE)))
            || (has_state() && self.changes(ValueLocation::Field(TRACE_STATE)))
            || links.chain(events).any(|attributes| {
                batch.members[attributes.range()].iter().any(|(key, value)| self.finds_in_attribute(*key, *value))
            })
    }

    fn finds_in_attribute(&mut self, key: Key, value: Value) -> bool {
        let batch = self.batch;
        let key = batch.key(key);
        self.changes(ValueLocation::Attribute(key)) || (has_members(value) && self.finds_in(key.text().text(), value))
    }

    /// Whether a member of a value changes that stands below `path`.
    fn finds_in(&mut self, path: &str, value: Value) -> bool {
        self.path.clear();
        self.path.push_str(path);
        self.finds_below(value)
    }

    fn finds_below(&mut self, value: Value) -> bool {
        let batch = self.batch;
        match value {
            Value::Array(range) => batch.values[range.range()].iter().any(|item| self.finds_below(*item)),
            Value::Map(range) => batch.members[range.range()].iter().any(|(key, value)| {
                let (before, key) = (self.path.len(), batch.key(*key).text().text());
                push_key(&mut self.path, key);
                let finds = self.changes(ValueLocation::Member { key, path: &self.path }) || self.finds_below(*value);
                self.path.truncate(before);
                finds
            }),
            _ => false,
        }
    }

    fn changes(&self, place: ValueLocation<'_>) -> bool {
        self.edits.action(place) != Action::Keep
    }
}

/// Makes a copy.
struct Copier<'a, E> {
    from: &'a Batch,
    to: Batch,
    edits: &'a E,
    /// The texts that were copied, by their place in `from`.
    texts: HashMap<(u32, u32), Text, RandomState>,
    /// The copies of runs, origins and resources, by their index in `from`.
    runs: Vec<Option<u32>>,
    origins: Vec<Option<u32>>,
    resources: Vec<Option<u32>>,
    path: String,
    /// The stack that was copied last, and its copy.
    last_stack: (Span32, Span32),
}

impl<'a, E: Edits> Copier<'a, E> {
    fn new(from: &'a Batch, edits: &'a E) -> Self {
        Copier {
            from,
            to: Batch { content: from.content, message: from.message, ..Batch::default() },
            edits,
            texts: HashMap::default(),
            runs: vec![None; from.runs.len()],
            origins: vec![None; from.origins.len()],
            resources: vec![None; from.resources.len()],
            last_stack: Default::default(),
            path: String::new(),
        }
    }

    fn copy(mut self, is_chosen: impl Fn(usize) -> bool) -> Batch {
        let from = self.from;
        for (_, event) in from.events.iter().enumerate().filter(|(index, _)| is_chosen(*index)) {
            self.event(event);
        }
        // How much of it each event has is not known.
        self.to.output_bytes = from.output_bytes / from.len().max(1) * self.to.len();
        self.to
    }

    fn event(&mut self, event: &Event) {
        let from = self.from;
        let first = self.to.attributes.len();
        for attribute in &from.attributes[event.attributes.range()] {
            match attribute {
                Attribute::One(key, value) => {
                    if let Some((key, value)) = self.attribute(*key, *value) {
                        self.to.attributes.push(Attribute::One(key, value));
                    }
                }
                Attribute::Run(run) => self.run(*run),
            }
        }
        let attributes = Span32::new(first, self.to.attributes.len());
        let data = self.data(&event.data);
        let (origin, resource) = (self.origin(event.origin), self.resource(event.resource));
        let mut header = event.header;
        header.name = self.key(header.name);
        self.to.counts[data.kind().index()] += 1;
        self.to.events.push(Event { header, data, attributes, origin, resource });
    }

    fn data(&mut self, data: &EventData) -> EventData {
        let from = self.from;
        match data {
            EventData::Log { severity, context, body } => {
                let context = from.contexts.get(*context as usize).map_or(NO_CONTEXT, |context| {
                    self.to.contexts.push(*context);
                    index32(self.to.contexts.len() - 1)
                });
                let body = body.and_then(|body| self.field(BODY, body));
                EventData::Log { severity: *severity, context, body }
            }
            EventData::Span(place) => self.span(*place),
            EventData::Metric(place) => {
                let metric = from.metrics[*place as usize];
                let unit = self.label(metric.unit);
                if let Some(distribution) = from.distribution_of(*place) {
                    self.to.distributions.push(index32(self.to.metrics.len()), &distribution);
                }
                self.to.metrics.push(MetricData { unit, ..metric });
                EventData::Metric(index32(self.to.metrics.len() - 1))
            }
            EventData::Sample { data, frames } => {
                let sample = from.samples[*data as usize];
                let (sample_type, unit) = (self.label(sample.sample_type), self.label(sample.unit));
                self.to.samples.push(SampleData { sample_type, unit, ..sample });
                let data = index32(self.to.samples.len() - 1);
                EventData::Sample { data, frames: self.stack(*frames) }
            }
            EventData::Loss(place) => {
                let LossData { reason, bytes, events, detail, excerpt } = &from.losses[*place as usize];
                let detail = self.text_field(LOSS_DETAIL, *detail).unwrap_or_default();
                let excerpt = match self.edits.action(ValueLocation::Field(LOSS_EXCERPT)) {
                    Action::Keep => self.bytes(*excerpt),
                    Action::Remove | Action::Replace => Span32::default(),
                };
                self.to.losses.push(LossData { reason: *reason, bytes: *bytes, events: *events, detail, excerpt });
                EventData::Loss(index32(self.to.losses.len() - 1))
            }
        }
    }

    fn span(&mut self, place: u32) -> EventData {
        let from = self.from;
        let mut span = from.spans[place as usize];
        span.status_message = span.status_message.and_then(|text| self.text_field(STATUS_MESSAGE, text));
        self.to.spans.push(span);
        let copy = index32(self.to.spans.len() - 1);
        for (_, extras) in of_span(&from.span_extras, place) {
            let trace_state = extras.trace_state.and_then(|text| self.text_field(TRACE_STATE, text));
            self.to.span_extras.push((copy, SpanExtras { trace_state, ..*extras }));
        }
        for (_, SpanLink { to, attributes, trace_state, flags }) in of_span(&from.links, place) {
            let attributes = self.attributes(*attributes);
            let trace_state = trace_state.map(|text| self.text(text));
            self.to.links.push((copy, SpanLink { to: *to, attributes, trace_state, flags: *flags }));
        }
        for (_, SpanEvent { time, name, attributes }) in of_span(&from.span_events, place) {
            let attributes = self.attributes(*attributes);
            let event = SpanEvent { time: *time, name: self.key(*name), attributes };
            self.to.span_events.push((copy, event));
        }
        EventData::Span(copy)
    }

    /// Attributes that stand together, without those that are removed.
    fn attributes(&mut self, members: Span32) -> Span32 {
        let from = self.from;
        let members: Vec<_> =
            from.members[members.range()].iter().filter_map(|(key, value)| self.attribute(*key, *value)).collect();
        self.push_members(members)
    }

    /// An attribute, unless it is removed.
    fn attribute(&mut self, key: Key, value: Value) -> Option<(Key, Value)> {
        let place = self.from.key(key);
        let value = match self.edits.action(ValueLocation::Attribute(place)) {
            Action::Remove => return None,
            Action::Replace => self.replacement(value),
            Action::Keep if has_members(value) => self.below(place.text().text(), value),
            Action::Keep => self.value(value),
        };
        Some((self.key(key), value))
    }

    /// A value that is no attribute, unless it is removed.
    fn field(&mut self, name: &'static str, value: Value) -> Option<Value> {
        match self.edits.action(ValueLocation::Field(name)) {
            Action::Remove => None,
            Action::Replace => Some(self.replacement(value)),
            Action::Keep => Some(self.below(name, value)),
        }
    }

    /// The same of a text.
    fn text_field(&mut self, name: &'static str, text: Text) -> Option<Text> {
        match self.field(name, Value::Text(text)) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn replacement(&mut self, value: Value) -> Value {
        let text = self.edits.replacement(self.from.value(value));
        Value::Text(self.push_text(&text, Escapes::of(&text)))
    }

    /// A value whose members stand below `path`.
    fn below(&mut self, path: &str, value: Value) -> Value {
        self.path.clear();
        self.path.push_str(path);
        self.value(value)
    }

    fn value(&mut self, value: Value) -> Value {
        let from = self.from;
        match value {
            Value::Null | Value::Bool(_) | Value::I64(_) | Value::U64(_) | Value::F64(_) => value,
            Value::Text(text) => Value::Text(self.text(text)),
            Value::Bytes(range) => Value::Bytes(self.bytes(range)),
            Value::Array(range) => {
                let items: Vec<_> = from.values[range.range()].iter().map(|item| self.value(*item)).collect();
                let start = self.to.values.len();
                self.to.values.extend(items);
                Value::Array(Span32::new(start, self.to.values.len()))
            }
            Value::Map(range) => {
                let members: Vec<_> =
                    from.members[range.range()].iter().filter_map(|(key, value)| self.member(*key, *value)).collect();
                Value::Map(self.push_members(members))
            }
        }
    }

    /// A member of an object, unless it is removed.
    fn member(&mut self, key: Key, value: Value) -> Option<(Key, Value)> {
        let (before, text) = (self.path.len(), self.from.key(key).text().text());
        push_key(&mut self.path, text);
        let value = match self.edits.action(ValueLocation::Member { key: text, path: &self.path }) {
            Action::Remove => None,
            Action::Replace => Some(self.replacement(value)),
            Action::Keep => Some(self.value(value)),
        };
        self.path.truncate(before);
        Some((self.key(key), value?))
    }

    fn push_members(&mut self, members: Vec<(Key, Value)>) -> Span32 {
        let start = self.to.members.len();
        self.to.members.extend(members);
        Span32::new(start, self.to.members.len())
    }

    /// Adds a run to the current event, unless all of it is removed.
    fn run(&mut self, run: u32) {
        let index = run as usize;
        let copy = match self.runs[index] {
            Some(copy) => copy,
            None => {
                let Run { members, expanded, .. } = &self.from.runs[index];
                let members = self.attributes(*members);
                self.to.runs.push(Run { members, expanded: *expanded, uses: 0, rendered: OnceLock::new() });
                let copy = index32(self.to.runs.len() - 1);
                self.runs[index] = Some(copy);
                copy
            }
        };
        let copied = &mut self.to.runs[copy as usize];
        if !copied.members.range().is_empty() {
            copied.uses += 1;
            self.to.attributes.push(Attribute::Run(copy));
        }
    }

    fn origin(&mut self, origin: u32) -> u32 {
        let (index, known) = (origin as usize, &mut self.origins[origin as usize]);
        *known.get_or_insert_with(|| {
            let origin = &self.from.origins[index];
            self.to.origins.push(self.edits.origin(origin).unwrap_or_else(|| origin.clone()));
            index32(self.to.origins.len() - 1)
        })
    }

    fn resource(&mut self, resource: u32) -> u32 {
        let (index, known) = (resource as usize, &mut self.resources[resource as usize]);
        *known.get_or_insert_with(|| {
            let resource = &self.from.resources[index];
            self.to.resources.push(self.edits.resource(resource).unwrap_or_else(|| resource.clone()));
            index32(self.to.resources.len() - 1)
        })
    }

    /// Samples that follow each other often have the same stack.
    fn stack(&mut self, frames: Span32) -> Span32 {
        if self.last_stack.0 == frames {
            return self.last_stack.1;
        }
        let start = self.to.frames.len();
        for Frame { function, file, line } in &self.from.frames[frames.range()] {
            let function = function.map(|text| self.text(text));
            let file = file.map(|text| self.text(text));
            self.to.frames.push(Frame { function, file, line: *line });
        }
        let copy = Span32::new(start, self.to.frames.len());
        self.last_stack = (frames, copy);
        copy
    }

    fn label(&mut self, label: Label) -> Label {
        match label {
            Label::Constant(_) => label,
            Label::Text(text) => self.text(text).into(),
        }
    }

    fn key(&mut self, key: Key) -> Key {
        match key.named() {
            KeyContent::Name(name) => name.into(),
            KeyContent::Text(text) => self.text(text).into(),
        }
    }

    fn text(&mut self, text: Text) -> Text {
        let place = (text.start, index32(text.len()));
        if let Some(known) = self.texts.get(&place) {
            return *known;
        }
        let copy = self.push_text(&self.from.text[text.range()], text.escapes());
        self.texts.insert(place, copy);
        copy
    }

    fn push_text(&mut self, text: &str, escapes: Escapes) -> Text {
        let start = self.to.text.len();
        self.to.text.push_str(text);
        Text::new(start, text.len(), escapes)
    }

    fn bytes(&mut self, range: Span32) -> Span32 {
        let start = self.to.bytes.len();
        self.to.bytes.extend_from_slice(&self.from.bytes[range.range()]);
        Span32::new(start, self.to.bytes.len())
    }
}

fn has_members(value: Value) -> bool {
    matches!(value, Value::Array(_) | Value::Map(_))
}

fn push_key(path: &mut String, key: &str) {
    path.push('.');
    path.push_str(key);
}
