//! A peer on a socket: connections that remember what they heard, and an agent made of them.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep};
use tributary::server::Server;

use super::configuration::{self, Configuration, Said};
use super::wire;
use crate::live::PATIENCE;

/// A connection that reads whatever comes, at once.
pub struct Connection {
    writer: OwnedWriteHalf,
    heard: Arc<Mutex<Heard>>,
    pub local: SocketAddr,
}

#[derive(Clone, Default)]
pub struct Heard {
    pub bytes: Vec<u8>,
    /// How many bytes had been heard after each read.
    pub reads: Vec<usize>,
    pub is_closed: bool,
}

impl Connection {
    pub async fn open(server: &Server) -> Connection {
        Connection::of(TcpStream::connect(server.address().unwrap()).await.unwrap())
    }

    /// From another address of this machine.
    pub async fn open_from(address: [u8; 4], server: &Server) -> Connection {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(IpAddr::from(address), 0)).unwrap();
        Connection::of(socket.connect(server.address().unwrap()).await.unwrap())
    }

    fn of(stream: TcpStream) -> Connection {
        stream.set_nodelay(true).unwrap();
        let local = stream.local_addr().unwrap();
        let (mut reader, writer) = stream.into_split();
        let heard = Arc::<Mutex<Heard>>::default();
        let ear = heard.clone();
        tokio::spawn(async move {
            let mut piece = vec![0; 128 * 1024];
            loop {
                let count = reader.read(&mut piece).await.unwrap_or(0);
                let mut heard = ear.lock().unwrap();
                heard.bytes.extend_from_slice(&piece[..count]);
                let length = heard.bytes.len();
                heard.reads.push(length);
                heard.is_closed = count == 0;
                if heard.is_closed {
                    return;
                }
            }
        });
        Connection { writer, heard, local }
    }

    /// Sends all of it, or as much as the other side takes.
    pub async fn send(&mut self, bytes: &[u8]) {
        // A collector that has heard enough may have closed.
        let _ = self.writer.write_all(bytes).await;
    }

    /// Says that this was all.
    pub async fn end(&mut self) {
        let _ = self.writer.shutdown().await;
    }

    pub fn heard(&self) -> Heard {
        self.heard.lock().unwrap().clone()
    }

    /// Waits until so many bytes have come; answers all that has.
    pub async fn until_heard(&self, count: usize) -> Vec<u8> {
        soon(&format!("{count} bytes from the collector"), || Some(self.heard().bytes).filter(|all| all.len() >= count))
            .await
    }

    /// Waits until the collector closes; answers all that it said.
    pub async fn until_closed(&self) -> Vec<u8> {
        soon("the collector closes", || Some(self.heard()).filter(|heard| heard.is_closed)).await.bytes
    }

    /// Waits until the collector closes with an error; answers its text.
    pub async fn until_refused(&self) -> String {
        let heard = self.until_closed().await;
        match configuration::read(1, &heard) {
            (said, length) if length == heard.len() && said.len() == 1 => match &said[0] {
                Said::Error(text) => text.clone(),
                other => panic!("{other:?} is no error"),
            },
            _ => panic!("one error is expected, and {heard:02x?} came"),
        }
    }
}

/// An agent that has been configured.
pub struct Agent {
    pub version: u8,
    pub control: Connection,
    pub configuration: Configuration,
}

impl Agent {
    /// Connects, says its hello and waits for the configuration.
    pub async fn connect(server: &Server, version: u8) -> Agent {
        Agent::greet(Connection::open(server).await, version, &wire::hello(version)).await
    }

    pub async fn greet(mut control: Connection, version: u8, hello: &[u8]) -> Agent {
        control.send(hello).await;
        let configuration = configured(&control, version).await;
        Agent { version, control, configuration }
    }

    /// A whole agent: started, its data connections open, in mode T, and so many heartbeats settled.
    pub async fn trace(server: &Server, version: u8) -> (Agent, Vec<Connection>) {
        let mut agent = Agent::connect(server, version).await;
        agent.control.send(&wire::heartbeat(b'I')).await;
        agent.until_said(&Said::Start).await;
        let mut data = Vec::new();
        for _ in 0..agent.configuration.senders {
            data.push(agent.data(server).await);
        }
        for _ in 0..2 {
            agent.control.send(&wire::heartbeat(b'T')).await;
        }
        (agent, data)
    }

    /// Opens a data connection and waits for the reply.
    pub async fn data(&self, server: &Server) -> Connection {
        let mut data = Connection::open(server).await;
        data.send(&wire::data_hello(self.configuration.run)).await;
        assert_eq!(data.until_heard(1).await, [31], "a data hello is answered by one byte");
        data
    }

    /// What the collector has said so far.
    pub fn said(&self) -> Vec<Said> {
        configuration::read(self.version, &self.control.heard().bytes).0
    }

    /// Waits until the collector has said this.
    pub async fn until_said(&self, what: &Said) {
        soon(&format!("the collector says {what:?}"), || self.said().contains(what).then_some(())).await;
    }
}

/// Waits for the configuration that answers a hello.
pub async fn configured(control: &Connection, version: u8) -> Configuration {
    soon("a configuration", || match configuration::read(version, &control.heard().bytes).0.first() {
        Some(Said::Configuration(configuration)) => Some(configuration.clone()),
        Some(other) => panic!("{other:?} comes before the configuration"),
        None => None,
    })
    .await
}

/// Asks again and again, more often than the tests of other protocols need it, until there is an answer.
pub async fn soon<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "it never came to this: {what}");
        sleep(Duration::from_micros(300)).await;
    }
}
