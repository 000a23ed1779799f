//! Files that one process at a time uses.

use std::fs::{File, TryLockError};
use std::ops::Deref;

/// A file that is locked against other processes until it is dropped.
///
/// Its drop unlocks it before it is closed. A process that another thread forks has a copy of the descriptor until it
/// executes its program, and a lock that ends with the last descriptor would last as long.
#[derive(Debug)]
pub struct LockedFile(File);

impl LockedFile {
    /// Locks a file.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] when it is locked already, otherwise the system's.
    pub fn lock(file: File) -> Result<LockedFile, TryLockError> {
        file.try_lock()?;
        Ok(LockedFile(file))
    }

    /// Locks a file if its file system can lock; on others there is no lock. `None` when it is locked already.
    pub fn lock_where_supported(file: File) -> Option<LockedFile> {
        (!matches!(file.try_lock(), Err(TryLockError::WouldBlock))).then(|| LockedFile(file))
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing it is what remains if this fails.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_locked_until_it_is_dropped_although_a_forked_process_has_its_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let open = || File::create(directory.path().join("lock")).unwrap();
        let locked = LockedFile::lock(open()).unwrap();
        let copy = locked.try_clone().unwrap();
        assert!(matches!(LockedFile::lock(open()), Err(TryLockError::WouldBlock)));
        assert!(LockedFile::lock_where_supported(open()).is_none());
        drop(locked);
        assert!(LockedFile::lock(open()).is_ok());
        assert!(LockedFile::lock_where_supported(open()).is_some());
        drop(copy);
    }
}
