//! A daemon with an admin endpoint, and what agents send to it.

use std::future::pending;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tributary::pipeline::accounting::ListenerTotals;
use tributary::protocol::Protocol;
use tributary::simulate::{self, AgentKind, Amount, Plan, Sent};

use crate::live::{Daemon, Stopped, until, within};

/// The configuration of a listener for each protocol whose agents connect.
pub(crate) const LISTENERS: &str = "\
[listeners.spans]
protocol = \"datadog\"
listen = \"127.0.0.1:0\"
[listeners.java]
protocol = \"bytefrog\"
listen = \"127.0.0.1:0\"
calls = \"both\"
coverage = true
[listeners.desktops]
protocol = \"endless\"
listen = \"127.0.0.1:0\"
[listeners.zorka]
protocol = \"zico\"
listen = \"127.0.0.1:0\"
";

/// A running daemon.
pub(crate) struct World {
    pub(crate) daemon: Daemon,
}

impl World {
    /// A daemon with these listeners, an admin endpoint with these options, and a view that keeps everything: with its usual
    /// share of a processor it would skip some of what arrives at once.
    pub(crate) async fn start(admin: &str, listeners: &str) -> World {
        let view = "[view]\nmemory = \"128MiB\"\ncpu_percent = 100\n";
        let toml = format!(
            "[limits]\nmemory_bytes = \"512MiB\"\n[admin]\nlisten = \"127.0.0.1:0\"\n{admin}\n{view}{listeners}"
        );
        World { daemon: Daemon::start(&toml).await }
    }

    /// The address of the page at this view.
    pub(crate) fn page(&self, view: &str) -> String {
        format!("http://{}/#/{view}", self.admin())
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.daemon.server.admin_address().unwrap()
    }

    pub(crate) fn address(&self, listener: &str) -> SocketAddr {
        self.daemon.server.addresses().iter().find(|bound| &*bound.name == listener).unwrap().address
    }

    /// Lets simulated agents send this many events to a listener, over two connections.
    pub(crate) async fn send(&self, listener: &str, agent: AgentKind, events: u64) -> Sent {
        let to = self.address(listener);
        let plan = Plan { to, amount: Amount::Events(events), rate: None, connections: 2, seed: 7 };
        let sent = within(listener, simulate::run(agent, plan, pending())).await.unwrap();
        self.settle().await;
        sent
    }

    /// Sends bytes to a listener on a connection of its own, which stays open.
    pub(crate) async fn send_bytes(&self, listener: &str, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address(listener)).await.unwrap();
        within("the bytes are accepted", stream.write_all(bytes)).await.unwrap();
        stream
    }

    /// Waits until every connection of an agent is closed and every event written. Those that the daemon opens stay.
    pub(crate) async fn settle(&self) {
        until("everything is written", || {
            let totals = self.daemon.server.accounting().totals();
            let is_closed = |one: &ListenerTotals| one.connections_open == 0 || one.protocol == Protocol::Rbkit;
            (totals.listeners.iter().all(is_closed) && totals.sinks.iter().all(|sink| sink.in_flight() == 0))
                .then_some(())
        })
        .await;
    }

    /// Waits until a listener has counted this many events of datadog agents and the like.
    pub(crate) async fn until_events(&self, listener: &str, events: u64) {
        until("events are counted", || {
            let totals = self.daemon.server.accounting().totals();
            let found = totals.listeners.iter().find(|one| one.name == listener)?.events();
            (found >= events).then_some(())
        })
        .await;
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        self.daemon.events()
    }

    pub(crate) async fn stop(self) -> Stopped {
        self.daemon.stop().await
    }
}
