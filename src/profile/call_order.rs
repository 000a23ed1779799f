//! The entries and exits of one process in the order of their numbers: they arrive on several connections.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Call, CallStep};

/// Entries and exits that wait for others with lower numbers, for each process.
const WINDOW: usize = 1 << 17;

/// Entries and exits that wait for those with lower numbers, each with a `T`.
#[derive(Clone, Debug)]
pub(super) struct CallOrder<T> {
    waiting: BinaryHeap<Reverse<(u64, CallStep, T)>>,
    /// The last number, unwrapped, and what it was when [`CallOrder::mark`] was called last.
    last: u64,
    marked: u64,
}

impl<T: Ord> CallOrder<T> {
    /// None wait; `first` is the number of the entry or exit that is added first.
    pub(super) fn new(first: u32) -> Self {
        // Numbers of 32 bits may be lower than the first one.
        CallOrder { waiting: BinaryHeap::new(), last: 1 << 32 | u64::from(first), marked: 0 }
    }

    /// Adds an entry, an exit or a break.
    pub(super) fn push(&mut self, call: &Call<'_>, with: T) {
        let ahead = call.sequence.wrapping_sub(self.last as u32).cast_signed();
        let number = self.last.saturating_add_signed(ahead.into());
        if call.step != CallStep::Break {
            self.last = self.last.max(number);
        }
        self.waiting.push(Reverse((number, call.step, with)));
    }

    /// Whether more wait than numbers are out of order.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() > WINDOW
    }

    /// Takes the one with the lowest number.
    pub(super) fn pop(&mut self) -> Option<(CallStep, T)> {
        self.waiting.pop().map(|Reverse((_, step, with))| (step, with))
    }

    /// Those that have been added are older than those that follow.
    pub(super) fn mark(&mut self) {
        self.marked = self.last;
    }

    /// Whether the one with the lowest number is older than the last mark.
    pub(super) fn has_older(&self) -> bool {
        self.waiting.peek().is_some_and(|Reverse((number, ..))| *number <= self.marked)
    }

    /// Bytes of those that wait, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        self.waiting.len() * size_of::<Reverse<(u64, CallStep, T)>>()
    }
}
