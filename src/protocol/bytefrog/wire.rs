//! Decodes messages without copying, and writes the few messages of the collector. Layouts: section 2; big-endian.
//!
//! Nothing here allocates. No message of an agent is longer than 131,083 bytes, because no length field has more
//! than 16 bits.

use bytes::{BufMut, BytesMut};

use tributary_codec::reader::{DecodeError, DecodeErrorKind, Observer, Reader, whole};

/// The protocol version, 1 to 4, which determines the layouts of all messages behind the hello.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ProtocolVersion(u8);

impl ProtocolVersion {
    /// A supported version; `None`: it is not supported.
    pub(super) fn new(version: u8) -> Option<ProtocolVersion> {
        matches!(version, 1..=4).then_some(ProtocolVersion(version))
    }

    /// The number.
    pub(super) fn number(self) -> u8 {
        self.0
    }

    /// The number as text.
    pub(super) fn as_str(self) -> &'static str {
        ["1", "2", "3", "4"][usize::from(self.0 - 1)]
    }

    /// Whether agents of this version send names of threads. Agents of later versions may, and none does (rule 12).
    pub(super) fn names_threads(self) -> bool {
        self.0 <= 2
    }
}

/// The first message of a connection (rule 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Opening {
    /// `hello` or `project hello`: a control connection.
    Hello { version: ProtocolVersion, project: Option<i32> },
    /// `data hello`.
    DataHello { run: u8 },
}

/// A message on a control connection, after the hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Control<'a> {
    Heartbeat { mode: u8, buffers: u16 },
    DataBreak { sequence: u32 },
    Class { outcome: ClassOutcome, name: &'a [u8] },
    Error { text: &'a [u8] },
}

/// What the agent did with a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ClassOutcome {
    Transformed,
    Ignored,
    Failed,
}

/// A message on a data connection, after the hello, that is no [`Call`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DataMessage<'a> {
    ThreadName { thread: u16, time: u32, name: &'a [u8] },
    Method { method: u32, signature: &'a [u8] },
    Exception { exception: u32, name: &'a [u8] },
    SourceLocation { location: u32, method: u32, lines: (i32, i32), characters: (i16, i16) },
    SourceLocationCount { method: u32, count: u32 },
    Marker { time: u32, sequence: u32, key: &'a [u8], value: &'a [u8] },
}

/// An event of a thread: entry, exit, exception, bubble or visit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Call {
    pub what: What,
    /// Milliseconds on the agent's clock (section 1.8).
    pub time: u32,
    pub sequence: u32,
    pub method: u32,
    pub thread: u16,
}

/// What happened in a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Entry,
    /// Version 1: the line, 65535 when unknown.
    ExitAtLine(u16),
    /// Versions 2 to 4: whether an exception left the method.
    Exit {
        threw: bool,
    },
    /// A `throw` statement; not an exit (rule 23).
    Thrown {
        exception: u32,
        line: u16,
    },
    /// An exit by exception.
    Bubbled {
        exception: u32,
    },
    /// A line that was executed in the call closed last.
    Visit {
        location: u32,
    },
}

/// The line number that means unknown (rule 24).
pub(super) const NO_LINE: u16 = 0xFFFF;
/// The size of the longest [`Call`].
const MAX_CALL_BYTES: usize = 21;

/// Decodes the first message. `Ok(None)`: it is incomplete.
///
/// # Errors
/// No agent sends this first byte, or the version is unknown.
pub(super) fn opening(input: &[u8]) -> Result<Option<(Opening, usize)>, DecodeError> {
    whole(input, read_opening)
}

/// Reads the first message.
///
/// # Errors
/// `Short`: it is incomplete. Others as [`opening`].
pub(super) fn read_opening<O: Observer>(reader: &mut Reader<'_, O>) -> Result<Opening, DecodeError> {
    let has_project = match reader.u8("type")? {
        0 => false,
        16 => true,
        30 => return Ok(Opening::DataHello { run: reader.u8("run")? }),
        found => {
            let expected = "0 (hello), 16 (project hello) or 30 (data hello)";
            let kind = DecodeErrorKind::Invalid { found: found.into(), expected };
            return Err(DecodeError { field: "type", offset: 0, kind });
        }
    };
    let number = reader.u8("version")?;
    let version = ProtocolVersion::new(number).filter(|version| !has_project || version.0 == 4).ok_or_else(|| {
        let expected = if has_project { "version 4" } else { "versions 1 to 4" };
        let kind = DecodeErrorKind::Unsupported { found: number.into(), expected };
        DecodeError { field: "hello.version", offset: 1, kind }
    })?;
    let project = if has_project { Some(reader.u32("project")?.cast_signed()) } else { None };
    Ok(Opening::Hello { version, project })
}

/// Decodes a message of a control connection. `Ok(None)`: it is incomplete.
///
/// # Errors
/// A type that agents do not send there.
pub(super) fn control(input: &[u8]) -> Result<Option<(Control<'_>, usize)>, DecodeError> {
    whole(input, read_control)
}

/// Reads a message of a control connection.
///
/// # Errors
/// `Short`: it is incomplete. Others as [`control`].
pub(super) fn read_control<'a, O: Observer>(reader: &mut Reader<'a, O>) -> Result<Control<'a>, DecodeError> {
    Ok(match reader.u8("type")? {
        8 => Control::Heartbeat { mode: reader.u8("mode")?, buffers: reader.u16("buffers")? },
        9 => Control::DataBreak { sequence: reader.u32("sequence")? },
        40 => Control::Class { outcome: ClassOutcome::Transformed, name: text(reader, "class")? },
        41 => Control::Class { outcome: ClassOutcome::Ignored, name: text(reader, "class")? },
        42 => Control::Class { outcome: ClassOutcome::Failed, name: text(reader, "class")? },
        99 => Control::Error { text: text(reader, "text")? },
        found => return Err(unknown(found, "8, 9, 40, 41, 42 or 99 on a control connection")),
    })
}

/// Decodes an event of a thread on a data connection; most messages are such. `None`: it is another message, or incomplete.
#[inline]
pub(super) fn call(input: &[u8], version: ProtocolVersion) -> Option<(Call, usize)> {
    if !is_call(*input.first()?, version) {
        return None;
    }
    // Of an array the fields are read without further checks.
    match input.first_chunk::<MAX_CALL_BYTES>() {
        Some(message) => whole(message, |reader| read_call(reader, version)).ok()?,
        None => whole(input, |reader| read_call(reader, version)).ok()?,
    }
}

/// Whether a message of this type is an event of a thread.
pub(super) fn is_call(kind: u8, version: ProtocolVersion) -> bool {
    match kind {
        20..=23 => true,
        14 => version.0 >= 3,
        _ => false,
    }
}

/// Reads an event of a thread; [`is_call`] holds for its type.
///
/// # Errors
/// `Short`: it is incomplete.
#[inline]
pub(super) fn read_call<O: Observer>(
    reader: &mut Reader<'_, O>,
    version: ProtocolVersion,
) -> Result<Call, DecodeError> {
    let kind = reader.u8("type")?;
    let (time, sequence, method) = (reader.u32("time")?, reader.u32("sequence")?, reader.u32("method")?);
    let what = match kind {
        20 => What::Entry,
        21 if version.0 == 1 => What::ExitAtLine(reader.u16("line")?),
        21 => What::Exit { threw: reader.u8("threw")? != 0 },
        22 => What::Thrown { exception: reader.u32("exception")?, line: reader.u16("line")? },
        23 => What::Bubbled { exception: reader.u32("exception")? },
        _ => What::Visit { location: reader.u32("location")? },
    };
    Ok(Call { what, time, sequence, method, thread: reader.u16("thread")? })
}

/// Decodes a message of a data connection that is no [`call`]. `Ok(None)`: it is incomplete, or it is an incomplete call.
///
/// # Errors
/// A type that agents of this version do not send there.
pub(super) fn data(input: &[u8], version: ProtocolVersion) -> Result<Option<(DataMessage<'_>, usize)>, DecodeError> {
    match input.first() {
        Some(kind) if is_call(*kind, version) => Ok(None),
        _ => whole(input, |reader| read_data(reader, version)),
    }
}

/// Reads a message of a data connection that is no call.
///
/// # Errors
/// `Short`: it is incomplete. Others as [`data`].
pub(super) fn read_data<'a, O: Observer>(
    reader: &mut Reader<'a, O>,
    version: ProtocolVersion,
) -> Result<DataMessage<'a>, DecodeError> {
    Ok(match reader.u8("type")? {
        10 => DataMessage::ThreadName {
            thread: reader.u16("thread")?,
            time: reader.u32("time")?,
            name: text(reader, "name")?,
        },
        11 => DataMessage::Method { method: reader.u32("method")?, signature: text(reader, "signature")? },
        12 => DataMessage::Exception { exception: reader.u32("exception")?, name: text(reader, "name")? },
        13 if version.0 >= 3 => DataMessage::SourceLocation {
            location: reader.u32("location")?,
            method: reader.u32("method")?,
            lines: (reader.u32("start line")?.cast_signed(), reader.u32("end line")?.cast_signed()),
            characters: (reader.u16("start character")?.cast_signed(), reader.u16("end character")?.cast_signed()),
        },
        15 if version.0 >= 3 => {
            DataMessage::SourceLocationCount { method: reader.u32("method")?, count: reader.u32("count")? }
        }
        50 => DataMessage::Marker {
            time: reader.u32("time")?,
            sequence: reader.u32("sequence")?,
            key: text(reader, "key")?,
            value: text(reader, "value")?,
        },
        found if version.0 >= 3 => return Err(unknown(found, "10 to 15, 20 to 23 or 50 on a data connection")),
        found => return Err(unknown(found, "10 to 12, 20 to 23 or 50 on a data connection of this version")),
    })
}

/// A text, behind its length.
fn text<'a, O: Observer>(reader: &mut Reader<'a, O>, field: &'static str) -> Result<&'a [u8], DecodeError> {
    let length = reader.u16("length")?;
    reader.bytes(field, length.into())
}

/// The size of a data hello.
pub(super) const DATA_HELLO_BYTES: u64 = 2;
/// The answer to a data hello.
pub(super) const DATA_HELLO_REPLY: u8 = 31;

/// Writes an `error` message, cut to 65,535 bytes. The text is ASCII.
pub(super) fn write_error(text: &str, out: &mut BytesMut) {
    let text = tributary_codec::text::cut(text, usize::from(u16::MAX));
    out.put_u8(99);
    out.put_u16(u16::try_from(text.len()).unwrap_or(u16::MAX));
    out.put_slice(text.as_bytes());
}

fn unknown(found: u8, expected: &'static str) -> DecodeError {
    let kind = DecodeErrorKind::Unsupported { found: u64::from(found), expected };
    DecodeError { field: "type", offset: 0, kind }
}
