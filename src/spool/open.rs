//! Opening a spool: what an earlier process has left in its directory.

use std::io;
use std::path::{Path, PathBuf};

use super::cursor::Saved;
use super::recent::RecentRecords;
use super::record::Position;
use super::record_reader::RecordReader;
use super::unsettled::UnsettledRecords;
use super::{Spool, SpoolBacklog, SpoolLimits, SpoolWarning, directory, retry};

impl Spool {
    /// Opens the spool in `directory`, or creates it.
    ///
    /// # Errors
    /// The system's, with the path; also when another process uses the spool.
    pub fn open(directory: &Path, limits: SpoolLimits) -> Result<(Spool, Vec<SpoolWarning>), (PathBuf, io::Error)> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| (path, error)
        };
        directory::create(directory).map_err(at(directory))?;
        let lock = directory::lock(directory)?;
        let mut warnings = Vec::new();
        let listed = directory::list(directory).map_err(at(directory))?;
        directory::clean(directory, &listed).map_err(at(directory))?;
        retry::restore(directory).map_err(at(directory))?;
        warnings.extend(listed.warnings());
        let last_serial = listed.last_serial;
        let cursor = directory::open_cursor(directory, &mut warnings)?;
        let mut end = Position::START;
        if let Some(last) = listed.segments.back() {
            let path = directory.join(last.name.file_name());
            end = directory::find_end(&path, last.name, &mut warnings).map_err(at(&path))?;
        }
        let saved = cursor.saved().unwrap_or_else(|| {
            let first = listed.segments.front().map(|first| first.name.start);
            if first.is_some() && !warnings.iter().any(|warning| matches!(warning, SpoolWarning::DamagedCursor(_))) {
                warnings.push(SpoolWarning::NoCursor);
            }
            Saved::at(first.unwrap_or(Position::START))
        });
        let dropped_until = directory::dropped_until(directory).map_err(at(directory))?;
        let start = dropped_until.unwrap_or_default().max(saved.acknowledged);
        let (records, events) = saved.unsettled_until(start);
        let dropped = SpoolBacklog { records, events, bytes: 0 };
        if dropped.records > 0 {
            warnings.push(SpoolWarning::Dropped(dropped.records, dropped.events));
        }
        directory::sync(directory).map_err(at(directory))?;
        // Synced records that are missing at the end are damaged. Those that were acknowledged may have been sent
        // before they were synced, and lost.
        let end = end.max(saved.end()).max(start);
        let unsettled = UnsettledRecords::from(start, &saved.settled_from(start));
        let mut spool = Spool {
            directory: directory.to_owned(),
            limits,
            _lock: lock,
            cursor,
            segments: listed.segments,
            writer: None,
            last_serial,
            salt: directory::random(),
            written: end,
            recent: RecentRecords::from(end),
            must_rewrite: false,
            shortage: None,
            is_short: false,
            is_directory_unsynced: false,
            record_reader: RecordReader::from(directory.to_owned(), unsettled.acknowledged(), unsettled.settled()),
            unsettled,
            dropped,
        };
        if dropped_until.is_some() {
            // Counted once: by this start.
            spool.tidy().map_err(at(directory))?;
            directory::forget_dropped(directory).map_err(at(directory))?;
        }
        Ok((spool, warnings))
    }
}
