//! Warnings that a peer, or a fault that lasts, can cause again and again: said at once, then once a minute at most, with
//! how often they were left unsaid meanwhile. What must not be missed is in the books and in `loss` events, not here.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the same is said.
const EVERY: Duration = Duration::from_secs(60);

/// Keeps one warning from filling the log. Each place that warns has one of its own, as narrow as it can be: a listener's,
/// a sink's, or a `static`.
#[derive(Debug, Default)]
pub(crate) struct Sparing(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    last: Option<Instant>,
    unsaid: u64,
}

/// It is to be said now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    /// How often it happened without being said; a field of the log line, which is not there when it never did.
    pub(crate) unsaid: Option<u64>,
}

impl Sparing {
    /// For a `static`.
    pub(crate) const fn new() -> Self {
        Sparing(Mutex::new(Said { last: None, unsaid: 0 }))
    }

    /// It has happened. `None`: it was said a moment ago, and is only counted.
    pub(crate) fn turn(&self) -> Option<Turn> {
        self.turn_at(Instant::now())
    }

    fn turn_at(&self, now: Instant) -> Option<Turn> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            said.unsaid += 1;
            return None;
        }
        let unsaid = std::mem::take(&mut said.unsaid);
        said.last = Some(now);
        Some(Turn { unsaid: (unsaid > 0).then_some(unsaid) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Option<Turn> = Some(Turn { unsaid: None });

    #[test]
    fn it_is_said_at_once_then_once_a_minute_with_what_was_left_unsaid() {
        let (sparing, start) = (Sparing::new(), Instant::now());
        let turn = |millis| sparing.turn_at(start + Duration::from_millis(millis));
        assert_eq!(turn(0), FIRST);
        let said = (1..60_000).filter(|millis| turn(*millis).is_some()).count();
        assert_eq!(said, 0);
        assert_eq!(turn(60_000), Some(Turn { unsaid: Some(59_999) }));
        assert_eq!(turn(60_001), None);
        // After silence, nothing is owed but the one.
        assert_eq!(turn(500_000), Some(Turn { unsaid: Some(1) }));
        assert_eq!(turn(560_000), FIRST);
    }

    #[test]
    fn a_moment_before_the_last_is_not_said() {
        let (sparing, start) = (Sparing::new(), Instant::now());
        assert_eq!(sparing.turn_at(start + EVERY), FIRST);
        assert_eq!(sparing.turn_at(start), None);
    }

    #[test]
    fn of_many_at_once_one_says_it() {
        static SPARING: Sparing = Sparing::new();
        let ask = || (0..1000).filter(|_| SPARING.turn().is_some()).count();
        let said: usize = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            asking.into_iter().map(|asked| asked.join().unwrap()).sum()
        });
        assert_eq!(said, 1);
    }
}
