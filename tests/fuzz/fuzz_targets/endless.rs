//! Uploads of Endless OS bundles to one listener: each response follows the protocol, and every byte is decoded or lost.
#![cfg_attr(feature = "fuzzer", no_main)]

use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use tributary::decode;
use tributary::memory::MemoryBudget;
use tributary::protocol::endless::{Dedup, EndlessExchange, Options};
use tributary::protocol::{Protocol, Request, RequestHead};
use tributary_fuzz::{Output, Part, Setting, counters, now, origin, parts};

tributary_fuzz::target!(property);

fn property(input: &[u8]) {
    let Some((setting, rest)) = Setting::take(input) else { return };
    let memory = MemoryBudget::new(setting.pick(MEMORY, &[256 << 20, 0, 100_000]));
    let exchange = EndlessExchange::new(options(&setting), &memory);
    let counters = counters(Protocol::Endless);
    let mut output = Output::new();
    let mut elapsed = Duration::from_secs(1);
    for (number, part) in (1..).zip(parts(rest)) {
        let (request, is_plain) = upload(part, number);
        let size = request.body.len() as u64;
        let before = counters.totals().bytes_in;
        let origin = origin(Protocol::Endless, 1);
        let (answer, _) =
            decode::answer(&exchange, request, origin, &counters, now(elapsed), &mut |batch| output.take(&batch));
        output.check_totals([&counters.totals()]);
        assert!([200, 400, 413, 503].contains(&answer.status), "{}", answer.status);
        if is_plain && size > 0 {
            assert_eq!(counters.totals().bytes_in - before, size);
            // A valid upload gets a 200 response (rule 5).
            assert!(answer.status == 200 || size > MAX_BODY || setting.byte(MEMORY) != 0, "{}", answer.status);
        }
        elapsed += setting.pause(PAUSE, number as usize);
    }
    drop(exchange);
    assert_eq!(memory.used(), 0, "all memory is released");
}

/// Indices of bytes in the setting.
const PAUSE: usize = 0;
const MEMORY: usize = 1;
const SIZES: usize = 2;
const DEDUP: usize = 3;

/// Selected by the order of a part: its version, and changes of the bundle before it is sent.
const VERSIONS: [u8; 4] = [3, 2, 1, 0];
const COMPRESSED: u8 = 4;
const CLAIMED_COMPRESSED: u8 = 8;
const WRONG_HASH: u8 = 0x10;

/// One limit for all inputs: this target does not search for differences of one byte around a limit.
const MAX_BODY: u64 = 8_192;

fn options(setting: &Setting) -> Options {
    let sizes = [(16 << 20, 256 << 10, 64 << 10), (4096, 1024, 1024), (65_536, 1500, 20)];
    let (inflated, payload, channel) = setting.pick(SIZES, &sizes);
    let (entries, seconds) = setting.pick(DEDUP, &[(100_000, 48 * 3600), (0, 48 * 3600), (2, 48 * 3600), (100, 2)]);
    Options {
        max_body_bytes: MAX_BODY,
        max_inflated_bytes: inflated,
        max_payload_bytes: payload,
        max_channel_bytes: channel,
        dedup: Dedup { entries, time: Duration::from_secs(seconds) },
        ..Options::default()
    }
}

/// An agent's request with a bundle, and whether it carries the plain bundle under its own hash.
fn upload(part: Part<'_>, number: u64) -> (Request, bool) {
    let has = |flag| part.order & flag != 0;
    let hash = ring::digest::digest(&ring::digest::SHA512, part.bytes);
    let digits: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let target = format!("/{}/{}", VERSIONS[usize::from(part.order & 3)], digits);
    let target = if has(WRONG_HASH) { target.replace('0', "1") } else { target };
    let body = if has(COMPRESSED) {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(part.bytes).expect("memory takes everything");
        encoder.finish().expect("memory takes everything")
    } else {
        part.bytes.to_vec()
    };
    let is_compressed = has(COMPRESSED) || has(CLAIMED_COMPRESSED);
    let headers = is_compressed.then(|| ("x-endless-content-encoding".to_owned(), b"gzip".to_vec()));
    let head = RequestHead { method: "PUT".to_owned(), target, headers: headers.into_iter().collect() };
    (Request { head, body: body.into(), number }, !is_compressed && !has(WRONG_HASH))
}
