//! Which traces and events a sample keeps.

use super::{builder, header, rules, taken};
use crate::{Rule, Rules};
use tributary_event::{
    Batch, BatchBuilder, Loss, MetricData, MetricType, Number, Reason, Severity, SpanData, SpanId, Status,
    TraceContext, TraceId, semconv,
};
use tributary_sink::{Kinds, Selection};

const BATCH: u64 = 1000;

/// A number that looks random.
fn mix(number: u64) -> u64 {
    let z = (number ^ (number >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

fn trace_id(number: u64) -> TraceId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&mix(number ^ 0xabcd).to_be_bytes());
    bytes[8..].copy_from_slice(&mix(number + 1).to_be_bytes());
    TraceId(bytes)
}

fn span(builder: &mut BatchBuilder, trace_id: TraceId, status: Status) {
    let span = SpanData { status, ..SpanData::new(trace_id, SpanId([1; 8])) };
    builder.event(header(semconv::DATADOG_SPAN, 0)).span(span);
}

fn log(builder: &mut BatchBuilder, trace_id: TraceId) {
    let context = TraceContext { trace_id, span_id: None };
    builder.event(header(semconv::ZICO_EXCEPTION, 0)).log_in(context, Severity::Error, None);
}

fn traces(numbers: std::ops::Range<u64>) -> Batch {
    let mut builder = builder("datadog", "shop");
    numbers.for_each(|number| span(&mut builder, trace_id(number), Status::Ok));
    builder.take()
}

/// The positions of the events that are kept.
fn kept(rules: &Rules, batch: &Batch) -> Vec<usize> {
    let choice = rules.choose(batch, Kinds::ALL);
    let selection = Selection::new(batch, Kinds::ALL).chosen(choice.chosen.as_ref());
    (0..batch.len()).filter(|index| selection.contains(*index)).collect()
}

#[test]
fn a_million_traces_are_kept_in_the_right_share_and_the_same_in_every_sink() {
    for (keep, total) in [(0.1, 1_000_000), (0.5, 100_000), (0.003, 100_000)] {
        let one = rules(&format!("sample = {{ keep = {keep} }}"));
        let other = rules(&format!("unless = [{{ kind = 'log' }}]\nsample = {{ keep = {keep}, by = 'trace_id' }}"));
        let more = rules(&format!("sample = {{ keep = {} }}", keep * 1.5));
        let mut count = 0;
        for start in (0..total).step_by(BATCH as usize) {
            let batch = traces(start..start + BATCH);
            let chosen = kept(&one, &batch);
            assert_eq!(chosen, kept(&other, &batch));
            let larger = kept(&more, &batch);
            assert!(
                chosen.iter().all(|index| larger.binary_search(index).is_ok()),
                "a larger share has all of a smaller"
            );
            count += chosen.len() as u64;
        }
        let (expected, deviation) = (total as f64 * keep, (total as f64 * keep * (1.0 - keep)).sqrt());
        assert!((count as f64 - expected).abs() < 5.0 * deviation, "{keep}: {count}");
    }
}

#[test]
fn the_last_eight_bytes_decide_those_of_w3c_first() {
    let rules = rules("sample = { keep = 0.25 }");
    let is_kept = |id: u128| {
        let mut builder = builder("datadog", "shop");
        span(&mut builder, TraceId(id.to_be_bytes()), Status::Ok);
        kept(&rules, &builder.take()).len() == 1
    };
    // The threshold of 25 % is c0_0000_0000_0000 in 56 bits.
    assert!(is_kept(0x00c0_0000_0000_0000) && !is_kept(0x00bf_ffff_ffff_ffff));
    // The bytes before do not change it.
    assert!(is_kept(0xffc0_0000_0000_0000) && !is_kept(0xffbf_ffff_ffff_ffff));
    assert!(is_kept(u128::MAX << 56 | 0xc0_0000_0000_0000) && !is_kept(u128::MAX << 56));
}

#[test]
fn logs_follow_their_trace_and_what_has_none_passes() {
    let rules = rules("sample = { keep = 0.0 }");
    let mut builder = builder("zico", "shop");
    span(&mut builder, trace_id(1), Status::Ok);
    log(&mut builder, trace_id(1));
    span(&mut builder, TraceId::default(), Status::Ok);
    builder.event(header(semconv::ZICO_STRING, 0)).log(Severity::Info, None);
    let metric = MetricData { metric_type: MetricType::Gauge, unit: "".into(), value: Number::U64(5), start: None };
    builder.event(header(semconv::ENDLESS_AGGREGATE, 0)).metric(metric);
    let loss = Loss { reason: Reason::Gap, bytes: 0, events: None, detail: "", excerpt: &[] };
    builder.loss(header(semconv::LOSS, 0), loss);
    let batch = builder.take();
    assert_eq!(kept(&rules, &batch), [2, 3, 4, 5]);
    assert_eq!(rules.choose(&batch, Kinds::ALL).filtered, [(Rule::Sample, 2)]);
    assert!(kept(&super::rules("sample = { keep = 1 }"), &batch).len() == batch.len());
}

#[test]
fn what_a_condition_with_always_matches_is_kept_whatever_other_conditions_say() {
    let text = "where = [{ kind = 'span' }, { status = 'error', always = true }]\nsample = { keep = 0.0 }";
    let mut builder = builder("datadog", "shop");
    for status in [Status::Ok, Status::Error] {
        span(&mut builder, trace_id(1), status);
    }
    let batch = builder.take();
    assert_eq!(kept(&rules(text), &batch), [1]);
    // Only `sample` is passed by, not `unless`.
    let unless = format!("{text}\nunless = [{{ status = 'error' }}]");
    assert!(kept(&rules(&unless), &batch).is_empty());
}

#[test]
fn a_sample_of_events_depends_on_connection_and_offset_and_not_on_the_batch() {
    let rules = rules("sample = { keep = 0.3, by = 'event' }");
    let batch = |offsets: std::ops::Range<u64>| {
        let mut builder = builder("bytefrog", "java");
        for offset in offsets {
            // Three events of one message.
            (0..3).for_each(|_| builder.event(header(semconv::BYTEFROG_MARKER, offset)).log(Severity::Info, None));
        }
        builder.take()
    };
    let whole = kept(&rules, &batch(0..10_000));
    let mut parts = kept(&rules, &batch(0..777));
    parts.extend(kept(&rules, &batch(777..10_000)).iter().map(|index| index + 3 * 777));
    assert_eq!(whole, parts);
    assert!((8_600..9_400).contains(&whole.len()), "{}", whole.len());
    // The events of a message are kept or left out one by one.
    let of_first = whole.iter().filter(|index| *index % 3 == 0).count();
    assert!((2_800..3_200).contains(&of_first), "{of_first}");
    let losses = {
        let mut builder = builder("bytefrog", "java");
        for offset in 0..100 {
            let loss = Loss { reason: Reason::Gap, bytes: 0, events: None, detail: "", excerpt: &[] };
            builder.loss(header(semconv::LOSS, offset), loss);
        }
        builder.take()
    };
    assert_eq!(taken(&rules, &losses).len(), 100, "losses are always kept");
}
