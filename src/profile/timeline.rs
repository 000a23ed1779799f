//! Calls, spans and samples with their times, by process and thread, for viewers of time.
//!
//! Nothing is summed up. What has no time is left out and counted; so are the items that arrive when the limit is reached.

mod shown;
#[cfg(test)]
mod tests;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::call_order::CallOrder;
use super::call_stack::{CallStack, MethodCall};
use super::stacks::Stacks;
use super::{Call, CallStep, Counted, ProfileItem, ProfileSample, ProfileSpan};
pub use shown::ShownTimeline;
pub(crate) use shown::{CallChange, ProcessTracks, Track};

/// Spans, calls and samples that are kept.
const MAX_ITEMS: usize = 4 << 20;
/// Open calls of a process.
const MAX_OPEN_CALLS: usize = 1 << 20;
/// Memory of an item, of an entry or exit that waits, and of a call path.
const ITEM_BYTES: usize = 96;
const NODE_BYTES: usize = 128;

/// What is said of a span, or of a call that another call outlived.
pub(crate) const UNKNOWN_END: &str = "unknown";
/// What is said of a call without an exit in the input.
pub(crate) const STILL_OPEN: &str = "after the end of the input";

/// Items that are being collected.
#[derive(Clone, Debug)]
pub struct Timeline {
    stacks: Stacks,
    /// By the node of the thread, and the number that an agent has given it.
    tracks: HashMap<(u32, Option<u64>), u32, RandomState>,
    track_keys: Vec<(u32, Option<u64>)>,
    spans: Vec<TimedSpan>,
    calls: Vec<TimedCall>,
    samples: Vec<TimedSample>,
    /// Entries and exits, by the node of their process.
    open: HashMap<u32, ProcessCalls, RandomState>,
    waiting: usize,
    max_items: usize,
    left_out: u64,
    without_time: u64,
}

/// A span with its times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedSpan {
    track: u32,
    /// The frames that are its name and its detail.
    pub(crate) name: u32,
    pub(crate) detail: Option<u32>,
    /// Nanoseconds since the epoch.
    pub(crate) start: u64,
    /// In nanoseconds; `None`: unknown.
    pub(crate) duration: Option<u64>,
    pub(crate) trace: u128,
    pub(crate) id: u64,
    pub(crate) parent: Option<u64>,
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallEnd {
    /// By its exit, in nanoseconds since the epoch.
    At(u64),
    /// It was cut by the exit of a call around it, or by missing entries and exits.
    Unknown,
    /// Not before the end of the input.
    Open,
}

/// A call with its times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedCall {
    track: u32,
    pub(crate) frame: u32,
    /// The node of its stack.
    pub(crate) node: u32,
    /// The number of calls around it.
    depth: u32,
    /// Nanoseconds since the epoch.
    pub(crate) start: u64,
    pub(crate) end: CallEnd,
}

/// A sample with its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedSample {
    track: u32,
    pub(crate) node: u32,
    pub(crate) counted: Counted,
    pub(crate) value: u64,
    /// Nanoseconds since the epoch: when it began to count.
    pub(crate) time: u64,
}

#[derive(Clone, Debug)]
struct ProcessCalls {
    order: CallOrder<OrderedCall>,
    threads: HashMap<u64, ThreadTimeline, RandomState>,
    open: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct OrderedCall {
    at: u64,
    frame: u32,
    thread_id: u64,
    /// The node of the thread's name.
    thread: u32,
}

#[derive(Clone, Debug, Default)]
struct ThreadTimeline {
    calls: CallStack<OpenTimedCall>,
    /// The latest time, in nanoseconds since the epoch. Where the clock steps back, no time passes.
    now: u64,
}

#[derive(Clone, Debug)]
struct OpenTimedCall {
    frame: u32,
    node: u32,
    /// That of the outermost call, also when the thread is renamed: self times are without the calls within.
    track: u32,
    /// Its place in the kept calls, if it is kept.
    place: Option<usize>,
}

impl MethodCall for OpenTimedCall {
    fn method(&self) -> u32 {
        self.frame
    }
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline::new(Stacks::default(), MAX_ITEMS)
    }
}

impl Timeline {
    /// No items; those that are kept take about `bytes`.
    pub fn bounded(bytes: usize) -> Self {
        let part = bytes / 4;
        Timeline::new(Stacks::bounded((part / NODE_BYTES).max(64), part), (part / ITEM_BYTES).max(64))
    }

    fn new(stacks: Stacks, max_items: usize) -> Self {
        Timeline {
            stacks,
            tracks: HashMap::default(),
            track_keys: Vec::new(),
            spans: Vec::new(),
            calls: Vec::new(),
            samples: Vec::new(),
            open: HashMap::default(),
            waiting: 0,
            max_items: max_items.min(MAX_ITEMS),
            left_out: 0,
            without_time: 0,
        }
    }

    /// Adds an item, if it has to do with stacks.
    pub fn add(&mut self, item: &ProfileItem<'_>) {
        match item {
            ProfileItem::Sample(sample) => self.sample(sample),
            ProfileItem::Span(span) => self.span(span),
            ProfileItem::Call(call) => self.call(call),
            ProfileItem::Method(_) | ProfileItem::Lines(_) | ProfileItem::Object(_) | ProfileItem::DumpEnd(_) => {}
        }
    }

    /// Nothing follows. Items are ordered by their threads and times.
    pub fn finish(&mut self) {
        let mut open = std::mem::take(&mut self.open);
        // Their order decides which calls are kept.
        let mut processes: Vec<u32> = open.keys().copied().collect();
        processes.sort_unstable();
        for process in processes {
            if let Some(calls) = open.get_mut(&process) {
                while self.take_first(calls) {}
            }
        }
        self.waiting = 0;
        self.spans.sort_by_key(|span| (span.track, span.start, u64::MAX - span.duration.unwrap_or(0)));
        // Calls of a thread are in the order of their entries.
        self.calls.sort_by_key(|call| call.track);
        self.samples.sort_by_key(|sample| (sample.track, sample.time));
    }

    /// Whether there is space for an item.
    fn has_space(&mut self) -> bool {
        let has_space = self.spans.len() + self.calls.len() + self.samples.len() < self.max_items;
        self.left_out += u64::from(!has_space);
        has_space
    }

    fn track(&mut self, thread: u32, id: Option<u64>) -> u32 {
        *self.tracks.entry((thread, id)).or_insert_with(|| {
            self.track_keys.push((thread, id));
            self.track_keys.len() as u32 - 1
        })
    }

    fn sample(&mut self, sample: &ProfileSample<'_>) {
        let Some(time) = sample.time else {
            self.without_time += 1;
            return;
        };
        if !self.has_space() {
            return;
        }
        let thread = self.stacks.thread(&sample.agent, sample.thread.as_deref());
        let (track, node) = (self.track(thread, None), self.stacks.node_of(sample));
        let time = time.saturating_sub(sample.covers.unwrap_or(0));
        let ProfileSample { counted, value, .. } = *sample;
        self.samples.push(TimedSample { track, node, counted, value, time });
    }

    fn span(&mut self, span: &ProfileSpan<'_>) {
        let Some(start) = span.start else {
            self.without_time += 1;
            return;
        };
        if !self.has_space() {
            return;
        }
        let thread = self.stacks.thread(&span.agent, span.thread.as_deref());
        let track = self.track(thread, None);
        let name = self.stacks.function(&span.name);
        let detail = span.detail.as_deref().filter(|detail| !detail.is_empty());
        let detail = detail.map(|detail| self.stacks.function(detail));
        let ProfileSpan { duration, trace, id, parent, .. } = *span;
        self.spans.push(TimedSpan { track, name, detail, start, duration, trace, id, parent });
    }

    fn call(&mut self, call: &Call<'_>) {
        let at = match (call.at, call.step) {
            (Some(at), _) => at,
            (None, CallStep::Break) => 0,
            (None, _) => {
                self.without_time += 1;
                return;
            }
        };
        let thread = self.stacks.thread(&call.agent, call.thread.as_deref());
        let process = self.stacks.tree().nodes()[thread as usize].caller;
        let frame = self.stacks.function(&call.function);
        let mut calls = self.open.remove(&process).unwrap_or_else(|| ProcessCalls {
            order: CallOrder::new(call.sequence),
            threads: HashMap::default(),
            open: 0,
        });
        calls.order.push(call, OrderedCall { at, frame, thread_id: call.thread_id, thread });
        self.waiting += 1;
        if calls.order.is_full() || self.waiting > self.max_items {
            self.waiting -= usize::from(self.take_first(&mut calls));
        }
        self.open.insert(process, calls);
    }

    fn take_first(&mut self, process: &mut ProcessCalls) -> bool {
        let Some((step, OrderedCall { at, frame, thread_id, thread })) = process.order.pop() else { return false };
        if step == CallStep::Break {
            for calls in std::mem::take(&mut process.threads).into_values() {
                calls.calls.into_calls().into_iter().for_each(|call| self.end(call, CallEnd::Unknown));
            }
            process.open = 0;
            return true;
        }
        let is_entry = step == CallStep::Entry;
        if !is_entry && !process.threads.contains_key(&thread_id) {
            return true;
        }
        let calls = process.threads.entry(thread_id).or_default();
        calls.now = calls.now.max(at);
        if is_entry {
            if process.open >= MAX_OPEN_CALLS {
                self.left_out += 1;
                return true;
            }
            let depth = calls.calls.len() as u32;
            let caller = self.stacks.caller_in(thread, calls.calls.last().map(|call| call.node));
            let node = self.stacks.callee(caller, frame);
            let track = match calls.calls.last().map(|call| call.track) {
                Some(track) => track,
                None => self.track(thread, Some(thread_id)),
            };
            let place = self.has_space().then_some(self.calls.len());
            if place.is_some() {
                self.calls.push(TimedCall { track, frame, node, depth, start: calls.now, end: CallEnd::Open });
            }
            calls.calls.push(OpenTimedCall { frame, node, track, place });
            process.open += 1;
        } else if let Some(depth) = calls.calls.innermost(frame) {
            while calls.calls.len() > depth {
                let is_ended = calls.calls.len() == depth + 1;
                let Some(call) = calls.calls.pop() else { break };
                process.open -= 1;
                self.end(call, if is_ended { CallEnd::At(calls.now) } else { CallEnd::Unknown });
            }
        }
        true
    }

    fn end(&mut self, call: OpenTimedCall, end: CallEnd) {
        if let Some(place) = call.place {
            self.calls[place].end = end;
        }
    }
}
