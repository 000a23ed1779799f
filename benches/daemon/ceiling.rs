//! What the generator reaches when nobody decodes: the least that agents put up with at the other end.
//!
//! Bytes are read and thrown away. `datadog` wants nothing more. To `bytefrog` the same configuration and `start` are said
//! as a daemon says, and each data connection is greeted; whatever comes over HTTP is answered with the same 200, without a
//! look at the body; from `rbkit` everything is subscribed to and asked for.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::loads::{DISCARD, Load, Meeting};
use super::{Daemon, Sent, Simulation, connect};

/// Lets agents send so many events to nobody.
pub fn run(load: &Load, events: u64) -> Sent {
    match load.meeting() {
        Meeting::Dials { publish, request } => {
            let simulation = Simulation::start(&load.arguments_at(publish, request, events));
            let is_dump = load.agent.contains(&"--heap-objects");
            let subscriber = thread::spawn(move || subscribe(publish, request, is_dump));
            let sent = simulation.finish();
            subscriber.join().unwrap();
            sent
        }
        Meeting::Dialled => {
            let answers: Arc<[u8]> = if load.agent[0] == "bytefrog" { greeting(load) } else { Vec::new() }.into();
            let protocol = load.agent[0];
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            // Waits for further connections for as long as the bench runs.
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let (stream, answers) = (stream.unwrap(), Arc::clone(&answers));
                    // An agent that leaves without waiting breaks off a connection, which is nobody's loss here.
                    thread::spawn(move || match protocol {
                        "bytefrog" => greet(stream, &answers),
                        "datadog" => discard(stream),
                        _ => answer(stream),
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

/// What a daemon says to an agent's hello: the configuration, and that the program may run.
fn greeting(load: &Load) -> Vec<u8> {
    let daemon = Daemon::start(&load.config(Meeting::Dialled, "", &[DISCARD]));
    let mut stream = TcpStream::connect(daemon.address()).unwrap();
    stream.write_all(&[0, load.agent[2].parse().unwrap()]).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut said = Vec::new();
    // Ends with the silence after what it says.
    let _ = stream.read_to_end(&mut said);
    assert_eq!(said.last(), Some(&2), "the last word is `start`");
    drop(stream);
    daemon.stop();
    said
}

/// A control connection, or one of data.
fn greet(mut stream: TcpStream, answers: &[u8]) -> io::Result<()> {
    let mut hello = [0; 2];
    stream.read_exact(&mut hello)?;
    stream.write_all(if hello[0] == 30 { &[31] } else { answers })?;
    discard(stream)
}

/// Good for every request of every agent: ids for those that register.
const ANSWER: &str =
    r#"{"uuid":"5e5e0000-0000-4000-8000-000000000001","authkey":"k","session":"5e5e0000-0000-4000-8000-000000000002"}"#;

/// Answers requests until there are no more.
fn answer(stream: TcpStream) -> io::Result<()> {
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{ANSWER}", ANSWER.len());
    let mut reader = BufReader::with_capacity(256 * 1024, stream);
    let (mut line, mut body) = (String::new(), Vec::new());
    while reader.read_line(&mut line)? > 0 {
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                body.resize(value.trim().parse().unwrap(), 0);
            }
            None if line.trim_end().is_empty() => {
                reader.read_exact(&mut body)?;
                reader.get_mut().write_all(answer.as_bytes())?;
            }
            _ => {}
        }
        line.clear();
    }
    Ok(())
}

/// Subscribes to everything, asks for it, and reads until the process has ended.
fn subscribe(publish: SocketAddr, request: SocketAddr, is_dump: bool) {
    let mut messages = zmtp(publish, "SUB");
    messages.write_all(&[0, 1, 1]).unwrap();
    let mut requests = zmtp(request, "REQ");
    let wishes: &[&str] =
        if is_dump { &["objectspace_snapshot"] } else { &["start_memory_profile", "start_cpu_profiling"] };
    for wish in wishes {
        let asked = requests.write_all(&[&[1, 0, 0, wish.len() as u8], wish.as_bytes()].concat());
        // The delimiter and the reply. A short process has ended before it is asked for more.
        if asked.and_then(|()| frame(&mut requests)).and_then(|()| frame(&mut requests)).is_err() {
            break;
        }
    }
    discard(messages).unwrap();
}

/// A connection that has shaken hands, without security.
fn zmtp(address: SocketAddr, socket: &str) -> TcpStream {
    let mut stream = connect(address);
    stream.set_nodelay(true).unwrap();
    let mut greeting = [0; 64];
    greeting[..12].copy_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1]);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).unwrap();
    stream.read_exact(&mut greeting).unwrap();
    // Its READY comes first.
    frame(&mut stream).unwrap();
    let ready = [b"\x05READY\x0bSocket-Type\0\0\0\x03", socket.as_bytes()].concat();
    stream.write_all(&[&[4, ready.len() as u8], &ready[..]].concat()).unwrap();
    stream
}

/// Reads a frame and throws it away.
fn frame(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    assert_eq!(head[0] & 2, 0, "a short frame");
    stream.read_exact(&mut vec![0; usize::from(head[1])])
}
