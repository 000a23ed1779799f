//! A daemon whose system calls are recorded by strace, which can also delay them or let them fail.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::binary::{Binary, Ended, until};

/// A traced daemon. Killed when dropped.
pub struct Traced {
    strace: Binary,
    tracee: Tracee,
    calls: PathBuf,
}

/// The daemon: it survives a strace that is killed.
struct Tracee(String);

impl Drop for Tracee {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        let _ = Command::new("kill").args(["-KILL", &self.0]).stderr(Stdio::null()).status();
    }
}

/// Before a command: a process that strace follows continues when strace is killed, unless the system kills it too.
const KILLED_WITH_STRACE: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];

/// Whether strace is here and may trace; otherwise says that the test is skipped.
pub fn is_available() -> bool {
    let tried = Command::new("strace")
        .args(["-e", "trace=none"])
        .args(KILLED_WITH_STRACE)
        .arg("true")
        .stderr(Stdio::null())
        .status();
    let is_available = tried.is_ok_and(|status| status.success());
    if !is_available {
        println!("skipped: strace or setpriv is not installed, or may not trace");
    }
    is_available
}

impl Traced {
    /// Starts a daemon with this configuration. `inject`: what happens to its calls, as in `fdatasync:error=EIO:when=1`.
    pub fn start(directory: &Path, toml: &str, inject: Option<&str>) -> Traced {
        let (config, calls) = (directory.join("tributary.toml"), directory.join("calls"));
        fs::write(&config, toml).unwrap();
        let mut command = Command::new("strace");
        command.args([
            "-f",
            "-y",
            "-s",
            "40",
            "-e",
            "trace=fdatasync,fsync,rename,write,writev,sendto,ftruncate",
            "-o",
        ]);
        command.arg(&calls);
        if let Some(inject) = inject {
            command.args(["-e", &format!("inject={inject}")]);
        }
        command.args(KILLED_WITH_STRACE).args([crate::program(), "run", "--config"]).arg(&config);
        let strace = Binary::start(command);
        strace.until_stderr("listening ");
        let children = format!("/proc/{0}/task/{0}/children", strace.pid());
        let tracee = Tracee(fs::read_to_string(children).unwrap().split_whitespace().next().unwrap().to_owned());
        Traced { strace, tracee, calls }
    }

    pub fn address(&self, listener: &str) -> SocketAddr {
        self.strace.address(listener)
    }

    pub fn until_stderr(&self, what: &str) -> String {
        self.strace.until_stderr(what)
    }

    /// The calls that have ended so far, in the order of their ends.
    pub fn calls(&self) -> Vec<String> {
        ended_calls(&fs::read_to_string(&self.calls).unwrap())
    }

    /// Waits until a call with this text was recorded.
    pub fn until_call(&self, what: &str) {
        until(what, || self.calls().iter().any(|call| call.contains(what)).then_some(()));
    }

    /// Stops the daemon with SIGTERM.
    pub fn stop(self) -> (Ended, Vec<String>) {
        assert!(Command::new("kill").args(["-TERM", &self.tracee.0]).status().unwrap().success());
        let Traced { strace, tracee, calls } = self;
        let ended = strace.end();
        drop(tracee);
        let text = fs::read_to_string(calls).unwrap();
        (ended, ended_calls(&text))
    }
}

/// The calls of a recording. Those that another thread's call has interrupted are put together.
fn ended_calls(text: &str) -> Vec<String> {
    let (mut unfinished, mut ended) = (HashMap::new(), Vec::new());
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::trim_end) {
        let thread = line.split(' ').next().unwrap();
        if let Some(begin) = line.strip_suffix(" <unfinished ...>") {
            unfinished.insert(thread, begin);
        } else if let Some((_, rest)) = line.split_once(" resumed>") {
            ended.push(format!("{}{rest}", unfinished.remove(thread).unwrap_or_default()));
        } else {
            ended.push(line.to_owned());
        }
    }
    ended
}

/// Whether this call is a successful sync of the data of a file.
pub fn is_synced(call: &str) -> bool {
    call.contains("fdatasync") && (call.ends_with("= 0") || call.ends_with("= 0 (DELAYED)"))
}
