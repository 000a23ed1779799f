//! Values of attributes → values of events, or → bytes that are independent of the session's symbols.

mod fressian;

use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use hashbrown::HashSet;

use tributary_codec::cbor::{CborError, CborItem, Reader};
use tributary_codec::text;
use tributary_event::{BatchBuilder, Key, Text, Value, semconv, write_hex};

use super::reserved::is_reserved;
use super::symbols::{Symbols, placeholder};
use super::wire::{self, Form, TextOrSymbol, ZicoDialect};

pub(super) use super::wire::MAX_VALUE_DEPTH;
pub(super) use fressian::check_attributes;

/// The tag of a string reference in doc and gen1.
const REFERENCE: u64 = 6;
/// The suffix of keys whose values are bytes.
const BASE64: &str = "_base64";
/// Up to this many keys are compared with each other; more are hashed.
const FEW_KEYS: usize = 8;
/// How many bytes of a key are shown that is not a scalar.
const MAX_KEY_BYTES: usize = 64;

/// Writes values into a batch, and collects their marks until those are taken.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// A text was repaired.
    pub(super) is_repaired: bool,
    /// A text was cut, or left out because the event has too much text.
    pub(super) is_cut: bool,
    /// Ids of undefined strings.
    pub(super) unresolved: Vec<u64>,
    /// How many bytes symbols may still add to the event.
    pub(super) credit: usize,
    hasher: RandomState,
    seen: HashSet<u64, RandomState>,
    open: Vec<OpenContainer>,
    items: Vec<Value>,
    members: Vec<Member>,
    finished: Vec<(Key, Value)>,
}

/// A key with its hash, and its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    hash: u64,
    pub(super) key: Text,
    pub(super) value: Value,
}

/// The text of a symbol.
pub(super) struct SymbolText {
    /// Its hash as a key.
    hash: u64,
    pub(super) text: Text,
    /// As a key it is reserved.
    is_reserved: bool,
}

/// A container being written.
#[derive(Debug)]
struct OpenContainer {
    kind: Container,
    /// The number of further elements; `None`: up to a break.
    left: Option<u64>,
    /// The index of its first item or member.
    start: usize,
}

#[derive(Clone, Copy, Debug)]
enum Container {
    Array,
    /// A map, and the key of its next value.
    Map(Option<(u64, Text)>),
    Tag(u64),
}

/// The destination of values: the batch, and the symbols and dialect of the body.
pub(super) struct ValueTarget<'a, 'b> {
    pub(super) batch: &'a mut BatchBuilder,
    pub(super) symbols: &'a mut Symbols<'b>,
    pub(super) dialect: ZicoDialect,
}

impl Writer {
    /// Adds the attributes in `bytes` to `members`.
    ///
    /// # Errors
    /// The bytes were not checked before.
    pub(super) fn attributes(
        &mut self,
        bytes: &[u8],
        form: Form,
        members: &mut Vec<Member>,
        place: &mut ValueTarget<'_, '_>,
    ) -> Result<(), CborError> {
        let mut reader = Reader::new(bytes);
        let mut left = match form {
            Form::Pair => Some(1),
            Form::Map | Form::SymbolMap => match reader.item()? {
                CborItem::Map(pairs) => pairs,
                _ => Some(0),
            },
            // They are read by [`Writer::fressian_attributes`].
            Form::Fressian => Some(0),
        };
        while wire::next_of(&mut reader, &mut left)? {
            let key = wire::key(&mut reader, form != Form::Map)?;
            let (hash, key) = self.key(key, bytes, place);
            let value = self.value(&mut reader, place)?;
            members.push(self.member(hash, key, value, place.batch));
        }
        Ok(())
    }

    /// Writes the next value.
    ///
    /// # Errors
    /// The bytes were not checked before.
    pub(super) fn value(
        &mut self,
        reader: &mut Reader<'_>,
        place: &mut ValueTarget<'_, '_>,
    ) -> Result<Value, CborError> {
        debug_assert!(self.open.is_empty());
        loop {
            let mut value = self.scalar(reader, place)?;
            // A complete value may complete its container; a container that is not complete waits for more values.
            loop {
                let Some(complete) = value.take() else {
                    value = self.close_empty(reader, place)?;
                    if value.is_none() {
                        break;
                    }
                    continue;
                };
                let Some(open) = self.open.last_mut() else { return Ok(complete) };
                match &mut open.kind {
                    Container::Array => self.items.push(complete),
                    Container::Tag(tag) => {
                        let tag = *tag;
                        self.open.pop();
                        let keys = [place.batch.push_text("tag"), place.batch.push_text("value")];
                        value = Some(place.batch.map(&[(keys[0].into(), tag.into()), (keys[1].into(), complete)]));
                        continue;
                    }
                    Container::Map(key) => {
                        if let Some((hash, key)) = key.take() {
                            let member = self.member(hash, key, complete, place.batch);
                            self.members.push(member);
                        }
                    }
                }
                value = self.close_empty(reader, place)?;
                if value.is_none() {
                    break;
                }
            }
        }
    }

    /// Reads the start of the next value: a scalar, or `None` for a container, which is open afterwards.
    fn scalar(&mut self, reader: &mut Reader<'_>, place: &mut ValueTarget<'_, '_>) -> Result<Option<Value>, CborError> {
        let before = *reader;
        let (kind, left) = match reader.item()? {
            CborItem::Array(left) => (Container::Array, left),
            CborItem::Map(left) => (Container::Map(None), left),
            CborItem::Tag(REFERENCE) if place.dialect != ZicoDialect::Gen2 => match wire::integer(reader) {
                Ok(id) => return Ok(Some(self.symbol(id, place).text.into())),
                Err(_) => (Container::Tag(REFERENCE), Some(1)),
            },
            CborItem::Tag(tag) => (Container::Tag(tag), Some(1)),
            item => return self.leaf(item, before, reader, place).map(Some),
        };
        let start = if let Container::Map(_) = kind { self.members.len() } else { self.items.len() };
        self.open.push(OpenContainer { kind, left, start });
        Ok(None)
    }

    fn leaf<'a>(
        &mut self,
        item: CborItem<'a>,
        before: Reader<'a>,
        reader: &mut Reader<'a>,
        place: &mut ValueTarget<'_, '_>,
    ) -> Result<Value, CborError> {
        Ok(match item {
            CborItem::Unsigned(number) => number.into(),
            CborItem::Negative(number) => match i64::try_from(number) {
                Ok(number) => Value::I64(!number),
                Err(_) => Value::F64(-1.0 - number as f64),
            },
            CborItem::Text(bytes) => self.text(bytes, place.batch).into(),
            CborItem::Bytes(bytes) => place.batch.bytes(bytes),
            CborItem::Pieces(is_text) => {
                *reader = before;
                let joined = wire::string(reader, is_text)?;
                if is_text { self.text(&joined, place.batch).into() } else { place.batch.bytes(&joined) }
            }
            CborItem::Bool(truth) => truth.into(),
            CborItem::Float(number) => number.into(),
            CborItem::Simple(number) => {
                let key = place.batch.push_text("simple");
                place.batch.map(&[(key.into(), u64::from(number).into())])
            }
            CborItem::Null | CborItem::Undefined | CborItem::Break => Value::Null,
            CborItem::Array(_) | CborItem::Map(_) | CborItem::Tag(_) => Value::Null,
        })
    }

    /// Continues in the innermost container: reads the key of its next value, or closes the container and returns it.
    fn close_empty(
        &mut self,
        reader: &mut Reader<'_>,
        place: &mut ValueTarget<'_, '_>,
    ) -> Result<Option<Value>, CborError> {
        let Some(open) = self.open.last_mut() else { return Ok(None) };
        if let Container::Tag(_) = open.kind {
            return Ok(None);
        }
        let has_more = wire::next_of(reader, &mut open.left)?;
        let start = open.start;
        match (open.kind, has_more) {
            (Container::Map(_), true) => {
                let whole = reader.whole();
                let key = wire::key(reader, false)?;
                let key = self.key(key, whole, place);
                if let Some(open) = self.open.last_mut() {
                    open.kind = Container::Map(Some(key));
                }
                Ok(None)
            }
            (_, true) => Ok(None),
            (Container::Map(_), false) => {
                self.open.pop();
                let mut members = self.members.split_off(start);
                self.keep_last(&mut members);
                let mut finished = std::mem::take(&mut self.finished);
                finished.clear();
                finished.extend(members.iter().map(|member| (Key::from(member.key), member.value)));
                let value = place.batch.map(&finished);
                self.finished = finished;
                Ok(Some(value))
            }
            (_, false) => {
                self.open.pop();
                let value = place.batch.array(&self.items[start..]);
                self.items.truncate(start);
                Ok(Some(value))
            }
        }
    }

    /// Keeps the last of repeated keys.
    pub(super) fn keep_last(&mut self, members: &mut Vec<Member>) {
        if members.len() <= FEW_KEYS {
            for index in (0..members.len()).rev() {
                if members[index + 1..].iter().any(|later| later.hash == members[index].hash) {
                    members.remove(index);
                }
            }
            return;
        }
        self.seen.clear();
        members.reverse();
        members.retain(|member| self.seen.insert(member.hash));
        members.reverse();
    }

    /// A member; the key of a bytes value gets a suffix.
    fn member(&self, hash: u64, key: Text, value: Value, batch: &mut BatchBuilder) -> Member {
        let key = if let Value::Bytes(_) = value { batch.push_joined(key, BASE64) } else { key };
        Member { hash, key, value }
    }

    /// A key's hash and text. `whole` is the text to which offsets of other keys refer.
    fn key(&mut self, key: TextOrSymbol<'_>, whole: &[u8], place: &mut ValueTarget<'_, '_>) -> (u64, Text) {
        match key {
            TextOrSymbol::Symbol(id) => {
                let SymbolText { hash, text, is_reserved } = self.symbol(id, place);
                (hash, if is_reserved { self.moved_key(id, place) } else { text })
            }
            TextOrSymbol::Text(bytes) => {
                let (text, is_repaired) = text::repair(&bytes);
                self.is_repaired |= is_repaired;
                let prefix = if is_reserved(&text) { semconv::ZICO_ATTRIBUTE.as_str() } else { "" };
                (self.hasher.hash_one(&*text), place.batch.push_parts(&[prefix, &text]))
            }
            TextOrSymbol::None => (self.hasher.hash_one("null"), place.batch.push_text("null")),
            TextOrSymbol::Other(start, end) => {
                let text = other_key(whole.get(start..end).unwrap_or_default());
                (self.hasher.hash_one(text.as_str()), place.batch.push_text(&text))
            }
        }
    }

    /// The text of a symbol.
    pub(super) fn symbol(&mut self, id: u64, place: &mut ValueTarget<'_, '_>) -> SymbolText {
        match place.symbols.string(id) {
            Some(symbol) => {
                self.is_repaired |= symbol.is_repaired;
                self.is_cut |= symbol.is_cut;
                let (hash, is_reserved) = (self.hasher.hash_one(&*symbol.text), symbol.is_reserved);
                // Two bytes may refer to a long text.
                let text = match self.credit.checked_sub(symbol.text.len()) {
                    Some(left) => {
                        self.credit = left;
                        place.batch.intern(&mut symbol.memo, &symbol.text)
                    }
                    None => {
                        self.is_cut = true;
                        place.batch.push_text("")
                    }
                };
                SymbolText { hash, text, is_reserved }
            }
            None => {
                self.unresolved.push(id);
                let text = placeholder(id);
                SymbolText {
                    hash: self.hasher.hash_one(text.as_str()),
                    text: place.batch.push_text(&text),
                    is_reserved: false,
                }
            }
        }
    }

    /// The key of a symbol whose text is reserved.
    fn moved_key(&mut self, id: u64, place: &mut ValueTarget<'_, '_>) -> Text {
        let text = place.symbols.string(id).map_or("", |symbol| &symbol.text);
        place.batch.push_parts(&[semconv::ZICO_ATTRIBUTE.as_str(), text])
    }

    /// A text from the peer.
    pub(super) fn text(&mut self, bytes: &[u8], batch: &mut BatchBuilder) -> Text {
        let (text, is_repaired) = text::repair(bytes);
        self.is_repaired |= is_repaired;
        batch.push_text(&text)
    }
}

/// A key that is not a text: a scalar in its usual form, anything else in hexadecimal digits.
fn other_key(bytes: &[u8]) -> String {
    match Reader::new(bytes).item() {
        Ok(CborItem::Unsigned(number)) => number.to_string(),
        Ok(CborItem::Negative(number)) => (-1 - i128::from(number)).to_string(),
        Ok(CborItem::Bool(truth)) => truth.to_string(),
        Ok(CborItem::Float(number)) => number.to_string(),
        _ => {
            let mut text = String::from("cbor:");
            let _ = write_hex(&mut text, &bytes[..bytes.len().min(MAX_KEY_BYTES)]);
            text
        }
    }
}

/// Attributes that outlive their body: a map that is independent of later definitions. Undefined strings stay references.
/// `None`: the result is over `limit` bytes.
///
/// # Errors
/// The bytes were not checked before.
pub(super) fn settle(
    bytes: &[u8],
    form: Form,
    symbols: &mut Symbols<'_>,
    dialect: ZicoDialect,
    limit: usize,
) -> Result<Option<Box<[u8]>>, CborError> {
    let mut settled = Vec::with_capacity(bytes.len() + 16);
    let mut reader = Reader::new(bytes);
    if form == Form::Pair {
        settled.push(0xA1);
        if let TextOrSymbol::Symbol(id) = wire::name(&mut reader, true)? {
            write_symbol(id, symbols, &mut settled);
        } else {
            settled.extend_from_slice(&bytes[..reader.offset()]);
        }
    }
    while !reader.is_at_end() {
        // Two bytes may refer to a long text.
        if settled.len() > limit {
            return Ok(None);
        }
        let start = reader.offset();
        if let CborItem::Tag(REFERENCE) = reader.item()?
            && dialect != ZicoDialect::Gen2
            && let Ok(id) = wire::integer(&mut reader)
        {
            write_symbol(id, symbols, &mut settled);
            continue;
        }
        settled.extend_from_slice(&bytes[start..reader.offset()]);
    }
    Ok(Some(settled.into()))
}

fn write_symbol(id: u64, symbols: &mut Symbols<'_>, bytes: &mut Vec<u8>) {
    match symbols.string(id) {
        Some(symbol) => {
            write_head(3, symbol.text.len() as u64, bytes);
            bytes.extend_from_slice(symbol.text.as_bytes());
        }
        None => {
            write_head(6, REFERENCE, bytes);
            write_head(0, id, bytes);
        }
    }
}

/// The head of a CBOR item, short for small numbers, else of full width.
fn write_head(major: u8, argument: u64, bytes: &mut Vec<u8>) {
    match u8::try_from(argument) {
        Ok(small @ 0..24) => bytes.push(major << 5 | small),
        _ => {
            bytes.push(major << 5 | 27);
            bytes.extend_from_slice(&argument.to_be_bytes());
        }
    }
}
