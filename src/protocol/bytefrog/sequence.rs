//! The numbers of a run: which have arrived, which are missing, which arrived twice (section 1.7).
//!
//! One counter of 32 bits numbers the events of all connections of a run, and no connection keeps its order. A window
//! of bits records what has arrived; it starts at the lowest number that is still expected. It consists of chunks, and
//! those without a number take no memory, so that a wrong number allocates nothing for its distance (section 5). A
//! number beyond the window is kept apart.

use std::collections::VecDeque;
use std::time::Duration;

/// Gaps that are kept after they were given up, so that a late number is not taken for a repeated one.
const REMEMBERED_GAPS: usize = 256;
/// Numbers far ahead that are kept apart. With this many of them the counter has really jumped.
const MAX_FAR: usize = 64;

/// The numbers of a chunk of the window, which is 512 bytes.
const CHUNK_NUMBERS: u64 = CHUNK_WORDS as u64 * 64;
const CHUNK_WORDS: usize = 64;

/// The lowest first number, unwrapped: far enough from zero that there are numbers before it.
const ZERO: u64 = 1 << 32;

/// What is known of a number that arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// It arrives for the first time.
    New(u64),
    /// It was given up as missing, and arrives now.
    Late(Late),
    /// It has arrived before (rule 18).
    Repeated,
}

/// A number that was given up as missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Late {
    pub number: u64,
    /// Whether its gap was reported.
    pub is_reported: bool,
    /// How many more gaps there are without this number: one less if it was the last of its gap, one more if it divides it.
    pub more_gaps: i64,
}

/// A gap that was given up.
#[derive(Clone, Copy, Debug)]
struct GivenUp {
    gap: Gap,
    is_reported: bool,
}

/// Missing numbers, from the first to the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gap {
    pub first: u64,
    pub last: u64,
}

impl Gap {
    /// The count of numbers.
    pub(super) fn len(self) -> u64 {
        self.last - self.first + 1
    }
}

type Chunk = [u64; CHUNK_WORDS];

/// The numbers of one run, unwrapped to 64 bits.
#[derive(Debug)]
pub(super) struct Sequence {
    /// The bits of the window; the first chunk starts at `base`, a multiple of its length. Bits below `next` count only
    /// in its own word, where they are set.
    chunks: VecDeque<Option<Box<Chunk>>>,
    /// The number of chunks that take memory.
    allocated: usize,
    start: u64,
    base: u64,
    /// The lowest number neither received nor given up.
    next: u64,
    /// One more than the highest number in the window.
    end: u64,
    max_ahead: u64,
    /// Numbers far ahead, ascending.
    far: Vec<u64>,
    /// Gaps that were given up, ascending.
    given_up: VecDeque<GivenUp>,
    /// Up to this number it is no longer known which numbers were given up.
    forgotten: Option<u64>,
    /// Gaps below this number are given up at that time.
    checkpoint: Option<(u64, Duration)>,
    is_started: bool,
}

impl Sequence {
    /// An empty sequence. `max_ahead`: the length of the window, in numbers.
    pub(super) fn new(max_ahead: u64) -> Self {
        Sequence {
            chunks: VecDeque::new(),
            allocated: 0,
            start: ZERO,
            base: ZERO,
            next: ZERO,
            end: ZERO,
            max_ahead: max_ahead.clamp(64, ZERO / 2),
            far: Vec::new(),
            given_up: VecDeque::new(),
            forgotten: None,
            checkpoint: None,
            is_started: false,
        }
    }

    /// The first number of the run.
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

    /// Records a number.
    #[inline]
    pub(super) fn see(&mut self, number: u32) -> Seen {
        if !self.is_started {
            self.start_at(number);
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

    /// Numbers count from 0. A first number in the upper half is that of a counter just before its wrap.
    fn start_at(&mut self, number: u32) {
        self.is_started = true;
        let start = ZERO + u64::from(if number > u32::MAX / 2 { number } else { 0 });
        self.start = start;
        self.move_to(start);
        // None of the numbers before has arrived either.
        let gap = Gap { first: start - ZERO / 2, last: start - 1 };
        self.given_up.push_back(GivenUp { gap, is_reported: false });
    }

    /// Empties the window and lets it start here.
    fn move_to(&mut self, start: u64) {
        self.base = start - start % CHUNK_NUMBERS;
        self.next = start;
        self.end = start;
        self.chunks.clear();
        self.allocated = 0;
        *self.word(start) = below(start);
    }

    /// The word with this number, which is in the window.
    #[inline]
    fn word(&mut self, number: u64) -> &mut u64 {
        let index = ((number - self.base) / CHUNK_NUMBERS) as usize;
        if index >= self.chunks.len() {
            self.chunks.resize_with(index + 1, || None);
        }
        let chunk = self.chunks[index].get_or_insert_with(|| {
            self.allocated += 1;
            Box::new([0; CHUNK_WORDS])
        });
        &mut chunk[(number % CHUNK_NUMBERS / 64) as usize]
    }

    #[inline]
    fn set(&mut self, number: u64) -> Seen {
        let (word, bit) = (self.word(number), 1 << (number % 64));
        if *word & bit != 0 {
            return Seen::Repeated;
        }
        *word |= bit;
        self.end = self.end.max(number + 1);
        if number == self.next {
            self.advance();
        }
        Seen::New(number)
    }

    /// Moves `next` behind everything that has arrived without a gap.
    fn advance(&mut self) {
        while let Some(Some(chunk)) = self.chunks.front() {
            let first = (self.next % CHUNK_NUMBERS / 64) as usize;
            if let Some(index) = (first..CHUNK_WORDS).find(|index| chunk[*index] != u64::MAX) {
                self.next = self.base + index as u64 * 64 + u64::from(chunk[index].trailing_ones());
                return;
            }
            self.chunks.pop_front();
            self.allocated -= 1;
            self.base += CHUNK_NUMBERS;
            self.next = self.base;
        }
    }

    /// The first number from `next` on that has arrived and is in the window.
    fn first_arrived(&self) -> Option<u64> {
        let mut first = self.next;
        for (chunk, base) in self.chunks.iter().zip((self.base..).step_by(CHUNK_NUMBERS as usize)) {
            first = first.max(base);
            let Some(chunk) = chunk else { continue };
            let mut mask = !below(first);
            for index in (first % CHUNK_NUMBERS / 64) as usize..CHUNK_WORDS {
                let word = chunk[index] & mask;
                if word != 0 {
                    return Some(base + index as u64 * 64 + u64::from(word.trailing_zeros()));
                }
                mask = u64::MAX;
            }
        }
        None
    }

    fn behind(&mut self, number: u64) -> Seen {
        let place = self.given_up.partition_point(|given_up| given_up.gap.last < number);
        let Some(GivenUp { gap, is_reported }) = self.given_up.get(place).filter(|of| of.gap.first <= number).copied()
        else {
            // Agents repeat nothing (section 1.7): an event that may be new is not dropped. Most gaps were reported.
            let is_forgotten = self.forgotten.is_some_and(|last| number <= last);
            let late = Late { number, is_reported: true, more_gaps: 0 };
            return if is_forgotten { Seen::Late(late) } else { Seen::Repeated };
        };
        // The rest of the gap stays in its place, so that gaps stay in ascending order.
        let before = GivenUp { gap: Gap { last: number - 1, ..gap }, is_reported };
        let after = GivenUp { gap: Gap { first: number + 1, ..gap }, is_reported };
        let more_gaps = match (gap.first < number, number < gap.last) {
            (true, true) => {
                self.given_up[place] = after;
                self.given_up.insert(place, before);
                self.forget();
                1
            }
            (true, false) => {
                self.given_up[place] = before;
                0
            }
            (false, true) => {
                self.given_up[place] = after;
                0
            }
            (false, false) => {
                self.given_up.remove(place);
                -1
            }
        };
        Seen::Late(Late { number, is_reported, more_gaps })
    }

    /// Keeps it apart: one wrong number must not make all numbers before it gaps.
    fn far_ahead(&mut self, number: u64) -> Seen {
        match self.far.binary_search(&number) {
            Ok(_) => Seen::Repeated,
            Err(place) => {
                self.far.insert(place, number);
                Seen::New(number)
            }
        }
    }

    /// Moves into the window the numbers that are no longer far ahead.
    fn draw_near(&mut self) {
        while let Some(&nearest) = self.far.first()
            && nearest - self.next < self.max_ahead
        {
            self.far.remove(0);
            self.set(nearest);
        }
    }

    /// The numbers before this one were taken: those that do not arrive are missing, also when none after them arrives.
    pub(super) fn expect_before(&mut self, number: u64) {
        if !self.is_started {
            self.start_at(number as u32);
        }
        if number > self.end && number - self.next < self.max_ahead {
            self.end = number;
        }
    }

    /// Whether a number is missing that was not given up.
    pub(super) fn has_gap(&self) -> bool {
        self.next != self.end || !self.far.is_empty()
    }

    /// Whether the counter has jumped: the numbers before the jump are given up now.
    pub(super) fn has_jumped(&self) -> bool {
        self.far.len() >= MAX_FAR
    }

    /// Whether a number is far ahead, beyond the window.
    pub(super) fn has_far(&self) -> bool {
        !self.far.is_empty()
    }

    /// When the gaps of now will have lasted for `window`. Call it with the time of every input. `None`: there is no
    /// gap.
    pub(super) fn deadline(&mut self, window: Duration, elapsed: Duration) -> Option<Duration> {
        if !self.has_gap() {
            self.checkpoint = None;
        } else if self.checkpoint.is_none_or(|(below, _)| below <= self.next) {
            self.checkpoint = Some((self.end.max(self.next + 1), elapsed + window));
        }
        self.checkpoint.map(|(_, due)| due)
    }

    /// When the gaps of the last call of [`Sequence::deadline`] are given up.
    pub(super) fn checkpoint(&self) -> Option<Duration> {
        self.checkpoint.map(|(_, due)| due)
    }

    /// Gives up the next gap whose time has passed. `None`: there is none.
    pub(super) fn expire(&mut self, elapsed: Duration) -> Option<Gap> {
        let (below, due) = self.checkpoint?;
        if elapsed < due || below <= self.next {
            return None;
        }
        self.give_up()
    }

    /// Gives up the next gap. `None`: there is none.
    pub(super) fn give_up(&mut self) -> Option<Gap> {
        let first = self.next;
        if self.next == self.end {
            return self.jump();
        }
        let to = self.first_arrived().unwrap_or(self.end);
        // All numbers before it have arrived or are given up.
        let passed = (to - self.base) / CHUNK_NUMBERS;
        let chunks = self.chunks.len().min(passed as usize);
        self.allocated -= self.chunks.drain(..chunks).flatten().count();
        self.base += passed * CHUNK_NUMBERS;
        *self.word(to) |= below(to);
        self.next = to;
        self.advance();
        self.draw_near();
        Some(self.remember(Gap { first, last: to - 1 }))
    }

    /// Moves the window to the numbers that are far ahead.
    fn jump(&mut self) -> Option<Gap> {
        let gap = Gap { first: self.next, last: self.far.first()? - 1 };
        self.move_to(gap.last + 1);
        let far = std::mem::take(&mut self.far);
        for number in far {
            if number - self.next < self.max_ahead {
                self.set(number)
            } else {
                self.far_ahead(number)
            };
        }
        Some(self.remember(gap))
    }

    fn remember(&mut self, gap: Gap) -> Gap {
        self.given_up.push_back(GivenUp { gap, is_reported: false });
        self.forget();
        gap
    }

    /// The gap that was given up last is reported.
    pub(super) fn set_reported(&mut self) {
        if let Some(latest) = self.given_up.back_mut() {
            latest.is_reported = true;
        }
    }

    /// Drops the oldest gaps over the limit: late numbers split gaps without end.
    fn forget(&mut self) {
        while self.given_up.len() > REMEMBERED_GAPS {
            let oldest = self.given_up.pop_front();
            self.forgotten = self.forgotten.max(oldest.map(|oldest| oldest.gap.last));
        }
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.allocated * size_of::<Chunk>() + self.chunks.capacity() * size_of::<Option<Box<Chunk>>>()
    }
}

/// The bits of the numbers before this one in its word.
fn below(number: u64) -> u64 {
    (1 << (number % 64)) - 1
}

/// The number as the peer sent it.
pub(super) fn wrapped(number: u64) -> u64 {
    number & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(sequence: &mut Sequence) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| sequence.give_up()).map(|gap| (wrapped(gap.first), wrapped(gap.last))).collect()
    }

    #[test]
    fn numbers_in_any_order_leave_no_gap() {
        let mut sequence = Sequence::new(1 << 16);
        for number in (0..5000).rev() {
            assert!(matches!(sequence.see(number), Seen::New(_)), "{number}");
        }
        assert_eq!(wrapped(sequence.next()), 5000);
        assert_eq!(sequence.see(77), Seen::Repeated);
        assert_eq!(gaps(&mut sequence), []);
    }

    #[test]
    fn expected_numbers_that_do_not_arrive_are_a_gap() {
        let mut sequence = Sequence::new(1 << 16);
        let start = sequence.start();
        sequence.expect_before(start + 600);
        assert!(sequence.has_gap());
        sequence.see(0);
        sequence.see(5);
        sequence.expect_before(start + 3);
        sequence.expect_before(start + (1 << 20));
        assert_eq!(gaps(&mut sequence), [(1, 4), (6, 599)]);
        assert!(!sequence.has_gap());
        assert!(matches!(sequence.see(600), Seen::New(_)));
        assert!(matches!(sequence.see(599), Seen::Late(_)));
        let mut sequence = Sequence::new(1 << 16);
        sequence.expect_before(start + 10_000);
        assert_eq!(gaps(&mut sequence), [(0, 9_999)]);
        sequence.see(10_001);
        sequence.expect_before(start + 10_003);
        assert_eq!(gaps(&mut sequence), [(10_000, 10_000), (10_002, 10_002)]);
    }

    #[test]
    fn a_number_far_ahead_is_no_gap_when_the_window_reaches_it() {
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
    fn a_number_is_late_and_not_repeated_after_too_many_gaps_were_given_up() {
        let mut sequence = Sequence::new(1 << 16);
        let count = 2 * REMEMBERED_GAPS as u32;
        (0..=count).for_each(|number| assert!(matches!(sequence.see(2 * number), Seen::New(_))));
        assert_eq!(gaps(&mut sequence).len(), count as usize);
        (0..count).for_each(|number| assert!(matches!(sequence.see(2 * number + 1), Seen::Late(_)), "{number}"));
    }

    #[test]
    fn gaps_are_reported_in_ascending_order_and_late_numbers_are_not_repeated_ones() {
        let mut sequence = Sequence::new(1 << 16);
        (0..50).chain(59..90).chain(300..301).for_each(|number| assert_ne!(sequence.see(number), Seen::Repeated));
        assert_eq!(gaps(&mut sequence), [(50, 58), (90, 299)]);
        assert!(matches!(sequence.see(55), Seen::Late(_)));
        assert_eq!(sequence.see(55), Seen::Repeated);
        assert!(matches!(sequence.see(54), Seen::Late(_)));
        assert_eq!(sequence.see(49), Seen::Repeated);
    }

    #[test]
    fn a_late_number_takes_its_gap_back_if_that_was_reported() {
        let mut sequence = Sequence::new(1 << 16);
        for number in [0, 4, 6, 9] {
            sequence.see(number);
        }
        assert_eq!(gaps(&mut sequence), [(1, 3), (5, 5), (7, 8)]);
        sequence.set_reported();
        let mut late = |number| match sequence.see(number) {
            Seen::Late(Late { is_reported, more_gaps, .. }) => (is_reported, more_gaps),
            other => panic!("{other:?}"),
        };
        assert_eq!([2, 1, 3, 5].map(&mut late), [(false, 1), (false, -1), (false, -1), (false, -1)]);
        assert_eq!([8, 7].map(&mut late), [(true, 0), (true, -1)]);
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
        // Also when numbers after the wrap arrive first.
        let mut sequence = Sequence::new(1 << 16);
        sequence.see(0);
        assert!(matches!(sequence.see(u32::MAX), Seen::Late(_)));
        assert_eq!(sequence.see(u32::MAX), Seen::Repeated);
    }

    #[test]
    fn a_number_far_ahead_is_kept_apart_and_many_are_a_jump() {
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
    fn a_number_that_millions_overtake_is_no_gap_and_takes_memory_for_those_that_are_missing() {
        let mut sequence = Sequence::new(5_000_000);
        (1..4_000_000).for_each(|number| assert!(matches!(sequence.see(number), Seen::New(_))));
        assert!(sequence.memory_bytes() < 600 * 1024, "{}", sequence.memory_bytes());
        assert!(matches!(sequence.see(0), Seen::New(_)));
        assert_eq!((wrapped(sequence.next()), gaps(&mut sequence)), (4_000_000, vec![]));
        assert!(sequence.memory_bytes() < 32 * 1024, "{}", sequence.memory_bytes());
        // Numbers that are far apart take a chunk each.
        let mut sparse = Sequence::new(5_000_000);
        (0..64).for_each(|place| assert!(matches!(sparse.see(1 + place * 70_000), Seen::New(_))));
        assert!(sparse.memory_bytes() < 64 * 1024, "{}", sparse.memory_bytes());
        let gaps = gaps(&mut sparse);
        assert_eq!((gaps.len(), gaps[0], gaps[63]), (64, (0, 0), (62 * 70_000 + 2, 63 * 70_000)));
    }

    #[test]
    fn late_numbers_that_split_a_gap_many_times_are_distinguished_from_repeated_ones_in_bounded_memory() {
        let mut sequence = Sequence::new(1 << 20);
        sequence.see(1_000_000);
        assert_eq!(gaps(&mut sequence), [(0, 999_999)]);
        for number in (1..1_000_000).step_by(2) {
            assert!(matches!(sequence.see(number), Seen::Late(_)), "{number}");
            assert!(sequence.given_up.len() <= REMEMBERED_GAPS);
        }
        assert_eq!(sequence.see(999_999), Seen::Repeated);
        assert!(matches!(sequence.see(999_998), Seen::Late(_)));
    }

    #[test]
    fn a_gap_lasts_for_the_window_and_later_numbers_do_not_prolong_it() {
        let (second, mut sequence) = (Duration::from_secs(1), Sequence::new(1 << 16));
        sequence.see(1);
        assert_eq!(sequence.deadline(second, Duration::ZERO), Some(second));
        sequence.see(3);
        assert_eq!(sequence.deadline(second, second / 2), Some(second));
        assert_eq!(sequence.expire(second / 2), None);
        assert_eq!(sequence.expire(second).map(Gap::len), Some(1));
        assert_eq!(sequence.expire(second), None);
        assert_eq!(sequence.deadline(second, second), Some(2 * second));
        sequence.see(2);
        assert_eq!(sequence.deadline(second, second), None);
    }
}
