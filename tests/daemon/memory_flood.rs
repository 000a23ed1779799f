//! The daemon under floods of every protocol, with a stalled sink: it stays within its memory limit, applies backpressure,
//! keeps its counters, and serves ordinary peers.
//!
//! The binary runs in a process of its own, whose peak the system reports.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ChildStdout;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::live::binary::{Binary, tributary};
use crate::live::{until, wire, within};
use crate::rbkit_law_support::pack::{frame, hello};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const MIB: u64 = 1 << 20;
/// `limits.memory_bytes` below.
const LIMIT: u64 = 64 * MIB;
/// Freed memory that the allocator keeps, and fragmentation.
const ALLOCATOR: u64 = 32 * MIB;
/// A peer that is not read for this long is under backpressure. An agent that is refused connects again after the same time.
const PUSHED_BACK: Duration = Duration::from_millis(500);

fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"
limits = {{ memory_bytes = {LIMIT}, threads = 2, shutdown_grace = "50s" }}
admin.listen = "127.0.0.1:0"
view.enabled = false
[listeners.spans]
protocol = "datadog"
reserved_bytes = "256KiB"
listen = "127.0.0.1:0"
message_timeout = "2s"
[listeners.java]
protocol = "bytefrog"
reserved_bytes = "256KiB"
listen = "127.0.0.1:0"
max_message_bytes = "1MiB"
[listeners.desktops]
protocol = "endless"
reserved_bytes = "256KiB"
listen = "127.0.0.1:0"
max_body_bytes = "4MiB"
max_inflated_bytes = "4MiB"
max_requests = 8
quarantine.dir = ""
dedup.entries = 1000
message_timeout = "2s"
[listeners.zorka]
protocol = "zico"
reserved_bytes = "256KiB"
listen = "127.0.0.1:0"
max_body_bytes = "4MiB"
max_inflated_bytes = "4MiB"
max_sessions = 1000
max_requests = 8
quarantine.dir = ""
state_dir = "{dir}"
message_timeout = "2s"
[listeners.ruby]
protocol = "rbkit"
reserved_bytes = "256KiB"
listen_publish = "127.0.0.1:0"
message_timeout = "2s"
max_message_bytes = "4MiB"
[sinks.pipe]
type = "stdout"
buffer_bytes = "1MiB"
"#
    )
}

/// The daemon, whose stdout is not read until [`Daemon::read`].
struct Daemon {
    binary: Binary,
    stdout: Option<ChildStdout>,
    events: Arc<Mutex<Vec<Value>>>,
    base: u64,
}

impl Daemon {
    fn start(dir: &Path) -> Daemon {
        let path = dir.join("tributary.toml");
        fs::write(&path, configuration(dir)).unwrap();
        let mut binary = Binary::start_unread(tributary(&["run", "--config", path.to_str().unwrap()]));
        let stdout = Some(binary.take_stdout());
        binary.until_stderr("sink=\"pipe\"");
        let base = memory(&binary, "VmRSS");
        Daemon { binary, stdout, events: Arc::default(), base }
    }

    fn address(&self, listener: &str) -> SocketAddr {
        self.binary.address(listener)
    }

    /// From now on its stdout is read.
    fn read(&mut self) {
        let (stdout, events) = (BufReader::new(self.stdout.take().unwrap()), self.events.clone());
        thread::spawn(move || {
            let mut knows_work = false;
            for line in stdout.lines().map(Result::unwrap) {
                // One event per flood is enough.
                if !line.contains(r#""name":"work""#) || !std::mem::replace(&mut knows_work, true) {
                    events.lock().unwrap().push(serde_json::from_str(&line).unwrap());
                }
            }
        });
    }

    async fn until_event(&self, what: &str, is_it: impl Fn(&Value) -> bool) {
        until(what, || self.events.lock().unwrap().iter().any(&is_it).then_some(())).await;
    }

    fn assert_within_its_memory(&self, after: &str) {
        let (peak, most) = (memory(&self.binary, "VmHWM"), self.base + LIMIT + ALLOCATOR);
        assert!(peak < most, "after {after}: {} MiB, over {} MiB", peak / MIB, most / MIB);
    }
}

fn memory(binary: &Binary, figure: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", binary.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(figure)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Connects and sends; stops when it is not read. Returns the connection, and whether everything was sent.
async fn send(address: SocketAddr, bytes: &[u8]) -> (TcpStream, bool) {
    let mut stream = within("the connection is established", TcpStream::connect(address)).await.unwrap();
    let is_sent = matches!(timeout(PUSHED_BACK, stream.write_all(bytes)).await, Ok(Ok(())));
    (stream, is_sent)
}

/// Opens `peers` connections at the same time; each sends `bytes` of its number.
async fn flood(address: SocketAddr, peers: u64, bytes: impl Fn(u64) -> Vec<u8>) -> Vec<(TcpStream, bool)> {
    let mut sending = tokio::task::JoinSet::new();
    for number in 0..peers {
        let bytes = bytes(number);
        sending.spawn(async move { send(address, &bytes).await });
    }
    within("every peer has sent what the daemon accepts", sending.join_all()).await
}

fn request(head: &str, length: u64, body: &[u8]) -> Vec<u8> {
    [format!("{head}\r\nHost: h\r\nContent-Length: {length}\r\n\r\n").as_bytes(), body].concat()
}

/// A dictionary of `texts` texts of 1000 bytes.
fn dictionary(texts: u64) -> Vec<u8> {
    let texts = (1..=texts).flat_map(|id| wire::string(id, &format!("{id:01000}")));
    [&[0xDD, 0, 0, 0, 0, 1][..], &u64::MAX.to_be_bytes()].concat().into_iter().chain(texts).collect()
}

/// The status line of a response; empty if the connection ends before.
async fn answer(stream: &mut TcpStream) -> String {
    let mut answer = vec![0; 12];
    match within("a response", stream.read_exact(&mut answer)).await {
        Ok(_) => String::from_utf8_lossy(&answer).into_owned(),
        Err(_) => String::new(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_all_protocols_at_a_stalled_sink_fit_into_memory_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(directory.path());
    let [spans, java, desktops, zorka, ruby] =
        ["spans", "java", "desktops", "zorka", "ruby"].map(|name| daemon.address(name));

    // A connection from before the floods.
    let (mut quiet, _) = send(spans, &wire::process()).await;

    // The sink takes nothing: decoded batches wait in its queue, then before it; then no connection is read.
    let work = wire::work(100_000).0;
    let workers = flood(spans, 20, |_| work.clone()).await;
    assert!(workers.iter().any(|(_, is_sent)| !is_sent), "no peer is under backpressure");
    daemon.assert_within_its_memory("20 peers at a sink that stands still");

    // Complete bodies whose events cannot be written, and incomplete bodies.
    let body = vec![b'x'; 4 * MIB as usize - 1];
    let hash = "0".repeat(128);
    let uploads = flood(desktops, 60, |number| {
        let half = &body[..body.len() / (1 + number as usize % 2)];
        request(&format!("PUT /3/{hash} HTTP/1.1"), body.len() as u64, half)
    })
    .await;
    daemon.assert_within_its_memory("bodies");

    // The reader returns, and all other connections are reset, with the bytes that were not read.
    daemon.read();
    workers.into_iter().chain(uploads).for_each(|(stream, _)| crate::live::reset(stream));
    daemon.until_event("decoding of spans continues", |event| event["name"] == "work").await;

    // Dictionaries, and many incomplete messages.
    let words = dictionary(4000);
    let hoarders = flood(spans, 20, |_| words.clone()).await;
    daemon.assert_within_its_memory("dictionaries");
    let half = [wire::process(), wire::string_head(1, 1_000_000), vec![b'x'; 900_000]].concat();
    let halves = flood(spans, 200, |_| half.clone()).await;
    daemon.assert_within_its_memory("incomplete strings");
    drop(halves);

    // Symbols of many sessions.
    let symbols: Vec<u8> =
        (0..4000).flat_map(|id| crate::zico_support::cbor::gen2::string(id, &"x".repeat(100))).collect();
    let mut sessions = flood(zorka, 60, |number| {
        let head = format!(
            "POST /agent/submit/agd HTTP/1.1\r\nX-Zorka-Session-Id: f100d{number}\r\nX-Zorka-Session-Reset: true"
        );
        request(&head, symbols.len() as u64, &symbols)
    })
    .await;
    for (stream, _) in &mut sessions {
        let answer = answer(stream).await;
        assert!(["HTTP/1.1 202", "HTTP/1.1 503", ""].contains(&&*answer), "{answer}");
    }
    daemon.assert_within_its_memory("symbols");
    drop(sessions);

    // Incomplete messages that are buffered at the same time: a frame with one long text.
    let mut event = vec![0x83, 0, 6, 9, 0, 2, 0x91, 0x82, 0, 9, 2, 0x91, 0x81, 12, 0xDB];
    event.extend_from_slice(&4_000_000_u32.to_be_bytes());
    event.resize(event.len() + 4_000_000, b'x');
    let frame = frame(0, &event);
    let half = [hello("PUB"), frame[..3_500_000].to_vec()].concat();
    let stuck = flood(ruby, 40, |_| half.clone()).await;
    daemon.assert_within_its_memory("incomplete messages");
    daemon
        .until_event("incomplete messages that exceed the memory limit are reported as lost", |event| {
            event["loss"]["detail"].as_str().is_some_and(|detail| detail.contains("limits.memory_bytes"))
                && event["origin"]["protocol"] == "rbkit"
        })
        .await;

    // Connections that send nothing.
    let silent = flood(java, 300, |_| Vec::new()).await;
    daemon.assert_within_its_memory("connections");

    // The connection from before is served while the others keep their memory.
    quiet.write_all(&[wire::named_span(1, "quiet"), wire::trace()].concat()).await.unwrap();
    daemon.until_event("the span of the quiet connection", |event| event["name"] == "quiet").await;
    // A new connection is served, too. All peers have one address here: while the silent connections have all that one address
    // may have, it is refused, and its agent connects again.
    let is_new = |event: &Value| event["name"] == "new";
    let _new = within("a new connection is served", async {
        loop {
            let (mut new, _) =
                send(spans, &[wire::process(), wire::named_span(1, "new"), wire::trace()].concat()).await;
            tokio::select! {
                () = daemon.until_event("the span of the new connection", is_new) => break new,
                _ = new.read_u8() => tokio::time::sleep(PUSHED_BACK).await,
            }
        }
    })
    .await;

    drop((hoarders, stuck, silent, quiet));
    daemon.binary.signal("TERM");
    let ended = daemon.binary.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // The counters, from the last lines of the log.
    for listener in ["spans", "java", "desktops", "zorka", "ruby"] {
        let numbers =
            ["bytes_in", "bytes_decoded", "bytes_lost"].map(|number| ended.total("listener", listener, number));
        let [bytes_in, decoded, lost] = numbers;
        assert_eq!(bytes_in, decoded + lost, "{}", ended.stderr);
        assert!(listener == "java" || bytes_in > 0, "{}", ended.stderr);
    }
    let [events, written] = ["events", "written"].map(|number| ended.total("sink", "pipe", number));
    assert_eq!(events, written, "{}", ended.stderr);
}
