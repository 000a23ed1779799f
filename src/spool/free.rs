//! What a spool removes from the disk: segments that are settled, what is settled of other segments, and what is dropped.

use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::directory::UNFINISHED;
use super::reader::{ReadStep, Reader};
use super::record::Position;
use super::segment::{Appending, HEADER, HEADER_BYTES, Segment, SegmentName, sync_data};
use super::{Dropped, REMOVED_PART, Spool};

impl Spool {
    /// Saves the cursor and removes segments that are settled, wherever they are. The one that is written stays while it is short,
    /// unless the disk or the spool is full.
    ///
    /// # Errors
    /// The system's. The next call tries again.
    pub fn tidy(&mut self) -> io::Result<()> {
        self.save_and_remove(self.is_short)
    }

    /// The disk or the spool is full: removes segments as soon as they are settled.
    ///
    /// # Errors
    /// As for [`Spool::tidy`].
    pub(super) fn remove_at_once(&mut self) -> io::Result<()> {
        let is_any_settled = (0..self.segments.len()).any(|index| self.is_settled(index));
        if is_any_settled { self.save_and_remove(true) } else { Ok(()) }
    }

    /// Settled records stay settled after a loss of power: the cursor is saved before their segments are removed. On a full disk
    /// it may need their space. If the daemon is killed then before it is saved, the next start counts these records as damaged;
    /// but nothing would be removed otherwise.
    fn save_and_remove(&mut self, is_space_needed: bool) -> io::Result<()> {
        match self.save_cursor() {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                self.remove_settled(true);
                self.save_cursor()
            }
            Err(error) => Err(error),
            Ok(()) => {
                self.remove_settled(is_space_needed);
                Ok(())
            }
        }
    }

    /// Drops the records of the oldest segment that has some which are not taken; returns them. `None`: all that are on the
    /// disk are taken. What is taken and not settled stays, also on the disk.
    ///
    /// # Errors
    /// The system's: what is settled cannot be removed. Nothing is dropped then.
    pub fn drop_oldest(&mut self) -> io::Result<Option<Dropped>> {
        self.free()?;
        let start = self.record_reader.next();
        if start.number >= self.written.number {
            return Ok(None);
        }
        let following = self.segments.partition_point(|segment| segment.name.start.number <= start.number);
        let end = self.segments.get(following).map_or(self.written, |next| next.name.start);
        let events = self.unsettled.settle_rest(start, end);
        (start.number..end.number).for_each(|number| self.recent.settle(number));
        self.record_reader.continue_at(end);
        // If these fail, the next call reports it.
        let _ = self.cursor.note(self.saved());
        let _ = self.free();
        Ok(Some(Dropped { numbers: start.number..end.number, events }))
    }

    /// The disk or the spool is full: removes segments that are settled, and writes the rest of those again that are
    /// mostly settled.
    /// Returns whether that has freed some space.
    ///
    /// # Errors
    /// The system's: the cursor cannot be saved, so nothing is removed.
    pub(super) fn free(&mut self) -> io::Result<bool> {
        if !(0..self.segments.len()).any(|index| self.is_settled(index) || self.is_mostly_settled(index)) {
            return Ok(false);
        }
        let bytes = |segments: &[Segment]| segments.iter().map(|segment| segment.len).sum::<u64>();
        let before = bytes(self.segments.make_contiguous());
        self.save_and_remove(true)?;
        if let Some(last) = self.segments.len().checked_sub(1)
            && self.is_mostly_settled(last)
            && self.sync_written().is_ok()
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
                if name.start.number > self.record_reader.next().number {
                    // Nothing behind it is taken.
                    return;
                }
                index += 1;
                continue;
            }
            if is_last {
                self.close_writer();
            }
            self.segments.remove(index);
            self.remove(name);
        }
    }

    /// The records of a segment.
    fn range(&self, index: usize) -> Range<Position> {
        let end = self.segments.get(index + 1).map_or(self.written, |next| next.name.start);
        self.segments[index].name.start..end
    }

    fn is_settled(&self, index: usize) -> bool {
        self.unsettled.are_settled(&self.range(index))
    }

    /// Whether all records of a segment are taken, and those that are not settled have at most half of its bytes.
    fn is_mostly_settled(&self, index: usize) -> bool {
        let range = self.range(index);
        if range.end.number > self.record_reader.next().number || self.must_rewrite && index + 1 == self.segments.len()
        {
            return false;
        }
        let unsettled: u64 = self.unsettled.unsettled(&range).map(|(_, bytes)| bytes).sum();
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
        let unsettled: Vec<u64> = self.unsettled.unsettled(&self.range(index)).map(|(start, _)| start.number).collect();
        let copied = copy_records(&path, name, &unsettled, &temporary);
        let renamed = copied.and_then(|len| fs::rename(&temporary, &path).map(|()| len));
        let len = renamed.inspect_err(|_| {
            // What is left is removed at the next start.
            let _ = fs::remove_file(&temporary);
        })?;
        self.record_reader.close(name);
        self.is_directory_unsynced = true;
        self.segments[index].len = len;
        Ok(())
    }
}

/// Copies the records of a segment with these numbers, in order, to a new file, and forces it to the disk; returns its length.
///
/// # Errors
/// The system's, or a record is damaged. The file may exist nevertheless.
fn copy_records(from: &Path, name: SegmentName, numbers: &[u64], to: &Path) -> io::Result<u64> {
    let mut reader = Reader::open(from, name)?;
    let (bytes, mut len) = (reader.rest().1 + HEADER_BYTES, HEADER_BYTES);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    file.write_all_at(HEADER, 0)?;
    for number in numbers {
        reader.skip_to(*number)?;
        let head = loop {
            match reader.next(None, bytes)? {
                ReadStep::Record(head) if head.position.number == *number => break head,
                // Behind a gap.
                ReadStep::Record(head) if head.position.number < *number => {}
                ReadStep::Damaged(damage) if damage.end.number <= *number => {}
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, format!("record {number} is damaged"))),
            }
        };
        Appending { file: &file, at: len }.write_all_vectored(&head.encode(name.salt), &reader.take_payload())?;
        len += head.record_bytes();
    }
    sync_data(&file)?;
    Ok(len)
}
