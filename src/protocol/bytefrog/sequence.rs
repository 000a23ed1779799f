//! The numbers of a run: which have come, which are missing, which came twice (field notes, section 1.7).
//!
//! One counter of 32 bits runs through all connections of a run, and no connection keeps its order. What has come is a
//! window of bits that begins at the lowest number still awaited; a number far ahead of it never opens a window of that
//! size (section 5).

use std::collections::VecDeque;
use std::time::Duration;

/// Holes that are remembered after they were given up, so that a late number is not taken for a repeated one.
const REMEMBERED_HOLES: usize = 256;
/// Numbers far ahead that are kept aside. More of them, and the counter has really jumped.
const MAX_FAR: usize = 64;

/// Where unwrapped numbers begin: so far from zero that there are numbers before the first.
const ZERO: u64 = 1 << 32;

/// What a number is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// It comes for the first time.
    New(u64),
    /// It was given up as missing, and comes after all.
    Late(u64),
    /// It has come before (rule 18).
    Repeated,
}

/// Numbers that did not come, from the first to the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hole {
    pub first: u64,
    pub last: u64,
}

impl Hole {
    /// How many numbers.
    pub(super) fn len(self) -> u64 {
        self.last - self.first + 1
    }
}

/// Numbers of one run, unwrapped to 64 bits.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Bits of the window; the first word begins at `base`, a multiple of 64.
    words: VecDeque<u64>,
    start: u64,
    base: u64,
    /// The lowest number neither received nor given up.
    next: u64,
    /// One more than the highest number in the window.
    end: u64,
    max_ahead: u64,
    far: Vec<u64>,
    given_up: VecDeque<Hole>,
    /// Of numbers up to this one it is not known any more which were given up.
    forgotten: Option<u64>,
    /// Holes below this number are given up at that time.
    checkpoint: Option<(u64, Duration)>,
    is_begun: bool,
}

impl Sequence {
    /// No number yet. `max_ahead`: how far from the lowest number awaited a number may lie to be kept in the window.
    pub(super) fn new(max_ahead: u64) -> Self {
        Sequence {
            words: VecDeque::new(),
            start: ZERO,
            base: ZERO,
            next: ZERO,
            end: ZERO,
            max_ahead: max_ahead.clamp(64, ZERO / 2),
            far: Vec::new(),
            given_up: VecDeque::new(),
            forgotten: None,
            checkpoint: None,
            is_begun: false,
        }
    }

    /// The number that the run begins with.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// The lowest number neither received nor given up.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The number with these lower 32 bits that is nearest to the window: numbers wrap (section 1.7).
    pub(super) fn unwrap(&self, number: u32) -> u64 {
        let distance = number.wrapping_sub(self.next as u32).cast_signed();
        self.next.saturating_add_signed(i64::from(distance))
    }

    /// Takes note of a number.
    pub(super) fn see(&mut self, number: u32) -> Seen {
        if !self.is_begun {
            self.begin(number);
        }
        let number = self.unwrap(number);
        if number < self.next {
            return self.behind(number);
        }
        if number - self.next >= self.max_ahead {
            return self.far_ahead(number);
        }
        let seen = self.set(number);
        self.draw_near();
        seen
    }

    /// Numbers count from 0; who starts in the upper half is a run that we join just before its counter wraps.
    fn begin(&mut self, number: u32) {
        self.is_begun = true;
        let start = ZERO + u64::from(if number > u32::MAX / 2 { number } else { 0 });
        self.start = start;
        self.base = start & !63;
        self.next = start;
        self.end = start;
        self.words.push_back((1 << (start - self.base)) - 1);
        // None of the numbers before has come either.
        self.given_up.push_back(Hole { first: start - ZERO / 2, last: start - 1 });
    }

    fn set(&mut self, number: u64) -> Seen {
        let index = ((number - self.base) / 64) as usize;
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        let bit = 1 << (number % 64);
        if self.words[index] & bit != 0 {
            return Seen::Repeated;
        }
        self.words[index] |= bit;
        self.end = self.end.max(number + 1);
        if number == self.next {
            self.advance();
        }
        Seen::New(number)
    }

    /// Moves on over everything that has come.
    fn advance(&mut self) {
        while let Some(&word) = self.words.front() {
            if word != u64::MAX {
                self.next = self.base + u64::from(word.trailing_ones());
                return;
            }
            self.words.pop_front();
            self.base += 64;
            self.next = self.base;
        }
    }

    fn behind(&mut self, number: u64) -> Seen {
        let Some(place) = self.given_up.iter().position(|hole| hole.first <= number && number <= hole.last) else {
            // Agents repeat nothing (section 1.7): what may be new is not dropped.
            return if self.forgotten.is_some_and(|last| number <= last) { Seen::Late(number) } else { Seen::Repeated };
        };
        // What is left of the hole stays in its place, so that the oldest stands first.
        let hole = self.given_up[place];
        let before = Hole { last: number - 1, ..hole };
        let after = Hole { first: number + 1, ..hole };
        match (hole.first < number, number < hole.last) {
            (true, true) => {
                self.given_up[place] = after;
                self.given_up.insert(place, before);
                self.forget();
            }
            (true, false) => self.given_up[place] = before,
            (false, true) => self.given_up[place] = after,
            (false, false) => drop(self.given_up.remove(place)),
        }
        Seen::Late(number)
    }

    /// Keeps it aside: one wild number must not throw away all ordinary ones.
    fn far_ahead(&mut self, number: u64) -> Seen {
        match self.far.binary_search(&number) {
            Ok(_) => Seen::Repeated,
            Err(place) => {
                self.far.insert(place, number);
                Seen::New(number)
            }
        }
    }

    /// Takes into the window what was kept aside and is not far ahead any more.
    fn draw_near(&mut self) {
        while let Some(&nearest) = self.far.first()
            && nearest - self.next < self.max_ahead
        {
            self.far.remove(0);
            self.set(nearest);
        }
    }

    /// Whether the counter has jumped, and the numbers before the jump are to be given up now.
    pub(super) fn has_jumped(&self) -> bool {
        self.far.len() >= MAX_FAR
    }

    /// When the holes that are there now will have waited for `patience`. Call with the time of every input; `None`:
    /// there is no hole.
    pub(super) fn deadline(&mut self, patience: Duration, elapsed: Duration) -> Option<Duration> {
        if self.next == self.end && self.far.is_empty() {
            self.checkpoint = None;
        } else if self.checkpoint.is_none_or(|(below, _)| below <= self.next) {
            self.checkpoint = Some((self.end.max(self.next + 1), elapsed + patience));
        }
        self.checkpoint.map(|(_, due)| due)
    }

    /// When the holes that were there at the last call of [`Sequence::deadline`] are given up.
    pub(super) fn checkpoint(&self) -> Option<Duration> {
        self.checkpoint.map(|(_, due)| due)
    }

    /// Gives up the next hole whose time has passed; `None`: there is none.
    pub(super) fn expire(&mut self, elapsed: Duration) -> Option<Hole> {
        let (below, due) = self.checkpoint?;
        if elapsed < due || below <= self.next {
            return None;
        }
        self.give_up()
    }

    /// Gives up the next hole; `None`: there is none.
    pub(super) fn give_up(&mut self) -> Option<Hole> {
        let first = self.next;
        if self.next == self.end {
            return self.jump();
        }
        let mut index = 0;
        while self.words[index] & (u64::MAX << self.bit_of(index)) == 0 {
            index += 1;
        }
        let word = self.words[index] & (u64::MAX << self.bit_of(index));
        let to = self.base + index as u64 * 64 + u64::from(word.trailing_zeros());
        // All numbers before it are done with.
        self.words.drain(..index);
        self.base += index as u64 * 64;
        self.words[0] |= (1 << (to - self.base)) - 1;
        self.next = to;
        self.advance();
        self.draw_near();
        Some(self.remember(Hole { first, last: to - 1 }))
    }

    /// Of the word at `index`, the first bit that is not below `next`.
    fn bit_of(&self, index: usize) -> u64 {
        if index == 0 { self.next - self.base } else { 0 }
    }

    /// Moves the window to the numbers that were far ahead.
    fn jump(&mut self) -> Option<Hole> {
        let hole = Hole { first: self.next, last: self.far.first()? - 1 };
        let start = hole.last + 1;
        self.base = start & !63;
        self.next = start;
        self.end = start;
        self.words.clear();
        self.words.push_back((1 << (start - self.base)) - 1);
        let far = std::mem::take(&mut self.far);
        for number in far {
            if number - self.next < self.max_ahead {
                self.set(number)
            } else {
                self.far_ahead(number)
            };
        }
        Some(self.remember(hole))
    }

    fn remember(&mut self, hole: Hole) -> Hole {
        self.given_up.push_back(hole);
        self.forget();
        hole
    }

    /// Late numbers that split holes cannot make them grow without end.
    fn forget(&mut self) {
        while self.given_up.len() > REMEMBERED_HOLES {
            let oldest = self.given_up.pop_front();
            self.forgotten = self.forgotten.max(oldest.map(|hole| hole.last));
        }
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}

/// The number as the peer wrote it.
pub(super) fn wrapped(number: u64) -> u64 {
    number & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(sequence: &mut Sequence) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| sequence.give_up()).map(|hole| (wrapped(hole.first), wrapped(hole.last))).collect()
    }

    #[test]
    fn numbers_in_any_order_leave_no_hole() {
        let mut sequence = Sequence::new(1 << 16);
        for number in (0..5000).rev() {
            assert!(matches!(sequence.see(number), Seen::New(_)), "{number}");
        }
        assert_eq!(wrapped(sequence.next()), 5000);
        assert_eq!(sequence.see(77), Seen::Repeated);
        assert_eq!(gaps(&mut sequence), []);
    }

    #[test]
    fn a_number_kept_aside_is_no_hole_when_the_window_comes_to_it() {
        let mut sequence = Sequence::new(64);
        assert!(matches!(sequence.see(70), Seen::New(_)));
        for number in 0..70 {
            assert!(matches!(sequence.see(number), Seen::New(_)), "{number}");
        }
        assert_eq!(wrapped(sequence.next()), 71);
        assert_eq!(sequence.see(70), Seen::Repeated);
        assert_eq!(gaps(&mut sequence), []);
        sequence.see(200);
        sequence.see(130);
        assert_eq!(gaps(&mut sequence), [(71, 129), (131, 199)]);
    }

    #[test]
    fn a_number_is_not_taken_for_a_repeated_one_because_too_many_holes_were_given_up() {
        let mut sequence = Sequence::new(1 << 16);
        let holes = 2 * REMEMBERED_HOLES as u32;
        (0..=holes).for_each(|number| assert!(matches!(sequence.see(2 * number), Seen::New(_))));
        assert_eq!(gaps(&mut sequence).len(), holes as usize);
        (0..holes).for_each(|number| assert!(matches!(sequence.see(2 * number + 1), Seen::Late(_)), "{number}"));
    }

    #[test]
    fn holes_are_told_from_the_lowest_and_late_numbers_are_not_repeated_ones() {
        let mut sequence = Sequence::new(1 << 16);
        (0..50).chain(59..90).chain(300..301).for_each(|number| assert_ne!(sequence.see(number), Seen::Repeated));
        assert_eq!(gaps(&mut sequence), [(50, 58), (90, 299)]);
        assert!(matches!(sequence.see(55), Seen::Late(_)));
        assert_eq!(sequence.see(55), Seen::Repeated);
        assert!(matches!(sequence.see(54), Seen::Late(_)));
        assert_eq!(sequence.see(49), Seen::Repeated);
    }

    #[test]
    fn the_counter_wraps() {
        let mut sequence = Sequence::new(1 << 16);
        for number in [0u32, 1, 2] {
            assert!(matches!(sequence.see(number.wrapping_sub(3)), Seen::New(_)));
        }
        for number in [1u32, 0, 2] {
            assert!(matches!(sequence.see(number), Seen::New(_)));
        }
        assert_eq!((wrapped(sequence.next()), gaps(&mut sequence)), (3, vec![]));
        // Also when those after the turn come first.
        let mut sequence = Sequence::new(1 << 16);
        sequence.see(0);
        assert!(matches!(sequence.see(u32::MAX), Seen::Late(_)));
        assert_eq!(sequence.see(u32::MAX), Seen::Repeated);
    }

    #[test]
    fn a_number_far_ahead_is_kept_aside_and_many_are_a_jump() {
        let mut sequence = Sequence::new(1 << 10);
        (0..8).for_each(|number| assert_ne!(sequence.see(number), Seen::Repeated));
        assert!(matches!(sequence.see(1_507_978_615), Seen::New(_)));
        assert!(matches!(sequence.see(8), Seen::New(_)));
        assert_eq!(wrapped(sequence.next()), 9);
        assert!(sequence.memory_bytes() < 1024);
        assert_eq!(gaps(&mut sequence), [(9, 1_507_978_614)]);
        let mut jumped = Sequence::new(1 << 10);
        (1_000_000..1_000_064).for_each(|number| assert_ne!(jumped.see(number), Seen::Repeated));
        assert!(jumped.has_jumped());
        assert_eq!(gaps(&mut jumped), [(0, 999_999)]);
        assert!(!jumped.has_jumped());
        assert!(matches!(jumped.see(1_000_064), Seen::New(_)));
    }

    #[test]
    fn late_numbers_that_split_a_hole_again_and_again_are_told_apart_and_leave_no_crumbs() {
        let mut sequence = Sequence::new(1 << 20);
        sequence.see(1_000_000);
        assert_eq!(gaps(&mut sequence), [(0, 999_999)]);
        for number in (1..1_000_000).step_by(2) {
            assert!(matches!(sequence.see(number), Seen::Late(_)), "{number}");
            assert!(sequence.given_up.len() <= REMEMBERED_HOLES);
        }
        assert_eq!(sequence.see(999_999), Seen::Repeated);
        assert!(matches!(sequence.see(999_998), Seen::Late(_)));
    }

    #[test]
    fn a_hole_has_its_time_and_numbers_after_it_do_not_prolong_it() {
        let (second, mut sequence) = (Duration::from_secs(1), Sequence::new(1 << 16));
        sequence.see(1);
        assert_eq!(sequence.deadline(second, Duration::ZERO), Some(second));
        sequence.see(3);
        assert_eq!(sequence.deadline(second, second / 2), Some(second));
        assert_eq!(sequence.expire(second / 2), None);
        assert_eq!(sequence.expire(second).map(Hole::len), Some(1));
        assert_eq!(sequence.expire(second), None);
        assert_eq!(sequence.deadline(second, second), Some(2 * second));
        sequence.see(2);
        assert_eq!(sequence.deadline(second, second), None);
    }
}
