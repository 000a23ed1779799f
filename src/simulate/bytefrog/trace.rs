//! The work of an agent between `start` and the end: the program runs at its pace, and its buffers are sent.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::super::pace::{Pace, slices};
use super::super::rng::Rng;
use super::buffers::Buffer;
use super::control::ControlEvent;
use super::data::Senders;
use super::modes::RunMode;
use super::program::Program;
use super::tally::Tally;

/// Events between two checks of the clock, the commands and the pace.
const STRETCH: u64 = 4096;

/// How long a buffer that is not full waits (section 1.7).
const PARTIAL_WAIT: Duration = Duration::from_millis(100);

/// A traced program.
pub(super) struct TracedProgram<'a> {
    pub(super) program: Program,
    pub(super) senders: Senders,
    pub(super) tally: &'a Tally,
    pub(super) control_events: mpsc::UnboundedSender<ControlEvent>,
    pub(super) run_mode: watch::Receiver<RunMode>,
    /// The most events that it numbers.
    pub(super) events: u64,
    pub(super) pace: Pace,
    /// The start of the run, for the pace.
    pub(super) start: Instant,
    /// The base of the times of the agent.
    pub(super) base: Instant,
    pub(super) halt: CancellationToken,
    /// One buffer in this many is dropped; 0: none.
    pub(super) gaps: u32,
    pub(super) rng: Rng,
    /// Events in dropped buffers.
    pub(super) lost: u64,
    /// Whether a buffer was returned too late to be sent.
    pub(super) has_late_buffer: bool,
    /// See [`Options::late_buffer`](super::Options::late_buffer).
    pub(super) late_buffer: Duration,
    /// The interval of heartbeats.
    pub(super) interval: Duration,
}

impl TracedProgram<'_> {
    /// Runs the program until it has enough events, is to halt, or is no longer traced. All its events are queued then.
    pub(super) async fn run(&mut self) {
        let mut made = 0;
        // The events that were due while the program was not traced.
        let mut skipped = 0;
        let mut flushed = Instant::now();
        let mut slices = slices();
        while made < self.events && !self.halt.is_cancelled() {
            let run_mode = *self.run_mode.borrow_and_update();
            match run_mode {
                RunMode::Ended => {
                    self.wait_for_threads().await;
                    break;
                }
                RunMode::Blocked | RunMode::Untraced => {
                    let due_before = self.pace.due(self.start.elapsed());
                    self.wait(run_mode).await;
                    skipped += self.pace.due(self.start.elapsed()) - due_before;
                    continue;
                }
                RunMode::Traced => {}
            }
            while let Some(buffer) = self.senders.try_sent() {
                self.program.give_back(buffer);
            }
            let due = self.pace.due(self.start.elapsed()).saturating_sub(skipped).min(self.events);
            let stretch = due.saturating_sub(made).min(STRETCH);
            let numbered = self.program.run(stretch, self.millis());
            made += numbered;
            let is_idle = numbered == 0 && stretch == 0;
            if is_idle && flushed.elapsed() >= PARTIAL_WAIT {
                self.program.close_partial();
            }
            if self.hand_over() {
                flushed = Instant::now();
            }
            if is_idle {
                tokio::select! {
                    _ = slices.tick() => {}
                    _ = self.run_mode.changed() => {}
                    () = self.halt.cancelled() => {}
                }
            } else if !self.program.is_out_of_buffers() {
                tokio::task::yield_now().await;
            } else if !self.wait_for_a_buffer().await {
                break;
            }
        }
        self.report_loaded();
        let rest: Vec<_> = self.program.finish().collect();
        rest.into_iter().for_each(|buffer| self.queue(buffer));
        self.tally.set_filling(0);
    }

    /// Waits, or runs untraced, while the mode lasts. Earlier events are sent.
    async fn wait(&mut self, run_mode: RunMode) {
        if run_mode == RunMode::Untraced {
            if !self.late_buffer.is_zero() {
                self.program.keep_buffer(self.millis().saturating_add(self.late_buffer.as_millis() as u32));
            }
            // Section 1.4: no numbers are used, and the number of the next event is reported.
            self.report(ControlEvent::Break(self.program.next_sequence()));
            self.program.run_untraced();
        }
        let mut slices = slices();
        while *self.run_mode.borrow() == run_mode && !self.halt.is_cancelled() {
            self.send_returned();
            tokio::select! {
                _ = slices.tick() => {}
                _ = self.run_mode.changed() => {}
                () = self.halt.cancelled() => {}
            }
        }
    }

    /// Sends the buffers that threads have returned, also those that are not full.
    fn send_returned(&mut self) {
        while let Some(buffer) = self.senders.try_sent() {
            self.program.give_back(buffer);
        }
        self.program.continue_waiting(self.millis());
        self.program.close_partial();
        self.hand_over();
    }

    /// The agent was stopped. What threads return within a heartbeat interval is sent.
    async fn wait_for_threads(&mut self) {
        tokio::select! {
            () = sleep(self.interval) => {}
            () = self.halt.cancelled() => {}
        }
        self.send_returned();
        let late = self.program.take_kept();
        self.has_late_buffer = late > 0;
        self.lost += late;
    }

    /// Waits until a full buffer is sent. `false`: all connections are broken.
    async fn wait_for_a_buffer(&mut self) -> bool {
        tokio::select! {
            buffer = self.senders.sent() => match buffer {
                Some(buffer) => self.program.give_back(buffer),
                None => return false,
            },
            _ = self.run_mode.changed() => {}
            () = self.halt.cancelled() => {}
        }
        true
    }

    /// Queues full buffers and reports classes. `true`: something was queued.
    fn hand_over(&mut self) -> bool {
        let full: Vec<_> = self.program.take_full().collect();
        let any = !full.is_empty();
        full.into_iter().for_each(|buffer| self.queue(buffer));
        self.tally.set_filling(self.program.readable_buffers());
        self.report_loaded();
        any
    }

    fn queue(&mut self, buffer: Buffer) {
        if self.gaps > 0 && self.rng.one_in(u64::from(self.gaps)) {
            self.lost += buffer.counts.events;
            self.program.give_back(buffer);
        } else {
            self.senders.queue(buffer);
        }
    }

    fn report_loaded(&mut self) {
        for (outcome, class) in self.program.take_loaded() {
            // Fails only when the agent is gone.
            let _ = self.control_events.send(ControlEvent::Class(outcome, class));
        }
    }

    fn report(&self, control_events: ControlEvent) {
        let _ = self.control_events.send(control_events);
    }

    fn millis(&self) -> u32 {
        // Wraps after 49 days, as in real agents.
        self.base.elapsed().as_millis() as u32
    }
}
