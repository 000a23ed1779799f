//! The sink `nats` against real servers of NATS, each with JetStream, a port and a store of its own. Without the program
//! `nats-server` each test prints that and passes.

mod daemon;
mod faults;
mod listener;
mod shared;
mod writers;

use std::path::Path;
use std::time::Duration;

use tributary::event::Batch;
use tributary::pipeline::{DeliveryOutcome, RequestedLevel};
use tributary::sink::AckLevel;
use tributary::sink::nats::{Nats, Options, RetryOptions, SpoolOptions, WhenFull};

use crate::live::{until, within};
use crate::nats_server::NatsServer;
use crate::sending::Sending;
use crate::sink_file_support::{batch_of, names, names_in, now};

const STREAM: &str = "TRIBUTARY";

fn options(server: &NatsServer) -> Options {
    Options {
        create: true,
        retry: RetryOptions {
            shortest: Duration::from_millis(5),
            longest: Duration::from_millis(50),
            max_delay: Duration::from_millis(50),
        },
        ..Options::to(vec![server.url().parse().unwrap()])
    }
}

/// The same with this `request_timeout`.
fn patient(request_timeout: Duration, mut options: Options) -> Options {
    options.servers.request_timeout = request_timeout;
    options
}

fn spooled(server: &NatsServer, dir: &Path) -> Options {
    let spool =
        SpoolOptions { dir: dir.to_owned(), max_bytes: 1 << 22, when_full: WhenFull::Block, min_free_bytes: Some(0) };
    Options { spool: Some(spool), ..options(server) }
}

fn start(options: Options) -> Sending {
    Sending::start(move || Nats::new("remote", options.clone()))
}

fn batch(names: &[String]) -> Batch {
    batch_of(names, "web", now())
}

/// The names of the events in a stream, sorted.
fn names_of(server: &NatsServer) -> Vec<String> {
    let messages = server.messages(STREAM);
    let mut names: Vec<_> = messages.iter().flat_map(|message| names_in(message.lines.as_bytes())).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_arrive_as_json_lines_with_a_subject_and_an_id_and_are_durable_when_jetstream_has_acknowledged_them() {
    let Some(server) = NatsServer::start() else { return };
    let sending = start(options(&server));
    let sent = names(0..500, 60);
    let durable = sending.sender.clone().with_level(RequestedLevel::new(AckLevel::Durable));
    for (number, chunk) in sent.chunks(100).enumerate() {
        assert_eq!(within("the batch is delivered", durable.deliver(batch(chunk))).await, DeliveryOutcome::Written);
        assert_eq!(server.count(STREAM), number as u64 + 1, "an acknowledged batch is in the stream");
    }
    assert_eq!(sending.deliver(batch(&names(500..502, 9))).await, DeliveryOutcome::Written);
    drop(durable);
    let totals = sending.finish().await;
    assert_eq!((totals.events, totals.written, totals.failed), (502, 502, 0));
    let messages = server.messages(STREAM);
    assert_eq!(messages.len(), 6);
    let mut ids: Vec<_> = messages.iter().map(|message| message.header("Nats-Msg-Id").unwrap()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 6);
    for message in &messages {
        assert_eq!(message.subject, "tributary.datadog.log");
        assert_eq!(message.header("Content-Type"), Some("application/x-ndjson"));
        let is_long = message.lines.len() > 4096;
        assert_eq!(message.header("Content-Encoding"), is_long.then_some("zstd"));
        assert_eq!(message.body.len() < message.lines.len(), is_long);
    }
    let mut expected = [sent, names(500..502, 9)].concat();
    expected.sort();
    assert_eq!(names_of(&server), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_for_which_no_peer_waits_share_messages() {
    let Some(server) = NatsServer::start() else { return };
    let sending = start(Options { max_message_delay: Duration::from_secs(3600), ..options(&server) });
    let sent = names(0..300, 30);
    for chunk in sent.chunks(3) {
        within("the queue has room", sending.sender.send(batch(chunk))).await;
    }
    until("they are taken", || (sending.counters.totals().waiting == 300).then_some(())).await;
    assert_eq!(sending.finish().await.written, 300);
    assert_eq!(server.messages(STREAM).len(), 1);
    assert_eq!(names_of(&server), sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_again_and_again_has_each_event_once() {
    let Some(mut server) = NatsServer::start() else { return };
    for spool in [None, Some(tempfile::tempdir().unwrap())] {
        let options = spool.as_ref().map_or_else(|| options(&server), |dir| spooled(&server, dir.path()));
        let sending = start(patient(Duration::from_secs(1), options));
        let sent = names(0..2000, 40);
        for (number, chunk) in sent.chunks(20).enumerate() {
            if number % 20 == 10 {
                server.kill();
                let sender = sending.sender.clone();
                let (first, batch) = (chunk[0].clone(), batch(chunk));
                let delivered = tokio::spawn(async move { sender.deliver(batch).await });
                if spool.is_none() {
                    until("the sink retries", || sending.counters.totals().is_retrying.then_some(())).await;
                    assert!(!delivered.is_finished(), "{first}");
                }
                server.start_again();
                assert_eq!(within("the batch is delivered", delivered).await.unwrap(), DeliveryOutcome::Written);
            } else {
                assert_eq!(sending.deliver(batch(chunk)).await, DeliveryOutcome::Written);
            }
        }
        until("everything is sent", || (sending.counters.totals().written == 2000).then_some(())).await;
        assert_eq!(sending.finish().await.failed, 0);
        assert_eq!(names_of(&server), sent, "spool: {}", spool.is_some());
        server.delete(STREAM);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_too_late_gets_messages_again_and_drops_the_repeats() {
    let Some(server) = NatsServer::start() else { return };
    let sending = start(patient(Duration::from_millis(200), options(&server)));
    assert_eq!(sending.deliver(batch(&names(0..10, 40))).await, DeliveryOutcome::Written);
    server.signal("STOP");
    let sender = sending.sender.clone();
    let late = tokio::spawn(async move { sender.deliver(batch(&names(10..60, 40))).await });
    // The first attempt is over then, and the server finds its message when it runs again.
    until("the sink retries", || sending.counters.totals().is_retrying.then_some(())).await;
    assert!(!late.is_finished());
    server.signal("CONT");
    assert_eq!(within("the batch is delivered", late).await.unwrap(), DeliveryOutcome::Written);
    assert_eq!(sending.finish().await.written, 60);
    assert_eq!(names_of(&server), names(0..60, 40), "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_too_large_for_the_server_or_the_stream_are_divided() {
    let small_stream = serde_json::json!({ "max_msg_size": 6000 });
    for (configuration, stream) in [("max_payload: 6000\n", serde_json::json!({})), ("", small_stream)] {
        let Some(server) = NatsServer::start_with(configuration) else { return };
        server.create(STREAM, &["tributary.>"], stream);
        let sending = start(Options { compress_above: 1 << 20, ..options(&server) });
        let sent = names(0..400, 40);
        assert_eq!(sending.deliver(batch(&sent)).await, DeliveryOutcome::Written);
        assert_eq!(sending.finish().await.written, 400);
        assert!(server.messages(STREAM).len() > 10);
        assert_eq!(names_of(&server), sent);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_fits_into_no_message_counts_as_failed_and_is_reported_as_a_loss() {
    let Some(server) = NatsServer::start() else { return };
    let sending = start(Options { max_message_bytes: 2000, compress_above: 1 << 20, ..options(&server) });
    let long = "x".repeat(3000);
    assert_eq!(sending.deliver(batch(&["a".into(), long, "b".into()])).await, DeliveryOutcome::Written);
    until("the loss is reported", || (!server.lines(STREAM).1.is_empty()).then_some(())).await;
    let totals = sending.finish().await;
    assert_eq!((totals.events, totals.written, totals.failed), (3, 2, 1));
    let (events, losses) = server.lines(STREAM);
    assert_eq!(events.len(), 2);
    let loss: serde_json::Value = serde_json::from_str(&losses[0]).unwrap();
    assert_eq!((&loss["loss"]["reason"], &loss["loss"]["events"]), (&"failed".into(), &1.into()));
    let messages = server.messages(STREAM);
    assert!(messages.iter().any(|message| message.subject == "tributary.datadog.loss"));
}
