//! The two clocks, read in one place.

use std::time::{Duration, Instant};

use tributary_protocol::Now;
use tributary_system::wall_clock;

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
        Now { unix: wall_clock::now(), elapsed: self.started.elapsed() }
    }

    /// The instant that [`Now::elapsed`] calls `elapsed`.
    pub(super) fn instant(&self, elapsed: Duration) -> tokio::time::Instant {
        (self.started + elapsed).into()
    }
}
