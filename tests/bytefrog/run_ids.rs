//! Run ids are scarce: agents that hold ids without using them do not keep others from being traced, and an agent that
//! gets no id is reported.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::bytefrog_support::agent::Agent;
use crate::bytefrog_support::configuration::{self, CollectorMessage};
use crate::bytefrog_support::{daemon, wire};
use crate::log::Log;
use serde_json::Value;
use tributary::event::{BatchBuilder, DataView, EventView, Origin, Reason, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::protocol::bytefrog::{BytefrogCommand, BytefrogSession, Hq, Options, Start};
use tributary::protocol::{End, Now, Output, Session};

const UNTRACED: u8 = 127;
const ONE: [u8; 4] = [10, 0, 0, 1];
const OTHER: [u8; 4] = [10, 0, 0, 2];

fn now(elapsed: Duration) -> Now {
    Now { unix: UnixNanos(1_795_176_900_000_000_000 + elapsed.as_nanos() as u64), elapsed }
}

/// One connection without a socket.
struct Peer {
    session: BytefrogSession,
    out: Output,
}

impl Peer {
    fn send(hq: &Hq, address: IpAddr, bytes: &[u8], elapsed: Duration) -> Peer {
        let origin = Origin::new("bytefrog", "java".into(), address.to_string().into(), 0);
        let out = Output::new(BatchBuilder::new(Arc::new(origin)));
        let mut peer = Peer { session: hq.session(Some(address)), out };
        assert_eq!(peer.session.receive(bytes, now(elapsed), &mut peer.out).consumed, bytes.len());
        peer
    }

    fn agent(hq: &Hq, address: [u8; 4], elapsed: Duration) -> Peer {
        Peer::send(hq, address.into(), &wire::hello(4), elapsed)
    }

    /// A data connection for this run. `None`: it is not admitted.
    fn data(hq: &Hq, address: [u8; 4], run: u8, elapsed: Duration) -> Option<Peer> {
        let peer = Peer::send(hq, address.into(), &wire::data_hello(run), elapsed);
        (peer.out.reply[..] == [31]).then_some(peer)
    }

    /// Sends the first call of a method, which is one event.
    fn enter(&mut self, elapsed: Duration) {
        let entry = [wire::method(1, "a/B.c;1;()V"), wire::entry(1, 0, 1, 0)].concat();
        let _ = self.session.receive(&entry, now(elapsed), &mut self.out);
        assert_eq!(self.out.batch.take().len(), 1);
    }

    fn configuration(&self) -> configuration::Configuration {
        match configuration::read(4, &self.out.reply).0.first() {
            Some(CollectorMessage::Configuration(configuration)) => configuration.clone(),
            other => panic!("{other:?} is no configuration"),
        }
    }

    fn run(&self) -> u8 {
        self.configuration().run
    }

    fn close(mut self, elapsed: Duration) {
        let _ = self.session.finish(&[], End::Closed, now(elapsed), &mut self.out);
    }
}

fn hq(options: Options) -> Hq {
    Hq::new(options, false, MemoryBudget::new(256 << 20))
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn held_hellos_do_not_keep_later_agents_from_being_traced() {
    let hq = hq(Options { reserved_runs: 0, ..Options::default() });
    let held: Vec<_> = (0..127).map(|_| Peer::agent(&hq, ONE, Duration::ZERO)).collect();
    assert_eq!(Peer::agent(&hq, ONE, seconds(9)).run(), UNTRACED, "a slow agent may still use its id");
    let agents = [ONE, OTHER].map(|address| {
        let agent = Peer::agent(&hq, address, seconds(10));
        let run = agent.run();
        assert!(run < UNTRACED && !agent.configuration().exclusions.contains(&".*".to_owned()));
        assert_eq!(agent.out.warnings, [("run_id_taken_over", 1)]);
        let data = Peer::data(&hq, address, run, seconds(10));
        assert!(data.is_some());
        (agent, data)
    });
    drop((held, agents));
}

#[test]
fn an_agent_with_events_keeps_its_id() {
    let hq = hq(Options { reserved_runs: 0, ..Options::default() });
    let agents: Vec<_> = (0..127).map(|_| Peer::agent(&hq, ONE, Duration::ZERO)).collect();
    let mut data: Vec<_> =
        agents.iter().map(|agent| Peer::data(&hq, ONE, agent.run(), Duration::ZERO).unwrap()).collect();
    data.iter_mut().for_each(|data| data.enter(Duration::ZERO));
    assert_eq!(Peer::agent(&hq, OTHER, seconds(3600)).run(), UNTRACED);
}

#[test]
fn silent_data_connections_do_not_keep_later_agents_from_being_traced() {
    let hq = hq(Options { reserved_runs: 0, ..Options::default() });
    let agents: Vec<_> = (0..127).map(|_| Peer::agent(&hq, ONE, Duration::ZERO)).collect();
    let mut data: Vec<_> = agents.iter().map(|agent| Peer::data(&hq, ONE, agent.run(), seconds(1)).unwrap()).collect();
    assert_eq!(Peer::agent(&hq, OTHER, seconds(60)).run(), UNTRACED, "its first event may be late");
    let other = Peer::agent(&hq, OTHER, seconds(61));
    let id = other.run();
    assert_eq!(other.out.warnings, [("run_id_taken_over", 1)]);
    assert!(Peer::data(&hq, OTHER, id, seconds(61)).is_some());
    // The program that has lost the id is still traced.
    let late = agents.iter().position(|agent| agent.run() == id).unwrap();
    data[late].enter(seconds(62));
}

#[test]
fn the_last_ids_are_kept_for_other_addresses_than_one_with_silent_data_connections() {
    let hq = hq(Options::default());
    let mut held = Vec::new();
    for _ in 0..140 {
        let agent = Peer::agent(&hq, ONE, Duration::ZERO);
        let data = (agent.run() < UNTRACED).then(|| Peer::data(&hq, ONE, agent.run(), Duration::ZERO).unwrap());
        held.push((agent, data));
    }
    assert_eq!(held.iter().filter(|(_, data)| data.is_some()).count(), 127 - 16);
    assert!(Peer::agent(&hq, OTHER, Duration::ZERO).run() < UNTRACED);
}

/// The agents of one address that get no id have the same one, so the data connections of one count for another.
#[test]
fn agents_without_an_id_are_stopped_when_all_of_their_address_have_opened_their_data_connections() {
    let hq = hq(Options { reserved_runs: 0, data_connections: 1, ..Options::default() });
    let traced: Vec<_> = (0..127).map(|_| Peer::agent(&hq, ONE, Duration::ZERO)).collect();
    let mut agents = [(); 2].map(|()| Peer::agent(&hq, ONE, Duration::ZERO));
    let mut other = Peer::agent(&hq, OTHER, Duration::ZERO);
    let stopped_at = |second: u64, agent: &mut Peer| {
        agent.out.reply.clear();
        let _ = agent.session.receive(&wire::heartbeat(b'T'), now(seconds(second)), &mut agent.out);
        agent.out.reply[..] == [3]
    };
    // The first agent opens its connection, which counts for the second one, and sends an event over it.
    let mut first = Peer::data(&hq, ONE, UNTRACED, Duration::ZERO).unwrap();
    first.enter(Duration::ZERO);
    let third = Peer::data(&hq, OTHER, UNTRACED, Duration::ZERO).unwrap();
    for second in 1..=20 {
        assert!(!stopped_at(second, &mut agents[1]), "it has no data connection after {second} s");
    }
    let ends = (1..=20).filter(|second| stopped_at(*second, &mut other)).collect::<Vec<_>>();
    assert_eq!(ends.len(), 1, "other addresses do not matter");
    let second = Peer::data(&hq, ONE, UNTRACED, seconds(20)).unwrap();
    for agent in &mut agents {
        let ends: Vec<_> = (21..=30).filter(|second| stopped_at(*second, agent)).collect();
        assert!(matches!(ends[..], [23..=25]), "{ends:?}");
    }
    drop((traced, first, second, third));
}

#[test]
fn a_program_that_waits_for_its_start_keeps_its_id_until_it_was_started() {
    let hq = hq(Options { reserved_runs: 0, start: Start::OnCommand, ..Options::default() });
    let agents: Vec<_> = (0..127).map(|_| Peer::agent(&hq, ONE, Duration::ZERO)).collect();
    assert_eq!(Peer::agent(&hq, ONE, seconds(3600)).run(), UNTRACED);
    hq.command(agents[5].run(), BytefrogCommand::Start, seconds(3600)).unwrap();
    assert_eq!(Peer::agent(&hq, ONE, seconds(3609)).run(), UNTRACED);
    assert_eq!(Peer::agent(&hq, ONE, seconds(3610)).run(), agents[5].run());
}

#[test]
fn the_last_ids_are_kept_for_other_addresses() {
    let hq = hq(Options::default());
    let held: Vec<_> = (0..140).map(|_| Peer::agent(&hq, ONE, Duration::ZERO)).collect();
    let traced = held.iter().filter(|agent| agent.run() < UNTRACED).count();
    assert_eq!(traced, 127 - 16);
    let others: Vec<_> = (0..16).map(|_| Peer::agent(&hq, OTHER, Duration::ZERO)).collect();
    assert!(others.iter().all(|agent| agent.run() < UNTRACED));
    let of = |last: u16| IpAddr::from([0xfd00, 0, 0, 7, 0, 0, 0, last]);
    let v6 = self::hq(Options::default());
    let held: Vec<_> = (0..140).map(|last| Peer::send(&v6, of(last), &wire::hello(4), Duration::ZERO)).collect();
    let traced = held.iter().filter(|agent| agent.run() < UNTRACED).count();
    assert_eq!(traced, 127 - 16, "a /64 counts as one address");
}

/// Real agents open their data connections within half a second; one that takes longer still joins its run.
#[test]
fn an_agent_that_lost_its_id_can_still_join_its_run() {
    let hq = hq(Options { reserved_runs: 0, ..Options::default() });
    let slow: Vec<_> = (0..127).map(|_| Peer::agent(&hq, ONE, Duration::ZERO)).collect();
    let next = Peer::agent(&hq, OTHER, seconds(10));
    let id = next.run();
    assert!(id < UNTRACED);
    let mut data = Peer::data(&hq, ONE, id, seconds(11)).expect("its run has another owner with another address");
    assert!(Peer::data(&hq, ONE, id, seconds(11)).is_none(), "it has all its data connections");
    let other = Peer::data(&hq, OTHER, id, seconds(11)).expect("the run of the new owner");
    data.enter(seconds(11));
    for peer in [data, other, next].into_iter().chain(slow) {
        peer.close(seconds(12));
    }
    assert_eq!(hq.agents(), []);
    let ids: Vec<_> = (0..127).map(|_| Peer::agent(&hq, ONE, seconds(13)).run()).collect();
    assert!(ids.iter().all(|id| *id < UNTRACED), "every id is free again");
}

#[test]
fn an_agent_that_gets_no_id_is_a_loss_and_a_warning() {
    let log = Log::of_this_thread();
    let hq = hq(Options { reserved_runs: 0, ..Options::default() });
    let _held: Vec<_> = (0..127).map(|_| Peer::agent(&hq, ONE, Duration::ZERO)).collect();
    let mut untraced: Vec<_> = (0..5).map(|second| Peer::agent(&hq, OTHER, seconds(second))).collect();
    // Held ids that expire are given to these.
    let taken: Vec<_> = (0..127).map(|_| Peer::agent(&hq, OTHER, seconds(60))).collect();
    assert!(taken.iter().all(|agent| agent.run() < UNTRACED));
    untraced.push(Peer::agent(&hq, OTHER, seconds(61)));
    for agent in &mut untraced {
        let batch = agent.out.batch.take();
        let reason = |event: EventView<'_>| match event.data() {
            DataView::Loss(loss) => Some(loss.reason),
            _ => None,
        };
        assert_eq!(batch.events().filter_map(reason).collect::<Vec<_>>(), [Reason::Shed]);
    }
    let text = log.text();
    let warnings: Vec<_> = text.lines().filter(|line| line.contains("no run id is free")).collect();
    assert_eq!(warnings.len(), 2, "{text}");
    assert!(warnings[0].contains("WARN") && warnings[0].ends_with("listener=\"java\" address=10.0.0.2"), "{text}");
    assert_eq!(log.line("suppressed=4"), warnings[1]);
}

/// The same over sockets. Held agents that wait for `start` keep their ids, so no time limit passes before the last step.
#[tokio::test]
async fn a_java_program_is_traced_with_the_id_of_an_agent_that_never_connects() {
    let daemon = daemon("start = \"on_command\"\ndata_connection_wait = \"1s\"").await;
    let mut held = Vec::new();
    for number in 0..140_u8 {
        held.push(Agent::connect(&daemon.server, 1 + number % 4).await);
    }
    assert_eq!(held.last().unwrap().configuration.run, UNTRACED);
    let is_untraced = |event: &&Value| event["loss"]["reason"] == "shed" && event["loss"]["bytes"] == 0;
    let are_reported = |events: &[Value]| events.iter().filter(is_untraced).count() == 29;
    daemon.until("each agent without an id is a loss", are_reported).await;
    let agents = daemon.server.bytefrog("test").unwrap();
    agents.command(held[3].configuration.run, BytefrogCommand::Start).unwrap();
    let mut agent = Agent::connect(&daemon.server, 1).await;
    while agent.configuration.run == UNTRACED {
        agent = Agent::connect(&daemon.server, 1).await;
    }
    assert_eq!(agent.configuration.run, held[3].configuration.run);
    agents.command(agent.configuration.run, BytefrogCommand::Start).unwrap();
    let mut data = agent.data(&daemon.server).await;
    data.send(&[wire::method(7, "shop/Cart.add;1;()V"), wire::entry(0, 0, 7, 0)].concat()).await;
    let entry = daemon.until_named("bytefrog.method.entry").await;
    assert_eq!(entry["resource"]["bytefrog.run.id"], agent.configuration.run);
}
