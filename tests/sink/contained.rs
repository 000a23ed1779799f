//! The pipeline with a file sink that cannot write one of its files: other listeners' events are written meanwhile.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::live::{until, until_async, within};
use crate::sink_file_support::{batch_of, names_in, now, options};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tributary::pipeline::accounting::SinkCounters;
use tributary::pipeline::options::{OnFailure, QueueOptions, WhenFull};
use tributary::pipeline::{DeliveryOutcome, Sender, Sinks, Workers};
use tributary::sink::file::File;

/// A file sink with a file for each listener, and its queue.
struct Archive {
    directory: TempDir,
    sender: Sender,
    workers: Workers,
    counters: Arc<SinkCounters>,
    stop: CancellationToken,
}

impl Archive {
    fn start(queue: QueueOptions) -> Archive {
        let directory = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        let mut sinks = Sinks::new(stop.clone());
        let options = options(&directory, "{listener}.log");
        sinks.add("archive", queue, move || Ok(File::new(options.clone()).unwrap()));
        let counters = sinks.counters()[0].clone();
        let (sender, workers) = sinks.start();
        Archive { directory, sender, workers, counters, stop }
    }

    /// Hands an event of a listener over; the task ends when its outcome is known.
    fn deliver(&self, listener: &'static str, name: &str) -> tokio::task::JoinHandle<DeliveryOutcome> {
        let (sender, batch) = (self.sender.clone(), batch_of(&[name.to_owned()], listener, now()));
        tokio::spawn(async move { sender.deliver(batch).await })
    }

    async fn outcome(&self, listener: &'static str, name: &str) -> DeliveryOutcome {
        within("the outcome is known", self.deliver(listener, name)).await.unwrap()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn names(&self, name: &str) -> Vec<String> {
        names_in(&fs::read(self.path(name)).unwrap())
    }
}

/// The name of an event that takes more than 64 KiB.
fn large() -> String {
    "b".repeat(70_000)
}

fn lock(path: &Path) -> fs::File {
    let file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.lock().unwrap();
    file
}

#[tokio::test]
async fn a_file_that_cannot_be_written_now_delays_only_its_own_listener() {
    let archive = Archive::start(QueueOptions { buffer_batches: 4, ..QueueOptions::default() });
    let locked = lock(&archive.path("b.log"));
    // More is held than the limit, so connections of the listener wait.
    let first = archive.deliver("b", &large());
    until("the sink reports that it holds events", || archive.counters.totals().is_retrying.then_some(())).await;
    // More than the queue has places for: connections of this listener wait, and those of others do not.
    let waiting: Vec<_> = (1..50).map(|number| archive.deliver("b", &format!("b{number}"))).collect();
    for number in 0..50 {
        assert_eq!(archive.outcome("a", &format!("a{number}")).await, DeliveryOutcome::Written);
    }
    assert_eq!(archive.names("a.log").len(), 50);
    assert!(!first.is_finished() && waiting.iter().all(|waiting| !waiting.is_finished()));
    assert!(archive.counters.totals().is_retrying);
    drop(locked);
    assert_eq!(within("the file is written", first).await.unwrap(), DeliveryOutcome::Written);
    for waiting in waiting {
        assert_eq!(within("the file is written", waiting).await.unwrap(), DeliveryOutcome::Written);
    }
    let mut names = archive.names("b.log");
    names.sort();
    let mut expected: Vec<_> = (1..50).map(|number| format!("b{number}")).collect();
    expected.push(large());
    expected.sort();
    assert_eq!(names, expected);
    assert!(!archive.counters.totals().is_retrying);
    let Archive { sender, mut workers, counters, .. } = archive;
    drop(sender);
    within("the sink ends", workers.drained()).await;
    let totals = counters.totals();
    assert_eq!((totals.events, totals.written), (100, 100));
}

#[tokio::test]
async fn a_queue_that_sheds_does_so_for_the_held_listener_only() {
    let archive = Archive::start(QueueOptions { when_full: WhenFull::Shed, ..QueueOptions::default() });
    let locked = lock(&archive.path("b.log"));
    let held = archive.deliver("b", &large());
    until("the sink reports that it holds events", || archive.counters.totals().is_retrying.then_some(())).await;
    assert_eq!(archive.outcome("b", "b1").await, DeliveryOutcome::Shed);
    assert_eq!(archive.outcome("a", "a0").await, DeliveryOutcome::Written);
    drop(locked);
    assert_eq!(within("the file is written", held).await.unwrap(), DeliveryOutcome::Written);
    assert_eq!(archive.outcome("b", "b2").await, DeliveryOutcome::Written);
    // The loss of the listener is in its own file.
    assert_eq!(archive.names("b.log"), [&large(), "tributary.loss", "b2"]);
    assert_eq!(archive.names("a.log"), ["a0"]);
}

#[tokio::test]
async fn events_for_a_path_that_cannot_be_a_file_fail_until_it_can() {
    let archive = Archive::start(QueueOptions::default());
    fs::create_dir(archive.path("b.log")).unwrap();
    assert_eq!(archive.outcome("b", "b0").await, DeliveryOutcome::Failed);
    assert_eq!(archive.outcome("a", "a0").await, DeliveryOutcome::Written);
    assert_eq!(archive.outcome("b", "b1").await, DeliveryOutcome::Failed);
    assert!(!archive.counters.totals().is_retrying);
    fs::remove_dir(archive.path("b.log")).unwrap();
    let mut failed = 2;
    until_async("an event is written", async || {
        let outcome = archive.outcome("b", "b2").await;
        failed += u64::from(outcome == DeliveryOutcome::Failed);
        (outcome != DeliveryOutcome::Failed).then_some(())
    })
    .await;
    assert_eq!(archive.counters.totals().failed, failed);
    assert_eq!(archive.outcome("a", "a1").await, DeliveryOutcome::Written);
    let text = fs::read_to_string(archive.path("b.log")).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter_map(|line| line["loss"]["events"].as_u64()).sum::<u64>(), failed, "{text}");
    assert_eq!(archive.names("b.log").last().unwrap(), "b2");
    assert_eq!(archive.names("a.log"), ["a0", "a1"]);
}

#[tokio::test]
async fn with_on_failure_fatal_a_path_that_cannot_be_a_file_stops_the_daemon() {
    let archive = Archive::start(QueueOptions { on_failure: OnFailure::Fatal, ..QueueOptions::default() });
    fs::create_dir(archive.path("b.log")).unwrap();
    assert_eq!(archive.outcome("a", "a0").await, DeliveryOutcome::Written);
    assert_eq!(archive.outcome("b", "b0").await, DeliveryOutcome::Failed);
    within("the daemon is to stop", archive.stop.cancelled()).await;
    let totals = archive.counters.totals();
    assert!(totals.is_dead);
    assert_eq!((totals.events, totals.written, totals.failed), (2, 1, 1));
}

#[tokio::test]
async fn events_that_are_held_when_the_grace_period_ends_count_as_failed() {
    let mut archive = Archive::start(QueueOptions::default());
    let _locked = lock(&archive.path("b.log"));
    let held = archive.deliver("b", "b0");
    until("the sink reports that it holds events", || archive.counters.totals().is_retrying.then_some(())).await;
    let waits = archive.deliver("b", "b1");
    assert_eq!(archive.outcome("a", "a0").await, DeliveryOutcome::Written);
    within("the worker ends", archive.workers.abort()).await;
    for delivery in [held, waits] {
        assert_eq!(within("the outcome is known", delivery).await.unwrap(), DeliveryOutcome::Failed);
    }
}
