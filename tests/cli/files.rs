//! A configuration in several files, with variables of the environment and labels; and `check --deep`.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use crate::live::binary::{Binary, Ended, tributary};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tributary::config::Config;
use tributary::event::ResourceValue;

/// A directory with these files.
fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    directory
}

/// Runs `tributary check` in the directory, with these variables.
fn check(directory: &Path, more: &[&str], variables: &[(&str, &str)]) -> Ended {
    let mut command = tributary(&[&["check", "--config", "main.toml"], more].concat());
    command.current_dir(directory).env_clear().envs(variables.iter().copied());
    Binary::start(command).end()
}

const SINK: &str = "[sinks.out]\ntype = \"discard\"\n";

#[test]
fn included_files_are_part_of_the_configuration_in_the_order_of_their_names() {
    let directory = directory(&[
        ("main.toml", &format!("include = [\"conf.d/*.toml\", \"one.toml\"]\n{SINK}")),
        ("conf.d/b.toml", "[listeners.b]\nprotocol = \"zico\"\n"),
        ("conf.d/a.toml", "[listeners.a]\nprotocol = \"endless\"\n[limits]\nthreads = 3\n"),
        ("conf.d/not.txt", "no TOML"),
        ("one.toml", "[listeners.c]\nprotocol = \"datadog\"\n"),
    ]);
    let loaded = Config::load(&directory.path().join("main.toml")).unwrap();
    let names: Vec<_> = loaded.config.listeners.iter().map(|listener| listener.name.as_str()).collect();
    assert_eq!((names, loaded.config.limits.threads), (vec!["a", "b", "c"], Some(3)));
    let paths: Vec<_> = loaded.files.paths().iter().map(|path| path.file_name().unwrap().to_owned()).collect();
    assert_eq!(paths, ["main.toml", "a.toml", "b.toml", "one.toml"]);
    // The effective configuration is one file that means the same.
    assert_eq!(Config::parse("effective", &loaded.effective).unwrap().config, loaded.config);
}

#[test]
fn a_text_can_be_in_a_file_or_in_the_environment_wherever_one_is_taken() {
    let directory = directory(&[
        (
            "main.toml",
            "[listeners.a]\nprotocol = { env = \"PROTOCOL\" }\nlisten = { file = \"address\" }\n\
             allow = [\"127.0.0.1\", { file = \"network\" }]\nidle_timeout = { file = \"timeout\" }\n\
             [sinks.out]\ntype = \"file\"\npath = { file = \"path\" }\n",
        ),
        ("address", "127.0.0.1:8136\n"),
        ("network", " 10.0.0.0/8\n"),
        ("timeout", "7s\n"),
        ("path", "secret/{protocol}.ndjson\n"),
    ]);
    let ended = check(directory.path(), &["--print"], &[("PROTOCOL", "datadog")]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for line in [
        "protocol = { env = \"PROTOCOL\" }",
        "listen = { file = \"address\" }",
        "allow = [\"127.0.0.1/32\", { file = \"network\" }]",
        "idle_timeout = { file = \"timeout\" }",
        "path = { file = \"path\" }",
    ] {
        assert!(ended.stdout.lines().any(|shown| shown == line), "{line}\n{}", ended.stdout);
    }
    assert!(!ended.stdout.contains("secret"), "{}", ended.stdout);
    fs::write(directory.path().join("address"), "nowhere\n").unwrap();
    fs::remove_file(directory.path().join("network")).unwrap();
    let ended = check(directory.path(), &[], &[("PROTOCOL", "datadog")]);
    assert_eq!(ended.code, Some(2));
    for error in ["`listen`", "an element of `allow` cannot be read: network: No such file or directory"] {
        assert!(ended.stderr.contains(error), "{error}\n{}", ended.stderr);
    }
}

#[test]
fn errors_of_included_files_name_the_file_and_the_line() {
    let directory = directory(&[
        ("main.toml", &format!("include = [\"conf.d/*.toml\"]\n{SINK}")),
        ("conf.d/a.toml", "[listeners.a]\nprotocol = \"datadog\"\n"),
        ("conf.d/b.toml", "\n[listeners.a]\nprotocol = \"zico\"\n[listeners.b]\nprotocol = \"datadgo\"\n"),
    ]);
    let ended = check(directory.path(), &[], &[]);
    assert_eq!(ended.code, Some(2));
    // A key in two files is reported before the values are read.
    assert!(ended.stderr.contains("conf.d/b.toml:3:1: `listeners.a.protocol` is set in two files"), "{}", ended.stderr);
    assert!(ended.stderr.contains("also in conf.d/a.toml, line 2"), "{}", ended.stderr);
    fs::remove_file(directory.path().join("conf.d/a.toml")).unwrap();
    let ended = check(directory.path(), &[], &[]);
    assert!(ended.stderr.contains("conf.d/b.toml:5:12: `protocol` cannot be \"datadgo\""), "{}", ended.stderr);
    assert!(ended.stderr.contains("did you mean \"datadog\"?"), "{}", ended.stderr);
}

#[test]
fn an_include_that_is_no_list_or_names_a_missing_file_is_an_error_at_its_place() {
    for (include, why) in [
        ("\"a.toml\"", "main.toml:1:11: `include` must be a list of paths"),
        ("[1]", "main.toml:1:12: an element of `include` is not a path"),
        ("[\"a***\"]", "main.toml:1:12: an element of `include` is not a pattern"),
        ("[\"missing.toml\"]", "main.toml:1:12: `include`: there is no file missing.toml"),
        ("[\"latin1.toml\"]", "main.toml:1:12: `include`: latin1.toml cannot be read"),
    ] {
        let directory = directory(&[("main.toml", &format!("include = {include}\n"))]);
        fs::write(directory.path().join("latin1.toml"), b"# \xe9").unwrap();
        let ended = check(directory.path(), &[], &[]);
        assert!(ended.code == Some(2) && ended.stderr.contains(why), "{}", ended.stderr);
    }
    let directory = directory(&[("main.toml", "include = [\"none/*.toml\"]\n")]);
    assert_eq!(check(directory.path(), &[], &[]).code, Some(0), "no file has to match a pattern");
}

#[test]
fn texts_take_variables_of_the_environment() {
    let text = format!("[listeners.a]\nprotocol = \"datadog\"\nlisten = \"${{HOST}}:${{PORT:-8136}}\"\n{SINK}");
    let directory = directory(&[("main.toml", &text)]);
    let ended = check(directory.path(), &["--print"], &[("HOST", "127.0.0.9")]);
    assert!(ended.stdout.contains("listen = \"127.0.0.9:8136\""), "{}", ended.stderr);
    let ended = check(directory.path(), &[], &[]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("main.toml:3:10: the environment variable `HOST` is not set"), "{}", ended.stderr);
    // The characters themselves are printed so that they read as themselves.
    let name = "a$${HOST}";
    let text = format!("labels = {{ name = \"{name}\" }}\n{SINK}");
    let loaded = Config::parse("t", &text).unwrap();
    assert_eq!(Config::parse("t", &loaded.effective).unwrap().config, loaded.config);
    assert!(loaded.effective.contains(name), "{}", loaded.effective);
    // What a variable contains is checked as what a file contains.
    let ended = check(directory.path(), &[], &[("HOST", "localhost")]);
    assert!(ended.stderr.contains("main.toml:3:10: `listen` is not an address"), "{}", ended.stderr);
}

#[test]
fn labels_stand_in_the_resource_of_every_listener_below_its_own_attributes() {
    let text = "labels = { env = \"prod\", site = 3 }\n[listeners.a]\nprotocol = \"datadog\"\n\
                [listeners.b]\nprotocol = \"zico\"\nresource = { env = \"test\" }\nresource_wins = true\n";
    let config = Config::parse("t", text).unwrap().config;
    let attributes = |index: usize| config.listeners[index].options.identity.as_ref().unwrap().attributes().to_vec();
    let text = |key: &str, value: &str| (key.to_owned(), ResourceValue::Text(value.to_owned()));
    let site = ("site".to_owned(), ResourceValue::I64(3));
    assert_eq!(attributes(0), [text("env", "prod"), site.clone()]);
    assert_eq!(attributes(1), [text("env", "test"), site]);
}

#[test]
fn deep_reports_what_cannot_work_on_this_machine() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let directory = directory(&[("file", ""), ("token", "secret")]);
    // A port that refuses: bound once, and free again.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"missing\"\n\
         [listeners.a]\nprotocol = \"datadog\"\nlisten = \"{address}\"\n\
         [listeners.b]\nprotocol = \"datadog\"\nlisten = \"192.0.2.1:8136\"\n\
         [sinks.f]\ntype = \"file\"\npath = \"file/below/{{protocol}}\"\n\
         [sinks.h]\ntype = \"http\"\nendpoint = \"http://{free}/\"\nspool = {{ dir = \"new/spool\" }}\n\
         [sinks.t]\ntype = \"tcp\"\naddress = \"{address}\"\n"
    );
    fs::write(directory.path().join("main.toml"), text).unwrap();
    let ended = check(directory.path(), &["--deep"], &[]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    for line in [
        &*format!("error: listeners.a.listen: {address} cannot be bound: Address already in use (os error 98)"),
        &*format!("; process {} (", std::process::id()),
        "error: listeners.b.listen: 192.0.2.1:8136 cannot be bound: ",
        "error: sinks.f.path: file/below: Not a directory (os error 20)",
        &*format!("error: sinks.h.endpoint: {free} cannot be reached: tcp connect error: Connection refused"),
        "error: admin.token_file: missing cannot be read: No such file or directory",
    ] {
        assert!(ended.stderr.contains(line), "{line}\n{}", ended.stderr);
    }
    assert!(ended.stderr.contains("8 checks: 5 errors, 0 warnings"), "{}", ended.stderr);
    assert!(!directory.path().join("new").exists(), "it changes nothing");
}

#[test]
fn the_proxy_of_a_sink_is_shown_without_its_credentials() {
    let directory = directory(&[("proxy", "http://user:secret@proxy.file:3128\n")]);
    let text = |option: &str, endpoint: &str| {
        format!(
            "[listeners.a]\nprotocol = \"datadog\"\n[sinks.s]\ntype = \"otlp\"\nendpoint = \"{endpoint}\"\n{option}\n\
             spool = {{ dir = \"spool\" }}\n"
        )
    };
    let none: [(&str, &str); 4] = [("HTTPS_PROXY", ""), ("HTTP_PROXY", ""), ("ALL_PROXY", ""), ("NO_PROXY", "")];
    let with = |option: &str, endpoint: &str, environment: &[(&str, &str)]| {
        fs::write(directory.path().join("main.toml"), text(option, endpoint)).unwrap();
        let ended = check(directory.path(), &["--print"], &[&none[..], environment].concat());
        assert!(!format!("{}{}", ended.stdout, ended.stderr).contains("secret"), "{}", ended.stderr);
        let line = ended.stderr.lines().find_map(|line| line.strip_prefix("sink s sends its requests by the proxy "));
        (ended.code, line.map(str::to_owned))
    };
    let shown = |line: &str| (Some(0), Some(line.to_owned()));
    let (https, http) = ("https://tempo.example:4317", "http://tempo.example:4317");
    let environment = [("HTTPS_PROXY", "http://user:secret@proxy.https:1"), ("HTTP_PROXY", "http://proxy.http:2")];
    assert_eq!(with("", https, &environment), shown("http://proxy.https:1 (the environment)"));
    assert_eq!(with("", http, &environment), shown("http://proxy.http:2 (the environment)"));
    let except = [environment[0], environment[1], ("NO_PROXY", ".example")];
    assert_eq!(with("", https, &except), (Some(0), None));
    assert_eq!(with("proxy = \"\"", https, &environment), (Some(0), None));
    assert_eq!(with("", https, &[]), (Some(0), None));
    let option = "proxy = \"http://proxy.option:3128\"";
    assert_eq!(with(option, https, &except), shown("http://proxy.option:3128 (the option proxy)"));
    let file = format!("proxy = {{ file = \"{}\" }}", directory.path().join("proxy").display());
    assert_eq!(with(&file, https, &[]), shown("http://proxy.file:3128 (the option proxy)"));
    for invalid in ["proxy = \"socks5://proxy:1080\"", "proxy = \"proxy:3128\"", "proxy = \"http://u:pass@proxy:1\""] {
        assert_eq!(with(invalid, https, &[]), (Some(2), None), "{invalid}");
    }
}

#[test]
fn deep_reports_certificates_that_have_expired_or_expire_soon() {
    let year = |name: &str, from: i32, to: i32| {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        let key = KeyPair::generate().unwrap();
        (format!("{name}.pem"), params.self_signed(&key).unwrap().pem(), format!("{name}.key"), key.serialize_pem())
    };
    let directory = directory(&[]);
    for (cert, pem, key, key_pem) in [year("old", 2000, 2001), year("new", 2000, 4000)] {
        fs::write(directory.path().join(cert), pem).unwrap();
        fs::write(directory.path().join(&key), key_pem).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(directory.path().join(key), private).unwrap();
    }
    let listener = |name: &str, cert: &str, key: &str| {
        format!(
            "[listeners.{name}]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\ntls = {{ cert = \"{cert}.pem\", key = \"{key}.key\" }}\n"
        )
    };
    let [old, new, mixed] =
        [("old", "old"), ("new", "new"), ("new", "old")].map(|(cert, key)| listener(cert, cert, key));
    let text = |listeners: &str| format!("[admin]\nlisten = \"\"\n{listeners}{SINK}");
    let deep = |listeners: &str| {
        fs::write(directory.path().join("main.toml"), text(listeners)).unwrap();
        check(directory.path(), &["--deep"], &[])
    };
    let ended = deep(&old);
    assert!(
        ended.stderr.contains("error: listeners.old.tls: old.pem: the certificate has expired"),
        "{}",
        ended.stderr
    );
    assert_eq!(deep(&new).code, Some(0));
    let ended = deep(&mixed);
    assert!(ended.stderr.contains("it does not belong to the key in old.key"), "{}", ended.stderr);
}

#[test]
fn errors_name_the_key_that_was_meant_and_the_protocol_that_a_key_belongs_to() {
    for (text, expected) in [
        (
            "[listeners.a]\nprotocl = \"datadog\"\n",
            "t:2:1: [listeners.a] needs the key `protocol`\n  2 | protocl = \"datadog\"\n    | ^^^^^^^ did you mean `protocol`?",
        ),
        (
            "[listeners.a]\nprotocol = \"datadog\"\nheartbeat_interval = \"1s\"\n",
            "t:3:1: unknown key `heartbeat_interval` in [listeners.a]\n  3 | heartbeat_interval = \"1s\"\n    | ^^^^^^^^^^^^^^^^^^ it is a key of bytefrog",
        ),
        (
            "[listeners.a]\nprotocol = \"rbkit\"\nlisten = \"127.0.0.1:1\"\n",
            "t:3:1: unknown key `listen` in [listeners.a]\n  3 | listen = \"127.0.0.1:1\"\n    | ^^^^^^ the daemon connects to Ruby processes: write agents = [{ publish = \"HOST:PORT\" }], or listen_publish",
        ),
    ] {
        assert_eq!(Config::parse("t", text).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_file_that_is_no_toml_gives_a_few_errors() {
    let text = "not a key\n".repeat(50_000);
    let errors = Config::parse("t", &text).unwrap_err();
    assert_eq!(errors.diagnostics.len(), 5);
    assert!(errors.to_string().ends_with("\n    | further errors are not shown: is this a TOML file?"), "{errors}");
}

#[test]
fn options_of_another_protocol_are_refused_and_hosts_have_names() {
    let misused = |arguments: &[&str]| {
        let ended = crate::live::binary::run(arguments);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        ended.stderr
    };
    let stderr = misused(&["simulate", "datadog", "--to", "127.0.0.1:1", "--dialect", "gen1"]);
    assert!(
        stderr.contains("--dialect is an option of datadog_agent, otlp, rbkit, zico; datadog agents do not have it"),
        "{stderr}"
    );
    let stderr = misused(&["simulate", "zico", "--to", "127.0.0.1:1", "--threads", "1"]);
    assert!(stderr.contains("--threads is an option of bytefrog"), "{stderr}");
    let stderr = misused(&["simulate", "datadog", "--to", "127.0.0.1"]);
    assert!(stderr.contains("write HOST:PORT"), "{stderr}");
    // The name is resolved, and nothing listens there.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ended = crate::live::binary::run(&["simulate", "datadog", "--to", &format!("localhost:{}", free.port())]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("Connection refused"), "{}", ended.stderr);
    let ended = crate::live::binary::run(&["tap", "--admin", &free.to_string()]);
    assert!(
        ended.stderr.contains("does the daemon run, and is this the address of [admin] listen?"),
        "{}",
        ended.stderr
    );
}
