//! The modes of an agent, the commands of a collector, and why a command is refused.

use std::fmt;

/// The mode of an agent (section 1.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Mode {
    Initializing,
    Tracing,
    Paused,
    Suspended,
    ShuttingDown,
    /// Any other byte.
    Unknown(u8),
}

impl Mode {
    /// The mode that a heartbeat reports.
    pub fn of(byte: u8) -> Mode {
        match byte {
            b'I' => Mode::Initializing,
            b'T' => Mode::Tracing,
            b'P' => Mode::Paused,
            b'S' => Mode::Suspended,
            b'X' => Mode::ShuttingDown,
            other => Mode::Unknown(other),
        }
    }

    /// The name in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Initializing => "initializing",
            Mode::Tracing => "tracing",
            Mode::Paused => "paused",
            Mode::Suspended => "suspended",
            Mode::ShuttingDown => "shutting_down",
            Mode::Unknown(_) => "unknown",
        }
    }
}

/// A command of the collector to an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BytefrogCommand {
    /// Lets the program run, traced.
    Start,
    /// Ends the tracing for good; the program continues.
    Stop,
    /// Blocks traced threads at their next traced call.
    Pause,
    /// Ends a pause.
    Unpause,
    /// Makes the agent drop events.
    Suspend,
    /// Ends a suspension.
    Unsuspend,
}

impl BytefrogCommand {
    /// Every command.
    pub const ALL: [BytefrogCommand; 6] = [
        BytefrogCommand::Start,
        BytefrogCommand::Stop,
        BytefrogCommand::Pause,
        BytefrogCommand::Unpause,
        BytefrogCommand::Suspend,
        BytefrogCommand::Unsuspend,
    ];

    /// The message type, which is the whole message.
    pub fn message(self) -> u8 {
        match self {
            BytefrogCommand::Start => 2,
            BytefrogCommand::Stop => 3,
            BytefrogCommand::Pause => 4,
            BytefrogCommand::Unpause => 5,
            BytefrogCommand::Suspend => 6,
            BytefrogCommand::Unsuspend => 7,
        }
    }

    /// The name in the configuration and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            BytefrogCommand::Start => "start",
            BytefrogCommand::Stop => "stop",
            BytefrogCommand::Pause => "pause",
            BytefrogCommand::Unpause => "unpause",
            BytefrogCommand::Suspend => "suspend",
            BytefrogCommand::Unsuspend => "unsuspend",
        }
    }

    /// The command of this name.
    pub fn by_name(name: &str) -> Option<BytefrogCommand> {
        BytefrogCommand::ALL.into_iter().find(|command| command.as_str() == name)
    }

    /// The only mode in which the command is allowed; `None`: any.
    pub(super) fn required_mode(self) -> Option<Mode> {
        match self {
            BytefrogCommand::Pause | BytefrogCommand::Suspend => Some(Mode::Tracing),
            BytefrogCommand::Unpause => Some(Mode::Paused),
            BytefrogCommand::Unsuspend => Some(Mode::Suspended),
            BytefrogCommand::Start | BytefrogCommand::Stop => None,
        }
    }

    /// The mode that the command leads to.
    pub(super) fn target_mode(self) -> Mode {
        match self {
            BytefrogCommand::Start | BytefrogCommand::Unpause | BytefrogCommand::Unsuspend => Mode::Tracing,
            BytefrogCommand::Stop => Mode::ShuttingDown,
            BytefrogCommand::Pause => Mode::Paused,
            BytefrogCommand::Suspend => Mode::Suspended,
        }
    }
}

/// Why a command was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum BytefrogCommandError {
    NoSuchRun,
    NoControl,
    AlreadyStarted,
    NotStarted,
    NotSettled,
    Unconfirmed(BytefrogCommand),
    ShuttingDown,
    WrongMode { command: BytefrogCommand, mode: Mode },
}

impl fmt::Display for BytefrogCommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BytefrogCommandError::NoSuchRun => f.write_str("no agent has this run id"),
            BytefrogCommandError::NoControl => {
                f.write_str("the control connection of the agent has ended; it receives no commands")
            }
            BytefrogCommandError::AlreadyStarted => {
                f.write_str("the agent is started already; a second start would end its trace")
            }
            BytefrogCommandError::NotStarted => {
                f.write_str("the agent is not started yet; the command would end the traced program or make it hang")
            }
            BytefrogCommandError::NotSettled => f.write_str(
                "the agent has only just started: before all its data connections and a heartbeat after them have \
                 arrived, a command can make it ignore all later ones",
            ),
            BytefrogCommandError::Unconfirmed(command) => {
                let command = command.as_str();
                write!(f, "the agent has not confirmed `{command}` yet; two commands in a row may end its trace")
            }
            BytefrogCommandError::ShuttingDown => f.write_str("the agent is shutting down"),
            BytefrogCommandError::WrongMode { command, mode } => {
                let required = command.required_mode().map_or("another", Mode::as_str);
                let (command, mode) = (command.as_str(), mode.as_str());
                write!(f, "the agent is {mode}; `{command}` in any mode but {required} ends its trace")
            }
        }
    }
}

impl std::error::Error for BytefrogCommandError {}
