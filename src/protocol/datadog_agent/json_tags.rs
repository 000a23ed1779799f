//! Links and events that are JSON in a tag: clients without fields for them write `_dd.span_links` and `events` (notes, section 3).

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use tributary_event::{BatchBuilder, Key, Link, Span32, SpanEvent, SpanId, SpanLink, TraceId, UnixNanos, Value};

use super::normalize::set_flags;

#[derive(Deserialize)]
struct JsonLink<'a> {
    #[serde(borrow)]
    trace_id: Cow<'a, str>,
    #[serde(borrow)]
    span_id: Cow<'a, str>,
    #[serde(default)]
    attributes: Option<Map<String, Json>>,
    #[serde(default, borrow)]
    tracestate: Option<Cow<'a, str>>,
    #[serde(default)]
    flags: Option<u32>,
}

#[derive(Deserialize)]
struct JsonEvent<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default)]
    time_unix_nano: u64,
    #[serde(default)]
    attributes: Option<Map<String, Json>>,
}

/// The links of a tag. `None`: it is something else.
pub(super) fn links(json: &[u8], batch: &mut BatchBuilder) -> Option<Vec<SpanLink>> {
    let links: Vec<JsonLink<'_>> = serde_json::from_slice(json).ok()?;
    let ids = |link: &JsonLink<'_>| Some((hex(&link.trace_id, 32)?, hex(&link.span_id, 16)? as u64));
    let ids: Vec<_> = links.iter().map(ids).collect::<Option<_>>()?;
    let all = links.into_iter().zip(ids).map(|(link, (trace_id, span_id))| SpanLink {
        to: Link { trace_id: TraceId(trace_id.to_be_bytes()), span_id: SpanId(span_id.to_be_bytes()) },
        attributes: members(link.attributes, batch),
        trace_state: link.tracestate.filter(|text| !text.is_empty()).map(|text| batch.push_text(&text)),
        flags: link.flags.and_then(set_flags),
    });
    Some(all.collect())
}

/// The events of a tag. `None`: it is something else.
pub(super) fn events(json: &[u8], batch: &mut BatchBuilder) -> Option<Vec<SpanEvent>> {
    let events: Vec<JsonEvent<'_>> = serde_json::from_slice(json).ok()?;
    let all = events.into_iter().map(|event| SpanEvent {
        time: (event.time_unix_nano > 0).then_some(UnixNanos(event.time_unix_nano)),
        name: batch.push_text(&event.name).into(),
        attributes: members(event.attributes, batch),
    });
    Some(all.collect())
}

fn members(attributes: Option<Map<String, Json>>, batch: &mut BatchBuilder) -> Span32 {
    let attributes = attributes.unwrap_or_default();
    let all = pairs(attributes.iter().filter(|(_, json)| !json.is_null()), batch);
    batch.members(&all)
}

fn pairs<'a>(all: impl Iterator<Item = (&'a String, &'a Json)>, batch: &mut BatchBuilder) -> Vec<(Key, Value)> {
    let pair = |(key, json): (&String, &Json)| {
        let key = batch.push_text(key).into();
        (key, value(json, batch))
    };
    all.map(pair).collect()
}

/// A value of the batch. Nesting is limited by the JSON reader.
fn value(json: &Json, batch: &mut BatchBuilder) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => {
            let whole = number.as_i64().map(Value::I64).or_else(|| number.as_u64().map(Value::U64));
            whole.unwrap_or_else(|| Value::F64(number.as_f64().unwrap_or(f64::NAN)))
        }
        Json::String(text) => Value::Text(batch.push_text(text)),
        Json::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| value(item, batch)).collect();
            batch.array(&items)
        }
        Json::Object(members) => {
            let members = pairs(members.iter(), batch);
            batch.map(&members)
        }
    }
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = !text.is_empty() && text.len() <= digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}
