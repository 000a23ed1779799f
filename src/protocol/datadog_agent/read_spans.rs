//! Spans that were read when their body was checked: those of most bodies need not be read again to be written.

use super::span::{Entry, WireSpan};

/// The most spans of a body that are kept, and the most entries of all of them.
const MAX_SPANS: usize = 512;
const MAX_ENTRIES: usize = 4096;
/// At most one span is kept for each 64 bytes of a body, and one entry for each 4, so that a small body takes little memory.
const SPAN_BYTES: usize = 64;
const ENTRY_BYTES: usize = 4;

/// The first spans of a body, in its order. Those with links or events are not among them.
#[derive(Debug, Default)]
pub(super) struct ReadSpans {
    spans: Vec<ReadSpan>,
    /// The entries of all, one span after the other.
    entries: Vec<Entry>,
    /// The next one that [`ReadSpans::take`] returns, and its first entry.
    next: usize,
    next_entry: usize,
    max_spans: usize,
    max_entries: usize,
}

#[derive(Debug)]
struct ReadSpan {
    start: usize,
    end: usize,
    /// Its entries end here.
    entries_end: usize,
    /// The span without entries.
    span: WireSpan,
}

impl ReadSpans {
    /// None yet, of a body of this many bytes.
    pub(super) fn of_body(bytes: usize) -> ReadSpans {
        let (max_spans, max_entries) = (MAX_SPANS.min(bytes / SPAN_BYTES), MAX_ENTRIES.min(bytes / ENTRY_BYTES));
        ReadSpans { max_spans, max_entries, ..ReadSpans::default() }
    }

    /// Keeps a span that begins and ends at these offsets, if there is capacity for it. Takes its fields, and leaves its entries.
    pub(super) fn keep(&mut self, start: usize, end: usize, span: &mut WireSpan) {
        let is_simple = span.links.is_empty() && span.events.is_empty();
        let has_capacity =
            self.spans.len() < self.max_spans && self.entries.len() + span.entries.len() <= self.max_entries;
        if !is_simple || !has_capacity {
            return;
        }
        self.entries.extend_from_slice(&span.entries);
        let entries = std::mem::take(&mut span.entries);
        let span = std::mem::replace(span, WireSpan { entries, ..WireSpan::default() });
        self.spans.push(ReadSpan { start, end, entries_end: self.entries.len(), span });
    }

    /// The span that begins at this offset, if it is kept; spans are taken in the order of the body. Returns where it ends.
    pub(super) fn take(&mut self, start: usize, span: &mut WireSpan) -> Option<usize> {
        while self.spans.get(self.next)?.start < start {
            self.next_entry = self.spans[self.next].entries_end;
            self.next += 1;
        }
        let kept = self.spans.get_mut(self.next).filter(|kept| kept.start == start)?;
        let mut entries = std::mem::take(&mut span.entries);
        entries.clear();
        entries.extend_from_slice(&self.entries[self.next_entry..kept.entries_end]);
        *span = WireSpan { entries, ..std::mem::take(&mut kept.span) };
        self.next_entry = kept.entries_end;
        self.next += 1;
        Some(kept.end)
    }
}
