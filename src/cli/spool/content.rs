//! The content of requests that wait: `show --events` and `export`.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use bytes::Bytes;
use serde_json::json;

use super::{SinkSpool, in_place, read};
use crate::cli::{CommandLineError, counted, printed, say};
use tributary_sink_http as http;
use tributary_sink_nats as nats;
use tributary_spool::{Damage, SpoolItem, SpoolRecord};

/// Lines on stdout. A reader that closes it needs no more.
pub(super) struct StdoutLines {
    stdout: BufWriter<io::Stdout>,
    is_closed: bool,
}

impl StdoutLines {
    pub(super) fn new() -> StdoutLines {
        StdoutLines { stdout: BufWriter::new(io::stdout()), is_closed: false }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), CommandLineError> {
        if !self.is_closed {
            let written = self.stdout.write_all(bytes);
            self.note(written)?;
        }
        Ok(())
    }

    pub(super) fn flush(mut self) -> Result<(), CommandLineError> {
        if !self.is_closed {
            let written = self.stdout.flush();
            self.note(written)?;
        }
        Ok(())
    }

    fn note(&mut self, written: io::Result<()>) -> Result<(), CommandLineError> {
        self.is_closed = written.is_err();
        printed(written)
    }
}

/// What a request has.
enum Content {
    /// JSON lines, decompressed.
    Lines(Vec<u8>),
    /// Something else, as it is sent.
    Other(Bytes),
}

impl Content {
    fn of(payload: Bytes) -> Content {
        match nats::lines(&payload).unwrap_or_else(|| http::lines(&payload)) {
            Ok(mut lines) if lines.first() == Some(&b'{') && str::from_utf8(&lines).is_ok() => {
                if lines.last() != Some(&b'\n') {
                    lines.push(b'\n');
                }
                Content::Lines(lines)
            }
            _ => Content::Other(payload),
        }
    }
}

/// The line about requests that cannot be read.
pub(super) fn lost(place: &SinkSpool, damage: &Damage) -> String {
    let (requests, events) = (counted(damage.records(), "request"), counted(damage.events(), "event"));
    format!(
        "sink {}: {} at {}: {requests} with {events} cannot be read",
        place.sink,
        damage.path.display(),
        damage.offset
    )
}

/// Writes the events of all requests. A request that has no JSON lines is described in one.
pub(super) fn events(places: &[SinkSpool], limit: u64) -> Result<(), CommandLineError> {
    let mut lines = StdoutLines::new();
    for place in places {
        let describe = |record: &SpoolRecord| {
            let content = "not JSON lines; `tributary spool export --to DIR` writes the request to a file";
            let (number, events, bytes) = (record.position.number, record.events, record.payload.len());
            json!({ "sink": place.sink, "request": number, "events": events, "bytes": bytes, "content": content })
        };
        each(place, limit, |record| {
            let description = describe(&record);
            match Content::of(record.payload) {
                Content::Lines(content) => lines.push(&content)?,
                Content::Other(_) => lines.push(format!("{description}\n").as_bytes())?,
            }
            Ok(!lines.is_closed())
        })?;
    }
    lines.flush()
}

/// Writes the requests to stdout, or each to a file in `to`.
pub(super) fn export(places: &[SinkSpool], to: Option<&Path>) -> Result<(), CommandLineError> {
    if let Some(to) = to {
        DirBuilder::new().recursive(true).mode(0o700).create(to).map_err(|error| in_place(to, &error))?;
    }
    let mut lines = StdoutLines::new();
    let mut lost = 0;
    for place in places {
        let (mut requests, mut events) = (0, 0);
        lost += each(place, u64::MAX, |record| {
            let (number, id) = (record.position.number, record.id);
            requests += 1;
            events += u64::from(record.events);
            match (Content::of(record.payload), to) {
                (Content::Lines(content), None) => lines.push(&content)?,
                (Content::Other(_), None) => {
                    return Err(CommandLineError::Failed(format!(
                        "sink {}: request {number} has no JSON lines; use --to DIR to write each request to a file",
                        place.sink
                    )));
                }
                (Content::Lines(content), Some(to)) => {
                    write(&to.join(format!("{}-{id}.ndjson", place.sink)), &content)?;
                }
                (Content::Other(content), Some(to)) => write(&to.join(format!("{}-{id}.bin", place.sink)), &content)?,
            }
            Ok(!lines.is_closed())
        })?;
        say(format_args!(
            "sink {}: {} with {} exported",
            place.sink,
            counted(requests, "request"),
            counted(events, "event")
        ));
    }
    lines.flush()?;
    if lost == 0 {
        Ok(())
    } else {
        Err(CommandLineError::Failed(format!("damaged and therefore missing: {}", counted(lost, "request"))))
    }
}

/// Calls `take` with each request that can be read, until it returns `false`. Returns how many cannot be read.
fn each(
    place: &SinkSpool,
    limit: u64,
    mut take: impl FnMut(SpoolRecord) -> Result<bool, CommandLineError>,
) -> Result<u64, CommandLineError> {
    let mut snapshot = read(place)?;
    let mut lost_records = 0;
    for _ in 0..limit {
        match snapshot.next_item().map_err(|error| in_place(&place.directory, &error))? {
            Some(SpoolItem::Record(record)) => {
                if !take(record)? {
                    break;
                }
            }
            Some(SpoolItem::Damaged(damage)) => {
                lost_records += damage.records();
                say(lost(place, &damage));
            }
            None => break,
        }
    }
    Ok(lost_records)
}

/// Writes a new file.
fn write(path: &Path, content: &[u8]) -> Result<(), CommandLineError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(content)).map_err(|error| in_place(path, &error))
}
