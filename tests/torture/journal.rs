//! The file operations of a daemon, as the library `preload.c` records them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One operation. Paths are relative to the recorded directory.
#[derive(Debug)]
pub(crate) enum Operation {
    Create(PathBuf),
    Write(PathBuf, u64, Vec<u8>),
    Truncate(PathBuf, u64),
    /// A sync of a file or directory begins …
    SyncBegin(PathBuf),
    /// … and has ended, or has failed.
    SyncEnd(PathBuf, bool),
    Rename(PathBuf, PathBuf),
    Unlink(PathBuf),
    MakeDirectory(PathBuf),
    Fault,
}

/// A recorded operation, and the length of the journal behind it.
pub(crate) struct Entry {
    pub(crate) operation: Operation,
    pub(crate) end: u64,
}

/// Builds the library. `None`: there is no C compiler.
pub(crate) fn build(directory: &Path) -> Option<PathBuf> {
    let library = directory.join("preload.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torture/preload.c");
    let arguments = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"];
    let built = Command::new("cc").args(arguments).arg(&library).args([source, "-ldl", "-lpthread"]).status().ok()?;
    assert!(built.success(), "{source} does not compile");
    Some(library)
}

/// Reads the journal of `root`, up to its last whole entry.
pub(crate) fn read(journal: &[u8], root: &Path) -> Vec<Entry> {
    let root = root.canonicalize().unwrap();
    let mut entries = Vec::new();
    let mut at = 0;
    let number =
        |at: usize, bytes: usize| journal[at..at + bytes].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    while journal.len() - at >= 21 {
        let (code, result) = (journal[at], number(at + 1, 4) as u32 as i32);
        let [first, second] = [5, 7].map(|offset| number(at + offset, 2) as usize);
        let (offset, length) = (number(at + 9, 8), number(at + 17, 4) as usize);
        at += 21;
        if journal.len() - at < first + second + length {
            break;
        }
        let path = |from: usize, length: usize| {
            let path = Path::new(std::str::from_utf8(&journal[from..from + length]).unwrap());
            path.strip_prefix(&root).unwrap().to_owned()
        };
        let name = path(at, first);
        let operation = match code {
            1 => Operation::Create(name),
            2 => Operation::Write(name, offset, journal[at + first + second..][..length].to_vec()),
            3 => Operation::Truncate(name, offset),
            4 => Operation::SyncBegin(name),
            5 => Operation::SyncEnd(name, result == 0),
            6 => Operation::Rename(name, path(at + first, second)),
            7 => Operation::Unlink(name),
            8 => Operation::MakeDirectory(name),
            9 => Operation::Fault,
            other => panic!("operation {other} in the journal"),
        };
        at += first + second + length;
        entries.push(Entry { operation, end: at as u64 });
    }
    entries
}
