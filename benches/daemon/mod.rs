//! A daemon in a process of its own, `tributary simulate` in another, and what the one made of what the other sent.
//!
//! Shared by the benches of whole daemons. Everything here panics when something goes wrong: a figure of a run that
//! failed is no figure.

pub mod ceiling;
pub mod loads;
pub mod peer;
pub mod process;
pub mod raw;
pub mod table;
pub mod wire;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use loads::Load;
use process::{Memory, Process};
use tempfile::TempDir;

const TRIBUTARY: &str = env!("CARGO_BIN_EXE_tributary");

/// How long anything may take that has no length of its own.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon that runs.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    pub process: Process,
    directory: TempDir,
    /// Where its first listener listens, unless it dials.
    address: Option<SocketAddr>,
    log: JoinHandle<String>,
}

impl Daemon {
    /// Starts a daemon, and waits until it serves.
    pub fn start(config: &str) -> Daemon {
        Daemon::start_to(config, Stdio::null())
    }

    /// The same, with its standard output in a pipe.
    pub fn start_piped(config: &str) -> (Daemon, ChildStdout) {
        let mut daemon = Daemon::start_to(config, Stdio::piped());
        let stdout = daemon.child.stdout.take().unwrap();
        (daemon, stdout)
    }

    fn start_to(config: &str, stdout: Stdio) -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("tributary.toml"), config).unwrap();
        let mut command = Command::new(TRIBUTARY);
        command.arg("run").current_dir(&directory).stdout(stdout).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (lines, heard) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log = thread::spawn(move || {
            let mut text = String::new();
            for line in stderr.lines() {
                let line = line.unwrap();
                text.push_str(&line);
                text.push('\n');
                // Nobody listens any more once it has started.
                let _ = lines.send(line);
            }
            text
        });
        let address = started(&heard);
        let process = Process { id: child.id() };
        Daemon { child, process, directory, address, log }
    }

    /// Where its listener listens.
    pub fn address(&self) -> SocketAddr {
        self.address.expect("it listens")
    }

    /// Where a file is that it writes.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until it has nothing to do any more, and answers its CPU time so far in seconds.
    pub fn settled_cpu_seconds(&self) -> f64 {
        let began = Instant::now();
        let (mut before, mut quiet) = (self.process.cpu_seconds(), 0);
        // Twice: on a busy machine it may not have had its turn.
        while quiet < 2 {
            thread::sleep(Duration::from_millis(100));
            let now = self.process.cpu_seconds();
            // What an idle one takes to look at its clocks is less than 1 %.
            quiet = if now - before < 0.001 { quiet + 1 } else { 0 };
            assert!(began.elapsed() < PATIENCE, "it does not come to rest");
            before = now;
        }
        before
    }

    /// Stops it; its counters.
    pub fn stop(mut self) -> Books {
        Command::new("kill").args(["-TERM", &self.process.id.to_string()]).status().unwrap();
        let status = self.child.wait().unwrap();
        let text = self.log.join().unwrap();
        assert!(status.success(), "{text}");
        Books { text, directory: self.directory }
    }
}

/// Waits for the lines that a daemon says when it serves: its listeners, and its sinks last.
fn started(heard: &Receiver<String>) -> Option<SocketAddr> {
    let (mut address, mut said) = (None, String::new());
    loop {
        let line = heard.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("it does not start:\n{said}"));
        said.push_str(&line);
        said.push('\n');
        if line.contains(" listener ") && address.is_none() {
            address = line.split(" on ").nth(1).and_then(|address| address.trim().parse().ok());
        }
        if line.contains(" sink ") {
            return address;
        }
    }
}

/// What a daemon left behind.
#[derive(Debug)]
pub struct Books {
    /// What it said.
    text: String,
    /// Where its files are, until this is dropped.
    pub directory: TempDir,
}

impl Books {
    /// Bytes of the files that it has written.
    pub fn bytes_written(&self) -> u64 {
        let Ok(files) = fs::read_dir(self.directory.path().join("out")) else { return 0 };
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }

    /// Bytes that it has read from agents.
    pub fn bytes_read(&self) -> u64 {
        let before = self.text.split(" bytes in = ").next().unwrap();
        before.split_whitespace().last().unwrap().parse().expect(&self.text)
    }

    /// Holds them against what was sent, for every sink: `sent = written + lost`, and nothing lost.
    pub fn check(&self, sent: u64) -> String {
        let Books { text, .. } = self;
        assert!(text.contains("decoded + 0 lost;"), "bytes were lost:\n{text}");
        let expected = format!("{sent} events = {sent} written + 0 shed + 0 failed");
        let mut sinks = text.lines().filter(|line| line.contains(" shed + ")).peekable();
        assert!(sinks.peek().is_some(), "no counters:\n{text}");
        assert!(sinks.all(|line| line.ends_with(&expected)), "sent were {sent} events, not all are written:\n{text}");
        format!("{0} = {0} + 0", table::count(sent))
    }
}

/// What a daemon took for what it was given.
#[derive(Debug)]
pub struct Cost {
    pub events: u64,
    /// From the first byte until everything was read.
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub memory: Memory,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// `sent = written + lost`.
    pub balance: String,
}

/// What agents did.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// Events of what is measured.
    pub events: u64,
    /// Those from before, in `prepare`.
    pub before: u64,
}

impl Cost {
    /// Starts a daemon, lets `prepare` and then `give` send it something, and stops it. Only the second is measured. Its
    /// files are there as long as its counters.
    pub fn of<T>(
        config: &str,
        prepare: impl FnOnce(&Daemon) -> T,
        give: impl FnOnce(&Daemon, T) -> Given,
    ) -> (Cost, Books) {
        let daemon = Daemon::start(config);
        let prepared = prepare(&daemon);
        let before = daemon.settled_cpu_seconds();
        let began = Instant::now();
        let given = give(&daemon, prepared);
        // Agents wait until the daemon has read to the end and closed; what queues still hold is soon written.
        let seconds = began.elapsed().as_secs_f64();
        let cpu_seconds = daemon.settled_cpu_seconds() - before;
        let memory = daemon.process.memory();
        let counters = daemon.stop();
        let balance = counters.check(given.before + given.events);
        let (bytes_in, bytes_out) = (counters.bytes_read(), counters.bytes_written());
        (Cost { events: given.events, seconds, cpu_seconds, memory, bytes_in, bytes_out, balance }, counters)
    }

    /// The same for simulated agents.
    pub fn of_load(load: &Load, events: u64, more: &str, sinks: &[&str], arguments: &[&str]) -> (Cost, Books) {
        let meeting = load.meeting();
        let give = |daemon: &Daemon, ()| {
            let mut all = load.arguments(meeting, daemon, events);
            all.extend(arguments.iter().map(|&argument| argument.to_owned()));
            Given { events: Simulation::start(&all).finish().events, before: 0 }
        };
        Cost::of(&load.config(meeting, more, sinks), |_| (), give)
    }

    /// CPU seconds per million events.
    pub fn cpu_per_million(&self) -> f64 {
        self.cpu_seconds / self.events as f64 * 1e6
    }

    /// Events per second.
    pub fn per_second(&self) -> f64 {
        self.events as f64 / self.seconds
    }
}

/// What simulated agents say that they have sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub events: u64,
    pub bytes: u64,
    /// From the start of the process until it ended: then the daemon has read everything, for agents wait for that.
    pub seconds: f64,
    /// From the start until the system had taken the last byte.
    pub last_byte_seconds: f64,
}

/// Simulated agents that are still sending.
#[derive(Debug)]
pub struct Simulation {
    child: Child,
    began: Instant,
}

impl Simulation {
    /// `tributary simulate` with these arguments.
    pub fn start(arguments: &[String]) -> Simulation {
        let mut command = Command::new(TRIBUTARY);
        command.arg("simulate").args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
        Simulation { began: Instant::now(), child: command.spawn().unwrap() }
    }

    /// Waits until all is sent.
    pub fn finish(self) -> Sent {
        let output = self.child.wait_with_output().unwrap();
        let seconds = self.began.elapsed().as_secs_f64();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        let report: serde_json::Value = serde_json::from_str(said.lines().last().unwrap_or_default()).expect(&said);
        let number = |key: &str| report[key].as_u64().expect(&said);
        let last_byte_seconds = report["seconds"].as_f64().expect(&said);
        Sent { events: number("events"), bytes: number("bytes"), seconds, last_byte_seconds }
    }
}

/// An address of this machine that nobody listens on just now.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A connection to somebody who may have to begin listening first.
pub fn connect(address: SocketAddr) -> TcpStream {
    let began = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{address}: {error}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}
