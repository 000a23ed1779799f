//! The file of a log. It is never synced but when it is replaced, so that a sync of a file of the sink stays one sync.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

use crate::disk::lock;
use tributary_system::directories::{self, directory_of};
use tributary_system::locked_file::LockedFile;

/// The first word of a log, with its version.
pub(super) const HEAD: &str = "tributary-messages-2";
/// A longer log is not read: it is not ours.
const MAX_BYTES: u64 = 256 << 20;
/// The file with an id that Linux creates at each start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Lines that are appended.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: Option<LockedFile>,
    bytes: u64,
}

impl Log {
    pub(super) fn new(path: PathBuf) -> Log {
        Log { path, file: None, bytes: 0 }
    }

    /// Its length.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads what an earlier process has left; `None`: nothing. It is locked as long as the file lives.
    ///
    /// # Errors
    /// The system's; also when another process has it.
    pub(super) fn read(&self) -> io::Result<Option<(String, LockedFile)>> {
        use io::ErrorKind::{NotADirectory, NotFound};
        let file = match OpenOptions::new().read(true).append(true).open(&self.path) {
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
            file => lock(file?)?,
        };
        if file.metadata()?.len() > MAX_BYTES {
            let why = format!("{} is too long to be a log of messages; remove it", self.path.display());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        let mut bytes = Vec::new();
        (&*file).read_to_end(&mut bytes)?;
        Ok(Some((String::from_utf8_lossy(&bytes).into_owned(), file)))
    }

    /// Adds lines. When that fails there is no log any more: one without what is reported next would have that cut off.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn append(&mut self, lines: &str) -> io::Result<()> {
        let appended = self.try_append(lines);
        if appended.is_err() {
            self.remove()?;
        }
        appended
    }

    fn try_append(&mut self, lines: &str) -> io::Result<()> {
        let text = match self.file {
            Some(_) => lines.to_owned(),
            None => {
                directories::create(directory_of(&self.path))?;
                let file = OpenOptions::new().create(true).append(true).open(&self.path)?;
                self.file = Some(lock(file)?);
                format!("{HEAD} {}\n{lines}", boot())
            }
        };
        if let Some(file) = &self.file {
            (&**file).write_all(text.as_bytes())?;
            self.bytes += text.len() as u64;
        }
        Ok(())
    }

    /// Writes a new one with these lines, and syncs it.
    ///
    /// # Errors
    /// The system's. The log is as it was, or the new one is not synced.
    pub(super) fn replace(&mut self, lines: &str) -> io::Result<()> {
        let text = format!("{HEAD} {}\n{lines}", boot());
        let unfinished = self.path.with_extension("part");
        let file = lock(OpenOptions::new().create(true).write(true).truncate(true).open(&unfinished)?)?;
        (&*file).write_all(text.as_bytes())?;
        file.sync_data()?;
        fs::rename(&unfinished, &self.path)?;
        self.file = Some(file);
        self.bytes = text.len() as u64;
        directories::sync_directory_of(&self.path)
    }

    /// The next write to it fails.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self) {
        self.file = Some(lock(OpenOptions::new().append(true).open("/dev/full").unwrap()).unwrap());
    }

    /// Removes it.
    ///
    /// # Errors
    /// The system's: it still exists, and it may be empty.
    pub(super) fn remove(&mut self) -> io::Result<()> {
        self.bytes = 0;
        if let Some(file) = self.file.take() {
            // It says nothing then, also if it must not be removed. A fault: removing it is enough.
            let _ = file.set_len(0);
        }
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The start of the machine. Empty: it is not known.
pub(super) fn boot() -> String {
    fs::read_to_string(BOOT_ID).map(|id| id.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_cannot_be_written_is_removed_or_at_least_emptied() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("log"), directory.path().join("moved"));
        let mut log = Log::new(path.clone());
        log.append("+ 1 2 3 p\n").unwrap();
        assert_eq!(log.bytes(), fs::metadata(&path).unwrap().len());
        log.fill_disk();
        assert!(log.append("=\n").is_err());
        assert!(!path.exists() && log.bytes() == 0);
        log.append("s\n").unwrap();
        // A directory cannot be removed with `remove_file`.
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(log.remove().is_err());
        assert_eq!(fs::metadata(&moved).unwrap().len(), 0);
    }
}
