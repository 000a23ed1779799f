//! What is at the destinations, compared with what was acknowledged.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tributary::sink::encode::json::JsonEncoder;
use tributary::sink::parquet;

use super::agents::{self, Acknowledged, EVENTS, mark};
use super::receiver::Receiver;
use super::site::Site;

/// What files have: how often each mark is there.
#[derive(Default)]
pub(crate) struct Files {
    pub(crate) marks: BTreeMap<String, u64>,
    pub(crate) torn: Vec<String>,
    /// Lines of zeros: what a file system leaves where a sync has failed before a loss of power.
    pub(crate) holes: Vec<String>,
}

/// The marks in event lines.
pub(crate) fn marks(lines: &str) -> impl Iterator<Item = &str> {
    lines.lines().filter_map(mark_of)
}

fn mark_of(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("\"os.version\":\"")?;
    rest.split('"').next().filter(|mark| mark.starts_with("n-"))
}

/// Reads all event files of a site.
pub(crate) fn files(site: &Site) -> Files {
    let mut files = Files::default();
    below(&site.directory.join("events"), |path| files.read(path));
    files
}

/// Reads all Parquet files of a site, after a daemon has stopped: then its journal is empty.
pub(crate) fn archive(site: &Site) -> Files {
    let mut files = Files::default();
    below(&site.directory.join("archive"), |path| match path.extension().and_then(|extension| extension.to_str()) {
        Some("parquet") => files.read_parquet(path),
        Some("rows") => files.torn.push(format!("{}: rows that are in no Parquet file", path.display())),
        _ => {}
    });
    files
}

/// The files in a directory and in those below it.
fn below(directory: &Path, mut each: impl FnMut(&Path)) {
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() { directories.push(path) } else { each(&path) }
        }
    }
}

impl Files {
    fn read(&mut self, path: &Path) {
        let text = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        for line in text.split_inclusive('\n') {
            let is_whole = line.ends_with('\n') && serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok();
            let content = line.trim_end_matches('\n');
            if !content.is_empty() && content.bytes().all(|byte| byte == 0) {
                self.holes.push(format!("{}: {} zeros", path.display(), content.len()));
            } else if !is_whole {
                self.torn.push(format!("{}: {line:.200}", path.display()));
            } else if let Some(mark) = mark_of(line) {
                *self.marks.entry(mark.to_owned()).or_default() += 1;
            }
        }
    }
}

impl Files {
    fn read_parquet(&mut self, path: &Path) {
        let mut encoder = JsonEncoder::default();
        let read = parquet::read(fs::File::open(path).unwrap(), &mut |batch| {
            let mut lines = Vec::new();
            batch.events().for_each(|event| encoder.encode(event, &mut lines));
            for mark in marks(&String::from_utf8_lossy(&lines)) {
                *self.marks.entry(mark.to_owned()).or_default() += 1;
            }
            Ok(true)
        });
        if let Err(error) = read {
            self.torn.push(format!("{}: {error}", path.display()));
        }
    }
}

/// The result of a comparison.
#[derive(Default)]
pub(crate) struct Verdict {
    pub(crate) acknowledged: u64,
    /// Acknowledged events that are missing, each with where.
    pub(crate) missing: Vec<String>,
    /// Events that are more than once in the files, at the receiver, or in the archive.
    pub(crate) repeated: (u64, u64, u64),
    pub(crate) torn: Vec<String>,
    pub(crate) holes: Vec<String>,
    /// Registered agents that are not known any more.
    pub(crate) forgotten: Vec<String>,
}

impl Verdict {
    /// Whether nothing is lost or damaged.
    pub(crate) fn is_good(&self) -> bool {
        let Verdict { missing, torn, holes, forgotten, .. } = self;
        [missing, torn, holes, forgotten].into_iter().all(Vec::is_empty)
    }
}

/// Compares what was acknowledged up to `position` with the files and the receiver. What the receiver has got after `position`
/// does not count: the loss of power at `position` has removed it.
pub(crate) fn compare(site: &Site, acknowledged: &Acknowledged, receiver: &Receiver, position: u64) -> Verdict {
    let (files, archive) = (files(site), archive(site));
    let state = receiver.state();
    let mut verdict = Verdict { torn: files.torn, holes: files.holes, ..Verdict::default() };
    verdict.missing.extend(archive.torn);
    for (request, _) in acknowledged.requests.iter().filter(|(_, at)| **at <= position) {
        verdict.acknowledged += 1;
        for event in 0..EVENTS {
            let mark = mark(*request, event);
            if !files.marks.contains_key(&mark) {
                verdict.missing.push(format!("{mark} in files"));
            }
            if !archive.marks.contains_key(&mark) {
                verdict.missing.push(format!("{mark} in the archive"));
            }
            if state.received.get(&mark).is_none_or(|(at, _)| *at > position) {
                verdict.missing.push(format!("{mark} at the receiver"));
            }
        }
    }
    let more = |times: u64| times.saturating_sub(1);
    verdict.repeated.0 = files.marks.values().map(|times| more(*times)).sum();
    verdict.repeated.2 = archive.marks.values().map(|times| more(*times)).sum();
    verdict.repeated.1 = state.received.values().map(|(_, times)| more(*times)).sum();
    verdict
}

/// The agents that were registered up to `position` and cannot open a session, each with the answer that it gets.
pub(crate) fn forgotten(site: &Site, acknowledged: &Acknowledged, position: u64) -> Vec<String> {
    let registered = acknowledged.registrations.iter().filter(|(.., at)| *at <= position);
    let mut connection = None;
    let mut ask = |request: &[u8]| {
        let open = connection.get_or_insert_with(|| agents::connect(site.zico));
        let answer = open.as_mut().and_then(|open| agents::ask(open, request));
        if answer.is_none() {
            connection = None;
        }
        answer
    };
    let refusal = |(id, key, _): &(String, String, u64)| {
        let request = agents::opening(id, key);
        // The daemon may have closed the connection after the answer before.
        match ask(&request).or_else(|| ask(&request)) {
            Some((200..300, _)) => None,
            Some((status, body)) => Some(format!("{id}: {status} {body}")),
            None => Some(format!("{id}: no answer")),
        }
    };
    registered.filter_map(refusal).collect()
}

/// Whether the receiver has the events of all requests that were acknowledged up to `position`.
pub(crate) fn is_drained(acknowledged: &Acknowledged, receiver: &Receiver, position: u64) -> bool {
    let state = receiver.state();
    let requests = acknowledged.requests.iter().filter(|(_, at)| **at <= position);
    requests
        .flat_map(|(request, _)| (0..EVENTS).map(|event| mark(*request, event)))
        .all(|mark| state.received.get(&mark).is_some_and(|(at, _)| *at <= position))
}
