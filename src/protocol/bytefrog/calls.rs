//! Method calls as spans: entries and exits of each thread, paired in the order of their numbers.
//!
//! Frames are closed by exits (21) and bubbles (23), never by a `throw` (22); exits without entry and entries without
//! exit are tolerated (rule 23), and a data break empties every stack (rule 19).

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::event::{SpanId, TraceId, UnixNanos};

use super::queue::Event;

/// Of this many calls the innermost of a method is simply searched.
const SHALLOW: usize = 64;

/// A call that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub method: u32,
    pub thread: u16,
    /// The agent's time of the entry.
    pub time: u32,
    /// Where the entry stood.
    pub number: u64,
    pub source: u16,
    pub length: u32,
    pub offset: u64,
    pub observed: UnixNanos,
    pub ids: SpanIds,
    pub parent: Option<SpanId>,
}

/// Which span, of which trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SpanIds {
    pub trace: TraceId,
    pub span: SpanId,
}

#[derive(Debug, Default)]
struct Stack {
    frames: Vec<Frame>,
    /// The call that was closed last: visits belong to it (section 2).
    closed: Option<SpanIds>,
    /// How often each method stands on a deep stack, once an exit has been looked for in its depths.
    deep: Option<HashMap<u32, u32, foldhash::fast::RandomState>>,
}

/// The open calls of a run.
#[derive(Debug)]
pub(super) struct OpenCalls {
    /// What the ids are made of, beside thread and number.
    key: u64,
    threads: HashMap<u16, Stack, foldhash::fast::RandomState>,
    len: usize,
    /// Frames that the stacks have room for.
    room: usize,
    max: usize,
    /// Calls whose exit will not be seen, outermost last.
    abandoned: VecDeque<Frame>,
}

impl OpenCalls {
    /// No call yet, and never more than `max` open. `key` tells runs apart.
    pub(super) fn new(key: u64, max: usize) -> Self {
        OpenCalls { key, threads: HashMap::default(), len: 0, room: 0, max, abandoned: VecDeque::new() }
    }

    /// Bytes of memory, roughly.
    pub(super) fn memory_bytes(&self) -> usize {
        let frames = (self.room + self.abandoned.len()) * size_of::<Frame>();
        frames + self.len * size_of::<(u32, u32)>() + self.threads.capacity() * size_of::<(u16, Stack)>()
    }

    /// A call begins: its ids. `None`: too many are open.
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
        let room = stack.frames.capacity();
        stack.push(Frame { method, thread, time, number, source, length, offset, observed, ids, parent });
        self.room += stack.frames.capacity() - room;
        self.len += 1;
        Some(ids)
    }

    /// A call ends: the innermost one of this method. Calls within it whose exit has not been seen are abandoned.
    pub(super) fn close(&mut self, method: u32, thread: u16) -> Option<Frame> {
        let stack = self.threads.get_mut(&thread)?;
        let place = stack.innermost(method)?;
        let room = stack.frames.capacity();
        self.len -= stack.frames.len() - place;
        while stack.frames.len() > place + 1 {
            self.abandoned.extend(stack.pop());
        }
        let frame = stack.pop()?;
        stack.closed = Some(frame.ids);
        self.room -= room - stack.frames.capacity();
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

    /// No exit of any open call will be seen.
    pub(super) fn abandon_all(&mut self) {
        let mut stacks: Vec<_> = self.threads.drain().collect();
        stacks.sort_unstable_by_key(|(thread, _)| *thread);
        self.abandoned.extend(stacks.into_iter().flat_map(|(_, stack)| stack.frames.into_iter().rev()));
        (self.len, self.room) = (0, 0);
    }

    /// The next abandoned call.
    pub(super) fn take_abandoned(&mut self) -> Option<Frame> {
        let frame = self.abandoned.pop_front();
        if self.abandoned.is_empty() {
            self.abandoned = VecDeque::new();
        }
        frame
    }

    /// Whether some are to be told.
    pub(super) fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }

    fn span_id(&self, number: u64) -> SpanId {
        // Zero stands for no span.
        SpanId(mix(self.key ^ number).max(1).to_be_bytes())
    }
}

impl Stack {
    fn push(&mut self, frame: Frame) {
        if let Some(deep) = &mut self.deep {
            *deep.entry(frame.method).or_default() += 1;
        }
        self.frames.push(frame);
    }

    fn pop(&mut self) -> Option<Frame> {
        let frame = self.frames.pop()?;
        if let Some(deep) = &mut self.deep
            && let Some(count) = deep.get_mut(&frame.method)
        {
            *count -= 1;
            if *count == 0 {
                deep.remove(&frame.method);
            }
        }
        let (len, room) = (self.frames.len(), self.frames.capacity());
        if len <= SHALLOW {
            self.deep = None;
        }
        // A thread that was deep once does not keep the room for it.
        if room > 4 && len <= room / 4 {
            self.frames.shrink_to(room / 2);
        }
        Some(frame)
    }

    /// The place of the innermost call of a method. Whatever an agent asks for, no deep stack is searched in vain.
    fn innermost(&mut self, method: u32) -> Option<usize> {
        let shallow = self.frames.len().saturating_sub(SHALLOW);
        let search = |frames: &[Frame]| frames.iter().rposition(|frame| frame.method == method);
        if let Some(place) = search(&self.frames[shallow..]) {
            return Some(shallow + place);
        }
        if shallow == 0 {
            return None;
        }
        let deep = self.deep.get_or_insert_with(|| {
            let mut deep = HashMap::default();
            self.frames.iter().for_each(|frame| *deep.entry(frame.method).or_default() += 1);
            deep
        });
        if deep.contains_key(&method) { search(&self.frames) } else { None }
    }
}

/// A trace is what happens in a thread from a root call to its end.
fn trace_id(key: u64, thread: u16, number: u64) -> TraceId {
    let high = mix(key ^ u64::from(thread) << 48).to_be_bytes();
    let low = mix(key.rotate_left(32) ^ number).to_be_bytes();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&high);
    id[8..].copy_from_slice(&low);
    TraceId(id)
}

/// A permutation of 64 bits without visible pattern (the finish of SplitMix64).
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
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
    fn calls_nest_by_thread_and_roots_begin_traces() {
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
    fn an_exit_abandons_the_calls_within_and_a_break_all() {
        let mut calls = OpenCalls::new(1, 10);
        for (number, method) in (0..).zip([1, 2, 3, 4]) {
            enter(&mut calls, number, method, 0);
        }
        assert_eq!(calls.close(2, 0).unwrap().number, 1);
        assert!(calls.close(9, 0).is_none());
        calls.abandon_all();
        let abandoned: Vec<_> = std::iter::from_fn(|| calls.take_abandoned()).map(|frame| frame.number).collect();
        assert_eq!(abandoned, [3, 2, 0]);
        assert_eq!(calls.current(0), None);
    }

    #[test]
    fn a_thread_that_was_deep_once_does_not_keep_the_memory_and_its_depths_are_not_forgotten() {
        let mut calls = OpenCalls::new(1, 100_000);
        for number in 0..1000 {
            enter(&mut calls, number, number as u32, 0).unwrap();
        }
        assert!(calls.close(5000, 0).is_none());
        assert_eq!(calls.close(900, 0).unwrap().number, 900);
        assert_eq!(std::iter::from_fn(|| calls.take_abandoned()).count(), 99);
        assert!(calls.close(900, 0).is_none());
        assert_eq!(calls.close(3, 0).unwrap().number, 3);
        assert_eq!(std::iter::from_fn(|| calls.take_abandoned()).count(), 896);
        enter(&mut calls, 2000, 5000, 0).unwrap();
        assert_eq!(calls.close(5000, 0).unwrap().number, 2000);
        let room: usize = calls.threads.values().map(|stack| stack.frames.capacity()).sum();
        assert!(room == calls.room && room <= 16, "{room}, and {} counted", calls.room);
    }

    #[test]
    fn open_calls_are_bounded_and_closed_ones_make_room() {
        let mut calls = OpenCalls::new(1, 2);
        assert!(enter(&mut calls, 0, 1, 0).is_some());
        assert!(enter(&mut calls, 1, 1, 1).is_some());
        assert!(enter(&mut calls, 2, 1, 2).is_none());
        calls.close(1, 0).unwrap();
        assert!(enter(&mut calls, 3, 1, 2).is_some());
    }
}
