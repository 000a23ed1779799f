//! Conversations served by libzmq itself, as in an agent: PUB and REP sockets of pyzmq, on loopback.
//!
//! `TRIBUTARY_PYZMQ` names a Python that has pyzmq; otherwise `python3` is tried. Without pyzmq the tests print a note and
//! pass; `cargo test --test rbkit libzmq -- --nocapture` shows it.
#![allow(clippy::print_stderr, reason = "a test that cannot run says why")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::live::{Daemon, until_async};
use crate::rbkit_support::compare::{Problems, check_message, check_resource, named, of_message};
use crate::rbkit_support::listener;
use crate::rbkit_support::recording::{self, Session, Step};
use serde_json::Value;

/// The exit code of the script if there is no pyzmq.
const NO_PYZMQ: i32 = 3;

/// A process with libzmq sockets. Killed when dropped.
struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    publish: String,
    request: String,
}

impl Peer {
    /// None if there is no pyzmq.
    fn start(session: &Session, ports: (&str, &str), kind: &str) -> Option<Peer> {
        let python = std::env::var("TRIBUTARY_PYZMQ").unwrap_or_else(|_| "python3".to_owned());
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let directory = recording::directory().join("sessions").join(&session.name);
        let mut command = Command::new(&python);
        command.arg(root.join("tests/rbkit/libzmq_peer.py")).arg(directory).args([ports.0, ports.1, kind]);
        let Ok(mut child) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            eprintln!("NOT TESTED: there is no {python}");
            return None;
        };
        let stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        if stdout.read_line(&mut line).unwrap() == 0 {
            assert_eq!(child.wait().unwrap().code(), Some(NO_PYZMQ), "{python} fails");
            eprintln!("NOT TESTED: {python} has no pyzmq (pip install pyzmq, TRIBUTARY_PYZMQ=that python)");
            return None;
        }
        let bound: Value = serde_json::from_str(&line).unwrap();
        let address = |key: &str| bound[key].as_str().unwrap().to_owned();
        Some(Peer { child, stdin, stdout, publish: address("publish"), request: address("request") })
    }

    /// Sends it a command and returns its answer. This runs in a thread of its own, so that the daemon is not blocked.
    async fn command(self, line: String) -> (Peer, Value) {
        let mut peer = self;
        let answer = tokio::task::spawn_blocking(move || {
            writeln!(peer.stdin, "{line}").unwrap();
            let mut answer = String::new();
            peer.stdout.read_line(&mut answer).unwrap();
            (peer, serde_json::from_str(&answer).unwrap())
        });
        crate::live::within("the peer answers", answer).await.unwrap()
    }

    fn agent(&self) -> String {
        let Peer { publish, request, .. } = self;
        format!("{{ publish = \"{publish}\", request = \"{request}\", enable = [\"memory_profile\"] }}")
    }

    /// The ports of its sockets.
    fn ports(&self) -> (String, String) {
        let port = |address: &str| address.rsplit(':').next().unwrap().to_owned();
        (port(&self.publish), port(&self.request))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SIGKILL: it closes nothing properly. It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves all steps from `from`.
async fn serve(mut peer: Peer, session: &Session) -> Peer {
    for step in &session.steps {
        peer = match step {
            Step::Request(_) | Step::Ok => continue,
            Step::Handshake(message) => {
                let (peer, _) = peer.command(format!("handshake {}", message.file)).await;
                let (peer, _) = peer.command("wait answered 1".to_owned()).await;
                peer.command("wait subscribed 1".to_owned()).await.0
            }
            Step::Publish(message) => peer.command(format!("publish {}", message.file)).await.0,
        };
    }
    peer
}

#[tokio::test]
async fn conversations_served_by_libzmq_give_the_recorded_events() {
    let mut problems = Problems::default();
    for session in recording::sessions() {
        let Some(peer) = Peer::start(&session, ("0", "0"), "XPUB") else { return };
        // It does not answer before the first reply is set.
        let first = &session.handshakes().next().unwrap().file;
        let (peer, _) = peer.command(format!("handshake {first}")).await;
        let options = "handshake_interval = \"100ms\"";
        let daemon = Daemon::start(&listener(&[peer.agent()], options)).await;
        let peer = serve(peer, &session).await;
        let last = session.published().last().unwrap().counter().unwrap();
        daemon.until("the last message", |events| !of_message(events, last).is_empty()).await;
        let stopped = daemon.stop().await;
        let mut count = 0;
        for message in session.published() {
            problems.with(format!("{} {}", session.name, message.file));
            let mine = of_message(&stopped.events, message.counter().unwrap());
            count += mine.len();
            check_message(&mut problems, message, &mine);
        }
        problems.with(&session.name);
        let handshakes = named(&stopped.events, "rbkit.handshake").len();
        problems.check(stopped.events.len() == count + handshakes, || {
            format!(
                "{} events more: {:?}",
                stopped.events.len() - count - handshakes,
                crate::live::losses(&stopped.events)
            )
        });
        check_resource(&mut problems, &session.handshakes().next().unwrap().decoded, &stopped.events);
        let (_, answer) = peer.command("wait handshake 1".to_owned()).await;
        let requests: Vec<&str> =
            answer["requests"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
        problems.check(requests[0] == "handshake", || format!("{requests:?}"));
        eprintln!("{}: {} events, {} requests", session.name, stopped.events.len(), requests.len());
    }
    problems.assert_none();
}

/// A PUB socket does not report subscriptions, so the message is published again until it is received.
#[tokio::test]
async fn a_restarted_libzmq_process_is_connected_and_asked_again() {
    let session = recording::session("master-2.1-memory-then-cpu");
    let Some(peer) = Peer::start(&session, ("0", "0"), "PUB") else { return };
    let published: Vec<_> = session.published().collect();
    let handshakes: Vec<_> = session.handshakes().collect();
    let (mut peer, _) = peer.command(format!("handshake {}", handshakes[0].file)).await;
    let daemon = Daemon::start(&listener(&[peer.agent()], "")).await;
    for message in [published[2], published[1]] {
        (peer, _) = peer.command("wait start_memory_profile 1".to_owned()).await;
        let (publish, request) = peer.ports();
        let counter = message.counter().unwrap();
        // Handshakes have numbers of the request connection.
        let is_published = |event: &Value| event["origin"]["peer"].as_str().unwrap().ends_with(&publish);
        let mut publisher = Some(peer);
        until_async("the message is received", async || {
            let (peer, _) = publisher.take().unwrap().command(format!("publish {}", message.file)).await;
            publisher = Some(peer);
            let is_it = |event: &Value| is_published(event) && event["origin"]["sequence"] == counter;
            daemon.events().iter().any(is_it).then_some(())
        })
        .await;
        drop(publisher);
        peer = Peer::start(&session, (&publish, &request), "PUB").unwrap();
        (peer, _) = peer.command(format!("handshake {}", handshakes[0].file)).await;
    }
    let (_, answer) = peer.command("wait start_memory_profile 1".to_owned()).await;
    assert_eq!(answer["requests"][0], "handshake", "{answer}");
    let stopped = daemon.stop().await;
    let faults = crate::live::losses(&stopped.events).into_iter().filter(|loss| loss["bytes"] != 0).count();
    assert_eq!(faults, 0);
    // The counter of the second process is lower than that of the first, and the message was published more than once.
    assert!(!named(&stopped.events, "rbkit.agent.restarted").is_empty());
}
