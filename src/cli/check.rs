//! `tributary check`: all errors of a configuration.

use std::path::PathBuf;

use crate::config::schema::schema;
use crate::config::{Config, SinkConfig, SinkKind};
use crate::sink::parquet::UploadOptions;
use tributary_options::units::ByteSize;
use tributary_sink_http::WhenFull;

use super::{CommandLineError, counted, deep_check, print, retention, run, say};

/// Check a configuration file and report all its errors
///
/// Reads the file and those that it takes values from, and nothing else; with --deep, also what it needs of this machine and
/// of others: addresses that can be bound, certificates and secrets that can be read, directories that can be written,
/// destinations that accept connections, TLS handshakes and, of OTLP, an empty export of each signal.
/// Changes nothing. Exit code 2 if the configuration is invalid, 1 if --deep finds an error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary check tributary.toml               the same as --config tributary.toml
  tributary check --print                      every option with its effective value, as TOML, and the most memory that
                                               this configuration uses
  tributary check --deep                       before a start: also ports, certificates, directories and destinations
  tributary check --schema > tributary.json    what an editor completes and checks: see docs/configure.md
  tributary check --rate 10000/s               for how long files keep events that arrive at this rate")]
pub(super) struct Arguments {
    /// Configuration file [default: as for `run`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The same as `--config FILE`
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// Print the effective configuration on stdout
    #[arg(long)]
    print: bool,
    /// Also examine ports, certificates, secrets, directories and destinations
    #[arg(long)]
    deep: bool,
    /// Print a JSON Schema of configuration files on stdout, for editors; reads no file
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Print for how long files keep the events of this rate
    #[arg(long, value_name = "N/s", value_parser = retention::rate)]
    rate: Option<u64>,
    /// The length of an event in a file, for `--rate`
    #[arg(long, value_name = "BYTES", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    event_bytes: u64,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    if arguments.schema {
        return print(format!("{}\n", schema()).as_bytes());
    }
    let (source, loaded) = run::load(arguments.config.as_ref().or(arguments.file.as_ref()).cloned())?;
    let config = &loaded.config;
    let (listeners, sinks) = (config.listeners.len() as u64, config.sinks.len() as u64);
    let (listeners, sinks) = (counted(listeners, "listener"), counted(sinks, "sink"));
    say(format_args!("{source}: valid configuration: {listeners}, {sinks}"));
    config.acknowledge_notes().iter().for_each(|note| say(format_args!("{source}: {note}")));
    let rules: Vec<_> = config.sinks.iter().flat_map(|sink| sink.select.in_words(&sink.name)).collect();
    let notes: Vec<_> = rules.into_iter().chain(disk(config)).collect();
    notes.iter().for_each(say);
    if let Some(rate) = arguments.rate {
        retention::lines(config, rate, arguments.event_bytes).iter().for_each(say);
    }
    if arguments.print {
        let table = config.memory_table();
        let notes: String = notes.iter().map(|line| format!("#\n# {line}\n")).collect();
        print(format!("{}{table}{notes}", loaded.effective).as_bytes())?;
    }
    if !arguments.deep {
        return Ok(());
    }
    let report = deep_check::run(config);
    report.notes.iter().for_each(say);
    report.warnings.iter().for_each(|line| say(format_args!("warning: {line}")));
    report.errors.iter().for_each(|line| say(format_args!("error: {line}")));
    say(report.summary());
    if report.errors.is_empty() {
        Ok(())
    } else {
        Err(CommandLineError::Failed("this configuration cannot work here now".to_owned()))
    }
}

/// For each sink that sends requests or files: what it keeps, where, while its destination is away.
fn disk(config: &Config) -> Vec<String> {
    let remote = config.sinks.iter().filter(|sink| sink.kind.can_spool());
    let line = |sink: &SinkConfig| {
        let name = &sink.name;
        let Some(spool) = sink.kind.spool() else {
            return format!(
                "sink {name} has no spool: while its destination is away, events wait in its queue in memory, then agents \
                 wait, and what waits is lost when the daemon ends; an agent is answered after the destination has answered"
            );
        };
        let full = match spool.when_full {
            WhenFull::Block => "then agents wait",
            WhenFull::DropOldest => "then the oldest events are dropped",
            WhenFull::DropNewest => "then further events are dropped",
        };
        let (directory, most) = (spool.directory(name), ByteSize(spool.max_bytes));
        let free = match spool.min_free_bytes {
            Some(bytes) => ByteSize(bytes).to_string(),
            None => "the smaller of 1GiB and a tenth".to_owned(),
        };
        format!(
            "sink {name} keeps up to {most} in {} while its destination is away, and leaves {free} of that disk free; {full}",
            directory.display()
        )
    };
    let proxied =
        |sink: &SinkConfig| Some(format!("sink {} sends its requests by the proxy {}", sink.name, sink.kind.proxy()?));
    let notes = remote.map(line).chain(config.sinks.iter().filter_map(upload));
    notes.chain(config.sinks.iter().filter_map(proxied)).collect()
}

/// For a sink that uploads its files: where they go, and what becomes of them while the store is away.
fn upload(sink: &SinkConfig) -> Option<String> {
    let SinkKind::Parquet(options) = &sink.kind else { return None };
    let UploadOptions { url, delete_after, .. } = options.upload.as_ref()?;
    let name = &sink.name;
    let then = if *delete_after { "removes them here after the store has confirmed them" } else { "keeps them here" };
    let limits = match options.keep_files > 0 || options.keep_bytes > 0 || !options.keep_time.is_zero() {
        true => {
            "keep_files, keep_bytes and keep_time also remove files that are not uploaded yet, which counts as discarded"
        }
        false => "while the store is away, files stay here without a limit",
    };
    Some(format!("sink {name} uploads finished files to {url} and {then}; {limits}"))
}
