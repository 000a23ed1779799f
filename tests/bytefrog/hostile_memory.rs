//! A run holds the memory that its lease counts, as the kernel measures it.
//!
//! One test in a process of its own, so that nothing else changes the figure. Runs of earlier scenarios are kept, so
//! that none reuses the memory of another.

use crate::bytefrog_law_support::Run;
use crate::bytefrog_support::wire;
use crate::hostile_support::{is_in_own_process, process_memory};
use tributary::memory::MemoryBudget;
use tributary::protocol::bytefrog::{CallOutput, Hq, Options};

/// Runs per scenario: enough that memory left over from the preparation does not matter.
const RUNS: u64 = 2;

/// Memory of a run beside its lease: the buffers of its two connections and of the next batch.
const UNACCOUNTED: u64 = 2 << 20;

/// A way to make a collector use memory.
type Scenario = (&'static str, CallOutput, fn(&mut Run));

/// Feeds messages in reads of a usual size.
fn feed(run: &mut Run, messages: impl Iterator<Item = Vec<u8>>) {
    let mut read = Vec::new();
    for message in messages {
        read.extend(message);
        if read.len() > 60_000 {
            run.feed(1, &std::mem::take(&mut read));
        }
    }
    run.feed(1, &read);
}

/// A text of a different length and content each time, longer once it is repaired.
fn broken(id: u32, length: usize) -> Vec<u8> {
    [&[11][..], &id.to_be_bytes(), &(length as u16).to_be_bytes(), &vec![0xff; length]].concat()
}

fn events_without_names(run: &mut Run) {
    feed(run, (0..60_000).map(|number| wire::entry(0, number, number, 0)));
}

fn events_of_one_name(run: &mut Run) {
    feed(run, (0..60_000).map(|number| wire::entry(0, number, 7, 0)));
}

fn markers_before_their_turn(run: &mut Run) {
    feed(run, (1..250).map(|number| wire::marker(0, number, "k", &"v".repeat(60_000))));
}

fn numbers_with_holes(run: &mut Run) {
    feed(run, (1..60_000).map(|number| wire::entry(0, number * 1000, 0, 0)));
}

fn deep_stacks(run: &mut Run) {
    let named = std::iter::once(wire::method(0, "a/B.c;1;()V"));
    feed(run, named.chain((0..60_000).map(|number| wire::entry(0, number, 0, (number / 1000) as u16))));
}

fn stacks_that_were_deep(run: &mut Run) {
    let named = std::iter::once(wire::method(0, "a/B.c;1;()V"));
    let calls = (0..20u32).flat_map(|thread| {
        let entries = (0..3000).map(move |at| wire::entry(0, thread * 6000 + at, 0, thread as u16));
        entries.chain((0..2999).map(move |at| wire::exit(4, 0, thread * 6000 + 3000 + at, 0, thread as u16)))
    });
    feed(run, named.chain(calls));
}

fn small_names(run: &mut Run) {
    feed(run, (0..100_000).map(|id| wire::method(id, &id.to_string())));
}

fn long_names(run: &mut Run) {
    feed(run, (0..200).map(|id| wire::exception(id, &"x".repeat(60_000))));
}

fn broken_names(run: &mut Run) {
    feed(run, (0..150).map(|id| broken(id, 60_000)));
}

fn renames(run: &mut Run) {
    feed(run, (0..100_000u32).map(|time| wire::thread_name((time / 1500) as u16, time, "renamed")));
}

fn one_name_for_each_thread(run: &mut Run) {
    feed(run, (0..65_536u32).map(|thread| wire::thread_name(thread as u16, 0, "t")));
}

const SCENARIOS: [Scenario; 11] = [
    ("events without names", CallOutput::Events, events_without_names),
    ("events of one name", CallOutput::Events, events_of_one_name),
    ("markers before their turn", CallOutput::Spans, markers_before_their_turn),
    ("numbers with holes", CallOutput::Spans, numbers_with_holes),
    ("deep stacks", CallOutput::Spans, deep_stacks),
    ("stacks that were deep", CallOutput::Spans, stacks_that_were_deep),
    ("small names", CallOutput::Events, small_names),
    ("long names", CallOutput::Events, long_names),
    ("broken names", CallOutput::Events, broken_names),
    ("renames", CallOutput::Events, renames),
    ("one name for each thread", CallOutput::Events, one_name_for_each_thread),
];

#[test]
fn a_run_holds_the_memory_that_its_lease_counts() {
    if !is_in_own_process(a_run_holds_the_memory_that_its_lease_counts) {
        return;
    }
    let mut kept = Vec::new();
    let mut wrong = Vec::new();
    for (name, calls, attack) in SCENARIOS {
        let budget = MemoryBudget::new(1 << 40);
        let before = process_memory("RssAnon");
        for _ in 0..RUNS {
            let mut run = Run::counting(Hq::new(Options { calls, ..Options::default() }, false, budget.clone()));
            run.open(&wire::hello(4));
            run.open(&wire::data_hello(0));
            attack(&mut run);
            run.feed(1, &wire::method(0, "a/B.c;1;()V"));
            kept.push(run);
        }
        let held = process_memory("RssAnon").saturating_sub(before) / RUNS;
        let answered_for = budget.used() / RUNS;
        if held > 2 * answered_for + UNACCOUNTED || answered_for > 80 << 20 {
            wrong.push(format!("{name}: a run holds {held} bytes and answers for {answered_for}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
