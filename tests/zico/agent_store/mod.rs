//! Registered agents in their file: recognised agents, valid keys, restarts.

mod file;
pub(crate) mod limits;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::live::binary::until;
use crate::zico_support::open_store;
use tributary::event::{ResourceValue, UnixNanos};
use tributary::protocol::zico::agents::{
    Agents, Counters, Opened, Opening, Registered, Registration, Requester, ZicoAgentError,
};
use tributary::zico_store::{AgentStore, StoreOptions, forget, list, path};

const ADDRESS: &str = "192.0.2.1";

/// A time, in seconds after a fixed start.
fn at(seconds: u64) -> UnixNanos {
    UnixNanos(1_800_000_000_000_000_000 + seconds * 1_000_000_000)
}

fn in_dir(dir: &Path) -> StoreOptions {
    StoreOptions { state_dir: Some(dir.to_owned()), ..StoreOptions::default() }
}

fn open(options: &StoreOptions) -> AgentStore {
    open_store(options, "zorka").unwrap()
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

fn register(store: &AgentStore, name: &str, now: UnixNanos) -> Registered {
    store.register(&named(name), ADDRESS, now).unwrap()
}

fn session(store: &AgentStore, registered: &Registered, now: UnixNanos) -> Result<Opened, ZicoAgentError> {
    let asked = Opening::new(&registered.agent.uuid, &registered.authkey);
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
fn rename_away(store: &AgentStore, registered: &Registered) {
    let asked = Registration {
        uuid: Some(registered.agent.uuid.clone()),
        akey: Some(registered.authkey.clone()),
        ..named("another name")
    };
    assert!(!store.register(&asked, ADDRESS, at(1)).unwrap().is_new);
}

#[test]
fn a_session_belongs_to_a_key_of_its_agent_only() {
    let dir = tempfile::tempdir().unwrap();
    let keys_file = dir.path().join("keys");
    fs::write(&keys_file, "the-registration-key\n").unwrap();
    let store = open(&StoreOptions { keys_file: Some(keys_file), ..StoreOptions::default() });
    let (mine, other) = (register(&store, "host", at(0)), register(&store, "other", at(0)));
    let denied = |agent: &str, authkey: &str| {
        let asked = Opening::new(agent, authkey);
        matches!(store.open(&asked, at(1)), Err(ZicoAgentError::Denied(_)))
    };
    assert!(denied(&mine.agent.uuid, &other.authkey));
    assert!(denied(&mine.agent.uuid, ""));
    assert!(denied("00000000-0000-4000-8000-000000000000", &mine.authkey));
    assert!(denied("9", &mine.authkey) && denied("", &mine.authkey) && denied("-1", &mine.authkey));
    let by_number = Opening::new(&mine.agent.id.to_string(), &mine.authkey);
    let opened = store.open(&by_number, at(1)).unwrap();
    assert_eq!(opened.agent, mine.agent);
    let found = |agent: Option<&str>| store.session(&opened.session, agent, at(2));
    assert_eq!(found(None).unwrap(), mine.agent);
    assert_eq!(found(Some(&mine.agent.uuid.to_uppercase())).unwrap(), mine.agent);
    assert_eq!(found(Some("1")).unwrap(), mine.agent);
    assert!(matches!(found(Some(&other.agent.uuid)), Err(ZicoAgentError::Denied(_))));
    assert!(matches!(store.session("", None, at(2)), Err(ZicoAgentError::Denied(_))));
}

#[test]
fn an_unknown_agent_is_registered_with_its_uuid_and_key_and_counts_for_the_limits() {
    let store = open(&StoreOptions { max_agents: 1, ..StoreOptions::default() });
    let (uuid, other) = ("0A000000-0000-4000-8000-000000000000", "0b000000-0000-4000-8000-000000000000");
    let ask =
        |agent: &str, key: &str| store.open(&Opening { address: ADDRESS.into(), ..Opening::new(agent, key) }, at(1));
    let opened = ask(uuid, "key").unwrap();
    assert!(opened.is_new && opened.agent.uuid == uuid.to_lowercase() && opened.agent.name.is_empty());
    assert_eq!(ask(uuid, "key").unwrap().session, opened.session);
    assert!(store.session(&opened.session, Some(uuid), at(2)).is_ok());
    assert!(matches!(ask(uuid, "another"), Err(ZicoAgentError::Denied(_))));
    assert!(matches!(ask("9", "key"), Err(ZicoAgentError::Denied(_))), "it is no UUID");
    // A new one replaces the one that has never submitted, or is refused: there is never more than one.
    let _ = ask(other, "key");
    let found = [uuid, other].map(|agent| store.agent(agent).unwrap().is_some());
    assert_eq!(found.iter().filter(|found| **found).count(), 1);
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
    assert!(matches!(store.session(&opened.session, None, at(237)), Err(ZicoAgentError::Denied(_))));
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
    let requester = Requester::Agent { id: agent.agent.id };
    store.seen(requester, Counters { requests: 2, bytes: 300, events: 40, losses: 1 }, at(100));
    let unregistered = Requester::Unregistered { session: "675135e76025b0d2", address: "192.0.2.7" };
    store.seen(unregistered, Counters { requests: 1, bytes: 10, events: 0, losses: 0 }, at(50));
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
    store.seen(unregistered, Counters { requests: 1, bytes: 5, events: 3, losses: 0 }, at(60));
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
    let [unregistered] = known.unregistered.as_slice() else { panic!("{known:?}") };
    assert_eq!((unregistered.first, unregistered.seen, unregistered.address.as_str()), (at(50), at(60), "192.0.2.7"));
    assert_eq!(unregistered.counters, Counters { requests: 2, bytes: 15, events: 3, losses: 0 });
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
        assert!(matches!(store.register(&asked, ADDRESS, at(0)), Err(ZicoAgentError::Denied(_))), "{rkey}");
    }
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
    until("its session ends", || store.session(&sessions[0], None, at(1)).err());
    assert!(store.session(&sessions[1], None, at(1)).is_ok());
    assert!(register(&store, "gone", at(2)).is_new);
    assert_eq!(forget(&file, &kept.agent.uuid.to_uppercase()).unwrap(), 1);
    let unregistered = Requester::Unregistered { session: "0123456789abcdef", address: ADDRESS };
    store.seen(unregistered, Counters::default(), at(3));
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
