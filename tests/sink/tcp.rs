//! The TCP sink on real sockets: a reader that refuses, restarts, stalls or breaks the connection.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::live::{until, within};
use crate::sink_file_support::{batch_of, names, names_in, now};
use tokio_util::sync::CancellationToken;
use tributary::pipeline::accounting::SinkCounters;
use tributary::pipeline::options::QueueOptions;
use tributary::pipeline::{Sender, Sinks, Workers};
use tributary::sink::tcp::{Framing, Options, Tcp};

/// A TCP sink with its queue, on a thread of its own, as the daemon runs it.
struct Sending {
    sender: Sender,
    workers: Workers,
    counters: Arc<SinkCounters>,
}

impl Sending {
    fn start(options: Options) -> Sending {
        let mut sinks = Sinks::new(CancellationToken::new());
        sinks.add("remote", QueueOptions::default(), move || Ok(Tcp::new("remote", options.clone())));
        let counters = sinks.counters()[0].clone();
        let (sender, workers) = sinks.start();
        Sending { sender, workers, counters }
    }

    /// Hands over a batch for each chunk of names; waits while the queue is full.
    fn send(&self, names: Vec<String>, chunk: usize) -> tokio::task::JoinHandle<()> {
        let sender = self.sender.clone();
        tokio::spawn(async move {
            for names in names.chunks(chunk) {
                sender.send(batch_of(names, "web", now())).await;
            }
        })
    }

    async fn finish(mut self) {
        drop(self.sender);
        within("the sink ends", self.workers.drained()).await;
        let totals = self.counters.totals();
        assert_eq!((totals.written, totals.failed), (totals.events, 0));
    }
}

fn options(address: SocketAddr) -> Options {
    let millisecond = Duration::from_millis(1);
    Options { reconnect_min: millisecond, reconnect_max: millisecond * 20, ..Options::to(address.to_string()) }
}

/// A listener whose connections buffer little, so that a reader that stalls is soon noticed.
fn listen() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&listener).set_recv_buffer_size(64 * 1024).unwrap();
    listener
}

/// Accepts connections on a thread; sends what each delivered.
fn read_all(listener: TcpListener, connections: usize, read: fn(TcpStream) -> Vec<u8>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for _ in 0..connections {
            let bytes = read(listener.accept().unwrap().0);
            sender.send(bytes).unwrap();
        }
    });
    receiver
}

fn to_end(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_refuses_connections_gets_everything_once_it_accepts() {
    // The port stays reserved, and refuses, before the socket listens.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let sending = Sending::start(options(address));
    let sent = sending.send(names(0..1_000, 20), 10);
    until("the sink reports that it cannot write", || sending.counters.totals().is_retrying.then_some(())).await;
    assert_eq!(sending.counters.totals().written, 0);
    socket.listen(8).unwrap();
    let received = read_all(socket.into(), 1, to_end);
    within("everything is handed over", sent).await.unwrap();
    sending.finish().await;
    assert_eq!(names_in(&received.recv().unwrap()), names(0..1_000, 20));
}

/// Reads some lines, asks for the end of the connection, and reads up to it.
fn some_lines_then_the_rest(stream: TcpStream) -> Vec<u8> {
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    for _ in 0..200 {
        if reader.read_until(b'\n', &mut bytes).unwrap() == 0 {
            return bytes;
        }
    }
    reader.get_ref().shutdown(Shutdown::Write).unwrap();
    reader.read_to_end(&mut bytes).unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_restarts_in_order_loses_tears_and_repeats_nothing() {
    let listener = listen();
    let sending = Sending::start(options(listener.local_addr().unwrap()));
    let received = read_all(listener, 1_000, some_lines_then_the_rest);
    let expected = names(0..20_000, 300);
    within("everything is handed over", sending.send(expected.clone(), 50)).await.unwrap();
    sending.finish().await;
    let (mut seen, mut connections) = (Vec::new(), 0);
    while seen.len() < expected.len() {
        // Each connection ends after a whole line: `names_in` fails on a torn one.
        seen.extend(names_in(&received.recv_timeout(Duration::from_secs(60)).unwrap()));
        connections += 1;
    }
    assert!(connections > 1, "the reader restarted");
    assert!(seen == expected, "{} of {} lines", seen.len(), expected.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stalls_is_waited_for_and_gets_everything_once() {
    let listener = listen();
    let sending = Sending::start(options(listener.local_addr().unwrap()));
    // More than the sockets' buffers and the queue take.
    let expected = names(0..20_000, 1_000);
    let sent = sending.send(expected.clone(), 100);
    let (stream, _) = listener.accept().unwrap();
    until("the sink reports that it cannot write", || sending.counters.totals().is_retrying.then_some(())).await;
    assert!(!sent.is_finished());
    let reading = std::thread::spawn(move || to_end(stream));
    within("everything is handed over", sent).await.unwrap();
    sending.finish().await;
    let seen = names_in(&reading.join().unwrap());
    assert!(seen == expected, "{} of {} lines", seen.len(), expected.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_broken_connection_the_line_that_was_cut_is_sent_again_whole_and_no_other() {
    let listener = listen();
    let sending = Sending::start(options(listener.local_addr().unwrap()));
    let expected = names(0..20_000, 1_000);
    let sent = sending.send(expected.clone(), 100);
    let (mut stream, _) = listener.accept().unwrap();
    until("the sink reports that it cannot write", || sending.counters.totals().is_retrying.then_some(())).await;
    // Half of some line has arrived, and the rest of it is still with the sink.
    let mut first = vec![0; 100_000];
    stream.read_exact(&mut first).unwrap();
    drop(stream);
    let received = read_all(listener, 1, to_end);
    within("everything is handed over", sent).await.unwrap();
    sending.finish().await;
    let whole = first.iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let (before, after) = (names_in(&first[..whole]), names_in(&received.recv().unwrap()));
    assert_eq!(before, expected[..before.len()]);
    // What the kernel had taken and the reader had not read is lost, as documented; after that, each line
    // is there once and in order.
    assert!(after == expected[expected.len() - after.len()..], "{} lines", after.len());
    assert!(before.len() + after.len() <= expected.len(), "no line is sent twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_takes_no_data_for_write_timeout_loses_its_connection() {
    let listener = listen();
    let impatient = Options { write_timeout: Duration::from_millis(1), ..options(listener.local_addr().unwrap()) };
    let sending = Sending::start(impatient);
    let sent = sending.send(names(0..20_000, 1_000), 100);
    let (stalled, _) = listener.accept().unwrap();
    let (second, _) = tokio::task::spawn_blocking(move || listener.accept()).await.unwrap().unwrap();
    let reading = std::thread::spawn(move || to_end(second));
    within("everything is handed over", sent).await.unwrap();
    sending.finish().await;
    let seen = names_in(&reading.join().unwrap());
    assert_eq!(seen.last(), names(19_999..20_000, 1_000).last());
    drop(stalled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_length_prefixes_each_record_follows_its_length() {
    let listener = listen();
    let sending =
        Sending::start(Options { framing: Framing::LengthPrefixed, ..options(listener.local_addr().unwrap()) });
    let received = read_all(listener, 1, to_end);
    within("everything is handed over", sending.send(names(0..500, 30), 7)).await.unwrap();
    sending.finish().await;
    let bytes = received.recv().unwrap();
    let (mut rest, mut seen) = (bytes.as_slice(), Vec::new());
    while let Some((len, after)) = rest.split_first_chunk() {
        let (record, after) = after.split_at(u32::from_be_bytes(*len) as usize);
        assert!(!record.contains(&b'\n'));
        let record: serde_json::Value = serde_json::from_slice(record).unwrap();
        seen.push(record["name"].as_str().unwrap().to_owned());
        rest = after;
    }
    assert!(rest.is_empty());
    assert_eq!(seen, names(0..500, 30));
}
