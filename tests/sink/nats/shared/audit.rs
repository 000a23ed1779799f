//! The sums of a fleet in which two daemons publish the same.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tributary::simulate::endless::{AgentVersion, Machine};

use super::super::STREAM;
use super::super::daemon::until_ready;
use super::super::listener::{FILES, Writer};
use super::Edge;
use super::endless::{later, now, upload};
use crate::live::binary::{run, until};
use crate::nats_server::NatsServer;

#[test]
fn the_sums_add_up_although_two_daemons_have_published_the_same_upload() {
    let Some(server) = NatsServer::start() else { return };
    let edges = [Edge::new(&server, "", "", ""), Edge::new(&server, "", "", "")];
    let daemons = edges.each_ref().map(Edge::start);
    let writer = Writer::new(&server.url(), "", FILES);
    let consuming = writer.start();
    until_ready(&consuming);
    // The counters of a daemon are compared with the stream only if it has started, to the second, before the first message.
    let seconds = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let ready = seconds();
    until("the clock shows a later second", || (seconds() > ready + 2).then_some(()));
    let machine = Machine::new(1, 0, now(), AgentVersion::V3).upload(50).unwrap();
    let again = later(&machine.bundle, AgentVersion::V3, 1_000_000_000);
    assert_eq!(upload(&daemons[0], AgentVersion::V3, &machine.bundle), 200);
    assert_eq!(upload(&daemons[1], AgentVersion::V3, &again), 200);
    let admins = [&daemons[0], &daemons[1], &consuming].map(|daemon| daemon.admin_address().to_string());
    let mut arguments = vec!["fleet", "audit", "--wait", "60s", "--stream", STREAM];
    arguments.extend(admins.iter().flat_map(|admin| ["--admin", admin.as_str()]));
    let url = server.url();
    arguments.extend(["--nats", &url]);
    let audit = run(&arguments);
    let report: Value = serde_json::from_str(&audit.stdout).unwrap_or_else(|error| panic!("{error}: {}", audit.stderr));
    assert_eq!((audit.code, &report["published_and_not_consumed"]), (Some(0), &json!(0)), "{report:#}");
    let events = machine.counts.events;
    let of = |name: &str| report["total"][name].as_u64().unwrap();
    let sums = ["published", "duplicates", "uncertain_duplicates", "consumed"].map(of);
    assert_eq!(sums, [2 * events, events, 0, events], "{report:#}");
    assert_eq!(writer.lines().len() as u64, events);
}
