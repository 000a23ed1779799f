//! The rules of a sink in front of real sinks: what is in their books, and that what they may not show is nowhere.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use tokio_util::sync::CancellationToken;
use tributary::config::Config;
use tributary::event::{
    Batch, BatchBuilder, Header, Identity, InternedRun, Key, Loss, Origin, Position, Reason, Resource, ResourceValue,
    Severity, SpanData, SpanId, Status, TraceId, UnixNanos, Value, semconv,
};
use tributary::pipeline::accounting::SinkTotals;
use tributary::pipeline::options::{QueueOptions, WhenFull};
use tributary::pipeline::{DeliveryOutcome, RequestedLevel, Sinks};
use tributary::select::{Rule, Rules};
use tributary::sink::AckLevel;
use tributary::sink::encode::{Format, LineFields};
use tributary::sink::file::{self, File};
use tributary::sink::http::{self, Http, RetryOptions, SpoolOptions};
use tributary::sink::otlp::{self, Otlp};

use crate::compact;
use crate::live::puppet::{Mood, Strings};
use crate::live::{until, within};
use crate::sink_file_support::files;

fn rules(text: &str) -> Option<Arc<Rules>> {
    let text = format!("[sinks.a]\ntype = \"discard\"\n{text}\n");
    let config = Config::parse("t.toml", &text).unwrap_or_else(|errors| panic!("{errors}")).config;
    Rules::new(&config.sinks[0].select).unwrap()
}

fn header(name: impl Into<Key>, offset: u64) -> Header {
    let position = Position { sequence: None, offset, length: 1 };
    Header { name: name.into(), time: Some(UnixNanos(5)), observed: UnixNanos(1_700_000_000_000_000_000), position }
}

/// Logs of these names; `padding` makes them longer.
fn logs(names: &[&str], padding: usize) -> Batch {
    let mut builder = BatchBuilder::new(Arc::new(Origin::new("datadog", "web".into(), "127.0.0.1:7".into(), 1)));
    for (offset, name) in names.iter().enumerate() {
        let name = builder.push_text(name);
        let mut event = builder.event(header(name, offset as u64));
        event.text(semconv::THREAD_NAME, &"x".repeat(padding));
        event.log(Severity::Info, None);
    }
    builder.take()
}

/// One sink whose mood a test sets, with rules.
struct Ruled {
    strings: Strings,
    sender: tributary::pipeline::Sender,
    workers: tributary::pipeline::Workers,
}

impl Ruled {
    fn start(mood: Mood, options: QueueOptions, text: &str) -> Ruled {
        let strings = Strings::new(mood);
        let mut sinks = Sinks::new(CancellationToken::new());
        let of_sink = strings.clone();
        sinks.add_with("ruled", options, rules(text), move || Ok(of_sink.puppet()));
        let (sender, workers) = sinks.start();
        Ruled { strings, sender, workers }
    }

    fn totals(&self) -> SinkTotals {
        self.workers.counters()[0].totals()
    }

    async fn finish(self) -> (Vec<String>, SinkTotals) {
        let Ruled { strings, sender, mut workers } = self;
        drop(sender);
        within("the sink ends", workers.drained()).await;
        let totals = workers.counters()[0].totals();
        assert_eq!(totals.in_flight(), 0, "{totals:?}");
        (strings.written_names(), totals)
    }
}

#[tokio::test]
async fn what_rules_leave_out_is_counted_by_rule_and_counts_as_delivered() {
    let text = "where = [{ name = 'a*' }, { name = 'b*' }]\nunless = [{ name = 'none' }, { name = '*2' }]";
    let ruled = Ruled::start(Mood::Write, QueueOptions::default(), text);
    let outcome = within("delivery", ruled.sender.deliver(logs(&["a1", "c", "b1", "a2", "c"], 0))).await;
    assert_eq!(outcome, DeliveryOutcome::Written);
    let (names, totals) = ruled.finish().await;
    assert_eq!(names, ["a1", "b1"]);
    assert_eq!((totals.events, totals.written, totals.filtered()), (5, 2, 3));
    assert_eq!(totals.filtered, BTreeMap::from([(Rule::Where, 2), (Rule::Unless(1), 0), (Rule::Unless(2), 1)]));
    assert_eq!(totals.to_string(), "sink ruled: 5 events = 2 written + 0 shed + 0 failed + 3 filtered");
}

#[tokio::test]
async fn a_batch_of_which_nothing_is_taken_does_not_wait_for_a_sink_that_cannot_write() {
    let small = QueueOptions { buffer_batches: 1, ..QueueOptions::default() };
    let ruled = Ruled::start(Mood::Retry, small, "where = [{ name = 'a' }]");
    ruled.sender.send(logs(&["a"], 0)).await;
    until("the sink has it", || (ruled.totals().queue_batches == 0).then_some(())).await;
    ruled.sender.send(logs(&["a"], 0)).await;
    for _ in 0..100 {
        let outcome = within("delivery", ruled.sender.deliver(logs(&["b"], 0))).await;
        assert_eq!(outcome, DeliveryOutcome::Written);
    }
    ruled.strings.set(Mood::Write);
    let (names, totals) = ruled.finish().await;
    assert_eq!((names.len(), totals.written, totals.filtered()), (2, 2, 100));
}

#[tokio::test]
async fn only_what_the_sink_would_have_taken_is_shed() {
    let options = QueueOptions { buffer_batches: 1, when_full: WhenFull::Shed, ..QueueOptions::default() };
    // Losses are left out, too: also the sink's own.
    let ruled = Ruled::start(Mood::Retry, options, "where = [{ name = 'a' }]");
    ruled.sender.send(logs(&["a"], 0)).await;
    until("the sink has it", || (ruled.totals().queue_batches == 0).then_some(())).await;
    ruled.sender.send(logs(&["a", "b"], 0)).await;
    ruled.sender.send(logs(&["b", "a", "b", "a"], 0)).await;
    let totals = ruled.totals();
    assert_eq!((totals.shed, totals.filtered()), (2, 3));
    ruled.strings.set(Mood::Write);
    let (names, totals) = ruled.finish().await;
    assert_eq!((names.as_slice(), totals.written), (&["a".to_owned(), "a".to_owned()][..], 2));
}

#[tokio::test]
async fn a_sink_that_takes_little_of_each_batch_has_only_that_in_its_queue() {
    let options = QueueOptions { buffer_bytes: 64 << 10, ..QueueOptions::default() };
    let ruled = Ruled::start(Mood::Retry, options, "where = [{ name = 'a' }]");
    let names: Vec<_> = (0..200).map(|index| if index == 100 { "a" } else { "b" }).collect();
    // Each batch has 100 KiB, more than the queue; the event that is taken has 500 bytes.
    for _ in 0..20 {
        within("the batch enters the queue", ruled.sender.send(logs(&names, 500))).await;
    }
    ruled.strings.set(Mood::Write);
    let (names, totals) = ruled.finish().await;
    assert_eq!((names, totals.filtered()), (vec!["a".to_owned(); 20], 20 * 199));
}

// ---- Redaction ----

/// A value that is not to be shown, as it could be written: text, digits, varint, little-endian, base64.
#[derive(Clone, Debug)]
enum Hidden {
    Text(String),
    Whole(u64),
    Double(f64),
    Bytes(Vec<u8>),
}

impl Hidden {
    fn value(&self, batch: &mut BatchBuilder) -> Value {
        match self {
            Hidden::Text(text) => batch.push_text(text).into(),
            Hidden::Whole(number) => (*number).into(),
            Hidden::Double(number) => (*number).into(),
            Hidden::Bytes(bytes) => batch.bytes(bytes),
        }
    }

    fn forms(&self) -> Vec<Vec<u8>> {
        match self {
            // What follows the letter may be escaped.
            Hidden::Text(text) => vec![text.split('é').next().unwrap().as_bytes().to_vec()],
            Hidden::Whole(number) => {
                let mut varint = Vec::new();
                prost::encoding::encode_varint(*number, &mut varint);
                vec![number.to_string().into_bytes(), varint, number.to_le_bytes().to_vec()]
            }
            Hidden::Double(number) => vec![number.to_string().into_bytes(), number.to_le_bytes().to_vec()],
            Hidden::Bytes(bytes) => {
                // Six bytes are eight digits of base64, and a longer text of bytes contains them.
                let digits =
                    |bits: u8| b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[usize::from(bits)];
                let base64 = bytes.chunks(3).flat_map(|three| {
                    let all = u32::from_be_bytes([0, three[0], three[1], three[2]]);
                    [18, 12, 6, 0].map(|shift| digits((all >> shift & 63) as u8))
                });
                vec![bytes.clone(), base64.collect()]
            }
        }
    }
}

fn hidden() -> impl Strategy<Value = Hidden> {
    prop_oneof![
        "SECRET[a-z]{12}é[\"\\\\a-z]{0,2}".prop_map(Hidden::Text),
        (1_u64 << 60..1 << 62).prop_map(Hidden::Whole),
        (1.0e10..1.0e11).prop_map(|number: f64| Hidden::Double(number + 0.123)),
        proptest::collection::vec(128_u8..=255, 9).prop_map(Hidden::Bytes),
    ]
}

/// Where hidden values stand.
#[derive(Clone, Copy, Debug)]
enum Place {
    Own,
    Named,
    Shared,
    Nested,
    Body,
    BodyMember,
    Resource,
    Identity,
}

fn place() -> impl Strategy<Value = Place> {
    use Place::*;
    prop_oneof![
        Just(Own),
        Just(Named),
        Just(Shared),
        Just(Nested),
        Just(Body),
        Just(BodyMember),
        Just(Resource),
        Just(Identity)
    ]
}

/// The keys of hidden values: the first is removed, the second hashed.
const KEYS: [&str; 2] = ["user.secret", "user.id"];
const NAMED: [semconv::Name; 2] = [semconv::THREAD_NAME, semconv::CODE_FILE_PATH];
const RULES: &str = "remove = ['user.secret', 'thread.name', 'shown.resource', 'nested.*.user.secret', 'loss.*']";
const HASHED: &str = "'user.id', 'code.file.path', 'body'";

fn resource_value(hidden: &Hidden) -> ResourceValue {
    match hidden {
        Hidden::Text(text) => ResourceValue::Text(text.clone()),
        Hidden::Whole(number) => ResourceValue::U64(*number),
        Hidden::Double(number) => ResourceValue::F64(*number),
        Hidden::Bytes(bytes) => ResourceValue::Text(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
    }
}

fn attribute((hidden, _, key): &(Hidden, Place, usize)) -> (String, ResourceValue) {
    (KEYS[*key].to_owned(), resource_value(hidden))
}

/// Events with these values in these places, and others that are shown.
fn events(values: &[(Hidden, Place, usize)]) -> Batch {
    let at = |wanted: fn(&Place) -> bool| values.iter().filter(move |(_, place, _)| wanted(place));
    let identity = at(|place| matches!(place, Place::Identity)).take(1).map(attribute).collect();
    let identity = Identity::new(identity, false);
    let origin = Origin::new("zico", "shop".into(), "192.0.2.7:4".into(), 3).with_identity(Some(Arc::new(identity)));
    let mut builder = BatchBuilder::new(Arc::new(origin));
    let mut resource: Vec<_> = at(|place| matches!(place, Place::Resource)).map(attribute).collect();
    resource.push(("shown.name".to_owned(), "SHOWN-RESOURCE".into()));
    builder.set_resource(Arc::new(Resource::new(resource)));
    let mut memo = InternedRun::default();
    for (offset, (hidden, place, key)) in values.iter().enumerate() {
        let shared = builder.intern_run(&mut memo, |batch| {
            let found = values.iter().find(|(_, place, _)| matches!(place, Place::Shared));
            let (value, key) = found.map_or((Value::Bool(true), 0), |(hidden, _, key)| (hidden.value(batch), *key));
            let shown = batch.push_text("SHOWN-RUN");
            [(semconv::ZICO_SESSION_ID.into(), shown.into()), (batch.push_text(KEYS[key]).into(), value)]
        });
        let name = builder.push_text("event");
        let mut event = builder.event(header(name, offset as u64));
        event.run(shared);
        event.text(semconv::ZICO_TRACE_TYPE, "SHOWN-ATTRIBUTE");
        let value = hidden.value(event.batch());
        let text_key: Key = event.batch().push_text(KEYS[*key]).into();
        let member = event.batch().map(&[(text_key, value)]);
        let mut body = None;
        match place {
            Place::Own => {
                // Beside the run, whose key is the same.
                let own = event.batch().push_text(&format!("own.{}", KEYS[*key]));
                let object = event.batch().map(&[(text_key, value)]);
                event.attribute(own, object);
            }
            Place::Named => event.attribute(NAMED[*key], value),
            Place::Nested => {
                let items = event.batch().array(&[member, Value::Null]);
                event.attribute(semconv::ENDLESS_PAYLOAD, items);
            }
            Place::Body => body = Some(value),
            Place::BodyMember => body = Some(member),
            Place::Shared | Place::Resource | Place::Identity => {}
        }
        if matches!(place, Place::Body | Place::BodyMember) || offset % 2 == 0 {
            event.log(Severity::Warn, body);
        } else {
            let (trace_id, span_id) = (TraceId([7; 16]), SpanId([8; 8]));
            let status = Status::Ok;
            event.span(SpanData { duration_nanos: Some(1), status, ..SpanData::new(trace_id, span_id) });
        }
        if let Hidden::Text(text) = hidden {
            let loss =
                Loss { reason: Reason::Malformed, bytes: 1, events: None, detail: text, excerpt: text.as_bytes() };
            builder.loss(header(semconv::LOSS, offset as u64), loss);
        }
    }
    builder.take()
}

/// The files of every sink that has written these events under these rules; destinations are away, so spools keep all.
async fn written(directory: &Path, batch: impl Fn() -> Batch, text: &str) -> Vec<(String, Vec<u8>)> {
    let mut sinks = Sinks::new(CancellationToken::new());
    for (name, format, fields) in [
        ("json", Format::Json, LineFields::Full),
        ("compact", Format::Json, LineFields::Compact),
        ("text", Format::Text, LineFields::Full),
    ] {
        let path = format!("{}/{name}.out", directory.display());
        let options = file::Options { path, format, fields, ..file::Options::default() };
        let make = move || Ok(File::new(options.clone()).unwrap());
        sinks.add_with(name, QueueOptions::default(), rules(text), make);
    }
    let endpoint = "http://127.0.0.1:9/".parse::<hyper::Uri>().unwrap();
    let spool = Some(SpoolOptions { min_free_bytes: Some(0), ..SpoolOptions::at(directory.join("spool")) });
    let minute = Duration::from_secs(60);
    let retry = RetryOptions { shortest: minute, longest: minute, max_delay: Duration::from_secs(300) };
    let http_options = http::Options {
        spool: spool.clone(),
        compression: http::Compression::None,
        retry,
        ..http::Options::to(endpoint.clone())
    };
    let otlp_options =
        otlp::Options { spool, compression: otlp::Compression::None, retry, ..otlp::Options::to(endpoint) };
    sinks.add_with("http", QueueOptions::default(), rules(text), move || Ok(Http::new("http", http_options.clone())));
    sinks.add_with("otlp", QueueOptions::default(), rules(text), move || Ok(Otlp::new("otlp", otlp_options.clone())));
    let (sender, mut workers) = sinks.start();
    let sender = sender.with_level(RequestedLevel::new(AckLevel::Durable));
    assert_eq!(within("delivery", sender.deliver(batch())).await, DeliveryOutcome::Written);
    let written = files(directory).into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
    within("the sinks end", workers.abort()).await;
    written
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn no_removed_or_hashed_value_is_anywhere_in_what_a_sink_writes() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut runner = TestRunner::new(Cases { cases: 24, failure_persistence: None, ..Cases::default() });
    let values = proptest::collection::vec((hidden(), place(), 0..2_usize), 1..12);
    let key = tempfile::tempdir().unwrap();
    std::fs::write(key.path().join("key"), "a key\n").unwrap();
    let hash = format!("hash = {{ attributes = [{HASHED}], key_file = '{}' }}", key.path().join("key").display());
    let text = format!("{RULES}\n{hash}");
    let found = |values: &[(Hidden, Place, usize)], text: &str| {
        let directory = tempfile::tempdir().unwrap();
        let written = runtime.block_on(written(directory.path(), || events(values), text));
        assert_eq!(written.iter().filter(|(name, _)| name.ends_with(".out")).count(), 3);
        let of = |name: &str| &written.iter().find(|(of, _)| of == name).unwrap().1;
        assert!(compact::full(&compact::read(of("compact.out"))) == *of("json.out"), "the same events");
        let spools = ["http", "otlp"].map(|sink| format!("spool/{sink}/"));
        for spool in &spools {
            assert!(written.iter().any(|(name, bytes)| name.starts_with(spool) && contains(bytes, b"SHOWN-ATTRIBUTE")));
        }
        written
    };
    runner
        .run(&values, |values| {
            let written = found(&values, &text);
            for (name, bytes) in &written {
                for (hidden, place, _) in &values {
                    for form in hidden.forms() {
                        prop_assert!(!contains(bytes, &form), "{hidden:?} of {place:?} is in {name}");
                    }
                }
            }
            for shown in ["SHOWN-RESOURCE", "SHOWN-RUN", "SHOWN-ATTRIBUTE"] {
                let count = written.iter().filter(|(_, bytes)| contains(bytes, shown.as_bytes())).count();
                // The text format shows only the name of the service.
                prop_assert!(count >= 3, "{shown} is in {count} files");
            }
            Ok(())
        })
        .unwrap();
    // Without rules they are there: the search finds them.
    for hidden in [
        Hidden::Text("SECRETabcdefghijklé".to_owned()),
        Hidden::Whole((1 << 61) + 5),
        Hidden::Double(12_345_678_901.123),
        Hidden::Bytes((128..137).collect()),
    ] {
        let written = found(&[(hidden.clone(), Place::Named, 0)], "");
        for sink in ["json.out", "compact.out", "text.out", "spool/http/", "spool/otlp/"] {
            let mut of_sink = written.iter().filter(|(name, _)| name.starts_with(sink));
            let is_there = of_sink.any(|(_, bytes)| hidden.forms().iter().any(|form| contains(bytes, form)));
            assert!(is_there, "{hidden:?} in {sink}");
        }
    }
}

#[test]
fn two_daemons_keep_the_same_traces() {
    let keep = |connection: u64, extra: &str| {
        let rules = rules(&format!("{extra}\nsample = {{ keep = 0.2 }}")).unwrap();
        let mut builder = BatchBuilder::new(Arc::new(Origin::new("datadog", "web".into(), "p".into(), connection)));
        for number in 0..5_000_u64 {
            let id = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            let trace_id = TraceId(id.to_be_bytes());
            let (span_id, status) = (SpanId([1; 8]), Status::Ok);
            let span = SpanData { status, ..SpanData::new(trace_id, span_id) };
            builder.event(header(semconv::DATADOG_SPAN, number * connection)).span(span);
        }
        let batch = builder.take();
        let choice = rules.choose(&batch, tributary::sink::Kinds::ALL);
        (0..batch.len()).filter(|index| choice.chosen.as_ref().unwrap().contains(*index)).collect::<Vec<_>>()
    };
    let one = keep(1, "");
    assert_eq!(one, keep(2, "remove = ['http.*']"));
    assert!((850..1_150).contains(&one.len()), "{}", one.len());
}
