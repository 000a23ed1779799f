//! What a worker waits for, and whether waiting is of use.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use tributary_sink::{DestinationState, Sink};

/// How often it is checked, when the daemon stops, whether a sink that cannot write is still needed.
const NEEDED_CHECK: Duration = Duration::from_millis(100);

/// Waits until the daemon stops, and then for the pause between two looks at whether the sink is needed.
pub(super) async fn stopped(stop: &CancellationToken) {
    stop.cancelled().await;
    sleep(NEEDED_CHECK).await;
}

/// Waits until the destination of a sink is back; for ever if the sink has none.
pub(super) async fn notified(back: Option<Arc<Notify>>) {
    match back {
        Some(back) => back.notified().await,
        None => pending().await,
    }
}

/// Waits until the sink is to be flushed although no batch arrives.
pub(super) async fn flush_due<S: Sink>(sink: &mut S) {
    match sink.flush_due() {
        Some(due) => {
            let _ = timeout_at(due, sink.woken()).await;
        }
        None => sink.woken().await,
    }
}

/// When the daemon stops: whether the destination of a sink without a spool has refused one more attempt since. Until an operator
/// corrects something it refuses them all, and events in memory end with this process.
pub(super) fn still_refuses(sink: &impl Sink, attempts_at_stop: &mut Option<u64>) -> bool {
    let Some(remote) = sink.remote() else { return false };
    let state = remote.state();
    match *attempts_at_stop {
        _ if state.is_spooled => false,
        None => {
            *attempts_at_stop = Some(state.retries);
            remote.try_again();
            false
        }
        Some(before) => state.destination == DestinationState::Refusing && state.retries > before,
    }
}

/// Whether the destination of a sink is away or refuses.
pub(super) fn is_outage(sink: &impl Sink) -> bool {
    sink.remote().is_some_and(|remote| remote.state().destination != DestinationState::Ready)
}
