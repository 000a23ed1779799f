//! One open file that records are appended to.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use flate2::Crc;

use super::disk::{Disk, lock};
use super::names;
use super::options::{Fsync, Options};
use super::repair;
use tributary_event::UnixNanos;
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::encode::source::{Defined, Sources};
use tributary_sink::records::Records;
use tributary_system::directories::directory_of;
use tributary_system::locked_file::LockedFile;

/// Block size when written bytes are read again.
const BLOCK_BYTES: usize = 64 * 1024;

/// Reports that half a record is still in a file.
static TORN: LogThrottle = LogThrottle::new();

/// A file that is being written. Between two calls it ends where a record ends, unless the system refused even to
/// shorten it; then the next call tries again before it writes anything.
#[derive(Debug)]
pub(super) struct Live {
    path: PathBuf,
    file: LockedFile,
    /// Device and inode, which identify a file under any name.
    identity: (u64, u64),
    len: u64,
    /// The number of its first bytes that are definitions of sources.
    blank: u64,
    /// Records that were written to it here.
    records: u64,
    /// The sources that were defined in it here.
    defined: Defined,
    /// Bytes at the end that belong to no whole record and still have to be cut off.
    torn: u64,
    dirty: bool,
    /// A sync of it has failed: nothing more is written to it.
    given_up: bool,
    unsynced: Unsynced,
    opened: Instant,
}

/// What was written since the last successful sync.
#[derive(Debug)]
struct Unsynced {
    /// Where it begins in the file.
    start: u64,
    bytes: u64,
    records: u64,
    /// The sources of the records.
    sources: Sources,
    /// Checksum of the bytes, to find out whether the system still has them. Kept under [`Fsync::Interval`] only.
    crc: Crc,
}

impl Live {
    /// Opens a file for appending; creates it, and the directories above it, where they are missing. A record that a
    /// killed process left half-written at the end is removed.
    ///
    /// # Errors
    /// The system's; also when another process is writing the file, or when it is not a regular file.
    pub(super) fn open(path: &Path, options: &Options, disk: &mut Disk) -> io::Result<Live> {
        // Checked before opening, because opening a named pipe or a device can have effects of its own.
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = open_or_create(path, disk)?;
        disk.sync_directories_of(path)?;
        let file = lock(file)?;
        let metadata = file.metadata()?;
        let mut live = Live {
            path: path.to_owned(),
            file,
            identity: (metadata.dev(), metadata.ino()),
            len: 0,
            blank: 0,
            records: 0,
            defined: Defined::default(),
            torn: 0,
            dirty: false,
            given_up: false,
            unsynced: Unsynced::from(0),
            opened: Instant::now(),
        };
        if !live.is_in_place() {
            // Its last writer finished it between our opening and our locking; the next attempt finds a new one.
            return Err(moved());
        }
        live.len = repair::repair_open(&live.file, path, options.format)?;
        live.isolate(disk)?;
        live.unsynced = Unsynced::from(live.len);
        // An earlier process may not have synced it. It must be on the disk before it is renamed: a file with the name of a
        // finished one is not repaired.
        live.dirty = live.len > 0 && disk.fsync != Fsync::Never;
        Ok(live)
    }

    /// Writes the last line feed of an existing file again. A sync of its last writer may have failed: then bytes at the end
    /// that the system still shows are not on the disk, no later sync forces them to it, and a loss of power leaves zeros in
    /// their place. This line feed is synced with the records that follow it, so the first of them never ends such a line.
    fn isolate(&self, disk: &Disk) -> io::Result<()> {
        if self.len == 0 || disk.fsync == Fsync::Never {
            return Ok(());
        }
        // A descriptor for appending cannot write anywhere else.
        let file = match OpenOptions::new().write(true).open(&self.path) {
            // A file to which one may only append: an attribute of some file systems.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            opened => opened?,
        };
        let metadata = file.metadata()?;
        if (metadata.dev(), metadata.ino()) != self.identity {
            return Err(moved());
        }
        file.write_all_at(b"\n", self.len - 1)
    }

    /// Whether the path still names this file. Also notices when another process has shortened it.
    pub(super) fn is_in_place(&mut self) -> bool {
        match fs::metadata(&self.path) {
            Ok(metadata) if (metadata.dev(), metadata.ino()) == self.identity => {
                let len = metadata.len().saturating_sub(self.torn);
                if len < self.len {
                    self.defined.clear();
                    self.blank = 0;
                }
                self.len = len;
                true
            }
            Ok(_) => false,
            // A directory that cannot be searched now does not show that the file was moved.
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        }
    }

    /// Device and inode.
    pub(super) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Length in bytes, whole records only.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no record: it is empty, or has definitions of sources only.
    pub(super) fn is_blank(&self) -> bool {
        self.len == self.blank
    }

    /// Records that were written to it since it was opened.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// Whether something was written that is not known to be on the disk.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Whether a sync of it has failed, so that another one of this descriptor says nothing.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// Records written since the last successful sync.
    pub(super) fn unsynced_records(&self) -> u64 {
        self.unsynced.records
    }

    /// The length of the definitions that [`Live::replace`] would write.
    pub(super) fn unsynced_sources_bytes(&self) -> usize {
        self.unsynced.sources.bytes()
    }

    /// Removes everything from a file that has no record.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn empty(&self) -> io::Result<()> {
        if self.blank > 0 { self.file.set_len(0) } else { Ok(()) }
    }

    /// The open file.
    pub(super) fn file(&self) -> &fs::File {
        &self.file
    }

    /// When it was opened.
    pub(super) fn opened(&self) -> Instant {
        self.opened
    }

    /// The definitions of those of the sources that the file does not define.
    pub(super) fn missing(&mut self, sources: &Sources) -> Vec<u8> {
        self.defined.clear_if_full(sources.count());
        let missing = sources.iter().filter(|source| !self.defined.contains(source));
        missing.flat_map(|source| source.line()).copied().collect()
    }

    /// Writes `definitions`, which [`Live::missing`] has returned for these sources; records may name the sources then.
    ///
    /// # Errors
    /// The system's. The file then ends as before.
    pub(super) fn define(&mut self, sources: &Sources, definitions: &[u8], disk: &Disk) -> io::Result<()> {
        if !definitions.is_empty() {
            self.cut()?;
            let (written, result) = write_counted(&self.file, definitions);
            self.dirty |= written > 0;
            if result.is_err() {
                self.torn = written as u64;
                self.cut_now();
                return result;
            }
            if self.is_blank() {
                self.blank += written as u64;
            }
            self.len += written as u64;
            if disk.fsync == Fsync::Interval {
                self.unsynced.add(definitions, 0);
            }
        }
        for source in sources.iter() {
            self.defined.add(source);
            if disk.fsync == Fsync::Interval {
                self.unsynced.sources.add(source);
            }
        }
        Ok(())
    }

    /// Writes the first `chunk` bytes of the records, which end where a record ends, and removes what is written from
    /// the records: under [`Fsync::Always`] only what is on the disk.
    ///
    /// # Errors
    /// The system's. The file then ends after the last record that was removed.
    pub(super) fn append(&mut self, records: &mut Records, chunk: usize, disk: &Disk) -> io::Result<()> {
        self.cut()?;
        let (written, mut result) = write_counted(&self.file, &records.bytes()[..chunk]);
        self.dirty |= written > 0;
        if result.is_ok() && disk.fsync == Fsync::Always {
            result = self.sync(disk);
        }
        let whole = match (&result, disk.fsync) {
            (Ok(()), _) => written,
            // After a failed fsync the system may have dropped the bytes: all of them are to be written again.
            (Err(_), Fsync::Always) => 0,
            (Err(_), _) => records.whole_within(written),
        };
        self.torn = (written - whole) as u64;
        self.len += whole as u64;
        self.records += records.count_within(whole) as u64;
        if disk.fsync == Fsync::Interval {
            self.unsynced.add(&records.bytes()[..whole], records.count_within(whole));
        }
        records.advance(whole);
        if result.is_err() {
            self.cut_now();
        }
        result
    }

    /// Cuts off what is half-written, or leaves it to the next call.
    fn cut_now(&mut self) {
        if let Err(error) = self.cut()
            && let Some(suppressed) = TORN.permit()
        {
            tracing::warn!(path = %self.path.display(), %error, suppressed, "cannot cut off a half-written record yet");
        }
    }

    /// Forces what was written to the disk.
    ///
    /// # Errors
    /// The system's. It may then have dropped what was written since the last successful sync, and a second sync of the
    /// same descriptor can succeed all the same. So the file is [given up](Live::is_given_up): use [`Live::replace`].
    pub(super) fn sync(&mut self, disk: &Disk) -> io::Result<()> {
        (disk.sync_data)(&self.file).inspect_err(|_| self.given_up = true)?;
        self.dirty = false;
        self.unsynced = Unsynced::from(self.len);
        Ok(())
    }

    /// After a failed sync: finishes this file, and writes what was written since the last good sync again, from what the
    /// system still has of it, to a new file in its place, which is synced. Then removes it from this one.
    ///
    /// # Errors
    /// The system's, or the bytes in the file are not those that were written. The records since the last good sync are to
    /// be taken for lost.
    pub(super) fn replace(mut self, now: UnixNanos, options: &Options, disk: &mut Disk) -> io::Result<Live> {
        let mut crc = Crc::new();
        self.unsynced.for_each_block(&self.file, |block| {
            crc.update(block);
            Ok(())
        })?;
        if crc.sum() != self.unsynced.crc.sum() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the written bytes are no longer in the file"));
        }
        // Another process may have moved it.
        let finished = if self.is_in_place() { Some(self.finish(now, disk)?) } else { None };
        let mut new = Live::open(&self.path, options, disk)?;
        let len = new.len;
        if let Err(error) = new.copy_unsynced(&self, disk) {
            // Records that are reported as lost are not in it. If this fails, its next writer repairs its end.
            let _ = new.file.set_len(len);
            return Err(error);
        }
        if let Err(error) = self.remove_unsynced(finished.as_deref()) {
            let path = finished.unwrap_or_else(|| self.path.clone());
            tracing::warn!(path = %path.display(), %error, "a file that was given up may have events that are in its successor, too");
        }
        Ok(new)
    }

    fn copy_unsynced(&mut self, from: &Live, disk: &Disk) -> io::Result<()> {
        let definitions = self.missing(&from.unsynced.sources);
        self.define(&from.unsynced.sources, &definitions, disk)?;
        let mut file = &*self.file;
        from.unsynced.for_each_block(&from.file, |block| file.write_all(block))?;
        self.len += from.unsynced.bytes;
        self.sync(disk)
    }

    /// Shortens the file to its last good sync, and forces that to the disk through another descriptor.
    fn remove_unsynced(&self, finished: Option<&Path>) -> io::Result<()> {
        let start = self.unsynced.start;
        match finished {
            Some(finished) if start == 0 => fs::remove_file(finished),
            _ => {
                self.file.set_len(start)?;
                finished.map_or(Ok(()), |finished| OpenOptions::new().write(true).open(finished)?.sync_all())
            }
        }
    }

    /// Prepares the file for being closed: nothing half-written remains.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn cut(&mut self) -> io::Result<()> {
        if self.torn > 0 {
            // Counted from the end, so that it is right even if another process has emptied the file.
            let len = self.file.metadata()?.len();
            self.file.set_len(len.saturating_sub(self.torn))?;
            self.torn = 0;
            self.dirty = true;
        }
        Ok(())
    }

    /// Gives the file the name of a finished one, and returns that. Cut and sync it before; drop it afterwards.
    ///
    /// # Errors
    /// The system's. [`Live::is_in_place`] returns whether it still has its old name then.
    pub(super) fn finish(&mut self, now: UnixNanos, disk: &mut Disk) -> io::Result<PathBuf> {
        let finished = names::reserve(&self.path, now)?;
        if let Err(error) = fs::rename(&self.path, &finished) {
            // Empty, and created by `reserve`.
            let _ = fs::remove_file(&finished);
            return Err(error);
        }
        disk.note_change(directory_of(&self.path));
        disk.sync_directories_of(&self.path)?;
        Ok(finished)
    }
}

impl Unsynced {
    /// Nothing, at the end of a file of `len` bytes.
    fn from(len: u64) -> Unsynced {
        Unsynced { start: len, bytes: 0, records: 0, sources: Sources::default(), crc: Crc::new() }
    }

    fn add(&mut self, bytes: &[u8], records: usize) {
        self.bytes += bytes.len() as u64;
        self.records += records as u64;
        self.crc.update(bytes);
    }

    /// Reads it from the file, block by block.
    fn for_each_block(&self, file: &fs::File, mut block: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut buffer = vec![0; BLOCK_BYTES];
        let (mut at, end) = (self.start, self.start + self.bytes);
        while at < end {
            let len = usize::try_from(end - at).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
            file.read_exact_at(&mut buffer[..len], at)?;
            block(&buffer[..len])?;
            at += len as u64;
        }
        Ok(())
    }
}

fn moved() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "it was moved while being opened")
}

fn open_or_create(path: &Path, disk: &mut Disk) -> io::Result<fs::File> {
    create_directories(directory_of(path), disk)?;
    // Created apart from opened, to know when the directory has a new name in it that must reach the disk, too.
    let created = OpenOptions::new().read(true).append(true).create_new(true).open(path);
    match created {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            disk.sync_existing(directory_of(path))?;
            OpenOptions::new().read(true).append(true).create(true).open(path)
        }
        Ok(file) => {
            disk.note_change(directory_of(path));
            Ok(file)
        }
        Err(error) => Err(error),
    }
}

/// Like `fs::create_dir_all`. The name of each directory is on the disk before anything is created in it, so of existing ones
/// only the last one's can be missing there.
fn create_directories(directory: &Path, disk: &mut Disk) -> io::Result<()> {
    if directory.is_dir() {
        return disk.sync_existing(directory_of(directory));
    }
    if directory.parent().is_some() {
        create_directories(directory_of(directory), disk)?;
    }
    match fs::create_dir(directory) {
        Ok(()) => {
            disk.note_change(directory_of(directory));
            disk.sync_directories_of(directory)
        }
        // If it exists and is not a directory, opening the file reports that.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes as much as the system takes: how much that was, and why not everything.
fn write_counted(mut file: &fs::File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    /// Whether opening writes to the end of a file with this content, and what is in it then.
    fn opened(before: &str, fsync: Fsync) -> (bool, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.log");
        fs::write(&path, before).unwrap();
        let old = SystemTime::now() - Duration::from_secs(3600);
        fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
        let live = Live::open(&path, &Options::default(), &mut Disk::new(fsync)).unwrap();
        let after = fs::read_to_string(&path).unwrap();
        assert_eq!(live.len(), after.len() as u64);
        (fs::metadata(&path).unwrap().modified().unwrap() > old, after)
    }

    #[test]
    fn the_end_of_the_last_line_of_an_existing_file_is_written_again_to_be_synced_with_what_follows() {
        for (before, after) in [("a\n", "a\n"), ("a\nb\n", "a\nb\n"), ("a\nb", "a\nb\n"), ("a\n{\"time\":", "a\n")] {
            assert_eq!(opened(before, Fsync::Interval), (true, after.to_owned()));
        }
        assert_eq!(opened("", Fsync::Interval), (false, String::new()));
        assert_eq!(opened("a\n", Fsync::Never), (false, "a\n".to_owned()));
    }
}
