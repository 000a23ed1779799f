//! Simulated Ruby processes and the daemon: both count the same, and the process receives nothing that it should not.

use std::future::pending;
use std::net::SocketAddr;

use crate::live::binary::{Binary, run, tributary};
use crate::live::{Daemon, Stopped, until, within};
use crate::rbkit_support::compare::named;
use crate::rbkit_support::process::Running;
use crate::rbkit_support::{listener, wire};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tributary::protocol::rbkit::{AgentStatus, RbkitCommand};
use tributary::simulate::Amount;
use tributary::simulate::rbkit::{Options, Plan, RbkitDialect, Received, Report, SimulatedProcess};

const ANY: &str = "127.0.0.1:0";
/// A handshake interval so short that changes of the profiles are seen.
const CURIOUS: &str = "handshake_interval = \"100ms\"";

async fn process(dialect: RbkitDialect, heap_objects: u32) -> SimulatedProcess {
    let any: SocketAddr = ANY.parse().unwrap();
    SimulatedProcess::bind(Options { publish: any, request: any, dialect, heap_objects, ..Options::default() })
        .await
        .unwrap()
}

fn dialled(process: &SimulatedProcess, keys: &str) -> String {
    let Options { publish, request, .. } = process.options();
    format!("{{ publish = \"{publish}\", request = \"{request}\"{keys} }}")
}

fn plan(events: u64) -> Plan {
    Plan { amount: Amount::Events(events), rate: None, seed: 5 }
}

/// A process that sends this many events, and a daemon with these keys for it.
async fn observed(dialect: RbkitDialect, keys: &str, events: u64) -> (Report, Stopped) {
    let process = process(dialect, 2_500).await;
    let daemon = Daemon::start(&listener(&[dialled(&process, keys)], CURIOUS)).await;
    let report = within("the process ends", process.run(plan(events), pending())).await.unwrap();
    daemon.until_all_closed().await;
    (report, daemon.stop().await)
}

/// Asserts that the daemon has the events that the process counts, and sent nothing that it should not.
fn assert_adds_up(report: &Report, stopped: &Stopped) {
    let Stopped { events, totals } = stopped;
    assert!(crate::live::losses(events).is_empty(), "{totals:?}");
    assert_eq!(events.len() as u64, report.sent.events, "{totals:?}");
    assert_eq!(totals.listeners[0].bytes_in, report.sent.bytes, "{totals:?}");
    assert_eq!(report.received.faults(), 0, "{report:?}");
    let mut counters: Vec<_> = events
        .iter()
        .filter(|event| event["name"] != "rbkit.handshake")
        .map(|event| event["origin"]["sequence"].as_u64().unwrap())
        .collect();
    assert!(counters.is_sorted());
    counters.dedup();
    assert!(counters.first() == Some(&0) && counters.windows(2).all(|pair| pair[1] == pair[0] + 1));
}

#[tokio::test]
async fn all_dialects_add_up_with_every_profile() {
    for dialect in RbkitDialect::ALL {
        let memory = ", enable = [\"memory_profile\"]";
        let (report, stopped) = observed(dialect, memory, 6_000).await;
        assert_adds_up(&report, &stopped);
        let count = |name: &str| named(&stopped.events, name).len();
        let is_spec = dialect == RbkitDialect::Spec21;
        assert_eq!(is_spec, count("rbkit.object.created") == 0, "{}", dialect.as_str());
        assert_eq!(is_spec, count("rbkit.allocations") > 0, "{}", dialect.as_str());
        assert!(count("rbkit.gc.end_sweep") > 0 && count("rbkit.gc.heap_live_slots") > 0, "{}", dialect.as_str());
        assert_eq!((count("rbkit.cpu"), count("rbkit.gc.heap_swept_slots")), (0, 0));
        // The released gem has no CPU profile.
        if dialect != RbkitDialect::V0110 {
            let cpu = ", enable = [\"cpu_profile\"], clock = \"wall\"";
            let (report, stopped) = observed(dialect, cpu, 2_000).await;
            assert_adds_up(&report, &stopped);
            assert_eq!(named(&stopped.events, "rbkit.cpu").len(), 2_000);
            assert_eq!(report.received.requests["use_wall_time"], 1);
        }
    }
}

#[tokio::test]
async fn heap_dumps_have_all_their_objects_in_all_dialects() {
    let mut observations = JoinSet::new();
    for dialect in RbkitDialect::ALL {
        observations.spawn(observed(dialect, ", snapshot_interval = \"1s\"", 2_501));
    }
    for (report, stopped) in observations.join_all().await {
        assert_adds_up(&report, &stopped);
        let objects = named(&stopped.events, "rbkit.heap.object");
        assert_eq!(objects.len(), 2_500);
        let dumps = named(&stopped.events, "rbkit.heap.dump");
        assert_eq!(dumps.len(), 1);
        assert_eq!(dumps[0]["attributes"]["rbkit.dump.object_count"], 2_500);
        assert!(objects.iter().any(|object| object["attributes"]["code.line.number"].is_u64()));
    }
}

/// What a process with this seed publishes to a collector that switches both profiles on, with zeros instead of all times.
async fn published(seed: u64, dialect: RbkitDialect) -> Vec<u8> {
    let process = process(dialect, 10).await;
    let Options { publish, request, .. } = process.options();
    let collect = async {
        let mut requests = greeted(request, "REQ", "REP").await;
        let mut subscription = greeted(publish, "SUB", "PUB").await;
        for command in ["start_memory_profile", "start_cpu_profiling"] {
            requests.write_all(&wire::reply(command.as_bytes())).await.unwrap();
            let answer = &mut [0; 2 + 2 + 2];
            within("an answer", requests.read_exact(answer)).await.unwrap();
        }
        // Nothing is published without a subscription: the program begins with both profiles.
        subscription.write_all(&wire::frame(0, &[1])).await.unwrap();
        let mut published = Vec::new();
        within("the end", subscription.read_to_end(&mut published)).await.unwrap();
        published
    };
    let (report, published) = tokio::join!(process.run(Plan { seed, ..plan(20_000) }, pending()), collect);
    assert_eq!(report.unwrap().sent.events, 20_000);
    without_times(published)
}

/// Times are doubles of milliseconds since 1970, of the years 2004 to 2039.
fn without_times(mut bytes: Vec<u8>) -> Vec<u8> {
    for at in 0..bytes.len().saturating_sub(8) {
        if bytes[at..].starts_with(&[0xcb, 0x42]) && bytes[at + 2] >> 4 == 7 {
            bytes[at + 2..at + 9].fill(0);
        }
    }
    bytes
}

#[tokio::test]
async fn equal_seeds_give_equal_messages_but_for_their_times() {
    for dialect in RbkitDialect::ALL.into_iter().filter(|dialect| *dialect != RbkitDialect::V0110) {
        let [first, again, other] = [5, 5, 6].map(|seed| published(seed, dialect));
        let (first, again, other) = tokio::join!(first, again, other);
        assert!(first.len() > 500_000, "{} {}", dialect.as_str(), first.len());
        assert!(first == again, "{}", dialect.as_str());
        assert!(first != other, "{}", dialect.as_str());
    }
}

/// At a low rate each second brings a message.
#[tokio::test]
async fn a_stopping_daemon_switches_off_its_profiles() {
    let process = Running::start(Running::any()).await;
    let keys = ", enable = [\"memory_profile\", \"cpu_profile\"]";
    let daemon = Daemon::start(&listener(&[process.dialled(keys)], "")).await;
    daemon.until_named("rbkit.cpu").await;
    daemon.stop().await;
    let received = process.end().await;
    assert_eq!(received.faults(), 0, "{received:?}");
    for (start, stop) in
        [("start_memory_profile", "stop_memory_profile"), ("start_cpu_profiling", "stop_cpu_profiling")]
    {
        assert_eq!((received.requests[start], received.requests[stop]), (1, 1), "{received:?}");
    }
}

#[tokio::test]
async fn a_restarted_process_counts_from_zero() {
    let first = process(RbkitDialect::Master21Raw, 10).await;
    let addresses = first.options();
    let keys = ", enable = [\"memory_profile\"]";
    let daemon = Daemon::start(&listener(&[dialled(&first, keys)], "")).await;
    let mut sent = 0;
    for (seed, process) in [(1, Some(first)), (2, None)] {
        let process = match process {
            Some(process) => process,
            None => SimulatedProcess::bind(addresses).await.unwrap(),
        };
        let report = within("it ends", process.run(Plan { seed, ..plan(1_000) }, pending())).await.unwrap();
        assert_eq!(report.received.faults(), 0);
        sent += report.sent.events;
    }
    daemon.until_all_closed().await;
    let Stopped { events, .. } = daemon.stop().await;
    assert_eq!(named(&events, "rbkit.agent.restarted").len(), 1);
    assert_eq!(events.len() as u64, sent + 1);
    assert!(crate::live::losses(&events).is_empty());
}

/// A process in a container has the process id 1, and so has the one that replaces it.
async fn restarted_in_container(is_profiling: bool) -> Received {
    let any: SocketAddr = ANY.parse().unwrap();
    let options = Options { publish: any, request: any, pid: Some(1), ..Options::default() };
    let first = SimulatedProcess::bind(options).await.unwrap();
    let restarted = Options { is_profiling, ..first.options() };
    let keys = ", enable = [\"memory_profile\"]";
    let daemon = Daemon::start(&listener(&[dialled(&first, keys)], "")).await;
    within("the first process ends", first.run(plan(1_000), pending())).await.unwrap();
    let second = Running::start(restarted).await;
    daemon.until_named("rbkit.agent.restarted").await;
    daemon.stop().await;
    let received = second.end().await;
    assert_eq!(received.faults(), 0, "{received:?}");
    received
}

#[tokio::test]
async fn a_profile_that_we_switched_on_in_a_restarted_process_with_the_same_id_is_switched_off() {
    let received = restarted_in_container(false).await;
    let count = |request: &str| received.requests.get(request).copied().unwrap_or(0);
    assert_eq!((count("start_memory_profile"), count("stop_memory_profile")), (1, 1), "{received:?}");
}

#[tokio::test]
async fn a_profile_that_a_restarted_process_with_the_same_id_switched_on_itself_is_left_on() {
    let received = restarted_in_container(true).await;
    let count = |request: &str| received.requests.get(request).copied().unwrap_or(0);
    assert_eq!((count("start_memory_profile"), count("stop_memory_profile")), (0, 0), "{received:?}");
}

/// Waits until the daemon reports this of the profiles of its first process.
async fn until_profiles(daemon: &Daemon, memory: bool, cpu: bool) {
    let profiles = || daemon.server.rbkit("test").map(|processes| processes.agents().remove(0));
    let is_reported = |status: AgentStatus| (status.memory_profile, status.cpu_profile) == (Some(memory), Some(cpu));
    until("the profiles are reported", || profiles().is_some_and(is_reported).then_some(())).await;
}

#[tokio::test]
async fn the_status_of_a_process_follows_our_commands_without_waiting_for_the_next_handshake() {
    let process = Running::start(Running::any()).await;
    let keys = ", enable = [\"memory_profile\", \"cpu_profile\"]";
    let daemon = Daemon::start(&listener(&[process.dialled(keys)], "handshake_interval = \"1h\"")).await;
    until_profiles(&daemon, true, true).await;
    // When a command has been answered, the status shows its effect.
    let processes = daemon.server.rbkit("test").unwrap();
    processes.command(0, RbkitCommand::StopCpuProfiling).await.unwrap();
    assert_eq!(processes.agents()[0].cpu_profile, Some(false));
    processes.command(0, RbkitCommand::StartCpuProfiling).await.unwrap();
    assert_eq!(processes.agents()[0].cpu_profile, Some(true));
    daemon.stop().await;
    let received = process.end().await;
    assert_eq!(received.faults(), 0, "{received:?}");
}

/// A connection of this type of socket to that of a process.
async fn greeted(address: SocketAddr, socket: &str, of_process: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&wire::greeting(0)).await.unwrap();
    let mut greeting = [0; 64];
    within("the greeting", stream.read_exact(&mut greeting)).await.unwrap();
    stream.write_all(&wire::ready(socket)).await.unwrap();
    let mut ready = vec![0; wire::ready(of_process).len()];
    within("READY", stream.read_exact(&mut ready)).await.unwrap();
    stream
}

/// What the process counts when a collector sends these bytes and reads this many replies.
async fn faults_of(bytes: &[u8], answers: usize) -> Received {
    let process = Running::start(Running::any()).await;
    let mut stream = greeted(process.options().request, "REQ", "REP").await;
    stream.write_all(bytes).await.unwrap();
    let mut input = Vec::new();
    // Each reply is two frames.
    for _ in 0..2 * answers {
        while wire::split_frame(&input).is_none() {
            assert!(within("an answer", stream.read_buf(&mut input)).await.unwrap() > 0);
        }
        input = wire::split_frame(&input).unwrap().1.to_vec();
    }
    stream.shutdown().await.unwrap();
    within("the process closes", stream.read_to_end(&mut input)).await.unwrap();
    assert_eq!(input, [0; 0]);
    process.end().await
}

#[tokio::test]
async fn a_process_counts_the_faults_of_collectors() {
    let request = |body: &[u8]| [wire::frame(wire::MORE, b""), wire::frame(0, body)].concat();
    // It answers no requests any more.
    let empty = faults_of(&[request(b""), request(b"handshake")].concat(), 0).await;
    assert_eq!((empty.empty_requests, empty.faults()), (1, 1), "{empty:?}");
    let bare = faults_of(&[wire::frame(0, b"handshake"), request(b"handshake")].concat(), 1).await;
    assert_eq!((bare.undelimited, bare.faults()), (1, 1), "{bare:?}");
    let two = faults_of(&request(b"handshake").repeat(2), 2).await;
    assert_eq!((two.second_requests, two.faults()), (1, 1), "{two:?}");
    let unknown = faults_of(&request(b"HANDSHAKE"), 1).await;
    assert_eq!((unknown.unknown_requests, unknown.faults()), (1, 1), "{unknown:?}");
    let stop = faults_of(&request(b"stop_cpu_profiling"), 1).await;
    assert_eq!((stop.needless_stops, stop.faults()), (1, 1), "{stop:?}");
    let several = [wire::frame(wire::MORE, b""), wire::frame(wire::MORE, b"handshake\0junk"), wire::frame(0, b"more")];
    let several = faults_of(&several.concat(), 1).await;
    assert_eq!((several.requests.len(), several.faults()), (1, 0), "{several:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_prints_its_addresses_and_what_it_has_sent() {
    let arguments =
        ["simulate", "rbkit", "--publish", ANY, "--request", ANY, "--count", "1500", "--dialect", "spec-2.1"];
    let binary = Binary::start(tributary(&arguments));
    let line = binary.until_stderr("rbkit publishes on ");
    let mut addresses = line.split(' ').filter(|word| word.starts_with("127.0.0.1:"));
    let [publish, request] = [(), ()].map(|()| addresses.next().unwrap());
    let agent = format!("{{ publish = \"{publish}\", request = \"{request}\", enable = [\"memory_profile\"] }}");
    let daemon = Daemon::start(&listener(&[agent], "")).await;
    let ended = tokio::task::spawn_blocking(|| binary.end()).await.unwrap();
    daemon.until_all_closed().await;
    let stopped = daemon.stop().await;
    let sent = ended.sent();
    assert_eq!((&sent["protocol"], &sent["events"]), (&"rbkit".into(), &stopped.events.len().into()));
    assert_eq!(sent["bytes"], stopped.totals.listeners[0].bytes_in);
    assert_eq!(sent["requests"]["start_memory_profile"], 1);
    assert!(sent["faults"].as_object().unwrap().values().all(|faults| faults == 0), "{sent}");
}

#[test]
fn invalid_options_are_misuse() {
    for arguments in [&["--to", "127.0.0.1:1"][..], &["--connections", "2"], &["--dialect", "master"]] {
        let ended = run(&[&["simulate", "rbkit"][..], arguments].concat());
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
    }
}
