//! The agent of a run as its control connection shows it: its mode, its health, and which commands are harmless now.
//!
//! Section 1.4 lists what kills, hangs or silences the traced program. Commands are sent only in the states that rules
//! 8 to 10 allow; every refusal gives the reason.

mod draining;

use std::collections::VecDeque;
use std::time::Duration;

use super::command::{BytefrogCommand, BytefrogCommandError, Mode};
use super::options::Options;
use super::wire::ProtocolVersion;
use draining::Drain;

/// An agent should report the mode that a command leads to within this time (section 1.6) …
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(2);
/// … and within this number of heartbeats: an agent that does not run sends none, and still has the command.
const CONFIRMATION_HEARTBEATS: u32 = 3;
/// Commands that wait until the agent has confirmed the one before them.
const MAX_QUEUED: usize = 8;
/// An agent that has opened its last data connection lets its buffers follow commands within this time. It is measured on
/// the agent's clock, in heartbeats, because an agent that does not run (a garbage collection, a busy machine) sends none,
/// and on our clock, because heartbeats from before the connection can arrive after it.
const SETTLING_TIME: Duration = Duration::from_secs(3);
/// More heartbeats missed than this make an agent unhealthy (rule 25).
const MAX_MISSED: u32 = 3;

/// A command whose mode has not been reported yet.
#[derive(Clone, Copy, Debug)]
struct Unconfirmed {
    command: BytefrogCommand,
    /// When it was sent.
    since: Duration,
    /// Heartbeats since then.
    heartbeats: u32,
}

/// The agent of one run.
#[derive(Debug)]
pub(super) struct RunAgent {
    version: ProtocolVersion,
    /// The number of data connections that it was configured to open.
    data_connections: usize,
    data_hellos: usize,
    /// When its last data connection arrived.
    data_since: Duration,
    /// Heartbeats since then.
    heartbeats_with_data: u32,
    /// Its buffers follow commands (rule 8).
    is_settled: bool,
    mode: Mode,
    /// When `start` was sent.
    started_at: Option<Duration>,
    has_control: bool,
    has_reported: bool,
    has_shut_down: bool,
    has_failed: bool,
    /// The command whose mode has not been reported yet.
    unconfirmed: Option<Unconfirmed>,
    /// Commands to send when the agent reports the mode that each requires.
    queued: VecDeque<BytefrogCommand>,
    interval: Duration,
    /// How long it may have events to send while it shuts down (`stop_wait`).
    stop_wait: Duration,
    last_heartbeat: Duration,
    is_unhealthy: bool,
    /// A command of the configuration, to be sent as soon as it is harmless.
    pub pending: Option<BytefrogCommand>,
    /// It was configured to trace nothing.
    pub is_untraced: bool,
    /// The collector stops, or an operator stops the agent: it sends what its buffers hold before it is stopped.
    drain: Drain,
    /// Commands `suspend` that it has not answered with a data break.
    unanswered_suspends: u32,
    /// `stop` was sent to it.
    is_stopped: bool,
    /// The collector ends within seconds: the agent is stopped as soon as that is harmless, whatever it has to send.
    is_hurried: bool,
    /// See [`RunAgent::take_events_left`].
    has_events_left: bool,
    /// No time is left for what its buffers hold.
    is_abandoned: bool,
}

impl RunAgent {
    /// An agent that has sent its hello and receives its configuration now.
    pub(super) fn new(options: &Options, version: ProtocolVersion, elapsed: Duration) -> Self {
        RunAgent {
            version,
            data_connections: options.data_connections,
            data_hellos: 0,
            data_since: elapsed,
            heartbeats_with_data: 0,
            is_settled: false,
            mode: Mode::Initializing,
            started_at: None,
            has_control: true,
            has_reported: false,
            has_shut_down: false,
            has_failed: false,
            unconfirmed: None,
            queued: VecDeque::new(),
            interval: options.heartbeat_interval,
            stop_wait: options.stop_wait,
            last_heartbeat: elapsed,
            is_unhealthy: false,
            pending: None,
            is_untraced: false,
            drain: Drain::No,
            unanswered_suspends: 0,
            is_stopped: false,
            is_hurried: false,
            has_events_left: false,
            is_abandoned: false,
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn is_started(&self) -> bool {
        self.started_at.is_some()
    }

    /// When `start` was sent.
    pub(super) fn started_at(&self) -> Option<Duration> {
        self.started_at
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

    /// How its run ended (rule 28). `has_gaps`: numbers are missing; `control_was_lost`: events arrived after the end
    /// of its control connection.
    pub(super) fn outcome(&self, has_gaps: bool, control_was_lost: bool) -> &'static str {
        match () {
            () if !self.has_reported => "aborted_in_handshake",
            () if self.has_failed => "agent_error",
            () if self.data_hellos == 0 => "never_started",
            () if has_gaps => "with_gaps",
            () if self.is_abandoned => "without_shutdown",
            () if self.has_shut_down || (self.is_draining() && self.is_stopped) => "complete",
            () if control_was_lost => "control_lost",
            () => "without_shutdown",
        }
    }

    /// Handles a heartbeat. `true`: the agent was unhealthy and has recovered.
    pub(super) fn heartbeat(&mut self, mode: Mode, elapsed: Duration) -> bool {
        self.has_reported = true;
        self.last_heartbeat = elapsed;
        self.has_shut_down |= mode == Mode::ShuttingDown;
        if self.is_started() && !self.expects_data() {
            // The first one may have been sent before the last data hello was answered, so it proves nothing.
            let agent_time = self.interval * self.heartbeats_with_data;
            self.is_settled |= agent_time >= SETTLING_TIME && elapsed >= self.data_since + SETTLING_TIME;
            self.heartbeats_with_data = self.heartbeats_with_data.saturating_add(1);
        }
        self.mode = mode;
        match &mut self.unconfirmed {
            Some(unconfirmed) if unconfirmed.command.target_mode() == mode => self.unconfirmed = None,
            Some(unconfirmed) => unconfirmed.heartbeats = unconfirmed.heartbeats.saturating_add(1),
            None => {}
        }
        std::mem::take(&mut self.is_unhealthy)
    }

    /// After this time heartbeats are late. `None`: none are expected, or that they are late is known.
    pub(super) fn late_at(&self) -> Option<Duration> {
        let are_expected = self.has_control && !self.has_shut_down && !self.is_unhealthy;
        are_expected.then(|| self.last_heartbeat + self.interval * (MAX_MISSED + 1))
    }

    /// Checks whether heartbeats are late. `true`: the agent has become unhealthy.
    pub(super) fn check_health(&mut self, elapsed: Duration) -> bool {
        let is_ignored = |unconfirmed: &mut Unconfirmed| {
            unconfirmed.heartbeats >= CONFIRMATION_HEARTBEATS && elapsed >= unconfirmed.since + CONFIRMATION_TIMEOUT
        };
        self.unconfirmed.take_if(is_ignored);
        let is_news = self.late_at().is_some_and(|late| elapsed > late);
        self.is_unhealthy |= is_news;
        is_news
    }

    /// Counts a data connection. `false`: the agent has all that it was configured to open (section 5).
    pub(super) fn data_hello(&mut self) -> bool {
        let is_expected = self.expects_data();
        self.data_hellos += usize::from(is_expected);
        is_expected
    }

    /// A data connection has arrived, or one that may belong to this agent is still expected.
    pub(super) fn data_arrived(&mut self, elapsed: Duration) {
        self.data_since = elapsed;
        self.heartbeats_with_data = 0;
    }

    /// A class was loaded or a method called: agents trace from the moment at which they have settled. `true`: this was
    /// not known.
    pub(super) fn settle(&mut self) -> bool {
        let is_news = !self.is_settled && self.is_started() && !self.expects_data();
        self.is_settled |= is_news;
        is_news
    }

    /// Whether it has not opened all its data connections.
    pub(super) fn expects_data(&self) -> bool {
        self.data_hellos < self.data_connections
    }

    /// The agent has reported an error: its trace ends, its program continues.
    pub(super) fn failed(&mut self) {
        self.has_failed = true;
    }

    /// Its control connection has ended.
    pub(super) fn lost_control(&mut self) {
        self.has_control = false;
    }

    /// Decides about a command (rules 8 to 10): the byte to send now. `None`: it is queued until the agent confirms the
    /// command before it, or it is `stop`, whose messages [`RunAgent::poll_drain`] gives.
    ///
    /// # Errors
    /// Why it is not sent.
    pub(super) fn handle_command(
        &mut self,
        command: BytefrogCommand,
        elapsed: Duration,
    ) -> Result<Option<u8>, BytefrogCommandError> {
        if !self.has_control {
            return Err(BytefrogCommandError::NoControl);
        }
        if command == BytefrogCommand::Start {
            if self.is_started() {
                return Err(BytefrogCommandError::AlreadyStarted);
            }
            if self.has_shut_down {
                return Err(BytefrogCommandError::ShuttingDown);
            }
            self.started_at = Some(elapsed);
            return Ok(Some(command.message()));
        }
        match command.required_mode() {
            _ if !self.is_started() => return Err(BytefrogCommandError::NotStarted),
            _ if self.has_shut_down || self.is_draining() => return Err(BytefrogCommandError::ShuttingDown),
            _ if !self.is_settled => return Err(BytefrogCommandError::NotSettled),
            Some(required) => {
                if let Some(former) = self.unconfirmed {
                    let last = self.queued.back().copied().unwrap_or(former.command);
                    if last.target_mode() != required || self.queued.len() >= MAX_QUEUED {
                        return Err(BytefrogCommandError::Unconfirmed(last));
                    }
                    self.queued.push_back(command);
                    return Ok(None);
                }
                if self.mode != required {
                    return Err(BytefrogCommandError::WrongMode { command, mode: self.mode });
                }
            }
            None => {
                self.begin_drain();
                return Ok(None);
            }
        }
        Ok(Some(self.send(command, elapsed)))
    }

    /// The command is sent now; commands queued before it are void.
    fn send(&mut self, command: BytefrogCommand, elapsed: Duration) -> u8 {
        self.queued.clear();
        self.sent(command, elapsed)
    }

    fn sent(&mut self, command: BytefrogCommand, elapsed: Duration) -> u8 {
        self.unanswered_suspends += u32::from(command == BytefrogCommand::Suspend);
        self.unconfirmed = Some(Unconfirmed { command, since: elapsed, heartbeats: 0 });
        self.is_stopped |= command == BytefrogCommand::Stop;
        command.message()
    }

    /// The command that waited and is harmless now.
    pub(super) fn take_pending(&mut self, elapsed: Duration) -> Option<u8> {
        if let Some(command) = self.pending {
            let message = self.handle_command(command, elapsed).ok()?;
            self.pending = None;
            return message;
        }
        let next = *self.queued.front()?;
        let is_due = self.unconfirmed.is_none() && next.required_mode() == Some(self.mode) && self.has_control;
        if !is_due {
            return None;
        }
        self.queued.pop_front();
        Some(self.sent(next, elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const SECOND: Duration = Duration::from_secs(1);

    pub(super) fn new(data_connections: usize) -> RunAgent {
        let options = Options { data_connections, stop_wait: 20 * SECOND, ..Options::default() };
        RunAgent::new(&options, ProtocolVersion::new(4).unwrap(), Duration::ZERO)
    }

    pub(super) fn settled(mode: Mode) -> RunAgent {
        let mut agent = new(1);
        agent.heartbeat(Mode::Initializing, Duration::ZERO);
        agent.handle_command(BytefrogCommand::Start, Duration::ZERO).unwrap();
        assert!(agent.data_hello());
        agent.heartbeat(mode, Duration::ZERO);
        assert!(agent.settle() && !agent.settle());
        agent
    }

    #[test]
    fn only_start_is_sent_before_start() {
        let mut agent = new(1);
        agent.heartbeat(Mode::Initializing, Duration::ZERO);
        for command in &BytefrogCommand::ALL[1..] {
            assert_eq!(agent.handle_command(*command, SECOND), Err(BytefrogCommandError::NotStarted));
        }
        assert_eq!(agent.handle_command(BytefrogCommand::Start, SECOND), Ok(Some(2)));
        assert_eq!(agent.handle_command(BytefrogCommand::Start, SECOND), Err(BytefrogCommandError::AlreadyStarted));
    }

    #[test]
    fn no_command_is_sent_before_all_data_connections_and_heartbeats_of_three_seconds_after_them() {
        let mut agent = new(2);
        agent.handle_command(BytefrogCommand::Start, Duration::ZERO).unwrap();
        agent.pending = Some(BytefrogCommand::Suspend);
        agent.heartbeat(Mode::Tracing, SECOND);
        assert!(agent.data_hello());
        agent.heartbeat(Mode::Tracing, SECOND);
        assert!(agent.data_hello());
        assert!(!agent.data_hello());
        assert_eq!(agent.handle_command(BytefrogCommand::Stop, SECOND), Err(BytefrogCommandError::NotSettled));
        assert_eq!(agent.take_pending(SECOND), None);
        agent.data_arrived(SECOND);
        // Heartbeats that were sent before the connection arrive after it.
        for _ in 0..9 {
            agent.heartbeat(Mode::Tracing, SECOND);
            assert_eq!(agent.take_pending(SECOND), None);
        }
        // The agent does not run for an hour, and then continues where it was.
        agent.data_arrived(SECOND);
        let now = 3600 * SECOND;
        for _ in 0..3 {
            agent.heartbeat(Mode::Tracing, now);
            assert_eq!(agent.take_pending(now), None);
        }
        agent.heartbeat(Mode::Tracing, now);
        assert_eq!(agent.take_pending(now), Some(6));
    }

    #[test]
    fn mode_commands_are_sent_in_their_mode_only_and_one_at_a_time() {
        let modes = [Mode::Initializing, Mode::Tracing, Mode::Paused, Mode::Suspended];
        let allowed: Vec<_> = BytefrogCommand::ALL
            .into_iter()
            .flat_map(|command| modes.into_iter().map(move |mode| (command, mode)))
            .filter(|(command, mode)| settled(*mode).handle_command(*command, SECOND).is_ok())
            .collect();
        let always = modes.map(|mode| (BytefrogCommand::Stop, mode));
        let one = [
            (BytefrogCommand::Pause, Mode::Tracing),
            (BytefrogCommand::Unpause, Mode::Paused),
            (BytefrogCommand::Suspend, Mode::Tracing),
            (BytefrogCommand::Unsuspend, Mode::Suspended),
        ];
        assert_eq!(allowed, [&always[..], &one[..]].concat());
        let mut agent = settled(Mode::Tracing);
        agent.handle_command(BytefrogCommand::Pause, SECOND).unwrap();
        assert_eq!(
            agent.handle_command(BytefrogCommand::Suspend, SECOND),
            Err(BytefrogCommandError::Unconfirmed(BytefrogCommand::Pause))
        );
        agent.heartbeat(Mode::Paused, SECOND);
        assert_eq!(agent.handle_command(BytefrogCommand::Unpause, SECOND), Ok(Some(5)));
        let mut gone = settled(Mode::ShuttingDown);
        assert_eq!(gone.handle_command(BytefrogCommand::Stop, SECOND), Err(BytefrogCommandError::ShuttingDown));
    }

    #[test]
    fn unpause_waits_for_the_heartbeat_that_confirms_pause() {
        let mut agent = settled(Mode::Tracing);
        agent.handle_command(BytefrogCommand::Pause, SECOND).unwrap();
        assert_eq!(agent.handle_command(BytefrogCommand::Unpause, SECOND), Ok(None));
        assert_eq!(agent.take_pending(SECOND), None);
        agent.heartbeat(Mode::Paused, 2 * SECOND);
        assert_eq!(agent.take_pending(2 * SECOND), Some(5));
        assert_eq!(agent.take_pending(2 * SECOND), None);
        let queued = [BytefrogCommand::Pause, BytefrogCommand::Unpause].repeat(MAX_QUEUED);
        let accepted = queued.iter().filter(|command| agent.handle_command(**command, 2 * SECOND).is_ok()).count();
        assert_eq!(accepted, MAX_QUEUED);
        // An agent that does not run still has the command.
        assert!(!agent.check_health(4 * SECOND));
        assert!(agent.unconfirmed.is_some());
        // An agent that never confirms takes the next command that its mode allows, and the queued ones are void.
        for _ in 0..CONFIRMATION_HEARTBEATS {
            agent.heartbeat(Mode::Initializing, 4 * SECOND);
        }
        assert!(!agent.check_health(4 * SECOND));
        assert!(agent.unconfirmed.is_none());
        agent.heartbeat(Mode::Paused, 4 * SECOND);
        assert_eq!(agent.handle_command(BytefrogCommand::Stop, 4 * SECOND), Ok(None));
        agent.heartbeat(Mode::Tracing, 5 * SECOND);
        assert_eq!(agent.take_pending(9 * SECOND), None);
    }

    #[test]
    fn more_than_three_missed_heartbeats_are_reported_once_and_so_is_the_recovery() {
        let mut agent = settled(Mode::Tracing);
        assert!(!agent.check_health(4 * SECOND));
        assert!(agent.check_health(4 * SECOND + Duration::from_millis(1)));
        assert!(!agent.check_health(9 * SECOND));
        assert!(agent.heartbeat(Mode::Tracing, 9 * SECOND));
        assert!(!agent.heartbeat(Mode::ShuttingDown, 9 * SECOND));
        assert!(!agent.check_health(99 * SECOND));
    }
}
