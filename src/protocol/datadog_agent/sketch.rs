//! Sketches of durations: the protobuf message `DDSketch` of Datadog's sketches, read as the Agent reads it (notes, section 3).

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue, bytes_of, varint_of, zigzag};

// Fields of DDSketch.
const MAPPING: u64 = 1;
const POSITIVE: u64 = 2;
const NEGATIVE: u64 = 3;
const ZERO_COUNT: u64 = 4;
// Fields of IndexMapping.
const GAMMA: u64 = 1;
const INDEX_OFFSET: u64 = 2;
const INTERPOLATION: u64 = 3;
// Fields of Store.
const BIN_COUNTS: u64 = 1;
const CONTIGUOUS_COUNTS: u64 = 2;
const CONTIGUOUS_OFFSET: u64 = 3;

/// How many values lie near which value, in ascending order.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    bins: Vec<(f64, f64)>,
    count: f64,
}

/// From the number of a bin to the value in its middle.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    gamma: f64,
    offset: f64,
    interpolation: u64,
}

impl Sketch {
    /// Reads a sketch. `None`: it is no valid one, or of a mapping that no client uses.
    pub(super) fn read(message: &[u8]) -> Option<Sketch> {
        let mapping = Mapping::read(bytes_of(message, MAPPING))?;
        let mut bins = Vec::new();
        for (index, count) in store(bytes_of(message, NEGATIVE))? {
            bins.push((-mapping.value(index), count));
        }
        let zeros = double(message, ZERO_COUNT)?.unwrap_or(0.0);
        bins.push((0.0, zeros));
        for (index, count) in store(bytes_of(message, POSITIVE))? {
            bins.push((mapping.value(index), count));
        }
        let is_valid = |(value, count): &(f64, f64)| value.is_finite() && count.is_finite() && *count >= 0.0;
        if !bins.iter().all(is_valid) || !is_message(message) {
            return None;
        }
        bins.retain(|(_, count)| *count > 0.0);
        bins.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let count = bins.iter().map(|(_, count)| count).sum();
        Some(Sketch { bins, count })
    }

    /// Whether it has no value.
    pub(super) fn is_empty(&self) -> bool {
        self.bins.is_empty()
    }

    /// The value below which this share of all values lies, from 0 to 1; 1 is the largest.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let rank = share * (self.count - 1.0);
        let mut below = 0.0;
        for (value, count) in &self.bins {
            below += count;
            if below > rank {
                return *value;
            }
        }
        self.bins.last().map_or(0.0, |(value, _)| *value)
    }
}

impl Mapping {
    fn read(message: &[u8]) -> Option<Mapping> {
        let gamma = double(message, GAMMA)?.unwrap_or(0.0);
        let offset = double(message, INDEX_OFFSET)?.unwrap_or(0.0);
        let interpolation = varint_of(message, INTERPOLATION);
        let is_valid = gamma > 1.0 && gamma.is_finite() && offset.is_finite() && is_message(message);
        // Quadratic interpolation (2) exists in the format only.
        (is_valid && [0, 1, 3].contains(&interpolation)).then_some(Mapping { gamma, offset, interpolation })
    }

    /// The value of a bin: the least distance, relative to it, from both of its bounds.
    fn value(self, index: f64) -> f64 {
        let log2 = self.gamma.log2();
        let (bound, base) = match self.interpolation {
            0 => (((index - self.offset) * self.gamma.ln()).exp(), self.gamma),
            1 => (inverse_linear((index - self.offset) * log2), log2.exp()),
            _ => (inverse_cubic((index - self.offset) * log2), (0.7 * log2).exp()),
        };
        bound * (2.0 - 2.0 / (1.0 + base))
    }
}

fn inverse_linear(x: f64) -> f64 {
    let exponent = x.floor();
    exponent.exp2() * (x - exponent + 1.0)
}

/// The inverse of the cubic that stands for the logarithm between two powers of two.
fn inverse_cubic(x: f64) -> f64 {
    const A: f64 = 6.0 / 35.0;
    const B: f64 = -3.0 / 5.0;
    const C: f64 = 10.0 / 7.0;
    let exponent = x.floor();
    let d0 = B * B - 3.0 * A * C;
    let d1 = 2.0 * B * B * B - 9.0 * A * B * C - 27.0 * A * A * (x - exponent);
    let p = ((d1 - (d1 * d1 - 4.0 * d0 * d0 * d0).sqrt()) / 2.0).cbrt();
    exponent.exp2() * (1.0 - (B + p + d0 / p) / (3.0 * A))
}

/// The numbers of bins and their counts, in the order of the message.
fn store(message: &[u8]) -> Option<Vec<(f64, f64)>> {
    let mut bins = Vec::new();
    let mut counts = Vec::new();
    let mut fields = ProtobufFields::of(message);
    for field in fields.by_ref() {
        match (field.number, field.value) {
            (BIN_COUNTS, ProtobufValue::Bytes(entry)) => {
                let index = zigzag(varint_of(entry, 1));
                bins.push((index as f64, double(entry, 2)?.unwrap_or(0.0)));
            }
            (CONTIGUOUS_COUNTS, ProtobufValue::Bytes(packed)) => {
                let (all, rest) = packed.as_chunks::<8>();
                if !rest.is_empty() {
                    return None;
                }
                counts.extend(all.iter().map(|bytes| f64::from_le_bytes(*bytes)));
            }
            (CONTIGUOUS_COUNTS, ProtobufValue::Fixed(bytes)) => {
                counts.push(f64::from_le_bytes(*bytes.first_chunk()?));
            }
            _ => {}
        }
    }
    let first = zigzag(varint_of(message, CONTIGUOUS_OFFSET));
    bins.extend(counts.into_iter().enumerate().map(|(place, count)| (first as f64 + place as f64, count)));
    fields.is_valid().then_some(bins)
}

/// The double of the first field with this number; `Some(None)`: there is none. `None`: it has another type.
fn double(message: &[u8], number: u64) -> Option<Option<f64>> {
    match ProtobufFields::of(message).find(|field| field.number == number).map(|field| field.value) {
        None => Some(None),
        Some(ProtobufValue::Fixed(bytes)) => bytes.first_chunk().map(|bytes| Some(f64::from_le_bytes(*bytes))),
        Some(_) => None,
    }
}

fn is_message(message: &[u8]) -> bool {
    let mut fields = ProtobufFields::of(message);
    fields.by_ref().for_each(drop);
    fields.is_valid()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sketch with bins of these mappings.
    fn sketch(gamma: f64, offset: f64, interpolation: u8, first: i64, counts: &[f64]) -> Vec<u8> {
        let mut mapping = Vec::new();
        mapping.extend([0x09]);
        mapping.extend(gamma.to_le_bytes());
        mapping.extend([0x11]);
        mapping.extend(offset.to_le_bytes());
        mapping.extend([0x18, interpolation]);
        let mut store = vec![0x12, (counts.len() * 8) as u8];
        counts.iter().for_each(|count| store.extend(count.to_le_bytes()));
        store.push(0x18);
        tributary_codec::protobuf::push_varint(&mut store, tributary_codec::protobuf::unsigned(first));
        let mut all = vec![0x0A, mapping.len() as u8];
        all.extend(mapping);
        all.extend([0x12, store.len() as u8]);
        all.extend(store);
        all
    }

    #[test]
    fn values_are_within_the_error_of_their_bin_in_each_mapping() {
        for interpolation in [0u8, 1, 3] {
            let gamma: f64 = 1.02;
            // The bin of 1000 of this mapping.
            let x = match interpolation {
                0 => 1000f64.ln() / gamma.ln(),
                1 => (9.0 + (1000.0 / 512.0 - 1.0)) / gamma.log2(),
                _ => {
                    let s = 1000.0 / 512.0 - 1.0;
                    (9.0 + ((6.0 / 35.0 * s - 3.0 / 5.0) * s + 10.0 / 7.0) * s) / gamma.log2()
                }
            };
            let read = Sketch::read(&sketch(gamma, 0.0, interpolation, x.floor() as i64, &[1.0])).unwrap();
            let found = read.quantile(1.0);
            assert!((found / 1000.0 - 1.0).abs() < 0.03, "{interpolation}: {found}");
        }
    }

    #[test]
    fn quantiles_follow_the_counts() {
        let read = Sketch::read(&sketch(2.0, 0.0, 0, 0, &[50.0, 0.0, 49.0, 1.0])).unwrap();
        let value = |index: i32| 2f64.powi(index) * (2.0 - 2.0 / 3.0);
        for (share, index) in [(0.0, 0), (0.49, 0), (0.6, 2), (0.95, 2), (1.0, 3)] {
            assert!((read.quantile(share) - value(index)).abs() < 1e-9, "{share}");
        }
    }

    #[test]
    fn what_is_no_sketch_is_recognised() {
        let good = sketch(1.02, 0.0, 0, 5, &[1.0]);
        assert!(Sketch::read(&good).is_some());
        for end in 1..good.len() {
            // Between two fields a message may end.
            assert!(Sketch::read(&good[..end]).is_none_or(|sketch| sketch.is_empty()), "{end}");
        }
        for bad in
            [sketch(1.0, 0.0, 0, 0, &[1.0]), sketch(f64::NAN, 0.0, 0, 0, &[1.0]), sketch(1.02, 0.0, 2, 0, &[1.0])]
        {
            assert!(Sketch::read(&bad).is_none());
        }
        assert!(Sketch::read(&sketch(1.02, 0.0, 0, 0, &[-1.0])).is_none());
        assert!(Sketch::read(&sketch(1.02, 0.0, 0, 1 << 40, &[1.0])).is_none(), "infinite");
    }
}
