//! Harm to a traced program before it runs that the collector must never cause. Each of these aborted, hung or silenced
//! the program of a real agent when a collector behaved differently.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use crate::bytefrog_support::agent::{Agent, Connection};
use crate::bytefrog_support::configuration::{self, CollectorMessage};
use crate::bytefrog_support::{daemon, listener, recording, text, wire};
use crate::live::{Daemon, until};
use serde_json::Value;
use tributary::config::Config;
use tributary::protocol::bytefrog::PLATFORM;

/// The values of the configurations named `two-packages`, which real agents accepted.
const TWO_PACKAGES: &str = r#"
agent_buffer = "4MiB"
data_connections = 2
heartbeat_interval = "1s"
exclusions = ["^(java|javax|jdk|sun|com/sun)/", ".*"]
inclusions = ["^com/example/größe/[^/]+$", "^com/example/shop/[^/]+$"]
"#;

/// The whole answer to a hello: type, length, body.
async fn answer(daemon: &Daemon, version: u8) -> (Agent, Vec<u8>) {
    let agent = Agent::connect(&daemon.server, version).await;
    let received = agent.control.received().bytes;
    let body = configuration::body(version, &received).unwrap().to_vec();
    (agent, body)
}

fn recorded(name: &str) -> Vec<u8> {
    fs::read(recording::directory().join("configuration").join(name)).unwrap()
}

/// Waits until the daemon has handled what was sent before: it has answered another agent since.
async fn settle(daemon: &Daemon) {
    for _ in 0..3 {
        let mut other = Agent::connect(&daemon.server, 4).await;
        other.control.end().await;
        other.control.until_closed().await;
    }
}

#[tokio::test]
async fn a_version_1_configuration_is_the_blob_that_real_agents_accepted() {
    let daemon = daemon(TWO_PACKAGES).await;
    let (agent, body) = answer(&daemon, 1).await;
    let mut want = recorded("v1-two-packages.ser");
    want[0xe8] = agent.configuration.run;
    assert_eq!(body, want);
}

#[tokio::test]
async fn a_configuration_of_later_versions_has_all_seven_fields_and_they_are_integers_and_lists() {
    let daemon = daemon(TWO_PACKAGES).await;
    for version in 2..=4 {
        let (agent, body) = answer(&daemon, version).await;
        let mut want: Value = serde_json::from_slice(&recorded("v2-v3-v4-two-packages.json")).unwrap();
        want["runId"] = agent.configuration.run.into();
        let got: Value = serde_json::from_str(&text::read(&body)).unwrap();
        assert_eq!(got, want, "version {version}");
    }
}

#[tokio::test]
async fn the_defaults_suit_every_agent() {
    let daemon = daemon("").await;
    for version in 1..=4 {
        let configuration = Agent::connect(&daemon.server, version).await.configuration;
        assert!(configuration.buffer_bytes >= 4 << 20, "64 threads at once must not lock each other out");
        assert!((100..=5_000).contains(&configuration.heartbeat_millis), "0 floods, and an exit takes so long");
        assert!((1..=64).contains(&configuration.senders), "without a sender the program hangs");
        assert_eq!(configuration.retries, 5);
        let excluded = configuration.exclusions.join(" ");
        for package in ["java", "javax", "jdk", "sun", "com/sun"] {
            assert!(excluded.contains(package), "an agent that instruments {package} re-enters itself and hangs");
        }
    }
}

#[test]
fn values_that_would_harm_an_agent_are_errors_in_the_configuration() {
    let wrong = [
        "heartbeat_interval = \"0s\"",
        "heartbeat_interval = \"99ms\"",
        "heartbeat_interval = \"6s\"",
        "agent_buffer = \"639B\"",
        "data_connections = 0",
        "data_connections = 65",
        "start = \"later\"",
        "calls = \"none\"",
        "order = \"time\"",
    ];
    for line in wrong {
        let errors = Config::parse("test", &listener(line)).expect_err(line).to_string();
        assert!(errors.contains(line.split(' ').next().unwrap()), "{line}: {errors}");
    }
}

/// An agent compiles the expressions before `main`, where an error would harm the program.
#[test]
fn an_expression_that_java_cannot_compile_is_an_error_with_its_position() {
    let wrong = [
        ("exclusions = [\".*\", \"(\"]", "expression 2 of `exclusions`, character 1: `(` is not closed"),
        ("exclusions = [\"*\"]", "expression 1 of `exclusions`, character 1: `*` repeats nothing"),
        ("inclusions = [\"^com/[a-\"]", "expression 1 of `inclusions`, character 6: `[` is not closed"),
        ("inclusions = ['a\\']", "expression 1 of `inclusions`, character 2: `\\` stands at the end"),
    ];
    for (line, expected) in wrong {
        let errors = Config::parse("test", &listener(line)).expect_err(line).to_string();
        assert!(errors.contains(expected) && errors.contains("test:"), "{line}: {errors}");
    }
    let valid = "exclusions = ['.*']\ninclusions = ['^com/example/(?i:shop|\\QA[\\E)/[^/\\]]+$']";
    Config::parse("test", &listener(valid)).unwrap();
}

/// An agent that instruments the platform's own classes re-enters itself. Exclusions of other
/// classes do not allow that.
#[tokio::test]
async fn the_platforms_classes_are_excluded_whatever_the_operator_excludes() {
    for list in ["[]", "[\"^org/example/\"]", "[\"^com/github/javaparser/\"]", "[\".*Test$\"]", "[\"^java/\"]"] {
        let daemon = daemon(&format!("exclusions = {list}")).await;
        let excluded = Agent::connect(&daemon.server, 4).await.configuration.exclusions;
        assert!(excluded.contains(&PLATFORM.to_owned()), "{list}: {excluded:?}");
    }
}

/// A data connection may carry only its hello while the program runs, and a trace ends if one is closed.
#[test]
fn by_default_an_idle_connection_stays_open() {
    let config = Config::parse("test", &listener("")).unwrap().config;
    assert_eq!(config.listeners[0].options.idle_timeout, Duration::ZERO);
}

/// Agents of version 1 read the configuration with one plain read. On loopback one write arrives in one piece; of two
/// writes, a waiting reader may read the first alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_configuration_goes_out_in_one_write_with_its_length() {
    let inclusions: Vec<String> = (0..400).map(|number| format!("\"^org/example/shop{number}/[^/]+$\"")).collect();
    let daemon = daemon(&format!("inclusions = [{}]", inclusions.join(", "))).await;
    for version in [1, 4].repeat(50) {
        let agent = Agent::connect(&daemon.server, version).await;
        let received = agent.control.received();
        let whole = configuration::body(version, &received.bytes).unwrap().len() + if version == 1 { 5 } else { 3 };
        assert!(whole > 10_000);
        assert!(received.reads[0] >= whole, "the first read gives {} bytes of {whole}", received.reads[0]);
    }
}

#[tokio::test]
async fn every_version_and_a_project_hello_is_configured_and_started_immediately() {
    let daemon = daemon("").await;
    for version in 1..=4 {
        let agent = Agent::connect(&daemon.server, version).await;
        agent.until_message(&CollectorMessage::Start).await;
    }
    let control = Connection::open(&daemon.server).await;
    let agent = Agent::send_hello(control, 4, &wire::project_hello(-42)).await;
    agent.until_message(&CollectorMessage::Start).await;
    let is_of_project = |event: &Value| event["resource"]["bytefrog.project.id"] == -42;
    daemon.until("the project is known", |events| events.iter().any(is_of_project)).await;
}

#[tokio::test]
async fn a_hello_that_comes_byte_by_byte_is_a_hello() {
    let daemon = daemon("").await;
    let mut control = Connection::open(&daemon.server).await;
    let hello = wire::project_hello(7);
    for (count, byte) in (1..).zip(&hello[..5]) {
        control.send(&[*byte]).await;
        until("it is read", || (daemon.counters().bytes_in == count).then_some(())).await;
    }
    assert_eq!(control.received().bytes, [0; 0], "nothing is messages_received before the hello is there");
    Agent::send_hello(control, 4, &hello[5..]).await;
}

#[tokio::test]
async fn start_can_wait_for_a_command_and_nothing_else_is_sent_before() {
    let daemon = daemon("start = \"on_command\"").await;
    for version in [1, 4] {
        let mut agent = Agent::connect(&daemon.server, version).await;
        for _ in 0..3 {
            agent.control.send(&wire::heartbeat(b'I')).await;
        }
        settle(&daemon).await;
        assert!(
            matches!(agent.messages_received()[..], [CollectorMessage::Configuration(_)]),
            "{:?}",
            agent.messages_received()
        );
        assert!(!agent.control.received().is_closed, "it is waiting for its start");
    }
}

/// `suspend` immediately after `start` stops the controller of the agent, and before `start` it has no effect.
#[tokio::test]
async fn a_suspended_start_suspends_once_the_agent_has_settled() {
    let daemon = daemon("start = \"suspended\"\ndata_connections = 2").await;
    let mut agent = Agent::connect(&daemon.server, 1).await;
    agent.until_message(&CollectorMessage::Start).await;
    let is_untouched = |agent: &Agent| {
        matches!(agent.messages_received()[..], [CollectorMessage::Configuration(_), CollectorMessage::Start])
    };
    agent.control.send(&wire::heartbeat(b'I')).await;
    settle(&daemon).await;
    assert!(is_untouched(&agent), "there is no data connection yet");
    let _first = agent.data(&daemon.server).await;
    agent.control.send(&wire::heartbeat(b'T')).await;
    settle(&daemon).await;
    assert!(is_untouched(&agent), "one data connection of two is there");
    let _second = agent.data(&daemon.server).await;
    settle(&daemon).await;
    assert!(is_untouched(&agent), "nothing shows that its buffers follow commands");
    agent.control.send(&[wire::class_ignored("demo/Main"), wire::heartbeat(b'I')].concat()).await;
    settle(&daemon).await;
    assert!(is_untouched(&agent), "it does not report that it traces");
    agent.control.send(&wire::heartbeat(b'T')).await;
    agent.until_message(&CollectorMessage::Suspend).await;
    agent.control.send(&wire::heartbeat(b'S')).await;
    settle(&daemon).await;
    assert_eq!(agent.messages_received()[1..], [CollectorMessage::Start, CollectorMessage::Suspend]);
}

#[tokio::test]
async fn live_runs_have_ids_of_their_own_that_java_reads_unchanged() {
    let daemon = daemon("reserved_runs = 0").await;
    let mut agents = Vec::new();
    for number in 0..127_u8 {
        agents.push(Agent::connect(&daemon.server, 1 + number % 4).await);
    }
    let runs: BTreeSet<u8> = agents.iter().map(|agent| agent.configuration.run).collect();
    assert!(runs.len() == 127 && runs.last() <= Some(&127), "{runs:?}");
    let mut gone = agents.remove(77);
    gone.control.end().await;
    gone.control.until_closed().await;
    daemon.until_named("bytefrog.run.ended").await;
    let next = Agent::connect(&daemon.server, 1).await;
    assert_eq!(next.configuration.run, gone.configuration.run, "the only number that is free");
}

/// A data connection of the run before may still be on its way.
#[tokio::test]
async fn the_id_of_a_run_that_has_ended_is_not_reused_immediately() {
    let daemon = daemon("").await;
    let mut seen = BTreeSet::new();
    for _ in 0..100 {
        let mut agent = Agent::connect(&daemon.server, 1).await;
        assert!(seen.insert(agent.configuration.run), "{} again, after {seen:?}", agent.configuration.run);
        agent.control.end().await;
        agent.control.until_closed().await;
    }
}

/// Any refusal would abort the program, and without a data connection it would hang.
#[tokio::test]
async fn an_agent_without_a_run_id_is_configured_started_and_stopped_and_not_refused() {
    let daemon = daemon("reserved_runs = 0").await;
    let mut agents = Vec::new();
    for _ in 0..127 {
        agents.push(Agent::connect(&daemon.server, 1).await);
    }
    let mut data = Vec::new();
    for version in [1, 4] {
        let mut agent = Agent::connect(&daemon.server, version).await;
        agent.until_message(&CollectorMessage::Start).await;
        agent.control.send(&wire::heartbeat(b'I')).await;
        for _ in 0..agent.configuration.senders {
            data.push(agent.data(&daemon.server).await);
        }
        agent.control.send(&[wire::class_ignored("demo/Main"), wire::heartbeat(b'T')].concat()).await;
        agent.until_message(&CollectorMessage::Stop).await;
        assert_eq!(
            agent.messages_received()[1..],
            [CollectorMessage::Start, CollectorMessage::Stop],
            "version {version}"
        );
        agent.control.send(&wire::heartbeat(b'X')).await;
        agents.push(agent);
    }
    let totals = daemon.stop().await.totals;
    assert_eq!(totals.listeners[0].refused, 0);
}

/// An agent connects as soon as it has its configuration, and its data hello may be handled before the run is
/// registered.
#[tokio::test]
async fn a_data_hello_may_come_before_its_run_is_known() {
    for attempt in 1.. {
        let daemon = daemon("").await;
        let before = Agent::connect(&daemon.server, 1).await;
        let next = before.configuration.run + 1;
        let mut data = Connection::open(&daemon.server).await;
        data.send(&wire::data_hello(next)).await;
        let late = Instant::now();
        let agent = Agent::connect(&daemon.server, 1).await;
        assert_eq!(agent.configuration.run, next, "numbers go round robin");
        let received = data.until_received(1).await;
        if received == [31] {
            return;
        }
        // On a busy machine the run may be registered after the wait has ended.
        assert!(late.elapsed() > Duration::from_millis(400) && attempt < 20, "{received:02x?}");
    }
}

#[tokio::test]
async fn a_data_hello_for_a_run_that_is_never_opened_is_refused_after_half_a_second() {
    let daemon = daemon("").await;
    let mut unregistered = Connection::open(&daemon.server).await;
    let begin = Instant::now();
    unregistered.send(&[wire::data_hello(99), wire::entry(1, 0, 1, 0)].concat()).await;
    unregistered.until_refused().await;
    assert!(begin.elapsed() >= Duration::from_millis(450), "refused after {:?}", begin.elapsed());
    unregistered.end().await;
    daemon.until_all_closed().await;
    let stopped = daemon.stop().await;
    let names: Vec<_> = stopped.events.iter().map(|event| event["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["tributary.loss"], "no run comes of it");
    assert_eq!(stopped.events[0]["loss"]["reason"], "unauthorized");
    assert_eq!(stopped.events[0]["loss"]["bytes"], 17);
}

#[tokio::test]
async fn a_data_hello_from_another_address_than_that_of_the_agent_is_refused() {
    let daemon = daemon("").await;
    let agent = Agent::connect(&daemon.server, 1).await;
    let mut unregistered = Connection::open_from([127, 0, 0, 2], &daemon.server).await;
    unregistered.send(&wire::data_hello(agent.configuration.run)).await;
    unregistered.until_refused().await;
    agent.data(&daemon.server).await;
    let is_reported = |event: &Value| event["loss"]["reason"] == "unauthorized" && event["loss"]["bytes"] == 2;
    daemon.until("the loss", |events| events.iter().any(is_reported)).await;
}

#[tokio::test]
async fn no_more_data_connections_are_accepted_than_configured() {
    let daemon = daemon("data_connections = 2").await;
    let agent = Agent::connect(&daemon.server, 1).await;
    let _data = [agent.data(&daemon.server).await, agent.data(&daemon.server).await];
    let mut third = Connection::open(&daemon.server).await;
    third.send(&wire::data_hello(agent.configuration.run)).await;
    third.until_refused().await;
}
