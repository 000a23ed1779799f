//! The admin endpoint of a running daemon, asked over real sockets.

use std::future::pending;
use std::net::SocketAddr;

use crate::live::{Daemon, connect, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tributary::config::Config;
use tributary::server::Server;
use tributary::simulate::{Agent, Amount, Plan, bytefrog, datadog, endless, rbkit, zico};

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// The status, the head in small letters, and the body of an answer.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

async fn ask(address: SocketAddr, method: &str, path: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    within("an answer", stream.read_to_string(&mut text)).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

async fn get(server: &Server, path: &str) -> Answer {
    ask(server.admin_address().unwrap(), "GET", path, "").await
}

async fn tell(server: &Server, agent: &str, command: &str) -> Answer {
    let path = format!("/agents/{agent}/commands/{command}");
    ask(server.admin_address().unwrap(), "POST", &path, "").await
}

/// The value of a series in a scrape.
fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {series} in\n{metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn series(metrics: &str) -> usize {
    metrics.lines().filter(|line| !line.starts_with('#')).count()
}

#[tokio::test]
async fn a_healthy_daemon_lives_is_ready_and_shows_its_books() {
    let daemon = Daemon::start(&format!("{ADMIN}{}", crate::live::listener(""))).await;
    let server = &daemon.server;
    for (path, words) in [("/livez", "alive\n"), ("/readyz", "ready\n")] {
        let answer = get(server, path).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, words));
    }
    let before = get(server, "/metrics").await;
    assert_eq!(before.status, 200);
    assert!(before.head.contains("content-type: application/openmetrics-text"), "{}", before.head);
    assert!(before.body.ends_with("# EOF\n"));
    // Bytes that are no span, from many peers: they are counted, and no peer gets a series.
    for _ in 0..50 {
        connect(server).await.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    }
    daemon
        .until_totals("all have come and gone", |counters| counters.connections == 50 && counters.connections_open == 0)
        .await;
    let after = get(server, "/metrics").await.body;
    let labels = "listener=\"test\",protocol=\"datadog\"";
    assert_eq!(value(&after, &format!("tributary_received_bytes_total{{{labels}}}")), 50.0 * 18.0);
    assert_eq!(value(&after, &format!("tributary_lost_bytes_total{{{labels},reason=\"malformed\"}}")), 50.0 * 18.0);
    assert_eq!(value(&after, &format!("tributary_events_total{{{labels},kind=\"loss\"}}")), 50.0);
    assert_eq!(value(&after, &format!("tributary_unaccounted_bytes{{{labels}}}")), 0.0);
    assert_eq!(value(&after, &format!("tributary_connections{{{labels}}}")), 0.0);
    assert_eq!(value(&after, "tributary_sink_queue_batches{sink=\"memory\"}"), 0.0);
    assert!(value(&after, "process_resident_memory_bytes") > 1e6);
    assert!(after.contains("tributary_build_info{version="));
    assert_eq!(series(&before.body), series(&after));
    daemon.stop().await;
}

#[tokio::test]
async fn what_is_not_there_is_said_clearly() {
    let daemon = Daemon::start(&format!("{ADMIN}{}", crate::live::listener(""))).await;
    let address = daemon.server.admin_address().unwrap();
    for (method, path, status, words) in [
        ("GET", "/", 404, "no such path"),
        ("GET", "/metrics/", 404, "no such path"),
        ("POST", "/metrics", 405, "takes GET"),
        ("DELETE", "/agents", 405, "takes GET"),
        ("GET", "/agents/a:0/commands/start", 405, "takes POST"),
        ("POST", "/agents/nobody:0/commands/start", 404, "no such agent"),
        ("POST", "/agents/test/commands/start", 404, "no such agent"),
    ] {
        let answer = ask(address, method, path, "").await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        assert!(answer.body.contains(words), "{method} {path}: {}", answer.body);
    }
    assert_eq!(ask(address, "GET", "/agents", "").await.body, "[]\n");
    assert!(ask(address, "HEAD", "/metrics", "").await.body.is_empty());
    daemon.stop().await;
}

#[tokio::test]
async fn a_token_is_wanted_for_all_but_the_probes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let admin = format!("{ADMIN}token_file = {:?}\n", file.display().to_string());
    let daemon = Daemon::start(&format!("{admin}{}", crate::live::listener(""))).await;
    let address = daemon.server.admin_address().unwrap();
    let with = |token: &str| format!("authorization: Bearer {token}\r\n");
    assert_eq!(ask(address, "GET", "/livez", "").await.status, 200);
    assert_eq!(ask(address, "GET", "/readyz", "").await.status, 200);
    for path in ["/metrics", "/agents", "/nowhere"] {
        let refused = ask(address, "GET", path, "").await;
        assert_eq!(refused.status, 401);
        assert!(refused.head.contains("www-authenticate: bearer"));
        for wrong in ["", "s3cre", "s3cret2", "S3CRET"] {
            assert_eq!(ask(address, "GET", path, &with(wrong)).await.status, 401, "{wrong}");
        }
    }
    assert_eq!(ask(address, "GET", "/metrics", &with("s3cret")).await.status, 200);
    for (scheme, status) in [("bearer", 200), ("BEARER", 200), ("Basic", 401), ("Bearers", 401), ("Bea", 401)] {
        let header = format!("authorization: {scheme} s3cret\r\n");
        assert_eq!(ask(address, "GET", "/metrics", &header).await.status, status, "{scheme}");
    }
    daemon.stop().await;
}

#[test]
fn beyond_loopback_it_wants_a_token_and_tls() {
    let error = |admin: &str| Config::parse("t.toml", admin).unwrap_err().to_string();
    for admin in ["[admin]\nlisten = \"0.0.0.0:9464\"", "[admin]\nlisten = \"[::]:1\"\ntoken_file = \"t\""] {
        assert!(error(admin).contains("beyond loopback it needs `token_file` and `tls`"), "{}", error(admin));
    }
    let both = "[admin]\nlisten = \"0.0.0.0:1\"\ntoken_file = \"t\"\ntls = { cert = \"c\", key = \"k\" }";
    assert!(Config::parse("t.toml", both).is_ok());
    assert_eq!(Config::parse("t.toml", "[admin]\nlisten = \"\"").unwrap().config.admin.listen, None);
}

#[tokio::test]
async fn an_address_in_use_is_an_error_only_where_it_was_asked_for() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = format!("[admin]\nlisten = \"{}\"\n", taken.local_addr().unwrap());
    let mut config = crate::live::config(&format!("{admin}{}", crate::live::listener("")));
    let error = Server::start(&config).await.unwrap_err().to_string();
    assert!(error.contains("cannot start the admin endpoint on 127.0.0.1:"), "{error}");
    config.admin.is_default = true;
    let server = Server::start(&config).await.unwrap();
    assert_eq!(server.admin_address(), None);
    server.stop().await;
}

#[tokio::test]
async fn ruby_processes_are_listed_and_commanded() {
    let options = rbkit::Options {
        publish: ([127, 0, 0, 1], 0).into(),
        request: ([127, 0, 0, 1], 0).into(),
        ..Default::default()
    };
    let process = rbkit::Process::bind(options).await.unwrap();
    let rbkit::Options { publish, request, .. } = process.options();
    let toml = format!(
        "{ADMIN}[listeners.ruby]\nprotocol = \"rbkit\"\n\
         agents = [{{ publish = \"{publish}\", request = \"{request}\" }}, {{ request = \"127.0.0.1:1\" }}]\n"
    );
    let daemon = Daemon::start(&toml).await;
    let plan = rbkit::Plan { amount: Amount::Events(500), rate: None, seed: 1 };
    let running = tokio::spawn(process.run(plan, pending()));
    let agents = || async {
        let body = get(&daemon.server, "/agents").await.body;
        serde_json::from_str::<serde_json::Value>(&body).unwrap()
    };
    daemon.until_named("rbkit.handshake").await;
    let first = within("it is subscribed", async {
        loop {
            let first = agents().await[0].clone();
            if first["subscribed"] == true {
                return first;
            }
        }
    })
    .await;
    assert_eq!(first["id"], "ruby:0");
    assert_eq!((&first["reachable"], &first["healthy"]), (&true.into(), &true.into()));
    assert!(first["pid"].is_u64());
    assert_eq!(first["resource"]["process.pid"], first["pid"]);
    assert!(first["since"].is_string() && first["events"].as_u64() > Some(0), "{first}");
    assert_eq!(agents().await[1]["reachable"], false);

    let refused = tell(&daemon.server, "ruby:1", "handshake").await;
    assert_eq!((refused.status, refused.body.as_str()), (409, "there is no connection to the process\n"));
    assert_eq!(tell(&daemon.server, "ruby:2", "handshake").await.status, 404);
    let unknown = tell(&daemon.server, "ruby:0", "dance").await;
    assert!(unknown.status == 404 && unknown.body.contains("trigger_gc"), "{}", unknown.body);
    let done = tell(&daemon.server, "ruby:0", "start_memory_profile").await;
    assert_eq!((done.status, done.body.as_str()), (200, "received\n"));
    let report = within("the process has said all", running).await.unwrap().unwrap();
    assert_eq!(report.received.requests["start_memory_profile"], 1);
    assert_eq!(report.received.faults(), 0);
    daemon.stop().await;
}

#[tokio::test]
async fn traced_programs_are_listed_and_a_harmful_command_is_refused() {
    let toml = format!(
        "{ADMIN}[listeners.java]\nprotocol = \"bytefrog\"\nlisten = \"127.0.0.1:0\"\nstart = \"on_command\"\n\
         heartbeat_interval = \"100ms\"\n"
    );
    let daemon = Daemon::start(&toml).await;
    let to = daemon.server.address().unwrap();
    let agent = tokio::spawn(bytefrog::run_alone(to, bytefrog::Options::default(), 5, 300, pending()));
    let connected = daemon.until_named("bytefrog.agent.connected").await;
    let run = &connected["resource"]["bytefrog.run.id"];
    let id = format!("java:{run}");
    let agents: serde_json::Value = serde_json::from_str(&get(&daemon.server, "/agents").await.body).unwrap();
    assert_eq!((&agents[0]["id"], &agents[0]["started"]), (&id.as_str().into(), &false.into()));
    assert_eq!((&agents[0]["resource"]["bytefrog.run.id"], &agents[0]["losses"]), (run, &0.into()));
    let refused = tell(&daemon.server, &id, "stop").await;
    assert_eq!(refused.status, 409);
    assert!(refused.body.contains("not started yet"), "{}", refused.body);
    assert_eq!(tell(&daemon.server, "java:126", "start").await.status, 404);
    // The agent takes commands once its configuration is there.
    let status = within("it may start", async {
        loop {
            let answer = tell(&daemon.server, &id, "start").await;
            if answer.status != 409 {
                return answer.status;
            }
        }
    })
    .await;
    assert_eq!(status, 202);
    let (sent, _) = within("the program ends", agent).await.unwrap();
    assert!(sent.unwrap().events > 300);
    until("the run is over", || (daemon.counters().connections_open == 0).then_some(())).await;
    daemon.stop().await;
}

#[tokio::test]
async fn everybody_who_was_heard_is_listed_with_what_they_said_and_how_much() {
    let listen = "listen = \"127.0.0.1:0\"";
    let toml = format!(
        "{ADMIN}[listeners.spans]\nprotocol = \"datadog\"\n{listen}\n\
         [listeners.desktops]\nprotocol = \"endless\"\n{listen}\n[listeners.zorka]\nprotocol = \"zico\"\n{listen}\n"
    );
    let daemon = Daemon::start(&toml).await;
    let simulated = [
        ("spans", Agent::Datadog(datadog::Dialect::default())),
        ("desktops", Agent::Endless(endless::Version::default())),
        ("zorka", Agent::Zico(zico::Dialect::default())),
    ];
    for (listener, agent) in simulated {
        let bound = daemon.server.addresses().iter().find(|bound| &*bound.name == listener);
        let to = bound.unwrap().address;
        let plan = Plan { to, amount: Amount::Events(300), rate: None, connections: 2, seed: 7 };
        within(listener, tributary::simulate::run(agent, plan, pending())).await.unwrap();
    }
    until("everybody has gone", || {
        let totals = daemon.server.accounting().totals();
        totals.listeners.iter().all(|one| one.connections_open == 0).then_some(())
    })
    .await;
    let agents: Vec<serde_json::Value> = serde_json::from_str(&get(&daemon.server, "/agents").await.body).unwrap();
    for totals in daemon.server.accounting().totals().listeners {
        let heard: Vec<_> = agents.iter().filter(|agent| agent["listener"] == totals.name.as_str()).collect();
        let sum = |field: &str| heard.iter().map(|agent| agent[field].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("events"), sum("losses")), (totals.events(), 0), "{heard:?}");
        assert!(totals.events() >= 300);
        for agent in &heard {
            assert_eq!(agent["protocol"], totals.protocol.as_str());
            assert!(agent["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{agent}");
            assert!(agent["since"].as_str().unwrap() <= agent["last_seen"].as_str().unwrap(), "{agent}");
        }
        let told = ["zico.session.id", "endless.image"];
        let names = heard.iter().filter(|agent| told.iter().any(|key| agent["resource"][key].is_string())).count();
        assert!(names > 0 || totals.name == "spans", "{heard:?}");
    }
    daemon.stop().await;
}
