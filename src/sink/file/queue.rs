//! Encoded records on their way to a file.

use crate::event::EventView;
use crate::sink::encode::Encoder;

/// Records waiting to be written, with their boundaries, so that no cut ever goes through one.
#[derive(Debug, Default)]
pub(super) struct Queue {
    bytes: Vec<u8>,
    /// Where each record ends in `bytes`, ascending.
    ends: Vec<usize>,
    /// Bytes and records at the front that are written already.
    done_bytes: usize,
    done_records: usize,
}

impl Queue {
    /// Encodes an event to the end; answers how many bytes that made.
    pub(super) fn push(&mut self, encoder: &mut Encoder, event: EventView<'_>) -> usize {
        let start = self.bytes.len();
        encoder.encode(event, &mut self.bytes);
        let end = self.bytes.len();
        if end > start {
            self.ends.push(end);
        }
        end - start
    }

    /// Whether everything is written.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// What is not written yet.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.done_bytes..]
    }

    /// Length of as many whole records at the front as fit in `limit` bytes; 0 when not even the first does.
    pub(super) fn whole_within(&self, limit: usize) -> usize {
        let fitting = self.waiting_ends().partition_point(|end| end - self.done_bytes <= limit);
        fitting.checked_sub(1).map_or(0, |last| self.waiting_ends()[last] - self.done_bytes)
    }

    /// Length of the first record; 0 when there is none.
    pub(super) fn first(&self) -> usize {
        self.waiting_ends().first().map_or(0, |end| end - self.done_bytes)
    }

    /// The first `bytes` bytes are written. They end where a record does.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.done_bytes += bytes;
        self.done_records = self.ends.partition_point(|end| *end <= self.done_bytes);
        if self.is_empty() {
            self.bytes.clear();
            self.ends.clear();
            self.done_bytes = 0;
            self.done_records = 0;
        }
    }

    /// Keeps this much room for bytes to come; what waits stays.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        self.bytes.shrink_to(bytes);
        self.ends.shrink_to(bytes / 256);
    }

    fn waiting_ends(&self) -> &[usize] {
        &self.ends[self.done_records..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_go_between_records_only() {
        let mut queue = Queue { bytes: b"aa\nbbbb\nc\n".to_vec(), ends: vec![3, 8, 10], ..Queue::default() };
        let cuts: Vec<_> = (0..=11).map(|limit| queue.whole_within(limit)).collect();
        assert_eq!(cuts, [0, 0, 0, 3, 3, 3, 3, 3, 8, 8, 10, 10]);
        queue.advance(3);
        assert_eq!(queue.bytes(), b"bbbb\nc\n");
        assert_eq!(queue.first(), 5);
        assert_eq!([queue.whole_within(4), queue.whole_within(5), queue.whole_within(7)], [0, 5, 7]);
        queue.advance(7);
        assert!(queue.is_empty());
        assert_eq!([queue.first(), queue.whole_within(100)], [0, 0]);
    }
}
