//! One agent, from its hello to its end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::super::pace::Pace;
use super::super::rng::Rng;
use super::super::tcp::{self, Outcome};
use super::super::{Counts, Sent};
use super::Options;
use super::control::{Control, ControlEvent};
use super::data::{self, Senders};
use super::harm::Harm;
use super::modes::RunMode;
use super::observations::Observations;
use super::program::Program;
use super::tally::Tally;
use super::trace::TracedProgram;

/// The task of one agent.
pub(in super::super) struct AgentTask {
    /// Its number in the run, from 0.
    pub(in super::super) number: u64,
    pub(in super::super) seed: u64,
    pub(in super::super) to: SocketAddr,
    pub(in super::super) options: Options,
    /// The most events that its program numbers.
    pub(in super::super) events: u64,
    pub(in super::super) pace: Pace,
    /// The start of the run.
    pub(in super::super) start: Instant,
    /// Ends the program when set.
    pub(in super::super) halt: CancellationToken,
}

/// Runs a single agent, as [`super::super::run`] does, and returns its observations.
///
/// # Errors
/// Those of [`super::super::run`].
pub async fn run_alone(
    to: SocketAddr,
    options: Options,
    seed: u64,
    events: u64,
    stop: impl Future<Output = ()>,
) -> (io::Result<Sent>, Observations) {
    if let Err(error) = options.check() {
        return (Err(error), Observations::default());
    }
    let (start, halt) = (Instant::now(), CancellationToken::new());
    let agent = AgentTask { number: 0, seed, to, options, events, pace: Pace::new(None, 1), start, halt: halt.clone() };
    let mut run = std::pin::pin!(agent.run_and_observe());
    let (outcome, observations) = tokio::select! {
        done = &mut run => done,
        () = stop => {
            halt.cancel();
            run.await
        }
    };
    let seconds = (outcome.finished - start).as_secs_f64();
    let Counts { messages, events } = outcome.counts;
    let sent = Sent { protocol: "bytefrog", messages, events, bytes: outcome.bytes, seconds };
    (outcome.fault.map_or(Ok(sent), Err), observations)
}

impl AgentTask {
    /// Runs the agent to its end.
    pub(in super::super) async fn run(self) -> Outcome {
        self.run_and_observe().await.0
    }

    async fn run_and_observe(self) -> (Outcome, Observations) {
        let tally = Arc::new(Tally::default());
        let mut observations = Observations::default();
        let mut finished = Instant::now();
        let result = self.run_trace(&tally, &mut observations, &mut finished).await;
        let (counts, bytes) = tally.total();
        let fault = result.err().map(|error| {
            let text = format!("connection {} to {}: {error}", self.number, self.to);
            io::Error::new(error.kind(), text)
        });
        (Outcome { counts, bytes, finished, fault }, observations)
    }

    async fn run_trace(
        &self,
        tally: &Arc<Tally>,
        observations: &mut Observations,
        finished: &mut Instant,
    ) -> io::Result<()> {
        let (control_events, to_send) = mpsc::unbounded_channel();
        let (run_mode, run_mode_watch) = watch::channel(RunMode::Traced);
        let dialled = tokio::select! {
            control = Control::dial(self.to, self.options, Arc::clone(tally), to_send, run_mode) => control,
            () = self.halt.cancelled() => return Ok(()),
        };
        let mut control = dialled?;
        let traced = self.trace(&mut control, tally, (control_events, run_mode_watch), observations).await;
        *finished = Instant::now();
        let ended = match traced {
            Ok(streams) => {
                let interval = control.interval();
                tokio::select! {
                    ended = self.end(&mut control, streams) => ended,
                    error = tcp::out_of_patience(&self.halt, interval) => Err(error),
                }
            }
            Err(error) => {
                if let Some(Harm::TraceDies(why)) = error.get_ref().and_then(|harm| harm.downcast_ref()) {
                    // The result is the same whether or not the collector receives it.
                    let _ = control.report_failure(why).await;
                }
                Err(error)
            }
        };
        let Observations { lost_events, has_late_buffer, .. } = *observations;
        *observations = Observations { lost_events, has_late_buffer, ..control.observations() };
        ended?;
        let lost = observations.control_lost;
        let hangs = has_late_buffer && !control.is_killed();
        control.close().await?;
        if hangs {
            return Err(
                Harm::Hang("a thread returned its buffer after the data connections had closed".to_owned()).into()
            );
        }
        if lost { Err(io::Error::new(io::ErrorKind::ConnectionAborted, CONTROL_LOST)) } else { Ok(()) }
    }

    /// Runs from the hello until all events are sent. Returns the data connections, if they were opened.
    async fn trace(
        &self,
        control: &mut Control,
        tally: &Arc<Tally>,
        (control_events, run_mode): (mpsc::UnboundedSender<ControlEvent>, watch::Receiver<RunMode>),
        observations: &mut Observations,
    ) -> io::Result<Option<Vec<TcpStream>>> {
        let started = tokio::select! {
            configuration = control.until_start() => configuration?,
            () = self.halt.cancelled() => return Ok(None),
        };
        let Options { in_order, gaps, start_up, late_buffer, .. } = self.options;
        let base = Instant::now();
        let opening = async {
            sleep(start_up).await;
            data::open(self.to, started.run, started.data_senders, self.options, tally).await
        };
        let opened = tokio::select! {
            opened = control.serve_during(opening) => opened?,
            () = self.halt.cancelled() => return Ok(Some(Vec::new())),
        };
        let streams = opened.map_err(|error| control.without_senders(error))?;
        control.settle();
        let mut trace = TracedProgram {
            program: Program::new(self.seed, self.number, self.options, started.budget_bytes()),
            senders: Senders::new(streams, in_order, self.options, tally),
            tally,
            control_events,
            run_mode,
            events: self.events,
            pace: self.pace,
            start: self.start,
            base,
            halt: self.halt.clone(),
            gaps,
            rng: Rng::new(!self.seed, self.number),
            lost: 0,
            has_late_buffer: false,
            late_buffer,
            interval: control.interval(),
        };
        self.until_halted(control.serve_during(trace.run())).await?;
        control.end();
        observations.lost_events = trace.lost;
        observations.has_late_buffer = trace.has_late_buffer;
        self.until_halted(control.serve_during(trace.senders.finish())).await?.map(Some)
    }

    /// Ends as real agents do: data connections close after a whole heartbeat interval, control last.
    async fn end(&self, control: &mut Control, streams: Option<Vec<TcpStream>>) -> io::Result<()> {
        let Some(streams) = streams else { return Ok(()) };
        control.wait_for_end().await?;
        control.serve_during(data::close(streams)).await??;
        // The event that the collector writes for the end of a run.
        control.count(Counts { messages: 0, events: 1 });
        Ok(())
    }

    /// Runs `work`, for a limited time once the agent is to halt.
    async fn until_halted<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        tokio::select! {
            done = work => done,
            error = tcp::out_of_patience(&self.halt, Duration::ZERO) => Err(error),
        }
    }
}

const CONTROL_LOST: &str = "the collector closed the control connection while the program was traced";
