//! Random messages in every dialect, with their expected events.

use std::collections::BTreeMap;
use std::fmt;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::pack::{Pack, Texts, frame, hello};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    Released,
    Master,
    MasterRaw,
    Spec,
}

impl Dialect {
    pub const ALL: [Dialect; 4] = [Dialect::Released, Dialect::Master, Dialect::MasterRaw, Dialect::Spec];

    pub fn texts(self) -> Texts {
        if self == Dialect::Master { Texts::Str8 } else { Texts::Raw }
    }

    pub fn collection(self) -> u64 {
        if self == Dialect::Spec { 6 } else { 7 }
    }
}

type Text = Vec<u8>;

#[derive(Clone, Debug)]
pub struct Object {
    pub id: u64,
    pub class: Option<Text>,
    pub references: Vec<u64>,
    pub file: Option<Text>,
    pub line: Option<u64>,
    pub size: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Frame {
    pub method: Option<Text>,
    pub label: Text,
    pub file: Text,
    pub line: u64,
}

#[derive(Clone, Debug)]
pub struct Site {
    pub signature: (u64, Text, u64),
    pub count: u64,
    /// Indexes into the list of stacks, with counts.
    pub stacks: Option<Vec<(usize, u64)>>,
}

#[derive(Clone, Debug)]
pub enum Event {
    Created(u64, Option<Text>),
    Destroyed(u64),
    /// Start, end of mark, end of sweep.
    Gc(u8),
    Stats(Vec<(String, Stat)>),
    Dump(Vec<Object>),
    Cpu(Vec<Frame>),
    Snapshot {
        stacks: Vec<Vec<Frame>>,
        files: Vec<(Text, Vec<Site>)>,
    },
    /// An event that is lost without affecting others.
    Odd(Odd),
}

#[derive(Clone, Copy, Debug)]
pub enum Stat {
    Number(u64),
    Missing,
    Decimal(u64),
}

/// Events that must be skipped with a loss of their own (rule 7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Odd {
    UnknownType,
    NoType,
    NotAMap,
    Nested,
    NoPayload,
    PayloadOfTheWrongType,
}

#[derive(Clone)]
pub struct Message {
    pub events: Vec<Event>,
    /// Unknown pairs before or after the payload, at every level.
    pub has_strange_pairs: bool,
    pub has_payload_first: bool,
    pub is_long: bool,
    /// A command precedes it.
    pub command: Option<&'static [u8]>,
}

/// Only its bytes, which is shorter.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = self.write(Dialect::Spec, 0, &mut 0);
        write!(f, "{} events, as spec: ", self.events.len())?;
        body.iter().take(300).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn text() -> impl Strategy<Value = Text> {
    prop_oneof![
        4 => "[A-Za-z:#/._ ]{0,24}".prop_map(String::into_bytes),
        1 => "[A-Za-z/]{30,300}".prop_map(String::into_bytes),
        1 => vec(1u8.., 0..40),
    ]
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..200u64, Just(u64::MAX), any::<u64>(), any::<u32>().prop_map(u64::from)]
}

fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let frame = (option::of(text()), text(), text(), 0..3000u64).prop_map(|(method, label, file, line)| Frame {
        method,
        label,
        file,
        line,
    });
    vec(frame, 0..6)
}

fn object() -> impl Strategy<Value = Object> {
    let known = (option::of(text()), vec(number(), 0..6), option::of(text()));
    (number(), known, option::of(number()), option::of(number()))
        .prop_map(|(id, (class, references, file), line, size)| Object { id, class, references, file, line, size })
}

fn snapshot() -> impl Strategy<Value = Event> {
    let stack = option::of(vec((0..5usize, 1..9u64), 0..4));
    let site = ((0..999u64, text(), 0..999u64), 0..30u64, stack).prop_map(|(signature, count, stacks)| Site {
        signature,
        count,
        stacks,
    });
    (vec(frames(), 0..5), vec((text(), vec(site, 0..4)), 0..3))
        .prop_map(|(stacks, files)| Event::Snapshot { stacks, files })
}

pub fn event() -> impl Strategy<Value = Event> {
    let stat = prop_oneof![number().prop_map(Stat::Number), Just(Stat::Missing), number().prop_map(Stat::Decimal),];
    prop_oneof![
        4 => (number(), option::of(text())).prop_map(|(id, class)| Event::Created(id, class)),
        3 => number().prop_map(Event::Destroyed),
        2 => (0..3u8).prop_map(Event::Gc),
        1 => vec(("[a-z_]{1,20}", stat), 0..6).prop_map(Event::Stats),
        2 => vec(object(), 0..8).prop_map(Event::Dump),
        2 => frames().prop_map(Event::Cpu),
        2 => snapshot(),
        1 => select(vec![
            Odd::UnknownType, Odd::NoType, Odd::NotAMap, Odd::Nested, Odd::NoPayload, Odd::PayloadOfTheWrongType,
        ]).prop_map(Event::Odd),
    ]
}

pub fn message() -> impl Strategy<Value = Message> {
    let command = select(vec![None, None, None, Some(&b"\x04\x09\x04PING\0\x10ab"[..]), Some(&b"\x04\x04\x03ODD"[..])]);
    (vec(event(), 0..8), any::<[bool; 3]>(), command).prop_map(|(events, flags, command)| {
        let [has_strange_pairs, has_payload_first, is_long] = flags;
        Message { events, has_strange_pairs, has_payload_first, is_long, command }
    })
}

/// A conversation on the publishing socket.
pub fn published() -> impl Strategy<Value = (Dialect, Vec<Message>)> {
    (select(Dialect::ALL.to_vec()), vec(message(), 0..5)).prop_map(|(dialect, mut messages)| {
        for message in &mut messages {
            message.events.retain(|event| dialect.has(event));
        }
        (dialect, messages)
    })
}

impl Dialect {
    fn has(self, event: &Event) -> bool {
        match event {
            Event::Created(..) | Event::Destroyed(_) => self != Dialect::Spec,
            Event::Cpu(_) => self != Dialect::Released,
            Event::Snapshot { .. } => self == Dialect::Spec,
            _ => true,
        }
    }
}

/// A stream, the ranges of its message bodies, and the expected events.
pub struct Written {
    pub stream: Vec<u8>,
    pub bodies: Vec<std::ops::Range<usize>>,
    pub names: BTreeMap<String, u64>,
    pub has_odd: bool,
}

pub fn write(dialect: Dialect, messages: &[Message]) -> Written {
    let mut written = Written { stream: hello("PUB"), bodies: Vec::new(), names: BTreeMap::new(), has_odd: false };
    let mut dumps = 0;
    for (counter, message) in messages.iter().enumerate() {
        written.stream.extend_from_slice(message.command.unwrap_or_default());
        let body = message.write(dialect, counter as u64, &mut dumps);
        let framed = frame(if message.is_long { 2 } else { 0 }, &body);
        written.stream.extend_from_slice(&framed);
        written.bodies.push(written.stream.len() - body.len()..written.stream.len());
        for event in &message.events {
            written.has_odd |= matches!(event, Event::Odd(_));
            for (name, count) in event.names() {
                *written.names.entry(name.to_owned()).or_insert(0) += count;
            }
        }
    }
    written.names.retain(|_, count| *count > 0);
    written
}

impl Message {
    fn write(&self, dialect: Dialect, counter: u64, dumps: &mut u64) -> Vec<u8> {
        let mut pack = Pack::new(dialect.texts());
        let strange = usize::from(self.has_strange_pairs);
        pack.map(4 + 2 * strange);
        self.strange(&mut pack);
        let mut payload = |pack: &mut Pack| {
            pack.uint(2);
            pack.array(self.events.len());
            self.events.iter().for_each(|event| event.write(pack, dialect, self, dumps));
        };
        if self.has_payload_first {
            payload(&mut pack);
        }
        pack.uint(0);
        pack.uint(dialect.collection());
        pack.uint(1);
        pack.float(1_436_012_100_123.0);
        pack.uint(9);
        pack.uint(counter);
        if !self.has_payload_first {
            payload(&mut pack);
        }
        self.strange(&mut pack);
        pack.bytes
    }

    /// A pair whose key is an unknown integer or a text.
    fn strange(&self, pack: &mut Pack) {
        if self.has_strange_pairs {
            match self.is_long {
                true => pack.uint(99),
                false => pack.text(b"event_type"),
            }
            // An array of a map of nil to an extension, bytes, a negative number, a boolean.
            pack.raw(&[0x94, 0x81, 0xC0, 0xD4, 5, 1, 0xC4, 2, 7, 7, 0xFF, 0xC3]);
        }
    }
}

impl Event {
    fn write(&self, pack: &mut Pack, dialect: Dialect, message: &Message, dumps: &mut u64) {
        let master = match self {
            Event::Odd(odd) => return odd.write(pack, dialect),
            Event::Created(..) => 0,
            Event::Destroyed(_) => 1,
            Event::Gc(phase) => 2 + u64::from(*phase),
            Event::Dump(_) => 5,
            Event::Stats(_) => 6,
            Event::Cpu(_) => 9,
            Event::Snapshot { .. } => 1,
        };
        let kind = if dialect == Dialect::Spec { master.max(1) - 1 } else { master };
        let has_payload = !matches!(self, Event::Gc(_));
        let is_split = matches!(self, Event::Dump(_)) && dialect != Dialect::Released;
        let strange = usize::from(message.has_strange_pairs);
        pack.map(2 + usize::from(has_payload) + 2 * usize::from(is_split) + 2 * strange);
        message.strange(pack);
        if message.has_payload_first && has_payload {
            pack.uint(2);
            self.write_payload(pack, message);
        }
        pack.uint(0);
        pack.uint(kind);
        pack.uint(1);
        pack.float(1_436_012_100_122.0);
        if let (Event::Dump(objects), true) = (self, is_split) {
            *dumps += 1;
            pack.uint(10);
            pack.uint(*dumps);
            pack.uint(11);
            pack.uint(objects.len() as u64);
        }
        if !message.has_payload_first && has_payload {
            pack.uint(2);
            self.write_payload(pack, message);
        }
        message.strange(pack);
    }

    fn write_payload(&self, pack: &mut Pack, message: &Message) {
        let strange = usize::from(message.has_strange_pairs);
        match self {
            Event::Created(id, class) => {
                pack.map(2 + strange);
                message.strange(pack);
                pack.uint(3);
                pack.uint(*id);
                pack.uint(4);
                pack.text_or_nil(class.as_deref());
            }
            Event::Destroyed(id) => {
                pack.map(1);
                pack.uint(3);
                pack.uint(*id);
            }
            Event::Stats(stats) => {
                pack.map(stats.len());
                for (key, value) in stats {
                    pack.text(key.as_bytes());
                    match value {
                        Stat::Number(number) => pack.uint(*number),
                        Stat::Missing => pack.text(b""),
                        Stat::Decimal(number) => pack.text(number.to_string().as_bytes()),
                    }
                }
            }
            Event::Dump(objects) => {
                pack.array(objects.len());
                for object in objects {
                    pack.map(6 + strange);
                    message.strange(pack);
                    pack.uint(3);
                    pack.uint(object.id);
                    pack.uint(4);
                    pack.text_or_nil(object.class.as_deref());
                    pack.uint(5);
                    pack.array(object.references.len());
                    object.references.iter().for_each(|id| pack.uint(*id));
                    pack.uint(6);
                    pack.text_or_nil(object.file.as_deref());
                    pack.uint(7);
                    pack.uint_or_nil(object.line);
                    pack.uint(8);
                    pack.uint_or_nil(object.size);
                }
            }
            Event::Cpu(frames) => write_frames(pack, frames, true),
            Event::Snapshot { stacks, files } => write_snapshot(pack, stacks, files, message.is_long),
            Event::Gc(_) | Event::Odd(_) => {}
        }
    }

    /// Its expected events.
    fn names(&self) -> Vec<(&'static str, u64)> {
        match self {
            Event::Created(..) => vec![("rbkit.object.created", 1)],
            Event::Destroyed(_) => vec![("rbkit.object.destroyed", 1)],
            Event::Gc(0) => vec![("rbkit.gc.start", 1)],
            Event::Gc(1) => vec![("rbkit.gc.end_mark", 1)],
            Event::Gc(_) => vec![("rbkit.gc.end_sweep", 1)],
            Event::Stats(stats) => {
                let present = stats.iter().filter(|(_, value)| !matches!(value, Stat::Missing)).count();
                vec![("metrics", present as u64)]
            }
            Event::Dump(objects) => vec![("rbkit.heap.object", objects.len() as u64), ("rbkit.heap.dump", 1)],
            Event::Cpu(_) => vec![("rbkit.cpu", 1)],
            Event::Snapshot { files, .. } => {
                let sites = files.iter().flat_map(|(_, sites)| sites);
                let samples = sites.map(|site| match site.stacks.as_deref() {
                    None | Some([]) => 1,
                    Some(stacks) => {
                        let through: u64 = stacks.iter().map(|(_, count)| count).sum();
                        stacks.len() as u64 + u64::from(site.count > through)
                    }
                });
                vec![("rbkit.allocations", samples.sum())]
            }
            Event::Odd(Odd::UnknownType) => vec![("loss unsupported", 1)],
            Event::Odd(_) => vec![("loss malformed", 1)],
        }
    }
}

fn write_frames(pack: &mut Pack, frames: &[Frame], has_label: bool) {
    pack.array(frames.len());
    for frame in frames {
        pack.map(4 + usize::from(has_label));
        pack.uint(12);
        pack.text_or_nil(frame.method.as_deref());
        if has_label {
            pack.uint(13);
            pack.text(&frame.label);
        }
        pack.uint(6);
        pack.text(&frame.file);
        pack.uint(7);
        pack.uint(frame.line);
        pack.uint(14);
        pack.uint(0);
    }
}

fn write_snapshot(pack: &mut Pack, stacks: &[Vec<Frame>], files: &[(Text, Vec<Site>)], has_stacks_last: bool) {
    let write_stacks = |pack: &mut Pack| {
        pack.uint(16);
        pack.map(stacks.len());
        for (number, frames) in stacks.iter().enumerate() {
            pack.uint(94_368_320_759_728 + number as u64);
            write_frames(pack, frames, false);
        }
    };
    pack.map(2);
    if !has_stacks_last {
        write_stacks(pack);
    }
    pack.uint(18);
    pack.map(files.len());
    for (file, sites) in files {
        pack.text(file);
        pack.map(sites.len());
        for Site { signature: (line, class, size), count, stacks } in sites {
            pack.text(&[format!("{line} ").as_bytes(), class, format!(" {size}").as_bytes()].concat());
            pack.map(2);
            pack.uint(17);
            pack.uint(*count);
            pack.uint(16);
            match stacks {
                None => pack.nil(),
                Some(stacks) => {
                    pack.map(stacks.len());
                    for (number, count) in stacks {
                        pack.uint(94_368_320_759_728 + *number as u64);
                        pack.uint(*count);
                    }
                }
            }
        }
    }
    if has_stacks_last {
        write_stacks(pack);
    }
}

impl Odd {
    fn write(self, pack: &mut Pack, dialect: Dialect) {
        let dump = if dialect == Dialect::Spec { 4 } else { 5 };
        let (kind, payload): (u64, &[u8]) = match self {
            Odd::UnknownType => (77, &[0xC0]),
            Odd::NotAMap => return pack.raw(&[0x92, 0xC0, 0xA1, b'x']),
            Odd::NoType => {
                pack.map(1);
                pack.uint(1);
                return pack.uint(5);
            }
            Odd::Nested => (dialect.collection(), &[0x90]),
            Odd::NoPayload => {
                pack.map(1);
                pack.uint(0);
                return pack.uint(dump);
            }
            Odd::PayloadOfTheWrongType => (dump, &[0x81, 1, 2]),
        };
        pack.map(2);
        pack.uint(0);
        pack.uint(kind);
        pack.uint(2);
        pack.raw(payload);
    }
}
