//! Uploads of profilers: the samples of recorded ones, and what is refused.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::{Map, Value, json};
use tributary::protocol::datadog_agent::{Options, ProfileMode};

use crate::offline::{Answered, Offline};

const PATH: &str = "/profiling/v1/input";
const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=b");

/// An upload, its headers, and what another decoder found in it.
fn recorded(name: &str) -> (Vec<u8>, Value) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/datadog_agent/profiles");
    let mut expected = String::new();
    let file = fs::File::open(root.join(format!("{name}.expected.json.gz"))).unwrap();
    GzDecoder::new(file).read_to_string(&mut expected).unwrap();
    (fs::read(root.join(format!("{name}.bin"))).unwrap(), serde_json::from_str(&expected).unwrap())
}

fn upload(offline: &mut Offline, (body, expected): &(Vec<u8>, Value)) -> Answered {
    let headers = expected["headers"].as_object().unwrap();
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect();
    offline.ask(PATH, &headers, body)
}

/// The attributes of a sample with these labels, and its time.
fn labels(labels: &Value) -> (Map<String, Value>, Option<u64>) {
    let (mut attributes, mut time) = (Map::new(), None);
    for (key, value) in labels.as_object().unwrap() {
        let whole = || value.as_str().and_then(|text| text.parse::<i64>().ok()).map_or(value.clone(), Value::from);
        match key.as_str() {
            "end_timestamp_ns" => time = value.as_u64(),
            "thread id" => drop(attributes.insert("thread.id".to_owned(), whole())),
            "thread name" => drop(attributes.insert("thread.name".to_owned(), value.clone())),
            _ => drop(attributes.insert(format!("pprof.label.{key}"), value.clone())),
        }
    }
    (attributes, time)
}

fn frames(frames: &Value) -> Vec<Value> {
    let frames = frames.as_array().unwrap().iter().map(|frame| {
        let mut written = Map::new();
        for (from, to) in [("function", "function"), ("file", "file"), ("line", "line")] {
            if frame[from] != "" && frame[from] != 0 {
                written.insert(to.to_owned(), frame[from].clone());
            }
        }
        written
    });
    frames.filter(|frame| frame.contains_key("function") || frame.contains_key("file")).map(Value::Object).collect()
}

#[test]
fn every_value_of_a_recorded_profile_is_a_sample() {
    let mut checked = 0;
    for name in ["py4-profile-1", "js-profile-1", "js-profile-2"] {
        let recorded = recorded(name);
        let mut offline = Offline::new();
        let answered = upload(&mut offline, &recorded);
        assert_eq!(answered.status, 200, "{name}: {}", answered.body);
        let mut samples = answered.events.iter().filter(|event| event["kind"] == "sample");
        for part in recorded.1["parts"].as_array().unwrap() {
            let pprof = &part["pprof"];
            for sample in pprof["samples"].as_array().into_iter().flatten() {
                let (attributes, time) = labels(&sample["labels"]);
                let values = sample["values"].as_array().unwrap().iter().zip(pprof["sample_types"].as_array().unwrap());
                for (value, of) in values.filter(|(value, _)| **value != 0) {
                    let found = samples.next().unwrap();
                    let context = format!("{name}: {found} instead of {sample}");
                    assert_eq!(found["name"], "datadog.profile.sample", "{context}");
                    let own = &found["sample"];
                    assert_eq!([&own["type"], &own["unit"], &own["value"]], [&of[0], &of[1], value], "{context}");
                    assert_eq!(own["frames"], Value::Array(frames(&sample["frames"])), "{context}");
                    let of_sample = found["attributes"].as_object().cloned().unwrap_or_default();
                    assert_eq!(of_sample, attributes, "{context}");
                    if let Some(time) = time {
                        let shown: jiff::Timestamp = found["time"].as_str().unwrap().parse().unwrap();
                        assert_eq!(shown.as_nanosecond(), i128::from(time), "{context}");
                    }
                    assert_eq!(found["resource"]["service.name"], "shop", "{context}");
                    assert_eq!(found["resource"]["deployment.environment.name"], "test", "{context}");
                    checked += 1;
                }
            }
        }
        assert!(samples.next().is_none(), "{name}");
        let log = answered.events.last().unwrap();
        assert_eq!((&log["kind"], &log["name"]), (&json!("log"), &json!("datadog.profile")), "{log}");
        assert_eq!(log["attributes"]["datadog.profile.family"], recorded.1["parts"][0]["json"]["family"]);
        assert_eq!(answered.events.iter().filter(|event| event["kind"] == "loss").count(), 0);
        offline.assert_balance();
    }
    assert!(checked > 2000, "{checked} samples");
}

/// A form with a description and one file.
fn form(name: &str, content: &[u8]) -> Vec<u8> {
    let mut body = b"--b\r\ncontent-disposition: form-data; name=\"event\"; filename=\"event.json\"\r\n\r\n\
        {\"family\":\"go\",\"start\":\"2026-11-27T10:00:00Z\",\"end\":\"2026-11-27T10:01:00Z\",\
        \"tags_profiler\":\"service:shop,env:test,runtime-id:abc,team:a\"}\r\n--b\r\n"
        .to_vec();
    write!(body, "content-disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\n\r\n").unwrap();
    body.extend_from_slice(content);
    body.extend_from_slice(b"\r\n--b--\r\n");
    body
}

fn message(field: u8, content: &[u8]) -> Vec<u8> {
    [&[field << 3 | 2, content.len() as u8], content].concat()
}

/// Two types; one sample of a stack of an inlined call and of an address.
fn profile() -> Vec<u8> {
    let strings = ["", "cpu", "nanoseconds", "samples", "count", "inner", "outer", "main.go", "app.so", "span id"];
    let mut all = [message(1, &[8, 3, 16, 4]), message(1, &[8, 1, 16, 2])].concat();
    // Locations, values, a label.
    all.extend(message(2, &[&message(1, &[1, 2])[..], &message(2, &[1, 20]), &message(3, &[8, 9, 24, 7])].concat()));
    all.extend(message(3, &[8, 1, 40, 8]));
    all.extend(message(4, &[&[8, 1][..], &message(4, &[8, 1, 16, 3]), &message(4, &[8, 2, 16, 9])].concat()));
    all.extend(message(4, &[8, 2, 16, 1, 24, 0x10]));
    all.extend(message(5, &[8, 1, 16, 5, 32, 7]));
    all.extend(message(5, &[8, 2, 16, 6, 32, 7]));
    strings.iter().for_each(|text| all.extend(message(6, text.as_bytes())));
    all
}

#[test]
fn inlined_calls_and_addresses_are_frames() {
    let answered = Offline::new().ask(PATH, &[FORM], &form("cpu.pprof", &profile()));
    let [samples, cpu, log] = answered.events.as_slice() else { panic!("{answered:?}") };
    let frames = json!([
        {"function": "inner", "file": "main.go", "line": 3},
        {"function": "outer", "file": "main.go", "line": 9},
        {"function": "0x10", "file": "app.so"},
    ]);
    assert_eq!(samples["sample"], json!({"type": "samples", "unit": "count", "value": 1, "frames": frames}));
    assert_eq!(cpu["sample"], json!({"type": "cpu", "unit": "nanoseconds", "value": 20, "frames": frames}));
    assert_eq!(cpu["attributes"], json!({"span_id": "0000000000000007"}));
    assert!(cpu["time"].as_str().unwrap().starts_with("2026-11-27T10:01:00"), "{cpu}");
    let expected = json!({
        "datadog.profile.family": "go",
        "datadog.profile.types": ["samples", "cpu"],
        "datadog.profile.attachments": ["cpu.pprof"],
        "datadog.profile.samples": 1,
        "datadog.profile.start": "2026-11-27T10:00:00Z",
        "datadog.profile.end": "2026-11-27T10:01:00Z",
        "team": "a",
    });
    assert_eq!(log["attributes"], expected);
}

#[test]
fn a_damaged_profile_is_refused_whole() {
    let whole = profile();
    for end in 1..whole.len() {
        let mut offline = Offline::new();
        let body = form("cpu.pprof", &whole[..end]);
        let answered = offline.ask(PATH, &[FORM], &body);
        offline.assert_balance();
        if answered.status == 200 {
            // Cut between two fields, behind everything that is referred to.
            continue;
        }
        assert_eq!(answered.status, 400, "{end}: {}", answered.body);
        let [loss] = answered.events.as_slice() else { panic!("{end}: {answered:?}") };
        assert_eq!(loss["loss"]["bytes"], body.len(), "{end}");
    }
    for (body, why) in [
        (form("cpu.pprof", b"\x28\xB5\x2F\xFDx"), "compressed data"),
        (form("cpu.pprof", b"\x1F\x8B\x08"), "compressed data"),
        (b"--b\r\nno form".to_vec(), "at "),
        (form("cpu.pprof", &profile())[..40].to_vec(), "at "),
    ] {
        let answered = Offline::new().ask(PATH, &[FORM], &body);
        assert!(answered.status == 400 && answered.body.contains(why), "{}", answered.body);
    }
    let answered = Offline::new().ask(PATH, &[], &form("cpu.pprof", &profile()));
    assert!(answered.status == 400 && answered.body.contains("boundary"), "{}", answered.body);
}

#[test]
fn limits_are_named_by_their_keys() {
    let small = |change: fn(&mut Options)| {
        let mut options = Options::default();
        change(&mut options);
        Offline::with(options).ask(PATH, &[FORM], &form("cpu.pprof", &profile()))
    };
    let answered = small(|options| options.max_inflated_bytes = 10);
    assert!(answered.status == 413 && answered.body.contains("max_inflated_bytes"), "{}", answered.body);
    let answered = small(|options| options.max_profile_entries = 3);
    assert!(answered.status == 413 && answered.body.contains("max_profile_entries"), "{}", answered.body);
    let answered = small(|options| options.max_frames = 1);
    let sample = &answered.events[0];
    assert_eq!(sample["sample"]["frames"].as_array().unwrap().len(), 1);
    assert_eq!(sample["attributes"]["tributary.incomplete"], json!(["frames"]), "{sample}");
}

#[test]
fn uploads_can_be_switched_off_and_other_files_are_ignored() {
    let options = Options { profiles: ProfileMode::Off, ..Options::default() };
    let mut offline = Offline::with(options);
    let body = form("cpu.pprof", &profile());
    let answered = offline.ask(PATH, &[FORM], &body);
    assert_eq!((answered.status, answered.events.len()), (200, 0));
    assert_eq!(offline.counters.totals().ignored(), body.len() as u64);
    let mut offline = Offline::new();
    let answered = offline.ask(PATH, &[FORM], &form("main.jfr", b"FLR\0"));
    assert_eq!((answered.status, answered.events.len()), (200, 1));
    assert_eq!(answered.events[0]["attributes"]["datadog.profile.attachments"], json!(["main.jfr"]));
    assert_eq!(offline.counters.totals().ignored(), 4);
    offline.assert_balance();
}
