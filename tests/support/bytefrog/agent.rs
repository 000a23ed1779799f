//! A peer on a socket: connections that keep what they received, and an agent that uses them.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpSocket, TcpStream};
use tributary::server::Server;

use super::configuration::{self, CollectorMessage, Configuration};
use super::wire;
use crate::live::until;

/// A connection that reads everything immediately.
pub struct Connection {
    writer: OwnedWriteHalf,
    received: Arc<Mutex<Received>>,
    pub local: SocketAddr,
}

#[derive(Clone, Default)]
pub struct Received {
    pub bytes: Vec<u8>,
    /// The number of bytes received after each read.
    pub reads: Vec<usize>,
    pub is_closed: bool,
}

impl Connection {
    pub async fn open(server: &Server) -> Connection {
        Connection::of(TcpStream::connect(server.address().unwrap()).await.unwrap())
    }

    /// Opens it from another address of this machine.
    pub async fn open_from(address: [u8; 4], server: &Server) -> Connection {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(IpAddr::from(address), 0)).unwrap();
        Connection::of(socket.connect(server.address().unwrap()).await.unwrap())
    }

    pub fn of(stream: TcpStream) -> Connection {
        stream.set_nodelay(true).unwrap();
        let local = stream.local_addr().unwrap();
        let (mut reader, writer) = stream.into_split();
        let received = Arc::<Mutex<Received>>::default();
        let shared = received.clone();
        tokio::spawn(async move {
            let mut piece = vec![0; 128 * 1024];
            loop {
                let count = reader.read(&mut piece).await.unwrap_or(0);
                let mut received = shared.lock().unwrap();
                received.bytes.extend_from_slice(&piece[..count]);
                let length = received.bytes.len();
                received.reads.push(length);
                received.is_closed = count == 0;
                if received.is_closed {
                    return;
                }
            }
        });
        Connection { writer, received, local }
    }

    /// Sends all bytes, or as many as the other side accepts.
    pub async fn send(&mut self, bytes: &[u8]) {
        // A collector may have closed after an error.
        let _ = self.writer.write_all(bytes).await;
    }

    /// Ends the sending side.
    pub async fn end(&mut self) {
        let _ = self.writer.shutdown().await;
    }

    pub fn received(&self) -> Received {
        self.received.lock().unwrap().clone()
    }

    /// Waits until this many bytes have arrived: all that have.
    pub async fn until_received(&self, count: usize) -> Vec<u8> {
        until(&format!("{count} bytes from the collector"), || {
            Some(self.received().bytes).filter(|all| all.len() >= count)
        })
        .await
    }

    /// Waits until the collector closes: all that it sent.
    pub async fn until_closed(&self) -> Vec<u8> {
        until("the collector closes", || Some(self.received()).filter(|received| received.is_closed)).await.bytes
    }

    /// Waits until the collector closes with an error: its text.
    pub async fn until_refused(&self) -> String {
        let received = self.until_closed().await;
        match configuration::read(1, &received) {
            (messages_received, length) if length == received.len() && messages_received.len() == 1 => {
                match &messages_received[0] {
                    CollectorMessage::Error(text) => text.clone(),
                    other => panic!("{other:?} is no error"),
                }
            }
            _ => panic!("one error is expected, and {received:02x?} came"),
        }
    }
}

/// An agent that has its configuration.
pub struct Agent {
    pub version: u8,
    pub control: Connection,
    pub configuration: Configuration,
}

impl Agent {
    /// Connects, sends the hello and waits for the configuration.
    pub async fn connect(server: &Server, version: u8) -> Agent {
        Agent::send_hello(Connection::open(server).await, version, &wire::hello(version)).await
    }

    pub async fn send_hello(mut control: Connection, version: u8, hello: &[u8]) -> Agent {
        control.send(hello).await;
        let configuration = configured(&control, version).await;
        Agent { version, control, configuration }
    }

    /// A complete agent: started, with open data connections, in mode T.
    pub async fn trace(server: &Server, version: u8) -> (Agent, Vec<Connection>) {
        let mut agent = Agent::connect(server, version).await;
        agent.control.send(&wire::heartbeat(b'I')).await;
        agent.until_message(&CollectorMessage::Start).await;
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
        assert_eq!(data.until_received(1).await, [31], "a data hello is answered by one byte");
        data
    }

    /// The messages of the collector so far.
    pub fn messages_received(&self) -> Vec<CollectorMessage> {
        configuration::read(self.version, &self.control.received().bytes).0
    }

    /// Waits for this message of the collector.
    pub async fn until_message(&self, what: &CollectorMessage) {
        until(&format!("the collector sends {what:?}"), || self.messages_received().contains(what).then_some(())).await;
    }
}

/// Waits for the configuration that answers a hello.
pub async fn configured(control: &Connection, version: u8) -> Configuration {
    until("a configuration", || match configuration::read(version, &control.received().bytes).0.first() {
        Some(CollectorMessage::Configuration(configuration)) => Some(configuration.clone()),
        Some(other) => panic!("{other:?} comes before the configuration"),
        None => None,
    })
    .await
}
