//! States of NATS in which nothing can be stored: the daemon starts, says why it is not ready, and loses nothing.

use serde_json::{Value, json};

use super::STREAM;
use super::daemon::{Site, assert_once, until_noted, until_ready, upload};
use crate::live::binary::until;
use crate::nats_server::NatsServer;
use crate::tls_support::World;

/// Waits until the stream has `events` events, and checks them.
fn until_once(server: &NatsServer, events: u64) {
    until("every event is in the stream", || (server.lines(STREAM).0.len() as u64 >= events).then_some(()));
    assert_once(server, events);
}

#[test]
fn a_stream_of_another_shape_is_reported_and_taken_when_it_is_corrected() {
    let other: [(&[&str], Value, &str, Value); 3] = [
        (
            &["other"],
            json!({}),
            "takes the subjects [other], and not tributary.*.*",
            json!({ "subjects": ["tributary.>"] }),
        ),
        (&["tributary.>"], json!({ "no_ack": true }), "has no_ack", json!({ "no_ack": false })),
        (
            &["tributary.>"],
            json!({ "duplicate_window": 1_000_000_000 }),
            "recognizes repeats for 1s",
            json!({ "duplicate_window": 120_000_000_000_u64 }),
        ),
    ];
    for (subjects, shape, why, correction) in other {
        let Some(server) = NatsServer::start() else { return };
        server.create(STREAM, subjects, shape);
        let site = Site::with_spool(&server.url(), "create = true");
        let daemon = site.start();
        until_noted(&daemon, why);
        daemon.until_stderr("the destination refuses what is sent");
        let events = upload(&daemon, 20, 1);
        assert_eq!(server.count(STREAM), 0);
        server.update(STREAM, correction);
        until_ready(&daemon);
        until_once(&server, events);
    }
}

#[test]
fn subjects_that_the_stream_does_not_take_wait_and_the_others_do_not() {
    let Some(server) = NatsServer::start() else { return };
    server.create(STREAM, &["tributary.endless.log"], json!({}));
    let site = Site::with_spool(&server.url(), "");
    let daemon = site.start();
    until_ready(&daemon);
    let events = upload(&daemon, 40, 1);
    until_noted(&daemon, "takes the subjects [tributary.endless.log], and not tributary.endless.");
    server.update(STREAM, json!({ "subjects": ["tributary.endless.>"] }));
    until_ready(&daemon);
    until_once(&server, events);
}

#[test]
fn a_server_without_jetstream_is_reported() {
    let Some(server) = NatsServer::on(None, "") else { return };
    let site = Site::with_spool(&server.url(), "create = true");
    let daemon = site.start();
    until_noted(&daemon, "the server does not run JetStream");
    let events = upload(&daemon, 10, 1);
    let port = server.port;
    drop(server);
    let server = NatsServer::on(Some(port), "jetstream { store_dir: \"DIR/store\" }\n").unwrap();
    until_ready(&daemon);
    until_once(&server, events);
}

#[test]
fn a_deleted_stream_is_created_again_or_reported_as_configured() {
    for create in [true, false] {
        let Some(server) = NatsServer::start() else { return };
        server.create(STREAM, &["tributary.>"], json!({}));
        let site = Site::with_spool(&server.url(), &format!("create = {create}"));
        let daemon = site.start();
        let before = upload(&daemon, 20, 1);
        until_once(&server, before);
        server.delete(STREAM);
        let after = upload(&daemon, 20, 2);
        if !create {
            until_noted(&daemon, "the stream TRIBUTARY does not exist");
            server.create(STREAM, &["tributary.>"], json!({}));
        }
        until_once(&server, after);
        until_ready(&daemon);
    }
}

#[test]
fn a_full_stream_takes_everything_when_it_has_space() {
    let Some(server) = NatsServer::start() else { return };
    server.create(STREAM, &["tributary.>"], json!({ "max_msgs": 1 }));
    let site = Site::with_spool(&server.url(), "");
    let daemon = site.start();
    let mut events = upload(&daemon, 20, 1);
    until("the stream is full", || (server.count(STREAM) == 1).then_some(()));
    events += upload(&daemon, 20, 2);
    until("the fault is shown", || {
        super::daemon::get(&daemon, "/readyz").1.contains("maximum messages exceeded").then_some(())
    });
    server.update(STREAM, json!({ "max_msgs": -1 }));
    until_once(&server, events);
}

#[test]
fn a_wrong_token_is_reported_and_a_corrected_one_is_used_without_a_restart() {
    let Some(server) = NatsServer::start_with("authorization { token: right }\n") else { return };
    let site = Site::with_spool(&server.url(), "create = true\ntoken_file = \"DIR/token\"");
    let token = site.directory.path().join("token");
    let daemon = site.start();
    until_noted(&daemon, "cannot read");
    std::fs::write(&token, "wrong\n").unwrap();
    until_noted(&daemon, "does not accept the credentials: authorization violation");
    let events = upload(&daemon, 20, 1);
    std::fs::write(&token, "right\n").unwrap();
    until_ready(&daemon);
    until_once(&server, events);
    daemon.signal("TERM");
    let ended = daemon.end();
    assert!(!ended.stderr.contains("right"), "{}", ended.stderr);
}

#[test]
fn a_credentials_file_that_has_none_is_reported() {
    let Some(server) = NatsServer::start() else { return };
    let site = Site::with_spool(&server.url(), "credentials_file = \"DIR/user.creds\"");
    std::fs::write(site.directory.path().join("user.creds"), "nothing\n").unwrap();
    until_noted(&site.start(), "user.creds has no credentials of NATS");
}

#[test]
fn a_permission_that_is_missing_is_reported_in_the_words_of_the_server() {
    let permissions = "{ publish: [\"$JS.API.>\"], subscribe: \">\" }";
    let user = format!("users: [{{ user: edge, password: edge, permissions: {permissions} }}]");
    let users = format!("authorization {{ {user} }}\nno_auth_user: edge\n");
    let Some(server) = NatsServer::start_with(&users) else { return };
    server.create(STREAM, &["tributary.>"], json!({}));
    let site = Site::with_spool(&server.url(), "request_timeout = \"100ms\"");
    let daemon = site.start();
    upload(&daemon, 5, 1);
    until("the server's words are shown", || {
        super::daemon::get(&daemon, "/readyz").1.to_lowercase().contains("permissions violation").then_some(())
    });
    assert_eq!(server.count(STREAM), 0);
}

#[test]
fn connections_are_encrypted_and_the_certificate_of_the_server_is_checked() {
    let world = World::new();
    let other = World::new();
    let identity = world.server();
    std::fs::write(world.path("nats.pem"), &identity.cert).unwrap();
    std::fs::write(world.path("nats.key"), &identity.key).unwrap();
    let (cert, key) = (world.path("nats.pem"), world.path("nats.key"));
    let tls = format!(
        "jetstream {{ store_dir: \"DIR/store\" }}\ntls {{ cert_file: \"{}\", key_file: \"{}\" }}\n",
        cert.display(),
        key.display()
    );
    let Some(server) = NatsServer::on_tls(&tls) else { return };
    let url = format!("tls://localhost:{}", server.port);
    let site = Site::with_spool(&url, &format!("create = true\ntls.ca = \"{}\"", world.path("ca.pem").display()));
    let daemon = site.start();
    until_ready(&daemon);
    let events = upload(&daemon, 20, 1);
    until("everything is sent", || {
        let metrics = super::daemon::get(&daemon, "/metrics").1;
        let sent = metrics.lines().any(|line| {
            line.contains("written") && line.contains("sink=\"stream\"") && line.ends_with(&format!(" {events}"))
        });
        sent.then_some(())
    });
    let site = Site::with_spool(&url, &format!("create = true\ntls.ca = \"{}\"", other.path("ca.pem").display()));
    let daemon = site.start();
    upload(&daemon, 5, 1);
    until("the certificate is not accepted", || {
        super::daemon::get(&daemon, "/readyz").1.to_lowercase().contains("certificate").then_some(())
    });
}
