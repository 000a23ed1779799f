//! Objects and heap dumps as sums: they are those of the events, for every recorded conversation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::live::binary::run;
use crate::rbkit_support::recording::{directory, sessions};
use serde_json::Value;

/// What one form of the objects of a conversation adds up to.
#[derive(Debug, Default, PartialEq)]
struct Sums {
    created: BTreeMap<String, u64>,
    destroyed: u64,
    /// Live objects by class, of those that were created since the last gap or restart.
    live: BTreeMap<String, u64>,
    /// Objects and bytes by dump, class and site.
    heap: BTreeMap<String, [u64; 2]>,
    dumps: Vec<String>,
    /// Everything else, by kind and name.
    others: BTreeMap<String, u64>,
}

/// The events of a conversation, decoded with these options.
fn decoded(name: &str, options: &[&str]) -> Vec<Value> {
    let path = directory().join("sessions").join(name);
    let files = fs::read_dir(path).unwrap().map(|file| file.unwrap().path().display().to_string());
    let mut files: Vec<String> = files.filter(|file| file.ends_with(".msgpack")).collect();
    files.sort();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let options: Vec<&str> = options.iter().flat_map(|option| ["-o", option]).collect();
    let ended = run(&[&["decode", "rbkit"], &options[..], &files].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.events()
}

fn class(event: &Value) -> String {
    event["attributes"]["rbkit.class.name"].as_str().unwrap_or("-").to_owned()
}

/// The dump, class and site of an object, or of a sum.
fn place(event: &Value) -> String {
    let key = |key: &str| event["attributes"][key].to_string();
    let keys = ["rbkit.dump.id", "rbkit.dump.object_count", "rbkit.class.name", "code.file.path", "code.line.number"];
    keys.map(key).join(" ")
}

fn sums(events: &[Value]) -> Sums {
    let mut sums = Sums::default();
    let mut live: BTreeMap<u64, String> = BTreeMap::new();
    for event in events {
        let name = event["name"].as_str().unwrap();
        let attributes = &event["attributes"];
        let id = attributes["rbkit.object.id"].as_u64();
        let value = event["metric"]["value"].as_u64().or(event["sample"]["value"].as_u64()).unwrap_or(0);
        match name {
            "rbkit.object.created" => {
                *sums.created.entry(class(event)).or_default() += 1;
                live.insert(id.unwrap(), class(event));
            }
            "rbkit.object.destroyed" => {
                sums.destroyed += 1;
                live.remove(&id.unwrap());
            }
            "rbkit.objects.created" => *sums.created.entry(class(event)).or_default() += value,
            "rbkit.objects.destroyed" => sums.destroyed += value,
            "rbkit.objects.live" => {
                sums.live.insert(class(event), value);
            }
            "rbkit.heap.object" => {
                let sum = sums.heap.entry(place(event)).or_default();
                *sum = [sum[0] + 1, sum[1] + attributes["rbkit.object.size"].as_u64().unwrap_or(0)];
            }
            "rbkit.heap" => {
                let sum = sums.heap.entry(place(event)).or_default();
                match event["sample"]["type"].as_str().unwrap() {
                    "inuse_objects" => sum[0] += value,
                    other => {
                        assert_eq!(other, "inuse_space");
                        sum[1] += value;
                    }
                }
            }
            "rbkit.heap.dump" => sums.dumps.push(attributes.to_string()),
            _ => {
                if event["loss"]["reason"] == "gap" || name == "rbkit.agent.restarted" {
                    live.clear();
                }
                *sums.others.entry(format!("{} {name}", event["kind"])).or_default() += 1;
            }
        }
    }
    for class in live.into_values() {
        *sums.live.entry(class).or_default() += 1;
    }
    sums.live.retain(|_, live| *live > 0);
    sums
}

#[test]
fn summaries_of_recorded_conversations_are_the_sums_of_their_events() {
    let (mut created, mut objects) = (0, 0);
    for session in sessions() {
        let name = &session.name;
        let events = sums(&decoded(name, &[]));
        let summary = decoded(name, &["objects=summary", "heap=summary"]);
        let kept: BTreeSet<&str> = summary.iter().filter_map(|event| event["name"].as_str()).collect();
        let single = ["rbkit.object.created", "rbkit.object.destroyed", "rbkit.heap.object"];
        assert!(single.iter().all(|name| !kept.contains(name)), "{name}: {kept:?}");
        assert_eq!(sums(&summary), events, "{name}");
        created += events.created.values().sum::<u64>();
        objects += events.heap.values().map(|[objects, _]| objects).sum::<u64>();
        // Both: every sum twice.
        let both = sums(&decoded(name, &["heap=both"]));
        let twice: BTreeMap<String, [u64; 2]> =
            events.heap.iter().map(|(key, sum)| (key.clone(), sum.map(|sum| 2 * sum))).collect();
        assert_eq!((both.heap, both.dumps), (twice, events.dumps), "{name}");
    }
    assert!(created > 1_000 && objects > 1_000, "{created} {objects}");
}

#[test]
fn what_is_over_the_limits_is_counted_together_and_marked() {
    let name = "master-2.1-dump-while-tracing";
    let whole = sums(&decoded(name, &[]));
    let options = [
        "objects=summary",
        "heap=summary",
        "max_classes=2",
        "max_sites=3",
        "max_live_objects=5",
        "summary_interval=1s",
    ];
    let events = decoded(name, &options);
    let limited = sums(&events);
    let total = |sums: &BTreeMap<String, u64>| sums.values().sum::<u64>();
    assert_eq!((total(&limited.created), limited.destroyed), (total(&whole.created), whole.destroyed));
    let heap = |sums: &Sums| sums.heap.values().fold([0, 0], |total, sum| [total[0] + sum[0], total[1] + sum[1]]);
    assert_eq!(heap(&limited), heap(&whole));
    assert!(limited.heap.len() <= 4 && limited.created.len() <= 3, "{limited:?}");
    let marked = |name: &str| {
        let named = events.iter().filter(|event| event["name"] == name);
        named.filter(|event| event["attributes"]["tributary.incomplete"].is_array()).count()
    };
    assert_eq!(marked("rbkit.heap"), 2);
    assert!(marked("rbkit.objects.created") > 0 && marked("rbkit.objects.live") > 0);
    assert!(total(&limited.live) <= 5, "{limited:?}");
}

#[test]
fn tables_of_heaps_are_read_from_samples_too() {
    let name = "master-2.1-raw-dump";
    let table = |option: &str| {
        let events = decoded(name, &[option]);
        let text: String = events.iter().map(|event| format!("{event}\n")).collect();
        crate::rbkit_support::profiles::shown(&["--as", "heap"], &text)
    };
    // Sums have no references, which a table of objects has in its fourth column.
    let without_references = |table: &str| -> Vec<String> {
        let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mut rows: Vec<String> = rows
            .map(|mut row| {
                row.remove(3);
                row.join(" ")
            })
            .collect();
        rows.sort();
        rows
    };
    let objects = table("heap=objects");
    assert_eq!(without_references(&table("heap=summary")), without_references(&objects));
    assert_eq!(table("heap=both"), objects);
}
