//! Simulated agents: seeded, realistic traffic for the demo, for load tests and for the tests of this project.
//!
//! Nothing here uses the decoders, so that two independent implementations check each other. An agent counts the events
//! that the daemon must write for what it sends, so that both sides can be compared.
#![forbid(unsafe_code)]

pub mod bytefrog;
mod counts;
pub mod datadog;
pub mod datadog_agent;
pub mod endless;
mod http;
pub mod otlp;
mod otlp_profile;
mod pace;
pub mod rbkit;
mod rng;
mod tcp;
pub mod zico;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use counts::{Counts, Sent};
use pace::Pace;
use tcp::{Outcome, SimulatedConnection};
use tributary_protocol::Protocol;

/// The kind of simulated agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgentKind {
    /// Tracers that send Datadog-style binary spans over TCP.
    Datadog(datadog::DatadogDialect),
    /// Java agents of Bytefrog and Code Pulse.
    Bytefrog(bytefrog::Options),
    /// Tracers that send to a Datadog agent over HTTP.
    DatadogAgent(datadog_agent::TracerDialect),
    /// Machines that upload Endless OS metrics over HTTP.
    Endless(endless::AgentVersion),
    /// Java programs with a Zorka agent.
    Zico(zico::ZicoDialect),
    /// Programs with an OpenTelemetry SDK.
    Otlp(otlp::OtlpDialect),
}

impl AgentKind {
    /// Its protocol.
    pub fn protocol(self) -> Protocol {
        match self {
            AgentKind::Datadog(_) => Protocol::Datadog,
            AgentKind::Bytefrog(_) => Protocol::Bytefrog,
            AgentKind::DatadogAgent(_) => Protocol::DatadogAgent,
            AgentKind::Endless(_) => Protocol::Endless,
            AgentKind::Zico(_) => Protocol::Zico,
            AgentKind::Otlp(_) => Protocol::Otlp,
        }
    }
}

/// What to send, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The address of the listener.
    pub to: SocketAddr,
    /// When to stop.
    pub amount: Amount,
    /// Events per second of all connections together, on average since the start; `None`: as fast as possible.
    pub rate: Option<u64>,
    /// The number of connections that send at the same time. Each is one agent; one without events is not opened.
    /// `bytefrog` agents open further connections as configured by the collector.
    pub connections: usize,
    /// Determines everything that is sent, but for times and what depends on them.
    pub seed: u64,
}

/// How much is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// Exactly this many events over all connections together. For `bytefrog`: events of the traced program; the agents
    /// send events about themselves in addition.
    Events(u64),
    /// As many as possible in this time, from the moment of the call.
    For(Duration),
}

/// Sends what `plan` describes, until it is done or `stop` is ready. In either case every started object is finished
/// and every connection closed.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`]: a plan without connections or with a rate of 0, or invalid options of an agent. A
/// [`bytefrog::Harm`]: the collector would have harmed a real agent. Otherwise the first connection that could not be
/// opened, broke, or was not read for five seconds after the end: the error names it and how much all connections had
/// sent. The other connections finish what they were sending.
pub async fn run(agent: AgentKind, plan: Plan, stop: impl Future<Output = ()>) -> io::Result<Sent> {
    if plan.connections == 0 || plan.rate == Some(0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a simulation takes a connection and a rate above 0"));
    }
    if let AgentKind::Bytefrog(options) = agent {
        options.check()?;
    }
    let start = Instant::now();
    let halt = CancellationToken::new();
    let mut connections = spawn_connections(agent, plan, start, &halt);
    let mut over = pin!(async {
        match plan.amount {
            Amount::Events(_) => stop.await,
            Amount::For(time) => drop(tokio::time::timeout(time, stop).await),
        }
    });

    let mut sent = Sent { protocol: agent.protocol().as_str(), messages: 0, events: 0, bytes: 0, seconds: 0.0 };
    let mut first_fault = None;
    loop {
        let outcome = tokio::select! {
            () = &mut over, if !halt.is_cancelled() => {
                halt.cancel();
                continue;
            }
            outcome = connections.join_next() => outcome,
        };
        let Some(outcome) = outcome else { break };
        let Outcome { counts, bytes, finished, fault } = outcome.map_err(io::Error::other)?;
        sent.messages += counts.messages;
        sent.events += counts.events;
        sent.bytes += bytes;
        sent.seconds = sent.seconds.max((finished - start).as_secs_f64());
        if let Some(fault) = fault {
            halt.cancel();
            first_fault.get_or_insert(fault);
        }
    }
    match first_fault {
        None => Ok(sent),
        Some(fault) => Err(io::Error::new(fault.kind(), format!("{fault}; sent until then, at least: {sent}"))),
    }
}

fn spawn_connections(agent: AgentKind, plan: Plan, start: Instant, halt: &CancellationToken) -> JoinSet<Outcome> {
    let connections = plan.connections as u64;
    let shares = (0..connections).map(|number| (number, share(plan.amount, number, connections)));
    let shares: Vec<_> = shares.filter(|&(_, events)| events > 0).collect();
    let pace = Pace::new(plan.rate, shares.len() as u64);
    let mut tasks = JoinSet::new();
    for (number, events) in shares {
        let Plan { to, seed, .. } = plan;
        let halt = halt.clone();
        match agent {
            AgentKind::Datadog(dialect) => {
                let connection = SimulatedConnection { number, to, events, pace, start, halt };
                tasks.spawn(connection.run(move |now| datadog::Tracer::new(seed, number, now, dialect)));
            }
            AgentKind::Bytefrog(options) => {
                tasks.spawn(bytefrog::AgentTask { number, seed, to, options, events, pace, start, halt }.run());
            }
            AgentKind::DatadogAgent(version) => {
                let connection = SimulatedConnection { number, to, events, pace, start, halt };
                tasks.spawn(http::run(connection, move |now| datadog_agent::Tracer::new(seed, number, now, version)));
            }
            AgentKind::Otlp(dialect) => {
                let connection = SimulatedConnection { number, to, events, pace, start, halt };
                tasks.spawn(http::run(connection, move |now| otlp::OtlpProgram::new(seed, number, now, dialect)));
            }
            AgentKind::Endless(version) => {
                let connection = SimulatedConnection { number, to, events, pace, start, halt };
                tasks.spawn(http::run(connection, move |now| endless::Machine::new(seed, number, now, version)));
            }
            AgentKind::Zico(dialect) => {
                let connection = SimulatedConnection { number, to, events, pace, start, halt };
                tasks.spawn(zico::run(connection, seed, dialect));
            }
        }
    }
    tasks
}

/// The number of events of connection `number`: an even share, with the remainder on the first ones.
fn share(amount: Amount, number: u64, connections: u64) -> u64 {
    match amount {
        Amount::Events(events) => events / connections + u64::from(number < events % connections),
        Amount::For(_) => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_count() {
        for (events, connections) in [(0, 1), (1, 3), (2, 3), (7, 3), (1_000, 7)] {
            let shares = (0..connections).map(|number| share(Amount::Events(events), number, connections));
            assert_eq!(shares.sum::<u64>(), events, "{events} over {connections}");
        }
    }
}
