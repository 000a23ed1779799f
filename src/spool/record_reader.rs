//! Reading the records of a spool in order, through all its segments.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::reader::{Damage, ReadStep, Reader};
use super::record::{HEAD_BYTES, Position};
use super::segment::{Segment, SegmentName, record_id};

/// A record, or what was lost in its place.
#[derive(Debug)]
pub enum SpoolItem {
    /// A record.
    Record(SpoolRecord),
    /// Records that cannot be read.
    Damaged(Damage),
}

/// A record that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpoolRecord {
    /// Where it is in the spool.
    pub position: Position,
    /// The same whenever this record is read, and different for every other record of any spool.
    pub id: String,
    /// Its number of events.
    pub events: u32,
    /// When it was appended.
    pub time: SystemTime,
    /// The request. Empty: the record was settled before it was written.
    pub payload: Bytes,
}

impl SpoolRecord {
    /// What it takes in its file.
    pub(super) fn bytes(&self) -> u64 {
        (HEAD_BYTES + self.payload.len()) as u64
    }

    /// The position behind it.
    pub(super) fn next(&self) -> Position {
        Position { number: self.position.number + 1, events: self.position.events + u64::from(self.events) }
    }
}

/// A place in a spool.
#[derive(Debug)]
pub(super) struct RecordReader {
    directory: PathBuf,
    /// The next record.
    next: Position,
    /// Records behind it that are passed over, in order.
    settled: VecDeque<Range<Position>>,
    reader: Option<Reader>,
}

impl RecordReader {
    /// One that begins at a record, and passes over these, which are in order.
    pub(super) fn from(directory: PathBuf, next: Position, settled: Vec<Range<Position>>) -> RecordReader {
        let mut new = RecordReader { directory, next, settled: settled.into(), reader: None };
        new.pass(next);
        new
    }

    /// The next record's position.
    pub(super) fn next(&self) -> Position {
        self.next
    }

    /// Passes a record that is known without being read, up to the position behind it.
    pub(super) fn pass(&mut self, next: Position) {
        self.next = next;
        while let Some(first) = self.settled.front()
            && first.start.number <= self.next.number
        {
            self.next = self.next.max(first.end);
            self.settled.pop_front();
        }
    }

    /// Continues at another record behind the last one, or in other segments.
    pub(super) fn continue_at(&mut self, next: Position) {
        self.pass(next);
        self.reader = None;
    }

    /// Closes the file of this segment if it is open: the disk keeps the space of a removed file until then.
    pub(super) fn close(&mut self, name: SegmentName) {
        if self.reader.as_ref().is_some_and(|reader| reader.name == name) {
            self.reader = None;
        }
    }

    /// Takes a step in these segments, up to the position `end`, which is behind the last record; without one, up to the last
    /// whole record.
    ///
    /// # Errors
    /// The system's. The same call can succeed later.
    pub(super) fn step(
        &mut self,
        segments: &VecDeque<Segment>,
        end: Option<Position>,
    ) -> io::Result<Option<SpoolItem>> {
        while end.is_none_or(|end| self.next.number < end.number) {
            let following = segments.partition_point(|segment| segment.name.start.number <= self.next.number);
            let segment_end = segments.get(following).map(|segment| segment.name.start);
            let settled = self.settled.front().map(|first| first.start);
            // Damage ends where settled records begin.
            let before_settled = |end: Option<Position>| settled.into_iter().chain(end).min();
            let Some(segment) = following.checked_sub(1).map(|index| &segments[index]) else {
                let directory = self.directory.clone();
                return Ok(before_settled(segment_end.or(end)).map(|end| self.lose(directory, end)));
            };
            let path = self.directory.join(segment.name.file_name());
            let reader = match self.reader.take().filter(|reader| reader.name == segment.name) {
                Some(mut reader) => {
                    reader.note_len(segment.len);
                    reader.skip_to(self.next.number)?;
                    self.reader.insert(reader)
                }
                None => match Reader::open(&path, segment.name) {
                    Ok(mut reader) => {
                        reader.skip_to(self.next.number)?;
                        self.reader.insert(reader)
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        return Ok(before_settled(segment_end.or(end)).map(|end| self.lose(path, end)));
                    }
                    Err(error) => return Err(error),
                },
            };
            match reader.next(before_settled(segment_end), segment.len)? {
                // Damage kept the reader from skipping all records before the first one.
                ReadStep::Record(head) if head.position.number < self.next.number => {}
                ReadStep::Record(head) => {
                    let record = SpoolRecord {
                        position: head.position,
                        id: record_id(reader.name.salt, head.position),
                        events: head.events,
                        time: UNIX_EPOCH + Duration::from_millis(head.time),
                        payload: reader.take_payload().into(),
                    };
                    self.pass(head.next());
                    return Ok(Some(SpoolItem::Record(record)));
                }
                // Settled records, which may be in no file any more.
                ReadStep::Damaged(damage) if damage.end.number <= self.next.number => {}
                ReadStep::Damaged(damage) => {
                    let start = damage.start.max(self.next);
                    if settled == Some(damage.end) {
                        // The reader may be at the end of the file.
                        self.reader = None;
                    }
                    self.pass(damage.end);
                    return Ok(Some(SpoolItem::Damaged(Damage { start, ..damage })));
                }
                ReadStep::End => {
                    // The last segment was shortened, or it ends before the next one begins.
                    let Some(end) = before_settled(segment_end.or(end)) else { return Ok(None) };
                    if self.next.number < end.number {
                        return Ok(Some(self.lose(path, end)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// All records up to `end` are gone.
    fn lose(&mut self, path: PathBuf, end: Position) -> SpoolItem {
        let damage = Damage { path, offset: 0, bytes: 0, start: self.next, end };
        self.continue_at(end);
        SpoolItem::Damaged(damage)
    }
}
