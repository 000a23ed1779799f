//! The open connections of the endpoint, in a fixed number.
//!
//! A new connection is always accepted. If there are too many then, one is closed: first the one that has had no request for
//! longest, then the one that has waited longest for its request. So connections that send nothing, send slowly, or are kept
//! open do not keep others out.

use std::time::Duration;

use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::Instant;

use super::stage::{ConnectionStage, SharedStage};

/// A connection without a complete request is not closed for another one before it has had this much time.
const MIN_HEAD_TIME: Duration = Duration::from_millis(25);
/// The same for a connection that has not received its whole response.
const MIN_RESPONSE_TIME: Duration = Duration::from_secs(1);

/// A connection that is being served.
struct ServedConnection {
    task: Id,
    abort: AbortHandle,
    progress: SharedStage,
}

impl ServedConnection {
    /// When it may be closed for another connection, after those of a lower rank. None: never.
    fn closable_from(&self) -> Option<(u8, Instant)> {
        match self.progress.stage() {
            ConnectionStage::Idle(since) => Some((0, since)),
            ConnectionStage::Head(since) => Some((1, since + MIN_HEAD_TIME)),
            ConnectionStage::Response(since) => Some((2, since + MIN_RESPONSE_TIME)),
            ConnectionStage::Tap(_) => None,
        }
    }
}

/// The open connections, each served by a task of its own. Dropped: all are closed.
pub(super) struct Connections {
    tasks: JoinSet<()>,
    open: Vec<ServedConnection>,
    max: usize,
}

impl Connections {
    /// For at most `max` open connections.
    pub(super) fn new(max: usize) -> Connections {
        Connections { tasks: JoinSet::new(), open: Vec::new(), max }
    }

    /// When the next connection may be accepted: None is now. The end of a connection can make it sooner.
    pub(super) fn accepts_from(&self) -> Option<Instant> {
        if self.open.len() < self.max {
            return None;
        }
        let now = Instant::now();
        let from = self.open.iter().filter_map(ServedConnection::closable_from).map(|(_, from)| from).min();
        from.map_or_else(|| Some(now + MIN_RESPONSE_TIME), |from| Some(from).filter(|from| *from > now))
    }

    /// Serves a connection by the future that `serve` returns. Returns the stage of the connection that was closed for it.
    pub(super) fn add<F>(&mut self, serve: impl FnOnce(SharedStage) -> F) -> Option<ConnectionStage>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let closed = if self.open.len() >= self.max { self.close_one() } else { None };
        let progress = SharedStage::new();
        let abort = self.tasks.spawn(serve(progress.clone()));
        self.open.push(ServedConnection { task: abort.id(), abort, progress });
        closed
    }

    /// Closes the connection of the lowest rank that has been there for longest.
    fn close_one(&mut self) -> Option<ConnectionStage> {
        let now = Instant::now();
        let closable = self.open.iter().enumerate().filter_map(|(index, open)| Some((open.closable_from()?, index)));
        let ((..), index) = closable.filter(|((_, from), _)| *from <= now).min()?;
        let closed = self.open.swap_remove(index);
        closed.abort.abort();
        Some(closed.progress.stage())
    }

    /// Waits until a connection has ended. Never returns if none is open.
    pub(super) async fn ended(&mut self) {
        match self.tasks.join_next_with_id().await {
            Some(ended) => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                self.open.retain(|open| open.task != id);
            }
            None => std::future::pending().await,
        }
    }

    /// Waits until all connections have ended.
    pub(super) async fn all_ended(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}
