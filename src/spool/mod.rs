//! Layer 2: the spool, a queue of requests on disk for a sink whose destination can be away.
//!
//! A record is one request as it is sent, with its number of events. Records are appended to segments, synced
//! on demand, read in order, and removed when the destination has acknowledged them. What was acknowledged since the
//! cursor was last saved can be sent again after a kill: delivery is at least once.
//!
//! A spool starts with any content of its directory. A record that was not completely written is at the end of a segment
//! and was never confirmed, so it is ignored; a damaged one is copied to `damaged/`, and its events are counted exactly.
//! A segment of a newer version and a cursor that cannot be read are moved to `aside/`. Other files are left alone.
//!
//! A [`Snapshot`] is the same directory as another process reads it, while a daemon may be writing.

mod cursor;
mod directory;
mod finding;
mod free;
mod open;
mod reader;
mod record;
mod retry;
mod segment;
#[cfg(test)]
mod settled_tests;
mod snapshot;
#[cfg(test)]
mod snapshot_tests;
mod state;
mod taken;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use cursor::{Cursor, Saved};
pub use finding::Finding;
pub use reader::Damage;
pub use record::Position;
pub use retry::retry_refused;
use segment::{HEADER_BYTES, Name, Segment, Writer};
pub use snapshot::{DropError, Kept, Refused, Snapshot, drop_waiting, is_spool, kept, refused, used_by};
pub use state::{AppendError, Dropped, UsedBy, Waiting};
use taken::TakenRecords;
use walk::Walk;
pub use walk::{Item, Record};

/// When more than this is appended and not synced, it is synced. It is kept in memory until then.
pub const MAX_UNSYNCED_BYTES: u64 = 8 * 1024 * 1024;
/// A segment whose records are all acknowledged is removed when it has reached this part of its full length.
const REMOVED_PART: u64 = 4;

/// How much a spool may keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// All segments together, in bytes.
    pub max_bytes: u64,
    /// One segment, in bytes. Only a single larger record makes a segment longer.
    pub segment_bytes: u64,
    /// The file system keeps this much free space, in bytes.
    pub min_free_bytes: u64,
}

/// A spool that this process writes.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    limits: Limits,
    /// Locked as long as it is open.
    _lock: File,
    cursor: Cursor,
    /// In order. The last one is the writer's, if there is a writer.
    segments: VecDeque<Segment>,
    writer: Option<Writer>,
    last_serial: u32,
    /// Behind the last record that is on the disk, with the name of its file, or settled with all before it.
    synced: Position,
    /// The records behind that, for the case that a sync fails.
    unsynced: VecDeque<Unsynced>,
    unsynced_bytes: u64,
    /// The unsynced records are to be written to a new segment, because a sync has failed.
    must_rewrite: bool,
    /// Names in the directory are not on the disk.
    is_directory_unsynced: bool,
    /// Behind the last record.
    end: Position,
    /// At the next record to be taken.
    walk: Walk,
    /// Records that are taken and not acknowledged.
    taken: TakenRecords,
    /// What the operator has removed since the last start.
    dropped: Waiting,
}

#[derive(Debug)]
struct Unsynced {
    payload: Bytes,
    events: u32,
    time: u64,
}

impl Unsynced {
    /// What it takes in its file.
    fn bytes(&self) -> u64 {
        (record::HEAD_BYTES + self.payload.len()) as u64
    }
}

impl Spool {
    /// Appends a request with this many events. It survives a kill of the daemon from here on, and a loss of power from the
    /// next [`Spool::sync`] on.
    ///
    /// # Errors
    /// Nothing was appended, and why.
    pub fn append(&mut self, payload: Bytes, events: u32) -> Result<(), AppendError> {
        let record_bytes = record::HEAD_BYTES as u64 + payload.len() as u64;
        while let Err(error) = self.require_room(record_bytes) {
            let has_freed = matches!(error, AppendError::Full(_)) && self.free().unwrap_or(false);
            if !has_freed {
                return Err(error);
            }
        }
        let segment_len = self.writer.as_ref().map_or(0, Writer::len);
        let is_segment_full = segment_len > HEADER_BYTES && segment_len + record_bytes > self.limits.segment_bytes;
        self.forget_settled();
        let is_much_unsynced = self.unsynced_bytes + record_bytes > MAX_UNSYNCED_BYTES;
        if is_segment_full && self.unsynced.is_empty() && !self.must_rewrite {
            // After a loss of power, records of this segment may be missing before those of the next one: they are settled.
            self.save_cursor().map_err(|error| AppendError::Io(self.directory.clone(), error))?;
        } else if is_segment_full || is_much_unsynced || self.must_rewrite {
            self.sync().map_err(|(path, error)| AppendError::Io(path, error))?;
        }
        if is_segment_full {
            self.writer = None;
        }
        let time = now();
        self.write(&payload, events, time).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => AppendError::Full(error.to_string()),
            _ => AppendError::Io(self.directory.clone(), error),
        })?;
        let record = Unsynced { payload, events, time };
        self.unsynced_bytes += record.bytes();
        self.unsynced.push_back(record);
        Ok(())
    }

    /// Forces everything that was appended to the disk. A segment that cannot be synced is given up: what it has since its
    /// last sync is appended to a new one, from memory.
    ///
    /// # Errors
    /// The system's, with the path. What was appended since the last sync is not confirmed, and stays appended.
    pub fn sync(&mut self) -> Result<(), (PathBuf, io::Error)> {
        if let Some(writer) = &mut self.writer
            && !self.must_rewrite
            && let Err(error) = writer.sync()
        {
            let path = self.directory.join(writer.name.file_name());
            tracing::warn!(path = %path.display(), %error, "cannot sync a segment; its records go to a new one");
            self.must_rewrite = true;
        }
        if self.must_rewrite {
            self.rewrite().map_err(|error| (self.directory.clone(), error))?;
        }
        if self.is_directory_unsynced {
            directory::sync(&self.directory).map_err(|error| (self.directory.clone(), error))?;
            self.is_directory_unsynced = false;
        }
        self.forget_unsynced();
        Ok(())
    }

    /// The same as [`Spool::sync`], if a record has been waiting for so long, neither synced nor settled.
    ///
    /// # Errors
    /// As for [`Spool::sync`].
    pub fn sync_waiting(&mut self, longest: Duration) -> Result<(), (PathBuf, io::Error)> {
        self.forget_settled();
        let recent = now().saturating_sub(longest.as_millis() as u64)..=now();
        let is_due = self.unsynced.front().is_some_and(|oldest| !recent.contains(&oldest.time));
        if is_due || self.must_rewrite { self.sync() } else { Ok(()) }
    }

    /// Records that are settled, with all before them, need no sync: the destination has accepted them, or has refused them and
    /// `refused/` has them. The cursor is saved before the next segment begins.
    fn forget_settled(&mut self) {
        let settled = self.taken.acknowledged().number;
        while self.synced.number < settled
            && let Some(record) = self.unsynced.pop_front()
        {
            self.unsynced_bytes -= record.bytes();
            self.synced.number += 1;
            self.synced.events += u64::from(record.events);
        }
    }

    /// The next record, or `None` when all were taken. Records that cannot be read are settled, and what is left of them is
    /// copied.
    ///
    /// # Errors
    /// The system's. The same call can succeed later.
    pub fn take(&mut self) -> io::Result<Option<Item>> {
        if let Some(record) = self.unsynced_record(self.walk.next()) {
            self.walk.pass(record.next());
            self.taken.push(record.position, record.next(), Some(record.time), record.bytes());
            return Ok(Some(Item::Record(record)));
        }
        // Until they are written again, unsynced records cannot be read.
        let end = if self.must_rewrite { self.synced } else { self.end };
        let item = self.walk.step(&self.segments, Some(end))?;
        match &item {
            Some(Item::Record(record)) => {
                self.taken.push(record.position, record.next(), Some(record.time), record.bytes());
            }
            Some(Item::Damaged(damage)) => {
                directory::copy_damaged(&self.directory, damage);
                self.taken.push(damage.start, damage.end, None, 0);
                self.taken.settle(damage.start.number);
            }
            None => {}
        }
        Ok(item)
    }

    /// The record at this position if it is not synced: then it is in memory, and is not read.
    fn unsynced_record(&self, position: Position) -> Option<Record> {
        let index = position.number.checked_sub(self.synced.number)?;
        let Unsynced { payload, events, time } = self.unsynced.get(usize::try_from(index).ok()?)?;
        // Older segments are synced.
        let segment = self.segments.back().filter(|_| !self.must_rewrite)?;
        Some(Record {
            position,
            id: segment.name.record_id(position),
            events: *events,
            time: UNIX_EPOCH + Duration::from_millis(*time),
            payload: payload.clone(),
        })
    }

    /// What the operator has removed between the last start and this one.
    pub fn dropped(&self) -> Waiting {
        self.dropped
    }

    /// When the oldest record that waits was appended, if it was taken.
    pub fn oldest(&self) -> Option<SystemTime> {
        self.taken.oldest()
    }

    /// The record with this number is settled: the destination has acknowledged it, or it was refused for good. It is not
    /// taken again after a kill. A loss of power can forget what was settled since the last [`Spool::tidy`].
    pub fn acknowledge(&mut self, number: u64) {
        self.taken.settle(number);
        // If this fails, the next call or tidy writes it, and tidy reports why it cannot.
        let _ = self.cursor.note(self.saved());
    }

    /// Everything that was taken and is not acknowledged is taken again.
    pub fn take_again(&mut self) {
        self.taken.clear();
        self.walk = Walk::from(self.directory.clone(), self.taken.acknowledged(), self.taken.settled());
    }

    /// What is settled stays settled after a loss of power.
    fn save_cursor(&mut self) -> io::Result<()> {
        self.cursor.save(self.saved())
    }

    fn saved(&self) -> Saved {
        let taken = &self.taken;
        Saved { acknowledged: taken.acknowledged(), settled: taken.settled(), synced: self.synced }
    }

    /// Keeps a request that the destination has refused for good in `refused/`, on the disk; returns its path, or `None` when
    /// that is full. The file has a line of JSON with the reason, and then the request.
    ///
    /// # Errors
    /// The system's.
    pub fn keep_refused(&self, id: &str, events: u32, why: &str, payload: &[u8]) -> io::Result<Option<PathBuf>> {
        directory::keep_refused(&self.directory, id, events, why, payload)
    }

    /// The next refused request that an operator wants to be sent again: to be appended and then [removed](Spool::forget_retried), or
    /// [put back](Spool::put_back).
    ///
    /// # Errors
    /// The system's.
    pub fn take_retried(&self) -> io::Result<Option<Refused>> {
        retry::take(&self.directory)
    }

    /// A request that was to be sent again is appended.
    ///
    /// # Errors
    /// The system's: the next start appends it again.
    pub fn forget_retried(&self, request: &Refused) -> io::Result<()> {
        fs::remove_file(&request.path)?;
        directory::sync(&self.directory.join(directory::RETRY))
    }

    /// A request that was to be sent again cannot be appended now.
    ///
    /// # Errors
    /// The system's.
    pub fn put_back(&self, request: &Refused) -> io::Result<()> {
        retry::put_back(request)
    }

    /// The number of the last record; 0: none.
    pub fn last_number(&self) -> u64 {
        self.end.number - 1
    }

    /// What waits.
    pub fn waiting(&self) -> Waiting {
        let ((records, events), acknowledged) = (self.taken.settled_early(), self.taken.acknowledged());
        Waiting {
            records: self.end.number - acknowledged.number - records,
            events: self.end.events - acknowledged.events - events,
            bytes: self.segments.iter().map(|segment| segment.len).sum(),
        }
    }

    fn require_room(&self, record_bytes: u64) -> Result<(), AppendError> {
        let Limits { max_bytes, min_free_bytes, .. } = self.limits;
        let needed = record_bytes + HEADER_BYTES;
        if self.waiting().bytes + needed > max_bytes {
            return Err(AppendError::Full(format!("max_bytes = {max_bytes} is reached")));
        }
        if min_free_bytes > 0 {
            let free = directory::free_bytes(&self.directory)
                .map_err(|error| AppendError::Io(self.directory.clone(), error))?;
            if free < min_free_bytes.saturating_add(needed) {
                let why = format!("its file system has {free} bytes free, min_free_bytes = {min_free_bytes}");
                return Err(AppendError::Full(why));
            }
        }
        Ok(())
    }

    /// Appends to the writer's segment, or to a new one.
    fn write(&mut self, payload: &[u8], events: u32, time: u64) -> io::Result<()> {
        if self.writer.is_none() {
            let name = self.new_name(self.end);
            let path = self.directory.join(name.file_name());
            let writer = Writer::create(&path, name).inspect_err(|_| self.remove(name))?;
            self.segments.push_back(Segment { name, len: writer.len() });
            self.writer = Some(writer);
        }
        if let (Some(writer), Some(segment)) = (&mut self.writer, self.segments.back_mut()) {
            segment.len += writer.append(payload, events, time)?;
            self.end = writer.end();
        }
        Ok(())
    }

    /// Nothing is left that could have to be written again.
    fn forget_unsynced(&mut self) {
        self.synced = self.end;
        self.unsynced.clear();
        self.unsynced_bytes = 0;
        self.must_rewrite = false;
    }

    /// Writes the unsynced records to a new segment, which takes the place of those records only when it is synced.
    fn rewrite(&mut self) -> io::Result<()> {
        // Settled records of the old segment are in no other one, and a loss of power can remove them.
        self.save_cursor()?;
        let name = self.new_name(self.synced);
        let temporary = self.directory.join(name.file_name() + directory::UNFINISHED);
        let written = Writer::create(&temporary, name).and_then(|mut writer| {
            for record in &self.unsynced {
                writer.append(&record.payload, record.events, record.time)?;
            }
            writer.sync()?;
            fs::rename(&temporary, self.directory.join(name.file_name()))?;
            Ok(writer)
        });
        let writer = written.inspect_err(|_| {
            // What is left is removed at the next start.
            let _ = fs::remove_file(&temporary);
        })?;
        // Segments that have no other record.
        while self.segments.back().is_some_and(|last| last.name.start == name.start)
            && let Some(last) = self.segments.pop_back()
        {
            self.remove(last.name);
        }
        self.segments.push_back(Segment { name, len: writer.len() });
        self.writer = Some(writer);
        // What was read of the old segment is in the new one.
        self.walk.continue_at(self.walk.next());
        Ok(())
    }

    /// The name of a new segment. Its serial is used up.
    fn new_name(&mut self, start: Position) -> Name {
        self.last_serial += 1;
        self.is_directory_unsynced = true;
        Name { serial: self.last_serial, start, salt: directory::random() }
    }

    /// Removes the file of a segment. A file that cannot be removed is found and removed at the next start.
    fn remove(&mut self, name: Name) {
        self.walk.close(name);
        let path = self.directory.join(name.file_name());
        self.is_directory_unsynced = true;
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove a segment of the spool");
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
