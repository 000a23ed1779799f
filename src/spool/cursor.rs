//! The file `cursor`: up to where the destination has acknowledged everything, which records behind that it has acknowledged, and
//! up to where records were synced.
//!
//! It has two slots. One of them is on the disk, and the other one is written until it is on the disk, too: so one of them is
//! whole after a kill or a loss of power at any time. The slot with the larger count is valid. A slot has 48 bytes: `TCur`,
//! its count, two positions (a record's number and the events before it), and the CRC-32C of these.
//!
//! While records behind the first position are settled, the slot begins with `TCu2`, which versions that do not know such
//! records take for damaged. The CRC-32C then is that of the 44 bytes and of the slot's ranges, which are in a block of their own:
//! their number (4 bytes), and two positions for each.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::record::Position;
use super::segment::read_up_to;

const MAGIC: [u8; 4] = *b"TCur";
/// The magic of a slot with ranges.
const MAGIC_OF_RANGES: [u8; 4] = *b"TCu2";
const SLOT_BYTES: usize = 48;
/// The slots are this far apart, so that no block of a disk has parts of both.
const SLOT_DISTANCE: u64 = 4096;
/// Where the ranges of the first slot are, and how far behind those of the second one.
const RANGES_OFFSET: u64 = 32 * 1024;
const RANGE_BYTES: usize = 32;
/// The most ranges of a slot. There are fewer than records being sent, which are at most 257. The records of further
/// ranges would be sent again.
const MAX_RANGES: usize = 1000;

/// What the file says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Saved {
    /// Behind the last record before which everything is acknowledged.
    pub(super) acknowledged: Position,
    /// The records behind that which are acknowledged, in order.
    pub(super) settled: Vec<Range<Position>>,
    /// Behind the last record that was on the disk, or an earlier one.
    pub(super) synced: Position,
}

impl Saved {
    /// Everything before this position is acknowledged, and nothing behind it.
    pub(super) fn at(position: Position) -> Saved {
        Saved { acknowledged: position, settled: Vec::new(), synced: position }
    }

    /// Whether the positions follow each other.
    fn is_in_order(&self) -> bool {
        let ranges = self.settled.iter().flat_map(|range| [range.start, range.end]);
        let is_after = |one: Position, next: Position| one.number <= next.number && one.events <= next.events;
        let mut last = self.acknowledged;
        last.number > 0 && ranges.into_iter().all(|position| is_after(std::mem::replace(&mut last, position), position))
    }

    /// The records behind this position that are acknowledged.
    pub(super) fn settled_from(&self, start: Position) -> Vec<Range<Position>> {
        let from_there = self.settled.iter().map(|range| range.start.max(start)..range.end);
        from_there.filter(|range| range.start.number < range.end.number).collect()
    }

    /// How many records from `acknowledged` to `end` are not acknowledged, and their events.
    pub(super) fn unsettled_until(&self, end: Position) -> (u64, u64) {
        let between = |start: Position, end: Position| {
            (end.number.saturating_sub(start.number), end.events.saturating_sub(start.events))
        };
        let (mut records, mut events) = between(self.acknowledged, end);
        for range in &self.settled {
            let settled = between(range.start, range.end.min(end));
            (records, events) = (records.saturating_sub(settled.0), events.saturating_sub(settled.1));
        }
        (records, events)
    }

    /// Behind the last record that it knows.
    pub(super) fn end(&self) -> Position {
        self.settled.last().map_or(self.acknowledged, |last| last.end).max(self.synced)
    }
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
    /// Of each slot, whether it has no ranges, so that older versions can read it.
    is_plain: [bool; 2],
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
            Some(CursorSlot { count, saved, slot }) => {
                let is_plain = [saved.settled.is_empty() || slot == 1, saved.settled.is_empty() || slot == 0];
                Cursor { file, count, slot: 1 - slot, noted: Some(saved), is_synced: true, is_plain }
            }
            None => Cursor { file, count: 0, slot: 1, noted: None, is_synced: false, is_plain: [true; 2] },
        })
    }

    /// What the file says. `None`: it is new, or both slots are damaged.
    pub(super) fn saved(&self) -> Option<Saved> {
        self.noted.clone()
    }

    /// Writes positions to the file, if they are not there. They survive the end of this process, but not a loss of power.
    ///
    /// # Errors
    /// The system's. The file has these positions or those that were saved last.
    pub(super) fn note(&mut self, saved: Saved) -> io::Result<()> {
        if self.noted.as_ref() == Some(&saved) {
            return Ok(());
        }
        self.write(saved)
    }

    fn write(&mut self, saved: Saved) -> io::Result<()> {
        (self.noted, self.is_synced) = (None, false);
        // Also counts a write that fails, because it may have been carried out.
        self.count += 1;
        let ranges = encode_ranges(&saved.settled);
        if !ranges.is_empty() {
            self.file.write_all_at(&ranges, ranges_offset(self.slot))?;
        }
        self.file.write_all_at(&encode(self.count, &saved, &ranges), self.slot * SLOT_DISTANCE)?;
        self.is_plain[self.slot as usize] = ranges.is_empty();
        self.noted = Some(saved);
        Ok(())
    }

    /// Forces positions to the disk, if they are not there.
    ///
    /// # Errors
    /// The system's. The file has these positions or those that were saved last.
    pub(super) fn save(&mut self, saved: Saved) -> io::Result<()> {
        let has_ranges = !saved.settled.is_empty();
        self.note(saved.clone())?;
        self.sync()?;
        if has_ranges && self.is_plain[self.slot as usize] {
            // An older version must not read this slot: it does not know which segments are removed.
            self.write(saved)?;
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
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
#[derive(Clone, PartialEq, Eq, Debug)]
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

fn ranges_offset(slot: u64) -> u64 {
    RANGES_OFFSET * (1 + slot)
}

/// The ranges as they are in the file; nothing if there are none.
fn encode_ranges(settled: &[Range<Position>]) -> Vec<u8> {
    let settled = &settled[..settled.len().min(MAX_RANGES)];
    let mut bytes = Vec::new();
    if !settled.is_empty() {
        bytes.extend_from_slice(&(settled.len() as u32).to_be_bytes());
        settled.iter().for_each(|range| {
            bytes.extend_from_slice(&encode_position(range.start));
            bytes.extend_from_slice(&encode_position(range.end));
        });
    }
    bytes
}

fn encode_position(position: Position) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&position.number.to_be_bytes());
    bytes[8..].copy_from_slice(&position.events.to_be_bytes());
    bytes
}

fn decode_position(bytes: &[u8]) -> Position {
    let u64_at = |at: usize| bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    Position { number: u64_at(0), events: u64_at(8) }
}

fn encode(count: u64, saved: &Saved, ranges: &[u8]) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..4].copy_from_slice(if ranges.is_empty() { &MAGIC } else { &MAGIC_OF_RANGES });
    bytes[4..12].copy_from_slice(&count.to_be_bytes());
    bytes[12..28].copy_from_slice(&encode_position(saved.acknowledged));
    bytes[28..44].copy_from_slice(&encode_position(saved.synced));
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..44]), ranges);
    bytes[44..].copy_from_slice(&crc.to_be_bytes());
    bytes
}

/// Reads a slot, and its ranges by `read_ranges` if it has some. `None`: it is not whole.
fn decode(
    bytes: &[u8; SLOT_BYTES],
    read_ranges: impl FnOnce() -> io::Result<Vec<u8>>,
) -> io::Result<Option<(u64, Saved)>> {
    let ranges = if bytes[..4] == MAGIC_OF_RANGES { read_ranges()? } else { Vec::new() };
    let count = bytes[4..12].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let positions = ranges.get(4..).unwrap_or_default().chunks_exact(RANGE_BYTES);
    let settled = positions.map(|range| decode_position(&range[..16])..decode_position(&range[16..])).collect();
    let saved =
        Saved { acknowledged: decode_position(&bytes[12..28]), settled, synced: decode_position(&bytes[28..44]) };
    let is_whole = saved.is_in_order() && encode(count, &saved, &ranges) == *bytes;
    Ok(is_whole.then_some((count, saved)))
}

/// A slot that is whole.
struct CursorSlot {
    count: u64,
    saved: Saved,
    slot: u64,
}

/// The newer of the two slots.
fn read(file: &File) -> io::Result<Option<CursorSlot>> {
    let mut newest: Option<CursorSlot> = None;
    for slot in 0..2 {
        let mut bytes = [0; SLOT_BYTES];
        if read_up_to(file, &mut bytes, slot * SLOT_DISTANCE)? == SLOT_BYTES
            && let Some((count, saved)) = decode(&bytes, || read_ranges(file, slot))?
            && newest.as_ref().is_none_or(|newest| newest.count < count)
        {
            newest = Some(CursorSlot { count, saved, slot });
        }
    }
    Ok(newest)
}

/// The ranges of a slot as they are in the file, or as many bytes of them as there are.
fn read_ranges(file: &File, slot: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4 + MAX_RANGES * RANGE_BYTES];
    let read = read_up_to(file, &mut bytes, ranges_offset(slot))?;
    let ranges = bytes.first_chunk().map_or(0, |number| u32::from_be_bytes(*number) as usize);
    bytes.truncate(read.min(4 + ranges.min(MAX_RANGES) * RANGE_BYTES));
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_torn_at_any_byte_leaves_the_position_before_it() {
        let position = |number| Position { number, events: number * 10 };
        let positions: Vec<_> =
            (1..=3).map(|number| Saved { synced: position(number + 5), ..Saved::at(position(number)) }).collect();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cursor");
        let mut cursor = Cursor::open(&directory.path().join("cursor")).unwrap();
        assert_eq!(cursor.saved(), None);
        for position in &positions[..2] {
            cursor.save(position.clone()).unwrap();
        }
        let before = std::fs::read(&path).unwrap();
        // Without a sync: the other slot is the one on the disk.
        cursor.note(positions[2].clone()).unwrap();
        let after = std::fs::read(&path).unwrap();
        let slot = SLOT_DISTANCE as usize;
        for torn_at in 0..SLOT_BYTES {
            let mut torn = before.clone();
            torn[slot..slot + torn_at].copy_from_slice(&after[slot..slot + torn_at]);
            std::fs::write(&path, &torn).unwrap();
            let found = Cursor::open(&directory.path().join("cursor")).unwrap().saved();
            // The bytes that the torn slot shares with the old one at its end may complete it.
            let is_complete = torn[slot..slot + SLOT_BYTES] == after[slot..slot + SLOT_BYTES];
            assert_eq!(found.as_ref(), Some(&positions[if is_complete { 2 } else { 1 }]), "torn at {torn_at}");
        }
        std::fs::write(&path, after).unwrap();
        assert_eq!(peek(&path).unwrap(), Peeked::Saved(positions[2].clone()));
        assert_eq!(peek(&directory.path().join("other")).unwrap(), Peeked::Missing);
    }

    #[test]
    fn positions_are_noted_in_the_slot_that_is_not_on_the_disk_until_one_is_saved() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cursor");
        let position = |number| Position { number, events: number };
        let saved = |number| Saved::at(position(number));
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

    /// A slot with ranges, a slot before it without, and torn writes of both parts of the slot.
    #[test]
    fn ranges_are_read_back_and_torn_ones_leave_the_slot_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cursor");
        let position = |number: u64| Position { number, events: number * 10 };
        let with = |ranges: u64| Saved {
            settled: (1..=ranges).map(|range| position(10 * range)..position(10 * range + 5)).collect(),
            ..Saved::at(position(3))
        };
        for ranges in [1, 2, 257, MAX_RANGES as u64] {
            let mut cursor = Cursor::open(&path).unwrap();
            cursor.save(with(ranges)).unwrap();
            assert_eq!(peek(&path).unwrap(), Peeked::Saved(with(ranges)));
            let synced = std::fs::read(&path).unwrap();
            let is_old = |slot: usize| synced[slot * SLOT_DISTANCE as usize..].starts_with(&MAGIC);
            assert!(!is_old(0) && !is_old(1), "an older version reads no slot");
            cursor.note(with(ranges - 1)).unwrap();
            let noted = std::fs::read(&path).unwrap();
            let changed: Vec<usize> = (0..noted.len()).filter(|at| synced.get(*at) != Some(&noted[*at])).collect();
            for cut in changed.iter().step_by(changed.len() / 50 + 1) {
                let mut torn = noted.clone();
                torn[*cut..].copy_from_slice(&synced[*cut..noted.len()]);
                std::fs::write(&path, &torn).unwrap();
                assert_eq!(peek(&path).unwrap(), Peeked::Saved(with(ranges)), "torn at {cut}");
            }
            std::fs::write(&path, &noted).unwrap();
            assert_eq!(peek(&path).unwrap(), Peeked::Saved(with(ranges - 1)));
            assert_eq!(Cursor::open(&path).unwrap().saved(), Some(with(ranges - 1)));
        }
        let mut cursor = Cursor::open(&path).unwrap();
        let too_many = with(MAX_RANGES as u64 + 1);
        cursor.save(too_many.clone()).unwrap();
        let Peeked::Saved(saved) = peek(&path).unwrap() else { panic!("no slot is whole") };
        assert_eq!(saved.settled, too_many.settled[..MAX_RANGES], "the last ones are sent again");
        // Without ranges, the newest slot is one that older versions read.
        cursor.save(with(0)).unwrap();
        assert_eq!(Cursor::open(&path).unwrap().saved(), Some(with(0)));
        assert!(
            std::fs::read(&path).unwrap().chunks(SLOT_DISTANCE as usize).take(2).any(|slot| slot.starts_with(&MAGIC))
        );
    }
}
