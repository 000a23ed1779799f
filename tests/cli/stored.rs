//! `decode events` and `decode parquet`: stored events read again, filtered, and as profiles.

use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tributary::capture::{CaptureHead, put_bytes, put_end};
use tributary::event::{Batch, UnixNanos};
use tributary::protocol::{End, Protocol};
use tributary::sink::encode::{Encoder, Format, LineFields};
use tributary::stored::{Rebuilder, json};

use crate::live::binary::{Ended, run};

fn data(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path).display().to_string()
}

/// The events of a recorded conversation of Java, as `decode` prints them.
fn recorded() -> String {
    let [control, data] =
        ["control.agent.bin", "data-0.agent.bin"].map(|name| data(&format!("bytefrog/v2-release-mix/{name}")));
    let spans = run(&["decode", "bytefrog", "--option", "calls=spans", &control, &data]);
    let datadog = run(&["decode", "datadog", &self::data("datadog/duplicate-keys/wire.bin")]);
    spans.stdout + &datadog.stdout
}

/// A file of these lines, in a directory of its own.
fn stored(name: &str, content: &[u8]) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join(name);
    fs::write(&path, content).unwrap();
    (directory, path.display().to_string())
}

fn events(arguments: &[&str]) -> Ended {
    let ended = run(&[&["decode", "events"], arguments].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended
}

#[test]
fn event_files_are_printed_as_they_are_plain_and_compressed() {
    let lines = recorded();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(lines.as_bytes()).unwrap();
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    lz4.write_all(lines.as_bytes()).unwrap();
    let zstd = zstd::encode_all(lines.as_bytes(), 3).unwrap();
    for (name, content) in [
        ("x.ndjson", lines.clone().into_bytes()),
        ("x.ndjson.gz", gzip.finish().unwrap()),
        ("x.ndjson.lz4", lz4.finish().unwrap()),
        ("x.ndjson.zst", zstd),
    ] {
        let (_directory, path) = stored(name, &content);
        let ended = events(&[&path]);
        assert!(ended.stdout == lines, "{name}");
        assert!(ended.stderr.is_empty(), "{}", ended.stderr);
    }
}

#[test]
fn files_of_several_compressed_parts_are_read_to_their_end() {
    let lines = recorded();
    let (first, second) = lines.split_at(lines.find('\n').unwrap() + 1);
    let lz4 = |text: &str| {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = |text: &str| zstd::encode_all(text.as_bytes(), 3).unwrap();
    // A frame without content: a magic number, and the length of what is skipped.
    let skipped = [&[0x53, 0x2A, 0x4D, 0x18][..], &300_u32.to_le_bytes(), &[b'{'; 300]].concat();
    for (name, parts) in [
        ("lz4", vec![lz4(first), lz4(second)]),
        (
            "lz4 with skipped frames",
            vec![skipped.clone(), lz4(first), skipped.clone(), lz4(""), lz4(second), skipped.clone()],
        ),
        ("gzip", vec![gzip(first), gzip(second)]),
        ("zstd", vec![zstd(first), zstd(second)]),
        (
            "zstd with skipped frames",
            vec![skipped.clone(), zstd(first), skipped.clone(), zstd(second), skipped.clone()],
        ),
    ] {
        let (_directory, path) = stored("x", &parts.concat());
        let ended = events(&[&path]);
        assert!(ended.stdout == lines, "{name}: {}", ended.stderr);
        assert!(ended.stderr.is_empty(), "{name}: {}", ended.stderr);
        let (_directory, path) = stored("x", &[parts.concat(), b"\x01 no frame".to_vec()].concat());
        let ended = run(&["decode", "events", &path]);
        assert!(ended.stdout == lines, "{name}");
        assert!(ended.code == Some(1) && ended.stderr.contains(&path), "{name}: {}", ended.stderr);
    }
}

#[test]
fn a_first_line_that_is_no_event_is_skipped_and_counted() {
    let lines = recorded();
    let (first, second) = lines.split_at(lines.find('\n').unwrap() + 1);
    let zeros = "\0".repeat(70_000);
    for before in [
        "\0\0\0\n",
        &format!("{zeros}\n"),
        &format!("\u{feff}{first}"),
        &format!("Nov 27 12:00:00 host tributary[7]: {first}"),
        &format!("2026-11-27T12:00:00.000000000Z stdout F {first}"),
        "\n",
    ] {
        let rest = if before.contains(first) { second } else { &lines };
        let (_directory, path) = stored("x", format!("{before}{rest}").as_bytes());
        let ended = events(&[&path]);
        assert!(ended.stdout == rest, "{before:.20}");
        let said = "1 line could not be read, the first of them line 1";
        assert!(ended.stderr.contains(said), "{before:.20}: {}", ended.stderr);
    }
    let (_directory, path) = stored("x", b"");
    assert!(events(&[&path]).stdout.is_empty());
}

#[test]
fn an_output_that_takes_nothing_is_named_and_not_the_file() {
    let (_directory, path) = stored("x.ndjson", recorded().as_bytes());
    let wire = data("datadog/duplicate-keys/wire.bin");
    let [control, bytes] =
        ["control.agent.bin", "data-0.agent.bin"].map(|name| data(&format!("bytefrog/v2-release-mix/{name}")));
    for arguments in [
        &["decode", "events", &path][..],
        &["decode", "events", "--as", "top", &path],
        &["decode", "datadog", &wire],
        &["decode", "datadog", "--explain", &wire],
        &["decode", "bytefrog", &control, &bytes],
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tributary"));
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command.args(arguments).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        let said = "tributary: cannot write to standard output: No space left on device";
        assert!(stderr.lines().any(|line| line.starts_with(said)), "{arguments:?}: {stderr}");
    }
}

/// Files of JSON lines with the same events, as a sink with `fields = "compact"` writes them.
fn compact(lines: &str) -> String {
    let (mut rebuilder, mut batches) = (Rebuilder::default(), Vec::new());
    for line in lines.lines() {
        json::read(line.as_bytes(), &mut rebuilder).unwrap();
        if rebuilder.is_full() {
            batches.push(rebuilder.take());
        }
    }
    batches.push(rebuilder.take());
    let mut encoder = Encoder::new(Format::Json).with_fields(LineFields::Compact);
    let (mut out, mut defined) = (Vec::new(), HashSet::new());
    for event in batches.iter().flat_map(Batch::events) {
        if let Some(source) = encoder.source(event)
            && defined.insert(source.id().to_owned())
        {
            out.extend_from_slice(source.line());
        }
        encoder.encode(event, &mut out);
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn compact_files_are_read_like_full_ones() {
    let lines = recorded();
    let short = compact(&lines);
    assert!(short.len() < lines.len() * 3 / 4, "{} bytes instead of {}", short.len(), lines.len());
    let (_directory, full) = stored("full.ndjson", lines.as_bytes());
    let (_directory, short_file) = stored("short.ndjson", short.as_bytes());
    let first = lines.lines().next().unwrap();
    let time = serde_json::from_str::<Value>(first).unwrap()["observed_time"].as_str().unwrap().to_owned();
    for arguments in [
        &[][..],
        &["--where", "kind=span"],
        &["--where", "listener=decode", "--where", "protocol=datadog"],
        &["--since", &time],
        &["--until", &time],
        &["--format", "text"],
        &["--as", "folded", "--sample", "calls", "--where", "protocol=bytefrog"],
    ] {
        let [of_full, of_short] = [&full, &short_file].map(|path| events(&[arguments, &[path.as_str()]].concat()));
        assert!(of_full.stdout == of_short.stdout, "{arguments:?}");
        assert_eq!(of_short.stderr, of_full.stderr, "{arguments:?}");
    }
    assert!(events(&[&short_file]).stdout == lines);
    // The reader of profiles, which decodes only what it needs.
    let [of_full, of_short] = [&full, &short_file]
        .map(|path| run(&["decode", "bytefrog", "--as", "folded", "--sample", "calls", path.as_str()]));
    assert!(!of_full.stdout.is_empty());
    assert_eq!((of_short.stdout, of_short.stderr), (of_full.stdout, of_full.stderr));
}

#[test]
fn events_of_a_compact_file_without_its_start_are_left_out_until_their_source_is_defined() {
    let lines = recorded();
    let short = compact(&lines);
    let (definition, rest) = short.split_once('\n').unwrap();
    assert!(definition.starts_with("{\"source\":"), "{definition}");
    let (_directory, path) = stored("x", format!("{rest}{short}").as_bytes());
    let ended = events(&[&path]);
    assert!(ended.stdout.ends_with(&lines) && ended.stdout.len() < 2 * lines.len());
    assert!(ended.stderr.contains("could not be read, the first of them line 1"), "{}", ended.stderr);
}

#[test]
fn lines_that_are_no_events_are_counted_and_left_out() {
    let lines = recorded();
    let (_directory, path) = stored("x", format!("{lines}{{\"time\":null}}\nnothing\n{lines}{{\"torn").as_bytes());
    let ended = events(&[&path]);
    assert!(ended.stdout == lines.repeat(2));
    let number = lines.lines().count() + 1;
    assert!(
        ended.stderr.contains(&format!("3 lines could not be read, the first of them line {number}")),
        "{}",
        ended.stderr
    );
    let (_directory, path) = stored("x", b"not events at all");
    let ended = run(&["decode", "events", &path]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("neither JSON lines nor JSON lines compressed"), "{}", ended.stderr);
}

#[test]
fn conditions_and_times_choose_events() {
    let lines = recorded();
    let (_directory, path) = stored("x", lines.as_bytes());
    let all: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expect = |arguments: &[&str], is_wanted: &dyn Fn(&Value) -> bool| {
        let found = events(&[arguments, &[&path]].concat()).events();
        let expected: Vec<_> = all.iter().filter(|event| is_wanted(event)).cloned().collect();
        assert!(!expected.is_empty() && expected.len() < all.len(), "{arguments:?} chooses {} events", expected.len());
        assert_eq!(found, expected, "{arguments:?}");
    };
    expect(&["--where", "kind=span"], &|event| event["kind"] == "span");
    expect(&["--where", "protocol=datadog"], &|event| event["origin"]["protocol"] == "datadog");
    expect(&["--where", "kind=span", "--where", "protocol=bytefrog"], &|event| {
        event["kind"] == "span" && event["origin"]["protocol"] == "bytefrog"
    });
    expect(
        &["--where", "name=bytefrog.*", "--where", "attribute=bytefrog.time.relative_ms", "--where", "min=1"],
        &|event| {
            event["name"].as_str().unwrap().starts_with("bytefrog.")
                && event["attributes"]["bytefrog.time.relative_ms"].as_u64().is_some_and(|ms| ms >= 1)
        },
    );
    let time = |event: &Value| {
        let time = event["time"].as_str().or(event["observed_time"].as_str()).unwrap();
        time.parse::<jiff::Timestamp>().unwrap()
    };
    let mut times: Vec<_> = all.iter().map(time).collect();
    times.sort();
    let middle = times[times.len() / 2].to_string();
    let at: jiff::Timestamp = middle.parse().unwrap();
    expect(&["--since", &middle], &|event| time(event) >= at);
    expect(&["--until", &middle], &|event| time(event) < at);
    assert!(events(&["--since", "-1s", "--until", "-1h", &path]).stdout.is_empty());
}

#[test]
fn profiles_of_stored_events_are_those_of_the_bytes() {
    let lines = recorded();
    let (_directory, path) = stored("x", lines.as_bytes());
    let [control, data] =
        ["control.agent.bin", "data-0.agent.bin"].map(|name| data(&format!("bytefrog/v2-release-mix/{name}")));
    let of_bytes = run(&["decode", "bytefrog", "--as", "folded", "--sample", "calls", &control, &data]);
    let stored = events(&["--as", "folded", "--sample", "calls", "--where", "protocol=bytefrog", &path]);
    assert!(!stored.stdout.is_empty());
    assert_eq!(stored.stdout, of_bytes.stdout);
}

#[test]
fn a_file_of_events_is_named_where_received_bytes_are_decoded() {
    for content in [recorded(), compact(&recorded())] {
        let (_directory, path) = stored("x.ndjson", content.as_bytes());
        for arguments in
            [&["datadog"][..], &["datadog", "--explain"], &["bytefrog"], &["endless"], &["rbkit"], &["zico"]]
        {
            let ended = run(&[&["decode"], arguments, &[path.as_str()]].concat());
            assert_eq!((ended.code, &*ended.stdout), (Some(1), ""), "{arguments:?}: {}", ended.stderr);
            let said = "has events as JSON lines, not received bytes of";
            assert!(ended.stderr.contains(said) && ended.stderr.contains("decode events"), "{}", ended.stderr);
        }
    }
}

#[test]
fn limits_find_numbers_that_peers_send_as_texts() {
    let line = |value: &str| {
        format!(
            r#"{{"time":"2026-11-27T12:00:00Z","observed_time":"2026-11-27T12:00:00Z","kind":"log","name":"x","severity":"INFO","attributes":{{"code":{value}}},"resource":{{}},"origin":{{"protocol":"datadog","listener":"l","peer":"p","connection":1,"offset":0,"length":0}}}}"#
        )
    };
    let lines: Vec<String> =
        ["503", "\"503\"", "\"499.5\"", "\"500.0\"", "\"5e2\"", "\"abc\"", "\"\"", "true", "\"NaN\""].map(line).into();
    let (_directory, path) = stored("x.ndjson", (lines.join("\n") + "\n").as_bytes());
    let found = |tests: &[&str]| {
        let conditions = ["attribute=code"].iter().chain(tests).flat_map(|condition| ["--where", condition]);
        let ended = events(&conditions.chain([path.as_str()]).collect::<Vec<_>>());
        let code = |line: &str| serde_json::from_str::<Value>(line).unwrap()["attributes"]["code"].to_string();
        ended.stdout.lines().map(code).collect::<Vec<_>>()
    };
    assert_eq!(found(&["min=500"]), ["503", "\"503\"", "\"500.0\"", "\"5e2\""]);
    assert_eq!(found(&["max=499.5"]), ["\"499.5\""]);
    assert_eq!(found(&["equals=503"]), ["503", "\"503\""]);
    assert_eq!(found(&["glob=5*"]), ["\"503\"", "\"500.0\"", "\"5e2\""]);
}

#[test]
fn options_of_the_other_content_are_errors() {
    for (arguments, named) in [
        (&["decode", "events", "--option", "calls=spans", "x"][..], "--option is for received bytes"),
        (&["decode", "parquet", "--explain", "x"], "--explain is for received bytes"),
        (&["decode", "datadog", "--where", "kind=span", "x"], "--since, --until and --where are for"),
        (&["decode", "events", "--where", "kind", "x"], "not KEY=VALUE"),
        (&["decode", "events", "--where", "kind=spans", "x"], "span"),
        (&["decode", "events", "--since", "yesterday", "x"], "2026-11-20T14:03:00Z"),
    ] {
        let ended = run(arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}");
        assert!(ended.stderr.contains(named), "{arguments:?}: {}", ended.stderr);
    }
    let (_directory, path) = stored("x.parquet", b"PAR1 and nothing");
    let ended = run(&["decode", "parquet", &path]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
}

#[test]
fn a_parquet_file_with_a_damaged_footer_is_an_error_and_no_panic() {
    let ended = run(&["decode", "parquet", &data("damaged/negative-offset.parquet")]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("its footer is damaged") && !ended.stderr.contains("panicked"), "{}", ended.stderr);
}

#[test]
fn a_capture_with_a_time_far_away_is_decoded_by_its_timers_and_not_by_its_seconds() {
    let heartbeats = [8, b'T', 0, 0].repeat(3);
    for (protocol, bytes) in
        [(Protocol::Bytefrog, &b"\0\x04"[..]), (Protocol::Datadog, b"\xDD\0\0\0\0\x01\0\0\0\0\0\0\x04\0")]
    {
        let (listener, peer) = ("far".to_owned(), "127.0.0.1:1".to_owned());
        let opened = UnixNanos(1_795_000_000_000_000_000);
        let mut capture = CaptureHead { protocol, listener, peer, connection: 1, opened }.to_bytes();
        put_bytes(&mut capture, Duration::ZERO, bytes);
        if protocol == Protocol::Bytefrog {
            put_bytes(&mut capture, Duration::from_secs(1), &heartbeats);
        }
        // Two hundred years.
        put_end(&mut capture, Duration::from_secs(6_311_520_000), End::Closed);
        let (_directory, path) = stored("far.capture", &capture);
        let ended = run(&["decode", protocol.as_str(), &path]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let late = ended.stdout.matches("bytefrog.agent.unhealthy").count();
        assert_eq!(late, usize::from(protocol == Protocol::Bytefrog), "{}", ended.stdout);
    }
}
