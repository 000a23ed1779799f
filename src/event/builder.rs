//! Writes a batch: the builder that sessions hold, and the event in progress.

mod event;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::batch::{Batch, EventData, Frame, Header, LossData, Run};
use super::content::OpenContent;
use super::text::{Escapes, Text, index32};
use super::value::{Key, Span32, Value};
use super::{ContentId, Kind, Loss, Origin, Resource};

pub use event::EventBuilder;

/// A batch is full at this many events …
const FULL_EVENTS: usize = 1024;
/// … or when its events are about this many bytes of output.
const FULL_EXPANDED_BYTES: usize = 256 * 1024;
/// … or when it has this many attributes, values, members and frames, which may take more memory than output.
const FULL_ELEMENTS: usize = 16 * 1024;
/// The most memory of a batch whose events are each smaller than half of that: texts and elements, whose capacity may be
/// twice their size, and the same again in output.
pub const MOST_BATCH_BYTES: u64 = 4 << 20;
/// Estimated output size of an event without its attributes.
const EVENT_OVERHEAD_BYTES: usize = 256;
/// Output size of the ids of a log.
const CONTEXT_BYTES: usize = 76;
/// Output size of a link, and of an event of a span, without their texts and attributes.
const LINK_BYTES: usize = 77;
const SPAN_EVENT_BYTES: usize = 70;
/// Output size of the extras of a span without their text.
const SPAN_EXTRAS_BYTES: usize = 80;

/// Numbers batches over the life of the process, so that an [`Interned`] of one batch is never used for another.
static NEXT_BATCH: AtomicU64 = AtomicU64::new(1);

/// Remembers the position of a text in a batch, so that the next use in the same batch copies nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interned {
    /// Number of the batch; 0: none.
    batch: u64,
    text: Text,
}

/// Remembers the position of a run of attributes in a batch, as [`Interned`] does for a text.
#[derive(Clone, Copy, Debug, Default)]
pub struct InternedRun {
    batch: u64,
    run: u32,
}

/// Remembers the position of a resource in a batch, as [`Interned`] does for a text.
#[derive(Clone, Copy, Debug, Default)]
pub struct InternedResource {
    batch: u64,
    resource: BatchResource,
}

/// A resource of a batch. Valid only with that batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchResource {
    index: u32,
    /// Its output size.
    bytes: u32,
}

/// A stack of a batch, for samples of that batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchStack {
    frames: Span32,
    /// Its output size.
    output_len: usize,
}

/// Writes batches. One per session; [`BatchBuilder::take`] ends a batch and begins the next.
#[derive(Debug)]
pub struct BatchBuilder {
    batch: Batch,
    id: u64,
    expanded: usize,
    taken_expanded: u64,
    expected: Expected,
    /// Losses since the last batch that are not in it, because they are reported together with others.
    combined_losses: usize,
    origin: Arc<Origin>,
    /// The resource as the session has set it, without the listener's identity.
    sent: Arc<Resource>,
    resource: Arc<Resource>,
    /// Output size of the origin and resource in each event.
    resource_bytes: usize,
    origin_index: Option<u32>,
    resource_index: Option<u32>,
    content: Option<OpenContent>,
}

/// What the next batch is expected to have.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    text: usize,
    events: usize,
    attributes: usize,
    spans: usize,
    metrics: usize,
    samples: usize,
}

impl BatchBuilder {
    /// A builder for a connection whose resource is not known yet.
    pub fn new(origin: Arc<Origin>) -> Self {
        let sent = Arc::<Resource>::default();
        let resource = sent.with_identity(origin.identity.as_ref());
        BatchBuilder {
            batch: Batch::default(),
            id: NEXT_BATCH.fetch_add(1, Ordering::Relaxed),
            expected: Expected::default(),
            combined_losses: 0,
            expanded: 0,
            taken_expanded: 0,
            origin,
            sent,
            resource_bytes: resource.output_len(),
            resource,
            origin_index: None,
            resource_index: None,
            content: None,
        }
    }

    /// The origin of the next events.
    pub fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// Sets the origin of the next events.
    pub fn set_origin(&mut self, origin: Arc<Origin>) {
        self.origin_index = self.batch.origins.iter().position(|o| Arc::ptr_eq(o, &origin)).map(index32);
        let is_other_listener = !self.origin.is_same_listener(&origin);
        self.origin = origin;
        if is_other_listener {
            self.set_resource(self.sent.clone());
        }
    }

    /// Sets the resource of the next events: what the peer sends of itself. The listener's identity is added to it.
    pub fn set_resource(&mut self, sent: Arc<Resource>) {
        let resource = sent.with_identity(self.origin.identity.as_ref());
        self.sent = sent;
        self.resource_index = self.batch.resources.iter().position(|r| Arc::ptr_eq(r, &resource)).map(index32);
        self.resource_bytes = resource.output_len();
        self.resource = resource;
    }

    /// Sets what the batches from now on are made of, until it is set again. Call it before an event of this content is written;
    /// what the batch has already counts as its content, too.
    pub fn set_content(&mut self, content: Option<ContentId>) {
        self.content = content.map(OpenContent::new);
    }

    /// A resource that single events have instead of the current one: see [`EventBuilder::resource`]. `memo` remembers its
    /// position in this batch.
    #[inline]
    pub fn intern_resource(&mut self, memo: &mut InternedResource, sent: &Arc<Resource>) -> BatchResource {
        if memo.batch != self.id {
            let resource = sent.with_identity(self.origin.identity.as_ref());
            let bytes = index32(resource.output_len());
            self.batch.resources.push(resource);
            let index = index32(self.batch.resources.len() - 1);
            *memo = InternedResource { batch: self.id, resource: BatchResource { index, bytes } };
        }
        memo.resource
    }

    /// The resource that was set last, without the listener's identity.
    pub fn sent_resource(&self) -> &Arc<Resource> {
        &self.sent
    }

    /// The resource of the next events.
    pub fn resource(&self) -> &Arc<Resource> {
        &self.resource
    }

    /// Estimated output bytes of an event without its attributes.
    #[inline]
    pub fn event_bytes(&self) -> usize {
        EVENT_OVERHEAD_BYTES + self.resource_bytes
    }

    /// Whether the batch should be taken before another message is decoded.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.batch.events.len() + self.combined_losses >= FULL_EVENTS
            || self.expanded >= FULL_EXPANDED_BYTES
            || self.batch.elements() >= FULL_ELEMENTS
    }

    /// Number of events of one kind in the batch.
    #[inline]
    pub fn count(&self, kind: Kind) -> u64 {
        self.batch.count(kind)
    }

    /// Memory of the current batch.
    pub fn memory_bytes(&self) -> usize {
        self.batch.memory_bytes()
    }

    /// Whether the batch is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Estimated output bytes of all events written by this builder.
    pub fn total_expanded_bytes(&self) -> u64 {
        self.taken_expanded + self.expanded as u64
    }

    /// Counts a loss that is reported together with others: it fills the batch like an event, so that a call of a session is
    /// bounded also when it writes nothing.
    pub fn note_combined_loss(&mut self) {
        self.combined_losses += 1;
    }

    /// Begins the next batch without taking this one, which is empty.
    pub fn restart(&mut self) {
        self.combined_losses = 0;
    }

    /// Ends the batch and begins the next one, which reserves about the same capacity when it gets its first event.
    pub fn take(&mut self) -> Batch {
        // An idle builder is emptied, too: that ends no batch.
        if let Some(content) = &mut self.content
            && !self.batch.is_empty()
        {
            self.batch.content = content.close(&self.batch);
        }
        self.id = NEXT_BATCH.fetch_add(1, Ordering::Relaxed);
        self.taken_expanded += self.expanded as u64;
        self.batch.output_bytes = self.expanded;
        self.expanded = 0;
        self.combined_losses = 0;
        self.origin_index = None;
        self.resource_index = None;
        // A little more than this batch has, so that a slightly larger one is not copied while it grows.
        let capacity = |len: usize| len + len / 8;
        self.expected = Expected {
            text: capacity(self.batch.text.len()),
            events: capacity(self.batch.events.len()),
            attributes: capacity(self.batch.attributes.len()),
            spans: capacity(self.batch.spans.len()),
            metrics: capacity(self.batch.metrics.len()),
            samples: capacity(self.batch.samples.len()),
        };
        std::mem::take(&mut self.batch)
    }

    /// Reserves capacity for as much as the last batch had.
    #[cold]
    #[inline(never)]
    fn reserve(&mut self) {
        let Expected { text, events, attributes, spans, metrics, samples } = self.expected;
        self.batch.text.reserve(text);
        self.batch.events.reserve(events.max(1));
        self.batch.attributes.reserve(attributes);
        self.batch.spans.reserve(spans);
        self.batch.metrics.reserve(metrics);
        self.batch.samples.reserve(samples);
    }

    /// Releases the memory of an empty batch, for idle connections.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            let _ = self.take();
            self.expected = Expected::default();
        }
    }

    /// Copies a text into the arena.
    #[inline]
    pub fn push_text(&mut self, text: &str) -> Text {
        self.push_parts(&[text])
    }

    /// Copies a text made of several parts into the arena.
    #[inline]
    pub fn push_parts(&mut self, parts: &[&str]) -> Text {
        let start = self.batch.text.len();
        let mut escapes = Escapes::None;
        for part in parts {
            escapes = escapes.max(Escapes::of(part));
            self.batch.text.push_str(part);
        }
        Text::new(start, self.batch.text.len() - start, escapes)
    }

    /// Copies a text of this batch with a suffix appended.
    pub fn push_joined(&mut self, text: Text, suffix: &str) -> Text {
        let start = self.batch.text.len();
        self.batch.text.extend_from_within(text.range());
        self.batch.text.push_str(suffix);
        Text::new(start, self.batch.text.len() - start, text.escapes().max(Escapes::of(suffix)))
    }

    /// A text of this batch.
    #[inline]
    pub fn text(&self, text: Text) -> &str {
        &self.batch.text[text.range()]
    }

    /// Copies a text into the arena unless `memo` has its position in this batch.
    #[inline]
    pub fn intern(&mut self, memo: &mut Interned, text: &str) -> Text {
        if memo.batch == self.id { memo.text } else { self.intern_new(memo, text) }
    }

    /// The text whose position is in `memo`, if that is of this batch.
    #[inline]
    pub fn interned(&self, memo: &Interned) -> Option<Text> {
        (memo.batch == self.id).then_some(memo.text)
    }

    #[cold]
    fn intern_new(&mut self, memo: &mut Interned, text: &str) -> Text {
        let text = self.push_text(text);
        *memo = Interned { batch: self.id, text };
        text
    }

    /// Attributes that many events of a batch share, from `memo` or else written by `make`: they are stored once per batch,
    /// and encoders render them once. See [`EventBuilder::run`].
    #[inline]
    pub fn intern_run<M: AsRef<[(Key, Value)]>>(
        &mut self,
        memo: &mut InternedRun,
        make: impl FnOnce(&mut Self) -> M,
    ) -> u32 {
        if memo.batch != self.id {
            let members = make(self);
            *memo = InternedRun { batch: self.id, run: self.push_run(members.as_ref()) };
        }
        memo.run
    }

    fn push_run(&mut self, members: &[(Key, Value)]) -> u32 {
        let start = self.batch.members.len();
        self.batch.members.extend_from_slice(members);
        let members = Span32::new(start, self.batch.members.len());
        let expanded = self.batch.members[start..].iter().map(|(key, value)| attribute_bytes(*key, *value)).sum();
        self.batch.runs.push(Run { members, expanded, uses: 0, rendered: OnceLock::new() });
        index32(self.batch.runs.len() - 1)
    }

    /// Bytes as a value.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) -> Value {
        Value::Bytes(self.push_bytes(bytes))
    }

    /// An array of values of this batch.
    #[inline]
    pub fn array(&mut self, items: &[Value]) -> Value {
        let start = self.batch.values.len();
        self.batch.values.extend_from_slice(items);
        self.expanded += items.iter().map(|item| output_bytes(*item)).sum::<usize>();
        Value::Array(Span32::new(start, self.batch.values.len()))
    }

    /// The item of an array with this index; `None`: the value is no array, or has fewer items.
    #[inline]
    pub fn item(&self, array: Value, index: usize) -> Option<Value> {
        let Value::Array(range) = array else { return None };
        self.batch.values.get(range.range())?.get(index).copied()
    }

    /// A map of keys and values of this batch. The caller ensures that no key repeats.
    #[inline]
    pub fn map(&mut self, members: &[(Key, Value)]) -> Value {
        Value::Map(self.members(members))
    }

    /// The same, for the attributes of links and events of spans.
    #[inline]
    pub fn members(&mut self, members: &[(Key, Value)]) -> Span32 {
        let start = self.batch.members.len();
        self.batch.members.extend_from_slice(members);
        self.expanded += members.iter().map(|(key, value)| attribute_bytes(*key, *value)).sum::<usize>();
        Span32::new(start, self.batch.members.len())
    }

    /// Adds a stack for samples; frames innermost first.
    #[inline]
    pub fn stack(&mut self, frames: &[Frame]) -> BatchStack {
        let start = self.batch.frames.len();
        self.batch.frames.extend_from_slice(frames);
        let text = |text: Option<Text>| text.map_or(0, Text::output_len);
        let output_len = frames.iter().map(|it| 40 + text(it.function) + text(it.file)).sum();
        BatchStack { frames: Span32::new(start, self.batch.frames.len()), output_len }
    }

    /// Begins an event. One of the ending calls of [`EventBuilder`] adds it to the batch; if it is dropped before, nothing
    /// is added.
    #[inline]
    pub fn event(&mut self, header: Header) -> EventBuilder<'_> {
        if self.batch.events.capacity() == 0 {
            self.reserve();
        }
        let first_attribute = self.batch.attributes.len();
        EventBuilder { header, first_attribute, expanded_before: self.expanded, resource: None, batch: self }
    }

    /// Writes a loss event. Sessions call `Output::loss`, which also keeps the byte count.
    pub fn loss(&mut self, header: Header, loss: Loss<'_>) {
        self.loss_with(header, loss, &[]);
    }

    /// The same, with attributes whose values are of this batch.
    pub fn loss_with(&mut self, header: Header, loss: Loss<'_>, attributes: &[(Key, Value)]) {
        let detail = self.push_text(loss.detail);
        self.expanded += detail.output_len();
        let excerpt = self.push_bytes(&loss.excerpt[..loss.excerpt.len().min(Loss::EXCERPT)]);
        let Loss { reason, bytes, events, .. } = loss;
        let mut event = self.event(header);
        attributes.iter().for_each(|(key, value)| event.attribute(*key, *value));
        let losses = &mut event.batch.batch.losses;
        losses.push(LossData { reason, bytes, events, detail, excerpt });
        let place = index32(losses.len() - 1);
        event.end(EventData::Loss(place));
    }

    fn current_origin(&mut self) -> u32 {
        let origins = &mut self.batch.origins;
        *self.origin_index.get_or_insert_with(|| {
            origins.push(self.origin.clone());
            index32(origins.len() - 1)
        })
    }

    fn current_resource(&mut self) -> u32 {
        let resources = &mut self.batch.resources;
        *self.resource_index.get_or_insert_with(|| {
            resources.push(self.resource.clone());
            index32(resources.len() - 1)
        })
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> Span32 {
        let start = self.batch.bytes.len();
        self.batch.bytes.extend_from_slice(bytes);
        self.expanded += bytes.len() + bytes.len() / 3;
        Span32::new(start, self.batch.bytes.len())
    }
}

/// Estimated output size of a value without its content: arrays, maps and bytes are counted when they are written.
fn output_bytes(value: Value) -> usize {
    if let Value::Text(text) = value { text.output_len() } else { 8 }
}

/// Estimated output size of an attribute.
#[inline]
fn attribute_bytes(key: Key, value: Value) -> usize {
    key.output_len() + 6 + output_bytes(value)
}
