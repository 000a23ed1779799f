//! The headquarters of a listener: which runs live, which connection belongs to which, and what agents are told.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::BytesMut;

use crate::memory::MemoryBudget;
use crate::protocol::Now;

use super::agent::{Command, Mode, Refusal};
use super::calls::mix;
use super::configuration::Configuration;
use super::options::{Options, Start};
use super::run::{Opening, Run};
use super::session::BytefrogSession;
use super::wire::Version;

/// Run ids that one run at a time has: a byte that Java reads with a sign (rule 7), but for the last.
const RUNS: usize = 127;
/// The run id of all agents that come when every other is taken. They are never refused, for that would abort their
/// program (rule 2): they are told to trace nothing, to start, and then to stop.
const SPARE: u8 = 127;
/// Excludes every class.
const EVERYTHING: &str = ".*";
/// What agents are told about retries after interrupts of their threads: the default of the original.
const QUEUE_RETRIES: i32 = 5;

/// The headquarters of one listener. Cloned into its sessions; whoever else has one can command agents.
#[derive(Clone, Debug)]
pub struct Hq(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Arc<Options>,
    emit_definitions: bool,
    memory: Arc<MemoryBudget>,
    /// Where captures are read: there is no agent, and no arrival time.
    offline: Option<Offline>,
    runs: Mutex<Runs>,
}

/// How captures are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offline {
    /// The version of data connections whose hello is not among the captures.
    version: Option<Version>,
}

/// The runs that live.
#[derive(Debug)]
struct Runs {
    live: Vec<Option<Arc<Mutex<Run>>>>,
    /// Where the search for a free id begins, so that an id is not used again at once.
    next: usize,
    opened: u64,
    /// Runs of agents that are one too many.
    spare: Vec<Weak<Mutex<Run>>>,
}

/// Why a data connection belongs to no run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unwelcome {
    Unknown,
    Stranger,
    TooMany,
    NoVersion,
}

impl Unwelcome {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Unwelcome::Unknown => "no run has this id",
            Unwelcome::Stranger => "its run belongs to another address",
            Unwelcome::TooMany => "its run has all data connections that it was told to open",
            Unwelcome::NoVersion => "no hello has told the version: give the control stream first",
        }
    }
}

/// What is known of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentStatus {
    /// Its run id; commands take it.
    pub run: u8,
    /// Protocol version.
    pub version: u8,
    /// The project that it named.
    pub project: Option<i32>,
    /// Where it connects from.
    pub address: Option<IpAddr>,
    /// The mode that it reported last.
    pub mode: Mode,
    /// Whether its program was let run.
    pub is_started: bool,
    /// Whether its heartbeats are late.
    pub is_unhealthy: bool,
    /// Whether it can be commanded.
    pub has_control: bool,
}

impl Hq {
    /// The headquarters of a listener.
    pub fn new(options: Options, emit_definitions: bool, memory: Arc<MemoryBudget>) -> Self {
        Hq::with(options, emit_definitions, memory, None)
    }

    /// For captures: every stream belongs to one run, in the order given, control first. `version` is that of data
    /// streams without a control stream.
    pub fn offline(options: Options, emit_definitions: bool, memory: Arc<MemoryBudget>, version: Option<u8>) -> Self {
        let offline = Offline { version: version.and_then(Version::new) };
        Hq::with(options, emit_definitions, memory, Some(offline))
    }

    fn with(options: Options, emit_definitions: bool, memory: Arc<MemoryBudget>, offline: Option<Offline>) -> Self {
        let runs = Runs { live: vec![None; RUNS], next: 0, opened: 0, spare: Vec::new() };
        Hq(Arc::new(Shared { options: Arc::new(options), emit_definitions, memory, offline, runs: runs.into() }))
    }

    /// A session for a connection from this address; `None`: from a file.
    pub fn session(&self, address: Option<IpAddr>) -> BytefrogSession {
        BytefrogSession::new(self.clone(), address)
    }

    /// The agents of all runs, by run id.
    pub fn agents(&self) -> Vec<AgentStatus> {
        let runs: Vec<_> = self.runs().live.iter().flatten().cloned().collect();
        runs.iter().map(|run| status(&lock(run))).collect()
    }

    /// Sends a command to the agent of a run, on `elapsed`, the clock of its sessions.
    ///
    /// # Errors
    /// It would harm the traced program in the agent's state (field notes, section 1.4), or nobody would hear it.
    pub fn command(&self, run: u8, command: Command, elapsed: Duration) -> Result<(), Refusal> {
        let run = self.runs().live.get(usize::from(run)).cloned().flatten().ok_or(Refusal::NoSuchRun)?;
        lock(&run).command(command, elapsed)
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(super) fn emit_definitions(&self) -> bool {
        self.0.emit_definitions
    }

    pub(super) fn is_live(&self) -> bool {
        self.0.offline.is_none()
    }

    /// A run for an agent that says hello, and the first words to it: its configuration, and `start` where it is to
    /// begin at once. Each message is whole in them, to be written in one piece (rule 3).
    pub(super) fn open(
        &self,
        version: Version,
        project: Option<i32>,
        address: Option<IpAddr>,
        now: Now,
        reply: &mut BytesMut,
    ) -> Arc<Mutex<Run>> {
        let Shared { options, memory, .. } = &*self.0;
        let mut runs = self.runs();
        let id = runs.free_id();
        runs.opened += 1;
        let is_spare = id == SPARE;
        let is_live = self.is_live();
        // Run ids are used again; a capture that is read again gives the same spans.
        let key = mix(mix(runs.opened << 8 | u64::from(id)) ^ if is_live { now.unix.0 } else { 0 });
        let opening = Opening { id, version, project, address, now, key, is_live };
        let run = Arc::new(Mutex::new(Run::new(opening, options.clone(), memory.lease())));
        let exclusions = if is_spare { vec![EVERYTHING.to_owned()] } else { options.exclusions_for(version.number()) };
        let configuration = Configuration {
            buffer_memory_budget: i32::try_from(options.agent_buffer).unwrap_or(i32::MAX),
            heartbeat_interval_millis: i32::try_from(options.heartbeat_interval.as_millis()).unwrap_or(1000),
            data_senders: options.data_connections as i32,
            queue_retry_count: QUEUE_RETRIES,
            run_id: id,
            exclusions: &exclusions,
            inclusions: if is_spare { &[] } else { &options.inclusions },
        };
        // Reading the options has made sure that it fits. If not, no agent is refused all the same.
        if configuration.write(version.number(), reply).is_err() {
            let nothing = Configuration { exclusions: &[EVERYTHING.to_owned()], inclusions: &[], ..configuration };
            let _ = nothing.write(version.number(), reply);
        }
        let mut begun = lock(&run);
        begun.admit();
        let agent = &mut begun.agent;
        match options.start {
            _ if is_spare => agent.wish = Some(Command::Stop),
            Start::Suspended => agent.wish = Some(Command::Suspend),
            Start::Immediately | Start::OnCommand => {}
        }
        if is_spare || options.start != Start::OnCommand {
            let start = agent.obey(Command::Start, now.elapsed);
            reply.extend(start);
        }
        drop(begun);
        match runs.live.get_mut(usize::from(id)) {
            Some(place) => *place = Some(run.clone()),
            None => runs.spare.push(Arc::downgrade(&run)),
        }
        run
    }

    /// The run that a data connection belongs to, which is admitted to it.
    ///
    /// # Errors
    /// Why it belongs to none.
    pub(super) fn find(&self, id: u8, address: Option<IpAddr>, now: Now) -> Result<Arc<Mutex<Run>>, Unwelcome> {
        if let Some(offline) = self.0.offline {
            return self.find_offline(offline, now);
        }
        if id == SPARE {
            // Which of them it is cannot be known, and does not matter, for they trace nothing: likely the latest.
            let spare: Vec<_> = self.runs().spare.iter().rev().filter_map(Weak::upgrade).collect();
            let takes_it = |run: &Arc<Mutex<Run>>| {
                let mut open = lock(run);
                open.address == address && take_in(&mut open)
            };
            return spare.into_iter().find(takes_it).ok_or(Unwelcome::Unknown);
        }
        let run = self.runs().live.get(usize::from(id)).cloned().flatten().ok_or(Unwelcome::Unknown)?;
        let mut open = lock(&run);
        if open.is_over() {
            return Err(Unwelcome::Unknown);
        }
        if open.address != address {
            return Err(Unwelcome::Stranger);
        }
        if !take_in(&mut open) {
            return Err(Unwelcome::TooMany);
        }
        drop(open);
        Ok(run)
    }

    /// The version that the agent of this run speaks, if the run is known.
    pub(super) fn version_of(&self, id: u8) -> Option<Version> {
        let runs = self.runs();
        let run = match self.0.offline {
            Some(_) => runs.live.iter().flatten().next_back().cloned(),
            None if id == SPARE => runs.spare.iter().rev().find_map(Weak::upgrade),
            None => runs.live.get(usize::from(id)).cloned().flatten(),
        };
        drop(runs);
        run.map(|run| lock(&run).version).or(self.0.offline?.version)
    }

    /// The one run of the captures.
    fn find_offline(&self, offline: Offline, now: Now) -> Result<Arc<Mutex<Run>>, Unwelcome> {
        let latest = self.runs().live.iter().flatten().next_back().cloned();
        if let Some(run) = latest {
            let mut open = lock(&run);
            open.agent.data_hello();
            open.admit();
            drop(open);
            return Ok(run);
        }
        let version = offline.version.ok_or(Unwelcome::NoVersion)?;
        Ok(self.open(version, None, None, now, &mut BytesMut::new()))
    }

    /// The run has ended: its id is free.
    pub(super) fn close(&self, run: &Arc<Mutex<Run>>) {
        let mut runs = self.runs();
        runs.live.iter_mut().filter(|live| live.as_ref().is_some_and(|live| Arc::ptr_eq(live, run))).for_each(|live| {
            *live = None;
        });
        runs.spare.retain(|spare| !std::ptr::eq(spare.as_ptr(), Arc::as_ptr(run)));
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runs {
    fn free_id(&mut self) -> u8 {
        let free = (0..RUNS).map(|step| (self.next + step) % RUNS).find(|id| self.live[*id].is_none());
        match free {
            Some(id) => {
                self.next = id + 1;
                id as u8
            }
            None => SPARE,
        }
    }
}

/// A run, even if a session has panicked with it: its other connections go on.
pub(super) fn lock(run: &Mutex<Run>) -> MutexGuard<'_, Run> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Admits a data connection, while the run is not over and has not all of them.
fn take_in(run: &mut Run) -> bool {
    let is_welcome = !run.is_over() && run.agent.data_hello();
    if is_welcome {
        run.admit();
    }
    is_welcome
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
