//! `tributary quarantine`: requests that could not be decoded.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::config::{Config, ListenerConfig};
use crate::quarantine::{self, Decoder, Stored};
use tributary_codec::terminal;
use tributary_event::Batch;
use tributary_memory::MemoryBudget;
use tributary_pipeline::accounting::ListenerCounters;
use tributary_protocol::Protocol;
use tributary_sink::encode::{Encoder, Format};
use tributary_transport::clock::Clock;

use super::endpoint::Endpoint;
use super::run;
use super::{CommandLineError, OutputFormat, block_on, counted, decode, print, printed, say, table};

/// List, show or try again the requests that listeners could not decode
///
/// A listener keeps a request in its quarantine (`quarantine.dir`) when it could not decode all of it. A newer version, or other
/// options, may be able to.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary quarantine list                    every request with its reason
  tributary quarantine show 01795176900000000000-000001
  tributary quarantine retry > events.ndjson   decode again; nothing is removed
  tributary quarantine retry --output events.ndjson
  tributary quarantine retry --admin 127.0.0.1:9464 01795176900000000000-000001")]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: QuarantineCommand,
}

#[derive(Debug, clap::Subcommand)]
enum QuarantineCommand {
    /// List the requests, oldest first, with their reasons
    #[command(after_help = "Example:\n  tributary quarantine list --format json | jq -r .reason | sort | uniq -c")]
    List {
        #[command(flatten)]
        source: QuarantineArguments,
        /// Format of the list
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        format: OutputFormat,
    },
    /// Show the heads of requests
    #[command(after_help = "Example:\n  tributary quarantine show 01795176900000000000-000001")]
    Show {
        #[command(flatten)]
        source: QuarantineArguments,
    },
    /// Decode requests again, offline or in a running daemon
    ///
    /// Without --admin the events are written to stdout, and every request stays; or to a new file (--output), and each request
    /// that is completely decoded is removed after its events are on the disk. With --admin the daemon delivers the events to
    /// its sinks and removes the request after that. Exit code 1 if a request cannot be decoded or delivered.
    #[command(after_help = "\
Examples:
  tributary quarantine retry --output events.ndjson
  tributary quarantine retry --admin 127.0.0.1:9464")]
    Retry {
        #[command(flatten)]
        source: QuarantineArguments,
        /// A new file for the events; requests whose events are in it are removed
        #[arg(long, value_name = "FILE", conflicts_with = "admin")]
        output: Option<PathBuf>,
        /// Address of the admin endpoint of a running daemon, which delivers the events to its sinks
        #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["config", "dir"])]
        admin: Option<String>,
        /// File with the token of the endpoint
        #[arg(long, value_name = "FILE", requires = "admin")]
        token_file: Option<PathBuf>,
        /// PEM file with the authorities of the endpoint's certificate; with it, TLS is used
        #[arg(long, value_name = "FILE", requires = "admin")]
        ca: Option<PathBuf>,
    },
}

#[derive(Debug, clap::Args)]
struct QuarantineArguments {
    /// Configuration file with the listeners [default: as for `run`]
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    config: Option<PathBuf>,
    /// Directory of the quarantines (`quarantine.dir`), or of that of one listener
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Requests, by their ids [default: all]
    #[arg(value_name = "ID")]
    ids: Vec<String>,
}

/// A request, and the listener that has received it.
struct FoundRequest {
    listener: String,
    /// With its options, if they are known.
    options: Option<ListenerConfig>,
    stored: Stored,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    match &arguments.command {
        QuarantineCommand::List { source, format } => list(&source.found()?, *format),
        QuarantineCommand::Show { source } => show(&source.found()?),
        QuarantineCommand::Retry { source, admin: Some(address), token_file, ca, .. } => {
            let endpoint = Endpoint::at(address, token_file.clone(), ca.clone())?;
            block_on(retry_in_daemon(&endpoint, &source.ids))?
        }
        QuarantineCommand::Retry { source, output, .. } => retry(&source.found()?, output.as_deref()),
    }
}

impl QuarantineArguments {
    /// The requests, in the order of their listeners and times.
    fn found(&self) -> Result<Vec<FoundRequest>, CommandLineError> {
        let directories = match &self.dir {
            Some(dir) => in_directory(dir)?,
            None => configured(self.config.clone())?,
        };
        let mut found = Vec::new();
        for (listener, options, directory) in directories {
            let all = quarantine::list(&directory).map_err(|error| in_place(&directory, &error))?;
            found.extend(all.into_iter().map(|stored| FoundRequest {
                listener: listener.clone(),
                options: options.clone(),
                stored,
            }));
        }
        let known: Vec<String> = found.iter().map(|found| found.stored.id.clone()).collect();
        check_ids(&self.ids, &known)?;
        found.retain(|found| self.ids.is_empty() || self.ids.contains(&found.stored.id));
        Ok(found)
    }
}

fn check_ids(ids: &[String], known: &[String]) -> Result<(), CommandLineError> {
    match ids.iter().find(|id| !known.contains(id)) {
        Some(unknown) => Err(CommandLineError::Failed(format!("no such request in the quarantine: {unknown}"))),
        None => Ok(()),
    }
}

type Directory = (String, Option<ListenerConfig>, PathBuf);

fn configured(config: Option<PathBuf>) -> Result<Vec<Directory>, CommandLineError> {
    let (source, loaded) = run::load(config)?;
    let directory = |listener: ListenerConfig| {
        let dir = quarantine::options(&listener)?.0.dir.clone();
        let is_on = !dir.as_os_str().is_empty();
        is_on.then(|| (listener.name.clone(), Some(listener.clone()), dir.join(&listener.name)))
    };
    let directories: Vec<_> = loaded.config.listeners.into_iter().filter_map(directory).collect();
    if directories.is_empty() {
        return Err(CommandLineError::Failed(format!("{source}: no listener has a quarantine")));
    }
    Ok(directories)
}

fn in_directory(dir: &Path) -> Result<Vec<Directory>, CommandLineError> {
    let mut directories = vec![(name(dir), None, dir.to_owned())];
    for entry in std::fs::read_dir(dir).map_err(|error| in_place(dir, &error))? {
        let path = entry.map_err(|error| in_place(dir, &error))?.path();
        if path.is_dir() {
            directories.push((name(&path), None, path));
        }
    }
    directories.sort_by(|one, other| one.2.cmp(&other.2));
    Ok(directories)
}

fn name(directory: &Path) -> String {
    directory.file_name().map_or_else(|| ".".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn in_place(path: &Path, error: &io::Error) -> CommandLineError {
    CommandLineError::Failed(format!("{}: {error}", path.display()))
}

fn list(found: &[FoundRequest], format: OutputFormat) -> Result<(), CommandLineError> {
    let (mut lines, mut rows) = (Vec::new(), Vec::new());
    for FoundRequest { listener, stored, .. } in found {
        let (received, peer) = (stored.header("x-tributary-received"), stored.header("x-tributary-peer"));
        let value = json!({
            "listener": listener, "id": stored.id, "received": received, "peer": peer, "bytes": stored.bytes,
            "reason": stored.reason(),
        });
        match format {
            OutputFormat::Json => lines.extend_from_slice(format!("{value}\n").as_bytes()),
            OutputFormat::Text => {
                let words = [listener, &stored.id, received, peer, stored.reason()];
                let mut row = words.map(|word| terminal::shown(word).into_owned()).to_vec();
                row.push(stored.bytes.to_string());
                rows.push(row);
            }
        }
    }
    if !rows.is_empty() {
        table::push(&mut lines, &["LISTENER", "ID", "RECEIVED", "PEER", "REASON", "BYTES"], 5, &rows);
    }
    print(&lines)
}

fn show(found: &[FoundRequest]) -> Result<(), CommandLineError> {
    for FoundRequest { stored, .. } in found {
        let body = stored.bytes.saturating_sub(stored.head.len() as u64 + 4);
        let head: String = stored.head.lines().map(|line| format!("{}\n", terminal::shown(line))).collect();
        print(format!("== {} ({body} bytes of body in {})\n{head}\n", stored.id, stored.path.display()).as_bytes())?;
    }
    Ok(())
}

/// The events of requests that are decoded offline.
struct DecodedOutput<'a> {
    stream: Box<dyn io::Write>,
    /// The file, and its name.
    file: Option<(File, &'a Path)>,
    encoder: Encoder,
    lines: Vec<u8>,
    events: u64,
}

impl<'a> DecodedOutput<'a> {
    fn open(path: Option<&'a Path>) -> Result<DecodedOutput<'a>, CommandLineError> {
        let (stream, file): (Box<dyn io::Write>, _) = match path {
            None => (Box::new(io::stdout()), None),
            Some(path) => {
                let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
                let file = file.map_err(|error| in_place(path, &error))?;
                let second = file.try_clone().map_err(|error| in_place(path, &error))?;
                (Box::new(second), Some((file, path)))
            }
        };
        Ok(DecodedOutput { stream, file, encoder: Encoder::new(Format::Json), lines: Vec::new(), events: 0 })
    }

    fn take(&mut self, batch: &Batch) {
        batch.events().for_each(|event| self.encoder.encode(event, &mut self.lines));
        self.events += batch.len() as u64;
    }

    /// Writes the events that were taken; returns their number. Those of a file are on the disk then.
    fn finish(&mut self) -> Result<u64, CommandLineError> {
        let written = self.stream.write_all(&self.lines).and_then(|()| self.stream.flush());
        self.lines.clear();
        match &self.file {
            None => printed(written)?,
            Some((file, path)) => written.and_then(|()| file.sync_all()).map_err(|error| in_place(path, &error))?,
        }
        Ok(std::mem::take(&mut self.events))
    }
}

/// Decodes requests offline.
fn retry(found: &[FoundRequest], path: Option<&Path>) -> Result<(), CommandLineError> {
    let memory = MemoryBudget::new(Config::builtin().memory_limit());
    let clock = Clock::start();
    let mut output = DecodedOutput::open(path)?;
    let mut refused = 0;
    for FoundRequest { listener, options, stored } in found {
        let (id, path) = (&stored.id, &stored.path);
        let request = stored.read().map_err(|error| in_place(path, &error))?;
        let options = match options {
            Some(options) => options.clone(),
            // Endless machines upload by PUT, Zorka agents submit by POST.
            None => decode::listener(if request.head.method == "PUT" { "endless" } else { "zico" }, &[])?,
        };
        let protocol: Protocol = options.protocol.protocol();
        let Some(decoder) = Decoder::of(&options, &memory) else { continue };
        if let Err(why) = decoder.check(&request, listener, protocol, clock.now()) {
            refused += 1;
            say(terminal::shown(&format!("{id}: still refused: {why}")));
            continue;
        }
        let counters = ListenerCounters::new(listener.as_str().into(), protocol);
        let decoded = decoder.decode(request, &counters, clock.now(), &mut |batch| output.take(&batch));
        decoded.map_err(|why| CommandLineError::Failed(format!("{id}: {why}")))?;
        let events = counted(output.finish()?, "event");
        match output.file {
            None => say(format_args!("{id}: decoded, {events}; it stays in the quarantine")),
            Some(_) => {
                std::fs::remove_file(path).map_err(|error| in_place(path, &error))?;
                say(format_args!("{id}: decoded, {events}; removed from the quarantine"));
            }
        }
    }
    conclude(refused)
}

fn conclude(refused: u64) -> Result<(), CommandLineError> {
    if refused == 0 {
        Ok(())
    } else {
        Err(CommandLineError::Failed(format!("not delivered: {}", counted(refused, "request"))))
    }
}

/// Lets a daemon try requests again.
async fn retry_in_daemon(endpoint: &Endpoint, ids: &[String]) -> Result<(), CommandLineError> {
    let (status, body) = endpoint.ask(Method::GET, "/quarantine").await?;
    if status != StatusCode::OK {
        return Err(endpoint.refused(status, &body));
    }
    let all: Vec<Value> = serde_json::from_slice(&body).unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let known: Vec<String> = all.iter().map(|one| word(&one["id"])).collect();
    check_ids(ids, &known)?;
    let mut refused = 0;
    for one in all.iter().filter(|one| ids.is_empty() || ids.contains(&word(&one["id"]))) {
        let (listener, id) = (word(&one["listener"]), word(&one["id"]));
        let (status, body) = endpoint.ask(Method::POST, &format!("/quarantine/{listener}/{id}/retry")).await?;
        let said: Value = serde_json::from_slice(&body).unwrap_or_default();
        let why = word(&said["reason"]);
        let line = match said["outcome"].as_str() {
            Some("delivered") => {
                let events = counted(said["events"].as_u64().unwrap_or(0), "event");
                format!("delivered, {events}; removed from the quarantine")
            }
            Some("refused") => format!("still refused: {why}"),
            Some("failed") => format!("not delivered: {why}"),
            Some("pending") => "not written yet; it is removed from the quarantine when it is".to_owned(),
            _ => return Err(endpoint.refused(status, &body)),
        };
        refused += u64::from(said["outcome"] != "delivered");
        say(terminal::shown(&format!("{id}: {line}")));
    }
    conclude(refused)
}
