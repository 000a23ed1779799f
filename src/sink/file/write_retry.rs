//! A file that cannot be written: whether that can pass, and when to try again.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use tributary_sink::ActionError;

/// Pauses between two tries: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Permission that is refused this many times in a row, over about 10 seconds, counts as permanent.
const MAX_REFUSALS: u32 = 8;
/// Linux's ELOOP, which has no stable `ErrorKind`: too many symbolic links.
const ELOOP: i32 = 40;

/// The state of a file whose last write failed.
#[derive(Debug)]
pub(super) struct WriteRetry {
    tries: u32,
    next_try: Instant,
    is_permanent: bool,
    fault: String,
}

impl WriteRetry {
    /// After a failed try; `before` is the state of the try before that, if that failed, too.
    pub(super) fn after(before: Option<&WriteRetry>, fault: &ActionError) -> WriteRetry {
        let tries = before.map_or(0, |before| before.tries) + 1;
        let pause = PAUSES.0.saturating_mul(1 << (tries - 1).min(16)).min(PAUSES.1);
        let is_permanent = is_permanent(&fault.source, tries);
        WriteRetry { tries, next_try: Instant::now() + pause, is_permanent, fault: fault.to_string() }
    }

    /// Whether a retry cannot help until the operator changes something: events for the file are dropped.
    pub(super) fn is_permanent(&self) -> bool {
        self.is_permanent
    }

    /// Whether it is time for the next try.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.next_try
    }
}

/// For the operator: the path, the reason of the system, and what becomes of the events.
impl fmt::Display for WriteRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effect = if self.is_permanent { "its events count as failed" } else { "its events wait in memory" };
        write!(f, "{}; {effect}, and it is tried again", self.fault)
    }
}

fn is_permanent(error: &io::Error, tries: u32) -> bool {
    use io::ErrorKind::{InvalidFilename, InvalidInput, IsADirectory, NotADirectory, PermissionDenied};
    match error.kind() {
        IsADirectory | NotADirectory | InvalidFilename | InvalidInput => true,
        PermissionDenied => tries >= MAX_REFUSALS,
        _ => error.raw_os_error() == Some(ELOOP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_path_is_permanent_at_the_first_try_and_a_full_disk_never() {
        for (errno, is_first, is_ever) in [
            (21, true, true),    // EISDIR
            (20, true, true),    // ENOTDIR
            (36, true, true),    // ENAMETOOLONG
            (40, true, true),    // ELOOP
            (13, false, true),   // EACCES
            (28, false, false),  // ENOSPC
            (122, false, false), // EDQUOT
            (5, false, false),   // EIO
            (30, false, false),  // EROFS
            (2, false, false),   // ENOENT
            (24, false, false),  // EMFILE
        ] {
            let fault = ActionError { action: "write x".to_owned(), source: io::Error::from_raw_os_error(errno) };
            let mut retry = WriteRetry::after(None, &fault);
            assert_eq!(retry.is_permanent(), is_first, "{fault}");
            for _ in 0..100 {
                retry = WriteRetry::after(Some(&retry), &fault);
            }
            assert_eq!(retry.is_permanent(), is_ever, "{fault}");
        }
    }
}
