//! Reads a value by its type string and calls a visitor for its parts.

use crate::reader::DecodeError;

use super::types::{self, TypeNode};
use super::{Elements, Slice, Tuple};

/// A value at this depth is not in normal form; the outermost value has depth 0, each child one more.
pub const MAX_DEPTH: usize = 128;

/// Is called for the parts of a value, in the order of the bytes. Variants, and maybes with a value, have no calls of their
/// own: only their content.
pub trait Visitor<'a> {
    /// A boolean.
    fn bool(&mut self, value: bool);
    /// One of the types `y q u t`.
    fn unsigned(&mut self, value: u64);
    /// One of the types `n i x h`.
    fn signed(&mut self, value: i64);
    /// A double, any bits.
    fn double(&mut self, value: f64);
    /// A string, object path or signature.
    fn text(&mut self, value: &'a str);
    /// An array of bytes.
    fn bytes(&mut self, value: &'a [u8]);
    /// A maybe without a value.
    fn nothing(&mut self);
    /// A container begins.
    fn open(&mut self, container: Container);
    /// The innermost open container ends.
    fn close(&mut self, container: Container);
}

/// The kinds of containers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Container {
    /// An array whose elements are not entries.
    Array,
    /// An array of entries.
    Dict {
        /// Whether the keys are strings, object paths or signatures.
        has_text_keys: bool,
    },
    /// A tuple.
    Tuple,
    /// An entry: a key and a value.
    Entry,
}

/// A visitor that ignores all calls, to check whether a value is in normal form.
#[derive(Clone, Copy, Debug)]
pub struct Skip;

impl Visitor<'_> for Skip {
    fn bool(&mut self, _: bool) {}
    fn unsigned(&mut self, _: u64) {}
    fn signed(&mut self, _: i64) {}
    fn double(&mut self, _: f64) {}
    fn text(&mut self, _: &str) {}
    fn bytes(&mut self, _: &[u8]) {}
    fn nothing(&mut self) {}
    fn open(&mut self, _: Container) {}
    fn close(&mut self, _: Container) {}
}

/// State that walks reuse: memory and a cache of parsed types.
#[derive(Debug)]
pub struct Scratch {
    /// Nodes of cached types, one type after the other, followed by those of types being walked.
    nodes: Vec<TypeNode>,
    known: Vec<CachedType>,
    /// End of the nodes of cached types.
    known_nodes: usize,
    most_type_bytes: usize,
}

/// A cached type.
#[derive(Debug)]
struct CachedType {
    text: Box<[u8]>,
    /// Its first node.
    index: usize,
}

/// The most cached types. When it is reached, the cache is cleared.
const MOST_KNOWN: usize = 32;
/// A longer type string is not cached.
const LONGEST_KNOWN: usize = 64;

impl Scratch {
    /// For walks in which a longer type string than this is an error: each of its bytes may take 16 bytes of memory.
    pub fn for_types_of(most_type_bytes: usize) -> Self {
        Scratch { nodes: Vec::new(), known: Vec::new(), known_nodes: 0, most_type_bytes }
    }

    fn begin_walk(&mut self) {
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
            self.known_nodes = 0;
        }
        self.nodes.truncate(self.known_nodes);
        // A type string may be as long as the value: its memory is not kept.
        self.nodes.shrink_to(KEPT_NODES);
    }

    /// The first node of a type.
    fn find(&mut self, text: Slice<'_>) -> Result<usize, DecodeError> {
        match self.known.iter().find(|known| *known.text == *text.bytes()) {
            Some(known) => Ok(known.index),
            None => self.read(text),
        }
    }

    fn read(&mut self, text: Slice<'_>) -> Result<usize, DecodeError> {
        let index = self.nodes.len();
        types::parse(text, &mut self.nodes)?;
        // After an uncached type nothing is cached, because its nodes are removed with those of that type.
        if index == self.known_nodes && text.len() <= LONGEST_KNOWN && self.known.len() < MOST_KNOWN {
            self.known.push(CachedType { text: text.bytes().into(), index });
            self.known_nodes = self.nodes.len();
        }
        Ok(index)
    }
}

impl Default for Scratch {
    /// Type strings of any length.
    fn default() -> Self {
        Scratch::for_types_of(usize::MAX)
    }
}

/// Walks the value of type `text` (one complete type) in `slice`, which is `depth` levels below the outermost value.
///
/// # Errors
/// The type is invalid, or the value is not in normal form.
pub fn visit_type<'a>(
    text: &str,
    slice: Slice<'a>,
    depth: usize,
    scratch: &mut Scratch,
    visitor: &mut impl Visitor<'a>,
) -> Result<(), DecodeError> {
    visit(Slice::new(text.as_bytes()), slice, depth, scratch, visitor)
}

/// The same with a type string that is part of the bytes, as in a variant.
///
/// # Errors
/// As [`visit_type`].
pub fn visit<'a>(
    text: Slice<'_>,
    slice: Slice<'a>,
    depth: usize,
    scratch: &mut Scratch,
    visitor: &mut impl Visitor<'a>,
) -> Result<(), DecodeError> {
    scratch.begin_walk();
    Visit { scratch, visitor }.typed(text, slice, depth)
}

/// The capacity for type nodes that is kept between values.
const KEPT_NODES: usize = 4096;

/// The content and the type string of a variant. The type is not checked yet.
///
/// # Errors
/// There is no zero byte between them.
pub fn unwrap_variant(slice: Slice<'_>) -> Result<(Slice<'_>, Slice<'_>), DecodeError> {
    match slice.bytes().iter().rposition(|byte| *byte == 0) {
        Some(end) => Ok((slice.part(0, end), slice.part(end + 1, slice.len()))),
        None => {
            Err(slice.fault("gvariant.variant", 0, slice.len() as u64, "a zero byte before the type of its content"))
        }
    }
}

struct Visit<'w, V> {
    scratch: &'w mut Scratch,
    visitor: &'w mut V,
}

impl<'a, V: Visitor<'a>> Visit<'_, V> {
    /// A value whose type is not parsed yet.
    fn typed(&mut self, text: Slice<'_>, slice: Slice<'a>, depth: usize) -> Result<(), DecodeError> {
        if text.len() > self.scratch.most_type_bytes {
            return Err(slice.fault(
                "gvariant.type",
                0,
                text.len() as u64,
                "a type string within the limit for values",
            ));
        }
        let index = self.scratch.find(text)?;
        let levels = usize::from(self.scratch.nodes[index].levels);
        if depth + levels > MAX_DEPTH {
            let found = (depth + levels) as u64;
            return Err(slice.fault("gvariant.depth", 0, found, "at most 128 levels of values in one another"));
        }
        self.value(index, slice, depth)?;
        if index >= self.scratch.known_nodes {
            self.scratch.nodes.truncate(index);
        }
        Ok(())
    }

    /// A value of the type at `index`.
    fn value(&mut self, index: usize, slice: Slice<'a>, depth: usize) -> Result<(), DecodeError> {
        let node = self.scratch.nodes[index];
        if node.size != 0 && slice.len() != node.size as usize {
            return Err(slice.fault("gvariant.value", 0, slice.len() as u64, "as many bytes as its type has"));
        }
        match node.code {
            b's' => self.visitor.text(slice.string("gvariant.string")?),
            b'o' => self.visitor.text(object_path(slice)?),
            b'g' => self.signature(slice)?,
            b'v' => {
                let (content, text) = unwrap_variant(slice)?;
                self.typed(text, content, depth + 1)?;
            }
            b'm' => self.maybe(index, slice, depth)?,
            b'a' => self.array(index, slice, depth)?,
            b'(' => self.tuple(index, slice, depth, Container::Tuple)?,
            b'{' => self.tuple(index, slice, depth, Container::Entry)?,
            _ => self.number(node.code, slice)?,
        }
        Ok(())
    }

    /// A basic type of fixed size, whose length has been checked.
    fn number(&mut self, code: u8, slice: Slice<'a>) -> Result<(), DecodeError> {
        let mut bytes = [0; 8];
        bytes[..slice.len()].copy_from_slice(slice.bytes());
        let number = u64::from_le_bytes(bytes);
        match code {
            b'b' if number > 1 => return Err(slice.fault("gvariant.bool", 0, number, "0 or 1")),
            b'b' => self.visitor.bool(number == 1),
            b'n' => self.visitor.signed(i64::from(number as i16)),
            b'i' | b'h' => self.visitor.signed(i64::from(number as i32)),
            b'x' => self.visitor.signed(number as i64),
            b'd' => self.visitor.double(f64::from_bits(number)),
            _ => self.visitor.unsigned(number),
        }
        Ok(())
    }

    fn signature(&mut self, slice: Slice<'a>) -> Result<(), DecodeError> {
        let text = slice.string("gvariant.signature")?;
        if !types::is_signature(text, &mut self.scratch.nodes) {
            return Err(slice.fault("gvariant.signature", 0, text.len() as u64, "complete types"));
        }
        self.visitor.text(text);
        Ok(())
    }

    fn maybe(&mut self, index: usize, slice: Slice<'a>, depth: usize) -> Result<(), DecodeError> {
        let content = match self.scratch.nodes[index + 1].size {
            0 => slice.maybe("gvariant.maybe")?,
            _ => Some(slice).filter(|slice| !slice.is_empty()),
        };
        match content {
            Some(content) => self.value(index + 1, content, depth + 1),
            None => {
                self.visitor.nothing();
                Ok(())
            }
        }
    }

    fn array(&mut self, index: usize, slice: Slice<'a>, depth: usize) -> Result<(), DecodeError> {
        let child = self.scratch.nodes[index + 1];
        let container = match child.code {
            b'y' => {
                self.visitor.bytes(slice.bytes());
                return Ok(());
            }
            b'{' => Container::Dict { has_text_keys: b"sog".contains(&self.scratch.nodes[index + 2].code) },
            _ => Container::Array,
        };
        self.visitor.open(container);
        let size = child.size as usize;
        if size == 0 {
            let mut elements = Elements::new(slice, usize::from(child.alignment), "gvariant.array")?;
            while let Some(element) = elements.read()? {
                self.value(index + 1, element, depth + 1)?;
            }
        } else if slice.len().is_multiple_of(size) {
            for start in (0..slice.len()).step_by(size) {
                self.value(index + 1, slice.part(start, start + size), depth + 1)?;
            }
        } else {
            return Err(slice.fault("gvariant.array", 0, slice.len() as u64, "a whole number of elements"));
        }
        self.visitor.close(container);
        Ok(())
    }

    fn tuple(&mut self, index: usize, slice: Slice<'a>, depth: usize, container: Container) -> Result<(), DecodeError> {
        let node = self.scratch.nodes[index];
        let mut members = Tuple::new(slice, node.offsets as usize, "gvariant.tuple")?;
        self.visitor.open(container);
        let (mut at, end) = (index + 1, node.next as usize);
        let mut ends_open = false;
        while at < end {
            let member = self.scratch.nodes[at];
            let alignment = usize::from(member.alignment);
            let next = member.next as usize;
            let content = match member.size {
                0 if next < end => members.variable(alignment, "gvariant.tuple")?,
                0 => {
                    ends_open = true;
                    members.last(alignment, "gvariant.tuple")?
                }
                size => members.fixed(size as usize, alignment, "gvariant.tuple")?,
            };
            self.value(at, content, depth + 1)?;
            at = next;
        }
        match node.size {
            // The one byte of `()`, or the padding that makes a fixed size a multiple of its alignment.
            1.. => members.tail("gvariant.tuple")?,
            0 if ends_open => {}
            0 => members.end("gvariant.tuple")?,
        }
        self.visitor.close(container);
        Ok(())
    }
}

/// `/`, or elements of letters, digits and underscores with a `/` before each.
fn object_path(slice: Slice<'_>) -> Result<&str, DecodeError> {
    let text = slice.string("gvariant.object_path")?;
    let is_element =
        |element: &str| !element.is_empty() && element.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_path = text == "/" || text.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_element));
    if is_path {
        Ok(text)
    } else {
        Err(slice.fault("gvariant.object_path", 0, text.len() as u64, "a D-Bus object path"))
    }
}
