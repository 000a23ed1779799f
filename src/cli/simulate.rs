//! `tributary simulate`: agents for load tests and demos.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tributary_protocol::Protocol;
use tributary_simulate::{
    self as simulate, AgentKind, Amount, Plan, bytefrog, datadog, datadog_agent, endless, otlp, rbkit, zico,
};

use super::{CommandLineError, NamedProtocol, address, block_on, duration, say};

/// Simulate agents that send realistic, seeded traffic
///
/// The result is one JSON line on stderr with the numbers of events and bytes that were sent, to compare with the receiver.
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
    /// The protocol of the agents
    protocol: NamedProtocol,
    /// The address that agents connect to. Not for rbkit: its collector connects to the agent
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    to: Option<SocketAddr>,
    /// Number of events that all agents send together
    #[arg(long, value_name = "N", default_value = "1000", conflicts_with = "time")]
    count: u64,
    /// Send for this time instead
    #[arg(long = "for", id = "time", value_name = "DURATION", value_parser = duration)]
    time: Option<Duration>,
    /// Events per second of all agents together [default: as fast as the collector reads]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Number of agents
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Seed of the random traffic; the same seed gives the same traffic
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// datadog: layout of lists, as `list_layout` of the listener [default: exact]
    #[arg(long, value_name = "LAYOUT")]
    list_layout: Option<ListSize>,
    /// Version of the protocol: bytefrog 1 to 4 [default: 4], endless 2 or 3 [default: 3]
    #[arg(long, alias = "version", value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4))]
    protocol_version: Option<u8>,
    /// Dialect: rbkit v0.1.10, master-2.1 (the default), master-2.1-raw or spec-2.1; zico doc, fressian, gen1 or
    /// gen2 (the default);
    /// datadog_agent v0.4, v0.5 (the default), v0.7, v1.0, stats, dogstatsd or profiles
    #[arg(long, value_name = "DIALECT")]
    dialect: Option<String>,
    /// bytefrog: number of threads of each traced program [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// bytefrog: project id, from version 4 on; 0, the default: none
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    project_id: Option<i32>,
    /// bytefrog: send events in the order of their numbers and names before their use, unlike real agents
    #[arg(long)]
    in_order: bool,
    /// bytefrog: drop one of N buffers, which leaves gaps in the numbers; 0, the default: none
    #[arg(long, value_name = "N")]
    gaps: Option<u32>,
    /// rbkit: address of the publish socket; port 0: the system chooses a port, which is reported on stderr [default:
    /// 127.0.0.1:5555]
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    publish: Option<SocketAddr>,
    /// rbkit: address of the request socket; port 0: the system chooses a port, which is reported on stderr [default:
    /// 127.0.0.1:5556]
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    request: Option<SocketAddr>,
    /// rbkit: number of objects in a heap dump [default: 2000]
    #[arg(long, value_name = "N")]
    heap_objects: Option<u32>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ListSize {
    /// The length of their entries
    Exact,
    /// Always 32 entries
    Padded32,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    arguments.check_protocol()?;
    let agent = match arguments.protocol.0 {
        Protocol::Rbkit => return ruby(arguments),
        protocol @ Protocol::Nats => agent(protocol)?,
        Protocol::Datadog => AgentKind::Datadog(match arguments.list_layout {
            None | Some(ListSize::Exact) => datadog::DatadogDialect::Exact,
            Some(ListSize::Padded32) => datadog::DatadogDialect::Padded32,
        }),
        Protocol::Bytefrog => AgentKind::Bytefrog(bytefrog::Options {
            version: arguments.protocol_version.unwrap_or(bytefrog::Options::default().version),
            threads: arguments.threads.unwrap_or(4),
            project: arguments.project_id.unwrap_or(0),
            in_order: arguments.in_order,
            gaps: arguments.gaps.unwrap_or(0),
            ..Default::default()
        }),
        Protocol::DatadogAgent => AgentKind::DatadogAgent(match arguments.dialect.as_deref() {
            None => datadog_agent::TracerDialect::default(),
            Some(name) => {
                let found = datadog_agent::TracerDialect::ALL.into_iter().find(|(known, _)| *known == name);
                let Some((_, dialect)) = found else {
                    return Err(CommandLineError::Misused(
                    "--dialect: datadog_agent tracers have the dialects v0.4, v0.5, v0.7, v1.0, stats, dogstatsd and profiles"
                        .to_owned(),
                ));
                };
                dialect
            }
        }),
        Protocol::Endless => AgentKind::Endless(match arguments.protocol_version {
            None | Some(3) => endless::AgentVersion::V3,
            Some(2) => endless::AgentVersion::V2,
            Some(_) => {
                return Err(CommandLineError::Misused(
                    "--protocol-version: endless agents have the versions 2 and 3".to_owned(),
                ));
            }
        }),
        Protocol::Otlp => AgentKind::Otlp(match arguments.dialect.as_deref() {
            None => otlp::OtlpDialect::default(),
            Some(name) => {
                let found = otlp::OtlpDialect::ALL.into_iter().find(|(known, _)| *known == name);
                let why = "--dialect: otlp programs have the dialects traces, logs, metrics and profiles";
                found.ok_or_else(|| CommandLineError::Misused(why.to_owned()))?.1
            }
        }),
        Protocol::Zico => AgentKind::Zico(match arguments.dialect.as_deref() {
            None | Some("gen2") => zico::ZicoDialect::Gen2,
            Some("gen1") => zico::ZicoDialect::Gen1,
            Some("doc") => zico::ZicoDialect::Doc,
            Some("fressian") => zico::ZicoDialect::Fressian,
            Some(_) => {
                return Err(CommandLineError::Misused(
                    "--dialect: zico agents have the dialects doc, fressian, gen1 and gen2".to_owned(),
                ));
            }
        }),
    };
    let missing =
        || CommandLineError::Misused("--to ADDRESS is missing: the address that the agents connect to".to_owned());
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

/// Simulates a Ruby process, which waits for its collector.
fn ruby(arguments: &Arguments) -> Result<(), CommandLineError> {
    if arguments.to.is_some() || arguments.connections != 1 {
        let text = "rbkit: a collector connects to one agent, at --publish and --request; omit --to and --connections";
        return Err(CommandLineError::Misused(text.to_owned()));
    }
    let Arguments { rate, seed, .. } = *arguments;
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let (publish, request) = (arguments.publish.unwrap_or(local(5555)), arguments.request.unwrap_or(local(5556)));
    let heap_objects = arguments.heap_objects.unwrap_or(2000);
    let dialect = arguments.dialect.as_deref().map(str::parse::<rbkit::RbkitDialect>).transpose();
    let dialect = dialect.map_err(|why| CommandLineError::Misused(format!("--dialect: {why}")))?.unwrap_or_default();
    let options = rbkit::Options { publish, request, dialect, heap_objects, ..Default::default() };
    let plan = rbkit::Plan { amount: arguments.amount(), rate, seed };
    let report = block_on(async {
        let process = rbkit::SimulatedProcess::bind(options).await?;
        let rbkit::Options { publish, request, .. } = process.options();
        say(format_args!("rbkit publishes on {publish} and takes requests on {request}"));
        process.run(plan, pending()).await
    })??;
    say(report.to_json());
    match report.received.faults() {
        0 => Ok(()),
        faults => Err(CommandLineError::Failed(format!("the collector broke the protocol {faults} times"))),
    }
}

impl Arguments {
    /// # Errors
    /// An option is given that this protocol does not have.
    fn check_protocol(&self) -> Result<(), CommandLineError> {
        use Protocol::{Bytefrog, Datadog, DatadogAgent, Endless, Otlp, Rbkit, Zico};
        let options: [(&str, bool, &[Protocol]); 10] = [
            ("--list-layout", self.list_layout.is_some(), &[Datadog]),
            ("--protocol-version", self.protocol_version.is_some(), &[Bytefrog, Endless]),
            ("--dialect", self.dialect.is_some(), &[DatadogAgent, Otlp, Rbkit, Zico]),
            ("--threads", self.threads.is_some(), &[Bytefrog]),
            ("--project-id", self.project_id.is_some(), &[Bytefrog]),
            ("--in-order", self.in_order, &[Bytefrog]),
            ("--gaps", self.gaps.is_some(), &[Bytefrog]),
            ("--publish", self.publish.is_some(), &[Rbkit]),
            ("--request", self.request.is_some(), &[Rbkit]),
            ("--heap-objects", self.heap_objects.is_some(), &[Rbkit]),
        ];
        let protocol = self.protocol.0;
        match options.iter().find(|(_, is_given, of)| *is_given && !of.contains(&protocol)) {
            None => Ok(()),
            Some((option, _, of)) => {
                let names: Vec<_> = of.iter().map(|protocol| protocol.as_str()).collect();
                let text = format!("{option} is an option of {}; {protocol} agents do not have it", names.join(", "));
                Err(CommandLineError::Misused(text))
            }
        }
    }

    fn amount(&self) -> Amount {
        self.time.map_or(Amount::Events(self.count), Amount::For)
    }
}

/// The simulated agent of a protocol with its defaults.
pub(super) fn agent(protocol: Protocol) -> Result<AgentKind, CommandLineError> {
    match protocol {
        Protocol::Datadog => Ok(AgentKind::Datadog(datadog::DatadogDialect::default())),
        Protocol::Bytefrog => Ok(AgentKind::Bytefrog(bytefrog::Options::default())),
        Protocol::DatadogAgent => Ok(AgentKind::DatadogAgent(datadog_agent::TracerDialect::default())),
        Protocol::Endless => Ok(AgentKind::Endless(endless::AgentVersion::default())),
        Protocol::Zico => Ok(AgentKind::Zico(zico::ZicoDialect::default())),
        Protocol::Otlp => Ok(AgentKind::Otlp(otlp::OtlpDialect::default())),
        Protocol::Rbkit => Err(CommandLineError::Misused("rbkit: the daemon connects to the agent".to_owned())),
        Protocol::Nats => Err(CommandLineError::Misused("nats: no agent speaks it".to_owned())),
    }
}
