//! The disorder of real agents: a thread that does not get the processor keeps its buffer, and others number hundreds of
//! thousands of events meanwhile. Nothing of it is a gap, and calls are paired as the program made them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::bytefrog_law_support::Run;
use crate::bytefrog_support::{daemon, wire};
use crate::live::{member, within};
use tributary::event::{BatchBuilder, Origin, Reason, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::protocol::bytefrog::{BytefrogSession, CallOutput, Hq, Options, Order};
use tributary::protocol::{End, Now, Output, Session};
use tributary::simulate::bytefrog::{Options as AgentOptions, Program};
use tributary::simulate::{AgentKind, Amount, Plan, run};

/// More numbers than a window of 65,536 has.
const EVENTS: u64 = 150_000;
const MILLIS: u32 = 5;

/// The buffers of a program, in the order in which an agent sends them. All events have the same time, so threads wait for
/// events of others and not for time to pass.
fn buffers(version: u8) -> Vec<Vec<u8>> {
    let options = AgentOptions { version, threads: 32, ..AgentOptions::default() };
    let mut program = Program::new(7, 0, options, 8 << 20);
    let mut buffers = Vec::new();
    let mut numbered = 0;
    while numbered < EVENTS {
        numbered += program.run((EVENTS - numbered).min(1024), MILLIS);
        for buffer in program.take_full().collect::<Vec<_>>() {
            buffers.push(buffer.bytes.clone());
            program.give_back(buffer);
        }
    }
    buffers.extend(program.finish().map(|buffer| buffer.bytes));
    buffers
}

/// Numbered messages: number, type, method and thread.
fn numbered(bytes: &[u8], version: u8) -> Vec<(u32, u8, u32, u16)> {
    let stream = [&wire::data_hello(0), bytes].concat();
    let walk = crate::bytefrog_law_support::law::walk(&stream, version, false);
    assert_eq!(walk.good, stream.len() as u64);
    let read = |offset: u64, message: &crate::bytefrog_law_support::law::Numbered| {
        let at = &stream[offset as usize..][..message.length as usize];
        let method = u32::from_be_bytes(at[9..13].try_into().unwrap());
        (message.number, message.kind, method, u16::from_be_bytes(at[at.len() - 2..].try_into().unwrap()))
    };
    walk.numbered.iter().map(|(offset, message)| read(*offset, message)).collect()
}

/// The most numbers by which an event is overtaken.
fn most_overtaken(numbers: &[(u32, u8, u32, u16)]) -> u32 {
    let mut highest = 0;
    let overtaken = numbers.iter().map(|(number, ..)| {
        highest = highest.max(*number);
        highest - number
    });
    overtaken.max().unwrap()
}

fn decoded(version: u8, options: Options, buffers: &[Vec<u8>]) -> Run {
    let mut run = Run::new(Hq::new(options, false, MemoryBudget::new(1 << 30)));
    run.open(&wire::hello(version));
    let data = run.open(&wire::data_hello(0));
    for (at, buffer) in buffers.iter().enumerate() {
        run.feed(data, buffer);
        // Less than any time limit.
        run.pass(Duration::from_micros(if at % 16 == 0 { 10 } else { 0 }));
    }
    run.finish(data, End::Closed);
    run.finish(0, End::Closed);
    run
}

#[test]
fn events_that_hundreds_of_thousands_overtake_are_no_gap_with_the_default_options() {
    for version in [1, 2, 4] {
        let buffers = buffers(version);
        let numbers = numbered(&buffers.concat(), version);
        assert_eq!(numbers.len() as u64, EVENTS);
        let overtaken = most_overtaken(&numbers);
        assert!(overtaken > 70_000, "{overtaken}: the program has the disorder of real agents");
        let run = decoded(version, Options::default(), &buffers);
        let totals = run.totals(1);
        assert_eq!((totals.losses, totals.warnings.len()), ([0; Reason::ALL.len()], 0), "version {version}");
        assert!(run.count() >= EVENTS, "version {version}");
    }
}

/// The spans that follow from the numbers alone: method, and the method of the parent, with their count.
fn expected_spans(mut numbers: Vec<(u32, u8, u32, u16)>) -> HashMap<(u32, Option<u32>), usize> {
    numbers.sort_unstable();
    let mut stacks: HashMap<u16, Vec<u32>> = HashMap::new();
    let mut spans = HashMap::new();
    for (_, kind, method, thread) in numbers {
        if kind == 20 {
            let stack = stacks.entry(thread).or_default();
            *spans.entry((method, stack.last().copied())).or_default() += 1;
            stack.push(method);
        } else if kind == 21 || kind == 23 {
            assert_eq!(stacks.get_mut(&thread).unwrap().pop(), Some(method));
        }
    }
    spans
}

#[test]
fn calls_of_many_busy_threads_become_their_spans_with_the_default_options() {
    for version in [1, 4] {
        let buffers = buffers(version);
        let expected = expected_spans(numbered(&buffers.concat(), version));
        let run = decoded(version, Options { calls: CallOutput::Spans, ..Options::default() }, &buffers);
        assert_eq!(run.totals(1).losses, [0; Reason::ALL.len()], "version {version}");
        // Hundreds of thousands of lines: only the members that are compared are read.
        let spans: Vec<_> = run.text().lines().filter(|line| member(line, "kind") == Some("\"span\"")).collect();
        let method = |span: &str| member(span, "bytefrog.method.id").unwrap().parse::<u32>().unwrap();
        let methods: HashMap<_, _> =
            spans.iter().map(|span| (member(span, "span_id").unwrap(), method(span))).collect();
        let mut found = HashMap::new();
        for span in &spans {
            let parent = member(span, "parent_span_id").map(|parent| methods[parent]);
            *found.entry((method(span), parent)).or_default() += 1;
        }
        assert_eq!(found, expected, "version {version}");
    }
}

/// A session whose output is handed over when the test says so.
struct Peer {
    session: BytefrogSession,
    out: Output,
}

impl Peer {
    fn open(hq: &Hq, hello: &[u8]) -> Peer {
        let origin = Arc::new(Origin::new("bytefrog", "test".into(), "test".into(), 0));
        let mut peer = Peer { session: hq.session(None), out: Output::new(BatchBuilder::new(origin)) };
        peer.receive(hello);
        peer.hand_over();
        peer
    }

    fn receive(&mut self, bytes: &[u8]) -> usize {
        self.session.receive(bytes, NOW, &mut self.out).consumed
    }

    /// The numbers of the events that are handed over.
    fn hand_over(&mut self) -> Vec<u64> {
        let batch = self.out.batch.take();
        batch.events().filter_map(|event| event.position().sequence).collect()
    }

    /// What the driver does when it has handed over a batch and the session is due.
    fn continue_if_due(&mut self) -> Vec<u64> {
        if self.session.poll_timeout().is_some_and(|due| due <= NOW.elapsed) {
            let _ = self.session.handle_timeout(NOW, &mut self.out);
        }
        self.hand_over()
    }
}

const NOW: Now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::ZERO };

/// While the batch of one connection is not handed over, another one of the run writes none.
#[test]
fn numbers_do_not_go_back_when_connections_hand_over_their_batches_at_different_times() {
    let options = Options { order: Order::Sequence, data_connections: 2, max_waiting: 1024, ..Options::default() };
    let hq = Hq::new(options, false, MemoryBudget::new(1 << 30));
    let _control = Peer::open(&hq, &wire::hello(4));
    let [mut first, mut second] = [(); 2].map(|()| Peer::open(&hq, &wire::data_hello(0)));
    first.receive(&[wire::method(1, "demo/A.f;1;()V"), wire::entry(0, 0, 1, 0)].concat());
    second.receive(&[wire::entry(0, 1, 1, 0), wire::entry(0, 2, 1, 0)].concat());
    assert_eq!(second.hand_over(), [0; 0], "1 and 2 wait until the batch with 0 is handed over");
    assert!(second.session.poll_timeout().unwrap() > NOW.elapsed, "what is due cannot be written: it does not spin");
    assert_eq!(first.hand_over(), [0]);
    assert_eq!(first.continue_if_due(), [1, 2]);
    assert_eq!(first.continue_if_due(), [0; 0]);
    // A connection that ends does not hold up the other.
    first.receive(&wire::entry(0, 3, 1, 0));
    assert_eq!(first.hand_over(), [3]);
    let _ = first.session.finish(&[], End::Closed, NOW, &mut first.out);
    second.receive(&wire::entry(0, 4, 1, 0));
    assert_eq!(second.hand_over(), [4]);
}

/// Memory stays bounded while another connection waits for a full sink, and that does not last for ever.
#[test]
fn a_connection_waits_when_its_run_holds_too_many_events_for_another_to_hand_over() {
    let options = Options { order: Order::Sequence, data_connections: 2, max_waiting: 1024, ..Options::default() };
    let hq = Hq::new(options, false, MemoryBudget::new(1 << 30));
    let _control = Peer::open(&hq, &wire::hello(4));
    let [mut first, mut second] = [(); 2].map(|()| Peer::open(&hq, &wire::data_hello(0)));
    first.receive(&[wire::method(1, "demo/A.f;1;()V"), wire::entry(0, 0, 1, 0)].concat());
    let rest: Vec<u8> = (1..2000).flat_map(|number| wire::entry(0, number, 1, 0)).collect();
    let consumed = second.receive(&rest);
    assert!((1024 * 15..1100 * 15).contains(&consumed), "{consumed}");
    assert!(second.out.throttle.take().is_some());
    assert_eq!(second.receive(&rest[consumed..]), 0);
    assert_eq!(first.hand_over(), [0]);
    let mut numbers = Vec::new();
    // A batch is full before all of them are written.
    while let more @ [_, ..] = &first.continue_if_due()[..] {
        numbers.extend_from_slice(more);
    }
    second.receive(&rest[consumed..]);
    numbers.extend(second.hand_over());
    assert!(numbers.is_sorted() && numbers.len() > 1024, "{numbers:?}");
}

#[test]
fn a_connection_does_not_wait_for_ever_for_another_that_never_hands_its_batch_over() {
    let options = Options { order: Order::Sequence, data_connections: 2, max_waiting: 1024, ..Options::default() };
    let hq = Hq::new(options, false, MemoryBudget::new(1 << 30));
    let _control = Peer::open(&hq, &wire::hello(4));
    let [mut first, mut second] = [(); 2].map(|()| Peer::open(&hq, &wire::data_hello(0)));
    first.receive(&[wire::method(1, "demo/A.f;1;()V"), wire::entry(0, 0, 1, 0)].concat());
    let rest: Vec<u8> = (1..2000).flat_map(|number| wire::entry(0, number, 1, 0)).collect();
    let (mut consumed, mut calls, mut numbers) = (0, 0, Vec::new());
    while consumed < rest.len() {
        consumed += second.receive(&rest[consumed..]);
        numbers.extend(second.hand_over());
        calls += 1;
        assert!(calls < 100_000, "it waits for ever");
    }
    assert!(calls > 100, "it waits some time");
    while let more @ [_, ..] = &second.continue_if_due()[..] {
        numbers.extend_from_slice(more);
    }
    assert_eq!(numbers, (1..2000).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn numbers_do_not_go_back_with_several_data_connections() {
    for round in 0..8 {
        let daemon = daemon("order = \"sequence\"\ndata_connections = 3\nreorder_window = \"5m\"").await;
        let to = daemon.server.address().unwrap();
        let plan = Plan { to, amount: Amount::Events(20_000), rate: None, connections: 1, seed: round };
        let agent = AgentOptions { version: 1 + (round % 4) as u8, threads: 16, ..AgentOptions::default() };
        within("the agent ends", run(AgentKind::Bytefrog(agent), plan, std::future::pending())).await.unwrap();
        daemon.until_all_closed().await;
        let (lines, _) = daemon.stop_with_lines().await;
        let losses: Vec<_> = lines.iter().filter(|line| member(line, "kind") == Some("\"loss\"")).collect();
        assert!(losses.is_empty(), "{losses:?}");
        let numbered = lines.iter().filter(|line| member(line, "bytefrog.time.relative_ms").is_some());
        let numbers: Vec<u64> = numbered.map(|line| member(line, "sequence").unwrap().parse().unwrap()).collect();
        assert_eq!(numbers.len(), 20_000);
        let back = numbers.windows(2).position(|pair| pair[0] >= pair[1]);
        assert_eq!(back, None, "round {round}");
    }
}
