//! Counts, errors and durations of one row over time.

use std::collections::VecDeque;

use super::latency::Latencies;
use super::pop_if;

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
    /// The latest minute, and those before it, the oldest first.
    latest: MinuteSums,
    minutes: VecDeque<MinuteSums>,
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
        Sums { steps, last: 0, latest: MinuteSums::default(), minutes: VecDeque::new() }
    }

    /// Adds a span that was read in this step, which is at most as old as the oldest one that is kept.
    pub(super) fn add(&mut self, step: u64, nanos: Option<u64>, is_error: bool) {
        self.advance(step);
        let sums = &mut self.steps[(step % STEPS) as usize];
        sums.count = sums.count.saturating_add(1);
        sums.errors = sums.errors.saturating_add(u32::from(is_error));
        let minute = self.minute(step / STEPS_PER_MINUTE);
        minute.count += 1;
        minute.errors += u64::from(is_error);
        if let Some(nanos) = nanos {
            minute.nanos += u128::from(nanos);
            minute.latencies.add(nanos);
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

    fn minute(&mut self, minute: u64) -> &mut MinuteSums {
        if minute > self.latest.minute {
            let mut before = std::mem::replace(&mut self.latest, MinuteSums { minute, ..MinuteSums::default() });
            before.latencies.settle();
            self.minutes.extend((before.count > 0).then_some(before));
        }
        if minute == self.latest.minute { &mut self.latest } else { self.earlier_minute(minute) }
    }

    #[cold]
    fn earlier_minute(&mut self, minute: u64) -> &mut MinuteSums {
        let at = self.minutes.iter().rposition(|known| known.minute <= minute);
        let at = match at {
            Some(at) if self.minutes[at].minute == minute => at,
            _ => {
                let at = at.map_or(0, |at| at + 1);
                self.minutes.insert(at, MinuteSums { minute, ..MinuteSums::default() });
                at
            }
        };
        &mut self.minutes[at]
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

    /// The minutes that have sums, the oldest first.
    pub fn minutes(&self) -> impl Iterator<Item = &MinuteSums> {
        self.minutes.iter().chain((self.latest.count > 0).then_some(&self.latest))
    }

    /// The totals of whole minutes, from the first to the last one.
    pub fn totals(&self, (first, last): (u64, u64)) -> Totals {
        let mut totals = Totals::default();
        for minute in self.minutes().filter(|minute| (first..=last).contains(&minute.minute)) {
            totals.count += minute.count;
            totals.errors += minute.errors;
            totals.nanos += minute.nanos;
            totals.latencies.merge(&minute.latencies);
        }
        totals
    }

    /// Removes the minutes before this one, and gives them to `leave`.
    pub(super) fn expire(&mut self, first: u64, mut leave: impl FnMut(&MinuteSums)) {
        while let Some(minute) = pop_if(&mut self.minutes, |minute| minute.minute < first) {
            leave(&minute);
        }
        if self.latest.count > 0 && self.latest.minute < first {
            leave(&std::mem::take(&mut self.latest));
        }
    }

    /// Gives up the durations of minutes before this one; the counts stay.
    pub(super) fn forget_latencies(&mut self, first: u64) {
        let all = self.minutes.iter_mut().chain([&mut self.latest]);
        let old = all.filter(|minute| minute.minute < first);
        old.for_each(|minute| minute.latencies = Latencies::default());
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.steps)
            + self.minutes.capacity() * size_of::<MinuteSums>()
            + self.minutes().map(|minute| minute.latencies.memory_bytes()).sum::<usize>()
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
        let minutes: Vec<_> = sums.minutes().map(|minute| (minute.minute, minute.count, minute.nanos)).collect();
        assert_eq!(minutes, [(100, 2, 1201), (101, 2, 1212)]);
        assert_eq!((sums.totals((100, 101)).count, sums.totals((101, 200)).errors), (4, 1));
        // The ring goes on; old steps are gone.
        sums.add(600 + STEPS, None, false);
        assert_eq!((sums.step(600).count, sums.step(601).count, sums.step(606).count), (0, 1, 2));
        let mut left = Vec::new();
        sums.expire(101, |minute| left.push(minute.count));
        assert_eq!((left, sums.totals((0, 1000)).count), (vec![2], 3));
        sums.add(100_000, None, false);
        assert_eq!(sums.step(606).count, 0);
    }
}
