//! Finds out whether keys repeat, mostly without comparing them.

use super::mix::STEP;

/// One of 1024 bits for each key that was added. Different keys can have the same bit.
#[derive(Debug, Default)]
pub struct KeyFilter {
    bits: [u64; 16],
}

impl KeyFilter {
    /// Adds a key. `true`: it was not added before. `false`: it may have been.
    #[inline]
    pub fn add(&mut self, key: &[u8]) -> bool {
        let (word, bit) = place(key);
        let is_new = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        is_new
    }

    /// `false`: the key was not added.
    #[inline]
    pub fn may_have(&self, key: &[u8]) -> bool {
        let (word, bit) = place(key);
        self.bits[word] & bit != 0
    }
}

/// The bit of a key, from its length, its first and its last bytes.
#[inline]
fn place(key: &[u8]) -> (usize, u64) {
    let (first, last) = match (key.first_chunk(), key.last_chunk(), key.first_chunk(), key.last_chunk()) {
        (Some(first), Some(last), ..) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        (.., Some(first), Some(last)) => (u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into()),
        _ => (key.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)), 0),
    };
    let hash = (first ^ last.rotate_left(29)).wrapping_add(key.len() as u64).wrapping_mul(STEP);
    ((hash >> 60) as usize, 1 << (hash >> 54 & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_added_is_found_and_most_others_are_not() {
        let keys: Vec<String> = (0..30).map(|number| format!("{}{number}", &"http.request"[..number % 12])).collect();
        let mut filter = KeyFilter::default();
        let new = keys.iter().filter(|key| filter.add(key.as_bytes())).count();
        assert!(keys.iter().all(|key| filter.may_have(key.as_bytes()) && !filter.add(key.as_bytes())));
        let others = (0..1000).filter(|number| filter.may_have(format!("other.{number}").as_bytes())).count();
        assert!(new >= 25 && others < 100, "{new} {others}");
        assert!(!filter.may_have(b"") && filter.add(b"") && !filter.add(b""));
    }
}
