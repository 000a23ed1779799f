//! The conservation law of a run, for any content, cuts, order and ends of its connections: every byte is decoded or
//! reported as lost, and every numbered message becomes one event, one span or one loss.

use std::sync::Arc;
use std::time::Duration;

use crate::bytefrog_law_support::conversation::{Conversation, conversation};
use crate::bytefrog_law_support::law::{self, Walk, walk};
use crate::bytefrog_law_support::{Finished, Run};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tributary::memory::MemoryBudget;
use tributary::protocol::End;
use tributary::protocol::bytefrog::{CallOutput, DictionaryLimits, Hq, Options, Order};

/// Limits, and whether captures or live connections are decoded.
#[derive(Clone, Debug)]
struct Setting {
    options: Options,
    emit_definitions: bool,
    memory: u64,
    is_offline: bool,
}

impl Setting {
    fn start(&self) -> (Run, Arc<MemoryBudget>) {
        let Setting { options, emit_definitions, memory, is_offline } = self;
        let memory = MemoryBudget::new(*memory);
        let hq = match is_offline {
            true => Hq::offline(options.clone(), *emit_definitions, memory.clone(), None),
            false => Hq::new(options.clone(), *emit_definitions, memory.clone()),
        };
        (Run::new(hq), memory)
    }
}

fn setting() -> impl Strategy<Value = Setting> {
    let modes = (
        select(vec![Order::Received, Order::Sequence]),
        select(vec![CallOutput::Events, CallOutput::Spans, CallOutput::Both]),
    );
    let millis = |least: u64, usual: u64| prop_oneof![1 => Just(least), 1 => least..50, 2 => Just(usual)];
    let waits = (millis(1, 2000), millis(0, 10_000), millis(0, 200));
    let limits =
        (select(vec![70usize, 1024, 65_536]), select(vec![1usize, 3, 65_536]), select(vec![1usize, 3, 1_000_000]));
    let memory = prop_oneof![1 => 0u64..200_000, 3 => Just(256 << 20)];
    (modes, waits, limits, memory, any::<[bool; 3]>()).prop_map(|((order, calls), waits, limits, memory, flags)| {
        let mut options = Options { order, calls, data_connections: 4, ..Options::default() };
        options.reorder_window = Duration::from_millis(waits.0);
        options.unresolved_wait = Duration::from_millis(waits.1);
        options.rename_wait = Duration::from_millis(waits.2);
        (options.max_waiting, options.max_open_calls) = (limits.0, limits.1);
        options.dictionary.entries = limits.2;
        let [has_tiny_dictionary, emit_definitions, is_offline] = flags;
        if has_tiny_dictionary {
            options.dictionary = DictionaryLimits { bytes: 64 << 10, ..options.dictionary };
        }
        Setting { options, emit_definitions, memory, is_offline }
    })
}

#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    Truncate(Index),
    Insert(Index, Vec<u8>),
    Delete(Index, usize),
    Duplicate(Index, usize),
}

impl Mutation {
    /// Leaves the hello unchanged.
    fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        let at = |index: &Index| 2 + index.index(len - 1);
        match self {
            Mutation::Flip(index, bit) if len > 2 => bytes[2 + index.index(len - 2)] ^= 1 << bit,
            Mutation::Flip(..) => {}
            Mutation::Truncate(index) => bytes.truncate(at(index)),
            Mutation::Insert(index, more) => drop(bytes.splice(at(index)..at(index), more.iter().copied())),
            Mutation::Delete(index, count) => drop(bytes.drain(at(index)..len.min(at(index) + count))),
            Mutation::Duplicate(index, count) => {
                let part = bytes[at(index)..len.min(at(index) + count)].to_vec();
                bytes.splice(at(index)..at(index), part);
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        4 => (any::<Index>(), 0u8..8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        2 => any::<Index>().prop_map(Mutation::Truncate),
        1 => (any::<Index>(), vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        1 => (any::<Index>(), 1usize..40).prop_map(|(at, count)| Mutation::Delete(at, count)),
        2 => (any::<Index>(), 1usize..80).prop_map(|(at, count)| Mutation::Duplicate(at, count)),
    ]
}

/// A piece of a connection: which, how many bytes, and the milliseconds that pass after it.
type Piece = (u8, u16, u16);

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let length = prop_oneof![3 => 1u16..60, 1 => 1u16..3000];
    let pause = prop_oneof![4 => Just(0u16), 1 => 0u16..300, 1 => 0u16..12_000];
    vec((any::<u8>(), length, pause), 1..40)
}

fn end() -> impl Strategy<Value = End> {
    select(vec![End::Closed, End::Reset, End::TimedOut, End::TooLarge, End::Stopped])
}

/// Feeds pieces until every stream is empty. A connection without further bytes ends immediately, or at the end.
fn mix(setting: &Setting, streams: &[Vec<u8>], pieces: &[Piece], ends: &[End], ends_early: bool) -> Finished {
    let (mut run, memory) = setting.start();
    let mut cursors = vec![2; streams.len()];
    streams.iter().for_each(|stream| _ = run.open(&stream[..2]));
    for ((which, length, pause), end) in pieces.iter().cycle().zip(ends.iter().cycle()) {
        let open: Vec<_> = (0..streams.len()).filter(|at| cursors[*at] < streams[*at].len()).collect();
        let Some(connection) = open.get(usize::from(*which) % open.len().max(1)) else { break };
        let (stream, from) = (&streams[*connection], cursors[*connection]);
        let to = stream.len().min(from + usize::from(*length));
        run.feed(*connection, &stream[from..to]);
        cursors[*connection] = to;
        run.pass(Duration::from_millis(u64::from(*pause)));
        if ends_early && to == stream.len() {
            run.finish(*connection, *end);
        }
    }
    finish(run, &memory, ends)
}

fn finish(mut run: Run, memory: &MemoryBudget, ends: &[End]) -> Finished {
    for (connection, end) in (0..5).zip(ends.iter().cycle()) {
        if connection < run.connections() && run.is_open(connection) {
            run.finish(connection, *end);
        }
    }
    assert_eq!(run.hq.agents(), [], "the run is over");
    let done = run.end();
    assert_eq!(memory.used(), 0, "its memory is given back");
    done
}

/// The same messages in the same order, in pieces that may also hold the start of the next one. Without cuts,
/// everything that arrives on one connection without interruption arrives in one piece.
fn in_order(setting: &Setting, talk: &Conversation, cuts: &[Index]) -> Finished {
    let (mut run, memory) = setting.start();
    let streams = talk.streams();
    streams.iter().for_each(|stream| _ = run.open(&stream[..2]));
    // The clock of the agent starts before all its times, so every time is final from the start.
    run.pass(Duration::from_secs(100));
    let (mut fed, mut ends) = (vec![2; streams.len()], vec![2; streams.len()]);
    let mut cuts = cuts.iter().cycle();
    let messages = &talk.messages[streams.len()..];
    for (at, (connection, message)) in messages.iter().enumerate() {
        ends[*connection] += message.len();
        let (from, end) = (fed[*connection], ends[*connection]);
        let following = messages[at + 1..].iter().find(|(other, _)| other == connection);
        let to = match cuts.next() {
            Some(cut) => {
                let to = end + following.map_or(0, |(_, message)| cut.index(message.len()));
                let middle = from + cut.index(to - from + 1);
                run.feed(*connection, &streams[*connection][from..middle]);
                run.feed(*connection, &streams[*connection][middle..to]);
                to
            }
            None if messages.get(at + 1).is_some_and(|(next, _)| next == connection) => continue,
            None => {
                run.feed(*connection, &streams[*connection][from..end]);
                end
            }
        };
        fed[*connection] = to;
    }
    finish(run, &memory, &[End::Closed])
}

fn walks(streams: &[Vec<u8>], version: u8) -> (Vec<Walk>, Vec<u64>) {
    let walks = streams.iter().enumerate().map(|(at, stream)| walk(stream, version, at == 0)).collect();
    (walks, streams.iter().map(|stream| stream.len() as u64).collect())
}

fn check_legal(setting: &Setting, talk: &Conversation, done: &Finished) {
    let (walks, sizes) = walks(&talk.streams(), talk.version);
    let written = law::check_run(done, &walks, &sizes, setting.options.calls);
    let mut offsets = vec![0; sizes.len()];
    let mut arrived = Vec::new();
    for (connection, message) in &talk.messages {
        let offset = offsets[*connection];
        offsets[*connection] += message.len() as u64;
        arrived.extend(walks[*connection].numbered.get(&offset).map(|numbered| (*connection, offset, *numbered)));
    }
    law::check_numbers(&arrived, &written, done.warnings("number_after_its_gap"), talk.has_breaks);
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Sorted lines without those of numbers that arrived after their gap was reported, and how many these are: what one call finds is
/// in one line.
fn without_found(text: &str) -> (Vec<&str>, u64) {
    let (found, others): (Vec<_>, Vec<_>) =
        sorted(text).into_iter().partition(|line| line.contains("bytefrog.gap.closed"));
    let events = |line: &&str| -> u64 {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        event["attributes"]["bytefrog.gap.events"].as_u64().unwrap()
    };
    (others, found.iter().map(events).sum())
}

/// The numbered events, in the order in which they were written.
fn numbered(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.contains(r#""kind":"loss""#) && line.contains(r#","sequence":"#)).collect()
}

fn same(whole: &[&str], cut: &[&str]) -> Result<(), TestCaseError> {
    if let Some((whole, cut)) = whole.iter().zip(cut).find(|(whole, cut)| whole != cut) {
        return Err(TestCaseError::fail(format!("{whole} whole, but in pieces {cut}")));
    }
    prop_assert_eq!(whole.len(), cut.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(150), max_shrink_iters: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_numbered_message_is_written_once_for_any_input(
        (talk, setting, pieces) in (conversation(), setting(), pieces()),
        mutations in vec((any::<Index>(), mutation()), 0..4),
        (ends, ends_early) in (vec(end(), 1..6), any::<bool>()),
    ) {
        let mut streams = talk.streams();
        for (which, mutation) in &mutations {
            let at = which.index(streams.len());
            mutation.apply(&mut streams[at]);
        }
        let done = mix(&setting, &streams, &pieces, &ends, ends_early);
        let (walks, sizes) = walks(&streams, talk.version);
        law::check_run(&done, &walks, &sizes, setting.options.calls);
    }

    #[test]
    fn no_cut_changes_the_output_when_no_time_passes(
        (talk, mut setting) in (conversation(), setting()),
        cuts in vec(any::<Index>(), 1..40),
    ) {
        // At a limit, events that are ready and not written yet count, which depends on when the limit is checked.
        (setting.memory, setting.options.max_waiting) = (1 << 40, 65_536);
        let whole = in_order(&setting, &talk, &[]);
        check_legal(&setting, &talk, &whole);
        let cut = in_order(&setting, &talk, &cuts);
        check_legal(&setting, &talk, &cut);
        let Options { rename_wait, unresolved_wait, .. } = setting.options;
        let waits_for_renames = talk.version <= 2 && !rename_wait.is_zero();
        if (talk.has_renames && !waits_for_renames) || (setting.options.is_ordered() && unresolved_wait.is_zero()) {
            // Without a wait for names, an event gets the names that have arrived by then.
            return Ok(());
        }
        let ((all, found), (all_cut, found_cut)) = (without_found(&whole.text), without_found(&cut.text));
        same(&all, &all_cut)?;
        prop_assert_eq!(found, found_cut);
        if whole.warnings("number_after_its_gap") == 0 {
            // An event whose turn has passed is written immediately, whether or not those before it have been written.
            same(&numbered(&whole.text), &numbered(&cut.text))?;
        }
    }

    #[test]
    fn noise_of_any_kind_is_counted_to_the_last_byte(
        streams in vec((vec(any::<u8>(), 0..8), vec(any::<u8>(), 0..60)), 1..5),
        setting in setting(),
        pause in 0u64..1000,
    ) {
        let (mut run, memory) = setting.start();
        for (head, noise) in &streams {
            let connection = run.open(head);
            run.pass(Duration::from_millis(pause));
            run.feed(connection, noise);
        }
        let text = run.end().text;
        text.lines().for_each(|line| drop(serde_json::from_str::<serde_json::Value>(line).unwrap()));
        prop_assert_eq!(memory.used(), 0);
    }
}

/// A few seconds of cases, or as many as `PROPTEST_CASES` sets.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}
