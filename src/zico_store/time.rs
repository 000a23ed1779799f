//! Times in the file.

use tributary_event::UnixNanos;

/// A time as the file stores it: milliseconds since 1970.
pub(super) fn millis(at: UnixNanos) -> i64 {
    // Below 2^63 after the division.
    (at.0 / 1_000_000) as i64
}
