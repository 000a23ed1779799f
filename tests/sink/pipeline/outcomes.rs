//! The outcome of batches that a sink syncs later, or drops.

use std::collections::BTreeSet;

use super::*;
use tokio::sync::Semaphore;

/// Writes immediately, and syncs when the test allows it.
struct Syncing {
    unsynced: BTreeSet<u64>,
    allowed: Arc<Semaphore>,
    /// The number of batches of each sync.
    syncs: Arc<Mutex<Vec<usize>>>,
}

impl Sink for Syncing {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        if events.level() == AckLevel::Durable {
            self.unsynced.insert(events.number());
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    async fn sync(&mut self) -> Result<(), SinkError> {
        self.syncs.lock().unwrap().push(self.unsynced.len());
        self.allowed.acquire().await.unwrap().forget();
        self.unsynced.clear();
        Ok(())
    }

    fn unwritten(&mut self) -> Unwritten {
        Unwritten { unsynced: self.unsynced.clone(), ..Unwritten::default() }
    }
}

#[tokio::test]
async fn batches_that_arrive_during_a_sync_share_the_next_one_and_others_wait_for_none() {
    let (allowed, syncs) = (Arc::new(Semaphore::new(0)), Arc::<Mutex<Vec<usize>>>::default());
    let mut sinks = Sinks::new(CancellationToken::new());
    let controls = (allowed.clone(), syncs.clone());
    sinks.add("syncing", QueueOptions::default(), move || {
        Ok(Syncing { unsynced: BTreeSet::new(), allowed: controls.0.clone(), syncs: controls.1.clone() })
    });
    let counters = sinks.counters()[0].clone();
    let (written, mut workers) = sinks.start();
    let durable = written.clone().with_level(RequestedLevel::new(AckLevel::Durable));
    let deliver = |sender: &Sender| {
        let sender = sender.clone();
        tokio::spawn(async move { sender.deliver(batch(1, &["event"])).await })
    };
    assert_eq!(within("no sync", deliver(&written)).await.unwrap(), DeliveryOutcome::Written);
    assert!(syncs.lock().unwrap().is_empty());
    let first = deliver(&durable);
    until("the first sync", || (syncs.lock().unwrap().len() == 1).then_some(())).await;
    let rest: Vec<_> = (0..64).map(|_| deliver(&durable)).collect();
    until("they are queued", || (counters.totals().queue_batches == 64).then_some(())).await;
    assert!(!first.is_finished());
    allowed.add_permits(1);
    assert_eq!(within("the first", first).await.unwrap(), DeliveryOutcome::Written);
    until("the second sync", || (syncs.lock().unwrap().len() == 2).then_some(())).await;
    allowed.add_permits(1);
    for one in rest {
        assert_eq!(within("the rest", one).await.unwrap(), DeliveryOutcome::Written);
    }
    assert_eq!(*syncs.lock().unwrap(), [1, 64]);
    drop((written, durable));
    within("the sink ends", workers.drained()).await;
    assert_eq!(figures(&counters.totals()), [66, 66, 0, 0]);
}

#[tokio::test]
async fn a_batch_that_is_not_synced_at_the_end_of_the_grace_period_is_written_and_not_delivered() {
    let mut sinks = Sinks::new(CancellationToken::new());
    sinks.add("syncing", QueueOptions::default(), || {
        Ok(Syncing { unsynced: BTreeSet::new(), allowed: Arc::new(Semaphore::new(0)), syncs: Arc::default() })
    });
    let counters = sinks.counters()[0].clone();
    let (sender, mut workers) = sinks.start();
    let durable = sender.clone().with_level(RequestedLevel::new(AckLevel::Durable));
    let delivered = tokio::spawn(async move { durable.deliver(batch(1, &["event"])).await });
    until("it is written", || (counters.totals().queue_batches == 0 && counters.totals().events == 1).then_some(()))
        .await;
    within("the sink ends", workers.abort()).await;
    assert_eq!(within("its outcome", delivered).await.unwrap(), DeliveryOutcome::Failed);
    drop(sender);
    let totals = counters.totals();
    assert_eq!(totals.in_flight(), 0, "{totals:?}");
}

/// Names its first batch in `unwritten` once, as `first` says, and nothing after that.
struct Dropping {
    batch: Option<u64>,
    first: Option<fn(u64) -> Unwritten>,
}

impl Sink for Dropping {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        self.batch = Some(events.number());
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    fn unwritten(&mut self) -> Unwritten {
        let first = self.batch.and_then(|batch| Some(self.first.take()?(batch)));
        first.unwrap_or_default()
    }
}

#[tokio::test]
async fn a_batch_of_which_events_are_dropped_fails_also_when_the_rest_is_written_or_synced_later() {
    let ways: [fn(u64) -> Unwritten; 3] = [
        |batch| Unwritten { failed: [(batch, 1)].into(), ..Unwritten::default() },
        |batch| Unwritten { failed: [(batch, 1)].into(), unsynced: [batch].into(), ..Unwritten::default() },
        |batch| Unwritten { failed: [(batch, 1)].into(), held: [(batch, 2)].into(), ..Unwritten::default() },
    ];
    for (way, first) in ways.into_iter().enumerate() {
        let mut sinks = Sinks::new(CancellationToken::new());
        sinks.add("dropping", QueueOptions::default(), move || Ok(Dropping { batch: None, first: Some(first) }));
        let counters = sinks.counters()[0].clone();
        let (sender, mut workers) = sinks.start();
        let durable = sender.clone().with_level(RequestedLevel::new(AckLevel::Durable));
        let outcome = within("the outcome", durable.deliver(batch(1, &["1", "2", "3"]))).await;
        assert_eq!(outcome, DeliveryOutcome::Failed, "way {way}");
        let outcome = within("the outcome", durable.deliver(batch(1, &["4"]))).await;
        assert_eq!(outcome, DeliveryOutcome::Written, "way {way}");
        drop((sender, durable));
        within("the sink ends", workers.drained()).await;
        assert_eq!(figures(&counters.totals()), [4, 3, 0, 1], "way {way}");
    }
}
