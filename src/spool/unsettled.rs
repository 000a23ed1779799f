//! Records that were taken from a spool, until everything before them is settled.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::SystemTime;

use super::record::Position;

/// The taken records. Settled ones that follow each other are one entry, so there are at most twice as many entries as
/// records being sent, and one more, however long the first of them is not answered.
#[derive(Debug)]
pub(super) struct UnsettledRecords {
    /// In order, from the first that is not settled. What is between two of them is not taken: a process before this one has
    /// settled records behind it.
    entries: VecDeque<Taken>,
    /// Behind the last record before which everything is settled.
    acknowledged: Position,
    /// Of the records behind that: how many and how many events are settled.
    settled_early: (u64, u64),
}

#[derive(Debug)]
struct Taken {
    start: Position,
    end: Position,
    /// When it was appended. `None`: damaged or dropped.
    time: Option<SystemTime>,
    /// What it takes in its file.
    bytes: u64,
    is_settled: bool,
}

impl Taken {
    fn records(&self) -> u64 {
        self.end.number - self.start.number
    }

    fn events(&self) -> u64 {
        self.end.events - self.start.events
    }
}

impl UnsettledRecords {
    /// Everything before this position is settled, and of what is behind it these records, which are in order. Nothing else is
    /// taken.
    pub(super) fn from(acknowledged: Position, settled: &[Range<Position>]) -> UnsettledRecords {
        let mut new = UnsettledRecords { entries: VecDeque::new(), acknowledged, settled_early: (0, 0) };
        for Range { start, end } in settled {
            let start = (*start).max(new.acknowledged);
            if start.number < end.number {
                new.push(start, *end, None, 0);
                new.settle(start.number);
            }
        }
        new
    }

    /// The records from `start` to `end` were taken; they have `bytes` in their file.
    pub(super) fn push(&mut self, start: Position, end: Position, time: Option<SystemTime>, bytes: u64) {
        let index = self.entries.partition_point(|taken| taken.start.number < start.number);
        self.entries.insert(index, Taken { start, end, time, bytes, is_settled: false });
    }

    /// Settles all records from `start` to `end` that are not taken; returns how many events they have.
    pub(super) fn settle_rest(&mut self, start: Position, end: Position) -> u64 {
        let (mut at, mut events) = (start.max(self.acknowledged), 0);
        while at.number < end.number {
            let following = self.entries.iter().find(|taken| taken.end.number > at.number);
            let until = following.map_or(end, |taken| taken.start.min(end));
            let behind = following.map_or(end, |taken| taken.end);
            if at.number < until.number {
                events += until.events - at.events;
                self.push(at, until, None, 0);
                self.settle(at.number);
            }
            at = behind;
        }
        events
    }

    /// The records that begin with this number are settled.
    pub(super) fn settle(&mut self, number: u64) {
        let Ok(index) = self.entries.binary_search_by_key(&number, |taken| taken.start.number) else { return };
        let taken = &mut self.entries[index];
        if taken.is_settled {
            return;
        }
        taken.is_settled = true;
        self.settled_early.0 += taken.records();
        self.settled_early.1 += taken.events();
        self.merge_with_next(index);
        if index > 0 {
            self.merge_with_next(index - 1);
        }
        if let Some(first) = self.entries.front()
            && first.is_settled
            && first.start.number == self.acknowledged.number
        {
            self.acknowledged = first.end;
            self.settled_early.0 -= first.records();
            self.settled_early.1 -= first.events();
            self.entries.pop_front();
        }
    }

    /// Makes two entries one if both are settled and the second one follows immediately.
    fn merge_with_next(&mut self, index: usize) {
        let (Some(one), Some(next)) = (self.entries.get(index), self.entries.get(index + 1)) else { return };
        if one.is_settled && next.is_settled && one.end.number == next.start.number {
            let end = next.end;
            self.entries[index].end = end;
            self.entries.remove(index + 1);
        }
    }

    /// Everything that is not settled counts as not taken.
    pub(super) fn clear(&mut self) {
        self.entries.retain(|taken| taken.is_settled);
    }

    /// Behind the last record before which everything is settled.
    pub(super) fn acknowledged(&self) -> Position {
        self.acknowledged
    }

    /// Of the records behind that: how many and how many events are settled.
    pub(super) fn settled_early(&self) -> (u64, u64) {
        self.settled_early
    }

    /// The same records, in order.
    pub(super) fn settled(&self) -> Vec<Range<Position>> {
        self.entries.iter().filter(|taken| taken.is_settled).map(|taken| taken.start..taken.end).collect()
    }

    /// Whether all records of this range are settled.
    pub(super) fn are_settled(&self, range: &Range<Position>) -> bool {
        let Range { start, end } = range;
        let has_range =
            |taken: &Taken| taken.is_settled && taken.start.number <= start.number && end.number <= taken.end.number;
        end.number <= self.acknowledged.number || self.entries.iter().any(has_range)
    }

    /// The records of this range that are taken and not settled: where each begins, and its bytes in the file.
    pub(super) fn unsettled(&self, range: &Range<Position>) -> impl Iterator<Item = (Position, u64)> {
        let numbers = range.start.number..range.end.number;
        let is_in_range = move |taken: &&Taken| !taken.is_settled && numbers.contains(&taken.start.number);
        self.entries.iter().filter(is_in_range).map(|taken| (taken.start, taken.bytes))
    }

    /// When the oldest record that is not settled was appended.
    pub(super) fn oldest(&self) -> Option<SystemTime> {
        self.entries.iter().filter(|taken| !taken.is_settled).find_map(|taken| taken.time)
    }

    /// The number of entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
