//! Outgoing connections: keeps one connection to an address open, and drives a session on each.
//!
//! It does what libzmq does behind a connecting socket: connect, and when the connection ends or cannot be opened, wait and
//! connect again. The protocol on it is the session's. For connections that are accepted see [`super::tcp`].

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{Instrument, debug, debug_span, info};

use tributary_memory::{Allowance, MemoryLease};
use tributary_protocol::Session;
use tributary_system::blocking;

use super::connection::Connection;
use super::context::{ConnectionContext, ListenerContext};
use super::read_buffer::CONNECTION_BYTES;
use super::stream::ConnectionStream;
use super::tcp::{connection_memory, next_connection, set_options};

/// How long connections are opened again to finish work at a peer.
const FINISH_LIMIT: Duration = Duration::from_secs(30);

/// What all outgoing connections of a listener share.
#[derive(Clone, Debug)]
pub struct Dialer {
    name: Arc<str>,
    /// The waits between attempts: the first one and the longest one.
    reconnect: (Duration, Duration),
    listener: ListenerContext,
    context: ConnectionContext,
}

impl Dialer {
    /// A dialer for the listener of this context. A connection that is still open when it is aborted is abandoned.
    pub fn new(reconnect: (Duration, Duration), context: ListenerContext) -> Self {
        Dialer {
            name: context.counters.name().into(),
            reconnect,
            listener: context.clone(),
            context: context.of_connections(None),
        }
    }

    /// Keeps a connection to `address` (`HOST:PORT`) open until the daemon stops. `make` makes the session of each.
    ///
    /// When the daemon stops, the session of the open connection finishes its work. If `finish` still has work after that, the
    /// address is connected again, until it has none, the connection is refused, the grace period ends, or 30 s have passed (a
    /// listener that a reload has removed has no grace period). This happens in a
    /// task of its own; `keep` returns when the daemon stops.
    pub async fn keep<S: Session>(self, address: String, make: impl Fn() -> S + Send + 'static, finish: impl Finish) {
        let (first_wait, longest_wait) = self.reconnect;
        let stop = self.context.stop.clone();
        let mut wait = first_wait;
        let mut is_connected = None;
        let serving = loop {
            let connected = tokio::select! {
                () = stop.cancelled() => break None,
                connected = self.connect(&address) => connected,
            };
            match connected {
                Ok((stream, lease)) => {
                    if is_connected.replace(true) != Some(true) {
                        info!(listener = &*self.name, peer = address, "connected");
                    }
                    let mut serving = self.serve(stream, lease, &address, make());
                    let is_ok = tokio::select! {
                        () = stop.cancelled() => break Some(serving),
                        ended = &mut serving => matches!(ended, Ok(Some(true))),
                    };
                    if is_ok {
                        wait = first_wait;
                    }
                    debug!(listener = &*self.name, peer = address, ?wait, "connection ended; connecting again");
                }
                Err(error) if is_connected.replace(false) != Some(false) => {
                    // It is usual that a process does not run yet, or not any more.
                    info!(listener = &*self.name, peer = address, %error, "cannot connect; retrying until it succeeds");
                }
                Err(error) => debug!(listener = &*self.name, peer = address, %error, "cannot connect"),
            }
            tokio::select! {
                () = stop.cancelled() => break None,
                () = sleep(jittered(wait)) => wait = (wait * 2).min(longest_wait),
            }
        };
        let tasks = self.context.tasks.clone();
        tasks.spawn(self.finish(address, make, finish, serving));
    }

    /// The work that is left when the daemon stops.
    async fn finish<S: Session>(
        self,
        address: String,
        make: impl Fn() -> S + Send,
        finish: impl Finish,
        mut serving: Option<Serving>,
    ) {
        let abort = self.context.abort.clone();
        let deadline = Instant::now() + FINISH_LIMIT;
        let is_late = || abort.is_cancelled() || Instant::now() >= deadline;
        let connect = || timeout_at(deadline, self.connect(&address));
        loop {
            if let Some(serving) = serving.take() {
                // It ends at the end of the grace period at the latest.
                let _ = serving.await;
            }
            if finish.is_done() || is_late() {
                break;
            }
            // Also while there is no memory for a connection.
            match abort.run_until_cancelled(connect()).await.and_then(Result::ok) {
                Some(Ok((stream, lease))) => serving = Some(self.serve(stream, lease, &address, make())),
                // The process has ended.
                Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => break,
                Some(Err(_)) => {
                    let _ = abort.run_until_cancelled(sleep(jittered(self.reconnect.0))).await;
                }
                None => break,
            }
        }
        let is_late = is_late();
        finish.end(is_late);
    }

    /// Opens a connection, with the memory for it.
    async fn connect(&self, address: &str) -> io::Result<(TcpStream, MemoryLease)> {
        let lease = connection_memory(&self.context.memory, CONNECTION_BYTES, &self.name).await;
        let limit = self.context.options.handshake_timeout;
        let connecting = async { TcpStream::connect(&blocking::resolve(address).await?[..]).await };
        let connected = timeout(limit, connecting).await;
        connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map(|stream| (stream, lease))
    }

    /// Serves a connection in a task of its own, which continues when the daemon stops.
    fn serve<S: Session>(&self, stream: TcpStream, lease: MemoryLease, address: &str, session: S) -> Serving {
        let context = ConnectionContext {
            admitted_with: Some(Arc::new(lease)),
            allowance: Allowance::default(),
            ..self.context.clone()
        };
        let number = next_connection();
        let origin = self.listener.origin(address, number);
        let span = debug_span!("connection", protocol = origin.protocol, peer = address, connection = number);
        let open = context.counters.connection();
        set_options(&stream, &context.options);
        let opened = context.clock.now().elapsed;
        let (tasks, abort) = (context.tasks.clone(), context.abort.clone());
        let mut stream = ConnectionStream::plain(stream);
        stream.record(context.recording(&origin, opened));
        let connection = Connection::new(stream, session, Arc::new(origin), context, opened);
        let serve = async move {
            let _counted = open;
            connection.serve().await
        };
        let serve = Box::pin(serve);
        tasks.spawn(async move { abort.run_until_cancelled_owned(serve).await }.instrument(span))
    }
}

/// A connection that is being served. The result is whether the peer was understood and has ended the connection; None: the
/// connection was abandoned at the end of the grace period.
type Serving = JoinHandle<Option<bool>>;

/// The work at a peer that must be finished when the daemon stops.
pub trait Finish: Send + 'static {
    /// Whether no work is left.
    fn is_done(&self) -> bool;

    /// No further connection is opened. `is_late`: there was no time left.
    fn end(self, is_late: bool);
}

/// No work is left when the daemon stops.
#[derive(Clone, Copy, Debug)]
pub struct NothingToFinish;

impl Finish for NothingToFinish {
    fn is_done(&self) -> bool {
        true
    }

    fn end(self, _is_late: bool) {}
}

/// The wait shortened by a random part of up to one half, so that connections that broke together are not opened together.
fn jittered(wait: Duration) -> Duration {
    // Each `RandomState` has its own random seed.
    let random = RandomState::new().build_hasher().finish();
    wait - wait.mul_f64((random % 1024) as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jittered_wait_is_between_half_and_all_of_it() {
        for _ in 0..1000 {
            let wait = jittered(Duration::from_secs(8));
            assert!(wait <= Duration::from_secs(8) && wait > Duration::from_secs(4), "{wait:?}");
        }
    }
}
