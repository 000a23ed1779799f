//! What the sink `otlp` writes for arbitrary events, hostile ones included, decoded by prost, equals the structs that the
//! mapping demands.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message as _;
use tributary::event::{
    Batch, BatchBuilder, Buckets, Distribution, DistributionForm, DroppedCounts, EventView, Header, InternedRun, Key,
    Link, Loss, MetricData, MetricType, Name, Number, Origin, Position, Reason, Resource, ResourceValue,
    SeverityNumber, Span32, SpanData, SpanEvent, SpanExtras, SpanId, SpanKind, SpanLink, Status, Temporality,
    TraceContext, TraceId, UnixNanos, Value, ValueView, semconv,
};
use tributary::sink::otlp::{Encoder, ExportRequest, Signal};

use crate::otlp_support::{Requests, requests, sorted};

/// An attribute value before it is in a batch.
#[derive(Clone, Debug)]
enum Spec {
    Null,
    Bool(bool),
    I64(i64),
    U64(u64),
    F64(f64),
    Text(String),
    Bytes(Vec<u8>),
    Array(Vec<Spec>),
    Map(Vec<(String, Spec)>),
    /// Arrays and maps in turn around a number.
    Nested(usize),
}

#[derive(Clone, Debug)]
struct EventSpec {
    kind: u8,
    name: String,
    time: Option<u64>,
    end: Option<u64>,
    number: u64,
    attributes: Vec<(String, Spec)>,
    has_run: bool,
    body: Option<Spec>,
    resource: usize,
    origin: usize,
    choice: u8,
}

const KEYS: &[&str] = &[
    "",
    "a",
    "a_base64",
    "_base64",
    "trace_id",
    "span_id",
    "service.name",
    "span.kind",
    "datadog.type",
    "tributary.incomplete",
    "tributary.incomplete_base64",
    "tributary.parent.self",
    "tributary.listener",
    "tributary.offset_base64",
    "tributary.sequence",
    "network.peer.port",
    "network.peer.address",
    "loss.reason",
    "loss.detail_base64",
    "tributary.text.nested",
    "tributary.time.basis",
    "code.function.name",
];
const TEXTS: &[&str] = &[
    "",
    "web",
    "server",
    "internal",
    "SERVER",
    "0123456789abcdef",
    "0123456789abcdef0123456789abcdef",
    "0123456789ABCDEF0123456789abcdef",
    "NaN",
    "ü\u{202e}\"\\\n",
];

fn key() -> impl Strategy<Value = String> {
    prop_oneof![3 => proptest::sample::select(KEYS).prop_map(str::to_owned), 2 => "[a-zé._]{0,9}", 1 => "[a-z]{120,140}"]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![3 => proptest::sample::select(TEXTS).prop_map(str::to_owned), 2 => ".{0,20}", 1 => "[ -~]{100,300}"]
}

fn value() -> impl Strategy<Value = Spec> {
    let leaf = prop_oneof![
        1 => Just(Spec::Null),
        1 => any::<bool>().prop_map(Spec::Bool),
        2 => any::<i64>().prop_map(Spec::I64),
        2 => prop_oneof![any::<u64>(), 0..200u64, Just(u64::MAX), Just(1 << 63)].prop_map(Spec::U64),
        2 => prop_oneof![any::<f64>(), Just(f64::NAN), Just(f64::NEG_INFINITY), Just(-0.0)].prop_map(Spec::F64),
        6 => text().prop_map(Spec::Text),
        2 => vec(any::<u8>(), 0..40).prop_map(Spec::Bytes),
        1 => (14..20usize).prop_map(Spec::Nested),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Spec::Array),
            vec((key(), inner), 0..5).prop_map(|members| Spec::Map(unique(members))),
        ]
    })
}

fn event() -> impl Strategy<Value = EventSpec> {
    let numbers =
        (any::<u64>(), proptest::option::weighted(0.7, any::<u64>()), proptest::option::weighted(0.7, any::<u64>()));
    let small = (0..6u8, 0..3usize, 0..4usize, any::<u8>(), any::<bool>());
    (text(), numbers, vec((key(), value()), 0..9), proptest::option::of(value()), small).prop_map(
        |(name, (number, time, end), attributes, body, (kind, resource, origin, choice, has_run))| EventSpec {
            attributes: unique(attributes),
            kind,
            name,
            time,
            end,
            number,
            has_run,
            body,
            resource,
            origin,
            choice,
        },
    )
}

/// No two attributes of an event have one key.
fn unique(mut members: Vec<(String, Spec)>) -> Vec<(String, Spec)> {
    let mut seen = std::collections::HashSet::new();
    members.retain(|(key, _)| key != "run.a" && seen.insert(key.clone()));
    members
}

fn write(builder: &mut BatchBuilder, spec: &Spec) -> Value {
    match spec {
        Spec::Null => Value::Null,
        Spec::Bool(value) => Value::Bool(*value),
        Spec::I64(value) => Value::I64(*value),
        Spec::U64(value) => Value::U64(*value),
        Spec::F64(value) => Value::F64(*value),
        Spec::Text(text) => builder.push_text(text).into(),
        Spec::Bytes(bytes) => builder.bytes(bytes),
        Spec::Array(values) => {
            let values: Vec<_> = values.iter().map(|value| write(builder, value)).collect();
            builder.array(&values)
        }
        Spec::Map(members) => {
            let members: Vec<_> =
                members.iter().map(|(key, value)| (Key::from(builder.push_text(key)), write(builder, value))).collect();
            builder.map(&members)
        }
        Spec::Nested(levels) => {
            let mut value = Value::U64(7);
            for level in 0..*levels {
                value = if level % 2 == 0 {
                    builder.array(&[value])
                } else {
                    let key = builder.push_text("k").into();
                    builder.map(&[(key, value)])
                };
            }
            value
        }
    }
}

fn batch(events: &[EventSpec]) -> Batch {
    let protocols = ["datadog", "rbkit", "zico", "bytefrog"];
    let origin = |number: usize| {
        let peer = ["127.0.0.1:40112", "h:1"][number % 2];
        let origin = Origin::new(protocols[number], "apm".into(), peer.into(), number as u64);
        Arc::new(if number == 2 { origin.with_version("4") } else { origin })
    };
    let origins: Vec<_> = (0..4).map(origin).collect();
    let text = |text: &str| ResourceValue::from(text);
    let resources = [
        Resource::new([]),
        Resource::new(
            [("service.name", text("")), ("process.executable.name", text("ruby")), ("", text("x"))]
                .map(|(key, value)| (key.to_owned(), value)),
        ),
        Resource::new(
            [
                ("service.name", text("shop")),
                ("telemetry.sdk.language", text("perl")),
                ("telemetry.distro.name", text("own")),
                ("big", ResourceValue::U64(u64::MAX)),
                ("negative", ResourceValue::I64(-1)),
                ("flag", ResourceValue::Bool(false)),
                ("ratio", ResourceValue::F64(0.0)),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        ),
    ]
    .map(Arc::new);
    let mut builder = BatchBuilder::new(origins[0].clone());
    let mut run = InternedRun::default();
    for event in events {
        builder.set_origin(origins[event.origin].clone());
        builder.set_resource(resources[event.resource].clone());
        write_event(&mut builder, event, &mut run);
    }
    builder.take()
}

/// Keys that the run may have.
const RUN_KEYS: [Name; 3] = [semconv::SPAN_KIND, semconv::ORIGIN_LISTENER, semconv::CODE_FUNCTION_NAME];

fn write_event(builder: &mut BatchBuilder, spec: &EventSpec, run: &mut InternedRun) {
    let EventSpec { number, choice, .. } = *spec;
    let name = builder.push_text(&spec.name);
    let sequence = Some(number).filter(|_| choice & 1 == 0);
    let header = Header {
        name: name.into(),
        time: spec.time.map(UnixNanos),
        observed: UnixNanos(number),
        position: Position { sequence, offset: number / 3, length: 1 },
    };
    let attributes: Vec<(Key, Value)> = spec
        .attributes
        .iter()
        .filter(|(key, _)| !spec.has_run || RUN_KEYS.iter().all(|name| name.as_str() != key))
        .map(|(key, value)| {
            let value = write(builder, value);
            let known = [semconv::SERVICE_NAME, semconv::TRACE_ID, semconv::INCOMPLETE, semconv::DATADOG_TYPE];
            match known.into_iter().find(|name| name.as_str() == key) {
                Some(name) => (name.into(), value),
                None => (builder.push_text(key).into(), value),
            }
        })
        .collect();
    if spec.kind == 4 {
        let loss = Loss {
            reason: Reason::ALL[usize::from(choice) % 10],
            bytes: number,
            events: spec.time,
            detail: &spec.name,
            excerpt: &number.to_be_bytes()[..usize::from(choice % 8)],
        };
        return builder.loss_with(header, loss, &attributes);
    }
    let body = spec.body.as_ref().map(|body| write(builder, body));
    // Attributes that are the same in every event, and those that depend on the event or are not sent.
    let run = spec.has_run.then(|| {
        builder.intern_run(run, |builder| {
            let text: Value = builder.push_text("server").into();
            let second = match choice % 5 {
                0 => (semconv::SPAN_KIND.into(), text),
                1 => (builder.push_text(semconv::ORIGIN_LISTENER.as_str()).into(), text),
                2 => (builder.push_text("run.null").into(), Value::Null),
                3 => (builder.push_text("run.bytes_base64").into(), builder.bytes(b"run")),
                _ => (semconv::CODE_FUNCTION_NAME.into(), text),
            };
            [(builder.push_text("run.a").into(), Value::U64(1)), second]
        })
    });
    let mut event = builder.event(header);
    let (first, last) = attributes.split_at(attributes.len() / 2);
    first.iter().for_each(|(key, value)| event.attribute(*key, *value));
    run.into_iter().for_each(|run| event.run(run));
    last.iter().for_each(|(key, value)| event.attribute(*key, *value));
    match spec.kind {
        0 | 1 => {
            let severity = SeverityNumber::new(u64::from(choice % 24) + 1).unwrap();
            let id = 0x0123_4567_89ab_cdef_u64.to_be_bytes();
            let mut trace_id = [0; 16];
            trace_id[..8].copy_from_slice(&id);
            trace_id[8..].copy_from_slice(&id);
            let span_id = Some(SpanId(id)).filter(|_| choice & 4 == 0);
            match choice & 2 {
                0 => event.log(severity, body),
                _ => event.log_in(TraceContext { trace_id: TraceId(trace_id), span_id }, severity, body),
            }
        }
        2 => {
            let span_id = SpanId(number.to_be_bytes());
            let parent = [None, Some(span_id), Some(SpanId([1; 8]))][usize::from(choice) % 3];
            let text = event.batch().push_text(&spec.name);
            let span = SpanData {
                parent,
                end: spec.end.map(UnixNanos),
                duration_nanos: [None, Some(number), Some(number % 1000)][usize::from(choice / 3) % 3],
                kind: SpanKind::ALL.get(usize::from(choice) % 7).copied(),
                status: [Status::Unset, Status::Ok, Status::Error][usize::from(choice) % 3],
                status_message: (choice % 4 == 1).then_some(text),
                ..SpanData::new(TraceId([choice; 16]), span_id)
            };
            let attributes = event.batch().members(&[(text.into(), Value::U64(number))]);
            let to = Link { trace_id: TraceId([7; 16]), span_id };
            let full = SpanLink { to, attributes, trace_state: Some(text), flags: Some(u32::MAX) };
            let happened = SpanEvent { time: spec.end.map(UnixNanos), name: text.into(), attributes };
            let plain = SpanEvent { time: None, attributes: Span32::default(), ..happened };
            let links = [full, SpanLink::from(to)];
            let (links, events) =
                (&links[usize::from(choice % 3)..], &[plain, happened][usize::from(choice / 3 % 3)..]);
            let part = |number: u8| if choice & number == 0 { u32::MAX / u32::from(choice + 1) } else { 0 };
            let extras = SpanExtras {
                trace_state: (choice & 8 == 0).then_some(text),
                flags: part(16),
                dropped: DroppedCounts { attributes: part(32), events: part(64), links: part(128) },
            };
            match choice % 4 {
                3 => event.span_with(span, links, events),
                _ => event.span_with_extras(span, extras, links, events),
            }
        }
        5 => {
            let [unit, start] = [choice & 1, choice & 2].map(usize::from);
            let temporality = if choice & 4 == 0 { Temporality::Delta } else { Temporality::Cumulative };
            let double = f64::from_bits(number);
            let (bounds, counts) = ([double, 0.5, -1e300], [number, 0, u64::MAX, number % 200]);
            let (bounds, counts) = (&bounds[usize::from(choice) % 4..], &counts[usize::from(choice) % 5..]);
            let quantiles = [(0.0, double), (double, 1.0)];
            let form = match choice / 8 % 3 {
                0 => DistributionForm::Histogram { temporality, bounds, counts },
                1 => DistributionForm::Exponential {
                    temporality,
                    scale: number as i32,
                    zero_count: number,
                    zero_threshold: [0.0, double][unit],
                    positive: Buckets { offset: -i32::from(choice), counts },
                    negative: Buckets { offset: number as i32, counts: &counts[counts.len() / 2..] },
                },
                _ => DistributionForm::Summary(&quantiles[usize::from(choice) % 3..]),
            };
            let optional = |bit: u8, number: f64| (choice & bit == 0).then_some(number);
            let (sum, min, max) = (optional(32, double), optional(64, 0.0), optional(128, -double));
            let start = spec.end.map(UnixNanos).filter(|_| start == 0);
            event.distribution(["", "By"][unit], start, &Distribution { count: number, sum, min, max, form });
        }
        _ => {
            let temporality = if choice & 2 == 0 { Temporality::Delta } else { Temporality::Cumulative };
            let sum = MetricType::Sum { temporality, monotonic: choice & 4 == 0 };
            let value = [Number::U64(number), Number::I64(-(number as i64 / 2)), Number::F64(f64::from_bits(number))];
            event.metric(MetricData {
                metric_type: if choice & 8 == 0 { MetricType::Gauge } else { sum },
                unit: ["", "By"][usize::from(choice >> 7)].into(),
                value: value[usize::from(choice) % 3],
                start: spec.end.map(UnixNanos),
            });
        }
    }
}

#[test]
fn a_mark_that_a_peer_sends_itself_is_there_once_with_our_value() {
    let mut builder = BatchBuilder::new(Arc::new(Origin::new("datadog", "apm".into(), "127.0.0.1:9".into(), 1)));
    let key: Key = builder.push_text(semconv::PARENT_SELF.as_str()).into();
    let no: Value = builder.push_text("no").into();
    let mut run = InternedRun::default();
    let run = builder.intern_run(&mut run, |builder| [(key, no), (builder.push_text("env").into(), no)]);
    for has_run in [false, true] {
        let name = builder.push_text("GET /").into();
        let header = Header { name, time: None, observed: UnixNanos(7), position: Position::default() };
        let mut event = builder.event(header);
        event.attribute(semconv::DATADOG_TYPE, no);
        if has_run {
            event.run(run);
        } else {
            event.attribute(key, no);
        }
        event.attribute(semconv::DATADOG_RESOURCE, no);
        let span_id = SpanId([2; 8]);
        let parent = Some(span_id);
        let trace_id = TraceId([1; 16]);
        event.span(SpanData { parent, ..SpanData::new(trace_id, span_id) });
    }
    let batch = builder.take();
    let keys = |event: EventView<'_>| -> Vec<String> { event.attributes().map(|(key, _)| key.text().into()).collect() };
    let events: Vec<_> = batch.events().map(keys).collect();
    assert_eq!(events[0], ["datadog.type", "datadog.resource", "tributary.parent.self"]);
    assert_eq!(events[1], ["datadog.type", "env", "datadog.resource", "tributary.parent.self"]);
    for event in batch.events() {
        assert!(matches!(event.attributes().last().unwrap().1, ValueView::Bool(true)));
    }
}

/// Fails if the body is no valid message.
fn add(all: &mut Requests, request: &ExportRequest) {
    let body = &request.body[5..];
    match request.signal {
        Signal::Logs => all.logs.merge(body).unwrap(),
        Signal::Traces => all.traces.merge(body).unwrap(),
        Signal::Metrics => all.metrics.merge(body).unwrap(),
        Signal::Profiles => panic!("no sample"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_what_the_mapping_demands(events in vec(event(), 0..12), with_origin: bool) {
        let batch = batch(&events);
        let mut encoder = Encoder::new(64 << 20, with_origin, 5);
        encoder.begin_batch();
        for event in batch.events() {
            prop_assert!(encoder.push(event, true));
        }
        encoder.end_requests();
        let mut written = Requests::default();
        let mut count = 0;
        for request in encoder.take_requests() {
            count += request.events as usize;
            add(&mut written, &request);
        }
        prop_assert_eq!(count, batch.len());
        prop_assert_eq!(sorted(written), sorted(requests(batch.events(), with_origin)));
    }

    #[test]
    fn no_request_is_longer_than_allowed_and_only_events_that_are_longer_alone_are_left_out(
        events in vec(event(), 1..40), limit in 300..3000usize,
    ) {
        let batch = batch(&events);
        let mut encoder = Encoder::new(limit, true, 5);
        encoder.begin_batch();
        let fitting: Vec<bool> = batch.events().map(|event| encoder.push(event, true)).collect();
        encoder.end_requests();
        let mut count = 0;
        for request in encoder.take_requests() {
            prop_assert!(request.body.len() - 5 <= limit);
            count += request.events;
            add(&mut Requests::default(), &request);
        }
        prop_assert_eq!(count as usize, fitting.iter().filter(|fits| **fits).count());
        let mut alone = Encoder::new(64 << 20, true, 5);
        for (event, fits) in batch.events().zip(fitting) {
            alone.begin_batch();
            alone.push(event, true);
            alone.end_requests();
            let len = alone.take_requests()[0].body.len() - 5;
            // What a request may become is computed with a few bytes for lengths.
            prop_assert!(if fits { len <= limit } else { len + 64 > limit }, "{} {} {}", len, limit, fits);
        }
    }
}
