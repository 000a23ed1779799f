//! Names of finished files: making them, and recognizing those that a sink made.
//!
//! A finished file is called `<stem>.<yyyymmddThhmmss.mmm>[-n]<extension>` after the time (UTC) at which it was
//! finished, followed by `.gz`, `.lz4` or `.zst` once it is compressed, and by `.tmp` after that while it is being compressed.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::fmt::strtime;
use jiff::tz::TimeZone;

use super::options::Compression;
use super::template::{Template, timestamp};
use tributary_event::UnixNanos;

/// Ends the name of a compressed file that is not complete yet.
pub const TEMPORARY: &str = ".tmp";

/// Files finished in the same millisecond are numbered; more than this many are an error.
const MAX_SAME_STAMP: u32 = 10_000;

/// The name of `path` once compressed.
pub fn compressed(path: &Path, compression: Compression) -> PathBuf {
    append(path, compression.suffix())
}

/// The same path with `suffix` after its name.
pub fn append(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Finds the name under which `live` is kept, and reserves it by creating an empty file there, so that the rename that
/// follows overwrites no other file.
///
/// # Errors
/// The system's, when the empty file cannot be created.
pub fn reserve(live: &Path, now: UnixNanos) -> io::Result<PathBuf> {
    let Some(name) = live.file_name().and_then(|name| name.to_str()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file has no name"));
    };
    let stamp = stamp(now);
    for number in 0..MAX_SAME_STAMP {
        let path = live.with_file_name(finished_name(name, &stamp, number));
        let taken = Compression::ALL.iter().any(|how| fs::symlink_metadata(compressed(&path, *how)).is_ok());
        if taken {
            continue;
        }
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "no free name for the finished file"))
}

/// A time as it stands in names. Sorts as text.
pub fn stamp(time: UnixNanos) -> String {
    strtime::format("%Y%m%dT%H%M%S.%3f", timestamp(time)).unwrap_or_default()
}

/// The time that [`stamp`] has written.
pub fn time(stamp: &str) -> Option<UnixNanos> {
    let time = strtime::parse("%Y%m%dT%H%M%S%.f", stamp).ok()?.to_datetime().ok()?;
    let nanos = time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_nanosecond();
    Some(UnixNanos(u64::try_from(nanos).ok()?))
}

/// The number of a finished file, and the path that it has with another number. `None`: no finished file has such a name.
pub fn numbered(path: &Path) -> Option<(u32, impl Fn(u32) -> PathBuf)> {
    let ((stamp, number), live) = parse_finished(path.file_name()?.to_str()?, |_| true)?;
    Some((number, move |number| path.with_file_name(finished_name(&live, &stamp, number))))
}

fn finished_name(live: &str, stamp: &str, number: u32) -> String {
    let (stem, extension) = split(live);
    match number {
        0 => format!("{stem}.{stamp}{extension}"),
        _ => format!("{stem}.{stamp}-{number}{extension}"),
    }
}

/// Splits a name before its extension, which may be empty. A leading dot begins no extension.
fn split(name: &str) -> (&str, &str) {
    match name.rfind('.') {
        Some(at) if at > 0 => name.split_at(at),
        _ => (name, ""),
    }
}

/// A file below the base that the sink may have written.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundFile {
    /// Stamp and number, by which finished files are ordered; for a live name the time of its last change.
    pub finished: (String, u32),
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub state: FileState,
    /// The size on the disk.
    pub bytes: u64,
    /// The path of its live file with date items in place of the dates: the same for all files of one protocol and
    /// listener, as far as the template distinguishes those.
    pub series: PathBuf,
}

/// The state of a file, according to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileState {
    /// The name of a live file.
    Live,
    /// Finished, not compressed.
    Finished,
    /// Finished and compressed.
    Compressed,
    /// A compressed file that is not complete.
    Temporary,
}

/// Lists the regular files below the template's base whose names the sink can have given, oldest first. Follows no
/// links, and lists only directories that the template can name.
///
/// # Errors
/// The system's, when a directory cannot be listed; one that is not there lists as empty.
pub fn scan(template: &Template) -> io::Result<Vec<FoundFile>> {
    let mut found = Vec::new();
    scan_level(template, template.base(), &PathBuf::new(), &mut found)?;
    found.sort();
    Ok(found)
}

/// Lists `directory`, which has the undated path `series` below the base.
fn scan_level(template: &Template, directory: &Path, series: &Path, found: &mut Vec<FoundFile>) -> io::Result<()> {
    let listed = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let entries = match fs::read_dir(listed) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let level = series.iter().count();
    let is_file_level = level + 1 == template.depth();
    for entry in entries {
        let entry = entry?;
        let file_name = entry.file_name();
        // Every name that the sink gives is valid UTF-8, because the template is.
        let Some(name) = file_name.to_str() else { continue };
        let path = directory.join(name);
        let file_type = entry.file_type()?;
        if file_type.is_dir() && !is_file_level {
            if let Some(undated) = template.undated(level, name) {
                scan_level(template, &path, &series.join(undated), found)?;
            }
        } else if file_type.is_file()
            && is_file_level
            && let Some(Classified { state, finished, live }) = classify(name, |live| template.could_name(level, live))
        {
            // A file that vanishes meanwhile counts as empty and oldest.
            let metadata = entry.metadata().ok();
            let finished = finished.unwrap_or_else(|| (metadata.as_ref().map(changed).unwrap_or_default(), 0));
            let bytes = metadata.map_or(0, |metadata| metadata.len());
            let series = series.join(template.undated(level, &live).unwrap_or_default());
            found.push(FoundFile { finished, path, state, bytes, series });
        }
    }
    Ok(())
}

/// When a file was last changed, in the form of a stamp; empty if the system does not report it.
fn changed(metadata: &fs::Metadata) -> String {
    let nanos = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let stamp_of = |time| stamp(UnixNanos(u64::try_from(nanos(time)).unwrap_or(u64::MAX)));
    metadata.modified().map(stamp_of).unwrap_or_default()
}

/// The result of [`classify`].
#[derive(Debug, PartialEq)]
struct Classified {
    state: FileState,
    /// Stamp and number of a finished file.
    finished: Option<(String, u32)>,
    /// The name that the file has, or had, as a live one.
    live: String,
}

/// Reads a file's name; `None` when the sink cannot have given it.
fn classify(name: &str, is_live_name: impl Fn(&str) -> bool) -> Option<Classified> {
    if is_live_name(name) {
        return Some(Classified { state: FileState::Live, finished: None, live: name.to_owned() });
    }
    if let Some((finished, live)) = parse_finished(name, &is_live_name) {
        return Some(Classified { state: FileState::Finished, finished: Some(finished), live });
    }
    let (whole, state) = match name.strip_suffix(TEMPORARY) {
        Some(whole) => (whole, FileState::Temporary),
        None => (name, FileState::Compressed),
    };
    let compressed = Compression::ALL.iter().filter(|how| **how != Compression::None);
    let original = compressed.map(|how| how.suffix()).find_map(|suffix| whole.strip_suffix(suffix))?;
    let (finished, live) = parse_finished(original, &is_live_name)?;
    Some(Classified { state, finished: Some(finished), live })
}

/// Reads the stamp and number in the name of a finished file; also returns the name of its live file.
fn parse_finished(name: &str, is_live_name: impl Fn(&str) -> bool) -> Option<((String, u32), String)> {
    // A live name without extension leaves the stamp at the end, where its last dot looks like an extension's.
    let candidates = [split(name), (name, "")];
    candidates.into_iter().find_map(|(front, extension)| {
        let (front, number) = match front.rsplit_once('-') {
            Some((front, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => (front, digits.parse().ok()?),
            _ => (front, 0),
        };
        let (stem, stamp) = front.split_at_checked(front.len().checked_sub(STAMP_SHAPE.len() + 1)?)?;
        let stamp = stamp.strip_prefix('.')?;
        let live = format!("{stem}{extension}");
        // Composed again, the name must be the same: that excludes every other way to read it.
        (is_stamp(stamp) && is_live_name(&live) && finished_name(&live, stamp, number) == name)
            .then(|| ((stamp.to_owned(), number), live))
    })
}

/// The shape of a stamp: `0` is any digit, other bytes are themselves.
const STAMP_SHAPE: &[u8] = b"00000000T000000.000";

fn is_stamp(text: &str) -> bool {
    text.len() == STAMP_SHAPE.len()
        && text.bytes().zip(STAMP_SHAPE).all(|(b, shape)| if *shape == b'0' { b.is_ascii_digit() } else { b == *shape })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: UnixNanos = UnixNanos(1_709_212_029_123_456_789);
    const STAMP: &str = "20240229T130709.123";

    fn is_live(name: &str) -> bool {
        ["app.ndjson", "app", ".app", "app.tar.x"].contains(&name)
    }

    #[test]
    fn a_finished_file_is_named_after_its_time_and_recognized_in_every_state() {
        assert_eq!(stamp(TIME), STAMP);
        for live in ["app.ndjson", "app", ".app", "app.tar.x"] {
            let classified = |state, finished| Some(Classified { state, finished, live: live.to_owned() });
            assert_eq!(classify(live, is_live), classified(FileState::Live, None));
            for number in [0, 1, 12] {
                let name = finished_name(live, STAMP, number);
                let finished = Some((STAMP.to_owned(), number));
                assert_eq!(classify(&name, is_live), classified(FileState::Finished, finished.clone()), "{name}");
                for suffix in [".gz", ".lz4", ".zst"] {
                    let (whole, part) = (format!("{name}{suffix}"), format!("{name}{suffix}.tmp"));
                    assert_eq!(classify(&whole, is_live), classified(FileState::Compressed, finished.clone()));
                    assert_eq!(classify(&part, is_live), classified(FileState::Temporary, finished.clone()));
                }
            }
        }
        assert_eq!(finished_name("app.ndjson", STAMP, 2), "app.20240229T130709.123-2.ndjson");
    }

    #[test]
    fn similar_names_are_not_recognized() {
        for name in [
            "app.ndjson.gz",
            "app.ndjson.tmp",
            "app.ndjson~",
            "app.20240229.ndjson",
            "app.20240229T130709.12x.ndjson",
            "app.20240229T130709.123-0.ndjson",
            "app.20240229T130709.123-01.ndjson",
            "app.20240229T130709.123-.ndjson",
            "app.20240229T130709.123.ndjson.bak",
            "app.20240229T130709.123.ndjson.tmp",
            "app.20240229T130709.123.ndjson.gz.gz",
            "other.20240229T130709.123.ndjson",
            "app20240229T130709.123.ndjson",
            "20240229T130709.123",
            "é20240229T130709.123",
            "",
            "-",
            ".",
        ] {
            assert_eq!(classify(name, is_live), None, "{name}");
        }
    }

    #[test]
    fn a_name_that_is_taken_in_any_state_is_not_given_again() {
        let directory = tempfile::tempdir().unwrap();
        let live = directory.path().join("app.ndjson");
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(name(reserve(&live, TIME).unwrap()), "app.20240229T130709.123.ndjson");
        fs::write(directory.path().join("app.20240229T130709.123-1.ndjson.gz"), "").unwrap();
        fs::write(directory.path().join("app.20240229T130709.123-2.ndjson.lz4"), "").unwrap();
        assert_eq!(name(reserve(&live, TIME).unwrap()), "app.20240229T130709.123-3.ndjson");
    }

    #[test]
    fn a_finished_file_can_have_another_number_instead_of_its_own() {
        for number in [0, 1, 12] {
            let path = Path::new("a-1/app.x").with_file_name(finished_name("app.x", STAMP, number));
            let (own, with_number) = numbered(&path).unwrap();
            assert_eq!(own, number);
            assert_eq!(with_number(0), Path::new("a-1/app.20240229T130709.123.x"));
            assert_eq!(with_number(13), Path::new("a-1/app.20240229T130709.123-13.x"));
        }
        assert!(numbered(Path::new("app.x")).is_none());
        assert!(numbered(Path::new("app.20240229T130709.123-2-1.x")).is_none());
    }

    #[test]
    fn a_scan_lists_our_files_oldest_first_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path();
        for name in ["a.20240229T130709.124.log", "a.20240229T130709.123-2.log.gz", "a.20240229T130709.123-10.log"] {
            fs::write(base.join(name), "").unwrap();
        }
        fs::write(base.join("b.txt"), "").unwrap();
        fs::create_dir(base.join("c.log")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", base.join("d.20240229T130709.123.log")).unwrap();
        let template = Template::parse(&format!("{}/{{protocol}}.log", base.display())).unwrap();
        let names: Vec<_> = scan(&template)
            .unwrap()
            .into_iter()
            .map(|found| found.path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            names,
            ["a.20240229T130709.123-2.log.gz", "a.20240229T130709.123-10.log", "a.20240229T130709.124.log"]
        );
    }
}
