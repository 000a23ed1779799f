//! `tributary health`: the state of a running daemon, for probes.

use hyper::{Method, StatusCode};

use super::endpoint::EndpointArguments;
use super::{CommandLineError, block_on, print};

/// Ask a running daemon whether it is ready
///
/// Prints its answer. Exit code 0 if it is ready, 1 if it is not or cannot be reached. For containers and scripts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary health                             the daemon of the configuration on this machine
  tributary health --live --admin 127.0.0.1:9464")]
pub(super) struct Arguments {
    #[command(flatten)]
    endpoint: EndpointArguments,
    /// Only whether it runs, not whether it can take events
    #[arg(long)]
    live: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    let endpoint = arguments.endpoint.endpoint()?;
    let path = if arguments.live { "/livez" } else { "/readyz" };
    let (status, body) = block_on(endpoint.ask(Method::GET, path))??;
    if status != StatusCode::OK {
        return Err(endpoint.refused(status, &body));
    }
    print(&body)
}
