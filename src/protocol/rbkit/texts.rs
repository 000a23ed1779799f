//! Texts that repeat (classes, files, functions): each is written into a batch once.

use std::borrow::Cow;

use tributary_codec::text::repair;
use tributary_event::{BatchBuilder, Interned, Text};

/// Slots of the cache. Each holds one text.
const SLOTS: usize = 256;
/// A longer text is not cached.
const MAX_TEXT_BYTES: usize = 128;

/// A cache of recent texts of a connection.
#[derive(Debug, Default)]
pub(super) struct TextCache {
    /// By [`slot`]; empty until the first text.
    cached: Vec<Cached>,
    bytes: usize,
}

#[derive(Clone, Debug, Default)]
struct Cached {
    text: Box<str>,
    /// Its place in the current batch.
    interned: Interned,
}

impl TextCache {
    /// Writes a text of the peer into the batch. Agents send C strings, so none contains a NUL. Text that is not UTF-8 is
    /// repaired, and `repaired` is set.
    pub(super) fn push(&mut self, batch: &mut BatchBuilder, bytes: &[u8], repaired: &mut bool) -> Text {
        if let Some(cached) = self.cached.get_mut(slot(bytes))
            && cached.text.as_bytes() == bytes
        {
            return batch.intern(&mut cached.interned, &cached.text);
        }
        self.push_uncached(batch, bytes, repaired)
    }

    /// Its memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes + self.cached.capacity() * size_of::<Cached>()
    }

    #[cold]
    fn push_uncached(&mut self, batch: &mut BatchBuilder, bytes: &[u8], repaired: &mut bool) -> Text {
        let (text, is_repaired) = repair(bytes);
        *repaired |= is_repaired;
        let text = match text {
            Cow::Borrowed(text) if text.len() <= MAX_TEXT_BYTES => text,
            other => return batch.push_text(&other),
        };
        if self.cached.is_empty() {
            self.cached = vec![Cached::default(); SLOTS];
        }
        let cached = &mut self.cached[slot(bytes)];
        self.bytes = self.bytes + text.len() - cached.text.len();
        *cached = Cached { text: text.into(), interned: Interned::default() };
        batch.intern(&mut cached.interned, text)
    }
}

/// The slot of a text. Two texts with the same slot replace each other, which costs a copy each time.
fn slot(bytes: &[u8]) -> usize {
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
    use std::sync::Arc;
    use tributary_event::Origin;

    #[test]
    fn a_text_is_written_once_unless_it_is_repaired_or_long() {
        let mut batch = BatchBuilder::new(Arc::new(Origin::new("rbkit", "r".into(), "peer".into(), 1)));
        let (mut texts, mut repaired) = (TextCache::default(), false);
        let mut same = |bytes: &[u8], repaired: &mut bool| {
            let [one, two] = [0, 1].map(|_| format!("{:?}", texts.push(&mut batch, bytes, repaired)));
            one == two
        };
        for text in ["String", "RubyVM::InstructionSequence", "RubyVM::InstructionSequences", "ninechars", ""] {
            assert!(same(text.as_bytes(), &mut repaired), "{text}");
        }
        assert!(!same(&[b'x'; MAX_TEXT_BYTES + 1], &mut repaired) && same(&[b'x'; MAX_TEXT_BYTES], &mut repaired));
        assert!(!repaired);
        assert!(!same(b"\xff", &mut repaired));
        assert!(repaired);
        // A text that replaces another is not mistaken for it.
        for number in 0..4 * SLOTS {
            let text = format!("Class{number}");
            assert!(same(text.as_bytes(), &mut repaired));
        }
        let max = SLOTS * (MAX_TEXT_BYTES + size_of::<Cached>());
        assert!(texts.bytes <= 9 * SLOTS + MAX_TEXT_BYTES && texts.memory_bytes() <= max);
    }
}
