//! Finds out whether keys repeat, mostly without comparing them.

use super::mix::STEP;

/// One of 1024 bits for each key. Different keys can have the same bit.
#[derive(Debug)]
pub struct KeyFilter {
    bits: [u64; 16],
    are_distinct: bool,
}

impl KeyFilter {
    /// Of these keys.
    #[inline]
    pub fn of<'a>(keys: impl Iterator<Item = &'a [u8]>) -> KeyFilter {
        let mut filter = KeyFilter { bits: [0; 16], are_distinct: true };
        for key in keys {
            let (word, bit) = place(key);
            filter.are_distinct &= filter.bits[word] & bit == 0;
            filter.bits[word] |= bit;
        }
        filter
    }

    /// `true`: no key repeats. `false`: one may.
    #[inline]
    pub fn are_distinct(&self) -> bool {
        self.are_distinct
    }

    /// `false`: it is none of the keys.
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
    fn keys_that_repeat_are_found_and_most_others_are_not() {
        let keys: Vec<String> = (0..30).map(|number| format!("{}{number}", &"http.request"[..number % 12])).collect();
        let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
        let filter = KeyFilter::of(keys.iter().copied());
        assert!(keys.iter().all(|key| filter.may_have(key) && !KeyFilter::of([*key, key].into_iter()).are_distinct()));
        let pairs = keys.windows(2).filter(|pair| KeyFilter::of(pair.iter().copied()).are_distinct()).count();
        let others = (0..1000).filter(|number| filter.may_have(format!("other.{number}").as_bytes())).count();
        assert!(pairs >= 25 && others < 100, "{pairs} {others}");
        let [none, one, two] = [0, 1, 2].map(|count| KeyFilter::of(std::iter::repeat_n(&b""[..], count)));
        assert!(!none.may_have(b"") && one.may_have(b"") && one.are_distinct() && !two.are_distinct());
    }
}
