//! Encoded records that wait to be written.

use tributary_event::EventView;

use super::encode::Encoder;

/// Encoded records with their boundaries, in order. Files take whole records with [`Records::advance`]; streams write
/// any part with `Records::note_written`, which keeps count of the record that is written in part.
#[derive(Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    /// Where each record ends in `bytes`, ascending.
    ends: Vec<usize>,
    /// Bytes and records at the front that are written.
    done_bytes: usize,
    done_records: usize,
    /// Bytes of the first unwritten record that are written. 0 between records.
    partial: usize,
    /// Records written since the beginning.
    written: u64,
}

impl Records {
    /// Encodes an event to the end; returns its length in bytes.
    pub fn push(&mut self, encoder: &mut Encoder, event: EventView<'_>) -> usize {
        self.push_with(|out| encoder.encode(event, out))
    }

    /// Appends what `encode` appends as one record; returns its length in bytes.
    pub(super) fn push_with(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> usize {
        let start = self.bytes.len();
        encode(&mut self.bytes);
        let end = self.bytes.len();
        if end > start {
            self.ends.push(end);
        }
        end - start
    }

    /// Whether everything is written.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// The records that are not completely written, from the beginning of the first.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.done_bytes..]
    }

    /// Length of as many whole records at the front as fit in `limit` bytes; 0 when not even the first fits.
    pub fn whole_within(&self, limit: usize) -> usize {
        let fitting = self.waiting_ends().partition_point(|end| end - self.done_bytes <= limit);
        fitting.checked_sub(1).map_or(0, |last| self.waiting_ends()[last] - self.done_bytes)
    }

    /// Length of the first record; 0 when there is none.
    pub fn first(&self) -> usize {
        self.waiting_ends().first().map_or(0, |end| end - self.done_bytes)
    }

    /// How many of the records at the front end within `bytes` bytes.
    pub fn count_within(&self, bytes: usize) -> usize {
        self.waiting_ends().partition_point(|end| end - self.done_bytes <= bytes)
    }

    /// The bytes of the first `records` records, or of all if there are fewer.
    pub fn bytes_of(&self, records: u64) -> usize {
        let Some(last) = usize::try_from(records).ok().and_then(|records| records.checked_sub(1)) else { return 0 };
        let ends = self.waiting_ends();
        ends.get(last).or(ends.last()).map_or(0, |end| end - self.done_bytes)
    }

    /// The first `bytes` bytes are written. They end where a record ends.
    pub fn advance(&mut self, bytes: usize) {
        self.done_bytes += bytes;
        let done_records = self.ends.partition_point(|end| *end <= self.done_bytes);
        self.written += (done_records - self.done_records) as u64;
        self.done_records = done_records;
        if self.is_empty() {
            self.clear();
        }
    }

    /// Records that are not completely written.
    pub fn waiting(&self) -> u64 {
        self.waiting_ends().len() as u64
    }

    /// Records written since the beginning.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Drops everything that is not written.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        (self.done_bytes, self.done_records, self.partial) = (0, 0, 0);
    }

    /// What a stream has to write next: from the middle of a record when that one is written in part.
    pub(super) fn unwritten(&self) -> &[u8] {
        &self.bytes()[self.partial..]
    }

    /// The first `bytes` bytes of [`Records::unwritten`] are written. They may end inside a record.
    pub(super) fn note_written(&mut self, bytes: usize) {
        let written = self.partial + bytes;
        let whole = self.whole_within(written);
        self.partial = written - whole;
        self.advance(whole);
    }

    /// The missing part of a record that is written in part; empty between records.
    pub(super) fn rest_of_record(&self) -> &[u8] {
        if self.partial == 0 { &[] } else { &self.bytes()[self.partial..self.first()] }
    }

    /// The record that is written in part is written again from its beginning, to another stream.
    pub(super) fn restart_record(&mut self) {
        self.partial = 0;
    }

    /// Keeps this much capacity for bytes to come. Unwritten records stay.
    pub fn shrink_to(&mut self, bytes: usize) {
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

    fn records(of: &[&str]) -> Records {
        let mut records = Records::default();
        for record in of {
            records.push_with(|out| out.extend_from_slice(record.as_bytes()));
        }
        records
    }

    #[test]
    fn records_are_cut_only_at_their_ends() {
        let mut records = records(&["aa\n", "bbbb\n", "c\n"]);
        let cuts: Vec<_> = (0..=11).map(|limit| records.whole_within(limit)).collect();
        assert_eq!(cuts, [0, 0, 0, 3, 3, 3, 3, 3, 8, 8, 10, 10]);
        assert_eq!([records.count_within(2), records.count_within(3), records.count_within(10)], [0, 1, 3]);
        records.advance(3);
        assert_eq!(records.bytes(), b"bbbb\nc\n");
        assert_eq!(records.first(), 5);
        assert_eq!([records.whole_within(4), records.whole_within(5), records.whole_within(7)], [0, 5, 7]);
        records.advance(7);
        assert!(records.is_empty());
        assert_eq!([records.first(), records.whole_within(100)], [0, 0]);
    }

    #[test]
    fn a_record_written_in_part_is_continued_or_written_again_whole() {
        let mut records = records(&["aa\n", "bbbb\n", "c\n"]);
        assert_eq!(records.rest_of_record(), b"");
        records.note_written(5);
        assert_eq!((records.unwritten(), records.rest_of_record()), (b"bb\nc\n".as_slice(), b"bb\n".as_slice()));
        records.note_written(1);
        assert_eq!(records.rest_of_record(), b"b\n");
        records.restart_record();
        assert_eq!((records.unwritten(), records.rest_of_record()), (b"bbbb\nc\n".as_slice(), b"".as_slice()));
        records.note_written(5);
        assert_eq!((records.unwritten(), records.rest_of_record()), (b"c\n".as_slice(), b"".as_slice()));
        assert_eq!(records.written(), 2);
        records.note_written(2);
        assert!(records.is_empty() && records.unwritten().is_empty());
        assert_eq!(records.written(), 3);
    }
}
