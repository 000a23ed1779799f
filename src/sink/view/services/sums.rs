//! Counts, errors and durations of one row over time.

use std::iter;
use std::ops::RangeInclusive;

use super::latency::Latencies;
use super::minutes::{MinuteDurations, StoredMinutes};

/// The length of a step in seconds.
pub const STEP_SECONDS: u64 = 10;
/// The number of steps that are kept.
pub const STEPS: u64 = 90;
/// The steps of a minute.
pub const STEPS_PER_MINUTE: u64 = 6;
/// The number of minutes that are kept, with their durations.
pub const MINUTES: u64 = STEPS / STEPS_PER_MINUTE;

/// The sums of one row: an operation, an edge, or the entries of a service.
#[derive(Clone, Debug)]
pub struct Sums {
    steps: Box<[StepSums; STEPS as usize]>,
    /// The number of the latest step that has sums, counted since 1970.
    last: u64,
    /// Minutes before this one have expired.
    first_minute: u64,
    /// The latest minute that has durations.
    latest: MinuteDurations,
    /// Those before it, in ascending order.
    before: StoredMinutes,
}

/// Of 10 seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StepSums {
    pub count: u32,
    pub errors: u32,
}

/// Of a minute.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct MinuteSums {
    /// Its number, counted since 1970.
    pub minute: u64,
    pub count: u64,
    pub errors: u64,
    /// The sum of the durations in nanoseconds.
    pub nanos: u128,
    pub latencies: Latencies,
}

/// The totals of a part of the time.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Totals {
    pub count: u64,
    pub errors: u64,
    pub nanos: u128,
    pub latencies: Latencies,
}

impl Sums {
    pub(super) fn new() -> Sums {
        let steps = Box::new([StepSums::default(); STEPS as usize]);
        let (latest, before) = (MinuteDurations::default(), StoredMinutes::default());
        Sums { steps, last: 0, first_minute: 0, latest, before }
    }

    /// Adds a span that was read in this step, which is at most as old as the oldest one that is kept.
    pub(super) fn add(&mut self, step: u64, nanos: Option<u64>, is_error: bool) {
        self.advance(step);
        let sums = &mut self.steps[(step % STEPS) as usize];
        sums.count = sums.count.saturating_add(1);
        sums.errors = sums.errors.saturating_add(u32::from(is_error));
        let Some(nanos) = nanos else { return };
        let minute = step / STEPS_PER_MINUTE;
        if minute > self.latest.minute {
            let latest = MinuteDurations { minute, ..MinuteDurations::default() };
            self.before.push(std::mem::replace(&mut self.latest, latest));
        }
        match minute == self.latest.minute {
            true => self.latest.add(nanos),
            false => self.before.add(minute, nanos),
        }
    }

    fn advance(&mut self, step: u64) {
        if step <= self.last {
            return;
        }
        for passed in (self.last + 1).max((step + 1).saturating_sub(STEPS))..=step {
            self.steps[(passed % STEPS) as usize] = StepSums::default();
        }
        self.last = step;
    }

    /// The latest step that has sums.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The sums of a step.
    pub fn step(&self, step: u64) -> StepSums {
        let is_kept = step <= self.last && step + STEPS > self.last;
        if is_kept { self.steps[(step % STEPS) as usize] } else { StepSums::default() }
    }

    /// Those of these minutes that have sums, the oldest first.
    pub fn minutes(&self, of: RangeInclusive<u64>) -> Vec<MinuteSums> {
        let last = self.last / STEPS_PER_MINUTE;
        let first = (last + 1).saturating_sub(MINUTES).max(self.first_minute);
        let mut durations = self.before.iter().chain(iter::once_with(|| self.latest.clone())).peekable();
        let minutes = (first.max(*of.start())..=last.min(*of.end())).map(|minute| {
            let steps = minute * STEPS_PER_MINUTE..(minute + 1) * STEPS_PER_MINUTE;
            let (count, errors) = steps
                .map(|step| self.step(step))
                .fold((0, 0), |(count, errors), step| (count + u64::from(step.count), errors + u64::from(step.errors)));
            while durations.next_if(|known| known.minute < minute).is_some() {}
            let known = durations.next_if(|known| known.minute == minute).unwrap_or_default();
            MinuteSums { minute, count, errors, nanos: known.nanos, latencies: known.latencies }
        });
        minutes.filter(|sums| sums.count > 0).collect()
    }

    /// The totals of whole minutes, from the first to the last one.
    pub fn totals(&self, (first, last): (u64, u64)) -> Totals {
        let mut totals = Totals::default();
        for minute in self.minutes(first..=last) {
            totals.count += minute.count;
            totals.errors += minute.errors;
            totals.nanos += minute.nanos;
            totals.latencies.merge(&minute.latencies);
        }
        totals
    }

    /// Removes the minutes before this one.
    pub(super) fn expire(&mut self, first: u64) {
        if first <= self.first_minute {
            return;
        }
        self.first_minute = first;
        self.before.keep_from(first);
        if self.latest.minute < first {
            self.latest = MinuteDurations::default();
        }
    }

    /// Puts the durations into as few bytes as possible.
    pub(super) fn settle(&mut self) {
        self.latest.latencies.counted();
    }

    /// Gives up the durations of minutes before this one; counts and sums stay.
    pub(super) fn forget_latencies(&mut self, first: u64) {
        self.before.forget_latencies(first);
        if self.latest.minute < first {
            self.latest.latencies = Latencies::default();
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.steps) + self.latest.latencies.memory_bytes() + self.before.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_minutes_have_what_came_in_them_in_any_order() {
        let mut sums = Sums::new();
        for (step, is_error) in [(600, false), (606, true), (601, false), (606, false)] {
            sums.add(step, Some(step), is_error);
        }
        assert_eq!(sums.step(606), StepSums { count: 2, errors: 1 });
        assert_eq!((sums.step(601).count, sums.step(602).count, sums.step(607).count), (1, 0, 0));
        let all = sums.minutes(0..=u64::MAX);
        let minutes: Vec<_> = all.iter().map(|minute| (minute.minute, minute.count, minute.nanos)).collect();
        assert_eq!(minutes, [(100, 2, 1201), (101, 2, 1212)]);
        assert_eq!((sums.totals((100, 101)).count, sums.totals((101, 200)).errors), (4, 1));
        // The ring goes on; old steps are gone.
        let left = |sums: &Sums| {
            let left = sums.minutes(0..=100).into_iter();
            left.map(|minute| (minute.count, minute.errors, minute.nanos)).collect::<Vec<_>>()
        };
        assert_eq!(left(&sums), [(2, 0, 1201)]);
        sums.expire(101);
        assert_eq!(left(&sums), []);
        sums.add(600 + STEPS, None, false);
        assert_eq!((sums.step(600).count, sums.step(601).count, sums.step(606).count), (0, 1, 2));
        assert_eq!(sums.totals((0, 1000)).count, 3);
        sums.add(100_000, None, false);
        assert_eq!(sums.step(606).count, 0);
    }
}
