//! Directories that survive a loss of power.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Creates a directory for this user only, and those above it, as [`create_with`] does.
///
/// # Errors
/// The system's.
pub fn create(directory: &Path) -> io::Result<()> {
    create_with(directory, 0o700)
}

/// Creates a directory with these permissions, less the process's mask, and those above it. The name of each is on the disk
/// before anything is created in it, so of existing ones only the last one's can be missing there, after a kill; that is synced,
/// too, where permitted.
///
/// # Errors
/// The system's.
pub fn create_with(directory: &Path, mode: u32) -> io::Result<()> {
    if directory.as_os_str().is_empty() {
        return Ok(());
    }
    let parent = directory_of(directory);
    if directory.is_dir() {
        return match File::open(parent) {
            Ok(parent) => parent.sync_all(),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            Err(error) => Err(error),
        };
    }
    create_with(parent, mode)?;
    match DirBuilder::new().mode(mode).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !directory.is_dir() => Err(error),
        _ => File::open(parent)?.sync_all(),
    }
}

/// The directory that contains `path`; `.` for a bare name.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Forces the names in the directory that contains `path` to the disk: `path` was created, renamed or removed.
///
/// # Errors
/// The system's.
pub fn sync_directory_of(path: &Path) -> io::Result<()> {
    File::open(directory_of(path))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_directories_are_created_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c");
        create(&path).unwrap();
        create(&path).unwrap();
        assert!(path.is_dir());
        std::fs::write(path.join("file"), "").unwrap();
        assert!(create(&path.join("file")).is_err());
        create(Path::new("")).unwrap();
    }
}
