//! The same run to a file and to OTLP: every recording of every protocol, replayed to a daemon with three sinks. What a receiver
//! made with prost and one in Python have decoded is, as a multiset, what the lines of the file say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tributary::sink::otlp::Protocol;

use super::python::Python;
use super::receiver::Receiver;
use crate::bytefrog_support::recording as bytefrog;
use crate::live::{Daemon, within};
use crate::otlp_support::{Decoded, lines, profiles, records};
use crate::rbkit_support::agent::Agent;
use crate::rbkit_support::recording as rbkit;
use crate::{bytefrog_support, endless_support, rbkit_support, zico_support};

/// The receivers of all daemons of a test.
struct Receivers {
    ours: Receiver,
    python: Option<Mutex<Python>>,
    directory: TempDir,
    files: AtomicUsize,
}

/// The sinks of one daemon.
struct Sinks {
    toml: String,
    file: PathBuf,
}

impl Receivers {
    async fn start() -> Receivers {
        Receivers {
            ours: Receiver::start(Protocol::Http).await,
            python: Python::start().map(Mutex::new),
            directory: tempfile::tempdir().unwrap(),
            files: AtomicUsize::new(0),
        }
    }

    /// Sinks for one daemon, in TOML.
    fn sinks(&self) -> Sinks {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let file = self.directory.path().join(format!("{number}.ndjson"));
        let mut toml = format!("\n[sinks.file]\ntype = \"file\"\npath = \"{}\"\n", file.display());
        let mut add = |name: &str, endpoint: &str, options: &str| {
            toml += &format!("[sinks.{name}]\ntype = \"otlp\"\nendpoint = \"http://{endpoint}\"\n{options}\n");
        };
        add(
            "http",
            &self.ours.address,
            "protocol = \"http/protobuf\"\ncompression = \"none\"\nmax_request_bytes = \"512KiB\"\nmax_in_flight = 2",
        );
        self.python.iter().for_each(|python| {
            add("python", &python.lock().unwrap().address(), "max_request_bytes = \"512KiB\"\nmax_in_flight = 2");
        });
        Sinks { toml, file }
    }

    /// After the daemon has stopped: compares what the sinks wrote. Returns the number of lines.
    async fn check(&self, name: &str, sinks: &Sinks) -> usize {
        let text = std::fs::read_to_string(&sinks.file).unwrap_or_default();
        let count = text.lines().count();
        let (requests, samples) = lines::expected(text.lines());
        let expected = (records(&records::as_lines_show(requests)), samples);
        compare(&format!("{name}, by prost"), self.ours.take(), &expected);
        if let Some(python) = &self.python {
            compare(&format!("{name}, by Python"), python.lock().unwrap().take(), &expected);
        }
        count
    }
}

type Expected = (BTreeMap<String, u32>, profiles::Samples);

fn compare(name: &str, decoded: Decoded, (records_of_lines, samples): &Expected) {
    let found = profiles::samples(&decoded);
    let decoded = records(&records::as_lines_show(decoded.requests));
    for (record, count) in records_of_lines {
        assert_eq!(decoded.get(record), Some(count), "{name}: {record}");
    }
    for (record, count) in &decoded {
        assert_eq!(records_of_lines.get(record), Some(count), "{name}: not in the file: {record}");
    }
    assert_eq!(found.timed, samples.timed, "{name}");
    assert_eq!(found.heap, samples.heap, "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datadog() {
    let receivers = Receivers::start().await;
    let sinks = receivers.sinks();
    let daemon = Daemon::with(&sinks.toml).await;
    let mut connections = 0;
    for entry in std::fs::read_dir(data("datadog")).unwrap() {
        let Ok(bytes) = std::fs::read(entry.unwrap().path().join("wire.bin")) else { continue };
        let mut stream = daemon.connect().await;
        // The daemon may close the connection before the end of a damaged stream.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        connections += 1;
    }
    daemon.until_totals("every connection is accepted", |counters| counters.connections == connections).await;
    daemon.until_all_closed().await;
    daemon.stop().await;
    let lines = receivers.check("datadog", &sinks).await;
    assert!(lines > 300, "{lines}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytefrog() {
    let receivers = Receivers::start().await;
    let mut lines = 0;
    for recording in bytefrog::all(&[""]) {
        let sinks = receivers.sinks();
        let options = format!("emit_definitions = true\ncalls = \"both\"\n{}", sinks.toml);
        let daemon = bytefrog_support::daemon_for_recordings(&options).await;
        bytefrog_support::replay::replay(&daemon, &recording).await;
        daemon.stop().await;
        lines += receivers.check(&recording.name, &sinks).await;
    }
    assert!(lines > 1_000, "{lines}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless() {
    let receivers = Receivers::start().await;
    let sinks = receivers.sinks();
    let quarantine = receivers.directory.path().join("quarantine");
    let daemon = Daemon::start(&endless_support::http::listener(&quarantine, &sinks.toml)).await;
    let uploads = endless_support::cases().into_iter().map(|case| case.request);
    let others = endless_support::http_cases().into_iter().map(|case| case.request);
    for request in uploads.chain(others) {
        let mut stream = daemon.connect().await;
        let _ = stream.write_all(&request).await;
        let _ = stream.shutdown().await;
        // A request that lacks its end gets the end of the connection instead.
        let answer = endless_support::http::reply_to(&mut stream, request.starts_with(b"HEAD"));
        let _ = within("an answer or the end", answer).await;
    }
    daemon.stop().await;
    let lines = receivers.check("endless", &sinks).await;
    assert!(lines > 500, "{lines}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zico() {
    let receivers = Receivers::start().await;
    let mut lines = 0;
    // Its records of one kind are nested 100,000 times; the others show the same.
    for case in zico_support::cases().into_iter().filter(|case| case.name != zico_support::DEEPEST) {
        let sinks = receivers.sinks();
        let quarantine = receivers.directory.path().join(&case.name);
        let toml = zico_support::client::listener(&quarantine, &sinks.toml);
        zico_support::client::converse(&case, &toml, &quarantine).await;
        lines += receivers.check(&case.name, &sinks).await;
    }
    assert!(lines > 1_000, "{lines}");
}

/// A handshake interval so short that no reply of a recording is missed.
const CURIOUS: &str = "handshake_interval = \"100ms\"";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rbkit_conversations_and_single_messages_of_all_dialects() {
    let receivers = Receivers::start().await;
    let (mut lines, mut heaps) = (0, 0);
    let sessions = rbkit::sessions();
    for session in &sessions {
        let sinks = receivers.sinks();
        let (agent, daemon) = connected(session, &sinks).await;
        rbkit_support::serve::serve(&daemon, &agent, session, usize::MAX).await;
        let stopped = daemon.stop().await;
        heaps += usize::from(stopped.events.iter().any(|event| event["name"] == "rbkit.heap.object"));
        lines += receivers.check(&session.name, &sinks).await;
    }
    assert!(heaps > 3, "{heaps} heap dumps");
    let dialects: BTreeSet<_> = sessions.iter().map(|session| &session.dialect).collect();
    for dialect in dialects {
        let sinks = receivers.sinks();
        let session = sessions.iter().find(|session| session.dialect == *dialect).unwrap();
        let (agent, daemon) = connected(session, &sinks).await;
        agent.until_subscribed().await;
        for case in rbkit::messages().into_iter().filter(|case| case.dialect == *dialect) {
            agent.publish(&case.message.body).await;
        }
        rbkit_support::serve::until_received(&daemon, &agent).await;
        daemon.stop().await;
        lines += receivers.check(&format!("messages of {dialect}"), &sinks).await;
    }
    assert!(lines > 1_000, "{lines}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heap_dump_as_objects_and_as_samples_is_one_heap_in_the_profiles() {
    let receivers = Receivers::start().await;
    let sinks = receivers.sinks();
    let has_heap = |session: &rbkit::Session| session.published().any(|message| !message.objects.is_empty());
    let session = rbkit::sessions().into_iter().find(has_heap).unwrap();
    let both = Sinks { toml: format!("heap = \"both\"\n{}", sinks.toml), file: sinks.file.clone() };
    let (agent, daemon) = connected(&session, &both).await;
    rbkit_support::serve::serve(&daemon, &agent, &session, usize::MAX).await;
    let stopped = daemon.stop().await;
    let objects = stopped.events.iter().filter(|event| event["name"] == "rbkit.heap.object").count() as u64;
    let samples = profiles::samples(&receivers.ours.take());
    assert!(samples.heap.is_empty(), "{:?}", samples.heap);
    // `… by TYPE/UNIT TIME VALUE …`
    let value = |text: &str| text.split_once(" by inuse_objects/count ")?.1.split(' ').nth(1)?.parse::<u64>().ok();
    let values = samples.timed.iter().filter_map(|(text, times)| Some(value(text)? * u64::from(*times)));
    assert!(objects > 100, "{objects}");
    assert_eq!(values.sum::<u64>(), objects);
}

/// An agent with the handshake of a conversation, and a daemon that is connected to it.
async fn connected(session: &rbkit::Session, sinks: &Sinks) -> (Agent, Daemon) {
    let agent = Agent::bind().await;
    let handshake = session.handshakes().next().unwrap();
    agent.set_handshake(&handshake.body);
    let daemon = rbkit_support::daemon_for(&agent, &format!("{CURIOUS}\n{}", sinks.toml)).await;
    // A profile that is on is not started.
    let is_on = handshake.decoded["payload"]["object_trace_enabled"] == 1;
    agent.until_started(if is_on { &[] } else { &["start_memory_profile"] }).await;
    (agent, daemon)
}

fn data(protocol: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(protocol)
}
