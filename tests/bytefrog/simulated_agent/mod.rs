//! The simulated Java agents, compared with an independent reader and collector.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed; the lint knows only test functions")]

mod collector;
mod harm;
mod walk;

use std::collections::HashSet;
use std::future::pending;
use std::io::ErrorKind;
use std::time::Duration;

use tokio::join;
use tributary::simulate::bytefrog::{Options, Program, run_alone};
use tributary::simulate::{AgentKind, Amount, Plan, run};

use collector::{Collector, PAUSE, START, STOP, SUSPEND, UNPAUSE, UNSUSPEND, configuration};
use walk::Message;

fn options(version: u8) -> Options {
    Options { version, ..Options::default() }
}

/// The messages of a program of `events` events, in the order in which its buffers are filled.
fn stream(seed: u64, options: Options, events: u64) -> Vec<u8> {
    let mut program = Program::new(seed, 0, options, 4 << 20);
    let mut bytes = Vec::new();
    let mut made = 0;
    for millis in 0.. {
        made += program.run((events - made).min(500), millis);
        let full: Vec<_> = program.take_full().collect();
        for buffer in full {
            bytes.extend_from_slice(&buffer.bytes);
            program.give_back(buffer);
        }
        if made == events {
            break;
        }
    }
    program.finish().for_each(|buffer| bytes.extend_from_slice(&buffer.bytes));
    bytes
}

fn kinds(messages: &[Message]) -> HashSet<u8> {
    messages.iter().map(|message| message.kind).collect()
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    for version in 1..=4 {
        let bytes = stream(7, options(version), 20_000);
        assert!(bytes == stream(7, options(version), 20_000));
        assert!(bytes != stream(8, options(version), 20_000));
    }
}

#[test]
fn each_version_sends_the_messages_of_its_agents() {
    for (version, expected) in [
        (1, [10, 11, 12, 20, 21, 22, 23, 50].as_slice()),
        (2, &[10, 11, 20, 21]),
        (3, &[11, 13, 14, 15, 20, 21]),
        (4, &[11, 13, 14, 15, 20, 21]),
    ] {
        let messages = walk::messages(&stream(1, options(version), 50_000), version);
        assert_eq!(kinds(&messages), expected.iter().copied().collect(), "version {version}");
    }
}

#[test]
fn numbers_are_complete_names_are_sent_and_calls_are_nested() {
    for version in 1..=4 {
        for in_order in [false, true] {
            for threads in [1, 4, 64] {
                let options = Options { in_order, threads, ..options(version) };
                let streams = [walk::messages(&stream(3, options, 10_000), version)];
                let numbered = walk::numbered(&streams);
                assert_eq!(numbered.len(), 10_000);
                walk::assert_complete(&numbered);
                walk::assert_mapped(&streams);
                let depth = walk::assert_nested(&numbered);
                assert!((5..48).contains(&depth), "{depth} calls deep");
            }
        }
    }
}

#[test]
fn real_agents_lose_the_order_and_an_ordered_one_keeps_it() {
    for version in 1..=4 {
        let early = |in_order| {
            let options = Options { in_order, ..options(version) };
            let messages = walk::messages(&stream(5, options, 30_000), version);
            let mut known = HashSet::new();
            let (mut unknown, mut backwards, mut last) = (0, 0, None);
            for message in &messages {
                if message.kind == 11 {
                    known.insert(message.method);
                }
                unknown += u32::from(message.kind == 20 && !known.contains(&message.method));
                if message.sequence.is_some() {
                    backwards += u32::from(message.sequence < last);
                    last = message.sequence;
                }
            }
            (unknown, backwards)
        };
        assert_eq!(early(true), (0, 0));
        let (unknown, backwards) = early(false);
        assert!(unknown > 10 && backwards > 20, "{unknown} names came late, {backwards} steps back");
    }
}

#[test]
fn threads_are_named_and_some_new_names_arrive_before_the_old() {
    let mut before = 0;
    for seed in 0..20 {
        let messages = walk::messages(&stream(seed, Options { threads: 16, ..options(1) }, 5_000), 1);
        let names: Vec<_> = messages.iter().filter(|message| message.kind == 10).collect();
        assert!(names.iter().any(|name| name.text == "main"));
        let threads: HashSet<_> = names.iter().map(|name| name.thread).collect();
        assert_eq!(threads.len(), 16);
        for thread in threads {
            let times = names.iter().filter(|name| name.thread == thread).map(|name| name.time);
            before += u32::from(!times.is_sorted());
        }
    }
    assert!(before > 10, "{before} threads");
}

#[test]
fn a_visit_follows_every_call_and_its_lines_are_those_of_its_method() {
    let messages = walk::messages(&stream(2, options(4), 50_000), 4);
    let lines: std::collections::HashMap<_, _> =
        messages.iter().filter(|message| message.kind == 13).map(|line| (line.location, line)).collect();
    let visits = messages.iter().filter(|message| message.kind == 14);
    assert!(visits.clone().all(|visit| lines[&visit.location].method == visit.method));
    let exits = messages.iter().filter(|message| message.kind == 21).count();
    let per_call = visits.count() as f64 / exits as f64;
    assert!((1.0..2.5).contains(&per_call), "{per_call} lines per call");
    assert!(lines.values().any(|line| line.value > 32_767), "pages have many lines");
}

/// The modes that heartbeats reported, without repetitions.
fn modes(collector: &Collector) -> String {
    let mut modes: Vec<_> = collector
        .messages_received
        .iter()
        .filter(|messages_received| messages_received.kind == 8)
        .map(|messages_received| char::from(messages_received.value as u8))
        .collect();
    modes.dedup();
    modes.into_iter().collect()
}

#[tokio::test]
async fn what_an_agent_sends_is_what_it_counts_in_every_version() {
    for version in 1..=4 {
        for connections in [1, 3] {
            let (to, collector) = Collector::bind(version).await;
            let conversation = async {
                let mut collector = collector.await;
                collector.start(connections).await;
                let streams = collector.finish().await;
                (collector, streams)
            };
            let ((sent, observations), (collector, streams)) =
                join!(run_alone(to, options(version), 1, 20_000, pending()), conversation);
            let sent = sent.unwrap();
            let numbered = walk::numbered(&streams);
            assert_eq!(numbered.len(), 20_000);
            walk::assert_complete(&numbered);
            walk::assert_mapped(&streams);
            assert_eq!(streams.len(), connections as usize);

            // One for the end of the run, which has no message.
            assert_eq!(sent.events, (numbered.len() + collector.messages_received.len()) as u64 + 1);
            let data: Vec<_> = streams.iter().flatten().collect();
            let hellos = connections as usize;
            assert_eq!(sent.messages, (data.len() + collector.messages_received.len() + hellos) as u64);
            let bytes: usize = data.into_iter().chain(&collector.messages_received).map(|message| message.len).sum();
            assert_eq!(sent.bytes, (bytes + 2 * hellos) as u64);

            let modes = modes(&collector);
            assert!(modes == "IX" || modes == "ITX", "{modes}");
            assert_eq!(collector.messages_received[1].kind, 8, "a heartbeat immediately");
            let classes = kinds(&Vec::from(collector.messages_received));
            assert!(classes.contains(&40) && classes.contains(&41));
            assert!(!observations.stopped && !observations.control_lost);
            let configured = observations.configuration.unwrap();
            assert_eq!((configured.run, configured.data_senders, configured.exclusions), (42, connections, 2));
        }
    }
}

#[tokio::test]
async fn an_ordered_agent_sends_everything_over_its_first_data_connection() {
    let (to, collector) = Collector::bind(2).await;
    let conversation = async {
        let mut collector = collector.await;
        collector.start(3).await;
        collector.finish().await
    };
    let options = Options { in_order: true, ..options(2) };
    let ((sent, _), streams) = join!(run_alone(to, options, 1, 5_000, pending()), conversation);
    sent.unwrap();
    assert_eq!(streams.iter().map(Vec::len).filter(|len| *len > 0).count(), 1);
    let numbers: Vec<_> = streams[0].iter().filter_map(|message| message.sequence).collect();
    assert!(numbers.is_sorted() && numbers.len() == 5_000);
}

#[tokio::test]
async fn an_agent_of_a_project_sends_its_project_id() {
    let (to, collector) = Collector::bind(4).await;
    let conversation = async {
        let mut collector = collector.await;
        collector.start(1).await;
        collector.finish().await;
        collector.messages_received[0].clone()
    };
    let options = Options { project: -7, ..options(4) };
    let ((sent, _), hello) = join!(run_alone(to, options, 1, 10, pending()), conversation);
    sent.unwrap();
    assert_eq!((hello.kind, hello.value as i32), (16, -7));
}

#[tokio::test]
async fn a_later_configuration_replaces_the_earlier_one() {
    let (to, collector) = Collector::bind(1).await;
    let conversation = async {
        let mut collector = collector.await;
        collector.send(&configuration(1, 20, 3, 7)).await;
        collector.heartbeat(b'I').await;
        collector.send(&configuration(1, 30, 1, 9)).await;
        collector.send(START).await;
        collector.take(1).await;
        collector.finish().await
    };
    let ((sent, observations), streams) = join!(run_alone(to, options(1), 1, 10, pending()), conversation);
    sent.unwrap();
    assert_eq!(streams.len(), 1);
    let configured = observations.configuration.unwrap();
    assert_eq!((configured.run, configured.heartbeat_interval), (9, 30));
}

#[tokio::test]
async fn a_configuration_in_pieces_is_accepted() {
    for version in 1..=4 {
        let (to, collector) = Collector::bind(version).await;
        let conversation = async {
            let mut collector = collector.await;
            for byte in configuration(version, 20, 1, 5) {
                collector.send(&[byte]).await;
                tokio::task::yield_now().await;
            }
            collector.send(START).await;
            collector.take(1).await;
            collector.finish().await;
        };
        let ((sent, _), ()) = join!(run_alone(to, options(version), 1, 10, pending()), conversation);
        sent.unwrap();
    }
}

#[tokio::test]
async fn modes_follow_commands_and_a_suspension_leaves_a_break_and_no_gap() {
    for version in 1..=4 {
        let (to, collector) = Collector::bind(version).await;
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        let conversation = async {
            let mut collector = collector.await;
            collector.start(2).await;
            collector.heartbeat(b'T').await;
            collector.settled().await;
            collector.send(SUSPEND).await;
            collector.heartbeat(b'S').await;
            collector.send(UNSUSPEND).await;
            collector.heartbeat(b'T').await;
            collector.send(PAUSE).await;
            collector.heartbeat(b'P').await;
            collector.send(UNPAUSE).await;
            collector.heartbeat(b'T').await;
            drop(ended);
            let streams = collector.finish().await;
            (collector, streams)
        };
        let plan = Plan { to, amount: Amount::Events(u64::MAX), rate: Some(20_000), connections: 1, seed: 3 };
        let stop = async { drop(end.await) };
        let (sent, (collector, streams)) = join!(run(AgentKind::Bytefrog(options(version)), plan, stop), conversation);
        sent.unwrap();
        let numbered = walk::numbered(&streams);
        walk::assert_complete(&numbered);
        assert_eq!(modes(&collector), "ITSTPTX");
        let breaks: Vec<_> = collector
            .messages_received
            .iter()
            .filter(|messages_received| messages_received.kind == 9)
            .map(|messages_received| messages_received.value)
            .collect();
        assert_eq!(breaks.len(), 1);
        assert!((breaks[0] as usize) < numbered.len(), "{} of {}", breaks[0], numbered.len());
    }
}

#[tokio::test]
async fn a_paused_program_makes_no_calls() {
    let (to, collector) = Collector::bind(3).await;
    let conversation = async {
        let mut collector = collector.await;
        collector.start(1).await;
        collector.heartbeat(b'T').await;
        collector.settled().await;
        collector.send(PAUSE).await;
        collector.heartbeat(b'P').await;
        collector.send(STOP).await;
        collector.finish().await
    };
    let ((sent, observations), streams) = join!(run_alone(to, options(3), 1, u64::MAX, pending()), conversation);
    sent.unwrap();
    assert!(observations.stopped);
    walk::assert_complete(&walk::numbered(&streams));
}

#[tokio::test]
async fn a_stop_ends_the_trace_in_order() {
    for version in 1..=4 {
        let (to, collector) = Collector::bind(version).await;
        let conversation = async {
            let mut collector = collector.await;
            collector.start(2).await;
            collector.heartbeat(b'T').await;
            collector.settled().await;
            collector.send(STOP).await;
            let streams = collector.finish().await;
            (modes(&collector), streams)
        };
        let ((sent, observations), (modes, streams)) =
            join!(run_alone(to, options(version), 1, u64::MAX, pending()), conversation);
        sent.unwrap();
        assert!(observations.stopped && modes == "ITX");
        walk::assert_complete(&walk::numbered(&streams));
    }
}

#[tokio::test]
async fn lost_buffers_leave_gaps_of_the_reported_size() {
    let (to, collector) = Collector::bind(4).await;
    let conversation = async {
        let mut collector = collector.await;
        collector.start(2).await;
        collector.finish().await
    };
    let options = Options { gaps: 10, ..options(4) };
    let ((sent, observations), streams) = join!(run_alone(to, options, 1, 100_000, pending()), conversation);
    sent.unwrap();
    let numbered = walk::numbered(&streams).len() as u64;
    assert!((1..50_000).contains(&observations.lost_events));
    assert_eq!(numbered + observations.lost_events, 100_000);
}

#[tokio::test]
async fn several_agents_share_a_count() {
    let (to, first) = Collector::bind(4).await;
    let plan = Plan { to, amount: Amount::Events(0), rate: None, connections: 3, seed: 1 };
    let sent = run(AgentKind::Bytefrog(options(4)), plan, pending()).await.unwrap();
    assert_eq!((sent.messages, sent.events, sent.bytes), (0, 0, 0), "nothing to tell, and no connection");

    let plan = Plan { amount: Amount::Events(1), ..plan };
    let conversation = async {
        let mut collector = first.await;
        collector.start(1).await;
        walk::numbered(&collector.finish().await).len()
    };
    let (sent, numbered) = join!(run(AgentKind::Bytefrog(options(4)), plan, pending()), conversation);
    sent.unwrap();
    assert_eq!(numbered, 1);
}

#[tokio::test]
async fn a_rate_is_kept_and_partial_buffers_are_sent() {
    let (to, collector) = Collector::bind(2).await;
    let conversation = async {
        let mut collector = collector.await;
        collector.start(1).await;
        collector.finish().await
    };
    let amount = Amount::For(Duration::from_millis(600));
    let plan = Plan { to, amount, rate: Some(1_000), connections: 1, seed: 1 };
    let (sent, streams) = join!(run(AgentKind::Bytefrog(options(2)), plan, pending()), conversation);
    let sent = sent.unwrap();
    let numbered = walk::numbered(&streams).len() as f64;
    // The number depends on the machine; that it does not exceed the rate does not.
    assert!(numbered > 2.0 && numbered <= 1_000.0 * sent.seconds + 1.0, "{numbered} in {sent}");
}

#[tokio::test]
async fn invalid_options_are_errors() {
    let plan =
        Plan { to: "127.0.0.1:1".parse().unwrap(), amount: Amount::Events(1), rate: None, connections: 1, seed: 1 };
    for options in [options(0), options(5), Options { threads: 0, ..options(4) }, Options { project: 1, ..options(3) }]
    {
        let error = run(AgentKind::Bytefrog(options), plan, pending()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
