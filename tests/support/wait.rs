//! Waiting for a fact: the one loop for tasks and the one for threads. No other code of the tests pauses and looks again.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "no test binary uses all of it")]

use std::thread;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

/// The pause after the first call. Each further one is twice as long, up to the longest. None is shorter than the call before it, so
/// that a wait takes at most half of a processor.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// Calls `ask` until it returns a value. `None`: the time is over.
pub async fn poll<T>(limit: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let asking = async {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            if let Some(answer) = ask().await {
                return answer;
            }
            sleep(pause.max(began.elapsed())).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    };
    timeout(limit, asking).await.ok()
}

/// The same, blocking this thread.
pub fn poll_blocking<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() > deadline {
            return None;
        }
        thread::sleep(pause.max(began.elapsed()));
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}
