//! What a spool costs: events to a file; the same lines to a spool whose server is away; and the same lines as HTTP requests to a
//! server on loopback, with and without a spool.
//!
//! `cargo bench --bench spool [-- EVENTS [REPETITIONS]]` prints a table. CPU seconds are user + system time of the daemon's own
//! process. Every event arrives, and the requests are not compressed, so the same bytes are written to the file, to the spool
//! and to the socket; what is read back from the spool and sent is part of its cost.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "each bench uses a part of it")]
mod daemon;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use daemon::Cost;
use daemon::loads::{FILE, Load};
use daemon::table;

fn main() {
    let (numbers, _) = table::arguments();
    let events = numbers.first().copied().unwrap_or(500_000);
    let repetitions = numbers.get(1).copied().unwrap_or(3).max(1);
    let endpoint = receive();
    let http = format!("type = \"http\"\nendpoint = \"http://{endpoint}/\"\n");
    let spooled = format!("{http}spool = {{ dir = \"spool\", max_bytes = \"10GiB\", min_free_bytes = \"0B\" }}\n");
    let away = spooled.replace(&endpoint.to_string(), &daemon::free_address().to_string());
    let load = Load::named("datadog");
    let to = |sink: &str| Cost::of_load(load, events, "", &[sink], &[]).0;
    let mut runs: [Vec<Cost>; 4] = Default::default();
    for _ in 0..repetitions {
        runs[0].push(to(FILE));
        // Nothing of it is written to its destination.
        runs[1].push(Cost::of_sums(load, events, "", &[&away]));
        runs[2].push(to(&http));
        runs[3].push(to(&spooled));
    }
    let names = ["file", "spool, the server is away", "http without a spool", "http with a spool"];
    table::print_beside_the_first(repetitions, &names, &runs);
}

/// Starts a server that accepts every request; returns its address.
fn receive() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || serve(&stream));
        }
    });
    address
}

/// Serves a connection until the client closes it.
fn serve(mut stream: &TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut body = Vec::new();
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        body.resize(length, 0);
        reader.read_exact(&mut body).ok()?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").ok()?;
    }
}
