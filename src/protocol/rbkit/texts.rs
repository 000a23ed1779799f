//! Texts that come again and again (classes, files, functions): each stands in a batch once.

use std::borrow::Cow;

use crate::codec::text::repair;
use crate::event::{BatchBuilder, Interned, Text};

/// Texts that are remembered, one in each place.
const PLACES: usize = 256;
/// A longer text is not remembered.
const LONGEST: usize = 128;

/// The texts that a connection has brought lately.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// By [`place`]; empty until there is one.
    known: Vec<Known>,
    bytes: usize,
}

#[derive(Clone, Debug, Default)]
struct Known {
    text: Box<str>,
    /// Where it stands in the batch being written.
    memo: Interned,
}

impl Texts {
    /// A text of the peer, in the arena. Agents send C strings, so nothing follows a NUL. One that is not UTF-8 is repaired,
    /// and `repaired` says so.
    pub(super) fn push(&mut self, batch: &mut BatchBuilder, bytes: &[u8], repaired: &mut bool) -> Text {
        if let Some(known) = self.known.get_mut(place(bytes))
            && known.text.as_bytes() == bytes
        {
            return batch.intern(&mut known.memo, &known.text);
        }
        self.push_anew(batch, bytes, repaired)
    }

    /// Memory that they take.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes + self.known.capacity() * size_of::<Known>()
    }

    #[cold]
    fn push_anew(&mut self, batch: &mut BatchBuilder, bytes: &[u8], repaired: &mut bool) -> Text {
        let (text, is_repaired) = repair(bytes);
        *repaired |= is_repaired;
        let text = match text {
            Cow::Borrowed(text) if text.len() <= LONGEST => text,
            other => return batch.push_text(&other),
        };
        if self.known.is_empty() {
            self.known = vec![Known::default(); PLACES];
        }
        let known = &mut self.known[place(bytes)];
        self.bytes = self.bytes + text.len() - known.text.len();
        *known = Known { text: text.into(), memo: Interned::default() };
        batch.intern(&mut known.memo, text)
    }
}

/// Where a text is looked for. Two that are at odds over a place take turns, which costs a copy each time.
fn place(bytes: &[u8]) -> usize {
    let ends = match (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        (Some(first), Some(last)) => u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).rotate_left(29),
        _ => bytes.iter().fold(0, |ends, byte| ends << 8 | u64::from(*byte)),
    };
    let mixed = (ends ^ bytes.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Origin;
    use std::sync::Arc;

    #[test]
    fn a_text_is_written_once_and_one_that_is_repaired_or_long_each_time() {
        let mut batch = BatchBuilder::new(Arc::new(Origin::new("rbkit", "r".into(), "peer".into(), 1)));
        let (mut texts, mut repaired) = (Texts::default(), false);
        let mut same = |bytes: &[u8], repaired: &mut bool| {
            let [one, two] = [0, 1].map(|_| format!("{:?}", texts.push(&mut batch, bytes, repaired)));
            one == two
        };
        for text in ["String", "RubyVM::InstructionSequence", "RubyVM::InstructionSequences", "ninechars", ""] {
            assert!(same(text.as_bytes(), &mut repaired), "{text}");
        }
        assert!(!same(&[b'x'; LONGEST + 1], &mut repaired) && same(&[b'x'; LONGEST], &mut repaired));
        assert!(!repaired);
        assert!(!same(b"\xff", &mut repaired));
        assert!(repaired);
        // What was there before another text took its place is not taken for it.
        for number in 0..4 * PLACES {
            let text = format!("Class{number}");
            assert!(same(text.as_bytes(), &mut repaired));
        }
        let most = PLACES * (LONGEST + size_of::<Known>());
        assert!(texts.bytes <= 9 * PLACES + LONGEST && texts.memory_bytes() <= most);
    }
}
