//! A socket that says given bytes to whoever connects, and keeps quiet otherwise.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::live::until;

/// What one connection is told.
pub struct Script {
    pub bytes: Vec<u8>,
    /// At most so many bytes at once, and this long between two pieces.
    pub piece: usize,
    pub pause: Duration,
    pub then: Then,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Then {
    /// Reads until the client closes.
    Listen,
    /// Closes at once.
    Close,
    /// Says the bytes from this one on again, until the client closes.
    Repeat(usize),
}

impl Script {
    pub fn say(bytes: Vec<u8>, then: Then) -> Script {
        Script { bytes, piece: 64 * 1024, pause: Duration::ZERO, then }
    }
}

pub struct Raw {
    pub address: SocketAddr,
    told: Arc<Told>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Told {
    opened: AtomicU64,
    /// Closed by the client.
    closed: AtomicU64,
    bytes: AtomicU64,
}

impl Raw {
    /// `script` makes what connection number so-and-so is told, from 0.
    pub async fn bind(script: impl Fn(u64) -> Script + Send + 'static) -> Raw {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let told = Arc::<Told>::default();
        let mut tasks = JoinSet::new();
        let shared = told.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let script = script(shared.opened.fetch_add(1, Ordering::SeqCst));
                let told = shared.clone();
                connections.spawn(async move { tell(stream, script, &told).await });
            }
        });
        Raw { address, told, _tasks: tasks }
    }

    /// Connections so far.
    pub fn opened(&self) -> u64 {
        self.told.opened.load(Ordering::SeqCst)
    }

    /// Those that the client ended.
    pub fn closed(&self) -> u64 {
        self.told.closed.load(Ordering::SeqCst)
    }

    /// Bytes that were told.
    pub fn bytes(&self) -> u64 {
        self.told.bytes.load(Ordering::SeqCst)
    }

    pub async fn until_closed(&self, times: u64) {
        until(&format!("the client closes {times} times"), || (self.closed() >= times).then_some(())).await;
    }
}

async fn tell(stream: TcpStream, script: Script, told: &Told) {
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
                told.bytes.fetch_add(piece.len() as u64, Ordering::SeqCst);
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
        let mut heard = [0; 4096];
        while reader.read(&mut heard).await.is_ok_and(|read| read > 0) {}
    };
    tokio::select! {
        () = talk => {}
        () = listen => { told.closed.fetch_add(1, Ordering::SeqCst); }
    }
}
