//! An event that is being written into a batch.

use super::super::batch::{Attribute, Batch, Event, EventData, Frame, Header, NO_CONTEXT, SampleData, TraceContext};
use super::super::distribution::Distribution;
use super::super::metric::{Label, MetricData, Number};
use super::super::semconv::{self, Name};
use super::super::span::{SpanData, SpanEvent, SpanExtras, SpanLink};
use super::super::text::{Text, index32};
use super::super::value::{Key, KeyContent, Span32, Value};
use super::super::{SeverityNumber, UnixNanos};
use super::{
    BatchBuilder, BatchResource, BatchStack, CONTEXT_BYTES, EVENT_OVERHEAD_BYTES, LINK_BYTES, SPAN_EVENT_BYTES,
    SPAN_EXTRAS_BYTES, attribute_bytes, output_bytes,
};

/// An event in progress: first its attributes, then one of the ending calls, which sets its kind.
#[derive(Debug)]
#[must_use = "an event that is not ended never was"]
pub struct EventBuilder<'a> {
    pub(super) batch: &'a mut BatchBuilder,
    pub(super) header: Header,
    pub(super) first_attribute: usize,
    pub(super) expanded_before: usize,
    pub(super) resource: Option<BatchResource>,
}

impl EventBuilder<'_> {
    /// Adds an attribute. The caller ensures that no key repeats.
    #[inline]
    pub fn attribute(&mut self, key: impl Into<Key>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        self.batch.expanded += attribute_bytes(key, value);
        self.batch.batch.attributes.push(Attribute::One(key, value));
    }

    /// Adds the attributes of a run of this batch. The caller ensures that no key repeats.
    #[inline]
    pub fn run(&mut self, run: u32) {
        if let Some(known) = self.batch.batch.runs.get_mut(run as usize) {
            known.uses += 1;
            self.batch.expanded += known.expanded;
            self.batch.batch.attributes.push(Attribute::Run(run));
        }
    }

    /// Adds an attribute whose value is copied into the arena.
    #[inline]
    pub fn text(&mut self, key: impl Into<Key>, value: &str) {
        let text = self.batch.push_text(value);
        self.attribute(key, text);
    }

    /// Adds the attribute that says which parts are missing, if there are any.
    pub fn incomplete<'p>(&mut self, parts: impl IntoIterator<Item = &'p str>) {
        let parts: Vec<Value> = parts.into_iter().map(|part| self.batch.push_text(part).into()).collect();
        if !parts.is_empty() {
            let parts = self.batch.array(&parts);
            self.attribute(semconv::INCOMPLETE, parts);
        }
    }

    /// Whether it has an attribute with a key of the peer that has the same text as `key`, which is of this batch.
    #[cold]
    #[inline]
    pub fn has_text_key(&self, key: Text) -> bool {
        let Batch { attributes, text, .. } = &self.batch.batch;
        attributes[self.first_attribute..].iter().any(|attribute| match attribute {
            Attribute::One(other, _) => {
                matches!(other.named(), KeyContent::Text(other) if text[other.range()] == text[key.range()])
            }
            Attribute::Run(_) => false,
        })
    }

    /// Removes what was written of this event; its texts stay. The event has no runs.
    pub fn discard(self) {
        self.batch.expanded = self.expanded_before;
        self.batch.batch.attributes.truncate(self.first_attribute);
    }

    /// The resource of this event only, from [`BatchBuilder::intern_resource`] of this batch.
    #[inline]
    pub fn resource(&mut self, resource: BatchResource) {
        self.resource = Some(resource);
    }

    /// The batch builder, for texts, arrays and maps.
    #[inline]
    pub fn batch(&mut self) -> &mut BatchBuilder {
        self.batch
    }

    /// Ends a log event.
    #[inline]
    pub fn log(self, severity: impl Into<SeverityNumber>, body: Option<Value>) {
        self.log_with(severity.into(), NO_CONTEXT, body);
    }

    /// Ends a log event that belongs to a trace or span.
    #[inline]
    pub fn log_in(self, context: TraceContext, severity: impl Into<SeverityNumber>, body: Option<Value>) {
        let contexts = &mut self.batch.batch.contexts;
        contexts.push(context);
        let place = index32(contexts.len() - 1);
        self.batch.expanded += CONTEXT_BYTES;
        self.log_with(severity.into(), place, body);
    }

    fn log_with(self, severity: SeverityNumber, context: u32, body: Option<Value>) {
        self.batch.expanded += body.map_or(0, output_bytes);
        self.end(EventData::Log { severity, context, body });
    }

    /// Ends a span.
    #[inline]
    pub fn span(mut self, mut span: SpanData) {
        if span.parent == Some(span.span_id) {
            self.make_root(&mut span);
        }
        self.batch.expanded += span.status_message.map_or(0, Text::output_len);
        let spans = &mut self.batch.batch.spans;
        spans.push(span);
        let place = index32(spans.len() - 1);
        self.end(EventData::Span(place));
    }

    /// Ends a span that has links and events.
    pub fn span_with(self, span: SpanData, links: &[SpanLink], events: &[SpanEvent]) {
        let text = |text: Option<Text>| text.map_or(0, Text::output_len);
        let Batch { spans, links: all_links, span_events, .. } = &mut self.batch.batch;
        let place = index32(spans.len());
        all_links.extend(links.iter().map(|link| (place, *link)));
        span_events.extend(events.iter().map(|event| (place, *event)));
        self.batch.expanded += links.iter().map(|link| LINK_BYTES + text(link.trace_state)).sum::<usize>();
        self.batch.expanded += events.iter().map(|event| SPAN_EVENT_BYTES + event.name.output_len()).sum::<usize>();
        self.span(span);
    }

    /// The same with what few spans have.
    pub fn span_with_extras(self, span: SpanData, extras: SpanExtras, links: &[SpanLink], events: &[SpanEvent]) {
        if !extras.is_empty() {
            let Batch { spans, span_extras, .. } = &mut self.batch.batch;
            span_extras.push((index32(spans.len()), extras));
            self.batch.expanded += SPAN_EXTRAS_BYTES + extras.trace_state.map_or(0, Text::output_len);
        }
        self.span_with(span, links, events);
    }

    /// Readers that follow parents would never reach a root from a span that names itself as its parent.
    #[cold]
    fn make_root(&mut self, span: &mut SpanData) {
        span.parent = None;
        self.remove(semconv::PARENT_SELF);
        self.attribute(semconv::PARENT_SELF, true);
    }

    /// Removes an attribute that a peer may have sent. Keys must not repeat.
    fn remove(&mut self, name: Name) {
        let Batch { attributes, runs, members, text, .. } = &mut self.batch.batch;
        let is_it = |key: &Key| match key.named() {
            KeyContent::Name(key) => key == name,
            KeyContent::Text(key) => text[key.range()] == *name.as_str(),
        };
        let all = attributes.split_off(self.first_attribute);
        for attribute in all {
            match attribute {
                Attribute::One(key, _) if is_it(&key) => {}
                Attribute::Run(run)
                    if members[runs[run as usize].members.range()].iter().any(|(key, _)| is_it(key)) =>
                {
                    let run = &members[runs[run as usize].members.range()];
                    let rest = run.iter().filter(|(key, _)| !is_it(key));
                    attributes.extend(rest.map(|(key, value)| Attribute::One(*key, *value)));
                }
                kept => attributes.push(kept),
            }
        }
    }

    /// Ends a metric.
    #[inline]
    pub fn metric(self, metric: MetricData) {
        self.batch.expanded += metric.unit.output_len();
        let metrics = &mut self.batch.batch.metrics;
        metrics.push(metric);
        let place = index32(metrics.len() - 1);
        self.end(EventData::Metric(place));
    }

    /// Ends a metric that stands for many values. The counts, bounds and quantiles are copied into the batch.
    pub fn distribution(self, unit: impl Into<Label>, start: Option<UnixNanos>, distribution: &Distribution<'_>) {
        let Batch { metrics, distributions, .. } = &mut self.batch.batch;
        self.batch.expanded += distributions.push(index32(metrics.len()), distribution);
        let metric_type = distribution.form.metric_type();
        self.metric(MetricData { metric_type, unit: unit.into(), value: Number::U64(distribution.count), start });
    }

    /// Ends a sample; frames innermost first.
    #[inline]
    pub fn sample(self, data: SampleData, frames: &[Frame]) {
        let stack = self.batch.stack(frames);
        self.sample_with(data, stack);
    }

    /// Ends a sample with a stack of this batch, which other samples may have too.
    #[inline]
    pub fn sample_with(self, data: SampleData, stack: BatchStack) {
        let BatchBuilder { batch, expanded, .. } = &mut *self.batch;
        *expanded += stack.output_len + data.sample_type.output_len() + data.unit.output_len();
        batch.samples.push(data);
        let data = index32(batch.samples.len() - 1);
        self.end(EventData::Sample { data, frames: stack.frames });
    }

    pub(super) fn end(self, data: EventData) {
        let builder = self.batch;
        let attributes = Span32::new(self.first_attribute, builder.batch.attributes.len());
        let origin = builder.current_origin();
        let (resource, resource_bytes) = match self.resource {
            Some(own) => (own.index, own.bytes as usize),
            None => (builder.current_resource(), builder.resource_bytes),
        };
        builder.batch.counts[data.kind().index()] += 1;
        builder.batch.events.push(Event { header: self.header, data, attributes, origin, resource });
        let name_bytes = if let KeyContent::Text(name) = self.header.name.named() { name.output_len() } else { 0 };
        builder.expanded += EVENT_OVERHEAD_BYTES + resource_bytes + name_bytes;
    }
}
