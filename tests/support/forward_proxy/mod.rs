//! An HTTP proxy on loopback: it forwards requests of plain HTTP, and connects for everything else (CONNECT). Whatever the name
//! of a server is, it connects to the same one.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::{io, thread};

/// A running proxy.
#[derive(Clone)]
pub struct ForwardProxy {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// A request to the proxy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The first line.
    pub line: String,
    /// The value of `Proxy-Authorization`.
    pub credentials: Option<String>,
}

impl ForwardProxy {
    /// A proxy that connects to `server`, or with the status refuses what it is asked for.
    pub fn start(server: SocketAddr, refusal: Option<u16>) -> ForwardProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = ForwardProxy { address: listener.local_addr().unwrap(), asked: Arc::default() };
        let serving = proxy.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (proxy, client) = (serving.clone(), client.unwrap());
                thread::spawn(move || proxy.serve(&client, server, refusal));
            }
        });
        proxy
    }

    /// What it was asked for, in order.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn serve(&self, client: &TcpStream, server: SocketAddr, refusal: Option<u16>) -> io::Result<()> {
        let mut reader = BufReader::new(client.try_clone()?);
        loop {
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                if line == "\r\n" {
                    break;
                }
                head.push(line.trim_end().to_owned());
            }
            let header = |name: &str| {
                let value = |line: &String| {
                    let (found, value) = line.split_once(": ")?;
                    found.eq_ignore_ascii_case(name).then(|| value.to_owned())
                };
                head.iter().find_map(value)
            };
            let asked = Asked { line: head[0].clone(), credentials: header("proxy-authorization") };
            self.asked.lock().unwrap().push(asked);
            let mut client = client;
            if let Some(status) = refusal {
                write!(client, "HTTP/1.1 {status} no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
                return client.shutdown(Shutdown::Both);
            }
            let mut upstream = TcpStream::connect(server)?;
            if head[0].starts_with("CONNECT ") {
                client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
                let (mut back, mut to_client) = (upstream.try_clone()?, client.try_clone()?);
                thread::spawn(move || {
                    let copied = io::copy(&mut back, &mut to_client);
                    let _ = to_client.shutdown(Shutdown::Write);
                    copied
                });
                io::copy(&mut reader, &mut upstream)?;
                return upstream.shutdown(Shutdown::Write);
            }
            let (method, target) = (head[0].split(' ').next().unwrap(), head[0].split(' ').nth(1).unwrap());
            let path = target.strip_prefix("http://").and_then(|rest| rest.find('/').map(|at| &rest[at..])).unwrap();
            let mut body = vec![0; header("content-length").map_or(0, |length| length.parse().unwrap())];
            reader.read_exact(&mut body)?;
            let is_own = |line: &&String| !line.to_lowercase().starts_with("proxy-");
            let headers: String = head[1..].iter().filter(is_own).map(|line| format!("{line}\r\n")).collect();
            write!(upstream, "{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n")?;
            upstream.write_all(&body)?;
            upstream.shutdown(Shutdown::Write)?;
            let mut answer = Vec::new();
            upstream.read_to_end(&mut answer)?;
            client.write_all(&answer)?;
        }
    }
}
