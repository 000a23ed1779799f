//! The identity of a listener: its attributes are in the resource of every event of every protocol, losses included.

use std::future::pending;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tributary::simulate::{AgentKind, Amount, Plan, bytefrog, datadog, datadog_agent, endless, rbkit, zico};

use crate::live::{Daemon, Stopped, within};

/// The options of a listener that names itself.
const SHOP: &str =
    "resource = { \"service.name\" = \"store-front\", \"deployment.environment.name\" = \"prod\", zone = 3 }";

/// A listener of this protocol called `test`, with further lines of its own.
fn listener(protocol: &str, options: &str) -> String {
    let listen = if protocol == "rbkit" { "" } else { "listen = \"127.0.0.1:0\"" };
    format!("[listeners.test]\nprotocol = \"{protocol}\"\n{listen}\n{options}\n")
}

/// A daemon that a simulated agent of this protocol has sent 300 events.
async fn observed(protocol: &str, options: &str) -> Stopped {
    let plan = rbkit::Plan { amount: Amount::Events(300), rate: None, seed: 5 };
    let process = rbkit::SimulatedProcess::bind(rbkit::Options {
        publish: "127.0.0.1:0".parse().unwrap(),
        request: "127.0.0.1:0".parse().unwrap(),
        ..rbkit::Options::default()
    });
    let process = process.await.unwrap();
    let rbkit::Options { publish, request, .. } = process.options();
    let ruby =
        format!("agents = [{{ publish = \"{publish}\", request = \"{request}\", enable = [\"memory_profile\"] }}]");
    let more = match protocol {
        "rbkit" => ruby.as_str(),
        "bytefrog" => "calls = \"both\"",
        _ => "",
    };
    let daemon = Daemon::start(&listener(protocol, &format!("{options}\n{more}"))).await;
    let agent = match protocol {
        "rbkit" => {
            within("the process ends", process.run(plan, pending())).await.unwrap();
            daemon.until_all_closed().await;
            return daemon.stop().await;
        }
        "bytefrog" => AgentKind::Bytefrog(bytefrog::Options::default()),
        "datadog" => AgentKind::Datadog(datadog::DatadogDialect::default()),
        "datadog_agent" => AgentKind::DatadogAgent(datadog_agent::TracerDialect::default()),
        "endless" => AgentKind::Endless(endless::AgentVersion::default()),
        // Newer agents do not register, and send no name of their application.
        _ => AgentKind::Zico(zico::ZicoDialect::Gen1),
    };
    let to = daemon.server.address().unwrap();
    let plan = Plan { to, amount: Amount::Events(300), rate: None, connections: 2, seed: 7 };
    within(protocol, tributary::simulate::run(agent, plan, pending())).await.unwrap();
    daemon.until_all_closed().await;
    daemon.stop().await
}

const PROTOCOLS: [&str; 6] = ["rbkit", "bytefrog", "datadog", "datadog_agent", "endless", "zico"];

#[tokio::test]
async fn what_an_agent_does_not_send_is_in_every_resource() {
    for protocol in PROTOCOLS {
        let events = observed(protocol, SHOP).await.events;
        assert!(events.len() >= 300, "{protocol}");
        for event in &events {
            let resource = &event["resource"];
            assert_eq!(resource["zone"], 3, "{event}");
            assert!(resource["service.name"].as_str().is_some_and(|name| !name.is_empty()), "{event}");
        }
        // These agents send names of their own; the others send none.
        let own = events.iter().filter(|event| event["resource"]["service.name"] != "store-front").count();
        assert_eq!(own > 0, ["datadog", "datadog_agent", "zico"].contains(&protocol), "{protocol}");
    }
}

#[tokio::test]
async fn with_resource_wins_an_agent_cannot_change_the_name() {
    for protocol in PROTOCOLS {
        let events = observed(protocol, &format!("{SHOP}\nresource_wins = true")).await.events;
        for event in &events {
            let resource = &event["resource"];
            assert_eq!((&resource["service.name"], &resource["zone"]), (&"store-front".into(), &3.into()), "{event}");
            assert_eq!(resource["deployment.environment.name"], "prod", "{event}");
        }
        // What a span's own service is, is not lost.
        let kept = |event: &&Value| event["attributes"]["service.name"].is_string();
        assert_eq!(events.iter().any(|event| kept(&event)), protocol.starts_with("datadog"), "{protocol}");
    }
}

#[tokio::test]
async fn losses_that_no_session_reports_have_it_too() {
    let daemon = Daemon::start(&listener("datadog", SHOP)).await;
    daemon.connect().await.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    daemon.until_all_closed().await;
    let events = daemon.stop().await.events;
    assert!(!events.is_empty());
    assert!(events.iter().all(|event| event["kind"] == "loss" && event["resource"]["service.name"] == "store-front"));
}
