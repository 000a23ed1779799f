//! A socket that sends given bytes on each connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::live::until;

/// The bytes that are sent on one connection.
pub struct Script {
    pub bytes: Vec<u8>,
    /// The largest piece, and the pause between two pieces.
    pub piece: usize,
    pub pause: Duration,
    pub then: Then,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Then {
    /// Reads until the client closes.
    Listen,
    /// Closes immediately.
    Close,
    /// Sends the bytes from this index again and again, until the client closes.
    Repeat(usize),
}

impl Script {
    pub fn send(bytes: Vec<u8>, then: Then) -> Script {
        Script { bytes, piece: 64 * 1024, pause: Duration::ZERO, then }
    }
}

pub struct Raw {
    pub address: SocketAddr,
    counts: Arc<Counts>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Counts {
    opened: AtomicU64,
    /// Closed by the client.
    closed: AtomicU64,
    bytes: AtomicU64,
}

impl Raw {
    /// `script` returns the script of the connection with this number, from 0.
    pub async fn bind(script: impl Fn(u64) -> Script + Send + 'static) -> Raw {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::<Counts>::default();
        let mut tasks = JoinSet::new();
        let shared = counts.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let script = script(shared.opened.fetch_add(1, Ordering::SeqCst));
                let counts = shared.clone();
                connections.spawn(async move { serve(stream, script, &counts).await });
            }
        });
        Raw { address, counts, _tasks: tasks }
    }

    /// Connections so far.
    pub fn opened(&self) -> u64 {
        self.counts.opened.load(Ordering::SeqCst)
    }

    /// Connections that the client has closed.
    pub fn closed(&self) -> u64 {
        self.counts.closed.load(Ordering::SeqCst)
    }

    /// Bytes that were sent.
    pub fn bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::SeqCst)
    }

    pub async fn until_closed(&self, times: u64) {
        until(&format!("the client closes {times} times"), || (self.closed() >= times).then_some(())).await;
    }
}

async fn serve(stream: TcpStream, script: Script, counts: &Counts) {
    let Script { bytes, piece, pause, then } = script;
    stream.set_nodelay(true).unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let talk = async {
        let mut from = 0;
        loop {
            for piece in bytes[from..].chunks(piece.max(1)) {
                if writer.write_all(piece).await.is_err() {
                    return;
                }
                counts.bytes.fetch_add(piece.len() as u64, Ordering::SeqCst);
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
            match then {
                Then::Repeat(again) => from = again,
                _ => break,
            }
        }
        if then == Then::Listen {
            std::future::pending::<()>().await;
        }
    };
    let listen = async {
        let mut received = [0; 4096];
        while reader.read(&mut received).await.is_ok_and(|read| read > 0) {}
    };
    tokio::select! {
        () = talk => {}
        () = listen => { counts.closed.fetch_add(1, Ordering::SeqCst); }
    }
}
