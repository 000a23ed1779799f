//! Payloads: GVariant → values of an event, and the fields that the registry names in them.

use crate::codec::gvariant::{self, Container, Scratch, Skip, Slice, Visitor};
use crate::codec::reader::{DecodeError, DecodeErrorKind};
use crate::event::{BatchBuilder, Key, Value};

use super::registry::{Field, Part};

/// A payload that is in order.
#[derive(Debug)]
pub(super) struct Payload<'a> {
    /// The innermost type (rule 15).
    pub(super) payload_type: &'a str,
    /// All of it.
    pub(super) value: Value,
    parts: Parts<'a>,
}

/// What the outermost container of a payload holds, where it is one that fields are found in.
#[derive(Debug)]
enum Parts<'a> {
    None,
    Members(Vec<Rendered<'a>>),
    Entries(Vec<(&'a str, Value)>),
}

/// A value, with its text where it is one.
#[derive(Clone, Copy, Debug)]
enum Rendered<'a> {
    Value(Value),
    Text(&'a str, Value),
    /// An entry of a dict with text keys.
    Entry(&'a str, Value),
}

impl Rendered<'_> {
    fn value(self) -> Value {
        match self {
            Rendered::Value(value) | Rendered::Text(_, value) | Rendered::Entry(_, value) => value,
        }
    }
}

/// Why a payload is not shown.
#[derive(Debug)]
pub(super) enum PayloadFault {
    /// It is not in normal form.
    Malformed(DecodeError),
    /// It is over `max_payload_bytes`.
    TooLarge(DecodeError),
}

/// Memory that payloads use again and again.
#[derive(Debug, Default)]
pub(super) struct Workroom {
    scratch: Scratch,
    values: Vec<Value>,
}

/// Reads the payload in `maybe`, a maybe of a variant that stands `depth` levels below the bundle. `None`: there is
/// none. Chains of variants are unwrapped to what is in them: versions 0 to 2 wrap payloads twice, and callers again.
///
/// # Errors
/// Any part of it is not in normal form, or there is too much of it.
pub(super) fn read<'a>(
    maybe: Slice<'a>,
    depth: usize,
    limit: u64,
    room: &mut Workroom,
    batch: &mut BatchBuilder,
) -> Result<Option<Payload<'a>>, PayloadFault> {
    let Some(variant) = maybe.maybe("event.payload").map_err(PayloadFault::Malformed)? else { return Ok(None) };
    if variant.len() as u64 > limit {
        let kind = DecodeErrorKind::TooLarge { found: variant.len() as u64, limit, key: "max_payload_bytes" };
        return Err(PayloadFault::TooLarge(DecodeError { field: "event.payload", offset: variant.offset(), kind }));
    }
    render(variant, depth + 1, room, batch).map(Some).map_err(PayloadFault::Malformed)
}

/// Looks whether a payload, as for [`read`], is in normal form. One over the limit is not looked at.
///
/// # Errors
/// It is not.
pub(super) fn check(maybe: Slice<'_>, depth: usize, limit: u64, room: &mut Workroom) -> Result<(), DecodeError> {
    let Some(variant) = maybe.maybe("event.payload")?.filter(|variant| variant.len() as u64 <= limit) else {
        return Ok(());
    };
    let (content, text, depth) = unwrap(variant, depth + 1)?;
    gvariant::walk(text, content, depth, &mut room.scratch, &mut Skip)
}

/// The bytes of the variant in a payload: content, a zero byte, and its type.
pub(super) fn raw(maybe: Slice<'_>) -> &[u8] {
    match maybe.maybe("event.payload") {
        Ok(Some(variant)) => variant.bytes(),
        _ => maybe.bytes(),
    }
}

/// The content of the innermost variant of a chain, its type, and its depth.
fn unwrap(variant: Slice<'_>, mut depth: usize) -> Result<(Slice<'_>, Slice<'_>, usize), DecodeError> {
    let (mut content, mut text) = gvariant::unwrap_variant(variant)?;
    while text.bytes() == b"v" {
        depth += 1;
        if depth >= gvariant::MAX_DEPTH {
            let kind = DecodeErrorKind::Invalid { found: depth as u64, expected: "at most 128 levels" };
            return Err(DecodeError { field: "gvariant.depth", offset: content.offset(), kind });
        }
        (content, text) = gvariant::unwrap_variant(content)?;
    }
    Ok((content, text, depth + 1))
}

fn render<'a>(
    variant: Slice<'a>,
    depth: usize,
    room: &mut Workroom,
    batch: &mut BatchBuilder,
) -> Result<Payload<'a>, DecodeError> {
    let (content, text, depth) = unwrap(variant, depth)?;
    let Workroom { scratch, values } = room;
    let mut rendering = Rendering { batch, values, done: Vec::new(), open: Vec::new(), parts: Parts::None };
    gvariant::walk(text, content, depth, scratch, &mut rendering)?;
    let value = rendering.done.pop().map_or(Value::Null, Rendered::value);
    // A type that could be walked is of ASCII letters and brackets.
    let payload_type = str::from_utf8(text.bytes()).unwrap_or_default();
    Ok(Payload { payload_type, value, parts: rendering.parts })
}

/// Makes values of what a walk tells.
struct Rendering<'a, 'b> {
    batch: &'b mut BatchBuilder,
    /// Where the content of one container is put together.
    values: &'b mut Vec<Value>,
    /// Values that are complete and whose containers are not.
    done: Vec<Rendered<'a>>,
    /// Containers that are not complete, and where in `done` their content starts.
    open: Vec<(Container, usize)>,
    parts: Parts<'a>,
}

impl<'a> Visitor<'a> for Rendering<'a, '_> {
    fn bool(&mut self, value: bool) {
        self.done.push(Rendered::Value(Value::Bool(value)));
    }

    fn unsigned(&mut self, value: u64) {
        self.done.push(Rendered::Value(Value::U64(value)));
    }

    fn signed(&mut self, value: i64) {
        self.done.push(Rendered::Value(Value::I64(value)));
    }

    fn double(&mut self, value: f64) {
        self.done.push(Rendered::Value(Value::F64(value)));
    }

    fn text(&mut self, text: &'a str) {
        let value = Value::Text(self.batch.push_text(text));
        self.done.push(Rendered::Text(text, value));
    }

    fn bytes(&mut self, bytes: &'a [u8]) {
        let value = self.batch.bytes(bytes);
        self.done.push(Rendered::Value(value));
    }

    fn nothing(&mut self) {
        self.done.push(Rendered::Value(Value::Null));
    }

    fn open(&mut self, container: Container) {
        self.open.push((container, self.done.len()));
    }

    fn close(&mut self, container: Container) {
        let Some((_, start)) = self.open.pop() else { return };
        let is_outermost = self.open.is_empty();
        let content = &self.done[start..];
        let in_text_dict = matches!(self.open.last(), Some((Container::Dict { has_text_keys: true }, _)));
        if in_text_dict && let [Rendered::Text(key, _), value] = content {
            let entry = Rendered::Entry(key, value.value());
            self.done.truncate(start);
            self.done.push(entry);
            return;
        }
        let closed = match container {
            Container::Dict { has_text_keys: true } => {
                let entries = last_of_each(content);
                let members: Vec<_> =
                    entries.iter().map(|(key, value)| (Key::from(self.batch.push_text(key)), *value)).collect();
                if is_outermost {
                    self.parts = Parts::Entries(entries);
                }
                Rendered::Value(self.batch.map(&members))
            }
            Container::Tuple | Container::Entry | Container::Array | Container::Dict { .. } => {
                self.values.clear();
                self.values.extend(content.iter().map(|part| part.value()));
                if is_outermost && container == Container::Tuple {
                    self.parts = Parts::Members(content.to_vec());
                }
                Rendered::Value(self.batch.array(self.values))
            }
        };
        self.done.truncate(start);
        self.done.push(closed);
    }
}

/// The entries of a dict, each key once: of a repeated one the last value, at the place of the first.
fn last_of_each<'a>(content: &[Rendered<'a>]) -> Vec<(&'a str, Value)> {
    let mut places = std::collections::HashMap::new();
    let mut entries: Vec<(&str, Value)> = Vec::new();
    for part in content {
        let Rendered::Entry(key, value) = *part else { continue };
        let place = *places.entry(key).or_insert(entries.len());
        match entries.get_mut(place) {
            Some(entry) => entry.1 = value,
            None => entries.push((key, value)),
        }
    }
    entries
}

impl Payload<'_> {
    /// The part of the payload that a field is, if it is there.
    pub(super) fn field(&self, field: &Field, batch: &mut BatchBuilder) -> Option<Value> {
        match (field.part, &self.parts) {
            (Part::Whole, _) => Some(self.value),
            (Part::Member(index), Parts::Members(members)) => members.get(index).map(|part| part.value()),
            (Part::MemberIf(index, condition), Parts::Members(members)) => match members.get(condition)?.value() {
                Value::Bool(true) => members.get(index).map(|part| part.value()),
                _ => None,
            },
            (Part::Unquoted(index), Parts::Members(members)) => match members.get(index)? {
                Rendered::Text(text, _) => Some(Value::Text(batch.push_text(text.trim_matches('"')))),
                other => Some(other.value()),
            },
            (Part::Keyed, Parts::Entries(entries)) => {
                entries.iter().find(|(key, _)| is_same_name(key, field.name)).map(|(_, value)| *value)
            }
            _ => None,
        }
    }
}

/// Whether two names differ in case and underscores at most.
fn is_same_name(one: &str, other: &str) -> bool {
    let letters = |text: &'_ str| -> Vec<u8> {
        text.bytes().filter(|byte| *byte != b'_').map(|byte| byte.to_ascii_lowercase()).collect()
    };
    letters(one) == letters(other)
}
