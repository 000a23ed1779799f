//! Payloads: GVariant → values of an event, and the fields that the registry names in them.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_codec::gvariant::{self, Container, Scratch, Skip, Slice, Visitor};
use tributary_codec::reader::{DecodeError, DecodeErrorKind};
use tributary_event::{BatchBuilder, Key, Text, Value};

use super::registry::{Field, PayloadPart};
use super::texts::BundleTexts;

/// A payload in normal form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload<'a> {
    /// The innermost type (rule 15): ASCII letters and brackets.
    pub(super) payload_type: &'a [u8],
    /// The whole payload.
    pub(super) value: Value,
    parts: Parts,
}

/// Where the members of a payload's outermost container are found. That container is closed last, so [`Lists`] hold its
/// content until the next payload is read.
#[derive(Clone, Copy, Debug)]
enum Parts {
    None,
    /// Members of a tuple: [`Lists::values`].
    Members,
    /// Entries of a dict with text keys: [`Lists::entries`].
    Entries,
}

/// A value, or an entry of a dict with text keys.
#[derive(Clone, Copy, Debug)]
enum Rendered {
    Value(Value),
    Entry(Text, Value),
}

impl Rendered {
    fn value(self) -> Value {
        match self {
            Rendered::Value(value) | Rendered::Entry(_, value) => value,
        }
    }
}

/// Why a payload is not shown.
#[derive(Debug)]
pub(super) enum PayloadError {
    /// It is not in normal form.
    Malformed(DecodeError),
    /// It is over `max_payload_bytes`.
    TooLarge(DecodeError),
}

/// Buffers that are reused for each payload.
#[derive(Debug, Default)]
pub(super) struct PayloadBuffers {
    scratch: Scratch,
    lists: Lists,
}

/// The values and containers of the payload that is being read.
#[derive(Debug, Default)]
struct Lists {
    /// Complete values of open containers.
    done: Vec<Rendered>,
    /// Open containers, and the index in `done` at which their content starts.
    open: Vec<(Container, usize)>,
    /// The content of the tuple, entry or array that was closed last.
    values: Vec<Value>,
    /// The content of the dict with text keys that was closed last, each key once.
    entries: Vec<(Text, Value)>,
    /// The members of a map for the batch.
    members: Vec<(Key, Value)>,
}

/// Reads the payload in `maybe`, a maybe of a variant `depth` levels below the bundle. `None`: there is no payload. Chains
/// of variants are unwrapped: versions 0 to 2 wrap payloads twice, and programs may wrap them again.
///
/// # Errors
/// A part of it is not in normal form, or it is over `limit` bytes.
pub(super) fn read<'a>(
    maybe: Slice<'a>,
    depth: usize,
    limit: u64,
    buffers: &mut PayloadBuffers,
    batch: &mut BatchBuilder,
) -> Result<Option<Payload<'a>>, PayloadError> {
    let Some(variant) = maybe.maybe("event.payload").map_err(PayloadError::Malformed)? else { return Ok(None) };
    if variant.len() as u64 > limit {
        let kind = DecodeErrorKind::TooLarge { found: variant.len() as u64, limit, key: "max_payload_bytes" };
        return Err(PayloadError::TooLarge(DecodeError { field: "event.payload", offset: variant.offset(), kind }));
    }
    render(variant, depth + 1, buffers, batch).map(Some).map_err(PayloadError::Malformed)
}

/// Checks that a payload, as for [`read`], is in normal form. A payload over `limit` bytes is not checked.
///
/// # Errors
/// It is not in normal form.
pub(super) fn check(
    maybe: Slice<'_>,
    depth: usize,
    limit: u64,
    buffers: &mut PayloadBuffers,
) -> Result<(), DecodeError> {
    let Some(variant) = maybe.maybe("event.payload")?.filter(|variant| variant.len() as u64 <= limit) else {
        return Ok(());
    };
    let (content, text, depth) = unwrap(variant, depth + 1)?;
    gvariant::visit(text, content, depth, &mut buffers.scratch, &mut Skip)
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
    buffers: &mut PayloadBuffers,
    batch: &mut BatchBuilder,
) -> Result<Payload<'a>, DecodeError> {
    let (content, text, depth) = unwrap(variant, depth)?;
    let PayloadBuffers { scratch, lists } = buffers;
    lists.done.clear();
    lists.open.clear();
    let mut rendering = Rendering { batch, lists, parts: Parts::None };
    gvariant::visit(text, content, depth, scratch, &mut rendering)?;
    let parts = rendering.parts;
    let value = lists.done.pop().map_or(Value::Null, Rendered::value);
    Ok(Payload { payload_type: text.bytes(), value, parts })
}

/// Builds values of a payload that is visited.
struct Rendering<'b> {
    batch: &'b mut BatchBuilder,
    lists: &'b mut Lists,
    parts: Parts,
}

impl Rendering<'_> {
    fn push(&mut self, value: Value) {
        self.lists.done.push(Rendered::Value(value));
    }

    /// Collects the content of a dict with text keys: a repeated key has its last value, at its first place.
    fn keep_last_of_each(&mut self, start: usize) {
        let Lists { done, entries, .. } = &mut *self.lists;
        let batch = &*self.batch;
        let content = &done[start..];
        entries.clear();
        let mut places: HashMap<&str, usize, RandomState> = HashMap::default();
        for part in content {
            let Rendered::Entry(key, value) = *part else { continue };
            let text = batch.text(key);
            let place = match content.len() {
                ..=FEW_ENTRIES => entries.iter().position(|(known, _)| batch.text(*known) == text),
                _ => Some(*places.entry(text).or_insert(entries.len())),
            };
            match place.and_then(|place| entries.get_mut(place)) {
                Some(entry) => entry.1 = value,
                None => entries.push((key, value)),
            }
        }
    }
}

impl<'a> Visitor<'a> for Rendering<'_> {
    fn bool(&mut self, value: bool) {
        self.push(Value::Bool(value));
    }

    fn unsigned(&mut self, value: u64) {
        self.push(Value::U64(value));
    }

    fn signed(&mut self, value: i64) {
        self.push(Value::I64(value));
    }

    fn double(&mut self, value: f64) {
        self.push(Value::F64(value));
    }

    fn text(&mut self, text: &'a str) {
        let text = self.batch.push_text(text);
        self.push(Value::Text(text));
    }

    fn bytes(&mut self, bytes: &'a [u8]) {
        let value = self.batch.bytes(bytes);
        self.push(value);
    }

    fn nothing(&mut self) {
        self.push(Value::Null);
    }

    fn open(&mut self, container: Container) {
        self.lists.open.push((container, self.lists.done.len()));
    }

    fn close(&mut self, container: Container) {
        let Some((_, start)) = self.lists.open.pop() else { return };
        let in_text_dict = matches!(self.lists.open.last(), Some((Container::Dict { has_text_keys: true }, _)));
        if in_text_dict && let [Rendered::Value(Value::Text(key)), value] = &self.lists.done[start..] {
            let entry = Rendered::Entry(*key, value.value());
            self.lists.done.truncate(start);
            self.lists.done.push(entry);
            return;
        }
        let closed = match container {
            Container::Dict { has_text_keys: true } => {
                self.keep_last_of_each(start);
                self.parts = Parts::Entries;
                let Lists { entries, members, .. } = &mut *self.lists;
                members.clear();
                members.extend(entries.iter().map(|(key, value)| (Key::from(*key), *value)));
                self.batch.map(members)
            }
            Container::Tuple | Container::Entry | Container::Array | Container::Dict { .. } => {
                let Lists { done, values, .. } = &mut *self.lists;
                values.clear();
                values.extend(done[start..].iter().map(|part| part.value()));
                self.parts = if container == Container::Tuple { Parts::Members } else { Parts::None };
                self.batch.array(values)
            }
        };
        self.lists.done.truncate(start);
        self.push(closed);
    }
}

/// Up to this many keys of a dict are compared with each other; more are hashed.
const FEW_ENTRIES: usize = 8;

impl Payload<'_> {
    /// The value of a field in the payload, if it is present. `lists` are those that the payload was read with.
    fn field(&self, field: &Field, lists: &Lists, batch: &mut BatchBuilder) -> Option<Value> {
        let Lists { values, entries, .. } = lists;
        match (field.part, self.parts) {
            (PayloadPart::Whole, _) => Some(self.value),
            (PayloadPart::Member(index), Parts::Members) => values.get(index).copied(),
            (PayloadPart::MemberIf(index, condition), Parts::Members) => match values.get(condition)? {
                Value::Bool(true) => values.get(index).copied(),
                _ => None,
            },
            (PayloadPart::Unquoted(index), Parts::Members) => match values.get(index)? {
                Value::Text(text) => {
                    let unquoted = batch.text(*text).trim_matches('"').to_owned();
                    Some(Value::Text(batch.push_text(&unquoted)))
                }
                other => Some(*other),
            },
            (PayloadPart::MemberOf(key, member), Parts::Entries) => {
                let (_, tuple) = entries.iter().find(|(known, _)| batch.text(*known) == key)?;
                batch.item(*tuple, member)
            }
            (PayloadPart::Keyed, Parts::Entries) => {
                let entry = entries.iter().find(|(key, _)| is_same_name(batch.text(*key), field.name));
                entry.map(|(_, value)| *value)
            }
            _ => None,
        }
    }
}

impl PayloadBuffers {
    /// The present fields of the payload that was read last.
    pub(super) fn fields(
        &mut self,
        payload: &Payload<'_>,
        fields: &[Field],
        texts: &mut BundleTexts,
        batch: &mut BatchBuilder,
    ) -> &[(Key, Value)] {
        let mut found = std::mem::take(&mut self.lists.members);
        found.clear();
        for field in fields {
            if let Some(value) = payload.field(field, &self.lists, batch) {
                found.push((texts.field(field, batch).into(), value));
            }
        }
        self.lists.members = found;
        &self.lists.members
    }
}

/// Whether two names differ in case and underscores at most.
fn is_same_name(one: &str, other: &str) -> bool {
    fn letters(text: &str) -> impl Iterator<Item = u8> {
        text.bytes().filter(|byte| *byte != b'_').map(|byte| byte.to_ascii_lowercase())
    }
    letters(one).eq(letters(other))
}
