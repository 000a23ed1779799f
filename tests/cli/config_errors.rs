//! Errors of a configuration file: their place, what is wrong, and what to write.

use std::path::Path;

use tributary::config::Config;

fn errors(text: &str) -> String {
    Config::parse("t.toml", text).expect_err("it is invalid").to_string()
}

/// The first lines of the errors of a datadog listener with these lines (the first is line 3) and their help.
fn listener_errors(lines: &str) -> Vec<String> {
    summary(&format!("[listeners.a]\nprotocol = \"datadog\"\n{lines}"))
}

/// `line:column: message; help` of every error.
pub(crate) fn summary(text: &str) -> Vec<String> {
    let errors = Config::parse("t.toml", text).expect_err("it is invalid");
    let line = |one: &tributary::options::Diagnostic| {
        let place = one.place.as_ref().map(|place| format!("{}:{}: ", place.line, place.column)).unwrap_or_default();
        let help = one.help.as_ref().map(|help| format!("; {help}")).unwrap_or_default();
        format!("{place}{}{help}", one.message)
    };
    errors.diagnostics.iter().map(line).collect()
}

#[test]
fn all_errors_are_reported_together_each_with_a_caret() {
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
    | ^^^^^^ allowed keys: memory_bytes, memory_per_address, threads, shutdown_grace
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
     |                        ^^^^^^^^^^^ for example "10.0.0.0/8" or "192.0.2.7"
t.toml:15:15: `compression` cannot be "gz"
  15 | compression = "gz"
     |               ^^^^ allowed: "none", "gzip", "lz4" or "zstd"
t.toml:16:16: `rotate_bytes` is not a size
  16 | rotate_bytes = "1M"
     |                ^^^^ the units are KiB, MiB, GiB (powers of 1024), kB, MB, GB (powers of 1000) and B"#;
    assert_eq!(errors(text), expected);
}

#[test]
fn syntax_errors_are_reported_in_the_same_way() {
    let expected = r#"t.toml:1:8: invalid TOML: unclosed table, expected `]`
  1 | [limits
    |        ^
t.toml:3:15: invalid TOML: invalid basic string, expected `"`
  3 | type = "stdout
    |               ^"#;
    assert_eq!(errors("[limits\n[sinks.a]\ntype = \"stdout\n"), expected);
    assert_eq!(
        summary("[limits]\nmemory_bytes = \n"),
        ["2:16: invalid TOML: string values must be quoted, expected literal string"]
    );
    assert_eq!(
        summary("[limits]\nshutdown_grace = \"1s\"\nshutdown_grace = \"1s\"\n"),
        ["3:1: invalid TOML: duplicate key"]
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
        "9:15: `list_layout` must be a string, not an integer; allowed: \"exact\" or \"padded32\"",
        "10:11: `waiting` must be a table, not an integer; for example [listeners.a.waiting]",
    ];
    assert_eq!(listener_errors(lines), expected);
}

#[test]
fn an_invalid_size_or_duration_says_what_to_write() {
    let lines = "max_message_bytes = \"16M\"\nmin_message_rate = \"fast\"\nidle_timeout = \"10\"\n\
                 message_timeout = \"soon\"\nhandshake_timeout = \"1w\"\nmax_record_bytes = \"99999999999GiB\"\n";
    let expected = [
        "3:21: `max_message_bytes` is not a size; the units are KiB, MiB, GiB (powers of 1024), kB, MB, GB (powers of 1000) and B",
        "4:20: `min_message_rate` is not a size; write a whole number and a unit, without spaces and decimal points",
        "5:16: `idle_timeout` is not a duration; write a unit, e.g. 10s",
        "6:19: `message_timeout` is not a duration; write a whole number and a unit, without spaces and decimal points",
        "7:21: `handshake_timeout` is not a duration; the units are d, h, m, s, ms, us and ns",
        "8:20: `max_record_bytes` is not a size; the number is too large",
    ];
    assert_eq!(listener_errors(lines), expected);
}

#[test]
fn a_value_out_of_range_says_its_range() {
    let lines = "max_message_bytes = 1023\nmax_connections = 0\nhandshake_timeout = \"0s\"\nidle_timeout = \"8761h\"\n\
                 keepalive = \"1500ms\"\nstring_cache = { min_entries = 3, max_entries = 2 }\n";
    let expected = [
        "3:21: `max_message_bytes` is out of range; allowed: 1KiB to 1GiB",
        "4:19: `max_connections` is out of range; allowed: 1 to 1000000",
        "5:21: `handshake_timeout` is out of range; allowed: 1ms to 365d",
        "6:16: `idle_timeout` is out of range; allowed: 0s to 365d",
        "7:13: `keepalive` must be whole seconds; the system counts in seconds",
        "8:49: `max_entries` is 2, less than `min_entries`; at least 3",
    ];
    assert_eq!(listener_errors(lines), expected);
}

#[test]
fn a_listener_needs_a_known_protocol() {
    let text = "[listeners.a]\nlisten = \"127.0.0.1:1\"\n[listeners.b]\nprotocol = \"rbkit\"\nagents = \"k\"\n\
                [listeners.c]\nprotocol = \"datadgo\"\n[listeners.d]\nprotocol = \"statsd\"\nmax_connections = 0\n";
    let expected = [
        "1:12: [listeners.a] needs the key `protocol`; write protocol = \"rbkit\", \"bytefrog\", \"datadog\", \"datadog_agent\", \"endless\", \"zico\", \"otlp\" or \"nats\"",
        "5:10: `agents` must be a list of tables, not a string; for example agents = [{ publish = \"127.0.0.1:5555\", request = \"127.0.0.1:5556\" }]",
        "7:12: `protocol` cannot be \"datadgo\"; did you mean \"datadog\"?",
        "9:12: `protocol` cannot be \"statsd\"; allowed: \"rbkit\", \"bytefrog\", \"datadog\", \"datadog_agent\", \"endless\", \"zico\", \"otlp\" or \"nats\"",
        "10:19: `max_connections` is out of range; allowed: 1 to 1000000",
    ];
    assert_eq!(summary(text), expected);
}

#[test]
fn a_sink_needs_a_type_and_has_no_options_of_other_types() {
    let text = "[sinks.a]\nformat = \"json\"\n[sinks.b]\ntype = \"flie\"\n[sinks.c]\ntype = \"discard\"\nformat = \"json\"\n\
                [sinks.d]\ntype = \"stdout\"\nprotocols = [\"ruby\"]\nkinds = [\"spans\"]\n";
    let expected = [
        "1:8: [sinks.a] needs the key `type`; write type = \"stdout\", \"file\", \"parquet\", \"tcp\", \"http\", \"otlp\", \"nats\" or \"discard\"",
        "4:8: `type` cannot be \"flie\"; did you mean \"file\"?",
        "7:1: unknown key `format` in [sinks.c]",
        "10:14: an element of `protocols` cannot be \"ruby\"; allowed: \"rbkit\", \"bytefrog\", \"datadog\", \"datadog_agent\", \"endless\", \"zico\", \"otlp\" or \"nats\"",
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
        "5:10: listener `a` cannot listen on 127.0.0.1:8136: listener `z` listens on 127.0.0.1:8136; set another port",
        "8:8: sinks `z` and `a` write the same file: FILE; set another path",
        "13:8: sinks `y` and `b` both write to stdout",
    ];
    let here = std::env::current_dir().unwrap();
    let file = here.join("events/%Y-%m-%d/datadog.ndjson").display().to_string();
    assert_eq!(summary(text), expected.map(|line| line.replace("FILE", &file)));
    let any_port = "listen = \"127.0.0.1:0\"\nprotocol = \"datadog\"\n";
    assert!(Config::parse("t.toml", &format!("[listeners.a]\n{any_port}[listeners.b]\n{any_port}")).is_ok());
}

/// The errors of a file with these sinks, each given as its name, its path and further options.
fn sink_errors(sinks: &[(&str, &str, &str)]) -> Vec<String> {
    let listeners = "[listeners.one]\nprotocol = \"datadog\"\n[listeners.two]\nprotocol = \"zico\"\n";
    let sinks =
        sinks.iter().map(|(name, path, more)| format!("[sinks.{name}]\ntype = \"file\"\npath = {path:?}\n{more}\n"));
    let text = format!("{listeners}{}", sinks.collect::<String>());
    let errors = Config::parse("t.toml", &text).map(|_| Vec::new());
    errors.unwrap_or_else(|errors| errors.diagnostics.into_iter().map(|one| one.message).collect())
}

#[test]
fn an_http_sink_needs_an_endpoint_headers_that_can_be_sent_and_a_directory_for_its_spool() {
    let text = "[sinks.a]\ntype = \"http\"\n[sinks.b]\ntype = \"http\"\nendpoint = \"host:1/x\"\nheaders = { Host = \"a\", \"b c\" = \"d\" }\n\
                [sinks.c]\ntype = \"http\"\nendpoint = \"http://h/\"\ncert = \"c.pem\"\nspool = { max_bytes = \"1GiB\" }\n\
                retry_min = \"1m\"\n";
    let summary = summary(text).join("\n");
    for expected in [
        "1:8: [sinks.a] needs the key `endpoint`; write endpoint = \"http://host:port/path\"",
        "5:12: is not an address of HTTP",
        "`headers`: `Host` is set by tributary",
        "`headers`: `b c` is no name of a header",
        "needs `key`",
        "needs the key `dir`",
        "12:13: is more than retry_max",
    ] {
        assert!(summary.contains(expected), "{expected}: {summary}");
    }
}

#[test]
fn the_former_options_for_headers_of_an_http_sink_are_errors_that_name_the_new_one() {
    let text =
        "[sinks.a]\ntype = \"http\"\nendpoint = \"http://h/\"\nheaders = [\"a: b\"]\nheader_files = [\"c: /d\"]\n";
    let summary = summary(text);
    let [headers, files] = summary.as_slice() else { panic!("{summary:#?}") };
    assert!(headers.starts_with("4:11: `headers` must be a table; write headers = { NAME = \"value\" }"), "{headers}");
    assert_eq!(files, "5:16: `header_files` is no option any more; write headers = { NAME = { file = \"…\" } }");
}

#[test]
fn a_tcp_sink_needs_an_address_and_pauses_that_can_grow() {
    let text = "[sinks.a]\ntype = \"tcp\"\n[sinks.b]\ntype = \"tcp\"\naddress = \"host\"\nframing = \"lines\"\n\
                [sinks.c]\ntype = \"tcp\"\naddress = \"h:1\"\nreconnect_min = \"10s\"\n";
    let summary = summary(text);
    let [needs, address, framing, pauses] = summary.as_slice() else { panic!("{summary:#?}") };
    assert_eq!(needs, "1:8: [sinks.a] needs the key `address`; write address = \"host:port\"");
    assert!(address.starts_with("5:11: "), "{address}");
    assert!(framing.starts_with("6:11: "), "{framing}");
    assert_eq!(pauses, "10:17: is more than reconnect_max");
}

#[test]
fn two_sinks_cannot_write_the_same_file_however_it_is_spelled() {
    let directory = tempfile::tempdir().unwrap();
    let real = directory.path().canonicalize().unwrap();
    std::fs::create_dir(real.join("dir")).unwrap();
    std::os::unix::fs::symlink(real.join("dir"), real.join("link")).unwrap();
    std::os::unix::fs::symlink(real.join("dir/x"), real.join("x-link")).unwrap();
    std::fs::write(real.join("dir/x"), "").unwrap();
    let at = |path: &str| real.join(path).display().to_string();
    let here = std::env::current_dir().unwrap().join("x").display().to_string();
    for (one, other) in [
        ("x".to_owned(), "./x".to_owned()),
        ("x".to_owned(), ".//./x".to_owned()),
        ("x".to_owned(), here),
        (at("dir/new"), at("link/new")),
        (at("dir/%Y/{protocol}"), at("link//%Y/./{protocol}")),
        (at("dir/x"), at("x-link")),
        (at("%F"), at("%Y-%m-%d")),
        // The same file of one protocol or listener.
        (at("{protocol}.ndjson"), at("datadog.ndjson")),
        (at("%Y/{listener}"), at("%Y/two")),
        (at("{protocol}/{listener}"), at("zico/{listener}")),
    ] {
        let errors = sink_errors(&[("a", &one, ""), ("b", &other, "")]);
        assert_eq!(errors.len(), 1, "{one} {other}: {errors:?}");
        assert!(errors[0].starts_with("sinks `a` and `b` write the same file: /"), "{errors:?}");
    }
    for (one, other, more) in [
        (at("x"), at("y"), ""),
        (at("dir/x"), at("other/x"), ""),
        (at("{protocol}.ndjson"), at("bytefrog.ndjson"), ""),
        (at("{protocol}.ndjson"), at("zico.ndjson"), "protocols = [\"datadog\"]"),
        (at("%Y"), at("%H"), ""),
    ] {
        assert_eq!(sink_errors(&[("a", &one, more), ("b", &other, "")]), [""; 0], "{one} {other}");
    }
}

#[test]
fn two_sockets_cannot_listen_where_one_address_covers_the_other() {
    let errors = |text: &str| match Config::parse("t.toml", text) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.diagnostics.into_iter().map(|one| one.message).collect(),
    };
    let two = |one: &str, other: &str| {
        let listener =
            |name: &str, listen: &str| format!("[listeners.{name}]\nprotocol = \"datadog\"\nlisten = {listen:?}\n");
        errors(&format!("{}{}", listener("a", one), listener("b", other)))
    };
    for (one, other) in [
        ("0.0.0.0:8136", "127.0.0.1:8136"),
        ("127.0.0.1:8136", "0.0.0.0:8136"),
        ("[::]:8136", "127.0.0.1:8136"),
        ("[::1]:8136", "[::]:8136"),
        ("[::]:8136", "0.0.0.0:8136"),
    ] {
        let expected = format!("listener `b` cannot listen on {other}: listener `a` listens on {one}");
        assert_eq!(two(one, other), [expected]);
    }
    assert_eq!(two("0.0.0.0:8136", "0.0.0.0:8137"), [""; 0]);
    assert_eq!(two("0.0.0.0:8136", "[::1]:8136"), [""; 0]);
    // The admin endpoint and the publish socket of rbkit are sockets too.
    let admin =
        "[admin]\nlisten = \"127.0.0.1:9000\"\n[listeners.a]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:9000\"\n";
    let expected =
        "listener `a` cannot listen on 127.0.0.1:9000: the admin endpoint ([admin] listen) listens on 127.0.0.1:9000";
    assert_eq!(errors(admin), [expected]);
    assert_eq!(errors(&admin.replace("[admin]\nlisten = \"127.0.0.1:9000\"", "[admin]\nlisten = \"\"")), [""; 0]);
    let ruby = "[listeners.a]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:1\"\n\
                [listeners.b]\nprotocol = \"rbkit\"\nlisten_publish = \"0.0.0.0:1\"\n";
    assert_eq!(errors(ruby), ["listener `b` cannot listen on 0.0.0.0:1: listener `a` listens on 127.0.0.1:1"]);
}

#[test]
fn a_name_with_other_characters_is_invalid() {
    let long = "n".repeat(65);
    let text = format!(
        "[listeners.\"../a\"]\nprotocol = \"datadog\"\n[sinks.{long}]\ntype = \"discard\"\n[sinks.\"\"]\ntype = \"discard\"\n"
    );
    let expected = [
        "1:12: [listeners.\"../a\"] is not a valid name; a name has 1 to 64 characters of A-Z a-z 0-9 _ -".to_owned(),
        format!("3:8: [sinks.{long}] is not a valid name; a name has 1 to 64 characters of A-Z a-z 0-9 _ -"),
        "5:8: [sinks.\"\"] is not a valid name; a name has 1 to 64 characters of A-Z a-z 0-9 _ -".to_owned(),
    ];
    assert_eq!(summary(&text), expected);
}

#[test]
fn invalid_empty_and_unknown_tables_have_clear_errors() {
    let text = "sinks = \"stdout\"\n[listners.a]\nprotocol = \"datadog\"\n[adnim]\n[listeners]\n";
    let expected = [
        "1:9: `sinks` must be a table, not a string; for example [sinks]",
        "2:2: unknown key `listners` in the file; did you mean `listeners`?",
        "4:2: unknown key `adnim` in the file; allowed keys: labels, limits, admin, view, reload, listeners, sinks",
        "5:2: [listeners] is empty; write [listeners.NAME], or remove [listeners] to use the built-in listeners",
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
fn control_characters_of_a_file_do_not_reach_the_terminal() {
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
fn a_path_prefix_must_be_a_path() {
    let text = "[listeners.a]\nprotocol = \"endless\"\npath_prefix = \"metrics\"\ndedup.entries = -1\nquarantine.max_bytes = 1\n";
    let expected = [
        "3:15: `path_prefix` is not a path; for example \"/metrics\"",
        "4:17: `entries` is out of range; allowed: 0 to 100000000",
        "5:24: `max_bytes` is out of range; allowed: 1MiB to 1048576GiB",
    ];
    assert_eq!(summary(text), expected);
}

/// An endless listener that acknowledges durable events, and these sinks.
fn durable(sinks: &str) -> String {
    format!("[listeners.desktops]\nprotocol = \"endless\"\nacknowledge = \"durable\"\n{sinks}")
}

#[test]
fn durable_acknowledgements_need_sinks_that_can_be_durable() {
    let help = "change these sinks or their `protocols`, or write acknowledge = \"written\"";
    for (sink, why) in [
        ("type = \"stdout\"", "has type = \"stdout\""),
        ("type = \"discard\"", "has type = \"discard\""),
        ("type = \"tcp\"\naddress = \"h:1\"", "has type = \"tcp\", whose receivers do not acknowledge"),
        ("type = \"http\"\nendpoint = \"http://h/e\"", "has no spool"),
        ("type = \"file\"\nfsync = \"never\"", "has fsync = \"never\""),
    ] {
        let expected = format!("3:15: `acknowledge` cannot be \"durable\": sink `a` {why}; {help}");
        assert_eq!(summary(&durable(&format!("[sinks.a]\n{sink}\n"))), [expected]);
        let other = durable(&format!(
            "[sinks.a]\nprotocols = [\"datadog\"]\n{sink}\n[sinks.b]\ntype = \"file\"\npath = \"b\"\n"
        ));
        assert!(Config::parse("t.toml", &other).is_ok(), "it takes no events of the listener");
    }
    // The built-in sink is stdout.
    assert!(summary(&durable(""))[0].contains("sink `console` has type"));
    let two = "[sinks.a]\ntype = \"discard\"\n[sinks.b]\ntype = \"file\"\n[sinks.c]\ntype = \"stdout\"\n";
    assert!(summary(&durable(two))[0].contains("sink `a` has type = \"discard\", sink `c` has type = \"stdout\""));
    for sink in ["type = \"file\"", "type = \"file\"\nfsync = \"always\"", HTTP_WITH_SPOOL] {
        assert!(Config::parse("t.toml", &durable(&format!("[sinks.a]\n{sink}\n"))).is_ok(), "{sink}");
    }
}

const HTTP_WITH_SPOOL: &str = "type = \"http\"\nendpoint = \"http://h/e\"\nspool.dir = \"s\"";

#[test]
fn a_bucket_has_servers_and_a_name_and_is_not_beside_a_file() {
    let toml = |lines: &str| format!("[listeners.a]\nprotocol = \"zico\"\n{lines}\n[sinks.a]\ntype = \"discard\"\n");
    for (lines, error) in [
        ("state = \"nats://host\"", "names no bucket"),
        ("state = \"nats://host/\"", "`` is not the name of a bucket"),
        ("state = \"nats://host/a.b\"", "`a.b` is not the name of a bucket"),
        ("state = \"http://host/b\"", "`http://host` is not an address of NATS"),
        ("state = \"nats://user:secret@host/b\"", "has credentials, which the log would show"),
        ("state = \"nats://host/b\"\nstate_dir = \"s\"", "`state` and `state_dir` exclude each other"),
        ("state = \"nats://host/b\"\nmax_sessions_per_agent = 1001", "with `state` an agent has at most 1000 keys"),
    ] {
        let errors = Config::parse("t.toml", &toml(lines)).unwrap_err().to_string();
        assert!(errors.contains(error), "{lines}: {errors}");
    }
    assert!(Config::parse("t.toml", &toml("acknowledge = \"written\"\nstate = \"tls://a:1,nats://b/c\"")).is_ok());
}

#[test]
fn durable_acknowledgements_of_registrations_need_a_state_dir() {
    let toml = |option: &str| {
        format!("[listeners.z]\nprotocol = \"zico\"\nacknowledge = \"durable\"\n{option}\n[sinks.a]\ntype = \"file\"\n")
    };
    assert_eq!(
        summary(&toml("")),
        [
            "3:15: `acknowledge` cannot be \"durable\": without `state_dir` registrations are kept in memory; set state_dir, \
          or remove `acknowledge`: then only events are acknowledged as durable"
        ]
    );
    assert!(Config::parse("t.toml", &toml("state_dir = \"s\"")).is_ok());
}

#[test]
fn requests_are_acknowledged_at_the_level_that_all_their_sinks_can_reach() {
    use tributary::sink::AckLevel::{Durable, Written};
    let listeners = "[listeners.e]\nprotocol = \"endless\"\n[listeners.z]\nprotocol = \"zico\"\n";
    let levels = |sinks: &str| {
        let config = Config::parse("t.toml", &format!("{listeners}{sinks}")).unwrap().config;
        let levels: Vec<_> = config.listeners.iter().map(|listener| config.acknowledge(listener)).collect();
        (levels, config.acknowledge_notes())
    };
    assert_eq!(levels("[sinks.a]\ntype = \"file\"\n"), (vec![Durable, Durable], vec![]));
    let note = |names: &str, sinks: &str| {
        format!("requests to {names} are acknowledged when events are written, not durable: {sinks}")
    };
    assert_eq!(
        levels("[sinks.a]\ntype = \"file\"\n[sinks.b]\ntype = \"stdout\"\n"),
        (vec![Written, Written], vec![note("e, z", "sink `b` has type = \"stdout\"")])
    );
    assert_eq!(
        levels("[sinks.a]\ntype = \"file\"\n[sinks.b]\ntype = \"discard\"\nprotocols = [\"zico\"]\n"),
        (vec![Durable, Written], vec![note("z", "sink `b` has type = \"discard\"")])
    );
}

#[test]
fn attributes_of_a_listener_are_checked_one_by_one() {
    let errors = |line: &str| listener_errors(line).join("\n");
    assert_eq!(
        listener_errors(
            "resource = { \"\" = 1, a = \"\", b = [1], c = 2020-01-01, d = nan, e = inf, f = 9223372036854775808 }"
        ),
        [
            "3:14: a key of `resource` is empty; allowed: 1 to 128 bytes",
            "3:26: `a` of `resource` is empty; leave it out, or write a value",
            "3:34: `b` of `resource` must be a single value, not an array; allowed: a string, an integer, true or false, a float",
            "3:43: `c` of `resource` must be a single value, not a datetime; allowed: a string, an integer, true or false, a float",
            "3:59: `d` of `resource` is not finite; allowed: finite floats",
            "3:68: `e` of `resource` is not finite; allowed: finite floats",
            "3:77: `f` of `resource` is out of range; allowed: integers of 64 bits",
        ]
    );
    assert_eq!(
        errors("resource = \"shop\""),
        "3:12: `resource` must be a table, not a string; for example resource = { \"service.name\" = \"shop\" }"
    );
    let dotted = errors("resource = { service.name = \"shop\" }");
    assert!(dotted.ends_with("; a key with dots is written in quotes: \"service.name\" = …"), "{dotted}");
    let long = errors(&format!("resource = {{ k{} = 1, x = \"{}\" }}", "k".repeat(128), "y".repeat(1025)));
    assert!(long.contains("a key of `resource` has 129 bytes"), "{long}");
    assert!(long.contains("`x` of `resource` has 1025 bytes; at most 1024 bytes are allowed"), "{long}");
    let many: Vec<_> = (0..33).map(|number| format!("k{number} = 1")).collect();
    let many = errors(&format!("resource = {{ {} }}", many.join(", ")));
    assert!(many.contains("`resource` has 33 attributes; at most 32 are allowed"), "{many}");
    assert_eq!(errors("resource_wins = 1"), "3:17: `resource_wins` must be true or false, not an integer");
}

#[test]
fn a_limit_of_bytes_below_the_size_of_one_file_is_an_error() {
    let help = "a finished file can be as large as rotate_bytes, and would be removed immediately";
    let errors = |lines: &str| {
        let sink = "[listeners.a]\nprotocol = \"datadog\"\n[sinks.f]\ntype = \"file\"\n";
        Config::parse("t.toml", &format!("{sink}{lines}")).map(drop).map_err(|errors| errors.to_string())
    };
    for lines in ["keep_bytes = \"1MiB\"\n", "keep_bytes = \"1MiB\"\nrotate_bytes = \"0B\"\n"] {
        let text = errors(lines).unwrap_err();
        assert!(
            text.contains("`keep_bytes` must be at least rotate_bytes, which must not be 0") && text.contains(help),
            "{text}"
        );
    }
    assert_eq!(errors("keep_bytes = \"1MiB\"\nrotate_bytes = \"1MiB\"\n"), Ok(()));
}

#[test]
fn compact_fields_are_for_json_lines_of_files_and_of_standard_output() {
    let text = "[sinks.a]\ntype = \"stdout\"\nformat = \"text\"\nfields = \"compact\"\n";
    assert_eq!(summary(text), ["4:10: `fields` is for format = \"json\"; remove it, or set format = \"json\""]);
    let text = "[sinks.a]\ntype = \"file\"\nfields = \"short\"\n";
    assert_eq!(summary(text), ["3:10: `fields` cannot be \"short\"; allowed: \"full\" or \"compact\""]);
    let text = "[sinks.a]\ntype = \"tcp\"\naddress = \"localhost:1\"\nfields = \"compact\"\n";
    let [error] = &summary(text)[..] else { panic!("one error") };
    assert!(error.starts_with("4:1: unknown key `fields` in [sinks.a]"), "{error}");
}

#[test]
fn an_error_is_shown_with_its_line_but_without_the_secrets_of_that_line() {
    let text = "[sinks.a]\ntype = \"http\"\nendpoint = \"http://user:secret1@h/\"\nheaders = { Authorization = \"Bearer secret2\", \"b c\" = \"x\" }\n\
                [sinks.b]\ntype = \"otlp\"\nendpoint = \"http://h/path?api_key=secret3\"\n\
                [sinks.c]\ntype = \"nats\"\nstream = \"s\"\nservers = [\"nats://user:secret4@h/no path\"]\n";
    let errors = Config::parse("t", text).unwrap_err().to_string();
    for expected in ["http://************@h/", "Authorization = \"**************\"", "api_key=*******"] {
        assert!(errors.contains(expected), "{expected}: {errors}");
    }
    assert!(!(1..=4).any(|number| errors.contains(&format!("secret{number}"))), "{errors}");
}
