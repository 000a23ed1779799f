//! Hand-written messages of each protocol, with sizes and counts that `tributary simulate` does not offer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use tributary_testing::zico::cbor::{gen2, text};

use super::TIMEOUT;

/// The buffer is written when it holds at least this many bytes.
const CHUNK: usize = 256 * 1024;

/// A connection to a daemon with a write buffer.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    chunk: Vec<u8>,
}

impl Wire {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Wire {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Wire { stream, chunk: Vec::with_capacity(2 * CHUNK) }
    }

    /// Appends a message to the write buffer.
    pub fn push(&mut self, message: &[u8]) {
        self.chunk.extend_from_slice(message);
        if self.chunk.len() >= CHUNK {
            self.flush();
        }
    }

    /// Writes the buffer to the socket.
    pub fn flush(&mut self) {
        self.stream.write_all(&self.chunk).unwrap();
        self.chunk.clear();
    }

    /// Ends the stream, and waits until the daemon has read everything and closed.
    pub fn close(mut self) {
        self.flush();
        self.stream.shutdown(Shutdown::Write).unwrap();
        while self.stream.read(&mut [0; 4096]).unwrap() > 0 {}
    }

    fn read_reply<const BYTES: usize>(&mut self) -> [u8; BYTES] {
        self.flush();
        let mut reply = [0; BYTES];
        self.stream.read_exact(&mut reply).unwrap();
        reply
    }
}

/// Messages of `datadog` tracers.
pub mod datadog {
    /// The process object, with a cache of `strings` strings. One event.
    pub fn process(strings: u64) -> Vec<u8> {
        [&0xdd00_u16.to_be_bytes()[..], &1_u32.to_be_bytes(), &strings.to_be_bytes()].concat()
    }

    pub fn string(id: u64, text: &[u8]) -> Vec<u8> {
        [&0xdd06_u16.to_be_bytes()[..], &id.to_be_bytes(), &(text.len() as u32).to_be_bytes(), text].concat()
    }

    /// A span whose resource is a cached string, with one tag. One event.
    pub fn span(number: u64, resource: u64, [key, value]: [u64; 2]) -> Vec<u8> {
        const START: u64 = 1_790_000_000_000_000_000;
        let words = [number + 1, 0, 7, number + 1, START + number, 1_000, key, key, resource, key];
        let span = [&0xdd02_u16.to_be_bytes()[..], &words.map(u64::to_be_bytes).concat(), &[0]].concat();
        [&span[..], &0xdd05_u16.to_be_bytes(), &[1], &key.to_be_bytes(), &value.to_be_bytes()].concat()
    }
}

/// An agent of `bytefrog`, version 4.
#[derive(Debug)]
pub struct BytefrogAgent {
    control: Wire,
    pub data: Wire,
}

impl BytefrogAgent {
    /// Connects, and waits for `start`.
    pub fn connect(address: SocketAddr) -> BytefrogAgent {
        let mut control = Wire::connect(address);
        control.push(&[0, 4]);
        let [kind, length @ ..]: [u8; 3] = control.read_reply();
        assert_eq!(kind, 1, "a configuration");
        let mut configuration = vec![0; usize::from(u16::from_be_bytes(length))];
        control.stream.read_exact(&mut configuration).unwrap();
        let configuration: serde_json::Value = serde_json::from_slice(&configuration).unwrap();
        let run = configuration["runId"].as_u64().expect("a run") as u8;
        assert_eq!(control.read_reply(), [2], "start");
        let mut data = Wire::connect(address);
        data.push(&[30, run]);
        assert_eq!(data.read_reply(), [31], "the data connection is accepted");
        BytefrogAgent { control, data }
    }

    pub fn method(&mut self, id: u32, signature: &str) {
        let length = (signature.len() as u16).to_be_bytes();
        self.data.push(&[&[11], &id.to_be_bytes()[..], &length, signature.as_bytes()].concat());
    }

    /// The start of a method call. One event.
    pub fn entry(&mut self, number: u32, method: u32) {
        let mut message = [0; 15];
        message[0] = 20;
        message[5..9].copy_from_slice(&number.to_be_bytes());
        message[9..13].copy_from_slice(&method.to_be_bytes());
        self.data.push(&message);
    }

    /// Ends the program. Returns the number of events of the control connection and of the run: a hello, a heartbeat, the end.
    pub fn end(mut self) -> u64 {
        self.control.push(&[8, b'X', 0, 0]);
        self.control.flush();
        self.data.close();
        self.control.close();
        3
    }
}

/// A connection over HTTP.
#[derive(Debug)]
pub struct Http {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
}

impl Http {
    pub fn connect(address: SocketAddr) -> Http {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Http { stream: BufReader::new(stream), address }
    }

    /// Sends a request and waits for a successful response.
    pub fn request(&mut self, request: &[u8]) {
        self.stream.get_mut().write_all(request).unwrap();
        let (mut response, mut length) = (String::new(), 0);
        loop {
            let before = response.len();
            self.stream.read_line(&mut response).unwrap();
            let line = response[before..].trim_end().to_ascii_lowercase();
            match line.strip_prefix("content-length:") {
                Some(value) => length = value.trim().parse().unwrap(),
                None if line.is_empty() => break,
                None => {}
            }
        }
        assert!(response.starts_with("HTTP/1.1 2"), "{response}");
        self.stream.read_exact(&mut vec![0; length]).unwrap();
    }

    /// A JVM of `zico`, gen2: opens a session and defines a few names. One event.
    pub fn begin_session(&mut self) {
        let names = ["shop.Cart", "total", "()V", "http", "shelf"];
        let strings: Vec<u8> = (1..).zip(names).flat_map(|(id, name)| gen2::string(id, name)).collect();
        self.post("agd", "X-Zorka-Session-Reset: true", &[strings, gen2::method(1, [1, 2, 3])].concat());
    }

    /// Posts trace `number` with `records` records. As many events.
    pub fn trace(&mut self, number: u64, records: u64) {
        let headers = format!("X-Zorka-Session-Reset: false\r\nX-Zorka-Trace-Id: {number:032x}");
        self.post("trc", &headers, &trace(records));
    }

    fn post(&mut self, path: &str, headers: &str, body: &[u8]) {
        let head = format!(
            "POST /agent/submit/{path} HTTP/1.1\r\nHost: {}\r\nX-Zorka-Session-Id: 00c0ffee12345678\r\n{headers}\r\n\
             Content-Type: application/zorka+cbor+v1\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        self.request(&[head.as_bytes(), body].concat());
    }
}

/// A trace of `zico`, gen2: a root record with the others as its children, each with an attribute; 38 bytes each.
pub fn trace(records: u64) -> Vec<u8> {
    let begin = gen2::begin(1_790_000_000_000, 4, &[77]);
    let child = [gen2::open(110, 1), gen2::attribute(5, text("fourth, from the left")), gen2::close(120, 1, Some(0))];
    let below = child.concat().repeat(records as usize - 1);
    [gen2::open(100, 1), begin, below, gen2::close(200, 1, Some(0))].concat()
}
