//! `tributary profile` of agents of a running daemon that send calls or spans.

use std::net::SocketAddr;

use crate::live::binary::{Binary, Ended, tributary};
use crate::live::{Daemon, until, within};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tributary::simulate::{self, AgentKind, Amount, Plan, Sent, bytefrog, datadog, endless, zico};

/// A daemon with one listener of a protocol, and the address of its admin endpoint.
async fn daemon(protocol: &str, options: &str) -> (Daemon, SocketAddr) {
    let listener = format!("[listeners.test]\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n{options}\n");
    let daemon = Daemon::start(&format!("[admin]\nlisten = \"127.0.0.1:0\"\n{listener}")).await;
    let admin = daemon.server.admin_address().unwrap();
    (daemon, admin)
}

/// Simulated agents that send until they are stopped.
struct Running {
    end: oneshot::Sender<()>,
    sent: JoinHandle<std::io::Result<Sent>>,
}

impl Running {
    fn start(agent: AgentKind, daemon: &Daemon) -> Running {
        let to = daemon.server.address().unwrap();
        let plan = Plan { to, amount: Amount::Events(u64::MAX), rate: Some(2_000), connections: 1, seed: 3 };
        let (end, ended) = oneshot::channel::<()>();
        let stop = async {
            let _ = ended.await;
        };
        Running { end, sent: tokio::spawn(simulate::run(agent, plan, stop)) }
    }

    async fn end(self) {
        let _ = self.end.send(());
        within("the agents end", self.sent).await.unwrap().unwrap();
    }
}

/// The agents that the daemon has seen.
async fn agents(admin: SocketAddr) -> Vec<Value> {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    stream.write_all(b"GET /agents HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    within("a response", stream.read_to_string(&mut text)).await.unwrap();
    serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// The id of an agent with a resource, once the daemon has seen one.
async fn id(daemon: &Daemon, admin: SocketAddr) -> String {
    until("an event", || (daemon.counters().events() > 10).then_some(())).await;
    let agents = agents(admin).await;
    let agent = agents.iter().find(|agent| agent["resource"].as_object().is_some_and(|resource| !resource.is_empty()));
    agent.unwrap_or_else(|| panic!("{agents:?}"))["id"].as_str().unwrap().to_owned()
}

async fn profile(admin: SocketAddr, id: &str, arguments: &[&str]) -> Ended {
    let admin = admin.to_string();
    let profile = Binary::start(tributary(&[&["profile", id, "--admin", &admin], arguments].concat()));
    spawn_blocking(move || profile.end()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_spans_of_running_agents_are_summed_up() {
    let java = AgentKind::Bytefrog(bytefrog::Options::default());
    let zorka = AgentKind::Zico(zico::ZicoDialect::default());
    let spans = AgentKind::Datadog(datadog::DatadogDialect::default());
    for (agent, options, function, what) in [
        (java, "", "shop.", "entries and exits"),
        (java, "calls = \"spans\"", "shop.", "spans"),
        (java, "calls = \"profile\"\nprofile_interval = \"1s\"", "shop.", "samples of calls"),
        (zorka, "", "shop.", "spans"),
        (zorka, "records = \"profile\"\nprofile_interval = \"1s\"", "shop.", "samples of calls"),
        (spans, "", "web.request GET", "spans"),
    ] {
        let (daemon, admin) = daemon(agent.protocol().as_str(), options).await;
        let running = Running::start(agent, &daemon);
        let ended = profile(admin, &id(&daemon, admin).await, &["--for", "1s", "--as", "top"]).await;
        assert_eq!(ended.code, Some(0), "{what}: {}", ended.stderr);
        assert!(ended.stdout.contains(function) && ended.stderr.contains(what), "{}{}", ended.stdout, ended.stderr);
        running.end().await;
        daemon.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_profiled_is_an_error() {
    let (daemon, admin) = daemon("endless", "quarantine.dir = \"\"").await;
    let running = Running::start(AgentKind::Endless(endless::AgentVersion::default()), &daemon);
    let id = id(&daemon, admin).await;
    let ended = profile(admin, &id, &["--for", "1s"]).await;
    assert_eq!((ended.code, ended.last_words()), (Some(1), "tributary: endless has no profiles"));
    let admin = admin.to_string();
    let heap = Binary::start(tributary(&["heap", &id, "--admin", &admin]));
    let ended = spawn_blocking(move || heap.end()).await.unwrap();
    assert!(ended.last_words().contains("endless has no heap dumps"), "{}", ended.stderr);
    running.end().await;
    daemon.stop().await;
}
