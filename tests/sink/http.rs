//! The HTTP sink against a real server on loopback that refuses, fails, disappears or asks for a pause, with and without a
//! spool.

use std::collections::HashMap;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tributary::event::Batch;
use tributary::options::Secret;
use tributary::pipeline::{DeliveryOutcome, RequestedLevel};
use tributary::sink::http::{Compression, Http, Options, RetryOptions, SpoolOptions, WhenFull};
use tributary::sink::{AckLevel, DestinationState};

use crate::http_server::{self, Connection, Head};
use crate::live::{until, until_async, within};
use crate::sending::Sending;
use crate::sink_file_support::{batch_of, names, names_in, now};

/// A server on a thread of its own. It answers with `status` until that is changed.
#[derive(Clone)]
struct Receiver {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    status: u16,
    /// Further headers of each response.
    headers: String,
    received: Vec<Received>,
    /// How often each id was received, whatever the answer was.
    attempts: HashMap<String, u32>,
}

struct Received {
    head: Head,
    lines: Vec<u8>,
}

impl Receiver {
    fn start(status: u16) -> Receiver {
        let state = Arc::new(Mutex::new(State { status, ..State::default() }));
        let serving = state.clone();
        Receiver { address: http_server::start(move |connection| serve(&serving, connection)), state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn names(&self) -> Vec<String> {
        let names: Vec<_> = self.state().received.iter().flat_map(|request| names_in(&request.lines)).collect();
        names.into_iter().filter(|name| name != "tributary.loss").collect()
    }

    /// The losses that were received: reason, events, listener.
    fn losses(&self) -> Vec<(String, u64, String)> {
        let state = self.state();
        let lines = state.received.iter().flat_map(|request| str::from_utf8(&request.lines).unwrap().lines());
        let events = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let losses = events.filter(|event| event["name"] == "tributary.loss");
        losses
            .map(|event| {
                let loss = &event["loss"];
                (text(&loss["reason"]), loss["events"].as_u64().unwrap(), text(&event["origin"]["listener"]))
            })
            .collect()
    }
}

fn serve(state: &Mutex<State>, mut connection: Connection) -> Option<()> {
    loop {
        let head = connection.read_head()?;
        let body = connection.read_body(&head)?;
        let mut lines = Vec::new();
        match head.get("content-encoding").map(String::as_str) {
            None => lines = body,
            Some("gzip") => drop(flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut lines).unwrap()),
            Some("zstd") => lines = zstd::stream::decode_all(&body[..]).unwrap(),
            Some(other) => panic!("{other}"),
        }
        let mut state = state.lock().unwrap();
        *state.attempts.entry(head["idempotency-key"].clone()).or_default() += 1;
        let (status, headers) = (state.status, state.headers.clone());
        if status == 200 {
            state.received.push(Received { head, lines });
        }
        drop(state);
        connection.answer(status, &headers, "why\n")?;
    }
}

fn start(options: Options) -> Sending {
    Sending::start(move || Http::new("remote", options.clone()))
}

/// A batch of logs with these names.
fn batch(names: &[String]) -> Batch {
    batch_of(names, "web", now())
}

fn options(address: SocketAddr) -> Options {
    let endpoint = format!("http://{address}/events").parse().unwrap();
    let millisecond = Duration::from_millis(1);
    let longest = millisecond * 20;
    let retry = RetryOptions { shortest: millisecond, longest, max_delay: longest };
    Options { retry, ..Options::to(endpoint) }
}

fn spooled(address: SocketAddr, dir: &Path) -> Options {
    let spool =
        SpoolOptions { dir: dir.to_owned(), max_bytes: 1 << 20, when_full: WhenFull::Block, min_free_bytes: Some(0) };
    Options { spool: Some(spool), ..options(address) }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join("remote")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "spool")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_arrive_as_json_lines_in_each_compression_and_are_written_when_the_server_has_answered() {
    for compression in Compression::ALL {
        let receiver = Receiver::start(200);
        let headers = vec![("X-Scope-OrgID".to_owned(), Secret::Text("shop".to_owned()))];
        let sending = start(Options { compression, headers, batch_bytes: 4096, ..options(receiver.address) });
        let sent = names(0..500, 60);
        for chunk in sent.chunks(50) {
            assert_eq!(sending.deliver(batch(chunk)).await, DeliveryOutcome::Written);
        }
        let totals = sending.finish().await;
        assert_eq!((totals.events, totals.written), (500, 500));
        let mut received = receiver.names();
        received.sort();
        let mut expected = sent;
        expected.sort();
        assert_eq!(received, expected, "{compression:?}");
        let state = receiver.state();
        for request in &state.received {
            assert_eq!(request.head["request"], "POST /events HTTP/1.1");
            assert_eq!(request.head["content-type"], "application/x-ndjson");
            assert_eq!(request.head["x-scope-orgid"], "shop");
            assert!(compression != Compression::None || request.lines.len() < 3 * 4096);
        }
        assert!(state.received.len() > 10 && state.attempts.values().all(|attempts| *attempts == 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_spool_an_agent_is_answered_only_after_the_server_and_a_stop_counts_the_rest_as_failed() {
    let receiver = Receiver::start(503);
    let sending = start(options(receiver.address));
    let sender = sending.sender.clone();
    let first = tokio::spawn(async move { sender.deliver(batch_of(&names(0..3, 5), "web", now())).await });
    until("the sink retries", || sending.counters.totals().is_retrying.then_some(())).await;
    assert!(!first.is_finished());
    receiver.state().status = 200;
    assert_eq!(within("the batch is delivered", first).await.unwrap(), DeliveryOutcome::Written);
    assert_eq!(receiver.names(), names(0..3, 5));
    assert!(receiver.state().attempts.values().all(|attempts| *attempts > 1), "repeated with the same id");
    receiver.state().status = 503;
    let sender = sending.sender.clone();
    let second = tokio::spawn(async move { sender.deliver(batch_of(&names(3..7, 5), "web", now())).await });
    until("the second is being sent", || (receiver.state().attempts.len() > 1).then_some(())).await;
    let totals = sending.abort().await;
    assert_eq!(within("the batch has an outcome", second).await.unwrap(), DeliveryOutcome::Failed);
    assert_eq!((totals.events, totals.written, totals.failed, totals.waiting), (7, 3, 4, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_the_server_is_away_keeps_the_spool_and_the_next_start_sends_it() {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(503);
    let sent = names(0..400, 30);
    for chunk in sent.chunks(200) {
        let sending = start(spooled(receiver.address, directory.path()));
        for part in chunk.chunks(20) {
            assert_eq!(sending.deliver(batch(part)).await, DeliveryOutcome::Written, "it is on the disk");
        }
        let totals = sending.finish().await;
        assert_eq!((totals.events, totals.written, totals.failed), (200, 0, 0));
        assert_eq!(totals.waiting, 200 + totals.resumed);
    }
    receiver.state().status = 200;
    let sending = start(spooled(receiver.address, directory.path()));
    until("everything is sent", || (sending.counters.totals().written == 400).then_some(())).await;
    let totals = sending.finish().await;
    assert_eq!((totals.events, totals.resumed, totals.waiting), (0, 400, 0));
    let mut received = receiver.names();
    received.sort();
    let mut expected = sent;
    expected.sort();
    assert_eq!(received, expected, "each once");
    let sending = start(spooled(receiver.address, directory.path()));
    let totals = sending.finish().await;
    assert_eq!((totals.resumed, receiver.names().len()), (0, 400), "nothing is sent twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_spool_does_not_keep_the_sink_from_starting_and_its_loss_is_counted_exactly() {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(503);
    let sending = start(spooled(receiver.address, directory.path()));
    for number in 0..10 {
        assert_eq!(sending.deliver(batch(&names(number * 5..number * 5 + 5, 5))).await, DeliveryOutcome::Written);
    }
    sending.finish().await;
    let path = segments(directory.path()).pop().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    receiver.state().status = 200;
    let sending = start(spooled(receiver.address, directory.path()));
    until("everything is settled", || (sending.counters.totals().waiting == 0).then_some(())).await;
    until("the rest is sent", || (sending.counters.totals().written == 45).then_some(())).await;
    until("the loss is reported", || (!receiver.losses().is_empty()).then_some(())).await;
    let totals = sending.finish().await;
    assert_eq!((totals.resumed, totals.written, totals.failed), (50, 45, 5));
    assert_eq!(receiver.names().len(), 45);
    // Whose events they were is not known after a restart.
    assert_eq!(receiver.losses(), [("failed".into(), 5, "remote".into())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_spool_drops_is_reported_to_the_destination_as_soon_as_there_is_space() {
    for when_full in [WhenFull::DropOldest, WhenFull::DropNewest] {
        let directory = tempfile::tempdir().unwrap();
        let receiver = Receiver::start(503);
        let mut options = spooled(receiver.address, directory.path());
        options.spool = options.spool.map(|spool| SpoolOptions { max_bytes: 20_000, when_full, ..spool });
        let sending = start(options);
        let shed = || sending.counters.totals().shed;
        // Until as many attempts have failed as are made at the same time, requests wait in memory, and none is dropped.
        let mut delivered = 0;
        within("events are dropped", async {
            while shed() == 0 {
                let next = names(delivered..delivered + 5, 50);
                assert_eq!(sending.deliver(batch(&next)).await, DeliveryOutcome::Written);
                delivered += 5;
            }
        })
        .await;
        receiver.state().status = 200;
        until("nothing waits", || (sending.counters.totals().waiting == 0).then_some(())).await;
        // The spool tells what it has dropped when it has taken a request again. It has room when it has removed a segment,
        // which can be a second later.
        until_async("the spool takes a request", async || {
            let before = shed();
            let next = names(delivered..delivered + 5, 50);
            assert_eq!(sending.deliver(batch(&next)).await, DeliveryOutcome::Written);
            delivered += 5;
            (shed() == before).then_some(())
        })
        .await;
        let last = names(delivered - 1..delivered, 50);
        until("everything is sent", || (receiver.names().last() == last.last()).then_some(())).await;
        let totals = sending.finish().await;
        let delivered = delivered as u64;
        let sums = (totals.events, totals.written + totals.shed, totals.failed);
        assert_eq!(sums, (delivered, delivered, 0), "{when_full:?}");
        assert_eq!(receiver.names().len() as u64, totals.written, "{when_full:?}");
        let losses = receiver.losses();
        let reported: u64 = losses.iter().map(|(_, events, _)| events).sum();
        assert!(losses.iter().all(|(reason, _, listener)| (&**reason, &**listener) == ("shed", "web")), "{losses:?}");
        assert_eq!(reported, totals.shed, "{when_full:?}: {losses:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_loses_nothing_and_its_state_is_known_until_it_is_corrected() {
    for status in [301, 308, 401, 403, 404, 405, 406, 407, 411, 415] {
        for is_spooled in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let receiver = Receiver::start(status);
            let address = receiver.address;
            let sending = start(if is_spooled { spooled(address, directory.path()) } else { options(address) });
            let sender = sending.sender.clone();
            let delivery = tokio::spawn(async move { sender.deliver(batch(&names(0..3, 5))).await });
            let state = || sending.counters.remote().map(|remote| remote.state());
            let is_refusing = || state().filter(|state| state.destination == DestinationState::Refusing);
            let refusing = until("it refuses", is_refusing).await;
            assert!(refusing.to_string().contains(&format!("last error: {status} why")), "{refusing}");
            receiver.state().status = 200;
            assert_eq!(within("the batch is delivered", delivery).await.unwrap(), DeliveryOutcome::Written);
            until("it is sent", || (sending.counters.totals().written == 3).then_some(())).await;
            assert_eq!(state().unwrap().destination, DestinationState::Ready);
            let totals = sending.finish().await;
            assert_eq!((totals.events, totals.failed, receiver.names().len()), (3, 0, 3), "{status}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_makes_one_more_attempt_at_a_server_that_refuses_and_does_not_wait_for_its_correction() {
    for is_corrected in [false, true] {
        let receiver = Receiver::start(403);
        let options = options(receiver.address);
        let hour = Duration::from_secs(3600);
        let stop = CancellationToken::new();
        let sending = Sending::start_with(stop.clone(), move || {
            Http::new("remote", Options { retry: RetryOptions { max_delay: hour, ..options.retry }, ..options.clone() })
        });
        // No peer waits for these, so no peer sends them again.
        sending.sender.send(batch(&names(0..3, 5))).await;
        until("the sink retries", || sending.counters.totals().is_retrying.then_some(())).await;
        let attempts = |receiver: &Receiver| receiver.state().attempts.values().sum::<u32>();
        assert_eq!(attempts(&receiver), 1, "the pause is half a minute");
        if is_corrected {
            receiver.state().status = 200;
        }
        stop.cancel();
        let totals = sending.finish().await;
        assert_eq!(attempts(&receiver), 2);
        let written = if is_corrected { 3 } else { 0 };
        assert_eq!((totals.events, totals.written, totals.failed), (3, written, 3 - written));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_request_is_kept_with_its_reason_and_blocks_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(400);
    let sending = start(spooled(receiver.address, directory.path()));
    assert_eq!(sending.deliver(batch(&names(0..3, 5))).await, DeliveryOutcome::Written);
    until("it is refused", || (sending.counters.totals().failed == 3).then_some(())).await;
    receiver.state().status = 200;
    assert_eq!(sending.deliver(batch(&names(3..5, 5))).await, DeliveryOutcome::Written);
    until("the next is sent", || (sending.counters.totals().written == 2).then_some(())).await;
    assert_eq!(sending.finish().await.in_flight(), 0);
    let refused = std::fs::read_dir(directory.path().join("remote/refused")).unwrap();
    let mut kept = refused.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    // The report of the loss may have been refused, too.
    let is_of_events = |kept: &String| kept.lines().next().is_some_and(|head| head.contains("\"events\":3"));
    let kept = kept.find(is_of_events).unwrap();
    let (reason, lines) = kept.split_once('\n').unwrap();
    assert!(reason.contains("400 why"), "{reason}");
    assert_eq!(names_in(lines.as_bytes()), names(0..3, 5));
    let reported = receiver.losses();
    assert!(reported.is_empty() || reported == [("failed".into(), 3, "web".into())], "{reported:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_spool_a_durable_delivery_is_complete_when_the_request_is_synced_and_the_server_is_away() {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(503);
    let sending = start(spooled(receiver.address, directory.path()));
    let durable = sending.sender.clone().with_level(RequestedLevel::new(AckLevel::Durable));
    for number in 0..3 {
        let batch = batch_of(&names(number..number + 1, 5), "web", now());
        assert_eq!(within("the batch is delivered", durable.deliver(batch)).await, DeliveryOutcome::Written);
    }
    drop(durable);
    let totals = sending.finish().await;
    assert_eq!((totals.events, totals.waiting, totals.failed), (3, 3, 0));
}
