//! A fleet: three servers in a cluster, two edges and two writers, which are killed and stopped by a seeded schedule while machines
//! upload. What was acknowledged is in the files of the writers, and each line is there once.
//!
//! `TRIBUTARY_FLEET_SECONDS` and `TRIBUTARY_FLEET_SEED` make a longer run, or the same one again: docs/fleet.md. A partition is a
//! process that is stopped (SIGSTOP) and runs again.

#![allow(clippy::print_stderr, reason = "a run prints its seed and its figures")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::listener::lines_of;
use super::server::{free_port, program};
use crate::live::binary::{Binary, end_with_this_thread, run, until};
use crate::marked_upload::{EVENTS, mark, upload};

/// How long the schedule lasts in the gate.
const SECONDS: u64 = 12;
/// Machines that upload, of each edge.
const MACHINES: usize = 2;

/// Three servers.
struct Cluster {
    ports: [u16; 3],
    directory: tempfile::TempDir,
    servers: [Option<Child>; 3],
}

impl Cluster {
    fn start() -> Option<Cluster> {
        Command::new(program()).arg("--version").stdout(Stdio::null()).status().ok()?;
        let directory = tempfile::tempdir().unwrap();
        let (ports, routes) = ([0; 3].map(|_| free_port()), [0; 3].map(|_| free_port()));
        let listed: Vec<_> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        for (number, (port, route)) in ports.iter().zip(routes).enumerate() {
            let store = directory.path().join(format!("store-{number}")).display().to_string();
            let text = format!(
                "server_name: n{number}\nlisten: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{store}\" }}\n\
                 cluster {{ name: c, listen: \"127.0.0.1:{route}\", routes: [{}] }}\n",
                listed.join(", ")
            );
            std::fs::write(directory.path().join(format!("n{number}.conf")), text).unwrap();
        }
        let mut cluster = Cluster { ports, directory, servers: [None, None, None] };
        (0..3).for_each(|number| cluster.run(number));
        Some(cluster)
    }

    fn run(&mut self, number: usize) {
        let mut command = Command::new(program());
        command.arg("--config").arg(self.directory.path().join(format!("n{number}.conf")));
        end_with_this_thread(&mut command);
        self.servers[number] = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    }

    fn kill(&mut self, number: usize) {
        if let Some(mut server) = self.servers[number].take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    fn signal(&self, number: usize, name: &str) {
        let pid = self.servers[number].as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    fn urls(&self) -> String {
        self.ports.map(|port| format!("\"nats://127.0.0.1:{port}\"")).join(", ")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..3).for_each(|number| self.kill(number));
    }
}

/// A daemon that can be started again.
struct Daemon {
    config: String,
    admin: u16,
    running: Option<Binary>,
}

impl Daemon {
    fn new(directory: &std::path::Path, name: &str, toml: &str) -> Daemon {
        let admin = free_port();
        let path = directory.join(format!("{name}.toml"));
        let toml = toml.replace("DIR", &directory.display().to_string());
        std::fs::write(&path, format!("[admin]\nlisten = \"127.0.0.1:{admin}\"\n[limits]\nthreads = 1\n{toml}"))
            .unwrap();
        let mut daemon = Daemon { config: path.display().to_string(), admin, running: None };
        daemon.start();
        daemon
    }

    fn start(&mut self) {
        self.running = Some(Binary::start(crate::live::binary::tributary(&["run", "--config", &self.config])));
    }

    fn signal(&self, name: &str) {
        self.running.as_ref().unwrap().signal(name);
    }

    fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.signal("KILL");
            drop(running.end());
        }
    }
}

/// Machines that upload until they are stopped. An upload that is not answered 200 is not sent again: whether it counts is not
/// known.
struct Machines {
    is_over: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Vec<u64>>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Machines {
    fn start(edges: &[u16]) -> Machines {
        let (is_over, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<u64>>>::default());
        let next = Arc::new(AtomicU64::new(1));
        let machine = |port: u16| {
            let (is_over, acknowledged, next) = (is_over.clone(), acknowledged.clone(), next.clone());
            thread::spawn(move || {
                while !is_over.load(SeqCst) {
                    let number = next.fetch_add(1, SeqCst);
                    match send(port, number) {
                        Some(200) => acknowledged.lock().unwrap().push(number),
                        _ => thread::sleep(Duration::from_millis(20)),
                    }
                }
            })
        };
        let threads = edges.iter().flat_map(|port| [*port; MACHINES]).map(machine).collect();
        Machines { is_over, acknowledged, threads }
    }

    fn end(self) -> Vec<u64> {
        self.is_over.store(true, SeqCst);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        std::mem::take(&mut self.acknowledged.lock().unwrap())
    }
}

/// The status of an upload; `None`: there was no answer.
fn send(port: u16, number: u64) -> Option<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(&upload(number, 200 + (number % 7) as usize * 300)).ok()?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).ok()?;
    std::str::from_utf8(&head[9..]).ok()?.parse().ok()
}

/// Random numbers of a seed (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % end
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
}

#[test]
fn what_a_fleet_has_acknowledged_is_in_the_files_once_although_everything_in_it_is_killed() {
    let Some(mut cluster) = Cluster::start() else {
        eprintln!("NOT TESTED: {} cannot be run", program());
        return;
    };
    let (seconds, seed) = (number("TRIBUTARY_FLEET_SECONDS", SECONDS), number("TRIBUTARY_FLEET_SEED", 7));
    eprintln!("fleet: {seconds} s, seed {seed}");
    let (directory, servers) = (tempfile::tempdir().unwrap(), cluster.urls());
    let edges = [free_port(), free_port()];
    let names = ["a", "b"];
    let edge = |number: usize| {
        let (name, port) = (names[number], edges[number]);
        format!(
            "[listeners.{name}]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:{port}\"\nquarantine.dir = \"\"\n\
             acknowledge = \"durable\"\n[sinks.stream]\ntype = \"nats\"\nservers = [{servers}]\ncreate = true\nreplicas = 3\n\
             subject = \"tributary.{{listener}}.{{kind}}\"\nretry_max = \"500ms\"\nrequest_timeout = \"2s\"\n\
             connect_timeout = \"1s\"\nspool = {{ dir = \"DIR/spool-{name}\", min_free_bytes = \"0B\" }}\n"
        )
    };
    // Each writer has a consumer of its own: what it has written and not acknowledged comes again to itself.
    let writer = |number: usize| {
        let name = names[number];
        format!(
            "[listeners.stream]\nprotocol = \"nats\"\nservers = [{servers}]\nconsumer = \"writer_{name}\"\n\
             subjects = [\"tributary.{name}.*\"]\nack_wait = \"2s\"\nmax_deliver = 10000\nquarantine.dir = \"DIR/quarantine\"\n\
             retry_max = \"500ms\"\nrequest_timeout = \"2s\"\nconnect_timeout = \"1s\"\n\
             [sinks.files]\ntype = \"file\"\npath = \"DIR/written-{name}/out.ndjson\"\nrotate_bytes = \"2MiB\"\n"
        )
    };
    let new = |name: &str, toml: String| Daemon::new(directory.path(), name, &toml);
    let mut daemons =
        [new("edge-a", edge(0)), new("edge-b", edge(1)), new("writer-a", writer(0)), new("writer-b", writer(1))];
    let is_ready = |admin: u16| {
        let mut stream = TcpStream::connect(("127.0.0.1", admin)).ok()?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(())
    };
    daemons.iter().for_each(|daemon| until("the fleet is ready", || is_ready(daemon.admin)));
    let machines = Machines::start(&edges);
    let (mut rng, began, mut kills, mut stops) = (Rng(seed), Instant::now(), 0, 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        let (victim, is_kill) = (rng.below(7) as usize, rng.below(3) > 0);
        let (pause, rest) = (Duration::from_millis(100 + rng.below(900)), Duration::from_millis(rng.below(700)));
        match (victim.checked_sub(3), is_kill) {
            (None, true) => cluster.kill(victim),
            (None, false) => cluster.signal(victim, "STOP"),
            (Some(daemon), true) => daemons[daemon].kill(),
            (Some(daemon), false) => daemons[daemon].signal("STOP"),
        }
        thread::sleep(pause);
        match (victim.checked_sub(3), is_kill) {
            (None, true) => cluster.run(victim),
            (None, false) => cluster.signal(victim, "CONT"),
            (Some(daemon), true) => daemons[daemon].start(),
            (Some(daemon), false) => daemons[daemon].signal("CONT"),
        }
        (kills, stops) = if is_kill { (kills + 1, stops) } else { (kills, stops + 1) };
        thread::sleep(rest);
    }
    let acknowledged = machines.end();
    daemons.iter().for_each(|daemon| until("the fleet is ready again", || is_ready(daemon.admin)));
    let mut arguments = vec!["fleet".to_owned(), "audit".into(), "--wait".into(), "60s".into()];
    arguments.extend(daemons.iter().flat_map(|daemon| ["--admin".into(), format!("127.0.0.1:{}", daemon.admin)]));
    arguments.extend(["--nats".into(), format!("nats://127.0.0.1:{}", cluster.ports[0])]);
    let audit = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let report: Value = serde_json::from_str(&audit.stdout).unwrap_or_else(|error| panic!("{error}: {}", audit.stderr));
    assert_eq!((audit.code, &report["adds_up"]), (Some(0), &Value::Bool(true)), "{report:#}");
    let consumers = report["stream"]["consumers"].as_array().unwrap();
    assert!(consumers.iter().all(|of| of["pending"] == 0 && of["unacknowledged"] == 0), "{report:#}");
    assert_eq!((&report["total"]["waiting"], &report["total"]["failed"]), (&0.into(), &0.into()), "{report:#}");
    for daemon in &mut daemons {
        daemon.signal("TERM");
        assert_eq!(daemon.running.take().unwrap().end().code, Some(0));
    }
    let mut lines = Vec::new();
    for name in names {
        let files = std::fs::read_dir(directory.path().join(format!("written-{name}"))).unwrap();
        let files = files.map(|file| file.unwrap().path()).filter(|path| path.to_string_lossy().contains(".ndjson"));
        lines.extend(files.flat_map(|path| lines_of(&path)));
    }
    let mut marks: Vec<String> = lines.iter().map(|line| mark_of(line)).collect();
    marks.sort();
    let total = marks.len();
    marks.dedup();
    assert_eq!(marks.len(), total, "a line is there more than once");
    let missing = acknowledged.iter().flat_map(|upload| (0..EVENTS).map(|event| mark(*upload, event)));
    let missing: Vec<_> = missing.filter(|mark| marks.binary_search(mark).is_err()).collect();
    assert_eq!(missing, [""; 0], "acknowledged and lost");
    assert!(acknowledged.len() > seconds as usize && kills > 0, "{} {kills}", acknowledged.len());
    eprintln!(
        "fleet: {kills} kills, {stops} stops; {} uploads acknowledged, {total} events in the files, each once; none lost; {}",
        acknowledged.len(),
        report["total"]
    );
}

/// The mark of an event.
fn mark_of(line: &str) -> String {
    let start = line.find("\"n-").unwrap_or_else(|| panic!("not of a machine: {line}")) + 1;
    line[start..].split('"').next().unwrap().to_owned()
}
