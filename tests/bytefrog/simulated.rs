//! Simulated Java agents and the daemon: both count the same, and no program is harmed.

use std::collections::HashSet;
use std::future::pending;
use std::io;

use crate::bytefrog_support::{daemon, listener};
use crate::live::{Daemon, Stopped, until, within};
use serde_json::Value;
use tokio::join;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tributary::protocol::bytefrog::{AgentStatus, BytefrogCommand, Mode};
use tributary::simulate::bytefrog::{Harm, Observations, Options, run_alone};
use tributary::simulate::{AgentKind, Amount, Plan, Sent, run};

/// No time limit passes, however busy the machine is.
const PATIENT: &str = "unresolved_wait = \"5m\"\nreorder_window = \"1m\"\nheartbeat_interval = \"100ms\"";

fn options(version: u8) -> Options {
    Options { version, ..Options::default() }
}

fn text<'a>(event: &'a Value, key: &str) -> &'a str {
    event["attributes"][key].as_str().unwrap_or_default()
}

fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["name"] == name).collect()
}

/// Asserts that the daemon has written the events that the agent counted. The agent cannot count the reports that its heartbeats
/// are late and come again: on a busy machine they are.
fn assert_adds_up(sent: &Sent, stopped: &Stopped) {
    let Stopped { events, totals } = stopped;
    let is_of_the_daemon = |event: &&Value| {
        event["kind"] == "loss"
            || event["name"] == "bytefrog.agent.unhealthy"
            || event["name"] == "bytefrog.agent.recovered"
    };
    let of_the_daemon = events.iter().filter(is_of_the_daemon).count();
    assert_eq!((events.len() - of_the_daemon) as u64, sent.events, "{totals:?}");
    assert_eq!(totals.listeners[0].bytes_in, sent.bytes, "{totals:?}");
}

/// A program of this many events with a daemon with these options.
async fn traced(agent: Options, events: u64, listener: &str) -> (Sent, Observations, Stopped) {
    let daemon = daemon(&format!("{PATIENT}\n{listener}")).await;
    let to = daemon.server.address().unwrap();
    let (sent, observations) = within("the agent ends", run_alone(to, agent, 5, events, pending())).await;
    daemon.until_all_closed().await;
    (sent.unwrap(), observations, daemon.stop().await)
}

#[tokio::test]
async fn all_versions_and_orders_add_up_and_every_name_is_there() {
    for version in 1..=4 {
        for listener in
            ["", "order = \"sequence\"", "data_connections = 3", "data_connections = 3\norder = \"sequence\""]
        {
            let (sent, _, stopped) = traced(options(version), 3_000, listener).await;
            assert_adds_up(&sent, &stopped);
            let events = &stopped.events;
            assert!(crate::live::losses(events).is_empty(), "version {version}, {listener}");
            let entries = named(events, "bytefrog.method.entry");
            assert!(entries.len() > 600);
            let is_named = |entry: &&Value| {
                let thread = version > 2 || !text(entry, "thread.name").is_empty();
                thread && text(entry, "code.function.name").contains('.')
            };
            assert!(entries.iter().all(is_named), "version {version}, {listener}");
            let ended = named(events, "bytefrog.run.ended");
            assert_eq!(ended.len(), 1);
            assert_eq!(ended[0]["attributes"]["bytefrog.run.events"], 3_000);
            if listener.contains("sequence") {
                let numbers = events.iter().filter(|event| !event["attributes"]["thread.id"].is_null());
                let numbers: Vec<_> = numbers.map(|event| event["origin"]["sequence"].as_u64().unwrap()).collect();
                assert!(numbers.is_sorted(), "version {version}, {listener}");
            }
        }
    }
}

#[tokio::test]
async fn each_call_becomes_one_span() {
    for version in 1..=4 {
        let (_, _, stopped) = traced(options(version), 3_000, "calls = \"both\"\ndata_connections = 2").await;
        let events = &stopped.events;
        let entries = named(events, "bytefrog.method.entry").len();
        let spans: HashSet<_> = events.iter().filter(|event| event["kind"] == "span").collect();
        assert_eq!(spans.len(), entries, "version {version}");
        // Threads are inside calls when the program ends.
        let open = spans.iter().filter(|span| span["span"].get("end_time").is_none()).count();
        assert!((4..100).contains(&open), "{open} calls are open");
    }
}

#[tokio::test]
async fn lost_buffers_are_reported_as_gaps_of_their_size() {
    for order in ["received", "sequence"] {
        let gaps = Options { gaps: 5, in_order: true, ..options(2) };
        let (sent, observations, stopped) = traced(gaps, 20_000, &format!("order = \"{order}\"")).await;
        assert_adds_up(&sent, &stopped);
        let losses = crate::live::losses(&stopped.events);
        assert!(losses.iter().all(|loss| loss["reason"] == "gap" || loss["reason"] == "unresolved"), "{losses:?}");
        let missing = losses.iter().filter(|loss| loss["reason"] == "gap").map(|loss| loss["events"].as_u64().unwrap());
        // Only the agent knows what is missing behind the last number.
        let missing: u64 = missing.sum();
        let unknown = observations.lost_events - missing;
        assert!(missing > 0 && unknown < 700, "{missing} of {} with order {order}", observations.lost_events);
    }
}

/// The one agent of the daemon, once it meets `condition`.
async fn until_agent(daemon: &Daemon, what: &str, condition: impl Fn(&AgentStatus) -> bool) -> AgentStatus {
    let agents = daemon.server.bytefrog("test").unwrap();
    until(what, || agents.agents().into_iter().find(|agent| condition(agent))).await
}

/// Sends a command as soon as it is harmless.
async fn send(daemon: &Daemon, command: BytefrogCommand) {
    let agents = daemon.server.bytefrog("test").unwrap();
    let agent = until_agent(daemon, "there is an agent", |_| true).await;
    until(command.as_str(), || agents.command(agent.run, command).ok()).await;
}

/// The same, and waits for the mode that the command leads to.
async fn command(daemon: &Daemon, command: BytefrogCommand, mode: Mode) {
    send(daemon, command).await;
    until_agent(daemon, command.as_str(), |agent| agent.mode == mode).await;
}

/// A program that runs until the test ends it.
fn endless(daemon: &Daemon, version: u8) -> (impl Future<Output = io::Result<Sent>> + use<>, oneshot::Sender<()>) {
    let (end, ended) = oneshot::channel::<()>();
    let to = daemon.server.address().unwrap();
    let plan = Plan { to, amount: Amount::Events(u64::MAX), rate: Some(5_000), connections: 1, seed: 5 };
    let stop = async { drop(ended.await) };
    (run(AgentKind::Bytefrog(options(version)), plan, stop), end)
}

#[tokio::test]
async fn commands_have_their_effect_and_do_no_harm() {
    for version in 1..=4 {
        let daemon = daemon(PATIENT).await;
        let (agent, end) = endless(&daemon, version);
        let operator = async {
            for _ in 0..2 {
                command(&daemon, BytefrogCommand::Suspend, Mode::Suspended).await;
                command(&daemon, BytefrogCommand::Unsuspend, Mode::Tracing).await;
                command(&daemon, BytefrogCommand::Pause, Mode::Paused).await;
                command(&daemon, BytefrogCommand::Unpause, Mode::Tracing).await;
            }
            drop(end);
        };
        let (sent, ()) = within("the agent ends", async { join!(agent, operator) }).await;
        daemon.until_all_closed().await;
        let stopped = daemon.stop().await;
        assert_adds_up(&sent.unwrap(), &stopped);
        assert_eq!(named(&stopped.events, "bytefrog.data_break").len(), 2);
        let losses = crate::live::losses(&stopped.events);
        assert_eq!(losses.len(), 2, "a suspension leaves no gap: {losses:?}");
    }
}

#[tokio::test]
async fn a_stopped_agent_ends_without_harm() {
    let daemon = daemon(PATIENT).await;
    let (agent, _end) = endless(&daemon, 1);
    let (sent, ()) = within("the agent ends", async { join!(agent, send(&daemon, BytefrogCommand::Stop)) }).await;
    daemon.until_all_closed().await;
    assert_adds_up(&sent.unwrap(), &daemon.stop().await);
}

#[tokio::test]
async fn a_program_that_starts_on_command_waits_and_one_that_starts_suspended_is_not_traced() {
    for version in 1..=4 {
        let waiting = daemon(&format!("{PATIENT}\nstart = \"on_command\"")).await;
        let (agent, end) = endless(&waiting, version);
        let operator = async {
            until_agent(&waiting, "it waits", |agent| !agent.is_started && agent.mode == Mode::Initializing).await;
            command(&waiting, BytefrogCommand::Start, Mode::Tracing).await;
            drop(end);
        };
        let (sent, ()) = within("the agent ends", async { join!(agent, operator) }).await;
        waiting.until_all_closed().await;
        assert_adds_up(&sent.unwrap(), &waiting.stop().await);

        let suspended = daemon(&format!("{PATIENT}\nstart = \"suspended\"")).await;
        let (agent, end) = endless(&suspended, version);
        let operator = async {
            until_agent(&suspended, "it is suspended", |agent| agent.mode == Mode::Suspended).await;
            command(&suspended, BytefrogCommand::Unsuspend, Mode::Tracing).await;
            drop(end);
        };
        let (sent, ()) = within("the agent ends", async { join!(agent, operator) }).await;
        suspended.until_all_closed().await;
        assert_adds_up(&sent.unwrap(), &suspended.stop().await);
    }
}

#[tokio::test]
async fn a_daemon_that_stops_harms_no_program_in_any_state() {
    let states =
        [None, Some((BytefrogCommand::Pause, Mode::Paused)), Some((BytefrogCommand::Suspend, Mode::Suspended))];
    for (version, state) in (1..=4).flat_map(|version| states.map(|state| (version, state))) {
        let daemon = daemon(PATIENT).await;
        let (agent, _end) = endless(&daemon, version);
        let operator = async move {
            until_agent(&daemon, "it is traced", |agent| agent.mode == Mode::Tracing).await;
            if let Some((wish, mode)) = state {
                command(&daemon, wish, mode).await;
            }
            daemon.stop().await
        };
        let (sent, _) = within("both end", async { join!(agent, operator) }).await;
        assert!(sent.is_ok(), "version {version} in {state:?}: {sent:?}");
    }
}

#[tokio::test]
async fn an_agent_without_a_run_id_comes_to_no_harm() {
    let crowd = "max_connections = 400\nmax_connections_per_address = 400";
    let daemon = Daemon::start(&listener(&format!("{PATIENT}\n{crowd}"))).await;
    let to = daemon.server.address().unwrap();
    let mut agents = JoinSet::new();
    for number in 0..128 {
        let version = 1 + (number % 4) as u8;
        agents.spawn(async move { run_alone(to, options(version), number, 50, pending()).await.0 });
    }
    let sent: Vec<_> = within("all end", agents.join_all()).await.into_iter().collect::<Result<_, _>>().unwrap();
    daemon.until_all_closed().await;
    let stopped = daemon.stop().await;
    let bytes: u64 = sent.iter().map(|sent| sent.bytes).sum();
    assert_eq!(stopped.totals.listeners[0].bytes_in, bytes);
    let ended = named(&stopped.events, "bytefrog.run.ended");
    assert_eq!(ended.len(), 128);
}

#[test]
fn harm_is_reported_in_the_words_that_the_tests_above_search_for() {
    let why = || "it".to_owned();
    for harm in [Harm::Abort(why()), Harm::Hang(why()), Harm::NeverRun(why()), Harm::TraceDies(why())] {
        assert!(harm.to_string().contains("would have"));
    }
    assert!(Harm::ControlLost(why()).to_string().contains("would have"));
}
