//! Events reach a receiver over gRPC and HTTP, in each compression and size, and from a spool.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tributary::event::Batch;
use tributary::options::Secret;
use tributary::pipeline::DeliveryOutcome;
use tributary::sink::otlp::{Compression, Options, Protocol, SpoolOptions, WhenFull};

use super::receiver::{Receiver, Reply};
use super::{logs, mixed, names, start};
use crate::live::{until, within};
use crate::otlp_support::{records, requests};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_arrive_by_each_protocol_in_each_compression_and_size() {
    for protocol in Protocol::ALL {
        for (compression, max_request_bytes) in
            [(Compression::None, 4 << 10), (Compression::Gzip, 3 << 20), (Compression::Zstd, 10_000)]
        {
            let receiver = Receiver::start(protocol).await;
            let headers = vec![("X-Scope-OrgID".to_owned(), Secret::Text("shop".to_owned()))];
            let sending = start(Options { compression, max_request_bytes, headers, ..receiver.options() });
            let batches = || [mixed(0..300), mixed(300..301), mixed(301..400)];
            for batch in batches() {
                assert_eq!(sending.deliver(batch).await, DeliveryOutcome::Written);
            }
            let totals = sending.finish().await;
            assert_eq!((totals.events, totals.written, totals.failed), (1200, 1200, 0));
            let state = receiver.state();
            let batches = batches();
            let expected = requests(batches.iter().flat_map(Batch::events), true);
            assert_eq!(records(&state.accepted.requests), records(&expected), "{protocol:?} {compression:?}");
            for (path, bytes, headers) in &state.attempts {
                assert_eq!(headers["x-scope-orgid"], "shop");
                assert!(*bytes <= max_request_bytes + 5, "{path}: {bytes}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_starts_later_gets_everything() {
    for protocol in Protocol::ALL {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let options = Receiver { address: address.to_string(), protocol, state: Arc::default() }.options();
        let sending = start(options);
        let sender = sending.sender.clone();
        let delivering = tokio::spawn(async move { sender.deliver(logs(&names(5, 4))).await });
        until("the sink retries", || sending.counters.totals().is_retrying.then_some(())).await;
        assert!(!delivering.is_finished());
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        let receiver = Receiver::serve(socket.listen(16).unwrap(), protocol, None);
        assert_eq!(within("it is delivered", delivering).await.unwrap(), DeliveryOutcome::Written);
        assert_eq!(sending.finish().await.written, 5);
        assert_eq!(receiver.names(), names(5, 4));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_too_large_for_the_receiver_is_divided_down_to_one_event() {
    for protocol in Protocol::ALL {
        for compression in Compression::ALL {
            let receiver = Receiver::start(protocol).await;
            receiver.state().largest = Some(1500);
            let sending = start(Options { compression, origin: false, ..receiver.options() });
            sending.deliver(mixed(0..40)).await;
            let long = "x".repeat(3000);
            let some = ["a".to_owned(), long, "b".to_owned()];
            sending.deliver(logs(&some)).await;
            let totals = sending.finish().await;
            assert_eq!((totals.events, totals.written, totals.failed), (123, 122, 1), "{protocol:?} {compression:?}");
            let batches = [mixed(0..40), logs(&["a".to_owned(), "b".to_owned()])];
            let mut accepted = receiver.state().accepted.requests.clone();
            let groups = accepted.logs.resource_logs.iter_mut().flat_map(|group| &mut group.scope_logs);
            groups.for_each(|scope| scope.log_records.retain(|record| record.event_name != "tributary.loss"));
            let expected = requests(batches.iter().flat_map(Batch::events), false);
            assert_eq!(records(&accepted), records(&expected));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_is_larger_than_a_request_may_be_is_reported_as_a_loss() {
    let receiver = Receiver::start(Protocol::Grpc).await;
    let sending = start(Options { max_request_bytes: 4096, ..receiver.options() });
    sending.deliver(logs(&["a".to_owned(), "x".repeat(5000), "b".to_owned()])).await;
    sending.deliver(logs(&["c".to_owned()])).await;
    let totals = sending.finish().await;
    assert_eq!((totals.events, totals.written, totals.failed), (4, 3, 1));
    assert_eq!(receiver.names(), ["a", "b", "c", "tributary.loss"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spool_keeps_the_signal_of_each_request_until_the_next_start() {
    for protocol in Protocol::ALL {
        let directory = tempfile::tempdir().unwrap();
        let receiver = Receiver::start(protocol).await;
        receiver.state().of_path = Some(("/", Reply::Busy));
        let sending = start(spooled(&receiver, directory.path()));
        assert_eq!(sending.deliver(mixed(0..50)).await, DeliveryOutcome::Written, "it is on the disk");
        let totals = sending.abort().await;
        assert_eq!((totals.written, totals.failed, totals.waiting), (0, 0, 150));
        receiver.state().of_path = None;
        let sending = start(spooled(&receiver, directory.path()));
        until("everything is sent", || (sending.counters.totals().written == 150).then_some(())).await;
        let totals = sending.finish().await;
        assert_eq!((totals.resumed, totals.waiting), (150, 0));
        let batch = mixed(0..50);
        assert_eq!(records(&receiver.state().accepted.requests), records(&requests(batch.events(), true)));
    }
}

fn spooled(receiver: &Receiver, dir: &Path) -> Options {
    let spool =
        SpoolOptions { dir: dir.to_owned(), max_bytes: 1 << 20, when_full: WhenFull::Block, min_free_bytes: Some(0) };
    Options { spool: Some(spool), ..receiver.options() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_stays_open_until_its_delay_is_over_or_a_peer_waits() {
    let hour = Duration::from_secs(3600);
    for has_spool in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let receiver = Receiver::start(Protocol::Grpc).await;
        let with = |max_request_delay: Duration, name: &str| {
            let spool = spooled(&receiver, &directory.path().join(name)).spool.filter(|_| has_spool);
            Options { max_request_delay, spool, ..receiver.options() }
        };
        let attempts = || receiver.state().attempts.len();

        // No peer waits: everything is one request, which the end completes.
        let sending = start(with(hour, "a"));
        for name in names(20, 4) {
            sending.sender.send(logs(&[name])).await;
        }
        until("everything is encoded", || (sending.counters.totals().waiting == 20).then_some(())).await;
        assert_eq!(attempts(), 0);
        assert_eq!(sending.finish().await.failed, 0);
        assert_eq!((attempts(), receiver.names()), (1, names(20, 4)));

        // A peer waits: its events are sent immediately, with those that came before.
        let sending = start(with(hour, "b"));
        sending.sender.send(logs(&["first".to_owned()])).await;
        assert_eq!(sending.deliver(logs(&["second".to_owned()])).await, DeliveryOutcome::Written);
        until("it is sent", || (sending.counters.totals().written == 2).then_some(())).await;
        assert_eq!(attempts(), 2);
        sending.finish().await;
        assert_eq!(attempts(), 2);

        // The delay is over.
        let sending = start(with(Duration::from_millis(20), "c"));
        sending.sender.send(logs(&["third".to_owned()])).await;
        until("it is sent", || (sending.counters.totals().written == 1).then_some(())).await;
        assert_eq!(attempts(), 3);
        sending.finish().await;
        // What is open when the grace period ends has failed.
        let sending = start(with(hour, "d"));
        sending.sender.send(logs(&["fourth".to_owned()])).await;
        until("it is encoded", || (sending.counters.totals().waiting == 1).then_some(())).await;
        let totals = sending.abort().await;
        assert_eq!((totals.written, totals.failed, totals.waiting), (0, 1, 0));
        assert_eq!(attempts(), 3);
    }
}
