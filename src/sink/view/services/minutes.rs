//! The durations of minutes, in few bytes.

use tributary_event::varint::{push_varint, read_varint, varint_len};

use super::latency::Latencies;

/// The durations of a minute.
#[derive(Clone, Debug, Default)]
pub(super) struct MinuteDurations {
    /// Its number, counted since 1970.
    pub(super) minute: u64,
    /// Their sum in nanoseconds.
    pub(super) nanos: u128,
    pub(super) latencies: Latencies,
}

impl MinuteDurations {
    #[inline]
    pub(super) fn add(&mut self, nanos: u64) {
        self.nanos += u128::from(nanos);
        self.latencies.add(nanos);
    }
}

/// Minutes in ascending order. Each is a row of varints (its number, both halves of its sum, and the length of what follows) and its
/// counted buckets.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredMinutes(Vec<u8>);

impl StoredMinutes {
    /// Appends a minute, if it has durations. It is later than all others.
    pub(super) fn push(&mut self, mut minute: MinuteDurations) {
        let counted = minute.latencies.counted();
        if minute.nanos == 0 && counted.is_empty() {
            return;
        }
        let head = [minute.minute, minute.nanos as u64, (minute.nanos >> 64) as u64, counted.len() as u64];
        self.0.reserve_exact(head.map(varint_len).iter().sum::<usize>() + counted.len());
        head.into_iter().for_each(|number| push_varint(&mut self.0, number));
        self.0.extend_from_slice(counted);
    }

    /// Adds a duration to any minute.
    #[cold]
    pub(super) fn add(&mut self, minute: u64, nanos: u64) {
        let place = self.place_of(minute)..self.place_of(minute + 1);
        let known = ReadMinutes(&self.0[place.clone()]).next();
        let mut known = known.unwrap_or_else(|| MinuteDurations { minute, ..MinuteDurations::default() });
        known.add(nanos);
        let mut changed = StoredMinutes::default();
        changed.push(known);
        self.0.splice(place, changed.0);
    }

    /// Removes the minutes before this one.
    pub(super) fn keep_from(&mut self, minute: u64) {
        self.0.drain(..self.place_of(minute));
        self.0.shrink_to_fit();
    }

    /// Gives up the buckets of the minutes before this one; their sums stay.
    pub(super) fn forget_latencies(&mut self, minute: u64) {
        let mut changed = StoredMinutes::default();
        for old in self.iter().take_while(|old| old.minute < minute) {
            changed.push(MinuteDurations { latencies: Latencies::default(), ..old });
        }
        changed.0.extend_from_slice(&self.0[self.place_of(minute)..]);
        *self = changed;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = MinuteDurations> {
        ReadMinutes(&self.0)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.0.capacity()
    }

    /// The place of the first minute that is not before this one.
    fn place_of(&self, minute: u64) -> usize {
        let mut rest = ReadMinutes(&self.0);
        while read_varint(rest.0).is_some_and(|(first, _)| first < minute) {
            rest.next();
        }
        self.0.len() - rest.0.len()
    }
}

struct ReadMinutes<'a>(&'a [u8]);

impl Iterator for ReadMinutes<'_> {
    type Item = MinuteDurations;

    fn next(&mut self) -> Option<MinuteDurations> {
        let (minute, rest) = read_varint(self.0)?;
        let (low, rest) = read_varint(rest)?;
        let (high, rest) = read_varint(rest)?;
        let (size, rest) = read_varint(rest)?;
        let (counted, rest) = rest.split_at_checked(size as usize)?;
        self.0 = rest;
        let nanos = u128::from(high) << 64 | u128::from(low);
        Some(MinuteDurations { minute, nanos, latencies: Latencies::of_counted(counted) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(minute: u64, nanos: &[u64]) -> MinuteDurations {
        let mut sums = MinuteDurations { minute, ..MinuteDurations::default() };
        nanos.iter().for_each(|nanos| sums.add(*nanos));
        sums
    }

    fn all(stored: &StoredMinutes) -> Vec<(u64, u128, u64)> {
        stored.iter().map(|sums| (sums.minute, sums.nanos, sums.latencies.count())).collect()
    }

    #[test]
    fn durations_are_added_to_any_minute_and_the_oldest_can_go() {
        let mut stored = StoredMinutes::default();
        stored.push(minute(29_900_000, &[u64::MAX, u64::MAX, 5]));
        stored.push(minute(29_900_001, &[]));
        stored.push(minute(29_900_003, &[1_000; 300]));
        let twice = 2 * u128::from(u64::MAX);
        assert_eq!(all(&stored), [(29_900_000, twice + 5, 3), (29_900_003, 300_000, 300)]);
        for (to, nanos) in [(29_900_003, 7), (29_900_002, 8), (29_900_000, 9), (29_900_000, 10), (29_899_999, 11)] {
            stored.add(to, nanos);
        }
        let [oldest, first, second, third] =
            [(29_899_999, 11, 1), (29_900_000, twice + 24, 5), (29_900_002, 8, 1), (29_900_003, 300_007, 301)];
        assert_eq!(all(&stored), [oldest, first, second, third]);
        stored.forget_latencies(29_900_001);
        assert_eq!(all(&stored), [(oldest.0, 11, 0), (first.0, first.1, 0), second, third]);
        stored.keep_from(29_900_002);
        assert_eq!((all(&stored), stored.memory_bytes() < 50), (vec![second, third], true));
        stored.keep_from(u64::MAX);
        assert_eq!((all(&stored), stored.memory_bytes()), (vec![], 0));
    }
}
