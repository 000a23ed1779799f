//! Every recording of `tests/data`, decoded, archived and read back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, OnceLock};

use tributary::event::{
    Batch, BatchBuilder, Buckets, Distribution, DistributionForm, DroppedCounts, EventBuilder, Frame, Header, Kind,
    Link, Loss, MetricData, MetricType, Number, Origin, Position, Reason, Resource, ResourceValue, SampleData,
    Severity, SeverityNumber, Span32, SpanData, SpanEvent, SpanExtras, SpanId, SpanKind, SpanLink, Status, Temporality,
    TraceId, UnixNanos, Value, semconv,
};
use tributary::sink::parquet::{ColumnType, Compression, Options, Timestamps};
use tributary::stored::row::RowEncoder;
use tributary::stored::row_reader::RowReader;
use tributary::stored::{Rebuilder, json};

use super::{archived, assert_same, files, options, write};

/// A recording: the arguments of `tributary decode`. It is decoded once for all tests.
pub(crate) struct Recording {
    pub(crate) name: String,
    arguments: Vec<String>,
    decoded: OnceLock<(Vec<u8>, Vec<Batch>)>,
}

/// Every recording. Those of one protocol that are pieces of a conversation are one.
pub(crate) fn recordings() -> &'static [Recording] {
    static ALL: LazyLock<Vec<Recording>> = LazyLock::new(find);
    &ALL
}

fn find() -> Vec<Recording> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut all = Vec::new();
    let mut add = |options: &[&str], files: Vec<PathBuf>| {
        if let Some(first) = files.first() {
            let arguments = options.iter().map(|option| (*option).to_owned());
            let paths = files.iter().map(|path| path.to_str().unwrap().to_owned());
            let arguments = arguments.chain(paths).collect();
            all.push(Recording { name: first.display().to_string(), arguments, decoded: OnceLock::new() });
        }
    };
    for case in sorted(&data.join("datadog")) {
        add(&["datadog", "--option", "emit_definitions=true"], existing(&case, "wire.bin"));
    }
    for case in sorted(&data.join("bytefrog")) {
        let of_agent = |path: &PathBuf| path.to_str().unwrap().ends_with(".agent.bin");
        let files: Vec<_> = sorted(&case).into_iter().filter(of_agent).collect();
        for options in [["bytefrog", "--option", "emit_definitions=true"], ["bytefrog", "--option", "calls=spans"]] {
            add(&options, files.clone());
        }
    }
    for case in sorted(&data.join("endless")) {
        add(&["endless"], existing(&case, "request.http"));
    }
    for case in sorted(&data.join("zico")) {
        add(&["zico", "--option", "emit_definitions=true"], sorted(&case.join("bodies")));
    }
    for case in sorted(&data.join("rbkit/sessions")) {
        let is_body =
            |path: &PathBuf| path.extension().is_some_and(|extension| extension == "msgpack" || extension == "bin");
        add(&["rbkit"], sorted(&case).into_iter().filter(is_body).collect());
    }
    all
}

fn sorted(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn existing(directory: &Path, name: &str) -> Vec<PathBuf> {
    [directory.join(name)].into_iter().filter(|path| path.is_file()).collect()
}

impl Recording {
    /// Its events as JSON lines, and as batches made of these.
    pub(crate) fn decoded(&self) -> &(Vec<u8>, Vec<Batch>) {
        self.decoded.get_or_init(|| self.decode())
    }

    fn decode(&self) -> (Vec<u8>, Vec<Batch>) {
        let decode =
            Command::new(env!("CARGO_BIN_EXE_tributary")).arg("decode").args(&self.arguments).output().unwrap();
        assert!(decode.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&decode.stderr));
        let (mut rebuilder, mut batches) = (Rebuilder::default(), Vec::new());
        for line in decode.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            json::read(line, &mut rebuilder).unwrap_or_else(|error| panic!("{}: {error}", self.name));
            if rebuilder.is_full() {
                batches.push(rebuilder.take());
            }
        }
        batches.push(rebuilder.take());
        (decode.stdout, batches)
    }
}

#[tokio::test]
async fn every_recording_is_read_back_from_json_lines_and_from_an_archive() {
    let (mut events, mut kinds) = (0, [0; 5]);
    for (number, recording) in recordings().iter().enumerate() {
        let (stdout, batches) = recording.decoded();
        let mut written = Vec::new();
        let mut encoder = tributary::sink::encode::json::JsonEncoder::default();
        batches.iter().flat_map(Batch::events).for_each(|event| encoder.encode(event, &mut written));
        assert!(written == *stdout, "{}: the lines are not the same again", recording.name);
        let count = batches.iter().map(Batch::len).sum::<usize>();
        events += count;
        batches.iter().flat_map(Batch::events).for_each(|event| kinds[event.kind().index()] += 1);

        let directory = tempfile::tempdir().unwrap();
        let compression = Compression::ALL[number % 3];
        // Small row groups of large recordings take minutes.
        let row_group_rows = [if count < 200 { 7 } else { 500 }, 1000, 131_072][number / 3 % 3];
        write(Options { compression, row_group_rows, ..options(directory.path()) }, batches).await;
        assert_same(&archived(directory.path()), batches, &recording.name);
        assert_eq!(files(directory.path(), ".rows"), [""; 0].map(PathBuf::from));
    }
    assert!(events > 20_000, "{events}");
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
}

/// The key of an attribute.
const KEY: &str = "\u{0}key \"ü\"\n\u{1b}";

/// Every kind, and every type of a value, each at its limits.
pub(crate) fn extremes() -> Batch {
    let origin = Origin::new("zico", "z".into(), "peer:1".into(), u64::MAX).with_version("2");
    let mut builder = BatchBuilder::new(Arc::new(origin));
    let of_resource = [
        ("a", ResourceValue::I64(i64::MIN)),
        ("b", ResourceValue::F64(f64::NEG_INFINITY)),
        ("c", ResourceValue::Bool(true)),
        ("d", ResourceValue::U64(u64::MAX)),
        ("service.name", ResourceValue::from("shop")),
    ];
    builder.set_resource(Arc::new(Resource::new(of_resource.map(|(key, value)| (key.to_owned(), value)))));
    let time = Some(UnixNanos(u64::MAX));
    let position = Position { sequence: Some(u64::MAX), offset: u64::MAX, length: 0 };
    for number in 0..15 {
        let of_body = value(&mut builder, number);
        log(&mut builder, number).log(Severity::Fatal, Some(of_body));
        let (key, of_key) = (builder.push_text(KEY), value(&mut builder, number));
        let mut event = log(&mut builder, number);
        event.attribute(key, of_key);
        event.log(Severity::Trace, None);
    }
    let name = builder.push_text("").into();
    let header = || Header { name, time, observed: UnixNanos(1), position };
    let ids = (TraceId([0xAB; 16]), SpanId([0xCD; 8]));
    let span = SpanData {
        parent: Some(SpanId([0; 8])),
        end: time,
        duration_nanos: Some(u64::MAX),
        kind: Some(SpanKind::Consumer),
        status: Status::Error,
        status_message: Some(builder.push_text("\u{0}broken\n")),
        ..SpanData::new(ids.0, ids.1)
    };
    let text = builder.push_text("a=1");
    let bytes = builder.bytes(b"\xff");
    let attributes = builder.members(&[(text.into(), Value::F64(f64::NAN)), (semconv::SERVICE_NAME.into(), bytes)]);
    let plain = SpanLink::from(Link { trace_id: ids.0, span_id: ids.1 });
    let full = SpanLink { attributes, trace_state: Some(text), flags: Some(u32::MAX), ..plain };
    let event = SpanEvent { time, name: text.into(), attributes };
    let events = [event, SpanEvent { time: None, attributes: Span32::default(), ..event }];
    builder.event(header()).span_with(span, &[plain, full, plain], &events);
    builder.event(header()).span_with(span, &[full], &[]);
    builder.event(header()).span_with(span, &[], &events);
    builder.event(header()).span(SpanData { parent: None, end: None, duration_nanos: None, ..span });
    let trace_state = Some(text);
    let dropped = DroppedCounts { attributes: 1, events: u32::MAX, links: 3 };
    for extras in [
        SpanExtras { trace_state, flags: u32::MAX, dropped },
        SpanExtras { trace_state: None, flags: 1, dropped: DroppedCounts::default() },
        SpanExtras { trace_state, flags: 0, dropped: DroppedCounts { events: 0, ..dropped } },
    ] {
        builder.event(header()).span_with_extras(span, extras, &[plain], &events);
    }
    for number in (1..=24).filter_map(SeverityNumber::new) {
        builder.event(header()).log(number, None);
    }
    for distribution in distributions() {
        builder.event(header()).distribution("", None, &distribution);
        builder.event(header()).distribution(text, time, &distribution);
    }
    let sum = MetricType::Sum { temporality: Temporality::Delta, monotonic: true };
    for value in [Number::I64(-1), Number::U64(u64::MAX), Number::F64(f64::NAN), Number::F64(-0.0)] {
        builder.event(header()).metric(MetricData { metric_type: sum, unit: "By".into(), value, start: time });
        let gauge = MetricData { metric_type: MetricType::Gauge, unit: "".into(), value, start: None };
        builder.event(header()).metric(gauge);
        let function = Some(builder.push_text("f"));
        let frames = [Frame { function, file: None, line: Some(u64::MAX) }, Frame::default()];
        builder.event(header()).sample(SampleData::new("cpu", "count", value), &frames);
        builder
            .event(header())
            .sample(SampleData { period_nanos: Some(u64::MAX), ..SampleData::new("cpu", "", value) }, &[]);
    }
    let loss = Loss { reason: Reason::Gap, bytes: u64::MAX, events: Some(u64::MAX), detail: "d", excerpt: &[0x7F, 0] };
    builder.loss(header(), loss);
    builder.loss(header(), Loss { events: None, detail: "", excerpt: &[], ..loss });
    builder.take()
}

/// Distributions of each form, at their limits, and with nothing that may be absent.
fn distributions() -> Vec<Distribution<'static>> {
    let mut all = Vec::new();
    for temporality in [Temporality::Delta, Temporality::Cumulative] {
        let positive = Buckets { offset: i32::MIN, counts: &[u64::MAX, 0] };
        let negative = Buckets { offset: i32::MAX, counts: &[1] };
        let exponential = |scale, zero_threshold, positive, negative| DistributionForm::Exponential {
            temporality,
            scale,
            zero_count: u64::MAX,
            zero_threshold,
            positive,
            negative,
        };
        let forms = [
            DistributionForm::Histogram {
                temporality,
                bounds: &[f64::NEG_INFINITY, -0.0, f64::NAN],
                counts: &[0, u64::MAX, 1, 2],
            },
            DistributionForm::Histogram { temporality, bounds: &[], counts: &[1] },
            DistributionForm::Histogram { temporality, bounds: &[], counts: &[] },
            exponential(i32::MIN, f64::INFINITY, positive, negative),
            exponential(i32::MAX, 0.0, Buckets::default(), negative),
            exponential(0, 0.5, positive, Buckets::default()),
            DistributionForm::Summary(&[(0.0, f64::NAN), (1.0, -0.0)]),
            DistributionForm::Summary(&[]),
        ];
        for form in forms {
            all.push(Distribution { count: u64::MAX, sum: Some(f64::NAN), min: Some(-0.0), max: Some(1e300), form });
            all.push(Distribution { count: 0, sum: None, min: None, max: None, form });
        }
    }
    all
}

/// A span of another service than its resource.
pub(crate) fn other_service() -> Batch {
    let mut builder = BatchBuilder::new(Arc::new(Origin::new("datadog", "d".into(), "".into(), 0)));
    let resource =
        [("service.name".to_owned(), ResourceValue::from("shop")), ("x".to_owned(), ResourceValue::from(""))];
    builder.set_resource(Arc::new(Resource::new(resource)));
    let mut event = log(&mut builder, 1);
    event.text(semconv::SERVICE_NAME, "of the span");
    let (end, duration_nanos) = (Some(UnixNanos(7)), Some(0));
    let (trace_id, span_id) = (TraceId([1; 16]), SpanId([2; 8]));
    event.span(SpanData { end, duration_nanos, status: Status::Ok, ..SpanData::new(trace_id, span_id) });
    builder.take()
}

fn log(builder: &mut BatchBuilder, number: u64) -> EventBuilder<'_> {
    let name = builder.push_text("n").into();
    let position = Position { sequence: None, offset: number, length: 1 };
    builder.event(Header { name, time: None, observed: UnixNanos(number), position })
}

/// A value of each type. Integers that fit are signed, as they are read.
fn value(builder: &mut BatchBuilder, number: u64) -> Value {
    match number {
        0 => Value::Bool(false),
        1 => Value::I64(i64::MIN),
        2 => Value::U64(u64::MAX),
        3 => Value::F64(f64::NAN),
        4 => Value::F64(f64::INFINITY),
        5 => Value::F64(1.0),
        6 => builder.push_text("NaN").into(),
        7 => builder.push_text("").into(),
        8 => builder.bytes(b"\n\x1b\x00"),
        9 => builder.bytes(b""),
        10 => builder.array(&[]),
        13 => builder.array(&[Value::I64(-1), Value::I64(i64::MAX), Value::I64(-1)]),
        11 => {
            let members = [("$bytes", Value::Null)].map(|(key, value)| (builder.push_text(key).into(), value));
            builder.map(&members)
        }
        12 => {
            let text = builder.push_text("AAA=").into();
            let bytes = builder.bytes(b"\x00\x00");
            let members = [("$bytes", text), ("b", bytes)].map(|(key, value)| (builder.push_text(key).into(), value));
            let map = builder.map(&members);
            builder.array(&[map, Value::Null, Value::F64(f64::NEG_INFINITY)])
        }
        _ => builder.map(&[]),
    }
}

/// The rows of a batch: they have every type.
fn rows(batches: &[Batch]) -> Vec<Vec<u8>> {
    let mut encoder = RowEncoder::default();
    let mut rows: Vec<_> = batches
        .iter()
        .flat_map(Batch::events)
        .map(|event| {
            let mut row = Vec::new();
            encoder.encode(event, &mut row);
            row
        })
        .collect();
    rows.sort();
    rows
}

#[tokio::test]
async fn values_keep_their_types_in_rows_and_in_an_archive() {
    let expected = rows(&[extremes()]);
    let (mut reader, mut rebuilder) = (RowReader::default(), Rebuilder::default());
    for row in &expected {
        assert_eq!(row.iter().filter(|byte| **byte == b'\n').count(), 1);
        reader.read(&row[..row.len() - 1], &mut rebuilder).unwrap();
    }
    assert_eq!(rows(&[rebuilder.take()]), expected);

    let (directory, with_nanoseconds) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(options(directory.path()), &[extremes()]).await;
    let timestamps = Timestamps::Nanoseconds;
    write(Options { timestamps, ..options(with_nanoseconds.path()) }, &[extremes()]).await;
    // With a column for the attribute, too, whose type only some of its values have.
    let with_column = ColumnType::ALL.map(|column| {
        let directory = tempfile::tempdir().unwrap();
        let columns = vec![(Kind::Log, vec![(KEY.to_owned(), column)])];
        (Options { columns, ..options(directory.path()) }, directory)
    });
    for (options, _) in &with_column {
        write(options.clone(), &[extremes()]).await;
    }
    for directory in with_column.iter().map(|(_, directory)| directory).chain([&directory, &with_nanoseconds]) {
        let found = archived(directory.path());
        assert_same(&found, &[extremes()], "extremes");
        let found = rows(&found);
        let wrong: Vec<_> = found.iter().zip(&expected).filter(|(one, other)| one != other).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
    let kinds: Vec<_> =
        files(directory.path(), ".parquet").iter().map(|path| path.parent().unwrap().to_owned()).collect();
    assert_eq!(kinds.len(), Kind::ALL.len(), "{kinds:?}");

    let directory = tempfile::tempdir().unwrap();
    write(options(directory.path()), &[other_service()]).await;
    assert_same(&archived(directory.path()), &[other_service()], "a service of its own");
}

#[test]
fn a_damaged_row_is_an_error_and_adds_nothing() {
    let row = rows(&[extremes()]).pop().unwrap();
    for at in 0..row.len() - 1 {
        for bit in 0..8 {
            let mut damaged = row[..row.len() - 1].to_vec();
            damaged[at] ^= 1 << bit;
            let mut rebuilder = Rebuilder::default();
            assert!(RowReader::default().read(&damaged, &mut rebuilder).is_err(), "bit {bit} of byte {at}");
            assert!(rebuilder.take().is_empty());
        }
        assert!(RowReader::default().read(&row[..at], &mut Rebuilder::default()).is_err());
    }
}
