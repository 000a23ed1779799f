//! What the sums of stacks are, and that they stay within their memory.

use super::*;
use crate::services::STEP_SECONDS;
use tributary_event::{
    BatchBuilder, Frame, Header, Name, Number, Origin, Position, Resource, ResourceValue, SampleData, SpanData, SpanId,
    TraceId, semconv,
};
use tributary_profile::SampleKind;

const START: u64 = 1_795_171_200;

fn at(second: u64) -> UnixNanos {
    UnixNanos((START + second) * 1_000_000_000)
}

fn builder(service: &str) -> BatchBuilder {
    let mut batch = BatchBuilder::new(Origin::new("otlp", "test".into(), "peer".into(), 1).into());
    let name = ("service.name".to_owned(), ResourceValue::Text(service.to_owned()));
    batch.set_resource(Resource::new([name]).into());
    batch
}

/// Spans of trace 7: id, parent, name, nanoseconds.
fn spans(service: &str, spans: &[(u64, u64, &str, u64)]) -> Batch {
    let mut batch = builder(service);
    for (id, parent, name, nanos) in spans {
        let name = batch.push_text(name);
        let header = Header { name: name.into(), time: Some(at(0)), observed: at(0), position: Position::default() };
        let span_id = |id: u64| SpanId(id.to_be_bytes());
        batch.event(header).span(SpanData {
            parent: (*parent > 0).then(|| span_id(*parent)),
            duration_nanos: Some(*nanos),
            ..SpanData::new(TraceId([7; 16]), span_id(*id))
        });
    }
    batch.take()
}

/// Samples of processor time: stacks, the outermost frame first, and values.
fn samples(service: &str, samples: &[(&[String], u64)]) -> Batch {
    let mut batch = builder(service);
    for (frames, value) in samples {
        let texts: Vec<_> = frames.iter().rev().map(|frame| batch.push_text(frame)).collect();
        let frames: Vec<_> =
            texts.into_iter().map(|text| Frame { function: Some(text), file: None, line: None }).collect();
        let name: Name = semconv::RBKIT_CPU;
        let event = batch.event(Header::observed_at(name, at(0), Position::default()));
        event.sample(SampleData::new("cpu", "count", Number::U64(*value)), &frames);
    }
    batch.take()
}

/// The folded stacks of a service in these seconds.
fn folded(profiles: &ProfileSums, source: StackSource, column: usize, seconds: (u64, u64)) -> String {
    let mut stacks = Stacks::default();
    let step = |second: u64| (START + second) / STEP_SECONDS;
    for (_, agent) in profiles.agents() {
        agent.add_to(&mut stacks, source, (step(seconds.0), step(seconds.1)), profiles.now(), false);
    }
    let mut out = Vec::new();
    stacks.write_folded(column, 1, None, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn samples_are_in_the_steps_in_which_they_came() {
    let mut profiles = ProfileSums::new(1 << 20);
    let (ab, ac) = (texts(&["a", "b"]), texts(&["a", "c"]));
    profiles.add([(&samples("shop", &[(&ab, 3), (&ac, 1)]), at(0))]);
    profiles.add([(&samples("shop", &[(&ab, 4)]), at(25))]);
    let cpu = |seconds| folded(&profiles, StackSource::Cpu, 0, seconds);
    assert_eq!(cpu((0, 30)), "a;b 7\na;c 1\n");
    assert_eq!(cpu((0, 9)), "a;b 3\na;c 1\n");
    assert_eq!((cpu((10, 19)), cpu((20, 29))), (String::new(), "a;b 4\n".to_owned()));
    let (name, agent) = profiles.agents().next().unwrap();
    assert!(name.contains("shop"), "{name}");
    let events = agent.events((0, u64::MAX), profiles.now());
    assert_eq!(events[&StackSource::Cpu].iter().map(|(_, events)| *events).collect::<Vec<_>>(), [2, 1]);
    profiles.advance(at(10 + STEPS * STEP_SECONDS));
    assert_eq!(folded(&profiles, StackSource::Cpu, 0, (0, 10_000)), "a;b 4\n");
    profiles.advance(at(40 + STEPS * STEP_SECONDS));
    assert_eq!(profiles.agents().count(), 0);
}

#[test]
fn samples_of_otlp_have_the_type_and_unit_that_they_were_sent_with() {
    let mut profiles = ProfileSums::new(1 << 20);
    for (sample_type, unit) in [("cpu", "nanoseconds"), ("samples", "count")] {
        let mut batch = builder("shop");
        let event = batch.event(Header::observed_at(semconv::OTLP_PROFILE_SAMPLE, at(0), Position::default()));
        event.sample(SampleData::new(sample_type, unit, Number::U64(7)), &[]);
        profiles.add([(&batch.take(), at(0))]);
    }
    let (_, agent) = profiles.agents().next().unwrap();
    let mut sources: Vec<_> = agent.events((0, u64::MAX), profiles.now()).into_keys().collect();
    sources.sort();
    let of = |sample_type, unit| StackSource::Profiled(SampleKind::of(sample_type, unit).unwrap());
    let mut expected = [of("cpu", "nanoseconds"), of("samples", "count")];
    expected.sort();
    assert_eq!(sources, expected);
}

#[test]
fn spans_wait_for_their_callers_and_are_shown_meanwhile() {
    let mut profiles = ProfileSums::new(1 << 20);
    profiles.add([(&spans("shop", &[(3, 2, "c", 10), (2, 1, "b", 40)]), at(0))]);
    assert_eq!(folded(&profiles, StackSource::Spans, 0, (0, 9)), "b 30\nb;c 10\n");
    profiles.add([(&spans("shop", &[(1, 0, "a", 100)]), at(9))]);
    assert_eq!(folded(&profiles, StackSource::Spans, 0, (0, 9)), "a 60\na;b 30\na;b;c 10\n");
    assert_eq!(folded(&profiles, StackSource::Spans, 1, (0, 9)), "a 1\na;b 1\na;b;c 1\n");
    profiles.advance(at(31));
    assert_eq!(folded(&profiles, StackSource::Spans, 0, (0, 39)), "a 60\na;b 30\na;b;c 10\n");
}

#[test]
fn whatever_comes_stays_within_the_memory_and_changes_no_sum() {
    let limit = 1 << 20;
    let mut profiles = ProfileSums::new(limit);
    let (mut sent, mut state) = (0, 1u64);
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..400 {
        let service = format!("service {}", random(40));
        let stacks: Vec<(Vec<String>, u64)> = (0..200)
            .map(|_| ((0..1 + random(12)).map(|_| format!("f{}", random(3000))).collect(), 1 + random(9)))
            .collect();
        let stacks: Vec<(&[String], u64)> = stacks.iter().map(|(frames, value)| (&frames[..], *value)).collect();
        sent += stacks.iter().map(|(_, value)| value).sum::<u64>();
        profiles.add([(&samples(&service, &stacks), at(round * 2))]);
        assert!(profiles.memory_bytes() < limit + (limit >> 3), "{} in round {round}", profiles.memory_bytes());
    }
    let kept: u64 = folded(&profiles, StackSource::Cpu, 0, (0, 800))
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum();
    assert_eq!(kept, sent);
}

#[test]
fn paths_that_are_not_used_any_more_are_dropped() {
    let mut profiles = ProfileSums::new(1 << 20);
    for minute in 0..60u64 {
        let stacks: Vec<Vec<String>> = (0..200).map(|path| vec![format!("minute {minute} path {path}")]).collect();
        let stacks: Vec<(&[String], u64)> = stacks.iter().map(|frames| (&frames[..], 1)).collect();
        profiles.add([(&samples("shop", &stacks), at(minute * 60))]);
    }
    let last = folded(&profiles, StackSource::Cpu, 0, (59 * 60, 3600));
    assert!(last.contains("minute 59 path_199 1\n") && last.lines().count() == 200, "{last}");
    assert!(!profiles.is_full);
}
