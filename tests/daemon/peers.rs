//! Peers that take all the memory they can get, beside honest agents of every protocol: those are admitted and served.
//!
//! What is asserted is counted; no test measures a time.

use std::net::{Ipv4Addr, SocketAddr};

use crate::endless_support::http::{ask, plain, reply_to};
use crate::live::{Daemon, config, wire, within};
use crate::rbkit_law_support::pack;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

const MIB: u64 = 1 << 20;
const ROUNDS: u64 = 3;

/// A daemon of every protocol with this memory for peers, and the reserves and parts of the defaults.
async fn daemon(memory: u64, dir: &std::path::Path) -> Daemon {
    let mut toml = "limits.threads = 2\nadmin.listen = \"\"\n".to_owned();
    for (name, protocol, options) in [
        ("spans", "datadog", "listen = \"127.0.0.1:0\""),
        ("java", "bytefrog", "listen = \"127.0.0.1:0\""),
        ("desktops", "endless", "listen = \"127.0.0.1:0\"\nmax_body_bytes = \"16MiB\"\nquarantine.dir = \"\""),
        ("zorka", "zico", &*format!("listen = \"127.0.0.1:0\"\nquarantine.dir = \"\"\nstate_dir = {dir:?}")),
        ("ruby", "rbkit", "listen_publish = \"127.0.0.1:0\""),
    ] {
        toml += &format!("[listeners.{name}]\nprotocol = \"{protocol}\"\n{options}\n");
    }
    let mut config = config(&toml);
    config.limits.memory_bytes = Some(config.bounds().sum() + memory);
    Daemon::on(&config).await
}

fn address(daemon: &Daemon, name: &str) -> SocketAddr {
    daemon.server.addresses().iter().find(|bound| bound.name == name).unwrap().address
}

async fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// One new connection and request of an honest agent of every protocol.
async fn serve_honest_agents(daemon: &Daemon, round: u64) {
    let connect = async |name: &str| TcpStream::connect(address(daemon, name)).await.unwrap();

    let name = format!("honest-{round}");
    let mut spans = connect("spans").await;
    spans.write_all(&[wire::process(), wire::named_span(1, &name), wire::trace()].concat()).await.unwrap();
    daemon.until_named(&name).await;

    // A Java program stands still until its hello is answered.
    let mut java = connect("java").await;
    java.write_all(&[0, 4]).await.unwrap();
    within("the answer to a hello", java.read_u8()).await.unwrap();

    let mut desktop = connect("desktops").await;
    let upload = plain(3, format!("bundle {round}").as_bytes());
    let answer = within("the answer to an upload", ask(&mut desktop, &upload)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);

    let mut zorka = connect("zorka").await;
    let body = crate::zico_support::cbor::gen2::string(1, "text");
    let head = format!(
        "POST /agent/submit/agd HTTP/1.1\r\nHost: h\r\nX-Zorka-Session-Id: f100d{round}\r\n\
         X-Zorka-Session-Reset: true\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let answer = within("the answer to Zorka", ask(&mut zorka, &[head.as_bytes(), &body].concat())).await;
    assert_ne!(answer.status, 503, "{}", answer.body);

    let mut ruby = connect("ruby").await;
    ruby.write_all(&pack::hello("PUB")).await.unwrap();
    within("the greeting of ZMTP", ruby.read_exact(&mut [0; 64])).await.unwrap();
}

/// Uploads that declare 16 MB, send 4 MB and then stall. Answers how many were answered meanwhile.
async fn stalled_uploads(daemon: &Daemon, count: u64, addresses: u8) -> (Vec<TcpStream>, usize) {
    let to = address(daemon, "desktops");
    let mut uploads = JoinSet::new();
    for number in 0..count {
        uploads.spawn(async move {
            let mut stream = connect_from(1 + (number % u64::from(addresses)) as u8, to).await;
            let head = format!("PUT /3/{} HTTP/1.1\r\nHost: h\r\nContent-Length: 16000000\r\n\r\n", "0".repeat(128));
            let body = vec![b'x'; 4_000_000];
            let sent = stream.write_all(&[head.as_bytes(), &body].concat()).await.is_ok();
            // Refused ones are answered; the others are read and wait for the rest.
            let (mut reading, mut writing) = stream.into_split();
            let answered = tokio::select! {
                answer = reply_to(&mut reading, false) => answer.is_ok() || !sent,
                () = async {
                    // 1.6 KB at a time, as long as there is nothing to read.
                    for _ in 0..10 {
                        tokio::task::yield_now().await;
                        let _ = writing.write_all(&[b'x'; 1600]).await;
                    }
                } => false,
            };
            (reading.reunite(writing).unwrap(), answered)
        });
    }
    let uploads = within("every upload is read as far as it is", uploads.join_all()).await;
    let answered = uploads.iter().filter(|(_, answered)| *answered).count();
    (uploads.into_iter().map(|(stream, _)| stream).collect(), answered)
}

/// Waits until the daemon has read `bytes` of the uploads: memory is used up as far as it can be.
async fn until_attacked(daemon: &Daemon, bytes: u64) {
    crate::live::until("the attack", || {
        let totals = daemon.server.accounting().totals();
        let desktops = totals.listeners.iter().find(|listener| listener.name == "desktops").unwrap();
        (desktops.bytes_in >= bytes).then_some(())
    })
    .await;
}

/// In each round 64 uploads of this many addresses stall, until `held_bytes` of them are held; then honest agents are
/// served.
async fn serve_beside_stalled_uploads(addresses: u8, held_bytes: u64) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(32 * MIB, directory.path()).await;
    for round in 0..ROUNDS {
        let (_uploads, _) = stalled_uploads(&daemon, 64, addresses).await;
        until_attacked(&daemon, (round + 1) * held_bytes).await;
        serve_honest_agents(&daemon, round).await;
    }
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_of_one_address_stop_no_connection_and_no_request_of_others() {
    serve_beside_stalled_uploads(1, 16 * MIB).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_of_many_addresses_stop_no_connection_and_no_small_request_of_others() {
    serve_beside_stalled_uploads(8, 28 * MIB).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_one_listener_stop_no_connection_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(4 * MIB, directory.path()).await;
    // Each is 72 KiB: 4 MiB and the reserve are used up by fewer. Those beyond wait in the kernel's queue.
    let mut silent = Vec::new();
    for number in 0..120 {
        silent.push(connect_from(1 + number % 8, address(&daemon, "desktops")).await);
    }
    crate::live::until("memory is used up", || daemon.server.health().not_ready()).await;
    for round in 0..ROUNDS {
        let connect = async |name: &str| TcpStream::connect(address(&daemon, name)).await.unwrap();
        let name = format!("honest-{round}");
        let mut spans = connect("spans").await;
        spans.write_all(&[wire::process(), wire::named_span(1, &name), wire::trace()].concat()).await.unwrap();
        daemon.until_named(&name).await;
        let mut java = connect("java").await;
        java.write_all(&[0, 4]).await.unwrap();
        within("the answer to a hello", java.read_u8()).await.unwrap();
    }
    daemon.stop().await;
}
