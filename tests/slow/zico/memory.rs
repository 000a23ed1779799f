//! ZICO: memory that peers can cause. One test in a process of its own, so that no other test affects the figure.

use crate::hostile_support::{is_in_own_process, process_memory};
use crate::zico_support::cbor::{array, gen1, gen2, int, reference, tag, text};
use crate::zico_support::offline::Offline;
use tributary::event::{Batch, Kind};
use tributary::memory::MemoryBudget;
use tributary::protocol::zico::{Options, ZicoExchange};

const MIB: u64 = 1 << 20;
const OWN: (&str, &str) = ("X-Zorka-Session-Id", "00c0ffee12345678");
const RESET: (&str, &str) = ("X-Zorka-Session-Reset", "true");

/// Counts of the events of a body.
#[derive(Default)]
struct Out {
    spans: u64,
    logs: u64,
    losses: u64,
    largest_batch: usize,
}

fn submit(offline: &mut Offline, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Out) {
    let mut out = Out::default();
    let (response, _) = offline.ask_taking(path, headers, body, &mut |batch: Batch| {
        out.spans += batch.count(Kind::Span);
        out.logs += batch.count(Kind::Log);
        out.losses += batch.count(Kind::Loss);
        out.largest_batch = out.largest_batch.max(batch.memory_bytes());
    });
    assert_eq!(offline.counters.totals().buffered(), 0);
    (response.status, out)
}

/// Checks the peak memory of a job beyond the memory before it, without the body itself.
fn peak(what: &str, most: u64, mut job: impl FnMut()) {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = process_memory("VmRSS");
    job();
    let used = process_memory("VmHWM").saturating_sub(before);
    println!("{what}: {} MiB", used / MIB);
    assert!(used < most, "{what}: {} MiB", used / MIB);
}

#[test]
fn traces_of_any_size_and_shape_take_bounded_memory() {
    if !is_in_own_process(traces_of_any_size_and_shape_take_bounded_memory) {
        return;
    }
    let mut offline = Offline::new(Options::default());
    let strings = [(1, "a.B"), (2, "run"), (3, "()V"), (7, "http"), (10, "x")];
    let definitions: Vec<u8> = strings.iter().flat_map(|(id, text)| gen2::string(*id, text)).collect();
    let long = gen2::string(11, &"long".repeat(16 << 10));
    let definitions = [definitions, gen2::method(1, [1, 2, 3]), long].concat();
    assert_eq!(submit(&mut offline, "/agent/submit/agd", &[OWN, RESET], &definitions).0, 202);
    let gen1_session = [("X-Zorka-Session-UUID", "5e5e")];
    let mut recorded = Offline::recorded();
    let body = strings.iter().flat_map(|(id, text)| gen1::string(*id, text, 0)).chain(gen1::method(1, [1, 2, 3]));
    assert_eq!(submit(&mut recorded, "/agent/submit/agd", &gen1_session, &body.collect::<Vec<_>>()).0, 202);

    // 16 MB of a normal trace: one record with hundreds of thousands of children, each with an attribute.
    let child =
        [gen1::open(110, 1), gen1::attributes(&[(reference(10), text("/orders/4711"))]), gen1::close(120, 1)].concat();
    let count = 16_000_000 / child.len();
    let trace =
        [gen1::open(100, 1), gen1::begin(1_700_000_000_000, 7), child.repeat(count), gen1::close(200, 1)].concat();
    peak("a trace of 16 MB", 32 * MIB + trace.len() as u64, || {
        let (status, out) = submit(&mut recorded, "/agent/submit/trc", &gen1_session, &trace);
        assert_eq!((status, out.spans, out.losses), (202, count as u64 + 1, 0));
        assert!(out.largest_batch < 4 << 20, "{}", out.largest_batch);
    });
    drop(trace);

    // As many open records as a body can have: the excess is a loss, and the others are emitted.
    let deep = gen2::open(1, 1).repeat(4 << 20 >> 2);
    peak("open records", 160 * MIB, || {
        let (status, out) = submit(&mut offline, "/agent/submit/trc", &[OWN], &deep);
        assert_eq!((status, out.losses), (202, 1));
        assert!(out.spans > 200_000, "{}", out.spans);
    });
    drop(deep);

    // Very many attributes of one record, in one item and in many.
    for (what, items) in [
        ("attributes", gen2::attribute(10, int(1)).repeat(4 << 20 >> 2)),
        (
            "a long map",
            gen2::attribute(10, [vec![0xBF], [int(1), int(1)].concat().repeat(2 << 20), vec![0xFF]].concat()),
        ),
        ("a long list", gen2::attribute(10, [vec![0x9F], vec![0; 16 << 20], vec![0xFF]].concat())),
    ] {
        let body = [gen2::open(1, 1), items, gen2::close(2, 1, None)].concat();
        peak(what, 96 * MIB + body.len() as u64, || {
            let (status, out) = submit(&mut offline, "/agent/submit/trc", &[OWN], &body);
            assert_eq!((status, out.spans), (202, 1), "{what}");
            assert!(out.losses > 0, "{what}");
        });
    }

    // A few bytes that refer to long texts: as attributes, and as frames of a stack.
    let mut named = Offline::recorded();
    let symbols = [gen1::string(1, &"long".repeat(16 << 10), 0), gen1::method(1, [1, 1, 1])].concat();
    assert_eq!(submit(&mut named, "/agent/submit/agd", &gen1_session, &symbols).0, 202);
    let list = array(&vec![reference(1); 100_000]);
    let frame = array(&[int(1), int(1), int(1), int(1)]);
    let exception = tag(0x22, array(&[int(1), reference(1), reference(1), int(0), array(&vec![frame; 100_000])]));
    let body = [gen1::open(1, 1), gen1::attributes(&[(text("k"), list)]), exception, gen1::close(2, 1)].concat();
    peak("long texts", 64 * MIB, || {
        let (status, out) = submit(&mut named, "/agent/submit/trc", &gen1_session, &body);
        assert_eq!((status, out.spans, out.logs, out.losses), (202, 1, 1, 0));
        assert!(out.largest_batch < 16 << 20, "{}", out.largest_batch);
    });

    // The same, if they must be kept for a further part.
    let mut parked = Offline::recorded();
    let options = Options { max_open_bytes: 8 << 20, ..Options::default() };
    parked.exchange = ZicoExchange::recorded(options, false, &MemoryBudget::new(256 << 20));
    assert_eq!(submit(&mut parked, "/agent/submit/agd", &gen1_session, &symbols).0, 202);
    let in_trace = [gen1_session[0], ("X-Zorka-Trace-UUID", "5e5e0000-0000-4000-8000-000000000006")];
    let list = gen1::attributes(&[(text("k"), array(&vec![reference(1); 50_000]))]);
    for open in [
        gen1::open(1, 1).repeat(1_000),
        [gen1::open(1, 1), list].concat(),
        [gen1::open(1, 1), gen1::begin(1, 1)].concat().repeat(500),
    ] {
        peak("open records with long names", 48 * MIB, || {
            let (status, out) = submit(&mut parked, "/agent/submit/trc", &in_trace, &open);
            assert_eq!(status, 202);
            assert!(out.spans > 0, "they are emitted instead of waiting");
        });
    }

    // Definitions over their limits are a loss, the others are valid.
    let ids = (0..220_000).flat_map(|id| gen2::string(id, "s")).collect::<Vec<_>>();
    let mut defining = Offline::new(Options { max_symbols: 200_000, ..Options::default() });
    peak("200,000 symbols", 80 * MIB, || {
        let (status, out) = submit(&mut defining, "/agent/submit/agd", &[OWN, RESET], &ids);
        assert_eq!(status, 202);
        assert!(out.losses > 0);
    });
}
