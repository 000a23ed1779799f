//! Maintenance of the files: what a crash left behind, and how much of the finished files is kept.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::live::Live;
use super::names::{self, FileState, FoundFile};
use super::options::Options;
use super::repair;
use super::template::Template;
use tributary_event::UnixNanos;
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::FileStatus;
use tributary_system::wall_clock;

/// Reports that a file cannot be repaired, finished or removed.
static TROUBLE: LogThrottle = LogThrottle::new();

/// Repairs the end of every unfinished file that the template can have named and that is not open here: a killed process
/// leaves its last record half-written, and the file of a past date is never opened again. Files of a journal are finished.
///
/// # Errors
/// The system's, when the directories cannot be listed. A fault of a single file is a warning.
pub(super) fn repair(
    template: &Template,
    options: &Options,
    now: UnixNanos,
    disk: &mut Disk,
    is_open: impl Fn(&Path) -> bool,
) -> io::Result<()> {
    for found in names::scan(template)? {
        if found.state != FileState::Live || is_open(&found.path) {
            continue;
        }
        let repaired = match options.is_journal() {
            true => finish(&found.path, options, now, disk),
            false => repair::repair_closed(&found.path, options.format),
        };
        warn_on_error(&found.path, "repair", repaired);
    }
    Ok(())
}

/// Finishes, removes and counts the template's files; returns the finished ones that are to be compressed, oldest first.
///
/// Works only from what is on disk, so it makes no difference whether a file was finished just now or before a crash.
/// Call it only while no compression is running: it takes every temporary file for abandoned.
///
/// # Errors
/// The system's, when the directories cannot be listed. A fault of a single file is a warning.
pub(super) fn maintain(
    template: &Template,
    options: &Options,
    now: UnixNanos,
    disk: &mut Disk,
    status: &FileStatus,
    is_open: impl Fn(&Path) -> bool,
) -> io::Result<Vec<PathBuf>> {
    let is_past = |found: &FoundFile| {
        // Of a journal also one that was closed because too many were open, and not written since.
        let interval = u64::try_from(options.rotate_interval.as_nanos()).unwrap_or(u64::MAX);
        let is_left = options.is_journal() && interval > 0;
        !template.is_current(&found.path, now)
            || is_left && found.finished.0 < names::stamp(UnixNanos(now.0.saturating_sub(interval)))
    };
    let is_over = |found: &FoundFile| is_past(found) && !is_open(&found.path);
    if options.finishes() {
        for found in names::scan(template)? {
            if found.state == FileState::Live && is_over(&found) {
                let finished = finish(&found.path, options, now, disk);
                if finished.is_ok() {
                    status.add_finished();
                }
                warn_on_error(&found.path, "finish", finished);
            }
        }
    }
    let found = remove_unfinished(names::scan(template)?);
    let mut over: Vec<_> = found.into_iter().filter(|found| found.state != FileState::Live || is_over(found)).collect();
    if options.keep_files > 0 || options.keep_bytes > 0 || !options.keep_time.is_zero() {
        drop(remove_old(&mut over, options, template.base(), status));
    }
    over.retain(|found| found.state == FileState::Finished && options.finishes());
    Ok(over.into_iter().map(|found| found.path).collect())
}

/// Removes the oldest files of each series until it is within the limits of the options. Returns those that were removed.
pub fn remove_old(over: &mut Vec<FoundFile>, options: &Options, base: &Path, status: &FileStatus) -> Vec<PathBuf> {
    let mut gone = Vec::new();
    let Options { keep_files, keep_bytes, keep_time, .. } = *options;
    let mut series: HashMap<PathBuf, (usize, u64)> = HashMap::new();
    for found in over.iter() {
        let (files, bytes) = series.entry(found.series.clone()).or_default();
        *files += 1;
        *bytes += found.bytes;
    }
    // By the time in its name; the wall clock may have stepped since.
    let is_too_old = |found: &FoundFile| {
        let finished = names::time(&found.finished.0);
        !keep_time.is_zero() && finished.is_some_and(|time| wall_clock::age(time) > keep_time)
    };
    over.retain(|found| {
        let Some((files, bytes)) = series.get_mut(&found.series) else { return true };
        let is_surplus = keep_files > 0 && *files > keep_files || keep_bytes > 0 && *bytes > keep_bytes;
        if !is_surplus && !is_too_old(found) {
            return true;
        }
        *files -= 1;
        *bytes -= found.bytes;
        let removed = fs::remove_file(&found.path);
        if removed.is_ok() {
            status.add_removed(found.bytes);
            gone.push(found.path.clone());
            if let Some(suppressed) = status.permit_removal_line() {
                let (sink, path) = (status.sink(), found.path.display());
                tracing::info!(sink, %path, suppressed, "removed an old file, as the sink's options say");
            }
        }
        warn_on_error(&found.path, "remove", removed);
        remove_empty_directories(&found.path, base);
        false
    });
    gone
}

/// Finishes a live file of a past date, from an earlier run or closed because too many were open.
fn finish(path: &Path, options: &Options, now: UnixNanos, disk: &mut Disk) -> io::Result<()> {
    let mut live = Live::open(path, options, disk)?;
    // The repair of its end may have changed it.
    (disk.sync_data)(live.file())?;
    live.finish(now, disk).map(drop)
}

/// Removes what an interrupted compression left: temporary files, and compressed files whose original still exists.
/// The originals stay, and are compressed again. Returns the rest.
fn remove_unfinished(found: Vec<FoundFile>) -> Vec<FoundFile> {
    let originals: HashSet<PathBuf> =
        found.iter().filter(|found| found.state == FileState::Finished).map(|found| found.path.clone()).collect();
    let is_unfinished = |found: &FoundFile| match found.state {
        FileState::Temporary => true,
        FileState::Compressed => originals.contains(&found.path.with_extension("")),
        FileState::Live | FileState::Finished => false,
    };
    let (unfinished, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(is_unfinished);
    for found in unfinished {
        warn_on_error(&found.path, "remove", fs::remove_file(&found.path));
    }
    rest
}

/// Removes the directories between a removed file and the base if they are empty.
pub fn remove_empty_directories(path: &Path, base: &Path) {
    for directory in path.ancestors().skip(1).take_while(|directory| *directory != base) {
        if fs::remove_dir(directory).is_err() {
            return;
        }
    }
}

fn warn_on_error(path: &Path, action: &str, result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != io::ErrorKind::NotFound
        && let Some(suppressed) = TROUBLE.permit()
    {
        tracing::warn!(path = %path.display(), %error, suppressed, action, "cannot maintain a file");
    }
}
