//! A client that writes bytes and reads answers.

use std::collections::BTreeMap;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

/// Sends bytes; ignores that the daemon may have closed the connection.
pub async fn send(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) {
    let _ = stream.write_all(bytes).await;
}

/// Reads one answer. `is_head`: it has no body.
pub async fn reply_to(stream: &mut (impl AsyncRead + Unpin), is_head: bool) -> io::Result<Reply> {
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
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; if is_head { 0 } else { length }];
    stream.read_exact(&mut body).await?;
    Ok(Reply { status, headers, body: String::from_utf8(body).unwrap() })
}

pub async fn reply(stream: &mut (impl AsyncRead + Unpin)) -> Reply {
    reply_to(stream, false).await.unwrap()
}

/// Sends a request and reads its answer.
pub async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &[u8]) -> Reply {
    send(stream, request).await;
    reply_to(stream, request.starts_with(b"HEAD")).await.unwrap()
}

pub fn sha512(bundle: &[u8]) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA512, bundle);
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An upload with these additional headers, each ended by CR LF.
pub fn put(version: u64, hash: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("PUT /{version}/{hash} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

/// An upload of a plain bundle.
pub fn plain(version: u64, bundle: &[u8]) -> Vec<u8> {
    put(version, &sha512(bundle), "", bundle)
}

/// The configuration of an Endless listener with a quarantine in this directory.
pub fn listener(quarantine: &std::path::Path, options: &str) -> String {
    let dir = quarantine.display();
    format!(
        "[listeners.test]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"{dir}\"\n{options}\n"
    )
}

/// The requests in a quarantine, oldest first.
pub fn quarantined(quarantine: &std::path::Path) -> Vec<Vec<u8>> {
    let Ok(files) = std::fs::read_dir(quarantine.join("test")) else { return Vec::new() };
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}
