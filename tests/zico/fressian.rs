//! The binary protocol: recorded and hand-made conversations, without a socket.

use std::sync::Arc;

use serde_json::Value;
use tributary::decode::OfflinePackets;
use tributary::event::{Batch, Origin};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::Protocol;
use tributary::protocol::zico::fressian::packet::{HEADER_BYTES, code, packet};
use tributary::protocol::zico::{Options, ZicoExchange};

use crate::zico_support::fressian::{Connection, Conversation, Expected, Known, conversation, expected, found, names};
use crate::zico_support::offline::{Offline, encode};

/// What became of a conversation.
struct Played {
    /// The answers to each connection.
    answers: Vec<Vec<u8>>,
    events: Vec<Value>,
    counters: Arc<ListenerCounters>,
    /// Packets that would go to the quarantine.
    quarantined: usize,
}

/// Plays a conversation in pieces of this size, one connection after the other.
fn play(conversation: &Conversation, piece: usize) -> Played {
    let offline = Offline::recorded();
    let counters = ListenerCounters::new("test".into(), Protocol::Zico);
    let (mut answers, mut events, mut quarantined) = (Vec::new(), Vec::new(), 0);
    for (number, Connection { input, .. }) in (1..).zip(&conversation.connections) {
        let origin = Arc::new(Origin::new("zico", "test".into(), "192.0.2.1:1234".into(), number));
        let mut take = |batch: Batch| {
            let lines = String::from_utf8(encode(&batch)).unwrap();
            events.extend(lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()));
        };
        let packets = OfflinePackets::<ZicoExchange>::of(&offline.exchange, input, origin, counters.clone());
        let (mut packets, mut answered) = (packets.unwrap(), Vec::new());
        for piece in input.chunks(piece) {
            for answer in packets.feed(piece, offline.now(), &mut take) {
                answered.extend(answer.bytes);
                quarantined += usize::from(answer.quarantine_reason.is_some());
            }
        }
        packets.finish(offline.now(), &mut take);
        answers.push(answered);
    }
    Played { answers, events, counters, quarantined }
}

/// The answers to an agent whose collector works: 6 to data without a hello, else 0.
fn answers(connection: &Connection) -> Vec<u8> {
    let mut has_said_hello = false;
    let status = |packet: &Value| {
        has_said_hello |= packet["type"] == "hello";
        if has_said_hello { 0 } else { 6 }
    };
    let statuses = connection.packets.iter().map(status);
    statuses.flat_map(|status| [&[0x21, 0xC0, 0xBA, 0xBE, 0, status][..], &[0; 12]].concat()).collect()
}

fn losses(played: &Played) -> Vec<&Value> {
    played.events.iter().filter(|event| event["kind"] == "loss").collect()
}

#[test]
fn every_conversation_becomes_the_events_that_an_independent_reader_expects() {
    let (mut spans, mut conversations) = (0, 0);
    for name in names() {
        let conversation = conversation(&name);
        let (mut known, mut all) = (Known::default(), Expected::default());
        for (number, connection) in conversation.connections.iter().enumerate() {
            expected(number, connection, &mut known, &mut all);
        }
        for piece in [usize::MAX, 1, 7] {
            let played = play(&conversation, piece);
            for (connection, answered) in conversation.connections.iter().zip(&played.answers) {
                let right = if conversation.is_recorded() { answers(connection) } else { connection.output.clone() };
                assert_eq!(*answered, right, "{name}: answers");
            }
            let events: Vec<Value> = played.events.iter().filter_map(found).collect();
            for (found, expected) in events.iter().zip(&all.events) {
                assert_eq!(found, expected, "{name}, pieces of {piece}");
            }
            assert_eq!(events.len(), all.events.len(), "{name}: {:?}", events.get(all.events.len()));
            let totals = played.counters.totals();
            assert_eq!(totals.repeats.iter().sum::<u64>(), all.repeats, "{name}: repeats");
            assert_eq!(totals.buffered(), 0, "{name}: every byte is decoded or lost");
            let unresolved: u64 = losses(&played)
                .iter()
                .filter(|loss| loss["loss"]["reason"] == "unresolved")
                .map(|loss| loss["loss"]["events"].as_u64().unwrap())
                .sum();
            assert_eq!(unresolved, all.unresolved, "{name}");
            if conversation.is_recorded() {
                let rest: Vec<_> = losses(&played);
                assert!(rest.is_empty(), "{name}: {rest:?}");
            }
        }
        spans += all.events.iter().filter(|event| event.get("span").is_some()).count();
        conversations += 1;
    }
    println!("{conversations} conversations, {spans} spans");
    assert_eq!((conversations, spans > 900), (36, true));
}

/// The packets of a connection: type and content.
fn packets_of(input: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let (mut rest, mut packets) = (input, Vec::new());
    while let Some((header, after)) = rest.split_at_checked(HEADER_BYTES) {
        let length = u32::from_be_bytes(header[6..10].try_into().unwrap()) as usize;
        let (content, after) = after.split_at(length.min(after.len()));
        packets.push((u16::from_be_bytes([header[4], header[5]]), content.to_vec()));
        rest = after;
    }
    packets
}

/// Changes some bytes, or inserts, removes or repeats a few.
fn mutate(content: &mut Vec<u8>, random: &mut impl FnMut(usize) -> usize) {
    const CODES: &[u8] =
        b"\xf7\xef\xa0\xa1\xe4\xe5\xec\xed\xee\xfd\xfe\xc0\xc1\xcd\xcc\x80\xd9\xe2\xe3\xf8\xff\x00\x7f";
    for _ in 0..1 + random(4) {
        let at = random(content.len() + 1);
        let some = (at + random(20)).min(content.len());
        match random(5) {
            0 => content.insert(at, CODES[random(CODES.len())]),
            1 => drop(content.drain(at..some)),
            2 => drop(content.splice(at..at, content[at..some].to_vec()).collect::<Vec<_>>()),
            3 if at < content.len() => content[at] = random(256) as u8,
            _ if at < content.len() => content[at] = CODES[random(CODES.len())],
            _ => {}
        }
    }
}

#[test]
fn every_byte_of_mutated_packets_is_decoded_or_lost_and_all_memory_is_returned() {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below.max(1)
    };
    let (mut connections, mut lost) = (0, 0);
    for conversation in names().iter().map(|name| conversation(name)) {
        // The large ones take long.
        let sent = conversation.connections.iter().filter(|connection| connection.input.len() < 10_000);
        for connection in sent {
            for round in 0..60 {
                let mut packets = packets_of(&connection.input);
                packets.iter_mut().filter(|(kind, _)| *kind == code::DATA).for_each(|(_, content)| {
                    if random(2) == 0 {
                        mutate(content, &mut random);
                    }
                });
                let input: Vec<u8> = packets.iter().flat_map(|(kind, content)| packet(*kind, content)).collect();
                let memory = MemoryBudget::new(64 << 20);
                let options = Options { max_record_depth: 1 + random(40), ..Options::default() };
                let exchange = ZicoExchange::recorded(options, true, &memory);
                let counters = ListenerCounters::new("test".into(), Protocol::Zico);
                let origin = Arc::new(Origin::new("zico", "test".into(), "192.0.2.1:1234".into(), round));
                let packets = OfflinePackets::<ZicoExchange>::of(&exchange, &input, origin, counters.clone());
                let Some(mut packets) = packets else { continue };
                let now = Offline::recorded().now();
                let mut take = |batch: Batch| {
                    let lines = String::from_utf8(encode(&batch)).unwrap();
                    lines.lines().for_each(|line| drop(serde_json::from_str::<Value>(line).unwrap()));
                };
                let answers = packets.feed(&input, now, &mut take);
                assert!(answers.iter().all(|answer| answer.bytes.len() == HEADER_BYTES));
                packets.finish(now, &mut take);
                let totals = counters.totals();
                assert_eq!(totals.buffered(), 0, "{}: {totals:?}", conversation.name);
                drop(exchange);
                assert_eq!(memory.used(), 0);
                connections += 1;
                lost += u64::from(totals.lost() > 0);
            }
        }
    }
    println!("{connections} connections, {lost} with losses");
    assert!(connections > 1500 && lost > connections / 10, "{connections}, {lost}");
}

#[test]
fn what_cannot_be_read_is_a_loss_of_the_right_reason_and_goes_to_the_quarantine_if_it_was_answered_ok() {
    let mut cases = 0;
    for conversation in names().iter().map(|name| conversation(name)).filter(|case| !case.is_recorded()) {
        let name = &conversation.name;
        let played = play(&conversation, usize::MAX);
        let reasons: Vec<_> =
            losses(&played).iter().map(|loss| loss["loss"]["reason"].as_str().unwrap().to_owned()).collect();
        let allowed: Vec<&str> = match &conversation.refusal["loss"] {
            Value::Array(several) => several.iter().map(|one| one.as_str().unwrap()).collect(),
            Value::String(one) => vec![one],
            _ => Vec::new(),
        };
        if name == "data-before-hello" {
            // The agent sends it again: it is none.
            assert!(reasons.is_empty(), "{reasons:?}");
        } else {
            assert_eq!(reasons.is_empty(), allowed.is_empty(), "{name}: {reasons:?}");
            assert!(reasons.iter().all(|reason| allowed.contains(&reason.as_str())), "{name}: {reasons:?}");
        }
        let is_content = name.starts_with("content-") && !conversation.refusal["packet"].is_null();
        assert_eq!(played.quarantined, usize::from(is_content), "{name}: {:?}", losses(&played));
        let secrets = played.events.iter().any(|event| event.to_string().contains("changeme"));
        assert!(!secrets, "{name}: a pass phrase");
        cases += 1;
    }
    assert_eq!(cases, 17);
}
