//! Sinks that are replaced while the removed one is stuck.

use super::*;

/// Starts to replace sinks of the pipeline; the future is polled once.
async fn replacing<'a>(
    workers: &'a mut Workers,
    names: &[&str],
    add: impl FnOnce(&mut Sinks) + 'a,
) -> std::pin::Pin<Box<dyn Future<Output = ()> + 'a>> {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut replacing: std::pin::Pin<Box<dyn Future<Output = ()> + 'a>> =
        Box::pin(async move { workers.replace(&names, Duration::from_secs(3600), add).await });
    let first = std::future::poll_fn(|context| std::task::Poll::Ready(replacing.as_mut().poll(context))).await;
    assert!(first.is_pending(), "a removed sink still writes");
    replacing
}

#[tokio::test]
async fn while_a_removed_sink_that_is_stuck_drains_batches_are_handed_to_the_others() {
    let (stuck, well) = (Strings::new(Mood::Stall), Strings::new(Mood::Write));
    let mut sinks = Sinks::new(CancellationToken::new());
    for (name, strings) in [("stuck", &stuck), ("well", &well)] {
        let strings = strings.clone();
        sinks.add(name, QueueOptions::default(), move || Ok(strings.puppet()));
    }
    let counters = sinks.counters().to_vec();
    let (sender, mut workers) = sinks.start();
    sender.send(batch(1, &["before"])).await;
    until("the sink stalls", || (stuck.flushes() == 1).then_some(())).await;
    {
        let replacing = replacing(&mut workers, &["stuck"], |_| {}).await;
        let impatient = sender.clone().with_max_wait(Duration::from_secs(1));
        within("the batch is handed over", impatient.send(batch(1, &["meanwhile"]))).await;
        until("the other sink has it", || (well.written().len() == 2).then_some(())).await;
        stuck.set(Mood::Write);
        within("the removed sink has ended", replacing).await;
    }
    drop(sender);
    within("the sinks end", workers.drained()).await;
    assert_eq!((stuck.written_names(), well.written_names().len()), (vec!["before".to_owned()], 2));
    assert_eq!(counters.iter().map(|one| figures(&one.totals())).collect::<Vec<_>>(), [[1, 1, 0, 0], [2, 2, 0, 0]]);
}

#[tokio::test]
async fn a_changed_sink_gets_the_batches_that_are_handed_over_while_it_is_stuck_and_in_order() {
    let strings = Strings::new(Mood::Stall);
    let mut sinks = Sinks::new(CancellationToken::new());
    let of_sink = strings.clone();
    sinks.add("changed", QueueOptions::default(), move || Ok(of_sink.puppet()));
    let counters = sinks.counters()[0].clone();
    let (sender, mut workers) = sinks.start();
    sender.send(batch(1, &["1"])).await;
    until("the sink stalls", || (strings.flushes() == 1).then_some(())).await;
    sender.send(batch(1, &["2"])).await;
    {
        let (of_sink, options) = (strings.clone(), QueueOptions { buffer_batches: 3, ..QueueOptions::default() });
        let add = move |sinks: &mut Sinks| sinks.add("changed", options, move || Ok(of_sink.puppet()));
        let replacing = replacing(&mut workers, &["changed"], add).await;
        within("the batch is handed over", sender.send(batch(1, &["3"]))).await;
        assert_eq!(strings.flushes(), 1, "the new one starts after the old one");
        strings.set(Mood::Write);
        within("the old one has ended", replacing).await;
    }
    drop(sender);
    within("the sinks end", workers.drained()).await;
    assert_eq!(strings.written_names(), ["1", "2", "3"]);
    assert_eq!(figures(&counters.totals()), [3, 3, 0, 0]);
}
