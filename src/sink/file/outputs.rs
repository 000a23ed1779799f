//! Which events go to which file, what waits to be written, and which files are open. Everything here blocks.

mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::parts::Skipped;
use super::disk::Disk;
use super::maintenance;
use super::messages::Messages;
use super::options::{CROWDED_BYTES, Fsync, KEPT_BYTES, MAX_HELD_BYTES, MAX_OPEN, Options};
use super::output::{FileOutput, OutputContext};
use super::template::Template;
use super::write_retry::WriteRetry;
use tributary_event::{Kind, Origin, UnixNanos};
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::FileStatus;
use tributary_sink::encode::Encoder;
use tributary_sink::{ActionError, Selection, Unwritten};
use tributary_system::wall_clock;

/// How often the age of finished files is checked.
const AGE_INTERVAL: Duration = Duration::from_secs(60);
/// The listener in the paths of events of streams whose listeners are too many.
const OTHERS: &str = "others";
/// Reports that there are too many.
static CROWDED: LogThrottle = LogThrottle::new();
/// Reports that directories cannot be listed.
static UNTIDY: LogThrottle = LogThrottle::new();

/// The state of a file sink.
#[derive(Debug)]
pub struct Outputs {
    context: OutputContext,
    template: Template,
    /// The listeners of streams that have files of their own.
    listeners: BTreeSet<Arc<str>>,
    encoder: Encoder,
    outputs: Vec<FileOutput>,
    /// Encoded bytes that are not written: of files in order, and of files that cannot be written.
    waiting_bytes: usize,
    held_bytes: usize,
    /// Counts flushes of single files, to know which was written longest ago.
    writes: u64,
    synced: Instant,
    /// The operator wants all files to be closed.
    reopen: bool,
    /// The ends of unfinished files have not been repaired since the start.
    unrepaired: bool,
    /// There may be maintenance to do: at the start, and whenever a file was finished or a date has passed.
    is_maintenance_due: bool,
    /// The expansion of the template's date items at the last tick.
    date: Option<PathBuf>,
    to_compress: Vec<PathBuf>,
    /// When finished files were checked last.
    tidied: Instant,
}

impl Outputs {
    /// No file is open. `template`: the path of the options.
    pub fn new(options: Options, template: Template) -> Self {
        Outputs {
            encoder: Encoder::new(options.format).with_fields(options.fields),
            context: OutputContext {
                disk: Disk::new(options.fsync),
                messages: Messages::new(template.base(), &parts::name_of(&template), options.remembered_messages),
                options,
                unwritten: Unwritten::default(),
                status: Arc::default(),
            },
            template,
            listeners: BTreeSet::new(),
            outputs: Vec::new(),
            waiting_bytes: 0,
            held_bytes: 0,
            writes: 0,
            synced: Instant::now(),
            reopen: false,
            unrepaired: true,
            is_maintenance_due: true,
            date: None,
            to_compress: Vec::new(),
            tidied: Instant::now(),
        }
    }

    /// The options of the sink.
    pub fn options(&self) -> &Options {
        &self.context.options
    }

    /// What the sink did.
    pub fn status(&self) -> Arc<FileStatus> {
        self.context.status.clone()
    }

    /// Encodes events and adds them to the records of their file. Events for a file that cannot be written at all are
    /// dropped, and their batch is named in [`Outputs::take_unwritten`].
    pub fn take(&mut self, events: Selection<'_>) {
        let Some(last) = events.events().last() else { return };
        let observed = last.observed();
        let Some(written) = self.begin_part(events, observed) else { return };
        let mut skipped = Skipped::of(&written);
        let has_kind = self.template.has_kind();
        let mut current: Option<(&Arc<Origin>, Kind, usize, bool)> = None;
        for event in events.events() {
            let (origin, kind) = (event.origin(), event.kind());
            let (index, is_other) = match current {
                Some((of, last, index, is_other)) if Arc::ptr_eq(of, origin) && (last == kind || !has_kind) => {
                    (index, is_other)
                }
                _ => self.output_for(origin, kind, observed),
            };
            current = Some((origin, kind, index, is_other));
            let output = &mut self.outputs[index];
            if skipped.skips(&output.path) {
                continue;
            }
            if is_other {
                self.context.status.add_of_others();
            }
            if output.is_dropping() {
                *self.context.unwritten.failed.entry(events.number()).or_default() += 1;
                continue;
            }
            let bytes = output.push(&mut self.encoder, event, (events.number(), events.level()));
            match output.write_retry {
                Some(_) => self.held_bytes += bytes,
                None => self.waiting_bytes += bytes,
            }
        }
        self.note_part(events, written);
    }

    /// The index of the output for events of this origin and kind, and whether it is that of [`OTHERS`].
    fn output_for(&mut self, origin: &Arc<Origin>, kind: Kind, observed: UnixNanos) -> (usize, bool) {
        let listener = self.listener_in_path(origin);
        let is_other = listener == OTHERS && *origin.listener != *OTHERS;
        let path = self.template.expand(observed, origin.protocol, listener, kind);
        if is_other {
            if let Some(suppressed) = CROWDED.permit() {
                tracing::warn!(
                    base = %self.template.base().display(),
                    max_listeners = self.context.options.max_listeners,
                    listener = &*origin.listener,
                    suppressed,
                    "events of a stream have more listeners than max_listeners: those of further ones go to the files of `others`"
                );
            }
        } else if origin.is_stored && self.template.has_listener() && !self.listeners.contains(&origin.listener) {
            self.listeners.insert(origin.listener.clone());
        }
        let index = self.outputs.iter().position(|output| output.path == path).unwrap_or_else(|| {
            self.outputs.push(FileOutput::new(path, observed, origin.clone()));
            self.outputs.len() - 1
        });
        let output = &mut self.outputs[index];
        output.observed = output.observed.max(observed);
        if !Arc::ptr_eq(&output.origin, origin) {
            output.origin = origin.clone();
        }
        (index, is_other)
    }

    /// The listener in the path of events of this origin. Names of streams are not ours: each would be a directory, so
    /// names beyond `max_listeners` are [`OTHERS`].
    fn listener_in_path<'a>(&self, origin: &'a Origin) -> &'a str {
        let is_full = self.listeners.len() >= self.context.options.max_listeners;
        let is_new = origin.is_stored && self.template.has_listener() && !self.listeners.contains(&origin.listener);
        if is_full && is_new { OTHERS } else { &origin.listener }
    }

    /// Encoded bytes for files in order that are not written yet.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Whether a flush has something to do.
    pub fn has_work(&self) -> bool {
        self.context.messages.is_needed() || self.outputs.iter().any(FileOutput::has_work)
    }

    /// Whether more than `MAX_HELD_BYTES` are held for files in write_retry: no further events can be taken.
    pub fn is_overfull(&self) -> bool {
        self.held_bytes > MAX_HELD_BYTES
    }

    /// All open files are closed by the next call that may block.
    pub fn reopen(&mut self) {
        self.reopen = true;
    }

    /// The finished files that wait for compression, each once.
    pub fn take_to_compress(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.to_compress)
    }

    /// Finished files were not compressed: the next tick finds them again.
    pub fn look_again(&mut self) {
        self.is_maintenance_due = true;
    }

    /// Which batches are not written after a flush or tick, and why.
    pub fn take_unwritten(&mut self) -> Unwritten {
        let mut held = BTreeMap::new();
        for (number, events) in self.outputs.iter().flat_map(FileOutput::unwritten) {
            *held.entry(number).or_default() += events;
        }
        let unsynced: BTreeSet<u64> = self.outputs.iter().flat_map(FileOutput::unsynced).collect();
        let is_crowded = self.held_bytes > CROWDED_BYTES;
        let others = std::mem::take(&mut self.context.unwritten);
        let retries = self.outputs.iter().filter_map(|output| output.write_retry.as_ref());
        let faults = retries.map(WriteRetry::to_string).collect();
        let mut unwritten = Unwritten { held, unsynced, is_crowded, faults, ..others };
        let repeats = self.context.messages.settle_repeats(&mut unwritten);
        self.context.status.add_repeats(repeats);
        unwritten
    }

    /// Writes everything that waits. A file that cannot be written holds its own records, or drops them when no retry can
    /// help, and does not keep the others from being written.
    ///
    /// # Errors
    /// More is held for files that cannot be written than may be. Nothing is lost or half-written; call again later.
    pub fn flush(&mut self, compression_is_idle: bool) -> Result<(), ActionError> {
        self.load_messages()?;
        self.close_for_reopening();
        self.maintain(compression_is_idle);
        let result = self.write();
        self.forget_idle();
        self.maintain(compression_is_idle);
        result
    }

    /// Makes the batches durable that ask for it: one sync for each file that has any.
    pub fn sync(&mut self) {
        let needs_all = self.context.messages.awaits_mark();
        for output in self.outputs.iter_mut().filter(|output| needs_all || output.unsynced().next().is_some()) {
            self.is_maintenance_due |= output.sync(&mut self.context);
        }
        self.mark_messages();
        self.forget_idle();
    }

    /// Everything that depends on time: finishing, forcing to disk, retrying, noticing what other processes did to the
    /// files.
    ///
    /// # Errors
    /// The first fault; the rest is done nevertheless, and the next tick tries again.
    pub fn tick(&mut self, compression_is_idle: bool) -> Result<(), ActionError> {
        self.load_messages()?;
        self.close_for_reopening();
        let mut result = self.write();
        self.probe();
        let now = wall_clock::observed();
        let sync_is_due = self.context.options.fsync == Fsync::Interval
            && self.synced.elapsed() >= self.context.options.fsync_interval;
        if sync_is_due {
            self.synced = Instant::now();
        }
        for output in &mut self.outputs {
            match output.tick(&mut self.context, &self.template, now, sync_is_due) {
                Ok(finished) => self.is_maintenance_due |= finished,
                Err(fault) => result = result.and(Err(fault)),
            }
        }
        self.mark_messages();
        self.forget_idle();
        let date = Some(self.template.expand(now, "", "", Kind::Log));
        let Options { keep_time, rotate_interval, .. } = self.context.options;
        // Files of a journal that were closed because too many were open are finished by their age.
        let age = if self.context.options.is_journal() { rotate_interval } else { keep_time };
        let is_age_due = !age.is_zero() && self.tidied.elapsed() >= age.min(AGE_INTERVAL);
        self.is_maintenance_due |= self.date != date || is_age_due;
        self.date = date;
        self.maintain(compression_is_idle);
        result
    }

    /// Writes what waits for files in order, and for files that cannot be written whose next try is due.
    fn write(&mut self) -> Result<(), ActionError> {
        for index in 0..self.outputs.len() {
            let output = &self.outputs[index];
            if !output.has_work() || output.write_retry.as_ref().is_some_and(|retry| !retry.is_due()) {
                continue;
            }
            self.close_surplus(index);
            self.writes += 1;
            self.is_maintenance_due |= self.outputs[index].flush(&mut self.context, self.writes);
        }
        self.commit_messages();
        let bytes = |is_held: bool| {
            let of = self.outputs.iter().filter(|output| output.write_retry.is_some() == is_held);
            of.map(FileOutput::waiting_bytes).sum()
        };
        (self.waiting_bytes, self.held_bytes) = (bytes(false), bytes(true));
        if self.outputs.len() > 1 {
            // One file keeps the capacity that it needs for steady work; many would keep it many times.
            self.outputs.iter_mut().for_each(|output| output.records.shrink_to(KEPT_BYTES));
        }
        if self.is_overfull() {
            let source =
                io::Error::other(format!("records for files that cannot be written exceed {MAX_HELD_BYTES} bytes"));
            let latest = self.context.unwritten.held_fault.take();
            return Err(latest.unwrap_or(ActionError { action: "hold more events".to_owned(), source }));
        }
        Ok(())
    }

    /// Tries the files again whose events were dropped, as long as the template names them.
    fn probe(&mut self) {
        let now = wall_clock::now();
        for index in 0..self.outputs.len() {
            if self.outputs[index].write_retry.is_some() {
                self.close_surplus(index);
                self.outputs[index].probe(&mut self.context);
            }
        }
        let Outputs { outputs, template, .. } = self;
        outputs.retain(|output| output.live.is_some() || output.has_work() || template.is_current(&output.path, now));
    }

    fn close_for_reopening(&mut self) {
        if std::mem::take(&mut self.reopen) {
            for output in &mut self.outputs {
                // A file that cannot be closed now is closed by a later call.
                self.reopen |= output.end(&mut self.context).is_err();
            }
            self.is_maintenance_due |= self.context.options.is_journal();
        }
    }

    /// Closes files until one more may be opened, if the output at `index` needs that. One that cannot be closed stays
    /// open: it must not keep another from being written.
    fn close_surplus(&mut self, index: usize) {
        if self.outputs[index].live.is_some() {
            return;
        }
        let mut open: Vec<_> = self.outputs.iter_mut().filter(|output| output.live.is_some()).collect();
        open.sort_by_key(|output| output.last_write);
        let surplus = (open.len() + 1).saturating_sub(MAX_OPEN);
        for output in open.into_iter().take(surplus) {
            if let Err(fault) = output.close(&mut self.context) {
                self.context.unwritten.held_fault = Some(fault);
            }
        }
    }

    /// Drops outputs without open file and records. One that cannot be written is kept until it can be written: the sink is not up.
    fn forget_idle(&mut self) {
        self.outputs.retain(|output| output.live.is_some() || output.has_work() || output.write_retry.is_some());
    }

    /// Repairs unfinished files once after the start, and maintains finished ones. Their faults must not stop writing, so
    /// they are only logged.
    fn maintain(&mut self, compression_is_idle: bool) {
        let Outputs { outputs, template, context, .. } = self;
        let OutputContext { options, disk, status, .. } = context;
        let is_open = |path: &Path| outputs.iter().any(|output| output.path == path && output.live.is_some());
        let mut result = Ok(());
        if self.unrepaired {
            result = maintenance::repair(template, options, wall_clock::now(), disk, is_open);
            self.unrepaired = false;
        }
        if self.is_maintenance_due && compression_is_idle && self.to_compress.is_empty() {
            self.is_maintenance_due = false;
            self.tidied = Instant::now();
            let is_open = |path: &Path| outputs.iter().any(|output| output.path == path);
            match maintenance::maintain(template, options, wall_clock::now(), disk, status, is_open) {
                Ok(to_compress) => self.to_compress = to_compress,
                Err(error) => result = Err(error),
            }
        }
        if let Err(error) = result
            && let Some(suppressed) = UNTIDY.permit()
        {
            tracing::warn!(base = %self.template.base().display(), %error, suppressed, "cannot list the sink's files");
        }
    }
}

#[cfg(test)]
mod tests;
