//! Explains one MessagePack message, item by item, while it arrives (section 2).

use tributary_codec::msgpack::{MAX_DEPTH, MsgpackValue, Reader};
use tributary_codec::reader::{DecodeError, DecodeErrorKind};
use tributary_explain::Sheet;
use tributary_explain::depth::set_in;
use tributary_explain::value::text;
use tributary_explain::words::{as_name, counted, hex, moment};

use super::super::wire::Channel;

/// Nested containers: the decoder skips values of at most `MAX_DEPTH` levels, which are inside three others.
const MAX_OPEN: usize = MAX_DEPTH + 3;

/// The reply to every request except `handshake`. It is not MessagePack.
const OK: &[u8] = b"ok";

/// The names of integer keys, in every kind of map.
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
/// The event types of the master family. The numbers of the specification are one lower, except for the first.
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

/// A message that is being explained.
#[derive(Debug)]
pub(super) struct ExplainedMessage {
    channel: Channel,
    /// The indentation of its rows.
    depth: usize,
    is_started: bool,
    /// Whether the event types are those of the specification; known from the type of the message.
    is_spec: Option<bool>,
    open: Vec<ExplainedContainer>,
}

/// A container whose elements are being explained.
#[derive(Debug)]
struct ExplainedContainer {
    role: Role,
    is_map: bool,
    /// Elements or pairs that are left.
    left: u64,
    /// Elements or pairs so far.
    count: u64,
    /// The key was a container; its value is next.
    is_at_value: bool,
    /// The name of the type of this event.
    kind: Option<&'static str>,
}

/// The meaning of a container for its elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Message,
    Events,
    Event,
    /// A list of elements with this name.
    List(&'static str),
    /// A map whose keys are ids of things with this name.
    Ids(&'static str),
    Other,
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ExplainStep {
    /// It has explained this many bytes.
    Taken(usize),
    /// It needs more of the message.
    More,
    /// The next item cannot be explained, and why.
    Wrong(&'static str),
    /// The message has ended.
    Done,
}

impl ExplainedMessage {
    /// A message from its first byte.
    pub(super) fn new(channel: Channel, depth: usize) -> Self {
        ExplainedMessage { channel, depth, is_started: false, is_spec: None, open: Vec::new() }
    }

    /// Explains the next item of the message. `here` is the available rest of the message, `missing` the number of bytes that
    /// have not arrived.
    pub(super) fn step(&mut self, here: &[u8], missing: u64, sheet: &mut Sheet) -> ExplainStep {
        while self.open.pop_if(|open| open.left == 0 && !open.is_at_value).is_some() {}
        if !self.is_started && self.channel == Channel::Rep && OK.starts_with(here) && missing + here.len() as u64 == 2
        {
            if missing > 0 {
                return ExplainStep::More;
            }
            self.is_started = true;
            self.row(here, "reply", "ok", sheet);
            return ExplainStep::Taken(here.len());
        }
        if self.is_started && self.open.is_empty() {
            return ExplainStep::Done;
        }
        if self.open.len() > MAX_OPEN {
            return ExplainStep::Wrong("containers are nested too deeply");
        }
        let mut reader = Reader::new(here, missing);
        match self.item(&mut reader, sheet) {
            Ok(()) => ExplainStep::Taken(reader.offset()),
            Err(error) if reader.may_wait(&error) => ExplainStep::More,
            Err(error) if here.get(error.offset) == Some(&0xC1) => {
                ExplainStep::Wrong("no value begins with the byte 0xc1")
            }
            Err(DecodeError { kind: DecodeErrorKind::Invalid { .. }, .. }) => {
                ExplainStep::Wrong("it is longer than the rest of the message")
            }
            Err(_) => ExplainStep::Wrong("the message ends inside a value"),
        }
    }

    /// Explains the next value, with its key if that is a scalar.
    fn item(&mut self, reader: &mut Reader<'_>, sheet: &mut Sheet) -> Result<(), DecodeError> {
        let start = *reader;
        let Some(open) = self.open.last() else {
            let first = reader.next("message")?;
            self.is_started = true;
            self.value(start, *reader, "message", None, first, Role::Message, sheet);
            return Ok(());
        };
        let (role, kind) = (open.role, open.kind);
        if !open.is_map {
            let name = format!("{} {}", role.element(), open.count);
            let element = reader.next("element")?;
            self.count_element();
            self.value(start, *reader, &name, None, element, role.inner(), sheet);
            return Ok(());
        }
        if open.is_at_value {
            let after = reader.next("value")?;
            self.count_element();
            self.value(start, *reader, "value", None, after, Role::Other, sheet);
            return Ok(());
        }
        let key = reader.next("key")?;
        if let MsgpackValue::Array(_) | MsgpackValue::Map(_) = key {
            if let Some(open) = self.open.last_mut() {
                open.is_at_value = true;
            }
            self.value(start, *reader, "key", None, key, Role::Other, sheet);
            return Ok(());
        }
        let value = reader.next("value")?;
        let number = if let MsgpackValue::Unsigned(number) = key { usize::try_from(number).ok() } else { None };
        let known = number.filter(|_| !matches!(role, Role::Ids(_))).and_then(|number| KEYS.get(number)).copied();
        let (name, prefix) = match (known, key, role) {
            (Some(name), ..) => (name.to_owned(), None),
            (_, MsgpackValue::Unsigned(id), Role::Ids(what)) => (format!("{what} {id}"), None),
            (_, MsgpackValue::Text(key), _) => match as_name(key) {
                Some(name) => (name.to_owned(), None),
                None => ("pair".to_owned(), Some(text(key))),
            },
            _ => (format!("key {}", shown(key)), None),
        };
        self.count_element();
        let words = match (known, value) {
            (Some("event_type"), MsgpackValue::Unsigned(number)) => self.event_type(role, number),
            (Some("event_type"), MsgpackValue::Text(name)) => {
                let kind = TYPES.iter().find(|kind| kind.as_bytes() == name);
                self.set_kind(kind.copied());
                None
            }
            (Some("timestamp"), MsgpackValue::Float(millis)) => Some(moment(nanos(millis))),
            (Some("timestamp"), MsgpackValue::Unsigned(millis)) => Some(moment(i128::from(millis) * 1_000_000)),
            _ => None,
        };
        if let Some(words) = words {
            self.row(read(start, *reader), &name, &words, sheet);
            return Ok(());
        }
        let inner = match (role, known, value) {
            (Role::Message, Some("payload"), MsgpackValue::Array(_)) => Role::Events,
            (_, Some("payload"), MsgpackValue::Array(_)) => match kind {
                Some("object_space_dump") => Role::List("object"),
                Some("cpu_sample") => Role::List("frame"),
                _ => Role::Other,
            },
            (_, Some("references"), _) => Role::List("reference"),
            (_, Some("stacktrace"), _) => Role::Ids("stack"),
            (Role::Ids(_), None, MsgpackValue::Array(_)) => Role::List("frame"),
            _ => Role::Other,
        };
        self.value(start, *reader, &name, prefix, value, inner, sheet);
        Ok(())
    }

    /// Explains the value between the two readers. Of a container it is the head; its elements are next.
    #[allow(clippy::too_many_arguments)]
    fn value(
        &mut self,
        start: Reader<'_>,
        end: Reader<'_>,
        name: &str,
        prefix: Option<String>,
        value: MsgpackValue<'_>,
        role: Role,
        sheet: &mut Sheet,
    ) {
        let words = shown(value);
        let words = prefix.map_or_else(|| words.clone(), |prefix| format!("{prefix}: {words}"));
        self.row(read(start, end), name, &words, sheet);
        let (is_map, left) = match value {
            MsgpackValue::Array(count) => (false, count),
            MsgpackValue::Map(pairs) => (true, pairs),
            _ => return,
        };
        self.open.push(ExplainedContainer {
            role,
            is_map,
            left: left.into(),
            count: 0,
            is_at_value: false,
            kind: None,
        });
    }

    fn row(&self, bytes: &[u8], name: &str, words: &str, sheet: &mut Sheet) {
        set_in(sheet, self.depth + self.open.len(), |sheet| sheet.field(bytes, name, words));
    }

    /// Counts an element or pair of the innermost container.
    fn count_element(&mut self) {
        if let Some(open) = self.open.last_mut() {
            (open.left, open.count, open.is_at_value) = (open.left.saturating_sub(1), open.count + 1, false);
        }
    }

    /// The name of an event type, in the family that the type of the message shows (rule 1).
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
                self.set_kind(Some(name));
                name
            }
            _ => return None,
        };
        Some(format!("{number} ({name})"))
    }

    fn set_kind(&mut self, kind: Option<&'static str>) {
        if let Some(open) = self.open.last_mut() {
            open.kind = kind;
        }
    }
}

impl Role {
    /// The name of an element of such an array.
    fn element(self) -> &'static str {
        match self {
            Role::Events => "event",
            Role::List(name) => name,
            _ => "element",
        }
    }

    /// The role of an element of such an array.
    fn inner(self) -> Role {
        if self == Role::Events { Role::Event } else { Role::Other }
    }
}

/// The bytes between two readers.
fn read<'a>(start: Reader<'a>, end: Reader<'_>) -> &'a [u8] {
    start.rest().get(..end.offset() - start.offset()).unwrap_or_default()
}

/// Milliseconds as nanoseconds. The whole milliseconds are converted as an integer, because a double is not exact there.
fn nanos(millis: f64) -> i128 {
    i128::from(millis.trunc() as i64) * 1_000_000 + i128::from((millis.fract() * 1e6).round() as i64)
}

fn shown(value: MsgpackValue<'_>) -> String {
    match value {
        MsgpackValue::Nil => "nil".to_owned(),
        MsgpackValue::Bool(truth) => truth.to_string(),
        MsgpackValue::Unsigned(number) => number.to_string(),
        MsgpackValue::Negative(number) => number.to_string(),
        MsgpackValue::Float(number) => number.to_string(),
        MsgpackValue::Text(bytes) => text(bytes),
        MsgpackValue::Binary(bytes) => hex(bytes),
        MsgpackValue::Array(count) => counted(count.into(), "element"),
        MsgpackValue::Map(pairs) => counted(pairs.into(), "pair"),
        MsgpackValue::Extension(kind, bytes) => format!("extension {kind}: {}", hex(bytes)),
    }
}
