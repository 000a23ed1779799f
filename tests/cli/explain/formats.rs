//! `tributary decode --explain` of rbkit, endless and zico: every recording, whole, in pieces and damaged. Every byte
//! is shown once and in order, with losses and starts of events at their offsets.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;
use tributary::explain::{DecoderError, Explain, Sheet};
use tributary::protocol::rbkit::{Channel, Explainer};
use tributary::protocol::{RequestHead, endless, zico};

use super::shown::{self, Line, What};
use crate::live::binary::run;
use crate::zico_support::{Recorded, cases};

/// The files under `directory` whose names end with one of these texts.
fn files(directory: &str, ends: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(directory)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if ends.iter().any(|end| path.to_str().unwrap().ends_with(end)) {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty());
    files.sort();
    files
}

/// The sheets of these files, which are decoded together, and their events.
fn explained_files(protocol: &str, files: &[PathBuf]) -> Vec<(PathBuf, Vec<Line>, Vec<Value>)> {
    let mut arguments = vec!["decode", protocol];
    arguments.extend(files.iter().map(|file| file.to_str().unwrap()));
    let mut decode = |further: Option<&'static str>| {
        arguments.extend(further);
        let ended = run(&arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended
    };
    let (mut events, sheets) = (decode(None).events(), decode(Some("--explain")).stdout);
    let sections = shown::sections(&sheets);
    let explained = files.iter().map(|file| {
        let sheet = if files.len() == 1 { sheets.as_str() } else { sections[file.to_str().unwrap()] };
        let is_of = |event: &mut Value| event["origin"]["peer"] == file.to_str().unwrap();
        (file.clone(), shown::lines(sheet), events.extract_if(.., is_of).collect())
    });
    let explained = explained.collect();
    assert_eq!(events, [] as [Value; 0], "of no file");
    explained
}

/// Checks that the bytes of each level are continuous, from 0 at the start of each level.
fn check_levels(lines: &[Line]) {
    let mut ends = vec![0];
    for Line { level, what } in lines {
        ends.resize(level + 1, 0);
        match what {
            What::Row { offset, bytes, .. } => {
                // Bytes that were shown on the next inner level are skipped.
                assert!(*offset >= ends[*level], "{offset} after {}", ends[*level]);
                assert!(*level == 0 || *offset == ends[*level], "{offset} after {}", ends[*level]);
                ends[*level] = offset + bytes.len();
            }
            What::More(count) => ends[*level] += count,
            What::Fault { .. } | What::Title(_) => {}
        }
    }
}

/// Checks that the faults of the sheet are the losses.
fn check_losses(lines: &[Line], events: &[Value], what: &str) {
    let mut faults: Vec<_> = lines
        .iter()
        .filter_map(|line| match &line.what {
            What::Fault { offset, said } => Some((*offset, said.as_str())),
            _ => None,
        })
        .collect();
    for event in events.iter().filter(|event| event["kind"] == "loss") {
        let offset = event["origin"]["offset"].as_u64().unwrap() as usize;
        let (reason, detail) = (event["loss"]["reason"].as_str().unwrap(), event["loss"]["detail"].as_str().unwrap());
        let is_it = |(at, said): &(usize, &str)| *at == offset && said.starts_with(reason) && said.ends_with(detail);
        let found = faults.iter().position(is_it);
        faults.remove(found.unwrap_or_else(|| panic!("{what}: {event} is not in {faults:?}")));
    }
    assert!(faults.is_empty(), "{what}: {faults:?}");
}

/// Checks that every event begins at a row of the outermost level.
fn check_events<'a>(lines: impl Iterator<Item = &'a Line>, events: &[&Value], end: usize, what: &str) {
    let begins: BTreeSet<usize> = lines
        .filter_map(|line| match &line.what {
            What::Row { offset, .. } => Some(*offset),
            _ => None,
        })
        .collect();
    for event in events {
        let offset = event["origin"]["offset"].as_u64().unwrap() as usize;
        assert!(begins.contains(&offset) || offset >= end, "{what}: nothing begins at {offset}: {event}");
    }
}

fn rbkit_files() -> Vec<PathBuf> {
    let mut files = files("rbkit", &[".msgpack", "agent-to-client.bin"]);
    files.extend(self::files("rbkit/zmtp/hostile", &[".bin"]));
    files.extend(self::files("rbkit/replies", &[".bin"]));
    files
}

#[test]
fn rbkit_recordings_are_shown_completely_and_events_begin_at_rows() {
    // The files of a directory are a conversation, except files with the bytes of a connection.
    let files = rbkit_files();
    let conversations =
        files.chunk_by(|one, other| one.extension().unwrap() != "bin" && one.parent() == other.parent());
    for files in conversations {
        for (file, lines, mut events) in explained_files("rbkit", files) {
            let (what, bytes) = (file.display().to_string(), fs::read(&file).unwrap());
            shown::check_bytes(&lines, &bytes);
            check_losses(&lines, &events, &what);
            events.retain(|event| event["kind"] != "loss");
            check_events(lines.iter(), &events.iter().collect::<Vec<_>>(), bytes.len(), &what);
        }
    }
}

#[test]
fn endless_recordings_are_shown_completely_and_events_begin_at_rows() {
    // A request and its bundle together would be a repeated upload.
    for (directory, name) in [("endless", "request.http"), ("endless", "body.bin"), ("endless/http", ".http")] {
        for (file, lines, mut events) in explained_files("endless", &files(directory, &[name])) {
            let (what, bytes) = (file.display().to_string(), fs::read(&file).unwrap());
            shown::check_bytes(&lines, &bytes);
            check_levels(&lines);
            check_losses(&lines, &events, &what);
            events.retain(|event| event["kind"] != "loss");
            let deepest = lines.iter().map(|line| line.level).max().unwrap_or_default();
            let rows = lines.iter().filter(|line| line.level == deepest);
            check_events(rows, &events.iter().collect::<Vec<_>>(), usize::MAX, &what);
        }
    }
}

fn request(recorded: &Recorded) -> Vec<u8> {
    let headers: String = recorded.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    [format!("POST {} HTTP/1.1\r\n{headers}\r\n", recorded.path).as_bytes(), &recorded.body].concat()
}

#[test]
fn zico_recordings_are_shown_completely_and_spans_begin_at_rows() {
    let directory = tempfile::tempdir().unwrap();
    for case in cases() {
        let file = directory.path().join(format!("{}.http", case.name));
        let bytes: Vec<u8> = case.exchanges.iter().flat_map(request).collect();
        fs::write(&file, &bytes).unwrap();
        let (_, lines, events) = explained_files("zico", &[file]).remove(0);
        check_outermost(&lines, &bytes);
        check_levels(&lines);
        check_losses(&lines, &events, &case.name);
        let is_request = |line: &Line| matches!(&line.what, What::Title(title) if title.starts_with("request "));
        let requests: Vec<_> = lines.split(is_request).skip(1).collect();
        assert_eq!(requests.len(), case.exchanges.len(), "{}", case.name);
        for (number, lines) in (1u64..).zip(requests) {
            let is_span = |event: &&Value| event["kind"] == "span" && event["origin"]["sequence"] == number;
            // A trace in parts has records that begin in an earlier part.
            let is_part = |event: &&Value| event["attributes"]["tributary.incomplete"].is_null();
            let spans: Vec<_> = events.iter().filter(is_span).filter(is_part).collect();
            let deepest = lines.iter().map(|line| line.level).max().unwrap_or_default();
            check_events(lines.iter().filter(|line| line.level == deepest), &spans, usize::MAX, &case.name);
        }
    }
}

/// Checks that the outermost rows are these bytes at their offsets. Bytes that they omit are shown on the next inner level.
fn check_outermost(lines: &[Line], bytes: &[u8]) {
    for line in lines.iter().filter(|line| line.level == 0) {
        if let What::Row { offset, bytes: row, .. } = &line.what {
            assert_eq!(row[..], bytes[*offset..offset + row.len()], "at {offset}");
        }
    }
}

/// The sheet of the bytes of an agent's socket, in pieces that end at these offsets.
fn explained(mut explainer: Explainer, bytes: &[u8], cuts: impl Iterator<Item = usize>) -> String {
    let mut sheet = Sheet::new(0, []);
    let (mut named, mut text) = (0, String::new());
    for cut in cuts.chain([bytes.len()]) {
        named += explainer.explain(&bytes[named..cut.max(named)], &mut sheet);
        assert!(named <= bytes.len());
        text.push_str(&sheet.take_settled());
    }
    explainer.finish(&bytes[named..], &mut sheet);
    sheet.end();
    text.push_str(&sheet.take());
    assert_eq!(sheet.offset(), bytes.len() as u64);
    text
}

fn explainer(kind: u8, bytes: &[u8]) -> Explainer {
    let channel = if kind.is_multiple_of(2) { Channel::Pub } else { Channel::Rep };
    match kind / 2 {
        _ if bytes.first() == Some(&0xFF) => Explainer::new(channel),
        0 => Explainer::message(channel, bytes.len() as u64),
        1 => Explainer::within(channel, 3),
        2 => Explainer::within(channel, 0),
        _ => Explainer::new(channel),
    }
}

#[test]
fn the_sheet_of_rbkit_does_not_depend_on_how_bytes_arrive() {
    for file in rbkit_files() {
        let mut bytes = fs::read(&file).unwrap();
        bytes.truncate(20_000);
        for kind in [0, 1, 4] {
            let whole = explained(explainer(kind, &bytes), &bytes, std::iter::empty());
            let by_ones = explained(explainer(kind, &bytes), &bytes, 0..bytes.len());
            assert!(whole == by_ones, "{}", file.display());
        }
    }
}

#[test]
fn an_incomplete_value_does_not_delay_the_explanation() {
    let mut bytes = vec![0x92, 0x01, 0xdb, 0x00, 0x30, 0x00, 0x00];
    bytes.resize(3 << 20, b'x');
    let mut explainer = Explainer::message(Channel::Pub, 4 << 20);
    let mut sheet = Sheet::new(0, []);
    assert_eq!(explainer.explain(&bytes, &mut sheet), bytes.len());
    let text = sheet.take();
    assert!(text.contains("?: a value of more than 1 MiB") && text.lines().count() == 7, "{text}");
    let by_halves = explained(Explainer::message(Channel::Pub, 4 << 20), &bytes, [1 << 20, (1 << 20) + 1].into_iter());
    assert_eq!(by_halves, text);
}

/// The head of a request.
fn head(path: &str, headers: &[(&str, &str)]) -> RequestHead {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
    RequestHead { method: "POST".to_owned(), target: path.to_owned(), headers }
}

/// Explains a body, and checks the rules for all bodies.
fn check_body(body: fn(&RequestHead, &[u8], Vec<DecoderError>, &mut Sheet), head: &RequestHead, bytes: &[u8]) {
    let fault = |offset| DecoderError { offset, text: "malformed: it is told".to_owned() };
    let mut sheet = Sheet::new(0, []);
    body(head, bytes, vec![fault(0), fault(bytes.len() as u64 / 2), fault(1 << 40)], &mut sheet);
    sheet.end();
    let (at, text) = (sheet.offset(), sheet.take());
    let lines = shown::lines(&text);
    check_levels(&lines);
    assert_eq!(shown::faults(&lines, 0).len() + shown::faults(&lines, 1).len() + shown::faults(&lines, 2).len(), 3);
    // The body is shown on the outermost level, or the same bytes on the next inner level.
    assert!(at == 0 || at == bytes.len() as u64);
    shown::check_bytes(&lines, bytes);
    assert!(text.len() <= 4096 + 2048 * bytes.len(), "{} from {}", text.len(), bytes.len());
}

fn damaged(mut bytes: Vec<u8>, flips: &[(Index, u8)], cut: &Index) -> Vec<u8> {
    if bytes.is_empty() {
        return bytes;
    }
    for (at, value) in flips {
        let at = at.index(bytes.len());
        bytes[at] = *value;
    }
    // One in two is cut.
    bytes.truncate(cut.index(2 * bytes.len()) + 1);
    bytes
}

fn damage() -> impl Strategy<Value = (Index, Vec<(Index, u8)>, Index)> {
    (any::<Index>(), prop::collection::vec((any::<Index>(), any::<u8>()), 0..4), any::<Index>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_of_rbkit_are_shown_once_however_they_arrive(
        (file, flips, cut) in damage(),
        random in prop::option::weighted(0.2, prop::collection::vec(any::<u8>(), 0..300)),
        kind in 0u8..8,
        mut cuts in prop::collection::vec(any::<Index>(), 0..8),
    ) {
        let mut bytes = random.unwrap_or_else(|| {
            let files = rbkit_files();
            fs::read(&files[file.index(files.len())]).unwrap()
        });
        bytes.truncate(4000);
        let bytes = damaged(bytes, &flips, &cut);
        let whole = explained(explainer(kind, &bytes), &bytes, std::iter::empty());
        cuts.sort_by_key(|cut| cut.index(bytes.len().max(1)));
        let places: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len().max(1))).collect();
        let cut = explained(explainer(kind, &bytes), &bytes, places.into_iter());
        prop_assert!(whole == cut, "it depends on the cuts");
        shown::check_bytes(&shown::lines(&whole), &bytes);
    }

    #[test]
    fn any_bundle_of_endless_is_shown_once(
        (file, flips, cut) in damage(),
        random in prop::option::weighted(0.2, prop::collection::vec(any::<u8>(), 0..300)),
        version in 0u8..5,
        encoding in prop::option::of(prop::sample::select(vec!["gzip", "br"])),
    ) {
        let bytes = random.unwrap_or_else(|| {
            let files = files("endless", &["body.bin"]);
            fs::read(&files[file.index(files.len())]).unwrap()
        });
        let mut bytes = damaged(bytes, &flips, &cut);
        bytes.truncate(20_000);
        let headers: Vec<_> = encoding.map(|encoding| ("content-encoding", encoding)).into_iter().collect();
        check_body(endless::explain::body, &head(&format!("/{version}/hash"), &headers), &bytes);
    }

    #[test]
    fn any_body_of_zico_is_shown_once(
        (file, flips, cut) in damage(),
        random in prop::option::weighted(0.2, prop::collection::vec(any::<u8>(), 0..300)),
        path in prop::sample::select(vec!["/agent/submit/agd", "/agent/submit/trc", "/submit/agent", "/agent/session", "/"]),
        is_gen2 in any::<bool>(),
    ) {
        let bytes = random.unwrap_or_else(|| {
            let files = files("zico", &["agd.bin", "trc.bin", "form.bin"]);
            fs::read(&files[file.index(files.len())]).unwrap()
        });
        let mut bytes = damaged(bytes, &flips, &cut);
        bytes.truncate(20_000);
        let headers: &[_] = if is_gen2 { &[("x-zorka-session-id", "1")] } else { &[] };
        check_body(zico::explain::body, &head(path, headers), &bytes);
    }
}
