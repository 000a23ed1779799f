//! `tributary quarantine retry --admin` against an endpoint with a token and TLS.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;

use crate::endless_support::cases;
use crate::live::binary::{Binary, run, tributary};
use crate::tls_support::World;

/// Writes a configuration with this `[admin]` section and these options of the listener; returns its path.
fn config(world: &World, admin: &str, options: &str) -> String {
    let (home, path) = (world.directory.path().display(), world.path("t.toml"));
    let toml = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n{admin}\n\
         [listeners.desktops]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"{home}/quarantine\"\n{options}\n\
         [sinks.events]\ntype = \"file\"\npath = \"{home}/events.ndjson\"\n"
    );
    fs::write(&path, toml).unwrap();
    path.display().to_string()
}

fn start(config: &str) -> Binary {
    Binary::start(tributary(&["run", "--config", config]))
}

/// Uploads a recorded request whose payload is over the listener's limit, so that it is quarantined.
fn quarantine_one(world: &World) {
    let daemon = start(&config(world, "", "max_payload_bytes = \"1KiB\""));
    let case = cases().into_iter().find(|case| case.name == "real-v3-big-payload").unwrap();
    let mut stream = TcpStream::connect(daemon.address("desktops")).unwrap();
    stream.write_all(&case.request).unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}

#[test]
fn a_daemon_with_a_token_and_tls_retries_for_those_that_have_both() {
    let world = World::new();
    quarantine_one(&world);
    let file = |name: &str| world.path(name).display().to_string();
    for (name, token) in [("token", "s3cret"), ("other", "guess")] {
        fs::write(world.path(name), token).unwrap();
        fs::set_permissions(world.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let (token, other, ca) = (file("token"), file("other"), file("ca.pem"));
    let daemon = start(&config(&world, &format!("token_file = \"{token}\"\n{}", world.tls("")), ""));
    let address = daemon.admin_address().to_string();
    // The certificate has this name.
    let address = format!("localhost:{}", address.rsplit(':').next().unwrap());
    let retry = |more: &[&str]| run(&[&["quarantine", "retry", "--admin", &address], more].concat());
    let stays = || fs::read_dir(world.path("quarantine/desktops")).unwrap().count() == 1;
    for (arguments, why) in [
        (&["--ca", &ca][..], "401"),
        (&["--ca", &ca, "--token-file", &other], "401"),
        // Without TLS the endpoint gives no answer of HTTP.
        (&["--token-file", &token], "the admin endpoint on localhost:"),
        // An authority that has not signed the endpoint's certificate.
        (&["--token-file", &token, "--ca", &file("stranger.pem")], "certificate"),
        (&["--token-file", &file("missing"), "--ca", &ca], "missing: No such file"),
    ] {
        if arguments.contains(&file("stranger.pem").as_str()) {
            fs::write(world.path("stranger.pem"), World::new().authority()).unwrap();
        }
        let refused = retry(arguments);
        assert!(refused.code != Some(0) && refused.last_words().contains(why), "{arguments:?}: {}", refused.stderr);
        assert!(!refused.stderr.contains("s3cret"), "{}", refused.stderr);
        assert!(stays(), "{arguments:?}");
    }
    let retried = retry(&["--token-file", &token, "--ca", &ca]);
    assert_eq!(retried.code, Some(0), "{}", retried.stderr);
    retried.line("delivered, 12 events; removed from the quarantine");
    assert!(!stays());
    daemon.signal("TERM");
    daemon.end().line("sink=\"events\" events=12 written=12 shed=0 failed=0");
}
