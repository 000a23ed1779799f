//! A simulated Ruby process with rbkit: it binds a PUB and a REP socket, as the gem does, and publishes nothing until a
//! collector has subscribed and switched a profile on.
//!
//! Section and rule numbers in comments are those of the protocol notes, which `docs/protocols/rbkit.md` summarises.

mod dialect;
mod heap;
mod program;
mod publisher;
mod replies;
mod report;
mod shared;
mod stacks;
mod wire;
mod zmtp;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pace::{Pace, slices};
use super::tcp::{out_of_patience, unix_nanos};
use super::{Amount, Sent};
use heap::SimulatedDump;
use program::{Program, Queue};
use publisher::{Publisher, Subscriber};
use shared::SharedProcess;
use tributary_codec::mix::mix;
use tributary_protocol::Protocol;

pub use dialect::RbkitDialect;
pub use report::{Received, Report};

/// The queue is sent when it has this many events …
const FULL_QUEUE: usize = 400;
/// … and otherwise at this interval.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// The first event comes when no profile was switched for this time, and the lock is free: a collector switches one
/// profile on after the other, and what is sent would depend on the time between them.
const SETTLING: Duration = Duration::from_millis(200);

/// About as many processes as Linux numbers.
const MAX_PID: u64 = 4_000_000;

/// The options of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The address of its PUB socket; port 0: any.
    pub publish: SocketAddr,
    /// The address of its REP socket; port 0: any.
    pub request: SocketAddr,
    /// Its dialect.
    pub dialect: RbkitDialect,
    /// Objects of the first heap dump, at most 2^32-1. Each further one has 2 % more: the program leaks.
    pub heap_objects: u32,
    /// The process id that it reports. None: one that follows from the seed. In a container a restarted process has the id of
    /// the one before it: 1.
    pub pid: Option<u64>,
    /// A profile is on from the start, because the program itself has switched it on.
    pub is_profiling: bool,
    /// How long the thread that answers requests waits for Ruby's lock before each of them: about 100 ms for each other
    /// thread that computes. It answers all connections, one request after another, also those that have ended meanwhile.
    pub lock_wait: Duration,
}

impl Default for Options {
    /// The default addresses of the gem, and a small heap.
    fn default() -> Self {
        Options {
            publish: ([127, 0, 0, 1], 5555).into(),
            request: ([127, 0, 0, 1], 5556).into(),
            dialect: RbkitDialect::default(),
            heap_objects: 2_000,
            pid: None,
            is_profiling: false,
            lock_wait: Duration::ZERO,
        }
    }
}

/// How much the process sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// When it ends. A count is the number of events of the program, without handshakes. It is exact, unless the collector
    /// requests heap dumps and garbage collections: these count too, and are sent completely.
    pub amount: Amount,
    /// Events per second, on average since the first profile was switched on; `None`: as fast as they are received.
    pub rate: Option<u64>,
    /// Determines everything that is sent, except for times, what collectors request, and at a rate also how events are divided
    /// into messages.
    pub seed: u64,
}

/// A process whose sockets are bound.
#[derive(Debug)]
pub struct SimulatedProcess {
    publish: TcpListener,
    request: TcpListener,
    options: Options,
}

impl SimulatedProcess {
    /// Binds both sockets.
    ///
    /// # Errors
    /// An address cannot be bound; the error names it.
    pub async fn bind(options: Options) -> io::Result<SimulatedProcess> {
        let bind = async |address: SocketAddr| {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
            TcpListener::bind(address).await.map_err(named)
        };
        let (publish, request) = (bind(options.publish).await?, bind(options.request).await?);
        let options = Options { publish: publish.local_addr()?, request: request.local_addr()?, ..options };
        Ok(SimulatedProcess { publish, request, options })
    }

    /// Its options, with the addresses of the bound sockets.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Runs until `plan` is done or `stop` is ready; then every message that has been started is completed and every
    /// connection closed. Nothing is published while there is no subscriber or no profile is on.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a rate of 0. Otherwise a subscriber did not read for five seconds after the
    /// process was to end.
    pub async fn run(self, plan: Plan, stop: impl Future<Output = ()>) -> io::Result<Report> {
        self.run_until(plan, stop, std::future::ready(())).await
    }

    /// The same, but the process stays and answers requests until `end`, which is polled first when everything is published.
    ///
    /// # Errors
    /// As [`SimulatedProcess::run`].
    pub async fn run_until(
        self,
        plan: Plan,
        stop: impl Future<Output = ()>,
        end: impl Future<Output = ()>,
    ) -> io::Result<Report> {
        if plan.rate == Some(0) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a simulation takes a rate above 0"));
        }
        let start = Instant::now();
        let SimulatedProcess { publish, request, options } = self;
        let shared = Arc::new(SharedProcess::new(options.dialect));
        shared.request(|requested| requested.memory = options.is_profiling);
        let (halt, close) = (CancellationToken::new(), CancellationToken::new());
        let (send, new) = mpsc::unbounded_channel();
        let pid = options.pid.unwrap_or_else(|| 1_000 + mix(plan.seed) % MAX_PID);
        let mut sockets = JoinSet::new();
        sockets.spawn(subscriptions(publish, shared.clone(), send, close.clone()));
        let (received, received_requests) = mpsc::unbounded_channel();
        sockets.spawn(requests(request, received, shared.clone(), close.clone()));
        sockets.spawn(replies::answer(received_requests, pid, options.lock_wait, shared.clone(), close.clone()));

        let main = Main { plan, options, shared: shared.clone(), new, halt: halt.clone() };
        let mut main = pin!(main.run());
        let mut over = pin!(async {
            match plan.amount {
                Amount::Events(_) => stop.await,
                Amount::For(time) => drop(tokio::time::timeout(time, stop).await),
            }
        });
        let publisher = loop {
            tokio::select! {
                publisher = &mut main => break publisher,
                () = &mut over, if !halt.is_cancelled() => halt.cancel(),
                error = out_of_patience(&halt, Duration::ZERO) => break Err(error),
            }
        };
        let finished = publisher.as_ref().map(|_| Instant::now()).unwrap_or(start);
        if publisher.is_ok() {
            end.await;
        }
        close.cancel();
        publisher?.close().await;
        while sockets.join_next().await.is_some() {}
        let (counts, bytes) = shared.total();
        let sent = Sent {
            protocol: Protocol::Rbkit.as_str(),
            messages: counts.messages,
            events: counts.events,
            bytes,
            seconds: (finished - start).as_secs_f64(),
        };
        Ok(Report { sent, received: shared.received() })
    }
}

/// The program and the publisher of a process.
struct Main {
    plan: Plan,
    options: Options,
    shared: Arc<SharedProcess>,
    new: mpsc::UnboundedReceiver<Subscriber>,
    halt: CancellationToken,
}

impl Main {
    /// Returns the publisher, whose connections are still open.
    async fn run(mut self) -> io::Result<Publisher> {
        let Options { dialect, heap_objects, lock_wait, .. } = self.options;
        let Plan { amount, rate, seed } = self.plan;
        let max_events = match amount {
            Amount::Events(events) => events,
            Amount::For(_) => u64::MAX,
        };
        let pace = Pace::new(rate, 1);
        let mut publisher = Publisher::new(self.shared.clone());
        let mut program = Program::new(dialect, seed, rate);
        let mut queue = Queue::default();
        let (mut sent, mut dumps, mut waiting_dumps, mut waiting_collections) = (0, 0, 0, 0);
        let mut started = None;
        let mut flushed = Instant::now();
        let mut slices = slices();
        while sent < max_events && !self.halt.is_cancelled() {
            while let Ok(subscriber) = self.new.try_recv() {
                publisher.add(subscriber);
            }
            let millis = unix_nanos() / 1_000_000;
            let requested = self.shared.take_requested();
            waiting_dumps += requested.dumps;
            let has_subscribers = publisher.has_subscribers();
            let mut due = 0;
            let is_on = has_subscribers && (requested.memory || requested.cpu);
            waiting_collections = if is_on { waiting_collections + requested.collections } else { 0 };
            let is_settled = || requested.switched.is_none_or(|at| at.elapsed() >= SETTLING + lock_wait);
            if is_on && (started.is_some() || is_settled()) {
                due = pace.due(started.get_or_insert_with(Instant::now).elapsed()).min(max_events);
                let before = queue.events;
                for _ in 0..std::mem::take(&mut waiting_collections) * u32::from(requested.memory) {
                    program.collect(millis, &mut queue)?;
                }
                while sent + queue.events - before < due && queue.elements < FULL_QUEUE {
                    program.step(requested, due - sent - (queue.events - before), millis, &mut queue)?;
                }
                sent += queue.events - before;
            }
            let dump = (has_subscribers && waiting_dumps > 0).then(|| {
                (dumps, waiting_dumps) = (dumps + 1, waiting_dumps - 1);
                SimulatedDump::new(dialect, seed, dumps, heap_objects.into(), millis)
            });
            sent += dump.map_or(0, SimulatedDump::events);
            let is_late = queue.elements > 0 && flushed.elapsed() >= FLUSH_INTERVAL;
            if has_subscribers && (queue.elements >= FULL_QUEUE || is_late || dump.is_some()) {
                publisher.publish(&mut queue, dump).await?;
                flushed = Instant::now();
            }
            if sent >= due {
                tokio::select! {
                    _ = slices.tick() => {}
                    () = self.shared.changed.notified() => {}
                    Some(subscriber) = self.new.recv() => publisher.add(subscriber),
                    () = self.halt.cancelled() => {}
                }
            }
        }
        if queue.elements > 0 && publisher.has_subscribers() {
            publisher.publish(&mut queue, None).await?;
        }
        Ok(publisher)
    }
}

/// Accepts subscribers until `halt`.
async fn subscriptions(
    listener: TcpListener,
    shared: Arc<SharedProcess>,
    subscribers: mpsc::UnboundedSender<Subscriber>,
    halt: CancellationToken,
) {
    let mut greeted = JoinSet::new();
    loop {
        tokio::select! {
            // A failed accept is a connection that is already closed.
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                greeted.spawn(publisher::admit(stream, shared.clone(), subscribers.clone()));
            },
            Some(_) = greeted.join_next() => {}
            () = halt.cancelled() => return,
        }
    }
}

/// Receives the requests of all connections until `halt`, and waits for the last connection.
async fn requests(
    listener: TcpListener,
    received: mpsc::UnboundedSender<replies::ReceivedRequest>,
    shared: Arc<SharedProcess>,
    halt: CancellationToken,
) {
    let mut served = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                served.spawn(replies::receive(stream, shared.clone(), received.clone(), halt.clone()));
            },
            Some(_) = served.join_next() => {}
            () = halt.cancelled() => break,
        }
    }
    drop(listener);
    while served.join_next().await.is_some() {}
}
