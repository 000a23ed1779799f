//! Agents of a fleet: Endless machines and Zorka agents. What is not acknowledged is sent again, to the other edge.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tributary::simulate::zico::{Bodies, Jvm, ZicoDialect};

use crate::marked_upload::upload;

/// Machines, and agents for Java.
const MACHINES: u64 = 3;
const JVMS: u64 = 2;
/// The pause of an agent between two uploads or traces.
const PAUSE: Duration = Duration::from_millis(50);
/// The pause of an agent whose attempt has failed, before it tries the other edge.
const REPEAT_PAUSE: Duration = Duration::from_millis(20);
/// How long an agent waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Agents that send until they are ended.
pub(super) struct Agents {
    is_over: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Acknowledged>>,
    threads: Vec<thread::JoinHandle<()>>,
}

/// What the fleet has acknowledged.
#[derive(Default)]
pub(super) struct Acknowledged {
    /// The numbers of uploads.
    pub(super) uploads: Vec<u64>,
    /// The ids of traces, with their numbers of events.
    pub(super) traces: Vec<(String, u64)>,
    /// Attempts after the first one.
    pub(super) repeats: u64,
}

/// The addresses of one edge.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    pub(super) endless: SocketAddr,
    pub(super) zico: SocketAddr,
}

impl Agents {
    pub(super) fn start(edges: [Edge; 2]) -> Agents {
        let (is_over, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Acknowledged>>::default());
        let machine = |number: u64| {
            let (is_over, acknowledged) = (is_over.clone(), acknowledged.clone());
            thread::spawn(move || upload_all(edges, number, &is_over, &acknowledged))
        };
        let jvm = |number: u64| {
            let (is_over, acknowledged) = (is_over.clone(), acknowledged.clone());
            thread::spawn(move || submit_all(edges, number, &is_over, &acknowledged))
        };
        let threads = (0..MACHINES).map(machine).chain((0..JVMS).map(jvm)).collect();
        Agents { is_over, acknowledged, threads }
    }

    /// Ends when every request that was started is acknowledged.
    pub(super) fn end(mut self) -> Acknowledged {
        self.is_over.store(true, SeqCst);
        std::mem::take(&mut self.threads).into_iter().for_each(|thread| thread.join().unwrap());
        std::mem::take(&mut self.acknowledged.lock().unwrap())
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
    }
}

/// Calls `attempt` with one edge after the other until it succeeds; counts the attempts after the first one.
fn until_acknowledged(
    edges: [Edge; 2],
    first: u64,
    acknowledged: &Mutex<Acknowledged>,
    mut attempt: impl FnMut(Edge, u32) -> bool,
) {
    for times in 0.. {
        if attempt(edges[(first as usize + times as usize) % 2], times) {
            return thread::sleep(PAUSE);
        }
        acknowledged.lock().unwrap().repeats += 1;
        thread::sleep(REPEAT_PAUSE);
    }
}

/// An Endless machine.
fn upload_all(edges: [Edge; 2], machine: u64, is_over: &AtomicBool, acknowledged: &Mutex<Acknowledged>) {
    let mut number = machine;
    while !is_over.load(SeqCst) {
        number += MACHINES;
        let bytes = 200 + (number % 7) as usize * 300;
        until_acknowledged(edges, number, acknowledged, |edge, times| {
            status(edge.endless, &upload(number, bytes, times)) == Some(200)
        });
        acknowledged.lock().unwrap().uploads.push(number);
    }
}

/// A Zorka agent for Java, whose traces have distributed contexts: copies have the same ids.
fn submit_all(edges: [Edge; 2], jvm: u64, is_over: &AtomicBool, acknowledged: &Mutex<Acknowledged>) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut agent = Jvm::new(5, jvm, now(), ZicoDialect::Gen2);
    let session = format!("{:016x}", 0x0a6e_0000 + jvm);
    let mut number = 0;
    while !is_over.load(SeqCst) {
        let trace = agent.trace(60, now());
        let submissions = trace.submissions();
        let Some(whole) = submissions.last().filter(|whole| whole.trace().is_some()) else { continue };
        number += 1;
        let id = format!("{:032x}", u128::from(jvm + 1) << 64 | u128::from(number as u32));
        until_acknowledged(edges, number, acknowledged, |edge, _| {
            // Another edge may not know the definitions, so each attempt has them.
            agent.forget();
            let bodies = agent.bodies(whole);
            submit(edge.zico, &session, &id, &bodies)
        });
        acknowledged.lock().unwrap().traces.push((id, trace.events));
    }
}

/// Posts the definitions and the trace as a gen2 agent does. `true`: all of it is acknowledged.
fn submit(to: SocketAddr, session: &str, trace: &str, bodies: &Bodies) -> bool {
    let mut headers = format!(
        "Host: h\r\nContent-Type: application/zorka+cbor+v1\r\nX-Zorka-Session-Id: {session}\r\nX-Zorka-Session-Reset: true\r\n"
    );
    let mut post = |path: &str, more: &str, body: &[u8]| {
        let head = format!("POST {path} HTTP/1.1\r\n{headers}{more}Content-Length: {}\r\n\r\n", body.len());
        headers = headers.replace("Reset: true", "Reset: false");
        status(to, &[head.as_bytes(), body].concat()) == Some(202)
    };
    post("/agent/submit/agd", "", &bodies.symbols)
        && bodies.parts.iter().all(|part| post("/agent/submit/trc", &format!("X-Zorka-Trace-Id: {trace}\r\n"), part))
}

/// The status of a request. `None`: there was no answer.
fn status(to: SocketAddr, request: &[u8]) -> Option<u16> {
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(TIMEOUT)).ok()?;
    stream.write_all(request).ok()?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).ok()?;
    std::str::from_utf8(&head[9..]).ok()?.parse().ok()
}
