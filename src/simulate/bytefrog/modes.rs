//! The effects of commands on an agent, harm included.

use super::harm::Harm;

/// A mode, as heartbeats report it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Mode {
    Initializing = b'I',
    Tracing = b'T',
    Paused = b'P',
    Suspended = b'S',
    ShuttingDown = b'X',
}

/// A message of the collector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CollectorMessage {
    Configuration(Vec<u8>),
    Start,
    Stop,
    Pause,
    Unpause,
    Suspend,
    Unsuspend,
    Error(String),
    /// A message of an unknown type.
    Unknown(u8),
}

/// How the program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunMode {
    /// It runs traced.
    Traced,
    /// It stops at its next call.
    Blocked,
    /// It runs, and its events are dropped.
    Untraced,
    /// It runs untraced from now on.
    Ended,
}

/// The state of an agent as far as commands depend on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Modes {
    pub(super) mode: Mode,
    pub(super) run_mode: RunMode,
    configured: bool,
    started: bool,
    /// Whether all data connections are open, and the buffers follow commands (rule 8).
    settled: bool,
}

impl Modes {
    pub(super) fn new() -> Self {
        Modes { mode: Mode::Initializing, run_mode: RunMode::Traced, configured: false, started: false, settled: false }
    }

    pub(super) fn is_started(&self) -> bool {
        self.started
    }

    /// All data connections are open.
    pub(super) fn settle(&mut self) {
        self.settled = true;
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// The program or its tracing has ended.
    pub(super) fn end(&mut self) {
        self.mode = Mode::ShuttingDown;
        self.run_mode = RunMode::Ended;
    }

    /// Handles a command.
    pub(super) fn handle_command(&mut self, command: &CollectorMessage) -> Result<(), Harm> {
        if !self.configured {
            return self.handshake(command);
        }
        match (self.mode, self.started) {
            (Mode::ShuttingDown, _) => after_the_end(command),
            (_, false) => self.before_start(command),
            (_, true) => self.running(command),
        }
    }

    fn handshake(&mut self, command: &CollectorMessage) -> Result<(), Harm> {
        match command {
            CollectorMessage::Configuration(_) => {
                self.configured = true;
                Ok(())
            }
            CollectorMessage::Error(text) => Err(Harm::Abort(format!("the hello was answered with an error: {text}"))),
            other => Err(Harm::Abort(format!("the hello was answered with {}", other.name()))),
        }
    }

    fn before_start(&mut self, command: &CollectorMessage) -> Result<(), Harm> {
        match (command, self.mode) {
            (CollectorMessage::Configuration(_), Mode::Initializing) => {}
            (CollectorMessage::Start, mode) => {
                self.started = true;
                // Suspended before `start`: heartbeats report it, and all events are sent nevertheless.
                if mode == Mode::Initializing {
                    self.mode = Mode::Tracing;
                }
            }
            (CollectorMessage::Suspend, Mode::Initializing) => self.mode = Mode::Suspended,
            (CollectorMessage::Unsuspend, Mode::Suspended) => self.mode = Mode::Initializing,
            (CollectorMessage::Stop, _) => return Err(Harm::Hang("stop came before start".to_owned())),
            (other, _) => return Err(Harm::NeverRun(format!("{} came before start", other.name()))),
        }
        Ok(())
    }

    fn running(&mut self, command: &CollectorMessage) -> Result<(), Harm> {
        let is_early = !self.settled;
        let (mode, run_mode) = match (command, self.mode) {
            (CollectorMessage::Stop, _) if is_early => {
                return Err(Harm::ControlLost("stop came right after start, and would be ignored".to_owned()));
            }
            (CollectorMessage::Suspend, _) if is_early => {
                return Err(Harm::ControlLost("suspend came right after start, and kills the controller".to_owned()));
            }
            (CollectorMessage::Pause | CollectorMessage::Unpause | CollectorMessage::Unsuspend, _) if is_early => {
                return Err(Harm::ControlLost(format!("{} came before the agent had settled", command.name())));
            }
            (CollectorMessage::Stop, _) => (Mode::ShuttingDown, RunMode::Ended),
            (CollectorMessage::Pause, Mode::Tracing) => (Mode::Paused, RunMode::Blocked),
            (CollectorMessage::Unpause, Mode::Paused) => (Mode::Tracing, RunMode::Traced),
            (CollectorMessage::Suspend, Mode::Tracing) => (Mode::Suspended, RunMode::Untraced),
            (CollectorMessage::Unsuspend, Mode::Suspended) => (Mode::Tracing, RunMode::Traced),
            (CollectorMessage::Error(text), _) => {
                return Err(Harm::TraceDies(format!("received error from HQ: {text}")));
            }
            (other, mode) => return Err(Harm::TraceDies(format!("{} came in mode {mode:?}", other.name()))),
        };
        (self.mode, self.run_mode) = (mode, run_mode);
        Ok(())
    }
}

/// Commands may cross the last heartbeats, which is not a mistake of the collector. What is wrong at any time still is.
fn after_the_end(command: &CollectorMessage) -> Result<(), Harm> {
    match command {
        CollectorMessage::Configuration(_) | CollectorMessage::Unknown(_) | CollectorMessage::Start => {
            Err(Harm::TraceDies(format!("{} came in mode ShuttingDown", command.name())))
        }
        _ => Ok(()),
    }
}

impl CollectorMessage {
    /// The command in words.
    pub(super) fn name(&self) -> String {
        match self {
            CollectorMessage::Configuration(_) => "a configuration".to_owned(),
            CollectorMessage::Start => "start".to_owned(),
            CollectorMessage::Stop => "stop".to_owned(),
            CollectorMessage::Pause => "pause".to_owned(),
            CollectorMessage::Unpause => "unpause".to_owned(),
            CollectorMessage::Suspend => "suspend".to_owned(),
            CollectorMessage::Unsuspend => "unsuspend".to_owned(),
            CollectorMessage::Error(text) => format!("an error ({text})"),
            CollectorMessage::Unknown(kind) => format!("a message of the unknown type {kind}"),
        }
    }

    /// The command at the front of `bytes` and its length. `None`: it is incomplete.
    pub(super) fn read(version: u8, bytes: &[u8]) -> Option<(CollectorMessage, usize)> {
        let command = match *bytes.first()? {
            1 => {
                let head = if version == 1 { 5 } else { 3 };
                let body = with_length(bytes, head)?;
                return Some((CollectorMessage::Configuration(body.to_vec()), head + body.len()));
            }
            99 => {
                let text = with_length(bytes, 3)?;
                return Some((CollectorMessage::Error(String::from_utf8_lossy(text).into_owned()), 3 + text.len()));
            }
            2 => CollectorMessage::Start,
            3 => CollectorMessage::Stop,
            4 => CollectorMessage::Pause,
            5 => CollectorMessage::Unpause,
            6 => CollectorMessage::Suspend,
            7 => CollectorMessage::Unsuspend,
            unknown => CollectorMessage::Unknown(unknown),
        };
        Some((command, 1))
    }
}

/// The body behind a type and a length that end at `head`.
fn with_length(bytes: &[u8], head: usize) -> Option<&[u8]> {
    let length = bytes.get(1..head)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    bytes.get(head..)?.get(..length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started() -> Modes {
        let mut modes = Modes::new();
        modes.handle_command(&CollectorMessage::Configuration(Vec::new())).unwrap();
        modes.handle_command(&CollectorMessage::Start).unwrap();
        modes
    }

    fn settled(commands: &[CollectorMessage]) -> Result<Mode, Harm> {
        let mut modes = started();
        modes.settle();
        commands.iter().try_for_each(|command| modes.handle_command(command))?;
        Ok(modes.mode)
    }

    fn unstarted(commands: &[CollectorMessage]) -> Result<Mode, Harm> {
        let mut modes = Modes::new();
        modes.handle_command(&CollectorMessage::Configuration(Vec::new()))?;
        commands.iter().try_for_each(|command| modes.handle_command(command))?;
        Ok(modes.mode)
    }

    #[test]
    fn modes_change_as_in_real_agents() {
        use CollectorMessage::*;
        assert_eq!(settled(&[]), Ok(Mode::Tracing));
        assert_eq!(settled(&[Suspend, Unsuspend, Pause]), Ok(Mode::Paused));
        assert_eq!(settled(&[Pause, Unpause, Suspend]), Ok(Mode::Suspended));
        assert_eq!(settled(&[Pause, Stop, Unpause, Stop]), Ok(Mode::ShuttingDown));
    }

    #[test]
    fn commands_in_the_wrong_mode_kill_the_trace() {
        use CollectorMessage::*;
        for commands in [
            vec![Pause, Pause],
            vec![Suspend, Suspend],
            vec![Suspend, Pause],
            vec![Pause, Unsuspend],
            vec![Unpause],
            vec![Unsuspend],
            vec![Start],
            vec![Configuration(Vec::new())],
            vec![Unknown(77)],
            vec![Error("no".to_owned())],
        ] {
            assert!(matches!(settled(&commands), Err(Harm::TraceDies(_))), "{commands:?}");
        }
    }

    #[test]
    fn commands_before_start_keep_the_program_from_running() {
        use CollectorMessage::*;
        assert!(matches!(unstarted(&[Stop]), Err(Harm::Hang(_))));
        for command in [Pause, Unpause, Unsuspend, Error("no".to_owned()), Unknown(31)] {
            assert!(matches!(unstarted(&[command]), Err(Harm::NeverRun(_))));
        }
        assert_eq!(unstarted(&[Configuration(Vec::new())]), Ok(Mode::Initializing));
        assert!(matches!(Modes::new().handle_command(&Start), Err(Harm::Abort(_))));
        assert!(matches!(Modes::new().handle_command(&Error("no".to_owned())), Err(Harm::Abort(_))));
    }

    #[test]
    fn a_suspend_before_start_is_reported_and_has_no_effect() {
        let mut modes = Modes::new();
        for command in [CollectorMessage::Configuration(Vec::new()), CollectorMessage::Suspend, CollectorMessage::Start]
        {
            modes.handle_command(&command).unwrap();
        }
        assert_eq!((modes.mode, modes.run_mode), (Mode::Suspended, RunMode::Traced));
    }

    #[test]
    fn commands_right_after_start_are_lost() {
        use CollectorMessage::*;
        for command in [Stop, Suspend, Pause, Unpause, Unsuspend] {
            assert!(matches!(started().handle_command(&command), Err(Harm::ControlLost(_))));
        }
    }

    #[test]
    fn a_command_is_read_once_it_is_whole() {
        let message = [1, 0, 2, b'{', b'}', 2];
        for length in 0..5 {
            assert_eq!(CollectorMessage::read(4, &message[..length]), None);
        }
        assert_eq!(CollectorMessage::read(4, &message), Some((CollectorMessage::Configuration(b"{}".to_vec()), 5)));
        assert_eq!(CollectorMessage::read(1, &[1, 0, 0, 0, 1, 9]), Some((CollectorMessage::Configuration(vec![9]), 6)));
        assert_eq!(
            CollectorMessage::read(4, &[99, 0, 2, b'n', b'o']),
            Some((CollectorMessage::Error("no".to_owned()), 5))
        );
        assert_eq!(CollectorMessage::read(4, &[77, 0]), Some((CollectorMessage::Unknown(77), 1)));
    }
}
