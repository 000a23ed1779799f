//! Where texts of a body that is written with a table stand in the batch: spans name the same strings again and again.

use tributary_event::{Interned, Text};

use super::span::BodyPart;

/// The number of texts that are remembered, a power of two.
const SLOTS: usize = 512;

/// What was done to a text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TextMarks {
    pub(super) is_repaired: bool,
    pub(super) is_cut: bool,
}

/// A text of the body, in the last batch that has it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CachedText {
    pub(super) place: BodyPart,
    pub(super) text: Interned,
    pub(super) marks: TextMarks,
}

/// The texts that were written last. Empty: the body has no table.
#[derive(Debug, Default)]
pub(super) struct TextCache {
    slots: Vec<CachedText>,
}

impl TextCache {
    /// For a body with a table of strings.
    pub(super) fn with_table() -> TextCache {
        TextCache { slots: vec![CachedText::default(); SLOTS] }
    }

    /// The place of a text in the cache. `None`: the body has no table.
    #[inline]
    pub(super) fn slot(&mut self, place: BodyPart) -> Option<&mut CachedText> {
        // Fibonacci hashing of where it ends: texts of a table have different ends.
        let number = (place.end().wrapping_mul(0x9E37_79B9) >> 16) as usize % SLOTS;
        self.slots.get_mut(number)
    }

    /// Where a text stands in this batch, and what was done to it.
    #[inline]
    pub(super) fn find(
        &mut self,
        place: BodyPart,
        stands_at: impl Fn(&Interned) -> Option<Text>,
    ) -> Option<(Text, TextMarks)> {
        let known = self.slot(place)?;
        if known.place != place {
            return None;
        }
        Some((stands_at(&known.text)?, known.marks))
    }
}
