//! Durations in buckets: how many lie near which value. Each power of two has 64 buckets, so that the middle of one differs from its
//! values by at most 0.8 %.

/// The number of buckets of a power of two, as a power of two.
const PARTS: u32 = 6;

/// This many durations are added together.
const LATEST: usize = 128;

/// Durations, by bucket.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// In ascending order.
    octaves: Vec<Octave>,
    /// The buckets of the latest durations, which are not in `octaves` yet: adding each at once would wait for memory each time.
    latest: Vec<u16>,
}

/// The buckets of a power of two that have durations.
#[derive(Clone, Debug)]
struct Octave {
    number: u16,
    /// A bit for each bucket that has any: the counts are in the order of these bits.
    present: u64,
    counts: Vec<u32>,
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

impl Octave {
    fn buckets(&self) -> impl Iterator<Item = (u16, u32)> {
        let Octave { number, present, counts } = self;
        let places = (0..64).filter(move |place| present & 1 << place != 0);
        places.zip(counts).map(move |(place, count)| (number << PARTS | place, *count))
    }
}

impl Latencies {
    /// Adds a duration.
    #[inline]
    pub fn add(&mut self, nanos: u64) {
        if self.latest.len() >= LATEST {
            self.add_latest();
        }
        self.latest.push(bucket_of(nanos));
    }

    fn add_latest(&mut self) {
        let mut latest = std::mem::take(&mut self.latest);
        latest.drain(..).for_each(|bucket| self.add_many(bucket, 1));
        self.latest = latest;
    }

    /// Hardly any duration follows: gives back the memory for the next ones.
    pub(super) fn settle(&mut self) {
        self.add_latest();
        self.latest = Vec::new();
    }

    fn add_many(&mut self, bucket: u16, count: u32) {
        let (number, bit) = (bucket >> PARTS, 1u64 << (bucket & ((1 << PARTS) - 1)));
        // There are few: durations of one operation are alike.
        let at = self.octaves.iter().position(|known| known.number >= number).unwrap_or(self.octaves.len());
        if self.octaves.get(at).is_none_or(|known| known.number > number) {
            self.octaves.insert(at, Octave { number, present: 0, counts: Vec::new() });
        }
        let Octave { present, counts, .. } = &mut self.octaves[at];
        let place = (*present & (bit - 1)).count_ones() as usize;
        if *present & bit == 0 {
            *present |= bit;
            counts.insert(place, 0);
        }
        counts[place] = counts[place].saturating_add(count);
    }

    /// Adds all of another one.
    pub fn merge(&mut self, other: &Latencies) {
        let of_octaves = other.octaves.iter().flat_map(Octave::buckets);
        let latest = other.latest.iter().map(|bucket| (*bucket, 1));
        of_octaves.chain(latest).for_each(|(bucket, count)| self.add_many(bucket, count));
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        let of_octaves = self.octaves.iter().flat_map(Octave::buckets).map(|(_, count)| u64::from(count)).sum::<u64>();
        of_octaves + self.latest.len() as u64
    }

    /// The buckets that have durations, in ascending order.
    pub fn buckets(&self) -> Vec<(u16, u32)> {
        let mut all = self.clone();
        all.add_latest();
        all.octaves.iter().flat_map(Octave::buckets).collect()
    }

    /// The duration that this share of all, from 0 to 1, does not exceed (nearest rank). `None`: there are none.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let rank = ((share * self.count() as f64).ceil() as u64).max(1);
        let (mut below, buckets) = (0, self.buckets());
        let found = buckets.iter().find(|(_, count)| {
            below += u64::from(*count);
            below >= rank
        });
        found.or(buckets.last()).map(|(bucket, _)| middle_of(*bucket))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let counts: usize = self.octaves.iter().map(|octave| octave.counts.capacity()).sum();
        self.octaves.capacity() * size_of::<Octave>() + counts * size_of::<u32>() + self.latest.capacity() * 2
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
}
