//! A collector that the test controls, and that may do harm.

use std::collections::VecDeque;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::walk::{self, Message};

pub(crate) const START: &[u8] = &[2];
pub(crate) const STOP: &[u8] = &[3];
pub(crate) const PAUSE: &[u8] = &[4];
pub(crate) const UNPAUSE: &[u8] = &[5];
pub(crate) const SUSPEND: &[u8] = &[6];
pub(crate) const UNSUSPEND: &[u8] = &[7];

/// A recorded configuration with other values: heartbeat interval (ms), data connections and run.
pub(crate) fn configuration(version: u8, heartbeat_interval: i32, data_senders: i32, run: u8) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/bytefrog/configuration");
    if version == 1 {
        let mut body = std::fs::read(format!("{folder}/v1-two-packages.ser")).unwrap();
        body[0xdc..0xe0].copy_from_slice(&heartbeat_interval.to_be_bytes());
        body[0xe0..0xe4].copy_from_slice(&data_senders.to_be_bytes());
        body[0xe8] = run;
        return [&[1], &(body.len() as u32).to_be_bytes()[..], &body].concat();
    }
    let json = std::fs::read_to_string(format!("{folder}/v2-v3-v4-two-packages.json")).unwrap();
    let json = json
        .replace(r#""heartbeatInterval":1000"#, &format!(r#""heartbeatInterval":{heartbeat_interval}"#))
        .replace(r#""numDataSenders":2"#, &format!(r#""numDataSenders":{data_senders}"#))
        .replace(r#""runId":42"#, &format!(r#""runId":{run}"#));
    with_body(&json)
}

/// A configuration message of this JSON text.
pub(crate) fn with_body(json: &str) -> Vec<u8> {
    [&[1], &(json.len() as u16).to_be_bytes()[..], json.as_bytes()].concat()
}

/// A collector that has received the hello of an agent.
pub(crate) struct Collector {
    listener: TcpListener,
    version: u8,
    control: TcpStream,
    unread: Vec<u8>,
    /// Everything received on the control connection.
    pub(crate) messages_received: VecDeque<Message>,
    data: Vec<JoinHandle<Vec<u8>>>,
}

impl Collector {
    /// The address of a collector, and the collector once an agent has sent its hello.
    pub(crate) async fn bind(version: u8) -> (SocketAddr, impl Future<Output = Collector>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ready = async move {
            let (control, _) = listener.accept().await.unwrap();
            let mut collector = Collector {
                listener,
                version,
                control,
                unread: Vec::new(),
                messages_received: VecDeque::new(),
                data: Vec::new(),
            };
            assert!(matches!(collector.next().await.unwrap().kind, 0 | 16));
            collector
        };
        (address, ready)
    }

    /// Sends bytes in one write. The agent may be gone.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = self.control.write_all(bytes).await;
    }

    /// The next message on the control connection; `None` at its end.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = walk::message(&self.unread, self.version) {
                self.unread.drain(..message.len);
                self.messages_received.push_back(message.clone());
                return Some(message);
            }
            if self.control.read_buf(&mut self.unread).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// Waits for a heartbeat in this mode.
    pub(crate) async fn heartbeat(&mut self, mode: u8) {
        while let Some(message) = self.next().await {
            if message.kind == 8 && message.value == u32::from(mode) {
                return;
            }
        }
        panic!("no heartbeat in mode {}", char::from(mode));
    }

    /// Waits until the agent has loaded a class: it is settled.
    pub(crate) async fn settled(&mut self) {
        let is_class = |message: &Message| (40..=42).contains(&message.kind);
        while !self.messages_received.iter().any(is_class) {
            assert!(self.next().await.is_some(), "no class was loaded");
        }
    }

    /// Accepts one data connection and answers its hello with these bytes.
    pub(crate) async fn accept(&mut self, answer: &[u8]) -> TcpStream {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        let mut hello = [0; 2];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!(hello[0], 30);
        stream.write_all(answer).await.unwrap();
        stream
    }

    /// Configures and starts the agent, and accepts its data connections.
    pub(crate) async fn start(&mut self, connections: i32) {
        self.send(&configuration(self.version, 20, connections, 42)).await;
        self.send(START).await;
        self.take(connections).await;
    }

    /// Accepts data connections; each is read to its end.
    pub(crate) async fn take(&mut self, connections: i32) {
        for _ in 0..connections {
            let mut stream = self.accept(&[31]).await;
            self.data.push(tokio::spawn(async move {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).await.unwrap();
                bytes
            }));
        }
    }

    /// Reads everything to its end: the streams of the data connections.
    pub(crate) async fn finish(&mut self) -> Vec<Vec<Message>> {
        while self.next().await.is_some() {}
        let _ = self.control.shutdown().await;
        let mut streams = Vec::new();
        for data in self.data.drain(..) {
            streams.push(walk::messages(&data.await.unwrap(), self.version));
        }
        streams
    }

    /// Closes the control connection.
    pub(crate) async fn hang_up(self) -> TcpListener {
        let Collector { mut control, listener, .. } = self;
        let _ = control.shutdown().await;
        listener
    }
}
