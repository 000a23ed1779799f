//! The destination of the sink `remote`: an HTTP server that remembers what it has accepted, and misbehaves when told to.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// What it does with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    Accept,
    /// 503.
    Refuse,
    /// 503 with `Retry-After: 1`.
    AskForPause,
    /// Closes the connection without reading.
    Close,
    /// Accepts, and closes the connection before the response.
    DieBeforeResponse,
    /// Accepts, and closes the connection in the middle of the response.
    DieWithinResponse,
    /// Accepts, and responds late.
    Late,
    /// Responds with nonsense.
    Nonsense,
}

pub(crate) const MANNERS: [Manner; 8] = [
    Manner::Accept,
    Manner::Refuse,
    Manner::AskForPause,
    Manner::Close,
    Manner::DieBeforeResponse,
    Manner::DieWithinResponse,
    Manner::Late,
    Manner::Nonsense,
];

/// The server. Clones are the same.
#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

pub(crate) struct State {
    pub(crate) manner: Manner,
    /// The accepted marks, with the length of the journal when each arrived first, and how often it arrived.
    pub(crate) received: BTreeMap<String, (u64, u64)>,
    pub(crate) journal: PathBuf,
    /// How many requests were not treated well.
    pub(crate) misdeeds: u64,
}

impl Receiver {
    pub(crate) fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { manner: Manner::Accept, received: BTreeMap::new(), journal: PathBuf::new(), misdeeds: 0 };
        let receiver = Receiver { address, state: Arc::new(Mutex::new(state)) };
        let serving = receiver.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let serving = serving.clone();
                thread::spawn(move || serving.serve(&stream.unwrap()));
            }
        });
        receiver
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        loop {
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line == "\r\n" {
                    break;
                }
            }
            let manner = self.state().manner;
            if manner == Manner::Close {
                self.state().misdeeds += 1;
                return None;
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            self.respond(manner, stream, &String::from_utf8(body).unwrap())?;
        }
    }

    fn respond(&self, manner: Manner, mut stream: &TcpStream, body: &str) -> Option<()> {
        let is_accepted = !matches!(manner, Manner::Refuse | Manner::AskForPause | Manner::Nonsense);
        {
            let mut state = self.state();
            let position = std::fs::metadata(&state.journal).map_or(0, |journal| journal.len());
            if is_accepted {
                for mark in super::check::marks(body) {
                    state.received.entry(mark.to_owned()).or_insert((position, 0)).1 += 1;
                }
            }
            state.misdeeds += u64::from(manner != Manner::Accept);
        }
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        match manner {
            Manner::Accept => stream.write_all(ok.as_bytes()).ok(),
            Manner::Late => {
                thread::sleep(Duration::from_millis(150));
                stream.write_all(ok.as_bytes()).ok()
            }
            Manner::Refuse => stream.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n").ok(),
            Manner::AskForPause => {
                stream.write_all(b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n").ok()
            }
            Manner::Nonsense => stream.write_all(b"\0\x01\x02 nonsense\r\n\r\n").ok().and(None),
            Manner::DieWithinResponse => stream.write_all(&ok.as_bytes()[..20]).ok().and(None),
            Manner::DieBeforeResponse | Manner::Close => None,
        }
    }
}
