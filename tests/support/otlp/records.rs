//! Decoded requests in a form that can be compared: the order of attributes, groups and records does not matter.

use std::collections::{BTreeMap, HashSet};

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use prost::Message as _;
use tributary::sink::otlp::Signal;

use super::mapping::Requests;
use super::points;

/// What requests had.
#[derive(Clone, Default)]
pub struct Decoded {
    pub requests: Requests,
    pub profiles: Vec<ExportProfilesServiceRequest>,
}

impl Decoded {
    /// Adds a request. Fails if it is no valid message.
    pub fn add(&mut self, signal: Signal, message: &[u8]) {
        match signal {
            Signal::Logs => self.requests.logs.merge(message).unwrap(),
            Signal::Traces => self.requests.traces.merge(message).unwrap(),
            Signal::Metrics => self.requests.metrics.merge(message).unwrap(),
            Signal::Profiles => self.profiles.push(ExportProfilesServiceRequest::decode(message).unwrap()),
        }
    }
}

/// Each list of attributes in a form that does not depend on its order or on the bits of NaN. Fails on a key that repeats.
pub fn sorted(requests: Requests) -> Requests {
    each_list(
        requests,
        &|attributes| {
            fix_members(attributes);
            attributes.sort_by(|a, b| a.key.cmp(&b.key));
        },
        &fix_value,
    )
}

/// The same in a form that JSON lines have, too: bytes are base64, also under a key without that ending, and doubles that are
/// not finite are texts.
pub fn as_lines_show(requests: Requests) -> Requests {
    sorted(each_list(requests, &|attributes| show_members(attributes), &show_value))
}

/// Changes each list of attributes, and each body.
fn each_list(mut requests: Requests, fix: &dyn Fn(&mut Vec<KeyValue>), fix_value: &dyn Fn(&mut AnyValue)) -> Requests {
    for group in &mut requests.logs.resource_logs {
        group.resource.iter_mut().for_each(|resource| fix(&mut resource.attributes));
        for record in group.scope_logs.iter_mut().flat_map(|scope| &mut scope.log_records) {
            fix(&mut record.attributes);
            record.body.iter_mut().for_each(fix_value);
        }
    }
    for group in &mut requests.traces.resource_spans {
        group.resource.iter_mut().for_each(|resource| fix(&mut resource.attributes));
        group.scope_spans.iter_mut().flat_map(|scope| &mut scope.spans).for_each(|span| fix(&mut span.attributes));
    }
    for group in &mut requests.metrics.resource_metrics {
        group.resource.iter_mut().for_each(|resource| fix(&mut resource.attributes));
        for metric in group.scope_metrics.iter_mut().flat_map(|scope| &mut scope.metrics) {
            points::fix(metric.data.as_mut().unwrap(), fix);
        }
    }
    requests
}

fn fix_members(members: &mut [KeyValue]) {
    let keys: HashSet<&str> = members.iter().map(|member| member.key.as_str()).collect();
    assert_eq!(keys.len(), members.len(), "a key repeats: {members:?}");
    members.iter_mut().filter_map(|member| member.value.as_mut()).for_each(fix_value);
}

fn fix_value(value: &mut AnyValue) {
    match &mut value.value {
        Some(Any::DoubleValue(value)) if value.is_nan() => *value = 0.5,
        // JSON text escapes in more than one way.
        Some(Any::StringValue(text)) if text.starts_with(['[', '{']) => {
            if let Ok(json) = serde_json::from_str::<serde_json::Value>(text) {
                *text = json.to_string();
            }
        }
        Some(Any::ArrayValue(array)) => array.values.iter_mut().for_each(fix_value),
        Some(Any::KvlistValue(list)) => fix_members(&mut list.values),
        _ => {}
    }
}

fn show_members(members: &mut [KeyValue]) {
    members.iter_mut().filter_map(|member| member.value.as_mut()).for_each(show_value);
    // Lines have bytes below keys with this ending, or inside of values whose type is known.
    let keys: HashSet<String> = members.iter().map(|member| member.key.clone()).collect();
    for member in members {
        let is_text = matches!(member.value, Some(AnyValue { value: Some(Any::StringValue(_)) }));
        match member.key.strip_suffix("_base64") {
            Some(short) if is_text && !short.is_empty() && !keys.contains(short) => member.key = short.to_owned(),
            _ => {}
        }
    }
}

fn show_value(value: &mut AnyValue) {
    match &mut value.value {
        Some(Any::DoubleValue(number)) if !number.is_finite() => {
            let text = match *number {
                number if number.is_nan() => "NaN",
                number if number > 0.0 => "Infinity",
                _ => "-Infinity",
            };
            value.value = Some(Any::StringValue(text.to_owned()));
        }
        Some(Any::BytesValue(bytes)) => {
            value.value = Some(Any::StringValue(base64(bytes)));
        }
        Some(Any::ArrayValue(array)) => array.values.iter_mut().for_each(show_value),
        Some(Any::KvlistValue(list)) => show_members(&mut list.values),
        _ => {}
    }
}

/// Every record as text with its scope and resource, and how often it is there.
pub fn records(requests: &Requests) -> BTreeMap<String, u32> {
    let requests = sorted(requests.clone());
    let mut records = BTreeMap::new();
    let mut add = |record: String| *records.entry(record).or_default() += 1;
    for group in &requests.logs.resource_logs {
        for scope in &group.scope_logs {
            scope.log_records.iter().for_each(|record| add(format!("{:?}{:?}{record:?}", group.resource, scope.scope)));
        }
    }
    for group in &requests.traces.resource_spans {
        for scope in &group.scope_spans {
            scope.spans.iter().for_each(|span| add(format!("{:?}{:?}{span:?}", group.resource, scope.scope)));
        }
    }
    for group in &requests.metrics.resource_metrics {
        for scope in &group.scope_metrics {
            for metric in &scope.metrics {
                let data = metric.data.as_ref().unwrap();
                let of = points::without_points(data);
                let head = format!("{:?}{:?}{} {} {of:?}", group.resource, scope.scope, metric.name, metric.unit);
                points::texts(data).iter().for_each(|point| add(format!("{head}{point}")));
            }
        }
    }
    records
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = bytes.chunks(3).flat_map(|group| {
        let bits = (0..3).fold(0u32, |bits, at| bits << 8 | u32::from(*group.get(at).unwrap_or(&0)));
        (0..4).map(move |digit| {
            let value = DIGITS[(bits >> (18 - 6 * digit)) as usize & 63];
            char::from(if digit > group.len() { b'=' } else { value })
        })
    });
    digits.collect()
}
