//! The upper halves of the ids of traces, by their lower halves: chunks of a trace that are sent apart do not all have it.

use std::sync::{Mutex, PoisonError};

use tributary_codec::lru::Lru;

/// The traces of a listener whose ids have 128 bits; the one unused for longest is forgotten first.
#[derive(Debug)]
pub(super) struct TraceIds {
    known: Mutex<Lru<u64, u64>>,
    limit: usize,
}

impl TraceIds {
    pub(super) fn new(limit: usize) -> TraceIds {
        TraceIds { known: Mutex::default(), limit }
    }

    /// The whole id. An upper half that a chunk has is remembered; one that it lacks is the one that is remembered, or 0.
    pub(super) fn whole(&self, low: u64, high: Option<u64>) -> u128 {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let high = match high {
            Some(0) => 0,
            Some(high) => {
                if self.limit > 0 {
                    known.insert(low, high);
                    if known.len() > self.limit {
                        known.pop_oldest();
                    }
                }
                high
            }
            None => known.get(&low).copied().unwrap_or(0),
        };
        u128::from(high) << 64 | u128::from(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_half_of_one_chunk_is_that_of_the_others_as_long_as_it_is_remembered() {
        let ids = TraceIds::new(2);
        assert_eq!(ids.whole(1, None), 1);
        assert_eq!(ids.whole(1, Some(7)), 7 << 64 | 1);
        assert_eq!(ids.whole(1, None), 7 << 64 | 1);
        assert_eq!((ids.whole(2, Some(8)), ids.whole(3, Some(9))), (8 << 64 | 2, 9 << 64 | 3));
        assert_eq!(ids.whole(1, None), 1, "it was unused for longest");
    }
}
