//! The shipped configuration of HAProxy in front of two daemons. Without the program `haproxy` the test prints that and passes.
#![allow(clippy::print_stderr, reason = "the test prints what it skips")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::live::PATIENCE;
use crate::live::binary::{Binary, end_with_this_thread, free_port, run, tributary, until};

const CONFIGURATION: &str = include_str!("../../config/haproxy/tributary.cfg");
const LISTENERS: [(&str, &str, u16); 4] =
    [("desktops", "endless", 8080), ("zorka", "zico", 8640), ("java", "bytefrog", 8765), ("spans", "datadog", 8136)];

/// A daemon that believes the balancer.
struct Backend {
    directory: tempfile::TempDir,
    metrics: u16,
    daemon: Binary,
}

impl Backend {
    fn start() -> Backend {
        let (directory, metrics) = (tempfile::tempdir().unwrap(), free_port());
        let listener = |(name, protocol, _): (&str, &str, u16)| {
            let quarantine = if matches!(protocol, "endless" | "zico") { "quarantine.dir = \"\"\n" } else { "" };
            format!(
                "[listeners.{name}]\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n\
                 proxy_protocol = [\"127.0.0.1\"]\n{quarantine}"
            )
        };
        let toml = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\nmetrics_listen = \"127.0.0.1:{metrics}\"\n{}\
             [sinks.events]\ntype = \"file\"\npath = \"{}/events.ndjson\"\n",
            LISTENERS.map(listener).concat(),
            directory.path().display()
        );
        std::fs::write(directory.path().join("t.toml"), toml).unwrap();
        let config = directory.path().join("t.toml").display().to_string();
        let daemon = Binary::start(tributary(&["run", "--config", &config]));
        Backend { directory, metrics, daemon }
    }

    /// The events of a listener.
    fn events(&self, listener: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.directory.path().join("events.ndjson")).unwrap_or_default();
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let events = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["origin"]["listener"] == listener && event["kind"] != "loss").collect()
    }
}

/// HAProxy with the shipped configuration, whose addresses are those of this test.
struct Balancer {
    child: Child,
    _directory: tempfile::TempDir,
    ports: [u16; 4],
}

impl Balancer {
    fn start(backends: &[Backend; 2]) -> Option<Balancer> {
        if let Err(error) = Command::new("haproxy").arg("-v").stdout(Stdio::null()).status() {
            eprintln!("NOT TESTED: haproxy cannot be run: {error} (apt-get install haproxy)");
            return None;
        }
        let ports = LISTENERS.map(|_| free_port());
        // A busy machine answers a check late.
        let mut text = CONFIGURATION.replace("timeout connect 5s", "timeout connect 5s\n    timeout check 30s");
        assert!(text.contains("timeout check"), "{text}");
        for ((name, _, port), own) in LISTENERS.into_iter().zip(ports) {
            text = text.replace(&format!("bind :{port}"), &format!("bind 127.0.0.1:{own}"));
            for (host, backend) in ["10.0.0.11", "10.0.0.12"].into_iter().zip(backends) {
                let address = backend.daemon.address(name);
                text = text.replace(&format!("{host}:{port}"), &format!("{address} port {}", backend.metrics));
            }
        }
        assert!(!text.contains("10.0.0.1") && !text.contains("bind :"), "{text}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("haproxy.cfg");
        std::fs::write(&path, text).unwrap();
        let mut command = Command::new("haproxy");
        command.args(["-db", "-f"]).arg(&path).stdout(Stdio::null()).stderr(Stdio::null());
        end_with_this_thread(&mut command);
        let balancer = Balancer { child: command.spawn().unwrap(), _directory: directory, ports };
        until("the balancer listens", || TcpStream::connect(balancer.address("spans")).ok());
        Some(balancer)
    }

    fn address(&self, listener: &str) -> SocketAddr {
        let index = LISTENERS.iter().position(|(name, ..)| *name == listener).unwrap();
        (Ipv4Addr::LOCALHOST, self.ports[index]).into()
    }

    /// Simulates agents of a listener; returns the number of events that were sent.
    fn simulate(&self, listener: &str, arguments: &[&str]) -> u64 {
        let (_, protocol, _) = LISTENERS.into_iter().find(|(name, ..)| *name == listener).unwrap();
        let to = self.address(listener).to_string();
        let ended = run(&[&["simulate", protocol, "--to", &to], arguments].concat());
        assert_eq!(ended.code, Some(0), "{listener}: {}", ended.stderr);
        ended.sent()["events"].as_u64().unwrap()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status of an upload from this address.
fn upload_from(address: Ipv4Addr, to: SocketAddr) -> u16 {
    let case = crate::endless_support::cases().into_iter().find(|case| case.is_normal() && case.version() == 3);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&case.unwrap().request).unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    String::from_utf8_lossy(&status[9..]).parse().unwrap()
}

#[test]
fn agents_reach_daemons_through_haproxy_keep_theirs_where_that_matters_and_find_another_one_when_it_ends() {
    let backends = [Backend::start(), Backend::start()];
    let Some(balancer) = Balancer::start(&backends) else { return };
    let counts = |listener: &str| backends.each_ref().map(|backend| backend.events(listener).len() as u64);

    // Machines go to any daemon, and every event is at one of them.
    let sent = balancer.simulate("desktops", &["--count", "400", "--connections", "8"]);
    let at = counts("desktops");
    assert_eq!(at.iter().sum::<u64>(), sent);
    assert!(at.iter().all(|events| *events > 0), "{at:?}");

    // Their address is that of the PROXY header.
    let own = Ipv4Addr::new(127, 0, 0, 7);
    assert_eq!(upload_from(own, balancer.address("desktops")), 200);
    let peers = backends.iter().flat_map(|backend| backend.events("desktops"));
    assert!(peers.filter(|event| event["origin"]["peer"].as_str().unwrap().starts_with("127.0.0.7:")).count() > 0);

    // All connections of an address are at one daemon, run after run.
    let mut sent = [0, 0];
    for seed in ["1", "2", "3"] {
        sent[0] += balancer.simulate("java", &["--count", "300", "--seed", seed]);
        let zorka = ["--count", "60", "--seed", seed, "--dialect", "gen1", "--connections", "2"];
        sent[1] += balancer.simulate("zorka", &zorka);
    }
    for (listener, sent) in ["java", "zorka"].into_iter().zip(sent) {
        let at = until("the events are written", || Some(counts(listener)).filter(|at| at.iter().sum::<u64>() >= sent));
        assert!(at.contains(&0), "{listener}: {at:?}");
    }

    // The daemon of the agents ends, and the balancer notices. What is sent then is at the other one.
    let of_agents = usize::from(counts("zorka")[0] == 0);
    backends[of_agents].daemon.signal("KILL");
    until("the daemon does not answer", || TcpStream::connect(("127.0.0.1", backends[of_agents].metrics)).err());
    let before = counts("zorka")[1 - of_agents];
    let sent = balancer.simulate("zorka", &["--count", "60", "--seed", "4", "--dialect", "gen1"]);
    assert_eq!(counts("zorka")[1 - of_agents] - before, sent);
    until("uploads go to the other daemon", || (upload_from(own, balancer.address("desktops")) == 200).then_some(()));
}
