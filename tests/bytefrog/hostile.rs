//! Hostile agents, without sockets: the memory, output and CPU time that they cause are bounded, and everything that
//! can be read is counted.

use std::sync::Arc;
use std::time::Duration;

use crate::bytefrog_law_support::Run;
use crate::bytefrog_support::wire;
use crate::hostile_support::{is_in_own_process, process_memory};
use tributary::event::{BatchBuilder, Origin, UnixNanos};
use tributary::memory::{Amplification, MemoryBudget};
use tributary::protocol::bytefrog::{BytefrogSession, CallOutput, Hq, Options, Order};
use tributary::protocol::{End, Flow, Now, Output, Session};

/// A run of this version with one data connection, number 1, which has sent its hello.
fn run(version: u8, options: &Options) -> Run {
    let mut run = Run::counting(Hq::new(options.clone(), false, MemoryBudget::new(256 << 20)));
    run.open(&wire::hello(version));
    run.open(&wire::data_hello(0));
    run
}

fn entries(numbers: impl Iterator<Item = u32>, method: impl Fn(u32) -> u32) -> Vec<u8> {
    numbers.flat_map(|number| wire::entry(0, number, method(number), 0)).collect()
}

// CPU time: no message costs more than is reasonable for its size.

#[test]
fn more_ids_than_the_limit_of_abandoned_ids_are_given_up() {
    let options = Options { max_waiting: 1024, ..Options::default() };
    let mut run = run(4, &options);
    let before = run.count();
    run.feed(1, &entries(0..70_000, |number| number));
    assert!(run.count() - before >= 70_000 - 1024, "{}", run.count());
    run.pass(Duration::from_secs(11));
    assert_eq!(run.count() - before, 70_001, "and that its heartbeats are late");
}

#[test]
fn a_refused_connection_is_refused_once() {
    let mut run = run(4, &Options::default());
    let unregistered = run.open(&wire::data_hello(99));
    run.pass(Duration::from_secs(1));
    run.pass(Duration::from_secs(1));
    run.feed(unregistered, &[0; 100]);
    run.finish(unregistered, End::Closed);
    assert_eq!(run.totals(unregistered).lost(), 102);
}

/// Enough that a second suffices for it, and that a search through all of it for each message would take minutes.
const MANY: u32 = 60_000;

#[test]
fn exits_of_a_method_that_was_never_entered_search_no_deep_stack() {
    let mut run = run(4, &Options { calls: CallOutput::Spans, ..Options::default() });
    run.feed(1, &entries(0..MANY, |_| 7));
    let unknown = |number| wire::exit(4, 0, number, 8, 0);
    let before = run.count();
    for part in 0..10 {
        let numbers = (1 + part) * MANY..(2 + part) * MANY;
        run.feed(1, &numbers.flat_map(unknown).collect::<Vec<u8>>());
        run.pass(Duration::from_secs(11));
    }
    assert!(run.count() - before >= u64::from(10 * MANY));
    let before = run.count();
    run.feed(1, &wire::exit(4, 0, 11 * MANY, 7, 0));
    run.pass(Duration::from_secs(11));
    assert_eq!(run.count() - before, 1, "the innermost call has ended");
}

#[test]
fn extreme_times_overflow_nothing() {
    for wild in [u32::MAX, 1 << 31, (1 << 31) - 1] {
        let mut run = run(4, &Options::default());
        let times = (0..MANY).map(|number| wire::entry(number.wrapping_mul(wild), number, 0, 0));
        run.feed(1, &times.flatten().chain(wire::method(0, "a/B.c;1;()V")).collect::<Vec<u8>>());
        assert!(run.count() > u64::from(MANY));
    }
}

#[test]
fn output_written_after_a_wait_is_charged_to_the_connection_that_caused_it() {
    let amplification = Amplification { burst: 64 << 10, ..Options::default().amplification };
    let hq = Hq::new(Options { amplification, ..Options::default() }, false, MemoryBudget::new(256 << 20));
    let mut control = DrivenSession::new(hq.session(None));
    control.feed(&wire::hello(1), Duration::ZERO);
    let mut data = DrivenSession::new(hq.session(None));
    data.feed(&wire::data_hello(0), Duration::ZERO);
    let named = [wire::method(0, &"x".repeat(60_000)), wire::thread_name(0, 0, "main")].concat();
    assert_eq!(data.feed(&[named, entries(0..1000, |_| 0)].concat(), Duration::ZERO), None);
    assert_eq!(data.events, 0, "they wait for a rename");
    data.pass(Duration::from_secs(1));
    assert_eq!(data.events, 1000);
    let hold = data.feed(&wire::entry(0, 1000, 0, 0), Duration::from_secs(1));
    assert!(hold > Some(Duration::from_secs(1)), "{hold:?}");
}

#[test]
fn waiting_markers_count_with_their_texts() {
    let options = Options { order: Order::Sequence, ..Options::default() };
    let memory = MemoryBudget::new(2 << 20);
    let mut run = Run::counting(Hq::new(options, false, memory.clone()));
    run.open(&wire::hello(4));
    run.open(&wire::data_hello(0));
    for number in 1..200 {
        run.feed(1, &wire::marker(0, number, "key", &"x".repeat(60_000)));
        assert!(memory.used() <= memory.limit() + 65_536, "{} bytes", memory.used());
    }
    assert!(run.count() > 150, "what does not fit has been written");
    drop(run);
    assert_eq!(memory.used(), 0);
}

#[test]
fn a_number_far_ahead_takes_the_memory_of_one_event() {
    if !is_in_own_process(a_number_far_ahead_takes_the_memory_of_one_event) {
        return;
    }
    let options = Options { order: Order::Sequence, max_waiting: 10_000_000, ..Options::default() };
    let before = process_memory("RssAnon");
    let runs: Vec<_> = (0..20)
        .map(|_| {
            let mut run = run(4, &options);
            run.feed(1, &wire::entry(0, 9_000_000, 0, 0));
            run
        })
        .collect();
    let held = process_memory("RssAnon").saturating_sub(before) / runs.len() as u64;
    assert!(held < 4 << 20, "{held} bytes each");
}

/// A session and its output.
struct DrivenSession {
    session: BytefrogSession,
    out: Output,
    events: usize,
}

impl DrivenSession {
    fn new(session: BytefrogSession) -> DrivenSession {
        let origin = Arc::new(Origin::new("bytefrog", "test".into(), "test".into(), 1));
        DrivenSession { session, out: Output::new(BatchBuilder::new(origin)), events: 0 }
    }

    /// How long it asks to pause.
    fn feed(&mut self, mut bytes: &[u8], elapsed: Duration) -> Option<Duration> {
        loop {
            let progress = self.session.receive(bytes, now(elapsed), &mut self.out);
            bytes = &bytes[progress.consumed..];
            self.events += self.out.batch.take().len();
            if progress.flow != Flow::Again {
                return self.out.throttle.take();
            }
        }
    }

    fn pass(&mut self, elapsed: Duration) {
        while self.session.handle_timeout(now(elapsed), &mut self.out) == Flow::Again {
            self.events += self.out.batch.take().len();
        }
        self.events += self.out.batch.take().len();
    }
}

fn now(elapsed: Duration) -> Now {
    Now { unix: UnixNanos(1_795_176_900_000_000_000 + elapsed.as_nanos() as u64), elapsed }
}
