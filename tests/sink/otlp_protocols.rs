//! The events of each protocol, as requests: by prost, and by a receiver of another implementation, in Python.
//!
//! `TRIBUTARY_OTLP_PYTHON` names a Python that has grpcio and opentelemetry-proto; otherwise `python3` is tried. Without them
//! the test prints a note and passes; `cargo test --test sink otlp_protocols -- --nocapture` shows it.
#![allow(clippy::print_stderr, reason = "a test that cannot run says why")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::profiles::v1development::{Profile, ProfilesDictionary};
use prost::Message as _;
use tributary::decode::Offline;
use tributary::event::{
    Batch, BatchBuilder, DataView, EventView, Frame, Header, Kind, Number, Origin, Position, SampleData, UnixNanos,
    semconv,
};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::datadog::{DatadogSession, Options as DatadogOptions};
use tributary::protocol::{End, Protocol};
use tributary::sink::otlp::{Compression, Encoder, Options, Signal};

use crate::otlp::Sending;
use crate::otlp_support::{Requests, requests, sorted};
use crate::workloads::{self, NOW};

/// Of each generated workload so many batches.
const MAX_BATCHES: usize = 3;
/// The exit code of the script if a package is missing.
const NO_PACKAGE: i32 = 3;

/// Recorded connections of one protocol, and generated ones of all.
fn batches() -> Vec<(String, Vec<Batch>)> {
    let mut all: Vec<_> = workloads::all()
        .into_iter()
        .map(|workload| (workload.name.to_owned(), workload.batches().into_iter().take(MAX_BATCHES).collect()))
        .collect();
    all.push(("samples".to_owned(), vec![samples()]));
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/datadog");
    for entry in std::fs::read_dir(recorded).unwrap() {
        let path = entry.unwrap().path();
        let Ok(bytes) = std::fs::read(path.join("wire.bin")) else { continue };
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let counters = ListenerCounters::new("spans".into(), Protocol::Datadog);
        let origin = Arc::new(Origin::new("datadog", "spans".into(), "127.0.0.1:1".into(), 1));
        let session = DatadogSession::new(DatadogOptions::default(), 16 << 20, false, &MemoryBudget::unlimited());
        let (mut offline, mut batches) = (Offline::new(session, origin, counters), Vec::new());
        offline.feed(&bytes, NOW, &mut |batch| batches.push(batch));
        offline.finish(End::Closed, NOW, &mut |batch| batches.push(batch));
        all.push((name, batches));
    }
    all
}

/// Samples of both types over 25 seconds, with frames in C, without a file or a name, and without frames.
fn samples() -> Batch {
    let origin = Origin::new("rbkit", "ruby".into(), "127.0.0.1:5555".into(), 4);
    let mut builder = BatchBuilder::new(Arc::new(origin));
    for number in 0..250u64 {
        let name = if number % 3 == 0 { semconv::RBKIT_ALLOCATIONS } else { semconv::RBKIT_CPU };
        let file = builder.push_text(["app.rb", "<cfunc>", ""][(number % 3) as usize]);
        let function = builder.push_text(&format!("Shop#cart{}", number % 7));
        let frames = [
            Frame { function: Some(function), file: Some(file), line: Some(number % 5) },
            Frame { function: None, file: Some(file), line: None },
            Frame { function: Some(function), file: None, line: Some(u64::MAX) },
            Frame::default(),
        ];
        let time = Some(UnixNanos(NOW.unix.0 + number * 100_000_000)).filter(|_| number % 11 > 0);
        let header = Header { name: name.into(), time, observed: NOW.unix, position: Position::default() };
        let mut event = builder.event(header);
        event.attribute(semconv::THREAD_ID, number % 4);
        let value = Number::U64(1 + number % 2);
        let sample_type = if number % 3 == 0 { "alloc_objects" } else { "cpu" };
        event.sample(SampleData::new(sample_type, "count", value), &frames[..(number % 5) as usize]);
    }
    builder.take()
}

#[derive(Default)]
struct Decoded {
    requests: Requests,
    profiles: Vec<ExportProfilesServiceRequest>,
}

impl Decoded {
    fn add(&mut self, signal: Signal, message: &[u8]) {
        match signal {
            Signal::Logs => self.requests.logs.merge(message).unwrap(),
            Signal::Traces => self.requests.traces.merge(message).unwrap(),
            Signal::Metrics => self.requests.metrics.merge(message).unwrap(),
            Signal::Profiles => self.profiles.push(ExportProfilesServiceRequest::decode(message).unwrap()),
        }
    }

    /// Every sample as text: its profile, time, value, frames and attributes.
    fn samples(&self) -> BTreeMap<String, u32> {
        let mut samples = BTreeMap::new();
        for request in &self.profiles {
            let dictionary = request.dictionary.as_ref().unwrap();
            check(dictionary);
            for profile in request
                .resource_profiles
                .iter()
                .flat_map(|group| &group.scope_profiles)
                .flat_map(|scope| &scope.profiles)
            {
                for sample in of_profile(profile, dictionary) {
                    *samples.entry(sample).or_default() += 1;
                }
            }
        }
        samples
    }
}

/// The rules for a dictionary: the first entry of each table is empty, and no entry repeats.
fn check(dictionary: &ProfilesDictionary) {
    assert_eq!(dictionary.string_table[0], "");
    assert_eq!(dictionary.function_table[0], Default::default());
    assert_eq!(dictionary.location_table[0], Default::default());
    assert_eq!(dictionary.stack_table[0], Default::default());
    assert_eq!(dictionary.attribute_table[0], Default::default());
    assert_eq!((dictionary.link_table.len(), dictionary.mapping_table.len()), (1, 1));
    let strings: std::collections::HashSet<_> = dictionary.string_table.iter().collect();
    assert_eq!(strings.len(), dictionary.string_table.len());
}

fn of_profile(profile: &Profile, dictionary: &ProfilesDictionary) -> Vec<String> {
    let text = |index: i32| dictionary.string_table[index as usize].as_str();
    let types = |of: Option<opentelemetry_proto::tonic::profiles::v1development::ValueType>| {
        let of = of.unwrap();
        format!("{}/{}", text(of.type_strindex), text(of.unit_strindex))
    };
    assert!(profile.period > 0 && profile.duration_nano <= 10_000_000_000);
    let head = format!("{} by {}", types(profile.sample_type), types(profile.period_type));
    let attribute = |index: &i32| {
        let attribute = &dictionary.attribute_table[*index as usize];
        format!(
            "{}={:?}",
            text(attribute.key_strindex),
            attribute.value.as_ref().and_then(|value| value.value.as_ref())
        )
    };
    let mut samples = Vec::new();
    for sample in &profile.samples {
        assert_eq!(sample.values.len(), sample.timestamps_unix_nano.len());
        let frames = dictionary.stack_table[sample.stack_index as usize].location_indices.iter().map(|location| {
            let location = &dictionary.location_table[*location as usize];
            let [line] = &location.lines[..] else { panic!("{location:?}") };
            let function = &dictionary.function_table[line.function_index as usize];
            let kind = location.attribute_indices.iter().map(attribute).collect::<String>();
            format!("{} {}:{} {kind}", text(function.name_strindex), text(function.filename_strindex), line.line)
        });
        let frames: Vec<_> = frames.collect();
        let mut attributes: Vec<_> = sample.attribute_indices.iter().map(attribute).collect();
        attributes.sort();
        for (value, time) in sample.values.iter().zip(&sample.timestamps_unix_nano) {
            assert!((profile.time_unix_nano..profile.time_unix_nano + profile.duration_nano).contains(time));
            samples.push(format!("{head} {time} {value} {frames:?} {attributes:?}"));
        }
    }
    samples
}

/// The same, of events.
fn expected_samples<'a>(events: impl Iterator<Item = EventView<'a>>) -> BTreeMap<String, u32> {
    let mut samples = BTreeMap::new();
    for event in events {
        let DataView::Sample(sample) = event.data() else { continue };
        let of = format!("{}/{}", sample.data.sample_type, sample.data.unit);
        let head = match sample.data.sample_type {
            "cpu" => format!("samples/count by {of}"),
            _ => format!("{of} by {of}"),
        };
        let frames = sample.frames().map(|frame| {
            let text = |text: Option<tributary::event::TextView<'a>>| text.map_or("", |text| text.text()).to_owned();
            let file = text(frame.file);
            let kind = if file == "<cfunc>" { "native" } else { "ruby" };
            let kind = format!("profile.frame.type={:?}", Some(Any::StringValue(kind.to_owned())));
            format!(
                "{} {file}:{} {kind}",
                text(frame.function),
                frame.line.and_then(|line| i64::try_from(line).ok()).unwrap_or(0)
            )
        });
        let frames: Vec<_> = frames.collect();
        let mut attributes: Vec<_> = event
            .attributes()
            .map(|(key, value)| {
                let value = match value {
                    tributary::event::ValueView::Text(text) => Any::StringValue(text.text().to_owned()),
                    tributary::event::ValueView::U64(number) => Any::IntValue(number as i64),
                    tributary::event::ValueView::Bool(value) => Any::BoolValue(value),
                    other => panic!("{other:?}"),
                };
                format!("{}={:?}", key.text(), Some(value))
            })
            .collect();
        attributes.sort();
        let time = event.time().unwrap_or(event.observed()).0;
        let value = match sample.data.value {
            Number::U64(value) => value,
            other => panic!("{other:?}"),
        };
        *samples.entry(format!("{head} {time} {value} {frames:?} {attributes:?}")).or_default() += 1;
    }
    samples
}

#[test]
fn the_events_of_each_protocol_are_the_same_in_requests() {
    let mut kinds = [0; 5];
    for (name, batches) in batches() {
        for limit in [64 << 20, 20_000] {
            let mut encoder = Encoder::new(limit, true, 0);
            for event in batches.iter().flat_map(Batch::events) {
                assert!(encoder.push(event, true), "{name}");
                kinds[event.kind().index()] += 1;
            }
            encoder.end_requests();
            let mut decoded = Decoded::default();
            let mut events = 0;
            for request in encoder.take_requests() {
                assert!(request.body.len() <= limit);
                decoded.add(request.signal, &request.body);
                events += request.events as usize;
            }
            assert_eq!(events, batches.iter().map(Batch::len).sum::<usize>());
            let all = || batches.iter().flat_map(Batch::events);
            assert_eq!(decoded.samples(), expected_samples(all()), "{name}");
            if limit > 1 << 20 {
                assert_eq!(sorted(decoded.requests), sorted(requests(all(), true)), "{name}");
            }
        }
    }
    let has = |kind: Kind| kinds[kind.index()] > 0;
    assert!(
        has(Kind::Log) && has(Kind::Span) && has(Kind::Metric) && has(Kind::Sample) && has(Kind::Loss),
        "{kinds:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_in_python_reads_the_same() {
    let python = std::env::var("TRIBUTARY_OTLP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sink/otlp_receiver.py");
    let mut command = Command::new(&python);
    let Ok(mut child) = command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        eprintln!("NOT TESTED: there is no {python}");
        return;
    };
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut port = String::new();
    if stdout.read_line(&mut port).unwrap() == 0 {
        assert_eq!(child.wait().unwrap().code(), Some(NO_PACKAGE), "{python} fails");
        eprintln!(
            "NOT TESTED: {python} has no grpcio or opentelemetry-proto (pip install, TRIBUTARY_OTLP_PYTHON=that python)"
        );
        return;
    }
    let printed = std::thread::spawn(move || {
        let mut lines = String::new();
        stdout.read_to_string(&mut lines).unwrap();
        lines
    });
    let endpoint: hyper::Uri = format!("http://127.0.0.1:{}", port.trim()).parse().unwrap();
    for compression in [Compression::Gzip, Compression::None] {
        // max_in_flight of 1 keeps the order of requests, which decides the order of groups.
        let options =
            Options { compression, max_in_flight: 1, max_request_bytes: 1 << 20, ..Options::to(endpoint.clone()) };
        let sending = Sending::start(options);
        for (_, batches) in batches() {
            for batch in batches {
                sending.deliver(batch).await;
            }
        }
        let totals = sending.finish().await;
        assert_eq!((totals.failed, totals.written), (0, totals.events));
    }
    drop(child.stdin.take());
    let lines = printed.join().unwrap();
    child.wait().unwrap();
    let mut decoded = Decoded::default();
    for line in lines.lines() {
        let (signal, message) = line.split_once(' ').unwrap();
        let signal = Signal::ALL.into_iter().find(|known| known.as_str() == signal).unwrap();
        decoded.add(signal, &tributary::codec::base64::decode(message.as_bytes()).unwrap());
    }
    let batches: Vec<Batch> = (0..2).flat_map(|_| batches().into_iter().flat_map(|(_, batches)| batches)).collect();
    let all = || batches.iter().flat_map(Batch::events);
    assert_eq!(decoded.samples(), expected_samples(all()));
    assert_eq!(records(&decoded.requests), records(&requests(all(), true)));
}

/// Every record as text with its scope and resource, and how often it is there.
fn records(requests: &Requests) -> BTreeMap<String, u32> {
    use opentelemetry_proto::tonic::metrics::v1::metric::Data;
    let requests = sorted(requests.clone());
    let mut records = BTreeMap::new();
    let mut add = |record: String| *records.entry(record).or_default() += 1;
    for group in &requests.logs.resource_logs {
        for scope in &group.scope_logs {
            scope.log_records.iter().for_each(|record| add(format!("{:?}{:?}{record:?}", group.resource, scope.scope)));
        }
    }
    for group in &requests.traces.resource_spans {
        for scope in &group.scope_spans {
            scope.spans.iter().for_each(|span| add(format!("{:?}{:?}{span:?}", group.resource, scope.scope)));
        }
    }
    for group in &requests.metrics.resource_metrics {
        for scope in &group.scope_metrics {
            for metric in &scope.metrics {
                let (points, of) = match metric.data.as_ref().unwrap() {
                    Data::Gauge(gauge) => (&gauge.data_points, "gauge".to_owned()),
                    Data::Sum(sum) => {
                        (&sum.data_points, format!("sum {} {}", sum.aggregation_temporality, sum.is_monotonic))
                    }
                    other => panic!("{other:?}"),
                };
                let head = format!("{:?}{:?}{} {} {of}", group.resource, scope.scope, metric.name, metric.unit);
                points.iter().for_each(|point| add(format!("{head}{point:?}")));
            }
        }
    }
    records
}
