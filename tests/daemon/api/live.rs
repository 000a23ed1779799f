//! Live events and annotated bytes, as Server-Sent Events.

use super::*;
use crate::live::{connect, wire};

/// A stream of Server-Sent Events.
struct Stream {
    connection: TcpStream,
    text: String,
}

impl Stream {
    async fn open(daemon: &Daemon, path: &str) -> Stream {
        let mut connection = TcpStream::connect(address(daemon)).await.unwrap();
        let request = format!("GET /api/v1/{path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut stream = Stream { connection, text: String::new() };
        // The first one says that the tap is open.
        stream.next("alive").await;
        stream
    }

    /// The name and the data of the next event; `None`: the stream has ended.
    async fn any(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                // The head of the response and chunks of the transfer encoding stand before events.
                let Some((_, event)) = event.split_once("event: ") else { continue };
                let (name, data) = event.split_once("\ndata: ").unwrap();
                return Some((name.to_owned(), serde_json::from_str(data).unwrap()));
            }
            let mut bytes = [0; 16 << 10];
            let read = within("an event", self.connection.read(&mut bytes)).await.unwrap();
            if read == 0 {
                return None;
            }
            self.text.push_str(str::from_utf8(&bytes[..read]).unwrap());
        }
    }

    /// The data of the next event with this name.
    async fn next(&mut self, name: &str) -> Value {
        loop {
            let (of, data) = self.any().await.unwrap_or_else(|| panic!("no {name}"));
            if of == name {
                return data;
            }
        }
    }
}

#[tokio::test]
async fn live_events_pass_the_filters_and_are_those_of_the_sinks() {
    let daemon = of_spans().await;
    let mut all = Stream::open(&daemon, "events/live").await;
    let mut named = Stream::open(&daemon, "events/live?kind=span&name=work&text=WORK").await;
    let mut none = Stream::open(&daemon, "events/live?protocol=zico").await;
    let mut agent = connect(&daemon.server).await;
    agent
        .write_all(&[wire::process(), wire::named_span(1, "work"), wire::named_span(2, "rest"), wire::trace()].concat())
        .await
        .unwrap();
    let span = daemon.until_named("work").await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.extend(array(&all.next("events").await, "events").clone());
    }
    assert_eq!(seen, daemon.events()[..3]);
    assert_eq!(*array(&named.next("events").await, "events"), [span]);
    assert_eq!(number(&none.next("alive").await["shown"]), 0);
    // The streams end with the daemon.
    let Daemon { server, .. } = daemon;
    let stopping = tokio::spawn(server.stop());
    drop(agent);
    while all.any().await.is_some() {}
    within("the daemon stops", stopping).await.unwrap();
}

#[tokio::test]
async fn a_stream_shows_at_most_its_rate_and_counts_the_rest() {
    let daemon = of_spans().await;
    let mut few = Stream::open(&daemon, "events/live?kind=span&rate=5").await;
    let (bytes, _) = wire::work(1000);
    crate::live::send_all(connect(&daemon.server).await, &bytes).await;
    let (mut shown, mut dropped, mut seconds) = (0, 0, 0);
    while shown + dropped < 1000 {
        match few.any().await.unwrap() {
            (name, data) if name == "events" => shown += array(&data, "events").len() as u64,
            (name, data) if name == "dropped" => dropped += number(&data["events"]),
            _ => seconds += 1,
        }
    }
    assert_eq!(shown + dropped, 1000);
    assert!(shown > 0 && shown <= 5 * (seconds + 1), "{shown} in {seconds} seconds");
    daemon.stop().await;
}

#[tokio::test]
async fn the_bytes_of_a_connection_are_annotated() {
    let daemon = of_spans().await;
    let mut all = Stream::open(&daemon, "wire?listener=test").await;
    let mut other = Stream::open(&daemon, "wire?connection=999999").await;
    let mut agent = connect(&daemon.server).await;
    agent.write_all(&[wire::process(), wire::named_span(1, "work"), wire::trace()].concat()).await.unwrap();
    let mut lines = Vec::new();
    let mut connection = 0;
    while !lines.iter().any(|line: &String| line.contains("work")) {
        let piece = all.next("wire").await;
        assert_eq!((&piece["listener"], &piece["protocol"]), (&"test".into(), &"datadog".into()));
        connection = number(&piece["connection"]);
        lines.extend(array(&piece, "lines").iter().map(|line| line.as_str().unwrap().to_owned()));
    }
    let event = daemon.until_named("work").await;
    assert_eq!(number(&event["origin"]["connection"]), connection);
    assert!(lines.iter().any(|line| line.starts_with("00000000  dd 00")), "{lines:?}");
    other.next("alive").await;
    assert!(!other.text.contains("event: wire"));
    drop(agent);
    daemon.stop().await;
}
