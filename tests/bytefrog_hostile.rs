//! Agents that mean harm, without sockets: what they can make the collector remember, write and compute is bounded, and
//! nothing that can be read is forgotten.

#![allow(clippy::unwrap_used)]

mod bytefrog_law_support;
mod bytefrog_support;
mod hostile_support;
mod live;

use std::time::Duration;

use bytefrog_law_support::Run;
use bytefrog_support::wire;
use tributary::protocol::MemoryBudget;
use tributary::protocol::bytefrog::{Calls, Hq, Options, Order};

/// A run of this version with one data connection, number 1, which has said its hello.
fn run(version: u8, options: &Options) -> Run {
    let mut run = Run::counting(Hq::new(options.clone(), false, MemoryBudget::new(256 << 20)));
    run.open(&wire::hello(version));
    run.open(&wire::data_hello(0));
    run
}

fn entries(numbers: impl Iterator<Item = u32>, method: impl Fn(u32) -> u32) -> Vec<u8> {
    numbers.flat_map(|number| wire::entry(0, number, method(number), 0)).collect()
}

// Time: no message costs more than its bytes are worth.

#[test]
fn more_ids_than_can_be_given_up_one_by_one_are_given_up_all_the_same() {
    let options = Options { max_waiting: 1024, ..Options::default() };
    let mut run = run(4, &options);
    let before = run.count();
    run.feed(1, &entries(0..70_000, |number| number));
    assert!(run.count() - before >= 70_000 - 1024, "{}", run.count());
    run.pass(Duration::from_secs(11));
    assert_eq!(run.count() - before, 70_001, "and that its heartbeats are late");
}
