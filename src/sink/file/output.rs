//! One file of a file sink: the records that wait for it, the open file, and when it is tried again. Everything here blocks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::Disk;
use super::live::Live;
use super::messages::Messages;
use super::options::{Fsync, Options, UNSYNCED_SOURCES_BYTES};
use super::template::Template;
use super::write_retry::WriteRetry;
use tributary_event::{EventView, Origin, UnixNanos};
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::FileStatus;
use tributary_sink::encode::Encoder;
use tributary_sink::encode::source::Sources;
use tributary_sink::records::Records;
use tributary_sink::{AckLevel, ActionError, Unwritten};
use tributary_system::wall_clock;

/// Reports a fault of a file that another process has moved or removed.
static ABANDONED: LogThrottle = LogThrottle::new();

/// One expansion of the template.
#[derive(Debug)]
pub(super) struct FileOutput {
    pub(super) path: PathBuf,
    /// The newest event taken, and a connection that it came from.
    pub(super) observed: UnixNanos,
    pub(super) origin: Arc<Origin>,
    pub(super) records: Records,
    /// The sources of records that wait: a file defines them before it gets the records.
    sources: Sources,
    /// The batches whose records wait here.
    batches: Vec<BatchPart>,
    /// Batches that ask to be durable, and are written and not synced.
    unsynced: Vec<BatchPart>,
    pub(super) live: Option<Live>,
    pub(super) last_write: u64,
    pub(super) write_retry: Option<WriteRetry>,
}

/// What a file has of a batch.
#[derive(Debug)]
struct BatchPart {
    number: u64,
    /// The number of its events that this file got.
    events: u64,
    level: AckLevel,
}

/// What all outputs of a sink share.
#[derive(Debug)]
pub(super) struct OutputContext {
    pub(super) options: Options,
    pub(super) disk: Disk,
    pub(super) messages: Messages,
    /// Batches that are not written, for the next report to the worker.
    pub(super) unwritten: Unwritten,
    pub(super) status: Arc<FileStatus>,
}

impl FileOutput {
    pub(super) fn new(path: PathBuf, observed: UnixNanos, origin: Arc<Origin>) -> Self {
        FileOutput {
            path,
            observed,
            origin,
            records: Records::default(),
            sources: Sources::default(),
            batches: Vec::new(),
            unsynced: Vec::new(),
            live: None,
            last_write: 0,
            write_retry: None,
        }
    }

    /// Encodes an event of the batch with this number and level and adds it to the records. Returns its length, and that of the
    /// definition of its source if no other record needs that.
    pub(super) fn push(
        &mut self,
        encoder: &mut Encoder,
        event: EventView<'_>,
        (number, level): (u64, AckLevel),
    ) -> usize {
        match self.batches.last_mut() {
            Some(last) if last.number == number => last.events += 1,
            _ => self.batches.push(BatchPart { number, events: 1, level }),
        }
        let definition = encoder.source(event).map_or(0, |source| self.sources.add(source));
        definition + self.records.push(encoder, event)
    }

    /// Bytes of the records that wait, and of the definitions of their sources.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.records.bytes().len() + self.sources.bytes()
    }

    /// How many events of the batch with this number, which was taken last, are for this file and were not there before.
    pub(super) fn events_of(&self, number: u64) -> u64 {
        self.batches.last().filter(|batch| batch.number == number).map_or(0, |batch| batch.events)
    }

    /// The batches that wait here, each with the number of its events that are not in the file.
    pub(super) fn unwritten(&self) -> impl Iterator<Item = (u64, u64)> {
        // Records are written in order: those that wait are the last ones.
        let mut waiting = self.records.waiting();
        self.batches.iter().rev().map(move |batch| {
            let unwritten = waiting.min(batch.events);
            waiting -= unwritten;
            (batch.number, unwritten)
        })
    }

    /// The batches that ask to be durable and wait for a sync.
    pub(super) fn unsynced(&self) -> impl Iterator<Item = u64> {
        self.unsynced.iter().map(|batch| batch.number)
    }

    /// Whether records wait, or are written and not known to be on the disk as `fsync` asks for.
    pub(super) fn has_work(&self) -> bool {
        !self.records.is_empty() || !self.batches.is_empty()
    }

    /// Whether its events are dropped: it cannot be written, and its next try is not due.
    pub(super) fn is_dropping(&self) -> bool {
        self.write_retry.as_ref().is_some_and(|retry| retry.is_permanent() && !retry.is_due())
    }

    /// Writes what waits, or notes why not; returns whether a file was finished on the way.
    pub(super) fn flush(&mut self, context: &mut OutputContext, write: u64) -> bool {
        self.last_write = write;
        let mut finished = false;
        match self.write(context, &mut finished) {
            Ok(()) => {
                self.write_retry = None;
                // Under other settings they are synced already, or never.
                let is_interval = context.options.fsync == Fsync::Interval;
                let waits_for_sync = is_interval && self.live.as_ref().is_some_and(Live::is_dirty);
                let batches = self.batches.drain(..);
                self.unsynced.extend(batches.filter(|batch| waits_for_sync && batch.level == AckLevel::Durable));
            }
            Err((action, error)) => {
                let fault = fault(action, &self.path, error);
                let retry = WriteRetry::after(self.write_retry.as_ref(), &fault);
                if retry.is_permanent() {
                    for (number, events) in self.unwritten() {
                        *context.unwritten.failed.entry(number).or_default() += events;
                    }
                    self.batches.clear();
                    self.records.clear();
                    self.sources.clear();
                    // What of it is in the file already ends after a whole record, or is cut when the file is opened.
                    if context.options.fsync != Fsync::Never {
                        finished |= self.sync(context);
                    }
                    self.live = None;
                    context.unwritten.failed_fault = Some(fault);
                } else {
                    context.unwritten.held_fault = Some(fault);
                }
                self.write_retry = Some(retry);
            }
        }
        finished
    }

    /// Opens a file whose events were dropped, if its next try is due: whether it can be written again is not known from its
    /// events, because there may be none while the daemon is not ready.
    pub(super) fn probe(&mut self, context: &mut OutputContext) {
        if self.live.is_some() || self.has_work() || !self.write_retry.as_ref().is_some_and(WriteRetry::is_due) {
            return;
        }
        match Live::open(&self.path, &context.options, &mut context.disk) {
            Ok(live) => (self.live, self.write_retry) = (Some(live), None),
            Err(error) => {
                let fault = fault("write", &self.path, error);
                self.write_retry = Some(WriteRetry::after(self.write_retry.as_ref(), &fault));
            }
        }
    }

    fn write(&mut self, context: &mut OutputContext, finished: &mut bool) -> Result<(), (&'static str, io::Error)> {
        while !self.records.is_empty() {
            if self.live.as_mut().is_some_and(|live| !live.is_in_place()) {
                self.abandon(context);
            }
            if self.live.as_ref().is_some_and(Live::is_given_up) {
                *finished |= self.retire(context).map_err(|error| ("give up", error))?;
            }
            let live = match &mut self.live {
                Some(live) => live,
                None => {
                    let opened = Live::open(&self.path, &context.options, &mut context.disk);
                    self.live.insert(opened.map_err(|error| ("write", error))?)
                }
            };
            let definitions = live.missing(&self.sources);
            let used = live.len() + definitions.len() as u64;
            let space = match context.options.rotate_bytes {
                0 => usize::MAX,
                most => usize::try_from(most.saturating_sub(used)).unwrap_or(usize::MAX),
            };
            let space = match context.options.rotate_records {
                0 => space,
                most => space.min(self.records.bytes_of(most.saturating_sub(live.records()))),
            };
            let chunk = match self.records.whole_within(space) {
                0 if live.is_blank() => self.records.first(),
                0 => {
                    self.finish(context).map_err(|error| ("rotate", error))?;
                    *finished = true;
                    continue;
                }
                chunk => chunk,
            };
            let noted = context.messages.note(&self.path, live.identity(), live.len());
            noted.map_err(|error| ("note the end of", error))?;
            live.define(&self.sources, &definitions, &context.disk).map_err(|error| ("write", error))?;
            live.append(&mut self.records, chunk, &context.disk).map_err(|error| ("write", error))?;
            context.status.add_bytes(definitions.len() + chunk);
            if live.unsynced_sources_bytes() > UNSYNCED_SOURCES_BYTES {
                *finished |= self.sync(context);
            }
        }
        self.sources.clear();
        // Names of new files and directories that an earlier call could not force to the disk.
        context.disk.sync_directories_of(&self.path).map_err(|error| ("sync the directory of", error))
    }

    /// Does what is due; returns whether the file was finished.
    pub(super) fn tick(
        &mut self,
        context: &mut OutputContext,
        template: &Template,
        now: UnixNanos,
        sync_is_due: bool,
    ) -> Result<bool, ActionError> {
        let Some(live) = &mut self.live else { return Ok(false) };
        if !live.is_in_place() {
            self.abandon(context);
            return Ok(false);
        }
        let rotate_interval = context.options.rotate_interval;
        let interval_is_over = !rotate_interval.is_zero() && live.opened().elapsed() >= rotate_interval;
        // An event may be a little ahead of the clock when the clock was set back; then the date is in the future.
        let date_is_over = now > self.observed && !template.is_current(&self.path, now);
        if !live.is_blank() && (interval_is_over || date_is_over && context.options.finishes()) {
            self.finish(context).map_err(|error| fault("rotate", &self.path, error))?;
            return Ok(true);
        }
        if date_is_over {
            self.close(context)?;
            return Ok(true);
        }
        let mut is_finished = false;
        if sync_is_due {
            is_finished = self.sync(context);
            let synced = context.disk.sync_directories_of(&self.path);
            synced.map_err(|error| fault("sync the directory of", &self.path, error))?;
        }
        Ok(is_finished)
    }

    fn finish(&mut self, context: &mut OutputContext) -> io::Result<()> {
        self.settle(context)?;
        if let Some(live) = &mut self.live {
            live.finish(wall_clock::now(), &mut context.disk)?;
            context.status.add_finished();
        }
        self.live = None;
        Ok(())
    }

    /// Closes the file, because the operator or the end of the sink asks for it. One of a journal is finished.
    pub(super) fn end(&mut self, context: &mut OutputContext) -> Result<(), ActionError> {
        if context.options.is_journal() && self.live.as_mut().is_some_and(|live| live.len() > 0 && live.is_in_place()) {
            return self.finish(context).map_err(|error| fault("rotate", &self.path, error));
        }
        self.close(context)
    }

    pub(super) fn close(&mut self, context: &mut OutputContext) -> Result<(), ActionError> {
        self.settle(context).map_err(|error| fault("close", &self.path, error))?;
        self.live = None;
        Ok(())
    }

    /// Prepares the file for being closed: nothing half-written, and on the disk if `fsync` asks for that at all.
    fn settle(&mut self, context: &mut OutputContext) -> io::Result<()> {
        if let Some(live) = &mut self.live {
            live.cut()?;
        }
        if context.options.fsync != Fsync::Never {
            self.sync(context);
        }
        Ok(())
    }

    /// Forces what was written to the disk, which makes the batches durable that wait for that. When it fails, the system may
    /// have dropped what was written since the last successful sync, and a second sync could succeed all the same. So the
    /// file is given up, and its records since then are written again to a new one; when that fails, too, their events are
    /// reported as failed or lost. Returns whether a file was finished on the way.
    pub(super) fn sync(&mut self, context: &mut OutputContext) -> bool {
        // One that is given up already has nothing that is not synced: its records wait in memory.
        let live = self.live.take_if(|live| live.is_given_up() || live.is_dirty()).filter(|live| !live.is_given_up());
        let Some(mut live) = live else {
            self.unsynced.clear();
            return false;
        };
        let Err(error) = live.sync(&context.disk) else {
            self.live = Some(live);
            self.unsynced.clear();
            return false;
        };
        let records = live.unsynced_records();
        if records == 0 {
            return false;
        }
        match live.replace(wall_clock::now(), &context.options, &mut context.disk) {
            Ok(live) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "fsync failed; the events since the last one are written to a new file");
                self.live = Some(live);
                self.unsynced.clear();
                context.status.add_finished();
            }
            Err(_) => self.note_lost(records, &error, &mut context.unwritten),
        }
        true
    }

    /// Reports the last `records` records that were written: those of batches that are not completed fail these batches,
    /// and the others were counted as written before.
    fn note_lost(&mut self, records: u64, error: &io::Error, unwritten: &mut Unwritten) {
        let mut left = records;
        let written_in_part: Vec<_> = self.unwritten().map(|(_, waiting)| waiting).collect();
        let waiting =
            self.batches.iter().rev().zip(written_in_part).map(|(batch, rest)| (batch.number, batch.events - rest));
        let written = self.unsynced.iter().rev().map(|batch| (batch.number, batch.events));
        for (number, events) in waiting.chain(written) {
            let lost = events.min(left);
            if lost > 0 {
                *unwritten.failed.entry(number).or_default() += lost;
                left -= lost;
            }
        }
        self.unsynced.clear();
        let fault = || fault("sync", &self.path, io::Error::new(error.kind(), error.to_string()));
        if left < records {
            unwritten.failed_fault = Some(fault());
        }
        if left > 0 {
            unwritten.lost.push((self.origin.clone(), left));
            unwritten.lost_fault = Some(fault());
        }
    }

    /// Finishes a file whose sync has failed where its last good sync was: what was written since waits in memory. Returns
    /// whether there is a finished file.
    fn retire(&mut self, context: &mut OutputContext) -> io::Result<bool> {
        let Some(live) = &mut self.live else { return Ok(false) };
        live.cut()?;
        let has_records = !live.is_blank();
        if has_records {
            live.finish(wall_clock::now(), &mut context.disk)?;
            context.status.add_finished();
        } else {
            live.empty()?;
        }
        self.live = None;
        Ok(has_records)
    }

    /// Closes a file that another process has moved or removed. A fault is only logged: there is nothing to retry.
    fn abandon(&mut self, context: &mut OutputContext) {
        if let Err(fault) = self.close(context) {
            // Batches may wait for a sync, also if the end of the file cannot be cut.
            if context.options.fsync != Fsync::Never {
                self.sync(context);
            }
            if let Some(suppressed) = ABANDONED.permit() {
                tracing::warn!(%fault, suppressed, "a file was moved or removed while it was being written");
            }
        }
        self.live = None;
    }
}

fn fault(action: &str, path: &Path, source: io::Error) -> ActionError {
    ActionError { action: format!("{action} {}", path.display()), source }
}
