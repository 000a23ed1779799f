//! The data breaks of a run: numbers at which the agent was suspended (rule 19). There every open call ends. Numbers may be
//! missing at those that no command of ours has caused.

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
    /// The latest ones that explain gaps.
    known: VecDeque<u64>,
}

impl Breaks {
    /// Adds a break. `false`: it is not after the last one. `explains`: numbers before it may never have been taken. This is
    /// not so for the answer to a `suspend`.
    pub(super) fn add(&mut self, number: u64, explains: bool) -> bool {
        if self.last.is_some_and(|last| number <= last) {
            return false;
        }
        self.last = Some(number);
        keep(&mut self.ahead, number);
        if explains {
            keep(&mut self.known, number);
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

fn keep(breaks: &mut VecDeque<u64>, number: u64) {
    if breaks.len() >= MAX_BREAKS {
        breaks.pop_front();
    }
    breaks.push_back(number);
}
