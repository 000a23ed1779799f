//! `tributary spool`: what it prints of a spool, whole and damaged, and what it never does.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::live::binary::run;
use serde_json::Value;
use tributary::spool::{Spool, SpoolLimits};

const LIMITS: SpoolLimits = SpoolLimits { max_bytes: 1 << 20, segment_bytes: 1 << 16, min_free_bytes: 0 };

/// A spool of a sink `backend` in a directory, with these requests.
fn spool(dir: &Path, requests: &[(&[u8], u32)]) -> Spool {
    let (mut spool, _) = Spool::open(&dir.join("backend"), LIMITS).unwrap();
    for (payload, events) in requests {
        spool.append((*payload).to_vec().into(), *events).unwrap();
    }
    spool.sync().unwrap();
    spool.tidy().unwrap();
    spool
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn segment(dir: &Path) -> PathBuf {
    let mut files = fs::read_dir(dir.join("backend")).unwrap().map(|file| file.unwrap().path());
    files.find(|path| path.extension().is_some_and(|end| end == "spool")).unwrap()
}

const LINES: [&[u8]; 2] = [b"{\"name\":\"a\"}\n{\"name\":\"b\"}\n", b"{\"name\":\"c\"}\n"];

#[test]
fn list_and_show_read_a_spool_that_a_process_uses() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let packed = gzip(LINES[1]);
    let spool = spool(directory.path(), &[(LINES[0], 2), (&packed, 1)]);
    let listed = run(&["spool", "list", "--dir", dir]);
    assert_eq!((listed.code, listed.stderr.as_str()), (Some(0), ""));
    let rows: Vec<Vec<&str>> = listed.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0].join(" "), "SINK USED BY REQUESTS EVENTS BYTES OLDEST REFUSED DAMAGED ASIDE");
    let pid = std::process::id().to_string();
    assert_eq!(rows[1][..5], ["backend", "process", &pid, "2", "3"], "{}", listed.stdout);
    let bytes = fs::metadata(segment(directory.path())).unwrap().len().to_string();
    assert_eq!((rows[1][5], &rows[1][7..]), (bytes.as_str(), &["0", "0", "0"][..]));
    // The directory of one spool is the same, and so is JSON.
    let own = format!("{dir}/backend");
    let value: Value =
        serde_json::from_str(&run(&["spool", "list", "--format", "json", "--dir", &own]).stdout).unwrap();
    assert_eq!((&value["sink"], &value["requests"], &value["events"]), (&"backend".into(), &2.into(), &3.into()));
    let shown = run(&["spool", "show", "--format", "json", "--dir", dir, "backend"]).events();
    let numbers: Vec<_> = shown.iter().map(|line| (line["number"].as_u64(), line["events"].as_u64())).collect();
    assert_eq!(numbers, [(Some(1), Some(2)), (Some(2), Some(1))]);
    let events = run(&["spool", "show", "--events", "--dir", dir]).stdout;
    assert_eq!(events.as_bytes(), LINES.concat());
    let verified = run(&["spool", "verify", "--dir", dir]);
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    assert!(verified.stdout.starts_with("sink backend: 2 whole requests with 3 events, "), "{}", verified.stdout);
    assert!(verified.stdout.ends_with(" bytes; no damage\n"), "{}", verified.stdout);
    drop(spool);
    let value: Value = serde_json::from_str(&run(&["spool", "list", "--format", "json", "--dir", dir]).stdout).unwrap();
    assert_eq!(value["used_by"], Value::Null);
}

#[test]
fn verify_says_where_a_spool_is_damaged_and_how_many_events_are_lost() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    drop(spool(directory.path(), &[(LINES[0], 2), (LINES[1], 1), (LINES[0], 2)]));
    let path = segment(directory.path());
    let mut bytes = fs::read(&path).unwrap();
    // The payload of the second record, which begins behind the header and the first record.
    let second = 16 + 44 + LINES[0].len();
    bytes[second + 44] ^= 1;
    fs::write(&path, bytes).unwrap();
    let verified = run(&["spool", "verify", "--dir", dir]);
    assert_eq!((verified.code, verified.last_words()), (Some(1), "tributary: 1 spool damaged"));
    let length = 44 + LINES[1].len();
    let where_ =
        format!("sink backend: {} at {second}: {length} bytes damaged: 1 request with 1 event lost", path.display());
    let lines: Vec<&str> = verified.stdout.lines().collect();
    assert_eq!(lines[0], where_);
    assert!(lines[1].ends_with("; damaged: 1 request with 1 event lost"), "{}", lines[1]);
    let exported = run(&["spool", "export", "--dir", dir]);
    assert_eq!(exported.code, Some(1), "a request is missing");
    assert_eq!(exported.stdout.as_bytes(), [LINES[0], LINES[0]].concat());
    assert_eq!(exported.last_words(), "tributary: damaged and therefore missing: 1 request");
}

#[test]
fn export_keeps_everything_and_replaces_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    drop(spool(directory.path(), &[(&gzip(LINES[0]), 2), (b"\x0a\x05other", 4)]));
    let before = fs::read(segment(directory.path())).unwrap();
    let exported = run(&["spool", "export", "--dir", dir]);
    assert_eq!(exported.code, Some(1));
    assert!(exported.last_words().contains("request 2 has no JSON lines; use --to DIR"), "{}", exported.stderr);
    let events = run(&["spool", "show", "--events", "--dir", dir]).events();
    assert_eq!((events.len(), &events[2]["request"], &events[2]["events"]), (3, &2.into(), &4.into()));
    let to = directory.path().join("out").display().to_string();
    assert_eq!(run(&["spool", "export", "--dir", dir, "--to", &to, "backend"]).code, Some(0));
    let mut files: Vec<_> = fs::read_dir(&to).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 2);
    let read = |end: &str| fs::read(files.iter().find(|path| path.to_str().unwrap().ends_with(end)).unwrap()).unwrap();
    assert_eq!((read("-1.ndjson").as_slice(), read("-2.bin").as_slice()), (LINES[0], &b"\x0a\x05other"[..]));
    let again = run(&["spool", "export", "--dir", dir, "--to", &to, "backend"]);
    assert!(again.code == Some(1) && again.last_words().contains("File exists"), "{}", again.stderr);
    assert_eq!(fs::read(segment(directory.path())).unwrap(), before);
}

#[test]
fn drop_asks_refuses_beside_a_daemon_and_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let used = spool(directory.path(), &[(LINES[0], 2), (LINES[1], 1)]);
    let refused = run(&["spool", "drop", "--yes", "--dir", dir]);
    let why = format!("process {} uses the spool: stop it first; nothing was removed", std::process::id());
    assert!(refused.code == Some(1) && refused.last_words().ends_with(&why), "{}", refused.stderr);
    drop(used);
    let unasked = run(&["spool", "drop", "--dir", dir]);
    assert_eq!(unasked.code, Some(2));
    assert!(
        unasked.last_words().contains("2 requests with 3 events would be removed and lost; add --yes"),
        "{}",
        unasked.stderr
    );
    let dropped = run(&["spool", "drop", "--yes", "--dir", dir, "backend"]);
    assert_eq!(dropped.code, Some(0), "{}", dropped.stderr);
    assert!(
        dropped.stderr.starts_with("sink backend: 2 requests with 3 events removed, the oldest of "),
        "{}",
        dropped.stderr
    );
    assert!(run(&["spool", "drop", "--yes", "--dir", dir]).stderr.contains("nothing waits"));
    let (spool, _) = Spool::open(&directory.path().join("backend"), LIMITS).unwrap();
    assert_eq!((spool.dropped().records, spool.dropped().events, spool.waiting().events), (2, 3, 0));
}

#[test]
fn a_spool_that_does_not_exist_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let ended = run(&["spool", "list", "--dir", dir]);
    assert_eq!(
        (ended.code, ended.last_words()),
        (Some(1), &*format!("tributary: {dir}: there is no spool in this directory"))
    );
    drop(spool(directory.path(), &[]));
    let ended = run(&["spool", "list", "--dir", dir, "bakend"]);
    assert_eq!(ended.last_words(), format!("tributary: {dir}: no spool of a sink `bakend`; spools: backend"));
    let config = directory.path().join("t.toml");
    let sink = "[sinks.remote]\ntype = \"http\"\nendpoint = \"http://127.0.0.1:9/\"\n";
    fs::write(&config, sink).unwrap();
    let config = config.to_str().unwrap();
    assert_eq!(
        run(&["spool", "list", "--config", config]).last_words(),
        format!("tributary: {config}: no sink has a spool")
    );
    fs::write(config, format!("{sink}spool.dir = \"{dir}/later\"\n")).unwrap();
    let ended = run(&["spool", "list", "--config", config]);
    assert_eq!(
        (ended.code, ended.last_words()),
        (Some(0), &*format!("sink remote: {dir}/later/remote does not exist yet"))
    );
}

#[test]
fn check_says_what_a_spool_takes_and_what_a_sink_without_one_means() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("t.toml");
    let sink = "[sinks.remote]\ntype = \"http\"\nendpoint = \"http://127.0.0.1:9/\"\n";
    fs::write(&config, sink).unwrap();
    let config = config.to_str().unwrap();
    let checked = run(&["check", "--config", config]);
    assert!(
        checked.line("sink remote has no spool").contains("what waits is lost when the daemon ends"),
        "{}",
        checked.stderr
    );
    fs::write(
        config,
        format!("{sink}spool = {{ dir = \"/s\", max_bytes = \"10GiB\", when_full = \"drop_oldest\" }}\n"),
    )
    .unwrap();
    let printed = run(&["check", "--print", "--config", config]);
    let words = "sink remote keeps up to 10GiB in /s/remote while its destination is away, and leaves the smaller of 1GiB and a tenth of that disk free; \
                 then the oldest events are dropped";
    printed.line(words);
    assert!(printed.stdout.contains(&format!("# {words}\n")), "{}", printed.stdout);
    let memory = printed.stdout.lines().find(|line| line.ends_with("  requests that are not synced yet"));
    assert!(memory.is_some_and(|line| line.contains("sinks.remote ")), "{}", printed.stdout);
}
