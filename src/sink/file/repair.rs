//! Repairing the end of an existing file: a record that a killed process left half-written.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::disk::lock;
use tributary_sink::encode::Format;

/// The first bytes of our JSON records, and of the definitions of their sources.
const STARTS: [&[u8]; 2] = [br#"{"time":"#, br#"{"source":"#];

/// How far back the beginning of the last line is searched: no record of ours is longer.
const MAX_RECORD_BYTES: u64 = 16 * 1024 * 1024;
const BLOCK: u64 = 64 * 1024;

/// Repairs a file that is not open here, if it ends in the middle of a record. Leaves a file alone that another process
/// has locked.
///
/// # Errors
/// The system's.
pub(super) fn repair_closed(path: &Path, format: Format) -> io::Result<()> {
    let file = fs::File::open(path)?;
    let len = file.metadata()?.len();
    if is_complete(&file, len)? {
        return Ok(());
    }
    let Ok(file) = lock(OpenOptions::new().read(true).append(true).open(path)?) else { return Ok(()) };
    repair_open(&file, path, format)?;
    file.sync_data()
}

/// Makes a file that is open for appending end in a line feed; returns its length.
///
/// A last line without line feed is what a process leaves that was killed while writing. When it begins like one of our
/// JSON records, or is in a journal, it is cut off, with a warning: its event was never reported as written. Any other last
/// line gets a line feed.
///
/// # Errors
/// The system's.
pub(super) fn repair_open(file: &fs::File, path: &Path, format: Format) -> io::Result<u64> {
    let len = file.metadata()?.len();
    if is_complete(file, len)? {
        return Ok(len);
    }
    if format != Format::Text
        && let Some(start) = last_line_start(file, len)?
        && (format == Format::Rows || begins_like_a_record(file, start, len)?)
    {
        file.set_len(start)?;
        tracing::warn!(path = %path.display(), bytes = len - start, "cut off a record that was not completely written");
        return Ok(start);
    }
    let mut file = file;
    file.write_all(b"\n")?;
    Ok(len + 1)
}

/// Whether a file of `len` bytes is empty or ends in a line feed.
fn is_complete(file: &fs::File, len: u64) -> io::Result<bool> {
    let mut last = [b'\n'];
    if len > 0 {
        file.read_exact_at(&mut last, len - 1)?;
    }
    Ok(last == *b"\n")
}

/// Offset of the first byte after the last line feed, `None` when the last line is longer than [`MAX_RECORD_BYTES`].
fn last_line_start(file: &fs::File, len: u64) -> io::Result<Option<u64>> {
    let floor = len.saturating_sub(MAX_RECORD_BYTES);
    let mut block = Vec::new();
    let mut end = len;
    while end > floor {
        let start = end.saturating_sub(BLOCK).max(floor);
        block.resize(usize::try_from(end - start).unwrap_or_default(), 0);
        file.read_exact_at(&mut block, start)?;
        if let Some(at) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(Some(start + at as u64 + 1));
        }
        end = start;
    }
    Ok((floor == 0).then_some(0))
}

fn begins_like_a_record(file: &fs::File, start: u64, end: u64) -> io::Result<bool> {
    let mut beginning = [0; 16];
    let len = usize::try_from(end - start).unwrap_or(usize::MAX).min(beginning.len());
    file.read_exact_at(&mut beginning[..len], start)?;
    Ok(STARTS.iter().any(|of| beginning.iter().zip(*of).take(len).all(|(byte, expected)| byte == expected)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repaired(before: &[u8], format: Format) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        fs::write(&path, before).unwrap();
        let file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        let len = repair_open(&file, &path, format).unwrap();
        let after = fs::read(&path).unwrap();
        assert_eq!(len, after.len() as u64);
        after
    }

    #[test]
    fn a_file_that_ends_in_a_line_feed_is_not_changed() {
        for format in Format::ALL {
            assert_eq!(repaired(b"", format), b"");
            assert_eq!(repaired(b"anything\n", format), b"anything\n");
        }
    }

    #[test]
    fn a_torn_record_is_cut_off_whatever_its_length() {
        let torn = br#"{"time":"2024-02-29T13:07:09Z","name":"x"}"#;
        for len in 1..=torn.len() {
            let before = [b"whole\n", &torn[..len]].concat();
            assert_eq!(repaired(&before, Format::Json), b"whole\n", "torn after {len} bytes");
            assert_eq!(repaired(&torn[..len], Format::Json), b"");
        }
        let long = [b"whole\n{\"time\":".as_slice(), &vec![b'x'; 200_000]].concat();
        assert_eq!(repaired(&long, Format::Json), b"whole\n");
    }

    #[test]
    fn a_last_line_that_is_not_ours_gets_a_line_feed() {
        for before in [b"whole\nnotes".as_slice(), b"notes", br#"{"tame":1"#] {
            assert_eq!(repaired(before, Format::Json), [before, b"\n"].concat());
        }
        assert_eq!(repaired(br#"{"time":1"#, Format::Text), b"{\"time\":1\n");
    }

    #[test]
    fn a_last_line_longer_than_any_record_gets_a_line_feed() {
        let mut before = br#"{"time":"#.to_vec();
        before.resize(usize::try_from(MAX_RECORD_BYTES).unwrap() + 1, b'x');
        let after = repaired(&before, Format::Json);
        assert_eq!(after.len(), before.len() + 1);
        assert!(after.ends_with(b"x\n"));
    }
}
