//! A thread of the traced program: its next step.

use super::super::rng::Rng;
use super::shop::{EXCEPTIONS, MAIN, METHODS, RUN};

/// One numbered event of a thread. Methods, exceptions and lines are indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ThreadEvent {
    /// Calls a method.
    Enter(u16),
    /// Returns from it.
    Leave(u16),
    /// Executes a throw statement in it.
    Throw(u16, u16),
    /// Leaves it by an exception.
    Bubble(u16, u16),
    /// Has executed a line of the call that it left last.
    Visit(u16, u16),
    /// Starts (`true`) or ends serving a request.
    Mark(u32, bool),
}

/// The events that agents of a version send.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventKinds {
    /// Throw statements and markers: version 1.
    pub(super) throws_and_markers: bool,
    /// Lines: versions 3 and 4.
    pub(super) lines: bool,
}

/// A thread and its state.
#[derive(Debug)]
pub(super) struct SimulatedThread {
    stack: Vec<CallFrame>,
    raised: Raised,
    visits: Visits,
    request: RequestMark,
}

#[derive(Clone, Copy, Debug)]
struct CallFrame {
    method: u16,
    /// Calls that it will still make.
    calls: u16,
}

#[derive(Clone, Copy, Debug)]
enum Raised {
    Nothing,
    /// An exception that the top frame has raised and does not catch.
    Here(u16),
    /// An exception that has left the frame above.
    Above(u16),
}

/// Lines that are still to be reported.
#[derive(Clone, Copy, Debug, Default)]
struct Visits {
    method: u16,
    next: u16,
    end: u16,
}

/// The state between two calls of the bottom frame.
#[derive(Clone, Copy, Debug)]
enum RequestMark {
    None,
    /// Marked and not served yet.
    Started(u32),
    Served(u32),
}

/// The greatest depth of calls.
const MOST_FRAMES: usize = 48;

impl SimulatedThread {
    /// A thread that has not started.
    pub(super) fn new() -> Self {
        SimulatedThread {
            stack: Vec::new(),
            raised: Raised::Nothing,
            visits: Visits::default(),
            request: RequestMark::None,
        }
    }

    /// Whether it has not started.
    pub(super) fn is_new(&self) -> bool {
        self.stack.is_empty()
    }

    /// Its next step. `first`: it is the first thread of the program.
    #[inline]
    pub(super) fn next_event(&mut self, first: bool, kinds: EventKinds, rng: &mut Rng) -> ThreadEvent {
        if self.visits.next < self.visits.end {
            self.visits.next += 1;
            return ThreadEvent::Visit(self.visits.method, self.visits.next - 1);
        }
        let chance = rng.next();
        if let Some(next_event) = self.unwind(kinds, chance) {
            return next_event;
        }
        let depth = self.stack.len();
        let Some(frame) = self.stack.last_mut() else {
            return self.enter(if first { MAIN } else { RUN }, u16::MAX);
        };
        if depth == 1
            && kinds.throws_and_markers
            && let Some(next_event) = self.request.mark(chance)
        {
            return next_event;
        }
        let method = frame.method;
        if frame.calls > 0 && depth < MOST_FRAMES {
            // The bottom frame makes calls as long as the program runs.
            frame.calls -= u16::from(depth > 1);
            let callee = *pick(METHODS[usize::from(method)].calls, chance >> 32);
            let calls = METHODS[usize::from(callee)].calls.len() as u64;
            return self.enter(callee, ((chance & 0xFFFF) % (calls + 1)) as u16);
        }
        if chance >> 57 == 0 {
            return self.raise(method, kinds, chance);
        }
        self.leave(kinds, chance);
        ThreadEvent::Leave(method)
    }

    fn enter(&mut self, method: u16, calls: u16) -> ThreadEvent {
        self.stack.push(CallFrame { method, calls });
        ThreadEvent::Enter(method)
    }

    /// Leaves the top frame; the lines that it executed are reported next.
    #[inline]
    fn leave(&mut self, kinds: EventKinds, chance: u64) {
        if let Some(frame) = self.stack.pop()
            && kinds.lines
        {
            let lines = u64::from(METHODS[usize::from(frame.method)].lines);
            let end = 1 + (chance >> 16 & 0xFFFF) % lines;
            self.visits = Visits { method: frame.method, next: 0, end: end as u16 };
        }
    }

    /// Raises an exception in the top frame, `method`: by a throw statement or by the JVM.
    fn raise(&mut self, method: u16, kinds: EventKinds, chance: u64) -> ThreadEvent {
        let exception = (chance >> 8) % EXCEPTIONS.len() as u64;
        let exception = exception as u16;
        if kinds.throws_and_markers && chance & 1 == 0 {
            // One in four is caught where it was thrown.
            if chance & 6 != 0 {
                self.raised = Raised::Here(exception);
            }
            return ThreadEvent::Throw(method, exception);
        }
        self.leave(kinds, chance);
        self.raised = Raised::Above(exception);
        ThreadEvent::Bubble(method, exception)
    }

    /// An exception leaves the next frame or is caught. Catching is not reported.
    #[inline]
    fn unwind(&mut self, kinds: EventKinds, chance: u64) -> Option<ThreadEvent> {
        let (exception, caught) = match self.raised {
            Raised::Nothing => return None,
            Raised::Here(exception) => (exception, false),
            Raised::Above(exception) => (exception, chance & 1 == 0),
        };
        match self.stack.last() {
            Some(&CallFrame { method, .. }) if !caught && self.stack.len() > 1 => {
                self.leave(kinds, chance);
                self.raised = Raised::Above(exception);
                Some(ThreadEvent::Bubble(method, exception))
            }
            _ => {
                self.raised = Raised::Nothing;
                None
            }
        }
    }
}

impl RequestMark {
    /// Ends a served request; sometimes starts a marked one.
    fn mark(&mut self, chance: u64) -> Option<ThreadEvent> {
        match *self {
            RequestMark::None if chance & 0xF00 == 0 => {
                let number = (chance >> 32) as u32;
                *self = RequestMark::Started(number);
                Some(ThreadEvent::Mark(number, true))
            }
            RequestMark::None => None,
            RequestMark::Started(number) => {
                *self = RequestMark::Served(number);
                None
            }
            RequestMark::Served(number) => {
                *self = RequestMark::None;
                Some(ThreadEvent::Mark(number, false))
            }
        }
    }
}

/// One of `choices`, which are not empty for a method that makes calls.
#[inline]
fn pick(choices: &[u16], chance: u64) -> &u16 {
    &choices[(((chance & 0xFFFF) * choices.len() as u64) >> 16) as usize]
}
