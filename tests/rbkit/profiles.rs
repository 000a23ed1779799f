//! Profiles of event files and recordings: folded stacks, flame graphs, heap tables and comparisons. The expected values
//! are counted by hand, or by the test from the independent decodes of the recordings.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::live::binary::{Binary, Ended, run, tributary};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tempfile::TempDir;
use tributary::event::{
    BatchBuilder, Frame, Header, Number, Origin, Position, Resource, ResourceValue, SampleData, Severity, UnixNanos,
    semconv as names,
};
use tributary::profile::events::{self, EventFile, Lines};
use tributary::sink::encode::{Encoder, Format};

fn session(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/rbkit/sessions").join(name)
}

/// The lines of the independent decode of a session.
fn expected(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(session(name).join("expected.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Its CPU samples, each as the rows of its frames.
fn expected_samples(name: &str) -> Vec<Vec<Value>> {
    let mut samples = Vec::new();
    for message in expected(name) {
        let events = message["events"].as_array().into_iter().flatten();
        for event in events.filter(|event| event["e"] == "cpu_sample") {
            let row = |index: &Value| message["frame_table"][index.as_u64().unwrap() as usize].clone();
            samples.push(event["frames"].as_array().unwrap().iter().map(row).collect());
        }
    }
    samples
}

/// A line of an event file.
fn line(kind: &str, name: &str, data: Value, attributes: Value, pid: u64) -> String {
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

fn cpu(frames: Value) -> String {
    let sample = json!({"type": "cpu", "unit": "count", "value": 1, "frames": frames});
    line("sample", "rbkit.cpu", sample, json!({"thread.id": 9}), 71)
}

fn allocations(count: u64, frames: Value, site: Value) -> String {
    let sample = json!({"type": "alloc_objects", "unit": "count", "value": count, "frames": frames});
    line("sample", "rbkit.allocations", sample, site, 71)
}

/// An object: id, class, file, line, size, number of references.
type Row<'a> = (u64, Option<&'a str>, Option<&'a str>, Option<u64>, Option<u64>, u64);

fn object(dump: u64, count: u64, pid: u64, (id, class, file, at, size, references): Row<'_>) -> String {
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

fn dump_end(dump: u64, count: u64, pid: u64) -> String {
    let attributes = json!({"rbkit.dump.id": dump, "rbkit.dump.object_count": count});
    line("log", "rbkit.heap.dump", Value::Null, attributes, pid)
}

fn dump(id: u64, pid: u64, rows: &[Row<'_>]) -> String {
    let objects: String = rows.iter().map(|row| object(id, rows.len() as u64, pid, *row)).collect();
    objects + &dump_end(id, rows.len() as u64, pid)
}

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Files(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// The profile of these events.
fn profile(arguments: &[&str], events: &str) -> Ended {
    let files = Files::new();
    let file = files.file("events.ndjson", events);
    run(&[&["decode", "rbkit"], arguments, &[&file]].concat())
}

/// The profile. It fails if there is none.
fn shown(arguments: &[&str], events: &str) -> String {
    let ended = profile(arguments, events);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

fn frame(function: &str, file: &str, line: u64) -> Value {
    json!({"function": function, "file": file, "line": line})
}

fn shop() -> String {
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

const SHOP_CPU: &str = "\
(no frames) 1
(unknown);(/x y.rb:3);a:b 1
<main> (shop.rb) 1
<main> (shop.rb);Array#each (<cfunc>) 1
<main> (shop.rb);Array#each (<cfunc>);Cart#total (/app/cart.rb:12) 2
";

const SHOP_ALLOCATIONS: &str = "\
(/app/cart.rb:14);(no class) 1
(/app/cart.rb:14);String 2
<main> (shop.rb);Cart#total (/app/cart.rb:12);(/app/cart.rb:14);String 9
";

#[test]
fn folded_stacks_of_a_small_file_are_as_expected() {
    let ended = profile(&["--as", "folded"], &shop());
    assert_eq!((ended.code, &*ended.stdout), (Some(0), SHOP_CPU));
    assert_eq!(ended.stderr, "6 samples of cpu; 4 samples of allocations are left out\n");
    assert_eq!(shown(&["--as", "folded", "--sample", "cpu"], &shop()), SHOP_CPU);
    let ended = profile(&["--as", "folded", "--sample", "allocations"], &shop());
    assert_eq!((ended.code, &*ended.stdout), (Some(0), SHOP_ALLOCATIONS));
    assert_eq!(ended.stderr, "4 samples of allocations, 12 objects; 6 samples of cpu are left out\n");
    // Without CPU samples, allocations are the default.
    let alone: String = shop().lines().filter(|line| line.contains("alloc")).map(|line| format!("{line}\n")).collect();
    assert_eq!(shown(&["--as", "folded"], &alone), SHOP_ALLOCATIONS);
    // The output does not depend on the order of the input.
    let mut lines: Vec<String> = shop().lines().map(|line| format!("{line}\n")).collect();
    lines.reverse();
    assert_eq!(shown(&["--as", "folded"], &lines.concat()), SHOP_CPU);
}

/// The text of a frame of a recording.
fn frame_name(label: &Value, file: &Value, line: &Value) -> String {
    let site = match (line.as_u64(), file.as_str().unwrap()) {
        (Some(0), file) => format!("({file})"),
        (line, file) => format!("({file}:{})", line.unwrap()),
    };
    label.as_str().map_or(site.clone(), |label| format!("{label} {site}"))
}

/// A text. If it is not UTF-8 the decode has its bytes in hex, and the text is repaired.
fn repaired(text: &Value) -> String {
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    match text["bytes"].as_str() {
        Some(hex) => String::from_utf8_lossy(&bytes(hex)).into_owned(),
        None => text.as_str().unwrap().to_owned(),
    }
}

/// The samples of a recording as events, and its stacks as the test counts them.
fn recorded_cpu(name: &str) -> (String, BTreeMap<String, u64>) {
    let (mut events, mut stacks) = (String::new(), BTreeMap::new());
    for rows in expected_samples(name) {
        let frames = rows.iter().map(|row| json!({"function": row[1], "file": row[2], "line": row[3]}));
        events += &cpu(frames.collect());
        let names: Vec<String> = rows.iter().rev().map(|row| frame_name(&row[1], &row[2], &row[3])).collect();
        *stacks.entry(names.join(";")).or_insert(0) += 1;
    }
    (events, stacks)
}

fn parse_folded(folded: &str) -> BTreeMap<String, u64> {
    let parse = |line: &str| {
        let (stack, value) = line.rsplit_once(' ').unwrap();
        (stack.to_owned(), value.parse().unwrap())
    };
    let stacks: BTreeMap<String, u64> = folded.lines().map(parse).collect();
    assert_eq!(stacks.len(), folded.lines().count(), "a stack stands twice");
    stacks
}

#[test]
fn folded_stacks_of_recordings_are_as_counted() {
    for (name, samples) in [
        ("master-2.1-memory-then-cpu", 204),
        ("master-2.1-dump-while-tracing", 147),
        ("master-2.1-raw-memory-then-cpu", 93),
        ("spec-2.1-dump-then-stop", 144),
        ("spec-2.1-snapshots", 358),
    ] {
        let (events, stacks) = recorded_cpu(name);
        assert_eq!(stacks.values().sum::<u64>(), samples, "{name}");
        assert_eq!(parse_folded(&shown(&["--as", "folded"], &events)), stacks, "{name}");
        assert_eq!(parse_folded(&shown_of_recording(&["--as", "folded"], name)), stacks, "{name}");
    }
}

#[test]
fn allocations_of_recordings_are_as_counted() {
    for name in ["spec-2.1-snapshots", "spec-2.1-dump-then-stop"] {
        let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
        let messages = expected(name);
        let events = messages.iter().flat_map(|message| message["events"].as_array().into_iter().flatten());
        for event in events.filter(|event| event["e"] == "allocation_snapshot") {
            let frames = |id: &Value| {
                let all = event["stacktraces"].as_array().unwrap();
                let stack = all.iter().find(|stack| stack["id"] == *id).unwrap();
                let frame = |row: &Value| frame_name(&row[0], &row[1], &row[2]);
                let frames: Vec<String> = stack["frames"].as_array().unwrap().iter().rev().map(frame).collect();
                frames.join(";") + ";"
            };
            for site in event["allocations"].as_array().unwrap() {
                let class = site["type"].as_str().unwrap();
                let leaf = format!("({}:{});{class}", repaired(&site["file"]), site["line"]);
                let mut left = site["count"].as_u64().unwrap();
                for pair in site["stacktraces"].as_array().into_iter().flatten() {
                    left -= pair[1].as_u64().unwrap();
                    *stacks.entry(frames(&pair[0]) + &leaf).or_default() += pair[1].as_u64().unwrap();
                }
                if left > 0 {
                    *stacks.entry(leaf).or_default() += left;
                }
            }
        }
        assert!(stacks.len() > 90 && stacks.keys().any(|stack| stack.matches(';').count() > 3), "{name}");
        let folded = shown_of_recording(&["--as", "folded", "--sample", "allocations"], name);
        assert_eq!(parse_folded(&folded), stacks, "{name}");
    }
}

/// The texts of the elements `<title>`. It fails if a tag is not closed.
fn titles(svg: &str) -> Vec<String> {
    let (mut open, mut titles, mut rest) = (Vec::new(), Vec::new(), svg);
    while let Some(start) = rest.find('<') {
        rest = &rest[start..];
        if let Some(cdata) = rest.strip_prefix("<![CDATA[") {
            rest = &cdata[cdata.find("]]>").unwrap() + 3..];
            continue;
        }
        let end = rest.find('>').unwrap();
        let (tag, after) = (&rest[1..end], &rest[end + 1..]);
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name.to_owned()), "a tag closes that was not open");
        } else if !tag.starts_with(['?', '!']) && !tag.ends_with('/') {
            let name = tag.split_whitespace().next().unwrap().to_owned();
            if name == "title" {
                titles.push(after[..after.find('<').unwrap()].to_owned());
            }
            open.push(name);
        }
        rest = after;
    }
    assert!(open.is_empty(), "never closed: {open:?}");
    titles
}

#[test]
fn a_flame_graph_has_every_frame_with_its_samples() {
    let svg = shown(&["--as", "flamegraph"], &shop());
    assert!(svg.starts_with("<?xml") && svg.contains("<svg") && svg.contains("rbkit: cpu"));
    let titles = titles(&svg);
    for title in [
        "all (6 samples, 100%)",
        "&lt;main&gt; (shop.rb) (4 samples, 66.67%)",
        "Array#each (&lt;cfunc&gt;) (3 samples, 50.00%)",
        "Cart#total (/app/cart.rb:12) (2 samples, 33.33%)",
        "(no frames) (1 samples, 16.67%)",
    ] {
        assert!(titles.iter().any(|found| found == title), "no {title:?} in {titles:?}");
    }
    assert_eq!(shown(&["--as", "flamegraph"], &shop()), svg, "the same picture again");
    let objects = shown(&["--as", "flamegraph", "--sample", "allocations"], &shop());
    assert!(objects.contains("String (9 objects, 75.00%)") && objects.contains("rbkit: allocations"));
}

#[test]
fn names_are_escaped_in_every_output() {
    let hostile = "</title><script>alert(1)</script>]]>\n\x1b[2J;x 12 7";
    let events = [cpu(json!([frame(hostile, "\u{202E}a\"'&.rb", 1)])), cpu(json!([{"function": "n 12"}]))].concat();
    let svg = shown(&["--as", "flamegraph"], &events);
    assert!(!svg.contains("<script>alert") && !svg.contains('\x1b') && !svg.contains('\u{202E}'));
    assert!(titles(&svg).iter().any(|title| title.contains("&lt;script&gt;alert(1)") && title.contains("1 samples")));
    let folded = "</title><script>alert(1)</script>]]> [2J:x 12 7 (a\"'&.rb:1) 1\nn_12 1\n";
    assert_eq!(shown(&["--as", "folded"], &events), folded);
    let rows = [(1, Some("A\nB\x1b[2J"), Some("/a\tb.rb"), Some(2), None, 0)];
    let table = shown(&["--as", "heap"], &dump(1, 7, &rows));
    assert!(table.contains("A B [2J  /a b.rb:2\n"), "{table}");
}

#[test]
fn a_heap_is_counted_by_class_and_site() {
    let rows = [
        (1, Some("String"), Some("/app/cart.rb"), Some(14), Some(40), 1),
        (2, Some("String"), None, None, Some(40), 0),
        (3, Some("String"), Some("/app/cart.rb"), Some(14), Some(1_000_000), 2),
        (4, None, None, None, None, 3),
        (5, Some("Cart"), None, Some(9), None, 0),
        (6, Some("Cart"), Some("/app/cart.rb"), None, Some(8), 0),
        (7, Some("String"), Some("/app/cart.rb"), Some(14), None, 0),
        (8, Some(""), None, None, Some(1), 0),
    ];
    let ended = profile(&["--as", "heap"], &dump(1, 71, &rows));
    let table = "\
count   share    bytes  references  class       site
    3   37.5%  1000040           3  String      /app/cart.rb:14
    1   12.5%       40           0  String      (no site)
    1   12.5%        8           0  Cart        /app/cart.rb
    1   12.5%        1           0  (empty)     (no site)
    1   12.5%        0           3  (no class)  (no site)
    1   12.5%        0           0  Cart        (no file):9
    8  100.0%  1000089           6  total
";
    assert_eq!((ended.code, &*ended.stdout), (Some(0), table));
    assert_eq!(ended.stderr, "dump 1 of process 71 at 127.0.0.1:5555: 8 objects\n");
}

/// The profile of a recording: of its messages and replies in their order.
fn shown_of_recording(arguments: &[&str], name: &str) -> String {
    let files = fs::read_dir(session(name)).unwrap().map(|file| file.unwrap().path().display().to_string());
    let mut files: Vec<String> = files.filter(|file| file.ends_with(".msgpack")).collect();
    files.sort();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let ended = run(&[&["decode", "rbkit"], arguments, &files].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

/// Id, class, file, line, size, and the number of references.
type RecordedObject = (u64, String, Option<String>, Option<u64>, Option<u64>, u64);

/// The objects of a recording's dump.
fn recorded_objects(name: &str) -> Vec<RecordedObject> {
    let files = fs::read_dir(session(name)).unwrap().map(|file| file.unwrap().path());
    let file = files.into_iter().find(|file| file.to_str().unwrap().ends_with(".objects.tsv.gz")).unwrap();
    let mut text = Vec::new();
    GzDecoder::new(fs::File::open(file).unwrap()).read_to_end(&mut text).unwrap();
    // Text that is not UTF-8 is repaired in events.
    let text = String::from_utf8_lossy(&text).into_owned();
    let rows = text.lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let known = |field: usize| Some(fields[field]).filter(|text| *text != "\\N");
        let number = |field: usize| known(field).map(|text| text.parse().unwrap());
        let references = fields[5].split(',').filter(|id| !id.is_empty()).count() as u64;
        let file = known(2).map(str::to_owned);
        (number(0).unwrap(), fields[1].to_owned(), file, number(3), number(4), references)
    });
    rows.collect()
}

#[test]
fn heaps_of_recordings_are_as_counted() {
    for (name, count, bytes) in [
        ("master-2.1-dump-while-tracing", 4257, None),
        ("master-2.1-raw-dump", 5768, None),
        ("spec-2.1-dump-then-stop", 4596, None),
        ("v0.1.10-unsplit-dump", 4214, Some(3_795_262)),
    ] {
        let objects = recorded_objects(name);
        assert_eq!(objects.len() as u64, count, "{name}");
        let mut counted: BTreeMap<String, [u64; 3]> = BTreeMap::new();
        let mut rows = Vec::new();
        for (id, class, file, line, size, references) in &objects {
            let site = match (file, line) {
                (Some(file), Some(line)) => format!("{file}:{line}"),
                (Some(file), None) => file.clone(),
                (None, Some(line)) => format!("(no file):{line}"),
                (None, None) => "(no site)".to_owned(),
            };
            let sums = counted.entry(format!("{class} {site}")).or_default();
            *sums = [sums[0] + 1, sums[1] + size.unwrap_or(0), sums[2] + references];
            rows.push((*id, Some(class.as_str()), file.as_deref(), *line, *size, *references));
        }
        let table = shown(&["--as", "heap"], &dump(3, 71, &rows));
        assert_eq!(shown_of_recording(&["--as", "heap"], name), table, "{name}");
        let mut last = u64::MAX;
        let mut shown = BTreeMap::new();
        let lines: Vec<&str> = table.lines().collect();
        for line in &lines[1..lines.len() - 1] {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [count, bytes, references] = [words[0], words[2], words[3]].map(|word| word.parse::<u64>().unwrap());
            assert!(count <= last, "{name}: not in order");
            last = count;
            let share: f64 = words[1].trim_end_matches('%').parse().unwrap();
            assert!((share - 100.0 * count as f64 / objects.len() as f64).abs() <= 0.0501, "{name}: {line}");
            shown.insert(words[4..].join(" "), [count, bytes, references]);
        }
        assert_eq!(shown, counted, "{name}");
        let sums = counted.values().fold([0; 3], |sums, row| [sums[0] + row[0], sums[1] + row[1], sums[2] + row[2]]);
        let total: Vec<&str> = lines[lines.len() - 1].split_whitespace().collect();
        let [count, all_bytes, references] = sums.map(|sum| sum.to_string());
        assert_eq!(total, [&*count, "100.0%", &*all_bytes, &*references, "total"], "{name}");
        assert!(bytes.is_none_or(|bytes| bytes == sums[1]), "{name}");
    }
}

const STRING: Row<'_> = (0, Some("String"), None, None, Some(40), 0);

fn of(id: u64, row: Row<'_>) -> Row<'_> {
    (id, row.1, row.2, row.3, row.4, row.5)
}

#[test]
fn of_several_dumps_the_last_complete_one_is_shown_or_the_selected_one() {
    let cart = (0, Some("Cart"), None, None, None, 0);
    // Dump 2 lacks an object; there are two dumps 1 of two processes; dump 3 has only its first objects.
    let short = dump(2, 71, &[of(1, STRING), of(2, STRING)])
        .lines()
        .skip(1)
        .map(|line| format!("{line}\n"))
        .collect::<String>();
    let unfinished = object(3, 5, 71, of(1, STRING));
    let mixed: String = dump(1, 71, &[of(1, cart), of(2, cart), of(3, cart)])
        .lines()
        .zip(dump(1, 72, &[of(1, STRING), of(2, STRING), of(3, STRING)]).lines())
        .map(|(a, b)| format!("{b}\n{a}\n"))
        .collect();
    let events = [mixed, short, unfinished].concat();
    let ended = profile(&["--as", "heap"], &events);
    assert!(ended.stdout.contains("3  100.0%      0           0  Cart"), "{}", ended.stdout);
    let words: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(
        words,
        [
            "dump 1 of process 71 at 127.0.0.1:5555: 3 objects",
            "  there is also dump 1 of process 72 at 127.0.0.1:5555: 3 objects",
            "  there is also dump 2 of process 71 at 127.0.0.1:5555: 1 of 2 objects (not whole)",
            "  there is also dump 3 of process 71 at 127.0.0.1:5555: 1 of 5 objects (not whole)",
        ]
    );
    let ended = profile(&["--as", "heap", "--dump", "2"], &events);
    assert_eq!(ended.stderr.lines().next(), Some("dump 2 of process 71 at 127.0.0.1:5555: 1 of 2 objects (not whole)"));
    assert!(ended.stdout.contains("1  100.0%     40           0  String"), "{}", ended.stdout);
    let ended = profile(&["--as", "heap", "--dump", "9"], &events);
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    assert!(ended.stderr.contains("no such heap dump") && ended.stderr.contains("there is dump 3"), "{}", ended.stderr);
    // Several dumps with one number: the complete one is preferred to a later incomplete one.
    let again = [dump(2, 71, &[of(5, cart)]), object(2, 4, 99, of(1, STRING))].concat();
    let ended = profile(&["--as", "heap", "--dump", "2"], &again);
    assert!(ended.stdout.contains("Cart"), "{} {}", ended.stdout, ended.stderr);
    // An empty heap is a complete dump.
    let ended = profile(&["--as", "heap"], &dump_end(4, 0, 71));
    assert!(ended.stdout.ends_with("    0    0.0%      0           0  total\n"), "{}", ended.stdout);
    let ended = profile(&["--as", "heap"], &shop());
    assert_eq!((ended.code, &*ended.stderr), (Some(1), "tributary: no whole heap dump in the input\n"));
}

#[test]
fn dumps_beyond_the_limit_are_listed_by_name() {
    let unfinished: String = (1..=12).map(|dump| object(dump, 2, 71, of(dump, STRING))).collect();
    let ended = profile(&["--as", "heap", "--dump", "12"], &unfinished);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 12, "{}", ended.stderr);
}

#[test]
fn a_comparison_counts_new_replaced_kept_and_gone_objects() {
    let site = |id, class, line| (id, Some(class), Some("/app/cart.rb"), Some(line), Some(10), 1);
    let before = [
        of(1, STRING),                  // stays
        of(2, STRING),                  // goes
        of(3, STRING),                  // its address goes to a Cart
        site(4, "String", 14),          // its address goes to a String made elsewhere
        site(5, "String", 14),          // stays; its place is forgotten
        of(6, STRING),                  // its address goes to a String with a place
        (7, None, None, None, None, 0), // stays
    ];
    let after = [
        of(1, STRING),
        (3, Some("Cart"), None, None, Some(100), 2),
        site(4, "String", 15),
        (5, Some("String"), None, None, Some(10), 1),
        site(6, "String", 14),
        (7, None, None, None, None, 0),
        of(8, STRING),
        of(9, STRING),
        site(10, "String", 15),
        (11, None, None, None, None, 4),
    ];
    let table = "\
count  new  replaced  bytes  references  class       site
    2    2         0     80           0  String      (no site)
    2    1         1     20           2  String      /app/cart.rb:15
    1    1         0      0           4  (no class)  (no site)
    1    0         1    100           2  Cart        (no site)
    1    0         1     10           1  String      /app/cart.rb:14
    7    4         3    210           9  total

A: dump 1 of process 71 at 127.0.0.1:5555: 7 objects
B: dump 2 of process 71 at 127.0.0.1:5555: 10 objects
B has 4 new objects, 3 replaced and 3 kept; 1 of A are gone.
";
    let events = [dump(1, 71, &before), dump(2, 71, &after)].concat();
    let files = Files::new();
    let both = files.file("both.ndjson", &events);
    let by_number = run(&["decode", "rbkit", "--compare", "1", "2", &both]);
    assert!(by_number.stdout.starts_with(table), "{}{}", by_number.stdout, by_number.stderr);
    assert!(by_number.stdout.contains("counts as kept"), "the limits of the comparison");
    let (a, b) = (files.file("a", dump(1, 71, &before)), files.file("b", dump(2, 71, &after)));
    let by_file = run(&["decode", "rbkit", "--compare", &a, &b]);
    assert_eq!(by_file.stdout, by_number.stdout);
    // The same dump twice: nothing is new or gone.
    let same = run(&["decode", "rbkit", "--compare", &a, &a]);
    assert!(same.stdout.contains("B has 0 new objects, 0 replaced and 7 kept; 0 of A are gone."), "{}", same.stdout);
    let stranger = files.file("stranger", dump(1, 71, &[of(20, STRING)]));
    let ended = run(&["decode", "rbkit", "--compare", &a, &stranger]);
    assert!(ended.stdout.contains("No id is in both"), "{}", ended.stdout);
    assert!(!by_file.stdout.contains("No id is in both"));
    let other = files.file("other", dump(1, 99, &after));
    let ended = run(&["decode", "rbkit", "--compare", &a, &other]);
    assert!(ended.stdout.contains("different processes (71 and 99)"), "{}", ended.stdout);
}

#[test]
fn files_may_be_rotated_compressed_and_incomplete() {
    let files = Files::new();
    let events = shop();
    let half = events[..events.len() / 2].rfind('\n').unwrap() + 1;
    let (old, new) = events.split_at(half);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(old.as_bytes()).unwrap();
    let old_gzip = files.file("events.1.ndjson.gz", gzip.finish().unwrap());
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    lz4.write_all(old.as_bytes()).unwrap();
    let old_lz4 = files.file("events.1.ndjson.lz4", lz4.finish().unwrap());
    let new = files.file("events.ndjson", new);
    for old in [&old_gzip, &old_lz4] {
        let ended = run(&["decode", "rbkit", "--as", "folded", old, &new]);
        assert_eq!((ended.code, &*ended.stdout), (Some(0), SHOP_CPU), "{old}: {}", ended.stderr);
    }
    // An incomplete line, as a full disk or a kill leaves it, one that is not an event, and one of another kind.
    let torn = format!(
        "{}\nnot json\n{}{}",
        &events[..half - 20],
        line("span", "x", json!({}), json!({}), 1),
        &events[half..]
    );
    let torn = files.file("torn", torn.trim_end());
    let ended = run(&["decode", "rbkit", "--as", "folded", &torn]);
    assert_eq!(ended.code, Some(0));
    let lines = old.lines().count();
    assert!(
        ended.stderr.contains(&format!("2 lines could not be read, the first of them line {lines}\n")),
        "{}",
        ended.stderr
    );
    assert_eq!(parse_folded(&ended.stdout).values().sum::<u64>(), 5);
    // Half a gzip file: the error names the file.
    let whole = fs::read(&old_gzip).unwrap();
    let half = files.file("half.gz", &whole[..whole.len() / 2]);
    let ended = run(&["decode", "rbkit", "--as", "folded", &half]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("half.gz"), "{}", ended.stderr);
}

#[test]
fn events_may_be_read_from_a_pipe() {
    let mut binary = Binary::start(tributary(&["decode", "rbkit", "--as", "folded"]));
    binary.take_stdin().write_all(shop().as_bytes()).unwrap();
    let ended = binary.end();
    assert_eq!((ended.code, &*ended.stdout), (Some(0), SHOP_CPU), "{}", ended.stderr);
}

#[test]
fn flags_that_cannot_be_combined_are_misuse() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let here = here.to_str().unwrap();
    for (arguments, words) in [
        (&["datadog", "--as", "heap"][..], "only rbkit has profiles"),
        (&["rbkit", "--sample", "cpu"], "--sample needs"),
        (&["rbkit", "--as", "heap", "--sample", "cpu"], "--sample needs"),
        (&["rbkit", "--as", "folded", "--dump", "1"], "--dump needs"),
        (&["rbkit", "--as", "heap", "--compare", "1", "2"], "cannot be used with"),
        (&["rbkit", "--compare", "1", "two", here], "numbers of dumps"),
        (&["rbkit", "--compare", "1", "2", "-"], "stdin cannot be read twice"),
    ] {
        let ended = run(&[&["decode"], arguments].concat());
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{arguments:?}");
        assert!(ended.stderr.contains(words), "{arguments:?}: {}", ended.stderr);
    }
    for form in ["folded", "flamegraph"] {
        let ended = profile(&["--as", form], &dump_end(1, 0, 1));
        assert_eq!((ended.code, &*ended.stderr), (Some(1), "tributary: no samples of cpu in the input\n"));
    }
}

#[test]
fn a_batch_and_its_event_file_have_the_same_items() {
    let origin = Origin::new("rbkit", "shop".into(), "127.0.0.1:5555".into(), 4);
    let mut builder = BatchBuilder::new(origin.into());
    builder.set_resource(Resource::new([("process.pid".to_owned(), ResourceValue::U64(71))]).into());
    let header = |name| Header::observed_at(name, UnixNanos(1), Position::default());
    let mut sample = |name, sample_type, value, with_site: bool| {
        let (function, file) = (builder.push_text("Cart#total \"\n"), builder.push_text("/app/größe.rb"));
        let frames = [
            Frame { function: Some(function), file: Some(file), line: Some(u64::MAX) },
            Frame { function: None, file: None, line: None },
        ];
        let mut event = builder.event(header(name));
        if with_site {
            event.text(names::CODE_FILE_PATH, "/a.rb");
            event.attribute(names::CODE_LINE_NUMBER, 3u64);
            event.text(names::RBKIT_CLASS_NAME, "String");
            event.attribute(names::RBKIT_OBJECT_SIZE, 40u64);
        }
        event.sample(
            SampleData { sample_type, unit: "count", value: Number::U64(value) },
            &frames[..usize::from(value > 1) + 1],
        );
    };
    sample(names::RBKIT_CPU, "cpu", 1, false);
    sample(names::RBKIT_ALLOCATIONS, "alloc_objects", u64::MAX, true);
    sample(names::RBKIT_CPU, "of another kind", 1, false);
    for is_known in [true, false] {
        let references = builder.array(&[u64::MAX.into(), 2u64.into()]);
        let mut event = builder.event(header(names::RBKIT_HEAP_OBJECT));
        event.attribute(names::RBKIT_OBJECT_ID, u64::MAX - 1);
        event.attribute(names::RBKIT_OBJECT_REFERENCES, references);
        event.attribute(names::RBKIT_DUMP_ID, 2u64);
        if is_known {
            event.text(names::RBKIT_CLASS_NAME, "\u{FFFD};");
            event.text(names::CODE_FILE_PATH, "");
            event.attribute(names::CODE_LINE_NUMBER, 7u64);
            event.attribute(names::RBKIT_OBJECT_SIZE, u64::MAX);
            event.attribute(names::RBKIT_DUMP_OBJECT_COUNT, 2u64);
        }
        event.log(Severity::Info, None);
    }
    let mut event = builder.event(header(names::RBKIT_HEAP_DUMP));
    event.attribute(names::RBKIT_DUMP_ID, 2u64);
    event.log(Severity::Info, None);
    builder.event(header(names::RBKIT_GC_START)).log(Severity::Info, None);
    let batch = builder.take();
    let of_batch: Vec<String> = events::items(&batch).map(|item| format!("{item:?}")).collect();
    assert_eq!(of_batch.len(), 5);
    assert!(of_batch[3].contains("references: 2") && of_batch[3].contains("pid: Some(71)"), "{}", of_batch[3]);

    let mut file = Vec::new();
    let mut encoder = Encoder::new(Format::Json);
    batch.events().for_each(|event| encoder.encode(event, &mut file));
    let file = EventFile::open(std::io::Cursor::new(file)).unwrap().unwrap_or_else(|_| panic!("no event file"));
    let mut of_file = Vec::new();
    let lines = file.read(|item| of_file.push(format!("{item:?}"))).unwrap();
    assert_eq!((of_file, lines), (of_batch, Lines { read: 7, skipped: 0, first_skipped: None }));
}
