//! Uploads of Endless machines whose events can be recognised.

use std::collections::BTreeMap;

use ring::digest::{SHA512, digest};
use zgvariant::serialized::Context;
use zgvariant::{LE, Variant, to_bytes};

/// Events of an upload.
pub const EVENTS: u64 = 3;

/// The text by which events of an upload are recognised: their `os.version`.
pub fn mark(upload: u64, event: u64) -> String {
    format!("n-{upload}-{event}")
}

/// A request with an upload, version 3 of the protocol, whose events each have so many bytes of text. A machine that has sent it so
/// many times before has set its clocks again.
pub fn upload(number: u64, bytes: usize, times: u32) -> Vec<u8> {
    type Singular = (Vec<u8>, String, i64, Option<Variant<'static>>);
    type Aggregate = (Vec<u8>, String, String, u32, Option<Variant<'static>>);
    // The id of UpdaterFailure, whose payload is two texts.
    let id = vec![0x92, 0x7d, 0x0f, 0x61, 0x48, 0x90, 0x49, 0x12, 0xa5, 0x13, 0xb2, 0xcb, 0x02, 0x05, 0x90, 0x8f];
    let text = "x".repeat(bytes);
    let singular: Vec<Singular> = (0..EVENTS)
        .map(|event| {
            let payload = Variant::from(("eos-updater".to_owned(), text.clone()));
            (id.clone(), mark(number, event), number as i64 * 1000 + event as i64, Some(payload))
        })
        .collect();
    let site: BTreeMap<&str, &str> = BTreeMap::new();
    let now = 1_700_000_000_000_000_000_i64 + i64::from(times) * 1_000_000_000;
    let bundle = (now, now, "eos-eos6.0-amd64-amd64.240115-103012.base", site, 0_u8, singular, Vec::<Aggregate>::new());
    let body = to_bytes(Context::new(LE, 0), &bundle).unwrap().bytes().to_vec();
    let hash: String = digest(&SHA512, &body).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let head = format!("PUT /3/{hash} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), &body].concat()
}
