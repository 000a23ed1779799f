//! What a 200 promises: with `acknowledge = "durable"` the events are on the disk before it is sent, requests share syncs, and
//! a sync that fails is never taken for a good one. The daemon's system calls are recorded by strace.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use crate::endless_support::cases;
use crate::endless_support::http::plain;
use crate::live::PATIENCE;
use crate::live::binary::until;
use crate::live::strace::{Traced, is_available, is_synced};

fn body() -> Vec<u8> {
    cases().into_iter().find(|case| case.name == "v3-mixed").unwrap().body
}

/// An endless listener without repeats, and a file sink with these options.
fn toml(directory: &Path, listener: &str, sink: &str) -> String {
    let dir = directory.display();
    format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[listeners.desktops]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\n\
         quarantine.dir = \"\"\ndedup = {{ entries = 0 }}\n{listener}\n[sinks.archive]\ntype = \"file\"\n\
         path = \"{dir}/events/out.ndjson\"\n{sink}\n"
    )
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The status of the next answer.
fn status(stream: &mut TcpStream) -> u16 {
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    String::from_utf8(answer).unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

fn put(to: SocketAddr) -> u16 {
    let mut stream = connect(to);
    stream.write_all(&plain(3, &body())).unwrap();
    status(&mut stream)
}

/// The index of the first call with this text.
fn place(calls: &[String], what: &str) -> usize {
    calls.iter().position(|call| call.contains(what)).unwrap_or_else(|| panic!("no {what} in {calls:#?}"))
}

fn syncs(calls: &[String]) -> usize {
    calls.iter().filter(|call| is_synced(call)).count()
}

/// Calls until the last answer.
fn until_answered(calls: &[String]) -> &[String] {
    let last = calls.iter().rposition(|call| call.contains("HTTP/1.1 200")).unwrap();
    &calls[..last]
}

/// The events of all files; each line must be whole.
fn events(directory: &Path) -> usize {
    let mut events = 0;
    for file in fs::read_dir(directory.join("events")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        events += lines.filter(|event| event["kind"] != "loss").count();
    }
    events
}

#[test]
fn one_request_costs_one_sync_and_is_answered_after_it() {
    if !is_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // Nothing but a request that waits for it causes a sync.
    let daemon = Traced::start(directory.path(), &toml(directory.path(), "", "fsync_interval = \"1h\""), None);
    assert_eq!(put(daemon.address("desktops")), 200);
    daemon.until_call("HTTP/1.1 200");
    let calls = daemon.calls();
    assert_eq!(syncs(until_answered(&calls)), 1, "{calls:#?}");
    // The directories of the new file are on the disk before its data.
    let of_directory = place(&calls, &format!("{}/events>)", directory.path().display()));
    let of_parent = place(&calls, &format!("{}>)", directory.path().display()));
    let data = calls.iter().position(|call| is_synced(call)).unwrap();
    assert!(of_directory < data && of_parent < data, "{calls:#?}");
    assert_eq!(put(daemon.address("desktops")), 200);
    daemon.stop();
    assert_eq!(events(directory.path()), 18);
}

#[test]
fn concurrent_requests_share_syncs() {
    if !is_available() {
        return;
    }
    const REQUESTS: usize = 64;
    let directory = tempfile::tempdir().unwrap();
    let toml = toml(directory.path(), "", "fsync_interval = \"1h\"");
    // Each sync takes 200 ms more, in which the other requests arrive.
    let daemon = Traced::start(directory.path(), &toml, Some("fdatasync:delay_enter=200000"));
    let mut streams: Vec<_> = (0..REQUESTS).map(|_| connect(daemon.address("desktops"))).collect();
    let request = plain(3, &body());
    streams.iter_mut().for_each(|stream| stream.write_all(&request).unwrap());
    for stream in &mut streams {
        assert_eq!(status(stream), 200);
    }
    let calls = daemon.calls();
    let syncs = syncs(until_answered(&calls));
    assert!((1..=16).contains(&syncs), "{syncs} syncs for {REQUESTS} requests");
    daemon.stop();
    assert_eq!(events(directory.path()), 9 * REQUESTS);
}

#[test]
fn tcp_listeners_and_written_requests_cause_no_sync() {
    if !is_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let tcp = "acknowledge = \"written\"\n[listeners.spans]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"";
    let toml = toml(directory.path(), tcp, "fsync_interval = \"1h\"");
    let daemon = Traced::start(directory.path(), &toml, None);
    assert_eq!(put(daemon.address("desktops")), 200);
    let mut stream = connect(daemon.address("spans"));
    stream.write_all(b"no spans").unwrap();
    drop(stream);
    until("its loss is written", || {
        let text = fs::read_to_string(directory.path().join("events/out.ndjson")).unwrap();
        text.contains("\"loss\"").then_some(())
    });
    let calls = daemon.calls();
    assert_eq!(syncs(&calls), 0, "{calls:#?}");
    daemon.stop();
}

#[test]
fn events_of_a_failed_sync_are_written_to_a_new_file_before_the_answer() {
    if !is_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let toml = toml(directory.path(), "", "fsync_interval = \"1h\"");
    let daemon = Traced::start(directory.path(), &toml, Some("fdatasync:error=EIO:when=2"));
    for _ in 0..3 {
        assert_eq!(put(daemon.address("desktops")), 200);
    }
    daemon.until_stderr("fsync failed; the events since the last one are written to a new file");
    let (ended, calls) = daemon.stop();
    let failed = place(&calls, "(INJECTED)");
    let rest = &calls[failed + 1..];
    let renamed = rest.iter().position(|call| call.contains("rename(")).unwrap();
    let synced = rest.iter().position(|call| is_synced(call)).unwrap();
    let answered = rest.iter().position(|call| call.contains("HTTP/1.1 200")).unwrap();
    assert!(renamed < synced && synced < answered, "{rest:#?}");
    assert_eq!(events(directory.path()), 27, "each is there once");
    assert_eq!(fs::read_dir(directory.path().join("events")).unwrap().count(), 2);
    assert!(ended.stderr.contains("events=27 written=27 shed=0 failed=0"), "{}", ended.stderr);
}

#[test]
fn a_request_whose_events_cannot_be_synced_is_a_503_with_retry_after_and_its_events_count_as_failed() {
    if !is_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let toml = toml(directory.path(), "", "fsync_interval = \"1h\"");
    // The second sync fails, and so does that of the new file.
    let daemon = Traced::start(directory.path(), &toml, Some("fdatasync:error=EIO:when=2..3"));
    let statuses = [(); 3].map(|()| put(daemon.address("desktops")));
    assert_eq!(statuses, [200, 503, 200]);
    let (ended, _) = daemon.stop();
    assert!(ended.stderr.contains("events=27 written=18 shed=0 failed=9"), "{}", ended.stderr);
    assert!(ended.stderr.contains("the events of this destination count as failed"), "{}", ended.stderr);
}
