//! Decodes messages without copying, and writes the few messages of the collector. Layouts: section 2; big-endian.
//!
//! Nothing here allocates. No message of an agent is longer than 131,083 bytes, because no length field has more
//! than 16 bits.

use bytes::{BufMut, BytesMut};

use tributary_codec::reader::{DecodeError, DecodeErrorKind, Reader};

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

/// Reads the first message. `Ok(None)`: it is incomplete.
///
/// # Errors
/// No agent sends this first byte, or the version is unknown.
pub(super) fn opening(input: &[u8]) -> Result<Option<(Opening, usize)>, DecodeError> {
    let [kind, rest @ ..] = input else { return Ok(None) };
    let size = match kind {
        0 | 30 => 2,
        16 => 6,
        found => {
            let expected = "0 (hello), 16 (project hello) or 30 (data hello)";
            return Err(invalid("type", 0, *found, expected));
        }
    };
    let Some(&second) = rest.first() else { return Ok(None) };
    let is_known = ProtocolVersion::new(second).is_some() && (*kind != 16 || second == 4);
    if *kind != 30 && !is_known {
        let expected = if *kind == 16 { "version 4" } else { "versions 1 to 4" };
        let kind = DecodeErrorKind::Unsupported { found: u64::from(second), expected };
        return Err(DecodeError { field: "hello.version", offset: 1, kind });
    }
    if input.len() < size {
        return Ok(None);
    }
    let opening = match (kind, ProtocolVersion::new(second)) {
        (30, _) | (_, None) => Opening::DataHello { run: second },
        (16, Some(version)) => {
            let mut reader = Reader::new(&input[2..]);
            Opening::Hello { version, project: Some(reader.u32("project_hello.project")?.cast_signed()) }
        }
        (_, Some(version)) => Opening::Hello { version, project: None },
    };
    Ok(Some((opening, size)))
}

/// Reads a message of a control connection. `Ok(None)`: it is incomplete.
///
/// # Errors
/// A type that agents do not send there.
pub(super) fn control(input: &[u8]) -> Result<Option<(Control<'_>, usize)>, DecodeError> {
    let Some(&kind) = input.first() else { return Ok(None) };
    let message = match kind {
        8 => input.get(..4).map(|m| (Control::Heartbeat { mode: m[1], buffers: u16_at(m, 2) }, 4)),
        9 => input.get(..5).map(|m| (Control::DataBreak { sequence: u32_at(m, 1) }, 5)),
        40 => text_at(input, 1).map(|(name, end)| (Control::Class { outcome: ClassOutcome::Transformed, name }, end)),
        41 => text_at(input, 1).map(|(name, end)| (Control::Class { outcome: ClassOutcome::Ignored, name }, end)),
        42 => text_at(input, 1).map(|(name, end)| (Control::Class { outcome: ClassOutcome::Failed, name }, end)),
        99 => text_at(input, 1).map(|(text, end)| (Control::Error { text }, end)),
        found => return Err(unknown(found, "8, 9, 40, 41, 42 or 99 on a control connection")),
    };
    Ok(message)
}

/// Reads an event of a thread on a data connection; most messages are such. `None`: it is another message, or incomplete.
#[inline]
pub(super) fn call(input: &[u8], version: ProtocolVersion) -> Option<(Call, usize)> {
    match input.first()? {
        20 => input.get(..15).map(|m| (call_of(m, What::Entry, 13), 15)),
        21 if version.0 == 1 => input.get(..17).map(|m| (call_of(m, What::ExitAtLine(u16_at(m, 13)), 15), 17)),
        21 => input.get(..16).map(|m| (call_of(m, What::Exit { threw: m[13] != 0 }, 14), 16)),
        22 => input.get(..21).map(|m| {
            let what = What::Thrown { exception: u32_at(m, 13), line: u16_at(m, 17) };
            (call_of(m, what, 19), 21)
        }),
        23 => input.get(..19).map(|m| (call_of(m, What::Bubbled { exception: u32_at(m, 13) }, 17), 19)),
        14 if version.0 >= 3 => input.get(..19).map(|m| (call_of(m, What::Visit { location: u32_at(m, 13) }, 17), 19)),
        _ => None,
    }
}

/// Reads a message of a data connection that is no [`call`]. `Ok(None)`: it is incomplete, or it is an incomplete call.
///
/// # Errors
/// A type that agents of this version do not send there.
pub(super) fn data(input: &[u8], version: ProtocolVersion) -> Result<Option<(DataMessage<'_>, usize)>, DecodeError> {
    let Some(&kind) = input.first() else { return Ok(None) };
    let message = match kind {
        20..=23 => None,
        14 if version.0 >= 3 => None,
        10 => text_at(input, 7).map(|(name, end)| {
            (DataMessage::ThreadName { thread: u16_at(input, 1), time: u32_at(input, 3), name }, end)
        }),
        11 => {
            text_at(input, 5).map(|(signature, end)| (DataMessage::Method { method: u32_at(input, 1), signature }, end))
        }
        12 => text_at(input, 5).map(|(name, end)| (DataMessage::Exception { exception: u32_at(input, 1), name }, end)),
        13 if version.0 >= 3 => input.get(..21).map(|m| {
            let lines = (u32_at(m, 9).cast_signed(), u32_at(m, 13).cast_signed());
            let characters = (u16_at(m, 17).cast_signed(), u16_at(m, 19).cast_signed());
            (DataMessage::SourceLocation { location: u32_at(m, 1), method: u32_at(m, 5), lines, characters }, 21)
        }),
        15 if version.0 >= 3 => {
            input.get(..9).map(|m| (DataMessage::SourceLocationCount { method: u32_at(m, 1), count: u32_at(m, 5) }, 9))
        }
        50 => text_at(input, 9).and_then(|(key, middle)| {
            let (value, end) = text_at(input, middle)?;
            Some((DataMessage::Marker { time: u32_at(input, 1), sequence: u32_at(input, 5), key, value }, end))
        }),
        found if version.0 >= 3 => return Err(unknown(found, "10 to 15, 20 to 23 or 50 on a data connection")),
        found => return Err(unknown(found, "10 to 12, 20 to 23 or 50 on a data connection of this version")),
    };
    Ok(message)
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

/// The four fields of every call; the thread is at offset `thread`.
#[inline]
fn call_of(message: &[u8], what: What, thread: usize) -> Call {
    Call {
        what,
        time: u32_at(message, 1),
        sequence: u32_at(message, 5),
        method: u32_at(message, 9),
        thread: u16_at(message, thread),
    }
}

/// The text whose length is at offset `at`, and the offset behind it. `None`: it is incomplete.
fn text_at(input: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let length = input.get(at..at + 2)?;
    let end = at + 2 + usize::from(u16::from_be_bytes([length[0], length[1]]));
    Some((input.get(at + 2..end)?, end))
}

/// The caller has checked that the field is there.
fn u16_at(message: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([message[at], message[at + 1]])
}

/// The caller has checked that the field is there.
fn u32_at(message: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]])
}

fn unknown(found: u8, expected: &'static str) -> DecodeError {
    let kind = DecodeErrorKind::Unsupported { found: u64::from(found), expected };
    DecodeError { field: "type", offset: 0, kind }
}

fn invalid(field: &'static str, offset: usize, found: u8, expected: &'static str) -> DecodeError {
    DecodeError { field, offset, kind: DecodeErrorKind::Invalid { found: u64::from(found), expected } }
}
