//! All files of one sink: what waits to be written, and what is open. Everything here blocks.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use super::live::Live;
use super::options::{Compression, Fsync, Options};
use super::queue::Queue;
use super::template::Template;
use super::tidy::tidy;
use crate::event::UnixNanos;
use crate::log_throttle::LogThrottle;
use crate::sink::encode::Encoder;
use crate::sink::{Selection, SinkFault};

/// More files than this are never open at once; the one that was not written for longest is closed first.
pub(super) const MOST_OPEN: usize = 16;
/// Room that a file keeps for the lines to come when it has none to write.
pub(super) const KEPT_BYTES: usize = 64 * 1024;
/// Say what could not be done, and is not what a sink is there for.
static UNTIDY: LogThrottle = LogThrottle::new();
static ABANDONED: LogThrottle = LogThrottle::new();

/// The state of a file sink.
#[derive(Debug)]
pub(super) struct Outputs {
    options: Options,
    template: Template,
    encoder: Encoder,
    outputs: Vec<Output>,
    waiting_bytes: usize,
    /// Counts flushes of single files, to know which was written longest ago.
    writes: u64,
    synced: Instant,
    /// The operator asked to let go of all files.
    reopen: bool,
    /// There may be something to tidy up: at the beginning, and whenever a file was finished or a date has passed.
    untidy: bool,
    /// What the template makes of the date, as of the last tick.
    date: Option<PathBuf>,
    to_compress: Vec<PathBuf>,
}

/// One expansion of the template.
#[derive(Debug)]
struct Output {
    path: PathBuf,
    /// The newest event taken.
    observed: UnixNanos,
    queue: Queue,
    live: Option<Live>,
    last_write: u64,
}

impl Outputs {
    pub(super) fn new(options: Options, template: Template) -> Self {
        Outputs {
            encoder: Encoder::new(options.format),
            options,
            template,
            outputs: Vec::new(),
            waiting_bytes: 0,
            writes: 0,
            synced: Instant::now(),
            reopen: false,
            untidy: true,
            date: None,
            to_compress: Vec::new(),
        }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// Encodes events and puts them in the queue of their file.
    pub(super) fn take(&mut self, events: Selection<'_>) {
        let (Some(origin), Some(last)) = (events.batch().origin(), events.events().last()) else { return };
        let observed = last.observed();
        let path = self.template.expand(observed, origin.protocol, &origin.listener);
        let index = self.outputs.iter().position(|output| output.path == path).unwrap_or_else(|| {
            let queue = Queue::default();
            self.outputs.push(Output { path, observed, queue, live: None, last_write: 0 });
            self.outputs.len() - 1
        });
        let output = &mut self.outputs[index];
        output.observed = output.observed.max(observed);
        for event in events.events() {
            self.waiting_bytes += output.queue.push(&mut self.encoder, event);
        }
    }

    /// Encoded bytes that are not written yet.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Lets go of all open files with the next call that may block.
    pub(super) fn reopen(&mut self) {
        self.reopen = true;
    }

    /// The finished files that wait for compression, once.
    pub(super) fn take_to_compress(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.to_compress)
    }

    /// Writes everything that waits. One file that fails does not keep the others from being written.
    ///
    /// # Errors
    /// The first thing that went wrong. Nothing is lost or half-written; call again later.
    pub(super) fn flush(&mut self, compression_is_idle: bool) -> Result<(), SinkFault> {
        let mut result = self.close_for_reopening();
        self.tidy(compression_is_idle);
        for index in 0..self.outputs.len() {
            if self.outputs[index].queue.is_empty() {
                continue;
            }
            let written = self.make_room(index).and_then(|()| {
                self.writes += 1;
                self.outputs[index].flush(&self.options, self.writes)
            });
            match written {
                Ok(finished) => self.untidy |= finished,
                Err(fault) => result = result.and(Err(fault)),
            }
        }
        self.waiting_bytes = self.outputs.iter().map(|output| output.queue.bytes().len()).sum();
        if self.outputs.len() > 1 {
            // One file keeps what it needs for steady work; many would keep it many times.
            self.outputs.iter_mut().for_each(|output| output.queue.shrink_to(KEPT_BYTES));
        }
        self.forget_idle();
        self.tidy(compression_is_idle);
        result
    }

    /// What the passing of time asks for: finishing, forcing to disk, noticing what others did to the files.
    ///
    /// # Errors
    /// The first thing that went wrong; the rest is done all the same, and the next tick tries again.
    pub(super) fn tick(&mut self, compression_is_idle: bool) -> Result<(), SinkFault> {
        let mut result = self.close_for_reopening();
        let now = wall_clock();
        let sync_is_due = self.options.fsync == Fsync::Interval && self.synced.elapsed() >= self.options.fsync_interval;
        if sync_is_due {
            self.synced = Instant::now();
        }
        for output in &mut self.outputs {
            match output.tick(&self.options, &self.template, now, sync_is_due) {
                Ok(finished) => self.untidy |= finished,
                Err(fault) => result = result.and(Err(fault)),
            }
        }
        self.forget_idle();
        let date = Some(self.template.expand(now, "", ""));
        self.untidy |= self.date != date;
        self.date = date;
        self.tidy(compression_is_idle);
        result
    }

    fn close_for_reopening(&mut self) -> Result<(), SinkFault> {
        if self.reopen {
            for output in &mut self.outputs {
                output.close(&self.options)?;
            }
            self.reopen = false;
        }
        Ok(())
    }

    /// Closes files until one more may be opened, if the output at `index` needs that.
    fn make_room(&mut self, index: usize) -> Result<(), SinkFault> {
        if self.outputs[index].live.is_some() {
            return Ok(());
        }
        let mut open: Vec<_> = self.outputs.iter_mut().filter(|output| output.live.is_some()).collect();
        open.sort_by_key(|output| output.last_write);
        let surplus = (open.len() + 1).saturating_sub(MOST_OPEN);
        open.into_iter().take(surplus).try_for_each(|output| output.close(&self.options))
    }

    fn forget_idle(&mut self) {
        self.outputs.retain(|output| output.live.is_some() || !output.queue.is_empty());
    }

    /// Trouble with finished files is no reason to stop writing live ones, so it ends in the log.
    fn tidy(&mut self, compression_is_idle: bool) {
        if !self.untidy || !compression_is_idle || !self.to_compress.is_empty() {
            return;
        }
        self.untidy = false;
        let is_open = |path: &Path| self.outputs.iter().any(|output| output.path == path);
        match tidy(&self.template, &self.options, wall_clock(), is_open) {
            Ok(to_compress) => self.to_compress = to_compress,
            Err(error) => {
                let base = self.template.base().display();
                if let Some(suppressed) = UNTIDY.permit() {
                    tracing::warn!(%base, %error, suppressed, "cannot look for finished files");
                }
            }
        }
    }
}

impl Output {
    /// Writes what waits; answers whether a file was finished on the way.
    fn flush(&mut self, options: &Options, write: u64) -> Result<bool, SinkFault> {
        self.last_write = write;
        let mut finished = false;
        while !self.queue.is_empty() {
            if self.live.as_mut().is_some_and(|live| !live.is_in_place()) {
                self.abandon(options);
            }
            let live = match &mut self.live {
                Some(live) => live,
                None => {
                    let opened = Live::open(&self.path, options).map_err(|error| fault("write", &self.path, error))?;
                    self.live.insert(opened)
                }
            };
            let room = match options.rotate_bytes {
                0 => usize::MAX,
                most => usize::try_from(most.saturating_sub(live.len())).unwrap_or(usize::MAX),
            };
            let chunk = match self.queue.whole_within(room) {
                0 if live.len() == 0 => self.queue.first(),
                0 => {
                    self.finish(options)?;
                    finished = true;
                    continue;
                }
                chunk => chunk,
            };
            live.append(&mut self.queue, chunk, options.fsync).map_err(|error| fault("write", &self.path, error))?;
        }
        Ok(finished)
    }

    /// Does what is due; answers whether the file was finished.
    fn tick(
        &mut self,
        options: &Options,
        template: &Template,
        now: UnixNanos,
        sync_is_due: bool,
    ) -> Result<bool, SinkFault> {
        let Some(live) = &mut self.live else { return Ok(false) };
        if !live.is_in_place() {
            self.abandon(options);
            return Ok(false);
        }
        let interval_is_over = !options.rotate_interval.is_zero() && live.opened().elapsed() >= options.rotate_interval;
        // An event may be a little ahead of the clock when the clock was set back; then the date is still to come.
        let date_is_over = now > self.observed && !template.is_current(&self.path, now);
        if live.len() > 0 && (interval_is_over || date_is_over && options.compression != Compression::None) {
            self.finish(options)?;
            return Ok(true);
        }
        if date_is_over {
            self.close(options)?;
            return Ok(true);
        }
        if sync_is_due && live.is_dirty() {
            live.sync().map_err(|error| fault("sync", &self.path, error))?;
        }
        Ok(false)
    }

    fn finish(&mut self, options: &Options) -> Result<(), SinkFault> {
        if let Some(live) = &mut self.live {
            live.finish(wall_clock(), options.fsync).map_err(|error| fault("rotate", &self.path, error))?;
        }
        self.live = None;
        Ok(())
    }

    fn close(&mut self, options: &Options) -> Result<(), SinkFault> {
        if let Some(live) = &mut self.live {
            live.settle(options.fsync).map_err(|error| fault("close", &self.path, error))?;
        }
        self.live = None;
        Ok(())
    }

    /// Lets go of a file that somebody else has moved or removed. If even that goes wrong there is nobody left to try
    /// again for.
    fn abandon(&mut self, options: &Options) {
        if let Err(fault) = self.close(options)
            && let Some(suppressed) = ABANDONED.permit()
        {
            tracing::warn!(%fault, suppressed, "a file was moved away or removed while it was being written");
        }
        self.live = None;
    }
}

fn fault(action: &str, path: &Path, source: io::Error) -> SinkFault {
    SinkFault { action: format!("{action} {}", path.display()), source }
}

fn wall_clock() -> UnixNanos {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixNanos(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{BatchBuilder, Header, Origin, Position, Severity};
    use crate::sink::Kinds;
    use std::sync::Arc;
    use std::time::Duration;

    fn outputs(directory: &Path, fsync: Fsync) -> Outputs {
        let path = format!("{}/app.log", directory.display());
        let options = Options { path, fsync, fsync_interval: Duration::ZERO, ..Options::default() };
        let template = Template::parse(&options.path).unwrap();
        Outputs::new(options, template)
    }

    fn take_one(outputs: &mut Outputs) {
        let mut batch = BatchBuilder::new(Arc::new(Origin::new("datadog", "web".into(), "peer".into(), 1)));
        let name = batch.push_text("x").into();
        let header = Header { name, time: None, observed: wall_clock(), position: Position::default() };
        batch.event(header).log(Severity::Info, None);
        outputs.take(Selection::new(&batch.take(), Kinds::ALL));
    }

    fn is_dirty(outputs: &Outputs) -> bool {
        outputs.outputs[0].live.as_ref().unwrap().is_dirty()
    }

    #[test]
    fn what_is_written_reaches_the_disk_with_the_flush_with_the_tick_or_in_its_own_time() {
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
    fn finished_files_wait_their_turn_while_a_compression_is_running() {
        let directory = tempfile::tempdir().unwrap();
        let mut outputs = outputs(directory.path(), Fsync::Never);
        outputs.options.compression = Compression::Lz4;
        outputs.options.rotate_bytes = 1;
        for _ in 0..3 {
            take_one(&mut outputs);
        }
        outputs.flush(false).unwrap();
        assert!(outputs.take_to_compress().is_empty());
        outputs.tick(true).unwrap();
        assert_eq!(outputs.take_to_compress().len(), 2);
        outputs.tick(true).unwrap();
        assert!(outputs.take_to_compress().is_empty(), "each is handed out once");
    }

    #[test]
    fn a_new_date_makes_it_look_for_files_of_old_ones_that_are_closed_already() {
        let directory = tempfile::tempdir().unwrap();
        let mut outputs = outputs(directory.path(), Fsync::Never);
        outputs.template = Template::parse(&format!("{}/%Y/app.log", directory.path().display())).unwrap();
        outputs.options.compression = Compression::Gzip;
        outputs.tick(true).unwrap();
        let old = directory.path().join("2001");
        std::fs::create_dir(&old).unwrap();
        std::fs::write(old.join("app.log"), "x\n").unwrap();
        outputs.tick(true).unwrap();
        assert!(outputs.take_to_compress().is_empty(), "nobody looks while the date stays the same");
        outputs.date = Some(old.join("app.log"));
        outputs.tick(true).unwrap();
        assert_eq!(outputs.take_to_compress().len(), 1);
    }
}
