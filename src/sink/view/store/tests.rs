//! What is kept when there is more than fits.

use super::*;
use crate::class::classes;
use tributary_event::{BatchBuilder, DataView, Header, Position, Severity, SpanData, SpanId, Status, TraceId, semconv};

/// Logs of a listener that were read at `at`, with names of `bytes` bytes.
fn batch(listener: &str, at: u64, events: usize, bytes: usize) -> Batch {
    let origin = Origin::new("datadog", listener.into(), "peer".into(), at);
    let mut batch = BatchBuilder::new(origin.into());
    let name = batch.push_text(&"n".repeat(bytes));
    for _ in 0..events {
        let header = Header { name: name.into(), time: None, observed: UnixNanos(at), position: Position::default() };
        batch.event(header).log(Severity::Info, None);
    }
    batch.take()
}

fn add(store: &mut ViewStore, batch: &Batch, may_drop: bool) {
    let origin = batch.origin().unwrap().clone();
    store.add(batch, &origin, &classes(batch), may_drop);
}

fn times(store: &ViewStore, listener: &str) -> Vec<(u64, bool)> {
    let batches = store.batches(UnixNanos(0), |_, _, of| of == listener);
    batches.into_iter().map(|(_, kept)| (kept.at.0, kept.follows_gap)).collect()
}

#[test]
fn a_busy_ring_becomes_sparse_and_a_quiet_one_stays_complete() {
    let mut store = ViewStore::new(100_000, Duration::from_secs(1));
    for at in 0..1000 {
        add(&mut store, &batch("busy", at, 1, 1000), true);
        if at % 100 == 0 {
            add(&mut store, &batch("quiet", at, 1, 10), true);
        }
        assert!(store.memory_bytes() <= 100_000);
    }
    let quiet: Vec<u64> = times(&store, "quiet").into_iter().map(|(at, _)| at).collect();
    assert_eq!(quiet, (0..1000).step_by(100).collect::<Vec<_>>());
    let busy = times(&store, "busy");
    assert!(busy.len() > 20 && busy[0].0 < 200 && busy.last().unwrap().0 > 900, "{busy:?}");
    assert!(busy.windows(2).all(|pair| pair[1].1 == (pair[1].0 - pair[0].0 > 1)), "{busy:?}");
    assert_eq!(store.counts(), (1010, (busy.len() + quiet.len()) as u64));
}

#[test]
fn batches_leave_the_window_and_their_numbers_find_nothing_then() {
    let mut store = ViewStore::new(1 << 20, Duration::from_nanos(50));
    (0..10).for_each(|at| add(&mut store, &batch("test", at * 10, 2, 10), true));
    assert_eq!(store.batch(1).unwrap().len(), 2);
    store.expire(UnixNanos(100));
    assert_eq!(times(&store, "test").first(), Some(&(50, true)));
    assert!(store.batch(5).is_none() && store.batch(6).is_some());
    store.expire(UnixNanos(1000));
    assert_eq!((store.counts(), store.memory_bytes()), ((20, 0), 0));
}

#[test]
fn while_batches_are_read_none_is_dropped_and_none_exceeds_the_limit() {
    let mut store = ViewStore::new(20_000, Duration::from_secs(1));
    (0..100).for_each(|at| add(&mut store, &batch("test", at, 1, 1000), false));
    let kept = times(&store, "test");
    assert!(!kept.is_empty() && store.memory_bytes() <= 20_000);
    assert!(kept.iter().enumerate().all(|(index, (at, _))| *at == index as u64), "the first ones stay: {kept:?}");
    add(&mut store, &batch("test", 100, 1, 1000), true);
    assert_eq!(times(&store, "test").last(), Some(&(100, true)));
    // One that would fill the store alone is not kept.
    add(&mut store, &batch("other", 101, 1, 15_000), true);
    assert!(times(&store, "other").is_empty());
}

/// A batch with the spans of these traces, which are read at `at`.
fn spans(listener: &str, at: u64, traces: &[u64]) -> Arc<Batch> {
    let origin = Origin::new("otlp", listener.into(), "peer".into(), 1);
    let mut batch = BatchBuilder::new(origin.into());
    for trace in traces {
        let name = batch.push_text("GET /orders");
        let header = Header { name: name.into(), time: None, observed: UnixNanos(at), position: Position::default() };
        let mut event = batch.event(header);
        event.text(semconv::SERVICE_NAME, "a text that takes some memory");
        event.span(SpanData::new(TraceId(u128::from(*trace).to_be_bytes()), SpanId(*b"12345678")));
    }
    batch.take().into()
}

/// How many spans of each trace are kept.
fn kept_spans(store: &ViewStore) -> std::collections::BTreeMap<u64, usize> {
    let mut kept = std::collections::BTreeMap::new();
    let batches = store.batches(UnixNanos(0), |class, _, _| class == Class::Spans);
    for batch in batches.iter().map(|(_, kept)| kept.batch()) {
        for event in batch.events() {
            if let DataView::Span(span) = event.data() {
                *kept.entry(u128::from_be_bytes(span.trace_id.0) as u64).or_default() += 1;
            }
        }
    }
    kept
}

/// Packs what is old enough.
fn pack(store: &mut ViewStore, now: UnixNanos) {
    for (place, batch) in store.to_pack(now) {
        store.set_packed(place, &batch, PackedBatch::of(&batch).unwrap());
    }
}

/// Adds the spans of 10,000 traces, in any order, over two listeners; returns how many traces are kept.
fn kept_of_many(limit: usize, packs: bool) -> usize {
    const TRACES: u64 = 10_000;
    const SPANS: usize = 8;
    // Its spans come in any order, with those of a thousand traces around it, over two listeners.
    let mut order: Vec<u64> = (0..TRACES).flat_map(|trace| [trace; SPANS]).collect();
    let mut state = 0x5EED_u64;
    for at in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let near = at.saturating_sub((state >> 33) as usize % 8000);
        order.swap(at, near);
    }
    let mut store = ViewStore::new(limit, Duration::from_secs(3600));
    for (number, part) in (1u64..).zip(order.chunks(50)) {
        let at = number * 50_000_000;
        let batch = spans(if number % 2 == 0 { "one" } else { "two" }, at, part);
        let origin = batch.origin().unwrap().clone();
        store.add_spans(&batch, &origin, UnixNanos(at), true, true);
        if packs && number % 20 == 0 {
            pack(&mut store, UnixNanos(at));
        }
        assert!(store.kept_bytes() <= limit && store.memory_bytes() <= limit / 4 * 5);
    }
    store.finish_sweep();
    let kept = kept_spans(&store);
    let partial = kept.values().filter(|count| **count != SPANS).count();
    assert_eq!(partial, 0, "of {} traces", kept.len());
    let (seen, kept_events) = store.counts();
    assert_eq!((seen, kept_events), (TRACES * SPANS as u64, (kept.len() * SPANS) as u64));
    // Numbers find their batches.
    for (_, batch) in store.batches(UnixNanos(0), |_, _, _| true) {
        assert_eq!(store.batch(batch.number).unwrap().at, batch.at);
    }
    kept.len()
}

#[test]
fn of_a_trace_all_spans_are_kept_or_none_over_all_listeners_and_batches() {
    let open = kept_of_many(4 << 20, false);
    let packed = kept_of_many(1 << 20, true);
    assert!((300..5000).contains(&open) && packed > open, "{open} traces, packed {packed} in a quarter of the memory");
}

#[test]
fn a_trace_without_time_for_all_its_spans_goes_and_later_ones_are_kept_again() {
    let mut store = ViewStore::new(4 << 20, Duration::from_secs(3600));
    let second = |seconds: u64| UnixNanos(seconds * 1_000_000_000);
    let add = |store: &mut ViewStore, at: u64, traces: &[u64], has_time: bool| {
        let batch = spans("one", second(at).0, traces);
        let origin = batch.origin().unwrap().clone();
        store.add_spans(&batch, &origin, second(at), has_time, true);
    };
    let all: Vec<u64> = (0..1000).collect();
    add(&mut store, 10, &all, true);
    add(&mut store, 11, &all[..100], false);
    add(&mut store, 12, &all, true);
    store.expire(second(13));
    let kept = kept_spans(&store);
    assert!(kept.keys().all(|trace| *trace >= 100) && kept.values().all(|count| *count == 2), "{kept:?}");
    assert!((300..600).contains(&kept.len()), "half of them: {}", kept.len());
    // With time and memory, all traces again, but not the rest of one that was left out.
    (20..100).for_each(|at| store.expire(second(at)));
    add(&mut store, 100, &all, true);
    add(&mut store, 100, &(5000..6000).collect::<Vec<_>>(), true);
    let kept = kept_spans(&store);
    assert_eq!(kept.range(5000..).count(), 1000);
    assert!(kept.range(..1000).all(|(_, count)| *count == 3 || *count == 1), "{kept:?}");
}

#[test]
fn after_too_little_time_all_traces_are_kept_again_although_other_events_take_the_memory() {
    let mut store = ViewStore::new(200_000, Duration::from_secs(3600));
    let second = |seconds: u64| seconds * 1_000_000_000;
    for at in 0..60 {
        add(&mut store, &batch("logs", second(at), 10, 1000), true);
        let spans = spans("one", second(at), &[at]);
        let origin = spans.origin().unwrap().clone();
        store.add_spans(&spans, &origin, UnixNanos(second(at)), false, true);
    }
    assert!(!store.traces.has_all() && store.kept_bytes() > 50_000);
    for at in 60..400 {
        add(&mut store, &batch("logs", second(at), 10, 1000), true);
        store.expire(UnixNanos(second(at)));
    }
    assert!(store.traces.has_all() && store.kept_bytes() > 50_000);
}

/// A batch with one span: a child, or the root of its trace with its duration.
fn one_span(at: u64, trace: u64, root: Option<(u64, Status)>) -> Arc<Batch> {
    let origin = Origin::new("otlp", "one".into(), "peer".into(), 1);
    let mut batch = BatchBuilder::new(origin.into());
    let name = batch.push_text(if root.is_some() { "GET /orders" } else { "query" });
    let header = Header { name: name.into(), time: None, observed: UnixNanos(at), position: Position::default() };
    let (nanos, status) = root.unwrap_or((1000, Status::Unset));
    batch.event(header).span(SpanData {
        parent: root.is_none().then_some(SpanId(*b"the root")),
        duration_nanos: Some(nanos),
        status,
        ..SpanData::new(TraceId(u128::from(trace).to_be_bytes()), SpanId(*b"12345678"))
    });
    batch.take().into()
}

#[test]
fn the_slowest_and_a_failed_trace_of_each_minute_are_kept_with_all_their_spans() {
    const SPANS: usize = 5;
    let mut store = ViewStore::new(1 << 20, Duration::from_secs(3600));
    let add = |store: &mut ViewStore, batch: &Arc<Batch>, at: u64| {
        let origin = batch.origin().unwrap().clone();
        store.add_spans(batch, &origin, UnixNanos(at), true, true);
    };
    // A trace each millisecond; its children come before its root.
    let at = |trace: u64| 1_795_171_200_000_000_000 + trace * 1_000_000;
    for trace in 0..30_000 {
        if trace % 1000 == 0 {
            pack(&mut store, UnixNanos(at(trace)));
        }
        (1..SPANS).for_each(|_| add(&mut store, &one_span(at(trace), trace, None), at(trace)));
        let is_slow = trace % 1000 == 500;
        let status = if trace == 20_000 { Status::Error } else { Status::Unset };
        let nanos = if is_slow { 100_000 + trace } else { 1_000 + trace % 17 };
        add(&mut store, &one_span(at(trace), trace, Some((nanos, status))), at(trace));
    }
    store.finish_sweep();
    let kept = kept_spans(&store);
    assert!(kept.len() < 3000, "{} traces", kept.len());
    let partial: Vec<_> = kept.iter().filter(|(_, count)| **count != SPANS).collect();
    assert!(partial.is_empty(), "{partial:?}");
    // The slowest one that came, and the failed one.
    assert!(kept.contains_key(&29_500) && kept.contains_key(&20_000), "{:?}", kept.keys());
}

#[test]
fn few_large_batches_of_many_listeners_do_not_exceed_the_limit() {
    let mut store = ViewStore::new(20_000, Duration::from_secs(1));
    for at in 0..10 {
        add(&mut store, &batch(&format!("listener-{at}"), at, 1, 7000), true);
        assert!(store.memory_bytes() <= 20_000);
    }
    assert!(store.counts().1 >= 1);
}
