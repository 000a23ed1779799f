//! A thread of the traced program: what it does next.

use super::super::rng::Rng;
use super::shop::{EXCEPTIONS, MAIN, METHODS, RUN};

/// One thing that a thread does and an agent tells with a number. Methods, exceptions and lines are positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    /// Calls a method.
    Enter(u16),
    /// Returns from it.
    Leave(u16),
    /// Executes a throw statement in it.
    Throw(u16, u16),
    /// Leaves it by an exception.
    Bubble(u16, u16),
    /// Has executed a line in the call that it left last.
    Visit(u16, u16),
    /// Begins (`true`) or ends serving a request.
    Mark(u32, bool),
}

/// What the agent of a version tells of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// Throw statements and markers: version 1.
    pub(super) throws_and_markers: bool,
    /// Lines: versions 3 and 4.
    pub(super) lines: bool,
}

/// A thread, and what it is in the middle of.
#[derive(Debug)]
pub(super) struct Thread {
    stack: Vec<Frame>,
    raised: Raised,
    visits: Visits,
    request: Request,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    method: u16,
    /// Calls that it will still make.
    calls: u16,
}

#[derive(Clone, Copy, Debug)]
enum Raised {
    Nothing,
    /// An exception that the frame on top has raised and does not catch.
    Here(u16),
    /// An exception that has left the frame above.
    Above(u16),
}

/// Lines that are still to be told.
#[derive(Clone, Copy, Debug, Default)]
struct Visits {
    method: u16,
    next: u16,
    end: u16,
}

/// Between two calls of the bottom frame.
#[derive(Clone, Copy, Debug)]
enum Request {
    None,
    /// Marked, and not served yet.
    Begun(u32),
    Served(u32),
}

/// How deep calls go.
const MOST_FRAMES: usize = 48;

impl Thread {
    /// A thread that has done nothing yet.
    pub(super) fn new() -> Self {
        Thread { stack: Vec::new(), raised: Raised::Nothing, visits: Visits::default(), request: Request::None }
    }

    /// Whether it has done nothing yet.
    pub(super) fn is_new(&self) -> bool {
        self.stack.is_empty()
    }

    /// What it does next. `first` says whether it is the program's first thread.
    #[inline]
    pub(super) fn act(&mut self, first: bool, habits: Habits, rng: &mut Rng) -> Act {
        if self.visits.next < self.visits.end {
            self.visits.next += 1;
            return Act::Visit(self.visits.method, self.visits.next - 1);
        }
        let chance = rng.next();
        if let Some(act) = self.unwind(habits, chance) {
            return act;
        }
        let depth = self.stack.len();
        let Some(frame) = self.stack.last_mut() else {
            return self.enter(if first { MAIN } else { RUN }, u16::MAX);
        };
        if depth == 1
            && habits.throws_and_markers
            && let Some(act) = self.request.mark(chance)
        {
            return act;
        }
        let method = frame.method;
        if frame.calls > 0 && depth < MOST_FRAMES {
            // The bottom frame calls as long as the program runs.
            frame.calls -= u16::from(depth > 1);
            let callee = *pick(METHODS[usize::from(method)].calls, chance >> 32);
            let calls = METHODS[usize::from(callee)].calls.len() as u64;
            return self.enter(callee, ((chance & 0xFFFF) % (calls + 1)) as u16);
        }
        if chance >> 57 == 0 {
            return self.raise(method, habits, chance);
        }
        self.leave(habits, chance);
        Act::Leave(method)
    }

    fn enter(&mut self, method: u16, calls: u16) -> Act {
        self.stack.push(Frame { method, calls });
        Act::Enter(method)
    }

    /// The frame on top goes, and the lines that it executed are to be told.
    #[inline]
    fn leave(&mut self, habits: Habits, chance: u64) {
        if let Some(frame) = self.stack.pop()
            && habits.lines
        {
            let lines = u64::from(METHODS[usize::from(frame.method)].lines);
            let end = 1 + (chance >> 16 & 0xFFFF) % lines;
            self.visits = Visits { method: frame.method, next: 0, end: end as u16 };
        }
    }

    /// Something goes wrong in the frame on top, `method`: by a throw statement or in the machine.
    fn raise(&mut self, method: u16, habits: Habits, chance: u64) -> Act {
        let exception = (chance >> 8) % EXCEPTIONS.len() as u64;
        let exception = exception as u16;
        if habits.throws_and_markers && chance & 1 == 0 {
            // One in four is caught where it was thrown.
            if chance & 6 != 0 {
                self.raised = Raised::Here(exception);
            }
            return Act::Throw(method, exception);
        }
        self.leave(habits, chance);
        self.raised = Raised::Above(exception);
        Act::Bubble(method, exception)
    }

    /// An exception on its way leaves the next frame, or is caught. Catching is nothing that is told.
    #[inline]
    fn unwind(&mut self, habits: Habits, chance: u64) -> Option<Act> {
        let (exception, caught) = match self.raised {
            Raised::Nothing => return None,
            Raised::Here(exception) => (exception, false),
            Raised::Above(exception) => (exception, chance & 1 == 0),
        };
        match self.stack.last() {
            Some(&Frame { method, .. }) if !caught && self.stack.len() > 1 => {
                self.leave(habits, chance);
                self.raised = Raised::Above(exception);
                Some(Act::Bubble(method, exception))
            }
            _ => {
                self.raised = Raised::Nothing;
                None
            }
        }
    }
}

impl Request {
    /// A request that has been served ends; now and then one begins that is marked.
    fn mark(&mut self, chance: u64) -> Option<Act> {
        match *self {
            Request::None if chance & 0xF00 == 0 => {
                let number = (chance >> 32) as u32;
                *self = Request::Begun(number);
                Some(Act::Mark(number, true))
            }
            Request::None => None,
            Request::Begun(number) => {
                *self = Request::Served(number);
                None
            }
            Request::Served(number) => {
                *self = Request::None;
                Some(Act::Mark(number, false))
            }
        }
    }
}

/// One of `choices`, which are not empty where a call is made.
#[inline]
fn pick(choices: &[u16], chance: u64) -> &u16 {
    &choices[(((chance & 0xFFFF) * choices.len() as u64) >> 16) as usize]
}
