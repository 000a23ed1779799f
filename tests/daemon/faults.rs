//! Faults of the machine and of peers, with the real binary: killed under load, out of file descriptors, many silent
//! peers, stopped while agents upload. All guarantees still hold.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::live::binary::{Binary, copy_to, end_with_this_thread, field, run, tributary, until};
use crate::live::wire;
use serde_json::Value;

/// A daemon with one listener and one file, whose configuration is in `home`.
fn daemon(home: &Path, listener: &str) -> Binary {
    Binary::start(tributary(&["run", "--config", configured(home, listener).as_str()]))
}

fn configured(home: &Path, listener: &str) -> String {
    let path = home.join("t.toml");
    // All events are in one file, also when the load runs for long.
    let rotation = "rotate_bytes = 0\nrotate_interval = \"0s\"";
    let file = home.join("events.ndjson").display().to_string();
    let sink = format!("[sinks.f]\ntype = \"file\"\npath = {file:?}\n{rotation}\n");
    fs::write(&path, format!("[admin]\nlisten = \"\"\n[listeners.a]\nlisten = \"127.0.0.1:0\"\n{listener}\n{sink}"))
        .unwrap();
    path.display().to_string()
}

/// A user that owns no files.
const UNPRIVILEGED: u32 = 65534;

const DATADOG: &str = "protocol = \"datadog\"\nspan_idle = \"20ms\"";

/// Every line of the events' file; each must be whole.
fn events(home: &Path) -> Vec<Value> {
    let text = fs::read_to_string(home.join("events.ndjson")).unwrap_or_default();
    text.split_inclusive('\n')
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("torn: {line}")))
        .collect()
}

/// The same while the daemon writes: of a write that is under way, a reader can see a part.
fn events_so_far(home: &Path) -> Vec<Value> {
    let text = fs::read_to_string(home.join("events.ndjson")).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("torn: {line}"))).collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().filter(|event| event["kind"] == "span").map(|event| event["name"].as_str().unwrap()).collect()
}

/// A connection that greets and sends one span.
fn speak(address: SocketAddr, name: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&[wire::process(), wire::named_span(1, name)].concat()).unwrap();
    stream
}

#[test]
fn a_daemon_that_is_killed_under_load_leaves_whole_lines_and_the_next_goes_on_behind_them() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("events.ndjson");
    let mut before = 0;
    for round in 0..5 {
        let daemon = daemon(home.path(), DATADOG);
        let address = daemon.address("a").to_string();
        let mut load = Command::new(env!("CARGO_BIN_EXE_tributary"));
        load.args(["simulate", "datadog", "--to", &address, "--connections", "3", "--for", "60s"]);
        end_with_this_thread(&mut load);
        let mut load = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let size = || fs::metadata(&file).map_or(0, |file| file.len());
        until("a megabyte more is written", || (size() > before + 1_000_000).then_some(()));
        daemon.signal("KILL");
        daemon.end();
        load.wait().unwrap();
        // Up to the last line end every line is whole; what is behind it is half a line at most.
        let bytes = fs::read(&file).unwrap();
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        let lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n');
        assert!(lines.into_iter().all(|line| serde_json::from_slice::<Value>(line).is_ok()), "round {round}");
        before = whole as u64;
    }
    let daemon = daemon(home.path(), DATADOG);
    drop(speak(daemon.address("a"), "afterwards"));
    until("it continues", || fs::read_to_string(&file).ok().filter(|text| text.contains("\"afterwards\"")));
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
    assert_eq!(names(&events(home.path())).last(), Some(&"afterwards"));
}

#[test]
fn without_file_descriptors_it_serves_those_it_has_and_the_others_when_there_are_some_again() {
    let home = tempfile::tempdir().unwrap();
    // No silent connection leaves.
    let config = configured(home.path(), &format!("{DATADOG}\nhandshake_timeout = \"10m\""));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" run --config \"$1\"", env!("CARGO_BIN_EXE_tributary"), &config]);
    let daemon = Binary::start(command);
    let address = daemon.address("a");
    let mut first = speak(address, "first");
    // More than there are descriptors for: some stay in the system's queue.
    let crowd: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    daemon.until_stderr("cannot accept connections");
    // The crowd has left descriptors for the sink's file.
    first.write_all(&wire::named_span(2, "second")).unwrap();
    let has = |name: &str| events_so_far(home.path()).iter().any(|event| event["name"] == name);
    until("those inside are served", || has("second").then_some(()));
    let late = speak(address, "late");
    drop(crowd);
    until("the connection that waited is served", || has("late").then_some(()));
    drop((first, late));
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}

#[test]
fn thousands_of_silent_connections_are_no_hindrance_to_the_others_and_cost_little() {
    const SILENT: usize = 5_000;
    let home = tempfile::tempdir().unwrap();
    let config = configured(home.path(), &format!("{DATADOG}\nmax_connections = 10000\nidle_timeout = \"0s\""));
    let mut command = Command::new("sh");
    let script = "ulimit -n 12000 || exit 77; exec \"$0\" run --config \"$1\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_tributary"), &config]);
    let daemon = Binary::start(command);
    let address = daemon.address("a");
    // In another process: this one may not have enough descriptors.
    let script = "ulimit -n 12000 || exit 77; exec python3 -c \"$0\" \"$1\" \"$2\" \"$3\"";
    let python = "import socket,sys\n\
                  hello=bytes.fromhex('dd0000000001'+'0000000000000040')\n\
                  held=[]\n\
                  for _ in range(int(sys.argv[3])):\n    \
                      s=socket.create_connection((sys.argv[1],int(sys.argv[2])));s.sendall(hello);held.append(s)\n\
                  print('held',flush=True)\n\
                  sys.stdin.read()";
    let (host, port, count) = (address.ip().to_string(), address.port().to_string(), SILENT.to_string());
    let mut crowd = Command::new("sh");
    crowd.args(["-c", script, python, &host, &port, &count]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut crowd = crowd.spawn().unwrap();
    let mut output = [0; 4];
    if crowd.stdout.as_mut().unwrap().read_exact(&mut output).is_err() {
        eprintln!("this machine allows too few descriptors, or has no python3: nothing is tested");
        crowd.wait().unwrap();
        daemon.signal("KILL");
        daemon.end();
        return;
    }
    let active: Vec<_> =
        (0..100).map(|number| thread::spawn(move || drop(speak(address, &format!("active-{number}"))))).collect();
    active.into_iter().for_each(|active| active.join().unwrap());
    until("the spans of all hundred are written", || (names(&events_so_far(home.path())).len() == 100).then_some(()));
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    // Some 30 KiB for each, in a build without optimisation.
    assert!(peak.unwrap() < 256 << 10, "{peak:?} KiB");
    drop(crowd.stdin.take());
    crowd.wait().unwrap();
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}

#[test]
fn everything_that_was_acknowledged_over_http_is_written() {
    let home = tempfile::tempdir().unwrap();
    let quarantine = home.path().join("quarantine").display().to_string();
    let daemon = daemon(home.path(), &format!("protocol = \"endless\"\nquarantine.dir = {quarantine:?}"));
    let address = daemon.address("a").to_string();
    let load =
        thread::spawn(move || run(&["simulate", "endless", "--to", &address, "--connections", "8", "--for", "60s"]));
    until("uploads are under way", || (events_so_far(home.path()).len() > 2_000).then_some(()));
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // The agents count the answers, and report them when their collector has ended.
    let output = load.join().unwrap().stderr;
    let answered = output.split("sent until then, at least: endless: ").nth(1).and_then(|rest| rest.split(' ').next());
    let answered: usize = answered.unwrap_or_else(|| panic!("{output}")).parse().unwrap();
    let written = events(home.path()).iter().filter(|event| event["kind"] != "loss").count();
    assert!(answered > 0 && written >= answered, "{written} are written, {answered} were answered");
    assert!(ended.stderr.contains(" failed=0"), "{}", ended.stderr);
}

#[test]
fn a_directory_that_is_moved_away_loses_no_event() {
    let home = tempfile::tempdir().unwrap();
    let (inside, away) = (home.path().join("inside"), home.path().join("away"));
    let config = configured(home.path(), DATADOG);
    let text = fs::read_to_string(&config).unwrap().replace("events.ndjson", "inside/events.ndjson");
    fs::write(&config, text).unwrap();
    let daemon = Binary::start(tributary(&["run", "--config", &config]));
    let address = daemon.address("a");
    let written = |path: &Path, name: &str| {
        let text = fs::read_to_string(path.join("events.ndjson")).unwrap_or_default();
        text.contains(&format!("\"{name}\""))
    };
    drop(speak(address, "before"));
    until("it is written", || written(&inside, "before").then_some(()));
    fs::rename(&inside, &away).unwrap();
    // A file in place of the directory: nothing can be created below it.
    fs::write(&inside, "").unwrap();
    drop(speak(address, "meanwhile"));
    daemon.until_stderr("events.ndjson");
    fs::remove_file(&inside).unwrap();
    until("the buffered events are written", || {
        (written(&inside, "meanwhile") || written(&away, "meanwhile")).then_some(())
    });
    drop(speak(address, "after"));
    until("it continues", || (written(&inside, "after") || written(&away, "after")).then_some(()));
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}

#[test]
fn lost_permissions_lose_no_event_once_they_are_restored() {
    let home = tempfile::tempdir().unwrap();
    let inside = home.path().join("inside");
    fs::create_dir(&inside).unwrap();
    // Root has all permissions, so root runs it as another user, which needs access to the binary and the directory.
    let program = home.path().join("tributary");
    copy_to(&program);
    let allow = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    allow(home.path(), 0o755);
    allow(&inside, 0o777);
    let config = configured(home.path(), DATADOG);
    let text = fs::read_to_string(&config).unwrap().replace("events.ndjson", "inside/events.ndjson");
    fs::write(&config, text).unwrap();
    let mut command = Command::new(&program);
    command.args(["run", "--config", &config]);
    if fs::metadata(home.path()).unwrap().uid() == 0 {
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
    let daemon = Binary::start(command);
    let address = daemon.address("a");
    let file = inside.join("events.ndjson");
    let written = |name: &str| {
        let text = fs::read_to_string(&file).unwrap_or_default();
        text.contains(&format!("\"{name}\"")).then_some(())
    };
    drop(speak(address, "before"));
    until("it is written", || written("before"));
    // An open file stays writable, so it is closed.
    allow(&inside, 0o000);
    daemon.signal("HUP");
    until("the file is closed", || (!daemon.has_open(&file)).then_some(()));
    drop(speak(address, "meanwhile"));
    daemon.until_stderr("Permission denied");
    allow(&inside, 0o777);
    until("the buffered events are written", || written("meanwhile"));
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("sink=\"f\" events=4 written=4 shed=0 failed=0"), "{}", ended.stderr);
}

/// A daemon whose stdout is a pipe without a reader for now, with a queue of 64 KiB.
fn daemon_with_a_stalled_reader(home: &Path, grace: &str) -> Binary {
    let toml = format!(
        "limits.shutdown_grace = \"{grace}\"\n[admin]\nlisten = \"\"\n[listeners.a]\nlisten = \"127.0.0.1:0\"\n\
         protocol = \"datadog\"\n[sinks.console]\ntype = \"stdout\"\nbuffer_bytes = \"64KiB\"\n"
    );
    fs::write(home.join("t.toml"), toml).unwrap();
    Binary::start_unread(tributary(&["run", "--config", &home.join("t.toml").display().to_string()]))
}

/// Sends spans over a connection until the daemon reads no further.
fn send_until_it_stalls(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    assert!(stream.write_all(&wire::work(300_000).0).is_err(), "more than the pipe, the queue and the sockets hold");
    stream
}

/// The number of this field in the totals of the sink.
fn count(line: &str, name: &str) -> usize {
    field(line, name).parse().unwrap()
}

#[test]
fn sigterm_ends_the_daemon_within_its_grace_period_when_the_reader_of_stdout_stalls() {
    let cases = [("2s", false), ("1h", true)];
    let stops =
        cases.map(|(grace, second_signal)| thread::spawn(move || stop_while_stdout_stalls(grace, second_signal)));
    stops.into_iter().for_each(|stop| stop.join().unwrap());
}

/// Stops a daemon that has 2 s or a second signal.
fn stop_while_stdout_stalls(grace: &str, second_signal: bool) {
    let home = tempfile::tempdir().unwrap();
    let mut daemon = daemon_with_a_stalled_reader(home.path(), grace);
    let address = daemon.address("a");
    let connections = [0; 2].map(|_| thread::spawn(move || send_until_it_stalls(address)));
    let connections = connections.map(|connection| connection.join().unwrap());
    let mut stdout = daemon.take_stdout();
    let began = Instant::now();
    daemon.signal("TERM");
    if second_signal {
        daemon.until_stderr("a second signal ends the daemon within seconds");
        daemon.signal("TERM");
    }
    let ended = daemon.end();
    // Before, it never ended. The grace period and a second are its limit; the rest is for a busy machine.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}\n{}", began.elapsed(), ended.stderr);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let mut output = Vec::new();
    stdout.read_to_end(&mut output).unwrap();
    let lines = output.iter().filter(|byte| **byte == b'\n').count();
    let counters = ended.stderr.lines().find(|line| line.contains("sink totals sink=\"console\""));
    let counters = counters.unwrap_or_else(|| panic!("{}", ended.stderr));
    assert!(!counters.contains("in_flight"), "{counters}");
    assert_eq!((count(counters, "written"), output.last()), (lines, Some(&b'\n')), "{counters}");
    assert!(count(counters, "failed") > 0 && lines > 0, "{counters}");
    drop(connections);
}

#[test]
fn sigterm_does_not_wait_for_a_reload_that_waits_for_a_sink() {
    let home = tempfile::tempdir().unwrap();
    let daemon = daemon_with_a_stalled_reader(home.path(), "1h");
    let connection = send_until_it_stalls(daemon.address("a"));
    let path = home.path().join("t.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("64KiB", "65KiB")).unwrap();
    // The changed sink writes what it has first, for as long as the grace period: it never gets there.
    daemon.signal("HUP");
    daemon.signal("TERM");
    daemon.until_stderr("stopping; a second signal ends the daemon within seconds");
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(!ended.stderr.contains("in_flight"), "{}", ended.stderr);
    drop(connection);
}
