//! Decodes bytes into borrowed objects. Specification: "Wire Protocol". Layouts: field notes, section 2.
//!
//! Nothing here allocates. Every declared length is checked against its limit before its bytes are awaited.

use std::hash::{Hash, Hasher};

use tributary_codec::reader::{DecodeError, DecodeErrorKind, Observer, Reader, whole};
use tributary_event::{SpanId, TraceId};

use super::ListLayout;

/// The first bytes of every connection: the type of `process` and protocol version 1.
pub const MAGIC: [u8; 6] = [0xDD, 0x00, 0x00, 0x00, 0x00, 0x01];
/// The size of `process`.
pub const PROCESS_BYTES: usize = 14;
const TRACE_BYTES: usize = 18;
const SPAN_BYTES: usize = 83;
/// One entry of a list: the id of its key, and its value.
pub type WireEntry = [[u8; 8]; 2];
/// The size of one entry of a list.
pub const ENTRY_BYTES: usize = size_of::<WireEntry>();
/// The number of entries in a list of the `padded32` layout.
const PADDED_ENTRIES: usize = 32;

/// A string's id: 8 opaque bytes (reading 3), compared bytewise, shown as 16 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StringId(pub [u8; 8]);

/// Hashed as one number: an array of bytes would be hashed as a slice, with its length.
impl Hash for StringId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from_ne_bytes(self.0));
    }
}

impl StringId {
    /// Id 0 means "absent" unless it was defined (reading 5).
    pub const ABSENT: StringId = StringId([0; 8]);
}

/// The first object of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessObject {
    /// Declared size of the peer's string cache, in entries; any number is legal.
    pub string_cache_size: u64,
}

/// One object after `process`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum WireObject<'a> {
    /// `trace`, type dd01.
    Trace(TraceId),
    /// `span`, type dd02.
    Span(WireSpan),
    /// `metricsList` (dd04) or `metaList` (dd05) of the object before it.
    List(ListKind, &'a [WireEntry]),
    /// `string`, type dd06, whole.
    String(StringId, &'a [u8]),
    /// The head of a `string` whose text is longer than `kept_string_bytes`: the caller streams the body.
    LongString(StringId, u32),
}

/// Which of the two lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListKind {
    /// Name and string.
    Meta,
    /// Name and double.
    Metrics,
}

/// The lists of one span.
#[derive(Clone, Copy, Debug)]
pub struct Lists<'a> {
    lists: [(ListKind, &'a [WireEntry]); 2],
    len: usize,
    /// Their bytes.
    pub size: usize,
}

impl<'a> Lists<'a> {
    /// The lists in the order on the wire.
    pub fn iter(&self) -> impl Iterator<Item = (ListKind, &'a [WireEntry])> {
        self.lists[..self.len].iter().copied()
    }

    /// The number of entries of all lists.
    pub fn entries(&self) -> usize {
        self.lists[..self.len].iter().map(|(_, entries)| entries.len()).sum()
    }
}

/// A span's fixed part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireSpan {
    /// Its id.
    pub span_id: SpanId,
    /// The enclosing span; zero for a root (reading 23).
    pub parent_id: SpanId,
    /// Its trace: 16 opaque bytes (reading 22).
    pub trace_id: TraceId,
    /// Nanoseconds since the Unix epoch (reading 24); values of 2^63 and more are legal.
    pub start: u64,
    /// Nanoseconds.
    pub duration: u64,
    /// Ids of name, type, resource and service, in this order.
    pub texts: [StringId; 4],
    /// 0 is no error, anything else is one (reading 2).
    pub error: u8,
}

/// The `process` at the front of `input`; `None`: it is not complete yet. A wrong byte is reported immediately
/// (rule 2): bytes 0 and 1 are `Invalid`, bytes 2 to 5 `Unsupported`.
///
/// # Errors
/// Not the magic, or another version than 1.
pub fn decode_process(input: &[u8]) -> Result<Option<ProcessObject>, DecodeError> {
    if let Some(at) = input.iter().zip(&MAGIC).position(|(found, expected)| found != expected) {
        let found = u64::from(input[at]);
        return Err(if at < 2 {
            let kind = DecodeErrorKind::Invalid { found, expected: "the magic dd 00 00 00 00 01" };
            DecodeError { field: "process.object_type", offset: at, kind }
        } else {
            let kind = DecodeErrorKind::Unsupported { found, expected: "protocol_version 00 00 00 01" };
            DecodeError { field: "process.protocol_version", offset: at, kind }
        });
    }
    if input.len() < PROCESS_BYTES {
        return Ok(None);
    }
    process(&mut Reader::new(input)).map(Some)
}

/// Reads `process`. The caller has checked the bytes of the magic.
///
/// # Errors
/// `Short`: it is not complete yet.
pub(super) fn process<O: Observer>(reader: &mut Reader<'_, O>) -> Result<ProcessObject, DecodeError> {
    reader.u16("process.object_type")?;
    reader.u32("process.protocol_version")?;
    Ok(ProcessObject { string_cache_size: reader.u64("process.string_cache_size")? })
}

/// Limits of strings and lists.
#[derive(Clone, Copy, Debug)]
pub struct WireLimits {
    /// A longer string is refused from its head.
    pub max_string_bytes: u64,
    /// A longer string is streamed.
    pub kept_string_bytes: u64,
    /// How lists are laid out.
    pub list_layout: ListLayout,
}

/// The object at the front of `input` and its size; `None`: it (of a long string: its head) is not complete yet.
///
/// # Errors
/// `Invalid`: not an object, or a second `process`. `Unsupported`: an unknown type, whose size is therefore unknown.
/// `TooLarge`: a string or list over its limit. After any of them the stream cannot be decoded further (reading 31).
pub fn decode<'a>(input: &'a [u8], limits: &WireLimits) -> Result<Option<(WireObject<'a>, usize)>, DecodeError> {
    // Checked once for all fields of a span, which most objects are.
    if input.len() < SPAN_BYTES && input.starts_with(&[0xDD, 0x02]) {
        return Ok(None);
    }
    whole(input, |reader| object(reader, limits))
}

/// Reads an object; of a long string its head.
///
/// # Errors
/// `Short`: it is not complete yet. Others as [`decode`].
#[inline]
pub(super) fn object<'a, O: Observer>(
    reader: &mut Reader<'a, O>,
    limits: &WireLimits,
) -> Result<WireObject<'a>, DecodeError> {
    let kind = match *reader.rest() {
        [0xDD, 0x01, ..] => return trace(reader).map(WireObject::Trace),
        [0xDD, 0x02, ..] => return span(reader).map(WireObject::Span),
        [0xDD, 0x04, ..] => return list(ListKind::Metrics, reader, limits),
        [0xDD, 0x05, ..] => return list(ListKind::Meta, reader, limits),
        [0xDD, 0x06, ..] => return string(reader, limits),
        [] | [0xDD] => return Err(reader.short("object_type", 2)),
        [0xDD, 0x00, ..] => DecodeErrorKind::Invalid { found: 0xDD00, expected: "one process object per connection" },
        [0xDD, other, ..] => {
            let found = 0xDD00 | u64::from(other);
            DecodeErrorKind::Unsupported { found, expected: "dd01, dd02, dd04, dd05 and dd06" }
        }
        [first, ..] => DecodeErrorKind::Invalid { found: first.into(), expected: "0xdd" },
    };
    Err(DecodeError { field: "object_type", offset: 0, kind })
}

/// The lists at the front of `input`, which follow a span. `None`: there is more than one of a kind, one is not complete or cannot
/// be decoded, or no whole trace or span follows: then further objects may belong to the span, or should have (rule 20).
pub fn lists_of_span<'a>(input: &'a [u8], limits: &WireLimits) -> Option<Lists<'a>> {
    let mut lists = Lists { lists: [(ListKind::Meta, &[]); 2], len: 0, size: 0 };
    loop {
        let rest = &input[lists.size..];
        let kind = match rest {
            [0xDD, 0x01, ..] if rest.len() >= TRACE_BYTES => return Some(lists),
            [0xDD, 0x02, ..] if rest.len() >= SPAN_BYTES => return Some(lists),
            [0xDD, 0x04, ..] => ListKind::Metrics,
            [0xDD, 0x05, ..] => ListKind::Meta,
            _ => return None,
        };
        if lists.iter().any(|(other, _)| other == kind) {
            return None;
        }
        let mut reader = Reader::new(rest);
        let Ok(WireObject::List(kind, entries)) = list(kind, &mut reader, limits) else { return None };
        *lists.lists.get_mut(lists.len)? = (kind, entries);
        lists.len += 1;
        lists.size += reader.offset();
    }
}

fn trace<O: Observer>(reader: &mut Reader<'_, O>) -> Result<TraceId, DecodeError> {
    reader.u16("trace.object_type")?;
    Ok(TraceId(reader.array("trace.trace_id")?))
}

#[inline]
fn span<O: Observer>(reader: &mut Reader<'_, O>) -> Result<WireSpan, DecodeError> {
    reader.u16("span.object_type")?;
    Ok(WireSpan {
        span_id: SpanId(reader.array("span.span_id")?),
        parent_id: SpanId(reader.array("span.parent_id")?),
        trace_id: TraceId(reader.array("span.trace_id")?),
        start: reader.u64("span.start")?,
        duration: reader.u64("span.duration")?,
        texts: [
            StringId(reader.array("span.name")?),
            StringId(reader.array("span.type")?),
            StringId(reader.array("span.resource")?),
            StringId(reader.array("span.service")?),
        ],
        error: reader.u8("span.error")?,
    })
}

#[inline]
fn list<'a, O: Observer>(
    kind: ListKind,
    reader: &mut Reader<'a, O>,
    limits: &WireLimits,
) -> Result<WireObject<'a>, DecodeError> {
    let (len, entry) = match kind {
        ListKind::Meta => ("metaList.metaLen", "metaList.meta"),
        ListKind::Metrics => ("metricsList.metricsLen", "metricsList.metric"),
    };
    reader.u16("list.object_type")?;
    let count = usize::from(reader.u8(len)?);
    let is_padded = limits.list_layout == ListLayout::Padded32;
    if is_padded && count > PADDED_ENTRIES {
        let (found, limit) = (count as u64, PADDED_ENTRIES as u64);
        let kind = DecodeErrorKind::TooLarge { found, limit, key: "list_layout = \"padded32\"" };
        return Err(DecodeError { field: "list.len", offset: 2, kind });
    }
    let entries = reader.arrays::<ENTRY_BYTES>(entry, count)?;
    if is_padded {
        reader.bytes("list.unused", (PADDED_ENTRIES - count) * ENTRY_BYTES)?;
    }
    Ok(WireObject::List(kind, entries.as_flattened().as_chunks().0.as_chunks().0))
}

fn string<'a, O: Observer>(reader: &mut Reader<'a, O>, limits: &WireLimits) -> Result<WireObject<'a>, DecodeError> {
    reader.u16("string.object_type")?;
    let id = StringId(reader.array("string.id")?);
    let len = reader.u32("string.len")?;
    if u64::from(len) > limits.max_string_bytes {
        let (found, limit) = (u64::from(len), limits.max_string_bytes);
        let kind = DecodeErrorKind::TooLarge { found, limit, key: "max_message_bytes" };
        return Err(DecodeError { field: "string.len", offset: 10, kind });
    }
    if u64::from(len) > limits.kept_string_bytes {
        return Ok(WireObject::LongString(id, len));
    }
    Ok(WireObject::String(id, reader.bytes("string.characters", len as usize)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WireLimits =
        WireLimits { max_string_bytes: 1000, kept_string_bytes: 100, list_layout: ListLayout::Exact };

    #[test]
    fn a_wrong_byte_of_the_magic_is_reported_immediately() {
        for at in 0..MAGIC.len() {
            let mut bytes = MAGIC[..=at].to_vec();
            bytes[at] ^= 0x80;
            let error = decode_process(&bytes).unwrap_err();
            assert_eq!(error.offset, at);
            assert_eq!(matches!(error.kind, DecodeErrorKind::Invalid { .. }), at < 2, "byte {at}");
        }
        assert_eq!(decode_process(&MAGIC), Ok(None));
    }

    #[test]
    fn a_string_over_the_limit_is_refused_from_its_head_and_one_at_the_limit_is_not() {
        let head = |len: u32| [&[0xDD, 6][..], &[7; 8], &len.to_be_bytes()].concat();
        assert_eq!(decode(&head(1000), &LIMITS), Ok(Some((WireObject::LongString(StringId([7; 8]), 1000), 14))));
        let error = decode(&head(1001), &LIMITS).unwrap_err();
        assert_eq!(error.to_string(), "string.len: 1001 is over the limit of 1000 (max_message_bytes)");
        assert_eq!(decode(&head(1001)[..13], &LIMITS), Ok(None));
    }

    #[test]
    fn a_padded_list_always_takes_515_bytes_and_refuses_33_entries() {
        let limits = WireLimits { list_layout: ListLayout::Padded32, ..LIMITS };
        let mut list = vec![0u8; 515];
        list[..3].copy_from_slice(&[0xDD, 5, 1]);
        assert_eq!(decode(&list[..514], &limits), Ok(None));
        assert_eq!(decode(&list, &limits), Ok(Some((WireObject::List(ListKind::Meta, &[[[0; 8]; 2]]), 515))));
        list[2] = 33;
        assert!(matches!(decode(&list[..3], &limits).unwrap_err().kind, DecodeErrorKind::TooLarge { .. }));
    }
}
