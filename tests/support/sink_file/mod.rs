//! Shared by the tests of the file sink: events, and reading files back.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::live::until_async;
use tempfile::TempDir;
use tributary::event::{Batch, BatchBuilder, Header, Origin, Position, Severity, UnixNanos};
use tributary::sink::file::{File, Fsync, Options};
use tributary::sink::{Kinds, Selection, Sink, SinkError, Unwritten};

/// Nanoseconds of a day.
pub const DAY: u64 = 86_400_000_000_000;
/// 2024-02-29T13:07:09Z.
pub const LEAP_DAY: u64 = 1_709_212_029_123_456_789;

pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap()
}

pub fn batch_of(names: &[String], listener: &str, observed: u64) -> Batch {
    let origin = Origin::new("datadog", listener.into(), "127.0.0.1:1".into(), 1);
    let mut builder = BatchBuilder::new(Arc::new(origin));
    for name in names {
        let name = builder.push_text(name).into();
        let header = Header { name, time: None, observed: UnixNanos(observed), position: Position::default() };
        builder.event(header).log(Severity::Info, None);
    }
    builder.take()
}

/// Names of different records, `len` bytes each.
pub fn names(range: std::ops::Range<usize>, len: usize) -> Vec<String> {
    range.map(|number| format!("{number:0>len$}")).collect()
}

pub async fn write_as(sink: &mut File, names: &[String], listener: &str, observed: u64) -> Result<(), SinkError> {
    sink.write(Selection::new(&batch_of(names, listener, observed), Kinds::ALL)).await
}

pub async fn write(sink: &mut File, names: &[String]) {
    write_as(sink, names, "web", now()).await.unwrap();
    sink.flush().await.unwrap();
}

pub fn options(directory: &TempDir, path: &str) -> Options {
    Options { path: format!("{}/{path}", directory.path().display()), fsync: Fsync::Never, ..Options::default() }
}

/// Every regular file below, by its path from there.
pub fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let name = path.strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

/// The paths of `app.log` and its finished forms, oldest first, the live one last.
pub fn in_order(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = files(directory).into_keys().filter(|name| name.starts_with("app.")).collect();
    files.sort_by_key(|name| {
        let inner = name.trim_start_matches("app.").split(".log").next().unwrap().trim_end_matches("log").to_owned();
        let (stamp, number) = inner.split_once('-').unwrap_or((&inner, "0"));
        (stamp.is_empty(), stamp.to_owned(), number.parse::<usize>().unwrap())
    });
    files.into_iter().map(|name| directory.join(name)).collect()
}

pub fn unpacked(path: &Path) -> Vec<u8> {
    let file = fs::File::open(path).unwrap();
    let mut bytes = Vec::new();
    match path.extension().unwrap().to_str().unwrap() {
        "gz" => flate2::read::MultiGzDecoder::new(file).read_to_end(&mut bytes).unwrap(),
        "lz4" => lz4_flex::frame::FrameDecoder::new(file).read_to_end(&mut bytes).unwrap(),
        "zst" => zstd::Decoder::new(file).unwrap().read_to_end(&mut bytes).unwrap(),
        _ => { file }.read_to_end(&mut bytes).unwrap(),
    };
    bytes
}

/// The names in a file's records. Fails on every line that is not a whole record.
pub fn names_in(bytes: &[u8]) -> Vec<String> {
    let text = str::from_utf8(bytes).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "torn: {:?}", text.lines().last());
    text.lines()
        .map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            record["name"].as_str().unwrap().to_owned()
        })
        .collect()
}

pub fn all_names(directory: &Path) -> Vec<String> {
    in_order(directory).iter().flat_map(|path| names_in(&unpacked(path))).collect()
}

/// Flushes; returns what is not written.
pub async fn flush(sink: &mut File) -> Unwritten {
    sink.flush().await.unwrap();
    sink.unwritten()
}

/// Flushes a sink that holds events; returns the fault of the file that it tried.
pub async fn held(sink: &mut File) -> String {
    let unwritten = flush(sink).await;
    assert!(!unwritten.held.is_empty() && unwritten.failed.is_empty(), "{unwritten:?}");
    unwritten.held_fault.map(|fault| fault.to_string()).unwrap_or_default()
}

/// Flushes until everything is written: one that cannot be written is retried after a pause.
pub async fn flush_all(sink: &mut File) {
    until_async("everything is written", async || flush(sink).await.is_empty().then_some(())).await;
}

/// How many files below a directory this process has open.
pub fn open_files_below(directory: &Path) -> usize {
    fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter(|entry| fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|path| path.starts_with(directory)))
        .count()
}
