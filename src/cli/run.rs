//! `tributary run`: the daemon.

use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::config::{Config, Loaded};
use crate::pipeline::ledger::Accounts;
use crate::server::Server;

use super::{Failure, block_on};

/// Where a configuration is looked for when none is named, in this order.
const PLACES: [&str; 2] = ["./tributary.toml", "/etc/tributary/tributary.toml"];

/// Run the daemon
///
/// SIGTERM and SIGINT drain and end it, a second one ends it at once. SIGHUP opens files anew; it does not read the
/// configuration again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary run                                the configuration found, or built-in defaults
  tributary run --config tributary.toml | jq 'select(.kind == \"span\")'
  tributary run --log-format json --log-level warn")]
pub(super) struct Arguments {
    /// The configuration [default: ./tributary.toml, then /etc/tributary/tributary.toml, then built-in defaults]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (source, loaded) = load(arguments.config.clone())?;
    info!("tributary {}, configuration: {source}", env!("CARGO_PKG_VERSION"));
    let accounts = block_on(serve(loaded.config))??;
    verdict(&accounts)
}

/// The configuration that is named, or the first that is there, or the built-in one; and where it came from.
pub(super) fn load(named: Option<PathBuf>) -> Result<(String, Loaded), Failure> {
    let found = named.or_else(|| PLACES.iter().map(PathBuf::from).find(|place| place.exists()));
    let (source, loaded) = match found {
        Some(path) => (path.display().to_string(), Config::load(&path)),
        None => ("built-in defaults".to_owned(), Config::parse("built-in defaults", "")),
    };
    let loaded = loaded.map_err(|errors| Failure::Misused(format!("the configuration is wrong\n{errors}")))?;
    Ok((source, loaded))
}

async fn serve(config: Config) -> Result<Accounts, Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let server = Server::start(&config).await.map_err(|error| Failure::Failed(error.to_string()))?;
    for bound in server.addresses() {
        info!("listener {} ({}) on {}", bound.name, bound.protocol, bound.address);
    }
    for sink in &config.sinks {
        info!("sink {}: {}", sink.name, sink.kind);
    }
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = server.wants_to_stop() => break,
            _ = hang_up.recv() => {
                info!("SIGHUP: files are opened anew");
                server.reopen();
            }
        }
    }
    info!("stopping; a second signal stops at once");
    let ledger = server.ledger().clone();
    let accounts = tokio::select! {
        accounts = server.stop() => accounts,
        _ = terminate.recv() => give_up(&ledger),
        _ = interrupt.recv() => give_up(&ledger),
    };
    accounts.listeners.iter().for_each(|listener| info!("{listener}"));
    accounts.sinks.iter().for_each(|sink| info!("{sink}"));
    Ok(accounts)
}

fn give_up(ledger: &crate::pipeline::ledger::Ledger) -> Accounts {
    warn!("stopped at once; the books are as they stand");
    ledger.accounts()
}

/// Whether everything that was decoded was also given to the sinks.
pub(super) fn verdict(accounts: &Accounts) -> Result<(), Failure> {
    let given_up: i128 = accounts.sinks.iter().filter(|sink| !sink.closed).map(|sink| sink.in_motion()).sum();
    let failed = i128::from(accounts.failed()) + given_up;
    if failed > 0 {
        let names: Vec<_> = accounts
            .sinks
            .iter()
            .filter(|sink| !sink.closed && (sink.failed > 0 || sink.in_motion() > 0))
            .map(|sink| sink.name.as_str())
            .collect();
        return Err(Failure::Failed(format!(
            "{failed} decoded events could not be written by sink {}",
            names.join(", ")
        )));
    }
    Ok(())
}
