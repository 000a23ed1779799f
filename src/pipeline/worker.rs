//! Drives one sink: takes batches from its queue, writes and flushes them, retries, and completes their delivery handles.
//!
//! Batches that ask to be durable are synced together: one sync completes all that were written before it began, and those
//! that arrive during it share the next one. Without such a batch nothing is synced here.
//!
//! A *worker* does that, on a thread of its own if the sink may block, so that encoding and writing share a processor. A
//! *supervisor*, a task on the runtime, makes the sink and replaces it when it fails. It never waits for a thread that is
//! blocked: it takes the batches of that thread back and continues without it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use tributary_event::UnixNanos;
use tributary_memory::log_throttle::LogThrottle;
use tributary_select::Rules;
use tributary_sink::{Kinds, LossCause, Selection, Sink, SinkError, SinkProgress, Unwritten};
use tributary_system::blocking;

use super::fault_log::FaultLog;
use super::in_flight::InFlightBatches;
use super::options::OnFailure;
use super::queue::{QueuedBatch, SinkQueueState};
use super::waits::{flush_due, is_outage, notified, still_refuses, stopped};

/// At most this many batches are written before a flush.
const MAX_UNFLUSHED: usize = 256;
/// At most this many bytes of output, and one batch more, are written before a flush: what is not flushed is not
/// delivered, and its peers wait.
const MAX_UNFLUSHED_BYTES: usize = 8 << 20;
/// How often a sink does its periodic work.
const TICK: Duration = Duration::from_secs(1);
/// Pauses between the tries of a sink that cannot write: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How long a sink may take to end its output after a whole record when the grace period is over.
const GIVE_UP: Duration = Duration::from_millis(250);

/// What a worker needs beside its sink.
pub(super) struct WorkerContext {
    pub(super) counters: Arc<SinkQueueState>,
    pub(super) kinds: Kinds,
    pub(super) rules: Option<Arc<Rules>>,
    pub(super) on_failure: OnFailure,
    /// Changes when the operator wants files to be reopened.
    pub(super) reopen: watch::Receiver<u64>,
    /// Cancelled by the worker when the daemon must stop.
    pub(super) stop: CancellationToken,
    /// Cancelled when the grace period is over: events that are not written by then count as failed.
    pub(super) abort: CancellationToken,
    /// When the last events that a sink got were read: the time of loss events. A new sink may have no other events than
    /// the losses of the one before it.
    pub(super) observed: AtomicU64,
    /// For the log line that the sink cannot write.
    pub(super) retrying: LogThrottle,
    /// The log line that some of its destinations cannot be written.
    pub(super) faults: FaultLog,
    /// For the log line that its periodic work fails.
    pub(super) ticking: LogThrottle,
    /// For the log line that it has failed and is started again.
    pub(super) failing: LogThrottle,
}

/// How a worker has ended.
enum Outcome {
    /// The queue is closed and everything is written.
    Done,
    /// The reader has closed the sink.
    Closed,
    /// The sink cannot be used again.
    Failed(String),
    /// The daemon stops, the sink cannot write, and waiting for it is of no use.
    GivenUp,
}

/// What a worker reports when it ends.
struct WorkerReport {
    /// `None`: it was aborted.
    outcome: Option<Outcome>,
    /// [`Sink::written`] and [`Sink::unwritten`], read last.
    written: u64,
    unwritten: Unwritten,
}

impl WorkerReport {
    /// Nothing is known about what is in the output.
    fn unknown(outcome: Option<Outcome>) -> WorkerReport {
        WorkerReport { outcome, written: 0, unwritten: Unwritten::default() }
    }
}

/// Runs sinks made by `make` until the queue is closed and drained. A sink that fails or panics is replaced, or stops
/// the daemon, as configured; events that it had and did not write count as failed. The first sink is made when `may_start`
/// is cancelled, if there is one.
pub(super) async fn supervise<S: Sink>(
    make: impl Fn() -> Result<S, SinkError>,
    queued_batches: mpsc::Receiver<QueuedBatch>,
    context: WorkerContext,
    may_start: Option<CancellationToken>,
) {
    let _panics = OnPanic(context.counters.clone());
    if let Some(may_start) = may_start {
        context.abort.run_until_cancelled(may_start.cancelled()).await;
    }
    let queued_batches = Arc::new(Mutex::new(queued_batches));
    let context = Arc::new(context);
    let name = context.counters.sink.name().to_owned();
    let mut wait = RETRY.0;
    let mut is_last_try = false;
    loop {
        let began = Instant::now();
        let outcome = match make() {
            Ok(sink) => run(sink, &queued_batches, &context).await,
            Err(error) => Some(Outcome::Failed(error.to_string())),
        };
        let failure = match outcome {
            Some(Outcome::Done) => return,
            Some(Outcome::Closed) => {
                context.counters.sink.set_closed();
                context.stop.cancel();
                break;
            }
            Some(Outcome::Failed(why)) => why,
            Some(Outcome::GivenUp) | None => break,
        };
        // The previous sink may have failed while it retried, and its destinations are those of the next one.
        context.counters.sink.set_retrying(false);
        context.counters.set_down(false);
        context.counters.sink.set_destination_faults(Vec::new());
        context.counters.sink.set_fault(failure.clone());
        match context.on_failure {
            OnFailure::Fatal => {
                error!(sink = name, error = %failure, "sink failed");
                context.counters.sink.set_dead();
                context.stop.cancel();
                break;
            }
            OnFailure::Restart => {
                // Nothing but reports of losses is left to be written: another sink may write them, or cannot either.
                if is_last_try {
                    break;
                }
                is_last_try = has_ended(&queued_batches).await;
                wait = if began.elapsed() > RETRY.1 { RETRY.0 } else { (wait * 2).min(RETRY.1) };
                if let Some(suppressed) = context.failing.permit() {
                    error!(sink = name, error = %failure, suppressed, "sink failed; restarting it");
                }
                tokio::select! {
                    () = sleep(wait) => {}
                    () = context.abort.cancelled() => break,
                }
            }
        }
    }
    // Nothing more will be written: what is queued or still handed over counts as failed when its handle is dropped. A
    // worker that is blocked in a write keeps its capacity of the queue for ever, so senders must not wait for that.
    context.counters.close();
    let mut queued_batches = queued_batches.lock().await;
    queued_batches.close();
    while queued_batches.recv().await.is_some() {}
    context.counters.sink.abandon();
}

/// Whether the queue is closed and drained.
async fn has_ended(queued_batches: &Mutex<mpsc::Receiver<QueuedBatch>>) -> bool {
    let queued_batches = queued_batches.lock().await;
    queued_batches.is_closed() && queued_batches.is_empty()
}

/// A sink whose supervisor panics is dead: no other one is started.
struct OnPanic(Arc<SinkQueueState>);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            error!(
                sink = self.0.sink.name(),
                "starting the sink panicked, which is a bug of tributary; it is not started again"
            );
            self.0.sink.set_dead();
        }
    }
}

/// Runs one sink, which may panic or block. `None`: the grace period is over.
async fn run<S: Sink>(
    sink: S,
    queued_batches: &Arc<Mutex<mpsc::Receiver<QueuedBatch>>>,
    context: &Arc<WorkerContext>,
) -> Option<Outcome> {
    let in_flight = Arc::<InFlightBatches>::default();
    context.counters.sink.set_files(sink.files());
    context.counters.sink.set_remote(sink.remote());
    let worker = Worker {
        queued_batches: queued_batches.clone(),
        in_flight: in_flight.clone(),
        context: context.clone(),
        progress: WrittenEvents::of(&sink),
    };
    // Also cancelled when this future is dropped.
    let abort = context.abort.child_token();
    let _guard = abort.clone().drop_guard();
    let failed = |why: String| WorkerReport::unknown(Some(Outcome::Failed(why)));
    let ended = match start(sink, worker, abort.clone()) {
        Ok(mut ended) => tokio::select! {
            // A panic drops the sender.
            ended = &mut ended => ended.unwrap_or_else(|_| failed("it panicked, which is a bug of tributary".to_owned())),
            () = abort.cancelled() => {
                // It may end its output after a whole record, unless its thread is blocked.
                let ended = timeout(GIVE_UP * 2, ended).await.ok().and_then(Result::ok);
                WorkerReport { outcome: None, ..ended.unwrap_or(WorkerReport::unknown(None)) }
            }
        },
        Err(error) => failed(error.to_string()),
    };
    in_flight.give_up(ended.written, &ended.unwritten);
    context.counters.set_held(Vec::new());
    ended.outcome
}

/// Starts the work, on a thread if the sink may block, otherwise as a task. The receiver gets the end after the sink is
/// dropped.
fn start<S: Sink>(sink: S, worker: Worker, abort: CancellationToken) -> io::Result<oneshot::Receiver<WorkerReport>> {
    let (sender, ended) = oneshot::channel();
    let name = format!("sink {}", worker.context.counters.sink.name());
    let (context, progress) = (worker.context.clone(), worker.progress.clone());
    let work = async move {
        let mut sink = sink;
        let outcome = tokio::select! {
            biased;
            () = abort.cancelled() => None,
            outcome = worker.work(&mut sink) => Some(outcome).filter(|outcome| !matches!(outcome, Outcome::GivenUp)),
        };
        if outcome.is_none() {
            let _ = timeout(GIVE_UP, sink.give_up()).await;
        }
        progress.update(&sink, &context);
        WorkerReport { outcome, written: sink.written(), unwritten: sink.unwritten() }
    };
    // After the end of the grace period the receiver may be gone.
    if !S::BLOCKS {
        tokio::spawn(async move { sender.send(work.await).is_ok() });
        return Ok(ended);
    }
    blocking::thread(name, move || {
        // Declared first, so that a panic drops it last: after the sink and its files.
        let sender = sender;
        // Made here: a runtime cannot be dropped on a thread that runs tasks, as it would be if there were no thread.
        let ended = match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                let ended = runtime.block_on(work);
                // Does not wait for a resolver of names.
                runtime.shutdown_background();
                ended
            }
            Err(error) => WorkerReport::unknown(Some(Outcome::Failed(format!("cannot start its runtime: {error}")))),
        };
        let _ = sender.send(ended);
    })?;
    Ok(ended)
}

/// The work on one sink, until the queue is closed and drained or the sink fails.
struct Worker {
    queued_batches: Arc<Mutex<mpsc::Receiver<QueuedBatch>>>,
    in_flight: Arc<InFlightBatches>,
    context: Arc<WorkerContext>,
    progress: Arc<WrittenEvents>,
}

/// Takes over what a sink counts itself.
struct WrittenEvents {
    is_counted_by_sink: bool,
    last: std::sync::Mutex<Option<SinkProgress>>,
}

impl WrittenEvents {
    fn of(sink: &impl Sink) -> Arc<WrittenEvents> {
        Arc::new(WrittenEvents { is_counted_by_sink: sink.progress().is_some(), last: std::sync::Mutex::default() })
    }

    fn update(&self, sink: &impl Sink, context: &WorkerContext) {
        if let Some(now) = sink.progress() {
            context.counters.sink.set_remote(sink.remote());
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            context.counters.sink.progress(last.replace(now), now, sink.is_queue_open());
        }
    }
}

impl Worker {
    async fn work<S: Sink>(self, sink: &mut S) -> Outcome {
        let result = self.take_batches(sink).await;
        result.err().unwrap_or(Outcome::Done)
    }

    async fn take_batches<S: Sink>(&self, sink: &mut S) -> Result<(), Outcome> {
        let context = &*self.context;
        let mut reopen = context.reopen.clone();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let first = tokio::select! {
                biased;
                Ok(()) = reopen.changed() => {
                    sink.reopen();
                    continue;
                }
                _ = ticks.tick() => {
                    self.tick(sink).await?;
                    self.settle(sink).await?;
                    // After a failure the report of what was lost is also a write, which shows whether the sink can write again.
                    if self.progress.is_counted_by_sink || context.counters.sink.has_fault() {
                        self.report_losses(sink).await?;
                    }
                    // A tick that takes longer than the period must not be followed by the next one: the queue has its turn.
                    ticks.reset();
                    continue;
                }
                () = flush_due(sink) => {
                    let flushed = sink.flush().await;
                    self.retry(sink, flushed).await?;
                    self.settle(sink).await?;
                    continue;
                }
                queued_batch = self.next_batch() => queued_batch,
            };
            // Everything that is queued goes into one flush.
            let mut next = first;
            let is_last = next.is_none();
            let (mut taken, mut bytes) = (0, 0);
            while let Some(queued_batch) = next {
                bytes += queued_batch.output_bytes();
                self.write(sink, queued_batch).await?;
                taken += 1;
                let may_take = taken < MAX_UNFLUSHED && bytes < MAX_UNFLUSHED_BYTES;
                next = if may_take { self.queued_batches.lock().await.try_recv().ok() } else { None };
            }
            if is_last {
                self.write_pending_losses(sink, 0).await?;
                sink.finish();
            }
            let flushed = sink.flush().await;
            self.retry(sink, flushed).await?;
            let mut is_settled = self.settle(sink).await?;
            if is_last {
                while !is_settled {
                    let _ = timeout(RETRY.0, sink.woken()).await;
                    let flushed = sink.flush().await;
                    self.retry(sink, flushed).await?;
                    is_settled = self.settle(sink).await?;
                }
                if self.progress.is_counted_by_sink {
                    self.report_losses(sink).await?;
                }
                self.close(sink).await?;
                // No output is left for a loss event: what closing has lost is logged.
                return self.complete(sink).map(drop);
            }
        }
    }

    /// The next batch. The queue is locked only here, so a thread that is blocked in a write does not keep it locked.
    async fn next_batch(&self) -> Option<QueuedBatch> {
        self.queued_batches.lock().await.recv().await
    }

    async fn write<S: Sink>(&self, sink: &mut S, queued_batch: QueuedBatch) -> Result<(), Outcome> {
        if let Some(observed) = queued_batch.observed() {
            self.context.observed.store(observed.0, Relaxed);
        }
        let (contents, mut handle) = queued_batch.open();
        if self.progress.is_counted_by_sink {
            handle.counted_by_sink();
        }
        let (level, is_awaited) = (handle.level(), handle.is_awaited());
        let number = self.in_flight.add(handle);
        self.write_pending_losses(sink, number).await?;
        let selection = contents.selection(self.context.kinds).numbered(number).at_level(level);
        let selection = if is_awaited { selection } else { selection.not_awaited() };
        let written = self.write_selection(sink, selection).await;
        // The sink has taken the whole batch, even if it retries.
        drop(contents);
        self.retry(sink, written).await
    }

    /// Gives events to the sink. This is the only place: without what the sink may not show.
    async fn write_selection<S: Sink>(&self, sink: &mut S, events: Selection<'_>) -> Result<(), SinkError> {
        match self.context.rules.as_ref().and_then(|rules| rules.redact(events)) {
            Some(copy) => sink.write(events.replaced_by(&copy)).await,
            None => sink.write(events).await,
        }
    }

    /// Writes a loss for events that the sink did not get to its own output, before the events that follow them: the batch
    /// with the number `precedes`.
    async fn write_pending_losses<S: Sink>(&self, sink: &mut S, precedes: u64) -> Result<(), Outcome> {
        let context = &*self.context;
        // A report for each listener: their losses can have different destinations.
        for report in context.counters.take_pending_losses() {
            let Some(batch) = report.batch(UnixNanos(context.observed.load(Relaxed))) else { continue };
            let chosen = context.rules.as_ref().and_then(|rules| rules.choose(&batch, context.kinds).chosen);
            let losses = Selection::new(&batch, context.kinds).chosen(chosen.as_ref()).uncounted().not_awaited();
            let number = self.in_flight.add_report(report, losses.count(), precedes);
            let written = self.write_selection(sink, losses.numbered(number)).await;
            self.retry(sink, written).await?;
        }
        Ok(())
    }

    /// Writes a loss for events that a sink with a queue of its own has lost there, although no batch follows.
    async fn report_losses<S: Sink>(&self, sink: &mut S) -> Result<(), Outcome> {
        if !self.context.counters.has_pending_losses() {
            return Ok(());
        }
        self.write_pending_losses(sink, 0).await?;
        let flushed = sink.flush().await;
        self.retry(sink, flushed).await?;
        self.settle(sink).await.map(drop)
    }

    /// After a flush that returned `Ok`: completes the batches that are written, then syncs those that ask for it and
    /// completes them, too. Returns whether the sink holds no batch.
    async fn settle<S: Sink>(&self, sink: &mut S) -> Result<bool, Outcome> {
        let rest = self.complete(sink)?;
        if !rest.is_unsynced {
            return Ok(!rest.is_held);
        }
        let synced = sink.sync().await;
        self.retry(sink, synced).await?;
        let rest = self.complete(sink)?;
        Ok(!rest.is_held && !rest.is_unsynced)
    }

    /// Completes the batches that are written, fails those that the sink has dropped, and keeps those that it holds, whose
    /// listeners wait, and those that are not synced.
    fn complete<S: Sink>(&self, sink: &mut S) -> Result<Rest, Outcome> {
        let context = &*self.context;
        self.progress.update(sink, context);
        let unwritten = sink.unwritten();
        let name = context.counters.sink.name();
        let (is_held, is_unsynced) = (!unwritten.held.is_empty(), !unwritten.unsynced.is_empty());
        // Before a delivery is completed: its peer may send the next batch immediately.
        let held = if unwritten.is_crowded { self.in_flight.held_origins(&unwritten.held) } else { Vec::new() };
        context.counters.set_held(held);
        context.counters.sink.set_retrying(is_held);
        context.counters.sink.set_destination_faults(unwritten.faults.clone());
        if self.in_flight.settle(&unwritten, sink.written()) && context.counters.sink.clear_fault() {
            info!(sink = name, "the sink writes again");
        }
        context.faults.log(name, &unwritten.faults, is_held);
        // One with a queue of its own reports the state of its destination itself.
        if let Some(fault) = unwritten.lost_fault.as_ref().filter(|_| !self.progress.is_counted_by_sink) {
            context.counters.sink.set_fault(fault.to_string());
        }
        if let Some(fault) = unwritten.lost_fault
            && let Some(suppressed) = context.failing.permit()
        {
            let events: u64 = unwritten.lost.iter().map(|(_, events)| events).sum();
            error!(sink = name, error = %fault, suppressed, events, "written events are lost");
        }
        let Unwritten { lost, shed, removed, .. } = unwritten;
        for (cause, events_of) in
            [(LossCause::Failed, lost), (LossCause::QueueFull, shed), (LossCause::Removed, removed)]
        {
            for (origin, events) in events_of {
                context.counters.add_pending_loss(Some(origin), cause, events);
            }
        }
        match (unwritten.failed_fault, context.on_failure) {
            (Some(fault), OnFailure::Fatal) => return Err(Outcome::Failed(fault.to_string())),
            // Those that cannot be written have been logged.
            (Some(fault), OnFailure::Restart) if unwritten.faults.is_empty() => {
                context.counters.sink.set_fault(fault.to_string());
                if let Some(suppressed) = context.failing.permit() {
                    error!(sink = name, error = %fault, suppressed, "cannot write; the events of this destination count as failed");
                }
            }
            _ => {}
        }
        Ok(Rest { is_held, is_unsynced })
    }

    /// Lets the sink do its periodic work. If that cannot be done now, the next tick tries again; meanwhile the sink writes.
    async fn tick<S: Sink>(&self, sink: &mut S) -> Result<(), Outcome> {
        let context = &*self.context;
        match sink.tick().await {
            Err(SinkError::Retry(fault)) => {
                if let Some(suppressed) = context.ticking.permit() {
                    let sink = context.counters.sink.name();
                    warn!(sink, error = %fault, suppressed, "periodic work of the sink failed; retrying");
                }
                Ok(())
            }
            ticked => self.retry(sink, ticked).await,
        }
    }

    /// Closes the sink after everything is written. An error is logged: there is no further try.
    async fn close<S: Sink>(&self, sink: &mut S) -> Result<(), Outcome> {
        let context = &*self.context;
        match sink.close().await {
            Err(SinkError::Retry(fault)) => {
                warn!(sink = context.counters.sink.name(), error = %fault, "closing the sink failed");
                Ok(())
            }
            closed => self.retry(sink, closed).await,
        }
    }

    /// While the sink cannot write now: waits and flushes again. Meanwhile its queue fills, and the agents slow down.
    async fn retry<S: Sink>(&self, sink: &mut S, mut result: Result<(), SinkError>) -> Result<(), Outcome> {
        let context = &*self.context;
        let began = Instant::now();
        let mut is_logged = false;
        let mut wait = RETRY.0;
        let mut attempts_at_stop = None;
        loop {
            match result {
                Ok(()) => {
                    if wait > RETRY.0 {
                        context.counters.sink.set_retrying(false);
                        context.counters.sink.clear_fault();
                        context.counters.set_down(false);
                    }
                    if is_logged {
                        info!(sink = context.counters.sink.name(), after = ?began.elapsed(), "writing again");
                    }
                    return Ok(());
                }
                Err(SinkError::Retry(fault)) => {
                    context.counters.sink.set_retrying(true);
                    context.counters.sink.set_fault(format!("{fault}; buffering and retrying"));
                    // The sink itself logs that its destination is away or refuses.
                    if !is_outage(sink)
                        && let Some(suppressed) = context.retrying.permit()
                    {
                        let sink = context.counters.sink.name();
                        warn!(sink, error = %fault, suppressed, "cannot write; buffering and retrying");
                        is_logged = true;
                    }
                    context.counters.set_down(wait > RETRY.0);
                    if self.is_queue_closed().await
                        && (self.is_needless(sink) || still_refuses(sink, &mut attempts_at_stop))
                    {
                        return Err(Outcome::GivenUp);
                    }
                    let back = sink.remote().map(|remote| remote.back());
                    tokio::select! {
                        () = sleep(wait) => {}
                        () = notified(back) => {}
                        () = sink.woken() => {}
                        () = stopped(&context.stop) => {}
                    }
                    wait = (wait * 2).min(RETRY.1);
                    result = sink.flush().await;
                }
                Err(SinkError::Closed) => return Err(Outcome::Closed),
                Err(SinkError::Failed(fault)) => return Err(Outcome::Failed(fault.to_string())),
            }
        }
    }

    /// Whether the daemon stops, and no further batch follows.
    async fn is_queue_closed(&self) -> bool {
        self.context.stop.is_cancelled() && self.queued_batches.lock().await.is_closed()
    }

    /// Whether the sink, which cannot write now, has only events that their peers send again.
    fn is_needless(&self, sink: &impl Sink) -> bool {
        let counters = &self.context.counters;
        let keeps_more = sink.progress().is_some_and(|of| of.waiting > self.in_flight.awaited_events());
        let is_spooled = sink.remote().is_some_and(|remote| remote.state().is_spooled);
        counters.is_down() && !counters.has_unawaited() && !keeps_more && !is_spooled
    }
}

/// Whether batches are left that could not be completed.
struct Rest {
    is_held: bool,
    is_unsynced: bool,
}
