//! A simulated Ruby process with rbkit inside: it binds a PUB and a REP socket, as the gem does, and says nothing until
//! a collector has subscribed and asked for a profile.
//!
//! Section and rule numbers in comments are those of the protocol notes that `docs/protocols/rbkit.md` quotes.

mod heap;
mod program;
mod publisher;
mod replies;
mod shared;
mod wire;
mod zmtp;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::pace::{Pace, SLICE};
use super::rng::mix;
use super::tcp::{LAST_CLOSE, out_of_patience, unix_nanos};
use super::{Amount, Sent};
use crate::protocol::Protocol;
use heap::Dump;
use program::{Program, Queue};
use publisher::{Publisher, Subscriber};
use shared::Shared;

/// So many events in the queue are sent at once.
const FULL_QUEUE: usize = 400;
/// However few they are, they are sent after this time.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// So many different requests are kept for the summary.
const MOST_REQUEST_NAMES: usize = 64;

/// About as many processes as Linux numbers.
const MOST_PID: u64 = 4_000_000;

/// What the process speaks. The names are those of the protocol notes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dialect {
    /// The released gem.
    V0110,
    /// Its master branch, built with a msgpack-c of today.
    #[default]
    Master21,
    /// Its master branch, built with the msgpack-c of its time: texts of 32 bytes and more are `raw16`.
    Master21Raw,
    /// The branch that the protocol's document describes. Objects are not told of, allocations are.
    Spec21,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Dialect; 4] = [Dialect::V0110, Dialect::Master21, Dialect::Master21Raw, Dialect::Spec21];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Dialect::V0110 => "v0.1.10",
            Dialect::Master21 => "master-2.1",
            Dialect::Master21Raw => "master-2.1-raw",
            Dialect::Spec21 => "spec-2.1",
        }
    }

    fn is_raw(self) -> bool {
        self != Dialect::Master21
    }

    /// The libzmq that the gem brought along speaks ZMTP 3.0, one of today 3.1.
    fn zmtp_minor(self) -> u8 {
        u8::from(self == Dialect::Master21)
    }
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = Dialect::ALL.map(Dialect::as_str).join(", ");
        Dialect::ALL.into_iter().find(|dialect| dialect.as_str() == name).ok_or(format!("it is one of {names}"))
    }
}

/// A process, and where it is to be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Where it publishes; port 0: any.
    pub publish: SocketAddr,
    /// Where it takes requests; port 0: any.
    pub request: SocketAddr,
    /// What it speaks.
    pub dialect: Dialect,
    /// Objects of each heap dump, at most 2^32-1.
    pub heap_objects: u32,
}

impl Default for Options {
    /// The gem's own addresses, and a small heap.
    fn default() -> Self {
        Options {
            publish: ([127, 0, 0, 1], 5555).into(),
            request: ([127, 0, 0, 1], 5556).into(),
            dialect: Dialect::default(),
            heap_objects: 2_000,
        }
    }
}

/// How much the process tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// When it ends. A count is one of events of the program, handshakes apart: exactly so many, unless the collector
    /// asks for heap dumps and garbage collections, which count and are told whole.
    pub amount: Amount,
    /// Events per second, on average since it was first asked for a profile; `None`: as fast as they are taken.
    pub rate: Option<u64>,
    /// Decides about everything that is sent, but for times and what follows from them.
    pub seed: u64,
}

/// What collectors did, as far as a process would notice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Remarks {
    /// How often each request came.
    pub requests: BTreeMap<String, u64>,
    /// Requests without a body. One of them and the gem answers nobody any more, except for the release.
    pub empty_requests: u64,
    /// Requests that came before the one before them was answered.
    pub second_requests: u64,
    /// Messages without a delimiter in front, which are no requests.
    pub undelimited: u64,
    /// Requests that mean nothing.
    pub unknown_requests: u64,
    /// Commands to stop what was not on.
    pub needless_stops: u64,
    /// Connections on which something came before our READY: libzmq closes them.
    pub pipelined: u64,
}

impl Remarks {
    /// How much there is that no collector should do.
    pub fn faults(&self) -> u64 {
        let Remarks { requests: _, empty_requests, second_requests, undelimited, .. } = self;
        let Remarks { unknown_requests, needless_stops, pipelined, .. } = self;
        empty_requests + second_requests + undelimited + unknown_requests + needless_stops + pipelined
    }

    fn is_stuck(&self, dialect: Dialect) -> bool {
        self.empty_requests > 0 && dialect != Dialect::V0110
    }

    fn request(&mut self, name: String) {
        if self.requests.len() < MOST_REQUEST_NAMES || self.requests.contains_key(&name) {
            *self.requests.entry(name).or_default() += 1;
        }
    }
}

/// What was sent, and what the process noticed meanwhile.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Messages are those of both sockets. Events: those of the program, and one per handshake whose answer was new on
    /// its connection.
    pub sent: Sent,
    /// What collectors did.
    pub remarks: Remarks,
}

impl Report {
    /// One line of JSON, without a line end: that of [`Sent`], and in it the remarks.
    pub fn to_json(&self) -> String {
        let Remarks { requests, empty_requests, second_requests, undelimited, .. } = &self.remarks;
        let Remarks { unknown_requests, needless_stops, pipelined, .. } = &self.remarks;
        let mut line = self.sent.to_json();
        line.pop();
        line.push_str(",\"requests\":{");
        for (number, (name, count)) in requests.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(line, "{comma}{}:{count}", serde_json::Value::from(name.as_str()));
        }
        let _ = write!(
            line,
            "}},\"faults\":{{\"empty_requests\":{empty_requests},\"second_requests\":{second_requests},\
             \"undelimited\":{undelimited},\"unknown_requests\":{unknown_requests},\
             \"needless_stops\":{needless_stops},\"pipelined\":{pipelined}}}}}"
        );
        line
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} faults of collectors", self.sent, self.remarks.faults())
    }
}

/// A process whose sockets are bound.
#[derive(Debug)]
pub struct Process {
    publish: TcpListener,
    request: TcpListener,
    options: Options,
}

impl Process {
    /// Binds both sockets.
    ///
    /// # Errors
    /// An address cannot be bound; the error names it.
    pub async fn bind(options: Options) -> io::Result<Process> {
        let bind = async |address: SocketAddr| {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
            TcpListener::bind(address).await.map_err(named)
        };
        let (publish, request) = (bind(options.publish).await?, bind(options.request).await?);
        let options = Options { publish: publish.local_addr()?, request: request.local_addr()?, ..options };
        Ok(Process { publish, request, options })
    }

    /// Its options, with the addresses that it was bound to.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Lives until `plan` is done or `stop` is ready; either way every message begun is finished and every connection
    /// closed. Nothing is told before somebody has subscribed and asked for it, and while nobody listens.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a rate of 0. Otherwise a subscriber did not read for five seconds after
    /// everything was to stop.
    pub async fn run(self, plan: Plan, stop: impl Future<Output = ()>) -> io::Result<Report> {
        if plan.rate == Some(0) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a simulation takes a rate above 0"));
        }
        let began = Instant::now();
        let Process { publish, request, options } = self;
        let shared = Arc::new(Shared::new(options.dialect));
        let halt = CancellationToken::new();
        let (send, new) = mpsc::unbounded_channel();
        // One that is started anew with another seed is another process.
        let pid = 1_000 + mix(plan.seed ^ mix(u64::from(std::process::id()))) % MOST_PID;
        let mut sockets = JoinSet::new();
        sockets.spawn(subscriptions(publish, shared.clone(), send, halt.clone()));
        sockets.spawn(requests(request, pid, shared.clone(), halt.clone()));

        let life = Life { plan, options, shared: shared.clone(), new, halt: halt.clone() };
        let mut life = pin!(life.live());
        let mut over = pin!(async {
            match plan.amount {
                Amount::Events(_) => stop.await,
                Amount::For(time) => drop(tokio::time::timeout(time, stop).await),
            }
        });
        let publisher = loop {
            tokio::select! {
                publisher = &mut life => break publisher,
                () = &mut over, if !halt.is_cancelled() => halt.cancel(),
                error = out_of_patience(&halt, Duration::ZERO) => break Err(error),
            }
        };
        halt.cancel();
        let told = publisher.as_ref().map(|_| Instant::now()).unwrap_or(began);
        publisher?.close().await;
        while sockets.join_next().await.is_some() {}
        let (counts, bytes) = shared.total();
        let sent = Sent {
            protocol: Protocol::Rbkit.as_str(),
            messages: counts.messages,
            events: counts.events,
            bytes,
            seconds: (told - began).as_secs_f64(),
        };
        Ok(Report { sent, remarks: shared.remarks() })
    }
}

/// What a process does from its start to its end.
struct Life {
    plan: Plan,
    options: Options,
    shared: Arc<Shared>,
    new: mpsc::UnboundedReceiver<Subscriber>,
    halt: CancellationToken,
}

impl Life {
    /// Answers the publisher, whose connections are still open.
    async fn live(mut self) -> io::Result<Publisher> {
        let Options { dialect, heap_objects, .. } = self.options;
        let Plan { amount, rate, seed } = self.plan;
        let most = match amount {
            Amount::Events(events) => events,
            Amount::For(_) => u64::MAX,
        };
        let pace = Pace::new(rate, 1);
        let mut publisher = Publisher::new(self.shared.clone());
        let mut program = Program::new(dialect, seed);
        let mut queue = Queue::default();
        let (mut told, mut dumps, mut waiting_dumps) = (0, 0, 0);
        let mut started = None;
        let mut flushed = Instant::now();
        let mut slices = interval(SLICE);
        slices.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while told < most && !self.halt.is_cancelled() {
            while let Ok(subscriber) = self.new.try_recv() {
                publisher.add(subscriber);
            }
            let millis = unix_nanos() / 1_000_000;
            let wishes = self.shared.take_errands();
            waiting_dumps += wishes.dumps;
            let is_heard = publisher.is_heard();
            let mut due = 0;
            if is_heard && (wishes.memory || wishes.cpu) {
                due = pace.due(started.get_or_insert_with(Instant::now).elapsed()).min(most);
                let before = queue.events;
                for _ in 0..wishes.collections * u32::from(wishes.memory) {
                    program.collect(millis, &mut queue)?;
                }
                while told + queue.events - before < due && queue.elements < FULL_QUEUE {
                    program.step(wishes, due - told - (queue.events - before), millis, &mut queue)?;
                }
                told += queue.events - before;
            }
            let dump = (is_heard && waiting_dumps > 0).then(|| {
                (dumps, waiting_dumps) = (dumps + 1, waiting_dumps - 1);
                Dump { dialect, seed, number: dumps, objects: heap_objects.into(), millis }
            });
            told += dump.map_or(0, Dump::events);
            let is_late = queue.elements > 0 && flushed.elapsed() >= FLUSH_INTERVAL;
            if is_heard && (queue.elements >= FULL_QUEUE || is_late || dump.is_some()) {
                publisher.publish(&mut queue, dump).await?;
                flushed = Instant::now();
            }
            if told >= due {
                tokio::select! {
                    _ = slices.tick() => {}
                    () = self.shared.asked.notified() => {}
                    Some(subscriber) = self.new.recv() => publisher.add(subscriber),
                    () = self.halt.cancelled() => {}
                }
            }
        }
        if queue.elements > 0 && publisher.is_heard() {
            publisher.publish(&mut queue, None).await?;
        }
        Ok(publisher)
    }
}

/// Takes in subscribers until `halt`.
async fn subscriptions(
    listener: TcpListener,
    shared: Arc<Shared>,
    subscribers: mpsc::UnboundedSender<Subscriber>,
    halt: CancellationToken,
) {
    let mut greeted = JoinSet::new();
    loop {
        tokio::select! {
            // What cannot be accepted is gone.
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                greeted.spawn(publisher::admit(stream, shared.clone(), subscribers.clone()));
            },
            Some(_) = greeted.join_next() => {}
            () = halt.cancelled() => return,
        }
    }
}

/// Serves whoever asks until `halt`, and waits for the last of them.
async fn requests(listener: TcpListener, pid: u64, shared: Arc<Shared>, halt: CancellationToken) {
    let mut served = JoinSet::new();
    for number in 0.. {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                served.spawn(replies::serve(stream, number, pid, shared.clone(), halt.clone()));
            },
            Some(_) = served.join_next() => {}
            () = halt.cancelled() => break,
        }
    }
    drop(listener);
    while served.join_next().await.is_some() {}
}
