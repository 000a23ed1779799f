//! Sinks that stall, fail, panic, retry or are closed by their reader: what becomes of the events, and what is reported.

mod outcomes;
mod replaced;

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::live::puppet::{Mood, Strings};
use crate::live::{losses, until, within};
use tokio_util::sync::CancellationToken;
use tributary::event::{Batch, BatchBuilder, Header, Kind, Origin, Position, Severity, UnixNanos};
use tributary::pipeline::accounting::{QueueCapacity, SinkCounters, SinkTotals};
use tributary::pipeline::options::{OnFailure, QueueOptions, WhenFull};
use tributary::pipeline::{DeliveryOutcome, RequestedLevel, Sender, Sinks, Workers};
use tributary::protocol::Protocol;
use tributary::sink::{AckLevel, ActionError, Selection, Sink, SinkError, Unwritten};

/// A worker that has nothing to do ends within this time. That one does not end is shown by nothing but time.
const ENOUGH_TO_END: Duration = Duration::from_millis(100);

fn connection(number: u64) -> Arc<Origin> {
    Arc::new(Origin::new("datadog", "test".into(), "peer".into(), number))
}

/// A batch of log events, of a connection of its own.
fn batch(number: u64, names: &[&str]) -> Batch {
    batch_of(&connection(number), names)
}

fn batch_of(origin: &Arc<Origin>, names: &[&str]) -> Batch {
    let mut builder = BatchBuilder::new(origin.clone());
    for name in names {
        let name = builder.push_text(name).into();
        let header = Header { name, time: None, observed: UnixNanos(1), position: Position::default() };
        builder.event(header).log(Severity::Info, None);
    }
    builder.take()
}

/// Queues, and the workers of their sinks.
struct Pipeline {
    sender: Sender,
    workers: Workers,
    counters: Vec<Arc<SinkCounters>>,
    stop: CancellationToken,
}

impl Pipeline {
    /// With these sinks.
    fn of(sinks: &[(&Strings, QueueOptions)]) -> Pipeline {
        let stop = CancellationToken::new();
        let mut building = Sinks::new(stop.clone());
        for (strings, options) in sinks {
            let strings = Strings::clone(strings);
            building.add("puppet", options.clone(), move || Ok(strings.puppet()));
        }
        let counters = building.counters().to_vec();
        let (sender, workers) = building.start();
        Pipeline { sender, workers, counters, stop }
    }

    fn totals(&self, sink: usize) -> SinkTotals {
        self.counters[sink].totals()
    }

    /// Hands a batch of one event over; returns a task that waits for its outcome.
    fn deliver(&self, name: &'static str) -> tokio::task::JoinHandle<DeliveryOutcome> {
        let sender = self.sender.clone();
        tokio::spawn(async move { sender.deliver(batch(1, &[name])).await })
    }

    /// Waits until everything is written; the counters must balance.
    async fn finish(mut self) -> Vec<SinkTotals> {
        self.sender = Sender::default();
        within("the sinks end", self.workers.drained()).await;
        let totals: Vec<_> = self.counters.iter().map(|counters| counters.totals()).collect();
        let is_empty = |totals: &SinkTotals| totals.in_flight() == 0 && totals.queue_batches == 0;
        assert!(totals.iter().all(is_empty), "{totals:?}");
        totals
    }
}

fn figures(totals: &SinkTotals) -> [u64; 4] {
    [totals.events, totals.written, totals.shed, totals.failed]
}

fn shedding() -> QueueOptions {
    QueueOptions { buffer_batches: 1, when_full: WhenFull::Shed, ..QueueOptions::default() }
}

#[tokio::test]
async fn a_sink_that_cannot_write_is_retried_and_nothing_is_lost() {
    let strings = Strings::new(Mood::Retry);
    let pipeline = Pipeline::of(&[(&strings, QueueOptions::default())]);
    pipeline.sender.send(batch(1, &["a", "b"])).await;
    until("several tries", || (strings.flushes() > 2).then_some(())).await;
    assert!(pipeline.totals(0).is_retrying, "the counters say that the sink cannot write");
    pipeline.sender.send(batch(1, &["c"])).await;
    let SinkTotals { queue_batches, queue_bytes, queue_capacity, .. } = pipeline.totals(0);
    assert_eq!(queue_batches, 1, "the second batch waits in the queue");
    let QueueOptions { buffer_batches, buffer_bytes, .. } = QueueOptions::default();
    assert_eq!(queue_capacity, QueueCapacity { batches: buffer_batches as u64, bytes: buffer_bytes });
    assert!((1..queue_capacity.bytes).contains(&queue_bytes), "{queue_bytes}");
    strings.set(Mood::Write);
    until("everything is written", || (strings.written().len() == 3).then_some(())).await;
    until("the counters say that it writes again", || (!pipeline.totals(0).is_retrying).then_some(())).await;
    assert_eq!(pipeline.totals(0).queue_bytes, 0);
    assert_eq!(strings.written_names(), ["a", "b", "c"]);
    assert_eq!(figures(&pipeline.finish().await[0]), [3, 3, 0, 0]);
}

/// Writes, and fails in every tick.
struct Untidy(Arc<[AtomicU64; 2]>);

impl Sink for Untidy {
    async fn write(&mut self, _events: Selection<'_>) -> Result<(), SinkError> {
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        self.0[0].fetch_add(1, Relaxed);
        Ok(())
    }

    async fn tick(&mut self) -> Result<(), SinkError> {
        self.0[1].fetch_add(1, Relaxed);
        Err(SinkError::Retry(ActionError { action: "tidy".to_owned(), source: ErrorKind::PermissionDenied.into() }))
    }
}

#[tokio::test]
async fn a_failed_tick_does_not_mean_that_the_sink_cannot_write() {
    let calls = Arc::<[AtomicU64; 2]>::default();
    let mut sinks = Sinks::new(CancellationToken::new());
    let of_sink = calls.clone();
    sinks.add("untidy", QueueOptions::default(), move || Ok(Untidy(of_sink.clone())));
    let counters = sinks.counters()[0].clone();
    let (sender, mut workers) = sinks.start();
    until("two ticks", || (calls[1].load(Relaxed) == 2).then_some(())).await;
    assert_eq!(calls[0].load(Relaxed), 0, "nothing was written, so nothing is tried again");
    sender.send(batch(1, &["event"])).await;
    drop(sender);
    within("the sink ends", workers.drained()).await;
    assert_eq!(figures(&counters.totals()), [1, 1, 0, 0]);
}

#[tokio::test]
async fn a_sink_that_fails_or_panics_is_restarted_and_reports_the_loss() {
    for mood in [Mood::Fail, Mood::Panic, Mood::FailWriting, Mood::PanicWriting] {
        let strings = Strings::new(mood);
        let pipeline = Pipeline::of(&[(&strings, QueueOptions::default())]);
        pipeline.sender.send(batch(7, &["lost", "lost too"])).await;
        until("the sink failed", || (pipeline.totals(0).failed == 2).then_some(())).await;
        strings.set(Mood::Write);
        pipeline.sender.send(batch(7, &["later"])).await;
        let totals = pipeline.finish().await;
        assert_eq!(figures(&totals[0]), [3, 1, 0, 2], "{mood:?}");
        let written = strings.written();
        assert_eq!(strings.written_names(), ["tributary.loss", "later"], "{mood:?}");
        assert_eq!((&written[0]["loss"]["reason"], &written[0]["loss"]["events"]), (&"failed".into(), &2.into()));
        assert_eq!(written[0]["origin"]["connection"], 7);
    }
}

#[tokio::test]
async fn a_sink_that_has_failed_is_not_up_until_it_has_written_the_report_of_its_loss() {
    for mood in [Mood::Fail, Mood::Panic, Mood::FailWriting, Mood::PanicWriting] {
        let strings = Strings::new(mood);
        let pipeline = Pipeline::of(&[(&strings, QueueOptions::default())]);
        assert_eq!(pipeline.totals(0).fault, None);
        pipeline.sender.send(batch(7, &["lost"])).await;
        until("the sink failed", || (pipeline.totals(0).failed == 1).then_some(())).await;
        until("it was started again", || (strings.writes() >= 3).then_some(())).await;
        let fault = pipeline.totals(0).fault.expect("it has written nothing since");
        assert!(fault.contains("cannot dance: the strings are tangled") || fault.contains("panicked"), "{fault}");
        strings.set(Mood::Write);
        until("it is up, without another event", || pipeline.totals(0).fault.is_none().then_some(())).await;
        assert_eq!(strings.written_names(), ["tributary.loss"]);
        pipeline.finish().await;
    }
}

#[tokio::test]
async fn a_loss_that_a_failing_sink_could_not_write_is_written_by_the_next() {
    let strings = Strings::new(Mood::Stall);
    let pipeline = Pipeline::of(&[(&strings, shedding())]);
    pipeline.sender.send(batch(1, &["stalls"])).await;
    until("the sink stalls", || (strings.flushes() == 1).then_some(())).await;
    for name in ["waits", "shed", "shed"] {
        pipeline.sender.send(batch(1, &[name])).await;
    }
    assert_eq!(pipeline.totals(0).shed, 2);
    // It writes what it has taken, but not what waits, nor the loss before that.
    let first = pipeline.deliver("never seen");
    assert_eq!(within("it is shed", first).await.unwrap(), DeliveryOutcome::Shed);
    strings.set(Mood::Fail);
    until("the sink failed", || (pipeline.totals(0).failed >= 1).then_some(())).await;
    until("it was tried again", || (pipeline.totals(0).failed == 2).then_some(())).await;
    strings.set(Mood::Write);
    let totals = pipeline.finish().await;
    assert_eq!(figures(&totals[0]), [5, 0, 3, 2]);
    let written = strings.written();
    let reported = |reason: &str| -> u64 {
        let of_reason = losses(&written).into_iter().filter(|loss| loss["reason"] == reason);
        of_reason.map(|loss| loss["events"].as_u64().unwrap()).sum()
    };
    assert_eq!((reported("shed"), reported("failed")), (3, 2), "{written:?}");
    // Losses of a new sink that has got no events have a time, too.
    assert!(written.iter().all(|event| event["time"] == "1970-01-01T00:00:00.000000001Z"), "{written:?}");
}

#[tokio::test]
async fn a_full_queue_that_sheds_reports_it_before_the_next_events() {
    let strings = Strings::new(Mood::Stall);
    let pipeline = Pipeline::of(&[(&strings, shedding())]);
    let (one, two) = (connection(1), connection(2));
    pipeline.sender.send(batch_of(&one, &["first"])).await;
    until("the sink stalls", || (strings.flushes() == 1).then_some(())).await;
    pipeline.sender.send(batch_of(&one, &["waits"])).await;
    pipeline.sender.send(batch_of(&one, &["shed", "shed"])).await;
    pipeline.sender.send(batch_of(&two, &["shed"])).await;
    pipeline.sender.send(batch_of(&one, &["shed"])).await;
    assert_eq!(figures(&pipeline.totals(0)), [6, 0, 4, 0]);
    strings.set(Mood::Write);
    until("the queue has room", || (pipeline.totals(0).written == 2).then_some(())).await;
    pipeline.sender.send(batch_of(&one, &["last"])).await;
    assert_eq!(figures(&pipeline.finish().await[0]), [7, 3, 4, 0]);
    let written = strings.written();
    assert_eq!(strings.written_names(), ["first", "tributary.loss", "tributary.loss", "waits", "last"]);
    for (loss, (connection, events)) in written[1..3].iter().zip([(1, 3), (2, 1)]) {
        assert_eq!(loss["origin"]["connection"], connection);
        assert_eq!((&loss["loss"]["reason"], &loss["loss"]["events"]), (&"shed".into(), &events.into()));
    }
}

#[tokio::test]
async fn a_blocked_sink_that_sheds_does_not_delay_another() {
    let (stuck, well) = (Strings::new(Mood::Stall), Strings::new(Mood::Write));
    let pipeline = Pipeline::of(&[(&stuck, shedding()), (&well, QueueOptions::default())]);
    for _ in 0..100 {
        within("the batch is taken", pipeline.sender.send(batch(1, &["event"]))).await;
    }
    until("the other sink has everything", || (well.written().len() == 100).then_some(())).await;
    let totals = pipeline.totals(0);
    assert!(totals.shed > 90 && totals.written == 0, "{totals:?}");
    stuck.set(Mood::Write);
    let totals = pipeline.finish().await;
    let [events, written, shed, failed] = figures(&totals[0]);
    assert_eq!((events, written + shed, failed), (100, 100, 0));
    let reported: u64 = losses(&stuck.written()).iter().map(|loss| loss["events"].as_u64().unwrap()).sum();
    assert_eq!(reported, shed);
    assert_eq!(figures(&totals[1]), [100, 100, 0, 0]);
    assert!(losses(&well.written()).is_empty());
}

#[tokio::test]
async fn a_full_queue_that_blocks_does_not_delay_another_sink() {
    let (stuck, well) = (Strings::new(Mood::Stall), Strings::new(Mood::Write));
    let blocking = QueueOptions { buffer_batches: 1, ..QueueOptions::default() };
    // The blocked one is first: a batch is offered to all before it waits for one.
    let pipeline = Pipeline::of(&[(&stuck, blocking), (&well, QueueOptions::default())]);
    pipeline.sender.send(batch(1, &["first"])).await;
    until("the sink stalls", || (stuck.flushes() == 1).then_some(())).await;
    pipeline.sender.send(batch(1, &["waits"])).await;
    let blocked = pipeline.deliver("blocked");
    until("the other sink has it", || (well.written().len() == 3).then_some(())).await;
    assert!(!blocked.is_finished());
    assert_eq!(pipeline.totals(0).events, 3, "what waits for room is in the counters");
    stuck.set(Mood::Write);
    assert_eq!(within("the batch is taken", blocked).await.unwrap(), DeliveryOutcome::Written);
    assert_eq!(stuck.written_names(), ["first", "waits", "blocked"]);
    pipeline.finish().await;
}

#[tokio::test]
async fn a_sink_that_its_reader_closes_stops_the_daemon_without_a_failure() {
    let strings = Strings::new(Mood::Close);
    let pipeline = Pipeline::of(&[(&strings, QueueOptions::default())]);
    pipeline.sender.send(batch(1, &["unread"])).await;
    within("the daemon is to stop", pipeline.stop.cancelled()).await;
    within("the batch is not queued", pipeline.sender.send(batch(1, &["unread"]))).await;
    let totals = tributary::pipeline::accounting::Totals { listeners: Vec::new(), sinks: pipeline.finish().await };
    assert!(totals.sinks[0].is_closed && totals.are_balanced());
    assert_eq!(figures(&totals.sinks[0]), [2, 0, 0, 2]);
    assert_eq!(totals.failed(), 0);
}

#[tokio::test]
async fn a_sink_that_must_not_fail_stops_the_daemon() {
    let (strings, well) = (Strings::new(Mood::Fail), Strings::new(Mood::Write));
    let fatal = QueueOptions { on_failure: OnFailure::Fatal, ..QueueOptions::default() };
    let pipeline = Pipeline::of(&[(&strings, fatal), (&well, QueueOptions::default())]);
    pipeline.sender.send(batch(1, &["first"])).await;
    within("the daemon is to stop", pipeline.stop.cancelled()).await;
    // Until the daemon has stopped, senders do not wait, and the other sink gets further events.
    within("the batch is not queued", pipeline.sender.send(batch(1, &["last"]))).await;
    let totals = pipeline.finish().await;
    assert_eq!(figures(&totals[0]), [2, 0, 0, 2]);
    assert_eq!(figures(&totals[1]), [2, 2, 0, 0]);
    assert!(totals[0].is_dead && !totals[1].is_dead);
    assert_eq!(well.written_names(), ["first", "last"]);
}

#[tokio::test]
async fn a_delivery_is_written_when_the_sink_has_flushed_it() {
    let strings = Strings::new(Mood::Stall);
    let pipeline = Pipeline::of(&[(&strings, QueueOptions::default())]);
    let delivery = pipeline.deliver("event");
    until("the sink stalls", || (strings.flushes() == 1).then_some(())).await;
    assert!(!delivery.is_finished());
    strings.set(Mood::Write);
    assert_eq!(within("the outcome", delivery).await.unwrap(), DeliveryOutcome::Written);
    assert_eq!(strings.written_names(), ["event"]);
    pipeline.finish().await;
}

#[tokio::test]
async fn the_outcome_is_the_worst_of_all_sinks() {
    let well = Strings::new(Mood::Write);
    for (mood, expected) in [
        (Mood::Write, DeliveryOutcome::Written),
        (Mood::Fail, DeliveryOutcome::Failed),
        (Mood::Panic, DeliveryOutcome::Failed),
        (Mood::Close, DeliveryOutcome::Failed),
    ] {
        let strings = Strings::new(mood);
        let pipeline = Pipeline::of(&[(&strings, QueueOptions::default()), (&well, QueueOptions::default())]);
        assert_eq!(within("the outcome", pipeline.deliver("event")).await.unwrap(), expected, "{mood:?}");
        strings.set(Mood::Write);
        pipeline.finish().await;
    }
    let stuck = Strings::new(Mood::Stall);
    let pipeline = Pipeline::of(&[(&stuck, shedding()), (&well, QueueOptions::default())]);
    pipeline.sender.send(batch(1, &["first"])).await;
    until("the sink stalls", || (stuck.flushes() == 1).then_some(())).await;
    pipeline.sender.send(batch(1, &["waits"])).await;
    assert_eq!(within("the outcome", pipeline.deliver("shed")).await.unwrap(), DeliveryOutcome::Shed);
    stuck.set(Mood::Write);
    pipeline.finish().await;
}

#[tokio::test]
async fn a_batch_that_no_sink_takes_counts_as_written() {
    let strings = Strings::new(Mood::Fail);
    let others = QueueOptions { protocols: vec![Protocol::Zico], ..QueueOptions::default() };
    let spans = QueueOptions { kinds: [Kind::Span].into_iter().collect(), ..QueueOptions::default() };
    let pipeline = Pipeline::of(&[(&strings, others), (&strings, spans)]);
    assert_eq!(within("the outcome", pipeline.deliver("a log")).await.unwrap(), DeliveryOutcome::Written);
    let totals = pipeline.finish().await;
    assert!(totals.iter().all(|totals| figures(totals) == [0; 4]));
    assert!(strings.written().is_empty());
}

#[tokio::test]
async fn a_delivery_given_up_by_the_end_of_the_grace_period_has_failed() {
    let strings = Strings::new(Mood::Stall);
    let mut pipeline = Pipeline::of(&[(&strings, QueueOptions::default())]);
    let delivery = pipeline.deliver("event");
    until("the sink stalls", || (strings.flushes() == 1).then_some(())).await;
    within("the workers end", pipeline.workers.abort()).await;
    assert_eq!(within("the outcome", delivery).await.unwrap(), DeliveryOutcome::Failed);
    assert_eq!(within("the outcome", pipeline.deliver("later")).await.unwrap(), DeliveryOutcome::Failed);
    assert_eq!(figures(&pipeline.finish().await[0]), [2, 0, 0, 2]);
}

/// Blocks its thread in `write` until it is released, like a disk that does not respond.
struct Stuck(Arc<Mutex<mpsc::Receiver<()>>>);

impl Sink for Stuck {
    async fn write(&mut self, _events: Selection<'_>) -> Result<(), SinkError> {
        let _ = self.0.lock().unwrap().recv();
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

#[tokio::test]
async fn a_sink_that_blocks_its_thread_delays_no_other_and_can_be_given_up() {
    let (release, released) = mpsc::channel::<()>();
    let (released, strings) = (Arc::new(Mutex::new(released)), Strings::new(Mood::Write));
    let mut sinks = Sinks::new(CancellationToken::new());
    let (of_stuck, of_puppet) = (Arc::downgrade(&released), strings.clone());
    sinks.add("stuck", QueueOptions::default(), move || Ok(Stuck(of_stuck.upgrade().unwrap())));
    sinks.add("puppet", QueueOptions::default(), move || Ok(of_puppet.puppet()));
    let counters = sinks.counters().to_vec();
    let (sender, mut workers) = sinks.start();
    sender.send(batch(1, &["first"])).await;
    until("it is stuck", || {
        (Arc::strong_count(&released) == 2 && counters[0].totals().queue_batches == 1).then_some(())
    })
    .await;
    sender.send(batch(1, &["second"])).await;
    until("the other has both", || (strings.written().len() == 2).then_some(())).await;
    drop(sender);
    within("it is given up", workers.abort()).await;
    assert_eq!(figures(&counters[0].totals()), [2, 0, 0, 2]);
    // What its thread reports later is ignored.
    drop(release);
    until("its thread has ended", || (Arc::strong_count(&released) == 1).then_some(())).await;
    assert_eq!(figures(&counters[0].totals()), [2, 0, 0, 2]);
    assert_eq!(figures(&counters[1].totals()), [2, 2, 0, 0]);
}

#[tokio::test]
async fn senders_that_wait_for_a_sink_whose_thread_is_blocked_return_when_it_is_given_up() {
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let mut sinks = Sinks::new(CancellationToken::new());
    let options = QueueOptions { buffer_bytes: 64 << 10, ..QueueOptions::default() };
    sinks.add("stuck", options, move || Ok(Stuck(released.clone())));
    let counters = sinks.counters()[0].clone();
    let (sender, mut workers) = sinks.start();
    // Each takes the whole queue. The first stays in the sink, which never releases its capacity.
    let long = "x".repeat(64 << 10);
    let send = |sender: Sender, name: String| async move { sender.deliver(batch(1, &[&name])).await };
    let sending: Vec<_> = (0..3).map(|_| tokio::spawn(send(sender.clone(), long.clone()))).collect();
    until("one is in the sink", || (counters.totals().queue_batches == 1).then_some(())).await;
    until("all are counted", || (counters.totals().events == 3).then_some(())).await;
    within("it is given up", workers.abort()).await;
    for sending in sending {
        assert_eq!(within("the outcome", sending).await.unwrap(), DeliveryOutcome::Failed);
    }
    let later = sender.deliver(batch(1, &["later"]));
    assert_eq!(within("the outcome", later).await, DeliveryOutcome::Failed);
    assert_eq!(figures(&counters.totals()), [4, 0, 0, 4]);
    drop(release);
}

/// Writes `limit` events and then fails, or waits to be given up.
struct Partial {
    limit: u64,
    written: u64,
    taken: u64,
    fails: bool,
}

impl Sink for Partial {
    const BLOCKS: bool = false;

    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        self.taken += events.count();
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        self.written = self.taken.min(self.limit);
        match (self.written == self.taken, self.fails) {
            (true, _) => Ok(()),
            (false, true) => {
                Err(SinkError::Failed(ActionError { action: "w".to_owned(), source: ErrorKind::Other.into() }))
            }
            (false, false) => std::future::pending().await,
        }
    }

    fn written(&self) -> u64 {
        self.written
    }
}

#[tokio::test]
async fn events_in_the_output_of_a_sink_that_fails_or_is_given_up_count_as_written() {
    for fails in [true, false] {
        let mut sinks = Sinks::new(CancellationToken::new());
        let options = QueueOptions { on_failure: OnFailure::Fatal, ..QueueOptions::default() };
        sinks.add("partial", options, move || Ok(Partial { limit: 4, written: 0, taken: 0, fails }));
        let counters = sinks.counters()[0].clone();
        let (sender, mut workers) = sinks.start();
        assert_eq!(within("the outcome", sender.deliver(batch(1, &["1"]))).await, DeliveryOutcome::Written);
        let rest = [&["2", "3"][..], &["4", "5", "6"], &["7"]];
        let sending = rest.map(|names| {
            let sender = sender.clone();
            tokio::spawn(async move { sender.deliver(batch(1, names)).await })
        });
        until("all are counted", || (counters.totals().events == 7).then_some(())).await;
        if !fails {
            within("it is given up", workers.abort()).await;
        }
        let mut outcomes = Vec::new();
        for sending in sending {
            outcomes.push(within("the outcome", sending).await.unwrap());
        }
        // Events 1 to 4 are in the output: one whole batch after the first, and one event of the next.
        assert!(outcomes[1..].iter().all(|outcome| *outcome == DeliveryOutcome::Failed), "{outcomes:?}");
        assert_eq!(figures(&counters.totals()), [7, 4, 0, 3], "{fails}");
        drop(sender);
        within("it ends", workers.drained()).await;
    }
}

/// Has written a part of the first event, and the rest of it when it is given up.
struct Halfway<const BLOCKS: bool> {
    is_flushing: Arc<AtomicU64>,
    written: u64,
}

impl<const BLOCKS: bool> Sink for Halfway<BLOCKS> {
    const BLOCKS: bool = BLOCKS;

    async fn write(&mut self, _events: Selection<'_>) -> Result<(), SinkError> {
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        self.is_flushing.store(1, Relaxed);
        std::future::pending().await
    }

    async fn give_up(&mut self) {
        self.written = 1;
    }

    fn written(&self) -> u64 {
        self.written
    }
}

async fn end_halfway<const BLOCKS: bool>() {
    let is_flushing = Arc::<AtomicU64>::default();
    let of_sink = is_flushing.clone();
    let mut sinks = Sinks::new(CancellationToken::new());
    sinks.add("halfway", QueueOptions::default(), move || {
        Ok(Halfway::<BLOCKS> { is_flushing: of_sink.clone(), written: 0 })
    });
    let counters = sinks.counters()[0].clone();
    let (sender, mut workers) = sinks.start();
    sender.send(batch(1, &["1", "2", "3"])).await;
    until("it has a part of the first event", || (is_flushing.load(Relaxed) == 1).then_some(())).await;
    within("it is given up", workers.abort()).await;
    assert_eq!(figures(&counters.totals()), [3, 1, 0, 2]);
}

#[tokio::test]
async fn a_sink_that_is_given_up_may_complete_its_record_which_counts_as_written() {
    end_halfway::<true>().await;
    end_halfway::<false>().await;
}

#[tokio::test]
async fn sinks_that_have_ended_do_not_prevent_giving_up_the_others() {
    let (good, stuck) = (Strings::new(Mood::Write), Strings::new(Mood::Stall));
    let options = QueueOptions::default();
    let mut pipeline = Pipeline::of(&[(&good, options.clone()), (&stuck, options.clone()), (&good, options)]);
    pipeline.sender.send(batch(1, &["event"])).await;
    until("a sink stalls", || (stuck.flushes() == 1).then_some(())).await;
    until("the others have written", || (good.written().len() == 2).then_some(())).await;
    pipeline.sender = Sender::default();
    let drained = tokio::time::timeout(ENOUGH_TO_END, pipeline.workers.drained());
    assert!(drained.await.is_err(), "one of them hangs");
    within("the workers end", pipeline.workers.abort()).await;
    let totals = pipeline.finish().await;
    assert_eq!([0, 1, 2].map(|sink| figures(&totals[sink])), [[1, 1, 0, 0], [1, 0, 0, 1], [1, 1, 0, 0]]);
}

#[tokio::test]
async fn a_batch_larger_than_its_queue_waits_alone_and_is_written() {
    let strings = Strings::new(Mood::Stall);
    let small = QueueOptions { buffer_bytes: 64 << 10, ..QueueOptions::default() };
    let pipeline = Pipeline::of(&[(&strings, small)]);
    let long = "x".repeat(200 << 10);
    let send = |sender: Sender, name: String| async move { sender.send(batch(1, &[&name])).await };
    let sending: Vec<_> = (0..3).map(|_| tokio::spawn(send(pipeline.sender.clone(), long.clone()))).collect();
    until("the sink stalls", || (strings.flushes() == 1).then_some(())).await;
    strings.set(Mood::Write);
    for sending in sending {
        within("the batch is taken", sending).await.unwrap();
    }
    assert_eq!(figures(&pipeline.finish().await[0]), [3, 3, 0, 0]);
}
