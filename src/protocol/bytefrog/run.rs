//! One traced run of one agent: the state that its control connection and its data connections share.
//!
//! Every connection that is served writes all events of the run that are ready, each with the origin of the connection
//! that received it. The stages of an event: its number is checked (repeated? a gap?), it waits for renames of its
//! thread, it waits for names or for its turn, and it is written.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::BytesMut;

use crate::event::{Header, Loss, Reason};
use crate::event::{Origin, Position, Resource, ResourceValue, UnixNanos, semconv as names};
use crate::memory::MemoryLease;
use crate::protocol::{Now, Output};

use super::agent::Agent;
use super::breaks::Breaks;
use super::calls::{OpenCall, OpenCalls};
use super::clock::AgentClock;
use super::command::{Command, Refusal};
use super::configuration::Configuration;
use super::coverage::Coverage;
use super::dictionary::{Dictionary, Id};
use super::normalize::{self, EventWriter, RunEnd};
use super::options::{Calls, Options, Order};
use super::profile::CallProfile;
use super::queue::{Body, Event, Marker, ReorderBuffer, UnresolvedEvents};
use super::sequence::{Gap, Seen, Sequence};
use super::wire::{Call, Version, What};

/// Excludes every class.
const EVERYTHING: &str = ".*";
/// How often an agent retries after one of its threads was interrupted: the default of the original collector.
const QUEUE_RETRIES: i32 = 5;
/// Events that wait because a rename of their thread may arrive.
const MAX_AWAITING_RENAME: usize = 65_536;
/// Gaps that one call of [`Run::pump`] reports one by one; further ones are reported together.
const MAX_GAPS_AT_ONCE: u32 = 64;

/// The state that all connections of a run share.
#[derive(Debug)]
pub(super) struct Run {
    pub id: u8,
    /// Unique among all runs of the listener.
    pub serial: u64,
    pub version: Version,
    pub project: Option<i32>,
    /// The address that data connections must have; `None`: a capture.
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
    /// The number of events that had arrived when the control connection ended unannounced.
    events_with_control: Option<u64>,
    sequence: Sequence,
    breaks: Breaks,
    awaiting_rename: VecDeque<Event>,
    waiting: UnresolvedEvents,
    reorder_buffer: Option<ReorderBuffer>,
    open_calls: Option<OpenCalls>,
    profile: Option<CallProfile>,
    coverage: Option<Coverage>,
    /// Events to be written next, unless another name is missing.
    ready: VecDeque<Event>,
    writer: EventWriter,
    /// Bytes of the messages that were written as events.
    pub written_bytes: u64,
    /// Bytes of the texts of markers that wait.
    marker_bytes: usize,
    memory: MemoryLease,
    /// The memory budget of the process is used up: nothing waits, no name is kept.
    is_short_of_memory: bool,
    /// Numbers in the output never go back, so one connection at a time writes.
    is_in_order: bool,
    /// The connection whose batch has events in order and is not handed over.
    handing_over: Option<u16>,
    events: u64,
    gaps: u64,
    gaps_reported: u32,
    gaps_unreported: Option<(Gap, u64)>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    /// Every connection has ended: nothing waits any longer.
    Closing,
    Ended,
}

/// The values that a run starts with.
pub(super) struct RunStart {
    pub id: u8,
    pub serial: u64,
    pub version: Version,
    pub project: Option<i32>,
    pub address: Option<IpAddr>,
    pub now: Now,
    /// The seed of span ids.
    pub key: u64,
    /// Whether arrival times are those of the agent's messages; not so when a capture is decoded.
    pub is_live: bool,
}

impl Run {
    /// A run whose agent has just sent its hello.
    pub(super) fn new(start: RunStart, options: Arc<Options>, memory: MemoryLease) -> Self {
        let RunStart { id, serial, version, project, address, now, key, is_live } = start;
        let mut attributes = vec![
            (names::BYTEFROG_RUN_ID.as_str().to_owned(), ResourceValue::U64(id.into())),
            (names::BYTEFROG_PROTOCOL_VERSION.as_str().to_owned(), ResourceValue::U64(version.number().into())),
        ];
        if let Some(project) = project {
            attributes.push((names::BYTEFROG_PROJECT_ID.as_str().to_owned(), ResourceValue::I64(project.into())));
        }
        Run {
            id,
            serial,
            version,
            project,
            address,
            agent: Agent::new(&options, now.elapsed),
            resource: Arc::new(Resource::new(attributes)),
            outbox: Vec::new(),
            waker: None,
            dictionary: Dictionary::new(options.dictionary),
            opened: now.elapsed,
            clock: AgentClock::new(is_live),
            sources: Vec::new(),
            members: 0,
            events_with_control: None,
            sequence: Sequence::new(options.sequence_window()),
            breaks: Breaks::default(),
            awaiting_rename: VecDeque::new(),
            waiting: UnresolvedEvents::default(),
            reorder_buffer: options.is_ordered().then(ReorderBuffer::new),
            open_calls: matches!(options.calls, Calls::Spans | Calls::Both)
                .then(|| OpenCalls::new(key, options.max_open_calls)),
            coverage: options.coverage.then(Coverage::default),
            profile: (options.calls == Calls::Profile)
                .then(|| CallProfile::new(options.profile, options.max_open_calls)),
            ready: VecDeque::new(),
            writer: EventWriter::new(version.names_threads()),
            written_bytes: 0,
            marker_bytes: 0,
            memory,
            is_short_of_memory: false,
            is_in_order: options.order == Order::Sequence && is_live,
            handing_over: None,
            events: 0,
            gaps: 0,
            gaps_reported: 0,
            gaps_unreported: None,
            state: State::Open,
            options,
        }
    }

    /// Writes the configuration of the agent. It replaces an earlier one, which is harmless before `start`.
    pub(super) fn configure(&self, is_traced: bool, reply: &mut BytesMut) {
        let (options, version) = (&self.options, self.version.number());
        let everything = [EVERYTHING.to_owned()];
        let exclusions = if is_traced { options.exclusions_for(version) } else { everything.to_vec() };
        let configuration = Configuration {
            buffer_memory_budget: i32::try_from(options.agent_buffer).unwrap_or(i32::MAX),
            heartbeat_interval_millis: i32::try_from(options.heartbeat_interval.as_millis()).unwrap_or(1000),
            data_senders: options.data_connections as i32,
            queue_retry_count: QUEUE_RETRIES,
            run_id: self.id,
            exclusions: &exclusions,
            inclusions: if is_traced { &options.inclusions } else { &[] },
        };
        // Reading the options has checked that it fits. If it does not, the agent is still not refused.
        if configuration.write(version, reply).is_err() {
            let nothing = Configuration { exclusions: &everything, inclusions: &[], ..configuration };
            let _ = nothing.write(version, reply);
        }
    }

    /// The collector stops: messages for the agent, which lets its program continue untraced.
    pub(super) fn drain(&mut self, elapsed: Duration, reply: &mut BytesMut) {
        if self.agent.is_draining() {
            return;
        }
        if self.agent.has_control() && !self.agent.is_started() {
            self.configure(false, reply);
            self.agent.is_untraced = true;
        }
        reply.extend(self.agent.drain(elapsed));
    }

    /// The batch of this connection is handed over.
    pub(super) fn handed_over(&mut self, source: u16) {
        if self.handing_over == Some(source) {
            self.handing_over = None;
        }
    }

    /// Whether this connection has a batch with events in order, which is not handed over.
    pub(super) fn is_writer(&self, source: u16) -> bool {
        self.handing_over == Some(source)
    }

    /// Whether another connection has.
    pub(super) fn has_other_writer(&self, source: u16) -> bool {
        self.handing_over.is_some_and(|other| other != source)
    }

    /// Lets any connection write, although a batch was not handed over for long.
    pub(super) fn ignore_writer(&mut self) {
        self.handing_over = None;
    }

    /// Whether a connection that ends writes events: when it is the last one, or in any order.
    pub(super) fn writes_at_end(&self) -> bool {
        self.is_over() || !self.is_in_order
    }

    /// Counts a connection, which must call [`Run::join`] and [`Run::leave`]. The run lasts until it has left.
    pub(super) fn admit(&mut self) {
        self.members += 1;
    }

    /// The number of events that have arrived.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// Admits a data connection. `false`: the run is over, or has all its data connections.
    pub(super) fn admit_data(&mut self) -> bool {
        let is_admitted = !self.is_over() && self.agent.data_hello();
        if is_admitted {
            self.admit();
        }
        is_admitted
    }

    /// Adds the origin of an admitted connection: its index among the sources of events.
    pub(super) fn join(&mut self, origin: Arc<Origin>) -> u16 {
        self.sources.push(origin);
        u16::try_from(self.sources.len() - 1).unwrap_or(u16::MAX)
    }

    /// A connection has ended. `true`: it was the last.
    pub(super) fn leave(&mut self, source: u16) -> bool {
        self.handed_over(source);
        self.members = self.members.saturating_sub(1);
        if self.members == 0 && self.state == State::Open {
            self.state = State::Closing;
        }
        self.members == 0
    }

    /// Whether its last connection has ended.
    pub(super) fn is_over(&self) -> bool {
        self.state != State::Open
    }

    /// The control connection has ended. `true`: the agent has not announced it.
    pub(super) fn lose_control(&mut self) -> bool {
        self.agent.lost_control();
        let is_lost = !self.agent.has_shut_down();
        self.events_with_control = is_lost.then_some(self.events);
        is_lost
    }

    /// Hands a command to the control connection and wakes it.
    ///
    /// # Errors
    /// The command would harm the traced program, or it cannot be delivered.
    pub(super) fn command(&mut self, command: Command, elapsed: Duration) -> Result<(), Refusal> {
        self.outbox.extend(self.agent.handle_command(command, elapsed)?);
        self.wake_control();
        Ok(())
    }

    fn wake_control(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// A method was called: a command that waits for that is sent.
    fn settle(&mut self) {
        if self.agent.settle() {
            self.outbox.extend(self.agent.take_pending(self.clock.elapsed));
            self.outbox.extend(self.agent.poll_drain(self.clock.elapsed));
            if !self.outbox.is_empty() {
                self.wake_control();
            }
        }
    }

    /// A data connection has arrived: the base of the agent's clock is not later than this (section 1.8).
    pub(super) fn data_arrived(&mut self, now: Now) {
        self.agent.data_arrived();
        self.clock.data_arrived(now, self.agent.started_at());
    }

    /// Sets the time of the bytes that are decoded next, and updates the memory lease.
    pub(super) fn set_now(&mut self, now: Now) {
        self.clock.set_now(now, self.agent.started_at());
        let queued = (self.awaiting_rename.len() + self.waiting.len()) * (size_of::<Event>() + 16);
        let reorder_buffer = self.reorder_buffer.as_ref().map_or(0, ReorderBuffer::memory_bytes);
        let events = queued + reorder_buffer + self.marker_bytes + self.waiting.abandoned_bytes();
        let calls = self.open_calls.as_ref().map_or(0, OpenCalls::memory_bytes);
        let profile = self.profile.as_ref().map_or(0, CallProfile::memory_bytes);
        let coverage = self.coverage.as_ref().map_or(0, Coverage::memory_bytes);
        let bytes = self.dictionary.memory_bytes() + events + calls + profile + coverage + self.sequence.memory_bytes();
        self.is_short_of_memory = !self.memory.resize(bytes as u64);
    }

    /// When [`Run::pump`] must be called though nothing has arrived.
    pub(super) fn deadline(&mut self) -> Option<Duration> {
        let (rename_wait, unresolved_wait) = (self.rename_wait(), self.options.unresolved_wait);
        let may_expire = self.may_expire();
        let head = match &mut self.reorder_buffer {
            // After the wait for renames, the next event in order waits for its names.
            Some(reorder_buffer) => {
                reorder_buffer.front(self.sequence.next()).and_then(|event| match event.arrived + rename_wait {
                    renamed if renamed > self.clock.elapsed => Some(renamed),
                    _ => may_expire.then_some(event.arrived + unresolved_wait),
                })
            }
            None => self.awaiting_rename.front().map(|event| event.arrived + rename_wait),
        };
        let unresolved = self.waiting.deadline().filter(|_| may_expire);
        let gap = self.sequence.checkpoint().filter(|_| may_expire);
        let profile = self.profile.as_ref().and_then(CallProfile::due);
        [head, unresolved, gap, profile].into_iter().flatten().min()
    }

    /// Whether the time for missing numbers and names can end. An agent that shuts down sends all that it has, and slowly when
    /// its machine is busy: its events wait until the run ends.
    fn may_expire(&self) -> bool {
        !self.agent.is_draining()
    }

    /// Takes an event of a thread.
    pub(super) fn call(&mut self, call: Call, arrival: Arrival<'_>, out: &mut Output) {
        self.clock.event_arrived(call.time);
        let Some(number) = self.number(call.sequence, arrival, out) else { return };
        self.accept(arrival.event(Body::Call(call), number), arrival.now, out);
    }

    /// Takes a marker.
    pub(super) fn marker(&mut self, sequence: u32, marker: Marker, arrival: Arrival<'_>, out: &mut Output) {
        self.clock.event_arrived(marker.time);
        let Some(number) = self.number(sequence, arrival, out) else { return };
        self.marker_bytes += marker.memory_bytes();
        self.accept(arrival.event(Body::Marker(Box::new(marker)), number), arrival.now, out);
    }

    /// An id has been mapped: the events that waited for it are ready.
    pub(super) fn mapped(&mut self, id: Id) {
        self.ready.extend(self.waiting.resolve(id));
    }

    /// Whether there is memory for another name.
    pub(super) fn may_keep_names(&self) -> bool {
        !self.is_short_of_memory
    }

    /// Takes a data break at this number. `false`: it is not after the last one and is ignored (rule 19).
    pub(super) fn data_break(&mut self, number: u32) -> bool {
        let mut number = self.sequence.unwrap(number);
        if let Some(last) = self.breaks.last.filter(|last| number <= *last) {
            // Breaks may be ahead of the numbers by more than half of 2^32.
            let ahead = (number as u32).wrapping_sub(last as u32).cast_signed();
            number = last.saturating_add_signed(ahead.into());
        }
        let is_news = self.breaks.add(number);
        if is_news && self.reorder_buffer.as_ref().is_none_or(|reorder_buffer| reorder_buffer.next() >= number) {
            self.clear_stacks(number);
        }
        is_news
    }

    /// The time of a definition, which never moves the base of the clock: nothing confirms it.
    pub(super) fn definition_time(&self, time: u32, now: Now) -> UnixNanos {
        self.clock.resolve(time, now.unix)
    }

    /// Whether events must be written before more is decoded.
    pub(super) fn is_behind(&self) -> bool {
        !self.ready.is_empty()
            || self.held() > self.options.max_waiting
            || self.awaiting_rename.len() > MAX_AWAITING_RENAME
            || self.sequence.has_jumped()
            || self.open_calls.as_ref().is_some_and(OpenCalls::has_unfinished)
            || self.profile.as_ref().is_some_and(CallProfile::is_writing)
    }

    /// Writes all events that are ready or have waited long enough to the batch of this connection, unless another one
    /// has a batch with events in order that is not handed over. `false`: the batch is full; call again.
    pub(super) fn pump(&mut self, source: u16, now: Now, out: &mut Output) -> bool {
        if self.has_other_writer(source) {
            return true;
        }
        let written = self.written_bytes;
        let is_done = self.write_ready(now, out);
        if self.is_in_order && self.written_bytes > written {
            self.handing_over = Some(source);
        }
        is_done
    }

    fn write_ready(&mut self, now: Now, out: &mut Output) -> bool {
        self.sequence.deadline(self.options.reorder_window, now.elapsed);
        loop {
            if out.batch.is_full() {
                return false;
            }
            if !self.step(now, out) {
                break;
            }
        }
        self.report_further_gaps(now, out);
        if self.state == State::Closing {
            self.state = State::Ended;
            self.report_end(now, out);
        }
        true
    }

    /// Does one thing that is ready. `false`: there is none.
    fn step(&mut self, now: Now, out: &mut Output) -> bool {
        if let Some(open_call) = self.open_calls.as_mut().and_then(OpenCalls::take_unfinished) {
            self.write_span(&open_call, None, out);
            return true;
        }
        if self.write_profile(false, now, out) {
            return true;
        }
        if let Some(event) = self.ready.pop_front() {
            self.release(event, now, out);
            return true;
        }
        let is_closing = self.state == State::Closing;
        let is_over = is_closing || self.is_short_of_memory || self.held() > self.options.max_waiting;
        let is_due = self.may_expire() && self.waiting.deadline().is_some_and(|due| due <= now.elapsed);
        let is_over_limit =
            is_over && (self.awaiting_rename.is_empty() || self.waiting.len() > self.options.max_waiting / 2);
        if (is_due || is_over_limit)
            && let Some(events) = self.waiting.give_up()
        {
            self.ready.extend(events);
            return true;
        }
        let is_due = |event: &Event| event.arrived + self.rename_wait() <= now.elapsed;
        let has_too_many = is_over || self.awaiting_rename.len() > MAX_AWAITING_RENAME;
        if self.awaiting_rename.front().is_some_and(|event| has_too_many || is_due(event)) {
            if let Some(event) = self.awaiting_rename.pop_front() {
                self.release(event, now, out);
            }
            return true;
        }
        if self.take_next_in_order(is_over, now) {
            return true;
        }
        let must_give_up = self.sequence.has_jumped() || (is_over && (is_closing || self.reorder_buffer.is_some()));
        let gap = match must_give_up {
            true => self.sequence.give_up(),
            false if self.may_expire() => self.sequence.expire(now.elapsed),
            false => None,
        };
        if let Some(gap) = gap {
            let is_short = !is_closing && is_over;
            self.report_gap(gap, is_short, now, out);
            return true;
        }
        if is_closing && let Some(calls) = &mut self.open_calls {
            calls.end_all();
            return calls.has_unfinished();
        }
        is_closing && self.write_profile(true, now, out)
    }

    /// Writes the next event of a profile whose interval has ended, or is ended now. `false`: there is none.
    fn write_profile(&mut self, is_last: bool, now: Now, out: &mut Output) -> bool {
        let Some(profile) = &mut self.profile else { return false };
        if profile.is_writing() || profile.end_interval(now.elapsed, is_last) {
            self.set_origin(0, out);
            if let Some(profile) = &mut self.profile {
                return profile.write_next(now, &mut self.dictionary, out);
            }
        }
        false
    }

    /// The number of an event. `None`: it has arrived before, which is reported as a loss (rule 18).
    fn number(&mut self, sequence: u32, arrival: Arrival<'_>, out: &mut Output) -> Option<u64> {
        let Arrival { message, source, offset, now } = arrival;
        let number = match self.sequence.see(sequence) {
            Seen::New(number) => number,
            Seen::Late(number) => {
                out.warn("number_after_its_gap");
                number
            }
            Seen::Repeated => {
                self.set_origin(source, out);
                let position = normalize::MessagePosition { offset, length: message.len() as u64, now };
                normalize::repeated(out, sequence, message, position);
                return None;
            }
        };
        if self.events == 0 {
            self.settle();
        }
        self.events += 1;
        out.decoded_bytes += message.len() as u64;
        Some(number)
    }

    fn accept(&mut self, event: Event, now: Now, out: &mut Output) {
        if self.profile.is_some() && self.is_next_of_profile(&event) {
            self.clear_stacks(event.number);
            return self.emit(&event, out);
        }
        if let Some(reorder_buffer) = &mut self.reorder_buffer {
            let late = reorder_buffer.push(event, self.sequence.start());
            self.ready.extend(late.map(|event| Event { is_late: true, ..event }));
        } else if self.rename_wait().is_zero() {
            self.release(event, now, out);
        } else {
            self.awaiting_rename.push_back(event);
        }
    }

    /// Whether an event can be counted in the profile without waiting: it is the next one, and its thread has a name.
    #[inline]
    fn is_next_of_profile(&mut self, event: &Event) -> bool {
        let waits_for_others = self.is_in_order || !self.ready.is_empty() || !self.rename_wait().is_zero();
        let can_pass = !waits_for_others && self.missing(event).is_none();
        let start = self.sequence.start();
        can_pass && self.reorder_buffer.as_mut().is_some_and(|buffer| buffer.pass(event.number, start))
    }

    /// Writes an event, unless it still has to wait for a name. In order, it has waited for names before its turn.
    fn release(&mut self, event: Event, now: Now, out: &mut Output) {
        let wait = self.options.unresolved_wait;
        let may_wait = self.reorder_buffer.is_none() && self.state == State::Open && !self.is_short_of_memory;
        match self.missing(&event) {
            Some(id) if may_wait && !wait.is_zero() && !event.has_waited => {
                self.waiting.push(id, event, now.elapsed + wait);
            }
            _ => self.emit(&event, out),
        }
    }

    /// In order: moves the next event to `ready` once its waits are over. `false`: there is none.
    fn take_next_in_order(&mut self, is_over: bool, now: Now) -> bool {
        let (rename_wait, names_threads) = (self.rename_wait(), self.version.names_threads());
        let may_expire = self.may_expire();
        let Some(reorder_buffer) = &mut self.reorder_buffer else { return false };
        let Some(event) = reorder_buffer.front(self.sequence.next()) else { return false };
        if !is_over && event.arrived + rename_wait > now.elapsed {
            return false;
        }
        let missing = match (&self.profile, &self.coverage) {
            (Some(_), None) => event.missing_thread(&self.dictionary, names_threads),
            _ => event.missing(&self.dictionary, names_threads),
        };
        if let Some(id) = missing.filter(|id| !self.waiting.is_abandoned(*id)) {
            if !is_over && (!may_expire || event.arrived + self.options.unresolved_wait > now.elapsed) {
                return false;
            }
            self.waiting.abandon(id);
        }
        let Some(event) = reorder_buffer.pop() else { return false };
        self.clear_stacks(event.number);
        // The calls that the break has closed are written first.
        self.ready.push_back(event);
        true
    }

    fn missing(&self, event: &Event) -> Option<Id> {
        let names_threads = self.version.names_threads();
        let missing = match (&self.profile, &self.coverage) {
            (Some(_), None) => event.missing_thread(&self.dictionary, names_threads),
            _ => event.missing(&self.dictionary, names_threads),
        };
        missing.filter(|id| !self.waiting.is_abandoned(*id))
    }

    /// Writes an event, makes a span of it, or counts it in the profile.
    fn emit(&mut self, event: &Event, out: &mut Output) {
        if let (Some(coverage), Body::Call(call)) = (&mut self.coverage, &event.body)
            && call.what == What::Entry
            && coverage.enter(call.method, &mut self.dictionary)
        {
            self.set_origin(event.source, out);
            let time = self.clock.time(call.time, event.observed);
            self.writer.covered(out, event, call, time, &mut self.dictionary);
        }
        if let (Some(profile), Body::Call(call)) = (&mut self.profile, &event.body) {
            self.written_bytes += u64::from(event.length);
            let has_memory = !self.is_short_of_memory;
            return profile.add(call, has_memory, event.is_late, self.clock.elapsed, &mut self.dictionary);
        }
        self.set_origin(event.source, out);
        self.written_bytes += u64::from(event.length);
        let time = self.clock.time(event.time(), event.observed);
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
                    match self.is_short_of_memory {
                        false => ids = calls.open(event, call.method, call.thread, call.time),
                        true => out.warn("call_without_memory"),
                    }
                    if ids.is_some() && only_spans {
                        return;
                    }
                }
                What::Exit { .. } | What::ExitAtLine(_) | What::Bubbled { .. } => {
                    if let Some(open_call) = calls.close(call.method, call.thread) {
                        ids = Some(open_call.ids);
                        self.write_span(&open_call, Some((event, &call)), out);
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

    fn write_span(&mut self, open_call: &OpenCall, exit: Option<(&Event, &Call)>, out: &mut Output) {
        self.set_origin(exit.map_or(open_call.source, |(event, _)| event.source), out);
        let start = self.clock.time(open_call.time, open_call.observed);
        self.writer.span(out, open_call, start, exit, &mut self.dictionary);
    }

    /// Events up to this number were written: a break among them ends every open call.
    fn clear_stacks(&mut self, number: u64) {
        if self.breaks.reach(number) {
            self.open_calls.iter_mut().for_each(OpenCalls::end_all);
            self.profile.iter_mut().for_each(CallProfile::end_calls);
        }
    }

    /// Reports missing numbers. `is_short`: they may still arrive, but the events after them cannot wait any longer.
    fn report_gap(&mut self, gap: Gap, is_short: bool, now: Now, out: &mut Output) {
        if self.breaks.explain(gap) {
            return;
        }
        self.gaps += 1;
        self.gaps_reported += 1;
        if self.gaps_reported <= MAX_GAPS_AT_ONCE {
            self.set_origin(0, out);
            let detail = match is_short {
                false => "numbers that never arrived",
                true => "numbers that had not arrived when memory or max_waiting was used up",
            };
            return normalize::gap(out, gap, gap.len(), detail, now);
        }
        let unreported = self.gaps_unreported.get_or_insert((gap, 0));
        unreported.0.last = gap.last;
        unreported.1 += gap.len();
    }

    /// Reports the gaps over the limit in one loss, so that few bytes of a peer do not cause many bytes of output.
    fn report_further_gaps(&mut self, now: Now, out: &mut Output) {
        let further = self.gaps_reported.saturating_sub(MAX_GAPS_AT_ONCE);
        self.gaps_reported = 0;
        if let Some((around, missing)) = self.gaps_unreported.take() {
            self.set_origin(0, out);
            let detail = format!("{further} further gaps between these numbers");
            normalize::gap(out, around, missing, &detail, now);
        }
    }

    fn report_end(&mut self, now: Now, out: &mut Output) {
        self.set_origin(0, out);
        if self.writer.unresolved > 0 {
            let detail = "events were written with raw ids: their names never arrived";
            let events = Some(self.writer.unresolved);
            let loss = Loss { reason: Reason::Unresolved, bytes: 0, events, detail, excerpt: &[] };
            out.loss(Header::observed_at(names::LOSS, now.unix, Position::default()), loss);
        }
        if let Some(coverage) = &self.coverage {
            normalize::coverage(out, coverage.methods(), coverage.classes(), now);
        }
        let end = RunEnd {
            events: self.events,
            gaps: self.gaps,
            duration: now.elapsed.saturating_sub(self.opened),
            outcome: self.agent.outcome(self.gaps > 0, self.events_with_control.is_some_and(|with| with < self.events)),
        };
        normalize::run_ended(out, end, now);
    }

    /// Sets the connection of the run that the next events belong to.
    pub(super) fn set_origin(&self, source: u16, out: &mut Output) {
        if let Some(origin) = self.sources.get(usize::from(source))
            && !Arc::ptr_eq(out.batch.origin(), origin)
        {
            out.batch.set_origin(origin.clone());
        }
    }

    fn held(&self) -> usize {
        self.awaiting_rename.len() + self.waiting.len() + self.reorder_buffer.as_ref().map_or(0, ReorderBuffer::len)
    }

    fn rename_wait(&self) -> Duration {
        if self.version.names_threads() { self.options.rename_wait } else { Duration::ZERO }
    }
}

/// A message that has just arrived: its bytes, the index of its connection, and its offset there.
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

/// Locks a run, also after a session has panicked with the lock: the other connections continue.
pub(super) fn lock(run: &Mutex<Run>) -> MutexGuard<'_, Run> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}
