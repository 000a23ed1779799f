//! When a request is given up that a destination does not take, although it takes others.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::AttemptOutcome;
use tributary_options::{LONGEST, options};

/// A request counts as stuck after this number of failed attempts, if the first one was at least this time ago: short
/// pauses do not make a destination that has just left look like one that takes other requests.
const STUCK_AFTER: (u32, Duration) = (10, Duration::from_secs(10));

options! {
    /// How often, and for how long, a request must fail before it is given up. Only what happens while the destination takes other
    /// requests counts: a destination that takes none is away.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct GiveUp {
        /// A request that fails this often, over `give_up_time`, while the destination takes others is given up: its events count as
        /// failed, and a spool keeps it in refused/.
        pub attempts: u32 as "give_up_attempts" = count(20, 1..=1_000_000),
        /// The time over which a request must fail before it is given up.
        pub time: Duration as "give_up_time" = duration(Duration::from_secs(300), Duration::ZERO..=LONGEST),
    }
}

/// What the deliveries of one sink know of each other.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    /// Requests, or parts of them, that the destination has accepted.
    accepted: AtomicU64,
    /// Requests on their way that are stuck.
    stuck: AtomicUsize,
    /// A request is stuck.
    pub(super) noticed: Notify,
}

impl Deliveries {
    /// The destination has accepted a request.
    fn note_accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    /// The number of requests on their way that have failed many times.
    pub(super) fn stuck(&self) -> usize {
        self.stuck.load(Relaxed)
    }
}

/// The failed attempts at one request.
#[derive(Debug)]
pub(super) struct FailedAttempts<'a> {
    deliveries: &'a Deliveries,
    limits: GiveUp,
    attempts: u32,
    /// Those between which the destination has accepted another request, and the time between them.
    beside_others: u32,
    time: Duration,
    /// When the first attempt failed. `None`: none has.
    first: Option<Instant>,
    /// When the last attempt failed, and what the destination had accepted then.
    last: (Instant, u64),
    is_stuck: bool,
}

impl FailedAttempts<'_> {
    /// No attempt has failed.
    pub(super) fn new(deliveries: &Deliveries, limits: GiveUp) -> FailedAttempts<'_> {
        let last = (Instant::now(), deliveries.accepted.load(Relaxed));
        FailedAttempts {
            deliveries,
            limits,
            attempts: 0,
            beside_others: 0,
            time: Duration::ZERO,
            first: None,
            last,
            is_stuck: false,
        }
    }

    /// The answer to an attempt. One that asks for another attempt is a bad request when the request is given up.
    pub(super) fn judge(&mut self, answer: AttemptOutcome) -> AttemptOutcome {
        match answer {
            AttemptOutcome::Refusing(ref why) | AttemptOutcome::Away(ref why, _) => match self.note() {
                Some(end) => AttemptOutcome::Bad(format!("{why}; {end}")),
                None => answer,
            },
            AttemptOutcome::Accepted | AttemptOutcome::Duplicate | AttemptOutcome::Partial(..) => {
                self.deliveries.note_accepted();
                answer
            }
            AttemptOutcome::TooLarge(_) | AttemptOutcome::Bad(_) => answer,
        }
    }

    /// An attempt has failed. Returns why the request is given up, if it is.
    fn note(&mut self) -> Option<String> {
        let now = (Instant::now(), self.deliveries.accepted.load(Relaxed));
        if now.1 > self.last.1 {
            self.beside_others += 1;
            self.time += now.0 - self.last.0;
        }
        self.last = now;
        self.attempts += 1;
        let since = now.0 - *self.first.get_or_insert(now.0);
        if !self.is_stuck && self.attempts >= STUCK_AFTER.0 && since >= STUCK_AFTER.1 {
            self.is_stuck = true;
            self.deliveries.stuck.fetch_add(1, Relaxed);
            self.deliveries.noticed.notify_one();
        }
        let is_given_up = self.beside_others >= self.limits.attempts && self.time >= self.limits.time;
        is_given_up.then(|| {
            let seconds = self.time.as_secs();
            format!(
                "given up after {} attempts in {seconds} s in which other requests were accepted",
                self.beside_others
            )
        })
    }
}

impl Drop for FailedAttempts<'_> {
    fn drop(&mut self) {
        if self.is_stuck {
            self.deliveries.stuck.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_attempts_while_others_are_accepted_count() {
        let deliveries = Deliveries::default();
        let mut failed = FailedAttempts::new(&deliveries, GiveUp { attempts: 20, time: Duration::from_secs(300) });
        for attempt in 1..=1000 {
            tokio::time::advance(Duration::from_secs(30)).await;
            assert_eq!(failed.note(), None, "the destination takes nothing");
            assert_eq!(deliveries.stuck(), usize::from(attempt >= STUCK_AFTER.0));
        }
        for attempt in 1..=30 {
            tokio::time::advance(Duration::from_secs(10)).await;
            deliveries.note_accepted();
            assert_eq!(failed.note().is_some(), attempt == 30, "attempt {attempt} after {} s", 10 * attempt);
        }
        drop(failed);
        assert_eq!(deliveries.stuck(), 0);
    }
}
