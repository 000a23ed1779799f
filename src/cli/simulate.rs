//! `tributary simulate`: an agent for load tests and demos.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use crate::protocol::Protocol;
use crate::simulate::{self, Agent, Amount, Plan, datadog, endless};

use super::{Failure, NamedProtocol, block_on, duration, say};

/// Simulate agents that send realistic, seeded traffic
///
/// What was sent is told on stderr as one JSON line, so that the receiving side can be checked against it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary simulate datadog --to 127.0.0.1:8136 --count 1000000
  tributary simulate datadog --to 127.0.0.1:8136 --for 1m --rate 5000 --connections 20 --seed 7
  tributary simulate endless --version 2 --to 127.0.0.1:8080 --count 10000")]
pub(super) struct Arguments {
    /// What the agents speak
    protocol: NamedProtocol,
    /// Where they connect
    #[arg(long, value_name = "ADDRESS")]
    to: SocketAddr,
    /// How many events they send in all
    #[arg(long, value_name = "N", default_value = "1000", conflicts_with = "time")]
    count: u64,
    /// How long they send, instead of how many
    #[arg(long = "for", id = "time", value_name = "DURATION", value_parser = duration)]
    time: Option<Duration>,
    /// Events per second over all connections [default: as fast as the collector takes them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// How many agents
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// The same seed gives the same traffic
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// datadog: how lists are laid out, as `list_layout` of the listener
    #[arg(long, value_name = "LAYOUT", default_value = "exact")]
    list_layout: Layout,
    /// endless: the protocol version that the machines speak, 2 or 3
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u8).range(2..=3))]
    version: u8,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Layout {
    /// As long as their entries
    Exact,
    /// Always 32 entries long
    Padded32,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dialect = match arguments.list_layout {
        Layout::Exact => datadog::Dialect::Exact,
        Layout::Padded32 => datadog::Dialect::Padded32,
    };
    let version = if arguments.version == 2 { endless::Version::V2 } else { endless::Version::V3 };
    let agent = agent(arguments.protocol.spoken()?, dialect, version)?;
    let plan = Plan {
        to: arguments.to,
        amount: arguments.time.map_or(Amount::Events(arguments.count), Amount::For),
        rate: arguments.rate,
        connections: arguments.connections as usize,
        seed: arguments.seed,
    };
    let sent = block_on(simulate::run(agent, plan, pending()))??;
    say(sent.to_json());
    Ok(())
}

/// The simulated agent of a protocol.
pub(super) fn agent(
    protocol: Protocol,
    dialect: datadog::Dialect,
    version: endless::Version,
) -> Result<Agent, Failure> {
    match protocol {
        Protocol::Datadog => Ok(Agent::Datadog(dialect)),
        Protocol::Endless => Ok(Agent::Endless(version)),
        Protocol::Rbkit | Protocol::Bytefrog | Protocol::Zico => Err(Failure::Misused(protocol.not_spoken())),
    }
}
