//! `tributary profile` and `tributary heap` of Ruby processes: directly, and through a running daemon.

use std::future::pending;

use crate::live::binary::{Binary, Ended, tributary};
use crate::live::{Daemon, within};
use crate::rbkit_support::listener;
use crate::rbkit_support::process::Running;
use tokio::task::{JoinHandle, spawn_blocking};
use tributary::simulate::Amount;
use tributary::simulate::rbkit::{Options, Plan, RbkitDialect, Report, SimulatedProcess};

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";
/// The samples of a process that ends.
const SAMPLES: u64 = 2_000;

/// A process that ends when it has published [`SAMPLES`] events.
async fn ending() -> (Options, JoinHandle<std::io::Result<Report>>) {
    let process = SimulatedProcess::bind(Running::any()).await.unwrap();
    let options = process.options();
    let plan = Plan { amount: Amount::Events(SAMPLES), rate: Some(4_000), seed: 5 };
    (options, tokio::spawn(process.run(plan, pending())))
}

/// The command with the addresses of a process.
fn direct(command: &str, options: &Options, arguments: &[&str]) -> Binary {
    let (publish, request) = (options.publish.to_string(), options.request.to_string());
    Binary::start(tributary(&[&[command, "ruby", &publish, "--request", &request], arguments].concat()))
}

async fn end(binary: Binary) -> Ended {
    spawn_blocking(move || binary.end()).await.unwrap()
}

/// The sum of folded stacks.
fn folded(text: &str) -> u64 {
    text.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// The objects in the row of totals.
fn total(table: &str) -> u64 {
    let row = table.lines().find(|line| line.ends_with("total")).unwrap_or_else(|| panic!("{table}"));
    row.split_whitespace().next().unwrap().parse().unwrap()
}

async fn daemon(keys: &str, options: &str, process: &Running) -> Daemon {
    let daemon = Daemon::start(&format!("{ADMIN}{}", listener(&[process.dialled(keys)], options))).await;
    daemon.until_named("rbkit.handshake").await;
    daemon
}

/// A command for the agent of the daemon.
fn through(daemon: &Daemon, command: &str, arguments: &[&str]) -> Binary {
    let admin = daemon.server.admin_address().unwrap().to_string();
    Binary::start(tributary(&[&[command, "test:0", "--admin", &admin], arguments].concat()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_profile_early_and_shows_every_sample_so_far() {
    let (options, process) = ending().await;
    let profile = direct("profile", &options, &["--for", "1h", "--as", "folded"]);
    let report = within("the process ends", process).await.unwrap().unwrap();
    profile.signal("INT");
    let ended = end(profile).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!((folded(&ended.stdout), report.received.faults()), (SAMPLES, 0), "{}", ended.stderr);
    ended.line("profiling ");
    ended.line("2000 samples of cpu");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_is_switched_off_when_its_time_is_over() {
    let process = Running::start(Running::any()).await;
    let ended = end(direct("profile", &process.options(), &["--for", "3s"])).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // Not a terminal: the default is a flame graph.
    assert!(ended.stdout.contains("<svg") && ended.stdout.contains("Shop::"), "{}", ended.stdout);
    let received = process.end().await;
    assert_eq!(received.faults(), 0, "{received:?}");
    assert_eq!((received.requests["start_cpu_profiling"], received.requests["stop_cpu_profiling"]), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_cannot_be_profiled_says_why() {
    let released = Running::start(Options { dialect: RbkitDialect::V0110, ..Running::any() }).await;
    let ended = end(direct("profile", &released.options(), &["--for", "1h"])).await;
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    assert!(ended.last_words().contains("which has no CPU profile"), "{}", ended.stderr);
    let heap = end(direct("heap", &released.options(), &[])).await;
    assert_eq!((heap.code, total(&heap.stdout)), (Some(0), 2_000), "{}", heap.stderr);
    assert_eq!(released.end().await.faults(), 0);
    let refused = end(Binary::start(tributary(&["profile", "ruby", "127.0.0.1:1"]))).await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.last_words().contains("cannot connect to 127.0.0.1:1"), "{}", refused.stderr);
    for wrong in [
        &["profile", "ruby", "5555"][..],
        &["profile", "ruby", "a:65535"],
        &["profile"],
        &["heap", "--after", "1s", "x"],
    ] {
        assert_eq!(end(Binary::start(tributary(wrong))).await.code, Some(2), "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heaps_are_dumped_and_compared() {
    let process = Running::start(Options { heap_objects: 2_500, ..Running::any() }).await;
    let heap = end(direct("heap", &process.options(), &[])).await;
    assert_eq!((heap.code, total(&heap.stdout)), (Some(0), 2_500), "{}", heap.stderr);
    heap.line("2500 objects");
    let compared = end(direct("heap", &process.options(), &["--compare", "--after", "10ms"])).await;
    assert_eq!(compared.code, Some(0), "{}", compared.stderr);
    assert!(
        compared.stdout.contains("\nA: dump 2 of") && compared.stdout.contains("\nB: dump 3 of"),
        "{}",
        compared.stdout
    );
    let received = process.end().await;
    assert_eq!((received.requests["objectspace_snapshot"], received.faults()), (3, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_through_a_daemon_switches_the_process_on_and_off() {
    let process = Running::start(Running::any()).await;
    let daemon = daemon("", "", &process).await;
    let ended = end(through(&daemon, "profile", &["--for", "3s", "--as", "top"])).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("Shop::Cart#total"), "{}", ended.stdout);
    let unknown = daemon.server.admin_address().unwrap().to_string();
    let unknown = end(Binary::start(tributary(&["profile", "test:7", "--admin", &unknown]))).await;
    assert_eq!(unknown.code, Some(1));
    assert!(
        unknown.stderr.contains("no agent \"test:7\"") && unknown.stderr.contains("there is test:0"),
        "{}",
        unknown.stderr
    );
    daemon.stop().await;
    let received = process.end().await;
    assert_eq!((received.requests["start_cpu_profiling"], received.requests["stop_cpu_profiling"]), (1, 1));
    assert_eq!(received.faults(), 0, "{received:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_that_is_on_stays_on() {
    let process = Running::start(Running::any()).await;
    let daemon = daemon(", enable = [\"cpu_profile\"]", "", &process).await;
    daemon.until_named("rbkit.cpu").await;
    let ended = end(through(&daemon, "profile", &["--for", "3s", "--as", "folded"])).await;
    assert!(ended.code == Some(0) && folded(&ended.stdout) > 0, "{}", ended.stderr);
    assert_eq!(daemon.server.rbkit("test").unwrap().agents()[0].cpu_profile, Some(true));
    daemon.stop().await;
    let received = process.end().await;
    assert_eq!((received.requests["start_cpu_profiling"], received.requests["stop_cpu_profiling"]), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn heaps_through_a_daemon_are_those_of_objects_or_of_sums() {
    for heap in ["objects", "summary", "both"] {
        let process = Running::start(Options { heap_objects: 2_500, ..Running::any() }).await;
        let daemon = daemon("", &format!("heap = \"{heap}\""), &process).await;
        let table = end(through(&daemon, "heap", &[])).await;
        assert_eq!((table.code, total(&table.stdout)), (Some(0), 2_500), "{heap}: {}", table.stderr);
        let compared = end(through(&daemon, "heap", &["--compare", "--after", "10ms"])).await;
        assert_eq!(compared.code, Some(0), "{heap}: {}", compared.stderr);
        assert!(compared.stdout.contains("\nB: dump 3 of process"), "{heap}: {}", compared.stdout);
        assert_eq!(compared.stdout.contains("sums only"), heap == "summary", "{}", compared.stdout);
        daemon.stop().await;
        assert_eq!(process.end().await.faults(), 0);
    }
}
