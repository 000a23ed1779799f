//! Daemons that share what they have delivered in a bucket.

use tributary::protocol::endless::wire::{BundleLayout, bundle};
use tributary::simulate::endless::{AgentVersion, Machine};

use super::super::daemon::{get, until_not_ready, until_ready};
use super::endless::{later, now, upload};
use super::{Edge, assert_each_once, metric};
use crate::live::binary::{Binary, until};
use crate::nats_server::NatsServer;

/// A stream that recognizes no repeats after a short time: only the bucket does.
const SINK: &str = "duplicate_window = \"100ms\"\nrequest_timeout = \"15s\"";
const SEEN: &str = "seen = \"URL/seen\"\nseen_timeout = \"15s\"";

fn fleet(server: &NatsServer, seen: &str, sink: &str) -> ([Edge; 2], [Binary; 2]) {
    let edges = [Edge::new(server, seen, "", sink), Edge::new(server, seen, "", sink)];
    let daemons = edges.each_ref().map(Edge::start);
    (edges, daemons)
}

fn repeats(daemon: &Binary, known: &str) -> u64 {
    metric(daemon, "tributary_repeats_total", &format!("known=\"{known}\""))
}

/// Machine `seed` of this version, whose first upload has the first `events` of those of a longer one.
fn growing(seed: u64, version: AgentVersion, events: [u64; 2]) -> [(Vec<u8>, u64); 2] {
    let at = now();
    events.map(|events| {
        let upload = Machine::new(seed, 0, at, version).upload(events).unwrap();
        (upload.bundle, upload.counts.events)
    })
}

/// The first uploads of machine `seed`, of five events each.
fn uploads_of(seed: u64, count: usize) -> Vec<Vec<u8>> {
    let mut machine = Machine::new(seed, 0, now(), AgentVersion::V3);
    (0..count).map(|_| machine.upload(5).unwrap().bundle).collect()
}

/// The number of entries by which the bucket knows an upload of version 3.
fn sections(upload: &[u8]) -> u64 {
    let sections = bundle(upload, BundleLayout::V3).unwrap().sections;
    sections.iter().filter(|section| !section.is_empty()).count() as u64
}

#[test]
fn events_that_another_daemon_has_delivered_are_left_out_and_counted_also_when_more_have_joined_them() {
    let Some(server) = NatsServer::start() else { return };
    for version in [AgentVersion::V2, AgentVersion::V3] {
        let (_edges, [first, second]) = fleet(&server, SEEN, SINK);
        // The simulated machine of version 2 makes other events when it makes more.
        let sizes = if version == AgentVersion::V2 { [50, 50] } else { [50, 80] };
        let [(small, few), (large, all)] = growing(11, version, sizes);
        let before = super::events(&server).len() as u64;
        assert_eq!(upload(&first, version, &small), 200);
        super::until_events(&server, before + few);
        // The same again, and then in a later cycle with more.
        assert_eq!(upload(&second, version, &later(&small, version, 1_000_000_000)), 200);
        assert_eq!((repeats(&second, "shared"), repeats(&second, "local")), (few, 0));
        assert_eq!(upload(&second, version, &later(&large, version, 2_000_000_000)), 200);
        super::until_events(&server, before + all);
        assert_eq!(super::events(&server).len() as u64, before + all);
        // The second one reports the rest to the first one.
        assert_eq!(upload(&first, version, &later(&large, version, 3_000_000_000)), 200);
        assert_eq!(super::events(&server).len() as u64, before + all);
        assert_eq!((repeats(&first, "local"), repeats(&first, "shared")), (few, all - few));
        let (_, metrics) = get(&first, "/metrics");
        assert!(
            metrics.contains(
                "tributary_lost_events_total{listener=\"desktops\",protocol=\"endless\",reason=\"duplicate\"}"
            )
        );
    }
}

#[test]
fn a_daemon_that_is_killed_after_its_answer_was_lost_is_not_asked_and_the_upload_is_written_once() {
    let Some(server) = NatsServer::start() else { return };
    let (edges, [first, second]) = fleet(&server, SEEN, SINK);
    let mut events = 0;
    let mut daemons = [Some(first), Some(second)];
    for round in 0..6_u64 {
        let [(small, _), (large, all)] = growing(100 + round, AgentVersion::V3, [20, 33]);
        let (one, other) = ((round % 2) as usize, ((round + 1) % 2) as usize);
        assert_eq!(upload(daemons[one].as_ref().unwrap(), AgentVersion::V3, &small), 200);
        // The machine never got the answer, and the daemon remembers nothing.
        let killed = daemons[one].take().unwrap();
        killed.signal("KILL");
        drop(killed.end());
        assert_eq!(
            upload(daemons[other].as_ref().unwrap(), AgentVersion::V3, &later(&large, AgentVersion::V3, 5)),
            200
        );
        daemons[one] = Some(edges[one].start());
        assert_eq!(upload(daemons[one].as_ref().unwrap(), AgentVersion::V3, &later(&large, AgentVersion::V3, 9)), 200);
        events += all;
    }
    super::until_events(&server, events);
    assert_each_once(&server, events);
}

#[test]
fn while_nats_is_away_uploads_are_answered_from_the_spool_and_noted_when_it_is_back() {
    let Some(mut server) = NatsServer::start() else { return };
    let sink = format!("{SINK}\nspool = {{ dir = \"DIR/spool\", min_free_bytes = \"0B\" }}");
    let (_edges, [first, second]) = fleet(&server, SEEN, &sink);
    server.kill();
    let [(small, few), (large, all)] = growing(21, AgentVersion::V3, [30, 45]);
    assert_eq!(upload(&first, AgentVersion::V3, &small), 200);
    until("there is a note", || get(&first, "/readyz").1.contains("what it shares is away").then_some(()));
    server.start_again();
    super::until_events(&server, few);
    until_ready(&first);
    until("the delivery is noted", || (server.count("KV_seen") >= sections(&small)).then_some(()));
    until("both are connected", || (!get(&second, "/readyz").1.contains("away")).then_some(()));
    assert_eq!(upload(&second, AgentVersion::V3, &later(&large, AgentVersion::V3, 7)), 200);
    super::until_events(&server, all);
    assert_each_once(&server, all);
}

#[test]
fn a_server_that_does_not_answer_delays_uploads_for_seen_timeout_only() {
    let Some(server) = NatsServer::start() else { return };
    let spool = "spool = { dir = \"DIR/spool\", min_free_bytes = \"0B\" }";
    let edge = Edge::new(&server, "seen = \"URL/seen\"\nseen_timeout = \"50ms\"", "", spool);
    let daemon = edge.start();
    // The first look-up is the one without an answer: look-ups and notes share one warning a minute.
    server.signal("STOP");
    let uploads = uploads_of(31, 2);
    for sent in &uploads {
        // Answered, although the bucket answers neither the look-up nor the note.
        assert_eq!(upload(&daemon, AgentVersion::V3, sent), 200);
    }
    daemon.until_stderr("it is not known which events other daemons have delivered");
    daemon.until_stderr("no answer within 50ms (seen_timeout)");
    server.signal("CONT");
    super::until_events(&server, 10);
    assert_each_once(&server, 10);
    let sections = uploads.iter().map(|upload| sections(upload)).sum();
    until("both are noted", || (server.count("KV_seen") >= sections).then_some(()));
}

#[test]
fn a_bucket_that_forgets_too_early_is_reported() {
    let Some(server) = NatsServer::start() else { return };
    let hour = serde_json::json!({ "max_age": 3_600_000_000_000_u64, "max_msgs_per_subject": 1, "allow_direct": true });
    server.create("KV_seen", &["$KV.seen.>"], hour);
    let edge = Edge::new(&server, SEEN, "", "");
    let daemon = edge.spawn();
    until_not_ready(&daemon, "keeps values for 1h, and they are needed for 2d");
    server.update("KV_seen", serde_json::json!({ "max_age": 0 }));
    until_ready(&daemon);
    let upload_ = Machine::new(41, 0, now(), AgentVersion::V3).upload(5).unwrap();
    assert_eq!(upload(&daemon, AgentVersion::V3, &upload_.bundle), 200);
    assert!(server.count("KV_seen") > 0);
}
