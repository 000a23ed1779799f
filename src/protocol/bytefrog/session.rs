//! One connection of an agent: a hello that tells which kind it is, then messages until it ends.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BufMut;

use crate::codec::reader::{DecodeError, DecodeErrorKind};
use crate::event::{Reason, Severity, semconv as names};
use crate::explain::Explain;
use crate::protocol::fault::Fault;
use crate::protocol::{Awaiting, End, Flow, Now, Output, Progress, Session, Shutdown};

use super::agent::Mode;
use super::dictionary::{Id, Name};
use super::explain::Explainer;
use super::hq::{Hq, Unwelcome, lock};
use super::normalize::{self, Definition, Place};
use super::queue::Marker;
use super::run::{Arrival, Run};
use super::wire::{self, Control, Data, Opening};

/// While a run lives, its connections look at its clock this often.
const TICK: Duration = Duration::from_secs(1);
/// The run of a data connection that came too early is looked for this often.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The state of one connection.
#[derive(Debug)]
pub struct BytefrogSession {
    hq: Hq,
    address: Option<IpAddr>,
    phase: Phase,
    /// Offset in the stream of the first byte not consumed.
    offset: u64,
    /// Part of a message is here and waits for the rest.
    begun: bool,
    /// When the run has to be looked at though nothing arrives.
    due: Option<Duration>,
    /// Bytes of messages that went out in this call, whenever they came.
    written: u64,
}

#[derive(Debug)]
enum Phase {
    /// Waiting for a hello.
    Opening,
    Control(Member),
    Data(Member),
    /// It will be told so, and closed; what still comes is counted.
    Unwelcome(Stranger),
    /// Nothing can be read any more; what still comes is counted.
    Broken(Fault, Option<Member>),
    /// All is said but the end of the run, where this was its last connection.
    Leaving(Member),
    Finished,
}

/// A data connection that belongs to no run.
#[derive(Debug)]
struct Stranger {
    fault: Fault,
    /// The run that it asks for, as long as that may still come (rule 29).
    wanted: Option<u8>,
    /// When it is told so.
    until: Duration,
    /// When its run is looked for again.
    again: Duration,
}

/// A connection's place in its run; given back when dropped, so that a run ends whatever ends its connections.
#[derive(Debug)]
struct Member {
    hq: Hq,
    run: Arc<Mutex<Run>>,
    source: u16,
    is_control: bool,
    has_left: bool,
}

impl BytefrogSession {
    /// A session at the start of a connection.
    pub(super) fn new(hq: Hq, address: Option<IpAddr>) -> Self {
        BytefrogSession { hq, address, phase: Phase::Opening, offset: 0, begun: false, due: None, written: 0 }
    }
}

impl Session for BytefrogSession {
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> Progress {
        let expanded = out.batch.total_expanded_bytes();
        let mut consumed = 0;
        let flow = loop {
            let step = match &mut self.phase {
                Phase::Opening => self.open(&input[consumed..], now, out),
                Phase::Control(_) | Phase::Data(_) => self.messages(&input[consumed..], now, out),
                Phase::Unwelcome(Stranger { fault, wanted, .. }) => {
                    // Who does not wait for an answer is no agent.
                    if consumed < input.len() {
                        *wanted = None;
                    }
                    fault.count(&input[consumed..]);
                    self.offset += (input.len() - consumed) as u64;
                    consumed = input.len();
                    break Flow::Continue;
                }
                Phase::Broken(fault, _) => {
                    fault.count(&input[consumed..]);
                    self.offset += (input.len() - consumed) as u64;
                    consumed = input.len();
                    break Flow::Close;
                }
                Phase::Leaving(_) | Phase::Finished => break Flow::Close,
            };
            match step {
                Ok(Progress { consumed: more, flow }) => {
                    consumed += more;
                    self.offset += more as u64;
                    if flow != Flow::Continue || more == 0 {
                        break flow;
                    }
                }
                Err((more, error)) => {
                    consumed += more;
                    self.offset += more as u64;
                    self.break_off(error, &input[consumed..], now, out);
                }
            }
        };
        self.begun = flow == Flow::Continue && consumed < input.len();
        let expanded = out.batch.total_expanded_bytes() - expanded;
        let written = std::mem::take(&mut self.written);
        out.charge(self.hq.options().amplification, written.max(consumed as u64), expanded, now.elapsed);
        Progress { consumed, flow }
    }

    fn finish(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) -> Flow {
        if !matches!(self.phase, Phase::Leaving(_) | Phase::Finished) {
            self.tell_end(rest, end, now, out);
        }
        if let Phase::Leaving(member) = &mut self.phase {
            if !member.leave(now, out) {
                return Flow::Again;
            }
            self.phase = Phase::Finished;
        }
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        match &self.phase {
            Phase::Opening => Awaiting::Handshake,
            Phase::Control(_) | Phase::Data(_) if self.begun => Awaiting::Rest { offset: self.offset },
            _ => Awaiting::Message,
        }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Unwelcome(Stranger { until, again, .. }) => Some(*until.min(again)),
            Phase::Control(_) | Phase::Data(_) => self.due,
            _ => None,
        }
    }

    fn handle_timeout(&mut self, now: Now, out: &mut Output) -> Flow {
        match &mut self.phase {
            Phase::Unwelcome(stranger) => {
                if let Some(id) = stranger.wanted
                    && let Ok(run) = self.hq.find(id, self.address, now)
                {
                    let size = wire::DATA_HELLO_BYTES;
                    self.join(run, false, self.offset - size, size, now, out);
                    return Flow::Continue;
                }
                stranger.again = now.elapsed + LOOK_AGAIN;
                if now.elapsed < stranger.until {
                    return Flow::Continue;
                }
                wire::write_error(&stranger.fault.detail, &mut out.reply);
                if let Phase::Unwelcome(stranger) = std::mem::replace(&mut self.phase, Phase::Finished) {
                    self.phase = Phase::Broken(stranger.fault, None);
                }
                Flow::Close
            }
            Phase::Control(member) | Phase::Data(member) => {
                let mut run = lock(&member.run);
                run.at(now);
                let (expanded, written) = (out.batch.total_expanded_bytes(), run.written_bytes);
                if member.is_control {
                    member.attend(&mut run, self.offset, now, out);
                }
                let is_done = run.pump(now, out);
                run.speak_for(member.source, out);
                let (expanded, written) = (out.batch.total_expanded_bytes() - expanded, run.written_bytes - written);
                // Who has caused too much waits before the next message.
                out.charge(self.hq.options().amplification, written, expanded, now.elapsed);
                self.due = next_look(&mut run, now);
                if is_done { Flow::Continue } else { Flow::Again }
            }
            _ => Flow::Continue,
        }
    }

    fn poll_wake(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Phase::Control(member) = &self.phase else { return Poll::Pending };
        let mut run = lock(&member.run);
        if !run.outbox.is_empty() {
            return Poll::Ready(());
        }
        run.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn shutdown(&mut self, now: Now, out: &mut Output) -> Shutdown {
        if let Phase::Control(member) = &self.phase {
            out.reply.put_slice(&lock(&member.run).agent.farewell(now.elapsed));
        }
        Shutdown::Close
    }

    fn explainer(&self) -> Box<dyn Explain> {
        let hq = self.hq.clone();
        Box::new(match &self.phase {
            Phase::Opening => Explainer::new(hq),
            Phase::Control(_) => Explainer::control(hq),
            Phase::Data(member) => Explainer::data(hq, lock(&member.run).version),
            // Its hello has been consumed, and its run may still come (rule 29).
            Phase::Unwelcome(Stranger { wanted: Some(run), .. }) => Explainer::joined(hq, *run),
            _ => Explainer::lost(hq),
        })
    }
}

/// What a step has consumed; or that, and what is wrong behind it.
type Step = Result<Progress, (usize, DecodeError)>;

impl BytefrogSession {
    /// The hello.
    fn open(&mut self, input: &[u8], now: Now, out: &mut Output) -> Step {
        let opening = wire::opening(input).map_err(|error| (0, error))?;
        let Some((opening, size)) = opening else { return Ok(Progress { consumed: 0, flow: Flow::Continue }) };
        match opening {
            Opening::Hello { version, project } => {
                let run = self.hq.open(version, project, self.address, now, &mut out.reply);
                self.join(run, true, self.offset, size as u64, now, out);
            }
            Opening::DataHello { run: id } => match self.hq.find(id, self.address, now) {
                Ok(run) => self.join(run, false, self.offset, size as u64, now, out),
                Err(why) => {
                    let detail = format!("data hello for run {id}: {}", why.as_str());
                    let mut fault = Fault::new(Reason::Unauthorized, self.offset, detail);
                    fault.count(&input[..size]);
                    let wanted = (why == Unwelcome::Unknown && self.hq.is_live()).then_some(id);
                    let until = now.elapsed + wanted.map_or(Duration::ZERO, |_| self.hq.options().refusal_wait);
                    let again = until.min(now.elapsed + LOOK_AGAIN);
                    self.phase = Phase::Unwelcome(Stranger { fault, wanted, until, again });
                }
            },
        }
        Ok(Progress { consumed: size, flow: Flow::Continue })
    }

    /// The connection belongs to a run now; the hello stood at `offset` and had `size` bytes.
    fn join(&mut self, run: Arc<Mutex<Run>>, is_control: bool, offset: u64, size: u64, now: Now, out: &mut Output) {
        let mut open = lock(&run);
        let origin = Arc::new(out.batch.origin().with_version(open.version.as_str()));
        out.batch.set_origin(origin.clone());
        out.batch.set_resource(open.resource.clone());
        let source = open.join(origin);
        open.at(now);
        if is_control {
            normalize::connected(out, Place { offset, length: size, now });
        } else {
            open.data_arrived(now);
            out.reply.put_u8(wire::DATA_HELLO_REPLY);
        }
        out.decoded_bytes += size;
        self.due = next_look(&mut open, now);
        drop(open);
        let member = Member { hq: self.hq.clone(), run, source, is_control, has_left: false };
        self.phase = if is_control { Phase::Control(member) } else { Phase::Data(member) };
    }

    /// Messages of a control or data connection, until the input or the room in the batch is used up.
    fn messages(&mut self, input: &[u8], now: Now, out: &mut Output) -> Step {
        let (Phase::Control(member) | Phase::Data(member)) = &mut self.phase else {
            return Ok(Progress { consumed: 0, flow: Flow::Close });
        };
        let emit_definitions = self.hq.emit_definitions();
        let mut run = lock(&member.run);
        run.at(now);
        let written = run.written_bytes;
        let mut at = 0;
        let result = loop {
            if out.batch.is_full() || run.is_behind() {
                if !run.pump(now, out) {
                    break Ok(Progress { consumed: at, flow: Flow::Again });
                }
                run.speak_for(member.source, out);
            }
            let rest = &input[at..];
            let offset = self.offset + at as u64;
            let size = if member.is_control {
                control(&mut run, rest, offset, now, out)
            } else {
                data(&mut run, member.source, emit_definitions, rest, offset, now, out)
            };
            match size {
                Ok(Some(size)) => at += size,
                Ok(None) => break Ok(Progress { consumed: at, flow: Flow::Continue }),
                Err(error) => break Err((at, error)),
            }
        };
        let is_done = run.pump(now, out);
        if member.is_control {
            member.attend(&mut run, self.offset + at as u64, now, out);
        }
        run.speak_for(member.source, out);
        self.written += run.written_bytes - written;
        self.due = next_look(&mut run, now);
        match result {
            Ok(Progress { consumed, .. }) if !is_done => Ok(Progress { consumed, flow: Flow::Again }),
            result => result,
        }
    }

    /// Nothing behind this can be understood: there is no resynchronisation (rule 14).
    fn break_off(&mut self, error: DecodeError, rest: &[u8], now: Now, out: &mut Output) {
        let reason = match error.kind {
            DecodeErrorKind::Unsupported { .. } => Reason::Unsupported,
            DecodeErrorKind::TooLarge { .. } => Reason::TooLarge,
            DecodeErrorKind::Short { .. } | DecodeErrorKind::Invalid { .. } => Reason::Malformed,
        };
        // Operators mix up ports: say what the first byte looks like.
        let looks_like = match (&self.phase, rest.first()) {
            (Phase::Opening, Some(0x16)) => "; this looks like TLS, which agents do not speak",
            (Phase::Opening, Some(byte)) if byte.is_ascii_uppercase() => "; this looks like HTTP, another protocol",
            _ => "",
        };
        let detail = format!("at {}: {error}{looks_like}", self.offset + error.offset as u64);
        let member = match std::mem::replace(&mut self.phase, Phase::Finished) {
            Phase::Control(member) => {
                // An error would end a program that has not been let run (section 1.4).
                let mut run = lock(&member.run);
                if run.agent.is_started() {
                    wire::write_error(&detail, &mut out.reply);
                } else {
                    out.reply.put_slice(&run.agent.farewell(now.elapsed));
                }
                drop(run);
                Some(member)
            }
            Phase::Data(member) => Some(member),
            _ => {
                wire::write_error(&detail, &mut out.reply);
                None
            }
        };
        self.phase = Phase::Broken(Fault::new(reason, self.offset, detail), member);
    }

    /// The last words about the connection itself.
    fn tell_end(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) {
        let (fault, member) = match std::mem::replace(&mut self.phase, Phase::Finished) {
            Phase::Unwelcome(stranger) => (Some(stranger.fault), None),
            Phase::Broken(fault, member) => (Some(fault), member),
            Phase::Control(member) | Phase::Data(member) => (None, Some(member)),
            Phase::Opening | Phase::Leaving(_) | Phase::Finished => (None, None),
        };
        let fault = match fault {
            Some(fault) => Some(fault),
            None if rest.is_empty() => None,
            None => {
                let reason = end.reason();
                let detail = format!("{} bytes of a message are here, and {}", rest.len(), end.as_str());
                Some(Fault::new(reason, self.offset, detail))
            }
        };
        if let Some(member) = &member {
            lock(&member.run).speak_for(member.source, out);
        }
        if let Some(mut fault) = fault {
            fault.count(rest);
            fault.tell(now, out);
        }
        self.offset += rest.len() as u64;
        if let Some(member) = member {
            let mut run = lock(&member.run);
            run.at(now);
            if member.is_control && run.lose_control() {
                let place = Place { offset: self.offset, length: 0, now };
                let mode = run.agent.mode();
                normalize::agent_is(out, names::BYTEFROG_AGENT_DISCONNECTED, mode, Severity::Warn, place);
            }
            drop(run);
            self.phase = Phase::Leaving(member);
        }
    }
}

impl Member {
    /// What is due on a control connection: commands, wishes that have become harmless, news of the agent's health.
    fn attend(&self, run: &mut Run, offset: u64, now: Now, out: &mut Output) {
        out.reply.put_slice(&std::mem::take(&mut run.outbox));
        out.reply.put_slice(run.agent.take_wish(now.elapsed).as_slice());
        if run.agent.check_health(now.elapsed) {
            let place = Place { offset, length: 0, now };
            run.speak_for(self.source, out);
            let mode = run.agent.mode();
            normalize::agent_is(out, names::BYTEFROG_AGENT_UNHEALTHY, mode, Severity::Warn, place);
        }
    }

    /// The run goes on without this connection, or its id is free.
    fn step_out(&self) {
        let is_last = lock(&self.run).leave();
        if is_last {
            self.hq.close(&self.run);
        }
    }

    /// Leaves the run, and ends it where this was its last connection. `false`: the batch is full; call again.
    fn leave(&mut self, now: Now, out: &mut Output) -> bool {
        if !self.has_left {
            self.has_left = true;
            self.step_out();
        }
        let mut run = lock(&self.run);
        run.at(now);
        run.pump(now, out)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if !self.has_left {
            self.step_out();
        }
    }
}

/// When a connection looks at its run next: when something is due, and every now and then, because another connection
/// may have left something behind.
fn next_look(run: &mut Run, now: Now) -> Option<Duration> {
    let tick = now.elapsed + TICK;
    Some(run.deadline().map_or(tick, |due| due.min(tick)))
}

/// One message of a control connection: its size. `None`: not all of it is here.
fn control(run: &mut Run, input: &[u8], offset: u64, now: Now, out: &mut Output) -> Result<Option<usize>, DecodeError> {
    let Some((message, size)) = wire::control(input)? else { return Ok(None) };
    let place = Place { offset, length: size as u64, now };
    match message {
        Control::Heartbeat { mode, buffers } => {
            let mode = Mode::of(mode);
            let has_recovered = run.agent.heartbeat(mode, now.elapsed);
            normalize::heartbeat(out, mode, buffers, place);
            if has_recovered {
                let place = Place { length: 0, ..place };
                normalize::agent_is(out, names::BYTEFROG_AGENT_RECOVERED, mode, Severity::Info, place);
            }
        }
        Control::DataBreak { sequence } if run.data_break(sequence) => normalize::data_break(out, sequence, place),
        Control::DataBreak { sequence } => {
            let detail = format!("data break for number {sequence}, which is not after the one before; ignored");
            let mut fault = Fault::new(Reason::Malformed, offset, detail);
            fault.count(&input[..size]);
            fault.tell(now, out);
            return Ok(Some(size));
        }
        Control::Class { fate, name } => normalize::class(out, fate, name, place),
        Control::Error { text } => {
            run.agent.failed();
            normalize::error(out, text, place);
        }
    }
    out.decoded_bytes += size as u64;
    Ok(Some(size))
}

/// One message of a data connection: its size. `None`: not all of it is here.
fn data(
    run: &mut Run,
    source: u16,
    emit_definitions: bool,
    input: &[u8],
    offset: u64,
    now: Now,
    out: &mut Output,
) -> Result<Option<usize>, DecodeError> {
    let Some((message, size)) = wire::data(input, run.version)? else { return Ok(None) };
    let arrival = Arrival { message: &input[..size], source, offset, now };
    let (id, definition) = match message {
        Data::Call(call) => {
            run.call(call, arrival, out);
            return Ok(Some(size));
        }
        Data::Marker { time, sequence, key, value } => {
            let (key, value) = (Name::read(key), Name::read(value));
            let is_repaired = key.is_repaired || value.is_repaired;
            let marker = Marker { time, key: key.text, value: value.text, is_repaired };
            run.marker(sequence, marker, arrival, out);
            return Ok(Some(size));
        }
        Data::ThreadName { thread, time, name } => {
            let is_kept = run.may_learn() && run.dictionary.name_thread(thread, time, name);
            let at = run.time_seen(time);
            (is_kept.then_some(Id::Thread(thread)), Definition::Thread { thread, time, at, name })
        }
        Data::Method { method, signature } => {
            let is_kept = run.may_learn() && run.dictionary.map_method(method, signature);
            (is_kept.then_some(Id::Method(method)), Definition::Method { method, signature })
        }
        Data::Exception { exception, name } => {
            let is_kept = run.may_learn() && run.dictionary.map_exception(exception, name);
            (is_kept.then_some(Id::Exception(exception)), Definition::Exception { exception, name })
        }
        Data::SourceLocation { location, method, lines, characters } => {
            let is_kept = run.may_learn() && run.dictionary.map_location(location, lines);
            let definition = Definition::SourceLocation { location, method, lines, characters };
            (is_kept.then_some(Id::SourceLocation(location)), definition)
        }
        Data::SourceLocationCount { method, count } => (None, Definition::SourceLocationCount { method, count }),
    };
    match id {
        Some(id) => run.mapped(id),
        None if matches!(definition, Definition::SourceLocationCount { .. }) => {}
        None => out.warn("dictionary_full"),
    }
    if emit_definitions {
        run.speak_for(source, out);
        let place = Place { offset, length: size as u64, now };
        normalize::definition(out, definition, place);
    }
    out.decoded_bytes += size as u64;
    Ok(Some(size))
}
