//! `tributary agents`: the agents of a running daemon, and those that are registered.

mod live;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::ProtocolOptions;
use tributary_codec::terminal::push_word;
use tributary_event::UnixNanos;
use tributary_system::wall_clock;
use tributary_zico::agents::Counters;
use tributary_zico_store::{self as zico_store, KnownAgents, StoreError, StoreOptions};

use super::endpoint::EndpointArguments;
use super::run;
use super::{CommandLineError, OutputFormat, counted, print, push_json, say, table};

/// List the agents of a running daemon, command them, or manage registered ones
///
/// Without a command it lists all agents that the daemon has seen since its start, of every protocol.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  tributary agents                             every agent that the daemon has seen
  tributary agents --format json | jq -r .id
  tributary agents tell ruby:0 start_cpu_profiling
  tributary agents registered --state-dir /var/lib/tributary
  tributary agents forget 6e1b5e0e-6cf5-4b0e-9d3a-5a4a0c1b7a54"
)]
pub(super) struct Arguments {
    #[command(flatten)]
    endpoint: EndpointArguments,
    /// Format of the list
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: OutputFormat,
    #[command(subcommand)]
    command: Option<AgentsCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum AgentsCommand {
    /// Send a command to an agent
    ///
    /// bytefrog: start, stop, pause, unpause, suspend, unsuspend. rbkit: handshake, start_memory_profile, stop_memory_profile,
    /// start_cpu_profiling, stop_cpu_profiling, use_cpu_time, use_wall_time, trigger_gc, objectspace_snapshot.
    #[command(after_help = "Example:\n  tributary agents tell java:1 pause")]
    Tell {
        #[command(flatten)]
        endpoint: EndpointArguments,
        /// The agent, by its id in the list
        #[arg(value_name = "ID")]
        id: String,
        /// The command
        #[arg(value_name = "COMMAND")]
        command: String,
    },
    /// List registered agents with the time of their last request and their counters
    ///
    /// Uses the files in which zico listeners store their agents (`state_dir`), also while the daemon runs.
    #[command(after_help = "Example:\n  tributary agents registered --config tributary.toml --format json")]
    Registered {
        #[command(flatten)]
        source: StoreArguments,
        /// Format of the list
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        format: OutputFormat,
    },
    /// Forget agents: their keys and sessions become invalid within a second
    ///
    /// Agents register when their JVM starts. A forgotten agent that runs is refused until its JVM is restarted.
    #[command(after_help = "Example:\n  tributary agents forget build-host-17")]
    Forget {
        #[command(flatten)]
        source: StoreArguments,
        /// UUIDs, names or numbers of agents; sessions of unregistered agents
        #[arg(required = true, value_name = "AGENT")]
        agents: Vec<String>,
    },
}

#[derive(Debug, clap::Args)]
struct StoreArguments {
    /// Configuration file with the listeners [default: as for `run`]
    #[arg(long, value_name = "FILE", conflicts_with = "state_dir")]
    config: Option<PathBuf>,
    /// Directory with the files, instead of those of a configuration
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// The file of a listener.
struct StoreFile {
    listener: String,
    path: PathBuf,
    session_timeout: Duration,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    match &arguments.command {
        None => live::list(&arguments.endpoint, arguments.format),
        Some(AgentsCommand::Tell { endpoint, id, command }) => live::send_command(endpoint, id, command),
        Some(AgentsCommand::Registered { source, format }) => list(&stores(source)?, *format),
        Some(AgentsCommand::Forget { source, agents }) => forget(&stores(source)?, agents),
    }
}

impl From<StoreError> for CommandLineError {
    fn from(error: StoreError) -> Self {
        CommandLineError::Failed(error.to_string())
    }
}

/// The files, one per listener.
fn stores(source: &StoreArguments) -> Result<Vec<StoreFile>, CommandLineError> {
    match &source.state_dir {
        Some(dir) => in_directory(dir),
        None => configured(source.config.clone()),
    }
}

fn configured(config: Option<PathBuf>) -> Result<Vec<StoreFile>, CommandLineError> {
    let (source, loaded) = run::load(config)?;
    let mut stores = Vec::new();
    for listener in &loaded.config.listeners {
        if let Some(bucket) = listener.protocol.bucket()
            && let ProtocolOptions::Zico(..) = listener.protocol
        {
            let (name, bucket) = (&listener.name, &bucket.bucket);
            say(format_args!("listener {name}: its agents are in a bucket of NATS: `nats kv ls {bucket}` lists them"));
        }
        if let ProtocolOptions::Zico(_, StoreOptions { state_dir: Some(dir), session_timeout, .. }, _) =
            &listener.protocol
        {
            let path = zico_store::path(dir, &listener.name);
            // The first run of the daemon creates the file.
            if path.exists() {
                stores.push(StoreFile { listener: listener.name.clone(), path, session_timeout: *session_timeout });
            } else {
                say(format_args!("listener {}: no agents: {} does not exist yet", listener.name, path.display()));
            }
        }
    }
    if stores.is_empty() {
        let why = "no listener has stored agents; a zico listener stores them if it has `state_dir`";
        return Err(CommandLineError::Failed(format!("{source}: {why}")));
    }
    Ok(stores)
}

fn in_directory(dir: &Path) -> Result<Vec<StoreFile>, CommandLineError> {
    let session_timeout = StoreOptions::default().session_timeout;
    let unreadable = |error| CommandLineError::Failed(format!("{}: {error}", dir.display()));
    let mut stores = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if let (Some("db"), Some(listener)) = (text(path.extension()), text(path.file_stem())) {
            stores.push(StoreFile { listener: listener.to_owned(), session_timeout, path });
        }
    }
    stores.sort_by(|one, other| one.listener.cmp(&other.listener));
    Ok(stores)
}

fn text(part: Option<&std::ffi::OsStr>) -> Option<&str> {
    part.and_then(std::ffi::OsStr::to_str)
}

fn list(stores: &[StoreFile], format: OutputFormat) -> Result<(), CommandLineError> {
    let mut lines = Vec::new();
    for StoreFile { listener, path, session_timeout } in stores {
        let known = zico_store::list(path, *session_timeout, wall_clock::now())?;
        match format {
            OutputFormat::Json => json_lines(listener, &known, &mut lines),
            OutputFormat::Text => push_table(listener, path, &known, &mut lines),
        }
    }
    print(&lines)
}

fn forget(stores: &[StoreFile], agents: &[String]) -> Result<(), CommandLineError> {
    let mut unknown = Vec::new();
    for name in agents {
        let mut forgotten = 0;
        for StoreFile { listener, path, .. } in stores {
            let here = zico_store::forget(path, name)? as u64;
            if here > 0 {
                say(format_args!("{listener}: {name}: {} forgotten", counted(here, "agent")));
            }
            forgotten += here;
        }
        if forgotten == 0 {
            unknown.push(name.as_str());
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    Err(CommandLineError::Failed(format!("no such agent: {}", unknown.join(", "))))
}

/// One object per line.
fn json_lines(listener: &str, known: &KnownAgents, lines: &mut Vec<u8>) {
    let mut push = |value: Value| push_json(lines, &value);
    for agent in &known.agents {
        push(json!({
            "listener": listener, "id": agent.id, "uuid": agent.uuid, "name": agent.name, "app": agent.app,
            "env": agent.env, "attrs": serde_json::from_str::<Value>(&agent.attrs).unwrap_or_default(),
            "address": agent.address, "registered": time(agent.registered), "seen": time(agent.seen),
            "sessions": agent.sessions, "counters": counters(&agent.counters),
        }));
    }
    for unregistered in &known.unregistered {
        push(json!({
            "listener": listener, "session": unregistered.session, "address": unregistered.address,
            "first": time(unregistered.first), "seen": time(unregistered.seen), "counters": counters(&unregistered.counters),
        }));
    }
}

fn counters(counters: &Counters) -> Value {
    let Counters { requests, bytes, events, losses } = counters;
    json!({ "requests": requests, "bytes": bytes, "events": events, "losses": losses })
}

/// A human-readable table.
fn push_table(listener: &str, path: &Path, known: &KnownAgents, lines: &mut Vec<u8>) {
    let (agents, sessions) = (known.agents.len() as u64, known.unregistered.len() as u64);
    let (agents, sessions) = (counted(agents, "agent"), counted(sessions, "unregistered session"));
    lines.extend_from_slice(format!("listener {listener}: {agents}, {sessions} ({})\n", path.display()).as_bytes());
    let mut rows: Vec<Vec<String>> = Vec::new();
    for agent in &known.agents {
        let words = [&agent.name, &agent.app, &agent.env, &agent.uuid, &agent.address].map(|word| shown(word));
        rows.push(row(&words, agent.seen, &agent.sessions.to_string(), &agent.counters));
    }
    for unregistered in &known.unregistered {
        let words = ["-", "-", "-", &unregistered.session, &unregistered.address].map(shown);
        rows.push(row(&words, unregistered.seen, "-", &unregistered.counters));
    }
    if rows.is_empty() {
        return;
    }
    table::push(lines, &HEADINGS, FIRST_NUMBER, &rows);
}

const HEADINGS: [&str; 11] = [
    "NAME",
    "APP",
    "ENV",
    "UUID OR SESSION",
    "ADDRESS",
    "LAST SEEN",
    "SESSIONS",
    "REQUESTS",
    "EVENTS",
    "BYTES",
    "LOSSES",
];
/// The first column with a number.
const FIRST_NUMBER: usize = 6;

fn row(words: &[String], seen: UnixNanos, sessions: &str, counters: &Counters) -> Vec<String> {
    let Counters { requests, bytes, events, losses } = counters;
    let mut row = words.to_vec();
    row.extend([time(seen), sessions.to_owned()]);
    row.extend([requests, events, bytes, losses].map(u64::to_string));
    row
}

/// A text of an agent without control characters.
fn shown(text: &str) -> String {
    let mut word = Vec::new();
    push_word(&mut word, text);
    String::from_utf8_lossy(&word).into_owned()
}

fn time(at: UnixNanos) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(at.0)).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
