//! An independent reader of the streams of agents: it knows only the table of messages.

use std::collections::{HashMap, HashSet};

/// A message and its numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) kind: u8,
    pub(crate) time: u32,
    /// The number, for messages that have one.
    pub(crate) sequence: Option<u32>,
    /// Method, thread, exception or location, by kind.
    pub(crate) method: u32,
    pub(crate) exception: u32,
    pub(crate) location: u32,
    pub(crate) thread: u16,
    /// Line, flag, mode or count.
    pub(crate) value: u32,
    pub(crate) text: String,
    pub(crate) len: usize,
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// A text behind its length, as Java reads it.
fn text(bytes: &[u8]) -> Option<(String, usize)> {
    let len = number(bytes.get(..2)?) as usize;
    let bytes = bytes.get(2..2 + len)?;
    let mut units = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let (unit, taken) = match bytes[at] {
            one @ 1..0x80 => (u16::from(one), 1),
            two @ 0xC0..0xE0 => (u16::from(two & 0x1F) << 6 | u16::from(bytes[at + 1] & 0x3F), 2),
            three @ 0xE0..0xF0 => {
                let low = u16::from(bytes[at + 1] & 0x3F) << 6 | u16::from(bytes[at + 2] & 0x3F);
                (u16::from(three & 0x0F) << 12 | low, 3)
            }
            other => panic!("byte {other:02x} in a text"),
        };
        units.push(unit);
        at += taken;
    }
    Some((String::from_utf16(&units).unwrap(), 2 + len))
}

/// The message at the front, if it is complete.
pub(crate) fn message(bytes: &[u8], version: u8) -> Option<Message> {
    let kind = *bytes.first()?;
    let exit = if version == 1 { 17 } else { 16 };
    let (fixed, texts) = match kind {
        0 | 30 => (2, 0),
        16 => (6, 0),
        8 => (4, 0),
        9 => (5, 0),
        10 => (7, 1),
        11 | 12 => (5, 1),
        13 => (21, 0),
        14 => (19, 0),
        15 => (9, 0),
        20 => (15, 0),
        21 => (exit, 0),
        22 => (21, 0),
        23 => (19, 0),
        40..=42 | 99 => (1, 1),
        50 => (9, 2),
        other => panic!("message type {other}"),
    };
    let head = bytes.get(..fixed)?;
    let mut len = fixed;
    let mut texts_read = Vec::new();
    for _ in 0..texts {
        let (text, taken) = text(&bytes[len..])?;
        texts_read.push(text);
        len += taken;
    }
    let field = |from: usize, to: usize| number(&head[from..to]);
    let mut message = Message {
        kind,
        time: 0,
        sequence: None,
        method: 0,
        exception: 0,
        location: 0,
        thread: 0,
        value: 0,
        text: texts_read.join("="),
        len,
    };
    if matches!(kind, 14 | 20..=23 | 50) {
        message.time = field(1, 5);
        message.sequence = Some(field(5, 9));
    }
    if matches!(kind, 14 | 20..=23) {
        message.method = field(9, 13);
        message.thread = field(fixed - 2, fixed) as u16;
    }
    match kind {
        0 | 30 | 8 => message.value = u32::from(head[1]),
        9 => message.value = field(1, 5),
        10 => (message.thread, message.time) = (field(1, 3) as u16, field(3, 7)),
        11 => message.method = field(1, 5),
        12 => message.exception = field(1, 5),
        13 => (message.location, message.method, message.value) = (field(1, 5), field(5, 9), field(9, 13)),
        14 => message.location = field(13, 17),
        15 => (message.method, message.value) = (field(1, 5), field(5, 9)),
        16 => message.value = field(2, 6),
        21 => message.value = field(13, fixed - 2),
        22 => (message.exception, message.value) = (field(13, 17), field(17, 19)),
        23 => message.exception = field(13, 17),
        _ => {}
    }
    Some(message)
}

/// Every message of a stream, which ends with a complete one.
pub(crate) fn messages(stream: &[u8], version: u8) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut at = 0;
    while let Some(message) = message(&stream[at..], version) {
        at += message.len;
        messages.push(message);
    }
    assert_eq!(at, stream.len(), "a message is cut short");
    messages
}

/// The numbered messages of all streams, in the order of their numbers.
pub(crate) fn numbered(streams: &[Vec<Message>]) -> Vec<&Message> {
    let mut numbered: Vec<_> = streams.iter().flatten().filter(|message| message.sequence.is_some()).collect();
    numbered.sort_by_key(|message| message.sequence);
    numbered
}

/// Asserts that numbers count up from 0, each once.
pub(crate) fn assert_complete(numbered: &[&Message]) {
    for (expected, message) in numbered.iter().enumerate() {
        assert_eq!(message.sequence, Some(expected as u32));
    }
}

/// Asserts that the method, exception and location of every event has a mapping somewhere.
pub(crate) fn assert_mapped(streams: &[Vec<Message>]) {
    let all = || streams.iter().flatten();
    let mapped = |kind: u8, id: fn(&Message) -> u32| -> HashSet<u32> {
        all().filter(|message| message.kind == kind).map(id).collect()
    };
    let methods = mapped(11, |message| message.method);
    let exceptions = mapped(12, |message| message.exception);
    let locations = mapped(13, |message| message.location);
    for message in all() {
        assert!(!matches!(message.kind, 14 | 20..=23) || methods.contains(&message.method), "{message:?}");
        assert!(!matches!(message.kind, 22 | 23) || exceptions.contains(&message.exception), "{message:?}");
        assert!(message.kind != 14 || locations.contains(&message.location), "{message:?}");
    }
}

/// Asserts that threads leave the frames that they entered, newest first, and that a line belongs to the frame left
/// last. Returns the greatest depth of calls.
pub(crate) fn assert_nested(numbered: &[&Message]) -> usize {
    let mut stacks: HashMap<u16, Vec<u32>> = HashMap::new();
    let mut left: HashMap<u16, u32> = HashMap::new();
    let mut depth = 0;
    for message in numbered {
        let stack = stacks.entry(message.thread).or_default();
        match message.kind {
            20 => stack.push(message.method),
            21 | 23 => {
                assert_eq!(stack.pop(), Some(message.method), "{message:?}");
                left.insert(message.thread, message.method);
            }
            22 => assert_eq!(stack.last(), Some(&message.method), "{message:?}"),
            14 => assert_eq!(left.get(&message.thread), Some(&message.method), "{message:?}"),
            _ => {}
        }
        depth = depth.max(stack.len());
    }
    depth
}
