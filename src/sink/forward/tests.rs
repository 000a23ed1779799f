//! Tests of the forwarder against a destination in memory, on paused time.

use std::collections::HashMap;
use std::path::Path;

use tokio::time::Instant;

use super::*;
use tributary_event::{Batch, BatchBuilder, Header, Origin, Position, Severity, UnixNanos};
use tributary_sink::{AckLevel, Kinds, Selection};
use tributary_spool::{Spool, SpoolLimits};

/// A batch of one event.
fn a_log() -> Batch {
    let mut batch = BatchBuilder::new(Arc::new(Origin::new("datadog", "web".into(), "peer".into(), 1)));
    let name = batch.push_text("a").into();
    batch
        .event(Header { name, time: None, observed: UnixNanos(0), position: Position::default() })
        .log(Severity::Info, None);
    batch.take()
}

/// A destination whose answers a test decides. A request is a list of numbers, a byte each.
#[derive(Clone, Default)]
struct Peer(Arc<Mutex<PeerState>>);

#[derive(Default)]
struct PeerState {
    received: Vec<(String, Vec<u8>)>,
    /// Answers to the attempts to come, the last one first; then everything is accepted.
    answers: Vec<AttemptOutcome>,
    /// Larger requests are too large.
    largest: Option<usize>,
    /// Requests with these numbers are never taken.
    never: Vec<u8>,
    attempts: HashMap<String, u32>,
    open: usize,
    most_open: usize,
}

impl Peer {
    fn state(&self) -> MutexGuard<'_, PeerState> {
        self.0.lock().unwrap()
    }

    fn numbers(&self) -> Vec<u8> {
        self.state().received.iter().flat_map(|(_, numbers)| numbers.clone()).collect()
    }
}

impl Destination for Peer {
    async fn send(&self, request: &EncodedRequest) -> AttemptOutcome {
        {
            let mut state = self.state();
            *state.attempts.entry(request.id.clone()).or_default() += 1;
            state.open += 1;
            state.most_open = state.most_open.max(state.open);
        }
        sleep(Duration::from_millis(10)).await;
        let mut state = self.state();
        state.open -= 1;
        if state.largest.is_some_and(|largest| request.payload.len() > largest) {
            return AttemptOutcome::TooLarge("too much".into());
        }
        if request.payload.iter().any(|number| state.never.contains(number)) {
            return AttemptOutcome::Away("500 a poison".into(), None);
        }
        let answer = state.answers.pop().unwrap_or(AttemptOutcome::Accepted);
        if answer == AttemptOutcome::Accepted {
            state.received.push((request.id.clone(), request.payload.to_vec()));
        }
        answer
    }

    fn split(&self, request: &EncodedRequest) -> Option<[EncodedRequest; 2]> {
        let half = request.payload.len().div_ceil(2);
        let part = |number: u32, payload: Bytes| EncodedRequest {
            id: format!("{}.{number}", request.id),
            events: payload.len() as u32,
            payload,
        };
        (request.payload.len() > 1)
            .then(|| [part(1, request.payload.slice(..half)), part(2, request.payload.slice(half..))])
    }
}

fn pace(max_in_flight: usize) -> Pace {
    let seconds = Duration::from_secs;
    let retry = RetryOptions { shortest: Duration::from_millis(100), longest: seconds(30), max_delay: seconds(300) };
    let give_up = GiveUp { attempts: 20, time: Duration::from_secs(300) };
    Pace { max_in_flight, request_timeout: Duration::from_secs(5), retry, give_up }
}

fn start(store: RequestStore, pace: Pace, peer: Peer) -> Forwarder {
    Forwarder::start(store, pace, peer, Arc::default())
}

fn append(forwarder: &Forwarder, requests: &[&[u8]]) {
    for request in requests {
        forwarder.append(Bytes::copy_from_slice(request), request.len() as u32, &Contents::default()).unwrap();
    }
}

fn spool(directory: &Path, max_bytes: u64, when_full: WhenFull) -> RequestStore {
    let limits = SpoolLimits { max_bytes, segment_bytes: 200, min_free_bytes: 0 };
    RequestStore::Spool(Box::new(Spool::open(directory, limits).unwrap().0), when_full)
}

const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn requests_are_sent_in_order_with_a_limit_of_those_in_flight() {
    for max_in_flight in [1, 4] {
        let peer = Peer::default();
        let forwarder = start(RequestStore::memory(), pace(max_in_flight), peer.clone());
        append(&forwarder, &[&[1, 2], &[3], &[4], &[5, 6], &[7], &[8]]);
        assert_eq!(forwarder.progress().waiting, 8);
        assert!(forwarder.settled_within(LONG).await);
        assert_eq!(peer.numbers(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(peer.state().most_open, max_in_flight);
        assert_eq!(forwarder.progress(), SinkProgress { written: 8, ..SinkProgress::default() });
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_is_repeated_with_the_same_id_after_the_pause_that_the_peer_asks_for() {
    let peer = Peer::default();
    let later = |after| AttemptOutcome::Away("busy".into(), after);
    peer.state().answers = vec![later(Some(Duration::from_secs(77))), later(None)];
    let forwarder = start(RequestStore::memory(), pace(1), peer.clone());
    append(&forwarder, &[&[1]]);
    assert!(!forwarder.settled_within(Duration::from_secs(60)).await);
    assert_eq!(forwarder.fault().as_deref(), Some("busy"));
    assert!(forwarder.settled_within(Duration::from_secs(20)).await);
    assert_eq!(peer.state().attempts.values().copied().collect::<Vec<_>>(), [3]);
    assert_eq!(forwarder.fault(), None);
    assert_eq!(forwarder.progress(), SinkProgress { written: 1, retries: 2, ..SinkProgress::default() });
}

#[tokio::test(start_paused = true)]
async fn a_reload_ends_every_pause_and_none_that_a_destination_asks_for_is_longer_than_the_longest() {
    let years = Duration::from_secs(315_360_000);
    for answer in [AttemptOutcome::Away("busy".into(), Some(years)), AttemptOutcome::Refusing("who are you".into())] {
        let peer = Peer::default();
        peer.state().answers = vec![answer.clone(); 2];
        let status = Arc::<RemoteStatus>::default();
        let forwarder = Forwarder::start(RequestStore::memory(), pace(1), peer.clone(), status.clone());
        append(&forwarder, &[&[1]]);
        assert!(!forwarder.settled_within(Duration::from_secs(10)).await);
        let expected = match answer {
            AttemptOutcome::Away(..) => DestinationState::Away,
            _ => DestinationState::Refusing,
        };
        assert_eq!(status.state().destination, expected);
        assert!(status.state().to_string().contains("; the next attempt is in "), "{}", status.state());
        assert_eq!(peer.state().attempts.values().sum::<u32>(), 1);
        status.try_again();
        sleep(Duration::from_millis(100)).await;
        assert_eq!(peer.state().attempts.values().sum::<u32>(), 2);
        assert!(forwarder.settled_within(Duration::from_secs(301)).await);
        assert_eq!(status.state().destination, DestinationState::Ready);
    }
}

#[tokio::test(start_paused = true)]
async fn an_accepted_request_ends_the_pauses_of_the_others_once() {
    let peer = Peer::default();
    let away = |seconds| AttemptOutcome::Away("away".into(), Some(Duration::from_secs(seconds)));
    // The first request is to wait for five minutes, the second for one second; later the first is away once more.
    peer.state().answers = vec![away(200), AttemptOutcome::Accepted, away(1), away(300)];
    let forwarder = start(RequestStore::memory(), pace(2), peer.clone());
    append(&forwarder, &[&[1], &[2]]);
    assert!(!forwarder.settled_within(Duration::from_secs(3)).await);
    assert_eq!(peer.numbers(), [2]);
    append(&forwarder, &[&[3]]);
    assert!(!forwarder.settled_within(Duration::from_secs(100)).await, "it is not sent with each accepted request");
    assert!(forwarder.settled_within(Duration::from_secs(200)).await);
    assert_eq!(peer.numbers(), [2, 3, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_too_large_is_divided_and_a_refused_part_fails_alone() {
    let peer = Peer::default();
    peer.state().largest = Some(2);
    peer.state().answers =
        vec![AttemptOutcome::Accepted, AttemptOutcome::Bad("no such table".into()), AttemptOutcome::Accepted];
    let forwarder = start(RequestStore::memory(), pace(1), peer.clone());
    append(&forwarder, &[&[1, 2, 3, 4, 5, 6], &[7]]);
    assert!(forwarder.settled_within(LONG).await);
    assert_eq!(peer.numbers(), [1, 2, 4, 5, 6, 7]);
    assert_eq!(forwarder.progress(), SinkProgress { written: 6, failed: 1, ..SinkProgress::default() });
    let refusals = forwarder.take_refusals();
    assert!(refusals.len() == 1 && refusals[0].contains("1 events was refused: no such table"), "{refusals:?}");
}

#[tokio::test(start_paused = true)]
async fn a_spool_is_sent_by_the_next_process_and_each_event_is_in_one_of_the_sums() {
    let directory = tempfile::tempdir().unwrap();
    let peer = Peer::default();
    peer.state().answers = vec![AttemptOutcome::Away("away".into(), None); 1000];
    let forwarder = start(spool(directory.path(), 1 << 20, WhenFull::Block), pace(2), peer.clone());
    append(&forwarder, &[&[1, 2], &[3], &[4, 5, 6]]);
    forwarder.sync().unwrap();
    assert!(!forwarder.settled_within(Duration::from_secs(300)).await);
    let progress = forwarder.progress();
    assert_eq!((progress.waiting, progress.written), (6, 0));
    forwarder.close().unwrap();
    drop(forwarder);
    tokio::task::yield_now().await;
    peer.state().answers.clear();
    let forwarder = start(spool(directory.path(), 1 << 20, WhenFull::Block), pace(2), peer.clone());
    append(&forwarder, &[&[7]]);
    assert!(forwarder.settled_within(LONG).await);
    assert_eq!(peer.numbers(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(forwarder.progress(), SinkProgress { resumed: 6, written: 7, ..SinkProgress::default() });
}

#[tokio::test(start_paused = true)]
async fn events_that_the_destination_had_before_are_counted_by_whether_they_can_be_of_an_attempt_before() {
    let directory = tempfile::tempdir().unwrap();
    let peer = Peer::default();
    let away = || AttemptOutcome::Away("away".into(), None);
    peer.state().answers = vec![AttemptOutcome::Accepted, AttemptOutcome::Duplicate, away(), AttemptOutcome::Duplicate];
    let forwarder = start(spool(directory.path(), 1 << 20, WhenFull::Block), pace(1), peer.clone());
    append(&forwarder, &[&[1], &[2, 3], &[4]]);
    assert!(forwarder.settled_within(LONG).await);
    let sent =
        SinkProgress { written: 4, retries: 1, duplicates: 1, uncertain_duplicates: 2, ..SinkProgress::default() };
    assert_eq!(forwarder.progress(), sent);
    peer.state().answers = vec![away(); 1000];
    append(&forwarder, &[&[5, 6, 7]]);
    assert!(!forwarder.settled_within(Duration::from_secs(60)).await);
    forwarder.close().unwrap();
    drop(forwarder);
    tokio::task::yield_now().await;
    // The process before may have sent it.
    peer.state().answers = vec![AttemptOutcome::Duplicate, AttemptOutcome::Duplicate];
    let forwarder = start(spool(directory.path(), 1 << 20, WhenFull::Block), pace(1), peer.clone());
    append(&forwarder, &[&[8]]);
    assert!(forwarder.settled_within(LONG).await);
    let sent =
        SinkProgress { resumed: 3, written: 4, duplicates: 1, uncertain_duplicates: 3, ..SinkProgress::default() };
    assert_eq!(forwarder.progress(), sent);
}

#[tokio::test(start_paused = true)]
async fn a_full_spool_waits_or_drops_the_oldest_or_the_newest() {
    for (when_full, expected) in
        [(WhenFull::Block, None), (WhenFull::DropOldest, Some(30)), (WhenFull::DropNewest, Some(1))]
    {
        let directory = tempfile::tempdir().unwrap();
        let peer = Peer::default();
        peer.state().answers = vec![AttemptOutcome::Away("away".into(), None)];
        let forwarder = start(spool(directory.path(), 1000, when_full), pace(1), peer.clone());
        append(&forwarder, &[&[1; 5]]);
        while forwarder.fault().is_none() {
            forwarder.woken().await;
        }
        let mut results = vec![true];
        for number in 2..=30 {
            results.push(forwarder.append(Bytes::copy_from_slice(&[number; 5]), 5, &Contents::default()).is_ok());
        }
        let SinkProgress { waiting, shed, .. } = forwarder.progress();
        let appended = results.iter().filter(|appended| **appended).count() as u64;
        assert_eq!(waiting + shed, appended * 5, "{when_full:?}");
        assert_eq!(appended < 30, when_full == WhenFull::Block);
        assert!(forwarder.settled_within(LONG).await);
        assert_eq!(peer.numbers().len() as u64, waiting);
        let part: Vec<u8> = peer.numbers();
        match expected {
            // The first one was being sent.
            Some(30) => assert!(part.ends_with(&[30; 5]) && part.starts_with(&[1; 5]) && part[5] != 2),
            Some(_) => assert!(part.starts_with(&[1; 5]) && !part.ends_with(&[30])),
            None => assert!(part.starts_with(&[1; 5])),
        }
    }
}

/// A spool that never has space.
fn without_space(directory: &Path, when_full: WhenFull) -> RequestStore {
    let limits = SpoolLimits { max_bytes: 1 << 20, segment_bytes: 200, min_free_bytes: u64::MAX / 2 };
    RequestStore::Spool(Box::new(Spool::open(directory, limits).unwrap().0), when_full)
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_takes_requests_gets_them_although_the_spool_has_no_space() {
    for when_full in [WhenFull::Block, WhenFull::DropOldest, WhenFull::DropNewest] {
        let directory = tempfile::tempdir().unwrap();
        let peer = Peer::default();
        // One request is never taken; the others are.
        peer.state().never = vec![9];
        let forwarder = start(without_space(directory.path(), when_full), pace(2), peer.clone());
        append(&forwarder, &[&[9]]);
        for number in 10..=200 {
            append(&forwarder, &[&[number, number]]);
            while forwarder.progress().written < u64::from(number - 9) * 2 {
                forwarder.woken().await;
            }
            // Attempts of the one fail meanwhile.
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(peer.numbers(), (10..=200).flat_map(|number| [number, number]).collect::<Vec<_>>());
        let SinkProgress { written, failed, shed, waiting, .. } = forwarder.progress();
        assert_eq!((written, failed, shed, waiting), (382, 0, 0, 1), "{when_full:?}");
        assert!(peer.state().attempts.values().any(|attempts| *attempts > 5));
        // The disk does not take what waits: it is lost, or dropped as configured.
        assert_eq!(forwarder.close().is_err(), when_full == WhenFull::Block);
        let SinkProgress { written, failed, shed, waiting, .. } = forwarder.progress();
        let lost = u64::from(when_full == WhenFull::Block);
        assert_eq!((written, failed, shed, waiting), (382, lost, 1 - lost, 0));
    }
}

/// Requests that are still in memory when a sink stops, because the destination was not known to be away, are dropped as those that
/// come later, or in their place the oldest.
#[tokio::test(start_paused = true)]
async fn a_stop_drops_as_configured_what_the_disk_does_not_take() {
    for when_full in [WhenFull::Block, WhenFull::DropOldest, WhenFull::DropNewest] {
        let directory = tempfile::tempdir().unwrap();
        let peer = Peer::default();
        peer.state().answers = vec![AttemptOutcome::Away("away".into(), None); 1000];
        let forwarder = start(spool(directory.path(), 1000, when_full), pace(4), peer.clone());
        for number in 1..=60 {
            append(&forwarder, &[&[number; 5]]);
        }
        let closed = forwarder.close();
        assert_eq!(closed.is_err(), when_full == WhenFull::Block, "{when_full:?}: {closed:?}");
        let SinkProgress { failed, shed, waiting, .. } = forwarder.progress();
        assert!(waiting > 0 && failed + shed + waiting == 300, "{when_full:?}: {failed} {shed} {waiting}");
        assert_eq!((failed > 0, shed > 0), (when_full == WhenFull::Block, when_full != WhenFull::Block));
        assert_eq!(forwarder.take_missed().iter().map(|missed| missed.events).sum::<u64>(), shed);
        drop(forwarder);
        tokio::task::yield_now().await;
        peer.state().answers.clear();
        let forwarder = start(spool(directory.path(), 1000, when_full), pace(4), peer.clone());
        assert!(forwarder.settled_within(LONG).await);
        assert_eq!(
            forwarder.progress(),
            SinkProgress { resumed: waiting, written: waiting, ..SinkProgress::default() }
        );
        let first_is_kept = peer.numbers().contains(&1);
        assert_eq!(first_is_kept, when_full != WhenFull::DropOldest);
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_spool_takes_requests_as_soon_as_others_are_delivered() {
    let directory = tempfile::tempdir().unwrap();
    let peer = Peer::default();
    peer.state().answers = vec![AttemptOutcome::Away("away".into(), None); 3];
    let options = SpoolOptions {
        dir: directory.path().to_owned(),
        max_bytes: 1 << 20,
        when_full: WhenFull::Block,
        min_free_bytes: Some(0),
    };
    let mut outbox = Outbox::new("remote", "a peer".to_owned(), Some(options), pace(1));
    outbox.start(|| Ok(peer.clone())).unwrap();
    let payload = Bytes::from(vec![7; 100_000]);
    let (mut full, mut began) = (false, Instant::now());
    for _ in 0..200 {
        outbox.hold(1);
        outbox.push(payload.clone(), 1, Contents::default());
        while outbox.flush().await.is_err() {
            if !std::mem::replace(&mut full, true) {
                began = Instant::now();
            }
            outbox.woken().await;
        }
        // So that the first attempt fails before the last request is appended.
        tokio::task::yield_now().await;
        if !full {
            sleep(Duration::from_millis(10)).await;
        }
    }
    assert!(full);
    while outbox.progress().waiting > 0 {
        sleep(Duration::from_millis(10)).await;
    }
    // A request takes 10 ms, and the pauses of the first one are shorter than a second: nothing has waited for a retry.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(outbox.progress().written, 200);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_waits_is_answered_when_the_destination_has_its_events_or_neither_it_nor_the_disk_takes_them() {
    for is_away in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let peer = Peer::default();
        if is_away {
            peer.state().answers = vec![AttemptOutcome::Away("away".into(), None); 1000];
        }
        let options = SpoolOptions {
            dir: directory.path().to_owned(),
            max_bytes: 1 << 20,
            when_full: WhenFull::Block,
            min_free_bytes: Some(u64::MAX / 2),
        };
        let mut outbox = Outbox::new("remote", "a peer".to_owned(), Some(options), pace(4));
        outbox.start(|| Ok(peer.clone())).unwrap();
        let batch = a_log();
        outbox.begin(&Selection::new(&batch, Kinds::ALL).numbered(7).at_level(AckLevel::Durable));
        outbox.hold(1);
        outbox.push(Bytes::from_static(&[1]), 1, Contents::default());
        outbox.flush().await.unwrap();
        assert!(outbox.unwritten().unsynced.contains(&7));
        let unwritten = loop {
            outbox.woken().await;
            outbox.flush().await.unwrap();
            let unwritten = outbox.unwritten();
            if unwritten.unsynced.is_empty() {
                break unwritten;
            }
        };
        assert_eq!(unwritten.failed.contains_key(&7), is_away);
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_stays_unsynced_until_the_outbox_has_started() {
    let directory = tempfile::tempdir().unwrap();
    let options = SpoolOptions {
        dir: directory.path().to_owned(),
        max_bytes: 1 << 20,
        when_full: WhenFull::Block,
        min_free_bytes: Some(0),
    };
    let mut outbox = Outbox::new("remote", "a peer".to_owned(), Some(options), pace(1));
    let batch = Batch::default();
    outbox.begin(&Selection::new(&batch, Kinds::ALL).numbered(7).at_level(AckLevel::Durable));
    outbox.sync();
    assert_eq!(outbox.unwritten().unsynced.into_iter().collect::<Vec<_>>(), [7]);
    outbox.start(|| Ok(Peer::default())).unwrap();
    outbox.flush().await.unwrap();
    outbox.sync();
    assert!(outbox.unwritten().unsynced.is_empty());
}

/// With one request at a time, too: then a further one is tried when the first one has failed many times.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_taken_is_given_up_while_others_are_taken() {
    for max_in_flight in [1, 4] {
        let directory = tempfile::tempdir().unwrap();
        let peer = Peer::default();
        peer.state().never = vec![1, 2];
        let forwarder = start(spool(directory.path(), 1 << 20, WhenFull::Block), pace(max_in_flight), peer.clone());
        append(&forwarder, &[&[1, 11, 12], &[3]]);
        // The destination takes a request each 10 s.
        for number in 20..=120 {
            append(&forwarder, &[&[number]]);
            sleep(Duration::from_secs(10)).await;
        }
        assert!(forwarder.settled_within(LONG).await);
        let sent = SinkProgress { written: 102, failed: 3, ..SinkProgress::default() };
        assert_eq!(SinkProgress { retries: 0, ..forwarder.progress() }, sent, "{max_in_flight} at a time");
        let refusals = forwarder.take_refusals();
        assert!(
            refusals.len() == 1 && refusals[0].contains("3 events was refused: 500 a poison; given up after 2"),
            "{refusals:?}"
        );
        assert_eq!(std::fs::read_dir(directory.path().join("refused")).unwrap().count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_given_up_while_the_destination_takes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let peer = Peer::default();
    peer.state().answers = vec![AttemptOutcome::Away("away".into(), None); 100_000];
    let forwarder = start(spool(directory.path(), 1 << 20, WhenFull::Block), pace(2), peer.clone());
    append(&forwarder, &[&[1], &[2], &[3], &[4]]);
    assert!(!forwarder.settled_within(24 * LONG).await);
    assert_eq!((forwarder.progress().waiting, forwarder.progress().failed), (4, 0));
    assert_eq!(peer.state().attempts.len(), 3, "two at a time, and one that shows whether others are taken");
    peer.state().answers.clear();
    assert!(forwarder.settled_within(LONG).await);
    assert_eq!(forwarder.progress().written, 4);
}

/// Without a spool, batches are not settled before the destination has them; one that is never taken stops no other.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_taken_stops_no_sink_without_a_spool() {
    let peer = Peer::default();
    peer.state().never = vec![1];
    let mut outbox = Outbox::new("remote", "a peer".to_owned(), None, pace(1));
    outbox.start(|| Ok(peer.clone())).unwrap();
    let batch = Batch::default();
    let mut failed = Vec::new();
    for number in 1..=60 {
        outbox.begin(&Selection::new(&batch, Kinds::ALL).numbered(number));
        outbox.hold(1);
        outbox.push(Bytes::copy_from_slice(&[number as u8]), 1, Contents::default());
        while outbox.flush().await.is_err() {}
        failed.extend(outbox.unwritten().failed.into_keys());
        sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(outbox.progress().failed, 1, "given up");
    assert_eq!((outbox.progress().written, outbox.progress().waiting), (59, 0));
    assert_eq!(failed[0], 1, "its peer is not answered that it is written");
    // One that is not given up yet when the sink ends has failed.
    peer.state().never = vec![99];
    outbox.hold(1);
    outbox.push(Bytes::from_static(&[99]), 1, Contents::default());
    while outbox.flush().await.is_err() {}
    outbox.close().await.unwrap();
    assert_eq!((outbox.progress().failed, outbox.progress().waiting), (2, 0));
}
