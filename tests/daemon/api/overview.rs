//! The overview, agents, kept events, machines and losses.

use std::collections::BTreeSet;
use std::future::pending;

use tributary::simulate::{datadog, endless};

use super::*;
use crate::live::{connect, send_all, wire};

#[tokio::test]
async fn the_overview_has_the_counters_of_every_listener_and_sink() {
    let daemon = of_spans().await;
    simulate(&daemon, "test", AgentKind::Datadog(datadog::DatadogDialect::default()), 500).await;
    settle(&daemon).await;
    let overview = json(&daemon, "overview").await;
    let totals = daemon.counters();
    let shown = &overview["listeners"][0];
    assert_eq!((&shown["name"], &shown["protocol"]), (&"test".into(), &"datadog".into()));
    assert_eq!((number(&shown["events"]), number(&shown["bytes"])), (totals.events(), totals.bytes_in));
    assert_eq!((number(&shown["connections"]), number(&shown["connections_open"])), (2, 0));
    assert_eq!(shown["address"], daemon.server.address().unwrap().to_string());
    for name in ["bytes", "events", "losses", "connections_open"] {
        let values = array(&shown["history"], name);
        assert!(!values.is_empty() && values.len() <= number(&overview["history"]["points"]) as usize);
    }
    // The first sample has no events: the increments are all of them, when the next one is taken.
    let in_history =
        |overview: &Value| -> u64 { array(&overview["listeners"][0]["history"], "events").iter().map(number).sum() };
    until(&daemon, "overview", |overview| in_history(overview) == totals.events()).await;
    assert_eq!(overview["sinks"][0]["name"], "memory");
    assert_eq!(number(&overview["sinks"][0]["written"]), totals.events());
    assert_eq!((&overview["ready"]["is_ready"], &overview["ready"]["text"]), (&true.into(), &"ready".into()));
    let memory = &overview["memory"];
    assert_eq!(number(&memory["limit"]), number(&memory["reserved"]) + number(&memory["shared_limit"]));
    // The view is no sink of the totals: nothing depends on it.
    assert_eq!(daemon.server.accounting().totals().sinks.len(), 1);
    let overview = until(&daemon, "overview", |overview| overview["view"]["seen"] == totals.events()).await;
    assert_eq!((number(&overview["view"]["kept"]), number(&overview["view"]["skipped"])), (totals.events(), 0));
    daemon.stop().await;
}

#[tokio::test]
async fn an_agent_is_shown_with_its_resource_and_its_own_last_events() {
    let daemon = of_spans().await;
    simulate(&daemon, "test", AgentKind::Datadog(datadog::DatadogDialect::default()), 300).await;
    settle(&daemon).await;
    let agents = json(&daemon, "agents").await;
    let agent = &agents["agents"][0];
    assert_eq!((&agent["protocol"], &agent["state"]), (&"datadog".into(), &"active".into()));
    assert!(array(agent, "commands").is_empty() && agent["events_per_second"].as_f64().unwrap() > 0.0);
    let path = format!("agents/{}", agent["id"].as_str().unwrap());
    let one = until(&daemon, &path, |one| array(one, "events").len() == 50).await;
    assert_eq!(one["agent"]["resource"], agents_resource(&daemon).await);
    // The newest first, and each can be opened by its id.
    let event = &one["events"][0];
    let again = json(&daemon, &format!("events/{}", event["id"].as_str().unwrap())).await;
    assert_eq!(again, *event);
    assert!(daemon.events().contains(&event["event"]));
    assert_eq!(number(&json(&daemon, "agents?text=unknown").await["total"]), 0);
    assert_eq!(number(&json(&daemon, "agents?protocol=datadog").await["total"]), number(&agents["total"]));
    daemon.stop().await;
}

/// The resource of the first agent, as `/agents` has it.
async fn agents_resource(daemon: &Daemon) -> Value {
    request(address(daemon), "GET", "/agents", "").await.json()[0]["resource"].clone()
}

#[tokio::test]
async fn kept_events_are_found_by_protocol_kind_name_and_text() {
    let daemon = of_spans().await;
    simulate(&daemon, "test", AgentKind::Datadog(datadog::DatadogDialect::default()), 400).await;
    settle(&daemon).await;
    let all = daemon.events();
    let count = |is_it: &dyn Fn(&Value) -> bool| all.iter().filter(|event| is_it(event)).count();
    until(&daemon, "events?limit=1000", |found| array(found, "events").len() == all.len()).await;
    let name = all.iter().find(|event| event["kind"] == "span").unwrap()["name"].as_str().unwrap().to_owned();
    let start: String = name.chars().take(2).collect();
    for (query, expected) in [
        ("kind=span".to_owned(), count(&|event| event["kind"] == "span")),
        ("kind=log&kind=loss".to_owned(), count(&|event| event["kind"] != "span")),
        (format!("name={}", encoded(&name)), count(&|event| event["name"] == name.as_str())),
        (format!("name={}*", encoded(&start)), count(&|event| event["name"].as_str().unwrap().starts_with(&start))),
        ("protocol=endless".to_owned(), 0),
        ("listener=test&protocol=datadog".to_owned(), all.len()),
        (format!("text={}", encoded(&name.to_uppercase())), count(&|event| event.to_string().contains(&name))),
        ("text=there-is-no-such-text".to_owned(), 0),
    ] {
        let found = json(&daemon, &format!("events?limit=1000&{query}")).await;
        assert_eq!(array(&found, "events").len(), expected, "{query}");
        assert_eq!(found["is_cut"], false);
    }
    let few = json(&daemon, "events?limit=3").await;
    assert_eq!((array(&few, "events").len(), &few["is_cut"]), (3, &true.into()));
    assert_eq!(few["coverage"]["text"], "all events");
    daemon.stop().await;
}

#[tokio::test]
async fn machines_are_counted_by_name_image_and_site() {
    let daemon = daemon("[listeners.desktops]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\n").await;
    simulate(&daemon, "desktops", AgentKind::Endless(endless::AgentVersion::default()), 300).await;
    settle(&daemon).await;
    let events = daemon.events();
    let of_machines = |event: &&Value| event["attributes"]["endless.event.id"].is_string();
    let expected = events.iter().filter(of_machines).count() as u64;
    let sum = |rows: &Vec<Value>| rows.iter().map(|row| number(&row["events"])).sum::<u64>();
    let fleet = until(&daemon, "machines", |fleet| sum(array(fleet, "names")) == expected).await;
    for name in ["images", "sites", "machines"] {
        assert_eq!(sum(array(&fleet, name)), expected, "{name}");
    }
    let steps = fleet["history"]["names"].as_object().unwrap();
    assert_eq!(steps.values().flat_map(|steps| steps.as_array().unwrap()).map(number).sum::<u64>(), expected);
    assert!(steps.len() <= 11);
    let machine = &fleet["machines"][0];
    let one = json(&daemon, &format!("machines/{}", machine["id"].as_str().unwrap())).await;
    assert_eq!(one["machine"]["events"], machine["events"]);
    assert!(one["machine"]["resource"]["endless.image"].is_string());
    assert_eq!(array(&one, "events").len() as u64, number(&machine["events"]).min(200));
    let image = machine["image"].as_str().unwrap();
    let of_image = json(&daemon, &format!("machines?image={image}")).await;
    assert!(array(&of_image, "machines").iter().all(|machine| machine["image"] == image));
    daemon.stop().await;
}

#[tokio::test]
async fn machines_are_counted_from_every_event() {
    let settings = SETTINGS.replace("[view]", "[view]\nmemory = \"256KiB\"");
    let toml = format!("[listeners.desktops]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\n{settings}");
    let daemon = Daemon::start(&toml).await;
    simulate(&daemon, "desktops", AgentKind::Endless(endless::AgentVersion::default()), 2000).await;
    settle(&daemon).await;
    let of_machines = |event: &&Value| event["attributes"]["endless.event.id"].is_string();
    let expected = daemon.events().iter().filter(of_machines).count() as u64;
    let sum = |rows: &Vec<Value>| rows.iter().map(|row| number(&row["events"])).sum::<u64>();
    let fleet = until(&daemon, "machines", |fleet| sum(array(fleet, "names")) == expected).await;
    assert_eq!(sum(array(&fleet, "machines")) + number(&fleet["left_out"]), expected);
    let kept = json(&daemon, "events?kind=log&limit=1000").await;
    assert!(number(&kept["coverage"]["kept"]) < expected, "{}", kept["coverage"]);
    // A time before all of them has none.
    let from_ms = number(&fleet["window"]["from_ms"]);
    let before = json(&daemon, &format!("machines?from_ms={from_ms}&to_ms={from_ms}")).await;
    assert_eq!((array(&before, "machines").len(), sum(array(&before, "names"))), (0, 0));
    daemon.stop().await;
}

#[tokio::test]
async fn losses_are_grouped_by_cause_and_their_first_bytes_explained() {
    let daemon = of_spans().await;
    for _ in 0..3 {
        let mut stream = connect(&daemon.server).await;
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        within("an answer", stream.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 501 "), "{}", String::from_utf8_lossy(&answer));
    }
    settle(&daemon).await;
    let losses = until(&daemon, "losses", |losses| losses["groups"][0]["losses"] == 3).await;
    let (group, total) = (&losses["groups"][0], &losses["totals"][0]);
    let loss = &daemon.events()[0]["loss"];
    assert_eq!((&group["reason"], &group["excerpt"]), (&loss["reason"], &loss["excerpt"]));
    assert_eq!((number(&group["bytes"]), number(&total["bytes"])), (3 * 18, 3 * 18));
    assert_eq!((number(&total["losses"]), &total["listener"]), (3, &"test".into()));
    assert_eq!(array(&losses, "groups").len(), 1);
    assert!(array(group, "explained").iter().any(|line| line.as_str().unwrap().starts_with("00000000  47")), "{group}");
    assert_eq!(array(group, "peers").len(), 3);
    assert!(array(&json(&daemon, "losses?reason=gap").await, "groups").is_empty());
    assert_eq!(losses["coverage"]["text"], "all events");
    daemon.stop().await;
}

#[tokio::test]
async fn losses_of_one_cause_are_one_group_with_a_real_example_and_a_single_one_keeps_its_numbers() {
    let daemon = of_spans().await;
    let send = async |before: usize, object: [u8; 2]| {
        let spans: Vec<u8> = (0..before).flat_map(|_| wire::trace()).collect();
        send_all(connect(&daemon.server).await, &[wire::process(), spans, object.to_vec()].concat()).await;
    };
    send(0, [0xdd, 0x77]).await;
    settle(&daemon).await;
    let losses = until(&daemon, "losses", |losses| losses["groups"][0]["losses"] == 1).await;
    let detail = daemon.events().iter().find(|event| event["kind"] == "loss").unwrap()["loss"]["detail"].clone();
    assert!(text(&detail).contains("0xdd77"), "{detail}");
    assert_eq!((&losses["groups"][0]["cause"], &losses["groups"][0]["example"]), (&detail, &detail));
    // Others of its cause, at other places and with other types.
    for (before, low) in [(1, 0x78), (2, 0x79), (3, 0x7a)] {
        send(before, [0xdd, low]).await;
    }
    settle(&daemon).await;
    let losses = until(&daemon, "losses", |losses| losses["groups"][0]["losses"] == 4).await;
    let [group] = &array(&losses, "groups")[..] else { panic!("{losses}") };
    assert_eq!(group["example"], detail);
    assert!(text(&group["cause"]).starts_with("at #: object_type: # is not supported"), "{group}");
    daemon.stop().await;
}

#[tokio::test]
async fn the_first_bytes_of_a_loss_are_explained_where_a_message_begins() {
    let toml = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n{}[listeners.java]\nprotocol = \"bytefrog\"\nlisten = \"127.0.0.1:0\"\n",
        listener("max_message_bytes = \"4KiB\"")
    );
    let daemon = Daemon::start(&toml).await;
    // A string over the limit behind a valid object, and the hello of an unknown version.
    let spans = [wire::process(), wire::string(7, &"x".repeat(5000))].concat();
    let java = daemon.server.addresses().iter().find(|bound| &*bound.name == "java").unwrap().address;
    for (listener, bytes, words) in [
        ("test", spans, ["0000000e  ", "len: 5000 bytes", "characters"]),
        ("java", vec![0, 99], ["00000000  ", "version", "99"]),
    ] {
        let to = if listener == "java" { java } else { daemon.server.address().unwrap() };
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let path = format!("losses?listener={listener}");
        let losses = until(&daemon, &path, |losses| losses["groups"][0]["losses"] == 1).await;
        let explained = losses["groups"][0]["explained"].to_string();
        assert!(words.iter().all(|word| explained.contains(word)), "{listener}: {explained}");
    }
    daemon.stop().await;
}

#[tokio::test]
async fn a_machine_is_one_agent_with_one_name_whatever_it_uploads() {
    let daemon = daemon("[listeners.desktops]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\n").await;
    let bound = daemon.server.addresses().iter().find(|bound| bound.name == "desktops").unwrap();
    let plan = Plan { to: bound.address, amount: Amount::Events(12_000), rate: None, connections: 10, seed: 5 };
    let agent = AgentKind::Endless(endless::AgentVersion::V2);
    within("the machines end", tributary::simulate::run(agent, plan, pending())).await.unwrap();
    settle(&daemon).await;
    let uploads: BTreeSet<String> = daemon
        .events()
        .iter()
        .map(|event| format!("{} {}", event["origin"]["connection"], event["resource"]["endless.send_number"]))
        .collect();
    assert!(uploads.len() > 20, "{uploads:?}");
    let ids: BTreeSet<String> =
        daemon.events().iter().map(|event| text(&event["resource"]["endless.machine.id"])).collect();
    assert_eq!(ids.len(), 10);
    // The machine id is the name in every list.
    let names = |rows: &[Value], key: &str| rows.iter().map(|row| text(&row[key])).collect::<BTreeSet<String>>();
    let shown = json(&daemon, "agents").await;
    assert_eq!(array(&shown, "agents").len(), 10);
    assert_eq!(names(array(&shown, "agents"), "name"), ids);
    let plain = request(address(&daemon), "GET", "/agents", "").await.json();
    assert_eq!(names(plain.as_array().unwrap(), "name"), ids);
    let fleet = until(&daemon, "machines", |fleet| array(fleet, "machines").len() == 10).await;
    assert_eq!(names(array(&fleet, "machines"), "name"), ids);
    assert!(names(array(&json(&daemon, "events?limit=1000").await, "events"), "agent").is_subset(&ids));
    // All events of a machine are those of its agent, however many uploads they came in.
    let agent = &shown["agents"][0];
    let one = json(&daemon, &format!("agents/{}", text(&agent["id"]))).await;
    assert_eq!(array(&one, "events").len() as u64, number(&agent["events"]).min(50));
    daemon.stop().await;
}

#[tokio::test]
async fn a_process_that_sends_spans_of_several_services_is_called_by_that_of_its_first_root_everywhere() {
    let daemon = of_spans().await;
    simulate(&daemon, "test", AgentKind::Datadog(datadog::DatadogDialect::default()), 500).await;
    settle(&daemon).await;
    let shown = json(&daemon, "agents").await;
    let names: BTreeSet<String> = array(&shown, "agents").iter().map(|agent| text(&agent["name"])).collect();
    let services: BTreeSet<String> = daemon
        .events()
        .iter()
        .filter(|event| event["kind"] == "span" && event["span"]["parent_span_id"].is_null())
        .map(|event| text(&event["resource"]["service.name"]))
        .collect();
    assert!(!names.is_empty() && names.is_subset(&services), "{names:?} {services:?}");
    let plain = request(address(&daemon), "GET", "/agents", "").await.json();
    assert!(plain.as_array().unwrap().iter().all(|agent| names.contains(&text(&agent["name"]))), "{plain}");
    let path = format!("agents/{}", text(&shown["agents"][0]["id"]));
    let one = until(&daemon, &path, |one| array(one, "events").len() == 50).await;
    assert!(array(&one, "events").iter().all(|event| event["agent"] == shown["agents"][0]["name"]), "{one}");
    daemon.stop().await;
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
