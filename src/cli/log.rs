//! The log, on stderr.

use std::env;
use std::io;
use std::process::ExitCode;

use tracing::{Level, enabled, error};
use tracing_subscriber::EnvFilter;

use super::CommandLineError;
use tributary_codec::terminal::shows_colours;

/// The environment variable with the level, for `--log-level`.
const VARIABLE: &str = "TRIBUTARY_LOG";
/// The levels, the most important first.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

#[derive(Debug, clap::Args)]
// It is part of the program's arguments, whose group would have the same name.
#[group(skip)]
pub(super) struct Arguments {
    /// Log level: error, warn, info, debug, trace, off, or a filter such as `info,tributary_transport=debug`
    /// [env: TRIBUTARY_LOG] [default: info; for profile and heap: warn]
    #[arg(long, global = true, value_name = "LEVEL", help_heading = "Logging")]
    log_level: Option<String>,
    /// Log format
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text", help_heading = "Logging")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum LogFormat {
    /// Text lines, in colors on a terminal unless NO_COLOR is set
    Text,
    /// JSON lines
    Json,
}

impl Arguments {
    pub(super) fn format(&self) -> LogFormat {
        self.log_format
    }
}

impl LogFormat {
    /// Reports the failure that ends the command, as a line of the log where a program reads the log. Returns the exit code.
    pub(super) fn exit(self, failure: CommandLineError) -> ExitCode {
        match self {
            LogFormat::Json if enabled!(Level::ERROR) => {
                error!(error = %failure, exit_code = failure.code(), "the command failed");
                ExitCode::from(failure.code())
            }
            _ => failure.exit(),
        }
    }
}

/// Starts logging, at the level `usual` if none is set. A second start in the same process (in a program that embeds the library,
/// or in a test) has no effect.
pub(super) fn start(arguments: &Arguments, usual: &str) -> Result<(), CommandLineError> {
    let variable = env::var(VARIABLE).ok().filter(|level| !level.is_empty());
    let (source, level) = match (&arguments.log_level, variable) {
        (Some(level), _) => ("--log-level", level.clone()),
        (None, Some(level)) => (VARIABLE, level),
        (None, None) => ("--log-level", usual.to_owned()),
    };
    let filter = filter(&level).map_err(|why| CommandLineError::Misused(format!("{source} {level:?}: {why}")))?;
    // Without `log_internal_errors(false)` it would report a closed stderr on stderr, and panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).log_internal_errors(false);
    let _ = match arguments.log_format {
        LogFormat::Text => log.with_target(false).with_ansi(shows_colours(&io::stderr())).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
    Ok(())
}

/// Reads a level, or a filter: directives such as `info` and `tributary_transport=debug`, with commas between them.
///
/// # Errors
/// A directive is invalid, or the filter has neither a level nor a module of tributary, so that nothing would be logged.
fn filter(text: &str) -> Result<EnvFilter, String> {
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let is_own =
        |target: &str| target == "tributary" || target.starts_with("tributary::") || target.starts_with("tributary_");
    let mut logs_something = false;
    let directives: Vec<&str> = text.split(',').map(str::trim).collect();
    for directive in directives.iter().copied() {
        let (target, level) = match directive.split_once('=') {
            // A span or its fields: the filter itself checks the rest.
            _ if directive.contains(['[', '{']) => (directive.split('[').next().unwrap_or_default(), None),
            Some((target, level)) => (target, Some(level)),
            None if is_own(directive) => (directive, None),
            None => ("", Some(directive)),
        };
        if let Some(unknown) = level.filter(|level| !is_level(level)) {
            let help = match unknown.to_ascii_lowercase().as_str() {
                "warning" => "; write `warn`".to_owned(),
                "err" | "critical" | "fatal" => "; write `error`".to_owned(),
                "none" | "silent" | "quiet" => "; write `off`".to_owned(),
                "verbose" => "; write `debug`".to_owned(),
                _ => String::new(),
            };
            return Err(format!("unknown level `{}`{help} (levels: {})", unknown.escape_debug(), LEVELS.join(", ")));
        }
        if let Some(package) = target.strip_prefix("tributary::").and_then(package) {
            return Err(format!("`{target}` is a package now: write `{package}`"));
        }
        logs_something |= target.is_empty() || is_own(target);
    }
    if !logs_something {
        return Err(
            "the filter has no level and no module of tributary; for example `info,tributary_transport=debug`".into()
        );
    }
    // What its client logs, the sink `nats` reports, at most once a minute.
    let nats = (!text.contains("async_nats")).then_some("async_nats=off");
    let directives: Vec<&str> = directives.into_iter().chain(nats).collect();
    EnvFilter::builder().parse(directives.join(",")).map_err(|error| error.to_string())
}

/// The package of a module that was one of `tributary` until 0.2.
fn package(module: &str) -> Option<String> {
    const OWN: &[&str] =
        &["admin", "cli", "commands", "config", "endless_store", "health", "quarantine", "rbkit_store", "server"];
    let mut names = module.split("::");
    let name = names.next().filter(|name| !OWN.contains(name))?;
    Some(match (name, names.next()) {
        ("protocol", Some(protocol)) => format!("tributary_{protocol}"),
        ("sink", Some(sink @ ("file" | "forward" | "http" | "nats" | "otlp" | "parquet" | "view"))) => {
            format!("tributary_sink_{sink}")
        }
        ("capture" | "decode", _) => "tributary_driver".to_owned(),
        _ => format!("tributary_{name}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_is_a_package_now_is_an_error_that_names_it() {
        for (old, new) in [
            ("transport", "tributary_transport"),
            ("transport::tcp", "tributary_transport"),
            ("sink::otlp", "tributary_sink_otlp"),
            ("sink", "tributary_sink"),
            ("sink::tcp", "tributary_sink"),
            ("protocol::zico", "tributary_zico"),
        ] {
            let why = format!("`tributary::{old}` is a package now: write `{new}`");
            assert_eq!(filter(&format!("info,tributary::{old}=debug")).unwrap_err(), why);
        }
    }

    #[test]
    fn a_level_or_a_filter_of_tributary_is_valid() {
        for text in [
            "info",
            "WARN",
            "off",
            "tributary",
            "tributary_transport=debug",
            "info,tributary_sink=trace",
            "info,tributary::server=trace",
            "warn, hyper=debug",
            "tributary[span{listener=a}]=debug",
            "[connection]=debug",
        ] {
            assert!(filter(text).is_ok(), "{text}: {:?}", filter(text).err());
        }
    }

    #[test]
    fn other_words_are_errors_that_name_the_levels() {
        for (text, why) in [
            ("warning", "unknown level `warning`; write `warn` (levels: off, error, warn, info, debug, trace)"),
            ("loud", "unknown level `loud` (levels: off, error, warn, info, debug, trace)"),
            ("", "unknown level `` (levels: off, error, warn, info, debug, trace)"),
            ("info,", "unknown level `` (levels: off, error, warn, info, debug, trace)"),
            ("tributary=loud", "unknown level `loud` (levels: off, error, warn, info, debug, trace)"),
            (
                "hyper=debug",
                "the filter has no level and no module of tributary; for example `info,tributary_transport=debug`",
            ),
        ] {
            assert_eq!(filter(text).unwrap_err(), why);
        }
    }
}
