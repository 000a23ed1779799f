//! The whole daemon: `simulate` → `run` → a sink, next to a raw TCP → file copy of as many bytes in the same run.
//!
//! `cargo bench --bench end_to_end [-- [PROTOCOL] EVENTS [REPETITIONS]]` prints a table. CPU seconds are user + system of the
//! daemon's own process, from /proc; machines differ, so read the ratio to the raw copy. Nothing is asserted but that
//! every event arrives.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const TRIBUTARY: &str = env!("CARGO_BIN_EXE_tributary");
/// Clock ticks of /proc/PID/stat per second, on every Linux that this is likely to run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// One file, without rotation and fsync.
const FILE_SINK: &str = "type = \"file\"\npath = \"out/events.ndjson\"\nrotate_bytes = \"0\"\nrotate_interval = \"0s\"\n\
                         fsync = \"never\"";
/// What agents of each protocol are simulated, and about as many bytes as one of their events takes in that file.
const LOADS: [Load; 9] = [
    Load { name: "datadog", agent: &["datadog"], options: "", bytes_per_event: 900 },
    Load { name: "bytefrog v1", agent: &["bytefrog", "--protocol-version", "1"], options: "", bytes_per_event: 600 },
    Load { name: "bytefrog v4", agent: &["bytefrog", "--protocol-version", "4"], options: "", bytes_per_event: 600 },
    // Requests wait for their answers, so that several connections are needed to keep the daemon busy; 500 events each.
    Load {
        name: "endless v2",
        agent: &["endless", "--protocol-version", "2", "--connections", "4"],
        options: "",
        bytes_per_event: 700,
    },
    Load {
        name: "endless v3",
        agent: &["endless", "--protocol-version", "3", "--connections", "4"],
        options: "",
        bytes_per_event: 1000,
    },
    // A trace of some forty records with each request.
    Load {
        name: "zico gen1",
        agent: &["zico", "--dialect", "gen1", "--connections", "4"],
        options: "",
        bytes_per_event: 900,
    },
    Load {
        name: "zico gen2",
        agent: &["zico", "--dialect", "gen2", "--connections", "4"],
        options: "",
        bytes_per_event: 900,
    },
    // Objects, and a stack with every eighth event.
    Load {
        name: "rbkit",
        agent: &["rbkit"],
        options: "enable = [\"memory_profile\", \"cpu_profile\"]",
        bytes_per_event: 900,
    },
    // One heap dump, in one message. It is asked for after a second.
    Load {
        name: "rbkit dump",
        agent: &["rbkit", "--heap-objects", EVENTS],
        options: "snapshot_interval = \"1s\"",
        bytes_per_event: 700,
    },
];

/// Stands for the number of events among an agent's arguments.
const EVENTS: &str = "EVENTS";

/// Agents, and the options of their listener; for `rbkit`, of the process that it dials.
struct Load {
    name: &'static str,
    agent: &'static [&'static str],
    options: &'static str,
    bytes_per_event: u64,
}

/// What one run of one row cost.
struct Run {
    seconds: f64,
    cpu_seconds: f64,
    peak_mib: f64,
    bytes_in: u64,
    bytes_out: u64,
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let events = numbers.first().copied().unwrap_or(1_000_000);
    let repetitions = numbers.get(1).copied().unwrap_or(3) as usize;
    println!("{events} simulated events a run, {repetitions} interleaved repetitions; medians (lowest–highest)\n");
    println!(
        "{:<24} {:>12} {:>9} {:>9} {:>28} {:>9}",
        "row", "events/s", "MB/s in", "MB/s out", "CPU s per million", "peak MiB"
    );
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word.parse::<u64>().is_err()).collect();
    let named = |load: &&Load| words.iter().any(|word| load.name.starts_with(word.as_str()));
    let is_any_named = LOADS.iter().any(|load| named(&load));
    LOADS.iter().filter(|load| !is_any_named || named(load)).for_each(|load| measure(load, events, repetitions));
}

fn measure(load: &Load, events: u64, repetitions: usize) {
    let (mut discard, mut file, mut raw) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repetitions {
        discard.push(daemon(load, "type = \"discard\"", events));
        // A virtual machine may have to ask its host for every page that it has not used lately, at several times the
        // cost of the copy. So each run that writes finds as much memory freshly freed as the other.
        raw_copy(events * load.bytes_per_event);
        let to_file = daemon(load, FILE_SINK, events);
        raw_copy(events * load.bytes_per_event);
        raw.push(raw_copy(to_file.bytes_out));
        file.push(to_file);
    }
    for (to, runs) in [(" -> discard", &discard), (" -> file", &file), (", raw copy", &raw)] {
        let per_million = spread(runs, |run| run.cpu_seconds / (events as f64 / 1e6));
        println!(
            "{:<24} {:>12.0} {:>9.0} {:>9.0} {:>28} {:>9.1}",
            format!("{}{to}", load.name),
            events as f64 / median(runs, |run| run.seconds),
            median(runs, |run| run.bytes_in as f64 / 1e6 / run.seconds),
            median(runs, |run| run.bytes_out as f64 / 1e6 / run.seconds),
            per_million,
            median(runs, |run| run.peak_mib),
        );
    }
    let ratio = median(&file, |run| run.cpu_seconds) / median(&raw, |run| run.cpu_seconds);
    println!("{} -> file costs {ratio:.2} times the raw copy\n", load.name);
}

fn median(runs: &[Run], figure: impl Fn(&Run) -> f64) -> f64 {
    let mut figures: Vec<f64> = runs.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn spread(runs: &[Run], figure: impl Fn(&Run) -> f64) -> String {
    let low = runs.iter().map(&figure).fold(f64::INFINITY, f64::min);
    let high = runs.iter().map(&figure).fold(0.0, f64::max);
    format!("{:.3} ({low:.3}–{high:.3})", median(runs, &figure))
}

/// Runs the daemon with one sink, sends it everything, and stops it.
fn daemon(load: &Load, sink: &str, events: u64) -> Run {
    let directory = tempfile::tempdir().unwrap();
    let address = free_address();
    let Load { agent, options, .. } = load;
    // Who binds, and who connects.
    let is_dialled = agent[0] == "rbkit";
    let request = free_address();
    let to: Vec<String> = if is_dialled {
        vec!["--publish".to_owned(), address.to_string(), "--request".to_owned(), request.to_string()]
    } else {
        vec!["--to".to_owned(), address.to_string()]
    };
    let listener = if is_dialled {
        let agents = format!("agents = [{{ publish = \"{address}\", request = \"{request}\", {options} }}]");
        format!("protocol = \"rbkit\"\nreconnect = {{ min = \"10ms\", max = \"50ms\" }}\n{agents}")
    } else {
        format!("protocol = \"{}\"\nlisten = \"{address}\"\n{options}", agent[0])
    };
    let config = format!("[listeners.bench]\n{listener}\n[sinks.out]\n{sink}\n");
    fs::write(directory.path().join("tributary.toml"), config).unwrap();
    let mut daemon = Command::new(TRIBUTARY)
        .arg("run")
        .current_dir(&directory)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !is_dialled && TcpStream::connect(address).is_err() {
        thread::sleep(Duration::from_millis(10));
    }
    let cpu_before = cpu_seconds(&daemon);
    let began = Instant::now();
    let sent = Command::new(TRIBUTARY)
        .arg("simulate")
        .args(agent.iter().map(|argument| argument.replace(EVENTS, &events.to_string())))
        .args(to)
        .args(["--count", &events.to_string()])
        .output()
        .unwrap();
    // The agent waits until the daemon has read to the end and closed; what lanes still hold is soon written.
    let seconds = began.elapsed().as_secs_f64();
    let (mut cpu, mut before) = (cpu_seconds(&daemon), -1.0);
    while cpu > before {
        thread::sleep(Duration::from_millis(200));
        (before, cpu) = (cpu, cpu_seconds(&daemon));
    }
    let peak_mib = peak_mib(&daemon);
    Command::new("kill").args(["-TERM", &daemon.id().to_string()]).status().unwrap();
    let mut books = String::new();
    daemon.stderr.take().unwrap().read_to_string(&mut books).unwrap();
    assert!(daemon.wait().unwrap().success(), "{books}");
    let sent = String::from_utf8(sent.stderr).unwrap();
    let number = |key: &str| -> u64 {
        sent.split(&format!("\"{key}\":")).nth(1).unwrap().split(',').next().unwrap().parse().unwrap()
    };
    let (events, bytes_in) = (number("events"), number("bytes"));
    let expected = format!("{events} events = {events} written + 0 shed + 0 failed");
    assert!(books.contains(&expected), "not everything arrived:\n{books}\n{sent}");
    let bytes_out = fs::metadata(directory.path().join("out/events.ndjson")).map_or(0, |file| file.len());
    Run { seconds, cpu_seconds: cpu - cpu_before, peak_mib, bytes_in, bytes_out }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn cpu_seconds(process: &Child) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    // After the name in parentheses: user and system time are the 12th and 13th fields.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / TICKS_PER_SECOND
}

fn peak_mib(process: &Child) -> f64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// What no collector can do without: receive that many bytes on loopback and write them to a file.
fn raw_copy(bytes: u64) -> Run {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sender = thread::spawn(move || send(address, bytes));
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let before = thread_cpu_seconds();
    let (stream, _) = listener.accept().unwrap();
    copy(stream, &directory.path().join("raw")).unwrap();
    let cpu_seconds = thread_cpu_seconds() - before;
    sender.join().unwrap().unwrap();
    Run { seconds: began.elapsed().as_secs_f64(), cpu_seconds, peak_mib: 0.0, bytes_in: bytes, bytes_out: bytes }
}

fn send(address: SocketAddr, bytes: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    let piece = vec![b'x'; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        let size = left.min(piece.len() as u64);
        stream.write_all(&piece[..size as usize])?;
        left -= size;
    }
    Ok(())
}

fn copy(mut stream: TcpStream, path: &Path) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            size => file.write_all(&buffer[..size])?,
        }
    }
}

fn thread_cpu_seconds() -> f64 {
    let on_cpu = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    on_cpu.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e9
}
