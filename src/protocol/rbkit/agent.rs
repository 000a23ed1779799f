//! One process as both of its connections know it: who it is, what it has been asked, and where its messages are.
//!
//! The connection that asks and the one that listens are two sessions. What they share is here, behind one lock that is
//! held for moments: the last handshake, the message counter, and what each wants of the other.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use crate::event::{Resource, Severity, semconv as names};
use crate::protocol::Output;

use super::dump::Dumps;
use super::handshake::Handshake;
use super::normalize::{self, Place};
use super::options::{AgentOptions, Profile};
use super::wire::Family;

/// Commands of operators that may wait for a process.
const MAX_COMMANDS: usize = 16;

/// One process. Cloned into the sessions of its connections; whoever else has one can send commands.
#[derive(Clone, Debug)]
pub struct Agent(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: AgentOptions,
    state: Mutex<State>,
}

/// What is known of a process, and wanted of it.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The last handshake.
    pub(super) handshake: Handshake,
    /// Who speaks, as of that handshake; and its number, by which a change is noticed.
    resource: Option<Arc<Resource>>,
    pub(super) introductions: u64,
    /// Handshakes that were asked for, and up to which of them there is an answer, or none will come.
    pub(super) asked: u64,
    pub(super) answered: u64,
    /// The last counter, and the process that it was of.
    last: Option<(u64, Option<u64>)>,
    /// The next counter is the first of a connection.
    has_joined: bool,
    /// What it publishes is being heard.
    pub(super) is_subscribed: bool,
    /// The start commands should be sent.
    pub(super) is_due: bool,
    /// What we have switched on and must switch off again.
    pub(super) started: Vec<Profile>,
    /// It does not answer.
    pub(super) is_unhealthy: bool,
    /// There is a connection to ask on.
    pub(super) is_reachable: bool,
    pub(super) commands: VecDeque<Order>,
    /// The dumps of its last connection, while there is none.
    pub(super) dumps: Dumps,
    pub(super) control: Option<Waker>,
    subscription: Option<Waker>,
}

/// What a process can be told (field notes, section 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Command {
    Handshake,
    StartMemoryProfile,
    StopMemoryProfile,
    StartCpuProfiling,
    StopCpuProfiling,
    UseCpuTime,
    UseWallTime,
    TriggerGc,
    ObjectspaceSnapshot,
}

/// Why a command was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is no connection to the process.
    NotConnected,
    /// The process is one of the released gem, which answers `ok` and does nothing.
    NotKnown,
    /// Others are waiting already.
    Busy,
    /// The process did not answer in time, or the connection broke.
    NotAnswered,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::NotConnected => "there is no connection to the process",
            Refusal::NotKnown => "this version of rbkit does not know CPU profiles",
            Refusal::Busy => "too many commands are waiting already",
            Refusal::NotAnswered => "the process has not answered",
        })
    }
}

impl std::error::Error for Refusal {}

/// What has become of a command.
pub type Answer = Box<dyn FnOnce(Result<(), Refusal>) + Send>;

/// A command of an operator, who is told once what has become of it.
pub(super) struct Order {
    pub(super) command: Command,
    answer: Option<Answer>,
}

impl Order {
    pub(super) fn answer(mut self, result: Result<(), Refusal>) {
        if let Some(answer) = self.answer.take() {
            answer(result);
        }
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            answer(Err(Refusal::NotAnswered));
        }
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.command.fmt(f)
    }
}

/// A process as operators see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentStatus {
    /// `HOST:PORT` of its publishing socket.
    pub publish: Option<String>,
    /// `HOST:PORT` of its replying socket.
    pub request: Option<String>,
    /// It can be asked.
    pub is_reachable: bool,
    /// It answers what it is asked.
    pub is_healthy: bool,
    /// What it publishes is heard.
    pub is_subscribed: bool,
    /// Its process id, once it has told it.
    pub pid: Option<u64>,
    /// What it runs.
    pub process: Option<String>,
    /// The profiles that it makes, as it said last.
    pub memory_profile: Option<bool>,
    /// The same of its CPU profile.
    pub cpu_profile: Option<bool>,
}

impl Command {
    /// Every command.
    pub const ALL: [Command; 9] = [
        Command::Handshake,
        Command::StartMemoryProfile,
        Command::StopMemoryProfile,
        Command::StartCpuProfiling,
        Command::StopCpuProfiling,
        Command::UseCpuTime,
        Command::UseWallTime,
        Command::TriggerGc,
        Command::ObjectspaceSnapshot,
    ];

    /// The command on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Command::Handshake => "handshake",
            Command::StartMemoryProfile => "start_memory_profile",
            Command::StopMemoryProfile => "stop_memory_profile",
            Command::StartCpuProfiling => "start_cpu_profiling",
            Command::StopCpuProfiling => "stop_cpu_profiling",
            Command::UseCpuTime => "use_cpu_time",
            Command::UseWallTime => "use_wall_time",
            Command::TriggerGc => "trigger_gc",
            Command::ObjectspaceSnapshot => "objectspace_snapshot",
        }
    }

    /// Whether its answer comes only when its work is done.
    pub(super) fn is_slow(self) -> bool {
        matches!(self, Command::TriggerGc | Command::ObjectspaceSnapshot)
    }

    fn is_about_cpu(self) -> bool {
        use Command::{StartCpuProfiling, StopCpuProfiling, UseCpuTime, UseWallTime};
        matches!(self, StartCpuProfiling | StopCpuProfiling | UseCpuTime | UseWallTime)
    }
}

impl Agent {
    /// A process that nothing is known of.
    pub fn new(options: AgentOptions) -> Self {
        Agent(Arc::new(Shared { options, state: Mutex::default() }))
    }

    /// What it is asked for.
    pub fn options(&self) -> &AgentOptions {
        &self.0.options
    }

    /// What is known of it.
    pub fn status(&self) -> AgentStatus {
        let state = self.state();
        AgentStatus {
            publish: self.0.options.publish.clone(),
            request: self.0.options.request.clone(),
            is_reachable: state.is_reachable,
            is_healthy: state.is_reachable && !state.is_unhealthy,
            is_subscribed: state.is_subscribed,
            pid: state.handshake.pid,
            process: state.handshake.process.clone(),
            memory_profile: state.handshake.memory_profile,
            cpu_profile: state.handshake.cpu_profile,
        }
    }

    /// Sends a command when its turn comes; `answer` is told once what has become of it.
    pub fn command(&self, command: Command, answer: Answer) {
        let mut state = self.state();
        let refusal = match () {
            () if !state.is_reachable => Some(Refusal::NotConnected),
            () if command.is_about_cpu() && state.handshake.is_released() => Some(Refusal::NotKnown),
            () if state.commands.len() >= MAX_COMMANDS => Some(Refusal::Busy),
            () => None,
        };
        let order = Order { command, answer: Some(answer) };
        match refusal {
            None => {
                state.commands.push_back(order);
                state.wake_control();
            }
            Some(refusal) => {
                drop(state);
                order.answer(Err(refusal));
            }
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which numbers it uses, as far as is known.
    pub(super) fn family(&self) -> Family {
        self.state().handshake.family.unwrap_or(Family::Master)
    }

    /// A message shows which numbers it uses. That is believed, whatever the handshake said (rule 2).
    pub(super) fn says(&self, family: Family, out: &mut Output) {
        let mut state = self.state();
        match state.handshake.family {
            Some(known) if known != family => {
                out.warn("rbkit.dialect_changed");
                state.handshake.family = Some(family);
                state.ask();
            }
            _ => state.handshake.family = Some(family),
        }
    }

    /// The counter of a message: whether some are missing before it, or it is of another process (rule 12).
    pub(super) fn counted(&self, counter: u64, dumps: &mut Dumps, place: Place, out: &mut Output) {
        let mut state = self.state();
        let pid = state.handshake.pid;
        let has_joined = std::mem::take(&mut state.has_joined);
        let Some((last, of)) = state.last.replace((counter, pid)) else { return };
        if counter <= last {
            normalize::noticed(out, names::RBKIT_AGENT_RESTARTED, Severity::Info, None, place);
            state.restart();
            state.last = Some((counter, None));
            state.ask();
            drop(state);
            dumps.restart(place, out);
            return;
        }
        // After a pause only the process's own word tells that it is the same one.
        let is_same = !has_joined || (pid.is_some() && pid == of);
        let missing = counter - last - 1;
        drop(state);
        if missing > 0 && is_same {
            let detail = format!("messages {} to {} have not come", last + 1, counter - 1);
            normalize::gap(out, None, &detail, &[], place);
            dumps.close("messages are missing", place, out);
        }
    }

    /// A connection to listen on has opened: wants a fresh handshake before it subscribes. Answers its number; None: there
    /// is nobody to ask.
    pub(super) fn introduce(&self) -> Option<u64> {
        self.0.options.request.as_ref()?;
        let mut state = self.state();
        state.ask();
        Some(state.asked)
    }

    /// Whether that handshake has come; else the context is woken when it has.
    pub(super) fn is_introduced(&self, number: u64, context: Option<&Context<'_>>) -> bool {
        let mut state = self.state();
        let is_answered = state.answered >= number;
        if let Some(context) = context
            && !is_answered
        {
            state.subscription = Some(context.waker().clone());
        }
        is_answered
    }

    /// What it publishes is heard from now on.
    pub(super) fn subscribed(&self) {
        let mut state = self.state();
        state.is_subscribed = true;
        state.has_joined = true;
        state.is_due = true;
        state.wake_control();
    }

    /// What it publishes is no longer heard.
    pub(super) fn unsubscribed(&self) {
        self.state().is_subscribed = false;
    }

    /// Who speaks, if that has changed since `introductions`.
    pub(super) fn resource(&self, introductions: &mut u64) -> Option<(Arc<Resource>, Option<String>)> {
        let state = self.state();
        if *introductions == state.introductions {
            return None;
        }
        *introductions = state.introductions;
        state.resource.clone().map(|resource| (resource, state.handshake.protocol_version.clone()))
    }

    /// A handshake reply. Answers whether it says anything new, and whether it is another process than before.
    pub(super) fn introduced(&self, handshake: &Handshake) -> (bool, bool) {
        let mut state = self.state();
        let is_other = match (state.handshake.pid, handshake.pid) {
            (Some(before), Some(now)) => before != now,
            _ => false,
        };
        if is_other {
            state.restart();
            state.last = None;
        }
        let is_new = state.handshake != *handshake;
        if is_new {
            state.handshake = handshake.clone();
            state.resource = Some(handshake.resource());
            state.introductions += 1;
        }
        (is_new, is_other)
    }
}

impl State {
    /// Wants a handshake.
    fn ask(&mut self) {
        self.asked += 1;
        self.wake_control();
    }

    /// Handshakes up to this number are answered, or will not be.
    pub(super) fn settle(&mut self, number: u64) {
        self.answered = self.answered.max(number);
        if let Some(waker) = self.subscription.take() {
            waker.wake();
        }
    }

    /// The process is another one: it has not been told anything.
    fn restart(&mut self) {
        self.started.clear();
        self.handshake.pid = None;
        self.is_due = true;
    }

    fn wake_control(&mut self) {
        if let Some(waker) = self.control.take() {
            waker.wake();
        }
    }

    /// The start commands, of what is wanted and not on already. In `unknown` what this agent does not have.
    pub(super) fn start_commands(&self, options: &AgentOptions, unknown: &mut bool) -> Vec<Command> {
        use super::options::Clock;
        let mut commands = Vec::new();
        if options.enable.contains(&Profile::Memory) && self.handshake.memory_profile != Some(true) {
            commands.push(Command::StartMemoryProfile);
        }
        let has_cpu = !self.handshake.is_released();
        if has_cpu && self.handshake.cpu_profile != Some(true) {
            match options.clock {
                Some(Clock::Cpu) => commands.push(Command::UseCpuTime),
                Some(Clock::Wall) => commands.push(Command::UseWallTime),
                None => {}
            }
            if options.enable.contains(&Profile::Cpu) {
                commands.push(Command::StartCpuProfiling);
            }
        }
        *unknown = !has_cpu && options.enable.contains(&Profile::Cpu);
        commands
    }
}
