//! The wall clock, for what is not given the time: sinks, stores, and the admin endpoint.
//!
//! Sessions get their time as an argument, from the clock of `transport`.
//!
//! The wall clock can step, for years on a machine that starts in 1970. What happened while this process runs has its age by a
//! clock that does not: about every second it is noted by how much the two differ.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use tributary_event::UnixNanos;

/// A change of the difference by less is no step.
const LEAST_STEP: i128 = 1_000_000_000;
/// At most this many steps are known; older ones are forgotten.
const MOST_PERIODS: usize = 64;
/// The program did not exist before 2020: a clock that shows an earlier time is wrong.
const EARLIEST: UnixNanos = UnixNanos(1_577_836_800 * 1_000_000_000);

static PERIODS: Mutex<Periods> = Mutex::new(Periods { known: VecDeque::new(), first: 0 });

/// The time. A time before 1970 is 1970.
pub fn now() -> UnixNanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixNanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// The same, compared with the clock that does not step. Called about once a second, so that a step is noticed.
pub fn observed() -> UnixNanos {
    let now = now();
    periods().note(now, uptime_nanos());
    now
}

/// How long ago the wall clock read `time`. What it has read in the life of this process is that long ago whatever it has done
/// since. A time before it, at which the clock was wrong, counts from the start of this process.
pub fn age(time: UnixNanos) -> Duration {
    let (now, uptime) = (now(), uptime_nanos());
    let mut periods = periods();
    periods.note(now, uptime);
    periods.age(time, now, uptime)
}

/// The same of a time of the system.
pub fn age_of(time: SystemTime) -> Duration {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    age(UnixNanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
}

/// The time since the machine has started, by a clock that does not step and counts suspended time.
pub fn since_boot() -> Duration {
    Duration::from_nanos(u64::try_from(uptime_nanos()).unwrap_or_default())
}

fn uptime_nanos() -> i128 {
    let time = clock_gettime(ClockId::Boottime);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

fn periods() -> MutexGuard<'static, Periods> {
    PERIODS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The times between two steps.
#[derive(Debug, Default)]
struct Periods {
    known: VecDeque<Period>,
    /// The first reading, by the clock that does not step.
    first: i128,
}

/// A time in which the wall clock did not step.
#[derive(Debug)]
struct Period {
    /// By how much the wall clock is ahead of the other one.
    ahead: i128,
    /// From the last reading before the step to the first one after the next, by the clock that does not step.
    from: i128,
    until: i128,
}

impl Periods {
    /// A reading of both clocks.
    fn note(&mut self, wall: UnixNanos, uptime: i128) {
        let ahead = i128::from(wall.0) - uptime;
        match self.known.back_mut() {
            // Only a step changes the difference: a clock that is adjusted runs as fast as the other one.
            Some(last) if (last.ahead - ahead).abs() < LEAST_STEP => last.until = last.until.max(uptime),
            Some(last) => {
                let from = last.until;
                last.until = uptime;
                self.known.push_back(Period { ahead, from, until: uptime });
                if self.known.len() > MOST_PERIODS {
                    self.known.pop_front();
                }
            }
            None => {
                self.first = uptime;
                self.known.push_back(Period { ahead, from: uptime, until: uptime });
            }
        }
    }

    fn age(&self, time: UnixNanos, wall: UnixNanos, uptime: i128) -> Duration {
        let at = |period: &Period| {
            let at = i128::from(time.0) - period.ahead;
            // Readings are rounded, to milliseconds in names.
            let slack = 1_000_000;
            (period.from - slack..=period.until + slack).contains(&at).then_some(at)
        };
        let age = match self.known.iter().rev().find_map(at) {
            Some(at) => uptime - at,
            None if time < EARLIEST => uptime - self.first,
            None => i128::from(wall.0) - i128::from(time.0),
        };
        Duration::from_nanos(u64::try_from(age.max(0)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const YEAR: u64 = 365 * 24 * 3600 * SECOND;

    /// A wall clock that was read at 0, 10 and 20 s after the start, at 20 s with these differences; the machine has run a minute.
    fn read(before: u64, after: u64) -> Periods {
        let mut periods = Periods::default();
        for (second, ahead) in [(0, before), (10, before), (20, after)] {
            periods.note(UnixNanos(ahead + second * SECOND), i128::from((60 + second) * SECOND));
        }
        periods
    }

    fn age_at_20(periods: &Periods, time: u64, ahead: u64) -> u64 {
        periods.age(UnixNanos(time), UnixNanos(ahead + 20 * SECOND), i128::from(80 * SECOND)).as_secs()
    }

    #[test]
    fn what_happened_since_the_start_is_as_old_as_it_is_whatever_the_clock_did() {
        for (before, after) in [(100, 56 * YEAR), (56 * YEAR, 55 * YEAR), (56 * YEAR, 56 * YEAR), (100, 90 * YEAR)] {
            let periods = read(before, after);
            // The step was between the readings at 10 and 20 s, so either clock can have given 15 s.
            for (ahead, second) in [(before, 0), (before, 5), (before, 15), (after, 15), (after, 20)] {
                let age = age_at_20(&periods, ahead + second * SECOND, after);
                assert_eq!(age, 20 - second, "{before} {after} {second}");
            }
        }
    }

    #[test]
    fn what_is_older_has_the_age_of_the_clock_unless_that_was_wrong() {
        let now = 56 * YEAR;
        let periods = read(now, now);
        assert_eq!(age_at_20(&periods, now - 3600 * SECOND, now), 3620);
        assert_eq!(age_at_20(&periods, now + YEAR, now), 0, "in the future");
        assert_eq!(age_at_20(&periods, 3600 * SECOND, now), 20, "1970: since this process has started");
    }

    #[test]
    fn many_steps_are_few_periods() {
        let mut periods = Periods::default();
        for second in 0..10_000_u64 {
            periods.note(UnixNanos((second % 2) * YEAR + second * SECOND), i128::from(second * SECOND));
        }
        assert_eq!(periods.known.len(), MOST_PERIODS);
    }
}
