//! A small input, and what is written of it.

use serde_json::{Value, json};

use super::*;
use crate::collected::Collected;
use crate::stacks::process_text;
use crate::{ProfileFrame, Site, firefox, perfetto};

const START: u64 = 1_795_446_890_000_000_000;
const MILLI: u64 = 1_000_000;

fn call(sequence: u32, function: &'static str, step: CallStep, millis: u32) -> ProfileItem<'static> {
    let at = Some(START + u64::from(millis) * MILLI);
    ProfileItem::Call(Call {
        agent: "java".into(),
        thread_id: 7,
        thread: Some("main".into()),
        function: function.into(),
        step,
        time: millis,
        sequence,
        at,
        ..Call::default()
    })
}

/// `main` is open at the end; `lost` has no exit; `a` calls `b` twice.
fn calls() -> Vec<ProfileItem<'static>> {
    use CallStep::{Break, Entry, Exit};
    vec![
        call(1, "cut", Entry, 0),
        call(2, "", Break, 0),
        call(3, "main", Entry, 1),
        call(5, "b", Entry, 2),
        call(4, "a", Entry, 2),
        call(6, "b", Exit, 5),
        call(7, "lost", Entry, 6),
        call(8, "b", Entry, 7),
        call(9, "b", Exit, 7),
        call(10, "a", Exit, 10),
    ]
}

fn span(id: u64, name: &'static str, start: Option<u64>, duration: Option<u64>) -> ProfileItem<'static> {
    ProfileItem::Span(ProfileSpan {
        agent: "shop".into(),
        trace: 1,
        id,
        parent: (id > 1).then_some(1),
        name: name.into(),
        detail: (id == 1).then(|| "GET /".into()),
        start: start.map(|start| START + start),
        duration,
        ..ProfileSpan::default()
    })
}

fn spans() -> Vec<ProfileItem<'static>> {
    vec![
        span(2, "sql", Some(1_500), Some(2_000)),
        span(1, "web", Some(1_000), Some(5_000)),
        span(3, "late", Some(3_000), Some(9_000)),
        span(4, "endless", Some(2_000), None),
        span(5, "timeless", None, Some(1)),
    ]
}

fn sample(frames: &[&'static str], value: u64, millis: Option<u64>) -> ProfileItem<'static> {
    let frame = |name: &&'static str| ProfileFrame { function: Some((*name).into()), site: Site::default() };
    let time = millis.map(|millis| START + millis * MILLI);
    let frames = frames.iter().rev().map(frame).collect();
    ProfileItem::Sample(ProfileSample { value, frames, agent: "ruby".into(), time, ..ProfileSample::default() })
}

fn samples() -> Vec<ProfileItem<'static>> {
    vec![sample(&["a", "b"], 2, Some(3)), sample(&["a"], 1, Some(1)), sample(&["a", "b"], 1, None)]
}

fn collected(items: Vec<ProfileItem<'static>>) -> Collected {
    let mut collected = Collected::with_times(true);
    items.iter().for_each(|item| collected.add(item));
    collected.finish();
    collected
}

fn written(
    collected: &Collected,
    counted: Counted,
    write: impl Fn(&ShownTimeline<'_>, &str, &mut Vec<u8>) -> std::io::Result<()>,
) -> (Value, String) {
    let mut out = Vec::new();
    write(&collected.timeline().unwrap().shown(|_| true, counted), "title", &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    (serde_json::from_str(&text).unwrap(), text)
}

/// The events without their arguments: `phase name time duration lane`.
fn events(document: &Value) -> Vec<String> {
    let events = document["traceEvents"].as_array().unwrap().iter();
    let text = |event: &Value| {
        let name = match event["ph"].as_str() {
            Some("M") => format!("{}={}", event["name"].as_str().unwrap(), event["args"]["name"].as_str().unwrap()),
            _ => event["name"].as_str().unwrap().to_owned(),
        };
        let dur = event.get("dur").map_or_else(String::new, |dur| format!("+{dur}"));
        format!("{} {name} {}{dur} {}.{}", event["ph"].as_str().unwrap(), event["ts"], event["pid"], event["tid"])
    };
    events.map(text).collect()
}

/// The values of the column of a table, in the order of rows.
fn column(table: &Value, name: &str) -> Vec<Value> {
    let values = table[name].as_array().unwrap().clone();
    assert_eq!(Some(values.len() as u64), table["length"].as_u64(), "{name}");
    values
}

/// The samples of a Firefox profile as `root;…;innermost value`, sorted and added up.
fn folded_samples(profile: &Value) -> Vec<(String, f64)> {
    let shared = &profile["shared"];
    let (frames, offsets) = (column(&shared["stackTable"], "frame"), column(&shared["stackTable"], "prefixOffset"));
    let (functions, names) = (column(&shared["frameTable"], "func"), column(&shared["funcTable"], "name"));
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let mut sums: std::collections::BTreeMap<String, f64> = std::collections::BTreeMap::new();
    for thread in profile["threads"].as_array().unwrap() {
        let samples = &thread["samples"];
        let mut last = 0.0;
        for ((stack, weight), time) in
            column(samples, "stack").iter().zip(column(samples, "weight")).zip(column(samples, "time"))
        {
            assert!(time.as_f64().unwrap() >= last, "samples are in the order of time");
            last = time.as_f64().unwrap();
            let Some(mut at) = stack.as_u64().map(|at| at as usize) else { continue };
            let mut path = Vec::new();
            loop {
                let name = &shared["stringArray"][number(&names[number(&functions[number(&frames[at])])])];
                path.push(name.as_str().unwrap());
                match number(&offsets[at]) {
                    0 => break,
                    back => at -= back,
                }
            }
            path.reverse();
            *sums.entry(path.join(";")).or_default() += weight.as_f64().unwrap();
        }
    }
    sums.into_iter().collect()
}

fn folded(collected: &Collected, counted: Counted, divisor: u64) -> Vec<(String, f64)> {
    let source = *collected.sources().first().unwrap();
    let mut out = Vec::new();
    let stacks = collected.stacks(source).unwrap().merged(|_| true, false, false);
    stacks.write_folded(counted.column(), 1, None, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let rows = text.lines().map(|line| line.rsplit_once(' ').unwrap());
    let mut rows: Vec<_> =
        rows.map(|(path, value)| (path.to_owned(), value.parse::<f64>().unwrap() / divisor as f64)).collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows
}

#[test]
fn calls_begin_and_end_as_they_were_nested() {
    let collected = collected(calls());
    let (document, text) = written(&collected, Counted::Wall, perfetto::write);
    assert_eq!(
        events(&document),
        [
            "M process_name=java 0.0 1.0",
            "M thread_name=main 0.0 1.1",
            "i cut 0.0 1.1",
            "B main 1000.0 1.1",
            "B a 2000.0 1.1",
            "B b 2000.0 1.1",
            "E b 5000.0 1.1",
            "i lost 6000.0 1.1",
            "B b 7000.0 1.1",
            "E b 7000.0 1.1",
            "E a 10000.0 1.1",
        ]
    );
    assert_eq!(document["traceEvents"][2]["args"], json!({"end": "unknown"}));
    assert_eq!(document["traceEvents"][3]["args"], json!({"end": "after the end of the input"}));
    assert_eq!(document["otherData"]["start_unix_ns"], START.to_string());
    assert_eq!(text, written(&collected, Counted::Wall, perfetto::write).1);
    let words = collected.timeline().unwrap().shown(|_| true, Counted::Wall).words();
    assert_eq!(words, ["6 calls", "2 calls without an exit: instants", "1 call open at the end of the input"]);
}

#[test]
fn samples_of_calls_add_up_to_their_self_times() {
    let collected = collected(calls());
    let (profile, _) = written(&collected, Counted::Wall, firefox::write);
    assert_eq!(folded_samples(&profile), [("main;a".to_owned(), 5.0), ("main;a;b".to_owned(), 3.0)]);
    assert_eq!(folded_samples(&profile), folded(&collected, Counted::Wall, MILLI));
    let thread = &profile["threads"][0];
    assert_eq!((&thread["name"], &thread["processName"]), (&json!("main"), &json!("java")));
    assert_eq!(column(&thread["samples"], "time"), [2.0, 5.0, 7.0, 10.0]);
    assert_eq!(column(&thread["samples"], "stack"), [json!(3), json!(2), json!(2), json!(null)]);
    assert_eq!(thread["samples"]["weightType"], "tracing-ms");
    // The calls without an exit, and the open one.
    assert_eq!(column(&thread["markers"], "phase"), [0, 2, 0]);
    assert_eq!(profile["meta"]["startTime"].as_f64(), Some(START as f64 / 1e6));
}

#[test]
fn spans_that_overlap_are_on_several_lanes() {
    let collected = collected(spans());
    let (document, _) = written(&collected, Counted::Wall, perfetto::write);
    assert_eq!(
        events(&document),
        [
            "M process_name=shop 0.0 1.0",
            "M thread_name=(thread without a name) 0.0 1.1",
            "X web 0.0+5.0 1.1",
            "X sql 0.5+2.0 1.1",
            "i endless 1.0 1.1",
            "M thread_name=(thread without a name) (lane 2) 0.0 1.2",
            "X late 2.0+9.0 1.2",
        ]
    );
    let web = &document["traceEvents"][2]["args"];
    assert_eq!(web, &json!({"detail": "GET /", "trace_id": format!("{:032x}", 1), "span_id": format!("{:016x}", 1)}));
    assert_eq!(document["otherData"]["left out without a time"], 1);
    let words = collected.timeline().unwrap().shown(|_| true, Counted::Wall).words();
    assert_eq!(words, ["4 spans", "1 span without an end: instants", "1 item left out: without a time"]);
}

#[test]
fn spans_are_markers_with_their_fields() {
    let (profile, _) = written(&collected(spans()), Counted::Wall, firefox::write);
    let markers = &profile["threads"][0]["markers"];
    let names: Vec<_> = column(markers, "name")
        .iter()
        .map(|name| profile["shared"]["stringArray"][name.as_u64().unwrap() as usize].clone())
        .collect();
    assert_eq!(names, ["web", "sql", "endless", "late"]);
    assert_eq!(column(markers, "startTime"), [0.0, 0.0005, 0.001, 0.002]);
    assert_eq!(column(markers, "endTime"), [json!(0.005), json!(0.0025), json!(null), json!(0.011)]);
    assert_eq!(column(markers, "phase"), [1, 1, 0, 1]);
    let data = column(markers, "data");
    assert_eq!((&data[0]["type"], &data[0]["detail"]), (&json!("span"), &json!("GET /")));
    assert_eq!((&data[2]["end"], data[0].get("end")), (&json!("unknown"), None));
    assert_eq!(
        profile["meta"]["extra"][0]["entries"][0],
        json!({"label": "Items without a time", "format": "integer", "value": 1})
    );
}

#[test]
fn samples_have_their_times_and_weights() {
    let collected = collected(samples());
    let (profile, _) = written(&collected, Counted::Cpu, firefox::write);
    assert_eq!(folded_samples(&profile), [("a".to_owned(), 1.0), ("a;b".to_owned(), 2.0)]);
    let samples = &profile["threads"][0]["samples"];
    assert_eq!((column(samples, "time"), &samples["weightType"]), (vec![json!(0.0), json!(2.0)], &json!("samples")));
    let (document, _) = written(&collected, Counted::Cpu, perfetto::write);
    assert_eq!(events(&document)[2..], ["i a 0.0 1.1", "i b 2000.0 1.1"]);
    assert_eq!(document["traceEvents"][3]["args"], json!({"stack": "a;b", "type": "cpu", "value": 2, "unit": "count"}));
    assert!(collected.timeline().unwrap().shown(|_| true, Counted::Calls).is_empty());
}

#[test]
fn processes_have_their_threads_and_can_be_chosen() {
    let collected = collected([calls(), spans(), samples()].concat());
    let timeline = collected.timeline().unwrap();
    let shown = timeline.shown(|process| process == process_text("java"), Counted::Cpu);
    let mut out = Vec::new();
    firefox::write(&shown, "title", &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("\"java\"") && !text.contains("shop") && !text.contains("sql"), "{text}");
    let (document, _) = written(&collected, Counted::Cpu, perfetto::write);
    let names = events(&document);
    let processes: Vec<_> = names.iter().filter(|name| name.starts_with("M process_name")).collect();
    assert_eq!(processes.len(), 3, "{names:?}");
}

#[test]
fn more_spans_at_once_than_lanes_are_asynchronous_and_take_linear_time() {
    let count = 100_000;
    let of = |id: u64| span(id, "s", Some(id), Some(1 << 40));
    let (document, _) = written(&collected((1..=count).map(of).collect()), Counted::Wall, perfetto::write);
    let phases = |phase: &str| {
        let events = document["traceEvents"].as_array().unwrap().iter();
        events.filter(|event| event["ph"] == phase).count() as u64
    };
    assert_eq!((phases("X"), phases("b"), phases("e")), (64, count - 64, count - 64));
}

#[test]
fn items_beyond_the_limit_are_counted() {
    let mut timeline = Timeline::bounded(0);
    (1..=100).for_each(|id| timeline.add(&span(id, "s", Some(id), Some(1))));
    calls().iter().for_each(|call| timeline.add(call));
    timeline.finish();
    let words = timeline.shown(|_| true, Counted::Wall).words();
    assert_eq!(words, ["64 spans", "42 items left out: over the limit"]);
}
