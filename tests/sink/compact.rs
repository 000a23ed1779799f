//! Compact JSON lines: every output stands alone, and its events are read back as they were.

use std::fs;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use tributary::event::{
    Batch, BatchBuilder, Header, Loss, Origin, Position, Reason, Resource, ResourceValue, Severity, UnixNanos, semconv,
};
use tributary::profile::events;
use tributary::sink::encode::{Encoder, Format, LineFields};
use tributary::sink::file::{Compression, File, Options};
use tributary::sink::stdout::Stdout;
use tributary::sink::{Kinds, Selection, Sink};
use tributary::stored::event_file::EventFile;
use tributary::stored::{Rebuilder, json};

use crate::parquet::recorded::recordings;
use crate::sink_file_support::{files, options, unpacked};

/// Lines with every field.
pub(crate) fn full<'a>(batches: impl IntoIterator<Item = &'a Batch>) -> Vec<u8> {
    let (mut encoder, mut out) = (Encoder::new(Format::Json), Vec::new());
    batches.into_iter().flat_map(Batch::events).for_each(|event| encoder.encode(event, &mut out));
    out
}

/// Compact lines, as an output that is never ended has them.
async fn compact(batches: &[Batch]) -> Vec<u8> {
    let out = Shared::default();
    let mut sink = Stdout::to(Box::new(out.clone()), Format::Json).with_fields(LineFields::Compact);
    for batch in batches {
        sink.write(Selection::new(batch, Kinds::ALL)).await.unwrap();
        sink.flush().await.unwrap();
    }
    out.0.lock().unwrap().clone()
}

#[derive(Clone, Default)]
struct Shared(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The events of a file, read alone.
pub(crate) fn read(lines: &[u8]) -> Vec<Batch> {
    let (mut rebuilder, mut batches) = (Rebuilder::default(), Vec::new());
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        json::read(line, &mut rebuilder).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(line)));
        if rebuilder.is_full() {
            batches.push(rebuilder.take());
        }
    }
    batches.push(rebuilder.take());
    batches
}

/// The items of profiles of a file, and how many of its lines are skipped.
fn items(lines: &[u8]) -> (Vec<String>, u64) {
    if lines.is_empty() {
        return (Vec::new(), 0);
    }
    let file = EventFile::open(Cursor::new(lines.to_owned())).unwrap().unwrap_or_else(|_| panic!("no event file"));
    let mut items = Vec::new();
    let lines = file.read(events::is_wanted, &mut |batch, numbers, lines| {
        for (event, number) in batch.events().zip(numbers) {
            match events::item(event) {
                Ok(item) => items.extend(item.map(|item| format!("{item:?}"))),
                Err(()) => lines.skip(*number),
            }
        }
        true
    });
    (items, lines.unwrap().skipped)
}

fn sorted(lines: &[u8]) -> Vec<&str> {
    let mut lines: Vec<_> = str::from_utf8(lines).unwrap().lines().collect();
    lines.sort_unstable();
    lines
}

#[tokio::test]
async fn every_recording_is_read_back_from_compact_lines_as_it_was_and_its_profiles_are_the_same() {
    let (mut found_items, mut long, mut short) = (0, 0, 0);
    for recording in recordings() {
        let (lines, batches) = recording.decoded();
        let compact = compact(batches).await;
        assert!(full(&read(&compact)) == *lines, "{}: the lines are not the same again", recording.name);
        let items = items(&compact);
        assert_eq!(items, self::items(lines), "{}", recording.name);
        found_items += items.0.len();
        (long, short) = (long + lines.len(), short + compact.len());
    }
    assert!(found_items > 1000, "{found_items}");
    assert!(short < long * 3 / 4, "{short} bytes instead of {long}");
}

/// A batch of one connection: logs with these numbers, and a loss.
fn batch(connection: u64, listener: &str, numbers: std::ops::Range<u64>) -> Batch {
    let origin = Origin::new("datadog", listener.into(), format!("10.0.0.{connection}:7").into(), connection);
    let mut builder = BatchBuilder::new(Arc::new(origin));
    let attributes = [("service.name", format!("shop {connection}")), ("host.id", "h".repeat(200))];
    let attributes = attributes.map(|(key, value)| (key.to_owned(), ResourceValue::Text(value)));
    builder.set_resource(Arc::new(Resource::new(attributes)));
    let header = |number| {
        let position = Position { sequence: Some(number), offset: number, length: 1 };
        let time = Some(UnixNanos(number));
        Header { name: semconv::DATADOG_PROCESS.into(), time, observed: UnixNanos(1000), position }
    };
    let end = numbers.end;
    numbers.for_each(|number| builder.event(header(number)).log(Severity::Info, None));
    let loss = Loss { reason: Reason::Gap, bytes: 0, events: Some(1), detail: "", excerpt: &[] };
    builder.loss(Header { name: semconv::LOSS.into(), ..header(end) }, loss);
    builder.take()
}

async fn write(sink: &mut File, batch: &Batch) {
    sink.write(Selection::new(batch, Kinds::ALL)).await.unwrap();
    sink.flush().await.unwrap();
    assert!(sink.unwritten().is_empty());
}

/// The events of all files below a directory as lines with every field, each file read alone.
fn alone(directory: &Path) -> Vec<u8> {
    let files = files(directory);
    files.keys().flat_map(|name| full(&read(&unpacked(&directory.join(name))))).collect()
}

fn compact_options(directory: &tempfile::TempDir, path: &str) -> Options {
    Options { fields: LineFields::Compact, ..options(directory, path) }
}

#[tokio::test]
async fn every_file_stands_alone_with_connections_in_turn_and_over_rotations_and_restarts() {
    for (rotate_bytes, compression) in [(0, Compression::None), (3_000, Compression::None), (700, Compression::Zstd)] {
        let directory = tempfile::tempdir().unwrap();
        let of = Options { rotate_bytes, compression, ..compact_options(&directory, "{listener}.log") };
        let mut batches = Vec::new();
        for start in 0..3 {
            let mut sink = File::new(of.clone()).unwrap();
            for round in 0..6 {
                for connection in 0..4 {
                    let listener = if connection == 3 { "web" } else { "apm" };
                    // A process begins to count its connections again.
                    let of_batch = batch(connection, listener, round * 10..round * 10 + 2 * start);
                    write(&mut sink, &of_batch).await;
                    batches.push(of_batch);
                }
            }
            sink.close().await.unwrap();
            sink.wait_for_compression().await;
            sink.tick().await.unwrap();
            sink.wait_for_compression().await;
        }
        let (found, expected) = (alone(directory.path()), full(&batches));
        assert_eq!(sorted(&found), sorted(&expected), "{rotate_bytes}");
        let files = files(directory.path());
        assert!(rotate_bytes == 0 || files.len() > 9, "{:?}", files.keys());
        if compression == Compression::None {
            let fits = |bytes: &Vec<u8>| rotate_bytes == 0 || bytes.len() as u64 <= rotate_bytes;
            assert!(files.values().all(fits), "no file is longer than rotate_bytes");
        }
    }
}

#[tokio::test]
async fn a_torn_definition_is_cut_off_and_written_again() {
    let written = batch(1, "apm", 0..1);
    let whole = {
        let directory = tempfile::tempdir().unwrap();
        let mut sink = File::new(compact_options(&directory, "app.log")).unwrap();
        write(&mut sink, &written).await;
        fs::read(directory.path().join("app.log")).unwrap()
    };
    assert!(whole.starts_with(b"{\"source\":\""));
    let lines: Vec<_> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    assert_eq!(lines.len(), 3, "a definition, a log and a loss");
    let next = batch(1, "apm", 5..6);
    for torn in [1, 8, 11, 30, lines[0].len() - 1, lines[0].len(), lines[0].len() + 9] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("app.log"), [&whole, &whole[..torn]].concat()).unwrap();
        let mut sink = File::new(compact_options(&directory, "app.log")).unwrap();
        write(&mut sink, &next).await;
        assert_eq!(alone(directory.path()), full([&written, &next]), "torn after {torn} bytes");
    }
}

#[tokio::test]
async fn a_file_that_was_emptied_or_moved_gets_its_definitions_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.log");
    let mut sink = File::new(compact_options(&directory, "app.log")).unwrap();
    write(&mut sink, &batch(1, "apm", 0..3)).await;
    fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    write(&mut sink, &batch(1, "apm", 3..6)).await;
    assert_eq!(alone(directory.path()), full([&batch(1, "apm", 3..6)]));
    fs::remove_file(&path).unwrap();
    write(&mut sink, &batch(1, "apm", 6..9)).await;
    assert_eq!(alone(directory.path()), full([&batch(1, "apm", 6..9)]));
}

#[tokio::test]
async fn a_source_is_defined_once_in_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = File::new(compact_options(&directory, "app.log")).unwrap();
    for number in 0..10 {
        write(&mut sink, &batch(1, "apm", number..number + 1)).await;
        write(&mut sink, &batch(2, "apm", number..number + 1)).await;
    }
    let written = fs::read_to_string(directory.path().join("app.log")).unwrap();
    let definitions: Vec<_> = written.lines().filter(|line| line.starts_with("{\"source\"")).collect();
    assert_eq!(definitions.len(), 2, "{definitions:?}");
}

#[tokio::test]
async fn more_sources_than_a_file_remembers_are_defined_again_when_they_are_needed() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = File::new(compact_options(&directory, "app.log")).unwrap();
    let batches: Vec<_> = (0..5000).chain(0..10).map(|connection| batch(connection, "apm", 0..1)).collect();
    for batch in &batches {
        sink.write(Selection::new(batch, Kinds::ALL)).await.unwrap();
    }
    sink.flush().await.unwrap();
    let (found, expected) = (alone(directory.path()), full(&batches));
    assert_eq!(sorted(&found), sorted(&expected));
}

#[test]
fn a_line_whose_source_is_not_defined_is_no_event_and_other_lines_are() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let one = batch(1, "apm", 0..1);
    let lines = runtime.block_on(compact(std::slice::from_ref(&one)));
    let lines: Vec<_> = lines.split_inclusive(|byte| *byte == b'\n').collect();
    let [definition, log, loss] = lines[..] else { panic!("{} lines", lines.len()) };
    let mut rebuilder = Rebuilder::default();
    let error = json::read(log, &mut rebuilder).unwrap_err();
    assert!(error.starts_with("no line before it defines the source "), "{error}");
    json::read(loss, &mut rebuilder).unwrap();
    assert_eq!(rebuilder.take().len(), 1);
    // The keys in another order, as other programs write them.
    let value: serde_json::Value = serde_json::from_slice(definition).unwrap();
    let members = value.as_object().unwrap().iter().rev();
    let reversed: Vec<_> = members.map(|(key, value)| format!("\"{key}\":{value}")).collect();
    json::read(format!("{{{}}}", reversed.join(",")).as_bytes(), &mut rebuilder).unwrap();
    json::read(log, &mut rebuilder).unwrap();
    json::read(loss, &mut rebuilder).unwrap();
    assert_eq!(full([&rebuilder.take()]), full([&one]));
    // Streams have lines with every field.
    for line in [definition, log] {
        let error = json::read_of_listener(line, &mut rebuilder).unwrap_err();
        assert!(error.contains("fields = \"compact\""), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any mixture of connections, written in any pieces, with files of any size.
    #[test]
    fn whatever_is_written_is_read_back_from_files_that_stand_alone(
        events in prop::collection::vec((0..6u64, 0..2usize, 0..4u64), 1..40),
        rotate_bytes in prop_oneof![Just(0), 400..4000u64],
        flush in prop::collection::vec(any::<bool>(), 40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let batches: Vec<_> = events
            .iter()
            .zip(0..)
            .map(|((connection, listener, count), at)| batch(*connection, ["a", "b"][*listener], at * 10..at * 10 + count))
            .collect();
        runtime.block_on(async {
            let of = Options { rotate_bytes, ..compact_options(&directory, "{listener}.log") };
            let mut sink = File::new(of).unwrap();
            for (batch, is_flushed) in batches.iter().zip(flush) {
                sink.write(Selection::new(batch, Kinds::ALL)).await.unwrap();
                if is_flushed {
                    sink.flush().await.unwrap();
                }
            }
            sink.flush().await.unwrap();
        });
        let (found, expected) = (alone(directory.path()), full(&batches));
        prop_assert_eq!(sorted(&found), sorted(&expected));
    }
}
