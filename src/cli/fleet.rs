//! `tributary fleet`: several daemons that share a stream of NATS.

mod audit;
mod scrape;

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{CommandLineError, block_on, duration, print};
use audit::Audit;
use tributary_nats::Servers;

/// The pause between two attempts.
const RETRY: Duration = Duration::from_millis(500);

/// Ask the daemons of a fleet what became of their events
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: FleetCommand,
}

#[derive(Debug, clap::Subcommand)]
enum FleetCommand {
    Audit(AuditArguments),
}

/// Add up what daemons have received, published, written and lost
///
/// Reads /metrics of each daemon, at its admin or its metrics address, and the state of the stream. Prints one JSON object. Exit code 1
/// if the sums do not add up; `why` says which. Counters begin when a process starts: what edges have published and writers have
/// consumed is compared only if none of them has started after the first message of the stream, and the stream still has that message.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tributary fleet audit --admin 10.0.0.1:9464 --admin 10.0.0.2:9464 --nats nats://10.0.0.3:4222")]
struct AuditArguments {
    /// Address of the admin endpoint, or of the metrics, of a daemon; for each of them
    #[arg(long, value_name = "HOST:PORT", required = true)]
    admin: Vec<String>,
    /// File with the token of the endpoints
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    /// PEM file with the authorities of the endpoints' certificates; with it, TLS is used
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// A server of NATS
    #[arg(long, value_name = "URL")]
    nats: Vec<String>,
    /// The stream
    #[arg(long, value_name = "NAME", default_value = "TRIBUTARY", requires = "nats")]
    stream: String,
    /// File with the credentials of a user of NATS
    #[arg(long, value_name = "FILE", requires = "nats")]
    credentials_file: Option<PathBuf>,
    /// File with a token for NATS
    #[arg(long, value_name = "FILE", requires = "nats")]
    token_file: Option<PathBuf>,
    /// Repeat until the sums add up and nothing waits, for this long
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    wait: Duration,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    let FleetCommand::Audit(arguments) = &arguments.command;
    let servers = arguments.servers()?;
    let audit = block_on(async {
        let deadline = Instant::now() + arguments.wait;
        loop {
            let endpoints = (arguments.admin_token_file.clone(), arguments.ca.clone());
            let read = Audit::read(&arguments.admin, endpoints, servers.as_ref(), &arguments.stream).await;
            let is_over = Instant::now() >= deadline;
            match read {
                Ok(audit) if is_over || audit.why().is_empty() && audit.waiting() == 0 => return Ok(audit),
                Err(failure) if is_over => return Err(failure),
                _ => sleep(RETRY).await,
            }
        }
    })??;
    let why = audit.why();
    print(format!("{:#}\n", audit.json()).as_bytes())?;
    if why.is_empty() {
        Ok(())
    } else {
        Err(CommandLineError::Failed(format!("the sums do not add up: {}", why.join("; "))))
    }
}

impl AuditArguments {
    /// The servers of NATS, if any is named.
    fn servers(&self) -> Result<Option<Servers>, CommandLineError> {
        let address = |text: &String| {
            text.parse()
                .map_err(|error| CommandLineError::Misused(format!("--nats {text}: {error}; write nats://HOST:4222")))
        };
        let servers = self.nats.iter().map(address).collect::<Result<Vec<_>, _>>()?;
        let (credentials_file, token_file) = (self.credentials_file.clone(), self.token_file.clone());
        let is_named = !servers.is_empty();
        Ok(is_named.then(|| Servers { credentials_file, token_file, ..Servers::new(servers) }))
    }
}
