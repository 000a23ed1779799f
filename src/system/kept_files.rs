//! Files that are kept in a directory until there are too many bytes of them, or they are too old.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{directories, wall_clock};

/// The files of a directory and of its subdirectories, oldest first. Their names begin with their times.
#[derive(Debug, Default)]
pub struct KeptFiles {
    files: VecDeque<KeptFile>,
    bytes: u64,
}

#[derive(Debug)]
struct KeptFile {
    path: PathBuf,
    bytes: u64,
    written: SystemTime,
}

/// The extension of files that are not complete.
const UNFINISHED: &str = "part";
/// The least size of a file in the sum: each has an entry in the list, and in its directory.
pub const FILE_BYTES: u64 = 4096;
/// What a file takes in the list.
const LISTED_FILE_BYTES: u64 = 160;

/// The memory for the list of files that add up to `max_bytes`.
pub fn list_bytes(max_bytes: u64) -> u64 {
    max_bytes.div_ceil(FILE_BYTES).saturating_mul(LISTED_FILE_BYTES)
}

impl KeptFiles {
    /// Reads what an earlier run has left in the directory, and creates it if it does not exist. `suffix`: the extension of the
    /// files, if all have the same one.
    ///
    /// # Errors
    /// The system's.
    pub fn read(dir: &Path, suffix: Option<&str>) -> io::Result<KeptFiles> {
        directories::create(dir)?;
        let mut files: Vec<(OsString, KeptFile)> = Vec::new();
        let mut open = vec![dir.to_owned()];
        while let Some(next) = open.pop() {
            for entry in fs::read_dir(next)? {
                let entry = entry?;
                let path = entry.path();
                let kind = entry.file_type()?;
                let extension = path.extension().and_then(|extension| extension.to_str());
                if kind.is_dir() && suffix.is_none() {
                    open.push(path);
                } else if kind.is_file()
                    && extension != Some(UNFINISHED)
                    && suffix.is_none_or(|suffix| extension == Some(suffix))
                {
                    let metadata = entry.metadata()?;
                    let (bytes, written) = (metadata.len().max(FILE_BYTES), metadata.modified()?);
                    files.push((entry.file_name(), KeptFile { path, bytes, written }));
                }
            }
        }
        files.sort_by(|(a, _), (b, _)| a.cmp(b));
        let files: VecDeque<KeptFile> = files.into_iter().map(|(_, file)| file).collect();
        Ok(KeptFiles { bytes: files.iter().map(|file| file.bytes).sum(), files })
    }

    /// Removes the oldest files until `size` more bytes are at most `max_bytes`; returns how many were removed.
    ///
    /// # Errors
    /// The system's. The file stays in the list.
    pub fn free_space(&mut self, size: u64, max_bytes: u64) -> io::Result<usize> {
        let mut removed = 0;
        while self.bytes.saturating_add(size.max(FILE_BYTES)) > max_bytes && self.remove_first()? {
            removed += 1;
        }
        Ok(removed)
    }

    /// Removes files that are older than this; returns how many were removed.
    ///
    /// # Errors
    /// The system's.
    pub fn expire(&mut self, keep_time: Duration) -> io::Result<usize> {
        let mut removed = 0;
        while self.files.front().is_some_and(|file| wall_clock::age_of(file.written) > keep_time)
            && self.remove_first()?
        {
            removed += 1;
        }
        Ok(removed)
    }

    fn remove_first(&mut self) -> io::Result<bool> {
        let Some(file) = self.files.front() else { return Ok(false) };
        match fs::remove_file(&file.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            // An operator may have removed it already.
            _ => {
                self.bytes -= file.bytes;
                self.files.pop_front();
                Ok(true)
            }
        }
    }

    /// Writes a file; when this returns, it is on the disk.
    ///
    /// # Errors
    /// The system's.
    pub fn add(&mut self, path: PathBuf, parts: &[&[u8]]) -> io::Result<()> {
        write(&path, parts)?;
        let bytes = (parts.iter().map(|part| part.len() as u64).sum::<u64>()).max(FILE_BYTES);
        self.bytes += bytes;
        self.files.push_back(KeptFile { path, bytes, written: SystemTime::now() });
        Ok(())
    }
}

/// Writes a file completely or not at all.
fn write(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".");
    unfinished.push(UNFINISHED);
    let unfinished = PathBuf::from(unfinished);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        directories::sync_directory_of(path)
    })();
    if written.is_err() {
        // An incomplete file is removed; if that fails, its name says that it is incomplete.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_files_are_removed_first_whatever_their_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["b/1-x", "a/2-x", "b/3-x"] {
            directories::create(path(name).parent().unwrap()).unwrap();
            fs::write(path(name), [0; 5000]).unwrap();
        }
        fs::write(path("a/0-x.part"), b"").unwrap();
        let mut kept = KeptFiles::read(dir.path(), None).unwrap();
        assert_eq!(kept.free_space(5000, 20_000).unwrap(), 0);
        kept.add(path("a/4-x"), &[&[1; 2500], &[2; 2500]]).unwrap();
        assert_eq!(kept.free_space(5000, 15_000).unwrap(), 2);
        assert!(!path("b/1-x").exists() && !path("a/2-x").exists() && path("b/3-x").exists());
        assert_eq!(fs::read(path("a/4-x")).unwrap().len(), 5000);
        // One that an operator has removed counts as removed.
        fs::remove_file(path("b/3-x")).unwrap();
        assert_eq!(kept.free_space(5000, 10_000).unwrap(), 1);
    }

    #[test]
    fn files_expire() {
        let dir = tempfile::tempdir().unwrap();
        let mut kept = KeptFiles::read(dir.path(), Some("x")).unwrap();
        kept.add(dir.path().join("1.x"), &[b"1"]).unwrap();
        assert_eq!(kept.expire(Duration::from_secs(3600)).unwrap(), 0);
        kept.files[0].written = SystemTime::now() - Duration::from_secs(7200);
        assert_eq!(kept.expire(Duration::from_secs(3600)).unwrap(), 1);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
