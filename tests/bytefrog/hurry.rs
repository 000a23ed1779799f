//! A second signal ends a daemon within seconds and does no harm to traced programs; a third one does not wait for them.

use std::time::Duration;

use tributary::protocol::bytefrog::Mode;
use tributary::simulate::bytefrog::{Options, run_alone};

use crate::bytefrog_support::agent::Agent as Puppet;
use crate::bytefrog_support::configuration::CollectorMessage;
use crate::live::binary::{Binary, tributary};
use crate::live::{self, Daemon, within};
use crate::log::Log;
use crate::shutdown::{PATIENT, daemon};

/// Waits until an agent reports this mode.
async fn until_mode(daemon: &Daemon, mode: Mode) {
    let agents = daemon.server.bytefrog("test").unwrap();
    live::until("the mode", || agents.agents().iter().any(|agent| agent.mode == mode).then_some(())).await;
}

/// Stops a daemon that traces such a program, and hurries it when the agent is suspended. The program comes to no harm.
async fn hurry(options: Options) {
    let daemon = daemon(&format!("{PATIENT}\nstop_wait = \"10m\"")).await;
    let to = daemon.server.address().unwrap();
    let agent = tokio::spawn(run_alone(to, options, 5, u64::MAX, std::future::pending()));
    daemon.until_named("bytefrog.method.exit").await;
    let (hurry, agents) = (daemon.server.hurry_token(), daemon.server.bytefrog("test").unwrap());
    let stopping = tokio::spawn(daemon.stop());
    live::until("the suspended agent", || {
        agents.agents().iter().any(|agent| agent.mode == Mode::Suspended).then_some(())
    })
    .await;
    hurry.cancel();
    let (sent, _) = within("the agent ends", agent).await.unwrap();
    sent.unwrap_or_else(|error| panic!("{options:?}: {error}"));
    within("stopping", stopping).await.unwrap();
}

/// Without the second signal this agent would be waited for as long as `stop_wait`: a thread keeps a buffer.
#[tokio::test]
async fn a_program_whose_agent_has_events_left_comes_to_no_harm_when_the_stop_is_hurried() {
    for version in 2..=4 {
        let late_buffer = Duration::from_secs(3600);
        hurry(Options { version, threads: 16, late_buffer, ..Options::default() }).await;
    }
}

/// An agent that takes more than a second for each of our messages.
#[tokio::test]
async fn an_agent_that_needs_seconds_for_its_end_is_waited_for_when_the_stop_is_hurried() {
    for version in 1..=4 {
        hurry(Options { version, threads: 16, pause: Duration::from_millis(1050), ..Options::default() }).await;
    }
}

/// The agents of all versions, as unmodified ones, and the signals of an operator.
#[tokio::test]
async fn two_signals_to_the_daemon_do_no_harm_to_traced_programs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.toml");
    let toml =
        "[listeners.test]\nprotocol = \"bytefrog\"\nlisten = \"127.0.0.1:0\"\n[sinks.none]\ntype = \"discard\"\n";
    std::fs::write(&path, toml).unwrap();
    let binary = Binary::start(tributary(&["run", "--config", path.to_str().unwrap()]));
    let (to, binary) = tokio::task::spawn_blocking(|| (binary.address("test"), binary)).await.unwrap();
    let agents: Vec<_> = (1..=4)
        .map(|version| {
            let options = Options { version, threads: 16, ..Options::default() };
            tokio::spawn(run_alone(to, options, 5, u64::MAX, std::future::pending()))
        })
        .collect();
    let signals = tokio::task::spawn_blocking(move || {
        binary.until_stderr_has(4, "a Java agent has connected");
        binary.signal("TERM");
        let first = binary.until_stderr("INFO stopping; ");
        binary.until_stderr_has(4, "a traced Java program is stopped");
        binary.signal("TERM");
        (first, binary.end())
    });
    for (agent, version) in agents.into_iter().zip(1..) {
        let (sent, _) = within("the agent ends", agent).await.unwrap();
        sent.unwrap_or_else(|error| panic!("version {version}: {error}"));
    }
    let (first, ended) = within("the daemon ends", signals).await.unwrap();
    for part in
        ["traced_programs=4", "A second signal makes the agents drop them", "a third one ends the daemon at once"]
    {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("second signal: the daemon ends within seconds"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("grace"), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("a Java agent has ended").count(), 4, "{}", ended.stderr);
}

#[tokio::test]
async fn a_third_signal_is_logged_as_what_it_does_to_the_program() {
    let log = Log::of_this_thread();
    let daemon = daemon(PATIENT).await;
    let (mut agent, data) = Puppet::trace(&daemon.server, 3).await;
    agent.control.send(&crate::bytefrog_support::wire::class_ignored("demo/A")).await;
    until_mode(&daemon, Mode::Tracing).await;
    let (hurry, stop_now) = (daemon.server.hurry_token(), daemon.server.stop_now_token());
    let stopping = tokio::spawn(daemon.stop());
    agent.until_message(&CollectorMessage::Suspend).await;
    hurry.cancel();
    // The agent does not do what it is sent.
    agent.until_message(&CollectorMessage::Pause).await;
    stop_now.cancel();
    within("stopping", stopping).await.unwrap();
    let line = log.line("may not exit");
    assert!(line.contains("WARN") && line.contains("a further signal ended the stop"), "{line}");
    assert!(!log.text().contains("grace"), "{}", log.text());
    drop((agent, data));
}
