//! The REP socket: one request connection of a collector. Section 1 of the protocol notes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::Counts;
use super::super::rng::Rng;
use super::super::tcp::{LAST_CLOSE, unix_nanos};
use super::dialect::Dialect;
use super::shared::{Requested, Shared};
use super::wire::{Kind, Value, event, pack};
use super::zmtp::{Reader, Socket, greet, head, write};

/// The longest time until the loop of the gem reads a request.
const MAX_LOOP_MILLIS: u64 = 50;

/// Serves one connection until it ends or `halt`.
pub(super) async fn serve(stream: TcpStream, number: u64, pid: u64, shared: Arc<Shared>, halt: CancellationToken) {
    let Ok((reader, writer)) = greet(stream, Socket::Rep, &shared).await else { return };
    let rng = Rng::new(pid, number);
    let mut connection = Connection { reader, writer, shared, pid, rng, last_handshake: None };
    let ended = tokio::select! {
        ended = connection.serve() => ended,
        () = halt.cancelled() => Ok(()),
    };
    if ended.is_ok() {
        connection.end().await;
    }
}

struct Connection {
    reader: Reader,
    writer: OwnedWriteHalf,
    shared: Arc<Shared>,
    pid: u64,
    rng: Rng,
    /// The payload of the last handshake reply on it.
    last_handshake: Option<Vec<u8>>,
}

impl Connection {
    async fn serve(&mut self) -> io::Result<()> {
        loop {
            let Some(request) = self.request().await? else { continue };
            if request.is_empty() {
                self.shared.count_received(|received| received.empty_requests += 1);
            }
            // No request of any client is answered until the process is restarted.
            if self.shared.received().is_stuck(self.shared.dialect) {
                continue;
            }
            self.wait_for_loop().await?;
            let reply = self.handle(&request)?;
            let frames = [head(true, 0), head(false, reply.len() as u64), reply].concat();
            write(&mut self.writer, &frames, &self.shared).await?;
            self.shared.count(Counts { messages: 1, events: 0 });
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

    /// Waits as long as the loop of the gem may take. Input that arrives meanwhile is a second request before the reply to the
    /// first.
    async fn wait_for_loop(&mut self) -> io::Result<()> {
        let wait = sleep(Duration::from_millis(self.rng.below(MAX_LOOP_MILLIS)));
        tokio::pin!(wait);
        loop {
            tokio::select! {
                () = &mut wait => break,
                read = self.reader.fill() => if read? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                },
            }
        }
        if !self.reader.input.is_empty() {
            self.shared.count_received(|received| received.second_requests += 1);
        }
        Ok(())
    }

    /// Carries out a request. Returns the reply.
    fn handle(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        let name = String::from_utf8_lossy(request).into_owned();
        // The gem compares C strings.
        let word = request.split(|byte| *byte == 0).next().unwrap_or_default();
        let has_cpu = self.shared.dialect != Dialect::V0110;
        let (mut is_known, mut is_needless) = (true, false);
        match word {
            b"handshake" => {
                self.shared.count_received(|received| received.count_request(name));
                return self.handshake();
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

    fn handshake(&mut self) -> io::Result<Vec<u8>> {
        let dialect = self.shared.dialect;
        let Requested { memory, cpu, wall_clock, .. } = self.shared.requested();
        let is_release = dialect == Dialect::V0110;
        let mut pairs: Vec<(Value, Value)> = Vec::new();
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
        let payload = Value::Map(pairs);
        let mut packed = Vec::new();
        pack(dialect, &payload, &mut packed)?;
        if self.last_handshake.as_ref() != Some(&packed) {
            self.shared.count(Counts { messages: 0, events: 1 });
            self.last_handshake = Some(packed);
        }
        let mut reply = Vec::new();
        pack(dialect, &event(dialect, Kind::Handshake, unix_nanos() / 1_000_000, Some(payload)), &mut reply)?;
        Ok(reply)
    }

    /// Closes the sending side, and waits until the collector closes the connection.
    async fn end(mut self) {
        use tokio::io::AsyncWriteExt;
        // The collector may have gone already.
        let _ = self.writer.shutdown().await;
        let rest = async {
            while self.reader.fill().await.is_ok_and(|read| read > 0) {
                self.reader.input.clear();
            }
        };
        let _ = timeout(LAST_CLOSE, rest).await;
    }
}
