//! Costs grow linearly with the size of an upload, also for uploads that are built to be expensive.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use crate::endless_support::http::sha512;
use tributary::decode;
use tributary::event::{Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::endless::{EndlessExchange, Options};
use tributary::protocol::{Head, Now, Protocol, Request};

/// A version 2 bundle with one sequence of this many items without payload.
fn long_sequence(items: usize) -> Vec<u8> {
    // User id, event id, and padding to the items.
    let mut sequence = vec![0; 24];
    sequence[4..20].fill(0xAB);
    // Items: the time, a payload that is nothing, and padding. An item needs no stored offset.
    let mut ends = Vec::with_capacity(items);
    for item in 0..items {
        sequence.resize(24 + item * 8, 0);
        sequence.extend_from_slice(&(item as i64).to_le_bytes());
        ends.push(8 * item + 8);
    }
    let array = sequence.len() - 24;
    push_offsets(&mut sequence, &ends, array);
    let id_end = 20;
    let before = sequence.len();
    push_offsets(&mut sequence, &[id_end], before);
    let mut body = vec![0; 24];
    body.extend_from_slice(&[0xCD; 16]);
    let singular_end = body.len();
    body.extend_from_slice(&sequence);
    let sequences = sequence.len();
    push_offsets(&mut body, &[sequences], sequences);
    let before = body.len();
    // Ends of machine id, singular and aggregate events, the last member first.
    push_offsets(&mut body, &[singular_end, singular_end, singular_end], before);
    body
}

/// Appends framing offsets in the narrowest width for a container of `content` bytes.
fn push_offsets(bytes: &mut Vec<u8>, offsets: &[usize], content: usize) {
    let fits = |width: usize| (content + offsets.len() * width) as u128 <= (1u128 << (8 * width)) - 1;
    let width = [1, 2, 4, 8].into_iter().find(|width| fits(*width)).unwrap();
    for offset in offsets {
        bytes.extend_from_slice(&offset.to_le_bytes()[..width]);
    }
}

/// The CPU time of this thread so far, exact to a few milliseconds.
fn cpu_time() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// The least CPU time of three uploads of this body, and the number of its events.
fn cost(version: u64, body: &[u8]) -> (Duration, u64) {
    let run = || {
        let exchange = EndlessExchange::new(Options::default(), &MemoryBudget::unlimited());
        let counters = ListenerCounters::new("test".into(), Protocol::Endless);
        let origin = Arc::new(Origin::new("endless", "test".into(), "test".into(), 1));
        let head = Head { method: "PUT".into(), target: format!("/{version}/{}", sha512(body)), headers: Vec::new() };
        let request = Request { head, body: body.to_vec().into(), number: 1 };
        let now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::from_secs(1) };
        let mut events = 0;
        let before = cpu_time();
        let (response, _) = decode::answer(&exchange, request, origin, &counters, now, &mut |batch| {
            events += batch.len() as u64;
        });
        assert_eq!(response.status, 200);
        (cpu_time() - before, events)
    };
    (0..3).map(|_| run()).min().unwrap()
}

#[test]
fn the_cost_of_a_long_sequence_grows_linearly() {
    let [small, large] = [25_000, 200_000].map(|items| {
        let (cost, events) = cost(2, &long_sequence(items));
        assert_eq!(events, items as u64);
        cost
    });
    // Eight times the items: quadratic time would be 64 times the cost.
    assert!(large < small * 24, "{small:?} for 25,000 items, {large:?} for 200,000");
}
