//! Agents that end, restart, or stop answering: the events about it, and the requests that are sent again.

use std::time::Duration;

use crate::live::binary::{Binary, tributary};
use crate::live::{Daemon, until};
use crate::rbkit_support::agent::{Agent, Manners};
use crate::rbkit_support::compare::{named, of_message};
use crate::rbkit_support::{daemon_for, dialled, listener, wire};
use serde_json::Value;

const MEMORY: &[&str] = &["start_memory_profile"];
/// The agent sends its queue once a second: on average, events are in it for half of that.
const QUEUE_TIME: Duration = Duration::from_millis(500);

/// A message with one object, whose id is the counter of the message.
fn message(counter: u64) -> Vec<u8> {
    wire::collection(counter, &[wire::created(counter)])
}

async fn until_message(daemon: &Daemon, counter: u64) {
    daemon.until(&format!("message {counter}"), |events| !of_message(events, counter).is_empty()).await;
}

fn gaps(events: &[Value]) -> Vec<u64> {
    let losses = crate::live::losses(events).into_iter().filter(|loss| loss["reason"] == "gap");
    losses.map(|loss| loss["events"].as_u64().unwrap_or(0)).collect()
}

#[tokio::test]
async fn a_restarted_process_is_reported_and_asked_again_and_its_events_are_received() {
    let agent = Agent::bind().await;
    let daemon = daemon_for(&agent, "").await;
    agent.until_started(MEMORY).await;
    for counter in 0..5 {
        agent.publish(&message(counter)).await;
    }
    until_message(&daemon, 4).await;
    let (publish, request) = (agent.publish, agent.request);
    agent.kill().await;

    let agent = Agent::bind_at(publish, request).await;
    agent.set_handshake(&wire::handshake(4_712, false, false));
    agent.until_started(MEMORY).await;
    for counter in 0..2 {
        agent.publish(&message(counter)).await;
    }
    let is_there = |events: &[Value]| of_message(events, 1).len() >= 2;
    daemon.until("the messages of the new process", is_there).await;
    let stopped = daemon.stop().await;
    agent.assert_no_faults();
    let events = &stopped.events;
    assert_eq!(named(events, "rbkit.agent.restarted").len(), 1);
    let pids: Vec<_> = named(events, "rbkit.handshake").iter().map(|event| &event["resource"]["process.pid"]).collect();
    assert_eq!(pids, [4_711, 4_712]);
    let created = named(events, "rbkit.object.created");
    assert_eq!(created.len(), 7);
    assert!(created[..5].iter().all(|event| event["resource"]["process.pid"] == 4_711));
    assert!(created[5..].iter().all(|event| event["resource"]["process.pid"] == 4_712));
    assert_eq!(gaps(events), [0; 0], "the new counter is no gap");
    assert_eq!(agent.commands(), ["start_memory_profile", "stop_memory_profile"]);
}

/// The incomplete frame is lost, and the incomplete heap dump is reported as a gap.
#[tokio::test]
async fn a_process_that_dies_within_a_message_leaves_a_loss_with_its_place() {
    let agent = Agent::bind().await;
    let daemon = daemon_for(&agent, "").await;
    agent.until_started(MEMORY).await;
    agent.publish(&wire::collection(0, &[wire::dump(1, 5, 10, 3)])).await;
    let frame = wire::frame(0, &message(1));
    agent.write(&frame[..20], usize::MAX).await;
    let written = agent.bytes_written();
    daemon.until_totals("it has been read", |counters| counters.bytes_in >= written).await;
    let (publish, request) = (agent.publish, agent.request);
    agent.kill().await;
    let agent = Agent::bind_at(publish, request).await;
    agent.set_handshake(&wire::handshake(4_712, false, false));
    agent.until_started(MEMORY).await;
    agent.publish(&message(0)).await;
    daemon.until_named("rbkit.object.created").await;
    let stopped = daemon.stop().await;
    let losses = crate::live::losses(&stopped.events);
    let truncated: Vec<_> = losses.iter().filter(|loss| loss["reason"] == "truncated").collect();
    assert_eq!(truncated.len(), 1, "{losses:?}");
    assert!((18..=20).contains(&truncated[0]["bytes"].as_u64().unwrap()), "{losses:?}");
    assert_eq!(gaps(&stopped.events), [2], "{losses:?}");
    assert_eq!(named(&stopped.events, "rbkit.heap.object").len(), 3);
    assert_eq!(named(&stopped.events, "rbkit.agent.restarted").len(), 1);
}

/// A connection may break while the process lives: that is no restart, and the messages published meanwhile are a gap.
#[tokio::test]
async fn messages_that_were_published_without_a_connection_are_a_gap() {
    let agent = Agent::bind().await;
    let daemon = daemon_for(&agent, "").await;
    agent.until_started(MEMORY).await;
    agent.publish(&message(0)).await;
    until_message(&daemon, 0).await;
    let (publish, request) = (agent.publish, agent.request);
    agent.kill().await;
    // The same process id: only the network was interrupted.
    let agent = Agent::bind_at(publish, request).await;
    agent.until_started(MEMORY).await;
    agent.publish(&message(10)).await;
    until_message(&daemon, 10).await;
    let stopped = daemon.stop().await;
    assert_eq!(gaps(&stopped.events).len(), 1);
    assert_eq!(crate::live::losses(&stopped.events).len(), 1);
    assert!(named(&stopped.events, "rbkit.agent.restarted").is_empty());
}

#[tokio::test]
async fn a_counter_that_skips_numbers_is_a_gap_and_a_lower_one_is_a_restart() {
    let agent = Agent::bind().await;
    let daemon = daemon_for(&agent, "").await;
    agent.until_started(MEMORY).await;
    // The first counter proves nothing: messages may have been published before we subscribed.
    for counter in [40, 41, 45] {
        agent.publish(&message(counter)).await;
    }
    until_message(&daemon, 45).await;
    assert_eq!(gaps(&daemon.events()).len(), 1);
    let loss = daemon.events().into_iter().find(|event| event["kind"] == "loss").unwrap();
    // Three messages; the number of their events is unknown.
    assert!(loss["loss"]["detail"].as_str().unwrap().contains("42 to 44"), "{loss}");
    assert_eq!(loss["loss"].get("events"), None, "{loss}");
    let (handshakes, starts) = (agent.asked("handshake"), agent.asked(MEMORY[0]));
    agent.set_handshake(&wire::handshake(4_712, false, false));
    agent.publish(&message(3)).await;
    until_message(&daemon, 3).await;
    agent.until_asked("handshake", handshakes + 1).await;
    agent.until_asked(MEMORY[0], starts + 1).await;
    agent.publish(&message(4)).await;
    until_message(&daemon, 4).await;
    let stopped = daemon.stop().await;
    agent.assert_no_faults();
    assert_eq!(gaps(&stopped.events).len(), 1);
    assert_eq!(named(&stopped.events, "rbkit.agent.restarted").len(), 1);
}

/// Both connections stay open, as behind a relay, and no message shows it: the process id does.
#[tokio::test]
async fn a_changed_process_id_is_a_restart() {
    let agent = Agent::bind().await;
    let daemon = daemon_for(&agent, "handshake_interval = \"100ms\"").await;
    agent.until_started(MEMORY).await;
    agent.set_handshake(&wire::handshake(4_712, false, false));
    daemon.until_named("rbkit.agent.restarted").await;
    agent.until_asked(MEMORY[0], 2).await;
    let stopped = daemon.stop().await;
    agent.assert_no_faults();
    assert_eq!(named(&stopped.events, "rbkit.agent.restarted").len(), 1);
    assert_eq!(named(&stopped.events, "rbkit.handshake").len(), 2);
}

/// No reply in time: a new connection is opened, so that a late reply is not taken for that of the next request.
#[tokio::test]
async fn a_request_without_a_reply_is_sent_again_on_a_new_connection() {
    let agent = Agent::bind().await;
    agent.set_manners(Manners::Mute);
    let daemon = daemon_for(&agent, "request_timeout = \"300ms\"").await;
    until("it is tried again", || (agent.rep_connections() >= 2).then_some(())).await;
    agent.set_manners(Manners::Answer);
    let handshake = daemon.until_named("rbkit.handshake").await;
    assert_eq!(handshake["resource"]["process.pid"], 4_711);
    agent.until_started(MEMORY).await;
    let stopped = daemon.stop().await;
    agent.assert_no_faults();
    assert_eq!(named(&stopped.events, "rbkit.handshake").len(), 1);
}

/// Another client has sent an empty request: no client gets a reply any more, but messages are still published.
#[tokio::test]
async fn messages_of_an_agent_that_does_not_answer_are_received() {
    let agent = Agent::bind().await;
    agent.set_manners(Manners::Mute);
    let daemon = daemon_for(&agent, "request_timeout = \"300ms\"").await;
    agent.until_subscribed().await;
    agent.publish(&message(0)).await;
    until_message(&daemon, 0).await;
    let stopped = daemon.stop().await;
    agent.assert_no_faults();
    assert_eq!(agent.commands(), [""; 0], "no command is sent before a handshake");
    assert!(named(&stopped.events, "rbkit.handshake").is_empty());
}

#[tokio::test]
async fn at_the_end_the_daemon_stops_the_profiles_that_it_started_and_no_others() {
    for (keys, started, stopped) in [
        ("", &[][..], &[][..]),
        (", enable = []", &[], &[]),
        (", enable = [\"memory_profile\"]", &["start_memory_profile"], &["stop_memory_profile"]),
        (
            ", enable = [\"cpu_profile\"], clock = \"wall\"",
            &["use_wall_time", "start_cpu_profiling"],
            // The clock was `cpu` before.
            &["stop_cpu_profiling", "use_cpu_time"],
        ),
        (
            ", enable = [\"memory_profile\", \"cpu_profile\"], clock = \"cpu\"",
            &["use_cpu_time", "start_memory_profile", "start_cpu_profiling"],
            &["stop_memory_profile", "stop_cpu_profiling"],
        ),
    ] {
        let agent = Agent::bind().await;
        let daemon = Daemon::start(&listener(&[dialled(&agent, keys)], "handshake_interval = \"5m\"")).await;
        daemon.until_named("rbkit.handshake").await;
        agent.until_started(started).await;
        agent.publish(&message(0)).await;
        until_message(&daemon, 0).await;
        let mut commands = agent.commands();
        let clock = commands.iter().position(|command| command.starts_with("use_"));
        let start = commands.iter().position(|command| command == "start_cpu_profiling");
        assert!(clock <= start, "the clock is for the next start: {commands:?}");
        let mut wanted = started.to_vec();
        commands.sort();
        wanted.sort_unstable();
        assert_eq!(commands, wanted, "{keys}");
        daemon.stop().await;
        agent.assert_no_faults();
        let mut commands = agent.commands().split_off(started.len());
        let mut wanted = stopped.to_vec();
        commands.sort();
        wanted.sort_unstable();
        assert_eq!(commands, wanted, "{keys}");
    }
}

/// A profile that another client has switched on is not switched off.
#[tokio::test]
async fn a_profile_that_was_on_before_stays_on() {
    let agent = Agent::bind().await;
    agent.set_handshake(&wire::handshake(4_711, true, true));
    let daemon = Daemon::start(&listener(&[dialled(&agent, "")], "")).await;
    daemon.until_named("rbkit.handshake").await;
    agent.until_subscribed().await;
    daemon.stop().await;
    assert_eq!(agent.commands(), [""; 0]);
}

/// A stopping daemon waits for a limited time for an agent that does not answer.
#[tokio::test]
async fn an_agent_that_does_not_answer_does_not_block_the_shutdown() {
    let agent = Agent::bind().await;
    let daemon = daemon_for(&agent, "[limits]\nshutdown_grace = \"1s\"").await;
    agent.until_started(MEMORY).await;
    agent.publish(&message(0)).await;
    until_message(&daemon, 0).await;
    // No request is outstanding: the handshake that follows the command is answered, too. The daemon would wait for its reply for
    // longer than the grace period.
    let is_last = || agent.requests().ends_with(&[MEMORY[0].to_owned(), "handshake".to_owned()]);
    let is_answered = || agent.answered() as usize == agent.asked("handshake");
    until("the last handshake is answered", || (is_last() && is_answered()).then_some(())).await;
    agent.set_manners(Manners::Mute);
    daemon.stop().await;
    // The agent reads what the daemon has sent on its own task.
    agent.until_asked("stop_memory_profile", 1).await;
    assert_eq!(agent.commands(), ["start_memory_profile", "stop_memory_profile"]);
}

/// The outstanding request gets no reply, so the stop command goes over another connection, within the grace period.
#[tokio::test]
async fn a_profile_is_switched_off_although_a_request_is_outstanding_when_the_daemon_stops() {
    let agent = Agent::bind().await;
    let daemon = daemon_for(&agent, "request_timeout = \"300ms\"\nhandshake_interval = \"100ms\"").await;
    agent.until_started(MEMORY).await;
    agent.publish(&message(0)).await;
    until_message(&daemon, 0).await;
    agent.set_manners(Manners::Mute);
    let (handshakes, connections) = (agent.asked("handshake"), agent.rep_connections());
    agent.until_asked("handshake", handshakes + 1).await;
    let recover = async {
        until("another request connection", || (agent.rep_connections() > connections).then_some(())).await;
        agent.set_manners(Manners::Answer);
    };
    tokio::join!(daemon.stop(), recover);
    agent.assert_no_faults();
    assert_eq!(agent.commands(), ["start_memory_profile", "stop_memory_profile"]);
}

/// The same with an agent that never answers again: the grace period is shorter than the time limit of the outstanding request.
#[tokio::test]
async fn a_profile_is_switched_off_within_a_grace_period_that_is_shorter_than_an_outstanding_request() {
    let agent = Agent::bind().await;
    let limits = "handshake_interval = \"100ms\"\n[limits]\nshutdown_grace = \"1s\"";
    let daemon = daemon_for(&agent, limits).await;
    agent.until_started(MEMORY).await;
    agent.publish(&message(0)).await;
    until_message(&daemon, 0).await;
    agent.set_manners(Manners::Mute);
    let handshakes = agent.asked("handshake");
    agent.until_asked("handshake", handshakes + 1).await;
    daemon.stop().await;
    agent.until_asked("stop_memory_profile", 1).await;
    assert_eq!(agent.commands(), ["start_memory_profile", "stop_memory_profile"]);
}

/// The agent sends its queue once per second, so events of the last second arrive after the stop command.
#[tokio::test]
async fn events_that_are_sent_after_the_stop_command_are_received() {
    let agent = Agent::bind().await;
    let daemon = daemon_for(&agent, "flush_wait = \"2s\"").await;
    agent.until_started(MEMORY).await;
    agent.publish(&message(0)).await;
    until_message(&daemon, 0).await;
    let flush = async {
        agent.until_asked("stop_memory_profile", 1).await;
        tokio::time::sleep(QUEUE_TIME).await;
        agent.publish(&message(1)).await;
    };
    let (stopped, ()) = tokio::join!(daemon.stop(), flush);
    assert_eq!(of_message(&stopped.events, 1).len(), 1);
    assert!(crate::live::losses(&stopped.events).is_empty());
}

/// The log says when a process is connected, and which profile is left on because the process does not answer.
#[tokio::test]
async fn the_log_names_a_process_that_is_connected_and_a_profile_that_is_left_on() {
    let agent = Agent::bind().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tributary.toml");
    let agents = [dialled(&agent, ", enable = [\"memory_profile\"]")];
    let options = "request_timeout = \"200ms\"\nhandshake_interval = \"100ms\"";
    let rest = "[limits]\nshutdown_grace = \"1s\"\n[admin]\nlisten = \"\"\n[sinks.none]\ntype = \"discard\"\n";
    std::fs::write(&path, listener(&agents, options) + rest).unwrap();
    let binary = Binary::start(tributary(&["run", "--config", path.to_str().unwrap()]));
    agent.until_started(MEMORY).await;
    agent.until_asked("handshake", 3).await;
    agent.set_manners(Manners::Mute);
    binary.signal("TERM");
    let ended = tokio::task::spawn_blocking(|| binary.end()).await.unwrap();
    let publish = agent.publish.to_string();
    let is_connected = |line: &str| line.contains("INFO connected") && line.contains(&publish);
    assert!(ended.stderr.lines().any(is_connected), "{}", ended.stderr);
    let left_on = ended.line("left on");
    assert!(left_on.contains("WARN") && left_on.contains("stop_memory_profile"), "{left_on}");
    assert!(left_on.contains(&agent.request.to_string()), "{left_on}");
}

#[tokio::test]
async fn dumps_and_garbage_collections_are_requested_at_their_intervals_only() {
    let agent = Agent::bind().await;
    let keys = ", snapshot_interval = \"1s\", gc_interval = \"1s\"";
    let daemon = Daemon::start(&listener(&[dialled(&agent, keys)], "")).await;
    agent.until_asked("objectspace_snapshot", 2).await;
    agent.until_asked("trigger_gc", 2).await;
    daemon.stop().await;
    agent.assert_no_faults();
    assert!(agent.commands().iter().all(|command| ["objectspace_snapshot", "trigger_gc"].contains(&command.as_str())));
}

/// A collector also receives the dumps that others request: a new id closes the open dump.
#[tokio::test]
async fn incomplete_dumps_are_reported_when_the_next_begins_and_at_the_end() {
    let agent = Agent::bind().await;
    let daemon = daemon_for(&agent, "").await;
    agent.until_started(MEMORY).await;
    agent.publish(&wire::collection(0, &[wire::dump(1, 7, 10, 3), wire::dump(2, 4, 20, 2)])).await;
    agent.publish(&wire::collection(1, &[wire::dump(2, 4, 22, 2)])).await;
    agent.publish(&wire::collection(2, &[wire::dump(3, 9, 40, 1), wire::gc_start()])).await;
    daemon.until_named("rbkit.gc.start").await;
    let stopped = daemon.stop().await;
    assert_eq!(gaps(&stopped.events), [4, 8]);
    let complete = named(&stopped.events, "rbkit.heap.dump");
    assert_eq!(complete.len(), 1);
    let about = &complete[0]["attributes"];
    assert_eq!((&about["rbkit.dump.id"], &about["rbkit.dump.object_count"]), (&2.into(), &4.into()));
}
