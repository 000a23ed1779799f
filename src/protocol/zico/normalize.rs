//! Records, exceptions, definitions and session changes → the events of `docs/event-model.md`.

mod fressian;

use std::fmt::Write;
use std::sync::Arc;

use tributary_codec::cbor::{CborError, CborItem, Reader};
use tributary_codec::fressian::Definitions as FressianDefinitions;
use tributary_codec::text::{cut, repair};
use tributary_event::{
    EventBuilder, Header, Key, Link, Name as EventName, Position, Resource, ResourceValue, Severity, SpanData, SpanId,
    SpanLink, Status, TraceContext, TraceId, UnixNanos, Value, semconv as names, write_hex,
};
use tributary_protocol::Output;

use super::agents::ZicoAgent;
use super::clock::Anchor;
use super::record::{MethodUse, OpenRecord, TraceType};
use super::symbols::{ResolvedMethod, Symbols, placeholder};
use super::value::{Member, ValueTarget, Writer};
use super::wire::{self, Definition, Exception, Form, TextOrSymbol, ZicoDialect};

/// The error flag of a gen1 record (rule 23).
const GEN1_ERROR: u64 = 8;
/// The error flag of a trace of gen2 and of Fressian (rule 23).
const GEN2_ERROR: u64 = 0x1000;
/// The flag of a record that threw the exception of its last child (Fressian).
const SAME_EXCEPTION: u64 = 4;
/// The line number of a frame in native code.
const NATIVE: i64 = -2;

/// What the events of a body have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyContext {
    pub(super) dialect: ZicoDialect,
    /// When the request was received.
    pub(super) observed: UnixNanos,
    /// The request's number on its connection.
    pub(super) request: u64,
}

impl BodyContext {
    /// A place in the body.
    pub(super) fn position(&self, start: usize, end: usize) -> Position {
        Position { sequence: Some(self.request), offset: start as u64, length: end.saturating_sub(start) as u64 }
    }

    /// The header of an event without a time of its own.
    pub(super) fn untimed(&self, name: EventName, start: usize, end: usize) -> Header {
        Header::observed_at(name, self.observed, self.position(start, end))
    }
}

/// The context of a record when its span is written.
#[derive(Debug)]
pub(super) struct SpanContext<'a> {
    pub(super) trace: TraceId,
    pub(super) parent: Option<SpanId>,
    /// The begin of the nearest enclosing trace.
    pub(super) anchor: Option<Anchor>,
    pub(super) position: Position,
    /// The body to which ranges refer.
    pub(super) body: &'a [u8],
    /// Links to other traces, each after the place of the record.
    pub(super) links: &'a [(u32, Link)],
}

/// Buffers that are reused for each event.
#[derive(Debug)]
pub(super) struct Buffers {
    writer: Writer,
    members: Vec<Member>,
    /// The most bytes that symbols add to one event, and of a stack trace.
    record_bytes: usize,
}

impl Buffers {
    pub(super) fn new(record_bytes: usize) -> Self {
        Buffers { writer: Writer::default(), members: Vec::new(), record_bytes }
    }

    /// Writes the span of a record. Returns whether it has undefined ids.
    pub(super) fn span(
        &mut self,
        record: &OpenRecord,
        around: &SpanContext<'_>,
        symbols: &mut Symbols<'_>,
        defined: &mut FressianDefinitions,
        context: &BodyContext,
        out: &mut Output,
    ) -> bool {
        let dialect = context.dialect;
        let start = record.prolog.map(|prolog| prolog.start);
        let method = self.method(record, symbols, out);
        self.members.clear();
        self.writer.credit = self.record_bytes;
        let place = &mut ValueTarget { batch: &mut out.batch, symbols, dialect };
        for kept in &record.attributes {
            // Attributes were checked when they were read.
            if let (Form::Fressian, Some(offset)) = (kept.form(), kept.offset()) {
                let _ = self.writer.fressian_attributes(around.body, offset, defined, &mut self.members, place);
                continue;
            }
            let _ = self.writer.attributes(kept.bytes(around.body), kept.form(), &mut self.members, place);
        }
        if self.members.len() > 1 {
            self.writer.keep_last(&mut self.members);
        }
        let trace_type = record.begin.as_ref().and_then(|begin| match &begin.trace_type {
            TraceType::Id(0) => None,
            TraceType::Id(id) => Some(self.writer.symbol(*id, place).text),
            TraceType::Text(text) => Some(place.batch.push_text(text)),
        });
        let time = around.anchor.and_then(|anchor| anchor.time(start, dialect));
        let stop = record.epilog.map(|epilog| epilog.stop);
        let duration = record.duration(dialect);
        let header = Header { name: method.name, time, observed: context.observed, position: around.position };
        let mut event = out.batch.event(header);
        if let Some(run) = method.run {
            event.run(run);
        }
        if let Some(epilog) = record.epilog {
            event.attribute(names::ZICO_CALLS, epilog.calls);
        }
        if let Some(flags) = record.flags() {
            event.attribute(names::ZICO_FLAGS, flags);
        }
        if dialect == ZicoDialect::Fressian {
            fressian::record_attributes(&mut event, record);
        }
        if let Some(trace_type) = trace_type {
            event.attribute(names::ZICO_TRACE_TYPE, trace_type);
        }
        if let Some(parent) = record.begin.as_ref().and_then(|begin| begin.parent) {
            hex(&mut event, names::ZICO_PARENT_SPAN_ID, parent);
        }
        for member in &self.members {
            // Null means that there is no value.
            if !matches!(member.value, Value::Null) {
                event.attribute(member.key, member.value);
            }
        }
        if record.pruned.records > 0 {
            event.attribute(names::ZICO_PRUNED_RECORDS, record.pruned.records);
            event.attribute(names::ZICO_PRUNED_DURATION_NS, record.pruned.nanos);
        }
        if let Some(id) = method.unresolved {
            event.attribute(names::ZICO_UNRESOLVED_METHOD, signed(id));
        }
        let is_unresolved = self.marks(&mut event) || method.unresolved.is_some();
        let is_backward = duration.is_none() && start.is_some() && stop.is_some();
        if is_backward {
            event.attribute(names::ZICO_TIME_BACKWARD, true);
        }
        let has_no_start = start.is_none();
        let missing = [
            (has_no_start, "method"),
            (has_no_start, "start"),
            (stop.is_none(), "end"),
            (record.lacks_attributes, "attributes"),
        ];
        event.incomplete(missing.into_iter().filter_map(|(is_missing, part)| is_missing.then_some(part)));
        let end = time.zip(duration).and_then(|(time, duration)| time.0.checked_add(duration)).map(UnixNanos);
        let span = SpanData {
            parent: around.parent,
            end,
            duration_nanos: duration,
            status: if is_failed(record, dialect) { Status::Error } else { Status::Unset },
            ..SpanData::new(around.trace, record.id)
        };
        let links: Vec<_> = around.links.iter().map(|(_, link)| SpanLink::from(*link)).collect();
        event.span_with(span, &links, &[]);
        is_unresolved
    }

    /// The texts of a record's method, in the batch.
    #[inline]
    fn method(&mut self, record: &OpenRecord, symbols: &mut Symbols<'_>, out: &mut Output) -> MethodTexts {
        let mut settled;
        let (id, known) = match (&record.method, record.prolog) {
            (MethodUse::Settled(method), Some(prolog)) => {
                settled = ResolvedMethod::clone(method);
                (prolog.method, Some(&mut settled))
            }
            (MethodUse::Id, Some(prolog)) => (prolog.method, symbols.method(prolog.method)),
            (_, None) => return MethodTexts::named(names::ZICO_RECORD.into()),
        };
        match known {
            Some(method) if !method.name.is_empty() => {
                self.writer.is_repaired |= method.is_repaired;
                self.writer.is_cut |= method.is_cut;
                self.writer.unresolved.extend_from_slice(&method.unresolved);
                let name = out.batch.intern(&mut method.memo, &method.name);
                let function = (names::CODE_FUNCTION_NAME.into(), name.into());
                let run = match &*method.signature {
                    "" => out.batch.intern_run(&mut method.run, |_| [function]),
                    signature => out.batch.intern_run(&mut method.run, |batch| {
                        [function, (names::ZICO_METHOD_SIGNATURE.into(), batch.push_text(signature).into())]
                    }),
                };
                MethodTexts { name: name.into(), run: Some(run), unresolved: None }
            }
            _ => {
                let name = out.batch.push_text(&format!("method#{}", id as i64));
                MethodTexts { unresolved: Some(id), ..MethodTexts::named(name.into()) }
            }
        }
    }

    /// Writes the log of an exception. Returns what references to it need.
    pub(super) fn exception(
        &mut self,
        range: &[u8],
        span: (TraceId, SpanId, Option<UnixNanos>, Position),
        symbols: &mut Symbols<'_>,
        context: &BodyContext,
        out: &mut Output,
    ) -> Result<Thrown, CborError> {
        let exception = wire::exception(&mut Reader::new(range), context.dialect)?;
        let class = self.owned(&exception.class, symbols);
        let message = self.owned(&exception.message, symbols);
        let stack = self.stack(&exception, class.as_deref(), message.as_deref(), symbols)?;
        let thrown = Thrown { id: Some(exception.id), class, message, stack };
        self.members.clear();
        self.writer.credit = self.record_bytes;
        if let Some(attributes) = exception.attributes.clone() {
            let bytes = range.get(attributes).unwrap_or_default();
            let place = &mut ValueTarget { batch: &mut out.batch, symbols, dialect: context.dialect };
            self.writer.attributes(bytes, Form::SymbolMap, &mut self.members, place)?;
            self.writer.keep_last(&mut self.members);
        }
        self.thrown(thrown.id, Some(&thrown), false, exception.cause, span, context, out);
        Ok(thrown)
    }

    /// Writes the log of a reference to an earlier exception.
    pub(super) fn reference(
        &mut self,
        id: u64,
        known: Option<&Thrown>,
        span: (TraceId, SpanId, Option<UnixNanos>, Position),
        context: &BodyContext,
        out: &mut Output,
    ) {
        self.members.clear();
        self.thrown(Some(id), known, true, 0, span, context, out);
    }

    #[expect(clippy::too_many_arguments, reason = "two callers, next to it")]
    fn thrown(
        &mut self,
        id: Option<u64>,
        known: Option<&Thrown>,
        is_reference: bool,
        cause: u64,
        (trace, span, time, position): (TraceId, SpanId, Option<UnixNanos>, Position),
        context: &BodyContext,
        out: &mut Output,
    ) {
        let name = names::ZICO_EXCEPTION.into();
        let mut event = out.batch.event(Header { name, time, observed: context.observed, position });
        if let Some(thrown) = known {
            if let Some(class) = &thrown.class {
                event.text(names::EXCEPTION_TYPE, class);
            }
            if let Some(message) = &thrown.message {
                event.text(names::EXCEPTION_MESSAGE, message);
            }
            event.text(names::EXCEPTION_STACKTRACE, &thrown.stack);
        }
        if let Some(id) = id {
            event.attribute(names::ZICO_EXCEPTION_ID, signed(id));
        }
        if cause != 0 {
            event.attribute(names::ZICO_EXCEPTION_CAUSE, signed(cause));
        }
        if is_reference {
            event.attribute(names::ZICO_EXCEPTION_REF, true);
        }
        for member in &self.members {
            if !matches!(member.value, Value::Null) {
                event.attribute(member.key, member.value);
            }
        }
        self.marks(&mut event);
        event.log_in(TraceContext { trace_id: trace, span_id: Some(span) }, Severity::Error, None);
    }

    /// The stack as Java prints it.
    fn stack(
        &mut self,
        exception: &Exception<'_>,
        class: Option<&str>,
        message: Option<&str>,
        symbols: &mut Symbols<'_>,
    ) -> Result<String, CborError> {
        let mut text = class.unwrap_or("null").to_owned();
        if let Some(message) = message {
            let _ = write!(text, ": {message}");
        }
        let (mut reader, mut left) = (exception.stack, exception.frames);
        while wire::next_of(&mut reader, &mut left)? {
            let frame = wire::frame(&mut reader)?;
            let [class, method, file] = frame.names.each_ref().map(|name| match name {
                // Rule 18.
                TextOrSymbol::Symbol(0) => None,
                name => self.owned(name, symbols),
            });
            let dot = if class.is_some() && method.is_some() { "." } else { "" };
            let _ = write!(text, "\n\tat {}{dot}{}", class.unwrap_or_default(), method.unwrap_or_default());
            let _ = match (file, frame.line) {
                (_, NATIVE) => write!(text, "(Native Method)"),
                (None, _) => write!(text, "(Unknown Source)"),
                (Some(file), ..=0) => write!(text, "({file})"),
                (Some(file), line) => write!(text, "({file}:{line})"),
            };
            // A few bytes may refer to long texts.
            if text.len() > self.record_bytes {
                text.truncate(cut(&text, self.record_bytes).len());
                self.writer.is_cut = true;
                break;
            }
        }
        Ok(text)
    }

    fn owned(&mut self, name: &TextOrSymbol<'_>, symbols: &mut Symbols<'_>) -> Option<String> {
        match name {
            TextOrSymbol::None | TextOrSymbol::Other(..) => None,
            TextOrSymbol::Symbol(id) => Some(match symbols.string(*id) {
                Some(symbol) => {
                    self.writer.is_repaired |= symbol.is_repaired;
                    self.writer.is_cut |= symbol.is_cut;
                    symbol.text.to_string()
                }
                None => {
                    self.writer.unresolved.push(*id);
                    placeholder(*id)
                }
            }),
            TextOrSymbol::Text(bytes) => {
                let (text, is_repaired) = repair(bytes);
                self.writer.is_repaired |= is_repaired;
                Some(text.into_owned())
            }
        }
    }

    /// Writes the marks that the writer collected: repaired or cut text, undefined ids. Returns whether ids are undefined.
    fn marks(&mut self, event: &mut EventBuilder<'_>) -> bool {
        if std::mem::take(&mut self.writer.is_repaired) {
            event.attribute(names::TEXT_REPAIRED, true);
        }
        if std::mem::take(&mut self.writer.is_cut) {
            event.attribute(names::TEXT_TRUNCATED, true);
        }
        if self.writer.unresolved.is_empty() {
            return false;
        }
        self.writer.unresolved.sort_unstable();
        self.writer.unresolved.dedup();
        let ids: Vec<Value> = self.writer.unresolved.drain(..).map(signed).collect();
        let ids = event.batch().array(&ids);
        event.attribute(names::ZICO_UNRESOLVED_SYMBOLS, ids);
        true
    }

    /// An attribute of an agent; `None`: its value is null, or it is unreadable.
    pub(super) fn agent_attribute(
        &mut self,
        key: &TextOrSymbol<'_>,
        value: &[u8],
        symbols: &mut Symbols<'_>,
    ) -> Option<(String, ResourceValue)> {
        let key = self.owned(key, symbols)?;
        let value = match Reader::new(value).item().ok()? {
            CborItem::Null | CborItem::Undefined => return None,
            CborItem::Bool(truth) => ResourceValue::Bool(truth),
            CborItem::Unsigned(number) => ResourceValue::U64(number),
            CborItem::Negative(number) => ResourceValue::I64(i64::try_from(number).map_or(i64::MIN, |number| !number)),
            CborItem::Float(number) => ResourceValue::F64(number),
            _ => match wire::name(&mut Reader::new(value), false) {
                Ok(name) => ResourceValue::Text(self.owned(&name, symbols)?),
                Err(_) => {
                    let mut text = String::from("cbor:");
                    let _ = write_hex(&mut text, value);
                    ResourceValue::Text(text)
                }
            },
        };
        (self.writer.is_repaired, self.writer.is_cut) = (false, false);
        self.writer.unresolved.clear();
        Some((key, value))
    }
}

/// A written exception, for references to it.
#[derive(Clone, Debug)]
pub(super) struct Thrown {
    /// `None`: the dialect has none.
    pub(super) id: Option<u64>,
    class: Option<String>,
    message: Option<String>,
    stack: String,
}

impl Thrown {
    /// The approximate memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        128 + text(&self.class) + text(&self.message) + self.stack.len()
    }
}

/// The texts of a method in a batch.
struct MethodTexts {
    name: Key,
    /// The attributes with its name and signature.
    run: Option<u32>,
    unresolved: Option<u64>,
}

impl MethodTexts {
    fn named(name: Key) -> Self {
        MethodTexts { name, run: None, unresolved: None }
    }
}

/// The name of a record's span, and whether its method is undefined.
pub(super) fn with_name<T>(record: &OpenRecord, symbols: &mut Symbols<'_>, take: impl FnOnce(&str, bool) -> T) -> T {
    match (&record.method, record.prolog) {
        (_, None) => take(names::ZICO_RECORD.as_str(), false),
        (MethodUse::Settled(method), Some(_)) if !method.name.is_empty() => take(&method.name, false),
        (_, Some(prolog)) => match symbols.method(prolog.method) {
            Some(method) if !method.name.is_empty() => take(&method.name, !method.unresolved.is_empty()),
            _ => take(&format!("method#{}", prolog.method as i64), true),
        },
    }
}

pub(super) fn is_failed(record: &OpenRecord, dialect: ZicoDialect) -> bool {
    let has = |flag| record.flags().is_some_and(|flags| flags & flag != 0);
    record.has_thrown
        || match dialect {
            ZicoDialect::Gen2 => record.begin.is_some() && has(GEN2_ERROR),
            ZicoDialect::Doc | ZicoDialect::Gen1 => has(GEN1_ERROR),
            ZicoDialect::Fressian => {
                let trace = record.epilog.and_then(|epilog| epilog.flags).unwrap_or_default();
                has(SAME_EXCEPTION) || trace & GEN2_ERROR != 0
            }
        }
}

/// An id as shown: ids of 2^63 and more are shown as negative numbers.
fn signed(id: u64) -> Value {
    if id >> 63 == 1 { Value::I64(id as i64) } else { id.into() }
}

fn hex(event: &mut EventBuilder<'_>, key: EventName, id: SpanId) {
    event.text(key, &id.to_string());
}

/// Writes the event of a definition, for listeners with `emit_definitions`.
pub(super) fn definition(
    definition: &Definition<'_>,
    range: (usize, usize),
    symbols: &mut Symbols<'_>,
    context: &BodyContext,
    out: &mut Output,
) {
    match definition {
        Definition::String { id, text, kind } => {
            let mut event = out.batch.event(context.untimed(names::ZICO_STRING, range.0, range.1));
            event.attribute(names::ZICO_STRING_ID, *id);
            let (text, is_repaired) = repair(text);
            event.text(names::ZICO_STRING_TEXT, &text);
            if let Some(kind) = kind {
                event.attribute(names::ZICO_STRING_TYPE, *kind);
            }
            if is_repaired {
                event.attribute(names::TEXT_REPAIRED, true);
            }
            received(event).log(Severity::Debug, None);
        }
        Definition::Method { id, .. } => {
            let method = symbols.method(*id);
            let mut event = out.batch.event(context.untimed(names::ZICO_METHOD, range.0, range.1));
            event.attribute(names::ZICO_METHOD_ID, *id);
            if let Some(method) = method {
                if !method.name.is_empty() {
                    event.text(names::CODE_FUNCTION_NAME, &method.name);
                }
                if !method.signature.is_empty() {
                    event.text(names::ZICO_METHOD_SIGNATURE, &method.signature);
                }
                if !method.unresolved.is_empty() {
                    let ids: Vec<Value> = method.unresolved.iter().map(|id| Value::from(*id)).collect();
                    let ids = event.batch().array(&ids);
                    event.attribute(names::ZICO_UNRESOLVED_SYMBOLS, ids);
                }
            }
            received(event).log(Severity::Debug, None);
        }
        // It is in the resource.
        Definition::Attribute { .. } => {}
    }
}

/// Writes an event of an agent or session: registered, opened, reset.
pub(super) fn lifecycle(name: EventName, length: usize, context: &BodyContext, out: &mut Output) {
    received(out.batch.event(context.untimed(name, 0, length))).log(Severity::Info, None);
}

fn received(mut event: EventBuilder<'_>) -> EventBuilder<'_> {
    event.text(names::TIME_BASIS, names::TIME_BASIS_RECEIVED);
    event
}

/// The resource: the agent as far as it is known, the digest of its session's id, and attributes sent as definitions.
pub(super) fn resource(
    agent: Option<&ZicoAgent>,
    session: Option<&str>,
    sent: &[(String, ResourceValue)],
) -> Arc<Resource> {
    let mut attributes: Vec<(String, ResourceValue)> = Vec::new();
    let mut add = |name: EventName, text: &str| {
        if !text.is_empty() {
            attributes.push((name.as_str().to_owned(), text.into()));
        }
    };
    if let Some(agent) = agent {
        add(names::HOST_ID, &agent.uuid);
        add(names::HOST_NAME, &agent.name);
        add(names::SERVICE_NAME, &agent.app);
        add(names::DEPLOYMENT_ENVIRONMENT_NAME, &agent.env);
    }
    if let Some(session) = session {
        add(names::ZICO_SESSION_ID, session);
    }
    let own = agent.map_or(&[][..], |agent| &agent.attrs);
    // An agent that has not registered may define its app and env as attributes.
    for (key, name) in [("app", names::SERVICE_NAME), ("env", names::DEPLOYMENT_ENVIRONMENT_NAME)] {
        let defined = sent.iter().rev().find_map(|(sent, value)| match value {
            ResourceValue::Text(text) if sent == key && !text.is_empty() => Some(value),
            _ => None,
        });
        if let Some(value) = defined
            && !attributes.iter().any(|(known, _)| known == name.as_str())
        {
            attributes.push((name.as_str().to_owned(), value.clone()));
        }
    }
    for (key, value) in own.iter().chain(sent) {
        attributes.push((names::ZICO_AGENT.as_str().to_owned() + key, value.clone()));
    }
    Resource::new(attributes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn app_and_env_that_an_agent_defines_name_its_service_unless_it_has_registered_others() {
        let sent = [("app", "demo"), ("env", ""), ("rack", "7")].map(|(key, value)| (key.to_owned(), value.into()));
        let text = |resource: &Resource, name| resource.text(name).map(str::to_owned);
        let defined = resource(None, None, &sent);
        assert_eq!(text(&defined, names::SERVICE_NAME).as_deref(), Some("demo"));
        assert_eq!(text(&defined, names::DEPLOYMENT_ENVIRONMENT_NAME), None);
        assert_eq!(defined.attributes().len(), 4, "and each under its own key");
        let agent = ZicoAgent { app: "shop".to_owned(), ..super::super::definitions::unregistered("1") };
        assert_eq!(text(&resource(Some(&agent), None, &sent), names::SERVICE_NAME).as_deref(), Some("shop"));
    }
}
