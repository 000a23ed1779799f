//! The directory of a spool: its lock, its segments, what is damaged or foreign.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::cursor::{self, Cursor, Peeked, Saved};
use super::reader::{Damage, Reader};
use super::record::Position;
use super::segment::{Format, Segment, SegmentName, format_of, sync_data};
use super::warning::SpoolWarning;
use tributary_system::locked_file::LockedFile;

/// Names beside the segments.
const OWN: [&str; 7] = ["lock", "cursor", DROPPED, "damaged", "aside", "refused", RETRY];
/// The file that says what the operator has removed; it has the format of the cursor.
const DROPPED: &str = "dropped";
/// The directory of refused requests that are to be sent again.
pub(super) const RETRY: &str = "retry";
/// The end of the name of a segment that is being rewritten.
pub(super) const UNFINISHED: &str = ".unfinished";
/// Copies of damaged records in `damaged/`, all together.
const MAX_DAMAGED_BYTES: u64 = 64 * 1024 * 1024;

/// Refused requests in `refused/`, all together.
const MAX_REFUSED_BYTES: u64 = 64 * 1024 * 1024;

/// Creates the directory and those above it, for this user only; their names are on the disk then.
///
/// # Errors
/// The system's.
pub(super) fn create(directory: &Path) -> io::Result<()> {
    tributary_system::directories::create(directory).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists if directory.symlink_metadata().is_ok() => {
            io::Error::new(io::ErrorKind::NotADirectory, "it is a file, and must be a directory")
        }
        io::ErrorKind::AlreadyExists => io::Error::new(io::ErrorKind::NotADirectory, "a directory above it is a file"),
        _ => error,
    })
}

/// Locks the spool as long as the result lives.
///
/// # Errors
/// The system's, or another process has the lock.
pub(super) fn lock(directory: &Path) -> Result<LockedFile, (PathBuf, io::Error)> {
    let path = directory.join("lock");
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = opened.map_err(|error| (path.clone(), error))?;
    let in_use = || io::Error::new(io::ErrorKind::ResourceBusy, "another process uses this spool");
    LockedFile::lock_where_supported(file).ok_or_else(|| (path, in_use()))
}

/// The segments of a directory.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// In order.
    pub(super) segments: VecDeque<Segment>,
    /// The largest serial of any segment, also of those that were moved.
    pub(super) last_serial: u32,
    /// Segments of newer versions.
    newer: Vec<(PathBuf, u8)>,
    /// Segments that were not completely rewritten.
    unfinished: Vec<PathBuf>,
    foreign: Vec<PathBuf>,
}

impl Listed {
    /// What the operator should know.
    pub(super) fn warnings(&self) -> impl Iterator<Item = SpoolWarning> {
        let newer = self.newer.iter().map(|(path, version)| SpoolWarning::Newer(path.clone(), *version));
        newer.chain(self.foreign.iter().cloned().map(SpoolWarning::Foreign))
    }
}

/// Lists the segments, and changes nothing.
///
/// # Errors
/// The system's.
pub(super) fn list(directory: &Path) -> io::Result<Listed> {
    let mut listed = Listed::default();
    for name in names_in(&directory.join("aside"))?.into_iter().filter_map(|name| SegmentName::parse(&name)) {
        listed.last_serial = listed.last_serial.max(name.serial);
    }
    let mut names = names_in(directory)?;
    names.sort();
    for file_name in names {
        let path = directory.join(&file_name);
        let is_file = path.is_file();
        let Some(name) = SegmentName::parse(&file_name).filter(|_| is_file) else {
            if file_name.strip_suffix(UNFINISHED).is_some_and(|name| is_file && SegmentName::parse(name).is_some()) {
                listed.unfinished.push(path);
            } else if !OWN.contains(&file_name.as_str()) && path.symlink_metadata().is_ok() {
                // A file that another process has removed meanwhile is not foreign.
                listed.foreign.push(path);
            }
            continue;
        };
        listed.last_serial = listed.last_serial.max(name.serial);
        // A segment that cannot be opened now may be readable later.
        if let Ok(file) = File::open(&path)
            && let Format::Newer(version) = format_of(&file)?
        {
            listed.newer.push((path, version));
            continue;
        }
        match fs::metadata(&path) {
            Ok(metadata) => listed.segments.push_back(Segment { name, len: metadata.len() }),
            // The process that uses the spool has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(listed)
}

/// Moves segments of newer versions to `aside/`, and removes those that were not completely rewritten.
///
/// # Errors
/// The system's.
pub(super) fn clean(directory: &Path, listed: &Listed) -> io::Result<()> {
    for (path, _) in &listed.newer {
        set_aside(directory, path)?;
    }
    listed.unfinished.iter().try_for_each(fs::remove_file)
}

/// Moves a file to `aside/`. Nothing there is replaced.
fn set_aside(directory: &Path, path: &Path) -> io::Result<()> {
    let target = directory.join("aside");
    create(&target)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let free = (0..).map(|number| match number {
        0 => target.join(&*name),
        number => target.join(format!("{name}.{number}")),
    });
    let Some(free) = free.into_iter().find(|path| path.symlink_metadata().is_err()) else { return Ok(()) };
    fs::rename(path, free)
}

/// Opens the cursor. One that cannot be read is moved to `aside/`, because a newer tributary may be able to read it.
///
/// # Errors
/// The system's, with the path.
pub(super) fn open_cursor(directory: &Path, warnings: &mut Vec<SpoolWarning>) -> Result<Cursor, (PathBuf, io::Error)> {
    let path = directory.join("cursor");
    let opened = (|| {
        if cursor::peek(&path)? == Peeked::Damaged {
            set_aside(directory, &path)?;
            warnings.push(SpoolWarning::DamagedCursor(path.clone()));
        }
        Cursor::open(&path)
    })();
    opened.map_err(|error| (path, error))
}

/// Behind the last record that the operator has removed, if the next start has to count that.
///
/// # Errors
/// The system's.
pub(super) fn dropped_until(directory: &Path) -> io::Result<Option<Position>> {
    Ok(match cursor::peek(&directory.join(DROPPED))? {
        Peeked::Saved(saved) => Some(saved.acknowledged),
        Peeked::Missing | Peeked::Damaged => None,
    })
}

/// Notes that the operator removes everything before this position.
///
/// # Errors
/// The system's.
pub(super) fn note_dropped(directory: &Path, until: Position) -> io::Result<()> {
    Cursor::open(&directory.join(DROPPED))?.save(Saved::at(until))?;
    sync(directory)
}

/// The start has counted what the operator has removed.
///
/// # Errors
/// The system's.
pub(super) fn forget_dropped(directory: &Path) -> io::Result<()> {
    fs::remove_file(directory.join(DROPPED))
}

/// The names in a directory; none if it does not exist.
fn names_in(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The position behind the last whole record of the last segment. The segment is forced to the disk: the process that wrote it
/// may have been killed before it did that.
///
/// # Errors
/// The system's.
pub(super) fn find_end(path: &Path, name: SegmentName, warnings: &mut Vec<SpoolWarning>) -> io::Result<Position> {
    sync_data(&File::open(path)?)?;
    peek_end(path, name, warnings)
}

/// The same without a change of the disk.
///
/// # Errors
/// The system's.
pub(super) fn peek_end(path: &Path, name: SegmentName, warnings: &mut Vec<SpoolWarning>) -> io::Result<Position> {
    let mut reader = Reader::open(path, name)?;
    reader.skip_all()?;
    let (offset, bytes) = reader.rest();
    if bytes > 0 {
        warnings.push(SpoolWarning::Torn { path: path.to_owned(), offset, bytes });
    }
    Ok(reader.expected())
}

/// Forces the names in the directory to the disk.
///
/// # Errors
/// The system's.
pub(super) fn sync(directory: &Path) -> io::Result<()> {
    #[cfg(test)]
    super::tests::faults::next()?;
    File::open(directory)?.sync_all()?;
    #[cfg(test)]
    super::tests::faults::note_names_synced(directory);
    Ok(())
}

/// Copies what cannot be read to `damaged/`, as long as there is space. A failure is logged.
pub(super) fn copy_damaged(directory: &Path, damage: &Damage) {
    if damage.bytes == 0 {
        return;
    }
    let target = directory.join("damaged");
    let copied = create(&target).and_then(|()| {
        let file = File::open(&damage.path)?;
        if bytes_in(&target)? + damage.bytes > MAX_DAMAGED_BYTES {
            return Ok(());
        }
        let segment = damage.path.file_name().unwrap_or_default().to_string_lossy();
        let path = target.join(format!("{segment}.{}", damage.offset));
        let mut copy = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let mut block = vec![0; 64 * 1024];
        let (mut at, end) = (damage.offset, damage.offset + damage.bytes);
        while at < end {
            let wanted = (end - at).min(block.len() as u64) as usize;
            match file.read_at(&mut block[..wanted], at)? {
                0 => break,
                read => copy.write_all(&block[..read])?,
            }
            at += wanted as u64;
        }
        Ok(())
    });
    if let Err(error) = copied {
        tracing::warn!(directory = %target.display(), %error, "cannot keep a copy of a damaged record");
    }
}

/// The length of all files in a directory.
fn bytes_in(directory: &Path) -> io::Result<u64> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}

/// Keeps a refused request, as long as there is space. It survives a loss of power.
///
/// # Errors
/// The system's.
pub(super) fn keep_refused(
    directory: &Path,
    id: &str,
    events: u32,
    why: &str,
    payload: &[u8],
) -> io::Result<Option<PathBuf>> {
    let target = directory.join("refused");
    create(&target)?;
    if bytes_in(&target)? + payload.len() as u64 > MAX_REFUSED_BYTES {
        return Ok(None);
    }
    let path = target.join(format!("{id}.request"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    let line = serde_json::json!({ "id": id, "events": events, "reason": why });
    file.write_all(format!("{line}\n").as_bytes())?;
    file.write_all(payload)?;
    sync_data(&file)?;
    sync(&target)?;
    Ok(Some(path))
}

/// A file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskSpace {
    /// Its size, in bytes.
    pub total_bytes: u64,
    /// What this user may still use of it, in bytes.
    pub free_bytes: u64,
}

/// The file system of a directory, or of the nearest one above it that exists.
///
/// # Errors
/// The system's.
pub fn disk_space(directory: &Path) -> io::Result<DiskSpace> {
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    let stat = rustix::fs::statvfs(existing)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(DiskSpace { total_bytes: bytes(stat.f_blocks), free_bytes: bytes(stat.f_bavail) })
}

/// A random number.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
