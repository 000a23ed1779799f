//! A daemon that stops, and a listener that changes or goes, harm no traced program and lose none of its events.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::bytefrog_support::agent::{Agent as Puppet, Connection};
use crate::bytefrog_support::configuration::CollectorMessage;
use crate::bytefrog_support::{self, wire};
use crate::live::binary::free_address;
use crate::live::{Daemon, Stopped, config, losses, within};
use crate::log::Log;
use serde_json::Value;
use tokio::task::{JoinHandle, JoinSet};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tributary::protocol::bytefrog::AgentStatus;
use tributary::simulate::bytefrog::{Options, run_alone};
use tributary::simulate::{AgentKind, Amount, Plan, Sent, run};

/// No time limit passes, however busy the machine is.
pub(super) const PATIENT: &str = "unresolved_wait = \"5m\"\nreorder_window = \"5m\"\nheartbeat_interval = \"100ms\"";

/// A daemon whose grace period is longer than any test: no agent is cut off, however busy the machine is.
pub(super) async fn daemon(options: &str) -> Daemon {
    let listener = bytefrog_support::listener(options);
    Daemon::start(&format!("limits.shutdown_grace = \"10m\"\n{listener}")).await
}

fn listener(address: SocketAddr, options: &str) -> String {
    format!("[listeners.test]\nprotocol = \"bytefrog\"\nlisten = \"{address}\"\n{PATIENT}\n{options}\n")
}

/// Agents of every version, with both ways in which their handling of errors goes.
fn agents() -> impl Iterator<Item = Options> {
    let handling = [true, false];
    (1..=4).flat_map(move |version| {
        handling.map(|error_handling_fails| Options { version, error_handling_fails, ..Options::default() })
    })
}

/// An agent that has not opened its data connections when the daemon stops.
fn slow(options: Options) -> Options {
    Options { start_up: Duration::from_millis(400), ..options }
}

/// A program that runs until its tracing is stopped.
fn traced(to: SocketAddr, options: Options) -> JoinHandle<io::Result<Sent>> {
    traced_at(to, options, 5_000)
}

/// The same with `rate` events each second.
fn traced_at(to: SocketAddr, options: Options, rate: u64) -> JoinHandle<io::Result<Sent>> {
    let plan = Plan { to, amount: Amount::Events(u64::MAX), rate: Some(rate), connections: 1, seed: 5 };
    tokio::spawn(run(AgentKind::Bytefrog(options), plan, std::future::pending()))
}

async fn until_agent(daemon: &Daemon, what: &str, condition: impl Fn(&AgentStatus) -> bool) {
    let agents = daemon.server.bytefrog("test").unwrap();
    crate::live::until(what, || agents.agents().into_iter().find(|agent| condition(agent))).await;
}

async fn until_entered(daemon: &Daemon) {
    daemon.until_named("bytefrog.method.entry").await;
}

async fn until_traced(daemon: &Daemon) {
    daemon.until_named("bytefrog.method.exit").await;
}

fn outcomes(events: &[Value]) -> Vec<&str> {
    let ended = events.iter().filter(|event| event["name"] == "bytefrog.run.ended");
    ended.map(|event| event["attributes"]["bytefrog.run.outcome"].as_str().unwrap()).collect()
}

/// The agent came to no harm, and everything that it sent is in the output of the daemon.
#[track_caller]
fn assert_unharmed(sent: io::Result<Sent>, stopped: &Stopped, what: &str) {
    let sent = sent.unwrap_or_else(|error| panic!("{what}: {error}"));
    let Stopped { events, totals } = stopped;
    assert!(losses(events).is_empty(), "{what}: {:?}", losses(events));
    assert_eq!(outcomes(events), ["complete"], "{what}");
    // On a busy machine heartbeats may be late.
    let is_health = |event: &&Value| {
        ["bytefrog.agent.unhealthy", "bytefrog.agent.recovered"].iter().any(|name| event["name"] == *name)
    };
    let of_agent = events.iter().filter(|event| !is_health(event)).count();
    assert_eq!(of_agent as u64, sent.events, "{what}: {totals:?}");
    assert_eq!(totals.listeners[0].bytes_in, sent.bytes, "{what}: {totals:?}");
}

#[tokio::test]
async fn a_daemon_that_stops_reads_until_agents_have_sent_their_events() {
    for options in agents() {
        for connections in [1, 3] {
            let daemon = daemon(&format!("{PATIENT}\ndata_connections = {connections}")).await;
            let agent = traced(daemon.server.address().unwrap(), options);
            until_traced(&daemon).await;
            let stopped = daemon.stop().await;
            let sent = within("the agent ends", agent).await.unwrap();
            assert_unharmed(sent, &stopped, &format!("{options:?}, {connections} data connections"));
        }
    }
}

#[tokio::test]
async fn a_daemon_that_stops_accepts_the_data_connections_of_agents_that_start() {
    for options in agents() {
        let daemon = daemon(&format!("{PATIENT}\ndata_connections = 2")).await;
        let agent = traced(daemon.server.address().unwrap(), slow(options));
        until_agent(&daemon, "the hello", |_| true).await;
        let stopped = daemon.stop().await;
        let sent = within("the agent ends", agent).await.unwrap();
        assert_unharmed(sent, &stopped, &format!("{options:?}"));
    }
}

/// An agent that does not get the processor, or whose program collects its garbage, does nothing for longer than a busy
/// machine usually takes it away.
#[tokio::test]
async fn an_agent_that_does_not_run_for_seconds_while_the_daemon_stops_is_waited_for() {
    let stops = |options: Options, is_early: bool| async move {
        let options = Options { pause: Duration::from_millis(1200), ..options };
        let daemon = daemon(&format!("{PATIENT}\ndata_connections = 2")).await;
        // All of them share the thread of this test.
        let agent = traced_at(daemon.server.address().unwrap(), options, 200);
        match is_early {
            false => until_traced(&daemon).await,
            true => until_agent(&daemon, "the hello", |_| true).await,
        }
        let stopped = daemon.stop().await;
        let sent = within("the agent ends", agent).await.unwrap();
        assert_unharmed(sent, &stopped, &format!("{options:?}, early: {is_early}"));
    };
    let both = |options| [(options, false), (options, true)];
    let agents = agents().filter(|options| options.error_handling_fails);
    let mut stopping: JoinSet<()> = agents.flat_map(both).map(|(agent, is_early)| stops(agent, is_early)).collect();
    while let Some(stopped) = stopping.join_next().await {
        stopped.unwrap();
    }
}

/// The hello of an agent that has connected: without an answer its program aborts.
#[tokio::test]
async fn the_hello_of_an_agent_that_has_connected_before_the_daemon_stops_is_waited_for() {
    let daemon = daemon(PATIENT).await;
    let options = Options { pause: Duration::from_millis(1200), ..Options::default() };
    let agent = traced(daemon.server.address().unwrap(), options);
    daemon.until_totals("it is accepted", |counters| counters.connections_open == 1).await;
    let stopped = daemon.stop().await;
    within("the agent ends", agent).await.unwrap().unwrap();
    assert_eq!(outcomes(&stopped.events), ["complete"]);
}

#[tokio::test]
async fn a_daemon_that_stops_lets_programs_that_wait_for_their_start_run_untraced() {
    for options in agents() {
        let daemon = daemon(&format!("{PATIENT}\nstart = \"on_command\"")).await;
        let agent = traced(daemon.server.address().unwrap(), slow(options));
        until_agent(&daemon, "the hello", |agent| !agent.is_started).await;
        daemon.until_named("bytefrog.heartbeat").await;
        let stopped = daemon.stop().await;
        let sent = within("the agent ends", agent).await.unwrap();
        sent.unwrap_or_else(|error| panic!("{options:?}: {error}"));
        assert_eq!(outcomes(&stopped.events), ["complete"], "{options:?}");
    }
}

#[tokio::test]
async fn agents_of_a_changed_listener_send_their_events_and_new_ones_are_traced() {
    for options in agents() {
        for is_early in [false, true] {
            let address = free_address();
            let mut daemon = Daemon::start(&listener(address, "")).await;
            let agent = traced(address, if is_early { slow(options) } else { options });
            match is_early {
                false => until_traced(&daemon).await,
                true => until_agent(&daemon, "the hello", |_| true).await,
            }
            daemon.server.reload(&config(&listener(address, "max_open_calls = 77"))).await.unwrap();
            let sent = within("the agent ends", agent).await.unwrap();
            sent.unwrap_or_else(|error| panic!("{options:?}: {error}"));
            let plan = Plan { to: address, amount: Amount::Events(1_000), rate: None, connections: 1, seed: 6 };
            let next = run(AgentKind::Bytefrog(options), plan, std::future::pending());
            within("the next agent ends", next).await.unwrap();
            daemon.until_all_closed().await;
            let stopped = daemon.stop().await;
            assert!(losses(&stopped.events).is_empty(), "{options:?}: {:?}", losses(&stopped.events));
            assert_eq!(outcomes(&stopped.events), ["complete", "complete"], "{options:?}");
        }
    }
}

#[tokio::test]
async fn agents_of_a_removed_listener_send_their_events() {
    for options in agents() {
        for is_early in [false, true] {
            let (address, other) = (free_address(), free_address());
            let mut daemon = Daemon::start(&listener(address, "")).await;
            let agent = traced(address, if is_early { slow(options) } else { options });
            match is_early {
                false => until_traced(&daemon).await,
                true => until_agent(&daemon, "the hello", |_| true).await,
            }
            let others = format!("[listeners.other]\nprotocol = \"datadog\"\nlisten = \"{other}\"\n");
            daemon.server.reload(&config(&others)).await.unwrap();
            let sent = within("the agent ends", agent).await.unwrap();
            sent.unwrap_or_else(|error| panic!("{options:?}: {error}"));
            daemon.until("the end of the run", |events| outcomes(events) == ["complete"]).await;
            crate::live::until("its address is free", || TcpListener::bind(address).ok()).await;
            let stopped = daemon.stop().await;
            assert!(losses(&stopped.events).is_empty(), "{options:?}: {:?}", losses(&stopped.events));
        }
    }
}

/// Ends an agent as real ones end: data connections first, control last.
async fn end(mut agent: Puppet, data: Vec<Connection>) {
    agent.control.send(&wire::heartbeat(b'X')).await;
    for mut connection in data {
        connection.end().await;
        connection.until_closed().await;
    }
    agent.control.end().await;
    agent.control.until_closed().await;
}

#[tokio::test]
async fn an_agent_that_connects_while_the_daemon_stops_runs_untraced() {
    for options in agents() {
        let daemon = daemon(&format!("{PATIENT}\ndata_connections = 2")).await;
        let to = daemon.server.address().unwrap();
        let (mut agent, data) = Puppet::trace(&daemon.server, options.version).await;
        agent.control.send(&wire::class_ignored("demo/Main")).await;
        let stopping = tokio::spawn(daemon.stop());
        agent.until_message(&CollectorMessage::Suspend).await;
        let late = traced(to, options);
        let sent = within("the late agent ends", late).await.unwrap();
        sent.unwrap_or_else(|error| panic!("{options:?}: {error}"));
        end(agent, data).await;
        let stopped = within("stopping", stopping).await.unwrap();
        assert_eq!(outcomes(&stopped.events), ["complete", "complete"], "{options:?}");
        let shed = losses(&stopped.events);
        assert!(shed.len() == 1 && shed[0]["reason"] == "shed", "{options:?}: {shed:?}");
    }
}

#[tokio::test]
async fn no_class_is_traced_of_a_program_that_starts_while_the_daemon_stops() {
    for version in 1..=4 {
        let daemon = daemon("start = \"on_command\"\ninclusions = [\"^demo/\"]").await;
        let to = daemon.server.address().unwrap();
        let waiting = Puppet::connect(&daemon.server, version).await;
        let stopping = tokio::spawn(daemon.stop());
        waiting.until_message(&CollectorMessage::Start).await;
        let control = Connection::of(TcpStream::connect(to).await.unwrap());
        let late = Puppet::send_hello(control, version, &wire::hello(version)).await;
        late.until_message(&CollectorMessage::Start).await;
        for agent in [waiting, late] {
            let messages = agent.messages_received();
            let [.., CollectorMessage::Configuration(last), CollectorMessage::Start] = &messages[..] else {
                panic!("{messages:?}")
            };
            assert_eq!((&last.exclusions[..], last.inclusions.len()), (&[".*".to_owned()][..], 0));
            assert_eq!(last.run, agent.configuration.run);
            end(agent, Vec::new()).await;
        }
        within("stopping", stopping).await.unwrap();
    }
}

/// A pause that is in force blocks threads of the program.
#[tokio::test]
async fn a_stopping_daemon_ends_a_pause_before_it_stops_the_agent() {
    use CollectorMessage::{Pause, Stop, Suspend, Unpause};
    let daemon = daemon(PATIENT).await;
    let (mut agent, data) = Puppet::trace(&daemon.server, 2).await;
    agent.control.send(&wire::class_ignored("demo/A")).await;
    let agents = daemon.server.bytefrog("test").unwrap();
    let pause = tributary::protocol::bytefrog::BytefrogCommand::Pause;
    crate::live::until("pause", || agents.command(agent.configuration.run, pause).ok()).await;
    let stopping = tokio::spawn(daemon.stop());
    agent.until_message(&Suspend).await;
    agent.control.send(&[wire::data_break(0), wire::heartbeat(b'S').repeat(3)].concat()).await;
    crate::live::until("the stop", || {
        agent.messages_received().ends_with(&[Unpause, Suspend, Stop, Pause]).then_some(())
    })
    .await;
    end(agent, data).await;
    let stopped = within("stopping", stopping).await.unwrap();
    assert_eq!((outcomes(&stopped.events), losses(&stopped.events)), (vec!["complete"], vec![]));
}

/// A thread that keeps a buffer for ten heartbeats, as one that loads classes on a busy machine does: no heartbeat counts the
/// buffer, and its numbers are missing.
#[tokio::test]
async fn a_buffer_that_a_thread_returns_late_is_waited_for() {
    for version in [1, 4] {
        let daemon = daemon(PATIENT).await;
        let options = Options { version, late_buffer: Duration::from_secs(1), ..Options::default() };
        let agent = traced(daemon.server.address().unwrap(), options);
        until_traced(&daemon).await;
        let stopped = daemon.stop().await;
        let sent = within("the agent ends", agent).await.unwrap();
        assert_unharmed(sent, &stopped, &format!("version {version}"));
    }
}

/// The buffer is lost in the agent, which is made to wait for it no longer. Agents of version 1 cannot be made to do that.
#[tokio::test]
async fn a_program_with_a_thread_that_does_not_return_its_buffer_exits_and_the_numbers_are_reported() {
    for version in 2..=4 {
        // A thread keeps a buffer if it writes to one when the agent is suspended.
        let mut attempts = 0..5;
        while !exits_with_a_kept_buffer(version).await {
            assert!(attempts.next().is_some(), "version {version}: no thread has kept a buffer");
        }
    }
}

/// Stops a daemon while a thread of a traced program keeps a buffer. Returns whether one did.
async fn exits_with_a_kept_buffer(version: u8) -> bool {
    let daemon = daemon(&format!("{PATIENT}\nstop_wait = \"1s\"")).await;
    let options = Options { version, late_buffer: Duration::from_secs(3600), ..Options::default() };
    let halt = std::future::pending();
    let agent = tokio::spawn(run_alone(daemon.server.address().unwrap(), options, 5, 1_000_000, halt));
    until_traced(&daemon).await;
    let stopped = daemon.stop().await;
    let (sent, observations) = within("the agent ends", agent).await.unwrap();
    sent.unwrap_or_else(|error| panic!("version {version}: {error}"));
    let missing: u64 = losses(&stopped.events).iter().map(|loss| loss["events"].as_u64().unwrap()).sum();
    assert_eq!(missing, observations.lost_events, "version {version}: {:?}", losses(&stopped.events));
    if observations.has_late_buffer {
        assert_eq!(outcomes(&stopped.events), ["with_gaps"], "version {version}");
    }
    observations.has_late_buffer
}

/// A suspended agent takes no numbers, so those before its data break were taken for events.
#[tokio::test]
async fn numbers_that_are_missing_before_the_data_break_of_a_stop_are_reported() {
    for after in [&[][..], &[wire::entry(9, 250, 1, 0)].concat()] {
        let daemon = daemon(&format!("{PATIENT}\nstop_wait = \"1s\"")).await;
        let (mut agent, mut data) = Puppet::trace(&daemon.server, 4).await;
        data[0].send(&[wire::method(1, "demo/A.a;1;()V"), wire::entry(1, 0, 1, 0)].concat()).await;
        until_entered(&daemon).await;
        let stopping = tokio::spawn(daemon.stop());
        agent.until_message(&CollectorMessage::Suspend).await;
        agent.control.send(&[wire::data_break(250), wire::heartbeat(b'S').repeat(3)].concat()).await;
        agent.until_message(&CollectorMessage::Pause).await;
        data[0].send(after).await;
        end(agent, data).await;
        let stopped = within("stopping", stopping).await.unwrap();
        let losses = losses(&stopped.events);
        assert_eq!((losses.len(), &losses[0]["reason"], &losses[0]["events"]), (1, &"gap".into(), &249.into()));
    }
}

#[tokio::test]
async fn a_grace_that_is_too_short_for_an_agent_is_logged_with_what_happens_to_its_program() {
    let log = Log::of_this_thread();
    let limits = "[limits]\nshutdown_grace = \"1s\"\n";
    let daemon = Daemon::start(&(limits.to_owned() + &listener(free_address(), "data_connections = 2"))).await;
    let (agent, data) = Puppet::trace(&daemon.server, 3).await;
    let peer = agent.control.local;
    let stopped = daemon.stop().await;
    assert_eq!(outcomes(&stopped.events), ["without_shutdown"]);
    let text = log.text();
    let warnings: Vec<_> =
        text.lines().filter(|line| line.contains("WARN") && line.contains("shutdown_grace")).collect();
    assert_eq!(warnings.len(), 1, "{text}");
    for part in ["listener=\"test\"", &format!("agent={}", peer.ip()), "run=0", "may not exit"] {
        assert!(warnings[0].contains(part), "{part}: {}", warnings[0]);
    }
    drop((agent, data));
}

/// A connection that sends nothing delays the stop by its `handshake_timeout` and not by the grace period, which is longer
/// than the test would wait.
#[tokio::test]
async fn a_connection_without_a_hello_does_not_hold_up_the_stop() {
    let limits = "[limits]\nshutdown_grace = \"1h\"\n";
    let options = listener(free_address(), "handshake_timeout = \"1s\"");
    let daemon = Daemon::start(&(limits.to_owned() + &options)).await;
    let mut silent = daemon.connect().await;
    daemon.until_totals("it is accepted", |counters| counters.connections_open == 1).await;
    let stopped = within("the stop", daemon.stop()).await;
    assert!(stopped.events.is_empty(), "{:?}", stopped.events);
    let _ = silent.write_all(&[0]).await;
}

/// What was sent before the stop and not accepted yet would abort the program of an agent if it were reset.
#[tokio::test]
async fn a_hello_that_waits_to_be_accepted_when_the_daemon_stops_is_answered() {
    let address = free_address();
    let daemon = Daemon::start(&listener(address, "")).await;
    // The daemon shares the thread of this test: it accepts nothing until the test waits.
    let control = std::net::TcpStream::connect(address).unwrap();
    io::Write::write_all(&mut &control, &wire::hello(4)).unwrap();
    control.set_nonblocking(true).unwrap();
    let control = TcpStream::from_std(control).unwrap();
    daemon.server.stop_token().cancel();
    let stopping = tokio::spawn(daemon.stop());
    let agent = Puppet { version: 4, configuration: Default::default(), control: Connection::of(control) };
    agent.until_message(&CollectorMessage::Start).await;
    drop(agent);
    let stopped = within("stopping", stopping).await.unwrap();
    assert_eq!(outcomes(&stopped.events).len(), 1);
}
