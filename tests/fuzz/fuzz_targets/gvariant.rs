//! GVariant, compared with a writer in this file: bytes that are accepted as normal form equal what the writer makes of the
//! visited values, and what the writer makes is accepted and visited unchanged.
#![cfg_attr(feature = "fuzzer", no_main)]

use tributary::codec::gvariant::{Container, Scratch, Slice, Visitor, visit_type};

tributary_fuzz::target!(property);

fn property(input: &[u8]) {
    let Some((&mode, rest)) = input.split_first() else { return };
    let mut source = Source(rest);
    let kind = kind(&mut source, 4);
    let name = name(&kind);
    if mode & 1 == 0 {
        // Any bytes.
        if let Some(events) = read(&name, source.0) {
            let mut events = events.as_slice();
            let value = gather(&kind, &mut events);
            assert!(events.is_empty(), "{name}: {events:?} is left");
            assert_eq!(write(&kind, &value), source.0, "{name}: {value:?}");
        }
    } else {
        let value = value(&kind, &mut source);
        let bytes = write(&kind, &value);
        let events = read(&name, &bytes).unwrap_or_else(|| panic!("{name}: {value:?} is refused: {bytes:?}"));
        assert_eq!(gather(&kind, &mut events.as_slice()), value, "{name}");
    }
}

/// A type. There is no variant, because a visitor gets only its content, and no maybe in a maybe, where a visitor cannot
/// distinguish nothing from just nothing.
#[derive(Clone, Debug)]
enum Kind {
    Byte,
    Bool,
    /// `n q i u x t d`: the code and its size.
    Number(u8, usize),
    Text,
    Path,
    Maybe(Box<Kind>),
    Array(Box<Kind>),
    Tuple(Vec<Kind>),
    /// An array of dictionary entries.
    Dict(Box<Kind>, Box<Kind>),
}

#[derive(Clone, Debug, PartialEq)]
enum Data {
    /// The bits of the number, within the size of its type.
    Number(u64),
    Text(String),
    Bytes(Vec<u8>),
    Nothing,
    Just(Box<Data>),
    Many(Vec<Data>),
}

/// The bytes that select types and values; zeros at the end.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }
}

const NUMBERS: [(u8, usize); 7] = [(b'n', 2), (b'q', 2), (b'i', 4), (b'u', 4), (b'x', 8), (b't', 8), (b'd', 8)];

fn kind(source: &mut Source<'_>, depth: usize) -> Kind {
    let choice = source.byte();
    let (code, size) = NUMBERS[usize::from(choice >> 4) % NUMBERS.len()];
    match choice % 16 {
        0 | 1 => Kind::Text,
        2 => Kind::Byte,
        3 => Kind::Bool,
        4 => Kind::Path,
        5..8 => Kind::Number(code, size),
        _ if depth == 0 => Kind::Number(code, size),
        8 | 9 => match kind(source, depth - 1) {
            maybe @ Kind::Maybe(_) => maybe,
            other => Kind::Maybe(other.into()),
        },
        10 | 11 => Kind::Array(kind(source, depth - 1).into()),
        12 => {
            let key = kind(source, 0);
            Kind::Dict(key.into(), kind(source, depth - 1).into())
        }
        _ => Kind::Tuple((0..choice >> 4 & 3).map(|_| kind(source, depth - 1)).collect()),
    }
}

fn name(kind: &Kind) -> String {
    match kind {
        Kind::Byte => "y".to_owned(),
        Kind::Bool => "b".to_owned(),
        Kind::Number(code, _) => char::from(*code).to_string(),
        Kind::Text => "s".to_owned(),
        Kind::Path => "o".to_owned(),
        Kind::Maybe(inner) => format!("m{}", name(inner)),
        Kind::Array(inner) => format!("a{}", name(inner)),
        Kind::Tuple(members) => format!("({})", members.iter().map(name).collect::<String>()),
        Kind::Dict(key, value) => format!("a{{{}{}}}", name(key), name(value)),
    }
}

/// A call of a visitor.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Number(u64),
    Text(String),
    Bytes(Vec<u8>),
    Nothing,
    Open(Container),
    Close(Container),
}

struct Ears(Vec<Event>);

impl Visitor<'_> for Ears {
    fn bool(&mut self, value: bool) {
        self.0.push(Event::Number(value.into()));
    }
    fn unsigned(&mut self, value: u64) {
        self.0.push(Event::Number(value));
    }
    fn signed(&mut self, value: i64) {
        self.0.push(Event::Number(value as u64));
    }
    fn double(&mut self, value: f64) {
        self.0.push(Event::Number(value.to_bits()));
    }
    fn text(&mut self, value: &str) {
        self.0.push(Event::Text(value.to_owned()));
    }
    fn bytes(&mut self, value: &[u8]) {
        self.0.push(Event::Bytes(value.to_vec()));
    }
    fn nothing(&mut self) {
        self.0.push(Event::Nothing);
    }
    fn open(&mut self, container: Container) {
        self.0.push(Event::Open(container));
    }
    fn close(&mut self, container: Container) {
        self.0.push(Event::Close(container));
    }
}

/// `None`: the bytes are not in normal form.
fn read(name: &str, bytes: &[u8]) -> Option<Vec<Event>> {
    let mut ears = Ears(Vec::new());
    visit_type(name, Slice::new(bytes), 0, &mut Scratch::default(), &mut ears).ok()?;
    Some(ears.0)
}

/// Builds the value of a type from visited events.
fn gather(kind: &Kind, events: &mut &[Event]) -> Data {
    if let (Kind::Maybe(inner), Some(first)) = (kind, events.first()) {
        if *first != Event::Nothing {
            return Data::Just(gather(inner, events).into());
        }
        *events = &events[1..];
        return Data::Nothing;
    }
    let (first, rest) = events.split_first().expect("more events are visited");
    *events = rest;
    match (kind, first) {
        (Kind::Byte | Kind::Bool | Kind::Number(..), Event::Number(bits)) => Data::Number(*bits),
        (Kind::Text | Kind::Path, Event::Text(text)) => Data::Text(text.clone()),
        (Kind::Array(inner), Event::Bytes(bytes)) if matches!(**inner, Kind::Byte) => Data::Bytes(bytes.clone()),
        (Kind::Array(inner), Event::Open(open @ Container::Array)) => {
            many(*open, events, |events| gather(inner, events))
        }
        (Kind::Dict(key, value), Event::Open(open @ Container::Dict { has_text_keys })) => {
            assert_eq!(*has_text_keys, matches!(**key, Kind::Text | Kind::Path));
            many(*open, events, |events| {
                assert_eq!(split_first(events), Some(&Event::Open(Container::Entry)));
                let entry = vec![gather(key, events), gather(value, events)];
                assert_eq!(split_first(events), Some(&Event::Close(Container::Entry)));
                Data::Many(entry)
            })
        }
        (Kind::Tuple(members), Event::Open(open @ Container::Tuple)) => {
            let mut members = members.iter();
            many(*open, events, |events| gather(members.next().expect("a member"), events))
        }
        _ => panic!("{first:?} for {}", name(kind)),
    }
}

fn many(open: Container, events: &mut &[Event], mut one: impl FnMut(&mut &[Event]) -> Data) -> Data {
    let mut all = Vec::new();
    while events.first() != Some(&Event::Close(open)) {
        all.push(one(events));
    }
    *events = &events[1..];
    Data::Many(all)
}

/// A value of a type.
fn value(kind: &Kind, source: &mut Source<'_>) -> Data {
    match kind {
        Kind::Byte => Data::Number(source.byte().into()),
        Kind::Bool => Data::Number((source.byte() & 1).into()),
        Kind::Number(code, size) => {
            let bits = (0..*size).fold(0, |bits, _| bits << 8 | u64::from(source.byte()));
            Data::Number(match (code, size) {
                (b'n', _) => bits as i16 as u64,
                (b'i', _) => bits as i32 as u64,
                _ => bits,
            })
        }
        Kind::Text => {
            let length = usize::from(source.byte()) * usize::from(1 + source.byte() % 3);
            let (text, rest) = source.0.split_at(length.min(source.0.len()));
            source.0 = rest;
            Data::Text(String::from_utf8_lossy(text).replace('\0', "-"))
        }
        Kind::Path => Data::Text(["/", "/a", "/a/b_1", "/Az09"][usize::from(source.byte() & 3)].to_owned()),
        Kind::Maybe(inner) if source.byte() & 1 == 0 => Data::Just(value(inner, source).into()),
        Kind::Maybe(_) => Data::Nothing,
        Kind::Array(inner) if matches!(**inner, Kind::Byte) => {
            let length = usize::from(source.byte()).min(source.0.len());
            let (bytes, rest) = source.0.split_at(length);
            source.0 = rest;
            Data::Bytes(bytes.to_vec())
        }
        Kind::Array(inner) => Data::Many((0..count(source)).map(|_| value(inner, source)).collect()),
        Kind::Tuple(members) => Data::Many(members.iter().map(|member| value(member, source)).collect()),
        Kind::Dict(key, inner) => {
            let entry = |source: &mut Source<'_>| Data::Many(vec![value(key, source), value(inner, source)]);
            Data::Many((0..count(source)).map(|_| entry(source)).collect())
        }
    }
}

/// A length that the remaining bytes allow, so that values are bounded.
fn count(source: &mut Source<'_>) -> usize {
    usize::from(source.byte() % 40).min(source.0.len())
}

/// The size, if it is fixed, and the alignment.
fn layout(kind: &Kind) -> (Option<usize>, usize) {
    match kind {
        Kind::Byte | Kind::Bool => (Some(1), 1),
        Kind::Number(_, size) => (Some(*size), *size),
        Kind::Text | Kind::Path => (None, 1),
        Kind::Maybe(inner) | Kind::Array(inner) => (None, layout(inner).1),
        Kind::Dict(key, value) => (None, layout(key).1.max(layout(value).1)),
        Kind::Tuple(members) => tuple_layout(&members.iter().collect::<Vec<_>>()),
    }
}

fn tuple_layout(members: &[&Kind]) -> (Option<usize>, usize) {
    let alignment = members.iter().map(|member| layout(member).1).max().unwrap_or(1);
    let size = members.iter().try_fold(0usize, |size, member| {
        let (own, alignment) = layout(member);
        Some(size.next_multiple_of(alignment) + own?)
    });
    (size.map(|size| size.max(1).next_multiple_of(alignment)), alignment)
}

fn write(kind: &Kind, value: &Data) -> Vec<u8> {
    match (kind, value) {
        (Kind::Byte | Kind::Bool, Data::Number(bits)) => vec![*bits as u8],
        (Kind::Number(_, size), Data::Number(bits)) => bits.to_le_bytes()[..*size].to_vec(),
        (Kind::Text | Kind::Path, Data::Text(text)) => [text.as_bytes(), b"\0"].concat(),
        (Kind::Maybe(_), Data::Nothing) => Vec::new(),
        (Kind::Maybe(inner), Data::Just(value)) => {
            let mut bytes = write(inner, value);
            if layout(inner).0.is_none() {
                bytes.push(0);
            }
            bytes
        }
        (Kind::Array(_), Data::Bytes(bytes)) => bytes.clone(),
        (Kind::Array(inner), Data::Many(values)) => {
            array(layout(inner), values.iter().map(|value| write(inner, value)))
        }
        (Kind::Dict(key, inner), Data::Many(entries)) => {
            let members = [&**key, &**inner];
            array(tuple_layout(&members), entries.iter().map(|entry| tuple(&members, entry)))
        }
        (Kind::Tuple(members), value) => tuple(&members.iter().collect::<Vec<_>>(), value),
        _ => panic!("{value:?} of {}", name(kind)),
    }
}

fn array((size, alignment): (Option<usize>, usize), values: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for value in values {
        bytes.resize(bytes.len().next_multiple_of(alignment), 0);
        bytes.extend(value);
        ends.push(bytes.len());
    }
    match size {
        Some(_) => bytes,
        None => framed(bytes, &ends),
    }
}

fn tuple(members: &[&Kind], value: &Data) -> Vec<u8> {
    let Data::Many(values) = value else { panic!("{value:?} of a tuple") };
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for (at, (member, value)) in members.iter().zip(values).enumerate() {
        let (size, alignment) = layout(member);
        bytes.resize(bytes.len().next_multiple_of(alignment), 0);
        bytes.extend(write(member, value));
        if size.is_none() && at + 1 < members.len() {
            ends.push(bytes.len());
        }
    }
    match tuple_layout(members).0 {
        Some(size) => {
            bytes.resize(size, 0);
            bytes
        }
        None => {
            ends.reverse();
            framed(bytes, &ends)
        }
    }
}

/// Appends the table of offsets, in the smallest width that fits the whole size.
fn framed(mut bytes: Vec<u8>, ends: &[usize]) -> Vec<u8> {
    let fits = |width: &usize| ((bytes.len() + ends.len() * width) as u128) < 1 << (8 * width);
    let width = [1, 2, 4, 8].into_iter().find(fits).expect("8 bytes reach over everything");
    ends.iter().for_each(|end| bytes.extend_from_slice(&(*end as u64).to_le_bytes()[..width]));
    bytes
}

fn split_first<'a>(events: &mut &'a [Event]) -> Option<&'a Event> {
    let (first, rest) = events.split_first()?;
    *events = rest;
    Some(first)
}
