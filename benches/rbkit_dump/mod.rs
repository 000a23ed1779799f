//! The objects of a heap dump, in MessagePack.
#![allow(missing_docs, unreachable_pub)]

pub const OBJECTS: u64 = 20_000;

/// Objects as agents dump them: three of a hundred have a place, one in seven has no reference.
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
