//! Honest agents of all protocols: some for the whole time at a modest rate, and one new agent after the other.
//!
//! They run on a thread of their own, so that attackers in the same process do not delay them.

use std::collections::BTreeMap;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::site::{Addresses, BALANCED};
use crate::live::{wire, within};
use crate::rbkit_law_support::pack;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tributary::simulate::{AgentKind, Amount, Plan, bytefrog, datadog, endless, rbkit, run, zico};

/// Between two conversations of the same kind.
const PAUSE: Duration = Duration::from_millis(20);
/// Events per second of an agent that runs for the whole time.
const RATE: u64 = 100;
/// Events of a conversation.
const EVENTS: u64 = 40;
/// The address that the balancer reports for its honest client.
pub(super) const BALANCED_PEER: &str = "[2001:db8:0:1::1]:9";

/// The times of conversations, by their kind.
pub(super) type Times = BTreeMap<&'static str, Vec<Duration>>;

/// Running honest agents.
pub(super) struct Honest {
    stop: CancellationToken,
    times: Arc<Mutex<Times>>,
    thread: JoinHandle<BTreeMap<&'static str, u64>>,
}

impl Honest {
    pub(super) fn start(addresses: &Addresses, process: rbkit::SimulatedProcess) -> Honest {
        let (stop, times) = (CancellationToken::new(), Arc::<Mutex<Times>>::default());
        let agents = Agents { addresses: addresses.clone(), stop: stop.clone(), times: times.clone() };
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(agents.run(process))
        });
        Honest { stop, times, thread }
    }

    /// Waits until there have been `count` conversations of each kind since the last call of [`Honest::take_times`].
    pub(super) async fn until_conversations(&self, count: usize) {
        crate::live::until("conversations of all kinds", || {
            assert!(!self.thread.is_finished(), "an honest agent has failed");
            let times = self.times.lock().unwrap();
            (times.len() >= 6 && times.values().all(|times| times.len() >= count)).then_some(())
        })
        .await;
    }

    pub(super) fn take_times(&self) -> Times {
        std::mem::take(&mut self.times.lock().unwrap())
    }

    /// Ends all agents. Returns the number of events that they have sent, by listener.
    pub(super) fn stop(self) -> BTreeMap<&'static str, u64> {
        self.stop.cancel();
        self.thread.join().expect("every honest agent is served")
    }
}

struct Agents {
    addresses: Addresses,
    stop: CancellationToken,
    times: Arc<Mutex<Times>>,
}

impl Agents {
    async fn run(self, process: rbkit::SimulatedProcess) -> BTreeMap<&'static str, u64> {
        let to = |name: &str| self.addresses[name];
        let [spans, java, desktops, zorka] = ["spans", "java", "desktops", "zorka"].map(to);
        let tracer = AgentKind::Datadog(datadog::DatadogDialect::Exact);
        let program = AgentKind::Bytefrog(bytefrog::Options { threads: 2, ..Default::default() });
        let machine = AgentKind::Endless(endless::AgentVersion::V3);
        let zorkas = [zico::ZicoDialect::Gen1, zico::ZicoDialect::Gen2].map(AgentKind::Zico);
        let ruby =
            process.run(rbkit::Plan { amount: Amount::Events(u64::MAX), rate: Some(RATE), seed: 1 }, self.stopped());
        let (ruby, events, ..) = tokio::join!(
            ruby,
            async {
                tokio::join!(
                    self.steady(tracer, spans),
                    self.repeat("spans", |seed| converse(tracer, spans, seed)),
                    self.steady(program, java),
                    self.repeat("java", |seed| converse(program, java, seed)),
                    self.steady(machine, desktops),
                    self.repeat("desktops", |seed| converse(machine, desktops, seed)),
                    self.steady(zorkas[1], zorka),
                    // Half of them register first.
                    self.repeat("zorka", |seed| converse(zorkas[seed as usize % 2], zorka, seed)),
                )
            },
            self.repeat("ruby", |_| greet(to("ruby"))),
            self.repeat("admin", |_| probe(to("admin"))),
            async {
                match self.addresses.get(BALANCED) {
                    Some(to) => self.repeat("balanced", |_| trace_behind_balancer(*to)).await,
                    None => 0,
                }
            },
        );
        let mut sent = BTreeMap::from([
            ("spans", events.0 + events.1),
            ("java", events.2 + events.3),
            ("desktops", events.4 + events.5),
            ("zorka", events.6 + events.7),
        ]);
        let report = ruby.expect("the Ruby process ends");
        assert_eq!(report.received.faults(), 0, "{report:?}");
        sent.insert("ruby", report.sent.events);
        sent
    }

    async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// An agent that runs until the end. Returns the number of its events.
    async fn steady(&self, agent: AgentKind, to: SocketAddr) -> u64 {
        let plan = Plan { to, amount: Amount::Events(u64::MAX), rate: Some(RATE), connections: 1, seed: u64::MAX };
        run(agent, plan, self.stopped()).await.expect("an agent for the whole time").events
    }

    /// One conversation after the other until the end. Returns the sum of their events.
    async fn repeat(&self, kind: &'static str, mut converse: impl AsyncFnMut(u64) -> u64) -> u64 {
        let (mut events, mut number) = (0, 0);
        while !self.stop.is_cancelled() {
            let begin = Instant::now();
            events += within(kind, converse(number)).await;
            self.times.lock().unwrap().entry(kind).or_default().push(begin.elapsed());
            number += 1;
            sleep(PAUSE).await;
        }
        events
    }
}

/// A new agent that sends its events and ends. Returns their number.
async fn converse(agent: AgentKind, to: SocketAddr, seed: u64) -> u64 {
    let plan = Plan { to, amount: Amount::Events(EVENTS), rate: None, connections: 1, seed };
    run(agent, plan, pending()).await.expect("a new agent").events
}

/// A Ruby process connects its PUB socket. No event follows.
async fn greet(to: SocketAddr) -> u64 {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(&pack::hello("PUB")).await.unwrap();
    stream.read_exact(&mut [0; 64]).await.unwrap();
    0
}

/// An orchestrator asks whether the daemon is alive.
async fn probe(to: SocketAddr) -> u64 {
    // A full endpoint closes the connection that has waited longest for its request: then it asks again.
    loop {
        let mut stream = TcpStream::connect(to).await.unwrap();
        let request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut answer = String::new();
        if stream.write_all(request).await.is_ok()
            && stream.read_to_string(&mut answer).await.is_ok_and(|length| length > 0)
        {
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            return 0;
        }
    }
}

/// A tracer behind a load balancer sends a process and a span. Returns the number of its events.
async fn trace_behind_balancer(to: SocketAddr) -> u64 {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let spans = [wire::process(), wire::named_span(1, "balanced")].concat();
    let header = b"PROXY TCP6 2001:db8:0:1::1 2001:db8::ffff 9 9\r\n";
    stream.write_all(&[&header[..], &spans].concat()).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "the daemon reads everything and then closes");
    2
}
