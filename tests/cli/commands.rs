//! The short commands of the binary: their output on stdout and stderr, and their exit codes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Command;

use crate::live::binary::{Binary, run, tributary};
use crate::live::{losses, timeless};
use serde_json::{Value, json};
use tempfile::TempDir;
use tributary::protocol::datadog::{ListLayout, Options};
use tributary::protocol::{End, Protocol};

fn capture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/datadog").join(name).join("wire.bin");
    path.to_str().unwrap().to_owned()
}

/// The events of a capture as the library decodes them, without the listener of their origin.
fn decoded(name: &str, list_layout: ListLayout) -> Vec<Value> {
    let bytes = fs::read(capture(name)).unwrap();
    let options = Options { list_layout, ..Options::default() };
    crate::common::decode_with(&options, vec![&bytes], End::Closed).events.iter().map(nameless).collect()
}

fn nameless(event: &Value) -> Value {
    let mut event = timeless(event);
    event["origin"].as_object_mut().unwrap().remove("listener");
    event
}

/// A file with this content, in a new directory.
fn file(content: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.toml");
    fs::write(&path, content).unwrap();
    (directory, path.to_str().unwrap().to_owned())
}

#[test]
fn demo_prints_events_and_ends_with_a_table() {
    let ended = run(&["demo", "--for", "1s", "--rate", "200"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let events = ended.events();
    assert!(events.iter().any(|event| event["kind"] == "span" && event["origin"]["protocol"] == "datadog"));
    assert!(losses(&events).is_empty());
    let head: Vec<_> = ended.line("events/s").split_whitespace().collect();
    assert_eq!(head, ["protocol", "sent", "events", "bytes", "losses", "events/s"]);
    for protocol in Protocol::OF_AGENTS.into_iter().map(Protocol::as_str) {
        let row: Vec<_> = ended.line(&format!("{protocol:<13}  ")).split_whitespace().collect();
        let count = events.iter().filter(|event| event["origin"]["protocol"] == protocol).count().to_string();
        assert_eq!((row[1], row[2], row[4]), (&*count, &*count, "0"), "{}", ended.stderr);
    }
    let count = events.len();
    assert_eq!(ended.last_words(), format!("sink console: {count} events = {count} written + 0 shed + 0 failed"));
}

#[test]
fn demo_runs_with_a_null_device_that_is_opened_for_reading_and_writing() {
    let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
    let mut demo = tributary(&["demo", "--for", "300ms", "--protocol", "datadog"]);
    let output = demo.stdout(null).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("datadog"), "{stderr}");
}

#[test]
fn demo_in_text_has_no_json() {
    let ended = run(&["demo", "--for", "300ms", "--format", "text", "--protocol", "datadog"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains(" span   ") && !ended.stdout.starts_with('{'), "{}", ended.stdout);
}

#[test]
fn demo_on_a_terminal_prints_lines_that_fit_it_in_colours() {
    let binary = env!("CARGO_BIN_EXE_tributary");
    let shown = |environment: &str| {
        let demo = format!("stty cols 100; {environment} {binary} demo --for 500ms --protocol datadog 2>/dev/null");
        let output = Command::new("script").args(["-qec", &demo, "/dev/null"]).env_remove("NO_COLOR").output();
        output.ok().map(|output| String::from_utf8(output.stdout).unwrap())
    };
    let Some(coloured) = shown("TERM=xterm") else {
        println!("skipped: there is no `script` (util-linux), which makes a terminal");
        return;
    };
    assert!(coloured.contains("\u{1b}[36mspan"), "{coloured}");
    let plain = shown("NO_COLOR=1").unwrap();
    let lines: Vec<_> = plain.lines().map(str::trim_end).collect();
    assert!(lines.iter().any(|line| line.contains(" datadog  span   web.request ")), "{plain}");
    assert!(lines.iter().all(|line| !line.contains('\u{1b}') && line.chars().count() <= 100), "{plain}");
}

#[test]
fn a_reader_that_closes_stdout_ends_demo_without_an_error() {
    let mut demo = Binary::start_unread(tributary(&["demo", "--for", "1h", "--rate", "2000"]));
    let mut reader = BufReader::new(demo.take_stdout());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    serde_json::from_str::<Value>(&line).unwrap();
    drop(reader);
    let ended = demo.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.last_words().ends_with("; its reader has closed it"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("ERROR") && !ended.stderr.contains("panicked"), "{}", ended.stderr);
}

#[test]
fn check_reports_that_a_configuration_is_valid() {
    let (_directory, path) = file("[listeners.a]\nprotocol = \"datadog\"\n");
    let ended = run(&["check", "--config", &path]);
    assert_eq!((ended.code, &*ended.stdout), (Some(0), ""));
    assert_eq!(ended.stderr, format!("{path}: valid configuration: 1 listener, 1 sink\n"));
}

#[test]
fn check_says_for_how_long_files_keep_the_events_of_a_rate() {
    let (_directory, path) = file(
        "[listeners.a]\nprotocol = \"datadog\"\n[sinks.all]\ntype = \"file\"\npath = \"a.ndjson\"\n\
         [sinks.some]\ntype = \"file\"\npath = \"b.ndjson\"\nkeep_bytes = \"1GiB\"\nkeep_time = \"7d\"\ncompression = \"zstd\"\n",
    );
    let ended = run(&["check", "--config", &path, "--rate", "1024/s", "--event-bytes", "1024"]);
    let lines: Vec<_> = ended.stderr.lines().skip(1).collect();
    let kept = "events are kept for 17m4s, about 1.0 GiB, before compression";
    assert_eq!(lines, [
        "sink all, at 1024 events/s of 1024 bytes for one series of files: everything is kept, about 84.4 GiB more each day"
            .to_owned(),
        format!("sink some, at 1024 events/s of 1024 bytes for one series of files: {kept}"),
    ]);
    let ended = run(&["check", "--config", &path, "--rate", "0/s"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("write events per second, as 10000/s"), "{}", ended.stderr);
}

#[test]
fn check_and_the_start_name_the_sinks_that_keep_acknowledgements_from_being_durable() {
    let note = "requests to d are acknowledged when events are written, not durable: sink `out` has type = \"discard\"";
    let (_directory, path) = file(
        "[admin]\nlisten = \"\"\n[listeners.d]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\n\
         [sinks.out]\ntype = \"discard\"\n",
    );
    let ended = run(&["check", "--config", &path]);
    assert_eq!(ended.stderr, format!("{path}: valid configuration: 1 listener, 1 sink\n{path}: {note}\n"));
    let daemon = Binary::start(tributary(&["run", "--config", &path]));
    daemon.until_stderr(note);
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}

#[test]
fn check_reports_all_errors_together_with_carets() {
    let text = "[limits]\nmemory = 1\n[listeners.a]\nprotocol = \"datadog\"\nlissten = 1\n[sinks.b]\ntype = \"fil\"\n";
    let (_directory, path) = file(text);
    let ended = run(&["check", "--config", &path]);
    assert_eq!((ended.code, &*ended.stdout), (Some(2), ""));
    for wrong in [
        format!("{path}:2:1: unknown key `memory`"),
        format!("{path}:5:1: unknown key `lissten`"),
        "  5 | lissten = 1\n    | ^^^^^^^ did you mean `listen`?\n".to_owned(),
        format!("{path}:7:8: "),
        "^^^^^ did you mean \"file\"?".to_owned(),
    ] {
        assert!(ended.stderr.contains(&wrong), "{wrong:?} is not in\n{}", ended.stderr);
    }
    // The daemon reports the same errors, and does not start.
    let daemon = run(&["run", "--config", &path]);
    assert_eq!((daemon.code, daemon.stderr), (Some(2), ended.stderr));
}

#[test]
fn check_names_a_missing_file() {
    let ended = run(&["check", "--config", "/nowhere/t.toml"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("/nowhere/t.toml: cannot be read: "), "{}", ended.stderr);
}

#[test]
fn the_printed_configuration_can_be_read_again() {
    let (_directory, path) =
        file("[limits]\nmemory_bytes = \"300MiB\"\n[sinks.a]\ntype = \"file\"\nfsync = \"never\"\n");
    let printed = run(&["check", "--print", "--config", &path]);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    assert!(printed.stdout.contains("memory_bytes = \"300MiB\"") && printed.stdout.contains("fsync = \"never\""));
    let (_directory, path) = file(&printed.stdout);
    assert_eq!(run(&["check", "--print", "--config", &path]).stdout, printed.stdout);
}

#[test]
fn without_config_the_file_in_the_working_directory_is_used() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("tributary.toml"), "[listeners.here]\nprotocol = \"datadog\"\n").unwrap();
    let mut command = tributary(&["check", "--print"]);
    command.current_dir(directory.path());
    let ended = Binary::start(command).end();
    assert!(ended.stderr.starts_with("./tributary.toml: valid configuration: "), "{}", ended.stderr);
    assert!(ended.stdout.contains("[listeners.here]"));
}

#[test]
fn decode_reads_each_file_as_one_connection() {
    let names = ["small-stream", "bad-magic-first-byte", "empty"];
    let paths = names.map(capture);
    let ended = run(&["decode", "datadog", &paths[0], &paths[1], &paths[2]]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let events = ended.events();
    for (number, (name, path)) in (1..).zip(names.iter().zip(&paths)) {
        let of_file: Vec<_> = events.iter().filter(|event| event["origin"]["connection"] == number).collect();
        assert!(of_file.iter().all(|event| event["origin"]["peer"] == path.as_str()));
        let of_file: Vec<_> = of_file.into_iter().map(nameless).collect();
        assert_eq!(of_file, decoded(name, ListLayout::Exact), "{name}");
    }
    let summary: Vec<_> = ended.stderr.lines().collect();
    assert_eq!(summary.len(), 3, "{}", ended.stderr);
    assert_eq!(summary[2], format!("{}: 0 bytes = 0 decoded + 0 lost; 0 events", paths[2]));
}

#[test]
fn decode_reads_stdin_when_no_file_is_named() {
    for arguments in [&["decode", "datadog"][..], &["decode", "datadog", "-"]] {
        let mut decode = Binary::start(tributary(arguments));
        decode.take_stdin().write_all(&fs::read(capture("small-stream")).unwrap()).unwrap();
        let ended = decode.end();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let events: Vec<_> = ended.events().iter().map(nameless).collect();
        assert_eq!(events, decoded("small-stream", ListLayout::Exact));
    }
}

#[test]
fn decode_writes_events_before_its_input_has_ended() {
    let mut decode = Binary::start(tributary(&["decode", "datadog"]));
    let mut stdin = decode.take_stdin();
    stdin.write_all(&fs::read(capture("small-stream")).unwrap()).unwrap();
    decode.until_stdout("datadog.process");
    drop(stdin);
    assert_eq!(decode.end().code, Some(0));
}

#[test]
fn decode_takes_the_options_of_a_listener() {
    let path = capture("js-reference-padded-lists");
    let ended = run(&["decode", "datadog", "--option", "list_layout=padded32", &path]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let events: Vec<_> = ended.events().iter().map(nameless).collect();
    assert_eq!(events, decoded("js-reference-padded-lists", ListLayout::Padded32));
    assert_ne!(events, decoded("js-reference-padded-lists", ListLayout::Exact));
    // Values of other types, and more than one option.
    let options = ["-o", "emit_definitions=true", "-o", "max_text.name=3"];
    let ended = run(&[&["decode", "datadog", &capture("small-stream")][..], &options].concat());
    let events = ended.events();
    assert!(events.iter().any(|event| event["name"] == "datadog.string"), "{}", ended.stdout);
    assert!(events.iter().any(|event| event["kind"] == "span" && event["name"].as_str().unwrap().len() == 3));
}

#[test]
fn an_invalid_option_is_reported_like_an_invalid_configuration() {
    for (option, what) in [
        ("list_layot=exact", "did you mean `list_layout`?"),
        ("list_layout=exakt", "did you mean \"exact\"?"),
        ("list_layout", "--option list_layout: not KEY=VALUE"),
        ("max_record_entries=none", "max_record_entries"),
    ] {
        let ended = run(&["decode", "datadog", "--option", option, "/dev/null"]);
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{option}");
        assert!(ended.stderr.contains(what), "{}", ended.stderr);
    }
}

#[test]
fn a_file_that_cannot_be_read_is_a_failure_that_names_it() {
    let ended = run(&["decode", "datadog", "/nowhere/capture.bin"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.last_words().starts_with("tributary: /nowhere/capture.bin: "), "{}", ended.stderr);
}

#[test]
fn decode_ends_without_an_error_when_its_reader_closes_stdout() {
    let mut decode = Binary::start_unread(tributary(&["decode", "datadog"]));
    let mut stdin = decode.take_stdin();
    let mut reader = BufReader::new(decode.take_stdout());
    let sender = std::thread::spawn(move || {
        stdin.write_all(&crate::live::wire::process()).unwrap();
        let spans = crate::live::wire::span(1).repeat(2_000);
        // Until the reader has ended.
        while stdin.write_all(&spans).is_ok() {}
    });
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    drop(reader);
    let ended = decode.end();
    sender.join().unwrap();
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
}

#[test]
fn invalid_arguments_end_with_exit_code_2() {
    for arguments in [&[][..], &["rum"], &["demo", "--rate", "0"], &["simulate", "datadog"], &["decode", "zicco"]] {
        let ended = run(arguments);
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{arguments:?}");
        assert!(!ended.stderr.is_empty());
    }
}

#[test]
fn an_unknown_log_level_is_an_error_that_names_the_levels() {
    for (level, why) in [
        ("warning", "unknown level `warning`; write `warn` (levels: off, error, warn, info, debug, trace)"),
        ("loud", "unknown level `loud` (levels: off, error, warn, info, debug, trace)"),
        ("tributary=loud", "unknown level `loud` (levels: off, error, warn, info, debug, trace)"),
        ("", "unknown level `` (levels: off, error, warn, info, debug, trace)"),
    ] {
        let ended = run(&["check", "--log-level", level]);
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{level}");
        assert_eq!(ended.stderr, format!("tributary: --log-level {level:?}: {why}\n"));
    }
    let mut command = tributary(&["check"]);
    command.env("TRIBUTARY_LOG", "warning");
    let ended = Binary::start_with_log(command).end();
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.starts_with("tributary: TRIBUTARY_LOG \"warning\": unknown level"), "{}", ended.stderr);
    for level in ["warn", "INFO", "off", "info,tributary_transport=debug"] {
        let (_directory, path) = file("");
        assert_eq!(run(&["check", "--config", &path, "--log-level", level]).code, Some(0), "{level}");
    }
}

#[test]
fn the_log_has_colors_on_a_terminal_unless_they_are_unwanted() {
    if !std::path::Path::new("/usr/bin/script").exists() {
        return eprintln!("there is no /usr/bin/script, which gives a process a terminal: nothing was tested");
    }
    // It logs one line, then fails because the port is in use.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (_directory, path) =
        file(&format!("[listeners.a]\nprotocol = \"datadog\"\nlisten = \"{address}\"\n[admin]\nlisten = \"\"\n"));
    let colors = |variables: &[(&str, &str)]| {
        let mut script = Command::new("/usr/bin/script");
        let run = format!("{} run --config {path}", env!("CARGO_BIN_EXE_tributary"));
        script.args(["-qec", &run, "/dev/null"]).env_remove("NO_COLOR").env("TERM", "xterm");
        script.envs(variables.iter().copied());
        let ended = Binary::start(script).end();
        assert!(ended.stdout.contains("starting"), "{}{}", ended.stdout, ended.stderr);
        ended.stdout.contains("\u{1b}[")
    };
    assert!(colors(&[]));
    assert!(colors(&[("NO_COLOR", "")]));
    assert!(!colors(&[("NO_COLOR", "1")]));
    assert!(!colors(&[("TERM", "dumb")]));
}

#[test]
fn decode_takes_one_option_for_the_protocol_version() {
    let empty = || ["/dev/null"];
    for (protocol, version) in [("bytefrog", "1"), ("bytefrog", "4"), ("endless", "0"), ("endless", "3")] {
        let ended = run(&[&["decode", protocol, "--protocol-version", version][..], &empty()].concat());
        assert_eq!(ended.code, Some(0), "{protocol} {version}: {}", ended.stderr);
    }
    for (arguments, why) in [
        (["bytefrog", "--protocol-version", "0"], "--protocol-version 0: bytefrog has the versions 1 to 4"),
        (["endless", "--protocol-version", "4"], "--protocol-version 4: endless has the versions 0 to 3"),
        (["datadog", "--protocol-version", "1"], "bytes of datadog say their version; omit the option"),
        (["rbkit", "--protocol-version", "1"], "bytes of rbkit say their version; omit the option"),
        (["zico", "--protocol-version", "1"], "bytes of zico say their version; omit the option"),
        (["bytefrog", "--bytefrog-version", "1"], "this option was renamed to --protocol-version"),
        (["endless", "--endless-version", "2"], "this option was renamed to --protocol-version"),
    ] {
        for explain in [&[][..], &["--explain"]] {
            let ended = run(&[&["decode"][..], &arguments, explain, &empty()].concat());
            assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{arguments:?}");
            assert!(ended.stderr.contains(why), "{arguments:?}: {}", ended.stderr);
        }
    }
    let help = run(&["decode", "--help"]).stdout;
    assert!(
        help.contains("--protocol-version <N>")
            && !help.contains("bytefrog-version")
            && !help.contains("endless-version")
    );
}

#[test]
fn a_simulation_without_a_collector_fails_and_names_the_address() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ended = run(&["simulate", "datadog", "--to", &unused]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.last_words().contains(&unused), "{}", ended.stderr);
}

#[test]
fn a_probe_of_a_daemon_that_does_not_run_fails() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ended = run(&["health", "--admin", &unused]);
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    assert!(ended.last_words().contains(&unused), "{}", ended.stderr);
}

#[test]
fn every_help_has_examples() {
    let commands =
        ["run", "demo", "check", "decode", "simulate", "replay", "tap", "agents", "health", "completions", "man"];
    let help = run(&["--help"]);
    assert_eq!(help.code, Some(0));
    assert!(help.stdout.contains("Examples:\n  tributary demo"));
    assert!(commands.iter().all(|command| help.stdout.contains(&format!("\n  {command} "))), "{}", help.stdout);
    for command in commands {
        let help = run(&[command, "--help"]);
        assert_eq!((help.code, &*help.stderr), (Some(0), ""), "{command}");
        let example = format!("\n  tributary {command}");
        assert!(help.stdout.contains("Example") && help.stdout.contains(&example), "{}", help.stdout);
    }
}

#[test]
fn version_completions_and_man_pages_are_written_to_stdout() {
    let version = run(&["--version"]);
    assert_eq!((version.code, version.stdout), (Some(0), format!("tributary {}\n", env!("CARGO_PKG_VERSION"))));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = run(&["completions", shell]);
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{shell}");
        assert!(ended.stdout.contains("simulate") && ended.stdout.contains("list-layout"), "{shell}");
    }
    let man = run(&["man"]);
    assert_eq!((man.code, &*man.stderr), (Some(0), ""));
    for part in [
        ".TH tributary 1",
        "tributary\\-simulate",
        ".SH \"EXIT STATUS\"",
        ".SH ENVIRONMENT",
        ".SH FILES",
        ".SH SIGNALS",
    ] {
        assert!(man.stdout.contains(part), "{part}\n{}", man.stdout);
    }
}

#[test]
fn every_command_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("man1");
    assert_eq!(run(&["man", "--dir", dir.to_str().unwrap()]).code, Some(0));
    let mut names: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in ["tributary.1", "tributary-run.1", "tributary-agents.1", "tributary-agents-tell.1"] {
        assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
    }
    for name in &names {
        let page = fs::read_to_string(dir.join(name)).unwrap();
        assert!(page.contains(".SH \"EXIT STATUS\"") && page.contains(".SH SYNOPSIS"), "{name}");
    }
    let one = run(&["man", "agents", "tell"]);
    assert_eq!(one.stdout, fs::read_to_string(dir.join("tributary-agents-tell.1")).unwrap());
    assert_eq!(run(&["man", "nothing"]).code, Some(2));
}

#[test]
fn a_loss_is_no_failure_and_is_counted() {
    let ended = run(&["decode", "datadog", &capture("garbage-after-span")]);
    assert_eq!(ended.code, Some(0));
    let events = ended.events();
    let [loss] = losses(&events)[..] else { panic!("one loss: {events:?}") };
    assert_eq!(loss["reason"], json!("malformed"));
    assert!(ended.last_words().contains(&format!(" + {} lost; ", loss["bytes"])), "{}", ended.stderr);
}
