//! The rate of the generator alone: a peer that does the minimum that agents need, without decoding.
//!
//! Bytes are read and discarded, which is all that `datadog` needs. An agent of `bytefrog` gets the configuration and `start`
//! that a daemon sends, and each of its data connections is accepted. Every HTTP request gets the same 200 response, and its
//! body is not inspected. For `rbkit`, everything is subscribed to and requested.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::loads::{DISCARD, Direction, Load};
use super::{Daemon, Sent, Simulation, connect};

/// Runs the agents of a load, which send `events` events that are discarded.
pub fn run(load: &Load, events: u64) -> Sent {
    match load.direction() {
        Direction::DaemonConnects { publish, request } => {
            let simulation = Simulation::start(&load.arguments_at(publish, request, events));
            let is_dump = load.agent.contains(&"--heap-objects");
            let subscriber = thread::spawn(move || subscribe(publish, request, is_dump));
            let sent = simulation.finish();
            subscriber.join().unwrap();
            sent
        }
        Direction::AgentConnects => {
            let reply: Arc<[u8]> = if load.agent[0] == "bytefrog" { greeting(load) } else { Vec::new() }.into();
            let protocol = load.agent[0];
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            // Accepts connections for as long as the bench runs.
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let (stream, reply) = (stream.unwrap(), Arc::clone(&reply));
                    // An agent may close without waiting; the error of its connection is ignored.
                    thread::spawn(move || match protocol {
                        "bytefrog" => greet(stream, &reply),
                        "datadog" => discard(stream),
                        _ => respond(stream),
                    });
                }
            });
            Simulation::start(&load.arguments_to(to, events)).finish()
        }
    }
}

fn discard(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}

/// The reply of a daemon to an agent's hello: the configuration, and `start`.
fn greeting(load: &Load) -> Vec<u8> {
    let daemon = Daemon::start(&load.config(Direction::AgentConnects, "", &[DISCARD]));
    let mut stream = TcpStream::connect(daemon.address()).unwrap();
    stream.write_all(&[0, load.agent[2].parse().unwrap()]).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut reply = Vec::new();
    // Ends at the read timeout, after the reply.
    let _ = stream.read_to_end(&mut reply);
    assert_eq!(reply.last(), Some(&2), "the last message is `start`");
    drop(stream);
    daemon.stop();
    reply
}

/// Accepts a control connection or a data connection.
fn greet(mut stream: TcpStream, reply: &[u8]) -> io::Result<()> {
    let mut hello = [0; 2];
    stream.read_exact(&mut hello)?;
    stream.write_all(if hello[0] == 30 { &[31] } else { reply })?;
    discard(stream)
}

/// The body of every response: it contains ids for agents that register.
const RESPONSE: &str =
    r#"{"uuid":"5e5e0000-0000-4000-8000-000000000001","authkey":"k","session":"5e5e0000-0000-4000-8000-000000000002"}"#;

/// Responds to requests until the agent closes.
fn respond(stream: TcpStream) -> io::Result<()> {
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{RESPONSE}", RESPONSE.len());
    let mut reader = BufReader::with_capacity(256 * 1024, stream);
    let (mut line, mut body) = (String::new(), Vec::new());
    while reader.read_line(&mut line)? > 0 {
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                body.resize(value.trim().parse().unwrap(), 0);
            }
            None if line.trim_end().is_empty() => {
                reader.read_exact(&mut body)?;
                reader.get_mut().write_all(response.as_bytes())?;
            }
            _ => {}
        }
        line.clear();
    }
    Ok(())
}

/// Subscribes to everything, requests it, and reads until the process has ended.
fn subscribe(publish: SocketAddr, request: SocketAddr, is_dump: bool) {
    let mut messages = zmtp(publish, "SUB");
    messages.write_all(&[0, 1, 1]).unwrap();
    let mut requests = zmtp(request, "REQ");
    let commands: &[&str] =
        if is_dump { &["objectspace_snapshot"] } else { &["start_memory_profile", "start_cpu_profiling"] };
    for command in commands {
        let sent = requests.write_all(&[&[1, 0, 0, command.len() as u8], command.as_bytes()].concat());
        // The delimiter and the reply. A short-lived process may end before the next command.
        if sent.and_then(|()| frame(&mut requests)).and_then(|()| frame(&mut requests)).is_err() {
            break;
        }
    }
    discard(messages).unwrap();
}

/// A connection after the ZMTP handshake, without security.
fn zmtp(address: SocketAddr, socket: &str) -> TcpStream {
    let mut stream = connect(address);
    stream.set_nodelay(true).unwrap();
    let mut greeting = [0; 64];
    greeting[..12].copy_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1]);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).unwrap();
    stream.read_exact(&mut greeting).unwrap();
    // The process sends its READY first.
    frame(&mut stream).unwrap();
    let ready = [b"\x05READY\x0bSocket-Type\0\0\0\x03", socket.as_bytes()].concat();
    stream.write_all(&[&[4, ready.len() as u8], &ready[..]].concat()).unwrap();
    stream
}

/// Reads a frame and discards it.
fn frame(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    assert_eq!(head[0] & 2, 0, "a short frame");
    stream.read_exact(&mut vec![0; usize::from(head[1])])
}
