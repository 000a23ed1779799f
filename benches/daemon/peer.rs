//! Another collector over the same lines: rsyslog receives JSON by TCP, parses it and writes it to a file.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::process::Process;
use super::{TIMEOUT, connect, free_address};

/// The cost of a run of rsyslog.
#[derive(Clone, Copy, Debug)]
pub struct PeerCost {
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub peak_mib: f64,
    pub bytes_out: u64,
}

/// The version of the installed rsyslog.
pub fn rsyslog_version() -> Option<String> {
    let output = Command::new("rsyslogd").arg("-v").output().ok()?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    output.split_whitespace().nth(1).map(str::to_owned)
}

/// rsyslog parses each message completely, and writes the parsed properties.
fn config(address: SocketAddr, directory: &Path) -> String {
    let port = address.port();
    let directory = directory.display();
    format!(
        "global(workDirectory=\"{directory}\" maxMessageSize=\"64k\")\n\
         module(load=\"imptcp\")\n\
         module(load=\"mmjsonparse\")\n\
         template(name=\"parsed\" type=\"list\") {{ property(name=\"$!all-json-plain\") constant(value=\"\\n\") }}\n\
         ruleset(name=\"lines\") {{\n\
         action(type=\"mmjsonparse\" cookie=\"\" useRawMsg=\"on\")\n\
         action(type=\"omfile\" file=\"{directory}/lines\" template=\"parsed\" ioBufferSize=\"256k\" asyncWriting=\"off\")\n\
         }}\n\
         input(type=\"imptcp\" address=\"127.0.0.1\" port=\"{port}\" ruleset=\"lines\")\n"
    )
}

/// Sends rsyslog the `count` lines of a file.
pub fn rsyslog(lines: &Path, count: u64) -> PeerCost {
    let directory = tempfile::tempdir().unwrap();
    let address = free_address();
    let folder = directory.path();
    fs::write(folder.join("conf"), config(address, folder)).unwrap();
    let mut command = Command::new("rsyslogd");
    command.arg("-n").arg("-f").arg(folder.join("conf")).arg("-i").arg(folder.join("pid"));
    let mut child = command.stdout(Stdio::null()).stderr(File::create(folder.join("log")).unwrap()).spawn().unwrap();
    let mut stream = connect(address);
    let process = Process { id: child.id() };
    let before = process.cpu_seconds();
    let began = Instant::now();
    io::copy(&mut File::open(lines).unwrap(), &mut stream).unwrap();
    drop(stream);
    // rsyslog has written everything when its file has not grown for half a second.
    let written = || fs::metadata(folder.join("lines")).map_or(0, |file| file.len());
    let (mut size, mut grown) = (0, Instant::now());
    while size == 0 || grown.elapsed() < Duration::from_millis(500) {
        assert!(began.elapsed() < TIMEOUT * 5, "rsyslog does not finish");
        thread::sleep(Duration::from_millis(5));
        if written() > size {
            (size, grown) = (written(), Instant::now());
        }
    }
    let seconds = (grown - began).as_secs_f64();
    let (cpu_seconds, peak_mib) = (process.cpu_seconds() - before, process.memory().peak);
    Command::new("kill").args(["-TERM", &process.id.to_string()]).status().unwrap();
    child.wait().unwrap();
    let text = fs::read(folder.join("lines")).unwrap();
    let newlines = text.iter().filter(|byte| **byte == b'\n').count() as u64;
    let log = fs::read_to_string(folder.join("log")).unwrap();
    assert_eq!(newlines, count, "lines are missing: {log}");
    assert_eq!(keys(&text), keys(&fs::read(lines).unwrap()), "the lines are not parsed: {log}");
    PeerCost { seconds, cpu_seconds, peak_mib, bytes_out: text.len() as u64 }
}

/// The keys of the object in the first line.
fn keys(lines: &[u8]) -> Vec<String> {
    let line = lines.split(|byte| *byte == b'\n').next().unwrap();
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(line).unwrap();
    let mut keys: Vec<String> = object.keys().cloned().collect();
    keys.sort();
    keys
}
