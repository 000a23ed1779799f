//! One message in MessagePack, named item by item as it arrives (section 2).

use crate::codec::msgpack::{MAX_DEPTH, Reader, Value};
use crate::codec::reader::{DecodeError, DecodeErrorKind};
use crate::explain::Sheet;
use crate::explain::depth::set_in;
use crate::explain::value::text;
use crate::explain::words::{as_name, counted, hex, moment};

use super::super::Channel;

/// Containers that may be open: those around what a decoder may skip are three.
const MOST_OPEN: usize = MAX_DEPTH + 3;

/// The answer to everything but a handshake, which is no MessagePack.
const OK: &[u8] = b"ok";

/// What integers that are keys mean, wherever they stand.
const KEYS: [&str; 19] = [
    "event_type",
    "timestamp",
    "payload",
    "object_id",
    "class_name",
    "references",
    "file",
    "line",
    "size",
    "message_counter",
    "correlation_id",
    "complete_message_count",
    "method_name",
    "label",
    "singleton_method",
    "thread_id",
    "stacktrace",
    "count",
    "allocations",
];
/// Types of events in the master family. In the family of the specification they are one lower, but for the first.
const TYPES: [&str; 10] = [
    "obj_created",
    "obj_destroyed",
    "gc_start",
    "gc_end_m",
    "gc_end_s",
    "object_space_dump",
    "gc_stats",
    "event_collection",
    "handshake",
    "cpu_sample",
];

/// A message that is being named.
#[derive(Debug)]
pub(super) struct Message {
    channel: Channel,
    /// How far rows are set in.
    depth: usize,
    has_begun: bool,
    /// Whether the types of events are those of the specification; known from the type of the message.
    is_spec: Option<bool>,
    open: Vec<Open>,
}

/// A container that is open.
#[derive(Debug)]
struct Open {
    role: Role,
    is_map: bool,
    /// Elements or pairs to come.
    left: u64,
    /// Those that came.
    count: u64,
    /// The key was a container; its value comes next.
    is_at_value: bool,
    /// What the type of this event is called.
    kind: Option<&'static str>,
}

/// What a container is for those in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Message,
    Events,
    Event,
    /// A list of so called things.
    List(&'static str),
    /// A map from the ids of such things.
    Ids(&'static str),
    Other,
}

/// What a step has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Named so many bytes.
    Taken(usize),
    /// Needs more of the message.
    More,
    /// What is next cannot be named, and why.
    Wrong(&'static str),
    /// The message is over.
    Done,
}

impl Message {
    /// A message from its first byte on.
    pub(super) fn new(channel: Channel, depth: usize) -> Self {
        Message { channel, depth, has_begun: false, is_spec: None, open: Vec::new() }
    }

    /// Names what is next of the message: `here` is what is here of it, `missing` how much more comes.
    pub(super) fn step(&mut self, here: &[u8], missing: u64, sheet: &mut Sheet) -> Step {
        while self.open.pop_if(|open| open.left == 0 && !open.is_at_value).is_some() {}
        if !self.has_begun && self.channel == Channel::Rep && OK.starts_with(here) && missing + here.len() as u64 == 2 {
            if missing > 0 {
                return Step::More;
            }
            self.has_begun = true;
            self.row(here, "reply", "ok", sheet);
            return Step::Taken(here.len());
        }
        if self.has_begun && self.open.is_empty() {
            return Step::Done;
        }
        if self.open.len() > MOST_OPEN {
            return Step::Wrong("too many containers in one another");
        }
        let mut reader = Reader::new(here, missing);
        match self.item(&mut reader, sheet) {
            Ok(()) => Step::Taken(reader.offset()),
            Err(error) if reader.may_wait(&error) => Step::More,
            Err(error) if here.get(error.offset) == Some(&0xC1) => Step::Wrong("no value begins with the byte 0xc1"),
            Err(DecodeError { kind: DecodeErrorKind::Invalid { .. }, .. }) => {
                Step::Wrong("it would hold more than is left of the message")
            }
            Err(_) => Step::Wrong("the message ends inside a value"),
        }
    }

    /// The next value, with its key if it has a scalar one.
    fn item(&mut self, reader: &mut Reader<'_>, sheet: &mut Sheet) -> Result<(), DecodeError> {
        let start = *reader;
        let Some(open) = self.open.last() else {
            let first = reader.next("message")?;
            self.has_begun = true;
            self.value(start, *reader, "message", None, first, Role::Message, sheet);
            return Ok(());
        };
        let (role, kind) = (open.role, open.kind);
        if !open.is_map {
            let name = format!("{} {}", role.element(), open.count);
            let element = reader.next("element")?;
            self.passed();
            self.value(start, *reader, &name, None, element, role.inner(), sheet);
            return Ok(());
        }
        if open.is_at_value {
            let after = reader.next("value")?;
            self.passed();
            self.value(start, *reader, "value", None, after, Role::Other, sheet);
            return Ok(());
        }
        let key = reader.next("key")?;
        if let Value::Array(_) | Value::Map(_) = key {
            if let Some(open) = self.open.last_mut() {
                open.is_at_value = true;
            }
            self.value(start, *reader, "key", None, key, Role::Other, sheet);
            return Ok(());
        }
        let value = reader.next("value")?;
        let number = if let Value::Unsigned(number) = key { usize::try_from(number).ok() } else { None };
        let known = number.filter(|_| !matches!(role, Role::Ids(_))).and_then(|number| KEYS.get(number)).copied();
        let (name, prefix) = match (known, key, role) {
            (Some(name), ..) => (name.to_owned(), None),
            (_, Value::Unsigned(id), Role::Ids(what)) => (format!("{what} {id}"), None),
            (_, Value::Text(key), _) => match as_name(key) {
                Some(name) => (name.to_owned(), None),
                None => ("pair".to_owned(), Some(text(key))),
            },
            _ => (format!("key {}", said(key)), None),
        };
        self.passed();
        let words = match (known, value) {
            (Some("event_type"), Value::Unsigned(number)) => self.event_type(role, number),
            (Some("event_type"), Value::Text(name)) => {
                let kind = TYPES.iter().find(|kind| kind.as_bytes() == name);
                self.named(kind.copied());
                None
            }
            (Some("timestamp"), Value::Float(millis)) => Some(moment(nanos(millis))),
            (Some("timestamp"), Value::Unsigned(millis)) => Some(moment(i128::from(millis) * 1_000_000)),
            _ => None,
        };
        if let Some(words) = words {
            self.row(read(start, *reader), &name, &words, sheet);
            return Ok(());
        }
        let inner = match (role, known, value) {
            (Role::Message, Some("payload"), Value::Array(_)) => Role::Events,
            (_, Some("payload"), Value::Array(_)) => match kind {
                Some("object_space_dump") => Role::List("object"),
                Some("cpu_sample") => Role::List("frame"),
                _ => Role::Other,
            },
            (_, Some("references"), _) => Role::List("reference"),
            (_, Some("stacktrace"), _) => Role::Ids("stack"),
            (Role::Ids(_), None, Value::Array(_)) => Role::List("frame"),
            _ => Role::Other,
        };
        self.value(start, *reader, &name, prefix, value, inner, sheet);
        Ok(())
    }

    /// A value, which stands between the two readers; of a container it is the head, and what is in it comes next.
    #[allow(clippy::too_many_arguments)]
    fn value(
        &mut self,
        start: Reader<'_>,
        end: Reader<'_>,
        name: &str,
        prefix: Option<String>,
        value: Value<'_>,
        role: Role,
        sheet: &mut Sheet,
    ) {
        let words = said(value);
        let words = prefix.map_or_else(|| words.clone(), |prefix| format!("{prefix}: {words}"));
        self.row(read(start, end), name, &words, sheet);
        let (is_map, left) = match value {
            Value::Array(count) => (false, count),
            Value::Map(pairs) => (true, pairs),
            _ => return,
        };
        self.open.push(Open { role, is_map, left: left.into(), count: 0, is_at_value: false, kind: None });
    }

    fn row(&self, bytes: &[u8], name: &str, words: &str, sheet: &mut Sheet) {
        set_in(sheet, self.depth + self.open.len(), |sheet| sheet.field(bytes, name, words));
    }

    /// An element or pair of the innermost container has come.
    fn passed(&mut self) {
        if let Some(open) = self.open.last_mut() {
            (open.left, open.count, open.is_at_value) = (open.left.saturating_sub(1), open.count + 1, false);
        }
    }

    /// What a type is called, by the numbers of the family that the type of the message shows (rule 1).
    fn event_type(&mut self, role: Role, number: u64) -> Option<String> {
        let name = match (role, self.channel, number) {
            (Role::Message, Channel::Pub, 6 | 7) => {
                self.is_spec = Some(number == 6);
                "event_collection"
            }
            (Role::Message, Channel::Rep, 7 | 8) => "handshake",
            (Role::Event, ..) => {
                let index = usize::try_from(number).ok()?;
                let name = match self.is_spec? {
                    true if index == 0 => "allocation_snapshot",
                    is_spec => TYPES.get(index.checked_add(usize::from(is_spec))?)?,
                };
                self.named(Some(name));
                name
            }
            _ => return None,
        };
        Some(format!("{number} ({name})"))
    }

    fn named(&mut self, kind: Option<&'static str>) {
        if let Some(open) = self.open.last_mut() {
            open.kind = kind;
        }
    }
}

impl Role {
    /// What an element of such an array is called.
    fn element(self) -> &'static str {
        match self {
            Role::Events => "event",
            Role::List(name) => name,
            _ => "element",
        }
    }

    /// What an element of such an array is for those in it.
    fn inner(self) -> Role {
        if self == Role::Events { Role::Event } else { Role::Other }
    }
}

/// The bytes that were read from the one to the other.
fn read<'a>(start: Reader<'a>, end: Reader<'_>) -> &'a [u8] {
    start.rest().get(..end.offset() - start.offset()).unwrap_or_default()
}

/// Milliseconds as nanoseconds, without what a double would make of so many.
fn nanos(millis: f64) -> i128 {
    i128::from(millis.trunc() as i64) * 1_000_000 + i128::from((millis.fract() * 1e6).round() as i64)
}

fn said(value: Value<'_>) -> String {
    match value {
        Value::Nil => "nil".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Unsigned(number) => number.to_string(),
        Value::Negative(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Text(bytes) => text(bytes),
        Value::Binary(bytes) => hex(bytes),
        Value::Array(count) => counted(count.into(), "element"),
        Value::Map(pairs) => counted(pairs.into(), "pair"),
        Value::Extension(kind, bytes) => format!("extension {kind}: {}", hex(bytes)),
    }
}
