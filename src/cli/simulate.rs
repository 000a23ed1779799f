//! `tributary simulate`: an agent for load tests and demos.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use crate::protocol::Protocol;
use crate::simulate::{self, Agent, Amount, Plan, bytefrog, datadog, endless, rbkit, zico};

use super::{Failure, NamedProtocol, block_on, duration, say};

/// Simulate agents that send realistic, seeded traffic
///
/// What was sent is told on stderr as one JSON line, so that the receiving side can be checked against it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary simulate datadog --to 127.0.0.1:8136 --count 1000000
  tributary simulate datadog --to 127.0.0.1:8136 --for 1m --rate 5000 --connections 20 --seed 7
  tributary simulate bytefrog --to 127.0.0.1:8765 --protocol-version 1 --threads 16 --for 10s
  tributary simulate endless --to 127.0.0.1:8080 --protocol-version 2 --count 10000
  tributary simulate rbkit --publish 127.0.0.1:5555 --request 127.0.0.1:5556 --rate 1000 --for 1m
  tributary simulate zico --to 127.0.0.1:8640 --dialect gen1 --connections 2")]
pub(super) struct Arguments {
    /// What the agents speak
    protocol: NamedProtocol,
    /// Where they connect; all but rbkit, to which the collector connects
    #[arg(long, value_name = "ADDRESS")]
    to: Option<SocketAddr>,
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
    /// Which version of the protocol the agents speak: bytefrog 1 to 4 [default: 4], endless 2 or 3 [default: 3]
    #[arg(long, alias = "version", value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4))]
    protocol_version: Option<u8>,
    /// rbkit: v0.1.10, master-2.1 (the default), master-2.1-raw or spec-2.1; zico: doc, gen1 or gen2 (the default)
    #[arg(long, value_name = "DIALECT")]
    dialect: Option<String>,
    /// bytefrog: threads of each traced program
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// bytefrog: the project that the agents belong to, from version 4 on; 0: none
    #[arg(long, value_name = "N", default_value = "0", allow_negative_numbers = true)]
    project_id: i32,
    /// bytefrog: numbers in order and names before they are used, as real agents never send them
    #[arg(long)]
    in_order: bool,
    /// bytefrog: one buffer in so many is lost, which leaves a gap in the numbers; 0: none
    #[arg(long, value_name = "N", default_value = "0")]
    gaps: u32,
    /// rbkit: where it publishes; port 0: any, which is told on stderr
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5555")]
    publish: SocketAddr,
    /// rbkit: where it takes requests; port 0: any, which is told on stderr
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5556")]
    request: SocketAddr,
    /// rbkit: objects of a heap dump
    #[arg(long, value_name = "N", default_value = "2000")]
    heap_objects: u32,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Layout {
    /// As long as their entries
    Exact,
    /// Always 32 entries long
    Padded32,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let agent = match arguments.protocol.0 {
        Protocol::Rbkit => return ruby(arguments),
        Protocol::Datadog => Agent::Datadog(match arguments.list_layout {
            Layout::Exact => datadog::Dialect::Exact,
            Layout::Padded32 => datadog::Dialect::Padded32,
        }),
        Protocol::Bytefrog => Agent::Bytefrog(bytefrog::Options {
            version: arguments.protocol_version.unwrap_or(bytefrog::Options::default().version),
            threads: arguments.threads,
            project: arguments.project_id,
            in_order: arguments.in_order,
            gaps: arguments.gaps,
            ..Default::default()
        }),
        Protocol::Endless => Agent::Endless(match arguments.protocol_version {
            None | Some(3) => endless::Version::V3,
            Some(2) => endless::Version::V2,
            Some(_) => return Err(Failure::Misused("--protocol-version: agents of endless speak 2 or 3".to_owned())),
        }),
        Protocol::Zico => Agent::Zico(match arguments.dialect.as_deref() {
            None | Some("gen2") => zico::Dialect::Gen2,
            Some("gen1") => zico::Dialect::Gen1,
            Some("doc") => zico::Dialect::Doc,
            Some(_) => return Err(Failure::Misused("--dialect: agents of zico speak doc, gen1 or gen2".to_owned())),
        }),
    };
    let missing = || Failure::Misused("--to ADDRESS is missing: where the agents connect".to_owned());
    let plan = Plan {
        to: arguments.to.ok_or_else(missing)?,
        amount: arguments.amount(),
        rate: arguments.rate,
        connections: arguments.connections as usize,
        seed: arguments.seed,
    };
    let sent = block_on(simulate::run(agent, plan, pending()))??;
    say(sent.to_json());
    Ok(())
}

/// A Ruby process: it waits for collectors, and so do we.
fn ruby(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.to.is_some() || arguments.connections != 1 {
        let text = "rbkit: collectors connect to one agent, at --publish and --request; no --to, no --connections";
        return Err(Failure::Misused(text.to_owned()));
    }
    let Arguments { publish, request, heap_objects, rate, seed, .. } = *arguments;
    let dialect = arguments.dialect.as_deref().map(str::parse::<rbkit::Dialect>).transpose();
    let dialect = dialect.map_err(|why| Failure::Misused(format!("--dialect: {why}")))?.unwrap_or_default();
    let options = rbkit::Options { publish, request, dialect, heap_objects, ..Default::default() };
    let plan = rbkit::Plan { amount: arguments.amount(), rate, seed };
    let report = block_on(async {
        let process = rbkit::Process::bind(options).await?;
        let rbkit::Options { publish, request, .. } = process.options();
        say(format_args!("rbkit publishes on {publish} and takes requests on {request}"));
        process.run(plan, pending()).await
    })??;
    say(report.to_json());
    match report.received.faults() {
        0 => Ok(()),
        faults => Err(Failure::Failed(format!("the collector did {faults} times what none should do"))),
    }
}

impl Arguments {
    fn amount(&self) -> Amount {
        self.time.map_or(Amount::Events(self.count), Amount::For)
    }
}

/// The simulated agent of a protocol, as it is by default.
pub(super) fn agent(protocol: Protocol) -> Result<Agent, Failure> {
    match protocol {
        Protocol::Datadog => Ok(Agent::Datadog(datadog::Dialect::default())),
        Protocol::Bytefrog => Ok(Agent::Bytefrog(bytefrog::Options::default())),
        Protocol::Endless => Ok(Agent::Endless(endless::Version::default())),
        Protocol::Zico => Ok(Agent::Zico(zico::Dialect::default())),
        Protocol::Rbkit => Err(Failure::Misused("rbkit: the daemon connects to the agent, not the reverse".to_owned())),
    }
}
