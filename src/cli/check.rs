//! `tributary check`: all errors of a configuration.

use std::path::PathBuf;

use super::{Failure, counted, print, run, say};

/// Check a configuration file and report all its errors
///
/// Binds no port, reads no TLS file and writes no event file. Exit code 2 if the configuration is invalid.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary check --config tributary.toml
  tributary check --print                      every option with its effective value, as TOML, and the most memory that
                                               this configuration uses")]
pub(super) struct Arguments {
    /// Configuration file [default: as for `run`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective configuration on stdout
    #[arg(long)]
    print: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (source, loaded) = run::load(arguments.config.clone())?;
    let config = &loaded.config;
    let (listeners, sinks) = (config.listeners.len() as u64, config.sinks.len() as u64);
    let (listeners, sinks) = (counted(listeners, "listener"), counted(sinks, "sink"));
    say(format_args!("{source}: valid configuration: {listeners}, {sinks}"));
    if !arguments.print {
        return Ok(());
    }
    let table = config.bounds().table(config.limits.memory_bytes);
    print(format!("{}{table}", loaded.effective).as_bytes())
}
