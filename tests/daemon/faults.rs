//! Faults of the machine and of others, done to the real binary: killed under load, out of file descriptors, crowded by
//! silent peers, told to stop while agents upload. What was promised before still holds.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::live::binary::{Binary, run, tributary, until};
use crate::live::wire;
use serde_json::Value;

/// A daemon with one listener and one file, whose configuration is in `home`.
fn daemon(home: &Path, listener: &str) -> Binary {
    Binary::start(tributary(&["run", "--config", configured(home, listener).as_str()]))
}

fn configured(home: &Path, listener: &str) -> String {
    let path = home.join("t.toml");
    let sink = format!("[sinks.f]\ntype = \"file\"\npath = {:?}\n", home.join("events.ndjson").display().to_string());
    fs::write(&path, format!("[admin]\nlisten = \"\"\n[listeners.a]\nlisten = \"127.0.0.1:0\"\n{listener}\n{sink}"))
        .unwrap();
    path.display().to_string()
}

/// The user whom nothing belongs to.
const NOBODY: u32 = 65534;

const DATADOG: &str = "protocol = \"datadog\"\nspan_idle = \"20ms\"";

/// Every line of the events' file, each of which must be whole.
fn events(home: &Path) -> Vec<Value> {
    let text = fs::read_to_string(home.join("events.ndjson")).unwrap_or_default();
    text.split_inclusive('\n')
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("torn: {line}")))
        .collect()
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
    until("it goes on", || fs::read_to_string(&file).ok().filter(|text| text.contains("\"afterwards\"")));
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
    assert_eq!(names(&events(home.path())).last(), Some(&"afterwards"));
}

#[test]
fn without_file_descriptors_it_serves_those_it_has_and_the_others_when_there_are_some_again() {
    let home = tempfile::tempdir().unwrap();
    let config = configured(home.path(), DATADOG);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" run --config \"$1\"", env!("CARGO_BIN_EXE_tributary"), &config]);
    let daemon = Binary::start(command);
    let address = daemon.address("a");
    let mut first = speak(address, "first");
    // More than there are descriptors for: some stay in the system's queue.
    let crowd: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    daemon.until_stderr("cannot accept connections");
    first.write_all(&wire::named_span(2, "second")).unwrap();
    let has = |name: &str| events(home.path()).iter().any(|event| event["name"] == name);
    until("those inside are served", || has("second").then_some(()));
    let late = speak(address, "late");
    drop(crowd);
    until("who waited comes in", || has("late").then_some(()));
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
    // In another process: this one may not have so many descriptors.
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
    let mut said = [0; 4];
    if crowd.stdout.as_mut().unwrap().read_exact(&mut said).is_err() {
        eprintln!("this machine allows too few descriptors, or has no python3: nothing is tested");
        crowd.wait().unwrap();
        daemon.signal("KILL");
        daemon.end();
        return;
    }
    let active: Vec<_> =
        (0..100).map(|number| thread::spawn(move || drop(speak(address, &format!("active-{number}"))))).collect();
    active.into_iter().for_each(|active| active.join().unwrap());
    until("all hundred are heard", || (names(&events(home.path())).len() == 100).then_some(()));
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
fn what_was_answered_over_http_before_the_end_is_written() {
    let home = tempfile::tempdir().unwrap();
    let quarantine = home.path().join("quarantine").display().to_string();
    let daemon = daemon(home.path(), &format!("protocol = \"endless\"\nquarantine.dir = {quarantine:?}"));
    let address = daemon.address("a").to_string();
    let load =
        thread::spawn(move || run(&["simulate", "endless", "--to", &address, "--connections", "8", "--for", "60s"]));
    until("uploads are under way", || (events(home.path()).len() > 2_000).then_some(()));
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // The agents count what was answered, and say so when their collector has gone.
    let said = load.join().unwrap().stderr;
    let answered = said.split("sent until then, at least: endless: ").nth(1).and_then(|rest| rest.split(' ').next());
    let answered: usize = answered.unwrap_or_else(|| panic!("{said}")).parse().unwrap();
    let written = events(home.path()).iter().filter(|event| event["kind"] != "loss").count();
    assert!(answered > 0 && written >= answered, "{written} are written, {answered} were answered");
    assert!(ended.stderr.contains(" 0 failed"), "{}", ended.stderr);
}

#[test]
fn a_directory_that_is_taken_away_or_made_unwritable_costs_no_event() {
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
    // In the place of the directory: nothing can be made below a file.
    fs::write(&inside, "").unwrap();
    drop(speak(address, "meanwhile"));
    daemon.until_stderr("events.ndjson");
    fs::remove_file(&inside).unwrap();
    until("what was held is written", || (written(&inside, "meanwhile") || written(&away, "meanwhile")).then_some(()));
    drop(speak(address, "after"));
    until("it goes on", || (written(&inside, "after") || written(&away, "after")).then_some(()));
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}

#[test]
fn permissions_that_are_lost_cost_no_event_once_they_are_given_back() {
    let home = tempfile::tempdir().unwrap();
    let inside = home.path().join("inside");
    fs::create_dir(&inside).unwrap();
    // Who may do everything loses nothing: root runs it as somebody else, who must reach the binary and the directory.
    let program = home.path().join("tributary");
    fs::copy(env!("CARGO_BIN_EXE_tributary"), &program).unwrap();
    let allow = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    allow(home.path(), 0o755);
    allow(&inside, 0o777);
    let config = configured(home.path(), DATADOG);
    let text = fs::read_to_string(&config).unwrap().replace("events.ndjson", "inside/events.ndjson");
    fs::write(&config, text).unwrap();
    let mut command = Command::new(&program);
    command.args(["run", "--config", &config]);
    if fs::metadata(home.path()).unwrap().uid() == 0 {
        command.uid(NOBODY).gid(NOBODY);
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
    // What is open stays writable; so it is let go of.
    allow(&inside, 0o000);
    daemon.signal("HUP");
    until("the file is closed", || (!daemon.has_open(&file)).then_some(()));
    drop(speak(address, "meanwhile"));
    daemon.until_stderr("Permission denied");
    allow(&inside, 0o777);
    until("what was held is written", || written("meanwhile"));
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("sink f: 4 events = 4 written + 0 shed + 0 failed"), "{}", ended.stderr);
}

/// A daemon whose stdout is a pipe that has no reader for now, with a queue of 64 KiB and a grace of two seconds.
fn daemon_with_a_stalled_reader(home: &Path) -> Binary {
    let toml = "limits.shutdown_grace = \"2s\"\n[admin]\nlisten = \"\"\n[listeners.a]\nlisten = \"127.0.0.1:0\"\n\
                protocol = \"datadog\"\n[sinks.console]\ntype = \"stdout\"\nbuffer_bytes = \"64KiB\"\n";
    fs::write(home.join("t.toml"), toml).unwrap();
    Binary::start_unheard(tributary(&["run", "--config", &home.join("t.toml").display().to_string()]))
}

#[test]
fn sigterm_ends_the_daemon_within_its_grace_though_the_reader_of_stdout_stalls() {
    let home = tempfile::tempdir().unwrap();
    let daemon = daemon_with_a_stalled_reader(home.path());
    let address = daemon.address("a");
    // More than the pipe and the queue hold, so that the connections wait for the sink.
    let senders: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
            // It ends with a time-out when the daemon reads no further.
            assert!(stream.write_all(&wire::work(1_000_000).0).is_err());
            stream
        })
        .collect();
    daemon.signal("TERM");
    let began = Instant::now();
    let ended = daemon.end();
    // The grace, and the second that is left for what must be put in order after it.
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}\n{}", began.elapsed(), ended.stderr);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(!ended.line("sink console: ").contains("in flight"), "{}", ended.stderr);
    drop(senders);
}
