//! The state of one process, shared by its two connections.
//!
//! The request connection ([`super::control`]) and the subscription ([`super::subscription`]) are two sessions. They share,
//! behind one lock that is held briefly: the last handshake, the message counter, the profiles that we switched on, and what
//! one session needs from the other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::event::{Resource, Severity, semconv as names};
use crate::protocol::Output;

use super::command::{Answer, Command, Order, Refusal};
use super::dump::Dumps;
use super::handshake::Handshake;
use super::normalize::{self, Place};
use super::options::{AgentOptions, Clock, Profile};
use super::wire::Family;

/// Commands of operators that may wait for one process.
const MAX_COMMANDS: usize = 16;

/// One process. A clone is the same process.
#[derive(Clone, Debug)]
pub struct Agent(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: AgentOptions,
    state: Mutex<State>,
}

/// What is known about a process, and what is to be done with it.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The last handshake.
    pub(super) handshake: Handshake,
    /// The resource of events, from that handshake; and its version, which shows when it has changed.
    resource: Option<Arc<Resource>>,
    pub(super) resource_version: u64,
    /// How many handshakes have been wanted, and up to which of them the answer has come or never will.
    pub(super) handshakes_wanted: u64,
    pub(super) handshakes_settled: u64,
    /// The last message counter, and the pid that it belongs to.
    last_counter: Option<(u64, Option<u64>)>,
    /// The next message is the first one of a connection.
    is_first_message: bool,
    /// There is a subscription.
    pub(super) is_subscribed: bool,
    /// The start commands must be sent (again).
    pub(super) is_start_due: bool,
    /// The commands that undo ours, to be sent when the daemon stops.
    undo: Vec<Undo>,
    /// The process was restarted: which of `undo` concern the new process is known when this handshake has been answered.
    restart_handshake: Option<u64>,
    /// When the last of `undo` was answered while the daemon stops.
    undone_at: Option<Duration>,
    /// No further attempt is made to send what is left of `undo`.
    is_undo_abandoned: bool,
    /// The process does not answer.
    pub(super) is_unhealthy: bool,
    /// There is a request connection.
    pub(super) is_reachable: bool,
    /// Request connections so far.
    connections: u64,
    pub(super) commands: VecDeque<Order>,
    /// The dumps of the last subscription, while there is none.
    pub(super) dumps: Dumps,
    pub(super) control: Option<Waker>,
    subscription: Option<Waker>,
}

/// A command that undoes one of ours.
#[derive(Clone, Copy, Debug)]
struct Undo {
    command: Command,
    /// The number of the request connection that our command was sent on. A connection never outlives its process.
    connection: u64,
}

/// What a subscription waits for while the daemon stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Drain {
    /// Our commands are being undone.
    Undo,
    /// They were undone at this time. The process sends its last events after that.
    Flush(Duration),
    /// Nothing.
    Nothing,
}

/// The state of a process, for operators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentStatus {
    /// `HOST:PORT` of its PUB socket.
    pub publish: Option<String>,
    /// `HOST:PORT` of its REP socket.
    pub request: Option<String>,
    /// There is a connection to its REP socket.
    pub is_reachable: bool,
    /// It answers requests.
    pub is_healthy: bool,
    /// There is a subscription to its PUB socket.
    pub is_subscribed: bool,
    /// Its process id, from its last handshake.
    pub pid: Option<u64>,
    /// The program that it runs, from its last handshake.
    pub process: Option<String>,
    /// Whether the memory profile is on, from its last handshake. A handshake follows each of our commands.
    pub memory_profile: Option<bool>,
    /// The same for the CPU profile.
    pub cpu_profile: Option<bool>,
}

/// What a handshake reply has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Change {
    /// It differs from the last one.
    pub(super) is_new: bool,
    /// It is another process than before.
    pub(super) is_restart: bool,
}

impl Agent {
    /// A process about which nothing is known.
    pub fn new(options: AgentOptions) -> Self {
        Agent(Arc::new(Shared { options, state: Mutex::default() }))
    }

    /// Its options.
    pub fn options(&self) -> &AgentOptions {
        &self.0.options
    }

    /// Its state.
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

    /// Queues a command. `answer` is called once with the result.
    pub fn command(&self, command: Command, answer: Answer) {
        let mut state = self.state();
        let refusal = match () {
            () if !state.is_reachable => Some(Refusal::NotConnected),
            () if command.is_about_cpu() && state.handshake.is_released() => Some(Refusal::NotKnown),
            () if state.commands.len() >= MAX_COMMANDS => Some(Refusal::Busy),
            () => None,
        };
        let order = Order::new(command, answer);
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

    /// The commands that undo ours and have not been answered.
    pub fn undo_commands(&self) -> Vec<Command> {
        self.state().undo.iter().map(|undo| undo.command).collect()
    }

    /// No further attempt is made to undo our commands: the daemon has no time left, or the process has ended.
    pub fn abandon_undo(&self) {
        self.state().is_undo_abandoned = true;
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The family of its event numbers, as far as it is known.
    pub(super) fn family(&self) -> Family {
        self.state().handshake.family.unwrap_or(Family::Master)
    }

    /// A message has shown the family of its event numbers. It takes precedence over the handshake (rule 2).
    pub(super) fn set_family(&self, family: Family, out: &mut Output) {
        let mut state = self.state();
        match state.handshake.family {
            Some(known) if known != family => {
                out.warn("rbkit.dialect_changed");
                state.handshake.family = Some(family);
                state.want_handshake();
            }
            _ => state.handshake.family = Some(family),
        }
    }

    /// Checks the counter of a message: messages may be missing before it, or the process may be another one (rule 12).
    pub(super) fn check_counter(&self, counter: u64, dumps: &mut Dumps, place: Place, out: &mut Output) {
        let mut state = self.state();
        let pid = state.handshake.pid;
        let is_first = std::mem::take(&mut state.is_first_message);
        let Some((last, last_pid)) = state.last_counter.replace((counter, pid)) else { return };
        if counter <= last {
            normalize::agent_event(out, names::RBKIT_AGENT_RESTARTED, Severity::Info, None, place);
            state.handshake.pid = None;
            state.last_counter = Some((counter, None));
            state.is_start_due = true;
            // The pid may be the same as before, as in a container, so it does not show which process `undo` concerns.
            // The connection that answers this handshake is the one to the new process.
            state.want_handshake();
            state.restart_handshake = Some(state.handshakes_wanted);
            drop(state);
            dumps.restart(place, out);
            return;
        }
        // After a reconnect only an equal pid shows that it is the same process.
        let is_same = !is_first || (pid.is_some() && pid == last_pid);
        let missing = counter - last - 1;
        drop(state);
        if missing > 0 && is_same {
            let detail = format!("messages {} to {} are missing", last + 1, counter - 1);
            normalize::gap(out, None, &detail, &[], place);
            dumps.close("messages are missing", place, out);
        }
    }

    /// A subscription connection is ready and wants a fresh handshake before it subscribes. Returns the number of that
    /// handshake; None: the process has no request socket.
    pub(super) fn want_introduction(&self) -> Option<u64> {
        self.0.options.request.as_ref()?;
        let mut state = self.state();
        state.want_handshake();
        Some(state.handshakes_wanted)
    }

    /// Whether that handshake is settled. If not, `context` is woken when it is.
    pub(super) fn is_introduced(&self, number: u64, context: Option<&Context<'_>>) -> bool {
        let mut state = self.state();
        let is_settled = state.handshakes_settled >= number;
        if let Some(context) = context
            && !is_settled
        {
            state.subscription = Some(context.waker().clone());
        }
        is_settled
    }

    /// The subscription has been sent.
    pub(super) fn set_subscribed(&self) {
        let mut state = self.state();
        state.is_subscribed = true;
        state.is_first_message = true;
        state.is_start_due = true;
        state.wake_control();
    }

    /// The subscription connection has ended.
    pub(super) fn set_unsubscribed(&self) {
        self.state().is_subscribed = false;
    }

    /// The resource of events and the protocol version, if they have changed since `version`.
    pub(super) fn resource(&self, version: &mut u64) -> Option<(Arc<Resource>, Option<String>)> {
        let state = self.state();
        if *version == state.resource_version {
            return None;
        }
        *version = state.resource_version;
        state.resource.clone().map(|resource| (resource, state.handshake.protocol_version.clone()))
    }

    /// Takes a handshake reply that has come on the request connection `connection`. `settles` is the last handshake that was
    /// wanted when its request was sent.
    pub(super) fn take_handshake(&self, handshake: &Handshake, connection: u64, settles: u64) -> Change {
        let mut state = self.state();
        if state.restart_handshake.is_some_and(|restart| settles < restart) {
            // The request was sent before the restart was known, so the reply may be of the old process.
            return Change { is_new: false, is_restart: false };
        }
        let is_restart = match (state.handshake.pid, handshake.pid) {
            (Some(before), Some(now)) => before != now,
            _ => false,
        };
        if is_restart {
            state.undo.retain(|undo| undo.connection == connection);
            state.last_counter = None;
            state.is_start_due = true;
        }
        let is_new = state.handshake != *handshake;
        if is_new {
            state.handshake = handshake.clone();
            state.resource = Some(handshake.resource());
            state.resource_version += 1;
        }
        Change { is_new, is_restart }
    }
}

impl State {
    /// A request connection is ready. Returns its number.
    pub(super) fn connected(&mut self) -> u64 {
        self.is_reachable = true;
        self.connections += 1;
        self.connections
    }

    fn want_handshake(&mut self) {
        self.handshakes_wanted += 1;
        self.wake_control();
    }

    /// Whether a handshake is wanted that has not been answered.
    pub(super) fn is_handshake_due(&self) -> bool {
        self.handshakes_wanted > self.handshakes_settled
    }

    /// The handshakes up to this number were answered on the request connection `connection`.
    pub(super) fn settle(&mut self, number: u64, connection: u64) {
        self.handshakes_settled = self.handshakes_settled.max(number);
        if self.restart_handshake.is_some_and(|restart| restart <= number) {
            self.restart_handshake = None;
            self.undo.retain(|undo| undo.connection == connection);
        }
        if let Some(waker) = self.subscription.take() {
            waker.wake();
        }
    }

    /// A command was sent on the request connection `connection`. It may take effect even if its reply never comes, so the
    /// command that undoes it is remembered from now on. `is_configured`: it was not sent by an operator.
    pub(super) fn command_sent(&mut self, command: Command, connection: u64, is_configured: bool) {
        let undo = match (command, self.handshake.clock.as_deref()) {
            (Command::StartMemoryProfile, _) => Command::StopMemoryProfile,
            (Command::StartCpuProfiling, _) => Command::StopCpuProfiling,
            (Command::UseWallTime, Some("cpu")) if is_configured => Command::UseCpuTime,
            (Command::UseCpuTime, Some("wall")) if is_configured => Command::UseWallTime,
            _ => return,
        };
        self.undo.retain(|known| known.command != undo);
        self.undo.push(Undo { command: undo, connection });
    }

    /// A command was answered. `is_stopping`: the daemon stops.
    pub(super) fn command_answered(&mut self, command: Command, is_stopping: bool, elapsed: Duration) {
        self.undo.retain(|undo| undo.command != command);
        if is_stopping && self.undo.is_empty() {
            self.undone_at.get_or_insert(elapsed);
        }
    }

    /// The next command that undoes one of ours: the last command is undone first.
    pub(super) fn undo_command(&self) -> Option<Command> {
        self.undo.last().map(|undo| undo.command)
    }

    /// What a subscription waits for while the daemon stops.
    pub(super) fn drain(&self) -> Drain {
        match self.undone_at {
            Some(elapsed) => Drain::Flush(elapsed),
            None if self.undo.is_empty() || self.is_undo_abandoned => Drain::Nothing,
            None => Drain::Undo,
        }
    }

    /// Whether a restart has made it uncertain which profiles we switched on.
    pub(super) fn is_restart_open(&self) -> bool {
        self.restart_handshake.is_some()
    }

    fn wake_control(&mut self) {
        if let Some(waker) = self.control.take() {
            waker.wake();
        }
    }

    /// The commands that switch on what the options want and what is off. `lacks_cpu_profile`: the options want a CPU
    /// profile and the agent has none.
    pub(super) fn start_commands(&self, options: &AgentOptions, lacks_cpu_profile: &mut bool) -> Vec<Command> {
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
        *lacks_cpu_profile = !has_cpu && options.enable.contains(&Profile::Cpu);
        commands
    }
}
