//! The state of one process, shared by its two connections.
//!
//! The request connection ([`super::control`]) and the subscription ([`super::subscription`]) are two sessions. They share,
//! behind one lock that is held briefly: the last handshake, the message counter, the profiles that we switched on
//! ([`super::undo`]), and what one session needs from the other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use tributary_event::{Resource, SampleClock, Severity, semconv as names};
use tributary_protocol::{Flow, Now, Output};

use super::command::{CommandCallback, Order, RbkitCommand, RbkitCommandError};
use super::dump::Dumps;
use super::handshake::Handshake;
use super::normalize::{self, StreamPosition};
use super::object_counts::ObjectCounts;
use super::options::{AgentOptions, Clock, ProfileKind};
use super::texts::TextCache;
use super::undo::{Link, PendingUndo, ProcessId, UndoList, UndoStore};
use super::wire::Family;

/// Commands of operators that may wait for one process.
const MAX_COMMANDS: usize = 16;

/// One process. A clone is the same process.
#[derive(Clone, Debug)]
pub struct RbkitAgent(Arc<SharedAgent>);

#[derive(Debug)]
struct SharedAgent {
    options: AgentOptions,
    state: Mutex<AgentState>,
    /// Keeps what must be undone. None: it is not kept.
    store: Option<Arc<dyn UndoStore>>,
}

/// What is known about a process, and what is to be done with it.
#[derive(Debug, Default)]
pub(super) struct AgentState {
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
    pub(super) undo: UndoList,
    /// The process was restarted: which of `undo` concern the new process is known when this handshake has been answered.
    restart_handshake: Option<u64>,
    /// The process does not answer.
    pub(super) is_unhealthy: bool,
    /// There is a request connection.
    pub(super) is_reachable: bool,
    /// Request connections and subscriptions so far.
    connections: u64,
    subscriptions: u64,
    pub(super) commands: VecDeque<Order>,
    /// The dumps of the last subscription, while there is none.
    pub(super) dumps: Dumps,
    /// The objects of the last recording.
    pub(super) objects: Option<ObjectCounts>,
    pub(super) control: Option<Waker>,
    subscription: Option<Waker>,
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
    /// Whether its version of rbkit has a CPU profile. `true` before the first handshake.
    pub has_cpu_profile: bool,
}

/// What a handshake reply has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Change {
    /// It differs from the last one.
    pub(super) is_new: bool,
    /// It is another process than before.
    pub(super) is_restart: bool,
}

impl RbkitAgent {
    /// A process about which nothing is known.
    pub fn new(options: AgentOptions) -> Self {
        RbkitAgent::with_store(options, None)
    }

    /// The same with a store, which may have commands that undo those of another daemon.
    pub fn with_store(options: AgentOptions, store: Option<Arc<dyn UndoStore>>) -> Self {
        let known = store.as_ref().zip(options.request.as_ref()).and_then(|(store, request)| store.pending(request));
        let state = AgentState { undo: UndoList::new(known), ..AgentState::default() };
        RbkitAgent(Arc::new(SharedAgent { options, state: Mutex::new(state), store }))
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
            has_cpu_profile: !state.handshake.is_released(),
        }
    }

    /// Queues a command. `answer` is called once with the result.
    pub fn command(&self, command: RbkitCommand, answer: CommandCallback) {
        let mut state = self.state();
        let refusal = match () {
            () if !state.is_reachable => Some(RbkitCommandError::NotConnected),
            () if command.is_about_cpu() && state.handshake.is_released() => Some(RbkitCommandError::NotKnown),
            () if state.commands.len() >= MAX_COMMANDS => Some(RbkitCommandError::Busy),
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

    /// The commands that undo ours and have not been answered; of them, those that were sent.
    pub fn undo_commands(&self) -> (Vec<RbkitCommand>, Vec<RbkitCommand>) {
        let state = self.state();
        (state.undo.commands(), state.undo.unanswered())
    }

    /// No further attempt is made to undo our commands: the daemon has no time left, or the process has ended.
    pub fn abandon_undo(&self) {
        self.state().undo.abandon();
    }

    /// Lets `successor`, the same process at another listener, undo our commands. Call it before this listener stops.
    pub fn hand_over(&self, successor: &RbkitAgent) {
        let Some(request) = self.0.options.request.clone() else { return };
        let mut state = self.state();
        let process = ProcessId::of(&state.handshake);
        let (process, commands) = state.undo.hand_over(process);
        drop(state);
        if commands.is_empty() {
            return;
        }
        successor.inherit(PendingUndo { request: request.clone(), process: process.clone(), commands });
        let is_same = |own: &&Arc<dyn UndoStore>| {
            successor.0.store.as_ref().is_some_and(|store| Arc::as_ptr(store).addr() == Arc::as_ptr(own).addr())
        };
        if let Some(store) = self.0.store.as_ref().filter(|own| !is_same(own)) {
            store.store(PendingUndo { request, process, commands: Vec::new() });
        }
    }

    fn inherit(&self, pending: PendingUndo) {
        if let Some(store) = &self.0.store {
            let mut commands = self.state().undo.commands();
            commands.retain(|command| !pending.commands.contains(command));
            commands.extend(&pending.commands);
            store.store(PendingUndo { commands, ..pending.clone() });
        }
        let mut state = self.state();
        state.undo.inherit(pending);
        state.want_handshake();
    }

    /// Stores what must be undone, now that a handshake has identified the process.
    pub(super) fn store_undo(&self) {
        let (Some(store), Some(request)) = (&self.0.store, &self.0.options.request) else { return };
        let state = self.state();
        if state.undo.is_handed_over() || state.undo.is_handshake_needed() {
            return;
        }
        let (process, commands) = (ProcessId::of(&state.handshake), state.undo.commands());
        drop(state);
        store.store(PendingUndo { request: request.clone(), process, commands });
    }

    pub(super) fn state(&self) -> MutexGuard<'_, AgentState> {
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
    /// Returns whether it follows the message before it.
    pub(super) fn check_counter(
        &self,
        counter: u64,
        dumps: &mut Dumps,
        place: StreamPosition,
        out: &mut Output,
    ) -> bool {
        let mut state = self.state();
        let pid = state.handshake.pid;
        let is_first = std::mem::take(&mut state.is_first_message);
        let Some((last, last_pid)) = state.last_counter.replace((counter, pid)) else { return true };
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
            return false;
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
        missing == 0
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
        state.subscriptions += 1;
        state.is_first_message = true;
        state.is_start_due = true;
        state.wake_control();
    }

    /// The last recording has ended: writes what the ones before have left to be summed up.
    pub(super) fn end_recording(&self, now: Now, out: &mut Output) -> Flow {
        let mut texts = TextCache::default();
        let mut state = self.state();
        let Some(objects) = &mut state.objects else { return Flow::Continue };
        loop {
            if out.batch.is_full() {
                return Flow::Again;
            }
            if !objects.write_next(now, &mut texts, out) && !objects.end_interval(now, true) {
                return Flow::Continue;
            }
        }
    }

    /// The subscription connection has ended.
    pub(super) fn set_unsubscribed(&self) {
        self.state().is_subscribed = false;
    }

    /// The resource of events, the protocol version and the clock of the CPU profile, if the handshake has changed since
    /// `version`.
    pub(super) fn resource(&self, version: &mut u64) -> Option<(Arc<Resource>, Option<String>, Option<SampleClock>)> {
        let state = self.state();
        if *version == state.resource_version {
            return None;
        }
        *version = state.resource_version;
        let clock = state.handshake.sample_clock();
        state.resource.clone().map(|resource| (resource, state.handshake.protocol_version.clone(), clock))
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
            state.undo.restarted(connection);
            state.last_counter = None;
            state.is_start_due = true;
        }
        let is_new = state.handshake != *handshake;
        if is_new {
            state.handshake = handshake.clone();
            state.resource = Some(handshake.resource());
            state.resource_version += 1;
        }
        let link = state.link(connection);
        state.undo.shown(handshake, &self.0.options, link);
        Change { is_new, is_restart }
    }
}

impl AgentState {
    /// A request connection is ready. Returns its number.
    pub(super) fn connected(&mut self) -> u64 {
        self.is_reachable = true;
        self.connections += 1;
        self.connections
    }

    /// The open subscription, by number. None: there is none, or it does not show any more which process this is.
    pub(super) fn subscription(&self) -> Option<u64> {
        (self.is_subscribed && !self.is_restart_open()).then_some(self.subscriptions)
    }

    /// The connections to the process; `connection` is the request connection.
    pub(super) fn link(&self, connection: u64) -> Link {
        Link { connection, subscription: self.subscription() }
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
            self.undo.restarted(connection);
        }
        if let Some(waker) = self.subscription.take() {
            waker.wake();
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
    pub(super) fn start_commands(&self, options: &AgentOptions, lacks_cpu_profile: &mut bool) -> Vec<RbkitCommand> {
        let mut commands = Vec::new();
        if options.enable.contains(&ProfileKind::Memory) && self.handshake.memory_profile != Some(true) {
            commands.push(RbkitCommand::StartMemoryProfile);
        }
        let has_cpu = !self.handshake.is_released();
        if has_cpu && self.handshake.cpu_profile != Some(true) {
            match options.clock {
                Some(Clock::Cpu) => commands.push(RbkitCommand::UseCpuTime),
                Some(Clock::Wall) => commands.push(RbkitCommand::UseWallTime),
                None => {}
            }
            if options.enable.contains(&ProfileKind::Cpu) {
                commands.push(RbkitCommand::StartCpuProfiling);
            }
        }
        *lacks_cpu_profile = !has_cpu && options.enable.contains(&ProfileKind::Cpu);
        commands
    }
}
