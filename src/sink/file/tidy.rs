//! Housekeeping around the live files: what a crash left behind, and how many finished files are kept.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::live::Live;
use super::names::{self, Found, State};
use super::options::{Compression, Options};
use super::template::Template;
use crate::event::UnixNanos;
use crate::log_throttle::LogThrottle;

/// Says that a file cannot be tidied away.
static TROUBLE: LogThrottle = LogThrottle::new();

/// Puts the template's files in order and answers which finished ones are to be compressed, oldest first.
///
/// Works from what is on disk alone, so it makes no difference whether a file was finished just now or before a crash.
/// Call it only while no compression is running: it takes every temporary file for abandoned.
///
/// # Errors
/// The system's, when the directories cannot be listed. What goes wrong with a single file is a warning.
pub(super) fn tidy(
    template: &Template,
    options: &Options,
    now: UnixNanos,
    is_open: impl Fn(&Path) -> bool,
) -> io::Result<Vec<PathBuf>> {
    let is_over = |found: &Found| !template.is_current(&found.path, now) && !is_open(&found.path);
    if options.compression != Compression::None {
        for found in names::scan(template)? {
            if found.state == State::Live && is_over(&found) {
                warn_of(&found.path, "finish", finish(&found.path, options, now));
            }
        }
    }
    let found = remove_unfinished(names::scan(template)?);
    let mut over: Vec<_> = found.into_iter().filter(|found| found.state != State::Live || is_over(found)).collect();
    if options.keep_files > 0 && over.len() > options.keep_files {
        for surplus in over.drain(..over.len() - options.keep_files) {
            warn_of(&surplus.path, "remove", fs::remove_file(&surplus.path));
            remove_empty_directories(&surplus.path, template.base());
        }
    }
    over.retain(|found| found.state == State::Finished && options.compression != Compression::None);
    Ok(over.into_iter().map(|found| found.path).collect())
}

/// A live file of a date that has passed, left by an earlier run or closed to make room.
fn finish(path: &Path, options: &Options, now: UnixNanos) -> io::Result<()> {
    Live::open(path, options)?.finish(now, options.fsync)
}

/// Removes what an interrupted compression left: temporary files, and compressed ones whose original is still there.
/// The originals stay, and will be compressed again. Answers the rest.
fn remove_unfinished(found: Vec<Found>) -> Vec<Found> {
    let originals: HashSet<PathBuf> =
        found.iter().filter(|found| found.state == State::Finished).map(|found| found.path.clone()).collect();
    let is_unfinished = |found: &Found| match found.state {
        State::Temporary => true,
        State::Compressed => originals.contains(&found.path.with_extension("")),
        State::Live | State::Finished => false,
    };
    let (unfinished, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(is_unfinished);
    for found in unfinished {
        warn_of(&found.path, "remove", fs::remove_file(&found.path));
    }
    rest
}

/// Removes the directories between a removed file and the base as far as they are empty.
fn remove_empty_directories(path: &Path, base: &Path) {
    for directory in path.ancestors().skip(1).take_while(|directory| *directory != base) {
        if fs::remove_dir(directory).is_err() {
            return;
        }
    }
}

fn warn_of(path: &Path, action: &str, result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != io::ErrorKind::NotFound
        && let Some(suppressed) = TROUBLE.permit()
    {
        tracing::warn!(path = %path.display(), %error, suppressed, "cannot {action} a finished file");
    }
}
