//! A heap dump. It is generated piece by piece, and twice: once to compute the length of its message, once to send it. So a
//! heap of a million objects needs no more memory than one of a thousand.

use std::io;

use tokio::task::yield_now;

use super::super::rng::Rng;
use super::dialect::RbkitDialect;
use super::program::{CLASSES, FILES};
use super::wire::{PackedValue, dump_head, fields, key, pack};
use tributary_codec::mix::mix;

/// Objects of one piece; and of one event, in the dialects that split dumps.
const PIECE: u64 = 1_000;

/// A heap dump.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedDump {
    pub(super) dialect: RbkitDialect,
    pub(super) seed: u64,
    /// Counted from 1 in each process.
    pub(super) number: u64,
    pub(super) objects: u64,
    /// The objects of the first dump; further ones are leaked.
    base: u64,
    /// Its time, since 1970.
    pub(super) millis: u64,
}

/// The class and place of leaked objects.
const LEAK: (&str, &str, u64) = ("Shop::Session", FILES[1], 57);
/// One object of this many was replaced by another one since the dump before.
const REPLACED: u64 = 25;

impl SimulatedDump {
    /// The dump with this number; the first one has `base` objects.
    pub(super) fn new(dialect: RbkitDialect, seed: u64, number: u64, base: u64, millis: u64) -> SimulatedDump {
        let leaked = base / 50 * number.saturating_sub(1);
        SimulatedDump { dialect, seed, number, objects: (base + leaked).min(u64::from(u32::MAX)), base, millis }
    }

    /// Its elements of a collection.
    pub(super) fn elements(self) -> usize {
        if self.is_split() { self.objects.div_ceil(PIECE) as usize } else { 1 }
    }

    /// Events that the collector writes for it: one for each object, and one for the dump.
    pub(super) fn events(self) -> u64 {
        self.objects + 1
    }

    /// The number of its pieces.
    pub(super) fn pieces(self) -> u64 {
        self.objects.div_ceil(PIECE).max(1)
    }

    /// Bytes of all pieces.
    pub(super) async fn length(self) -> io::Result<u64> {
        let (mut length, mut piece) = (0, Vec::new());
        for number in 0..self.pieces() {
            self.piece(number, &mut piece)?;
            length += piece.len() as u64;
            yield_now().await;
        }
        Ok(length)
    }

    /// Replaces `out` with a piece. A piece is the same each time.
    pub(super) fn piece(self, number: u64, out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        let objects = number * PIECE..self.objects.min((number + 1) * PIECE);
        if self.is_split() && !objects.is_empty() {
            let length = (objects.end - objects.start) as usize;
            *out = dump_head(self.dialect, self.millis, Some((self.number, self.objects)), length)?;
        } else if !self.is_split() && number == 0 {
            *out = dump_head(self.dialect, self.millis, None, self.objects as usize)?;
        }
        objects.into_iter().try_for_each(|object| pack(self.dialect, &self.object(object), out))
    }

    fn is_split(self) -> bool {
        self.dialect != RbkitDialect::V0110
    }

    fn object(self, number: u64) -> PackedValue {
        let is_replaced = mix(mix(self.number) ^ number).is_multiple_of(REPLACED);
        let mut rng = Rng::new(self.seed, mix(if is_replaced { self.number } else { 0 }) ^ number);
        let reference = |_| {
            let other = rng.below(self.objects + self.objects / 6 + 1);
            self.id(other).into()
        };
        let references = PackedValue::Array((0..[0, 0, 1, 1, 2, 3, 5][number as usize % 7]).map(reference).collect());
        // The first classes have the most objects.
        let classes = CLASSES.len() as u64;
        let class = rng.below(classes).min(rng.below(classes)).min(rng.below(classes));
        let class = if rng.one_in(40) { None } else { Some(CLASSES[class as usize]) };
        let place = rng.one_in(33).then(|| (*rng.pick(&FILES), 12 + 7 * rng.below(30)));
        let is_leaked = number >= self.base;
        let class = if is_leaked { Some(LEAK.0) } else { class };
        let place = if is_leaked { Some((LEAK.1, LEAK.2)) } else { place };
        let size = Some(40 + 8 * rng.below(30)).filter(|_| !rng.one_in(20));
        fields([
            (key::OBJECT_ID, self.id(number).into()),
            (key::CLASS_NAME, class.into()),
            (key::REFERENCES, references),
            (key::FILE, place.map(|(file, _)| file).into()),
            (key::LINE, place.map(|(_, line)| line).into()),
            (key::SIZE, size.into()),
        ])
    }

    /// The id of an object. One in seven referenced objects has a number after the last one: it is not in the dump.
    fn id(self, number: u64) -> u64 {
        (0x7f00_0000_0000 >> 1) + 20 * number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_object_is_in_one_piece_and_the_length_is_computed_before() {
        for dialect in RbkitDialect::ALL {
            for objects in [0, 1, 999, 1_000, 1_001, 2_500] {
                let dump = SimulatedDump::new(dialect, 1, 1, objects, 1_795_175_552_670);
                let mut all = Vec::new();
                let mut piece = Vec::new();
                for number in 0..dump.pieces() {
                    dump.piece(number, &mut piece).expect("writing to memory does not fail");
                    all.extend_from_slice(&piece);
                }
                assert_eq!(dump.length().await.expect("it can be packed"), all.len() as u64);
                let key = [0x86, key::OBJECT_ID as u8];
                let found = all.windows(2).filter(|pair| *pair == key).count() as u64;
                assert!(found >= objects && found <= objects + 3, "{found} of {objects}");
                let split = if dialect == RbkitDialect::V0110 { 1 } else { objects.div_ceil(1_000) as usize };
                assert_eq!(dump.elements(), split);
            }
        }
    }
}
