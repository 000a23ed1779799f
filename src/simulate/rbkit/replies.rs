//! The REP socket: it receives the requests of all collectors, and one thread of the program answers them one after another.
//! Section 1 of the protocol notes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::Counts;
use super::super::rng::Rng;
use super::super::tcp::{LAST_CLOSE, unix_nanos};
use super::dialect::RbkitDialect;
use super::shared::{Requested, SharedProcess};
use super::wire::{EventType, PackedValue, event, pack};
use super::zmtp::{Reader, Socket, greet, head, write};

/// The longest time until the loop of the gem reads a request.
const MAX_LOOP_MILLIS: u64 = 50;

/// A request that libzmq has received. It is answered also when its connection has ended meanwhile, without a reply then.
#[derive(Debug)]
pub(super) struct ReceivedRequest {
    body: Vec<u8>,
    connection: Arc<ReplyConnection>,
}

/// A connection, as its requests see it.
#[derive(Debug)]
struct ReplyConnection {
    writer: Mutex<OwnedWriteHalf>,
    unanswered: AtomicU64,
    /// The payload of the last handshake reply on it.
    last_handshake: StdMutex<Option<Vec<u8>>>,
}

/// Receives the requests of one connection until it ends or `halt`.
pub(super) async fn receive(
    stream: TcpStream,
    shared: Arc<SharedProcess>,
    requests: mpsc::UnboundedSender<ReceivedRequest>,
    halt: CancellationToken,
) {
    let Ok((reader, writer)) = greet(stream, Socket::Rep, &shared).await else { return };
    let (writer, last_handshake) = (Mutex::new(writer), StdMutex::default());
    let connection = Arc::new(ReplyConnection { writer, unanswered: AtomicU64::new(0), last_handshake });
    let mut receiver = Receiver { reader, shared, connection: connection.clone() };
    let has_halted = tokio::select! {
        _ = receiver.receive(&requests) => false,
        () = halt.cancelled() => true,
    };
    // The collector may have gone already.
    let _ = connection.writer.lock().await.shutdown().await;
    if has_halted {
        receiver.drain().await;
    }
}

struct Receiver {
    reader: Reader,
    shared: Arc<SharedProcess>,
    connection: Arc<ReplyConnection>,
}

impl Receiver {
    async fn receive(&mut self, requests: &mpsc::UnboundedSender<ReceivedRequest>) -> io::Result<()> {
        loop {
            let Some(body) = self.request().await? else { continue };
            let is_second = self.connection.unanswered.fetch_add(1, Ordering::Relaxed) > 0;
            // No request of any client is answered any more, so each is the second one.
            let is_stuck = self.shared.received().is_stuck(self.shared.dialect);
            self.shared.count_received(|received| {
                received.second_requests += u64::from(is_second && !is_stuck);
                received.empty_requests += u64::from(body.is_empty());
            });
            // The thread that answers may have ended.
            let _ = requests.send(ReceivedRequest { body, connection: self.connection.clone() });
        }
    }

    /// Reads the body of the next request; None: the message is not a request.
    async fn request(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut frames = Vec::new();
        loop {
            let frame = self.reader.frame().await?;
            if frame.is_command {
                continue;
            }
            let is_last = !frame.has_more;
            frames.push(frame.body);
            if is_last {
                break;
            }
        }
        if frames.len() < 2 || !frames[0].is_empty() {
            self.shared.count_received(|received| received.undelimited += 1);
            return Ok(None);
        }
        // The first frame is the request; further frames are dropped.
        Ok(Some(frames.swap_remove(1)))
    }

    /// Waits until the collector closes the connection.
    async fn drain(mut self) {
        let rest = async {
            while self.reader.fill().await.is_ok_and(|read| read > 0) {
                self.reader.input.clear();
            }
        };
        let _ = timeout(LAST_CLOSE, rest).await;
    }
}

/// The thread that answers requests, one after another, until `halt`. Before each it waits for Ruby's lock for `lock_wait`.
pub(super) async fn answer(
    mut requests: mpsc::UnboundedReceiver<ReceivedRequest>,
    pid: u64,
    lock_wait: Duration,
    shared: Arc<SharedProcess>,
    halt: CancellationToken,
) {
    let mut responder = Responder { shared, pid };
    let mut rng = Rng::new(pid, 0);
    let serve = async {
        while let Some(request) = requests.recv().await {
            sleep(lock_wait + Duration::from_millis(rng.below(MAX_LOOP_MILLIS))).await;
            if responder.shared.received().is_stuck(responder.shared.dialect) {
                continue;
            }
            // A reply that cannot be written is dropped.
            let _ = responder.answer(&request).await;
        }
    };
    tokio::select! {
        () = serve => {}
        () = halt.cancelled() => {}
    }
}

struct Responder {
    shared: Arc<SharedProcess>,
    pid: u64,
}

impl Responder {
    async fn answer(&mut self, request: &ReceivedRequest) -> io::Result<()> {
        let ReceivedRequest { body, connection } = request;
        let reply = self.handle(body, connection)?;
        let frames = [head(true, 0), head(false, reply.len() as u64), reply].concat();
        connection.unanswered.fetch_sub(1, Ordering::Relaxed);
        write(&mut *connection.writer.lock().await, &frames, &self.shared).await?;
        self.shared.count(Counts { messages: 1, events: 0 });
        Ok(())
    }

    /// Carries out a request. Returns the reply.
    fn handle(&self, request: &[u8], connection: &ReplyConnection) -> io::Result<Vec<u8>> {
        let name = String::from_utf8_lossy(request).into_owned();
        // The gem compares C strings.
        let word = request.split(|byte| *byte == 0).next().unwrap_or_default();
        let has_cpu = self.shared.dialect != RbkitDialect::V0110;
        let (mut is_known, mut is_needless) = (true, false);
        match word {
            b"handshake" => {
                self.shared.count_received(|received| received.count_request(name));
                return self.handshake(connection);
            }
            b"start_memory_profile" => self.shared.request(|requested| requested.memory = true),
            b"stop_memory_profile" => {
                is_needless = !self.shared.request(|requested| std::mem::take(&mut requested.memory));
            }
            b"start_cpu_profiling" => self.shared.request(|requested| requested.cpu = has_cpu),
            b"stop_cpu_profiling" => {
                is_needless = !self.shared.request(|requested| std::mem::take(&mut requested.cpu));
            }
            b"use_cpu_time" => self.shared.request(|requested| requested.wall_clock = false),
            b"use_wall_time" => self.shared.request(|requested| requested.wall_clock = true),
            b"trigger_gc" => self.shared.request(|requested| requested.collections += 1),
            b"objectspace_snapshot" => self.shared.request(|requested| requested.dumps += 1),
            _ => is_known = false,
        }
        self.shared.count_received(|received| {
            received.unknown_requests += u64::from(!is_known);
            received.needless_stops += u64::from(is_needless);
            received.count_request(name);
        });
        Ok(b"ok".to_vec())
    }

    fn handshake(&self, connection: &ReplyConnection) -> io::Result<Vec<u8>> {
        let dialect = self.shared.dialect;
        let Requested { memory, cpu, wall_clock, .. } = self.shared.requested();
        let is_release = dialect == RbkitDialect::V0110;
        let mut pairs: Vec<(PackedValue, PackedValue)> = Vec::new();
        if !is_release {
            pairs.push(("rbkit_server_version".into(), "0.1.10".into()));
            pairs.push(("rbkit_protocol_version".into(), "2.1".into()));
        }
        pairs.push(("process_name".into(), "/srv/shop/app.rb".into()));
        pairs.push(("pwd".into(), "/srv/shop".into()));
        pairs.push(("pid".into(), self.pid.into()));
        pairs.push(("object_trace_enabled".into(), u64::from(memory).into()));
        if !is_release {
            pairs.push(("cpu_profiling_enabled".into(), u64::from(cpu).into()));
            pairs.push(("clock_type".into(), if wall_clock { "wall" } else { "cpu" }.into()));
            pairs.push(("cpu_profiling_mode".into(), "sampling".into()));
        }
        let payload = PackedValue::Map(pairs);
        let mut packed = Vec::new();
        pack(dialect, &payload, &mut packed)?;
        let mut last = connection.last_handshake.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref() != Some(&packed) {
            self.shared.count(Counts { messages: 0, events: 1 });
            *last = Some(packed);
        }
        drop(last);
        let mut reply = Vec::new();
        pack(dialect, &event(dialect, EventType::Handshake, unix_nanos() / 1_000_000, Some(payload)), &mut reply)?;
        Ok(reply)
    }
}
