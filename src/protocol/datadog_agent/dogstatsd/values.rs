//! What a series knows of the values that it has received since the last flush.

use std::collections::BTreeMap;
use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;
use hashbrown::HashSet;

/// Values of a distribution that are kept as they are; further ones are counted in bins.
const EXACT_VALUES: usize = 10_000;
/// The bounds of a bin differ by this factor: its middle is within 1 % of each value.
const GAMMA: f64 = 1.01 / 0.99;
/// Values of a set that are counted exactly; further ones are estimated.
const EXACT_DISTINCT: usize = 1_000;
/// As a power of 2, the registers of an estimate. Its error is about 1.6 %.
const REGISTER_BITS: u32 = 12;

/// The values of a histogram, weighted by how many each stands for.
#[derive(Clone, Debug, Default)]
pub(super) struct Distribution {
    pub(super) count: f64,
    pub(super) sum: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    exact: Vec<(f64, f64)>,
    /// By the number of the bin; that of a value below 0 is mirrored.
    bins: BTreeMap<i32, f64>,
}

impl Distribution {
    pub(super) fn add(&mut self, value: f64, weight: f64) {
        (self.min, self.max) = match self.count {
            0.0 => (value, value),
            _ => (self.min.min(value), self.max.max(value)),
        };
        self.count += weight;
        self.sum += value * weight;
        if self.bins.is_empty() && self.exact.len() < EXACT_VALUES {
            self.exact.push((value, weight));
            return;
        }
        for (value, weight) in std::mem::take(&mut self.exact).into_iter().chain([(value, weight)]) {
            *self.bins.entry(bin(value)).or_default() += weight;
        }
    }

    pub(super) fn average(&self) -> f64 {
        self.sum / self.count
    }

    /// For each part the smallest value with at least this part of all values at or below it (nearest rank). The parts ascend.
    pub(super) fn quantiles<const N: usize>(&mut self, parts: [f64; N]) -> [f64; N] {
        self.exact.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
        let bins = self.bins.iter().map(|(bin, weight)| (middle(*bin).clamp(self.min, self.max), *weight));
        let mut values = self.exact.iter().copied().chain(bins);
        let (mut found, mut below) = (self.max, 0.0);
        parts.map(|part| {
            // Sums of weights are rounded.
            let rank = part * self.count * (1.0 - 1e-12);
            while below < rank
                && let Some((value, weight)) = values.next()
            {
                below += weight;
                found = value;
            }
            found
        })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.exact.capacity() * size_of::<(f64, f64)>() + self.bins.len() * 32
    }
}

/// The number of the bin of a value. 0 is that of values near 0.
fn bin(value: f64) -> i32 {
    const NEAR_ZERO: f64 = 1e-9;
    // Below 1e-9 a value counts as 0; the largest double has a number below 40,000.
    if value.abs() < NEAR_ZERO {
        return 0;
    }
    let number = (value.abs().ln() - NEAR_ZERO.ln()) / GAMMA.ln();
    (number as i32 + 1) * if value < 0.0 { -1 } else { 1 }
}

/// A value within 1 % of all in a bin.
fn middle(bin: i32) -> f64 {
    match bin {
        0 => 0.0,
        _ => 1e-9 * GAMMA.powi(bin.abs() - 1) * 2.0 / (1.0 + 1.0 / GAMMA) * f64::from(bin.signum()),
    }
}

/// The number of distinct values of a set.
#[derive(Debug)]
pub(super) enum Distinct {
    Exact(HashSet<u64, RandomState>),
    Estimate(Box<[u8]>),
}

impl Default for Distinct {
    fn default() -> Self {
        Distinct::Exact(HashSet::default())
    }
}

impl Distinct {
    /// Adds a value; `hashes` is the same for all of a set.
    pub(super) fn add(&mut self, value: &str, hashes: &RandomState) {
        self.add_hash(hashes.hash_one(value));
    }

    fn add_hash(&mut self, hash: u64) {
        match self {
            Distinct::Exact(known) => {
                known.insert(hash);
                if known.len() > EXACT_DISTINCT {
                    let known = std::mem::take(known);
                    *self = Distinct::Estimate(vec![0; 1 << REGISTER_BITS].into());
                    known.into_iter().for_each(|hash| self.add_hash(hash));
                }
            }
            Distinct::Estimate(registers) => {
                let rest = hash << REGISTER_BITS | 1 << (REGISTER_BITS - 1);
                let register = &mut registers[(hash >> (64 - REGISTER_BITS)) as usize];
                *register = (*register).max(rest.leading_zeros() as u8 + 1);
            }
        }
    }

    /// The number; `true`: it is an estimate.
    pub(super) fn count(&self) -> (u64, bool) {
        match self {
            Distinct::Exact(known) => (known.len() as u64, false),
            Distinct::Estimate(registers) => {
                let m = registers.len() as f64;
                let sum: f64 = registers.iter().map(|register| 0.5_f64.powi(i32::from(*register))).sum();
                let estimate = 0.7213 / (1.0 + 1.079 / m) * m * m / sum;
                let empty = registers.iter().filter(|register| **register == 0).count();
                // With few values the empty registers say more.
                let linear = estimate <= 2.5 * m && empty > 0;
                let estimate = if linear { m * (m / empty as f64).ln() } else { estimate };
                (estimate.round() as u64, true)
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Distinct::Exact(known) => known.capacity() * 10,
            Distinct::Estimate(registers) => registers.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks_of_weighted_values() {
        let mut values = Distribution::default();
        for value in [4.0, 1.0, 3.0, 2.0] {
            values.add(value, 1.0);
        }
        assert_eq!(values.quantiles([0.5, 0.95, 0.99]), [2.0, 4.0, 4.0]);
        values.add(10.0, 10.0);
        assert_eq!(values.quantiles([0.1, 0.5, 1.0]), [2.0, 10.0, 10.0]);
        assert_eq!((values.count, values.sum, values.min, values.max), (14.0, 110.0, 1.0, 10.0));
    }

    #[test]
    fn a_weight_that_is_no_binary_fraction_does_not_shift_a_rank() {
        let mut values = Distribution::default();
        (1..=10).for_each(|value| values.add(f64::from(value), 1.0 / 0.3));
        assert_eq!(values.quantiles([0.5, 0.9, 1.0]), [5.0, 9.0, 10.0]);
    }

    #[test]
    fn a_value_of_many_is_within_one_percent() {
        let mut values = Distribution::default();
        for number in 0..30_001 {
            values.add(f64::from(number - 10_000) * 1.5, 1.0);
        }
        for (part, expected) in [(0.1, -10_500.0), (0.5, 7_500.0), (0.95, 27_750.0)] {
            let [found] = values.quantiles([part]);
            assert!((found - expected).abs() <= f64::abs(expected) * 0.0101, "{part}: {found}, not {expected}");
        }
        assert_eq!((values.min, values.max), (-15_000.0, 30_000.0));
        assert!(values.memory_bytes() < 100_000);
        for extreme in [f64::MAX, f64::MIN, 1e-300, 0.0] {
            values.add(extreme, 1.0);
        }
        assert!(values.quantiles([1.0])[0].is_finite());
    }

    #[test]
    fn distinct_values_are_exact_to_a_thousand_and_then_estimated() {
        let hashes = RandomState::default();
        let mut values = Distinct::default();
        for number in 0..1_000 {
            values.add(&number.to_string(), &hashes);
            values.add(&number.to_string(), &hashes);
        }
        assert_eq!(values.count(), (1_000, false));
        for count in [2_000_u64, 10_000, 100_000] {
            (0..count).for_each(|number| values.add(&number.to_string(), &hashes));
            let (found, is_estimate) = values.count();
            assert!(is_estimate && found.abs_diff(count) < count / 12, "{found}, not {count}");
        }
    }
}
