//! The binary's short commands: what they print, where, and with which exit code they end.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;

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

/// What the library makes of a capture, without its origin's listener.
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

/// A file of this content, in a directory of its own.
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
    for protocol in Protocol::ALL.into_iter().map(Protocol::as_str) {
        let row: Vec<_> = ended.line(&format!("{protocol:<10}")).split_whitespace().collect();
        let count = events.iter().filter(|event| event["origin"]["protocol"] == protocol).count().to_string();
        assert_eq!((row[1], row[2], row[4]), (&*count, &*count, "0"), "{}", ended.stderr);
    }
    let count = events.len();
    assert_eq!(ended.last_words(), format!("sink console: {count} events = {count} written + 0 shed + 0 failed"));
}

#[test]
fn demo_in_text_has_no_json() {
    let ended = run(&["demo", "--for", "300ms", "--format", "text", "--protocol", "datadog"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains(" span   ") && !ended.stdout.starts_with('{'), "{}", ended.stdout);
}

#[test]
fn a_reader_that_has_seen_enough_ends_demo_quietly() {
    let mut demo = Binary::start_unheard(tributary(&["demo", "--for", "1h", "--rate", "2000"]));
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
fn check_tells_that_a_configuration_is_good() {
    let (_directory, path) = file("[listeners.a]\nprotocol = \"datadog\"\n");
    let ended = run(&["check", "--config", &path]);
    assert_eq!((ended.code, &*ended.stdout), (Some(0), ""));
    assert_eq!(ended.stderr, format!("{path}: good: 1 listener, 1 sink\n"));
}

#[test]
fn check_tells_everything_that_is_wrong_at_once_with_carets() {
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
    // The daemon says the same, and does not start.
    let daemon = run(&["run", "--config", &path]);
    assert_eq!((daemon.code, daemon.stderr), (Some(2), ended.stderr));
}

#[test]
fn check_of_a_file_that_is_not_there_names_it() {
    let ended = run(&["check", "--config", "/nowhere/t.toml"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("/nowhere/t.toml: cannot be read: "), "{}", ended.stderr);
}

#[test]
fn what_check_prints_reads_as_the_same_configuration() {
    let (_directory, path) =
        file("[limits]\nmemory_bytes = \"300MiB\"\n[sinks.a]\ntype = \"file\"\nfsync = \"never\"\n");
    let printed = run(&["check", "--print", "--config", &path]);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    assert!(printed.stdout.contains("memory_bytes = \"300MiB\"") && printed.stdout.contains("fsync = \"never\""));
    let (_directory, path) = file(&printed.stdout);
    assert_eq!(run(&["check", "--print", "--config", &path]).stdout, printed.stdout);
}

#[test]
fn without_config_the_one_in_the_working_directory_counts() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("tributary.toml"), "[listeners.here]\nprotocol = \"datadog\"\n").unwrap();
    let mut command = tributary(&["check", "--print"]);
    command.current_dir(directory.path());
    let ended = Binary::start(command).end();
    assert!(ended.stderr.starts_with("./tributary.toml: good"), "{}", ended.stderr);
    assert!(ended.stdout.contains("[listeners.here]"));
}

#[test]
fn decode_reads_files_each_as_a_connection() {
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
fn decode_writes_what_it_can_before_its_input_has_ended() {
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
    // Not only words, and more than one.
    let options = ["-o", "emit_definitions=true", "-o", "max_text.name=3"];
    let ended = run(&[&["decode", "datadog", &capture("small-stream")][..], &options].concat());
    let events = ended.events();
    assert!(events.iter().any(|event| event["name"] == "datadog.string"), "{}", ended.stdout);
    assert!(events.iter().any(|event| event["kind"] == "span" && event["name"].as_str().unwrap().len() == 3));
}

#[test]
fn a_wrong_option_is_misuse_and_told_like_a_wrong_configuration() {
    for (option, what) in [
        ("list_layot=exact", "did you mean `list_layout`?"),
        ("list_layout=exakt", "did you mean \"exact\"?"),
        ("list_layout", "--option list_layout: write KEY=VALUE"),
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
fn decode_ends_quietly_when_its_reader_has_seen_enough() {
    let mut decode = Binary::start_unheard(tributary(&["decode", "datadog"]));
    let mut stdin = decode.take_stdin();
    let mut reader = BufReader::new(decode.take_stdout());
    let sender = std::thread::spawn(move || {
        stdin.write_all(&crate::live::wire::process()).unwrap();
        let spans = crate::live::wire::span(1).repeat(2_000);
        // Without end, until nobody reads it any more.
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
fn misuse_of_arguments_is_told_with_exit_code_2() {
    for arguments in [&[][..], &["rum"], &["demo", "--rate", "0"], &["simulate", "datadog"], &["decode", "zicco"]] {
        let ended = run(arguments);
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{arguments:?}");
        assert!(!ended.stderr.is_empty());
    }
    let ended = run(&["check", "--log-level", "tributary=loud"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("--log-level or TRIBUTARY_LOG"), "{}", ended.stderr);
}

#[test]
fn a_simulation_that_finds_nobody_fails_and_says_whom_it_looked_for() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ended = run(&["simulate", "datadog", "--to", &nobody]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.last_words().contains(&nobody), "{}", ended.stderr);
}

#[test]
fn every_help_has_examples_that_parse() {
    let commands = ["run", "demo", "check", "decode", "simulate", "replay", "completions", "man"];
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
fn version_completions_and_man_page_are_data() {
    let version = run(&["--version"]);
    assert_eq!((version.code, version.stdout), (Some(0), format!("tributary {}\n", env!("CARGO_PKG_VERSION"))));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = run(&["completions", shell]);
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{shell}");
        assert!(ended.stdout.contains("simulate") && ended.stdout.contains("list-layout"), "{shell}");
    }
    let man = run(&["man"]);
    assert_eq!((man.code, &*man.stderr), (Some(0), ""));
    assert!(man.stdout.contains(".TH tributary 1") && man.stdout.contains("tributary\\-simulate"));
}

#[test]
fn the_events_of_a_fault_are_no_failure_and_say_what_was_lost() {
    let ended = run(&["decode", "datadog", &capture("garbage-after-span")]);
    assert_eq!(ended.code, Some(0));
    let events = ended.events();
    let [loss] = losses(&events)[..] else { panic!("one loss: {events:?}") };
    assert_eq!(loss["reason"], json!("malformed"));
    assert!(ended.last_words().contains(&format!(" + {} lost; ", loss["bytes"])), "{}", ended.stderr);
}
