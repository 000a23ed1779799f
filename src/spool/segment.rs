//! Segments: the files of a spool. A segment is written by one run of the daemon and never changed afterwards, except that
//! a record which could not be written completely is cut off.
//!
//! A file begins with 16 bytes, `tributary spool` and the version of the format, and continues with [records](super::record).
//! Everything else that describes the segment is in its name, so that a damaged beginning of a file costs nothing:
//! `SERIAL.NUMBER.EVENTS.SALT.spool`, hexadecimal. Segments follow each other by serial. A segment contains records from
//! its own number up to the number of the next segment; records beyond that were written again to the next one, because
//! they could not be synced.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::record::{Position, RecordHead};

/// The first bytes of each segment; the last one is the version of the format.
pub(super) const HEADER: &[u8; 16] = b"tributary spool\x01";
/// Length of the header in bytes.
pub(super) const HEADER_BYTES: u64 = HEADER.len() as u64;

/// The name of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SegmentName {
    /// Counts the segments of the spool.
    pub(super) serial: u32,
    /// Where its first record is.
    pub(super) start: Position,
    /// Part of the checksum of each head: the same in all segments of one process.
    pub(super) salt: u64,
}

impl SegmentName {
    /// The file's name.
    pub(super) fn file_name(&self) -> String {
        let SegmentName { serial, start, salt } = self;
        format!("{serial:08x}.{:016x}.{:016x}.{salt:016x}.spool", start.number, start.events)
    }

    /// Reads a file's name. `None`: it is no segment.
    pub(super) fn parse(name: &str) -> Option<SegmentName> {
        let parts: Vec<&str> = name.strip_suffix(".spool")?.split('.').collect();
        let [serial, number, events, salt] = parts.as_slice() else { return None };
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let start = Position { number: hex(number)?, events: hex(events)? };
        let parsed = SegmentName { serial: u32::from_str_radix(serial, 16).ok()?, start, salt: hex(salt)? };
        // Only the one spelling that is written.
        (parsed.file_name() == name && start.number > 0).then_some(parsed)
    }
}

/// The id of a record: the same whenever it is read, and different for every other record of any spool. `salt` is that of its
/// segment, and of the process that has appended it.
pub(super) fn record_id(salt: u64, position: Position) -> String {
    format!("{salt:016x}-{}", position.number)
}

/// A file of a spool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) name: SegmentName,
    /// Length in bytes.
    pub(super) len: u64,
}

/// What the header of a file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    /// This version, or a damaged header: the records have checksums of their own.
    Readable,
    /// A version that this program does not know.
    Newer(u8),
}

/// Reads the format of a segment.
///
/// # Errors
/// The system's.
pub(super) fn format_of(file: &File) -> io::Result<Format> {
    let mut header = [0; HEADER.len()];
    let read = read_up_to(file, &mut header, 0)?;
    let (text, version) = (&HEADER[..15], header[15]);
    Ok(if read == header.len() && header.starts_with(text) && version > HEADER[15] {
        Format::Newer(version)
    } else {
        Format::Readable
    })
}

/// A segment that is written.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) name: SegmentName,
    file: File,
    /// Length in bytes, whole records only.
    len: u64,
    /// Half a record behind `len` that could not be cut off yet.
    is_torn: bool,
    /// Behind the last record.
    end: Position,
    /// Length in bytes of what is synced.
    synced: u64,
}

impl Writer {
    /// Creates a segment, at this path until it gets its own.
    ///
    /// # Errors
    /// The system's. The file may exist nevertheless, without a record.
    pub(super) fn create(path: &Path, name: SegmentName) -> io::Result<Writer> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all_at(HEADER, 0)?;
        let (len, end) = (HEADER_BYTES, name.start);
        Ok(Writer { name, file, len, is_torn: false, end, synced: 0 })
    }

    /// Appends a record; returns its length in the file.
    ///
    /// # Errors
    /// The system's. Nothing is appended then.
    pub(super) fn append(&mut self, payload: &[u8], events: u32, time: u64) -> io::Result<u64> {
        self.cut()?;
        let head = RecordHead::of(self.end, events, time, payload);
        let bytes = head.encode(self.name.salt);
        let mut file = Appending { file: &self.file, at: self.len };
        if let Err(error) = file.write_all_vectored(&bytes, payload) {
            self.is_torn = true;
            // A failure is noted, and the next call tries again.
            let _ = self.cut();
            return Err(error);
        }
        self.len += head.record_bytes();
        self.end = head.next();
        Ok(head.record_bytes())
    }

    /// Cuts off a half-written record.
    fn cut(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.len)?;
            self.is_torn = false;
        }
        Ok(())
    }

    /// Forces everything to the disk, except the name of the file.
    ///
    /// # Errors
    /// The system's. It may then have dropped what was not synced, and a second sync of the same descriptor can succeed all
    /// the same: append the records that were not synced to another segment.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.synced < self.len {
            sync_data(&self.file)?;
            self.synced = self.len;
        }
        Ok(())
    }

    /// Behind the last record.
    pub(super) fn end(&self) -> Position {
        self.end
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }
}

/// Forces the bytes of a file to the disk.
///
/// # Errors
/// The system's.
pub(super) fn sync_data(file: &File) -> io::Result<()> {
    #[cfg(test)]
    super::tests::faults::next()?;
    file.sync_data()?;
    #[cfg(test)]
    super::tests::faults::note_synced(file);
    Ok(())
}

/// Writes at an offset, with short writes continued.
pub(super) struct Appending<'a> {
    pub(super) file: &'a File,
    pub(super) at: u64,
}

impl Appending<'_> {
    pub(super) fn write_all_vectored(&mut self, head: &[u8], payload: &[u8]) -> io::Result<()> {
        use std::io::Seek as _;
        self.file.seek(io::SeekFrom::Start(self.at))?;
        #[cfg(test)]
        if let Err(error) = super::tests::faults::next() {
            // As much of the record as a full disk may take.
            self.file.write_all(&head[..head.len() / 2])?;
            return Err(error);
        }
        let mut written = self.file.write_vectored(&[IoSlice::new(head), IoSlice::new(payload)])?;
        if written < head.len() {
            self.file.write_all(&head[written..])?;
            written = head.len();
        }
        self.file.write_all(&payload[written - head.len()..])
    }
}

/// Reads until the buffer is full or the file ends; returns the number of bytes.
pub(super) fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
