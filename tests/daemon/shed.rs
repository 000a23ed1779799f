//! A sink that is full and sheds: the log, the metrics and the readiness say so.

use std::process::Command;

use crate::live::binary::{Binary, tributary};
use crate::live::puppet::{Mood, Strings};
use crate::live::{connect, until, until_async, wire, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tributary::pipeline::options::{QueueOptions, WhenFull};
use tributary::server::Server;

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// The status and the body of the answer to a GET of the admin endpoint.
async fn get(server: &Server, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(server.admin_address().unwrap()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within("an answer", stream.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn a_daemon_with_a_sink_that_sheds_is_not_ready_and_its_metrics_say_so() {
    let strings = Strings::new(Mood::Stall);
    let of_sink = strings.clone();
    let queue = QueueOptions { buffer_batches: 1, when_full: WhenFull::Shed, ..QueueOptions::default() };
    let config = crate::live::config(&format!("{ADMIN}{}", crate::live::listener("span_idle = \"10ms\"")));
    let add = |sinks: &mut tributary::pipeline::Sinks| sinks.add("puppet", queue, move || Ok(of_sink.puppet()));
    let server = Server::start_with(&config, add).await.unwrap();
    assert_eq!(get(&server, "/readyz").await, (200, "ready\n".to_owned()));
    let metrics = get(&server, "/metrics").await.1;
    assert!(metrics.contains("tributary_sink_shedding{sink=\"puppet\"} 0\n"), "{metrics}");
    let mut stream = connect(&server).await;
    stream.write_all(&wire::process()).await.unwrap();
    let shed = || server.accounting().totals().sinks[0].shed;
    let mut number = 0;
    until_async("the sink sheds", async || {
        number += 1;
        stream.write_all(&[wire::named_span(number, "work"), wire::trace()].concat()).await.unwrap();
        (shed() > 0).then_some(())
    })
    .await;
    let (status, body) = get(&server, "/readyz").await;
    assert_eq!((status, body.as_str()), (503, "sink puppet is full and sheds events\n"));
    let metrics = get(&server, "/metrics").await.1;
    for series in ["tributary_sink_shedding{sink=\"puppet\"} 1\n", "tributary_sink_up{sink=\"puppet\"} 1\n"] {
        assert!(metrics.contains(series), "no {series} in\n{metrics}");
    }
    strings.set(Mood::Write);
    drop(stream);
    let all = || server.accounting().totals().sinks[0].in_flight() == 0;
    until("all is written", || all().then_some(())).await;
    let totals = within("stopping", server.stop()).await;
    assert!(totals.are_balanced(), "{totals:?}");
}

#[test]
fn the_log_says_which_sink_sheds_events_of_which_listener() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.toml");
    // The reader of standard output does not read.
    let sink = "[sinks.console]\ntype = \"stdout\"\nwhen_full = \"shed\"\nbuffer_batches = 1\n";
    let text = format!("admin.listen = \"\"\n{}{sink}", crate::live::listener("span_idle = \"10ms\""));
    std::fs::write(&path, text).unwrap();
    let mut command: Command = tributary(&["run", "--config"]);
    command.arg(&path);
    let daemon = Binary::start_unread(command);
    let address = daemon.address("test");
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut stream, &wire::work(50_000).0).unwrap();
    let line = daemon.until_stderr("shed");
    for part in ["WARN", "sink=\"console\"", "listener=\"test\"", "events="] {
        assert!(line.contains(part), "{line}");
    }
}
