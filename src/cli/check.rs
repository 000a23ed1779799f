//! `tributary check`: everything that is wrong with a configuration.

use std::path::PathBuf;

use super::{Failure, counted, print, run, say};

/// Check a configuration, and tell everything that is wrong with it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary check --config tributary.toml
  tributary check --print                      every option with the value in force, as TOML; and what memory all of it
                                               may take")]
pub(super) struct Arguments {
    /// The configuration [default: as for `run`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective configuration to stdout
    #[arg(long)]
    print: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (source, loaded) = run::load(arguments.config.clone())?;
    let config = &loaded.config;
    let (listeners, sinks) = (config.listeners.len() as u64, config.sinks.len() as u64);
    say(format_args!("{source}: good: {}, {}", counted(listeners, "listener"), counted(sinks, "sink")));
    if !arguments.print {
        return Ok(());
    }
    let table = config.bounds().table(config.limits.memory_bytes);
    print(format!("{}{table}", loaded.effective).as_bytes())
}
