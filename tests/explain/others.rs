//! The recordings of protocols whose messages are inside of something else, against what `decode` says of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::recordings::{check_losses, directory, explained, json_lines};
use crate::shown::{self, Line, What};

/// All files below a directory that are wanted, in the order of their names.
fn files(directory: &Path, is_wanted: &impl Fn(&str) -> bool) -> Vec<String> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let of = |path: PathBuf| match path.is_dir() {
        true => files(&path, is_wanted),
        false => Some(path.to_str().unwrap().to_owned()).filter(|path| is_wanted(path)).into_iter().collect(),
    };
    paths.into_iter().flat_map(of).collect()
}

/// Every byte is shown, every loss stands there, and every event begins where a row does.
fn check(lines: &[Line], events: &[Value], bytes: &[u8]) {
    shown::check_bytes(lines, bytes);
    check_losses(&shown::faults(lines, ..), events);
    let rows = lines.iter().filter_map(|line| match line.what {
        What::Row { offset, .. } => Some(offset),
        _ => None,
    });
    let rows: BTreeSet<_> = rows.collect();
    for event in events.iter().filter(|event| event["kind"] != "loss") {
        let offset = event["origin"]["offset"].as_u64().unwrap() as usize;
        assert!(rows.contains(&offset) || offset == bytes.len(), "nothing begins at {offset}: {event}");
    }
}

#[test]
fn endless_recordings_have_every_byte_every_event_and_every_loss() {
    let files = files(&directory("endless"), &|path| path.ends_with(".http") && !path.contains("bomb"));
    assert!(files.len() > 90);
    for (file, (lines, events)) in explained("endless", &[], &files) {
        check(&lines, &events, &fs::read(file).unwrap());
    }
}

#[test]
fn bare_bundles_of_endless_are_explained_like_those_in_requests() {
    let files = files(&directory("endless"), &|path| path.ends_with("body.bin"));
    for (file, (lines, events)) in explained("endless", &[], &files) {
        check(&lines, &events, &fs::read(file).unwrap());
    }
}

#[test]
fn zico_recordings_have_every_byte_every_event_and_every_loss() {
    let mut requests = 0;
    for case in fs::read_dir(directory("zico")).unwrap().map(|entry| entry.unwrap().path()) {
        if !case.join("requests.ndjson").exists() {
            continue;
        }
        // A file for each request, as the quarantine keeps them.
        let directory = tempfile::tempdir().unwrap();
        let file = |(number, request): (usize, Value)| {
            let header = |pair: &Value| format!("{}: {}\r\n", pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
            let headers: String = request["headers"].as_array().unwrap().iter().map(header).collect();
            let line =
                format!("{} {} HTTP/1.1\r\n", request["method"].as_str().unwrap(), request["path"].as_str().unwrap());
            let body = request["body"].as_str().map(|body| fs::read(case.join(body)).unwrap()).unwrap_or_default();
            let path = directory.path().join(format!("{number:04}.http"));
            fs::write(&path, [line.as_bytes(), headers.as_bytes(), b"\r\n", &body].concat()).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let files: Vec<_> = json_lines(&case.join("requests.ndjson")).into_iter().enumerate().map(file).collect();
        requests += files.len();
        for (file, (lines, events)) in explained("zico", &[], &files) {
            check(&lines, &events, &fs::read(file).unwrap());
        }
    }
    assert!(requests > 200, "{requests}");
}

#[test]
fn rbkit_conversations_have_every_byte_every_event_and_every_loss() {
    for session in fs::read_dir(directory("rbkit").join("sessions")).unwrap().map(|entry| entry.unwrap().path()) {
        let files = files(&session, &|path| path.ends_with(".msgpack"));
        assert!(files.len() > 2, "{session:?}");
        for (file, (lines, events)) in explained("rbkit", &[], &files) {
            check(&lines, &events, &fs::read(file).unwrap());
        }
    }
}

#[test]
fn rbkit_messages_and_streams_have_every_byte_every_event_and_every_loss() {
    let directory = directory("rbkit");
    let is_alone =
        |path: &str| path.ends_with(".msgpack") || (path.ends_with(".bin") && !path.contains("client-to-agent"));
    for (part, options) in [("messages", &["--channel", "pub"][..]), ("replies", &["--channel", "rep"]), ("zmtp", &[])]
    {
        for file in files(&directory.join(part), &is_alone) {
            for (file, (lines, events)) in explained("rbkit", options, &[file]) {
                check(&lines, &events, &fs::read(file).unwrap());
            }
        }
    }
}
