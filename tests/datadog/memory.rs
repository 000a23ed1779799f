//! The memory that sessions lease from the budget is the memory that the kernel counts.
//!
//! One test in a process of its own, so that nothing else changes the figure. Sessions of earlier scenarios are kept, so that
//! no session reuses memory that another has released.

use std::time::Duration;

use crate::hostile_support::wire::{meta, process, span, string, trace};
use crate::hostile_support::{Driven, is_in_own_process, process_memory};
use tributary::memory::MemoryBudget;
use tributary::protocol::datadog::Options;

/// Sessions per scenario: enough that memory of the preparation is negligible.
const SESSIONS: u64 = 4;

/// Memory that a session may hold without a lease: its buffers, and the memory for the next batch.
const UNACCOUNTED: u64 = 2 << 20;

/// A way to make a session use memory.
type Scenario = (&'static str, fn(&mut Driven));

fn unresolved_fields(driven: &mut Driven) {
    for at in 0..5000 {
        let id = 1000 + 4 * at;
        driven.feed(&span(1, [id, id + 1, id + 2, id + 3]));
    }
}

fn unresolved_meta(driven: &mut Driven) {
    for record in 0..200u64 {
        let entries: Vec<_> = (0..255).map(|at| (1000 + record * 510 + 2 * at, 1001 + record * 510 + 2 * at)).collect();
        driven.feed(&[span(1, [0; 4]), meta(&entries)].concat());
    }
}

/// A record with many entries is emitted immediately; the next one, without entries, reuses its memory and waits.
fn reused_memory(driven: &mut Driven) {
    driven.feed(&[string(1, b"k"), trace(1), meta(&[(1, 1); 250]), meta(&[(1, 1); 250])].concat());
    for _ in 0..500 {
        driven.feed(&[span(1, [0; 4]), span(2, [99; 4])].concat());
    }
}

fn small_strings(driven: &mut Driven) {
    (0..70_000u64).for_each(|id| driven.feed(&string(id, &id.to_be_bytes()[4..])));
}

fn long_strings(driven: &mut Driven) {
    (0..200).for_each(|id| driven.feed(&string(id, &[b'x'; 65_536])));
}

/// Bytes that are not UTF-8 take three times their length once they are repaired.
fn broken_strings(driven: &mut Driven) {
    (0..200).for_each(|id| driven.feed(&string(id, &[0xFF; 65_536])));
}

/// Texts that only a waiting record refers to.
fn orphans(driven: &mut Driven) {
    for at in 0..200u64 {
        driven.feed(&[string(1, &[at as u8; 65_000]), span(1, [99, 1, 1, 1])].concat());
    }
}

fn traces(driven: &mut Driven) {
    driven.feed(&string(1, b"k"));
    (0..1000).for_each(|id| driven.feed(&[trace(id), meta(&[(1, 1); 100])].concat()));
}

const SCENARIOS: [Scenario; 8] = [
    ("unresolved fields", unresolved_fields),
    ("unresolved meta", unresolved_meta),
    ("reused memory", reused_memory),
    ("small strings", small_strings),
    ("long strings", long_strings),
    ("broken strings", broken_strings),
    ("orphans", orphans),
    ("traces", traces),
];

#[test]
fn leased_memory_is_the_memory_in_use_and_released_memory_is_freed() {
    if !is_in_own_process(leased_memory_is_the_memory_in_use_and_released_memory_is_freed) {
        return;
    }
    let mut kept = Vec::new();
    for (name, attack) in SCENARIOS {
        let budget = MemoryBudget::new(1 << 40);
        let before = process_memory("RssAnon");
        for _ in 0..SESSIONS {
            let mut driven = Driven::with(&Options::default(), 16 << 20, &budget);
            driven.feed(&process(u64::MAX));
            attack(&mut driven);
            kept.push(driven);
        }
        let held = process_memory("RssAnon").saturating_sub(before) / SESSIONS;
        let leased = budget.used() / SESSIONS;
        assert!(held <= 2 * leased + UNACCOUNTED, "{name}: a session holds {held} bytes and leases {leased}");
        assert!(leased <= 17 << 20, "{name}: {leased} bytes");
    }
    let before = process_memory("RssAnon");
    for _ in 0..4 * SESSIONS {
        let mut driven = Driven::new(&Options::default());
        driven.feed(&process(0));
        unresolved_fields(&mut driven);
        driven.pass(Duration::from_secs(20));
        assert_eq!(driven.spans(), 5000);
        kept.push(driven);
    }
    let held = process_memory("RssAnon").saturating_sub(before) / (4 * SESSIONS);
    assert!(held <= 1 << 20, "everything was released: {held} bytes each");
}
