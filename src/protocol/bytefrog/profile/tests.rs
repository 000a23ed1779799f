//! Sums of calls, whatever is folded.

use std::collections::HashMap as Sums;

use proptest::prelude::*;

use super::super::dictionary::DictionaryLimits;
use super::*;
use tributary_event::{Batch, BatchBuilder, DataView, Origin, ValueView};

fn names() -> Dictionary {
    let mut names = Dictionary::new(DictionaryLimits { entries: 100_000, bytes: 1 << 20 });
    for thread in 0..3 {
        names.name_thread(thread, 0, format!("t{thread}").as_bytes());
    }
    (0..10).for_each(|method| assert!(names.map_method(method, format!("a/B.m{method};1;()V").as_bytes())));
    names
}

fn call(what: What, thread: u16, method: u32, time: u32) -> Call {
    Call { what, time, sequence: 0, method, thread }
}

const EXIT: What = What::Exit { threw: false };

fn now(millis: u64) -> Now {
    Now {
        unix: UnixNanos(1_795_000_000_000_000_000 + millis * NANOS_PER_MILLI),
        elapsed: Duration::from_millis(millis),
    }
}

fn limits(max_nodes: usize, max_depth: u32) -> ProfileLimits {
    ProfileLimits { max_nodes, max_depth, ..ProfileLimits::default() }
}

fn output() -> Output {
    Output::new(BatchBuilder::new(Origin::new("bytefrog", "java".into(), "127.0.0.1:1".into(), 1).into()))
}

/// The values by `thread;outermost;…;innermost;type`, and the number of incomplete samples.
fn written(profile: &mut CallProfile, names: &mut Dictionary, at: u64) -> (Sums<String, u64>, usize) {
    let plenty = Amplification { ratio: 1 << 20, burst: 1 << 30, rate: 1 << 30 };
    let mut out = output();
    written_at(profile, names, at, plenty, &mut out)
}

fn written_at(
    profile: &mut CallProfile,
    names: &mut Dictionary,
    at: u64,
    amplification: Amplification,
    out: &mut Output,
) -> (Sums<String, u64>, usize) {
    if profile.is_due(now(at).elapsed, true) {
        profile.end_interval(now(at).elapsed, amplification, names, out);
    }
    let (mut sums, mut incomplete) = (Sums::new(), 0);
    let mut more = true;
    while more {
        more = profile.write_next(now(at), names, out, &mut 0);
        read(&out.batch.take(), &mut sums, &mut incomplete);
    }
    (sums, incomplete)
}

fn read(batch: &Batch, sums: &mut Sums<String, u64>, incomplete: &mut usize) {
    for event in batch.events() {
        let attribute = |wanted: &str| event.attributes().find(|(key, _)| key.text() == wanted).map(|(_, value)| value);
        let text = |key| match attribute(key) {
            Some(ValueView::Text(text)) => text.text().to_owned(),
            _ => String::new(),
        };
        *incomplete += usize::from(attribute("tributary.incomplete").is_some());
        let (key, value) = match event.data() {
            DataView::Sample(sample) => {
                let mut frames: Vec<_> = sample.frames().map(|it| it.function.unwrap().text().to_owned()).collect();
                frames.push(text("thread.name"));
                frames.reverse();
                frames.push(sample.sample_type().to_owned());
                (frames.join(";"), sample.data.value)
            }
            DataView::Metric(metric) => (format!("thrown {}", text("exception.type")), metric.value),
            _ => panic!("{event:?}"),
        };
        let Number::U64(value) = value else { panic!("{value:?}") };
        assert!(sums.insert(key, value).is_none(), "a stack is written twice");
    }
}

#[test]
fn an_interval_has_one_sample_for_each_stack_and_quantity() {
    let (mut names, mut profile) = (names(), CallProfile::new(limits(100, 100), 100));
    assert!(!profile.is_due(Duration::from_secs(100), true), "nothing has happened");
    names.map_exception(4, b"java.lang.Error");
    let mut add = |what, method, time| {
        profile.add((&call(what, 1, method, time), 15), true, false, now(time.into()).elapsed, &mut names);
    };
    add(What::Entry, 1, 1000);
    for start in [1010, 1020, 1030] {
        add(What::Entry, 2, start);
        add(What::Thrown { exception: 4, line: 1 }, 2, start);
        add(EXIT, 2, start + 5);
    }
    assert_eq!(profile.due(), Some(Duration::from_secs(11)));
    assert!(!profile.is_due(Duration::from_millis(10_999), false));
    let (sums, _) = written(&mut profile, &mut names, 11_000);
    let expected = [
        ("t1;a.B.m1;calls", 1),
        ("t1;a.B.m1;a.B.m2;wall", 15_000_000),
        ("t1;a.B.m1;a.B.m2;calls", 3),
        ("thrown java.lang.Error", 3),
    ];
    assert_eq!(sums, expected.map(|(key, value)| (key.to_owned(), value)).into());
    assert_eq!((profile.due(), profile.is_writing()), (None, false));
    // A call that began before the interval has its time in the one in which it ends, and is not counted again.
    profile.add((&call(EXIT, 1, 1, 21_000), 15), true, false, Duration::from_secs(21), &mut names);
    let (sums, _) = written(&mut profile, &mut names, 22_000);
    assert_eq!(sums, [("t1;a.B.m1;wall".to_owned(), 19_985_000_000)].into());
}

#[test]
fn a_call_belongs_to_the_name_that_its_thread_has_at_its_entry() {
    let (mut names, mut profile) = (names(), CallProfile::new(limits(100, 100), 100));
    names.name_thread(1, 50, b"renamed");
    let mut add =
        |what, method, time| profile.add((&call(what, 1, method, time), 15), true, false, Duration::ZERO, &mut names);
    add(What::Entry, 1, 0);
    add(What::Entry, 2, 60);
    add(EXIT, 2, 70);
    add(What::Entry, 3, 80);
    add(EXIT, 3, 81);
    add(EXIT, 1, 100);
    let (sums, _) = written(&mut profile, &mut names, 0);
    let wall = |key: &str| sums.get(&format!("{key};wall")).copied().unwrap_or(0) / NANOS_PER_MILLI;
    assert_eq!(wall("t1;a.B.m1"), 89);
    assert_eq!((wall("renamed;a.B.m1;a.B.m2"), wall("renamed;a.B.m1;a.B.m3")), (10, 1));
    assert_eq!(sums.len(), 6, "{sums:?}");
}

#[test]
fn recursion_and_threads_over_the_limits_fold_into_callers_and_keep_their_sums() {
    let (mut names, mut profile) = (names(), CallProfile::new(limits(2000, 512), 100_000));
    for depth in 0..10_000 {
        profile.add((&call(What::Entry, 1, 7, depth), 15), true, false, Duration::ZERO, &mut names);
    }
    for depth in 0..10_000 {
        profile.add((&call(EXIT, 1, 7, 10_000 + depth), 15), true, false, Duration::ZERO, &mut names);
    }
    for thread in 100..5000 {
        profile.add((&call(What::Entry, thread, u32::from(thread), 0), 15), true, false, Duration::ZERO, &mut names);
        profile.add((&call(EXIT, thread, u32::from(thread), 2), 15), true, false, Duration::ZERO, &mut names);
    }
    assert!(profile.memory_bytes() < 2 << 20, "{}", profile.memory_bytes());
    let (sums, incomplete) = written(&mut profile, &mut names, 0);
    assert!(incomplete > 0 && sums.len() < 4100, "{incomplete} of {}", sums.len());
    let sum = |kind: &str| sums.iter().filter(|(key, _)| key.ends_with(kind)).map(|(_, value)| value).sum::<u64>();
    assert_eq!((sum(";wall") / NANOS_PER_MILLI, sum(";calls")), (19_999 + 9800, 14_900));
}

/// A chain of 500 calls with 2,000 callees in it, each called once for 2 ms.
fn deep_and_wide(profile: &mut CallProfile, names: &mut Dictionary) {
    let mut add = |what, method, time| {
        profile.add((&call(what, 1, method, time), 15), true, false, Duration::ZERO, names);
    };
    (0..500).for_each(|method| add(What::Entry, method, 0));
    for leaf in 0..2000 {
        add(What::Entry, 1000 + leaf, 2 * leaf);
        add(EXIT, 1000 + leaf, 2 * leaf + 2);
    }
}

#[test]
fn output_over_a_limit_folds_into_callers_and_keeps_its_sums() {
    let sum = |sums: &Sums<String, u64>, kind: &str| {
        sums.iter().filter(|(key, _)| key.ends_with(kind)).map(|(_, value)| value).sum::<u64>()
    };
    let plenty = Amplification { ratio: 1 << 20, burst: 1 << 30, rate: 1 << 30 };
    // 4,500 messages of 15 bytes earn four times as much, beside the credit.
    let tight = Amplification { ratio: 4, burst: 64 << 10, rate: 1 << 10 };
    for (max_bytes, amplification, most) in [(1 << 20, plenty, 1 << 20), (1 << 40, tight, (64 << 10) + 4 * 15 * 4500)] {
        let limits = ProfileLimits { max_bytes, ..limits(100_000, 512) };
        let (mut names, mut profile) = (names(), CallProfile::new(limits, 100_000));
        deep_and_wide(&mut profile, &mut names);
        let mut out = output();
        let (sums, incomplete) = written_at(&mut profile, &mut names, 0, amplification, &mut out);
        assert_eq!((sum(&sums, ";calls"), sum(&sums, ";wall")), (2500, 4000 * NANOS_PER_MILLI));
        assert!(incomplete > 0 && sums.len() > 10, "{incomplete} of {}", sums.len());
        let written = out.batch.total_expanded_bytes();
        assert!(written > most / 2 && written <= most + 2000, "{written} of {most}");
        assert_eq!(out.warnings, [("profile_folded", 1)]);
    }
}

#[test]
fn a_name_that_grows_after_its_samples_were_paid_is_not_written() {
    let (mut names, mut profile) = (names(), CallProfile::new(limits(100, 512), 100));
    profile.add((&call(What::Entry, 1, 1, 0), 15), true, false, Duration::ZERO, &mut names);
    let mut out = output();
    profile.end_interval(
        Duration::ZERO,
        Amplification { ratio: 1, burst: 1 << 20, rate: 1 << 10 },
        &mut names,
        &mut out,
    );
    assert!(names.map_method(1, format!("a/{};1;()V", "B".repeat(60_000)).as_bytes()));
    assert!(profile.write_next(now(0), &mut names, &mut out, &mut 0));
    let (mut sums, mut incomplete) = (Sums::new(), 0);
    read(&out.batch.take(), &mut sums, &mut incomplete);
    assert_eq!(sums.into_iter().collect::<Vec<_>>(), [("t1;method#1;calls".to_owned(), 1)]);
}

proptest! {
    /// The sums are those of a simple list of calls, wherever intervals end; breaks end calls without time.
    #[test]
    fn sums_are_those_of_the_calls(steps in prop::collection::vec((0u8..12, 0u16..3, 0u32..10, 0u32..20), 1..400)) {
        let (mut names, mut profile) = (names(), CallProfile::new(limits(100_000, 600), 100_000));
        let (mut sums, mut time) = (Sums::<String, u64>::new(), 0);
        // By thread: the method, its entry and the time of the calls within, outermost first.
        let mut stacks: Sums<u16, Vec<(u32, u32, u64)>> = Sums::new();
        let mut expected: Sums<String, u64> = Sums::new();
        for (what, thread, method, passed) in steps {
            time += passed;
            let stack = stacks.entry(thread).or_default();
            let path = |stack: &[(u32, u32, u64)], kind: &str| {
                let methods: Vec<String> = stack.iter().map(|(method, ..)| format!("a.B.m{method}")).collect();
                format!("t{thread};{};{kind}", methods.join(";"))
            };
            match what {
                0..=5 => {
                    stack.push((method, time, 0));
                    *expected.entry(path(stack, "calls")).or_default() += 1;
                    profile.add((&call(What::Entry, thread, method, time), 15), true, false, Duration::ZERO, &mut names);
                }
                6..=9 => {
                    profile.add((&call(EXIT, thread, method, time), 15), true, false, Duration::ZERO, &mut names);
                    let Some(at) = stack.iter().rposition(|(open, ..)| *open == method) else { continue };
                    let within: u64 = stack[at..].iter().map(|(.., within)| within).sum();
                    let duration = u64::from(time - stack[at].1);
                    stack.truncate(at + 1);
                    if duration > within {
                        *expected.entry(path(stack, "wall")).or_default() += (duration - within) * NANOS_PER_MILLI;
                    }
                    stack.pop();
                    if let Some((.., within)) = stack.last_mut() {
                        *within += duration;
                    }
                }
                10 => {
                    stacks.clear();
                    profile.end_calls();
                }
                _ => {
                    let (more, incomplete) = written(&mut profile, &mut names, 0);
                    prop_assert_eq!(incomplete, 0);
                    more.into_iter().for_each(|(key, value)| *sums.entry(key).or_default() += value);
                }
            }
        }
        let (more, _) = written(&mut profile, &mut names, 0);
        more.into_iter().for_each(|(key, value)| *sums.entry(key).or_default() += value);
        prop_assert_eq!(sums, expected);
    }
}
