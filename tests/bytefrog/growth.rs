//! Work grows with the bytes received, whatever they are: adversarial streams of size n and 2n.

use crate::bytefrog_law_support::Run;
use crate::bytefrog_support::wire;
use crate::growth_support::{Case, assert_linear};
use tributary::memory::MemoryBudget;
use tributary::protocol::End;
use tributary::protocol::bytefrog::{Calls, Hq, Options, Order};

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
    with(|options| options.calls = Calls::Spans)
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
        case("events of unknown methods", 500, 4, with(|options| options.max_waiting = 1024), |n| {
            (0..4 * n).flat_map(|at| wire::entry(0, at, at, 0)).collect()
        }),
        case("events of unknown methods, which are defined last to first", 1000, 4, Options::default(), |n| {
            let waiting = (0..n).flat_map(|at| wire::entry(0, at, at, 0));
            waiting.chain((0..n).rev().flat_map(|at| wire::method(at, "a/B.c;1;()V"))).collect()
        }),
        case("numbers from the last to the first", 1000, 4, Options::default(), |n| {
            [known_method(), entries((0..n).rev())].concat()
        }),
        case("every second number, then the others", 1000, 4, Options::default(), |n| {
            [known_method(), entries((0..n).map(|at| 2 * at)), entries((0..n).map(|at| 2 * at + 1))].concat()
        }),
        case("numbers with wide gaps", 1000, 4, Options::default(), |n| {
            [known_method(), entries((0..n).map(|at| at * 1_000_003))].concat()
        }),
        case("numbers that come again", 500, 4, Options::default(), |n| {
            [known_method(), entries((0..n).map(|at| at % 7))].concat()
        }),
        case("in order: numbers from the last to the first", 1000, 4, ordered(), |n| {
            [known_method(), entries((0..n).rev())].concat()
        }),
        case("in order: numbers with gaps", 200, 4, ordered(), |n| {
            [known_method(), entries((0..n).map(|at| at * 511))].concat()
        }),
        case("in order: numbers with wide gaps", 500, 4, ordered(), |n| {
            [known_method(), entries((0..n).map(|at| at * 1_000_003))].concat()
        }),
        case("calls nested deeper and deeper, then exits of unknown methods", 1000, 4, spans(), |n| {
            let exits = (n..2 * n).flat_map(|number| wire::exit(4, 0, number, 1, 0)).collect();
            [known_method(), entries(0..n), exits].concat()
        }),
        case("calls nested deeper and deeper, which the outermost exit ends", 1000, 4, spans(), |n| {
            let calls = (0..n).flat_map(|number| wire::entry(0, number, u32::from(number > 0), 0));
            [known_method(), wire::method(1, "a/B.d;1;()V"), calls.collect(), wire::exit(4, 0, n, 0, 0)].concat()
        }),
        Case::new("calls in many threads, then data breaks", 1000, |size| {
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
        Case::new("data breaks and calls by turns", 500, |size| {
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
        case("names of one thread, the latest first", 500, 1, Options::default(), |n| {
            (0..n).rev().flat_map(|time| wire::thread_name(1, time, "main")).collect()
        }),
        case("names of many threads", 1000, 1, Options::default(), |n| {
            (0..n).flat_map(|thread| wire::thread_name(thread as u16, 0, "main")).collect()
        }),
        case("a method defined again and again", 1000, 4, Options::default(), |n| {
            (0..n).flat_map(|at| wire::method(at % 3, &format!("a/B.c{at};1;()V"))).collect()
        }),
        case(
            "more methods than the dictionary takes",
            1000,
            4,
            with(|options| options.dictionary.entries = 100),
            |n| (0..n).flat_map(|at| wire::method(at, "a/B.c;1;()V")).collect(),
        ),
        case("markers", 500, 4, Options::default(), |n| {
            (0..n).flat_map(|number| wire::marker(0, number, "key", "value")).collect()
        }),
        Case::new("a message that arrives byte by byte", 5000, |size| {
            let wire = wire::method(0, &"x".repeat(size as usize));
            let mut run = Run::counting(Hq::new(Options::default(), false, MemoryBudget::new(256 << 20)));
            run.open(&wire::hello(4));
            let data = run.open(&wire::data_hello(0));
            move || wire.iter().for_each(|byte| run.feed(data, &[*byte]))
        }),
    ];
    assert_linear(twice_the_stream_is_at_most_two_and_a_half_times_the_work, &cases);
}
