//! The file of the store: what it does not contain, older versions, and files that cannot be used.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use tributary::protocol::zico::agents::{Agents, Opening, Registered, session_digest};
use tributary::zico_store::{AgentStore, list, path};

use super::{ADDRESS, at, in_dir, named, open, register, session};
use crate::zico_support::open_store;

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
    let opened = store.open(&Opening::new(uuid, authkey), at(0)).unwrap();
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

fn refused(dir: &Path) -> String {
    AgentStore::open(&in_dir(dir), "zorka").map(drop).unwrap_err().to_string()
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
        match open_store(&in_dir(dir.path()), "zorka") {
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
    assert!(busy.to_string().contains("the store of agents is locked"), "{busy}");
    assert!(store.session(&opened.session, None, at(1)).is_ok(), "sessions can still be looked up");
    other.execute_batch("COMMIT").unwrap();
    assert!(register(&store, "late", at(2)).is_new);
}
