//! Dialling: keeps one connection to an address alive, and drives a session on each.
//!
//! What ZeroMQ's own library does behind a connecting socket: connect, and when the connection ends or cannot be made,
//! wait and connect again. What is spoken on it is the session's to know; connections that are accepted instead go
//! through [`super::tcp`].

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, debug_span, info};

use crate::event::Origin;
use crate::memory::{Allowance, MemoryBudget, MemoryLease};
use crate::pipeline::Sender;
use crate::pipeline::accounting::ListenerCounters;
use crate::protocol::{Protocol, Session};

use super::capture::Capture;
use super::clock::Clock;
use super::connection::Connection;
use super::context::ConnectionContext;
use super::options::ListenerOptions;
use super::read_buffer::CONNECTION_BYTES;
use super::stream::Stream;
use super::tcp::{connection_memory, next_connection, set_options};

/// Who dials: what all connections of a listener share.
#[derive(Clone, Debug)]
pub struct Dialer {
    name: Arc<str>,
    protocol: Protocol,
    /// Waits between attempts: the first, and the longest.
    reconnect: (Duration, Duration),
    context: ConnectionContext,
}

impl Dialer {
    /// A dialer for the listener that `counters` are of. A connection that has not finished by itself when `abort` is
    /// cancelled is given up.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        name: &str,
        protocol: Protocol,
        reconnect: (Duration, Duration),
        options: ListenerOptions,
        counters: Arc<ListenerCounters>,
        (sender, clock): (Sender, Clock),
        tasks: TaskTracker,
        (stop, abort): (CancellationToken, CancellationToken),
    ) -> Self {
        let (options, memory) = (options.into(), MemoryBudget::unlimited());
        let context = ConnectionContext {
            options,
            sender,
            counters,
            clock,
            memory,
            allowance: Allowance::default(),
            admitted_with: None,
            capture: None,
            tasks,
            stop,
            abort,
        };
        Dialer { name: name.into(), protocol, reconnect, context }
    }

    /// The same with its connections recorded.
    #[must_use]
    pub fn recorded(mut self, capture: Option<Arc<Capture>>) -> Self {
        self.context.capture = capture;
        self
    }

    /// The same with connections that share `memory` with all others.
    #[must_use]
    pub fn within(mut self, memory: Arc<MemoryBudget>) -> Self {
        self.context.memory = memory;
        self
    }

    /// Keeps a connection to `address` (`HOST:PORT`) until the daemon stops. Each has a session that `make` makes.
    pub async fn keep<S: Session>(self, address: String, make: impl Fn() -> S) {
        let (first_wait, longest_wait) = self.reconnect;
        let stop = self.context.stop.clone();
        let mut wait = first_wait;
        let mut is_told = false;
        loop {
            let connected = async {
                let room = connection_memory(&self.context.memory, CONNECTION_BYTES, &self.name).await;
                self.connect(&address).await.map(|stream| (stream, room))
            };
            let connected = tokio::select! {
                () = stop.cancelled() => return,
                connected = connected => connected,
            };
            match connected {
                Ok((stream, room)) => {
                    debug!(listener = &*self.name, "connected to {address}");
                    is_told = false;
                    let serving = self.serve(stream, room, &address, make());
                    let is_well = tokio::select! {
                        () = stop.cancelled() => return,
                        is_well = serving => is_well,
                    };
                    if is_well {
                        wait = first_wait;
                    }
                    debug!(listener = &*self.name, "the connection to {address} has ended; dialling again in {wait:?}");
                }
                Err(error) if !is_told => {
                    is_told = true;
                    // A process that does not run yet, or any more, is nothing unusual.
                    info!(listener = &*self.name, "cannot connect to {address} ({error}); trying until it can be done");
                }
                Err(error) => debug!(listener = &*self.name, %error, "cannot connect to {address}"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(jittered(wait)) => wait = (wait * 2).min(longest_wait),
            }
        }
    }

    async fn connect(&self, address: &str) -> io::Result<TcpStream> {
        let limit = self.context.options.handshake_timeout;
        timeout(limit, TcpStream::connect(address)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Serves a connection in a task of its own, which outlives the dialling when the daemon stops. Answers whether it
    /// went well to its end.
    async fn serve<S: Session>(&self, stream: TcpStream, room: MemoryLease, address: &str, session: S) -> bool {
        let context = ConnectionContext {
            admitted_with: Some(Arc::new(room)),
            allowance: Allowance::default(),
            ..self.context.clone()
        };
        let number = next_connection();
        let span = debug_span!("connection", protocol = self.protocol.as_str(), peer = address, connection = number);
        let origin = Origin::new(self.protocol.as_str(), self.name.clone(), address.into(), number);
        let open = context.counters.connection();
        set_options(&stream, &context.options);
        let opened = context.clock.now().elapsed;
        let (tasks, abort) = (context.tasks.clone(), context.abort.clone());
        let mut stream = Stream::plain(stream);
        stream.record(context.recording(&origin, opened));
        let connection = Connection::new(stream, session, Arc::new(origin), context, opened);
        let serve = async move {
            let _place = open;
            connection.serve().await
        };
        let serve = Box::pin(serve);
        let task = tasks.spawn(async move { abort.run_until_cancelled_owned(serve).await }.instrument(span));
        matches!(task.await, Ok(Some(true)))
    }
}

/// A wait shortened by up to half, by chance: many that were cut off together do not come back together.
fn jittered(wait: Duration) -> Duration {
    // Seeded from the system's randomness, anew for every hasher's state.
    let chance = RandomState::new().build_hasher().finish();
    wait - wait.mul_f64((chance % 1024) as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_never_longer_nor_less_than_half() {
        for _ in 0..1000 {
            let wait = jittered(Duration::from_secs(8));
            assert!(wait <= Duration::from_secs(8) && wait > Duration::from_secs(4), "{wait:?}");
        }
    }
}
