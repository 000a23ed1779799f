//! The admin endpoint of a running daemon, over real sockets: its responses, its access control, and its limits.

use std::collections::BTreeSet;
use std::future::pending;
use std::net::SocketAddr;

use crate::live::binary::{Binary, run, tributary};
use crate::live::{Daemon, connect, listener, until, until_async, wire, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tributary::config::Config;
use tributary::server::Server;
use tributary::simulate::{AgentKind, Amount, Plan, bytefrog, datadog, endless, rbkit, zico};

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// A response: its status, its head in lower case, and its body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

async fn ask(address: SocketAddr, method: &str, path: &str, headers: &str) -> Answer {
    send(address, &format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\n{headers}\r\n")).await
}

/// Sends a request as it stands, on a connection of its own.
async fn send(address: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let last = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
    stream.write_all(last.as_bytes()).await.unwrap();
    let mut text = String::new();
    within("a response", stream.read_to_string(&mut text)).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

async fn get(server: &Server, path: &str) -> Answer {
    ask(server.admin_address().unwrap(), "GET", path, "").await
}

async fn tell(server: &Server, agent: &str, command: &str) -> Answer {
    let path = format!("/agents/{agent}/commands/{command}");
    ask(server.admin_address().unwrap(), "POST", &path, "x-tributary: 1\r\n").await
}

#[tokio::test]
async fn the_metrics_address_answers_probes_and_metrics_to_everyone_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let admin = format!("{ADMIN}metrics_listen = \"127.0.0.1:0\"\ntoken_file = {token:?}\n");
    let daemon = Daemon::start(&format!("{admin}{}", listener(""))).await;
    let address = daemon.server.metrics_address().unwrap();
    // As a Prometheus server asks that knows the machine by a name, and a page of another site.
    let foreign = "GET {path} HTTP/1.1\r\nhost: collector.example\r\norigin: http://evil.example\r\n\r\n";
    for (path, status) in
        [("/livez", 200), ("/readyz", 200), ("/metrics", 200), ("/agents", 404), ("/tap", 404), ("/", 404)]
    {
        assert_eq!(send(address, &foreign.replace("{path}", path)).await.status, status, "{path}");
    }
    assert_eq!(ask(address, "POST", "/agents/1/commands/stop", "x-tributary: 1\r\n").await.status, 404);
    assert_eq!(get(&daemon.server, "/metrics").await.status, 401);
    daemon.stop().await;
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
async fn a_healthy_daemon_is_alive_and_ready_and_shows_its_counters() {
    let daemon = Daemon::start(&format!("{ADMIN}{}", listener(""))).await;
    let server = &daemon.server;
    for (path, words) in [("/livez", "alive\n"), ("/readyz", "ready\n")] {
        let answer = get(server, path).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, words));
    }
    let admin = server.admin_address().unwrap().to_string();
    let probe = tokio::task::spawn_blocking(move || run(&["health", "--admin", &admin])).await.unwrap();
    assert_eq!((probe.code, probe.stdout.as_str()), (Some(0), "ready\n"));
    let before = get(server, "/metrics").await;
    assert_eq!(before.status, 200);
    assert!(before.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{}", before.head);
    let open_metrics =
        ask(server.admin_address().unwrap(), "GET", "/metrics", "accept: application/openmetrics-text\r\n").await;
    assert!(
        open_metrics.head.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{}",
        open_metrics.head
    );
    assert!(open_metrics.body.ends_with("# EOF\n") && !before.body.contains("# EOF"));
    // Invalid bytes from many peers are counted, and no peer gets a series.
    for _ in 0..50 {
        connect(server).await.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    }
    daemon
        .until_totals("all connections are closed", |counters| {
            counters.connections == 50 && counters.connections_open == 0
        })
        .await;
    // A client that speaks HTTP is answered before its loss is written.
    let after = within("nothing is queued", async {
        loop {
            let after = get(server, "/metrics").await.body;
            if value(&after, "tributary_sink_queue_batches{sink=\"memory\"}") == 0.0 {
                break after;
            }
        }
    })
    .await;
    let labels = "listener=\"test\",protocol=\"datadog\"";
    assert_eq!(value(&after, &format!("tributary_received_bytes_total{{{labels}}}")), 50.0 * 18.0);
    assert_eq!(value(&after, &format!("tributary_lost_bytes_total{{{labels},reason=\"malformed\"}}")), 50.0 * 18.0);
    assert_eq!(value(&after, &format!("tributary_events_total{{{labels},kind=\"loss\"}}")), 50.0);
    assert_eq!(value(&after, &format!("tributary_unaccounted_bytes{{{labels}}}")), 0.0);
    assert_eq!(value(&after, &format!("tributary_connections{{{labels}}}")), 0.0);
    assert_eq!(value(&after, "tributary_sink_queue_batches{sink=\"memory\"}"), 0.0);
    assert_eq!(value(&after, "tributary_sink_queue_bytes{sink=\"memory\"}"), 0.0);
    assert_eq!(value(&after, "tributary_sink_queue_capacity_batches{sink=\"memory\"}"), 256.0);
    assert_eq!(value(&after, "tributary_sink_queue_capacity_bytes{sink=\"memory\"}"), 8.0 * 1024.0 * 1024.0);
    assert!(value(&after, "process_resident_memory_bytes") > 1e6);
    assert!(after.contains("tributary_build_info{version="));
    assert_eq!(series(&before.body), series(&after));
    daemon.stop().await;
}

#[tokio::test]
async fn unknown_paths_methods_and_agents_have_clear_errors() {
    let daemon = Daemon::start(&format!("{ADMIN}{}", listener(""))).await;
    let address = daemon.server.admin_address().unwrap();
    for (method, path, status, words) in [
        ("GET", "/nowhere", 404, "no such path"),
        ("POST", "/", 405, "takes GET"),
        ("GET", "/metrics/", 404, "no such path"),
        ("POST", "/metrics", 405, "takes GET"),
        ("DELETE", "/agents", 405, "takes GET"),
        ("GET", "/agents/a:0/commands/start", 405, "takes POST"),
        ("POST", "/agents/unknown:0/commands/start", 404, "no such agent"),
        ("POST", "/agents/test/commands/start", 404, "no such agent"),
    ] {
        let answer = ask(address, method, path, "x-tributary: 1\r\n").await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        assert!(answer.body.contains(words), "{method} {path}: {}", answer.body);
    }
    assert_eq!(ask(address, "GET", "/agents", "").await.body, "[]\n");
    assert!(ask(address, "HEAD", "/metrics", "").await.body.is_empty());
    daemon.stop().await;
}

#[tokio::test]
async fn every_request_but_the_probes_needs_the_token() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let admin = format!("{ADMIN}token_file = {:?}\n", file.display().to_string());
    let daemon = Daemon::start(&format!("{admin}{}", listener(""))).await;
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
    // No web page has the token, so a request with it may name any host; without it no such request is accepted.
    let foreign = |path: &str, token: &str| format!("GET {path} HTTP/1.1\r\nhost: evil.example\r\n{token}\r\n");
    assert_eq!(send(address, &foreign("/metrics", &with("s3cret"))).await.status, 200);
    assert_eq!(send(address, &foreign("/metrics", &with("s3cre"))).await.status, 403);
    assert_eq!(send(address, &foreign("/livez", "")).await.status, 403);
    daemon.stop().await;
}

#[test]
fn beyond_loopback_it_needs_a_token_and_tls() {
    let error = |admin: &str| Config::parse("t.toml", admin).unwrap_err().to_string();
    for admin in ["[admin]\nlisten = \"0.0.0.0:9464\"", "[admin]\nlisten = \"[::]:1\"\ntoken_file = \"t\""] {
        assert!(error(admin).contains("beyond loopback it needs `token_file` and `tls`"), "{}", error(admin));
    }
    let both = "[admin]\nlisten = \"0.0.0.0:1\"\ntoken_file = \"t\"\ntls = { cert = \"c\", key = \"k\" }";
    assert!(Config::parse("t.toml", both).is_ok());
    assert_eq!(Config::parse("t.toml", "[admin]\nlisten = \"\"").unwrap().config.admin.listen, None);
}

#[tokio::test]
async fn an_address_in_use_is_an_error_only_if_the_address_is_configured() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = format!("[admin]\nlisten = \"{}\"\n", taken.local_addr().unwrap());
    let mut config = crate::live::config(&format!("{admin}{}", listener("")));
    let error = Server::start(&config).await.unwrap_err().to_string();
    assert!(error.contains("cannot start the admin endpoint on 127.0.0.1:"), "{error}");
    config.admin.is_default = true;
    let server = Server::start(&config).await.unwrap();
    assert_eq!(server.admin_address(), None);
    server.stop().await;
}

#[tokio::test]
async fn ruby_processes_are_listed_and_take_commands() {
    let options = rbkit::Options {
        publish: ([127, 0, 0, 1], 0).into(),
        request: ([127, 0, 0, 1], 0).into(),
        ..Default::default()
    };
    let process = rbkit::SimulatedProcess::bind(options).await.unwrap();
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

    let admin = daemon.server.admin_address().unwrap().to_string();
    let command_line = |arguments: &[&str]| {
        let arguments: Vec<_> =
            [&["agents"], arguments, &["--admin", &admin]].concat().into_iter().map(str::to_owned).collect();
        tokio::task::spawn_blocking(move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    let listed = command_line(&[]).await.unwrap();
    let mut lines = listed.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(lines.next().unwrap()[..3], ["ID", "PROTOCOL", "NAME"]);
    assert_eq!(lines.next().unwrap()[..2], ["ruby:0", "rbkit"]);
    assert!(lines.next().unwrap().contains(&"unreachable"), "{}", listed.stdout);
    let output = command_line(&["tell", "ruby:1", "handshake"]).await.unwrap();
    assert_eq!(output.code, Some(1));
    assert!(output.stderr.ends_with("409 Conflict: there is no connection to the process\n"), "{}", output.stderr);

    let report = within("the process has sent all its events", running).await.unwrap().unwrap();
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
    let number = &connected["resource"]["bytefrog.run.id"];
    let id = format!("java:{number}");
    let agents: serde_json::Value = serde_json::from_str(&get(&daemon.server, "/agents").await.body).unwrap();
    assert_eq!((&agents[0]["id"], &agents[0]["started"]), (&id.as_str().into(), &false.into()));
    assert_eq!((&agents[0]["resource"]["bytefrog.run.id"], &agents[0]["losses"]), (number, &0.into()));
    let refused = tell(&daemon.server, &id, "stop").await;
    assert_eq!(refused.status, 409);
    assert!(refused.body.contains("not started yet"), "{}", refused.body);
    assert_eq!(tell(&daemon.server, "java:126", "start").await.status, 404);
    // The agent takes commands once its configuration is there.
    let admin = daemon.server.admin_address().unwrap().to_string();
    let output = within("it may start", async {
        loop {
            let (admin, id) = (admin.clone(), id.clone());
            let command = move || run(&["agents", "tell", "--admin", &admin, &id, "start"]);
            let output = tokio::task::spawn_blocking(command).await.unwrap();
            if !output.stderr.contains("409") {
                return output;
            }
        }
    })
    .await;
    assert_eq!((output.code, output.stderr), (Some(0), format!("{id}: start: sent\n")));
    let (sent, _) = within("the program ends", agent).await.unwrap();
    assert!(sent.unwrap().events > 300);
    until("the run is over", || (daemon.counters().connections_open == 0).then_some(())).await;
    daemon.stop().await;
}

#[tokio::test]
async fn every_recently_seen_agent_is_listed_with_its_resource_and_counters() {
    let listen = "listen = \"127.0.0.1:0\"";
    let toml = format!(
        "{ADMIN}[listeners.spans]\nprotocol = \"datadog\"\n{listen}\n\
         [listeners.desktops]\nprotocol = \"endless\"\n{listen}\n[listeners.zorka]\nprotocol = \"zico\"\n{listen}\n"
    );
    let daemon = Daemon::start(&toml).await;
    let simulated = [
        ("spans", AgentKind::Datadog(datadog::DatadogDialect::default())),
        ("desktops", AgentKind::Endless(endless::AgentVersion::default())),
        ("zorka", AgentKind::Zico(zico::ZicoDialect::default())),
    ];
    for (listener, agent) in simulated {
        let bound = daemon.server.addresses().iter().find(|bound| &*bound.name == listener);
        let to = bound.unwrap().address;
        let plan = Plan { to, amount: Amount::Events(300), rate: None, connections: 2, seed: 7 };
        within(listener, tributary::simulate::run(agent, plan, pending())).await.unwrap();
    }
    until("all connections are closed", || {
        let totals = daemon.server.accounting().totals();
        totals.listeners.iter().all(|one| one.connections_open == 0).then_some(())
    })
    .await;
    let agents: Vec<serde_json::Value> = serde_json::from_str(&get(&daemon.server, "/agents").await.body).unwrap();
    for totals in daemon.server.accounting().totals().listeners {
        let seen: Vec<_> = agents.iter().filter(|agent| agent["listener"] == totals.name.as_str()).collect();
        let sum = |field: &str| seen.iter().map(|agent| agent[field].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("events"), sum("losses")), (totals.events(), 0), "{seen:?}");
        assert!(totals.events() >= 300);
        let ids: BTreeSet<_> = seen.iter().map(|agent| agent["id"].as_str().unwrap()).collect();
        assert!(
            ids.len() == seen.len() && ids.iter().all(|id| id.starts_with(&format!("{}:", totals.name))),
            "{ids:?}"
        );
        for agent in &seen {
            assert_eq!(agent["protocol"], totals.protocol.as_str());
            assert!(agent["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{agent}");
            assert!(agent["since"].as_str().unwrap() <= agent["last_seen"].as_str().unwrap(), "{agent}");
        }
        let keys = ["zico.session.id", "endless.image"];
        let names = seen.iter().filter(|agent| keys.iter().any(|key| agent["resource"][key].is_string())).count();
        assert!(names > 0 || totals.name == "spans", "{seen:?}");
    }
    daemon.stop().await;
}

/// A daemon with one listener and more lines in its `[admin]`.
async fn daemon(admin: &str) -> (Daemon, SocketAddr) {
    let daemon = Daemon::start(&format!("{ADMIN}{admin}\n{}", listener(""))).await;
    let address = daemon.server.admin_address().unwrap();
    (daemon, address)
}

#[tokio::test]
async fn a_host_that_a_web_page_could_have_is_refused() {
    let (daemon, address) = daemon("hosts = [\"Collector.example\", \"192.0.2.7\"]").await;
    let port = address.port();
    let get =
        async |path: &str, host: &str| send(address, &format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
    for path in ["/livez", "/readyz", "/metrics", "/agents"] {
        for host in
            ["evil.example", &format!("evil.example:{port}"), "localhost.evil.example", "192.0.2.8", "0.0.0.0", ""]
        {
            let refused = get(path, host).await;
            assert_eq!(refused.status, 403, "{path} {host}: {}", refused.body);
            assert!(refused.body.contains("[admin] hosts"), "{}", refused.body);
        }
        for host in
            ["localhost", &format!("LOCALHOST:{port}"), "127.0.0.1", "[::1]:80", "collector.example:1", "192.0.2.7"]
        {
            assert_eq!(get(path, host).await.status, 200, "{path} {host}");
        }
    }
    // The target of a request for a proxy is a host too.
    let request = "GET http://evil.example/livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert_eq!(send(address, request).await.status, 403);
    // Each request has one host; only HTTP/1.0, which no browser speaks, has none.
    for (request, status) in [
        ("GET /livez HTTP/1.1\r\n\r\n", 400),
        ("GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n", 400),
        ("GET /livez HTTP/1.0\r\n\r\n", 200),
        ("GET /livez HTTP/1.0\r\nhost: evil.example\r\n\r\n", 403),
    ] {
        assert_eq!(send(address, request).await.status, status, "{request}");
    }
    daemon.stop().await;
}

#[tokio::test]
async fn a_request_of_another_site_is_refused() {
    let (daemon, address) = daemon("").await;
    for header in [
        "origin: http://evil.example",
        "origin: null",
        "origin: http://localhost",
        "origin: http://127.0.0.1:1",
        "origin: ",
        "sec-fetch-site: cross-site",
        "sec-fetch-site: same-site",
        &format!("origin: http://{address}\r\norigin: http://evil.example"),
    ] {
        for path in ["/livez", "/metrics", "/agents", "/tap"] {
            assert_eq!(ask(address, "GET", path, &format!("{header}\r\n")).await.status, 403, "{path} {header}");
        }
        let command =
            ask(address, "POST", "/agents/a:0/commands/stop", &format!("x-tributary: 1\r\n{header}\r\n")).await;
        assert_eq!(command.status, 403, "{header}");
    }
    for header in
        [format!("origin: http://{address}"), "sec-fetch-site: same-origin".into(), "sec-fetch-site: none".into()]
    {
        assert_eq!(ask(address, "GET", "/metrics", &format!("{header}\r\n")).await.status, 200, "{header}");
    }
    daemon.stop().await;
}

#[tokio::test]
async fn a_link_of_another_site_opens_the_page_and_nothing_else() {
    let (daemon, address) = daemon("").await;
    let link = |site: &str, mode: &str, dest: &str| {
        format!("sec-fetch-site: {site}\r\nsec-fetch-mode: {mode}\r\nsec-fetch-dest: {dest}\r\n")
    };
    let navigation = link("cross-site", "navigate", "document");
    for (path, status) in [
        ("/", 200),
        ("/index.html", 200),
        ("/livez", 403),
        ("/metrics", 403),
        ("/agents", 403),
        ("/tap", 403),
        ("/api/v1/overview", 403),
        ("/api/v1/openapi.json", 403),
    ] {
        assert_eq!(ask(address, "GET", path, &navigation).await.status, status, "{path}");
    }
    // A frame, a script and a form of the other site are no link.
    for headers in [
        link("cross-site", "navigate", "iframe"),
        link("cross-site", "no-cors", "script"),
        link("same-site", "cors", "empty"),
        "sec-fetch-site: cross-site\r\n".to_owned(),
    ] {
        assert_eq!(ask(address, "GET", "/", &headers).await.status, 403, "{headers}");
    }
    assert_eq!(ask(address, "POST", "/", &format!("x-tributary: 1\r\n{navigation}")).await.status, 403);
    // The other checks hold for a link, too.
    let rebound = format!("GET / HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n{navigation}\r\n");
    assert_eq!(send(address, &rebound).await.status, 403);
    daemon.stop().await;
}

#[tokio::test]
async fn a_request_whose_sender_ends_its_half_of_the_connection_is_answered() {
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\nmetrics_listen = \"127.0.0.1:0\"\n";
    let daemon = Daemon::start(&format!("{toml}{}", listener(""))).await;
    for address in [daemon.server.admin_address().unwrap(), daemon.server.metrics_address().unwrap()] {
        for _ in 0..200 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = String::new();
            within("an answer", stream.read_to_string(&mut answer)).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
    }
    daemon.stop().await;
}

#[tokio::test]
async fn no_text_of_an_agent_controls_the_terminal_of_a_reader() {
    let named = r#"resource = { "service.name" = "evil\u001b[2J\u202e\u009b\u2066x" }"#;
    let daemon = Daemon::start(&format!("{ADMIN}{}", listener(named))).await;
    let address = daemon.server.admin_address().unwrap();
    let mut stream = connect(&daemon.server).await;
    stream.write_all(&[wire::process(), wire::named_span(1, "seen"), wire::trace()].concat()).await.unwrap();
    daemon.until_named("seen").await;
    for path in ["/agents", "/api/v1/agents"] {
        let answer = ask(address, "GET", path, "").await;
        assert!(answer.body.contains("evil\\u001b[2J\\u202e\\u009b\\u2066x"), "{}", answer.body);
        assert!(answer.body.chars().all(|c| c == '\n' || !c.is_control()) && !answer.body.contains('\u{202e}'));
    }
    drop(stream);
    daemon.stop().await;
}

#[tokio::test]
async fn a_command_needs_a_header_that_forms_cannot_send() {
    let (daemon, address) = daemon("").await;
    let command = async |headers: &str| ask(address, "POST", "/agents/unknown:0/commands/stop", headers).await;
    for headers in [
        "",
        "content-type: application/x-www-form-urlencoded\r\n",
        "content-type: text/plain\r\n",
        "content-type: text/plain; application/json\r\n",
        "content-type: multipart/form-data; boundary=x\r\n",
    ] {
        let refused = command(headers).await;
        assert_eq!(refused.status, 403, "{headers}");
        assert!(refused.body.contains("X-Tributary: 1"), "{}", refused.body);
    }
    // The command is examined, and the agent is unknown.
    for headers in [
        "x-tributary: 1\r\n",
        "content-type: application/json\r\n",
        "Content-Type: Application/JSON; charset=utf-8\r\n",
    ] {
        assert_eq!(command(headers).await.status, 404, "{headers}");
    }
    daemon.stop().await;
}

#[tokio::test]
async fn slow_connections_do_not_keep_others_out() {
    // Neither time limit ends them within this test.
    let (daemon, address) = daemon("head_timeout = \"1h\"\nresponse_timeout = \"1h\"").await;
    let mut slow = Vec::new();
    for number in 0..64 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Some send nothing, and some send a part of a head.
        if number % 2 == 0 {
            stream.write_all(b"GET /livez HTTP/1.1\r\nhost: local").await.unwrap();
        }
        slow.push(stream);
    }
    assert_eq!(get(&daemon.server, "/livez").await.status, 200);
    assert_eq!(get(&daemon.server, "/metrics").await.status, 200);
    // The first ones were closed, and the last ones are open.
    let mut first = slow.remove(1);
    let end = within("the first is closed", first.read(&mut [0; 1])).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    let mut last = slow.pop().unwrap();
    last.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    within("the last has its response", last.read_to_string(&mut response)).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    daemon.stop().await;
}

#[tokio::test]
async fn connections_that_do_not_read_their_responses_do_not_keep_others_out() {
    // Taps keep their connections; all others can be closed for new ones.
    let (daemon, address) = daemon("max_connections = 8\nhead_timeout = \"1h\"\nresponse_timeout = \"1h\"").await;
    let mut taps = Vec::new();
    for number in 1..=4_u64 {
        let mut tap = TcpStream::connect(address).await.unwrap();
        tap.write_all(b"GET /tap HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        taps.push(tap);
        let taps = async || value(&get(&daemon.server, "/metrics").await.body, "tributary_taps");
        until_async("the tap is open", async || (taps().await == number as f64).then_some(())).await;
    }
    let slow: Vec<_> = (0..16).map(|_| TcpStream::connect(address)).collect();
    for stream in slow {
        stream.await.unwrap().write_all(b"G").await.unwrap();
    }
    let metrics = get(&daemon.server, "/metrics").await.body;
    assert_eq!(value(&metrics, "tributary_taps"), 4.0);
    daemon.stop().await;
}

#[tokio::test]
async fn a_connection_without_a_request_ends_after_head_timeout() {
    let (daemon, address) = daemon("head_timeout = \"50ms\"").await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
    for stream in [&mut silent, &mut slow] {
        let end = within("it is closed", stream.read(&mut [0; 1])).await;
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    }
    assert_eq!(get(&daemon.server, "/livez").await.status, 200);
    daemon.stop().await;
}

#[test]
fn hosts_have_no_ports() {
    for hosts in ["[\"a:80\"]", "[\"http://a\"]", "[\"\"]", "[\"[::1]\"]", "[\"*\"]"] {
        let error = Config::parse("t.toml", &format!("[admin]\nhosts = {hosts}\n")).unwrap_err().to_string();
        assert!(error.contains("an element of `hosts` is not a host"), "{error}");
    }
    let config = Config::parse("t.toml", "[admin]\nhosts = [\"A.example\", \"::1\", \"10.0.0.1\"]\n").unwrap().config;
    assert_eq!(config.admin.hosts, ["a.example", "::1", "10.0.0.1"]);
}

#[test]
fn a_token_that_every_user_can_read_is_a_warning_at_the_start() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let (token, path) = (directory.path().join("token"), directory.path().join("t.toml"));
    std::fs::write(&token, "s3cret").unwrap();
    std::fs::write(&path, format!("{ADMIN}token_file = {token:?}\n{}", listener(""))).unwrap();
    for (mode, is_exposed) in [(0o644, true), (0o640, false)] {
        std::fs::set_permissions(&token, PermissionsExt::from_mode(mode)).unwrap();
        let daemon = Binary::start(tributary(&["run", "--config", path.to_str().unwrap()]));
        daemon.until_stderr("sink=\"console\"");
        daemon.signal("TERM");
        let ended = daemon.end();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let warning =
            ended.stderr.lines().find(|line| line.contains("every user of this machine can access this secret"));
        assert_eq!(warning.is_some(), is_exposed, "{}", ended.stderr);
        for part in warning
            .map(|_| [" WARN ", "option=\"admin.token_file\"", "mode=\"0644\"", "token", "chmod o="])
            .into_iter()
            .flatten()
        {
            assert!(warning.unwrap().contains(part), "{warning:?}");
        }
        assert!(!ended.stderr.contains("s3cret"));
    }
}
