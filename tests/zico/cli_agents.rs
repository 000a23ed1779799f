//! `tributary agents` as a process, while a store is in use.

use crate::live::binary::run;
use crate::zico_support::open_store;
use serde_json::{Value, json};
use tributary::event::{ResourceValue, UnixNanos};
use tributary::protocol::zico::agents::{Agents, Counters, Registered, Registration, Requester};
use tributary::zico_store::{AgentStore, StoreOptions};

/// 2027-01-15T08:00:00Z.
const NOW: UnixNanos = UnixNanos(1_800_000_000_000_000_000);

fn register(store: &AgentStore, name: &str) -> Registered {
    let attrs = vec![("zone".to_owned(), ResourceValue::Text("north".into()))];
    let (rkey, app, env) = ("secret".into(), "shop".into(), "TST".into());
    store
        .register(&Registration { rkey, name: name.into(), app, env, attrs, ..Default::default() }, "192.0.2.1", NOW)
        .unwrap()
}

#[test]
fn agents_are_listed_and_forgotten_while_the_store_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let store = open_store(&StoreOptions { state_dir: Some(state.into()), ..Default::default() }, "zorka").unwrap();
    let first = register(&store, "web \u{1b}[31m1");
    let second = register(&store, "web-2");
    let unregistered = Requester::Unregistered { session: "675135e76025b0d2", address: "192.0.2.9" };
    store.seen(unregistered, Counters { requests: 1, bytes: 2, events: 3, losses: 4 }, NOW);
    drop(store);
    let store = open_store(&StoreOptions { state_dir: Some(state.into()), ..Default::default() }, "zorka").unwrap();

    let listed = run(&["agents", "registered", "--state-dir", state, "--format", "json"]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    let zeros = json!({"requests": 0, "bytes": 0, "events": 0, "losses": 0});
    let time = "2027-01-15T08:00:00Z";
    let agent = |registered: &Registered, name: &str| -> Value {
        json!({
            "listener": "zorka", "id": registered.agent.id, "uuid": registered.agent.uuid, "name": name, "app": "shop",
            "env": "TST", "attrs": {"zone": "north"}, "address": "192.0.2.1", "registered": time, "seen": time,
            "sessions": 0, "counters": zeros,
        })
    };
    let counters = json!({"requests": 1, "bytes": 2, "events": 3, "losses": 4});
    let unregistered = json!({
        "listener": "zorka", "session": "675135e76025b0d2", "address": "192.0.2.9", "first": time, "seen": time,
        "counters": counters,
    });
    assert_eq!(listed.events(), [agent(&first, "web \u{1b}[31m1"), agent(&second, "web-2"), unregistered]);

    let table = run(&["agents", "registered", "--state-dir", state]).stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("listener zorka: 2 agents, 1 unregistered session"), "{table}");
    assert!(lines[2].starts_with(r#""web \u{1b}[31m1"  shop"#) && !table.contains('\u{1b}'), "{table}");
    let place = |column: &str| lines[1].find(column).unwrap();
    assert!(lines[3][place("UUID")..].starts_with(&second.agent.uuid), "{table}");
    assert!(lines[4].ends_with("1       3      2       4"), "{table}");

    let forgotten = run(&["agents", "forget", "--state-dir", state, "web-2", "675135e76025b0d2"]);
    assert_eq!(forgotten.code, Some(0), "{}", forgotten.stderr);
    assert!(forgotten.stderr.contains("zorka: web-2: 1 agent forgotten"), "{}", forgotten.stderr);
    assert_eq!(store.agent(&second.agent.uuid).unwrap(), None);
    let unknown = run(&["agents", "forget", "--state-dir", state, "web-2", "web-3"]);
    assert_eq!((unknown.code, unknown.last_words()), (Some(1), "tributary: no such agent: web-2, web-3"));
}

#[test]
fn an_unreadable_file_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    std::fs::write(dir.path().join("zorka.db"), "nothing of ours").unwrap();
    let listed = run(&["agents", "registered", "--state-dir", state]);
    assert_eq!(listed.code, Some(1));
    assert!(listed.last_words().contains("zorka.db: it is not a database"), "{}", listed.stderr);
    let missing = dir.path().join("shared_deliveries");
    let listed = run(&["agents", "registered", "--state-dir", missing.to_str().unwrap()]);
    assert!(
        listed.code == Some(1) && listed.last_words().contains("shared_deliveries: No such file"),
        "{}",
        listed.stderr
    );
}
