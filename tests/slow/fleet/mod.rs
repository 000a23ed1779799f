//! A fleet: three servers in a cluster, two edges and two writers, which are killed, stopped and cut off by a seeded schedule while
//! agents send to any of the edges. What was acknowledged is in the files of the writers once.
//!
//! `TRIBUTARY_FLEET_SECONDS` and `TRIBUTARY_FLEET_SEED` make a longer run, or the same one again: docs/fleet.md.
//! `TRIBUTARY_FLEET_KEEP` keeps the directory of a run.

#![allow(clippy::print_stderr, reason = "a run prints its seed and its figures")]

mod agents;
mod network;

use std::collections::{BTreeMap, HashMap};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::live::PATIENCE;
use crate::live::binary::{Binary, end_with_this_thread, free_port, run, signal, until};
use crate::marked_upload::{EVENTS, mark};
use crate::nats_server::program;
use agents::{Acknowledged, Agents, Edge};
use network::Host;
use tributary_testing::wait::poll_blocking;

/// How long the schedule lasts in the gate.
const SECONDS: u64 = 12;
/// The servers of the cluster.
const SERVERS: usize = 3;
/// What each writer takes: the events of one protocol.
const LISTENERS: [&str; 2] = ["desktops", "zorka"];
/// A host is away for this many milliseconds.
const AWAY: Range<u64> = 100..2_100;
/// All hosts are there for fewer milliseconds than this, before the next one fails.
const LONGEST_REST: u64 = 700;

/// A server or a daemon, which can be started again.
struct Process {
    host: Host,
    /// The program with its arguments.
    command: Vec<String>,
    running: Option<Running>,
}

enum Running {
    Server(Child),
    Daemon(Binary),
}

/// What happens to a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    /// `kill -9`.
    Kill,
    /// SIGSTOP.
    Stop,
    /// No packet passes.
    Cut,
}

impl Process {
    fn is_daemon(&self) -> bool {
        self.command[0] != program()
    }

    fn start(&mut self) {
        let (program, arguments) = self.command.split_first().unwrap();
        let mut command = self.host.command(program);
        command.args(arguments);
        self.running = Some(if self.is_daemon() {
            Running::Daemon(Binary::start(command))
        } else {
            end_with_this_thread(&mut command);
            Running::Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
        });
    }

    fn signal(&self, name: &str) {
        let pid = match self.running.as_ref().unwrap() {
            Running::Server(child) => child.id(),
            Running::Daemon(binary) => binary.pid(),
        };
        signal(pid, name);
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Kill => {
                self.signal("KILL");
                match self.running.take().unwrap() {
                    Running::Server(mut child) => drop(child.wait().unwrap()),
                    Running::Daemon(binary) => drop(binary.end()),
                }
            }
            Fault::Stop => self.signal("STOP"),
            Fault::Cut => self.host.cut(true),
        }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Kill => self.start(),
            Fault::Stop => self.signal("CONT"),
            Fault::Cut => self.host.cut(false),
        }
    }

    /// Ends a daemon in order, or kills a server.
    fn finish(&mut self) {
        match self.running.take() {
            Some(Running::Daemon(binary)) => {
                binary.signal("TERM");
                let ended = binary.end();
                let is_in_time = !ended.stderr.contains("the grace period is over");
                assert!(ended.code == Some(0) && is_in_time, "{:?}: {}", ended.code, ended.stderr);
            }
            Some(Running::Server(mut child)) => {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            None => {}
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(Running::Server(child)) = &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The servers, on the first hosts; returns them with their addresses.
fn servers(hosts: &mut Vec<Host>, directory: &Path) -> (Vec<Process>, Vec<SocketAddr>) {
    let hosts: Vec<Host> = hosts.drain(..SERVERS).collect();
    let at = |host: &Host| SocketAddr::from((host.address, free_port()));
    let addresses: Vec<_> = hosts.iter().map(at).collect();
    let routes: Vec<_> = hosts.iter().map(at).collect();
    let listed: Vec<_> = routes.iter().map(|route| format!("nats://{route}")).collect();
    let server = |(number, host): (usize, Host)| {
        let (address, route) = (addresses[number], routes[number]);
        let store = directory.join(format!("store-{number}")).display().to_string();
        let text = format!(
            "server_name: n{number}\nlisten: \"{address}\"\njetstream {{ store_dir: \"{store}\" }}\n\
             cluster {{ name: c, listen: \"{route}\", routes: [{}] }}\n",
            listed.join(", ")
        );
        let path = directory.join(format!("n{number}.conf"));
        std::fs::write(&path, text).unwrap();
        Process { host, command: vec![program(), "--config".into(), path.display().to_string()], running: None }
    };
    (hosts.into_iter().enumerate().map(server).collect(), addresses)
}

/// A daemon; returns it with its address for `/readyz` and `/metrics`.
fn daemon(host: Host, directory: &Path, name: &str, toml: &str) -> (Process, SocketAddr) {
    let metrics = SocketAddr::from((host.address, free_port()));
    let path = directory.join(format!("{name}.toml"));
    let toml = format!(
        "[admin]\nlisten = \"127.0.0.1:{}\"\nmetrics_listen = \"{metrics}\"\n[limits]\nthreads = 1\n\
         shutdown_grace = \"15s\"\n{}",
        free_port(),
        toml.replace("DIR", &directory.display().to_string())
    );
    std::fs::write(&path, toml).unwrap();
    let command = [env!("CARGO_BIN_EXE_tributary"), "run", "--config", &path.display().to_string()];
    (Process { host, command: command.map(str::to_owned).to_vec(), running: None }, metrics)
}

/// An edge, whose listeners and sink have the same names on all edges, so that repeats have the same ids.
fn edge(name: &str, edge: Edge, servers: &[SocketAddr]) -> String {
    let (urls, hosts) = (listed(servers), servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
    format!(
        "[listeners.desktops]\nprotocol = \"endless\"\nlisten = \"{}\"\nquarantine.dir = \"\"\nacknowledge = \"durable\"\n\
         seen = \"nats://{hosts}/seen\"\nnats.replicas = 3\n\
         [listeners.zorka]\nprotocol = \"zico\"\nlisten = \"{}\"\nquarantine.dir = \"\"\nacknowledge = \"durable\"\n\
         state_dir = \"DIR/agents-{name}\"\n\
         [sinks.stream]\ntype = \"nats\"\nservers = [{urls}]\ncreate = true\nreplicas = 3\n\
         subject = \"tributary.{{listener}}.{{kind}}\"\nretry_max = \"500ms\"\nrequest_timeout = \"2s\"\n\
         connect_timeout = \"1s\"\nspool = {{ dir = \"DIR/spool-{name}\", min_free_bytes = \"0B\" }}\n",
        edge.endless, edge.zico
    )
}

/// A writer with a consumer of its own: what it has written and not acknowledged comes again to itself.
fn writer(listener: &str, servers: &[SocketAddr]) -> String {
    format!(
        "[listeners.stream]\nprotocol = \"nats\"\nservers = [{}]\nconsumer = \"writer_{listener}\"\n\
         subjects = [\"tributary.{listener}.*\"]\nack_wait = \"2s\"\nmax_deliver = 10000\nquarantine.dir = \"DIR/quarantine\"\n\
         retry_max = \"500ms\"\nrequest_timeout = \"2s\"\nconnect_timeout = \"1s\"\n\
         [sinks.files]\ntype = \"file\"\npath = \"DIR/written-{listener}/out.ndjson\"\nrotate_bytes = \"2MiB\"\n",
        listed(servers)
    )
}

fn listed(servers: &[SocketAddr]) -> String {
    servers.iter().map(|server| format!("\"nats://{server}\"")).collect::<Vec<_>>().join(", ")
}

fn is_ready(metrics: SocketAddr) -> Option<()> {
    let mut stream = TcpStream::connect_timeout(&metrics, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(())
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
fn what_a_fleet_has_acknowledged_is_in_the_files_once_although_everything_in_it_fails() {
    if Command::new(program()).arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("NOT TESTED: {} cannot be run", program());
        return;
    }
    let test = what_a_fleet_has_acknowledged_is_in_the_files_once_although_everything_in_it_fails;
    let Some(mut hosts) = network::hosts(test, SERVERS + 2 + LISTENERS.len()) else { return };
    let (seconds, seed) = (number("TRIBUTARY_FLEET_SECONDS", SECONDS), number("TRIBUTARY_FLEET_SEED", 7));
    eprintln!("fleet: {seconds} s, seed {seed}");
    let mut directory = tempfile::tempdir().unwrap();
    // What is left of a run that fails can be looked at.
    directory.disable_cleanup(std::env::var_os("TRIBUTARY_FLEET_KEEP").is_some());
    let (mut processes, servers) = servers(&mut hosts, directory.path());
    let mut edges = Vec::new();
    let mut metrics = Vec::new();
    for (number, host) in hosts.into_iter().enumerate() {
        let (name, toml) = match number.checked_sub(2) {
            None => {
                let [endless, zico] = [(); 2].map(|()| SocketAddr::from((host.address, free_port())));
                edges.push(Edge { endless, zico });
                let name = format!("edge-{number}");
                let toml = edge(&name, edges[number], &servers);
                (name, toml)
            }
            Some(writer_number) => {
                let listener = LISTENERS[writer_number];
                (format!("writer-{listener}"), writer(listener, &servers))
            }
        };
        let (process, at) = daemon(host, directory.path(), &name, &toml);
        processes.push(process);
        metrics.push(at);
    }
    processes.iter_mut().for_each(Process::start);
    metrics.iter().for_each(|at| until("the fleet is ready", || is_ready(*at)));
    let agents = Agents::start(edges.try_into().unwrap_or_else(|_| panic!("two edges")));
    let faults = disturb(&mut processes, Duration::from_secs(seconds), &mut Rng(seed));
    let acknowledged = agents.end();
    metrics.iter().for_each(|at| until("the fleet is ready again", || is_ready(*at)));
    let report = audit(&metrics, servers[0]);
    until_written(directory.path(), &acknowledged);
    // The daemons first, and then their servers.
    processes.iter_mut().rev().for_each(Process::finish);
    let events = assert_written_once(directory.path(), &acknowledged);
    let Acknowledged { uploads, traces, repeats } = &acknowledged;
    assert!(
        uploads.len() as u64 > seconds && !traces.is_empty() && !faults.is_empty(),
        "{} {}",
        uploads.len(),
        traces.len()
    );
    eprintln!(
        "fleet: {faults:?}; {} uploads and {} traces acknowledged after {repeats} repeats, {events} events in the files, each once; \
         none lost; {}",
        uploads.len(),
        traces.len(),
        report["total"]
    );
}

/// Lets one process after the other fail for a short time; returns what has happened how often.
fn disturb(processes: &mut [Process], time: Duration, rng: &mut Rng) -> BTreeMap<Fault, u64> {
    let (began, mut faults) = (Instant::now(), BTreeMap::new());
    while began.elapsed() < time {
        let victim = rng.below(processes.len() as u64) as usize;
        let victim = &mut processes[victim];
        let fault = match rng.below(4) {
            0 | 1 => Fault::Kill,
            2 if victim.host.can_be_cut() => Fault::Cut,
            _ => Fault::Stop,
        };
        let away = Duration::from_millis(AWAY.start + rng.below(AWAY.end - AWAY.start));
        let rest = Duration::from_millis(rng.below(LONGEST_REST));
        victim.begin(fault);
        thread::sleep(away);
        victim.end(fault);
        *faults.entry(fault).or_default() += 1;
        thread::sleep(rest);
    }
    faults
}

/// Waits until the writers have consumed everything, as long as they make progress. Then the sums of the fleet add up.
fn audit(metrics: &[SocketAddr], server: SocketAddr) -> Value {
    let wait = format!("{}s", PATIENCE.as_secs() * 3 / 4);
    let mut arguments = vec!["fleet".to_owned(), "audit".into(), "--wait".into(), wait];
    arguments.extend(metrics.iter().flat_map(|at| ["--admin".into(), at.to_string()]));
    arguments.extend(["--nats".into(), format!("nats://{server}")]);
    let mut left = u64::MAX;
    loop {
        let audit = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let report: Value =
            serde_json::from_str(&audit.stdout).unwrap_or_else(|error| panic!("{error}: {}", audit.stderr));
        assert_eq!((audit.code, &report["adds_up"]), (Some(0), &Value::Bool(true)), "{report:#}");
        let consumers = report["stream"]["consumers"].as_array().unwrap();
        let messages = |of: &Value| of["pending"].as_u64().unwrap() + of["unacknowledged"].as_u64().unwrap();
        let now = consumers.iter().map(messages).sum();
        if now == 0 {
            assert_eq!((&report["total"]["waiting"], &report["total"]["failed"]), (&0.into(), &0.into()), "{report:#}");
            return report;
        }
        assert!(now < left, "the writers do not write: {report:#}");
        left = now;
    }
}

/// What the files of the writers have.
#[derive(Default)]
struct Written {
    /// How often each event is there.
    events: HashMap<String, u64>,
    /// The number of events of each trace.
    traces: HashMap<String, u64>,
}

impl Written {
    fn read(directory: &Path) -> Written {
        let mut written = Written::default();
        for listener in LISTENERS {
            let Ok(files) = std::fs::read_dir(directory.join(format!("written-{listener}"))) else { continue };
            let files = files.map(|file| file.unwrap().path());
            for path in files.filter(|path| path.to_string_lossy().contains(".ndjson")) {
                let lines = std::fs::read_to_string(&path).unwrap_or_default();
                lines.lines().for_each(|line| written.add(listener, line));
            }
        }
        written
    }

    fn add(&mut self, listener: &str, line: &str) {
        // The last line may not be whole yet.
        let Ok(event) = serde_json::from_str::<Value>(line) else { return };
        // A session that an agent opens, and losses that report repeats, are not what was acknowledged.
        let key = match listener {
            _ if event["kind"] == "loss" => return,
            "desktops" => event["attributes"]["os.version"].as_str().unwrap().to_owned(),
            _ => {
                let ids = if event["kind"] == "span" { &event["span"] } else { &event };
                let Some(trace) = ids["trace_id"].as_str() else { return };
                *self.traces.entry(trace.to_owned()).or_default() += 1;
                format!("{trace} {} {} {}", ids["span_id"], event["kind"], event["name"])
            }
        };
        *self.events.entry(key).or_default() += 1;
    }

    /// Some of what was acknowledged and is not here.
    fn missing(&self, acknowledged: &Acknowledged) -> Vec<String> {
        let marks = acknowledged.uploads.iter().flat_map(|upload| (0..EVENTS).map(|event| mark(*upload, event)));
        let missing = marks.filter(|mark| !self.events.contains_key(mark));
        let of_trace = |(trace, events): &(String, u64)| {
            let written = self.traces.get(trace).copied().unwrap_or(0);
            (written < *events).then(|| format!("{trace}: {written} of {events} events"))
        };
        missing.chain(acknowledged.traces.iter().filter_map(of_trace)).take(10).collect()
    }
}

/// Waits until the files have everything acknowledged: a server that has just become the leader of a consumer can report that
/// nothing waits although it has not looked yet.
fn until_written(directory: &Path, acknowledged: &Acknowledged) {
    let mut missing = Vec::new();
    let is_written = poll_blocking(PATIENCE, || {
        missing = Written::read(directory).missing(acknowledged);
        missing.is_empty().then_some(())
    });
    assert!(is_written.is_some(), "acknowledged and not written: {missing:?}");
}

/// Everything acknowledged is in the files, and each event once; returns their number.
fn assert_written_once(directory: &Path, acknowledged: &Acknowledged) -> usize {
    let written = Written::read(directory);
    assert_eq!(written.missing(acknowledged), [""; 0], "acknowledged and lost");
    let twice: Vec<_> = written.events.iter().filter(|(_, times)| **times > 1).take(5).collect();
    assert!(twice.is_empty(), "more than once: {twice:?}");
    written.events.len()
}
