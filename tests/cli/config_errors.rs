//! What is said of a configuration file that is wrong: where, what, and what would be right.

use std::path::Path;

use tributary::config::Config;

fn errors(text: &str) -> String {
    Config::parse("t.toml", text).expect_err("it is wrong").to_string()
}

/// The first lines of the errors of a datadog listener with these lines (the first is line 3) and their help.
fn listener_errors(lines: &str) -> Vec<String> {
    summary(&format!("[listeners.a]\nprotocol = \"datadog\"\n{lines}"))
}

/// `line:column: message; help` of every error.
fn summary(text: &str) -> Vec<String> {
    let errors = Config::parse("t.toml", text).expect_err("it is wrong");
    let line = |one: &tributary::options::Diagnostic| {
        let place = one.place.as_ref().map(|place| format!("{}:{}: ", place.line, place.column)).unwrap_or_default();
        let help = one.help.as_ref().map(|help| format!("; {help}")).unwrap_or_default();
        format!("{place}{}{help}", one.message)
    };
    errors.diagnostics.iter().map(line).collect()
}

#[test]
fn all_errors_are_told_at_once_each_with_a_caret() {
    let text = r#"[limits]
memory_bytes = "256"
memory = 1

[listeners.spans]
protocol = "datadog"
lissten = "127.0.0.1:8136"
idle_timeout = 10
string_cache = { min_entries = -1, maxentries = 3 }
tls = { cert = "c.pem", allow_plain = "yes" }
allow = ["10.0.0.0/8", "localhost"]

[sinks.archive]
type = "file"
compression = "gz"
rotate_bytes = "1M"
"#;
    let expected = r#"t.toml:2:16: `memory_bytes` is out of range
  2 | memory_bytes = "256"
    |                ^^^^^ allowed: 1MiB to 1024GiB
t.toml:3:1: unknown key `memory` in [limits]
  3 | memory = 1
    | ^^^^^^ what can stand here: memory_bytes, memory_per_address, threads, shutdown_grace
t.toml:7:1: unknown key `lissten` in [listeners.spans]
  7 | lissten = "127.0.0.1:8136"
    | ^^^^^^^ did you mean `listen`?
t.toml:8:16: `idle_timeout` has no unit
  8 | idle_timeout = 10
    |                ^^ write a unit, e.g. "10s"
t.toml:9:32: `min_entries` is out of range
  9 | string_cache = { min_entries = -1, maxentries = 3 }
    |                                ^^ allowed: 0 to 10000000
t.toml:9:36: unknown key `maxentries` in [listeners.spans.string_cache]
  9 | string_cache = { min_entries = -1, maxentries = 3 }
    |                                    ^^^^^^^^^^ did you mean `max_entries`?
t.toml:10:1: [listeners.spans.tls] needs the key `key`
  10 | tls = { cert = "c.pem", allow_plain = "yes" }
     | ^^^ write key = "the path of a file"
t.toml:10:39: `allow_plain` must be true or false, not a string
  10 | tls = { cert = "c.pem", allow_plain = "yes" }
     |                                       ^^^^^
t.toml:11:24: an element of `allow` is not a network
  11 | allow = ["10.0.0.0/8", "localhost"]
     |                        ^^^^^^^^^^^ write one like "10.0.0.0/8" or "192.0.2.7"
t.toml:15:15: `compression` cannot be "gz"
  15 | compression = "gz"
     |               ^^^^ "none", "gzip" or "lz4"
t.toml:16:16: `rotate_bytes` is not a size
  16 | rotate_bytes = "1M"
     |                ^^^^ the units are KiB, MiB, GiB (1024s), kB, MB, GB (1000s) and B"#;
    assert_eq!(errors(text), expected);
}

#[test]
fn what_is_no_toml_is_told_in_the_same_way() {
    let expected = r#"t.toml:1:8: not TOML: unclosed table, expected `]`
  1 | [limits
    |        ^
t.toml:3:15: not TOML: invalid basic string, expected `"`
  3 | type = "stdout
    |               ^"#;
    assert_eq!(errors("[limits\n[sinks.a]\ntype = \"stdout\n"), expected);
    assert_eq!(
        summary("[limits]\nmemory_bytes = \n"),
        ["2:16: not TOML: string values must be quoted, expected literal string"]
    );
    assert_eq!(
        summary("[limits]\nshutdown_grace = \"1s\"\nshutdown_grace = \"1s\"\n"),
        ["3:1: not TOML: duplicate key"]
    );
}

#[test]
fn a_value_of_the_wrong_type_says_what_it_must_be() {
    let lines = "listen = 8136\nmax_connections = \"many\"\nmax_message_bytes = true\nidle_timeout = 1.5\n\
                 emit_definitions = 1\nallow = \"10.0.0.0/8\"\nlist_layout = 32\nwaiting = 5\n";
    let expected = [
        "3:10: `listen` must be an address, not an integer; write an IP address and a port, e.g. \"127.0.0.1:8136\"",
        "4:19: `max_connections` must be a whole number, not a string",
        "5:21: `max_message_bytes` must be a size, not a boolean; for example \"8MiB\"",
        "6:16: `idle_timeout` must be a duration, not a float; for example \"10s\"",
        "7:20: `emit_definitions` must be true or false, not an integer",
        "8:9: `allow` must be a list, not a string; write [\"10.0.0.0/8\"]",
        "9:15: `list_layout` must be a string, not an integer; \"exact\" or \"padded32\"",
        "10:11: `waiting` must be a table, not an integer; for example [listeners.a.waiting]",
    ];
    assert_eq!(listener_errors(lines), expected);
}

#[test]
fn a_size_or_duration_that_is_none_says_what_would_be_right() {
    let lines = "max_message_bytes = \"16M\"\nmin_message_rate = \"fast\"\nidle_timeout = \"10\"\n\
                 message_timeout = \"soon\"\nhandshake_timeout = \"1d\"\nmax_record_bytes = \"99999999999GiB\"\n";
    let expected = [
        "3:21: `max_message_bytes` is not a size; the units are KiB, MiB, GiB (1024s), kB, MB, GB (1000s) and B",
        "4:20: `min_message_rate` is not a size; write a whole number and a unit, without spaces or points",
        "5:16: `idle_timeout` is not a duration; write a unit, e.g. 10s",
        "6:19: `message_timeout` is not a duration; write a whole number and a unit, without spaces or points",
        "7:21: `handshake_timeout` is not a duration; the units are h, m, s, ms, us and ns",
        "8:20: `max_record_bytes` is not a size; the number is too big",
    ];
    assert_eq!(listener_errors(lines), expected);
}

#[test]
fn a_value_outside_its_range_says_the_range() {
    let lines = "max_message_bytes = 1023\nmax_connections = 0\nhandshake_timeout = \"0s\"\nidle_timeout = \"8761h\"\n\
                 keepalive = \"1500ms\"\nstring_cache = { min_entries = 3, max_entries = 2 }\n";
    let expected = [
        "3:21: `max_message_bytes` is out of range; allowed: 1KiB to 1GiB",
        "4:19: `max_connections` is out of range; allowed: 1 to 1000000",
        "5:21: `handshake_timeout` is out of range; allowed: 1ms to 8760h",
        "6:16: `idle_timeout` is out of range; allowed: 0s to 8760h",
        "7:13: `keepalive` must be whole seconds; the system counts in seconds",
        "8:49: `max_entries` is 2, less than `min_entries`; at least 3",
    ];
    assert_eq!(listener_errors(lines), expected);
}

#[test]
fn a_listener_says_what_it_speaks_and_this_build_speaks_it() {
    let text = "[listeners.a]\nlisten = \"127.0.0.1:1\"\n[listeners.b]\nprotocol = \"rbkit\"\nagents = \"k\"\n\
                [listeners.c]\nprotocol = \"datadgo\"\n[listeners.d]\nprotocol = \"statsd\"\nmax_connections = 0\n";
    let expected = [
        "1:12: [listeners.a] needs the key `protocol`; write protocol = \"rbkit\", \"bytefrog\", \"datadog\", \"endless\" or \"zico\"",
        "5:10: `agents` must be a list of tables, not a string; for example agents = [{ publish = \"127.0.0.1:5555\", request = \"127.0.0.1:5556\" }]",
        "7:12: `protocol` cannot be \"datadgo\"; did you mean \"datadog\"?",
        "9:12: `protocol` cannot be \"statsd\"; \"rbkit\", \"bytefrog\", \"datadog\", \"endless\" or \"zico\"",
        "10:19: `max_connections` is out of range; allowed: 1 to 1000000",
    ];
    assert_eq!(summary(text), expected);
}

#[test]
fn a_sink_says_its_type_and_the_options_of_other_types_are_unknown_to_it() {
    let text = "[sinks.a]\nformat = \"json\"\n[sinks.b]\ntype = \"flie\"\n[sinks.c]\ntype = \"discard\"\nformat = \"json\"\n\
                [sinks.d]\ntype = \"stdout\"\nprotocols = [\"ruby\"]\nkinds = [\"spans\"]\n";
    let expected = [
        "1:8: [sinks.a] needs the key `type`; write type = \"stdout\", \"file\" or \"discard\"",
        "4:8: `type` cannot be \"flie\"; did you mean \"file\"?",
        "7:1: unknown key `format` in [sinks.c]; what can stand here: type, buffer_batches, buffer_bytes, when_full, \
         on_failure, protocols, kinds",
        "10:14: an element of `protocols` cannot be \"ruby\"; \"rbkit\", \"bytefrog\", \"datadog\", \"endless\" or \"zico\"",
        "11:10: an element of `kinds` cannot be \"spans\"; did you mean \"span\"?",
    ];
    assert_eq!(summary(text), expected);
}

#[test]
fn two_listeners_cannot_share_an_address_nor_two_sinks_their_files() {
    let text = "[listeners.z]\nprotocol = \"datadog\"\n[listeners.a]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:8136\"\n\
                [sinks.z]\ntype = \"file\"\n[sinks.a]\ntype = \"file\"\n\
                [sinks.y]\ntype = \"stdout\"\n[sinks.b]\ntype = \"stdout\"\n";
    let expected = [
        "5:10: listener `z` listens on 127.0.0.1:8136 already",
        "8:8: sink `z` writes these files already",
        "13:8: sink `y` writes to stdout already",
    ];
    assert_eq!(summary(text), expected);
    let any_port = "listen = \"127.0.0.1:0\"\nprotocol = \"datadog\"\n";
    assert!(Config::parse("t.toml", &format!("[listeners.a]\n{any_port}[listeners.b]\n{any_port}")).is_ok());
}

#[test]
fn a_name_that_would_need_quoting_elsewhere_is_refused() {
    let long = "n".repeat(65);
    let text = format!(
        "[listeners.\"../a\"]\nprotocol = \"datadog\"\n[sinks.{long}]\ntype = \"discard\"\n[sinks.\"\"]\ntype = \"discard\"\n"
    );
    let expected = [
        "1:12: [listeners.\"../a\"] is not a name to use here; a name is 1 to 64 of A-Z a-z 0-9 _ -".to_owned(),
        format!("3:8: [sinks.{long}] is not a name to use here; a name is 1 to 64 of A-Z a-z 0-9 _ -"),
        "5:8: [sinks.\"\"] is not a name to use here; a name is 1 to 64 of A-Z a-z 0-9 _ -".to_owned(),
    ];
    assert_eq!(summary(&text), expected);
}

#[test]
fn tables_that_are_none_or_empty_or_unknown_say_how_they_are_written() {
    let text = "sinks = \"stdout\"\n[listners.a]\nprotocol = \"datadog\"\n[adnim]\n[listeners]\n";
    let expected = [
        "1:9: `sinks` must be a table, not a string; for example [sinks]",
        "2:2: unknown key `listners` in the file; did you mean `listeners`?",
        "4:2: unknown key `adnim` in the file; what can stand here: limits, admin, reload, listeners, sinks",
        "5:2: [listeners] is empty; write [listeners.NAME], or leave [listeners] out for what is built in",
    ];
    assert_eq!(summary(text), expected);
    let text = "[listeners]\nprotocol = \"datadog\"\n[[sinks]]\ntype = \"stdout\"\n";
    let expected = [
        "2:12: `protocol` must be a table, not a string; for example [listeners.protocol]",
        "3:1: `sinks` must be a table, not an array; for example [sinks]",
    ];
    assert_eq!(summary(text), expected);
}

#[test]
fn escapes_in_a_file_do_not_reach_the_terminal() {
    let said = errors("\"\\u001b[2J\" = 1\n[sinks.a]\ntype = \"a\\nb\"\n");
    assert!(said.contains("unknown key `\u{fffd}[2J`"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said}");
    assert_eq!(said.lines().count(), 6, "{said}");
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.toml");
    let errors = Config::load(&missing).unwrap_err().to_string();
    assert!(errors.starts_with(&format!("{}: cannot be read: ", missing.display())), "{errors}");
    let latin1 = directory.path().join("latin1.toml");
    std::fs::write(&latin1, b"# caf\xe9\n").unwrap();
    let errors = Config::load(&latin1).unwrap_err().to_string();
    assert!(errors.contains("invalid utf-8"), "{errors}");
    let loaded = Config::load(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/minimal.toml")));
    assert!(loaded.is_ok());
}

#[test]
fn no_truncation_or_changed_byte_of_a_file_makes_the_reader_panic() {
    let text = include_str!("../../config/minimal.toml");
    for end in 0..text.len() {
        let _ = Config::parse("t.toml", &text[..end]).map_err(|errors| errors.to_string());
        for replacement in ["\"", "[", "=", "{", "\u{1b}", "é", "\n"] {
            let changed = format!("{}{replacement}{}", &text[..end], &text[end + 1..]);
            let _ = Config::parse("t.toml", &changed).map_err(|errors| errors.to_string());
        }
    }
}

#[test]
fn a_path_prefix_that_is_no_path_is_told() {
    let text = "[listeners.a]\nprotocol = \"endless\"\npath_prefix = \"metrics\"\ndedup.entries = -1\nquarantine.max_bytes = 1\n";
    let expected = [
        "3:15: `path_prefix` is not a path; for example \"/metrics\"",
        "4:17: `entries` is out of range; allowed: 0 to 100000000",
        "5:24: `max_bytes` is out of range; allowed: 1MiB to 1048576GiB",
    ];
    assert_eq!(summary(text), expected);
}
