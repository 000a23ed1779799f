//! File descriptors: connections do not take those that files, sinks and the admin endpoint need.

use std::sync::{Arc, LazyLock};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Descriptors that no connection of a listener takes; at a low limit it is half of them.
const RESERVED: u64 = 128;

/// One permit for each connection that the process may accept.
static CONNECTIONS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(for_connections(getrlimit(Resource::Nofile).current))));

/// How many of `limit` descriptors connections may take. `None`: there is no limit.
fn for_connections(limit: Option<u64>) -> usize {
    let connections = limit.map_or(u64::MAX, |limit| limit - RESERVED.min(limit / 2));
    usize::try_from(connections).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)
}

/// Raises the limit of this process to the highest that the system allows it. Programs that use `select` need the low limit
/// with which shells start processes; this one does not. It is called before connections are accepted.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If the system refuses, the process keeps the limit that it has.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The permit for one connection. When none is left, it calls `wait` and waits until a connection has ended.
pub(super) async fn permit(wait: impl FnOnce()) -> OwnedSemaphorePermit {
    if let Ok(permit) = CONNECTIONS.clone().try_acquire_owned() {
        return permit;
    }
    wait();
    CONNECTIONS.clone().acquire_owned().await.expect("never closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_to_others() {
        assert_eq!([64, 256, 1024].map(|limit| for_connections(Some(limit))), [32, 128, 896]);
        assert_eq!(for_connections(None), Semaphore::MAX_PERMITS);
    }
}
