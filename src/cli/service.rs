//! The service manager (systemd): notifies it when the daemon is ready, reloads, makes progress and stops, and takes over
//! the sockets that it listens on for the daemon. Without a service manager all of this does nothing.
//!
//! Nothing here waits for the service manager: one that does not read its socket must not stop the thread that answers
//! signals and the admin endpoint.

use std::env;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{debug, error, info, warn};

use crate::health::Health;
use tributary_memory::log_throttle::LogThrottle;

/// The environment variable with the address of the service manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";
/// Notifications that may wait for a service manager that does not read its socket. Further ones are dropped.
const MOST_WAITING: usize = 16;
/// Pauses between the tries to send one that was not taken: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

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

/// The service manager of this process, if it has one.
pub(super) struct Manager(Option<(Arc<Socket>, mpsc::Sender<String>)>);

impl Manager {
    /// The one that the environment names. A task of the current runtime sends the notifications, in order; one that is not
    /// taken is tried again.
    pub(super) fn from_environment() -> Manager {
        let Some(name) = env::var_os(SOCKET).filter(|name| !name.is_empty()) else { return Manager(None) };
        let socket = match Socket::open(&name) {
            Ok(socket) => Arc::new(socket),
            Err(error) => {
                warn!(socket = %name.display(), %error, "cannot notify the service manager (NOTIFY_SOCKET)");
                return Manager(None);
            }
        };
        let (sender, waiting) = mpsc::channel(MOST_WAITING);
        tokio::spawn(send_all(socket.clone(), waiting));
        Manager(Some((socket, sender)))
    }

    /// The daemon serves.
    pub(super) fn ready(&self) {
        self.notify(&[NotifyState::Ready]);
    }

    /// The daemon reads its configuration again; [`Manager::ready`] follows.
    pub(super) fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.notify(&[NotifyState::Reloading, now]),
            Err(error) => debug!(%error, "cannot read the clock for the service manager"),
        }
    }

    /// The daemon stops.
    pub(super) fn stopping(&self) {
        self.notify(&[NotifyState::Stopping]);
    }

    /// Feeds the watchdog (`WatchdogSec`) while the daemon makes progress. A daemon that receives and writes nothing is
    /// killed, however busy it is. A sink that reports that it cannot write does not count.
    pub(super) fn feed_watchdog(&self, health: Arc<Health>) -> impl Future<Output = ()> + Send + use<> {
        let socket = self.0.as_ref().map(|(socket, _)| socket.clone());
        async move {
            let (Some(socket), Some(limit)) = (socket, sd_notify::watchdog_enabled()) else { return };
            let mut ticks = interval((limit / 3).max(Duration::from_millis(1)));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                match health.hangs() {
                    // The next tick is the next try.
                    None => drop(socket.send(&message(&[NotifyState::Watchdog]))),
                    Some(why) => error!(why, "no progress; the watchdog is not notified"),
                }
            }
        }
    }

    fn notify(&self, states: &[NotifyState<'_>]) {
        let Some((_, sender)) = &self.0 else { return };
        if let Err(error) = sender.try_send(message(states)) {
            let notification = error.into_inner();
            warn!(
                notification = notification.trim_end(),
                "the service manager reads no notification; this one is dropped"
            );
        }
    }
}

fn message(states: &[NotifyState<'_>]) -> String {
    states.iter().map(|state| format!("{state}\n")).collect()
}

/// Sends notifications in order. One that is not taken is tried again until it is.
async fn send_all(socket: Arc<Socket>, mut waiting: mpsc::Receiver<String>) {
    while let Some(notification) = waiting.recv().await {
        let mut pause = PAUSES.0;
        while socket.send(&notification).is_err() {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        if pause > PAUSES.0 {
            info!(notification = notification.trim_end(), "the service manager has taken the notification");
        }
    }
}

/// A socket that never blocks, and the address of the service manager's.
struct Socket {
    socket: UnixDatagram,
    address: SocketAddr,
    /// For the log line that a notification is not taken.
    failing: LogThrottle,
}

impl Socket {
    /// # Errors
    /// The name is no address: `/PATH` of a file, or `@NAME` of an abstract socket.
    fn open(name: &OsStr) -> io::Result<Socket> {
        let address = match name.as_bytes() {
            [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name)?,
            [b'/', ..] => SocketAddr::from_pathname(Path::new(name))?,
            _ => {
                let why = "it is neither the absolute path of a socket nor @NAME of an abstract one";
                return Err(io::Error::new(ErrorKind::InvalidInput, why));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Socket { socket, address, failing: LogThrottle::default() })
    }

    /// Sends a notification. A failure is logged.
    fn send(&self, notification: &str) -> io::Result<()> {
        let sent = self.socket.send_to_addr(notification.as_bytes(), &self.address).map(drop);
        if let Err(error) = &sent
            && let Some(suppressed) = self.failing.permit()
        {
            let notification = notification.trim_end();
            let why = match error.kind() {
                ErrorKind::WouldBlock => "its socket is full, since it does not read it".to_owned(),
                _ => error.to_string(),
            };
            warn!(
                notification,
                error = why,
                suppressed,
                "the service manager does not take a notification; trying again"
            );
        }
        sent
    }
}
