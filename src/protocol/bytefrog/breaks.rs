//! Where an agent was suspended (rule 19): there every open call ends, and numbers may be missing.

use std::collections::VecDeque;

use super::sequence::Hole;

/// Breaks that are remembered to explain gaps.
const MAX_BREAKS: usize = 64;

/// The data breaks of a run: numbers that only go up.
#[derive(Debug, Default)]
pub(super) struct Breaks {
    pub(super) last: Option<u64>,
    /// Those that delivery has not reached.
    ahead: VecDeque<u64>,
    /// The latest ones.
    known: VecDeque<u64>,
}

impl Breaks {
    /// `false`: it goes back.
    pub(super) fn add(&mut self, number: u64) -> bool {
        if self.last.is_some_and(|last| number <= last) {
            return false;
        }
        self.last = Some(number);
        for breaks in [&mut self.ahead, &mut self.known] {
            if breaks.len() >= MAX_BREAKS {
                breaks.pop_front();
            }
            breaks.push_back(number);
        }
        true
    }

    /// Delivery has reached this number: whether a break was on the way.
    pub(super) fn reach(&mut self, number: u64) -> bool {
        let passed = self.ahead.iter().take_while(|ahead| **ahead <= number).count();
        self.ahead.drain(..passed);
        passed > 0
    }

    /// Whether a hole is one that a break tells of: the break stands in it or right behind it.
    pub(super) fn explain(&self, hole: Hole) -> bool {
        self.known.iter().any(|number| hole.first <= *number && *number <= hole.last + 1)
    }
}
