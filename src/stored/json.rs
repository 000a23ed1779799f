//! JSON lines, as the JSON encoder writes them, to events.
//!
//! A compact line names its source, which an earlier line of the file defines: that becomes the origin and the resource of the event.
//! What JSON does not distinguish stays as it is in JSON: bytes become texts in base64, and doubles that are not finite
//! become the texts that stand for them. Written again, a line is the same.

mod distribution;
mod line;
mod ordered;
mod time;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value as Json;

use self::line::{
    Dropped, JsonText, Loss, Members, Origin, StoredFrame, StoredLine, StoredLink, StoredSpan, StoredSpanEvent,
};
pub(super) use self::time::Day;
use self::time::time_after;
use super::{OriginParts, Rebuilder, StoredData, metric_type, reason, severity};
use tributary_event::{
    DroppedCounts, Frame, Header, Key, Link, MetricData, MetricType, Number, Position, ResourceValue, SampleClock,
    SampleData, SeverityNumber, SpanData, SpanEvent, SpanExtras, SpanId, SpanKind, SpanLink, Status, TraceContext,
    TraceId, UnixNanos, Value, hex_array, hex_bytes,
};

/// Adds the event of a line to the batch. A line that defines a source adds none.
///
/// # Errors
/// The line is no event, or names a source that no line before it defines; nothing is added.
pub fn read(line: &[u8], out: &mut Rebuilder) -> Result<(), String> {
    read_wanted(line, |_, _| true, out).map(drop)
}

/// The same if the kind and the name of the event are wanted. Whether an event was added.
///
/// # Errors
/// As for [`read`]. Of an event that is not wanted only the syntax is checked.
pub fn read_wanted(line: &[u8], is_wanted: fn(&str, &str) -> bool, out: &mut Rebuilder) -> Result<bool, String> {
    let mut read = StoredLine::default();
    parse_line(line, out, &mut read)?;
    let line = &read;
    match (&line.kind, &line.source, &line.origin) {
        (None, Some(id), Some(origin)) => {
            out.define_source(id, origin.parts(), resource(line.resource())?);
            Ok(false)
        }
        (Some(kind), ..) if !is_wanted(kind, line.name.as_deref().unwrap_or_default()) => Ok(false),
        _ => add(line, out).map(|()| true),
    }
}

/// The same if all events of the batch are of the listener that this one is of. `false`: they are not, and nothing is added.
///
/// # Errors
/// As for [`read`]; and the line defines or names a source.
pub fn read_of_listener(line: &[u8], out: &mut Rebuilder) -> Result<bool, String> {
    let mut read = StoredLine::default();
    parse_line(line, out, &mut read)?;
    let line = &read;
    let known = out.last_stored_origin().filter(|_| line.has_known_origin);
    let parts = known.map(|origin| OriginParts::of(origin)).or(line.origin.as_ref().map(Origin::parts));
    let (None, Some(OriginParts { protocol, listener, .. })) = (&line.source, parts) else {
        return Err("it has no `origin`, or a `source` as lines of `fields = \"compact\"` have it".to_owned());
    };
    for (key, name) in [("protocol", protocol), ("listener", listener)] {
        // They are parts of file names.
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if !is_plain || !(1..=64).contains(&name.len()) {
            return Err(format!("`origin.{key}` is no name: 1 to 64 characters of A-Z a-z 0-9 _ -"));
        }
    }
    let builder = &out.builder;
    if !builder.is_empty() && (builder.origin().protocol != protocol || *builder.origin().listener != *listener) {
        return Ok(false);
    }
    add(line, out).map(|()| true)
}

/// Fills an empty line. Texts of one that is UTF-8 are not checked one by one.
fn parse_line<'a>(line: &'a [u8], out: &mut Rebuilder, read: &mut StoredLine<'a>) -> Result<(), String> {
    match str::from_utf8(line) {
        Ok(line) => {
            if ordered::line(line, out, read).is_none() {
                *read = parse(line)?;
            }
        }
        Err(_) => *read = serde_json::from_slice(line).map_err(|error| error.to_string())?,
    }
    Ok(())
}

fn parse<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

fn wrong<T>(what: &str) -> Result<T, String> {
    Err(format!("`{what}` is not as events have it"))
}

fn add(line: &StoredLine<'_>, out: &mut Rebuilder) -> Result<(), String> {
    let at = match line.time.as_deref().map(|text| time(text, out)) {
        Some(None) => return wrong("time"),
        at => at.flatten(),
    };
    let observed = match (&line.observed_time, at) {
        (Some(text), _) => time_after(text, &mut out.last_observed),
        (None, Some(at)) if line.source.is_some() => at.0.checked_add_signed(line.delay_ns).map(UnixNanos),
        (None, _) => None,
    };
    let Some(observed) = observed else { return wrong("observed_time") };
    let Some(name) = &line.name else { return wrong("name") };
    let Some(data) = data(line, out) else { return wrong(line.kind.as_deref().unwrap_or("kind")) };
    let position = match (&line.source, &line.origin, line.position) {
        (Some(id), None, Some((sequence, offset, length))) => {
            if !out.set_source(id) {
                return Err(format!("no line before it defines the source {}", &**id));
            }
            Position { sequence, offset, length }
        }
        (None, None, Some((sequence, offset, length))) if line.has_known_origin => {
            out.set_stored_resource(line.resource().as_bytes(), || resource(line.resource()))?;
            out.set_last_stored_origin();
            Position { sequence, offset, length }
        }
        (None, Some(origin), None) => {
            let (Some(offset), Some(length)) = (origin.offset, origin.length) else { return wrong("origin") };
            out.set_stored_resource(line.resource().as_bytes(), || resource(line.resource()))?;
            match line.origin_json {
                Some(json) => out.set_stored_origin(json.as_bytes(), origin.parts()),
                None => out.set_origin(origin.parts()),
            }
            Position { sequence: origin.sequence, offset, length }
        }
        _ => return Err("it has neither an `origin` nor a `source` and a `position`".to_owned()),
    };
    let attributes = members(&line.attributes, out)?;
    let name = out.key(name);
    out.push(Header { name, time: at, observed, position }, &attributes, data);
    Ok(())
}

/// Keys and values of the batch.
fn members(of: &Members<'_>, out: &mut Rebuilder) -> Result<Vec<(Key, Value)>, String> {
    let mut members = Vec::with_capacity(of.iter().len());
    for (key, json) in of.iter() {
        members.push((out.key(key), raw_value(json, out)?));
    }
    Ok(members)
}

/// The attributes of a resource, from its object in JSON.
///
/// # Errors
/// It is no object, or has a value that no resource has.
pub fn resource(json: &str) -> Result<Vec<(String, ResourceValue)>, String> {
    let members: Members<'_> = parse(json)?;
    let attributes = members.iter().map(|(key, value)| Some((key.to_owned(), scalar(value)?)));
    attributes.collect::<Option<_>>().map_or_else(|| wrong("resource"), Ok)
}

/// `None`: it is not as its kind has it.
fn data(line: &StoredLine<'_>, out: &mut Rebuilder) -> Option<StoredData> {
    Some(match line.kind.as_deref()? {
        "log" => {
            let trace_id = line.trace_id.as_deref().map(hex_array);
            let span_id = line.span_id.as_deref().map(hex_array).map(|id| id.map(SpanId));
            let context = match trace_id {
                Some(id) => Some(TraceContext { trace_id: TraceId(id?), span_id: flat(span_id)? }),
                None => None,
            };
            let body = flat(line.body.map(|body| raw_value(body, out).ok()))?;
            let severity = severity(line.severity.as_deref()?)?;
            let severity = match line.severity_number {
                None => severity.into(),
                Some(number) => SeverityNumber::of(severity, number)?,
            };
            StoredData::Log { severity, context, body }
        }
        "span" => {
            let span = line.span.as_ref()?;
            let status = match &*span.status {
                "unset" => Status::Unset,
                "ok" => Status::Ok,
                "error" => Status::Error,
                _ => return None,
            };
            let data = SpanData {
                trace_id: TraceId(hex_array(&span.trace_id)?),
                span_id: SpanId(hex_array(&span.span_id)?),
                parent: flat(span.parent_span_id.as_deref().map(|id| hex_array(id).map(SpanId)))?,
                end: flat(span.end_time.as_deref().map(|text| time_after(text, &mut out.last_end)))?,
                duration_nanos: span.duration_ns,
                kind: flat(span.kind.as_deref().map(SpanKind::of))?,
                status,
                status_message: span.status_message.as_deref().map(|text| out.builder().push_text(text)),
            };
            StoredData::Span {
                span: data,
                extras: extras(span, out),
                links: links(span, out)?,
                events: span_events(span, out)?,
            }
        }
        "metric" => {
            let metric = line.metric.as_ref()?;
            let metric_type = metric_type(&metric.metric_type, metric.temporality.as_deref(), metric.monotonic)?;
            let start = flat(metric.start_time.as_deref().map(|text| time(text, out)))?;
            let unit = out.builder().push_text(&metric.unit).into();
            match metric_type {
                MetricType::Gauge | MetricType::Sum { .. } => {
                    let value = number(metric.value?.get())?;
                    StoredData::Metric(MetricData { metric_type, unit, value, start })
                }
                of => StoredData::Distribution(Box::new(distribution::read(metric, of, unit, start)?)),
            }
        }
        "sample" => {
            let sample = line.sample.as_ref()?;
            let clock = match sample.clock.as_deref() {
                None => None,
                Some("cpu") => Some(SampleClock::Cpu),
                Some("wall") => Some(SampleClock::Wall),
                Some(_) => return None,
            };
            let builder = out.builder();
            let frame = |frame: &StoredFrame<'_>| Frame {
                function: frame.function.as_deref().map(|text| builder.push_text(text)),
                file: frame.file.as_deref().map(|text| builder.push_text(text)),
                line: frame.line,
            };
            let frames = sample.frames.iter().map(frame).collect();
            let mut label = |text| out.builder().push_text(text).into();
            let (sample_type, unit) = (label(&sample.sample_type), label(&sample.unit));
            let value = number(sample.value.get())?;
            StoredData::Sample {
                sample: SampleData { sample_type, unit, value, period_nanos: sample.period_ns, clock },
                frames,
            }
        }
        "loss" => {
            let Loss { reason: name, bytes, events, detail, excerpt } = line.loss.as_ref()?;
            let excerpt = hex_bytes(excerpt)?;
            StoredData::Loss {
                reason: reason(name)?,
                bytes: *bytes,
                events: *events,
                detail: detail.to_string(),
                excerpt,
            }
        }
        _ => return None,
    })
}

fn extras(span: &StoredSpan<'_>, out: &mut Rebuilder) -> SpanExtras {
    let Dropped { attributes, events, links } = span.dropped;
    SpanExtras {
        trace_state: span.trace_state.as_deref().map(|text| out.builder().push_text(text)),
        flags: span.flags,
        dropped: DroppedCounts { attributes, events, links },
    }
}

fn links(span: &StoredSpan<'_>, out: &mut Rebuilder) -> Option<Vec<SpanLink>> {
    let link = |link: &StoredLink<'_>| {
        let to = Link { trace_id: TraceId(hex_array(&link.trace_id)?), span_id: SpanId(hex_array(&link.span_id)?) };
        let attributes = members(&link.attributes, out).ok()?;
        let attributes = out.builder().members(&attributes);
        let trace_state = link.trace_state.as_deref().map(|text| out.builder().push_text(text));
        Some(SpanLink { to, attributes, trace_state, flags: link.flags })
    };
    span.links.iter().map(link).collect()
}

fn span_events(span: &StoredSpan<'_>, out: &mut Rebuilder) -> Option<Vec<SpanEvent>> {
    let event = |event: &StoredSpanEvent<'_>| {
        let time = flat(event.time.as_deref().map(|text| time(text, out)))?;
        let attributes = members(&event.attributes, out).ok()?;
        let attributes = out.builder().members(&attributes);
        Some(SpanEvent { time, name: out.key(&event.name), attributes })
    };
    span.events.iter().map(event).collect()
}

/// `None` only for something that is there and invalid.
fn flat<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        Some(None) => None,
        Some(valid) => Some(valid),
        None => Some(None),
    }
}

/// A time of an event. Of times that follow each other, as an encoder writes them, the date is read once.
fn time(text: &str, out: &mut Rebuilder) -> Option<UnixNanos> {
    time_after(text, &mut out.last_time)
}

/// The number of this text of JSON: a number, or the text that stands for one that is not finite.
fn number(json: &str) -> Option<Number> {
    match json {
        "\"NaN\"" => return Some(Number::F64(f64::NAN)),
        "\"Infinity\"" => return Some(Number::F64(f64::INFINITY)),
        "\"-Infinity\"" => return Some(Number::F64(f64::NEG_INFINITY)),
        _ => {}
    }
    let whole = json.parse().map(Number::U64).or_else(|_| json.parse().map(Number::I64));
    whole.ok().or_else(|| json.parse().ok().filter(|number: &f64| number.is_finite()).map(Number::F64))
}

/// The text of a text in quotes.
fn unquoted(json: &str) -> Result<Cow<'_, str>, String> {
    match json.strip_prefix('"').and_then(|json| json.strip_suffix('"')) {
        Some(text) if !text.contains('\\') => Ok(Cow::Borrowed(text)),
        _ => parse(json).map(Cow::Owned),
    }
}

fn scalar(value: JsonText<'_>) -> Option<ResourceValue> {
    let json = match value {
        JsonText::Text(text) => return Some(text.into()),
        JsonText::Json(json) => json,
    };
    Some(match json.as_bytes() {
        b"true" => ResourceValue::Bool(true),
        b"false" => ResourceValue::Bool(false),
        [b'"', ..] => ResourceValue::Text(unquoted(json).ok()?.into_owned()),
        _ => match number(json)? {
            Number::U64(number) => ResourceValue::U64(number),
            Number::I64(number) => ResourceValue::I64(number),
            Number::F64(number) => ResourceValue::F64(number),
        },
    })
}

/// A value of the batch, of its text.
fn raw_value(value_text: JsonText<'_>, out: &mut Rebuilder) -> Result<Value, String> {
    let json = match value_text {
        JsonText::Text(text) => return Ok(Value::Text(out.builder().push_text(text))),
        JsonText::Json(json) => json,
    };
    Ok(match json.as_bytes() {
        b"true" => Value::Bool(true),
        b"false" => Value::Bool(false),
        [b'"', ..] => Value::Text(out.builder().push_text(&unquoted(json)?)),
        [b'-' | b'0'..=b'9', ..] => number_value(json),
        [b'[', ..] => match parse::<Vec<u64>>(json) {
            // The references of an object of a heap, which can be a million.
            Ok(ids) => out.builder().array(&ids.into_iter().map(Value::U64).collect::<Vec<_>>()),
            Err(_) => value(&parse(json)?, out),
        },
        _ => value(&parse(json)?, out),
    })
}

/// A value of the batch.
pub fn value(json: &Json, out: &mut Rebuilder) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => number_value(number.as_str()),
        Json::String(text) => Value::Text(out.builder().push_text(text)),
        Json::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| value(item, out)).collect();
            out.builder().array(&items)
        }
        Json::Object(map) => {
            let members: Vec<_> = map.iter().map(|(key, json)| (out.key(key), value(json, out))).collect();
            out.builder().map(&members)
        }
    }
}

/// A number that nothing here can have is null.
fn number_value(json: &str) -> Value {
    match number(json) {
        Some(Number::U64(number)) => Value::U64(number),
        Some(Number::I64(number)) => Value::I64(number),
        Some(Number::F64(number)) => Value::F64(number),
        None => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::line::MAX_SEARCHED;
    use super::*;
    use tributary_event::ValueView;

    const LINE: &str = r#"{"time":TIME,"observed_time":"2026-11-20T12:15:00.6Z","kind":"log","name":"x","severity":"INFO","attributes":ATTRIBUTES,"resource":RESOURCE,"origin":{"protocol":"datadog","listener":"l","peer":"p","connection":1,"offset":0,"length":0}}"#;

    fn line(time: &str, attributes: &str, resource: &str) -> String {
        LINE.replace("TIME", time).replace("ATTRIBUTES", attributes).replace("RESOURCE", resource)
    }

    /// The attributes of the event of a line.
    fn attributes(json: &str) -> Vec<(String, String)> {
        let mut out = Rebuilder::default();
        read(line("null", json, "{}").as_bytes(), &mut out).unwrap_or_else(|error| panic!("{json}: {error}"));
        let batch = out.take();
        let event = batch.events().next().expect("an event");
        let shown = |value: ValueView<'_>| match value {
            ValueView::Array(items) => format!("{:?}", items.map(|item| item.as_u64()).collect::<Vec<_>>()),
            ValueView::Text(text) => text.text().to_owned(),
            value => format!("{value:?}"),
        };
        event.attributes().map(|(key, value)| (key.text().to_owned(), shown(value))).collect()
    }

    #[test]
    fn values_are_those_of_their_texts() {
        for (json, shown) in [
            ("1", "U64(1)"),
            ("-1", "I64(-1)"),
            ("18446744073709551616", "F64(1.8446744073709552e19)"),
            ("1.0", "F64(1.0)"),
            ("1e999", "Null"),
            ("null", "Null"),
            ("true", "Bool(true)"),
            (r#""a\"\u00df""#, "a\"ß"),
            (r#""NaN""#, "NaN"),
            ("[1, 18446744073709551615]", "[Some(1), Some(18446744073709551615)]"),
            ("[1, -1]", "[Some(1), None]"),
        ] {
            assert_eq!(attributes(&format!("{{\"k\": {json}}}")), [("k".to_owned(), shown.to_owned())], "{json}");
        }
    }

    #[test]
    fn the_last_value_of_a_key_counts_in_its_first_place() {
        for others in [1, MAX_SEARCHED - 1, MAX_SEARCHED, MAX_SEARCHED + 1, 3 * MAX_SEARCHED] {
            let members: Vec<String> = (0..others).map(|at| format!("\"k{at}\":{at}")).collect();
            let read = attributes(&format!("{{\"k\":0,{},\"k\":1,\"k0\":2}}", members.join(",")));
            assert_eq!(read.len(), 1 + others);
            let first: Vec<_> = read.iter().take(2).map(|(key, value)| (&**key, &**value)).collect();
            assert_eq!(first, [("k", "U64(1)"), ("k0", "U64(2)")]);
        }
    }

    #[test]
    fn times_and_resources_are_those_of_each_line() {
        let mut out = Rebuilder::default();
        let second = "2026-11-20T12:15:00";
        for (time, resource) in [
            (format!("\"{second}.000000001Z\""), r#"{"a":1}"#),
            (format!("\"{second}.999999999Z\""), r#"{"a":1}"#),
            (format!("\"{second}.5Z\""), r#"{"a":2}"#),
            (format!("\"{second}+01:00\""), r#"{"a":1}"#),
            ("\"2026-11-20T12:15:01.000000000Z\"".to_owned(), "{}"),
        ] {
            read(line(&time, "{}", resource).as_bytes(), &mut out).expect("an event");
        }
        for time in [
            "2026-11-20T12:15:99.000000000Z",
            "2026-11-20T12:15:00.00000000xZ",
            "2026-11-20T24:15:00.000000000Z",
            "2026-11-31T12:15:00.000000000Z",
            "2026-11-20T12:15é.000000000Z",
        ] {
            let error = read(line(&format!("\"{time}\""), "{}", "{}").as_bytes(), &mut out);
            assert_eq!(error, Err("`time` is not as events have it".to_owned()), "{time}");
        }
        let batch = out.take();
        let read = batch.events().map(|event| {
            let resource = event.resource().attributes().first();
            (event.time().map_or(0, |time| time.0 % 3_600_000_000_000), resource.map(|(_, value)| value.clone()))
        });
        const SECOND: u64 = 900_000_000_000;
        let (one, two) = (Some(ResourceValue::U64(1)), Some(ResourceValue::U64(2)));
        let expected = [
            (SECOND + 1, one.clone()),
            (SECOND + 999_999_999, one.clone()),
            (SECOND + 500_000_000, two),
            (SECOND, one),
            (SECOND + 1_000_000_000, None),
        ];
        assert_eq!(read.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn origins_are_those_of_each_line() {
        let mut out = Rebuilder::default();
        let origins = [
            (r#""listener":"l","connection":1"#, "l - 1 -"),
            (r#""listener":"l","connection":12"#, "l - 12 -"),
            (r#""listener":"l","connection":1,"sequence":7"#, "l - 1 7"),
            (r#""listener":"l","peer":"p","connection":1"#, "l p 1 -"),
            (r#""listener":"m","connection":12,"sequence":0"#, "m - 12 0"),
            (r#""listener":"l","connection":1"#, "l - 1 -"),
            (r#""listener":"m","connection":1.0"#, ""),
            (r#""listener":"m","connection":12"#, "m - 12 -"),
        ];
        let read_origin = |origin: &str, out: &mut Rebuilder| {
            let line = line("null", "{}", "{}");
            let (before, _) = line.split_once(r#""listener""#).unwrap();
            read(format!(r#"{before}{origin},"offset":3,"length":4}}}}"#).as_bytes(), out)
        };
        for (origin, expected) in origins {
            assert_eq!(read_origin(origin, &mut out).is_ok(), !expected.is_empty(), "{origin}");
        }
        let batch = out.take();
        let origin_of = |event: tributary_event::EventView<'_>| {
            let (origin, position) = (event.origin(), event.position());
            assert_eq!((position.offset, position.length), (3, 4));
            let peer = Some(&*origin.peer).filter(|peer| !peer.is_empty()).unwrap_or("-");
            let sequence = position.sequence.map_or("-".to_owned(), |sequence| sequence.to_string());
            format!("{} {peer} {} {sequence}", origin.listener, origin.connection)
        };
        let expected = origins.iter().map(|(_, expected)| *expected).filter(|expected| !expected.is_empty());
        assert_eq!(batch.events().map(origin_of).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn of_an_event_that_is_not_wanted_only_the_syntax_is_checked() {
        let mut out = Rebuilder::default();
        let line = |severity: &str| line("null", "{}", "{}").replace("\"INFO\"", severity);
        let is_wanted = |kind: &str, name: &str| kind != "log" || name != "x";
        assert_eq!(read_wanted(line("\"LOUD\"").as_bytes(), is_wanted, &mut out), Ok(false));
        assert!(read_wanted(line("{").as_bytes(), is_wanted, &mut out).is_err());
        assert_eq!(read_wanted(line("\"WARN\"").as_bytes(), |_, _| true, &mut out), Ok(true));
        assert_eq!(out.take().len(), 1);
    }
}
