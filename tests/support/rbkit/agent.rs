//! An agent on two real sockets that the test controls, and that records its requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::wire;
use crate::live::{until, within};

/// How long the I/O thread of a busy process takes to answer READY. A collector that does not wait for it sends its next frame meanwhile;
/// nothing but this time shows that one does wait.
const READY_PAUSE: Duration = Duration::from_millis(4);
/// How long a request waits in the REP socket: the gem polls it at intervals. A collector that does not wait for the reply sends another
/// request meanwhile; nothing but this time shows that one does wait.
const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// The behaviour of the REP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manners {
    Answer,
    /// Reads requests and never answers.
    Mute,
}

pub struct Agent {
    pub publish: SocketAddr,
    pub request: SocketAddr,
    state: Arc<Mutex<State>>,
    tasks: JoinSet<()>,
}

struct State {
    manners: Manners,
    /// The reply to a handshake.
    handshake: Vec<u8>,
    /// The reply to any other request.
    other: Vec<u8>,
    requests: Vec<String>,
    /// Connections to the REP socket so far, and those that are open.
    rep_connections: u64,
    rep_open: u64,
    pub_connections: u64,
    /// Handshakes that were answered since the reply was set.
    answered: u64,
    subscribers: Vec<Arc<tokio::sync::Mutex<OwnedWriteHalf>>>,
    bytes_written: u64,
    faults: Vec<String>,
}

impl Agent {
    /// On free ports.
    pub async fn bind() -> Agent {
        let any = ([127, 0, 0, 1], 0).into();
        Agent::bind_at(any, any).await
    }

    /// On the addresses of an earlier agent.
    pub async fn bind_at(publish: SocketAddr, request: SocketAddr) -> Agent {
        let (publish, request) = (bind(publish).await, bind(request).await);
        let state = Arc::new(Mutex::new(State {
            manners: Manners::Answer,
            handshake: wire::handshake(4_711, false, false),
            other: b"ok".to_vec(),
            requests: Vec::new(),
            rep_connections: 0,
            rep_open: 0,
            pub_connections: 0,
            answered: 0,
            subscribers: Vec::new(),
            bytes_written: 0,
            faults: Vec::new(),
        }));
        let mut tasks = JoinSet::new();
        let addresses = (publish.local_addr().unwrap(), request.local_addr().unwrap());
        let shared = state.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = publish.accept().await {
                connections.spawn(serve_subscriber(stream, shared.clone()));
            }
        });
        let shared = state.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = request.accept().await {
                let state = shared.clone();
                connections.spawn(async move {
                    state.lock().unwrap().rep_connections += 1;
                    state.lock().unwrap().rep_open += 1;
                    serve_requests(stream, &state).await;
                    state.lock().unwrap().rep_open -= 1;
                });
            }
        });
        Agent { publish: addresses.0, request: addresses.1, state, tasks }
    }

    pub fn set_manners(&self, manners: Manners) {
        self.state.lock().unwrap().manners = manners;
    }

    pub fn set_handshake(&self, body: &[u8]) {
        let mut state = self.state.lock().unwrap();
        if state.handshake != body {
            state.handshake = body.to_vec();
            state.answered = 0;
        }
    }

    /// Sets the reply to commands, instead of `ok`.
    pub fn set_other(&self, body: &[u8]) {
        self.state.lock().unwrap().other = body.to_vec();
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Every request except handshakes.
    pub fn commands(&self) -> Vec<String> {
        let mut requests = self.requests();
        requests.retain(|request| request != "handshake");
        requests
    }

    /// The number of these requests.
    pub fn asked(&self, request: &str) -> usize {
        self.requests().iter().filter(|asked| *asked == request).count()
    }

    /// Connections to the REP socket so far.
    pub fn rep_connections(&self) -> u64 {
        self.state.lock().unwrap().rep_connections
    }

    pub fn rep_open(&self) -> u64 {
        self.state.lock().unwrap().rep_open
    }

    pub fn pub_connections(&self) -> u64 {
        self.state.lock().unwrap().pub_connections
    }

    pub fn bytes_written(&self) -> u64 {
        self.state.lock().unwrap().bytes_written
    }

    /// Handshakes that were answered since the reply was set.
    pub fn answered(&self) -> u64 {
        self.state.lock().unwrap().answered
    }

    pub async fn until_asked(&self, request: &str, times: usize) {
        until(&format!("{request} is asked {times} times"), || (self.asked(request) >= times).then_some(())).await;
    }

    pub async fn until_subscribed(&self) {
        until("a subscriber", || (!self.state.lock().unwrap().subscribers.is_empty()).then_some(())).await;
    }

    /// Waits for the first subscriber and for these start commands.
    pub async fn until_started(&self, commands: &[&str]) {
        self.until_subscribed().await;
        for command in commands {
            self.until_asked(command, 1).await;
        }
    }

    /// Sends a message to every subscriber.
    pub async fn publish(&self, body: &[u8]) {
        self.write(&wire::frame(0, body), usize::MAX).await;
    }

    /// Sends bytes to every subscriber, in pieces of at most `piece` bytes.
    pub async fn write(&self, bytes: &[u8], piece: usize) {
        let subscribers = self.state.lock().unwrap().subscribers.clone();
        assert!(!subscribers.is_empty(), "there is no subscriber");
        for subscriber in subscribers {
            let mut subscriber = subscriber.lock().await;
            for piece in bytes.chunks(piece.min(bytes.len().max(1))) {
                if within("the subscriber reads", subscriber.write_all(piece)).await.is_err() {
                    break;
                }
                self.state.lock().unwrap().bytes_written += piece.len() as u64;
                // Usually each piece is a segment of its own.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Closes all connections and listens no more, as a killed process.
    pub async fn kill(mut self) {
        self.tasks.shutdown().await;
    }

    /// Asserts that the collector has done nothing that blocks an agent or closes the connection.
    pub fn assert_no_faults(&self) {
        assert_eq!(self.state.lock().unwrap().faults, [""; 0]);
    }
}

async fn bind(address: SocketAddr) -> TcpListener {
    let listener = until("the address is free", || std::net::TcpListener::bind(address).ok()).await;
    listener.set_nonblocking(true).unwrap();
    TcpListener::from_std(listener).unwrap()
}

/// Exchanges greetings and READY with a client, in steps as libzmq does.
async fn greet(stream: TcpStream, socket: &str, state: &Mutex<State>) -> Option<(Peer, OwnedWriteHalf)> {
    stream.set_nodelay(true).unwrap();
    let (reader, mut writer) = stream.into_split();
    let mut peer = Peer { reader, input: Vec::new() };
    let greeting = wire::greeting(1);
    for (ours, theirs) in [(0..10, 10), (10..11, 11), (11..64, 64)] {
        send(&mut writer, &greeting[ours], state).await?;
        while peer.input.len() < theirs {
            peer.fill().await?;
        }
    }
    let theirs: Vec<u8> = peer.input.drain(..64).collect();
    let mut faults = Vec::new();
    if theirs[0] != 0xff
        || theirs[9] != 0x7f
        || theirs[10] != 3
        || theirs[12..32] != greeting[12..32]
        || theirs[32] != 0
    {
        faults.push(format!("greeting {theirs:02x?}"));
    }
    let ready = peer.frame().await?;
    let wanted = if socket == "PUB" { wire::ready("SUB") } else { wire::ready("REQ") };
    let name = |frame: &[u8]| frame[..12.min(frame.len())].to_ascii_lowercase();
    if ready.0 != wire::COMMAND || name(&ready.1) != name(&wanted[2..]) {
        faults.push(format!("{ready:02x?} is no READY"));
    }
    // libzmq closes a connection on which something arrives before its own READY.
    let _ = timeout(READY_PAUSE, peer.fill()).await;
    if !peer.input.is_empty() {
        faults.push(format!("{:02x?} came before READY", peer.input));
    }
    state.lock().unwrap().faults.append(&mut faults);
    send(&mut writer, &wire::ready(socket), state).await?;
    Some((peer, writer))
}

async fn serve_subscriber(stream: TcpStream, state: Arc<Mutex<State>>) {
    state.lock().unwrap().pub_connections += 1;
    let Some((mut peer, writer)) = greet(stream, "PUB", &state).await else { return };
    let writer = Arc::new(tokio::sync::Mutex::new(writer));
    while let Some((flags, body)) = peer.frame().await {
        if flags & wire::COMMAND == 0 && body == [1] {
            state.lock().unwrap().subscribers.push(writer.clone());
        } else if flags & wire::COMMAND == 0 {
            state.lock().unwrap().faults.push(format!("{body:02x?} is no subscription to everything"));
        }
    }
    state.lock().unwrap().subscribers.retain(|other| !Arc::ptr_eq(other, &writer));
}

async fn serve_requests(stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let (mut peer, mut writer) = greet(stream, "REP", state).await?;
    loop {
        let (flags, delimiter) = peer.frame().await?;
        if flags & wire::COMMAND != 0 {
            continue;
        }
        if flags & wire::MORE == 0 || !delimiter.is_empty() {
            state.lock().unwrap().faults.push(format!("{delimiter:02x?} has no delimiter before it"));
            continue;
        }
        let (flags, body) = peer.frame().await?;
        let reply = {
            let mut state = state.lock().unwrap();
            if flags & wire::MORE != 0 || body.is_empty() {
                state.faults.push(format!("a request with flags {flags} and body {body:02x?}"));
            }
            let request = String::from_utf8_lossy(&body).into_owned();
            let reply = if request == "handshake" { state.handshake.clone() } else { state.other.clone() };
            state.requests.push(request.clone());
            (state.manners == Manners::Answer).then_some((reply, request))
        };
        let _ = timeout(POLL_INTERVAL, peer.fill()).await;
        if !peer.input.is_empty() {
            state.lock().unwrap().faults.push("a request before the answer to the last".to_owned());
        }
        if let Some((reply, request)) = reply {
            send(&mut writer, &wire::reply(&reply), state).await?;
            let mut state = state.lock().unwrap();
            state.answered += u64::from(request == "handshake" && state.handshake == reply);
        }
    }
}

async fn send(writer: &mut OwnedWriteHalf, bytes: &[u8], state: &Mutex<State>) -> Option<()> {
    writer.write_all(bytes).await.ok()?;
    state.lock().unwrap().bytes_written += bytes.len() as u64;
    Some(())
}

struct Peer {
    reader: OwnedReadHalf,
    input: Vec<u8>,
}

impl Peer {
    async fn fill(&mut self) -> Option<()> {
        let read = self.reader.read_buf(&mut self.input).await.ok()?;
        (read > 0).then_some(())
    }

    async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some((frame, rest)) = wire::split_frame(&self.input) {
                self.input = rest.to_vec();
                return Some(frame);
            }
            self.fill().await?;
        }
    }
}
