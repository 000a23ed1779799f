//! A connection whose consumer can be pulled, and the task that makes another one when it is lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::consumer::{Consumer, StreamId};
use super::options::NatsOptions;
use tributary_memory::log_throttle::LogThrottle;
use tributary_nats::{NatsConnection, NatsError};
use tributary_pipeline::accounting::ListenerCounters;

/// How often the consumer is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// A connection whose consumer can be pulled.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) connection: NatsConnection,
    pub(super) consumer: Consumer,
    /// Cancelled when the server says that something is wrong with the consumer: it is looked at again.
    pub(super) doubt: CancellationToken,
}

impl Session {
    /// # Errors
    /// Those of [`NatsConnection::open`] and [`Consumer::open`].
    async fn open(listener: &str, options: &NatsOptions, known: Option<&StreamId>) -> Result<Session, NatsError> {
        let connection = NatsConnection::open(&format!("listener {listener}"), &options.servers).await?;
        match Consumer::open(&connection.client, options, known).await {
            Ok(consumer) => Ok(Session { connection, consumer, doubt: CancellationToken::new() }),
            Err(fault) => Err(connection.explain(fault)),
        }
    }

    /// Whether messages can be pulled on it.
    pub(super) fn is_open(&self) -> bool {
        self.connection.is_open() && !self.doubt.is_cancelled()
    }
}

/// Keeps a session open, without end; while there is none, the counters have the reason.
pub(super) async fn keep_open(
    options: &NatsOptions,
    counters: &Arc<ListenerCounters>,
    sessions: &watch::Sender<Option<Arc<Session>>>,
) {
    let listener = counters.name();
    let throttle = LogThrottle::new();
    let mut known = None;
    let mut wait = options.retry_min;
    loop {
        match Session::open(listener, options, known.as_ref()).await {
            Ok(session) => {
                info!(listener, stream = options.stream, consumer = options.consumer, "connected");
                known = Some(session.consumer.stream.clone());
                wait = options.retry_min;
                let _open = counters.connection();
                let session = Arc::new(session);
                counters.stream().set_fault(None);
                sessions.send_replace(Some(session.clone()));
                let why = watch_over(&session, options, counters).await;
                sessions.send_replace(None);
                counters.stream().set_fault(Some(why.clone()));
                info!(listener, error = why, "lost the stream; connecting again");
                tokio::time::sleep(options.retry_min).await;
            }
            Err(fault) => {
                let why = fault.why().to_owned();
                counters.stream().set_fault(Some(why.clone()));
                if let Some(suppressed) = throttle.permit() {
                    warn!(listener, error = why, suppressed, "cannot receive from the stream; retrying");
                }
                sleep_until(Instant::now() + wait).await;
                wait = (wait * 2).min(options.retry_max);
            }
        }
    }
}

/// Looks at the consumer from time to time. Returns why the session cannot be used any longer.
async fn watch_over(session: &Session, options: &NatsOptions, counters: &ListenerCounters) -> String {
    let looking = async {
        loop {
            match Consumer::backlog(&session.connection.client, options).await {
                Ok(backlog) => counters.stream().set_backlog(backlog.num_pending, backlog.num_ack_pending),
                Err(fault) => return fault.why().to_owned(),
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        why = looking => why,
        () = session.connection.lost.cancelled() => session.connection.explained("the connection to the server was lost"),
        () = session.doubt.cancelled() => "the server does not deliver from the consumer".to_owned(),
    }
}
