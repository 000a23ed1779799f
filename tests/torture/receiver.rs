//! The destination of the sink `remote`: an HTTP server that remembers what it has accepted, and misbehaves on request.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use super::http_server::{self, Connection};

/// How long a late response takes.
const LATE: Duration = Duration::from_millis(150);

/// What it does with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    Accept,
    /// 503.
    Refuse,
    /// 500.
    Fail,
    /// 503 with `Retry-After: 1`.
    AskForPause,
    /// Closes the connection without reading.
    Close,
    /// Accepts, and closes the connection before the response.
    DieBeforeResponse,
    /// Accepts, and closes the connection in the middle of the response.
    DieWithinResponse,
    /// Accepts, and responds after [`LATE`].
    Late,
    /// Responds with nonsense.
    Nonsense,
}

pub(crate) const MANNERS: [Manner; 9] = [
    Manner::Accept,
    Manner::Refuse,
    Manner::Fail,
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
    /// Ids of requests that are never taken: they are answered 500.
    pub(crate) poison: BTreeSet<String>,
    /// The next request is never taken.
    pub(crate) poison_next: bool,
    /// How many requests were not treated well.
    pub(crate) misdeeds: u64,
}

impl Receiver {
    pub(crate) fn start() -> Receiver {
        let state = State {
            manner: Manner::Accept,
            received: BTreeMap::new(),
            journal: PathBuf::new(),
            poison: BTreeSet::new(),
            poison_next: false,
            misdeeds: 0,
        };
        let state = Arc::new(Mutex::new(state));
        let serving = state.clone();
        let address = http_server::start(move |connection| serve(&serving, connection));
        Receiver { address, state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    /// What it does with the request with this id.
    fn manner_for(&mut self, id: String) -> Manner {
        if std::mem::take(&mut self.poison_next) {
            self.poison.insert(id.clone());
        }
        if self.poison.contains(&id) { Manner::Fail } else { self.manner }
    }
}

fn serve(state: &Mutex<State>, mut connection: Connection) -> Option<()> {
    loop {
        let head = connection.read_head()?;
        let id = head.get("idempotency-key").cloned().unwrap_or_default();
        let manner = state.lock().unwrap().manner_for(id);
        if manner == Manner::Close {
            state.lock().unwrap().misdeeds += 1;
            return None;
        }
        let body = String::from_utf8(connection.read_body(&head)?).unwrap();
        let is_accepted = !matches!(manner, Manner::Refuse | Manner::Fail | Manner::AskForPause | Manner::Nonsense);
        {
            let mut state = state.lock().unwrap();
            let position = std::fs::metadata(&state.journal).map_or(0, |journal| journal.len());
            if is_accepted {
                for mark in super::check::marks(&body) {
                    state.received.entry(mark.to_owned()).or_insert((position, 0)).1 += 1;
                }
            }
            state.misdeeds += u64::from(manner != Manner::Accept);
        }
        respond(manner, &mut connection)?;
    }
}

fn respond(manner: Manner, connection: &mut Connection) -> Option<()> {
    match manner {
        Manner::Accept => connection.answer(200, "", ""),
        Manner::Late => {
            thread::sleep(LATE);
            connection.answer(200, "", "")
        }
        Manner::Refuse => connection.answer(503, "", ""),
        Manner::Fail => connection.answer(500, "", ""),
        Manner::AskForPause => connection.answer(503, "Retry-After: 1\r\n", ""),
        Manner::Nonsense => connection.write(b"\0\x01\x02 nonsense\r\n\r\n").and(None),
        Manner::DieWithinResponse => connection.write(b"HTTP/1.1 200 OK\r\nCon").and(None),
        Manner::DieBeforeResponse | Manner::Close => None,
    }
}
