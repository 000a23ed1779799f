//! Work grows linearly with the bytes received: adversarial streams of size n and 2n.

use std::time::Duration;

use crate::bytefrog_law_support::Run;
use crate::bytefrog_support::wire;
use crate::growth_support::{Case, assert_linear};
use tributary::event::{BatchBuilder, Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::protocol::bytefrog::{CallOutput, Hq, Options, Order};
use tributary::protocol::{End, Now, Output, Session};

const NOW: Now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::ZERO };

/// A case of one data connection of a version 1 or 4 agent; `attack` writes everything after the hello.
fn case(name: &'static str, size: u32, version: u8, options: Options, attack: fn(u32) -> Vec<u8>) -> Case {
    Case::new(name, size.into(), move |size| {
        let wire = attack(u32::try_from(size).unwrap());
        let mut run = Run::counting(Hq::new(options.clone(), false, MemoryBudget::new(256 << 20)));
        run.open(&wire::hello(version));
        let data = run.open(&wire::data_hello(0));
        move || {
            wire.chunks(64 * 1024).for_each(|read| run.feed(data, read));
            run.finish(data, End::Closed);
            run.finish(0, End::Closed);
        }
    })
}

fn with(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options::default();
    change(&mut options);
    options
}

fn spans() -> Options {
    with(|options| options.calls = CallOutput::Spans)
}

fn ordered() -> Options {
    with(|options| options.order = Order::Sequence)
}

fn known_method() -> Vec<u8> {
    wire::method(0, "a/B.c;1;()V")
}

fn entries(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(|number| wire::entry(0, number, 0, 0)).collect()
}

#[test]
fn twice_the_stream_is_at_most_two_and_a_half_times_the_work() {
    let cases = [
        case("events of unknown methods", 300, 4, with(|options| options.max_waiting = 1024), |n| {
            (0..4 * n).flat_map(|at| wire::entry(0, at, at, 0)).collect()
        }),
        case("events of unknown methods, which are defined last to first", 400, 4, Options::default(), |n| {
            let waiting = (0..n).flat_map(|at| wire::entry(0, at, at, 0));
            waiting.chain((0..n).rev().flat_map(|at| wire::method(at, "a/B.c;1;()V"))).collect()
        }),
        case("numbers from the last to the first", 400, 4, Options::default(), |n| {
            [known_method(), entries((0..n).rev())].concat()
        }),
        case("every second number, then the others", 400, 4, Options::default(), |n| {
            [known_method(), entries((0..n).map(|at| 2 * at)), entries((0..n).map(|at| 2 * at + 1))].concat()
        }),
        case("numbers with wide gaps", 400, 4, Options::default(), |n| {
            [known_method(), entries((0..n).map(|at| at * 1_000_003))].concat()
        }),
        case("repeated numbers", 300, 4, Options::default(), |n| {
            [known_method(), entries((0..n).map(|at| at % 7))].concat()
        }),
        case("in order: numbers from the last to the first", 400, 4, ordered(), |n| {
            [known_method(), entries((0..n).rev())].concat()
        }),
        case("in order: numbers with gaps", 60, 4, ordered(), |n| {
            [known_method(), entries((0..n).map(|at| at * 511))].concat()
        }),
        case("in order: numbers with wide gaps", 300, 4, ordered(), |n| {
            [known_method(), entries((0..n).map(|at| at * 1_000_003))].concat()
        }),
        case("calls nested ever deeper, then exits of unknown methods", 400, 4, spans(), |n| {
            let exits = (n..2 * n).flat_map(|number| wire::exit(4, 0, number, 1, 0)).collect();
            [known_method(), entries(0..n), exits].concat()
        }),
        case("calls nested ever deeper, which the outermost exit ends", 400, 4, spans(), |n| {
            let calls = (0..n).flat_map(|number| wire::entry(0, number, u32::from(number > 0), 0));
            [known_method(), wire::method(1, "a/B.d;1;()V"), calls.collect(), wire::exit(4, 0, n, 0, 0)].concat()
        }),
        Case::new("calls in many threads, then data breaks", 400, |size| {
            let size = u32::try_from(size).unwrap();
            let calls = (0..size).flat_map(|number| wire::entry(0, number, 0, number as u16));
            let calls: Vec<u8> = known_method().into_iter().chain(calls).collect();
            let breaks: Vec<u8> = (1..=size).flat_map(wire::data_break).collect();
            let mut run = Run::counting(Hq::new(spans(), false, MemoryBudget::new(256 << 20)));
            let control = run.open(&wire::hello(4));
            let data = run.open(&wire::data_hello(0));
            move || {
                run.feed(data, &calls);
                run.feed(control, &breaks);
            }
        }),
        Case::new("data breaks and calls in turn", 300, |size| {
            let size = u32::try_from(size).unwrap();
            let mut run = Run::counting(Hq::new(spans(), false, MemoryBudget::new(256 << 20)));
            let control = run.open(&wire::hello(4));
            let data = run.open(&[wire::data_hello(0), known_method()].concat());
            move || {
                for at in 0..size {
                    run.feed(data, &wire::entry(0, at, 0, at as u16));
                    run.feed(control, &wire::data_break(at + 1));
                }
            }
        }),
        case("names of one thread, the latest first", 300, 1, Options::default(), |n| {
            (0..n).rev().flat_map(|time| wire::thread_name(1, time, "main")).collect()
        }),
        case("names of many threads", 400, 1, Options::default(), |n| {
            (0..n).flat_map(|thread| wire::thread_name(thread as u16, 0, "main")).collect()
        }),
        case("a method defined many times", 400, 4, Options::default(), |n| {
            (0..n).flat_map(|at| wire::method(at % 3, &format!("a/B.c{at};1;()V"))).collect()
        }),
        case("more methods than the dictionary keeps", 400, 4, with(|options| options.dictionary.entries = 100), |n| {
            (0..n).flat_map(|at| wire::method(at, "a/B.c;1;()V")).collect()
        }),
        case("markers", 300, 4, Options::default(), |n| {
            (0..n).flat_map(|number| wire::marker(0, number, "key", "value")).collect()
        }),
        Case::new("data connections among agents without a run id", 300, |size| {
            let options = with(|options| options.reserved_runs = 0);
            let hq = Hq::new(options, false, MemoryBudget::new(256 << 20));
            let open = |hq: &Hq, address: u8, hello: &[u8]| {
                let mut session = hq.session(Some([10, 0, 0, address].into()));
                let mut out = Output::new(BatchBuilder::new(Origin::new("bytefrog", "x".into(), "x".into(), 1).into()));
                let _ = session.receive(hello, NOW, &mut out);
                session
            };
            let agents: Vec<_> = (0..127).map(|_| open(&hq, 1, &wire::hello(4))).collect();
            move || {
                let untraced: Vec<_> = (0..size).map(|_| open(&hq, 1, &wire::hello(4))).collect();
                let data: Vec<_> = (0..size).map(|_| open(&hq, 2, &wire::data_hello(127))).collect();
                drop((agents, untraced, data));
            }
        }),
        Case::new("a message that arrives byte by byte", 2000, |size| {
            let wire = wire::method(0, &"x".repeat(size as usize));
            let mut run = Run::counting(Hq::new(Options::default(), false, MemoryBudget::new(256 << 20)));
            run.open(&wire::hello(4));
            let data = run.open(&wire::data_hello(0));
            move || wire.iter().for_each(|byte| run.feed(data, &[*byte]))
        }),
    ];
    assert_linear(twice_the_stream_is_at_most_two_and_a_half_times_the_work, &cases);
}
