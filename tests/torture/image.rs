//! What a loss of power may leave on a disk.
//!
//! The rules are those of a strict file system: the content of a file is there up to its last sync that ended well; of what was
//! written later, any first part, cut at a multiple of 512 bytes. Names (of new files, renamed ones, removed ones) are there
//! when their directory was synced; of later changes of names, any first part. What was written before a failed sync is
//! gone, whatever later syncs say.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::journal::Operation;
use super::rng::Rng;

const SECTOR: u64 = 512;

/// A file system: what the daemon sees, and what is on the disk.
#[derive(Default)]
pub(crate) struct Disk {
    files: Vec<File>,
    /// The names that the daemon sees: files, or directories (`None`).
    seen: BTreeMap<PathBuf, Option<usize>>,
    /// The names on the disk.
    durable: BTreeMap<PathBuf, Option<usize>>,
    /// Changes of names that are not on the disk.
    pending: Vec<Change>,
    /// How much was pending when a sync began.
    syncs: HashMap<PathBuf, usize>,
}

#[derive(Default)]
struct File {
    durable: Vec<u8>,
    pending: Vec<Write>,
    /// How many of the pending writes the sync that runs began with.
    syncing: usize,
}

#[derive(Clone)]
enum Write {
    Data(u64, Vec<u8>),
    Length(u64),
}

#[derive(Clone)]
enum Change {
    Add(PathBuf, Option<usize>),
    /// With the file (or directory, `None`) that has the first name. It gets the second one also if the first one is not on the
    /// disk.
    Rename(PathBuf, PathBuf, Option<Option<usize>>),
    Remove(PathBuf),
}

impl Disk {
    /// Carries an operation out.
    pub(crate) fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Create(path) => {
                self.files.push(File::default());
                self.change(Change::Add(path.clone(), Some(self.files.len() - 1)));
            }
            Operation::MakeDirectory(path) => self.change(Change::Add(path.clone(), None)),
            Operation::Rename(from, to) => {
                let renamed = self.seen.get(from).copied();
                self.change(Change::Rename(from.clone(), to.clone(), renamed));
            }
            Operation::Unlink(path) => self.change(Change::Remove(path.clone())),
            Operation::Write(path, offset, data) => {
                if let Some(file) = self.file(path) {
                    file.pending.push(Write::Data(*offset, data.clone()));
                }
            }
            Operation::Truncate(path, length) => {
                if let Some(file) = self.file(path) {
                    file.pending.push(Write::Length(*length));
                }
            }
            Operation::SyncBegin(path) => match self.file(path) {
                Some(file) => file.syncing = file.pending.len(),
                None => drop(self.syncs.insert(path.clone(), self.pending.len())),
            },
            Operation::SyncEnd(path, is_done) => self.end_sync(path, *is_done),
            Operation::Fault => {}
        }
    }

    fn end_sync(&mut self, path: &Path, is_done: bool) {
        if let Some(file) = self.file(path) {
            if !is_done {
                file.pending.clear();
            }
            let count = file.syncing.min(file.pending.len());
            let synced: Vec<_> = file.pending.drain(..count).collect();
            synced.iter().for_each(|write| write.apply(&mut file.durable, u64::MAX));
            file.syncing = 0;
        } else if is_done && let Some(count) = self.syncs.remove(path) {
            let count = count.min(self.pending.len());
            let (synced, later): (Vec<_>, Vec<_>) = self.pending.drain(..count).partition(|change| change.is_in(path));
            self.pending.splice(..0, later);
            synced.iter().for_each(|change| change.apply(&mut self.durable));
            // A name in another directory that a file had before it was renamed does not come back.
            let renamed = synced.iter().filter_map(|change| match change {
                Change::Rename(from, ..) if from.parent() != Some(path) => Some(from),
                _ => None,
            });
            for from in renamed {
                self.pending.retain(|change| !matches!(change, Change::Add(path, _) if path == from));
            }
        }
    }

    fn file(&mut self, path: &Path) -> Option<&mut File> {
        let index = (*self.seen.get(path)?)?;
        self.files.get_mut(index)
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.seen);
        self.pending.push(change);
    }

    /// Writes into `directory` what a loss of power now may leave.
    pub(crate) fn write(&self, directory: &Path, rng: &mut Rng) {
        let mut names = self.durable.clone();
        let kept = rng.below(self.pending.len() as u64 + 1) as usize;
        self.pending[..kept].iter().for_each(|change| change.apply(&mut names));
        for (path, file) in &names {
            let path = directory.join(path);
            // A name whose directory is not on the disk is not there either.
            match file {
                None => drop(fs::create_dir(&path)),
                Some(file) if path.parent().is_some_and(Path::is_dir) => {
                    let created = fs::File::create(&path).unwrap();
                    created.write_all_at(&self.files[*file].after_loss(rng), 0).unwrap();
                }
                Some(_) => {}
            }
        }
    }
}

impl File {
    fn after_loss(&self, rng: &mut Rng) -> Vec<u8> {
        let mut content = self.durable.clone();
        let kept = rng.below(self.pending.len() as u64 + 1) as usize;
        self.pending[..kept].iter().for_each(|write| write.apply(&mut content, u64::MAX));
        // The next write is there up to a sector.
        if let Some(write @ Write::Data(offset, data)) = self.pending.get(kept) {
            let sectors = (*offset + data.len() as u64) / SECTOR - *offset / SECTOR;
            let cut = (*offset / SECTOR + rng.below(sectors + 1)) * SECTOR;
            write.apply(&mut content, cut.max(*offset));
        }
        content
    }
}

impl Write {
    /// Carries it out, up to this offset in the file.
    fn apply(&self, content: &mut Vec<u8>, up_to: u64) {
        match self {
            Write::Length(length) => content.resize(*length as usize, 0),
            Write::Data(offset, data) => {
                let end = (offset + data.len() as u64).min(up_to) as usize;
                let offset = *offset as usize;
                if end > offset {
                    content.resize(content.len().max(end), 0);
                    content[offset..end].copy_from_slice(&data[..end - offset]);
                }
            }
        }
    }
}

impl Change {
    fn is_in(&self, directory: &Path) -> bool {
        let is_child = |path: &Path| path.parent() == Some(directory);
        match self {
            Change::Add(path, _) | Change::Remove(path) => is_child(path),
            Change::Rename(from, to, _) => is_child(from) || is_child(to),
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, Option<usize>>) {
        match self {
            Change::Add(path, file) => drop(names.insert(path.clone(), *file)),
            Change::Remove(path) => drop(names.remove(path)),
            // A file: whatever had the first name on the disk before, the second one is that of this file.
            Change::Rename(from, to, Some(Some(file))) => {
                names.remove(from);
                names.insert(to.clone(), Some(*file));
            }
            Change::Rename(from, to, _) => {
                let moved: Vec<_> = names.keys().filter(|path| path.starts_with(from)).cloned().collect();
                for path in moved {
                    let file = names.remove(&path).unwrap();
                    let rest = path.strip_prefix(from).unwrap();
                    names.insert(if rest.as_os_str().is_empty() { to.clone() } else { to.join(rest) }, file);
                }
            }
        }
    }
}
