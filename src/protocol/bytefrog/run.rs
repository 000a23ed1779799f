//! One traced run of one agent: the state that its control connection and its data connections share.
//!
//! Every connection that is served writes all events of the run that are ready, each with the origin of the connection
//! that received it. The stages of an event: its number is checked (repeated? a gap?), it waits for renames of its
//! thread, it waits for names or for its turn, and it is written.

mod stages;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::BytesMut;

use tributary_event::{Origin, Resource, ResourceValue, UnixNanos, semconv as names};
use tributary_memory::MemoryLease;
use tributary_protocol::{Now, Output};

use super::agent::RunAgent;
use super::agent_log::AgentLog;
use super::breaks::Breaks;
use super::calls::OpenCalls;
use super::clock::AgentClock;
use super::command::{BytefrogCommand, BytefrogCommandError};
use super::configuration::Configuration;
use super::coverage::Coverage;
use super::dictionary::{Dictionary, Id};
use super::normalize::{CallPosition, EventWriter};
use super::options::{CallOutput, Options, Order};
use super::profile::CallProfile;
use super::queue::{Body, Event, Marker, ReorderBuffer, UnresolvedEvents};
use super::sequence::{Gap, Sequence};
use super::wire::{Call, ProtocolVersion};

/// The id of every agent that gets no id of its own.
pub(super) const UNTRACED_ID: u8 = 127;
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
    pub version: ProtocolVersion,
    pub project: Option<i32>,
    /// The address that data connections must have; `None`: a capture.
    pub address: Option<IpAddr>,
    pub agent: RunAgent,
    pub resource: Arc<Resource>,
    /// Commands for the agent that its control connection has not sent yet, and how to wake it.
    pub outbox: Vec<u8>,
    pub waker: Option<Waker>,
    pub dictionary: Dictionary,
    options: Arc<Options>,
    opened: Duration,
    /// `None`: a capture.
    log: Option<Arc<AgentLog>>,
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
    /// There is a profile or coverage.
    has_sums: bool,
    /// A call whose names are known waits for nothing, and nothing but its event is made of it.
    writes_at_once: bool,
    /// Events to be written next, unless another name is missing.
    ready: VecDeque<Event>,
    writer: EventWriter,
    /// What the peer is charged for.
    pub charges: Charges,
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
    /// Numbers that have arrived after their gap was reported, which is not reported yet: between which, and how many.
    found: Option<(Gap, u64)>,
    state: RunState,
}

/// Sums of bytes that the peer is charged for, or is not, since the run began.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Charges {
    /// Of the messages that were written as events.
    pub written: u64,
    /// Of the messages that were counted in the profile: they earn its samples.
    pub counted: u64,
    /// Of the samples of the profile, in the output, which were paid when their interval ended.
    pub paid: u64,
}

impl Charges {
    /// What has been added since.
    pub(super) fn since(self, before: Charges) -> Charges {
        Charges {
            written: self.written - before.written,
            counted: self.counted - before.counted,
            paid: self.paid - before.paid,
        }
    }

    /// Adds other sums.
    pub(super) fn add(&mut self, more: Charges) {
        self.written += more.written;
        self.counted += more.counted;
        self.paid += more.paid;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RunState {
    Open,
    /// Every connection has ended: nothing waits any longer.
    Closing,
    Ended,
}

/// The values that a run starts with.
pub(super) struct RunStart {
    pub id: u8,
    pub serial: u64,
    pub version: ProtocolVersion,
    pub project: Option<i32>,
    pub address: Option<IpAddr>,
    pub now: Now,
    /// The seed of span ids.
    pub key: u64,
    /// Whether arrival times are those of the agent's messages; not so when a capture is decoded.
    pub is_live: bool,
    /// Where its start and its end are logged; `None`: nowhere.
    pub log: Option<Arc<AgentLog>>,
}

impl Run {
    /// A run whose agent has just sent its hello.
    pub(super) fn new(start: RunStart, options: Arc<Options>, memory: MemoryLease) -> Self {
        let RunStart { id, serial, version, project, address, now, key, is_live, log } = start;
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
            agent: RunAgent::new(&options, version, now.elapsed),
            resource: Arc::new(Resource::new(attributes)),
            outbox: Vec::new(),
            waker: None,
            dictionary: Dictionary::new(options.dictionary),
            opened: now.elapsed,
            log,
            clock: AgentClock::new(is_live),
            sources: Vec::new(),
            members: 0,
            events_with_control: None,
            sequence: Sequence::new(options.sequence_window()),
            breaks: Breaks::default(),
            awaiting_rename: VecDeque::new(),
            waiting: UnresolvedEvents::default(),
            reorder_buffer: options.is_ordered().then(ReorderBuffer::new),
            open_calls: matches!(options.calls, CallOutput::Spans | CallOutput::Both)
                .then(|| OpenCalls::new(key, options.max_open_calls)),
            coverage: options.coverage.then(Coverage::default),
            has_sums: options.coverage || options.calls == CallOutput::Profile,
            writes_at_once: options.calls == CallOutput::Events
                && !options.coverage
                && !options.is_ordered()
                && (options.rename_wait.is_zero() || !version.names_threads()),
            profile: (options.calls == CallOutput::Profile)
                .then(|| CallProfile::new(options.profile, options.max_open_calls)),
            ready: VecDeque::new(),
            writer: EventWriter::new(version.names_threads()),
            charges: Charges::default(),
            marker_bytes: 0,
            memory,
            is_short_of_memory: false,
            is_in_order: options.order == Order::Sequence && is_live,
            handing_over: None,
            events: 0,
            gaps: 0,
            gaps_reported: 0,
            gaps_unreported: None,
            found: None,
            state: RunState::Open,
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

    /// The name of the listener that has received its hello.
    pub(super) fn listener(&self) -> &str {
        self.sources.first().map_or("", |origin| &*origin.listener)
    }

    /// Its agent has sent its hello.
    pub(super) fn log_connected(&self) {
        if let Some(log) = &self.log {
            log.connected(self);
        }
    }

    /// A connection has ended. `true`: it was the last.
    pub(super) fn leave(&mut self, source: u16) -> bool {
        self.handed_over(source);
        self.members = self.members.saturating_sub(1);
        if self.members == 0 && self.state == RunState::Open {
            self.state = RunState::Closing;
        }
        self.members == 0
    }

    /// Whether its last connection has ended.
    pub(super) fn is_over(&self) -> bool {
        self.state != RunState::Open
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
    pub(super) fn command(&mut self, command: BytefrogCommand, elapsed: Duration) -> Result<(), BytefrogCommandError> {
        self.outbox.extend(self.agent.handle_command(command, elapsed)?);
        self.wake_control();
        Ok(())
    }

    fn wake_control(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// A method was called: a command that waits for that is sent. Without a run id of its own, the agent may not have sent
    /// this: data connections of agents at one address count for any of them.
    fn settle(&mut self) {
        if self.id != UNTRACED_ID && self.agent.settle() {
            self.outbox.extend(self.agent.take_pending(self.clock.elapsed));
            self.outbox.extend(self.agent.poll_drain(self.clock.elapsed));
            if !self.outbox.is_empty() {
                self.wake_control();
            }
        }
    }

    /// A data connection has arrived: the base of the agent's clock is not later than this (section 1.8).
    pub(super) fn data_arrived(&mut self, now: Now) {
        self.agent.data_arrived(now.elapsed);
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
        let gap = self.sequence.checkpoint().filter(|_| may_expire && self.waits_for_numbers());
        let profile = self.profile.as_ref().and_then(CallProfile::due);
        [head, unresolved, gap, profile].into_iter().flatten().min()
    }

    /// Whether the time for missing numbers and names can end. An agent that shuts down sends all that it has, and slowly when
    /// its machine is busy: its events wait until the run ends.
    fn may_expire(&self) -> bool {
        !self.agent.is_draining()
    }

    /// Whether missing numbers are given up after a time: events wait for them, or others are so far ahead that numbers could not be
    /// distinguished when they wrap. Otherwise they are missing when the run ends.
    fn waits_for_numbers(&self) -> bool {
        self.reorder_buffer.is_some() || self.sequence.has_far()
    }

    /// Takes an event of a thread.
    pub(super) fn call(&mut self, call: Call, arrival: Arrival<'_>, out: &mut Output) {
        self.clock.event_arrived(call.time);
        let Some(number) = self.number(call.sequence, arrival, out) else { return };
        if !self.writes_at_once || !self.write_plain(&call, arrival.source, arrival.place(number), out) {
            self.accept(arrival.event(Body::Call(call), number), arrival.now, out);
        }
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
        let is_ours = self.agent.take_data_break();
        let is_news = self.breaks.add(number, !is_ours);
        if is_ours && is_news {
            self.sequence.expect_before(number);
        }
        if is_news && self.reorder_buffer.as_ref().is_none_or(|reorder_buffer| reorder_buffer.next() >= number) {
            self.clear_stacks(number);
        }
        is_news
    }

    /// Whether numbers are known to be missing, and none of them has been reported.
    pub(super) fn misses_numbers(&self) -> bool {
        self.sequence.has_gap()
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
    fn place(self, number: u64) -> CallPosition {
        CallPosition { number, offset: self.offset, length: self.message.len() as u32, observed: self.now.unix }
    }

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
