//! The HQ of a listener, as agents call their collector: it answers hellos, assigns data connections to runs, and sends
//! commands to agents.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tracing::warn;

use tributary_codec::mix::mix;
use tributary_memory::MemoryBudget;
use tributary_protocol::Now;

use super::agent_log::AgentLog;
use super::command::{BytefrogCommand, BytefrogCommandError, Mode};
use super::options::{Options, Start};
use super::run::{Run, RunStart, UNTRACED_ID, lock};
use super::run_table::RunTable;
use super::wire::ProtocolVersion;

/// The HQ of one listener. Clones share it: each session has one, and so has everything that sends commands to agents.
#[derive(Clone, Debug)]
pub struct Hq(Arc<HqState>);

#[derive(Debug)]
struct HqState {
    options: Arc<Options>,
    emit_definitions: bool,
    memory: Arc<MemoryBudget>,
    /// Set while captures are decoded: there is no agent, and no arrival time.
    offline: Option<Offline>,
    /// The collector stops: new agents are configured to trace nothing.
    is_stopping: AtomicBool,
    log: Arc<AgentLog>,
    /// Locked before a run, never after it. Shared with the listener that takes over the socket.
    runs: Arc<Mutex<RunTable>>,
}

/// How captures are decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offline {
    /// The version of data connections whose control connection is not among the captures.
    version: Option<ProtocolVersion>,
}

/// Why a data connection was not admitted to a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rejection {
    UnknownRun,
    OtherAddress,
    TooMany,
    UnknownVersion,
}

impl Rejection {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Rejection::UnknownRun => "no run has this id",
            Rejection::OtherAddress => "its run belongs to another address",
            Rejection::TooMany => "its run has all data connections that the agent was configured to open",
            Rejection::UnknownVersion => "the version is unknown without a hello: give the control stream first",
        }
    }
}

/// A run whose control connection has just sent its hello.
#[derive(Debug)]
pub(super) struct OpenedRun {
    pub run: Arc<Mutex<Run>>,
    /// Its agent is configured to trace nothing, for this reason.
    pub untraced: Option<&'static str>,
    /// Its id was taken from an agent that opened no data connection in time.
    pub is_taken_over: bool,
}

/// The state of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentStatus {
    /// Its run id, which commands take.
    pub run: u8,
    /// Protocol version.
    pub version: u8,
    /// The project that it named.
    pub project: Option<i32>,
    /// The address that it connects from.
    pub address: Option<IpAddr>,
    /// The mode that it reported last.
    pub mode: Mode,
    /// Whether `start` was sent to it.
    pub is_started: bool,
    /// Whether its heartbeats are late.
    pub is_unhealthy: bool,
    /// Whether its control connection is open, so that it can receive commands.
    pub has_control: bool,
}

impl Hq {
    /// The HQ of a listener.
    pub fn new(options: Options, emit_definitions: bool, memory: Arc<MemoryBudget>) -> Self {
        Hq::with(options, emit_definitions, memory, None)
    }

    /// For captures: every stream belongs to one run, in the order given, control first. `version` is that of data
    /// streams without a control stream.
    pub fn offline(options: Options, emit_definitions: bool, memory: Arc<MemoryBudget>, version: Option<u8>) -> Self {
        let offline = Offline { version: version.and_then(ProtocolVersion::new) };
        Hq::with(options, emit_definitions, memory, Some(offline))
    }

    fn with(options: Options, emit_definitions: bool, memory: Arc<MemoryBudget>, offline: Option<Offline>) -> Self {
        let (options, runs) = (Arc::new(options), Arc::new(Mutex::new(RunTable::new())));
        let (is_stopping, log) = (AtomicBool::new(false), Arc::new(AgentLog::new()));
        Hq(Arc::new(HqState { options, emit_definitions, memory, offline, is_stopping, log, runs }))
    }

    /// The same for a listener that takes over the socket of another: the agents of `former` open their data connections
    /// here, and new agents get other run ids than those.
    #[must_use]
    pub fn continuing(self, former: &Hq) -> Self {
        let HqState { options, emit_definitions, memory, offline, .. } = &*self.0;
        let (options, memory, runs) = (options.clone(), memory.clone(), former.0.runs.clone());
        Hq(Arc::new(HqState {
            options,
            emit_definitions: *emit_definitions,
            memory,
            offline: *offline,
            is_stopping: AtomicBool::new(false),
            log: former.0.log.clone(),
            runs,
        }))
    }

    /// The agents of all runs that have a run id of their own, by run id.
    pub fn agents(&self) -> Vec<AgentStatus> {
        let runs = self.runs().all();
        runs.iter().map(|run| status(&lock(run))).collect()
    }

    /// Sends a command to the agent of a run, at `elapsed` on the clock of its sessions.
    ///
    /// # Errors
    /// The command would harm the traced program in the agent's state (field notes, section 1.4), or it cannot be
    /// delivered.
    pub fn command(&self, run: u8, command: BytefrogCommand, elapsed: Duration) -> Result<(), BytefrogCommandError> {
        let target = self.runs().get(run).ok_or(BytefrogCommandError::NoSuchRun)?;
        let mut open = lock(&target);
        open.command(command, elapsed)?;
        let serial = open.serial;
        drop(open);
        if command == BytefrogCommand::Start {
            self.runs().set_started(run, serial, elapsed);
        }
        Ok(())
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(super) fn emit_definitions(&self) -> bool {
        self.0.emit_definitions
    }

    /// The collector stops.
    pub(super) fn stop(&self) {
        self.0.is_stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_live(&self) -> bool {
        self.0.offline.is_none()
    }

    /// Opens a run for an agent that has sent its hello, and writes the first messages to it: its configuration, and
    /// `start` unless an operator sends that. Each message is whole in `reply`, to be written in one piece (rule 3).
    ///
    /// An agent for which there is no run id is not refused, because that would abort its program (rule 2): it is
    /// configured to trace nothing, started, and stopped once that is harmless. The same is done when the collector stops.
    pub(super) fn open(
        &self,
        version: ProtocolVersion,
        project: Option<i32>,
        address: Option<IpAddr>,
        listener: &str,
        now: Now,
        reply: &mut BytesMut,
    ) -> OpenedRun {
        let HqState { options, memory, .. } = &*self.0;
        let mut runs = self.runs();
        let assignment = runs.assign(address, options, now.elapsed);
        let id = assignment.id;
        let untraced = match id {
            UNTRACED_ID => Some("no run id is free: the agent was configured to trace nothing"),
            _ if self.0.is_stopping.load(Ordering::Relaxed) => {
                Some("the collector is stopping: the agent was configured to trace nothing")
            }
            _ => None,
        };
        let is_live = self.is_live();
        // Run ids are reused, so on a live listener the time is part of the key; decoding a capture again gives the
        // same spans.
        let key = mix(mix(assignment.serial << 8 | u64::from(id)) ^ if is_live { now.unix.0 } else { 0 });
        let log = is_live.then(|| self.0.log.clone());
        let start = RunStart { id, serial: assignment.serial, version, project, address, now, key, is_live, log };
        let memory = address.map_or_else(|| memory.clone(), |address| memory.of_address(address)).lease();
        let run = Arc::new(Mutex::new(Run::new(start, options.clone(), memory)));
        runs.insert(&run, address, assignment);
        let mut open = lock(&run);
        open.configure(untraced.is_none(), reply);
        open.agent.is_untraced = untraced.is_some();
        open.admit();
        open.agent.pending = match options.start {
            _ if untraced.is_some() => Some(BytefrogCommand::Stop),
            Start::Suspended => Some(BytefrogCommand::Suspend),
            Start::Immediately | Start::OnCommand => None,
        };
        if untraced.is_some() || options.start != Start::OnCommand {
            reply.extend(open.agent.handle_command(BytefrogCommand::Start, now.elapsed).ok().flatten());
            runs.set_started(id, assignment.serial, now.elapsed);
        }
        drop(open);
        let warning = if id == UNTRACED_ID { runs.permit_warning(now.elapsed) } else { None };
        drop(runs);
        if let Some(suppressed) = warning {
            let address = address.map(tracing::field::display);
            let suppressed = (suppressed > 0).then_some(suppressed);
            warn!(
                listener,
                address,
                suppressed,
                "no run id is free: a Java program runs untraced; ids become free when traced programs end, and after \
                 data_connection_wait or first_event_wait from agents that send nothing"
            );
        }
        OpenedRun { run, untraced, is_taken_over: assignment.is_taken_over }
    }

    /// The run that a data connection belongs to. The connection is admitted to it.
    ///
    /// # Errors
    /// Why it is admitted to none.
    pub(super) fn find(
        &self,
        id: u8,
        address: Option<IpAddr>,
        listener: &str,
        now: Now,
    ) -> Result<Arc<Mutex<Run>>, Rejection> {
        if let Some(offline) = self.0.offline {
            return self.find_offline(offline, listener, now);
        }
        self.find_listed(id, address, now.elapsed)
            .or_else(|rejection| self.runs().admit_unlisted(id, address).ok_or(rejection))
    }

    fn find_listed(&self, id: u8, address: Option<IpAddr>, elapsed: Duration) -> Result<Arc<Mutex<Run>>, Rejection> {
        let run = self.runs().get(id).ok_or(Rejection::UnknownRun)?;
        let mut open = lock(&run);
        if open.is_over() {
            return Err(Rejection::UnknownRun);
        }
        if open.address != address {
            return Err(Rejection::OtherAddress);
        }
        if !open.admit_data() {
            return Err(Rejection::TooMany);
        }
        let serial = open.serial;
        drop(open);
        self.runs().set_connected(id, serial, elapsed);
        Ok(run)
    }

    /// Whether data connections are expected that may be those of this run although they count for another one, because
    /// only their address distinguishes agents without a run id of their own.
    pub(super) fn shares_expected_data(&self, run: &Mutex<Run>) -> bool {
        let (id, address) = {
            let run = lock(run);
            (run.id, run.address)
        };
        id == UNTRACED_ID && self.runs().expects_unlisted(id, address)
    }

    /// The version that the agent of this run speaks, if the run is known.
    pub(super) fn version_of(&self, id: u8) -> Option<ProtocolVersion> {
        let run = match self.0.offline {
            Some(_) => self.runs().all().pop(),
            None => {
                let runs = self.runs();
                runs.get(id).or_else(|| runs.latest_unlisted(id))
            }
        };
        run.map(|run| lock(&run).version).or(self.0.offline?.version)
    }

    /// The one run of the captures.
    fn find_offline(&self, offline: Offline, listener: &str, now: Now) -> Result<Arc<Mutex<Run>>, Rejection> {
        let latest = self.runs().all().pop();
        if let Some(run) = latest {
            let mut open = lock(&run);
            open.agent.data_hello();
            open.admit();
            drop(open);
            return Ok(run);
        }
        let version = offline.version.ok_or(Rejection::UnknownVersion)?;
        Ok(self.open(version, None, None, listener, now, &mut BytesMut::new()).run)
    }

    /// The run has ended: its id is free.
    pub(super) fn close(&self, run: &Mutex<Run>) {
        let (id, address, serial) = {
            let run = lock(run);
            (run.id, run.address, run.serial)
        };
        self.runs().remove(id, address, serial);
    }

    fn runs(&self) -> MutexGuard<'_, RunTable> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn status(run: &Run) -> AgentStatus {
    AgentStatus {
        run: run.id,
        version: run.version.number(),
        project: run.project,
        address: run.address,
        mode: run.agent.mode(),
        is_started: run.agent.is_started(),
        is_unhealthy: run.agent.is_unhealthy(),
        has_control: run.agent.has_control(),
    }
}
