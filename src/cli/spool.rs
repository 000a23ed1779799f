//! `tributary spool`: what waits for destinations that are away.

mod content;
mod place;

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use tributary_options::units::format_duration;
use tributary_spool::{self as spool, Snapshot, SpoolBacklog, SpoolItem, SpoolWarning, UsedBy};

use super::{CommandLineError, OutputFormat, counted, duration, print, say, table};
use content::StdoutLines;
use place::{SinkSpool, SpoolArguments, in_place};

/// Show, check, export or remove what waits in the spools of sinks, and send again what was refused
///
/// Reads the directories without a lock, also beside a running daemon, and changes nothing. Only `retry` moves refused requests, and
/// `drop` removes something; it needs the daemon to be stopped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary spool list                         what waits for which sink, since when
  tributary spool verify --dir /var/lib/tributary/spool backend
  tributary spool show --events backend | jq .name
  tributary spool export backend > backlog.ndjson
  tributary spool retry backend
  tributary spool drop backend --yes")]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: SpoolCommand,
}

#[derive(Debug, clap::Subcommand)]
enum SpoolCommand {
    /// List spools: what waits, since when, what was refused, and which process uses them
    #[command(after_help = "Example:\n  tributary spool list --config tributary.toml --format json | jq .events")]
    List {
        #[command(flatten)]
        source: SpoolArguments,
        /// Format of the list
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        format: OutputFormat,
    },
    /// Read everything that waits, and report damage
    ///
    /// Exit code 1 if there is damage. Each damage has its file, its offset, and the exact number of lost events.
    #[command(after_help = "Example:\n  tributary spool verify --config tributary.toml || echo damaged")]
    Verify {
        #[command(flatten)]
        source: SpoolArguments,
    },
    /// Show the requests that wait
    #[command(after_help = "\
Examples:
  tributary spool show backend                 a line for each request
  tributary spool show --events backend        their events as JSON lines
  tributary spool show --refused backend       the requests that the destination has refused, with its reasons")]
    Show {
        #[command(flatten)]
        source: SpoolArguments,
        /// Show the events instead: one JSON object per line
        #[arg(long, conflicts_with_all = ["format", "refused"])]
        events: bool,
        /// Show the refused requests instead
        #[arg(long)]
        refused: bool,
        /// Show at most this many requests of each spool
        #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
        limit: u64,
        /// Format of the list
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        format: OutputFormat,
    },
    /// Write the requests that wait to stdout or to files, and keep them
    ///
    /// JSON lines are decompressed. Exit code 1 if a request is damaged and therefore missing.
    #[command(after_help = "\
Examples:
  tributary spool export backend > backlog.ndjson
  tributary spool export --to backlog backend  a file for each request")]
    Export {
        #[command(flatten)]
        source: SpoolArguments,
        /// Write a file for each request to this directory; no file is replaced
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
    /// Send requests again that the destination has refused
    ///
    /// Beside a running daemon or without one: the daemon takes them within a second, otherwise the next start does. Their events
    /// count as resumed then; one that is refused again is kept again.
    #[command(after_help = "\
Examples:
  tributary spool retry backend
  tributary spool retry backend --request 17   as `show --refused` names it
  tributary spool retry backend --older-than 1h")]
    Retry {
        #[command(flatten)]
        source: SpoolArguments,
        /// Only this request: its id, or the number at its end
        #[arg(long = "request", value_name = "N")]
        requests: Vec<String>,
        /// Only requests that were refused longer ago than this
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        older_than: Option<Duration>,
    },
    /// Remove the requests that wait: their events are lost
    ///
    /// Refused while a daemon uses the spool. The next start of the daemon counts the events as shed. Refused and damaged
    /// requests stay.
    #[command(after_help = "Example:\n  tributary spool drop backend --yes")]
    Drop {
        #[command(flatten)]
        source: SpoolArguments,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    match &arguments.command {
        SpoolCommand::List { source, format } => list(&source.places()?, *format),
        SpoolCommand::Verify { source } => verify(&source.places()?),
        SpoolCommand::Show { source, events: true, limit, .. } => content::events(&source.places()?, *limit),
        SpoolCommand::Show { source, refused: true, limit, format, .. } => refused(&source.places()?, *limit, *format),
        SpoolCommand::Show { source, limit, format, .. } => show(&source.places()?, *limit, *format),
        SpoolCommand::Export { source, to } => content::export(&source.places()?, to.as_deref()),
        SpoolCommand::Retry { source, requests, older_than } => retry(source, requests, *older_than),
        SpoolCommand::Drop { source, yes } => drop_waiting(&source.places()?, *yes),
    }
}

fn read(place: &SinkSpool) -> Result<Snapshot, CommandLineError> {
    Snapshot::read(&place.directory).map_err(|error| in_place(&place.directory, &error))
}

fn list(places: &[SinkSpool], format: OutputFormat) -> Result<(), CommandLineError> {
    let (mut lines, mut rows) = (Vec::new(), Vec::new());
    for place in places {
        let mut snapshot = read(place)?;
        let SpoolBacklog { records, events, bytes } = snapshot.waiting();
        let oldest = snapshot.oldest().map_err(|error| in_place(&place.directory, &error))?.map(|record| record.time);
        let [refused, damaged, aside] = ["refused", "damaged", "aside"].map(|name| {
            spool::kept(&place.directory, name)
                .map_err(|error| in_place(&place.directory, &error))
                .map(|kept| kept.files)
        });
        let (refused, damaged, aside) = (refused?, damaged?, aside?);
        let used_by = spool::used_by(&place.directory);
        if let OutputFormat::Json = format {
            let value = json!({
                "sink": place.sink, "directory": place.directory.to_string_lossy(), "requests": records, "events": events,
                "bytes": bytes, "oldest": oldest.map(time), "oldest_seconds": oldest.map(|time| age(time).as_secs()),
                "refused": refused, "damaged": damaged, "aside": aside, "used_by": process(used_by),
                "notes": notes(&snapshot, used_by),
            });
            lines.extend_from_slice(format!("{value}\n").as_bytes());
            continue;
        }
        notes(&snapshot, used_by).iter().for_each(|note| say(format_args!("sink {}: {note}", place.sink)));
        let used = match used_by {
            UsedBy::Unused => "no process".to_owned(),
            UsedBy::Process(0) => "a daemon".to_owned(),
            UsedBy::Process(pid) => format!("process {pid}"),
            UsedBy::Unknown => "unknown".to_owned(),
        };
        let oldest =
            oldest.map_or_else(|| "-".to_owned(), |time| format_duration(Duration::from_secs(age(time).as_secs())));
        let mut row = vec![place.sink.clone(), used];
        row.extend([records, events, bytes].map(|number| number.to_string()));
        row.push(oldest);
        row.extend([refused, damaged, aside].map(|number| number.to_string()));
        rows.push(row);
    }
    if !rows.is_empty() {
        let headings = ["SINK", "USED BY", "REQUESTS", "EVENTS", "BYTES", "OLDEST", "REFUSED", "DAMAGED", "ASIDE"];
        table::push(&mut lines, &headings, 2, &rows);
    }
    print(&lines)
}

/// What an operator should know. While a daemon writes, the end of the last segment is incomplete, and it may not have saved
/// its cursor yet.
fn notes(snapshot: &Snapshot, used_by: UsedBy) -> Vec<String> {
    let is_used = matches!(used_by, UsedBy::Process(_));
    let is_passing = |warning: &&SpoolWarning| matches!(warning, SpoolWarning::Torn { .. } | SpoolWarning::NoCursor);
    let warnings = snapshot.warnings().iter().filter(|warning| !(is_used && is_passing(warning)));
    warnings.map(SpoolWarning::to_string).collect()
}

fn process(used_by: UsedBy) -> Value {
    match used_by {
        UsedBy::Unused => Value::Null,
        UsedBy::Process(pid) => json!(pid),
        UsedBy::Unknown => json!("unknown"),
    }
}

fn verify(places: &[SinkSpool]) -> Result<(), CommandLineError> {
    let mut damaged = 0;
    for place in places {
        let mut snapshot = read(place)?;
        let (mut whole, mut lost) = (SpoolBacklog::default(), SpoolBacklog::default());
        let mut lines = Vec::new();
        while let Some(item) = snapshot.next_item().map_err(|error| in_place(&place.directory, &error))? {
            match item {
                SpoolItem::Record(record) => {
                    whole.records += 1;
                    whole.events += u64::from(record.events);
                    whole.bytes += record.payload.len() as u64;
                }
                SpoolItem::Damaged(damage) => {
                    let (requests, events) = (counted(damage.records(), "request"), counted(damage.events(), "event"));
                    lost.records += damage.records();
                    lost.events += damage.events();
                    let (path, offset, bytes) = (damage.path.display(), damage.offset, damage.bytes);
                    lines.push(match bytes {
                        0 => format!("{path}: records are missing: {requests} with {events} lost"),
                        _ => format!("{path} at {offset}: {bytes} bytes damaged: {requests} with {events} lost"),
                    });
                }
            }
        }
        lines.extend(notes(&snapshot, spool::used_by(&place.directory)));
        let is_unreadable =
            |warning: &SpoolWarning| matches!(warning, SpoolWarning::Newer(..) | SpoolWarning::DamagedCursor(_));
        let is_damaged = lost.records > 0 || snapshot.warnings().iter().any(is_unreadable);
        damaged += u64::from(is_damaged);
        let (requests, events) = (counted(whole.records, "whole request"), counted(whole.events, "event"));
        let verdict = match (is_damaged, lost) {
            (false, _) => "no damage".to_owned(),
            (true, lost) if lost.records == 0 => "damaged".to_owned(),
            (true, lost) => {
                format!("damaged: {} with {} lost", counted(lost.records, "request"), counted(lost.events, "event"))
            }
        };
        lines.push(format!("{requests} with {events}, {} bytes; {verdict}", whole.bytes));
        let text: String = lines.iter().map(|line| format!("sink {}: {line}\n", place.sink)).collect();
        print(text.as_bytes())?;
    }
    if damaged == 0 { Ok(()) } else { Err(CommandLineError::Failed(format!("{} damaged", counted(damaged, "spool")))) }
}

fn show(places: &[SinkSpool], limit: u64, format: OutputFormat) -> Result<(), CommandLineError> {
    let mut lines = StdoutLines::new();
    for place in places {
        let mut snapshot = read(place)?;
        if let OutputFormat::Text = format {
            let heading = format!("{:>12}  {:20}  {:>8}  {:>10}  SINK\n", "NUMBER", "TIME", "EVENTS", "BYTES");
            lines.push(heading.as_bytes())?;
        }
        for _ in 0..limit {
            let item = snapshot.next_item().map_err(|error| in_place(&place.directory, &error))?;
            let (Some(item), false) = (item, lines.is_closed()) else { break };
            let line = match (item, format) {
                (SpoolItem::Record(record), OutputFormat::Json) => json!({
                    "sink": place.sink, "number": record.position.number, "id": record.id, "time": time(record.time),
                    "events": record.events, "bytes": record.payload.len(),
                })
                .to_string(),
                (SpoolItem::Record(record), OutputFormat::Text) => format!(
                    "{:>12}  {:20}  {:>8}  {:>10}  {}",
                    record.position.number,
                    time(record.time),
                    record.events,
                    record.payload.len(),
                    place.sink
                ),
                (SpoolItem::Damaged(damage), _) => {
                    say(content::lost(place, &damage));
                    continue;
                }
            };
            lines.push(format!("{line}\n").as_bytes())?;
        }
    }
    lines.flush()
}

fn refused(places: &[SinkSpool], limit: u64, format: OutputFormat) -> Result<(), CommandLineError> {
    let mut lines = StdoutLines::new();
    for place in places {
        let paths = spool::refused(&place.directory).map_err(|error| in_place(&place.directory, &error))?;
        for path in paths.into_iter().take(usize::try_from(limit).unwrap_or(usize::MAX)) {
            let refused = spool::Refused::read(path.clone()).map_err(|error| in_place(&path, &error))?;
            let said: Value = serde_json::from_str(&refused.line).unwrap_or_default();
            let line = match format {
                OutputFormat::Json => json!({
                    "sink": place.sink, "file": refused.path.to_string_lossy(), "id": said["id"], "events": said["events"],
                    "reason": said["reason"], "bytes": refused.payload.len(),
                })
                .to_string(),
                OutputFormat::Text => {
                    let (id, reason) = (said["id"].as_str().unwrap_or("?"), said["reason"].as_str().unwrap_or("?"));
                    let line = format!("{id}: {} events, {} bytes: {reason}", said["events"], refused.payload.len());
                    tributary_codec::terminal::shown(&line).into_owned()
                }
            };
            lines.push(format!("{line}\n").as_bytes())?;
        }
    }
    lines.flush()
}

fn retry(source: &SpoolArguments, requests: &[String], older_than: Option<Duration>) -> Result<(), CommandLineError> {
    if !source.names_a_sink() {
        return Err(CommandLineError::Misused("name the sink whose refused requests are to be sent again".to_owned()));
    }
    for place in source.places()? {
        let is_wanted = |request: &spool::Refused, refused_at: SystemTime| {
            let is_named = requests.is_empty() || requests.iter().any(|name| is_named(&request.id(), name));
            is_named && older_than.is_none_or(|time| age(refused_at) >= time)
        };
        let moved =
            spool::retry_refused(&place.directory, is_wanted).map_err(|(path, error)| in_place(&path, &error))?;
        let events = moved.iter().map(|request| u64::from(request.events())).sum();
        let what = format!("{} with {}", counted(moved.len() as u64, "request"), counted(events, "event"));
        let by = match spool::used_by(&place.directory) {
            UsedBy::Process(_) => "the daemon sends them again",
            UsedBy::Unused => "the next start sends them again",
            UsedBy::Unknown => "the daemon, or its next start, sends them again",
        };
        match moved.is_empty() {
            true => say(format_args!("sink {}: no such request is in refused/", place.sink)),
            false => say(format_args!("sink {}: {what}: {by}", place.sink)),
        }
    }
    Ok(())
}

/// Whether an operator means the request with this id, `SALT-NUMBER`, of a part also `SALT-NUMBER.PART`.
fn is_named(id: &str, name: &str) -> bool {
    let number = id.rsplit_once('-').map_or(id, |(_, number)| number);
    [id, number, number.split('.').next().unwrap_or(number)].contains(&name)
}

fn drop_waiting(places: &[SinkSpool], is_confirmed: bool) -> Result<(), CommandLineError> {
    for place in places {
        let mut snapshot = read(place)?;
        let waiting = snapshot.waiting();
        if waiting.records == 0 {
            say(format_args!("sink {}: nothing waits", place.sink));
            continue;
        }
        let used_by = spool::used_by(&place.directory);
        if let UsedBy::Process(_) = used_by {
            let why = spool::DropError::InUse(used_by);
            return Err(CommandLineError::Failed(format!("{}: {why}; nothing was removed", place.directory.display())));
        }
        let oldest = snapshot.oldest().map_err(|error| in_place(&place.directory, &error))?;
        let oldest = oldest.map_or_else(String::new, |record| format!(", the oldest of {}", time(record.time)));
        let what = format!("{} with {}", counted(waiting.records, "request"), counted(waiting.events, "event"));
        if !is_confirmed {
            if !io::stdin().is_terminal() {
                return Err(CommandLineError::Misused(format!(
                    "{}: {what} would be removed and lost; add --yes to remove them without a question",
                    place.directory.display()
                )));
            }
            let _ = write!(io::stderr(), "sink {}: remove {what}{oldest}? They are lost then [y/N] ", place.sink);
            let mut answer = String::new();
            io::stdin().lock().read_line(&mut answer)?;
            if !matches!(answer.trim(), "y" | "Y" | "yes") {
                say(format_args!("sink {}: nothing was removed", place.sink));
                continue;
            }
        }
        let dropped = spool::drop_waiting(&place.directory)
            .map_err(|error| CommandLineError::Failed(format!("{}: {error}", place.directory.display())))?;
        let what = format!("{} with {}", counted(dropped.records, "request"), counted(dropped.events, "event"));
        say(format_args!("sink {}: {what} removed{oldest}; the next start counts the events as shed", place.sink));
    }
    Ok(())
}

fn age(time: SystemTime) -> Duration {
    SystemTime::now().duration_since(time).unwrap_or_default()
}

fn time(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
