//! Legal conversations: the messages of an agent on all its connections, in a possible order of arrival.

use std::fmt;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::bytefrog::wire;

/// The agent's side of a run.
#[derive(Clone)]
pub struct Conversation {
    pub version: u8,
    /// Data connections beside the control connection, which is number 0.
    pub data: usize,
    /// Whole messages, hellos first, in the order in which they arrive: connection and bytes.
    pub messages: Vec<(usize, Vec<u8>)>,
    pub has_breaks: bool,
    pub has_renames: bool,
}

impl Conversation {
    /// The bytes of each connection.
    pub fn streams(&self) -> Vec<Vec<u8>> {
        let mut streams = vec![Vec::new(); self.data + 1];
        self.messages.iter().for_each(|(connection, bytes)| streams[*connection].extend_from_slice(bytes));
        streams
    }
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}, {} data connections:", self.version, self.data)?;
        self.messages.iter().try_for_each(|(connection, bytes)| write!(f, " {connection}:{bytes:02x?}"))
    }
}

/// One thing that an agent sends.
#[derive(Clone, Debug)]
enum Item {
    Numbered(Numbered),
    /// This many events with methods that are never mapped.
    Flood(u16),
    MapMethod(u32),
    MapException(u32),
    MapLocation(u32),
    Rename(u16, u32),
    Count(u32),
    /// This many numbers that never arrive.
    Gap(u32),
    Break,
    /// An earlier numbered message, repeated.
    Again(Index),
    Heartbeat(u8),
    Class,
    Error,
}

#[derive(Clone, Debug)]
enum Numbered {
    Entry,
    Exit,
    Thrown(u32),
    Bubbled(u32),
    Visit(u32),
    Marker(usize),
}

fn item() -> impl Strategy<Value = Item> {
    let numbered = prop_oneof![
        6 => Just(Numbered::Entry),
        6 => Just(Numbered::Exit),
        1 => (0u32..3).prop_map(Numbered::Thrown),
        2 => (0u32..3).prop_map(Numbered::Bubbled),
        2 => (0u32..3).prop_map(Numbered::Visit),
        1 => (0usize..20).prop_map(Numbered::Marker),
    ];
    let gap = prop_oneof![8 => 1u32..6, 2 => 50u32..3000, 1 => 60_000u32..200_000, 1 => Just(1 << 24)];
    prop_oneof![
        60 => numbered.prop_map(Item::Numbered),
        1 => (1u16..300).prop_map(Item::Flood),
        4 => (0u32..5).prop_map(Item::MapMethod),
        2 => (0u32..2).prop_map(Item::MapException),
        2 => (0u32..2).prop_map(Item::MapLocation),
        4 => (0u16..4, 0u32..40).prop_map(|(thread, time)| Item::Rename(thread, time)),
        1 => (0u32..5).prop_map(Item::Count),
        2 => gap.prop_map(Item::Gap),
        1 => Just(Item::Break),
        2 => any::<Index>().prop_map(Item::Again),
        2 => prop::sample::select(b"ITPSX?".to_vec()).prop_map(Item::Heartbeat),
        1 => Just(Item::Class),
        1 => Just(Item::Error),
    ]
}

pub fn conversation() -> impl Strategy<Value = Conversation> {
    let first = prop_oneof![4 => Just(0u32), 1 => Just(u32::MAX - 20), 1 => Just(u32::MAX), 1 => 0u32..80];
    let delay = prop_oneof![6 => Just(0u8), 3 => 0u8..8, 1 => 0u8..80];
    let items = (item(), (0u16..4, 0u32..7), 0u32..4, any::<u8>(), delay);
    (1u8..=4, 0usize..5, first, any::<bool>(), vec(items, 0..120)).prop_map(
        |(version, data, first, may_break, items)| {
            let mut writer = Writer { version, number: first, time: 0, numbered: Vec::new() };
            let mut arriving = Vec::new();
            let (mut has_breaks, mut has_renames) = (false, false);
            for (item, about, passed, connection, delay) in items {
                writer.time += passed;
                let is_control = matches!(item, Item::Break | Item::Heartbeat(_) | Item::Class | Item::Error);
                if (data == 0 && !is_control) || (matches!(item, Item::Break) && !may_break) {
                    continue;
                }
                has_breaks |= matches!(item, Item::Break);
                has_renames |= matches!(item, Item::Rename(..));
                let connection = if is_control { 0 } else { 1 + usize::from(connection) % data };
                let at = arriving.len() + usize::from(delay);
                arriving.extend(writer.write(&item, about).into_iter().map(|bytes| (at, (connection, bytes))));
            }
            arriving.sort_by_key(|(at, _)| *at);
            let hellos = (0..=data).map(|connection| match connection {
                0 => (0, wire::hello(version)),
                _ => (connection, wire::data_hello(0)),
            });
            let messages = hellos.chain(arriving.into_iter().map(|(_, message)| message)).collect();
            Conversation { version, data, messages, has_breaks, has_renames }
        },
    )
}

struct Writer {
    version: u8,
    number: u32,
    time: u32,
    numbered: Vec<Vec<u8>>,
}

impl Writer {
    fn write(&mut self, item: &Item, (thread, method): (u16, u32)) -> Vec<Vec<u8>> {
        let message = match *item {
            Item::Numbered(ref what) => {
                let message = self.numbered(what, thread, method);
                self.numbered.push(message.clone());
                self.number = self.number.wrapping_add(1);
                message
            }
            Item::Flood(count) => {
                let number = self.number;
                self.number = number.wrapping_add(u32::from(count));
                let entry = |at| wire::entry(self.time, number.wrapping_add(at), 1000 + at % 7, thread);
                return (0..u32::from(count)).map(entry).collect();
            }
            Item::MapMethod(id) => wire::method(id, &format!("demo/A.m{id};9;()V")),
            Item::MapException(id) => wire::exception(id, "demo.Odd\n\u{0}\u{1f600}"),
            Item::MapLocation(id) if self.version >= 3 => wire::location(id, 1, 70 + id as i32),
            Item::Rename(thread, time) => wire::thread_name(thread, time, &format!("thread {thread} at {time}")),
            Item::Count(id) if self.version >= 3 => [&[15][..], &id.to_be_bytes(), &[0, 0, 0, 9]].concat(),
            Item::MapLocation(_) | Item::Count(_) => return Vec::new(),
            Item::Gap(count) => {
                self.number = self.number.wrapping_add(count);
                return Vec::new();
            }
            Item::Break => wire::data_break(self.number),
            Item::Again(which) if self.numbered.is_empty() => {
                let _ = which;
                return Vec::new();
            }
            Item::Again(which) => which.get(&self.numbered).clone(),
            Item::Heartbeat(mode) => wire::heartbeat(mode),
            Item::Class => wire::class_ignored("demo/\u{7}B\u{0}"),
            Item::Error => wire::error("out of \"cheese\"\r\n"),
        };
        vec![message]
    }

    fn numbered(&self, what: &Numbered, thread: u16, method: u32) -> Vec<u8> {
        let Writer { version, number, time, .. } = *self;
        match *what {
            Numbered::Entry => wire::entry(time, number, method, thread),
            Numbered::Exit => wire::exit(version, time, number, method, thread),
            Numbered::Thrown(exception) => wire::thrown(time, number, method, exception, thread),
            Numbered::Bubbled(exception) => wire::bubbled(time, number, method, exception, thread),
            Numbered::Visit(location) if version >= 3 => wire::visit(time, number, method, location, thread),
            Numbered::Visit(_) => wire::entry(time, number, method, thread),
            Numbered::Marker(length) => wire::marker(time, number, &"key\u{0}".repeat(length), "S\u{2028}"),
        }
    }
}
