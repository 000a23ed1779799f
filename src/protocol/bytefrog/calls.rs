//! Method calls as spans: entries and exits of each thread, paired in the order of their numbers.
//!
//! Exits (21) and bubbles (23) close calls, a `throw` (22) does not. Exits without entry and entries without exit are
//! tolerated (rule 23), and a data break ends every call (rule 19).

use std::collections::VecDeque;

use hashbrown::HashMap;

use tributary_codec::mix::mix;
use tributary_event::{SpanId, TraceId, UnixNanos};
use tributary_profile::call_stack::{CallStack, MethodCall};

use super::queue::Event;

/// A call whose entry has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenCall {
    pub method: u32,
    pub thread: u16,
    /// The time of the entry on the agent's clock.
    pub time: u32,
    /// The position of the entry.
    pub number: u64,
    pub source: u16,
    pub length: u32,
    pub offset: u64,
    pub observed: UnixNanos,
    pub ids: SpanIds,
    pub parent: Option<SpanId>,
}

impl MethodCall for OpenCall {
    fn method(&self) -> u32 {
        self.method
    }
}

/// The ids of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SpanIds {
    pub trace: TraceId,
    pub span: SpanId,
}

#[derive(Debug, Default)]
struct Stack {
    frames: CallStack<OpenCall>,
    /// The call that was closed last, which visits belong to (section 2).
    closed: Option<SpanIds>,
}

/// The open calls of a run.
#[derive(Debug)]
pub(super) struct OpenCalls {
    /// The seed of ids; thread and number are added to it.
    key: u64,
    threads: HashMap<u16, Stack, foldhash::fast::RandomState>,
    len: usize,
    /// The capacity of all stacks, in calls.
    capacity: usize,
    max: usize,
    /// Calls that end without an exit, outermost last.
    unfinished: VecDeque<OpenCall>,
}

impl OpenCalls {
    /// No calls; at most `max` will be open. `key` differs between runs.
    pub(super) fn new(key: u64, max: usize) -> Self {
        OpenCalls { key, threads: HashMap::default(), len: 0, capacity: 0, max, unfinished: VecDeque::new() }
    }

    /// Bytes of memory, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        let frames = (self.capacity + self.unfinished.len()) * size_of::<OpenCall>();
        frames + self.len * size_of::<(u32, u32)>() + self.threads.capacity() * size_of::<(u16, Stack)>()
    }

    /// Opens a call: its ids. `None`: too many are open.
    pub(super) fn open(&mut self, event: &Event, method: u32, thread: u16, time: u32) -> Option<SpanIds> {
        if self.len >= self.max {
            return None;
        }
        let span = self.span_id(event.number);
        let stack = self.threads.entry(thread).or_default();
        let (trace, parent) = match stack.frames.last() {
            Some(parent) => (parent.ids.trace, Some(parent.ids.span)),
            None => (trace_id(self.key, thread, event.number), None),
        };
        let ids = SpanIds { trace, span };
        let Event { number, source, length, offset, observed, .. } = *event;
        let capacity = stack.frames.capacity();
        stack.frames.push(OpenCall { method, thread, time, number, source, length, offset, observed, ids, parent });
        self.capacity += stack.frames.capacity() - capacity;
        self.len += 1;
        Some(ids)
    }

    /// Closes the innermost call of this method. Calls within it end without an exit.
    pub(super) fn close(&mut self, method: u32, thread: u16) -> Option<OpenCall> {
        let stack = self.threads.get_mut(&thread)?;
        let place = stack.frames.innermost(method)?;
        let capacity = stack.frames.capacity();
        self.len -= stack.frames.len() - place;
        while stack.frames.len() > place + 1 {
            self.unfinished.extend(stack.frames.pop());
        }
        let frame = stack.frames.pop()?;
        stack.closed = Some(frame.ids);
        self.capacity -= capacity - stack.frames.capacity();
        Some(frame)
    }

    /// The innermost open call of a thread.
    pub(super) fn current(&self, thread: u16) -> Option<SpanIds> {
        self.threads.get(&thread)?.frames.last().map(|frame| frame.ids)
    }

    /// The call of a thread that was closed last.
    pub(super) fn closed(&self, thread: u16) -> Option<SpanIds> {
        self.threads.get(&thread)?.closed
    }

    /// Ends every open call without an exit.
    pub(super) fn end_all(&mut self) {
        // Not `drain`: it would search the whole capacity of the map again for every further data break.
        let mut stacks: Vec<_> = std::mem::take(&mut self.threads).into_iter().collect();
        stacks.sort_unstable_by_key(|(thread, _)| *thread);
        self.unfinished.extend(stacks.into_iter().flat_map(|(_, stack)| stack.frames.into_calls().into_iter().rev()));
        (self.len, self.capacity) = (0, 0);
    }

    /// The next call that ended without an exit.
    pub(super) fn take_unfinished(&mut self) -> Option<OpenCall> {
        let frame = self.unfinished.pop_front();
        if self.unfinished.is_empty() {
            self.unfinished = VecDeque::new();
        }
        frame
    }

    /// Whether calls that ended without an exit are to be written.
    pub(super) fn has_unfinished(&self) -> bool {
        !self.unfinished.is_empty()
    }

    fn span_id(&self, number: u64) -> SpanId {
        // Zero stands for no span.
        SpanId(mix(self.key ^ number).max(1).to_be_bytes())
    }
}

/// The id of a trace: everything in a thread from the entry of a root call to its exit.
fn trace_id(key: u64, thread: u16, number: u64) -> TraceId {
    let high = mix(key ^ u64::from(thread) << 48).to_be_bytes();
    let low = mix(key.rotate_left(32) ^ number).to_be_bytes();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&high);
    id[8..].copy_from_slice(&low);
    TraceId(id)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::queue::Body;
    use super::super::wire::{Call, What};
    use super::*;

    fn enter(calls: &mut OpenCalls, number: u64, method: u32, thread: u16) -> Option<SpanIds> {
        let call = Call { what: What::Entry, time: 0, sequence: number as u32, method, thread };
        let event = Event {
            body: Body::Call(call),
            number,
            source: 0,
            length: 15,
            offset: 0,
            observed: UnixNanos(0),
            arrived: Duration::ZERO,
            is_late: false,
            has_waited: false,
        };
        calls.open(&event, method, thread, 0)
    }

    #[test]
    fn calls_nest_by_thread_and_root_calls_start_traces() {
        let mut calls = OpenCalls::new(1, 10);
        let outer = enter(&mut calls, 0, 1, 7).unwrap();
        let other = enter(&mut calls, 1, 1, 8).unwrap();
        let inner = enter(&mut calls, 2, 2, 7).unwrap();
        assert_eq!(inner.trace, outer.trace);
        assert_ne!(other.trace, outer.trace);
        assert_eq!(calls.current(7), Some(inner));
        let frame = calls.close(2, 7).unwrap();
        assert_eq!((frame.ids, frame.parent), (inner, Some(outer.span)));
        assert_eq!(calls.closed(7), Some(inner));
        assert_eq!(calls.close(1, 7).unwrap().parent, None);
        assert!(calls.close(1, 7).is_none());
    }

    #[test]
    fn an_exit_ends_the_calls_within_and_a_break_ends_all() {
        let mut calls = OpenCalls::new(1, 10);
        for (number, method) in (0..).zip([1, 2, 3, 4]) {
            enter(&mut calls, number, method, 0);
        }
        assert_eq!(calls.close(2, 0).unwrap().number, 1);
        assert!(calls.close(9, 0).is_none());
        calls.end_all();
        let unfinished: Vec<_> = std::iter::from_fn(|| calls.take_unfinished()).map(|frame| frame.number).collect();
        assert_eq!(unfinished, [3, 2, 0]);
        assert_eq!(calls.current(0), None);
    }

    #[test]
    fn a_thread_that_was_deep_once_does_not_keep_the_memory() {
        let mut calls = OpenCalls::new(1, 100_000);
        for number in 0..1000 {
            enter(&mut calls, number, number as u32, 0).unwrap();
        }
        assert!(calls.close(5000, 0).is_none());
        assert_eq!(calls.close(900, 0).unwrap().number, 900);
        assert_eq!(std::iter::from_fn(|| calls.take_unfinished()).count(), 99);
        assert!(calls.close(900, 0).is_none());
        assert_eq!(calls.close(3, 0).unwrap().number, 3);
        assert_eq!(std::iter::from_fn(|| calls.take_unfinished()).count(), 896);
        enter(&mut calls, 2000, 5000, 0).unwrap();
        assert_eq!(calls.close(5000, 0).unwrap().number, 2000);
        let capacity: usize = calls.threads.values().map(|stack| stack.frames.capacity()).sum();
        assert!(capacity == calls.capacity && capacity <= 16, "{capacity}, and {} counted", calls.capacity);
    }

    #[test]
    fn a_data_break_after_many_threads_leaves_nothing_to_search_for_the_next_one() {
        let mut calls = OpenCalls::new(1, 100_000);
        assert!((0..50_000_u16).all(|thread| enter(&mut calls, thread.into(), 1, thread).is_some()));
        calls.end_all();
        assert_eq!(std::iter::from_fn(|| calls.take_unfinished()).count(), 50_000);
        assert_eq!(calls.memory_bytes(), 0);
    }

    #[test]
    fn open_calls_are_bounded_and_closed_ones_free_their_place() {
        let mut calls = OpenCalls::new(1, 2);
        assert!(enter(&mut calls, 0, 1, 0).is_some());
        assert!(enter(&mut calls, 1, 1, 1).is_some());
        assert!(enter(&mut calls, 2, 1, 2).is_none());
        calls.close(1, 0).unwrap();
        assert!(enter(&mut calls, 3, 1, 2).is_some());
    }
}
