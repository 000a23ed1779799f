//! Input of a subscription: messages with objects and stacks that a real process published, and a heap dump.

use std::fs;
use std::hint::black_box;

use tributary_codec::msgpack::Reader;
use tributary_rbkit::{AgentOptions, Channel, Options, Player, RbkitAgent, Subscription};

use super::{Workload, connection};

/// Two profiles of a real process: 914 objects created and 2,427 destroyed, then 204 stacks.
const RECORDED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/rbkit/sessions/master-2.1-memory-then-cpu");
pub const OBJECTS: u64 = 20_000;

/// Objects and stacks mixed. A handshake comes first, so that events name their process.
pub fn events() -> Workload {
    let mut files: Vec<_> = fs::read_dir(RECORDED).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let bodies = |kind: &str| {
        let of_kind = files.iter().filter(|file| file.to_str().unwrap().ends_with(kind));
        of_kind.map(|file| fs::read(file).unwrap()).collect::<Vec<_>>()
    };
    let (handshake, mut wire) = (bodies("-rep-handshake.msgpack").remove(0), greeting());
    let bodies = bodies("-pub-events.msgpack");
    bodies.iter().for_each(|body| message(body, &mut wire));
    Workload::new("rbkit", wire.len(), move |counters, take| {
        let agent = RbkitAgent::new(AgentOptions::default());
        let introduction =
            Player::new(agent.clone(), Options::default().into(), 16 << 20, &handshake, Some(Channel::Rep), false);
        connection(introduction, counters, &handshake, take);
        connection(Subscription::new(agent, Options::default().into(), 16 << 20), counters, &wire, take);
    })
    .read_by(move || bodies.iter().map(|body| items(body)).sum())
}

pub fn heap_dump() -> Workload {
    let count = (OBJECTS as u32).to_be_bytes();
    let head = [&[0x83, 0, 7, 9, 0, 2, 0x91, 0x84, 0, 5, 10, 1, 11, 0xCE][..], &count, &[2]].concat();
    let (objects, mut wire) = (dump(), greeting());
    message(&[&head[..], &objects].concat(), &mut wire);
    Workload::new("rbkit heap dump", wire.len(), move |counters, take| {
        let agent = RbkitAgent::new(AgentOptions::default());
        connection(Subscription::new(agent, Options::default().into(), 16 << 20), counters, &wire, take);
    })
    .read_by(move || items(&objects))
}

fn items(body: &[u8]) -> usize {
    let (mut reader, mut items) = (Reader::new(body, 0), 0);
    while !reader.is_at_end() {
        black_box(reader.next("item").unwrap());
        items += 1;
    }
    items
}

/// Greeting and READY of a publishing socket.
fn greeting() -> Vec<u8> {
    let mut wire = vec![0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 1];
    wire.extend_from_slice(b"NULL");
    wire.resize(64, 0);
    wire.extend_from_slice(b"\x04\x19\x05READY\x0BSocket-Type\0\0\0\x03PUB");
    wire
}

/// Appends a message of one long frame.
fn message(body: &[u8], wire: &mut Vec<u8>) {
    wire.push(2);
    wire.extend_from_slice(&(body.len() as u64).to_be_bytes());
    wire.extend_from_slice(body);
}

/// Objects as agents dump them: three of a hundred have a file and line, one in seven has no reference.
pub fn dump() -> Vec<u8> {
    let mut wire = vec![0xdd];
    wire.extend_from_slice(&(OBJECTS as u32).to_be_bytes());
    let put_id = |wire: &mut Vec<u8>, number: u64| {
        wire.push(0xcf);
        wire.extend_from_slice(&(70_303_908_344_340 + 20 * number).to_be_bytes());
    };
    let put_text = |wire: &mut Vec<u8>, text: &str| {
        match text.len() {
            length @ 0..32 => wire.push(0xa0 | length as u8),
            length => wire.extend_from_slice(&[0xda, 0, length as u8]),
        }
        wire.extend_from_slice(text.as_bytes());
    };
    for number in 0..OBJECTS {
        wire.extend_from_slice(&[0x86, 3]);
        put_id(&mut wire, number);
        wire.push(4);
        put_text(&mut wire, ["String", "Array", "Hash", "RubyVM::InstructionSequence", "Class"][number as usize % 5]);
        let references = number % 7;
        wire.extend_from_slice(&[5, 0x90 | references as u8]);
        (0..references).for_each(|other| put_id(&mut wire, (number * 31 + other) % OBJECTS));
        wire.push(6);
        if number % 100 < 3 {
            put_text(&mut wire, "/srv/webshop/app/models/concerns/priced.rb");
            wire.extend_from_slice(&[7, 0xcc, 200]);
        } else {
            wire.extend_from_slice(&[0xc0, 7, 0xc0]);
        }
        wire.extend_from_slice(&[8, 40]);
    }
    wire
}
