//! ZMTP as libzmq speaks it on a bound socket: NULL mechanism, one connection. Section 1.1 of the protocol notes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::shared::SharedProcess;

const GREETING_BYTES: usize = 64;
/// Longer than any request.
const MAX_FRAME_BYTES: u64 = 64 * 1024;
/// libzmq reads the available input before it sends READY, and closes the connection if there is more than a READY. The
/// simulation waits this long for such input.
const EARLY_INPUT_WAIT: Duration = Duration::from_millis(20);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The type of the bound socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Socket {
    Pub,
    Rep,
}

impl Socket {
    fn name(self) -> &'static str {
        match self {
            Socket::Pub => "PUB",
            Socket::Rep => "REP",
        }
    }

    fn accepts(self, peer: &[u8]) -> bool {
        match self {
            Socket::Pub => matches!(peer, b"SUB" | b"XSUB"),
            Socket::Rep => matches!(peer, b"REQ" | b"DEALER"),
        }
    }
}

/// A frame of the peer.
#[derive(Debug)]
pub(super) struct ZmtpFrame {
    pub(super) is_command: bool,
    pub(super) has_more: bool,
    pub(super) body: Vec<u8>,
}

/// The reading side of a connection.
#[derive(Debug)]
pub(super) struct Reader {
    stream: OwnedReadHalf,
    pub(super) input: BytesMut,
}

/// Exchanges greetings and READY with a peer.
///
/// # Errors
/// The peer does not speak ZMTP, has the wrong socket type, or ends the connection.
pub(super) async fn greet(
    stream: TcpStream,
    socket: Socket,
    shared: &Arc<SharedProcess>,
) -> io::Result<(Reader, OwnedWriteHalf)> {
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = Reader { stream: reader, input: BytesMut::new() };
    let minor = shared.dialect.zmtp_minor();
    let mut greeting = [0; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[8] = 1;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[11] = minor;
    greeting[12..16].copy_from_slice(b"NULL");
    // In steps, as libzmq: a peer that waits for all of it before it sends its own waits for ever.
    for (ours, theirs) in [(0..10, 10), (10..11, 11), (11..64, GREETING_BYTES)] {
        write(&mut writer, &greeting[ours], shared).await?;
        reader.until(theirs).await?;
    }
    let theirs = reader.input.split_to(GREETING_BYTES);
    if theirs[0] != 0xff || theirs[9] != 0x7f || theirs[10] < 3 || theirs[12..32] != greeting[12..32] {
        return Err(invalid("not a greeting of ZMTP 3 with the NULL mechanism"));
    }
    let early = timeout(EARLY_INPUT_WAIT, reader.frame()).await.ok().transpose()?;
    if early.is_some() && !reader.input.is_empty() {
        shared.count_received(|received| received.pipelined += 1);
        return Err(invalid("the peer does not wait for READY"));
    }
    let name = socket.name().as_bytes();
    let length = (name.len() as u32).to_be_bytes();
    let ready = [&b"\x05READY\x0bSocket-Type"[..], &length, name].concat();
    let frame = [&[COMMAND, ready.len() as u8][..], &ready].concat();
    write(&mut writer, &frame, shared).await?;
    let ready = match early {
        Some(frame) => frame,
        None => reader.frame().await?,
    };
    match socket_type(&ready) {
        Some(peer) if ready.is_command && socket.accepts(peer) => Ok((reader, writer)),
        _ => Err(invalid("the peer has the wrong socket type")),
    }
}

/// Writes and counts bytes.
pub(super) async fn write(writer: &mut OwnedWriteHalf, bytes: &[u8], shared: &SharedProcess) -> io::Result<()> {
    writer.write_all(bytes).await?;
    shared.count_bytes(bytes.len());
    Ok(())
}

/// The head of a frame.
pub(super) fn head(has_more: bool, length: u64) -> Vec<u8> {
    let flags = if has_more { MORE } else { 0 };
    match u8::try_from(length) {
        Ok(length) => vec![flags, length],
        Err(_) => [&[flags | LONG][..], &length.to_be_bytes()].concat(),
    }
}

/// A whole command.
pub(super) fn command(name: &str, data: &[u8]) -> Vec<u8> {
    let body = [&[name.len() as u8], name.as_bytes(), data].concat();
    [&[COMMAND, body.len() as u8][..], &body].concat()
}

impl ZmtpFrame {
    /// The name and the data of a command; None: it is not a command.
    pub(super) fn command(&self) -> Option<(&[u8], &[u8])> {
        let (&length, rest) = self.body.split_first()?;
        rest.split_at_checked(usize::from(length)).filter(|_| self.is_command)
    }
}

impl Reader {
    /// Reads the next frame. Cancel safe.
    pub(super) async fn frame(&mut self) -> io::Result<ZmtpFrame> {
        self.until(2).await?;
        let flags = self.input[0];
        let (head, length) = if flags & LONG == 0 {
            (2, u64::from(self.input[1]))
        } else {
            self.until(9).await?;
            let mut rest = &self.input[1..];
            (9, rest.get_u64())
        };
        if length > MAX_FRAME_BYTES {
            return Err(invalid("the frame is longer than any request"));
        }
        self.until(head + length as usize).await?;
        self.input.advance(head);
        let body = self.input.split_to(length as usize).to_vec();
        Ok(ZmtpFrame { is_command: flags & COMMAND != 0, has_more: flags & MORE != 0, body })
    }

    /// Reads more input; 0: the peer has closed the connection. Cancel safe.
    pub(super) async fn fill(&mut self) -> io::Result<usize> {
        self.stream.read_buf(&mut self.input).await
    }

    async fn until(&mut self, bytes: usize) -> io::Result<()> {
        while self.input.len() < bytes {
            if self.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

/// The property `Socket-Type` of READY.
fn socket_type(ready: &ZmtpFrame) -> Option<&[u8]> {
    let (name, mut rest) = ready.command()?;
    if name != b"READY" {
        return None;
    }
    while let Some((&length, behind)) = rest.split_first() {
        let (name, behind) = behind.split_at_checked(usize::from(length))?;
        let (length, behind) = behind.split_first_chunk::<4>()?;
        let (value, behind) = behind.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        rest = behind;
    }
    None
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
