//! The archive: every recording is read back from it as it was, nothing is lost by a kill, and other programs read its files.

mod journal;
mod readers;
pub(super) mod recorded;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tributary::event::Batch;
use tributary::sink::encode::json::JsonEncoder;
use tributary::sink::parquet::{self, Options, Parquet};
use tributary::sink::{AckLevel, Kinds, Selection, Sink};

/// The options of an archive in this directory.
pub(crate) fn options(directory: &Path) -> Options {
    Options { path: format!("{}/{{kind}}/{{protocol}}", directory.display()), ..Options::default() }
}

/// Writes batches, and finishes all files.
pub(crate) async fn write(options: Options, batches: impl IntoIterator<Item = &Batch>) {
    let mut sink = Parquet::new(options).unwrap();
    take(&mut sink, batches).await;
    sink.close().await.unwrap();
}

/// Writes batches to the journal, durably.
pub(crate) async fn take(sink: &mut Parquet, batches: impl IntoIterator<Item = &Batch>) {
    for (number, batch) in (1..).zip(batches) {
        let all = Selection::new(batch, Kinds::ALL).numbered(number).at_level(AckLevel::Durable);
        sink.write(all).await.unwrap();
        sink.flush().await.unwrap();
        let unwritten = sink.unwritten();
        assert!(unwritten.held.is_empty() && unwritten.failed.is_empty(), "{unwritten:?}");
        if !unwritten.unsynced.is_empty() {
            sink.sync().await.unwrap();
        }
        assert!(sink.unwritten().is_empty());
    }
}

/// The files below a directory whose names end so, hidden directories included.
pub(crate) fn files(directory: &Path, end: &str) -> Vec<PathBuf> {
    let (mut found, mut directories) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                directories.push(path);
            } else if path.to_str().unwrap().ends_with(end) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The batches of a file.
pub(crate) fn read(path: &Path) -> Vec<Batch> {
    let mut batches = Vec::new();
    parquet::read(File::open(path).unwrap(), &mut |batch| {
        batches.push(batch);
        Ok(true)
    })
    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    batches
}

/// The events of all Parquet files below a directory.
pub(crate) fn archived(directory: &Path) -> Vec<Batch> {
    files(directory, ".parquet").iter().flat_map(|path| read(path)).collect()
}

/// How often each event occurs, as its JSON line with sorted keys.
fn lines<'a>(batches: impl IntoIterator<Item = &'a Batch>) -> BTreeMap<String, u64> {
    let (mut encoder, mut all) = (JsonEncoder::default(), BTreeMap::new());
    let mut line = Vec::new();
    for event in batches.into_iter().flat_map(Batch::events) {
        line.clear();
        encoder.encode(event, &mut line);
        let mut sorted = String::new();
        push_sorted(&serde_json::from_slice(&line).unwrap(), &mut sorted);
        *all.entry(sorted).or_default() += 1;
    }
    all
}

fn push_sorted(json: &Value, out: &mut String) {
    match json {
        Value::Object(members) => {
            let members: BTreeMap<_, _> = members.iter().collect();
            out.push('{');
            for (key, value) in members {
                out.push_str(&format!("{}:", Value::from(key.as_str())));
                push_sorted(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                push_sorted(item, out);
                out.push(',');
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// Compares events; the order does not count.
pub(crate) fn assert_same(found: &[Batch], expected: &[Batch], of: &str) {
    let (found, expected) = (lines(found), lines(expected));
    for (line, times) in &expected {
        assert_eq!(found.get(line), Some(times), "{of}: {line}");
    }
    assert_eq!(found.len(), expected.len(), "{of}");
}
