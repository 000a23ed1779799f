//! Seeded numbers, the same on every machine.

use tributary_codec::mix::{STEP, mix};

/// A splitmix64 generator: one word of state, good enough for invented traffic and for nothing secret.
#[derive(Clone, Debug)]
pub(super) struct Rng {
    state: u64,
}

impl Rng {
    /// The generator of stream number `stream` under `seed`. Streams of one seed have no visible relation.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Rng { state: mix(seed) ^ mix(stream.wrapping_add(1).wrapping_mul(STEP)) }
    }

    /// Any 64 bits.
    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// A number from 0 to `bound` exclusive; 0 if `bound` is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: no division, and a negligible bias.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `many` times, on average.
    pub(super) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// One of `choices`, which are not empty.
    pub(super) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_stream_always_give_the_same_numbers() {
        let numbers = |seed, stream| {
            let mut rng = Rng::new(seed, stream);
            [rng.next(), rng.next(), rng.next()]
        };
        assert_eq!(numbers(7, 0), numbers(7, 0));
        assert_ne!(numbers(7, 0), numbers(7, 1));
        assert_ne!(numbers(7, 0), numbers(8, 0));
        // Fixed values, so that a change that moves every seed is noticed.
        assert_eq!(numbers(0, 0)[0], 12_035_550_249_420_947_055);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut rng = Rng::new(1, 0);
        let mut seen = [0u32; 6];
        for _ in 0..6_000 {
            seen[rng.below(6) as usize] += 1;
        }
        assert!(seen.iter().all(|&times| (800..1_200).contains(&times)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }
}
