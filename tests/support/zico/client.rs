//! A client that posts to a daemon over loopback.
use std::collections::BTreeMap;
use std::io;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::live::{Daemon, within};
use crate::zico::offline::Answered;
use crate::zico::{Case, Given};

/// An answer as received.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

/// The configuration of a listener with its quarantine in this directory.
pub fn listener(quarantine: &std::path::Path, options: &str) -> String {
    let dir = quarantine.display();
    format!("[listeners.test]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"{dir}\"\n{options}\n")
}

/// A request with these headers and its length.
pub fn post(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        if !["host", "content-length", "connection"].contains(&name.to_lowercase().as_str()) {
            head += &format!("{name}: {value}\r\n");
        }
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

/// Reads one answer.
///
/// # Errors
/// The connection ends too early.
pub async fn reply(stream: &mut TcpStream) -> io::Result<Reply> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.trim_end().lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let header = |line: &str| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_lowercase(), value.trim().to_owned())
    };
    let headers: BTreeMap<_, _> = lines.map(header).collect();
    // Gen2 agents read no body without it (section 1.2).
    let length: usize = headers.get("content-length").expect("a length").parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Reply { status, headers, body: String::from_utf8(body).unwrap() })
}

pub async fn ask(stream: &mut TcpStream, request: &[u8]) -> Reply {
    stream.write_all(request).await.unwrap();
    within("an answer", reply(stream)).await.unwrap()
}

/// Sends a request that the daemon may refuse early; returns the status, if it answers before it closes.
pub async fn try_ask(stream: &mut TcpStream, request: &[u8]) -> Option<u16> {
    // It may answer before the whole body is sent.
    let _ = stream.write_all(request).await;
    within("an answer", reply(stream)).await.ok().map(|reply| reply.status)
}

/// A form with a data field of this name.
pub fn form(name: &str, packed: &[u8]) -> Vec<u8> {
    post("/submit/agent", &[], format!("host=h&{name}={}", base64(packed).replace('+', "%2B")).as_bytes())
}

/// Padded, without line breaks.
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = bytes.chunks(3).flat_map(|group| {
        let bits = (0..3).fold(0u32, |bits, at| bits << 8 | u32::from(*group.get(at).unwrap_or(&0)));
        (0..4).map(move |digit| {
            let value = DIGITS[(bits >> (18 - 6 * digit)) as usize & 63];
            char::from(if digit > group.len() { b'=' } else { value })
        })
    });
    digits.collect()
}

/// The requests in a quarantine, oldest first.
pub fn quarantined(quarantine: &std::path::Path) -> Vec<Vec<u8>> {
    let Ok(files) = std::fs::read_dir(quarantine.join("test")) else { return Vec::new() };
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Replays a recorded conversation to a daemon, on as many connections as recorded. Returns the answers with their events,
/// and the events after the stop. Their `origin.sequence` is replaced by the number of the request.
pub async fn converse(case: &Case, toml: &str, quarantine: &std::path::Path) -> (Vec<Answered>, Vec<Value>) {
    let daemon = Daemon::start(toml).await;
    let mut given = Given::default();
    let mut streams = BTreeMap::<u64, (TcpStream, u64)>::new();
    let mut numbers = BTreeMap::new();
    let mut answers = Vec::new();
    let (mut seen, mut kept) = (0, 0);
    for recorded in &case.exchanges {
        if !streams.contains_key(&recorded.connection) {
            streams.clear();
            streams.insert(recorded.connection, (daemon.connect().await, 0));
        }
        let (stream, asked) = streams.get_mut(&recorded.connection).unwrap();
        *asked += 1;
        let headers: Vec<_> =
            recorded.headers.iter().map(|(name, value)| (name.as_str(), given.header(value))).collect();
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let reply = ask(stream, &post(&recorded.path, &headers, &given.body(recorded))).await;
        given.learn(recorded, &reply.body);
        // The answer says that the events are written, so the test need not wait for them.
        let mut events = daemon.events();
        let new = events.split_off(seen);
        seen += new.len();
        for event in &new {
            numbers.insert((event["origin"]["connection"].as_u64(), *asked), recorded.number);
        }
        let files = quarantined(quarantine).len();
        let aside = (files > kept).then(|| format!("{} files", files - kept));
        kept = files;
        answers.push(Answered { status: reply.status, body: reply.body, events: new, aside });
    }
    drop(streams);
    let mut rest = daemon.stop().await.events.split_off(seen);
    for event in &mut rest {
        // The loss of a request that is refused has no number, and can be written after the answer.
        let Some(sequence) = event["origin"]["sequence"].as_u64() else { continue };
        let place = (event["origin"]["connection"].as_u64(), sequence);
        event["origin"]["sequence"] = numbers[&place].into();
    }
    (answers, rest)
}
