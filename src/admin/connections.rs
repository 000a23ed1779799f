//! The open connections of the endpoint, in a fixed number.
//!
//! A new connection is always accepted. If there are too many then, the one that has waited longest for its request is
//! closed: so connections that send nothing, or send slowly, do not keep others out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::Instant;

/// A connection without a complete request is not closed for another one before it has had this much time.
const MIN_HEAD_TIME: Duration = Duration::from_millis(25);
/// The same for a connection that has not received its whole response.
const MIN_RESPONSE_TIME: Duration = Duration::from_secs(1);

/// What a connection is doing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Stage {
    /// Its TLS handshake and the head of its request.
    Head,
    /// Its response, since this moment.
    Response(Instant),
    /// A live view, which ends when its reader or the daemon ends it.
    Tap,
}

/// The stage of a connection, shared with the task that serves it.
#[derive(Clone, Debug)]
pub(super) struct Progress(Arc<Mutex<Stage>>);

impl Progress {
    fn new() -> Progress {
        Progress(Arc::new(Mutex::new(Stage::Head)))
    }

    pub(super) fn stage(&self) -> Stage {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, stage: Stage) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }
}

/// A connection that is being served.
struct Open {
    task: Id,
    abort: AbortHandle,
    accepted: Instant,
    progress: Progress,
}

impl Open {
    /// When it may be closed for another connection. None: never.
    fn closable_from(&self) -> Option<Instant> {
        match self.progress.stage() {
            Stage::Head => Some(self.accepted + MIN_HEAD_TIME),
            Stage::Response(since) => Some(since + MIN_RESPONSE_TIME),
            Stage::Tap => None,
        }
    }
}

/// The open connections, each served by a task of its own. Dropped: all are closed.
pub(super) struct Connections {
    tasks: JoinSet<()>,
    /// In the order in which they were accepted.
    open: Vec<Open>,
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
        let from = self.open.iter().filter_map(Open::closable_from).min();
        from.map_or_else(|| Some(now + MIN_RESPONSE_TIME), |from| Some(from).filter(|from| *from > now))
    }

    /// Serves a connection by the future that `serve` returns. Returns the stage of the connection that was closed for it.
    pub(super) fn add<F>(&mut self, serve: impl FnOnce(Progress) -> F) -> Option<Stage>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let closed = if self.open.len() >= self.max { self.close_slowest() } else { None };
        let progress = Progress::new();
        let abort = self.tasks.spawn(serve(progress.clone()));
        self.open.push(Open { task: abort.id(), abort, accepted: Instant::now(), progress });
        closed
    }

    /// Closes the connection that has waited longest for its request; if there is none, the one with the oldest response.
    fn close_slowest(&mut self) -> Option<Stage> {
        let now = Instant::now();
        let closable = |open: &Open| open.closable_from().is_some_and(|from| from <= now);
        let is_head = |open: &Open| open.progress.stage() == Stage::Head;
        let head = self.open.iter().position(|open| is_head(open) && closable(open));
        let slowest = head.or_else(|| {
            let responses = self.open.iter().enumerate().filter(|(_, open)| closable(open));
            responses.min_by_key(|(_, open)| open.closable_from()).map(|(index, _)| index)
        });
        let slowest = self.open.remove(slowest?);
        slowest.abort.abort();
        Some(slowest.progress.stage())
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
