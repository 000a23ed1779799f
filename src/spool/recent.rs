//! The newest records, which are kept in memory until they are on the disk or settled.

use std::collections::VecDeque;

use bytes::Bytes;

use super::record::{HEAD_BYTES, Position};

/// The records in memory, without gaps. Everything before them is on the disk, or settled.
#[derive(Debug)]
pub(super) struct RecentRecords {
    start: Position,
    end: Position,
    records: VecDeque<RecentRecord>,
    bytes: u64,
}

/// A record in memory. One that is settled while one before it is not has no payload any more.
#[derive(Debug)]
pub(super) struct RecentRecord {
    pub(super) payload: Bytes,
    pub(super) events: u32,
    /// Milliseconds since 1970.
    pub(super) time: u64,
}

impl RecentRecord {
    /// What it takes in memory, and in its file.
    fn bytes(&self) -> u64 {
        (HEAD_BYTES + self.payload.len()) as u64
    }

    /// The record is settled. A payload is never empty.
    pub(super) fn is_settled(&self) -> bool {
        self.payload.is_empty()
    }
}

impl RecentRecords {
    /// None: the next record is at this position.
    pub(super) fn from(position: Position) -> RecentRecords {
        RecentRecords { start: position, end: position, records: VecDeque::new(), bytes: 0 }
    }

    /// Before the first record.
    pub(super) fn start(&self) -> Position {
        self.start
    }

    /// Behind the last record of the spool.
    pub(super) fn end(&self) -> Position {
        self.end
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether a further record with such a payload would make them larger than this. A single one may be.
    pub(super) fn would_exceed(&self, payload: &Bytes, most: u64) -> bool {
        !self.is_empty() && self.bytes + (HEAD_BYTES + payload.len()) as u64 > most
    }

    /// Adds a record at the end.
    pub(super) fn push(&mut self, payload: Bytes, events: u32, time: u64) {
        let record = RecentRecord { payload, events, time };
        self.bytes += record.bytes();
        self.end = Position { number: self.end.number + 1, events: self.end.events + u64::from(events) };
        self.records.push_back(record);
    }

    /// Removes the record that was added last, as if it had never been.
    pub(super) fn pop_newest(&mut self) {
        if let Some(record) = self.records.pop_back() {
            self.bytes -= record.bytes();
            self.end = Position { number: self.end.number - 1, events: self.end.events - u64::from(record.events) };
        }
    }

    /// Removes the records before this number: they are on the disk, or settled.
    pub(super) fn forget_until(&mut self, number: u64) {
        while self.start.number < number
            && let Some(record) = self.records.pop_front()
        {
            self.bytes -= record.bytes();
            let Position { number, events } = self.start;
            self.start = Position { number: number + 1, events: events + u64::from(record.events) };
        }
    }

    /// The oldest record.
    pub(super) fn oldest(&self) -> Option<&RecentRecord> {
        self.records.front()
    }

    /// The record with this number.
    pub(super) fn get(&self, number: u64) -> Option<&RecentRecord> {
        let index = number.checked_sub(self.start.number)?;
        self.records.get(usize::try_from(index).ok()?)
    }

    /// All records, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &RecentRecord> {
        self.records.iter()
    }

    /// The record with this number is settled: its payload is not needed any more.
    pub(super) fn settle(&mut self, number: u64) {
        let Some(index) = number.checked_sub(self.start.number) else { return };
        if let Some(record) = usize::try_from(index).ok().and_then(|index| self.records.get_mut(index)) {
            self.bytes -= record.payload.len() as u64;
            record.payload = Bytes::new();
        }
    }

    /// Changes when the oldest record was appended.
    #[cfg(test)]
    pub(super) fn set_oldest_time(&mut self, change: impl FnOnce(u64) -> u64) {
        let oldest = &mut self.records[0];
        oldest.time = change(oldest.time);
    }
}
