//! Drives one session, or one call of an exchange, without I/O.
//!
//! Every driver of protocol code does the same: it makes one call, settles what the call decided in the [`Account`], takes
//! the batch, and gives the batch to the sinks. This module does all but the last step, for live connections (`transport`)
//! and for recordings ([`crate::decode`]).
#![forbid(unsafe_code)]

mod account;
pub mod capture;
pub mod decode;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tributary_event::{Batch, BatchBuilder, Header, Loss, Origin, Position, Reason, UnixNanos, semconv};
use tributary_explain::Explain;
use tributary_memory::Allowance;
use tributary_pipeline::accounting::ListenerCounters;
use tributary_protocol::{Awaiting, End, Flow, LossLimit, Now, Output, Session, Shutdown};

pub use account::Account;

/// What one call did.
#[derive(Debug)]
#[must_use]
pub struct DriverStep {
    /// Bytes at the front of the input that the session is done with. Other calls than `receive` have no input.
    pub consumed: usize,
    /// What the session wants next.
    pub flow: Flow,
    /// The events to hand over, already counted. None when there are none.
    pub batch: Option<Batch>,
}

/// Makes one call that writes to `out`, settles what it decided, and takes its events.
pub fn call(
    out: &mut Output,
    account: &mut Account,
    counters: &ListenerCounters,
    now: Now,
    call: impl FnOnce(&mut Output) -> Flow,
) -> DriverStep {
    out.advance(now.elapsed);
    let flow = call(out);
    account.settle(counters, out);
    DriverStep { consumed: 0, flow, batch: take_batch(out, counters) }
}

fn take_batch(out: &mut Output, counters: &ListenerCounters) -> Option<Batch> {
    if out.batch.is_empty() {
        out.batch.restart();
        return None;
    }
    let batch = out.batch.take();
    counters.handed_over(&batch);
    Some(batch)
}

/// A batch with one loss event, for bytes that are counted as lost already and that no session reports.
pub fn loss_batch(
    counters: &ListenerCounters,
    origin: &Arc<Origin>,
    observed: UnixNanos,
    offset: u64,
    loss: Loss<'_>,
) -> Batch {
    let position = Position { sequence: None, offset, length: loss.bytes };
    let mut builder = BatchBuilder::new(origin.clone());
    builder.loss(Header::observed_at(semconv::LOSS, observed, position), loss);
    let batch = builder.take();
    counters.handed_over(&batch);
    batch
}

/// The rest of a connection that could not be finished.
#[derive(Debug)]
pub struct Abandoned {
    /// The events to hand over, already counted, and the loss.
    pub batches: Vec<Batch>,
    /// Bytes that are lost.
    pub lost_bytes: u64,
    /// The session held more events than there was time or memory for.
    pub is_cut: bool,
}

/// One session with its [`Output`] and its [`Account`]. The order of calls is that of [`Session`].
#[derive(Debug)]
pub struct SessionDriver<S> {
    session: S,
    out: Output,
    account: Account,
    counters: Arc<ListenerCounters>,
    phase: DriverPhase,
    /// The last `handle_timeout` returned [`Flow::Again`].
    is_timeout_unfinished: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DriverPhase {
    Open,
    /// `finish` was called and has more to write.
    Finishing,
    Finished,
}

impl<S: Session> SessionDriver<S> {
    /// A driver for a connection that has received no byte yet.
    pub fn new(session: S, origin: Arc<Origin>, counters: Arc<ListenerCounters>) -> Self {
        let (out, account) = (Output::new(BatchBuilder::new(origin)), Account::default());
        SessionDriver { session, out, account, counters, phase: DriverPhase::Open, is_timeout_unfinished: false }
    }

    /// The same with limits of a live connection: the allowance of the peer's address, and a bound on loss events.
    #[must_use]
    pub fn limited(mut self, allowance: Allowance, losses: LossLimit) -> Self {
        self.out.set_allowance(Some(allowance));
        self.out.set_loss_limit(Some(Box::new(losses)));
        self
    }

    /// Counts bytes that were received, before they are passed to [`SessionDriver::receive`].
    pub fn received(&mut self, bytes: u64) {
        self.account.received(&self.counters, bytes);
    }

    /// Passes on what was received and not consumed yet.
    pub fn receive(&mut self, input: &[u8], now: Now) -> DriverStep {
        let mut consumed = 0;
        let session = &mut self.session;
        let step = call(&mut self.out, &mut self.account, &self.counters, now, |out| {
            let progress = session.receive(input, now, out);
            consumed = progress.consumed.min(input.len());
            progress.flow
        });
        DriverStep { consumed, ..step }
    }

    /// The time of [`SessionDriver::poll_timeout`] has come, or [`SessionDriver::poll_wake`] was ready (`is_woken`).
    pub fn handle_timeout(&mut self, now: Now, is_woken: bool) -> DriverStep {
        let is_due = self.session.poll_timeout().is_some_and(|due| due <= now.elapsed);
        let is_for_session = is_due || is_woken || self.is_timeout_unfinished;
        let step = call(&mut self.out, &mut self.account, &self.counters, now, |out| match is_for_session {
            true => self.session.handle_timeout(now, out),
            // Only losses were due.
            false => Flow::Continue,
        });
        self.is_timeout_unfinished = step.flow == Flow::Again;
        step
    }

    /// The collector is stopping. The flow of the step is [`Flow::Continue`] while the session still converses with its
    /// peer ([`Shutdown::Drain`]), and [`Flow::Close`] when [`SessionDriver::finish`] is the next call.
    pub fn shutdown(&mut self, now: Now) -> DriverStep {
        call(&mut self.out, &mut self.account, &self.counters, now, |out| match self.session.shutdown(now, out) {
            Shutdown::Drain => Flow::Continue,
            Shutdown::Close => Flow::Close,
        })
    }

    /// The collector ends within seconds. The connection continues as it was.
    pub fn hurry(&mut self, now: Now) -> DriverStep {
        call(&mut self.out, &mut self.account, &self.counters, now, |out| {
            self.session.hurry(now, out);
            Flow::Continue
        })
    }

    /// The connection is over, and `rest` is what was not consumed. Call again, with anything, while the flow is
    /// [`Flow::Again`].
    pub fn finish(&mut self, rest: &[u8], end: End, now: Now) -> DriverStep {
        let rest = if self.phase == DriverPhase::Open { rest } else { &[] };
        let step = call(&mut self.out, &mut self.account, &self.counters, now, |out| {
            // Set first: a call that panics is not repeated.
            self.phase = DriverPhase::Finished;
            let flow = self.session.finish(rest, end, now, out);
            if flow != Flow::Again {
                out.write_combined_losses();
            }
            flow
        });
        if step.flow == Flow::Again {
            self.phase = DriverPhase::Finishing;
        }
        step
    }

    /// Ends a connection that cannot be finished: an aborted task, or a panic of ours (`detail` says which). What the session
    /// still holds of decoded messages goes out, unless it panicked, while `may_continue` permits with the memory of the
    /// batches so far; every buffered byte is lost. A loss reports what is missing.
    pub fn abandon(
        &mut self,
        now: Now,
        has_panicked: bool,
        detail: &str,
        mut may_continue: impl FnMut(usize) -> bool,
    ) -> Abandoned {
        let mut batches = Vec::new();
        if self.out.batch.is_empty() {
            self.account.settle(&self.counters, &mut self.out);
        }
        // Otherwise a panic left events behind that may be half made. They are dropped, and the bytes that they were
        // made from are not settled: these count as buffered, so they are lost below.
        let mut memory_bytes = 0;
        while !has_panicked && self.phase != DriverPhase::Finished && may_continue(memory_bytes) {
            let batch = self.finish(&[], End::Stopped, now).batch;
            memory_bytes += batch.as_ref().map_or(0, Batch::memory_bytes);
            batches.extend(batch);
        }
        let is_cut = !has_panicked && self.phase != DriverPhase::Finished;
        let (offset, lost_bytes) = self.account.lose_buffered(&self.counters, Reason::Failed);
        if lost_bytes > 0 || is_cut {
            let rest = if is_cut { "; events that it held are missing" } else { "" };
            let detail = &format!("{detail}{rest}");
            let loss = Loss { reason: Reason::Failed, bytes: lost_bytes, events: None, detail, excerpt: &[] };
            batches.push(loss_batch(&self.counters, self.out.batch.origin(), now.unix, offset, loss));
        }
        Abandoned { batches, lost_bytes, is_cut }
    }

    /// Bytes for the peer, and the pause that the session asks for: to be taken after every call.
    pub fn output(&mut self) -> &mut Output {
        &mut self.out
    }

    /// Where the events come from.
    pub fn origin(&self) -> &Arc<Origin> {
        self.out.batch.origin()
    }

    /// Bytes received since the connection was opened.
    pub fn total_received(&self) -> u64 {
        self.account.total_received()
    }

    /// See [`Session::awaiting`].
    pub fn awaiting(&self) -> Awaiting {
        self.session.awaiting()
    }

    /// When [`SessionDriver::handle_timeout`] is to be called, on the clock of [`Now::elapsed`].
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.session.poll_timeout().into_iter().chain(self.out.losses_due()).min()
    }

    /// See [`Session::poll_wake`].
    pub fn poll_wake(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.session.poll_wake(context)
    }

    /// See [`Session::explainer`].
    pub fn explainer(&self) -> Box<dyn Explain> {
        self.session.explainer()
    }
}
