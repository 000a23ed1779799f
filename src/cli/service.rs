//! The manners of a service: says to systemd when it is ready, reloads, makes progress and stops, and takes over the
//! sockets that systemd listens on for it. Without systemd none of this does anything.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, error, warn};

use crate::health::Health;

/// The sockets that were handed over (`LISTEN_FDS`).
pub(super) fn sockets() -> Vec<TcpListener> {
    let mut given = ListenFd::from_env();
    let mut sockets = Vec::new();
    for index in 0..given.len() {
        match given.take_tcp_listener(index) {
            Ok(Some(socket)) => sockets.push(socket),
            Ok(None) => {}
            Err(error) => warn!("a socket that was handed over is of no use: {error}"),
        }
    }
    sockets
}

/// It serves.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// It reads its configuration again; [`ready`] follows.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => debug!("there is no clock to tell systemd of: {error}"),
    }
}

/// It stops.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Feeds the watchdog (`WatchdogSec`) for as long as the daemon makes progress: one that takes in and gives nothing out is
/// to be killed, however busy it is. A sink that says that it cannot write does not hang.
pub(super) async fn feed_watchdog(health: Arc<Health>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = interval((limit / 3).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match health.hangs() {
            None => notify(&[NotifyState::Watchdog]),
            Some(why) => error!("no progress: {why}; the watchdog is not told that all is well"),
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!("systemd cannot be told: {error}");
    }
}
