//! Profiles that `opentelemetry-proto` writes: each value of a sample is an event.

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesDictionary, ResourceProfiles, Sample,
    ScopeProfiles, Stack, ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use serde_json::{Value, json};
use tributary::protocol::otlp::Options;

use crate::offline::{JSON, Offline, PROTOBUF, content};

/// 2026-11-20T10:40:00Z in nanoseconds.
const TIME: u64 = 1_795_171_200_000_000_000;
pub(crate) const PATH: &str = "/v1development/profiles";

const STRINGS: [&str; 16] = [
    "",
    "cpu",
    "nanoseconds",
    "pay",
    "shop/orders.py",
    "main",
    "libc.so",
    "thread.id",
    "service.name",
    "shop",
    "samples",
    "count",
    "bytes",
    "sys_main",
    "shop.profiler",
    "host",
];

fn string(text: &str) -> i32 {
    STRINGS.iter().position(|known| *known == text).unwrap() as i32
}

fn text(text: &str) -> AnyValue {
    AnyValue { value: Some(Any::StringValue(text.to_owned())) }
}

fn attribute(key: &str, value: AnyValue) -> KeyValueAndUnit {
    KeyValueAndUnit { key_strindex: string(key), value: Some(value), unit_strindex: 0 }
}

fn dictionary() -> ProfilesDictionary {
    let function = |name, system, file| Function {
        name_strindex: string(name),
        system_name_strindex: string(system),
        filename_strindex: string(file),
        start_line: 1,
    };
    let line = |function_index, line| Line { function_index, line, column: 4 };
    ProfilesDictionary {
        mapping_table: vec![Mapping::default(), Mapping { filename_strindex: string("libc.so"), ..Mapping::default() }],
        location_table: vec![
            Location::default(),
            // `pay` was inlined into `main`.
            Location { lines: vec![line(1, 41), line(2, 7)], ..Location::default() },
            Location { mapping_index: 1, address: 0x1F3A, ..Location::default() },
        ],
        function_table: vec![
            Function::default(),
            function("pay", "", "shop/orders.py"),
            function("", "sys_main", "shop/orders.py"),
        ],
        link_table: vec![Link::default(), Link { trace_id: vec![0xA1; 16], span_id: vec![0xB2; 8] }],
        string_table: STRINGS.map(str::to_owned).to_vec(),
        attribute_table: vec![
            KeyValueAndUnit::default(),
            attribute("thread.id", AnyValue { value: Some(Any::IntValue(7)) }),
            attribute("host", text("h1")),
            attribute("host", text("h2")),
            attribute("main", AnyValue { value: Some(Any::StringValueStrindex(string("bytes"))) }),
        ],
        stack_table: vec![
            Stack::default(),
            Stack { location_indices: vec![2, 1] },
            Stack { location_indices: vec![1, 0] },
        ],
    }
}

fn request() -> ExportProfilesServiceRequest {
    let value_type = |of, unit| Some(ValueType { type_strindex: string(of), unit_strindex: string(unit) });
    let profile = Profile {
        sample_type: value_type("samples", "count"),
        period_type: value_type("cpu", "nanoseconds"),
        period: 10_000_000,
        time_unix_nano: TIME,
        duration_nano: 1_000_000_000,
        profile_id: vec![0xD4; 16],
        attribute_indices: vec![2, 4],
        samples: vec![
            Sample {
                stack_index: 1,
                attribute_indices: vec![1, 3],
                link_index: 1,
                values: vec![1, 2],
                timestamps_unix_nano: vec![TIME + 5, TIME + 6],
            },
            // Times without values: each is one.
            Sample { stack_index: 2, timestamps_unix_nano: vec![TIME + 8], ..Sample::default() },
            // A value without a time.
            Sample { stack_index: 2, values: vec![-3], ..Sample::default() },
            Sample::default(),
        ],
        ..Profile::default()
    };
    // A newer sender refers to texts of the dictionary also here.
    let service = KeyValue {
        key_strindex: string("service.name"),
        value: Some(AnyValue { value: Some(Any::StringValueStrindex(string("shop"))) }),
        ..KeyValue::default()
    };
    let scope = InstrumentationScope { name: "shop.profiler".to_owned(), ..InstrumentationScope::default() };
    ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(Resource { attributes: vec![service], ..Resource::default() }),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(scope),
                profiles: vec![profile],
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        }],
        dictionary: Some(dictionary()),
    }
}

/// A request with one profile that has every field that an event has.
pub(crate) fn profiles() -> Vec<u8> {
    request().encode_to_vec()
}

fn expected() -> Vec<Value> {
    let sample = |value: i64, time: &str, frames: Value, own: Value| {
        let mut attributes = json!({
            "host": "h1", "main": "bytes", "otlp.profile.id": "d4".repeat(16), "otlp.scope.name": "shop.profiler",
        });
        attributes.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        json!({
            "name": "otlp.profile.sample",
            "time": format!("2026-11-20T10:40:{time}Z"),
            "kind": "sample",
            "sample": {
                "type": "samples", "unit": "count", "value": value, "period_ns": 10_000_000, "clock": "cpu", "frames": frames,
            },
            "resource": { "service.name": "shop" },
            "attributes": attributes,
        })
    };
    let pay = json!({ "function": "pay", "file": "shop/orders.py", "line": 41 });
    let main = json!({ "function": "sys_main", "file": "shop/orders.py", "line": 7 });
    let native = json!([{ "function": "0x1f3a", "file": "libc.so" }, pay, main]);
    let plain = json!([pay, main]);
    let own = json!({ "host": "h2", "thread.id": 7, "trace_id": "a1".repeat(16), "span_id": "b2".repeat(8) });
    vec![
        sample(1, "00.000000005", native.clone(), own.clone()),
        sample(2, "00.000000006", native, own),
        sample(1, "00.000000008", plain.clone(), json!({})),
        sample(-3, "01.000000000", plain, json!({})),
    ]
}

#[test]
fn each_value_of_a_sample_is_an_event_with_its_stack_attributes_and_span() {
    let mut offline = Offline::new();
    let events = offline.events(PATH, &[PROTOBUF], &profiles());
    let found: Vec<_> = events.iter().map(content).collect();
    for (found, expected) in found.iter().zip(&expected()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), 4);
    let sequences: Vec<_> = events.iter().map(|event| event["origin"]["sequence"].as_u64().unwrap()).collect();
    assert_eq!(sequences, [1, 2, 3, 4]);
}

#[test]
fn json_gives_the_same_samples() {
    let body = json!({
        "resourceProfiles": [{
            "resource": { "attributes": [{ "keyStrindex": 2, "value": { "stringValueStrindex": 3 } }] },
            "scopeProfiles": [{
                "profiles": [{
                    "sampleType": { "typeStrindex": 4, "unitStrindex": 5 },
                    "samples": [{ "stackIndex": 1, "values": ["12", 3], "timestampsUnixNano": [TIME.to_string(), TIME] }],
                    "profileId": "d4".repeat(16),
                }],
            }],
        }],
        "dictionary": {
            "stringTable": ["", "pay", "service.name", "shop", "wall", "nanoseconds"],
            "functionTable": [{}, { "nameStrindex": 1 }],
            "locationTable": [{}, { "lines": [{ "functionIndex": 1, "line": "41" }] }],
            "stackTable": [{}, { "locationIndices": [1, 1] }],
        },
    });
    let events = Offline::new().events(PATH, &[JSON], body.to_string().as_bytes());
    let samples: Vec<_> = events.iter().map(|event| &event["sample"]).collect();
    let frame = json!({ "function": "pay", "line": 41 });
    let sample = |value| json!({ "type": "wall", "unit": "nanoseconds", "value": value, "frames": [frame, frame] });
    assert_eq!(samples, [&sample(12), &sample(3)]);
    assert_eq!(events[0]["resource"], json!({ "service.name": "shop" }));
    assert_eq!(events[0]["attributes"], json!({ "otlp.profile.id": "d4".repeat(16) }));
}

/// A change of a request, and what the refusal says.
type Refusal = (fn(&mut ExportProfilesServiceRequest), &'static str);

#[test]
fn an_index_beyond_its_table_refuses_the_request() {
    fn sample(request: &mut ExportProfilesServiceRequest) -> &mut Sample {
        &mut request.resource_profiles[0].scope_profiles[0].profiles[0].samples[0]
    }
    fn tables(request: &mut ExportProfilesServiceRequest) -> &mut ProfilesDictionary {
        request.dictionary.as_mut().unwrap()
    }
    let cases: [Refusal; 7] = [
        (|request| sample(request).stack_index = 3, "stackIndex: found 0x03, expected an index of stackTable"),
        (|request| sample(request).link_index = -1, "linkIndex: found 0xffffffffffffffff, expected an index of"),
        (|request| sample(request).attribute_indices.push(5), "attributeIndices: found 0x05, expected an index of"),
        (|request| tables(request).stack_table[1].location_indices[0] = 3, "locationIndices: found 0x03, expected"),
        (
            |request| tables(request).location_table[1].lines[0].function_index = 9,
            "functionIndex: found 0x09, expected",
        ),
        (|request| tables(request).function_table[1].name_strindex = 99, "nameStrindex: found 0x63, expected"),
        (|request| request.dictionary = None, "expected an index of stringTable"),
    ];
    for (change, words) in cases {
        let mut request = request();
        change(&mut request);
        let mut offline = Offline::new();
        let answered = offline.ask(PATH, &[PROTOBUF], &request.encode_to_vec());
        let answer = String::from_utf8_lossy(&answered.body).into_owned();
        assert!(answered.status == 400 && answer.contains(words), "{words}: {} {answer}", answered.status);
        assert_eq!(answered.events.len(), 1, "a loss only");
        offline.assert_balance();
    }
}

#[test]
fn limits_cut_stacks_and_refuse_large_tables() {
    let body = profiles();
    let events = Offline::with(Options { max_frames: 1, ..Options::default() }).events(PATH, &[PROTOBUF], &body);
    assert_eq!(events[0]["sample"]["frames"], json!([{ "function": "0x1f3a", "file": "libc.so" }]));
    assert_eq!(events[0]["attributes"]["tributary.incomplete"], json!(["frames"]));
    let options = Options { max_profile_entries: 15, ..Options::default() };
    let answered = Offline::with(options).ask(PATH, &[PROTOBUF], &body);
    let answer = String::from_utf8_lossy(&answered.body).into_owned();
    assert!(answered.status == 413 && answer.contains("max_profile_entries"), "{} {answer}", answered.status);
}

/// Values that refer to one long text many times.
#[test]
fn a_text_of_the_dictionary_does_not_multiply_in_one_event() {
    let long = "x".repeat(200_000);
    let values: Vec<_> = (0..1000).map(|_| AnyValue { value: Some(Any::StringValueStrindex(1)) }).collect();
    let list = AnyValue {
        value: Some(Any::ArrayValue(opentelemetry_proto::tonic::common::v1::ArrayValue { values: values.clone() })),
    };
    let mut request = request();
    let of_list = KeyValue { key: "list".to_owned(), value: Some(list.clone()), ..KeyValue::default() };
    request.resource_profiles[0].resource = Some(Resource { attributes: vec![of_list], ..Resource::default() });
    let tables = request.dictionary.as_mut().unwrap();
    tables.string_table[1] = long;
    tables.attribute_table[1].value = Some(list);
    let events = Offline::new().events(PATH, &[PROTOBUF], &request.encode_to_vec());
    let line = events[0].to_string();
    assert!(line.len() < 600_000, "{}", line.len());
    assert_eq!(events[0]["attributes"]["tributary.text.truncated"], true);
}
