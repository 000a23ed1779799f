//! The ZMTP connection to a process, as both sessions read it.

use tributary_codec::zmtp::{Peer, Socket, ZmtpElement, ZmtpLimits};
use tributary_protocol::Output;
use tributary_protocol::fault::SessionError;

/// Frames of one message. No agent needs more (field notes, section 5).
const MAX_MESSAGE_FRAMES: u32 = 16;
/// Bytes of one ZMTP command. No agent needs more.
pub(super) const MAX_COMMAND_BYTES: u64 = 4096;

/// The first part of the input.
pub(super) enum InputPart {
    /// A greeting or a command of this size, which has been processed and counts as decoded.
    Processed(usize),
    /// The head of a frame, `head` bytes long. `length` bytes of its body follow, and further frames if `more`.
    Frame { head: usize, length: u64, more: bool, first: bool },
}

/// Our side of a connection. `key` is the option that limits a message to `max_message_bytes`.
pub(super) fn peer(socket: Socket, max_message_bytes: u64, key: &'static str) -> Peer {
    let (max_frames, max_command_bytes) = (MAX_MESSAGE_FRAMES, MAX_COMMAND_BYTES);
    Peer::new(socket, ZmtpLimits { max_message_bytes, message_key: key, max_frames, max_command_bytes })
}

/// Reads the first part of `rest`, which is at `offset`. None: more input is needed.
pub(super) fn next_part(
    peer: &mut Peer,
    rest: &[u8],
    offset: u64,
    out: &mut Output,
) -> Option<Result<InputPart, SessionError>> {
    if rest.is_empty() {
        return None;
    }
    match peer.next(rest, &mut out.reply) {
        Ok(ZmtpElement::More) => None,
        Ok(ZmtpElement::Taken { bytes }) => {
            out.decoded_bytes += bytes as u64;
            Some(Ok(InputPart::Processed(bytes)))
        }
        Ok(ZmtpElement::Frame { head, length, more, first }) => {
            Some(Ok(InputPart::Frame { head, length, more, first }))
        }
        Err(fault) => Some(Err(SessionError::new(fault.reason, offset, fault.detail))),
    }
}
