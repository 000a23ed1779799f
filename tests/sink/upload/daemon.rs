//! The daemon: killed between upload and removal, and what it says about uploads.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use super::proxy::Fault;
use super::{BUCKET, KEY, Store};
use crate::live::binary::{Binary, tributary, until};
use crate::live::wire;
use crate::parquet::{archived, files};

/// A daemon whose files are finished and uploaded soon.
fn start(directory: &Path, store: &Store) -> Binary {
    let file = directory.join("tributary.toml");
    fs::write(directory.join("key"), KEY).unwrap();
    let config = format!(
        r#"
[admin]
listen = "127.0.0.1:0"

[listeners.test]
protocol = "datadog"
listen = "127.0.0.1:0"

[sinks.archive]
type = "parquet"
path = "{directory}/archive/{{kind}}/{{protocol}}"
rotate_interval = "100ms"

[sinks.archive.upload]
url = "s3://{BUCKET}/archive"
aws_endpoint = "http://{endpoint}"
aws_access_key_id = "id"
aws_secret_access_key = {{ file = "{directory}/key" }}
allow_http = true
retry_min = "10ms"
"#,
        directory = directory.display(),
        endpoint = store.proxy.address,
    );
    fs::write(&file, config).unwrap();
    Binary::start(tributary(&["run", "--config", file.to_str().unwrap()]))
}

/// The answer of the admin endpoint.
fn ask(daemon: &Binary, path: &str) -> String {
    let mut stream = TcpStream::connect(daemon.admin_address()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn send(daemon: &Binary, names: std::ops::Range<u64>) {
    let mut stream = TcpStream::connect(daemon.address("test")).unwrap();
    let spans = names.flat_map(|id| [wire::named_span(id + 1, &format!("span {id}")), wire::trace()].concat());
    stream.write_all(&wire::process().into_iter().chain(spans).collect::<Vec<_>>()).unwrap();
}

/// The names of all spans in the bucket and the directory, sorted.
fn spans(store: &mut Store, directory: &Path) -> Vec<String> {
    let all = tempfile::tempdir().unwrap();
    store.server.fetch(all.path());
    let mut batches = archived(&all.path().join("archive/span"));
    for path in files(&directory.join("archive/span"), ".parquet") {
        if !all.path().join(path.strip_prefix(directory).unwrap()).exists() {
            batches.extend(crate::parquet::read(&path));
        }
    }
    let mut names: Vec<_> = batches
        .iter()
        .flat_map(|batch| batch.events().map(|event| event.name().text().to_owned()).collect::<Vec<_>>())
        .collect();
    names.sort();
    names
}

#[test]
fn a_daemon_that_is_killed_between_upload_and_removal_repeats_nothing_and_loses_nothing() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    store.proxy.set(Fault::StallAnswerOfPut);
    let daemon = start(directory.path(), &store);
    send(&daemon, 0..50);
    let span = |store: &mut Store| store.server.objects().into_keys().find(|name| name.contains("/span/"));
    let any = |store: &mut Store| (!store.server.objects().is_empty()).then_some(());
    until("an object is in the bucket", || any(&mut store));
    daemon.signal("KILL");
    daemon.end();
    let uploaded: Vec<_> = store.server.objects().into_keys().collect();
    for name in &uploaded {
        assert!(directory.path().join(name).exists(), "{name} is still here");
    }
    store.proxy.set(Fault::None);
    let daemon = start(directory.path(), &store);
    send(&daemon, 50..100);
    until("the spans are in the bucket", || span(&mut store));
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(files(&directory.path().join("archive"), ".parquet").is_empty(), "{}", ended.stderr);
    assert!(!ended.stderr.contains(KEY));
    let mut expected: Vec<_> = (0..100).map(|id| format!("span {id}")).collect();
    expected.sort();
    assert_eq!(spans(&mut store, directory.path()), expected);
}

#[test]
fn a_daemon_whose_store_is_away_ends_and_keeps_its_files_for_the_next_one() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    store.server.ask("stop");
    let daemon = start(directory.path(), &store);
    send(&daemon, 0..10);
    let line = daemon.until_stderr("the destination is away; what waits is sent when it is back");
    assert!(line.contains(&format!("s3://{BUCKET}/archive")) && !line.contains(KEY), "{line}");
    let ready = ask(&daemon, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 200 ") && ready.contains("wait to be uploaded; last error: "), "{ready}");
    let metrics = ask(&daemon, "/metrics");
    let value = |name: &str| {
        let value =
            metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}\n{metrics}"));
        value.trim().parse::<u64>().unwrap()
    };
    assert!(value("tributary_uploads_total{sink=\"archive\",outcome=\"failed\"}") > 0);
    assert_eq!(value("tributary_uploads_total{sink=\"archive\",outcome=\"uploaded\"}"), 0);
    assert!(value("tributary_upload_waiting_files{sink=\"archive\"}") > 0);
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    store.server.ask("start");
    let expected: Vec<_> = (0..10).map(|id| format!("span {id}")).collect();
    assert_eq!(spans(&mut store, directory.path()), expected);
    assert!(store.server.objects().is_empty());
    let daemon = start(directory.path(), &store);
    until("all files are uploaded", || files(&directory.path().join("archive"), ".parquet").is_empty().then_some(()));
    daemon.signal("TERM");
    daemon.end();
    assert_eq!(spans(&mut store, directory.path()), expected);
}
