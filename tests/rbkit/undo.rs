//! What the daemon has switched on is switched off: by the next daemon after a kill, by the listener that takes over in a
//! reload, and in a process that answers slowly.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::live::binary::{Binary, Ended, tributary};
use crate::live::{Daemon, config, until};
use crate::rbkit_support::agent::{Agent, Manners};
use crate::rbkit_support::process::Running;
use crate::rbkit_support::{dialled, listener, wire};
use tributary::simulate::rbkit::Options;

const MEMORY: &str = "start_memory_profile";
const STOP: &str = "stop_memory_profile";
const ENABLE: &str = ", enable = [\"memory_profile\"]";
const PID: u64 = 4_711;

/// A directory with the configuration of a listener for `agent`, `test`, which keeps its state there.
fn folder(agent: &Agent, keys: &str, options: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let state_dir = format!("state_dir = \"{}\"\n{options}", folder.path().join("state").display());
    let rest = "[limits]\nshutdown_grace = \"3s\"\n[admin]\nlisten = \"\"\n[sinks.none]\ntype = \"discard\"\n";
    fs::write(folder.path().join("tributary.toml"), listener(&[dialled(agent, keys)], &state_dir) + rest).unwrap();
    folder
}

fn start(folder: &Path) -> Binary {
    Binary::start(tributary(&["run", "--config", folder.join("tributary.toml").to_str().unwrap()]))
}

fn state(folder: &Path) -> String {
    fs::read_to_string(folder.join("state/test.profiles.json")).unwrap_or_default()
}

async fn ended(binary: Binary, signal: &str) -> Ended {
    binary.signal(signal);
    tokio::task::spawn_blocking(|| binary.end()).await.unwrap()
}

/// A process whose memory profile was switched on by a daemon that was killed then.
async fn left_on(options: &str) -> (Agent, tempfile::TempDir) {
    let agent = Agent::bind().await;
    let folder = folder(&agent, ENABLE, options);
    let binary = start(folder.path());
    agent.until_asked(MEMORY, 1).await;
    // The file has it before the process has it.
    assert!(state(folder.path()).contains(STOP), "{}", state(folder.path()));
    let mode = fs::metadata(folder.path().join("state/test.profiles.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    agent.set_handshake(&wire::handshake(PID, true, false));
    ended(binary, "KILL").await;
    (agent, folder)
}

/// Runs another daemon until it has received the identity of the process, and stops it.
async fn run_again(agent: &Agent, folder: &Path) -> Ended {
    let (handshakes, subscriptions) = (agent.asked("handshake"), agent.pub_connections());
    let binary = start(folder);
    agent.until_asked("handshake", handshakes + 1).await;
    until("another subscription", || (agent.pub_connections() > subscriptions).then_some(())).await;
    agent.until_subscribed().await;
    ended(binary, "TERM").await
}

#[tokio::test]
async fn a_profile_of_a_killed_daemon_is_switched_off_when_the_next_one_stops() {
    let (agent, folder) = left_on("").await;
    run_again(&agent, folder.path()).await;
    agent.assert_no_faults();
    assert_eq!(agent.commands(), [MEMORY, STOP]);
    assert!(!state(folder.path()).contains(STOP), "{}", state(folder.path()));
    // Now it is the profile of another client.
    run_again(&agent, folder.path()).await;
    assert_eq!(agent.commands(), [MEMORY, STOP]);
}

#[tokio::test]
async fn a_profile_that_the_next_daemon_does_not_want_is_switched_off_immediately() {
    let (agent, folder) = left_on("").await;
    let path = folder.path().join("tributary.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(ENABLE, "")).unwrap();
    let binary = start(folder.path());
    agent.until_asked(STOP, 1).await;
    agent.set_handshake(&wire::handshake(PID, false, false));
    ended(binary, "TERM").await;
    agent.assert_no_faults();
    assert_eq!(agent.commands(), [MEMORY, STOP]);
}

#[tokio::test]
async fn a_profile_of_another_process_at_the_same_address_is_left_on() {
    let (agent, folder) = left_on("").await;
    agent.set_handshake(&wire::handshake(PID + 1, true, false));
    run_again(&agent, folder.path()).await;
    assert_eq!(agent.commands(), [MEMORY]);
    assert!(!state(folder.path()).contains(STOP), "{}", state(folder.path()));
}

#[tokio::test]
async fn a_damaged_file_is_a_warning_and_the_daemon_runs() {
    let (agent, folder) = left_on("").await;
    let path = folder.path().join("state/test.profiles.json");
    let text = fs::read(&path).unwrap();
    fs::write(&path, &text[..text.len() / 2]).unwrap();
    let log = run_again(&agent, folder.path()).await;
    let line = log.line("the file of switched-on profiles is damaged");
    assert!(line.contains("WARN") && line.contains("test.profiles.json"), "{line}");
    assert_eq!(agent.commands(), [MEMORY]);
}

#[tokio::test]
async fn the_start_says_what_is_missing_and_what_was_left_on() {
    let (agent, folder) = left_on("").await;
    let path = folder.path().join("tributary.toml");
    let text = fs::read_to_string(&path).unwrap();
    // The process is not in the configuration any more.
    let other = Agent::bind().await;
    let keys = |agent: &Agent| dialled(agent, ENABLE);
    fs::write(&path, text.replace(&keys(&agent), &keys(&other))).unwrap();
    let log = run_again(&other, folder.path()).await;
    let line = log.line("send it these commands");
    assert!(line.contains(STOP) && line.contains(&agent.request.to_string()) && line.contains("4711"), "{line}");
    assert!(state(folder.path()).contains(STOP), "{}", state(folder.path()));
    assert!(!log.stderr.contains("no state_dir"), "{}", log.stderr);
    let lines = text.lines().filter(|line| !line.contains("state_dir")).collect::<Vec<_>>().join("\n");
    fs::write(&path, lines).unwrap();
    let log = run_again(&agent, folder.path()).await;
    assert!(log.line("no state_dir").contains("stay on"), "{}", log.stderr);
}

/// The command is sent without waiting for replies: the process carries it out when it reads it. At the stop a request is
/// outstanding on the connection on which the profile was switched on, or on a later one, on which nothing was ever answered.
#[tokio::test]
async fn a_process_that_does_not_answer_at_the_stop_gets_the_command_and_the_log_says_so() {
    for further_connections in [0, 2] {
        stop_unanswered(further_connections).await;
    }
}

async fn stop_unanswered(further_connections: u64) {
    let agent = Agent::bind().await;
    let folder = folder(&agent, ENABLE, "request_timeout = \"300ms\"\nhandshake_interval = \"100ms\"");
    let binary = start(folder.path());
    agent.until_asked(MEMORY, 1).await;
    agent.set_handshake(&wire::handshake(PID, true, false));
    let handshakes = agent.asked("handshake");
    agent.until_asked("handshake", handshakes + 2).await;
    agent.set_manners(Manners::Mute);
    let handshakes = agent.asked("handshake");
    agent.until_asked("handshake", handshakes + 1).await;
    let connections = agent.rep_connections() + further_connections;
    until("further connections", || (agent.rep_connections() >= connections).then_some(())).await;
    let log = ended(binary, "TERM").await;
    assert_eq!(agent.commands(), [MEMORY, STOP], "{further_connections}");
    let line = log.line("left on");
    assert!(line.contains("WARN") && line.contains("unanswered=\"stop_memory_profile\""), "{line}");
    assert!(line.contains(&agent.request.to_string()) && line.contains("the next daemon"), "{line}");
    assert!(state(folder.path()).contains(STOP), "{}", state(folder.path()));
}

/// With many busy threads the process needs longer than the time limit for each request.
#[tokio::test]
async fn a_profile_of_a_slow_process_is_switched_off_within_the_grace_period() {
    let lock_wait = Duration::from_millis(700);
    let process = Running::start(Options { lock_wait, ..Running::any() }).await;
    let options = "request_timeout = \"1s\"\nhandshake_interval = \"100ms\"";
    let daemon = Daemon::start(&listener(&[process.dialled(ENABLE)], options)).await;
    daemon.until_named("rbkit.object.created").await;
    daemon.stop().await;
    let received = process.end().await;
    assert_eq!((received.requests[MEMORY], received.requests[STOP]), (1, 1), "{received:?}");
    assert_eq!(received.faults(), 0, "{received:?}");
}

/// The clock was `cpu` before.
#[tokio::test]
async fn the_clock_is_set_back_once() {
    let process = Running::start(Running::any()).await;
    let keys = ", enable = [\"cpu_profile\"], clock = \"wall\"";
    let daemon = Daemon::start(&listener(&[process.dialled(keys)], "")).await;
    daemon.until_named("rbkit.cpu").await;
    let is_wall = |events: &[serde_json::Value]| {
        events
            .iter()
            .any(|event| event["attributes"]["rbkit.cpu_profile.clock"] == "wall" && event["name"] == "rbkit.handshake")
    };
    daemon.until("a handshake after the commands", is_wall).await;
    daemon.stop().await;
    let received = process.end().await;
    assert_eq!((received.requests["use_wall_time"], received.requests["use_cpu_time"]), (1, 1), "{received:?}");
    assert_eq!((received.requests["stop_cpu_profiling"], received.faults()), (1, 0), "{received:?}");
}

/// Reloads a daemon that has switched on the memory profile of a process. Returns the commands before and after its stop.
async fn reloaded(to: impl FnOnce(&Agent) -> String) -> (Vec<String>, Vec<String>) {
    let agent = Agent::bind().await;
    let mut daemon = Daemon::start(&listener(&[dialled(&agent, ENABLE)], "")).await;
    agent.until_started(&[MEMORY]).await;
    agent.set_handshake(&wire::handshake(PID, true, false));
    // The reply to the start command has come, too.
    until("the status", || daemon.server.rbkit("test").and_then(|all| all.agents()[0].memory_profile).filter(|on| *on))
        .await;
    daemon.server.reload(&config(&to(&agent))).await.unwrap();
    let is_taken_over = || agent.rep_connections() >= 2 && agent.rep_open() == 1 && agent.pub_connections() >= 2;
    until("the connections of the new listener", || is_taken_over().then_some(())).await;
    agent.until_subscribed().await;
    until("a handshake on it", || (agent.answered() >= 2).then_some(())).await;
    let before = agent.commands();
    daemon.stop().await;
    agent.assert_no_faults();
    (before, agent.commands())
}

#[tokio::test]
async fn a_listener_that_a_reload_changes_or_renames_keeps_a_profile_on_and_switches_it_off_at_its_end() {
    let (before, after) = reloaded(|agent| listener(&[dialled(agent, ENABLE)], "max_frames = 100")).await;
    assert_eq!((before, after), (vec![MEMORY.to_owned()], vec![MEMORY.to_owned(), STOP.to_owned()]), "changed");
    let renamed = |agent: &Agent| listener(&[dialled(agent, ENABLE)], "").replace("[listeners.test]", "[listeners.b]");
    let (before, after) = reloaded(renamed).await;
    assert_eq!((before, after), (vec![MEMORY.to_owned()], vec![MEMORY.to_owned(), STOP.to_owned()]), "renamed");
}
