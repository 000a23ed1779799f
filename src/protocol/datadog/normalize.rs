//! Writes records as events, with the names of `docs/event-model.md`.

mod repeated;
mod whole;

use std::collections::HashSet;

use tributary_codec::text::cut;
use tributary_event::{
    BatchResource, EventBuilder, Header, Key, Name, Position, Resource, ResourceValue, Severity, SpanData, SpanKind,
    Status, Text, TraceContext, UnixNanos, Value, semconv, write_hex,
};
use tributary_protocol::Output;
use tributary_protocol::datadog_tags::{SpanTag, resource_name};

use super::MaxText;
use super::record::{
    EntryKind, EntryValue, LateOwner, NAME, Owner, OwnerRecord, RESOURCE, RecordEntry, Ref, SERVICE, TYPE,
};
use super::services::Services;
use super::strings::{ShownKey, StringSlot, Strings, TextMarks};
use super::wire::{StringId, WireSpan};

pub(super) use whole::WholeSpan;

/// Writes a record as an event. A process also becomes the resource of the events that follow.
pub(super) fn write(
    record: &OwnerRecord,
    strings: &mut Strings,
    services: &mut Services,
    limits: &MaxText,
    out: &mut Output,
) {
    if let Owner::Process(_) = record.owner {
        out.batch.set_resource(resource(record, strings, limits).into());
    }
    let position = record.position;
    let (name, marks) = name(record, strings, limits, out);
    let header = Header {
        name,
        time: time(record),
        observed: position.now.unix,
        position: Position { sequence: Some(record.sequence), offset: position.offset, length: position.size },
    };
    let is_late = matches!(record.owner, Owner::Late(_));
    let service = match record.owner {
        Owner::Span(_) => service(record.fields[SERVICE], strings, services, limits, out),
        _ => None,
    };
    let is_span = matches!(record.owner, Owner::Span(_));
    let mut writer = Writer::new(out.batch.event(header), strings, limits, marks);
    (writer.is_late, writer.is_span) = (is_late, is_span);
    match &record.owner {
        Owner::Process(process) => {
            writer.event.text(semconv::DATADOG_PROTOCOL_VERSION, "1");
            writer.event.attribute(semconv::DATADOG_STRING_CACHE_SIZE, process.string_cache_size);
        }
        Owner::Trace(trace_id) => writer.event.text(semconv::DATADOG_TRACE_ID, &trace_id.to_string()),
        Owner::Span(_) => writer.fields(&record.fields, service),
        Owner::Late(LateOwner::Process) => {}
        Owner::Late(LateOwner::Trace(trace_id)) => writer.event.text(semconv::TRACE_ID, &trace_id.to_string()),
        Owner::Late(LateOwner::Span(trace_id, span_id)) => {
            writer.event.text(semconv::TRACE_ID, &trace_id.to_string());
            writer.event.text(semconv::SPAN_ID, &span_id.to_string());
        }
    }
    if !matches!(record.owner, Owner::Span(_)) {
        writer.event.text(semconv::TIME_BASIS, semconv::TIME_BASIS_RECEIVED);
    }
    match record.owner {
        Owner::Process(_) => writer.mark_resource(record),
        _ => writer.entries(&record.entries),
    }
    writer.write_marks(record);
    match &record.owner {
        Owner::Span(span) => writer.end(span),
        owner => match trace_context(owner) {
            Some(context) => writer.event.log_in(context, Severity::Info, None),
            None => writer.event.log(Severity::Info, None),
        },
    }
}

/// Writes a string definition as an event, for listeners with `emit_definitions`.
pub(super) fn write_definition(id: StringId, slot: StringSlot, strings: &Strings, header: Header, out: &mut Output) {
    let mut event = out.batch.event(header);
    event.text(semconv::DATADOG_STRING_ID, &hex(id));
    event.text(semconv::DATADOG_STRING_TEXT, strings.text(slot));
    let marks = strings.marks(slot);
    if marks.repaired {
        event.attribute(semconv::TEXT_REPAIRED, true);
    }
    if marks.truncated {
        event.attribute(semconv::TEXT_TRUNCATED, true);
    }
    event.log(Severity::Debug, None);
}

/// The name of the event, and the marks of its text.
fn name(record: &OwnerRecord, strings: &mut Strings, limits: &MaxText, out: &mut Output) -> (Key, TextMarks) {
    let name = match (&record.owner, record.fields[NAME]) {
        (Owner::Span(_), Ref::Bound(slot)) => {
            let (text, marks) = strings.show(slot, limits.name, &mut out.batch);
            return (text.into(), marks);
        }
        (Owner::Span(_), _) => semconv::DATADOG_SPAN,
        (Owner::Process(_), _) => semconv::DATADOG_PROCESS,
        (Owner::Trace(_), _) => semconv::DATADOG_TRACE,
        (Owner::Late(_), _) => semconv::DATADOG_LATE_LIST,
    };
    (name.into(), TextMarks::default())
}

/// A process or trace has no time of its own. A span that starts at 0 has no known time.
fn time(record: &OwnerRecord) -> Option<UnixNanos> {
    match record.owner {
        Owner::Span(ref span) => span_time(span),
        _ => Some(record.position.now.unix),
    }
}

fn span_time(span: &WireSpan) -> Option<UnixNanos> {
    (span.start != 0).then_some(UnixNanos(span.start))
}

/// The trace or span that a log is about.
fn trace_context(owner: &Owner) -> Option<TraceContext> {
    match *owner {
        Owner::Trace(trace_id) | Owner::Late(LateOwner::Trace(trace_id)) => {
            Some(TraceContext { trace_id, span_id: None })
        }
        Owner::Late(LateOwner::Span(trace_id, span_id)) => Some(TraceContext { trace_id, span_id: Some(span_id) }),
        Owner::Process(_) | Owner::Span(_) | Owner::Late(LateOwner::Process) => None,
    }
}

/// The resource of the span's service. `None`: the span has no service, or the listener's identity fixes another.
#[inline]
fn service(
    service: Ref,
    strings: &Strings,
    services: &mut Services,
    limits: &MaxText,
    out: &mut Output,
) -> Option<BatchResource> {
    let Ref::Bound(slot) = service else { return None };
    let is_fixed = out.batch.origin().identity.as_ref().is_some_and(|one| one.fixes(semconv::SERVICE_NAME));
    let name = cut(strings.text(slot), limits.service);
    (!is_fixed && !name.is_empty()).then(|| services.resource(slot, name, &mut out.batch))
}

fn span_data(span: &WireSpan) -> SpanData {
    SpanData {
        parent: (!span.parent_id.is_zero()).then_some(span.parent_id),
        end: span.start.checked_add(span.duration).filter(|_| span.start != 0).map(UnixNanos),
        duration_nanos: Some(span.duration),
        status: if span.error == 0 { Status::Unset } else { Status::Error },
        ..SpanData::new(span.trace_id, span.span_id)
    }
}

/// Meta and metrics of the process under their own keys (reading 18). The last of a repeated key wins.
fn resource(record: &OwnerRecord, strings: &Strings, limits: &MaxText) -> Resource {
    let text = |slot| cut(strings.text(slot), limits.value).to_owned();
    Resource::new(record.entries.iter().filter(|entry| entry.kind != EntryKind::Dropped).filter_map(|entry| {
        let value = match entry.value {
            EntryValue::Text(Ref::Bound(slot)) => match strings.whole_number(slot).filter(|_| is_whole(entry, strings))
            {
                Some(number) => resource_integer(number),
                None => ResourceValue::Text(text(slot)),
            },
            EntryValue::Text(Ref::Waiting(id)) if entry.kind == EntryKind::ValuelessMeta => {
                ResourceValue::Text(hex(id))
            }
            EntryValue::Text(_) => return None,
            EntryValue::Number(bytes) => resource_number(bytes, is_whole(entry, strings)),
        };
        match (entry.key, entry.kind) {
            (Ref::Bound(slot), EntryKind::ValuelessMeta) => {
                Some((semconv::DATADOG_VALUELESS_META.as_str().to_owned() + strings.key(slot), value))
            }
            (Ref::Bound(slot), _) => {
                let key = strings.key(slot);
                Some((resource_name(key).map_or(key, |name| name.as_str()).to_owned(), value))
            }
            (Ref::Waiting(id), kind) => Some((nameless(kind).as_str().to_owned() + &hex(id), value)),
            (Ref::Absent, _) => None,
        }
    }))
}

fn resource_number(bytes: [u8; 8], is_whole: bool) -> ResourceValue {
    let number = f64::from_be_bytes(bytes);
    match whole(number).filter(|_| is_whole) {
        Some(whole) => resource_integer(whole),
        None => ResourceValue::F64(number),
    }
}

/// As other protocols have their process ids.
fn resource_integer(number: i64) -> ResourceValue {
    u64::try_from(number).map_or(ResourceValue::I64(number), ResourceValue::U64)
}

/// Whether the key of an entry names a whole number.
#[inline]
fn is_whole(entry: &RecordEntry, strings: &Strings) -> bool {
    matches!(entry.key, Ref::Bound(slot) if strings.is_whole(slot))
}

/// The value of a metric. `is_whole`: its key names a whole number.
#[inline]
fn number(bytes: [u8; 8], is_whole: bool) -> Value {
    let number = f64::from_be_bytes(bytes);
    whole(number).filter(|_| is_whole).map_or(Value::F64(number), Value::I64)
}

/// The integer that is the same number: `None` for fractions, for -0.0, and beyond 2^53, where doubles skip integers.
fn whole(number: f64) -> Option<i64> {
    const MAX: f64 = (1_u64 << 53) as f64;
    let whole = number as i64;
    (number.abs() <= MAX && (whole as f64).to_bits() == number.to_bits()).then_some(whole)
}

fn hex(id: StringId) -> String {
    let mut text = String::with_capacity(16);
    let _ = write_hex(&mut text, &id.0);
    text
}

/// The prefix before the id of a key without text. Keys of peers never begin with it, because it is reserved.
fn nameless(kind: EntryKind) -> Name {
    match kind {
        EntryKind::Metric | EntryKind::MovedMetric => semconv::DATADOG_NAMELESS_METRIC,
        _ => semconv::DATADOG_NAMELESS_META,
    }
}

/// Whether an entry becomes an attribute: it has a value and at least the id of a key, or a key and the id of a value.
#[inline]
fn is_written(entry: &RecordEntry) -> bool {
    let has_value = matches!(entry.value, EntryValue::Text(Ref::Bound(_)) | EntryValue::Number(_))
        || entry.kind == EntryKind::ValuelessMeta;
    has_value && !matches!(entry.key, Ref::Absent) && entry.kind != EntryKind::Dropped
}

/// Writes the attributes of one record and collects the marks of its texts.
struct Writer<'a> {
    event: EventBuilder<'a>,
    strings: &'a mut Strings,
    limits: &'a MaxText,
    /// The event names its owner in `trace_id` and `span_id`, so these keys are reserved too.
    is_late: bool,
    /// It is a span, some of whose metas are parts of the span.
    is_span: bool,
    /// Marks of the texts written so far.
    marks: TextMarks,
    kind: Option<SpanKind>,
    message: Option<Text>,
    has_error_type: bool,
    has_error_stack: bool,
}

impl<'a> Writer<'a> {
    fn new(event: EventBuilder<'a>, strings: &'a mut Strings, limits: &'a MaxText, marks: TextMarks) -> Self {
        Writer {
            event,
            strings,
            limits,
            is_late: false,
            is_span: false,
            marks,
            kind: None,
            message: None,
            has_error_type: false,
            has_error_stack: false,
        }
    }

    /// Ends the event of a span.
    fn end(self, span: &WireSpan) {
        let data = span_data(span);
        let status_message = self.message.filter(|_| data.status == Status::Error);
        self.event.span(SpanData { kind: self.kind, status_message, ..data });
    }
}

/// What a meta of a span became, by its meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SpanPart {
    /// A part of the span, or an attribute with another name.
    Written,
    /// Neither: it is an attribute with its own key.
    Unwritten,
    /// There is one with this meaning already.
    Repeated,
}

impl Writer<'_> {
    /// Writes a meta of a span that has a meaning, with this text as its value.
    fn part(&mut self, tag: SpanTag, value: StringSlot) -> SpanPart {
        let name = match tag {
            SpanTag::Kind => {
                if self.kind.is_some() {
                    return SpanPart::Repeated;
                }
                let Some(kind) = SpanKind::of(self.strings.text(value)) else { return SpanPart::Unwritten };
                self.kind = Some(kind);
                return SpanPart::Written;
            }
            SpanTag::ErrorMessage if self.message.is_some() => return SpanPart::Repeated,
            SpanTag::ErrorMessage => semconv::EXCEPTION_MESSAGE,
            SpanTag::ErrorType if std::mem::replace(&mut self.has_error_type, true) => return SpanPart::Repeated,
            SpanTag::ErrorType => semconv::EXCEPTION_TYPE,
            SpanTag::ErrorStack if std::mem::replace(&mut self.has_error_stack, true) => return SpanPart::Repeated,
            SpanTag::ErrorStack => semconv::EXCEPTION_STACKTRACE,
        };
        let text = self.text(value, self.limits.value);
        if tag == SpanTag::ErrorMessage {
            self.message = Some(text);
        }
        self.event.attribute(name, text);
        SpanPart::Written
    }

    fn fields(&mut self, fields: &[Ref; 4], service: Option<BatchResource>) {
        let limits = self.limits;
        if let Ref::Bound(slot) = fields[SERVICE] {
            match service {
                Some(resource) => {
                    self.event.resource(resource);
                    self.note(slot, limits.service);
                }
                None => self.other_service(slot),
            }
        }
        for (field, name, limit) in
            [(RESOURCE, semconv::DATADOG_RESOURCE, limits.resource), (TYPE, semconv::DATADOG_TYPE, limits.type_)]
        {
            if let Ref::Bound(slot) = fields[field] {
                let text = self.text(slot, limit);
                self.event.attribute(name, text);
            }
        }
    }

    /// The service of a span whose resource has another one, or none.
    #[cold]
    fn other_service(&mut self, slot: StringSlot) {
        let service = cut(self.strings.text(slot), self.limits.service);
        let resource = self.event.batch().resource().clone();
        if resource.text(semconv::SERVICE_NAME) == Some(service) {
            self.note(slot, self.limits.service);
        } else {
            let text = self.text(slot, self.limits.service);
            self.event.attribute(semconv::SERVICE_NAME, text);
        }
    }

    fn entries(&mut self, entries: &[RecordEntry]) {
        if self.have_distinct_keys(entries) {
            self.write_entries(entries);
        } else {
            let unrepeated = self.unrepeated(entries);
            self.write_entries(&unrepeated);
        }
    }

    /// Writes entries as attributes, except those that [are not written](is_written).
    fn write_entries(&mut self, entries: &[RecordEntry]) {
        for entry in entries {
            if !is_written(entry) {
                continue;
            }
            if self.is_span
                && let (EntryKind::Meta, Ref::Bound(key), EntryValue::Text(Ref::Bound(value))) =
                    (entry.kind, entry.key, entry.value)
                && let Some(tag) = self.strings.meaning(key)
                // Of `error.message` and `error.msg` the other one stays as it is.
                && self.part(tag, value) == SpanPart::Written
            {
                continue;
            }
            let value = match entry.value {
                EntryValue::Text(Ref::Bound(slot)) => {
                    self.tag(slot, entry.kind == EntryKind::Meta && is_whole(entry, self.strings))
                }
                EntryValue::Text(Ref::Waiting(id)) => Value::Text(self.event.batch().push_text(&hex(id))),
                EntryValue::Text(Ref::Absent) => continue,
                EntryValue::Number(bytes) => number(bytes, is_whole(entry, self.strings)),
            };
            let key = match (entry.kind, entry.key) {
                (EntryKind::Meta | EntryKind::Metric, Ref::Bound(slot)) => self.key(slot).map(|key| key.text),
                _ => None,
            };
            let key = key.unwrap_or_else(|| self.prefixed(entry.kind, entry.key));
            self.event.attribute(key, value);
        }
    }

    /// The key of an entry that cannot be written under its own key, or whose key has no text.
    #[cold]
    fn prefixed(&mut self, kind: EntryKind, key: Ref) -> Text {
        let prefix = match kind {
            EntryKind::Metric | EntryKind::MovedMetric => semconv::DATADOG_METRIC,
            EntryKind::TraceMeta => semconv::DATADOG_TRACE_META,
            EntryKind::ValuelessMeta => semconv::DATADOG_VALUELESS_META,
            EntryKind::Meta | EntryKind::Dropped => semconv::DATADOG_META,
        };
        match key {
            Ref::Bound(slot) => {
                self.note(slot, self.limits.key);
                self.event.batch().push_parts(&[prefix.as_str(), self.strings.key(slot)])
            }
            Ref::Waiting(id) => self.event.batch().push_parts(&[nameless(kind).as_str(), &hex(id)]),
            Ref::Absent => self.event.batch().push_text(nameless(kind).as_str()),
        }
    }

    /// The text as a key of this event. `None`: the key is reserved.
    #[inline]
    fn key(&mut self, slot: StringSlot) -> Option<ShownKey> {
        let names_owner = |key: &str| key == semconv::TRACE_ID.as_str() || key == semconv::SPAN_ID.as_str();
        if self.is_late && names_owner(self.strings.key(slot)) {
            return None;
        }
        let key = self.strings.show_key(slot, self.event.batch())?;
        self.marks |= key.marks;
        Some(key)
    }

    /// Collects the marks of texts in the resource.
    fn mark_resource(&mut self, record: &OwnerRecord) {
        for entry in &record.entries {
            if let Ref::Bound(slot) = entry.key {
                self.note(slot, self.limits.key);
            }
            if let EntryValue::Text(Ref::Bound(slot)) = entry.value {
                self.note(slot, self.limits.value);
            }
        }
    }

    /// Writes the attributes that say what is missing, cut or unusual.
    fn write_marks(&mut self, record: &OwnerRecord) {
        self.unresolved(record);
        if record.partial {
            self.event.incomplete(["meta", "metrics"]);
        }
        if record.dropped > 0 {
            self.event.attribute(semconv::DATADOG_ENTRIES_DROPPED, record.dropped);
        }
        if !record.warnings.is_empty() {
            let codes: Vec<_> =
                record.warnings.iter().map(|w| Value::Text(self.event.batch().push_text(w.as_str()))).collect();
            let codes = self.event.batch().array(&codes);
            self.event.attribute(semconv::DATADOG_WARNINGS, codes);
        }
        self.write_text_marks();
    }

    fn write_text_marks(&mut self) {
        if self.marks.repaired {
            self.event.attribute(semconv::TEXT_REPAIRED, true);
        }
        if self.marks.truncated {
            self.event.attribute(semconv::TEXT_TRUNCATED, true);
        }
    }

    fn unresolved(&mut self, record: &OwnerRecord) {
        if record.unresolved == 0 {
            return;
        }
        for (field, name) in [
            (NAME, semconv::DATADOG_UNRESOLVED_NAME),
            (TYPE, semconv::DATADOG_UNRESOLVED_TYPE),
            (RESOURCE, semconv::DATADOG_UNRESOLVED_RESOURCE),
            (SERVICE, semconv::DATADOG_UNRESOLVED_SERVICE),
        ] {
            if let Ref::Waiting(id) = record.fields[field] {
                self.event.text(name, &hex(id));
            }
        }
        let (mut metas, mut metrics) = (Ids::default(), Ids::default());
        for entry in &record.entries {
            match entry.value {
                EntryValue::Number(_) => metrics.add(entry.key),
                EntryValue::Text(value) => {
                    metas.add(entry.key);
                    metas.add(value);
                }
            }
        }
        self.ids(semconv::DATADOG_UNRESOLVED_META, &metas);
        self.ids(semconv::DATADOG_UNRESOLVED_METRICS, &metrics);
    }

    fn ids(&mut self, name: Name, ids: &Ids) {
        match ids.in_order.as_slice() {
            [] => {}
            [id] => self.event.text(name, &hex(*id)),
            ids => {
                let texts: Vec<_> = ids.iter().map(|id| Value::Text(self.event.batch().push_text(&hex(*id)))).collect();
                let array = self.event.batch().array(&texts);
                self.event.attribute(name, array);
            }
        }
    }

    #[inline]
    fn text(&mut self, slot: StringSlot, limit: usize) -> Text {
        let (text, marks) = self.strings.show(slot, limit, self.event.batch());
        self.marks |= marks;
        text
    }

    /// The value of a tag: a number if its key names a whole number and it is one.
    #[inline]
    fn tag(&mut self, slot: StringSlot, is_whole: bool) -> Value {
        if is_whole && let Some(number) = self.strings.whole_number(slot) {
            return Value::I64(number);
        }
        Value::Text(self.text(slot, self.limits.value))
    }

    /// Collects the marks of a text that is written by other code.
    fn note(&mut self, slot: StringSlot, limit: usize) {
        self.marks |= self.strings.marks(slot);
        self.marks.truncated |= self.strings.text(slot).len() > limit;
    }
}

/// Ids without text, each once, in wire order.
#[derive(Default)]
struct Ids {
    in_order: Vec<StringId>,
    known: HashSet<StringId>,
}

impl Ids {
    fn add(&mut self, reference: Ref) {
        if let Ref::Waiting(id) = reference
            && self.known.insert(id)
        {
            self.in_order.push(id);
        }
    }
}
