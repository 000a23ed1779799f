//! What a spool removes from the disk: segments that are settled, what is settled of other segments, and what is dropped.

use std::fs;
use std::io;
use std::ops::Range;

use super::directory::UNFINISHED;
use super::record::Position;
use super::segment::{HEADER_BYTES, Segment, copy_records};
use super::{Dropped, REMOVED_PART, Spool};

impl Spool {
    /// Saves the cursor and removes segments that are settled, wherever they are. The one that is written stays while it is short.
    ///
    /// # Errors
    /// The system's. The next call tries again.
    pub fn tidy(&mut self) -> io::Result<()> {
        self.save_cursor()?;
        self.remove_settled(false);
        Ok(())
    }

    /// Drops the records of the oldest segment that has some which are not taken; returns them. `None`: all are taken. What is
    /// taken and not settled stays, also on the disk.
    ///
    /// # Errors
    /// The system's: what is settled cannot be removed. Nothing is dropped then.
    pub fn drop_oldest(&mut self) -> io::Result<Option<Dropped>> {
        self.free()?;
        let start = self.walk.next();
        if start.number >= self.end.number {
            return Ok(None);
        }
        let following = self.segments.partition_point(|segment| segment.name.start.number <= start.number);
        let end = self.segments.get(following).map_or(self.end, |next| next.name.start);
        let events = self.taken.settle_rest(start, end);
        self.walk.continue_at(end);
        // If these fail, the next call reports it.
        let _ = self.cursor.note(self.saved());
        let _ = self.free();
        Ok(Some(Dropped { numbers: start.number..end.number, events }))
    }

    /// The disk or the spool is full: removes segments that are settled, and writes those again of which little is not settled.
    /// Returns whether that has freed some space.
    ///
    /// # Errors
    /// The system's: the cursor cannot be saved, so nothing is removed.
    pub(super) fn free(&mut self) -> io::Result<bool> {
        if !(0..self.segments.len()).any(|index| self.is_settled(index) || self.is_mostly_settled(index)) {
            return Ok(false);
        }
        // Settled records stay settled after a loss of power.
        self.save_cursor()?;
        let bytes = |segments: &[Segment]| segments.iter().map(|segment| segment.len).sum::<u64>();
        let before = bytes(self.segments.make_contiguous());
        self.remove_settled(true);
        if let Some(last) = self.segments.len().checked_sub(1)
            && self.is_mostly_settled(last)
            && self.sync().is_ok()
        {
            self.writer = None;
        }
        for index in 0..self.segments.len() {
            if self.is_mostly_settled(index)
                && let Err(error) = self.remove_settled_of(index)
            {
                let path = self.directory.join(self.segments[index].name.file_name());
                tracing::debug!(path = %path.display(), %error, "cannot write the rest of a segment again");
            }
        }
        Ok(bytes(self.segments.make_contiguous()) < before)
    }

    /// Removes segments whose records are all settled. The cursor is saved.
    fn remove_settled(&mut self, is_space_needed: bool) {
        let mut index = 0;
        while let Some(Segment { name, len }) = self.segments.get(index).copied() {
            let is_last = index + 1 == self.segments.len();
            let is_short = len < self.limits.segment_bytes / REMOVED_PART;
            let is_kept = is_last && self.writer.is_some() && is_short && !is_space_needed;
            if is_kept || !self.is_settled(index) {
                if name.start.number > self.walk.next().number {
                    // Nothing behind it is taken.
                    return;
                }
                index += 1;
                continue;
            }
            if is_last {
                self.writer = None;
                self.forget_unsynced();
            }
            self.segments.remove(index);
            self.remove(name);
        }
    }

    /// The records of a segment.
    fn range(&self, index: usize) -> Range<Position> {
        let end = self.segments.get(index + 1).map_or(self.end, |next| next.name.start);
        self.segments[index].name.start..end
    }

    fn is_settled(&self, index: usize) -> bool {
        self.taken.are_settled(&self.range(index))
    }

    /// Whether all records of a segment are taken, and those that are not settled have at most half of its bytes.
    fn is_mostly_settled(&self, index: usize) -> bool {
        let range = self.range(index);
        if range.end.number > self.walk.next().number || self.must_rewrite && index + 1 == self.segments.len() {
            return false;
        }
        let unsettled: u64 = self.taken.unsettled(&range).map(|(_, bytes)| bytes).sum();
        2 * (HEADER_BYTES + unsettled) <= self.segments[index].len
    }

    /// Writes the records of a segment that are not settled to a file that takes its place. They keep their numbers and ids. A
    /// reader finds the next one behind a gap.
    fn remove_settled_of(&mut self, index: usize) -> io::Result<()> {
        let is_written = index + 1 == self.segments.len() && self.writer.is_some();
        if is_written {
            return Ok(());
        }
        let name = self.segments[index].name;
        let path = self.directory.join(name.file_name());
        let temporary = self.directory.join(name.file_name() + UNFINISHED);
        let unsettled: Vec<u64> = self.taken.unsettled(&self.range(index)).map(|(start, _)| start.number).collect();
        let copied = copy_records(&path, name, &unsettled, &temporary);
        let renamed = copied.and_then(|len| fs::rename(&temporary, &path).map(|()| len));
        let len = renamed.inspect_err(|_| {
            // What is left is removed at the next start.
            let _ = fs::remove_file(&temporary);
        })?;
        self.walk.close(name);
        self.is_directory_unsynced = true;
        self.segments[index].len = len;
        Ok(())
    }
}
