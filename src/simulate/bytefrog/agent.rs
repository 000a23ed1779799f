//! One agent from its hello to its end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::pace::Pace;
use super::super::rng::Rng;
use super::super::tcp::{self, Outcome};
use super::super::{Counts, Sent};
use super::Options;
use super::configuration::Configuration;
use super::control::{Control, Said};
use super::data::{self, Senders};
use super::harm::Harm;
use super::modes::Gate;
use super::program::Program;
use super::tally::Tally;
use super::trace::Trace;

/// What one agent is to do.
pub(in super::super) struct Agent {
    /// Its number in the run, from 0.
    pub(in super::super) number: u64,
    pub(in super::super) seed: u64,
    pub(in super::super) to: SocketAddr,
    pub(in super::super) options: Options,
    /// How many events its program numbers at most.
    pub(in super::super) events: u64,
    pub(in super::super) pace: Pace,
    /// When the run began.
    pub(in super::super) start: Instant,
    /// Let the program end.
    pub(in super::super) halt: CancellationToken,
}

/// What an agent noticed about its collector, beyond harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remarks {
    /// The last configuration that came.
    pub configuration: Option<Configuration>,
    /// In how many reads it came. More than one aborts the JVM of a version 1 agent; but since the network may cut
    /// what was written at once, it is no harm here.
    pub configuration_reads: u32,
    /// Whether the collector stopped it.
    pub stopped: bool,
    /// Whether the control connection was lost while the program was traced. It is told to the end all the same.
    pub control_lost: bool,
    /// Numbered events that were lost on purpose ([`Options::gaps`]).
    pub lost_events: u64,
}

/// Runs a single agent, as [`super::super::run`] does, and tells what it noticed.
///
/// # Errors
/// As those of [`super::super::run`].
pub async fn run_alone(
    to: SocketAddr,
    options: Options,
    seed: u64,
    events: u64,
    stop: impl Future<Output = ()>,
) -> (io::Result<Sent>, Remarks) {
    if let Err(error) = options.check() {
        return (Err(error), Remarks::default());
    }
    let (start, halt) = (Instant::now(), CancellationToken::new());
    let agent = Agent { number: 0, seed, to, options, events, pace: Pace::new(None, 1), start, halt: halt.clone() };
    let mut run = std::pin::pin!(agent.run_and_remark());
    let (outcome, remarks) = tokio::select! {
        done = &mut run => done,
        () = stop => {
            halt.cancel();
            run.await
        }
    };
    let seconds = (outcome.finished - start).as_secs_f64();
    let Counts { messages, events } = outcome.counts;
    let sent = Sent { protocol: "bytefrog", messages, events, bytes: outcome.bytes, seconds };
    (outcome.fault.map_or(Ok(sent), Err), remarks)
}

impl Agent {
    /// Does it all.
    pub(in super::super) async fn run(self) -> Outcome {
        self.run_and_remark().await.0
    }

    async fn run_and_remark(self) -> (Outcome, Remarks) {
        let tally = Arc::new(Tally::default());
        let mut remarks = Remarks::default();
        let mut finished = Instant::now();
        let result = self.converse(&tally, &mut remarks, &mut finished).await;
        let (counts, bytes) = tally.total();
        let fault = result.err().map(|error| {
            let text = format!("connection {} to {}: {error}", self.number, self.to);
            io::Error::new(error.kind(), text)
        });
        (Outcome { counts, bytes, finished, fault }, remarks)
    }

    async fn converse(&self, tally: &Arc<Tally>, remarks: &mut Remarks, finished: &mut Instant) -> io::Result<()> {
        let (said, to_say) = mpsc::unbounded_channel();
        let (gate, gate_watch) = watch::channel(Gate::Open);
        let dialled = tokio::select! {
            control = Control::dial(self.to, self.options, Arc::clone(tally), to_say, gate) => control,
            () = self.halt.cancelled() => return Ok(()),
        };
        let mut control = dialled?;
        let traced = self.trace(&mut control, tally, (said, gate_watch), remarks).await;
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
                    // Whether the collector hears of it changes nothing.
                    let _ = control.die(why).await;
                }
                Err(error)
            }
        };
        *remarks = Remarks { lost_events: remarks.lost_events, ..control.remarks() };
        ended?;
        let lost = remarks.control_lost;
        control.close().await?;
        if lost { Err(io::Error::new(io::ErrorKind::ConnectionAborted, CONTROL_LOST)) } else { Ok(()) }
    }

    /// From the hello until all that the program told is sent. Answers the data connections, if it came to that.
    async fn trace(
        &self,
        control: &mut Control,
        tally: &Arc<Tally>,
        (said, gate): (mpsc::UnboundedSender<Said>, watch::Receiver<Gate>),
        remarks: &mut Remarks,
    ) -> io::Result<Option<Vec<TcpStream>>> {
        let started = tokio::select! {
            configuration = control.until_start() => configuration?,
            () = self.halt.cancelled() => return Ok(None),
        };
        let Options { in_order, gaps, patience, .. } = self.options;
        let base = Instant::now();
        let opening = data::open(self.to, started.run, started.data_senders, patience, tally);
        let streams = tokio::select! {
            streams = control.during(opening) => streams??,
            () = self.halt.cancelled() => return Ok(Some(Vec::new())),
        };
        let mut trace = Trace {
            program: Program::new(self.seed, self.number, self.options, started.budget_bytes()),
            senders: Senders::new(streams, in_order, tally),
            tally,
            said,
            gate,
            events: self.events,
            pace: self.pace,
            start: self.start,
            base,
            halt: self.halt.clone(),
            gaps,
            rng: Rng::new(!self.seed, self.number),
            lost: 0,
        };
        self.patiently(control.during(trace.run())).await?;
        control.end();
        remarks.lost_events = trace.lost;
        self.patiently(control.during(trace.senders.finish())).await?.map(Some)
    }

    /// The end as real agents have it: data connections close after a whole heartbeat interval, control last.
    async fn end(&self, control: &mut Control, streams: Option<Vec<TcpStream>>) -> io::Result<()> {
        let Some(streams) = streams else { return Ok(()) };
        control.linger().await?;
        control.during(data::close(streams)).await??;
        // What the collector makes of the end of a run.
        control.count(Counts { messages: 0, events: 1 });
        Ok(())
    }

    /// Does `work`, but not for ever once the agent is to halt.
    async fn patiently<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        tokio::select! {
            done = work => done,
            error = tcp::out_of_patience(&self.halt, Duration::ZERO) => Err(error),
        }
    }
}

const CONTROL_LOST: &str = "the collector closed the control connection while the program was traced";
