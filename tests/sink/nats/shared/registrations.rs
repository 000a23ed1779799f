//! Agents that register with one daemon and are known to all.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::super::daemon::{get, until_not_ready, until_ready};
use super::{Edge, Reply, post};
use crate::live::binary::{Binary, run, until};
use crate::nats_server::NatsServer;

const STATE: &str = "state = \"URL/zico\"";

fn ask(to: SocketAddr, path: &str, body: &Value) -> Reply {
    post(to, path, "Content-Type: application/json\r\n", body.to_string().as_bytes())
}

/// Registers; returns the UUID and the key.
fn register(daemon: &Binary, name: &str) -> (String, String) {
    let reply = ask(daemon.address("zorka"), "/agent/register", &registration(name));
    assert!([200, 201].contains(&reply.status), "{} {}", reply.status, reply.body);
    let answer = reply.json();
    (answer["uuid"].as_str().unwrap().to_owned(), answer["authkey"].as_str().unwrap().to_owned())
}

fn registration(name: &str) -> Value {
    json!({ "rkey": "secret", "name": name, "app": "shop", "env": "TST" })
}

fn open(daemon: &Binary, (uuid, authkey): &(String, String)) -> Reply {
    ask(daemon.address("zorka"), "/agent/session", &json!({ "uuid": uuid, "authkey": authkey }))
}

fn session(daemon: &Binary, key: &(String, String)) -> String {
    let reply = open(daemon, key);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["session"].as_str().unwrap().to_owned()
}

/// The status of a submission without content in this session.
fn submit(daemon: &Binary, (uuid, _): &(String, String), session: &str) -> u16 {
    let headers = format!("X-Zorka-Agent-UUID: {uuid}\r\nX-Zorka-Session-UUID: {session}\r\n");
    post(daemon.address("zorka"), "/agent/submit/agd", &headers, b"").status
}

fn two(server: &NatsServer, zico: &str) -> ([Edge; 2], [Binary; 2]) {
    let edges = [zico, zico].map(|zico| Edge::new(server, "", zico, ""));
    let daemons = edges.each_ref().map(Edge::start);
    (edges, daemons)
}

#[test]
fn an_agent_that_registers_with_one_daemon_is_known_to_all_and_opens_a_session_at_each() {
    let Some(server) = NatsServer::start() else { return };
    let (_edges, [first, second]) = two(&server, STATE);
    let key = register(&first, "host");
    let here = session(&first, &key);
    assert_eq!(submit(&first, &key, &here), 202);
    // Its definitions are not there.
    assert_eq!(submit(&second, &key, &here), 401);
    let there = session(&second, &key);
    assert_ne!(here, there);
    assert_eq!(submit(&second, &key, &there), 202);
    assert_eq!(submit(&first, &key, &there), 401);
    // Another start of its JVM is the same agent, with another key; the first key stays valid.
    let again = register(&second, "host");
    assert_eq!(again.0, key.0);
    assert_ne!(again.1, key.1);
    assert_eq!(session(&second, &key), there, "the session is live");
    for daemon in [&first, &second] {
        session(daemon, &again);
        let unknown = (key.0.clone(), "0".repeat(32));
        assert_eq!(open(daemon, &unknown).status, 401);
        assert_eq!(open(daemon, &("x.>".into(), key.1.clone())).status, 401);
    }
    assert_ne!(register(&first, "other").0, key.0);
}

#[test]
fn an_agent_that_the_bucket_does_not_know_is_registered_with_the_id_and_the_key_that_it_has() {
    let Some(server) = NatsServer::start() else { return };
    let (_edges, daemons) = two(&server, STATE);
    let key = |number: usize| (format!("00000000-0000-4000-8000-{number:012}"), format!("{number:032}"));
    // Both daemons are asked at the same time.
    std::thread::scope(|scope| {
        for number in 0..12 {
            let daemon = &daemons[number % 2];
            scope.spawn(move || session(daemon, &key(number / 4)));
        }
    });
    for number in 0..3 {
        for daemon in &daemons {
            let opened = session(daemon, &key(number));
            assert_eq!(submit(daemon, &key(number), &opened), 202);
            // Its key is one of its keys from now on, and no other one is.
            assert_eq!(open(daemon, &(key(number).0, key(9).1)).status, 401);
        }
    }
    let agents = server.messages("KV_zico");
    let is_agent = |subject: &str| subject.starts_with("$KV.zico.agent.");
    let ids: std::collections::BTreeSet<_> =
        agents.iter().map(|message| message.subject.clone()).filter(|subject| is_agent(subject)).collect();
    assert_eq!(ids.len(), 3, "{ids:?}");
    let logs = daemons.map(|daemon| {
        daemon.signal("TERM");
        daemon.end().stderr
    });
    assert!(logs.concat().contains("it is registered with the id and the key that it has"), "{logs:?}");
}

#[test]
fn with_known_registration_keys_an_agent_that_the_bucket_does_not_know_is_refused_and_logged_once() {
    let Some(server) = NatsServer::start() else { return };
    let edge = Edge::new(&server, "", &format!("{STATE}\nkeys_file = \"DIR/keys\""), "");
    std::fs::write(edge.path().join("keys"), "secret\n").unwrap();
    let daemon = edge.start();
    let unknown = ("00000000-0000-4000-8000-00000000000a".to_owned(), "0".repeat(32));
    for _ in 0..3 {
        let refused = open(&daemon, &unknown);
        assert_eq!(refused.status, 401);
        assert!(
            refused.body.contains("delete the lines tracer.net.agent.id and tracer.net.sessn.key"),
            "{}",
            refused.body
        );
    }
    session(&daemon, &register(&daemon, "host"));
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.stderr.matches("an agent is refused a session for good").count(), 1, "{}", ended.stderr);
}

#[test]
fn the_bucket_has_no_key_with_which_its_reader_could_act_as_an_agent() {
    let Some(server) = NatsServer::start() else { return };
    let (_edges, [first, _]) = two(&server, STATE);
    let key = register(&first, "host");
    let session = session(&first, &key);
    let messages = server.messages("KV_zico");
    assert!(messages.iter().any(|message| message.lines_or_bytes().contains("host")));
    for message in &messages {
        let text = format!("{} {}", message.subject, message.lines_or_bytes());
        assert!(!text.contains(&key.1) && !text.contains(&session) && !text.contains("secret"), "{text}");
    }
}

#[test]
fn daemons_that_register_the_same_agent_at_the_same_time_make_one_agent_with_all_keys() {
    let Some(server) = NatsServer::start() else { return };
    let (_edges, daemons) = two(&server, STATE);
    let keys: Vec<_> = std::thread::scope(|scope| {
        let all = (0..12).map(|number| {
            scope.spawn({
                let daemons = &daemons;
                move || register(&daemons[number % 2], "pod")
            })
        });
        all.collect::<Vec<_>>().into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(keys.iter().all(|key| key.0 == keys[0].0));
    for (number, key) in keys.iter().enumerate() {
        session(&daemons[(number + 1) % 2], key);
    }
}

#[test]
fn simulated_agents_go_from_one_daemon_to_the_other_when_theirs_is_killed_and_both_are_started_again() {
    let Some(server) = NatsServer::start() else { return };
    let (edges, [first, second]) = two(&server, STATE);
    let key = register(&first, "host");
    let mut daemons = [Some(first), Some(second)];
    for round in 0..4_usize {
        let (one, other) = (round % 2, (round + 1) % 2);
        for dialect in ["gen1", "doc"] {
            let to = daemons[one].as_ref().unwrap().address("zorka").to_string();
            let seed = round.to_string();
            let sent = run(&["simulate", "zico", "--dialect", dialect, "--to", &to, "--count", "60", "--seed", &seed]);
            assert_eq!(sent.code, Some(0), "{}", sent.stderr);
        }
        let killed = daemons[one].take().unwrap();
        killed.signal("KILL");
        drop(killed.end());
        let kept = session(daemons[other].as_ref().unwrap(), &key);
        assert_eq!(submit(daemons[other].as_ref().unwrap(), &key, &kept), 202);
        daemons[one] = Some(edges[one].start());
        // It has forgotten its sessions, and knows the agents.
        assert_eq!(submit(daemons[one].as_ref().unwrap(), &key, &kept), 401);
        let again = session(daemons[one].as_ref().unwrap(), &key);
        assert_eq!(submit(daemons[one].as_ref().unwrap(), &key, &again), 202);
        assert_eq!(register(daemons[one].as_ref().unwrap(), "host").0, key.0);
    }
}

#[test]
fn while_nats_is_away_registrations_are_answered_503_and_sessions_continue() {
    let Some(mut server) = NatsServer::start() else { return };
    // The spool takes the events of requests: without one, each answer waits for the sink.
    let spool = "spool = { dir = \"DIR/spool\", min_free_bytes = \"0B\" }";
    let edges = [STATE, STATE].map(|zico| Edge::new(&server, "", zico, spool));
    let [first, second] = edges.each_ref().map(Edge::start);
    let key = register(&first, "host");
    let live = session(&first, &key);
    server.kill();
    until("the loss is noticed", || get(&first, "/readyz").1.contains("what it shares is away").then_some(()));
    for (path, body) in
        [("/agent/register", registration("late")), ("/agent/session", json!({ "uuid": key.0, "authkey": key.1 }))]
    {
        for daemon in [&first, &second] {
            let reply = ask(daemon.address("zorka"), path, &body);
            assert_eq!(reply.status, 503, "{}", reply.body);
            assert!(reply.head.contains("retry-after: 10"), "{}", reply.head);
            assert!(reply.body.contains("the registered agents cannot be looked up now"), "{}", reply.body);
        }
    }
    // A submission needs no look-up.
    assert_eq!(submit(&first, &key, &live), 202);
    server.start_again();
    until("registrations are accepted", || {
        let reply = ask(second.address("zorka"), "/agent/register", &registration("late"));
        // 200: a registration was stored, and its answer was lost.
        [200, 201].contains(&reply.status).then_some(())
    });
    until("the first one is connected", || (open(&first, &key).status == 200).then_some(()));
    assert_eq!(session(&first, &key), live);
    assert_eq!(submit(&second, &key, &session(&second, &key)), 202);
}

#[test]
fn a_server_that_was_killed_and_started_again_has_everything_that_was_answered() {
    let Some(mut server) = NatsServer::start() else { return };
    let (_edges, [first, second]) = two(&server, STATE);
    let mut keys = Vec::new();
    for round in 0..4 {
        for number in 0..5 {
            keys.push(register(&first, &format!("host-{round}-{number}")));
        }
        server.kill();
        server.start_again();
        until("both are connected", || {
            [&first, &second].iter().all(|daemon| open(daemon, &keys[0]).status == 200).then_some(())
        });
        keys.iter().for_each(|key| drop(session(&second, key)));
    }
}

#[test]
fn limits_of_shared_agents_are_those_of_the_bucket() {
    let Some(server) = NatsServer::start() else { return };
    let limits = format!("{STATE}\nmax_agents = 4\nmax_agents_per_address = 3\nmax_sessions_per_agent = 2");
    let (_edges, [first, second]) = two(&server, &limits);
    let keys: Vec<_> =
        [(&first, "a"), (&second, "b"), (&first, "c")].map(|(daemon, name)| register(daemon, name)).into();
    for daemon in [&first, &second] {
        let reply = ask(daemon.address("zorka"), "/agent/register", &registration("d"));
        assert_eq!(reply.status, 503);
        assert!(reply.body.contains("max_agents_per_address"), "{}", reply.body);
        // A known one may register again.
        assert_eq!(register(daemon, "a").0, keys[0].0);
    }
    // Of its keys the latest two are valid.
    assert_eq!(open(&first, &keys[0]).status, 401);
    assert_eq!(open(&first, &keys[1]).status, 200);
}

#[test]
fn an_agent_that_is_removed_from_the_bucket_loses_its_session_and_may_register_again() {
    let Some(server) = NatsServer::start() else { return };
    let (_edges, [first, second]) = two(&server, &format!("{STATE}\nsession_timeout = \"4s\""));
    let key = register(&first, "host");
    let here = session(&first, &key);
    assert_eq!(submit(&first, &key, &here), 202);
    server.purge("KV_zico", &format!("$KV.zico.agent.{}", key.0));
    until("the session is over", || (submit(&first, &key, &here) == 401).then_some(()));
    let again = register(&second, "host");
    assert_eq!(again.0, key.0, "its name leads to the same UUID");
    session(&first, &again);
}

#[test]
fn a_wrong_bucket_is_reported_and_used_when_it_is_corrected() {
    let Some(server) = NatsServer::start() else { return };
    let edge = Edge::new(&server, "", &format!("{STATE}\nnats.create = false"), "");
    let daemon = edge.spawn();
    until_not_ready(&daemon, "listener zorka cannot use what it shares: the bucket zico at");
    assert_eq!(ask(daemon.address("zorka"), "/agent/register", &registration("a")).status, 503);
    server.create("KV_zico", &["$KV.zico.>"], json!({ "max_msgs_per_subject": 1, "allow_direct": true }));
    until_ready(&daemon);
    session(&daemon, &register(&daemon, "a"));
}
