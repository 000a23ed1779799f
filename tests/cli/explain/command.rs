//! The command `decode --explain`: its inputs, its errors and its end.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tributary::capture::{self, CaptureHead};
use tributary::event::UnixNanos;
use tributary::protocol::{End, Protocol};

use super::shown::{self, What};
use crate::live::binary::{Binary, run, tributary};

fn data(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path).to_str().unwrap().to_owned()
}

/// A capture of a connection that received these pieces, one a second.
fn captured(protocol: Protocol, pieces: &[&[u8]]) -> (TempDir, String) {
    let opened = UnixNanos(1_795_176_900_000_000_000);
    let head = CaptureHead { protocol, listener: "x".into(), peer: "192.0.2.1:9".into(), connection: 77, opened };
    let mut file = head.to_bytes();
    let mut at = Duration::ZERO;
    for piece in pieces {
        at += Duration::from_secs(1);
        capture::put_bytes(&mut file, at, piece);
    }
    capture::put_end(&mut file, at, End::Closed);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.capture");
    fs::write(&path, file).unwrap();
    (directory, path.to_str().unwrap().to_owned())
}

#[test]
fn a_capture_is_explained_like_its_bytes_with_the_times_of_receipt() {
    let wire = data("datadog/garbage-after-span/wire.bin");
    let bytes = fs::read(&wire).unwrap();
    let expected = run(&["decode", "datadog", "--explain", &wire]).stdout;
    // Both pieces end inside an object.
    let (_directory, capture) = captured(Protocol::Datadog, &[&bytes[..20], &bytes[20..100], &bytes[100..]]);
    let shown = run(&["decode", "datadog", "--explain", &capture]).stdout;
    let is_time = |line: &&str| line.trim().starts_with("received ");
    let times: Vec<_> = shown.lines().filter(is_time).map(str::trim).collect();
    assert_eq!(times, [1, 2, 3].map(|second| format!("received 2026-11-20T12:15:0{second}Z")));
    let others: Vec<_> = shown.lines().filter(|line| !is_time(line)).collect();
    assert_eq!(others, expected.lines().collect::<Vec<_>>());
    let of_another = run(&["decode", "bytefrog", "--explain", &capture]);
    assert_eq!((of_another.code, &*of_another.stdout), (Some(2), ""));
}

#[test]
fn a_chunked_body_is_shown_in_chunks_and_then_as_a_whole() {
    let body = fs::read(data("endless/bad-bool-2/body.bin")).unwrap();
    let request = fs::read(data("endless/bad-bool-2/request.http")).unwrap();
    let line = &request[..request.windows(2).position(|end| end == b"\r\n").unwrap()];
    let (first, second) = body.split_at(100);
    let chunk = |bytes: &[u8]| [format!("{:X};x\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let head = b"\r\ntransfer-encoding: chunked\r\n\r\n";
    let bytes =
        [line, head, &*chunk(first), &*chunk(second), b"0\r\nx-trailer: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n"].concat();
    let (_directory, capture) = captured(Protocol::Endless, &[&bytes]);
    let shown = run(&["decode", "endless", "--explain", &capture]);
    let lines = shown::lines(&shown.stdout);
    shown::check_bytes(&lines, &bytes);
    let said = |level: usize| {
        let rows = lines.iter().filter(move |line| line.level == level);
        rows.filter_map(|line| match &line.what {
            What::Row { said, .. } if !said.is_empty() => Some(said.as_str()),
            _ => None,
        })
    };
    let chunks = [format!("chunk size: {} bytes", first.len()), "chunk".into(), "end of chunk".into()];
    let outer: Vec<_> = said(0).collect();
    assert_eq!(outer[3..6], chunks);
    assert_eq!(outer[9..12], ["chunk size: 0 bytes", "trailer: x-trailer: \"1\"", "end of body"]);
    assert!(outer[12].starts_with("request line: \"GET / HTTP/1.1\""), "{outer:?}");
    // The bundle is inside the body, which is inside the connection; its fault is there too.
    assert!(said(2).count() > 10, "{}", shown.stdout);
    let events = run(&["decode", "endless", &capture]).events();
    let losses = events.iter().filter(|event| event["kind"] == "loss").count();
    assert!(losses > 0);
    assert_eq!(shown::faults(&lines, 2).len(), losses, "{}", shown.stdout);
}

#[test]
fn stdin_is_explained_too() {
    let wire = data("datadog/process-only/wire.bin");
    let mut binary = Binary::start(tributary(&["decode", "datadog", "--explain"]));
    binary.take_stdin().write_all(&fs::read(&wire).unwrap()).unwrap();
    let ended = binary.end();
    assert_eq!(ended.stdout, run(&["decode", "datadog", "--explain", &wire]).stdout);
    assert_eq!(ended.stdout.lines().count(), 4, "{}", ended.stdout);
    assert_eq!(ended.last_words(), "-: 14 bytes = 14 decoded + 0 lost; 1 event");
}

#[test]
fn other_outputs_cannot_be_combined_with_explain() {
    for other in [&["--format", "json"][..], &["--as", "heap"], &["--compare", "1", "2"], &["--dump", "1"]] {
        let arguments = [&["decode", "rbkit", "--explain"], other].concat();
        let ended = run(&arguments);
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{arguments:?}");
        assert!(ended.stderr.contains("cannot be used with"), "{}", ended.stderr);
    }
    let ended = run(&["decode", "datadog", "--explain", "/nowhere/wire.bin"]);
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    assert!(ended.last_words().contains("/nowhere/wire.bin: "), "{}", ended.stderr);
}

#[test]
fn a_reader_that_closes_stdout_ends_it_without_an_error() {
    let wire = data("datadog/many-spans/wire.bin");
    let arguments = [&["decode", "datadog", "--explain"][..], &[wire.as_str(); 50]].concat();
    let mut binary = Binary::start_unread(tributary(&arguments));
    let mut reader = BufReader::new(binary.take_stdout());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("==> "), "{line}");
    drop(reader);
    let ended = binary.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.last_words().contains(" bytes = "), "{}", ended.stderr);
}
