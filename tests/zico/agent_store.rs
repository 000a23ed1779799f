//! Registered agents in their file: who is the same as before, which keys work, what survives, and what is refused.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tributary::event::{ResourceValue, UnixNanos};
use tributary::protocol::zico::agents::{Agents, Counters, Opened, Opening, Refusal, Registered, Registration, Whom};
use tributary::zico_store::{Store, StoreOptions, forget, list, path};

const ADDRESS: &str = "192.0.2.1";

/// A moment, in seconds after some start.
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
fn the_same_agent_is_known_again_and_both_of_its_keys_work() {
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
fn an_agent_that_proves_who_it_was_keeps_its_uuid_under_a_new_name() {
    let store = open(&StoreOptions::default());
    let first = register(&store, "host", at(0));
    let again = |uuid: &str, akey: &str| {
        let credentials = (Some(uuid.to_owned()), Some(akey.to_owned()));
        let asked = Registration { uuid: credentials.0, akey: credentials.1, ..named("renamed") };
        store.register(&asked, ADDRESS, at(1)).unwrap()
    };
    let liar = again(&first.agent.uuid, "00000000000000000000000000000000");
    assert!(liar.is_new && liar.agent.uuid != first.agent.uuid);
    assert_eq!(store.agent("host").unwrap(), None, "no agent is found by its name");
    rename_away(&store, &liar);
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
        ..named("somebody else")
    };
    assert!(!store.register(&asked, ADDRESS, at(1)).unwrap().is_new);
}

#[test]
fn a_session_belongs_to_a_key_of_its_agent_and_to_nobody_else() {
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
fn a_session_lives_while_it_is_used_and_its_key_opens_another_one_afterwards() {
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
fn everything_that_was_answered_is_known_after_a_restart() {
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
    let whom = Whom::Agent { id: agent.agent.id, session: &opened.session };
    store.seen(whom, Counters { requests: 2, bytes: 300, events: 40, losses: 1 }, at(100));
    let stranger = Whom::Unregistered { session: "675135e76025b0d2", address: "192.0.2.7" };
    store.seen(stranger, Counters { requests: 1, bytes: 10, events: 0, losses: 0 }, at(50));
    drop(store);

    let store = open(&options);
    // 3,600 s after it was used last, and more since it was opened.
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
    let [stranger] = known.strangers.as_slice() else { panic!("{known:?}") };
    assert_eq!((stranger.first, stranger.seen, stranger.address.as_str()), (at(50), at(60), "192.0.2.7"));
    assert_eq!(stranger.counters, Counters { requests: 2, bytes: 15, events: 3, losses: 0 });
}

#[test]
fn no_key_stands_in_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&in_dir(dir.path()));
    let agent = register(&store, "host-to-look-for", at(0));
    session(&store, &agent, at(0)).unwrap();
    // With what is in the log of writes, and without.
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
fn keys_of_the_file_are_let_in_and_no_others() {
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
fn of_too_many_keys_the_one_without_a_session_goes_and_then_the_oldest() {
    let options = StoreOptions { max_sessions_per_agent: 3, ..StoreOptions::default() };
    let store = open(&options);
    let live = register(&store, "host", at(0));
    let opened = session(&store, &live, at(0)).unwrap();
    let [idle, younger] = [1, 2].map(|second| register(&store, "host", at(second)));
    let newest = register(&store, "host", at(3));
    assert!(matches!(session(&store, &idle, at(4)), Err(Refusal::Denied(_))), "it has made room");
    for kept in [&younger, &newest] {
        assert!(session(&store, kept, at(4)).is_ok());
    }
    assert!(store.session(&opened.session, None, at(4)).is_ok());
    // All three have sessions now: the one used longest ago goes, and its session with it.
    store.session(&opened.session, None, at(50)).unwrap();
    let fourth = register(&store, "host", at(60));
    assert!(session(&store, &fourth, at(61)).is_ok());
    let works = [&live, &younger, &newest].map(|key| session(&store, key, at(62)).is_ok());
    assert_eq!(works.iter().filter(|works| **works).count(), 2, "{works:?}");
}

#[test]
fn agents_are_bounded_in_number_and_by_address_and_old_ones_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { max_agents: 3, max_agents_per_address: 2, ..in_dir(dir.path()) };
    let store = open(&options);
    let try_from = |name: &str, address: &str, now| store.register(&named(name), address, now);
    // Who has sent something keeps its place for long.
    let sends = |registered: Registered, now| {
        let whom = Whom::Agent { id: registered.agent.id, session: "" };
        store.seen(whom, Counters { requests: 1, ..Counters::default() }, now);
    };
    sends(try_from("a", "192.0.2.1", at(0)).unwrap(), at(0));
    sends(try_from("b", "192.0.2.1", at(1)).unwrap(), at(1));
    let full = try_from("c", "192.0.2.1", at(2)).unwrap_err();
    assert!(full.status() == 503 && full.to_string().contains("max_agents_per_address"), "{full}");
    assert!(!try_from("a", "192.0.2.1", at(2)).unwrap().is_new, "who is known may come again");
    sends(try_from("c", "192.0.2.2", at(3)).unwrap(), at(3));
    // What was counted is brought into the file within a second, or at the end.
    drop(store);
    let store = open(&options);
    let try_from = |name: &str, address: &str, now| store.register(&named(name), address, now);
    let full = try_from("d", "192.0.2.3", at(4)).unwrap_err();
    assert!(full.status() == 503 && full.to_string().contains("(max_agents)"), "{full}");
    // A month later `b` is the one that nobody has heard of for longest.
    let later = at(2 + 30 * 86_400);
    assert!(try_from("d", "192.0.2.3", later).unwrap().is_new);
    assert!(!try_from("a", "192.0.2.1", later).unwrap().is_new);
    assert!(
        matches!(try_from("b", "192.0.2.4", later), Err(Refusal::Full(_))),
        "it was forgotten, and there is no room"
    );
}

#[test]
fn who_registers_and_never_sends_makes_room_when_a_session_would_be_over() {
    let options = StoreOptions { max_agents: 2, ..StoreOptions::default() };
    let store = open(&options);
    for (name, second) in [("a", 0), ("b", 1), ("c", 3_601), ("d", 3_602)] {
        assert!(register(&store, name, at(second)).is_new);
    }
    let full = store.register(&named("e"), ADDRESS, at(3_603)).unwrap_err();
    assert_eq!(full.status(), 503, "{full}");
}

#[test]
fn what_is_forgotten_beside_a_running_store_is_denied_within_moments() {
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
        assert!(std::time::Instant::now() < deadline, "its session goes on");
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
fn a_file_that_cannot_be_used_is_told_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "zorka");
    let named_so = |text: &str, what: &str| {
        assert!(text.starts_with(&file.display().to_string()) && text.contains(what), "{text}");
    };
    fs::write(&file, b"what is this? certainly no database").unwrap();
    named_so(&refused(dir.path()), "it is no database; move it away");

    fs::remove_file(&file).unwrap();
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE theirs (a)").unwrap();
    named_so(&refused(dir.path()), "a database of another program");

    fs::remove_file(&file).unwrap();
    drop(open(&in_dir(dir.path())));
    let other = Connection::open(&file).unwrap();
    other.pragma_update(None, "user_version", 7).unwrap();
    named_so(&refused(dir.path()), "it has schema 7, and this version of tributary knows 1");
    other.pragma_update(None, "user_version", 1).unwrap();

    other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").unwrap();
    named_so(&refused(dir.path()), "it is locked by another process");
    drop(other);

    let running = open(&in_dir(dir.path()));
    named_so(&refused(dir.path()), "another tributary has it");
    drop(running);
    drop(open(&in_dir(dir.path())));

    // No directory can be made below a file.
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
                    text.contains("damaged") || text.contains("no database") || text.contains("another program"),
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
fn a_file_that_somebody_locks_meanwhile_is_unavailable_and_then_well_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&in_dir(dir.path()));
    let agent = register(&store, "host", at(0));
    let opened = session(&store, &agent, at(0)).unwrap();
    let other = Connection::open(path(dir.path(), "zorka")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = store.register(&named("late"), ADDRESS, at(1)).unwrap_err();
    assert_eq!(busy.status(), 503, "{busy}");
    assert!(busy.to_string().contains("locked by another process"), "{busy}");
    assert!(store.session(&opened.session, None, at(1)).is_ok(), "sessions are looked up all the same");
    other.execute_batch("COMMIT").unwrap();
    assert!(register(&store, "late", at(2)).is_new);
}
