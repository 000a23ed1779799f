//! Spans to events: `docs/event-model.md`, and the contract's sections "Spans" and "Decided".

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_codec::text::{cut, escape, repair};
use tributary_event::{
    BatchBuilder, BatchResource, EventBuilder, Header, Interned, Key, Link, Name, Span32, SpanData, SpanEvent, SpanId,
    SpanKind, SpanLink, Status, Text, TraceId, UnixNanos, Value, semconv, whole_number,
};
use tributary_protocol::Output;
use tributary_protocol::datadog_tags::SpanTag;

use super::body::{Chunk, Layout, TraceBody};
use super::facts::upper_half;
use super::json_tags;
use super::keys::{Keys, Meaning, TagFacts};
use super::semantics;
use super::span::{BodyPart, Entry, Sort, WireEvent, WireLink, WireSpan, WireValue};
use super::span_keys::SpanKeys;
use super::structs;
use super::text_cache::{CachedText, TextMarks};

/// What is the same for all spans of a chunk.
pub(super) struct SpanContext<'a> {
    pub(super) chunk: &'a Chunk,
    pub(super) trace_id: u128,
    /// Attributes of the chunk and of the payload, which a span has unless it has the key itself.
    pub(super) inherited: &'a [(BodyPart, WireValue)],
    pub(super) resource: BatchResource,
    pub(super) max_text_bytes: usize,
    /// It has a tag `_dd.p.tid` that is no upper half of an id.
    pub(super) has_invalid_half: bool,
    /// The id of the trace that the first span of the chunk has.
    pub(super) first_trace_id: u64,
}

/// What a span needs beside its entries.
#[derive(Debug, Default)]
struct Parts {
    kind: Option<SpanKind>,
    message: Option<Text>,
    links: Vec<SpanLink>,
    events: Vec<SpanEvent>,
    marks: TextMarks,
    /// Names that stand for those of tags.
    renamed: Vec<&'static str>,
}

/// Writes a span as an event. `attributes`: memory for its attributes, used again for the next one.
pub(super) fn write(
    span: &WireSpan,
    header: Header,
    context: &SpanContext<'_>,
    body: &mut TraceBody,
    keys: &mut Keys,
    attributes: &mut Vec<(Key, Value)>,
    out: &mut Output,
) {
    let bytes = body.bytes.clone();
    let mut parts = Parts::default();
    // A listener's identity may fix another name of the service.
    let is_fixed = out.batch.origin().identity.as_ref().is_some_and(|one| one.fixes(semconv::SERVICE_NAME));
    let service = if is_fixed { span.service } else { BodyPart::default() };
    // Where the resource is the name of the event, this is the name of the span.
    let is_renamed = keys.is_opentelemetry() && !span.name.is_empty() && !is_own_name(span, &bytes, keys);
    let own_name = if is_renamed { span.name } else { BodyPart::default() };
    let own = [
        (semconv::SERVICE_NAME, service),
        (semconv::DATADOG_NAME, own_name),
        (semconv::DATADOG_RESOURCE, span.resource),
        (semconv::DATADOG_TYPE, span.span_type),
    ];
    // The event borrows the batch, so everything that is written to the batch comes before it.
    let own_keys = SpanKeys::of(&span.entries, &bytes);
    let limit = context.max_text_bytes;
    let mut writer = Writer { body, bytes: &bytes, keys, limit, own_entries: &span.entries, own_keys };
    attributes.clear();
    writer.entries(span, context, &mut parts, attributes, &mut out.batch);
    for link in &span.links {
        let link = writer.link(link, &mut parts.marks, &mut out.batch);
        parts.links.push(link);
    }
    for event in &span.events {
        let event = writer.event(event, &mut parts.marks, &mut out.batch);
        parts.events.push(event);
    }
    if writer.keys.is_opentelemetry() {
        parts.kind = parts.kind.or_else(|| semantics::kind_of_type(span.span_type.of(&bytes)));
        parts.events.extend(exception(span, attributes, &mut out.batch));
    }
    let own = own.map(|(name, text)| (name, writer.text(text, &mut parts.marks, &mut out.batch)));
    let origin = context.chunk.origin;
    let origin = (!origin.is_empty()).then(|| writer.text(origin, &mut parts.marks, &mut out.batch));
    let warnings = warnings(span, context, &mut out.batch);
    let mut event = out.batch.event(header);
    event.resource(context.resource);
    own.into_iter().filter(|(_, text)| !text.is_empty()).for_each(|(name, text)| event.attribute(name, text));
    attributes.iter().for_each(|(key, value)| event.attribute(*key, *value));
    chunk_attributes(context.chunk, origin, &mut event);
    if span.dropped > 0 {
        event.attribute(semconv::DATADOG_ENTRIES_DROPPED, span.dropped);
    }
    if let Some(warnings) = warnings {
        event.attribute(semconv::DATADOG_WARNINGS, warnings);
    }
    if parts.marks.is_repaired {
        event.attribute(semconv::TEXT_REPAIRED, true);
    }
    if parts.marks.is_cut {
        event.attribute(semconv::TEXT_TRUNCATED, true);
    }
    event.span_with(data(span, context, &parts), &parts.links, &parts.events);
}

/// Whether the name of a span is that of its event, and not its resource.
fn is_own_name(span: &WireSpan, body: &[u8], keys: &Keys) -> bool {
    let is_by_resource = keys.is_opentelemetry() && semantics::is_named_by_resource(span.span_type.of(body));
    !is_by_resource || span.resource.is_empty()
}

/// The exception of a span, whose attributes it takes.
fn exception(span: &WireSpan, attributes: &mut Vec<(Key, Value)>, batch: &mut BatchBuilder) -> Option<SpanEvent> {
    let is_of_exception = |key: &Key| {
        [semconv::EXCEPTION_TYPE, semconv::EXCEPTION_MESSAGE, semconv::EXCEPTION_STACKTRACE]
            .iter()
            .any(|name| key.is(*name))
    };
    let of_exception: Vec<(Key, Value)> = attributes.extract_if(.., |(key, _)| is_of_exception(key)).collect();
    if of_exception.is_empty() {
        return None;
    }
    let time = end(span).or(start(span));
    Some(SpanEvent { time, name: batch.push_text("exception").into(), attributes: batch.members(&of_exception) })
}

/// The name of the event of a span.
pub(super) fn name(span: &WireSpan, body: &[u8], keys: &Keys, limit: usize, batch: &mut BatchBuilder) -> Key {
    let name = if is_own_name(span, body, keys) { span.name } else { span.resource };
    match name.of(body) {
        [] => semconv::DATADOG_SPAN.into(),
        name => {
            let (text, _) = repair(name);
            batch.push_text(cut(&text, limit)).into()
        }
    }
}

/// When a span began; `None`: it does not say.
pub(super) fn start(span: &WireSpan) -> Option<UnixNanos> {
    u64::try_from(span.start).ok().filter(|start| *start > 0).map(UnixNanos)
}

/// When a span ended; `None`: it does not say.
fn end(span: &WireSpan) -> Option<UnixNanos> {
    let duration = u64::try_from(span.duration).ok()?;
    start(span)?.0.checked_add(duration).map(UnixNanos)
}

fn data(span: &WireSpan, context: &SpanContext<'_>, parts: &Parts) -> SpanData {
    let duration = u64::try_from(span.duration).ok();
    SpanData {
        parent: (span.parent_id != 0).then_some(SpanId(span.parent_id.to_be_bytes())),
        end: end(span),
        duration_nanos: duration,
        kind: kind_of(span.kind).or(parts.kind),
        status: if span.is_error { Status::Error } else { Status::Unset },
        status_message: parts.message.filter(|_| span.is_error),
        ..SpanData::new(TraceId(context.trace_id.to_be_bytes()), SpanId(span.span_id.to_be_bytes()))
    }
}

/// The kind with OpenTelemetry's number.
fn kind_of(number: u64) -> Option<SpanKind> {
    let place = usize::try_from(number).ok()?.checked_sub(1)?;
    SpanKind::ALL.get(place).copied()
}

fn chunk_attributes(chunk: &Chunk, origin: Option<Text>, event: &mut EventBuilder<'_>) {
    if let Some(priority) = chunk.priority {
        event.attribute(semconv::DATADOG_CHUNK_PRIORITY, priority);
    }
    if let Some(origin) = origin {
        event.attribute(semconv::DATADOG_CHUNK_ORIGIN, origin);
    }
    if chunk.is_dropped {
        event.attribute(semconv::DATADOG_CHUNK_DROPPED, true);
    }
}

/// What is odd about a span that is kept all the same (notes, section 4, rule 7).
fn warnings(span: &WireSpan, context: &SpanContext<'_>, batch: &mut BatchBuilder) -> Option<Value> {
    let is_other = context.chunk.trace_id.is_none() && span.trace_id != context.first_trace_id;
    let found = [
        (context.trace_id == 0, "trace_id_zero"),
        (span.span_id == 0, "span_id_zero"),
        (is_other, "trace_id_differs"),
        (context.has_invalid_half, "trace_id_high_invalid"),
    ];
    let texts: Vec<Value> =
        found.into_iter().filter(|(is_so, _)| *is_so).map(|(_, code)| Value::Text(batch.push_text(code))).collect();
    (!texts.is_empty()).then(|| batch.array(&texts))
}

/// Writes values of a body to a batch.
struct Writer<'a> {
    body: &'a mut TraceBody,
    bytes: &'a [u8],
    keys: &'a mut Keys,
    limit: usize,
    /// The entries of the span, and their keys.
    own_entries: &'a [Entry],
    own_keys: SpanKeys<'a>,
}

impl Writer<'_> {
    /// Adds the attributes of a span, in their order: its own, then those of its chunk and payload that it does not have.
    fn entries(
        &mut self,
        span: &WireSpan,
        context: &SpanContext<'_>,
        parts: &mut Parts,
        all: &mut Vec<(Key, Value)>,
        batch: &mut BatchBuilder,
    ) {
        for (place, entry) in span.entries.iter().enumerate() {
            if self.own_keys.is_last(place, entry, self.own_entries, self.bytes) {
                let prefix = self.own_keys.prefix(entry, self.own_entries, self.bytes);
                self.entry(entry, prefix, parts, all, batch);
            }
        }
        if !span.component.is_empty() && !self.has_own(b"component") {
            let key = self.keys.get(b"component", batch).0;
            all.push((key, self.text(span.component, &mut parts.marks, batch).into()));
        }
        if let Some(mechanism) = context.chunk.mechanism
            && !self.has_own(b"_dd.p.dm")
        {
            let key = self.keys.get(b"_dd.p.dm", batch).0;
            all.push((key, batch.push_text(&format!("-{mechanism}")).into()));
        }
        for (key, value) in context.inherited {
            if !self.has_own(key.of(self.bytes)) {
                let entry = Entry { key: *key, value: *value, sort: Sort::Meta };
                self.entry(&entry, None, parts, all, batch);
            }
        }
    }

    /// An entry. `prefix`: another one of the span has its key.
    fn entry(
        &mut self,
        entry: &Entry,
        prefix: Option<Name>,
        parts: &mut Parts,
        all: &mut Vec<(Key, Value)>,
        batch: &mut BatchBuilder,
    ) {
        let key_text = entry.key.of(self.bytes);
        let (key, TagFacts { meaning, is_whole_number, renamed }) = self.keys.get(key_text, batch);
        let text = match entry.value {
            WireValue::Text(text) if entry.sort == Sort::Meta => Some(text),
            _ => None,
        };
        let key = match (meaning, text) {
            (Meaning::Resource, Some(_)) => return,
            (Meaning::Resource, None) if key_text == b"process_id" => return,
            (Meaning::TraceId, Some(text)) if upper_half(text.of(self.bytes)).is_some() => return,
            (Meaning::Span(SpanTag::Kind), Some(text)) => {
                match str::from_utf8(text.of(self.bytes)).ok().and_then(SpanKind::of) {
                    Some(kind) => {
                        parts.kind = Some(kind);
                        return;
                    }
                    None => key,
                }
            }
            (Meaning::Span(SpanTag::ErrorMessage), Some(text)) => {
                let text = self.text(text, &mut parts.marks, batch);
                // Of `error.message` and `error.msg` the other one stays as it is.
                let is_first = parts.message.is_none();
                parts.message.get_or_insert(text);
                let key = if is_first { semconv::EXCEPTION_MESSAGE.into() } else { key };
                return all.push((key, text.into()));
            }
            (Meaning::Span(SpanTag::ErrorType), Some(_)) => semconv::EXCEPTION_TYPE.into(),
            (Meaning::Span(SpanTag::ErrorStack), Some(_)) => semconv::EXCEPTION_STACKTRACE.into(),
            (Meaning::Links, Some(text)) if self.is_short(text) => match json_tags::links(text.of(self.bytes), batch) {
                Some(links) => return parts.links.extend(links),
                None => key,
            },
            (Meaning::Events, Some(text)) if self.is_short(text) => match json_tags::events(text.of(self.bytes), batch)
            {
                Some(events) => return parts.events.extend(events),
                None => key,
            },
            _ => match prefix {
                Some(prefix) => batch.push_parts(&[prefix.as_str(), &escape(key_text)]).into(),
                None => renamed.and_then(|name| self.renamed(name, parts, batch)).unwrap_or(key),
            },
        };
        if entry.sort == Sort::Struct {
            let WireValue::Bytes(content) = entry.value else { return };
            return all.push(match structs::value_of(content.of(self.bytes), batch) {
                Some(value) => (key, value),
                None => (self.bytes_key(prefix, key_text, batch), batch.bytes(content.of(self.bytes))),
            });
        }
        let (key, value) = match entry.value {
            WireValue::Null => return,
            WireValue::Bytes(_) => {
                (self.bytes_key(prefix, key_text, batch), self.value(entry.value, &mut parts.marks, batch))
            }
            WireValue::Text(text) if is_whole_number => {
                let number = str::from_utf8(text.of(self.bytes)).ok().and_then(whole_number);
                (key, number.map_or_else(|| self.value(entry.value, &mut parts.marks, batch), Value::I64))
            }
            WireValue::F64(number) if is_whole_number && number.fract() == 0.0 && number.abs() < 9e15 => {
                (key, Value::I64(number as i64))
            }
            value => (key, self.value(value, &mut parts.marks, batch)),
        };
        all.push((key, value));
    }

    /// The name of a tag by the conventions of the listener, unless the span has an attribute of this name.
    fn renamed(&self, name: &'static str, parts: &mut Parts, batch: &mut BatchBuilder) -> Option<Key> {
        let is_there = parts.renamed.contains(&name) || self.has_own(name.as_bytes());
        if is_there {
            return None;
        }
        parts.renamed.push(name);
        Some(batch.push_text(name).into())
    }

    /// Whether an entry of the span has this key.
    fn has_own(&self, key: &[u8]) -> bool {
        self.own_keys.has(key, self.own_entries, self.bytes)
    }

    /// Whether a text is not longer than one may be: JSON takes more memory when it is read.
    fn is_short(&self, text: BodyPart) -> bool {
        text.of(self.bytes).len() <= self.limit
    }

    /// The key of bytes ends in `_base64`, because that is how they are shown.
    fn bytes_key(&mut self, prefix: Option<Name>, key: &[u8], batch: &mut BatchBuilder) -> Key {
        batch.push_parts(&[prefix.map_or("", Name::as_str), &escape(key), "_base64"]).into()
    }

    fn value(&mut self, value: WireValue, marks: &mut TextMarks, batch: &mut BatchBuilder) -> Value {
        match value {
            WireValue::Null => Value::Null,
            WireValue::Bool(value) => Value::Bool(value),
            WireValue::I64(number) => Value::I64(number),
            WireValue::U64(number) => Value::U64(number),
            WireValue::F64(number) => Value::F64(number),
            WireValue::Text(text) => Value::Text(self.text(text, marks, batch)),
            WireValue::Bytes(bytes) => batch.bytes(bytes.of(self.bytes)),
            WireValue::Array(start) => {
                // The body was checked.
                let items = self.body.items(start).unwrap_or_default();
                let mut all = Vec::with_capacity(items.len());
                for item in items {
                    let item = self.typed(item);
                    all.push(self.value(item, marks, batch));
                }
                batch.array(&all)
            }
            WireValue::Map(start) => Value::Map(self.members(start, marks, batch)),
        }
    }

    /// The attributes that begin at an offset. A repeated key counts once, with its last value.
    fn members(&mut self, start: usize, marks: &mut TextMarks, batch: &mut BatchBuilder) -> Span32 {
        let found = self.body.members(start).unwrap_or_default();
        let mut last: HashMap<&[u8], usize, RandomState> = HashMap::default();
        for (place, (key, _)) in found.iter().enumerate() {
            last.insert(key.of(self.bytes), place);
        }
        let mut members = Vec::with_capacity(found.len());
        for (place, (key, value)) in found.iter().enumerate() {
            if last.get(key.of(self.bytes)) == Some(&place) && *value != WireValue::Null {
                let text = key.of(self.bytes);
                let written = match value {
                    WireValue::Bytes(_) if !last.contains_key(&*[text, b"_base64"].concat()) => {
                        self.bytes_key(None, text, batch)
                    }
                    _ => batch.push_text(&escape(text)).into(),
                };
                let value = self.typed(*value);
                let value = self.value(value, marks, batch);
                members.push((written, value));
            }
        }
        batch.members(&members)
    }

    /// The value of a typed value of version 0.4's `span_events`: `{type, string_value, …}`; any other value is itself.
    fn typed(&mut self, value: WireValue) -> WireValue {
        let WireValue::Map(start) = value else { return value };
        if self.body.layout == Layout::Streaming {
            return value;
        }
        let Ok(members) = self.body.members(start) else { return value };
        let of = |name: &[u8]| members.iter().find(|(key, _)| key.of(self.bytes) == name).map(|(_, value)| *value);
        let number = match of(b"type") {
            None => Some(0),
            Some(WireValue::U64(number)) => Some(number),
            Some(_) => None,
        };
        let name: &[u8] = match number {
            Some(0) => b"string_value",
            Some(1) => b"bool_value",
            Some(2) => b"int_value",
            Some(3) => b"double_value",
            Some(4) => b"array_value",
            _ => return value,
        };
        match of(name) {
            Some(WireValue::Map(array)) if name == b"array_value" => {
                let members = self.body.members(array).unwrap_or_default();
                let values = members.iter().find(|(key, _)| key.of(self.bytes) == b"values");
                values.map_or(value, |(_, values)| *values)
            }
            found => found.unwrap_or(value),
        }
    }

    fn link(&mut self, link: &WireLink, marks: &mut TextMarks, batch: &mut BatchBuilder) -> SpanLink {
        let attributes = link.attributes.map_or(Span32::default(), |start| self.members(start, marks, batch));
        let trace_state = (!link.trace_state.is_empty()).then(|| self.text(link.trace_state, marks, batch));
        let to = Link { trace_id: TraceId(link.trace_id.to_be_bytes()), span_id: SpanId(link.span_id.to_be_bytes()) };
        SpanLink { to, attributes, trace_state, flags: link.flags.and_then(set_flags) }
    }

    fn event(&mut self, event: &WireEvent, marks: &mut TextMarks, batch: &mut BatchBuilder) -> SpanEvent {
        let attributes = event.attributes.map_or(Span32::default(), |start| self.members(start, marks, batch));
        let name = self.text(event.name, marks, batch).into();
        SpanEvent { time: (event.time > 0).then_some(UnixNanos(event.time)), name, attributes }
    }

    fn text(&mut self, place: BodyPart, marks: &mut TextMarks, batch: &mut BatchBuilder) -> Text {
        if let Some((text, known)) = self.body.texts.find(place, |memo| batch.interned(memo)) {
            marks.is_repaired |= known.is_repaired;
            marks.is_cut |= known.is_cut;
            return text;
        }
        let (text, is_repaired) = repair(place.of(self.bytes));
        let kept = cut(&text, self.limit);
        let own = TextMarks { is_repaired, is_cut: kept.len() < text.len() };
        marks.is_repaired |= own.is_repaired;
        marks.is_cut |= own.is_cut;
        match self.body.texts.slot(place) {
            Some(slot) => {
                *slot = CachedText { place, text: Interned::default(), marks: own };
                batch.intern(&mut slot.text, kept)
            }
            None => batch.push_text(kept),
        }
    }
}

/// Flags of a link: bit 31 says that they were set, and is none of them. `None`: they were not.
pub(super) fn set_flags(flags: u32) -> Option<u32> {
    const SET: u32 = 1 << 31;
    (flags != 0).then_some(flags & !SET)
}
