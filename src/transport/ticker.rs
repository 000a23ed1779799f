//! Calls an exchange every second, and once when its listener has stopped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tracing::{error, warn};

use tributary_driver::{Account, call, loss_batch};
use tributary_event::{Batch, BatchBuilder, Loss, Origin, Reason};
use tributary_memory::log_throttle::LogThrottle;
use tributary_protocol::{Exchange, Flow, Now, Output};

use super::context::{LAST_WRITES, ListenerContext};
use super::http_state::HttpState;
use super::standstill;

/// How often [`Exchange::tick`] is called.
const TICK: Duration = Duration::from_secs(1);

/// Throttles the log line about calls that panic.
static PANICKED: LogThrottle = LogThrottle::new();

/// Hands over the events of an exchange that belong to no request.
pub(super) struct Ticker<E> {
    http: Arc<HttpState<E>>,
    out: Output,
    account: Account,
    origin: Arc<Origin>,
    context: ListenerContext,
}

impl<E: Exchange> Ticker<E> {
    pub(super) fn new(http: Arc<HttpState<E>>, context: &ListenerContext) -> Self {
        let origin = Arc::new(context.origin("", 0));
        let out = Output::new(BatchBuilder::new(origin.clone()));
        Ticker { http, out, account: Account::default(), origin, context: context.clone() }
    }

    /// Calls `tick` until the daemon stops, and `finish` when the last connection has ended.
    pub(super) async fn run(mut self, connections: TaskTracker) {
        let stop = self.context.stop.clone();
        let watching = self.watch();
        let ticking = async {
            loop {
                sleep(TICK).await;
                self.http.decode_buffers.clear();
                self.drive(E::tick).await;
            }
        };
        let _ = stop.run_until_cancelled(async { tokio::join!(watching, ticking) }).await;
        connections.close();
        connections.wait().await;
        self.finish().await;
    }

    /// Notes when the process stands still. A tick is no measure of that: it may wait for a full queue.
    fn watch(&self) -> impl Future<Output = ()> + use<E> {
        let (http, clock, listener) = (self.http.clone(), self.context.clock, self.origin.listener.clone());
        async move {
            loop {
                if let Some(time) = http.standstill.note(clock.now().elapsed) {
                    let seconds = time.as_secs_f64();
                    warn!(
                        listener = &*listener,
                        seconds, "the process stood still: agents may have given up, and connect again"
                    );
                }
                sleep(standstill::INTERVAL).await;
            }
        }
    }

    /// Makes one call, again while it has more to write, and hands the events over.
    async fn drive(&mut self, method: impl Fn(&E, Now, &mut Output) -> Flow) {
        loop {
            let (flow, batch) = self.call(&method);
            if let Some(batch) = batch {
                self.context.sender.send(batch).await;
            }
            if flow != Flow::Again {
                return;
            }
        }
    }

    /// Writes what the exchange still has. When the grace period is over, no batch waits for a full queue (it counts as
    /// failed), and what cannot be written within [`LAST_WRITES`] is reported as a loss.
    async fn finish(&mut self) {
        let abort = self.context.abort.clone();
        let mut until = None;
        loop {
            let (flow, batch) = self.call(&E::finish);
            if let Some(batch) = batch {
                tokio::select! {
                    // It is polled before it is given up.
                    biased;
                    () = self.context.sender.send(batch) => {}
                    () = abort.cancelled() => {}
                }
            }
            if flow != Flow::Again {
                return;
            }
            if !abort.is_cancelled() {
                continue;
            }
            let now = self.context.clock.now();
            if now.elapsed >= *until.get_or_insert(now.elapsed + LAST_WRITES) {
                error!(
                    listener = &*self.origin.listener,
                    "the grace period is over: events that are not written are lost"
                );
                let detail = "no time was left: events of requests that were decoded are missing";
                let loss = Loss { reason: Reason::Failed, bytes: 0, events: None, detail, excerpt: &[] };
                let batch = loss_batch(&self.context.counters, &self.origin, now.unix, 0, loss);
                tokio::select! {
                    biased;
                    () = self.context.sender.send(batch) => {}
                    () = abort.cancelled() => {}
                }
                return;
            }
        }
    }

    /// Makes one call; returns whether to call again, and the events to hand over.
    fn call(&mut self, method: &impl Fn(&E, Now, &mut Output) -> Flow) -> (Flow, Option<Batch>) {
        let now = self.context.clock.now();
        let (out, account) = (&mut self.out, &mut self.account);
        let exchange = &self.http.exchange;
        let step = catch_unwind(AssertUnwindSafe(|| {
            call(out, account, &self.context.counters, now, |out| method(exchange, now, out))
        }));
        match step {
            Ok(step) => (step.flow, step.batch),
            // The next tick is called all the same: one bad record must not keep all others waiting for ever.
            Err(_) => (Flow::Continue, Some(self.report_panic(now))),
        }
    }

    /// Drops what the call has left, which may be half made, and reports that events are missing.
    fn report_panic(&mut self, now: Now) -> Batch {
        self.out = Output::new(BatchBuilder::new(self.origin.clone()));
        if let Some(suppressed) = PANICKED.permit() {
            let listener = &*self.origin.listener;
            error!(listener, suppressed, "a bug of ours: the events of one tick are lost; the next tick is called");
        }
        let detail = "a bug of ours: events that were due are lost";
        let loss = Loss { reason: Reason::Failed, bytes: 0, events: None, detail, excerpt: &[] };
        loss_batch(&self.context.counters, &self.origin, now.unix, 0, loss)
    }
}
