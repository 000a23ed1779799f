//! What stands between the time of an event and its kind: when it was observed. Events of one read have the same piece.

use super::time::TimeFormat;
use tributary_event::UnixNanos;

const PIECE: &[u8; 59] = b"\",\"observed_time\":\"1970-01-01T00:00:00.000000000Z\",\"kind\":\"";
/// Where the time is in the piece.
const TIME: std::ops::Range<usize> = 19..49;

/// The piece of the last event.
#[derive(Debug)]
pub(super) struct Observed {
    times: TimeFormat,
    at: UnixNanos,
    piece: [u8; PIECE.len()],
}

impl Default for Observed {
    fn default() -> Self {
        Observed { times: TimeFormat::default(), at: UnixNanos(0), piece: *PIECE }
    }
}

impl Observed {
    /// The piece behind a time, with the quote that ends it.
    #[inline]
    pub(super) fn after_text(&mut self, at: UnixNanos) -> &[u8; PIECE.len()] {
        if self.at != at {
            self.set(at);
        }
        &self.piece
    }

    /// The piece behind a time that is null.
    pub(super) fn after_null(&mut self, at: UnixNanos) -> &[u8] {
        &self.after_text(at)[1..]
    }

    #[inline(never)]
    fn set(&mut self, at: UnixNanos) {
        let mut time = Vec::new();
        self.times.push(&mut time, at);
        self.piece[TIME].copy_from_slice(&time);
        self.at = at;
    }
}
