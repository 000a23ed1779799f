//! Profiles of event files and recordings: folded stacks and flame graphs. The expected values
//! are counted by hand, or by the test from the independent decodes of the recordings.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use crate::live::binary::{Binary, run, tributary};
use crate::rbkit_support::profiles::{
    Files, cpu, dump, dump_end, expected, frame, line, profile, shop, shown, shown_of_recording,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tributary::event::{
    BatchBuilder, Frame, Header, Number, Origin, Position, Resource, ResourceValue, SampleData, Severity, UnixNanos,
    semconv as names,
};
use tributary::profile::events;
use tributary::sink::encode::{Encoder, Format};
use tributary::stored::event_file::{EventFile, LineCounts};

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
    assert!(svg.starts_with("<?xml") && svg.contains("<svg"));
    let title = "shop.rb (pid 71, 127.0.0.1:5555): 6 samples of cpu, 2015-07-04 12:15:00 UTC, 0.000 s";
    assert!(svg.contains(title), "no title {title:?}");
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
    assert!(objects.contains("String (9 objects, 75.00%)") && objects.contains("4 samples of allocations, 12 objects"));
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
        line("metric", "x", json!({}), json!({}), 1),
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
        (&["datadog", "--as", "heap"][..], "only rbkit has heap dumps"),
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
        event.sample(SampleData::new(sample_type, "count", Number::U64(value)), &frames[..usize::from(value > 1) + 1]);
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
    let lines = file.read(events::is_wanted, &mut |batch, _, _| {
        of_file.extend(events::items(&batch).map(|item| format!("{item:?}")));
        true
    });
    let lines = lines.unwrap();
    assert_eq!((of_file, lines), (of_batch, LineCounts { read: 7, skipped: 0, first_skipped: None }));
}
