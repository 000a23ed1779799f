//! The daemon as a process: configuration, signals, its counters, and what it does when it cannot write.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::live::binary::{Binary, Ended, field, run, tributary, until};
use crate::live::{PATIENCE, spans, wire};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A daemon with a configuration of its own; more arguments may follow.
fn start(toml: &str, more: &[&str]) -> (TempDir, Binary) {
    let (directory, command) = command(toml, more);
    (directory, Binary::start(command))
}

fn command(toml: &str, more: &[&str]) -> (TempDir, Command) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.toml");
    fs::write(&path, toml).unwrap();
    let command = tributary(&[&["run", "--config", path.to_str().unwrap()], more].concat());
    (directory, command)
}

fn listener() -> String {
    crate::live::listener("")
}

fn file_sink(path: &Path) -> String {
    format!("{}[sinks.archive]\ntype = \"file\"\npath = \"{}\"\n", listener(), path.display())
}

fn simulate(to: SocketAddr, count: u64, connections: u64) -> Value {
    let (to, count, connections) = (to.to_string(), count.to_string(), connections.to_string());
    run(&["simulate", "datadog", "--to", &to, "--count", &count, "--connections", &connections]).sent()
}

/// Sends a span over a connection of its own and waits until the daemon closes, too.
fn send_span(to: SocketAddr, name: &str) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[wire::process(), wire::named_span(1, name)].concat()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

fn events_in(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Stops the daemon with a signal, after which it must end well.
fn stop(daemon: Binary, signal: &str) -> Ended {
    daemon.signal(signal);
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended
}

#[test]
fn everything_that_agents_send_is_written_and_counted() {
    let (directory, daemon) = start(&listener(), &[]);
    let sent = simulate(daemon.address("test"), 3_000, 5);
    let ended = stop(daemon, "TERM");
    let count = sent["events"].as_u64().unwrap();
    assert_eq!(count, 3_000);
    assert_eq!(ended.events().len() as u64, count);
    assert!(ended.stderr.contains(&format!("configuration=\"{}\"", directory.path().join("t.toml").display())));
    let (bytes, counters) = (&sent["bytes"], ended.line("INFO listener totals listener=\"test\" protocol=datadog "));
    assert!(
        counters
            .contains(&format!("connections=5 bytes_in={bytes} bytes_decoded={bytes} bytes_lost=0 events={count} "))
    );
    let counters = ended.line("INFO sink totals sink=\"console\"");
    assert!(counters.ends_with(&format!(" events={count} written={count} shed=0 failed=0")), "{counters}");
}

#[test]
fn sigint_and_sigquit_drain_the_daemon_and_open_records_are_written() {
    for signal in ["INT", "QUIT"] {
        open_records_are_written_after(signal);
    }
}

fn open_records_are_written_after(signal: &str) {
    let (_directory, daemon) = start(&listener(), &[]);
    let mut stream = TcpStream::connect(daemon.address("test")).unwrap();
    stream.write_all(&[wire::process(), wire::named_span(1, "closed"), wire::named_span(1, "open")].concat()).unwrap();
    // A second connection that is served shows that the daemon has received the bytes of the first.
    let mut reader = TcpStream::connect(daemon.address("test")).unwrap();
    reader.write_all(b"x").unwrap();
    reader.shutdown(Shutdown::Write).unwrap();
    reader.read_to_end(&mut Vec::new()).unwrap();
    let ended = stop(daemon, signal);
    let events = ended.events();
    assert_eq!(spans(&events)[0], ("closed", true));
    assert_eq!(spans(&events)[1].0, "open");
}

#[test]
fn signals_that_ask_for_no_stop_are_ignored_and_logged() {
    let (_directory, daemon) = start(&listener(), &[]);
    let address = daemon.address("test");
    for signal in ["USR1", "USR2", "ALRM", "VTALRM", "PROF", "IO", "XFSZ", "XCPU"] {
        daemon.signal(signal);
        let line = daemon.until_stderr(&format!("this signal is ignored signal=\"SIG{signal}\""));
        assert!(line.contains(" note="), "{line}");
    }
    send_span(address, "after");
    let ended = stop(daemon, "TERM");
    assert_eq!(spans(&ended.events()), [("after", true)]);
}

#[test]
fn a_file_that_may_not_grow_cannot_be_written_and_its_events_wait() {
    const LIMIT: u64 = 64 << 10;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.ndjson");
    let (_directory, command) = command(&file_sink(&path), &[]);
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--fsize={LIMIT}:unlimited")).arg(command.get_program()).args(command.get_args());
    let daemon = Binary::start(limited);
    let sent = simulate(daemon.address("test"), 1_000, 1);
    let line = daemon.until_stderr("cannot write; buffering and retrying");
    assert!(line.contains("File too large"), "{line}");
    daemon.until_stderr("this signal is ignored signal=\"SIGXFSZ\"");
    assert!(fs::metadata(&path).unwrap().len() <= LIMIT);
    let pid = daemon.pid().to_string();
    let raised = Command::new("prlimit").args(["--fsize=unlimited:unlimited", "--pid", &pid]).status().unwrap();
    assert!(raised.success());
    let counters = stop(daemon, "TERM");
    let counters = counters.line("INFO sink totals sink=\"archive\"");
    assert!(counters.ends_with(&format!(" events={0} written={0} shed=0 failed=0", sent["events"])), "{counters}");
    assert_eq!(events_in(&path).len() as u64, sent["events"].as_u64().unwrap());
}

#[test]
fn sighup_closes_renamed_files() {
    let directory = tempfile::tempdir().unwrap();
    let (live_file, old_file) = (directory.path().join("events.ndjson"), directory.path().join("old.ndjson"));
    let (_directory, daemon) = start(&file_sink(&live_file), &[]);
    let address = daemon.address("test");
    send_span(address, "before");
    until("the span is in the file", || (!spans(&events_in(&live_file)).is_empty()).then_some(()));
    fs::rename(&live_file, &old_file).unwrap();
    daemon.signal("HUP");
    daemon.until_stderr("configuration reloaded");
    send_span(address, "after");
    stop(daemon, "TERM");
    assert_eq!(spans(&events_in(&old_file)), [("before", true)]);
    assert_eq!(spans(&events_in(&live_file)), [("after", true)]);
}

#[test]
fn sighup_logs_what_has_changed_and_one_line_if_nothing_has() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tributary.toml");
    let sinks = |names: &[&str]| -> String {
        names.iter().map(|name| format!("[sinks.{name}]\ntype = \"discard\"\n")).collect()
    };
    let configure = |grace: &str, names: &[&str]| {
        fs::write(&path, format!("limits.shutdown_grace = \"{grace}\"\n{}{}", listener(), sinks(names))).unwrap();
    };
    configure("10s", &["a", "b"]);
    // As `--config`.
    let daemon = Binary::start(tributary(&["run", path.to_str().unwrap()]));
    daemon.address("test");
    daemon.until_stderr("sink=\"b\"");
    daemon.signal("HUP");
    let line = daemon.until_stderr("configuration reloaded");
    assert!(line.contains("changes=nothing has changed"), "{line}");
    configure("20s", &["b", "c"]);
    daemon.signal("HUP");
    daemon.until_stderr("sinks.c added; sinks.a removed; limits.shutdown_grace = \"20s\", before: \"10s\"");
    let ended = stop(daemon, "TERM");
    let lines: Vec<&str> = ended.stderr.lines().collect();
    let unchanged = lines.iter().position(|line| line.contains("nothing has changed")).unwrap();
    // Nothing else was logged before the next reload.
    let changed = lines[unchanged + 1];
    for change in ["limits changed", "sink a stopped", "sink c started"] {
        assert!(changed.contains(change), "{changed}");
    }
}

#[test]
fn sighup_closes_files_without_a_further_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap().join("events.ndjson");
    let (_directory, daemon) = start(&file_sink(&path), &[]);
    send_span(daemon.address("test"), "before");
    // Everything is written: a later write would open the file again.
    until("the span is in the file", || (!spans(&events_in(&path)).is_empty()).then_some(()));
    assert!(daemon.has_open(&path));
    daemon.signal("HUP");
    until("the file is closed", || (!daemon.has_open(&path)).then_some(()));
    send_span(daemon.address("test"), "after");
    stop(daemon, "TERM");
    assert_eq!(spans(&events_in(&path)), [("before", true), ("after", true)]);
}

#[test]
fn sighup_takes_a_valid_configuration_and_rejects_an_invalid_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let (home, daemon) = start(&file_sink(&file("first.ndjson")), &[]);
    let address = daemon.address("test");
    send_span(address, "first");
    let path = home.path().join("t.toml");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, good.replace("first.ndjson", "second.ndjson") + "[listeners.bad]\nprotocol = 7\n").unwrap();
    daemon.signal("HUP");
    daemon.until_stderr("the running configuration stays in force error=\"invalid configuration");
    fs::write(&path, good.replace("first.ndjson", "second.ndjson")).unwrap();
    daemon.signal("HUP");
    daemon.until_stderr("restarted");
    send_span(address, "second");
    stop(daemon, "TERM");
    assert_eq!(spans(&events_in(&file("first.ndjson"))), [("first", true)]);
    assert_eq!(spans(&events_in(&file("second.ndjson"))), [("second", true)]);
}

#[test]
fn a_watched_configuration_is_taken_without_a_signal() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let (home, daemon) = start(&format!("[reload]\nwatch = true\n{}", file_sink(&file("first.ndjson"))), &[]);
    let address = daemon.address("test");
    let path = home.path().join("t.toml");
    let next = home.path().join("next.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&next, text.replace("first.ndjson", "second.ndjson")).unwrap();
    fs::rename(&next, &path).unwrap();
    daemon.until_stderr("restarted");
    send_span(address, "second");
    fs::write(&path, "nonsense").unwrap();
    daemon.until_stderr("the running configuration stays in force");
    send_span(address, "third");
    stop(daemon, "TERM");
    assert_eq!(spans(&events_in(&file("second.ndjson"))), [("second", true), ("third", true)]);
}

#[test]
fn a_watched_file_that_is_cut_off_changes_nothing_and_stays_watched() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let (home, daemon) = start(&format!("[reload]\nwatch = true\n{}", file_sink(&file("first.ndjson"))), &[]);
    let address = daemon.address("test");
    let path = home.path().join("t.toml");
    let text = fs::read_to_string(&path).unwrap();
    // Both are valid configurations: without a section the built-in one is used.
    for (cut_off, lost) in [("", "listeners"), (text.split("[sinks").next().unwrap(), "sinks")] {
        fs::write(&path, cut_off).unwrap();
        daemon.until_stderr(&format!("has no [{lost}] any more, as if it were cut off"));
    }
    send_span(address, "meanwhile");
    fs::write(&path, text.replace("first.ndjson", "second.ndjson")).unwrap();
    daemon.until_stderr("restarted");
    send_span(address, "after");
    stop(daemon, "TERM");
    assert_eq!(spans(&events_in(&file("first.ndjson"))), [("meanwhile", true)]);
    assert_eq!(spans(&events_in(&file("second.ndjson"))), [("after", true)]);
}

#[test]
fn a_daemon_keeps_running_after_its_log_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("events.ndjson");
    let (_directory, mut command) = command(&file_sink(&file), &[]);
    let mut daemon = command.env_remove("TRIBUTARY_LOG").stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(daemon.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains("listening listener=\"test\"")).unwrap();
    let address = field(&line, "address").parse().unwrap();
    drop(lines);
    let pid = daemon.id().to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    signal("-HUP");
    send_span(address, "unheard");
    until("the span is in the file", || (!spans(&events_in(&file)).is_empty()).then_some(()));
    signal("-TERM");
    let status = until("the end of the daemon", || daemon.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_second_signal_ends_within_seconds_and_unwritten_events_have_failed() {
    let (_directory, command) = command(&format!("limits.shutdown_grace = \"1h\"\n{}", listener()), &[]);
    // Its stdout is a pipe without a reader, which is soon full.
    let mut daemon = Binary::start_unread(command);
    let mut stdout = daemon.take_stdout();
    let mut stream = TcpStream::connect(daemon.address("test")).unwrap();
    stream.write_all(&wire::work(3_000).0).unwrap();
    // The first byte shows that it writes; the pipe holds a tenth of the output.
    stdout.read_exact(&mut [0]).unwrap();
    daemon.signal("TERM");
    daemon.until_stderr("a second signal ends the daemon within seconds");
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let words = ended.last_words();
    assert!(words.ends_with(" decoded events could not be written by sink console"), "{}", ended.stderr);
    assert!(!ended.line("sink totals sink=\"console\"").contains("in_flight"), "{}", ended.stderr);
}

#[test]
fn unwritten_events_are_in_the_last_line_and_give_exit_code_1() {
    let directory = tempfile::tempdir().unwrap();
    let events = directory.path().join("events.ndjson");
    // The daemon cannot write a file that another process has locked.
    let locked = fs::OpenOptions::new().create(true).append(true).open(&events).unwrap();
    locked.lock().unwrap();
    let toml = format!("limits.shutdown_grace = \"100ms\"\n{}", file_sink(&events));
    let (_directory, daemon) = start(&toml, &[]);
    send_span(daemon.address("test"), "lost");
    daemon.until_stderr("cannot write; buffering and retrying");
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.last_words(), "tributary: 2 decoded events could not be written by sink archive");
    assert!(ended.line("sink totals sink=\"archive\"").ends_with("events=2 written=0 shed=0 failed=2"));
}

#[test]
fn a_fatal_sink_ends_the_daemon_with_exit_code_1() {
    let toml = format!("{}[sinks.console]\ntype = \"stdout\"\non_failure = \"fatal\"\n", listener());
    let (_directory, mut command) = command(&toml, &[]);
    let shell = format!("exec {} \"$@\" >/dev/full", command.get_program().to_str().unwrap());
    let mut shell_command = Command::new("sh");
    shell_command.args(["-c", &shell, "sh"]).args(command.get_args());
    command = shell_command;
    let daemon = Binary::start(command);
    send_span(daemon.address("test"), "lost");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("sink failed sink=\"console\" error=cannot write to standard output"),
        "{}",
        ended.stderr
    );
    assert_eq!(ended.last_words(), "tributary: 2 decoded events could not be written by sink console");
}

#[test]
fn a_port_in_use_is_in_the_last_line_and_gives_exit_code_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (_directory, daemon) = start(&format!("[listeners.a]\nprotocol = \"datadog\"\nlisten = \"{address}\"\n"), &[]);
    let ended = daemon.end();
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    let expected = format!("tributary: cannot start listener a on {address}: ");
    assert!(ended.last_words().starts_with(&expected), "{}", ended.stderr);
    let holder = format!("; process {} (", std::process::id());
    assert!(ended.last_words().contains(&holder), "{}", ended.stderr);
}

#[test]
fn with_log_format_json_a_failed_start_is_a_line_of_the_log() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for (toml, code, why) in [
        (format!("[listeners.a]\nprotocol = \"datadog\"\nlisten = \"{address}\"\n"), 1, "cannot start listener a on "),
        ("[listeners.a]\nprotocol = 7\n".to_owned(), 2, "invalid configuration\n"),
    ] {
        let (_directory, daemon) = start(&toml, &["--log-format", "json"]);
        let ended = daemon.end();
        let last: Value = serde_json::from_str(ended.last_words()).unwrap();
        assert_eq!((ended.code, &last["fields"]["exit_code"]), (Some(code), &json!(code)), "{}", ended.stderr);
        assert!(last["fields"]["error"].as_str().unwrap().starts_with(why), "{}", ended.stderr);
    }
}

#[test]
fn with_log_format_json_every_line_is_json() {
    let (_directory, daemon) = start(&listener(), &["--log-format", "json", "--log-level", "debug"]);
    let line: Value = serde_json::from_str(&daemon.until_stderr("\"listening\"")).unwrap();
    let address: SocketAddr = line["fields"]["address"].as_str().unwrap().parse().unwrap();
    simulate(address, 100, 1);
    let ended = stop(daemon, "TERM");
    assert_eq!(ended.events().len(), 100);
    let lines: Vec<Value> = ended.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let totals = |message: &str| &lines.iter().find(|line| line["fields"]["message"] == message).unwrap()["fields"];
    assert_eq!((&totals("listener totals")["events"], &totals("sink totals")["written"]), (&json!(100), &json!(100)));
    // At debug level, lines about connections have a span with the protocol.
    let of_connection = lines.iter().find(|line| line["fields"]["message"] == "connection opened").unwrap();
    assert_eq!(of_connection["span"]["protocol"], "datadog");
}

#[test]
fn a_daemon_without_a_file_descriptor_left_recovers() {
    let (_directory, command) = command(&listener(), &[]);
    let mut limited = Command::new("prlimit");
    limited.arg("--nofile=40").arg(command.get_program()).args(command.get_args());
    let daemon = Binary::start(limited);
    let address = daemon.address("test");
    // The kernel accepts them all, the daemon about half of them.
    let streams: Vec<_> = (0..60).map(|_| TcpStream::connect(address).unwrap()).collect();
    daemon.until_stderr("cannot accept connections");
    drop(streams);
    send_span(address, "after");
    let ended = stop(daemon, "TERM");
    assert_eq!(spans(&ended.events()), [("after", true)]);
}
