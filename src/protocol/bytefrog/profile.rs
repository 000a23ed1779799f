//! The calls of a run as a profile (`calls = "profile"`): a tree of calls by name of thread, which is written at intervals as one
//! sample for each stack and quantity, and the exceptions that were thrown, by type.
//!
//! A call counts at its entry, and its self time when it ends. Names of methods and exceptions are looked up when the samples are
//! written, so only entries in threads without a name wait.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use crate::event::{
    Frame, Header, MetricData, MetricType, Number, Position, SampleData, Temporality, UnixNanos, semconv as names,
};
use crate::profile::calls::OpenCalls;
use crate::profile::interval::{CALLS, Interval, WALL, sample_of};
use crate::profile::limits::ProfileLimits;
use crate::profile::tree::{ROOT, Tree};
use crate::protocol::{Now, Output};

use super::dictionary::Dictionary;
use super::wire::{Call, What};

const NANOS_PER_MILLI: u64 = 1_000_000;
/// Names of threads of one run; calls of further ones are counted without the name of their thread.
const MAX_THREAD_NAMES: usize = 65_536;
/// Types of exceptions of one interval; further ones are counted together, without their type.
const MAX_EXCEPTIONS: usize = 65_536;
/// The frame of calls whose thread has no name.
const UNNAMED: u32 = 0;

/// The profile of a run.
#[derive(Debug)]
pub(super) struct CallProfile {
    limits: ProfileLimits,
    open: OpenCalls,
    /// The frames at depth 1 are numbers of thread names, those below are method ids.
    tree: Tree,
    /// The names of threads by number, from 1.
    threads: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u32, RandomState>,
    thread_bytes: usize,
    /// By exception id; `None`: those over the limit.
    exceptions: BTreeMap<Option<u32>, u64>,
    /// When the interval began, if something has happened in it.
    since: Option<Duration>,
    /// The last interval, while it is written.
    ended: Option<Ended>,
}

/// An interval that is written.
#[derive(Debug)]
struct Ended {
    interval: Interval,
    exceptions: BTreeMap<Option<u32>, u64>,
    duration: Duration,
}

impl CallProfile {
    /// An empty profile. At most `max_open_calls` calls are open.
    pub(super) fn new(limits: ProfileLimits, max_open_calls: usize) -> CallProfile {
        let ProfileLimits { max_nodes, max_depth, .. } = limits;
        CallProfile {
            limits,
            open: OpenCalls::new(max_open_calls),
            tree: Tree::new(max_nodes, max_depth.saturating_add(1), 1),
            threads: Vec::new(),
            numbers: HashMap::default(),
            thread_bytes: 0,
            exceptions: BTreeMap::new(),
            since: None,
            ended: None,
        }
    }

    /// Bytes of memory, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        let ended =
            self.ended.as_ref().map_or(0, |ended| ended.interval.tree.memory_bytes() + 32 * ended.exceptions.len());
        self.tree.memory_bytes() + ended + self.open.memory_bytes() + self.thread_bytes + 32 * self.exceptions.len()
    }

    /// When the interval ends.
    pub(super) fn due(&self) -> Option<Duration> {
        if self.ended.is_some() {
            return Some(Duration::ZERO);
        }
        self.since.map(|since| since + self.limits.interval)
    }

    /// Whether an interval is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.ended.is_some()
    }

    /// Counts an event. One that is late, after its turn, opens and closes no call. Without memory an entry counts for the call
    /// around it.
    #[inline]
    pub(super) fn add(
        &mut self,
        call: &Call,
        has_memory: bool,
        is_late: bool,
        elapsed: Duration,
        names: &mut Dictionary,
    ) {
        if self.since.is_none() {
            self.since = Some(elapsed);
        }
        match call.what {
            What::Entry => {
                let thread = self.thread(call, names);
                let tree = &mut self.tree;
                let mut count = |caller: Option<u32>| {
                    let caller = match caller {
                        Some(caller) if tree.nodes()[tree.nodes()[caller as usize].base as usize].frame == thread => {
                            caller
                        }
                        // The thread has another name since the calls around this one.
                        Some(caller) => {
                            let base = tree.callee(ROOT, thread);
                            tree.moved(caller, base)
                        }
                        None => tree.callee(ROOT, thread),
                    };
                    let node = tree.callee(caller, call.method);
                    tree.add(node, CALLS, 1);
                    node
                };
                if !has_memory {
                    tree.fold(self.open.current(call.thread.into()).unwrap_or(ROOT), CALLS, 1);
                } else if is_late {
                    count(self.open.current(call.thread.into()));
                } else {
                    self.open.enter(call.thread.into(), call.method, call.time, count);
                }
            }
            What::Exit { .. } | What::ExitAtLine(_) | What::Bubbled { .. } => {
                if !is_late && let Some(ended) = self.open.exit(call.thread.into(), call.method, call.time) {
                    self.tree.add(ended.node, WALL, ended.self_millis.saturating_mul(NANOS_PER_MILLI));
                }
            }
            What::Thrown { exception, .. } => {
                let is_known = self.exceptions.len() < MAX_EXCEPTIONS || self.exceptions.contains_key(&Some(exception));
                *self.exceptions.entry(is_known.then_some(exception)).or_default() += 1;
            }
            What::Visit { .. } => {}
        }
    }

    /// The number of the name that the thread has at this time.
    #[inline]
    fn thread(&mut self, call: &Call, names: &mut Dictionary) -> u32 {
        let Some(thread) = names.thread(call.thread) else { return UNNAMED };
        let name = thread.name_at(call.time);
        if name.number == 0 {
            name.number = self.number(&name.text);
        }
        name.number
    }

    #[cold]
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        if self.threads.len() >= MAX_THREAD_NAMES {
            return UNNAMED;
        }
        self.threads.push(name.into());
        self.thread_bytes += 2 * name.len() + 64;
        let number = self.threads.len() as u32;
        self.numbers.insert(name.into(), number);
        number
    }

    /// A data break: every open call ends without an exit.
    pub(super) fn end_calls(&mut self) {
        self.open.end_all();
    }

    /// Ends the interval if it is due, or in any case. `false`: it is not due, or nothing has happened in it.
    pub(super) fn end_interval(&mut self, elapsed: Duration, in_any_case: bool) -> bool {
        let Some(since) = self.since else { return false };
        if self.ended.is_some() || (!in_any_case && since + self.limits.interval > elapsed) {
            return false;
        }
        let tree = self.tree.restart(self.open.nodes());
        self.open.forget_idle_threads();
        let (exceptions, duration) = (mem::take(&mut self.exceptions), elapsed.saturating_sub(since));
        self.ended = Some(Ended { interval: Interval::new(tree), exceptions, duration });
        self.since = None;
        true
    }

    /// Writes the next event of the interval that has ended. `false`: there is none.
    pub(super) fn write_next(&mut self, now: Now, names: &mut Dictionary, out: &mut Output) -> bool {
        let Some(ended) = &mut self.ended else { return false };
        if let Some((node, column)) = ended.interval.next() {
            write_sample(&ended.interval.tree, (node, column), ended.duration, &self.threads, now, names, out);
            return true;
        }
        if let Some((exception, count)) = ended.exceptions.pop_first() {
            write_exceptions(exception, count, ended.duration, now, names, out);
            return true;
        }
        self.ended = None;
        true
    }
}

fn write_sample(
    tree: &Tree,
    (node, column): (u32, usize),
    duration: Duration,
    threads: &[Box<str>],
    now: Now,
    names: &mut Dictionary,
    out: &mut Output,
) {
    let path = tree.nodes()[node as usize];
    let (mut frames, mut unresolved) = (Vec::with_capacity(path.depth as usize), None);
    for method in tree.frames(node).take(path.depth.saturating_sub(1) as usize) {
        let function = match names.method(method) {
            Some(method) => out.batch.intern(&mut method.function.memo, &method.function.text),
            None => {
                unresolved.get_or_insert(method);
                out.batch.push_text(&format!("method#{method}"))
            }
        };
        frames.push(Frame { function: Some(function), file: None, line: None });
    }
    let mut event = out.batch.event(header(names::BYTEFROG_CALLS, now));
    let thread = tree.nodes()[path.base as usize].frame;
    if let Some(thread) = threads.get((thread as usize).wrapping_sub(1)) {
        event.text(names::THREAD_NAME, thread);
    }
    event.attribute(names::BYTEFROG_PROFILE_DURATION_MS, millis(duration));
    event.text(names::TIME_BASIS, names::TIME_BASIS_RECEIVED);
    if let Some(method) = unresolved {
        event.attribute(names::BYTEFROG_UNRESOLVED_METHOD, u64::from(method));
    }
    if path.is_incomplete {
        let frames = event.batch().push_text("frames");
        let incomplete = event.batch().array(&[frames.into()]);
        event.attribute(names::INCOMPLETE, incomplete);
    }
    let value = Number::U64(path.own[column]);
    let (sample_type, unit) = sample_of(column);
    event.sample(SampleData::new(sample_type, unit, value), &frames);
}

fn write_exceptions(
    exception: Option<u32>,
    count: u64,
    duration: Duration,
    now: Now,
    names: &mut Dictionary,
    out: &mut Output,
) {
    let name = exception.and_then(|exception| names.exception(exception));
    let name = name.map(|name| out.batch.intern(&mut name.memo, &name.text));
    let mut event = out.batch.event(header(names::BYTEFROG_EXCEPTIONS, now));
    match (exception, name) {
        (Some(exception), Some(name)) => {
            event.attribute(names::EXCEPTION_TYPE, name);
            event.attribute(names::BYTEFROG_EXCEPTION_ID, u64::from(exception));
        }
        (Some(exception), None) => {
            event.attribute(names::BYTEFROG_EXCEPTION_ID, u64::from(exception));
            event.attribute(names::BYTEFROG_UNRESOLVED_EXCEPTION, u64::from(exception));
        }
        (None, _) => {
            let exception_type = event.batch().push_text(names::EXCEPTION_TYPE.as_str());
            let incomplete = event.batch().array(&[exception_type.into()]);
            event.attribute(names::INCOMPLETE, incomplete);
        }
    }
    event.text(names::TIME_BASIS, names::TIME_BASIS_RECEIVED);
    let metric_type = MetricType::Sum { temporality: Temporality::Delta, monotonic: true };
    let start = Some(UnixNanos(now.unix.0.saturating_sub(millis(duration).saturating_mul(NANOS_PER_MILLI))));
    event.metric(MetricData { metric_type, unit: "{exception}", value: Number::U64(count), start });
}

/// The time of a profile is the end of its interval.
fn header(name: crate::event::Name, now: Now) -> Header {
    Header::observed_at(name, now.unix, Position::default())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap as Sums;

    use proptest::prelude::*;

    use super::super::dictionary::DictionaryLimits;
    use super::*;
    use crate::event::{Batch, BatchBuilder, DataView, Origin, ValueView};

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

    /// The values by `thread;outermost;…;innermost;type`, and the number of incomplete samples.
    fn written(profile: &mut CallProfile, names: &mut Dictionary, at: u64) -> (Sums<String, u64>, usize) {
        let origin = Origin::new("bytefrog", "java".into(), "127.0.0.1:1".into(), 1);
        let mut out = Output::new(BatchBuilder::new(origin.into()));
        profile.end_interval(now(at).elapsed, true);
        let (mut sums, mut incomplete) = (Sums::new(), 0);
        let mut more = true;
        while more {
            more = profile.write_next(now(at), names, &mut out);
            read(&out.batch.take(), &mut sums, &mut incomplete);
        }
        (sums, incomplete)
    }

    fn read(batch: &Batch, sums: &mut Sums<String, u64>, incomplete: &mut usize) {
        for event in batch.events() {
            let attribute =
                |wanted: &str| event.attributes().find(|(key, _)| key.text() == wanted).map(|(_, value)| value);
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
                    frames.push(sample.data.sample_type.to_owned());
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
        assert!(!profile.end_interval(Duration::from_secs(100), true), "nothing has happened");
        names.map_exception(4, b"java.lang.Error");
        let mut add = |what, method, time| {
            profile.add(&call(what, 1, method, time), true, false, now(time.into()).elapsed, &mut names);
        };
        add(What::Entry, 1, 1000);
        for start in [1010, 1020, 1030] {
            add(What::Entry, 2, start);
            add(What::Thrown { exception: 4, line: 1 }, 2, start);
            add(EXIT, 2, start + 5);
        }
        assert_eq!(profile.due(), Some(Duration::from_secs(11)));
        assert!(!profile.end_interval(Duration::from_millis(10_999), false));
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
        profile.add(&call(EXIT, 1, 1, 21_000), true, false, Duration::from_secs(21), &mut names);
        let (sums, _) = written(&mut profile, &mut names, 22_000);
        assert_eq!(sums, [("t1;a.B.m1;wall".to_owned(), 19_985_000_000)].into());
    }

    #[test]
    fn a_call_belongs_to_the_name_that_its_thread_has_at_its_entry() {
        let (mut names, mut profile) = (names(), CallProfile::new(limits(100, 100), 100));
        names.name_thread(1, 50, b"renamed");
        let mut add =
            |what, method, time| profile.add(&call(what, 1, method, time), true, false, Duration::ZERO, &mut names);
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
            profile.add(&call(What::Entry, 1, 7, depth), true, false, Duration::ZERO, &mut names);
        }
        for depth in 0..10_000 {
            profile.add(&call(EXIT, 1, 7, 10_000 + depth), true, false, Duration::ZERO, &mut names);
        }
        for thread in 100..5000 {
            profile.add(&call(What::Entry, thread, u32::from(thread), 0), true, false, Duration::ZERO, &mut names);
            profile.add(&call(EXIT, thread, u32::from(thread), 2), true, false, Duration::ZERO, &mut names);
        }
        assert!(profile.memory_bytes() < 2 << 20, "{}", profile.memory_bytes());
        let (sums, incomplete) = written(&mut profile, &mut names, 0);
        assert!(incomplete > 0 && sums.len() < 4100, "{incomplete} of {}", sums.len());
        let sum = |kind: &str| sums.iter().filter(|(key, _)| key.ends_with(kind)).map(|(_, value)| value).sum::<u64>();
        assert_eq!((sum(";wall") / NANOS_PER_MILLI, sum(";calls")), (19_999 + 9800, 14_900));
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
                        profile.add(&call(What::Entry, thread, method, time), true, false, Duration::ZERO, &mut names);
                    }
                    6..=9 => {
                        profile.add(&call(EXIT, thread, method, time), true, false, Duration::ZERO, &mut names);
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
}
