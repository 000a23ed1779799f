//! Reads the records of one segment in order, and finds the next whole one after damage.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::record::{HEAD_BYTES, MAGIC, Position, RecordHead};
use super::segment::{HEADER_BYTES, SegmentName, read_up_to};

/// How many bytes are read at once when the next whole record is searched.
const SEARCH_BYTES: usize = 64 * 1024;

/// What [`Reader::next`] found.
#[derive(Debug)]
pub(super) enum ReadStep {
    /// A whole record. Its payload is in the reader.
    Record(RecordHead),
    /// Records from `lost.start` up to the reader's new position are not whole.
    Damaged(Damage),
    /// There is no further record.
    End,
}

/// Records that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes were skipped there.
    pub bytes: u64,
    /// The position of the first such record.
    pub start: Position,
    /// The position behind the last.
    pub end: Position,
}

impl Damage {
    /// The number of lost records.
    pub fn records(&self) -> u64 {
        self.end.number - self.start.number
    }

    /// The number of lost events, exactly.
    pub fn events(&self) -> u64 {
        self.end.events - self.start.events
    }
}

/// Reads the records of one segment in order.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) name: SegmentName,
    path: PathBuf,
    file: File,
    /// Nothing is read behind this.
    len: u64,
    /// Where the next record begins.
    offset: u64,
    /// The record that is expected there.
    expected: Position,
    payload: Vec<u8>,
}

impl Reader {
    /// A reader at the first record.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(path: &Path, name: SegmentName) -> io::Result<Reader> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Reader {
            name,
            path: path.to_owned(),
            file,
            len,
            offset: HEADER_BYTES,
            expected: name.start,
            payload: Vec::new(),
        })
    }

    /// The position of the next record.
    pub(super) fn expected(&self) -> Position {
        self.expected
    }

    /// Where the last record ends, and how many bytes follow.
    pub(super) fn rest(&self) -> (u64, u64) {
        (self.offset, self.len.saturating_sub(self.offset))
    }

    /// Moves the payload of the last record out.
    pub(super) fn take_payload(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.payload)
    }

    /// Sets how many bytes of the file can be read.
    pub(super) fn note_len(&mut self, len: u64) {
        self.len = len;
    }

    /// Skips records before `number` by their heads. Stops earlier at a damaged one.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn skip_to(&mut self, number: u64) -> io::Result<()> {
        while self.expected.number < number {
            match self.head_at(self.offset)? {
                Some(head) if head.position == self.expected => self.pass(&head),
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Passes all records by their heads, without reading their payloads.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn skip_all(&mut self) -> io::Result<()> {
        loop {
            self.skip_to(u64::MAX)?;
            if let ReadStep::End = self.next(None, self.len)? {
                return Ok(());
            }
        }
    }

    /// Reads the next record, up to the position `end` of the next segment, if there is one, and within the first `len` bytes.
    ///
    /// # Errors
    /// The system's. The same call can succeed later.
    pub(super) fn next(&mut self, end: Option<Position>, len: u64) -> io::Result<ReadStep> {
        self.len = len;
        if end.is_some_and(|end| self.expected.number >= end.number) {
            return Ok(ReadStep::End);
        }
        let (start, offset) = (self.expected, self.offset);
        let damage = |reader: &Reader, end: Position| {
            let Reader { path, offset: behind, .. } = reader;
            ReadStep::Damaged(Damage { path: path.clone(), offset, bytes: behind - offset, start, end })
        };
        if let Some(head) = self.head_at(self.offset)?
            && head.position == self.expected
        {
            let is_whole = self.read_payload(&head)?;
            self.pass(&head);
            return Ok(if is_whole { ReadStep::Record(head) } else { damage(self, self.expected) });
        }
        // The head is damaged, or the file is torn here.
        match self.search(end)? {
            Some((head, at)) => {
                (self.offset, self.expected) = (at, head.position);
                Ok(damage(self, head.position))
            }
            None => {
                let Some(end) = end else { return Ok(ReadStep::End) };
                (self.offset, self.expected) = (self.len, end);
                Ok(damage(self, end))
            }
        }
    }

    fn pass(&mut self, head: &RecordHead) {
        self.offset += head.record_bytes();
        self.expected = head.next();
    }

    /// The head at an offset, if it is valid and its record ends within the file.
    fn head_at(&self, offset: u64) -> io::Result<Option<RecordHead>> {
        let mut bytes = [0; HEAD_BYTES];
        if offset + HEAD_BYTES as u64 > self.len || read_up_to(&self.file, &mut bytes, offset)? < HEAD_BYTES {
            return Ok(None);
        }
        let head = RecordHead::decode(&bytes, self.name.salt);
        Ok(head.filter(|head| offset + head.record_bytes() <= self.len))
    }

    /// Reads the payload of a record; the file has enough bytes for it. Returns whether it is whole.
    fn read_payload(&mut self, head: &RecordHead) -> io::Result<bool> {
        self.payload.resize(head.length as usize, 0);
        let read = read_up_to(&self.file, &mut self.payload, self.offset + HEAD_BYTES as u64)?;
        Ok(head.is_payload(&self.payload[..read]))
    }

    /// The next valid head from the present offset on whose record is later than the expected one and before `end`.
    fn search(&mut self, end: Option<Position>) -> io::Result<Option<(RecordHead, u64)>> {
        let mut block = vec![0; SEARCH_BYTES];
        let mut at = self.offset;
        while at < self.len {
            let read = read_up_to(&self.file, &mut block, at)?;
            for found in positions_of_magic(&block[..read]) {
                let Some(head) = self.head_at(at + found as u64)? else { continue };
                let is_later = head.position.number > self.expected.number && head.position >= self.expected;
                if is_later && end.is_none_or(|end| head.position.number < end.number && head.position <= end) {
                    return Ok(Some((head, at + found as u64)));
                }
            }
            if read < block.len() {
                break;
            }
            // The next block begins with bytes in which the magic may begin.
            at += (read - (MAGIC.len() - 1)) as u64;
        }
        Ok(None)
    }
}

fn positions_of_magic(block: &[u8]) -> impl Iterator<Item = usize> + '_ {
    block.windows(MAGIC.len()).enumerate().filter(|(_, window)| *window == MAGIC).map(|(at, _)| at)
}
