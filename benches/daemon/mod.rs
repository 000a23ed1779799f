//! A daemon in one process, `tributary simulate` in another, and a comparison of what was sent with what was written.
//!
//! Shared by the benches of whole daemons. Everything here panics on an error, because the figures of a failed run are
//! meaningless.

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

/// The program that is measured: that of `TRIBUTARY_BENCH_BINARY`, such as one of `config/pgo/build`, or else the one of this build.
fn tributary() -> Command {
    let named = std::env::var_os("TRIBUTARY_BENCH_BINARY").map(|path| fs::canonicalize(path).unwrap());
    Command::new(named.unwrap_or_else(|| env!("CARGO_BIN_EXE_tributary").into()))
}

/// The time limit of operations without a limit of their own.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    pub process: Process,
    directory: TempDir,
    /// The address of its first listener; `None` if the daemon only connects.
    address: Option<SocketAddr>,
    log: JoinHandle<String>,
}

impl Daemon {
    /// Starts a daemon, and waits until it is ready.
    pub fn start(config: &str) -> Daemon {
        Daemon::start_to(config, Stdio::null())
    }

    /// Like [`Daemon::start`], with its standard output in a pipe.
    pub fn start_piped(config: &str) -> (Daemon, ChildStdout) {
        let mut daemon = Daemon::start_to(config, Stdio::piped());
        let stdout = daemon.child.stdout.take().unwrap();
        (daemon, stdout)
    }

    fn start_to(config: &str, stdout: Stdio) -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("tributary.toml"), config).unwrap();
        let mut command = tributary();
        command.arg("run").current_dir(&directory).stdout(stdout).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (lines, received) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log = thread::spawn(move || {
            let mut text = String::new();
            for line in stderr.lines() {
                let line = line.unwrap();
                text.push_str(&line);
                text.push('\n');
                // The receiver is dropped after the start.
                let _ = lines.send(line);
            }
            text
        });
        let address = wait_for_start(&received);
        let process = Process { id: child.id() };
        Daemon { child, process, directory, address, log }
    }

    /// The address of its listener.
    pub fn address(&self) -> SocketAddr {
        self.address.expect("a listener")
    }

    /// The path of a file that it writes.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until the daemon is idle, and returns its CPU time so far in seconds.
    pub fn settled_cpu_seconds(&self) -> f64 {
        let began = Instant::now();
        let (mut before, mut quiet) = (self.process.cpu_seconds(), 0);
        // Twice, because on a busy machine it may not have been scheduled.
        while quiet < 2 {
            thread::sleep(Duration::from_millis(100));
            let now = self.process.cpu_seconds();
            // The timers of an idle daemon take less than 1 %.
            quiet = if now - before < 0.001 { quiet + 1 } else { 0 };
            assert!(began.elapsed() < TIMEOUT, "the daemon does not become idle");
            before = now;
        }
        before
    }

    /// Stops the daemon, and returns its final counters.
    pub fn stop(mut self) -> FinalCounters {
        Command::new("kill").args(["-TERM", &self.process.id.to_string()]).status().unwrap();
        let status = self.child.wait().unwrap();
        let text = self.log.join().unwrap();
        assert!(status.success(), "{text}");
        FinalCounters { text, directory: self.directory }
    }
}

/// Waits for the log lines of a ready daemon: its listeners, and then its sinks.
fn wait_for_start(received: &Receiver<String>) -> Option<SocketAddr> {
    let (mut address, mut log) = (None, String::new());
    loop {
        let line = received.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("the daemon does not start:\n{log}"));
        log.push_str(&line);
        log.push('\n');
        if line.contains(" listening ") && address.is_none() {
            address = field(&line, "address").and_then(|address| address.parse().ok());
        }
        if line.contains(" sink sink=") {
            return address;
        }
    }
}

/// A field of a line of the log.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_once(&format!(" {name}="))?.1.split(' ').next()
}

/// The log of a stopped daemon with its final counters, and its files.
#[derive(Debug)]
pub struct FinalCounters {
    /// The log.
    text: String,
    /// Contains its files; removed when this is dropped.
    pub directory: TempDir,
}

impl FinalCounters {
    /// Bytes of the files that the daemon wrote.
    pub fn bytes_written(&self) -> u64 {
        let Ok(files) = fs::read_dir(self.directory.path().join("out")) else { return 0 };
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }

    /// Bytes that the daemon read from agents.
    pub fn bytes_read(&self) -> u64 {
        let totals = self.text.lines().find(|line| line.contains(" listener totals "));
        totals.and_then(|line| field(line, "bytes_in")?.parse().ok()).expect(&self.text)
    }

    /// Asserts that no byte was lost.
    fn check_bytes(&self) {
        let mut totals = self.text.lines().filter(|line| line.contains(" listener totals ")).peekable();
        assert!(totals.peek().is_some(), "no totals:\n{}", self.text);
        assert!(totals.all(|line| field(line, "bytes_lost") == Some("0")), "bytes were lost:\n{}", self.text);
    }

    /// Asserts for every sink that `sent` events were written and nothing was lost. Returns `sent = written + lost`.
    pub fn check(&self, sent: u64) -> String {
        self.check_bytes();
        let all = sent.to_string();
        let expected = [("events", &*all), ("written", &*all), ("shed", "0"), ("failed", "0")];
        let mut sinks = self.text.lines().filter(|line| line.contains(" sink totals ")).peekable();
        assert!(sinks.peek().is_some(), "no totals:\n{}", self.text);
        let is_expected = |line: &str| expected.iter().all(|(name, value)| field(line, name) == Some(value));
        assert!(sinks.all(is_expected), "{sent} events were sent, not all are written:\n{}", self.text);
        format!("{0} = {0} + 0", table::count(sent))
    }
}

/// The cost of a run.
#[derive(Debug)]
pub struct Cost {
    pub events: u64,
    /// From the first byte until the daemon has read everything.
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub memory: Memory,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// `sent = written + lost`.
    pub balance: String,
}

/// What the agents of a run sent.
#[derive(Clone, Copy, Debug)]
pub struct SentEvents {
    /// Events of the measured part.
    pub events: u64,
    /// Events that `prepare` sent before the measurement.
    pub before: u64,
}

impl Cost {
    /// Starts a daemon, calls `prepare` and then `send`, and stops the daemon. Only `send` is measured. The daemon's files
    /// exist until the returned counters are dropped.
    pub fn of<T>(
        config: &str,
        prepare: impl FnOnce(&Daemon) -> T,
        send: impl FnOnce(&Daemon, T) -> SentEvents,
    ) -> (Cost, FinalCounters) {
        Cost::run(config, prepare, send, FinalCounters::check)
    }

    /// The same for a listener that sums events up: what is written has another number.
    pub fn of_sums(load: &Load, events: u64, more: &str, sinks: &[&str]) -> Cost {
        let direction = load.direction();
        let send = |daemon: &Daemon, ()| {
            let sent = Simulation::start(&load.arguments(direction, daemon, events)).finish().events;
            SentEvents { events: sent, before: 0 }
        };
        let check = |counters: &FinalCounters, _| {
            counters.check_bytes();
            "summed up".to_owned()
        };
        Cost::run(&load.config(direction, more, sinks), |_| (), send, check).0
    }

    fn run<T>(
        config: &str,
        prepare: impl FnOnce(&Daemon) -> T,
        send: impl FnOnce(&Daemon, T) -> SentEvents,
        check: impl FnOnce(&FinalCounters, u64) -> String,
    ) -> (Cost, FinalCounters) {
        let daemon = Daemon::start(config);
        let prepared = prepare(&daemon);
        let before = daemon.settled_cpu_seconds();
        let began = Instant::now();
        let sent = send(&daemon, prepared);
        // Agents wait until the daemon has read everything and closed; the sinks write the rest of their queues afterwards.
        let seconds = began.elapsed().as_secs_f64();
        let cpu_seconds = daemon.settled_cpu_seconds() - before;
        let memory = daemon.process.memory();
        let counters = daemon.stop();
        let balance = check(&counters, sent.before + sent.events);
        let (bytes_in, bytes_out) = (counters.bytes_read(), counters.bytes_written());
        (Cost { events: sent.events, seconds, cpu_seconds, memory, bytes_in, bytes_out, balance }, counters)
    }

    /// Like [`Cost::of`], for simulated agents.
    pub fn of_load(load: &Load, events: u64, more: &str, sinks: &[&str], arguments: &[&str]) -> (Cost, FinalCounters) {
        let direction = load.direction();
        let send = |daemon: &Daemon, ()| {
            let mut all = load.arguments(direction, daemon, events);
            all.extend(arguments.iter().map(|&argument| argument.to_owned()));
            SentEvents { events: Simulation::start(&all).finish().events, before: 0 }
        };
        Cost::of(&load.config(direction, more, sinks), |_| (), send)
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

/// What simulated agents report to have sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub events: u64,
    pub bytes: u64,
    /// From the start of the process to its end. The daemon has read everything by then, because agents wait for that.
    pub seconds: f64,
    /// From the start until the last byte was written to the socket.
    pub last_byte_seconds: f64,
}

/// Simulated agents that are still sending.
#[derive(Debug)]
pub struct Simulation {
    child: Child,
    began: Instant,
}

impl Simulation {
    /// Starts `tributary simulate` with these arguments.
    pub fn start(arguments: &[String]) -> Simulation {
        let mut command = tributary();
        command.arg("simulate").args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
        Simulation { began: Instant::now(), child: command.spawn().unwrap() }
    }

    /// Waits until everything is sent.
    pub fn finish(self) -> Sent {
        let output = self.child.wait_with_output().unwrap();
        let seconds = self.began.elapsed().as_secs_f64();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        let report: serde_json::Value = serde_json::from_str(text.lines().last().unwrap_or_default()).expect(&text);
        let number = |key: &str| report[key].as_u64().expect(&text);
        let last_byte_seconds = report["seconds"].as_f64().expect(&text);
        Sent { events: number("events"), bytes: number("bytes"), seconds, last_byte_seconds }
    }
}

/// A free address of this machine.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Connects, and retries until the other side listens.
pub fn connect(address: SocketAddr) -> TcpStream {
    let began = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) => assert!(began.elapsed() < TIMEOUT, "{address}: {error}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}
