//! Which messages of a stream are in the files, so that one that is delivered again is not written again, also after a kill.
//!
//! A log beside the files has, in this order: where each file ended before anything of a message was appended to it (`+`), the
//! parts of messages that are in the files completely (`=`), and a mark when all of them are on the disk (`s`). After a kill a
//! start cuts off what was appended and is not followed by `=`: it was never reported as written. After a loss of power it cuts
//! off nothing, and forgets the parts that are not followed by `s`: the log is not synced, so it does not say what was reported.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::disk::{Disk, lock};
use super::options::Fsync;
use crate::codec::digest::short_digest;
use crate::directories::{self, directory_of};
use crate::event::MessagePart;

/// The first word of a log, with its version.
const HEAD: &str = "tributary-messages-1";
/// A longer log is not read: it is not ours.
const MAX_LOG_BYTES: u64 = 256 << 20;
/// Where Linux tells one start of the machine from another.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Device and inode.
type Identity = (u64, u64);

/// The messages that the files of a sink have.
#[derive(Debug)]
pub(super) struct Messages {
    path: PathBuf,
    /// The most parts that are remembered. 0: messages are written as often as they are delivered.
    limit: usize,
    log: Option<File>,
    is_loaded: bool,
    known: HashSet<MessagePart>,
    order: VecDeque<MessagePart>,
    /// Parts that were taken and are not written, by the number of their batch.
    pending: BTreeMap<u64, MessagePart>,
    /// Parts that are written since the last mark.
    unsynced: BTreeMap<u64, MessagePart>,
    /// Files whose length is in the log since the last `=`.
    noted: HashSet<Identity>,
    /// Parts in the log.
    logged: usize,
}

/// What a log says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read {
    boot: String,
    parts: Vec<MessagePart>,
    /// How many of these are followed by a mark.
    marked: usize,
    /// Where files ended before what is not followed by `=`.
    uncommitted: BTreeMap<Identity, (u64, PathBuf)>,
    /// Files that were written since the last mark.
    unmarked: BTreeMap<Identity, PathBuf>,
}

impl Messages {
    /// Of the files of a template, which are below `base`.
    pub(super) fn new(base: &Path, template: &str, limit: usize) -> Messages {
        Messages {
            path: base.join(format!(".tributary-messages-{}", short_digest(template))),
            limit,
            log: None,
            is_loaded: limit == 0,
            known: HashSet::new(),
            order: VecDeque::new(),
            pending: BTreeMap::new(),
            unsynced: BTreeMap::new(),
            noted: HashSet::new(),
            logged: 0,
        }
    }

    /// Reads what an earlier process has left, and cuts off what that has not completed. Call it before files are repaired or
    /// written.
    ///
    /// # Errors
    /// The system's. Nothing may be written then; call it again.
    pub(super) fn load(&mut self, disk: &Disk) -> io::Result<()> {
        if self.is_loaded {
            return Ok(());
        }
        let file = match OpenOptions::new().read(true).append(true).open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.is_loaded = true;
                return Ok(());
            }
            file => file?,
        };
        lock(&file)?;
        if file.metadata()?.len() > MAX_LOG_BYTES {
            let why = format!("{} is too long to be a log of messages; remove it", self.path.display());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        let mut bytes = Vec::new();
        (&file).read_to_end(&mut bytes)?;
        let read = Read::of(&String::from_utf8_lossy(&bytes));
        let is_same_boot = !read.boot.is_empty() && read.boot == boot();
        let trusted = if is_same_boot { read.parts.len() } else { read.marked };
        if is_same_boot {
            for (identity, (length, path)) in &read.uncommitted {
                cut_to(path, *identity, *length)?;
            }
        }
        if disk.fsync != Fsync::Never {
            // What the process has written is in memory of the system only, until this.
            for (identity, path) in &read.unmarked {
                if let Some(file) = find(path, *identity)? {
                    (disk.sync_data)(&File::open(file)?)?;
                }
            }
        }
        self.log = Some(file);
        read.parts[..trusted].iter().for_each(|part| self.remember(*part));
        self.rewrite()?;
        self.is_loaded = true;
        Ok(())
    }

    /// A batch with this number is a part of a message. `false`: the files have it already.
    pub(super) fn begin(&mut self, number: u64, part: MessagePart) -> bool {
        if self.known.contains(&part) {
            return false;
        }
        if self.limit > 0 {
            self.pending.insert(number, part);
        }
        true
    }

    /// Whether parts of messages wait to be written.
    pub(super) fn is_needed(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Notes where a file ends, before anything of a message is appended to it.
    ///
    /// # Errors
    /// The system's: nothing may be appended.
    pub(super) fn note(&mut self, path: &Path, identity: Identity, length: u64) -> io::Result<()> {
        if self.pending.is_empty() || self.noted.contains(&identity) {
            return Ok(());
        }
        let path = std::path::absolute(path)?;
        let (dev, ino) = identity;
        // Names of files have no line feeds: they are made of a template and of names.
        let line = format!("+ {length} {dev} {ino} {}\n", path.display());
        self.append(&line)?;
        self.noted.insert(identity);
        Ok(())
    }

    /// What waited was written, but for the batches with these numbers, which still wait, and those that have failed.
    ///
    /// # Errors
    /// The system's: the log does not have them. They are not repeated as long as this process runs.
    pub(super) fn commit(
        &mut self,
        waiting: &BTreeSet<u64>,
        failed: &BTreeMap<u64, u64>,
        fsync: Fsync,
    ) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let taken = std::mem::take(&mut self.pending);
        let (waits, done): (BTreeMap<_, _>, BTreeMap<_, _>) =
            taken.into_iter().partition(|(number, _)| waiting.contains(number));
        self.pending = waits;
        // One line, so that a kill leaves all of it or nothing.
        let mut line = String::new();
        for (number, part) in done.into_iter().filter(|(number, _)| !failed.contains_key(number)) {
            let _ = write!(line, "{}{}", if line.is_empty() { "= " } else { ", " }, shown(part));
            self.remember(part);
            self.unsynced.insert(number, part);
            self.logged += 1;
        }
        if line.is_empty() {
            return Ok(());
        }
        line.push('\n');
        self.noted.clear();
        self.append(&line)?;
        if fsync == Fsync::Never { self.mark() } else { Ok(()) }
    }

    /// What was written of these batches was lost by a failed sync: they are written again when they come again.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn forget(&mut self, failed: &BTreeMap<u64, u64>) -> io::Result<()> {
        let mut lines = String::new();
        for number in failed.keys() {
            if let Some(part) = self.unsynced.remove(number) {
                self.known.remove(&part);
                self.order.retain(|known| *known != part);
                let _ = writeln!(lines, "- {}", shown(part));
            }
        }
        if lines.is_empty() { Ok(()) } else { self.append(&lines) }
    }

    /// Everything that was written is on the disk.
    ///
    /// # Errors
    /// The system's: a loss of power can then repeat messages.
    pub(super) fn mark(&mut self) -> io::Result<()> {
        if self.unsynced.is_empty() {
            return Ok(());
        }
        self.unsynced.clear();
        if self.logged > 2 * self.limit && self.pending.is_empty() {
            return self.rewrite();
        }
        self.noted.clear();
        self.append("s\n")
    }

    fn remember(&mut self, part: MessagePart) {
        if self.known.insert(part) {
            self.order.push_back(part);
        }
        while self.order.len() > self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// Adds lines. When that fails there is no log any more: one without what is reported next would have that cut off.
    fn append(&mut self, lines: &str) -> io::Result<()> {
        let appended = self.try_append(lines);
        if appended.is_err() {
            self.log = None;
            self.noted.clear();
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        appended
    }

    fn try_append(&mut self, lines: &str) -> io::Result<()> {
        match &mut self.log {
            Some(log) => log.write_all(lines.as_bytes()),
            None => {
                directories::create(directory_of(&self.path))?;
                let log = OpenOptions::new().create(true).append(true).open(&self.path)?;
                lock(&log)?;
                let text = format!("{HEAD} {}\n{lines}", boot());
                self.log.insert(log).write_all(text.as_bytes())
            }
        }
    }

    /// Writes a new log of what is remembered, all of which is on the disk.
    fn rewrite(&mut self) -> io::Result<()> {
        let mut text = format!("{HEAD} {}\n", boot());
        for part in &self.order {
            let _ = writeln!(text, "= {}", shown(*part));
        }
        text.push_str("s\n");
        let unfinished = self.path.with_extension("part");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(&unfinished)?;
        lock(&file)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        fs::rename(&unfinished, &self.path)?;
        directories::sync_directory_of(&self.path)?;
        self.log = Some(file);
        self.logged = self.order.len();
        self.noted.clear();
        Ok(())
    }
}

impl Read {
    /// Reads a log. A line at the end that is not complete, and what follows a line that is not ours, is left out.
    fn of(text: &str) -> Read {
        let mut read = Read::default();
        let mut lines = text.split_inclusive('\n').map_while(|line| line.strip_suffix('\n'));
        match lines.next().and_then(|head| head.strip_prefix(HEAD)) {
            Some(boot) => read.boot = boot.trim().to_owned(),
            None => return read,
        }
        for line in lines {
            if read.line(line).is_none() {
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
            ("=", rest) => {
                self.parts.extend(rest.split(',').map(part).collect::<Option<Vec<_>>>()?);
                self.uncommitted.clear();
            }
            ("-", rest) => {
                let part = part(rest)?;
                let at = self.parts.iter().rposition(|known| *known == part)?;
                self.parts.remove(at);
                self.marked = self.marked.min(at);
            }
            ("s", "") => {
                self.marked = self.parts.len();
                self.unmarked.clear();
            }
            _ => return None,
        }
        Some(())
    }
}

fn shown(part: MessagePart) -> String {
    let MessagePart { stream, sequence, part } = part;
    format!("{stream:016x} {sequence} {part}")
}

fn part(text: &str) -> Option<MessagePart> {
    let mut words = text.split_ascii_whitespace();
    let stream = u64::from_str_radix(words.next()?, 16).ok()?;
    Some(MessagePart { stream, sequence: words.next()?.parse().ok()?, part: words.next()?.parse().ok()? })
}

/// The start of the machine. Empty: it is not known.
fn boot() -> String {
    fs::read_to_string(BOOT_ID).map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Shortens a file to what it had, if it still exists under any name of its directory and no other process writes it.
fn cut_to(path: &Path, identity: Identity, length: u64) -> io::Result<()> {
    let Some(path) = find(path, identity)? else { return Ok(()) };
    let file = OpenOptions::new().write(true).open(&path)?;
    lock(&file)?;
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

    fn part(sequence: u64, part: u32) -> MessagePart {
        MessagePart { stream: 7, sequence, part }
    }

    /// Messages in a directory, and a file with them.
    fn messages(directory: &Path) -> (Messages, Disk, PathBuf) {
        let disk = Disk::new(Fsync::Interval);
        let mut messages = Messages::new(directory, "x", 4);
        messages.load(&disk).unwrap();
        (messages, disk, directory.join("app.log"))
    }

    fn append(messages: &mut Messages, path: &Path, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        let metadata = file.metadata().unwrap();
        messages.note(path, (metadata.dev(), metadata.ino()), metadata.len()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn commit(messages: &mut Messages) {
        messages.commit(&BTreeSet::new(), &BTreeMap::new(), Fsync::Interval).unwrap();
    }

    #[test]
    fn after_a_kill_what_is_not_committed_is_cut_off_under_any_name_and_what_is_committed_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let (mut first, _, path) = messages(directory.path());
        assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "no log without messages");
        append(&mut first, &path, "other\n");
        assert!(first.begin(1, part(1, 0)));
        append(&mut first, &path, "one\n");
        commit(&mut first);
        assert!(!first.begin(2, part(1, 0)) && first.begin(3, part(1, 1)));
        append(&mut first, &path, "two\n");
        // It is finished, and another one begins, before the kill.
        fs::rename(&path, directory.path().join("app.log.1")).unwrap();
        append(&mut first, &path, "three\n");
        drop(first);
        let (mut second, ..) = messages(directory.path());
        assert_eq!(fs::read_to_string(directory.path().join("app.log.1")).unwrap(), "other\none\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        assert!(!second.begin(1, part(1, 0)) && second.begin(2, part(1, 1)));
        assert!(second.begin(3, MessagePart { stream: 8, ..part(1, 0) }), "of another stream");
    }

    #[test]
    fn what_waits_or_has_failed_is_not_known_and_the_oldest_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let (mut first, ..) = messages(directory.path());
        (1..=3).for_each(|number| assert!(first.begin(number, part(number, 0))));
        first.commit(&BTreeSet::from([1]), &BTreeMap::from([(2, 1)]), Fsync::Interval).unwrap();
        assert!(first.is_needed() && first.begin(4, part(2, 0)) && !first.begin(5, part(3, 0)));
        commit(&mut first);
        // The sync of the second one fails.
        first.forget(&BTreeMap::from([(4, 1)])).unwrap();
        (5..=7).for_each(|number| assert!(first.begin(number, part(number, 0))));
        commit(&mut first);
        first.mark().unwrap();
        drop(first);
        let (mut second, ..) = messages(directory.path());
        let known: Vec<_> = (1..=7).filter(|number| !second.begin(*number, part(*number, 0))).collect();
        assert_eq!(known, [1, 5, 6, 7], "four of them");
    }

    #[test]
    fn after_a_loss_of_power_nothing_is_cut_and_only_what_is_on_the_disk_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let (mut first, _, path) = messages(directory.path());
        for number in 1..=3 {
            assert!(first.begin(number, part(number, 0)));
            append(&mut first, &path, "line\n");
            if number < 3 {
                commit(&mut first);
            }
            if number == 1 {
                first.mark().unwrap();
            }
        }
        let log = first.path.clone();
        let text = fs::read_to_string(&log).unwrap().replace(&boot(), "another-start");
        drop(first);
        // Its end is torn, too.
        fs::write(&log, text + "= 0000").unwrap();
        let (mut second, ..) = messages(directory.path());
        assert_eq!(fs::read_to_string(&path).unwrap(), "line\n".repeat(3));
        let known: Vec<_> = (1..=3).filter(|number| !second.begin(*number, part(*number, 0))).collect();
        assert_eq!(known, [1]);
    }

    #[test]
    fn a_log_that_is_none_says_nothing_and_a_foreign_file_is_not_cut() {
        for text in
            ["", "x\n", "tributary-messages-1", "tributary-messages-1 a\n+ x\n", "tributary-messages-1 a\n= 1\n"]
        {
            let read = Read::of(text);
            assert!(read.parts.is_empty() && read.uncommitted.is_empty(), "{text}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.log");
        fs::write(&path, "as it was").unwrap();
        cut_to(&path, (1, 1), 2).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "as it was");
    }
}
