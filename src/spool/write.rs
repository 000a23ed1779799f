//! Appending to a spool: records are held in memory, written to segments, and synced.

use std::fs;
use std::io;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use super::record::{HEAD_BYTES, Position};
use super::segment::{HEADER_BYTES, Segment, SegmentName, Writer};
use super::{AppendError, Dropped, MAX_UNSYNCED_BYTES, Spool, SpoolLimits, directory, now};

/// The heads of at most this many settled records that no segment has are written before the next record, so that it
/// needs no segment of its own.
const MAX_GAP: u64 = 256;

impl Spool {
    /// Appends a request with this many events, in memory. It is written by [`Spool::write_out`], and by [`Spool::sync_waiting`]
    /// when it is not settled for some time. The payload has at least one byte.
    ///
    /// # Errors
    /// [`MAX_UNSYNCED_BYTES`] are in memory, and the disk does not take them. Nothing was appended.
    pub fn hold(&mut self, payload: Bytes, events: u32) -> Result<(), AppendError> {
        self.forget_settled();
        if self.recent.would_exceed(&payload, MAX_UNSYNCED_BYTES) {
            self.sync()?;
        }
        self.recent.push(payload, events, now());
        Ok(())
    }

    /// Appends a request, and writes it: it survives a kill of the daemon from here on, and a loss of power from the next
    /// [`Spool::sync`] on.
    ///
    /// # Errors
    /// Nothing was appended, and why.
    pub fn append(&mut self, payload: Bytes, events: u32) -> Result<(), AppendError> {
        self.hold(payload, events)?;
        let written = self.write_out();
        if written.is_err() && self.written.number < self.recent.end().number {
            self.recent.pop_newest();
            return written;
        }
        Ok(())
    }

    /// Writes the records that are only in memory. They survive a kill of the daemon from here on.
    ///
    /// # Errors
    /// Not all were written, and why. They stay in memory.
    pub fn write_out(&mut self) -> Result<(), AppendError> {
        let written = self.write_recent();
        self.shortage = written.as_ref().err().map(ToString::to_string);
        written
    }

    fn write_recent(&mut self) -> Result<(), AppendError> {
        self.forget_settled();
        if self.must_rewrite {
            return self.sync_written();
        }
        loop {
            let position = self.next_written();
            let Some(record) = self.recent.get(position.number) else { return Ok(()) };
            let (payload, events, time) = (record.payload.clone(), record.events, record.time);
            self.write(position, &payload, events, time)?;
        }
    }

    /// Forces everything that was appended to the disk. A segment that cannot be synced is given up: what it has since its
    /// last sync is appended to a new one, from memory.
    ///
    /// # Errors
    /// What was appended since the last sync is not confirmed, and stays appended.
    pub fn sync(&mut self) -> Result<(), AppendError> {
        // Everything in memory is written again.
        let written = if self.must_rewrite { Ok(()) } else { self.write_out() };
        let synced = self.sync_written().and(written);
        self.shortage = synced.as_ref().err().map(ToString::to_string);
        synced
    }

    /// Forces everything to the disk that was written.
    pub(super) fn sync_written(&mut self) -> Result<(), AppendError> {
        if let Some(writer) = &mut self.writer
            && !self.must_rewrite
            && let Err(error) = writer.sync()
        {
            let path = self.directory.join(writer.name.file_name());
            tracing::warn!(path = %path.display(), %error, "cannot sync a segment; its records go to a new one");
            self.must_rewrite = true;
        }
        if self.must_rewrite {
            self.rewrite().map_err(|error| self.failure(error))?;
        }
        if self.is_directory_unsynced {
            directory::sync(&self.directory).map_err(|error| self.failure(error))?;
            self.is_directory_unsynced = false;
        }
        self.recent.forget_until(self.written.number);
        Ok(())
    }

    /// The same as [`Spool::sync`], if a record has been waiting for `longest`, neither synced nor settled.
    ///
    /// # Errors
    /// As for [`Spool::sync`].
    pub fn sync_waiting(&mut self, longest: Duration) -> Result<(), AppendError> {
        self.forget_settled();
        let recent = now().saturating_sub(longest.as_millis() as u64)..=now();
        let is_due = self.recent.oldest().is_some_and(|oldest| !recent.contains(&oldest.time));
        if is_due || self.must_rewrite {
            return self.sync();
        }
        if self.shortage.is_some() && self.recent.is_empty() {
            self.shortage = self.require_space(0).err().map(|error| error.to_string());
        }
        Ok(())
    }

    /// Whether each of these records is settled or in a segment; with `is_synced`, settled or on the disk.
    pub fn has_kept(&self, numbers: Range<u64>, is_synced: bool) -> bool {
        let safe = if is_synced { self.recent.start() } else { self.next_written() };
        let mut rest = numbers.start.max(safe.number)..numbers.end;
        rest.all(|number| self.recent.get(number).is_none_or(|record| record.is_settled()))
    }

    /// Why the last attempt to write or sync has failed, if it has.
    pub fn shortage(&self) -> Option<&str> {
        self.shortage.as_deref()
    }

    /// The records that are only in memory: the end of this process loses those that are not settled, with this many events.
    pub fn unwritten(&self) -> Dropped {
        let numbers = self.next_written().number..self.recent.end().number;
        let records = numbers.clone().filter_map(|number| self.recent.get(number));
        let events = records.filter(|record| !record.is_settled()).map(|record| u64::from(record.events)).sum();
        Dropped { numbers, events }
    }

    /// Records that are settled, with all before them, need no sync: the destination has accepted them, or has refused them and
    /// `refused/` has them. The cursor is saved before the next segment begins.
    pub(super) fn forget_settled(&mut self) {
        self.recent.forget_until(self.unsettled.acknowledged().number);
    }

    /// The position of the first record that is in memory and in no segment.
    fn next_written(&self) -> Position {
        self.written.max(self.recent.start())
    }

    /// Writes a record; what is settled is removed if the disk needs that.
    fn write(&mut self, position: Position, payload: &[u8], events: u32, time: u64) -> Result<(), AppendError> {
        loop {
            match self.try_write(position, payload, events, time) {
                Err(AppendError::Full(_)) if self.free().unwrap_or(false) => {}
                written => {
                    self.is_short = matches!(written, Err(AppendError::Full(_)));
                    return written;
                }
            }
        }
    }

    /// Writes a record to the writer's segment, or to a new one.
    fn try_write(&mut self, position: Position, payload: &[u8], events: u32, time: u64) -> Result<(), AppendError> {
        let record_bytes = (HEAD_BYTES + payload.len()) as u64;
        let gap = position.number - self.written.number;
        self.require_space(record_bytes + if gap <= MAX_GAP { gap * HEAD_BYTES as u64 } else { 0 })?;
        let segment_len = self.writer.as_ref().map_or(0, Writer::len);
        let is_segment_full = segment_len > HEADER_BYTES && segment_len + record_bytes > self.limits.segment_bytes;
        if is_segment_full && gap == 0 && self.recent.start().number < self.written.number {
            self.sync_written()?;
            if self.written.number > position.number {
                // The sync has failed, and all records in memory went to another segment.
                return Ok(());
            }
        } else if is_segment_full || gap > MAX_GAP || (gap > 0 && self.writer.is_none()) {
            // After a loss of power, records may be missing before those of the next segment: they are settled.
            self.save_cursor().map_err(|error| self.failure(error))?;
        }
        if is_segment_full || gap > MAX_GAP {
            self.writer = None;
        }
        if self.writer.is_none() {
            self.begin_segment(position).map_err(|error| self.failure(error))?;
        }
        self.fill_gap(position, time).map_err(|error| self.failure(error))?;
        self.write_to_segment(payload, events, time).map_err(|error| self.failure(error))
    }

    fn begin_segment(&mut self, position: Position) -> io::Result<()> {
        let name = self.new_name(position);
        let path = self.directory.join(name.file_name());
        let writer = Writer::create(&path, name).inspect_err(|_| self.remove(name))?;
        self.segments.push_back(Segment { name, len: writer.len() });
        self.writer = Some(writer);
        self.written = position;
        Ok(())
    }

    /// Writes records without payload in the place of those that were settled before they were written.
    fn fill_gap(&mut self, position: Position, time: u64) -> io::Result<()> {
        while self.written.number < position.number {
            let events = u32::try_from(position.events - self.written.events).unwrap_or(u32::MAX);
            self.write_to_segment(&[], events, time)?;
        }
        Ok(())
    }

    fn write_to_segment(&mut self, payload: &[u8], events: u32, time: u64) -> io::Result<()> {
        if let (Some(writer), Some(segment)) = (&mut self.writer, self.segments.back_mut()) {
            segment.len += writer.append(payload, events, time)?;
            self.written = writer.end();
        }
        Ok(())
    }

    fn require_space(&self, record_bytes: u64) -> Result<(), AppendError> {
        let SpoolLimits { max_bytes, min_free_bytes, .. } = self.limits;
        let needed = record_bytes + HEADER_BYTES;
        if self.waiting().bytes + needed > max_bytes {
            return Err(AppendError::Full(format!("max_bytes = {max_bytes} is reached")));
        }
        if min_free_bytes > 0 {
            let free = directory::disk_space(&self.directory)
                .map_err(|error| AppendError::Io(self.directory.clone(), error))?
                .free_bytes;
            if free < min_free_bytes.saturating_add(needed) {
                let why = format!("its file system has {free} bytes free, min_free_bytes = {min_free_bytes}");
                return Err(AppendError::Full(why));
            }
        }
        Ok(())
    }

    fn failure(&self, error: io::Error) -> AppendError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => AppendError::Full(error.to_string()),
            _ => AppendError::Io(self.directory.clone(), error),
        }
    }

    /// Writes the records in memory to a new segment, which takes the place of those records only when it is synced.
    fn rewrite(&mut self) -> io::Result<()> {
        // Settled records of the old segment are in no other one, and a loss of power can remove them.
        self.save_cursor()?;
        let name = self.new_name(self.recent.start());
        let temporary = self.directory.join(name.file_name() + directory::UNFINISHED);
        let written = Writer::create(&temporary, name).and_then(|mut writer| {
            for record in self.recent.iter() {
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
        self.written = writer.end();
        self.writer = Some(writer);
        self.must_rewrite = false;
        // What was read of the old segment is in the new one.
        self.record_reader.continue_at(self.record_reader.next());
        Ok(())
    }

    /// The name of a new segment. Its serial is used up.
    fn new_name(&mut self, start: Position) -> SegmentName {
        self.last_serial += 1;
        self.is_directory_unsynced = true;
        SegmentName { serial: self.last_serial, start, salt: self.salt }
    }
}
