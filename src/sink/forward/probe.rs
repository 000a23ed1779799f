//! Looks at destinations, for `check --deep`: on a runtime of their own, and for a limited time.

use std::io;
use std::time::Duration;

use tokio::runtime;
use tokio::time::timeout;

/// Runs a look to its end.
///
/// # Errors
/// Its own, and that it takes longer.
pub fn run<T>(time: Duration, look: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let looked = runtime.block_on(async { timeout(time, look).await });
    runtime.shutdown_background();
    looked
        .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, format!("there is no answer within {time:?}"))))
}
