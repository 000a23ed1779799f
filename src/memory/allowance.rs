//! How much output a peer may cause.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tributary_options::options;

options! {
    /// Limits of output bytes by input bytes. A peer that has used its credit up loses nothing; it is read more slowly.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Amplification(default: Amplification) {
        /// Bytes of output that each byte of input earns. A peer that has used its credit up loses nothing; it is read more slowly.
        pub ratio: u64 = count(default.ratio, 1..=1_000_000),
        /// The most output that can be saved up, in bytes; also what a peer has at the start.
        pub burst: u64 = size(default.burst, 64 << 10..=1 << 40),
        /// Bytes of output that are earned each second, whatever the input is.
        pub rate: u64 = size(default.rate, 1 << 10..=1 << 40),
    }
}

/// A token bucket over *output* bytes that *input* bytes fill.
///
/// Some protocols let four kilobytes name a text of 64 KiB five hundred times. Ordinary traffic expands a few times and
/// never reaches this limit; a peer whose traffic is mostly expansion is slowed to `rate`.
#[derive(Clone, Copy, Debug)]
pub struct Credit {
    limits: Amplification,
    balance: i128,
    last: Option<Duration>,
}

impl Credit {
    /// A full bucket.
    pub fn new(limits: Amplification) -> Self {
        Credit { limits, balance: i128::from(limits.burst), last: None }
    }

    /// Books `received` input bytes and `expanded` output bytes at `elapsed`. `Some`: the credit is used up; wait
    /// this long before taking more input.
    #[inline]
    pub fn spend(&mut self, received: u64, expanded: u64, elapsed: Duration) -> Option<Duration> {
        let Amplification { ratio, burst, rate } = self.limits;
        let last = self.last.unwrap_or(elapsed);
        let since = elapsed.saturating_sub(last);
        // Threads that share a bucket may come in another order than their times.
        self.last = Some(elapsed.max(last));
        let earned = i128::from(received) * i128::from(ratio)
            + i128::from(rate) * i128::try_from(since.as_micros()).unwrap_or(i128::MAX >> 64) / 1_000_000;
        self.balance = (self.balance + earned - i128::from(expanded)).min(i128::from(burst));
        if self.balance >= 0 {
            return None;
        }
        let micros = -self.balance * 1_000_000 / i128::from(rate.max(1));
        Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    }

    /// The output bytes that are free at `elapsed`, together with what `received` input bytes will earn.
    fn left(&mut self, received: u64, elapsed: Duration) -> u64 {
        let _ = self.spend(0, 0, elapsed);
        let free = u64::try_from(self.balance.max(0)).unwrap_or(u64::MAX);
        free.saturating_add(received.saturating_mul(self.limits.ratio))
    }
}

/// A [`Credit`] that the connections of one address share. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Allowance(Arc<Mutex<Option<Credit>>>);

impl Allowance {
    /// Like [`Credit::spend`]. The bucket is full at the first call.
    #[inline]
    pub fn spend(&self, limits: Amplification, received: u64, expanded: u64, elapsed: Duration) -> Option<Duration> {
        let mut credit = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let credit = credit.get_or_insert_with(|| Credit::new(limits));
        credit.limits = limits;
        credit.spend(received, expanded, elapsed)
    }

    /// The output bytes that the peer may cause at once, together with what `received` input bytes will earn.
    #[inline]
    pub fn left(&self, limits: Amplification, received: u64, elapsed: Duration) -> u64 {
        let mut credit = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let credit = credit.get_or_insert_with(|| Credit::new(limits));
        credit.limits = limits;
        credit.left(received, elapsed)
    }

    /// Books output that a transport wrote by itself, by the limits of the peer's protocol if they are known yet.
    #[inline]
    pub fn spend_more(&self, expanded: u64, elapsed: Duration) -> Option<Duration> {
        let mut credit = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        credit.get_or_insert_with(|| Credit::new(TRANSPORT_LIMITS)).spend(0, expanded, elapsed)
    }

    /// How long to wait before taking more input, if the credit is used up.
    pub fn wait(&self, elapsed: Duration) -> Option<Duration> {
        let mut credit = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        credit.as_mut().and_then(|credit| credit.spend(0, 0, elapsed))
    }

    /// Whether the bucket is full at this time, like a new one.
    #[inline]
    pub fn is_full(&self, elapsed: Duration) -> bool {
        let mut credit = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        credit.as_mut().is_none_or(|credit| {
            let _ = credit.spend(0, 0, elapsed);
            credit.balance >= i128::from(credit.limits.burst)
        })
    }
}

/// The limits of an address that has not caused any event yet.
const TRANSPORT_LIMITS: Amplification = Amplification { ratio: 1, burst: 16 << 20, rate: 4 << 20 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_expansion_is_never_throttled_and_amplification_is_slowed_to_the_rate() {
        let mut ordinary = Credit::new(Amplification { ratio: 64, burst: 1_000, rate: 100 });
        for second in 0..100 {
            assert_eq!(ordinary.spend(1_000, 10_000, Duration::from_secs(second)), None);
        }
        let mut hostile = Credit::new(Amplification { ratio: 64, burst: 1_000, rate: 100 });
        assert_eq!(hostile.spend(0, 1_000, Duration::ZERO), None);
        assert_eq!(hostile.spend(1, 64 + 500, Duration::ZERO), Some(Duration::from_secs(5)));
        assert_eq!(hostile.spend(0, 0, Duration::from_secs(5)), None);
        assert_eq!(hostile.spend(0, 100, Duration::from_secs(5)), Some(Duration::from_secs(1)));
    }

    #[test]
    fn connections_that_share_an_allowance_have_one_burst() {
        let limits = Amplification { ratio: 1, burst: 1_000, rate: 100 };
        let allowance = Allowance::default();
        assert!(allowance.is_full(Duration::ZERO));
        let connections = [allowance.clone(), allowance.clone()];
        assert_eq!(connections[0].spend(limits, 0, 600, Duration::ZERO), None);
        assert_eq!(connections[1].spend(limits, 0, 600, Duration::ZERO), Some(Duration::from_secs(2)));
        assert_eq!(allowance.spend_more(100, Duration::ZERO), Some(Duration::from_secs(3)));
        assert_eq!(allowance.wait(Duration::from_secs(1)), Some(Duration::from_secs(2)));
        assert!(!allowance.is_full(Duration::from_secs(3)) && allowance.is_full(Duration::from_secs(13)));
        assert_eq!(Allowance::default().wait(Duration::ZERO), None);
    }

    #[test]
    fn what_is_left_is_the_credit_and_what_the_input_earns() {
        let limits = Amplification { ratio: 10, burst: 1_000, rate: 100 };
        let allowance = Allowance::default();
        assert_eq!(allowance.left(limits, 7, Duration::ZERO), 1_070);
        assert_eq!(allowance.spend(limits, 7, 1_070, Duration::ZERO), None, "all of it may be spent at once");
        assert_eq!(allowance.left(limits, 0, Duration::ZERO), 0);
        let _ = allowance.spend(limits, 0, 500, Duration::ZERO);
        assert_eq!(
            (allowance.left(limits, 3, Duration::ZERO), allowance.left(limits, 0, Duration::from_secs(6))),
            (30, 100)
        );
    }
}
