//! The part that test receivers share: an HTTP/1.1 server on loopback that reads requests and answers them.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// One connection of a client.
pub struct Connection {
    reader: BufReader<TcpStream>,
}

/// The head of a request: headers by their names in lower case, and the first line as `request`.
pub type Head = HashMap<String, String>;

/// Starts a server that serves each connection with `serve`, on a thread of its own; returns its address.
pub fn start<R>(serve: impl Fn(Connection) -> R + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (serve, stream) = (serve.clone(), stream.unwrap());
            thread::spawn(move || drop(serve(Connection { reader: BufReader::new(stream) })));
        }
    });
    address
}

impl Connection {
    /// Reads the head of the next request. `None`: the client has closed the connection.
    pub fn read_head(&mut self) -> Option<Head> {
        let mut head = Head::new();
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            match line.trim_end().split_once(": ") {
                Some((name, value)) if !head.is_empty() => drop(head.insert(name.to_lowercase(), value.to_owned())),
                _ if line == "\r\n" => return Some(head),
                _ => drop(head.insert("request".into(), line.trim_end().to_owned())),
            }
        }
    }

    /// Reads the body of the request with this head.
    pub fn read_body(&mut self, head: &Head) -> Option<Vec<u8>> {
        let mut body = vec![0; head.get("content-length").map_or(0, |length| length.parse().unwrap())];
        self.reader.read_exact(&mut body).ok()?;
        Some(body)
    }

    /// Whether the client has closed the connection, or has ended, after the requests that were read.
    pub fn is_closed_by_client(&mut self) -> bool {
        let stream = self.reader.get_ref();
        stream.set_nonblocking(true).unwrap();
        let closed = self.reader.buffer().is_empty()
            && match stream.peek(&mut [0]) {
                Ok(read) => read == 0,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            };
        stream.set_nonblocking(false).unwrap();
        closed
    }

    /// Answers with a status, further headers (complete lines) and a body.
    pub fn answer(&mut self, status: u16, headers: &str, body: &str) -> Option<()> {
        let length = body.len();
        self.write(format!("HTTP/1.1 {status} x\r\n{headers}Content-Length: {length}\r\n\r\n{body}").as_bytes())
    }

    /// Writes any bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Option<()> {
        self.reader.get_mut().write_all(bytes).ok()
    }
}
