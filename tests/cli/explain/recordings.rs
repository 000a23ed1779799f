//! The sheets of all recordings of datadog and bytefrog, compared with independent decoders and with the events of `decode`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::shown::{self, Line, Message};
use crate::live::binary::run;

fn directory(protocol: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(protocol)
}

fn json_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The sheets of these files and their events, by the names of the files.
fn explained(protocol: &str, options: &[&str], files: &[String]) -> BTreeMap<String, (Vec<Line>, Vec<Value>)> {
    let arguments = |explain: bool| {
        let mut arguments = vec!["decode", protocol];
        arguments.extend(options);
        if explain {
            arguments.push("--explain");
        }
        arguments.extend(files.iter().map(String::as_str));
        let ended = run(&arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended
    };
    let (sheets, decoded) = (arguments(true), arguments(false));
    let texts = match files {
        [file] => BTreeMap::from([(file.as_str(), sheets.stdout.as_str())]),
        _ => shown::sections(&sheets.stdout),
    };
    assert_eq!(texts.len(), files.len());
    let mut events = BTreeMap::<String, Vec<Value>>::new();
    for event in decoded.events() {
        events.entry(event["origin"]["peer"].as_str().unwrap().to_owned()).or_default().push(event);
    }
    let of =
        |(name, text): (&str, &str)| (name.to_owned(), (shown::lines(text), events.remove(name).unwrap_or_default()));
    texts.into_iter().map(of).collect()
}

/// Checks the rules for the bytes of a connection of any protocol.
fn check_stream(lines: &[Line], events: &[Value], bytes: &[u8]) {
    shown::check_bytes(lines, bytes);
    check_losses(&shown::faults(lines, 0), events);
    let begins: BTreeSet<usize> = shown::messages(lines).iter().map(|message| message.offset).collect();
    for event in events {
        let offset = event["origin"]["offset"].as_u64().unwrap() as usize;
        assert!(begins.contains(&offset) || offset == bytes.len(), "nothing begins at {offset}: {event}");
    }
}

/// Checks that the faults of the sheet are the losses.
fn check_losses(faults: &[(usize, &str)], events: &[Value]) {
    let losses: Vec<_> = events.iter().filter(|event| event["kind"] == "loss").collect();
    assert_eq!(faults.len(), losses.len(), "{faults:?}");
    for loss in losses {
        let offset = loss["origin"]["offset"].as_u64().unwrap() as usize;
        let (reason, detail) = (loss["loss"]["reason"].as_str().unwrap(), loss["loss"]["detail"].as_str().unwrap());
        let is_it = |(at, said): &(usize, &str)| *at == offset && said.starts_with(reason) && said.ends_with(detail);
        assert!(faults.iter().any(is_it), "{loss} is not in {faults:?}");
    }
}

fn hex(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Whether `shown` is this text. Cut texts and texts with escapes are tested elsewhere.
fn is_text(shown: Option<&str>, text: &str) -> bool {
    let is_plain = text.len() <= 200 && text.chars().all(|c| c.is_alphanumeric() || " /.;()[_-+$".contains(c));
    text.is_empty() || !is_plain || shown == Some(&format!("\"{text}\""))
}

fn check_object(message: &Message, object: &Value) {
    assert_eq!(message.title, object["obj"].as_str().unwrap());
    let shown = |name: &str| message.value(name).unwrap_or_else(|| panic!("no {name} in {message:?}"));
    match message.title.as_str() {
        "process" => {
            assert_eq!(shown("protocol_version"), "1");
            assert_eq!(shown("string_cache_size").split(' ').next().unwrap(), object["string_cache_size"].to_string());
        }
        "trace" => assert_eq!(shown("trace_id"), hex(&object["trace_id"])),
        "span" => {
            for (name, key) in [("span_id", "span_id"), ("parent_id", "parent_id"), ("trace_id", "trace_id")] {
                let id = hex(&object[key]);
                assert!(shown(name) == id || (shown(name) == "none" && id.bytes().all(|digit| digit == b'0')));
            }
            assert_eq!(shown("error"), object["error_raw"].to_string());
            for name in ["name", "type", "resource", "service"] {
                let id = hex(&object[format!("{name}_id")]);
                assert!(shown(name).starts_with(id) || (shown(name) == "absent" && id == "0000000000000000"));
            }
            let start = object["start"].as_u64().unwrap();
            let moment = jiff::Timestamp::from_nanosecond(i128::from(start)).unwrap();
            assert_eq!(shown("start").parse::<jiff::Timestamp>().unwrap(), moment);
        }
        "string" => {
            assert_eq!(shown("id"), hex(&object["id"]));
            assert_eq!(shown("len").split(' ').next().unwrap(), object["strlen"].to_string());
            assert!(is_text(message.value("characters"), object["text"].as_str().unwrap_or_default()), "{message:?}");
        }
        _ => {
            let entries = object["entries"].as_array().unwrap();
            let is_meta = message.title == "metaList";
            assert_eq!(shown(if is_meta { "metaLen" } else { "metricsLen" }), entries.len().to_string());
            let shown = message.fields.iter().filter(|(name, _)| name == "meta" || name == "metric");
            assert_eq!(shown.clone().count(), entries.len());
            for ((_, shown), entry) in shown.zip(entries) {
                let (key, value) = shown.split_once(" = ").unwrap();
                let is = |shown: &str, id: &Value| {
                    shown.starts_with(hex(id)) || (shown == "absent" && hex(id) == "0000000000000000")
                };
                assert!(is(key, &entry[0]), "{shown} {entry}");
                if is_meta {
                    assert!(is(value, &entry[1]), "{shown} {entry}");
                } else {
                    let bits = u64::from_str_radix(hex(&entry[1]), 16).unwrap();
                    let number: f64 = value.parse().unwrap();
                    assert!(number.to_bits() == bits || f64::from_bits(bits).is_nan() && number.is_nan(), "{shown}");
                }
            }
        }
    }
}

/// Explains all datadog recordings that have a decode with this name.
fn check_datadog(options: &[&str], decode: &str) {
    let mut cases: Vec<_> = fs::read_dir(directory("datadog")).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|case| case.join(decode).exists());
    let files: Vec<_> = cases.iter().map(|case| case.join("wire.bin").display().to_string()).collect();
    for (file, (lines, events)) in explained("datadog", options, &files) {
        let bytes = fs::read(&file).unwrap();
        check_stream(&lines, &events, &bytes);
        let messages = shown::messages(&lines);
        let mut shown = messages.iter();
        for object in json_lines(&Path::new(&file).with_file_name(decode)) {
            if object["obj"].is_string() {
                let message = shown.next().unwrap();
                assert_eq!(message.offset as u64, object["off"].as_u64().unwrap(), "{file}");
                check_object(message, &object);
            } else if object["end"] == "ok" {
                assert_eq!(shown.next(), None, "{file}");
            } else if object["off"].as_u64().unwrap() < bytes.len() as u64 {
                assert_eq!(shown.next().unwrap().offset as u64, object["off"].as_u64().unwrap(), "{file}");
            }
        }
    }
}

#[test]
fn datadog_sheets_have_the_values_of_an_independent_decoder() {
    check_datadog(&[], "objects.ndjson");
    check_datadog(&["-o", "list_layout=padded32"], "objects.padded32.ndjson");
}

/// The names of fields in the independent decoder and in the sheet.
const BYTEFROG_FIELDS: [(&str, &str); 16] = [
    ("version", "version"),
    ("project_id", "project"),
    ("run_id", "run"),
    ("send_queue", "buffers"),
    ("seq", "sequence"),
    ("method", "method"),
    ("thread", "thread"),
    ("exception", "exception"),
    ("location", "location"),
    ("line", "line"),
    ("threw", "threw"),
    ("start_line", "start line"),
    ("end_line", "end line"),
    ("start_char", "start character"),
    ("end_char", "end character"),
    ("count", "count"),
];

fn check_message(message: &Message, decoded: &Value) {
    assert_eq!(message.title.replace(' ', "_"), decoded["name"].as_str().unwrap());
    for (key, name) in BYTEFROG_FIELDS {
        let Some(value) = decoded.get(key) else { continue };
        let shown = message.value(name).unwrap_or_else(|| panic!("no {name} in {message:?}"));
        // An id is followed by its name.
        let shown = if value.is_number() { shown.split(' ').next().unwrap() } else { shown };
        let is_unknown = matches!(value.as_i64(), Some(-1 | 65535)) && shown == "unknown";
        let text = value.to_string();
        assert!(shown == text || is_unknown, "{name} of {message:?} is {value}");
    }
    if let Some(mode) = decoded.get("mode").and_then(Value::as_str) {
        assert!(message.value("mode").unwrap().ends_with(&mode.replace('_', " ")), "{message:?}");
    }
    for name in ["text", "key", "value"] {
        let Some(text) = decoded.get(name).and_then(Value::as_str) else { continue };
        let of = if name == "text" { ["name", "signature", "class", "text"] } else { [name; 4] };
        let shown = of.iter().find_map(|name| message.value(name));
        assert!(is_text(shown, text), "{message:?} is {text:?}");
    }
}

#[test]
fn bytefrog_sheets_have_the_values_of_an_independent_decoder() {
    let recordings = fs::read_dir(directory("bytefrog")).unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for recording in recordings.filter(|path| path.join("control.agent.bin").exists()) {
        let names = ["control".to_owned()].into_iter().chain((0..64).map(|number| format!("data-{number}")));
        let files = names.map(|name| recording.join(format!("{name}.agent.bin")));
        let files: Vec<_> = files.filter(|file| file.exists()).map(|file| file.display().to_string()).collect();
        for (file, (lines, events)) in explained("bytefrog", &[], &files) {
            let bytes = fs::read(&file).unwrap();
            check_stream(&lines, &events, &bytes);
            let messages = shown::messages(&lines);
            let mut shown = messages.iter();
            for decoded in json_lines(&Path::new(&file).with_extension("ndjson")) {
                let message = shown.next().unwrap_or_else(|| panic!("{file} lacks {decoded}"));
                assert_eq!(message.offset as u64, decoded["off"].as_u64().unwrap(), "{file}");
                match decoded["name"].as_str().unwrap() {
                    "UNDECODABLE" | "TRUNCATED" => {}
                    _ => check_message(message, &decoded),
                }
                count += 1;
            }
            assert_eq!(shown.next(), None, "{file}");
        }
    }
    assert!(count > 15_000, "{count}");
}
