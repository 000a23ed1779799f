//! Logging to stderr.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use super::Failure;

/// Where the level may come from instead of `--log-level`.
const VARIABLE: &str = "TRIBUTARY_LOG";

#[derive(Debug, clap::Args)]
// A part of the program's own arguments, whose group would have the same name.
#[group(skip)]
pub(super) struct Arguments {
    /// What is logged to stderr: error, warn, info, debug, trace, or a filter such as `tributary::transport=debug`
    /// [env: TRIBUTARY_LOG] [default: info]
    #[arg(long, global = true, value_name = "LEVEL", help_heading = "Logging")]
    log_level: Option<String>,
    /// How it is logged
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text", help_heading = "Logging")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// Starts logging. A second start in the same process (an embedder, a test) changes nothing.
pub(super) fn start(arguments: &Arguments) -> Result<(), Failure> {
    let level = arguments.log_level.clone().or_else(|| std::env::var(VARIABLE).ok());
    let filter = EnvFilter::builder()
        .parse(level.as_deref().unwrap_or("info"))
        .map_err(|error| Failure::Misused(format!("--log-level or {VARIABLE}: {error}")))?;
    // Without the last of these it would complain about a closed stderr on stderr, and panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).log_internal_errors(false);
    let _ = match arguments.log_format {
        LogFormat::Text => log.with_target(false).with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
    Ok(())
}
