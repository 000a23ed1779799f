//! `tributary quarantine`: requests that could not be decoded are listed, decoded again offline, and delivered by a daemon.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use crate::endless_support::cases;
use crate::live::binary::{Binary, Ended, run, tributary};
use serde_json::Value;

/// A configuration whose sink is a file of this name.
fn config(directory: &Path, options: &str, file: &str) -> String {
    let home = directory.display();
    let path = directory.join(format!("{file}.toml"));
    let toml = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         [listeners.desktops]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"{home}/quarantine\"\n{options}\n\
         [sinks.events]\ntype = \"file\"\npath = \"{home}/{file}.ndjson\"\n"
    );
    fs::write(&path, toml).unwrap();
    path.display().to_string()
}

fn start(config: &str) -> Binary {
    Binary::start(tributary(&["run", "--config", config]))
}

fn stop(daemon: Binary) -> Ended {
    daemon.signal("TERM");
    daemon.end()
}

/// Uploads a recorded request, which is answered 200.
fn upload(daemon: &Binary, case: &str) {
    let request = cases().into_iter().find(|one| one.name == case).unwrap().request;
    let mut stream = TcpStream::connect(daemon.address("desktops")).unwrap();
    stream.write_all(&request).unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(directory.join("quarantine/desktops")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["name"].as_str().unwrap()).collect()
}

#[test]
fn requests_that_can_be_decoded_now_are_delivered_and_removed_and_the_others_stay() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let daemon = start(&config(directory, "max_payload_bytes = \"1KiB\"", "before"));
    upload(&daemon, "real-v3-big-payload");
    upload(&daemon, "attack-type-200-arrays");
    assert_eq!(stop(daemon).code, Some(0));
    let now = config(directory, "", "now");
    let [readable, faulty] = files(directory).try_into().unwrap();
    let id = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let content = fs::read(&readable).unwrap();

    let listed = run(&["quarantine", "list", "--format", "json", "--config", &now]).events();
    assert_eq!(listed.len(), 2);
    assert_eq!((listed[0]["listener"].as_str(), listed[0]["id"].as_str()), (Some("desktops"), Some(&*id(&readable))));
    assert!(
        listed[1]["reason"].as_str().unwrap().len() > 10 && listed[0]["bytes"].as_u64() == Some(content.len() as u64)
    );
    let dir = directory.join("quarantine").display().to_string();
    let text = run(&["quarantine", "list", "--dir", &dir]).stdout;
    assert!(text.starts_with("LISTENER  ID ") && text.lines().count() == 3, "{text}");
    let shown = run(&["quarantine", "show", "--dir", &dir, &id(&faulty)]).stdout;
    assert!(shown.contains("x-tributary-reason: ") && !shown.contains(&id(&readable)), "{shown}");

    // Offline: the listener's options decide.
    let offline = run(&["quarantine", "retry", "--config", &now]);
    assert_eq!((offline.code, offline.last_words()), (Some(1), "tributary: not delivered: 1 request"));
    offline.line(&format!("{}: decoded, 12 events; it stays in the quarantine", id(&readable)));
    offline.line(&format!("{}: still refused: ", id(&faulty)));
    let events = offline.events();
    assert_eq!((events.len(), events.iter().filter(|event| event["kind"] == "loss").count()), (12, 0));
    let before = directory.join("before.toml").display().to_string();
    run(&["quarantine", "retry", "--config", &before]).line(&format!("{}: still refused: ", id(&readable)));
    assert_eq!(files(directory).len(), 2, "nothing was removed");

    // By a daemon.
    let daemon = start(&now);
    let admin = daemon.admin_address().to_string();
    let unknown = run(&["quarantine", "retry", "--admin", &admin, "..%2f1"]);
    assert_eq!(unknown.last_words(), "tributary: no such request in the quarantine: ..%2f1");
    let retried = run(&["quarantine", "retry", "--admin", &admin]);
    assert_eq!(retried.code, Some(1));
    retried.line(&format!("{}: delivered, 12 events; removed from the quarantine", id(&readable)));
    retried.line(&format!("{}: still refused: ", id(&faulty)));
    assert_eq!(files(directory), std::slice::from_ref(&faulty));
    let written = fs::read_to_string(directory.join("now.ndjson")).unwrap();
    let written: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(names(&written), names(&events));
    assert_eq!(written[0]["time"], events[0]["time"], "the time of receipt is that of the first request");
    let again = run(&["quarantine", "retry", "--admin", &admin, &id(&readable)]);
    assert_eq!(again.last_words(), format!("tributary: no such request in the quarantine: {}", id(&readable)));
    let ended = stop(daemon);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.line("sink=\"events\" events=12 written=12 shed=0 failed=0");

    // To a file, without a configuration.
    fs::write(&readable, content).unwrap();
    let output = directory.join("output.ndjson").display().to_string();
    let saved = run(&["quarantine", "retry", "--dir", &dir, "--output", &output, &id(&readable)]);
    assert_eq!(saved.code, Some(0), "{}", saved.stderr);
    saved.line(&format!("{}: decoded, 12 events; removed from the quarantine", id(&readable)));
    assert_eq!(fs::read_to_string(&output).unwrap().lines().count(), 12);
    assert_eq!(files(directory), [faulty]);
    let refused = run(&["quarantine", "retry", "--dir", &dir, "--output", &output]);
    assert!(refused.last_words().contains("File exists"), "no file is replaced: {}", refused.stderr);
}
