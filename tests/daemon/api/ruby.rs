//! Ruby: profiles, heap dumps, and commands to the process.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tributary::simulate::rbkit;

use super::*;

/// A daemon with a simulated Ruby process that runs until it is stopped.
struct Ruby {
    daemon: Daemon,
    stop: oneshot::Sender<()>,
    running: JoinHandle<std::io::Result<rbkit::Report>>,
}

impl Ruby {
    async fn start() -> Ruby {
        let any = ([127, 0, 0, 1], 0).into();
        let options = rbkit::Options { publish: any, request: any, ..Default::default() };
        let process = rbkit::SimulatedProcess::bind(options).await.unwrap();
        let rbkit::Options { publish, request, .. } = process.options();
        let toml = format!(
            "[listeners.ruby]\nprotocol = \"rbkit\"\n\
             agents = [{{ publish = \"{publish}\", request = \"{request}\", enable = [\"memory_profile\", \"cpu_profile\"] }}]\n"
        );
        let daemon = daemon(&toml).await;
        let (stop, stopped) = oneshot::channel::<()>();
        let plan = rbkit::Plan { amount: Amount::For(Duration::from_secs(3600)), rate: Some(2000), seed: 1 };
        let running = tokio::spawn(process.run(plan, async {
            let _ = stopped.await;
        }));
        Ruby { daemon, stop, running }
    }

    /// Ends the process, and waits until everything that it has sent is written.
    async fn end(self) -> Daemon {
        let _ = self.stop.send(());
        within("the process ends", self.running).await.unwrap().unwrap();
        self.daemon
    }
}

#[tokio::test]
async fn the_flame_graph_of_a_ruby_process_has_every_kept_sample() {
    let ruby = Ruby::start().await;
    let is_cpu = |event: &Value| event["name"] == "rbkit.cpu";
    ruby.daemon.until("samples", |events| events.iter().filter(|event| is_cpu(event)).count() >= 50).await;
    let daemon = ruby.end().await;
    crate::live::until("everything is written", || {
        let totals = daemon.server.accounting().totals();
        totals.sinks.iter().all(|sink| sink.in_flight() == 0).then_some(())
    })
    .await;
    let samples = daemon.events().iter().filter(|event| is_cpu(event)).count() as u64;
    let flame = until(&daemon, "profiles/flame?type=cpu", |flame| number(&flame["total"]) >= samples).await;
    assert_eq!(number(&flame["total"]), samples);
    let nodes = &flame["nodes"];
    let column = |name: &str| -> Vec<i64> { array(nodes, name).iter().map(|value| value.as_i64().unwrap()).collect() };
    let (parents, values, own) = (column("parent"), column("value"), column("self"));
    assert_eq!(own.iter().sum::<i64>(), samples as i64);
    for (at, parent) in parents.iter().enumerate() {
        assert!(*parent < at as i64, "callers stand first");
        let callees: i64 = (0..parents.len()).filter(|of| parents[*of] == at as i64).map(|of| values[of]).sum();
        assert_eq!(values[at], own[at] + callees);
    }
    // An end long before the first sample leaves none.
    let from = number(&flame["window"]["from_ms"]);
    let early = json(&daemon, &format!("profiles/flame?type=cpu&to_ms={}", from + 300_000)).await;
    assert_eq!((number(&early["total"]), array(&early["nodes"], "name").len()), (0, 0));
    let compared = json(&daemon, &format!("profiles/flame?type=cpu&before_from_ms={from}")).await;
    assert_eq!(compared["before_total"], flame["total"]);
    assert_eq!(compared["nodes"]["before"], flame["nodes"]["value"]);

    let profiles = json(&daemon, "profiles").await;
    let profile = &profiles["profiles"][0];
    assert_eq!(number(&profile["types"][0]["events"]), samples);
    let types: Vec<&str> = array(profile, "types").iter().map(|of| of["type"].as_str().unwrap()).collect();
    assert!(types.contains(&"cpu"), "{types:?}");

    let agent = encoded(profile["agent"].as_str().unwrap());
    for (format, start) in [
        ("pprof", &b"\x1f\x8b"[..]),
        ("folded", b""),
        ("svg", b"<?xml"),
        ("speedscope", b"{"),
        ("perfetto", b"{"),
        ("firefox", b"{"),
    ] {
        let file = get(&daemon, &format!("profiles/download?type=cpu&agent={agent}&format={format}")).await;
        assert_eq!(file.status, 200, "{}", file.text());
        assert!(file.head.contains("content-disposition: attachment; filename=\"") && file.body.starts_with(start));
        if format == "folded" {
            let values = file.text().lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
            assert_eq!(values.sum::<u64>(), samples);
        }
        if format == "firefox" {
            let profile: Value = serde_json::from_slice(&file.body).unwrap();
            let threads = array(&profile, "threads").iter();
            let weights = threads.flat_map(|thread| array(&thread["samples"], "weight"));
            assert_eq!(weights.map(|weight| weight.as_f64().unwrap()).sum::<f64>(), samples as f64);
        }
    }
    daemon.stop().await;
}

#[tokio::test]
async fn a_heap_dump_that_the_page_asks_for_is_shown_by_class_and_site() {
    let ruby = Ruby::start().await;
    ruby.daemon.until_named("rbkit.handshake").await;
    let agent = until(&ruby.daemon, "agents", |agents| {
        let commands = agents["agents"][0]["commands"].as_array();
        commands.is_some_and(|commands| commands.contains(&"objectspace_snapshot".into()))
    })
    .await;
    assert_eq!(agent["agents"][0]["id"], "ruby:0");
    let one = json(&ruby.daemon, "agents/ruby:0").await;
    let command = array(&one, "commands").iter().find(|command| command["name"] == "trigger_gc").unwrap();
    assert!(command["text"].as_str().unwrap().contains("garbage") && command["is_possible"] == true);

    for _ in 0..2 {
        let sent = post(&ruby.daemon, "agents/ruby:0/commands/objectspace_snapshot").await;
        assert_eq!((sent.status, &sent.json()["status"]), (200, &"received".into()), "{}", sent.text());
    }
    let ended = |events: &[Value]| events.iter().filter(|event| event["name"] == "rbkit.heap.dump").count() == 2;
    ruby.daemon.until("two dumps", ended).await;
    let daemon = ruby.end().await;
    let heap = until(&daemon, "heap", |heap| {
        array(heap, "dumps").len() == 2 && array(heap, "dumps").iter().all(|dump| dump["is_complete"] == true)
    })
    .await;
    assert_eq!(heap["coverage"]["text"], "all events");
    let events = daemon.events();
    for dump in array(&heap, "dumps") {
        let of_dump = |event: &&Value| {
            event["name"] == "rbkit.heap.object" && event["attributes"]["rbkit.dump.id"] == dump["dump_id"]
        };
        let objects: Vec<&Value> = events.iter().filter(of_dump).collect();
        assert_eq!(number(&dump["objects"]) as usize, objects.len());
        let id = dump["id"].as_str().unwrap();
        let table = json(&daemon, &format!("heap/{id}?sort=count")).await;
        for row in array(&table, "rows") {
            let of_class = objects.iter().filter(|object| object["attributes"]["rbkit.class.name"] == row["class"]);
            assert_eq!(number(&row["count"]) as usize, of_class.count(), "{row}");
        }
        let counts: Vec<u64> = array(&table, "rows").iter().map(|row| number(&row["count"])).collect();
        assert!(counts.is_sorted_by(|a, b| a >= b));
        assert_eq!(counts.iter().sum::<u64>(), number(&table["total"]["count"]));
        let sites = json(&daemon, &format!("heap/{id}?by=class_site")).await;
        assert_eq!(sites["total"], table["total"]);

        // What refers to the largest class is what the references of the objects say.
        let class = table["rows"][0]["class"].as_str().unwrap();
        let found = json(&daemon, &format!("heap/{id}/references?class={class}")).await;
        let ids: std::collections::HashSet<u64> = objects
            .iter()
            .filter(|object| object["attributes"]["rbkit.class.name"] == class)
            .map(|object| number(&object["attributes"]["rbkit.object.id"]))
            .collect();
        let references = objects.iter().flat_map(|object| object["attributes"]["rbkit.object.references"].as_array());
        let into = references.flatten().filter(|id| ids.contains(&number(id))).count() as u64;
        let shown: u64 = array(&found, "referred_from").iter().map(|row| number(&row["references"])).sum();
        assert_eq!((shown, number(&found["objects"])), (into, ids.len() as u64));
        assert_eq!(found["examined"], found["of"]);
    }
    let ids: Vec<&str> = array(&heap, "dumps").iter().map(|dump| dump["id"].as_str().unwrap()).collect();
    let compared = json(&daemon, &format!("heap/compare?before={}&after={}", ids[1], ids[0])).await;
    let change: i64 = array(&compared, "rows").iter().map(|row| row["count_change"].as_i64().unwrap()).sum();
    let of = |at: usize| number(&heap["dumps"][at]["objects"]).cast_signed();
    assert_eq!(change, of(0) - of(1));
    daemon.stop().await;
}
