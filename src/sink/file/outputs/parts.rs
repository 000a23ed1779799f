//! Parts of messages in the files of a sink: what is written of them, and what is not written again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::super::live::Live;
use super::super::messages::{Begin, Share, Shares};
use super::super::output::{FileOutput, OutputContext};
use super::super::template::Template;
use super::Outputs;
use tributary_event::{Kind, UnixNanos};
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::{ActionError, Selection};

/// Reports that the log of messages cannot be written.
static UNLOGGED: LogThrottle = LogThrottle::new();

/// How many events of a batch are still to be left out, for each file: it has them.
pub(super) struct Skipped(BTreeMap<PathBuf, u64>);

impl Skipped {
    pub(super) fn of(written: &Shares) -> Skipped {
        Skipped(written.iter().map(|(path, share)| (path.clone(), share.written)).collect())
    }

    /// Whether the next event for this file is left out.
    pub(super) fn skips(&mut self, path: &Path) -> bool {
        let Some(left) = self.0.get_mut(path).filter(|left| **left > 0) else { return false };
        *left -= 1;
        true
    }
}

impl Outputs {
    /// Begins a batch that may be a part of a message. Returns what the files have of it; `None`: nothing of it is to be written.
    pub(super) fn begin_part(&mut self, events: Selection<'_>, observed: UnixNanos) -> Option<Shares> {
        let Some(part) = events.batch().message() else { return Some(Shares::new()) };
        // A fault is reported by the next flush, before which nothing is written.
        let _ = self.context.messages.load(&self.context.disk);
        match self.context.messages.begin(events.number(), part, (events.count(), events.level())) {
            Begin::New => Some(Shares::new()),
            Begin::Rest(shares) => {
                let written = self.still_valid(shares, events, observed);
                self.context.status.add_repeats(written.values().map(|share| share.written).sum());
                Some(written)
            }
            Begin::Known => {
                self.context.status.add_repeats(events.count());
                None
            }
            Begin::Repeated => None,
        }
    }

    /// Of what an earlier process has written of a batch, that of files for which as many events are chosen now as then. Of
    /// others, whose options have changed, it is not known which events they have: they get all again.
    fn still_valid(&self, mut shares: Shares, events: Selection<'_>, observed: UnixNanos) -> Shares {
        let mut totals: BTreeMap<PathBuf, u64> = BTreeMap::new();
        for event in events.events() {
            let origin = event.origin();
            let path = self.template.expand(observed, origin.protocol, self.listener_in_path(origin), event.kind());
            *totals.entry(path).or_default() += 1;
        }
        shares.retain(|path, share| totals.get(path) == Some(&share.total));
        shares
    }

    /// Notes what is for each file of a batch that is a part of a message, and was taken. The files have `written` already.
    pub(super) fn note_part(&mut self, events: Selection<'_>, written: Shares) {
        if events.batch().message().is_none() {
            return;
        }
        let mut shares = written;
        for output in &self.outputs {
            let total = output.events_of(events.number());
            if total > 0 {
                shares.entry(output.path.clone()).or_insert(Share { written: 0, total });
            }
        }
        self.context.messages.set_shares(events.number(), shares);
    }

    /// Reads which messages the files have.
    pub(super) fn load_messages(&mut self) -> Result<(), ActionError> {
        let base = self.template.base().display();
        let fault = |source| ActionError { action: format!("read which messages are written below {base}"), source };
        self.context.messages.load(&self.context.disk).map_err(fault)
    }

    /// Notes which messages were written, and what of those that wait.
    pub(super) fn commit_messages(&mut self) {
        let Outputs { context, outputs, .. } = self;
        let OutputContext { messages, unwritten, options, .. } = context;
        log_fault(messages.forget(unwritten));
        if !messages.is_needed() {
            return;
        }
        let mut waits: BTreeMap<u64, BTreeMap<&Path, u64>> = BTreeMap::new();
        for output in outputs.iter() {
            for (number, events) in output.unwritten() {
                waits.entry(number).or_default().insert(&output.path, events);
            }
        }
        log_fault(messages.commit(&waits, options.fsync));
        if messages.is_long() {
            for output in outputs {
                self.is_maintenance_due |= output.sync(context);
            }
            self.mark_messages();
        }
    }

    /// Notes that all messages are on the disk, if they are.
    pub(super) fn mark_messages(&mut self) {
        let OutputContext { messages, unwritten, .. } = &mut self.context;
        log_fault(messages.forget(unwritten));
        let is_dirty = |output: &FileOutput| output.live.as_ref().is_some_and(Live::is_dirty);
        if !self.outputs.iter().any(is_dirty) {
            log_fault(messages.mark());
        }
    }
}

/// A text that two templates do not have in common.
pub(super) fn name_of(template: &Template) -> String {
    template.expand(UnixNanos(0), "{protocol}", "{listener}", Kind::Log).display().to_string()
}

fn log_fault(result: io::Result<()>) {
    if let Err(error) = result
        && let Some(suppressed) = UNLOGGED.permit()
    {
        tracing::warn!(%error, suppressed, "cannot note which messages are written; a kill now repeats some of them");
    }
}
