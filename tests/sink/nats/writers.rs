//! Writers that are killed: each line is in the files once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::STREAM;
use super::daemon::until_ready;
use super::listener::{Writer, end, lines_of, until_consumed};
use crate::live::binary::until;
use crate::nats_server::NatsServer;

/// Messages, and lines of each.
const MESSAGES: usize = 300;
const LINES: usize = 1500;
/// About the size of all lines.
const BYTES: u64 = (MESSAGES * LINES) as u64 * 240;

fn lines(message: usize) -> Vec<u8> {
    let line = |number: usize| {
        let listener = ["web", "shop"][number / 700 % 2];
        format!(
            "{{\"time\":null,\"observed_time\":\"2026-01-01T00:00:00Z\",\"kind\":\"log\",\"name\":\"m{message}.{number}\",\
             \"severity\":\"INFO\",\"attributes\":{{}},\"resource\":{{}},\"origin\":{{\"protocol\":\"endless\",\
             \"listener\":\"{listener}\",\"peer\":\"192.0.2.1:7\",\"connection\":3,\"offset\":0,\"length\":9}}}}\n"
        )
    };
    let text: String = (0..LINES).map(line).collect();
    zstd::encode_all(text.as_bytes(), 1).unwrap()
}

/// Every file of a directory and those below it.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// Lets a writer with this sink write messages, and kills it meanwhile. Returns the directory with its files.
fn killed(sink: &str, kills: u64) -> Option<Writer> {
    let server = NatsServer::start()?;
    server.create(STREAM, &["tributary.>"], json!({}));
    let bodies: Vec<_> = (0..MESSAGES).map(lines).collect();
    server.publish("tributary.endless.log", &[("Content-Encoding", "zstd")], &bodies);
    let writer = Writer::new(&server.url(), "ack_wait = \"1s\"\nacknowledge = \"durable\"", sink);
    let written = || {
        let length = |path: PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        files(&writer.directory.path().join("written")).into_iter().map(length).sum::<u64>()
    };
    for kill in 1..=kills {
        let daemon = writer.start();
        let before = written();
        // While it writes: each time a little later. Files can also have become smaller.
        until("the writer writes", || (written().abs_diff(before) >= BYTES / 40 + kill * 4099).then_some(()));
        daemon.signal("KILL");
        drop(daemon.end());
    }
    let daemon = writer.start();
    until_ready(&daemon);
    until_consumed(&server, "writers");
    end(daemon);
    Some(writer)
}

/// The lines of each message that the log of the files names, in ascending order.
fn parts_in(log: &Path) -> BTreeMap<u64, Vec<(usize, usize)>> {
    let mut parts: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    let lines = lines_of(log);
    for part in lines.iter().filter_map(|line| line.strip_prefix('=')).flat_map(|line| line.split(", ")) {
        if let [_stream, sequence, first, end] = part.split_whitespace().collect::<Vec<_>>()[..] {
            let lines = (first.parse().unwrap(), end.parse().unwrap());
            parts.entry(sequence.parse().unwrap()).or_default().push(lines);
        }
    }
    parts.values_mut().for_each(|parts| parts.sort_unstable());
    parts
}

/// Each line is there once.
fn assert_once(mut found: Vec<String>) {
    let total = found.len();
    found.sort();
    found.dedup();
    assert_eq!((found.len(), total), (MESSAGES * LINES, MESSAGES * LINES), "each once");
    assert!(!found.iter().any(|line| line.contains("tributary.loss")));
}

#[test]
fn each_line_is_in_the_files_once_although_the_writer_is_killed_again_and_again() {
    let sink = "[sinks.files]\ntype = \"file\"\npath = \"DIR/written/{listener}.ndjson\"\nrotate_bytes = \"3MiB\"\n";
    let Some(writer) = killed(sink, 12) else { return };
    let mut files = files(&writer.directory.path().join("written"));
    let log = files.iter().find(|path| path.to_string_lossy().contains(".tributary-messages-")).unwrap();
    let parts = parts_in(log);
    assert_eq!(parts.len(), MESSAGES);
    for (message, parts) in parts {
        let ends: Vec<_> = [0].into_iter().chain(parts.iter().map(|(_, end)| *end)).collect();
        let firsts: Vec<_> = parts.iter().map(|(first, _)| *first).chain([LINES]).collect();
        assert_eq!(firsts, ends, "the parts of message {message} are its lines");
    }
    files.retain(|path| path.to_string_lossy().contains(".ndjson"));
    assert!(files.len() > 10, "they were rotated");
    assert_once(files.iter().flat_map(|path| lines_of(path)).collect());
}
