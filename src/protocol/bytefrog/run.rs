//! One traced run of one agent: what its control connection and its data connections share.
//!
//! Whoever of them is at hand writes what has become ready, under the origin of the connection that brought it. An
//! event goes through: its number (come before? a gap?), a wait for renames, a wait for names or for its turn, and out.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::event::{Header, Loss, Reason};
use crate::event::{Origin, Position, Resource, ResourceValue, UnixNanos, semconv as names};
use crate::memory::MemoryLease;
use crate::protocol::{Now, Output};

use super::agent::{Agent, Command, Refusal};
use super::breaks::Breaks;
use super::calls::{Frame, OpenCalls};
use super::clock::AgentClock;
use super::dictionary::{Dictionary, Id};
use super::normalize::{self, RunEnd, Writer};
use super::options::{Calls, Options};
use super::queue::{Body, Event, Marker, Turns, Waiting};
use super::sequence::{Hole, Seen, Sequence};
use super::wire::{Call, Version, What};

/// Gaps that are told one by one each time that some are given up; the rest is told together.
const MAX_GAPS_AT_ONCE: u32 = 64;

/// What all connections of a run share.
#[derive(Debug)]
pub(super) struct Run {
    pub id: u8,
    pub version: Version,
    pub project: Option<i32>,
    /// Whom data connections must come from; `None`: anybody.
    pub address: Option<IpAddr>,
    pub agent: Agent,
    pub resource: Arc<Resource>,
    /// Commands for the agent that its control connection has not sent yet, and how to wake it.
    pub outbox: Vec<u8>,
    pub waker: Option<Waker>,
    pub dictionary: Dictionary,
    options: Arc<Options>,
    opened: Duration,
    clock: AgentClock,
    sources: Vec<Arc<Origin>>,
    /// Connections that have not ended.
    members: usize,
    /// So many events had come when the control connection ended unannounced.
    events_with_control: Option<u64>,
    sequence: Sequence,
    breaks: Breaks,
    settling: VecDeque<Event>,
    waiting: Waiting,
    turns: Option<Turns>,
    open_calls: Option<OpenCalls>,
    /// Events whose turn it is, or for whom a name has come.
    ready: VecDeque<Event>,
    writer: Writer,
    /// Bytes of the messages that have gone out as events.
    pub written_bytes: u64,
    /// Bytes of the texts of markers that have not gone out.
    marker_bytes: usize,
    memory: MemoryLease,
    /// The memory of the process is used up: nothing waits, no name is kept.
    is_short_of_memory: bool,
    events: u64,
    gaps: u64,
    gaps_told: u32,
    gaps_untold: Option<(Hole, u64)>,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Open,
    /// Every connection has ended: nothing is waited for any more.
    Closing,
    Ended,
}

/// What a run begins with.
pub(super) struct Opening {
    pub id: u8,
    pub version: Version,
    pub project: Option<i32>,
    pub address: Option<IpAddr>,
    pub now: Now,
    /// What ids of spans are made of.
    pub key: u64,
    /// Whether arrival times are those of the agent's messages; not so when a capture is read.
    pub is_live: bool,
}

impl Run {
    /// A run whose agent has just said hello.
    pub(super) fn new(opening: Opening, options: Arc<Options>, memory: MemoryLease) -> Self {
        let Opening { id, version, project, address, now, key, is_live } = opening;
        let max_ahead = options.max_waiting as u64;
        let mut attributes = vec![
            (names::BYTEFROG_RUN_ID.as_str().to_owned(), ResourceValue::U64(id.into())),
            (names::BYTEFROG_PROTOCOL_VERSION.as_str().to_owned(), ResourceValue::U64(version.number().into())),
        ];
        if let Some(project) = project {
            attributes.push((names::BYTEFROG_PROJECT_ID.as_str().to_owned(), ResourceValue::I64(project.into())));
        }
        Run {
            id,
            version,
            project,
            address,
            agent: Agent::new(options.data_connections, options.heartbeat_interval, now.elapsed),
            resource: Arc::new(Resource::new(attributes)),
            outbox: Vec::new(),
            waker: None,
            dictionary: Dictionary::new(options.dictionary),
            opened: now.elapsed,
            clock: AgentClock::new(is_live),
            sources: Vec::new(),
            members: 0,
            events_with_control: None,
            sequence: Sequence::new(max_ahead),
            breaks: Breaks::default(),
            settling: VecDeque::new(),
            waiting: Waiting::default(),
            turns: options.is_ordered().then(|| Turns::new(max_ahead)),
            open_calls: (options.calls != Calls::Events).then(|| OpenCalls::new(key, options.max_open_calls)),
            ready: VecDeque::new(),
            writer: Writer::new(version.names_threads()),
            written_bytes: 0,
            marker_bytes: 0,
            memory,
            is_short_of_memory: false,
            events: 0,
            gaps: 0,
            gaps_told: 0,
            gaps_untold: None,
            phase: Phase::Open,
            options,
        }
    }

    /// Makes room for a connection, which has to [`Run::join`] and [`Run::leave`]. Until it has left, the run goes on.
    pub(super) fn admit(&mut self) {
        self.members += 1;
    }

    /// A connection that was admitted joins: its number among the run's.
    pub(super) fn join(&mut self, origin: Arc<Origin>) -> u16 {
        self.sources.push(origin);
        u16::try_from(self.sources.len() - 1).unwrap_or(u16::MAX)
    }

    /// A connection has ended; `true`: it was the last.
    pub(super) fn leave(&mut self) -> bool {
        self.members = self.members.saturating_sub(1);
        if self.members == 0 && self.phase == Phase::Open {
            self.phase = Phase::Closing;
        }
        self.members == 0
    }

    /// Whether its last connection has ended.
    pub(super) fn is_over(&self) -> bool {
        self.phase != Phase::Open
    }

    /// The control connection has ended. `true`: the agent had not announced it.
    pub(super) fn lose_control(&mut self) -> bool {
        self.agent.lost_control();
        let is_lost = !self.agent.has_shut_down();
        self.events_with_control = is_lost.then_some(self.events);
        is_lost
    }

    /// Sends a command as soon as the control connection wakes.
    ///
    /// # Errors
    /// It would harm the traced program, or nobody would hear it.
    pub(super) fn command(&mut self, command: Command, elapsed: Duration) -> Result<(), Refusal> {
        self.outbox.push(self.agent.obey(command, elapsed)?);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        Ok(())
    }

    /// The base of the agent's clock is not later than this: a data connection has opened (section 1.8).
    pub(super) fn data_arrived(&mut self, now: Now) {
        self.clock.see_base(now);
    }

    /// Bytes of the run are about to be decoded.
    pub(super) fn at(&mut self, now: Now) {
        self.clock.now(now);
        let queued = (self.settling.len() + self.waiting.len()) * (size_of::<Event>() + 16);
        let turns = self.turns.as_ref().map_or(0, Turns::memory_bytes);
        let events = queued + turns + self.marker_bytes + self.waiting.hopeless_bytes();
        let calls = self.open_calls.as_ref().map_or(0, OpenCalls::memory_bytes);
        let bytes = self.dictionary.memory_bytes() + events + calls + self.sequence.memory_bytes();
        self.is_short_of_memory = !self.memory.resize(bytes as u64);
    }

    /// When it will be time for [`Run::pump`] though nothing has arrived.
    pub(super) fn deadline(&mut self) -> Option<Duration> {
        let (rename_wait, unresolved_wait) = (self.rename_wait(), self.options.unresolved_wait);
        let head = match &mut self.turns {
            // Past its first wait, the event whose turn it is waits for its names.
            Some(turns) => turns.front(self.sequence.next()).map(|event| match event.arrived + rename_wait {
                renamed if renamed > self.clock.elapsed => renamed,
                _ => event.arrived + unresolved_wait,
            }),
            None => self.settling.front().map(|event| event.arrived + rename_wait),
        };
        [head, self.waiting.deadline(), self.sequence.checkpoint()].into_iter().flatten().min()
    }

    /// An event of a thread.
    pub(super) fn call(&mut self, call: Call, arrival: Arrival<'_>, out: &mut Output) {
        self.clock.see(call.time);
        let Some(number) = self.number(call.sequence, arrival, out) else { return };
        self.accept(arrival.event(Body::Call(call), number), arrival.now, out);
    }

    /// A marker.
    pub(super) fn marker(&mut self, sequence: u32, marker: Marker, arrival: Arrival<'_>, out: &mut Output) {
        self.clock.see(marker.time);
        let Some(number) = self.number(sequence, arrival, out) else { return };
        self.marker_bytes += marker.memory_bytes();
        self.accept(arrival.event(Body::Marker(Box::new(marker)), number), arrival.now, out);
    }

    /// An id has been mapped: who waited for it goes on.
    pub(super) fn mapped(&mut self, id: Id) {
        self.ready.extend(self.waiting.resolve(id));
    }

    /// Whether another name may be kept.
    pub(super) fn may_learn(&self) -> bool {
        !self.is_short_of_memory
    }

    /// A data break at this number. `false`: it goes back and is ignored (rule 19).
    pub(super) fn data_break(&mut self, number: u32) -> bool {
        let mut number = self.sequence.unwrap(number);
        if let Some(last) = self.breaks.last.filter(|last| number <= *last) {
            // Breaks may run ahead of the numbers by more than half of a round.
            let ahead = (number as u32).wrapping_sub(last as u32).cast_signed();
            number = last.saturating_add_signed(ahead.into());
        }
        let is_news = self.breaks.add(number);
        if is_news && self.turns.as_ref().is_none_or(|turns| turns.next() >= number) {
            self.clear_stacks(number);
        }
        is_news
    }

    /// When this time of the agent's clock was, which has just been read.
    pub(super) fn time_seen(&mut self, time: u32) -> UnixNanos {
        self.clock.see(time);
        self.clock.time(time)
    }

    /// Whether something is to be written before more is decoded.
    pub(super) fn is_behind(&self) -> bool {
        !self.ready.is_empty()
            || self.held() > self.options.max_waiting
            || self.sequence.has_jumped()
            || self.open_calls.as_ref().is_some_and(OpenCalls::has_abandoned)
    }

    /// Writes what is ready or has waited long enough. `false`: the batch is full; call again.
    pub(super) fn pump(&mut self, now: Now, out: &mut Output) -> bool {
        self.sequence.deadline(self.options.reorder_window, now.elapsed);
        loop {
            if out.batch.is_full() {
                return false;
            }
            if !self.step(now, out) {
                break;
            }
        }
        self.tell_further_gaps(now, out);
        if self.phase == Phase::Closing {
            self.phase = Phase::Ended;
            self.tell_end(now, out);
        }
        true
    }

    /// One thing of what is ready. `false`: nothing is.
    fn step(&mut self, now: Now, out: &mut Output) -> bool {
        if let Some(frame) = self.open_calls.as_mut().and_then(OpenCalls::take_abandoned) {
            self.tell_span(&frame, None, out);
            return true;
        }
        if let Some(event) = self.ready.pop_front() {
            self.release(event, now, out);
            return true;
        }
        let is_closing = self.phase == Phase::Closing;
        let is_over = is_closing || self.is_short_of_memory || self.held() > self.options.max_waiting;
        let is_due = self.waiting.deadline().is_some_and(|due| due <= now.elapsed);
        let is_crowded = is_over && (self.settling.is_empty() || self.waiting.len() > self.options.max_waiting / 2);
        if (is_due || is_crowded)
            && let Some(events) = self.waiting.give_up()
        {
            self.ready.extend(events);
            return true;
        }
        if self.settling.front().is_some_and(|event| is_over || event.arrived + self.rename_wait() <= now.elapsed) {
            if let Some(event) = self.settling.pop_front() {
                self.release(event, now, out);
            }
            return true;
        }
        if self.take_turn(is_over, now) {
            return true;
        }
        let is_jammed = self.sequence.has_jumped() || (is_over && (is_closing || self.turns.is_some()));
        let hole = if is_jammed { self.sequence.give_up() } else { self.sequence.expire(now.elapsed) };
        if let Some(hole) = hole {
            self.tell_gap(hole, now, out);
            return true;
        }
        if is_closing && let Some(calls) = &mut self.open_calls {
            calls.abandon_all();
            return calls.has_abandoned();
        }
        false
    }

    /// The number of an event; `None`: it has come before, and that is told (rule 18).
    fn number(&mut self, sequence: u32, arrival: Arrival<'_>, out: &mut Output) -> Option<u64> {
        let Arrival { message, source, offset, now } = arrival;
        let number = match self.sequence.see(sequence) {
            Seen::New(number) => number,
            Seen::Late(number) => {
                out.warn("number_after_its_gap");
                number
            }
            Seen::Repeated => {
                self.speak_for(source, out);
                let place = normalize::Place { offset, length: message.len() as u64, now };
                normalize::repeated(out, sequence, message, place);
                return None;
            }
        };
        self.events += 1;
        out.decoded_bytes += message.len() as u64;
        Some(number)
    }

    fn accept(&mut self, event: Event, now: Now, out: &mut Output) {
        if let Some(turns) = &mut self.turns {
            let late = turns.push(event, self.sequence.start());
            self.ready.extend(late.map(|event| Event { is_late: true, ..event }));
        } else if self.rename_wait().is_zero() {
            self.release(event, now, out);
        } else {
            self.settling.push_back(event);
        }
    }

    /// An event goes out, unless it has still to wait for a name: in order, it has done so before its turn.
    fn release(&mut self, event: Event, now: Now, out: &mut Output) {
        let wait = self.options.unresolved_wait;
        let may_wait = self.turns.is_none() && self.phase == Phase::Open && !self.is_short_of_memory;
        match self.missing(&event) {
            Some(id) if may_wait && !wait.is_zero() && !event.has_waited => {
                self.waiting.push(id, event, now.elapsed + wait);
            }
            _ => self.emit(&event, out),
        }
    }

    /// In order: the event whose turn it is, once its waits are over.
    fn take_turn(&mut self, is_over: bool, now: Now) -> bool {
        let (rename_wait, names_threads) = (self.rename_wait(), self.version.names_threads());
        let Some(turns) = &mut self.turns else { return false };
        let Some(event) = turns.front(self.sequence.next()) else { return false };
        if !is_over && event.arrived + rename_wait > now.elapsed {
            return false;
        }
        if let Some(id) = event.missing(&self.dictionary, names_threads).filter(|id| !self.waiting.is_hopeless(*id)) {
            if !is_over && event.arrived + self.options.unresolved_wait > now.elapsed {
                return false;
            }
            self.waiting.despair(id);
        }
        let Some(event) = turns.pop() else { return false };
        self.clear_stacks(event.number);
        // What the break has closed goes out first.
        self.ready.push_back(event);
        true
    }

    fn missing(&self, event: &Event) -> Option<Id> {
        event.missing(&self.dictionary, self.version.names_threads()).filter(|id| !self.waiting.is_hopeless(*id))
    }

    /// Writes an event, or makes a span of it.
    fn emit(&mut self, event: &Event, out: &mut Output) {
        self.speak_for(event.source, out);
        self.written_bytes += u64::from(event.length);
        let time = self.clock.time(event.time());
        let call = match &event.body {
            Body::Call(call) => *call,
            Body::Marker(marker) => {
                self.marker_bytes -= marker.memory_bytes();
                return self.writer.marker(out, event, marker, time);
            }
        };
        let mut ids = None;
        if let Some(calls) = self.open_calls.as_mut().filter(|_| !event.is_late) {
            let only_spans = self.options.calls == Calls::Spans;
            match call.what {
                What::Entry => {
                    if !self.is_short_of_memory {
                        ids = calls.open(event, call.method, call.thread, call.time);
                    }
                    if ids.is_some() && only_spans {
                        return;
                    }
                }
                What::Exit { .. } | What::ExitAtLine(_) | What::Bubbled { .. } => {
                    if let Some(frame) = calls.close(call.method, call.thread) {
                        ids = Some(frame.ids);
                        self.tell_span(&frame, Some((event, &call)), out);
                        if only_spans {
                            return;
                        }
                    }
                }
                What::Thrown { .. } => ids = calls.current(call.thread),
                What::Visit { .. } => ids = calls.closed(call.thread),
            }
        }
        self.writer.call(out, event, &call, time, ids, &mut self.dictionary);
    }

    fn tell_span(&mut self, frame: &Frame, exit: Option<(&Event, &Call)>, out: &mut Output) {
        self.speak_for(exit.map_or(frame.source, |(event, _)| event.source), out);
        let start = self.clock.time(frame.time);
        self.writer.span(out, frame, start, exit, &mut self.dictionary);
    }

    /// Delivery has reached this number: a break on the way ends every open call.
    fn clear_stacks(&mut self, number: u64) {
        if self.breaks.reach(number)
            && let Some(calls) = &mut self.open_calls
        {
            calls.abandon_all();
        }
    }

    fn tell_gap(&mut self, hole: Hole, now: Now, out: &mut Output) {
        if self.breaks.explain(hole) {
            return;
        }
        self.gaps += 1;
        self.gaps_told += 1;
        if self.gaps_told <= MAX_GAPS_AT_ONCE {
            self.speak_for(0, out);
            return normalize::gap(out, hole, hole.len(), "numbers that never came", now);
        }
        let untold = self.gaps_untold.get_or_insert((hole, 0));
        untold.0.last = hole.last;
        untold.1 += hole.len();
    }

    /// Very many gaps at once are told together, so that few bytes of a peer do not make many of ours.
    fn tell_further_gaps(&mut self, now: Now, out: &mut Output) {
        let further = self.gaps_told.saturating_sub(MAX_GAPS_AT_ONCE);
        self.gaps_told = 0;
        if let Some((around, missing)) = self.gaps_untold.take() {
            self.speak_for(0, out);
            let detail = format!("{further} further gaps between these numbers");
            normalize::gap(out, around, missing, &detail, now);
        }
    }

    fn tell_end(&mut self, now: Now, out: &mut Output) {
        self.speak_for(0, out);
        if self.writer.unresolved > 0 {
            let detail = "events went out with raw ids: their names never came";
            let events = Some(self.writer.unresolved);
            let loss = Loss { reason: Reason::Unresolved, bytes: 0, events, detail, excerpt: &[] };
            out.loss(Header::observed_at(names::LOSS, now.unix, Position::default()), loss);
        }
        let end = RunEnd {
            events: self.events,
            gaps: self.gaps,
            duration: now.elapsed.saturating_sub(self.opened),
            outcome: self.agent.outcome(self.gaps > 0, self.events_with_control.is_some_and(|with| with < self.events)),
        };
        normalize::run_ended(out, end, now);
    }

    /// Events come from this connection of the run now.
    pub(super) fn speak_for(&self, source: u16, out: &mut Output) {
        if let Some(origin) = self.sources.get(usize::from(source))
            && !Arc::ptr_eq(out.batch.origin(), origin)
        {
            out.batch.set_origin(origin.clone());
        }
    }

    fn held(&self) -> usize {
        self.settling.len() + self.waiting.len() + self.turns.as_ref().map_or(0, Turns::len)
    }

    fn rename_wait(&self) -> Duration {
        if self.version.names_threads() { self.options.rename_wait } else { Duration::ZERO }
    }
}

/// A message as it has just come: its bytes, the connection that brought it, and its place there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) message: &'a [u8],
    pub(super) source: u16,
    pub(super) offset: u64,
    pub(super) now: Now,
}

impl Arrival<'_> {
    fn event(self, body: Body, number: u64) -> Event {
        let Arrival { message, source, offset, now } = self;
        let (length, observed, arrived) = (message.len() as u32, now.unix, now.elapsed);
        Event { body, number, source, length, offset, observed, arrived, is_late: false, has_waited: false }
    }
}
