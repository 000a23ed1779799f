//! ZMTP 3.0 with the NULL mechanism, the client side of one connection: the protocol of ZeroMQ sockets over TCP.
//!
//! RFC 23/ZMTP 3.0, and those parts of RFC 37/ZMTP 3.1 that a 3.1 peer sends to a client which announces 3.0. Numbers of the
//! peer are checked where they are read, before their bytes are awaited: [`Peer::next`] reads a greeting or a command of
//! bounded size, and leaves the bodies of messages to its caller.

use std::fmt;

use bytes::{BufMut, BytesMut};

use crate::event::Reason;

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 64;
/// Offsets in a greeting: the last signature byte, the major version and the mechanism.
const SIGNATURE_END: usize = 9;
const MAJOR: usize = 10;
const MECHANISM: std::ops::Range<usize> = 12..32;
const NULL: [u8; 20] = *b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Flags of a frame. The others are reserved: not sent, and ignored as libzmq does.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Data of a PING: its TTL, then a context of at most this many bytes.
const PING_TTL_BYTES: usize = 2;
const PING_CONTEXT_BYTES: usize = 16;

/// The type of our socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Socket {
    /// Receives messages of a PUB or XPUB.
    Sub,
    /// Sends requests to a REP or ROUTER.
    Req,
}

impl Socket {
    fn as_str(self) -> &'static str {
        match self {
            Socket::Sub => "SUB",
            Socket::Req => "REQ",
        }
    }

    fn peers(self) -> [&'static str; 2] {
        match self {
            Socket::Sub => ["PUB", "XPUB"],
            Socket::Req => ["REP", "ROUTER"],
        }
    }
}

/// Limits of what a peer sends.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a message: of one frame, and of all its frames together.
    pub max_message_bytes: u64,
    /// The option that sets this limit.
    pub message_key: &'static str,
    /// Frames of a message.
    pub max_frames: u32,
    /// Bytes of a command.
    pub max_command_bytes: u64,
}

/// The state of the peer of a connection.
#[derive(Debug)]
pub struct Peer {
    ours: Socket,
    limits: Limits,
    phase: Phase,
    /// Frames and bytes of the current message; 0 frames between messages.
    frames: u32,
    message_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Greeting,
    /// Between the greeting and the READY of the peer.
    Handshake,
    Traffic,
}

/// What is at the front of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Incomplete; more bytes are needed.
    More,
    /// A greeting or a command, which has been processed.
    Taken {
        /// Its size.
        bytes: usize,
    },
    /// The head of a frame of a message. The caller reads or skips the body that follows.
    Frame {
        /// Bytes of the head.
        head: usize,
        /// Bytes of the body.
        length: u64,
        /// The message has further frames.
        more: bool,
        /// This is the first frame of the message.
        first: bool,
    },
}

/// Why a connection cannot continue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// `Malformed`, `Unsupported` or `TooLarge`.
    pub reason: Reason,
    /// One sentence: what was found, and what is allowed.
    pub detail: String,
    /// Offset of the error in the input.
    pub offset: usize,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Fault {}

/// A frame's head.
#[derive(Clone, Copy)]
struct Head {
    flags: u8,
    bytes: usize,
    length: u64,
}

impl Peer {
    /// A connection from its first byte.
    pub fn new(ours: Socket, limits: Limits) -> Self {
        Peer { ours, limits, phase: Phase::Greeting, frames: 0, message_bytes: 0 }
    }

    /// The greeting that we send immediately after connecting. Waiting for the greeting of the peer first would never end:
    /// libzmq sends most of its greeting after it has received ours.
    pub fn greeting(&self) -> [u8; GREETING_BYTES] {
        let mut greeting = [0; GREETING_BYTES];
        greeting[0] = 0xFF;
        greeting[SIGNATURE_END - 1] = 1;
        greeting[SIGNATURE_END] = 0x7F;
        greeting[MAJOR] = 3;
        greeting[MECHANISM].copy_from_slice(&NULL);
        greeting
    }

    /// Whether the READY of the peer has arrived. Before that we may only send greeting and READY: libzmq closes the
    /// connection otherwise.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Traffic
    }

    /// Whether the last frame was the last of its message, or no frame has arrived.
    pub fn is_between_messages(&self) -> bool {
        self.frames == 0
    }

    /// Reads what is at the front of `input`. Our answer, READY or PONG, is appended to `reply`: at most 27 bytes per step.
    /// After [`Step::More`] the caller repeats the call with more bytes.
    ///
    /// # Errors
    /// The peer violates the protocol, has an incompatible socket type, exceeds a limit, or sends ERROR. The connection
    /// must be closed.
    pub fn next(&mut self, input: &[u8], reply: &mut BytesMut) -> Result<Step, Fault> {
        if self.phase == Phase::Greeting {
            return self.hear_greeting(input, reply);
        }
        let Some(&flags) = input.first() else { return Ok(Step::More) };
        if flags & COMMAND != 0 && flags & MORE != 0 {
            return Err(malformed(0, "zmtp.flags: a command with the flag MORE"));
        }
        if flags & COMMAND == 0 {
            self.expect_frame()?;
        }
        let Some(head) = Head::read(flags, input) else { return Ok(Step::More) };
        if flags & COMMAND == 0 { self.frame(head) } else { self.command(head, input, reply) }
    }

    fn hear_greeting(&mut self, input: &[u8], reply: &mut BytesMut) -> Result<Step, Fault> {
        match input.first() {
            None | Some(0xFF) => {}
            Some(found) => {
                return Err(malformed(0, format!("zmtp.signature: found {found:#04x}, expected 0xff: is it ZeroMQ?")));
            }
        }
        // libzmq checks the lowest bit only, which identifies peers older than ZMTP 2.
        if let Some(found) = input.get(SIGNATURE_END)
            && found & 1 == 0
        {
            return Err(malformed(SIGNATURE_END, format!("zmtp.signature: found {found:#04x}, expected 0x7f")));
        }
        if let Some(major) = input.get(MAJOR)
            && *major < 3
        {
            return Err(unsupported(MAJOR, format!("zmtp.version: {major}, only 3 and later are supported")));
        }
        // Checked when it is complete, so that the error does not depend on how the bytes were cut.
        if let Some(mechanism) = input.get(MECHANISM)
            && mechanism != NULL
        {
            let name = mechanism.split(|byte| *byte == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name);
            return Err(unsupported(MECHANISM.start, format!("zmtp.mechanism: {name:?}, only NULL is supported")));
        }
        if input.len() < GREETING_BYTES {
            return Ok(Step::More);
        }
        self.phase = Phase::Handshake;
        put_command(reply, b"READY", |data| {
            data.put_slice(b"\x0BSocket-Type\0\0\0\x03");
            data.put_slice(self.ours.as_str().as_bytes());
        });
        Ok(Step::Taken { bytes: GREETING_BYTES })
    }

    /// Whether a message is allowed here.
    fn expect_frame(&self) -> Result<(), Fault> {
        if self.phase == Phase::Handshake {
            return Err(malformed(0, "zmtp.flags: a message before READY"));
        }
        if self.frames >= self.limits.max_frames {
            return Err(too_large(0, format!("zmtp: a message of more than {} frames", self.limits.max_frames)));
        }
        Ok(())
    }

    fn frame(&mut self, head: Head) -> Result<Step, Fault> {
        let Head { flags, bytes, length } = head;
        let message_bytes = self.message_bytes.saturating_add(length);
        if message_bytes > self.limits.max_message_bytes {
            let (limit, key) = (self.limits.max_message_bytes, self.limits.message_key);
            let what = if self.frames == 0 { "a frame" } else { "the frames of a message" };
            let detail = format!("zmtp.size: {what} of {message_bytes} bytes, over the limit of {limit} ({key})");
            return Err(too_large(1, detail));
        }
        let (first, more) = (self.frames == 0, flags & MORE != 0);
        (self.frames, self.message_bytes) = if more { (self.frames + 1, message_bytes) } else { (0, 0) };
        Ok(Step::Frame { head: bytes, length, more, first })
    }

    fn command(&mut self, head: Head, input: &[u8], reply: &mut BytesMut) -> Result<Step, Fault> {
        let Head { bytes, length, .. } = head;
        let limit = self.limits.max_command_bytes;
        if length > limit {
            return Err(too_large(1, format!("zmtp.size: a command of {length} bytes, over the limit of {limit}")));
        }
        // A size within the limit fits, unless the limit exceeds the address space.
        let size = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(bytes);
        let Some(body) = input.get(bytes..size) else { return Ok(Step::More) };
        let mut fields = Fields { rest: body, offset: bytes };
        let name = fields.short("zmtp.command.name")?;
        match (name, self.phase) {
            (b"ERROR", _) => {
                let reason = String::from_utf8_lossy(fields.short("zmtp.error.reason")?);
                return Err(unsupported(0, format!("zmtp: the peer refuses: {reason:?}")));
            }
            (b"READY", Phase::Handshake) => {
                self.hear_ready(fields)?;
                self.phase = Phase::Traffic;
            }
            (b"PING", Phase::Traffic) => {
                fields.take("zmtp.ping.ttl", PING_TTL_BYTES)?;
                let context = &fields.rest[..fields.rest.len().min(PING_CONTEXT_BYTES)];
                put_command(reply, b"PONG", |data| data.put_slice(context));
            }
            // Commands that a client ignores: SUBSCRIBE, CANCEL, and those of later versions.
            _ => {}
        }
        Ok(Step::Taken { bytes: size })
    }

    fn hear_ready(&self, mut fields: Fields<'_>) -> Result<(), Fault> {
        let mut is_named = false;
        while !fields.rest.is_empty() {
            let name = fields.short("zmtp.property.name")?;
            let length = fields.take("zmtp.property.size", 4)?;
            let length = length.iter().fold(0, |length: u64, byte| length << 8 | u64::from(*byte));
            let offset = fields.offset;
            let value = fields.take("zmtp.property.value", usize::try_from(length).unwrap_or(usize::MAX))?;
            if name.eq_ignore_ascii_case(b"Socket-Type") {
                let [one, other] = self.ours.peers();
                if ![one, other].iter().any(|peer| value.eq_ignore_ascii_case(peer.as_bytes())) {
                    let found = String::from_utf8_lossy(&value[..value.len().min(32)]);
                    return Err(unsupported(
                        offset,
                        format!("Socket-Type: {found:?}, only {one} and {other} answer us"),
                    ));
                }
                is_named = true;
            }
        }
        if is_named { Ok(()) } else { Err(malformed(fields.offset, "zmtp.ready: no Socket-Type")) }
    }
}

impl Head {
    /// `None` when the input ends before the size does.
    fn read(flags: u8, input: &[u8]) -> Option<Head> {
        if flags & LONG == 0 {
            return Some(Head { flags, bytes: 2, length: u64::from(*input.get(1)?) });
        }
        let length = input.get(1..)?.first_chunk().copied().map(u64::from_be_bytes)?;
        Some(Head { flags, bytes: 9, length })
    }
}

/// Reads the parts of a command, up to its end.
struct Fields<'a> {
    rest: &'a [u8],
    /// Offset of the rest in the input.
    offset: usize,
}

impl<'a> Fields<'a> {
    /// A byte with a length, and this many bytes.
    fn short(&mut self, field: &'static str) -> Result<&'a [u8], Fault> {
        let length = self.take(field, 1)?;
        self.take(field, usize::from(length[0]))
    }

    fn take(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], Fault> {
        let Some((taken, rest)) = self.rest.split_at_checked(length) else {
            let had = self.rest.len();
            return Err(malformed(
                self.offset,
                format!("{field}: takes {length} bytes, {had} are left of the command"),
            ));
        };
        self.rest = rest;
        self.offset += length;
        Ok(taken)
    }
}

/// A subscription to everything, in the form that every version of libzmq understands: a message.
pub fn subscribe_all() -> [u8; 3] {
    [0, 1, 1]
}

/// A request: an empty frame, which REP of libzmq requires, and the body. `None`, and nothing is written, for an empty body:
/// an Rbkit agent that receives one stops answering.
pub fn request(body: &str, out: &mut BytesMut) -> Option<()> {
    if body.is_empty() {
        return None;
    }
    out.put_slice(&[MORE, 0]);
    match u8::try_from(body.len()) {
        Ok(length) => out.put_slice(&[0, length]),
        Err(_) => {
            out.put_u8(LONG);
            out.put_u64(body.len() as u64);
        }
    }
    out.put_slice(body.as_bytes());
    Some(())
}

/// A command that we send. All of them are short.
fn put_command(out: &mut BytesMut, name: &[u8], put_data: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_slice(&[COMMAND, 0, name.len() as u8]);
    out.put_slice(name);
    put_data(out);
    out[start + 1] = (out.len() - start - 2) as u8;
}

fn malformed(offset: usize, detail: impl Into<String>) -> Fault {
    Fault { reason: Reason::Malformed, detail: detail.into(), offset }
}

fn unsupported(offset: usize, detail: String) -> Fault {
    Fault { reason: Reason::Unsupported, detail, offset }
}

fn too_large(offset: usize, detail: String) -> Fault {
    Fault { reason: Reason::TooLarge, detail, offset }
}
