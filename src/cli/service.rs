//! The service manager (systemd): notifies it when the daemon is ready, reloads, makes progress and stops, and takes over
//! the sockets that it listens on for the daemon. Without a service manager all of this does nothing.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, error};

use crate::health::Health;

/// The sockets that were handed over (`LISTEN_FDS`).
///
/// # Errors
/// One is no TCP socket that listens.
pub(super) fn sockets() -> io::Result<Vec<TcpListener>> {
    let mut given = ListenFd::from_env();
    let mut sockets = Vec::new();
    for index in 0..given.len() {
        let socket = given.take_tcp_listener(index).map_err(|error| {
            io::Error::other(format!("cannot use socket {index} of the service manager (LISTEN_FDS): {error}"))
        })?;
        sockets.extend(socket);
    }
    Ok(sockets)
}

/// The daemon serves.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// The daemon reads its configuration again; [`ready`] follows.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => debug!(%error, "cannot read the clock for the service manager"),
    }
}

/// The daemon stops.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Feeds the watchdog (`WatchdogSec`) while the daemon makes progress. A daemon that receives and writes nothing is killed,
/// however busy it is. A sink that reports that it cannot write does not count.
pub(super) async fn feed_watchdog(health: Arc<Health>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = interval((limit / 3).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match health.hangs() {
            None => notify(&[NotifyState::Watchdog]),
            Some(why) => error!(why, "no progress; the watchdog is not notified"),
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!(%error, "cannot notify the service manager");
    }
}
