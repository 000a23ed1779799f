//! Durations in buckets: how many lie near which value. Each power of two has 64 buckets, so that the middle of one differs from its
//! values by at most 0.8 %. A bucket that has durations takes a byte or two.

use tributary_event::varint::{push_varint, read_varint};

/// The number of buckets of a power of two, as a power of two.
const PARTS: u32 = 6;

/// At least this many durations are added together.
const LATEST: usize = 64;

/// The number of buckets, those that share a shift together.
const BUCKETS: usize = ((u64::BITS - PARTS + 1) << PARTS) as usize;

/// The greatest number of half a byte. It stands for this number and all greater ones.
const FULL: u64 = 15;

/// Durations, by bucket.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// The buckets that have durations, in ascending order. Each is a byte: the number of empty buckets before it in the upper half,
    /// the count less one in the lower half. After a half that is [`FULL`], the rest of its number follows as a varint.
    counted: Vec<u8>,
    /// The buckets of the latest durations, which are not in `counted` yet.
    latest: Vec<u16>,
}

/// The bucket of a duration. Below 64 ns each value has one.
#[inline]
pub fn bucket_of(nanos: u64) -> u16 {
    let shift = (63 - (nanos | 1).leading_zeros()).saturating_sub(PARTS);
    (u64::from(shift << PARTS) + (nanos >> shift)) as u16
}

/// The least duration of a bucket.
pub fn least_of(bucket: u16) -> u64 {
    let (bucket, parts) = (u64::from(bucket), 1 << PARTS);
    if bucket < 2 * parts {
        return bucket;
    }
    let shift = (bucket >> PARTS) - 1;
    (bucket - (shift << PARTS)) << shift
}

/// The duration in the middle of a bucket.
pub(super) fn middle_of(bucket: u16) -> u64 {
    let least = least_of(bucket);
    least + (least_of(bucket.saturating_add(1)).saturating_sub(least)) / 2
}

impl Latencies {
    /// Those that [`Latencies::counted`] gave.
    pub(super) fn of_counted(counted: &[u8]) -> Latencies {
        Latencies { counted: counted.to_vec(), latest: Vec::new() }
    }

    /// Adds a duration.
    #[inline]
    pub fn add(&mut self, nanos: u64) {
        self.latest.push(bucket_of(nanos));
        if self.latest.len() >= LATEST.max(self.counted.len()) {
            self.count_latest();
        }
    }

    fn count_latest(&mut self) {
        // Counting them takes less time than sorting them.
        let (mut counts, mut has) = ([0u32; BUCKETS], [0u64; BUCKETS / 64]);
        for bucket in self.latest.iter().map(|bucket| usize::from(*bucket)) {
            counts[bucket] += 1;
            has[bucket / 64] |= 1 << (bucket % 64);
        }
        let buckets = has.into_iter().zip((0u16..).step_by(64)).flat_map(|(has, first)| ones(has, first));
        let latest = buckets.map(|bucket| (bucket, counts[usize::from(bucket)].into()));
        self.counted = sum(CountedBuckets::of(&self.counted), latest, self.counted.len() + self.latest.len());
        self.latest.clear();
    }

    /// All of them in as few bytes as possible; hardly any follows.
    pub(super) fn counted(&mut self) -> &[u8] {
        if !self.latest.is_empty() {
            self.count_latest();
        }
        self.latest = Vec::new();
        self.counted.shrink_to_fit();
        &self.counted
    }

    /// Adds all of another one.
    pub fn merge(&mut self, other: &Latencies) {
        let size = self.counted.len() + other.counted.len();
        self.counted = sum(CountedBuckets::of(&self.counted), other.buckets().into_iter(), size);
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        CountedBuckets::of(&self.counted).map(|(_, count)| count).sum::<u64>() + self.latest.len() as u64
    }

    /// The buckets that have durations, in ascending order.
    pub fn buckets(&self) -> Vec<(u16, u64)> {
        let mut all = self.clone();
        CountedBuckets::of(all.counted()).collect()
    }

    /// The duration that this share of all, from 0 to 1, does not exceed (nearest rank). `None`: there are none.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let rank = ((share * self.count() as f64).ceil() as u64).max(1);
        let (mut below, buckets) = (0, self.buckets());
        let found = buckets.iter().find(|(_, count)| {
            below += count;
            below >= rank
        });
        found.or(buckets.last()).map(|(bucket, _)| middle_of(*bucket))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.counted.capacity() + self.latest.capacity() * size_of::<u16>()
    }
}

/// The numbers of the bits that are set, in ascending order; that of the lowest bit is `first`.
fn ones(mut bits: u64, first: u16) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let lowest = (bits != 0).then(|| bits.trailing_zeros() as u16)?;
        bits &= bits - 1;
        Some(first + lowest)
    })
}

/// Reads counted buckets.
struct CountedBuckets<'a> {
    rest: &'a [u8],
    /// The least bucket that the next one can be.
    next: u64,
}

impl CountedBuckets<'_> {
    fn of(rest: &[u8]) -> CountedBuckets<'_> {
        CountedBuckets { rest, next: 0 }
    }

    /// The number of a half of a byte.
    #[inline]
    fn number(&mut self, half: u8) -> Option<u64> {
        if u64::from(half) < FULL {
            return Some(half.into());
        }
        let (more, rest) = read_varint(self.rest)?;
        self.rest = rest;
        Some(FULL + more)
    }
}

impl Iterator for CountedBuckets<'_> {
    type Item = (u16, u64);

    #[inline]
    fn next(&mut self) -> Option<(u16, u64)> {
        let (halves, rest) = self.rest.split_first()?;
        self.rest = rest;
        let bucket = self.next + self.number(halves >> 4)?;
        let count = self.number(halves & 15)? + 1;
        self.next = bucket + 1;
        Some((bucket as u16, count))
    }
}

/// The sum of two lists of buckets, counted, in about this many bytes.
fn sum(a: impl Iterator<Item = (u16, u64)>, b: impl Iterator<Item = (u16, u64)>, size: usize) -> Vec<u8> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    let (mut counted, mut next) = (Vec::with_capacity(size), 0);
    loop {
        let (first, second) = (a.peek().copied(), b.peek().copied());
        let bucket = match (first, second) {
            (Some((first, _)), Some((second, _))) => first.min(second),
            (Some((only, _)), None) | (None, Some((only, _))) => only,
            (None, None) => return counted,
        };
        let of_first = a.next_if(|(known, _)| *known == bucket).map_or(0, |(_, count)| count);
        let count = of_first + b.next_if(|(known, _)| *known == bucket).map_or(0, |(_, count)| count);
        let [distance, more] = [u64::from(bucket) - next, count - 1];
        counted.push((distance.min(FULL) << 4 | more.min(FULL)) as u8);
        for number in [distance, more].into_iter().filter(|number| *number >= FULL) {
            push_varint(&mut counted, number - FULL);
        }
        next = u64::from(bucket) + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_bucket_is_within_one_percent_of_each_of_its_values() {
        let mut value = 1u64;
        let mut last = 0;
        while value < u64::MAX / 2 {
            let bucket = bucket_of(value);
            assert!(bucket >= last && least_of(bucket) <= value, "{value}");
            let error = middle_of(bucket).abs_diff(value) as f64 / value as f64;
            assert!(error <= 0.008 || value < 64 && error == 0.0, "{value}: {error}");
            last = bucket;
            value += 1 + value / 300;
        }
        assert!(least_of(bucket_of(u64::MAX)) > u64::MAX / 2);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let values: Vec<u64> = (0..10_000u64).map(|number| number * number * 97 + 1000).collect();
        let (mut even, mut all) = (Latencies::default(), Latencies::default());
        values.iter().filter(|value| *value % 2 == 0).for_each(|value| even.add(*value));
        values.iter().filter(|value| *value % 2 == 1).for_each(|value| all.add(*value));
        all.merge(&even);
        assert_eq!(all.count(), 10_000);
        for share in [0.0, 0.5, 0.95, 0.99, 1.0] {
            let exact = values[((share * 10_000.0_f64).ceil() as usize).saturating_sub(1)];
            let found = all.quantile(share).unwrap();
            assert!(found.abs_diff(exact) as f64 <= exact as f64 * 0.01, "{share}: {found} {exact}");
        }
        assert_eq!(Latencies::default().quantile(0.5), None);
    }

    #[test]
    fn buckets_and_counts_of_any_size_are_read_back() {
        let mut all = Latencies::default();
        let values = [(0, 1), (1, 15), (2, 16), (17, 17), (60, 300), (1 << 40, 70_000), (u64::MAX, 1)];
        for (value, count) in values {
            (0..count).for_each(|_| all.add(value));
        }
        assert_eq!(all.buckets(), values.map(|(value, count)| (bucket_of(value), count)));
        assert_eq!((all.count(), all.quantile(1.0)), (70_350, Some(middle_of(bucket_of(u64::MAX)))));
        let read = Latencies::of_counted(all.counted());
        assert_eq!((read.buckets(), read.memory_bytes() < 40), (all.buckets(), true));
        all.merge(&read);
        assert_eq!(all.buckets(), values.map(|(value, count)| (bucket_of(value), 2 * count)));
    }

    #[test]
    fn a_bucket_takes_about_a_byte() {
        let mut all = Latencies::default();
        // A thousand durations over four powers of ten.
        (0..1000).for_each(|number| all.add(10_f64.powf(5.0 + f64::from(number * 7919 % 1000) / 250.0) as u64));
        let buckets = all.buckets().len();
        assert!(buckets > 500 && all.counted().len() <= buckets * 5 / 4, "{buckets} {}", all.counted().len());
        assert_eq!(all.memory_bytes(), all.counted().len());
    }
}
