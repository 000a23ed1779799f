//! The REP side: one connection of a collector that asks and commands. Section 1 of the protocol notes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::Counts;
use super::super::rng::Rng;
use super::super::tcp::unix_nanos;
use super::shared::{Shared, Wishes};
use super::wire::{Kind, Value, event, pack};
use super::zmtp::{Reader, Socket, greet, head, write};
use super::{Dialect, LAST_CLOSE};

/// How long the gem's loop may take until it looks.
const LONGEST_LOOK_MILLIS: u64 = 50;

/// Serves one connection, until it ends or `halt` says so.
pub(super) async fn serve(stream: TcpStream, number: u64, pid: u64, shared: Arc<Shared>, halt: CancellationToken) {
    let Ok((reader, writer)) = greet(stream, Socket::Rep, &shared).await else { return };
    let rng = Rng::new(pid, number);
    let mut connection = Connection { reader, writer, shared, pid, rng, told: None };
    let ended = tokio::select! {
        ended = connection.converse() => ended,
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
    /// What the last handshake on it said.
    told: Option<Vec<u8>>,
}

impl Connection {
    async fn converse(&mut self) -> io::Result<()> {
        loop {
            let Some(request) = self.request().await? else { continue };
            if request.is_empty() {
                self.shared.remark(|remarks| remarks.empty_requests += 1);
            }
            // Nobody gets an answer any more, whatever is asked, until the process is started again.
            if self.shared.remarks().is_stuck(self.shared.dialect) {
                continue;
            }
            self.look().await?;
            let reply = self.obey(&request)?;
            let frames = [head(true, 0), head(false, reply.len() as u64), reply].concat();
            write(&mut self.writer, &frames, &self.shared).await?;
            self.shared.count(Counts { messages: 1, events: 0 });
        }
    }

    /// The body of the next request; none if what came was no request.
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
            self.shared.remark(|remarks| remarks.undelimited += 1);
            return Ok(None);
        }
        // Of several frames the first is the request; the others are dropped.
        Ok(Some(frames.swap_remove(1)))
    }

    /// Waits for the gem's loop to look. What comes meanwhile is a second request, before the answer to the first.
    async fn look(&mut self) -> io::Result<()> {
        let look = sleep(Duration::from_millis(self.rng.below(LONGEST_LOOK_MILLIS)));
        tokio::pin!(look);
        loop {
            tokio::select! {
                () = &mut look => break,
                read = self.reader.fill() => if read? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                },
            }
        }
        if !self.reader.input.is_empty() {
            self.shared.remark(|remarks| remarks.second_requests += 1);
        }
        Ok(())
    }

    /// Does what is asked, and answers it.
    fn obey(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        let name = String::from_utf8_lossy(request).into_owned();
        // The gem compares C strings.
        let word = request.split(|byte| *byte == 0).next().unwrap_or_default();
        let has_cpu = self.shared.dialect != Dialect::V0110;
        let (mut is_known, mut is_needless) = (true, false);
        match word {
            b"handshake" => {
                self.shared.remark(|remarks| remarks.request(name));
                return self.handshake();
            }
            b"start_memory_profile" => self.shared.wish(|wishes| wishes.memory = true),
            b"stop_memory_profile" => {
                is_needless = !self.shared.wish(|wishes| std::mem::take(&mut wishes.memory));
            }
            b"start_cpu_profiling" => self.shared.wish(|wishes| wishes.cpu = has_cpu),
            b"stop_cpu_profiling" => {
                is_needless = !self.shared.wish(|wishes| std::mem::take(&mut wishes.cpu));
            }
            b"use_cpu_time" => self.shared.wish(|wishes| wishes.wall_clock = false),
            b"use_wall_time" => self.shared.wish(|wishes| wishes.wall_clock = true),
            b"trigger_gc" => self.shared.wish(|wishes| wishes.collections += 1),
            b"objectspace_snapshot" => self.shared.wish(|wishes| wishes.dumps += 1),
            _ => is_known = false,
        }
        self.shared.remark(|remarks| {
            remarks.unknown_requests += u64::from(!is_known);
            remarks.needless_stops += u64::from(is_needless);
            remarks.request(name);
        });
        Ok(b"ok".to_vec())
    }

    fn handshake(&mut self) -> io::Result<Vec<u8>> {
        let dialect = self.shared.dialect;
        let Wishes { memory, cpu, wall_clock, .. } = self.shared.wishes();
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
        if self.told.as_ref() != Some(&packed) {
            self.shared.count(Counts { messages: 0, events: 1 });
            self.told = Some(packed);
        }
        let mut reply = Vec::new();
        pack(dialect, &event(dialect, Kind::Handshake, unix_nanos() / 1_000_000, Some(payload)), &mut reply)?;
        Ok(reply)
    }

    /// Says that nothing more comes, and waits for the collector to close as well.
    async fn end(mut self) {
        use tokio::io::AsyncWriteExt;
        // Whoever has left already has no use for a farewell.
        let _ = self.writer.shutdown().await;
        let rest = async {
            while self.reader.fill().await.is_ok_and(|read| read > 0) {
                self.reader.input.clear();
            }
        };
        let _ = timeout(LAST_CLOSE, rest).await;
    }
}
