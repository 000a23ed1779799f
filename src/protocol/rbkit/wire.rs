//! The layouts on the wire: the head of a message or event, objects, stack frames. All are borrowed from the input, and read
//! by key, not by order (field notes, section 2 and rule 6).

use tributary_codec::msgpack::{MsgpackValue, Reader};
use tributary_codec::reader::{DecodeError, DecodeErrorKind};
use tributary_event as event;

/// A socket of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Channel {
    /// The one that publishes.
    Pub,
    /// The one that replies.
    Rep,
}

/// The type of a message or event, independent of its number in a dialect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(super) enum MessageKind {
    Created,
    Destroyed,
    GcStart,
    GcEndMark,
    GcEndSweep,
    Dump,
    GcStats,
    Collection,
    Handshake,
    CpuSample,
    AllocationSnapshot,
}

/// A numbering of message and event types (field notes, section 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Family {
    /// That of the released gem and of its master branch.
    Master,
    /// That of the branch that the specification describes.
    Spec,
}

impl Family {
    /// The family in which a top-level collection has this number.
    pub(super) fn of_collection(number: u64) -> Option<Family> {
        match number {
            7 => Some(Family::Master),
            6 => Some(Family::Spec),
            _ => None,
        }
    }

    /// The family in which a handshake reply has this number (rule 1).
    pub(super) fn of_handshake(number: u64) -> Option<Family> {
        match number {
            8 => Some(Family::Master),
            7 => Some(Family::Spec),
            _ => None,
        }
    }

    fn kind(self, number: u64) -> Option<MessageKind> {
        let number = match self {
            Family::Master => number,
            // The specification has allocation_snapshot where master has obj_created, and no obj_destroyed.
            Family::Spec if number == 0 => return Some(MessageKind::AllocationSnapshot),
            Family::Spec => number.checked_add(1)?,
        };
        Some(match number {
            0 => MessageKind::Created,
            1 => MessageKind::Destroyed,
            2 => MessageKind::GcStart,
            3 => MessageKind::GcEndMark,
            4 => MessageKind::GcEndSweep,
            5 => MessageKind::Dump,
            6 => MessageKind::GcStats,
            7 => MessageKind::Collection,
            8 => MessageKind::Handshake,
            9 => MessageKind::CpuSample,
            _ => return None,
        })
    }
}

/// Types may be names: agents of 2014 and the examples of the specification have names instead of numbers.
fn named(name: &[u8]) -> Option<MessageKind> {
    Some(match name {
        b"obj_created" => MessageKind::Created,
        b"obj_destroyed" => MessageKind::Destroyed,
        b"gc_start" => MessageKind::GcStart,
        b"gc_end_m" => MessageKind::GcEndMark,
        b"gc_end_s" => MessageKind::GcEndSweep,
        b"object_space_dump" => MessageKind::Dump,
        b"gc_stats" => MessageKind::GcStats,
        b"event_collection" => MessageKind::Collection,
        b"handshake" => MessageKind::Handshake,
        b"cpu_sample" => MessageKind::CpuSample,
        b"allocation_snapshot" => MessageKind::AllocationSnapshot,
        _ => return None,
    })
}

/// The type of a message or event on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) enum Type<'a> {
    Number(u64),
    Name(&'a [u8]),
}

impl Type<'_> {
    /// Its meaning in a family.
    pub(super) fn kind(self, family: Family) -> Option<MessageKind> {
        match self {
            Type::Number(number) => family.kind(number),
            Type::Name(name) => named(name),
        }
    }
}

/// The map of a message or event. Reading stops at the payload, so that a long payload can be decoded while it arrives. If
/// keys follow the payload, they have been read too, so the whole map must be here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MessageHead<'a> {
    /// Key 0.
    pub(super) kind: Option<Type<'a>>,
    /// Key 1, milliseconds since the epoch.
    pub(super) time: Option<f64>,
    /// Key 9.
    pub(super) counter: Option<u64>,
    /// Key 10.
    pub(super) correlation: Option<u64>,
    /// Key 11.
    pub(super) total: Option<u64>,
    /// Key 2.
    pub(super) payload: Option<Payload<'a>>,
    /// The end of the map, if it has no payload.
    pub(super) end: usize,
}

/// The place of a payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload<'a> {
    /// A reader at its first byte.
    pub(super) reader: Reader<'a>,
    /// Pairs of the map after it.
    pub(super) after: u32,
}

impl<'a> MessageHead<'a> {
    /// Reads the pairs of a map. Its head has been read.
    pub(super) fn read(mut reader: Reader<'a>, pairs: u32) -> Result<MessageHead<'a>, DecodeError> {
        let mut head = MessageHead::default();
        for after in (0..pairs).rev() {
            let Some(key) = read_key(&mut reader)? else {
                reader.skip("event value")?;
                continue;
            };
            match key {
                KEY_TYPE => {
                    head.kind = match reader.next("event_type")? {
                        MsgpackValue::Unsigned(number) => Some(Type::Number(number)),
                        MsgpackValue::Text(name) => Some(Type::Name(name)),
                        other => skipped(&mut reader, other)?,
                    }
                }
                KEY_TIMESTAMP => {
                    head.time = match reader.next("timestamp")? {
                        MsgpackValue::Float(time) => Some(time),
                        MsgpackValue::Unsigned(time) => Some(time as f64),
                        other => skipped(&mut reader, other)?,
                    }
                }
                KEY_COUNTER => head.counter = read_unsigned(&mut reader, "message_counter")?,
                KEY_CORRELATION => head.correlation = read_unsigned(&mut reader, "correlation_id")?,
                KEY_TOTAL => head.total = read_unsigned(&mut reader, "complete_message_count")?,
                KEY_PAYLOAD => {
                    head.payload = Some(Payload { reader, after });
                    if after == 0 {
                        return Ok(head);
                    }
                    reader.skip("payload")?;
                }
                _ => reader.skip("event value")?,
            }
        }
        head.end = reader.offset();
        Ok(head)
    }
}

/// Reads the key of a pair. None: it is not an integer, and is skipped (rule 6).
#[inline]
pub(super) fn read_key(reader: &mut Reader<'_>) -> Result<Option<u64>, DecodeError> {
    if let Some(key) = reader.unsigned() {
        return Ok(Some(key));
    }
    match reader.next("key")? {
        MsgpackValue::Unsigned(key) => Ok(Some(key)),
        other => skipped(reader, other),
    }
}

/// Reads an unsigned integer. None: it is a value of another type, and is skipped.
#[inline]
pub(super) fn read_unsigned(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<u64>, DecodeError> {
    if let Some(number) = reader.unsigned() {
        return Ok(Some(number));
    }
    match reader.next(field)? {
        MsgpackValue::Unsigned(number) => Ok(Some(number)),
        other => skipped(reader, other),
    }
}

/// Reads a text. None: it is nil or a value of another type, and is skipped.
#[inline]
pub(super) fn read_text<'a>(reader: &mut Reader<'a>, field: &'static str) -> Result<Option<&'a [u8]>, DecodeError> {
    if let Some(text) = reader.short_text() {
        return Ok(Some(text));
    }
    match reader.next(field)? {
        MsgpackValue::Text(text) | MsgpackValue::Binary(text) => Ok(Some(text)),
        other => skipped(reader, other),
    }
}

/// Skips the rest of a value whose head has been read.
fn skipped<T>(reader: &mut Reader<'_>, head: MsgpackValue<'_>) -> Result<Option<T>, DecodeError> {
    let inside = match head {
        MsgpackValue::Array(count) => u64::from(count),
        MsgpackValue::Map(pairs) => u64::from(pairs) * 2,
        _ => 0,
    };
    for _ in 0..inside {
        reader.skip("value")?;
    }
    Ok(None)
}

/// Skips this many references of an object.
fn skip_references(reader: &mut Reader<'_>, references: u32) -> Result<(), DecodeError> {
    for _ in 0..references {
        if reader.unsigned().is_none() {
            reader.skip("reference")?;
        }
    }
    Ok(())
}

/// The error for a field that is missing or has the wrong type. `input` begins at offset 0; the error names the byte at
/// `offset`.
pub(super) fn wrong(field: &'static str, input: &[u8], offset: usize, expected: &'static str) -> DecodeError {
    let found = input.get(offset).copied().unwrap_or(0).into();
    DecodeError { field, offset, kind: DecodeErrorKind::Invalid { found, expected } }
}

/// The error for a message type that is not allowed here.
pub(super) fn wrong_type(kind: Option<Type<'_>>, expected: &'static str) -> DecodeError {
    let found = match kind {
        Some(Type::Number(number)) => number,
        Some(Type::Name(_)) | None => 0,
    };
    DecodeError { field: "event_type", offset: 0, kind: DecodeErrorKind::Invalid { found, expected } }
}

/// An object of a heap dump. A field that is nil or missing is None and does not affect the others (rule 16).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DumpObject<'a> {
    pub(super) id: Option<u64>,
    pub(super) class: Option<&'a [u8]>,
    pub(super) references: Option<References>,
    pub(super) file: Option<&'a [u8]>,
    pub(super) line: Option<u64>,
    pub(super) size: Option<u64>,
}

/// The references of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct References {
    /// Their number.
    pub(super) count: u32,
    /// Bytes of the references over the limit.
    pub(super) cut: usize,
}

impl<'a> DumpObject<'a> {
    /// Reads the pairs of a map whose head has been read. The ids of references are written to `ids`: at most
    /// `max_references`, and none after an element that is not an id.
    pub(super) fn read(
        reader: &mut Reader<'a>,
        pairs: u32,
        (ids, max_references): (&mut Vec<event::Value>, u32),
    ) -> Result<DumpObject<'a>, DecodeError> {
        let mut object = DumpObject::default();
        for _ in 0..pairs {
            let Some(key) = read_key(reader)? else {
                reader.skip("object value")?;
                continue;
            };
            match key {
                KEY_OBJECT_ID => object.id = read_unsigned(reader, "object_id")?,
                KEY_CLASS => object.class = read_text(reader, "class_name")?,
                KEY_FILE => object.file = read_text(reader, "file")?,
                KEY_LINE => object.line = read_unsigned(reader, "line")?,
                KEY_SIZE => object.size = read_unsigned(reader, "size")?,
                KEY_REFERENCES => match reader.next("references")? {
                    MsgpackValue::Array(count) => {
                        ids.clear();
                        let kept = count.min(max_references);
                        while ids.len() < kept as usize
                            && let Some(id) = reader.unsigned()
                        {
                            ids.push(id.into());
                        }
                        skip_references(reader, kept - ids.len() as u32)?;
                        let end = reader.offset();
                        skip_references(reader, count - kept)?;
                        object.references = Some(References { count, cut: reader.offset() - end });
                    }
                    other => object.references = skipped(reader, other)?,
                },
                _ => reader.skip("object value")?,
            }
        }
        Ok(object)
    }
}

/// A frame of a stack.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StackFrame<'a> {
    pub(super) method: Option<&'a [u8]>,
    pub(super) label: Option<&'a [u8]>,
    pub(super) file: Option<&'a [u8]>,
    pub(super) line: Option<u64>,
    pub(super) thread: Option<u64>,
}

impl<'a> StackFrame<'a> {
    /// Reads the pairs of a map. Its head has been read.
    pub(super) fn read(reader: &mut Reader<'a>, pairs: u32) -> Result<StackFrame<'a>, DecodeError> {
        let mut frame = StackFrame::default();
        for _ in 0..pairs {
            let Some(key) = read_key(reader)? else {
                reader.skip("frame value")?;
                continue;
            };
            match key {
                KEY_METHOD => frame.method = read_text(reader, "method_name")?,
                KEY_LABEL => frame.label = read_text(reader, "label")?,
                KEY_FILE => frame.file = read_text(reader, "file")?,
                KEY_LINE => frame.line = read_unsigned(reader, "line")?,
                KEY_THREAD => frame.thread = read_unsigned(reader, "thread_id")?,
                _ => reader.skip("frame value")?,
            }
        }
        Ok(frame)
    }
}

const KEY_TYPE: u64 = 0;
const KEY_TIMESTAMP: u64 = 1;
const KEY_PAYLOAD: u64 = 2;
const KEY_OBJECT_ID: u64 = 3;
const KEY_CLASS: u64 = 4;
const KEY_REFERENCES: u64 = 5;
const KEY_FILE: u64 = 6;
const KEY_LINE: u64 = 7;
const KEY_SIZE: u64 = 8;
const KEY_COUNTER: u64 = 9;
const KEY_CORRELATION: u64 = 10;
const KEY_TOTAL: u64 = 11;
const KEY_METHOD: u64 = 12;
const KEY_LABEL: u64 = 13;
const KEY_THREAD: u64 = 15;
/// In a snapshot: its stacks. In a site: the ids of its stacks.
pub(super) const KEY_STACKTRACE: u64 = 16;
/// In a site: the number of objects.
pub(super) const KEY_COUNT: u64 = 17;
/// In a snapshot: its sites.
pub(super) const KEY_ALLOCATIONS: u64 = 18;
