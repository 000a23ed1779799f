//! Event files and their profiles: lines of hand-written events, and the independent decodes of recordings.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::live::binary::{Ended, run};

pub fn session(name: &str) -> PathBuf {
    crate::project().join("tests/data/rbkit/sessions").join(name)
}

/// The lines of the independent decode of a session.
pub fn expected(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(session(name).join("expected.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A line of an event file.
pub fn line(kind: &str, name: &str, data: Value, attributes: Value, pid: u64) -> String {
    let mut event = json!({
        "time": "2015-07-04T12:15:00.000000000Z", "observed_time": "2015-07-04T12:15:00.100000000Z",
        "kind": kind, "name": name,
    });
    match kind {
        "sample" => event["sample"] = data,
        _ => event["severity"] = json!("INFO"),
    }
    event["attributes"] = attributes;
    event["resource"] = json!({"process.pid": pid, "process.executable.name": "shop.rb"});
    event["origin"] = json!({
        "protocol": "rbkit", "listener": "shop", "peer": "127.0.0.1:5555", "connection": pid + 1, "sequence": 3,
        "offset": 17, "length": 400,
    });
    format!("{event}\n")
}

pub fn cpu(frames: Value) -> String {
    let sample = json!({"type": "cpu", "unit": "count", "value": 1, "frames": frames});
    line("sample", "rbkit.cpu", sample, json!({"thread.id": 9}), 71)
}

pub fn allocations(count: u64, frames: Value, site: Value) -> String {
    let sample = json!({"type": "alloc_objects", "unit": "count", "value": count, "frames": frames});
    line("sample", "rbkit.allocations", sample, site, 71)
}

/// An object: id, class, file, line, size, number of references.
pub type Row<'a> = (u64, Option<&'a str>, Option<&'a str>, Option<u64>, Option<u64>, u64);

pub fn object(dump: u64, count: u64, pid: u64, (id, class, file, at, size, references): Row<'_>) -> String {
    let references: Vec<u64> = (1..=references).collect();
    let mut attributes = json!({"rbkit.object.id": id});
    let map = attributes.as_object_mut().unwrap();
    let mut add = |key: &str, value: Value| {
        if !value.is_null() {
            map.insert(key.to_owned(), value);
        }
    };
    add("rbkit.class.name", json!(class));
    add("rbkit.object.references", json!(references));
    add("code.file.path", json!(file));
    add("code.line.number", json!(at));
    add("rbkit.object.size", json!(size));
    add("rbkit.dump.id", json!(dump));
    add("rbkit.dump.object_count", json!(count));
    line("log", "rbkit.heap.object", Value::Null, attributes, pid)
}

pub fn dump_end(dump: u64, count: u64, pid: u64) -> String {
    let attributes = json!({"rbkit.dump.id": dump, "rbkit.dump.object_count": count});
    line("log", "rbkit.heap.dump", Value::Null, attributes, pid)
}

pub fn dump(id: u64, pid: u64, rows: &[Row<'_>]) -> String {
    let objects: String = rows.iter().map(|row| object(id, rows.len() as u64, pid, *row)).collect();
    objects + dump_end(id, rows.len() as u64, pid).as_str()
}

pub struct Files(pub TempDir);

impl Files {
    pub fn new() -> Self {
        Files(tempfile::tempdir().unwrap())
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// The profile of these events.
pub fn profile(arguments: &[&str], events: &str) -> Ended {
    let files = Files::new();
    let file = files.file("events.ndjson", events);
    run(&[&["decode", "rbkit"], arguments, &[&file]].concat())
}

/// The profile. It fails if there is none.
pub fn shown(arguments: &[&str], events: &str) -> String {
    let ended = profile(arguments, events);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

pub fn frame(function: &str, file: &str, line: u64) -> Value {
    json!({"function": function, "file": file, "line": line})
}

/// The profile of a recording: of its messages and replies in their order.
pub fn shown_of_recording(arguments: &[&str], name: &str) -> String {
    let files = fs::read_dir(session(name)).unwrap().map(|file| file.unwrap().path().display().to_string());
    let mut files: Vec<String> = files.filter(|file| file.ends_with(".msgpack")).collect();
    files.sort();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let ended = run(&[&["decode", "rbkit"], arguments, &files].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

/// Six CPU samples, and 12 allocated objects in four samples.
pub fn shop() -> String {
    let main = frame("<main>", "shop.rb", 0);
    let each = frame("Array#each", "<cfunc>", 0);
    let total = frame("Cart#total", "/app/cart.rb", 12);
    [
        cpu(json!([total, each, main])),
        cpu(json!([each, main])),
        cpu(json!([total, each, main])),
        cpu(json!([main])),
        cpu(json!([])),
        cpu(json!([{"function": "a;b"}, {"file": "/x y.rb", "line": 3}, {}])),
        allocations(
            5,
            json!([total, main]),
            json!({"code.file.path": "/app/cart.rb", "code.line.number": 14, "rbkit.class.name": "String"}),
        ),
        allocations(
            2,
            json!([]),
            json!({"code.file.path": "/app/cart.rb", "code.line.number": 14, "rbkit.class.name": "String"}),
        ),
        allocations(1, json!([]), json!({"code.file.path": "/app/cart.rb", "code.line.number": 14})),
        allocations(
            4,
            json!([total, main]),
            json!({"code.file.path": "/app/cart.rb", "code.line.number": 14, "rbkit.class.name": "String"}),
        ),
    ]
    .concat()
}
