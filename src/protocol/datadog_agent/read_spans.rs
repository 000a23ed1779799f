//! Spans that were read when their body was checked: those of most bodies need not be read again to be written.

use super::span::{Entry, WireSpan};

/// The most spans of a body that are kept, and the most entries of all of them: together less than 64 KiB.
const MAX_SPANS: usize = 128;
const MAX_ENTRIES: usize = 768;
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

    /// Keeps a span that begins and ends at these offsets, if there is capacity for it.
    pub(super) fn keep(&mut self, start: usize, end: usize, span: &WireSpan) {
        let is_simple = span.links.is_empty() && span.events.is_empty();
        let has_capacity =
            self.spans.len() < self.max_spans && self.entries.len() + span.entries.len() <= self.max_entries;
        if !is_simple || !has_capacity {
            return;
        }
        self.entries.extend_from_slice(&span.entries);
        let span = WireSpan { entries: Vec::new(), links: Vec::new(), events: Vec::new(), ..*span };
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

#[cfg(test)]
mod tests {
    use super::super::span::{BodyPart, Sort, WireLink, WireValue};
    use super::*;

    /// A span with this many entries.
    fn span(id: u64, entries: u64) -> WireSpan {
        let entry = |number| Entry { key: BodyPart::default(), value: WireValue::U64(number), sort: Sort::Metric };
        WireSpan { span_id: id, entries: (0..entries).map(entry).collect(), ..WireSpan::default() }
    }

    #[test]
    fn kept_spans_are_found_by_their_place_and_take_no_memory_but_their_own() {
        let mut kept = ReadSpans::of_body(1 << 20);
        let mut last = WireSpan { links: vec![WireLink::default(); 4096], ..span(0, 1) };
        kept.keep(5, 10, &last);
        last.clear();
        for id in 1..2 * MAX_SPANS as u64 {
            last.span_id = id;
            last.entries = span(id, id % 20).entries;
            kept.keep(id as usize * 10, id as usize * 10 + 9, &last);
        }
        assert!(last.links.capacity() >= 4096 && kept.spans.iter().all(|kept| kept.span.links.capacity() == 0));
        assert!(kept.spans.len() <= MAX_SPANS && kept.entries.len() <= MAX_ENTRIES);
        let mut found = WireSpan::default();
        assert_eq!((kept.take(5, &mut found), kept.take(10, &mut found)), (None, Some(19)));
        // Some are not asked for, and some are not kept.
        assert_eq!((kept.take(30, &mut found), found.span_id, found.entries.len()), (Some(39), 3, 3));
        assert_eq!((kept.take(35, &mut found), kept.take(30, &mut found)), (None, None));
        assert_eq!((kept.take(70, &mut found), found.span_id, found.entries.len()), (Some(79), 7, 7));
        assert_eq!(kept.take(usize::MAX, &mut found), None);
    }

    #[test]
    fn a_small_body_keeps_few() {
        let mut kept = ReadSpans::of_body(130);
        (0..5).for_each(|id| kept.keep(id, id + 1, &span(id as u64, 0)));
        assert_eq!(kept.spans.len(), 2);
        let mut kept = ReadSpans::of_body(64);
        kept.keep(0, 60, &span(1, 17));
        assert!(kept.spans.is_empty() && kept.entries.is_empty());
    }
}
