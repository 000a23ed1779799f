//! A spool as another process sees it. Nothing here takes its lock or changes a file, except [`drop_waiting`].
//!
//! A daemon may be using the spool meanwhile: it appends records, and removes segments after it has saved its cursor. So the
//! names are listed before the cursor is read, and damage is reported only if a second look finds it again.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::cursor::{self, Peeked, Saved};
use super::directory::{self, peek_end};
use super::record::Position;
use super::record_reader::{RecordReader, SpoolItem, SpoolRecord};
use super::segment::{Segment, SegmentName};
use super::state::{SpoolBacklog, UsedBy};
use super::warning::SpoolWarning;

/// How often a listing is repeated whose files a daemon removes.
const MAX_ATTEMPTS: usize = 20;
/// The longest first line of a refused request that is read.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// What waits in a spool at one moment.
#[derive(Debug)]
pub struct Snapshot {
    directory: PathBuf,
    segments: VecDeque<Segment>,
    /// Before the first record that waits, and behind the last one.
    start: Position,
    end: Position,
    /// How many records wait between them, and their events.
    waiting: (u64, u64),
    warnings: Vec<SpoolWarning>,
    record_reader: RecordReader,
}

impl Snapshot {
    /// Reads the directory of a spool.
    ///
    /// # Errors
    /// The system's.
    pub fn read(directory: &Path) -> io::Result<Snapshot> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match Snapshot::try_read(directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < MAX_ATTEMPTS => {
                    // A segment was removed after it was listed. Without the directory, it is the same again.
                    fs::metadata(directory)?;
                }
                result => return result,
            }
        }
    }

    fn try_read(directory: &Path) -> io::Result<Snapshot> {
        fs::metadata(directory)?;
        let listed = directory::list(directory)?;
        let mut warnings: Vec<SpoolWarning> = listed.warnings().collect();
        let cursor = directory.join("cursor");
        let first = listed.segments.front().map(|first| first.name.start);
        let restart = first.unwrap_or(Position::START);
        let saved = match cursor::peek(&cursor)? {
            Peeked::Saved(saved) => saved,
            Peeked::Missing => {
                warnings.extend(first.map(|_| SpoolWarning::NoCursor));
                Saved::at(restart)
            }
            Peeked::Damaged => {
                warnings.push(SpoolWarning::DamagedCursor(cursor));
                Saved::at(restart)
            }
        };
        let start = directory::dropped_until(directory)?.unwrap_or_default().max(saved.acknowledged);
        let dropped = saved.unsettled_until(start);
        if dropped.0 > 0 {
            warnings.push(SpoolWarning::Dropped(dropped.0, dropped.1));
        }
        let mut end = saved.end().max(start);
        if let Some(last) = listed.segments.back() {
            end = end.max(peek_end(&directory.join(last.name.file_name()), last.name, &mut warnings)?);
        }
        let record_reader = RecordReader::from(directory.to_owned(), start, saved.settled_from(start));
        let behind_start = Saved { acknowledged: start, settled: saved.settled_from(start), ..saved };
        let (directory, waiting) = (directory.to_owned(), behind_start.unsettled_until(end));
        Ok(Snapshot { directory, segments: listed.segments, start, end, waiting, warnings, record_reader })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What an operator should know about the directory. While a daemon uses the spool, an incomplete record at its end is
    /// being written.
    pub fn warnings(&self) -> &[SpoolWarning] {
        &self.warnings
    }

    /// What waits, damaged records included.
    pub fn waiting(&self) -> SpoolBacklog {
        SpoolBacklog {
            records: self.waiting.0,
            events: self.waiting.1,
            bytes: self.segments.iter().map(|segment| segment.len).sum(),
        }
    }

    /// The next record that waits, or what was lost in its place.
    ///
    /// # Errors
    /// The system's.
    pub fn next_item(&mut self) -> io::Result<Option<SpoolItem>> {
        loop {
            match self.step()? {
                Some(SpoolItem::Record(record)) if record.payload.is_empty() => {}
                item => return Ok(item),
            }
        }
    }

    fn step(&mut self) -> io::Result<Option<SpoolItem>> {
        let from = self.record_reader.next();
        let item = self.record_reader.step(&self.segments, Some(self.end))?;
        let Some(SpoolItem::Damaged(damage)) = item else { return Ok(item) };
        // The daemon may have removed the segment since it was listed, or may be writing its end.
        let is_uncertain = damage.bytes == 0 || damage.end >= self.end;
        if !is_uncertain || !matches!(used_by(&self.directory), UsedBy::Process(_)) {
            return Ok(Some(SpoolItem::Damaged(damage)));
        }
        let now = Snapshot::read(&self.directory)?;
        self.segments = now.segments;
        let first = self.segments.front().map_or(now.start, |first| first.name.start);
        let start = from.max(now.start).max(if damage.bytes == 0 { first } else { from });
        self.record_reader = now.record_reader;
        self.record_reader.continue_at(start.min(self.end.max(from)));
        if start >= self.end { Ok(None) } else { self.record_reader.step(&self.segments, Some(self.end)) }
    }

    /// The first record that waits and can be read.
    ///
    /// # Errors
    /// The system's.
    pub fn oldest(&mut self) -> io::Result<Option<SpoolRecord>> {
        loop {
            match self.next_item()? {
                Some(SpoolItem::Record(record)) => break Ok(Some(record)),
                Some(SpoolItem::Damaged(_)) => {}
                None => break Ok(None),
            }
        }
    }
}

/// Whether a directory looks like a spool: it has a cursor or a segment.
pub fn is_spool(directory: &Path) -> bool {
    let has_segment = || {
        fs::read_dir(directory).is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|entry| SegmentName::parse(&entry.file_name().to_string_lossy()).is_some())
            })
        })
    };
    directory.join("cursor").exists() || has_segment()
}

/// How often the list of locks is read at most to find one.
const LOCK_READS: usize = 3;

/// Finds the process that has the lock of a spool, without touching the lock.
pub fn used_by(directory: &Path) -> UsedBy {
    let Ok(lock) = fs::metadata(directory.join("lock")) else { return UsedBy::Unused };
    let read = || fs::read_to_string("/proc/locks");
    let Ok(locks) = read() else { return UsedBy::Unknown };
    // `1: FLOCK  ADVISORY  WRITE 1234 08:01:131 0 EOF`: process, device and inode. The device of some file systems is
    // another one here than in `stat`, so it is not compared.
    let owner = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let inode = fields.get(5)?.rsplit(':').next()?.parse::<u64>().ok()?;
        (fields.get(1) == Some(&"FLOCK") && inode == lock.ino()).then(|| fields.get(4)?.parse().ok())?
    };
    let found = |locks: &str| locks.lines().find_map(owner);
    // The list comes in pieces: while other locks are taken and given back, one that is held can be missing between two of them.
    let again = || (1..LOCK_READS).find_map(|_| found(&read().ok()?));
    found(&locks).or_else(again).map_or(UsedBy::Unused, UsedBy::Process)
}

/// Files in a directory of a spool that are no segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileCount {
    /// Their number.
    pub files: u64,
    /// Their size.
    pub bytes: u64,
}

/// Counts the files in `refused`, `damaged` or `aside` of a spool.
///
/// # Errors
/// The system's.
pub fn kept(directory: &Path, name: &str) -> io::Result<FileCount> {
    let mut kept = FileCount::default();
    let entries = match fs::read_dir(directory.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(kept),
        entries => entries?,
    };
    for entry in entries {
        match entry?.metadata() {
            Ok(metadata) => kept = FileCount { files: kept.files + 1, bytes: kept.bytes + metadata.len() },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(kept)
}

/// A request that the destination has refused for good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Its file.
    pub path: PathBuf,
    /// Its first line: an object with `id`, `events` and `reason`.
    pub line: String,
    /// The request.
    pub payload: Vec<u8>,
}

/// The refused requests of a spool that are kept, in the order of their names.
///
/// # Errors
/// The system's.
pub fn refused(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory.join("refused")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

impl Refused {
    /// The id of the request; empty if its line has none.
    pub fn id(&self) -> String {
        self.said()["id"].as_str().unwrap_or_default().to_owned()
    }

    /// The number of its events.
    pub fn events(&self) -> u32 {
        self.said()["events"].as_u64().and_then(|events| u32::try_from(events).ok()).unwrap_or(0)
    }

    fn said(&self) -> serde_json::Value {
        serde_json::from_str(&self.line).unwrap_or_default()
    }

    /// Reads such a file.
    ///
    /// # Errors
    /// The system's.
    pub fn read(path: PathBuf) -> io::Result<Refused> {
        let mut reader = BufReader::new(File::open(&path)?);
        let (mut line, mut payload) = (Vec::new(), Vec::new());
        reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        reader.read_to_end(&mut payload)?;
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        Ok(Refused { path, line, payload })
    }
}

/// Why the records of a spool were not removed.
#[derive(Debug)]
pub enum DropError {
    /// A process uses the spool.
    InUse(UsedBy),
    /// The system's error, with the path.
    Io(PathBuf, io::Error),
}

impl fmt::Display for DropError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DropError::InUse(UsedBy::Process(pid)) if *pid > 0 => {
                write!(f, "process {pid} uses the spool: stop it first")
            }
            DropError::InUse(_) => f.write_str("a daemon uses the spool: stop it first"),
            DropError::Io(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for DropError {}

/// Removes everything that waits; returns how much that was. The next [`Spool::open`](super::Spool::open) counts it.
///
/// # Errors
/// A process uses the spool, and nothing is removed; or the system's: then the rest is removed by the next call.
pub fn drop_waiting(directory: &Path) -> Result<SpoolBacklog, DropError> {
    let _lock = directory::lock(directory).map_err(|(path, error)| match error.kind() {
        io::ErrorKind::ResourceBusy => DropError::InUse(used_by(directory)),
        _ => DropError::Io(path, error),
    })?;
    let removed = (|| {
        let snapshot = Snapshot::read(directory)?;
        let waiting = snapshot.waiting();
        if waiting.records == 0 {
            return Ok(waiting);
        }
        let cursor = directory.join("cursor");
        if !matches!(cursor::peek(&cursor)?, Peeked::Saved(_)) {
            // The count of the next start begins here.
            let mut warnings = Vec::new();
            let mut cursor = directory::open_cursor(directory, &mut warnings).map_err(|(_, error)| error)?;
            cursor.save(Saved::at(snapshot.start))?;
        }
        directory::note_dropped(directory, snapshot.end)?;
        for segment in &snapshot.segments {
            fs::remove_file(directory.join(segment.name.file_name()))?;
        }
        directory::sync(directory)?;
        Ok(waiting)
    })();
    removed.map_err(|error: io::Error| DropError::Io(directory.to_owned(), error))
}
