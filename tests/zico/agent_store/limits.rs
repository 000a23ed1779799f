//! How many agents, keys and networks the store keeps, and which it removes for others.

use std::time::Duration;

use rusqlite::Connection;
use tributary::event::{ResourceValue, UnixNanos};
use tributary::protocol::zico::agents::{Agents, Counters, Registered, Registration, Requester, ZicoAgentError};
use tributary::zico_store::{AgentStore, StoreOptions, forget, list, path};

use super::{ADDRESS, at, in_dir, named, open, register, session};

#[test]
fn a_key_too_many_replaces_one_without_a_session_and_then_the_oldest() {
    let options = StoreOptions { max_sessions_per_agent: 3, ..StoreOptions::default() };
    let store = open(&options);
    let live = register(&store, "host", at(0));
    let opened = session(&store, &live, at(0)).unwrap();
    let [idle, younger] = [1, 2].map(|second| register(&store, "host", at(second)));
    let newest = register(&store, "host", at(3));
    assert!(matches!(session(&store, &idle, at(4)), Err(ZicoAgentError::Denied(_))), "it was replaced");
    for kept in [&younger, &newest] {
        assert!(session(&store, kept, at(4)).is_ok());
    }
    assert!(store.session(&opened.session, None, at(4)).is_ok());
    // All three have sessions now: the one that was unused for longest is replaced, with its session.
    store.session(&opened.session, None, at(50)).unwrap();
    let fourth = register(&store, "host", at(60));
    assert!(session(&store, &fourth, at(61)).is_ok());
    let works = [&live, &younger, &newest].map(|key| session(&store, key, at(62)).is_ok());
    assert_eq!(works.iter().filter(|works| **works).count(), 2, "{works:?}");
}

#[test]
fn agents_are_bounded_in_number_and_by_address_and_old_ones_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { max_agents: 3, max_agents_per_address: 2, ..in_dir(dir.path()) };
    let store = open(&options);
    let try_from = |name: &str, address: &str, now| store.register(&named(name), address, now);
    // An agent that submitted is kept for `agent_retention`.
    let sends = |registered: Registered, now| {
        let requester = Requester::Agent { id: registered.agent.id };
        store.seen(requester, Counters { requests: 1, ..Counters::default() }, now);
    };
    sends(try_from("a", "192.0.2.1", at(0)).unwrap(), at(0));
    sends(try_from("b", "192.0.2.1", at(1)).unwrap(), at(1));
    let full = try_from("c", "192.0.2.1", at(2)).unwrap_err();
    assert!(full.status() == 503 && full.to_string().contains("max_agents_per_address"), "{full}");
    assert!(!try_from("a", "192.0.2.1", at(2)).unwrap().is_new, "a known agent may register again");
    sends(try_from("c", "192.0.2.2", at(3)).unwrap(), at(3));
    // Counters are written within a second, or at the end.
    drop(store);
    let store = open(&options);
    let try_from = |name: &str, address: &str, now| store.register(&named(name), address, now);
    let full = try_from("d", "192.0.2.3", at(4)).unwrap_err();
    assert!(full.status() == 503 && full.to_string().contains("(max_agents)"), "{full}");
    // A month later `b` was not seen for longest.
    let later = at(2 + 30 * 86_400);
    assert!(try_from("d", "192.0.2.3", later).unwrap().is_new);
    assert!(!try_from("a", "192.0.2.1", later).unwrap().is_new);
    assert!(
        matches!(try_from("b", "192.0.2.4", later), Err(ZicoAgentError::Full(_))),
        "it was removed, and the table is full"
    );
}

#[test]
fn an_agent_that_never_submitted_is_replaced_after_its_retention() {
    let options = StoreOptions { max_agents: 2, ..StoreOptions::default() };
    let store = open(&options);
    for (name, second) in [("a", 0), ("b", 1), ("c", 301), ("d", 302)] {
        assert!(register(&store, name, at(second)).is_new);
    }
    let full = store.register(&named("e"), ADDRESS, at(303)).unwrap_err();
    assert_eq!(full.status(), 503, "{full}");
}

/// Registers `count` agents from an address as fast as possible; returns how many were accepted.
fn flood(store: &AgentStore, address: &str, count: usize, now: UnixNanos) -> usize {
    let attempt = |number: &usize| store.register(&named(&format!("{address}-{number}")), address, now).is_ok();
    (0..count).filter(attempt).count()
}

#[test]
fn ten_addresses_that_fill_the_table_do_not_keep_new_agents_out() {
    let options = StoreOptions { max_agents: 500, max_agents_per_address: 50, ..StoreOptions::default() };
    let store = open(&options);
    let honest = store.register(&named("early"), "198.51.100.1", at(0)).unwrap();
    for address in 0..10 {
        flood(&store, &format!("192.0.2.{address}"), 100, at(1));
    }
    // Agents that come afterwards are registered, and those that were there stay.
    for number in 0..40 {
        let address = format!("198.51.100.{}", 10 + number % 8);
        let late = store.register(&named(&format!("late-{number}")), &address, at(2)).unwrap();
        assert!(session(&store, &late, at(2)).is_ok());
    }
    assert!(session(&store, &honest, at(2)).is_ok());
    // The flood goes on, and does not replace them.
    for address in 0..10 {
        flood(&store, &format!("192.0.2.{address}"), 100, at(3));
    }
    assert!(session(&store, &honest, at(4)).is_ok());
    for number in 0..40 {
        assert!(!register(&store, &format!("late-{number}"), at(4)).is_new);
    }
}

#[test]
fn agents_that_submitted_are_not_replaced_and_the_rest_of_the_table_is_for_other_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { max_agents: 200, max_agents_per_address: 100, ..in_dir(dir.path()) };
    let store = open(&options);
    for address in ["192.0.2.1", "192.0.2.2"] {
        for number in 0..90 {
            let registered = store.register(&named(&format!("{address}-{number}")), address, at(0)).unwrap();
            let requester = Requester::Agent { id: registered.agent.id };
            store.seen(requester, Counters { requests: 1, ..Counters::default() }, at(0));
        }
    }
    drop(store);
    let store = open(&options);
    let full = store.register(&named("more"), "192.0.2.1", at(1)).unwrap_err();
    assert!(full.status() == 503 && full.to_string().contains("(max_agents)"), "{full}");
    assert!(store.register(&named("other"), "192.0.2.3", at(1)).unwrap().is_new);
    assert!(store.register(&named("other"), "192.0.2.1", at(1)).is_ok(), "a known agent may register again");
    let known = list(&path(dir.path(), "zorka"), options.session_timeout, at(1)).unwrap();
    assert_eq!(known.agents.len(), 181);
}

#[test]
fn addresses_of_one_ipv6_network_share_one_limit_also_after_an_agent_moved() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { max_agents: 1000, max_agents_per_address: 20, ..in_dir(dir.path()) };
    let store = open(&options);
    for number in 0..20 {
        let address = format!("[2001:db8:1:2::{number:x}]");
        let registered = store.register(&named(&format!("six-{number}")), &address, at(0)).unwrap();
        let requester = Requester::Agent { id: registered.agent.id };
        store.seen(requester, Counters { requests: 1, ..Counters::default() }, at(0));
        // It registers again from elsewhere, and is counted where it registered first.
        assert!(!store.register(&named(&format!("six-{number}")), "192.0.2.9", at(0)).unwrap().is_new);
    }
    // The counters are written at the end.
    drop(store);
    let store = open(&options);
    let full = store.register(&named("more"), "2001:db8:1:2:ffff::", at(0)).unwrap_err();
    assert!(full.to_string().contains("max_agents_per_address"), "{full}");
    assert!(store.register(&named("next"), "2001:db8:1:3::1", at(0)).unwrap().is_new);
}

#[test]
fn a_store_in_memory_that_is_full_replaces_agents_that_never_submitted() {
    let store = open(&StoreOptions::default());
    let honest = store.register(&named("early"), "198.51.100.1", at(0)).unwrap();
    // 16 MiB are full after 250 agents with 60 kB each.
    for number in 0..400 {
        let attrs = vec![("padding".to_owned(), ResourceValue::Text("x".repeat(60_000)))];
        let asked = Registration { attrs, ..named(&format!("large-{number}")) };
        assert!(store.register(&asked, ADDRESS, at(1)).is_ok(), "{number}");
    }
    assert!(store.register(&named("late"), "198.51.100.2", at(2)).is_ok());
    assert!(session(&store, &honest, at(2)).is_ok());
}

#[test]
fn the_counts_of_networks_stay_right_whatever_happens_to_agents() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&in_dir(dir.path()));
    for number in 0..12 {
        let address = format!("192.0.2.{}", number % 3);
        let registered = store.register(&named(&format!("host-{number}")), &address, at(number)).unwrap();
        if number % 2 == 0 {
            let requester = Requester::Agent { id: registered.agent.id };
            store.seen(requester, Counters { requests: 1, ..Counters::default() }, at(number));
        }
    }
    drop(store);
    let file = path(dir.path(), "zorka");
    for name in ["host-0", "host-1", "host-5"] {
        assert_eq!(forget(&file, name).unwrap(), 1);
    }
    let connection = Connection::open(&file).unwrap();
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((count("SELECT agents FROM totals"), count("SELECT sum(agents) FROM networks")), (9, 9));
    let wrong = "SELECT count(*) FROM networks WHERE
        agents <> (SELECT count(*) FROM agents WHERE agents.network = networks.network) OR
        unused <> (SELECT count(*) FROM agents WHERE agents.network = networks.network AND requests = 0)";
    assert_eq!(count(wrong), 0);
}

/// Registers an agent that submits once.
fn used(store: &AgentStore, name: &str, address: &str, now: UnixNanos) -> Result<Registered, ZicoAgentError> {
    let registered = store.register(&named(name), address, now)?;
    let requester = Requester::Agent { id: registered.agent.id };
    store.seen(requester, Counters { requests: 1, ..Counters::default() }, now);
    Ok(registered)
}

#[test]
fn agents_of_ten_addresses_that_submitted_share_a_full_table_with_new_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { max_agents: 500, max_agents_per_address: 50, ..in_dir(dir.path()) };
    let mut store = open(&options);
    // An honest address with many agents, and one with one.
    let mut honest: Vec<_> =
        (0..30).map(|number| used(&store, &format!("shop-{number}"), "198.51.100.1", at(0)).unwrap()).collect();
    honest.push(used(&store, "single", "198.51.100.2", at(0)).unwrap());
    // Counters are written within a second, or at the end.
    drop(store);
    store = open(&options);
    for round in 1..4 {
        // The agents of the attack submit, so they count as used.
        for address in 0..10 {
            for number in 0..60 {
                let _ = used(&store, &format!("{round}-{address}-{number}"), &format!("192.0.2.{address}"), at(round));
            }
        }
        drop(store);
        store = open(&options);
        for number in 0..10 {
            let address = format!("198.51.100.{}", 10 + 10 * round + number);
            let late = used(&store, &format!("late-{round}-{number}"), &address, at(round));
            honest.push(late.expect("a new address is registered"));
        }
    }
    for registered in &honest {
        assert!(session(&store, registered, at(9)).is_ok(), "{}", registered.agent.name);
    }
    drop(store);
    let file = path(dir.path(), "zorka");
    let all = list(&file, options.session_timeout, at(9)).unwrap().agents;
    assert!((450..=500).contains(&all.len()), "{}", all.len());
    for address in 0..10 {
        let address = format!("192.0.2.{address}");
        let agents = all.iter().filter(|agent| agent.address == address).count();
        // More than an equal share if all of them were honest and had as many.
        assert!((20..=50).contains(&agents), "{address}: {agents}");
    }
}

#[test]
fn a_new_name_replaces_the_agent_of_its_own_address_that_was_unused_for_longest() {
    let dir = tempfile::tempdir().unwrap();
    let hour = Duration::from_secs(3600);
    let options = StoreOptions { max_agents_per_address: 3, session_timeout: hour, ..in_dir(dir.path()) };
    let store = open(&options);
    // Containers with a new name each.
    let ended: Vec<_> =
        (0..3).map(|number| used(&store, &format!("pod-{number}"), ADDRESS, at(number)).unwrap()).collect();
    drop(store);
    let store = open(&options);
    let full = store.register(&named("pod-3"), ADDRESS, at(3000)).unwrap_err();
    assert!(full.to_string().contains("max_agents_per_address"), "{full}");
    // Those that were seen in the last hour are kept.
    assert!(store.register(&named("pod-3"), ADDRESS, at(3602)).unwrap().is_new);
    assert_eq!(store.agent(&ended[0].agent.uuid).unwrap(), None);
    assert!(ended[1..].iter().all(|registered| session(&store, registered, at(3602)).is_ok()));
}

/// Registers agents in a file that has a hundred times as many already, of many networks.
pub(crate) fn registrations(size: u64) -> impl FnOnce() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { max_agents: 1_000_000, max_agents_per_address: 1_000_000, ..in_dir(dir.path()) };
    drop(open(&options));
    Connection::open(path(dir.path(), "zorka"))
        .unwrap()
        .execute(
            "WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < ?)
             INSERT INTO agents (uuid, name, app, env, attrs, rkey, address, registered, seen, network)
             SELECT 'uuid-' || number, 'name-' || number, 'a', 'e', '{}', x'01', '192.0.2.1', 1, number, number % 97
             FROM numbers",
            [100 * size as i64],
        )
        .unwrap();
    let store = open(&options);
    register(&store, "first", at(0));
    move || {
        assert_eq!(flood(&store, ADDRESS, size as usize, at(1)), size as usize);
        drop((store, dir));
    }
}
