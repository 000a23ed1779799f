//! The spool, a queue of requests on disk for a sink whose destination can be away.
//!
//! A record is one request as it is sent, with its number of events. It is appended in memory, and taken from there if the
//! destination takes it soon. Otherwise it is written to a segment, and synced on demand. Records are taken in order, and removed
//! when the destination has acknowledged them. What was acknowledged since the cursor was last saved can be sent again after a
//! kill: delivery is at least once.
//!
//! A spool starts with any content of its directory. A record that was not completely written is at the end of a segment
//! and was never confirmed, so it is ignored; a damaged one is copied to `damaged/`, and its events are counted exactly.
//! A segment of a newer version and a cursor that cannot be read are moved to `aside/`. Other files are left alone.
//!
//! A [`Snapshot`] is the same directory as another process reads it, while a daemon may be writing.
#![forbid(unsafe_code)]

mod cursor;
mod directory;
mod free;
mod open;
mod reader;
mod recent;
mod record;
mod record_reader;
mod retry;
mod segment;
#[cfg(test)]
mod settled_tests;
mod snapshot;
#[cfg(test)]
mod snapshot_tests;
mod state;
#[cfg(test)]
mod tests;
mod unsettled;
mod warning;
mod write;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cursor::{Cursor, Saved};
pub use directory::{DiskSpace, disk_space};
pub use reader::Damage;
use recent::RecentRecords;
pub use record::Position;
use record_reader::RecordReader;
pub use record_reader::{SpoolItem, SpoolRecord};
pub use retry::retry_refused;
use segment::{Segment, SegmentName, Writer, record_id};
pub use snapshot::{DropError, FileCount, Refused, Snapshot, drop_waiting, is_spool, kept, refused, used_by};
pub use state::{AppendError, Dropped, SpoolBacklog, UsedBy};
use tributary_system::locked_file::LockedFile;
use unsettled::UnsettledRecords;
pub use warning::SpoolWarning;

/// When more than this is appended and not synced, it is synced. It is kept in memory until then.
pub const MAX_UNSYNCED_BYTES: u64 = 8 * 1024 * 1024;
/// A segment whose records are all acknowledged is removed when it has reached this part of its full length.
const REMOVED_PART: u64 = 4;

/// How much a spool may keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpoolLimits {
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
    limits: SpoolLimits,
    /// Locked as long as it is open.
    _lock: LockedFile,
    cursor: Cursor,
    /// In order. The last one is the writer's, if there is a writer.
    segments: VecDeque<Segment>,
    writer: Option<Writer>,
    last_serial: u32,
    /// Part of the ids and of the checksums of all records that this process appends.
    salt: u64,
    /// Behind the last record that is in a segment.
    written: Position,
    /// The records that are not on the disk, or whose segment has no name there, from the first one that is not settled: they
    /// are taken from memory, and are written again when a sync fails.
    recent: RecentRecords,
    /// The records in memory are to be written to a new segment, because a sync has failed.
    must_rewrite: bool,
    /// Why the last attempt to write or sync has failed, if it has.
    shortage: Option<String>,
    /// The last record was not written because the disk or the spool is full: what is settled is removed at once.
    is_short: bool,
    /// Names in the directory are not on the disk.
    is_directory_unsynced: bool,
    /// At the next record to be taken.
    record_reader: RecordReader,
    /// Records that are taken and not acknowledged.
    unsettled: UnsettledRecords,
    /// What the operator has removed since the last start.
    dropped: SpoolBacklog,
}

impl Spool {
    /// The next record, or `None` when all were taken. Records that cannot be read are settled, and what is left of them is
    /// copied.
    ///
    /// # Errors
    /// The system's. The same call can succeed later.
    pub fn take(&mut self) -> io::Result<Option<SpoolItem>> {
        let position = self.record_reader.next();
        if let Some(recent) = self.recent.get(position.number) {
            let record = SpoolRecord {
                position,
                id: record_id(self.salt, position),
                events: recent.events,
                time: UNIX_EPOCH + Duration::from_millis(recent.time),
                payload: recent.payload.clone(),
            };
            self.record_reader.pass(record.next());
            self.unsettled.push(position, record.next(), Some(record.time), record.bytes());
            return Ok(Some(SpoolItem::Record(record)));
        }
        // What is in memory is not read.
        let item = self.record_reader.step(&self.segments, Some(self.recent.start()))?;
        match &item {
            Some(SpoolItem::Record(record)) => {
                self.unsettled.push(record.position, record.next(), Some(record.time), record.bytes());
            }
            Some(SpoolItem::Damaged(damage)) => {
                directory::copy_damaged(&self.directory, damage);
                self.unsettled.push(damage.start, damage.end, None, 0);
                self.unsettled.settle(damage.start.number);
            }
            None => {}
        }
        Ok(item)
    }

    /// What the operator has removed between the last start and this one.
    pub fn dropped(&self) -> SpoolBacklog {
        self.dropped
    }

    /// When the oldest record that waits was appended, if it was taken.
    pub fn oldest(&self) -> Option<SystemTime> {
        self.unsettled.oldest()
    }

    /// The record with this number is settled: the destination has acknowledged it, or it was refused for good. It is not
    /// taken again after a kill. A loss of power can forget what was settled since the last [`Spool::tidy`].
    pub fn acknowledge(&mut self, number: u64) {
        self.unsettled.settle(number);
        self.recent.settle(number);
        // If this fails, the next call or tidy writes it, and tidy reports why it cannot.
        let _ = self.cursor.note(self.saved());
        if self.is_short {
            // If this fails, tidy reports why.
            let _ = self.remove_at_once();
        }
    }

    /// Everything that was taken and is not acknowledged is taken again.
    pub fn take_again(&mut self) {
        self.unsettled.clear();
        self.record_reader =
            RecordReader::from(self.directory.clone(), self.unsettled.acknowledged(), self.unsettled.settled());
    }

    /// What is settled stays settled after a loss of power.
    fn save_cursor(&mut self) -> io::Result<()> {
        self.cursor.save(self.saved())
    }

    fn saved(&self) -> Saved {
        let taken = &self.unsettled;
        Saved { acknowledged: taken.acknowledged(), settled: taken.settled(), synced: self.recent.start() }
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
        self.recent.end().number - 1
    }

    /// What waits.
    pub fn waiting(&self) -> SpoolBacklog {
        let ((records, events), acknowledged) = (self.unsettled.settled_early(), self.unsettled.acknowledged());
        let end = self.recent.end();
        SpoolBacklog {
            records: end.number - acknowledged.number - records,
            events: end.events - acknowledged.events - events,
            bytes: self.segments.iter().map(|segment| segment.len).sum(),
        }
    }

    /// The last segment is not written any more. Nothing of it could have to be written again.
    fn close_writer(&mut self) {
        self.writer = None;
        self.must_rewrite = false;
        self.recent.forget_until(self.written.number);
    }

    /// Removes the file of a segment. A file that cannot be removed is found and removed at the next start.
    fn remove(&mut self, name: SegmentName) {
        self.record_reader.close(name);
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
