//! ZMTP 3.0 with the NULL mechanism, the client side of one connection: the protocol of ZeroMQ sockets over TCP.
//!
//! Sources: RFC 23/ZMTP 3.0, and RFC 37/ZMTP 3.1 for what a 3.1 peer sends to a client that announces 3.0. Each number of
//! the peer is checked when it is read, before more input is awaited. [`Peer::next`] reads at most a greeting or a command
//! of bounded size; the bodies of messages are left to the caller.

use std::fmt;

use bytes::{BufMut, BytesMut};

use tributary_event::Reason;

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 64;
/// Offsets in a greeting: the last byte of the signature, the major version, the mechanism.
const SIGNATURE_END: usize = 9;
const MAJOR: usize = 10;
const MECHANISM: std::ops::Range<usize> = 12..32;
const NULL: [u8; 20] = *b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Flags of a frame. The other bits are reserved: we send 0 and, like libzmq, ignore them.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The data of a PING is a TTL and a context of at most this many bytes.
const PING_TTL_BYTES: usize = 2;
const PING_CONTEXT_BYTES: usize = 16;

/// The type of our socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Socket {
    /// Receives what a PUB or XPUB socket publishes.
    Sub,
    /// Sends requests to a REP or ROUTER socket.
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

/// Limits for what a peer sends.
#[derive(Clone, Copy, Debug)]
pub struct ZmtpLimits {
    /// Bytes of one frame, and of all frames of one message.
    pub max_message_bytes: u64,
    /// The configuration key of that limit, for error texts.
    pub message_key: &'static str,
    /// Frames of one message.
    pub max_frames: u32,
    /// Bytes of one command.
    pub max_command_bytes: u64,
}

/// The state of one connection: what we have sent and how far the peer's stream has been read.
#[derive(Debug)]
pub struct Peer {
    ours: Socket,
    limits: ZmtpLimits,
    is_greeting_sent: bool,
    phase: ZmtpPhase,
    /// Frames of the current message, 0 between messages; and their bytes.
    frames: u32,
    message_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ZmtpPhase {
    Greeting,
    /// After the peer's greeting and before its READY.
    Handshake,
    Traffic,
}

/// The first element of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZmtpElement {
    /// The element is incomplete: more input is needed.
    More,
    /// A greeting or a command, which has been processed.
    Taken {
        /// Its size.
        bytes: usize,
    },
    /// The head of a frame of a message. The body follows; the caller consumes it.
    Frame {
        /// Bytes of the head.
        head: usize,
        /// Bytes of the body.
        length: u64,
        /// Further frames of the message follow.
        more: bool,
        /// It is the first frame of the message.
        first: bool,
    },
}

/// Why the connection must be closed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZmtpError {
    /// `Malformed`, `Unsupported` or `TooLarge`.
    pub reason: Reason,
    /// One sentence: what was found and what was expected.
    pub detail: String,
    /// Offset of the fault in the input.
    pub offset: usize,
}

impl fmt::Display for ZmtpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for ZmtpError {}

/// The head of a frame.
#[derive(Clone, Copy)]
struct FrameHead {
    flags: u8,
    bytes: usize,
    length: u64,
}

impl Peer {
    /// The state before the first byte in either direction.
    pub fn new(ours: Socket, limits: ZmtpLimits) -> Self {
        Peer { ours, limits, is_greeting_sent: false, phase: ZmtpPhase::Greeting, frames: 0, message_bytes: 0 }
    }

    /// Appends our greeting to `reply`, the first time it is called. Call it right after connecting: libzmq sends most of
    /// its greeting only after it has received ours, so waiting for the peer first would never end.
    pub fn send_greeting(&mut self, reply: &mut BytesMut) {
        if std::mem::replace(&mut self.is_greeting_sent, true) {
            return;
        }
        let mut greeting = [0; GREETING_BYTES];
        greeting[0] = 0xFF;
        greeting[SIGNATURE_END - 1] = 1;
        greeting[SIGNATURE_END] = 0x7F;
        greeting[MAJOR] = 3;
        greeting[MECHANISM].copy_from_slice(&NULL);
        reply.extend_from_slice(&greeting);
    }

    /// Whether our greeting has been sent.
    pub fn is_greeting_sent(&self) -> bool {
        self.is_greeting_sent
    }

    /// Whether the peer's READY has arrived. Only our greeting and our READY may be sent before it: libzmq closes the
    /// connection if anything else is.
    pub fn is_ready(&self) -> bool {
        self.phase == ZmtpPhase::Traffic
    }

    /// Whether no message is incomplete.
    pub fn is_between_messages(&self) -> bool {
        self.frames == 0
    }

    /// Reads the first element of `input`. Our answer to it is appended to `reply`: READY, with our greeting in front if
    /// that has not been sent, or PONG; at most 91 bytes. After [`ZmtpElement::More`] repeat the call with more input.
    ///
    /// # Errors
    /// The peer violates the protocol, has an unsupported socket type, exceeds a limit, or has sent ERROR. The connection
    /// must be closed.
    pub fn next(&mut self, input: &[u8], reply: &mut BytesMut) -> Result<ZmtpElement, ZmtpError> {
        if self.phase == ZmtpPhase::Greeting {
            return self.read_greeting(input, reply);
        }
        let Some(&flags) = input.first() else { return Ok(ZmtpElement::More) };
        if flags & COMMAND != 0 && flags & MORE != 0 {
            return Err(malformed(0, "zmtp.flags: a command with the flag MORE"));
        }
        if flags & COMMAND == 0 {
            self.expect_frame()?;
        }
        let Some(head) = FrameHead::read(flags, input) else { return Ok(ZmtpElement::More) };
        if flags & COMMAND == 0 { self.frame(head) } else { self.command(head, input, reply) }
    }

    fn read_greeting(&mut self, input: &[u8], reply: &mut BytesMut) -> Result<ZmtpElement, ZmtpError> {
        match input.first() {
            None | Some(0xFF) => {}
            Some(found) => {
                return Err(malformed(0, format!("zmtp.signature: found {found:#04x}, expected 0xff: is it ZeroMQ?")));
            }
        }
        // libzmq checks the lowest bit only; it marks peers that are older than ZMTP 2.
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
        // Checked when all of it is here, so that the text does not depend on how the stream was split into reads.
        if let Some(mechanism) = input.get(MECHANISM)
            && mechanism != NULL
        {
            let name = mechanism.split(|byte| *byte == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name);
            return Err(unsupported(MECHANISM.start, format!("zmtp.mechanism: {name:?}, only NULL is supported")));
        }
        if input.len() < GREETING_BYTES {
            return Ok(ZmtpElement::More);
        }
        self.phase = ZmtpPhase::Handshake;
        self.send_greeting(reply);
        put_command(reply, b"READY", |data| {
            data.put_slice(b"\x0BSocket-Type\0\0\0\x03");
            data.put_slice(self.ours.as_str().as_bytes());
        });
        Ok(ZmtpElement::Taken { bytes: GREETING_BYTES })
    }

    /// Checks that a frame of a message is allowed in this phase.
    fn expect_frame(&self) -> Result<(), ZmtpError> {
        if self.phase == ZmtpPhase::Handshake {
            return Err(malformed(0, "zmtp.flags: a message before READY"));
        }
        if self.frames >= self.limits.max_frames {
            return Err(too_large(0, format!("zmtp: a message of more than {} frames", self.limits.max_frames)));
        }
        Ok(())
    }

    fn frame(&mut self, head: FrameHead) -> Result<ZmtpElement, ZmtpError> {
        let FrameHead { flags, bytes, length } = head;
        let message_bytes = self.message_bytes.saturating_add(length);
        if message_bytes > self.limits.max_message_bytes {
            let (limit, key) = (self.limits.max_message_bytes, self.limits.message_key);
            let what = if self.frames == 0 { "a frame" } else { "the frames of a message" };
            let detail = format!("zmtp.size: {what} of {message_bytes} bytes, over the limit of {limit} ({key})");
            return Err(too_large(1, detail));
        }
        let (first, more) = (self.frames == 0, flags & MORE != 0);
        (self.frames, self.message_bytes) = if more { (self.frames + 1, message_bytes) } else { (0, 0) };
        Ok(ZmtpElement::Frame { head: bytes, length, more, first })
    }

    fn command(&mut self, head: FrameHead, input: &[u8], reply: &mut BytesMut) -> Result<ZmtpElement, ZmtpError> {
        let FrameHead { bytes, length, .. } = head;
        let limit = self.limits.max_command_bytes;
        if length > limit {
            return Err(too_large(1, format!("zmtp.size: a command of {length} bytes, over the limit of {limit}")));
        }
        // A size within the limit fits into memory, unless the limit itself does not.
        let size = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(bytes);
        let Some(body) = input.get(bytes..size) else { return Ok(ZmtpElement::More) };
        let mut fields = CommandFields { rest: body, offset: bytes };
        let name = fields.short("zmtp.command.name")?;
        match (name, self.phase) {
            (b"ERROR", _) => {
                let reason = String::from_utf8_lossy(fields.short("zmtp.error.reason")?);
                return Err(unsupported(0, format!("zmtp: the peer sent ERROR: {reason:?}")));
            }
            (b"READY", ZmtpPhase::Handshake) => {
                self.read_ready(fields)?;
                self.phase = ZmtpPhase::Traffic;
            }
            (b"PING", ZmtpPhase::Traffic) => {
                fields.take("zmtp.ping.ttl", PING_TTL_BYTES)?;
                let context = &fields.rest[..fields.rest.len().min(PING_CONTEXT_BYTES)];
                put_command(reply, b"PONG", |data| data.put_slice(context));
            }
            // SUBSCRIBE, CANCEL and the commands of later versions do not concern a client.
            _ => {}
        }
        Ok(ZmtpElement::Taken { bytes: size })
    }

    fn read_ready(&self, mut fields: CommandFields<'_>) -> Result<(), ZmtpError> {
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
                    return Err(unsupported(offset, format!("Socket-Type: {found:?}, expected {one} or {other}")));
                }
                is_named = true;
            }
        }
        if is_named { Ok(()) } else { Err(malformed(fields.offset, "zmtp.ready: no Socket-Type")) }
    }
}

impl FrameHead {
    /// `None`: the input ends inside the head.
    fn read(flags: u8, input: &[u8]) -> Option<FrameHead> {
        if flags & LONG == 0 {
            return Some(FrameHead { flags, bytes: 2, length: u64::from(*input.get(1)?) });
        }
        let length = input.get(1..)?.first_chunk().copied().map(u64::from_be_bytes)?;
        Some(FrameHead { flags, bytes: 9, length })
    }
}

/// The unread fields of a command. They never extend beyond its end.
struct CommandFields<'a> {
    rest: &'a [u8],
    /// Offset of `rest` in the input.
    offset: usize,
}

impl<'a> CommandFields<'a> {
    /// A length byte and that many bytes.
    fn short(&mut self, field: &'static str) -> Result<&'a [u8], ZmtpError> {
        let length = self.take(field, 1)?;
        self.take(field, usize::from(length[0]))
    }

    fn take(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], ZmtpError> {
        let Some((taken, rest)) = self.rest.split_at_checked(length) else {
            let left = self.rest.len();
            let detail = format!("{field}: {length} bytes, but only {left} are left of the command");
            return Err(malformed(self.offset, detail));
        };
        self.rest = rest;
        self.offset += length;
        Ok(taken)
    }
}

/// A subscription to every topic, as a message: the only form that every version of libzmq accepts.
pub fn subscribe_all() -> [u8; 3] {
    [0, 1, 1]
}

/// Writes a request: the empty delimiter frame that a REP socket requires, and the body. `None`, and nothing is written,
/// if the body is empty: an Rbkit agent that receives an empty request never answers any client again.
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

/// Writes a command of at most 255 bytes.
fn put_command(out: &mut BytesMut, name: &[u8], put_data: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_slice(&[COMMAND, 0, name.len() as u8]);
    out.put_slice(name);
    put_data(out);
    out[start + 1] = (out.len() - start - 2) as u8;
}

fn malformed(offset: usize, detail: impl Into<String>) -> ZmtpError {
    ZmtpError { reason: Reason::Malformed, detail: detail.into(), offset }
}

fn unsupported(offset: usize, detail: String) -> ZmtpError {
    ZmtpError { reason: Reason::Unsupported, detail, offset }
}

fn too_large(offset: usize, detail: String) -> ZmtpError {
    ZmtpError { reason: Reason::TooLarge, detail, offset }
}
