//! A packet of Fressian with traces: calls to a depth of 20, some with attributes, as in [`super::zico`].

use tributary_driver::decode::OfflinePackets;
use tributary_zico::fressian::packet::{code, packet};
use tributary_zico::{Options, ZicoExchange};

use super::zico::DEPTH;
use super::{EVENTS, NOW, Workload, budget, origin};

pub fn traces() -> Workload {
    let mut data = Vec::new();
    for (id, text) in [(1, "com.example.shop.checkout.Cart"), (2, "total"), (3, "(ILjava/lang/String;)V"), (7, "http")]
    {
        symbol(id, text, &mut data);
    }
    symbol(10, "http.url", &mut data);
    symbol(11, "http.status", &mut data);
    for number in 0..EVENTS / DEPTH {
        trace(number, &mut data);
    }
    let mut hello = Vec::new();
    announced("HelloRequest_v1", 3, &mut hello);
    hello.push(0);
    text("bench", &mut hello);
    text("changeme", &mut hello);
    let wire = [packet(code::HELLO, &hello), packet(code::DATA, &data)].concat();
    Workload::new("zico fressian", wire.len(), move |counters, take| {
        let exchange = ZicoExchange::recorded(Options::default(), false, &budget());
        let packets = OfflinePackets::of(&exchange, &wire, origin(counters.protocol()), counters.clone());
        let answers = packets.map(|mut packets| packets.feed(&wire, NOW, &mut |batch| take(batch)));
        assert!(answers.is_some_and(|answers| answers.iter().all(|answer| answer.bytes[5] == 0)));
    })
}

/// Calls in one another; the struct types 1, 2 are announced with the first trace.
fn trace(number: u64, data: &mut Vec<u8>) {
    for call in 0..DEPTH {
        if number == 0 && call == 0 {
            announced("TraceRecord_v1", 11, data);
        } else {
            data.push(0xA1);
        }
        data.extend_from_slice(&[1, 2, 3, if call == 0 { 2 } else { 0 }]);
        // Nanoseconds, calls, errors.
        data.extend_from_slice(&[0x6A, 0x10, call as u8, 1, 0]);
        if call == 0 {
            if number == 0 {
                announced("TraceMarker_v1", 4, data);
            } else {
                data.push(0xA2);
            }
            data.extend_from_slice(b"\x07\x7b\x8b\xcf\xe5");
            data.extend_from_slice(&(number as u16).to_be_bytes());
            data.extend_from_slice(b"\x00\x08");
        } else {
            data.push(0xF7);
        }
        data.push(0xF7);
        if call % 4 == 1 {
            data.extend_from_slice(b"\xc0\xe8\x0a\xe3\x0c/orders/4711\x0b\x50\xc8");
        } else {
            data.push(0xF7);
        }
        data.push(if call + 1 == DEPTH { 0xF7 } else { 0xE5 });
    }
}

fn symbol(id: u8, name: &str, out: &mut Vec<u8>) {
    if id == 1 {
        announced("Symbol_v1", 2, out);
    } else {
        out.push(0xA0);
    }
    out.push(id);
    text(name, out);
}

fn announced(tag: &str, values: u8, out: &mut Vec<u8>) {
    out.push(0xEF);
    text(&format!("com.jitlogic.zorka.{tag}"), out);
    out.push(values);
}

fn text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&[0xE3, text.len() as u8]);
    out.extend_from_slice(text.as_bytes());
}
