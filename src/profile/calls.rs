//! Self times of nested calls: entries and exits of threads in the order of their time, on a clock of milliseconds.
//!
//! The self time of a call is the time between its entry and its exit without that of the calls within it. It is known when
//! the call ends. A call that ends without an exit has no time of its own; the calls within it keep theirs, and the enclosing
//! call has the rest. Where the clock of a thread steps back, no time passes, so no self time is negative.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::call_stack::{CallStack, MethodCall};

/// A call whose exit has not arrived.
#[derive(Clone, Copy, Debug)]
struct OpenCall {
    method: u32,
    node: u32,
    /// The thread's clock at the entry, in milliseconds.
    start: u64,
    /// The time of the calls within it that have ended.
    within: u64,
}

impl MethodCall for OpenCall {
    fn method(&self) -> u32 {
        self.method
    }
}

/// The open calls of a thread, and its clock.
#[derive(Clone, Debug, Default)]
struct ThreadCalls {
    calls: CallStack<OpenCall>,
    /// The last time of the agent, and the time that has passed on this thread's clock, which never steps back.
    last: u32,
    now: u64,
}

/// A call that has ended by its exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndedCall {
    /// The node that it was opened with.
    pub node: u32,
    /// Its self time in milliseconds.
    pub self_millis: u64,
    /// All of its time in milliseconds.
    pub millis: u64,
    /// No other open call of the thread encloses it.
    pub is_outermost: bool,
}

/// The open calls of all threads.
#[derive(Clone, Debug)]
pub struct OpenCalls {
    threads: HashMap<u64, ThreadCalls, RandomState>,
    len: usize,
    /// The capacity of all stacks, in calls.
    capacity: usize,
    max: usize,
}

impl OpenCalls {
    /// No calls; at most `max` will be open.
    pub fn new(max: usize) -> OpenCalls {
        OpenCalls { threads: HashMap::default(), len: 0, capacity: 0, max }
    }

    /// The node of the innermost open call of a thread.
    pub fn current(&self, thread: u64) -> Option<u32> {
        self.threads.get(&thread)?.calls.last().map(|call| call.node)
    }

    /// Opens a call at `time`, in milliseconds. `node` makes its node of that of the enclosing call. `false`: too many are
    /// open; the call will have no time.
    #[inline]
    pub fn enter(&mut self, thread: u64, method: u32, time: u32, node: impl FnOnce(Option<u32>) -> u32) -> bool {
        let is_full = self.len >= self.max;
        if is_full && !self.threads.contains_key(&thread) {
            node(None);
            return false;
        }
        let stack = self.threads.entry(thread).or_default();
        stack.advance(time);
        let node = node(stack.calls.last().map(|call| call.node));
        if is_full {
            return false;
        }
        let capacity = stack.calls.capacity();
        stack.calls.push(OpenCall { method, node, start: stack.now, within: 0 });
        self.capacity += stack.calls.capacity() - capacity;
        self.len += 1;
        true
    }

    /// Ends the innermost open call of this method. Calls within it end without an exit.
    #[inline]
    pub fn exit(&mut self, thread: u64, method: u32, time: u32) -> Option<EndedCall> {
        let stack = self.threads.get_mut(&thread)?;
        stack.advance(time);
        let place = stack.calls.innermost(method)?;
        let capacity = stack.calls.capacity();
        self.len -= stack.calls.len() - place;
        while stack.calls.len() > place + 1 {
            let unfinished = stack.calls.pop()?;
            stack.calls.last_mut()?.within += unfinished.within;
        }
        let call = stack.calls.pop()?;
        self.capacity -= capacity - stack.calls.capacity();
        let time = stack.now - call.start;
        if let Some(caller) = stack.calls.last_mut() {
            caller.within += time;
        }
        let is_outermost = stack.calls.is_empty();
        Some(EndedCall { node: call.node, self_millis: time - call.within, millis: time, is_outermost })
    }

    /// Ends every open call without an exit.
    pub fn end_all(&mut self) {
        self.threads = HashMap::default();
        (self.len, self.capacity) = (0, 0);
    }

    /// The nodes of all open calls.
    pub fn nodes(&mut self) -> impl Iterator<Item = &mut u32> {
        self.threads.values_mut().flat_map(|thread| thread.calls.iter_mut()).map(|call| &mut call.node)
    }

    /// Forgets threads without an open call.
    pub fn forget_idle_threads(&mut self) {
        self.threads.retain(|_, thread| !thread.calls.is_empty());
        let calls = self.threads.values().map(|thread| thread.calls.capacity());
        self.capacity = calls.sum();
        if self.threads.capacity() > 4 * self.threads.len() + 64 {
            self.threads.shrink_to(2 * self.threads.len());
        }
    }

    /// Bytes of memory, approximately.
    pub fn memory_bytes(&self) -> usize {
        self.capacity * size_of::<OpenCall>()
            + self.len * size_of::<(u32, u32)>()
            + self.threads.capacity() * (size_of::<(u64, ThreadCalls)>() + 1)
    }
}

impl ThreadCalls {
    /// Moves the clock of the thread to a time of the agent, which wraps after 49.7 days.
    fn advance(&mut self, time: u32) {
        let passed = time.wrapping_sub(self.last).cast_signed();
        self.now += u64::try_from(passed).unwrap_or(0);
        self.last = time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a call whose node is its method.
    fn enter(calls: &mut OpenCalls, method: u32, time: u32) -> bool {
        calls.enter(1, method, time, |_| method)
    }

    fn exit(calls: &mut OpenCalls, method: u32, time: u32) -> Option<u64> {
        let ended = calls.exit(1, method, time)?;
        assert_eq!(ended.node, method);
        Some(ended.self_millis)
    }

    #[test]
    fn self_time_is_without_the_calls_within() {
        let mut calls = OpenCalls::new(10);
        assert!(enter(&mut calls, 1, 100) && enter(&mut calls, 2, 110));
        assert_eq!(calls.current(1), Some(2));
        assert_eq!((exit(&mut calls, 2, 150), exit(&mut calls, 1, 200)), (Some(40), Some(60)));
        assert_eq!(exit(&mut calls, 1, 300), None);
    }

    #[test]
    fn a_call_without_an_exit_has_no_time_and_those_within_keep_theirs() {
        let mut calls = OpenCalls::new(10);
        for (method, time) in [(1, 0), (2, 10), (3, 20)] {
            enter(&mut calls, method, time);
        }
        assert_eq!((exit(&mut calls, 3, 50), exit(&mut calls, 1, 100)), (Some(30), Some(70)));
        enter(&mut calls, 1, 200);
        calls.end_all();
        assert_eq!((exit(&mut calls, 1, 300), calls.memory_bytes()), (None, 0));
    }

    #[test]
    fn a_clock_that_steps_back_or_wraps_makes_no_negative_time() {
        let mut calls = OpenCalls::new(10);
        enter(&mut calls, 1, 100);
        enter(&mut calls, 2, 110);
        assert_eq!((exit(&mut calls, 2, 60), exit(&mut calls, 1, 70)), (Some(0), Some(20)));
        enter(&mut calls, 1, u32::MAX - 4);
        assert_eq!(exit(&mut calls, 1, 5), Some(10));
    }

    #[test]
    fn recursion_is_deep_and_an_unknown_exit_is_found_out_at_once() {
        let mut calls = OpenCalls::new(10_000);
        assert!((0..10_000).all(|time| enter(&mut calls, 7, time)));
        assert!(!enter(&mut calls, 7, 10_000), "over the limit");
        (0..10_000).for_each(|time| assert_eq!(exit(&mut calls, 8, 10_000 + time), None));
        let times: Vec<u64> = (0..10_000).filter_map(|time| exit(&mut calls, 7, 20_000 + time)).collect();
        assert_eq!((times.len(), times.iter().sum::<u64>()), (10_000, 29_999));
        assert!(calls.memory_bytes() < 100_000, "{}", calls.memory_bytes());
    }

    #[test]
    fn idle_threads_are_forgotten() {
        let mut calls = OpenCalls::new(100_000);
        for thread in 0..5000 {
            calls.enter(thread, 1, 0, |_| 1);
            if thread > 0 {
                calls.exit(thread, 1, 1);
            }
        }
        calls.forget_idle_threads();
        assert_eq!((calls.nodes().count(), calls.current(0)), (1, Some(1)));
        assert!(calls.memory_bytes() < 20_000, "{}", calls.memory_bytes());
    }
}
