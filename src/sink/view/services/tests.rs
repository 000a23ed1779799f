use std::sync::Arc;

use super::bounds::FULL_BYTES;
use super::*;
use tributary_event::{BatchBuilder, Header, Origin, Position, Resource, ResourceValue, SpanData, SpanId, TraceId};

/// 2026-11-20T10:40:00Z.
const START: u64 = 1_795_171_200;

/// One span: service, id, parent, kind, seconds since the start, milliseconds that it took, whether it failed.
#[derive(Clone, Copy)]
struct SentSpan {
    service: &'static str,
    name: &'static str,
    id: u64,
    parent: u64,
    kind: Option<SpanKind>,
    at: u64,
    millis: u64,
    is_error: bool,
}

const SPAN: SentSpan =
    SentSpan { service: "shop", name: "GET /", id: 1, parent: 0, kind: None, at: 0, millis: 10, is_error: false };

fn batch(spans: &[SentSpan]) -> Batch {
    let origin = Origin::new("otlp", "test".into(), "peer".into(), 1);
    let mut batch = BatchBuilder::new(origin.into());
    for sent in spans {
        let name = batch.push_text(sent.name);
        let resource = Resource::new([("service.name".to_owned(), ResourceValue::Text(sent.service.to_owned()))]);
        let resource = batch.intern_resource(&mut Default::default(), &Arc::new(resource));
        let observed = UnixNanos((START + sent.at) * 1_000_000_000);
        let mut event = batch.event(Header { name: name.into(), time: None, observed, position: Position::default() });
        event.resource(resource);
        let id = |id: u64| SpanId(id.to_be_bytes());
        event.span(SpanData {
            parent: (sent.parent > 0).then(|| id(sent.parent)),
            kind: sent.kind,
            duration_nanos: Some(sent.millis * 1_000_000),
            status: if sent.is_error { Status::Error } else { Status::Unset },
            ..SpanData::new(TraceId([7; 16]), id(sent.id))
        });
    }
    batch.take()
}

fn add(services: &mut Services, spans: &[SentSpan]) {
    let now = spans.iter().map(|sent| sent.at).max().unwrap();
    services.add(&batch(spans), UnixNanos((START + now) * 1_000_000_000));
}

/// Name and entries of each service.
fn entries(services: &Services) -> Vec<(String, u64)> {
    let minutes = (0, u64::MAX);
    let row = |row: Service| (row.name.into_string(), row.entries.totals(minutes).count);
    let mut all: Vec<_> = services.services().into_iter().map(row).collect();
    all.sort();
    all
}

fn edges(services: &Services) -> Vec<(String, String, u64)> {
    let row = |edge: ServiceEdge| {
        let caller = edge.caller.map_or("unknown".to_owned(), |caller| caller.into_string());
        (caller, edge.callee.into_string(), edge.sums.totals((0, u64::MAX)).count)
    };
    let mut all: Vec<_> = services.edges().into_iter().map(row).collect();
    all.sort();
    all
}

fn named(all: &[(&str, u64)]) -> Vec<(String, u64)> {
    all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn a_caller_is_found_whichever_span_comes_first() {
    let root = SentSpan { kind: Some(SpanKind::Server), ..SPAN };
    let query = SentSpan { name: "call", id: 2, parent: 1, ..SPAN };
    let called = SentSpan { service: "pay", name: "POST /pay", id: 3, parent: 2, ..SPAN };
    let inner = SentSpan { service: "pay", name: "work", id: 4, parent: 3, ..SPAN };
    let all = [root, query, called, inner];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        for together in [true, false] {
            let mut services = Services::new(FULL_BYTES);
            let spans = order.map(|at| all[at]);
            match together {
                true => add(&mut services, &spans),
                false => spans.iter().for_each(|span| add(&mut services, &[*span])),
            }
            assert_eq!(entries(&services), named(&[("pay", 1), ("shop", 1)]), "{order:?} {together}");
            assert_eq!(edges(&services), [("shop".to_owned(), "pay".to_owned(), 1)]);
            let (_, operations) = services.service_named("pay").unwrap();
            let mut names: Vec<_> = operations.iter().map(|row| &*row.name).collect();
            names.sort_unstable();
            assert_eq!(names, ["POST /pay", "work"]);
        }
    }
}

#[test]
fn a_child_whose_parent_does_not_come_has_an_unknown_caller() {
    let mut services = Services::new(FULL_BYTES);
    add(&mut services, &[SentSpan { id: 2, parent: 99, ..SPAN }]);
    add(&mut services, &[SentSpan { id: 3, parent: 98, kind: Some(SpanKind::Server), ..SPAN }]);
    assert_eq!((entries(&services), edges(&services).len()), (named(&[("shop", 1)]), 0));
    // After the time that a child waits.
    services.advance(UnixNanos((START + 25) * 1_000_000_000));
    assert_eq!(edges(&services), [("unknown".to_owned(), "shop".to_owned(), 2)]);
    // The parent is too late.
    add(&mut services, &[SentSpan { service: "late", id: 99, at: 26, ..SPAN }]);
    assert_eq!(edges(&services).len(), 1);
}

#[test]
fn what_has_no_row_of_its_own_counts_as_other_and_nothing_is_lost() {
    let mut services = Services::new(FULL_BYTES / 100);
    let names: Vec<&'static str> = (0..200).map(|number| &*format!("s{number}").leak()).collect();
    for (number, name) in (1..).zip(&names) {
        add(&mut services, &[SentSpan { service: name, name, id: number, ..SPAN }]);
    }
    let all = entries(&services);
    assert_eq!(all.iter().map(|(_, count)| count).sum::<u64>(), 200);
    assert!(all.len() == 16 && all.contains(&("other".to_owned(), 185)), "{all:?}");
    let of = |name: &str| services.service_named(name).unwrap().1;
    let operations: u64 =
        all.iter().flat_map(|(name, _)| of(name)).map(|row| row.sums.totals((0, u64::MAX)).count).sum();
    assert_eq!(operations, 200);
    assert!(of("other").iter().any(|row| row.is_other));
    // Calls of a hundred services to one: none is lost.
    let mut called = Services::new(FULL_BYTES / 10);
    for (number, name) in (1..).zip(&names) {
        let root = SentSpan { service: name, id: number * 10, ..SPAN };
        add(&mut called, &[root, SentSpan { service: "one", id: number * 10 + 1, parent: number * 10, ..SPAN }]);
    }
    let calls = edges(&called);
    assert!(calls.len() < 110 && calls.iter().any(|(caller, ..)| caller == "other"), "{calls:?}");
    assert_eq!(calls.iter().map(|(.., count)| count).sum::<u64>(), 200);
    // A name without an event for the whole time frees its place.
    services.advance(UnixNanos((START + 8 * 3600) * 1_000_000_000));
    assert!(services.services().is_empty());
    add(&mut services, &[SentSpan { service: "new", at: 8 * 3600, ..SPAN }]);
    assert_eq!(entries(&services), named(&[("new", 1)]));
}

#[test]
fn minutes_become_history_and_errors_have_their_types() {
    let mut services = Services::new(FULL_BYTES);
    for minute in 0..30 {
        let is_error = minute % 10 == 0;
        add(&mut services, &[SentSpan { id: minute + 1, at: minute * 60, millis: 100, is_error, ..SPAN }]);
    }
    let (service, operations) = services.service_named("shop").unwrap();
    let (history, kept): (u64, u64) =
        (service.history.iter().map(|minute| minute.count).sum(), service.entries.totals((0, u64::MAX)).count);
    assert_eq!((history, kept, service.history.len()), (15, 15, 15));
    let [p50, _, p99] = service.history[0].quantiles;
    assert!(p50.abs_diff(100_000_000) < 1_000_000 && p99 == p50, "{p50}");
    assert_eq!(operations[0].sums.totals((0, u64::MAX)).count, 15, "older minutes of operations are gone");
    assert_eq!((&*service.errors[0].name, service.errors[0].steps.len()), ("(no type)", 1));
}

#[test]
fn a_time_that_is_not_near_counts_now() {
    let mut services = Services::new(FULL_BYTES);
    let early = batch(&[SentSpan { at: 0, ..SPAN }]);
    services.add(&early, UnixNanos((START + 86_400) * 1_000_000_000));
    services.add(&batch(&[SentSpan { at: 900_000, id: 2, ..SPAN }]), UnixNanos((START + 86_400) * 1_000_000_000));
    assert_eq!(entries(&services), named(&[("shop", 2)]));
}

#[test]
fn memory_stays_within_its_limit_and_counts_stay_exact() {
    let limit = 1 << 16;
    let mut services = Services::new(limit);
    for second in 0..600u64 {
        let spans: Vec<SentSpan> = (0..300)
            .map(|number| SentSpan {
                id: 1 + second * 1000 + number,
                at: second,
                name: &*format!("operation {}", number % 100).leak(),
                millis: 1 + (second * 7919 + number * 104_729) % 100_000,
                ..SPAN
            })
            .collect();
        add(&mut services, &spans);
        services.look();
        assert!(services.numbers().memory_bytes <= limit, "{:?}", services.numbers());
    }
    assert_eq!(entries(&services), named(&[("shop", 180_000)]));
    assert!(services.numbers().latencies_from > 0, "{:?}", services.numbers());
}

#[test]
fn calls_that_are_no_spans_are_requests_of_their_program() {
    let mut services = Services::new(FULL_BYTES);
    let now = UnixNanos(START * 1_000_000_000);
    for (method, millis, is_error) in [("a.B.get", 3, false), ("a.B.get", 5, true), ("a.B.put", 1, false)] {
        services.add_call("shop", method, millis * 1_000_000, is_error, now);
    }
    assert_eq!(entries(&services), [("shop".to_owned(), 3)]);
    let (service, operations) = services.service_named("shop").unwrap();
    assert_eq!(
        service.errors.iter().map(|error| (&*error.name, error.steps[0].1)).collect::<Vec<_>>(),
        [("(no type)", 1)]
    );
    let row = |row: &Operation| {
        let totals = row.sums.totals((0, u64::MAX));
        (row.name.to_string(), totals.count, totals.errors, totals.nanos)
    };
    let mut rows: Vec<_> = operations.iter().map(row).collect();
    rows.sort();
    assert_eq!(rows, [("a.B.get".to_owned(), 2, 1, 8_000_000), ("a.B.put".to_owned(), 1, 0, 1_000_000)]);
}

#[test]
fn the_durations_of_two_thousand_operations_are_known_for_the_whole_time() {
    const OPERATIONS: u64 = 2000;
    let mut services = Services::new(FULL_BYTES);
    let mut random = 7_u64;
    let mut durations: Vec<Vec<u64>> = vec![Vec::new(); OPERATIONS as usize];
    for number in 0..400_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (operation, share) = (number % OPERATIONS, (random >> 11) as f64 / (1_u64 << 53) as f64);
        // Over four powers of ten.
        let nanos = 10_f64.powf(5.0 + 4.0 * share) as u64;
        durations[operation as usize].push(nanos);
        let (service, name) = (format!("service {}", operation % 50), format!("operation {operation}"));
        let now = UnixNanos((START + number * 900 / 400_000) * 1_000_000_000);
        services.add_call(&service, &name, nanos, false, now);
    }
    services.look();
    let numbers = services.numbers();
    assert_eq!((numbers.operations, numbers.latencies_from), (2000, 0), "{numbers:?}");
    assert!(numbers.memory_bytes < FULL_BYTES * 9 / 10, "{numbers:?}");
    for service in 0..50 {
        let (_, operations) = services.service_named(&format!("service {service}")).unwrap();
        for operation in operations {
            let all = &mut durations[operation.name["operation ".len()..].parse::<usize>().unwrap()];
            all.sort_unstable();
            let totals = operation.sums.totals((0, u64::MAX));
            assert_eq!((totals.count, totals.nanos), (200, all.iter().map(|nanos| u128::from(*nanos)).sum()));
            for share in [0.5, 0.95, 0.99] {
                let exact = all[(share * 200.0_f64).ceil() as usize - 1];
                let found = totals.latencies.quantile(share).unwrap();
                assert!(found.abs_diff(exact) * 100 <= exact, "{share}: {found} {exact}");
            }
        }
    }
}
