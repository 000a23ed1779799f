//! The daemon is killed ninety-two times while agents register: every answered key works afterwards. It also does not
//! start with a store that it cannot use.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::live::PATIENCE;
use crate::live::binary::{Binary, run, tributary};
use rusqlite::Connection;
use serde_json::{Value, json};

const KILLS: u64 = DAEMONS * MOMENTS;
/// The number of answers before a kill differs: each daemon is killed once after each number from 1 to this one.
const MOMENTS: u64 = 23;
/// The number of daemons that are killed repeatedly in parallel: most of the time is spent waiting for the disk.
const DAEMONS: u64 = 4;
/// The number of agents that register at one daemon in parallel.
const THREADS: u64 = 4;

/// A client that sends requests one after the other over one connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(to: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Client(BufReader::new(stream)))
    }

    fn post(&mut self, path: &str, body: &Value) -> io::Result<(u16, Value)> {
        let body = body.to_string();
        let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n");
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        self.0.get_mut().write_all(request.as_bytes())?;
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match line.trim_end().split_once(':') {
                _ if status == 0 => status = line.split(' ').nth(1).unwrap().parse().unwrap(),
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().unwrap();
                }
                None => break,
                _ => {}
            }
        }
        let mut answer = vec![0; length];
        self.0.read_exact(&mut answer)?;
        Ok((status, serde_json::from_slice(&answer).unwrap_or_default()))
    }

    /// Registers; returns the UUID and the key of the answer.
    fn register(&mut self, name: &str) -> io::Result<(String, String)> {
        let asked = json!({"rkey": "secret", "name": name, "app": "shop", "env": "TST"});
        let (status, answer) = self.post("/agent/register", &asked)?;
        assert!(status == 200 || status == 201, "{status}: {answer}");
        Ok((answer["uuid"].as_str().unwrap().to_owned(), answer["authkey"].as_str().unwrap().to_owned()))
    }

    /// Opens the session of a key, which must succeed.
    fn session(&mut self, (uuid, authkey): &(String, String)) -> String {
        let (status, answer) = self.post("/agent/session", &json!({"uuid": uuid, "authkey": authkey})).unwrap();
        assert_eq!(status, 200, "{uuid}: {answer}");
        answer["session"].as_str().unwrap().to_owned()
    }
}

fn start(dir: &Path, options: &str) -> Binary {
    let state = dir.join("state");
    let listener = "[listeners.zorka]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"";
    let toml =
        format!("{listener}\nstate_dir = \"{}\"\n{options}\n[sinks.none]\ntype = \"discard\"\n", state.display());
    let config = dir.join("tributary.toml");
    std::fs::write(&config, toml).unwrap();
    Binary::start(tributary(&["run", "--config", config.to_str().unwrap()]))
}

#[test]
fn every_key_that_was_answered_works_after_every_kill() {
    let broken = AtomicU64::new(0);
    let keys: Vec<usize> = thread::scope(|scope| {
        let lives: Vec<_> = (0..DAEMONS).map(|_| scope.spawn(|| kill_repeatedly(KILLS / DAEMONS, &broken))).collect();
        lives.into_iter().map(|lives| lives.join().unwrap()).collect()
    });
    println!("{keys:?} keys were answered; {} requests were under way in a kill", broken.load(Ordering::Relaxed));
    assert!(keys.iter().sum::<usize>() as u64 > 10 * KILLS && broken.load(Ordering::Relaxed) > 3 * KILLS);
}

/// Starts a daemon and kills it while agents register, `kills` times; returns the number of answered keys. Requests without
/// an answer are counted in `broken`.
fn kill_repeatedly(kills: u64, broken: &AtomicU64) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let options = "max_agents_per_address = 1000000\nmax_agents = 1000000\nmax_sessions_per_agent = 10000";
    let mut all: Vec<(String, String)> = Vec::new();
    let mut checked = 0;
    for round in 0..kills {
        let daemon = start(dir.path(), options);
        let address = daemon.address("zorka");
        let mut client = Client::connect(address).unwrap();
        // What the last life answered, and some of all before.
        for key in &all[checked..] {
            client.session(key);
        }
        checked = all.len();
        for place in (0..checked).step_by(1 + checked / 7) {
            client.session(&all[place]);
        }
        let (results, answers) = mpsc::channel();
        thread::scope(|scope| {
            for number in 0..THREADS {
                let results = results.clone();
                scope.spawn(move || {
                    let mut client = Client::connect(address).unwrap();
                    for count in 0.. {
                        // Some are new, some were there in this life, some in others.
                        let name = match count % 3 {
                            0 => format!("new-{round}-{number}-{count}"),
                            1 => format!("life-{round}"),
                            _ => format!("old-{number}"),
                        };
                        let Ok(answer) = client.register(&name) else { break };
                        results.send(answer).unwrap();
                    }
                    broken.fetch_add(1, Ordering::Relaxed);
                });
            }
            drop(results);
            for _ in 0..1 + round * 7 % MOMENTS {
                all.push(answers.recv().unwrap());
            }
            // Dropped is killed.
            drop(daemon);
            all.extend(answers);
        });
    }
    let daemon = start(dir.path(), options);
    let mut client = Client::connect(daemon.address("zorka")).unwrap();
    all.iter().for_each(|key| drop(client.session(key)));
    all.len()
}

#[test]
fn a_session_survives_the_daemon_and_its_agent_is_recognised() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), "");
    let mut client = Client::connect(daemon.address("zorka")).unwrap();
    let key = client.register("host").unwrap();
    let session = client.session(&key);
    drop(daemon);
    let daemon = start(dir.path(), "");
    let mut client = Client::connect(daemon.address("zorka")).unwrap();
    assert_eq!(client.session(&key), session);
    assert_eq!(client.register("host").unwrap().0, key.0);
}

#[test]
fn the_daemon_does_not_start_with_a_store_that_it_cannot_use() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state/zorka.db");
    std::fs::create_dir(dir.path().join("state")).unwrap();
    let refused = |what: &str| {
        let ended = start(dir.path(), "").end();
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        let words = ended.last_words();
        let place = format!("cannot start the agents of listener zorka: {}: {what}", file.display());
        assert!(words.contains(&place), "{words}");
    };
    std::fs::write(&file, "SQLite format 3\0 but for the rest").unwrap();
    refused("it is not a database");
    std::fs::remove_file(&file).unwrap();
    let daemon = start(dir.path(), "");
    daemon.address("zorka");
    refused("another tributary process uses it");
    drop(daemon);
    let shell = Connection::open(&file).unwrap();
    shell.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").unwrap();
    refused("it is locked by another process");
    drop(shell);
    start(dir.path(), "").address("zorka");
}

#[test]
fn operators_list_and_remove_agents_while_the_daemon_runs() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), "");
    let mut client = Client::connect(daemon.address("zorka")).unwrap();
    let key = client.register("host").unwrap();
    client.session(&key);
    let config = dir.path().join("tributary.toml");
    let agents = |arguments: &[&str]| run(&[&["agents"], arguments, &["--config", config.to_str().unwrap()]].concat());
    let listed = agents(&["registered", "--format", "json"]).events();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["uuid"], &listed[0]["sessions"]), (&json!(key.0), &json!(1)));
    assert_eq!(agents(&["forget", "host"]).code, Some(0));
    let (status, answer) = client.post("/agent/session", &json!({"uuid": key.0, "authkey": "another"})).unwrap();
    assert_eq!(status, 200, "without keys_file an unknown agent is registered with what it has: {answer}");
    let (status, answer) = client.post("/agent/session", &json!({"uuid": key.0, "authkey": key.1})).unwrap();
    assert_eq!(status, 401, "{answer}");
    assert_ne!(client.register("host").unwrap().0, key.0);
}

/// Agents up to 1.90.6 keep the id and the key of their registration in a file, and never register again.
#[test]
fn after_a_restart_without_state_dir_an_agent_gets_a_session_under_its_id_unless_there_is_a_keys_file() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("tributary.toml");
    let keys = dir.path().join("zorka.keys");
    std::fs::write(&keys, "the-key\n").unwrap();
    let start = |more: &str| {
        let toml =
            "[listeners.zorka]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n".to_owned();
        std::fs::write(&config, toml + more + "[sinks.none]\ntype = \"discard\"\n").unwrap();
        Binary::start(tributary(&["run", "--config", config.to_str().unwrap()]))
    };
    let first = start("");
    let key = Client::connect(first.address("zorka")).unwrap().register("host").unwrap();
    first.signal("TERM");
    assert_eq!(first.end().code, Some(0));
    let asked = json!({"uuid": key.0, "authkey": key.1});

    let second = start("");
    let mut client = Client::connect(second.address("zorka")).unwrap();
    for _ in 0..2 {
        let (status, answer) = client.post("/agent/session", &asked).unwrap();
        assert_eq!(status, 200, "{answer}");
    }
    second.signal("TERM");
    let log = second.end().stderr;
    let lines: Vec<_> = log.lines().filter(|line| line.contains(&format!("agent=\"{}\"", key.0))).collect();
    assert!(lines.len() == 1 && lines[0].contains("registered with the id and the key that it has"), "{log}");

    let third = start(&format!("keys_file = \"{}\"\n", keys.display()));
    let mut client = Client::connect(third.address("zorka")).unwrap();
    for _ in 0..3 {
        let (status, answer) = client.post("/agent/session", &asked).unwrap();
        assert_eq!(status, 401, "{answer}");
        let reason = answer["reason"].as_str().unwrap();
        assert!(
            reason.contains("delete the lines tracer.net.agent.id and tracer.net.sessn.key in its zorka.properties"),
            "{reason}"
        );
    }
    third.signal("TERM");
    let log = third.end().stderr;
    let lines: Vec<_> = log.lines().filter(|line| line.contains(&format!("agent=\"{}\"", key.0))).collect();
    assert!(lines.len() == 1 && lines[0].contains("WARN") && lines[0].contains("tracer.net.sessn.key"), "{log}");
    assert!(log.contains("reason=\"unauthorized\""), "{log}");
}

#[test]
fn a_listener_without_state_dir_says_at_the_start_what_that_costs() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("tributary.toml");
    let toml = "[listeners.zorka]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n\
                [sinks.none]\ntype = \"discard\"\n";
    std::fs::write(&config, toml).unwrap();
    let daemon = Binary::start(tributary(&["run", "--config", config.to_str().unwrap()]));
    let line = daemon.until_stderr("registered agents are kept in memory");
    assert!(line.contains("with keys_file they are refused for good; set state_dir"), "{line}");
    assert!(line.contains("zorka"), "{line}");
    let kept = start(dir.path(), "");
    kept.address("zorka");
    kept.signal("TERM");
    assert!(!kept.end().stderr.contains("kept in memory"));
}

#[test]
fn a_full_table_of_agents_is_a_warning_that_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), "max_agents = 2");
    let mut client = Client::connect(daemon.address("zorka")).unwrap();
    for name in ["first", "second"] {
        client.register(name).unwrap();
    }
    let third = json!({"rkey": "secret", "name": "third", "app": "shop", "env": "TST"});
    assert_eq!(client.post("/agent/register", &third).unwrap().0, 503);
    let line = daemon.until_stderr("too many agents are registered (max_agents)");
    for part in
        ["WARN", "listener=\"zorka\"", "agents=2", "refused a new agent", "keys_file", "tributary agents forget"]
    {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
}
