//! Agents that send requests until they are stopped, and remember what was acknowledged, and when.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::marked_upload::upload;
pub(crate) use super::marked_upload::{EVENTS, mark};
use super::rng::Rng;
use super::site::Site;

const AGENTS: u64 = 4;
/// The pause of an agent that cannot connect, and of one whose request is not accepted. Real agents wait for seconds; the daemon is away
/// for shorter times here.
const CONNECT_PAUSE: Duration = Duration::from_millis(2);
const REPEAT_PAUSE: Duration = Duration::from_millis(5);

/// What the daemon has acknowledged. A position is the length of the journal when the response had arrived.
#[derive(Clone, Default)]
pub(crate) struct Acknowledged {
    /// Requests by their number.
    pub(crate) requests: BTreeMap<u64, u64>,
    /// Registered agents: id, key, position.
    pub(crate) registrations: Vec<(String, String, u64)>,
}

/// Running agents.
pub(crate) struct Agents {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    endless: SocketAddr,
    zico: SocketAddr,
    journal: PathBuf,
    is_over: AtomicBool,
    next: AtomicU64,
    acknowledged: Mutex<Acknowledged>,
}

fn registration(request: u64) -> Vec<u8> {
    let body = format!(r#"{{"rkey":"key","name":"agent-{request}","app":"shop","env":"test"}}"#);
    let length = body.len();
    format!("POST /agent/register HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// The request by which a registered agent opens a session.
pub(crate) fn opening(id: &str, key: &str) -> Vec<u8> {
    let body = format!(r#"{{"uuid":"{id}","authkey":"{key}"}}"#);
    let length = body.len();
    format!("POST /agent/session HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// Sends a request on a connection; returns status and body of the response.
pub(crate) fn ask(connection: &mut BufReader<TcpStream>, request: &[u8]) -> Option<(u16, String)> {
    connection.get_mut().write_all(request).ok()?;
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        connection.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(rest) = line.strip_prefix("http/1.1 ") {
            status = rest.split(' ').next()?.parse().ok()?;
        } else if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).ok()?;
    Some((status, String::from_utf8(body).ok()?))
}

pub(crate) fn connect(to: SocketAddr) -> Option<BufReader<TcpStream>> {
    let stream = TcpStream::connect(to).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    Some(BufReader::new(stream))
}

impl Agents {
    /// Starts agents that send to the daemon of `site`, whether or not it runs. Positions are lengths of `journal`.
    pub(crate) fn start(site: &Site, journal: PathBuf, seed: u64) -> Agents {
        let shared = Arc::new(Shared {
            endless: site.endless,
            zico: site.zico,
            journal,
            is_over: AtomicBool::new(false),
            next: AtomicU64::new(1),
            acknowledged: Mutex::default(),
        });
        let start = |number| {
            let (shared, rng) = (shared.clone(), Rng::new(seed, 1000 + number));
            thread::spawn(move || shared.send(number, rng))
        };
        let threads = (0..AGENTS).map(start).collect();
        Agents { shared, threads }
    }

    /// The number of acknowledged requests.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.lock().unwrap().requests.len() as u64
    }

    /// The number of registered agents.
    pub(crate) fn registered(&self) -> u64 {
        self.shared.acknowledged.lock().unwrap().registrations.len() as u64
    }

    /// What was acknowledged until now.
    pub(crate) fn until_now(&self) -> Acknowledged {
        self.shared.acknowledged.lock().unwrap().clone()
    }

    /// Ends all agents.
    pub(crate) fn stop(self) -> Acknowledged {
        self.shared.is_over.store(true, SeqCst);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.shared.acknowledged.lock().unwrap().clone()
    }
}

impl Shared {
    fn send(&self, agent: u64, mut rng: Rng) {
        while !self.is_over.load(SeqCst) {
            let number = self.next.fetch_add(1, SeqCst);
            if agent == 0 && rng.below(2) == 0 {
                self.register(number);
                continue;
            }
            let request = upload(number, rng.below(2000) as usize, 0);
            // As the agent does: the same bundle until it is acknowledged.
            let mut connection = None;
            while !self.is_over.load(SeqCst) {
                connection = connection.or_else(|| connect(self.endless));
                let Some(open) = &mut connection else {
                    thread::sleep(CONNECT_PAUSE);
                    continue;
                };
                match ask(open, &request) {
                    Some((200..300, _)) => {
                        let position = self.position();
                        self.acknowledged.lock().unwrap().requests.insert(number, position);
                        break;
                    }
                    Some((503 | 429, _)) => thread::sleep(REPEAT_PAUSE),
                    Some((status, body)) => panic!("a good request is answered {status}: {body}"),
                    None => connection = None,
                }
            }
        }
    }

    fn register(&self, number: u64) {
        let Some(mut connection) = connect(self.zico) else { return thread::sleep(CONNECT_PAUSE) };
        if let Some((200..300, body)) = ask(&mut connection, &registration(number)) {
            let position = self.position();
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            let text = |key: &str| body[key].as_str().unwrap().to_owned();
            self.acknowledged.lock().unwrap().registrations.push((text("uuid"), text("authkey"), position));
        }
    }

    fn position(&self) -> u64 {
        std::fs::metadata(&self.journal).map_or(0, |journal| journal.len())
    }
}
