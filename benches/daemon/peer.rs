//! Another collector over the same lines: rsyslog takes JSON by TCP, parses it and writes it to a file.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::process::Process;
use super::{PATIENCE, connect, free_address};

/// What it cost.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub peak_mib: f64,
    pub bytes_out: u64,
}

/// Which rsyslog is installed.
pub fn rsyslog_version() -> Option<String> {
    let output = Command::new("rsyslogd").arg("-v").output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.split_whitespace().nth(1).map(str::to_owned)
}

/// Each message is parsed whole, and written again from what was parsed.
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

/// Sends it the lines of a file, so many.
pub fn rsyslog(lines: &Path, count: u64) -> Taken {
    let directory = tempfile::tempdir().unwrap();
    let address = free_address();
    let place = directory.path();
    fs::write(place.join("conf"), config(address, place)).unwrap();
    let mut command = Command::new("rsyslogd");
    command.arg("-n").arg("-f").arg(place.join("conf")).arg("-i").arg(place.join("pid"));
    let mut child = command.stdout(Stdio::null()).stderr(File::create(place.join("log")).unwrap()).spawn().unwrap();
    let mut stream = connect(address);
    let process = Process { id: child.id() };
    let before = process.cpu_seconds();
    let began = Instant::now();
    io::copy(&mut File::open(lines).unwrap(), &mut stream).unwrap();
    drop(stream);
    // It has written everything when its file has not grown for a while.
    let written = || fs::metadata(place.join("lines")).map_or(0, |file| file.len());
    let (mut size, mut grown) = (0, Instant::now());
    while size == 0 || grown.elapsed() < Duration::from_millis(500) {
        assert!(began.elapsed() < PATIENCE * 5, "it does not come to an end");
        thread::sleep(Duration::from_millis(5));
        if written() > size {
            (size, grown) = (written(), Instant::now());
        }
    }
    let seconds = (grown - began).as_secs_f64();
    let (cpu_seconds, peak_mib) = (process.cpu_seconds() - before, process.memory().peak);
    Command::new("kill").args(["-TERM", &process.id.to_string()]).status().unwrap();
    child.wait().unwrap();
    let text = fs::read(place.join("lines")).unwrap();
    let newlines = text.iter().filter(|byte| **byte == b'\n').count() as u64;
    let log = fs::read_to_string(place.join("log")).unwrap();
    assert_eq!(newlines, count, "lines are missing: {log}");
    assert_eq!(keys(&text), keys(&fs::read(lines).unwrap()), "it does not parse them: {log}");
    Taken { seconds, cpu_seconds, peak_mib, bytes_out: text.len() as u64 }
}

/// The keys of the object in the first line.
fn keys(lines: &[u8]) -> Vec<String> {
    let line = lines.split(|byte| *byte == b'\n').next().unwrap();
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(line).unwrap();
    let mut keys: Vec<String> = object.keys().cloned().collect();
    keys.sort();
    keys
}
