//! Requests of Zorka agents to one listener, as bytes with heads, and connections of packets in pieces: the bytes of every body and
//! packet are decoded or lost.
#![cfg_attr(feature = "fuzzer", no_main)]

use std::time::Duration;

use tributary::decode::{self, OfflinePackets};
use tributary::memory::MemoryBudget;
use tributary::protocol::Protocol;
use tributary::protocol::zico::{Options, ZicoExchange};
use tributary_fuzz::{Output, Setting, counters, now, origin, parts, pieces};

tributary_fuzz::target!(property);

fn property(input: &[u8]) {
    let Some((setting, rest)) = Setting::take(input) else { return };
    let memory = MemoryBudget::new(setting.pick(MEMORY, &[256 << 20, 0, 100_000]));
    let exchange = ZicoExchange::recorded(options(&setting), setting.flag(FLAGS, 0), &memory);
    let counters = counters(Protocol::Zico);
    let mut output = Output::new();
    let mut elapsed = Duration::from_secs(1);
    for (number, part) in (1..).zip(parts(rest)) {
        let origin = origin(Protocol::Zico, number);
        if let Some(mut packets) = OfflinePackets::of(&exchange, part.bytes, origin.clone(), counters.clone()) {
            let take = &mut |batch| output.take(&batch);
            for piece in pieces(part.bytes, part.order) {
                for answer in packets.feed(piece, now(elapsed), take) {
                    assert_eq!(answer.bytes.len(), 18);
                }
            }
            packets.finish(now(elapsed), take);
            output.check_totals([&counters.totals()]);
            continue;
        }
        match decode::requests(part.bytes) {
            None => decode::cut(part.bytes, origin.clone(), &counters, now(elapsed), &mut |batch| output.take(&batch)),
            Some(requests) => {
                for request in requests {
                    let take = &mut |batch| output.take(&batch);
                    let (answer, aside) =
                        decode::answer(&exchange, request, origin.clone(), &counters, now(elapsed), take);
                    assert!((200..=599).contains(&answer.status), "{}", answer.status);
                    assert!(aside.is_none() || output.losses().next().is_some(), "quarantined without a loss");
                    output.check_totals([&counters.totals()]);
                }
            }
        }
        elapsed += Duration::from_secs(PAUSES[usize::from(part.order & 3)]);
        decode::tick(&exchange, origin, &counters, now(elapsed), &mut |batch| output.take(&batch));
    }
    let origin = origin(Protocol::Zico, 0);
    decode::finish(&exchange, origin, &counters, now(elapsed), &mut |batch| output.take(&batch));
    output.check_totals([&counters.totals()]);
    drop(exchange);
    assert_eq!(memory.used(), 0, "all memory is released");
}

/// Indices of bytes in the setting.
const FLAGS: usize = 0;
const MEMORY: usize = 1;
const SIZES: usize = 2;
const SYMBOLS: usize = 3;

/// Selected by the order of a part: seconds that pass after it.
const PAUSES: [u64; 4] = [0, 2, 400, 200_000];

fn options(setting: &Setting) -> Options {
    let usual = Options::default();
    let sizes = [(16 << 20, 1 << 20, 64 << 20), (1024, 1024, 64 << 10), (65_536, 30, 500), (16 << 20, 1 << 20, 0)];
    let symbols = [(10_000, 1_000_000, 16 << 20, 64 << 10), (1, 5, 65_536, 16), (2, 1_000_000, 200, 64 << 10)];
    let (max_inflated_bytes, max_record_bytes, max_open_bytes) = setting.pick(SIZES, &sizes);
    let (max_sessions, max_symbols, max_symbol_bytes, max_text_bytes) = setting.pick(SYMBOLS, &symbols);
    Options {
        max_inflated_bytes,
        max_record_bytes,
        max_open_bytes,
        max_sessions,
        max_symbols,
        max_symbol_bytes,
        max_text_bytes,
        max_record_depth: setting.pick(SIZES, &[2000, 3, 1, 100]),
        max_remembered: setting.pick(FLAGS, &[4096, 4096, 0, 1]),
        ..usual
    }
}
