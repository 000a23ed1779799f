//! A listener that speaks HTTP/1.1 and HTTP/2 on one port.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

mod client;
mod limits;
mod listener;
mod requests;
mod stops;

use std::future::Future;
use std::time::Duration;

use tokio::time::{sleep, timeout};

/// The preface of HTTP/2.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The time limit for anything that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("it takes too long: {what}"))
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    within(what, async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
