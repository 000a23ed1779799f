//! The two clocks, read in one place.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::event::UnixNanos;
use crate::protocol::Now;

/// Gives sessions the time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// A clock whose [`Now::elapsed`] begins now.
    pub fn start() -> Self {
        Clock { started: Instant::now() }
    }

    /// The time on both clocks.
    pub fn now(&self) -> Now {
        Now { unix: unix_now(), elapsed: self.started.elapsed() }
    }

    /// The instant that [`Now::elapsed`] calls `elapsed`.
    pub(super) fn instant(&self, elapsed: Duration) -> tokio::time::Instant {
        (self.started + elapsed).into()
    }
}

/// The wall clock. A time before 1970 is 1970.
pub fn unix_now() -> UnixNanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixNanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
