//! Resources with the identity of their listener, in the encoders.

use std::sync::Arc;

use serde_json::json;
use tributary::event::{BatchBuilder, Identity, Origin, Resource, ResourceValue, Severity, semconv};

use super::{header, json, text};

fn identified(wins: bool) -> BatchBuilder {
    let attributes = vec![
        ("service.name".to_owned(), ResourceValue::from("shop")),
        ("weight".to_owned(), ResourceValue::F64(0.5)),
        ("canary".to_owned(), ResourceValue::Bool(true)),
    ];
    let identity = Arc::new(Identity::new(attributes, wins));
    let origin = Origin::new("datadog", "apm".into(), "127.0.0.1:40112".into(), 9).with_identity(Some(identity));
    BatchBuilder::new(Arc::new(origin))
}

fn sent(attributes: &[(&str, &str)]) -> Arc<Resource> {
    let attributes = attributes.iter().map(|(key, value)| ((*key).to_owned(), ResourceValue::from(*value)));
    Arc::new(Resource::new(attributes))
}

/// The resources of two events: before the agent has sent anything of itself, and after it.
fn resources(wins: bool, agent: &[(&str, &str)]) -> [serde_json::Value; 2] {
    let mut builder = identified(wins);
    builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Info, None);
    builder.set_resource(sent(agent));
    builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Info, None);
    let lines = json(&builder.take());
    let mut lines =
        lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["resource"].clone());
    [lines.next().unwrap(), lines.next().unwrap()]
}

#[test]
fn it_stands_under_what_the_agent_sends_unless_it_wins() {
    let alone = json!({"service.name": "shop", "weight": 0.5, "canary": true});
    let agent = [("service.name", "cart"), ("env", "prod")];
    let merged = |name: &str| json!({"service.name": name, "weight": 0.5, "canary": true, "env": "prod"});
    assert_eq!(resources(false, &agent), [alone.clone(), merged("cart")]);
    assert_eq!(resources(true, &agent), [alone.clone(), merged("shop")]);
    let empty = [("service.name", ""), ("env", "prod")];
    assert_eq!(resources(false, &empty), [alone, merged("shop")]);
}

#[test]
fn a_resource_is_merged_once_for_all_batches() {
    let mut builder = identified(false);
    let agent = sent(&[("env", "prod")]);
    let mut merged = Vec::new();
    for _ in 0..3 {
        builder.set_resource(agent.clone());
        builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Info, None);
        let batch = builder.take();
        merged.push(batch.events().next().unwrap().resource().clone());
    }
    assert!(merged.windows(2).all(|two| Arc::ptr_eq(&two[0], &two[1])));
}

#[test]
fn the_resource_of_one_event_is_not_that_of_the_next() {
    let mut builder = identified(false);
    let agent = sent(&[("env", "prod")]);
    builder.set_resource(agent.clone());
    let cart = Arc::new(Resource::of_service(&agent, "cart"));
    let cart = builder.intern_resource(&mut Default::default(), &cart);
    let mut event = builder.event(header(semconv::DATADOG_PROCESS));
    event.resource(cart);
    event.log(Severity::Info, None);
    builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Info, None);
    let batch = builder.take();
    let services: Vec<_> = batch.events().map(|event| event.resource().text(semconv::SERVICE_NAME).unwrap()).collect();
    assert_eq!(services, ["cart", "shop"]);
    let agents: Vec<_> = batch.events().map(|event| event.resource().agent().attributes().len()).collect();
    assert_eq!(agents, [4, 4], "services are of one agent");
    assert!(batch.events().all(|event| event.resource().agent().text(semconv::SERVICE_NAME) == Some("shop")));
}

#[test]
fn text_lines_show_the_service_of_the_resource() {
    let mut builder = identified(false);
    let mut event = builder.event(header(semconv::DATADOG_PROCESS));
    event.attribute(semconv::DATADOG_STRING_CACHE_SIZE, 7_u64);
    event.log(Severity::Info, None);
    let line = text(&builder.take());
    assert!(line.contains("datadog.process  service.name=shop datadog.string_cache_size=7  ["), "{line}");
}
