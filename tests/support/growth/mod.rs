//! Counts how the work of a decoder grows with its input: twice the input may cost at most `MAX_GROWTH` times the
//! instructions.
//!
//! The measure is instructions, counted by valgrind's callgrind:
//!
//! - Times (also CPU times) depend on the load of the machine and on its caches. Instruction counts do not: a limit close
//!   to 2 separates linear work (2.0) from quadratic work (4.0) and never fails by chance.
//! - A step counter inside the decoders counts only the loops that have a counter. Instructions count every
//!   loop, those of the standard library and of hash tables included.
//!
//! A test runs itself again below callgrind, which collects only inside `counted_work` and writes one dump for each
//! return of it. Preparing the input is not counted. Without valgrind the test prints one line and passes; the gate
//! installs valgrind.

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

use tributary::decode::{self, Offline};
use tributary::event::{Origin, UnixNanos};
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::{End, Exchange, Now, Protocol, Request, RequestHead, Session};

/// Linear work grows by 2 when the input doubles; the rest is for tables that double their memory now and then.
const MAX_GROWTH: f64 = 2.5;
/// Set in the process below callgrind.
const BELOW_CALLGRIND: &str = "TRIBUTARY_TEST_BELOW_CALLGRIND";
/// The counted function, as callgrind names it.
const COUNTED: &str = concat!(module_path!(), "::counted_work");
/// A read as a busy socket gives it.
const READ_BYTES: usize = 64 * 1024;
const NOW: Now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::ZERO };

/// One kind of adversarial input.
pub struct Case {
    name: &'static str,
    size: u64,
    prepare: Box<dyn Fn(u64) -> Box<dyn FnOnce()>>,
}

impl Case {
    /// `prepare` makes an input of a size and returns the work to count. It is called with `size` and with `2 * size`;
    /// the input must be proportional to that number.
    pub fn new<W: FnOnce() + 'static>(name: &'static str, size: u64, prepare: impl Fn(u64) -> W + 'static) -> Self {
        Case { name, size, prepare: Box::new(move |size| Box::new(prepare(size))) }
    }
}

/// Counts every case at its size and at twice its size. `test` is the calling test function, which this function runs
/// again in another process.
///
/// # Panics
///
/// When the instructions of a case grow by more than `MAX_GROWTH`.
pub fn assert_linear<T>(_test: T, cases: &[Case]) {
    if env::var_os(BELOW_CALLGRIND).is_some() {
        for case in cases {
            for size in [case.size, 2 * case.size] {
                counted_work((case.prepare)(size));
            }
        }
        return;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: valgrind is not installed, so no instructions are counted");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dumps = folder.path().join("counted");
    let (_crate, test) = std::any::type_name::<T>().split_once("::").unwrap();
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", &format!("--toggle-collect={COUNTED}"), &format!("--dump-after={COUNTED}")])
        .arg(format!("--callgrind-out-file={}", dumps.display()))
        .arg(env::current_exe().unwrap())
        .args([test, "--exact", "--test-threads=1"])
        .env(BELOW_CALLGRIND, "1")
        // Otherwise glibc copies with `rep movsb`, which callgrind counts as one instruction for each byte.
        .env("GLIBC_TUNABLES", "glibc.cpu.x86_rep_movsb_threshold=0x10000000")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
    let count = |number: usize| {
        let path = format!("{}.{number}", dumps.display());
        let dump = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}\n{stderr}"));
        let summary = dump.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap();
        summary.trim().parse::<f64>().unwrap()
    };
    let mut failures = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let (single, double) = (count(2 * at + 1), count(2 * at + 2));
        let growth = double / single;
        let line = format!("{}: {growth:.2} times ({single} instructions, then {double})", case.name);
        eprintln!("{line}");
        if growth > MAX_GROWTH {
            failures.push(line);
        }
    }
    assert!(failures.is_empty(), "more than {MAX_GROWTH} times the work for twice the input:\n{}", failures.join("\n"));
}

#[inline(never)]
fn counted_work(work: Box<dyn FnOnce()>) {
    work();
    // The call above must not become the last jump of this function: callgrind would not see the function return.
    black_box(());
}

/// Decodes one connection from its first byte to its end, in reads of 64 KiB, and drops the events.
pub fn connection(session: impl Session, protocol: Protocol, wire: &[u8]) {
    connection_in_reads(session, protocol, wire, READ_BYTES);
}

/// The same in reads of `read_bytes`.
pub fn connection_in_reads(session: impl Session, protocol: Protocol, wire: &[u8], read_bytes: usize) {
    let mut offline = Offline::new(session, origin(protocol), counters(protocol));
    wire.chunks(read_bytes).for_each(|read| offline.feed(read, NOW, &mut |batch| drop(black_box(batch))));
    offline.finish(End::Closed, NOW, &mut |batch| drop(black_box(batch)));
}

/// Decodes the requests of one connection and drops the events; returns the HTTP statuses.
pub fn requests(exchange: &impl Exchange, protocol: Protocol, requests: &[(RequestHead, Vec<u8>)]) -> Vec<u16> {
    let counters = counters(protocol);
    let answer = |(number, (head, body)): (u64, &(RequestHead, Vec<u8>))| {
        let request = Request { head: head.clone(), body: body.clone().into(), number };
        let take = &mut |batch| drop(black_box(batch));
        decode::answer(exchange, request, origin(protocol), &counters, NOW, take).0.status
    };
    (1..).zip(requests).map(answer).collect()
}

fn origin(protocol: Protocol) -> Arc<Origin> {
    Arc::new(Origin::new(protocol.as_str(), "test".into(), "192.0.2.1:1234".into(), 1))
}

fn counters(protocol: Protocol) -> Arc<ListenerCounters> {
    ListenerCounters::new("test".into(), protocol)
}
