//! A small file system of its own, which can be full or read-only. Mounting needs root.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A tmpfs, unmounted when dropped.
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts a tmpfs of so many bytes. `None`, with a line on stderr, when this process may not mount.
    pub fn mount(bytes: usize) -> Option<SmallDisk> {
        let directory = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(directory.path()).output();
        if !mount.is_ok_and(|output| output.status.success()) {
            eprintln!("note: not allowed to mount a tmpfs, so the full or read-only disk is not tested here");
            return None;
        }
        Some(SmallDisk(directory))
    }

    /// Forbids every change, or permits changes again.
    pub fn set_read_only(&self, is_read_only: bool) {
        let option = if is_read_only { "remount,ro" } else { "remount,rw" };
        let status = Command::new("mount").args(["-o", option]).arg(self.path()).status().unwrap();
        assert!(status.success(), "{option}");
    }

    /// Takes this many bytes of the disk, with a file.
    pub fn occupy(&self, bytes: usize) {
        fs::write(self.filler(), vec![0; bytes]).unwrap();
    }

    /// Takes all that is left of a disk of `bytes`.
    pub fn occupy_all(&self, bytes: usize) {
        assert!(fs::write(self.filler(), vec![0; bytes]).is_err(), "the disk is not full");
    }

    /// Frees what was taken. The file is truncated, not only removed: a process that another test starts at this moment has
    /// it open until it executes its program, and a removed file keeps its space for as long as it is open.
    pub fn release(&self) {
        File::create(self.filler()).unwrap();
        fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, so that a file which a failed test left open does not keep it.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
