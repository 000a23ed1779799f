//! Attackers: tasks that connect from addresses of their own, until they are stopped.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::site::Addresses;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// The pause of an attacker that cannot connect: one without a pause would only slow the test down.
const CONNECT_PAUSE: Duration = Duration::from_millis(5);

/// All attackers of a test.
pub(super) struct Attackers {
    addresses: Addresses,
    steps: Steps,
    tasks: JoinSet<()>,
}

/// Counts what the attackers have done.
#[derive(Clone, Default)]
pub(super) struct Steps(Arc<AtomicU64>);

impl Steps {
    pub(super) fn add(&self, steps: u64) {
        self.0.fetch_add(steps, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Attackers {
    pub(super) fn new(addresses: &Addresses) -> Attackers {
        Attackers { addresses: addresses.clone(), steps: Steps::default(), tasks: JoinSet::new() }
    }

    pub(super) fn steps(&self) -> Steps {
        self.steps.clone()
    }

    /// The address of a listener, or of the endpoint `admin`.
    pub(super) fn target(&self, name: &str) -> SocketAddr {
        self.addresses[name]
    }

    /// The addresses of all listeners and of the admin endpoint.
    pub(super) fn targets(&self) -> Vec<SocketAddr> {
        self.addresses.values().copied().collect()
    }

    /// Starts an attacker.
    pub(super) fn spawn(&mut self, attacker: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(attacker);
    }

    pub(super) async fn until_steps(&self, steps: u64) {
        let what = format!("{steps} steps of the attack");
        crate::live::until(&what, || (self.steps.get() >= steps).then_some(())).await;
    }

    /// Ends all attackers, whose connections are closed. Returns the number of their steps.
    pub(super) async fn stop(mut self) -> u64 {
        self.tasks.abort_all();
        while let Some(ended) = self.tasks.join_next().await {
            assert!(ended.is_ok() || ended.is_err_and(|error| error.is_cancelled()), "an attacker has failed");
        }
        self.steps.get()
    }
}

/// Connects from 127.0.0.`last`, from 2 on.
pub(super) async fn connect(last: u8, to: SocketAddr) -> io::Result<TcpStream> {
    assert!(last >= 2, "honest agents have 127.0.0.1");
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into())?;
    let stream = match socket.connect(to).await {
        Ok(stream) => stream,
        Err(error) => {
            tokio::time::sleep(CONNECT_PAUSE).await;
            return Err(error);
        }
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}
