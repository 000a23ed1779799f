//! Java: the code that runs, its calls in time, and commands to the agent.

use tributary::simulate::bytefrog;

use super::*;

const JAVA: &str =
    "[listeners.java]\nprotocol = \"bytefrog\"\nlisten = \"127.0.0.1:0\"\nheartbeat_interval = \"100ms\"\n";

/// Runs a program with `events` events to its end.
async fn run(daemon: &Daemon, events: u64) {
    let to = daemon.server.address().unwrap();
    let agent = bytefrog::run_alone(to, bytefrog::Options::default(), 5, events, pending());
    let (sent, _) = within("the program ends", agent).await;
    sent.unwrap();
    settle(daemon).await;
}

fn named<'a>(events: &'a [Value], name: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["name"] == name)
}

#[tokio::test]
async fn the_code_of_a_run_has_every_call_of_every_method() {
    let daemon = daemon(JAVA).await;
    run(&daemon, 3000).await;
    let events = daemon.events();
    let entries = named(&events, "bytefrog.method.entry").count() as u64;
    let list = until(&daemon, "code", |list| list["runs"][0]["calls"] == entries).await;
    let run = &list["runs"][0];
    assert_eq!(list["coverage"]["text"], "all events");
    let path = format!("code/{}", run["id"].as_str().unwrap());
    let code = json(&daemon, &path).await;
    let (mut methods, mut calls) = (0, 0);
    for package in array(&code, "packages") {
        for class in array(package, "classes") {
            for method in array(class, "methods_list") {
                let name = format!(
                    "{}.{}.{}",
                    package["name"].as_str().unwrap(),
                    class["name"].as_str().unwrap(),
                    method["name"].as_str().unwrap()
                );
                let of_method = |event: &&Value| event["attributes"]["code.function.name"] == name.as_str();
                let expected = named(&events, "bytefrog.method.entry").filter(of_method).count() as u64;
                assert_eq!(number(&method["calls"]), expected, "{name}");
                (methods, calls) = (methods + 1, calls + expected);
            }
        }
    }
    assert_eq!((methods, calls), (number(&run["methods"]), entries));

    // After a mark nothing ran.
    let mark = post(&daemon, &format!("{path}/marks?name=after%20all")).await.json();
    assert_eq!((&mark["mark"]["id"], &mark["mark"]["name"]), (&1.into(), &"after all".into()));
    let since = json(&daemon, &format!("{path}?since=1")).await;
    assert!(array(&since, "packages").iter().all(|package| package["calls"] == 0 && package["run"] == 0));
    assert_eq!(since["since"]["name"], "after all");
    assert_eq!(get(&daemon, &format!("{path}?since=2")).await.status, 404);
    daemon.stop().await;
}

#[tokio::test]
async fn calls_have_a_flame_graph_and_a_chart_in_time() {
    let daemon = daemon(JAVA).await;
    run(&daemon, 3000).await;
    let events = daemon.events();
    let entries = named(&events, "bytefrog.method.entry").count() as u64;
    let flame = until(&daemon, "profiles/flame?type=calls", |flame| number(&flame["total"]) == entries).await;
    assert_eq!((&flame["unit"], &flame["coverage"]["text"]), (&"count".into(), &"all events".into()));
    let profiles = json(&daemon, "profiles").await;
    let agent = encoded(profiles["profiles"][0]["agent"].as_str().unwrap());
    let chart = json(&daemon, &format!("profiles/chart?agent={agent}")).await;
    let mut calls = 0;
    for thread in array(&chart, "threads") {
        let starts: Vec<u64> = array(&thread["calls"], "start_ns").iter().map(number).collect();
        assert!(starts.is_sorted());
        calls += starts.len() as u64;
    }
    assert!(calls > 0 && calls <= entries, "{calls} of {entries}");
    daemon.stop().await;
}

#[tokio::test]
async fn a_program_waits_until_the_page_starts_it() {
    let daemon = daemon(&format!("{JAVA}start = \"on_command\"\n")).await;
    let to = daemon.server.address().unwrap();
    let agent = tokio::spawn(bytefrog::run_alone(to, bytefrog::Options::default(), 5, 300, pending()));
    let list = until(&daemon, "agents", |list| {
        list["agents"][0]["commands"].as_array().is_some_and(|commands| commands.contains(&"start".into()))
    })
    .await;
    let id = list["agents"][0]["id"].as_str().unwrap().to_owned();
    let stop = post(&daemon, &format!("agents/{id}/commands/stop")).await;
    assert_eq!(stop.status, 409);
    assert!(stop.json()["error"].as_str().unwrap().contains("not started yet"), "{}", stop.text());
    let unknown = post(&daemon, &format!("agents/{id}/commands/dance")).await;
    assert!(unknown.status == 404 && unknown.text().contains("unsuspend"), "{}", unknown.text());
    within("it may start", async {
        loop {
            let started = post(&daemon, &format!("agents/{id}/commands/start")).await;
            match started.status {
                202 => return assert_eq!(started.json()["status"], "sent"),
                // The agent takes commands once its configuration is there.
                status => assert_eq!(status, 409, "{}", started.text()),
            }
        }
    })
    .await;
    let (sent, _) = within("the program ends", agent).await.unwrap();
    assert!(sent.unwrap().events > 300);
    settle(&daemon).await;
    daemon.stop().await;
}
