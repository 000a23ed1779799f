//! Records that were taken from a spool, until everything before them is settled.

use std::collections::VecDeque;
use std::time::SystemTime;

use super::record::Position;

/// The taken records. Settled ones that follow each other are one entry, so there are at most twice as many entries as
/// records being sent, and one more, however long the first of them is not answered.
#[derive(Debug)]
pub(super) struct TakenRecords {
    /// In order, from the first that is not settled, without gaps.
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

impl TakenRecords {
    /// Everything before this position is settled, and nothing behind it is taken.
    pub(super) fn from(acknowledged: Position) -> TakenRecords {
        TakenRecords { entries: VecDeque::new(), acknowledged, settled_early: (0, 0) }
    }

    /// The records from `start` to `end`, which follow the last ones, were taken.
    pub(super) fn push(&mut self, start: Position, end: Position, time: Option<SystemTime>) {
        self.entries.push_back(Taken { start, end, time, is_settled: false });
    }

    /// The records that begin with this number are settled.
    pub(super) fn settle(&mut self, number: u64) {
        let Ok(mut index) = self.entries.binary_search_by_key(&number, |taken| taken.start.number) else { return };
        let taken = &mut self.entries[index];
        if taken.is_settled {
            return;
        }
        taken.is_settled = true;
        self.settled_early.0 += taken.records();
        self.settled_early.1 += taken.events();
        if self.is_settled(index + 1) {
            self.merge_with_next(index);
        }
        if index > 0 && self.is_settled(index - 1) {
            index -= 1;
            self.merge_with_next(index);
        }
        if index == 0
            && let Some(first) = self.entries.pop_front()
        {
            self.acknowledged = first.end;
            self.settled_early.0 -= first.records();
            self.settled_early.1 -= first.events();
        }
    }

    fn is_settled(&self, index: usize) -> bool {
        self.entries.get(index).is_some_and(|taken| taken.is_settled)
    }

    fn merge_with_next(&mut self, index: usize) {
        if let Some(next) = self.entries.remove(index + 1) {
            self.entries[index].end = next.end;
        }
    }

    /// Everything that is not settled in one piece from the beginning counts as not taken.
    pub(super) fn clear(&mut self) {
        *self = TakenRecords::from(self.acknowledged);
    }

    /// Behind the last record before which everything is settled.
    pub(super) fn acknowledged(&self) -> Position {
        self.acknowledged
    }

    /// Of the records behind that: how many and how many events are settled.
    pub(super) fn settled_early(&self) -> (u64, u64) {
        self.settled_early
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
