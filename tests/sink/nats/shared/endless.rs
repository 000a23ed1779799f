//! Uploads of Endless machines that are sent again to another daemon.

use tributary::protocol::endless::wire::{BundleLayout, bundle};
use tributary::simulate::endless::{AgentVersion, Machine};

use super::super::STREAM;
use super::super::daemon::assert_once;
use super::{Edge, ask, ids};
use crate::endless_support::http::plain;
use crate::live::binary::Binary;
use crate::nats_server::NatsServer;

/// The time of the first upload: a minute ago, so that the clocks of this one and of later ones are plausible.
pub(super) fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    (now.as_nanos() - 60_000_000_000) as u64
}

pub(super) fn number(version: AgentVersion) -> u64 {
    if version == AgentVersion::V2 { 2 } else { 3 }
}

/// The bundle as the machine sends it `nanos` nanoseconds later: only the stamp at its front differs.
pub(super) fn later(bundle: &[u8], version: AgentVersion, nanos: i64) -> Vec<u8> {
    let mut bundle = bundle.to_vec();
    let start = if version == AgentVersion::V2 { 8 } else { 0 };
    if version == AgentVersion::V2 {
        let sent = i32::from_le_bytes(bundle[..4].try_into().unwrap());
        bundle[..4].copy_from_slice(&(sent + 1).to_le_bytes());
    }
    for at in [start, start + 8] {
        let clock = i64::from_le_bytes(bundle[at..at + 8].try_into().unwrap());
        bundle[at..at + 8].copy_from_slice(&(clock + nanos).to_le_bytes());
    }
    bundle
}

/// Uploads a bundle; returns the status.
pub(super) fn upload(daemon: &Binary, version: AgentVersion, bundle: &[u8]) -> u16 {
    ask(daemon.address("desktops"), &plain(number(version), bundle)).status
}

#[test]
fn the_same_upload_that_is_sent_to_two_daemons_with_other_stamps_is_in_the_stream_once() {
    for version in [AgentVersion::V2, AgentVersion::V3] {
        let Some(server) = NatsServer::start() else { return };
        // Messages are the same whatever else the sink is configured to, and whatever waits in it.
        let edges = [
            Edge::new(&server, "", "", ""),
            Edge::new(&server, "", "", "batch_bytes = \"1KiB\""),
            Edge::new(&server, "", "", "spool = { dir = \"DIR/spool\", min_free_bytes = \"0B\" }"),
        ];
        let daemons = edges.each_ref().map(Edge::start);
        let (mut machine, mut other) = (Machine::new(1, 0, now(), version), Machine::new(2, 0, now(), version));
        // Several batches, and several kinds of events.
        let sizes = [3000, 1, 20];
        let uploads = sizes.map(|events| machine.upload(events).unwrap());
        let mut events = 0;
        for (round, upload_) in uploads.iter().enumerate() {
            let mut before = None;
            for (place, daemon) in daemons.iter().enumerate() {
                // Another machine's upload before it, which is only sent here.
                let noise = other.upload(5).unwrap();
                assert_eq!(upload(daemon, version, &noise.bundle), 200);
                events += noise.counts.events;
                let restamped = later(&upload_.bundle, version, 1_000_000_000 * place as i64);
                assert_eq!(upload(daemon, version, &restamped), 200, "round {round}");
                let stored = ids(&server).len();
                if place == 0 {
                    events += upload_.counts.events;
                }
                // Only the messages of the other machine are new: at most one for each kind.
                assert!(before.is_none_or(|before| stored - before <= 3), "{before:?} {stored}");
                before = Some(stored);
            }
            // The last daemon answers from its spool.
            super::until_events(&server, events);
        }
        super::until_events(&server, events);
        assert_once(&server, events);
        let mut all = ids(&server);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), server.messages(STREAM).len());
    }
}

#[test]
fn counts_of_a_day_are_dropped_if_the_same_machine_sends_them_again_and_kept_if_another_one_does() {
    let Some(server) = NatsServer::start() else { return };
    let edges = [Edge::new(&server, "", "", ""), Edge::new(&server, "", "", "")];
    let [first, second] = edges.each_ref().map(Edge::start);
    // A bundle of aggregates only has nothing by which its machine could be recognized, except for the origin of its clock.
    let mut machine = Machine::new(3, 0, now(), AgentVersion::V3);
    let mut aggregates_only = || loop {
        let upload = machine.upload(1).unwrap();
        let [singular, aggregate, _] = bundle(&upload.bundle, BundleLayout::V3).unwrap().sections;
        if singular.is_empty() && !aggregate.is_empty() {
            return upload.bundle;
        }
    };
    let counts = aggregates_only();
    assert_eq!(upload(&first, AgentVersion::V3, &counts), 200);
    assert_eq!(upload(&second, AgentVersion::V3, &later(&counts, AgentVersion::V3, 2_000_000_000)), 200);
    super::until_events(&server, 1);
    assert_once(&server, 1);
    // The same counts from a machine that was started an hour later.
    let mut of_another = counts.clone();
    let relative = i64::from_le_bytes(of_another[..8].try_into().unwrap()) - 3_600_000_000_000;
    of_another[..8].copy_from_slice(&relative.to_le_bytes());
    assert_eq!(upload(&second, AgentVersion::V3, &of_another), 200);
    super::until_events(&server, 2);
    assert_eq!(super::events(&server).len(), 2);
}

#[test]
fn ids_survive_a_kill_and_a_restart_from_the_spool() {
    let Some(mut server) = NatsServer::start() else { return };
    let spool = "spool = { dir = \"DIR/spool\", min_free_bytes = \"0B\" }";
    let edges = [Edge::new(&server, "", "", spool), Edge::new(&server, "", "", spool)];
    let [first, second] = edges.each_ref().map(Edge::start);
    server.kill();
    let uploaded = Machine::new(4, 0, now(), AgentVersion::V3).upload(700).unwrap();
    for (place, daemon) in [&first, &second].into_iter().enumerate() {
        // Both have it on their disks, and answer.
        assert_eq!(upload(daemon, AgentVersion::V3, &later(&uploaded.bundle, AgentVersion::V3, place as i64)), 200);
    }
    for daemon in [first, second] {
        daemon.signal("KILL");
        drop(daemon.end());
    }
    server.start_again();
    let daemons = edges.each_ref().map(Edge::start);
    super::until_events(&server, uploaded.counts.events);
    for daemon in daemons {
        daemon.signal("TERM");
        assert_eq!(daemon.end().code, Some(0));
    }
    assert_once(&server, uploaded.counts.events);
}

#[test]
fn without_content_ids_each_daemon_has_ids_of_its_own() {
    let Some(server) = NatsServer::start() else { return };
    let edges = ["content_ids = false", "content_ids = false"].map(|sink| Edge::new(&server, "", "", sink));
    let daemons = edges.each_ref().map(Edge::start);
    let uploaded = Machine::new(5, 0, now(), AgentVersion::V3).upload(10).unwrap();
    for daemon in &daemons {
        assert_eq!(upload(daemon, AgentVersion::V3, &uploaded.bundle), 200);
    }
    super::until_events(&server, 20);
    assert_eq!(super::events(&server).len(), 20);
}
