//! The request connection: the session on a process's REP socket. It requests the identity of the process, checks that the
//! process still answers, and sends it commands. One request at a time (rule 22), never an empty one (rule 3).

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tributary_codec::zmtp::{self, Peer, Socket};
use tributary_event::{Reason, Severity, semconv as names};
use tributary_explain::Explain;
use tributary_protocol::fault::SessionError;
use tributary_protocol::{Awaiting, End, Flow, Now, Output, ReceiveProgress, Session, Shutdown};

use super::agent::{AgentState, Change, RbkitAgent};
use super::command::{Order, RbkitCommand};
use super::explain::Explainer;
use super::handshake::Handshake;
use super::link::{self, InputPart};
use super::normalize::{self, StreamPosition};
use super::options::Options;
use super::wire::Channel;

/// The session of a request connection.
#[derive(Debug)]
pub struct Control {
    agent: RbkitAgent,
    options: Arc<Options>,
    peer: Peer,
    /// It reads recorded bytes: nothing is sent, and replies need no request.
    is_offline: bool,
    /// It is a recording, and the last one of its process.
    is_last_recording: bool,
    /// Bytes consumed since the start of the connection.
    offset: u64,
    /// The frame whose body comes next.
    frame: Option<FrameHead>,
    /// The delimiter of a reply has come, at this offset.
    delimiter: Option<u64>,
    /// Replies so far.
    replies: u64,
    /// The number of this connection among those of the process; 0 until the peer is ready.
    connection: u64,
    /// The request that waits for its reply.
    request: Option<PendingRequest>,
    /// The commands to send next.
    queue: VecDeque<RbkitCommand>,
    /// A handshake has been answered on this connection.
    is_introduced: bool,
    /// A command has changed what a handshake reports, and no handshake has been sent since.
    is_status_stale: bool,
    /// Orders whose command has been answered, and whose effect the next handshake will show.
    unconfirmed: Vec<Order>,
    next_handshake: Option<Duration>,
    next_snapshot: Option<Duration>,
    next_gc: Option<Duration>,
    /// How long a reply is awaited at the stop of the daemon.
    stop_timeout: Duration,
    /// The daemon stops: our commands are undone. If the peer is not ready at this time, the connection is closed.
    stop_deadline: Option<Duration>,
    /// The daemon stopped before a handshake was answered on this connection.
    is_opened_to_undo: bool,
    fault: Option<SessionError>,
}

/// A frame whose head has been read.
#[derive(Clone, Copy, Debug)]
struct FrameHead {
    length: usize,
    more: bool,
    first: bool,
}

/// A request that has no reply yet.
#[derive(Debug)]
struct PendingRequest {
    command: RbkitCommand,
    /// The order of an operator that it carries out.
    order: Option<Order>,
    deadline: Duration,
    /// The number of the last wanted handshake when it was sent: a reply settles the handshakes up to this one.
    settles: u64,
}

impl Control {
    /// A connection to `agent`, from its start.
    pub fn new(agent: RbkitAgent, options: Arc<Options>) -> Self {
        Control {
            agent,
            peer: link::peer(Socket::Req, options.max_reply_bytes, "max_reply_bytes"),
            is_offline: false,
            is_last_recording: false,
            offset: 0,
            frame: None,
            delimiter: None,
            replies: 0,
            connection: 0,
            request: None,
            queue: VecDeque::new(),
            is_introduced: false,
            is_status_stale: false,
            unconfirmed: Vec::new(),
            next_handshake: None,
            next_snapshot: None,
            next_gc: None,
            stop_timeout: options.request_timeout,
            stop_deadline: None,
            is_opened_to_undo: false,
            fault: None,
            options,
        }
    }

    /// The daemon stops within `grace`: it waits for half of it at most until it sends what the process must still receive, also
    /// to one that answers nothing.
    pub fn within(self, grace: Duration) -> Self {
        Control { stop_timeout: self.stop_timeout.min(grace / 2), ..self }
    }

    /// It is the last recording of its conversation.
    pub(super) fn set_last(&mut self) {
        self.is_last_recording = true;
    }

    /// A recording of a request connection; or of one reply, `body` bytes long. `is_last`: it is the last recording of its
    /// process.
    pub(super) fn offline(agent: RbkitAgent, options: Arc<Options>, body: Option<usize>, is_last: bool) -> Self {
        let frame = body.map(|length| FrameHead { length, more: false, first: false });
        let delimiter = body.map(|_| 0);
        // A single reply is not the first of a connection: it makes an event only if it differs from the last one.
        let is_introduced = body.is_some();
        let new = Control::new(agent, options);
        Control { is_offline: true, is_last_recording: is_last, is_introduced, frame, delimiter, ..new }
    }

    fn decode(&mut self, input: &[u8], now: Now, out: &mut Output) -> ReceiveProgress {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            if let Some(fault) = &mut self.fault {
                fault.count(rest);
                return ReceiveProgress { consumed: input.len(), flow: Flow::Close };
            }
            if out.batch.is_full() {
                return ReceiveProgress { consumed: at, flow: Flow::Again };
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
                None => return ReceiveProgress { consumed: at, flow: self.flow() },
            }
        }
    }

    /// `Close` once the daemon stops and nothing more is to be sent.
    fn flow(&self) -> Flow {
        let is_waiting = self.request.is_some() || !self.peer.is_ready() && !self.agent.state().undo.is_empty();
        if self.stop_deadline.is_none() || is_waiting { Flow::Continue } else { Flow::Close }
    }

    fn read_head(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Option<usize> {
        match link::next_part(&mut self.peer, rest, self.offset, out)? {
            Ok(InputPart::Processed(bytes)) => {
                if self.peer.is_ready() && !self.is_offline && self.request.is_none() {
                    if self.connection == 0 {
                        self.connection = self.agent.state().connected();
                    }
                    self.send_next(now, out);
                }
                Some(bytes)
            }
            Ok(InputPart::Frame { head, length, more, first }) => {
                out.decoded_bytes += head as u64;
                // The limit of a reply has been checked.
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                self.frame = Some(FrameHead { length, more, first });
                Some(head)
            }
            Err(fault) => {
                self.fault = Some(fault);
                Some(0)
            }
        }
    }

    /// Reads the body of a frame: the empty delimiter, or the reply behind it.
    fn read_body(&mut self, frame: FrameHead, rest: &[u8], now: Now, out: &mut Output) -> Option<usize> {
        let body = rest.get(..frame.length)?;
        self.frame = None;
        match self.delimiter {
            None if frame.first && frame.more && body.is_empty() => self.delimiter = Some(self.offset),
            Some(_) if !frame.more => {
                self.delimiter = None;
                self.read_reply(body, now, out);
            }
            _ => {
                self.delimiter = None;
                let detail = "expected a reply: an empty frame and one body frame";
                self.fault = Some(SessionError::new(Reason::Malformed, self.offset, detail.to_owned()));
                return Some(0);
            }
        }
        Some(frame.length)
    }

    fn read_reply(&mut self, body: &[u8], now: Now, out: &mut Output) {
        self.replies += 1;
        let place =
            StreamPosition { sequence: Some(self.replies), offset: self.offset, length: body.len() as u64, now };
        let Some(request) = self.request.take() else {
            if !self.is_offline {
                let mut fault =
                    SessionError::new(Reason::Malformed, self.offset, "a reply without a request".to_owned());
                fault.count(body);
                self.fault = Some(fault);
            } else if body == b"ok" {
                out.decoded_bytes += body.len() as u64;
            } else {
                // Further replies make an event only if they differ from the last one, as on a live connection.
                self.is_introduced |= self.read_handshake(body, u64::MAX, place, out);
            }
            return;
        };
        if request.command == RbkitCommand::Handshake {
            if !self.read_handshake(body, request.settles, place, out) {
                // The loss has been reported; the rest of the stream is lost with the connection.
                self.fault =
                    Some(SessionError::new(Reason::Malformed, self.offset + body.len() as u64, NO_AGENT.to_owned()));
                return;
            }
            let mut state = self.agent.state();
            state.settle(request.settles, self.connection);
            state.undo.note_end(self.stop_deadline.is_some(), now.elapsed);
            drop(state);
            self.agent.store_undo();
            self.handshake_done(place, out);
            self.confirm_orders();
            if let Some(order) = request.order {
                order.answer(Ok(()));
            }
        } else {
            // It proves that the request was received, and no more (rule 4).
            out.decoded_bytes += body.len() as u64;
            let is_stopping = self.stop_deadline.is_some();
            self.agent.state().undo.answered(request.command, is_stopping, now.elapsed);
            self.agent.store_undo();
            let changes = request.command.changes_handshake();
            self.is_status_stale |= changes;
            match request.order {
                // The status of the process shows the effect when the next handshake has come.
                Some(order) if changes => self.unconfirmed.push(order),
                Some(order) => order.answer(Ok(())),
                None => {}
            }
        }
        self.send_next(now, out);
    }

    /// Reads a handshake reply, which settles the wanted handshakes up to `settles`. `false`: it is not one, and a loss
    /// reports it.
    fn read_handshake(&mut self, body: &[u8], settles: u64, place: StreamPosition, out: &mut Output) -> bool {
        let (handshake, time) = match Handshake::read(body) {
            Ok(read) => read,
            Err(error) => {
                let is_old = body == b"ok";
                let reason = if is_old { Reason::Unsupported } else { Reason::Malformed };
                let hint = if is_old { OLD_AGENT } else { "" };
                normalize::lost(out, reason, body, Some(1), &format!("no handshake reply: {error}{hint}"), place);
                return false;
            }
        };
        out.decoded_bytes += body.len() as u64;
        let Change { is_new, is_restart } = self.agent.take_handshake(&handshake, self.connection, settles);
        if is_new || !self.is_introduced {
            out.batch.set_resource(handshake.resource());
            if let Some(version) = &handshake.protocol_version {
                let origin = out.batch.origin().with_version(version);
                out.batch.set_origin(Arc::new(origin));
            }
            normalize::handshake(out, &handshake, time, place);
        }
        if is_restart {
            normalize::agent_event(out, names::RBKIT_AGENT_RESTARTED, Severity::Info, None, place);
        }
        if handshake.is_released() && !self.is_introduced {
            out.warn("rbkit.listens_everywhere");
        }
        true
    }

    fn confirm_orders(&mut self) {
        self.unconfirmed.drain(..).for_each(|order| order.answer(Ok(())));
    }

    fn handshake_done(&mut self, place: StreamPosition, out: &mut Output) {
        let elapsed = place.now.elapsed;
        let wanted = self.agent.options();
        let first = |interval: Duration| Some(elapsed + interval).filter(|_| !interval.is_zero());
        if !self.is_introduced {
            (self.next_snapshot, self.next_gc) = (first(wanted.snapshot_interval), first(wanted.gc_interval));
            self.agent.state().is_start_due = true;
        }
        self.is_introduced = true;
        self.next_handshake = Some(elapsed + self.options.handshake_interval);
        self.set_health(true, place, out);
    }

    /// Writes an event when the process stops answering, or answers again.
    fn set_health(&self, is_healthy: bool, place: StreamPosition, out: &mut Output) {
        let mut state = self.agent.state();
        if state.is_unhealthy == is_healthy {
            state.is_unhealthy = !is_healthy;
            let (name, severity) = match is_healthy {
                true => (names::RBKIT_AGENT_RECOVERED, Severity::Info),
                false => (names::RBKIT_AGENT_UNHEALTHY, Severity::Warn),
            };
            normalize::agent_event(out, name, severity, None, place);
        }
    }

    /// Sends the next request, if there is one.
    fn send_next(&mut self, now: Now, out: &mut Output) {
        let agent = self.agent.clone();
        let mut state = agent.state();
        let Some((command, order)) = self.next_command(&mut state, now.elapsed, out) else { return };
        if command == RbkitCommand::Handshake {
            self.is_status_stale = false;
        }
        let clock = state.handshake.clock.clone();
        let link = state.link(self.connection);
        state.undo.sent(command, clock.as_deref(), link, order.is_none());
        let settles = state.handshakes_wanted;
        drop(state);
        if command != RbkitCommand::Handshake {
            // Before the process can receive it: the daemon may be killed after that.
            agent.store_undo();
        }
        zmtp::request(command.as_str(), &mut out.reply);
        self.request =
            Some(PendingRequest { command, order, deadline: now.elapsed + self.time_limit(command), settles });
    }

    /// The time limit for the reply to a command. A connection that was opened to undo our commands has nothing better to do
    /// than to wait: a process with many busy threads answers late, and on another connection later still.
    fn time_limit(&self, command: RbkitCommand) -> Duration {
        let Options { request_timeout, slow_request_timeout, .. } = *self.options;
        match command.is_slow() || self.is_opened_to_undo {
            true => slow_request_timeout.max(request_timeout),
            false if self.stop_deadline.is_some() => self.stop_timeout,
            false => request_timeout,
        }
    }

    /// The process does not answer in time while the daemon stops: sends the commands that are left without waiting. It
    /// carries them out when it reads them, also after the end of the connection.
    fn send_remaining(&mut self, out: &mut Output) {
        let mut state = self.agent.state();
        let (is_identified, subscription) = (self.is_identified(&state), state.subscription());
        for command in state.undo.take_unsent(is_identified, subscription) {
            zmtp::request(command.as_str(), &mut out.reply);
        }
    }

    /// Whether a handshake on this connection has shown which process this is: in another one, a profile that is on may be that
    /// of another client.
    fn is_identified(&self, state: &AgentState) -> bool {
        self.is_introduced && !state.is_restart_open() && !state.undo.is_handshake_needed()
    }

    fn next_command(
        &mut self,
        state: &mut AgentState,
        elapsed: Duration,
        out: &mut Output,
    ) -> Option<(RbkitCommand, Option<Order>)> {
        if self.stop_deadline.is_some() {
            if state.undo.is_empty() {
                return None;
            }
            let undo = state.undo.next(self.is_identified(state), state.subscription());
            return Some((undo.unwrap_or(RbkitCommand::Handshake), None));
        }
        let is_past = |at: Option<Duration>| at.is_some_and(|at| at <= elapsed);
        if !self.is_introduced || state.is_handshake_due() || is_past(self.next_handshake) {
            return Some((RbkitCommand::Handshake, None));
        }
        if let Some(unwanted) = state.undo.unwanted() {
            return Some((unwanted, None));
        }
        if self.is_status_stale && self.queue.is_empty() {
            return Some((RbkitCommand::Handshake, None));
        }
        if state.is_start_due && state.is_subscribed && !state.undo.is_handed_over() {
            state.is_start_due = false;
            let mut lacks_cpu_profile = false;
            self.queue = state.start_commands(self.agent.options(), &mut lacks_cpu_profile).into();
            if lacks_cpu_profile {
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
            return Some((RbkitCommand::ObjectspaceSnapshot, None));
        }
        if is_past(self.next_gc) {
            self.next_gc = Some(elapsed + self.agent.options().gc_interval);
            return Some((RbkitCommand::TriggerGc, None));
        }
        None
    }

    /// Whether a request may be sent: the peer is ready, and none waits for its reply.
    fn is_idle(&self) -> bool {
        self.peer.is_ready() && self.request.is_none() && self.fault.is_none() && !self.is_offline
    }
}

/// The detail of the fault that ends the connection to a peer that is no agent.
const NO_AGENT: &str = "the peer does not answer as rbkit does";

/// What follows the detail of a loss if an agent answers `ok` to `handshake`, as to every unknown request.
const OLD_AGENT: &str =
    "; `ok` is the reply to an unknown request: rbkit 0.1.5 and older have no handshake, and are not supported";

impl Session for Control {
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> ReceiveProgress {
        self.decode(input, now, out)
    }

    fn finish(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) -> Flow {
        let reason = end.reason();
        let truncated = || SessionError::new(reason, self.offset, format!("the stream ends here: {}", end.as_str()));
        if let Some(mut fault) = self.fault.take().or_else(|| (!rest.is_empty()).then(truncated)) {
            fault.count(rest);
            if fault.has_bytes() {
                fault.report(now, out);
            }
        }
        // The process has received these commands, although no handshake shows their effect.
        self.confirm_orders();
        if self.is_last_recording && self.agent.end_recording(now, out) == Flow::Again {
            return Flow::Again;
        }
        if !self.is_offline {
            self.agent.state().is_reachable = false;
            let commands = std::mem::take(&mut self.agent.state().commands);
            drop(commands);
            if self.peer.is_ready() && end == End::TimedOut {
                self.set_health(false, StreamPosition { sequence: None, offset: self.offset, length: 0, now }, out);
            }
        }
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        if !self.is_introduced {
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
        if !self.peer.is_greeting_sent() && !self.is_offline {
            return Some(Duration::ZERO);
        }
        let request = self.request.as_ref().map(|request| request.deadline);
        let timers = [self.next_handshake, self.next_snapshot, self.next_gc];
        let timers = timers.into_iter().flatten().filter(|_| self.is_idle());
        let ready = self.stop_deadline.filter(|_| !self.peer.is_ready());
        timers.chain(request).chain(ready).min()
    }

    fn handle_timeout(&mut self, now: Now, out: &mut Output) -> Flow {
        if !self.peer.is_greeting_sent() {
            // It does not wait for the peer's greeting (rule 25).
            self.peer.send_greeting(&mut out.reply);
            return Flow::Continue;
        }
        if self.stop_deadline.is_some_and(|deadline| deadline <= now.elapsed) && !self.peer.is_ready() {
            return Flow::Close;
        }
        if let Some(request) = &self.request {
            if request.deadline > now.elapsed {
                return Flow::Continue;
            }
            // A late reply would be taken for the next one's, so the next request goes over a new connection (rule 22).
            self.request = None;
            if self.stop_deadline.is_some() {
                self.send_remaining(out);
            }
            self.set_health(false, StreamPosition { sequence: None, offset: self.offset, length: 0, now }, out);
            return Flow::Close;
        }
        if self.is_idle() {
            self.send_next(now, out);
        }
        self.flow()
    }

    fn poll_wake(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.agent.state();
        state.control = Some(context.waker().clone());
        let is_start_due = state.is_start_due && state.is_subscribed;
        let is_wanted = state.is_handshake_due() || is_start_due || !state.commands.is_empty();
        drop(state);
        let is_ready = self.is_idle() && self.stop_deadline.is_none() && is_wanted;
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    }

    fn shutdown(&mut self, now: Now, out: &mut Output) -> Shutdown {
        let deadline = now.elapsed + self.stop_timeout;
        self.stop_deadline = Some(deadline);
        self.is_opened_to_undo = !self.is_introduced;
        self.queue.clear();
        if let Some(request) = &mut self.request {
            request.deadline = request.deadline.min(deadline);
        }
        if self.is_idle() {
            self.send_next(now, out);
        }
        match self.flow() {
            Flow::Continue | Flow::Again => Shutdown::Drain,
            Flow::Close => Shutdown::Close,
        }
    }
}
