//! Peers and readers with another pace: one that floods beside quiet ones, one that does not read its answers, a
//! reader of stdout that stalls, writers of one byte at a time. The others are served all the same.
//!
//! Nothing here looks at a watch: what is held against what is counted in events.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::endless_support::http::{ask, reply, send};
use crate::live::binary::{Binary, tributary};
use crate::live::{Daemon, connect, losses, spans, until, wire, within};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;
use tributary::event::Kind;
use tributary::pipeline::options::QueueOptions;
use tributary::server::Server;
use tributary::sink::{Selection, Sink, SinkError};

/// A write that waits this long counts as one that the daemon does not read. Nothing but time shows it: the buffers of the system do not
/// say how much they still take.
const NOT_READ: Duration = Duration::from_millis(200);

/// A sink with a gate: closed, nothing is written. It remembers the listener and the kind of each event.
#[derive(Clone, Default)]
struct Gate(Arc<Behind>);

#[derive(Default)]
struct Behind {
    state: Mutex<State>,
    opened: Notify,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    order: Vec<(Arc<str>, Kind)>,
}

struct Gated {
    gate: Gate,
    waiting: Vec<(Arc<str>, Kind)>,
}

impl Gate {
    /// Stops writing; returns the number of events written so far.
    fn close(&self) -> usize {
        let mut state = self.0.state.lock().unwrap();
        state.is_closed = true;
        state.order.len()
    }

    fn open(&self) {
        self.0.state.lock().unwrap().is_closed = false;
        self.0.opened.notify_waiters();
    }

    fn written(&self) -> usize {
        self.0.state.lock().unwrap().order.len()
    }

    /// The place of the first such event that was written behind the first `before`.
    fn place(&self, before: usize, listener: &str, kind: Kind) -> Option<usize> {
        let state = self.0.state.lock().unwrap();
        state.order[before..].iter().position(|(of, is)| **of == *listener && *is == kind)
    }
}

impl Sink for Gated {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        self.waiting.extend(events.events().map(|event| (event.origin().listener.clone(), event.kind())));
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        loop {
            let mut opened = std::pin::pin!(self.gate.0.opened.notified());
            opened.as_mut().enable();
            {
                let mut state = self.gate.0.state.lock().unwrap();
                if !state.is_closed {
                    state.order.append(&mut self.waiting);
                    return Ok(());
                }
            }
            opened.await;
        }
    }
}

/// Batches that wait in the queue.
const QUEUE: usize = 4;
const FLOODS: usize = 3;
/// What may be written before a quiet agent's event, at the worst: what the sink has in its hands (64 batches), what is in
/// the queue, and of every flood a batch that waits, and what it processes before it yields to the quiet agent's task (512 KiB
/// of spans of 83 bytes: seven batches), while the sink empties the queue. A batch has 1,024 events at most.
const MOST_BEFORE: usize = (64 + QUEUE + 8 * FLOODS) * 1024;

/// Sends spans for as long as it may.
async fn flood(mut stream: TcpStream, is_over: Arc<AtomicBool>) {
    stream.write_all(&wire::work(0).0).await.unwrap();
    let spans = wire::span(1).repeat(2_000);
    while !is_over.load(Ordering::Relaxed) {
        stream.write_all(&spans).await.unwrap();
    }
}

fn upload() -> Vec<u8> {
    fs::read("tests/data/endless/v3-mixed/request.http").unwrap()
}

// On one thread: what the counters have counted is in the queue's queue then.
#[tokio::test]
async fn events_of_quiet_agents_are_written_before_the_next_thousands_of_a_flood() {
    let gate = Gate::default();
    let sink = gate.clone();
    let queue = QueueOptions { buffer_batches: QUEUE, ..QueueOptions::default() };
    let datadog = |name: &str| format!("[listeners.{name}]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n");
    let web = "[listeners.web]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n";
    let config = crate::live::config(&format!("{}{}{web}", datadog("crowded"), datadog("apart")));
    let add = |sinks: &mut tributary::pipeline::Sinks| {
        sinks.add("gate", queue, move || Ok(Gated { gate: sink.clone(), waiting: Vec::new() }));
    };
    let server = Server::start_with(&config, add).await.unwrap();
    let address = |name: &str| server.addresses().iter().find(|bound| bound.name == name).unwrap().address;
    let events = |name: &str, kind: Kind| {
        let totals = server.accounting().totals().listeners;
        totals.iter().find(|totals| totals.name == name).unwrap().count(kind)
    };
    let is_over = Arc::<AtomicBool>::default();
    let mut floods = Vec::new();
    for _ in 0..FLOODS {
        floods.push(tokio::spawn(flood(connect(&server).await, is_over.clone())));
    }
    // The only logs of the floods are their greetings.
    until("the floods have started", || (events("crowded", Kind::Log) == FLOODS as u64).then_some(())).await;
    let mut quiet = [connect(&server).await, TcpStream::connect(address("apart")).await.unwrap()];
    for stream in &mut quiet {
        stream.write_all(&wire::process()).await.unwrap();
    }
    let mut uploading = TcpStream::connect(address("web")).await.unwrap();
    for round in 1..=3 {
        let before = gate.close();
        for stream in &mut quiet {
            // It completes the record before it.
            stream.write_all(&wire::trace()).await.unwrap();
        }
        let uploads = Kind::ALL.map(|kind| events("web", kind)).iter().sum::<u64>();
        send(&mut uploading, &upload()).await;
        let has_all = || {
            let uploaded = Kind::ALL.map(|kind| events("web", kind)).iter().sum::<u64>();
            let logs = [events("crowded", Kind::Log) - FLOODS as u64, events("apart", Kind::Log)];
            (logs == [round, round] && uploaded > uploads).then_some(())
        };
        until("the events of all three are received", has_all).await;
        gate.open();
        let answer = within("the upload is answered", reply(&mut uploading)).await;
        assert_eq!(answer.status, 200);
        // A repeated upload is reported as a loss.
        let kind = if round == 1 { Kind::Log } else { Kind::Loss };
        for (listener, kind) in [("crowded", Kind::Log), ("apart", Kind::Log), ("web", kind)] {
            let place = until("it is written", || gate.place(before, listener, kind)).await;
            assert!(place <= MOST_BEFORE, "round {round}: {place} events were written before that of {listener}");
        }
        // The floods have sent enough to fill all that time.
        until("the floods go on", || (gate.written() > before + MOST_BEFORE).then_some(())).await;
    }
    is_over.store(true, Ordering::Relaxed);
    for flood in floods {
        within("the flood ends", flood).await.unwrap();
    }
    drop((quiet, uploading));
    let totals = within("stopping", server.stop()).await;
    assert!(totals.are_balanced(), "{totals:?}");
}

#[tokio::test]
async fn an_agent_that_does_not_read_its_answers_is_not_read_and_delays_no_other() {
    let http = "[listeners.test]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n";
    let daemon = Daemon::start(http).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.set_send_buffer_size(4 << 10).unwrap();
    let mut deaf = socket.connect(daemon.server.address().unwrap()).await.unwrap();
    // Not the shortest: fewer of them fill the buffers of the system.
    let request = format!("GET /nothing HTTP/1.1\r\nhost: x\r\nx-padding: {}\r\n\r\n", "x".repeat(400)).into_bytes();
    let (mut asked, mut rest, mut waited) = (0_u32, &request[..], 0);
    // Only a long time without a write means that the daemon does not read.
    while waited < 3 {
        assert!(asked < 1_000_000, "the daemon keeps reading");
        match timeout(NOT_READ, deaf.write(rest)).await {
            Ok(written) => rest = &rest[written.unwrap()..],
            Err(_) => waited += 1,
        }
        if rest.is_empty() {
            (asked, rest) = (asked + 1, &request[..]);
        }
    }
    let mut other = daemon.connect().await;
    for _ in 0..20 {
        let answer = within("the other is answered", ask(&mut other, &upload())).await;
        assert_eq!(answer.status, 200);
    }
    // Now it reads, and gets an answer to every request.
    for _ in 0..asked {
        assert_eq!(within("an answer", reply(&mut deaf)).await.status, 200);
    }
    drop((deaf, other));
    daemon.stop().await;
}

/// A peer that sends one byte after the other.
struct Slow {
    stream: TcpStream,
    bytes: Vec<u8>,
    sent: usize,
}

impl Slow {
    async fn new(address: SocketAddr, bytes: Vec<u8>) -> Slow {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Slow { stream, bytes, sent: 0 }
    }

    async fn send_one(&mut self) {
        self.stream.write_all(&self.bytes[self.sent..=self.sent]).await.unwrap();
        self.sent += 1;
        // On one thread: the daemon runs now.
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn agents_that_write_a_byte_at_a_time_are_decoded_and_do_not_delay_others() {
    const SLOW: usize = 20;
    let web = "[listeners.web]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n";
    let daemon = Daemon::start(&format!("{}{web}", crate::live::listener("span_idle = \"1h\""))).await;
    let [datadog, web] = [0, 1].map(|listener| daemon.server.addresses()[listener].address);
    let mut slow = Vec::new();
    for number in 0..SLOW {
        let span = [wire::process(), wire::named_span(1, &format!("slow {number}"))].concat();
        slow.push(Slow::new(datadog, span).await);
    }
    slow.push(Slow::new(web, upload()).await);
    // Two thirds of their bytes, in turns.
    let longest = slow.iter().map(|slow| slow.bytes.len()).max().unwrap();
    for at in 0..longest {
        for slow in slow.iter_mut().filter(|slow| at < slow.bytes.len() * 2 / 3) {
            slow.send_one().await;
        }
    }
    let mut quick = daemon.connect().await;
    quick.write_all(&wire::process()).await.unwrap();
    for number in 0..SLOW {
        quick.write_all(&wire::named_span(1, &format!("quick {number}"))).await.unwrap();
    }
    quick.write_all(&wire::trace()).await.unwrap();
    let is_written =
        |events: &[Value]| spans(events).iter().filter(|(name, _)| name.starts_with("quick")).count() == SLOW;
    let events = daemon.until("the quick one's events are written", is_written).await;
    assert!(!spans(&events).iter().any(|(name, _)| name.starts_with("slow")));
    assert!(events.iter().all(|event| event["origin"]["protocol"] == "datadog"));
    for slow in &mut slow {
        while slow.sent < slow.bytes.len() {
            slow.send_one().await;
        }
    }
    let mut uploading = slow.pop().unwrap().stream;
    assert_eq!(within("the upload is answered", reply(&mut uploading)).await.status, 200);
    for slow in &mut slow {
        slow.stream.shutdown().await.unwrap();
    }
    daemon.until("the slow ones' events are written", |events| spans(events).len() == 2 * SLOW).await;
    drop((slow, uploading, quick));
    let stopped = daemon.stop().await;
    assert!(losses(&stopped.events).is_empty());
    let slow = spans(&stopped.events).into_iter().filter(|(name, is_whole)| name.starts_with("slow") && *is_whole);
    assert_eq!(slow.count(), SLOW);
}

/// The real daemon with a datadog and an endless listener, `a` and `w`, whose stdout has no reader yet.
fn unread_daemon(home: &std::path::Path, console: &str) -> Binary {
    let file = home.join("events.ndjson").display().to_string();
    let toml = format!(
        "[admin]\nlisten = \"\"\n[listeners.a]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n\
         [listeners.w]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\ndelivery_timeout = \"500ms\"\n\
         [sinks.console]\ntype = \"stdout\"\nbuffer_batches = 2\n{console}\n[sinks.f]\ntype = \"file\"\npath = {file:?}\n"
    );
    fs::write(home.join("t.toml"), toml).unwrap();
    Binary::start_unread(tributary(&["run", "--config", &home.join("t.toml").display().to_string()]))
}

/// Reads what it writes to stdout, to its end.
fn listen(daemon: &mut Binary) -> std::thread::JoinHandle<Vec<Value>> {
    let stdout = BufReader::new(daemon.take_stdout());
    std::thread::spawn(move || stdout.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect())
}

const SPANS: usize = 20_000;

/// Sends this many spans, and closes.
fn talk(address: SocketAddr) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(&wire::work(SPANS).0).unwrap();
    })
}

fn lines_of(path: &std::path::Path) -> usize {
    fs::read(path).map_or(0, |file| file.iter().filter(|byte| **byte == b'\n').count())
}

#[test]
fn a_stalled_reader_of_stdout_affects_only_its_own_sink_if_that_sheds() {
    let home = tempfile::tempdir().unwrap();
    let mut daemon = unread_daemon(home.path(), "when_full = \"shed\"");
    let talking = talk(daemon.address("a"));
    let file = home.path().join("events.ndjson");
    crate::live::binary::until("the file has everything", || (lines_of(&file) > SPANS).then_some(()));
    talking.join().unwrap();
    let lines = listen(&mut daemon);
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines = lines.join().unwrap();
    let shed: u64 = losses(&lines).iter().map(|loss| loss["events"].as_u64().unwrap()).sum();
    let written = lines.len() - losses(&lines).len();
    assert!(shed > 0 && losses(&lines).iter().all(|loss| loss["reason"] == "shed"));
    assert_eq!(written as u64 + shed, SPANS as u64 + 1);
    let counters = format!(" sink=\"console\" events={} written={written} shed={shed} failed=0", SPANS + 1);
    assert!(ended.line("sink totals").ends_with(&counters), "{}", ended.stderr);
}

#[tokio::test]
async fn a_stalled_reader_of_stdout_slows_agents_down_and_uploads_get_503() {
    let home = tempfile::tempdir().unwrap();
    let mut daemon = unread_daemon(home.path(), "when_full = \"block\"");
    let talking = talk(daemon.address("a"));
    let mut stream = TcpStream::connect(daemon.address("w")).await.unwrap();
    // The pipe and the queue take some events; after that uploads are not acknowledged.
    let mut answers = Vec::new();
    while answers.last() != Some(&503) {
        assert!(answers.len() < 1_000, "{answers:?}");
        answers.push(within("an answer", ask(&mut stream, &upload())).await.status);
    }
    let lines = listen(&mut daemon);
    let answer = loop {
        match within("an answer", ask(&mut stream, &upload())).await.status {
            503 => {}
            other => break other,
        }
    };
    assert_eq!(answer, 200);
    talking.join().unwrap();
    drop(stream);
    let file = home.path().join("events.ndjson");
    crate::live::binary::until("the file has everything", || (lines_of(&file) > SPANS).then_some(()));
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines = lines.join().unwrap();
    assert_eq!(spans(&lines).len(), SPANS);
    assert_eq!(lines.len(), lines_of(&file));
}
