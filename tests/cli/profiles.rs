//! `decode --as`: profiles of calls and spans, in every form, against other readers of the formats.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::live::binary::{Ended, run, tributary};

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

/// The files of a recorded Bytefrog run: its control connection, then its data connections.
pub(crate) fn run_files(name: &str) -> Vec<String> {
    let folder = data("bytefrog").join(name);
    let mut files: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().path().display().to_string())
        .filter(|file| file.ends_with(".agent.bin"))
        .collect();
    // `control` is before `data`.
    files.sort();
    files
}

/// Recorded Bytefrog runs whose control connection begins with a hello.
fn runs() -> Vec<String> {
    let entries = fs::read_dir(data("bytefrog")).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    let names = folders.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with("bad-") && run_files(name).len() > 1).collect();
    names.sort();
    names
}

pub(crate) fn decode(protocol: &str, arguments: &[&str], files: &[String]) -> Ended {
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    run(&[&["decode", protocol], arguments, &files].concat())
}

/// The sum of folded stacks.
fn sum(folded: &str) -> u64 {
    folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// Whether the numbers of a run are not in one sequence. An entry that arrives after its turn is part of no span; a profile
/// counts it. Events do not show the order of numbers that are half of all numbers apart.
fn is_out_of_sequence(name: &str) -> bool {
    name.contains("synthetic") || name == "edge-v1-sequence-wrap"
}

#[test]
fn spans_entries_and_the_profile_of_a_recorded_run_have_the_same_stacks() {
    let folder = tempfile::tempdir().unwrap();
    let events = folder.path().join("events.ndjson");
    let mut compared = 0;
    for name in runs() {
        let files = run_files(&name);
        fs::write(&events, decode("bytefrog", &[], &files).stdout).unwrap();
        let events = [events.display().to_string()];
        for quantity in ["wall", "calls"] {
            let arguments = ["--as", "folded", "--sample", quantity];
            let spans = decode("bytefrog", &arguments, &files);
            compared += u64::from(sum(&spans.stdout) > 0);
            if is_out_of_sequence(&name) && quantity == "calls" {
                continue;
            }
            let profile = decode("bytefrog", &[&["-o", "calls=profile"], &arguments[..]].concat(), &files);
            assert_eq!(profile.stdout, spans.stdout, "{name}, {quantity}");
            if !is_out_of_sequence(&name) {
                let entries = decode("bytefrog", &arguments, &events);
                assert_eq!(entries.stdout, spans.stdout, "{name}, {quantity}: {}", entries.stderr);
            }
        }
    }
    assert!(compared >= 20, "{compared}");
}

#[test]
fn spans_of_other_protocols_have_profiles_too() {
    let zico = [data("zico/doc-be/bodies/0004-trc.bin").display().to_string()];
    let ended = decode("zico", &["--as", "folded"], &zico);
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "method#1 3277\nmethod#1;method#2 3277\n"), "{}", ended.stderr);
    assert!(ended.stderr.contains("3 spans, 6.553 ms of self time; values are microseconds\n"), "{}", ended.stderr);
    let datadog = [data("datadog/many-spans/wire.bin").display().to_string()];
    let ended = decode("datadog", &["--as", "top"], &datadog);
    assert!(ended.stdout.lines().nth(1).unwrap().ends_with("  web.request GET /"), "{}", ended.stdout);
    let rows: Vec<&str> = ended.stdout.lines().nth(1).unwrap().split_whitespace().collect();
    assert!(rows.contains(&"135.150") && rows.contains(&"200"), "{rows:?}");
    let ended = run(&["decode", "endless", "--as", "top"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("endless has no profiles"), "{}", ended.stderr);
}

/// Event files of two processes, each with one span and calls of its own.
fn two_processes() -> String {
    let span = |service: &str, pid: u64, duration: u64| {
        json!({
            "time": "2026-11-20T12:15:00.500000000Z", "observed_time": "2026-11-20T12:15:00.600000000Z",
            "kind": "span", "name": "serve",
            "span": {
                "trace_id": format!("{pid:032x}"), "span_id": "00000000000000a1", "duration_ns": duration, "status": "unset",
            },
            "attributes": {}, "resource": {"service.name": service, "process.pid": pid, "host.name": "web-1"},
            "origin": {
                "protocol": "datadog", "listener": "shop", "peer": "10.0.0.1:4000", "connection": 1, "offset": 0, "length": 9,
            },
        })
    };
    format!("{}\n{}\n", span("shop", 7, 3_000_000), span("billing", 8, 5_000_000))
}

#[test]
fn processes_are_distinguished_and_one_can_be_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let file = [folder.path().join("events.ndjson").display().to_string()];
    fs::write(&file[0], two_processes()).unwrap();
    let ended = decode("datadog", &["--as", "folded"], &file);
    assert_eq!(ended.stdout, "billing (pid 8, web-1);serve 5000\nshop (pid 7, web-1);serve 3000\n");
    for line in ["  shop (pid 7, web-1): 1 span\n", "  --agent NAME shows one of these processes\n"] {
        assert!(ended.stderr.contains(line), "{}", ended.stderr);
    }
    let one = decode("datadog", &["--as", "folded", "--agent", "shop"], &file);
    assert_eq!((&*one.stdout, one.code), ("serve 3000\n", Some(0)));
    let none = decode("datadog", &["--as", "folded", "--agent", "nothing"], &file);
    assert_eq!(none.code, Some(1));
    assert!(none.stderr.contains("there is shop (pid 7, web-1)\n"), "{}", none.stderr);
    let svg = decode("datadog", &["--as", "flamegraph", "--agent", "shop"], &file).stdout;
    let title = "shop (pid 7, web-1): 1 span, 3.000 ms, wall-clock time, 2026-11-20 12:15:00 UTC, 0.003 s";
    assert!(svg.contains(title), "no title {title:?}");
    assert!(svg.contains("truncate_text_right = true"), "names lose their beginnings");
    let unused = decode("datadog", &["--agent", "shop"], &file);
    assert!(unused.code == Some(2) && unused.stderr.contains("--agent needs --as"), "{}", unused.stderr);
}

/// Writes a profile of a recorded run into a file.
fn profile_file(folder: &Path, form: &str) -> PathBuf {
    let files = run_files("v1-orig-mix");
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let output = tributary(&[&["decode", "bytefrog", "--as", form], &files[..]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = folder.join(form);
    fs::write(&path, output.stdout).unwrap();
    path
}

#[test]
fn pprof_of_go_reads_the_same_sums() {
    let folder = tempfile::tempdir().unwrap();
    let path = profile_file(folder.path(), "pprof");
    if Command::new("go").arg("version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: reading by `go tool pprof`, because Go is not installed");
        return;
    }
    for (index, total) in [("wall", "Total samples = 28ms"), ("calls", "Total samples = 572")] {
        let index = format!("-sample_index={index}");
        let output = Command::new("go").args(["tool", "pprof", "-top", &index]).arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(total) && text.contains("demo.Tracee.main"), "{text}");
        assert!(text.contains("decode:0: 572 spans, 28.000 ms"), "{text}");
    }
    let output = Command::new("go").args(["tool", "pprof", "-tags"]).arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("tracee-1") && text.contains("process: Total"), "{text}");
}

/// Checks the rules of the schema and those that the reader adds: frames exist, times ascend, every call that opens is closed.
#[test]
fn speedscope_files_are_evented_profiles_of_each_thread() {
    let folder = tempfile::tempdir().unwrap();
    let path = profile_file(folder.path(), "speedscope");
    let document: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(document["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let frames = document["shared"]["frames"].as_array().unwrap();
    assert!(frames.iter().all(|frame| frame["name"].is_string()));
    let mut total = 0;
    for profile in document["profiles"].as_array().unwrap() {
        assert_eq!((&profile["type"], &profile["unit"]), (&json!("evented"), &json!("nanoseconds")));
        let (mut open, mut last) = (Vec::new(), 0);
        for event in profile["events"].as_array().unwrap() {
            let (frame, at) = (event["frame"].as_u64().unwrap(), event["at"].as_u64().unwrap());
            assert!((frame as usize) < frames.len() && at >= last);
            last = at;
            match event["type"].as_str().unwrap() {
                "O" => open.push(frame),
                _ => assert_eq!(open.pop(), Some(frame)),
            }
        }
        assert!(open.is_empty());
        assert_eq!(profile["endValue"].as_u64(), Some(last));
        total += last;
    }
    assert_eq!(total, 28_000_000);
    let names: Vec<&str> =
        document["profiles"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"main") && names.contains(&"tracee-1"), "{names:?}");
}

/// The events of the calls of a recorded run.
fn calls_file(folder: &Path) -> [String; 1] {
    let path = folder.join("events.ndjson");
    fs::write(&path, decode("bytefrog", &[], &run_files("v1-orig-mix")).stdout).unwrap();
    [path.display().to_string()]
}

fn column<'a>(table: &'a Value, name: &str) -> &'a [Value] {
    let values = table[name].as_array().unwrap();
    assert_eq!(table["length"].as_u64(), Some(values.len() as u64), "{name}");
    values
}

/// A file has each call of each thread, and its self times are those of the other forms.
#[test]
fn timelines_have_every_call_and_the_same_sums() {
    let folder = tempfile::tempdir().unwrap();
    let file = calls_file(folder.path());
    for files in [&file[..], &run_files("v1-orig-mix")] {
        let ended = decode("bytefrog", &["--as", "perfetto"], files);
        assert!(ended.code == Some(0) && ended.stderr.contains("572 calls\n"), "{}", ended.stderr);
        let document: Value = serde_json::from_str(&ended.stdout).unwrap();
        let events = document["traceEvents"].as_array().unwrap();
        let (mut open, mut calls) = (std::collections::BTreeMap::<u64, Vec<(&str, f64)>>::new(), 0);
        for event in events.iter().filter(|event| event["ph"] != "M") {
            let (name, at) = (event["name"].as_str().unwrap(), event["ts"].as_f64().unwrap());
            let thread = open.entry(event["tid"].as_u64().unwrap()).or_default();
            match event["ph"].as_str().unwrap() {
                "B" => thread.push((name, at)),
                _ => {
                    let (begun, start) = thread.pop().unwrap();
                    assert!(begun == name && start <= at, "{name}");
                    calls += 1;
                }
            }
        }
        assert!(calls == 572 && open.values().all(Vec::is_empty), "{calls}");

        let ended = decode("bytefrog", &["--as", "firefox"], files);
        let profile: Value = serde_json::from_str(&ended.stdout).unwrap();
        let threads = profile["threads"].as_array().unwrap();
        let weights = threads.iter().flat_map(|thread| column(&thread["samples"], "weight"));
        assert_eq!(weights.map(|weight| weight.as_f64().unwrap()).sum::<f64>(), 28.0);
        let names: Vec<&str> = threads.iter().map(|thread| thread["name"].as_str().unwrap()).collect();
        assert!(names.contains(&"main") && names.contains(&"tracee-1"), "{names:?}");
        let names = column(&profile["shared"]["funcTable"], "name").iter();
        let texts = names.map(|name| &profile["shared"]["stringArray"][name.as_u64().unwrap() as usize]);
        assert!(texts.filter(|text| *text == "demo.Tracee.main").count() == 1);
    }
}

#[test]
fn spans_and_allocations_have_timelines_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = [folder.path().join("spans.ndjson").display().to_string()];
    fs::write(&file[0], two_processes()).unwrap();
    let ended = decode("datadog", &["--as", "firefox", "--agent", "shop"], &file);
    assert_eq!((ended.code, &*ended.stderr), (Some(0), "1 span\n"));
    let profile: Value = serde_json::from_str(&ended.stdout).unwrap();
    let threads = profile["threads"].as_array().unwrap();
    assert_eq!((threads.len(), &threads[0]["processName"]), (1, &json!("shop (pid 7, web-1)")));
    assert_eq!(column(&threads[0]["markers"], "endTime"), [json!(3.0)]);
    assert_eq!(profile["meta"]["startTime"].as_f64(), Some(1_795_176_900_500.0));
    let ended = decode("datadog", &["--as", "perfetto"], &file);
    assert!(
        ended.stdout.contains("\"ph\":\"X\"") && ended.stdout.contains("billing (pid 8, web-1)"),
        "{}",
        ended.stdout
    );
    let none = decode("datadog", &["--as", "perfetto", "--sample", "cpu"], &file);
    assert!(none.code == Some(1) && none.stdout.is_empty(), "{}", none.stdout);
}

#[test]
fn a_function_is_shown_between_its_callers_and_callees() {
    let folder = tempfile::tempdir().unwrap();
    let file = calls_file(folder.path());
    let ended = decode("bytefrog", &["--as", "tree", "--function", "Tracee$Worker.run"], &file);
    let rows: Vec<Vec<&str>> = ended.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["total", "share", "self", "calls", "call"], "{}", ended.stderr);
    assert_eq!(rows[1], ["15.000", "ms", "53.6%", "4.000", "ms", "4", "demo.Tracee$Worker.run"], "{}", ended.stdout);
    assert!(rows[2..].iter().any(|row| row.last() == Some(&"demo.Tracee$Worker.work")), "{}", ended.stdout);
    for (name, why) in [("Worker", "several functions have \"Worker\""), ("nothing", "no function \"nothing\"")] {
        let ended = decode("bytefrog", &["--as", "tree", "--function", name], &file);
        assert!(ended.code == Some(1) && ended.stderr.contains(why), "{}", ended.stderr);
    }
    let unused = decode("bytefrog", &["--as", "top", "--function", "main"], &file);
    assert!(unused.code == Some(2) && unused.stderr.contains("--function needs --as tree"), "{}", unused.stderr);
}
