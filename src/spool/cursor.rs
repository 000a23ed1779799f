//! The file `cursor`: up to where the destination has acknowledged everything, and up to where records were synced.
//!
//! It has two slots. One of them is on the disk, and the other one is written until it is on the disk, too: so one of them is
//! whole after a kill or a loss of power at any time. The slot with the larger count is valid. A slot has 48 bytes: `TCur`,
//! its count, two positions (a record's number and the events before it), and the CRC-32C of these.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::record::Position;

const MAGIC: [u8; 4] = *b"TCur";
const SLOT_BYTES: usize = 48;
/// The slots are this far apart, so that no block of a disk has parts of both.
const SLOT_DISTANCE: u64 = 4096;

/// What the file says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Saved {
    /// Behind the last record before which everything is acknowledged.
    pub(super) acknowledged: Position,
    /// Behind the last record that was on the disk, or an earlier one.
    pub(super) synced: Position,
}

/// The open file.
#[derive(Debug)]
pub(super) struct Cursor {
    file: File,
    /// Counts the writes.
    count: u64,
    /// The slot that is written next: the one that is not on the disk.
    slot: u64,
    /// What the file says. `None`: nothing, or a write has failed.
    noted: Option<Saved>,
    /// Whether that is on the disk.
    is_synced: bool,
}

impl Cursor {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(path: &Path) -> io::Result<Cursor> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let latest = read(&file)?;
        // The process before this one may have been killed before it did that.
        file.sync_data()?;
        #[cfg(test)]
        super::tests::faults::note_cursor_synced(&file);
        Ok(match latest {
            Some(Slot { count, saved, slot }) => {
                Cursor { file, count, slot: 1 - slot, noted: Some(saved), is_synced: true }
            }
            None => Cursor { file, count: 0, slot: 1, noted: None, is_synced: false },
        })
    }

    /// What the file says. `None`: it is new, or both slots are damaged.
    pub(super) fn saved(&self) -> Option<Saved> {
        self.noted
    }

    /// Writes positions to the file, if they are not there. They survive the end of this process, but not a loss of power.
    ///
    /// # Errors
    /// The system's. The file has these positions or those that were saved last.
    pub(super) fn note(&mut self, saved: Saved) -> io::Result<()> {
        if self.noted == Some(saved) {
            return Ok(());
        }
        (self.noted, self.is_synced) = (None, false);
        // Also counts a write that fails, because it may have been carried out.
        self.count += 1;
        self.file.write_all_at(&encode(self.count, saved), self.slot * SLOT_DISTANCE)?;
        self.noted = Some(saved);
        Ok(())
    }

    /// Forces positions to the disk, if they are not there.
    ///
    /// # Errors
    /// The system's. The file has these positions or those that were saved last.
    pub(super) fn save(&mut self, saved: Saved) -> io::Result<()> {
        self.note(saved)?;
        if !self.is_synced {
            if let Err(error) = self.file.sync_data() {
                // It is to be written again: the system may have dropped it.
                self.noted = None;
                return Err(error);
            }
            #[cfg(test)]
            super::tests::faults::note_cursor_synced(&self.file);
            self.is_synced = true;
            // From now on this slot stays whole until the other one is on the disk.
            self.slot = 1 - self.slot;
        }
        Ok(())
    }
}

/// What a file of this format says, which another process may be writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Peeked {
    /// There is none, or it is empty.
    Missing,
    /// It has no whole slot.
    Damaged,
    Saved(Saved),
}

/// Reads the file at `path` without changing anything.
///
/// # Errors
/// The system's.
pub(super) fn peek(path: &Path) -> io::Result<Peeked> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Peeked::Missing),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    Ok(match metadata.is_file() {
        false => Peeked::Damaged,
        true if metadata.len() == 0 => Peeked::Missing,
        true => read(&file)?.map_or(Peeked::Damaged, |slot| Peeked::Saved(slot.saved)),
    })
}

fn encode(count: u64, saved: Saved) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..12].copy_from_slice(&count.to_be_bytes());
    for (field, position) in [saved.acknowledged, saved.synced].into_iter().enumerate() {
        let at = 12 + 16 * field;
        bytes[at..at + 8].copy_from_slice(&position.number.to_be_bytes());
        bytes[at + 8..at + 16].copy_from_slice(&position.events.to_be_bytes());
    }
    let crc = crc32c::crc32c(&bytes[..44]);
    bytes[44..].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<(u64, Saved)> {
    let u64_at = |at: usize| bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let position = |at: usize| Position { number: u64_at(at), events: u64_at(at + 8) };
    let saved = Saved { acknowledged: position(12), synced: position(28) };
    (saved.acknowledged.number > 0 && encode(u64_at(4), saved) == *bytes).then(|| (u64_at(4), saved))
}

/// A slot that is whole. They are ordered by their counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    count: u64,
    saved: Saved,
    slot: u64,
}

/// The newer of the two slots.
fn read(file: &File) -> io::Result<Option<Slot>> {
    let mut newest = None;
    for slot in 0..2 {
        let mut bytes = [0; SLOT_BYTES];
        match file.read_exact_at(&mut bytes, slot * SLOT_DISTANCE) {
            Ok(()) => newest = newest.max(decode(&bytes).map(|(count, saved)| Slot { count, saved, slot })),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_torn_at_any_byte_leaves_the_position_before_it() {
        let position = |number| Position { number, events: number * 10 };
        let positions: Vec<_> =
            (1..=3).map(|number| Saved { acknowledged: position(number), synced: position(number + 5) }).collect();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cursor");
        let mut cursor = Cursor::open(&directory.path().join("cursor")).unwrap();
        assert_eq!(cursor.saved(), None);
        for position in &positions[..2] {
            cursor.save(*position).unwrap();
        }
        let before = std::fs::read(&path).unwrap();
        // Without a sync: the other slot is the one on the disk.
        cursor.note(positions[2]).unwrap();
        let after = std::fs::read(&path).unwrap();
        let slot = SLOT_DISTANCE as usize;
        for torn_at in 0..SLOT_BYTES {
            let mut torn = before.clone();
            torn[slot..slot + torn_at].copy_from_slice(&after[slot..slot + torn_at]);
            std::fs::write(&path, &torn).unwrap();
            let found = Cursor::open(&directory.path().join("cursor")).unwrap().saved();
            // The bytes that the torn slot shares with the old one at its end may complete it.
            let is_complete = torn[slot..slot + SLOT_BYTES] == after[slot..slot + SLOT_BYTES];
            assert_eq!(found, Some(positions[if is_complete { 2 } else { 1 }]), "torn at {torn_at}");
        }
        std::fs::write(&path, after).unwrap();
        assert_eq!(peek(&path).unwrap(), Peeked::Saved(positions[2]));
        assert_eq!(peek(&directory.path().join("other")).unwrap(), Peeked::Missing);
    }

    #[test]
    fn positions_are_noted_in_the_slot_that_is_not_on_the_disk_until_one_is_saved() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cursor");
        let position = |number| Position { number, events: number };
        let saved = |number| Saved { acknowledged: position(number), synced: position(number) };
        let mut cursor = Cursor::open(&path).unwrap();
        cursor.save(saved(1)).unwrap();
        for number in 2..=6 {
            let before = std::fs::read(&path).unwrap();
            let slot = SLOT_DISTANCE as usize;
            // The synced slot is 1 after the first save, and 0 after the second one.
            cursor.note(saved(number)).unwrap();
            let after = std::fs::read(&path).unwrap();
            let synced = if number <= 4 { slot..slot + SLOT_BYTES } else { 0..SLOT_BYTES };
            assert_eq!(before[synced.clone()], after[synced], "number {number}");
            assert_eq!(peek(&path).unwrap(), Peeked::Saved(saved(number)), "as a killed process leaves it");
            if number == 4 {
                cursor.save(saved(number)).unwrap();
                cursor = Cursor::open(&path).unwrap();
                assert_eq!(cursor.saved(), Some(saved(4)));
            }
        }
    }

    #[test]
    fn a_damaged_file_has_no_position() {
        let directory = tempfile::tempdir().unwrap();
        for content in [&b""[..], b"TCur", &[0; 5000], &[255; 5000]] {
            let path = directory.path().join("cursor");
            std::fs::write(&path, content).unwrap();
            assert_eq!(peek(&path).unwrap(), if content.is_empty() { Peeked::Missing } else { Peeked::Damaged });
            assert_eq!(Cursor::open(&directory.path().join("cursor")).unwrap().saved(), None);
        }
    }
}
