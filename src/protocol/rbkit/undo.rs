//! What we have switched on in a process: the commands that undo it, and the store that keeps them beyond a kill of the daemon.

use std::fmt::Debug;
use std::time::Duration;

use super::command::RbkitCommand;
use super::handshake::Handshake;
use super::options::{AgentOptions, Clock, ProfileKind};

/// Longer texts of a process are kept up to here, in characters.
const MAX_TEXT: usize = 256;

/// A process, as its handshake identifies it. The protocol has no start time, so a process that was restarted with the same
/// id, program and directory, as in a container, counts as the same process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessId {
    /// Its process id.
    pub pid: Option<u64>,
    /// The program that it runs.
    pub process: Option<String>,
    /// Its working directory.
    pub directory: Option<String>,
}

/// What must be undone in a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingUndo {
    /// `HOST:PORT` of its REP socket, as in the options.
    pub request: String,
    /// The process.
    pub process: ProcessId,
    /// The commands that undo ours, in the order in which ours were sent: the last one is sent first.
    pub commands: Vec<RbkitCommand>,
}

/// Keeps what must be undone, so that another daemon can do it.
pub trait UndoStore: Send + Sync + Debug {
    /// What must be undone in the process with this REP socket.
    fn pending(&self, request: &str) -> Option<PendingUndo>;

    /// Replaces what must be undone in a process; without commands nothing must be. When it returns, a kill or a loss of power
    /// does not change it, or the log has the reason.
    fn store(&self, pending: PendingUndo);
}

/// The commands that undo ours in one process.
#[derive(Debug, Default)]
pub(super) struct UndoList {
    entries: Vec<Undo>,
    /// Commands of another listener or daemon: whether they concern this process is known after the next handshake.
    inherited: Option<PendingUndo>,
    /// When the last of them was answered while the daemon stops.
    undone_at: Option<Duration>,
    /// No further attempt is made to send what is left.
    is_abandoned: bool,
    /// Another listener undoes them.
    is_handed_over: bool,
}

/// A command that undoes one of ours.
#[derive(Clone, Copy, Debug)]
struct Undo {
    command: RbkitCommand,
    /// The number of the request connection that our command was sent on. A connection never outlives its process.
    connection: u64,
    /// The number of a subscription that was open then: while it stays open, the process is the same.
    subscription: Option<u64>,
    /// The command was sent and has not been answered.
    is_sent: bool,
    /// It undoes a command of another listener or daemon that our options do not want: it is sent immediately.
    is_unwanted: bool,
}

/// The connections to a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// The number of the request connection.
    pub(super) connection: u64,
    /// The number of the open subscription.
    pub(super) subscription: Option<u64>,
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

impl ProcessId {
    pub(super) fn of(handshake: &Handshake) -> Self {
        let text = |text: &Option<String>| text.as_ref().map(|text| text.chars().take(MAX_TEXT).collect());
        ProcessId { pid: handshake.pid, process: text(&handshake.process), directory: text(&handshake.directory) }
    }
}

impl UndoList {
    /// With what the store knows of the process.
    pub(super) fn new(inherited: Option<PendingUndo>) -> Self {
        UndoList { inherited, ..UndoList::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.inherited.is_none()
    }

    /// Whether the next handshake must show what is to be undone.
    pub(super) fn is_handshake_needed(&self) -> bool {
        self.inherited.is_some()
    }

    /// Whether another listener undoes our commands, so that nothing more is switched on.
    pub(super) fn is_handed_over(&self) -> bool {
        self.is_handed_over
    }

    /// Every command, in the order in which ours were sent.
    pub(super) fn commands(&self) -> Vec<RbkitCommand> {
        let mut commands = self.inherited.as_ref().map(|inherited| inherited.commands.clone()).unwrap_or_default();
        for undo in &self.entries {
            commands.retain(|command| *command != undo.command);
            commands.push(undo.command);
        }
        commands
    }

    /// The commands that were sent and have not been answered.
    pub(super) fn unanswered(&self) -> Vec<RbkitCommand> {
        self.entries.iter().filter(|undo| undo.is_sent).map(|undo| undo.command).collect()
    }

    /// A command was sent on `link`, when the clock of the CPU profile was `clock`. It may take effect even if its reply never
    /// comes, so the command that undoes it is known from now on. `is_configured`: it was not sent by an operator.
    pub(super) fn sent(&mut self, command: RbkitCommand, clock: Option<&str>, link: Link, is_configured: bool) {
        if let Some(undo) = self.entries.iter_mut().find(|undo| undo.command == command) {
            undo.is_sent = true;
            return;
        }
        let undo = match (command, clock) {
            (RbkitCommand::StartMemoryProfile, _) => RbkitCommand::StopMemoryProfile,
            (RbkitCommand::StartCpuProfiling, _) => RbkitCommand::StopCpuProfiling,
            (RbkitCommand::UseWallTime, Some("cpu")) if is_configured => RbkitCommand::UseCpuTime,
            (RbkitCommand::UseCpuTime, Some("wall")) if is_configured => RbkitCommand::UseWallTime,
            _ => return,
        };
        self.entries.retain(|known| known.command != undo);
        let Link { connection, subscription } = link;
        self.entries.push(Undo { command: undo, connection, subscription, is_sent: false, is_unwanted: false });
    }

    /// A command was answered. `is_stopping`: the daemon stops.
    pub(super) fn answered(&mut self, command: RbkitCommand, is_stopping: bool, elapsed: Duration) {
        self.entries.retain(|undo| undo.command != command);
        self.note_end(is_stopping, elapsed);
    }

    /// A handshake was answered on `link`: what it shows to be undone is, and commands of another listener or daemon become ours
    /// if they concern this process and are in effect.
    pub(super) fn shown(&mut self, handshake: &Handshake, options: &AgentOptions, link: Link) {
        let Link { connection, subscription } = link;
        self.entries.retain(|undo| !undo.is_sent || is_in_effect(undo.command, handshake) != Some(false));
        for undo in &mut self.entries {
            undo.subscription = undo.subscription.or(subscription);
        }
        let Some(inherited) = self.inherited.take() else { return };
        if inherited.process != ProcessId::of(handshake) {
            return;
        }
        for command in inherited.commands {
            let is_known = self.entries.iter().any(|undo| undo.command == command);
            if !is_known && is_in_effect(command, handshake) == Some(true) {
                let is_unwanted = !is_wanted(command, handshake, options);
                self.entries.push(Undo { command, connection, subscription, is_sent: false, is_unwanted });
            }
        }
    }

    /// All commands may have been undone.
    pub(super) fn note_end(&mut self, is_stopping: bool, elapsed: Duration) {
        if is_stopping && self.is_empty() {
            self.undone_at.get_or_insert(elapsed);
        }
    }

    /// The process is another one than before: only commands that were sent on the request connection `connection` concern it.
    pub(super) fn restarted(&mut self, connection: u64) {
        self.entries.retain(|undo| undo.connection == connection);
    }

    /// The next command to send when the daemon stops: the last command is undone first. If a handshake has not identified the
    /// process (`is_identified`), only what `subscription` shows to concern it, and only once.
    pub(super) fn next(&self, is_identified: bool, subscription: Option<u64>) -> Option<RbkitCommand> {
        let is_next = |undo: &&Undo| is_identified || !undo.is_sent && undo.is_of(subscription);
        self.entries.iter().rfind(is_next).map(|undo| undo.command)
    }

    /// The next command to send while the daemon runs.
    pub(super) fn unwanted(&self) -> Option<RbkitCommand> {
        self.entries.iter().rfind(|undo| undo.is_unwanted).map(|undo| undo.command)
    }

    /// The commands of [`UndoList::next`] that have not been sent, which count as sent now.
    pub(super) fn take_unsent(&mut self, is_identified: bool, subscription: Option<u64>) -> Vec<RbkitCommand> {
        let is_next = |undo: &&mut Undo| !undo.is_sent && (is_identified || undo.is_of(subscription));
        let unsent = self.entries.iter_mut().rev().filter(is_next);
        unsent.map(|undo| (undo.is_sent = true, undo.command).1).collect()
    }

    /// What a subscription waits for while the daemon stops.
    pub(super) fn drain(&self) -> Drain {
        match self.undone_at {
            Some(elapsed) => Drain::Flush(elapsed),
            None if self.is_empty() || self.is_abandoned => Drain::Nothing,
            None => Drain::Undo,
        }
    }

    /// No further attempt is made.
    pub(super) fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Adds commands of another listener.
    pub(super) fn inherit(&mut self, mut pending: PendingUndo) {
        if let Some(known) = self.inherited.take().filter(|known| known.process == pending.process) {
            pending.commands.retain(|command| !known.commands.contains(command));
            pending.commands.splice(0..0, known.commands);
        }
        self.inherited = Some(pending);
    }

    /// Gives all commands away, with the process that they concern. `process`: that of the last handshake.
    pub(super) fn hand_over(&mut self, process: ProcessId) -> (ProcessId, Vec<RbkitCommand>) {
        let commands = self.commands();
        self.is_handed_over = true;
        self.entries.clear();
        let process = self.inherited.take().map_or(process, |inherited| inherited.process);
        (process, commands)
    }
}

impl Undo {
    fn is_of(&self, subscription: Option<u64>) -> bool {
        subscription.is_some() && self.subscription == subscription
    }
}

/// Whether what the command undoes is in effect. None: the handshake does not show it.
fn is_in_effect(undo: RbkitCommand, handshake: &Handshake) -> Option<bool> {
    let is_clock = |name: &str| handshake.clock.as_ref().map(|clock| clock == name);
    match undo {
        RbkitCommand::StopMemoryProfile => handshake.memory_profile,
        RbkitCommand::StopCpuProfiling => handshake.cpu_profile,
        RbkitCommand::UseCpuTime => is_clock("wall"),
        RbkitCommand::UseWallTime => is_clock("cpu"),
        _ => Some(false),
    }
}

/// Whether the options want what the command undoes.
fn is_wanted(undo: RbkitCommand, handshake: &Handshake, options: &AgentOptions) -> bool {
    let has_cpu = options.enable.contains(&ProfileKind::Cpu);
    let is_clock_wanted = match (options.clock, handshake.clock.as_deref()) {
        (None, _) => has_cpu,
        (Some(Clock::Cpu), clock) => clock == Some("cpu"),
        (Some(Clock::Wall), clock) => clock == Some("wall"),
    };
    match undo {
        RbkitCommand::StopMemoryProfile => options.enable.contains(&ProfileKind::Memory),
        // The clock of a profile that is on does not change.
        RbkitCommand::StopCpuProfiling => has_cpu && is_clock_wanted,
        _ => is_clock_wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshake(memory: bool, cpu: bool, clock: &str) -> Handshake {
        let (memory_profile, cpu_profile) = (Some(memory), Some(cpu));
        Handshake { pid: Some(7), memory_profile, cpu_profile, clock: Some(clock.to_owned()), ..Handshake::default() }
    }

    fn inherited(commands: &[RbkitCommand]) -> UndoList {
        let process = ProcessId::of(&handshake(false, false, ""));
        UndoList::new(Some(PendingUndo { request: "ruby:5556".to_owned(), process, commands: commands.to_vec() }))
    }

    fn options(enable: &[ProfileKind], clock: Option<Clock>) -> AgentOptions {
        AgentOptions { enable: enable.to_vec(), clock, ..AgentOptions::default() }
    }

    const LINK: Link = Link { connection: 1, subscription: Some(1) };
    const ALL: [RbkitCommand; 3] =
        [RbkitCommand::StopMemoryProfile, RbkitCommand::UseCpuTime, RbkitCommand::StopCpuProfiling];

    #[test]
    fn inherited_commands_become_ours_if_they_concern_the_process_and_are_in_effect() {
        let wanted = options(&[ProfileKind::Memory, ProfileKind::Cpu], Some(Clock::Wall));
        let mut list = inherited(&ALL);
        list.shown(&handshake(true, true, "wall"), &wanted, LINK);
        assert_eq!((list.commands(), list.unwanted()), (ALL.to_vec(), None));
        let mut list = inherited(&ALL);
        list.shown(&handshake(true, false, "cpu"), &wanted, LINK);
        assert_eq!(list.commands(), [RbkitCommand::StopMemoryProfile]);
        let mut list = inherited(&ALL);
        list.shown(&Handshake { pid: Some(8), ..handshake(true, true, "wall") }, &wanted, LINK);
        assert!(list.is_empty());
    }

    #[test]
    fn what_the_options_do_not_want_is_undone_immediately_the_last_command_first() {
        let mut list = inherited(&ALL);
        list.shown(&handshake(true, true, "wall"), &options(&[ProfileKind::Memory], None), LINK);
        assert_eq!(list.unwanted(), Some(RbkitCommand::StopCpuProfiling));
        list.answered(RbkitCommand::StopCpuProfiling, false, Duration::ZERO);
        assert_eq!(list.unwanted(), Some(RbkitCommand::UseCpuTime));
        list.answered(RbkitCommand::UseCpuTime, false, Duration::ZERO);
        assert_eq!((list.unwanted(), list.commands()), (None, vec![RbkitCommand::StopMemoryProfile]));
        // The clock of a profile that is on cannot be changed.
        let mut list = inherited(&ALL);
        list.shown(
            &handshake(true, true, "wall"),
            &options(&[ProfileKind::Memory, ProfileKind::Cpu], Some(Clock::Cpu)),
            LINK,
        );
        assert_eq!(list.unwanted(), Some(RbkitCommand::StopCpuProfiling));
    }

    #[test]
    fn a_command_that_undoes_ours_needs_no_command_that_undoes_it() {
        let mut list = UndoList::default();
        list.sent(RbkitCommand::UseWallTime, Some("cpu"), LINK, true);
        assert_eq!(list.commands(), [RbkitCommand::UseCpuTime]);
        list.sent(RbkitCommand::UseCpuTime, Some("wall"), LINK, true);
        assert_eq!(
            (list.commands(), list.unanswered()),
            (vec![RbkitCommand::UseCpuTime], vec![RbkitCommand::UseCpuTime])
        );
        list.answered(RbkitCommand::UseCpuTime, true, Duration::ZERO);
        assert!(list.is_empty());
    }

    #[test]
    fn without_a_handshake_only_an_open_subscription_shows_that_the_process_is_the_same() {
        let mut list = UndoList::default();
        list.sent(RbkitCommand::StartMemoryProfile, None, LINK, true);
        assert_eq!((list.next(false, None), list.next(false, Some(2))), (None, None));
        assert_eq!(list.next(false, Some(1)), Some(RbkitCommand::StopMemoryProfile));
        assert!(list.take_unsent(false, Some(2)).is_empty());
        assert_eq!(list.take_unsent(false, Some(1)), [RbkitCommand::StopMemoryProfile]);
        // It is sent again only if a handshake shows that it is needed.
        assert_eq!((list.next(false, Some(1)), list.next(true, None)), (None, Some(RbkitCommand::StopMemoryProfile)));
    }
}
