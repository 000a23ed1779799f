//! The shutdown of an agent: its program continues untraced, and does not wait at its exit.

use std::time::Duration;

use super::super::command::{BytefrogCommand, Mode};
use super::RunAgent;

/// An agent that shuts down is suspended until this many heartbeats, one after the other, have reported nothing to send
/// …
const QUIET_HEARTBEATS: u32 = 3;
/// … or this many, if numbers are missing: a thread has the buffer with them, or the agent has lost it.
const QUIET_HEARTBEATS_WITH_GAPS: u32 = 15;

/// How far the shutdown of an agent has come, whose collector stops or which an operator stops.
///
/// An agent that is stopped closes its data connections after one heartbeat interval, when it has nothing to send. A thread of
/// the program that has taken a buffer before, and loads classes or does not get the processor, returns it afterwards, and then
/// the program waits for ever at its exit. Heartbeats do not count such a buffer. So the agent is suspended first, which lets no
/// thread take a buffer. When heartbeats and numbers show that everything has arrived, it is stopped, and made to report an
/// error: after one it waits for no buffer, neither to close its connections nor at its exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Drain {
    No,
    /// Commands are not harmless yet.
    Settling,
    /// It is suspended, and stopped at `until` at the latest. Its last `quiet` heartbeats have reported nothing to
    /// send; `has_gaps` is whether numbers were missing then.
    Suspended {
        until: Duration,
        quiet: u32,
        has_gaps: bool,
    },
    Stopped,
}

impl RunAgent {
    /// The collector stops: messages for now, and later those of [`RunAgent::poll_drain`]. The program continues untraced.
    pub(in super::super) fn drain(&mut self, elapsed: Duration) -> Vec<u8> {
        self.begin_drain();
        if !self.is_started() {
            return self.handle_command(BytefrogCommand::Start, elapsed).ok().flatten().into_iter().collect();
        }
        self.poll_drain(elapsed)
    }

    /// The collector ends within seconds: [`RunAgent::poll_drain`] waits for no event of the agent any longer. An agent that has
    /// not settled is still waited for, because it would ignore what it gets.
    pub(in super::super) fn hurry(&mut self) {
        self.is_hurried = true;
    }

    pub(in super::super) fn is_hurried(&self) -> bool {
        self.is_hurried
    }

    /// From now on [`RunAgent::poll_drain`] gives the messages that stop the agent.
    pub(super) fn begin_drain(&mut self) {
        self.drain = Drain::Settling;
        self.queued.clear();
        self.pending = None;
    }

    /// The next messages to an agent that shuts down, once they are harmless.
    pub(in super::super) fn poll_drain(&mut self, elapsed: Duration) -> Vec<u8> {
        if !self.has_control || self.has_shut_down {
            return Vec::new();
        }
        // Commands that were sent have an effect before these.
        let mode = self.unconfirmed.map_or(self.mode, |unconfirmed| unconfirmed.command.target_mode());
        let commands: &[BytefrogCommand] = match self.drain {
            Drain::Settling if self.is_settled && !self.is_untraced && self.is_hurried => {
                // `stop` does not continue the threads that a pause blocks.
                let unpause = (mode == Mode::Paused).then(|| self.send(BytefrogCommand::Unpause, elapsed));
                self.has_events_left = self.may_report_errors();
                return unpause.into_iter().chain(self.stop(elapsed)).collect();
            }
            Drain::Settling if self.is_settled && !self.is_untraced => {
                self.drain = Drain::Suspended { until: elapsed + self.stop_wait, quiet: 0, has_gaps: false };
                match mode {
                    Mode::ShuttingDown | Mode::Suspended => &[],
                    Mode::Paused => &[BytefrogCommand::Unpause, BytefrogCommand::Suspend],
                    Mode::Initializing | Mode::Tracing | Mode::Unknown(_) => &[BytefrogCommand::Suspend],
                }
            }
            Drain::Settling if self.is_settled => {
                self.drain = Drain::Stopped;
                &[BytefrogCommand::Stop]
            }
            Drain::Suspended { until, quiet, has_gaps } => {
                let required = if has_gaps { QUIET_HEARTBEATS_WITH_GAPS } else { QUIET_HEARTBEATS };
                let is_late = elapsed >= until || self.is_hurried;
                // An agent that has only been stopped still sends them.
                self.has_events_left = quiet < required && is_late && self.may_report_errors();
                if quiet >= required || is_late {
                    return self.stop(elapsed);
                }
                &[]
            }
            Drain::No | Drain::Settling | Drain::Stopped => &[],
        };
        commands.iter().map(|command| self.send(*command, elapsed)).collect()
    }

    /// `stop`, and a `pause`, which has no effect any longer and makes the agent report an error. For this report agents load no
    /// class, except those of version 1: on a busy machine these need half a minute for it, and hang if a connection ends
    /// meanwhile.
    fn stop(&mut self, elapsed: Duration) -> Vec<u8> {
        self.drain = Drain::Stopped;
        let stop = self.send(BytefrogCommand::Stop, elapsed);
        if self.may_report_errors() { vec![stop, BytefrogCommand::Pause.message()] } else { vec![stop] }
    }

    /// Whether it is harmless to make it report an error.
    fn may_report_errors(&self) -> bool {
        self.version.number() > 1
    }

    /// Whether an error that it reports is the one that [`RunAgent::stop`] has caused.
    pub(in super::super) fn answers_stop(&self, error: &[u8]) -> bool {
        // Java: "pause …", .NET: "Pause …".
        let is_pause = error.get(1..).is_some_and(|rest| rest.starts_with(b"ause control message"));
        self.drain == Drain::Stopped && is_pause
    }

    /// It was stopped now although it had not sent all its events.
    pub(in super::super) fn take_events_left(&mut self) -> bool {
        std::mem::take(&mut self.has_events_left)
    }

    /// It reports a data break. `true`: as the answer to a `suspend`. While it is suspended it takes no number.
    pub(in super::super) fn take_data_break(&mut self) -> bool {
        let is_answer = self.unanswered_suspends > 0;
        self.unanswered_suspends -= u32::from(is_answer);
        is_answer
    }

    pub(in super::super) fn is_draining(&self) -> bool {
        self.drain != Drain::No
    }

    /// A heartbeat has reported its buffers. `is_empty`: the agent has nothing to send. `misses_numbers`: some have not arrived.
    pub(in super::super) fn count_buffers(&mut self, is_empty: bool, misses_numbers: bool) {
        if let Drain::Suspended { quiet, has_gaps, .. } = &mut self.drain {
            // A thread that has held a buffer for long returns it at any time.
            *quiet = if self.mode == Mode::Suspended && is_empty { *quiet + 1 } else { 0 };
            *has_gaps = misses_numbers;
        }
    }

    /// No time is left for an agent that shuts down. `true`: this was not known.
    pub(in super::super) fn abandon(&mut self) -> bool {
        self.is_draining() && !std::mem::replace(&mut self.is_abandoned, true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::wire::ProtocolVersion;
    use super::super::tests::{SECOND, new, settled};
    use super::*;

    #[test]
    fn the_shutdown_messages_let_the_program_continue() {
        assert_eq!(new(1).drain(SECOND), [2]);
        assert_eq!(settled(Mode::Tracing).drain(SECOND), [6]);
        assert_eq!(settled(Mode::Paused).drain(SECOND), [5, 6]);
        let mut pausing = settled(Mode::Tracing);
        pausing.handle_command(BytefrogCommand::Pause, SECOND).unwrap();
        assert_eq!(pausing.drain(SECOND), [5, 6]);
        let mut continuing = settled(Mode::Paused);
        continuing.handle_command(BytefrogCommand::Unpause, SECOND).unwrap();
        assert_eq!(continuing.drain(SECOND), [6]);
        let mut suspended = settled(Mode::Suspended);
        assert_eq!(suspended.drain(SECOND), b"");
        assert_eq!(suspended.poll_drain(20 * SECOND), b"");
        assert_eq!(suspended.poll_drain(21 * SECOND), [3, 4]);
        assert!(suspended.take_events_left() && !suspended.take_events_left());
        assert!(suspended.answers_stop(b"pause control message is only valid when tracing"));
        let mut first = RunAgent { version: ProtocolVersion::new(1).unwrap(), ..settled(Mode::Suspended) };
        first.drain(SECOND);
        assert_eq!(first.poll_drain(21 * SECOND), [3]);
        assert!(!first.take_events_left());
        assert!(!suspended.answers_stop(b"Failed to write data buffer"));
        assert!(settled(Mode::ShuttingDown).drain(SECOND).is_empty());
        let mut untraced = settled(Mode::Tracing);
        untraced.is_untraced = true;
        assert_eq!(untraced.drain(SECOND), [3]);
    }

    #[test]
    fn an_agent_is_stopped_when_it_has_nothing_to_send_for_some_heartbeats() {
        let mut agent = settled(Mode::Tracing);
        assert_eq!(agent.drain(SECOND), [6]);
        for buffers in [0, 0, 0, 5, 0, 0, 1, 0, 0] {
            agent.count_buffers(buffers == 0, false);
            agent.heartbeat(Mode::Suspended, SECOND);
            assert_eq!(agent.poll_drain(SECOND), b"", "{buffers}");
        }
        agent.count_buffers(true, false);
        assert_eq!(agent.poll_drain(SECOND)[0], 3);
        assert!(!agent.take_events_left());
        assert_eq!(agent.poll_drain(99 * SECOND), b"");
    }

    #[test]
    fn an_agent_with_missing_numbers_is_stopped_when_they_arrive_or_after_more_heartbeats() {
        for arrive in [true, false] {
            let mut agent = settled(Mode::Tracing);
            agent.drain(SECOND);
            agent.heartbeat(Mode::Suspended, SECOND);
            for _ in 1..QUIET_HEARTBEATS_WITH_GAPS {
                agent.count_buffers(true, true);
                assert_eq!(agent.poll_drain(SECOND), b"");
            }
            agent.count_buffers(true, !arrive);
            assert_eq!(agent.poll_drain(SECOND)[0], 3);
            assert!(!agent.take_events_left());
        }
    }

    #[test]
    fn an_agent_is_stopped_at_once_when_the_collector_hurries_and_it_has_settled() {
        for (mode, before, then) in
            [(Mode::Tracing, &[6][..], &[3, 4][..]), (Mode::Suspended, &[], &[3, 4]), (Mode::ShuttingDown, &[], &[])]
        {
            let mut agent = settled(mode);
            assert_eq!(agent.drain(SECOND), before, "{mode:?}");
            agent.hurry();
            assert_eq!(agent.poll_drain(SECOND), then, "{mode:?}");
            assert_eq!(agent.take_events_left(), !then.is_empty(), "{mode:?}");
            assert_eq!(agent.poll_drain(99 * SECOND), b"", "{mode:?}");
        }
        let mut first = RunAgent { version: ProtocolVersion::new(1).unwrap(), ..settled(Mode::Tracing) };
        assert_eq!(first.drain(SECOND), [6]);
        first.hurry();
        assert_eq!(first.poll_drain(SECOND), [3]);
        // The pause that blocks threads of the program ends.
        let mut starting = new(1);
        starting.heartbeat(Mode::Paused, SECOND);
        assert_eq!(starting.drain(SECOND), [2]);
        starting.hurry();
        assert_eq!(starting.poll_drain(SECOND), b"");
        assert!(starting.data_hello() && starting.settle());
        assert_eq!(starting.poll_drain(SECOND), [5, 3, 4]);
    }

    #[test]
    fn an_operator_stops_an_agent_in_the_same_order() {
        let mut agent = settled(Mode::Tracing);
        assert_eq!(agent.handle_command(BytefrogCommand::Stop, SECOND), Ok(None));
        assert_eq!(agent.poll_drain(SECOND), [6]);
        for command in BytefrogCommand::ALL {
            assert!(agent.handle_command(command, SECOND).is_err(), "{command:?}");
        }
        for _ in 0..QUIET_HEARTBEATS {
            assert_eq!(agent.poll_drain(SECOND), b"");
            agent.heartbeat(Mode::Suspended, SECOND);
            agent.count_buffers(true, false);
        }
        assert_eq!(agent.poll_drain(SECOND), [3, 4]);
    }

    #[test]
    fn an_agent_that_starts_is_stopped_when_it_has_settled() {
        let mut agent = new(2);
        assert_eq!(agent.drain(SECOND), [2]);
        assert!(agent.data_hello() && !agent.settle());
        assert!(agent.data_hello());
        agent.data_arrived(SECOND);
        for _ in 0..3 {
            agent.heartbeat(Mode::Tracing, 4 * SECOND);
            assert_eq!(agent.poll_drain(4 * SECOND), b"");
        }
        agent.heartbeat(Mode::Tracing, 4 * SECOND);
        assert_eq!(agent.poll_drain(4 * SECOND), [6]);
        assert_eq!(agent.poll_drain(24 * SECOND)[0], 3);
        assert_eq!(agent.outcome(false, false), "complete");
        assert!(agent.abandon() && !agent.abandon());
        assert_eq!(agent.outcome(false, false), "without_shutdown");
    }
}
