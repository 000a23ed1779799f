//! Which messages of a stream are in the files, so that one that is delivered again is not written again, also after a kill.
//!
//! A log beside the files has, for each round of appending:
//!
//! - `+`: where each file ended before anything of the round was appended to it;
//! - `~`: of parts of messages that wait for one of their files, how many events each of the others has;
//! - `=`: the parts that are in the files completely. It is the end of the round: everything that was appended is accounted for;
//! - `-`: a part that was written, and that a failed sync or a fault of a file has taken back;
//! - `s`: a mark that everything before it is on the disk.
//!
//! After a kill a start cuts off what was appended and is not followed by `=`: it was never reported as written. After a loss of
//! power it cuts off nothing, and forgets what is not followed by `s`: the log is not synced, so it does not say what was reported.

mod log;
mod read;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use self::log::Log;
use self::read::{Had, Identity, Read, shown};
pub(super) use self::read::{Share, Shares};
use super::disk::Disk;
use super::options::Fsync;
use tributary_codec::digest::short_digest;
use tributary_event::MessagePart;
use tributary_sink::{AckLevel, Unwritten};

/// A log is made shorter when it has twice the bytes that are needed, and this many more.
const SPARE_BYTES: u64 = 1 << 20;
/// It grows by at most this many bytes beyond that; then a mark is due, whatever the options say.
const UNMARKED_BYTES: u64 = 8 << 20;

/// The messages that the files of a sink have.
#[derive(Debug)]
pub(super) struct Messages {
    log: Log,
    /// A mark makes a log of this length shorter. 0: the log was removed, and does not have everything.
    shorten_at: u64,
    /// Whether the log says nothing that is not on the disk.
    is_marked: bool,
    /// The most parts that are remembered. 0: messages are written as often as they are delivered.
    limit: usize,
    is_loaded: bool,
    known: HashSet<MessagePart>,
    order: VecDeque<MessagePart>,
    /// What an earlier process has written in part, until it is delivered again.
    begun: BTreeMap<MessagePart, Shares>,
    /// Parts that were taken and are not written, by the number of their batch.
    pending: BTreeMap<u64, PendingMessage>,
    /// Parts that are written since the last mark.
    unsynced: BTreeMap<u64, MessagePart>,
    repeats: Vec<Repeat>,
    /// Files whose length is in the log since the last `=`.
    noted: HashSet<Identity>,
}

#[derive(Debug)]
struct PendingMessage {
    part: MessagePart,
    /// As the log has them, and those that have nothing written yet.
    shares: Shares,
    /// Events of it were dropped: it is not remembered.
    has_failed: bool,
}

/// A batch that is the same part as an earlier one, which is not delivered yet.
#[derive(Debug)]
struct Repeat {
    number: u64,
    events: u64,
    level: AckLevel,
    /// The number of the earlier one.
    of: u64,
    has_failed: bool,
}

/// What is to be written of a batch that is a part of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// All of it.
    New,
    /// What follows these first events: the files have them.
    Rest(Shares),
    /// Nothing: the files have it.
    Known,
    /// Nothing: an earlier batch is the same part. This one is delivered with it, or fails with it.
    Repeated,
}

impl Messages {
    /// Of the files of a template, which are below `base`.
    pub(super) fn new(base: &Path, template: &str, limit: usize) -> Messages {
        Messages {
            log: Log::new(base.join(format!(".tributary-messages-{}", short_digest(template)))),
            shorten_at: SPARE_BYTES,
            is_marked: true,
            limit,
            is_loaded: false,
            known: HashSet::new(),
            order: VecDeque::new(),
            begun: BTreeMap::new(),
            pending: BTreeMap::new(),
            unsynced: BTreeMap::new(),
            repeats: Vec::new(),
            noted: HashSet::new(),
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
        if let Some((text, _locked)) = self.log.read()? {
            let Had { parts, mut begun } = Read::of(&text).recover(disk)?;
            if self.limit == 0 {
                // A later process that remembers messages would cut off what this one writes.
                self.log.remove()?;
            } else {
                parts.into_iter().for_each(|part| self.remember(part));
                while begun.len() > self.limit {
                    begun.pop_first();
                }
                self.begun = begun;
                self.shorten()?;
            }
        }
        self.is_loaded = true;
        Ok(())
    }

    /// A batch with this number is a part of a message; `events` of it are taken, and delivered at `level`.
    pub(super) fn begin(&mut self, number: u64, part: MessagePart, (events, level): (u64, AckLevel)) -> Begin {
        let is_known = self.known.contains(&part);
        let pending = self.pending.iter().find(|(_, pending)| pending.part == part);
        let mut earlier = pending.map(|(number, pending)| (*number, pending.has_failed));
        if earlier.is_none() && is_known && level == AckLevel::Durable {
            let unsynced = self.unsynced.iter().find(|(_, unsynced)| **unsynced == part);
            earlier = unsynced.map(|(number, _)| (*number, false));
        }
        if let Some((of, has_failed)) = earlier {
            self.repeats.push(Repeat { number, events, level, of, has_failed });
            return Begin::Repeated;
        }
        if is_known {
            return Begin::Known;
        }
        let rest = self.begun.remove(&part);
        if self.limit > 0 {
            let shares = rest.clone().unwrap_or_default();
            self.pending.insert(number, PendingMessage { part, shares, has_failed: false });
        }
        rest.map_or(Begin::New, Begin::Rest)
    }

    /// What is for each file of the batch with this number, and which of it the files have already.
    pub(super) fn set_shares(&mut self, number: u64, shares: Shares) {
        if let Some(pending) = self.pending.get_mut(&number) {
            pending.shares = shares;
        }
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
        self.append(&format!("+ {length} {dev} {ino} {}\n", path.display()))?;
        self.noted.insert(identity);
        Ok(())
    }

    /// The end of a round: what waited was written, except what still `waits`: the number of events for each file, by
    /// batch.
    ///
    /// # Errors
    /// The system's: the log does not have it. The parts are not repeated as long as this process runs.
    pub(super) fn commit(&mut self, waits: &BTreeMap<u64, BTreeMap<&Path, u64>>, fsync: Fsync) -> io::Result<()> {
        let (mut lines, mut done) = (String::new(), String::new());
        for (number, mut pending) in std::mem::take(&mut self.pending) {
            let part = pending.part;
            match waits.get(&number) {
                Some(unwritten) => {
                    if !pending.has_failed {
                        note_written(&mut lines, &mut pending, unwritten);
                    }
                    self.pending.insert(number, pending);
                }
                None if pending.has_failed => {}
                None => {
                    let _ = write!(done, "{}{}", if done.is_empty() { " " } else { ", " }, shown(part));
                    self.remember(part);
                    self.unsynced.insert(number, part);
                }
            }
        }
        // Also if nothing is complete: what was appended may be of other batches, which are delivered now.
        if lines.is_empty() && done.is_empty() && self.noted.is_empty() {
            return Ok(());
        }
        // A torn last line is none, so a kill leaves all of it or nothing.
        let _ = writeln!(lines, "={done}");
        self.noted.clear();
        self.append(&lines)?;
        if fsync == Fsync::Never { self.mark() } else { Ok(()) }
    }

    /// What was written of failed batches is written again when they come again. Call it before `unwritten` is reported.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn forget(&mut self, unwritten: &Unwritten) -> io::Result<()> {
        let Unwritten { failed, lost, .. } = unwritten;
        if failed.is_empty() && lost.is_empty() {
            return Ok(());
        }
        let mut lines = String::new();
        for (number, pending) in self.pending.iter_mut().filter(|(number, _)| failed.contains_key(*number)) {
            if !pending.has_failed && pending.shares.values().any(|share| share.written > 0) {
                let _ = writeln!(lines, "- {}", shown(pending.part));
            }
            pending.has_failed = true;
            note_failed(&mut self.repeats, *number);
        }
        // What is lost is of batches that were delivered already; which ones is not known.
        let is_lost = |number: &u64| !lost.is_empty() || failed.contains_key(number);
        let numbers: Vec<u64> = self.unsynced.keys().copied().filter(is_lost).collect();
        for number in numbers {
            if let Some(part) = self.unsynced.remove(&number) {
                self.known.remove(&part);
                self.order.retain(|known| *known != part);
                let _ = writeln!(lines, "- {}", shown(part));
            }
            note_failed(&mut self.repeats, number);
        }
        if lines.is_empty() { Ok(()) } else { self.append(&lines) }
    }

    /// Whether a repeated batch waits until what is written is on the disk.
    pub(super) fn awaits_mark(&self) -> bool {
        self.repeats.iter().any(|repeat| repeat.level == AckLevel::Durable && self.unsynced.contains_key(&repeat.of))
    }

    /// Adds the repeated batches that are not delivered to what is reported. Returns the number of events of those that are.
    pub(super) fn settle_repeats(&mut self, unwritten: &mut Unwritten) -> u64 {
        let mut delivered = 0;
        let Messages { repeats, pending, unsynced, .. } = self;
        repeats.retain(|repeat| {
            let Repeat { number, events, level, of, has_failed } = *repeat;
            if pending.contains_key(&of) {
                unwritten.held.insert(number, events);
                return true;
            }
            if level == AckLevel::Durable && unsynced.contains_key(&of) {
                unwritten.unsynced.insert(number);
                return true;
            }
            if has_failed {
                unwritten.failed.insert(number, events);
            } else {
                delivered += events;
            }
            false
        });
        delivered
    }

    /// Whether the log has a length at which everything is to be synced and marked now.
    pub(super) fn is_long(&self) -> bool {
        self.log.bytes() > self.shorten_at + UNMARKED_BYTES
    }

    /// Everything that was written is on the disk.
    ///
    /// # Errors
    /// The system's: a loss of power can then repeat messages.
    pub(super) fn mark(&mut self) -> io::Result<()> {
        // In the middle of a round the log does not say yet what was written.
        if self.is_marked || !self.noted.is_empty() {
            return Ok(());
        }
        self.unsynced.clear();
        if self.log.bytes() >= self.shorten_at {
            return self.shorten();
        }
        self.append("s\n")?;
        self.is_marked = true;
        Ok(())
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

    fn append(&mut self, lines: &str) -> io::Result<()> {
        self.is_marked = false;
        let appended = self.log.append(lines);
        if appended.is_err() {
            self.noted.clear();
            // The next mark writes what is remembered to a new one.
            self.shorten_at = 0;
        }
        appended
    }

    /// Writes a new log of what is remembered, between two rounds. All of it is on the disk.
    fn shorten(&mut self) -> io::Result<()> {
        let mut lines = String::new();
        for (part, shares) in &self.begun {
            note_shares(&mut lines, *part, shares);
        }
        for pending in self.pending.values().filter(|pending| !pending.has_failed) {
            note_shares(&mut lines, pending.part, &pending.shares);
        }
        lines.push_str("=\n");
        for part in &self.order {
            let _ = writeln!(lines, "= {}", shown(*part));
        }
        lines.push_str("s\n");
        self.log.replace(&lines)?;
        self.is_marked = true;
        self.shorten_at = 2 * self.log.bytes() + SPARE_BYTES;
        Ok(())
    }
}

/// Adds lines for what was written of a part, given what is unwritten for each file.
fn note_written(lines: &mut String, pending: &mut PendingMessage, unwritten: &BTreeMap<&Path, u64>) {
    for (path, share) in &mut pending.shares {
        let rest = unwritten.get(path.as_path()).copied().unwrap_or(0);
        let written = share.total.saturating_sub(rest);
        if written > share.written {
            share.written = written;
            note_share(lines, pending.part, path, *share);
        }
    }
}

fn note_shares(lines: &mut String, part: MessagePart, shares: &Shares) {
    for (path, share) in shares.iter().filter(|(_, share)| share.written > 0) {
        note_share(lines, part, path, *share);
    }
}

fn note_share(lines: &mut String, part: MessagePart, path: &Path, Share { written, total }: Share) {
    let _ = writeln!(lines, "~ {written} {total} {} {}", shown(part), path.display());
}

/// The batch with this number has failed, and those that repeat it.
fn note_failed(repeats: &mut [Repeat], number: u64) {
    repeats.iter_mut().filter(|repeat| repeat.of == number).for_each(|repeat| repeat.has_failed = true);
}

#[cfg(test)]
mod tests;
