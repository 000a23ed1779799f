//! One open file that records are appended to.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::names;
use super::options::{Fsync, Options};
use super::queue::Queue;
use super::tail;
use crate::event::UnixNanos;
use crate::log_throttle::LogThrottle;

/// Says that half a record is still in a file.
static TORN: LogThrottle = LogThrottle::new();

/// A file that is being written. Between two calls it ends where a record ends, unless the system refused even to
/// shorten it; then the next call tries again before it writes anything.
#[derive(Debug)]
pub(super) struct Live {
    path: PathBuf,
    file: fs::File,
    /// Device and inode, by which a file is the same under any name.
    identity: (u64, u64),
    len: u64,
    /// Bytes at the end that are part of no whole record and still have to be cut off.
    torn: u64,
    dirty: bool,
    opened: Instant,
}

impl Live {
    /// Opens a file for appending; creates it, and the directories above it, where they are missing. What a killed
    /// process left half-written at its end is put right.
    ///
    /// # Errors
    /// The system's; also when another process is writing the file, or when it is no regular file.
    pub(super) fn open(path: &Path, options: &Options) -> io::Result<Live> {
        // TapRequest before opening, because opening a named pipe or a device can do things by itself.
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = open_or_create(path, options.fsync)?;
        // Two writers would cut off each other's unfinished records. Not every file system can lock; those go without.
        if let Err(fs::TryLockError::WouldBlock) = file.try_lock() {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process is writing it"));
        }
        let metadata = file.metadata()?;
        let mut live = Live {
            path: path.to_owned(),
            file,
            identity: (metadata.dev(), metadata.ino()),
            len: 0,
            torn: 0,
            dirty: false,
            opened: Instant::now(),
        };
        if !live.is_in_place() {
            // Its last writer finished it between our opening and our locking; the next attempt finds a new one.
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "it was moved while being opened"));
        }
        live.len = tail::mend(&live.file, path, options.format)?;
        Ok(live)
    }

    /// Whether the path still leads to this file. Notices, too, when somebody else has shortened it.
    pub(super) fn is_in_place(&mut self) -> bool {
        match fs::metadata(&self.path) {
            Ok(metadata) if (metadata.dev(), metadata.ino()) == self.identity => {
                self.len = metadata.len().saturating_sub(self.torn);
                true
            }
            Ok(_) => false,
            // A directory that may not be searched just now says nothing about the file.
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        }
    }

    /// Length in bytes, whole records only.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether something was written that is not known to be on the disk.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// When it was opened.
    pub(super) fn opened(&self) -> Instant {
        self.opened
    }

    /// Writes the first `chunk` bytes of the queue, which end where a record does, and takes what is written out of
    /// the queue: under [`Fsync::Always`] only what is on the disk.
    ///
    /// # Errors
    /// The system's. The file then ends after the last record that was taken out of the queue.
    pub(super) fn append(&mut self, queue: &mut Queue, chunk: usize, fsync: Fsync) -> io::Result<()> {
        self.cut()?;
        let (written, mut result) = write_counted(&self.file, &queue.bytes()[..chunk]);
        self.dirty |= written > 0;
        if result.is_ok() && fsync == Fsync::Always {
            result = self.sync();
        }
        let whole = match (&result, fsync) {
            (Ok(()), _) => written,
            // After a failed fsync the system may have dropped what it was given: all of it is to be written anew.
            (Err(_), Fsync::Always) => 0,
            (Err(_), _) => queue.whole_within(written),
        };
        self.torn = (written - whole) as u64;
        self.len += whole as u64;
        queue.advance(whole);
        if result.is_err()
            && let Err(error) = self.cut()
            && let Some(suppressed) = TORN.permit()
        {
            tracing::warn!(path = %self.path.display(), %error, suppressed, "cannot cut off a half-written record yet");
        }
        result
    }

    /// Forces what was written to the disk.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        self.dirty = false;
        Ok(())
    }

    /// Makes the file ready to be let go of: nothing torn, and on the disk when `fsync` asks for that at all.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn settle(&mut self, fsync: Fsync) -> io::Result<()> {
        self.cut()?;
        if self.dirty && fsync != Fsync::Never { self.sync() } else { Ok(()) }
    }

    /// Gives the file the name of a finished one. Drop it afterwards.
    ///
    /// # Errors
    /// The system's. Whether it still has its old name then, [`Live::is_in_place`] tells.
    pub(super) fn finish(&mut self, now: UnixNanos, fsync: Fsync) -> io::Result<()> {
        self.settle(fsync)?;
        let finished = names::reserve(&self.path, now)?;
        if let Err(error) = fs::rename(&self.path, &finished) {
            // Empty, and made by the line above.
            let _ = fs::remove_file(&finished);
            return Err(error);
        }
        if fsync == Fsync::Never { Ok(()) } else { sync_directory_of(&self.path) }
    }

    /// Cuts off what is torn. Counted from the end, so that it is right even if somebody emptied the file meanwhile.
    fn cut(&mut self) -> io::Result<()> {
        if self.torn > 0 {
            let len = self.file.metadata()?.len();
            self.file.set_len(len.saturating_sub(self.torn))?;
            self.torn = 0;
            self.dirty = true;
        }
        Ok(())
    }
}

/// Forces the names in the directory of `path` to the disk.
///
/// # Errors
/// The system's.
pub(super) fn sync_directory_of(path: &Path) -> io::Result<()> {
    fs::File::open(directory_of(path))?.sync_all()
}

/// The directory that holds `path`; `.` for a bare name.
fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

fn open_or_create(path: &Path, fsync: Fsync) -> io::Result<fs::File> {
    create_directories(directory_of(path), fsync)?;
    // Created apart from opened, to know when the directory has a new name in it that must reach the disk, too.
    let created = OpenOptions::new().read(true).append(true).create_new(true).open(path);
    match created {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            OpenOptions::new().read(true).append(true).create(true).open(path)
        }
        Ok(file) => {
            if fsync != Fsync::Never {
                sync_directory_of(path)?;
            }
            Ok(file)
        }
        Err(error) => Err(error),
    }
}

/// Like `fs::create_dir_all`, and sees to it that what was created reaches the disk.
fn create_directories(directory: &Path, fsync: Fsync) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if directory.parent().is_some() {
        create_directories(directory_of(directory), fsync)?;
    }
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) if fsync != Fsync::Never => sync_directory_of(directory),
        // If what is there is no directory, opening the file says so.
        _ => Ok(()),
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
