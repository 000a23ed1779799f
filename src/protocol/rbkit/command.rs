//! The commands of a process, and what becomes of those that operators send.

use std::fmt;

/// A request that a process accepts (field notes, section 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum RbkitCommand {
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

impl RbkitCommand {
    /// Every command.
    pub const ALL: [RbkitCommand; 9] = [
        RbkitCommand::Handshake,
        RbkitCommand::StartMemoryProfile,
        RbkitCommand::StopMemoryProfile,
        RbkitCommand::StartCpuProfiling,
        RbkitCommand::StopCpuProfiling,
        RbkitCommand::UseCpuTime,
        RbkitCommand::UseWallTime,
        RbkitCommand::TriggerGc,
        RbkitCommand::ObjectspaceSnapshot,
    ];

    /// The command on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            RbkitCommand::Handshake => "handshake",
            RbkitCommand::StartMemoryProfile => "start_memory_profile",
            RbkitCommand::StopMemoryProfile => "stop_memory_profile",
            RbkitCommand::StartCpuProfiling => "start_cpu_profiling",
            RbkitCommand::StopCpuProfiling => "stop_cpu_profiling",
            RbkitCommand::UseCpuTime => "use_cpu_time",
            RbkitCommand::UseWallTime => "use_wall_time",
            RbkitCommand::TriggerGc => "trigger_gc",
            RbkitCommand::ObjectspaceSnapshot => "objectspace_snapshot",
        }
    }

    /// Whether it can undo another command.
    pub fn is_undo(self) -> bool {
        use RbkitCommand::{StopCpuProfiling, StopMemoryProfile, UseCpuTime, UseWallTime};
        matches!(self, StopMemoryProfile | StopCpuProfiling | UseCpuTime | UseWallTime)
    }

    /// Whether the process answers only when the work is done.
    pub(super) fn is_slow(self) -> bool {
        matches!(self, RbkitCommand::TriggerGc | RbkitCommand::ObjectspaceSnapshot)
    }

    /// Whether it changes what a handshake reports.
    pub(super) fn changes_handshake(self) -> bool {
        use RbkitCommand::{StartMemoryProfile, StopMemoryProfile};
        matches!(self, StartMemoryProfile | StopMemoryProfile) || self.is_about_cpu()
    }

    /// Whether it concerns the CPU profile, which the released gem does not have.
    pub(super) fn is_about_cpu(self) -> bool {
        use RbkitCommand::{StartCpuProfiling, StopCpuProfiling, UseCpuTime, UseWallTime};
        matches!(self, StartCpuProfiling | StopCpuProfiling | UseCpuTime | UseWallTime)
    }
}

/// Why a command was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RbkitCommandError {
    /// There is no connection to the process.
    NotConnected,
    /// The process runs the released gem, which answers `ok` to this command and does nothing.
    NotKnown,
    /// Too many commands are waiting.
    Busy,
    /// The process did not answer in time, or the connection broke.
    NotAnswered,
}

impl fmt::Display for RbkitCommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RbkitCommandError::NotConnected => "there is no connection to the process",
            RbkitCommandError::NotKnown => "this version of rbkit does not know CPU profiles",
            RbkitCommandError::Busy => "too many commands are waiting already",
            RbkitCommandError::NotAnswered => "the process has not answered",
        })
    }
}

impl std::error::Error for RbkitCommandError {}

/// Is called once with the result of a command.
pub type CommandCallback = Box<dyn FnOnce(Result<(), RbkitCommandError>) + Send>;

/// A command of an operator. The result is reported exactly once; dropping an order reports [`RbkitCommandError::NotAnswered`].
pub(super) struct Order {
    pub(super) command: RbkitCommand,
    answer: Option<CommandCallback>,
}

impl Order {
    pub(super) fn new(command: RbkitCommand, answer: CommandCallback) -> Self {
        Order { command, answer: Some(answer) }
    }

    pub(super) fn answer(mut self, result: Result<(), RbkitCommandError>) {
        if let Some(answer) = self.answer.take() {
            answer(result);
        }
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            answer(Err(RbkitCommandError::NotAnswered));
        }
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.command.fmt(f)
    }
}
