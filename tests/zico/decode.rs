//! `tributary decode zico`: recorded requests and plain bodies from files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::zico_support::contract::{Before, expected};
use crate::zico_support::{Recorded, case};
use serde_json::Value;

/// The events on stdout, and the text on stderr.
fn decode(arguments: &[&str], files: &[PathBuf]) -> (Vec<Value>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    let output = command.args(["decode", "zico"]).args(arguments).args(files).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let lines = String::from_utf8(output.stdout).unwrap();
    (lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), said)
}

fn request(recorded: &Recorded) -> Vec<u8> {
    let headers: String = recorded.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    [format!("POST {} HTTP/1.1\r\n{headers}\r\n", recorded.path).as_bytes(), &recorded.body].concat()
}

fn write(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn spans(events: &[Value]) -> Vec<&str> {
    let spans = events.iter().filter(|event| event["kind"] == "span");
    spans.map(|span| span["name"].as_str().unwrap()).collect()
}

#[test]
fn files_of_requests_are_one_conversation_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let case = case("gen1-writer-two-part");
    let expected = ["com.example.Dao.query", "com.example.Dao.<init>", "com.example.Web.handle"];
    let whole: Vec<u8> = case.exchanges.iter().flat_map(request).collect();
    let one = write(directory.path(), "whole.http", &whole);
    let (events, said) = decode(&[], &[one]);
    assert_eq!(spans(&events), expected);
    assert_eq!(events.last().unwrap()["resource"]["host.name"], "demo.host");
    assert!(said.contains("whole.http: POST /agent/submit/trc: 202"), "{said}");
    let files: Vec<_> = case
        .exchanges
        .iter()
        .map(|recorded| write(directory.path(), &format!("{}.http", recorded.number), &request(recorded)))
        .collect();
    assert_eq!(spans(&decode(&[], &files).0), expected);
    // Without the last part, open records are emitted at the end.
    let (events, _) = decode(&[], &files[..4]);
    assert_eq!(spans(&events), ["com.example.Dao.query", "com.example.Web.handle"]);
    assert_eq!(events.last().unwrap()["attributes"]["tributary.incomplete"][0], "end");
    assert!(!events.iter().any(|event| event.to_string().contains("demo-registration-key")));
}

#[test]
fn plain_bodies_are_recognised_by_their_first_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let form = case("form-zdata-zlib").exchanges.remove(0);
    let (events, said) = decode(&["-o", "emit_definitions=true"], &[write(directory.path(), "form.bin", &form.body)]);
    assert_eq!(events.len(), form.expected["agd"].as_array().unwrap().len() - 2, "all but attributes: {said}");
    for name in ["gen2-writer-min", "gen1-writer-flags", "doc-be", "gen1-1.90.5-local"] {
        let case = case(name);
        let bodies = case.exchanges.iter().filter(|recorded| recorded.path.contains("/submit/"));
        let files: Vec<_> = bodies
            .map(|recorded| write(directory.path(), &format!("{name}-{}.bin", recorded.number), &recorded.body))
            .collect();
        let mut before = Before::default();
        let traces = case.exchanges.iter().filter(|recorded| recorded.expected["trc"].is_object());
        let expected: usize =
            traces.map(|recorded| expected(&recorded.expected["trc"], recorded, &mut before).spans.len()).sum();
        let (events, said) = decode(&[], &files);
        assert_eq!(spans(&events).len(), expected, "{name}: {said}");
        assert!(!events.iter().any(|event| event["kind"] == "loss"), "{name}");
    }
}

#[test]
fn options_are_those_of_the_listener() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), "agd.bin", &case("gen2-writer-min").exchanges[0].body);
    let (events, _) = decode(&["--option", "emit_definitions=true"], &[file]);
    assert!(events.iter().any(|event| event["name"] == "zico.method"));
}
