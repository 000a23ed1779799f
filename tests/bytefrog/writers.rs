//! Connections of one run that write in order: while the batch of one is not handed over, another waits, with pauses and
//! not for ever.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use crate::bytefrog_support::wire;
use serde_json::Value;
use tributary::event::{BatchBuilder, Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::protocol::bytefrog::{BytefrogSession, Hq, Options, Order};
use tributary::protocol::{Flow, Now, Output, Progress, Session};
use tributary::sink::encode::{Encoder, Format};

const NOW: Now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::from_secs(10) };
/// The number of events of which one connection may hold back some.
const MAX_WAITING: usize = 1024;

/// A connection whose batch is handed over only when the test takes it.
struct Connection {
    session: BytefrogSession,
    out: Output,
}

impl Connection {
    fn open(hq: &Hq, number: u64, hello: &[u8]) -> Connection {
        let origin = Arc::new(Origin::new("bytefrog", "test".into(), "127.0.0.1:9".into(), number));
        let session = hq.session(Some(Ipv4Addr::LOCALHOST.into()));
        let mut connection = Connection { session, out: Output::new(BatchBuilder::new(origin)) };
        assert_eq!(connection.receive(hello), Progress { consumed: hello.len(), flow: Flow::Continue });
        connection
    }

    fn receive(&mut self, input: &[u8]) -> Progress {
        self.out.throttle = None;
        self.session.receive(input, NOW, &mut self.out)
    }

    /// Takes the batch; returns the numbers of its events.
    fn take(&mut self) -> Vec<u64> {
        let (mut encoder, mut lines) = (Encoder::new(Format::Json), Vec::new());
        self.out.batch.take().events().for_each(|event| encoder.encode(event, &mut lines));
        let events = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let events = events.map(|line| serde_json::from_slice::<Value>(line).unwrap());
        events.filter_map(|event| event["origin"]["sequence"].as_u64()).collect()
    }

    /// Receives `input` to its end, with a batch for each call; returns the numbers of all events.
    fn receive_all(&mut self, mut input: &[u8]) -> Vec<u64> {
        let mut numbers = Vec::new();
        while !input.is_empty() {
            let Progress { consumed, .. } = self.receive(input);
            input = &input[consumed..];
            numbers.append(&mut self.take());
        }
        // Until its last batch is handed over.
        loop {
            let _ = self.receive(b"");
            let more = self.take();
            if more.is_empty() {
                return numbers;
            }
            numbers.extend(more);
        }
    }
}

fn entries(numbers: std::ops::RangeInclusive<u32>) -> Vec<u8> {
    numbers.flat_map(|number| wire::entry(5, number, 1, 0)).collect()
}

/// The data connections of a run in order. The first has a batch with the event number 0, which is not taken yet.
fn run() -> (Connection, Connection, Connection) {
    let options = Options {
        data_connections: 2,
        order: Order::Sequence,
        max_waiting: MAX_WAITING,
        rename_wait: Duration::ZERO,
        ..Options::default()
    };
    let hq = Hq::new(options, false, MemoryBudget::new(256 << 20));
    let control = Connection::open(&hq, 1, &[wire::hello(4), wire::heartbeat(b'I')].concat());
    let mut writer = Connection::open(&hq, 2, &wire::data_hello(0));
    let other = Connection::open(&hq, 3, &wire::data_hello(0));
    writer.take();
    let begin = [wire::method(1, "demo/Main.run;9;()V"), entries(0..=0)].concat();
    assert_eq!(writer.receive(&begin).consumed, begin.len());
    assert!(!writer.out.batch.is_empty());
    (control, writer, other)
}

#[test]
fn a_connection_that_waits_for_the_batch_of_another_one_pauses_and_then_continues_in_order() {
    let (_control, mut writer, mut other) = run();
    let input = entries(1..=5_000);
    let Progress { consumed, flow } = other.receive(&input);
    assert!(flow == Flow::Again && consumed < input.len(), "it holds back as many as it may");
    for _ in 0..3 {
        assert!(other.out.throttle.is_some_and(|pause| pause >= Duration::from_millis(1)), "it does not spin");
        assert_eq!(other.receive(&input[consumed..]), Progress { consumed: 0, flow: Flow::Again });
    }
    assert_eq!(other.take(), [0; 0]);
    // The first connection also writes what the other one has received.
    let mut numbers = [writer.take(), writer.receive_all(b"")].concat();
    assert_eq!(numbers[..2], [0, 1]);
    let more = other.receive(&input[consumed..]).consumed;
    assert_eq!(other.out.throttle, None, "there is no reason to pause any longer");
    numbers.append(&mut other.take());
    numbers.append(&mut other.receive_all(&input[consumed + more..]));
    assert_eq!(numbers, (0..=5_000).collect::<Vec<_>>());
}

#[test]
fn a_connection_with_little_to_write_asks_later_whether_another_one_has_handed_its_batch_over() {
    let (_control, mut writer, mut other) = run();
    let input = entries(1..=10);
    assert_eq!(other.receive(&input), Progress { consumed: input.len(), flow: Flow::Continue });
    assert!(other.session.poll_timeout().is_some_and(|at| at > NOW.elapsed), "it does not spin");
    assert_eq!(writer.take(), [0]);
    assert_eq!(writer.receive(b"").flow, Flow::Continue);
    // The connection whose turn it is writes what the other has received.
    assert_eq!([writer.take(), other.take()].concat(), (1..=10).collect::<Vec<_>>());
}

#[test]
fn a_connection_does_not_wait_for_ever_for_a_batch_that_is_never_handed_over() {
    let (_control, _writer, mut other) = run();
    let input = entries(1..=5_000);
    let Progress { mut consumed, .. } = other.receive(&input);
    let waits = (0..).take_while(|_| {
        let is_waiting = other.out.throttle.is_some();
        if is_waiting {
            consumed += other.receive(&input[consumed..]).consumed;
        }
        is_waiting
    });
    assert!((2..10_000).contains(&waits.take(10_000).count()));
    let mut numbers = other.take();
    numbers.append(&mut other.receive_all(&input[consumed..]));
    assert_eq!(numbers, (1..=5_000).collect::<Vec<_>>());
}
