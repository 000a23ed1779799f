//! The connection to a process's publishing socket: subscribes, and turns what is published into events.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::codec::zmtp::{Limits, Peer, Socket, Step as Zmtp, subscribe_all};
use crate::event::Reason;
use crate::explain::Explain;
use crate::memory::{MemoryBudget, MemoryLease};
use crate::protocol::fault::Fault;
use crate::protocol::{Awaiting, End, Flow, Now, Output, Progress, Session};

use super::agent::Agent;
use super::dump::Dumps;
use super::explain::Explainer;
use super::message::{Message, Scratch, Step, Surroundings};
use super::normalize::Place;
use super::options::Options;
use super::{Channel, MAX_COMMAND_BYTES, MAX_MESSAGE_FRAMES};

/// A connection that listens.
#[derive(Debug)]
pub struct Subscription {
    agent: Agent,
    options: Arc<Options>,
    /// What of a message must be held at once may be this long.
    max_message_bytes: u64,
    peer: Peer,
    stage: Stage,
    /// Bytes worked off since the start of the connection.
    offset: u64,
    message: Option<Message>,
    /// A message of several frames, which is none of ours (rule 27), and the bytes of its frame that are still to come.
    multipart: Option<(Fault, u64)>,
    /// What has ended the connection.
    fault: Option<Fault>,
    /// Reading on makes sense from so many bytes of input on.
    enough: usize,
    /// At the end of the connection, what of its last bytes is not worked off yet.
    tail: Vec<u8>,
    dumps: Dumps,
    scratch: Scratch,
    /// The introduction that the batch knows.
    introductions: u64,
    /// What of the memory of all it takes: a snapshot being worked off, and room for the parts of an event.
    lease: MemoryLease,
    is_short_of_memory: bool,
}

/// How far the connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Our greeting has not gone out.
    Opening,
    /// The peer's greeting and READY are awaited.
    Greeting,
    /// The handshake of this number is awaited on the other connection, or this moment, whichever comes first: so that
    /// events say who speaks.
    Introducing { number: u64, until: Duration },
    /// What is published comes.
    Subscribed,
    /// Bytes that were recorded are read.
    Offline { is_last: bool },
}

impl Subscription {
    /// A connection to `agent`, from its start.
    pub fn new(agent: Agent, options: Arc<Options>, max_message_bytes: u64) -> Self {
        let max_frame_bytes = agent.options().max_frame_bytes.unwrap_or(options.max_frame_bytes);
        let dumps = std::mem::take(&mut agent.state().dumps);
        let limits = Limits {
            max_message_bytes: max_frame_bytes,
            message_key: "max_frame_bytes",
            max_frames: MAX_MESSAGE_FRAMES,
            max_command_bytes: MAX_COMMAND_BYTES,
        };
        Subscription {
            max_message_bytes,
            peer: Peer::new(Socket::Sub, limits),
            stage: Stage::Opening,
            offset: 0,
            message: None,
            multipart: None,
            fault: None,
            enough: 0,
            tail: Vec::new(),
            dumps,
            scratch: Scratch::default(),
            introductions: 0,
            lease: MemoryBudget::unlimited().lease(),
            is_short_of_memory: false,
            agent,
            options,
        }
    }

    /// The same with what it remembers taken from `memory`.
    #[must_use]
    pub fn within(mut self, memory: &Arc<MemoryBudget>) -> Self {
        self.lease = memory.lease();
        self
    }

    /// Tells the budget what it takes. Room that is there to be used again is let go where there is none.
    fn count_memory(&mut self) {
        let bytes = |of: &Self| of.scratch.memory_bytes() + of.message.as_ref().map_or(0, Message::memory_bytes);
        self.is_short_of_memory = !self.lease.resize(bytes(self) as u64);
        if self.is_short_of_memory {
            self.scratch = Scratch::default();
            if let Some(message) = &mut self.message {
                message.let_go();
            }
            let _ = self.lease.resize(bytes(self) as u64);
        }
    }

    /// What such a connection has received, read later; or one message of it, `body` bytes long. After the last of
    /// several recordings nothing more will come of a dump.
    pub(super) fn offline(
        agent: Agent,
        options: Arc<Options>,
        max_message_bytes: u64,
        body: Option<u64>,
        is_last: bool,
    ) -> Self {
        let message = body.map(|length| Message::new(0, length));
        let stage = Stage::Offline { is_last };
        Subscription { stage, message, ..Subscription::new(agent, options, max_message_bytes) }
    }

    fn decode(&mut self, input: &[u8], now: Now, out: &mut Output) -> Progress {
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
        Progress { consumed: at, flow }
    }

    /// Something of the message under way. None: more of it is needed.
    fn read_message(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Option<usize> {
        // In place, for this is done once per event: a message is too large to be moved about.
        let message = self.message.as_mut()?;
        // A part over the limit is none, however much of it is here.
        let limit = usize::try_from(self.max_message_bytes).unwrap_or(usize::MAX);
        let rest = &rest[..rest.len().min(limit)];
        let has_all = rest.len() as u64 >= message.left();
        if rest.len() < self.enough && !has_all {
            return None;
        }
        self.enough = 0;
        let mut around = Surroundings {
            options: &self.options,
            agent: &self.agent,
            dumps: &mut self.dumps,
            scratch: &mut self.scratch,
            is_short_of_memory: self.is_short_of_memory,
            now,
        };
        match message.step(rest, &mut around, out) {
            Step::Taken(taken) => Some(taken),
            Step::Done => {
                self.message = None;
                Some(0)
            }
            Step::More if rest.len() >= limit => {
                message.too_large(self.max_message_bytes);
                Some(0)
            }
            Step::More => {
                // A part that arrives in many pieces is not begun anew with each of them.
                self.enough = (rest.len() * 2).min(limit);
                None
            }
        }
    }

    /// Greeting, command, or the head of a frame. None: more is needed.
    fn read_frame(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Option<usize> {
        if rest.is_empty() {
            return None;
        }
        match self.peer.next(rest, &mut out.reply) {
            Ok(Zmtp::More) => None,
            Ok(Zmtp::Taken { bytes }) => {
                out.decoded_bytes += bytes as u64;
                if self.stage == Stage::Greeting && self.peer.is_ready() {
                    self.introduce(now, out);
                }
                Some(bytes)
            }
            Ok(Zmtp::Frame { head, length, more, first }) => {
                if first && !more {
                    out.decoded_bytes += head as u64;
                    self.message = Some(Message::new(self.offset + head as u64, length));
                } else {
                    let detail = "a message of several frames, which rbkit never sends";
                    let mut fault = Fault::new(Reason::Malformed, self.offset, detail.to_owned());
                    fault.count(&rest[..head]);
                    self.multipart = Some((fault, length));
                }
                Some(head)
            }
            Err(fault) => {
                self.fault = Some(Fault::new(fault.reason, self.offset, fault.detail));
                Some(0)
            }
        }
    }

    /// Passes over the frames of a message that is none of ours, as far as they are here.
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
            fault.tell(now, out);
            return Some(0);
        }
        if rest.is_empty() {
            return None;
        }
        match self.peer.next(rest, &mut out.reply) {
            Ok(Zmtp::More) => None,
            Ok(Zmtp::Taken { bytes }) => {
                out.decoded_bytes += bytes as u64;
                Some(bytes)
            }
            Ok(Zmtp::Frame { head, length, .. }) => {
                fault.count(&rest[..head]);
                *left = length;
                Some(head)
            }
            Err(worse) => {
                // One fault for all of it: what came before is lost with what ends the connection.
                let (mut fault, _) = self.multipart.take()?;
                (fault.reason, fault.detail) = (worse.reason, worse.detail);
                self.fault = Some(fault);
                Some(0)
            }
        }
    }

    /// The peer is ready: lets the other connection ask who it is, or subscribes at once.
    fn introduce(&mut self, now: Now, out: &mut Output) {
        match self.agent.introduce() {
            Some(number) => {
                self.stage = Stage::Introducing { number, until: now.elapsed + self.options.request_timeout };
            }
            None => self.subscribe(out),
        }
    }

    fn subscribe(&mut self, out: &mut Output) {
        out.reply.extend_from_slice(&subscribe_all());
        self.stage = Stage::Subscribed;
        self.agent.subscribed();
    }

    /// Events from now on say who speaks, as far as that is known.
    fn know_the_speaker(&mut self, out: &mut Output) {
        if let Some((resource, version)) = self.agent.resource(&mut self.introductions) {
            out.batch.set_resource(resource);
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
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> Progress {
        let expanded = out.batch.total_expanded_bytes();
        self.know_the_speaker(out);
        let progress = self.decode(input, now, out);
        self.count_memory();
        let expanded = out.batch.total_expanded_bytes() - expanded;
        out.charge(self.options.amplification, progress.consumed as u64, expanded, now.elapsed);
        progress
    }

    fn finish(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) -> Flow {
        self.tail.extend_from_slice(rest);
        let tail = std::mem::take(&mut self.tail);
        // What has waited for more may be whole in part.
        self.enough = 0;
        let Progress { consumed, flow } = self.decode(&tail, now, out);
        if flow == Flow::Again {
            self.tail = tail[consumed..].to_vec();
            return Flow::Again;
        }
        let rest = &tail[consumed..];
        if self.stage == Stage::Subscribed {
            self.agent.unsubscribed();
        }
        let (fault, multipart) = (self.fault.take(), self.multipart.take());
        if let Some(mut fault) = fault.or(multipart.map(|(fault, _)| fault)) {
            fault.count(rest);
            fault.tell(now, out);
        } else if let Some(message) = self.message.take() {
            message.cut_short(rest, end, now, out);
        } else if !rest.is_empty() {
            let mut fault =
                Fault::new(Reason::Truncated, self.offset, format!("the stream ends here: {}", end.as_str()));
            fault.count(rest);
            fault.tell(now, out);
        }
        if !matches!(self.stage, Stage::Offline { is_last: false }) {
            let place = Place { sequence: None, offset: self.offset, length: 0, now };
            self.dumps.end(end.as_str(), place, out);
        }
        self.agent.state().dumps = std::mem::take(&mut self.dumps);
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        match (&self.message, &self.multipart, self.stage) {
            (_, _, Stage::Opening | Stage::Greeting) => Awaiting::Handshake,
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
            Stage::Opening => Some(Duration::ZERO),
            Stage::Introducing { until, .. } => Some(until),
            _ => None,
        }
    }

    fn handle_timeout(&mut self, now: Now, out: &mut Output) -> Flow {
        match self.stage {
            Stage::Opening => {
                // First of all, without waiting for the peer's (rule 25).
                out.reply.extend_from_slice(&self.peer.greeting());
                self.stage = Stage::Greeting;
            }
            Stage::Introducing { number, until } if until <= now.elapsed || self.agent.is_introduced(number, None) => {
                self.know_the_speaker(out);
                self.subscribe(out);
            }
            _ => {}
        }
        Flow::Continue
    }

    fn poll_wake(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.stage {
            Stage::Introducing { number, .. } if self.agent.is_introduced(number, Some(context)) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }
}
