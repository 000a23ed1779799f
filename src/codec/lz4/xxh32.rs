//! XXH32, the checksum of LZ4.

/// A checksum in progress.
#[derive(Clone, Debug)]
pub(super) struct Xxh32 {
    lanes: [u32; 4],
    seed: u32,
    /// Bytes of an incomplete stripe.
    rest: [u8; STRIPE],
    total: u64,
}

const STRIPE: usize = 16;
const PRIMES: [u32; 5] = [0x9E37_79B1, 0x85EB_CA77, 0xC2B2_AE3D, 0x27D4_EB2F, 0x1656_67B1];

impl Xxh32 {
    pub(super) fn new(seed: u32) -> Self {
        let [one, two, ..] = PRIMES;
        let lanes = [seed.wrapping_add(one).wrapping_add(two), seed.wrapping_add(two), seed, seed.wrapping_sub(one)];
        Xxh32 { lanes, seed, rest: [0; STRIPE], total: 0 }
    }

    /// The checksum of these bytes.
    pub(super) fn of(bytes: &[u8], seed: u32) -> u32 {
        let mut hash = Xxh32::new(seed);
        hash.update(bytes);
        hash.finish()
    }

    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        let filled = (self.total % STRIPE as u64) as usize;
        self.total += bytes.len() as u64;
        if filled > 0 {
            let more = bytes.len().min(STRIPE - filled);
            self.rest[filled..filled + more].copy_from_slice(&bytes[..more]);
            bytes = &bytes[more..];
            if filled + more < STRIPE {
                return;
            }
            let stripe = self.rest;
            self.stripe(&stripe);
        }
        let mut stripes = bytes.chunks_exact(STRIPE);
        stripes.by_ref().for_each(|stripe| self.stripe(stripe));
        let rest = stripes.remainder();
        self.rest[..rest.len()].copy_from_slice(rest);
    }

    pub(super) fn finish(&self) -> u32 {
        let [one, two, three, four, five] = PRIMES;
        let [a, b, c, d] = self.lanes;
        let mut hash = if self.total < STRIPE as u64 {
            self.seed.wrapping_add(five)
        } else {
            let turned = a.rotate_left(1).wrapping_add(b.rotate_left(7));
            turned.wrapping_add(c.rotate_left(12)).wrapping_add(d.rotate_left(18))
        };
        hash = hash.wrapping_add(self.total as u32);
        let mut words = self.rest[..(self.total % STRIPE as u64) as usize].chunks_exact(4);
        for word in words.by_ref() {
            hash = hash.wrapping_add(word_of(word).wrapping_mul(three)).rotate_left(17).wrapping_mul(four);
        }
        for byte in words.remainder() {
            hash = hash.wrapping_add(u32::from(*byte).wrapping_mul(five)).rotate_left(11).wrapping_mul(one);
        }
        hash = (hash ^ hash >> 15).wrapping_mul(two);
        hash = (hash ^ hash >> 13).wrapping_mul(three);
        hash ^ hash >> 16
    }

    fn stripe(&mut self, stripe: &[u8]) {
        for (lane, word) in self.lanes.iter_mut().zip(stripe.chunks_exact(4)) {
            let sum = lane.wrapping_add(word_of(word).wrapping_mul(PRIMES[1]));
            *lane = sum.rotate_left(13).wrapping_mul(PRIMES[0]);
        }
    }
}

/// A little-endian number of four bytes.
fn word_of(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_texts_have_their_known_checksums_however_they_are_cut() {
        let long = b"Nobody inspects the spammish repetition";
        let known: [(&[u8], u32, u32); 4] =
            [(b"", 0, 0x02CC_5D05), (b"a", 0, 0x550D_7456), (b"abc", 0, 0x32D1_53FF), (long, 0, 0xE229_3B2F)];
        for (text, seed, expected) in known {
            assert_eq!(Xxh32::of(text, seed), expected);
            for cut in 0..text.len() {
                let mut hash = Xxh32::new(seed);
                hash.update(&text[..cut]);
                hash.update(&text[cut..]);
                assert_eq!(hash.finish(), expected, "{cut}");
            }
        }
    }
}
