//! What a log says, and what a start makes of it: it cuts off what is not completed, and forces the rest to the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::log::{HEAD, boot};
use crate::disk::{Disk, lock};
use crate::options::Fsync;
use tributary_event::MessagePart;
use tributary_system::directories::directory_of;

/// Device and inode.
pub(super) type Identity = (u64, u64);

/// What files got of a part of a message, by the path that the template gives them.
pub(crate) type Shares = BTreeMap<PathBuf, Share>;

/// What one file got of a part of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// How many of the events are in the file: the first ones.
    pub(crate) written: u64,
    /// How many events of the part are for this file.
    pub(crate) total: u64,
}

/// What the files have of messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Had {
    /// Parts that are complete, in the order in which they were completed.
    pub(super) parts: Vec<MessagePart>,
    /// Parts that are not.
    pub(super) begun: BTreeMap<MessagePart, Shares>,
}

/// What a log says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    boot: String,
    had: Had,
    /// How many of the complete parts are followed by a mark, and which others were partly written there.
    marked: usize,
    marked_begun: BTreeMap<MessagePart, Shares>,
    /// Shares that are not followed by `=`.
    open: Vec<(MessagePart, PathBuf, Share)>,
    /// Where files ended before what is not followed by `=`.
    uncommitted: BTreeMap<Identity, (u64, PathBuf)>,
    /// Files that were written since the last mark.
    unmarked: BTreeMap<Identity, PathBuf>,
}

impl Read {
    /// Reads a log. A line at the end that is not complete is left out. So is what follows a line that is not ours; then nothing
    /// is to be cut off, because what follows may say that it is completed.
    pub(super) fn of(text: &str) -> Read {
        let mut read = Read::default();
        let mut lines = text.split_inclusive('\n').map_while(|line| line.strip_suffix('\n'));
        match lines.next().and_then(|head| head.strip_prefix(HEAD)?.strip_prefix(' ')) {
            Some(boot) => read.boot = boot.trim().to_owned(),
            None => return read,
        }
        for line in lines {
            if read.line(line).is_none() {
                read.uncommitted.clear();
                break;
            }
        }
        read
    }

    fn line(&mut self, line: &str) -> Option<()> {
        match line.split_at_checked(1)? {
            ("+", rest) => {
                let mut words = rest.trim_start().splitn(4, ' ');
                let length = words.next()?.parse().ok()?;
                let identity = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                let path = PathBuf::from(words.next()?);
                self.uncommitted.entry(identity).or_insert((length, path.clone()));
                self.unmarked.insert(identity, path);
            }
            ("~", rest) => {
                let mut words = rest.trim_start().splitn(7, ' ');
                let share = Share { written: words.next()?.parse().ok()?, total: words.next()?.parse().ok()? };
                self.open.push((part(&mut words)?, PathBuf::from(words.next()?), share));
            }
            ("=", rest) => {
                let texts = rest.split(',').filter(|text| !text.is_empty());
                let parts: Option<Vec<_>> = texts.map(|text| part(&mut text.split_ascii_whitespace())).collect();
                let parts = parts?;
                for (part, path, share) in self.open.drain(..) {
                    self.had.begun.entry(part).or_default().insert(path, share);
                }
                parts.iter().for_each(|part| drop(self.had.begun.remove(part)));
                self.had.parts.extend(parts);
                self.uncommitted.clear();
            }
            // The log that had it may have been removed.
            ("-", rest) => {
                let part = part(&mut rest.split_ascii_whitespace())?;
                if let Some(at) = self.had.parts.iter().rposition(|known| *known == part) {
                    self.had.parts.remove(at);
                    self.marked = self.marked.min(at);
                }
                self.had.begun.remove(&part);
                self.marked_begun.remove(&part);
            }
            ("s", "") => {
                self.marked = self.had.parts.len();
                self.marked_begun.clone_from(&self.had.begun);
                self.unmarked.clear();
            }
            _ => return None,
        }
        Some(())
    }

    /// After a kill, cuts off what is not completed. Forces what was written to the disk: it may be in the memory of the system
    /// only. Returns what the files have; after a loss of power that is what they had at the last mark.
    ///
    /// # Errors
    /// The system's. Nothing may be written then; do it again.
    pub(super) fn recover(self, disk: &Disk) -> io::Result<Had> {
        let is_same_boot = !self.boot.is_empty() && self.boot == boot();
        if is_same_boot {
            for (identity, (length, path)) in &self.uncommitted {
                cut_to(path, *identity, *length)?;
            }
        }
        if disk.fsync != Fsync::Never {
            let mut directories = BTreeSet::new();
            for (identity, path) in &self.unmarked {
                if let Some(path) = find(path, *identity)? {
                    (disk.sync_data)(&File::open(&path)?)?;
                    directories.insert(directory_of(&path).to_owned());
                }
            }
            directories.iter().try_for_each(|directory| disk.sync_existing(directory))?;
        }
        if is_same_boot {
            return Ok(self.had);
        }
        let mut parts = self.had.parts;
        parts.truncate(self.marked);
        Ok(Had { parts, begun: self.marked_begun })
    }
}

/// A part as a log has it.
pub(super) fn shown(part: MessagePart) -> String {
    let MessagePart { stream, sequence, first_line, end_line } = part;
    format!("{stream:016x} {sequence} {first_line} {end_line}")
}

fn part<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<MessagePart> {
    Some(MessagePart {
        stream: u64::from_str_radix(words.next()?, 16).ok()?,
        sequence: words.next()?.parse().ok()?,
        first_line: words.next()?.parse().ok()?,
        end_line: words.next()?.parse().ok()?,
    })
}

/// Shortens a file to what it had, if it still exists under any name of its directory and no other process writes it.
fn cut_to(path: &Path, identity: Identity, length: u64) -> io::Result<()> {
    let Some(path) = find(path, identity)? else { return Ok(()) };
    let file = lock(OpenOptions::new().write(true).open(&path)?)?;
    let now = file.metadata()?.len();
    if now > length {
        file.set_len(length)?;
        file.sync_data()?;
        tracing::info!(path = %path.display(), bytes = now - length, "cut off what an earlier process has not completed; it is delivered again");
    }
    Ok(())
}

/// The name of a file that may have been finished meanwhile. `None`: it has none any more.
fn find(path: &Path, identity: Identity) -> io::Result<Option<PathBuf>> {
    let is_it = |path: &Path| fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == identity);
    if is_it(path) {
        return Ok(Some(path.to_owned()));
    }
    let entries = match fs::read_dir(directory_of(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if is_it(&path) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(sequence: u64) -> MessagePart {
        MessagePart { stream: 7, sequence, first_line: 0, end_line: 2 }
    }

    fn of(lines: &str) -> Read {
        Read::of(&format!("{HEAD} a\n{lines}"))
    }

    #[test]
    fn a_log_that_is_none_says_nothing_and_after_a_line_that_is_not_ours_nothing_is_cut() {
        for text in ["", "x\n", HEAD, "tributary-messages-1 a\n+ 1 2 3 p\n", "tributary-messages-20 a\n+ 1 2 3 p\n"] {
            assert_eq!(Read::of(text), Read::default(), "{text}");
        }
        for line in ["+ x", "= 1", "~ 1 2 7 1 0 p", "s s", "?", ""] {
            let read = of(&format!("= {}\n+ 1 2 3 p\n{line}\n= {}\n", shown(part(1)), shown(part(2))));
            assert_eq!((read.had.parts, read.uncommitted.len(), read.unmarked.len()), (vec![part(1)], 0, 1), "{line}");
        }
    }

    #[test]
    fn an_end_of_a_round_completes_what_was_appended_and_a_torn_one_does_not() {
        let (one, two) = (shown(part(1)), shown(part(2)));
        let round = format!("+ 1 2 3 p\n~ 4 9 {one} a b\n");
        let mut read = of(&format!("{round}="));
        assert_eq!((read.uncommitted.len(), read.had), (1, Had::default()));
        read = of(&format!("{round}=\n"));
        let share = Share { written: 4, total: 9 };
        assert_eq!(read.uncommitted.len(), 0);
        assert_eq!(read.had.begun, BTreeMap::from([(part(1), Shares::from([("a b".into(), share)]))]));
        read = of(&format!("{round}= {two}\ns\n= {one}\n- {two}\n- {two}\n"));
        assert_eq!(read.had, Had { parts: vec![part(1)], begun: BTreeMap::new() });
        assert_eq!((read.marked, read.marked_begun.len()), (0, 1), "as it was at the mark");
    }

    #[test]
    fn a_foreign_file_is_not_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.log");
        fs::write(&path, "as it was").unwrap();
        cut_to(&path, (1, 1), 2).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "as it was");
    }
}
