//! Times of events, without sockets and on a clock that the test sets: one base for the whole run.

use std::time::Duration;

use crate::bytefrog_law_support::Run;
use crate::bytefrog_support::wire;
use serde_json::Value;
use tributary::memory::MemoryBudget;
use tributary::protocol::bytefrog::{Hq, Options};

fn run(version: u8, options: Options) -> Run {
    let mut run = Run::new(Hq::new(options, true, MemoryBudget::new(256 << 20)));
    run.open(&wire::hello(version));
    run.pass(Duration::from_millis(10));
    run.open(&wire::data_hello(0));
    run.pass(Duration::from_millis(10));
    run
}

fn instant(event: &Value, key: &str) -> jiff::Timestamp {
    event[key].as_str().unwrap().parse().unwrap()
}

/// Milliseconds from the first line of the run to the time of each event with a number.
fn millis(events: &[Value]) -> Vec<i64> {
    let start = instant(&events[0], "observed_time");
    let numbered = events.iter().filter(|event| event["origin"].get("sequence").is_some());
    numbered
        .map(|event| {
            (instant(event, "time") - start).get_milliseconds() + (instant(event, "time") - start).get_seconds() * 1000
        })
        .collect()
}

#[test]
fn the_time_of_a_thread_name_does_not_move_the_base() {
    for time in [u32::MAX, 1 << 31, 100_000] {
        let mut run = run(1, Options { rename_wait: Duration::ZERO, ..Options::default() });
        run.feed(1, &[wire::method(1, "a/B.c;1;()V"), wire::thread_name(3, time, "main")].concat());
        run.feed(1, &wire::entry(5, 0, 1, 3));
        let events = run.end().events();
        assert_eq!(millis(&events), [15], "the data connection arrived at 10");
        let named = events.iter().find(|event| event["name"] == "bytefrog.thread.named").unwrap();
        assert_eq!(named["time"], named["observed_time"], "nonsense is given the time of its arrival");
        assert_eq!(named["attributes"]["bytefrog.time.relative_ms"], time);
    }
}

#[test]
fn a_nonsense_time_of_an_event_moves_no_other_event() {
    let mut run = run(4, Options::default());
    let method = wire::method(1, "a/B.c;1;()V");
    run.feed(1, &[method, wire::entry(5, 0, 1, 0), wire::entry(u32::MAX, 1, 1, 0), wire::entry(6, 2, 1, 0)].concat());
    assert_eq!(millis(&run.end().events()), [15, 20, 16]);
}

/// Before the first event is written, the base can be no earlier than `start` was sent, which was at 0 here.
#[test]
fn a_nonsense_time_of_the_first_event_moves_the_base_to_the_start_at_most() {
    let mut run = run(4, Options::default());
    run.feed(1, &[wire::method(1, "a/B.c;1;()V"), wire::entry(u32::MAX, 0, 1, 0), wire::entry(6, 1, 1, 0)].concat());
    assert_eq!(millis(&run.end().events()), [20, 6]);
}

#[test]
fn times_of_a_thread_do_not_step_back_when_a_later_event_arrives_earlier_for_its_time() {
    let mut run = run(4, Options::default());
    run.feed(1, &[wire::method(1, "a/B.c;1;()V"), wire::entry(2, 0, 1, 0)].concat());
    run.pass(Duration::from_millis(10));
    // The time of this one is 50 ms ahead of the base that the data connection gave.
    run.feed(1, &[wire::entry(70, 1, 1, 0), wire::entry(71, 2, 1, 0)].concat());
    run.pass(Duration::from_millis(10));
    run.feed(1, &wire::entry(72, 3, 1, 0));
    assert_eq!(millis(&run.end().events()), [12, 80, 81, 82]);
}
