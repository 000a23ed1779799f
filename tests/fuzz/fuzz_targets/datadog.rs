//! A Datadog connection: every byte is decoded or lost, every owner object becomes one event, and cuts change no event.
#![cfg_attr(feature = "fuzzer", no_main)]

use std::time::Duration;

use tributary::decode::Offline;
use tributary::event::Reason;
use tributary::memory::MemoryBudget;
use tributary::protocol::Protocol;
use tributary::protocol::datadog::{DatadogSession, ListLayout, Options};
use tributary_fuzz::hostile::wire::walk;
use tributary_fuzz::{Output, Setting, counters, now, origin, pieces};

tributary_fuzz::target!(property);

fn property(input: &[u8]) {
    let Some((setting, stream)) = Setting::take(input) else { return };
    let whole = receive(&setting, stream, 0);
    if setting.byte(PAUSE) == 0 {
        for cut in [1, setting.byte(CUT)].iter().filter(|cut| **cut > 1 || stream.len() < 2000) {
            whole.check_same(&receive(&setting, stream, *cut), "in pieces");
        }
    }
}

/// Indices of bytes in the setting.
const CUT: usize = 0;
const PAUSE: usize = 1;
const END: usize = 2;
const FLAGS: usize = 3;
const MESSAGE: usize = 4;
const MEMORY: usize = 5;
const CACHE: usize = 6;
const WAITING: usize = 7;
const RECORD: usize = 8;
const TEXT: usize = 9;

fn options(setting: &Setting) -> Options {
    let mut options = Options::default();
    if setting.flag(FLAGS, 0) {
        options.list_layout = ListLayout::Padded32;
    }
    let cache = [(1024, 65_536, 8 << 20), (0, 4, 2000), (3, 3, 300), (1, 1, 8 << 20), (0, 8, 1000)];
    (options.string_cache.min_entries, options.string_cache.max_entries, options.string_cache.bytes) =
        setting.pick(CACHE, &cache);
    let waiting = [(4096, 8 << 20, 10_000), (0, 8 << 20, 10_000), (4, 5000, 100), (6, 1000, 0), (4096, 0, 10_000)];
    let (records, bytes, millis) = setting.pick(WAITING, &waiting);
    (options.waiting.records, options.waiting.bytes) = (records, bytes);
    options.waiting.time = Duration::from_millis(millis);
    let record = [(4096, 1 << 20, 4096), (3, 1 << 20, 1), (4096, 300, 4096), (20, 1, 0)];
    (options.max_record_entries, options.max_record_bytes, options.max_traces) = setting.pick(RECORD, &record);
    let (text, kept) = setting.pick(TEXT, &[(0, 65_536), (1, 65_536), (7, 0), (30, 5), (0, 40)]);
    options.kept_string_bytes = kept;
    if text > 0 {
        (options.max_text.name, options.max_text.service, options.max_text.type_) = (text, text, text);
        (options.max_text.key, options.max_text.value, options.max_text.resource) = (text, 2 * text, text);
    }
    options
}

fn receive(setting: &Setting, stream: &[u8], cut: u8) -> Output {
    let options = options(setting);
    let cut = if setting.byte(PAUSE) == 0 { cut } else { setting.byte(CUT) };
    let is_padded = options.list_layout == ListLayout::Padded32;
    let max_message = setting.pick(MESSAGE, &[16 << 20, 1, 40, 300]);
    let memory = MemoryBudget::new(setting.pick(MEMORY, &[256 << 20, 0, 70_000]));
    let definitions = setting.flag(FLAGS, 1);
    let session = DatadogSession::new(options, max_message, definitions, &memory);
    let counters = counters(Protocol::Datadog);
    let mut output = Output::new();
    let mut elapsed = Duration::ZERO;
    let mut offline = Offline::new(session, origin(Protocol::Datadog, 1), counters.clone());
    for (number, piece) in pieces(stream, cut).enumerate() {
        offline.feed(piece, now(elapsed), &mut |batch| output.take(&batch));
        let paused = setting.pause(PAUSE, number);
        if !paused.is_zero() {
            elapsed += paused;
            offline.pass_time(now(elapsed), &mut |batch| output.take(&batch));
        }
        assert!(counters.totals().buffered() >= 0, "more is accounted for than has come");
    }
    offline.finish(setting.end(END), now(elapsed), &mut |batch| output.take(&batch));
    let totals = counters.totals();
    output.check_totals([&totals]);
    output.check_offsets(|_| stream.len() as u64);
    assert_eq!(memory.used(), 0, "its memory is given back");

    let walk = walk(stream, max_message, is_padded);
    let is_cut_record = |reason| reason == Reason::TooLarge.index();
    let cut_bytes: u64 = output
        .losses()
        .filter(|(_, loss)| loss.events.is_some() && is_cut_record(loss.reason))
        .map(|(_, loss)| loss.bytes)
        .sum();
    assert_eq!(totals.bytes_decoded + cut_bytes, walk.good as u64, "what can be decoded is");
    let (defined, records): (Vec<_>, Vec<_>) =
        output.lines.iter().filter(|line| line.loss.is_none()).partition(|line| line.is_debug);
    let late = totals.warnings.get("late_list").copied().unwrap_or(0);
    assert_eq!(records.len() as u64, walk.owners + late, "one event for each owner");
    assert_eq!(defined.len() as u64, if definitions { walk.strings } else { 0 }, "one event for each definition");
    output
}
