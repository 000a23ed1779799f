//! A system that allows no further threads: the daemon does not start, or says what it cannot do, and loses nothing.

#![allow(clippy::print_stderr, reason = "a test that cannot run says why")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::live::binary::{Binary, copy_to, until};
use crate::live::wire;
use std::io::Write as _;
use std::net::TcpStream;

/// A user of this test alone: the limit counts the threads of all processes of a user.
const USER: u32 = 61_234;

/// A configuration that writes into a directory, and a command that runs it with at most this number of threads. `None`: only
/// root can run a program as another user.
#[allow(clippy::print_stderr, reason = "the lint knows only test functions")]
fn limited(home: &Path, threads: usize) -> Option<Command> {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("only root can run the daemon as a user of its own: nothing is tested");
        return None;
    }
    let program = home.join("tributary");
    copy_to(&program);
    fs::set_permissions(home, fs::Permissions::from_mode(0o777)).unwrap();
    write_config(home, "first");
    let mut command = Command::new("prlimit");
    command.arg(format!("--nproc={threads}:64")).arg(program).current_dir(home);
    command.args(["run", "--config", "t.toml"]).uid(USER).gid(USER);
    Some(command)
}

fn write_config(home: &Path, file: &str) {
    let text = format!(
        "limits.threads = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n[listeners.a]\nprotocol = \"datadog\"\n\
         listen = \"127.0.0.1:0\"\n[sinks.f]\ntype = \"file\"\npath = \"{file}.ndjson\"\n"
    );
    fs::write(home.join("t.toml"), text).unwrap();
}

fn send(daemon: &Binary, name: &str) {
    let mut stream = TcpStream::connect(daemon.address("a")).unwrap();
    stream.write_all(&[wire::process(), wire::named_span(1, name)].concat()).unwrap();
}

fn allow(daemon: &Binary, threads: &str) {
    let mut command = Command::new("prlimit");
    command.args(["--pid", &daemon.pid().to_string(), &format!("--nproc={threads}:")]).uid(USER).gid(USER);
    assert!(command.status().unwrap().success());
}

// One test, because both parts count the threads of the same user.
#[test]
fn without_threads_the_daemon_does_not_start_and_a_sink_that_gets_none_keeps_its_events() {
    let home = tempfile::tempdir().unwrap();
    let Some(command) = limited(home.path(), 4) else { return };
    let ended = Binary::start(command).end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let words = ended.last_words();
    assert!(words.starts_with("tributary: cannot start: 7 threads are needed, and "), "{words}");
    assert!(words.contains("raise the number of processes and threads that are allowed"), "{words}");
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);

    let daemon = Binary::start(limited(home.path(), 32).unwrap());
    send(&daemon, "before");
    let written = |file: &str, name: &str| {
        let text = fs::read_to_string(home.path().join(format!("{file}.ndjson"))).unwrap_or_default();
        text.contains(&format!("\"{name}\"")).then_some(())
    };
    until("it is written", || written("first", "before"));
    allow(&daemon, "1");
    write_config(home.path(), "second");
    daemon.signal("HUP");
    let line = daemon.until_stderr("sink failed; restarting it");
    assert!(line.contains("cannot start a thread"), "{line}");
    send(&daemon, "meanwhile");
    let (status, text) = until("it is not ready", || {
        let answer = crate::spool::get(&daemon, "/readyz");
        (answer.0 == 503).then_some(answer)
    });
    assert!(text.contains("sink f") && text.contains("cannot start a thread"), "{status} {text}");
    assert!(crate::spool::get(&daemon, "/metrics").1.contains("tributary_sink_up{sink=\"f\"} 0"));
    allow(&daemon, "64");
    until("the event that waited is written", || written("second", "meanwhile"));
    until("it is ready", || (crate::spool::get(&daemon, "/readyz").0 == 200).then_some(()));
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}
