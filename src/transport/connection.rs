//! One connection: reads, drives its session, hands over what comes out, and keeps its counters to the last byte.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error};

use crate::event::{Batch, BatchBuilder, Header, Loss, Origin, Position, Reason, semconv};
use crate::explain::Explain;
use crate::log_throttle::LogThrottle;
use crate::memory::{MemoryBudget, MemoryLease};
use crate::pipeline::Sender;
use crate::pipeline::accounting::ListenerCounters;
use crate::protocol::{Awaiting, End, Flow, Now, Output, Session};

use super::capture::{Capture, Recording};
use super::clock::Clock;
use super::options::ListenerOptions;
use super::read_buffer::{ROOM_RETRY, ReadBuffer};
use super::stream::Stream;

/// Bytes, received or produced, that a connection may work off before the others have their turn.
const TURN_BYTES: u64 = 512 * 1024;
/// A connection that has been quiet for this long, or until something was due, gives its buffer back.
const QUIET: Duration = Duration::from_secs(1);
/// A stopping daemon asks the system for this long whether more has arrived.
const LAST_LOOK: Duration = Duration::from_millis(10);
/// The most that is read from a peer that we have stopped listening to.
const MAX_LINGER_BYTES: u64 = 4 * 1024 * 1024;

/// Says that a connection was given up.
static GIVEN_UP: LogThrottle = LogThrottle::new();

/// What every connection of a listener shares.
#[derive(Clone, Debug)]
pub(super) struct ConnectionContext {
    pub(super) options: Arc<ListenerOptions>,
    pub(super) sender: Sender,
    pub(super) counters: Arc<ListenerCounters>,
    pub(super) clock: Clock,
    /// What all connections share …
    pub(super) memory: Arc<MemoryBudget>,
    /// … and what this one was let in with, given back when nothing that it has begun is left.
    pub(super) place: Option<Arc<MemoryLease>>,
    /// What records its connections, where that is wanted.
    pub(super) capture: Option<Arc<Capture>>,
    /// Everything that still has events to hand over.
    pub(super) tasks: TaskTracker,
    /// Cancelled when the daemon stops.
    pub(super) stop: CancellationToken,
    /// Cancelled when what has not finished by itself is given up.
    pub(super) abort: CancellationToken,
}

impl ConnectionContext {
    /// What records a connection that was opened then.
    pub(super) fn recording(&self, origin: &Origin, opened: Duration) -> Option<Recording> {
        self.capture.as_ref()?.connection(origin, self.clock, opened)
    }

    /// Books bytes that no session has reported, and tells them: a batch to be sent.
    pub(super) fn loss(&self, origin: &Arc<Origin>, offset: u64, loss: Loss<'_>) -> Batch {
        self.counters.lost(loss.reason, loss.bytes);
        let position = Position { sequence: None, offset, length: loss.bytes };
        let mut builder = BatchBuilder::new(origin.clone());
        builder.loss(Header::observed_at(semconv::LOSS, self.clock.now().unix, position), loss);
        let batch = builder.take();
        self.counters.handed_over(&batch);
        batch
    }
}

/// A connection and its session.
#[derive(Debug)]
pub(super) struct Connection<S: Session> {
    stream: Stream,
    session: S,
    input: ReadBuffer,
    out: Output,
    context: ConnectionContext,
    /// Bytes received.
    received: u64,
    /// Bytes received that nobody has decided about.
    undecided: u64,
    /// This and the two below are moved by the time that [`Connection::excuse`] excuses.
    opened: Duration,
    last_read: Duration,
    /// Offset of the message that is half here, and when it began.
    rest: Option<(u64, Duration)>,
    /// The session wanted the end.
    has_closed: bool,
    /// The session has nothing more to say.
    is_spent: bool,
}

/// What the time was up for.
enum Due {
    /// The session's own wish.
    Session,
    /// A limit of the listener.
    Limit,
}

impl<S: Session> Connection<S> {
    /// A connection that was accepted at `opened`.
    pub(super) fn new(
        stream: Stream,
        session: S,
        origin: Arc<Origin>,
        context: ConnectionContext,
        opened: Duration,
    ) -> Self {
        let input = ReadBuffer::new(context.options.max_message_bytes, &context.memory);
        Connection {
            stream,
            session,
            input,
            out: Output::new(BatchBuilder::new(origin)),
            context,
            received: 0,
            undecided: 0,
            opened,
            last_read: opened,
            rest: None,
            has_closed: false,
            is_spent: false,
        }
    }

    /// Serves the connection to its end. Answers whether the peer was understood and the end was not of our making.
    pub(super) async fn serve(mut self) -> bool {
        let end = self.read_to_end().await;
        self.stream.ended(end);
        let is_well = self.session.awaiting() != Awaiting::Handshake && matches!(end, End::Closed | End::Reset);
        let is_well = is_well && !self.has_closed;
        let rest = self.input.take();
        let mut rest: &[u8] = &rest;
        let now = self.now();
        self.show(self.explainers(), rest, rest.len());
        self.wait_for_sink_capacity().await;
        while self.session.finish(rest, end, now, &mut self.out) == Flow::Again {
            rest = &[];
            self.hand_over().await;
            self.wait_for_sink_capacity().await;
        }
        self.is_spent = true;
        self.hand_over().await;
        debug!(received = self.received, end = end.as_str(), "connection ended");
        is_well
    }

    async fn read_to_end(&mut self) -> End {
        let mut turn = 0;
        loop {
            if self.context.stop.is_cancelled() {
                return self.drain_remaining().await;
            }
            match self.read().await {
                None => {
                    turn = 0;
                    if let Some(end) = self.wait().await {
                        return end;
                    }
                }
                Some(Err(error)) => {
                    debug!(%error, "reading failed");
                    return End::Reset;
                }
                Some(Ok(0)) => return End::Closed,
                Some(Ok(bytes)) => {
                    let read_at = self.last_read;
                    let expanded = self.out.batch.total_expanded_bytes();
                    if let Some(end) = self.feed().await {
                        return end;
                    }
                    turn += (bytes as u64).max(self.out.batch.total_expanded_bytes() - expanded);
                    if turn >= TURN_BYTES {
                        turn = 0;
                        tokio::task::yield_now().await;
                    }
                    // Under steady traffic nobody waits, so time is looked at here too: as it was before the sinks had
                    // us wait, since what the peer has said meanwhile is still to be read.
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

    /// Reads what is there now. `None`: nothing, or there is no memory for it (see [`ReadBuffer::is_stuck`]).
    async fn read(&mut self) -> Option<io::Result<usize>> {
        let Some(buffer) = self.input.room() else {
            self.context.memory.refused(self.now().elapsed);
            return None;
        };
        let room = buffer.capacity() - buffer.len();
        let result = self.stream.read_now(buffer).await?;
        if let Ok(bytes) = result {
            self.context.counters.received(bytes as u64);
            self.received += bytes as u64;
            self.undecided += bytes as u64;
            self.last_read = self.now().elapsed;
            self.input.read(bytes, room);
        }
        Some(result)
    }

    /// Gives the session what has arrived until it needs more. `Some`: the connection is over.
    async fn feed(&mut self) -> Option<End> {
        loop {
            let flow = self.receive().await;
            if !self.reply().await {
                return Some(End::Reset);
            }
            if flow == Flow::Close {
                self.has_closed = true;
                self.linger().await;
                return Some(End::Closed);
            }
            if let Some(hold) = self.out.hold.take() {
                self.pause(hold).await;
            }
            if flow == Flow::Continue {
                break;
            }
        }
        if self.input.is_too_long() {
            return Some(End::TooLarge);
        }
        self.rest = match (self.session.awaiting(), self.rest) {
            (Awaiting::Rest { offset }, Some((begun_at, since))) if offset == begun_at => Some((offset, since)),
            (Awaiting::Rest { offset }, _) => Some((offset, self.last_read)),
            _ => None,
        };
        None
    }

    /// One call of the session with what is here.
    async fn receive(&mut self) -> Flow {
        self.wait_for_sink_capacity().await;
        let now = self.now();
        let explainers = self.explainers();
        let progress = self.session.receive(&self.input, now, &mut self.out);
        let consumed = progress.consumed.min(self.input.len());
        self.show(explainers, &self.input[..consumed], self.input.len());
        self.input.advance(consumed);
        self.hand_over().await;
        progress.flow
    }

    /// Makes no further batch while too many wait for full queues.
    async fn wait_for_sink_capacity(&mut self) {
        if !self.context.sender.has_capacity() {
            let began = self.now().elapsed;
            self.context.sender.wait_for_capacity().await;
            self.excuse(began);
        }
    }

    /// What names the bytes that come next, one for each tap that shows them.
    fn explainers(&self) -> Vec<Box<dyn Explain>> {
        (0..self.context.sender.taps().wired()).map(|_| self.session.explainer()).collect()
    }

    /// Shows bytes, the first of so many that are left, to whoever looks on.
    fn show(&self, explainers: Vec<Box<dyn Explain>>, bytes: &[u8], left: usize) {
        if !explainers.is_empty() {
            let offset = self.received.saturating_sub(left as u64);
            self.context.sender.taps().bytes(self.out.batch.origin(), offset, explainers, bytes);
        }
    }

    /// Books what the session has decided and hands its events over. The only way out of [`Output`].
    async fn hand_over(&mut self) {
        self.undecided = self.undecided.saturating_sub(self.context.counters.settle(&mut self.out));
        if !self.out.batch.is_empty() {
            let batch = self.out.batch.take();
            self.input.keep_batch(&mut self.out);
            self.context.counters.handed_over(&batch);
            let began = self.now().elapsed;
            self.context.sender.send(batch).await;
            self.excuse(began);
        }
    }

    /// The time since then we took for ourselves: it is not counted against the peer.
    fn excuse(&mut self, began: Duration) {
        let ours = self.now().elapsed - began;
        self.opened += ours;
        self.last_read += ours;
        if let Some((_, since)) = &mut self.rest {
            *since += ours;
        }
    }

    /// Sends the session's reply. `false`: the peer does not take it.
    async fn reply(&mut self) -> bool {
        if self.out.reply.is_empty() {
            return true;
        }
        let reply = self.out.reply.split();
        let limit = self.context.options.message_timeout;
        matches!(timeout(limit, self.stream.write_all(&reply)).await, Ok(Ok(())))
    }

    /// Waits until there is something to read, and room to read it into, or time is up. `Some`: the connection is over.
    async fn wait(&mut self) -> Option<End> {
        self.input.rest();
        let is_stuck = self.input.is_stuck();
        loop {
            let due = self.deadline();
            let now = self.now().elapsed;
            // Half a message that takes much memory looks from time to time whether others are in want of it.
            let looks = self.input.has_spare() || self.input.is_large();
            let quiet = looks.then_some(now + QUIET).into_iter().chain(is_stuck.then_some(now + ROOM_RETRY));
            let until = due.iter().map(|(at, _)| *at).chain(quiet).min().map(|at| self.context.clock.instant(at));
            let (stream, session) = (&self.stream, &mut self.session);
            tokio::select! {
                biased;
                () = self.context.stop.cancelled() => return None,
                () = poll_fn(|cx| session.poll_wake(cx)) => return self.time_is_up(Due::Session).await,
                _ = stream.readable(), if !is_stuck => return None,
                () = sleep_until(until.unwrap_or_else(tokio::time::Instant::now)), if until.is_some() => {}
            }
            match due {
                Some((at, what)) if at <= self.now().elapsed => return self.time_is_up(what).await,
                _ if is_stuck => return None,
                _ => self.give_back(),
            }
        }
    }

    /// Who is quiet needs no memory.
    fn give_back(&mut self) {
        self.out.batch.shrink();
        self.input.keep_batch(&mut self.out);
        self.input.give_back();
    }

    async fn time_is_up(&mut self, due: Due) -> Option<End> {
        if let Due::Limit = due {
            let end = if self.is_memory_exhausted() { End::NoMemory } else { End::TimedOut };
            debug!(awaiting = ?self.session.awaiting(), end = end.as_str(), "a time limit passed");
            return Some(end);
        }
        loop {
            let now = self.now();
            let flow = self.session.handle_timeout(now, &mut self.out);
            self.hand_over().await;
            if !self.reply().await {
                return Some(End::Reset);
            }
            match flow {
                Flow::Again => {}
                Flow::Continue => return None,
                Flow::Close => {
                    self.has_closed = true;
                    return Some(End::Closed);
                }
            }
        }
    }

    /// When something must happen though nothing arrives.
    fn deadline(&self) -> Option<(Duration, Due)> {
        let options = &self.context.options;
        let limit = match self.session.awaiting() {
            Awaiting::Handshake => Some(self.opened + options.handshake_timeout),
            Awaiting::Message if options.idle_timeout.is_zero() => None,
            Awaiting::Message => Some(self.last_read + options.idle_timeout),
            Awaiting::Rest { offset } => {
                let since = self.rest.map_or(self.last_read, |(_, since)| since);
                // While memory is short, half messages do not stay for what they were granted when it was not.
                let rate = if self.is_memory_exhausted() { 0 } else { options.min_message_rate };
                let seconds = self.received.saturating_sub(offset).checked_div(rate).unwrap_or(0);
                Some(since + options.message_timeout + Duration::from_secs(seconds))
            }
        };
        let session = self.session.poll_timeout().map(|at| (at, Due::Session));
        let limit = limit.map(|at| (at, Due::Limit));
        session.into_iter().chain(limit).min_by_key(|(at, _)| *at)
    }

    /// It has no memory for the rest of its message, or has memory that others are in want of.
    fn is_memory_exhausted(&self) -> bool {
        self.input.is_stuck() || self.input.is_large() && self.context.memory.is_short(self.now().elapsed)
    }

    /// Waits while the session's credit is used up. A stopping daemon has no time for that.
    async fn pause(&mut self, hold: Duration) {
        debug!(?hold, "the peer makes us expand too much; reading on later");
        let began = self.now().elapsed;
        tokio::select! {
            biased;
            () = self.context.stop.cancelled() => {}
            () = tokio::time::sleep(hold) => {}
        }
        self.excuse(began);
    }

    /// The daemon stops: takes what has already arrived, for a moment at most, and lets the session say goodbye.
    async fn drain_remaining(&mut self) -> End {
        let until = self.now().elapsed + self.context.options.close_linger;
        while self.now().elapsed < until {
            match self.read().await {
                Some(Ok(0)) => return End::Closed,
                Some(Ok(_)) => {
                    if let Some(end) = self.feed().await {
                        return end;
                    }
                }
                Some(Err(_)) => return End::Reset,
                None if self.input.is_stuck() => break,
                // Nothing that we know of: what the system has and has not told yet is known a moment later.
                None => match timeout(LAST_LOOK, self.stream.readable()).await {
                    Ok(_) => {}
                    Err(_) => break,
                },
            }
        }
        match self.send_shutdown_message().await {
            End::Stopped => self.read_until_closed().await,
            end => end,
        }
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
                None if self.input.is_stuck() || self.context.sender.is_stopping() => return End::Stopped,
                None => tokio::select! {
                    () = sleep_until(until) => break,
                    _ = self.stream.readable() => {}
                },
            }
        }
        let detail = "we closed the connection while the peer kept it open: what it still sends is not read";
        let loss = Loss { reason: Reason::Failed, bytes: 0, events: None, detail, excerpt: &[] };
        let batch = self.context.loss(self.out.batch.origin(), self.received, loss);
        self.context.sender.send(batch).await;
        End::Stopped
    }

    /// Lets the session say its last words, and hear what is answered to them if it wants to.
    async fn send_shutdown_message(&mut self) -> End {
        let now = self.now();
        let mut flow = self.session.shutdown(now, &mut self.out);
        self.hand_over().await;
        while self.reply().await && flow == Flow::Continue {
            let until = self.session.poll_timeout().map(|at| self.context.clock.instant(at));
            tokio::select! {
                biased;
                _ = self.stream.readable() => match self.read().await {
                    Some(Ok(0)) => return End::Closed,
                    Some(Err(_)) => return End::Reset,
                    Some(Ok(_)) => flow = self.receive().await,
                    None if self.input.is_stuck() => return End::Stopped,
                    None => {}
                },
                () = sleep_until(until.unwrap_or_else(tokio::time::Instant::now)) => {
                    let now = self.now();
                    flow = self.session.handle_timeout(now, &mut self.out);
                    self.hand_over().await;
                }
            }
            while flow == Flow::Again {
                flow = self.receive().await;
            }
        }
        End::Stopped
    }

    /// We have stopped listening: says so to the peer, and for a moment reads what it had already sent, so that it is
    /// counted and the peer gets our last words instead of a reset.
    async fn linger(&mut self) {
        if self.stream.shut_down().await.is_err() {
            return;
        }
        let linger = self.context.options.close_linger;
        let until = self.context.clock.instant(self.now().elapsed + linger);
        let until_received = self.received + MAX_LINGER_BYTES;
        while self.received < until_received {
            match self.read().await {
                Some(Ok(0) | Err(_)) => return,
                Some(Ok(_)) => {
                    let _ = self.receive().await;
                }
                None if self.input.is_stuck() => return,
                None => tokio::select! {
                    () = sleep_until(until) => return,
                    () = self.context.stop.cancelled() => return,
                    _ = self.stream.readable() => {}
                },
            }
            if tokio::time::Instant::now() >= until {
                return;
            }
        }
    }

    /// Hands batches over after the connection has gone.
    fn send_detached(&self, batches: Vec<Batch>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // With all that is context the connection, its place included: so these cannot become more than there are places.
        let context = self.context.clone();
        let send = async move {
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

impl<S: Session> Drop for Connection<S> {
    /// Whatever ends a connection without `finish` (a panic of ours, or the end of the grace period), its bytes are
    /// not forgotten.
    fn drop(&mut self) {
        // Events that are still here were left behind by a panic in the session, and maybe half made. They never go out,
        // so what they were made of is lost with the rest.
        let mut settled = if self.out.batch.is_empty() { self.context.counters.settle(&mut self.out) } else { 0 };
        // What a session still holds of messages that are decoded goes out now, whether the sinks keep up or not.
        let mut last_words = Vec::new();
        if !std::thread::panicking() && !self.is_spent {
            let now = self.now();
            let mut flow = Flow::Again;
            while flow == Flow::Again {
                flow = self.session.finish(&[], End::Stopped, now, &mut self.out);
                settled += self.context.counters.settle(&mut self.out);
                if !self.out.batch.is_empty() {
                    let batch = self.out.batch.take();
                    self.context.counters.handed_over(&batch);
                    last_words.push(batch);
                }
            }
        }
        if !last_words.is_empty() {
            self.send_detached(last_words);
        }
        let undecided = self.undecided.saturating_sub(settled);
        if undecided == 0 {
            return;
        }
        let what = if std::thread::panicking() { "a bug of ours" } else { "no time was left" };
        if let Some(suppressed) = GIVEN_UP.permit() {
            error!(bytes = undecided, suppressed, "a connection was given up: {what}");
        }
        let detail = format!("the connection was given up: {what}");
        let loss = Loss { reason: Reason::Failed, bytes: undecided, events: None, detail: &detail, excerpt: &[] };
        self.send_detached(vec![self.context.loss(self.out.batch.origin(), self.received - undecided, loss)]);
    }
}
