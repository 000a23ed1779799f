//! One connection of a stream protocol: reads, drives its session, sends its replies, and ends it within the time limits.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::time::{sleep, sleep_until, timeout};
use tracing::{debug, error};

use tributary_codec::http::is_request;
use tributary_driver::{Abandoned, DriverStep, SessionDriver};
use tributary_event::{Batch, Loss, Origin, Reason};
use tributary_explain::Explain;
use tributary_memory::MemoryLease;
use tributary_memory::log_throttle::LogThrottle;
use tributary_protocol::{Awaiting, End, Flow, Now, Session};

use super::context::ConnectionContext;
use super::read_buffer::{MEMORY_RETRY, ReadBuffer};
use super::stream::ConnectionStream;

/// A connection that has decoded for this long yields to the other tasks. A number of bytes would not be a bound: some bytes
/// cost much more than others.
const YIELD_AFTER: Duration = Duration::from_millis(2);
/// A connection from which nothing arrived for this long gives its spare memory back.
const QUIET: Duration = Duration::from_secs(1);
/// How long a stopping daemon waits for the system to report further bytes.
const LAST_READ_WAIT: Duration = Duration::from_millis(10);
/// The longest wait of a peer that causes too much output while the daemon stops.
const MAX_DRAIN_WAIT: Duration = Duration::from_millis(10);
/// The most that is read after the session has closed.
const MAX_LINGER_BYTES: u64 = 4 * 1024 * 1024;

/// After the time in which the connections that are given up write what they hold, those that are still to come have
/// this time together to write one batch each.
const FIRST_CALL_TIME: Duration = Duration::from_millis(250);
/// Memory for the next batch of a connection that is given up.
const LAST_BATCH_BYTES: usize = 256 << 10;

/// Throttles the log line about aborted connections.
static ABORTED: LogThrottle = LogThrottle::new();

/// A connection and its session.
#[derive(Debug)]
pub(super) struct Connection<S: Session> {
    stream: ConnectionStream,
    driver: SessionDriver<S>,
    input: ReadBuffer,
    context: ConnectionContext,
    /// When the connection was opened. This and the two times below are shifted by the time that the peer had to wait for
    /// us (see [`Connection::excuse`]).
    opened: Duration,
    last_read: Duration,
    /// Offset of the message that was received in part, and the time of its first byte.
    partial_message: Option<(u64, Duration)>,
    /// Since when it has decoded without yielding to the other tasks.
    turn: Duration,
    /// The session returned [`Flow::Close`].
    has_closed: bool,
    /// The daemon or the listener stops, and the session still converses with its peer ([`Shutdown::Drain`]).
    ///
    /// [`Shutdown::Drain`]: tributary_protocol::Shutdown::Drain
    is_draining: bool,
    /// The session knows that the daemon ends within seconds.
    is_hurried: bool,
}

/// Why a time limit passed.
#[derive(Clone, Copy)]
enum Due {
    /// The session asked to be called.
    Session { is_woken: bool },
    /// A limit of the listener.
    Limit,
}

impl<S: Session> Connection<S> {
    /// A connection that was accepted at `opened`. Boxed, because each future around it would otherwise contain a copy,
    /// and a daemon has thousands of connections.
    pub(super) fn new(
        stream: ConnectionStream,
        session: S,
        origin: Arc<Origin>,
        context: ConnectionContext,
        opened: Duration,
    ) -> Box<Self> {
        Box::new(Connection {
            stream,
            driver: context.driver(session, origin),
            input: ReadBuffer::new(context.options.max_message_bytes, &context.memory),
            context,
            opened,
            last_read: opened,
            partial_message: None,
            turn: opened,
            has_closed: false,
            is_draining: false,
            is_hurried: false,
        })
    }

    /// Serves the connection to its end. `true`: the session understood its peer, and the peer ended the connection.
    pub(super) async fn serve(mut self: Box<Self>) -> bool {
        let end = self.read_to_end().await;
        self.stream.ended(end);
        let was_understood = self.driver.awaiting() != Awaiting::Handshake;
        let was_ended_by_peer = matches!(end, End::Closed | End::Reset) && !self.has_closed;
        let rest = self.input.take();
        let now = self.now();
        self.show(self.explainers(), &rest, rest.len());
        loop {
            self.wait_for_sink_capacity().await;
            let DriverStep { flow, batch, .. } = self.driver.finish(&rest, end, now);
            self.hand_over(batch.map(Arc::new)).await;
            if flow != Flow::Again {
                break;
            }
        }
        debug!(received = self.driver.total_received(), end = end.as_str(), "connection ended");
        was_understood && was_ended_by_peer
    }

    async fn read_to_end(&mut self) -> End {
        // A peer that has used its allowance up on other connections waits here, too.
        let wait = self.context.allowance.wait(self.now().elapsed);
        self.throttle(wait).await;
        self.turn = self.now().elapsed;
        loop {
            if self.must_stop()
                && let Some(end) = self.stop_session().await
            {
                return end;
            }
            if self.must_hurry()
                && let Some(end) = self.hurry_session().await
            {
                return end;
            }
            match self.read().await {
                None => {
                    if let Some(end) = self.wait().await {
                        return end;
                    }
                    self.turn = self.now().elapsed;
                }
                Some(Err(error)) => {
                    debug!(%error, "reading failed");
                    return End::Reset;
                }
                Some(Ok(0)) => return End::Closed,
                Some(Ok(_)) => {
                    let read_at = self.last_read;
                    if let Some(end) = self.feed().await {
                        return end;
                    }
                    // Under steady traffic `wait` is never called, so deadlines are checked here too. The time is that of
                    // the read, before the sinks made us wait: bytes that arrived since then are not read yet.
                    if let Some((due, what)) = self.deadline()
                        && due <= read_at
                        && let Some(end) = self.time_is_up(what).await
                    {
                        return end;
                    }
                }
            }
        }
    }

    /// Reads what has arrived. `None`: nothing, or there is no memory for it (see [`ReadBuffer::is_stuck`]).
    async fn read(&mut self) -> Option<io::Result<usize>> {
        let Some(buffer) = self.input.free_space() else {
            self.input.note_refusal(self.now().elapsed);
            return None;
        };
        let free_space = buffer.capacity() - buffer.len();
        let result = self.stream.read_now(buffer).await?;
        if let Ok(bytes) = result {
            self.driver.received(bytes as u64);
            self.last_read = self.now().elapsed;
            self.input.read(bytes, free_space);
        }
        Some(result)
    }

    /// Passes what was received to the session until it needs more. `Some`: the connection is over.
    async fn feed(&mut self) -> Option<End> {
        // Whether the peer has sent nothing else before, and begins like HTTP.
        let is_http = self.driver.total_received() == self.input.len() as u64 && is_request(&self.input);
        loop {
            let flow = self.receive().await;
            if is_http && flow == Flow::Close {
                let protocol = self.driver.origin().protocol;
                self.driver.output().reply = http_answer(protocol);
            }
            if !self.reply().await {
                return Some(End::Reset);
            }
            if flow == Flow::Close {
                return Some(self.close().await);
            }
            let throttle = self.driver.output().throttle.take();
            self.throttle(throttle).await;
            if flow == Flow::Continue {
                break;
            }
        }
        if self.input.is_too_long() {
            return Some(End::TooLarge);
        }
        self.partial_message = match (self.driver.awaiting(), self.partial_message) {
            (Awaiting::Rest { offset }, Some((known, since))) if offset == known => Some((offset, since)),
            (Awaiting::Rest { offset }, _) => Some((offset, self.last_read)),
            _ => None,
        };
        None
    }

    /// One call of the session with everything that is buffered.
    async fn receive(&mut self) -> Flow {
        self.wait_for_sink_capacity().await;
        let now = self.now();
        let explainers = self.explainers();
        let DriverStep { consumed, flow, batch } = self.driver.receive(&self.input, now);
        self.show(explainers, &self.input[..consumed], self.input.len());
        self.input.advance(consumed);
        self.hand_over(batch.map(Arc::new)).await;
        let decoded = self.now().elapsed;
        if decoded.saturating_sub(self.turn) >= YIELD_AFTER {
            tokio::task::yield_now().await;
            self.turn = self.now().elapsed;
            self.excuse(decoded);
        }
        flow
    }

    /// Waits while too many batches wait for full sink queues.
    async fn wait_for_sink_capacity(&mut self) {
        if !self.context.sender.has_capacity() {
            let since = self.now().elapsed;
            self.context.sender.wait_for_capacity().await;
            self.excuse(since);
        }
    }

    /// Explainers of the next bytes, one for each tap that shows bytes.
    fn explainers(&self) -> Vec<Box<dyn Explain>> {
        (0..self.context.sender.taps().wire_count()).map(|_| self.driver.explainer()).collect()
    }

    /// Shows `bytes`, the first of `left` bytes that are buffered, on the taps.
    fn show(&self, explainers: Vec<Box<dyn Explain>>, bytes: &[u8], left: usize) {
        if !explainers.is_empty() {
            let offset = self.driver.total_received().saturating_sub(left as u64);
            self.context.sender.taps().bytes(self.driver.origin(), offset, explainers, bytes);
        }
    }

    /// Hands events over to the sinks. The caller puts the batch into an `Arc`, so that no future around this one
    /// contains a batch.
    async fn hand_over(&mut self, batch: Option<Arc<Batch>>) {
        if let Some(batch) = batch {
            let since = self.now().elapsed;
            self.context.sender.send(batch).await;
            self.excuse(since);
        }
    }

    /// The peer had to wait for us since then: that time is not counted against it.
    fn excuse(&mut self, since: Duration) {
        let ours = self.now().elapsed - since;
        self.opened += ours;
        self.last_read += ours;
        if let Some((_, first_byte)) = &mut self.partial_message {
            *first_byte += ours;
        }
    }

    /// Sends the session's reply. `false`: the peer does not take it.
    async fn reply(&mut self) -> bool {
        let reply = &mut self.driver.output().reply;
        if reply.is_empty() {
            return true;
        }
        let reply = reply.split();
        let limit = self.context.options.message_timeout;
        matches!(timeout(limit, self.stream.write_all(&reply)).await, Ok(Ok(())))
    }

    /// Waits until there is something to read and memory for it, or time is up. `Some`: the connection is over.
    async fn wait(&mut self) -> Option<End> {
        self.input.release_if_empty();
        let is_stuck = self.input.is_stuck();
        loop {
            let due = self.deadline();
            let now = self.now().elapsed;
            // A connection with spare memory, or half a large message, checks from time to time whether to give it back.
            let has_memory = self.input.has_spare() || self.input.is_large();
            let quiet = has_memory.then_some(now + QUIET).into_iter().chain(is_stuck.then_some(now + MEMORY_RETRY));
            let until = due.iter().map(|(at, _)| *at).chain(quiet).min().map(|at| self.context.clock.instant(at));
            let (stream, driver) = (&self.stream, &mut self.driver);
            tokio::select! {
                biased;
                () = self.context.stop.cancelled(), if !self.is_draining => return None,
                () = self.context.hurry.cancelled(), if self.is_draining && !self.is_hurried => return None,
                () = poll_fn(|cx| driver.poll_wake(cx)) => return self.time_is_up(Due::Session { is_woken: true }).await,
                _ = stream.readable(), if !is_stuck => return None,
                () = sleep_until(until.unwrap_or_else(tokio::time::Instant::now)), if until.is_some() => {}
            }
            match due {
                Some((at, what)) if at <= self.now().elapsed => return self.time_is_up(what).await,
                _ if is_stuck => return None,
                _ => self.release_memory(),
            }
        }
    }

    /// Gives back the memory that a quiet connection does not need.
    fn release_memory(&mut self) {
        self.driver.output().batch.shrink();
        self.input.release();
    }

    async fn time_is_up(&mut self, due: Due) -> Option<End> {
        let Due::Session { is_woken } = due else {
            let end = if self.is_memory_exhausted() { End::NoMemory } else { End::TimedOut };
            debug!(awaiting = ?self.driver.awaiting(), end = end.as_str(), "a time limit passed");
            return Some(end);
        };
        loop {
            let DriverStep { flow, batch, .. } = self.driver.handle_timeout(self.now(), is_woken);
            self.hand_over(batch.map(Arc::new)).await;
            if !self.reply().await {
                return Some(End::Reset);
            }
            match flow {
                Flow::Again => {}
                Flow::Continue => return None,
                Flow::Close => return Some(self.close().await),
            }
        }
    }

    /// The next deadline, if nothing arrives.
    fn deadline(&self) -> Option<(Duration, Due)> {
        let options = &self.context.options;
        let limit = match self.driver.awaiting() {
            Awaiting::Handshake => Some(self.opened + options.handshake_timeout),
            Awaiting::Message if options.idle_timeout.is_zero() => None,
            Awaiting::Message => Some(self.last_read + options.idle_timeout),
            Awaiting::Rest { offset } => {
                let since = self.partial_message.map_or(self.last_read, |(_, since)| since);
                // While memory is short, half messages get no further time for the bytes that were received.
                let rate = if self.is_memory_exhausted() { 0 } else { options.min_message_rate };
                let received = self.driver.total_received().saturating_sub(offset);
                let seconds = received.checked_div(rate).unwrap_or(0);
                Some(since + options.message_timeout + Duration::from_secs(seconds))
            }
        };
        let session = self.driver.poll_timeout().map(|at| (at, Due::Session { is_woken: false }));
        let limit = limit.map(|at| (at, Due::Limit));
        session.into_iter().chain(limit).min_by_key(|(at, _)| *at)
    }

    /// Whether there is no memory for the rest of the message, or others need the memory that it has.
    fn is_memory_exhausted(&self) -> bool {
        self.input.is_stuck() || self.input.is_large() && self.context.memory.is_short(self.now().elapsed)
    }

    /// Waits until the peer's address has earned its output. A stopping daemon hardly waits.
    async fn throttle(&mut self, wait: Option<Duration>) {
        let Some(wait) = wait else { return };
        debug!(?wait, "the peer causes too much output (amplification); reading on later");
        let since = self.now().elapsed;
        match self.is_draining {
            true => sleep(wait.min(MAX_DRAIN_WAIT)).await,
            false => drop(timeout(wait, self.context.stop.cancelled()).await),
        }
        self.excuse(since);
    }

    /// The daemon or the listener stops, and the session does not know it yet.
    fn must_stop(&self) -> bool {
        self.context.stop.is_cancelled() && !self.is_draining
    }

    /// The daemon stops: reads what has already arrived, for a limited time, and shuts the session down. `None`: the
    /// session still converses with its peer.
    async fn stop_session(&mut self) -> Option<End> {
        let until = self.now().elapsed + self.context.options.close_linger;
        while self.now().elapsed < until {
            match self.read().await {
                Some(Ok(0)) => return Some(End::Closed),
                Some(Ok(_)) => {
                    if let Some(end) = self.feed().await {
                        return Some(end);
                    }
                }
                Some(Err(_)) => return Some(End::Reset),
                None if self.input.is_stuck() => break,
                // Bytes that the system has and has not reported yet are reported within this time.
                None => match timeout(LAST_READ_WAIT, self.stream.readable()).await {
                    Ok(_) => {}
                    Err(_) => break,
                },
            }
        }
        let DriverStep { flow, batch, .. } = self.driver.shutdown(self.now());
        self.hand_over(batch.map(Arc::new)).await;
        if !self.reply().await {
            return Some(End::Reset);
        }
        if flow == Flow::Close {
            return Some(self.read_until_closed().await);
        }
        self.is_draining = true;
        None
    }

    /// The daemon ends within seconds, and the session, which converses with its peer, does not know it yet.
    fn must_hurry(&self) -> bool {
        self.is_draining && !self.is_hurried && self.context.hurry.is_cancelled()
    }

    /// Lets the session hurry. `Some`: the connection is over.
    async fn hurry_session(&mut self) -> Option<End> {
        self.is_hurried = true;
        let DriverStep { batch, .. } = self.driver.hurry(self.now());
        self.hand_over(batch.map(Arc::new)).await;
        (!self.reply().await).then_some(End::Reset)
    }

    /// Ends our side of the connection and reads what the peer still sends. While the daemon stops, only what is there
    /// already. After the listener has changed, until the peer closes its side, `close_linger` at most; a peer that does
    /// not close may send more than is read, so a loss reports that.
    async fn read_until_closed(&mut self) -> End {
        if self.stream.shut_down().await.is_err() {
            return End::Stopped;
        }
        let linger = self.context.options.close_linger;
        let until = self.context.clock.instant(self.now().elapsed + linger);
        while tokio::time::Instant::now() < until {
            match self.read().await {
                Some(Ok(0)) => return End::Closed,
                Some(Err(_)) => return End::Reset,
                Some(Ok(_)) => while self.receive().await == Flow::Again {},
                // There is no memory for what has arrived.
                None if self.input.is_stuck() => break,
                None if self.context.sender.is_stopping() => return End::Stopped,
                None => tokio::select! {
                    () = sleep_until(until) => break,
                    _ = self.stream.readable() => {}
                },
            }
        }
        let detail = "we closed the connection while the peer kept it open: what it still sends is not read";
        let loss = Loss { reason: Reason::Failed, bytes: 0, events: None, detail, excerpt: &[] };
        let batch = self.context.loss(self.driver.origin(), self.driver.total_received(), loss);
        self.context.sender.send(Arc::new(batch)).await;
        End::Stopped
    }

    /// The session has closed: ends our side, and for a limited time reads what the peer still sends. So those bytes are
    /// counted, and the peer receives the last reply rather than a reset.
    async fn close(&mut self) -> End {
        self.has_closed = true;
        if self.is_draining {
            return self.read_until_closed().await;
        }
        if self.stream.shut_down().await.is_err() {
            return End::Closed;
        }
        let linger = self.context.options.close_linger;
        let until = self.context.clock.instant(self.now().elapsed + linger);
        let until_received = self.driver.total_received() + MAX_LINGER_BYTES;
        while self.driver.total_received() < until_received {
            match self.read().await {
                Some(Ok(0) | Err(_)) => break,
                Some(Ok(_)) => {
                    let _ = self.receive().await;
                }
                None if self.input.is_stuck() => break,
                None => tokio::select! {
                    () = sleep_until(until) => break,
                    () = self.context.stop.cancelled() => break,
                    _ = self.stream.readable() => {}
                },
            }
            if tokio::time::Instant::now() >= until {
                break;
            }
        }
        End::Closed
    }

    /// Hands batches over after the connection's task has ended.
    fn send_detached(&self, batches: Vec<Batch>, lease: MemoryLease) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // The task keeps the context, and so the lease with which the connection was admitted: there are never more such
        // tasks than connections.
        let context = self.context.clone();
        let send = async move {
            let _held = lease;
            for batch in batches {
                context.sender.send(batch).await;
            }
        };
        self.context.tasks.spawn_on(send, &runtime);
    }

    fn now(&self) -> Now {
        self.context.clock.now()
    }
}

/// The answer to a client of HTTP that no session understands. Many clients show the first line to their user.
fn http_answer(protocol: &str) -> BytesMut {
    let why = format!("this port of tributary speaks the protocol {protocol} over TCP, not HTTP");
    let head = format!("HTTP/1.1 501 {why}\r\nconnection: close\r\ncontent-type: text/plain\r\n");
    let body = format!("content-length: {}\r\n\r\n{why}\n", why.len() + 1);
    BytesMut::from((head + &body).as_bytes())
}

impl<S: Session> Drop for Connection<S> {
    /// A connection that ended without `finish` (a panic of ours, or the end of the grace period) reports its bytes here.
    fn drop(&mut self) {
        let has_panicked = std::thread::panicking();
        let cause = if has_panicked { "a bug of ours" } else { "no time was left" };
        let detail = format!("the connection was aborted: {cause}");
        let now = self.now();
        let mut lease = self.context.memory.passing(0);
        let until = self.context.last_writes.until(now.elapsed);
        let clock = self.context.clock;
        let may_continue = |bytes: usize| {
            // Most connections hold little: one call for each, even if others have taken all the time.
            let until = if bytes == 0 { until + FIRST_CALL_TIME } else { until };
            clock.now().elapsed < until && lease.try_resize((bytes + LAST_BATCH_BYTES) as u64)
        };
        let Abandoned { batches, lost_bytes, is_cut } = self.driver.abandon(now, has_panicked, &detail, may_continue);
        if (lost_bytes > 0 || is_cut)
            && let Some(suppressed) = ABORTED.permit()
        {
            let listener = &*self.driver.origin().listener;
            error!(
                listener,
                bytes = lost_bytes,
                is_cut,
                cause,
                suppressed,
                "a connection was aborted; its bytes, and with is_cut further events that it held, are lost"
            );
        }
        if !batches.is_empty() {
            self.send_detached(batches, lease);
        }
    }
}
