//! Refused requests that an operator wants to be sent again: they are moved from `refused/` to `retry/`, from which the process that
//! uses the spool, or the next one, appends them.
//!
//! `NAME.request` waits there; `NAME.taken` is being appended, and is removed when the record is synced. A kill in between leaves it,
//! and the next start appends it again.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::directory::{self, RETRY};
use super::snapshot::{Refused, refused};

const WAITING: &str = "request";
const TAKEN: &str = "taken";

/// Moves the refused requests that `is_wanted` chooses, by what they are and when they were refused, to where they are sent again.
/// Returns the moved ones.
///
/// # Errors
/// The system's, with the path. What was moved before stays moved.
pub fn retry_refused(
    directory: &Path,
    is_wanted: impl Fn(&Refused, SystemTime) -> bool,
) -> Result<Vec<Refused>, (PathBuf, io::Error)> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| (path, error)
    };
    let target = directory.join(RETRY);
    let mut moved = Vec::new();
    for path in refused(directory).map_err(at(directory))? {
        let request = Refused::read(path.clone()).map_err(at(&path))?;
        let refused_at = fs::metadata(&path).and_then(|metadata| metadata.modified()).map_err(at(&path))?;
        if !is_wanted(&request, refused_at) {
            continue;
        }
        if moved.is_empty() {
            create(directory, &target).map_err(at(&target))?;
        }
        fs::rename(&path, target.join(path.file_name().unwrap_or_default())).map_err(at(&path))?;
        moved.push(request);
    }
    if !moved.is_empty() {
        directory::sync(&target).map_err(at(&target))?;
        directory::sync(&directory.join("refused")).map_err(at(directory))?;
    }
    Ok(moved)
}

/// Creates the directory for the user of the spool, who may be another one than this process's.
fn create(spool: &Path, target: &Path) -> io::Result<()> {
    directory::create(target)?;
    let owner = fs::metadata(spool)?;
    // Only root can give a directory away.
    let _ = chown(target, Some(owner.uid()), Some(owner.gid()));
    Ok(())
}

/// Requests whose process was killed while it appended them wait again.
///
/// # Errors
/// The system's.
pub(super) fn restore(directory: &Path) -> io::Result<()> {
    for path in files(directory, TAKEN)? {
        fs::rename(&path, path.with_extension(WAITING))?;
    }
    Ok(())
}

/// The next request that is to be sent again. It is taken until it is [put back](put_back), or its file is removed.
///
/// # Errors
/// The system's.
pub(super) fn take(directory: &Path) -> io::Result<Option<Refused>> {
    let Some(path) = files(directory, WAITING)?.into_iter().next() else { return Ok(None) };
    let taken = path.with_extension(TAKEN);
    // First, so that a file that cannot be removed later is not appended.
    fs::rename(&path, &taken)?;
    Refused::read(taken).map(Some)
}

/// A request that could not be appended waits again.
///
/// # Errors
/// The system's.
pub(super) fn put_back(request: &Refused) -> io::Result<()> {
    fs::rename(&request.path, request.path.with_extension(WAITING))
}

/// The files with this extension, in the order of their names.
fn files(directory: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory.join(RETRY)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|of| of == extension));
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_moved_taken_and_waiting_again_after_a_kill() {
        let directory = tempfile::tempdir().unwrap();
        let spool = directory.path();
        assert!(take(spool).unwrap().is_none() && retry_refused(spool, |_, _| true).unwrap().is_empty());
        for id in ["a-1", "a-2", "a-3"] {
            directory::keep_refused(spool, id, 7, "400 no", id.as_bytes()).unwrap();
        }
        let moved = retry_refused(spool, |request, _| request.id() != "a-2").unwrap();
        let events: Vec<u32> = moved.iter().map(Refused::events).collect();
        assert_eq!(events, [7, 7]);
        assert_eq!(refused(spool).unwrap().len(), 1);
        let first = take(spool).unwrap().unwrap();
        assert_eq!((first.id().as_str(), first.events(), &first.payload[..]), ("a-1", 7, &b"a-1"[..]));
        let second = take(spool).unwrap().unwrap();
        assert!(take(spool).unwrap().is_none());
        put_back(&second).unwrap();
        fs::remove_file(&first.path).unwrap();
        assert_eq!(take(spool).unwrap().unwrap().payload, b"a-3");
        // The process is killed.
        assert!(take(spool).unwrap().is_none());
        restore(spool).unwrap();
        assert_eq!(take(spool).unwrap().unwrap().payload, b"a-3");
    }
}
