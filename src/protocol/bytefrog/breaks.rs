//! The data breaks of a run: numbers at which the agent was suspended (rule 19). There every open call ends, and
//! numbers may be missing.

use std::collections::VecDeque;

use super::sequence::Gap;

/// The number of breaks that are kept to explain gaps.
const MAX_BREAKS: usize = 64;

/// The data breaks of a run, in ascending order.
#[derive(Debug, Default)]
pub(super) struct Breaks {
    pub(super) last: Option<u64>,
    /// Those behind the last event written.
    ahead: VecDeque<u64>,
    /// The latest ones.
    known: VecDeque<u64>,
}

impl Breaks {
    /// Adds a break. `false`: it is not after the last one.
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

    /// Events up to this number were written. `true`: there is a break among them.
    pub(super) fn reach(&mut self, number: u64) -> bool {
        let passed = self.ahead.iter().take_while(|ahead| **ahead <= number).count();
        self.ahead.drain(..passed);
        passed > 0
    }

    /// Whether a break explains a gap: the break is in it or right behind it.
    pub(super) fn explain(&self, gap: Gap) -> bool {
        self.known.iter().any(|number| gap.first <= *number && *number <= gap.last + 1)
    }
}
