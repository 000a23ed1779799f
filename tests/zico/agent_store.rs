//! Registered agents in their file: recognised agents, valid keys, restarts, limits, and refused files.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tributary::event::{ResourceValue, UnixNanos};
use tributary::protocol::zico::agents::{
    Agents, Counters, Opened, Opening, Refusal, Registered, Registration, Whom, session_digest,
};
use tributary::zico_store::{Store, StoreOptions, forget, list, path};

const ADDRESS: &str = "192.0.2.1";

/// A time, in seconds after a fixed start.
fn at(seconds: u64) -> UnixNanos {
    UnixNanos(1_800_000_000_000_000_000 + seconds * 1_000_000_000)
}

fn in_dir(dir: &Path) -> StoreOptions {
    StoreOptions { state_dir: Some(dir.to_owned()), ..StoreOptions::default() }
}

fn open(options: &StoreOptions) -> Store {
    Store::open(options, "zorka").unwrap()
}

fn named(name: &str) -> Registration {
    Registration {
        rkey: "the-registration-key".into(),
        name: name.into(),
        app: "shop".into(),
        env: "TST".into(),
        ..Default::default()
    }
}

fn register(store: &Store, name: &str, now: UnixNanos) -> Registered {
    store.register(&named(name), ADDRESS, now).unwrap()
}

fn session(store: &Store, registered: &Registered, now: UnixNanos) -> Result<Opened, Refusal> {
    let asked = Opening { agent: registered.agent.uuid.clone(), authkey: registered.authkey.clone() };
    store.open(&asked, now)
}

#[test]
fn an_agent_that_registers_again_is_recognised_and_both_of_its_keys_work() {
    let store = open(&StoreOptions::default());
    let first = register(&store, "host", at(0));
    let second = register(&store, "host", at(1));
    let other = register(&store, "other", at(2));
    assert!(first.is_new && !second.is_new && other.is_new);
    assert_eq!(first.agent.uuid, second.agent.uuid);
    assert_eq!((first.agent.id, other.agent.id), (1, 2));
    assert_ne!(first.authkey, second.authkey);
    assert!(first.authkey.len() == 32 && first.authkey.bytes().all(|digit| digit.is_ascii_hexdigit()));
    // One session for each key: their symbols do not mix.
    let sessions = [&first, &second, &other].map(|registered| session(&store, registered, at(3)).unwrap());
    assert!(sessions.iter().all(|opened| opened.is_new));
    assert_ne!(sessions[0].session, sessions[1].session);
    // Another registration key is another agent.
    let foreign = store.register(&Registration { rkey: "another".into(), ..named("host") }, ADDRESS, at(4)).unwrap();
    assert!(foreign.is_new && foreign.agent.uuid != first.agent.uuid);
}

#[test]
fn an_agent_that_proves_its_identity_keeps_its_uuid_under_a_new_name() {
    let store = open(&StoreOptions::default());
    let first = register(&store, "host", at(0));
    let again = |uuid: &str, akey: &str| {
        let credentials = (Some(uuid.to_owned()), Some(akey.to_owned()));
        let asked = Registration { uuid: credentials.0, akey: credentials.1, ..named("renamed") };
        store.register(&asked, ADDRESS, at(1)).unwrap()
    };
    let impostor = again(&first.agent.uuid, "00000000000000000000000000000000");
    assert!(impostor.is_new && impostor.agent.uuid != first.agent.uuid);
    assert_eq!(store.agent("host").unwrap(), None, "no agent is found by its name");
    rename_away(&store, &impostor);
    let renamed = again(&first.agent.uuid.to_uppercase(), &first.authkey);
    assert!(!renamed.is_new);
    assert_eq!((renamed.agent.uuid.as_str(), renamed.agent.name.as_str()), (first.agent.uuid.as_str(), "renamed"));
    assert!(session(&store, &first, at(2)).is_ok() && session(&store, &renamed, at(2)).is_ok());
}

/// Gives an agent another name, as if it had never had this one.
fn rename_away(store: &Store, registered: &Registered) {
    let asked = Registration {
        uuid: Some(registered.agent.uuid.clone()),
        akey: Some(registered.authkey.clone()),
        ..named("another name")
    };
    assert!(!store.register(&asked, ADDRESS, at(1)).unwrap().is_new);
}

#[test]
fn a_session_belongs_to_a_key_of_its_agent_only() {
    let store = open(&StoreOptions::default());
    let (mine, other) = (register(&store, "host", at(0)), register(&store, "other", at(0)));
    let denied = |agent: &str, authkey: &str| {
        let asked = Opening { agent: agent.to_owned(), authkey: authkey.to_owned() };
        matches!(store.open(&asked, at(1)), Err(Refusal::Denied(_)))
    };
    assert!(denied(&mine.agent.uuid, &other.authkey));
    assert!(denied(&mine.agent.uuid, ""));
    assert!(denied("00000000-0000-4000-8000-000000000000", &mine.authkey));
    assert!(denied("9", &mine.authkey) && denied("", &mine.authkey) && denied("-1", &mine.authkey));
    let by_number = Opening { agent: mine.agent.id.to_string(), authkey: mine.authkey.clone() };
    let opened = store.open(&by_number, at(1)).unwrap();
    assert_eq!(opened.agent, mine.agent);
    let found = |agent: Option<&str>| store.session(&opened.session, agent, at(2));
    assert_eq!(found(None).unwrap(), mine.agent);
    assert_eq!(found(Some(&mine.agent.uuid.to_uppercase())).unwrap(), mine.agent);
    assert_eq!(found(Some("1")).unwrap(), mine.agent);
    assert!(matches!(found(Some(&other.agent.uuid)), Err(Refusal::Denied(_))));
    assert!(matches!(store.session("", None, at(2)), Err(Refusal::Denied(_))));
}

#[test]
fn a_session_is_live_while_it_is_used_and_its_key_opens_another_one_afterwards() {
    let options = StoreOptions { session_timeout: Duration::from_secs(60), ..StoreOptions::default() };
    let store = open(&options);
    let agent = register(&store, "host", at(0));
    let opened = session(&store, &agent, at(0)).unwrap();
    for second in [59, 118, 177] {
        assert!(store.session(&opened.session, None, at(second)).is_ok(), "{second}");
        let again = session(&store, &agent, at(second)).unwrap();
        assert_eq!((again.session.as_str(), again.is_new), (opened.session.as_str(), false));
    }
    assert!(matches!(store.session(&opened.session, None, at(237)), Err(Refusal::Denied(_))));
    let next = session(&store, &agent, at(237)).unwrap();
    assert!(next.is_new && next.session != opened.session);
    assert!(store.session(&next.session, None, at(238)).is_ok());
}

#[test]
fn everything_that_was_answered_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let options = in_dir(&dir.path().join("made/for it"));
    let attrs = vec![
        ("answer".to_owned(), ResourceValue::I64(-42)),
        ("large".to_owned(), ResourceValue::U64(u64::MAX)),
        ("half".to_owned(), ResourceValue::F64(0.5)),
        ("zone".to_owned(), ResourceValue::Text("\u{e9}\"".into())),
        ("yes".to_owned(), ResourceValue::Bool(true)),
    ];
    let store = open(&options);
    let mut asked = named("host");
    asked.attrs.clone_from(&attrs);
    let agent = store.register(&asked, ADDRESS, at(0)).unwrap();
    let opened = session(&store, &agent, at(0)).unwrap();
    store.session(&opened.session, None, at(100)).unwrap();
    let whom = Whom::Agent { id: agent.agent.id };
    store.seen(whom, Counters { requests: 2, bytes: 300, events: 40, losses: 1 }, at(100));
    let stranger = Whom::Unregistered { session: "675135e76025b0d2", address: "192.0.2.7" };
    store.seen(stranger, Counters { requests: 1, bytes: 10, events: 0, losses: 0 }, at(50));
    drop(store);

    let store = open(&options);
    // Within the timeout since its latest use, but not since it was opened.
    let found = store.session(&opened.session, None, at(3_650)).unwrap();
    assert_eq!(found.uuid, agent.agent.uuid);
    let mut found = found.attrs.clone();
    let order = |(key, _): &(String, ResourceValue)| attrs.iter().position(|(known, _)| known == key);
    found.sort_by_key(order);
    assert_eq!(found, attrs);
    assert!(!session(&store, &agent, at(3_651)).unwrap().is_new);
    assert!(!register(&store, "host", at(3_652)).is_new);
    store.seen(stranger, Counters { requests: 1, bytes: 5, events: 3, losses: 0 }, at(60));
    drop(store);

    let known =
        list(&path(options.state_dir.as_deref().unwrap(), "zorka"), options.session_timeout, at(3_700)).unwrap();
    let [listed] = known.agents.as_slice() else { panic!("{known:?}") };
    assert_eq!(
        (listed.uuid.as_str(), listed.name.as_str(), listed.address.as_str()),
        (&*agent.agent.uuid, "host", ADDRESS)
    );
    assert_eq!((listed.registered, listed.seen, listed.sessions), (at(0), at(3_652), 1));
    assert_eq!(listed.counters, Counters { requests: 2, bytes: 300, events: 40, losses: 1 });
    let [stranger] = known.unregistered.as_slice() else { panic!("{known:?}") };
    assert_eq!((stranger.first, stranger.seen, stranger.address.as_str()), (at(50), at(60), "192.0.2.7"));
    assert_eq!(stranger.counters, Counters { requests: 2, bytes: 15, events: 3, losses: 0 });
}

#[test]
fn no_file_contains_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&in_dir(dir.path()));
    let agent = register(&store, "host-to-look-for", at(0));
    session(&store, &agent, at(0)).unwrap();
    // With the content of the write-ahead log, and without.
    for _ in 0..2 {
        let files: Vec<Vec<u8>> =
            fs::read_dir(dir.path()).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap()).collect();
        let holds = |text: &str| files.iter().any(|file| file.windows(text.len()).any(|part| part == text.as_bytes()));
        assert!(holds("host-to-look-for") && holds(&agent.agent.uuid));
        let raw: Vec<u8> =
            (0..16).map(|at| u8::from_str_radix(&agent.authkey[2 * at..2 * at + 2], 16).unwrap()).collect();
        assert!(!holds(&agent.authkey) && !holds("the-registration-key"));
        assert!(!files.iter().any(|file| file.windows(16).any(|part| part == raw)));
        Connection::open(path(dir.path(), "zorka"))
            .unwrap()
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .unwrap();
    }
    use std::os::unix::fs::PermissionsExt;
    for file in fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", file.path());
    }
}

#[test]
fn only_registration_keys_of_the_key_file_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    fs::write(&keys, "# ours\nthe-registration-key\n").unwrap();
    let store = open(&StoreOptions { keys_file: Some(keys), ..StoreOptions::default() });
    assert!(store.register(&named("host"), ADDRESS, at(0)).is_ok());
    for rkey in ["", "the-registration-ke", "THE-REGISTRATION-KEY", "# ours"] {
        let asked = Registration { rkey: rkey.into(), ..named("host") };
        assert!(matches!(store.register(&asked, ADDRESS, at(0)), Err(Refusal::Denied(_))), "{rkey}");
    }
}

#[test]
fn a_key_too_many_replaces_one_without_a_session_and_then_the_oldest() {
    let options = StoreOptions { max_sessions_per_agent: 3, ..StoreOptions::default() };
    let store = open(&options);
    let live = register(&store, "host", at(0));
    let opened = session(&store, &live, at(0)).unwrap();
    let [idle, younger] = [1, 2].map(|second| register(&store, "host", at(second)));
    let newest = register(&store, "host", at(3));
    assert!(matches!(session(&store, &idle, at(4)), Err(Refusal::Denied(_))), "it was replaced");
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
        let whom = Whom::Agent { id: registered.agent.id };
        store.seen(whom, Counters { requests: 1, ..Counters::default() }, now);
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
        matches!(try_from("b", "192.0.2.4", later), Err(Refusal::Full(_))),
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
fn flood(store: &Store, address: &str, count: usize, now: UnixNanos) -> usize {
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
            let whom = Whom::Agent { id: registered.agent.id };
            store.seen(whom, Counters { requests: 1, ..Counters::default() }, at(0));
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
        let whom = Whom::Agent { id: registered.agent.id };
        store.seen(whom, Counters { requests: 1, ..Counters::default() }, at(0));
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
fn a_session_id_stands_in_no_file_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&in_dir(dir.path()));
    let agent = register(&store, "host", at(0));
    let opened = session(&store, &agent, at(0)).unwrap();
    store.session(&opened.session, None, at(1)).unwrap();
    drop(store);
    let raw = opened.session.replace('-', "");
    let raw: Vec<u8> = (0..16).map(|at| u8::from_str_radix(&raw[2 * at..2 * at + 2], 16).unwrap()).collect();
    for file in fs::read_dir(dir.path()).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        let holds = |wanted: &[u8]| bytes.windows(wanted.len()).any(|part| part == wanted);
        assert!(!holds(opened.session.as_bytes()) && !holds(&raw));
    }
    let store = open(&in_dir(dir.path()));
    let again = session(&store, &agent, at(2)).unwrap();
    assert!(!again.is_new && again.session == opened.session);
    assert!(!format!("{opened:?}").contains(&opened.session));
}

/// The schema of the first version, which had session ids in plain text.
const SCHEMA_1: &str = "
    CREATE TABLE agents (id INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
        app TEXT NOT NULL, env TEXT NOT NULL, attrs TEXT NOT NULL, rkey BLOB NOT NULL, address TEXT NOT NULL,
        registered INTEGER NOT NULL, seen INTEGER NOT NULL, requests INTEGER NOT NULL DEFAULT 0,
        bytes INTEGER NOT NULL DEFAULT 0, events INTEGER NOT NULL DEFAULT 0, losses INTEGER NOT NULL DEFAULT 0,
        UNIQUE (rkey, name, app, env)) STRICT;
    CREATE INDEX agents_by_address ON agents (address);
    CREATE INDEX agents_by_seen ON agents (seen);
    CREATE TABLE keys (id INTEGER PRIMARY KEY AUTOINCREMENT, agent INTEGER NOT NULL REFERENCES agents ON DELETE CASCADE,
        hash BLOB NOT NULL, issued INTEGER NOT NULL, used INTEGER NOT NULL) STRICT;
    CREATE INDEX keys_by_agent ON keys (agent);
    CREATE TABLE sessions (uuid TEXT PRIMARY KEY, key INTEGER NOT NULL UNIQUE REFERENCES keys ON DELETE CASCADE,
        opened INTEGER NOT NULL, used INTEGER NOT NULL) STRICT;
    CREATE INDEX sessions_by_use ON sessions (used);
    CREATE TABLE strangers (session TEXT PRIMARY KEY, address TEXT NOT NULL, first INTEGER NOT NULL, seen INTEGER NOT NULL,
        requests INTEGER NOT NULL, bytes INTEGER NOT NULL, events INTEGER NOT NULL, losses INTEGER NOT NULL) STRICT;
    CREATE INDEX strangers_by_seen ON strangers (seen);
    CREATE TABLE salt (bytes BLOB NOT NULL) STRICT;
    PRAGMA application_id = 0x54726962;
    PRAGMA user_version = 1;
    PRAGMA journal_mode = WAL;
    INSERT INTO salt VALUES (x'00112233445566778899aabbccddeeff');
    INSERT INTO agents (uuid, name, app, env, attrs, rkey, address, registered, seen, requests) VALUES
        ('11111111-1111-4111-8111-111111111111', 'used', 'a', 'e', '{}', x'01', '192.0.2.1', 5, 6, 7),
        ('22222222-2222-4222-8222-222222222222', 'unused', 'a', 'e', '{}', x'01', '2001:db8::7', 5, 6, 0);
    INSERT INTO keys (agent, hash, issued, used) VALUES (1, AUTHKEY, 5, 6);
    INSERT INTO sessions VALUES ('33333333-3333-4333-8333-333333333333', 1, 5, 6);
    INSERT INTO strangers VALUES ('675135e76025b0d2', '192.0.2.7', 1, 2, 3, 4, 5, 6);
";

#[test]
fn a_file_of_the_first_schema_is_converted_and_its_session_ids_are_erased() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "zorka");
    let authkey = "000102030405060708090a0b0c0d0e0f";
    let hash = ring::digest::digest(&ring::digest::SHA256, authkey.as_bytes());
    let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Connection::open(&file).unwrap().execute_batch(&SCHEMA_1.replace("AUTHKEY,", &format!("x'{hash}',"))).unwrap();
    let refused = list(&file, Duration::from_secs(60), at(0)).unwrap_err().to_string();
    assert!(refused.contains("it has schema 1; start the daemon once"), "{refused}");

    let store = open(&in_dir(dir.path()));
    let uuid = "11111111-1111-4111-8111-111111111111";
    let opened = store.open(&Opening { agent: uuid.into(), authkey: authkey.into() }, at(0)).unwrap();
    assert!(opened.is_new && opened.agent.name == "used");
    drop(store);
    let known = list(&file, Duration::from_secs(60), at(0)).unwrap();
    assert_eq!(known.agents.iter().map(|agent| agent.counters.requests).collect::<Vec<_>>(), [7, 0]);
    let [session] = known.unregistered.as_slice() else { panic!("{known:?}") };
    assert_eq!((session.session.as_str(), session.counters.bytes), (&*session_digest("675135e76025b0d2"), 4));
    let connection = Connection::open(&file).unwrap();
    let counted: Vec<(String, i64, i64)> = connection
        .prepare("SELECT network, agents, unused FROM networks ORDER BY network")
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(counted, [("192.0.2.1".to_owned(), 1, 0), ("2001:db8::/64".to_owned(), 1, 1)]);
    for entry in fs::read_dir(dir.path()).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        for id in ["33333333-3333-4333-8333-333333333333", "675135e76025b0d2"] {
            assert!(!bytes.windows(id.len()).any(|part| part == id.as_bytes()), "{id}");
        }
    }
}

#[test]
fn the_counts_of_networks_stay_right_whatever_happens_to_agents() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&in_dir(dir.path()));
    for number in 0..12 {
        let address = format!("192.0.2.{}", number % 3);
        let registered = store.register(&named(&format!("host-{number}")), &address, at(number)).unwrap();
        if number % 2 == 0 {
            let whom = Whom::Agent { id: registered.agent.id };
            store.seen(whom, Counters { requests: 1, ..Counters::default() }, at(number));
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

#[test]
fn an_agent_that_another_process_removes_is_denied_within_a_second_or_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&in_dir(dir.path()));
    let (gone, kept) = (register(&store, "gone", at(0)), register(&store, "kept", at(0)));
    let sessions = [&gone, &kept].map(|registered| session(&store, registered, at(0)).unwrap().session);
    let file = path(dir.path(), "zorka");
    assert_eq!(list(&file, Duration::from_secs(60), at(1)).unwrap().agents.len(), 2);
    assert_eq!(forget(&file, "gone").unwrap(), 1);
    assert_eq!(forget(&file, "gone").unwrap(), 0);
    assert!(matches!(session(&store, &gone, at(1)), Err(Refusal::Denied(_))));
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while store.session(&sessions[0], None, at(1)).is_ok() {
        assert!(std::time::Instant::now() < deadline, "its session stays live");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(store.session(&sessions[1], None, at(1)).is_ok());
    assert!(register(&store, "gone", at(2)).is_new);
    assert_eq!(forget(&file, &kept.agent.uuid.to_uppercase()).unwrap(), 1);
    let stranger = Whom::Unregistered { session: "0123456789abcdef", address: ADDRESS };
    store.seen(stranger, Counters::default(), at(3));
    drop(store);
    assert_eq!(forget(&file, "0123456789abcdef").unwrap(), 1);
}

#[test]
fn many_threads_register_at_once_and_every_key_works() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&in_dir(dir.path())));
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let store = store.clone();
            std::thread::spawn(move || {
                let name = |number| if number % 2 == 0 { "shared".to_owned() } else { format!("{thread}-{number}") };
                (0..6).map(|number| register(&store, &name(number), at(number))).collect::<Vec<_>>()
            })
        })
        .collect();
    let all: Vec<Registered> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert_eq!(all.iter().filter(|registered| registered.is_new).count(), 1 + 8 * 3);
    assert!(all.iter().all(|registered| session(&store, registered, at(9)).is_ok()));
}

fn refused(dir: &Path) -> String {
    Store::open(&in_dir(dir), "zorka").map(drop).unwrap_err().to_string()
}

#[test]
fn a_file_that_cannot_be_used_is_an_error_that_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "zorka");
    let named_so = |text: &str, what: &str| {
        assert!(text.starts_with(&file.display().to_string()) && text.contains(what), "{text}");
    };
    fs::write(&file, b"this is certainly not a database").unwrap();
    named_so(&refused(dir.path()), "it is not a database; move it away");

    fs::remove_file(&file).unwrap();
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE theirs (a)").unwrap();
    named_so(&refused(dir.path()), "a database of another program");

    fs::remove_file(&file).unwrap();
    drop(open(&in_dir(dir.path())));
    let other = Connection::open(&file).unwrap();
    other.pragma_update(None, "user_version", 7).unwrap();
    named_so(&refused(dir.path()), "it has schema 7, and this version of tributary knows 2");
    other.pragma_update(None, "user_version", 2).unwrap();

    other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").unwrap();
    named_so(&refused(dir.path()), "it is locked by another process");
    drop(other);

    let running = open(&in_dir(dir.path()));
    named_so(&refused(dir.path()), "another tributary process uses it");
    drop(running);
    drop(open(&in_dir(dir.path())));

    // No directory can be created below a file.
    let below = file.join("state");
    let text = refused(&below);
    assert!(text.contains("its directory cannot be used"), "{text}");
}

#[test]
fn a_damaged_file_is_refused_or_works_but_never_panics() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "zorka");
    let store = open(&in_dir(dir.path()));
    let agents: Vec<Registered> = (0..40).map(|number| register(&store, &format!("host-{number}"), at(0))).collect();
    drop(store);
    let healthy = fs::read(&file).unwrap();
    let (mut refusals, mut page) = (0, 0);
    while page < healthy.len() {
        let mut damaged = healthy.clone();
        damaged[page..].iter_mut().take(512).for_each(|byte| *byte = byte.wrapping_mul(7) ^ 0x5A);
        fs::write(&file, &damaged).unwrap();
        match Store::open(&in_dir(dir.path()), "zorka") {
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("damaged") || text.contains("not a database") || text.contains("another program"),
                    "{text}"
                );
                refusals += 1;
            }
            Ok(store) => drop(session(&store, &agents[0], at(1))),
        }
        page += 2048;
    }
    assert!(refusals > 5, "{refusals} of {}", healthy.len() / 2048);
    fs::write(&file, &healthy[..healthy.len() / 2]).unwrap();
    assert!(refused(dir.path()).contains("damaged"));
    fs::write(&file, &healthy).unwrap();
    assert!(session(&open(&in_dir(dir.path())), &agents[0], at(1)).is_ok());
}

#[test]
fn a_file_that_another_process_locks_is_unavailable_until_it_is_unlocked() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&in_dir(dir.path()));
    let agent = register(&store, "host", at(0));
    let opened = session(&store, &agent, at(0)).unwrap();
    let other = Connection::open(path(dir.path(), "zorka")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = store.register(&named("late"), ADDRESS, at(1)).unwrap_err();
    assert_eq!(busy.status(), 503, "{busy}");
    assert!(busy.to_string().contains("locked by another process"), "{busy}");
    assert!(store.session(&opened.session, None, at(1)).is_ok(), "sessions can still be looked up");
    other.execute_batch("COMMIT").unwrap();
    assert!(register(&store, "late", at(2)).is_new);
}

/// The CPU time of this thread so far, exact to a few milliseconds.
fn cpu_time() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn a_registration_does_not_cost_more_when_more_agents_are_registered() {
    let store = open(&StoreOptions { max_agents: 50_000, ..StoreOptions::default() });
    let mut batch = 0..;
    let mut cost = || {
        let number: u64 = batch.next().unwrap();
        let before = cpu_time();
        assert_eq!(flood(&store, &format!("192.0.2.{number}"), 500, at(number)), 500);
        cpu_time() - before
    };
    let first = (0..3).map(|_| cost()).min().unwrap();
    (0..14).for_each(|_| {
        cost();
    });
    let last = (0..3).map(|_| cost()).min().unwrap();
    // Ten times as many agents: a scan of the table would be several times the cost.
    assert!(
        last < first * 2 + Duration::from_millis(20),
        "{first:?} for 500 registrations at first, {last:?} with 10,000 agents"
    );
}
