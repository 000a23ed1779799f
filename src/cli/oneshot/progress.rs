//! Progress on stderr: one line that is replaced on a terminal, otherwise a line for each step.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::super::{counted, say};
use tributary_codec::terminal;

/// How often the line is replaced.
const REFRESH: Duration = Duration::from_millis(200);

/// What the command waits for.
#[derive(Debug)]
pub(super) struct ProgressLine {
    step: String,
    since: Instant,
    /// How long the step takes, if that is known.
    time: Option<Duration>,
    is_terminal: bool,
    refresh: Interval,
}

impl ProgressLine {
    pub(super) fn new() -> ProgressLine {
        let mut refresh = interval(REFRESH);
        refresh.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_terminal = io::stderr().is_terminal() && !is_dumb;
        ProgressLine { step: String::new(), since: Instant::now(), time: None, is_terminal, refresh }
    }

    /// A step begins.
    pub(super) fn step(&mut self, step: &str, time: Option<Duration>) {
        self.step = terminal::shown(step).into_owned();
        (self.since, self.time) = (Instant::now(), time);
        if !self.is_terminal {
            let time = time.map_or_else(String::new, |time| format!(" for {time:?}; Ctrl-C ends it early"));
            say(format_args!("{}{time}", self.step));
        }
    }

    /// When the line is to be replaced.
    pub(super) async fn refresh(&mut self) {
        self.refresh.tick().await;
    }

    /// Shows how many things have arrived.
    pub(super) fn show(&self, arrived: u64) {
        if !self.is_terminal || self.step.is_empty() {
            return;
        }
        let passed = self.since.elapsed().as_secs();
        let (time, help) = match self.time {
            Some(time) => (format!("{passed} of {} s", time.as_secs_f64().ceil()), "; Ctrl-C ends it early"),
            None => (format!("{passed} s"), ""),
        };
        let mut stderr = io::stderr();
        let arrived = counted(arrived, "event");
        let line = format!("\r\x1b[K{}: {time}, {arrived}{help}", self.step);
        let _ = stderr.write_all(line.as_bytes()).and_then(|()| stderr.flush());
    }

    /// Nothing is awaited any more: the line is removed.
    pub(super) fn end(&mut self) {
        if self.is_terminal && !std::mem::take(&mut self.step).is_empty() {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.end();
    }
}
