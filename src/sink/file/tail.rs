//! Making the end of an existing file fit to append to.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::sink::encode::Format;

/// How our JSON records begin.
const RECORD_START: &[u8] = br#"{"time":"#;

/// How far back the beginning of the last line is looked for: no record of ours is longer.
const FARTHEST: u64 = 16 * 1024 * 1024;
const BLOCK: u64 = 64 * 1024;

/// Sees to it that a file open for appending ends in a line feed, and answers its length.
///
/// A last line without line feed is what a process leaves that was killed while writing. When it looks like one of our
/// JSON records it is cut off, with a warning: its event was never reported as written. Anything else is not ours to
/// delete, and gets its line feed.
///
/// # Errors
/// The system's.
pub(super) fn mend(file: &fs::File, path: &Path, format: Format) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let mut last = [b'\n'];
    if len > 0 {
        file.read_exact_at(&mut last, len - 1)?;
    }
    if last == *b"\n" {
        return Ok(len);
    }
    if format == Format::Json
        && let Some(start) = last_line_start(file, len)?
        && begins_like_a_record(file, start, len)?
    {
        file.set_len(start)?;
        tracing::warn!(path = %path.display(), bytes = len - start, "cut off a record that was not completely written");
        return Ok(start);
    }
    let mut file = file;
    file.write_all(b"\n")?;
    Ok(len + 1)
}

/// Offset of the first byte after the last line feed, `None` when that is farther back than we look.
fn last_line_start(file: &fs::File, len: u64) -> io::Result<Option<u64>> {
    let floor = len.saturating_sub(FARTHEST);
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
    let len = usize::try_from(end - start).unwrap_or(usize::MAX).min(RECORD_START.len());
    let mut beginning = [0; RECORD_START.len()];
    file.read_exact_at(&mut beginning[..len], start)?;
    Ok(beginning[..len] == RECORD_START[..len])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mended(before: &[u8], format: Format) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        fs::write(&path, before).unwrap();
        let file = fs::OpenOptions::new().read(true).append(true).open(&path).unwrap();
        let len = mend(&file, &path, format).unwrap();
        let after = fs::read(&path).unwrap();
        assert_eq!(len, after.len() as u64);
        after
    }

    #[test]
    fn what_ends_in_a_line_feed_stays_as_it_is() {
        for format in Format::ALL {
            assert_eq!(mended(b"", format), b"");
            assert_eq!(mended(b"anything\n", format), b"anything\n");
        }
    }

    #[test]
    fn a_torn_record_is_cut_off_wherever_it_was_torn() {
        let torn = br#"{"time":"2024-02-29T13:07:09Z","name":"x"}"#;
        for len in 1..=torn.len() {
            let before = [b"whole\n", &torn[..len]].concat();
            assert_eq!(mended(&before, Format::Json), b"whole\n", "torn after {len} bytes");
            assert_eq!(mended(&torn[..len], Format::Json), b"");
        }
        let long = [b"whole\n{\"time\":".as_slice(), &vec![b'x'; 200_000]].concat();
        assert_eq!(mended(&long, Format::Json), b"whole\n");
    }

    #[test]
    fn a_last_line_that_is_not_ours_is_kept_and_ended() {
        for before in [b"whole\nnotes".as_slice(), b"notes", br#"{"tame":1"#] {
            assert_eq!(mended(before, Format::Json), [before, b"\n"].concat());
        }
        assert_eq!(mended(br#"{"time":1"#, Format::Text), b"{\"time\":1\n");
    }

    #[test]
    fn a_last_line_longer_than_any_record_is_kept_and_ended() {
        let mut before = br#"{"time":"#.to_vec();
        before.resize(usize::try_from(FARTHEST).unwrap() + 1, b'x');
        let after = mended(&before, Format::Json);
        assert_eq!(after.len(), before.len() + 1);
        assert!(after.ends_with(b"x\n"));
    }
}
