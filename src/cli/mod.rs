//! The command line. Only data is written to stdout; messages and logs go to stderr.
//!
//! Exit codes: 0 success, 1 failure (also: a decoded event was not written by a sink), 2 invalid arguments or configuration.

mod agents;
mod captures;
mod changed_options;
mod check;
mod decode;
mod deep_check;
mod demo;
mod endpoint;
mod fleet;
mod health;
mod input;
mod log;
mod man;
mod oneshot;
mod profile;
mod quarantine;
mod replay;
mod retention;
mod run;
mod service;
mod services;
mod signals;
mod simulate;
mod spool;
mod table;
mod tap;
mod top;
mod totals;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

use tributary_protocol::Protocol;
use tributary_sink::encode::Format;

/// The version, and the features that this build lacks.
const VERSION: &str = match (cfg!(feature = "archive"), cfg!(feature = "fleet")) {
    (true, true) => env!("CARGO_PKG_VERSION"),
    (false, true) => concat!(env!("CARGO_PKG_VERSION"), ", without the feature archive"),
    (true, false) => concat!(env!("CARGO_PKG_VERSION"), ", without the feature fleet"),
    (false, false) => concat!(env!("CARGO_PKG_VERSION"), ", without the features archive and fleet"),
};

/// A telemetry collector for agents whose own collectors no longer exist
#[derive(Debug, Parser)]
#[command(
    name = "tributary",
    version = VERSION,
    max_term_width = 100,
    after_help = "\
Examples:
  tributary demo --for 5s                      events of simulated agents
  tributary run --config tributary.toml        run the daemon
  tributary check --config tributary.toml      report all errors of a configuration
  tributary decode datadog capture.bin         print the events of a recorded connection
  tributary profile ruby 127.0.0.1:5555 > cpu.svg   a flame graph of a Ruby process"
)]
struct Arguments {
    #[command(flatten)]
    log: log::Arguments,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Run(run::Arguments),
    Demo(demo::Arguments),
    Check(check::Arguments),
    Decode(decode::Arguments),
    Simulate(simulate::Arguments),
    Replay(replay::Arguments),
    Tap(tap::Arguments),
    Top(top::Arguments),
    Profile(oneshot::profile::Arguments),
    Heap(oneshot::heap::Arguments),
    Health(health::Arguments),
    Agents(agents::Arguments),
    Services(services::Arguments),
    Traces(services::TracesArguments),
    Spool(spool::Arguments),
    Quarantine(quarantine::Arguments),
    Fleet(fleet::Arguments),
    /// Print shell completions
    #[command(after_help = "Example:\n  tributary completions bash > /etc/bash_completion.d/tributary")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    Man(man::Arguments),
}

impl CliCommand {
    /// The level of the log, unless the user sets one. What a profile shows on stderr says itself what happens.
    fn usual_log_level(&self) -> &'static str {
        if matches!(self, CliCommand::Profile(_) | CliCommand::Heap(_)) { "warn" } else { "info" }
    }
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// Runs the program with these arguments, the program's name first.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        // --help and --version are errors of clap too.
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    if let Err(error) = log::start(&arguments.log, arguments.command.usual_log_level()) {
        return error.exit();
    }
    let log_format = arguments.log.format();
    let result = match arguments.command {
        CliCommand::Run(arguments) => run::run(&arguments),
        CliCommand::Demo(arguments) => demo::run(&arguments),
        CliCommand::Check(arguments) => check::run(&arguments),
        CliCommand::Decode(arguments) => decode::run(&arguments),
        CliCommand::Simulate(arguments) => simulate::run(&arguments),
        CliCommand::Replay(arguments) => replay::run(&arguments),
        CliCommand::Tap(arguments) => tap::run(&arguments),
        CliCommand::Top(arguments) => top::run(&arguments),
        CliCommand::Profile(arguments) => oneshot::profile::run(&arguments),
        CliCommand::Heap(arguments) => oneshot::heap::run(&arguments),
        CliCommand::Health(arguments) => health::run(&arguments),
        CliCommand::Agents(arguments) => agents::run(&arguments),
        CliCommand::Services(arguments) => services::run(&arguments),
        CliCommand::Traces(arguments) => services::run_traces(&arguments),
        CliCommand::Spool(arguments) => spool::run(&arguments),
        CliCommand::Quarantine(arguments) => quarantine::run(&arguments),
        CliCommand::Fleet(arguments) => fleet::run(&arguments),
        CliCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "tributary", &mut script);
            print(&script)
        }
        CliCommand::Man(arguments) => man::run(&arguments),
    };
    result.err().map_or(ExitCode::SUCCESS, |failure| log_format.exit(failure))
}

/// Why a command does not end with exit code 0.
#[derive(Debug)]
enum CommandLineError {
    /// Exit code 1.
    Failed(String),
    /// Exit code 2: arguments or configuration.
    Misused(String),
}

impl fmt::Display for CommandLineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (CommandLineError::Failed(why) | CommandLineError::Misused(why)) = self;
        f.write_str(why)
    }
}

impl CommandLineError {
    /// Prints the message and returns the exit code.
    fn exit(self) -> ExitCode {
        say(format_args!("tributary: {self}"));
        ExitCode::from(self.code())
    }

    fn code(&self) -> u8 {
        match self {
            CommandLineError::Failed(_) => 1,
            CommandLineError::Misused(_) => 2,
        }
    }
}

impl From<io::Error> for CommandLineError {
    fn from(error: io::Error) -> Self {
        CommandLineError::Failed(error.to_string())
    }
}

/// Writes a message to stderr. A closed stderr is ignored.
fn say(message: impl fmt::Display) {
    use io::Write;
    let _ = writeln!(io::stderr(), "{message}");
}

/// Writes data to stdout. It is no failure if the reader has closed it.
fn print(bytes: &[u8]) -> Result<(), CommandLineError> {
    use io::Write;
    let mut stdout = io::stdout().lock();
    printed(stdout.write_all(bytes).and_then(|()| stdout.flush()))
}

/// Appends a line of JSON in which no text of an agent can control the terminal.
fn push_json(lines: &mut Vec<u8>, value: &serde_json::Value) {
    // Neither writing into memory nor a JSON value fails.
    let _ = tributary_codec::terminal::write_json(&mut *lines, value);
    lines.push(b'\n');
}

/// The result of writing to stdout. It is no failure if the reader has closed it; other errors name it.
fn printed(result: io::Result<()>) -> Result<(), CommandLineError> {
    quiet(result).map_err(|error| CommandLineError::Failed(format!("cannot write to standard output: {error}")))
}

/// Ignores a broken pipe: the reader, for example `head`, needs no more data.
fn quiet(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// A protocol on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamedProtocol(Protocol);

impl ValueEnum for NamedProtocol {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [NamedProtocol; 7] = [
            NamedProtocol(Protocol::OF_AGENTS[0]),
            NamedProtocol(Protocol::OF_AGENTS[1]),
            NamedProtocol(Protocol::OF_AGENTS[2]),
            NamedProtocol(Protocol::OF_AGENTS[3]),
            NamedProtocol(Protocol::OF_AGENTS[4]),
            NamedProtocol(Protocol::OF_AGENTS[5]),
            NamedProtocol(Protocol::OF_AGENTS[6]),
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.as_str()))
    }
}

/// A number with its noun: `1 sink`, `2 sinks`.
fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// `HOST:PORT` on the command line: the first address of the host.
fn address(text: &str) -> Result<SocketAddr, String> {
    let mut addresses = text.to_socket_addrs().map_err(|error| format!("{error}; write HOST:PORT"))?;
    addresses.next().ok_or_else(|| "the host has no address".to_owned())
}

/// The format of events on stdout.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OutputFormat {
    /// JSON lines
    Json,
    /// Human-readable text
    Text,
}

impl From<OutputFormat> for Format {
    fn from(format: OutputFormat) -> Self {
        match format {
            OutputFormat::Json => Format::Json,
            OutputFormat::Text => Format::Text,
        }
    }
}

/// A duration argument, e.g. `10s`.
fn duration(text: &str) -> Result<std::time::Duration, String> {
    tributary_options::units::parse_duration(text).map_err(|error| error.to_string())
}

/// Runs a future on a new runtime. The runtime ends without waiting for blocked writes.
fn block_on<T>(future: impl Future<Output = T>) -> io::Result<T> {
    // Without a thread the runtime would panic.
    tributary_system::blocking::check_threads(1)?;
    block_on_with(&mut tokio::runtime::Builder::new_multi_thread(), future)
}

fn block_on_with<T>(builder: &mut tokio::runtime::Builder, future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = builder.enable_all().build()?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(result)
}
