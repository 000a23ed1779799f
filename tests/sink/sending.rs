//! A sink with its queue, on a thread of its own, as the daemon runs it.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tributary::event::Batch;
use tributary::pipeline::accounting::{SinkCounters, SinkTotals};
use tributary::pipeline::options::QueueOptions;
use tributary::pipeline::{DeliveryOutcome, Sender, Sinks, Workers};
use tributary::sink::Sink;

use crate::live::within;

pub(crate) struct Sending {
    pub(crate) sender: Sender,
    workers: Workers,
    pub(crate) counters: Arc<SinkCounters>,
}

impl Sending {
    /// Starts the sink that `make` makes, with the name `remote`.
    pub(crate) fn start<S: Sink>(make: impl Fn() -> S + Send + Sync + 'static) -> Sending {
        Sending::start_with(CancellationToken::new(), make)
    }

    /// The same in a daemon that stops when `stop` is cancelled.
    pub(crate) fn start_with<S: Sink>(
        stop: CancellationToken,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> Sending {
        let mut sinks = Sinks::new(stop);
        sinks.add("remote", QueueOptions::default(), move || Ok(make()));
        let counters = sinks.counters()[0].clone();
        let (sender, workers) = sinks.start();
        Sending { sender, workers, counters }
    }

    pub(crate) async fn deliver(&self, batch: Batch) -> DeliveryOutcome {
        within("the batch is delivered", self.sender.deliver(batch)).await
    }

    /// Stops like a daemon.
    pub(crate) async fn finish(mut self) -> SinkTotals {
        drop(self.sender);
        within("the sink ends", self.workers.drained()).await;
        let totals = self.counters.totals();
        assert_eq!(totals.in_flight(), 0, "{totals:?}");
        totals
    }

    /// Stops like a daemon whose grace period is over.
    pub(crate) async fn abort(mut self) -> SinkTotals {
        within("the sink ends", self.workers.abort()).await;
        drop(self.sender);
        self.counters.totals()
    }
}
