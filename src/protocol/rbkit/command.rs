//! The commands of a process, and what becomes of those that operators send.

use std::fmt;

/// A request that a process accepts (field notes, section 1).
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

    /// Whether it can undo another command.
    pub fn is_undo(self) -> bool {
        use Command::{StopCpuProfiling, StopMemoryProfile, UseCpuTime, UseWallTime};
        matches!(self, StopMemoryProfile | StopCpuProfiling | UseCpuTime | UseWallTime)
    }

    /// Whether the process answers only when the work is done.
    pub(super) fn is_slow(self) -> bool {
        matches!(self, Command::TriggerGc | Command::ObjectspaceSnapshot)
    }

    /// Whether it changes what a handshake reports.
    pub(super) fn changes_handshake(self) -> bool {
        use Command::{StartMemoryProfile, StopMemoryProfile};
        matches!(self, StartMemoryProfile | StopMemoryProfile) || self.is_about_cpu()
    }

    /// Whether it concerns the CPU profile, which the released gem does not have.
    pub(super) fn is_about_cpu(self) -> bool {
        use Command::{StartCpuProfiling, StopCpuProfiling, UseCpuTime, UseWallTime};
        matches!(self, StartCpuProfiling | StopCpuProfiling | UseCpuTime | UseWallTime)
    }
}

/// Why a command was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is no connection to the process.
    NotConnected,
    /// The process runs the released gem, which answers `ok` to this command and does nothing.
    NotKnown,
    /// Too many commands are waiting.
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

/// Is called once with the result of a command.
pub type Answer = Box<dyn FnOnce(Result<(), Refusal>) + Send>;

/// A command of an operator. The result is reported exactly once; dropping an order reports [`Refusal::NotAnswered`].
pub(super) struct Order {
    pub(super) command: Command,
    answer: Option<Answer>,
}

impl Order {
    pub(super) fn new(command: Command, answer: Answer) -> Self {
        Order { command, answer: Some(answer) }
    }

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
