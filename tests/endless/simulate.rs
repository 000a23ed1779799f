//! The simulated machines, checked with GLib's rules and the daemon.

use std::collections::BTreeSet;
use std::future::pending;

use crate::endless_support::http::listener;
use crate::live::{Daemon, within};
use serde_json::Value;
use tributary::codec::gvariant::{Scratch, Skip, Slice, visit_type};
use tributary::event::Kind;
use tributary::simulate::endless::{AgentVersion, Machine};
use tributary::simulate::{AgentKind, Amount, Plan, run};

const START: u64 = 1_795_132_800_000_000_000;

fn bundle_type(version: AgentVersion) -> &'static str {
    match version {
        AgentVersion::V2 => "(ixxaya(uayxmv)a(uayxxmv)a(uaya(xmv)))",
        AgentVersion::V3 => "(xxsa{ss}ya(aysxmv)a(ayssumv))",
    }
}

#[test]
fn bundles_of_an_independent_library_are_in_normal_form_at_any_size() {
    for version in [AgentVersion::V2, AgentVersion::V3] {
        let mut machine = Machine::new(7, 0, START, version);
        for events in [0, 1, 2, 3, 5, 8, 40, 300, 2000] {
            let upload = machine.upload(events).unwrap();
            let walked =
                visit_type(bundle_type(version), Slice::new(&upload.bundle), 0, &mut Scratch::default(), &mut Skip);
            assert_eq!(walked, Ok(()), "{version:?} {events}");
        }
    }
}

#[test]
fn equal_seeds_give_equal_requests() {
    for version in [AgentVersion::V2, AgentVersion::V3] {
        let requests = |seed, number| {
            let mut machine = Machine::new(seed, number, START, version);
            let mut request = |later: u64| {
                machine.set_clock(START + later * 1_000_000_000);
                let upload = machine.upload(500).unwrap();
                machine.request(&upload, "127.0.0.1:8080").unwrap()
            };
            [1, 2, 60].map(&mut request)
        };
        assert!(requests(1, 0) == requests(1, 0), "{version:?}");
        assert!(requests(1, 0) != requests(1, 1), "{version:?}");
        assert!(requests(1, 0) != requests(2, 0), "{version:?}");
    }
}

async fn simulate(version: AgentVersion, events: u64, connections: usize) -> (Vec<Value>, tributary::simulate::Sent) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "")).await;
    let to = daemon.server.address().unwrap();
    let plan = Plan { to, amount: Amount::Events(events), rate: None, connections, seed: 3 };
    let sent = within("the agents", run(AgentKind::Endless(version), plan, pending())).await.unwrap();
    let stopped = daemon.stop().await;
    let totals = &stopped.totals.listeners[0];
    assert_eq!(totals.events() - totals.count(Kind::Loss), sent.events);
    assert_eq!(totals.count(Kind::Loss), 0, "{:?}", crate::live::losses(&stopped.events));
    (stopped.events, sent)
}

#[tokio::test]
async fn every_simulated_event_of_version_3_arrives_once() {
    let (events, sent) = simulate(AgentVersion::V3, 3000, 3).await;
    assert_eq!((sent.events, sent.messages), (3000, 6));
    let named = events.iter().filter(|event| event["attributes"]["endless.event.name"].is_string()).count();
    assert!(named > 2000 && named < 3000, "{named} of them are known");
    let fields = events.iter().filter(|event| event["attributes"]["endless.fields"].is_object()).count();
    assert!(fields > 2000);
    assert!(events.iter().all(|event| event["attributes"].get("endless.payload.expected").is_none()));
    assert!(events.iter().any(|event| event["kind"] == "metric"));
    let times: BTreeSet<_> =
        events.iter().filter(|event| event["kind"] == "log").map(|event| event["time"].as_str().unwrap()).collect();
    assert!(times.len() > 2000, "moments differ");
}

#[tokio::test]
async fn every_simulated_event_of_version_2_arrives_once() {
    let (events, sent) = simulate(AgentVersion::V2, 2001, 1).await;
    assert_eq!((sent.events, sent.messages), (2001, 5));
    let elements = events.iter().filter(|event| event["name"] == "endless.sequence").count();
    assert!(elements > 20 && elements % 2 == 0);
    assert!(events.iter().all(|event| event["attributes"]["endless.payload.type"] != "v"), "unwrapped");
}
