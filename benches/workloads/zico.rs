//! A body of definitions, and a body of traces: calls to a depth of 20, some with attributes.

use std::hint::black_box;

use bytes::Bytes;
use tributary_codec::cbor::Reader;
use tributary_driver::decode;
use tributary_protocol::{Request, RequestHead};
use tributary_zico::wire::{self, Order, ZicoDialect};
use tributary_zico::{Options, ZicoExchange};

use super::{EVENTS, NOW, Workload, budget, origin};

/// Records of a trace; each calls the next. For libraries that read documents a trace is one deeply nested item, and
/// ciborium's default limit is 127.
pub const DEPTH: u64 = 20;

pub fn trace(dialect: ZicoDialect) -> Workload {
    let (name, session) = match dialect {
        ZicoDialect::Gen2 => ("zico gen2", "x-zorka-session-id"),
        _ => ("zico gen1", "x-zorka-session-uuid"),
    };
    let records = records(dialect);
    let bodies = [("agd", definitions(dialect)), ("trc", records.clone())].map(|(path, body)| {
        let headers = vec![(session.to_owned(), b"00c0ffee12345678".to_vec())];
        let head = RequestHead { method: "POST".to_owned(), target: format!("/agent/submit/{path}"), headers };
        (head, Bytes::from(body))
    });
    Workload::new(name, bodies[1].1.len(), move |counters, take| {
        let exchange = ZicoExchange::recorded(Options::default(), false, &budget());
        for (head, body) in &bodies {
            let request = Request { head: head.clone(), body: body.clone(), number: 1 };
            let take = &mut |batch| take(batch);
            let (answer, _) = decode::answer(&exchange, request, origin(counters.protocol()), counters, NOW, take);
            assert_eq!(answer.status, 202);
        }
    })
    .read_by(move || entries(&records, dialect))
}

/// Reads the items of traces as the decoder does.
pub fn entries(body: &[u8], dialect: ZicoDialect) -> usize {
    let (mut reader, mut order, mut entries) = (Reader::new(body), Order::Little, 0);
    while !reader.is_at_end() {
        black_box(wire::entry(&mut reader, dialect, &mut order).unwrap());
        entries += 1;
    }
    entries
}

fn definitions(dialect: ZicoDialect) -> Vec<u8> {
    let is_gen2 = dialect == ZicoDialect::Gen2;
    let mut definitions = Vec::new();
    let strings = [(1, "com.example.shop.checkout.Cart"), (2, "total"), (3, "(ILjava/lang/String;)V"), (7, "http")];
    for (id, text) in strings.into_iter().chain([(10, "http.url"), (11, "http.status")]) {
        definitions.extend_from_slice(&[0xC1, if is_gen2 { 0x82 } else { 0x83 }, id, 0x60 + text.len().min(23) as u8]);
        if text.len() > 23 {
            definitions.pop();
            definitions.extend_from_slice(&[0x78, text.len() as u8]);
        }
        definitions.extend_from_slice(text.as_bytes());
        definitions.extend_from_slice(if is_gen2 { &[] } else { &[0] });
    }
    definitions.extend_from_slice(&[0xC2, 0x84, 9, 1, 2, 3]);
    definitions
}

pub fn records(dialect: ZicoDialect) -> Vec<u8> {
    let is_gen2 = dialect == ZicoDialect::Gen2;
    let mut body = Vec::new();
    for number in 0..EVENTS / DEPTH {
        for call in 0..DEPTH {
            if is_gen2 {
                body.extend_from_slice(b"\xc3\x9f\x1b");
                body.extend_from_slice(&(1_326_258_996_611 + number).to_be_bytes());
                body.push(9);
            } else {
                body.extend_from_slice(b"\xc8\x9f\xcb\x48");
                body.extend_from_slice(&(9 << 40 | number).to_le_bytes());
            }
            if call == 0 {
                body.extend_from_slice(if is_gen2 { b"\xc5" } else { b"\xd8\x21" });
                body.extend_from_slice(b"\x82\x1b\x00\x00\x01\x8b\xcf\xe5\x68\x00\x07");
            }
            if call % 4 == 1 {
                let gen1 = b"\xc9\xa2\xc6\x0a\x6c/orders/4711\xc6\x0b\x18\xc8";
                let gen2 = b"\xc6\x82\x0a\x6c/orders/4711\xc6\x82\x0b\x63200";
                body.extend_from_slice(if is_gen2 { gen2 } else { gen1 });
            }
        }
        for _ in 0..DEPTH {
            if is_gen2 {
                body.extend_from_slice(b"\xc4\x83\x1b");
                body.extend_from_slice(&(1_326_258_999_611 + number).to_be_bytes());
                body.extend_from_slice(b"\x01\x19\x21\x08\xff");
            } else {
                body.extend_from_slice(b"\xcd\x48");
                body.extend_from_slice(&((1 << 40) | (number + 9)).to_le_bytes());
                body.push(0xFF);
            }
        }
    }
    body
}
