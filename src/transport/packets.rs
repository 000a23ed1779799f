//! One connection that speaks packets instead of HTTP: a packet, its answer, the next packet.
//!
//! A packet is decoded, delivered and acknowledged like a request. Its answer is one write: some peers read it with one read.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use tokio::io::AsyncReadExt;
use tokio::time::{timeout, timeout_at};
use tracing::debug;

use tributary_event::{Batch, Loss, Origin, Reason};
use tributary_protocol::{Exchange, Flow, Frame, PacketAction, Packets, Response};

use super::body::UndecidedBytes;
use super::context::ConnectionContext;
use super::http_head::{RESPONSE_TIMEOUT, read_rest};
use super::request::HttpConnection;
use super::request_memory::RequestMemory;
use super::stream::ConnectionStream;

/// A packet is read in pieces of this size at most.
const READ_BYTES: usize = 64 << 10;

/// A connection of packets.
struct PacketConnection<E: Exchange> {
    stream: ConnectionStream,
    /// What was read to know the protocol, and is not part of a packet yet.
    first: Bytes,
    packets: Box<dyn Packets<E::Work>>,
    requests: Arc<HttpConnection<E>>,
    origin: Arc<Origin>,
    context: ConnectionContext,
    opened: Duration,
    /// Events of a packet that was answered at once, which are not sent yet.
    events: Option<Batch>,
}

/// Events on their way to the sinks, while the connection goes on.
type Sending = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A packet, as far as it was received.
struct Incoming {
    bytes: Vec<u8>,
    memory: RequestMemory,
    undecided: UndecidedBytes,
}

/// What reading a packet ended with.
enum ReadEnd {
    Whole,
    /// The peer gets this answer, and the connection is closed.
    Refused(Vec<u8>, Reason, String),
    /// No answer is sent.
    Cut(&'static str),
    /// There is no packet.
    Nothing,
}

/// Serves a connection, opened at `opened`, to its end. `first` are bytes that were read of it.
pub(super) async fn serve<E: Exchange>(
    (stream, first): (ConnectionStream, Bytes),
    packets: Box<dyn Packets<E::Work>>,
    requests: Arc<HttpConnection<E>>,
    origin: Arc<Origin>,
    context: ConnectionContext,
    opened: Duration,
) {
    let mut connection =
        Box::new(PacketConnection { stream, first, packets, requests, origin, context, opened, events: None });
    let handshake = connection.context.options.handshake_timeout;
    let mut deadline = Some(opened + handshake);
    let mut sending: Option<Sending> = None;
    loop {
        let goes_on = beside(&mut sending, connection.exchange(deadline)).await;
        if let Some(events) = connection.events.take() {
            if let Some(before) = sending.take() {
                before.await;
            }
            let sender = connection.context.sender.clone();
            sending = Some(Box::pin(async move { sender.send(events).await }));
        }
        if !goes_on {
            break;
        }
        let idle = connection.context.options.idle_timeout;
        deadline = (!idle.is_zero()).then(|| connection.context.clock.now().elapsed + idle);
    }
    if let Some(sending) = sending {
        sending.await;
    }
    debug!("connection ended");
}

/// Does `work`, and meanwhile sends.
async fn beside<T>(sending: &mut Option<Sending>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        if sending.as_mut().is_some_and(|sending| sending.as_mut().poll(context).is_ready()) {
            *sending = None;
        }
        work.as_mut().poll(context)
    })
    .await
}

impl<E: Exchange> PacketConnection<E> {
    /// Reads one packet and answers it. Its first byte must come before `deadline`. Returns whether another one may follow.
    async fn exchange(&mut self, deadline: Option<Duration>) -> bool {
        let context = self.context.clone();
        let mut incoming = Incoming {
            bytes: Vec::new(),
            memory: RequestMemory::of_connection(&context.memory),
            undecided: UndecidedBytes::new(context.clone(), self.origin.clone(), false),
        };
        match self.read(&mut incoming, deadline).await {
            ReadEnd::Whole => self.answer(incoming).await,
            ReadEnd::Nothing => false,
            ReadEnd::Cut(why) => {
                let Incoming { bytes, mut undecided, .. } = incoming;
                let detail = format!("{} bytes of a packet were received: {why}", bytes.len());
                undecided.lose(Reason::Truncated, &detail, self.packets.shown(&bytes)).await;
                false
            }
            ReadEnd::Refused(answer, reason, detail) => {
                let Incoming { bytes, memory, mut undecided } = incoming;
                drop(memory);
                self.write(&answer).await;
                // Everything behind it is lost with it, and may be anything.
                let mut excerpt = self.packets.shown(&bytes).to_vec();
                excerpt.truncate(Loss::EXCERPT);
                undecided.received(self.first.len());
                read_rest(&mut self.stream, &mut Vec::new(), &mut undecided, &context).await;
                undecided.lose(reason, &detail, &excerpt).await;
                false
            }
        }
    }

    /// Reads a packet.
    async fn read(&mut self, incoming: &mut Incoming, deadline: Option<Duration>) -> ReadEnd {
        let mut began = None;
        loop {
            let Incoming { bytes, memory, undecided } = incoming;
            let needed = match self.packets.frame(bytes) {
                Frame::Whole(_) => return ReadEnd::Whole,
                Frame::Refused { answer, reason, detail } => return ReadEnd::Refused(answer, reason, detail),
                Frame::Needs(needed) => needed.saturating_sub(bytes.len()).clamp(1, READ_BYTES),
            };
            if bytes.capacity() - bytes.len() < needed {
                // Grows by a quarter, like the body of a request.
                let space = needed.max(bytes.len() / 4);
                if !memory.resize((bytes.capacity() + bytes.len() + space) as u64) {
                    memory.note_refusal(self.context.clock.now().elapsed);
                    let why = "the memory for requests is used up (limits.memory_bytes, limits.memory_per_address)";
                    let answer = self.packets.answer(&Response::unavailable(why));
                    return ReadEnd::Refused(answer, Reason::Failed, why.to_owned());
                }
                bytes.reserve_exact(space);
                let _ = memory.resize(bytes.capacity() as u64);
            }
            if !self.first.is_empty() {
                let taken = needed.min(self.first.len());
                bytes.extend_from_slice(&self.first[..taken]);
                self.first.advance(taken);
                undecided.received(taken);
                began.get_or_insert_with(|| self.context.clock.now().elapsed);
                continue;
            }
            let until = match began {
                None => deadline,
                Some(began) => {
                    let options = &self.context.options;
                    let seconds = (bytes.len() as u64).checked_div(options.min_message_rate).unwrap_or(0);
                    Some(began + options.message_timeout + Duration::from_secs(seconds))
                }
            };
            let mut space = (&mut *bytes).limit(needed);
            let reading = self.stream.read_buf(&mut space);
            let read = tokio::select! {
                biased;
                read = within(reading, until.map(|until| self.context.clock.instant(until))) => read,
                () = stopped(&self.context, began.is_some()) => {
                    return if began.is_some() { ReadEnd::Cut("the collector is stopping") } else { ReadEnd::Nothing };
                }
            };
            let why = match read {
                Some(Ok(read @ 1..)) => {
                    undecided.received(read);
                    self.stream.acknowledge_at_once();
                    began.get_or_insert_with(|| self.context.clock.now().elapsed);
                    continue;
                }
                Some(Ok(_)) => "the peer closed the connection",
                Some(Err(_)) => "the connection broke",
                None => "a time limit passed",
            };
            return if began.is_some() { ReadEnd::Cut(why) } else { ReadEnd::Nothing };
        }
    }

    /// Answers a packet. Returns whether another one may follow.
    async fn answer(&mut self, incoming: Incoming) -> bool {
        let Incoming { mut bytes, memory, mut undecided } = incoming;
        bytes.shrink_to_fit();
        let context = self.context.clone();
        let number = self.requests.number();
        let request = self.packets.request(Bytes::from(bytes), number);
        let is_secret = self.packets.shown(&request.body).len() < request.body.len();
        self.requests.show(&request.head, number, || request.body.clone(), is_secret, false);
        let http = &self.requests.http;
        let mut out = http.decode_buffers.take(&self.origin, &context.allowance, self.requests.take_loss_limit());
        let (mut action, now) = (None, context.clock.now());
        let packets = &mut self.packets;
        let is_late = http.standstill.may_have_delayed(self.opened, now.elapsed);
        let step = undecided.call(&mut out, now, |out| {
            if is_late && packets.drop_late(&request, out) {
                return Flow::Continue;
            }
            action = Some(packets.take(request.clone(), Some(&context.memory), now, out));
            out.write_combined_losses();
            Flow::Continue
        });
        let throttle = out.throttle.take();
        self.requests.put_loss_limit_back(out.set_loss_limit(None));
        http.decode_buffers.put_back(out);
        match action {
            Some(PacketAction::Answer { answer, closes }) => {
                // It waits for no sink, and neither does the next packet.
                let is_written = self.write(&answer).await;
                self.events = step.batch;
                if let Some(reason) = closes {
                    undecided.received(self.first.len());
                    read_rest(&mut self.stream, &mut Vec::new(), &mut undecided, &context).await;
                    undecided.lose_rest(reason, "a packet before was refused, and the connection closed").await;
                }
                if let Some(wait) = throttle {
                    let _ = timeout(wait, context.stop.cancelled()).await;
                }
                is_written && closes.is_none()
            }
            Some(PacketAction::Work(work)) => {
                let response = self.requests.deliver(request, memory, undecided, |_| work).await;
                context.counters.responded(response.status);
                debug!(status = response.status, "answered");
                self.write(&self.packets.answer(&response)).await
            }
            None => {
                context.counters.responded(503);
                debug!("a packet is not answered: its sender may no longer wait for the answer");
                false
            }
        }
    }

    /// Sends an answer by one write. `false`: the peer does not take it.
    async fn write(&mut self, answer: &[u8]) -> bool {
        matches!(timeout(RESPONSE_TIMEOUT, self.stream.write_all(answer)).await, Ok(Ok(())))
    }
}

/// Waits until `deadline`; `None`: it has passed.
async fn within<T>(future: impl Future<Output = T>, deadline: Option<tokio::time::Instant>) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// The daemon stops; a packet that has begun has `close_linger` for its rest.
async fn stopped(context: &ConnectionContext, has_begun: bool) {
    context.stop.cancelled().await;
    if has_begun {
        tokio::time::sleep(context.options.close_linger).await;
    }
}
