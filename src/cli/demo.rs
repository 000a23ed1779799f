//! `tributary demo`: the daemon and a simulated agent per protocol, over real loopback sockets.

use std::future::pending;
use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, ListenerConfig, ProtocolOptions, SinkKind};
use crate::endless_store::SeenOptions;
use crate::server::Server;
use tributary_bytefrog as bytefrog;
use tributary_datadog as datadog;
use tributary_datadog_agent as datadog_agent;
use tributary_endless as endless;
use tributary_event::Kind;
use tributary_nats::Servers;
use tributary_otlp as otlp;
use tributary_pipeline::accounting::Totals;
use tributary_protocol::Protocol;
use tributary_rbkit as rbkit;
use tributary_simulate::rbkit::SimulatedProcess;
use tributary_simulate::{self as simulate, Amount, Plan, Sent};
use tributary_sink::encode::Format;
use tributary_sink::stdout;
use tributary_transport::nats::options::NatsOptions;
use tributary_transport::options::HttpOptions;
use tributary_zico as zico;
use tributary_zico_store::StoreOptions;

use super::simulate::agent;
use super::{CommandLineError, NamedProtocol, OutputFormat, block_on, duration, run, say};

/// A demo of at least this duration is one that people watch.
const WATCHED: Duration = Duration::from_secs(60);
/// The Java agent loses one buffer of this many.
const BUFFERS_PER_LOSS: u32 = 300;

/// Run the daemon with simulated agents and print their events on stdout
///
/// Uses real loopback sockets on free ports. Prints a table on stderr at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary demo --for 5s
  tributary demo --format text --rate 5
  tributary demo --protocol datadog --for 2s --rate 1000 > events.ndjson")]
pub(super) struct Arguments {
    /// Duration
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    time: Duration,
    /// Events per second of each protocol
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Only these protocols; can be repeated [default: all]
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Vec<NamedProtocol>,
    /// Format of events [default: text on a terminal, otherwise json]
    #[arg(long, value_name = "FORMAT")]
    format: Option<OutputFormat>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    let named: Vec<Protocol> = arguments.protocol.iter().map(|name| name.0).collect();
    let is_wanted = |protocol: &Protocol| named.is_empty() || named.contains(protocol);
    let protocols: Vec<Protocol> = Protocol::OF_AGENTS.into_iter().filter(is_wanted).collect();
    let (totals, sent, seconds) = block_on(run_demo(&protocols, arguments))??;
    table(&totals, &sent, seconds);
    run::check_written(&totals)
}

/// A listener per protocol, on free loopback ports, and a stdout sink. `ruby` has the addresses that the rbkit listener
/// connects to.
fn config(protocols: &[Protocol], ruby: Option<simulate::rbkit::Options>, format: Format) -> Config {
    let mut config = Config::builtin();
    config.admin.listen = config.admin.listen.map(free_address);
    config.listeners = protocols.iter().map(|protocol| listener(*protocol, ruby)).collect();
    for sink in &mut config.sinks {
        // A shell without output has the null device there, opened for reading and writing: the table is on stderr.
        sink.kind = match stdout::check() {
            Ok(()) => SinkKind::Stdout(stdout::Options { format, ..stdout::Options::default() }),
            Err(_) => SinkKind::Discard,
        };
    }
    config
}

/// This address, or one on a free port if another process has it.
fn free_address(address: SocketAddr) -> SocketAddr {
    match std::net::TcpListener::bind(address) {
        Ok(_) => address,
        Err(_) => SocketAddr::new(address.ip(), 0),
    }
}

fn listener(protocol: Protocol, ruby: Option<simulate::rbkit::Options>) -> ListenerConfig {
    let options = match protocol {
        Protocol::Rbkit => ProtocolOptions::Rbkit(rbkit::Options {
            agents: ruby.into_iter().map(ruby_agent).collect(),
            ..Default::default()
        }),
        Protocol::Datadog => ProtocolOptions::Datadog(datadog::Options::default()),
        Protocol::Bytefrog => ProtocolOptions::Bytefrog(bytefrog::Options::default()),
        Protocol::DatadogAgent => ProtocolOptions::DatadogAgent(datadog_agent::Options::default(), http()),
        Protocol::Endless => ProtocolOptions::Endless(endless::Options::default(), SeenOptions::default(), http()),
        Protocol::Zico => ProtocolOptions::Zico(zico::Options::default(), StoreOptions::default(), http()),
        Protocol::Otlp => ProtocolOptions::Otlp(otlp::Options { grpc: None, ..Default::default() }, http()),
        // No agent speaks it.
        Protocol::Nats => ProtocolOptions::Nats(Box::new(NatsOptions::new(Servers::new(Vec::new())))),
    };
    ListenerConfig {
        name: protocol.as_str().to_owned(),
        listen: (protocol != Protocol::Rbkit).then_some(([127, 0, 0, 1], 0).into()),
        options: Default::default(),
        protocol: options,
    }
}

/// The simulated Ruby process, with all its profiles.
fn ruby_agent(ruby: simulate::rbkit::Options) -> rbkit::AgentOptions {
    rbkit::AgentOptions {
        publish: Some(ruby.publish.to_string()),
        request: Some(ruby.request.to_string()),
        enable: vec![rbkit::ProfileKind::Memory, rbkit::ProfileKind::Cpu],
        ..Default::default()
    }
}

/// Options without a quarantine: a demo leaves no files.
fn http() -> HttpOptions {
    let mut options = HttpOptions::default();
    options.quarantine.dir = Default::default();
    options
}

/// Runs daemon and agents. Returns the counters, the numbers of each agent, and the seconds.
async fn run_demo(protocols: &[Protocol], arguments: &Arguments) -> Result<(Totals, Vec<Sent>, f64), CommandLineError> {
    let mut ruby = None;
    if protocols.contains(&Protocol::Rbkit) {
        let any = ([127, 0, 0, 1], 0).into();
        let options = simulate::rbkit::Options { publish: any, request: any, ..Default::default() };
        ruby = Some(SimulatedProcess::bind(options).await?);
    }
    let usual = if io::stdout().is_terminal() { Format::Text } else { Format::Json };
    let format = arguments.format.map_or(usual, Format::from);
    let config = config(protocols, ruby.as_ref().map(SimulatedProcess::options), format);
    let server = Server::start(&config).await.map_err(|error| CommandLineError::Failed(error.to_string()))?;
    if let Some(address) = server.admin_address() {
        say(format_args!("page: {}", run::page_address(address, &config)));
    }
    let started = Instant::now();
    let mut agents = tokio::task::JoinSet::new();
    // The Ruby process stays until the daemon has stopped, which would otherwise look for it.
    let (stopped, mut ruby_process) = (CancellationToken::new(), None);
    let (amount, rate) = (Amount::For(arguments.time), Some(arguments.rate));
    if let Some(ruby) = ruby {
        let simulate::rbkit::Options { publish, request, .. } = ruby.options();
        say(format_args!("rbkit: the daemon connects to a simulated agent on {publish} and {request}"));
        let plan = simulate::rbkit::Plan { amount, rate, seed: 1 };
        let (published, is_published) = oneshot::channel();
        let stop = stopped.clone().cancelled_owned();
        let end = stopped.clone().cancelled_owned();
        let end = async move {
            let _ = published.send(());
            end.await;
        };
        ruby_process = Some(tokio::spawn(ruby.run_until(plan, stop, end)));
        // An error ends it, too.
        agents.spawn(async move {
            let _ = is_published.await;
            Ok(None)
        });
    }
    for bound in server.addresses() {
        let kinds = demo_agents(bound.protocol, arguments.time)?;
        let connect =
            if kinds.len() == 1 { "a simulated agent connects" } else { "simulated agents of two versions connect" };
        say(format_args!("{} on {}: {connect}", bound.protocol, bound.address));
        for agent in kinds {
            let plan = Plan { to: bound.address, amount, rate, connections: 1, seed: 1 };
            agents.spawn(async move { simulate::run(agent, plan, pending()).await.map(Some) });
        }
    }
    let mut sent = Vec::new();
    loop {
        tokio::select! {
            agent = agents.join_next() => match agent {
                Some(result) => sent.extend(result.map_err(|error| CommandLineError::Failed(error.to_string()))??),
                None => break,
            },
            // Ctrl-C, or a reader that closes stdout, ends the demo early.
            _ = tokio::signal::ctrl_c() => break,
            () = server.wants_to_stop() => break,
        }
    }
    // The table shows the rate while the agents sent, not how long everything took to end.
    let seconds = started.elapsed().min(arguments.time).as_secs_f64();
    agents.shutdown().await;
    let accounting = server.accounting().clone();
    let totals = tokio::select! {
        totals = server.stop() => totals,
        _ = tokio::signal::ctrl_c() => accounting.totals(),
    };
    stopped.cancel();
    if let Some(process) = ruby_process {
        sent.push(process.await.map_err(|error| CommandLineError::Failed(error.to_string()))??.sent);
    }
    Ok((totals, sent, seconds))
}

/// In a demo that people watch the Java agent loses a buffer now and then, as real agents do when a connection breaks, so that
/// the page shows losses. Zorka agents of both wires share a port.
fn demo_agents(protocol: Protocol, time: Duration) -> Result<Vec<simulate::AgentKind>, CommandLineError> {
    Ok(match agent(protocol)? {
        simulate::AgentKind::Bytefrog(options) if time >= WATCHED => {
            vec![simulate::AgentKind::Bytefrog(simulate::bytefrog::Options { gaps: BUFFERS_PER_LOSS, ..options })]
        }
        agent @ simulate::AgentKind::Zico(_) => {
            vec![agent, simulate::AgentKind::Zico(simulate::zico::ZicoDialect::Fressian)]
        }
        agent => vec![agent],
    })
}

fn table(totals: &Totals, sent: &[Sent], seconds: f64) {
    say("");
    say(format_args!(
        "{:<13} {:>10} {:>10} {:>12} {:>8} {:>12}",
        "protocol", "sent", "events", "bytes", "losses", "events/s"
    ));
    for listener in &totals.listeners {
        let protocol = listener.protocol.as_str();
        let of: Vec<u64> = sent.iter().filter(|sent| sent.protocol == protocol).map(|sent| sent.events).collect();
        let sent = if of.is_empty() { "?".to_owned() } else { of.iter().sum::<u64>().to_string() };
        let losses = listener.count(Kind::Loss);
        let events = listener.events() - losses;
        let rate = events as f64 / seconds;
        say(format_args!("{protocol:<13} {sent:>10} {events:>10} {:>12} {losses:>8} {rate:>12.1}", listener.bytes_in));
    }
    for sink in &totals.sinks {
        say(format_args!("{sink}"));
    }
}
