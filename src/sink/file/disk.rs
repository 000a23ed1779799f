//! Forcing files and directories to the disk, and locks.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::options::Fsync;
use tributary_system::locked_file::LockedFile;

/// When and how data and names are forced to the disk.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) fsync: Fsync,
    /// `File::sync_data`; tests put a failing one in its place.
    pub(super) sync_data: fn(&fs::File) -> io::Result<()>,
    /// [`sync_directory`]; tests put a failing one in its place.
    pub(super) sync_directory: fn(&Path) -> io::Result<()>,
    /// Directories with a new name in them that is not known to be on the disk.
    unsynced: Vec<PathBuf>,
}

impl Disk {
    pub(super) fn new(fsync: Fsync) -> Disk {
        Disk { fsync, sync_data: fs::File::sync_data, sync_directory, unsynced: Vec::new() }
    }

    /// The directory has a new name in it, or one less.
    pub(super) fn note_change(&mut self, directory: &Path) {
        if self.fsync != Fsync::Never && !self.unsynced.iter().any(|known| known == directory) {
            self.unsynced.push(directory.to_owned());
        }
    }

    /// Forces a directory to the disk that an earlier process may have changed: it can have been killed before it did so. One
    /// that this process may not read is left as it is.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn sync_existing(&self, directory: &Path) -> io::Result<()> {
        use io::ErrorKind::{NotFound, PermissionDenied};
        if self.fsync == Fsync::Never {
            return Ok(());
        }
        (self.sync_directory)(directory).or_else(|error| match error.kind() {
            NotFound | PermissionDenied => Ok(()),
            _ => Err(error),
        })
    }

    /// Forces the changed directories that lead to `path` to the disk. One that fails stays noted, so the next call tries
    /// it again.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn sync_directories_of(&mut self, path: &Path) -> io::Result<()> {
        let sync = self.sync_directory;
        let mut result = Ok(());
        self.unsynced.retain(|directory| {
            let leads_to_path = path.starts_with(directory) || directory == Path::new(".");
            if !leads_to_path || result.is_err() {
                return true;
            }
            match sync(directory) {
                // A directory that was removed has no names to keep.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    result = Err(error);
                    true
                }
                _ => false,
            }
        });
        result
    }
}

/// Forces the names in a directory to the disk.
///
/// # Errors
/// The system's.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}

/// Locks a file against other writers: two writers would cut off each other's unfinished records. Not every file system can
/// lock; on others there is no lock.
///
/// # Errors
/// Another process has the lock.
pub(super) fn lock(file: fs::File) -> io::Result<LockedFile> {
    let in_use = || io::Error::new(io::ErrorKind::ResourceBusy, "another process is writing it");
    LockedFile::lock_where_supported(file).ok_or_else(in_use)
}

/// Injected faults, for the tests of this folder. Each test runs on a thread of its own.
#[cfg(test)]
pub(super) mod faults {
    use std::cell::Cell;
    use std::fs;
    use std::io;
    use std::path::Path;

    thread_local! {
        static FAILING_SYNCS: Cell<u32> = const { Cell::new(0) };
        static SYNCS: Cell<u32> = const { Cell::new(0) };
    }

    /// The next `count` syncs of files or directories fail.
    pub(crate) fn fail_syncs(count: u32) {
        FAILING_SYNCS.set(count);
    }

    /// The number of syncs of this thread so far, failed ones included.
    pub(crate) fn syncs() -> u32 {
        SYNCS.get()
    }

    fn fail() -> io::Result<()> {
        SYNCS.set(SYNCS.get() + 1);
        let left = FAILING_SYNCS.get();
        FAILING_SYNCS.set(left.saturating_sub(1));
        if left > 0 { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }

    pub(crate) fn sync_data(file: &fs::File) -> io::Result<()> {
        fail().and_then(|()| file.sync_data())
    }

    pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
        fail().and_then(|()| fs::File::open(directory)?.sync_all())
    }
}
