//! Exports the sums of services as metrics, through the rules and sinks of all events.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use tributary_event::UnixNanos;
use tributary_pipeline::Sender;
use tributary_sink_view::View;
use tributary_sink_view::services::export;
use tributary_system::wall_clock;

/// While exports are off, the option is looked at this often: a reload can change it.
const LOOK: Duration = Duration::from_secs(1);
/// The operations of a batch.
const BATCH: usize = 256;

/// Exports the sums of a view at each interval.
#[derive(Debug)]
pub(super) struct SumsExporter {
    view: Arc<View>,
    sender: Sender,
    since: UnixNanos,
}

impl SumsExporter {
    pub(super) fn new(view: Arc<View>, sender: Sender) -> SumsExporter {
        SumsExporter { view, sender, since: wall_clock::now() }
    }

    /// Exports at each interval, and when `stop` is cancelled a last time.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let interval = self.view.options().export;
            let is_stopping = stop.run_until_cancelled(sleep(interval.unwrap_or(LOOK))).await.is_none();
            match interval {
                Some(_) => self.export().await,
                None => self.since = wall_clock::now(),
            }
            if is_stopping {
                return;
            }
        }
    }

    /// Exports what was summed up since the last time. It waits for sinks that are full.
    async fn export(&mut self) {
        let now = wall_clock::now();
        let since = std::mem::replace(&mut self.since, now);
        let operations = self.view.services(|services| services.take_unexported());
        for operations in operations.chunks(BATCH) {
            if let Some(batch) = export::batch(operations, since, now) {
                self.sender.send(batch).await;
            }
        }
    }
}
