//! One file of a file sink: the records that wait for it, the open file, and its trouble. Everything here blocks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::disk::Disk;
use super::live::Live;
use super::options::{Compression, Fsync, Options};
use super::template::Template;
use super::trouble::Trouble;
use crate::event::{EventView, Origin, UnixNanos};
use crate::log_throttle::LogThrottle;
use crate::sink::encode::Encoder;
use crate::sink::records::Records;
use crate::sink::{SinkFault, Unwritten};

/// Reports a fault of a file that another process has moved or removed.
static ABANDONED: LogThrottle = LogThrottle::new();

/// One expansion of the template.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) path: PathBuf,
    /// The newest event taken, and a connection that it came from.
    pub(super) observed: UnixNanos,
    pub(super) origin: Arc<Origin>,
    pub(super) records: Records,
    /// The batches whose records wait here, with the number of their events that this file got.
    batches: Vec<(u64, u64)>,
    pub(super) live: Option<Live>,
    pub(super) last_write: u64,
    pub(super) trouble: Option<Trouble>,
}

/// What an output needs of the sink.
pub(super) struct Context<'a> {
    pub(super) options: &'a Options,
    pub(super) disk: &'a mut Disk,
    pub(super) unwritten: &'a mut Unwritten,
}

impl Output {
    pub(super) fn new(path: PathBuf, observed: UnixNanos, origin: Arc<Origin>) -> Self {
        let (records, batches, live, last_write, trouble) = (Records::default(), Vec::new(), None, 0, None);
        Output { path, observed, origin, records, batches, live, last_write, trouble }
    }

    /// Encodes an event of the batch with this number and adds it to the records. Returns its length.
    pub(super) fn push(&mut self, encoder: &mut Encoder, event: EventView<'_>, batch: u64) -> usize {
        match self.batches.last_mut() {
            Some((last, events)) if *last == batch => *events += 1,
            _ => self.batches.push((batch, 1)),
        }
        self.records.push(encoder, event)
    }

    /// The batches that wait here, each with the number of its events that are not in the file.
    pub(super) fn unwritten(&self) -> impl Iterator<Item = (u64, u64)> {
        // Records are written in order: those that wait are the last ones.
        let mut waiting = self.records.waiting();
        self.batches.iter().rev().map(move |(number, events)| {
            let unwritten = waiting.min(*events);
            waiting -= unwritten;
            (*number, unwritten)
        })
    }

    /// Whether records wait, or are written and not known to be on the disk as `fsync` asks for.
    pub(super) fn has_work(&self) -> bool {
        !self.records.is_empty() || !self.batches.is_empty()
    }

    /// Whether its events are dropped: it cannot be written, and its next try is not due.
    pub(super) fn is_dropping(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.is_permanent() && !trouble.is_due())
    }

    /// Writes what waits, or notes why not; returns whether a file was finished on the way.
    pub(super) fn flush(&mut self, context: &mut Context<'_>, write: u64) -> bool {
        self.last_write = write;
        let mut finished = false;
        match self.write(context, &mut finished) {
            Ok(()) => {
                self.batches.clear();
                self.trouble = None;
            }
            Err((action, error)) => {
                let trouble = Trouble::after(self.trouble.as_ref(), &error);
                let fault = Some(fault(action, &self.path, error));
                if trouble.is_permanent() {
                    for (number, events) in self.unwritten() {
                        *context.unwritten.failed.entry(number).or_default() += events;
                    }
                    self.batches.clear();
                    context.unwritten.failed_fault = fault;
                    self.records.clear();
                    // What of it is in the file already ends after a whole record, or is cut when the file is opened.
                    self.live = None;
                } else {
                    context.unwritten.held_fault = fault;
                }
                self.trouble = Some(trouble);
            }
        }
        finished
    }

    fn write(&mut self, context: &mut Context<'_>, finished: &mut bool) -> Result<(), (&'static str, io::Error)> {
        while !self.records.is_empty() {
            if self.live.as_mut().is_some_and(|live| !live.is_in_place()) {
                self.abandon(context);
            }
            let live = match &mut self.live {
                Some(live) => live,
                None => {
                    let opened = Live::open(&self.path, context.options, context.disk);
                    self.live.insert(opened.map_err(|error| ("write", error))?)
                }
            };
            let room = match context.options.rotate_bytes {
                0 => usize::MAX,
                most => usize::try_from(most.saturating_sub(live.len())).unwrap_or(usize::MAX),
            };
            let chunk = match self.records.whole_within(room) {
                0 if live.len() == 0 => self.records.first(),
                0 => {
                    self.finish(context).map_err(|error| ("rotate", error))?;
                    *finished = true;
                    continue;
                }
                chunk => chunk,
            };
            let appended = live.append(&mut self.records, chunk, context.disk);
            if appended.is_err() && context.options.fsync == Fsync::Always && !live.is_torn() {
                // A descriptor on which a sync failed is not used again.
                self.live = None;
            }
            appended.map_err(|error| ("write", error))?;
        }
        // Names of new files and directories that an earlier call could not force to the disk.
        context.disk.sync_directories_of(&self.path).map_err(|error| ("sync the directory of", error))
    }

    /// Does what is due; returns whether the file was finished.
    pub(super) fn tick(
        &mut self,
        context: &mut Context<'_>,
        template: &Template,
        now: UnixNanos,
        sync_is_due: bool,
    ) -> Result<bool, SinkFault> {
        let Some(live) = &mut self.live else { return Ok(false) };
        if !live.is_in_place() {
            self.abandon(context);
            return Ok(false);
        }
        let rotate_interval = context.options.rotate_interval;
        let interval_is_over = !rotate_interval.is_zero() && live.opened().elapsed() >= rotate_interval;
        // An event may be a little ahead of the clock when the clock was set back; then the date is in the future.
        let date_is_over = now > self.observed && !template.is_current(&self.path, now);
        let compresses = context.options.compression != Compression::None;
        if live.len() > 0 && (interval_is_over || date_is_over && compresses) {
            self.finish(context).map_err(|error| fault("rotate", &self.path, error))?;
            return Ok(true);
        }
        if date_is_over {
            self.close(context)?;
            return Ok(true);
        }
        if sync_is_due {
            self.sync(context);
            let synced = context.disk.sync_directories_of(&self.path);
            synced.map_err(|error| fault("sync the directory of", &self.path, error))?;
        }
        Ok(false)
    }

    fn finish(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.settle(context)?;
        if let Some(live) = &mut self.live {
            live.finish(wall_clock(), context.disk)?;
        }
        self.live = None;
        Ok(())
    }

    pub(super) fn close(&mut self, context: &mut Context<'_>) -> Result<(), SinkFault> {
        self.settle(context).map_err(|error| fault("close", &self.path, error))?;
        self.live = None;
        Ok(())
    }

    /// Prepares the file for being closed: nothing half-written, and on the disk if `fsync` asks for that at all.
    fn settle(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some(live) = &mut self.live {
            live.cut()?;
        }
        if context.options.fsync != Fsync::Never {
            self.sync(context);
        }
        Ok(())
    }

    /// Forces what was written to the disk. When that fails, the system may have dropped what was written since the last
    /// successful sync, and a second sync could succeed all the same. So the bytes are written again through a new
    /// descriptor; when that fails, too, their events are reported as lost. Either way the file is opened again for
    /// the next write.
    fn sync(&mut self, context: &mut Context<'_>) {
        let Some(live) = self.live.as_mut().filter(|live| live.is_dirty()) else { return };
        let Err(error) = live.sync(context.disk) else { return };
        match live.rewrite_unsynced(context.disk) {
            Ok(()) => {
                tracing::warn!(path = %self.path.display(), %error, "fsync failed; the events were written again");
            }
            Err(_) => {
                if live.unsynced_records() > 0 {
                    context.unwritten.lost.push((self.origin.clone(), live.unsynced_records()));
                }
                context.unwritten.lost_fault = Some(fault("sync", &self.path, error));
            }
        }
        self.live = None;
    }

    /// Closes a file that another process has moved or removed. A fault is only logged: there is nothing to retry.
    fn abandon(&mut self, context: &mut Context<'_>) {
        if let Err(fault) = self.close(context)
            && let Some(suppressed) = ABANDONED.permit()
        {
            tracing::warn!(%fault, suppressed, "a file was moved or removed while it was being written");
        }
        self.live = None;
    }
}

fn fault(action: &str, path: &Path, source: io::Error) -> SinkFault {
    SinkFault { action: format!("{action} {}", path.display()), source }
}

pub(super) fn wall_clock() -> UnixNanos {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixNanos(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX))
}
