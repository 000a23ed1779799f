//! Self times of calls that were written as entries and exits, paired in the order of their numbers.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::call_order::CallOrder;
use super::calls::OpenCalls;
use super::stacks::Stacks;
use super::{Call, CallStep};

/// Open calls of a process.
const MAX_OPEN_CALLS: usize = 1 << 20;
pub(super) const NANOS_PER_MILLI: u64 = 1_000_000;

/// Entries and exits of all processes.
#[derive(Clone, Debug)]
pub struct CallLogs {
    /// By the node of the process.
    processes: HashMap<u32, ProcessLogs, RandomState>,
    added: u64,
    /// Entries and exits that wait, of all processes.
    waiting: usize,
    max_waiting: usize,
    /// Calls that no call of their thread encloses, if they are wanted, since they were taken last.
    outermost: Option<Vec<OutermostCall>>,
}

/// A call that no other call of its thread encloses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OutermostCall {
    pub(super) frame: u32,
    pub(super) millis: u64,
    pub(super) has_failed: bool,
}

impl Default for CallLogs {
    fn default() -> Self {
        CallLogs::bounded(usize::MAX)
    }
}

#[derive(Clone, Debug)]
struct ProcessLogs {
    order: CallOrder<TimedStep>,
    open: OpenCalls,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct TimedStep {
    time: u32,
    frame: u32,
    thread_id: u64,
    /// The node of the thread's name.
    thread: u32,
    has_failed: bool,
}

impl CallLogs {
    /// None yet; at most `max_waiting` wait.
    pub fn bounded(max_waiting: usize) -> Self {
        CallLogs { processes: HashMap::default(), added: 0, waiting: 0, max_waiting, outermost: None }
    }

    /// Notes outermost calls from now on, until they are taken.
    pub(super) fn note_outermost(&mut self) {
        self.outermost.get_or_insert_default();
    }

    /// The outermost calls that ended since the last time.
    pub(super) fn take_outermost(&mut self) -> Vec<OutermostCall> {
        self.outermost.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Adds an entry or exit, for `stacks`.
    pub fn add(&mut self, call: &Call<'_>, stacks: &mut Stacks) {
        let thread = stacks.thread(&call.agent, call.thread.as_deref());
        let process = stacks.tree().nodes()[thread as usize].caller;
        let frame = stacks.function(&call.function);
        let process = self.processes.entry(process).or_insert_with(|| ProcessLogs {
            order: CallOrder::new(call.sequence),
            open: OpenCalls::new(MAX_OPEN_CALLS),
        });
        self.added += u64::from(call.step != CallStep::Break);
        let Call { time, thread_id, has_failed, .. } = *call;
        process.order.push(call, TimedStep { time, frame, thread_id, thread, has_failed });
        self.waiting += 1;
        if process.order.is_full() || self.waiting > self.max_waiting {
            self.waiting -= usize::from(process.take_first(stacks, &mut self.outermost));
        }
    }

    /// Sums up all that are held.
    pub fn finish(&mut self, stacks: &mut Stacks) {
        for process in self.processes.values_mut() {
            while process.take_first(stacks, &mut self.outermost) {}
        }
        self.processes.clear();
        self.waiting = 0;
    }

    /// Sums up those that were added before the last call: none with a lower number is on its way any more.
    pub fn sum_up_older(&mut self, stacks: &mut Stacks) {
        for process in self.processes.values_mut() {
            while process.order.has_older() && process.take_first(stacks, &mut self.outermost) {
                self.waiting -= 1;
            }
            process.order.mark();
        }
    }

    /// Bytes of those that wait and of open calls, approximately.
    pub fn memory_bytes(&self) -> usize {
        let of_process = |process: &ProcessLogs| {
            process.order.memory_bytes() + process.open.memory_bytes() + size_of::<ProcessLogs>()
        };
        self.processes.values().map(of_process).sum()
    }

    /// How many entries and exits were added.
    pub fn added(&self) -> u64 {
        self.added
    }
}

impl ProcessLogs {
    fn take_first(&mut self, stacks: &mut Stacks, outermost: &mut Option<Vec<OutermostCall>>) -> bool {
        let Some((step, TimedStep { time, frame, thread_id, thread, has_failed })) = self.order.pop() else {
            return false;
        };
        if step == CallStep::Break {
            self.open.end_all();
        } else if step == CallStep::Entry {
            self.open.enter(thread_id, frame, time, |caller| {
                let caller = stacks.caller_in(thread, caller);
                let node = stacks.callee(caller, frame);
                stacks.count(node, 1, 1);
                node
            });
        } else if let Some(ended) = self.open.exit(thread_id, frame, time) {
            stacks.count(ended.node, 0, ended.self_millis.saturating_mul(NANOS_PER_MILLI));
            if let Some(outermost) = outermost.as_mut().filter(|_| ended.is_outermost) {
                outermost.push(OutermostCall { frame, millis: ended.millis, has_failed });
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outermost_calls_are_noted_until_they_are_taken() {
        let (mut stacks, mut logs) = (Stacks::default(), CallLogs::default());
        logs.note_outermost();
        let calls = [
            ("a", CallStep::Entry, 0, false),
            ("b", CallStep::Entry, 10, false),
            ("b", CallStep::Exit, 40, true),
            ("a", CallStep::Exit, 100, false),
            ("c", CallStep::Entry, 100, false),
            ("c", CallStep::Exit, 105, true),
            ("d", CallStep::Entry, 105, false),
        ];
        for (sequence, (function, step, time, has_failed)) in (0..).zip(calls) {
            let call = Call { function: function.into(), step, time, sequence, has_failed, ..Call::default() };
            logs.add(&call, &mut stacks);
        }
        assert!(logs.take_outermost().is_empty(), "one with a lower number may follow");
        logs.sum_up_older(&mut stacks);
        logs.sum_up_older(&mut stacks);
        let taken: Vec<_> = logs.take_outermost();
        let taken: Vec<_> =
            taken.iter().map(|call| (stacks.frame_text(call.frame), call.millis, call.has_failed)).collect();
        assert_eq!(taken, [("a", 100, false), ("c", 5, true)]);
        assert!(logs.take_outermost().is_empty());
    }

    #[test]
    fn entries_and_exits_are_paired_in_the_order_of_their_numbers() {
        let (mut stacks, mut logs) = (Stacks::default(), CallLogs::default());
        let mut add = |sequence: u32, function: &'static str, step, time| {
            let call = Call { function: function.into(), step, time, sequence, ..Call::default() };
            logs.add(&call, &mut stacks);
        };
        add(u32::MAX, "b", CallStep::Entry, 10);
        add(u32::MAX - 1, "a", CallStep::Entry, 0);
        add(2, "a", CallStep::Exit, 100);
        add(0, "b", CallStep::Exit, 40);
        add(1, "c", CallStep::Entry, 50);
        assert_eq!(logs.added(), 5);
        logs.finish(&mut stacks);
        let folded = |column| {
            let mut out = Vec::new();
            stacks
                .merged(|_| true, false, false)
                .write_folded(column, 1_000_000 - 999_999 * column as u64, None, &mut out)
                .unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(folded(0), "a 70\na;b 30\n");
        assert_eq!(folded(1), "a 1\na;b 1\na;c 1\n");
    }
}
