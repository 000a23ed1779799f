//! The agent of a run as its control connection shows it: mode, health, and which commands it can take without harm.
//!
//! What kills, hangs or silently ends the traced program is in the field notes, section 1.4. Commands go out only in
//! the states that rules 8 to 10 allow; every refusal says why.

use std::fmt;
use std::time::Duration;

/// After a command, the agent should report the mode that it leads to within this time (section 1.6).
const OBEYS_WITHIN: Duration = Duration::from_secs(2);
/// More heartbeats missed than this make an agent unhealthy (rule 25).
const MAX_MISSED: u32 = 3;

/// What an agent is doing (section 1.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Mode {
    Initializing,
    Tracing,
    Paused,
    Suspended,
    ShuttingDown,
    /// A byte that is none of those.
    Unknown(u8),
}

impl Mode {
    /// The mode of a heartbeat.
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

    /// Its name in events.
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

/// What a collector can tell an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Lets the program run, traced.
    Start,
    /// Ends the tracing for good; the program runs on.
    Stop,
    /// Lets traced threads wait at their next traced call.
    Pause,
    /// The opposite of pause.
    Unpause,
    /// Drops events in the agent.
    Suspend,
    /// The opposite of suspend.
    Unsuspend,
}

impl Command {
    /// Every command.
    pub const ALL: [Command; 6] =
        [Command::Start, Command::Stop, Command::Pause, Command::Unpause, Command::Suspend, Command::Unsuspend];

    /// Its message type, which is the whole message.
    pub fn message(self) -> u8 {
        match self {
            Command::Start => 2,
            Command::Stop => 3,
            Command::Pause => 4,
            Command::Unpause => 5,
            Command::Suspend => 6,
            Command::Unsuspend => 7,
        }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Command::Start => "start",
            Command::Stop => "stop",
            Command::Pause => "pause",
            Command::Unpause => "unpause",
            Command::Suspend => "suspend",
            Command::Unsuspend => "unsuspend",
        }
    }

    /// The command of this name.
    pub fn by_name(name: &str) -> Option<Command> {
        Command::ALL.into_iter().find(|command| command.as_str() == name)
    }

    /// The mode that it is allowed in, where it is only one.
    fn needs(self) -> Option<Mode> {
        match self {
            Command::Pause | Command::Suspend => Some(Mode::Tracing),
            Command::Unpause => Some(Mode::Paused),
            Command::Unsuspend => Some(Mode::Suspended),
            Command::Start | Command::Stop => None,
        }
    }

    /// The mode that it leads to.
    fn leads_to(self) -> Mode {
        match self {
            Command::Start | Command::Unpause | Command::Unsuspend => Mode::Tracing,
            Command::Stop => Mode::ShuttingDown,
            Command::Pause => Mode::Paused,
            Command::Suspend => Mode::Suspended,
        }
    }
}

/// Why a command was not sent: what it would do to the traced program, or that nobody would hear it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Refusal {
    NoSuchRun,
    NoControl,
    AlreadyStarted,
    NotStarted,
    NotSettled,
    StillObeying(Command),
    ShuttingDown,
    WrongMode { command: Command, mode: Mode },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoSuchRun => f.write_str("no agent has this run id"),
            Refusal::NoControl => f.write_str("the agent's control connection has ended; it hears nothing any more"),
            Refusal::AlreadyStarted => f.write_str("it was started already; a second start would end its trace"),
            Refusal::NotStarted => {
                f.write_str("it was not started yet; now this would end the traced program or let it hang")
            }
            Refusal::NotSettled => f.write_str(
                "it has only just started: until its data connections and one heartbeat after them are here, a \
                 command may leave it deaf",
            ),
            Refusal::StillObeying(command) => {
                write!(f, "it has not confirmed `{}` yet; two commands at once may end its trace", command.as_str())
            }
            Refusal::ShuttingDown => f.write_str("it is shutting down"),
            Refusal::WrongMode { command, mode } => {
                let needed = command.needs().map_or("another", Mode::as_str);
                write!(f, "it is {}, and `{}` in any mode but {needed} ends its trace", mode.as_str(), command.as_str())
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// The agent of one run.
#[derive(Debug)]
pub(super) struct Agent {
    /// Data connections that it was told to open.
    pub data_connections: usize,
    data_hellos: usize,
    /// A heartbeat has come after the last data hello that we wait for (rule 8).
    is_settled: bool,
    mode: Mode,
    is_started: bool,
    has_control: bool,
    has_reported: bool,
    has_shut_down: bool,
    has_failed: bool,
    obeying: Option<(Command, Duration)>,
    interval: Duration,
    last_heartbeat: Duration,
    is_unhealthy: bool,
    /// Sent as soon as it can do no harm.
    pub wish: Option<Command>,
}

impl Agent {
    /// An agent that has said hello and gets its configuration now.
    pub(super) fn new(data_connections: usize, interval: Duration, elapsed: Duration) -> Self {
        Agent {
            data_connections,
            data_hellos: 0,
            is_settled: false,
            mode: Mode::Initializing,
            is_started: false,
            has_control: true,
            has_reported: false,
            has_shut_down: false,
            has_failed: false,
            obeying: None,
            interval,
            last_heartbeat: elapsed,
            is_unhealthy: false,
            wish: None,
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn is_started(&self) -> bool {
        self.is_started
    }

    pub(super) fn is_unhealthy(&self) -> bool {
        self.is_unhealthy
    }

    pub(super) fn has_control(&self) -> bool {
        self.has_control
    }

    /// Whether it has announced its end (mode X).
    pub(super) fn has_shut_down(&self) -> bool {
        self.has_shut_down
    }

    /// How its run ends (rule 28); whether numbers are missing, and whether it went on without its control connection.
    pub(super) fn outcome(&self, has_gaps: bool, control_was_lost: bool) -> &'static str {
        match () {
            () if !self.has_reported => "aborted_in_handshake",
            () if self.has_failed => "agent_error",
            () if self.data_hellos == 0 => "never_started",
            () if has_gaps => "with_gaps",
            () if self.has_shut_down => "complete",
            () if control_was_lost => "control_lost",
            () => "without_shutdown",
        }
    }

    /// A heartbeat. `true`: it was unhealthy and is not any more.
    pub(super) fn heartbeat(&mut self, mode: Mode, elapsed: Duration) -> bool {
        self.has_reported = true;
        self.last_heartbeat = elapsed;
        self.has_shut_down |= mode == Mode::ShuttingDown;
        // One that was on its way before the last data hello may deceive us: then only `stop` can follow, which such an
        // agent ignores, for everything else needs a mode.
        self.is_settled |= self.is_started && self.data_hellos >= self.data_connections;
        self.mode = mode;
        if self.obeying.is_some_and(|(command, _)| command.leads_to() == mode) {
            self.obeying = None;
        }
        std::mem::take(&mut self.is_unhealthy)
    }

    /// Time has passed. `true`: it has become unhealthy.
    pub(super) fn check_health(&mut self, elapsed: Duration) -> bool {
        if self.obeying.is_some_and(|(_, since)| elapsed >= since + OBEYS_WITHIN) {
            self.obeying = None;
        }
        let missed = elapsed > self.last_heartbeat + self.interval * (MAX_MISSED + 1);
        let is_news = missed && self.has_control && !self.has_shut_down && !self.is_unhealthy;
        self.is_unhealthy |= is_news;
        is_news
    }

    /// A data connection that belongs to it. `false`: it has all that it was told to open (section 5).
    pub(super) fn data_hello(&mut self) -> bool {
        let is_expected = self.data_hellos < self.data_connections;
        self.data_hellos += usize::from(is_expected);
        is_expected
    }

    /// It has reported an error: its trace dies, its program runs on.
    pub(super) fn failed(&mut self) {
        self.has_failed = true;
    }

    /// Its control connection has ended.
    pub(super) fn lost_control(&mut self) {
        self.has_control = false;
    }

    /// Sends a command if it can do no harm now (rules 8 to 10). The byte to be sent.
    ///
    /// # Errors
    /// Why it is not sent.
    pub(super) fn obey(&mut self, command: Command, elapsed: Duration) -> Result<u8, Refusal> {
        if !self.has_control {
            return Err(Refusal::NoControl);
        }
        if command == Command::Start {
            if self.is_started {
                return Err(Refusal::AlreadyStarted);
            }
            if self.has_shut_down {
                return Err(Refusal::ShuttingDown);
            }
            self.is_started = true;
            return Ok(command.message());
        }
        match command.needs() {
            _ if !self.is_started => return Err(Refusal::NotStarted),
            _ if self.has_shut_down => return Err(Refusal::ShuttingDown),
            _ if !self.is_settled => return Err(Refusal::NotSettled),
            Some(needed) => {
                if let Some((former, _)) = self.obeying {
                    return Err(Refusal::StillObeying(former));
                }
                if self.mode != needed {
                    return Err(Refusal::WrongMode { command, mode: self.mode });
                }
            }
            None => {}
        }
        self.obeying = Some((command, elapsed));
        Ok(command.message())
    }

    /// What is wished for and can be done now.
    pub(super) fn take_wish(&mut self, elapsed: Duration) -> Option<u8> {
        let message = self.obey(self.wish?, elapsed).ok()?;
        self.wish = None;
        Some(message)
    }

    /// Last words of a collector that goes: the program runs on, untraced.
    pub(super) fn farewell(&mut self, elapsed: Duration) -> Vec<u8> {
        let first = match self.mode {
            _ if !self.is_started => Command::Start,
            Mode::Paused => Command::Unpause,
            _ => Command::Stop,
        };
        let mut words: Vec<u8> = self.obey(first, elapsed).into_iter().collect();
        if first == Command::Unpause && !words.is_empty() {
            words.push(Command::Stop.message());
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn settled(mode: Mode) -> Agent {
        let mut agent = Agent::new(1, SECOND, Duration::ZERO);
        agent.heartbeat(Mode::Initializing, Duration::ZERO);
        agent.obey(Command::Start, Duration::ZERO).unwrap();
        assert!(agent.data_hello());
        agent.heartbeat(mode, Duration::ZERO);
        agent
    }

    #[test]
    fn nothing_but_start_is_said_before_start() {
        let mut agent = Agent::new(1, SECOND, Duration::ZERO);
        agent.heartbeat(Mode::Initializing, Duration::ZERO);
        for command in &Command::ALL[1..] {
            assert_eq!(agent.obey(*command, SECOND), Err(Refusal::NotStarted));
        }
        assert_eq!(agent.obey(Command::Start, SECOND), Ok(2));
        assert_eq!(agent.obey(Command::Start, SECOND), Err(Refusal::AlreadyStarted));
    }

    #[test]
    fn nothing_is_said_until_all_data_connections_and_a_heartbeat_after_them_are_here() {
        let mut agent = Agent::new(2, SECOND, Duration::ZERO);
        agent.obey(Command::Start, Duration::ZERO).unwrap();
        agent.wish = Some(Command::Suspend);
        agent.heartbeat(Mode::Tracing, SECOND);
        assert!(agent.data_hello());
        agent.heartbeat(Mode::Tracing, SECOND);
        assert!(agent.data_hello());
        assert!(!agent.data_hello());
        assert_eq!(agent.obey(Command::Stop, SECOND), Err(Refusal::NotSettled));
        assert_eq!(agent.take_wish(SECOND), None);
        agent.heartbeat(Mode::Tracing, SECOND);
        assert_eq!(agent.take_wish(SECOND), Some(6));
    }

    #[test]
    fn mode_commands_are_sent_in_their_mode_only_and_one_at_a_time() {
        let modes = [Mode::Initializing, Mode::Tracing, Mode::Paused, Mode::Suspended];
        let allowed: Vec<_> = Command::ALL
            .into_iter()
            .flat_map(|command| modes.into_iter().map(move |mode| (command, mode)))
            .filter(|(command, mode)| settled(*mode).obey(*command, SECOND).is_ok())
            .collect();
        let always = modes.map(|mode| (Command::Stop, mode));
        let one = [
            (Command::Pause, Mode::Tracing),
            (Command::Unpause, Mode::Paused),
            (Command::Suspend, Mode::Tracing),
            (Command::Unsuspend, Mode::Suspended),
        ];
        assert_eq!(allowed, [&always[..], &one[..]].concat());
        let mut agent = settled(Mode::Tracing);
        agent.obey(Command::Pause, SECOND).unwrap();
        assert_eq!(agent.obey(Command::Suspend, SECOND), Err(Refusal::StillObeying(Command::Pause)));
        agent.heartbeat(Mode::Paused, SECOND);
        assert_eq!(agent.obey(Command::Unpause, SECOND), Ok(5));
        let mut gone = settled(Mode::ShuttingDown);
        assert_eq!(gone.obey(Command::Stop, SECOND), Err(Refusal::ShuttingDown));
    }

    #[test]
    fn more_than_three_missed_heartbeats_are_told_once_and_their_end_too() {
        let mut agent = settled(Mode::Tracing);
        assert!(!agent.check_health(4 * SECOND));
        assert!(agent.check_health(4 * SECOND + Duration::from_millis(1)));
        assert!(!agent.check_health(9 * SECOND));
        assert!(agent.heartbeat(Mode::Tracing, 9 * SECOND));
        assert!(!agent.heartbeat(Mode::ShuttingDown, 9 * SECOND));
        assert!(!agent.check_health(99 * SECOND));
    }

    #[test]
    fn a_farewell_lets_the_program_run_on() {
        assert_eq!(Agent::new(1, SECOND, Duration::ZERO).farewell(SECOND), [2]);
        assert_eq!(settled(Mode::Tracing).farewell(SECOND), [3]);
        assert_eq!(settled(Mode::Paused).farewell(SECOND), [5, 3]);
        assert!(settled(Mode::ShuttingDown).farewell(SECOND).is_empty());
    }
}
