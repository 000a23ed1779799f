//! Which files were uploaded, where they are kept after that: a list in a hidden file beside them.
//!
//! A line of the list is `LENGTH PATH`, with the path below the directory of the sink. A line is appended and synced after the
//! store has confirmed the file, so a kill before that only means that the store is asked again. A line without its end is
//! ignored. Lines of files that are gone are removed at the start.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tributary_system::directories;

/// The files that one url has.
#[derive(Debug)]
pub(super) struct Uploaded {
    list: PathBuf,
    base: PathBuf,
    /// The lengths of files, by their paths below the base.
    files: BTreeMap<PathBuf, u64>,
}

impl Uploaded {
    /// Reads the list of files below `base` that `of`, a url and a template, has.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(base: &Path, of: &str) -> io::Result<Uploaded> {
        let list = base.join(format!(".uploaded-{:08x}", crc32c::crc32c(of.as_bytes())));
        let text = match fs::read(&list) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let mut files = BTreeMap::new();
        let mut is_changed = false;
        for line in text.split_inclusive('\n') {
            let read = line.strip_suffix('\n').and_then(|line| line.split_once(' '));
            let read = read.and_then(|(bytes, path)| Some((PathBuf::from(path), bytes.parse().ok()?)));
            let exists = |(path, bytes): &(PathBuf, u64)| {
                fs::symlink_metadata(base.join(path)).is_ok_and(|metadata| metadata.len() == *bytes)
            };
            match read.filter(exists) {
                Some((path, bytes)) => drop(files.insert(path, bytes)),
                None => is_changed = true,
            }
        }
        let uploaded = Uploaded { list, base: base.to_owned(), files };
        if is_changed {
            uploaded.write_again()?;
        }
        Ok(uploaded)
    }

    /// Whether this file of this length was uploaded.
    pub(super) fn contains(&self, path: &Path, bytes: u64) -> bool {
        path.strip_prefix(&self.base).is_ok_and(|path| self.files.get(path) == Some(&bytes))
    }

    /// Remembers a file. When this returns, it is remembered also after a loss of power.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn add(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        let path = path.strip_prefix(&self.base).unwrap_or(path);
        let is_new = !fs::exists(&self.list)?;
        let mut list = OpenOptions::new().append(true).create(true).open(&self.list)?;
        let result = list.write_all(line(path, bytes).as_bytes()).and_then(|()| list.sync_data());
        if result.is_err() {
            // A part of a line must not stay before the next one.
            self.write_again()?;
            return result;
        }
        if is_new {
            directories::sync_directory_of(&self.list)?;
        }
        self.files.insert(path.to_owned(), bytes);
        Ok(())
    }

    /// Forgets a file that was removed here. Its line stays in the list until the next start.
    pub(super) fn remove(&mut self, path: &Path) -> bool {
        path.strip_prefix(&self.base).is_ok_and(|path| self.files.remove(path).is_some())
    }

    fn write_again(&self) -> io::Result<()> {
        let temporary = self.list.with_extension("tmp");
        let mut file = fs::File::create(&temporary)?;
        let text: String = self.files.iter().map(|(path, bytes)| line(path, *bytes)).collect();
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &self.list)?;
        directories::sync_directory_of(&self.list)
    }
}

fn line(path: &Path, bytes: u64) -> String {
    format!("{bytes} {}\n", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploaded_files_are_remembered_until_they_are_removed_and_half_a_line_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path();
        let open = || Uploaded::open(base, "s3://bucket").unwrap();
        let [one, two] = ["one", "two"].map(|name| base.join(name));
        fs::write(&one, "1").unwrap();
        fs::write(&two, "22").unwrap();
        let mut uploaded = open();
        uploaded.add(&one, 1).unwrap();
        uploaded.add(&two, 2).unwrap();
        assert!(uploaded.contains(&one, 1) && !uploaded.contains(&one, 2));
        let list = uploaded.list.clone();
        let text = fs::read_to_string(&list).unwrap();
        fs::write(&list, &text[..text.len() - 1]).unwrap();
        let mut uploaded = open();
        assert!(uploaded.contains(&one, 1) && !uploaded.contains(&two, 2));
        uploaded.add(&two, 2).unwrap();
        fs::remove_file(&one).unwrap();
        let mut uploaded = open();
        assert!(!uploaded.contains(&one, 1) && uploaded.contains(&two, 2));
        assert_eq!(fs::read_to_string(&list).unwrap(), "2 two\n");
        assert!(uploaded.remove(&two) && !uploaded.contains(&two, 2));
        assert!(!Uploaded::open(base, "s3://other").unwrap().contains(&two, 2));
    }
}
