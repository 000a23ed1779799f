//! The file sink on a disk that is full. In a process of its own: mounting forks, and a fork holds the locks of the
//! files that other tests have open.

#![allow(clippy::unwrap_used, reason = "clippy knows test functions, but not what they call")]

mod sink_file_support;

use std::fs;
use std::path::Path;
use std::process::Command;

use sink_file_support::{all_names, files, in_order, is_retry, names, now, write_as};
use tempfile::TempDir;
use tributary::sink::Sink;
use tributary::sink::file::{Compression, File, Fsync, Options};

#[tokio::test]
async fn a_full_disk_tears_nothing_and_everything_is_there_once_there_is_room() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("note: not allowed to mount a tmpfs, so the full disk is not tested here");
        return;
    };
    for fsync in Fsync::ALL {
        let filler = disk.path().join("filler");
        // 1 MiB less room for a few dozen records, and not a multiple of what a record needs.
        fs::write(&filler, vec![0; 1024 * 1024 - 40 * 1024]).unwrap();
        let path = format!("{}/app.log", disk.path().display());
        let mut sink = File::new(Options { path, fsync, ..Options::default() }).unwrap();
        let expected = names(0..200, 700);
        for (index, part) in expected.chunks(10).enumerate() {
            let written = write_as(&mut sink, part, "web", now()).await;
            if index == 19 {
                written.unwrap();
            }
        }
        let message = is_retry(sink.flush().await);
        assert!(message.contains("app.log: ") && message.contains("space"), "{message}");
        let before = all_names(disk.path());
        assert_eq!(before, expected[..before.len()]);
        // With fsync in every flush what is not on the disk as a whole is taken back as a whole.
        assert_eq!(before.is_empty(), fsync == Fsync::Always);
        is_retry(sink.flush().await);
        assert_eq!(all_names(disk.path()), before);
        fs::remove_file(&filler).unwrap();
        sink.flush().await.unwrap();
        sink.tick().await.unwrap();
        assert_eq!(all_names(disk.path()), expected, "fsync {}", fsync.as_str());
        drop(sink);
        fs::remove_file(disk.path().join("app.log")).unwrap();
    }
}

#[tokio::test]
async fn a_disk_too_full_to_compress_keeps_the_original() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("note: not allowed to mount a tmpfs, so the full disk is not tested here");
        return;
    };
    let path = format!("{}/app.log", disk.path().display());
    let gzip = Options { path, compression: Compression::Gzip, rotate_bytes: 10_000, ..Options::default() };
    let mut sink = File::new(gzip).unwrap();
    let expected = names(0..20, 700);
    // Room for the records, for the empty file that takes the new name, and for no further page.
    fs::write(disk.path().join("filler"), vec![0; 1024 * 1024 - 5 * 4096]).unwrap();
    write_as(&mut sink, &expected, "web", now()).await.unwrap();
    sink.flush().await.unwrap();
    sink.wait_for_compression().await;
    let ours = in_order(disk.path());
    assert_eq!(ours.len(), 2);
    assert!(ours.iter().all(|path| path.extension().unwrap() == "log"), "{ours:?}");
    assert_eq!(files(disk.path()).len(), 3, "no beginning of a compressed file is left");
    assert_eq!(all_names(disk.path()), expected);
}

/// A file system of 1 MiB, gone when dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// `None` when this process may not mount.
    fn mount() -> Option<SmallDisk> {
        let directory = tempfile::tempdir().unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(directory.path()).output();
        mount.is_ok_and(|output| output.status.success()).then_some(SmallDisk(directory))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, so that a file which a failed test left open does not keep it.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
