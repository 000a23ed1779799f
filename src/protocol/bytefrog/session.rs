//! One connection of an agent: a hello, which shows the kind of the connection, then messages until it ends.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, BytesMut};

use tributary_codec::reader::{DecodeError, DecodeErrorKind};
use tributary_event::{Reason, Severity, semconv as names};
use tributary_explain::Explain;
use tributary_protocol::fault::SessionError;
use tributary_protocol::{Awaiting, End, Flow, Now, Output, ReceiveProgress, Session, Shutdown};

use super::agent_log;
use super::explain::Explainer;
use super::hq::{Hq, Rejection};
use super::messages;
use super::normalize::{self, MessagePosition};
use super::run::{Charges, Run, lock};
use super::wire::{self, Opening};

/// Every connection of an open run checks this often whether events of the run are due.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A connection whose run holds too many events waits this long for another one to hand over its batch …
const WRITER_WAIT: Duration = Duration::from_millis(10);
/// … and this often. After that the order of the output is given up.
const MAX_WRITER_WAITS: u32 = 1000;
/// A data connection that arrived before its run searches for the run this often.
const RUN_RETRY: Duration = Duration::from_millis(20);

/// The state of one connection.
#[derive(Debug)]
pub struct BytefrogSession {
    hq: Hq,
    address: Option<IpAddr>,
    state: SessionState,
    /// Offset in the stream of the first byte not consumed.
    offset: u64,
    /// The start of a message is here, and its rest is not.
    is_in_message: bool,
    /// When events of the run are due though nothing arrives.
    due: Option<Duration>,
    /// What the peer is charged for in this call, of all connections of the run.
    charges: Charges,
    /// How often it has waited, without an event between, for another connection of the run to hand its batch over.
    waits_for_writer: u32,
    /// The collector stops.
    is_stopping: bool,
    /// It ends within seconds.
    is_hurried: bool,
}

#[derive(Debug)]
enum SessionState {
    /// Waiting for a hello.
    Opening,
    Control(Membership),
    Data(Membership),
    /// A data connection without a run. What arrives is counted as lost.
    Unregistered(UnregisteredConnection),
    /// Nothing more can be decoded. What arrives is counted as lost.
    Failed(SessionError, Option<Membership>),
    /// The end of the connection is reported; the end of the run is not, if this was its last connection.
    Leaving(Membership),
    Finished,
}

/// A data connection that belongs to no run.
#[derive(Debug)]
struct UnregisteredConnection {
    fault: SessionError,
    /// The id of its run, as long as that run may still be opened (rule 29).
    wanted: Option<u8>,
    /// When the connection is refused.
    until: Duration,
    /// When the run is searched for next.
    retry_at: Duration,
}

/// The membership of a connection in its run. Dropping it leaves the run, so that a run ends however its connections
/// end.
#[derive(Debug)]
struct Membership {
    hq: Hq,
    run: Arc<Mutex<Run>>,
    source: u16,
    is_control: bool,
    has_left: bool,
}

impl Hq {
    /// A session for a connection from this address; `None`: from a file.
    pub fn session(&self, address: Option<IpAddr>) -> BytefrogSession {
        BytefrogSession::new(self.clone(), address)
    }
}

impl BytefrogSession {
    /// A session at the start of a connection.
    fn new(hq: Hq, address: Option<IpAddr>) -> Self {
        BytefrogSession {
            hq,
            address,
            state: SessionState::Opening,
            offset: 0,
            is_in_message: false,
            due: None,
            charges: Charges::default(),
            waits_for_writer: 0,
            is_stopping: false,
            is_hurried: false,
        }
    }
}

impl Session for BytefrogSession {
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> ReceiveProgress {
        if let SessionState::Control(member) | SessionState::Data(member) = &self.state {
            // The driver has handed over what the last call wrote.
            lock(&member.run).handed_over(member.source);
        }
        let expanded = out.batch.total_expanded_bytes();
        let mut consumed = 0;
        let flow = loop {
            let step = match &mut self.state {
                SessionState::Opening => self.open(&input[consumed..], now, out),
                SessionState::Control(_) | SessionState::Data(_) => self.messages(&input[consumed..], now, out),
                SessionState::Unregistered(UnregisteredConnection { fault, wanted, .. }) => {
                    // A peer that does not wait for the answer is no agent.
                    if consumed < input.len() {
                        *wanted = None;
                    }
                    fault.count(&input[consumed..]);
                    self.offset += (input.len() - consumed) as u64;
                    consumed = input.len();
                    break Flow::Continue;
                }
                SessionState::Failed(fault, _) => {
                    fault.count(&input[consumed..]);
                    self.offset += (input.len() - consumed) as u64;
                    consumed = input.len();
                    break Flow::Close;
                }
                SessionState::Leaving(_) | SessionState::Finished => break Flow::Close,
            };
            match step {
                Ok(ReceiveProgress { consumed: more, flow }) => {
                    consumed += more;
                    self.offset += more as u64;
                    if flow != Flow::Continue || more == 0 {
                        break flow;
                    }
                }
                Err((more, error)) => {
                    consumed += more;
                    self.offset += more as u64;
                    self.fail(error, &input[consumed..], now, out);
                }
            }
        };
        self.is_in_message = flow == Flow::Continue && consumed < input.len();
        let expanded = out.batch.total_expanded_bytes() - expanded;
        let Charges { written, counted, paid } = std::mem::take(&mut self.charges);
        let earned = written.max((consumed as u64).saturating_sub(counted));
        out.charge(self.hq.options().amplification, earned, expanded.saturating_sub(paid), now.elapsed);
        if self.waits_for_writer > 0 {
            out.throttle = Some(out.throttle.unwrap_or_default().max(WRITER_WAIT));
        }
        ReceiveProgress { consumed, flow }
    }

    fn finish(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) -> Flow {
        if !matches!(self.state, SessionState::Leaving(_) | SessionState::Finished) {
            self.report_end(rest, end, now, out);
        }
        if let SessionState::Leaving(member) = &mut self.state {
            if !member.leave(now, out) {
                return Flow::Again;
            }
            self.state = SessionState::Finished;
        }
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        match &self.state {
            SessionState::Opening => Awaiting::Handshake,
            SessionState::Control(_) | SessionState::Data(_) if self.is_in_message => {
                Awaiting::Rest { offset: self.offset }
            }
            _ => Awaiting::Message,
        }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        match &self.state {
            SessionState::Unregistered(UnregisteredConnection { until, retry_at, .. }) => Some(*until.min(retry_at)),
            // In a capture, only what another connection of the run has left may become due before that.
            SessionState::Control(member) | SessionState::Data(member) if !self.hq.is_live() => {
                self.due.into_iter().chain(lock(&member.run).deadline()).min()
            }
            SessionState::Control(_) | SessionState::Data(_) => self.due,
            _ => None,
        }
    }

    fn handle_timeout(&mut self, now: Now, out: &mut Output) -> Flow {
        match &mut self.state {
            SessionState::Unregistered(connection) => {
                if let Some(id) = connection.wanted
                    && let Ok(run) = find_run(&self.hq, id, self.address, now, out)
                {
                    let size = wire::DATA_HELLO_BYTES;
                    self.join(run, false, self.offset - size, size, now, out);
                    return Flow::Continue;
                }
                connection.retry_at = now.elapsed + RUN_RETRY;
                if now.elapsed < connection.until {
                    return Flow::Continue;
                }
                wire::write_error(&connection.fault.detail, &mut out.reply);
                if let SessionState::Unregistered(connection) =
                    std::mem::replace(&mut self.state, SessionState::Finished)
                {
                    self.state = SessionState::Failed(connection.fault, None);
                }
                Flow::Close
            }
            SessionState::Control(member) | SessionState::Data(member) => {
                let mut run = lock(&member.run);
                run.set_now(now);
                run.handed_over(member.source);
                let (expanded, charges) = (out.batch.total_expanded_bytes(), run.charges);
                if member.is_control {
                    member.service_control(&mut run, self.offset, now, out);
                }
                let is_done = run.pump(member.source, now, out);
                run.set_origin(member.source, out);
                let expanded = out.batch.total_expanded_bytes() - expanded;
                let Charges { written, paid, .. } = run.charges.since(charges);
                // A peer without credit waits before its next message.
                out.charge(self.hq.options().amplification, written, expanded.saturating_sub(paid), now.elapsed);
                self.due = next_check(&mut run, member, now);
                if is_done { Flow::Continue } else { Flow::Again }
            }
            _ => Flow::Continue,
        }
    }

    fn poll_wake(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let SessionState::Control(member) = &self.state else { return Poll::Pending };
        let mut run = lock(&member.run);
        if !run.outbox.is_empty() {
            return Poll::Ready(());
        }
        run.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn shutdown(&mut self, now: Now, out: &mut Output) -> Shutdown {
        self.hq.stop();
        self.is_stopping = true;
        match &self.state {
            SessionState::Control(member) => {
                let mut run = lock(&member.run);
                run.handed_over(member.source);
                if !run.agent.has_shut_down() {
                    agent_log::stopping(&run);
                }
                run.drain(now.elapsed, &mut out.reply);
            }
            SessionState::Data(member) => {
                let mut run = lock(&member.run);
                run.handed_over(member.source);
                if !run.agent.has_control() {
                    // It gets no commands.
                    run.drain(now.elapsed, &mut BytesMut::new());
                }
            }
            // The hello of an agent may be under way, and without an answer its program aborts. The transport ends the wait
            // after `handshake_timeout`.
            SessionState::Opening | SessionState::Unregistered(_) => {}
            SessionState::Failed(..) | SessionState::Leaving(_) | SessionState::Finished => return Shutdown::Close,
        }
        Shutdown::Drain
    }

    fn hurry(&mut self, now: Now, out: &mut Output) {
        self.is_hurried = true;
        if let SessionState::Control(member) = &self.state {
            let mut run = lock(&member.run);
            run.handed_over(member.source);
            run.agent.hurry();
            member.service_control(&mut run, self.offset, now, out);
        }
    }

    fn explainer(&self) -> Box<dyn Explain> {
        let hq = self.hq.clone();
        Box::new(match &self.state {
            SessionState::Opening => Explainer::new(hq),
            SessionState::Control(_) => Explainer::control(hq),
            SessionState::Data(member) => Explainer::data(hq, lock(&member.run).version),
            // Its hello was consumed, and its run may still be opened (rule 29).
            SessionState::Unregistered(UnregisteredConnection { wanted: Some(run), .. }) => Explainer::joined(hq, *run),
            _ => Explainer::lost(hq),
        })
    }
}

/// The result of a step; on an error, the bytes consumed before it.
type StepResult = Result<ReceiveProgress, (usize, DecodeError)>;

impl BytefrogSession {
    /// Reads the hello.
    fn open(&mut self, input: &[u8], now: Now, out: &mut Output) -> StepResult {
        let opening = wire::opening(input).map_err(|error| (0, error))?;
        let Some((opening, size)) = opening else { return Ok(ReceiveProgress { consumed: 0, flow: Flow::Continue }) };
        match opening {
            Opening::Hello { version, project } => {
                let listener = out.batch.origin().listener.clone();
                let reply = &mut out.reply;
                let opened = self.hq.open(version, project, self.address, &listener, now, reply);
                if self.is_stopping {
                    let mut run = lock(&opened.run);
                    run.drain(now.elapsed, &mut out.reply);
                    if self.is_hurried {
                        run.agent.hurry();
                    }
                }
                self.join(opened.run, true, self.offset, size as u64, now, out);
                if let Some(why) = opened.untraced {
                    normalize::untraced(out, why, MessagePosition { offset: self.offset, length: size as u64, now });
                }
                if opened.is_taken_over {
                    out.warn("run_id_taken_over");
                }
            }
            Opening::DataHello { run: id } => match find_run(&self.hq, id, self.address, now, out) {
                Ok(run) => self.join(run, false, self.offset, size as u64, now, out),
                Err(why) => {
                    let detail = format!("data hello for run {id}: {}", why.as_str());
                    let mut fault = SessionError::new(Reason::Unauthorized, self.offset, detail);
                    fault.count(&input[..size]);
                    let wanted = (why == Rejection::UnknownRun && self.hq.is_live()).then_some(id);
                    let until = now.elapsed + wanted.map_or(Duration::ZERO, |_| self.hq.options().refusal_wait);
                    let retry_at = until.min(now.elapsed + RUN_RETRY);
                    self.state = SessionState::Unregistered(UnregisteredConnection { fault, wanted, until, retry_at });
                }
            },
        }
        Ok(ReceiveProgress { consumed: size, flow: Flow::Continue })
    }

    /// Makes the connection a member of a run. Its hello had `size` bytes at `offset`.
    fn join(&mut self, run: Arc<Mutex<Run>>, is_control: bool, offset: u64, size: u64, now: Now, out: &mut Output) {
        let mut open = lock(&run);
        let origin = Arc::new(out.batch.origin().with_version(open.version.as_str()));
        out.batch.set_origin(origin.clone());
        out.batch.set_resource(open.resource.clone());
        let source = open.join(origin);
        open.set_now(now);
        if is_control {
            normalize::connected(out, MessagePosition { offset, length: size, now });
            open.log_connected();
        } else {
            open.data_arrived(now);
            out.reply.put_u8(wire::DATA_HELLO_REPLY);
        }
        out.decoded_bytes += size;
        drop(open);
        let member = Membership { hq: self.hq.clone(), run, source, is_control, has_left: false };
        self.due = next_check(&mut lock(&member.run), &member, now);
        self.state = if is_control { SessionState::Control(member) } else { SessionState::Data(member) };
    }

    /// Decodes messages of a control or data connection, until the input ends or the batch is full.
    fn messages(&mut self, input: &[u8], now: Now, out: &mut Output) -> StepResult {
        let (SessionState::Control(member) | SessionState::Data(member)) = &mut self.state else {
            return Ok(ReceiveProgress { consumed: 0, flow: Flow::Close });
        };
        let emit_definitions = self.hq.emit_definitions();
        let shares_expected_data = member.is_control && self.hq.shares_expected_data(&member.run);
        let mut run = lock(&member.run);
        run.set_now(now);
        let charges = run.charges;
        let mut at = 0;
        let mut waits_for_writer = 0;
        let result = loop {
            if out.batch.is_full() || run.is_behind() {
                if run.has_other_writer(member.source) {
                    // The other connection hands over what it has first.
                    waits_for_writer = self.waits_for_writer + 1;
                    if waits_for_writer < MAX_WRITER_WAITS {
                        break Ok(ReceiveProgress { consumed: at, flow: Flow::Again });
                    }
                    run.ignore_writer();
                }
                waits_for_writer = 0;
                if !run.pump(member.source, now, out) {
                    break Ok(ReceiveProgress { consumed: at, flow: Flow::Again });
                }
                run.set_origin(member.source, out);
            }
            let rest = &input[at..];
            let offset = self.offset + at as u64;
            let size = if member.is_control {
                messages::control(&mut run, rest, offset, now, out)
            } else {
                messages::data(&mut run, member.source, emit_definitions, rest, offset, now, out)
            };
            match size {
                Ok(Some(size)) => at += size,
                Ok(None) => break Ok(ReceiveProgress { consumed: at, flow: Flow::Continue }),
                Err(error) => break Err((at, error)),
            }
        };
        let is_done = run.pump(member.source, now, out);
        if shares_expected_data {
            run.agent.data_arrived(now.elapsed);
        }
        if member.is_control {
            member.service_control(&mut run, self.offset + at as u64, now, out);
        }
        run.set_origin(member.source, out);
        self.charges.add(run.charges.since(charges));
        self.waits_for_writer = waits_for_writer;
        self.due = next_check(&mut run, member, now);
        match result {
            Ok(ReceiveProgress { consumed, .. }) if !is_done => Ok(ReceiveProgress { consumed, flow: Flow::Again }),
            result => result,
        }
    }

    /// Ends decoding: nothing behind the error can be decoded (rule 14).
    fn fail(&mut self, error: DecodeError, rest: &[u8], now: Now, out: &mut Output) {
        let reason = match error.kind {
            DecodeErrorKind::Unsupported { .. } => Reason::Unsupported,
            DecodeErrorKind::TooLarge { .. } => Reason::TooLarge,
            DecodeErrorKind::Short { .. } | DecodeErrorKind::Invalid { .. } => Reason::Malformed,
        };
        // Operators mix up ports: report what the first byte looks like.
        let looks_like = match (&self.state, rest.first()) {
            (SessionState::Opening, Some(0x16)) => "; this looks like TLS, which agents do not speak",
            (SessionState::Opening, Some(byte)) if byte.is_ascii_uppercase() => {
                "; this looks like HTTP, another protocol"
            }
            _ => "",
        };
        let detail = format!("at {}: {error}{looks_like}", self.offset + error.offset as u64);
        let member = match std::mem::replace(&mut self.state, SessionState::Finished) {
            SessionState::Control(member) => {
                // An `error` message would end a program that has not been started (section 1.4).
                let mut run = lock(&member.run);
                if run.agent.is_started() {
                    wire::write_error(&detail, &mut out.reply);
                } else {
                    run.drain(now.elapsed, &mut out.reply);
                }
                drop(run);
                Some(member)
            }
            SessionState::Data(member) => Some(member),
            _ => {
                wire::write_error(&detail, &mut out.reply);
                None
            }
        };
        self.state = SessionState::Failed(SessionError::new(reason, self.offset, detail), member);
    }

    /// Reports the end of the connection.
    fn report_end(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) {
        let is_open = matches!(self.state, SessionState::Control(_) | SessionState::Data(_));
        let (fault, member) = match std::mem::replace(&mut self.state, SessionState::Finished) {
            SessionState::Unregistered(connection) => (Some(connection.fault), None),
            SessionState::Failed(fault, member) => (Some(fault), member),
            SessionState::Control(member) | SessionState::Data(member) => (None, Some(member)),
            SessionState::Opening | SessionState::Leaving(_) | SessionState::Finished => (None, None),
        };
        let fault = match fault {
            Some(fault) => Some(fault),
            None if rest.is_empty() => None,
            None => {
                let reason = end.reason();
                let detail = format!("{} bytes of an incomplete message, and {}", rest.len(), end.as_str());
                Some(SessionError::new(reason, self.offset, detail))
            }
        };
        if let Some(member) = &member {
            let mut run = lock(&member.run);
            run.set_origin(member.source, out);
            // The transport gives up connections that have not drained in time.
            if is_open && end == End::Stopped && run.agent.abandon() {
                agent_log::abandoned(&run);
            }
        }
        if let Some(mut fault) = fault {
            fault.count(rest);
            fault.report(now, out);
        }
        self.offset += rest.len() as u64;
        if let Some(member) = member {
            let mut run = lock(&member.run);
            run.set_now(now);
            if member.is_control && run.lose_control() {
                let position = MessagePosition { offset: self.offset, length: 0, now };
                let mode = run.agent.mode();
                normalize::agent_changed(out, names::BYTEFROG_AGENT_DISCONNECTED, mode, Severity::Warn, position);
            }
            drop(run);
            self.state = SessionState::Leaving(member);
        }
    }
}

impl Membership {
    /// Writes what is due on a control connection: commands of operators, commands that waited, changes of health.
    fn service_control(&self, run: &mut Run, offset: u64, now: Now, out: &mut Output) {
        out.reply.put_slice(&std::mem::take(&mut run.outbox));
        out.reply.put_slice(run.agent.take_pending(now.elapsed).as_slice());
        out.reply.put_slice(&run.agent.poll_drain(now.elapsed));
        if run.agent.take_events_left() {
            agent_log::events_left(run);
        }
        if run.agent.check_health(now.elapsed) {
            let position = MessagePosition { offset, length: 0, now };
            run.set_origin(self.source, out);
            let mode = run.agent.mode();
            normalize::agent_changed(out, names::BYTEFROG_AGENT_UNHEALTHY, mode, Severity::Warn, position);
        }
    }

    /// Leaves the run. Its id becomes free if this was its last connection.
    fn leave_run(&self) {
        let is_last = lock(&self.run).leave(self.source);
        if is_last {
            self.hq.close(&self.run);
        }
    }

    /// Leaves the run, and reports its end if this was its last connection. `false`: the batch is full; call again.
    fn leave(&mut self, now: Now, out: &mut Output) -> bool {
        if !self.has_left {
            self.has_left = true;
            self.leave_run();
        }
        let mut run = lock(&self.run);
        run.set_now(now);
        !run.writes_at_end() || run.pump(self.source, now, out)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if !self.has_left {
            self.leave_run();
        }
    }
}

/// The run that a data connection asks for.
fn find_run(hq: &Hq, id: u8, address: Option<IpAddr>, now: Now, out: &Output) -> Result<Arc<Mutex<Run>>, Rejection> {
    hq.find(id, address, &out.batch.origin().listener, now)
}

/// When a connection checks its run next: when something is due, and periodically, because another connection may have
/// ended with events of the run unwritten. In a capture, which may have a time far away, not periodically: when the check would
/// have found that heartbeats are late.
fn next_check(run: &mut Run, member: &Membership, now: Now) -> Option<Duration> {
    let source = member.source;
    if run.is_writer(source) {
        // When the batch is handed over, which is before the next call.
        return Some(now.elapsed);
    }
    if run.has_other_writer(source) {
        // Until that one has handed its batch over, nothing that is due can be written.
        return Some(now.elapsed + WRITER_WAIT);
    }
    let check = match member.hq.is_live() {
        true => Some(now.elapsed + CHECK_INTERVAL),
        false if member.is_control => run.agent.late_at().map(|late| {
            let checks = late.saturating_sub(now.elapsed).as_secs() + 1;
            now.elapsed.saturating_add(Duration::from_secs(checks))
        }),
        false => None,
    };
    run.deadline().into_iter().chain(check).min()
}
