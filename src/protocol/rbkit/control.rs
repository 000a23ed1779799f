//! The connection to a process's replying socket: asks who it is and whether it still answers, and tells it what to do.
//! One request at a time (rule 22), never an empty one (rule 3).

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::codec::zmtp::{self, Limits, Peer, Socket, Step as Zmtp};
use crate::event::{Name, Reason, Severity, semconv as names};
use crate::explain::Explain;
use crate::protocol::fault::Fault;
use crate::protocol::{Awaiting, End, Flow, Now, Output, Progress, Session, Shutdown};

use super::agent::{Agent, Command, Order, State};
use super::explain::Explainer;
use super::handshake::Handshake;
use super::normalize::{self, Place};
use super::options::{Options, Profile};
use super::{Channel, MAX_COMMAND_BYTES, MAX_MESSAGE_FRAMES};

/// A connection that asks.
#[derive(Debug)]
pub struct Control {
    agent: Agent,
    options: Arc<Options>,
    peer: Peer,
    /// Bytes that were recorded are read: nothing is asked, and every reply is welcome.
    is_offline: bool,
    has_greeted: bool,
    /// Bytes worked off since the start of the connection.
    offset: u64,
    /// The frame whose body comes next.
    frame: Option<Frame>,
    /// The delimiter of a reply has come, at this offset.
    delimiter: Option<u64>,
    /// Replies so far.
    replies: u64,
    /// What is asked.
    request: Option<Request>,
    /// What is to be asked next.
    queue: VecDeque<Command>,
    /// The process has introduced itself on this connection.
    has_shaken: bool,
    next_handshake: Option<Duration>,
    next_snapshot: Option<Duration>,
    next_gc: Option<Duration>,
    /// The collector stops: what it has switched on is switched off until then.
    stops_until: Option<Duration>,
    fault: Option<Fault>,
}

/// A frame whose head has come.
#[derive(Clone, Copy, Debug)]
struct Frame {
    length: usize,
    more: bool,
    first: bool,
}

/// A request that is not answered yet.
#[derive(Debug)]
struct Request {
    command: Command,
    /// The operator who wants it.
    order: Option<Order>,
    until: Duration,
    /// Handshakes that it answers.
    settles: u64,
}

impl Control {
    /// A connection to `agent`, from its start.
    pub fn new(agent: Agent, options: Arc<Options>) -> Self {
        let limits = Limits {
            max_message_bytes: options.max_reply_bytes,
            message_key: "max_reply_bytes",
            max_frames: MAX_MESSAGE_FRAMES,
            max_command_bytes: MAX_COMMAND_BYTES,
        };
        Control {
            agent,
            options,
            peer: Peer::new(Socket::Req, limits),
            is_offline: false,
            has_greeted: false,
            offset: 0,
            frame: None,
            delimiter: None,
            replies: 0,
            request: None,
            queue: VecDeque::new(),
            has_shaken: false,
            next_handshake: None,
            next_snapshot: None,
            next_gc: None,
            stops_until: None,
            fault: None,
        }
    }

    /// What such a connection has received, read later; or one reply of it, `body` bytes long.
    pub(super) fn offline(agent: Agent, options: Arc<Options>, body: Option<usize>) -> Self {
        let frame = body.map(|length| Frame { length, more: false, first: false });
        let delimiter = body.map(|_| 0);
        // A reply alone is not the first of a connection: it is told if it says something new.
        let has_shaken = body.is_some();
        Control { is_offline: true, has_greeted: true, has_shaken, frame, delimiter, ..Control::new(agent, options) }
    }

    fn decode(&mut self, input: &[u8], now: Now, out: &mut Output) -> Progress {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            if let Some(fault) = &mut self.fault {
                fault.count(rest);
                return Progress { consumed: input.len(), flow: Flow::Close };
            }
            if out.batch.is_full() {
                return Progress { consumed: at, flow: Flow::Again };
            }
            let taken = match self.frame {
                Some(frame) => self.read_body(frame, rest, now, out),
                None => self.read_head(rest, now, out),
            };
            match taken {
                Some(taken) => {
                    at += taken;
                    self.offset += taken as u64;
                }
                None => return Progress { consumed: at, flow: self.flow() },
            }
        }
    }

    /// Whether there is anything left to say.
    fn flow(&self) -> Flow {
        let is_done = self.stops_until.is_some() && self.request.is_none();
        if is_done { Flow::Close } else { Flow::Continue }
    }

    fn read_head(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Option<usize> {
        if rest.is_empty() {
            return None;
        }
        match self.peer.next(rest, &mut out.reply) {
            Ok(Zmtp::More) => None,
            Ok(Zmtp::Taken { bytes }) => {
                out.decoded_bytes += bytes as u64;
                if self.peer.is_ready() && !self.is_offline && self.request.is_none() {
                    self.agent.state().is_reachable = true;
                    self.ask(now, out);
                }
                Some(bytes)
            }
            Ok(Zmtp::Frame { head, length, more, first }) => {
                out.decoded_bytes += head as u64;
                // The limit of a reply has been checked.
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                self.frame = Some(Frame { length, more, first });
                Some(head)
            }
            Err(fault) => {
                self.fault = Some(Fault::new(fault.reason, self.offset, fault.detail));
                Some(0)
            }
        }
    }

    /// A body: the empty delimiter, and then the reply itself.
    fn read_body(&mut self, frame: Frame, rest: &[u8], now: Now, out: &mut Output) -> Option<usize> {
        let body = rest.get(..frame.length)?;
        self.frame = None;
        match self.delimiter {
            None if frame.first && frame.more && body.is_empty() => self.delimiter = Some(self.offset),
            Some(_) if !frame.more => {
                self.delimiter = None;
                self.reply(body, now, out);
            }
            _ => {
                self.delimiter = None;
                let detail = "a reply is an empty frame and a body, and this is not";
                self.fault = Some(Fault::new(Reason::Malformed, self.offset, detail.to_owned()));
                return Some(0);
            }
        }
        Some(frame.length)
    }

    fn reply(&mut self, body: &[u8], now: Now, out: &mut Output) {
        self.replies += 1;
        let place = Place { sequence: Some(self.replies), offset: self.offset, length: body.len() as u64, now };
        let Some(request) = self.request.take() else {
            if !self.is_offline {
                let mut fault = Fault::new(Reason::Malformed, self.offset, "a reply to no request".to_owned());
                fault.count(body);
                self.fault = Some(fault);
            } else if body == b"ok" {
                out.decoded_bytes += body.len() as u64;
            } else {
                let _ = self.hear(body, place, out);
            }
            return;
        };
        if request.command != Command::Handshake {
            // It proves that the request was received, and no more (rule 4).
            out.decoded_bytes += body.len() as u64;
        } else if !self.hear(body, place, out) {
            // Told; and who answers like that is no agent.
            self.fault = Some(Fault::new(Reason::Malformed, self.offset + body.len() as u64, NO_AGENT.to_owned()));
            return;
        } else {
            self.agent.state().settle(request.settles);
            self.shaken(place, out);
        }
        if let Some(order) = request.order {
            order.answer(Ok(()));
        }
        self.ask(now, out);
    }

    /// Takes a handshake reply. `false`: it is none, and a loss says so.
    fn hear(&mut self, body: &[u8], place: Place, out: &mut Output) -> bool {
        let (handshake, time) = match Handshake::read(body) {
            Ok(read) => read,
            Err(error) => {
                normalize::lost(out, Reason::Malformed, body, Some(1), &format!("no handshake reply: {error}"), place);
                return false;
            }
        };
        out.decoded_bytes += body.len() as u64;
        let (is_new, is_other) = self.agent.introduced(&handshake);
        if is_new || !self.has_shaken {
            out.batch.set_resource(handshake.resource());
            if let Some(version) = &handshake.protocol_version {
                let origin = out.batch.origin().with_version(version);
                out.batch.set_origin(Arc::new(origin));
            }
            normalize::handshake(out, &handshake, time, place);
        }
        if is_other {
            normalize::noticed(out, names::RBKIT_AGENT_RESTARTED, Severity::Info, None, place);
        }
        if handshake.is_released() && !self.has_shaken {
            out.warn("rbkit.listens_everywhere");
        }
        true
    }

    /// A handshake has been answered.
    fn shaken(&mut self, place: Place, out: &mut Output) {
        let elapsed = place.now.elapsed;
        let wanted = self.agent.options();
        let first = |interval: Duration| Some(elapsed + interval).filter(|_| !interval.is_zero());
        if !self.has_shaken {
            (self.next_snapshot, self.next_gc) = (first(wanted.snapshot_interval), first(wanted.gc_interval));
            self.agent.state().is_due = true;
        }
        self.has_shaken = true;
        self.next_handshake = Some(elapsed + self.options.handshake_interval);
        self.health(true, place, out);
    }

    /// Tells when it begins or ceases to answer.
    fn health(&self, is_healthy: bool, place: Place, out: &mut Output) {
        let mut state = self.agent.state();
        if state.is_unhealthy == is_healthy {
            state.is_unhealthy = !is_healthy;
            let (name, severity): (Name, _) = match is_healthy {
                true => (names::RBKIT_AGENT_RECOVERED, Severity::Info),
                false => (names::RBKIT_AGENT_UNHEALTHY, Severity::Warn),
            };
            normalize::noticed(out, name, severity, None, place);
        }
    }

    /// Asks what is to be asked next, if anything.
    fn ask(&mut self, now: Now, out: &mut Output) {
        let agent = self.agent.clone();
        let mut state = agent.state();
        let Some((command, order)) = self.next_command(&mut state, now.elapsed, out) else { return };
        // What was sent may take effect even if its answer is lost: it is undone in any case.
        match command {
            Command::StartMemoryProfile => start(&mut state, Profile::Memory),
            Command::StartCpuProfiling => start(&mut state, Profile::Cpu),
            Command::StopMemoryProfile => state.started.retain(|profile| *profile != Profile::Memory),
            Command::StopCpuProfiling => state.started.retain(|profile| *profile != Profile::Cpu),
            _ => {}
        }
        let limit = if command.is_slow() { self.options.slow_request_timeout } else { self.options.request_timeout };
        zmtp::request(command.as_str(), &mut out.reply);
        self.request = Some(Request { command, order, until: now.elapsed + limit, settles: state.asked });
    }

    fn next_command(
        &mut self,
        state: &mut State,
        elapsed: Duration,
        out: &mut Output,
    ) -> Option<(Command, Option<Order>)> {
        if self.stops_until.is_some() {
            let stop = match state.started.first()? {
                Profile::Memory => Command::StopMemoryProfile,
                Profile::Cpu => Command::StopCpuProfiling,
            };
            return Some((stop, None));
        }
        let is_past = |at: Option<Duration>| at.is_some_and(|at| at <= elapsed);
        if !self.has_shaken || state.asked > state.answered || is_past(self.next_handshake) {
            return Some((Command::Handshake, None));
        }
        if state.is_due && state.is_subscribed {
            state.is_due = false;
            let mut is_unknown = false;
            self.queue = state.start_commands(self.agent.options(), &mut is_unknown).into();
            if is_unknown {
                out.warn("rbkit.no_cpu_profile");
            }
        }
        if let Some(command) = self.queue.pop_front() {
            return Some((command, None));
        }
        if let Some(order) = state.commands.pop_front() {
            return Some((order.command, Some(order)));
        }
        if is_past(self.next_snapshot) {
            self.next_snapshot = Some(elapsed + self.agent.options().snapshot_interval);
            return Some((Command::ObjectspaceSnapshot, None));
        }
        if is_past(self.next_gc) {
            self.next_gc = Some(elapsed + self.agent.options().gc_interval);
            return Some((Command::TriggerGc, None));
        }
        None
    }

    /// Nothing is asked at the moment, and anything may be.
    fn is_idle(&self) -> bool {
        self.peer.is_ready() && self.request.is_none() && self.fault.is_none() && !self.is_offline
    }
}

/// What ends the connection to a peer that answers something else.
const NO_AGENT: &str = "the peer does not answer as rbkit does";

fn start(state: &mut State, profile: Profile) {
    if !state.started.contains(&profile) {
        state.started.push(profile);
    }
}

impl Session for Control {
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> Progress {
        self.decode(input, now, out)
    }

    fn finish(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) -> Flow {
        let reason = end.reason();
        let truncated = || Fault::new(reason, self.offset, format!("the stream ends here: {}", end.as_str()));
        if let Some(mut fault) = self.fault.take().or_else(|| (!rest.is_empty()).then(truncated)) {
            fault.count(rest);
            if fault.has_bytes() {
                fault.tell(now, out);
            }
        }
        if !self.is_offline {
            self.agent.state().is_reachable = false;
            let commands = std::mem::take(&mut self.agent.state().commands);
            drop(commands);
            if self.peer.is_ready() && end == End::TimedOut {
                self.health(false, Place { sequence: None, offset: self.offset, length: 0, now }, out);
            }
        }
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        if !self.has_shaken {
            Awaiting::Handshake
        } else if self.frame.is_some() || self.delimiter.is_some() {
            Awaiting::Rest { offset: self.offset }
        } else {
            Awaiting::Message
        }
    }

    fn explainer(&self) -> Box<dyn Explain> {
        let channel = Channel::Rep;
        Box::new(match (&self.fault, self.frame) {
            (Some(_), _) => Explainer::lost(),
            (_, Some(frame)) => Explainer::message(channel, frame.length as u64),
            _ if self.offset == 0 => Explainer::new(channel),
            _ => Explainer::within(channel, 0),
        })
    }

    fn poll_timeout(&self) -> Option<Duration> {
        if !self.has_greeted {
            return Some(Duration::ZERO);
        }
        let request = self.request.as_ref().map(|request| request.until);
        let timers = [self.next_handshake, self.next_snapshot, self.next_gc];
        let timers = timers.into_iter().flatten().filter(|_| self.is_idle());
        timers.chain(request).chain(self.stops_until).min()
    }

    fn handle_timeout(&mut self, now: Now, out: &mut Output) -> Flow {
        if !self.has_greeted {
            // First of all, without waiting for the peer's (rule 25).
            out.reply.extend_from_slice(&self.peer.greeting());
            self.has_greeted = true;
            return Flow::Continue;
        }
        if self.stops_until.is_some_and(|until| until <= now.elapsed) {
            return Flow::Close;
        }
        if let Some(request) = &self.request {
            if request.until > now.elapsed {
                return Flow::Continue;
            }
            // An answer that comes late would be taken for the next one's: the next connection asks anew (rule 22).
            self.request = None;
            self.health(false, Place { sequence: None, offset: self.offset, length: 0, now }, out);
            return Flow::Close;
        }
        if self.is_idle() {
            self.ask(now, out);
        }
        self.flow()
    }

    fn poll_wake(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.agent.state();
        state.control = Some(context.waker().clone());
        let is_wanted =
            state.asked > state.answered || (state.is_due && state.is_subscribed) || !state.commands.is_empty();
        drop(state);
        let is_ready = self.is_idle() && self.stops_until.is_none() && is_wanted;
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    }

    fn shutdown(&mut self, now: Now, out: &mut Output) -> Shutdown {
        self.stops_until = Some(now.elapsed + self.options.request_timeout);
        self.queue.clear();
        if self.is_idle() {
            self.ask(now, out);
        }
        match self.flow() {
            Flow::Continue | Flow::Again if self.peer.is_ready() => Shutdown::Drain,
            _ => Shutdown::Close,
        }
    }
}
