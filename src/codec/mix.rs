//! SplitMix64, for ids and choices that are the same on every machine. Nothing secret depends on it.

/// The step between the states of SplitMix64: odd, so that a state takes every value.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads every bit of `z` over the whole word. No two numbers give the same one.
#[inline]
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One step of SplitMix64 from `state`.
#[inline]
pub const fn split_mix(state: u64) -> u64 {
    mix(state.wrapping_add(STEP))
}
