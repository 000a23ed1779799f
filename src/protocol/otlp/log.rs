//! Logs: `LogRecord` of `logs.proto`.

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue};
use tributary_event::{Severity, SeverityNumber, SpanId, TraceContext, TraceId, Value, semconv};
use tributary_protocol::Output;

use super::record::{RecordContext, push_new, record_attributes};
use super::span::{span_id, time, trace_id};
use super::value::{WireAttribute, fixed32, fixed64};

/// A log on the wire.
#[derive(Debug, Default)]
struct WireLog<'a> {
    time: u64,
    observed: u64,
    severity: u64,
    severity_text: &'a [u8],
    body: Option<&'a [u8]>,
    attributes: Vec<WireAttribute<'a>>,
    dropped: u64,
    flags: u32,
    trace_id: TraceId,
    span_id: SpanId,
    name: &'a [u8],
}

impl<'a> WireLog<'a> {
    fn read(record: &'a [u8]) -> WireLog<'a> {
        let mut log = WireLog::default();
        for field in ProtobufFields::of(record) {
            match (field.number, field.value) {
                (1, ProtobufValue::Fixed(time)) => log.time = fixed64(time),
                (2, ProtobufValue::Varint(number)) => log.severity = number,
                (3, ProtobufValue::Bytes(text)) => log.severity_text = text,
                (5, ProtobufValue::Bytes(body)) => log.body = Some(body),
                (6, ProtobufValue::Bytes(attribute)) => log.attributes.push(WireAttribute::of(attribute)),
                (7, ProtobufValue::Varint(count)) => log.dropped = count,
                (8, ProtobufValue::Fixed(flags)) => log.flags = fixed32(flags),
                (9, ProtobufValue::Bytes(id)) => log.trace_id = trace_id(id),
                (10, ProtobufValue::Bytes(id)) => log.span_id = span_id(id),
                (11, ProtobufValue::Fixed(time)) => log.observed = fixed64(time),
                (12, ProtobufValue::Bytes(name)) => log.name = name,
                _ => {}
            }
        }
        log
    }
}

/// Writes a log.
pub(super) fn write(record: &[u8], context: &mut RecordContext<'_>, out: &mut Output) {
    let log = WireLog::read(record);
    let severity = severity(log.severity, log.severity_text);
    let mut writer = context.values_of(&log.attributes, &mut out.batch);
    let name = match log.name {
        [] => semconv::OTLP_LOG.into(),
        name => writer.text(name).into(),
    };
    let mut attributes = writer.pairs(&log.attributes, true);
    let is_named =
        log.severity_text.is_empty() || severity.severity().as_str().as_bytes().eq_ignore_ascii_case(log.severity_text);
    if !is_named {
        let text = writer.text(log.severity_text).into();
        push_new(&mut attributes, semconv::OTLP_SEVERITY_TEXT, text);
    }
    if log.flags != 0 {
        push_new(&mut attributes, semconv::OTLP_FLAGS, Value::U64(log.flags.into()));
    }
    let body = log.body.map(|body| writer.value(body));
    let own = record_attributes(attributes, writer.marks, writer.dropped + log.dropped);
    let event = context.event(name, time(log.time), time(log.observed), &own, out);
    if log.trace_id == TraceId::default() {
        return event.log(severity, body);
    }
    let span_id = (!log.span_id.is_zero()).then_some(log.span_id);
    event.log_in(TraceContext { trace_id: log.trace_id, span_id }, severity, body);
}

/// The severity of a number from 1 to 24; without one, that of its text, else of information.
fn severity(number: u64, text: &[u8]) -> SeverityNumber {
    SeverityNumber::new(number).unwrap_or_else(|| by_text(text).into())
}

fn by_text(text: &[u8]) -> Severity {
    const TEXTS: [(&str, Severity); 8] = [
        ("trace", Severity::Trace),
        ("debug", Severity::Debug),
        ("info", Severity::Info),
        ("warn", Severity::Warn),
        ("warning", Severity::Warn),
        ("error", Severity::Error),
        ("critical", Severity::Fatal),
        ("fatal", Severity::Fatal),
    ];
    let found = TEXTS.iter().find(|(name, _)| text.eq_ignore_ascii_case(name.as_bytes()));
    found.map_or(Severity::Info, |(_, severity)| *severity)
}
