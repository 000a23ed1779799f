//! Certificates that are replaced while the daemon runs: open connections stay, new ones are shown the new certificates,
//! and unusable files change nothing.

use std::fs;

use crate::live::binary::{Binary, free_address, tributary};
use crate::live::{Daemon, config, losses, spans, wire, within};
use crate::tls_support::{World, send_secretly, shown};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tributary::server::Server;

fn hello(name: &str) -> Vec<u8> {
    [wire::process(), wire::named_span(1, name)].concat()
}

#[tokio::test]
async fn new_connections_see_the_new_certificate_and_open_ones_stay() {
    let world = World::new();
    let toml = crate::live::listener(&world.tls("span_idle = \"1h\""));
    let mut daemon = Daemon::start(&toml).await;
    let mut old = world.connect(&daemon, None).await.unwrap();
    old.write_all(&wire::process()).await.unwrap();

    let unchanged = daemon.server.reload(&config(&toml)).await.unwrap();
    assert!(unchanged.changes.is_empty() && unchanged.stale.is_empty());
    let server = world.server();
    world.install(&server);
    assert_ne!(shown(&world.connect(&daemon, None).await.unwrap()), server.der(), "the files are not read again yet");
    let reloaded = daemon.server.reload(&config(&toml)).await.unwrap();
    assert_eq!(reloaded.changes, ["listener test has new certificates"]);
    let new = world.connect(&daemon, None).await.unwrap();
    assert_eq!(shown(&new), server.der());
    send_secretly(new, &hello("new"), 100).await;
    send_secretly(old, &wire::named_span(1, "old"), 100).await;
    assert!(daemon.server.reload(&config(&toml)).await.unwrap().changes.is_empty());
    let stopped = daemon.stop().await;
    let mut found = spans(&stopped.events);
    found.sort_unstable();
    assert_eq!(found, [("new", true), ("old", true)]);
    // The listener is the same, and it closed no connection.
    assert_eq!(stopped.totals.listeners.len(), 1);
    assert!(losses(&stopped.events).is_empty());
}

#[tokio::test]
async fn clients_of_removed_authorities_are_refused() {
    let (world, other) = (World::new(), World::new());
    let toml = crate::live::listener(&world.tls("tls.client_ca = \"CA\"\nspan_idle = \"1h\""));
    let mut daemon = Daemon::start(&toml).await;
    let mut old = world.connect(&daemon, Some(&world.client)).await.unwrap();
    old.write_all(&wire::process()).await.unwrap();
    old.flush().await.unwrap();
    // The handshake is complete when the daemon has read application data.
    daemon.until_totals("it is read", |counters| counters.bytes_in > 0).await;

    fs::write(world.path("ca.pem"), other.authority()).unwrap();
    let reloaded = daemon.server.reload(&config(&toml)).await.unwrap();
    assert_eq!(reloaded.changes, ["listener test has new certificates"]);
    // In TLS 1.3 the client has finished before it learns that it is refused.
    if let Ok(mut stream) = world.connect(&daemon, Some(&world.client)).await {
        let _ = stream.write_all(&hello("refused")).await;
        assert!(within("the refusal", stream.read_u8()).await.is_err());
    }
    send_secretly(world.connect(&daemon, Some(&other.client)).await.unwrap(), &hello("accepted"), 100).await;
    send_secretly(old, &wire::named_span(1, "still here"), 100).await;
    let events = daemon.stop().await.events;
    let mut found = spans(&events);
    found.sort_unstable();
    assert_eq!(found, [("accepted", true), ("still here", true)]);
    assert_eq!(losses(&events).len(), 1);
}

#[tokio::test]
async fn unusable_files_leave_the_old_ones_in_use_and_the_rest_of_the_reload_applies() {
    let world = World::new();
    let test = crate::live::listener(&world.tls("tls.client_ca = \"CA\""));
    let mut daemon = Daemon::start(&test).await;
    let before = shown(&world.connect(&daemon, Some(&world.client)).await.unwrap());
    let good = |name: &str| fs::read(world.path(name)).unwrap();
    let (cert, key, ca) = (good("cert.pem"), good("key.pem"), good("ca.pem"));
    let other = world.server();
    let broken: [(&str, &[u8], &str); 5] = [
        ("cert.pem", b"no certificate", "cert.pem: holds no certificate"),
        ("cert.pem", other.cert.as_bytes(), "cert.pem: it does not belong to the key in "),
        ("key.pem", b"no key", "key.pem: "),
        ("key.pem", other.key.as_bytes(), "cert.pem: it does not belong to the key in "),
        ("ca.pem", b"", "ca.pem: holds no certificate"),
    ];
    let mut toml = test.clone();
    for (number, (name, content, why)) in broken.into_iter().enumerate() {
        fs::write(world.path(name), content).unwrap();
        toml += &format!("[listeners.l{number}]\nprotocol = \"datadog\"\nlisten = \"{}\"\n", free_address());
        let reloaded = daemon.server.reload(&config(&toml)).await.unwrap();
        assert_eq!(reloaded.changes, [format!("listener l{number} started")]);
        let [stale] = &reloaded.stale[..] else { panic!("{reloaded:?}") };
        assert!(stale.starts_with("listener test keeps its certificates: "), "{stale}");
        assert!(stale.contains(why), "{stale}");
        let stream = world.connect(&daemon, Some(&world.client)).await.unwrap();
        assert_eq!(shown(&stream), before);
        send_secretly(stream, &hello(name), 100).await;
        for (name, content) in [("cert.pem", &cert), ("key.pem", &key), ("ca.pem", &ca)] {
            fs::write(world.path(name), content).unwrap();
        }
    }
    fs::remove_file(world.path("key.pem")).unwrap();
    let stale = daemon.server.reload(&config(&toml)).await.unwrap().stale;
    assert!(stale[0].contains("key.pem: No such file"), "{stale:?}");
    world.install(&other);
    let reloaded = daemon.server.reload(&config(&toml)).await.unwrap();
    assert_eq!(reloaded.changes, ["listener test has new certificates"]);
    assert!(reloaded.stale.is_empty());
    assert_eq!(shown(&world.connect(&daemon, Some(&world.client)).await.unwrap()), other.der());
    assert_eq!(spans(&daemon.stop().await.events).len(), 5);
}

#[tokio::test]
async fn the_admin_endpoint_loads_new_certificates() {
    let world = World::new();
    let toml = format!("[admin]\nlisten = \"127.0.0.1:0\"\n{}\n{}", world.tls(""), crate::live::listener(""));
    let mut server = Server::start(&config(&toml)).await.unwrap();
    let address = server.admin_address().unwrap();
    let new = world.server();
    world.install(&new);
    let reloaded = server.reload(&config(&toml)).await.unwrap();
    assert_eq!(reloaded.changes, ["the admin endpoint has new certificates"]);
    assert_eq!(server.admin_address(), Some(address));
    let mut stream = world.connect_to(address, None).await.unwrap();
    assert_eq!(shown(&stream), new.der());
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut status = [0; 15];
    within("the response", stream.read_exact(&mut status)).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200 OK");
    fs::write(world.path("cert.pem"), "").unwrap();
    let stale = server.reload(&config(&toml)).await.unwrap().stale;
    assert!(stale[0].starts_with("the admin endpoint keeps") && stale[0].contains("cert.pem"), "{stale:?}");
    server.stop().await;
}

/// The binary with a TLS listener called `a`; `reload` is the content of `[reload]`.
fn daemon(world: &World, reload: &str) -> Binary {
    let path = world.path("t.toml");
    let listener = format!("[listeners.a]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n{}", world.tls(""));
    let rest = "[sinks.s]\ntype = \"discard\"\n[admin]\nlisten = \"\"\n";
    fs::write(&path, format!("[reload]\n{reload}\n{listener}{rest}")).unwrap();
    Binary::start(tributary(&["run", "--config", path.to_str().unwrap()]))
}

#[tokio::test]
async fn sighup_reloads_certificates() {
    let world = World::new();
    let daemon = daemon(&world, "");
    let address = daemon.address("a");
    let old = world.connect_to(address, None).await.unwrap();
    fs::write(world.path("cert.pem"), "").unwrap();
    daemon.signal("HUP");
    daemon.until_stderr("cert.pem: holds no certificate");
    assert_eq!(shown(&world.connect_to(address, None).await.unwrap()), shown(&old));
    let new = world.server();
    world.install(&new);
    daemon.signal("HUP");
    daemon.until_stderr("listener a has new certificates");
    assert_eq!(shown(&world.connect_to(address, None).await.unwrap()), new.der());
    send_secretly(old, &hello("old"), 100).await;
    daemon.signal("TERM");
    let ended = daemon.end();
    assert!(ended.line("listener totals listener=\"a\"").ends_with(" events=2 log=1 span=1"), "{}", ended.stderr);
}

#[tokio::test]
async fn with_watch_a_changed_certificate_is_loaded() {
    let world = World::new();
    let daemon = daemon(&world, "watch = true");
    let address = daemon.address("a");
    // The new file is renamed over the old one, as certificate renewal tools do.
    let new = world.server();
    for (name, content) in [("cert.pem", &new.cert), ("key.pem", &new.key)] {
        fs::write(world.path("renewed"), content).unwrap();
        fs::rename(world.path("renewed"), world.path(name)).unwrap();
    }
    daemon.until_stderr("listener a has new certificates");
    assert_eq!(shown(&world.connect_to(address, None).await.unwrap()), new.der());
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}
