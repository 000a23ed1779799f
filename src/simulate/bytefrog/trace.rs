//! What an agent does between `start` and the end: lets the program run at its pace, and its buffers go out.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::super::pace::{Pace, SLICE};
use super::super::rng::Rng;
use super::buffers::Buffer;
use super::control::Said;
use super::data::Senders;
use super::modes::Gate;
use super::program::Program;
use super::tally::Tally;

/// Events between two looks at the clock, the commands and the pace.
const STRETCH: u64 = 4096;

/// How long a buffer that is not full waits (section 1.7).
const PARTIAL_WAIT: Duration = Duration::from_millis(100);

/// A program that is traced.
pub(super) struct Trace<'a> {
    pub(super) program: Program,
    pub(super) senders: Senders,
    pub(super) tally: &'a Tally,
    pub(super) said: mpsc::UnboundedSender<Said>,
    pub(super) gate: watch::Receiver<Gate>,
    /// How many events it numbers at most.
    pub(super) events: u64,
    pub(super) pace: Pace,
    /// When the run began, for the pace.
    pub(super) start: Instant,
    /// What the agent's times count from.
    pub(super) base: Instant,
    pub(super) halt: CancellationToken,
    /// One buffer in so many is lost; 0: none.
    pub(super) gaps: u32,
    pub(super) rng: Rng,
    /// Events in lost buffers.
    pub(super) lost: u64,
}

impl Trace<'_> {
    /// Lets the program run until it has done enough, is to halt, or is not traced any more. All that it told is
    /// queued then.
    pub(super) async fn run(&mut self) {
        let mut made = 0;
        // What would have been due while the program was not told about.
        let mut excused = 0;
        let mut flushed = Instant::now();
        let mut slices = interval(SLICE);
        slices.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while made < self.events && !self.halt.is_cancelled() {
            let gate = *self.gate.borrow_and_update();
            match gate {
                Gate::End => break,
                Gate::Shut | Gate::Unseen => {
                    let owed = self.pace.due(self.start.elapsed());
                    self.wait(gate).await;
                    excused += self.pace.due(self.start.elapsed()) - owed;
                    continue;
                }
                Gate::Open => {}
            }
            while let Some(buffer) = self.senders.try_sent() {
                self.program.give_back(buffer);
            }
            let due = self.pace.due(self.start.elapsed()).saturating_sub(excused).min(self.events);
            let stretch = due.saturating_sub(made).min(STRETCH);
            let told = self.program.run(stretch, self.millis());
            made += told;
            let is_idle = told == 0 && stretch == 0;
            if is_idle && flushed.elapsed() >= PARTIAL_WAIT {
                self.program.close_partial();
            }
            if self.hand_over() {
                flushed = Instant::now();
            }
            if is_idle {
                tokio::select! {
                    _ = slices.tick() => {}
                    _ = self.gate.changed() => {}
                    () = self.halt.cancelled() => {}
                }
            } else if !self.program.is_out_of_buffers() {
                tokio::task::yield_now().await;
            } else if !self.wait_for_a_buffer().await {
                break;
            }
        }
        self.say_loaded();
        let rest: Vec<_> = self.program.finish().collect();
        rest.into_iter().for_each(|buffer| self.queue(buffer));
        self.tally.set_filling(0);
    }

    /// Stands still, or runs unseen, while the gate is as it is. What was told before goes out.
    async fn wait(&mut self, gate: Gate) {
        self.program.close_partial();
        self.hand_over();
        if gate == Gate::Unseen {
            // Section 1.4: no numbers are used up, and the number of the first event to come is told.
            self.say(Said::Break(self.program.next_sequence()));
            self.program.run_unseen();
        }
        tokio::select! {
            _ = self.gate.changed() => {}
            () = self.halt.cancelled() => {}
        }
    }

    /// Waits until one of the full buffers is sent. Answers whether there is any hope.
    async fn wait_for_a_buffer(&mut self) -> bool {
        tokio::select! {
            buffer = self.senders.sent() => match buffer {
                Some(buffer) => self.program.give_back(buffer),
                None => return false,
            },
            _ = self.gate.changed() => {}
            () = self.halt.cancelled() => {}
        }
        true
    }

    /// Queues what is full, and tells about classes. Answers whether anything was queued.
    fn hand_over(&mut self) -> bool {
        let full: Vec<_> = self.program.take_full().collect();
        let any = !full.is_empty();
        full.into_iter().for_each(|buffer| self.queue(buffer));
        self.tally.set_filling(self.program.readable_buffers());
        self.say_loaded();
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

    fn say_loaded(&mut self) {
        for (fate, class) in self.program.take_loaded() {
            // Fails only once the agent is gone.
            let _ = self.said.send(Said::Class(fate, class));
        }
    }

    fn say(&self, said: Said) {
        let _ = self.said.send(said);
    }

    fn millis(&self) -> u32 {
        // Wraps after 49 days, as that of real agents.
        self.base.elapsed().as_millis() as u32
    }
}
