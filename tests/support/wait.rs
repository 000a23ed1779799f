//! Waiting for a fact: a call is repeated until it returns a value. No other code of the tests pauses and looks again.

use std::thread;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

/// The pause after the first call. Each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// The pauses between the calls. None is shorter than the call before it, so that a wait takes at most half of a processor.
pub struct Pauses {
    pause: Duration,
    /// When the last pause ended.
    ended: Instant,
}

impl Pauses {
    pub fn new() -> Pauses {
        Pauses { pause: FIRST_PAUSE, ended: Instant::now() }
    }

    pub async fn next(&mut self) {
        sleep(self.pause.max(self.ended.elapsed())).await;
        self.advance();
    }

    pub fn next_blocking(&mut self) {
        thread::sleep(self.pause.max(self.ended.elapsed()));
        self.advance();
    }

    fn advance(&mut self) {
        *self = Pauses { pause: (2 * self.pause).min(LONGEST_PAUSE), ended: Instant::now() };
    }
}

/// Calls `ask` until it returns a value. `None`: the time is over.
pub async fn poll<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let asking = async {
        let mut pauses = Pauses::new();
        loop {
            match ask() {
                Some(answer) => return answer,
                None => pauses.next().await,
            }
        }
    };
    timeout(limit, asking).await.ok()
}

/// The same with a call that waits, e.g. for a response.
pub async fn poll_async<T>(limit: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let asking = async {
        let mut pauses = Pauses::new();
        loop {
            match ask().await {
                Some(answer) => return answer,
                None => pauses.next().await,
            }
        }
    };
    timeout(limit, asking).await.ok()
}

/// The same as [`poll`], blocking this thread.
pub fn poll_blocking<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let (began, mut pauses) = (Instant::now(), Pauses::new());
    loop {
        match ask() {
            Some(answer) => return Some(answer),
            None if began.elapsed() > limit => return None,
            None => pauses.next_blocking(),
        }
    }
}
