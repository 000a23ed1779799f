//! Which events go to which file, what waits to be written, and which files are open. Everything here blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::disk::Disk;
use super::live::Live;
use super::messages::Messages;
use super::options::{CROWDED_BYTES, Fsync, KEPT_BYTES, MAX_HELD_BYTES, MAX_OPEN, Options};
use super::output::{Context, Output};
use super::status::FileStatus;
use super::template::Template;
use super::tidy;
use super::trouble::Trouble;
use crate::event::{Kind, Origin, UnixNanos};
use crate::log_throttle::LogThrottle;
use crate::sink::encode::Encoder;
use crate::sink::{Selection, SinkFault, Unwritten};
use crate::wall_clock;

/// How often the age of finished files is checked.
const AGE_INTERVAL: Duration = Duration::from_secs(60);
/// Reports that the log of messages cannot be written.
static UNLOGGED: LogThrottle = LogThrottle::new();
/// Reports that directories cannot be listed.
static UNTIDY: LogThrottle = LogThrottle::new();

/// The state of a file sink.
#[derive(Debug)]
pub(in crate::sink) struct Outputs {
    context: Context,
    template: Template,
    encoder: Encoder,
    outputs: Vec<Output>,
    /// Encoded bytes that are not written: of files in order, and of files in trouble.
    waiting_bytes: usize,
    held_bytes: usize,
    /// Counts flushes of single files, to know which was written longest ago.
    writes: u64,
    synced: Instant,
    /// The operator wants all files to be closed.
    reopen: bool,
    /// The ends of unfinished files have not been repaired since the start.
    unrepaired: bool,
    /// There may be something to tidy up: at the start, and whenever a file was finished or a date has passed.
    untidy: bool,
    /// The expansion of the template's date items at the last tick.
    date: Option<PathBuf>,
    to_compress: Vec<PathBuf>,
    /// When finished files were checked last.
    tidied: Instant,
}

impl Outputs {
    pub(in crate::sink) fn new(options: Options, template: Template) -> Self {
        Outputs {
            encoder: Encoder::new(options.format),
            context: Context {
                disk: Disk::new(options.fsync),
                messages: Messages::new(template.base(), &name_of(&template), options.remembered_messages),
                options,
                unwritten: Unwritten::default(),
                status: Arc::default(),
            },
            template,
            outputs: Vec::new(),
            waiting_bytes: 0,
            held_bytes: 0,
            writes: 0,
            synced: Instant::now(),
            reopen: false,
            unrepaired: true,
            untidy: true,
            date: None,
            to_compress: Vec::new(),
            tidied: Instant::now(),
        }
    }

    pub(in crate::sink) fn options(&self) -> &Options {
        &self.context.options
    }

    /// What the sink did.
    pub(in crate::sink) fn status(&self) -> Arc<FileStatus> {
        self.context.status.clone()
    }

    /// Encodes events and adds them to the records of their file. Events for a file that cannot be written at all are
    /// dropped, and their batch is named in [`Outputs::take_unwritten`].
    pub(in crate::sink) fn take(&mut self, events: Selection<'_>) {
        let Some(last) = events.events().last() else { return };
        let observed = last.observed();
        if let Some(part) = events.batch().message() {
            // A fault is reported by the next flush, before which nothing is written.
            let _ = self.context.messages.load(&self.context.disk);
            if !self.context.messages.begin(events.number(), part) {
                self.context.status.add_repeats(events.count());
                return;
            }
        }
        let has_kind = self.template.has_kind();
        let mut current: Option<(&Arc<Origin>, Kind, usize)> = None;
        for event in events.events() {
            let (origin, kind) = (event.origin(), event.kind());
            let index = match current {
                Some((of, last, index)) if Arc::ptr_eq(of, origin) && (last == kind || !has_kind) => index,
                _ => self.output_for(origin, kind, observed),
            };
            current = Some((origin, kind, index));
            let output = &mut self.outputs[index];
            if output.is_dropping() {
                *self.context.unwritten.failed.entry(events.number()).or_default() += 1;
                continue;
            }
            let bytes = output.push(&mut self.encoder, event, (events.number(), events.level()));
            match output.trouble {
                Some(_) => self.held_bytes += bytes,
                None => self.waiting_bytes += bytes,
            }
        }
    }

    /// The index of the output for events of this origin and kind.
    fn output_for(&mut self, origin: &Arc<Origin>, kind: Kind, observed: UnixNanos) -> usize {
        let path = self.template.expand(observed, origin.protocol, &origin.listener, kind);
        let index = self.outputs.iter().position(|output| output.path == path).unwrap_or_else(|| {
            self.outputs.push(Output::new(path, observed, origin.clone()));
            self.outputs.len() - 1
        });
        let output = &mut self.outputs[index];
        output.observed = output.observed.max(observed);
        if !Arc::ptr_eq(&output.origin, origin) {
            output.origin = origin.clone();
        }
        index
    }

    /// Encoded bytes for files in order that are not written yet.
    pub(in crate::sink) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Whether a flush has something to do.
    pub(in crate::sink) fn has_work(&self) -> bool {
        self.waiting_bytes > 0 || self.held_bytes > 0
    }

    /// Whether so much is held for files in trouble that no further events can be taken.
    pub(in crate::sink) fn is_overfull(&self) -> bool {
        self.held_bytes > MAX_HELD_BYTES
    }

    /// All open files are closed by the next call that may block.
    pub(in crate::sink) fn reopen(&mut self) {
        self.reopen = true;
    }

    /// The finished files that wait for compression, each once.
    pub(in crate::sink) fn take_to_compress(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.to_compress)
    }

    /// Which batches are not written after a flush or tick, and why.
    pub(in crate::sink) fn take_unwritten(&mut self) -> Unwritten {
        let mut held = BTreeMap::new();
        for (number, events) in self.outputs.iter().flat_map(Output::unwritten) {
            *held.entry(number).or_default() += events;
        }
        let unsynced: BTreeSet<u64> = self.outputs.iter().flat_map(Output::unsynced).collect();
        let is_crowded = self.held_bytes > CROWDED_BYTES;
        Unwritten { held, unsynced, is_crowded, ..std::mem::take(&mut self.context.unwritten) }
    }

    /// Writes everything that waits. A file that cannot be written holds its own records, or drops them when no retry can
    /// help, and does not keep the others from being written.
    ///
    /// # Errors
    /// More is held for files in trouble than may be. Nothing is lost or half-written; call again later.
    pub(in crate::sink) fn flush(&mut self, compression_is_idle: bool) -> Result<(), SinkFault> {
        self.load_messages()?;
        self.close_for_reopening();
        self.tidy(compression_is_idle);
        let result = self.write();
        self.forget_idle();
        self.tidy(compression_is_idle);
        result
    }

    /// Makes the batches durable that ask for it: one sync for each file that has any.
    pub(in crate::sink) fn sync(&mut self) {
        for output in self.outputs.iter_mut().filter(|output| output.unsynced().next().is_some()) {
            self.untidy |= output.sync(&mut self.context);
        }
        let Context { messages, unwritten, .. } = &mut self.context;
        log_fault(messages.forget(&unwritten.failed));
        self.mark_messages();
        self.forget_idle();
    }

    /// Reads which messages the files have.
    fn load_messages(&mut self) -> Result<(), SinkFault> {
        let fault = |source| SinkFault { action: "read which messages are written".to_owned(), source };
        self.context.messages.load(&self.context.disk).map_err(fault)
    }

    /// Notes that all messages are on the disk, if they are.
    fn mark_messages(&mut self) {
        let is_dirty = |output: &Output| output.live.as_ref().is_some_and(Live::is_dirty);
        if !self.outputs.iter().any(is_dirty) {
            log_fault(self.context.messages.mark());
        }
    }

    /// Notes which messages were written.
    fn commit_messages(&mut self) {
        if self.context.messages.is_needed() {
            let waiting = self.outputs.iter().flat_map(Output::unwritten).map(|(number, _)| number).collect();
            let Context { messages, unwritten, options, .. } = &mut self.context;
            log_fault(messages.commit(&waiting, &unwritten.failed, options.fsync));
        }
    }

    /// Everything that depends on time: finishing, forcing to disk, retrying, noticing what other processes did to the
    /// files.
    ///
    /// # Errors
    /// The first fault; the rest is done nevertheless, and the next tick tries again.
    pub(in crate::sink) fn tick(&mut self, compression_is_idle: bool) -> Result<(), SinkFault> {
        self.load_messages()?;
        self.close_for_reopening();
        let mut result = self.write();
        let now = wall_clock::now();
        let sync_is_due = self.context.options.fsync == Fsync::Interval
            && self.synced.elapsed() >= self.context.options.fsync_interval;
        if sync_is_due {
            self.synced = Instant::now();
        }
        for output in &mut self.outputs {
            match output.tick(&mut self.context, &self.template, now, sync_is_due) {
                Ok(finished) => self.untidy |= finished,
                Err(fault) => result = result.and(Err(fault)),
            }
        }
        self.mark_messages();
        self.forget_idle();
        let date = Some(self.template.expand(now, "", "", Kind::Log));
        let Options { keep_time, rotate_interval, .. } = self.context.options;
        // Files of a journal that were closed to make room are finished by their age.
        let age = if self.context.options.is_journal() { rotate_interval } else { keep_time };
        let is_age_due = !age.is_zero() && self.tidied.elapsed() >= age.min(AGE_INTERVAL);
        self.untidy |= self.date != date || is_age_due;
        self.date = date;
        self.tidy(compression_is_idle);
        result
    }

    /// Writes what waits for files in order, and for files in trouble whose next try is due.
    fn write(&mut self) -> Result<(), SinkFault> {
        for index in 0..self.outputs.len() {
            let output = &self.outputs[index];
            if !output.has_work() || output.trouble.as_ref().is_some_and(|trouble| !trouble.is_due()) {
                continue;
            }
            self.make_room(index);
            self.writes += 1;
            self.untidy |= self.outputs[index].flush(&mut self.context, self.writes);
        }
        self.commit_messages();
        let bytes = |is_held: bool| {
            let of = self.outputs.iter().filter(|output| output.trouble.is_some() == is_held);
            of.map(|output| output.records.bytes().len()).sum()
        };
        (self.waiting_bytes, self.held_bytes) = (bytes(false), bytes(true));
        if self.outputs.len() > 1 {
            // One file keeps the capacity that it needs for steady work; many would keep it many times.
            self.outputs.iter_mut().for_each(|output| output.records.shrink_to(KEPT_BYTES));
        }
        if self.is_overfull() {
            let source = io::Error::other(format!("records for files in trouble exceed {MAX_HELD_BYTES} bytes"));
            let latest = self.context.unwritten.held_fault.take();
            return Err(latest.unwrap_or(SinkFault { action: "hold more events".to_owned(), source }));
        }
        Ok(())
    }

    fn close_for_reopening(&mut self) {
        if std::mem::take(&mut self.reopen) {
            for output in &mut self.outputs {
                // A file that cannot be closed now is closed by a later call.
                self.reopen |= output.end(&mut self.context).is_err();
            }
            self.untidy |= self.context.options.is_journal();
        }
    }

    /// Closes files until one more may be opened, if the output at `index` needs that. One that cannot be closed stays
    /// open: it must not keep another from being written.
    fn make_room(&mut self, index: usize) {
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

    /// Drops outputs without open file and records. One in trouble is kept until its next try, so that pauses grow.
    fn forget_idle(&mut self) {
        let is_pausing = |trouble: &Trouble| !trouble.is_due();
        self.outputs.retain(|output| {
            output.live.is_some() || output.has_work() || output.trouble.as_ref().is_some_and(is_pausing)
        });
    }

    /// Repairs unfinished files once after the start, and maintains finished ones. Their faults must not stop writing, so
    /// they are only logged.
    fn tidy(&mut self, compression_is_idle: bool) {
        let Outputs { outputs, template, context, .. } = self;
        let Context { options, disk, status, .. } = context;
        let is_open = |path: &Path| outputs.iter().any(|output| output.path == path && output.live.is_some());
        let mut result = Ok(());
        if self.unrepaired {
            result = tidy::repair(template, options, wall_clock::now(), disk, is_open);
            self.unrepaired = false;
        }
        if self.untidy && compression_is_idle && self.to_compress.is_empty() {
            self.untidy = false;
            self.tidied = Instant::now();
            let is_open = |path: &Path| outputs.iter().any(|output| output.path == path);
            match tidy::tidy(template, options, wall_clock::now(), disk, status, is_open) {
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

/// A text that two templates do not have in common.
fn name_of(template: &Template) -> String {
    template.expand(UnixNanos(0), "{protocol}", "{listener}", Kind::Log).display().to_string()
}

fn log_fault(result: io::Result<()>) {
    if let Err(error) = result
        && let Some(suppressed) = UNLOGGED.permit()
    {
        tracing::warn!(%error, suppressed, "cannot note which messages are written; a kill now repeats some of them");
    }
}

#[cfg(test)]
mod tests {
    use super::super::disk::faults;
    use super::super::options::Compression;
    use super::*;
    use crate::event::{BatchBuilder, Header, Origin, Position, Severity};
    use crate::sink::{AckLevel, Kinds};
    use std::sync::Arc;

    fn outputs(directory: &Path, fsync: Fsync) -> Outputs {
        let path = format!("{}/app.log", directory.display());
        let options = Options { path, fsync, fsync_interval: Duration::ZERO, ..Options::default() };
        let template = Template::parse(&options.path).unwrap();
        Outputs::new(options, template)
    }

    fn take_one(outputs: &mut Outputs) {
        take(outputs, "web", 0, AckLevel::Written);
    }

    /// Takes a batch of one event with this number.
    fn take(outputs: &mut Outputs, listener: &str, number: u64, level: AckLevel) {
        let mut batch = BatchBuilder::new(Arc::new(Origin::new("datadog", listener.into(), "peer".into(), 1)));
        let name = batch.push_text("x").into();
        let header = Header { name, time: None, observed: wall_clock::now(), position: Position::default() };
        batch.event(header).log(Severity::Info, None);
        outputs.take(Selection::new(&batch.take(), Kinds::ALL).numbered(number).at_level(level));
    }

    fn is_dirty(outputs: &Outputs) -> bool {
        outputs.outputs[0].live.as_ref().unwrap().is_dirty()
    }

    #[test]
    fn written_records_reach_the_disk_with_the_flush_with_the_tick_or_when_the_system_decides() {
        for (fsync, after_flush, after_tick) in
            [(Fsync::Always, false, false), (Fsync::Interval, true, false), (Fsync::Never, true, true)]
        {
            let directory = tempfile::tempdir().unwrap();
            let mut outputs = outputs(directory.path(), fsync);
            take_one(&mut outputs);
            outputs.flush(true).unwrap();
            assert_eq!(is_dirty(&outputs), after_flush, "{fsync:?}");
            outputs.tick(true).unwrap();
            assert_eq!(is_dirty(&outputs), after_tick, "{fsync:?}");
        }
    }

    #[test]
    fn finished_files_wait_while_a_compression_is_running() {
        let directory = tempfile::tempdir().unwrap();
        let mut outputs = outputs(directory.path(), Fsync::Never);
        outputs.context.options.compression = Compression::Lz4;
        outputs.context.options.rotate_bytes = 1;
        for _ in 0..3 {
            take_one(&mut outputs);
        }
        outputs.flush(false).unwrap();
        assert!(outputs.take_to_compress().is_empty());
        outputs.tick(true).unwrap();
        assert_eq!(outputs.take_to_compress().len(), 2);
        outputs.tick(true).unwrap();
        assert!(outputs.take_to_compress().is_empty(), "each is returned once");
    }

    #[test]
    fn a_new_date_starts_a_search_for_closed_files_of_past_dates() {
        let directory = tempfile::tempdir().unwrap();
        let mut outputs = outputs(directory.path(), Fsync::Never);
        outputs.template = Template::parse(&format!("{}/%Y/app.log", directory.path().display())).unwrap();
        outputs.context.options.compression = Compression::Gzip;
        outputs.tick(true).unwrap();
        let old = directory.path().join("2001");
        std::fs::create_dir(&old).unwrap();
        std::fs::write(old.join("app.log"), "x\n").unwrap();
        outputs.tick(true).unwrap();
        assert!(outputs.take_to_compress().is_empty(), "no search while the date stays the same");
        outputs.date = Some(old.join("app.log"));
        outputs.tick(true).unwrap();
        assert_eq!(outputs.take_to_compress().len(), 1);
    }

    /// Outputs whose next `count` syncs fail.
    fn with_failing_syncs(directory: &Path, fsync: Fsync, count: u32) -> Outputs {
        let mut outputs = outputs(directory, fsync);
        outputs.context.disk.sync_data = faults::sync_data;
        outputs.context.disk.sync_directory = faults::sync_directory;
        faults::fail_syncs(count);
        outputs
    }

    fn records_in(directory: &Path) -> usize {
        std::fs::read_to_string(directory.join("app.log")).unwrap_or_default().lines().count()
    }

    /// The records of the live file and of the finished ones.
    fn records_in_all(directory: &Path) -> (usize, Vec<usize>) {
        let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
        let finished = files.filter(|path| !path.ends_with("app.log"));
        let lines = |path: PathBuf| std::fs::read_to_string(path).unwrap().lines().count();
        (records_in(directory), finished.map(lines).collect())
    }

    #[test]
    fn after_a_failed_fsync_the_records_since_the_last_one_are_written_again_to_a_new_file() {
        for synced in [0, 2] {
            let directory = tempfile::tempdir().unwrap();
            let mut outputs = with_failing_syncs(directory.path(), Fsync::Interval, 0);
            for _ in 0..synced {
                take_one(&mut outputs);
                outputs.flush(true).unwrap();
                outputs.tick(true).unwrap();
            }
            take_one(&mut outputs);
            outputs.flush(true).unwrap();
            faults::fail_syncs(1);
            outputs.tick(true).unwrap();
            assert!(outputs.take_unwritten().is_empty(), "nothing is lost");
            assert!(!is_dirty(&outputs), "the new file is synced");
            take_one(&mut outputs);
            outputs.flush(true).unwrap();
            let finished = if synced > 0 { vec![synced] } else { vec![] };
            assert_eq!(records_in_all(directory.path()), (2, finished), "each is there once");
        }
    }

    #[test]
    fn under_always_the_records_of_a_failed_fsync_go_to_a_new_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut outputs = with_failing_syncs(directory.path(), Fsync::Always, 0);
        take_one(&mut outputs);
        outputs.flush(true).unwrap();
        take_one(&mut outputs);
        faults::fail_syncs(1);
        outputs.flush(true).unwrap();
        assert_eq!(outputs.take_unwritten().held.len(), 1);
        outputs.outputs[0].trouble = None;
        outputs.flush(true).unwrap();
        assert!(outputs.take_unwritten().is_empty());
        assert_eq!(records_in_all(directory.path()), (1, vec![1]));
    }

    #[test]
    fn records_that_a_failed_fsync_lost_are_reported_and_not_taken_for_synced() {
        for damage in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let mut outputs = with_failing_syncs(directory.path(), Fsync::Interval, 0);
            take_one(&mut outputs);
            outputs.flush(true).unwrap();
            outputs.tick(true).unwrap();
            for _ in 0..2 {
                take_one(&mut outputs);
                outputs.flush(true).unwrap();
            }
            if damage {
                zero_the_end(directory.path());
            }
            // Without damage the new file cannot be forced to the disk either.
            faults::fail_syncs(if damage { 1 } else { 2 });
            outputs.tick(true).unwrap();
            let unwritten = outputs.take_unwritten();
            assert_eq!(unwritten.lost.iter().map(|(_, events)| *events).collect::<Vec<_>>(), [2]);
            let fault = unwritten.lost_fault.unwrap().to_string();
            assert!(fault.starts_with("cannot sync ") && fault.contains("app.log"), "{fault}");
            outputs.tick(true).unwrap();
            assert!(outputs.take_unwritten().is_empty(), "each loss is reported once");
        }
    }

    /// The system drops the last pages and reads zeros from the disk.
    fn zero_the_end(directory: &Path) {
        let file = std::fs::OpenOptions::new().write(true).open(directory.join("app.log")).unwrap();
        let len = file.metadata().unwrap().len();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 100], len - 100).unwrap();
    }

    #[test]
    fn a_batch_that_asks_for_it_waits_for_a_sync_of_its_file_and_of_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let mut outputs = with_failing_syncs(directory.path(), Fsync::Interval, 0);
        outputs.template = Template::parse(&format!("{}/{{listener}}.log", directory.path().display())).unwrap();
        take(&mut outputs, "agents", 1, AckLevel::Durable);
        take(&mut outputs, "agents", 2, AckLevel::Durable);
        take(&mut outputs, "stream", 3, AckLevel::Written);
        outputs.flush(true).unwrap();
        let unwritten = outputs.take_unwritten();
        assert_eq!((unwritten.unsynced.into_iter().collect(), unwritten.held.len()), (vec![1, 2], 0));
        let before = faults::syncs();
        outputs.sync();
        assert_eq!(faults::syncs() - before, 1, "both batches share it");
        assert!(outputs.take_unwritten().is_empty());
        let is_dirty = |output: &Output| output.live.as_ref().unwrap().is_dirty();
        assert_eq!(outputs.outputs.iter().map(is_dirty).collect::<Vec<_>>(), [false, true]);
        outputs.sync();
        assert_eq!(faults::syncs() - before, 1, "no request waits");
    }

    #[test]
    fn a_file_that_is_finished_or_closed_is_synced_for_the_batches_that_ask_for_it() {
        for rotate_bytes in [1, 0] {
            let directory = tempfile::tempdir().unwrap();
            let mut outputs = with_failing_syncs(directory.path(), Fsync::Interval, 0);
            outputs.context.options.rotate_bytes = rotate_bytes;
            for number in 1..=2 {
                take(&mut outputs, "web", number, AckLevel::Durable);
                outputs.flush(true).unwrap();
            }
            let unsynced: Vec<_> = outputs.take_unwritten().unsynced.into_iter().collect();
            assert_eq!(unsynced, if rotate_bytes == 1 { vec![2] } else { vec![1, 2] });
            outputs.reopen();
            outputs.tick(true).unwrap();
            assert!(outputs.take_unwritten().is_empty());
        }
    }

    #[test]
    fn the_names_of_files_and_directories_that_a_killed_process_has_left_are_synced_before_they_are_written() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("day")).unwrap();
        std::fs::write(directory.path().join("day/app.log"), "").unwrap();
        let mut outputs = with_failing_syncs(directory.path(), Fsync::Interval, 0);
        outputs.template = Template::parse(&format!("{}/day/app.log", directory.path().display())).unwrap();
        let before = faults::syncs();
        take(&mut outputs, "web", 1, AckLevel::Durable);
        outputs.flush(true).unwrap();
        assert_eq!(faults::syncs() - before, 2, "that of the file's directory, and of the one above");
        outputs.reopen();
        outputs.tick(true).unwrap();
        faults::fail_syncs(1);
        take(&mut outputs, "web", 2, AckLevel::Durable);
        outputs.flush(true).unwrap();
        assert_eq!(outputs.take_unwritten().held.into_iter().collect::<Vec<_>>(), [(2, 1)], "nothing is written");
    }

    #[test]
    fn batches_that_cannot_be_made_durable_fail_and_events_that_were_written_before_are_lost() {
        let directory = tempfile::tempdir().unwrap();
        let mut outputs = with_failing_syncs(directory.path(), Fsync::Interval, 0);
        take(&mut outputs, "web", 1, AckLevel::Written);
        outputs.flush(true).unwrap();
        assert!(outputs.take_unwritten().is_empty(), "it is completed");
        take(&mut outputs, "web", 2, AckLevel::Durable);
        take(&mut outputs, "web", 3, AckLevel::Durable);
        outputs.flush(true).unwrap();
        zero_the_end(directory.path());
        faults::fail_syncs(1);
        outputs.sync();
        let unwritten = outputs.take_unwritten();
        assert_eq!(unwritten.failed.into_iter().collect::<Vec<_>>(), [(2, 1), (3, 1)]);
        assert_eq!(unwritten.lost.iter().map(|(_, events)| *events).sum::<u64>(), 1);
        assert!(unwritten.unsynced.is_empty() && unwritten.failed_fault.is_some() && unwritten.lost_fault.is_some());
        take(&mut outputs, "web", 4, AckLevel::Durable);
        outputs.flush(true).unwrap();
        outputs.sync();
        assert!(outputs.take_unwritten().is_empty(), "the next ones are durable");
    }

    #[test]
    fn a_failed_sync_of_a_directory_is_retried_before_anything_counts_as_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut outputs = with_failing_syncs(directory.path(), Fsync::Always, 1);
        let template = format!("{}/a/b/app.log", directory.path().display());
        outputs.template = Template::parse(&template).unwrap();
        take_one(&mut outputs);
        outputs.flush(true).unwrap();
        assert_eq!(outputs.take_unwritten().held.len(), 1, "the directory is not on the disk");
        // The file exists now, but its directory has not been synced: the next try must not forget that.
        faults::fail_syncs(1);
        outputs.outputs[0].trouble = None;
        outputs.flush(true).unwrap();
        assert_eq!(outputs.take_unwritten().held.len(), 1, "the directory is not on the disk");
        outputs.outputs[0].trouble = None;
        outputs.flush(true).unwrap();
        assert!(outputs.take_unwritten().is_empty());
        assert_eq!(records_in(&directory.path().join("a/b")), 1);
    }
}
