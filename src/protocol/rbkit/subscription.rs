//! The subscription: the session on a process's PUB socket. It subscribes, and turns the published messages into events.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tributary_codec::zmtp::{Peer, Socket, subscribe_all};
use tributary_event::{Reason, SampleClock};
use tributary_explain::Explain;
use tributary_memory::{MemoryBudget, MemoryLease};
use tributary_protocol::fault::SessionError;
use tributary_protocol::{Awaiting, End, Flow, Now, Output, ReceiveProgress, Session, Shutdown};

use super::agent::RbkitAgent;
use super::dump::Dumps;
use super::explain::Explainer;
use super::heap_sums::HeapSums;
use super::link::{self, InputPart};
use super::message::{Buffers, MessageContext, MessageDecoder, MessageStep};
use super::normalize::StreamPosition;
use super::object_counts::ObjectCounts;
use super::options::{HeapDumps, Objects, Options};
use super::undo::Drain;
use super::wire::Channel;

/// The session of a subscription connection.
#[derive(Debug)]
pub struct Subscription {
    agent: RbkitAgent,
    options: Arc<Options>,
    /// The limit for the part of a message that must be in memory as a whole.
    max_message_bytes: u64,
    peer: Peer,
    stage: SubscriptionStage,
    /// Bytes consumed since the start of the connection.
    offset: u64,
    /// The message that is being read.
    message: Option<MessageDecoder>,
    /// A message of several frames, which rbkit never sends (rule 27), and the missing bytes of its current frame.
    multipart: Option<(SessionError, u64)>,
    /// The fault that ends the connection.
    fault: Option<SessionError>,
    /// The next part is incomplete: it is read again when this many bytes of input are here.
    min_input: usize,
    /// The input that was left when the connection ended, and how much of it has been consumed.
    tail: (Vec<u8>, usize),
    dumps: Dumps,
    /// Objects are counted instead of written one by one.
    objects: Option<ObjectCounts>,
    /// The connection has ended, and what was summed up is written.
    is_ending: bool,
    buffers: Buffers,
    /// The version of the resource that the batch has.
    resource_version: u64,
    /// The clock of the CPU profile, by the same handshake.
    clock: Option<SampleClock>,
    /// Its share of the memory budget: the current snapshot, and the buffers for the parts of an event.
    lease: MemoryLease,
    is_short_of_memory: bool,
    /// The daemon stops, and the last events of the process are awaited: the next check whether that is over.
    drain_check: Option<Duration>,
}

/// The interval of checks whether our commands have been undone.
const UNDO_CHECK: Duration = Duration::from_millis(50);

/// The stage of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SubscriptionStage {
    /// Until the peer's READY.
    Greeting,
    /// Until the handshake of this number has come on the request connection, but not longer than `deadline`: so that
    /// events have a resource.
    Introducing { number: u64, deadline: Duration },
    /// The subscription has been sent.
    Subscribed,
    /// Recorded bytes are read.
    Offline { is_last: bool },
}

impl Subscription {
    /// A connection to `agent`, from its start.
    pub fn new(agent: RbkitAgent, options: Arc<Options>, max_message_bytes: u64) -> Self {
        let max_frame_bytes = agent.options().max_frame_bytes.unwrap_or(options.max_frame_bytes);
        let mut dumps = std::mem::take(&mut agent.state().dumps);
        if options.heap != HeapDumps::Objects {
            dumps.sum_up(|| HeapSums::new(options.summary));
        }
        let known = agent.state().objects.take();
        let new = || ObjectCounts::new(options.summary);
        let objects = (options.objects == Objects::Summary).then(|| known.unwrap_or_else(new));
        Subscription {
            max_message_bytes,
            peer: link::peer(Socket::Sub, max_frame_bytes, "max_frame_bytes"),
            stage: SubscriptionStage::Greeting,
            offset: 0,
            message: None,
            multipart: None,
            fault: None,
            min_input: 0,
            tail: (Vec::new(), 0),
            dumps,
            objects,
            is_ending: false,
            buffers: Buffers::default(),
            resource_version: 0,
            clock: None,
            lease: MemoryBudget::unlimited().lease(),
            is_short_of_memory: false,
            drain_check: None,
            agent,
            options,
        }
    }

    /// The same with its memory taken from `memory`.
    #[must_use]
    pub fn within(mut self, memory: &Arc<MemoryBudget>) -> Self {
        self.lease = memory.lease();
        self
    }

    /// Reports its memory to the budget. If the budget is exhausted, buffers and caches are freed.
    fn count_memory(&mut self) {
        let bytes = |of: &Self| {
            let sums = of.dumps.memory_bytes() + of.objects.as_ref().map_or(0, ObjectCounts::memory_bytes);
            sums + of.buffers.memory_bytes() + of.message.as_ref().map_or(0, MessageDecoder::memory_bytes)
        };
        self.is_short_of_memory = !self.lease.resize(bytes(self) as u64);
        if self.is_short_of_memory {
            self.buffers = Buffers::default();
            if let Some(message) = &mut self.message {
                message.free_caches();
            }
            if let Some(objects) = &mut self.objects {
                objects.forget_live();
            }
            let _ = self.lease.resize(bytes(self) as u64);
        }
    }

    /// It is the last recording of its conversation.
    pub(super) fn set_last(&mut self) {
        if let SubscriptionStage::Offline { is_last } = &mut self.stage {
            *is_last = true;
        }
    }

    /// A recording of a subscription; or of one message, `body` bytes long. `is_last`: it is the last recording of its
    /// process, so a dump that is incomplete at its end stays so.
    pub(super) fn offline(
        agent: RbkitAgent,
        options: Arc<Options>,
        max_message_bytes: u64,
        body: Option<u64>,
        is_last: bool,
    ) -> Self {
        let message = body.map(|length| MessageDecoder::new(0, length));
        let stage = SubscriptionStage::Offline { is_last };
        Subscription { stage, message, ..Subscription::new(agent, options, max_message_bytes) }
    }

    fn decode(&mut self, input: &[u8], now: Now, out: &mut Output) -> ReceiveProgress {
        let mut at = 0;
        let flow = loop {
            let rest = &input[at..];
            if let Some(fault) = &mut self.fault {
                fault.count(rest);
                at = input.len();
                break Flow::Close;
            }
            if out.batch.is_full() {
                break Flow::Again;
            }
            if self.write_sums(now, out) {
                continue;
            }
            let taken = if self.message.is_some() {
                self.read_message(rest, now, out)
            } else if self.multipart.is_some() {
                self.read_multipart(rest, now, out)
            } else {
                self.read_frame(rest, now, out)
            };
            let Some(taken) = taken else { break Flow::Continue };
            at += taken;
            self.offset += taken as u64;
        };
        ReceiveProgress { consumed: at, flow }
    }

    /// Reads the next parts of the current message. None: more input is needed.
    fn read_message(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Option<usize> {
        // In place: this runs once per event, and a message is large.
        let message = self.message.as_mut()?;
        // A part over the limit is rejected even if all of it is here.
        let limit = usize::try_from(self.max_message_bytes).unwrap_or(usize::MAX);
        let rest = &rest[..rest.len().min(limit)];
        let has_all = rest.len() as u64 >= message.left();
        if rest.len() < self.min_input && !has_all {
            return None;
        }
        self.min_input = 0;
        let mut context = MessageContext {
            options: &self.options,
            agent: &self.agent,
            clock: self.clock,
            dumps: &mut self.dumps,
            objects: self.objects.as_mut(),
            buffers: &mut self.buffers,
            is_short_of_memory: self.is_short_of_memory,
            now,
        };
        match message.step(rest, &mut context, out) {
            MessageStep::Taken(taken) => Some(taken),
            MessageStep::Done => {
                self.message = None;
                Some(0)
            }
            MessageStep::More if rest.len() >= limit => {
                message.too_large(self.max_message_bytes);
                Some(0)
            }
            MessageStep::More => {
                // A part that arrives in many pieces is not read from its start for each of them: the total work is linear.
                self.min_input = (rest.len() * 2).min(limit);
                None
            }
        }
    }

    /// Reads a greeting, a command, or the head of a frame. None: more input is needed.
    fn read_frame(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Option<usize> {
        match link::next_part(&mut self.peer, rest, self.offset, out)? {
            Ok(InputPart::Processed(bytes)) => {
                if self.stage == SubscriptionStage::Greeting && self.peer.is_ready() {
                    self.introduce(now, out);
                }
                Some(bytes)
            }
            Ok(InputPart::Frame { head, length, more, first }) => {
                if first && !more {
                    out.decoded_bytes += head as u64;
                    self.message = Some(MessageDecoder::new(self.offset + head as u64, length));
                } else {
                    let detail = "a message of several frames, expected one frame";
                    let mut fault = SessionError::new(Reason::Malformed, self.offset, detail.to_owned());
                    fault.count(&rest[..head]);
                    self.multipart = Some((fault, length));
                }
                Some(head)
            }
            Err(fault) => {
                self.fault = Some(fault);
                Some(0)
            }
        }
    }

    /// Consumes the frames of a message of several frames, as far as they are here.
    fn read_multipart(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Option<usize> {
        let (fault, left) = self.multipart.as_mut()?;
        if *left > 0 {
            let here = &rest[..rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX))];
            if here.is_empty() {
                return None;
            }
            fault.count(here);
            *left -= here.len() as u64;
            return Some(here.len());
        }
        if self.peer.is_between_messages() {
            let (fault, _) = self.multipart.take()?;
            fault.report(now, out);
            return Some(0);
        }
        match link::next_part(&mut self.peer, rest, self.offset, out)? {
            Ok(InputPart::Processed(bytes)) => Some(bytes),
            Ok(InputPart::Frame { head, length, .. }) => {
                fault.count(&rest[..head]);
                *left = length;
                Some(head)
            }
            Err(worse) => {
                // One loss for both: the frames so far, and what ends the connection.
                let (mut fault, _) = self.multipart.take()?;
                (fault.reason, fault.detail) = (worse.reason, worse.detail);
                self.fault = Some(fault);
                Some(0)
            }
        }
    }

    /// The peer is ready: waits for a handshake on the request connection, or subscribes if there is none.
    fn introduce(&mut self, now: Now, out: &mut Output) {
        match self.agent.want_introduction() {
            Some(number) => {
                self.stage =
                    SubscriptionStage::Introducing { number, deadline: now.elapsed + self.options.request_timeout };
            }
            None => self.subscribe(out),
        }
    }

    /// Writes what was summed up, after the end of the connection.
    fn end(&mut self, now: Now, out: &mut Output) -> Flow {
        if self.write_all_sums(now, out) == Flow::Again {
            return Flow::Again;
        }
        self.agent.state().dumps = std::mem::take(&mut self.dumps);
        Flow::Close
    }

    fn subscribe(&mut self, out: &mut Output) {
        out.reply.extend_from_slice(&subscribe_all());
        self.stage = SubscriptionStage::Subscribed;
        self.agent.set_subscribed();
    }

    /// Whether the last events of the process are still awaited while the daemon stops.
    fn drain(&mut self, elapsed: Duration) -> Flow {
        let next = match self.agent.state().undo.drain() {
            _ if self.stage != SubscriptionStage::Subscribed => None,
            Drain::Undo => Some(elapsed + UNDO_CHECK),
            Drain::Flush(undone_at) => Some(undone_at + self.options.flush_wait).filter(|until| *until > elapsed),
            Drain::Nothing => None,
        };
        self.drain_check = next;
        if next.is_some() { Flow::Continue } else { Flow::Close }
    }

    /// Writes the next sum of a dump or of an interval that has ended. `false`: there is none.
    fn write_sums(&mut self, now: Now, out: &mut Output) -> bool {
        let texts = self.buffers.texts();
        self.dumps.write_next(now, texts, out)
            || self.objects.as_mut().is_some_and(|objects| objects.write_next(now, texts, out))
    }

    /// Writes all sums that are due; when the connection has ended, all that there are.
    fn write_all_sums(&mut self, now: Now, out: &mut Output) -> Flow {
        loop {
            if out.batch.is_full() {
                return Flow::Again;
            }
            let is_ending = self.is_ending;
            let ended = |objects: &mut ObjectCounts| objects.end_interval(now, is_ending);
            if !self.write_sums(now, out) && !self.objects.as_mut().is_some_and(ended) {
                return Flow::Continue;
            }
        }
    }

    /// Gives the batch the current resource of the process and its protocol version.
    fn update_resource(&mut self, out: &mut Output) {
        if let Some((resource, version, clock)) = self.agent.resource(&mut self.resource_version) {
            out.batch.set_resource(resource);
            self.clock = clock;
            if let Some(version) = version
                && out.batch.origin().version.as_deref() != Some(&version)
            {
                let origin = out.batch.origin().with_version(&version);
                out.batch.set_origin(Arc::new(origin));
            }
        }
    }
}

impl Session for Subscription {
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> ReceiveProgress {
        let expanded = out.batch.total_expanded_bytes();
        self.update_resource(out);
        let progress = self.decode(input, now, out);
        self.count_memory();
        let expanded = out.batch.total_expanded_bytes() - expanded;
        out.charge(self.options.amplification, progress.consumed as u64, expanded, now.elapsed);
        progress
    }

    fn finish(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) -> Flow {
        if self.is_ending {
            return self.end(now, out);
        }
        let (mut tail, start) = std::mem::take(&mut self.tail);
        tail.extend_from_slice(rest);
        // The input that waited for more may begin with complete parts.
        self.min_input = 0;
        let ReceiveProgress { consumed, flow } = self.decode(&tail[start..], now, out);
        if flow == Flow::Again {
            // It is not copied: the whole of it may be needed for each of many batches.
            self.tail = (tail, start + consumed);
            return Flow::Again;
        }
        let rest = &tail[start + consumed..];
        if self.stage == SubscriptionStage::Subscribed {
            self.agent.set_unsubscribed();
        }
        let (fault, multipart) = (self.fault.take(), self.multipart.take());
        if let Some(mut fault) = fault.or(multipart.map(|(fault, _)| fault)) {
            fault.count(rest);
            fault.report(now, out);
        } else if let Some(message) = self.message.take() {
            message.cut_short(rest, end, now, out);
        } else if !rest.is_empty() {
            let mut fault =
                SessionError::new(Reason::Truncated, self.offset, format!("the stream ends here: {}", end.as_str()));
            fault.count(rest);
            fault.report(now, out);
        }
        if !matches!(self.stage, SubscriptionStage::Offline { is_last: false }) {
            let place = StreamPosition { sequence: None, offset: self.offset, length: 0, now };
            self.dumps.end(end.as_str(), place, out);
        }
        if matches!(self.stage, SubscriptionStage::Offline { is_last: false }) {
            // The next recording continues this one.
            self.agent.state().objects = self.objects.take();
        }
        self.is_ending = true;
        self.end(now, out)
    }

    fn awaiting(&self) -> Awaiting {
        match (&self.message, &self.multipart, self.stage) {
            (_, _, SubscriptionStage::Greeting) => Awaiting::Handshake,
            (Some(message), ..) => Awaiting::Rest { offset: message.start() },
            (None, Some(_), _) => Awaiting::Rest { offset: self.offset },
            _ => Awaiting::Message,
        }
    }

    fn explainer(&self) -> Box<dyn Explain> {
        let channel = Channel::Pub;
        Box::new(match (&self.fault, &self.message, &self.multipart) {
            (Some(_), ..) => Explainer::lost(),
            (_, Some(message), _) if message.start() == self.offset => Explainer::message(channel, message.left()),
            (_, Some(message), _) => Explainer::within(channel, message.left()),
            (_, _, Some((_, left))) => Explainer::within(channel, *left),
            _ if self.offset == 0 => Explainer::new(channel),
            _ => Explainer::within(channel, 0),
        })
    }

    fn poll_timeout(&self) -> Option<Duration> {
        match self.stage {
            SubscriptionStage::Greeting if !self.peer.is_greeting_sent() => Some(Duration::ZERO),
            SubscriptionStage::Introducing { deadline, .. } => Some(deadline),
            _ => {
                let interval = self.objects.as_ref().and_then(ObjectCounts::due);
                self.drain_check.into_iter().chain(interval).min()
            }
        }
    }

    fn handle_timeout(&mut self, now: Now, out: &mut Output) -> Flow {
        let expanded = out.batch.total_expanded_bytes();
        let flow = self.write_all_sums(now, out);
        let expanded = out.batch.total_expanded_bytes() - expanded;
        // A process without credit waits before its next message, without which there are no further sums.
        out.charge(self.options.amplification, 0, expanded, now.elapsed);
        if flow == Flow::Again {
            return Flow::Again;
        }
        match self.stage {
            // It does not wait for the peer's greeting (rule 25).
            SubscriptionStage::Greeting => self.peer.send_greeting(&mut out.reply),
            SubscriptionStage::Introducing { number, deadline }
                if deadline <= now.elapsed || self.agent.is_introduced(number, None) =>
            {
                self.update_resource(out);
                self.subscribe(out);
            }
            _ if self.drain_check.is_some() => return self.drain(now.elapsed),
            _ => {}
        }
        Flow::Continue
    }

    fn shutdown(&mut self, now: Now, _out: &mut Output) -> Shutdown {
        match self.drain(now.elapsed) {
            Flow::Continue | Flow::Again => Shutdown::Drain,
            Flow::Close => Shutdown::Close,
        }
    }

    fn poll_wake(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.stage {
            SubscriptionStage::Introducing { number, .. } if self.agent.is_introduced(number, Some(context)) => {
                Poll::Ready(())
            }
            _ => Poll::Pending,
        }
    }
}
