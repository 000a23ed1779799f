//! The calls of a run as a profile (`calls = "profile"`): a tree of calls by name of thread, which is written at intervals as one
//! sample for each stack and quantity, and the exceptions that were thrown, by type.
//!
//! A call counts at its entry, and its self time when it ends. Names of methods and exceptions are looked up when the samples are
//! written, so only entries in threads without a name wait.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use foldhash::fast::RandomState as FastState;
use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_event::{
    Frame, Header, MetricData, MetricType, Number, Position, SampleData, Temporality, UnixNanos, output_len,
    semconv as names,
};
use tributary_memory::Amplification;
use tributary_profile::calls::OpenCalls;
use tributary_profile::interval::{CALLS, FRAME_BYTES, Interval, SAMPLE_BYTES, WALL, sample_of};
use tributary_profile::limits::ProfileLimits;
use tributary_profile::tree::{CallNode, ROOT, Tree};
use tributary_protocol::{Now, Output};

use super::dictionary::Dictionary;
use super::wire::{Call, What};

const NANOS_PER_MILLI: u64 = 1_000_000;
/// Names of threads of one run; calls of further ones are counted without the name of their thread.
const MAX_THREAD_NAMES: usize = 65_536;
/// Types of exceptions of one interval; further ones are counted together, without their type.
const MAX_EXCEPTIONS: usize = 65_536;
/// The frame of calls whose thread has no name.
const UNNAMED: u32 = 0;
/// The most bytes of the frame of a method without a name.
const UNRESOLVED_BYTES: u64 = 20;
/// The warning for an interval whose samples were over a limit.
const FOLDED: &str = "profile_folded";

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
    /// Bytes of the messages that were counted in the interval: its samples are paid with what they earn.
    earned: u64,
    /// When the interval began, if something has happened in it.
    since: Option<Duration>,
    /// The last interval, while it is written.
    ended: Option<EndedInterval>,
}

/// An interval that is written.
#[derive(Debug)]
struct EndedInterval {
    interval: Interval,
    exceptions: BTreeMap<Option<u32>, u64>,
    duration: Duration,
    /// The output of each method's name, as it was when the interval ended.
    name_bytes: HashMap<u32, u64, FastState>,
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
            earned: 0,
            since: None,
            ended: None,
        }
    }

    /// Bytes of memory, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        let ended = self.ended.as_ref().map_or(0, |ended| {
            ended.interval.tree.memory_bytes() + 32 * ended.exceptions.len() + 17 * ended.name_bytes.capacity()
        });
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

    /// Counts an event, of a message of `bytes`. One that is late, after its turn, opens and closes no call. Without memory an
    /// entry counts for the call around it.
    #[inline]
    pub(super) fn add(
        &mut self,
        (call, bytes): (&Call, u32),
        has_memory: bool,
        is_late: bool,
        elapsed: Duration,
        names: &mut Dictionary,
    ) {
        if self.since.is_none() {
            self.since = Some(elapsed);
        }
        self.earned += u64::from(bytes);
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

    /// Whether the interval has ended, or would if it ended in any case: something has happened in it, and none is being written.
    pub(super) fn is_due(&self, elapsed: Duration, in_any_case: bool) -> bool {
        let is_over = |since: Duration| in_any_case || since + self.limits.interval <= elapsed;
        self.ended.is_none() && self.since.is_some_and(is_over)
    }

    /// Ends the interval. Its samples are paid here, with what its messages have earned and what the peer's allowance has left;
    /// those for which that is too little, or that are over `max_profile_bytes`, are folded.
    pub(super) fn end_interval(
        &mut self,
        elapsed: Duration,
        amplification: Amplification,
        names: &mut Dictionary,
        out: &mut Output,
    ) {
        let Some(since) = self.since.take() else { return };
        let tree = self.tree.restart(self.open.nodes());
        self.open.forget_idle_threads();
        let (exceptions, earned) = (mem::take(&mut self.exceptions), mem::take(&mut self.earned));
        let most = out.allowance_left(amplification, earned, elapsed).min(self.limits.max_bytes);
        let mut name_bytes = HashMap::default();
        let threads = &self.threads;
        let of_node = |node: &CallNode| {
            if node.depth <= 1 {
                let name = threads.get((node.frame as usize).wrapping_sub(1));
                return name.map_or(0, |name| output_len(name) as u64);
            }
            FRAME_BYTES + *name_bytes.entry(node.frame).or_insert_with(|| method_bytes(node.frame, names))
        };
        let sample_bytes = out.batch.event_bytes() as u64 + SAMPLE_BYTES;
        let interval = Interval::new(tree, most, sample_bytes, of_node);
        out.charge(amplification, earned, interval.folded.bytes, elapsed);
        if interval.folded.sums > 0 {
            out.warn(FOLDED);
        }
        self.ended = Some(EndedInterval { interval, exceptions, duration: elapsed.saturating_sub(since), name_bytes });
    }

    /// Writes the next event of the interval that has ended. `false`: there is none. Samples are paid already: their number of
    /// bytes is added to `paid`.
    pub(super) fn write_next(&mut self, now: Now, names: &mut Dictionary, out: &mut Output, paid: &mut u64) -> bool {
        let Some(ended) = &mut self.ended else { return false };
        if let Some(sample) = ended.interval.next() {
            let before = out.batch.total_expanded_bytes();
            ended.write_sample(sample, &self.threads, now, names, out);
            *paid += out.batch.total_expanded_bytes() - before;
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

impl EndedInterval {
    fn write_sample(
        &self,
        (node, column): (u32, usize),
        threads: &[Box<str>],
        now: Now,
        names: &mut Dictionary,
        out: &mut Output,
    ) {
        let tree = &self.interval.tree;
        let path = tree.nodes()[node as usize];
        let (mut frames, mut unresolved) = (Vec::with_capacity(path.depth as usize), None);
        for method in tree.frames(node).take(path.depth.saturating_sub(1) as usize) {
            let name = names.method(method).map(|method| &mut method.function);
            let function = name.map(|name| out.batch.intern(&mut name.memo, &name.text));
            // A name that has become longer since the samples were paid is not written.
            let paid = self.name_bytes.get(&method).copied().unwrap_or(0);
            let function = function.filter(|function| function.output_len() as u64 <= paid).unwrap_or_else(|| {
                unresolved.get_or_insert(method);
                out.batch.push_text(&unresolved_name(method))
            });
            frames.push(Frame { function: Some(function), file: None, line: None });
        }
        let mut event = out.batch.event(header(names::BYTEFROG_CALLS, now));
        let thread = tree.nodes()[path.base as usize].frame;
        if let Some(thread) = threads.get((thread as usize).wrapping_sub(1)) {
            event.text(names::THREAD_NAME, thread);
        }
        event.attribute(names::BYTEFROG_PROFILE_DURATION_MS, millis(self.duration));
        event.text(names::TIME_BASIS, names::TIME_BASIS_RECEIVED);
        if let Some(method) = unresolved {
            event.attribute(names::BYTEFROG_UNRESOLVED_METHOD, u64::from(method));
        }
        if path.is_incomplete {
            event.incomplete(["frames"]);
        }
        let value = Number::U64(path.own[column]);
        let (sample_type, unit) = sample_of(column);
        event.sample(SampleData::new(sample_type, unit, value), &frames);
    }
}

/// Bytes of the name of a method in the output.
fn method_bytes(method: u32, names: &mut Dictionary) -> u64 {
    names.method(method).map_or(UNRESOLVED_BYTES, |method| output_len(&method.function.text) as u64)
}

/// The frame of a method without a name.
fn unresolved_name(method: u32) -> String {
    format!("method#{method}")
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
            event.incomplete([names::EXCEPTION_TYPE.as_str()]);
        }
    }
    event.text(names::TIME_BASIS, names::TIME_BASIS_RECEIVED);
    let metric_type = MetricType::Sum { temporality: Temporality::Delta, monotonic: true };
    let start = Some(UnixNanos(now.unix.0.saturating_sub(millis(duration).saturating_mul(NANOS_PER_MILLI))));
    event.metric(MetricData { metric_type, unit: "{exception}".into(), value: Number::U64(count), start });
}

/// The time of a profile is the end of its interval.
fn header(name: tributary_event::Name, now: Now) -> Header {
    Header::observed_at(name, now.unix, Position::default())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
